/* SPDX-License-Identifier: BSD-3-Clause */
/* Of the ways for a stream the fastest one is found, and found again. */
#include "config.h"

#include <stdlib.h>

#include "runtime/pace.h"
#include "tests/lib/tpx.h"

enum { MEGABYTE = 1024 * 1024 };

/* A stream of `count` messages, of which each takes as long as its way at that
 * speed in MB/s does; how many of them went by the pulled way. */
static unsigned stream(struct tpr_pace *pace, uint64_t *clock, unsigned count,
                       const uint64_t speed[2])
{
    unsigned pulled = 0;

    for (unsigned i = 0; i < count; i++) {
        enum tpr_pace_way way;

        if (i == 0)
            tpr_pace_first(pace, MEGABYTE, *clock);
        else
            tpr_pace_next(pace, MEGABYTE, *clock);
        way = pace->way;
        *clock += MEGABYTE * UINT64_C(1000) / speed[way];
        tpr_pace_ended(pace, way, MEGABYTE, *clock);
        pulled += way == TPR_PACE_PULLED;
    }
    return pulled;
}

/* So many of them, of 16 messages each. */
static unsigned streams(struct tpr_pace *pace, uint64_t *clock, unsigned times,
                        const uint64_t speed[])
{
    unsigned pulled = 0;

    for (unsigned i = 0; i < times; i++)
        pulled += stream(pace, clock, 16, speed);
    return pulled;
}

START_TEST(faster_way_is_taken)
{
    static const uint64_t slow[2] = { 9000, 4000 }, fast[2] = { 9000, 16000 };
    struct tpr_pace pace = { 0 };
    uint64_t clock = 1000;
    unsigned pulled = 0;

    pulled += streams(&pace, &clock, 100, fast);
    ck_assert_uint_ge(pulled, 1500);
    pace = (struct tpr_pace){ 0 };
    pulled = 0;
    pulled += streams(&pace, &clock, 100, slow);
    /* It was tried, and seldom again. */
    ck_assert_uint_ge(pulled, 16);
    ck_assert_uint_le(pulled, 160);
}
END_TEST

START_TEST(change_is_noticed)
{
    static const uint64_t before[2] = { 4000, 16000 };
    static const uint64_t after[2] = { 4000, 2000 };
    struct tpr_pace pace = { 0 };
    uint64_t clock = 1000;
    unsigned pulled = 0;

    streams(&pace, &clock, 50, before);
    ck_assert_int_eq(pace.way, TPR_PACE_PULLED);
    pulled += streams(&pace, &clock, 50, after);
    ck_assert_uint_le(pulled, 160);
}
END_TEST

/* While frames may become faster they are not judged, also not by what ended
 * in the same lap before; but not for ever. */
START_TEST(cold_frames_are_not_judged)
{
    static const uint64_t cold[2] = { 1000, 6000 }, warm[2] = { 11000, 6000 };
    struct tpr_pace pace = { 0 };
    uint64_t clock = 1000, frames = 0;

    stream(&pace, &clock, 16, cold);
    ck_assert(tpr_pace_skip(&pace, MEGABYTE));
    streams(&pace, &clock, 16, warm);
    ck_assert_int_eq(pace.way, TPR_PACE_FRAMES);
    for (int i = 0; i < 100 && tpr_pace_skip(&pace, MEGABYTE); i++)
        frames += MEGABYTE;
    ck_assert_uint_ge(frames, 16 * MEGABYTE);
    ck_assert_uint_lt(frames, 100 * MEGABYTE);
    /* What is pulled is as fast as it ever will be. */
    pace = (struct tpr_pace){ .way = TPR_PACE_PULLED };
    ck_assert(!tpr_pace_skip(&pace, MEGABYTE));
}
END_TEST

