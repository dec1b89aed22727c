/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Messages of one payload in memory of tp_alloc(), which are lent by short
 * frames (runtime/lent.c): read and borrowed in turn, held and given back in
 * any order, and what becomes of them when a pipe, a block or a rank ends.
 * Over backends without channels they are copied, and the rest holds.
 */
#include "config.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/multi/flow.h"

enum { LENT_MOST = 300000, LENT_ROUNDS = 240, LENT_HELD = 24,
       LENT_PIECE = 20000, LENT_STREAM = 40, LENT_LAPS = 16,
       LENT_LONG = 60000 };

static unsigned char *lent_alloc(size_t length)
{
    void *memory;

    tpx_ok(tp_alloc(tpx_me.context, length,
                    (tp_device){ TP_DEVICE_CPU, 0 }, &memory));
    return memory;
}

/* For tpx_until(), in whichever thread the callback runs. */
static void lent_count(unsigned *counter)
{
    __atomic_fetch_add(counter, 1, __ATOMIC_RELEASE);
}

static void lent_write(tp_pipe *pipe, tp_message *message, tp_payload *payload,
                       void *data, size_t length, unsigned *ended)
{
    *payload = (tp_payload){ .data = data, .length = length };
    *message = (tp_message){ .payloads = payload, .payload_count = 1 };
    tpx_ok(tp_pipe_write(pipe, message, tpx_count_ok, ended));
}

/* ---- taking turns -------------------------------------------------------- */

/* Callbacks alone keep it going: what came is looked at, given back, and
 * answered. */
struct lent_turns {
    tp_pipe *pipe;
    unsigned char *out, *in;
    tp_message message;
    tp_payload payload;
    unsigned round, answered, written, over;
};

static size_t lent_length(unsigned round)
{
    static const size_t lengths[] = { 8, 1, 1023, 1024, 4096, 7000, 8192,
                                      65536, 0, LENT_MOST, 2000, 16384 };

    return lengths[round % (sizeof(lengths) / sizeof(lengths[0]))];
}

/* Long stretches of either, so that the peer hears what this side wishes. */
static bool lent_borrows(unsigned round)
{
    return round / 36 % 2 == 0 || round % 5 == 0;
}

static void lent_arrived(tp_pipe *pipe, tp_status status,
                         tp_message *skeleton, void *arg);

static void lent_answer(struct lent_turns *turns)
{
    unsigned round = turns->round++;
    size_t length = lent_length(round);

    /* The last answer's memory is ours again, or another half is. */
    tpx_fill(turns->out + (round % 2) * LENT_MOST, length, round);
    turns->answered++;
    tpx_ok(tp_pipe_read_descriptor(turns->pipe, lent_arrived, turns));
    lent_write(turns->pipe, &turns->message, &turns->payload,
               turns->out + (round % 2) * LENT_MOST, length, &turns->written);
}

static void lent_look(struct lent_turns *turns, const void *bytes)
{
    size_t length = lent_length(turns->round - (tpx_me.rank == 0));

    tpx_equal(tpx_verify(bytes, length,
                         turns->round - (tpx_me.rank == 0)), length);
}

static void lent_over(struct lent_turns *turns)
{
    if (turns->round < LENT_ROUNDS)
        lent_answer(turns);
    else
        tpx_ok(tp_pipe_read_descriptor(turns->pipe, lent_arrived, turns));
    lent_count(&turns->over);
}

static void lent_borrowed(tp_pipe *pipe, tp_status status,
                          tp_message *message, void *arg)
{
    struct lent_turns *turns = arg;

    tpx_ok(status);
    lent_look(turns, message->payloads[0].data);
    tpx_ok(tp_pipe_release(pipe, message));
    lent_over(turns);
}

static void lent_read(tp_pipe *pipe, tp_status status, tp_message *message,
                      void *arg)
{
    struct lent_turns *turns = arg;

    (void)pipe;
    (void)message;
    tpx_ok(status);
    lent_look(turns, turns->in);
    lent_over(turns);
}

