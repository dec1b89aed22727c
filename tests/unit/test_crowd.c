/* SPDX-License-Identifier: BSD-3-Clause */
/* How ranks wait where there are more of them than cpus. */
#include "config.h"

#include <stdlib.h>

#include "runtime/base/base.h"
#include "runtime/crowd.h"
#include "tests/lib/tpx.h"

static void crowd_cpus(cpu_set_t *set, int count)
{
    CPU_ZERO(set);
    for (int i = 0; i < count; i++)
        CPU_SET(2 * i + 1, set);
}

/* Rank 0 of so many on two cpus, none of which it may use: it has no home. */
static void crowd_homeless(struct tpr_crowd *crowd, int ranks)
{
    cpu_set_t own;

    crowd_cpus(&own, 0);
    tpr_crowd_init(crowd, 0, ranks, 2, &own);
}

/* How many looks a wait has before its first yield, of at most `most`. */
static uint32_t crowd_looks(struct tpr_crowd *crowd, uint32_t most)
{
    for (uint32_t turn = 1; turn <= most; turn++)
        if (!tpr_crowd_stays(crowd, turn, false, NULL))
            return turn - 1;
    return most;
}

/* Neighbours have different cpus, of those that they may use. */
START_TEST(neighbours_live_apart)
{
    struct tpr_crowd crowd;
    cpu_set_t own;

    crowd_cpus(&own, 3);
    for (int rank = 0; rank < 9; rank++) {
        tpr_crowd_init(&crowd, rank, 9, 3, &own);
        ck_assert_int_eq(crowd.home, 2 * (rank % 3) + 1);
    }
    /* Who is bound stays, and so does who does not know. */
    crowd_cpus(&own, 1);
    tpr_crowd_init(&crowd, 5, 9, 3, &own);
    ck_assert_int_eq(crowd.home, -1);
    crowd_cpus(&own, 0);
    tpr_crowd_init(&crowd, 5, 9, 3, &own);
    ck_assert_int_eq(crowd.home, -1);
}
END_TEST

/* Rank 0, the middle of most stars, shares its cpu with no more than others. */
START_TEST(the_first_has_most_room)
{
    cpu_set_t own;

    for (int count = 2; count <= 5; count++) {
        crowd_cpus(&own, count);
        for (int size = 2; size <= 17; size++) {
            int apart[2 * 5 + 2] = { 0 }, beside[2 * 5 + 2] = { 0 };
            struct tpr_crowd crowd;

            for (int rank = 0; rank < size; rank++) {
                tpr_crowd_init(&crowd, rank, size, count, &own);
                ck_assert_int_ge(crowd.apart_home, 0);
                ck_assert_int_ge(crowd.beside_home, 0);
                apart[crowd.apart_home]++;
                beside[crowd.beside_home]++;
            }
            for (int cpu = 1; cpu < 2 * count; cpu += 2) {
                ck_assert_int_ge(apart[cpu], size / count);
                ck_assert_int_le(apart[cpu], (size + count - 1) / count);
                ck_assert_int_ge(beside[cpu], size / count);
                ck_assert_int_le(beside[cpu], (size + count - 1) / count);
            }
            ck_assert_int_eq(apart[1], size > count ? size / count : 1);
            if (size >= count)
                ck_assert_int_eq(beside[1], size / count);
        }
    }
}
END_TEST

/* As long as answers come at once nobody yields; if they do not, waits yield
 * at once for a while, the longer the more often it happens. */
