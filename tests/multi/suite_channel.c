/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Channels: who tries what, what a right that is taken away in mid-buffer
 * costs, and borrowing.  These run over shm, whose peers have channels, unless
 * another backend is tested: then buffers come in frames and the rest holds.
 */
#include "config.h"

#include <linux/capability.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/multi/flow.h"

enum { CHANNEL_BIG = 64 << 20, CHANNEL_PIECE = 1 << 20 };

static const tp_device channel_cpu = { TP_DEVICE_CPU, 0 };

/* For tpx_until(), in whichever thread the callback runs. */
static void channel_count(unsigned *counter)
{
    __atomic_fetch_add(counter, 1, __ATOMIC_RELEASE);
}

static unsigned char *channel_memory(size_t length, uint64_t seed)
{
    unsigned char *memory = malloc(length);

    tpx_check(memory != NULL, "out of memory");
    tpx_fill(memory, length, seed);
    return memory;
}

static unsigned char *channel_alloc(size_t length, uint64_t seed)
{
    void *memory;

    tpx_ok(tp_alloc(tpx_me.context, length, channel_cpu, &memory));
    tpx_fill(memory, length, seed);
    return memory;
}

/* One of these two: where both sides have their messages. */
typedef unsigned char *channel_memory_fn(size_t length, uint64_t seed);

static void channel_memory_end(unsigned char *memory)
{
    if (tp_free(tpx_me.context, memory) != TP_OK)
        free(memory);
}

/* ---- a right that is taken away ------------------------------------------ */

/* From now on no process without CAP_SYS_PTRACE reads this one. */
static void channel_lock(void)
{
    tpx_check(prctl(PR_SET_DUMPABLE, 0) == 0, "PR_SET_DUMPABLE");
}

static void channel_drop_ptrace(void)
{
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3,
                                               0 };
    struct __user_cap_data_struct data[2];

    tpx_check(syscall(SYS_capget, &header, data) == 0, "capget");
    data[0].effective &= ~(1u << CAP_SYS_PTRACE);
    data[0].permitted &= ~(1u << CAP_SYS_PTRACE);
    tpx_check(syscall(SYS_capset, &header, data) == 0, "capset");
}

struct channel_read {
    unsigned char *memory;
    unsigned arrived, done;
};

static void channel_read_done(tp_pipe *pipe, tp_status status,
                              tp_message *message, void *arg)
{
    (void)pipe;
    (void)message;
    tpx_ok(status);
    channel_count(&((struct channel_read *)arg)->done);
}

static void channel_arrived(tp_pipe *pipe, tp_status status,
                            tp_message *skeleton, void *arg)
{
    struct channel_read *read = arg;

    tpx_ok(status);
    skeleton->payloads[0].data = read->memory;
    channel_count(&read->arrived);
    tpx_ok(tp_pipe_read(pipe, skeleton, channel_read_done, read));
}

/* The sender locks itself while the receiver pulls: the rest of that buffer,
 * and all later ones, come in frames.  Not a byte is lost. */
static void channel_demote(void)
{
    /* Many strides, in any case. */
    const size_t big = tpx_me.few ? CHANNEL_BIG / 8 : CHANNEL_BIG;
    tp_pipe *pipe, *control;
    char byte = 'x';
    bool preferred;

    /* Of this thread and those to come; of both ranks, since one must not have
     * more capabilities than the one that reads it. */
    channel_drop_ptrace();
    /* Under a contract the pair would end instead: channel_denied. */
    tpx_check(unsetenv("TP_REQUIRE") == 0, "unsetenv");
    preferred = tpx_prefer_cma();
    tpx_ok(tp_init(NULL, &tpx_me.context));
    pipe = tpx_pipe(!tpx_me.rank, 0);
    control = tpx_pipe(!tpx_me.rank, 1);
    if (tpx_me.rank == 0) {
        unsigned char *memory = channel_memory(big, 7);
        tp_payload payload = { .data = memory, .length = big };
        tp_message message = { .payloads = &payload, .payload_count = 1 };
        unsigned done = 0;

        tpx_meet(1);
        tpx_equal(tpx_is_chosen(pipe, "cma"), preferred);
        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &done));
        tpx_ok(tp_pipe_recv(control, &byte, 1, NULL));
        channel_lock();
        tpx_ok(tp_pipe_send(control, &byte, 1));
        tpx_until(&done, 1);
        for (int i = 0; i < 3; i++)
            tpx_ok(tp_pipe_send_message(pipe, &message, -1));
        tpx_check(!tpx_is_chosen(pipe, "cma"), "cma is still chosen");
        free(memory);
    } else {
        struct channel_read read = { channel_memory(big, 0), 0, 0 };

        tpx_meet(0);
        for (unsigned i = 0; i < 4; i++) {
            memset(read.memory, 0, big);
            tpx_ok(tp_pipe_read_descriptor(pipe, channel_arrived, &read));
            tpx_until(&read.arrived, i + 1);
            if (i == 0) {          /* the first stride is there, no more */
                tpx_ok(tp_pipe_send(control, &byte, 1));
                tpx_ok(tp_pipe_recv(control, &byte, 1, NULL));
            }
            tpx_until(&read.done, i + 1);
            tpx_equal(tpx_verify(read.memory, big, 7), big);
        }
        free(read.memory);
    }
    tpx_meet(!tpx_me.rank);
}

