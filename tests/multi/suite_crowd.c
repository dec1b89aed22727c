/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two ranks on one cpu answer each other so often that waits look at nothing
 * but the other one before they yield.  Whatever else comes to them then is
 * found all the same.  And who waits does not keep other threads from working.
 */
#include "config.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "tests/multi/spmd.h"

enum {
    CROWD_TURNS = 2000,
    CROWD_TIMES = 5,
    CROWD_POLLS = 1000,            /* it takes one or two */
    CROWD_TRIES = 20,
    CROWD_FEW = 200,               /* turns */
    CROWD_DEAR = 40,               /* times; it is two to three, ten where they
                                      sleep for strangers are here, and a
                                      hundred where each polls for 0.2 ms */
    CROWD_SENT = 5000,
    CROWD_OFTEN = CROWD_SENT / 4   /* it takes a switch or two each time that
                                      there is no room, and that a time slice
                                      ends while the other has the token */
};

struct crowd_reader {
    unsigned read;
    unsigned more;                 /* messages after the next one */
    char byte;
};

static void crowd_arm(tp_pipe *pipe, struct crowd_reader *reader);

static void crowd_arrived(tp_pipe *pipe, tp_status status,
                          tp_message *skeleton, void *arg)
{
    struct crowd_reader *reader = arg;

    tpx_ok(status);
    skeleton->payloads[0].data = &reader->byte;
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, &reader->read));
    if (reader->more > 0) {
        reader->more--;
        crowd_arm(pipe, reader);
    }
}

static void crowd_arm(tp_pipe *pipe, struct crowd_reader *reader)
{
    tpx_ok(tp_pipe_read_descriptor(pipe, crowd_arrived, reader));
}

static void crowd_write(tp_pipe *pipe)
{
    static char byte = 'c';
    static tp_payload payload = { &byte, 1, NULL, 0 };
    static tp_message message = { .payloads = &payload, .payload_count = 1 };

    tpx_ok(tp_pipe_write(pipe, &message, NULL, NULL));
}

/* All on one cpu, told that they have so many. */
static void crowd_begin(const char *cpus)
{
    cpu_set_t own, one;

    CPU_ZERO(&own);
    CPU_ZERO(&one);
    tpx_check(sched_getaffinity(0, sizeof(own), &own) == 0, "affinity");
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &own))
            CPU_SET(cpu, &one);
    tpx_check(sched_setaffinity(0, sizeof(one), &one) == 0
                  && setenv("TP_CPUS", cpus, 1) == 0, "affinity");
    tpx_ok(tp_init(NULL, &tpx_me.context));
}

static void crowd_end(void)
{
    tpx_ok(tp_finalize(tpx_me.context));
    tpx_me.context = NULL;
}

/* Ranks 0 and 1 take so many turns. */
static void crowd_turns(unsigned turns)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct crowd_reader reader = { .more = turns - 1 };

    crowd_arm(pipe, &reader);
    for (unsigned turn = 1; turn <= turns; turn++) {
        if (tpx_me.rank == 0)
            crowd_write(pipe);
        tpx_until(&reader.read, turn);
        if (tpx_me.rank == 1)
            crowd_write(pipe);
    }
}

static void crowd_self_wait(tp_pipe *self)
{
    struct crowd_reader reader = { .read = 0 };
    unsigned polls = 0;

    crowd_arm(self, &reader);
    crowd_write(self);
    for (; __atomic_load_n(&reader.read, __ATOMIC_ACQUIRE) == 0; polls++) {
        tpx_check(polls < CROWD_POLLS || tpx_me.mode != TP_PROGRESS_MANUAL,
                  "tp_wait(0) did not find it %u times", polls);
        tp_wait(tpx_me.context, 0, NULL);
    }
}

static void crowd_self_receive(tp_pipe *self)
{
    struct crowd_reader reader = { .read = 0 };
    tp_message *skeleton = NULL;
    unsigned polls = 0;

    crowd_write(self);
    for (; tp_pipe_recv_skeleton(self, &skeleton, 0) != TP_OK; polls++)
        tpx_check(polls < CROWD_POLLS || tpx_me.mode != TP_PROGRESS_MANUAL,
                  "a receive without patience did not find it %u times",
                  polls);
    skeleton->payloads[0].data = &reader.byte;
    tpx_ok(tp_pipe_recv_message(self, skeleton, -1));
}

/* Calls that are to return at once look everywhere each time. */
static void crowd_poll(void)
{
    crowd_begin("1");
    for (int time = 0; time < CROWD_TIMES; time++) {
        crowd_turns(CROWD_TURNS);
        if (tpx_me.rank == 0) {
            crowd_self_wait(tpx_pipe(0, 0));
            crowd_turns(CROWD_TURNS);
            crowd_self_receive(tpx_pipe(0, 0));
        } else {
            crowd_turns(CROWD_TURNS);
        }
    }
    tpx_meet(!tpx_me.rank);
    crowd_end();
}

