/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Messages to and fro, the whole way: a descriptor arrives, memory is named,
 * the message is read (or borrowed), a callback tells, the answer is written.
 *
 * Reused buffers: callbacks alone keep it going.  Fresh ones: after each round
 * the main thread rewrites its buffer and waits for the other to be ready.
 *
 * Or both ranks write at once, and work while the messages are under way.
 */
#include "bench/clock.h"
#include "bench/tpperf.h"

struct exchange {
    struct perf *perf;
    struct bench_job *job;
    struct bench_role role;
    tp_pipe *out, *in;
    struct perf_message message;
    bool begins;                   /* a round: writes before it has read */
    bool timed;                    /* from then on until it has read */
    bool rounds;                   /* the main thread begins each, and has
                                      rewritten the buffer */
    uint64_t round;
    uint64_t begun;                /* of a leader's round, in ticks */
    bool written, caught;          /* what this round has seen */
};

static void exchange_next(struct exchange *exchange);

static bool exchange_bad(struct exchange *exchange, tp_pipe *pipe,
                         const char *what, tp_status status)
{
    if (status == TP_OK)
        return false;
    perf_fail(exchange->perf, pipe, what, status);
    return true;
}

static void exchange_written(tp_pipe *pipe, tp_status status,
                             tp_message *message, void *arg)
{
    struct exchange *exchange = arg;

    (void)message;
    if (exchange_bad(exchange, pipe, "write", status))
        return;
    exchange->written = true;
    if (exchange->caught)
        exchange_next(exchange);
}

static void exchange_write(struct exchange *exchange)
{
    exchange_bad(exchange, exchange->out, "write",
                 tp_pipe_write(exchange->out, &exchange->message.message,
                               exchange_written, exchange));
}

/* A follower answers; who began has a round that is over as soon as his buffer
 * is his own again too.  What was borrowed, or NULL, is given back when the
 * other does not wait for us any more. */
static void exchange_caught(struct exchange *exchange, tp_message *borrowed)
{
    struct bench_job *job = exchange->job;

    exchange->caught = true;
    if (exchange->begins) {
        perf_settle(exchange->perf);
        if (exchange->timed)
            job->samples[exchange->round] = bench_ticks() - exchange->begun;
    } else {
        if (!job->fresh)
            perf_touch(exchange->perf, job, job->send[0],
                       job->sequence + exchange->round);
        exchange_write(exchange);
    }
    if (borrowed != NULL
        && exchange_bad(exchange, exchange->in, "release",
                        tp_pipe_release(exchange->in, borrowed)))
        return;
    if (exchange->begins && exchange->written)
        exchange_next(exchange);
}

static bool exchange_verify(struct exchange *exchange, bool right)
{
    struct bench_job *job = exchange->job;

    if (right)
        return true;
    perf_wrong(exchange->perf, job, job->sequence + exchange->round);
    return false;
}

static void exchange_read(tp_pipe *pipe, tp_status status, tp_message *message,
                          void *arg)
{
    struct exchange *exchange = arg;
    struct bench_job *job = exchange->job;

    (void)message;
    if (exchange_bad(exchange, pipe, "read", status)
        || !exchange_verify(exchange,
                            perf_right(exchange->perf, job, job->receive[0],
                                        job->sequence + exchange->round)))
        return;
    exchange_caught(exchange, NULL);
}

static void exchange_borrowed(tp_pipe *pipe, tp_status status,
                              tp_message *message, void *arg)
{
    struct exchange *exchange = arg;
    struct bench_job *job = exchange->job;

    if (exchange_bad(exchange, pipe, "borrow", status)
        || !exchange_verify(exchange,
                            bench_right_here(job, perf_data(exchange->perf,
                                                            message),
                                             job->sequence
                                             + exchange->round)))
        return;
    exchange_caught(exchange, message);
}

