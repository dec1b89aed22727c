/* SPDX-License-Identifier: BSD-3-Clause */
/* See pace.h. */
#include "config.h"

#include <stdbool.h>
#include <string.h>

#include "runtime/pace.h"

enum {
    /* A lap is a burst, from one message that came alone to the next, for what
     * a program does when it begins is not what it does later: at least so many
     * bytes and messages.  One of more than these bytes and that many messages,
     * or of those bytes, is of several laps.  Who waits for many to end before
     * he sends as many more has none that is even: twice as many bytes do. */
    PACE_LEAST = 2 * 1024 * 1024, PACE_COUNT = 4,
    PACE_MOST = 64 * 1024 * 1024, PACE_BURST = 64,
    PACE_MOST_OF_ALL = 256 * 1024 * 1024,
    PACE_COLD = 64 * 1024 * 1024,  /* bytes that need not count, at most */
    PACE_TRIAL = 2,                /* laps that a way has at least */
    PACE_ALONE = 4,                /* messages that come alone make a lap */
    PACE_UNTRIED = 4 * 1024 * 1024,    /* bytes of them in frames that do not
                                          count first: the longest ring, and
                                          what goes before it is used */
    PACE_WARM = 1024,              /* messages of a lap that say it at once */
    PACE_PATIENCE = 32, PACE_PATIENCE_MOST = 4096
};

unsigned tpr_pace_class(uint64_t bytes)
{
    unsigned class = 0;

    for (bytes /= 2 * TPR_PACE_FIRST; bytes > 0 && class < TPR_PACES - 1;
         bytes /= 2)
        class++;
    return class;
}

static void pace_begin(struct tpr_pace *pace, uint64_t now)
{
    pace->lap = (struct tpr_lap){ .since = now };
    pace->begun = 0;
}

static void pace_turn(struct tpr_pace *pace, enum tpr_pace_way way)
{
    pace->way = way;
    pace->laps = 0;
    pace->lap.since = pace->burst.since = 0;
    pace->uneven = false;
    pace->late = 0;
}

void tpr_pace_prefer(struct tpr_pace *pace, enum tpr_pace_way way)
{
    if (pace->patience == 0 && pace->lap.since == 0)
        pace->way = way;
}

void tpr_pace_share(struct tpr_pace *pace, bool shares)
{
    if (shares)
        tpr_pace_prefer(pace, TPR_PACE_SHARED);
    else if (pace->way == TPR_PACE_SHARED)
        pace_turn(pace, TPR_PACE_FRAMES);
    pace->shares = shares;
}

static unsigned pace_ways(const struct tpr_pace *pace)
{
    return pace->shares ? TPR_PACE_WAYS : TPR_PACE_SHARED;
}

static uint64_t pace_best(const struct tpr_pace *pace)
{
    uint64_t best = 0;

    for (unsigned i = 0; i < TPR_PACE_WAYS; i++)
        if (pace->speed[i] > best)
            best = pace->speed[i];
    return best;
}

/* Is it worth a trial, as it has not been measured?  A pull with the sender's
 * help says of one without that it is not where frames are far ahead, unless
 * one was measured while all was cold. */
static bool pace_is_open(const struct tpr_pace *pace, enum tpr_pace_way way)
{
    uint64_t shared = pace->speed[TPR_PACE_SHARED];

    return pace->speed[way] == 0
           && (way != TPR_PACE_PULLED || way == pace->first || shared == 0
               || pace_best(pace) <= shared + shared / 3);
}

/* Of the ways but the lap's one that is to be measured, or the fastest one. */
static enum tpr_pace_way pace_rival(const struct tpr_pace *pace)
{
    static const enum tpr_pace_way order[TPR_PACE_WAYS] = {
        TPR_PACE_FRAMES, TPR_PACE_SHARED, TPR_PACE_PULLED
    };
    unsigned ways = pace_ways(pace);
    enum tpr_pace_way best = pace->way;

    for (unsigned i = 0; i < TPR_PACE_WAYS; i++)
        if (order[i] != pace->way && order[i] < ways
            && pace_is_open(pace, order[i]))
            return order[i];
    for (unsigned i = 1; i < ways; i++) {
        enum tpr_pace_way way = (pace->way + ways - i) % ways;

        if (best == pace->way || pace->speed[way] > pace->speed[best])
            best = way;
    }
    return best;
}

/* Out of patience: the one whose turn it is to be tried again. */
static enum tpr_pace_way pace_probe(struct tpr_pace *pace)
{
    unsigned ways = pace_ways(pace);

    do
        pace->probed = (pace->probed + 1) % ways;
    while (pace->probed == pace->way);
    return pace->probed;
}

/*
 * The first laps of all are slow by any way: pages and lines are touched for
 * the first time.  So what was measured then counts no more as soon as the
 * others have been measured, unless the best is half as fast again.
 */
