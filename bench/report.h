/* SPDX-License-Identifier: BSD-3-Clause */
/* Results, as a table, as CSV or as JSON on standard output. */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "bench/bench.h"

/* One result.  Figures that there are not are NAN. */
struct bench_result {
    const char *who;           /* "tp", "openmpi", "floor/ring" */
    const char *test;          /* "latency", or what a test calls its parts */
    const char *mode;          /* "manual", "spinning" */
    const char *buffers;       /* "reused", "fresh", "-" */
    int ranks;
    unsigned window;           /* 0: there is none */
    size_t bytes;
    const char *unit;          /* "us", "MB/s", "M/s", "ms", "KiB" */
    double value;              /* the median of the repetitions */
    double low, high;          /* the least and the largest repetition */
    double best, p99;          /* of single round trips: see tpperf(1) */
    unsigned repetitions;
    double waited;             /* percent of the time without a cpu */
};

/* Columns of the CSV, in order; every comparator prints the same. */
#define BENCH_CSV_HEADER \
    "who,test,mode,buffers,ranks,window,bytes,unit,value,low,high,best,p99," \
    "repetitions,waited"

/* Only rank 0 reports: `quiet` makes all of this do nothing. */
void bench_report_open(enum bench_format format, bool quiet);
void bench_report(const struct bench_result *result);
/* Ends the output; false if some of it could not be written: said. */
bool bench_report_close(void);

/* Rank 0: how ranks 0 and 1 are connected, as tp_pipe_explain() tells it; only
 * JSON shows it.  NULL: not known. */
void bench_report_plan(const char *plan);

/* What is reported is also drawn into this file, FILE.svg or FILE.png, when the
 * report is closed.  NULL: it is not. */
void bench_report_plot(const char *file);

/* Of report_plot.c.  Drawing says what went wrong. */
bool bench_plot_possible(const char *file);    /* before all else */
bool bench_plot_add(const struct bench_result *result);
bool bench_plot_draw(const char *file);

/* Of report_json.c. */
bool bench_json_plan(const char *plan);
bool bench_json_add(const struct bench_result *result);
bool bench_json_print(void);

#endif
