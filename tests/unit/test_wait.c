/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Who has slept in vain polls less before the next sleep, until something has
 * come.  A message that the very first look after such a sleep found did not
 * count, so that over backends for which no descriptor wakes each half of a
 * round trip was a sleep of some ms.
 *
 * Whose time is up is not told that nothing completed if a callback is counted
 * that another thread has just run: he would not hear of it again.
 *
 * Who looks on while another thread runs callbacks hears of each when it is
 * over: he was told of several together, and one that waited for him waited for
 * ever.
 *
 * A thread knows of any number of contexts which callbacks it has heard of.  Of
 * more than four it forgot that: waits without a callback were over at once,
 * and what other threads ran was not counted.
 */
#include "config.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

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
    /* On a busy machine the time may be up before it sleeps. */
    for (int tries = 0; tries < 100 && context->vain == 0; tries++)
        ck_assert_int_eq(tp_wait(context, 20, &completed), TP_ERR_TIMEOUT);
    ck_assert_uint_gt(context->vain, 0);
    ck_assert_int_eq(tp_pipe_write(pipe, &message, wait_ended, &ended), TP_OK);
    ck_assert_int_eq(tp_wait(context, 10000, &completed), TP_OK);
    ck_assert_int_eq(ended, 1);
    ck_assert_uint_eq(context->vain, 0);
    ck_assert_int_eq(tp_finalize(context), TP_OK);
}
END_TEST

enum { WAIT_MESSAGES = 30000 };

static tp_context *wait_context;
static atomic_bool wait_stop;
static unsigned wait_lost;

static void *wait_look(void *arg)
{
    (void)arg;
    while (!atomic_load(&wait_stop)) {
        int completed = 0;

        if (tp_wait(wait_context, 0, &completed) == TP_ERR_TIMEOUT
            && completed != 0)
            wait_lost++;
    }
    return NULL;
}

START_TEST(what_is_counted_is_told)
{
    tp_options options = TP_OPTIONS_INIT;
    tp_message message = { 0 };
    pthread_t looker;
    tp_pipe *pipe;
    int ended = 0;

    options.bootstrap = "single";
    options.backends = "loop";
    ck_assert_int_eq(tp_init(&options, &wait_context), TP_OK);
    ck_assert_int_eq(tp_pipe_to_rank(wait_context, 0, &pipe), TP_OK);
    ck_assert_int_eq(pthread_create(&looker, NULL, wait_look, NULL), 0);
    for (int i = 0; i < WAIT_MESSAGES; i++) {
        tp_message *skeleton = NULL;

        ck_assert_int_eq(tp_pipe_write(pipe, &message, wait_ended, &ended),
                         TP_OK);
        ck_assert_int_eq(tp_pipe_recv_skeleton(pipe, &skeleton, -1), TP_OK);
        ck_assert_int_eq(tp_pipe_recv_message(pipe, skeleton, -1), TP_OK);
    }
    atomic_store(&wait_stop, true);
    ck_assert_int_eq(pthread_join(looker, NULL), 0);
    ck_assert_int_eq(tp_finalize(wait_context), TP_OK);
    ck_assert_int_eq(ended, WAIT_MESSAGES);
    ck_assert_msg(wait_lost == 0, "%u timeouts with a callback", wait_lost);
}
END_TEST

enum { HEARD_ROUNDS = 10, HEARD_TRIES = 30000 };  /* looks, 1 ms apart */

static struct heard {
    tp_context *context;
    tp_pipe *pipe;
    pthread_t thread;
    atomic_int first, heard;       /* rounds: the first callback, its waiter */
    int second;                    /* the other callback ... */
    bool lost;                     /* ... had to wait for too long */
} heard;

/* Looks on until the first of the two callbacks has run. */
static void *heard_wait(void *arg)
{
    int round = atomic_load(&heard.heard);

    (void)arg;
    while (atomic_load(&heard.first) == round)
        ck_assert_int_eq(tp_wait(heard.context, -1, NULL), TP_OK);
    atomic_store(&heard.heard, round + 1);
    return NULL;
}

static void heard_first(tp_pipe *pipe, tp_status status, tp_message *message,
                        void *arg)
{
    (void)pipe, (void)message, (void)arg;
    ck_assert_int_eq(status, TP_OK);
    atomic_fetch_add(&heard.first, 1);
}

static void heard_second(tp_pipe *pipe, tp_status status, tp_message *message,
                         void *arg)
{
    (void)pipe, (void)message, (void)arg;
    ck_assert_int_eq(status, TP_OK);
    for (int i = 0; i < HEARD_TRIES
                    && atomic_load(&heard.heard) == heard.second; i++)
        usleep(1000);
    heard.lost |= atomic_load(&heard.heard) == heard.second;
    heard.second++;
}

