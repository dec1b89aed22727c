/* SPDX-License-Identifier: BSD-3-Clause */
/* Ends that are meant: tp_pipe_close() and tp_finalize(). */
#include "config.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/multi/spmd.h"

enum { CLOSE_BIG = 4 << 20, CLOSE_MANY = 20, CLOSE_REFUSED = 1000 };

/* How operations ended: how many with which status. */
static unsigned close_ended[16], close_total;

static void close_done(tp_pipe *pipe, tp_status status, tp_message *message,
                       void *arg)
{
    (void)pipe;
    (void)message;
    (void)arg;
    close_ended[status]++;
    __atomic_fetch_add(&close_total, 1, __ATOMIC_ACQ_REL);
}

static void *close_memory(size_t length)
{
    void *memory = calloc(1, length);

    tpx_check(memory != NULL, "no memory for the test itself");
    return memory;
}

/* The sender's part of the next: how many of its big writes went through is
 * open, since the reader may pull faster than this side closes. */
static unsigned close_writer(tp_pipe *pipe, unsigned char *memory)
{
    tp_payload payload = { memory, CLOSE_BIG, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    unsigned through;

    for (unsigned i = 0; i < CLOSE_MANY; i++)
        tpx_ok(tp_pipe_send(pipe, &i, sizeof(i)));
    for (unsigned i = 0; i < CLOSE_MANY; i++) {
        tpx_ok(tp_pipe_read_descriptor(pipe, close_done, NULL));
        tpx_ok(tp_pipe_write(pipe, &message, close_done, NULL));
    }
    tpx_ok(tp_pipe_close(pipe));
    tpx_ok(tp_pipe_close(pipe));
    tpx_until(&close_total, 2 * CLOSE_MANY);
    memset(memory, 1, CLOSE_BIG);
    through = close_ended[TP_OK];
    tpx_equal(close_ended[TP_ERR_CLOSED], 2 * CLOSE_MANY - through);
    tpx_check(through <= CLOSE_MANY, "a read ended well");
    tpx_check(*tp_pipe_error(pipe) != '\0', "no words");
    tpx_status(tp_pipe_send(pipe, "x", 1), TP_ERR_CLOSED);
    tpx_status(tp_pipe_recv(pipe, memory, 1, NULL), TP_ERR_CLOSED);
    tpx_ok(tp_pipe_read_descriptor(pipe, close_done, NULL));
    tpx_until(&close_total, 2 * CLOSE_MANY + 1);
    tpx_equal(close_ended[TP_ERR_CLOSED], 2 * CLOSE_MANY + 1 - through);
    return through;
}

/* Returns how many came whole before the end; *through: how many went. */
static unsigned close_reader(tp_pipe *pipe, tp_pipe *other,
                             unsigned char *memory, unsigned *through)
{
    unsigned number = 0, whole = 0;
    tp_status status;
    size_t length;

    for (unsigned i = 0; i < CLOSE_MANY; i++) {
        tpx_ok(tp_pipe_recv(pipe, &number, sizeof(number), &length));
        tpx_equal(number, i);
    }
    /* A part of a big one came: its read ends with the pipe.  Some are left
     * alone until the other side has closed. */
    while ((status = tp_pipe_recv(pipe, memory, CLOSE_BIG, &length)) == TP_OK
           && ++whole < CLOSE_MANY / 2)
        ;
    tpx_ok(tp_pipe_recv(other, through, sizeof(*through), NULL));
    while (status == TP_OK)
        status = tp_pipe_recv(pipe, memory, CLOSE_BIG, &length);
    tpx_status(status, TP_ERR_PEER_CLOSED);
    tpx_status(tp_pipe_recv(pipe, memory, CLOSE_BIG, &length),
               TP_ERR_PEER_CLOSED);
    tpx_status(tp_pipe_send(pipe, "x", 1), TP_ERR_PEER_CLOSED);
    tpx_check(*tp_pipe_error(pipe) != '\0', "no words");
    return whole;
}

/* Pending operations of each kind end CLOSED, once; the peer reads what went
 * out, then PEER_CLOSED. */
static void close_pending(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    tp_pipe *other = tpx_pipe(!tpx_me.rank, 1);
    unsigned char *memory = close_memory(CLOSE_BIG);
    unsigned through, whole;

    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        through = close_writer(pipe, memory);
        tpx_ok(tp_pipe_send(other, &through, sizeof(through)));
    } else {
        whole = close_reader(pipe, other, memory, &through);
        /* A write that ended well has been read. */
        tpx_check(through <= whole, "%u writes ended well, %u were read",
                  through, whole);
    }
    tpx_meet(!tpx_me.rank);        /* other pipes go on */
    free(memory);
}

