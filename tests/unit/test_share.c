/* SPDX-License-Identifier: BSD-3-Clause */
/* A buffer that two copy at once: who claims which piece, and when it is over;
 * step by step, and between two threads. */
#include "config.h"

#include <pthread.h>
#include <sched.h>

#include "fabric/share.h"
#include "tests/lib/tpx.h"

/* The numbers go beyond what `claims` has room for. */
enum { PIECES = 64, ROUNDS = 20000, NUMBER = 0x10000 - ROUNDS / 2 };

static struct tpf_share share;
/* Counted by whoever has claimed it. */
static unsigned copied[PIECES];
static _Atomic uint32_t current, finished;

static bool settled(void)
{
    bool failed, over = tpf_share_settled(&share, &failed);

    ck_assert(!failed);
    return over;
}

START_TEST(pieces_are_claimed_from_both_ends)
{
    uint32_t piece;
    bool failed;

    tpf_share_open(&share, 7, 1);  /* the first one is the receiver's */
    ck_assert(tpf_share_claim(&share, 7, 4, true, 1, &piece));
    ck_assert_uint_eq(piece, 3);
    ck_assert(tpf_share_claim(&share, 7, 4, false, 1, &piece));
    ck_assert_uint_eq(piece, 1);
    ck_assert(tpf_share_claim(&share, 7, 4, true, 1, &piece));
    ck_assert_uint_eq(piece, 2);
    ck_assert(!tpf_share_claim(&share, 7, 4, true, 1, &piece));
    ck_assert(!tpf_share_claim(&share, 7, 4, false, 1, &piece));
    ck_assert(!settled());
    tpf_share_push(&share, 7, 1);
    ck_assert(!settled());
    tpf_share_push(&share, 7, 2);
    ck_assert(settled());
    tpf_share_push(&share, 7, TPF_SHARE_FAILED);
    ck_assert(tpf_share_settled(&share, &failed));
    ck_assert(failed);
}
END_TEST

START_TEST(half_of_the_rest_is_claimed)
{
    uint32_t piece;

    ck_assert_uint_eq(tpf_share_run(16, 8), 8);
    ck_assert_uint_eq(tpf_share_run(16, 1), 1);
    ck_assert_uint_eq(tpf_share_run(1, 8), 1);
    tpf_share_open(&share, 9, tpf_share_run(16, 4));
    ck_assert_uint_eq(tpf_share_claim(&share, 9, 16, true, 2, &piece), 2);
    ck_assert_uint_eq(piece, 14);
    ck_assert_uint_eq(tpf_share_claim(&share, 9, 16, false, 8, &piece), 5);
    ck_assert_uint_eq(piece, 4);
    ck_assert_uint_eq(tpf_share_claim(&share, 9, 16, true, 8, &piece), 2);
    ck_assert_uint_eq(piece, 12);
    /* A few are claimed one by one. */
    for (uint32_t left = 3; left > 0; left--)
        ck_assert_uint_eq(tpf_share_claim(&share, 9, 16, false, 8, &piece), 1);
    ck_assert_uint_eq(piece, 11);
    ck_assert_uint_eq(tpf_share_claim(&share, 9, 16, false, 8, &piece), 0);
    ck_assert(!settled());
    tpf_share_push(&share, 9, 4);
    ck_assert(settled());
}
END_TEST

START_TEST(late_sender_claims_nothing)
{
    uint32_t piece;

    tpf_share_open(&share, 7, 1);
    tpf_share_close(&share, 7, 4);
    ck_assert(settled());
    ck_assert(!tpf_share_claim(&share, 7, 4, true, 1, &piece));
    tpf_share_open(&share, 8, 1);
    ck_assert(!tpf_share_claim(&share, 7, 4, true, 1, &piece));
    ck_assert(tpf_share_claim(&share, 8, 4, true, 1, &piece));
    tpf_share_close(&share, 8, 4);
    ck_assert(!settled());         /* of that one it is at */
    tpf_share_push(&share, 8, 1);
    ck_assert(settled());
}
END_TEST