/* ... and a third one is tried first. */
START_TEST(fastest_of_three_is_taken)
{
    static const uint64_t speeds[][TPR_PACE_WAYS] = {
        { 9000, 4000, 7000 }, { 9000, 12000, 7000 }, { 9000, 12000, 14000 }
    };

    for (unsigned best = 0; best < TPR_PACE_WAYS; best++) {
        struct tpr_pace pace = { 0 };
        uint64_t clock = 1000;
        unsigned laps = 0;

        tpr_pace_share(&pace, true);
        ck_assert_int_eq(pace.way, TPR_PACE_SHARED);
        for (unsigned i = 0; i < 200; i++) {
            stream(&pace, &clock, 16, speeds[best]);
            laps += pace.way == best;
        }
        ck_assert_uint_ge(laps, 180);
        for (unsigned way = 0; way < TPR_PACE_WAYS; way++)
            ck_assert_uint_ne(pace.speed[way], 0);
        /* Sizes are settled again, and again: it goes on as it was. */
        tpr_pace_share(&pace, true);
        ck_assert_uint_ne(pace.speed[best], 0);
        tpr_pace_share(&pace, false);
        ck_assert_int_ne(pace.way, TPR_PACE_SHARED);
    }
}
END_TEST

/* Whatever is measured first is measured while all is cold. */
START_TEST(cold_beginning_is_forgotten)
{
    static const uint64_t speed[TPR_PACE_WAYS] = { 4000, 7500, 8500 };
    struct tpr_pace pace = { 0 };
    uint64_t clock = 1000;
    unsigned laps[TPR_PACE_WAYS] = { 0 };

    tpr_pace_share(&pace, true);
    for (unsigned i = 0; i < 24; i++) {
        uint64_t cold[TPR_PACE_WAYS];

        for (unsigned way = 0; way < TPR_PACE_WAYS; way++)
            cold[way] = i < 2 ? speed[way] * 6 / 10
                              : i < 4 ? speed[way] * 9 / 10 : speed[way];
        stream(&pace, &clock, 16, cold);
        laps[pace.way]++;
    }
    ck_assert_int_eq(pace.way, TPR_PACE_SHARED);
    ck_assert_uint_le(laps[TPR_PACE_FRAMES], 2);
    ck_assert_uint_le(laps[TPR_PACE_PULLED], 2);
}
END_TEST

/* What is slow with the sender's help is not tried without, until patience is
 * over; where the two are near frames it is. */
START_TEST(pulls_are_judged_by_shared_ones)
{
    static const uint64_t far[TPR_PACE_WAYS] = { 12000, 5000, 6000 };
    static const uint64_t near[TPR_PACE_WAYS] = { 7000, 8000, 6000 };
    struct tpr_pace pace = { 0 };
    uint64_t clock = 1000;
    unsigned pulled = 0;

    tpr_pace_share(&pace, true);
    pulled += streams(&pace, &clock, 32, far);
    ck_assert_int_eq(pace.way, TPR_PACE_FRAMES);
    ck_assert_uint_eq(pulled, 0);
    pulled += streams(&pace, &clock, 100, far);
    ck_assert_uint_gt(pulled, 0);
    ck_assert_uint_le(pulled, 64);
    pace = (struct tpr_pace){ 0 };
    tpr_pace_share(&pace, true);
    streams(&pace, &clock, 24, near);
    ck_assert_int_eq(pace.way, TPR_PACE_PULLED);
}
END_TEST

/* ... but where one was measured first, when all was cold: it is the best. */
START_TEST(cold_pull_is_measured_again)
{
    static const uint64_t speed[TPR_PACE_WAYS] = { 8900, 12000, 6000 };
    static const uint64_t cold[TPR_PACE_WAYS] = { 8900, 8000, 6000 };
    struct tpr_pace pace = { .way = TPR_PACE_PULLED, .shares = true };
    uint64_t clock = 1000;

    for (unsigned i = 0; i < 16; i++)
        stream(&pace, &clock, 16, i < 2 ? cold : speed);
    ck_assert_int_eq(pace.way, TPR_PACE_PULLED);
}
END_TEST

/* One lap is enough to see that a way is well behind, and nothing is
 * tried again soon. */
