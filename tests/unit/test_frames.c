/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What comes in over a conn, fed through a backend that is not one: whole
 * streams, cut anywhere; and damaged ones, by a seed.  Each frame lies in
 * memory of exactly its size, so that a sanitizer sees every step too far.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/stream.h"
#include "tests/lib/tpx.h"

enum {
    FRAMES_MOST = 16 * 1024, FRAMES_QUEUE = 4096,
    FRAMES_WINDOW = 64 * FRAMES_MOST   /* a whole message of any test */
};

/* ---- the backend -------------------------------------------------------- */

struct fake_conn {
    struct tpf_conn base;
    struct {
        unsigned char *bytes;
        size_t size;
    } queue[FRAMES_QUEUE];
    size_t first, count;
};

static int fake_open;          /* conns that live */
static unsigned fake_sent;     /* frames that the core wrote */

static void *fake_reserve(struct tpf_conn *conn, size_t size)
{
    static _Alignas(8) unsigned char room[FRAMES_MOST];

    (void)conn;
    return size <= sizeof(room) ? room : NULL;
}

static void fake_commit(struct tpf_conn *conn, size_t size)
{
    (void)conn;
    (void)size;
    fake_sent++;
}

static const void *fake_peek(struct tpf_conn *base, size_t *size)
{
    struct fake_conn *conn = (struct fake_conn *)base;

    if (conn->first == conn->count)
        return NULL;
    *size = conn->queue[conn->first].size;
    return conn->queue[conn->first].bytes;
}

static void fake_pop(struct tpf_conn *base)
{
    struct fake_conn *conn = (struct fake_conn *)base;

    ck_assert_uint_lt(conn->first, conn->count);
    free(conn->queue[conn->first++].bytes);
}

static void fake_disconnect(struct tpf_conn *base)
{
    for (struct fake_conn *conn = (void *)base; conn->first < conn->count;)
        fake_pop(base);
    fake_open--;
}

static bool fake_flushed(struct tpf_conn *conn)
{
    (void)conn;
    return true;
}

static const struct tpf_backend fake_backend = {
    .name = "fake", .conn_size = sizeof(struct fake_conn),
    .reserve = fake_reserve, .commit = fake_commit, .peek = fake_peek,
    .pop = fake_pop, .disconnect = fake_disconnect, .flushed = fake_flushed
};
static struct tpf_endpoint fake_endpoint = { .backend = &fake_backend };

static void fake_feed(struct fake_conn *conn, const void *bytes, size_t size)
{
    unsigned char *copy = malloc(size > 0 ? size : 1);

    ck_assert_ptr_nonnull(copy);
    ck_assert_uint_lt(conn->count, FRAMES_QUEUE);
    memcpy(copy, bytes, size);
    conn->queue[conn->count].bytes = copy;
    conn->queue[conn->count++].size = size;
}

/* ---- chance ------------------------------------------------------------- */

static uint64_t chance_state = 1;

static unsigned chance(unsigned limit)
{
    chance_state = chance_state * 6364136223846793005u
                   + 1442695040888963407u;
    return (unsigned)((chance_state >> 33) % limit);
}

/* ---- the context -------------------------------------------------------- */

static tp_context *context;
static char directory[] = "/tmp/tpx-frames-XXXXXX";

static void setup(void)
{
    char text[64];

    memcpy(directory + sizeof(directory) - 7, "XXXXXX", 6);
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(text, sizeof(text), "dir:%s", directory);
    setenv("TP_BOOTSTRAP", text, 1);
    setenv("TP_SIZE", "1000000", 1);
    setenv("TP_BACKENDS", "loop,fake", 1);
    setenv("TP_PROGRESS", "manual", 1);
    setenv("TP_LOG", "off", 1);
    ck_assert_int_eq(tp_init(NULL, &context), TP_OK);
    fake_endpoint.env = &context->env;
}

static void teardown(void)
{
    char path[80];

    ck_assert_int_eq(tp_finalize(context), TP_OK);
    ck_assert_int_eq(fake_open, 0);
    snprintf(path, sizeof(path), "%s/card.0", directory);
    unlink(path);
    snprintf(path, sizeof(path), "%s/left.0", directory);
    unlink(path);
    ck_assert_int_eq(rmdir(directory), 0);
}

static struct fake_conn *conn_new(void)
{
    struct fake_conn *conn
        = (struct fake_conn *)tpf_conn_new(&fake_endpoint);