/* By all numbers for which `claims` has room. */
START_TEST(very_late_sender_claims_nothing)
{
    uint32_t piece;

    tpf_share_open(&share, 0x10007, 1);
    ck_assert(!tpf_share_claim(&share, 7, 4, true, 1, &piece));
    ck_assert(!tpf_share_claim(&share, 0x20007, 4, true, 1, &piece));
    ck_assert(tpf_share_claim(&share, 0x10007, 4, true, 1, &piece));
    tpf_share_push(&share, 0x10007, 1);
    ck_assert(!tpf_share_claim(&share, 7, 4, true, 1, &piece));
    ck_assert(tpf_share_claim(&share, 0x10007, 4, true, 1, &piece));
    tpf_share_push(&share, 0x10007, 2);
    tpf_share_close(&share, 0x10007, 4);
    ck_assert(settled());
    /* Nor of one that is over, if his had more pieces. */
    ck_assert(!tpf_share_claim(&share, 7, 8, true, 1, &piece));
}
END_TEST

START_TEST(garbage_claims_nothing)
{
    uint32_t piece;

    atomic_store(&share.claims, UINT64_MAX);
    ck_assert(!tpf_share_claim(&share, UINT16_MAX, PIECES, true, 1, &piece));
    ck_assert(!tpf_share_claim(&share, UINT16_MAX, PIECES, false, 1, &piece));
    atomic_store(&share.claims, tpf_share_word(3, 0, 0xffffff));
    ck_assert(!tpf_share_claim(&share, 3, TPF_PIECES_MOST, true, 1, &piece));
}
END_TEST

/* Helps with every buffer that it hears of, some of them too late. */
static void *sender(void *unused)
{
    uint32_t number = 0;

    (void)unused;
    while (number < ROUNDS) {
        uint32_t count = 0, run, piece;

        number = atomic_load(&current);
        while ((run = tpf_share_claim(&share, NUMBER + number, PIECES, true,
                                      number % 8, &piece)) > 0) {
            count += run;
            while (run-- > 0)
                copied[piece + run]++;
            tpf_share_push(&share, NUMBER + number, count);
        }
        atomic_store(&finished, number);
    }
    return NULL;
}

START_TEST(every_piece_is_copied_once)
{
    pthread_t thread;

    atomic_store(&current, 0);
    tpf_share_open(&share, NUMBER, 1);
    tpf_share_close(&share, NUMBER, PIECES);
    ck_assert_int_eq(pthread_create(&thread, NULL, sender, NULL), 0);
    for (uint32_t number = 1; number <= ROUNDS; number++) {
        uint32_t piece = 0, run = 1 + number % 16;

        memset(copied, 0, sizeof(copied));
        tpf_share_open(&share, NUMBER + number, run);
        atomic_store(&current, number);
        if (number % 16 == 0)      /* now and then it is there in time */
            while (atomic_load(&finished) != number
                   && tpf_share_back(atomic_load(&share.claims)) == 0)
                sched_yield();
        do
            while (run-- > 0)
                copied[piece + run]++;
        while ((run = tpf_share_claim(&share, NUMBER + number, PIECES, false,
                                      number % 16, &piece)) > 0);
        while (!settled())
            sched_yield();
        /* All that it has copied is to be seen now, and nothing more comes. */
        for (unsigned i = 0; i < PIECES; i++)
            ck_assert_uint_eq(copied[i], 1);
    }
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("share");
    TCase *tests = tcase_create("share");

    tcase_set_timeout(tests, 180);
    tcase_add_test(tests, pieces_are_claimed_from_both_ends);
    tcase_add_test(tests, half_of_the_rest_is_claimed);
    tcase_add_test(tests, late_sender_claims_nothing);
    tcase_add_test(tests, very_late_sender_claims_nothing);
    tcase_add_test(tests, garbage_claims_nothing);
    tcase_add_test(tests, every_piece_is_copied_once);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