START_TEST(patience_follows_the_answers)
{
    struct tpr_crowd crowd;
    uint32_t looks, yielding = 0, before = 0;   /* waits that yield */
    cpu_set_t own;

    crowd_cpus(&own, 2);
    tpr_crowd_init(&crowd, 0, 8, 2, &own);
    for (int i = 0; i < 1000; i++) {
        tpr_crowd_begin(&crowd);
        ck_assert_uint_eq(crowd_looks(&crowd, 5), 5);
        tpr_crowd_end(&crowd, 5);
    }
    for (int fails = 0; fails < 14; fails++) {
        tpr_crowd_begin(&crowd);
        looks = crowd_looks(&crowd, 1000);
        ck_assert_uint_ge(looks, 10);
        ck_assert_uint_lt(looks, 1000);
        tpr_crowd_end(&crowd, looks + 2);
        for (yielding = 0;; yielding++) {
            tpr_crowd_begin(&crowd);
            if (crowd_looks(&crowd, 1000) > 0)
                break;
            tpr_crowd_end(&crowd, 2);
        }
        /* After so many that came at once a late one says nothing. */
        if (fails < 2)
            ck_assert_uint_eq(yielding, 0);
        else
            ck_assert(yielding > before || yielding == 0);
        before = yielding;
    }
    ck_assert_uint_gt(before, 10);
    /* And back again. */
    for (int i = 0; i < 100; i++) {
        tpr_crowd_begin(&crowd);
        tpr_crowd_end(&crowd, 5);
    }
    tpr_crowd_begin(&crowd);
    tpr_crowd_end(&crowd, crowd_looks(&crowd, 1000) + 2);
    ck_assert_uint_eq(crowd_looks(&crowd, 1), 1);
}
END_TEST

/* Two answers of three come at once, as where several are talked to: the third
 * costs more looks than these save yields, so hardly any wait looks. */
START_TEST(one_of_three_is_late)
{
    enum { WAITS = 3000 };
    struct tpr_crowd crowd;
    uint32_t looks, looking = 0, yielding = 0;

    crowd_homeless(&crowd, 4);
    for (int i = 0; i < WAITS; i++) {
        tpr_crowd_begin(&crowd);
        looks = crowd_looks(&crowd, 1000);
        if (looks == 0)
            tpr_crowd_end(&crowd, 2 + (yielding++ > 0));
        else
            tpr_crowd_end(&crowd, looking++ % 3 == 2 ? looks + 2 : 5);
    }
    ck_assert_uint_gt(looking, 0);
    ck_assert_uint_lt(looking, WAITS / 20);
}
END_TEST

/* Where switches take long it pays to look for longer before one. */
START_TEST(looks_are_worth_a_switch)
{
    enum { LOOK = 20, ROUND = 50000, LONG = 90000, YIELDS = 1000 };
    struct tpr_crowd crowd;
    uint32_t least, lingers;

    crowd_homeless(&crowd, 8);
    least = crowd.together;
    lingers = crowd.lingers;
    /* The looks are timed by the first wait that finds nothing. */
    ck_assert_uint_eq(crowd.look, 0);
    tpr_crowd_begin(&crowd);
    ck_assert_uint_eq(crowd_looks(&crowd, 1000), least);
    ck_assert_uint_gt(crowd.look, 0);
    crowd.look = LOOK;
    for (int i = 0; i < YIELDS && crowd.round < ROUND / 2; i++) {
        crowd.strangers = 0;
        tpr_crowd_yield(&crowd, tpb_now());
        tpr_crowd_yield(&crowd, tpb_now() - ROUND);
    }
    ck_assert_uint_ge(crowd.round, ROUND / 2);
    ck_assert_uint_ge(crowd.together, ROUND / 4 / LOOK);
    ck_assert_uint_gt(crowd.lingers, lingers);
    crowd.apart = 0;
    tpr_crowd_begin(&crowd);
    ck_assert_uint_eq(crowd_looks(&crowd, 100000), crowd.together);
    /* Yields to nobody say nothing of that, and there is an end to it. */
    crowd.round = UINT64_MAX / 16;
    crowd.strangers = 0;
    tpr_crowd_yield(&crowd, tpb_now() - LONG);
    ck_assert_uint_gt(crowd.together, least);
    ck_assert_uint_lt(crowd_looks(&crowd, 100000), 100000);
}
END_TEST