/* Closed before the two ever met: the peer is told nevertheless. */
static void close_first(void)
{
    tp_pipe *early = tpx_pipe(!tpx_me.rank, 0);
    tp_payload payload = { NULL, 0, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    char byte;

    if (tpx_me.rank == 0) {
        tpx_ok(tp_pipe_close(tpx_pipe(1, 1)));
        tpx_ok(tp_pipe_write(early, &message, close_done, NULL));
        tpx_ok(tp_pipe_close(early));
        tpx_until(&close_total, 1);
    } else {
        tp_status status = tp_pipe_recv(early, &byte, 1, NULL);

        /* Whether the write was faster than the close is open. */
        if (status == TP_OK)
            status = tp_pipe_recv(early, &byte, 1, NULL);
        tpx_equal(status, TP_ERR_PEER_CLOSED);
        tpx_status(tp_pipe_recv(tpx_pipe(0, 1), &byte, 1, NULL),
                   TP_ERR_PEER_CLOSED);
    }
    tpx_meet(!tpx_me.rank);
}

/* Inside the callback of a descriptor, and of a read; with its own skeleton
 * still unread. */
static void close_arrived(tp_pipe *pipe, tp_status status,
                          tp_message *skeleton, void *arg)
{
    static char room[8];

    tpx_ok(status);
    if (arg != NULL)
        tpx_ok(tp_pipe_close(pipe));
    skeleton->payloads[0].data = room;
    tpx_ok(tp_pipe_read(pipe, skeleton, close_done, NULL));
    tpx_ok(tp_pipe_close(pipe));
}

static void close_abandons(tp_pipe *pipe, tp_status status,
                           tp_message *skeleton, void *arg)
{
    (void)skeleton;
    (void)arg;
    tpx_ok(status);
    tpx_ok(tp_pipe_close(pipe));
    __atomic_fetch_add(&close_total, 1, __ATOMIC_ACQ_REL);
}

static void close_inside(void)
{
    char byte;

    if (tpx_me.rank == 0) {
        tpx_ok(tp_pipe_read_descriptor(tpx_pipe(1, 1), close_arrived,
                                       &close_total));
        tpx_ok(tp_pipe_read_descriptor(tpx_pipe(1, 2), close_arrived, NULL));
        tpx_ok(tp_pipe_read_descriptor(tpx_pipe(1, 3), close_abandons, NULL));
        tpx_until(&close_total, 3);
        tpx_equal(close_ended[TP_ERR_CLOSED] + close_ended[TP_OK], 2);
        tpx_check(close_ended[TP_ERR_CLOSED] >= 1, "read after close");
    } else {
        for (unsigned p = 1; p <= 3; p++)
            tpx_ok(tp_pipe_send(tpx_pipe(0, p), "in", 2));
        for (unsigned p = 1; p <= 3; p++)
            tpx_status(tp_pipe_recv(tpx_pipe(0, p), &byte, 1, NULL),
                       TP_ERR_PEER_CLOSED);
    }
    tpx_meet(!tpx_me.rank);
}

/* One leaves long before the other, which still reads all of it. */
static void close_leave_early(void)
{
    enum { EACH = 100 };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned number;

    if (tpx_me.rank == 0) {
        for (unsigned i = 0; i < EACH; i++)
            tpx_ok(tp_pipe_send(pipe, &i, sizeof(i)));
        return;
    }
    tpx_sleep_ms(200);
    for (unsigned i = 0; i < EACH; i++) {
        tpx_ok(tp_pipe_recv(pipe, &number, sizeof(number), NULL));
        tpx_equal(number, i);
    }
    tpx_status(tp_pipe_recv(pipe, &number, sizeof(number), NULL),
               TP_ERR_PEER_CLOSED);
    tpx_status(tp_pipe_send(pipe, "x", 1), TP_ERR_PEER_CLOSED);
}

/* Rank 0 leaves, and never asked for a pipe: those who wait for it hear that
 * it has left, not that it died; one asks before that or while it leaves, the
 * other most likely afterwards. */
static void close_never_met(void)
{
    tp_pipe *pipe;
    char byte;

    if (tpx_me.rank == 0)
        return;
    pipe = tpx_pipe(0, 0);
    if (tpx_me.rank == 2)
        tpx_sleep_ms(200);
    tpx_status(tp_pipe_recv(pipe, &byte, 1, NULL), TP_ERR_PEER_CLOSED);
    tpx_status(tp_pipe_send(pipe, "x", 1), TP_ERR_PEER_CLOSED);
    tpx_check(strstr(tp_pipe_error(pipe), "left the job") != NULL, "%s",
              tp_pipe_error(pipe));
}

/* tp_finalize() waits until what was written is out, though the callbacks
 * have not come yet. */
static void close_flush(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned char *memory = close_memory(CLOSE_BIG);
    tp_payload payload = { memory, CLOSE_BIG, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };

    if (tpx_me.rank == 0) {
        tpx_fill(memory, CLOSE_BIG, 9);
        for (int i = 0; i < 3; i++)
            tpx_ok(tp_pipe_write(pipe, &message, close_done, NULL));
        tpx_ok(tp_finalize(tpx_me.context));
        tpx_me.context = NULL;
        tpx_equal(close_total, 3);
        tpx_equal(close_ended[TP_OK], 3);
    } else {
        tpx_sleep_ms(100);
        for (int i = 0; i < 3; i++) {
            memset(memory, 0, CLOSE_BIG);
            tpx_ok(tp_pipe_recv(pipe, memory, CLOSE_BIG, NULL));
            tpx_equal(tpx_verify(memory, CLOSE_BIG, 9), CLOSE_BIG);
        }
    }
    free(memory);
}

/* A message whose callback writes the next one. */
struct close_chain {
    tp_message message;
    tp_payload payload;
    unsigned number, ended[16];
};

static void close_next(tp_pipe *pipe, tp_status status, tp_message *message,
                       void *arg)
{
    struct close_chain *chain = arg;

    chain->ended[status]++;
    if (++chain->number < CLOSE_MANY)
        tpx_ok(tp_pipe_write(pipe, message, close_next, arg));
}

/* The callbacks of tp_finalize() write on: all of that arrives, too. */
static void close_chained(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct close_chain chain = { .number = 0 };
    unsigned number;

    chain.payload = (tp_payload){ .data = &chain.number,
                                  .length = sizeof(number) };
    chain.message = (tp_message){ .payloads = &chain.payload,
                                  .payload_count = 1 };
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        tpx_ok(tp_pipe_write(pipe, &chain.message, close_next, &chain));
        tpx_ok(tp_finalize(tpx_me.context));
        tpx_me.context = NULL;
        tpx_equal(chain.ended[TP_OK], CLOSE_MANY);
        return;
    }
    for (unsigned i = 0; i < CLOSE_MANY; i++) {
        tpx_ok(tp_pipe_recv(pipe, &number, sizeof(number), NULL));
        tpx_equal(number, i);
    }
    tpx_status(tp_pipe_recv(pipe, &number, sizeof(number), NULL),
               TP_ERR_PEER_CLOSED);
}