static void lent_arrived(tp_pipe *pipe, tp_status status,
                         tp_message *skeleton, void *arg)
{
    struct lent_turns *turns = arg;

    if (status != TP_OK)
        return;                    /* that of the end */
    if (lent_borrows(turns->round)) {
        tpx_ok(tp_pipe_borrow(pipe, skeleton, lent_borrowed, turns));
        return;
    }
    skeleton->payloads[0].data = turns->in;
    tpx_ok(tp_pipe_read(pipe, skeleton, lent_read, turns));
}

static void lent_turns(void)
{
    struct lent_turns turns = { .pipe = tpx_pipe(!tpx_me.rank, 0) };

    turns.out = lent_alloc(2 * LENT_MOST);
    turns.in = lent_alloc(LENT_MOST);
    tpx_barrier();
    if (tpx_me.rank == 0)
        lent_answer(&turns);
    else
        tpx_ok(tp_pipe_read_descriptor(turns.pipe, lent_arrived, &turns));
    tpx_until(&turns.over, LENT_ROUNDS - (tpx_me.rank == 0));
    tpx_until(&turns.written, turns.answered);
    tpx_barrier();
    tpx_ok(tp_pipe_close(turns.pipe));
    tpx_barrier();
    tpx_ok(tp_free(tpx_me.context, turns.in));
    tpx_ok(tp_free(tpx_me.context, turns.out));
}

/* ---- many at once -------------------------------------------------------- */

struct lent_held {
    tp_message *message[LENT_HELD];
    unsigned lent;
};

static void lent_held_lent(tp_pipe *pipe, tp_status status,
                           tp_message *message, void *arg)
{
    struct lent_held *held = arg;
    unsigned at = held->lent;

    (void)pipe;
    tpx_ok(status);
    held->message[at] = message;
    lent_count(&held->lent);
}

static void lent_held_arrived(tp_pipe *pipe, tp_status status,
                              tp_message *skeleton, void *arg)
{
    tpx_ok(status);
    tpx_ok(tp_pipe_borrow(pipe, skeleton, lent_held_lent, arg));
}

struct lent_release {
    tp_pipe *pipe;
    struct lent_held *held;
};

/* Every third first, backwards, by a thread that has nothing to do with the
 * rest. */
static void *lent_release(void *arg)
{
    const struct lent_release *release = arg;

    for (int pass = 0; pass < 3; pass++)
        for (int i = LENT_HELD - 1; i >= 0; i--) {
            tp_message *message = release->held->message[i];

            if (i % 3 != pass)
                continue;
            tpx_equal(tpx_verify(message->payloads[0].data, LENT_PIECE,
                                 (uint64_t)i), LENT_PIECE);
            tpx_ok(tp_pipe_release(release->pipe, message));
        }
    return NULL;
}

/* Writes end in their order, whatever order loans are given back in. */
struct lent_order {
    unsigned next, *ended;
};

static struct lent_order lent_order;

static void lent_ordered(tp_pipe *pipe, tp_status status, tp_message *message,
                         void *arg)
{
    (void)pipe;
    (void)message;
    tpx_ok(status);
    tpx_equal((unsigned)(uintptr_t)arg, lent_order.next);
    lent_order.next++;
    lent_count(lent_order.ended);
}

static void lent_many_out(tp_pipe *pipe, tp_pipe *control)
{
    unsigned char *memory = lent_alloc(LENT_HELD * LENT_PIECE);
    tp_payload payloads[LENT_HELD];
    tp_message messages[LENT_HELD];
    unsigned ended = 0;
    char byte;

    lent_order = (struct lent_order){ .ended = &ended };
    for (unsigned i = 0; i < LENT_HELD; i++) {
        tpx_fill(memory + i * LENT_PIECE, LENT_PIECE, i);
        payloads[i] = (tp_payload){ .data = memory + i * LENT_PIECE,
                                    .length = LENT_PIECE };
        messages[i] = (tp_message){ .payloads = &payloads[i],
                                    .payload_count = 1 };
        tpx_ok(tp_pipe_write(pipe, &messages[i], lent_ordered,
                             (void *)(uintptr_t)i));
    }
    tpx_ok(tp_pipe_recv(control, &byte, 1, NULL));
    tpx_until(&ended, LENT_HELD);
    tpx_ok(tp_free(tpx_me.context, memory));
}