/* Who has had the cpu for a time lets others have it for as long. */
START_TEST(turns_are_earned)
{
    enum { LONG = 1000000, OWN = 4000000 };
    struct tpr_crowd crowd;

    crowd_homeless(&crowd, 8);
    tpr_crowd_yield(&crowd, tpb_now() - LONG);
    ck_assert_uint_gt(crowd.strangers, 0);
    /* On a busy machine strangers may have it for longer than that. */
    for (int try = 0; try < 100 && crowd.strangers > 0; try++) {
        crowd_homeless(&crowd, 8);
        tpr_crowd_yield(&crowd, tpb_now());
        crowd.strangers = 0;
        crowd.returned -= OWN + LONG;
        tpr_crowd_yield(&crowd, tpb_now() - LONG);
    }
    ck_assert_uint_eq(crowd.strangers, 0);
}
END_TEST

/* Waits that do without a yield, for strangers are here, do not earn more long
 * turns for those. */
START_TEST(sleeps_earn_nothing)
{
    enum { LONG = 1000000 };
    struct tpr_crowd crowd;

    crowd_homeless(&crowd, 8);
    tpr_crowd_yield(&crowd, tpb_now() - LONG);
    ck_assert_uint_gt(crowd.strangers, 0);
    while (crowd.strangers > 0) {
        ck_assert_uint_eq(crowd.patience, 0);
        tpr_crowd_begin(&crowd);
        if (crowd.strangers > 0)
            tpr_crowd_end(&crowd, 5);
    }
    for (int wait = 0; wait < 10; wait++) {
        tpr_crowd_begin(&crowd);
        tpr_crowd_end(&crowd, 5);
    }
    ck_assert_uint_gt(crowd.patience, 0);
}
END_TEST

/* Ranks that meet have the cpu for long: that is no work of strangers. */
START_TEST(meeting_takes_long)
{
    enum { LONG = 1000000 };
    struct tpr_crowd crowd;

    crowd_homeless(&crowd, 8);
    tpr_crowd_yield(&crowd, tpb_now() - LONG);
    ck_assert_uint_gt(crowd.strangers, 0);
    tpr_crowd_meet(&crowd, true);
    ck_assert_uint_eq(crowd.strangers, 0);
    ck_assert_uint_lt(tpr_crowd_budget(&crowd, LONG), LONG);
    tpr_crowd_meet(&crowd, false);
    ck_assert_uint_eq(tpr_crowd_budget(&crowd, LONG), LONG);
    /* Somebody does not answer at all.  On a busy machine strangers may have it
     * for longer than those may. */
    for (int try = 0; try < 100 && (try == 0 || crowd.strangers > 0); try++) {
        tpr_crowd_meet(&crowd, true);
        crowd.met = tpb_now() - 1;
        tpr_crowd_begin(&crowd);
        ck_assert_uint_eq(tpr_crowd_budget(&crowd, LONG), LONG);
        for (int i = 0; i < 4; i++)
            tpr_crowd_yield(&crowd, tpb_now() - LONG);
    }
    ck_assert_uint_eq(crowd.strangers, 0);
    /* What was granted for it is gone. */
    ck_assert_uint_le(crowd.patience, crowd.enough);
    /* But there is an end to it. */
    for (int i = 0; i < 1000 && crowd.strangers == 0; i++)
        tpr_crowd_yield(&crowd, tpb_now() - LONG);
    ck_assert_uint_gt(crowd.strangers, 0);
}
END_TEST

/* Of two per cpu who gets it back looks for a moment; of more, once. */
START_TEST(two_per_cpu_stay)
{
    struct tpr_crowd crowd;

    for (int ranks = 3; ranks <= 8; ranks++) {
        crowd_homeless(&crowd, ranks);
        crowd.apart = 1;
        tpr_crowd_begin(&crowd);
        ck_assert_uint_eq(crowd_looks(&crowd, 100), 0);
        tpr_crowd_yield(&crowd, tpb_now());
        if (crowd.strangers > 0)
            continue;              /* this machine is busy: nobody stays */
        if (ranks <= 4)
            ck_assert_uint_gt(crowd_looks(&crowd, 100), 0);
        else
            ck_assert_uint_eq(crowd_looks(&crowd, 100), 0);
        ck_assert_uint_eq(crowd_looks(&crowd, 100), 0);
    }
}
END_TEST

