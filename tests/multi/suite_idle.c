/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank that waits, or does nothing with tp, uses no CPU. */
#include "config.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/multi/spmd.h"

enum {
    IDLE_MS = 1000, IDLE_MOST_US = 20000, IDLE_SANITIZED_US = 80000,
    IDLE_WINDOWS = 10, IDLE_COUNTED = 7, IDLE_POLL_US = 100000,
    IDLE_CALLS_MS = 150
};

struct idle_watch {
    pthread_t thread;
    uint64_t used[IDLE_WINDOWS];   /* us of CPU, the least first in the end */
};

static void *idle_look(void *arg)
{
    struct idle_watch *watch = arg;

    for (int i = 0; i < IDLE_WINDOWS; i++) {
        uint64_t before = tpx_cpu_us();

        tpx_sleep_ms(IDLE_MS / IDLE_WINDOWS);
        watch->used[i] = tpx_cpu_us() - before;
    }
    return NULL;
}

static void idle_begin(struct idle_watch *watch)
{
    tpx_check(pthread_create(&watch->thread, NULL, idle_look, watch) == 0,
              "pthread_create");
}

/* What IDLE_MS took of the CPU.  Who does something all the time does it in
 * each window; what a busy host takes, and counts as ours, is in a few. */
static uint64_t idle_end(struct idle_watch *watch)
{
    uint64_t used = 0;

    pthread_join(watch->thread, NULL);
    tpx_sort(watch->used, IDLE_WINDOWS);
    for (int i = 0; i < IDLE_COUNTED; i++)
        used += watch->used[i];
    return used * IDLE_WINDOWS / IDLE_COUNTED;
}

static void idle_wake(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                      void *arg)
{
    static char room;

    tpx_ok(status);
    skeleton->payloads[0].data = &room;
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, arg));
}

/* Rank 0 wakes the others after a second; each waits in its own way. */
static void idle_ways(void)
{
    unsigned limit = tpx_me.few ? 6 * IDLE_SANITIZED_US
                     : tpx_me.sanitized ? IDLE_SANITIZED_US : IDLE_MOST_US;
    unsigned woken = 0;
    struct idle_watch watch;
    uint64_t used;
    char byte;

    for (int rank = 0; rank < tpx_me.size; rank++)
        if (rank != tpx_me.rank)
            tpx_meet(rank);
    if (tpx_me.rank == 4) {
        tpx_ok(tp_pipe_read_descriptor(tpx_pipe(0, 0), idle_wake, &woken));
        tp_fd(tpx_me.context);
    }
    tpx_sleep_ms(50);
    idle_begin(&watch);
    switch (tpx_me.rank) {
    case 0:
        tpx_sleep_ms(IDLE_MS);
        break;
    case 1:
        tpx_ok(tp_pipe_recv(tpx_pipe(0, 0), &byte, 1, NULL));
        break;
    case 2:
        tpx_ok(tp_pipe_read_descriptor(tpx_pipe(0, 0), idle_wake, &woken));
        tpx_until(&woken, 1);
        break;
    case 3:
        tpx_sleep_ms(IDLE_MS);
        break;
    default:
        tpx_until_polled(&woken, 1);
    }
    used = idle_end(&watch);
    if (tpx_me.rank == 0) {
        for (int rank = 1; rank < tpx_me.size; rank++)
            tpx_ok(tp_pipe_send(tpx_pipe(rank, 0), "w", 1));
    } else if (tpx_me.rank == 3) {
        tpx_ok(tp_pipe_recv(tpx_pipe(0, 0), &byte, 1, NULL));
    }
    tpx_check(used < limit, "%llu us of CPU in %d ms of doing nothing",
              (unsigned long long)used, IDLE_MS);
}

/* Who polls for long before it sleeps comes to sleep all the same, also when it
 * has just been joined with its peer.  What libfabric had told of that stayed
 * readable until somebody slept, and was taken for something that happened. */
static void idle_after_contact(void)
{
    char text[16], byte;
    uint64_t used;

    snprintf(text, sizeof(text), "%d", IDLE_POLL_US);
    tpx_check(setenv("TP_SPIN", text, 1) == 0
                  && setenv("TP_CPUS", "2", 1) == 0, "setenv");
    tpx_ok(tp_init(NULL, &tpx_me.context));
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        tpx_sleep_ms(2 * IDLE_MS);
        tpx_ok(tp_pipe_send(tpx_pipe(1, 0), "w", 1));
    } else {
        used = tpx_cpu_us();
        tpx_ok(tp_pipe_recv(tpx_pipe(0, 0), &byte, 1, NULL));
        used = tpx_cpu_us() - used;
        tpx_check(used < 6 * IDLE_POLL_US, "%llu us of CPU in %d ms of waiting,"
                  " with TP_SPIN=%s", (unsigned long long)used, 2 * IDLE_MS,
                  text);
    }
    tpx_ok(tp_finalize(tpx_me.context));
    tpx_me.context = NULL;
}

/* The context's thread, which stays away while somebody calls, and the longer
 * the longer that goes on, comes back when the program computes. */
static void idle_after_calls(void)
{
    uint64_t until = tpx_now() + IDLE_CALLS_MS * UINT64_C(1000000);
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned woken = 0;
    char byte = 'g';

    while (byte == 'g')
        if (tpx_me.rank == 0) {
            byte = tpx_now() < until ? 'g' : 'e';
            tpx_ok(tp_pipe_send(pipe, &byte, 1));
            tpx_ok(tp_pipe_recv(pipe, &byte, 1, NULL));
        } else {
            tpx_ok(tp_pipe_recv(pipe, &byte, 1, NULL));
            tpx_ok(tp_pipe_send(pipe, &byte, 1));
        }
    if (tpx_me.rank != 0) {
        tpx_ok(tp_pipe_send(pipe, "w", 1));
        return;
    }
    tpx_ok(tp_pipe_read_descriptor(pipe, idle_wake, &woken));
    if (tpx_me.mode == TP_PROGRESS_MANUAL)
        tpx_until(&woken, 1);
    while (__atomic_load_n(&woken, __ATOMIC_ACQUIRE) == 0)
        tpx_sleep_ms(1);
}

const struct tpx_spmd tpx_idle[] = {
    { "idle_ways", idle_ways, 5, 0, 20 },
    { "idle_after_calls", idle_after_calls, 2, 0, 20 },
    { "idle_after_contact", idle_after_contact, 2, TPX_BARE, 20 },
    { NULL }
};
