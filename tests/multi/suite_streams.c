/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Streams of long messages: whichever way they take, and while one way after
 * the other is tried, they come whole and in order, and wait for nobody else.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "tests/multi/flow.h"

enum { STREAMS_BURST = 16 };       /* messages of a burst */

struct streams_reader {
    unsigned char *memory;         /* that many times `length` */
    size_t length;
    unsigned arrived, done;
};

static unsigned char *streams_memory(size_t length)
{
    unsigned char *memory = malloc(length);

    tpx_check(memory != NULL, "out of memory");
    return memory;
}

static void streams_arrived(tp_pipe *pipe, tp_status status,
                            tp_message *skeleton, void *arg)
{
    struct streams_reader *stream = arg;

    tpx_ok(status);
    tpx_equal(skeleton->payloads[0].length, stream->length);
    skeleton->payloads[0].data = stream->memory
                                 + stream->arrived++ * stream->length;
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, &stream->done));
}

static void streams_out(tp_pipe *pipe, unsigned char *memory,
                        size_t length, uint64_t seed)
{
    tp_payload payloads[STREAMS_BURST];
    tp_message messages[STREAMS_BURST];
    unsigned done = 0;

    for (unsigned i = 0; i < STREAMS_BURST; i++) {
        payloads[i] = (tp_payload){ .data = memory + i * length,
                                    .length = length };
        messages[i] = (tp_message){ .payloads = &payloads[i],
                                    .payload_count = 1 };
        tpx_fill(payloads[i].data, length, seed + i);
        tpx_ok(tp_pipe_write(pipe, &messages[i], tpx_count_ok, &done));
    }
    tpx_until(&done, STREAMS_BURST);
}

static void streams_in(tp_pipe *pipe, unsigned char *memory,
                       size_t length, uint64_t seed)
{
    struct streams_reader stream = { .memory = memory, .length = length };

    memset(memory, 0, STREAMS_BURST * length);
    for (unsigned i = 0; i < STREAMS_BURST; i++)
        tpx_ok(tp_pipe_read_descriptor(pipe, streams_arrived, &stream));
    tpx_until(&stream.done, STREAMS_BURST);
    for (unsigned i = 0; i < STREAMS_BURST; i++)
        tpx_equal(tpx_verify(memory + i * length, length, seed + i), length);
}

/* Bursts of long messages, as many of each length as it takes to try each way;
 * while others of another pipe, which nobody reads yet, wait to be pulled: a
 * stream may not wait for these. */
static void streams_ways(void)
{
    static const size_t lengths[] = { 65536, 200001, 262144, 700001 };
    enum { LENGTHS = sizeof(lengths) / sizeof(lengths[0]), IDLE = 100000 };
    unsigned char *memory = streams_memory(STREAMS_BURST * 700001);
    unsigned char *idle = streams_memory(STREAMS_BURST * IDLE);
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    tp_pipe *other = tpx_pipe(!tpx_me.rank, 1);
    unsigned turns = tpx_me.sanitized ? 4 : 10;
    tp_payload payload = { .data = idle, .length = IDLE };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    unsigned done = 0;
    bool sends = tpx_me.rank == 0;

    tpx_fill(idle, IDLE, 5);
    for (unsigned i = 0; sends && i < 4; i++)
        tpx_ok(tp_pipe_write(other, &message, tpx_count_ok, &done));
    for (unsigned i = 0; i < turns * LENGTHS; i++)
        (sends ? streams_out : streams_in)(
            pipe, memory, lengths[i / turns], 100 * i);
    for (unsigned i = 0; !sends && i < 4; i++) {
        memset(idle, 0, IDLE);
        tpx_ok(tp_pipe_recv(other, idle, IDLE, NULL));
        tpx_equal(tpx_verify(idle, IDLE, 5), IDLE);
    }
    if (sends)
        tpx_until(&done, 4);
    tpx_barrier();
    free(idle);
    free(memory);
}

/* Two long messages, which come to a reader in time, or late, or behind short
 * ones, so that buffers for these wait in the transport; the second one has two
 * payloads. */
static void streams_length(tp_pipe *pipe, unsigned char *memory, size_t length,
                           unsigned way)
{
    size_t half = length / 2 + 1, got;
    tp_payload payloads[2] = { { .data = memory, .length = length },
                               { .data = memory + length, .length = half } };
    tp_message message = { .payloads = payloads, .payload_count = 2 };
    unsigned shorts = way == 2 ? 40 : 0;

    if (tpx_me.rank == 0) {
        tpx_fill(memory, length, way);
        tpx_fill(memory + length, half, length);
        for (unsigned i = 0; i < shorts; i++)
            tpx_ok(tp_pipe_send(pipe, &i, sizeof(i)));
        tpx_ok(tp_pipe_send(pipe, memory, length));
        tpx_ok(tp_pipe_send_message(pipe, &message, -1));
        return;
    }
    memset(memory, 0, length + half);
    if (way == 1)
        tpx_sleep_ms(3);
    for (unsigned i = 0, value; i < shorts; i++) {
        tpx_ok(tp_pipe_recv(pipe, &value, sizeof(value), NULL));
        tpx_equal(value, i);
    }
    tpx_ok(tp_pipe_recv(pipe, memory, length, &got));
    tpx_equal(got, length);
    tpx_equal(tpx_verify(memory, length, way), length);
    memset(memory, 0, length);
    tpx_ok(tp_pipe_recv(pipe, memory, length + half, &got));
    tpx_equal(got, length + half);
    tpx_equal(tpx_verify(memory, length, way), length);
    tpx_equal(tpx_verify(memory + length, half, length), half);
}

/* Lengths about those at which a transport cuts: ofi:tcp does so at 128 KiB,
 * 261840, 327300 and 1 MiB. */
static void streams_lengths(void)
{
    static const size_t lengths[] = {
        131071, 131072, 261807, 261808, 261840, 261841, 327300, 327301, 523680,
        589140, 589141, 1048575, 1048576, 1048624, 1048625, 2097159, 3400001
    };
    enum { LENGTHS = sizeof(lengths) / sizeof(lengths[0]), WAYS = 3 };
    size_t most = lengths[LENGTHS - 1];
    unsigned char *memory = streams_memory(most + most / 2 + 1);
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 2);

    for (unsigned i = 0; i < LENGTHS; i++)
        for (unsigned way = 0; way < WAYS; way++)
            streams_length(pipe, memory, lengths[i], way);
    tpx_barrier();
    free(memory);
}

const struct tpx_spmd tpx_streams[] = {
    { "streams_ways", streams_ways, 2, TPX_CHANNELS, 60 },
    { "streams_lengths", streams_lengths, 2, 0, 60 },
    { NULL }
};
