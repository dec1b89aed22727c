/* SPDX-License-Identifier: BSD-3-Clause */
/* Through the caches or past them, by one copy or a loop: the bytes, and what
 * trials decide. */
#include "config.h"

#include <stdlib.h>

#include "runtime/base/way.h"
#include "tests/lib/tpx.h"

enum { COPIED = 4096 };

static struct tpb_way way;

/* A trial in which the other way takes `other` where this one takes 1000. */
static void trial(uint64_t other, bool paused)
{
    way.pauses = paused ? 3 : 2;   /* a few come on any machine */
    way.took[way.other] = 1000000;
    way.took[!way.other] = other * 1000;
    way.bytes[0] = way.bytes[1] = 1000000;
    way.copies[0] = way.copies[1] = 96;
    tpb_way_decide(&way);
    ck_assert_uint_eq(way.tried, 0);
    ck_assert_uint_gt(way.left, 0);
}

/* Far better is enough; better must be seen twice, with less in between; what
 * is hardly better is not taken. */
START_TEST(test_decides)
{
    uint64_t held;

    tpb_way_init(&way);
    ck_assert(!way.other);
    trial(950, false);
    ck_assert(!way.other);
    held = way.left;
    trial(700, false);
    ck_assert(!way.other);
    ck_assert_uint_lt(way.left, held);
    trial(950, false);
    trial(700, false);
    ck_assert(!way.other);         /* not twice in a row */
    trial(700, false);
    ck_assert(way.other);
    ck_assert_uint_eq(way.left, held);
    trial(950, false);
    ck_assert(way.other);
    trial(140, false);
    ck_assert(!way.other);
    trial(140, false);
    ck_assert(way.other);
}
END_TEST

/* Of messages that come alone their readers' time counts, which nobody sees:
 * past the caches must be twice as fast, and go on to be. */
START_TEST(test_alone)
{
    tpb_way_init(&way);
    trial(600, true);
    trial(600, true);
    ck_assert(!way.other);
    trial(400, true);
    ck_assert(!way.other);
    trial(400, true);
    ck_assert(way.other);
    trial(1800, true);
    trial(1800, true);
    ck_assert(way.other);
    trial(1200, true);
    trial(1200, true);
    ck_assert(!way.other);
    trial(200, true);
    ck_assert(way.other);
    /* Who copies is the reader. */
    way = (struct tpb_way){ .kind = TPB_WAY_PIECES, .other = true };
    trial(850, true);
    trial(850, true);
    ck_assert(!way.other);
}
END_TEST

/* Nothing was measured of one of them, or of one with short copies and of the
 * other with long ones: nothing is decided, and they are tried again soon. */
START_TEST(test_says_nothing)
{
    uint64_t held;

    tpb_way_init(&way);
    trial(950, false);
    held = way.left;
    way.took[0] = way.bytes[0] = 1000;
    way.copies[0] = 1;
    tpb_way_decide(&way);
    ck_assert(!way.other);
    ck_assert_uint_lt(way.left, held);
    /* ... of neither: they come one by one, and go on to. */
    tpb_way_decide(&way);
    ck_assert(!way.other);
    ck_assert_uint_eq(way.left, held);
    way.other = true;
    way.took[0] = way.bytes[0] = 1000;
    way.copies[0] = 1;
    tpb_way_decide(&way);
    ck_assert(way.other);
    for (int i = 0; i < 3; i++) {
        way.bytes[0] = 96000;
        way.bytes[1] = 960000;
        way.took[0] = way.took[1] = 1000000;
        way.copies[0] = way.copies[1] = 96;
        way.other = false;
        tpb_way_decide(&way);
        ck_assert(!way.other);
        ck_assert_uint_lt(way.left, held);
    }
}
END_TEST

/* It is known how fast copies can be once they were tried, and once what one
 * trial said has been confirmed, or not. */
START_TEST(test_settles)
{
    tpb_way_init(&way);
    ck_assert(!tpb_way_is_settled(&way));
    trial(950, false);
    ck_assert(tpb_way_is_settled(&way));
    trial(700, false);
    ck_assert(!tpb_way_is_settled(&way));
    trial(700, false);
    ck_assert(way.other);
    ck_assert(tpb_way_is_settled(&way));
}
END_TEST

/* Long copies need not be many: a stream of them has moved less than 32 MiB
 * when it knows. */
START_TEST(test_long_copies)
{
    enum { LONG = 64 * 1024, MOST = (32 << 20) / LONG };
    static unsigned char from[LONG], to[LONG];
    unsigned copies = 0;

    tpb_way_init(&way);
    while (way.trials == 0 && copies < MOST) {
        tpb_way_copy(&way, to, from, LONG);
        copies++;
    }
    ck_assert_uint_eq(way.trials, 1);
    ck_assert_uint_gt(copies, 64);
}
END_TEST

