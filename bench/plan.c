/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What is measured, how often, and what the figures are.
 *
 * Rank 0 finds out how many messages fill the time of one repetition, and tells
 * the others each time how many come next; 0 ends the series.
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/bench.h"
#include "bench/clock.h"
#include "bench/report.h"
#include "bench/statistics.h"

enum {
    PLAN_FEW = 4,                  /* messages of a repetition, at least ... */
    PLAN_WINDOWS = 4,              /* ... or of a stream, times its window */
    PLAN_MANY = 100000000,         /* ... of a stream, at most */
    PLAN_BIG = 1 << 20             /* messages that are tried one by one */
};
/* What the messages under way may occupy, each way. */
static const size_t plan_memory = (size_t)256 << 20;

/* What one repetition came to: microseconds, or the rate. */
struct plan_figures {
    double value, best, p99;
};

struct plan {
    struct bench_driver *driver;
    const struct bench_options *options;
    struct bench_job job;
    int participants;
    uint64_t work;                     /* turns of a round of overlap */
    struct plan_figures *figures;      /* of each repetition */
    uint64_t begun_ns;                 /* of the series */
    double waited_ns;                  /* before it began */
};

static bool plan_exchanges(enum bench_test test)
{
    return test == BENCH_LATENCY || test == BENCH_OVERLAP
           || test == BENCH_PAIRS || test == BENCH_RING || test == BENCH_STAR;
}

/* ---- buffers ------------------------------------------------------------ */

/* Is it the driver who makes such buffers? */
static bool plan_driver_makes(const struct bench_driver *driver, bool send)
{
    return driver->allocate != NULL && (send || driver->all_buffers);
}

static size_t plan_offset(const struct plan *plan, bool send)
{
    return send ? 0 : plan->options->offset;
}

static void *plan_buffer(struct plan *plan, bool send)
{
    struct bench_driver *driver = plan->driver;
    size_t offset = plan_offset(plan, send);
    size_t length = offset + (plan->job.bytes > 0 ? plan->job.bytes : 1);
    unsigned char *buffer;

    if (plan_driver_makes(driver, send))
        buffer = driver->allocate(driver, length);
    else
        buffer = aligned_alloc(BENCH_PAGE, (length + BENCH_PAGE - 1)
                                               / BENCH_PAGE * BENCH_PAGE);
    if (buffer != NULL)
        buffer += offset;
    /* Written in any case: pages that nobody ever wrote are all the same one,
     * which stays in cache. */
    if (buffer != NULL && !driver->on_device)
        bench_fill(buffer, plan->job.bytes, 0);
    return buffer;
}

static void plan_free(struct plan *plan, unsigned char *buffer, bool send)
{
    if (buffer == NULL)
        return;
    buffer -= plan_offset(plan, send);
    if (plan_driver_makes(plan->driver, send))
        plan->driver->release(plan->driver, buffer);
    else
        free(buffer);
}

static void plan_job_fini(struct plan *plan)
{
    struct bench_job *job = &plan->job;

    for (unsigned i = 0; i < job->lanes; i++) {
        if (job->send != NULL)
            plan_free(plan, job->send[i], true);
        if (job->receive != NULL)
            plan_free(plan, job->receive[i], false);
    }
    free(job->send);
    free(job->receive);
    free(job->samples);
}

/* The kernel does not refuse what there is not: it writes memory out to disk
 * for hours, or ends whom it likes. */
static bool plan_room(const struct plan *plan)
{
    const struct bench_driver *driver = plan->driver;
    int ranks = driver->local > 0 && driver->local < plan->participants
                ? driver->local : plan->participants;
    double wanted = 2.0 * plan->job.lanes * (double)plan->job.bytes * ranks;
    double memory = wanted > PLAN_BIG ? bench_memory() : 0;

    if (driver->on_device || memory == 0 || wanted < memory)
        return true;
    bench_say("%zu bytes in %u messages each way take %.0f MiB in %d ranks; "
              "this machine has %.0f: see --sizes", plan->job.bytes,
              plan->job.lanes, wanted / PLAN_BIG, ranks, memory / PLAN_BIG);
    return false;
}

