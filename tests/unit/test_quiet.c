/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A bootstrap with a thread of its own, as libpmix has one, tells the context
 * of cards, deaths and calls for as long as it may: also while tp_finalize()
 * goes on, and until it is told to be quiet.  Then what is told finds nothing
 * freed.  That thread once took the token of a context without peers, and rank
 * and job ended by SIGSEGV, now and then.
 */
#include "config.h"

#include <malloc.h>
#include <pthread.h>
#include <sched.h>

#include "runtime/base/alloc.h"
#include "runtime/core.h"
#include "tests/lib/tpx.h"

enum { TALKER_SIZE = 64, TALKER_CARD = 100, TALKER_LAST_WORDS = 200 };

struct talker {
    struct tpr_bootstrap base;
    pthread_t thread;
    bool talks;
    _Atomic uint32_t told;
    _Atomic bool enough;
};

/* Nobody has freed what the context is made of: this runs in it. */
static void talker_tell(struct talker *talker, int rank)
{
    static const unsigned char card[TALKER_CARD];
    tp_context *context = talker->base.context;

    tpr_card_arrived(context, rank, TP_OK, card, sizeof(card), "");
    tpr_card_arrived(context, rank, TP_ERR_BACKEND, NULL, 0, "no card");
    tpr_rank_left(context, rank, true);
    tpr_rank_died(context, rank, "of the test");
    tpr_peer_asks(context, rank, true);
    atomic_fetch_add(&talker->told, 1);
}

static void *talker_run(void *arg)
{
    struct talker *talker = arg;

    for (int turn = 0; !atomic_load(&talker->enough); turn++) {
        talker_tell(talker, 1 + turn % (TALKER_SIZE - 1));
        sched_yield();             /* the token is to be had now and then */
    }
    return NULL;
}

static void talker_fetch(struct tpr_bootstrap *base, int rank)
{
    struct talker *talker = (struct talker *)base;

    (void)rank;
    if (!talker->talks)
        ck_assert_int_eq(pthread_create(&talker->thread, NULL, talker_run,
                                        talker), 0);
    talker->talks = true;
}

static void talker_quiet(struct tpr_bootstrap *base)
{
    struct talker *talker = (struct talker *)base;

    atomic_store(&talker->enough, true);
    if (talker->talks)
        pthread_join(talker->thread, NULL);
    talker->talks = false;
}

/* One that was not told to be quiet has some more to say. */
static void talker_close(struct tpr_bootstrap *base)
{
    struct talker *talker = (struct talker *)base;
    uint32_t told = atomic_load(&talker->told);

    while (talker->talks
           && atomic_load(&talker->told) < told + TALKER_LAST_WORDS)
        sched_yield();
    talker_quiet(base);
    tpb_free(talker);
}

static tp_status talker_publish(struct tpr_bootstrap *base, const void *blob,
                                size_t length, struct tpb_error *error)
{
    (void)base, (void)blob, (void)length, (void)error;
    return TP_OK;
}

static const struct tpr_bootstrap_ops talker_ops = {
    .name = "talker",
    .publish = talker_publish,
    .fetch = talker_fetch,
    .quiet = talker_quiet,
    .close = talker_close,
};

/* A context of a rank of many, by that bootstrap. */
static tp_context *talker_context(void)
{
    struct talker *talker = tpb_zalloc(sizeof(*talker));
    tp_options options = TP_OPTIONS_INIT;
    tp_context *context = NULL;

    options.bootstrap = "single";
    options.backends = "shm,loop";
    options.progress = TP_PROGRESS_MANUAL;
    ck_assert_int_eq(tp_init(&options, &context), TP_OK);
    ck_assert_ptr_nonnull(talker);
    talker->base = *context->bootstrap;
    talker->base.ops = &talker_ops;
    talker->base.size = context->size = TALKER_SIZE;
    context->bootstrap->ops->close(context->bootstrap);
    context->bootstrap = &talker->base;
    return context;
}

/* The skeleton of a pipe that nobody writes to. */
static void talker_arrived(tp_pipe *pipe, tp_status status,
                           tp_message *skeleton, void *arg)
{
    (void)pipe, (void)status, (void)skeleton;
    ++*(int *)arg;
}

START_TEST(late_words_find_nothing_freed)
{
    mallopt(M_PERTURB, 0x5a);      /* what is freed is of no use */
    for (int round = 0; round < 3; round++) {
        tp_context *context = talker_context();
        int ended = 0;

        for (int rank = 1; rank < TALKER_SIZE; rank++) {
            tp_pipe *pipe;

            ck_assert_int_eq(tp_pipe_to_rank(context, rank, &pipe), TP_OK);
            ck_assert_int_eq(tp_pipe_read_descriptor(pipe, talker_arrived,
                                                     &ended), TP_OK);
        }
        ck_assert_int_eq(tp_finalize(context), TP_OK);
        ck_assert_int_eq(ended, TALKER_SIZE - 1);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("quiet");
    TCase *tests = tcase_create("quiet");

    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, late_words_find_nothing_freed);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