START_TEST(trials_are_short)
{
    static const uint64_t speed[TPR_PACE_WAYS] = { 5000, 5300, 9000 };
    struct tpr_pace pace = { 0 };
    uint64_t clock = 1000;
    unsigned others = 0;

    tpr_pace_share(&pace, true);
    for (unsigned i = 0; i < 32; i++) {
        stream(&pace, &clock, 16, speed);
        others += pace.way != TPR_PACE_SHARED;
    }
    ck_assert_uint_eq(others, 2);
}
END_TEST

/* A stream without an end, whose ways are known: the trial of one that is far
 * behind ends before its lap would. */
START_TEST(hopeless_trials_are_shorter)
{
    static const uint64_t speed[2] = { 7000, 18000 };
    struct tpr_pace pace = { 0 };
    uint64_t clock = 1000;
    unsigned pulled;

    tpr_pace_prefer(&pace, TPR_PACE_PULLED);
    pulled = stream(&pace, &clock, 400, speed);
    ck_assert_uint_le(400 - pulled, 20);
    ck_assert_uint_ge(400 - pulled, 16);
}
END_TEST

START_TEST(long_stream_is_measured_too)
{
    static const uint64_t speed[2] = { 9000, 16000 };
    struct tpr_pace pace = { 0 };
    uint64_t clock = 1000;

    /* Without an end it is cut into laps. */
    ck_assert_uint_ge(stream(&pace, &clock, 2000, speed), 1500);
}
END_TEST

/* With a window: messages of `bytes`, of which the first of each burst end at
 * once as they have been written ahead, and the last as nothing is written any
 * more. */
static unsigned burst(struct tpr_pace *pace, uint64_t *clock, unsigned count,
                      uint64_t bytes)
{
    unsigned pulled = 0, ahead = count / 3 < 64 ? count / 3 : 64;

    for (unsigned ended = 0, begun = 0; ended < count; ended++) {
        bool middle = ended >= ahead && ended < count - ahead;

        for (; begun < count && begun <= ended + ahead; begun++)
            if (begun == 0)
                tpr_pace_first(pace, bytes, *clock);
            else
                tpr_pace_next(pace, bytes, *clock);
        *clock += bytes * UINT64_C(1000)
                  / (pace->way == TPR_PACE_FRAMES ? 2500
                     : middle ? 3800 : 12000);
        pulled += pace->way == TPR_PACE_PULLED;
        tpr_pace_ended(pace, pace->way, bytes, *clock);
    }
    return pulled;
}

/* So many are written whenever as many have ended: never one alone, and none of
 * the laps need be even.  The way is found nevertheless. */
START_TEST(batches_are_measured)
{
    static const uint64_t speed[TPR_PACE_WAYS] = { 9000, 4000, 3000 };
    static const unsigned batches[][2] = {     /* MiB, messages */
        { 1, 16 }, { 1, 64 }, { 1, 96 }, { 1, 128 }, { 1, 1024 }, { 4, 32 },
        { 16, 24 }, { 16, 32 }, { 32, 16 }, { 64, 6 }, { 64, 8 }, { 64, 16 }
    };

    for (size_t i = 0; i < TPB_COUNT(batches); i++) {
        uint64_t bytes = (uint64_t)batches[i][0] * MEGABYTE, clock = 1000;
        unsigned many = batches[i][1], frames = 0;
        unsigned count = 64 * 1024 / batches[i][0];
        struct tpr_pace pace = { 0 };

        tpr_pace_share(&pace, true);
        for (unsigned k = 0; k < many; k++)
            tpr_pace_next(&pace, bytes, clock);
        for (unsigned ended = 1; ended <= count; ended++) {
            enum tpr_pace_way way = pace.way;

            clock += bytes * 1000 / speed[way];
            frames += way == TPR_PACE_FRAMES;
            tpr_pace_ended(&pace, way, bytes, clock);
            for (unsigned k = 0; ended % many == 0 && k < many; k++)
                tpr_pace_next(&pace, bytes, clock);
        }
        if (frames < count * 3 / 4)
            ck_abort_msg("%u of %u messages of %u MiB, %u at a time", frames,
                         count, batches[i][0], many);
    }
}
END_TEST

