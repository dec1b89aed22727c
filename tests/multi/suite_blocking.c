/* SPDX-License-Identifier: BSD-3-Clause */
/* The blocking calls: limits of time, buffers too small, first come first
 * served. */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "tests/multi/flow.h"

enum { BLOCKING_SHORT = 2048 };    /* less than any channel takes */

static void blocking_truncated(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    static unsigned char big[100000], got[100000];
    size_t length = 0;
    tp_message *skeleton;

    if (tpx_me.rank == 0) {
        tpx_fill(big, sizeof(big), 5);
        tpx_ok(tp_pipe_send(pipe, "0123456789", 10));
        tpx_ok(tp_pipe_send(pipe, big, sizeof(big)));
        tpx_ok(tp_pipe_send(pipe, "", 0));
        tpx_ok(tp_pipe_send(pipe, "end", 3));
        tpx_meet(1);
        return;
    }
    tpx_status(tp_pipe_recv(pipe, got, 9, &length), TP_ERR_TRUNCATED);
    tpx_equal(length, 10);
    length = 0;
    tpx_status(tp_pipe_recv(pipe, NULL, 0, &length), TP_ERR_TRUNCATED);
    tpx_equal(length, 10);
    tpx_status(tp_pipe_recv(pipe, got, 9, NULL), TP_ERR_TRUNCATED);
    tpx_ok(tp_pipe_recv(pipe, got, 10, &length));
    tpx_equal(memcmp(got, "0123456789", 10), 0);
    tpx_status(tp_pipe_recv(pipe, got, 99999, &length), TP_ERR_TRUNCATED);
    tpx_equal(length, sizeof(big));
    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, -1));    /* the same one */
    tpx_equal(skeleton->payloads[0].length, sizeof(big));
    skeleton->payloads[0].data = got;
    tpx_ok(tp_pipe_recv_message(pipe, skeleton, -1));
    tpx_equal(tpx_verify(got, sizeof(got), 5), sizeof(got));
    tpx_ok(tp_pipe_recv(pipe, NULL, 0, &length));
    tpx_equal(length, 0);
    tpx_ok(tp_pipe_recv(pipe, got, sizeof(got), &length));
    tpx_equal(length, 3);
    tpx_meet(0);
}

/* tp_pipe_recv() takes all buffers of a message one after the other. */
static void blocking_gathers(void)
{
    tp_pipe *pipe = tpx_pipe(0, 0);
    char one[] = "abc", two[] = "de", three[] = "fghi", got[16] = "";
    tp_payload payloads[2] = { { one, 3, "m", 1 }, { two, 2, NULL, 0 } };
    tp_tensor tensors[2] = { { .data = three, .length = 4 }, { 0 } };
    tp_message message = { "meta", 4, payloads, 2, tensors, 2 };
    size_t length;

    for (int i = 0; i < 3; i++) {
        tpx_ok(tp_pipe_send_message(pipe, &message, -1));
        memset(got, 0, sizeof(got));
        tpx_ok(tp_pipe_recv(pipe, got, sizeof(got), &length));
        tpx_equal(length, 9);
        tpx_equal(strcmp(got, "abcdefghi"), 0);
    }
}

enum { ASIDE_LETTERS = 1000, ASIDE_EMPTY = 40000 };

/* Sends it; in some rounds something behind it that is read before. */
static void blocking_aside_send(tp_pipe *pipe, tp_pipe *other, unsigned i)
{
    struct tpx_letter *letter = tpx_letter_make(i, TPX_SMALL);
    unsigned done = 0;
    char byte;

    if (i % 4 == 1) {
        tpx_ok(tp_pipe_write(pipe, &letter->message, tpx_count_ok, &done));
        tpx_ok(tp_pipe_send(other, "x", 1));
        tpx_until(&done, 1);
    } else {
        tpx_ok(tp_pipe_send_message(pipe, &letter->message, -1));
    }
    if (i % 4 == 2)                /* the two after that come at once */
        tpx_ok(tp_pipe_recv(other, &byte, 1, NULL));
    tpx_letter_free(letter);
}

