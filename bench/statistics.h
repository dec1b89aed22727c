/* SPDX-License-Identifier: BSD-3-Clause */
/* Medians and percentiles. */
#ifndef BENCH_STATISTICS_H
#define BENCH_STATISTICS_H

#include <stddef.h>
#include <stdint.h>

/* Both sort in place. */
void bench_sort(double *values, size_t count);
void bench_sort_ticks(uint64_t *values, size_t count);

/* Of sorted values: the one below which `share` (0 .. 1) of them lie, between
 * two by straight line.  NAN of none. */
double bench_quantile(const double *sorted, size_t count, double share);
double bench_quantile_ticks(const uint64_t *sorted, size_t count,
                            double share);
double bench_mean_ticks(const uint64_t *values, size_t count);

#endif