    ck_assert_ptr_nonnull(conn);
    conn->base.max_frame = FRAMES_MOST;
    conn->base.window = FRAMES_WINDOW;
    conn->base.returns = FRAMES_MOST / 2;
    fake_open++;
    return conn;
}

/* A rank that is connected from the start. */
static struct tpr_peer *peer_new(int rank)
{
    struct tpr_peer *peer = tpr_peer_get(context, rank);

    ck_assert_ptr_nonnull(peer);
    ck_assert(tpr_enter(context));
    peer->conn = &conn_new()->base;
    peer->conn->peer = peer;
    peer->state = TPR_PEER_CONNECTED;
    tpr_leave(context);
    return peer;
}

/* Has the core read what is there. */
static void serve(struct tpf_conn *conn)
{
    ck_assert(tpr_enter(context));
    tpf_conn_ready(conn);
    tpr_leave(context);
    for (int i = 0; i < 100 && !tpb_list_empty(&context->env.ready); i++)
        ck_assert_int_eq(tp_progress(context, NULL), TP_OK);
    ck_assert(tpb_list_empty(&context->env.ready));
    ck_assert_int_eq(tp_progress(context, NULL), TP_OK);
}

/* ---- a stream ----------------------------------------------------------- */

enum { STREAM_BUFFERS = 6, STREAM_BYTES = 60000 };

static unsigned char stream_data[STREAM_BYTES];

/* A message as bytes: descriptor, then data.  The caller frees it. */
static bool stream_offers;         /* nobody pulls, so these never end */

static unsigned char *stream_message(uint64_t *length)
{
    static tp_payload payloads[STREAM_BUFFERS];
    static tp_tensor tensors[STREAM_BUFFERS];
    tp_message message = { .payloads = payloads, .tensors = tensors,
                           .payload_count = chance(STREAM_BUFFERS),
                           .tensor_count = chance(STREAM_BUFFERS),
                           .metadata = stream_data,
                           .metadata_length = chance(4) == 0 ? chance(40000)
                                                             : chance(3) };
    struct tpr_offer offer = { .buffer = chance(STREAM_BUFFERS),
                               .source_length = (uint8_t)(1 + chance(40)) };
    const struct tpr_offer *offers = &offer;
    uint64_t descriptor, total, cut;
    uint32_t sent = chance(2) * chance(1000000);
    struct wire_descriptor head;
    unsigned char *bytes;

    for (size_t i = 0; i < STREAM_BUFFERS; i++) {
        size_t size = chance(3) == 0 ? chance(20000) : chance(100);

        payloads[i] = (tp_payload){ stream_data, size, stream_data,
                                    chance(5) };
        size = chance(3) == 0 ? chance(20000) : chance(100);
        tensors[i] = (tp_tensor){ .data = stream_data, .length = size,
                                  .metadata = stream_data,
                                  .metadata_length = chance(5) };
    }
    descriptor = tpr_descriptor_length(&message);
    if (stream_offers && chance(3) == 0)   /* goes by a channel */
        offer.channel = (uint8_t)(1 + chance(TPF_CHANNELS));
    else
        offers = NULL;
    total = descriptor += offers != NULL ? offer.source_length : 0;
    for (size_t i = 0; i < message.payload_count; i++)
        total += offers != NULL && offer.buffer == i ? 0 : payloads[i].length;
    for (size_t i = 0; i < message.tensor_count; i++)
        total += offers != NULL && offer.buffer == message.payload_count + i
                 ? 0 : tensors[i].length;
    if (offer.buffer >= message.payload_count + message.tensor_count) {
        total -= offers != NULL ? offer.source_length : 0;
        descriptor -= offers != NULL ? offer.source_length : 0;
        offers = NULL;
    }
    bytes = calloc(1, total);
    ck_assert_ptr_nonnull(bytes);
    /* In two pieces, as it may span frames. */
    cut = chance((unsigned)descriptor);
    tpr_descriptor_encode(&message, offers, sent, descriptor, 0, bytes, cut);
    tpr_descriptor_encode(&message, offers, sent, descriptor, cut, bytes + cut,
                          descriptor - cut);
    memcpy(&head, bytes, sizeof(head));
    ck_assert_uint_eq(head.sent, sent);
    memset(bytes + descriptor, 0x5a, total - descriptor);
    *length = total;
    return bytes;
}

