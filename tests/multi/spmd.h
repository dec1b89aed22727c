/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The side of a rank: what a multi-process test is made of.
 *
 * A test is a function that every rank of a job runs, with a context that is
 * open already; the suites are tables of them.  They run in two ways: forked
 * by a Check program (harness.h), or under a launcher by tests/multi/spmd.
 * They use tp.h alone, so that they are programs like any user's.
 */
#ifndef TPX_SPMD_H
#define TPX_SPMD_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/tp.h"

/* What a rank knows of itself.  One per process. */
struct tpx_rank {
    tp_context *context;       /* the function may finalize it, and sets NULL */
    int rank, size;
    tp_progress_mode mode;     /* what TP_PROGRESS said */
    bool full;                 /* make check-long: more of everything */
    bool sanitized;            /* slow memory: less of everything */
    bool few;                  /* TP_TEST_FEW, an emulated machine: even less,
                                  and more patience */
    uint64_t seed;             /* the same in all ranks */
    char **arguments;          /* after the test's name, when launched */
};
extern struct tpx_rank tpx_me;

/* Removes the files of a folder. */
void tpx_clear(const char *directory);

typedef void tpx_spmd_fn(void);

enum {
    TPX_KILLS = 1,             /* ranks die by SIGKILL, and that is right */
    TPX_WARNS = 2,             /* the runtime may log warnings and errors */
    TPX_BARE = 4,              /* the function calls tp_init() itself */
    TPX_ONCE = 8,              /* says nothing about modes: AUTO only */
    TPX_MANUAL = 16,           /* only TP_PROGRESS_MANUAL */
    TPX_LAUNCH = 32,           /* also run under launchers */
    TPX_LONG = 64,             /* only in make check-long */
    TPX_CHANNELS = 128,        /* about channels */
    TPX_REAL = 256,            /* not with TP_TEST_FEW: has its own limits */
    TPX_FREES = 512            /* what tp_free() gets is gone */
};

struct tpx_spmd {
    const char *name;          /* unique among all suites */
    tpx_spmd_fn *run;
    int ranks;
    unsigned flags;
    int seconds;               /* the deadline; 0: 30 */
};

/* The suites; each ends with a NULL name. */
extern const struct tpx_spmd tpx_order[], tpx_huge[], tpx_arguments[],
    tpx_nested[], tpx_pressure[], tpx_close[], tpx_failure[], tpx_blocking[],
    tpx_idle[], tpx_bad[], tpx_channel[], tpx_listen[], tpx_any[],
    tpx_streams[], tpx_late[], tpx_lent[], tpx_crowd[], tpx_alloc[],
    tpx_self[];
extern const struct tpx_spmd *const tpx_suites[];      /* NULL-terminated */

/* Sets tpx_me from the environment, opens the context, runs, finalizes.  Does
 * not return with a failure: says why and ends the process with status 1. */
void tpx_rank_run(const struct tpx_spmd *test, char **arguments);

/* ---- for test functions ------------------------------------------------- */

/* Says where and why, and ends this rank. */
_Noreturn void tpx_fail(const char *file, int line, const char *format, ...)
    __attribute__((__format__(__printf__, 3, 4)));

#define tpx_check(condition, ...) \
    do { \
        if (!(condition)) \
            tpx_fail(__FILE__, __LINE__, __VA_ARGS__); \
    } while (0)

#define tpx_equal(a, b) \
    do { \
        long long tpx_a = (long long)(a), tpx_b = (long long)(b); \
        if (tpx_a != tpx_b) \
            tpx_fail(__FILE__, __LINE__, "%s is %lld, not %lld (%s)", #a, \
                     tpx_a, tpx_b, #b); \
    } while (0)

#define tpx_status(call, expected) \
    do { \
        tp_status tpx_got = (call), tpx_want = (expected); \
        if (tpx_got != tpx_want) \
            tpx_fail(__FILE__, __LINE__, "%s gave \"%s\", not \"%s\"", \
                     #call, tp_strerror(tpx_got), tp_strerror(tpx_want)); \
    } while (0)

#define tpx_ok(call) tpx_status(call, TP_OK)

/* Is that backend or channel one of those that TP_BACKENDS names? */
bool tpx_backend(const char *name);
/* Before tp_init(): if cma is among them long messages shall go by that, which
 * pays beside TCP; beside shared memory that is found out as they go.  False:
 * it is not sure that they will. */
bool tpx_prefer_cma(void);

/* Where the rank is, for the report of a hang.  A constant string. */
void tpx_at(const char *stage);

/* Waits with tp_wait() until *counter is at least `count`. */
void tpx_until(const unsigned *counter, unsigned count);

/* The same in an event loop: tp_progress() until nothing completes, then poll()
 * of tp_fd(), which must tell of something in time. */
void tpx_until_polled(const unsigned *counter, unsigned count);
void tpx_poll(void);

/* A callback that counts TP_OK in the unsigned `arg` points to; any other
 * status fails the test. */
void tpx_count_ok(tp_pipe *pipe, tp_status status, tp_message *message,
                  void *arg);

/* How an operation ended, and the callback that notes it there. */
struct tpx_end {
    unsigned over;             /* operations that have ended: see tpx_until() */
    tp_status status;          /* of the last one */
};
void tpx_ended(tp_pipe *pipe, tp_status status, tp_message *message, void *arg);

tp_pipe *tpx_pipe(int rank, unsigned number);

/* One byte each way between two ranks: neither goes on before the other is
 * there.  A barrier of all made of these. */
void tpx_meet(int rank);
void tpx_barrier(void);

/* For a word that does not go through what is tested: the path of a file of
 * that name beside the job's cards, until the next call; and makes it. */
const char *tpx_file(const char *name);
void tpx_file_make(const char *name);

/* A limit for what takes much less, of so many milliseconds on a machine that
 * does nothing else, and of more than that everywhere. */
int tpx_limit_ms(int ms);

uint64_t tpx_now(void);                /* nanoseconds */
void tpx_sleep_ms(unsigned ms);
uint64_t tpx_cpu_us(void);             /* of this process so far */
void tpx_sort(uint64_t *values, size_t count);   /* the least first */
size_t tpx_resident(void);             /* bytes of memory it holds */
/* Does explain say that this backend or channel is chosen? */
bool tpx_is_chosen(tp_pipe *pipe, const char *name);
/* How many mappings of tp_alloc() memory it has, of any kind or such as
 * "rw-s". */
int tpx_mappings(const char *kind);
/* Of two ranks: they meet, then all of these mappings go. */
void tpx_mappings_end(void);

uint64_t tpx_random(uint64_t *state);  /* advances the state */
unsigned tpx_below(uint64_t *state, unsigned limit);   /* 0 .. limit-1 */

/* Bytes that depend on the seed and their place. */
void tpx_fill(void *memory, size_t length, uint64_t seed);
/* The place of the first wrong byte, or `length`. */
size_t tpx_verify(const void *memory, size_t length, uint64_t seed);

/* Borrows the next message, of one payload of that length and seed, and closes
 * the pipe before the callback of the loan: nobody is told that all is well and
 * sees that the peer has changed what it had lent.  Returns when it is over. */
void tpx_borrow_closed(tp_pipe *pipe, size_t length, uint64_t seed);

#endif