/* Under a contract that insists on the channel the pair ends instead. */
static void channel_revoked(void)
{
    bool cma = tpx_backend("cma");
    size_t length = cma ? CHANNEL_PIECE : 0;
    tp_pipe *pipe;

    channel_drop_ptrace();
    tpx_check(!cma || setenv("TP_REQUIRE", "node:cma", 1) == 0, "setenv");
    tpx_ok(tp_init(NULL, &tpx_me.context));
    pipe = tpx_pipe(!tpx_me.rank, 0);
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        static unsigned char memory[CHANNEL_PIECE];

        channel_lock();
        if (tpx_me.mode == TP_PROGRESS_MANUAL && cma)
            length = 16000;        /* which would fit a frame */
        tpx_status(tp_pipe_send(pipe, memory, length),
                   cma ? TP_ERR_UNREACHABLE : TP_OK);
    } else {
        static unsigned char memory[CHANNEL_PIECE];
        tp_status status = tp_pipe_recv(pipe, memory, CHANNEL_PIECE, NULL);

        tpx_equal(status == TP_OK, !cma);
    }
}

/* Locked from the beginning: the trial tells, on the side that matters. */
static void channel_denied(void)
{
    unsigned char *memory = channel_memory(CHANNEL_PIECE, 3);
    const char *required = getenv("TP_REQUIRE");
    bool insisted = required != NULL && strstr(required, "cma") != NULL;
    tp_pipe *pipe;

    if (tpx_me.rank == 0)
        channel_lock();
    else
        channel_drop_ptrace();
    tpx_prefer_cma();
    tpx_ok(tp_init(NULL, &tpx_me.context));
    pipe = tpx_pipe(!tpx_me.rank, 0);
    if (insisted) {                /* less than that is refused */
        tp_status status = tpx_me.rank == 0
            ? tp_pipe_send(pipe, memory, CHANNEL_PIECE)
            : tp_pipe_recv(pipe, memory, CHANNEL_PIECE, NULL);

        /* The second to know may learn it from the first one's leaving. */
        tpx_check(status == TP_ERR_UNREACHABLE
                  || (tpx_me.rank == 1 && (status == TP_ERR_PEER_FAILED
                                           || status == TP_ERR_PEER_CLOSED)),
                  "%s", tp_strerror(status));
        if (tpx_me.rank == 0)
            tpx_check(strstr(tp_pipe_error(pipe), "cma") != NULL
                      && strstr(tp_pipe_error(pipe), "not permitted") != NULL,
                      "it does not say why: %s", tp_pipe_error(pipe));
    } else if (tpx_me.rank == 0) {
        tpx_meet(1);
        tpx_ok(tp_pipe_send(pipe, memory, CHANNEL_PIECE));
        tpx_check(!tpx_is_chosen(pipe, "cma"), "nobody may read us");
        tpx_meet(1);
    } else {
        tpx_meet(0);
        memset(memory, 0, CHANNEL_PIECE);
        tpx_ok(tp_pipe_recv(pipe, memory, CHANNEL_PIECE, NULL));
        tpx_equal(tpx_verify(memory, CHANNEL_PIECE, 3), CHANNEL_PIECE);
        tpx_meet(0);
    }
    free(memory);
}