/* Reads the next letter, a skeleton first; `other` has something in between. */
static void blocking_aside_read(tp_pipe *pipe, tp_pipe *other, unsigned i)
{
    struct tpx_letter *letter;
    tp_message *skeleton;
    bool refused;
    char byte;

    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton,
                                 i % 3 == 0 ? -1 : tpx_limit_ms(20000)));
    if (i % 4 == 1)
        tpx_ok(tp_pipe_recv(other, &byte, 1, NULL));
    refused = skeleton->payload_count > 0 && skeleton->payloads[0].length > 0;
    if (refused)
        tpx_status(tp_pipe_recv_message(pipe, skeleton, -1), TP_ERR_INVALID);
    letter = tpx_letter_expect(i, TPX_SMALL, skeleton);
    tpx_ok(tp_pipe_recv_message(pipe, skeleton, -1));
    tpx_letter_check(letter);
    tpx_letter_free(letter);
}

/* A skeleton, and then what it is of: while one waits for it, of what has
 * arrived, and of what has nothing in it. */
static void blocking_aside(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    tp_pipe *other = tpx_pipe(!tpx_me.rank, 1);
    tp_payload nothing = { NULL, 0, NULL, 0 };
    tp_message empty = { .payloads = &nothing, .payload_count = 1 };
    unsigned part = tpx_me.few ? 12 : tpx_me.sanitized ? 4 : 1;
    unsigned letters = ASIDE_LETTERS / part, empties = ASIDE_EMPTY / part;
    struct tp_stats stats;

    for (unsigned i = 0; i < letters; i++) {
        if (tpx_me.rank == 0) {
            blocking_aside_send(pipe, other, i);
        } else {
            blocking_aside_read(pipe, other, i);
            if (i % 4 == 2)
                tpx_ok(tp_pipe_send(other, "y", 1));
        }
    }
    for (unsigned i = 0; i < empties; i++) {
        tp_message *skeleton;

        if (tpx_me.rank == 0) {
            tpx_ok(tp_pipe_send_message(pipe, &empty, -1));
            continue;
        }
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, -1));
        tpx_equal(skeleton->payload_count, 1);
        tpx_ok(tp_pipe_recv_message(pipe, skeleton, -1));
        tpx_status(tp_pipe_recv_message(pipe, skeleton, -1), TP_ERR_INVALID);
    }
    tpx_ok(tp_pipe_stats(pipe, &stats));
    tpx_equal(tpx_me.rank == 0 ? stats.messages_sent : stats.messages_received,
              letters + empties);
    tpx_equal(stats.reads_pending, 0);
    tpx_equal(stats.writes_pending, 0);
    tpx_equal(stats.bytes_buffered, 0);
    tpx_meet(!tpx_me.rank);
}

static void blocking_timeouts(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    tp_message *skeleton;
    uint64_t before;
    char byte = 0;
    size_t length;

    if (tpx_me.rank == 0) {
        tpx_meet(1);
        tpx_sleep_ms(100);
        tpx_ok(tp_pipe_send(pipe, "x", 1));
        tpx_ok(tp_pipe_recv(pipe, &byte, 1, &length));
        tpx_meet(1);
        return;
    }
    before = tpx_now();
    tpx_status(tp_pipe_recv_skeleton(pipe, &skeleton, 60), TP_ERR_TIMEOUT);
    tpx_check(tpx_now() - before >= 60 * UINT64_C(1000000), "too early");
    tpx_status(tp_wait(tpx_me.context, 30, NULL), TP_ERR_TIMEOUT);
    tpx_meet(0);
    /* 0 tries once: a loop of that gets the message in the end. */
    for (;;) {
        tp_status status = tp_pipe_recv_skeleton(pipe, &skeleton, 0);

        if (status == TP_OK)
            break;
        tpx_equal(status, TP_ERR_TIMEOUT);
        tpx_check(tpx_now() - before
                      < (uint64_t)tpx_limit_ms(20000) * 1000000u,
                  "trying once never tries");
    }
    tpx_equal(skeleton->payloads[0].length, 1);
    skeleton->payloads[0].data = &byte;
    tpx_ok(tp_pipe_recv_message(pipe, skeleton, 0));
    tpx_equal(byte, 'x');
    tpx_ok(tp_pipe_send(pipe, "y", 1));
    tpx_meet(0);
}

