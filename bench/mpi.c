/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The same work by MPI: built once for each MPI that is there.  A stream keeps
 * as many requests under way as tpperf keeps messages.
 */
#include "config.h"

#include <limits.h>
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "bench/clock.h"
#include "bench/report.h"

static bool mpi_good(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;

    if (code == MPI_SUCCESS)
        return true;
    MPI_Error_string(code, text, &length);
    bench_say("%s: %s", what, text);
    return false;
}

static bool mpi_send(struct bench_driver *driver, int rank, const void *data,
                     size_t length)
{
    (void)driver;
    return mpi_good(MPI_Send(data, (int)length, MPI_BYTE, rank, 0,
                             MPI_COMM_WORLD), "MPI_Send");
}

static bool mpi_receive(struct bench_driver *driver, int rank, void *data,
                        size_t length)
{
    (void)driver;
    return mpi_good(MPI_Recv(data, (int)length, MPI_BYTE, rank, 0,
                             MPI_COMM_WORLD, MPI_STATUS_IGNORE), "MPI_Recv");
}

/* ---- streams ------------------------------------------------------------ */

/* One direction; `under_way` is a ring of requests, the oldest first. */
struct mpi_way {
    MPI_Request *requests;
    uint64_t total, begun, ended;
};

static bool mpi_begin(struct bench_job *job, struct mpi_way *way, int peer,
                      bool out)
{
    uint64_t k = way->begun++;
    MPI_Request *request = &way->requests[bench_turn(k, job->window)];

    if (!out)
        return mpi_good(MPI_Irecv(bench_in(job, k),
                                  (int)job->bytes, MPI_BYTE, peer, 0,
                                  MPI_COMM_WORLD, request), "MPI_Irecv");
    bench_touch(job, bench_out(job, k), job->sequence + k);
    return mpi_good(MPI_Isend(bench_out(job, k), (int)job->bytes,
                              MPI_BYTE, peer, 0, MPI_COMM_WORLD, request),
                    "MPI_Isend");
}

/* Fills the window. */
static bool mpi_fill(struct bench_job *job, struct mpi_way *way, int peer,
                     bool out)
{
    while (way->begun < way->total && way->begun - way->ended < job->window)
        if (!mpi_begin(job, way, peer, out))
            return false;
    return true;
}

/* Ends the oldest, waiting for it or, if `look`, only if it is over. */
static bool mpi_end(struct bench_job *job, struct mpi_way *way, bool out,
                    bool look)
{
    uint64_t k = way->ended;
    MPI_Request *request = &way->requests[bench_turn(k, job->window)];
    int over = 1;

    if (look ? !mpi_good(MPI_Test(request, &over, MPI_STATUS_IGNORE),
                         "MPI_Test")
             : !mpi_good(MPI_Wait(request, MPI_STATUS_IGNORE), "MPI_Wait"))
        return false;
    if (!over)
        return true;
    way->ended++;
    return out || bench_right(job, bench_in(job, k), job->sequence + k)
           || bench_wrong(job, job->sequence + k);
}

static bool mpi_move(struct bench_job *job, struct mpi_way *out,
                     struct mpi_way *in, int peer)
{
    bool both = out->total > 0 && in->total > 0;

    while (out->ended < out->total || in->ended < in->total) {
        if (!mpi_fill(job, in, peer, false) || !mpi_fill(job, out, peer, true))
            return false;
        if (out->ended < out->total && !mpi_end(job, out, true, both))
            return false;
        if (in->ended < in->total && !mpi_end(job, in, false, both))
            return false;
    }
    return true;
}

/* Rank 1 gives the word to go when its receives are posted. */
static bool mpi_run(struct bench_driver *driver, struct bench_job *job,
                    struct mpi_way *out, struct mpi_way *in)
{
    int peer = 1 - driver->rank;
    unsigned char byte = 0;
    uint64_t begun;

    if (driver->rank == 1
        && (!mpi_fill(job, in, peer, false)
            || !mpi_send(driver, peer, &byte, 1)))
        return false;
    if (driver->rank == 0 && !mpi_receive(driver, peer, &byte, 1))
        return false;
    begun = bench_ticks();
    if (!mpi_move(job, out, in, peer))
        return false;
    if (driver->rank == 1)
        return mpi_send(driver, peer, &byte, 1);
    if (!mpi_receive(driver, peer, &byte, 1))
        return false;
    job->ticks = bench_ticks() - begun;
    return true;
}

