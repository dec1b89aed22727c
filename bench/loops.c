/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The plain loops, for whatever can send and receive one message in blocking
 * calls; and what ranks tell each other beside the messages that count.
 */
#include <stdlib.h>

#include "bench/bench.h"
#include "bench/clock.h"

struct bench_role bench_role(const struct bench_job *job, int rank, int size)
{
    int ranks = bench_participants(job->test, size);
    struct bench_role role = { .takes_part = rank < ranks };

    if (job->test == BENCH_STAR) {
        role.leads = rank == 0;
    } else if (job->test == BENCH_RING) {
        role.leads = rank == 0;
        role.out = (rank + 1) % ranks;
        role.in = (rank + ranks - 1) % ranks;
    } else {
        role.leads = rank % 2 == 0;
        role.out = role.in = rank ^ 1;
    }
    return role;
}

int bench_participants(enum bench_test test, int size)
{
    if (size < 2)
        return 0;
    switch (test) {
    case BENCH_PAIRS:
        return size - size % 2;
    case BENCH_INIT: case BENCH_MEMORY: case BENCH_IDLE: case BENCH_RING:
    case BENCH_STAR: case BENCH_MESH:
        return size;
    default:
        return 2;
    }
}

bool bench_ready(struct bench_driver *driver, const struct bench_role *role)
{
    unsigned char byte = 0;

    if (role->leads)
        return driver->receive(driver, role->in, &byte, 1);
    return driver->send(driver, role->out, &byte, 1);
}

bool bench_gather(struct bench_driver *driver, int participants,
                  const double *mine, unsigned count, double **all)
{
    size_t row = count * sizeof(double);
    double *rows;
    bool good = true;

    *all = NULL;
    if (driver->rank > 0)
        return driver->send(driver, 0, mine, row);
    rows = calloc((size_t)participants, row);
    if (rows == NULL) {
        bench_say("out of memory");
        return false;
    }
    for (unsigned i = 0; i < count; i++)
        rows[i] = mine[i];
    for (int rank = 1; rank < participants && good; rank++)
        good = driver->receive(driver, rank, rows + (size_t)rank * count, row);
    if (good)
        *all = rows;
    else
        free(rows);
    return good;
}

bool bench_wrong(const struct bench_job *job, uint64_t number)
{
    bench_say("message %llu of %zu bytes arrived with wrong contents",
              (unsigned long long)number, job->bytes);
    return false;
}

/* One round of an exchange, on either side. */
static bool loops_round(struct bench_driver *driver, struct bench_job *job,
                        const struct bench_role *role, uint64_t k)
{
    uint64_t number = job->sequence + k, begun;
    void *send = bench_out(job, k);
    void *receive = bench_in(job, k);

    if (!job->fresh && !role->leads
        && !driver->receive(driver, role->in, receive, job->bytes))
        return false;
    bench_touch(job, send, number);
    if (job->fresh && !bench_ready(driver, role))
        return false;
    if (job->fresh && !role->leads
        && !driver->receive(driver, role->in, receive, job->bytes))
        return false;
    begun = bench_ticks();
    if (!driver->send(driver, role->out, send, job->bytes))
        return false;
    if (role->leads) {
        if (!driver->receive(driver, role->in, receive, job->bytes))
            return false;
        job->samples[k] = bench_ticks() - begun;
    }
    return bench_right(job, receive, number) || bench_wrong(job, number);
}

bool bench_exchange(struct bench_driver *driver, struct bench_job *job)
{
    struct bench_role role = bench_role(job, driver->rank, driver->size);

    for (uint64_t k = 0; k < job->count; k++)
        if (!loops_round(driver, job, &role, k))
            return false;
    return true;
}

bool bench_overlap(struct bench_driver *driver, struct bench_job *job,
                   bool (*both)(struct bench_driver *driver,
                                const struct bench_job *job, int peer,
                                const void *send, void *receive))
{
    for (uint64_t k = 0; k < job->count; k++) {
        uint64_t number = job->sequence + k, begun;

        bench_touch(job, bench_out(job, k), number);
        begun = bench_ticks();
        if (!both(driver, job, 1 - driver->rank, bench_out(job, k),
                  bench_in(job, k)))
            return false;
        if (job->samples != NULL)
            job->samples[k] = bench_ticks() - begun;
        if (!bench_right(job, bench_in(job, k), number))
            return bench_wrong(job, number);
    }
    return true;
}

static bool loops_star_center(struct bench_driver *driver,
                              struct bench_job *job, uint64_t k)
{
    void *send = bench_out(job, k);
    void *receive = bench_in(job, k);
    uint64_t number = job->sequence + k, begun;

    bench_touch(job, send, number);
    begun = bench_ticks();
    for (int rank = 1; rank < driver->size; rank++) {
        if (!driver->receive(driver, rank, receive, job->bytes))
            return false;
        if (!bench_right(job, receive, number))
            return bench_wrong(job, number);
    }
    for (int rank = 1; rank < driver->size; rank++)
        if (!driver->send(driver, rank, send, job->bytes))
            return false;
    job->samples[k] = bench_ticks() - begun;
    return true;
}

static bool loops_star_ray(struct bench_driver *driver, struct bench_job *job,
                           uint64_t k)
{
    void *send = bench_out(job, k);
    void *receive = bench_in(job, k);
    uint64_t number = job->sequence + k;

    bench_touch(job, send, number);
    if (!driver->send(driver, 0, send, job->bytes)
        || !driver->receive(driver, 0, receive, job->bytes))
        return false;
    return bench_right(job, receive, number) || bench_wrong(job, number);
}

bool bench_star(struct bench_driver *driver, struct bench_job *job)
{
    for (uint64_t k = 0; k < job->count; k++)
        if (!(driver->rank == 0 ? loops_star_center(driver, job, k)
                                : loops_star_ray(driver, job, k)))
            return false;
    return true;
}

static bool loops_stream_out(struct bench_driver *driver,
                             struct bench_job *job)
{
    uint64_t begun = bench_ticks();
    unsigned char byte;

    for (uint64_t k = 0; k < job->count; k++) {
        void *send = bench_out(job, k);

        bench_touch(job, send, job->sequence + k);
        if (!driver->send(driver, 1, send, job->bytes))
            return false;
    }
    if (!driver->receive(driver, 1, &byte, 1))
        return false;
    job->ticks = bench_ticks() - begun;
    return true;
}

static bool loops_stream_in(struct bench_driver *driver,
                            struct bench_job *job)
{
    unsigned char byte = 0;

    for (uint64_t k = 0; k < job->count; k++) {
        void *receive = bench_in(job, k);

        if (!driver->receive(driver, 0, receive, job->bytes))
            return false;
        if (!bench_right(job, receive, job->sequence + k))
            return bench_wrong(job, job->sequence + k);
    }
    return driver->send(driver, 0, &byte, 1);
}

bool bench_stream(struct bench_driver *driver, struct bench_job *job)
{
    return driver->rank == 0 ? loops_stream_out(driver, job)
                             : loops_stream_in(driver, job);
}
