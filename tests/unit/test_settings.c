/* SPDX-License-Identifier: BSD-3-Clause */
/* Settings: values, lists, what is refused. */
#include "config.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/settings.h"
#include "tests/lib/tpx.h"

START_TEST(test_defaults)
{
    struct tpb_settings settings;
    struct tpb_error error = { "" };

    unsetenv("TP_SPIN");
    ck_assert_int_eq(tpb_settings_load(&settings, &error), TP_OK);
    ck_assert_int_eq(settings.number[TPB_SET_SPIN], -1);
    ck_assert_int_eq(settings.number[TPB_SET_CONNECT_TIMEOUT], 120000);
    ck_assert_str_eq(settings.text[TPB_SET_PROGRESS], "auto");
    tpb_settings_fini(&settings);
}
END_TEST

START_TEST(test_refused)
{
    struct tpb_settings settings;
    struct tpb_error error = { "" };

    setenv("TP_CONNECT_TIMEOUT", "soon", 1);
    ck_assert_int_eq(tpb_settings_load(&settings, &error), TP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "TP_CONNECT_TIMEOUT=soon"));
}
END_TEST

/* What no row may be, and what is said then; every row that has values of its
 * own stands here. */
static const struct {
    const char *variable, *value, *words;
} refused[] = {
    { "TP_LOG", "loud", "a LEVEL is off, error," },
    { "TP_LOG", "shm=loud", "LEVEL" },
    { "TP_PROGRESS", "fast", "auto|thread|manual" },
    { "TP_PROGRESS", "manaul", "did you mean manual?" },
    { "TP_BOOTSTRAP", "dir:", "auto|pmix|single|dir:PATH" },
    { "TP_BOOTSTRAP", "pmx", "did you mean pmix?" },
    { "TP_SPIN", "5s", "MICROSECONDS|-" },
    { "TP_SPIN", "-1", "MICROSECONDS|-" },
    { "TP_CONNECT_TIMEOUT", "0", "TIME|-" },
    { "TP_CONNECT_TIMEOUT", "1d", "TIME|-" },
    { "TP_CONNECT_TIMEOUT", "9000000000h", "TIME|-" },
    { "TP_FINALIZE_TIMEOUT", "5 s", "TIME|-; times are written as 500ms, 30s" },
    { "TP_HEARTBEAT", "4s", "5s to 24h|0" },
    { "TP_HEARTBEAT", "4999", "5s to 24h|0" },
    { "TP_HEARTBEAT", "25h", "5s to 24h|0" },
    { "TP_HEARTBEAT", "-", "5s to 24h|0" },
    { "TP_HEARTBEAT", "ten", "5s to 24h|0" },
    { "TP_GDR", "dmabug", "did you mean dmabuf?" },
    { "TP_GDR", "plain,", "[^]dmabuf,hmem,plain|none" },
    { "TP_GDR", "^none", "[^]dmabuf,hmem,plain|none" },
    { "TP_GDR", "plain,nones", "[^]dmabuf,hmem,plain|none" },
    { "TP_GDR_PATH", "foo", "PIX|PXB|PHB|NODE|SYS" },
    { "TP_GDR_PATH", "", "PIX|PXB|PHB|NODE|SYS" },
    { "TP_OFI_TCP", "tpc", "did you mean tcp?" },
    { "TP_OFI_TCP", "", "net|tcp|-" },
    { "TP_CUDA_LIBRARY", "", "NAME|PATH|none" },
    { "TP_CUDA_OUTBOX", "-", "BYTES" },
    { "TP_CUDA_OUTBOX", "1T", "BYTES" },
    { "TP_CUDA_IMPORTS", "0", "1 or more" },
    { "TP_CUDA_IMPORT_BYTES", "0", "1 or more" },
    { "TP_EXPLAIN", "2", "0|1" },
    { "TP_REQUIRE_ABORT", "never", "0|1" },
    { "TP_RAILS", "0", "1 to 8|-" },
    { "TP_RAILS", "9", "1 to 8|-" },
    { "TP_RAILS", "two", "1 to 8|-" },
    { "TP_ALLOC_FAIL", "-", "N" },
    { "TP_CARD_HOOK", "lakcs=shm", "garbage" },
    { "TP_CARD_HOOK", "lacks=", "garbage" },
    { "TP_CARD_HOOK", "versoin", "did you mean version?" },
    { "TP_RANK", "-", "N" },
    { "TP_SIZE", "0", "N" },
    { "TP_CPUS", "0", "N|-" },
    { "TP_REPORT", "x", "FD|-" },
};