/* tp_wait(0) is tp_progress() in other words. */
static void blocking_wait_zero(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned written = 0, turns = 0;
    uint64_t before = tpx_now();
    char byte = 'w';
    tp_payload payload = { &byte, 1, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };

    if (tpx_me.rank == 1) {
        tpx_ok(tp_pipe_recv(pipe, &byte, 1, NULL));
        tpx_meet(0);
        return;
    }
    tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &written));
    while (__atomic_load_n(&written, __ATOMIC_ACQUIRE) == 0) {
        tp_status status = tp_wait(tpx_me.context, 0, NULL);

        turns++;
        tpx_check(status == TP_OK || status == TP_ERR_TIMEOUT, "%s",
                  tp_strerror(status));
        tpx_check(tpx_now() - before
                      < (uint64_t)tpx_limit_ms(20000) * 1000000u,
                  "%u turns of tp_wait(0) move nothing", turns);
    }
    tpx_meet(1);
}

/* What tp_progress() and tp_wait() say they completed, adds up. */
static unsigned blocking_ran;

static void blocking_arrived(tp_pipe *pipe, tp_status status,
                             tp_message *skeleton, void *arg)
{
    static char room[8];

    blocking_ran++;
    tpx_ok(status);
    skeleton->payloads[0].data = room;
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, arg));
}

static void blocking_completed(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned read = 0;
    int sum = 0;

    for (unsigned i = 0; i < 200; i++) {
        if (tpx_me.rank == 0) {
            tpx_ok(tp_pipe_send(pipe, "completed", 8));
            continue;
        }
        tpx_ok(tp_pipe_read_descriptor(pipe, blocking_arrived, &read));
        while (read <= i) {
            int completed = -1;

            if (i % 2 == 0)
                tpx_ok(tp_progress(tpx_me.context, &completed));
            else
                tpx_ok(tp_wait(tpx_me.context, -1, &completed));
            tpx_check(completed >= 0, "completed is not written");
            sum += completed;
        }
    }
    if (tpx_me.rank == 1)
        tpx_equal(sum, blocking_ran + read);
    tpx_meet(!tpx_me.rank);
}

static void *blocking_first(void *arg)
{
    tp_wait(tpx_me.context, 10, arg);
    return NULL;
}

/* What ran before a thread's first call is not told as its own. */
static void blocking_newcomer(void)
{
    tp_pipe *pipe = tpx_pipe(0, 0);
    int completed = -1;
    pthread_t thread;
    char byte;

    for (unsigned i = 1; i < 20; i++) {
        unsigned written = 0;
        tp_message message = { 0 };

        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &written));
        tpx_ok(tp_pipe_recv(pipe, &byte, 1, NULL));
        tpx_until(&written, 1);
    }
    tpx_equal(pthread_create(&thread, NULL, blocking_first, &completed), 0);
    tpx_equal(pthread_join(thread, NULL), 0);
    tpx_equal(completed, 0);
}

static const char *blocking_sent;      /* a file: rank 0 has written */

static void blocking_stop(int signal)
{
    int before = errno;

    (void)signal;
    tpx_sleep_ms(1500);
    while (access(blocking_sent, F_OK) != 0)
        tpx_sleep_ms(1);
    errno = before;
}

/* Writes a byte while the peer is stopped, and tells it.  Memory of a device
 * is written only when the peer has read it: then it is on its way after some
 * turns. */
static void blocking_write_stopped(tp_pipe *pipe)
{
    char byte = 'm';
    tp_payload payload = { &byte, 1, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    unsigned written = 0;

    tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &written));
    for (int turn = 0; turn < 100
         && __atomic_load_n(&written, __ATOMIC_ACQUIRE) == 0; turn++)
        tp_wait(tpx_me.context, 10, NULL);
    tpx_file_make("sent");
    tpx_until(&written, 1);
}

/* Who was stopped while the time went by has what came meanwhile. */
static void blocking_stopped(void)
{
    const struct itimerval soon = { .it_value.tv_usec = 100000 };
    struct sigaction action = { .sa_handler = blocking_stop };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    tp_message *skeleton;
    char byte = 0;

    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        tpx_sleep_ms(400);
        blocking_write_stopped(pipe);
        tpx_meet(1);
        return;
    }
    blocking_sent = tpx_file("sent");
    tpx_equal(sigaction(SIGALRM, &action, NULL), 0);
    tpx_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, 300));
    skeleton->payloads[0].data = &byte;
    tpx_ok(tp_pipe_recv_message(pipe, skeleton, -1));
    tpx_equal(byte, 'm');
    tpx_meet(0);
}