/* ---- borrowing ----------------------------------------------------------- */

struct channel_borrow {
    tp_message *message;
    unsigned lent, ended;
    tp_status status;
};

static void channel_lent(tp_pipe *pipe, tp_status status, tp_message *message,
                         void *arg)
{
    struct channel_borrow *borrow = arg;

    (void)pipe;
    borrow->status = status;
    borrow->message = message;
    channel_count(&borrow->lent);
}

static void channel_lend(tp_pipe *pipe, tp_status status,
                         tp_message *skeleton, void *arg)
{
    tpx_ok(status);
    tpx_status(tp_pipe_borrow(pipe, skeleton, NULL, arg), TP_ERR_INVALID);
    tpx_ok(tp_pipe_borrow(pipe, skeleton, channel_lent, arg));
}

static tp_message *channel_borrow_next(tp_pipe *pipe,
                                       struct channel_borrow *borrow)
{
    unsigned before = borrow->lent;

    tpx_ok(tp_pipe_read_descriptor(pipe, channel_lend, borrow));
    tpx_until(&borrow->lent, before + 1);
    tpx_ok(borrow->status);
    return borrow->message;
}

/* Two tensors, one of which can be mapped; a payload and metadata. */
static void channel_borrow_sender(tp_pipe *pipe, tp_pipe *control)
{
    unsigned char *shared = channel_alloc(CHANNEL_PIECE, 11);
    unsigned char *plain = channel_memory(CHANNEL_PIECE, 12);
    tp_tensor tensors[2] = {
        { .data = shared + 4096, .length = CHANNEL_PIECE - 4096,
          .device = channel_cpu, .target = channel_cpu },
        { .data = plain, .length = CHANNEL_PIECE, .device = channel_cpu,
          .target = channel_cpu } };
    tp_payload payload = { .data = plain, .length = 100 };
    tp_message message = { .metadata = "lent", .metadata_length = 4,
                           .payloads = &payload, .payload_count = 1,
                           .tensors = tensors, .tensor_count = 2 };
    bool channels = tpx_is_chosen(pipe, "map");
    unsigned done = 0;
    char byte;

    for (unsigned i = 0; i < 3; i++) {
        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &done));
        tpx_ok(tp_pipe_recv(control, &byte, 1, NULL));
        if (channels)
            tpx_equal(done, i);        /* it is not back yet */
        shared[5000] = (unsigned char)(shared[5000] + 1);
        tpx_ok(tp_pipe_send(control, &byte, 1));
        tpx_until(&done, i + 1);
        shared[5000] = (unsigned char)(shared[5000] - 1);
    }
    tpx_ok(tp_free(tpx_me.context, shared));
    free(plain);
}

static void channel_borrow_receiver(tp_pipe *pipe, tp_pipe *control)
{
    unsigned char *expected = channel_memory(CHANNEL_PIECE, 11);
    struct channel_borrow borrow = { 0 };
    bool channels = tpx_is_chosen(pipe, "map");
    char byte = 'b';

    for (unsigned i = 0; i < 3; i++) {
        tp_message *message = channel_borrow_next(pipe, &borrow);
        const unsigned char *lent = message->tensors[0].data;

        tpx_equal(message->metadata_length, 4);
        tpx_check(memcmp(lent, expected + 4096, CHANNEL_PIECE - 4096) == 0,
                  "the lent tensor is wrong");
        tpx_equal(tpx_verify(message->tensors[1].data, CHANNEL_PIECE, 12),
                  CHANNEL_PIECE);
        tpx_equal(tpx_verify(message->payloads[0].data, 100, 12), 100);
        tpx_ok(tp_pipe_send(control, &byte, 1));
        tpx_ok(tp_pipe_recv(control, &byte, 1, NULL));
        /* What the sender, against the rules, changes now is seen: it is the
         * very memory. */
        tpx_equal(lent[5000 - 4096],
                  (unsigned char)(expected[5000] + (channels ? 1 : 0)));
        tpx_ok(tp_pipe_release(pipe, message));
        tpx_status(tp_pipe_release(pipe, message), TP_ERR_INVALID);
    }
    free(expected);
}

static void channel_borrow(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    tp_pipe *control = tpx_pipe(!tpx_me.rank, 1);

    tpx_barrier();
    if (tpx_me.rank == 0)
        channel_borrow_sender(pipe, control);
    else
        channel_borrow_receiver(pipe, control);
    tpx_barrier();
}

