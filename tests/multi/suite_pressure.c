/* SPDX-License-Identifier: BSD-3-Clause */
/* Promise 6: a reader that is not there costs no memory, and stops nobody
 * else. */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/multi/spmd.h"

enum {
    PRESSURE_BYTES = 4096, PRESSURE_METADATA = 65536,
    PRESSURE_LONG = 1 << 20,   /* metadata */
    PRESSURE_MOST = 6 << 20,   /* memory beside the operations themselves */
    PRESSURE_OPERATION = 400   /* bytes that one queued write may cost */
};

static unsigned pressure_count(void)
{
    return tpx_me.few ? 3000 : tpx_me.sanitized ? 5000 : 100000;
}

/* Grown by more than that?  Sanitizers remember freed memory: not then. */
static void pressure_bounded(size_t before, size_t allowed)
{
    size_t now = tpx_resident();

    tpx_check(tpx_me.sanitized || now <= before + allowed,
              "memory grew by %zu KiB, allowed are %zu KiB",
              (now - before) / 1024, allowed / 1024);
}

static struct pressure_state {
    unsigned char memory[PRESSURE_BYTES];      /* lent to all writes */
    unsigned written;
} pressure;

static unsigned pressure_written(void)
{
    return __atomic_load_n(&pressure.written, __ATOMIC_ACQUIRE);
}

/* The peer answers on another pipe: it has had its turns, and has taken what
 * it takes without a reader. */
static void pressure_chat(tp_pipe *other)
{
    unsigned number;

    for (unsigned i = 0; i < 500; i++) {
        tpx_ok(tp_pipe_send(other, &i, sizeof(i)));
        tpx_ok(tp_pipe_recv(other, &number, sizeof(number), NULL));
        tpx_equal(number, i);
    }
}

static void pressure_writer(tp_pipe *pipe, tp_pipe *other)
{
    tp_payload payload = { pressure.memory, PRESSURE_BYTES, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    unsigned count = pressure_count(), stuck;
    size_t before = tpx_resident();
    tp_stats stats;

    for (unsigned i = 0; i < count; i++)
        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok,
                             &pressure.written));
    do {
        stuck = pressure_written();
        pressure_chat(other);
    } while (tp_wait(tpx_me.context, 100, NULL) == TP_OK
             || pressure_written() != stuck);
    tpx_check(stuck < count, "all writes completed without a reader");
    tpx_check(stuck * (size_t)PRESSURE_BYTES <= PRESSURE_MOST,
              "%u writes completed without a reader", stuck);
    tpx_ok(tp_pipe_stats(pipe, &stats));
    tpx_equal(stats.writes_pending, count - stuck);
    /* A few are all told of, where their memory is lent. */
    tpx_check(tpx_me.sanitized || tpx_me.few || stats.blocked > 0,
              "no write is counted as blocked");
    pressure_bounded(before, PRESSURE_MOST
                             + (size_t)count * PRESSURE_OPERATION);
    pressure_chat(other);
    tpx_equal(pressure_written(), stuck);
    tpx_ok(tp_pipe_send(other, &count, sizeof(count)));
    tpx_until(&pressure.written, count);
}

static void pressure_reader(tp_pipe *pipe, tp_pipe *other)
{
    size_t before = tpx_resident(), length;
    unsigned char *room = malloc(PRESSURE_BYTES);
    unsigned number;
    tp_stats stats;

    tpx_check(room != NULL, "no memory for the test itself");
    for (;;) {
        tpx_ok(tp_pipe_recv(other, &number, sizeof(number), NULL));
        if (number == pressure_count())
            break;
        tpx_ok(tp_pipe_send(other, &number, sizeof(number)));
    }
    tpx_ok(tp_pipe_stats(pipe, &stats));
    tpx_check(stats.bytes_buffered <= PRESSURE_MOST, "%llu bytes held",
              (unsigned long long)stats.bytes_buffered);
    pressure_bounded(before, PRESSURE_MOST);
    for (unsigned i = 0; i < pressure_count(); i++) {
        tpx_ok(tp_pipe_recv(pipe, room, PRESSURE_BYTES, &length));
        tpx_equal(length, PRESSURE_BYTES);
        if (i % 1000 == 0)
            tpx_equal(tpx_verify(room, PRESSURE_BYTES, 3), PRESSURE_BYTES);
    }
    pressure_bounded(before, PRESSURE_MOST);
    free(room);
}

