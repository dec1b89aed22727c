/* SPDX-License-Identifier: BSD-3-Clause */
/* tpperf: how fast tp moves messages between the ranks of a job. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/calibrate.h"
#include "bench/clock.h"
#include "bench/report.h"
#include "bench/tpperf.h"

enum { PERF_LOOK_MS = 200 };

/* ---- for the other files ------------------------------------------------ */

bool perf_say(tp_pipe *pipe, const char *what, tp_status status)
{
    const char *error = pipe != NULL ? tp_pipe_error(pipe) : "";

    bench_say("%s%s%s: %s%s%s", what, pipe != NULL ? ", " : "",
              pipe != NULL ? tp_pipe_peer(pipe) : "", tp_strerror(status),
              *error != '\0' ? ": " : "", error);
    return false;
}

tp_pipe *perf_pipe(struct perf *perf, int rank)
{
    tp_pipe *pipe = NULL;
    tp_status status = tp_pipe_to_rank(perf->context, rank, &pipe);

    if (status != TP_OK)
        perf_say(NULL, "tp_pipe_to_rank", status);
    return pipe;
}

void perf_done(struct perf *perf)
{
    atomic_store_explicit(&perf->over, 1, memory_order_release);
    if (perf->waiting == PERF_SLEEP)
        sem_post(&perf->wake);
}

void perf_fail(struct perf *perf, tp_pipe *pipe, const char *what,
               tp_status status)
{
    if (perf->failed)
        return;
    perf->failed = true;
    perf_say(pipe, what, status);
    perf_done(perf);
}

void perf_wrong(struct perf *perf, const struct bench_job *job,
                uint64_t number)
{
    if (perf->failed)
        return;
    perf->failed = true;
    (void)bench_wrong(job, number);
    perf_done(perf);
}

void perf_stop(struct perf *perf)
{
    perf->failed = true;
    tp_finalize(perf->context);
    perf->context = NULL;
}

static bool perf_over(struct perf *perf)
{
    return atomic_load_explicit(&perf->over, memory_order_acquire) != 0;
}

/*
 * Looking up now and then: with automatic progress the last callback may run
 * on the context's thread after the question whether all is over and before
 * tp_wait(), which then has nothing to wait for.
 */
static tp_status perf_pass_time(struct perf *perf)
{
    tp_status status;

    switch (perf->waiting) {
    case PERF_POLL:
        return tp_progress(perf->context, NULL);
    case PERF_SLEEP:
        while (sem_wait(&perf->wake) != 0)
            continue;
        return TP_OK;
    case PERF_LOOK:
        status = tp_wait(perf->context, PERF_LOOK_MS, NULL);
        return status == TP_ERR_TIMEOUT ? TP_OK : status;
    default:
        return tp_wait(perf->context, -1, NULL);
    }
}

bool perf_await(struct perf *perf)
{
    while (!perf_over(perf)) {
        tp_status status = perf_pass_time(perf);

        if (status != TP_OK)
            return perf_say(NULL, "waiting", status);
    }
    atomic_store_explicit(&perf->over, 0, memory_order_relaxed);
    return !perf->failed;
}

/* ---- messages ----------------------------------------------------------- */

/* The host's memory is what a tensor is in that says nothing else. */
static void perf_locate(const struct perf *perf, tp_tensor *tensor)
{
    if (!perf->options->on_device)
        return;
    tensor->device = perf_device();
    tensor->stream = perf_device_stream();
}

/* Where buffer `index` of a message begins, or the message ends. */
static size_t perf_offset(const struct perf *perf, const struct bench_job *job,
                          size_t index)
{
    size_t buffers = perf->options->buffers;

    return job->bytes / buffers * index
           + job->bytes % buffers * index / buffers;
}

static size_t perf_length(const struct perf *perf, const struct bench_job *job,
                          size_t index)
{
    return perf_offset(perf, job, index + 1) - perf_offset(perf, job, index);
}

static void perf_payloads(const struct perf *perf, const struct bench_job *job,
                          unsigned char *data, tp_message *message)
{
    message->payload_count = perf->options->buffers;
    for (size_t i = 0; i < message->payload_count; i++)
        message->payloads[i] = (tp_payload){
            .data = data + perf_offset(perf, job, i),
            .length = perf_length(perf, job, i) };
}

static void perf_tensor_list(const struct perf *perf,
                             const struct bench_job *job, unsigned char *data,
                             tp_message *message)
{
    message->tensor_count = perf->options->buffers;
    for (size_t i = 0; i < message->tensor_count; i++) {
        message->tensors[i] = (tp_tensor){
            .data = data + perf_offset(perf, job, i),
            .length = perf_length(perf, job, i),
            .target = { TP_DEVICE_ANY, 0 } };
        perf_locate(perf, &message->tensors[i]);
    }
}

