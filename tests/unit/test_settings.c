/* SPDX-License-Identifier: BSD-3-Clause */
/* Settings: values, lists, what is refused. */
#include "config.h"

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

int main(void)
{
    Suite *suite = suite_create("settings");
    TCase *tests = tcase_create("settings");

    tcase_add_test(tests, test_defaults);
    tcase_add_test(tests, test_refused);
    tcase_add_test(tests, test_list_allows);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