static void pressure_unread(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0), *other = tpx_pipe(!tpx_me.rank,
                                                                 1);

    tpx_fill(pressure.memory, PRESSURE_BYTES, 3);
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0)
        pressure_writer(pipe, other);
    else
        pressure_reader(pipe, other);
}

/* Both write and neither reads; then both read. */
static void pressure_both(void)
{
    unsigned char *memory = malloc(4 << 20), *room = malloc(4 << 20);
    tp_payload payload = { memory, 4 << 20, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0), *other = tpx_pipe(!tpx_me.rank,
                                                                 1);
    unsigned written = 0;
    size_t length;
    char byte;

    tpx_check(memory != NULL && room != NULL, "no memory for the test itself");
    tpx_fill(memory, 4 << 20, (uint64_t)tpx_me.rank);
    for (int i = 0; i < 5; i++)
        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &written));
    while (tp_wait(tpx_me.context, 50, NULL) == TP_OK)
        ;
    tpx_equal(written, 0);
    /* Neither reads before both have looked. */
    tpx_ok(tp_pipe_send(other, "l", 1));
    tpx_ok(tp_pipe_recv(other, &byte, 1, NULL));
    for (int i = 0; i < 5; i++) {
        tpx_ok(tp_pipe_recv(pipe, room, 4 << 20, &length));
        tpx_equal(tpx_verify(room, 4 << 20, !tpx_me.rank), 4 << 20);
    }
    tpx_until(&written, 5);
    free(memory);
    free(room);
}

/* Ten pipes to one rank, of which nine are not read for a while; and they
 * all get their turn afterwards. */
static void pressure_pipes(void)
{
    enum { PIPES = 10, EACH = 60, BYTES = 20000 };
    static unsigned char memory[BYTES];
    tp_payload payload = { memory, BYTES, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    unsigned written[PIPES] = { 0 };
    size_t length;

    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        tpx_fill(memory, BYTES, 11);
        for (unsigned i = 0; i < EACH; i++)
            for (unsigned p = 0; p < PIPES; p++)
                tpx_ok(tp_pipe_write(tpx_pipe(1, p), &message, tpx_count_ok,
                                     &written[p]));
        for (unsigned p = 0; p < PIPES; p++)
            tpx_until(&written[p], EACH);
        return;
    }
    for (unsigned p = PIPES; p-- > 0;)
        for (unsigned i = 0; i < EACH; i++) {
            tpx_ok(tp_pipe_recv(tpx_pipe(0, p), memory, BYTES, &length));
            tpx_equal(length, BYTES);
            tpx_equal(tpx_verify(memory, BYTES, 11), BYTES);
        }
}

/* Far more pipes than there is room for have something to send, short and long
 * by turns.  Each gets its turn, though the last one is read first. */
