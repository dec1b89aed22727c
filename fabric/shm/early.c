/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The line that our answer begins in, asked for before there is an answer.
 *
 * Who waits for it looks at that line all the time, so it is in the caches of
 * both, and the store that announces a record waits until the other core has
 * given it up: half of the time that a short record takes where cores are far
 * apart.  Whoever asks for the line as soon as he sees what he will answer has
 * it when he comes to that store.  But if that comes a little too late, he who
 * waits has fetched the line again, and it must be asked for twice.  How late
 * is too late depends on the processor, on where the two cpus are, which a host
 * may change while they run, and on what the program does with a record; so
 * both are tried, and what is better is done for a while.  Not for records of
 * more than four lines: their reader waits for those, which is too late.
 */
#include "config.h"

#include "fabric/shm/shm.h"

enum {
    EARLY_LONGEST = 4 * TPB_CACHE_LINE - SHM_HEADER,   /* frame */
    EARLY_TRIED = 64 * 1024,       /* bytes of a trial */
    EARLY_TRIALS = 2 * SHM_EARLY_TRIALS,   /* without, with, without, ... */
    EARLY_KEPT = 1024 * 1024,      /* bytes until they are repeated, twice as
                                      many each time, ... */
    EARLY_KEPT_MOST = 64 * 1024 * 1024,    /* ... up to that; */
    EARLY_OTHER = 4                /* or after so many laps, one after the
                                      other, that took another time, or ended
                                      with records of another length */
};

/* Of the trials with and without.  What is as often good as bad is not good. */
static uint64_t early_median(const struct shm_early *early, bool on)
{
    const uint64_t *took = early->tried[on];
    uint64_t low = took[0] < took[1] ? took[0] : took[1];
    uint64_t high = took[0] < took[1] ? took[1] : took[0];

    return took[2] < low ? low : took[2] > high ? high : took[2];
}

static void early_begin(struct shm_early *early)
{
    early->on = false;
    early->trial = 0;
    early->bytes = early->took = 0;
    early->other = 0;
}

/*
 * Records of another length: what was found does not hold for them.  One of the
 * two has his trials after the other's: asked for by both the lines may come
 * too late where they do not if one alone does it.
 */
static bool early_fits(struct shm_early *early, uint32_t record, int side)
{
    uint32_t length = shm_length(record);

    if (length == early->length) {
        early->strange = 0;
        early->pair = shm_ring_two(record);
        return true;
    }
    if (early->length > 0 && ++early->strange < EARLY_OTHER)
        return false;              /* such as credit */
    *early = (struct shm_early){
        .length = length, .kept = EARLY_KEPT,
        .left = side == 0 ? 0 : EARLY_TRIALS * EARLY_TRIED
    };
    return false;
}

/* It has to save a 32nd. */
static void early_decide(struct shm_early *early)
{
    uint64_t with = early_median(early, true);

    early->without = early_median(early, false);
    early->on = with + with / 32 < early->without;
    early->left = early->kept;
    if (early->kept < EARLY_KEPT_MOST)
        early->kept *= 2;
}

static void early_try(struct shm_early *early)
{
    if (early->bytes < EARLY_TRIED)
        return;
    early->tried[early->on][early->trial / 2]
        = shm_per_mib(early->took, early->bytes);
    early->bytes = early->took = 0;
    early->on = ++early->trial % 2 == 1;
    if (early->trial == EARLY_TRIALS)
        early_decide(early);
}

/*
 * It is as it was found to be better, for a while; not for so long if it is not
 * better any more, or if the cpus are elsewhere now, or the program does
 * something else.
 */
static void early_keep(struct shm_early *early, uint32_t extent, uint64_t took)
{
    uint64_t now = shm_per_mib(took, extent), least = early->without / 2;
    uint64_t most = early->without + (early->on ? 0 : early->without / 4);

    early->other = now < least || now > most ? early->other + 1 : 0;
    if (early->other < EARLY_OTHER && early->bytes < early->left)
        return;
    if (early->bytes < EARLY_KEPT) {
        early->on = false;
        early->left = EARLY_KEPT;
        return;
    }
    if (early->other >= EARLY_OTHER)
        early->kept = EARLY_KEPT;
    early_begin(early);
}

void shm_early_lap(struct shm_conn *conn, uint64_t took)
{
    struct shm_early *early = &conn->early;

    if (!early_fits(early, conn->record, conn->side)) {
        shm_early_again(conn);
        return;
    }
    if (conn->record > EARLY_LONGEST)
        return;
    if (early->without == 0 && early->left > 0) {
        early->left -= early->left < conn->out.extent ? early->left
                                                      : conn->out.extent;
        return;
    }
    early->bytes += conn->out.extent;
    early->took += took;
    if (early->trial < EARLY_TRIALS)
        early_try(early);
    else
        early_keep(early, conn->out.extent, took);
}

void shm_early_again(struct shm_conn *conn)
{
    if (conn->early.trial < EARLY_TRIALS)
        conn->early.bytes = conn->early.took = 0;
}

void shm_early_end(struct shm_conn *conn)
{
    conn->early = (struct shm_early){ .length = 0 };
}
