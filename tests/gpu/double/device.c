/* SPDX-License-Identifier: BSD-3-Clause */
/* The test double of libcuda: its settings, devices, contexts, and faults. */
#include "config.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/double/double.h"

pthread_mutex_t double_lock = PTHREAD_MUTEX_INITIALIZER;
struct double_settings double_settings;

static struct cu_context_s device_contexts[DOUBLE_DEVICES];
static pid_t device_pid;               /* who called cuInit(); 0: nobody */
static struct sigaction device_before;

/* The contexts that are current in this thread, the last on top. */
static _Thread_local struct cu_context_s *device_stack[32];
static _Thread_local int device_depth;

void double_report(const char *format, ...)
{
    va_list list;

    fprintf(stderr, "cudadouble: pid %d: ", (int)getpid());
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    signal(SIGABRT, SIG_DFL);
    abort();
}

/* ---- variables ----------------------------------------------------------- */

static bool device_plain(void)
{
    return getenv("CUDADOUBLE_PLAIN") != NULL;
}

const char *double_variable(const char *name)
{
    return device_plain() ? NULL : getenv(name);
}

/* ---- planted faults ------------------------------------------------------ */

/* CUDADOUBLE_FAIL=function:nth:code[,...]; the nth call and all later ones if
 * nth ends with a plus. */
static cu_result device_fault(const char *name)
{
    static struct {
        const char *name;
        int calls;
    } counts[128];
    const char *plan = double_variable("CUDADOUBLE_FAIL");
    size_t length = strlen(name);
    int calls = 0;

    if (plan == NULL || *plan == '\0')
        return CU_OK;
    for (size_t i = 0; i < 128; i++) {
        if (counts[i].name == NULL)
            counts[i].name = name;
        if (strcmp(counts[i].name, name) == 0) {
            calls = ++counts[i].calls;
            break;
        }
    }
    for (; plan != NULL; plan = strchr(plan, ',')) {
        char *end;
        int nth;
        bool onwards;

        plan += *plan == ',';
        if (strncmp(plan, name, length) != 0 || plan[length] != ':')
            continue;
        nth = (int)strtol(plan + length + 1, &end, 10);
        onwards = *end == '+';
        end += onwards;
        if (*end == ':' && (calls == nth || (onwards && calls > nth)))
            return (cu_result)strtol(end + 1, NULL, 10);
    }
    return CU_OK;
}

/* What the manual says needs a current context gives CU_INVALID_CONTEXT here
 * without, also where some driver may be more patient. */
static bool device_needs_context(const char *name)
{
    static const char *const needs[] = {
        "cuStream", "cuEventCreate", "cuEventDestroy", "cuEventRecord",
        "cuIpcGet", "cuIpcOpen", "cuIpcClose", "cuMemAlloc_", "cuMemAllocM",
        "cuMemAllocAsync", "cuMemFree", "cuMemHost", "cuMemGetAddressRange",
        "cuMemcpy", "cuMemset", "cuPointerSet", "cuFlush"
    };

    for (size_t i = 0; i < sizeof(needs) / sizeof(needs[0]); i++)
        if (strncmp(name, needs[i], strlen(needs[i])) == 0)
            return true;
    return false;
}

cu_result double_begin(const char *name)
{
    cu_result code;

    pthread_mutex_lock(&double_lock);
    if (device_pid != getpid())
        return CU_NOT_INITIALIZED;
    code = device_fault(name);
    if (code != CU_OK)
        return code;
    if (device_depth == 0 && device_needs_context(name))
        return CU_INVALID_CONTEXT;
    return double_capture_allows_locked(name);
}

cu_result double_end(cu_result code)
{
    pthread_mutex_unlock(&double_lock);
    return code;
}

/* ---- who touches device memory ------------------------------------------- */

static void device_segv(int number, siginfo_t *info, void *more)
{
    struct double_range *range = double_range_find_locked(info->si_addr);

    (void)number;
    (void)more;
    if (range != NULL)
        double_report("the host touches device memory: device %d, buffer %llu,"
                      " offset %zu%s", range->device,
                      (unsigned long long)range->id,
                      (size_t)((unsigned char *)info->si_addr - range->start),
                      range->freed ? ", which is free" : "");
    sigaction(SIGSEGV, &device_before, NULL);  /* happens again, to them */
}

/* ---- starting ------------------------------------------------------------ */