static bool plan_job_buffers(struct plan *plan)
{
    struct bench_job *job = &plan->job;

    job->send = calloc(job->lanes, sizeof(void *));
    job->receive = calloc(job->lanes, sizeof(void *));
    if (job->send == NULL || job->receive == NULL)
        return false;
    for (unsigned i = 0; i < job->lanes; i++) {
        job->send[i] = plan_buffer(plan, true);
        job->receive[i] = plan_buffer(plan, false);
        if (job->send[i] == NULL || job->receive[i] == NULL)
            return false;
    }
    if (bench_role(job, plan->driver->rank, plan->driver->size).leads
        && plan_exchanges(job->test)) {
        job->samples = calloc(BENCH_SAMPLES, sizeof(uint64_t));
        return job->samples != NULL;
    }
    return true;
}

/*
 * Reused means: one buffer goes out again and again, and one receives, so that
 * both stay in cache.  With fresh or verified contents every message under way
 * has its own.
 */
static bool plan_job_init(struct plan *plan, enum bench_test test,
                          size_t bytes, unsigned window)
{
    const struct bench_options *options = plan->options;
    size_t fit = bytes > 0 ? plan_memory / bytes : window;

    if (plan_exchanges(test) || test == BENCH_MESH)
        window = 1;
    else if (window > fit)
        window = fit > 2 ? (unsigned)fit : 2;
    plan->job = (struct bench_job){
        .test = test, .bytes = bytes, .window = window,
        .fresh = options->fresh, .verify = options->verify,
        .blocking = options->blocking,
        .work = plan->work,
        .lanes = options->fresh || options->verify
                     ? window + plan->driver->lazy : 1
    };
    if (!plan_room(plan))
        return false;
    if (plan_job_buffers(plan))
        return true;
    bench_say("no memory for %u messages of %zu bytes each way",
              plan->job.lanes, bytes);
    plan_job_fini(plan);
    return false;
}

/* ---- one repetition ----------------------------------------------------- */

static bool plan_move(struct plan *plan)
{
    struct bench_driver *driver = plan->driver;
    struct bench_job *job = &plan->job;

    if (job->test == BENCH_STAR)
        return bench_star(driver, job);
    if (job->test == BENCH_OVERLAP)
        return driver->overlap(driver, job);
    if (plan_exchanges(job->test))
        return (driver->exchange != NULL ? driver->exchange
                                         : bench_exchange)(driver, job);
    return (driver->stream != NULL ? driver->stream
                                   : bench_stream)(driver, job);
}

/*
 * Of this rank's own rounds, in microseconds one way, or all of it where both
 * work: their median, which a time slice of somebody else does not move.  Where
 * ranks may share cpus their mean: ranks that spin are quick while they have a
 * cpu, and then have none for many times as long.
 */
static struct plan_figures plan_rounds(const struct bench_job *job, int ranks)
{
    double ways = job->test == BENCH_OVERLAP ? 1
                  : job->test == BENCH_RING  ? ranks
                  : job->test == BENCH_STAR ? 2 * (ranks - 1) : 2;
    uint64_t scale = 1000000;
    double us = bench_ns(scale) / (double)scale / ways / 1e3;
    struct plan_figures figures = { NAN, NAN, NAN };

    if (job->samples == NULL)
        return figures;
    bench_sort_ticks(job->samples, job->count);
    figures.value = (job->test == BENCH_LATENCY || job->test == BENCH_OVERLAP
                         ? bench_quantile_ticks(job->samples, job->count, 0.5)
                         : bench_mean_ticks(job->samples, job->count)) * us;
    figures.best = (double)job->samples[0] * us;
    figures.p99 = bench_quantile_ticks(job->samples, job->count, 0.99) * us;
    return figures;
}

/*
 * Of all pairs: how long all of them took for their rounds, the best, and the
 * worst tail.  Not the mean of their own times: where cpus are few, pairs that
 * spin take turns, and each is quick in its own.  But of fresh buffers, as
 * their rewriting is not timed.
 */
