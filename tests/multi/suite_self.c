/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A rank's messages to itself.  What fits into the ring ends there, so that a
 * rank may write before it reads; what does not is read where it lies.
 */
#include "config.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/multi/spmd.h"

enum {
    SELF_LONG = 64 * 1024,
    SELF_HUGE = 3 << 20,           /* more than is copied in one go */
    SELF_FITS = 12 * 1024,         /* in frames: eight of them at once */
    SELF_FITTING = 8,
    SELF_ROUNDS = 300
};

/* One message with its two buffers, and what becomes of it. */
struct self_letter {
    unsigned char *from, *to;
    size_t length;
    bool tensor, split, hold;      /* split: metadata, and two buffers */
    tp_payload payloads[2];
    tp_tensor tensor_of;
    tp_message message, *shown;
    unsigned arrived, read, written;
};

static unsigned char *self_memory(size_t length, bool alloc)
{
    tp_device device = { .type = TP_DEVICE_CPU };
    void *memory;

    if (alloc) {
        tpx_ok(tp_alloc(tpx_me.context, length, device, &memory));
    } else {
        memory = malloc(length);
        tpx_check(memory != NULL, "no memory for the test itself");
    }
    return memory;
}

static void self_free(unsigned char *memory, bool alloc)
{
    if (alloc)
        tpx_ok(tp_free(tpx_me.context, memory));
    else
        free(memory);
}

static void self_begin(struct self_letter *letter, size_t length, bool alloc)
{
    memset(letter, 0, sizeof(*letter));
    letter->length = length;
    letter->from = self_memory(length, alloc);
    letter->to = self_memory(length, alloc);
    tpx_fill(letter->from, length, length);
}

static void self_end(struct self_letter *letter, bool alloc)
{
    self_free(letter->from, alloc);
    self_free(letter->to, alloc);
}

static void self_read(tp_pipe *pipe, struct self_letter *letter)
{
    tp_message *skeleton = letter->shown;

    if (letter->tensor) {
        skeleton->tensors[0].data = letter->to;
    } else {
        skeleton->payloads[0].data = letter->to;
        if (letter->split)
            skeleton->payloads[1].data = letter->to + letter->length / 3;
    }
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, &letter->read));
}

static void self_arrived(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                         void *arg)
{
    struct self_letter *letter = arg;

    tpx_ok(status);
    letter->shown = skeleton;
    if (!letter->hold)
        self_read(pipe, letter);
    __atomic_add_fetch(&letter->arrived, 1, __ATOMIC_RELEASE);
}

static void self_arm(tp_pipe *pipe, struct self_letter *letter)
{
    tpx_ok(tp_pipe_read_descriptor(pipe, self_arrived, letter));
}

static void self_write_to(tp_pipe *pipe, struct self_letter *letter,
                          tp_message_fn *done, void *arg)
{
    size_t third = letter->length / 3;

    letter->payloads[0] = (tp_payload){ letter->from,
                                        letter->split ? third
                                                      : letter->length,
                                        NULL, 0 };
    letter->payloads[1] = (tp_payload){ letter->from + third,
                                        letter->length - third, NULL, 0 };
    letter->tensor_of = (tp_tensor){ .data = letter->from,
                                     .length = letter->length,
                                     .target = { .type = TP_DEVICE_ANY } };
    letter->message = (tp_message){
        .payloads = letter->payloads,
        .payload_count = letter->tensor ? 0 : letter->split ? 2 : 1,
        .tensors = &letter->tensor_of, .tensor_count = letter->tensor,
        .metadata = letter->split ? "two" : NULL,
        .metadata_length = letter->split ? 3 : 0
    };
    tpx_ok(tp_pipe_write(pipe, &letter->message, done, arg));
}

static void self_write(tp_pipe *pipe, struct self_letter *letter)
{
    self_write_to(pipe, letter, tpx_count_ok, &letter->written);
}

static void self_over(struct self_letter *letter)
{
    tpx_until(&letter->written, 1);
    tpx_until(&letter->read, 1);
    tpx_equal(tpx_verify(letter->to, letter->length, letter->length),
              letter->length);
}