START_TEST(test_refused_values)
{
    struct tpb_settings settings;
    struct tpb_error error = { "" };
    char name[96];

    setenv(refused[_i].variable, refused[_i].value, 1);
    snprintf(name, sizeof(name), "%s=%s: expected ", refused[_i].variable,
             refused[_i].value);
    ck_assert_msg(tpb_settings_load(&settings, &error) == TP_ERR_INVALID,
                  "%s is taken", name);
    ck_assert_msg(strstr(error.text, name) != NULL
                  && strstr(error.text, refused[_i].words) != NULL, "%s",
                  error.text);
    snprintf(name, sizeof(name), "did you mean %s?", refused[_i].value);
    ck_assert_msg(strstr(error.text, name) == NULL, "%s", error.text);
}
END_TEST

START_TEST(test_taken_values)
{
    static const char *const taken[][2] = {
        { "TP_LOG", "warn,shm=trace" }, { "TP_PROGRESS", "thread" },
        { "TP_BOOTSTRAP", "dir:/x" }, { "TP_SPIN", "0" },
        { "TP_CONNECT_TIMEOUT", "-" }, { "TP_CONNECT_TIMEOUT", "2m" },
        { "TP_FINALIZE_TIMEOUT", "0" }, { "TP_HEARTBEAT", "0" },
        { "TP_HEARTBEAT", "5s" }, { "TP_GDR", "" }, { "TP_GDR", "none" },
        { "TP_GDR", "^plain,hmem" }, { "TP_GDR_PATH", "phb" },
        { "TP_CUDA_OUTBOX", "0" }, { "TP_RAILS", "8" }, { "TP_RAILS", "-" },
        { "TP_CARD_HOOK", "lacks=shm" }, { "TP_REQUIRE_ABORT", "yes" },
    };
    struct tpb_settings settings;
    struct tpb_error error = { "" };

    for (size_t i = 0; i < TPB_COUNT(taken); i++) {
        setenv(taken[i][0], taken[i][1], 1);
        ck_assert_msg(tpb_settings_load(&settings, &error) == TP_OK, "%s",
                      error.text);
        tpb_settings_fini(&settings);
        unsetenv(taken[i][0]);
    }
}
END_TEST

START_TEST(test_nearest)
{
    static const char *const words[] = { "shm", "ofi:tcp", "rails" };

    ck_assert_str_eq(tpb_nearest("smh", words, 3), "shm");
    ck_assert_str_eq(tpb_nearest("shmm", words, 3), "shm");
    ck_assert_str_eq(tpb_nearest("ofi:tpc", words, 3), "ofi:tcp");
    ck_assert_ptr_null(tpb_nearest("nope", words, 3));
    ck_assert_ptr_null(tpb_nearest("", words, 3));
    ck_assert_uint_eq(tpb_edit_distance("ab", "ba"), 1);
    ck_assert_uint_eq(tpb_edit_distance("", "abc"), 3);
    ck_assert_uint_eq(tpb_edit_distance("kitten", "sitting"), 3);
}
END_TEST

START_TEST(test_list_allows)
{
    ck_assert(tpb_list_allows("", "shm"));
    ck_assert(tpb_list_allows("shm,ofi", "ofi:tcp"));
    ck_assert(tpb_list_allows("ofi:tcp", "ofi:tcp"));
    ck_assert(!tpb_list_allows("ofi:tc", "ofi:tcp"));
    ck_assert(!tpb_list_allows("^ofi", "ofi:tcp"));
    ck_assert(tpb_list_allows("^ofi", "shm"));
    ck_assert(!tpb_list_allows("sh", "shm"));
}
END_TEST

static void *load_often(void *arg)
{
    struct tpb_settings settings;
    struct tpb_error error = { "" };

    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(tpb_settings_load(&settings, &error), TP_OK);
        tpb_settings_fini(&settings);
    }
    return arg;
}

/* Threads that call tp_init() at once: ThreadSanitizer looks on. */
START_TEST(test_loaded_at_once)
{
    pthread_t threads[3];

    setenv("TP_LOG", "warn,shm=error", 1);
    for (size_t i = 0; i < TPB_COUNT(threads); i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, load_often, NULL),
                         0);
    for (size_t i = 0; i < TPB_COUNT(threads); i++)
        pthread_join(threads[i], NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("settings");
    TCase *tests = tcase_create("settings");

    tcase_add_test(tests, test_defaults);
    tcase_add_test(tests, test_refused);
    tcase_add_loop_test(tests, test_refused_values, 0, TPB_COUNT(refused));
    tcase_add_test(tests, test_taken_values);
    tcase_add_test(tests, test_nearest);
    tcase_add_test(tests, test_list_allows);
    tcase_add_test(tests, test_loaded_at_once);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
