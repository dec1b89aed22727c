/* SPDX-License-Identifier: BSD-3-Clause */
/* The inside of tpperf: what its files share. */
#ifndef TPPERF_H
#define TPPERF_H

#include <semaphore.h>
#include <stdatomic.h>

#include "bench/bench.h"
#include "runtime/tp.h"

/* How the main thread passes the time while callbacks do the work. */
enum perf_waiting {
    PERF_WAIT,                 /* in tp_wait(): manual */
    PERF_LOOK,                 /* the same, looking up now and then: auto */
    PERF_POLL,                 /* around tp_progress() */
    PERF_SLEEP                 /* on a semaphore: thread */
};

struct perf {
    struct bench_driver driver;
    const struct bench_options *options;
    tp_context *context;
    char mode[80];             /* driver.mode: "auto", "manual/borrow" */
    void *metadata;            /* of each message: zeros; NULL for none */
    enum perf_waiting waiting;
    /* Set by callbacks, which never run two at a time, before `over`. */
    bool failed;
    _Atomic int over;          /* release: pairs with perf_await() */
    sem_t wake;
    /* tp_init(): for the tests that look at it */
    double init_ms;
    long rss_before_kib, private_before_kib;
};

static inline struct perf *perf_of(struct bench_driver *driver)
{
    return driver->state;
}

/* The pipe to a rank; NULL after it was said. */
tp_pipe *perf_pipe(struct perf *perf, int rank);

/* Says what failed on a pipe.  Returns false. */
bool perf_say(tp_pipe *pipe, const char *what, tp_status status);

/* From a callback: the main thread may go on.  perf_fail() also says why, if
 * nothing failed before. */
void perf_done(struct perf *perf);
void perf_fail(struct perf *perf, tp_pipe *pipe, const char *what,
               tp_status status);

/* As perf_fail(): a message's contents are not what they should be. */
void perf_wrong(struct perf *perf, const struct bench_job *job,
                uint64_t number);

/* Until one of these was called; false if something failed. */
bool perf_await(struct perf *perf);

/* After a failure, before memory goes that pending operations use: ends them
 * and the context. */
void perf_stop(struct perf *perf);

/* A message of a job's bytes, all in payloads or all in tensors. */
struct perf_message {
    tp_message message;
    tp_payload payload;            /* if it is one buffer */
    tp_tensor tensor;
    void *several;                 /* else what was allocated for them */
};
/* False: no memory, which was said. */
bool perf_message(const struct perf *perf, const struct bench_job *job,
                  void *data, struct perf_message *to);
void perf_message_free(struct perf_message *message);

static inline bool perf_tensors(const struct perf *perf)
{
    return perf->options->tensors || perf->options->on_device;
}

/* As the next two functions, of several buffers. */
tp_status perf_expect_several(const struct perf *perf,
                              const struct bench_job *job,
                              const tp_message *skeleton);
void perf_place_several(const struct perf *perf, const struct bench_job *job,
                        tp_message *skeleton, void *data);

/* Is a skeleton what the job sends?  Else TP_ERR_PROTOCOL.  perf_place() says
 * where it shall go. */
static inline tp_status perf_expect(const struct perf *perf,
                                    const struct bench_job *job,
                                    const tp_message *skeleton)
{
    bool tensor = perf_tensors(perf);

    if (perf->options->buffers > 1)
        return perf_expect_several(perf, job, skeleton);
    return skeleton->metadata_length != perf->options->metadata
           || skeleton->payload_count != !tensor
           || skeleton->tensor_count != tensor
           || (tensor ? skeleton->tensors[0].length
                      : skeleton->payloads[0].length) != job->bytes
           ? TP_ERR_PROTOCOL : TP_OK;
}
/* Where the bytes of a message of one buffer are, which are the host's. */
static inline void *perf_data(const struct perf *perf,
                              const tp_message *message)
{
    return perf_tensors(perf) ? message->tensors[0].data
                              : message->payloads[0].data;
}
void perf_place_tensor(const struct perf *perf, tp_message *skeleton,
                       void *data);
static inline void perf_place(const struct perf *perf,
                              const struct bench_job *job,
                              tp_message *skeleton, void *data)
{
    if (perf->options->buffers > 1)
        perf_place_several(perf, job, skeleton, data);
    else if (perf_tensors(perf))
        perf_place_tensor(perf, skeleton, data);
    else
        skeleton->payloads[0].data = data;
}

/* What arrived is there: with a device, waits for its stream. */
void perf_settle(const struct perf *perf);

/* tpperf_device.c: the rank's CUDA device.  open() says what is missing. */
/* Is the driver that would be used the one for tests? */
bool perf_device_is_double(void);
bool perf_device_open(struct perf *perf);
void *perf_device_allocate(struct bench_driver *driver, size_t length);
void perf_device_release(struct bench_driver *driver, void *memory);
tp_device perf_device(void);
void *perf_device_stream(void);
void perf_device_settle(void);
void perf_device_touch(const struct bench_job *job, void *buffer,
                       uint64_t number);
bool perf_device_right(const struct bench_job *job, void *buffer,
                       uint64_t number);

/* As bench_touch() and bench_right(), wherever the buffer lies. */
static inline void perf_touch(const struct perf *perf,
                              const struct bench_job *job, void *buffer,
                              uint64_t number)
{
    if (perf->options->on_device)
        perf_device_touch(job, buffer, number);
    else
        bench_touch(job, buffer, number);
}
static inline bool perf_right(const struct perf *perf,
                              const struct bench_job *job, void *buffer,
                              uint64_t number)
{
    return perf->options->on_device ? perf_device_right(job, buffer, number)
                                    : bench_right(job, buffer, number);
}

/* Members of the driver. */
bool perf_exchange(struct bench_driver *driver, struct bench_job *job);
bool perf_overlap(struct bench_driver *driver, struct bench_job *job);
bool perf_stream(struct bench_driver *driver, struct bench_job *job);
bool perf_special(struct bench_driver *driver, enum bench_test test);

/* Of tpperf_special.c: resident memory of this process, in KiB; all of it, and
 * what is nobody else's. */
long perf_rss_kib(void);
long perf_private_kib(void);

#endif