/* Who waits for one that has something to do on another cpu looks on, for a
 * while; for one that has given its cpu away, not at all. */
START_TEST(looks_on_while_the_other_is_busy)
{
    struct tpb_presence mine = { .place = 0 }, theirs = { .place = 0 };
    uint32_t here = tpb_presence_cpu(), turn = 1;
    struct tpr_crowd crowd;
    uint64_t now;

    crowd_homeless(&crowd, 8);
    crowd.mine = &mine;
    crowd.apart = 1;
    tpr_crowd_begin(&crowd);
    /* Before the first yield of a wait: no. */
    atomic_store(&theirs.place, 2 * (here + 7) | TPB_PRESENT);
    ck_assert(!tpr_crowd_stays(&crowd, turn, false, &theirs));
    ck_assert_uint_eq(atomic_load(&mine.place), 0);
    now = tpb_now();
    tpr_crowd_yield(&crowd, now);
    ck_assert_uint_eq(atomic_load(&mine.place) & TPB_PRESENT, TPB_PRESENT);
    /* It is there. */
    ck_assert(tpr_crowd_stays(&crowd, ++turn, false, &theirs));
    /* It is gone; and it is told. */
    atomic_store(&theirs.place, 2 * (here + 7));
    ck_assert(!tpr_crowd_stays(&crowd, ++turn, false, &theirs));
    ck_assert(!tpb_presence_tell(&theirs));
    ck_assert_uint_ne(atomic_load(&theirs.told), 0);
    ck_assert(tpr_crowd_stays(&crowd, ++turn, false, &theirs));
    while (turn < 1000 && tpr_crowd_stays(&crowd, ++turn, false, &theirs))
        ;
    ck_assert_uint_lt(turn, 1000);
    /* Nobody is told who is there. */
    atomic_store(&theirs.told, 0);
    atomic_store(&theirs.place, 2 * (here + 7) | TPB_PRESENT);
    ck_assert(!tpb_presence_tell(&theirs));
    ck_assert_uint_eq(atomic_load(&theirs.told), 0);
    /* Around a sleep. */
    tpr_crowd_leave(&crowd);
    ck_assert_uint_eq(atomic_load(&mine.place) & TPB_PRESENT, 0);
    tpr_crowd_return(&crowd);
    ck_assert_uint_ne(atomic_load(&mine.place) & TPB_PRESENT, 0);
}
END_TEST

/* Who looks on and has to yield all the same does so hardly ever in the end;
 * and so does who looks before his first yield at one who goes then. */
START_TEST(looks_on_where_that_is_right)
{
    enum { TURNS = 400 };
    uint32_t elsewhere = 2 * (tpb_presence_cpu() + 7), on = 0, before = 0;
    struct tpb_presence mine = { .place = 0 }, theirs = { .place = 0 };
    struct tpr_crowd crowd;

    crowd_homeless(&crowd, 8);
    crowd.mine = &mine;
    for (int i = 0; i < TURNS; i++) {
        tpr_crowd_begin(&crowd);
        atomic_store(&theirs.place, elsewhere | TPB_PRESENT);
        before += tpr_crowd_stays(&crowd, 1, false, &theirs);
        atomic_store(&theirs.place, elsewhere);
        ck_assert(!tpr_crowd_stays(&crowd, 2, false, &theirs));
        crowd.strangers = 0;       /* this machine may be busy */
        tpr_crowd_yield(&crowd, tpb_now());
        atomic_store(&theirs.place, elsewhere | TPB_PRESENT);
        on += tpr_crowd_stays(&crowd, 3, false, &theirs);
        atomic_store(&theirs.place, elsewhere);
        ck_assert(!tpr_crowd_stays(&crowd, 4, false, &theirs));
        tpr_crowd_end(&crowd, 5);
    }
    ck_assert_uint_gt(on, 0);
    ck_assert_uint_lt(on, TURNS / 4);
    ck_assert_uint_gt(before, 0);
    ck_assert_uint_lt(before, TURNS / 4);
    /* And where it finds the answer it does so at each turn again. */
    for (int i = 0; i < TURNS; i++) {
        tpr_crowd_begin(&crowd);
        crowd.apart = 1;
        ck_assert(!tpr_crowd_stays(&crowd, 1, false, &theirs));
        crowd.strangers = 0;
        tpr_crowd_yield(&crowd, tpb_now());
        atomic_store(&theirs.place, elsewhere | TPB_PRESENT);
        on = tpr_crowd_stays(&crowd, 2, false, &theirs);
        tpr_crowd_end(&crowd, 3);
    }
    ck_assert_uint_eq(on, 1);
}
END_TEST

