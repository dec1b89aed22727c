/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How much of its memory a ring uses: a few pages at first, and as long as
 * its consumer keeps up; four times as much whenever that is too little; all of
 * it where it is busy, see ring.h.  As memory is what that costs, only a few
 * rings of an endpoint are wide at a time; one that was not busy lately makes
 * room for another, and gives its memory back.
 *
 * Where the two take turns with short records all of it may be worse than the
 * first few of them, which stay in the first-level cache of both: on some
 * processors these take three quarters of the time, on others half as much
 * again.  Nobody tells which; so both are tried.
 */
#include "config.h"

#include <errno.h>
#include <sys/mman.h>

#include "fabric/shm/shm.h"

enum {
    EXTENT_BUSY = 4 * 1024 * 1024, /* so many bytes ... */
    EXTENT_BUSY_NS = 16000000,     /* ... in less time: touching 2 MiB for the
                                      first time costs about as much as it
                                      brings with them */
    EXTENT_IDLE_NS = 100000000,    /* no lap of a wide one for so long */
    EXTENT_GROWTH = 4,
    EXTENT_RECORDS = 8,            /* it shall hold more than so many */
    EXTENT_SCARCE_NS = 1000000000, /* until it is tried again */
    EXTENT_TURNS = 4,              /* records that it holds where they are
                                      written in turns, at least */
    EXTENT_TRIED = 1024 * 1024,    /* bytes of a trial that is not wide */
    EXTENT_TRIALS = 2,             /* of each, of which the better one counts */
    EXTENT_KEPT = 16,              /* MiB until they are repeated, twice as
                                      many each time, ... */
    EXTENT_KEPT_MOST = 1024        /* ... up to that */
};

/* What a trial does next. */
enum extent_stage {
    EXTENT_IDLE, EXTENT_NARROW, EXTENT_COLD, EXTENT_WIDE, EXTENT_AGAIN,
    EXTENT_DECIDED
};

/* The pages between two offsets, if any. */
static void extent_drop(unsigned char *memory, uint64_t from, uint64_t to)
{
    uint64_t page = tpb_page();

    from = (from + page - 1) / page * page;
    to = to / page * page;
    if (from < to)
        (void)madvise(memory + from, to - from, MADV_REMOVE);
}

static uint64_t extent_later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/*
 * Gives back what is behind `least` and holds nothing.  What lies between the
 * consumer and us stays, and behind that the room of a record, which may be
 * reserved.  If the kernel keeps the rest, nothing else changes.
 */
static void extent_give_back(struct shm_producer *out, uint64_t least)
{
    uint64_t begin = shm_ring_begin(out->tail), head, room, rest;

    if (!shm_ring_look(out))
        return;
    head = out->head & (SHM_RING - 1);
    room = extent_later((out->tail & (SHM_RING - 1)) + SHM_BEHIND, least);
    rest = room;
    if (out->head >= begin) {
        extent_drop(out->memory, least, head);
    } else if (out->beyond != begin) {
        extent_drop(out->memory, room, head);
        rest = extent_later(room, out->used);
    }
    extent_drop(out->memory, rest, SHM_RING);
}

static void extent_narrow(struct shm_conn *conn)
{
    shm_ring_extend(&conn->out, SHM_SMALL);
    extent_give_back(&conn->out, SHM_SPAN);
}

/* False: there is no memory for it.  A kernel that cannot be asked, before
 * Linux 5.14, finds it as it is written to. */
static bool extent_extend(struct shm_conn *conn, uint32_t extent, uint64_t now)
{
    struct shm_producer *out = &conn->out;
    size_t length = extent + (extent < SHM_RING ? SHM_BEHIND : 0);

    if (madvise(out->memory, length, MADV_POPULATE_WRITE) != 0
        && errno != EINVAL) {
        /* What came before it was refused. */
        extent_give_back(out, out->extent + SHM_BEHIND);
        shm_endpoint(conn)->scarce = now + EXTENT_SCARCE_NS;
        return false;
    }
    shm_ring_extend(out, extent);
    return true;
}

static uint32_t extent_next(const struct shm_producer *out)
{
    return out->extent < SHM_NARROW / EXTENT_GROWTH
           ? out->extent * EXTENT_GROWTH : SHM_NARROW;
}

/* Would more help?  If the consumer is behind, or records are long: of each
 * time round it costs both sides a line or two that it begins again.  Or if it
 * could go on then. */
