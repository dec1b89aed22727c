/* SPDX-License-Identifier: BSD-3-Clause */
/* See pace.h. */
#include "config.h"

#include <stdbool.h>

#include "runtime/pace.h"

enum {
    /* A lap is from one message that came alone to the next, for what a program
     * does when it begins is not what it does later: at least so many bytes and
     * messages, and no more than these bytes. */
    PACE_LEAST = 2 * 1024 * 1024, PACE_COUNT = 4,
    PACE_MOST = 64 * 1024 * 1024,
    PACE_RUN = 3,                  /* messages behind the first: a stream */
    PACE_TRIAL = 2,                /* laps that a way has at least */
    PACE_ALONE = 4,                /* messages that come alone make a lap */
    PACE_PATIENCE = 32, PACE_PATIENCE_MOST = 4096
};

unsigned tpr_pace_class(uint64_t bytes)
{
    unsigned class = 0;

    for (bytes /= 2 * TPR_PACE_LEAST; bytes > 0 && class < TPR_PACES - 1;
         bytes /= 2)
        class++;
    return class;
}

static void pace_begin(struct tpr_pace *pace, uint64_t now)
{
    pace->since = now;
    pace->bytes = 0;
    pace->count = 0;
}

static void pace_turn(struct tpr_pace *pace)
{
    pace->way = pace->way == TPR_PACE_FRAMES ? TPR_PACE_PULLED
                                            : TPR_PACE_FRAMES;
    pace->laps = 0;
    pace->since = 0;
}

/* A lap is over: who is faster?  By a little does not count, or it would go to
 * and fro. */
static void pace_judge(struct tpr_pace *pace, uint64_t speed)
{
    uint64_t *mine = &pace->speed[pace->way];
    uint64_t *other = &pace->speed[pace->way == TPR_PACE_FRAMES];
    bool changed = *mine > 0 && (speed > *mine + *mine / 2
                                 || speed + speed / 2 < *mine);

    if (changed) {
        *other = 0;                /* it is another stream now */
        pace->patience = 0;
    }
    /* The first lap by a way touches for the first time what the others find
     * there; and one may have been disturbed. */
    if (*mine == 0 || changed || (pace->laps == 1 && speed > *mine))
        *mine = speed;
    else if (pace->laps != 1)
        *mine = (3 * *mine + speed) / 4;
    if (pace->patience == 0)
        pace->patience = PACE_PATIENCE;
    if (++pace->laps < PACE_TRIAL)
        return;
    if (*other == 0 || *other > *mine + *mine / 16) {
        pace_turn(pace);
    } else if (pace->laps >= pace->patience) {
        if (pace->patience < PACE_PATIENCE_MOST)
            pace->patience *= 2;
        pace_turn(pace);
    }
}

/* The lap is over if there was enough of it. */
static void pace_lap(struct tpr_pace *pace)
{
    uint64_t took = (pace->last - pace->since) / 1000 + 1;

    if (pace->since > 0 && pace->count >= PACE_COUNT
        && pace->bytes >= PACE_LEAST)
        pace_judge(pace, pace->bytes / took + 1);
}

bool tpr_pace_first(struct tpr_pace *pace, uint64_t now)
{
    bool several = pace->run >= PACE_RUN;

    pace_lap(pace);
    pace->run = 0;
    pace_begin(pace, now);
    return several;
}

void tpr_pace_ended(struct tpr_pace *pace, enum tpr_pace_way way,
                    uint64_t bytes, uint64_t now)
{
    if (way != pace->way)
        return;                    /* of the lap before */
    if (pace->since == 0) {
        pace_begin(pace, now);
        return;
    }
    pace->last = now;
    pace->bytes += bytes;
    pace->count++;
    if (pace->bytes < PACE_MOST || pace->count < PACE_COUNT)
        return;
    pace_lap(pace);
    if (pace->since > 0)
        pace_begin(pace, now);
}

bool tpr_taste_prefer(struct tpr_taste *taste, enum tpr_pace_way way)
{
    if (taste->count > 0 || taste->pace.patience > 0)
        return false;
    taste->pace.way = way;
    return true;
}

/* The best of a lap counts, for what disturbs only makes it longer.  The first
 * frame had been copied when its message was seen; the others' copies overlap
 * with those of the reader. */
bool tpr_taste_ended(struct tpr_taste *taste, enum tpr_pace_way way,
                     uint64_t bytes, uint64_t frame, uint64_t ns)
{
    struct tpr_pace *pace = &taste->pace;
    uint64_t speed;

    if (way == pace->way) {
        if (way == TPR_PACE_FRAMES)
            ns += ns * frame / bytes;
        speed = bytes * 1000 / (ns + 1) + 1;
        if (speed > taste->best)
            taste->best = speed;
        if (++taste->count == PACE_ALONE) {
            pace_judge(pace, taste->best);
            taste->best = 0;
            taste->count = 0;
        }
    }
    return pace->way == TPR_PACE_PULLED;
}