/* A freed block leaves the peer, too; one that is lent stays until it is
 * released. */
static void channel_free(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct channel_borrow borrow = { 0 };

    tpx_barrier();
    for (int i = 0; i < 20; i++) {
        if (tpx_me.rank == 0) {
            unsigned char *memory = channel_alloc(CHANNEL_PIECE, 5);

            tpx_ok(tp_pipe_send(pipe, memory, CHANNEL_PIECE));
            tpx_ok(tp_free(tpx_me.context, memory));
        } else {
            tp_message *message = channel_borrow_next(pipe, &borrow);

            tpx_equal(tpx_verify(message->payloads[0].data, CHANNEL_PIECE, 5),
                      CHANNEL_PIECE);
            tpx_ok(tp_pipe_release(pipe, message));
        }
    }
    tpx_barrier();
    tpx_mappings_end();
}

/* Messages from blocks whose descriptors find no room come all the same: the
 * first two here, and what is sent when there is room again. */
static void channel_no_descriptors(void)
{
    enum { MESSAGES = 4 };
    struct rlimit limit, none;

    tpx_check(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
    none = limit;
    none.rlim_cur = 0;
    tpx_meet(!tpx_me.rank);
    for (uint64_t i = 0; i < MESSAGES; i++) {
        unsigned char *memory = channel_alloc(CHANNEL_PIECE, i);
        size_t length = 0;

        tpx_meet(!tpx_me.rank);
        if (tpx_me.rank == 0) {
            tpx_ok(tp_pipe_send(tpx_pipe(1, 0), memory, CHANNEL_PIECE));
        } else {
            memset(memory, 0, CHANNEL_PIECE);
            if (i < MESSAGES / 2)
                tpx_check(setrlimit(RLIMIT_NOFILE, &none) == 0, "setrlimit");
            tpx_ok(tp_pipe_recv(tpx_pipe(0, 0), memory, CHANNEL_PIECE,
                                &length));
            tpx_check(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
            tpx_equal(length, CHANNEL_PIECE);
            tpx_equal(tpx_verify(memory, CHANNEL_PIECE, i), CHANNEL_PIECE);
        }
        tpx_ok(tp_free(tpx_me.context, memory));
    }
}

/* What was borrowed outlives the pipe and the peer. */
static void channel_borrow_death(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct channel_borrow borrow = { 0 };
    tp_message *first, *second;
    char byte;

    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        unsigned char *memory = channel_alloc(CHANNEL_PIECE, 6);
        tp_payload payload = { .data = memory, .length = CHANNEL_PIECE };
        tp_message message = { .payloads = &payload, .payload_count = 1 };

        tpx_ok(tp_pipe_write(pipe, &message, NULL, NULL));
        tpx_ok(tp_pipe_write(pipe, &message, NULL, NULL));
        tpx_ok(tp_pipe_recv(tpx_pipe(1, 1), &byte, 1, NULL));
        kill(getpid(), SIGKILL);
    }
    first = channel_borrow_next(pipe, &borrow);
    second = channel_borrow_next(pipe, &borrow);
    tpx_ok(tp_pipe_send(tpx_pipe(0, 1), "k", 1));
    tpx_status(tp_pipe_recv(pipe, &byte, 1, NULL), TP_ERR_PEER_FAILED);
    tpx_equal(tpx_verify(first->payloads[0].data, CHANNEL_PIECE, 6),
              CHANNEL_PIECE);
    tpx_ok(tp_pipe_release(pipe, first));
    tpx_ok(tp_pipe_close(pipe));
    tpx_equal(tpx_verify(second->payloads[0].data, CHANNEL_PIECE, 6),
              CHANNEL_PIECE);
    tpx_ok(tp_pipe_release(pipe, second));
    tpx_status(tp_pipe_release(pipe, second), TP_ERR_INVALID);
}

/* To a reader who may end the pipe before he gives it back. */
static void channel_lend_once(tp_pipe *pipe, unsigned char *memory)
{
    tp_payload payload = { .data = memory, .length = CHANNEL_PIECE };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    tp_status status = tp_pipe_send_message(pipe, &message, -1);

    tpx_check(status == TP_OK || status == TP_ERR_PEER_CLOSED, "%s",
              tp_strerror(status));
}

/* Never released: tp_finalize() takes it back, and the sender ends. */
static void channel_borrow_kept(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct channel_borrow borrow = { 0 };

    tpx_barrier();
    if (tpx_me.rank == 0) {
        unsigned char *memory = channel_alloc(CHANNEL_PIECE, 8);

        channel_lend_once(pipe, memory);
    } else {
        channel_borrow_next(pipe, &borrow);
    }
}

/* A pipe that is closed between the loan and its callback: the peer may change
 * what it had lent, so nobody is told that all is well and sees that. */
static void channel_borrow_closed(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);

    tpx_barrier();
    if (tpx_me.rank == 0) {
        unsigned char *memory = channel_alloc(CHANNEL_PIECE, 9);

        channel_lend_once(pipe, memory);
        memset(memory, 0xdd, CHANNEL_PIECE);
        tpx_ok(tp_free(tpx_me.context, memory));
    } else {
        tpx_borrow_closed(pipe, CHANNEL_PIECE, 9);
    }
    tpx_barrier();
}