/* Who has given something to do to one that waits for this very cpu gives it
 * away, whatever the answers were like. */
START_TEST(yields_to_whom_it_has_written)
{
    struct tpb_presence theirs = { .place = 0 };
    struct tpr_crowd crowd;
    cpu_set_t here, before;

    crowd_homeless(&crowd, 8);
    tpr_crowd_begin(&crowd);
    ck_assert(tpr_crowd_stays(&crowd, 1, false, NULL));
    ck_assert(!tpr_crowd_stays(&crowd, 2, true, NULL));
    /* It says nothing of the answers. */
    tpr_crowd_end(&crowd, 2);
    ck_assert_uint_eq(crowd.apart, 0);
    /* Nothing is known of it; it waits for this cpu; it is at work. */
    ck_assert(!tpb_presence_tell(&theirs));
    ck_assert_int_eq(sched_getaffinity(0, sizeof(before), &before), 0);
    CPU_ZERO(&here);
    CPU_SET(sched_getcpu(), &here);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(here), &here), 0);
    atomic_store(&theirs.place, 2 * tpb_presence_cpu());
    ck_assert(tpb_presence_tell(&theirs));
    ck_assert_uint_eq(atomic_load(&theirs.teller), tpb_presence_cpu());
    ck_assert(tpb_presence_tell(&theirs));
    atomic_store(&theirs.place, 2 * tpb_presence_cpu() | TPB_PRESENT);
    ck_assert(!tpb_presence_tell(&theirs));
    ck_assert_int_eq(sched_setaffinity(0, sizeof(before), &before), 0);
}
END_TEST

/* As if nobody else had been here for long. */
static void crowd_calm(struct tpr_crowd *crowd)
{
    crowd->strangers = 0;
    crowd->patience = crowd->enough;
}

/* Turns that are as short as can be are timed now and then; long ones, and
 * where the order on a cpu matters, each. */
START_TEST(short_turns_are_sampled)
{
    struct tpr_crowd crowd;
    int untimed = 0;

    crowd_homeless(&crowd, 4);
    for (int i = 0; i < 100000 && untimed == 0; i++) {
        crowd_calm(&crowd);
        tpr_crowd_yield(&crowd, tpb_now());
        while (tpr_crowd_untimed(&crowd))
            untimed++;
    }
    ck_assert_int_gt(untimed, 1);
    /* The next two are timed. */
    crowd_calm(&crowd);
    tpr_crowd_yield(&crowd, tpb_now());
    ck_assert(!tpr_crowd_untimed(&crowd));
    /* It was away for a second. */
    tpr_crowd_yield(&crowd, tpb_now() - 1000000000);
    ck_assert(!tpr_crowd_untimed(&crowd));
    ck_assert_uint_lt(crowd.patience, crowd.enough);
    /* It did something else for a second. */
    crowd_calm(&crowd);
    tpr_crowd_yield(&crowd, tpb_now());
    crowd_calm(&crowd);
    crowd.returned -= 1000000000;
    crowd.untimed = 0;
    tpr_crowd_yield(&crowd, tpb_now());
    ck_assert(!tpr_crowd_untimed(&crowd));
    /* Strangers are about. */
    for (int i = 0; i < 100; i++) {
        crowd_calm(&crowd);
        crowd.patience /= 2;
        tpr_crowd_yield(&crowd, tpb_now());
        ck_assert(!tpr_crowd_untimed(&crowd));
    }
    crowd_homeless(&crowd, 8);
    for (int i = 0; i < 100; i++) {
        crowd_calm(&crowd);
        tpr_crowd_yield(&crowd, tpb_now());
        ck_assert(!tpr_crowd_untimed(&crowd));
    }
}
END_TEST