static void lent_many_in(tp_pipe *pipe, tp_pipe *control)
{
    struct lent_held held = { .lent = 0 };
    struct lent_release release = { pipe, &held };
    pthread_t thread;
    char byte = 'm';

    for (unsigned i = 0; i < LENT_HELD; i++)
        tpx_ok(tp_pipe_read_descriptor(pipe, lent_held_arrived, &held));
    tpx_until(&held.lent, LENT_HELD);
    tpx_check(pthread_create(&thread, NULL, lent_release, &release) == 0,
              "no thread");
    tpx_ok(tp_pipe_send(control, &byte, 1));
    pthread_join(thread, NULL);
    for (unsigned i = 0; i < LENT_HELD; i++)
        tpx_status(tp_pipe_release(pipe, held.message[i]), TP_ERR_INVALID);
}

static void lent_many(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    tp_pipe *control = tpx_pipe(!tpx_me.rank, 1);

    tpx_barrier();
    if (tpx_me.rank == 0)
        lent_many_out(pipe, control);
    else
        lent_many_in(pipe, control);
    tpx_barrier();
}

/* ---- streams ------------------------------------------------------------- */

/* One after the other, each long enough to be measured, so that some go in
 * frames; read at first, then borrowed, then read again. */
struct lent_stream {
    unsigned char *in;
    unsigned arrived, over;
};

static bool lent_stream_borrows(unsigned k)
{
    unsigned lap = k / LENT_STREAM;

    return lap >= LENT_LAPS / 2 && lap < LENT_LAPS * 3 / 4;
}

static void lent_stream_check(struct lent_stream *stream, const void *bytes)
{
    tpx_equal(tpx_verify(bytes, LENT_LONG, stream->over), LENT_LONG);
    lent_count(&stream->over);
}

static void lent_stream_lent(tp_pipe *pipe, tp_status status,
                             tp_message *message, void *arg)
{
    tpx_ok(status);
    lent_stream_check(arg, message->payloads[0].data);
    tpx_ok(tp_pipe_release(pipe, message));
}

static void lent_stream_read(tp_pipe *pipe, tp_status status,
                             tp_message *message, void *arg)
{
    struct lent_stream *stream = arg;

    (void)pipe;
    (void)message;
    tpx_ok(status);
    lent_stream_check(stream, stream->in
                              + stream->over % LENT_STREAM * LENT_LONG);
}

static void lent_stream_arrived(tp_pipe *pipe, tp_status status,
                                tp_message *skeleton, void *arg)
{
    struct lent_stream *stream = arg;
    unsigned k = stream->arrived++;

    tpx_ok(status);
    if (lent_stream_borrows(k)) {
        tpx_ok(tp_pipe_borrow(pipe, skeleton, lent_stream_lent, stream));
    } else {
        skeleton->payloads[0].data = stream->in
                                     + k % LENT_STREAM * LENT_LONG;
        tpx_ok(tp_pipe_read(pipe, skeleton, lent_stream_read, stream));
    }
    if (k + LENT_STREAM < LENT_LAPS * LENT_STREAM)
        tpx_ok(tp_pipe_read_descriptor(pipe, lent_stream_arrived, stream));
}

static void lent_stream_out(tp_pipe *pipe)
{
    unsigned char *memory = lent_alloc(LENT_STREAM * LENT_LONG);
    tp_payload payloads[LENT_STREAM];
    tp_message messages[LENT_STREAM];
    unsigned ended = 0;

    for (unsigned lap = 0; lap < LENT_LAPS; lap++) {
        /* Before the first is written: what comes slowly comes alone. */
        for (unsigned i = 0; i < LENT_STREAM; i++)
            tpx_fill(memory + i * LENT_LONG, LENT_LONG,
                     lap * LENT_STREAM + i);
        for (unsigned i = 0; i < LENT_STREAM; i++)
            lent_write(pipe, &messages[i], &payloads[i],
                       memory + i * LENT_LONG, LENT_LONG, &ended);
        tpx_until(&ended, (lap + 1) * LENT_STREAM);
    }
    tpx_ok(tp_free(tpx_me.context, memory));
}

