/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every rank with each other, one partner after the other, from the first
 * message of a pair on: what programs do that talk a little with many.
 * Nothing is repeated until it is quick; that ranks have not met, and rings are
 * cold, is what counts.
 */
#include "config.h"

#include <math.h>

#include "bench/bench.h"
#include "bench/clock.h"
#include "bench/report.h"
#include "bench/statistics.h"

enum { MESH_ROUNDS = 50, MESH_REST = MESH_ROUNDS - 1 };

int bench_partner(int rank, int size, int step)
{
    int last = size - 1 + size % 2, other = (step + last - rank) % last;

    /* A round-robin tournament by the circle method: the last of an even number
     * plays against who would have to play against himself. */
    if (rank == last)
        return (step % 2 == 0 ? step : step + last) / 2;
    if (other == rank)
        return size % 2 == 0 ? last : -1;
    return other;
}

/* A message each way; the lower rank begins, so that nobody waits in a
 * circle. */
static bool mesh_exchange(struct bench_driver *driver, struct bench_job *job,
                          int partner)
{
    bool first = driver->rank < partner;
    uint64_t number = job->sequence;

    bench_touch(job, job->send[0], number);
    if (first && !driver->send(driver, partner, job->send[0], job->bytes))
        return false;
    if (!driver->receive(driver, partner, job->receive[0], job->bytes))
        return false;
    if (!first && !driver->send(driver, partner, job->send[0], job->bytes))
        return false;
    return bench_right(job, job->receive[0], number)
           || bench_wrong(job, number);
}

static bool mesh_round(struct bench_driver *driver, struct bench_job *job)
{
    int steps = driver->size - 1 + driver->size % 2;

    for (int step = 0; step < steps; step++) {
        int partner = bench_partner(driver->rank, driver->size, step);

        if (partner >= 0 && !mesh_exchange(driver, job, partner))
            return false;
    }
    job->sequence++;
    return true;
}

/* Twice round all ranks: then all have been started. */
static bool mesh_begin(struct bench_driver *driver)
{
    int right = (driver->rank + 1) % driver->size;
    int left = (driver->rank + driver->size - 1) % driver->size;
    unsigned char byte = 0;

    for (int k = 0; k < 2; k++) {
        if (driver->rank == 0 && !driver->send(driver, right, &byte, 1))
            return false;
        if (!driver->receive(driver, left, &byte, 1))
            return false;
        if (driver->rank > 0 && !driver->send(driver, right, &byte, 1))
            return false;
    }
    return true;
}

/* `rounds` is sorted. */
static void mesh_report(const struct bench_driver *driver,
                        const struct bench_job *job, const char *test,
                        const double *rounds, unsigned count)
{
    struct bench_result result = {
        .who = driver->who, .test = test, .mode = driver->mode,
        .buffers = job->fresh ? "fresh" : "reused", .ranks = driver->size,
        .bytes = job->bytes, .unit = "us",
        .value = bench_quantile(rounds, count, 0.5), .low = rounds[0],
        .high = rounds[count - 1], .best = NAN, .p99 = NAN,
        .repetitions = count, .waited = NAN
    };

    bench_report(&result);
}

bool bench_mesh(struct bench_driver *driver, struct bench_job *job)
{
    double rounds[MESH_ROUNDS];

    if (!mesh_begin(driver))
        return false;
    for (int k = 0; k < MESH_ROUNDS; k++) {
        uint64_t begun = bench_ticks();

        if (!mesh_round(driver, job))
            return false;
        rounds[k] = bench_ns(bench_ticks() - begun) / 1e3;
    }
    if (driver->rank > 0)
        return true;
    mesh_report(driver, job, "mesh-first", rounds, 1);
    bench_sort(rounds + 1, MESH_REST);
    mesh_report(driver, job, "mesh", rounds + 1, MESH_REST);
    return true;
}