static void close_to_told(tp_pipe *pipe, tp_status status, tp_message *message,
                          void *arg)
{
    static tp_payload payload = { .data = (void *)(uintptr_t)"x", .length = 1 };
    static tp_message more = { .payloads = &payload, .payload_count = 1 };

    close_done(pipe, status, message, arg);
    for (unsigned i = 0; i < 2; i++) {     /* on a pipe that is new, too */
        tpx_ok(tp_pipe_write(tpx_pipe(2, i), &more, close_done, NULL));
        tpx_ok(tp_pipe_read_descriptor(tpx_pipe(2, i), close_done, NULL));
    }
}

/* What keeps tp_finalize() is for one peer; another has heard that this rank
 * leaves, and what a callback then writes to it does not end well. */
static void close_told(void)
{
    unsigned char *memory = close_memory(CLOSE_BIG);
    tp_payload payload = { memory, CLOSE_BIG, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    char byte = 'g';

    if (tpx_me.rank == 0) {
        tpx_meet(2);
        tpx_ok(tp_pipe_write(tpx_pipe(1, 0), &message, close_to_told, NULL));
        tpx_ok(tp_finalize(tpx_me.context));
        tpx_me.context = NULL;
        tpx_equal(close_total, 5);
        tpx_equal(close_ended[TP_OK], 1);
        tpx_check(close_ended[TP_ERR_CLOSED] >= 2,
                  "what was written behind the goodbye did not end so");
        /* The reads, too, whether that peer has left by then or not. */
        tpx_equal(close_ended[TP_ERR_CLOSED]
                  + close_ended[TP_ERR_PEER_CLOSED], 4);
    } else if (tpx_me.rank == 1) {
        tpx_ok(tp_pipe_recv(tpx_pipe(2, 0), &byte, 1, NULL));
        tpx_ok(tp_pipe_recv(tpx_pipe(0, 0), memory, CLOSE_BIG, NULL));
    } else {
        tpx_meet(0);
        tpx_status(tp_pipe_recv(tpx_pipe(0, 0), &byte, 1, NULL),
                   TP_ERR_PEER_CLOSED);
        tpx_ok(tp_pipe_send(tpx_pipe(1, 0), &byte, 1));
    }
    free(memory);
}

/* Both leave at once with much unread on both sides: nobody waits for a
 * reader that has gone. */
static void close_unread(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned char *memory = close_memory(CLOSE_BIG);
    tp_payload payload = { memory, CLOSE_BIG, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    uint64_t before;

    tpx_meet(!tpx_me.rank);
    for (int i = 0; i < 3; i++)
        tpx_ok(tp_pipe_write(pipe, &message, close_done, NULL));
    tpx_ok(tp_pipe_read_descriptor(tpx_pipe(!tpx_me.rank, 4), close_done,
                                   NULL));
    before = tpx_now();
    tpx_ok(tp_finalize(tpx_me.context));
    tpx_me.context = NULL;
    tpx_check(tpx_now() - before < (uint64_t)tpx_limit_ms(20000) * 1000000u,
              "they waited for each other");
    tpx_equal(close_total, 4);
    tpx_equal(close_ended[TP_OK] + close_ended[TP_ERR_PEER_CLOSED]
              + close_ended[TP_ERR_CLOSED], 4);
    free(memory);
}

/* With every kind of operation pending, among them an armed descriptor behind
 * a skeleton that nobody read. */
static void close_finalize_pending(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0), *self = tpx_pipe(tpx_me.rank,
                                                                0);
    tp_message *skeleton;

    tpx_ok(tp_pipe_send(pipe, "one", 3));
    tpx_ok(tp_pipe_send(pipe, "two", 3));
    tpx_meet(!tpx_me.rank);    /* or one could leave before the other's "two" */
    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, -1));
    for (int i = 0; i < 3; i++)
        tpx_ok(tp_pipe_read_descriptor(pipe, close_done, NULL));
    for (int i = 0; i < 2; i++)
        tpx_ok(tp_pipe_read_descriptor(self, close_done, NULL));
    tpx_ok(tp_pipe_read_descriptor(tpx_pipe(!tpx_me.rank, 1), close_done,
                                   NULL));
    tpx_ok(tp_read_descriptor_any(tpx_me.context, close_done, NULL));
    tpx_ok(tp_finalize(tpx_me.context));
    tpx_me.context = NULL;
    tpx_equal(close_total, 7);
    tpx_equal(close_ended[TP_ERR_CLOSED] + close_ended[TP_ERR_PEER_CLOSED],
              7);
}

