/* SPDX-License-Identifier: BSD-3-Clause */
/* Devices for tests. */
#include "config.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/device.h"

void tpx_device_choose(void)
{
    const char *build = getenv("TP_TEST_BUILD");
    char path[1024];

    if (getenv("TP_CUDA_LIBRARY") != NULL)
        return;
    snprintf(path, sizeof(path), "%s/.libs/libcudadouble.so",
             build != NULL ? build : ".");
    setenv("TP_CUDA_LIBRARY", path, 1);
}

void tpx_cu(cu_result code, const char *what)
{
    if (code == CU_OK)
        return;
    fprintf(stderr, "%s: CUDA error %d\n", what, code);
    abort();
}

/* Not by libtp's loader: a test linked with the installed library has none. */
static const struct tpg_cuda *device_load(void)
{
    static struct tpg_cuda cuda;
    static const struct {
        const char *name;
        size_t place;
    } symbols[] = {
#define CUDA_SYMBOL(group, name, parameters) \
        { #name, offsetof(struct tpg_cuda, name) },
#include "gpu/driver_symbols.def"
#undef CUDA_SYMBOL
    };
    void *library;

    tpx_device_choose();
    library = dlopen(getenv("TP_CUDA_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    for (size_t i = 0; i < TPB_COUNT(symbols); i++) {
        void *symbol = dlsym(library, symbols[i].name);

        memcpy((char *)&cuda + symbols[i].place, &symbol, sizeof(symbol));
    }
    TPX_CU(cuda.cuInit(0));
    TPX_CU(cuda.cuDeviceGetCount(&cuda.devices));
    return &cuda;
}

static const struct tpg_cuda *device_cuda;

static void device_load_once(void)
{
    device_cuda = device_load();
}

const struct tpg_cuda *tpx_device_driver(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, device_load_once);
    return device_cuda;
}

/* It is there before any thread: a new variable, or one that goes, moves those
 * that the double is looking through in another thread; one that changes does
 * not. */
static __attribute__((constructor)) void device_fails_not(void)
{
    setenv("CUDADOUBLE_FAIL", "", 0);
}

void tpx_device_fails(const char *plan)
{
    setenv("CUDADOUBLE_FAIL", plan, 1);
}

bool tpx_device_is_double(void)
{
    void *library;

    tpx_device_choose();
    library = dlopen(getenv("TP_CUDA_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    return library != NULL && dlsym(library, "cudadouble_flushes") != NULL
           && getenv("CUDADOUBLE_PLAIN") == NULL;
}

int tpx_device_number(int wanted)
{
    return wanted % tpx_device_driver()->devices;
}

void tpx_device_use(int device)
{
    const struct tpg_cuda *cuda = tpx_device_driver();
    cu_context context;

    TPX_CU(cuda->cuDevicePrimaryCtxRetain(&context,
                                          tpx_device_number(device)));
    TPX_CU(cuda->cuCtxSetCurrent(context));
}

cu_stream tpx_device_stream(void)
{
    cu_stream stream;

    TPX_CU(tpx_device_driver()->cuStreamCreateWithPriority(&stream,
                                                           CU_STREAM_PLAIN,
                                                           0));
    return stream;
}

void *tpx_device_malloc(size_t size)
{
    cu_pointer pointer;

    TPX_CU(tpx_device_driver()->cuMemAlloc_v2(&pointer, size));
    return (void *)(uintptr_t)pointer;
}

void tpx_device_copy(void *to, const void *from, size_t size, cu_stream s)
{
    TPX_CU(tpx_device_driver()->cuMemcpyAsync((cu_pointer)(uintptr_t)to,
                                              (cu_pointer)(uintptr_t)from,
                                              size, s));
}

void tpx_device_sync(cu_stream stream)
{
    TPX_CU(tpx_device_driver()->cuStreamSynchronize(stream));
}