/* Who has slept in vain, as where no descriptor tells of what comes, looks
 * there again before it sleeps on. */
static void crowd_polled(void)
{
    struct crowd_reader reader = { .read = 0 };

    tpx_check(setenv("TP_BACKENDS", tpx_me.rank == 2 ? "ofi:shm"
                     : "loop,shm,ofi:shm", 1) == 0
                  && unsetenv("TP_REQUIRE") == 0, "setenv");
    crowd_begin("2");
    for (int rank = 0; rank < 2; rank++)
        if (tpx_me.rank == 2)
            tpx_meet(rank);
        else if (rank == tpx_me.rank)
            tpx_meet(2);
    for (unsigned time = 1; time <= CROWD_TIMES; time++) {
        if (tpx_me.rank < 2)
            crowd_turns(CROWD_TURNS);
        if (tpx_me.rank == 0) {
            crowd_arm(tpx_pipe(2, 0), &reader);
            tpx_until(&reader.read, time);
        } else if (tpx_me.rank == 1) {
            crowd_write(tpx_pipe(2, 0));
        } else {
            crowd_arm(tpx_pipe(1, 0), &reader);
            tpx_until(&reader.read, time);
            tpx_sleep_ms(50);
            crowd_write(tpx_pipe(0, 0));
        }
    }
    crowd_end();
}

static void *crowd_receive(void *arg)
{
    for (unsigned i = 0, got; i < CROWD_SENT; i++) {
        tpx_ok(tp_pipe_recv(arg, &got, sizeof(got), NULL));
        tpx_equal(got, i);
    }
    return NULL;
}

/* How often this thread has lost or given away its cpu. */
static long crowd_switches(void)
{
    struct rusage used;

    tpx_check(getrusage(RUSAGE_THREAD, &used) == 0, "getrusage");
    return used.ru_nvcsw + used.ru_nivcsw;
}

/* One thread sends while another waits, and never sleeps: that one gives up the
 * token along with the cpu, so not each message waits for its next turn. */
static void crowd_threads(void)
{
    pthread_t receiver;
    tp_pipe *pipe;
    long switches;

    tpx_check(setenv("TP_SPIN", "3600000000", 1) == 0, "setenv");
    crowd_begin("1");
    pipe = tpx_pipe(!tpx_me.rank, 0);
    tpx_meet(!tpx_me.rank);
    tpx_equal(pthread_create(&receiver, NULL, crowd_receive, pipe), 0);
    switches = crowd_switches();
    for (unsigned i = 0; i < CROWD_SENT; i++)
        tpx_ok(tp_pipe_send(pipe, &i, sizeof(i)));
    switches = crowd_switches() - switches;
    tpx_check(switches < CROWD_OFTEN || tpx_me.mode == TP_PROGRESS_THREAD,
              "the cpu changed hands %ld times in %d messages", switches,
              CROWD_SENT);
    tpx_equal(pthread_join(receiver, NULL), 0);
    tpx_meet(!tpx_me.rank);
    crowd_end();
}

/* Nanoseconds of the cpu that this thread has used. */
static long long crowd_used(void)
{
    struct timespec used;

    tpx_check(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used) == 0, "no clock");
    return used.tv_sec * 1000000000LL + used.tv_nsec;
}

/* What some turns take of it, at best, where each believes that there are so
 * many cpus. */
static long long crowd_cost(const char *cpus)
{
    long long least = LLONG_MAX;

    crowd_begin(cpus);
    tpx_meet(!tpx_me.rank);
    for (int time = 0; time < CROWD_TRIES; time++) {
        long long used = crowd_used();

        crowd_turns(CROWD_FEW);
        used = crowd_used() - used;
        least = used < least ? used : least;
    }
    crowd_end();
    return least;
}

/* Who believes that there are cpus for all polls; but not for as long as that
 * usually pays where the one that he waits for needs this cpu. */
static void crowd_beside(void)
{
    bool sees = tpx_backend("shm") && tpx_me.mode != TP_PROGRESS_THREAD;
    long long crowded = crowd_cost("1"), beside = crowd_cost("2");

    tpx_check(beside < CROWD_DEAR * crowded || !sees,
              "%d turns took %lld ns of the cpu, and %lld where it is known"
              " that there is one", CROWD_FEW, beside, crowded);
}

const struct tpx_spmd tpx_crowd[] = {
    { "crowd_beside", crowd_beside, 2, TPX_BARE, 200 },
    { "crowd_poll", crowd_poll, 2, TPX_BARE, 200 },
    { "crowd_threads", crowd_threads, 2, TPX_BARE, 200 },
    { "crowd_polled", crowd_polled, 3, TPX_BARE | TPX_REAL, 200 },
    { NULL }
};