/* With long messages neighbours live on one cpu, until there are few. */
START_TEST(long_messages_bring_neighbours_together)
{
    static const int expected[] = { 1, 1, 1, 1, 3, 3, 3, 3 };
    struct tpr_crowd crowd;
    cpu_set_t own;

    crowd_cpus(&own, 2);
    for (int rank = 0; rank < 8; rank++) {
        tpr_crowd_init(&crowd, rank, 8, 2, &own);
        ck_assert_int_eq(crowd.home, 2 * (rank % 2) + 1);
        ck_assert_uint_ge(crowd.long_least, TPR_CROWD_LONG);
        for (int i = 0; i < 100; i++)
            tpr_crowd_copied(&crowd, crowd.long_least - 1);
        tpr_crowd_copied(&crowd, crowd.long_least);
        ck_assert(!tpr_crowd_longs(&crowd));
        for (int i = 0; i < 100; i++)
            tpr_crowd_copied(&crowd, crowd.long_least);
        ck_assert(tpr_crowd_longs(&crowd));
        ck_assert_int_eq(crowd.home, expected[rank]);
        /* Nobody need see whether it runs: shm may be forbidden. */
        tpr_crowd_begin(&crowd);
        tpr_crowd_yield(&crowd, tpb_now());
        for (int i = 0; i < 1000; i++)
            tpr_crowd_end(&crowd, 2);
        ck_assert(!tpr_crowd_longs(&crowd));
        ck_assert_int_eq(crowd.home, 2 * (rank % 2) + 1);
    }
}
END_TEST

/* Turns that are late one after the other, with turns in vain between them,
 * make a rank move; others do not. */
START_TEST(late_turns_make_it_move)
{
    enum { TURN = 1000, RANKS = 4, MOST = 1000 };
    struct tpr_queue queue;
    int turns = 0;

    tpr_queue_init(&queue, 2, 1);
    for (int i = 0; i < MOST; i++) {
        tpr_queue_turn(&queue, RANKS * TURN, 0);
        tpr_queue_turn(&queue, RANKS * TURN, 3 * TURN);
    }
    ck_assert(queue.forward == 0);         /* two have no order */
    tpr_queue_init(&queue, RANKS, 1);
    for (int i = 0; i < MOST; i++) {
        tpr_queue_turn(&queue, RANKS * TURN, 0);
        tpr_queue_turn(&queue, RANKS * TURN, TURN);
        tpr_queue_turn(&queue, RANKS * TURN, 3 * TURN);
        tpr_queue_turn(&queue, RANKS * TURN, 5 * TURN);
    }
    ck_assert(queue.forward == 0);
    while (turns < MOST && queue.forward == 0 && !queue.fixed) {
        tpr_queue_turn(&queue, RANKS * TURN, 0);
        tpr_queue_turn(&queue, RANKS * TURN, 3 * TURN);
        turns++;
    }
    ck_assert_int_gt(turns, 1);
    ck_assert_int_lt(turns, MOST);
    ck_assert(queue.forward > 0 && queue.forward < 1);
    tpr_queue_yield(&queue);               /* whatever the kernel says */
    ck_assert(queue.forward == 0);
}
END_TEST

/* A yield that takes long was to strangers: no more for some waits, which poll
 * briefly and sleep.  But not if waits that paid have earned the time. */