static void pressure_crowd(void)
{
    enum { PIPES = 300, TURNS = 4, FIRST = 100 };
    static unsigned char memory[PRESSURE_BYTES];
    tp_payload payloads[2] = { { .data = memory, .length = 8 },
                               { .data = memory, .length = sizeof(memory) } };
    tp_message messages[2] = {
        { .payloads = &payloads[0], .payload_count = 1 },
        { .payloads = &payloads[1], .payload_count = 1 }
    };
    unsigned written = 0;

    if (tpx_me.rank == 0) {
        tpx_fill(memory, sizeof(memory), 11);
        for (unsigned i = 0; i < PIPES * TURNS; i++)
            tpx_ok(tp_pipe_write(tpx_pipe(1, FIRST + i % PIPES),
                                 &messages[(i + i / PIPES) % 2],
                                 tpx_count_ok, &written));
        tpx_until(&written, PIPES * TURNS);
        tpx_barrier();
        return;
    }
    for (unsigned i = PIPES * TURNS; i-- > 0;) {
        unsigned number = i / TURNS, turn = TURNS - 1 - i % TURNS;
        size_t length;

        tpx_ok(tp_pipe_recv(tpx_pipe(0, FIRST + number), memory,
                            sizeof(memory), &length));
        tpx_equal(length, payloads[(number + turn) % 2].length);
        tpx_equal(tpx_verify(memory, length, 11), length);
        memset(memory, 0, sizeof(memory));
    }
    tpx_barrier();
}

static void pressure_described(tp_pipe *pipe, tp_status status,
                               tp_message *skeleton, void *arg)
{
    tpx_ok(status);
    tpx_equal(skeleton->metadata_length, PRESSURE_METADATA);
    tpx_equal(tpx_verify(skeleton->metadata, PRESSURE_METADATA, 5),
              PRESSURE_METADATA);
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, arg));
}

/* Long metadata of writes that wait is not held twice. */
static void pressure_metadata(void)
{
    static unsigned char metadata[PRESSURE_METADATA];
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned count = tpx_me.sanitized || tpx_me.few ? 100 : 1000, ended = 0;
    tp_message message = { .metadata = metadata,
                           .metadata_length = PRESSURE_METADATA };
    size_t before;

    tpx_fill(metadata, PRESSURE_METADATA, 5);
    tpx_meet(!tpx_me.rank);
    before = tpx_resident();
    if (tpx_me.rank == 0) {
        for (unsigned i = 0; i < count; i++)
            tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &ended));
        pressure_bounded(before, PRESSURE_MOST
                                 + (size_t)count * PRESSURE_OPERATION);
        tpx_ok(tp_pipe_send(tpx_pipe(1, 1), "r", 1));
    } else {
        char byte;

        tpx_ok(tp_pipe_recv(tpx_pipe(0, 1), &byte, 1, NULL));
        for (unsigned i = 0; i < count; i++)
            tpx_ok(tp_pipe_read_descriptor(pipe, pressure_described, &ended));
    }
    tpx_until(&ended, count);
}

static void pressure_accepted(tp_listener *listener, tp_status status,
                              tp_pipe *pipe, void *arg)
{
    (void)listener;
    tpx_ok(status);
    __atomic_store_n((tp_pipe **)arg, pipe, __ATOMIC_RELEASE);
}

/* A guest with a long descriptor comes, and goes. */
static void pressure_guest(tp_listener *listener, const char *address,
                           size_t length)
{
    static unsigned char metadata[PRESSURE_LONG];
    tp_message message = { .metadata = metadata, .metadata_length = length };
    tp_pipe *pipe = NULL;
    tp_message *skeleton;
    char byte;

    if (tpx_me.rank != 0) {
        tpx_ok(tp_connect(tpx_me.context, address, &pipe));
        tpx_ok(tp_pipe_send_message(pipe, &message, -1));
        tpx_status(tp_pipe_recv(pipe, &byte, 1, NULL), TP_ERR_PEER_CLOSED);
        tpx_ok(tp_pipe_close(pipe));
        return;
    }
    tpx_ok(tp_accept(listener, pressure_accepted, &pipe));
    while (__atomic_load_n(&pipe, __ATOMIC_ACQUIRE) == NULL)
        (void)tp_wait(tpx_me.context, 5, NULL);
    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, -1));
    tpx_equal(skeleton->metadata_length, length);
    tpx_ok(tp_pipe_recv_message(pipe, skeleton, -1));
    tpx_ok(tp_pipe_close(pipe));
}

