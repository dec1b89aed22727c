/* SPDX-License-Identifier: BSD-3-Clause */
/* tpperf --calibrate: what each backend costs here, and what the model says. */
#ifndef BENCH_CALIBRATE_H
#define BENCH_CALIBRATE_H

#include "bench/bench.h"
#include "bench/fit.h"
#include "runtime/base/settings.h"
#include "topology/discover.h"

enum { CALIBRATE_ROWS = 128 };

/* One backend between two cpus that share so much. */
struct calibrate_row {
    char backend[PAIR_NAME];
    char locality[32];
    bool channel;
    bool devices;                  /* `locality` is the path between two */
    struct fit measured;
    double latency_us, megabytes;  /* of the model */
};

struct calibrate_table {
    unsigned count;
    struct calibrate_row rows[CALIBRATE_ROWS];
    char machine[20];              /* topology hash, in hexadecimal */
    const char *stored;            /* the file; NULL: not stored */
    bool is_double;                /* what was measured of devices is of none */
};

/* The first pair of cpus of each locality. */
struct calibrate_places {
    unsigned first;
    int other[TPT_LOCALITIES];     /* -1: there is none */
};

struct calibrate_work {
    const struct bench_options *options;
    struct tpb_settings settings;
    struct tpt_topology *topology;
    struct calibrate_places places;
    struct calibrate_table table;
    bool devices;                  /* they have been measured */
    unsigned failures;
};

/* One run between the cpus of that locality.  False: it was told why not. */
bool calibrate_run(struct calibrate_work *work, int locality,
                   struct pair_run *run, struct pair_result *result);
/* Another row of the table. */
void calibrate_add(struct calibrate_work *work, const char *locality,
                   const struct pair_backend *backend, const struct fit *fit);
void calibrate_failed(struct calibrate_work *work, const char *backend,
                      const char *locality);

/* The ways between two devices, for each kind of path that the plan of a pair
 * of ranks knows, over that transport.  Once. */
void calibrate_devices(struct calibrate_work *work, int locality,
                       const struct pair_result *plan,
                       const struct pair_backend *transport,
                       const struct fit *base);

/* The whole of it.  Returns the exit status. */
int calibrate(const struct bench_options *options);

/* One message of 64 KiB (of a channel: without its transport's latency). */
double calibrate_cost(double latency_us, double megabytes);

/* By what factor the model is off: at least 1. */
double calibrate_off(const struct calibrate_row *row);

/* Print the table; false: standard output failed. */
bool calibrate_print(const struct calibrate_table *table);
bool calibrate_json(const struct calibrate_table *table);

#endif
