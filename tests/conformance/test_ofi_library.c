/* SPDX-License-Identifier: BSD-3-Clause */
/* libfabric's library, loaded on a thread, and what of that a child inherits
 * from a process that forks. */
#include "config.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabric/ofi/ofi.h"
#include "runtime/base/io.h"
#include "tests/lib/tpx.h"

/* Forks, and waits for the child; `body` says whether all is well there. */
static void library_child(bool (*body)(void))
{
    pid_t child = fork();
    int status = 0;

    ck_assert_int_ge(child, 0);
    if (child == 0) {
        alarm(60);
        _exit(body() ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(status == 0, "the child's status is %#x", (unsigned)status);
}

/* Nobody will ring: it is there, or it never will be. */
static bool library_known(void)
{
    int eventfd = tpb_eventfd();
    struct tpb_error error = { "" };
    tp_status status;
    bool there = ofi_library_get(eventfd, &status, &error) != NULL;

    ofi_library_forget(eventfd);
    close(eventfd);
    if (there)
        return ofi_library_probe(&error) == TP_OK;
    return status == TP_ERR_BACKEND && error.text[0] != '\0'
           && ofi_library_probe(&error) == TP_ERR_NOT_SUPPORTED;
}

/* The thread that loads it is the parent's only. */
START_TEST(test_forked_while_loaded)
{
    int eventfd = tpb_eventfd();
    struct tpb_error error = { "" };
    tp_status status;

    if (ofi_library_probe(&error) != TP_OK) {
        tpx_skip("ofi:tcp", error.text);
        return;
    }
    ofi_library_environment();
    ofi_library_get(eventfd, &status, &error);
    ck_assert_int_eq(status, TP_OK);
    library_child(library_known);
    ck_assert(ofi_library_wait());
    library_child(library_known);
    ofi_library_forget(eventfd);
    close(eventfd);
}
END_TEST

/* What libfabric is told before it is loaded, unless the user says else. */
START_TEST(test_environment)
{
    unsetenv("FI_TCP_MAX_RX_SIZE");
    setenv("FI_MR_CACHE_MAX_COUNT", "7", 1);
    ofi_library_environment();
    ck_assert_str_eq(getenv("FI_TCP_MAX_RX_SIZE"), "0");
    ck_assert_str_eq(getenv("FI_MR_CACHE_MAX_COUNT"), "7");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("libfabric's library");
    TCase *tests = tcase_create("library");

    tcase_set_timeout(tests, 180);
    tcase_add_test(tests, test_environment);
    tcase_add_test(tests, test_forked_while_loaded);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