static long device_number(const char *name, long initial)
{
    const char *text = double_variable(name);

    return text != NULL && *text != '\0' ? strtol(text, NULL, 10) : initial;
}

/* CUDADOUBLE_INIT, a socket, gets a byte when cuInit() has begun, and gives one
 * when that may go on. */
static void device_gate(void)
{
    int fd = (int)device_number("CUDADOUBLE_INIT", -1);
    char byte = 0;

    if (fd >= 0 && (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1))
        double_report("CUDADOUBLE_INIT is no socket");
}

cu_result cuInit(unsigned flags)
{
    struct sigaction action = { .sa_flags = SA_SIGINFO | SA_ONSTACK };
    const char *mode = double_variable("CUDADOUBLE_MODE");
    cu_result code = CU_OK;

    device_gate();
    pthread_mutex_lock(&double_lock);
    if (device_pid != 0) {
        code = device_pid == getpid() ? CU_OK : CU_NOT_INITIALIZED;
        return double_end(code);
    }
    code = flags != 0 ? CU_INVALID_VALUE : device_fault("cuInit");
    double_settings.devices = (int)device_number("CUDADOUBLE_DEVICES",
                                                 device_plain() ? 1 : 2);
    if (double_settings.devices > DOUBLE_DEVICES)
        double_settings.devices = DOUBLE_DEVICES;
    double_settings.devices = double_visible(
        double_settings.devices, (int)device_number("CUDADOUBLE_FIRST", 0));
    if (code == CU_OK && double_settings.devices < 1)
        code = CU_NO_DEVICE;
    if (code != CU_OK)
        return double_end(code);
    double_settings.mode = device_plain() ? DOUBLE_DELAY : DOUBLE_LAZY;
    if (mode != NULL && strcmp(mode, "eager") == 0)
        double_settings.mode = DOUBLE_EAGER;
    if (mode != NULL && strcmp(mode, "delay") == 0)
        double_settings.mode = DOUBLE_DELAY;
    double_settings.peers = device_number("CUDADOUBLE_P2P", 1) != 0;
    double_settings.vmm = device_number("CUDADOUBLE_VMM", 1) != 0;
    double_settings.reuse = device_number("CUDADOUBLE_REUSE", 0) != 0;
    double_settings.flags = device_number("CUDADOUBLE_FLAGS", 1) != 0;
    double_settings.seed = (unsigned)device_number("CUDADOUBLE_SEED", 1);
    action.sa_sigaction = device_segv;
    sigaction(SIGSEGV, &action, &device_before);
    device_pid = getpid();
    return double_end(CU_OK);
}

cu_result cuDriverGetVersion(int *version)
{
    *version = (int)device_number("CUDADOUBLE_VERSION", 13000);
    return CU_OK;
}

cu_result cuGetErrorName(cu_result code, const char **name)
{
    switch (code) {
    case CU_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case CU_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CU_INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case CU_INVALID_HANDLE: *name = "CUDA_ERROR_INVALID_HANDLE"; break;
    case CU_NOT_READY: *name = "CUDA_ERROR_NOT_READY"; break;
    default: *name = "CUDA_ERROR_UNKNOWN"; break;
    }
    return CU_OK;
}

/* ---- devices and contexts ------------------------------------------------ */

bool double_valid_device(int device)
{
    return device >= 0 && device < double_settings.devices;
}

cu_result cuDeviceGetCount(int *count)
{
    DOUBLE_BEGIN();
    *count = double_settings.devices;
    return double_end(CU_OK);
}

cu_result cuDeviceGet(cu_device *device, int ordinal)
{
    DOUBLE_BEGIN();
    if (!double_valid_device(ordinal))
        return double_end(CU_INVALID_DEVICE);
    *device = ordinal;
    return double_end(CU_OK);
}

cu_result cuDeviceGetUuid_v2(cu_uuid *uuid, cu_device device)
{
    DOUBLE_BEGIN();
    if (!double_valid_device(device))
        return double_end(CU_INVALID_DEVICE);
    double_uuid(double_place(device), uuid);
    return double_end(CU_OK);
}

cu_result cuDeviceGetPCIBusId(char *text, int size, cu_device device)
{
    DOUBLE_BEGIN();
    if (!double_valid_device(device) || size < 13)
        return double_end(CU_INVALID_VALUE);
    snprintf(text, (size_t)size, "0000:%02X:00.0",
             0x10 * (double_place(device) + 1));
    return double_end(CU_OK);
}