/* Sends until there is no room for so short a message: the first bytes of each
 * say its number.  The one that times out is withdrawn. */
static void blocking_fill(tp_pipe *pipe, unsigned char *memory, size_t length,
                          unsigned *sent)
{
    tp_payload payload = { memory, length, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    tp_status status = TP_OK;

    while (status == TP_OK) {
        memcpy(memory, sent, sizeof(*sent));
        status = tp_pipe_send_message(pipe, &message, 50);
        *sent += status == TP_OK;
    }
    tpx_equal(status, TP_ERR_TIMEOUT);
    tpx_check(*tp_pipe_error(pipe) == '\0', "an error without need: %s",
              tp_pipe_error(pipe));
}

static void blocking_drain(tp_pipe *pipe, unsigned char *memory,
                           unsigned sent)
{
    for (unsigned i = 0; i < sent; i++) {
        unsigned number;

        tpx_ok(tp_pipe_recv(pipe, memory, BLOCKING_SHORT, NULL));
        memcpy(&number, memory, sizeof(number));
        tpx_equal(number, i);
    }
}

/* A send that nobody takes: withdrawn if nothing of it went out, else the pipe
 * is closed. */
static void blocking_send_timeout(void)
{
    enum { BIG = 8 << 20 };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0), *cut = tpx_pipe(!tpx_me.rank,
                                                               1);
    unsigned char *memory = calloc(1, BIG);
    tp_payload payload = { memory, BIG, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    tp_message *skeleton;
    unsigned sent = 0;
    char byte;

    tpx_check(memory != NULL, "no memory for the test itself");
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        blocking_fill(pipe, memory, BLOCKING_SHORT, &sent);
        /* On a busy machine the time may be up before any of it goes out. */
        for (int ms = 50; *tp_pipe_error(cut) == '\0'; ms *= 2)
            tpx_status(tp_pipe_send_message(cut, &message, ms),
                       TP_ERR_TIMEOUT);
        memset(memory, 0xee, BIG);     /* ours again */
        tpx_status(tp_pipe_send(cut, "late", 4), TP_ERR_CLOSED);
        tpx_ok(tp_pipe_send(tpx_pipe(1, 2), &sent, sizeof(sent)));
        tpx_ok(tp_pipe_send(pipe, "last", 4));
        tpx_meet(1);
    } else {
        tpx_ok(tp_pipe_recv(tpx_pipe(0, 2), &sent, sizeof(sent), NULL));
        blocking_drain(pipe, memory, sent);
        tpx_ok(tp_pipe_recv(pipe, memory, 4, NULL));
        tpx_equal(memcmp(memory, "last", 4), 0);
        tpx_ok(tp_pipe_recv_skeleton(cut, &skeleton, -1));
        skeleton->payloads[0].data = memory;
        tpx_status(tp_pipe_recv_message(cut, skeleton, -1),
                   TP_ERR_PEER_CLOSED);
        tpx_status(tp_pipe_recv(cut, &byte, 1, NULL), TP_ERR_PEER_CLOSED);
        tpx_meet(0);
    }
    free(memory);
}

/* Fills it until the peer's leave is used up.  Where only the transport had no
 * room there is some again: who answers has taken what was before the
 * question. */
static void blocking_use_up(tp_pipe *pipe, unsigned char *memory,
                            unsigned *sent)
{
    tp_pipe *other = tpx_pipe(1, 2);
    unsigned before, question = 0;

    do {
        before = *sent;
        blocking_fill(pipe, memory, BLOCKING_SHORT, sent);
        blocking_fill(pipe, memory, sizeof(*sent), sent);
        tpx_ok(tp_pipe_send(other, &question, sizeof(question)));
        tpx_ok(tp_pipe_recv(other, &question, sizeof(question), NULL));
    } while (*sent > before);
}

/* Its peer: answers, until it gets the number that is not 0. */
static unsigned blocking_answer(void)
{
    tp_pipe *other = tpx_pipe(0, 2);
    unsigned sent;

    tpx_ok(tp_pipe_recv(other, &sent, sizeof(sent), NULL));
    while (sent == 0) {
        tpx_ok(tp_pipe_send(other, &sent, sizeof(sent)));
        tpx_ok(tp_pipe_recv(other, &sent, sizeof(sent), NULL));
    }
    return sent;
}

