/* SPDX-License-Identifier: BSD-3-Clause */
/* Trials, and the copies between them. */
#include "config.h"

#include "runtime/base/way.h"

#define WAY_FIRST (UINT64_C(8) << 20)  /* bytes before the first trial: new
                                          memory has no other reader yet */
#define WAY_AGAIN (UINT64_C(8) << 20)  /* ... to one that is to confirm it */
#define WAY_HELD (UINT64_C(256) << 20) /* ... and to others */
#define WAY_MOVED (UINT64_C(4) << 20)  /* each way, are enough for a trial: one
                                          lap of the longest ring to settle,
                                          and one more */
/* The consumer's.  It takes two laps until all lines lie as they do when they
 * are read that way: half a lap says that there is no difference.  Of short and
 * long copies, not while the producer's first trials are. */
#define WAY_FETCH_FIRST (UINT64_C(2) << 20)
#define WAY_FETCH_FIRST_LONG (UINT64_C(26) << 20)
#define WAY_FETCH_MOVED (UINT64_C(6) << 20)
#define WAY_FETCH_SETTLES (UINT64_C(4) << 20)

enum {
    WAY_FETCH_ANSWERS = 4,
    WAY_SETTLES = 32,              /* copies of a trial, each way, that meet
                                      what the other way has left */
    WAY_TRIES = WAY_SETTLES + 96,
    WAY_TRIES_LEAST = WAY_SETTLES + 16,
    WAY_IDLE_NS = 20000,           /* a pause between two that says nothing */
    WAY_PAUSES = 3,                /* ... of itself; so many do */
    WAY_BURST = 1024 * 1024        /* bytes before it for which an answer may
                                      take longer, half a nanosecond each */
};

void tpb_way_init(struct tpb_way *way)
{
    *way = (struct tpb_way){ .left = WAY_FIRST };
}

static void way_copy(const struct tpb_way *way, bool other, void *to,
                     const void *from, size_t length)
{
    if (!other)
        tpb_copy_long(to, from, length);
    else if (way->kind == TPB_WAY_PIECES)
        tpb_copy_pieces(to, from, length);
    else
        tpb_copy_past(to, from, length);
}

/* Copies of about one length went either way: what comes with each of them is
 * the same. */
static bool way_comparable(const struct tpb_way *way)
{
    uint64_t lengths[2];

    if (way->copies[0] == 0 || way->copies[1] == 0)
        return false;
    for (int i = 0; i < 2; i++)
        lengths[i] = way->bytes[i] / way->copies[i];
    return lengths[0] <= lengths[1] + lengths[1] / 4
           && lengths[1] <= lengths[0] + lengths[0] / 4;
}

/* What the other way takes of what this one does, a byte. */
static double way_ratio(const struct tpb_way *way)
{
    bool now = way->other;

    return (double)way->took[!now] / (double)(way->bytes[!now] + 1)
           * (double)way->bytes[now] / (double)(way->took[now] + 1);
}

/*
 * So much of the time must the other way take at most.  Where there were pauses
 * somebody waited for a message that came alone, and its reader's time, which
 * its writer does not see, counts as well: he finds it later in memory than in
 * a cache.
 */
static double way_limit(const struct tpb_way *way)
{
    if (way->pauses < WAY_PAUSES || way->kind != TPB_WAY_PAST)
        return 0.9;
    return way->other ? 1.6 : 0.5;
}

/* Both were tried: the other one is taken if it saves a tenth twice, or far
 * more. */
void tpb_way_decide(struct tpb_way *way)
{
    bool said = way_comparable(way);
    double ratio = way_ratio(way);
    double limit = way_limit(way);
    bool better = said && ratio < limit;
    bool turn = better && (ratio < limit / 2 || way->doubted);
    /* If nothing counted they come alone, and will. */
    bool again = said ? better && !turn : way->copies[0] + way->copies[1] > 0;

    *way = (struct tpb_way){ .kind = way->kind,
                             .other = way->other ^ turn,
                             .changes = way->changes + turn,
                             .trials = way->trials + 1,
                             .doubted = said ? better && !turn : way->doubted,
                             .left = again ? WAY_AGAIN : WAY_HELD };
}

/* Did enough go the way that is tried, to count from now on? */
static bool way_settled(const struct tpb_way *way, uint32_t tries)
{
    return way->kind == TPB_WAY_PAST ? tries >= WAY_SETTLES
                                     : way->moved >= WAY_FETCH_SETTLES;
}

/* ... and to be compared? */
static bool way_is_tried(const struct tpb_way *way, uint32_t tries)
{
    if (way->kind != TPB_WAY_PAST)
        return way->moved >= WAY_FETCH_MOVED;
    return tries >= WAY_TRIES
           || (tries >= WAY_TRIES_LEAST && way->moved >= WAY_MOVED);
}

/* Does the program compute meanwhile?  While it waits for the answer to what
 * was copied before, that time belongs to the copies. */
static bool way_is_pause(const struct tpb_way *way, uint64_t took)
{
    uint64_t burst = way->burst < WAY_BURST ? way->burst : WAY_BURST;

    return took >= WAY_IDLE_NS + burst / 2;
}

static void way_try(struct tpb_way *way, void *to, const void *from,
                    size_t length)
{
    bool second = way->first > 0, other = way->other ^ second;
    uint64_t begun = way->last, took;
    uint32_t tries = way->tried - way->first;

    way_copy(way, other, to, from, length);
    way->last = tpb_now();
    took = way->last - begun;
    if (way_is_pause(way, took)) {
        way->pauses += way->tried > 0;
    } else if (way_settled(way, tries)) {
        way->copies[other]++;
        way->took[other] += took;
        way->bytes[other] += length;
    }
    if (took >= WAY_IDLE_NS)
        way->burst = 0;
    way->burst += length;
    way->tried++;
    way->moved += length;
    if (!way_is_tried(way, tries + 1))
        return;
    way->moved = 0;
    if (second)
        tpb_way_decide(way);
    else
        way->first = way->tried;
}

/* Is that copy one of a trial? */
static inline bool way_is_due(const struct tpb_way *way, size_t length)
{
    return length > way->left || way->tried > 0;
}

void tpb_way_copy(struct tpb_way *way, void *to, const void *from,
                  size_t length)
{
    if (TPB_UNLIKELY(way_is_due(way, length))) {
        way_try(way, to, from, length);
        return;
    }
    way->left -= length;
    way_copy(way, way->other, to, from, length);
}

/* ---- a consumer's -------------------------------------------------------- */

void tpb_fetch_init(struct tpb_fetch *fetch)
{
    *fetch = (struct tpb_fetch){ .tries = 0 };
    for (int i = 0; i < 2; i++)
        fetch->ways[i] = (struct tpb_way){
            .kind = TPB_WAY_PIECES, .other = true,
            .left = i == 0 ? WAY_FETCH_FIRST : WAY_FETCH_FIRST_LONG };
}

void tpb_fetch_long(struct tpb_fetch *fetch, void *to, const void *from,
                    size_t length)
{
    struct tpb_way *way = &fetch->ways[length >= TPB_COPY_WHOLE];

    if (length >= TPB_COPY_WHOLE && fetch->since < WAY_FETCH_ANSWERS) {
        fetch->since++;
        tpb_copy_long(to, from, length);
        return;
    }
    fetch->tries += way_is_due(way, length);
    tpb_way_copy(way, to, from, length);
}
