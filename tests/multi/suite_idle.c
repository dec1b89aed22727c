/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank that waits, or does nothing with tp, uses no CPU. */
#include "config.h"

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "runtime/base/base.h"
#include "tests/multi/spmd.h"

enum {
    IDLE_MS = 1000, IDLE_MOST_US = 20000, IDLE_SANITIZED_US = 80000,
    IDLE_WINDOWS = 10, IDLE_COUNTED = 7, IDLE_POLL_US = 100000,
    IDLE_CALLS_MS = 150,
    IDLE_LOOKS = 5000,             /* for a thread that has just begun, ms */
    IDLE_ROUNDS = 12, IDLE_LETTERS = 24, IDLE_PAUSE_US = 300,
    IDLE_TURNS = 24, IDLE_TURN_US = 8000, IDLE_PARKED_US = 70000,
    IDLE_APART_US = 1500,
    IDLE_LOOPS = 300, IDLE_CLOCK_NS = 100000
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

static bool idle_given_up;

static void idle_first(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                       void *arg)
{
    idle_given_up = status == TP_ERR_UNREACHABLE;
    if (idle_given_up)
        __atomic_fetch_add((unsigned *)arg, 1, __ATOMIC_RELEASE);
    else
        idle_wake(pipe, status, skeleton, arg);
}

/* Rank 0 looks, computes for so long, and then waits. */
static void idle_computes_first(unsigned seconds)
{
    unsigned over = 0;
    char text[16];

    snprintf(text, sizeof(text), "%us", seconds);
    if (tpx_me.mode == TP_PROGRESS_MANUAL)
        tpx_check(setenv("TP_CONNECT_TIMEOUT", text, 1) == 0, "setenv");
    tpx_ok(tp_init(NULL, &tpx_me.context));
    tpx_ok(tp_pipe_read_descriptor(tpx_pipe(1, 0), idle_first, &over));
    tpx_ok(tp_progress(tpx_me.context, NULL));
    tpx_sleep_ms(2000 * seconds);
    tpx_until(&over, 1);
    snprintf(text, sizeof(text), "%s.%u", idle_given_up ? "late" : "met",
             seconds);
    tpx_file_make(text);
    tpx_ok(tp_finalize(tpx_me.context));
}

/* Rank 1 comes meanwhile. */
static void idle_comes_then(unsigned seconds)
{
    char met[16], late[16];
    tp_status status;

    tpx_ok(tp_init(NULL, &tpx_me.context));
    tpx_sleep_ms(IDLE_MS);         /* the other one has looked before */
    status = tp_pipe_send(tpx_pipe(0, 0), "w", 1);
    tp_finalize(tpx_me.context);
    snprintf(met, sizeof(met), "met.%u", seconds);
    snprintf(late, sizeof(late), "late.%u", seconds);
    while (access(tpx_file(met), F_OK) != 0
           && !(idle_given_up = access(tpx_file(late), F_OK) == 0))
        tpx_sleep_ms(1);
    if (!idle_given_up)
        tpx_ok(status);
}

/* Who drives itself, and computes for longer than TP_CONNECT_TIMEOUT while the
 * other comes to it, has not looked for it in vain: it has not looked.  On a
 * busy host the contact itself may take as long: then a longer one is tried. */
static void idle_before_contact(void)
{
    static const unsigned limits[] = { 2, 8, 20 };     /* seconds */

    for (size_t i = 0; i < TPB_COUNT(limits); i++) {
        idle_given_up = false;
        if (tpx_me.rank == 0)
            idle_computes_first(limits[i]);
        else
            idle_comes_then(limits[i]);
        tpx_me.context = NULL;
        if (!idle_given_up)
            return;
    }
    tpx_check(false, "the peer was given up");
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

/* ---- programs that compute between their messages ------------------------ */

static void idle_compute(unsigned us)
{
    uint64_t until = tpx_now() + us * UINT64_C(1000);

    while (tpx_now() < until)
        continue;
}

/* A value of a file of that thread in /proc, which begins with that; "" is the
 * thread's name.  False: there is none. */
static bool idle_task(const char *task, const char *file, const char *what,
                      char *value, size_t room)
{
    char path[320], line[128];
    bool found = false;
    FILE *stream;

    snprintf(path, sizeof(path), "/proc/self/task/%s/%s", task, file);
    stream = fopen(path, "r");
    while (stream != NULL && !found && fgets(line, sizeof(line), stream)) {
        found = strncmp(line, what, strlen(what)) == 0;
        snprintf(value, room, "%s", line + strlen(what));
    }
    if (stream != NULL)
        fclose(stream);
    return found;
}

/* How often the context's own thread has gone to sleep; false: there is none
 * of that name, which it gives itself when it first runs. */
static bool idle_slept(unsigned *sleeps)
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *entry;
    char text[128];
    bool found = false;

    tpx_check(tasks != NULL, "no /proc/self/task");
    while ((entry = readdir(tasks)) != NULL)
        if (idle_task(entry->d_name, "comm", "tp-progress", text, sizeof(text))
            && idle_task(entry->d_name, "status", "voluntary_ctxt_switches:",
                         text, sizeof(text))) {
            *sleeps = (unsigned)strtoul(text, NULL, 10);
            found = true;
        }
    closedir(tasks);
    return found;
}

static unsigned idle_sleeps(void)
{
    unsigned sleeps = 0;

    for (int tries = 0; !idle_slept(&sleeps); tries++) {
        tpx_check(tries < IDLE_LOOKS, "the context has no thread of its own");
        tpx_sleep_ms(1);
    }
    return sleeps;
}

/* In a program that always comes back for its messages nobody wakes the thread
 * for each of them while it computes, which takes the cpu from it and the time
 * of a system call from their sender.  It looks by itself, a millisecond apart
 * or more: so it may where a busy host makes the computing longer. */
static void idle_undisturbed(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned sleeps = 0, most = IDLE_ROUNDS * IDLE_LETTERS / 2;
    uint64_t begun, longer = 0;
    char byte;

    if (!tpx_backend("shm") && !tpx_backend("ofi:tcp"))
        return;                    /* what others bring is taken at once */

    for (int round = 0; round < IDLE_ROUNDS; round++) {
        tpx_meet(!tpx_me.rank);
        if (tpx_me.rank == 0) {
            for (int i = 0; i < IDLE_LETTERS; i++) {
                idle_compute(IDLE_PAUSE_US);
                tpx_ok(tp_pipe_send(pipe, "w", 1));
            }
            continue;
        }
        begun = tpx_now();
        sleeps -= idle_sleeps();
        idle_compute(IDLE_LETTERS * IDLE_PAUSE_US);
        sleeps += idle_sleeps();
        longer += tpx_now() - begun
                  - IDLE_LETTERS * IDLE_PAUSE_US * UINT64_C(1000);
        for (int i = 0; i < IDLE_LETTERS; i++)
            tpx_ok(tp_pipe_recv(pipe, &byte, 1, NULL));
    }
    tpx_check(tpx_me.rank == 0 || sleeps < most + longer / 1000000,
              "woken %u times while %d messages came", sleeps,
              IDLE_ROUNDS * IDLE_LETTERS);
}

/* Until so many have ended, in a program that does not call meanwhile. */
static void idle_await(const unsigned *over, unsigned count)
{
    while (__atomic_load_n(over, __ATOMIC_ACQUIRE) < count)
        if (tpx_me.mode == TP_PROGRESS_MANUAL)
            tpx_until(over, count);
}

/* And yet it does what is begun and not waited for, in whatever state it is:
 * how long the program has computed, and whether somebody has slept before. */
static void idle_unattended(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    static char room = 'w';
    tp_payload payload = { .data = &room, .length = 1 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    uint64_t state = tpx_me.seed;
    unsigned sent = 0, came = 0;

    for (unsigned turn = 0; turn < IDLE_TURNS; turn++) {
        unsigned before = turn % 12 > 9 ? IDLE_PARKED_US
                          : tpx_below(&state, IDLE_TURN_US);
        unsigned between = tpx_below(&state, IDLE_TURN_US);
        bool first = (unsigned)tpx_me.rank == turn % 2;

        if (!first && turn % 3 == 0)
            idle_compute(between);
        tpx_meet(!tpx_me.rank);
        for (int i = 0; i < 4 && before == IDLE_PARKED_US; i++) {
            idle_compute(IDLE_APART_US);   /* as one that comes again */
            tpx_meet(!tpx_me.rank);
        }
        /* A write, of which nothing but its callback is left. */
        if (first) {
            idle_compute(before);
            tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &sent));
            idle_await(&sent, turn / 2 + 1);
            tpx_ok(tp_pipe_send(pipe, "e", 1));
            idle_compute(between);
        } else {
            tpx_ok(tp_pipe_recv(pipe, &room, 1, NULL));
            tpx_ok(tp_pipe_recv(pipe, &room, 1, NULL));
        }
        /* A message that is there already, or that comes later. */
        tpx_ok(tp_pipe_read_descriptor(pipe, idle_wake, &came));
        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &came));
        idle_await(&came, 2 * turn + 2);
    }
}