bool perf_message(const struct perf *perf, const struct bench_job *job,
                  void *data, struct perf_message *to)
{
    unsigned buffers = perf->options->buffers;
    bool tensors = perf_tensors(perf);

    memset(to, 0, sizeof(*to));
    to->message.metadata = perf->metadata;
    to->message.metadata_length = perf->options->metadata;
    to->message.payloads = &to->payload;
    to->message.tensors = &to->tensor;
    if (buffers > 1) {
        to->several = calloc(buffers, tensors ? sizeof(tp_tensor)
                                              : sizeof(tp_payload));
        if (to->several == NULL) {
            bench_say("out of memory");
            return false;
        }
        to->message.payloads = to->several;
        to->message.tensors = to->several;
    }
    if (tensors)
        perf_tensor_list(perf, job, data, &to->message);
    else
        perf_payloads(perf, job, data, &to->message);
    return true;
}

void perf_message_free(struct perf_message *message)
{
    free(message->several);
    message->several = NULL;
}

tp_status perf_expect_several(const struct perf *perf,
                              const struct bench_job *job,
                              const tp_message *skeleton)
{
    unsigned buffers = perf->options->buffers;
    bool tensors = perf_tensors(perf);

    if (skeleton->metadata_length != perf->options->metadata
        || skeleton->payload_count != (tensors ? 0 : buffers)
        || skeleton->tensor_count != (tensors ? buffers : 0))
        return TP_ERR_PROTOCOL;
    for (size_t i = 0; i < buffers; i++)
        if ((tensors ? skeleton->tensors[i].length
                     : skeleton->payloads[i].length)
            != perf_length(perf, job, i))
            return TP_ERR_PROTOCOL;
    return TP_OK;
}

void perf_place_tensor(const struct perf *perf, tp_message *skeleton,
                       void *data)
{
    skeleton->tensors[0].data = data;
    perf_locate(perf, &skeleton->tensors[0]);
}

void perf_place_several(const struct perf *perf, const struct bench_job *job,
                        tp_message *skeleton, void *data)
{
    unsigned char *bytes = data;

    for (size_t i = 0; i < skeleton->payload_count; i++)
        skeleton->payloads[i].data = bytes + perf_offset(perf, job, i);
    for (size_t i = 0; i < skeleton->tensor_count; i++) {
        skeleton->tensors[i].data = bytes + perf_offset(perf, job, i);
        perf_locate(perf, &skeleton->tensors[i]);
    }
}

void perf_settle(const struct perf *perf)
{
    if (perf->options->on_device)
        perf_device_settle();
}

/* ---- the driver --------------------------------------------------------- */

static bool perf_send(struct bench_driver *driver, int rank, const void *data,
                      size_t length)
{
    tp_pipe *pipe = perf_pipe(perf_of(driver), rank);
    tp_status status;

    if (pipe == NULL)
        return false;
    status = tp_pipe_send(pipe, data, length);
    return status == TP_OK || perf_say(pipe, "send", status);
}

static bool perf_receive(struct bench_driver *driver, int rank, void *data,
                         size_t length)
{
    tp_pipe *pipe = perf_pipe(perf_of(driver), rank);
    tp_status status;
    size_t arrived;

    if (pipe == NULL)
        return false;
    status = tp_pipe_recv(pipe, data, length, &arrived);
    if (status == TP_OK && arrived != length)
        status = TP_ERR_PROTOCOL;
    return status == TP_OK || perf_say(pipe, "receive", status);
}

static void *perf_allocate(struct bench_driver *driver, size_t length)
{
    tp_device cpu = { TP_DEVICE_CPU, 0 };
    void *memory = NULL;
    tp_status status = tp_alloc(perf_of(driver)->context, length, cpu,
                                &memory);

    if (status != TP_OK)
        perf_say(NULL, "tp_alloc", status);
    return memory;
}

static void perf_release(struct bench_driver *driver, void *memory)
{
    tp_free(perf_of(driver)->context, memory);
}

/* ---- start and end ------------------------------------------------------ */

/* Who drives: what was asked for, else what the environment says. */
static const char *perf_progress(const struct bench_options *options)
{
    const char *progress = options->progress;

    if (progress == NULL)
        progress = getenv("TP_PROGRESS");
    return progress == NULL || *progress == '\0' ? "auto" : progress;
}

static void perf_ways(struct perf *perf)
{
    const struct bench_options *options = perf->options;
    const char *progress = perf_progress(options);
    char metadata[32] = "", buffers[24] = "";

    perf->waiting = strcmp(progress, "manual") == 0   ? PERF_WAIT
                    : strcmp(progress, "thread") == 0 ? PERF_SLEEP
                                                      : PERF_LOOK;
    if (options->poll)
        perf->waiting = PERF_POLL;
    if (options->metadata > 0)
        snprintf(metadata, sizeof(metadata), "/metadata:%zu",
                 options->metadata);
    if (options->buffers > 1)
        snprintf(buffers, sizeof(buffers), "/buffers:%u", options->buffers);
    snprintf(perf->mode, sizeof(perf->mode), "%s%s%s%s%s%s%s%s", progress,
             options->blocking ? "/blocking" : "",
             options->poll ? "/poll" : "", options->borrow ? "/borrow" : "",
             options->tensors ? "/tensors" : "",
             metadata, buffers,
             options->memory ? "/tp_alloc"
             : options->on_device ? "/cuda" : "");
}