/* That is one stream, not several in turn. */
START_TEST(phases_of_a_burst_are_no_change)
{
    static const unsigned megabytes[] = { 1, 2, 4, 16, 64 };
    static const unsigned counts[] = { 10, 48, 150, 400 };

    for (size_t size = 0; size < TPB_COUNT(megabytes); size++)
        for (size_t i = 0; i < TPB_COUNT(counts); i++) {
            struct tpr_pace pace = { 0 };
            uint64_t clock = 1000;
            unsigned pulled = 0;

            if (megabytes[size] * counts[i] > 1000)
                continue;
            for (unsigned times = 0; times < 40; times++)
                pulled += burst(&pace, &clock, counts[i],
                                (uint64_t)megabytes[size] * MEGABYTE);
            if (pulled < 34 * counts[i])
                ck_abort_msg("%u of %u messages of %u MiB, %u at a time",
                             pulled, 40 * counts[i], megabytes[size],
                             counts[i]);
        }
}
END_TEST

/* A burst with a window, whose program takes 125 us to write each message, more
 * if it helps its peer, and hears of no end before it has written as many as
 * may be under way; what has arrived meanwhile ends as fast as it writes.
 * Returns how many were shared. */
static unsigned rewritten(struct tpr_pace *pace, uint64_t *clock,
                          unsigned count, const uint64_t speed[TPR_PACE_WAYS])
{
    enum { WINDOW = 64, WRITING = 125000, HELPING = 25000 };
    struct { enum tpr_pace_way way; uint64_t arrived; } sent[WINDOW];
    uint64_t arrived = *clock;
    unsigned shared = 0;

    for (unsigned i = 0; i < count + WINDOW; i++) {
        unsigned at = i % WINDOW;

        if (i >= WINDOW) {
            if (*clock < sent[at].arrived)
                *clock = sent[at].arrived;
            shared += sent[at].way == TPR_PACE_SHARED;
            tpr_pace_ended(pace, sent[at].way, MEGABYTE, *clock);
        }
        if (i >= count)
            continue;
        *clock += WRITING;
        if (i >= WINDOW && pace->way == TPR_PACE_SHARED)
            *clock += HELPING;
        if (i == 0)
            tpr_pace_first(pace, MEGABYTE, *clock);
        else
            tpr_pace_next(pace, MEGABYTE, *clock);
        sent[at].way = pace->way;
        if (arrived < *clock)
            arrived = *clock;
        arrived += MEGABYTE * UINT64_C(1000) / speed[pace->way];
        sent[at].arrived = arrived;
    }
    return shared;
}

START_TEST(what_arrived_meanwhile_does_not_count)
{
    static const uint64_t speed[TPR_PACE_WAYS] = { 5600, 5500, 6700 };
    struct tpr_pace pace = { 0 };
    uint64_t clock = 1000;
    unsigned shared = 0;

    tpr_pace_share(&pace, true);
    for (unsigned times = 0; times < 40; times++)
        shared += rewritten(&pace, &clock, 256, speed);
    ck_assert_uint_ge(shared, 30 * 256);
}
END_TEST

/* A stream with a window.  What is sent in frames while others are pulled is
 * there when these have ended, and ends with the last of them. */
static unsigned windowed(struct tpr_pace *pace, unsigned count,
                         const uint64_t speed[2])
{
    enum { WINDOW = 64 };
    struct { enum tpr_pace_way way; bool there; } sent[WINDOW];
    uint64_t clock = 1000;
    unsigned pulled = 0, behind = 0;   /* pulled ones under way */

    for (unsigned i = 0; i < count + WINDOW; i++) {
        unsigned at = i % WINDOW;

        if (i >= WINDOW) {
            enum tpr_pace_way way = sent[at].way;

            if (!sent[at].there)
                clock += MEGABYTE * UINT64_C(1000) / speed[way];
            tpr_pace_ended(pace, way, MEGABYTE, clock);
            pulled += way == TPR_PACE_PULLED;
            behind -= way == TPR_PACE_PULLED;
        }
        if (i == 0)
            tpr_pace_first(pace, MEGABYTE, clock);
        else
            tpr_pace_next(pace, MEGABYTE, clock);
        sent[at].way = pace->way;
        sent[at].there = pace->way == TPR_PACE_FRAMES && behind > 0;
        behind += pace->way == TPR_PACE_PULLED;
    }
    return pulled;
}

