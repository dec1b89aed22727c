/* SPDX-License-Identifier: BSD-3-Clause */
/* Waits that are a little too long for a caller's polling make it longer; such
 * as are much too long, and others that want the cpu, make it brief again. */
#include "config.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "runtime/patience.h"
#include "tests/lib/tpx.h"

enum { US = 1000, LEAST = 200 * US, MOST = 2000 * US, ROUNDS = 1000 };

static bool lasts(struct tpr_patience *patience, uint64_t waited)
{
    /* At a time at which the cpu has just been offered. */
    patience->offered = 1000000 * US;
    return tpr_patience_lasts(patience, waited, patience->offered);
}

START_TEST(short_sleeps_make_it_longer)
{
    struct tpr_patience patience;

    tpr_patience_init(&patience, LEAST, MOST);
    ck_assert(!lasts(&patience, LEAST));
    tpr_patience_slept(&patience, 400 * US);
    ck_assert(lasts(&patience, 400 * US));
    ck_assert(lasts(&patience, 799 * US));
    ck_assert(!lasts(&patience, 800 * US));
    /* A shorter one takes nothing away. */
    tpr_patience_slept(&patience, 250 * US);
    ck_assert(lasts(&patience, 799 * US));
    tpr_patience_slept(&patience, 1900 * US);
    ck_assert(lasts(&patience, MOST - 1));
    ck_assert(!lasts(&patience, MOST));
}
END_TEST

START_TEST(long_sleep_makes_it_brief)
{
    struct tpr_patience patience;

    tpr_patience_init(&patience, LEAST, MOST);
    tpr_patience_slept(&patience, 1000 * US);
    ck_assert(lasts(&patience, 1500 * US));
    tpr_patience_slept(&patience, MOST + 1);
    ck_assert(!lasts(&patience, LEAST));
}
END_TEST

/* Or who waits for a little at a time would poll all the time. */
START_TEST(waits_in_vain_make_it_brief)
{
    struct tpr_patience patience;

    tpr_patience_init(&patience, LEAST, MOST);
    tpr_patience_slept(&patience, 1000 * US);
    tpr_patience_vain(&patience, LEAST - 1);
    ck_assert(lasts(&patience, LEAST));
    tpr_patience_vain(&patience, LEAST);
    ck_assert(!lasts(&patience, LEAST));
}
END_TEST

START_TEST(what_is_fixed_stays)
{
    struct tpr_patience patience;

    tpr_patience_init(&patience, 0, 0);
    ck_assert(!lasts(&patience, 0));
    tpr_patience_slept(&patience, 50 * US);
    ck_assert(!lasts(&patience, 0));
    tpr_patience_init(&patience, LEAST, LEAST);
    tpr_patience_slept(&patience, LEAST);
    ck_assert(!lasts(&patience, LEAST));
}
END_TEST

static atomic_bool over;
static atomic_uint computed;

static void *compete(void *arg)
{
    (void)arg;
    while (!over)
        computed++;
    return NULL;
}

/* Two that compute on the same cpu take it for longer than a look at it; when
 * they do not, as before they have begun, that says nothing. */
START_TEST(others_get_the_cpu)
{
    struct tpr_patience patience;
    pthread_t threads[2];
    cpu_set_t all, one;
    int rounds = 0;

    ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, compete, NULL), 0);
    tpr_patience_init(&patience, LEAST, MOST);
    tpr_patience_slept(&patience, MOST);
    for (unsigned seen = computed; rounds < ROUNDS
         && tpr_patience_lasts(&patience, LEAST, tpb_now()); seen = computed) {
        patience.offered = 0;
        rounds += computed != seen;
    }
    over = true;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_lt(rounds, ROUNDS);
    ck_assert(!lasts(&patience, LEAST));
}
END_TEST

/* Waits are brief, where the group has stood for long, for a spell; for twice
 * as long if it does again once that is over. */
START_TEST(what_stands_makes_it_brief)
{
    enum { BRIEF = 49 * US, LONG = 51 * US };
    uint64_t ms = 1000 * US, second = 1000 * ms, now = second, until;
    struct tpr_patience patience;

    tpr_patience_init(&patience, LEAST, MOST);
    ck_assert(tpr_patience_affords(&patience, LONG, now));
    tpr_patience_stood(&patience, now, 7 * second);        /* before our time */
    ck_assert_uint_eq(patience.frugal, 0);
    tpr_patience_stood(&patience, now += 100 * ms, 7 * second + 12 * ms);
    ck_assert_uint_eq(patience.frugal, 0);
    tpr_patience_stood(&patience, now += 100 * ms, 7 * second + 25 * ms);
    until = now + second;
    ck_assert_uint_eq(patience.frugal, until);
    tpr_patience_stood(&patience, now += 100 * ms, 7 * second + 25 * ms);
    ck_assert_uint_eq(patience.frugal, until);
    /* It stands whatever we do. */
    tpr_patience_stood(&patience, now += 100 * ms, 7 * second + 75 * ms);
    until = now + second;
    ck_assert_uint_eq(patience.frugal, until);
    tpr_patience_stood(&patience, until, 7 * second + 76 * ms);
    ck_assert_uint_eq(patience.frugal, until);
    tpr_patience_stood(&patience, now = until + 100 * ms, 7 * second + 99 * ms);
    ck_assert_uint_eq(patience.frugal, now + 2 * second);
}
END_TEST

/* The file is looked at now and then. */
START_TEST(statistics_are_read)
{
    uint64_t ms = 1000 * US, now = 1000000 * ms;
    struct tpr_patience patience;
    FILE *file = tmpfile();

    ck_assert_uint_eq(tpr_patience_parse("nr_periods 9\nnr_throttled 4\n"
                                         "throttled_time 121938914923\n"
                                         "nr_bursts 0\n"), 121938914923);
    ck_assert_uint_eq(tpr_patience_parse("usage_usec 9\nnr_throttled 4\n"
                                         "throttled_usec 5000\n"), 5000000);
    ck_assert_uint_eq(tpr_patience_parse("usage_usec 9\n"), 0);
    ck_assert_uint_eq(tpr_patience_parse(""), 0);
    ck_assert_ptr_nonnull(file);
    fputs("throttled_usec 1000\n", file);
    fflush(file);
    tpr_patience_init(&patience, LEAST, MOST);
    tpr_patience_watch(&patience, dup(fileno(file)), 1);
    ck_assert(tpr_patience_affords(&patience, LEAST, now));
    rewind(file);
    fputs("throttled_usec 51000\n", file);
    fflush(file);
    ck_assert(tpr_patience_affords(&patience, LEAST, now + 99 * ms));
    ck_assert(!tpr_patience_affords(&patience, LEAST, now + 100 * ms));
    ck_assert(tpr_patience_affords(&patience, 49 * US, now + 100 * ms));
    ck_assert(!tpr_patience_affords(&patience, 50 * US, now + 1099 * ms));
    ck_assert(tpr_patience_affords(&patience, LEAST, now + 1200 * ms));
    tpr_patience_fini(&patience);
    ck_assert_int_eq(patience.statistics, -1);
    fclose(file);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("patience");
    TCase *tests = tcase_create("patience");

    tcase_add_test(tests, short_sleeps_make_it_longer);
    tcase_add_test(tests, long_sleep_makes_it_brief);
    tcase_add_test(tests, waits_in_vain_make_it_brief);
    tcase_add_test(tests, what_is_fixed_stays);
    tcase_add_test(tests, others_get_the_cpu);
    tcase_add_test(tests, what_stands_makes_it_brief);
    tcase_add_test(tests, statistics_are_read);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