/* A long message, of which the peer has not heard anything, is withdrawn, or
 * its pipe is closed: nobody waits for the peer, and it counts as it did. */
static void blocking_unheard(void)
{
    enum { BIG = 4 << 20, TIMES = 3 };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0), *cut = tpx_pipe(!tpx_me.rank,
                                                               1);
    unsigned char *memory = malloc(BIG);
    tp_payload payload = { memory, BIG, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    unsigned sent = 0, other = 0;
    struct tpx_end end = { 0 };

    tpx_check(memory != NULL, "no memory for the test itself");
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        blocking_use_up(pipe, memory, &sent);
        blocking_use_up(cut, memory, &other);
        for (int i = 0; i < TIMES; i++)
            tpx_status(tp_pipe_send_message(pipe, &message, 20),
                       TP_ERR_TIMEOUT);
        tpx_equal(*tp_pipe_error(pipe), '\0');
        tpx_ok(tp_pipe_write(cut, &message, tpx_ended, &end));
        tpx_status(tp_wait(tpx_me.context, 20, NULL), TP_ERR_TIMEOUT);
        tpx_ok(tp_pipe_close(cut));
        tpx_until(&end.over, 1);
        tpx_status(end.status, TP_ERR_CLOSED);
        tpx_ok(tp_pipe_send(tpx_pipe(1, 2), &sent, sizeof(sent)));
    } else {
        blocking_drain(pipe, memory, blocking_answer());
    }
    for (unsigned i = 0; i < TIMES; i++) {
        if (tpx_me.rank == 0) {
            tpx_fill(memory, BIG, i);
            tpx_ok(tp_pipe_send(pipe, memory, BIG));
        } else {
            tpx_ok(tp_pipe_recv(pipe, memory, BIG, NULL));
            tpx_equal(tpx_verify(memory, BIG, i), BIG);
        }
    }
    tpx_meet(!tpx_me.rank);
    free(memory);
}

/* What could not be sent has told the peer nothing: the credit that it would
 * have carried is still to be given.  Over shm such a message may go by a
 * channel, and is not sent from where it lies. */
static void blocking_credit(void)
{
    enum { MOST = 16 * 1024, EACH = 32, ROUNDS = 10 };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0), *other = tpx_pipe(!tpx_me.rank,
                                                                 1);
    unsigned char *memory = malloc(MOST);
    tp_payload payload = { memory, MOST, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    struct tp_stats stats;
    bool over;

    tpx_check(memory != NULL, "no memory for the test itself");
    tpx_meet(!tpx_me.rank);
    tpx_ok(tp_pipe_stats(pipe, &stats));
    over = strcmp(stats.transport, "shm") == 0;
    for (unsigned round = 0; !over && round < ROUNDS; round++) {
        unsigned sent[3] = { 0 };

        if (tpx_me.rank == 0) {
            for (int i = 0; i < EACH; i++)
                tpx_ok(tp_pipe_recv(pipe, memory, MOST, NULL));
            tpx_ok(tp_pipe_send(other, "", 1));
            blocking_fill(other, memory, BLOCKING_SHORT, &sent[0]);
            for (int i = 0; i < 3; i++)
                sent[1] += tp_pipe_send_message(pipe, &message, 1) == TP_OK;
            /* One that had begun when its time was up has closed the pipe. */
            sent[2] = *tp_pipe_error(pipe) != '\0';
            over = sent[2] > 0;
            tpx_ok(tp_pipe_send(tpx_pipe(1, 2), sent, sizeof(sent)));
            continue;
        }
        for (int i = 0; i < EACH; i++)
            tpx_ok(tp_pipe_send_message(pipe, &message, -1));
        tpx_ok(tp_pipe_recv(other, memory, 1, NULL));
        tpx_sleep_ms(200);         /* takes nothing meanwhile */
        tpx_ok(tp_pipe_recv(tpx_pipe(0, 2), sent, sizeof(sent), NULL));
        blocking_drain(other, memory, sent[0]);
        over = sent[2] > 0;
        while (sent[1]-- > 0)
            tpx_ok(tp_pipe_recv(pipe, memory, MOST, NULL));
    }
    tpx_meet(!tpx_me.rank);
    free(memory);
}

/* ---- from any rank ------------------------------------------------------ */

enum { ANY_EACH = 50, ANY_RANKS = 8 };

