/* SPDX-License-Identifier: BSD-3-Clause */
/* Loading libcuda, and the contexts of the devices. */
#include "config.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "gpu/cuda_driver.h"

enum { DRIVER_OLDEST = 11040 };

typedef cu_result driver_asker(int *devices);      /* cuDeviceGetCount() */

static struct {
    pthread_mutex_t lock;
    _Atomic uint64_t looked;           /* for the program's own, when it had
                                          loaded so many libraries */
    _Atomic(driver_asker *) ask;       /* of the program's own */
    _Atomic pid_t pid;                 /* who initialises it; 0: nobody has */
    _Atomic bool tried;                /* release: all below is there */
    tp_status status;
    struct tpb_error error;
    struct tpg_cuda cuda;
    _Atomic(cu_context) contexts[TPG_DEVICES];
} driver = { .lock = PTHREAD_MUTEX_INITIALIZER };

enum driver_group {
    DRIVER_CORE, DRIVER_IPC, DRIVER_VMM, DRIVER_FLAG, DRIVER_GDR, DRIVER_TEST
};

static const struct {
    const char *name;
    enum driver_group group;
    size_t place;
} driver_symbols[] = {
#define CUDA_SYMBOL(group, name, parameters) \
    { #name, DRIVER_##group, offsetof(struct tpg_cuda, name) },
#include "gpu/driver_symbols.def"
#undef CUDA_SYMBOL
};

static tp_status driver_resolve(void *library, const char *path)
{
    struct tpg_cuda *cuda = &driver.cuda;

    cuda->ipc = cuda->vmm = cuda->flag = true;
    for (size_t i = 0; i < TPB_COUNT(driver_symbols); i++) {
        void *symbol = dlsym(library, driver_symbols[i].name);

        memcpy((char *)cuda + driver_symbols[i].place, &symbol,
               sizeof(symbol));
        if (symbol != NULL)
            continue;
        if (driver_symbols[i].group == DRIVER_CORE)
            return tpb_fail(&driver.error, TP_ERR_NOT_SUPPORTED,
                            "%s is too old, it lacks %s (an NVIDIA driver for"
                            " CUDA 11.4 or later is needed)", path,
                            driver_symbols[i].name);
        cuda->ipc &= driver_symbols[i].group != DRIVER_IPC;
        cuda->vmm &= driver_symbols[i].group != DRIVER_VMM;
        cuda->flag &= driver_symbols[i].group != DRIVER_FLAG;
    }
    return TP_OK;
}

/* What the answers of cuInit() mean to people. */
static tp_status driver_refused(cu_result code)
{
    static const struct {
        cu_result code;
        const char *text;
    } meanings[] = {
        { CU_NO_DEVICE, "no CUDA device is visible (is there a GPU, does"
          " CUDA_VISIBLE_DEVICES hide it, is /dev/nvidia* in the container?)" },
        { CU_STUB_LIBRARY, "the libcuda found is the toolkit's stub, not a"
          " driver (its folder is in LD_LIBRARY_PATH)" },
        { CU_NOT_INITIALIZED, "the driver refuses to start (a fork() after"
          " CUDA was used, or the device files may not be opened)" },
        { CU_SYSTEM_DRIVER_MISMATCH, "the driver's library and its kernel"
          " module are of different versions (reboot after an update)" },
        { CU_COMPAT_NOT_SUPPORTED, "the compatibility libcuda does not support"
          " this GPU (take it out of LD_LIBRARY_PATH)" },
        { CU_NOT_PERMITTED, "the driver refuses permission (may this user open"
          " /dev/nvidia*?)" }
    };

    for (size_t i = 0; i < TPB_COUNT(meanings); i++)
        if (meanings[i].code == code)
            return tpb_fail(&driver.error, TP_ERR_NOT_SUPPORTED, "%s",
                            meanings[i].text);
    return tpb_fail(&driver.error, TP_ERR_NOT_SUPPORTED,
                    "the CUDA driver does not start: error %d", code);
}

static tp_status driver_devices(void)
{
    struct tpg_cuda *cuda = &driver.cuda;
    cu_result code = cuda->cuDriverGetVersion(&cuda->version);

    if (code == CU_OK && cuda->version < DRIVER_OLDEST)
        return tpb_fail(&driver.error, TP_ERR_NOT_SUPPORTED,
                        "the driver is for CUDA %d.%d, 11.4 is needed",
                        cuda->version / 1000, cuda->version % 1000 / 10);
    if (code == CU_OK)
        code = cuda->cuDeviceGetCount(&cuda->devices);
    if (code == CU_OK && cuda->devices == 0)
        code = CU_NO_DEVICE;
    if (cuda->devices > TPG_DEVICES)
        cuda->devices = TPG_DEVICES;
    for (int i = 0; code == CU_OK && i < cuda->devices; i++)
        code = cuda->cuDeviceGetUuid_v2(&cuda->uuids[i], i);
    return code == CU_OK ? TP_OK : driver_refused(code);
}

static tp_status driver_load(const char *path)
{
    void *library;
    tp_status status;
    cu_result code;

    if (strcmp(path, "none") == 0)
        return tpb_fail(&driver.error, TP_ERR_NOT_SUPPORTED,
                        "TP_CUDA_LIBRARY=none forbids the use of GPUs");
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return tpb_fail_load(&driver.error, TP_ERR_NOT_SUPPORTED,
                             "no NVIDIA driver here");
    status = driver_resolve(library, path);
    if (status != TP_OK)
        return status;
    code = driver.cuda.cuInit(0);
    return code == CU_OK ? driver_devices() : driver_refused(code);
}

/* Is this the child of a process that initialises it, or has? */
static bool driver_forked(void)
{
    pid_t pid = atomic_load(&driver.pid);

    return pid != 0 && pid != getpid();
}

/* The number comes before the lock: a child that finds the lock taken, by a
 * thread that it does not have, has to know it. */
static void driver_try(const char *path)
{
    pid_t nobody = 0;

    atomic_compare_exchange_strong(&driver.pid, &nobody, getpid());
    pthread_mutex_lock(&driver.lock);
    if (!atomic_load(&driver.tried)) {
        driver.status = driver_load(path);
        atomic_store(&driver.tried, true);
    }
    pthread_mutex_unlock(&driver.lock);
}

tp_status tpg_cuda_load(const struct tpb_settings *settings,
                        const struct tpg_cuda **cuda,
                        struct tpb_error *error)
{
    if (!atomic_load(&driver.tried) && !driver_forked())
        driver_try(settings->text[TPB_SET_CUDA_LIBRARY]);
    if (atomic_load(&driver.tried) && driver.status != TP_OK)
        return tpb_fail(error, driver.status, "%s", driver.error.text);
    if (driver_forked())
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                        "CUDA was started before the fork() that made this"
                        " process, and does not work in it");
    *cuda = &driver.cuda;
    return TP_OK;
}