/* Somebody looks on; two callbacks become due together. */
static void heard_begin(tp_pipe *pipe, tp_status status, tp_message *message,
                        void *arg)
{
    (void)pipe, (void)arg;
    ck_assert_int_eq(status, TP_OK);
    ck_assert_int_eq(pthread_create(&heard.thread, NULL, heard_wait, NULL), 0);
    while (atomic_load(&heard.context->watchers) == 0
           && atomic_load(&heard.context->sleepers) == 0)
        usleep(1000);
    ck_assert_int_eq(tp_pipe_write(heard.pipe, message, heard_first, NULL),
                     TP_OK);
    ck_assert_int_eq(tp_pipe_write(heard.pipe, message, heard_second, NULL),
                     TP_OK);
}

START_TEST(each_callback_is_told)
{
    tp_options options = TP_OPTIONS_INIT;
    tp_message message = { 0 };

    options.bootstrap = "single";
    options.backends = "loop";
    options.progress = TP_PROGRESS_MANUAL;
    options.spin_us = 1000 * 1000 * 1000;  /* who looks on does not sleep */
    ck_assert_int_eq(tp_init(&options, &heard.context), TP_OK);
    ck_assert_int_eq(tp_pipe_to_rank(heard.context, 0, &heard.pipe), TP_OK);
    for (int round = 0; round < HEARD_ROUNDS; round++) {
        ck_assert_int_eq(tp_pipe_write(heard.pipe, &message, heard_begin,
                                       NULL), TP_OK);
        while (heard.second == round)
            ck_assert_int_eq(tp_wait(heard.context, -1, NULL), TP_OK);
        ck_assert_msg(!heard.lost, "the callback was not told");
        ck_assert_int_eq(pthread_join(heard.thread, NULL), 0);
    }
    ck_assert_int_eq(tp_finalize(heard.context), TP_OK);
}
END_TEST

enum { MANY_CONTEXTS = 7 };

static struct many {
    tp_context *context;
    tp_pipe *pipe;
    atomic_int ended;
} many[MANY_CONTEXTS];

static void many_open(struct many *one, tp_progress_mode mode)
{
    tp_options options = TP_OPTIONS_INIT;

    options.bootstrap = "single";
    options.backends = "loop";
    options.progress = mode;
    atomic_store(&one->ended, 0);
    ck_assert_int_eq(tp_init(&options, &one->context), TP_OK);
    ck_assert_int_eq(tp_pipe_to_rank(one->context, 0, &one->pipe), TP_OK);
}

static void many_ended(tp_pipe *pipe, tp_status status, tp_message *message,
                       void *arg)
{
    struct many *one = arg;

    (void)pipe, (void)message;
    ck_assert_int_eq(status, TP_OK);
    atomic_fetch_add(&one->ended, 1);
}

static void many_write(struct many *one)
{
    static tp_message message;

    ck_assert_int_eq(tp_pipe_write(one->pipe, &message, many_ended, one),
                     TP_OK);
}

/* Twice, so that of each the first is not what it is asked of. */
static void *many_wait(void *arg)
{
    int completed;

    (void)arg;
    for (int i = 0; i < 2 * MANY_CONTEXTS; i++) {
        struct many *one = &many[i % MANY_CONTEXTS];

        many_write(one);
        ck_assert_int_eq(tp_wait(one->context, 10000, NULL), TP_OK);
    }
    for (int i = 0; i < MANY_CONTEXTS; i++) {
        ck_assert_int_eq(tp_wait(many[i].context, 0, &completed),
                         TP_ERR_TIMEOUT);
        ck_assert_int_eq(completed, 0);
    }
    return NULL;
}

START_TEST(of_each_context_what_is_known_is_kept)
{
    pthread_t other;

    for (int i = 0; i < MANY_CONTEXTS; i++)
        many_open(&many[i], TP_PROGRESS_MANUAL);
    many_wait(NULL);
    ck_assert_int_eq(pthread_create(&other, NULL, many_wait, NULL), 0);
    ck_assert_int_eq(pthread_join(other, NULL), 0);
    for (int i = 0; i < MANY_CONTEXTS; i++)
        ck_assert_int_eq(tp_finalize(many[i].context), TP_OK);
}
END_TEST

START_TEST(contexts_that_come_and_go_hide_no_callback)
{
    struct many *stays = &many[0];
    int completed = 0;

    many_open(stays, TP_PROGRESS_THREAD);
    many_write(stays);
    for (int i = 1; i < MANY_CONTEXTS; i++) {
        many_open(&many[i], TP_PROGRESS_MANUAL);
        ck_assert_int_eq(tp_finalize(many[i].context), TP_OK);
    }
    while (atomic_load(&stays->ended) == 0)
        usleep(1000);
    ck_assert_int_eq(tp_wait(stays->context, 10000, &completed), TP_OK);
    ck_assert_int_eq(completed, 1);
    ck_assert_int_eq(tp_finalize(stays->context), TP_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("wait");
    TCase *tests = tcase_create("vain");

    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, what_comes_ends_the_vain_sleeps);
    tcase_add_test(tests, what_is_counted_is_told);
    tcase_add_test(tests, each_callback_is_told);
    tcase_add_test(tests, of_each_context_what_is_known_is_kept);
    tcase_add_test(tests, contexts_that_come_and_go_hide_no_callback);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