static void lent_stream_in(tp_pipe *pipe)
{
    struct lent_stream stream = { .in = lent_alloc(LENT_STREAM * LENT_LONG) };

    for (unsigned i = 0; i < LENT_STREAM; i++)
        tpx_ok(tp_pipe_read_descriptor(pipe, lent_stream_arrived, &stream));
    tpx_until(&stream.over, LENT_LAPS * LENT_STREAM);
    tpx_ok(tp_free(tpx_me.context, stream.in));
}

static void lent_streams(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);

    tpx_barrier();
    if (tpx_me.rank == 0)
        lent_stream_out(pipe);
    else
        lent_stream_in(pipe);
    tpx_barrier();
}

/* ---- streams that both copy ---------------------------------------------- */

/* So long, and in a stream so long, that its sender copies some of it, into a
 * mapping of the reader's memory.  Each page of a message says which it is. */
enum { SHARED_PIECE = 512 << 10, SHARED_WINDOW = 24, SHARED_PAGE = 4096,
       SHARED_COUNT = 1200, SHARED_FEW = 100 };

struct lent_shared {
    tp_pipe *pipe;
    unsigned char *memory;
    tp_message messages[SHARED_WINDOW];
    tp_payload payloads[SHARED_WINDOW];
    unsigned count, arrived, over;
};

static unsigned char *shared_piece(const struct lent_shared *shared,
                                   unsigned k)
{
    return shared->memory + k % SHARED_WINDOW * SHARED_PIECE;
}

/* Writes end in their order, so the oldest one's memory is free first. */
static void shared_write(struct lent_shared *shared)
{
    for (unsigned k = 0; k < shared->count; k++) {
        unsigned char *piece = shared_piece(shared, k);
        unsigned slot = k % SHARED_WINDOW;

        if (k >= SHARED_WINDOW)
            tpx_until(&shared->over, k - SHARED_WINDOW + 1);
        for (size_t at = 0; at < SHARED_PIECE; at += SHARED_PAGE)
            memcpy(piece + at, &k, sizeof(k));
        lent_write(shared->pipe, &shared->messages[slot],
                   &shared->payloads[slot], piece, SHARED_PIECE,
                   &shared->over);
    }
}

static void shared_read(tp_pipe *pipe, tp_status status, tp_message *message,
                        void *arg)
{
    struct lent_shared *shared = arg;
    const unsigned char *piece = shared_piece(shared, shared->over);

    (void)pipe;
    (void)message;
    tpx_ok(status);
    for (size_t at = 0; at < SHARED_PIECE; at += SHARED_PAGE) {
        unsigned k;

        memcpy(&k, piece + at, sizeof(k));
        tpx_check(k == shared->over, "byte %zu of message %u is of %u", at,
                  shared->over, k);
    }
    lent_count(&shared->over);
}

static void shared_arrived(tp_pipe *pipe, tp_status status,
                           tp_message *skeleton, void *arg)
{
    struct lent_shared *shared = arg;
    unsigned k = shared->arrived++;

    tpx_ok(status);
    skeleton->payloads[0].data = shared_piece(shared, k);
    tpx_ok(tp_pipe_read(pipe, skeleton, shared_read, shared));
    if (k + SHARED_WINDOW < shared->count)
        tpx_ok(tp_pipe_read_descriptor(pipe, shared_arrived, shared));
}