/* What may be wrong with a frame. */
static size_t stream_damage(unsigned char *frame, size_t size)
{
    switch (chance(7)) {
    case 0:
        for (unsigned i = 1 + chance(8); i > 0; i--)
            frame[chance((unsigned)size)] ^= (unsigned char)(1 + chance(255));
        return size;
    case 1:
        return chance((unsigned)size + 1);
    case 2:
        frame[chance(sizeof(struct wire_frame))] = (unsigned char)chance(256);
        return size;
    case 3:                    /* the lengths in a descriptor */
        if (size >= 64)
            frame[16 + chance(48)] = (unsigned char)chance(256);
        return size;
    case 4:
        for (size_t i = 0; i < size; i++)
            frame[i] = (unsigned char)chance(256);
        return size;
    case 5:                    /* another kind of frame, otherwise whole */
        frame[0] = (unsigned char)chance(WIRE_LAST + 2);
        return size;
    default:
        frame[1] = (unsigned char)chance(WIRE_SMALL * 2);
        return size;
    }
}

/* Cuts a message anywhere and feeds it; one frame in `damage` is damaged, 0:
 * none. */
static void stream_feed(struct fake_conn *conn, unsigned number,
                        unsigned damage)
{
    static unsigned char frame[FRAMES_MOST];
    uint64_t length, at = 0;
    unsigned char *bytes = stream_message(&length);
    bool first = true;

    while (at < length || first) {
        size_t most = FRAMES_MOST - sizeof(struct wire_frame), part, size;
        struct wire_frame head = { .type = first ? WIRE_MESSAGE : WIRE_DATA,
                                   .number = number };

        part = 1 + (chance(3) == 0 ? chance(40) : chance((unsigned)most));
        if (part > length - at)
            part = (size_t)(length - at);
        head.length = (uint32_t)part;
        memcpy(frame, &head, sizeof(head));
        memcpy(frame + sizeof(head), bytes + at, part);
        size = sizeof(head) + part;
        if (damage > 0 && chance(damage) == 0)
            size = stream_damage(frame, size);
        if (damage == 0 || chance(damage) != 0)    /* or lost */
            fake_feed(conn, frame, size);
        at += part;
        first = false;
    }
    free(bytes);
}

/* A message of one tensor, or one payload, and nothing else. */
static void stream_feed_short(struct fake_conn *conn, unsigned number)
{
    static unsigned char frame[FRAMES_MOST];
    struct wire_frame head = { .type = WIRE_MESSAGE, .flags = WIRE_SHORT,
                               .number = number, .length = chance(300) };

    if (chance(3) != 0)
        head.flags |= (uint8_t)(WIRE_TENSOR | (chance(2) ? WIRE_HOST : 0));
    memcpy(frame, &head, sizeof(head));
    fake_feed(conn, frame, sizeof(head) + head.length);
}

/* One of small.c, whole or damaged. */
static void stream_feed_small(struct fake_conn *conn, unsigned number,
                              const tp_message *message, unsigned damage)
{
    static unsigned char frame[FRAMES_MOST];
    size_t data, length = tpr_small_length(message, &data), size;
    struct wire_frame head = { .type = WIRE_MESSAGE, .flags = WIRE_SMALL,
                               .number = number, .length = (uint32_t)length };

    ck_assert_uint_gt(length, 0);
    size = sizeof(head) + length;
    memcpy(frame, &head, sizeof(head));
    tpr_small_encode(message, length, frame + sizeof(head));
    if (damage > 0 && chance(damage) == 0)
        size = stream_damage(frame, size);
    fake_feed(conn, frame, size);
}

/* ---- small messages ----------------------------------------------------- */

enum { SMALL_BYTES = 400 };

static struct {
    tp_message message;
    tp_payload payloads[WIRE_PIECES];
    tp_tensor tensors[WIRE_PIECES];
} small;

/* The next bytes of the stream's, so that each piece has others. */
static void *small_bytes(size_t length)
{
    static size_t at;
    if (stream_data[0] == stream_data[1])
        for (size_t i = 0; i < STREAM_BYTES; i++)
            stream_data[i] = (unsigned char)(i * 7 + i / 256);
    at = (at + 977) % (STREAM_BYTES - WIRE_SMALL_MOST);
    return length == 0 ? NULL : stream_data + at;
}

static size_t small_size(void)
{
    return chance(3) == 0 ? 0 : chance(2) == 0 ? 8 : chance(SMALL_BYTES);
}

