/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Messages in memory of a CUDA device, for --memory cuda.  The driver is loaded
 * here too, beside libtp: its primary context is the same one.
 *
 * One stream orders all that a rank does.  So an answer starts when the message
 * is on the device, and the clock stops when the stream is through.
 */
#include "config.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "bench/tpperf.h"
#include "gpu/driver_abi.h"

enum { DEVICE_STAGE = 1 << 20 };

#define DEVICE_SYMBOLS(row) \
    row(cuInit, (unsigned flags)) \
    row(cuDeviceGetCount, (int *count)) \
    row(cuDevicePrimaryCtxRetain, (cu_context *context, cu_device device)) \
    row(cuCtxPushCurrent_v2, (cu_context context)) \
    row(cuCtxPopCurrent_v2, (cu_context *context)) \
    row(cuMemAlloc_v2, (cu_pointer *pointer, size_t size)) \
    row(cuMemFree_v2, (cu_pointer pointer)) \
    row(cuMemHostAlloc, (void **memory, size_t size, unsigned flags)) \
    row(cuMemcpyAsync, (cu_pointer to, cu_pointer from, size_t size, \
                        cu_stream stream)) \
    row(cuStreamCreateWithPriority, (cu_stream *stream, unsigned flags, \
                                     int priority)) \
    row(cuStreamSynchronize, (cu_stream stream))

#define DEVICE_MEMBER(name, parameters) cu_result (*name) parameters;
static struct {
    DEVICE_SYMBOLS(DEVICE_MEMBER)
    int index;
    cu_context context;
    cu_stream stream;
    unsigned char *stage;          /* pinned */
    size_t stage_size;
} device;

static bool device_good(cu_result code, const char *what)
{
    if (code == CU_OK)
        return true;
    bench_say("CUDA device %d: %s: error %d", device.index, what, code);
    return false;
}
#define DEVICE_GOOD(call) device_good(device.call, #call)

static void device_enter(void)
{
    device.cuCtxPushCurrent_v2(device.context);
}

static void device_leave(void)
{
    cu_context context;

    device.cuCtxPopCurrent_v2(&context);
}

static bool device_load(void)
{
    const char *path = getenv("TP_CUDA_LIBRARY");
    void *library = dlopen(path != NULL && *path != '\0' ? path
                           : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        const char *why = dlerror();

        bench_say("--memory cuda: no driver: %s", why != NULL ? why : "");
        return false;
    }
#define DEVICE_RESOLVE(name, parameters) { \
        void *symbol = dlsym(library, #name); \
        memcpy(&device.name, &symbol, sizeof(symbol)); \
        if (symbol == NULL) { \
            bench_say("--memory cuda: the driver has no " #name); \
            return false; \
        } \
    }
    DEVICE_SYMBOLS(DEVICE_RESOLVE)
    return true;
}

bool perf_device_is_double(void)
{
    const char *path = getenv("TP_CUDA_LIBRARY");
    void *library = path != NULL && *path != '\0'
                    ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    bool found = library != NULL
                 && dlsym(library, "cudadouble_flushes") != NULL;

    if (library != NULL)
        dlclose(library);
    return found;
}

bool perf_device_open(struct perf *perf)
{
    int wanted = perf->options->device, count = 0;
    bool good;

    if (!device_load() || !DEVICE_GOOD(cuInit(0))
        || !DEVICE_GOOD(cuDeviceGetCount(&count)))
        return false;
    if (count < 1 || wanted >= count) {
        bench_say("--memory cuda:%d: %d device%s visible", wanted, count,
                  count == 1 ? " is" : "s are");
        return false;
    }
    /* Without a number each rank of a host takes the next. */
    device.index = wanted >= 0 ? wanted
                   : tp_local_rank(perf->context) % count;
    if (!DEVICE_GOOD(cuDevicePrimaryCtxRetain(&device.context, device.index)))
        return false;
    device_enter();
    good = DEVICE_GOOD(cuStreamCreateWithPriority(&device.stream,
                                                  CU_STREAM_PLAIN, 0));
    device_leave();
    return good;
}

/* ---- memory -------------------------------------------------------------- */

static bool device_stage(size_t length)
{
    void *memory;

    if (device.stage_size >= length)
        return true;
    if (length < DEVICE_STAGE)
        length = DEVICE_STAGE;
    if (!DEVICE_GOOD(cuMemHostAlloc(&memory, length, CU_HOST_PORTABLE)))
        return false;
    device.stage = memory;         /* the smaller one lasts until the end */
    device.stage_size = length;
    return true;
}

static bool device_copy(void *to, const void *from, size_t length)
{
    return DEVICE_GOOD(cuMemcpyAsync((cu_pointer)(uintptr_t)to,
                                     (cu_pointer)(uintptr_t)from, length,
                                     device.stream))
           && DEVICE_GOOD(cuStreamSynchronize(device.stream));
}

void *perf_device_allocate(struct bench_driver *driver, size_t length)
{
    cu_pointer pointer = 0;
    bool good;

    (void)driver;
    device_enter();
    good = device_stage(length) && DEVICE_GOOD(cuMemAlloc_v2(&pointer, length));
    if (good) {
        bench_fill(device.stage, length, 0);
        good = device_copy((void *)(uintptr_t)pointer, device.stage, length);
    }
    device_leave();
    return good ? (void *)(uintptr_t)pointer : NULL;
}

void perf_device_release(struct bench_driver *driver, void *memory)
{
    (void)driver;
    device_enter();
    (void)DEVICE_GOOD(cuMemFree_v2((cu_pointer)(uintptr_t)memory));
    device_leave();
}

/* ---- messages ------------------------------------------------------------ */

tp_device perf_device(void)
{
    return (tp_device){ TP_DEVICE_CUDA, device.index };
}

void *perf_device_stream(void)
{
    return device.stream;
}

void perf_device_settle(void)
{
    device_enter();
    (void)DEVICE_GOOD(cuStreamSynchronize(device.stream));
    device_leave();
}

void perf_device_touch(const struct bench_job *job, void *buffer,
                       uint64_t number)
{
    if (!job->fresh && !job->verify)
        return;
    bench_fill(device.stage, job->bytes, 0);
    bench_touch(job, device.stage, number);
    device_enter();
    (void)device_copy(buffer, device.stage, job->bytes);
    device_leave();
}

bool perf_device_right(const struct bench_job *job, void *buffer,
                       uint64_t number)
{
    bool good;

    if (!job->verify)
        return true;
    device_enter();
    memset(device.stage, 0xee, job->bytes);
    good = device_copy(device.stage, buffer, job->bytes)
           && bench_right(job, device.stage, number)
           && device_copy(buffer, device.stage, job->bytes);
    device_leave();
    return good;
}
