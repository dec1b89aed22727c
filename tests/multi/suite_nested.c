/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls from inside callbacks and from several threads; event loops. */
#include "config.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/multi/flow.h"

static char nested_byte;

static void nested_fd_arrived(tp_pipe *pipe, tp_status status,
                              tp_message *skeleton, void *arg)
{
    tpx_ok(status);
    skeleton->payloads[0].data = &nested_byte;
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, arg));
}

/* ---- inside callbacks --------------------------------------------------- */

static unsigned nested_inner;

/* Every call from inside a callback; blocking ones too, on another pipe. */
static void nested_calls(tp_pipe *pipe, tp_status status,
                         tp_message *skeleton, void *arg)
{
    tp_context *context = tpx_me.context;
    static char room[64];
    static tp_payload payload = { room, 8, NULL, 0 };
    static tp_message message = { .payloads = &payload, .payload_count = 1 };
    tp_pipe *other = tpx_pipe(!tpx_me.rank, 1), *closed;
    void *memory;
    tp_message *inner;
    tp_stats stats;
    int completed = -1;
    size_t length;
    char *json, got[64];

    tpx_ok(status);
    tpx_status(tp_finalize(context), TP_ERR_INVALID);
    tpx_ok(tp_progress(context, &completed));
    tpx_equal(completed, 0);
    tpx_equal(tp_rank(context), tpx_me.rank);
    tpx_ok(tp_alloc(context, 100, (tp_device){ TP_DEVICE_CPU, 0 }, &memory));
    tpx_ok(tp_free(context, memory));
    tpx_ok(tp_pipe_stats(pipe, &stats));
    tpx_ok(tp_pipe_explain(pipe, &json));
    free(json);
    tpx_check(tp_fd(context) >= 0, "no descriptor");
    tpx_ok(tp_pipe_send(other, "nested", 6));
    tpx_ok(tp_pipe_recv(other, got, sizeof(got), &length));
    tpx_equal(length, 6);
    tpx_ok(tp_pipe_send_message(other, &message, tpx_limit_ms(10000)));
    tpx_ok(tp_pipe_recv_skeleton(other, &inner, tpx_limit_ms(10000)));
    inner->payloads[0].data = got;
    tpx_ok(tp_pipe_recv_message(other, inner, tpx_limit_ms(10000)));
    tpx_ok(tp_pipe_write(other, &message, tpx_count_ok, &nested_inner));
    tpx_ok(tp_pipe_write(tpx_pipe(tpx_me.rank, 0), &message, NULL, NULL));
    tpx_ok(tp_pipe_recv(tpx_pipe(tpx_me.rank, 0), got, sizeof(got), &length));
    tp_wait(context, 1, NULL);
    closed = tpx_pipe(!tpx_me.rank, 100 + nested_inner);
    tpx_ok(tp_pipe_close(closed));
    tpx_status(tp_pipe_send(closed, "x", 1), TP_ERR_CLOSED);
    skeleton->payloads[0].data = room;
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, arg));
}

static void nested_every_call(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0), *other = tpx_pipe(!tpx_me.rank,
                                                                 1);
    unsigned done = 0;
    char got[64];

    for (unsigned i = 0; i < 20; i++) {
        tpx_ok(tp_pipe_read_descriptor(pipe, nested_calls, &done));
        tpx_ok(tp_pipe_send(pipe, "outer", 5));
        tpx_until(&done, i + 1);
        tpx_ok(tp_pipe_recv(other, got, sizeof(got), NULL));
        tpx_until(&nested_inner, i + 1);
    }
}

/* What a callback writes may be kept for others of its kind, but not while it
 * waits for what the reader does then. */
enum { NESTED_KEPT = 5 };
static unsigned nested_kept_written;

static void nested_kept_calls(tp_pipe *pipe, tp_status status,
                              tp_message *skeleton, void *arg)
{
    static unsigned char bytes[NESTED_KEPT];
    static tp_payload payloads[NESTED_KEPT];
    static tp_message messages[NESTED_KEPT];
    tp_pipe *out = tpx_pipe(1, 1), *answers = tpx_pipe(1, 2);
    unsigned char answer = 0;

    tpx_ok(status);
    /* First: its writer may wait for that, where it is pulled from him. */
    skeleton->payloads[0].data = &nested_byte;
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, arg));
    for (unsigned char i = 0; i < NESTED_KEPT; i++) {
        bytes[i] = i;
        payloads[i] = (tp_payload){ .data = &bytes[i], .length = 1 };
        messages[i] = (tp_message){ .payloads = &payloads[i],
                                    .payload_count = 1 };
        tpx_ok(tp_pipe_write(out, &messages[i], tpx_count_ok,
                             &nested_kept_written));
    }
    tpx_ok(tp_pipe_recv(answers, &answer, 1, NULL));
    tpx_equal(answer, 7);
}