static bool extent_is_short(const struct shm_producer *out, size_t size,
                            size_t records)
{
    if (out->extent >= SHM_NARROW)
        return false;
    if (shm_ring_ends(out, shm_ring_next(out->tail, size)))
        return out->tail - out->head > out->extent / 2
               || size > out->extent / records;
    return !shm_ring_fits(out, size)
           && !shm_ring_may_jump(out, out->extent)
           && shm_ring_may_jump(out, extent_next(out));
}

void shm_extent_end(struct shm_conn *conn, size_t size)
{
    struct shm_producer *out = &conn->out;
    size_t records = shm_in_turns(conn) ? EXTENT_TURNS : EXTENT_RECORDS;

    conn->record = (uint32_t)size;
    if (!shm_ring_look(out) || !shm_ring_reaches(out, size))
        return;
    if (extent_is_short(out, size, records)) {
        uint64_t now = tpb_now();

        if (now >= shm_endpoint(conn)->scarce)
            (void)extent_extend(conn, extent_next(out), now);
    }
    if (!shm_ring_fits(out, size) && shm_ring_may_jump(out, out->extent))
        shm_ring_jump(out);
}

/* Have many bytes gone through it in a short time?  Time that was not used
 * counts, so it is the last ones that do. */
static bool extent_busy(struct shm_conn *conn, uint64_t now)
{
    if (now - conn->busy_since > EXTENT_BUSY_NS) {
        conn->busy_since = now;
        conn->busy_bytes = 0;
        return false;
    }
    conn->busy_bytes += conn->out.extent;
    return conn->busy_bytes >= EXTENT_BUSY;
}

/* Its place among the wide ones, or NULL.  It keeps that, and its memory, until
 * another needs it. */
static struct shm_conn **extent_place(struct shm_conn *conn)
{
    struct shm_endpoint *endpoint = shm_endpoint(conn);

    for (size_t i = 0; i < SHM_WIDE; i++)
        if (endpoint->wide[i] == conn)
            return &endpoint->wide[i];
    return NULL;
}

/* When it last needed its place.  Who is better without, and does without, may
 * lose that at once. */
static uint64_t extent_last(const struct shm_conn *conn)
{
    bool spare = conn->fit.stage == EXTENT_DECIDED && !conn->fit.wide
                 && !shm_ring_wide(&conn->out);

    return spare ? 0 : conn->lapped;
}

/* All of its memory, if there is some to be had. */
static bool extent_widen(struct shm_conn *conn, uint64_t now)
{
    struct shm_endpoint *endpoint = shm_endpoint(conn);
    struct shm_conn **place = NULL;

    if (now < endpoint->scarce)
        return false;
    if (extent_place(conn) != NULL) {
        shm_ring_extend(&conn->out, SHM_RING);
        return true;
    }
    for (size_t i = 0; i < SHM_WIDE; i++) {
        struct shm_conn **wide = &endpoint->wide[i];

        if (place == NULL || *wide == NULL
            || (*place != NULL && extent_last(*wide) < extent_last(*place)))
            place = wide;
    }
    if (*place != NULL) {
        if (now - extent_last(*place) < EXTENT_IDLE_NS)
            return false;
        extent_narrow(*place);
    }
    *place = extent_extend(conn, SHM_RING, now) ? conn : NULL;
    return *place != NULL;
}

/* ---- in turns ------------------------------------------------------------ */

static void extent_try(struct shm_fit *fit, enum extent_stage stage)
{
    fit->stage = stage;
    fit->other = 0;
    fit->bytes = fit->took = 0;
}

/* Records of another length than before: what was found does not hold for
 * them.  Where all laps but few end so; with several lengths some do. */
static void extent_fit(struct shm_conn *conn, uint64_t now)
{
    struct shm_fit *fit = &conn->fit;
    uint32_t extent = SHM_SMALL, length = shm_length(conn->record);
    uint32_t enough = shm_ring_wide(&conn->out) ? 4 * SHM_RING : EXTENT_TRIED;

    while (conn->record > extent / EXTENT_TURNS)
        extent *= EXTENT_GROWTH;
    if (extent == fit->extent && length == fit->length)
        fit->other = 0;
    else
        fit->other += conn->out.extent;
    if (fit->extent > 0 && fit->other < enough)
        return;
    *fit = (struct shm_fit){ .extent = extent, .length = length };
    if (conn->out.extent > extent)
        shm_ring_extend(&conn->out, extent);
    else if (conn->out.extent < extent && now >= shm_endpoint(conn)->scarce)
        (void)extent_extend(conn, extent, now);
}

