/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Who has slept in vain polls less before the next sleep, until something has
 * come.  A message that the very first look after such a sleep found did not
 * count, so that over backends for which no descriptor wakes each half of a
 * round trip was a sleep of some ms.
 */
#include "config.h"

#include "runtime/core.h"
#include "tests/lib/tpx.h"

static void wait_ended(tp_pipe *pipe, tp_status status, tp_message *message,
                       void *arg)
{
    (void)pipe, (void)message;
    ck_assert_int_eq(status, TP_OK);
    ++*(int *)arg;
}

START_TEST(what_comes_ends_the_vain_sleeps)
{
    tp_options options = TP_OPTIONS_INIT;
    tp_message message = { 0 };
    tp_context *context = NULL;
    tp_pipe *pipe;
    int completed, ended = 0;

    options.bootstrap = "single";
    options.backends = "loop";
    options.progress = TP_PROGRESS_MANUAL;
    ck_assert_int_eq(tp_init(&options, &context), TP_OK);
    ck_assert_int_eq(tp_pipe_to_rank(context, 0, &pipe), TP_OK);
    ck_assert_int_eq(tp_wait(context, 20, &completed), TP_ERR_TIMEOUT);
    ck_assert_uint_gt(context->vain, 0);
    ck_assert_int_eq(tp_pipe_write(pipe, &message, wait_ended, &ended), TP_OK);
    ck_assert_int_eq(tp_wait(context, 10000, &completed), TP_OK);
    ck_assert_int_eq(ended, 1);
    ck_assert_uint_eq(context->vain, 0);
    ck_assert_int_eq(tp_finalize(context), TP_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("wait");
    TCase *tests = tcase_create("vain");

    tcase_add_test(tests, what_comes_ends_the_vain_sleeps);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