static void nested_kept(void)
{
    enum { ROUNDS = 50 };
    unsigned char byte = 0;
    unsigned done = 0;

    for (unsigned round = 0; round < ROUNDS; round++) {
        if (tpx_me.rank == 0) {
            tpx_ok(tp_pipe_read_descriptor(tpx_pipe(1, 0), nested_kept_calls,
                                           &done));
            tpx_until(&done, round + 1);
            tpx_until(&nested_kept_written, NESTED_KEPT * (round + 1));
            continue;
        }
        tpx_ok(tp_pipe_send(tpx_pipe(0, 0), "", 1));
        for (unsigned i = 0; i < NESTED_KEPT; i++) {
            tpx_ok(tp_pipe_recv(tpx_pipe(0, 1), &byte, 1, NULL));
            tpx_equal(byte, i);
        }
        byte = 7;
        tpx_ok(tp_pipe_send(tpx_pipe(0, 2), &byte, 1));
    }
}

/* A message of several frames is read to its end inside the callback of
 * another, while more of both come in. */
static void nested_big(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                       void *arg)
{
    enum { BIG = 300000 };
    tp_pipe *other = tpx_pipe(tp_pipe_rank(pipe), 1);
    unsigned char *memory = malloc(BIG), *outer = *(unsigned char **)arg;
    size_t length;

    tpx_ok(status);
    tpx_check(memory != NULL, "no memory for the test itself");
    tpx_ok(tp_pipe_recv(other, memory, BIG, &length));
    tpx_equal(length, BIG);
    tpx_equal(tpx_verify(memory, BIG, 8), BIG);
    free(memory);
    skeleton->payloads[0].data = outer;
    tpx_ok(tp_pipe_recv_message(pipe, skeleton, -1));
    tpx_equal(tpx_verify(outer, BIG, 7), BIG);
    __atomic_fetch_add(&nested_inner, 1, __ATOMIC_ACQ_REL);
}

static void nested_frames(void)
{
    enum { BIG = 300000 };
    unsigned char *memory = malloc(BIG), *second = malloc(BIG);
    tp_payload payloads[2] = { { memory, BIG, NULL, 0 },
                               { second, BIG, NULL, 0 } };
    tp_message messages[2] = { { .payloads = payloads, .payload_count = 1 },
                               { .payloads = payloads + 1,
                                 .payload_count = 1 } };
    unsigned written = 0;

    tpx_check(memory != NULL && second != NULL, "no memory for the test");
    for (unsigned i = 0; i < 10; i++) {
        if (tpx_me.rank == 0) {
            tpx_fill(memory, BIG, 7);
            tpx_fill(second, BIG, 8);
            for (unsigned m = 0; m < 2; m++)
                tpx_ok(tp_pipe_write(tpx_pipe(1, m), &messages[m],
                                     tpx_count_ok, &written));
            tpx_until(&written, 2 * (i + 1));
        } else {
            tpx_ok(tp_pipe_read_descriptor(tpx_pipe(0, 0), nested_big,
                                           &memory));
            tpx_until(&nested_inner, i + 1);
        }
    }
    free(memory);
    free(second);
}

/* What nested_short_arrived() is to find. */
struct nested_short {
    unsigned char *memory;
    size_t length;
    unsigned read;
};

static void nested_short_read(tp_pipe *pipe, tp_status status,
                              tp_message *message, void *arg)
{
    struct nested_short *expected = arg;

    (void)pipe;
    tpx_ok(status);
    tpx_equal(message->payloads[0].length, expected->length);
    tpx_equal(tpx_verify(expected->memory, expected->length, 5),
              expected->length);
    __atomic_fetch_add(&expected->read, 1, __ATOMIC_ACQ_REL);
}

/* Reads at once, not twice, arms for the next, and then waits: nothing of what
 * was read may be told before this is over, nor get lost. */
