/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One copy: the sender says where the message is, the receiver fetches it.
 *
 *   mapped  from memory that both have mapped
 *   cma     from the sender's ordinary memory, by process_vm_readv(2)
 *
 * What fits into the announcing line travels in it.
 */
#include "config.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "bench/clock.h"
#include "bench/floors.h"

enum { COPY_FLOOR_TESTS = BENCH_BIT(BENCH_LATENCY) | BENCH_BIT(BENCH_BANDWIDTH)
                          | BENCH_BIT(BENCH_BIDIRECTIONAL) };

/* In a line, instead of the message. */
struct copy_place {
    const void *data;              /* the arenas lie at the same addresses in
                                      both processes */
    size_t length;
};

/* A message that is fetched stays as it is until its answer has come
 * (exchange), or until `copied` says so (stream). */
static bool copy_send(struct bench_driver *driver, int rank, const void *data,
                      size_t length)
{
    struct copy_place place = { data, length };

    (void)rank;
    if (length <= FLOOR_LINE_DATA) {
        floor_line_put(floors_of(driver), data, length);
        return true;
    }
    floor_line_put(floors_of(driver), &place, sizeof(place));
    return true;
}

static bool copy_fetch(struct floors *floors, const struct copy_place *place,
                       void *data)
{
    unsigned char *to = data;
    const unsigned char *from = place->data;
    size_t left = place->length;

    if (floors->kind->arena) {
        memcpy(data, from, left);
        return true;
    }
    while (left > 0) {
        struct iovec here = { to, left };
        struct iovec there = { (void *)(uintptr_t)from, left };
        ssize_t got = process_vm_readv(floors->peer, &here, 1, &there, 1, 0);

        if (got <= 0) {
            bench_say("process_vm_readv: %s; it must be allowed to trace the "
                      "peer (kernel.yama.ptrace_scope, seccomp)",
                      got < 0 ? strerror(errno) : "nothing read");
            return false;
        }
        to += got;
        from += got;
        left -= (size_t)got;
    }
    return true;
}

static bool copy_receive(struct bench_driver *driver, int rank, void *data,
                         size_t length)
{
    struct floors *floors = floors_of(driver);
    const struct floor_line *line = floor_line_next(floors);
    struct copy_place place;
    bool good = true;

    (void)rank;
    if (length <= FLOOR_LINE_DATA) {
        memcpy(data, line->data, length);
    } else {
        memcpy(&place, line->data, sizeof(place));
        good = place.length == length && copy_fetch(floors, &place, data);
    }
    floor_line_done(floors);
    return good;
}

/* ---- streams ------------------------------------------------------------ */

struct copy_stream {
    struct floors *floors;
    struct bench_job *job;
    uint64_t base_out, base_in;    /* counters at the start */
    uint64_t to_write, to_read, written, read;
};

static uint64_t copy_done(const struct copy_stream *stream)
{
    return atomic_load_explicit(&stream->floors->out->copied,
                                memory_order_acquire)
           - stream->base_out;
}

static bool copy_stream_out(struct copy_stream *stream)
{
    struct bench_job *job = stream->job;
    void *data = bench_out(job, stream->written);

    bench_touch(job, data, job->sequence + stream->written);
    stream->written++;
    return copy_send(&stream->floors->driver, 0, data, job->bytes);
}

static bool copy_stream_in(struct copy_stream *stream)
{
    struct bench_job *job = stream->job;
    uint64_t k = stream->read++;
    void *data = bench_in(job, k);

    if (!copy_receive(&stream->floors->driver, 0, data, job->bytes))
        return false;
    /* Pairs with the acquire in copy_done(). */
    atomic_store_explicit(&stream->floors->in->copied,
                          stream->base_in + stream->read,
                          memory_order_release);
    return bench_right(job, data, job->sequence + k)
           || bench_wrong(job, job->sequence + k);
}

static bool copy_there(struct floors *floors)
{
    return atomic_load_explicit(
               &floors->in->lines[floors->line_head % FLOOR_LINES].number,
               memory_order_acquire) == floors->line_head + 1;
}

/* Sends as far as the window allows, receives what is there. */
static bool copy_stream_run(struct copy_stream *stream)
{
    uint64_t window = stream->job->window;

    while (stream->read < stream->to_read
           || copy_done(stream) < stream->to_write) {
        bool moved = false;

        if (stream->written < stream->to_write
            && stream->written - copy_done(stream) < window) {
            moved = true;
            if (!copy_stream_out(stream))
                return false;
        }
        if (stream->read < stream->to_read && copy_there(stream->floors)) {
            moved = true;
            if (!copy_stream_in(stream))
                return false;
        }
        if (!moved)
            bench_pause();
    }
    return true;
}

static bool copy_stream(struct bench_driver *driver, struct bench_job *job)
{
    struct floors *floors = floors_of(driver);
    bool both = job->test == BENCH_BIDIRECTIONAL;
    struct copy_stream stream = {
        .floors = floors, .job = job,
        .to_write = both || driver->rank == 0 ? job->count : 0,
        .to_read = both || driver->rank == 1 ? job->count : 0,
        .base_out = atomic_load(&floors->out->copied),
        .base_in = atomic_load(&floors->in->copied)
    };
    uint64_t begun;
    unsigned char byte = 0;

    /* Rank 1 says that it has read the counters. */
    if (driver->rank == 1 && !copy_send(driver, 0, &byte, 1))
        return false;
    if (driver->rank == 0 && !copy_receive(driver, 1, &byte, 1))
        return false;
    begun = bench_ticks();
    if (!copy_stream_run(&stream))
        return false;
    if (driver->rank == 1)
        return copy_send(driver, 0, &byte, 1);
    if (!copy_receive(driver, 1, &byte, 1))
        return false;
    job->ticks = bench_ticks() - begun;
    return true;
}

const struct floor_kind floor_mapped = {
    .name = "floor/mapped", .mode = "spinning", .tests = COPY_FLOOR_TESTS,
    .send = copy_send, .receive = copy_receive, .stream = copy_stream,
    .arena = true
};

const struct floor_kind floor_cma = {
    .name = "floor/cma", .mode = "spinning", .tests = COPY_FLOOR_TESTS,
    .send = copy_send, .receive = copy_receive, .stream = copy_stream
};