START_TEST(what_waited_for_others_does_not_count)
{
    static const uint64_t slow[2] = { 5000, 10000 }, fast[2] = { 9000, 6000 };
    struct tpr_pace pace = { 0 };

    ck_assert_uint_ge(windowed(&pace, 20000, slow), 18000);
    ck_assert_uint_le(pace.speed[TPR_PACE_FRAMES], 6000);
    pace = (struct tpr_pace){ 0 };
    ck_assert_uint_le(windowed(&pace, 20000, fast), 2000);
    ck_assert_uint_le(pace.speed[TPR_PACE_FRAMES], 10000);
}
END_TEST

/* What is not as it was is measured anew, before it is given up. */
START_TEST(what_changed_is_forgotten)
{
    static const uint64_t before[2] = { 2000, 5000 }, after[2] = { 9000, 5000 };
    struct tpr_pace pace = { 0 };
    uint64_t clock = 1000;
    unsigned pulled = 0;

    streams(&pace, &clock, 20, before);
    ck_assert_int_eq(pace.way, TPR_PACE_PULLED);
    tpr_pace_forget(&pace, TPR_PACE_FRAMES);
    pulled += streams(&pace, &clock, 20, after);
    ck_assert_int_eq(pace.way, TPR_PACE_FRAMES);
    ck_assert_uint_le(pulled, 64);
    tpr_pace_forget(&pace, TPR_PACE_FRAMES);
    ck_assert_uint_eq(pace.speed[TPR_PACE_FRAMES], 0);
    ck_assert_int_eq(pace.way, TPR_PACE_FRAMES);
}
END_TEST

/* What could be lent is, unless frames are faster. */
START_TEST(one_begins_as_it_should)
{
    static const uint64_t slow[2] = { 4000, 9000 }, fast[2] = { 9000, 4000 };
    struct tpr_pace pace = { 0 };
    uint64_t clock = 1000;
    unsigned pulled = 0;

    tpr_pace_prefer(&pace, TPR_PACE_PULLED);
    ck_assert_uint_eq(stream(&pace, &clock, 16, slow), 16);
    pulled += streams(&pace, &clock, 31, slow);
    ck_assert_uint_ge(pulled, 30 * 16);
    ck_assert_uint_lt(pulled, 31 * 16);
    /* Sizes are settled again: it goes on as it was. */
    pace = (struct tpr_pace){ 0 };
    tpr_pace_prefer(&pace, TPR_PACE_PULLED);
    streams(&pace, &clock, 8, fast);
    tpr_pace_prefer(&pace, TPR_PACE_PULLED);
    ck_assert_int_eq(pace.way, TPR_PACE_FRAMES);
}
END_TEST

/* Of what might be lent, where a write in frames ends at once, so that none
 * tells where a lap begins: the trial ends nevertheless. */
START_TEST(frames_are_tried_to_an_end)
{
    static const uint64_t slow[2] = { 5000, 9000 };
    struct tpr_pace pace = { 0 };
    uint64_t clock = 1000;
    unsigned tried = 0;

    tpr_pace_prefer(&pace, TPR_PACE_PULLED);
    streams(&pace, &clock, 3, slow);
    ck_assert_int_eq(pace.way, TPR_PACE_FRAMES);
    while (pace.way == TPR_PACE_FRAMES && tried < 1000) {
        tpr_pace_next(&pace, MEGABYTE, clock);
        clock += MEGABYTE * UINT64_C(1000) / slow[TPR_PACE_FRAMES];
        tpr_pace_ended(&pace, TPR_PACE_FRAMES, MEGABYTE, clock);
        tried++;
    }
    ck_assert_uint_le(tried, 2 * 65);
    ck_assert_int_eq(pace.way, TPR_PACE_PULLED);
}
END_TEST