/* ---- short loans --------------------------------------------------------- */

enum { CHANNEL_SHORTS = 200, CHANNEL_HELD = 5, CHANNEL_SHORT_MOST = 20000 };

/* What is too short to be lent is a copy, and as good. */
struct channel_shorts {
    tp_message *held[CHANNEL_HELD];
    unsigned arrived, lent;
    tp_pipe *pipe, *other;
};

static size_t channel_short_length(unsigned index)
{
    static const size_t lengths[] = { 8, 0, 1, 64, 4096, 65, 8192, 8193, 16384,
                                      CHANNEL_SHORT_MOST };

    return lengths[index % (sizeof(lengths) / sizeof(lengths[0]))];
}

static void channel_short_back(struct channel_shorts *shorts, unsigned index)
{
    tp_message *message = shorts->held[index % CHANNEL_HELD];
    size_t length = channel_short_length(index);

    tpx_equal(message->payloads[0].length, length);
    tpx_equal(tpx_verify(message->payloads[0].data, length, index), length);
    tpx_ok(tp_pipe_release(shorts->pipe, message));
    tpx_status(tp_pipe_release(shorts->pipe, message), TP_ERR_INVALID);
    shorts->held[index % CHANNEL_HELD] = NULL;
}

static void channel_short_arrived(tp_pipe *pipe, tp_status status,
                                  tp_message *skeleton, void *arg);

/* Some go back at once, others only when their place is wanted; now and then
 * something else is waited for in between. */
static void channel_short_lent(tp_pipe *pipe, tp_status status,
                               tp_message *message, void *arg)
{
    struct channel_shorts *shorts = arg;
    unsigned index = shorts->lent;

    tpx_ok(status);
    shorts->held[index % CHANNEL_HELD] = message;
    /* A longer one may go by a channel, and its send ends with this. */
    if (index % 3 == 0 || channel_short_length(index) > 65)
        channel_short_back(shorts, index);
    if (shorts->held[(index + 1) % CHANNEL_HELD] != NULL)
        channel_short_back(shorts, index + 1 - CHANNEL_HELD);
    if (index + 1 < CHANNEL_SHORTS)
        tpx_ok(tp_pipe_read_descriptor(pipe, channel_short_arrived, shorts));
    channel_count(&shorts->lent);
}

static void channel_short_arrived(tp_pipe *pipe, tp_status status,
                                  tp_message *skeleton, void *arg)
{
    struct channel_shorts *shorts = arg;
    char byte;

    tpx_ok(status);
    tpx_status(tp_pipe_release(pipe, skeleton), TP_ERR_INVALID);
    tpx_ok(tp_pipe_borrow(pipe, skeleton, channel_short_lent, shorts));
    if (++shorts->arrived % 40 == 0)
        tpx_ok(tp_pipe_recv(shorts->other, &byte, 1, NULL));
}