static void small_make(void)
{
    tp_message *message = &small.message;

    memset(&small, 0, sizeof(small));
    message->payload_count = chance(5);
    message->tensor_count = chance(5);
    message->metadata_length = small_size();
    message->metadata = small_bytes(message->metadata_length);
    message->payloads = message->payload_count > 0 ? small.payloads : NULL;
    message->tensors = message->tensor_count > 0 ? small.tensors : NULL;
    for (size_t i = 0; i < message->payload_count; i++) {
        tp_payload *payload = &small.payloads[i];

        payload->length = small_size();
        payload->data = small_bytes(payload->length);
        payload->metadata_length = small_size();
        payload->metadata = small_bytes(payload->metadata_length);
    }
    for (size_t i = 0; i < message->tensor_count; i++) {
        tp_tensor *tensor = &small.tensors[i];

        tensor->length = small_size();
        tensor->data = small_bytes(tensor->length);
        tensor->metadata_length = small_size();
        tensor->metadata = small_bytes(tensor->metadata_length);
        if (chance(2) == 0)
            tensor->target.type = TP_DEVICE_ANY;
    }
}

static void small_same(const void *got, size_t got_length, const void *made,
                       size_t made_length)
{
    ck_assert_uint_eq(got_length, made_length);
    ck_assert((got == NULL) == (made_length == 0));
    if (made_length > 0)
        ck_assert_int_eq(memcmp(got, made, made_length), 0);
}

/* The skeleton is that of the message; `data`: and has what it holds. */
static void small_compare(const tp_message *got, bool data)
{
    const tp_message *made = &small.message;

    small_same(got->metadata, got->metadata_length, made->metadata,
               made->metadata_length);
    ck_assert_uint_eq(got->payload_count, made->payload_count);
    ck_assert_uint_eq(got->tensor_count, made->tensor_count);
    for (size_t i = 0; i < made->payload_count; i++) {
        const tp_payload *payload = &got->payloads[i], *of = &made->payloads[i];

        small_same(payload->metadata, payload->metadata_length, of->metadata,
                   of->metadata_length);
        ck_assert_uint_eq(payload->length, of->length);
        if (data && of->length > 0)
            ck_assert_int_eq(memcmp(payload->data, of->data, of->length), 0);
    }
    for (size_t i = 0; i < made->tensor_count; i++) {
        const tp_tensor *tensor = &got->tensors[i], *of = &made->tensors[i];

        small_same(tensor->metadata, tensor->metadata_length, of->metadata,
                   of->metadata_length);
        ck_assert_uint_eq(tensor->length, of->length);
        ck_assert_int_eq(tensor->target.type, of->target.type);
        ck_assert_int_eq(tensor->device.type, TP_DEVICE_CPU);
        if (data && of->length > 0)
            ck_assert_int_eq(memcmp(tensor->data, of->data, of->length), 0);
    }
}

static unsigned small_arrivals, small_reads;
static bool small_later, small_borrow; /* read after the callback; borrowed */
static tp_message *small_kept;

static void small_read(tp_pipe *pipe, tp_status status, tp_message *message,
                       void *arg)
{
    ck_assert_int_eq(status, TP_OK);
    small_compare(message, true);
    small_reads++;
    if (small_borrow)
        ck_assert_int_eq(tp_pipe_release(pipe, message), TP_OK);
    free(arg);
}

static void small_ask(tp_pipe *pipe, tp_message *skeleton)
{
    unsigned char *room, *at;

    if (small_borrow) {
        ck_assert_int_eq(tp_pipe_borrow(pipe, skeleton, small_read, NULL),
                         TP_OK);
        return;
    }
    room = at = malloc(WIRE_SMALL_MOST);
    ck_assert_ptr_nonnull(room);
    for (size_t i = 0; i < skeleton->payload_count; i++) {
        skeleton->payloads[i].data = at;
        at += skeleton->payloads[i].length;
    }
    for (size_t i = 0; i < skeleton->tensor_count; i++) {
        skeleton->tensors[i].data = at;
        at += skeleton->tensors[i].length;
    }
    ck_assert_int_eq(tp_pipe_read(pipe, skeleton, small_read, room), TP_OK);
}

static void small_arrived(tp_pipe *pipe, tp_status status,
                          tp_message *skeleton, void *arg)
{
    (void)arg;
    ck_assert_int_eq(status, TP_OK);
    small_arrivals++;
    small_compare(skeleton, false);
    small_kept = skeleton;
    if (!small_later)
        small_ask(pipe, skeleton);
}

/* ---- readers ------------------------------------------------------------ */

static unsigned reads_armed, reads_ended, reads_well;