START_TEST(single_messages_are_no_stream)
{
    struct tpr_pace pace = { 0 };
    uint64_t clock = 1000;

    for (int i = 0; i < 1000; i++) {
        ck_assert(!tpr_pace_first(&pace, MEGABYTE, clock));
        clock += 100000;
        tpr_pace_ended(&pace, TPR_PACE_FRAMES, MEGABYTE, clock);
    }
    ck_assert_int_eq(pace.way, TPR_PACE_FRAMES);
    for (int i = 0; i < 8; i++)
        tpr_pace_next(&pace, MEGABYTE, clock);
    ck_assert(tpr_pace_first(&pace, MEGABYTE, clock));
    ck_assert(!tpr_pace_first(&pace, MEGABYTE, clock));
}
END_TEST

/* What cannot be measured is none: few messages, or few bytes, between two
 * that came alone.  A burst is one from where it can, and the next one at
 * once. */
START_TEST(short_bursts_are_no_stream)
{
    static const struct {
        uint64_t bytes;
        unsigned count, before;    /* messages that are not of a stream yet */
    } bursts[] = {
        { MEGABYTE, 1, 1 }, { MEGABYTE, 3, 3 }, { MEGABYTE, 4, 3 },
        { 64 * MEGABYTE, 3, 3 }, { 64 * MEGABYTE, 5, 3 },
        { MEGABYTE / 16, 31, 31 }, { MEGABYTE / 16, 40, 31 }
    };

    for (size_t i = 0; i < TPB_COUNT(bursts); i++) {
        struct tpr_pace pace = { 0 };

        for (unsigned times = 0; times < 5; times++) {
            bool at_once = times > 0 && bursts[i].before < bursts[i].count;

            for (unsigned k = 0; k < bursts[i].count; k++) {
                uint64_t now = 1000 + k;
                bool is = k == 0
                          ? tpr_pace_first(&pace, bursts[i].bytes, now)
                          : tpr_pace_next(&pace, bursts[i].bytes, now);

                ck_assert_msg(is == (at_once || k >= bursts[i].before),
                              "burst %zu, time %u, message %u", i, times, k);
            }
        }
    }
}
END_TEST

/* Bursts of any length, which of two ways the same comes over: of one the time
 * is told for each message, of the other only where it is asked for. */
START_TEST(time_matters_only_where_it_is_asked_for)
{
    struct tpr_pace told = { 0 }, asked = { 0 };
    uint64_t clock = 1000;
    unsigned spared = 0;

    srand(7);
    for (unsigned burst = 0; burst < 3000; burst++) {
        unsigned count = rand() % 3 > 0 ? 1 : 1 + (unsigned)rand() % 60;
        bool is = false, same;

        for (unsigned k = 0; k < count; k++) {
            bool timed = tpr_pace_is_timed(&asked, k == 0);
            uint64_t now = timed ? clock : 0;

            is = k == 0 ? tpr_pace_first(&told, MEGABYTE, clock)
                        : tpr_pace_next(&told, MEGABYTE, clock);
            same = k == 0 ? tpr_pace_first(&asked, MEGABYTE, now)
                          : tpr_pace_next(&asked, MEGABYTE, now);
            ck_assert(is == same);
            spared += !timed;
            clock += 50000 + (unsigned)rand() % 100000;
            if (!is)
                continue;
            tpr_pace_ended(&told, told.way, MEGABYTE, clock);
            tpr_pace_ended(&asked, asked.way, MEGABYTE, clock);
        }
        ck_assert_int_eq(told.way, asked.way);
        ck_assert_uint_eq(told.laps, asked.laps);
        for (unsigned i = 0; i < TPR_PACE_WAYS; i++)
            ck_assert_uint_eq(told.speed[i], asked.speed[i]);
    }
    ck_assert_uint_gt(told.patience, 0);
    ck_assert_uint_ge(spared, 1000);
}
END_TEST

/* `count` messages that come alone, at these speeds in MB/s; how many of them
 * were pulled. */