static void channel_borrow_short(void)
{
    struct channel_shorts shorts = { .pipe = tpx_pipe(!tpx_me.rank, 0),
                                     .other = tpx_pipe(!tpx_me.rank, 1) };
    unsigned char *memory = channel_memory(CHANNEL_SHORT_MOST, 0);

    tpx_barrier();
    for (unsigned i = 0; tpx_me.rank == 0 && i < CHANNEL_SHORTS; i++) {
        tpx_fill(memory, channel_short_length(i), i);
        /* First: by a channel the other ends only when it is given back. */
        if (i % 40 == 39)
            tpx_ok(tp_pipe_send(shorts.other, "x", 1));
        tpx_ok(tp_pipe_send(shorts.pipe, memory, channel_short_length(i)));
    }
    if (tpx_me.rank == 1) {
        tpx_ok(tp_pipe_read_descriptor(shorts.pipe, channel_short_arrived,
                                       &shorts));
        tpx_until(&shorts.lent, CHANNEL_SHORTS);
    }
    tpx_barrier();                 /* the last ones are never given back */
    free(memory);
}

/* ---- the ends of pipes --------------------------------------------------- */

/* The sender closes over what the receiver is pulling: nobody gets bytes that
 * the sender has overwritten since. */
static void channel_close_of(channel_memory_fn *make)
{
    enum { ROUNDS = 30 };
    unsigned char *memory = make(CHANNEL_PIECE * 4, 9);
    tp_payload payload = { .data = memory, .length = CHANNEL_PIECE * 4 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };

    tpx_barrier();
    for (unsigned i = 0; i < ROUNDS; i++) {
        tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 10 + i);

        if (tpx_me.rank == 0) {
            struct tpx_end end = { 0 };

            tpx_fill(memory, CHANNEL_PIECE * 4, 9);
            tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
            for (unsigned spin = i * 3; spin > 0; spin--)
                tpx_ok(tp_progress(tpx_me.context, NULL));
            tpx_ok(tp_pipe_close(pipe));
            tpx_until(&end.over, 1);
            tpx_check(end.status == TP_OK || end.status == TP_ERR_CLOSED,
                      "%s", tp_strerror(end.status));
            memset(memory, 0xee, CHANNEL_PIECE * 4);
        } else {
            tp_status status;

            status = tp_pipe_recv(pipe, memory, CHANNEL_PIECE * 4, NULL);
            if (status == TP_OK)
                tpx_equal(tpx_verify(memory, CHANNEL_PIECE * 4, 9),
                          CHANNEL_PIECE * 4);
            else
                tpx_equal(status, TP_ERR_PEER_CLOSED);
        }
        tpx_meet(!tpx_me.rank);
    }
    channel_memory_end(memory);
}

static void channel_close(void)
{
    channel_close_of(channel_memory);
}

static void channel_close_mapped(void)
{
    channel_close_of(channel_alloc);
}

/* ---- copied by both ------------------------------------------------------ */

/* One message there or back, which both may copy at once. */
static void channel_both_turn(tp_pipe *pipe, unsigned char *memory,
                              size_t length, unsigned i)
{
    size_t got;

    if ((i + (unsigned)tpx_me.rank) % 2 == 0) {
        tpx_fill(memory, length, i);
        tpx_ok(tp_pipe_send(pipe, memory, length));
    } else {
        memset(memory, 0xee, length + 1);
        tpx_ok(tp_pipe_recv(pipe, memory, length, &got));
        tpx_equal(got, length);
        tpx_equal(tpx_verify(memory, length, i), length);
        tpx_equal(memory[length], 0xee);
    }
}

/* Each has its own memory and maps the other's, which it copies into.  On a
 * busy machine a sender may come too late time after time, so there are more
 * turns until both have come in time once. */
static void channel_both_map(tp_pipe *pipe, unsigned char *memory)
{
    unsigned turns = 0, other = 0;
    bool both = false;

    for (; !both && turns < 20000; turns += 2) {
        unsigned mine = tpx_mappings("rw-s") == 2;

        channel_both_turn(pipe, memory, 1 << 20, turns);
        channel_both_turn(pipe, memory, 1 << 20, turns + 1);
        tpx_ok(tp_pipe_send(pipe, &mine, sizeof(mine)));
        tpx_ok(tp_pipe_recv(pipe, &other, sizeof(other), NULL));
        both = mine != 0 && other != 0;
    }
    tpx_check(both, "the sender did not map the reader's memory in %u turns",
              turns);
}