static bool mpi_stream(struct bench_driver *driver, struct bench_job *job)
{
    bool both = job->test == BENCH_BIDIRECTIONAL, good;
    struct mpi_way out = { .total = both || driver->rank == 0 ? job->count
                                                              : 0 };
    struct mpi_way in = { .total = both || driver->rank == 1 ? job->count
                                                             : 0 };

    out.requests = calloc(job->window, sizeof(*out.requests));
    in.requests = calloc(job->window, sizeof(*in.requests));
    good = out.requests != NULL && in.requests != NULL;
    if (!good)
        bench_say("out of memory");
    good = good && mpi_run(driver, job, &out, &in);
    free(out.requests);
    free(in.requests);
    return good;
}

/* ---- overlap ------------------------------------------------------------ */

static bool mpi_both(struct bench_driver *driver, const struct bench_job *job,
                     int peer, const void *send, void *receive)
{
    MPI_Request requests[2];

    (void)driver;
    if (!mpi_good(MPI_Irecv(receive, (int)job->bytes, MPI_BYTE, peer, 0,
                            MPI_COMM_WORLD, &requests[0]), "MPI_Irecv")
        || !mpi_good(MPI_Isend(send, (int)job->bytes, MPI_BYTE, peer, 0,
                               MPI_COMM_WORLD, &requests[1]), "MPI_Isend"))
        return false;
    bench_work(job->work);
    for (int i = 0; i < 2; i++)
        if (!mpi_good(MPI_Wait(&requests[i], MPI_STATUS_IGNORE), "MPI_Wait"))
            return false;
    return true;
}

static bool mpi_overlap(struct bench_driver *driver, struct bench_job *job)
{
    return bench_overlap(driver, job, mpi_both);
}

/* ---- start and end ------------------------------------------------------ */

static double mpi_init_ms;

/* In ms, by a clock that need not be compared with another first. */
static double mpi_since(uint64_t begun)
{
    return (double)(bench_system_ns() - begun) / 1e6;
}

static void mpi_report(struct bench_driver *driver, const char *test,
                       double ms)
{
    struct bench_result result = {
        .who = driver->who, .test = test, .mode = driver->mode,
        .buffers = "-", .ranks = driver->size, .unit = "ms", .value = ms,
        .low = ms, .high = ms, .best = NAN, .p99 = NAN, .repetitions = 1,
        .waited = NAN
    };

    bench_report(&result);
}

/* Every rank sends to its right and hears from its left. */
static bool mpi_special(struct bench_driver *driver, enum bench_test test)
{
    int right = (driver->rank + 1) % driver->size;
    int left = (driver->rank + driver->size - 1) % driver->size;
    uint64_t begun = bench_system_ns(), out = 1, in;

    (void)test;
    if (!mpi_good(MPI_Sendrecv(&out, 8, MPI_BYTE, right, 0, &in, 8, MPI_BYTE,
                               left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                  "MPI_Sendrecv"))
        return false;
    mpi_report(driver, "init", mpi_init_ms);
    mpi_report(driver, "first-contact", mpi_since(begun));
    return true;
}

static void mpi_finalize(struct bench_driver *driver, bool asked)
{
    uint64_t begun = bench_system_ns();

    MPI_Finalize();
    if (asked)
        mpi_report(driver, "finalize", mpi_since(begun));
}

int main(int argc, char **argv)
{
    static const struct bench_usage usage = {
        .program = BENCH_MPI_NAME, .start = "mpirun -n N " BENCH_MPI_NAME,
        .purpose = "Do with MPI what tpperf does with tp.",
        .scope = BENCH_PEER,
        .tests = (BENCH_BIT(BENCH_TESTS) - 1) & ~BENCH_BIT(BENCH_MEMORY)
                 & ~BENCH_BIT(BENCH_IDLE)
    };
    struct bench_options options;
    struct bench_driver driver = {
        .who = BENCH_MPI_NAME, .mode = "spinning", .send = mpi_send,
        .receive = mpi_receive, .stream = mpi_stream, .overlap = mpi_overlap,
        .special = mpi_special,
        .most = INT_MAX            /* MPI's counts */
    };
    uint64_t begun;
    int status;
    bool good;

    if (!bench_parse(argc, argv, &usage, &options, &status))
        return status;
    /* Of a job that only starts and ends all is timed, from outside. */
    if (options.tests != BENCH_BIT(BENCH_INIT))
        bench_clock_init();
    begun = bench_system_ns();
    if (!mpi_good(MPI_Init(NULL, NULL), "MPI_Init"))
        return 1;
    mpi_init_ms = mpi_since(begun);
    MPI_Comm_rank(MPI_COMM_WORLD, &driver.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &driver.size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (options.who != NULL)
        driver.who = options.who;
    if (options.pin)
        bench_pin(driver.rank);
    bench_report_open(options.format, driver.rank != 0);
    good = bench_run(&driver, &options);
    if (!good)
        MPI_Abort(MPI_COMM_WORLD, 1);
    mpi_finalize(&driver, (options.tests & BENCH_BIT(BENCH_INIT)) != 0);
    return bench_report_close() ? 0 : 1;
}