static unsigned alone(struct tpr_taste *taste, unsigned count,
                      const uint64_t speed[2])
{
    unsigned pulled = 0;

    for (unsigned i = 0; i < count; i++) {
        enum tpr_pace_way way = taste->pace.way;
        uint64_t ns = MEGABYTE * UINT64_C(1000) / speed[way];
        bool next = tpr_taste_ended(taste, way, MEGABYTE,
                                    i % 7 == 0 ? 50 * ns : ns);

        ck_assert(next == (taste->pace.way == TPR_PACE_PULLED));
        pulled += way == TPR_PACE_PULLED;
    }
    return pulled;
}

START_TEST(single_messages_come_as_their_receiver_wishes)
{
    static const uint64_t fast[2] = { 9000, 16000 }, slow[2] = { 9000, 4000 };
    struct tpr_taste taste = { 0 };

    /* One of seven was disturbed, which says nothing. */
    ck_assert_uint_ge(alone(&taste, 1000, fast), 950);
    ck_assert_uint_le(alone(&taste, 1000, slow), 100);
    ck_assert_uint_ge(alone(&taste, 3000, fast), 2000);
    ck_assert(!tpr_taste_prefer(&taste, TPR_PACE_PULLED));
    /* One may begin with the other way, and is told that it is slow. */
    taste = (struct tpr_taste){ 0 };
    ck_assert(tpr_taste_prefer(&taste, TPR_PACE_PULLED));
    ck_assert_uint_le(alone(&taste, 1000, slow), 100);
    taste = (struct tpr_taste){ 0 };
    ck_assert(tpr_taste_prefer(&taste, TPR_PACE_PULLED));
    ck_assert_uint_ge(alone(&taste, 1000, fast), 950);
    /* What comes another way than it was wished says nothing, either. */
    taste = (struct tpr_taste){ 0 };
    for (int i = 0; i < 100; i++)
        ck_assert(!tpr_taste_ended(&taste, TPR_PACE_PULLED, MEGABYTE, 1));
}
END_TEST

/* Frames are slow until their memory is in the caches again, each time that
 * they become the way. */
START_TEST(single_messages_warm_the_memory_of_frames)
{
    static const uint64_t speed[2] = { 16000, 9000 }, cold = 2000;
    struct tpr_taste taste = { 0 };
    unsigned pulled = 0, since = 0;

    ck_assert(tpr_taste_prefer(&taste, TPR_PACE_PULLED));
    for (unsigned i = 0; i < 1000; i++) {
        enum tpr_pace_way way = taste.pace.way;
        uint64_t now = way == TPR_PACE_FRAMES && since++ < 4 ? cold
                                                            : speed[way];

        if (way == TPR_PACE_PULLED)
            since = 0;
        tpr_taste_ended(&taste, way, MEGABYTE,
                        MEGABYTE * UINT64_C(1000) / now);
        pulled += way == TPR_PACE_PULLED;
    }
    ck_assert_uint_le(pulled, 100);
}
END_TEST

/* Seven messages are slow, of which four make a lap: nobody goes another way
 * for that, and everybody does if it goes on. */
START_TEST(one_disturbed_lap_is_no_change)
{
    static const uint64_t speed[2] = { 16000, 9000 }, slow[2] = { 4000, 9000 };
    struct tpr_taste taste = { 0 };

    alone(&taste, 1000, speed);
    while (taste.pace.way != TPR_PACE_FRAMES || taste.pace.laps > 2)
        alone(&taste, 4, speed);
    ck_assert_uint_eq(alone(&taste, 7, slow), 0);
    ck_assert_uint_eq(alone(&taste, 60, speed), 0);
    ck_assert_uint_ge(alone(&taste, 60, slow), 30);
}
END_TEST

/* Every fourth message is fast by the way that is slow for the others. */
START_TEST(one_fast_message_of_a_lap_says_nothing)
{
    struct tpr_taste taste = { 0 };
    unsigned pulled = 0;

    for (unsigned i = 0; i < 2000; i++) {
        enum tpr_pace_way way = taste.pace.way;
        uint64_t speed = way == TPR_PACE_FRAMES ? 9000
                         : i % 4 == 0 ? 20000 : 6000;

        tpr_taste_ended(&taste, way, MEGABYTE,
                        MEGABYTE * UINT64_C(1000) / speed);
        pulled += way == TPR_PACE_PULLED;
    }
    ck_assert_uint_le(pulled, 200);
}
END_TEST