static void read_end(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                     void *arg)
{
    (void)pipe;
    (void)skeleton;
    reads_ended++;
    reads_well += status == TP_OK;
    free(arg);
}

static void read_arrived(tp_pipe *pipe, tp_status status,
                         tp_message *skeleton, void *arg)
{
    uint64_t total = 0;
    unsigned char *room;

    (void)arg;
    reads_ended++;
    if (status != TP_OK)
        return;
    for (size_t i = 0; i < skeleton->payload_count; i++)
        total += skeleton->payloads[i].length;
    for (size_t i = 0; i < skeleton->tensor_count; i++)
        total += skeleton->tensors[i].length;
    if (total > 4 << 20) {     /* nobody has that much: gives up */
        ck_assert_int_eq(tp_pipe_close(pipe), TP_OK);
        return;
    }
    room = malloc(total > 0 ? total : 1);
    ck_assert_ptr_nonnull(room);
    total = 0;
    for (size_t i = 0; i < skeleton->payload_count; i++) {
        skeleton->payloads[i].data = room + total;
        total += skeleton->payloads[i].length;
    }
    for (size_t i = 0; i < skeleton->tensor_count; i++) {
        skeleton->tensors[i].data = room + total;
        skeleton->tensors[i].device = (tp_device){ TP_DEVICE_CPU, 0 };
        total += skeleton->tensors[i].length;
    }
    reads_armed++;
    ck_assert_int_eq(tp_pipe_read(pipe, skeleton, read_end, room), TP_OK);
}

static void read_arm(int rank, unsigned number)
{
    tp_pipe *pipe;

    ck_assert_int_eq(tp_pipe_open(context, rank, number, &pipe), TP_OK);
    reads_armed++;
    ck_assert_int_eq(tp_pipe_read_descriptor(pipe, read_arrived, NULL),
                     TP_OK);
}

/* ---- the tests ---------------------------------------------------------- */

START_TEST(test_whole)
{
    enum { MESSAGES = 400 };
    struct tpr_peer *peer = peer_new(1);

    for (unsigned i = 0; i < MESSAGES; i++) {
        bool before = chance(2) == 0;

        if (before)
            read_arm(1, i % 3);
        if (chance(4) == 0)
            stream_feed_short((struct fake_conn *)peer->conn, i % 3);
        else
            stream_feed((struct fake_conn *)peer->conn, i % 3, 0);
        serve(peer->conn);
        if (!before)
            read_arm(1, i % 3);
        ck_assert_int_eq(tp_progress(context, NULL), TP_OK);
        ck_assert_uint_eq(reads_well, i + 1);
        ck_assert_int_eq(peer->state, TPR_PEER_CONNECTED);
        /* The queue of the fake conn only grows. */
        if (((struct fake_conn *)peer->conn)->count > FRAMES_QUEUE / 2) {
            struct fake_conn *conn = (struct fake_conn *)peer->conn;

            ck_assert_uint_eq(conn->first, conn->count);
            conn->first = conn->count = 0;
        }
    }
    ck_assert_uint_eq(reads_ended, reads_armed);
    ck_assert_uint_gt(fake_sent, 0);       /* credit goes back */
}
END_TEST

/* Small messages come as they went: over a ready-made pipe and others, read at
 * once, later, and borrowed, armed before and after. */
START_TEST(test_small)
{
    enum { MESSAGES = 1200 };
    struct tpr_peer *peer = peer_new(1);
    struct fake_conn *conn = (struct fake_conn *)peer->conn;

    for (unsigned i = 0; i < MESSAGES; i++) {
        bool before = chance(3) != 0;
        tp_pipe *pipe;

        small_make();
        small_later = chance(3) == 0;
        small_borrow = chance(4) == 0;
        ck_assert_int_eq(tp_pipe_open(context, 1, i % 2, &pipe), TP_OK);
        if (before)
            ck_assert_int_eq(tp_pipe_read_descriptor(pipe, small_arrived,
                                                     NULL), TP_OK);
        stream_feed_small(conn, i % 2, &small.message, 0);
        serve(peer->conn);
        if (!before)
            ck_assert_int_eq(tp_pipe_read_descriptor(pipe, small_arrived,
                                                     NULL), TP_OK);
        ck_assert_int_eq(tp_progress(context, NULL), TP_OK);
        ck_assert_uint_eq(small_arrivals, i + 1);
        if (small_later)
            small_ask(pipe, small_kept);
        ck_assert_int_eq(tp_progress(context, NULL), TP_OK);
        ck_assert_uint_eq(small_reads, i + 1);
        if (conn->count > FRAMES_QUEUE / 2) {
            ck_assert_uint_eq(conn->first, conn->count);
            conn->first = conn->count = 0;
        }
    }
    ck_assert_int_eq(peer->state, TPR_PEER_CONNECTED);
}
END_TEST