static void nested_short_arrived(tp_pipe *pipe, tp_status status,
                                 tp_message *skeleton, void *arg)
{
    struct nested_short *expected = arg;
    unsigned before = __atomic_load_n(&expected->read, __ATOMIC_ACQUIRE);
    char byte;

    tpx_ok(status);
    tpx_equal(skeleton->payload_count, 1);
    if (expected->length > 0)      /* there is no memory to read into yet */
        tpx_status(tp_pipe_read(pipe, skeleton, nested_short_read, expected),
                   TP_ERR_INVALID);
    skeleton->payloads[0].data = expected->memory;
    tpx_ok(tp_pipe_read(pipe, skeleton, nested_short_read, expected));
    tpx_status(tp_pipe_read(pipe, skeleton, nested_short_read, expected),
               TP_ERR_INVALID);
    tpx_ok(tp_pipe_recv(tpx_pipe(0, 1), &byte, 1, NULL));
    tpx_equal(__atomic_load_n(&expected->read, __ATOMIC_ACQUIRE), before);
}

static void nested_after_read(void)
{
    static const size_t lengths[] = { 8, 0, 1, 100, 8192, 16384, 16488, 16489,
                                      100000 };
    enum { LENGTHS = sizeof(lengths) / sizeof(lengths[0]), MOST = 100000 };
    struct nested_short expected = { .memory = malloc(MOST) };

    tpx_check(expected.memory != NULL, "no memory for the test");
    for (unsigned i = 0; i < 5 * LENGTHS; i++) {
        expected.length = lengths[i % LENGTHS];
        if (tpx_me.rank == 0) {
            tpx_fill(expected.memory, expected.length, 5);
            tpx_ok(tp_pipe_send(tpx_pipe(1, 0), expected.memory,
                                expected.length));
            tpx_ok(tp_pipe_send(tpx_pipe(1, 1), "x", 1));
        } else {
            tpx_ok(tp_pipe_read_descriptor(tpx_pipe(0, 0),
                                           nested_short_arrived, &expected));
            tpx_until(&expected.read, i + 1);
        }
    }
    free(expected.memory);
}

/* ---- threads ------------------------------------------------------------ */

enum { NESTED_THREADS = 4 };

static void nested_spawn(void *(*run)(void *), unsigned count)
{
    pthread_t threads[16];

    for (uintptr_t i = 0; i < count; i++)
        tpx_equal(pthread_create(&threads[i], NULL, run, (void *)i), 0);
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static unsigned nested_turns(unsigned turns)
{
    return tpx_me.few ? turns / 64 + 1
           : tpx_me.sanitized ? turns / 8 + 1
           : tpx_me.full ? turns * 10 : turns;
}

/* Each thread has its own pipe and blocks. */
static void *nested_ping(void *arg)
{
    unsigned thread = (unsigned)(uintptr_t)arg;
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, thread + 1);
    static unsigned char memory[NESTED_THREADS][70000];
    size_t length;

    for (unsigned i = 0; i < nested_turns(400); i++) {
        size_t size = i % 16 == 0 ? 70000 : i % 50;
        uint64_t seed = thread * 1000 + i;

        if (i % 2 == (unsigned)tpx_me.rank) {
            tpx_fill(memory[thread], size, seed);
            tpx_ok(tp_pipe_send(pipe, memory[thread], size));
        } else {
            tpx_ok(tp_pipe_recv(pipe, memory[thread], 70000, &length));
            tpx_equal(length, size);
            tpx_equal(tpx_verify(memory[thread], size, seed), size);
        }
    }
    return NULL;
}

static void nested_threads_apart(void)
{
    nested_spawn(nested_ping, NESTED_THREADS);
}

struct nested_item {
    uint32_t thread, number;
};

static unsigned nested_written[NESTED_THREADS];

