/* SPDX-License-Identifier: BSD-3-Clause */
/* What TP_LOG may say, and what lines look like. */
#include "config.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/log.h"
#include "tests/lib/tpx.h"

TPB_LOG_COMPONENT("test");

static int level_of(const char *specification, const char *name)
{
    struct tpb_log_component component = { name, -1 };

    ck_assert(tpb_log_configure(specification));
    return tpb_log_level(&component);
}

START_TEST(test_levels)
{
    ck_assert_int_eq(level_of(NULL, "shm"), TPB_LOG_WARN);
    ck_assert_int_eq(level_of("", "shm"), TPB_LOG_WARN);
    ck_assert_int_eq(level_of("off", "shm"), TPB_LOG_OFF);
    ck_assert_int_eq(level_of("TRACE", "shm"), TPB_LOG_TRACE);
    ck_assert_int_eq(level_of("error,shm=debug", "shm"), TPB_LOG_DEBUG);
    ck_assert_int_eq(level_of("error,shm=debug", "shmm"), TPB_LOG_ERROR);
    ck_assert_int_eq(level_of("shm=debug", "rx"), TPB_LOG_WARN);
    ck_assert_int_eq(level_of("shm=debug,info", "rx"), TPB_LOG_INFO);
    ck_assert_int_eq(level_of("rx=info,rx=off", "rx"), TPB_LOG_OFF);
}
END_TEST

START_TEST(test_refused)
{
    static const char *const bad[] = {
        "loud", "shm=", "shm=loud", "=warn2", "warn,,loud", "warn=",
        "a_component_with_far_too_long_a_name=info",
        "a=info,b=info,c=info,d=info,e=info,f=info,g=info,h=info,i=info,"
        "j=info,k=info,l=info,m=info,n=info,o=info,p=info,q=info" };

    ck_assert(tpb_log_configure("shm=debug"));
    for (size_t i = 0; i < TPB_COUNT(bad); i++) {
        struct tpb_log_component shm = { "shm", -1 };

        ck_assert_msg(!tpb_log_configure(bad[i]), "%s is taken", bad[i]);
        ck_assert_int_eq(tpb_log_level(&shm), TPB_LOG_DEBUG);  /* unchanged */
    }
}
END_TEST

START_TEST(test_lines)
{
    int fd = memfd_create("log", MFD_CLOEXEC), saved = dup(STDERR_FILENO);
    char longer[3000], text[5000];
    ssize_t got;

    memset(longer, 'x', sizeof(longer));
    longer[sizeof(longer) - 1] = '\0';
    fcntl(fd, F_SETFL, O_APPEND);
    ck_assert(tpb_log_configure("info"));
    tpb_log_name("tp[3]");
    dup2(fd, STDERR_FILENO);
    tpb_warn("%s is %d", "seven", 7);
    tpb_debug("not shown");
    tpb_info("%s", longer);
    tpb_log_name("a name that is much longer than there is room for it");
    tpb_error_log("last");
    dup2(saved, STDERR_FILENO);
    got = pread(fd, text, sizeof(text) - 1, 0);
    ck_assert_int_gt(got, 0);
    text[got] = '\0';
    ck_assert_int_eq(strncmp(text, "tp[3]: test: warn: seven is 7\n"
                             "tp[3]: test: info: xxx", 52), 0);
    ck_assert_ptr_null(strstr(text, "not shown"));
    ck_assert_ptr_nonnull(strstr(text, "xx\na name that"));
    ck_assert_str_eq(text + got - 20, ": test: error: last\n");
    ck_assert_int_lt(got, 1200);           /* the long one is cut */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log");
    TCase *tests = tcase_create("log");

    tcase_add_test(tests, test_levels);
    tcase_add_test(tests, test_refused);
    tcase_add_test(tests, test_lines);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
