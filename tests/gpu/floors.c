/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a GPU itself takes, beside which tp's figures stand in RESULTS.md: one
 * process, one device, the driver and nothing of ours.  Prints lines of
 *
 *     NAME,BYTES,VALUE,UNIT
 *
 * the median of some repetitions.  A kernel is launched where the driver
 * compiles one, which the test double does not.
 */
#include "config.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/gpu/device.h"

enum { ROUNDS = 15, INNER = 50 };

static const struct tpg_cuda *cuda;
static cu_stream stream;

static double floors_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int floors_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

typedef void floors_fn(void *arg);

/* Microseconds of one call. */
static double floors_median(floors_fn *run, void *arg, int inner)
{
    double samples[ROUNDS];

    run(arg);
    for (int i = 0; i < ROUNDS; i++) {
        double begun = floors_now();

        for (int j = 0; j < inner; j++)
            run(arg);
        samples[i] = (floors_now() - begun) / inner;
    }
    qsort(samples, ROUNDS, sizeof(samples[0]), floors_compare);
    return samples[ROUNDS / 2];
}

static void floors_time(const char *name, size_t bytes, double us)
{
    printf("%s,%zu,%.2f,us\n", name, bytes, us);
}

static void floors_speed(const char *name, size_t bytes, double us)
{
    printf("%s,%zu,%.0f,MB/s\n", name, bytes, (double)bytes / us);
}

/* ---- copies -------------------------------------------------------------- */

struct floors_copy {
    void *to, *from;
    size_t bytes;
};

static void floors_copy(void *arg)
{
    const struct floors_copy *copy = arg;

    tpx_device_copy(copy->to, copy->from, copy->bytes, stream);
    tpx_device_sync(stream);
}

static void floors_copies(const char *name, void *to, void *from, size_t most)
{
    static const size_t sizes[] = { 8, 65536, 1 << 20, 16 << 20, 256 << 20,
                                    (size_t)1 << 30 };

    for (size_t i = 0; i < TPB_COUNT(sizes); i++) {
        struct floors_copy copy = { to, from, sizes[i] };

        if (sizes[i] > most)
            break;
        if (i == 0)
            floors_time(name, 8, floors_median(floors_copy, &copy, INNER));
        else
            floors_speed(name, sizes[i],
                         floors_median(floors_copy, &copy, 1));
    }
}

/* ---- events, enqueueing, kernels ----------------------------------------- */

static void floors_event(void *arg)
{
    cu_event event = arg;

    TPX_CU(cuda->cuEventRecord(event, stream));
    while (cuda->cuEventQuery(event) == CU_NOT_READY)
        continue;
}

static void floors_copy_event(void *arg)
{
    void **parts = arg;

    tpx_device_copy(parts[0], parts[1], 8, stream);
    floors_event(parts[2]);
}

static void floors_enqueue(void *arg)
{
    void **parts = arg;

    tpx_device_copy(parts[0], parts[1], 8, stream);
}

struct floors_kernel {
    int (*load)(void **module, const void *image);
    int (*find)(void **function, void *module, const char *name);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y,
                  unsigned grid_z, unsigned block_x, unsigned block_y,
                  unsigned block_z, unsigned shared, cu_stream stream,
                  void **parameters, void **extra);
    void *function;
};

static void floors_launch(void *arg)
{
    const struct floors_kernel *kernel = arg;

    TPX_CU(kernel->launch(kernel->function, 1, 1, 1, 1, 1, 1, 0, stream, NULL,
                          NULL));
    tpx_device_sync(stream);
}

static void floors_kernels(void)
{
    static const char image[] = ".version 6.0\n.target sm_50\n"
        ".address_size 64\n.visible .entry nothing()\n{\n    ret;\n}\n";
    void *library = dlopen(getenv("TP_CUDA_LIBRARY"), RTLD_NOW);
    struct floors_kernel kernel = { 0 };
    void *module;
    const struct {
        const char *name;
        void *place;
    } symbols[] = { { "cuModuleLoadData", &kernel.load },
                    { "cuModuleGetFunction", &kernel.find },
                    { "cuLaunchKernel", &kernel.launch } };

    for (size_t i = 0; i < TPB_COUNT(symbols); i++) {
        void *symbol = library != NULL ? dlsym(library, symbols[i].name)
                                       : NULL;

        if (symbol == NULL)
            return;
        memcpy(symbols[i].place, &symbol, sizeof(symbol));
    }
    if (kernel.load(&module, image) == CU_OK
        && kernel.find(&kernel.function, module, "nothing") == CU_OK)
        floors_time("launch-and-wait", 0,
                    floors_median(floors_launch, &kernel, INNER));
}

int main(int argc, char **argv)
{
    size_t most = argc > 1 ? strtoull(argv[1], NULL, 10) : (size_t)1 << 30;
    void *a, *b, *host, *parts[3];
    cu_event event;

    cuda = tpx_device_driver();
    tpx_device_use(0);
    stream = tpx_device_stream();
    a = tpx_device_malloc(most);
    b = tpx_device_malloc(most);
    TPX_CU(cuda->cuMemHostAlloc(&host, most, 0));
    TPX_CU(cuda->cuEventCreate(&event, CU_EVENT_NO_TIMING));
    parts[0] = a;
    parts[1] = b;
    parts[2] = event;
    floors_time("event", 0, floors_median(floors_event, event, INNER));
    floors_time("copy-and-event", 8,
                floors_median(floors_copy_event, parts, INNER));
    floors_time("enqueue", 8, floors_median(floors_enqueue, parts, INNER));
    tpx_device_sync(stream);
    floors_kernels();
    floors_copies("device-to-device", a, b, most);
    floors_copies("device-to-host", host, a, most);
    floors_copies("host-to-device", a, host, most);
    TPX_CU(cuda->cuEventDestroy_v2(event));
    TPX_CU(cuda->cuMemFreeHost(host));
    TPX_CU(cuda->cuMemFree_v2((cu_pointer)(uintptr_t)a));
    TPX_CU(cuda->cuMemFree_v2((cu_pointer)(uintptr_t)b));
    return 0;
}