/* All write to the same pipe, without waiting for each other. */
static void *nested_burst(void *arg)
{
    unsigned thread = (unsigned)(uintptr_t)arg, turns = nested_turns(1000);
    struct nested_item *items = calloc(turns, sizeof(*items));
    tp_payload *payloads = calloc(turns, sizeof(*payloads));
    tp_message *messages = calloc(turns, sizeof(*messages));
    tp_pipe *pipe = tpx_pipe(1, 0);

    tpx_check(items && payloads && messages, "no memory for the test itself");
    for (unsigned i = 0; i < turns; i++) {
        items[i] = (struct nested_item){ thread, i };
        payloads[i] = (tp_payload){ &items[i], sizeof(items[i]), NULL, 0 };
        messages[i] = (tp_message){ .payloads = &payloads[i],
                                    .payload_count = 1 };
        if (i % 7 == 3)
            tpx_ok(tp_pipe_send(pipe, &items[i], sizeof(items[i])));
        else
            tpx_ok(tp_pipe_write(pipe, &messages[i], tpx_count_ok,
                                 &nested_written[thread]));
    }
    tpx_until(&nested_written[thread], turns - (turns + 3) / 7);
    free(items);
    free(payloads);
    free(messages);
    return NULL;
}

static void nested_threads_together(void)
{
    uint32_t next[NESTED_THREADS] = { 0 };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct nested_item item;

    if (tpx_me.rank == 0) {
        nested_spawn(nested_burst, NESTED_THREADS);
        return;
    }
    for (unsigned i = 0; i < NESTED_THREADS * nested_turns(1000); i++) {
        tpx_ok(tp_pipe_recv(pipe, &item, sizeof(item), NULL));
        tpx_check(item.thread < NESTED_THREADS, "garbage");
        tpx_check(item.number == next[item.thread],
                  "thread %u's message %u came when %u was due: the order of"
                  " its writes is lost", item.thread, item.number,
                  next[item.thread]);
        next[item.thread]++;
    }
}

/* While another thread takes the context over and over: what finds it taken
 * must not be overtaken by what does not. */
static unsigned nested_stop;

static void *nested_hammer(void *arg)
{
    (void)arg;
    while (__atomic_load_n(&nested_stop, __ATOMIC_ACQUIRE) == 0)
        tpx_ok(tp_progress(tpx_me.context, NULL));
    return NULL;
}

static void nested_overtaking(void)
{
    unsigned turns = nested_turns(60000), written = 0, number;
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned *numbers = calloc(turns, sizeof(*numbers));
    tp_payload *payloads = calloc(turns, sizeof(*payloads));
    tp_message *messages = calloc(turns, sizeof(*messages));
    pthread_t hammer;

    tpx_check(numbers && payloads && messages, "no memory for the test");
    for (unsigned i = 0; tpx_me.rank == 1 && i < turns; i++) {
        tpx_ok(tp_pipe_recv(pipe, &number, sizeof(number), NULL));
        tpx_check(number == i, "message %u came when %u was due", number, i);
    }
    if (tpx_me.rank == 0) {
        tpx_equal(pthread_create(&hammer, NULL, nested_hammer, NULL), 0);
        for (unsigned i = 0; i < turns; i++) {
            numbers[i] = i;
            payloads[i] = (tp_payload){ &numbers[i], sizeof(number), NULL, 0 };
            messages[i] = (tp_message){ .payloads = &payloads[i],
                                        .payload_count = 1 };
            tpx_ok(tp_pipe_write(pipe, &messages[i], tpx_count_ok, &written));
        }
        tpx_until(&written, turns);
        __atomic_store_n(&nested_stop, 1, __ATOMIC_RELEASE);
        pthread_join(hammer, NULL);
    }
    free(numbers);
    free(payloads);
    free(messages);
}

/* Two threads wait for their own callbacks with tp_wait(). */
static void *nested_waiter(void *arg)
{
    unsigned thread = (unsigned)(uintptr_t)arg, done = 0;
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, thread + 1);
    char byte = 'w';
    tp_payload payload = { &byte, 1, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };

    for (unsigned i = 0; i < nested_turns(2000); i++) {
        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &done));
        tpx_until(&done, i + 1);
    }
    return NULL;
}

static void nested_two_waiters(void)
{
    char byte;

    if (tpx_me.rank == 0) {
        nested_spawn(nested_waiter, 2);
        return;
    }
    for (unsigned i = 0; i < nested_turns(2000); i++)
        for (unsigned thread = 0; thread < 2; thread++)
            tpx_ok(tp_pipe_recv(tpx_pipe(0, thread + 1), &byte, 1, NULL));
}

/* While one thread sleeps in a blocking call, or nobody but the context's own
 * thread cares, another calls tp_progress() once and goes away: what comes
 * then must be noticed all the same. */