/* A peer that does not read within the limit: TIMEOUT, and the callback says
 * so too. */
static void close_timeout(void)
{
    tp_options options = TP_OPTIONS_INIT;
    unsigned char *memory = close_memory(CLOSE_BIG);
    tp_payload payload = { memory, CLOSE_BIG, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    char byte;

    options.finalize_timeout_ms = 100;
    tpx_ok(tp_init(&options, &tpx_me.context));
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        tpx_ok(tp_pipe_write(tpx_pipe(1, 0), &message, close_done, NULL));
        tpx_status(tp_finalize(tpx_me.context), TP_ERR_TIMEOUT);
        tpx_me.context = NULL;
        tpx_equal(close_ended[TP_ERR_TIMEOUT], 1);
    } else {
        tp_status status = tp_pipe_recv(tpx_pipe(0, 5), &byte, 1, NULL);

        tpx_check(status == TP_ERR_PEER_FAILED
                  || status == TP_ERR_PEER_CLOSED, "%s", tp_strerror(status));
    }
    free(memory);
}

/* ---- what the peer still has --------------------------------------------- */

/* Writes that the peer does not read, at most offered to it. */
static void close_offer(tp_pipe *pipe, tp_message *message)
{
    for (unsigned i = 0; i < CLOSE_MANY; i++)
        tpx_ok(tp_pipe_write(pipe, message, close_done, NULL));
}