static void plan_merge(struct plan_figures *merged, const double *all,
                       int ranks, const struct bench_job *job, uint64_t ticks)
{
    double sum = 0;

    for (int rank = 0; rank < ranks; rank += 2) {
        const double *row = all + 3 * (size_t)rank;

        sum += row[0];
        merged->best = fmin(merged->best, row[1]);
        merged->p99 = fmax(merged->p99, row[2]);
    }
    merged->value = job->fresh ? sum / (ranks / 2)
                    : bench_ns(ticks) / 1e3 / 2 / (double)job->count;
}

static struct plan_figures plan_speed(const struct bench_job *job)
{
    struct plan_figures figures = { NAN, NAN, NAN };
    double us = bench_ns(job->ticks) / 1e3;
    double messages = (double)job->count;

    if (job->test == BENCH_BIDIRECTIONAL)
        messages *= 2;
    figures.value = messages / us;
    if (job->test != BENCH_RATE)
        figures.value *= (double)job->bytes;
    return figures;
}

/* Moves job->count messages; *figures is meant for rank 0. */
static bool plan_repeat(struct plan *plan, struct plan_figures *figures)
{
    struct bench_job *job = &plan->job;
    uint64_t begun;
    double *all;

    bench_limit(plan->options->limit_s);
    begun = bench_ticks();
    if (!plan_move(plan))
        return false;
    job->sequence += job->count;
    if (!plan_exchanges(job->test)) {
        *figures = plan_speed(job);
        return true;
    }
    *figures = plan_rounds(job, plan->participants);
    if (job->test != BENCH_PAIRS || plan->participants == 2)
        return true;
    if (!bench_gather(plan->driver, plan->participants,
                      (double[]){ figures->value, figures->best,
                                  figures->p99 }, 3, &all))
        return false;
    if (all != NULL)
        plan_merge(figures, all, plan->participants, job,
                   bench_ticks() - begun);
    free(all);
    return true;
}

/* ---- one series --------------------------------------------------------- */

static bool plan_tell(struct plan *plan, uint64_t count)
{
    struct bench_driver *driver = plan->driver;

    plan->job.count = count;
    for (int rank = 1; rank < plan->participants; rank++)
        if (!driver->send(driver, rank, &count, sizeof(count)))
            return false;
    return true;
}

/*
 * So many messages a repetition has at least.  A stream whose window is never
 * full, or that ends as soon as it is, would be a burst: nobody waits for
 * anybody in it, and only its first buffers are used.
 */
static uint64_t plan_least(const struct bench_job *job)
{
    return plan_exchanges(job->test) ? PLAN_FEW : PLAN_WINDOWS * job->window;
}

/* Finds the count that takes as long as a repetition shall, or is the least. */
static bool plan_calibrate(struct plan *plan, uint64_t *count)
{
    double wanted = plan->options->time_ms * 1e6;
    uint64_t most = plan_exchanges(plan->job.test) ? BENCH_SAMPLES : PLAN_MANY;
    uint64_t least = plan_least(&plan->job);
    struct plan_figures figures;

    *count = plan->job.bytes >= PLAN_BIG ? 1 : 16;
    for (int tries = 0; tries < 12; tries++) {
        double begun = (double)bench_system_ns(), taken, factor;

        if (!plan_tell(plan, *count) || !plan_repeat(plan, &figures))
            return false;
        taken = (double)bench_system_ns() - begun + 1;
        factor = wanted / taken;
        if (factor < 1.5 && tries > 0)
            break;
        /* The first ones are slow: connections, page faults. */
        factor = fmin(factor, 16);
        *count = (uint64_t)fmax((double)*count * factor, 1);
        if (*count >= most) {
            *count = most;
            break;
        }
    }
    if (*count < least)
        *count = least;
    return true;
}

static int plan_order(const void *left, const void *right)
{
    double a = ((const struct plan_figures *)left)->value;
    double b = ((const struct plan_figures *)right)->value;

    return (a > b) - (a < b);
}

/* What its results say of how they were measured; kept, as they are. */
static const char *plan_mode(const struct plan *plan)
{
    static char mode[128];

    if (plan->job.test != BENCH_OVERLAP
        || plan->options->work_us == BENCH_WORK_US)
        return plan->driver->mode;
    snprintf(mode, sizeof(mode), "%s/work:%g", plan->driver->mode,
             plan->options->work_us);
    return mode;
}