/* A program with an event loop, in which another descriptor of its own rings
 * more often than the context's thread looks: whoever of the two hears of a
 * message first, the loop gets it, and not only when something else happens. */
static int idle_clock(void)
{
    struct itimerspec often = { .it_value.tv_nsec = IDLE_CLOCK_NS,
                                .it_interval.tv_nsec = IDLE_CLOCK_NS };
    int clock = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);

    tpx_check(clock >= 0 && timerfd_settime(clock, 0, &often, NULL) == 0,
              "timerfd");
    return clock;
}

static void idle_loop(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct pollfd polled[] = { { .events = POLLIN }, { .events = POLLIN } };
    unsigned came = 0, due = 0;
    uint64_t rings;

    polled[0].fd = tp_fd(tpx_me.context);
    polled[1].fd = idle_clock();
    tpx_meet(!tpx_me.rank);
    for (unsigned i = 0; i < IDLE_LOOPS; i++) {
        if ((unsigned)tpx_me.rank == i % 2) {
            tpx_sleep_ms((int)(i % 3));
            tpx_ok(tp_pipe_send(pipe, "l", 1));
            continue;
        }
        tpx_ok(tp_pipe_read_descriptor(pipe, idle_wake, &came));
        for (due++; __atomic_load_n(&came, __ATOMIC_ACQUIRE) < due;) {
            poll(polled, 2, -1);
            if (polled[1].revents != 0)
                tpx_check(read(polled[1].fd, &rings, sizeof(rings)) > 0,
                          "timerfd");
            tpx_ok(tp_progress(tpx_me.context, NULL));
        }
    }
    close(polled[1].fd);
    tpx_meet(!tpx_me.rank);
}

