/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Pipeline parallelism: rank 0 feeds batches, every other rank is a stage that
 * works on a batch and passes it on, the last one hands it back, and rank 0
 * checks every byte.  A stage keeps the batch on a GPU if there is one, else in
 * CPU memory; its neighbours need not know.  Nobody waits for a GPU: the work
 * is put on a stream, and so are the messages before and after it.
 *
 *     tprun -n 4 ./pipeline [BATCHES [BYTES]]
 *
 * A stage's work is to set its own slice of the batch.  A real one would link
 * with CUDA; this one looks for the driver, so that it runs anywhere.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp.h>

enum { LIMIT_MS = 60000 };

/* What travels with a batch. */
struct label {
    uint32_t batch, gpus;          /* how many stages so far were on a GPU */
};

/* What is used of libcuda, as cuda.h declares it. */
struct gpu {
    int (*cuInit)(unsigned flags);
    int (*cuDeviceGetCount)(int *count);
    int (*cuDevicePrimaryCtxRetain)(void **context, int device);
    int (*cuCtxSetCurrent)(void *context);
    int (*cuStreamCreateWithPriority)(void **stream, unsigned flags,
                                      int priority);
    int (*cuStreamSynchronize)(void *stream);
    int (*cuMemsetD8Async)(uint64_t pointer, unsigned char byte, size_t size,
                           void *stream);
};

struct pipeline {
    tp_context *context;
    int rank, size;
    tp_pipe *before, *after;
    size_t bytes;
    struct gpu gpu;
    tp_device device;              /* where this rank keeps its batch */
    void *stream;                  /* NULL on the CPU */
    unsigned char *batch;
};

/* Ends the whole job and tells the reason. */
static void give_up(struct pipeline *line, const char *what, tp_status status,
                    const tp_pipe *pipe)
{
    const char *why = pipe != NULL ? tp_pipe_error(pipe) : "";
    char text[512];

    snprintf(text, sizeof(text), "%s: %s%s%s", what, tp_strerror(status),
             *why != '\0' ? ": " : "", why);
    tp_abort(line->context, 1, text);
}

/* ---- the GPU ------------------------------------------------------------ */

static int gpu_find(struct gpu *gpu)
{
    static const char *const names[] = {
        "cuInit", "cuDeviceGetCount", "cuDevicePrimaryCtxRetain",
        "cuCtxSetCurrent", "cuStreamCreateWithPriority",
        "cuStreamSynchronize", "cuMemsetD8Async"
    };
    const char *path = getenv("TP_CUDA_LIBRARY");
    void *library = dlopen(path != NULL ? path : "libcuda.so.1", RTLD_NOW);
    void **functions = (void **)gpu;

    if (library == NULL)
        return 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        functions[i] = dlsym(library, names[i]);
        if (functions[i] == NULL)
            return 0;
    }
    return 1;
}

/* A stage takes the GPU whose turn it is; 0: there is none. */
static int gpu_open(struct pipeline *line)
{
    struct gpu *gpu = &line->gpu;
    void *context;
    int count = 0, device;

    if (!gpu_find(gpu) || gpu->cuInit(0) != 0
        || gpu->cuDeviceGetCount(&count) != 0 || count == 0)
        return 0;
    device = tp_local_rank(line->context) % count;
    if (gpu->cuDevicePrimaryCtxRetain(&context, device) != 0
        || gpu->cuCtxSetCurrent(context) != 0
        || gpu->cuStreamCreateWithPriority(&line->stream, 1, 0) != 0)
        return 0;
    line->device = (tp_device){ TP_DEVICE_CUDA, device };
    return 1;
}

/* ---- one batch ---------------------------------------------------------- */

static unsigned char batch_byte(int rank, uint32_t batch)
{
    return (unsigned char)((uint32_t)rank * 37 + batch * 11 + 1);
}

/* The slice that is that rank's. */
static size_t batch_slice(const struct pipeline *line, int rank)
{
    return line->bytes * (size_t)rank / (size_t)line->size;
}

/* Enqueued and not waited for, where there is a GPU. */
static void batch_work(struct pipeline *line, uint32_t batch)
{
    size_t from = batch_slice(line, line->rank);
    size_t to = batch_slice(line, line->rank + 1);
    unsigned char byte = batch_byte(line->rank, batch);

    if (line->device.type == TP_DEVICE_CPU)
        memset(line->batch + from, byte, to - from);
    else if (to > from && line->gpu.cuMemsetD8Async(
                 (uint64_t)(uintptr_t)line->batch + from, byte, to - from,
                 line->stream) != 0)
        give_up(line, "cuMemsetD8Async", TP_ERR_BACKEND, NULL);
}