/* Nothing of them is kept when they have gone, which takes some ticks: where
 * the machine is fast they are all there at a time, and as many before. */
static void pressure_come_and_go(tp_listener *listener, const char *address,
                                 int count, size_t length)
{
    size_t before;

    for (int i = 0; i < count; i++)
        pressure_guest(listener, address, length);
    before = tpx_resident();
    for (int i = 0; i < count; i++)
        pressure_guest(listener, address, length);
    tpx_meet(!tpx_me.rank);
    for (int i = 0; i < 10; i++)
        (void)tp_wait(tpx_me.context, 20, NULL);
    pressure_bounded(before, (size_t)count * length / 2);
}

/* What a long descriptor needs is not kept in any pipe, what a shorter one
 * needs not in those of guests who have gone. */
static void pressure_guests(void)
{
    char address[256];
    tp_listener *listener = NULL;

    if (tpx_me.rank == 0) {
        tpx_ok(tp_listen(tpx_me.context, NULL, &listener));
        tpx_ok(tp_listener_address(listener, address, sizeof(address)));
        tpx_ok(tp_pipe_send(tpx_pipe(1, 0), address, sizeof(address)));
    } else {
        tpx_ok(tp_pipe_recv(tpx_pipe(0, 0), address, sizeof(address), NULL));
    }
    pressure_come_and_go(listener, address, 32, PRESSURE_LONG);
    if (!tpx_me.sanitized)
        pressure_come_and_go(listener, address, 160, 60000);
}

/* ---- a pipe beside one that never rests ---------------------------------- */

/* Messages of this rank to itself that go round and round: there is always one
 * more than is served in a turn. */
enum {
    BESIDE_ROUND = 160, BESIDE_LONG = 60000,
    BESIDE_PAUSE_US = 1000,
    BESIDE_MOST = 4000             /* served while somebody is let in: a hundred
                                      are, and some more on a busy machine */
};

static struct {
    tp_message message;
    tp_payload payload;
    unsigned char out, in;
    unsigned rounds, left, written;
    bool over, slowly;
} beside;

static void beside_read(tp_pipe *pipe, tp_status status, tp_message *message,
                        void *arg);

static void beside_arrived(tp_pipe *pipe, tp_status status,
                           tp_message *skeleton, void *arg)
{
    tpx_ok(status);
    skeleton->payloads[0].data = &beside.in;
    tpx_ok(tp_pipe_read(pipe, skeleton, beside_read, arg));
}

static void beside_once_more(tp_pipe *pipe)
{
    tpx_ok(tp_pipe_read_descriptor(pipe, beside_arrived, NULL));
    tpx_ok(tp_pipe_write(pipe, &beside.message, tpx_count_ok,
                         &beside.written));
}

static void beside_read(tp_pipe *pipe, tp_status status, tp_message *message,
                        void *arg)
{
    (void)message;
    (void)arg;
    tpx_ok(status);
    if (beside.slowly)
        usleep(BESIDE_PAUSE_US);
    __atomic_fetch_add(&beside.rounds, 1, __ATOMIC_RELAXED);
    if (__atomic_load_n(&beside.over, __ATOMIC_ACQUIRE))
        __atomic_fetch_add(&beside.left, 1, __ATOMIC_RELEASE);
    else
        beside_once_more(pipe);
}

static void beside_begin(bool slowly)
{
    beside.payload = (tp_payload){ .data = &beside.out, .length = 1 };
    beside.message = (tp_message){ .payloads = &beside.payload,
                                   .payload_count = 1 };
    beside.slowly = slowly;
    for (int i = 0; i < BESIDE_ROUND; i++)
        beside_once_more(tpx_pipe(0, 4));
    tpx_until(&beside.rounds, BESIDE_ROUND);
}