/* One message after the other. */
static void channel_both_of(channel_memory_fn *make)
{
    static const size_t lengths[] = { 32767, 32768, 32769, 65535, 65536, 65537,
                                      131071, 131073, 262145, 1 << 20,
                                      (3 << 20) + 4711 };
    enum { LENGTHS = sizeof(lengths) / sizeof(lengths[0]) };
    unsigned char *memory = make(4 << 20, 0);
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned turns = tpx_me.sanitized ? 8 : 40;

    tpx_barrier();
    for (unsigned i = 0; i < turns * LENGTHS; i++)
        channel_both_turn(pipe, memory, lengths[i % LENGTHS], i);
    tpx_barrier();
    if (make == channel_alloc && tpx_is_chosen(pipe, "map")
        && sysconf(_SC_NPROCESSORS_ONLN) >= 2)
        channel_both_map(pipe, memory);
    channel_memory_end(memory);
    tpx_mappings_end();
}

static void channel_both(void)
{
    channel_both_of(channel_memory);
}

/* ... into a mapping of the receiver's, which is there no longer than he has
 * the memory. */
static void channel_both_mapped(void)
{
    channel_both_of(channel_alloc);
}

/* After a read has ended nobody touches its memory any more, however it ended:
 * also not the sender, who may have been copying into it.  What it would write
 * comes within microseconds, so only some bytes are marked, and at once. */
enum { CHANNEL_QUIT = 16 << 20, CHANNEL_MARKED = 64 << 10 };

/* The marks are as they were left. */
static void channel_untouched(const unsigned char *memory,
                              const unsigned char *marks)
{
    for (size_t i = CHANNEL_QUIT; i > 0; i -= CHANNEL_MARKED)
        tpx_check(memory[i - 1] == marks[i / CHANNEL_MARKED - 1],
                  "byte %zu of a read that has ended is written", i - 1);
}

struct channel_quit {
    unsigned char *memory;
    unsigned char marks[CHANNEL_QUIT / CHANNEL_MARKED];
    unsigned arrived;
    struct tpx_end end;
};

static void channel_quit_arrived(tp_pipe *pipe, tp_status status,
                                 tp_message *skeleton, void *arg)
{
    struct channel_quit *quit = arg;

    tpx_ok(status);
    skeleton->payloads[0].data = quit->memory;
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_ended, &quit->end));
    channel_count(&quit->arrived);
}

static void channel_quit_begin(tp_pipe *pipe, struct channel_quit *quit,
                               channel_memory_fn *make)
{
    *quit = (struct channel_quit){ .memory = make(CHANNEL_QUIT, 0) };
    tpx_ok(tp_pipe_read_descriptor(pipe, channel_quit_arrived, quit));
    tpx_until(&quit->arrived, 1);
}

static void channel_quit_end(struct channel_quit *quit, tp_status status)
{
    tpx_until(&quit->end.over, 1);
    for (size_t i = CHANNEL_QUIT; i > 0; i -= CHANNEL_MARKED)
        quit->marks[i / CHANNEL_MARKED - 1] = ++quit->memory[i - 1];
    tpx_check(quit->end.status == status || quit->end.status == TP_OK, "%s",
              tp_strerror(quit->end.status));
}

/* The receiver closes, at another moment each time. */
static void channel_quit_of(channel_memory_fn *make)
{
    unsigned char *memory = make(CHANNEL_QUIT, 4);
    tp_payload payload = { .data = memory, .length = CHANNEL_QUIT };
    tp_message message = { .payloads = &payload, .payload_count = 1 };

    tpx_barrier();
    for (unsigned i = 0; i < 12; i += tpx_me.sanitized ? 3 : 1) {
        tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 10 + i);

        if (tpx_me.rank == 0) {
            struct tpx_end end = { 0 };

            tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
            tpx_until(&end.over, 1);
            tpx_check(end.status == TP_OK || end.status == TP_ERR_PEER_CLOSED,
                      "%s", tp_strerror(end.status));
            tpx_meet(1);
        } else {
            struct channel_quit quit;

            channel_quit_begin(pipe, &quit, make);
            for (unsigned spin = i * 5 / 4; spin > 0; spin--)
                tpx_ok(tp_progress(tpx_me.context, NULL));
            tpx_ok(tp_pipe_close(pipe));
            channel_quit_end(&quit, TP_ERR_CLOSED);
            tpx_meet(0);
            channel_untouched(quit.memory, quit.marks);
            channel_memory_end(quit.memory);
        }
    }
    tpx_barrier();
    channel_memory_end(memory);
}

