/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How fast each rail is, and which one gets the next frame.  A rail that has
 * big frames under way all the time carries what it can: that is a sample.
 */
#include "config.h"

#include "fabric/rails/rails.h"

enum {
    PACE_UNKNOWN = 10000,          /* Mb/s of an interface that tells none */
    PACE_SAMPLE = 256 * 1024,      /* bytes of a sample */
    PACE_LEAST = 256 * 1024,       /* may be under way on any rail */
    PACE_UNMEASURED = 512 * 1024,  /* ... on one whose speed is a guess */
    PACE_MOST = 4 * 1024 * 1024
};
#define PACE_AHEAD 0.05            /* seconds of work that a rail gets */
#define PACE_WEIGHT 0.3            /* of a new sample */
#define PACE_FORGOTTEN 200000000u  /* ns: such an old estimate is tried */

void rails_pace_init(struct rails_pace *pace, uint32_t megabits)
{
    memset(pace, 0, sizeof(*pace));
    pace->rate = (megabits > 0 ? megabits : PACE_UNKNOWN) * 125000.0;
}

void rails_pace_sent(struct rails_pace *pace, size_t size, uint64_t now)
{
    if (pace->inflight == 0)
        pace->last_moved = now;
    pace->inflight += size;
    pace->last_sent = now;
    if (size < RAILS_BIG)
        return;
    if (pace->big == 0) {
        pace->since = now;
        pace->bytes = 0;
    }
    pace->big += size;
}

void rails_pace_acked(struct rails_pace *pace, size_t size, uint64_t now)
{
    double sample;
    bool slow;

    pace->inflight -= size;
    pace->last_moved = now;
    if (size < RAILS_BIG)
        return;
    pace->big -= size;
    pace->bytes += size;
    if (now <= pace->since)
        return;
    sample = (double)pace->bytes * 1e9 / (double)(now - pace->since);
    if (pace->bytes < PACE_SAMPLE) {
        /* Too little to keep it busy: it is as fast at least. */
        if (pace->big == 0 && pace->measured && sample > pace->rate)
            pace->rate = sample;
        return;
    }
    /* One that has become so slow takes as much as it gets until that is known;
     * briefer ones may be those of a process that had no cpu. */
    slow = sample < pace->rate / 2
           && (double)(now - pace->since) > PACE_AHEAD * 1e9;
    pace->rate = pace->measured && !slow
                     ? pace->rate * (1 - PACE_WEIGHT) + sample * PACE_WEIGHT
                     : sample;
    pace->measured = true;
    pace->since = now;
    pace->bytes = 0;
}

static uint64_t pace_budget(const struct rails_pace *pace)
{
    double bytes = pace->rate * PACE_AHEAD;

    if (!pace->measured)
        return PACE_UNMEASURED;
    return bytes < PACE_LEAST ? PACE_LEAST
           : bytes > PACE_MOST ? PACE_MOST : (uint64_t)bytes;
}

int rails_pace_choose(struct rails_pace *const pace[], int count, size_t size,
                      uint64_t now)
{
    double least = 0;
    int best = -1;

    for (int i = 0; i < count; i++) {
        double finish;

        if (pace[i] == NULL)
            continue;
        /* One that was too slow may be fast by now. */
        if (size >= RAILS_BIG && pace[i]->inflight == 0
            && now - pace[i]->last_sent > PACE_FORGOTTEN)
            return i;
        finish = (double)(pace[i]->inflight + size) / pace[i]->rate;
        if (best < 0 || finish < least) {
            best = i;
            least = finish;
        }
    }
    if (best >= 0 && pace[best]->inflight > 0
        && pace[best]->inflight + size > pace_budget(pace[best]))
        return -1;
    return best;
}