static void lent_shared(void)
{
    struct lent_shared shared = { .pipe = tpx_pipe(!tpx_me.rank, 0) };
    bool both = tpx_backend("map") && sysconf(_SC_NPROCESSORS_ONLN) >= 2;

    shared.count = tpx_me.sanitized || tpx_me.few ? SHARED_FEW : SHARED_COUNT;
    shared.memory = lent_alloc(SHARED_WINDOW * SHARED_PIECE);
    tpx_barrier();
    for (unsigned i = 0; tpx_me.rank == 1 && i < SHARED_WINDOW; i++)
        tpx_ok(tp_pipe_read_descriptor(shared.pipe, shared_arrived, &shared));
    if (tpx_me.rank == 0)
        shared_write(&shared);
    tpx_until(&shared.over, shared.count);
    tpx_barrier();
    if (both && tpx_me.rank == 0 && shared.count == SHARED_COUNT)
        tpx_equal(tpx_mappings("rw-s"), 2);    /* its own, and the reader's */
    tpx_barrier();
    tpx_ok(tp_free(tpx_me.context, shared.memory));
}

/* ---- the ends ------------------------------------------------------------ */

/* A block that is freed is not taken for the next one, which mostly has its
 * address. */
static void lent_blocks(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct lent_held held = { .lent = 0 };
    unsigned ended = 0;

    tpx_barrier();
    for (unsigned i = 0; i < LENT_HELD; i++) {
        size_t length = LENT_PIECE + i % 3 * 4096;

        if (tpx_me.rank == 0) {
            unsigned char *memory = lent_alloc(length);
            tp_payload payload;
            tp_message message;

            tpx_fill(memory, length, i);
            lent_write(pipe, &message, &payload, memory, length, &ended);
            tpx_until(&ended, i + 1);
            tpx_ok(tp_free(tpx_me.context, memory));
        } else {
            tpx_ok(tp_pipe_read_descriptor(pipe, lent_held_arrived, &held));
            tpx_until(&held.lent, i + 1);
            tpx_equal(tpx_verify(held.message[i]->payloads[0].data, length, i),
                      length);
            tpx_ok(tp_pipe_release(pipe, held.message[i]));
        }
    }
    tpx_barrier();
}

static void lent_end(tp_pipe *pipe, tp_status status, tp_message *message,
                     void *arg)
{
    (void)pipe;
    (void)message;
    tpx_check(status == TP_OK || status == TP_ERR_PEER_CLOSED, "%s",
              tp_strerror(status));
    lent_count(arg);
}

/* A pipe that is closed between the loan and its callback. */
static void lent_closed(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned ended = 0;

    tpx_barrier();
    if (tpx_me.rank == 0) {
        unsigned char *memory = lent_alloc(LENT_PIECE);
        tp_payload payload = { .data = memory, .length = LENT_PIECE };
        tp_message message = { .payloads = &payload, .payload_count = 1 };

        tpx_fill(memory, LENT_PIECE, 9);
        tpx_ok(tp_pipe_write(pipe, &message, lent_end, &ended));
        tpx_until(&ended, 1);
        memset(memory, 0xdd, LENT_PIECE);
        tpx_ok(tp_free(tpx_me.context, memory));
    } else {
        tpx_borrow_closed(pipe, LENT_PIECE, 9);
    }
    tpx_barrier();
}

/* What was borrowed outlives the peer, and can be given back. */
static void lent_death(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct lent_held held = { .lent = 0 };
    unsigned ended = 0;
    char byte;

    tpx_barrier();
    if (tpx_me.rank == 0) {
        unsigned char *memory = lent_alloc(2 * LENT_PIECE);
        tp_payload payloads[2];
        tp_message messages[2];

        tpx_fill(memory, LENT_PIECE, 0);
        tpx_fill(memory + LENT_PIECE, LENT_PIECE, 1);
        for (unsigned i = 0; i < 2; i++)
            lent_write(pipe, &messages[i], &payloads[i],
                       memory + i * LENT_PIECE, LENT_PIECE, &ended);
        tpx_ok(tp_pipe_recv(tpx_pipe(1, 1), &byte, 1, NULL));
        raise(SIGKILL);
    }
    for (unsigned i = 0; i < 2; i++)
        tpx_ok(tp_pipe_read_descriptor(pipe, lent_held_arrived, &held));
    tpx_until(&held.lent, 2);
    tpx_ok(tp_pipe_send(tpx_pipe(0, 1), "x", 1));
    tpx_status(tp_pipe_recv(pipe, &byte, 1, NULL), TP_ERR_PEER_FAILED);
    for (unsigned i = 0; i < 2; i++) {
        tpx_equal(tpx_verify(held.message[i]->payloads[0].data, LENT_PIECE, i),
                  LENT_PIECE);
        tpx_ok(tp_pipe_release(pipe, held.message[i]));
    }
}