static void batch_check(struct pipeline *line, uint32_t batch)
{
    char text[96];

    for (int rank = 0; rank < line->size; rank++)
        for (size_t i = batch_slice(line, rank);
             i < batch_slice(line, rank + 1); i++) {
            if (line->batch[i] == batch_byte(rank, batch))
                continue;
            snprintf(text, sizeof(text), "batch %u: byte %zu is wrong",
                     (unsigned)batch, i);
            tp_abort(line->context, 1, text);
        }
}

static void batch_send(struct pipeline *line, struct label label)
{
    tp_tensor tensor = {
        .data = line->batch, .length = line->bytes, .device = line->device,
        .target = { TP_DEVICE_ANY, 0 }, .stream = line->stream
    };
    tp_message message = { .metadata = &label,
                           .metadata_length = sizeof(label),
                           .tensors = &tensor, .tensor_count = 1 };
    tp_status status = tp_pipe_send_message(line->after, &message, LIMIT_MS);

    if (status != TP_OK)
        give_up(line, "sending a batch", status, line->after);
}

static struct label batch_receive(struct pipeline *line, uint32_t batch)
{
    struct label label = { 0, 0 };
    tp_message *skeleton;
    tp_status status = tp_pipe_recv_skeleton(line->before, &skeleton,
                                             LIMIT_MS);

    if (status != TP_OK)
        give_up(line, "waiting for a batch", status, line->before);
    if (skeleton->metadata_length == sizeof(label))
        memcpy(&label, skeleton->metadata, sizeof(label));
    if (skeleton->tensor_count != 1 || label.batch != batch
        || skeleton->tensors[0].length != line->bytes)
        give_up(line, "an unexpected batch", TP_ERR_PROTOCOL, NULL);
    skeleton->tensors[0].data = line->batch;
    skeleton->tensors[0].device = line->device;
    skeleton->tensors[0].stream = line->stream;
    status = tp_pipe_recv_message(line->before, skeleton, LIMIT_MS);
    if (status != TP_OK)
        give_up(line, "receiving a batch", status, line->before);
    return label;
}

/* ---- the ranks ---------------------------------------------------------- */

/* Of as many batches as there are stages none waits for rank 0 to be taken. */
static void feed(struct pipeline *line, uint32_t batches)
{
    uint32_t ahead = (uint32_t)line->size - 1;
    struct label label = { 0, 0 };

    for (uint32_t i = 0; i < batches + ahead; i++) {
        if (i >= ahead) {
            memset(line->batch, 0, line->bytes);
            label = batch_receive(line, i - ahead);
            batch_check(line, i - ahead);
        }
        if (i < batches) {
            memset(line->batch, 0xee, line->bytes);
            batch_work(line, i);
            batch_send(line, (struct label){ i, 0 });
        }
    }
    printf("%u batches of %zu bytes through %u stages, %u of them on GPUs:"
           " every byte right\n", (unsigned)batches, line->bytes,
           (unsigned)ahead, (unsigned)label.gpus);
}

static void stage(struct pipeline *line, uint32_t batches)
{
    for (uint32_t i = 0; i < batches; i++) {
        struct label label = batch_receive(line, i);

        batch_work(line, i);
        label.gpus += line->device.type == TP_DEVICE_CUDA;
        batch_send(line, label);
    }
    if (line->stream != NULL)
        line->gpu.cuStreamSynchronize(line->stream);
}

static int usage(void)
{
    fprintf(stderr, "usage: pipeline [BATCHES [BYTES]], with 2 ranks or "
            "more\n");
    return 2;
}

int main(int argc, char **argv)
{
    long batches = argc > 1 ? atol(argv[1]) : 8;
    long bytes = argc > 2 ? atol(argv[2]) : 1 << 20;
    struct pipeline line = { .device = { TP_DEVICE_CPU, 0 } };
    void *memory;
    tp_status status;

    if (batches < 1 || batches > 1000000 || bytes < 1)
        return usage();
    status = tp_init(NULL, &line.context);
    if (status != TP_OK) {
        fprintf(stderr, "tp_init: %s\n", tp_strerror(status));
        return 1;
    }
    line.rank = tp_rank(line.context);
    line.size = tp_size(line.context);
    line.bytes = (size_t)bytes;
    if (line.size < 2)
        return usage();
    if (line.rank > 0)
        gpu_open(&line);
    status = tp_alloc(line.context, line.bytes, line.device, &memory);
    if (status != TP_OK)
        give_up(&line, "memory for a batch", status, NULL);
    line.batch = memory;
    tp_pipe_to_rank(line.context, (line.rank + line.size - 1) % line.size,
                    &line.before);
    tp_pipe_to_rank(line.context, (line.rank + 1) % line.size, &line.after);
    if (line.rank == 0)
        feed(&line, (uint32_t)batches);
    else
        stage(&line, (uint32_t)batches);
    tp_free(line.context, memory);
    return tp_finalize(line.context) == TP_OK ? 0 : 1;
}
