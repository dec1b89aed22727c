/* SPDX-License-Identifier: BSD-3-Clause */
/* tp_pipe_explain() without memory says so, and leaves the result alone. */
#include "config.h"

#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/tp.h"
#include "tests/lib/tpx.h"

START_TEST(test_no_memory)
{
    static char untouched[] = "untouched";
    tp_options options = TP_OPTIONS_INIT;
    tp_status status = TP_ERR_NO_MEMORY;
    char *json = untouched;
    tp_context *context;
    tp_pipe *pipe;

    options.progress = TP_PROGRESS_MANUAL;
    setenv("TP_BOOTSTRAP", "single", 1);
    setenv("TP_BACKENDS", "loop", 1);
    ck_assert_int_eq(tp_init(&options, &context), TP_OK);
    ck_assert_int_eq(tp_pipe_to_rank(context, 0, &pipe), TP_OK);
    /* From then on there is something to explain. */
    ck_assert_int_eq(tp_pipe_send(pipe, "x", 1), TP_OK);
    for (long n = 1; status != TP_OK; n++) {
        ck_assert_ptr_eq(json, untouched);
        tpb_alloc_fail_at(n);
        status = tp_pipe_explain(pipe, &json);
        tpb_alloc_fail_at(0);
        ck_assert(status == TP_ERR_NO_MEMORY || (status == TP_OK && n > 1));
    }
    ck_assert_int_eq(*json, '{');
    free(json);
    ck_assert_int_eq(tp_finalize(context), TP_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("explained");
    TCase *tests = tcase_create("explained");

    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_no_memory);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