/* What is not one: too long, too many, on a device, without its bytes. */
START_TEST(test_small_not)
{
    tp_message *message = &small.message;
    size_t data, most = WIRE_SMALL_MOST - sizeof(struct wire_small)
                        - sizeof(struct wire_piece);

    memset(&small, 0, sizeof(small));
    message->payloads = small.payloads;
    message->tensors = small.tensors;
    ck_assert_uint_eq(tpr_small_length(message, &data), 4);
    message->payload_count = 1;
    small.payloads[0] = (tp_payload){ stream_data, most, NULL, 0 };
    ck_assert_uint_eq(tpr_small_length(message, &data), WIRE_SMALL_MOST);
    ck_assert_uint_eq(data, most);
    small.payloads[0].length = most + 1;
    ck_assert_uint_eq(tpr_small_length(message, &data), 0);
    small.payloads[0].length = SIZE_MAX;
    ck_assert_uint_eq(tpr_small_length(message, &data), 0);
    small.payloads[0] = (tp_payload){ NULL, 1, NULL, 0 };
    ck_assert_uint_eq(tpr_small_length(message, &data), 0);
    small.payloads[0] = (tp_payload){ NULL, 0, NULL, 1 };
    ck_assert_uint_eq(tpr_small_length(message, &data), 0);
    small.payloads[0] = (tp_payload){ NULL, 0, NULL, 0 };
    ck_assert_uint_eq(tpr_small_length(message, &data), 8);
    message->metadata_length = 1;
    ck_assert_uint_eq(tpr_small_length(message, &data), 0);
    message->metadata = stream_data;
    ck_assert_uint_eq(tpr_small_length(message, &data), 9);
    message->tensor_count = WIRE_PIECES - 1;
    ck_assert_uint_eq(tpr_small_length(message, &data), 5 + 4 * WIRE_PIECES);
    small.tensors[2].device.type = TP_DEVICE_CUDA;
    ck_assert_uint_eq(tpr_small_length(message, &data), 0);
    small.tensors[2].device.type = TP_DEVICE_CPU;
    small.tensors[2].target.index = 1;
    ck_assert_uint_eq(tpr_small_length(message, &data), 0);
    small.tensors[2].target.index = 0;
    message->tensor_count = WIRE_PIECES;
    ck_assert_uint_eq(tpr_small_length(message, &data), 0);
    message->tensor_count = SIZE_MAX;
    ck_assert_uint_eq(tpr_small_length(message, &data), 0);
    message->tensor_count = 1;
    message->tensors = NULL;
    ck_assert_uint_eq(tpr_small_length(message, &data), 0);
}
END_TEST

static unsigned sessions(unsigned count)
{
    return tpx_is_set("TP_TEST_LONG") ? count * 20 : count;
}

START_TEST(test_damaged)
{
    unsigned ended = 0;

    stream_offers = true;
    for (unsigned i = 0; i < sessions(1500); i++) {
        int rank = (int)i + 1;
        struct tpr_peer *peer = peer_new(rank);
        struct tpf_conn *conn = peer->conn;

        chance_state = i;
        for (unsigned m = 0; m < 6; m++) {
            unsigned number = chance(3);

            if (chance(4) != 0)
                read_arm(rank, number);
            if (chance(8) == 0) {
                stream_feed_short((struct fake_conn *)conn, number);
            } else if (chance(4) == 0) {
                small_make();
                stream_feed_small((struct fake_conn *)conn, number,
                                  &small.message, 1 + chance(3));
            } else {
                stream_feed((struct fake_conn *)conn, number, 1 + chance(12));
            }
        }
        serve(conn);
        if (peer->state == TPR_PEER_ENDED) {
            ended++;
            ck_assert_msg(peer->end == TP_ERR_PROTOCOL
                          || peer->end == TP_ERR_PEER_CLOSED
                          || peer->end == TP_ERR_UNREACHABLE
                          || peer->end == TP_ERR_NO_MEMORY,
                          "%s", tp_strerror(peer->end));
            ck_assert_ptr_nonnull(peer->end_text);
        } else {
            ck_assert_int_eq(peer->state, TPR_PEER_CONNECTED);
            ck_assert(tpr_enter(context));
            tpr_peer_end(peer, TP_ERR_PEER_FAILED, "the session is over");
            tpr_leave(context);
        }
        ck_assert_int_eq(tp_progress(context, NULL), TP_OK);
        ck_assert(peer->conn == NULL);
    }
    ck_assert_uint_gt(ended, sessions(1500) / 4);
    ck_assert_uint_gt(reads_well, 0);
    ck_assert_int_eq(fake_open, 0);
}
END_TEST