static struct any_state {
    unsigned next[ANY_RANKS];  /* the number that must come from that rank */
    unsigned done, plain;
    unsigned numbers[ANY_RANKS];
    tp_pipe *own;              /* has its own reader */
} any_state;

static void any_read(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                     void *arg)
{
    int rank = tp_pipe_rank(pipe);

    (void)skeleton;
    tpx_ok(status);
    tpx_equal(any_state.numbers[rank], any_state.next[rank]);
    any_state.next[rank]++;
    __atomic_fetch_add((unsigned *)arg, 1, __ATOMIC_ACQ_REL);
}

static void any_arrived(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                        void *arg)
{
    if (status == TP_ERR_CLOSED)
        return;                /* tp_finalize() */
    tpx_ok(status);
    tpx_check(pipe != NULL, "no pipe");
    tpx_check(pipe != any_state.own, "what has a reader of its own");
    skeleton->payloads[0].data = &any_state.numbers[tp_pipe_rank(pipe)];
    tpx_ok(tp_pipe_read(pipe, skeleton, any_read, arg));
    tpx_ok(tp_read_descriptor_any(tpx_me.context, any_arrived, arg));
}

static void any_plain(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                      void *arg)
{
    static unsigned number;

    tpx_ok(status);
    skeleton->payloads[0].data = &number;
    /* In this order: with the read over and nobody armed the next message would
     * be for any reader. */
    if (any_state.plain + 1 < ANY_EACH)
        tpx_ok(tp_pipe_read_descriptor(pipe, any_plain, arg));
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, arg));
}

static void any_last(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                     void *arg)
{
    (void)pipe;
    (void)skeleton;
    tpx_status(status, TP_ERR_CLOSED);
    __atomic_fetch_add((unsigned *)arg, 1, __ATOMIC_ACQ_REL);
}

/* Rank 0 serves all, and has a pipe armed by itself besides: what comes there
 * goes to its own reader. */
static void blocking_any(void)
{
    if (tpx_me.rank != 0) {
        for (unsigned i = 0; i < ANY_EACH; i++) {
            tpx_ok(tp_pipe_send(tpx_pipe(0, 0), &i, sizeof(i)));
            if (tpx_me.rank == 1)
                tpx_ok(tp_pipe_send(tpx_pipe(0, 9), &i, sizeof(i)));
            if (tpx_below(&tpx_me.seed, 4) == 0)
                tpx_sleep_ms(1);
        }
        return;
    }
    any_state.own = tpx_pipe(1, 9);
    tpx_ok(tp_pipe_read_descriptor(any_state.own, any_plain,
                                   &any_state.plain));
    tpx_sleep_ms(20);          /* some have written before we ask */
    for (int i = 0; i < 3; i++)
        tpx_ok(tp_read_descriptor_any(tpx_me.context, any_arrived,
                                      &any_state.done));
    while (__atomic_load_n(&any_state.done, __ATOMIC_ACQUIRE)
           < ANY_EACH * (unsigned)(tpx_me.size - 1)
           || __atomic_load_n(&any_state.plain, __ATOMIC_ACQUIRE) < ANY_EACH)
        tpx_ok(tp_wait(tpx_me.context, tpx_limit_ms(20000), NULL));
    /* The three that stay armed would take what the others say in a meeting. */
    tpx_ok(tp_finalize(tpx_me.context));
    tpx_me.context = NULL;
}

static void any_once(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                     void *arg)
{
    tpx_ok(status);
    skeleton->payloads[0].data = &any_state.numbers[tp_pipe_rank(pipe)];
    tpx_ok(tp_pipe_read(pipe, skeleton, any_read, arg));
}

/* Armed one at a time; at the end one stays armed, and tp_finalize() ends
 * it. */
static void blocking_any_single(void)
{
    static unsigned closed;
    unsigned total = ANY_EACH * (unsigned)(tpx_me.size - 1);

    if (tpx_me.rank != 0) {
        for (unsigned i = 0; i < ANY_EACH; i++)
            tpx_ok(tp_pipe_send(tpx_pipe(0, tpx_me.rank == 2 ? 5 : 0), &i,
                                sizeof(i)));
        return;
    }
    for (unsigned i = 0; i < total; i++) {
        tpx_ok(tp_read_descriptor_any(tpx_me.context, any_once,
                                      &any_state.done));
        tpx_until(&any_state.done, i + 1);
    }
    tpx_ok(tp_read_descriptor_any(tpx_me.context, any_last, &closed));
    tpx_ok(tp_finalize(tpx_me.context));
    tpx_me.context = NULL;
    tpx_equal(closed, 1);
}