cu_result cuDeviceGetAttribute(int *value, int attribute, cu_device device)
{
    DOUBLE_BEGIN();
    if (!double_valid_device(device))
        return double_end(CU_INVALID_DEVICE);
    switch (attribute) {
    case CU_ATTRIBUTE_UNIFIED:
        *value = 1;
        break;
    case CU_ATTRIBUTE_COMPUTE_MODE:
        *value = (int)device_number("CUDADOUBLE_COMPUTE_MODE", 0);
        break;
    case CU_ATTRIBUTE_VMM:
    case CU_ATTRIBUTE_POSIX_FD:
        *value = double_settings.vmm;
        break;
    default:
        *value = double_rdma_attribute(attribute);
    }
    return double_end(CU_OK);
}

cu_result cuDeviceCanAccessPeer(int *can, cu_device device, cu_device peer)
{
    DOUBLE_BEGIN();
    if (!double_valid_device(device) || !double_valid_device(peer))
        return double_end(CU_INVALID_DEVICE);
    *can = device != peer && double_settings.peers;
    return double_end(CU_OK);
}

cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device)
{
    DOUBLE_BEGIN();
    if (!double_valid_device(device))
        return double_end(CU_INVALID_DEVICE);
    device_contexts[device].device = device;
    device_contexts[device].retained++;
    if (device_contexts[device].legacy == NULL)
        device_contexts[device].legacy
            = double_stream_new_locked(&device_contexts[device]);
    *context = &device_contexts[device];
    return double_end(CU_OK);
}

cu_result cuDevicePrimaryCtxGetState(cu_device device, unsigned *flags,
                                     int *active)
{
    DOUBLE_BEGIN();
    if (!double_valid_device(device))
        return double_end(CU_INVALID_DEVICE);
    *flags = 0;
    *active = device_contexts[device].retained > 0;
    return double_end(CU_OK);
}

cu_result cuDevicePrimaryCtxRelease_v2(cu_device device)
{
    DOUBLE_BEGIN();
    if (!double_valid_device(device) || device_contexts[device].retained == 0)
        return double_end(CU_INVALID_CONTEXT);
    device_contexts[device].retained--;
    return double_end(CU_OK);
}

cu_result cuCtxGetFlags(unsigned *flags)
{
    struct cu_context_s *context;

    DOUBLE_BEGIN();
    context = double_context_locked();
    if (context == NULL)
        return double_end(CU_INVALID_CONTEXT);
    *flags = context->flags;
    return double_end(CU_OK);
}

cu_result cuCtxSetFlags(unsigned flags)
{
    struct cu_context_s *context;

    DOUBLE_BEGIN();
    context = double_context_locked();
    if (context == NULL)
        return double_end(CU_INVALID_CONTEXT);
    context->flags = flags;
    return double_end(CU_OK);
}

bool double_synchronous_locked(int device)
{
    return double_valid_device(device)
           && (device_contexts[device].flags & CU_CONTEXT_SYNC_MEMOPS) != 0;
}

struct cu_context_s *double_context_locked(void)
{
    return device_depth > 0 ? device_stack[device_depth - 1] : NULL;
}

cu_result cuCtxPushCurrent_v2(cu_context context)
{
    DOUBLE_BEGIN();
    if (context == NULL || context->retained == 0)
        return double_end(CU_INVALID_CONTEXT);
    if (device_depth == 32)
        double_report("32 contexts are pushed: somebody does not pop");
    device_stack[device_depth++] = context;
    return double_end(CU_OK);
}

cu_result cuCtxPopCurrent_v2(cu_context *context)
{
    DOUBLE_BEGIN();
    if (device_depth == 0)
        return double_end(CU_INVALID_CONTEXT);
    *context = device_stack[--device_depth];
    return double_end(CU_OK);
}

cu_result cuCtxGetCurrent(cu_context *context)
{
    DOUBLE_BEGIN();
    *context = double_context_locked();
    return double_end(CU_OK);
}

cu_result cuCtxSetCurrent(cu_context context)
{
    DOUBLE_BEGIN();
    if (device_depth > 0)
        device_depth--;
    if (context != NULL)
        device_stack[device_depth++] = context;
    return double_end(CU_OK);
}