static void *nested_sleeper(void *arg)
{
    char byte;

    for (unsigned i = 0; i < 15; i++) {
        tpx_ok(tp_pipe_recv(arg, &byte, 1, NULL));
        tpx_ok(tp_pipe_send(arg, &byte, 1));
    }
    return NULL;
}

static void nested_passer_by(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    pthread_t thread;
    char byte = 'p';

    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        for (unsigned i = 0; i < 15; i++) {
            tpx_sleep_ms(8);
            tpx_ok(tp_pipe_send(pipe, &byte, 1));
            tpx_ok(tp_pipe_recv(pipe, &byte, 1, NULL));
        }
        tpx_meet(1);
        return;
    }
    tpx_equal(pthread_create(&thread, NULL, nested_sleeper, pipe), 0);
    for (unsigned i = 0; i < 40; i++) {
        tpx_sleep_ms(3);
        tpx_ok(tp_progress(tpx_me.context, NULL));
    }
    pthread_join(thread, NULL);
    tpx_meet(0);
}

static void nested_passed_by(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned read = 0;
    char byte = 'p';

    tpx_meet(!tpx_me.rank);
    for (unsigned i = 0; i < 15; i++) {
        if (tpx_me.rank == 0) {
            tpx_sleep_ms(20);
            tpx_ok(tp_pipe_send(pipe, &byte, 1));
            tpx_ok(tp_pipe_recv(tpx_pipe(1, 1), &byte, 1, NULL));
            continue;
        }
        tpx_ok(tp_pipe_read_descriptor(pipe, nested_fd_arrived, &read));
        tpx_sleep_ms(10);
        tpx_ok(tp_progress(tpx_me.context, NULL));
        while (tpx_me.mode != TP_PROGRESS_MANUAL
               && __atomic_load_n(&read, __ATOMIC_ACQUIRE) <= i)
            tpx_sleep_ms(1);   /* the context's thread does it */
        tpx_until(&read, i + 1);
        tpx_ok(tp_pipe_send(tpx_pipe(0, 1), &byte, 1));
    }
}

/* One thread sleeps for a message from this very rank; another sends it. */
static void *nested_self_receiver(void *arg)
{
    char byte;

    (void)arg;
    for (unsigned i = 0; i < 20; i++)
        tpx_ok(tp_pipe_recv(tpx_pipe(0, 0), &byte, 1, NULL));
    return NULL;
}

static void nested_self(void)
{
    pthread_t thread;

    tpx_equal(pthread_create(&thread, NULL, nested_self_receiver, NULL), 0);
    for (unsigned i = 0; i < 20; i++) {
        tpx_sleep_ms(3);
        tpx_ok(tp_pipe_send(tpx_pipe(0, 0), "s", 1));
    }
    pthread_join(thread, NULL);
}

/* ---- event loops -------------------------------------------------------- */

static void nested_fd(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    char byte = 'f';
    tp_payload payload = { &byte, 1, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    unsigned read = 0, written = 0;

    for (unsigned i = 0; i < nested_turns(20000); i++) {
        tpx_ok(tp_pipe_read_descriptor(pipe, nested_fd_arrived, &read));
        if (tpx_me.rank == 0)
            tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &written));
        tpx_until_polled(&read, i + 1);
        if (tpx_me.rank == 1)
            tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &written));
        tpx_until_polled(&written, i + 1);
    }
}

/* To itself: what is written outside of tp_progress() makes the descriptor
 * readable as well. */
static void nested_fd_self(void)
{
    tp_pipe *pipe = tpx_pipe(0, 0);
    char byte = 'f';
    tp_payload payload = { &byte, 1, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    unsigned read = 0, written = 0;

    for (unsigned i = 0; i < 200; i++) {
        tpx_ok(tp_pipe_read_descriptor(pipe, nested_fd_arrived, &read));
        tpx_ok(tp_progress(tpx_me.context, NULL));
        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &written));
        tpx_poll();
        tpx_until_polled(&read, i + 1);
        tpx_until_polled(&written, i + 1);
    }
}