const struct tpg_cuda *tpg_cuda_loaded(void)
{
    /* Pairs with the store in driver_try(). */
    return atomic_load(&driver.tried) && driver.status == TP_OK
           && !driver_forked() ? &driver.cuda : NULL;
}

static int driver_count(struct dl_phdr_info *info, size_t size, void *loads)
{
    (void)size;
    *(uint64_t *)loads = info->dlpi_adds;
    return 1;                      /* it is the same in each */
}

/* How many libraries have been loaded so far: 10 ns.  Whether a certain one
 * has takes dlopen() 80 us if not, since it looks for the file. */
static uint64_t driver_loads(void)
{
    uint64_t loads = 0;

    (void)dl_iterate_phdr(driver_count, &loads);
    return loads;
}

/* The program's own driver, if it has loaded one: what tells whether it is in
 * use; else NULL. */
static driver_asker *driver_look(const struct tpb_settings *settings)
{
    driver_asker *ask = atomic_load(&driver.ask);
    uint64_t loads;
    void *library, *symbol;

    if (ask != NULL)
        return ask;
    loads = driver_loads();
    if (loads == atomic_load_explicit(&driver.looked, memory_order_relaxed))
        return NULL;
    library = dlopen(settings->text[TPB_SET_CUDA_LIBRARY],
                     RTLD_NOW | RTLD_NOLOAD);
    symbol = library != NULL ? dlsym(library, "cuDeviceGetCount") : NULL;
    if (symbol == NULL) {
        atomic_store_explicit(&driver.looked, loads, memory_order_relaxed);
        return NULL;
    }
    memcpy(&ask, &symbol, sizeof(ask));
    atomic_store(&driver.ask, ask);
    return ask;
}

/* One that is loaded but not initialised has no memory yet.  To initialise it
 * is not for us: CUDA would not work in what the program forks later. */
const struct tpg_cuda *tpg_cuda_notice(const struct tpb_settings *settings)
{
    const struct tpg_cuda *cuda = tpg_cuda_loaded();
    driver_asker *ask;
    int devices;

    if (cuda != NULL || atomic_load(&driver.tried) || driver_forked())
        return cuda;
    ask = driver_look(settings);
    if (ask == NULL || ask(&devices) == CU_NOT_INITIALIZED)
        return NULL;
    return tpg_cuda_load(settings, &cuda, NULL) == TP_OK ? cuda : NULL;
}