static void pace_doubt(struct tpr_pace *pace)
{
    if (pace->doubted || pace->way == pace->first)
        return;
    for (unsigned i = 0; i < pace_ways(pace); i++)
        if (pace_is_open(pace, i))
            return;
    pace->doubted = true;
    if (pace->speed[pace->first] > pace_best(pace) / 3 * 2)
        pace->speed[pace->first] = 0;
}

/* A lap is over: who is faster?  By a little does not count, or it would go to
 * and fro. */
static void pace_judge(struct tpr_pace *pace, uint64_t speed, uint32_t count)
{
    uint64_t *mine = &pace->speed[pace->way], other, best;
    bool faster = speed > *mine + *mine / 2 && pace->laps != 1;
    bool slower = speed + speed / 2 < *mine;
    bool changed = *mine > 0 && (faster || (slower && pace->slow));
    enum tpr_pace_way rival;

    pace->slow = slower && !changed;
    if (pace->slow)                /* only it, maybe: something disturbed it */
        return;
    if (changed) {                 /* it is another stream now */
        memset(pace->speed, 0, sizeof(pace->speed));
        pace->patience = 0;
    }
    if (pace_best(pace) == 0) {
        pace->first = pace->way;
        pace->doubted = false;
    }
    if (pace->way == pace->first && count > PACE_WARM)
        pace->doubted = true;      /* most of it was not cold */
    /* The first lap by a way touches for the first time what the others find
     * there; and one may have been disturbed. */
    if (*mine == 0 || changed || (pace->laps == 1 && speed > *mine))
        *mine = speed;
    else if (pace->laps != 1)
        *mine = (3 * *mine + speed) / 4;
    if (pace->patience == 0)
        pace->patience = PACE_PATIENCE;
    best = pace_best(pace);
    pace_doubt(pace);
    rival = pace_rival(pace);
    other = pace->speed[rival];
    /* Far behind after one lap is enough; a third is not, for what was written
     * for another way lies where this one does not want it. */
    if (++pace->laps < PACE_TRIAL && best <= speed + speed / 3 * 2)
        return;
    if (other == 0 || other > *mine + *mine / 16) {
        pace_turn(pace, rival);
    } else if (pace->laps >= pace->patience) {
        if (pace->patience < PACE_PATIENCE_MOST)
            pace->patience *= 2;
        pace_turn(pace, pace_probe(pace));
    }
}

/* It is over, and counts if there was enough of it. */
static void pace_lap(struct tpr_pace *pace, const struct tpr_lap *lap)
{
    uint64_t took = (pace->last - lap->since) / 1000 + 1;

    if (lap->since > 0 && lap->count >= PACE_COUNT && lap->bytes >= PACE_LEAST)
        pace_judge(pace, lap->bytes / took + 1, lap->count);
}

/* Messages are measured from here on. */
static void pace_burst(struct tpr_pace *pace, uint64_t now)
{
    pace->late = 0;
    pace_begin(pace, now);
    pace->burst = pace->lap;
    pace->begun = 1;
    pace->uneven = false;
}

/* Are they enough for a lap? */
static bool pace_is_stream(const struct tpr_pace *pace)
{
    return pace->run + 1 >= PACE_COUNT && pace->run_bytes >= PACE_LEAST;
}

/* A burst that none of the last size leads to is measured, if it becomes one,
 * from where it does. */
bool tpr_pace_is_timed(const struct tpr_pace *pace, bool first)
{
    return first ? pace_is_stream(pace) : !pace->stream;
}

bool tpr_pace_first(struct tpr_pace *pace, uint64_t bytes, uint64_t now)
{
    /* If none of its laps was. */
    if (!pace->led)
        pace_lap(pace, &pace->burst);
    pace->stream = pace_is_stream(pace);
    pace->run = 0;
    pace->run_bytes = bytes;
    pace_burst(pace, now);
    return pace->stream;
}

bool tpr_pace_next(struct tpr_pace *pace, uint64_t bytes, uint64_t now)
{
    pace->run++;
    pace->run_bytes += bytes;
    if (!pace->stream && pace_is_stream(pace)) {
        pace->stream = true;
        pace_burst(pace, now);
    } else {
        pace->begun++;
    }
    return pace->stream;
}

static bool pace_is_long(const struct tpr_lap *lap)
{
    return lap->bytes >= PACE_MOST_OF_ALL
           ? lap->count >= PACE_COUNT
           : lap->bytes >= PACE_MOST && lap->count >= PACE_BURST;
}

/* Has a trial shown, in a quarter of a lap, that its way takes twice as long as
 * the best one?  The rest of the lap could hardly make up for that. */