/* The peer is late: nothing but a clock tells that its card is there. */
static void nested_fd_late(void)
{
    tp_pipe *pipe;
    unsigned written = 0;
    char byte = 'l';
    tp_payload payload = { &byte, 1, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };

    if (tpx_me.rank == 1)
        tpx_sleep_ms(150);
    tpx_ok(tp_init(NULL, &tpx_me.context));
    tpx_me.size = 2;
    pipe = tpx_pipe(!tpx_me.rank, 0);
    if (tpx_me.rank == 0) {
        tpx_check(tp_fd(tpx_me.context) >= 0, "no descriptor");
        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &written));
        tpx_until_polled(&written, 1);
    } else {
        /* Not by its pipe: that would seek the acquaintance itself. */
        tpx_ok(tp_read_descriptor_any(tpx_me.context, nested_fd_arrived,
                                      &written));
        tpx_until(&written, 1);
    }
}

/* Big ones both ways through event loops: blocked writers wake up too. */
static void nested_fd_big(void)
{
    enum { BIG = 3 << 20 };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned char *out = malloc(BIG), *in = malloc(BIG);
    tp_payload payload = { out, BIG, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    tp_message *skeleton;
    unsigned written = 0, read = 0;

    tpx_check(out != NULL && in != NULL, "no memory for the test itself");
    tpx_fill(out, BIG, (uint64_t)tpx_me.rank);
    for (unsigned i = 0; i < 5; i++) {
        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &written));
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, -1));
        skeleton->payloads[0].data = in;
        tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, &read));
        tpx_until_polled(&read, i + 1);
        tpx_until_polled(&written, i + 1);
        tpx_equal(tpx_verify(in, BIG, !tpx_me.rank), BIG);
    }
    free(out);
    free(in);
}

/* ---- who counts callbacks ----------------------------------------------- */

static void nested_waits(tp_pipe *pipe, tp_status status, tp_message *message,
                         void *arg)
{
    int inner = -1;

    (void)pipe;
    (void)message;
    tpx_ok(status);
    (void)tp_wait(tpx_me.context, 0, &inner);
    tpx_equal(inner, 0);
    __atomic_add_fetch((unsigned *)arg, 1, __ATOMIC_RELEASE);
}

/* A callback that waits took the count of those before it from the loop that
 * adds them up: this one went on for ever. */
static void nested_counts(void)
{
    enum { WRITES = 5 };
    tp_pipe *pipe = tpx_pipe(0, 0);
    tp_message empty = { 0 };

    for (int round = 0; round < 2; round++) {
        unsigned done = 0;
        int count = 0, more;

        do
            tpx_ok(tp_progress(tpx_me.context, &more));
        while (more > 0);
        for (int i = 0; i < WRITES; i++)
            tpx_ok(tp_pipe_write(pipe, &empty, nested_waits, &done));
        while (__atomic_load_n(&done, __ATOMIC_ACQUIRE) < WRITES) {
            if (round == 0)
                tpx_ok(tp_progress(tpx_me.context, &more));
            else
                tpx_ok(tp_wait(tpx_me.context, tpx_limit_ms(10000), &more));
            count += more;
        }
        /* The context's thread may be about to count the last one. */
        while (count < WRITES
               && tp_wait(tpx_me.context, tpx_limit_ms(10000), &more) == TP_OK)
            count += more;
        tpx_equal(count, WRITES);
        for (int i = 0; i < WRITES; i++)
            tpx_ok(tp_pipe_recv(pipe, NULL, 0, NULL));
    }
}

const struct tpx_spmd tpx_nested[] = {
    { "nested_every_call", nested_every_call, 2, 0, 30 },
    { "nested_kept", nested_kept, 2, 0, 30 },
    { "nested_frames", nested_frames, 2, 0, 30 },
    { "nested_after_read", nested_after_read, 2, 0, 30 },
    { "nested_threads_apart", nested_threads_apart, 2, 0, 40 },
    { "nested_threads_together", nested_threads_together, 2, 0, 40 },
    { "nested_two_waiters", nested_two_waiters, 2, 0, 40 },
    { "nested_overtaking", nested_overtaking, 2, 0, 40 },
    { "nested_passer_by", nested_passer_by, 2, 0, 20 },
    { "nested_passed_by", nested_passed_by, 2, 0, 20 },
    { "nested_self", nested_self, 1, 0, 20 },
    { "nested_counts", nested_counts, 1, 0, 30 },
    { "nested_fd", nested_fd, 2, 0, 200 },
    { "nested_fd_self", nested_fd_self, 1, 0, 20 },
    { "nested_fd_late", nested_fd_late, 2, TPX_BARE, 30 },
    { "nested_fd_big", nested_fd_big, 2, 0, 30 },
    { NULL }
};