/* Both ranks close over what they have offered each other, and neither waits
 * for the other's word. */
static void close_both(void)
{
    unsigned char *memory = close_memory(CLOSE_BIG);
    tp_payload payload = { memory, CLOSE_BIG, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    tp_pipe *pipe;

    tpx_prefer_cma();
    tpx_ok(tp_init(NULL, &tpx_me.context));
    pipe = tpx_pipe(!tpx_me.rank, 7);
    tpx_meet(!tpx_me.rank);
    close_offer(pipe, &message);
    tpx_meet(!tpx_me.rank);
    tpx_ok(tp_pipe_close(pipe));
    tpx_until(&close_total, CLOSE_MANY);
    tpx_check(close_ended[TP_OK] <= 1, "%u writes went through that nobody"
              " read", close_ended[TP_OK]);
    tpx_meet(!tpx_me.rank);
    tpx_ok(tp_finalize(tpx_me.context));
    tpx_me.context = NULL;
    tpx_equal(close_total, CLOSE_MANY);
    free(memory);
}

/* The peer dies before it has given back what it was offered on a pipe that is
 * closed here. */
static void close_orphan(void)
{
    unsigned char *memory = close_memory(CLOSE_BIG);
    tp_payload payload = { memory, CLOSE_BIG, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    pid_t peer = getpid();

    tpx_prefer_cma();
    tpx_ok(tp_init(NULL, &tpx_me.context));
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 1) {
        tpx_ok(tp_pipe_send(tpx_pipe(0, 1), &peer, sizeof(peer)));
        for (;;)
            pause();               /* nobody drives this context any more */
    }
    tpx_ok(tp_pipe_recv(tpx_pipe(1, 1), &peer, sizeof(peer), NULL));
    close_offer(tpx_pipe(1, 7), &message);
    tpx_ok(tp_pipe_close(tpx_pipe(1, 7)));
    tpx_check(kill(peer, SIGKILL) == 0, "kill");
    tpx_until(&close_total, CLOSE_MANY);
    tpx_equal(close_ended[TP_ERR_CLOSED] + close_ended[TP_OK], CLOSE_MANY);
    tpx_ok(tp_finalize(tpx_me.context));
    tpx_me.context = NULL;
    tpx_equal(close_total, CLOSE_MANY);
    free(memory);
}

/* A child of fork() leaves its parent's membership alone. */
static void close_forked(void)
{
    pid_t child;
    int status;

    tpx_meet(!tpx_me.rank);
    child = fork();
    tpx_check(child >= 0, "fork");
    if (child == 0)
        _exit(tp_finalize(tpx_me.context) == TP_ERR_INVALID ? 0 : 1);
    tpx_check(waitpid(child, &status, 0) == child && status == 0,
              "the child's tp_finalize() was let through");
    tpx_meet(!tpx_me.rank);
}

/* All that was written has been answered; that the peer then sleeps outside of
 * all calls, and so does not hear the goodbye, is no trouble. */
static void close_sleeper(void)
{
    tp_options options = TP_OPTIONS_INIT;
    tp_pipe *pipe;
    char byte = 1;

    options.progress = TP_PROGRESS_MANUAL;
    options.finalize_timeout_ms = 300;
    tpx_ok(tp_init(&options, &tpx_me.context));
    pipe = tpx_pipe(!tpx_me.rank, 0);
    if (tpx_me.rank == 0) {
        tpx_ok(tp_pipe_send(pipe, &byte, 1));
        tpx_ok(tp_pipe_recv(pipe, &byte, 1, NULL));
    } else {
        tpx_ok(tp_pipe_recv(pipe, &byte, 1, NULL));
        tpx_ok(tp_pipe_send(pipe, &byte, 1));
        tpx_sleep_ms(1200);
        tpx_status(tp_pipe_recv(pipe, &byte, 1, NULL), TP_ERR_PEER_CLOSED);
    }
    tpx_ok(tp_finalize(tpx_me.context));
    tpx_me.context = NULL;
}

/* The reader closes while a long message comes in: once its read has ended
 * nothing writes to its memory any more, whatever is still under way. */
static void close_midway_read(tp_pipe *pipe, unsigned char *memory)
{
    unsigned before = __atomic_load_n(&close_total, __ATOMIC_ACQUIRE);
    tp_message *skeleton;

    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, -1));
    skeleton->payloads[0].data = memory;
    tpx_ok(tp_pipe_read(pipe, skeleton, close_done, NULL));
    /* A little further each time. */
    for (unsigned i = 0; i < 4 * before; i++) {
        tpx_ok(tp_progress(tpx_me.context, NULL));
        usleep(before);
    }
    tpx_ok(tp_pipe_close(pipe));
    tpx_until(&close_total, before + 1);
    memset(memory, 0, CLOSE_BIG);
}