static void exchange_arrived(tp_pipe *pipe, tp_status status,
                             tp_message *skeleton, void *arg)
{
    struct exchange *exchange = arg;

    if (status == TP_OK)
        status = perf_expect(exchange->perf, exchange->job, skeleton);
    if (exchange_bad(exchange, pipe, "read_descriptor", status))
        return;
    if (exchange->perf->options->borrow) {
        status = tp_pipe_borrow(pipe, skeleton, exchange_borrowed, exchange);
        exchange_bad(exchange, pipe, "borrow", status);
        return;
    }
    perf_place(exchange->perf, exchange->job, skeleton,
               exchange->job->receive[0]);
    status = tp_pipe_read(pipe, skeleton, exchange_read, exchange);
    exchange_bad(exchange, pipe, "read", status);
}

/* Begins a round: everybody waits for the other's message. */
static void exchange_begin(struct exchange *exchange)
{
    exchange->written = exchange->caught = false;
    if (exchange_bad(exchange, exchange->in, "read_descriptor",
                     tp_pipe_read_descriptor(exchange->in, exchange_arrived,
                                             exchange)))
        return;
    if (!exchange->begins)
        return;
    if (!exchange->rounds)
        perf_touch(exchange->perf, exchange->job, exchange->job->send[0],
                    exchange->job->sequence + exchange->round);
    if (exchange->timed)
        exchange->begun = bench_ticks();
    exchange_write(exchange);
}

static void exchange_next(struct exchange *exchange)
{
    exchange->round++;
    if (exchange->rounds || exchange->round == exchange->job->count)
        perf_done(exchange->perf);
    else
        exchange_begin(exchange);
}

/* One round with a rewritten buffer.  A follower is ready when it has armed
 * its read: the message shall not have to wait for it. */
static bool exchange_fresh(struct exchange *exchange)
{
    struct bench_driver *driver = &exchange->perf->driver;

    perf_touch(exchange->perf, exchange->job, exchange->job->send[0],
                exchange->job->sequence + exchange->round);
    if (exchange->role.leads) {
        if (!bench_ready(driver, &exchange->role))
            return false;
        exchange_begin(exchange);
    } else {
        exchange_begin(exchange);
        if (!bench_ready(driver, &exchange->role))
            return false;
    }
    return perf_await(exchange->perf);
}

static bool exchange_run(struct exchange *exchange)
{
    if (!exchange->job->fresh) {
        exchange_begin(exchange);
        return perf_await(exchange->perf);
    }
    while (exchange->round < exchange->job->count)
        if (!exchange_fresh(exchange))
            return false;
    return true;
}

/* The round is over when the work is done, and both messages are. */
static bool exchange_overlap(struct exchange *exchange)
{
    struct bench_job *job = exchange->job;

    for (uint64_t k = 0; k < job->count; k++) {
        uint64_t begun;

        perf_touch(exchange->perf, job, job->send[0], job->sequence + k);
        begun = bench_ticks();
        exchange_begin(exchange);
        bench_work(job->work);
        if (!perf_await(exchange->perf))
            return false;
        if (exchange->role.leads)
            job->samples[k] = bench_ticks() - begun;
    }
    return true;
}

static bool exchange_all(struct bench_driver *driver, struct bench_job *job,
                         bool overlap)
{
    struct perf *perf = perf_of(driver);
    struct bench_role role = bench_role(job, driver->rank, driver->size);
    struct exchange exchange = {
        .perf = perf, .job = job, .role = role,
        .begins = overlap || role.leads, .timed = role.leads && !overlap,
        .rounds = overlap || job->fresh
    };
    bool good;

    exchange.out = perf_pipe(perf, role.out);
    exchange.in = perf_pipe(perf, role.in);
    if (exchange.out == NULL || exchange.in == NULL
        || !perf_message(perf, job, job->send[0], &exchange.message))
        return false;
    good = overlap ? exchange_overlap(&exchange) : exchange_run(&exchange);
    if (!good)
        perf_stop(perf);
    perf_message_free(&exchange.message);
    return good;
}

bool perf_exchange(struct bench_driver *driver, struct bench_job *job)
{
    return job->blocking ? bench_exchange(driver, job)
                         : exchange_all(driver, job, false);
}

bool perf_overlap(struct bench_driver *driver, struct bench_job *job)
{
    return exchange_all(driver, job, true);
}
