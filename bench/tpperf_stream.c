/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Many messages under way at a time, one way or both.
 *
 * Rank 1 gives the word to go when its reads are armed; from then on callbacks
 * do everything, on both sides.  With automatic progress or a thread this is
 * what keeps the messages in order: the main thread and a callback would write
 * at the same time.
 */
#include <stdlib.h>

#include "bench/clock.h"
#include "bench/tpperf.h"
#include "runtime/base/base.h"

struct stream;

struct stream_slot {
    struct stream *stream;
    void *data;
    struct perf_message message;
};

struct stream {
    struct perf *perf;
    struct bench_job *job;
    tp_pipe *pipe;
    tp_message_fn *when_arrived;
    struct stream_slot *slots;     /* job->window of them */
    uint64_t to_write, to_read;
    uint64_t begun;                /* in ticks */
    unsigned char go;
    /* Counted by callbacks. */
    uint64_t issued, written, arrived, read;
};

static bool stream_bad(struct stream *stream, const char *what,
                       tp_status status)
{
    if (status == TP_OK)
        return false;
    perf_fail(stream->perf, stream->pipe, what, status);
    return true;
}

static void stream_count(struct stream *stream)
{
    if (stream->written == stream->to_write && stream->read == stream->to_read)
        perf_done(stream->perf);
}

/* ---- out ---------------------------------------------------------------- */

static void stream_written(tp_pipe *pipe, tp_status status,
                           tp_message *message, void *arg);

static void stream_write(struct stream_slot *slot)
{
    struct stream *stream = slot->stream;
    struct bench_job *job = stream->job;

    perf_touch(stream->perf, job, slot->data,
               job->sequence + stream->issued++);
    stream_bad(stream, "write",
               tp_pipe_write(stream->pipe, &slot->message.message,
                             stream_written, slot));
}

static void stream_written(tp_pipe *pipe, tp_status status,
                           tp_message *message, void *arg)
{
    struct stream_slot *slot = arg;
    struct stream *stream = slot->stream;

    (void)pipe;
    (void)message;
    if (stream_bad(stream, "write", status))
        return;
    stream->written++;
    if (stream->issued < stream->to_write)
        stream_write(slot);
    else
        stream_count(stream);
}

static void stream_write_window(struct stream *stream)
{
    struct bench_job *job = stream->job;

    for (uint64_t i = 0; i < job->window && i < stream->to_write; i++)
        stream_write(&stream->slots[i]);
}

/* ---- in ----------------------------------------------------------------- */

/* Reads complete in the order of the messages, so the count tells which. */
static void stream_check(struct stream *stream, bool right)
{
    if (right) {
        stream->read++;
        stream_count(stream);
        return;
    }
    perf_wrong(stream->perf, stream->job, stream->job->sequence + stream->read);
}

static void stream_read(tp_pipe *pipe, tp_status status, tp_message *message,
                        void *arg)
{
    struct stream *stream = arg;
    struct bench_job *job = stream->job;

    (void)pipe;
    (void)message;
    if (!stream_bad(stream, "read", status))
        stream_check(stream,
                     perf_right(stream->perf, job,
                                bench_in(job, stream->read),
                                job->sequence + stream->read));
}

static void stream_borrowed(tp_pipe *pipe, tp_status status,
                            tp_message *message, void *arg)
{
    struct stream *stream = arg;
    struct bench_job *job = stream->job;
    bool right;

    if (stream_bad(stream, "borrow", status))
        return;
    right = bench_right_here(job, perf_data(stream->perf, message),
                             job->sequence + stream->read);
    if (!stream_bad(stream, "release", tp_pipe_release(pipe, message)))
        stream_check(stream, right);
}

/* As many descriptors are armed as messages may be under way. */
static void stream_arrived(tp_pipe *pipe, tp_status status,
                           tp_message *skeleton, void *arg)
{
    struct stream *stream = arg;
    struct bench_job *job = stream->job;
    uint64_t k = stream->arrived++;

    if (status == TP_OK)
        status = perf_expect(stream->perf, job, skeleton);
    if (status == TP_OK && stream->perf->options->borrow) {
        status = tp_pipe_borrow(pipe, skeleton, stream_borrowed, stream);
    } else if (status == TP_OK) {
        perf_place(stream->perf, job, skeleton, bench_in(job, k));
        status = tp_pipe_read(pipe, skeleton, stream_read, stream);
    }
    if (status == TP_OK && k + job->window < stream->to_read)
        status = tp_pipe_read_descriptor(pipe, stream->when_arrived, stream);
    stream_bad(stream, "read_descriptor", status);
    /* The first message is rank 1's own word to go. */
    if (status == TP_OK && k == 0 && stream->perf->driver.rank == 1)
        stream_write_window(stream);
}

/* ... copied into memory of the CPU, and not looked at: what can be short, of
 * which what tpperf does itself would be a good part. */
static void stream_read_plain(tp_pipe *pipe, tp_status status,
                              tp_message *message, void *arg)
{
    struct stream *stream = arg;

    if (status != TP_OK)
        stream_read(pipe, status, message, arg);
    else if (++stream->read == stream->to_read)
        stream_count(stream);
}