static void close_midway(void)
{
    unsigned char *memory = close_memory(CLOSE_BIG);
    tp_payload payload = { memory, CLOSE_BIG, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };

    tpx_meet(!tpx_me.rank);
    for (unsigned i = 1; i <= CLOSE_MANY; i++) {
        tp_pipe *pipe = tpx_pipe(!tpx_me.rank, i);

        if (tpx_me.rank == 0) {
            memset(memory, 1, CLOSE_BIG);
            tpx_ok(tp_pipe_write(pipe, &message, close_done, NULL));
            tpx_until(&close_total, i);
        } else {
            close_midway_read(pipe, memory);
        }
        tpx_meet(!tpx_me.rank);    /* behind all that was under way */
        for (size_t k = 0; tpx_me.rank == 1 && k < CLOSE_BIG; k++)
            tpx_check(memory[k] == 0, "byte %zu was written late", k);
    }
    free(memory);
}

/* Nothing was ever used. */
static void close_idle(void)
{
    tp_pipe *pipe;

    tpx_ok(tp_pipe_to_rank(tpx_me.context, 0, &pipe));
}

/* ---- while a part is lent ------------------------------------------------ */

enum { CLOSE_LENT = 1 << 20, CLOSE_REST = 64 << 20 };

static void close_half_arrived(tp_pipe *pipe, tp_status status,
                               tp_message *message, void *arg)
{
    (void)arg;
    tpx_ok(status);
    tpx_ok(tp_pipe_borrow(pipe, message, close_done, NULL));
    tpx_ok(tp_pipe_close(pipe));
}

static void close_half_send(tp_pipe *pipe)
{
    static const tp_device cpu = { TP_DEVICE_CPU, 0 };
    void *lent, *rest = close_memory(CLOSE_REST);
    tp_payload payloads[] = { { .length = CLOSE_LENT },
                              { .data = rest, .length = CLOSE_REST } };
    tp_message message = { .payloads = payloads, .payload_count = 2 };

    tpx_ok(tp_alloc(tpx_me.context, CLOSE_LENT, cpu, &lent));
    memset(lent, 9, CLOSE_LENT);
    payloads[0].data = lent;
    tpx_status(tp_pipe_send_message(pipe, &message, -1), TP_ERR_PEER_CLOSED);
    tpx_ok(tp_free(tpx_me.context, lent));
    free(rest);
}

/* The reader closes while one buffer of a message is lent and the other is to
 * come: what was lent leaves him with its block. */
static void close_half(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);

    tpx_barrier();
    if (tpx_me.rank == 0) {
        close_half_send(pipe);
    } else {
        tpx_ok(tp_pipe_read_descriptor(pipe, close_half_arrived, NULL));
        tpx_until(&close_total, 1);
        tpx_equal(close_ended[TP_ERR_CLOSED], 1);
    }
    tpx_barrier();
    tpx_mappings_end();
}

static void close_again(tp_pipe *pipe, tp_status status, tp_message *message,
                        void *arg)
{
    (void)status;
    (void)message;
    __atomic_fetch_add((unsigned *)arg, 1, __ATOMIC_RELAXED);
    tp_pipe_read_descriptor(pipe, close_again, arg);
}

/* A callback that asks again, whatever it was told, keeps neither a call nor
 * tp_finalize(). */
static void close_endless(void)
{
    tp_pipe *pipe = tpx_pipe(0, 0);
    unsigned called = 0;

    tpx_ok(tp_pipe_close(pipe));
    tpx_ok(tp_pipe_read_descriptor(pipe, close_again, &called));
    for (int i = 0; i < 5; i++)
        tpx_ok(tp_progress(tpx_me.context, NULL));
    tpx_until(&called, 10);
    tpx_ok(tp_finalize(tpx_me.context));
    tpx_me.context = NULL;
}