static void beside_end(void)
{
    __atomic_store_n(&beside.over, true, __ATOMIC_RELEASE);
    tpx_until(&beside.left, BESIDE_ROUND);
}

/* What comes from rank 1: a long message that nobody asks for yet, and behind
 * it, of another pipe, one that is waited for. */
static void pressure_beside(void)
{
    unsigned char *memory = calloc(1, BESIDE_LONG), byte = 0;
    tp_payload payload = { .data = memory, .length = BESIDE_LONG };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    unsigned written = 0;

    tpx_check(memory != NULL, "no memory for the test itself");
    if (tpx_me.rank == 1) {
        tpx_fill(memory, BESIDE_LONG, 7);
        tpx_ok(tp_pipe_recv(tpx_pipe(0, 5), &byte, 1, NULL));
        tpx_ok(tp_pipe_write(tpx_pipe(0, 6), &message, tpx_count_ok,
                             &written));
        tpx_ok(tp_pipe_send(tpx_pipe(0, 7), "b", 1));
        tpx_until(&written, 1);
    } else {
        beside_begin(false);
        tpx_ok(tp_pipe_send(tpx_pipe(1, 5), "a", 1));
        tpx_ok(tp_pipe_recv(tpx_pipe(1, 7), &byte, 1, NULL));
        beside_end();
        tpx_ok(tp_pipe_recv(tpx_pipe(1, 6), memory, BESIDE_LONG, NULL));
        tpx_check(tpx_verify(memory, BESIDE_LONG, 7) == BESIDE_LONG,
                  "it is not what was written");
    }
    tpx_barrier();
    free(memory);
}

/* Their callbacks take long, and yet a guest is let in: what descriptors tell
 * is heard between them. */
static void pressure_called(void)
{
    char address[256], byte;
    tp_listener *listener = NULL;
    tp_pipe *pipe = NULL;
    unsigned from, served;

    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 1) {
        tpx_ok(tp_pipe_recv(tpx_pipe(0, 5), address, sizeof(address), NULL));
        tpx_ok(tp_connect(tpx_me.context, address, &pipe));
        tpx_ok(tp_pipe_send(pipe, "c", 1));
        tpx_status(tp_pipe_recv(pipe, &byte, 1, NULL), TP_ERR_PEER_CLOSED);
    } else {
        tpx_ok(tp_listen(tpx_me.context, NULL, &listener));
        tpx_ok(tp_listener_address(listener, address, sizeof(address)));
        tpx_ok(tp_accept(listener, pressure_accepted, &pipe));
        beside_begin(true);
        from = __atomic_load_n(&beside.rounds, __ATOMIC_RELAXED);
        tpx_ok(tp_pipe_send(tpx_pipe(1, 5), address, sizeof(address)));
        while (__atomic_load_n(&pipe, __ATOMIC_ACQUIRE) == NULL)
            (void)tp_wait(tpx_me.context, 5, NULL);
        served = __atomic_load_n(&beside.rounds, __ATOMIC_RELAXED) - from;
        tpx_check(served < BESIDE_MOST, "%u messages came before the guest",
                  served);
        beside_end();
        tpx_ok(tp_pipe_recv(pipe, &byte, 1, NULL));
    }
    tpx_ok(tp_pipe_close(pipe));
    tpx_barrier();
}

const struct tpx_spmd tpx_pressure[] = {
    { "pressure_unread", pressure_unread, 2, TPX_LAUNCH, 40 },
    { "pressure_both", pressure_both, 2, 0, 40 },
    { "pressure_pipes", pressure_pipes, 2, 0, 40 },
    { "pressure_crowd", pressure_crowd, 2, 0, 40 },
    { "pressure_metadata", pressure_metadata, 2, 0, 40 },
    { "pressure_guests", pressure_guests, 2, 0, 40 },
    { "pressure_beside", pressure_beside, 2, 0, 40 },
    { "pressure_called", pressure_called, 2, 0, 60 },
    { NULL }
};