static tp_progress_mode perf_mode(const struct bench_options *options)
{
    const char *progress = perf_progress(options);

    return strcmp(progress, "manual") == 0   ? TP_PROGRESS_MANUAL
           : strcmp(progress, "thread") == 0 ? TP_PROGRESS_THREAD
                                             : TP_PROGRESS_AUTO;
}

static bool perf_init(struct perf *perf)
{
    tp_options wanted = TP_OPTIONS_INIT;
    const struct bench_options *options = perf->options;
    uint64_t begun;
    tp_status status;

    wanted.progress = perf_mode(options);
    if (options->metadata > 0) {
        perf->metadata = calloc(1, options->metadata);
        if (perf->metadata == NULL) {
            bench_say("out of memory");
            return false;
        }
    }
    perf->rss_before_kib = perf_rss_kib();
    perf->private_before_kib = perf_private_kib();
    begun = bench_ticks();
    status = tp_init(&wanted, &perf->context);
    if (status != TP_OK)
        return perf_say(NULL, "tp_init", status);
    perf->init_ms = bench_ns(bench_ticks() - begun) / 1e6;
    if (options->pin)
        bench_pin(tp_local_rank(perf->context));
    if (options->on_device && !perf_device_open(perf))
        return false;
    perf_ways(perf);
    perf->driver = (struct bench_driver){
        .who = options->who != NULL ? options->who : "tp",
        .mode = perf->mode, .state = perf,
        .rank = tp_rank(perf->context), .size = tp_size(perf->context),
        .local = tp_local_size(perf->context),
        .send = perf_send, .receive = perf_receive,
        .exchange = perf_exchange, .stream = perf_stream,
        .overlap = perf_overlap,
        .allocate = options->on_device ? perf_device_allocate
                    : options->memory ? perf_allocate : NULL,
        .release = options->on_device ? perf_device_release : perf_release,
        .all_buffers = true, .on_device = options->on_device,
        .special = perf_special
    };
    sem_init(&perf->wake, 0, 0);
    return true;
}

/* How rank 0 reaches rank 1, into the report. */
static void perf_plan(struct perf *perf)
{
    char *plan = NULL;
    tp_pipe *pipe;

    if (perf->context == NULL || perf->driver.rank != 0
        || perf->driver.size < 2)
        return;
    pipe = perf_pipe(perf, 1);
    if (pipe != NULL && tp_pipe_explain(pipe, &plan) == TP_OK)
        bench_report_plan(plan);
    free(plan);
}

/* Leaving is the last part of the test of starting. */
static bool perf_finalize(struct perf *perf)
{
    struct bench_result result = {
        .who = perf->driver.who, .test = "finalize",
        .mode = perf->mode, .buffers = "-", .ranks = perf->driver.size,
        .unit = "ms", .best = NAN, .p99 = NAN, .repetitions = 1,
        .waited = NAN
    };
    uint64_t begun = bench_ticks();
    tp_status status = tp_finalize(perf->context);

    if (status != TP_OK)
        return perf_say(NULL, "tp_finalize", status);
    result.value = bench_ns(bench_ticks() - begun) / 1e6;
    result.low = result.high = result.value;
    if (perf->options->tests & BENCH_BIT(BENCH_INIT))
        bench_report(&result);
    return true;
}

int main(int argc, char **argv)
{
    static const struct bench_usage usage = {
        .program = "tpperf", .start = "tprun -n N tpperf",
        .purpose = "Measure how fast messages move between ranks.",
        .scope = BENCH_TP, .tests = BENCH_BIT(BENCH_TESTS) - 1
    };
    struct bench_options options;
    struct perf perf = { .options = &options };
    int status;
    bool good;

    if (!bench_parse(argc, argv, &usage, &options, &status))
        return status;
    if (options.calibrate)
        return calibrate(&options);
    if (options.plot != NULL && !bench_plot_possible(options.plot))
        return 1;
    bench_clock_init();
    bench_limit(options.limit_s);
    if (!perf_init(&perf))
        return 1;
    bench_report_open(options.format, perf.driver.rank != 0);
    bench_report_plot(options.plot);
    good = bench_run(&perf.driver, &options);
    bench_limit(options.limit_s);
    if (good && options.format == BENCH_JSON)
        perf_plan(&perf);
    if (perf.context != NULL)
        good = perf_finalize(&perf) && good;
    free(perf.metadata);
    return bench_report_close() && good ? 0 : 1;
}