/* Whoever is not there when the pipe is closed is not called any more. */
static void close_dialing(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr = { htonl(INADDR_LOOPBACK) } };
    struct pollfd called = { socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
                             POLLIN, 0 };
    socklen_t length = sizeof(address);
    tp_options options = TP_OPTIONS_INIT;
    char text[32];
    tp_pipe *pipe;

    options.bootstrap = "single";
    options.secret = "our secret";
    tpx_ok(tp_init(&options, &tpx_me.context));
    tpx_equal(bind(called.fd, (struct sockaddr *)&address, length), 0);
    tpx_equal(getsockname(called.fd, (struct sockaddr *)&address, &length), 0);
    snprintf(text, sizeof(text), "127.0.0.1:%u", ntohs(address.sin_port));
    tpx_ok(tp_connect(tpx_me.context, text, &pipe));
    tpx_status(tp_pipe_send_message(pipe, &(tp_message){ 0 }, 100),
               TP_ERR_TIMEOUT);
    tpx_ok(tp_pipe_close(pipe));
    tpx_status(tp_pipe_send(pipe, "x", 1), TP_ERR_CLOSED);
    tpx_equal(listen(called.fd, 8), 0);
    /* It would call again after half a second at most. */
    for (int i = 0; i < 80; i++) {
        tpx_ok(tp_progress(tpx_me.context, NULL));
        tpx_equal(poll(&called, 1, 10), 0);
    }
    close(called.fd);
}

static void close_reconnect(tp_listener *listener, tp_status status,
                            tp_pipe *pipe, void *arg)
{
    unsigned *count = arg;

    tpx_equal(status, TP_ERR_CLOSED);
    status = tp_accept(listener, close_reconnect, arg);
    if (status == TP_OK && *count > 8)
        return;
    tpx_status(tp_connect(tpx_me.context, "127.0.0.1:9", &pipe), status);
    *count = status == TP_OK ? *count + 1 : CLOSE_REFUSED;
}

/* Who connects again whenever anything ends is refused at the very end, as who
 * accepts again is. */
static void close_last(void)
{
    tp_options options = TP_OPTIONS_INIT;
    tp_listener *listener;
    unsigned count = 0;

    options.bootstrap = "single";
    options.secret = "our secret";
    tpx_ok(tp_init(&options, &tpx_me.context));
    tpx_ok(tp_listen(tpx_me.context, NULL, &listener));
    tpx_ok(tp_accept(listener, close_reconnect, &count));
    tpx_ok(tp_finalize(tpx_me.context));
    tpx_me.context = NULL;
    tpx_equal(count, CLOSE_REFUSED);
}

const struct tpx_spmd tpx_close[] = {
    { "close_pending", close_pending, 2, TPX_LAUNCH, 20 },
    { "close_first", close_first, 2, 0, 20 },
    { "close_inside", close_inside, 2, 0, 20 },
    { "close_leave_early", close_leave_early, 2, TPX_LAUNCH, 20 },
    { "close_never_met", close_never_met, 3, TPX_LAUNCH, 20 },
    { "close_flush", close_flush, 2, TPX_LAUNCH, 20 },
    { "close_chained", close_chained, 2, 0, 20 },
    { "close_told", close_told, 3, 0, 20 },
    { "close_unread", close_unread, 2, 0, 40 },
    { "close_finalize_pending", close_finalize_pending, 2, 0, 40 },
    { "close_timeout", close_timeout, 2, TPX_BARE | TPX_WARNS, 20 },
    { "close_both", close_both, 2, TPX_BARE | TPX_CHANNELS, 20 },
    { "close_orphan", close_orphan, 2,
      TPX_BARE | TPX_CHANNELS | TPX_KILLS | TPX_MANUAL, 20 },
    { "close_forked", close_forked, 2, 0, 20 },
    { "close_sleeper", close_sleeper, 2, TPX_BARE | TPX_MANUAL, 20 },
    { "close_half", close_half, 2, TPX_CHANNELS | TPX_FREES, 30 },
    { "close_midway", close_midway, 2, TPX_CHANNELS, 40 },
    { "close_idle", close_idle, 3, 0, 20 },
    { "close_endless", close_endless, 1, 0, 20 },
    { "close_dialing", close_dialing, 1, TPX_BARE, 20 },
    { "close_last", close_last, 1, TPX_BARE, 20 },
    { NULL }
};