/* Without a limit for it a first contact is looked after, too: its peer is
 * late, and only a clock tells that its card is there. */
static void blocking_patient(void)
{
    unsigned number = 0;

    tpx_check(setenv("TP_CONNECT_TIMEOUT", "-", 1) == 0, "setenv");
    if (tpx_me.rank == 1)
        tpx_sleep_ms(150);
    tpx_ok(tp_init(NULL, &tpx_me.context));
    if (tpx_me.rank == 0) {
        tpx_ok(tp_pipe_send(tpx_pipe(1, 0), &number, sizeof(number)));
    } else {
        /* Not by its pipe: that would seek the acquaintance itself. */
        tpx_ok(tp_read_descriptor_any(tpx_me.context, any_once,
                                      &any_state.done));
        tpx_until(&any_state.done, 1);
    }
}

enum { THREADS = 4, THREADS_ROUNDS = 150, THREADS_LONG = 100000 };

/* To and fro on a pipe of the thread's own, short and long ones in turn. */
static void *threads_talk(void *arg)
{
    unsigned number = *(const unsigned *)arg;
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, number);
    unsigned char *bytes = malloc(THREADS_LONG);

    tpx_check(bytes != NULL, "no memory");
    for (unsigned i = 0; i < THREADS_ROUNDS; i++) {
        size_t length = i % 8 == 7 ? THREADS_LONG : 8 + i % 100, got = 0;
        unsigned seed = number * THREADS_ROUNDS + i;

        if (tpx_me.rank == 0) {
            tpx_fill(bytes, length, seed);
            tpx_ok(tp_pipe_send(pipe, bytes, length));
        }
        tpx_ok(tp_pipe_recv(pipe, bytes, THREADS_LONG, &got));
        tpx_equal(got, length);
        tpx_equal(tpx_verify(bytes, length, seed), length);
        if (tpx_me.rank == 1)
            tpx_ok(tp_pipe_send(pipe, bytes, length));
    }
    free(bytes);
    return NULL;
}

static void threads_run(void *(*run)(void *), unsigned count)
{
    pthread_t threads[THREADS];
    unsigned numbers[THREADS];

    for (unsigned i = 0; i < count; i++) {
        numbers[i] = i + 1;
        tpx_equal(pthread_create(&threads[i], NULL, run, &numbers[i]), 0);
    }
    for (unsigned i = 0; i < count; i++)
        tpx_equal(pthread_join(threads[i], NULL), 0);
}

/* Threads that wait at the same time. */
static void blocking_threads(void)
{
    threads_run(threads_talk, THREADS);
}

static void *threads_receive(void *arg)
{
    unsigned number = *(const unsigned *)arg, got = 0;
    tp_message *none;

    if (number == THREADS)
        tpx_status(tp_pipe_recv_skeleton(tpx_pipe(1, 2 * THREADS), &none, 5),
                   TP_ERR_TIMEOUT);
    tpx_ok(tp_pipe_recv(tpx_pipe(1, number), &got, sizeof(got), NULL));
    tpx_equal(got, number);
    return NULL;
}

/* The same with one cpu for all, as far as they know, and somebody who might
 * poll; then all wait for long, with little time of a cpu. */
static void blocking_sharers(void)
{
    clock_t before, used;

    tpx_check(setenv("TP_CPUS", "2", 1) == 0, "setenv");
    tpx_ok(tp_init(NULL, &tpx_me.context));
    tpx_check(tp_fd(tpx_me.context) >= 0, "tp_fd");
    threads_run(threads_talk, THREADS);
    if (tpx_me.rank == 1) {
        tpx_sleep_ms(2000);
        for (unsigned i = 1; i <= THREADS; i++)
            tpx_ok(tp_pipe_send(tpx_pipe(0, i), &i, sizeof(i)));
        tpx_meet(0);
        return;
    }
    before = clock();
    threads_run(threads_receive, THREADS);
    used = (clock() - before) / (CLOCKS_PER_SEC / 1000);
    tpx_check(used < 1000, "%ld ms of CPU in 2000 ms of waiting", (long)used);
    tpx_meet(1);
}

