/* SPDX-License-Identifier: BSD-3-Clause */
/* Medians and percentiles. */
#include <math.h>
#include <stdlib.h>

#include "bench/statistics.h"

static int statistics_order(const void *left, const void *right)
{
    const double *a = left, *b = right;

    return (*a > *b) - (*a < *b);
}

static int statistics_order_ticks(const void *left, const void *right)
{
    const uint64_t *a = left, *b = right;

    return (*a > *b) - (*a < *b);
}

void bench_sort(double *values, size_t count)
{
    qsort(values, count, sizeof(values[0]), statistics_order);
}

void bench_sort_ticks(uint64_t *values, size_t count)
{
    qsort(values, count, sizeof(values[0]), statistics_order_ticks);
}

/* The place of a share among `count` values, and the fraction beyond it. */
static size_t statistics_place(size_t count, double share, double *beyond)
{
    double place = share * (double)(count - 1);
    size_t below = (size_t)place;

    if (below + 1 >= count)
        below = count - 1;
    *beyond = place - (double)below;
    return below;
}

double bench_quantile(const double *sorted, size_t count, double share)
{
    double beyond;
    size_t below;

    if (count == 0)
        return NAN;
    below = statistics_place(count, share, &beyond);
    if (below + 1 == count)
        return sorted[below];
    return sorted[below] + beyond * (sorted[below + 1] - sorted[below]);
}

double bench_quantile_ticks(const uint64_t *sorted, size_t count,
                            double share)
{
    double beyond;
    size_t below;

    if (count == 0)
        return NAN;
    below = statistics_place(count, share, &beyond);
    if (below + 1 == count)
        return (double)sorted[below];
    return (double)sorted[below]
           + beyond * (double)(sorted[below + 1] - sorted[below]);
}

double bench_mean_ticks(const uint64_t *values, size_t count)
{
    double sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += (double)values[i];
    return sum / (double)count;
}