/* They come to an end, and then for many bytes there is none. */
START_TEST(test_trials_end)
{
    static unsigned char from[COPIED], to[COPIED];
    unsigned copies = 0;

    tpb_way_init(&way);
    for (uint64_t left = way.left; left >= COPIED; left -= COPIED)
        tpb_way_copy(&way, to, from, COPIED);
    ck_assert_uint_lt(way.left, COPIED);
    do
        tpb_way_copy(&way, to, from, COPIED);
    while (way.left < COPIED && ++copies < 10000);
    ck_assert_uint_gt(copies, 16);
    ck_assert_uint_lt(copies, 10000);
    ck_assert_uint_ge(way.left, UINT64_C(1) << 20);
}
END_TEST

/* The time to an answer belongs to what was copied before: a megabyte may take
 * longer than what is a pause between short copies. */
START_TEST(test_long_gaps_count)
{
    enum { LONG = 1024 * 1024 };
    unsigned char *from = calloc(2, LONG);
    uint32_t most = 0;

    ck_assert_ptr_nonnull(from);
    tpb_way_init(&way);
    for (unsigned i = 0; i < 1000 && way.trials == 0; i++) {
        tpb_way_copy(&way, from + LONG, from, LONG);
        if (way.copies[0] > most)
            most = way.copies[0];
    }
    ck_assert_uint_gt(way.trials, 0);
    ck_assert_uint_gt(most, 0);
    free(from);
}
END_TEST

/* Whatever is tried, in whatever pieces, the bytes arrive and no others
 * change. */
START_TEST(test_bytes)
{
    enum { TRIED = 255 };
    static unsigned char from[COPIED], to[COPIED];
    static unsigned char untouched[COPIED];
    uint64_t state = 5;

    memset(untouched, 0xa5, COPIED);
    tpb_way_init(&way);
    for (int kind = 0; kind < 4; kind++)
        for (int i = 0; i < 3 * TRIED; i++) {
            size_t at, length;

            state = state * 6364136223846793005u + 1442695040888963407u;
            at = (state >> 33) % 64;
            length = (state >> 41) % (COPIED - 2 * 64);
            if (i % TRIED == 0) {
                way = (struct tpb_way){ .kind = (enum tpb_way_kind)(kind / 2),
                                        .other = kind % 2 != 0 };
                way.left = i == 0 ? UINT64_MAX : 0;
            }
            for (size_t j = 0; j < COPIED; j++)
                from[j] = (unsigned char)(state >> (j % 56));
            memset(to, 0xa5, COPIED);
            tpb_way_copy(&way, to + at, from + 64 - at, length);
            ck_assert_int_eq(memcmp(to + at, from + 64 - at, length), 0);
            ck_assert_int_eq(memcmp(to, untouched, at), 0);
            ck_assert_int_eq(memcmp(to + at + length, untouched,
                                    COPIED - at - length), 0);
        }
}
END_TEST

/* A consumer's, by length: the bytes, and each has trials of its own, in which
 * nothing counts before two laps of the longest ring went that way. */
START_TEST(test_fetches)
{
    enum { LONG = 16 * 1024, LAPS = 4 << 20 };
    static const size_t lengths[] = { TPB_COPY_PIECE, TPB_COPY_PIECE + 1,
                                      TPB_COPY_WHOLE - 1, TPB_COPY_WHOLE,
                                      LONG };
    static unsigned char from[LONG], to[LONG];
    size_t count = sizeof(lengths) / sizeof(lengths[0]), tried[2] = { 0, 0 };
    struct tpb_fetch fetch;

    tpb_fetch_init(&fetch);
    ck_assert(fetch.ways[0].other && fetch.ways[1].other);
    for (unsigned i = 0; fetch.ways[0].trials == 0
                         || fetch.ways[1].trials == 0; i++) {
        size_t length = lengths[i % count];
        struct tpb_way *mine = &fetch.ways[length >= TPB_COPY_WHOLE];
        bool alike = i % 501 == 500;

        memset(from, (int)(i % 251), length);
        memset(to, 0xa5, length);
        tpb_fetch_copy(alike ? NULL : &fetch, to, from, length);
        ck_assert_int_eq(memcmp(to, from, length), 0);
        ck_assert_uint_lt(i, 100000);
        if (!alike && length > TPB_COPY_PIECE && mine->trials == 0
            && mine->tried > 0)
            tried[mine != fetch.ways] += length;
        if (mine->first == 0 && mine->moved < LAPS)
            ck_assert_uint_eq(mine->copies[0] + mine->copies[1], 0);
    }
    ck_assert_uint_ge(tried[0], 2 * LAPS);
    ck_assert_uint_ge(tried[1], 2 * LAPS);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("way");
    TCase *tests = tcase_create("way");

    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_decides);
    tcase_add_test(tests, test_alone);
    tcase_add_test(tests, test_says_nothing);
    tcase_add_test(tests, test_settles);
    tcase_add_test(tests, test_fetches);
    tcase_add_test(tests, test_long_copies);
    tcase_add_test(tests, test_trials_end);
    tcase_add_test(tests, test_long_gaps_count);
    tcase_add_test(tests, test_bytes);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