/* Short messages for a pipe that nobody reads: with their heads `total` bytes,
 * in frames as long as possible. */
static void credit_feed(struct tpr_peer *peer, unsigned number, size_t total)
{
    static unsigned char frame[FRAMES_MOST];

    while (total > 0) {
        size_t size = total < FRAMES_MOST ? total : FRAMES_MOST;
        struct wire_frame head = { .type = WIRE_MESSAGE, .flags = WIRE_SHORT,
                                   .number = number };

        head.length = (uint32_t)(size - sizeof(head));
        memcpy(frame, &head, sizeof(head));
        fake_feed((struct fake_conn *)peer->conn, frame, size);
        total -= size;
    }
    serve(peer->conn);
}

/* What nobody reads is kept as far as its sender's credit goes, which may be
 * more than ours: who sends more is cut off, and others are not. */
START_TEST(test_credit)
{
    enum { SPREAD = 1000 };
    struct tpr_peer *peer = peer_new(1), *other = peer_new(2);
    struct tp_stats stats;
    tp_pipe *pipe;

    peer->conn->window_spread = SPREAD;
    for (unsigned number = 0; number < 3; number++)
        credit_feed(peer, number, FRAMES_WINDOW);
    ck_assert_int_eq(peer->state, TPR_PEER_CONNECTED);
    read_arm(1, 1);                /* that one is credit again */
    ck_assert_int_eq(tp_progress(context, NULL), TP_OK);
    ck_assert_uint_eq(reads_well, 1);
    credit_feed(peer, 1, FRAMES_MOST + SPREAD);
    credit_feed(peer, 2, SPREAD - 20);
    ck_assert_int_eq(peer->state, TPR_PEER_CONNECTED);
    credit_feed(other, 0, 20);
    credit_feed(peer, 2, 21);
    ck_assert_int_eq(peer->state, TPR_PEER_ENDED);
    ck_assert_int_eq(peer->end, TP_ERR_PROTOCOL);
    for (unsigned number = 0; number < 3; number++) {
        ck_assert_int_eq(tp_pipe_open(context, 1, number, &pipe), TP_OK);
        ck_assert_int_eq(tp_pipe_stats(pipe, &stats), TP_OK);
        ck_assert_str_ne(tp_pipe_error(pipe), "");
        if (number == 2)
            ck_assert_uint_eq(stats.bytes_buffered, 0);
    }
    ck_assert_int_eq(other->state, TPR_PEER_CONNECTED);
    read_arm(2, 0);
    ck_assert_int_eq(tp_progress(context, NULL), TP_OK);
    ck_assert_uint_eq(reads_well, 2);
}
END_TEST

/* The greeting, whole and damaged. */
START_TEST(test_greetings)
{
    unsigned let_in = 0;

    for (unsigned i = 0; i < sessions(1500); i++) {
        unsigned char frame[sizeof(struct wire_frame)
                            + sizeof(struct wire_hello) + TPT_CARD_BYTES];
        struct wire_hello hello = { .magic = { 't', 'p', 'i', 'p' },
                                    .version = WIRE_VERSION };
        struct tpf_conn *conn = &conn_new()->base;
        struct tpt_card *card = calloc(1, sizeof(*card));
        struct wire_frame head = { .type = WIRE_HELLO };
        size_t length, size;
        tp_pipe *pipe;

        chance_state = i;
        *card = context->card;
        card->rank = (int)i + 1;
        tpb_random(card->instance, sizeof(card->instance));
        snprintf(card->backends[0].name, sizeof(card->backends[0].name),
                 "fake");
        ck_assert_int_eq(tpt_card_encode(card, frame + sizeof(head)
                                         + sizeof(hello), &length), TP_OK);
        memcpy(hello.cookie, context->card.cookie, sizeof(hello.cookie));
        hello.card_length = (uint32_t)length;
        head.length = (uint32_t)(sizeof(hello) + length);
        size = sizeof(head) + head.length;
        memcpy(frame, &head, sizeof(head));
        memcpy(frame + sizeof(head), &hello, sizeof(hello));
        if (i % 4 != 0)
            size = stream_damage(frame, size);
        fake_feed((struct fake_conn *)conn, frame, size);
        stream_feed((struct fake_conn *)conn, 0, chance(3));
        ck_assert(tpr_enter(context));
        tpr_upcalls.incoming(context, conn);
        tpr_leave(context);
        serve(conn);
        ck_assert_int_eq(tp_pipe_to_rank(context, (int)i + 1, &pipe), TP_OK);
        let_in += pipe->peer->state == TPR_PEER_CONNECTED;
        ck_assert(tpr_enter(context));
        if (pipe->peer->conn != NULL)
            tpr_peer_end(pipe->peer, TP_ERR_PEER_FAILED, "over");
        tpr_leave(context);
        ck_assert_int_eq(tp_progress(context, NULL), TP_OK);
        free(card);
    }
    (void)let_in;
    ck_assert_int_eq(fake_open, 0);
    ck_assert(tpb_list_empty(&context->strangers));
}
END_TEST

