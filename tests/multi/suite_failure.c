/* SPDX-License-Identifier: BSD-3-Clause */
/* Promise 8: a rank is killed while others do something with it. */
#include "config.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/multi/flow.h"

enum { FAILURE_RANKS = 7, FAILURE_BIG = 3 << 20 };

static uint64_t failure_killed_at;
static pid_t failure_victim;
static unsigned failure_delay_us;

static void *failure_kill(void *arg)
{
    (void)arg;
    usleep(failure_delay_us);
    kill(failure_victim, SIGKILL);
    failure_killed_at = tpx_now();
    return NULL;
}

/* How operations ended. */
static unsigned failure_ended[16], failure_total;

static void failure_done(tp_pipe *pipe, tp_status status,
                         tp_message *message, void *arg)
{
    (void)pipe;
    (void)message;
    (void)arg;
    failure_ended[status]++;
    __atomic_fetch_add(&failure_total, 1, __ATOMIC_ACQ_REL);
}

/* ---- victims ------------------------------------------------------------ */

static unsigned char *failure_memory(void)
{
    unsigned char *memory = calloc(1, FAILURE_BIG);

    tpx_check(memory != NULL, "no memory for the test itself");
    return memory;
}

static _Noreturn void failure_sleep_for_ever(void)
{
    for (;;)
        pause();
}

/* Each dies of another occupation. */
static _Noreturn void failure_be_victim(int way)
{
    tp_pipe *pipe = tpx_pipe(0, 0);
    unsigned char *memory = failure_memory();
    pid_t pid = getpid();

    tpx_ok(tp_pipe_send(tpx_pipe(0, 9), &pid, sizeof(pid)));
    switch (way) {
    case 1:                    /* writes all the time */
        for (size_t length = 1;; length = length * 3 % FAILURE_BIG + 1)
            tpx_ok(tp_pipe_send(pipe, memory, length));
    case 2:                    /* computes */
        failure_sleep_for_ever();
    case 3:                    /* reads all the time */
        for (;;)
            tpx_ok(tp_pipe_recv(pipe, memory, FAILURE_BIG, NULL));
    default:                   /* waits */
        tpx_ok(tp_pipe_recv(tpx_pipe(0, 5), memory, 1, NULL));
    }
    failure_sleep_for_ever();
}

/* ---- survivors ---------------------------------------------------------- */

static void failure_reads(tp_pipe *pipe, unsigned char *memory)
{
    tp_status status;

    do
        status = tp_pipe_recv(pipe, memory, FAILURE_BIG, NULL);
    while (status == TP_OK);
    tpx_status(status, TP_ERR_PEER_FAILED);
}

static void failure_writes(tp_pipe *pipe, unsigned char *memory)
{
    tp_status status;

    do
        status = tp_pipe_send(pipe, memory, 100000);
    while (status == TP_OK);
    tpx_status(status, TP_ERR_PEER_FAILED);
}