tp_status tpg_cuda_fail(const struct tpg_cuda *cuda, cu_result code,
                        const char *what, struct tpb_error *error)
{
    const char *name = NULL;

    if (code == CU_OK)
        return TP_OK;
    if (cuda->cuGetErrorName(code, &name) != CU_OK || name == NULL)
        name = "unknown error";
    return tpb_fail(error, code == CU_OUT_OF_MEMORY ? TP_ERR_NO_MEMORY
                    : TP_ERR_BACKEND, "%s: %s (%d)", what, name, code);
}

tp_status tpg_cuda_context(const struct tpg_cuda *cuda, int device,
                           cu_context *context, struct tpb_error *error)
{
    tp_status status = TP_OK;

    if (device < 0 || device >= cuda->devices)
        return tpb_fail(error, TP_ERR_INVALID, "there is no CUDA device %d"
                        " here (%d visible)", device, cuda->devices);
    *context = atomic_load(&driver.contexts[device]);
    if (TPB_LIKELY(*context != NULL))
        return TP_OK;
    pthread_mutex_lock(&driver.lock);
    *context = atomic_load(&driver.contexts[device]);
    if (*context == NULL) {
        status = tpg_cuda_fail(cuda, cuda->cuDevicePrimaryCtxRetain(
            context, device), "the device's primary context", error);
        if (status == TP_OK)
            atomic_store(&driver.contexts[device], *context);
    }
    pthread_mutex_unlock(&driver.lock);
    return status;
}

tp_status tpg_cuda_enter(const struct tpg_cuda *cuda, int device,
                         struct tpb_error *error)
{
    cu_context context;
    tp_status status = tpg_cuda_context(cuda, device, &context, error);

    if (status != TP_OK)
        return status;
    tpg_cuda_calm(cuda);
    if (TPG_MUTANT(NO_PUSH))
        return TP_OK;
    status = tpg_cuda_fail(cuda, cuda->cuCtxPushCurrent_v2(context),
                           "cuCtxPushCurrent", error);
    if (status != TP_OK)
        tpg_cuda_stir(cuda);
    return status;
}

void tpg_cuda_leave(const struct tpg_cuda *cuda)
{
    cu_context context;

    if (!TPG_MUTANT(NO_PUSH))
        cuda->cuCtxPopCurrent_v2(&context);
    tpg_cuda_stir(cuda);
}

void tpg_cuda_settle(const struct tpg_cuda *cuda, int device,
                     cu_stream stream)
{
    if (tpg_cuda_enter(cuda, device, NULL) != TP_OK)
        return;
    cuda->cuStreamSynchronize(stream);
    tpg_cuda_leave(cuda);
}

/* What this thread's mode was, and how deep we are in. */
static _Thread_local int driver_mode;
static _Thread_local unsigned driver_depth;

void tpg_cuda_calm(const struct tpg_cuda *cuda)
{
    if (driver_depth++ > 0 || TPG_MUTANT(NO_CALM))
        return;
    driver_mode = CU_CAPTURE_RELAXED;
    cuda->cuThreadExchangeStreamCaptureMode(&driver_mode);
}

void tpg_cuda_stir(const struct tpg_cuda *cuda)
{
    if (--driver_depth == 0 && !TPG_MUTANT(NO_CALM))
        cuda->cuThreadExchangeStreamCaptureMode(&driver_mode);
}

cu_result tpg_event_query(const struct tpg_cuda *cuda, cu_event event)
{
    cu_result code;

    tpg_cuda_calm(cuda);
    code = cuda->cuEventQuery(event);
    tpg_cuda_stir(cuda);
    return code;
}

void tpg_event_destroy(const struct tpg_cuda *cuda, int device,
                       cu_event event)
{
    if (tpg_cuda_enter(cuda, device, NULL) != TP_OK)
        return;
    cuda->cuEventDestroy_v2(event);
    tpg_cuda_leave(cuda);
}

bool tpg_cuda_active(const struct tpg_cuda *cuda, int device)
{
    unsigned flags;
    int active = 0;

    return atomic_load(&driver.contexts[device]) != NULL
           || (cuda->cuDevicePrimaryCtxGetState(device, &flags, &active)
               == CU_OK && active != 0);
}

int tpg_cuda_any(const struct tpg_cuda *cuda)
{
    for (int device = 0; device < cuda->devices; device++)
        if (tpg_cuda_active(cuda, device))
            return device;
    return -1;
}

int tpg_cuda_find(const struct tpg_cuda *cuda, const cu_uuid *uuid)
{
    for (int i = 0; i < cuda->devices; i++)
        if (memcmp(&cuda->uuids[i], uuid, sizeof(*uuid)) == 0)
            return i;
    return -1;
}