/* Layouts that other processes, maybe of another build, agree upon. */
START_TEST(test_layout)
{
    ck_assert_uint_eq(sizeof(struct wire_frame), 16);
    ck_assert_uint_eq(offsetof(struct wire_frame, number), 4);
    ck_assert_uint_eq(offsetof(struct wire_frame, credit), 8);
    ck_assert_uint_eq(offsetof(struct wire_frame, length), 12);
    ck_assert_uint_eq(sizeof(struct wire_hello), 64);
    ck_assert_uint_eq(offsetof(struct wire_hello, cookie), 8);
    ck_assert_uint_eq(offsetof(struct wire_hello, card_length), 24);
    ck_assert_uint_eq(offsetof(struct wire_hello, trials), 32);
    ck_assert_uint_eq(sizeof(struct wire_welcome), 48);
    ck_assert_uint_eq(sizeof(struct wire_descriptor), 32);
    ck_assert_uint_eq(offsetof(struct wire_descriptor, length), 8);
    ck_assert_uint_eq(offsetof(struct wire_descriptor, metadata_length), 16);
    ck_assert_uint_eq(offsetof(struct wire_descriptor, sent), 24);
    ck_assert_uint_eq(sizeof(struct wire_lent), 32);
    ck_assert_uint_eq(offsetof(struct wire_lent, sent), 12);
    ck_assert_uint_eq(sizeof(struct wire_payload), 24);
    ck_assert_uint_eq(offsetof(struct wire_payload, channel), 16);
    ck_assert_uint_eq(sizeof(struct wire_tensor), 32);
    ck_assert_uint_eq(sizeof(struct wire_small), 4);
    ck_assert_uint_eq(offsetof(struct wire_small, metadata_length), 2);
    ck_assert_uint_eq(sizeof(struct wire_piece), 4);
    ck_assert_uint_eq(offsetof(struct wire_tensor, device_type), 16);
    ck_assert_uint_eq(offsetof(struct wire_tensor, device_index), 20);
    ck_assert_uint_eq(offsetof(struct wire_tensor, target_index), 24);
    ck_assert_int_eq(WIRE_HELLO, 1);
    ck_assert_int_eq(WIRE_BYE, 7);
    ck_assert_int_eq(WIRE_PUSH, 10);
    ck_assert_uint_eq(offsetof(struct wire_tensor, channel), 18);
    ck_assert_uint_eq(sizeof(struct wire_about), 24);
    ck_assert_uint_eq(offsetof(struct wire_about, offset), 8);
}
END_TEST

/* No message with offers has the number that means all of them. */
START_TEST(test_numbers)
{
    uint32_t offers = WIRE_ALL - 1;

    ck_assert_uint_eq(tpr_offer_number(&offers), WIRE_ALL - 1);
    ck_assert_uint_eq(tpr_offer_number(&offers), 0);
    ck_assert_uint_eq(tpr_offer_number(&offers), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("frames");
    TCase *tests = tcase_create("frames");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 200);
    tcase_add_test(tests, test_layout);
    tcase_add_test(tests, test_whole);
    tcase_add_test(tests, test_small);
    tcase_add_test(tests, test_small_not);
    tcase_add_test(tests, test_damaged);
    tcase_add_test(tests, test_numbers);
    tcase_add_test(tests, test_credit);
    tcase_add_test(tests, test_greetings);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