static void channel_quit(void)
{
    channel_quit_of(channel_memory);
}

static void channel_quit_mapped(void)
{
    channel_quit_of(channel_alloc);
}

/* The sender dies while it copies. */
static void channel_killed_of(channel_memory_fn *make)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    int pid = getpid();

    if (tpx_me.rank == 0) {
        unsigned char *memory = make(CHANNEL_QUIT, 4);
        unsigned done = 0;
        tp_payload payload = { .data = memory, .length = CHANNEL_QUIT };
        tp_message message = { .payloads = &payload, .payload_count = 1 };

        tpx_ok(tp_pipe_send(tpx_pipe(1, 1), &pid, sizeof(pid)));
        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &done));
        tpx_until(&done, 2);       /* it does not come to that */
    } else {
        struct channel_quit quit;

        tpx_ok(tp_pipe_recv(tpx_pipe(0, 1), &pid, sizeof(pid), NULL));
        channel_quit_begin(pipe, &quit, make);
        tpx_check(kill(pid, SIGKILL) == 0, "kill");
        channel_quit_end(&quit, TP_ERR_PEER_FAILED);
        tpx_status(tp_pipe_recv(pipe, &pid, 1, NULL), TP_ERR_PEER_FAILED);
        channel_untouched(quit.memory, quit.marks);
        channel_memory_end(quit.memory);
    }
}

static void channel_killed(void)
{
    channel_killed_of(channel_memory);
}

static void channel_killed_mapped(void)
{
    channel_killed_of(channel_alloc);
}

/* Letters of all sizes, out of memory of tp_alloc() and other, both ways. */
static void channel_letters(void)
{
    struct tpx_flow flows[2];
    struct tpx_flow_plan plan = { .kind = TPX_BIG, .count = 12, .writes = 4,
                                  .reads = 3 };

    tpx_flow_start(&flows[0], !tpx_me.rank, 0, &plan);
    plan.kind = TPX_MIXED;
    plan.count = 60;
    tpx_flow_start(&flows[1], !tpx_me.rank, 1, &plan);
    tpx_flow_finish(flows, 2);
    tpx_barrier();
}

const struct tpx_spmd tpx_channel[] = {
    { "channel_demote", channel_demote, 2, TPX_CHANNELS | TPX_BARE, 60 },
    { "channel_revoked", channel_revoked, 2, TPX_CHANNELS | TPX_BARE
      | TPX_WARNS, 30 },
    { "channel_denied", channel_denied, 2, TPX_BARE | TPX_WARNS | TPX_ONCE,
      30 },
    { "channel_borrow", channel_borrow, 2, TPX_CHANNELS, 30 },
    { "channel_free", channel_free, 2, TPX_CHANNELS | TPX_FREES, 30 },
    { "channel_no_descriptors", channel_no_descriptors, 2, TPX_CHANNELS, 30 },
    { "channel_borrow_death", channel_borrow_death, 2,
      TPX_KILLS | TPX_CHANNELS, 30 },
    { "channel_borrow_kept", channel_borrow_kept, 2, TPX_CHANNELS, 30 },
    { "channel_borrow_closed", channel_borrow_closed, 2, TPX_CHANNELS, 30 },
    { "channel_borrow_short", channel_borrow_short, 2, TPX_CHANNELS, 30 },
    { "channel_close", channel_close, 2, TPX_CHANNELS, 60 },
    { "channel_close_mapped", channel_close_mapped, 2, TPX_CHANNELS, 60 },
    { "channel_both", channel_both, 2, TPX_CHANNELS | TPX_FREES, 60 },
    { "channel_both_mapped", channel_both_mapped, 2,
      TPX_CHANNELS | TPX_FREES, 60 },
    { "channel_quit", channel_quit, 2, TPX_CHANNELS, 60 },
    { "channel_quit_mapped", channel_quit_mapped, 2, TPX_CHANNELS, 60 },
    { "channel_killed", channel_killed, 2, TPX_KILLS | TPX_CHANNELS, 30 },
    { "channel_killed_mapped", channel_killed_mapped, 2,
      TPX_KILLS | TPX_CHANNELS, 30 },
    { "channel_letters", channel_letters, 2, TPX_CHANNELS, 60 },
    { NULL }
};