/* A loan whose callback comes in tp_finalize(), which tells the peer that its
 * memory is its own again. */
static void lent_late(tp_pipe *pipe, tp_status status, tp_message *message,
                      void *arg)
{
    (void)pipe;
    if (status == TP_OK) {
        tpx_sleep_ms(100);
        tpx_equal(tpx_verify(message->payloads[0].data, LENT_MOST, 1),
                  LENT_MOST);
    } else {
        tpx_status(status, TP_ERR_CLOSED);
    }
    ++*(unsigned *)arg;
}

static void lent_finalize(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned char *memory = lent_alloc(LENT_MOST);
    unsigned ended = 0;

    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        tp_payload payload = { .data = memory, .length = LENT_MOST };
        tp_message message = { .payloads = &payload, .payload_count = 1 };

        tpx_fill(memory, LENT_MOST, 1);
        tp_pipe_send_message(pipe, &message, -1);
        memset(memory, 0xee, LENT_MOST);
        tpx_sleep_ms(100);
    } else {
        tp_message *skeleton;

        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, -1));
        tpx_ok(tp_pipe_borrow(pipe, skeleton, lent_late, &ended));
        tpx_ok(tp_finalize(tpx_me.context));
        tpx_me.context = NULL;
        tpx_equal(ended, 1);
    }
}

/* ---- tensors ------------------------------------------------------------- */

/* One tensor and nothing else, which goes as one payload does; payloads between
 * them.  Read or borrowed in the callback that tells of it, or later. */
struct lent_tensors {
    unsigned char *in;
    unsigned round, over;
    tp_message *late;
};

static bool lent_is_tensor(unsigned round)
{
    return round % 5 != 4;
}

static tp_device_type lent_target(unsigned round)
{
    return round % 7 < 4 ? TP_DEVICE_ANY : TP_DEVICE_CPU;
}

static void lent_tensor_over(struct lent_tensors *tensors,
                             const unsigned char *data)
{
    size_t length = lent_length(tensors->round);

    tpx_equal(tpx_verify(data, length, tensors->round), length);
    lent_count(&tensors->over);
}

static void lent_tensor_read(tp_pipe *pipe, tp_status status,
                             tp_message *message, void *arg)
{
    struct lent_tensors *tensors = arg;

    (void)pipe;
    (void)message;
    tpx_ok(status);
    lent_tensor_over(tensors, tensors->in);
}

static void lent_tensor_borrowed(tp_pipe *pipe, tp_status status,
                                 tp_message *message, void *arg)
{
    struct lent_tensors *tensors = arg;

    tpx_ok(status);
    lent_tensor_over(tensors, lent_is_tensor(tensors->round)
                              ? message->tensors[0].data
                              : message->payloads[0].data);
    tpx_ok(tp_pipe_release(pipe, message));
}

/* Is it what the other side wrote? */
static void lent_tensor_expect(const tp_message *skeleton, unsigned round)
{
    size_t length = lent_length(round);
    const tp_tensor *tensor = skeleton->tensors;

    tpx_equal(skeleton->metadata_length, 0);
    tpx_equal(skeleton->tensor_count, lent_is_tensor(round));
    tpx_equal(skeleton->payload_count, !lent_is_tensor(round));
    if (!lent_is_tensor(round)) {
        tpx_equal(skeleton->payloads[0].length, length);
        return;
    }
    tpx_equal(tensor->length, length);
    tpx_equal(tensor->metadata_length, 0);
    tpx_check(tensor->data == NULL && tensor->device.type == TP_DEVICE_CPU
              && tensor->device.index == 0
              && tensor->target.type == lent_target(round)
              && tensor->target.index == 0, "not the tensor that was sent");
}

