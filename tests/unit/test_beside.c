/* SPDX-License-Identifier: BSD-3-Clause */
/* Who waits for one that is on the same cpu gives it to him, not for ever in
 * vain, and goes to another cpu in the end. */
#include "config.h"

#include <sched.h>

#include "runtime/beside.h"
#include "tests/lib/tpx.h"

enum { US = 1000, MS = 1000 * US, SECOND = 1000 * MS };

static struct tpr_beside beside;
static struct tpb_presence mine, theirs;

/* On one cpu from now on: where we are is known. */
static void bind(cpu_set_t *own)
{
    cpu_set_t one;

    ck_assert_int_eq(sched_getaffinity(0, sizeof(*own), own), 0);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    tpr_beside_init(&beside);
    atomic_store(&mine.place, 0);
    atomic_store(&theirs.place, tpb_presence_here());
}

/* Of a wait that looks once: is the cpu given away? */
static bool gives(uint64_t waited, uint64_t now)
{
    uint64_t gave = 0;

    ck_assert(!tpr_beside_sleeps(&beside, &mine, &theirs, waited, now, &gave));
    return gave > 0;
}

START_TEST(one_that_is_here_gets_it)
{
    cpu_set_t own;

    bind(&own);
    ck_assert(!gives(1 * US, SECOND));     /* too soon */
    ck_assert_uint_eq(atomic_load(&mine.place), 0);
    ck_assert(gives(3 * US, SECOND));
    ck_assert_uint_eq(atomic_load(&mine.place), atomic_load(&theirs.place));
    /* That has found something: from now on at once. */
    ck_assert(gives(3 * US, SECOND));
    ck_assert(gives(0, SECOND));
}
END_TEST

START_TEST(one_that_is_elsewhere_does_not)
{
    uint64_t gave = 0;
    cpu_set_t own;

    bind(&own);
    atomic_fetch_add(&theirs.place, 2);
    ck_assert(!gives(3 * US, SECOND));
    ck_assert_uint_ne(atomic_load(&mine.place), 0);
    atomic_store(&theirs.place, 0);
    ck_assert(!gives(3 * US, SECOND));
    ck_assert(!tpr_beside_sleeps(&beside, NULL, &theirs, 3 * US, SECOND,
                                 &gave));
    ck_assert(!tpr_beside_sleeps(&beside, &mine, NULL, 3 * US, SECOND, &gave));
    ck_assert_uint_eq(gave, 0);
}
END_TEST

/* Who was here may have left, and says so only when he waits again. */
START_TEST(not_for_ever_in_vain)
{
    uint64_t now = SECOND;
    cpu_set_t own;
    int times = 0;

    bind(&own);
    beside.stay = UINT64_MAX;
    for (uint64_t gave = 1; gave > 0 && times < 1000; times++) {
        gave = 1;                  /* as if it had been short */
        now += US;
        ck_assert(!tpr_beside_sleeps(&beside, &mine, &theirs, 3 * US, now,
                                     &gave));
    }
    ck_assert_int_gt(times, 1);
    ck_assert_int_lt(times, 1000);
    ck_assert(!gives(3 * US, now));
    ck_assert(!gives(3 * US, now + MS / 2));
    ck_assert(gives(3 * US, now + 2 * MS));
}
END_TEST

/* Where others have taken it the next waits sleep at once, and each time that
 * it is tried again in vain for longer. */
START_TEST(strangers_do_not_get_it)
{
    uint64_t now = SECOND, gave = 3 * MS;
    cpu_set_t own;

    bind(&own);
    beside.stay = UINT64_MAX;
    for (uint64_t away = MS; away <= 64 * MS; away *= 2) {
        ck_assert(tpr_beside_sleeps(&beside, &mine, &theirs, 3 * US, now,
                                    &gave));
        ck_assert_uint_eq(gave, 0);
        now += away / 2 + 1;
        ck_assert(tpr_beside_sleeps(&beside, &mine, &theirs, 3 * US, now,
                                    &gave));
        now += away / 2 + 1;
        ck_assert(gives(3 * US, now));
        gave = 3 * MS;
    }
    /* It has found something. */
    ck_assert(gives(3 * US, now));
    gave = 3 * MS;
    ck_assert(tpr_beside_sleeps(&beside, &mine, &theirs, 3 * US, now, &gave));
    ck_assert(gives(3 * US, now + MS + 1));
}
END_TEST

/* Two waits that were long apart do not make it long. */
START_TEST(stays_at_first)
{
    cpu_set_t own;

    bind(&own);
    for (uint64_t now = SECOND; now < 10 * (uint64_t)SECOND; now += SECOND) {
        ck_assert(gives(3 * US, now));
        ck_assert_uint_eq(beside.left, 0);
    }
}
END_TEST

START_TEST(goes_away_in_the_end)
{
    cpu_set_t own, after;
    uint32_t place;

    bind(&own);
    if (CPU_COUNT(&own) < 2) {
        tpx_skip("one cpu", "there is no other to go to");
        return;
    }
    ck_assert_int_eq(sched_setaffinity(0, sizeof(own), &own), 0);
    place = atomic_load(&theirs.place);
    for (int time = 0; time < 1000; time++) {
        /* The kernel may have moved us. */
        atomic_store(&theirs.place, place);
        if (gives(3 * US, SECOND) && gives(3 * US, SECOND + 4 * MS)
            && gives(3 * US, SECOND + 8 * MS)
            && atomic_load(&mine.place) != place)
            break;
        place = tpb_presence_here();
        tpr_beside_init(&beside);
    }
    ck_assert_uint_ne(atomic_load(&mine.place), place);
    ck_assert_int_eq(sched_getaffinity(0, sizeof(after), &after), 0);
    ck_assert(CPU_EQUAL(&own, &after));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("beside");
    TCase *tests = tcase_create("beside");

    tcase_add_test(tests, one_that_is_here_gets_it);
    tcase_add_test(tests, one_that_is_elsewhere_does_not);
    tcase_add_test(tests, not_for_ever_in_vain);
    tcase_add_test(tests, strangers_do_not_get_it);
    tcase_add_test(tests, stays_at_first);
    tcase_add_test(tests, goes_away_in_the_end);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