/* Writes that do not complete, and armed reads. */
static void failure_pending(tp_pipe *pipe, unsigned char *memory)
{
    tp_payload payload = { memory, FAILURE_BIG, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    unsigned before = failure_total;

    memset(failure_ended, 0, sizeof(failure_ended));
    for (int i = 0; i < 20; i++) {
        tpx_ok(tp_pipe_write(pipe, &message, failure_done, NULL));
        tpx_ok(tp_pipe_read_descriptor(pipe, failure_done, NULL));
    }
    tpx_until(&failure_total, before + 40);
    for (int i = 0; i < 16; i++)
        tpx_check(i == TP_ERR_PEER_FAILED || failure_ended[i] == 0,
                  "%u of 40 ended with \"%s\": %s", failure_ended[i],
                  tp_strerror(i), tp_pipe_error(pipe));
    tpx_equal(failure_ended[TP_ERR_PEER_FAILED], 40);
    memset(memory, 3, FAILURE_BIG);        /* ours again */
}

static void failure_polls(tp_pipe *pipe)
{
    unsigned before = failure_total;

    tpx_ok(tp_pipe_read_descriptor(pipe, failure_done, NULL));
    tpx_until_polled(&failure_total, before + 1);
}

/* Whatever is asked afterwards. */
static void failure_afterwards(int rank)
{
    tp_pipe *pipe = tpx_pipe(rank, 0);
    unsigned before = failure_total, failed;
    char byte = 1, *json;
    tp_message *skeleton;

    tpx_status(tp_pipe_send(pipe, &byte, 1), TP_ERR_PEER_FAILED);
    tpx_status(tp_pipe_recv_skeleton(pipe, &skeleton, tpx_limit_ms(10000)),
               TP_ERR_PEER_FAILED);
    tpx_status(tp_pipe_recv(tpx_pipe(rank, 77), &byte, 1, NULL),
               TP_ERR_PEER_FAILED);
    tpx_status(tp_pipe_send(tpx_pipe(rank, 78), &byte, 1),
               TP_ERR_PEER_FAILED);
    failed = failure_ended[TP_ERR_PEER_FAILED];
    tpx_ok(tp_pipe_read_descriptor(pipe, failure_done, NULL));
    tpx_until(&failure_total, before + 1);
    tpx_equal(failure_ended[TP_ERR_PEER_FAILED], failed + 1);
    tpx_check(*tp_pipe_error(pipe) != '\0', "no words for a death");
    tpx_ok(tp_pipe_explain(pipe, &json));
    tpx_check(strstr(json, "\"connected\": false") != NULL, "it says %s", json);
    free(json);
    tpx_ok(tp_pipe_close(tpx_pipe(rank, 78)));
}

/* Rank 0 sees ranks 2.. die, one after the other; rank 1 lives. */
static void failure_killed(void)
{
    uint64_t took[FAILURE_RANKS], state = tpx_me.seed + (uint64_t)getpid();
    uint64_t seen;
    unsigned char *memory;
    unsigned deaths = 0;
    pthread_t killer;

    if (tpx_me.rank >= 2)
        failure_be_victim((tpx_me.rank - 2) % 5);
    if (tpx_me.rank == 1) {
        for (int rank = 2; rank < tpx_me.size; rank++)
            tpx_meet(0);
        return;
    }
    memory = failure_memory();
    for (int rank = 2; rank < tpx_me.size; rank++) {
        tp_pipe *pipe = tpx_pipe(rank, 0);

        tpx_ok(tp_pipe_recv(tpx_pipe(rank, 9), &failure_victim,
                            sizeof(failure_victim), NULL));
        failure_delay_us = tpx_below(&state, 30000);
        tpx_equal(pthread_create(&killer, NULL, failure_kill, NULL), 0);
        switch ((rank - 2) % 5) {
        case 2:
            tpx_at("pending writes and reads of a rank that dies");
            failure_pending(pipe, memory);
            break;
        case 3:
            tpx_at("writing to a rank that dies");
            failure_writes(pipe, memory);
            break;
        case 4:
            tpx_at("in poll() while a rank dies");
            if (tpx_me.mode == TP_PROGRESS_MANUAL)
                failure_polls(pipe);
            else
                failure_reads(pipe, memory);
            break;
        default:
            tpx_at("reading from a rank that dies");
            failure_reads(pipe, memory);
        }
        seen = tpx_now();
        pthread_join(killer, NULL);
        /* The killer may have lost its cpu before it looked at the clock. */
        took[deaths++] = seen > failure_killed_at ? seen - failure_killed_at
                                                  : 0;
        tpx_at("after a rank's death");
        failure_afterwards(rank);
        tpx_meet(1);
    }
    /* A single one says nothing: a busy machine may have been busy then. */
    tpx_sort(took, deaths);
    tpx_check(took[deaths / 2] < (uint64_t)tpx_limit_ms(2000) * 1000000u,
              "it took %llu ms to see a death (median of %u)",
              (unsigned long long)took[deaths / 2] / 1000000, deaths);
    fprintf(stderr, "note: a death is seen after %llu us (median of %u)\n",
            (unsigned long long)took[deaths / 2] / 1000, deaths);
    free(memory);
}

/* ---- at first contact --------------------------------------------------- */

static void *failure_suicide(void *arg)
{
    (void)arg;
    usleep(failure_delay_us);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* All get acquainted with each other while all but rank 0 kill themselves.
 * Whatever the moment: the operations of rank 0 end. */
static void failure_contact(void)
{
    uint64_t state = tpx_me.seed + (uint64_t)getpid();
    static tp_message empty;
    pthread_t killer;
    char byte = 'c';

    if (tpx_me.rank != 0) {
        failure_delay_us = tpx_below(&state, 6000);
        tpx_equal(pthread_create(&killer, NULL, failure_suicide, NULL), 0);
        for (int rank = 0; rank < tpx_me.size; rank++)
            if (rank != tpx_me.rank)
                tp_pipe_write(tpx_pipe(rank, 0), &empty, NULL, NULL);
        while (tp_wait(tpx_me.context, -1, NULL) == TP_OK)
            ;
        failure_sleep_for_ever();
    }
    for (int rank = 1; rank < tpx_me.size; rank++) {
        tp_status status = TP_OK;

        while (status == TP_OK)
            status = tp_pipe_send(tpx_pipe(rank, 0), &byte, 1);
        tpx_check(status == TP_ERR_PEER_FAILED, "rank %d: \"%s\": %s", rank,
                  tp_strerror(status), tp_pipe_error(tpx_pipe(rank, 0)));
        status = TP_OK;
        while (status == TP_OK)
            status = tp_pipe_recv(tpx_pipe(rank, 0), &byte, 1, NULL);
        tpx_status(status, TP_ERR_PEER_FAILED);
    }
}

/* ---- what was sent before a death, and stopped ranks --------------------- */

static void failure_last_words(void)
{
    static unsigned char memory[200000];
    unsigned number;

    if (tpx_me.rank == 1) {
        tpx_meet(0);
        for (unsigned i = 0; i < 20; i++)
            tpx_ok(tp_pipe_send(tpx_pipe(0, 0), &i, sizeof(i)));
        kill(getpid(), SIGKILL);
    }
    tpx_meet(1);
    tpx_sleep_ms(50);
    for (unsigned i = 0; i < 20; i++) {
        tpx_ok(tp_pipe_recv(tpx_pipe(1, 0), &number, sizeof(number), NULL));
        tpx_equal(number, i);
    }
    tpx_status(tp_pipe_recv(tpx_pipe(1, 0), memory, sizeof(memory), NULL),
               TP_ERR_PEER_FAILED);
}

/* As many as a slow reader lets him send, which he reads afterwards: all have
 * left the one who dies, and credit for them finds nobody. */
static void failure_many_words(void)
{
    enum { WORDS = 1500, AT_ONCE = 16 };
    unsigned number;

    if (tpx_me.rank == 1) {
        tpx_meet(0);
        for (unsigned i = 0; i < WORDS; i++)
            tpx_ok(tp_pipe_send(tpx_pipe(0, 0), &i, sizeof(i)));
        /* The context's thread may have taken the last one, and be about to
         * send it. */
        tpx_sleep_ms(20);
        kill(getpid(), SIGKILL);
    }
    tpx_meet(1);
    for (unsigned i = 0; i < WORDS; i++) {
        if (i % AT_ONCE == 0)
            tpx_sleep_ms(2);
        tpx_ok(tp_pipe_recv(tpx_pipe(1, 0), &number, sizeof(number), NULL));
        tpx_equal(number, i);
    }
    tpx_status(tp_pipe_recv(tpx_pipe(1, 0), &number, sizeof(number), NULL),
               TP_ERR_PEER_FAILED);
}

static unsigned failure_stop;

static void *failure_stopper(void *arg)
{
    (void)arg;
    for (int i = 0; i < 5; i++) {
        usleep(20000);
        kill(failure_victim, SIGSTOP);
        usleep(60000);
        kill(failure_victim, SIGCONT);
    }
    __atomic_store_n(&failure_stop, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void failure_stopped(void)
{
    struct tpx_flow_plan plan = { TPX_MIXED, tpx_me.few ? 20
                                  : tpx_me.sanitized ? 50 : 250, 4,
                                  2 };
    static struct tpx_flow flow;
    pid_t pid = getpid();
    pthread_t stopper;

    if (tpx_me.rank == 1)
        tpx_ok(tp_pipe_send(tpx_pipe(0, 9), &pid, sizeof(pid)));
    else
        tpx_ok(tp_pipe_recv(tpx_pipe(1, 9), &failure_victim, sizeof(pid),
                            NULL));
    if (tpx_me.rank == 0)
        tpx_equal(pthread_create(&stopper, NULL, failure_stopper, NULL), 0);
    tpx_flow_start(&flow, !tpx_me.rank, 0, &plan);
    tpx_flow_finish(&flow, 1);
    if (tpx_me.rank == 0) {
        pthread_join(stopper, NULL);
        tpx_meet(1);
    } else {
        tpx_meet(0);
    }
}

/* ---- a child that holds the connections ---------------------------------- */

/* Nobody but shm itself can tell: there is no launcher here. */
static void failure_heir(void)
{
    tp_pipe *pipe = tpx_pipe(1 - tpx_me.rank, 0);
    tp_stats stats;
    pid_t child;
    char byte;

    if (tpx_me.rank == 0) {
        tpx_ok(tp_pipe_recv(pipe, &child, sizeof(child), NULL));
        tpx_ok(tp_pipe_stats(pipe, &stats));
        if (strcmp(stats.transport, "shm") != 0)
            kill(child, SIGKILL);          /* the connection is all it has */
        tpx_ok(tp_pipe_send(pipe, "k", 1));
        tpx_status(tp_pipe_recv(pipe, &byte, 1, NULL), TP_ERR_PEER_FAILED);
        tpx_check(strcmp(stats.transport, "shm") != 0 || kill(child, 0) == 0,
                  "told of by the child's end only");
        kill(child, SIGKILL);
        return;
    }
    child = fork();
    if (child == 0)
        alarm(100);
    while (child == 0)
        pause();
    tpx_ok(tp_pipe_send(pipe, &child, sizeof(child)));
    tpx_ok(tp_pipe_recv(pipe, &byte, 1, NULL));
    raise(SIGKILL);
}

/* Who has a skeleton that he does not read hears of the death all the same:
 * what he asked for behind it ends, but for what had arrived. */
static void failure_unread(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    tp_pipe *lone = tpx_pipe(!tpx_me.rank, 1);
    struct tpx_end read = { 0 }, second = { 0 }, third = { 0 };
    char text[8] = "message", byte;
    tp_payload payload = { text, sizeof(text), NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    tp_message *first, *other;

    if (tpx_me.rank == 1) {
        tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &read));
        tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &second));
        tpx_ok(tp_pipe_write(lone, &message, tpx_ended, &third));
        tpx_ok(tp_pipe_recv(tpx_pipe(0, 2), &byte, 1, NULL));
        raise(SIGKILL);
    }
    tpx_ok(tp_pipe_recv_skeleton(pipe, &first, -1));
    tpx_ok(tp_pipe_recv_skeleton(lone, &other, -1));
    tpx_ok(tp_pipe_read_descriptor(pipe, tpx_ended, &second));
    tpx_ok(tp_pipe_read_descriptor(pipe, tpx_ended, &third));
    tpx_ok(tp_pipe_send(tpx_pipe(1, 2), "k", 1));
    tpx_until(&third.over, 1);
    tpx_equal(third.status, TP_ERR_PEER_FAILED);
    tpx_status(tp_pipe_recv(lone, &byte, 1, NULL), TP_ERR_PEER_FAILED);
    first->payloads[0].data = text;
    tpx_ok(tp_pipe_read(pipe, first, tpx_ended, &read));
    tpx_until(&read.over, 1);
    tpx_until(&second.over, 1);
    tpx_check(second.status == TP_OK || second.status == TP_ERR_PEER_FAILED,
              "the second one ended with \"%s\"",
              tp_strerror(second.status));
    tpx_status(tp_pipe_recv(pipe, &byte, 1, NULL), TP_ERR_PEER_FAILED);
}

/* Until that file is there, with nobody to drive. */
static void failure_await(const char *name)
{
    while (access(tpx_file(name), F_OK) != 0)
        tpx_sleep_ms(1);
}

/* The sender leaves when its time for that is over, and has its memory back,
 * before the reader has copied it, or all of it: that is not a message. */
static void failure_left_by(size_t length, bool begun)
{
    unsigned char *memory = malloc(length);
    struct tpx_end end = { 0 };
    tp_message *skeleton;
    tp_pipe *pipe;

    tpx_check(memory != NULL && setenv("TP_FINALIZE_TIMEOUT", "50ms", 1) == 0
              && (!tpx_backend("cma")
                  || setenv("TP_REQUIRE", "node:cma", 1) == 0), "setenv");
    tpx_ok(tp_init(NULL, &tpx_me.context));
    pipe = tpx_pipe(!tpx_me.rank, 0);
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        tp_payload payload = { memory, length, NULL, 0 };
        tp_message message = { .payloads = &payload, .payload_count = 1 };

        tpx_fill(memory, length, 6);
        tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
        while (access(tpx_file("begun"), F_OK) != 0)
            tp_wait(tpx_me.context, 1, NULL);
        (void)tp_finalize(tpx_me.context);
        tpx_me.context = NULL;
        memset(memory, 0xee, length);
        tpx_file_make("left");
        failure_await("read");
    } else {
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, -1));
        skeleton->payloads[0].data = memory;
        if (begun)
            tpx_ok(tp_pipe_read(pipe, skeleton, tpx_ended, &end));
        tpx_file_make("begun");
        failure_await("left");
        if (!begun)
            tpx_ok(tp_pipe_read(pipe, skeleton, tpx_ended, &end));
        tpx_until(&end.over, 1);
        if (end.status == TP_OK)
            tpx_equal(tpx_verify(memory, length, 6), length);
        else
            tpx_equal(end.status, TP_ERR_PEER_FAILED);
        tpx_file_make("read");
    }
    free(memory);
}

static void failure_left(void)
{
    failure_left_by(300000, false);
}

static void failure_left_halfway(void)
{
    failure_left_by(FAILURE_BIG, true);
}

const struct tpx_spmd tpx_failure[] = {
    { "failure_killed", failure_killed, FAILURE_RANKS, TPX_KILLS, 20 },
    { "failure_contact", failure_contact, 6, TPX_KILLS, 20 },
    { "failure_last_words", failure_last_words, 2, TPX_KILLS, 20 },
    { "failure_many_words", failure_many_words, 2, TPX_KILLS, 60 },
    { "failure_heir", failure_heir, 2, TPX_KILLS, 20 },
    { "failure_stopped", failure_stopped, 2, 0, 20 },
    { "failure_unread", failure_unread, 2, TPX_KILLS, 20 },
    { "failure_left", failure_left, 2,
      TPX_BARE | TPX_WARNS | TPX_CHANNELS | TPX_MANUAL, 20 },
    { "failure_left_halfway", failure_left_halfway, 2,
      TPX_BARE | TPX_WARNS | TPX_CHANNELS | TPX_MANUAL, 20 },
    { NULL }
};