/*
 * Who looks on while another thread drives goes on by himself when that one has
 * what it waited for and is gone, and when his own time is up.  All spin for
 * longer than the test may last: who only looks on then looks on for ever.
 */
static void blocking_heirs(void)
{
    tpx_check(setenv("TP_SPIN", "3600000000", 1) == 0
              && setenv("TP_CPUS", "64", 1) == 0, "setenv");
    tpx_ok(tp_init(NULL, &tpx_me.context));
    for (unsigned round = 0; round < 3; round++) {
        if (tpx_me.rank == 0) {
            threads_run(threads_receive, THREADS);
            tpx_meet(1);
            continue;
        }
        /* They shall be waiting, each time one less. */
        for (unsigned i = 0; i < THREADS; i++) {
            unsigned number = 1 + (round + i) % THREADS;

            tpx_sleep_ms(20);
            tpx_ok(tp_pipe_send(tpx_pipe(0, number), &number,
                                sizeof(number)));
        }
        tpx_meet(0);
    }
}

/* Has it to be pulled: by contract, or as it is a device's (tests/gpu)? */
static bool blocking_pulls(void)
{
#ifdef TPX_PAYLOADS
    return true;
#else
    return getenv("TP_REQUIRE") != NULL;
#endif
}

/* Both send before they receive.  What fits a frame is taken nevertheless, also
 * when so many have come that it is known which way they are fastest; not if it
 * has to be pulled. */
static void blocking_both_send(void)
{
    enum { BOTH_LONG = 16000, BOTH_ROUNDS = 2000 };
    static unsigned char out[BOTH_LONG], in[BOTH_LONG];
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned rounds = tpx_me.few || tpx_me.sanitized ? 700 : BOTH_ROUNDS;
    bool first = tpx_me.rank == 0 && blocking_pulls();
    size_t length;

    tpx_fill(out, sizeof(out), 7);
    for (unsigned i = 0; i < rounds; i++) {
        tp_payload payload = { .data = out, .length = sizeof(out) };
        tp_message message = { .payloads = &payload, .payload_count = 1 };

        if (first)
            tpx_ok(tp_pipe_recv(pipe, in, sizeof(in), &length));
        if (i % 16 < 8)
            tpx_ok(tp_pipe_send(pipe, out, sizeof(out)));
        else
            tpx_ok(tp_pipe_send_message(pipe, &message, -1));
        if (!first)
            tpx_ok(tp_pipe_recv(pipe, in, sizeof(in), &length));
        tpx_equal(length, sizeof(in));
    }
    tpx_equal(tpx_verify(in, sizeof(in), 7), sizeof(in));
}

const struct tpx_spmd tpx_blocking[] = {
    { "blocking_truncated", blocking_truncated, 2, TPX_LAUNCH, 20 },
    { "blocking_gathers", blocking_gathers, 1, 0, 20 },
    { "blocking_aside", blocking_aside, 2, TPX_LAUNCH, 30 },
    { "blocking_timeouts", blocking_timeouts, 2, 0, 30 },
    { "blocking_stopped", blocking_stopped, 2, 0, 30 },
    { "blocking_wait_zero", blocking_wait_zero, 2, 0, 30 },
    { "blocking_completed", blocking_completed, 2, TPX_MANUAL, 20 },
    { "blocking_newcomer", blocking_newcomer, 1, 0, 20 },
    { "blocking_send_timeout", blocking_send_timeout, 2, 0, 20 },
    { "blocking_credit", blocking_credit, 2, TPX_MANUAL, 30 },
    { "blocking_unheard", blocking_unheard, 2, 0, 30 },
    { "blocking_any", blocking_any, 5, TPX_LAUNCH, 30 },
    { "blocking_any_single", blocking_any_single, 4, 0, 30 },
    { "blocking_patient", blocking_patient, 2, TPX_BARE, 20 },
    { "blocking_threads", blocking_threads, 2, TPX_LAUNCH, 60 },
    { "blocking_sharers", blocking_sharers, 2, TPX_BARE, 60 },
    { "blocking_heirs", blocking_heirs, 2, TPX_BARE, 30 },
    { "blocking_both_send", blocking_both_send, 2, 0, 60 },
    { NULL }
};
