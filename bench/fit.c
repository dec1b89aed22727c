/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Least squares of the relative errors: (a + n x - t) / t, so that a point of
 * a few microseconds counts as much as one of milliseconds.
 */
#include "config.h"

#include <math.h>

#include "bench/fit.h"

static void fit_finish(const struct pair_result *result, size_t from,
                       double base_us, struct fit *fit)
{
    fit->error = 0;
    for (unsigned i = 0; i < result->point_count; i++) {
        double n = (double)result->points[i].bytes;
        double t = result->points[i].us;
        double line = base_us + fit->latency_us + n / fit->megabytes;

        if (result->points[i].bytes >= from)
            fit->error = fmax(fit->error, fabs(line - t) / t);
    }
}

/* The bandwidth, the latency being known; 0: the points say none. */
static double fit_slope(const struct pair_result *result, size_t from,
                        double latency_us)
{
    double above = 0, below = 0;   /* of 1 / (MB/s) */

    for (unsigned i = 0; i < result->point_count; i++) {
        double n = (double)result->points[i].bytes;
        double t = result->points[i].us;

        if (result->points[i].bytes < from || t <= 0)
            continue;
        above += n / t * (1 - latency_us / t);
        below += n / t * (n / t);
    }
    return above > 0 ? below / above : 0;
}

/* On a machine that is busy the smallest message may have taken longer than
 * big ones: then the biggest alone tells. */
static double fit_biggest(const struct pair_result *result)
{
    unsigned last = result->point_count - 1;

    return (double)result->points[last].bytes / result->points[last].us;
}

bool fit_transport(const struct pair_result *result, size_t from,
                   struct fit *fit)
{
    if (result->point_count < 2 || result->points[0].us <= 0)
        return false;
    fit->latency_us = result->points[0].us;
    fit->megabytes = fit_slope(result, from, fit->latency_us);
    if (fit->megabytes <= 0)
        fit->megabytes = fit_biggest(result);
    if (!(fit->megabytes > 0))
        return false;
    fit_finish(result, from, 0, fit);
    return true;
}

bool fit_channel(const struct pair_result *result, size_t from,
                 double base_us, struct fit *fit)
{
    /* Sums of 1/t^2, n/t^2, n^2/t^2, (t - base)/t^2 and n (t - base)/t^2. */
    double s = 0, sn = 0, snn = 0, st = 0, snt = 0, determinant;
    unsigned count = 0;

    for (unsigned i = 0; i < result->point_count; i++) {
        double n = (double)result->points[i].bytes;
        double t = result->points[i].us, w = 1 / (t * t);

        if (result->points[i].bytes < from || t <= 0)
            continue;
        s += w;
        sn += w * n;
        snn += w * n * n;
        st += w * (t - base_us);
        snt += w * n * (t - base_us);
        count++;
    }
    determinant = s * snn - sn * sn;
    if (count < 2 || determinant <= 0)
        return false;
    fit->latency_us = (st * snn - snt * sn) / determinant;
    fit->megabytes = determinant / (snt * s - st * sn);
    /* Noise may put the line below the origin; a channel costs something. */
    if (fit->latency_us < 0.001 || !(fit->megabytes > 0)) {
        fit->latency_us = 0.001;
        fit->megabytes = fit_slope(result, from, base_us + fit->latency_us);
    }
    if (!(fit->megabytes > 0))
        fit->megabytes = fit_biggest(result);
    if (!(fit->megabytes > 0))
        return false;
    fit_finish(result, from, base_us, fit);
    return true;
}