/* All kinds and lengths, whoever is first, and in memory of either kind. */
static void self_kinds(void)
{
    tp_pipe *pipe = tpx_pipe(0, 0);
    uint64_t state = tpx_me.seed + 1;

    for (int i = 0; i < (tpx_me.few ? 30 : SELF_ROUNDS); i++) {
        struct self_letter letter;
        bool alloc = tpx_below(&state, 2) == 1;

        self_begin(&letter, 1 + tpx_below(&state, 1u << (4 + i % 18)), alloc);
        letter.tensor = i % 3 == 1;
        letter.split = i % 3 == 2;
        if (tpx_below(&state, 2) == 1) {
            self_arm(pipe, &letter);
            self_write(pipe, &letter);
        } else {
            self_write(pipe, &letter);
            self_arm(pipe, &letter);
        }
        self_over(&letter);
        self_end(&letter, alloc);
    }
}

/* Several are armed and written at once, long and short in turn: they come in
 * order. */
static void self_many(void)
{
    enum { MANY = 12 };
    tp_pipe *pipe = tpx_pipe(0, 0);
    struct self_letter letters[MANY];

    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < MANY; i++) {
            self_begin(&letters[i], i % 2 == 0 ? SELF_LONG + (size_t)i
                                               : 1 + (size_t)i, false);
            self_arm(pipe, &letters[i]);
        }
        for (int i = 0; i < MANY; i++)
            self_write(pipe, &letters[i]);
        for (int i = 0; i < MANY; i++) {
            self_over(&letters[i]);
            self_end(&letters[i], false);
        }
    }
}

/* Writes end though nobody reads them yet, whether the first one is waited for,
 * or a short one is before it, or not. */
static void self_ahead(void)
{
    tp_pipe *pipe = tpx_pipe(0, 0);
    struct self_letter letters[SELF_FITTING];

    for (int armed = 0; armed < 2; armed++)
        for (int brief = 0; brief < 2; brief++) {
            for (int i = 0; i < SELF_FITTING; i++)
                self_begin(&letters[i], brief && i == 0 ? 8 : SELF_FITS,
                           false);
            if (armed)
                self_arm(pipe, &letters[0]);
            for (int i = 0; i < SELF_FITTING; i++)
                self_write(pipe, &letters[i]);
            for (int i = 0; i < SELF_FITTING; i++)
                tpx_until(&letters[i].written, 1);
            for (int i = armed; i < SELF_FITTING; i++)
                self_arm(pipe, &letters[i]);
            for (int i = 0; i < SELF_FITTING; i++) {
                self_over(&letters[i]);
                self_end(&letters[i], false);
            }
        }
}

/* A write that ends when it is read, and not before. */
static void self_late(size_t length, bool alloc, bool split)
{
    tp_pipe *pipe = tpx_pipe(0, 0);
    struct self_letter letter;

    self_begin(&letter, length, alloc);
    letter.hold = true;
    letter.split = split;
    self_arm(pipe, &letter);
    self_write(pipe, &letter);
    tpx_until(&letter.arrived, 1);
    (void)tp_wait(tpx_me.context, 1, NULL);
    tpx_equal(__atomic_load_n(&letter.written, __ATOMIC_ACQUIRE), 0);
    self_read(pipe, &letter);
    self_over(&letter);
    self_end(&letter, alloc);
}

static void self_lent(void)
{
    for (int i = 0; i < 20 && tpx_backend("map"); i++)
        self_late(SELF_HUGE + (size_t)i, i % 3 == 0, i % 4 == 3);
}

/* A contract has them all go so, also those that would fit. */
static void self_contract(void)
{
    if (!tpx_backend("map"))
        return;
    setenv("TP_REQUIRE", "self:map", 1);
    tpx_ok(tp_init(NULL, &tpx_me.context));
    for (size_t length = 9000; length < SELF_HUGE; length *= 4)
        self_late(length, length % 3 == 0, false);
}