static bool pace_is_hopeless(const struct tpr_pace *pace)
{
    const struct tpr_lap *lap = &pace->lap;
    uint64_t took = (pace->last - lap->since) / 1000 + 1;

    return pace->laps == 0 && pace_best(pace) > pace->speed[pace->way]
           && lap->bytes >= PACE_MOST / 4
           && lap->count >= PACE_BURST / 4
           && 2 * (lap->bytes / took) < pace_best(pace);
}

static void pace_add(struct tpr_lap *lap, uint64_t bytes)
{
    lap->bytes += bytes;
    lap->count++;
}

/* Are as many sent as end?  Not where a burst begins, or ends: the program has
 * more to do for each then, or less. */
static bool pace_is_even(const struct tpr_pace *pace)
{
    uint32_t few = pace->lap.count / 8;

    return pace->begun + few >= pace->lap.count
           && pace->begun <= pace->lap.count + few;
}

/*
 * More were sent than ended, as where a burst begins: those that are under way
 * may have arrived while the program wrote them, and end one after the other
 * as fast as it writes as many again.  The next lap begins behind them.
 */
static void pace_settle(struct tpr_pace *pace)
{
    if (pace->begun <= pace->lap.count)
        return;
    pace->late = pace->begun - pace->lap.count;
    pace->lap.since = 0;
}

enum tpr_pace_way tpr_pace_lead(struct tpr_pace *pace, enum tpr_pace_way way)
{
    if (way == TPR_PACE_SHARED && !pace->shares)
        way = TPR_PACE_PULLED;
    if (!pace->led || pace->way != way)
        pace_turn(pace, way);
    pace->led = true;
    return way;
}

void tpr_pace_ended(struct tpr_pace *pace, enum tpr_pace_way way,
                    uint64_t bytes, uint64_t now)
{
    if (pace->led)
        return;
    /* One of the lap before.  Meanwhile others are sent, this way, which may
     * all be there when the last of them ends, and then end at once. */
    if (way != pace->way) {
        pace->late++;
        return;
    }
    if (pace->late > 0) {
        pace->late--;
        if (pace->burst.since > 0) {
            pace->last = now;
            pace_add(&pace->burst, bytes);
        }
        return;
    }
    if (pace->lap.since == 0) {
        pace_begin(pace, now);
        return;
    }
    pace->last = now;
    pace_add(&pace->lap, bytes);
    pace_add(&pace->burst, bytes);
    if (!pace_is_long(&pace->lap)
        && !(pace_is_hopeless(pace) && pace_is_even(pace)))
        return;
    if (pace_is_even(pace)
        || (pace->uneven && pace->lap.bytes / 2 >= PACE_MOST_OF_ALL)) {
        pace->burst.since = 0;
        pace_lap(pace, &pace->lap);
    } else if (pace->uneven) {
        return;                    /* by and by it is, or it is long enough */
    } else {
        pace->uneven = true;
        pace_settle(pace);
    }
    if (pace->lap.since > 0)
        pace_begin(pace, now);
}

bool tpr_pace_skip(struct tpr_pace *pace, uint64_t bytes)
{
    if (pace->way != TPR_PACE_FRAMES || pace->cold >= PACE_COLD)
        return false;
    pace->cold += bytes;
    pace_turn(pace, TPR_PACE_FRAMES);
    return true;
}

void tpr_pace_forget(struct tpr_pace *pace, enum tpr_pace_way way)
{
    pace->speed[way] = 0;
    if (pace->way == way)
        pace_turn(pace, way);
}

bool tpr_taste_prefer(struct tpr_taste *taste, enum tpr_pace_way way)
{
    if (tpr_taste_is_known(taste))
        return false;
    taste->pace.way = way;
    return true;
}

/*
 * The second best of a lap counts: what disturbs only makes it longer, but
 * where cpus are shared the best may be of one that ran when others did not.
 * While others were pulled the caches have lost the memory of the frames: until
 * it has been gone through they are slow.
 */
bool tpr_taste_ended(struct tpr_taste *taste, enum tpr_pace_way way,
                     uint64_t bytes, uint64_t ns)
{
    struct tpr_pace *pace = &taste->pace;
    uint64_t speed;

    if (way == pace->way && way == TPR_PACE_FRAMES
        && taste->warm < PACE_UNTRIED) {
        taste->warm += bytes;
    } else if (way == pace->way) {
        speed = bytes * 1000 / (ns + 1) + 1;
        if (speed > taste->best) {
            taste->second = taste->best;
            taste->best = speed;
        } else if (speed > taste->second) {
            taste->second = speed;
        }
        if (++taste->count == PACE_ALONE) {
            pace_judge(pace, taste->second, PACE_ALONE);
            taste->best = taste->second = 0;
            taste->count = 0;
            if (pace->way != way || pace->slow)
                taste->warm = 0;
        }
    }
    return pace->way == TPR_PACE_PULLED;
}