static void extent_decide(struct shm_conn *conn)
{
    struct shm_fit *fit = &conn->fit;

    fit->wide = fit->best[1] < fit->best[0];
    fit->kept = fit->kept == 0 ? EXTENT_KEPT
                : fit->kept < EXTENT_KEPT_MOST ? 2 * fit->kept : fit->kept;
    fit->left = fit->kept;
    extent_try(fit, EXTENT_DECIDED);
    if (!fit->wide)
        shm_ring_extend(&conn->out, fit->extent);
}

/* The better one of several trials of the same. */
static void extent_tried(uint64_t *best, const struct shm_fit *fit)
{
    uint64_t per_mib = shm_per_mib(fit->took, fit->bytes);

    if (*best == 0 || per_mib < *best)
        *best = per_mib;
}

/* It is as it was found to be better, for a while. */
static void extent_keep(struct shm_conn *conn, uint64_t now)
{
    struct shm_fit *fit = &conn->fit;

    if (fit->wide && !shm_ring_wide(&conn->out) && extent_busy(conn, now))
        (void)extent_widen(conn, now);
    else if (!fit->wide && conn->out.extent > fit->extent)
        shm_ring_extend(&conn->out, fit->extent);
    if (fit->bytes < EXTENT_TRIED)
        return;
    fit->bytes = 0;
    if (--fit->left == 0)
        *fit = (struct shm_fit){ .extent = fit->extent, .length = fit->length,
                                 .kept = fit->kept };
}

/* One trial at a time. */
static void extent_early(struct shm_conn *conn, uint64_t took)
{
    if (conn->fit.stage == EXTENT_IDLE || conn->fit.stage == EXTENT_DECIDED)
        shm_early_lap(conn, took);
    else
        shm_early_again(conn);
}

/* A lap of a ring whose records are written in turns took so long. */
static void extent_turn(struct shm_conn *conn, uint64_t now, uint64_t took)
{
    struct shm_fit *fit = &conn->fit;

    extent_early(conn, took);
    extent_fit(conn, now);
    fit->bytes += conn->out.extent;
    fit->took += took;
    /* Another ring needed its place in the middle of a trial. */
    if ((fit->stage == EXTENT_COLD || fit->stage == EXTENT_WIDE)
        && !shm_ring_wide(&conn->out))
        extent_try(fit, EXTENT_IDLE);
    switch (fit->stage) {
    case EXTENT_IDLE:
        if (conn->out.extent > fit->extent)
            shm_ring_extend(&conn->out, fit->extent);
        else if (extent_busy(conn, now))
            extent_try(fit, EXTENT_NARROW);
        break;
    case EXTENT_NARROW:
        if (fit->bytes < EXTENT_TRIED)
            break;
        extent_tried(&fit->best[0], fit);
        extent_try(fit, EXTENT_COLD);
        if (!extent_widen(conn, now)) {
            fit->best[1] = UINT64_MAX;
            extent_decide(conn);
        }
        break;
    case EXTENT_COLD:                  /* it is not in the caches of both */
        extent_try(fit, EXTENT_WIDE);
        break;
    case EXTENT_WIDE:
        extent_tried(&fit->best[1], fit);
        if (++fit->trials == EXTENT_TRIALS) {
            extent_decide(conn);
            break;
        }
        shm_ring_extend(&conn->out, fit->extent);
        extent_try(fit, EXTENT_AGAIN);
        break;
    case EXTENT_AGAIN:
        extent_try(fit, EXTENT_NARROW);
        break;
    case EXTENT_DECIDED:
        extent_keep(conn, now);
        break;
    }
}

void shm_extent_lap(struct shm_conn *conn, uint64_t now)
{
    uint64_t took = now - conn->lapped;
    bool several = conn->several;      /* long messages: a stream each */

    conn->lapped = now;
    conn->several = false;
    if (!conn->out.rests)
        return;
    if (shm_in_turns(conn) && !several) {
        extent_turn(conn, now, took);
        return;
    }
    shm_early_end(conn);
    if (conn->fit.stage != EXTENT_DECIDED)
        extent_try(&conn->fit, EXTENT_IDLE);
    if (!shm_ring_wide(&conn->out)
        && (extent_place(conn) != NULL || extent_busy(conn, now)))
        (void)extent_widen(conn, now);
}

void shm_extent_forget(struct shm_conn *conn)
{
    struct shm_conn **place = extent_place(conn);

    if (place != NULL)
        *place = NULL;
}
