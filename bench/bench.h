/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What tpperf, the floors and the comparators share, so that all of them do
 * the same work and count it in the same way.
 *
 * A program hands plan.c a driver: how to move messages its way.  plan.c
 * decides what is measured, how often, and what the figures are.  Every rank
 * runs the same plan; rank 0 leads: it measures, tells the others how many
 * messages come next, and reports.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- what is asked for -------------------------------------------------- */

enum bench_test {
    BENCH_INIT,                /* first: it wants peers not met before */
    BENCH_MEMORY,
    BENCH_IDLE,
    BENCH_LATENCY,
    BENCH_BANDWIDTH,
    BENCH_BIDIRECTIONAL,
    BENCH_RATE,
    BENCH_OVERLAP,
    BENCH_PAIRS,
    BENCH_RING,
    BENCH_STAR,
    BENCH_MESH,
    BENCH_TESTS
};
#define BENCH_BIT(test) (1u << (test))

enum bench_format { BENCH_TEXT, BENCH_CSV, BENCH_JSON };

/* Which program has an option: rows of options.def, usage of a program. */
enum bench_scope {
    BENCH_TP = 1, BENCH_FLOORS = 2, BENCH_PEER = 4,
    BENCH_FORKED = 8,          /* a peer that starts its ranks itself */
    BENCH_ALL = 15
};

enum { BENCH_PAGE = 4096, BENCH_SIZES = 64, BENCH_WINDOWS = 16,
       BENCH_RANKS_MAX = 4096, BENCH_BUFFERS = 1024, BENCH_WORK_US = 100 };

struct bench_options {
    unsigned tests;            /* BENCH_BIT of each */
    size_t sizes[BENCH_SIZES];
    unsigned size_count;       /* 0: what suits the test */
    unsigned windows[BENCH_WINDOWS];
    unsigned window_count;     /* 0: what suits the test */
    unsigned repetitions;
    double time_ms;            /* of one repetition, about */
    double work_us;            /* of each round of overlap */
    unsigned limit_s;          /* without progress for so long: give up */
    bool fresh, verify, blocking, pin;
    size_t offset;             /* of received buffers in their first page */
    enum bench_format format;
    const char *who;           /* NULL: the program's own name */
    /* tpperf */
    const char *progress;      /* NULL: as the environment says */
    bool poll, borrow, memory, tensors;
    size_t metadata;           /* bytes of each message's */
    unsigned buffers;          /* of each message, which share its bytes */
    bool on_device;            /* --memory cuda, and which: */
    int device;                /* -1: by the rank's place on its host */
    bool calibrate, compare;
    const char *plot;          /* NULL: no picture */
    /* floors */
    const char *floors;
    /* peers that start their ranks */
    unsigned ranks;            /* 0: two */
    const char *over;          /* NULL: the first it knows */
    const char *waiting;       /* NULL: spin */
};

/* How a program calls itself and what it can do. */
struct bench_usage {
    const char *program;       /* "tpperf" */
    const char *start;         /* "tprun -n 2 tpperf" */
    const char *purpose;       /* one line */
    enum bench_scope scope;
    unsigned tests;            /* BENCH_BIT of each it can do */
};

/*
 * Reads the command line.  False: it has been dealt with (--help, or a mistake
 * that was said on standard error), and the program ends with *status.
 */
bool bench_parse(int argc, char **argv, const struct bench_usage *usage,
                 struct bench_options *options, int *status);

/* "8", "64k", "1M", "2G" in bytes; false if it is none. */
bool bench_size(const char *text, size_t *bytes);
const char *bench_test_name(enum bench_test test);

/* ---- one measurement ---------------------------------------------------- */

enum { BENCH_SAMPLES = 200000 };       /* the most of one repetition */

/* One test at one size.  Filled by plan.c, the same on every rank but for the
 * work, which each has measured by itself. */
struct bench_job {
    enum bench_test test;
    size_t bytes;
    unsigned window;           /* messages under way at a time */
    bool fresh;                /* every message is written anew before it goes,
                                  which is not timed in an exchange */
    bool verify;
    bool blocking;
    uint64_t work;             /* overlap: turns of bench_work() */
    unsigned lanes;            /* buffers each way: message k uses k % lanes */
    void **send, **receive;
    uint64_t count;            /* messages of this repetition, each way */
    uint64_t sequence;         /* number of its first, for the contents */
    uint64_t *samples;         /* exchange and overlap, on a leader: out, ticks
                                  of each round; NULL on the others */
    uint64_t ticks;            /* stream, rank 0: out, all of it */
};

/* k modulo n, without a division where n is a power of two, as most are: that
 * takes as long as a tenth of a short message. */
static inline uint64_t bench_turn(uint64_t k, unsigned n)
{
    return (n & (n - 1)) == 0 ? k & (n - 1) : k % n;
}

/* The buffer of message k. */
static inline void *bench_out(const struct bench_job *job, uint64_t k)
{
    return job->send[bench_turn(k, job->lanes)];
}

static inline void *bench_in(const struct bench_job *job, uint64_t k)
{
    return job->receive[bench_turn(k, job->lanes)];
}

/* Who does what in an exchange: `out` and `in` are equal but in a ring. */
struct bench_role {
    bool takes_part;
    bool leads;                /* begins each round and times it */
    int out, in;               /* send to, receive from */
};
struct bench_role bench_role(const struct bench_job *job, int rank, int size);

/* How many ranks, from 0 on, take part in a test; 0: too few are there. */
int bench_participants(enum bench_test test, int size);

