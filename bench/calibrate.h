/* SPDX-License-Identifier: BSD-3-Clause */
/* tpperf --calibrate: what each backend costs here, and what the model says. */
#ifndef BENCH_CALIBRATE_H
#define BENCH_CALIBRATE_H

#include "bench/bench.h"
#include "bench/fit.h"

enum { CALIBRATE_ROWS = 128 };

/* One backend between two cpus that share so much. */
struct calibrate_row {
    char backend[PAIR_NAME];
    char locality[32];
    bool channel;
    struct fit measured;
    double latency_us, megabytes;  /* of the model */
};

struct calibrate_table {
    unsigned count;
    struct calibrate_row rows[CALIBRATE_ROWS];
    char machine[20];              /* topology hash, in hexadecimal */
    const char *stored;            /* the file; NULL: not stored */
};

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