/* A stream that follows the peer's goes as that does, and nothing is learned
 * from it, however slow; then what is known of before counts. */
START_TEST(led_stream_is_not_judged)
{
    static const uint64_t speed[2] = { 9000, 4000 }, led[2] = { 500, 500 };
    struct tpr_pace pace = { 0 };
    uint64_t clock = 1000, known[2];

    streams(&pace, &clock, 20, speed);
    ck_assert_int_eq(pace.way, TPR_PACE_FRAMES);
    known[0] = pace.speed[0];
    known[1] = pace.speed[1];
    for (unsigned i = 0; i < 200; i++) {
        enum tpr_pace_way way = i < 100 ? TPR_PACE_PULLED : TPR_PACE_FRAMES;

        /* Without a cpu for each nobody helps. */
        ck_assert_int_eq(tpr_pace_lead(&pace, i < 50 ? TPR_PACE_SHARED : way),
                         way);
        stream(&pace, &clock, 16, led);
        ck_assert_int_eq(pace.way, way);
    }
    ck_assert_uint_eq(pace.speed[0], known[0]);
    ck_assert_uint_eq(pace.speed[1], known[1]);
    tpr_pace_lead(&pace, TPR_PACE_PULLED);
    ck_assert_int_eq(tpr_pace_unled(&pace), TPR_PACE_PULLED);
    streams(&pace, &clock, 4, speed);
    ck_assert_int_eq(pace.way, TPR_PACE_FRAMES);
}
END_TEST

START_TEST(sizes_have_classes)
{
    ck_assert_uint_eq(tpr_pace_class(TPR_PACE_FIRST), 0);
    ck_assert_uint_eq(tpr_pace_class(2 * TPR_PACE_FIRST - 1), 0);
    ck_assert_uint_eq(tpr_pace_class(2 * TPR_PACE_FIRST), 1);
    ck_assert_uint_eq(tpr_pace_class(TPR_SHARE_LEAST), 3);
    ck_assert_uint_eq(tpr_pace_class(MEGABYTE), 7);
    ck_assert_uint_eq(tpr_pace_class(UINT64_MAX), TPR_PACES - 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pace");
    TCase *tests = tcase_create("pace");

    tcase_add_test(tests, faster_way_is_taken);
    tcase_add_test(tests, change_is_noticed);
    tcase_add_test(tests, cold_frames_are_not_judged);
    tcase_add_test(tests, fastest_of_three_is_taken);
    tcase_add_test(tests, cold_beginning_is_forgotten);
    tcase_add_test(tests, pulls_are_judged_by_shared_ones);
    tcase_add_test(tests, cold_pull_is_measured_again);
    tcase_add_test(tests, trials_are_short);
    tcase_add_test(tests, hopeless_trials_are_shorter);
    tcase_add_test(tests, long_stream_is_measured_too);
    tcase_add_test(tests, batches_are_measured);
    tcase_add_test(tests, phases_of_a_burst_are_no_change);
    tcase_add_test(tests, what_arrived_meanwhile_does_not_count);
    tcase_add_test(tests, what_waited_for_others_does_not_count);
    tcase_add_test(tests, what_changed_is_forgotten);
    tcase_add_test(tests, one_begins_as_it_should);
    tcase_add_test(tests, frames_are_tried_to_an_end);
    tcase_add_test(tests, single_messages_are_no_stream);
    tcase_add_test(tests, short_bursts_are_no_stream);
    tcase_add_test(tests, time_matters_only_where_it_is_asked_for);
    tcase_add_test(tests, single_messages_come_as_their_receiver_wishes);
    tcase_add_test(tests, single_messages_warm_the_memory_of_frames);
    tcase_add_test(tests, one_disturbed_lap_is_no_change);
    tcase_add_test(tests, one_fast_message_of_a_lap_says_nothing);
    tcase_add_test(tests, led_stream_is_not_judged);
    tcase_add_test(tests, sizes_have_classes);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