static void *idle_answers(void *arg)
{
    tp_pipe *pipe = tpx_pipe(1, 0);
    char byte;

    for (unsigned i = 0; i < IDLE_LOOPS; i++) {
        tpx_ok(tp_pipe_recv(pipe, &byte, 1, NULL));
        tpx_ok(tp_pipe_send(pipe, "a", 1));
    }
    __atomic_store_n((unsigned *)arg, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* ... in which another thread waits for messages of its own: one rings for
 * both, and the loop may hear of it first. */
static void idle_beside(void)
{
    unsigned over = 0;
    pthread_t thread;
    char byte;

    if (tpx_me.rank == 1) {
        for (unsigned i = 0; i < IDLE_LOOPS; i++) {
            tpx_sleep_ms((int)(i % 3));
            tpx_ok(tp_pipe_send(tpx_pipe(0, 0), "q", 1));
            tpx_ok(tp_pipe_recv(tpx_pipe(0, 0), &byte, 1, NULL));
        }
    } else {
        struct pollfd polled = { tp_fd(tpx_me.context), POLLIN, 0 };

        tpx_equal(pthread_create(&thread, NULL, idle_answers, &over), 0);
        while (__atomic_load_n(&over, __ATOMIC_ACQUIRE) == 0) {
            poll(&polled, 1, 20);
            tpx_ok(tp_progress(tpx_me.context, NULL));
        }
        tpx_equal(pthread_join(thread, NULL), 0);
    }
    tpx_meet(!tpx_me.rank);
}

const struct tpx_spmd tpx_idle[] = {
    { "idle_ways", idle_ways, 5, 0, 20 },
    { "idle_after_calls", idle_after_calls, 2, 0, 20 },
    { "idle_after_contact", idle_after_contact, 2, TPX_BARE, 20 },
    { "idle_before_contact", idle_before_contact, 2, TPX_BARE, 60 },
    { "idle_undisturbed", idle_undisturbed, 2, TPX_ONCE, 30 },
    { "idle_unattended", idle_unattended, 2, 0, 30 },
    { "idle_loop", idle_loop, 2, 0, 60 },
    { "idle_beside", idle_beside, 2, 0, 60 },
    { NULL }
};