static void lent_tensor_place(tp_message *skeleton, unsigned round, void *to)
{
    if (lent_is_tensor(round))
        skeleton->tensors[0].data = to;
    else
        skeleton->payloads[0].data = to;
}

static void lent_tensor_arrived(tp_pipe *pipe, tp_status status,
                                tp_message *skeleton, void *arg)
{
    struct lent_tensors *tensors = arg;
    unsigned round = tensors->round;

    tpx_ok(status);
    lent_tensor_expect(skeleton, round);
    if (round / 12 % 3 == 0) {
        tpx_ok(tp_pipe_borrow(pipe, skeleton, lent_tensor_borrowed, tensors));
        return;
    }
    lent_tensor_place(skeleton, round, tensors->in);
    if (round / 12 % 3 == 1) {
        tpx_ok(tp_pipe_read(pipe, skeleton, lent_tensor_read, tensors));
    } else {
        tensors->late = skeleton;
        lent_count(&tensors->over);
    }
}

static void lent_tensor_take(tp_pipe *pipe, struct lent_tensors *tensors,
                             unsigned round)
{
    unsigned over = tensors->over;

    tensors->round = round;
    tensors->late = NULL;
    memset(tensors->in, 0xee, LENT_MOST);
    tpx_ok(tp_pipe_read_descriptor(pipe, lent_tensor_arrived, tensors));
    tpx_until(&tensors->over, over + 1);
    if (tensors->late != NULL) {
        tpx_ok(tp_pipe_read(pipe, tensors->late, lent_tensor_read, tensors));
        tpx_until(&tensors->over, over + 2);
    }
}

static void lent_tensor_write(tp_pipe *pipe, unsigned char *data,
                              unsigned round, unsigned *written)
{
    size_t length = lent_length(round);
    tp_tensor tensor = { .data = data, .length = length,
                         .target = { lent_target(round), 0 } };
    tp_payload payload = { .data = data, .length = length };
    tp_message message = { .payloads = NULL };

    if (lent_is_tensor(round)) {
        message.tensors = &tensor;
        message.tensor_count = 1;
    } else {
        message.payloads = &payload;
        message.payload_count = 1;
    }
    tpx_fill(data, length, round);
    *written = 0;
    tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, written));
    tpx_until(written, 1);
}

static void lent_tensors(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct lent_tensors tensors = { .in = malloc(LENT_MOST) };
    unsigned char *out[] = { malloc(LENT_MOST), lent_alloc(LENT_MOST) };
    unsigned written;

    tpx_check(tensors.in != NULL && out[0] != NULL, "out of memory");
    for (unsigned round = 0; round < LENT_ROUNDS; round++)
        if (round % 2 == (unsigned)tpx_me.rank)
            lent_tensor_write(pipe, out[round / 36 % 2], round, &written);
        else
            lent_tensor_take(pipe, &tensors, round);
    free(tensors.in);
    free(out[0]);
}

const struct tpx_spmd tpx_lent[] = {
    { "lent_turns", lent_turns, 2, TPX_CHANNELS, 30 },
    { "lent_many", lent_many, 2, TPX_CHANNELS, 30 },
    { "lent_tensors", lent_tensors, 2, TPX_CHANNELS, 30 },
    { "lent_streams", lent_streams, 2, TPX_CHANNELS, 60 },
    { "lent_shared", lent_shared, 2, TPX_CHANNELS, 60 },
    { "lent_blocks", lent_blocks, 2, TPX_CHANNELS, 30 },
    { "lent_closed", lent_closed, 2, TPX_CHANNELS, 30 },
    { "lent_death", lent_death, 2, TPX_KILLS | TPX_CHANNELS, 30 },
    { "lent_finalize", lent_finalize, 2, TPX_MANUAL, 20 },
    { NULL }
};