static void plan_report(struct plan *plan, double waited)
{
    static const char *const units[BENCH_TESTS] = {
        [BENCH_LATENCY] = "us", [BENCH_OVERLAP] = "us", [BENCH_PAIRS] = "us",
        [BENCH_RING] = "us", [BENCH_STAR] = "us",
        [BENCH_BANDWIDTH] = "MB/s", [BENCH_BIDIRECTIONAL] = "MB/s",
        [BENCH_RATE] = "M/s"
    };
    const struct bench_job *job = &plan->job;
    unsigned count = plan->options->repetitions;
    struct plan_figures *f = plan->figures;
    struct bench_result result = {
        .who = plan->driver->who, .test = bench_test_name(job->test),
        .mode = plan_mode(plan), .buffers = job->fresh ? "fresh" : "reused",
        .ranks = plan->participants, .bytes = job->bytes,
        .window = plan_exchanges(job->test) ? 0 : job->window,
        .unit = units[job->test], .best = NAN, .p99 = NAN,
        .repetitions = count, .waited = waited
    };

    qsort(f, count, sizeof(*f), plan_order);
    result.value = (f[(count - 1) / 2].value + f[count / 2].value) / 2;
    result.low = f[0].value;
    result.high = f[count - 1].value;
    for (unsigned i = 0; i < count; i++)
        result.best = fmin(result.best, f[i].best);
    /* That of the repetition in the middle. */
    result.p99 = f[count / 2].p99;
    bench_report(&result);
}

/*
 * How much of the series the rank that others disturbed most stood in line for
 * a cpu, in percent; on rank 0.
 */
static bool plan_waited(struct plan *plan, double *most)
{
    double time = (double)(bench_system_ns() - plan->begun_ns) + 1;
    double mine = 100 * (bench_waited_ns() - plan->waited_ns) / time, *all;

    if (!bench_gather(plan->driver, plan->participants, &mine, 1, &all))
        return false;
    *most = mine;
    for (int rank = 1; rank < plan->participants && all != NULL; rank++)
        *most = fmax(*most, all[rank]);
    free(all);
    return true;
}

static bool plan_lead(struct plan *plan)
{
    uint64_t count;
    double waited;

    if (!plan_calibrate(plan, &count))
        return false;
    for (unsigned i = 0; i < plan->options->repetitions; i++)
        if (!plan_tell(plan, count) || !plan_repeat(plan, &plan->figures[i]))
            return false;
    if (!plan_tell(plan, 0) || !plan_waited(plan, &waited))
        return false;
    plan_report(plan, waited);
    return true;
}

static bool plan_follow(struct plan *plan)
{
    struct bench_driver *driver = plan->driver;
    struct plan_figures figures;
    double waited;

    for (;;) {
        uint64_t *count = &plan->job.count;

        if (!driver->receive(driver, 0, count, sizeof(*count)))
            return false;
        if (*count == 0)
            return plan_waited(plan, &waited);
        if (!plan_repeat(plan, &figures))
            return false;
    }
}

static bool plan_series(struct plan *plan, enum bench_test test, size_t bytes,
                        unsigned window)
{
    bool good;

    if (plan->driver->rank >= plan->participants
        || (plan->driver->most > 0 && bytes > plan->driver->most))
        return true;
    if (!plan_job_init(plan, test, bytes, window))
        return false;
    plan->begun_ns = bench_system_ns();
    plan->waited_ns = bench_waited_ns();
    good = plan->driver->rank == 0 ? plan_lead(plan) : plan_follow(plan);
    plan_job_fini(plan);
    return good;
}

static bool plan_mesh(struct plan *plan, size_t bytes)
{
    bool good;

    if (plan->driver->most > 0 && bytes > plan->driver->most)
        return true;
    if (!plan_job_init(plan, BENCH_MESH, bytes, 1))
        return false;
    bench_limit(plan->options->limit_s);
    good = bench_mesh(plan->driver, &plan->job);
    plan_job_fini(plan);
    return good;
}

