/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two ranks on cpus of our choice, over backends of our choice, and what they
 * measured: for tpperf --calibrate, which starts itself again for each.
 */
#ifndef BENCH_PAIR_H
#define BENCH_PAIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PAIR_POINTS = 16, PAIR_BACKENDS = 16, PAIR_NAME = 24, PAIR_DEVICES = 8,
    PAIR_WAYS = 6
};

struct pair_run {
    unsigned cpu[2];               /* of either rank */
    const char *backends;          /* TP_BACKENDS; "": all */
    const char *require;           /* TP_REQUIRE; "": nothing */
    const char *memory[2];         /* as --memory: what to send from */
    const char *sizes;             /* as --sizes */
    unsigned repetitions;
    double time_ms;
    unsigned limit_s;
};

/* What the pair's plan says of one backend. */
struct pair_backend {
    char name[PAIR_NAME];
    char over[PAIR_NAME];          /* "" for any transport */
    bool channel, possible;
    bool devices;                  /* for memory of devices only */
    bool self;                     /* connects a rank to itself only */
    double latency_us, megabytes;  /* of the built-in model */
    uint64_t from_bytes;           /* UINT64_MAX: never, or no channel */
};

/* What it says of one kind of pair of devices. */
struct pair_devices {
    char path[PAIR_NAME];          /* "PIX" */
    int mine, yours;
    unsigned way_count;
    struct pair_backend ways[PAIR_WAYS];
};

struct pair_result {
    char locality[32];             /* "same L3" */
    unsigned backend_count, point_count, device_count;
    struct pair_backend backends[PAIR_BACKENDS];   /* in the plan's order */
    struct pair_devices devices[PAIR_DEVICES];
    struct {
        size_t bytes;
        double us;                 /* one way */
    } points[PAIR_POINTS];         /* by size */
};

/*
 * Blocks until both ranks have ended, at most limit_s.  False: what went wrong
 * was said.  Nothing is left behind, also if a signal ends us meanwhile: then
 * pair_interrupted() tells it from now on.
 */
bool pair_measure(const struct pair_run *run, struct pair_result *result);
int pair_interrupted(void);        /* the signal's number; 0: none came */

/* Before the first pair: signals end a measurement in good order. */
void pair_init(void);

/* Of pair_json.c: what `tpperf --json latency` prints.  False: it is not. */
bool pair_parse(const char *text, struct pair_result *result);

#endif