/* Before a send: writes the contents of message `number`, if that is asked
 * for.  After a receive: true if they are right, or not looked at.  Of short
 * messages the calls for nothing would be a tenth. */
void bench_write(const struct bench_job *job, void *buffer, uint64_t number);
bool bench_verify(const struct bench_job *job, void *buffer, uint64_t number);
static inline void bench_touch(const struct bench_job *job, void *buffer,
                               uint64_t number)
{
    if (job->fresh || job->verify)
        bench_write(job, buffer, number);
}
static inline bool bench_right(const struct bench_job *job, void *buffer,
                               uint64_t number)
{
    return !job->verify || bench_verify(job, buffer, number);
}
/* Says that it is not; false. */
bool bench_wrong(const struct bench_job *job, uint64_t number);
/* What a reused buffer holds: seed 0. */
void bench_fill(void *buffer, size_t length, uint64_t seed);
/* As bench_right(), of memory that is only lent: it is left as it is. */
bool bench_right_here(const struct bench_job *job, const void *buffer,
                      uint64_t number);

/* ---- drivers ------------------------------------------------------------ */

struct bench_driver;

/*
 * Every function returns false after it has said on standard error what went
 * wrong; the program then ends.  Optional ones may be NULL.
 */
struct bench_driver {
    const char *who;           /* first column of every result */
    const char *mode;          /* "manual", "spinning", ... */
    int rank, size;
    int local;                 /* ranks on this host; 0: all of them */
    void *state;
    size_t most;               /* bytes of a message, 0: any; longer sizes are
                                  passed over */
    bool lazy;                 /* send() returns before the memory is free; it
                                  is when the next message but one came */

    /* Blocking, one message: what control messages and the plain loops of
     * loops.c need.  The memory may be used again on return. */
    bool (*send)(struct bench_driver *driver, int rank, const void *data,
                 size_t length);
    bool (*receive)(struct bench_driver *driver, int rank, void *data,
                    size_t length);

    /* Optional: job->count rounds, or one-way messages in each direction that
     * the test has.  Without: bench_exchange(), bench_stream(). */
    bool (*exchange)(struct bench_driver *driver, struct bench_job *job);
    bool (*stream)(struct bench_driver *driver, struct bench_job *job);

    /* job->count rounds of two ranks: each begins to receive and to send, works
     * for job->work turns, and waits for both.  Where the program has the test
     * overlap. */
    bool (*overlap)(struct bench_driver *driver, struct bench_job *job);

    /* Optional: memory for messages, instead of malloc()'s.  NULL if there is
     * none. */
    void *(*allocate)(struct bench_driver *driver, size_t length);
    bool all_buffers;          /* ... also for what arrives */
    bool on_device;            /* ... and the host writes none of it: allocate()
                                  has */
    void (*release)(struct bench_driver *driver, void *memory);

    /* Optional: tests that are not made of messages. */
    bool (*special)(struct bench_driver *driver, enum bench_test test);
};

/* Runs every test that the options name.  False: said. */
bool bench_run(struct bench_driver *driver,
               const struct bench_options *options);

/* The plain loops, made of driver->send and driver->receive. */
bool bench_exchange(struct bench_driver *driver, struct bench_job *job);
bool bench_stream(struct bench_driver *driver, struct bench_job *job);

/* Rank 0 has a message of each other rank and answers each; the round is its
 * sample.  Made of driver->send and driver->receive. */
bool bench_star(struct bench_driver *driver, struct bench_job *job);

/* Every rank with each other, from the first message on; rank 0 reports.  Made
 * of driver->send and driver->receive, with the first buffers of the job. */
bool bench_mesh(struct bench_driver *driver, struct bench_job *job);
/* With whom a rank exchanges a message in step 0 to `size` - 2, or - 1 where
 * `size` is odd; -1: with nobody. */
int bench_partner(int rank, int size, int step);

/* The test overlap, of the first two ranks.  both(): one round on either side,
 * which begins to receive and to send, works, and waits. */
bool bench_overlap(struct bench_driver *driver, struct bench_job *job,
                   bool (*both)(struct bench_driver *driver,
                                const struct bench_job *job, int peer,
                                const void *send, void *receive));

/* Work that takes so many turns; how many take so long on this machine, after
 * bench_clock_init(). */
void bench_work(uint64_t turns);
uint64_t bench_work_turns(double us);

/* A fresh exchange begins each round when both have rewritten their buffers:
 * a leader waits for the byte that the other rank sends. */
bool bench_ready(struct bench_driver *driver, const struct bench_role *role);

/* Rank 0 gets `count` figures of every participant, one rank after the other
 * (*all is malloc()'ed, NULL on the others). */
bool bench_gather(struct bench_driver *driver, int participants,
                  const double *mine, unsigned count, double **all);

/* ---- the machine -------------------------------------------------------- */

/* One line on standard error, after the program's name. */
void bench_say(const char *format, ...)
    __attribute__((__format__(__printf__, 1, 2)));

/* The process ends, and says so, unless this is called again within so many
 * seconds; 0 for no limit. */
void bench_limit(unsigned seconds);

/* All memory that this machine has, with its swap, in bytes; 0 where the kernel
 * does not tell. */
double bench_memory(void);

/* How long this process (its first thread) could have run and had no cpu, since
 * it is there; NAN where the kernel does not tell. */
double bench_waited_ns(void);

/* Binds this process to the n-th of the cpus that it may use, modulo their
 * number: all cores before the second thread of any, as launchers do.  Failing
 * that is not fatal: false, and it is said. */
bool bench_pin(int n);

#endif