/* ---- all of it ---------------------------------------------------------- */

static const size_t plan_sizes[] = {
    8, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304
};
static const size_t plan_rate_sizes[] = { 8 };
static const size_t plan_overlap_sizes[] = { 8, 65536, 1048576 };
static const size_t plan_many_sizes[] = { 8, 65536 };
static const size_t plan_mesh_sizes[] = { 1024 };
static const unsigned plan_windows[] = { 64 };
static const unsigned plan_rate_windows[] = { 64, 256, 1024 };

#define PLAN_COUNT(array) (unsigned)(sizeof(array) / sizeof((array)[0]))

/* What is asked for, else what suits the test. */
static unsigned plan_choose_sizes(const struct plan *plan,
                                  enum bench_test test, const size_t **sizes)
{
    if (plan->options->size_count > 0) {
        *sizes = plan->options->sizes;
        return plan->options->size_count;
    }
    if (test == BENCH_RATE) {
        *sizes = plan_rate_sizes;
        return PLAN_COUNT(plan_rate_sizes);
    }
    if (test == BENCH_OVERLAP) {
        *sizes = plan_overlap_sizes;
        return PLAN_COUNT(plan_overlap_sizes);
    }
    if (test == BENCH_MESH) {
        *sizes = plan_mesh_sizes;
        return PLAN_COUNT(plan_mesh_sizes);
    }
    if (test == BENCH_PAIRS || test == BENCH_RING || test == BENCH_STAR) {
        *sizes = plan_many_sizes;
        return PLAN_COUNT(plan_many_sizes);
    }
    *sizes = plan_sizes;
    return PLAN_COUNT(plan_sizes);
}

static unsigned plan_choose_windows(const struct plan *plan,
                                    enum bench_test test,
                                    const unsigned **windows)
{
    *windows = test == BENCH_RATE ? plan_rate_windows : plan_windows;
    if (plan_exchanges(test) || plan->options->window_count == 0)
        return test == BENCH_RATE ? PLAN_COUNT(plan_rate_windows)
                                  : PLAN_COUNT(plan_windows);
    *windows = plan->options->windows;
    return plan->options->window_count;
}

static bool plan_test(struct plan *plan, enum bench_test test)
{
    const size_t *sizes;
    const unsigned *windows;
    unsigned size_count = plan_choose_sizes(plan, test, &sizes);
    unsigned window_count = plan_choose_windows(plan, test, &windows);

    plan->participants = bench_participants(test, plan->driver->size);
    if (test == BENCH_INIT || test == BENCH_MEMORY || test == BENCH_IDLE) {
        bench_limit(plan->options->limit_s);
        return plan->driver->special(plan->driver, test);
    }
    if (test == BENCH_MESH) {
        for (unsigned s = 0; s < size_count; s++)
            if (!plan_mesh(plan, sizes[s]))
                return false;
        return true;
    }
    for (unsigned w = 0; w < window_count; w++)
        for (unsigned s = 0; s < size_count; s++)
            if (!plan_series(plan, test, sizes[s], windows[w]))
                return false;
    return true;
}

bool bench_run(struct bench_driver *driver,
               const struct bench_options *options)
{
    static char mode[96];
    struct plan plan = { .driver = driver, .options = options };
    bool good = true;

    if (options->offset > 0) {
        snprintf(mode, sizeof(mode), "%s/offset:%zu", driver->mode,
                 options->offset);
        driver->mode = mode;
    }
    if (driver->size < 2) {
        bench_say("at least 2 ranks are needed, but there is only 1: is it"
                  " started by its launcher, as in tprun -n 2 tpperf?");
        return false;
    }
    plan.figures = calloc(options->repetitions, sizeof(*plan.figures));
    if (plan.figures == NULL) {
        bench_say("out of memory");
        return false;
    }
    if (options->tests & BENCH_BIT(BENCH_OVERLAP))
        plan.work = bench_work_turns(options->work_us);
    for (int test = 0; test < BENCH_TESTS && good; test++)
        if (options->tests & BENCH_BIT(test))
            good = plan_test(&plan, (enum bench_test)test);
    free(plan.figures);
    bench_limit(0);
    return good;
}