START_TEST(strangers_get_no_yields)
{
    enum { SPIN = 200000, LONG = 1000000 };
    struct tpr_crowd crowd;
    unsigned waits = 0, tries = 0;

    /* On a busy machine strangers may have it for longer than was earned. */
    do {
        crowd_homeless(&crowd, 8);
        ck_assert_uint_eq(tpr_crowd_budget(&crowd, SPIN), SPIN);
        for (int i = 0; i < 1000; i++)
            tpr_crowd_end(&crowd, 5);
        tpr_crowd_yield(&crowd, tpb_now() - LONG);
    } while (crowd.strangers > 0 && ++tries < 100);
    ck_assert_uint_eq(tpr_crowd_budget(&crowd, SPIN), SPIN);
    for (int i = 0; i < 1000 && crowd.strangers == 0; i++)
        tpr_crowd_yield(&crowd, tpb_now() - LONG);
    while (tpr_crowd_budget(&crowd, SPIN) < SPIN) {
        uint64_t now = tpb_now();

        ck_assert_uint_ge(tpr_crowd_yield(&crowd, now), now);
        tpr_crowd_begin(&crowd);
        waits++;
        ck_assert_uint_lt(waits, 10000);
    }
    ck_assert_uint_gt(waits, 10);
}
END_TEST

/* The thread is where it lives, and may go where it might before. */
START_TEST(settles_at_home)
{
    struct tpr_crowd crowd;
    cpu_set_t own, after, away;
    bool arrived = false;

    ck_assert_int_eq(sched_getaffinity(0, sizeof(own), &own), 0);
    if (CPU_COUNT(&own) < 2) {
        tpx_skip("settles_at_home", "one cpu only");
        return;
    }
    for (int try = 0; try < 100 && !arrived; try++) {
        tpr_crowd_init(&crowd, try % 2, 8, 2, &own);
        CPU_ZERO(&away);
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &own) && cpu != crowd.home)
                CPU_SET(cpu, &away);
        ck_assert_int_eq(sched_setaffinity(0, sizeof(away), &away), 0);
        ck_assert_int_eq(sched_setaffinity(0, sizeof(own), &own), 0);
        tpr_crowd_settle(&crowd, tpb_now());
        arrived = sched_getcpu() == crowd.home;
        ck_assert_int_eq(sched_getaffinity(0, sizeof(after), &after), 0);
        ck_assert(CPU_EQUAL(&own, &after));
    }
    ck_assert(arrived);
    /* Whom somebody has bound since is left alone. */
    ck_assert_int_eq(sched_setaffinity(0, sizeof(away), &away), 0);
    tpr_crowd_settle(&crowd, tpb_now());
    ck_assert_int_eq(sched_getaffinity(0, sizeof(after), &after), 0);
    ck_assert(CPU_EQUAL(&away, &after));
    ck_assert_int_ne(sched_getcpu(), crowd.home);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("crowd");
    TCase *tests = tcase_create("crowd");

    tcase_add_test(tests, neighbours_live_apart);
    tcase_add_test(tests, the_first_has_most_room);
    tcase_add_test(tests, patience_follows_the_answers);
    tcase_add_test(tests, one_of_three_is_late);
    tcase_add_test(tests, looks_are_worth_a_switch);
    tcase_add_test(tests, turns_are_earned);
    tcase_add_test(tests, two_per_cpu_stay);
    tcase_add_test(tests, looks_on_while_the_other_is_busy);
    tcase_add_test(tests, looks_on_where_that_is_right);
    tcase_add_test(tests, yields_to_whom_it_has_written);
    tcase_add_test(tests, short_turns_are_sampled);
    tcase_add_test(tests, long_messages_bring_neighbours_together);
    tcase_add_test(tests, late_turns_make_it_move);
    tcase_add_test(tests, strangers_get_no_yields);
    tcase_add_test(tests, sleeps_earn_nothing);
    tcase_add_test(tests, meeting_takes_long);
    tcase_add_test(tests, settles_at_home);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
