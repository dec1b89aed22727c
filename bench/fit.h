/* SPDX-License-Identifier: BSD-3-Clause */
/* The line through measured times: latency + bytes / (MB/s). */
#ifndef BENCH_FIT_H
#define BENCH_FIT_H

#include <stdbool.h>

#include "bench/pair.h"

struct fit {
    double latency_us, megabytes;
    double error;                  /* the largest relative one of a point */
};

/*
 * The latency is that of the smallest message; the bandwidth fits the points
 * from `from` bytes on best, in relative terms.  False: too few points.
 */
bool fit_transport(const struct pair_result *result, size_t from,
                   struct fit *fit);

/*
 * A channel's buffers also take `base_us`, what a message of its transport
 * takes; its own latency and bandwidth fit best.  Two points at least.
 */
bool fit_channel(const struct pair_result *result, size_t from,
                 double base_us, struct fit *fit);

#endif
