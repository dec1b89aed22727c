/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Through shared memory, with a copy in and a copy out.
 *
 *   line  the message is inside the cache line that announces it: one transfer
 *         of one line, the least that two cores can do
 *   ring  bytes in a ring, announced by an index in a line of its own; longer
 *         messages go in pieces, so that both sides copy at once
 *
 * Where two take turns, what one has written is given up at once, as far as the
 * processor can and it pays, and the lines of the next message are asked for
 * while the other works.
 */
#include <string.h>

#include "bench/clock.h"
#include "bench/floors.h"
#include "runtime/base/base.h"

enum {
    RING_FLOOR_DEMOTED = 8192,     /* the longest that is given up */
    RING_FLOOR_AHEAD = 16384,      /* the most that is asked for */
    RING_FLOOR_TESTS = BENCH_BIT(BENCH_LATENCY) | BENCH_BIT(BENCH_BANDWIDTH)
                       | BENCH_BIT(BENCH_RATE)
};

/* ---- turns -------------------------------------------------------------- */

/* Did something come since the last message went? */
static bool floor_turn(struct floors *floors)
{
    bool turn = floors->received;

    floors->received = false;
    return turn;
}

static void floor_give_up(const struct floors *floors, const void *memory,
                          size_t length)
{
    const unsigned char *bytes = memory;

    for (size_t at = 0; floors->demotes && at < length; at += 64)
        tpb_demote(bytes + at);
}

/* So that it is this core's own when it is written. */
static void floor_claim(const struct floors *floors, unsigned char *line)
{
    if (floors->owns)
        tpb_prefetch_write(line);
    else
        *(volatile unsigned char *)line = 0;
}

/* ---- line --------------------------------------------------------------- */

void floor_line_put(struct floors *floors, const void *data, size_t length)
{
    struct floor_way *way = floors->out;
    struct floor_line *line = &way->lines[floors->line_tail % FLOOR_LINES];

    /* Pairs with the release in floor_line_done(). */
    while (floors->line_tail - floors->line_taken == FLOOR_LINES) {
        floors->line_taken = atomic_load_explicit(&way->taken,
                                                  memory_order_acquire);
        bench_pause();
    }
    line->length = length;
    memcpy(line->data, data, length);
    /* Pairs with the acquire in floor_line_next(). */
    atomic_store_explicit(&line->number, ++floors->line_tail,
                          memory_order_release);
    if (!floor_turn(floors))
        return;
    floor_give_up(floors, line, sizeof(*line));
    tpb_prefetch_write(&way->lines[floors->line_tail % FLOOR_LINES]);
}

const struct floor_line *floor_line_next(struct floors *floors)
{
    struct floor_line *line
        = &floors->in->lines[floors->line_head % FLOOR_LINES];

    while (atomic_load_explicit(&line->number, memory_order_acquire)
           != floors->line_head + 1)
        bench_pause();
    return line;
}

void floor_line_done(struct floors *floors)
{
    floors->received = true;
    if (++floors->line_head % (FLOOR_LINES / 4) == 0)
        atomic_store_explicit(&floors->in->taken, floors->line_head,
                              memory_order_release);
}

static bool line_send(struct bench_driver *driver, int rank, const void *data,
                      size_t length)
{
    (void)rank;
    floor_line_put(floors_of(driver), data, length);
    return true;
}

static bool line_receive(struct bench_driver *driver, int rank, void *data,
                         size_t length)
{
    struct floors *floors = floors_of(driver);
    const struct floor_line *line = floor_line_next(floors);

    (void)rank;
    if (line->length != length)
        return false;
    memcpy(data, line->data, length);
    floor_line_done(floors);
    return true;
}

const struct floor_kind floor_line = {
    .name = "floor/line", .mode = "spinning", .tests = RING_FLOOR_TESTS,
    .most = FLOOR_LINE_DATA, .send = line_send, .receive = line_receive
};

/* ---- ring --------------------------------------------------------------- */