static void stream_arrived_plain(tp_pipe *pipe, tp_status status,
                                 tp_message *skeleton, void *arg)
{
    struct stream *stream = arg;
    const struct bench_job *job = stream->job;
    uint64_t k = stream->arrived;

    if (TPB_UNLIKELY(k == 0 || status != TP_OK || skeleton->payload_count != 1
                     || skeleton->tensor_count != 0
                     || skeleton->payloads[0].length != job->bytes)) {
        stream_arrived(pipe, status, skeleton, arg);
        return;
    }
    stream->arrived = k + 1;
    skeleton->payloads[0].data = bench_in(job, k);
    status = tp_pipe_read(pipe, skeleton, stream_read_plain, stream);
    if (TPB_LIKELY(status == TP_OK && k + job->window < stream->to_read))
        status = tp_pipe_read_descriptor(pipe, stream_arrived_plain, stream);
    if (TPB_UNLIKELY(status != TP_OK))
        stream_bad(stream, "read", status);
}

static bool stream_arm(struct stream *stream)
{
    for (uint64_t i = 0; i < stream->job->window && i < stream->to_read; i++)
        if (stream_bad(stream, "read_descriptor",
                       tp_pipe_read_descriptor(stream->pipe,
                                               stream->when_arrived, stream)))
            return false;
    return true;
}

/* ---- the word to go, on rank 0 ------------------------------------------ */

static void stream_go(tp_pipe *pipe, tp_status status, tp_message *message,
                      void *arg)
{
    struct stream *stream = arg;

    (void)pipe;
    (void)message;
    if (stream_bad(stream, "read", status) || !stream_arm(stream))
        return;
    stream->begun = bench_ticks();
    stream_write_window(stream);
}

static void stream_go_arrived(tp_pipe *pipe, tp_status status,
                              tp_message *skeleton, void *arg)
{
    struct stream *stream = arg;

    if (status == TP_OK && (skeleton->payload_count != 1
                            || skeleton->payloads[0].length != 1))
        status = TP_ERR_PROTOCOL;
    if (status == TP_OK) {
        skeleton->payloads[0].data = &stream->go;
        status = tp_pipe_read(pipe, skeleton, stream_go, stream);
    }
    stream_bad(stream, "read_descriptor", status);
}

/* ---- the whole ---------------------------------------------------------- */

/* Which ways this rank moves messages. */
static void stream_directions(struct stream *stream, int rank)
{
    struct bench_job *job = stream->job;
    bool both = job->test == BENCH_BIDIRECTIONAL;

    stream->to_write = both || rank == 0 ? job->count : 0;
    stream->to_read = both || rank == 1 ? job->count : 0;
}

static bool stream_slots(struct stream *stream)
{
    struct bench_job *job = stream->job;

    for (unsigned i = 0; i < job->window; i++) {
        struct stream_slot *slot = &stream->slots[i];

        *slot = (struct stream_slot){
            .stream = stream, .data = bench_out(job, i)
        };
        if (!perf_message(stream->perf, job, slot->data, &slot->message))
            return false;
    }
    return true;
}

static void stream_slots_free(struct stream *stream)
{
    for (unsigned i = 0; i < stream->job->window; i++)
        perf_message_free(&stream->slots[i].message);
    free(stream->slots);
}

static bool stream_settle(const struct stream *stream)
{
    perf_settle(stream->perf);
    return true;
}

static bool stream_follow(struct stream *stream, struct bench_driver *driver)
{
    unsigned char byte = 0;

    return stream_arm(stream) && driver->send(driver, 0, &byte, 1)
           && perf_await(stream->perf) && stream_settle(stream)
           && driver->send(driver, 0, &byte, 1);
}

/* Rank 0 stops the clock when rank 1 says that it has got everything. */
static bool stream_lead(struct stream *stream, struct bench_driver *driver)
{
    unsigned char byte;

    if (stream_bad(stream, "read_descriptor",
                   tp_pipe_read_descriptor(stream->pipe, stream_go_arrived,
                                           stream))
        || !perf_await(stream->perf) || !driver->receive(driver, 1, &byte, 1))
        return false;
    stream->job->ticks = bench_ticks() - stream->begun;
    return true;
}

bool perf_stream(struct bench_driver *driver, struct bench_job *job)
{
    struct stream stream = { .perf = perf_of(driver), .job = job };
    bool good;

    if (job->blocking)
        return bench_stream(driver, job);
    stream.pipe = perf_pipe(stream.perf, 1 - driver->rank);
    if (stream.pipe == NULL)
        return false;
    stream_directions(&stream, driver->rank);
    stream.when_arrived = job->verify || stream.perf->options->borrow
                          || perf_tensors(stream.perf)
                          || stream.perf->metadata != NULL
                          || stream.perf->options->buffers > 1
                          ? stream_arrived : stream_arrived_plain;
    stream.slots = calloc(job->window, sizeof(*stream.slots));
    if (stream.slots == NULL) {
        bench_say("out of memory");
        return false;
    }
    good = stream_slots(&stream)
           && (driver->rank == 0 ? stream_lead(&stream, driver)
                                 : stream_follow(&stream, driver));
    if (!good)
        perf_stop(stream.perf);
    stream_slots_free(&stream);
    return good;
}