/* A loan is the reader's, whatever becomes of the pipe and of what was
 * written. */
static void self_borrows(void)
{
    for (unsigned i = 0; i < 20; i++) {
        size_t length = i % 4 < 2 ? SELF_LONG : SELF_HUGE;
        tp_pipe *pipe = tpx_pipe(0, 40 + i);
        struct self_letter letter;
        struct tpx_end written = { 0 };
        unsigned borrowed = 0;

        self_begin(&letter, length, i % 2 == 0);
        letter.hold = true;
        self_arm(pipe, &letter);
        self_write_to(pipe, &letter, tpx_ended, &written);
        tpx_until(&letter.arrived, 1);
        tpx_ok(tp_pipe_borrow(pipe, letter.shown, tpx_count_ok, &borrowed));
        tpx_until(&borrowed, 1);
        tp_pipe_close(pipe);
        tpx_until(&written.over, 1);
        memset(letter.from, 0, length);
        tpx_equal(tpx_verify(letter.shown->payloads[0].data, length, length),
                  length);
        tpx_ok(tp_pipe_release(pipe, letter.shown));
        self_end(&letter, i % 2 == 0);
    }
}

static void *self_send(void *arg)
{
    struct self_letter *letter = arg;
    tp_payload payload = { letter->from, letter->length, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };

    tpx_ok(tp_pipe_send_message(tpx_pipe(0, 0), &message, -1));
    return NULL;
}

/* A thread sends to another one of its process. */
static void self_threads(void)
{
    tp_pipe *pipe = tpx_pipe(0, 0);

    for (size_t length = 1024; length <= SELF_HUGE; length *= 3) {
        struct self_letter letter;
        pthread_t thread;
        size_t got;

        self_begin(&letter, length, false);
        tpx_equal(pthread_create(&thread, NULL, self_send, &letter), 0);
        tpx_ok(tp_pipe_recv(pipe, letter.to, length, &got));
        tpx_equal(pthread_join(thread, NULL), 0);
        tpx_equal(got, length);
        tpx_equal(tpx_verify(letter.to, length, length), length);
        self_end(&letter, false);
    }
}

/* The pipe is closed while its message is lent, shown or being read: all of it
 * ends, and nobody touches the memory any more. */
static void self_closes(void)
{
    for (unsigned i = 0; i < 24; i++) {
        tp_pipe *pipe = tpx_pipe(0, 1 + i);
        struct self_letter letter;
        struct tpx_end written = { 0 }, read = { 0 };

        self_begin(&letter, SELF_HUGE, i % 2 == 0);
        letter.hold = true;
        self_arm(pipe, &letter);
        self_write_to(pipe, &letter, tpx_ended, &written);
        tpx_until(&letter.arrived, 1);
        if (i % 3 == 1) {
            letter.shown->payloads[0].data = letter.to;
            tpx_ok(tp_pipe_read(pipe, letter.shown, tpx_ended, &read));
        }
        tp_pipe_close(pipe);
        if (i % 3 == 1) {
            tpx_until(&read.over, 1);
            tpx_check(read.status == TP_OK || read.status == TP_ERR_CLOSED,
                      "%s", tp_strerror(read.status));
        }
        tpx_until(&written.over, 1);
        memset(letter.from, 0, SELF_HUGE);
        memset(letter.to, 0, SELF_HUGE);
        self_end(&letter, i % 2 == 0);
    }
}

const struct tpx_spmd tpx_self[] = {
    { "self_kinds", self_kinds, 1, 0, 60 },
    { "self_many", self_many, 1, 0, 30 },
    { "self_ahead", self_ahead, 1, 0, 30 },
    { "self_lent", self_lent, 1, 0, 30 },
    { "self_contract", self_contract, 1, TPX_BARE, 30 },
    { "self_borrows", self_borrows, 1, 0, 30 },
    { "self_threads", self_threads, 1, 0, 30 },
    { "self_closes", self_closes, 1, 0, 60 },
    { NULL }
};