/* A message begins in a line of its own: else its sender would write where the
 * receiver of the one before it is still reading. */
static size_t ring_gap(uint64_t position)
{
    return (64 - position % 64) % 64;
}

/* What may be copied in one go at a position: to the end of the ring at
 * most. */
static size_t ring_piece(uint64_t position, size_t left)
{
    size_t end = FLOOR_RING - position % FLOOR_RING;

    if (left > FLOOR_PIECE)
        left = FLOOR_PIECE;
    return left < end ? left : end;
}

/* A message of that length has gone, and its like will follow.  Where the
 * receiver may still read nothing is asked for. */
static void ring_rest(struct floors *floors, size_t length)
{
    struct floor_way *way = floors->out;
    uint64_t tail = floors->ring_tail, begin = tail - length;

    if (length <= RING_FLOOR_DEMOTED) {
        floor_give_up(floors, &way->tail, sizeof(way->tail));
        for (uint64_t at = begin; at < tail; at += 64)
            floor_give_up(floors, way->ring + at % FLOOR_RING, 64);
    }
    if (length > RING_FLOOR_AHEAD)
        return;
    tail += ring_gap(tail);
    if (tail + length - floors->ring_seen > FLOOR_RING)
        floors->ring_seen = atomic_load_explicit(&way->head,
                                                 memory_order_acquire);
    if (tail + length - floors->ring_seen > FLOOR_RING)
        return;
    for (uint64_t at = tail; at < tail + length; at += 64)
        floor_claim(floors, way->ring + at % FLOOR_RING);
}

static bool ring_send(struct bench_driver *driver, int rank, const void *data,
                      size_t length)
{
    struct floors *floors = floors_of(driver);
    struct floor_way *way = floors->out;
    const unsigned char *bytes = data;
    size_t whole = length;

    (void)rank;
    floors->ring_tail += ring_gap(floors->ring_tail);
    while (length > 0) {
        size_t piece = ring_piece(floors->ring_tail, length);

        /* Pairs with the release in ring_receive(). */
        while (floors->ring_tail + piece - floors->ring_seen > FLOOR_RING) {
            floors->ring_seen = atomic_load_explicit(&way->head,
                                                     memory_order_acquire);
            bench_pause();
        }
        memcpy(way->ring + floors->ring_tail % FLOOR_RING, bytes, piece);
        floors->ring_tail += piece;
        atomic_store_explicit(&way->tail, floors->ring_tail,
                              memory_order_release);
        bytes += piece;
        length -= piece;
    }
    if (floor_turn(floors))
        ring_rest(floors, whole);
    return true;
}

/* The head is told once per quarter of the ring: the line it is in is the
 * sender's meanwhile. */
static void ring_taken(struct floors *floors, size_t piece)
{
    uint64_t before = floors->ring_head / (FLOOR_RING / 4);

    floors->ring_head += piece;
    if (floors->ring_head / (FLOOR_RING / 4) != before)
        atomic_store_explicit(&floors->in->head, floors->ring_head,
                              memory_order_release);
}

static bool ring_receive(struct bench_driver *driver, int rank, void *data,
                         size_t length)
{
    struct floors *floors = floors_of(driver);
    struct floor_way *way = floors->in;
    unsigned char *bytes = data;

    (void)rank;
    ring_taken(floors, ring_gap(floors->ring_head));
    while (length > 0) {
        size_t piece = ring_piece(floors->ring_head, length);

        /* Pairs with the release in ring_send(). */
        while (atomic_load_explicit(&way->tail, memory_order_acquire)
               < floors->ring_head + piece)
            bench_pause();
        memcpy(bytes, way->ring + floors->ring_head % FLOOR_RING, piece);
        ring_taken(floors, piece);
        bytes += piece;
        length -= piece;
    }
    floors->received = true;
    return true;
}

const struct floor_kind floor_ring = {
    .name = "floor/ring", .mode = "spinning", .tests = RING_FLOOR_TESTS,
    .send = ring_send, .receive = ring_receive
};
