/* SPDX-License-Identifier: BSD-3-Clause */
/* What memory is, and what becomes of claims that it is something else. */
#include "config.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/cuda_late.h"
#include "gpu/cuda_mem.h"
#include "gpu/gpu.h"
#include "tests/gpu/device.h"
#include "tests/lib/tpx.h"

enum { SIZE = 256 * 1024 };

static struct tpb_settings settings;
static struct tpg_gpu *gpu;
static const struct tpg_cuda *cuda;

static void start(void)
{
    struct tpb_error error = { "" };

    tpx_device_choose();
    ck_assert_int_eq(tpb_settings_load(&settings, &error), TP_OK);
    gpu = tpg_open(&settings);
    ck_assert_ptr_nonnull(gpu);
    ck_assert_ptr_null(tpg_cuda_loaded());
    ck_assert_msg(tpg_cuda_load(&settings, &cuda, &error) == TP_OK, "%s",
                  error.text);
    tpx_device_use(0);
}

static void stop(void)
{
    tpg_close(gpu);
    tpb_settings_fini(&settings);
}

static void is(const void *data, enum tpg_kind kind, enum tpg_route route,
               int device)
{
    struct tpg_memory memory;

    ck_assert_int_eq(tpg_memory_look(cuda, data, &memory, NULL), TP_OK);
    ck_assert_int_eq(memory.kind, kind);
    ck_assert_int_eq(memory.route, route);
    ck_assert_int_eq(memory.device, device);
}

START_TEST(every_kind)
{
    char here[16];
    void *pinned;
    cu_pointer pointer;
    tp_device device = { TP_DEVICE_CUDA, 1 };
    struct tpf_memory block;

    start();
    device.index = tpx_device_number(1);
    is(here, TPG_HOST, TPG_ROUTE_HOST, -1);
    TPX_CU(cuda->cuMemHostAlloc(&pinned, SIZE, 0));
    is(pinned, TPG_PINNED, TPG_ROUTE_HOST, -1);
    TPX_CU(cuda->cuMemFreeHost(pinned));
    TPX_CU(cuda->cuMemAllocManaged(&pointer, SIZE, 1));
    is((void *)(uintptr_t)pointer, TPG_MANAGED, TPG_ROUTE_STAGED, 0);
    is((char *)tpx_device_malloc(SIZE) + 77, TPG_MALLOC, TPG_ROUTE_LEGACY, 0);
    TPX_CU(cuda->cuMemAllocAsync(&pointer, SIZE, NULL));
    is((void *)(uintptr_t)pointer, TPG_POOL, TPG_ROUTE_STAGED, 0);
    ck_assert_int_eq(tpg_alloc(gpu, 1000, device, &block, NULL), TP_OK);
    is(block.address, TPG_VMM, TPG_ROUTE_FD, device.index);
    tpg_free(gpu, &block);
    stop();
}
END_TEST

START_TEST(alloc_without_vmm)
{
    tp_device device = { TP_DEVICE_CUDA, 0 };
    struct tpf_memory block;

    if (!tpx_device_is_double())
        return;                        /* drivers have it */
    setenv("CUDADOUBLE_VMM", "0", 1);
    start();
    ck_assert_int_eq(tpg_alloc(gpu, 1000, device, &block, NULL), TP_OK);
    is(block.address, TPG_MALLOC, TPG_ROUTE_LEGACY, 0);
    tpg_free(gpu, &block);
    stop();
}
END_TEST

/* A kernel of the program's may wait for a message: nothing waits for it. */
START_TEST(free_without_vmm)
{
    static uint32_t gate;
    tp_device device = { TP_DEVICE_CUDA, 0 };
    struct tpf_memory block;
    cu_stream stream;

    if (!tpx_device_is_double())
        return;                        /* drivers have it */
    setenv("CUDADOUBLE_VMM", "0", 1);
    start();
    stream = tpx_device_stream();
    TPX_CU(cuda->cuMemHostRegister_v2(&gate, sizeof(gate), 0));
    ck_assert_int_eq(tpg_alloc(gpu, SIZE, device, &block, NULL), TP_OK);
    TPX_CU(cuda->cuStreamWaitValue32_v2(stream, (cu_pointer)(uintptr_t)&gate,
                                        1, 1));
    tpg_free(gpu, &block);
    ck_assert_int_eq(cuda->cuStreamQuery(stream), CU_NOT_READY);
    gate = 1;
    tpx_device_sync(stream);
    tpg_late_now();
    is(block.address, TPG_HOST, TPG_ROUTE_HOST, -1);
    TPX_CU(cuda->cuMemHostUnregister(&gate));
    stop();
}
END_TEST

START_TEST(alloc_refused)
{
    tp_device none = { TP_DEVICE_CUDA, 99 }, first = { TP_DEVICE_CUDA, 0 };
    struct tpb_error error = { "" };
    struct tpf_memory block;

    start();
    ck_assert_int_eq(tpg_alloc(gpu, 1000, none, &block, &error),
                     TP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "no CUDA device 99"));
    ck_assert_int_eq(tpg_alloc(gpu, (size_t)1 << 50, first, &block, &error),
                     TP_ERR_NO_MEMORY);
    stop();
}
END_TEST

static void claimed(void *data, size_t length, tp_device device,
                    tp_status wanted, const char *words)
{
    struct tpf_buffer buffer = { .data = data, .length = length,
                                 .device = device };
    struct tpb_error error = { "" };

    ck_assert_int_eq(tpg_claim(gpu, &buffer, &error), wanted);
    ck_assert_msg(strstr(error.text, words) != NULL, "%s", error.text);
}

START_TEST(wrong_claims)
{
    tp_device cpu = { TP_DEVICE_CPU, 0 }, zero = { TP_DEVICE_CUDA, 0 },
              one = { TP_DEVICE_CUDA, 1 }, many = { TP_DEVICE_CUDA, 5 };
    char here[16];
    char *there;

    start();
    there = tpx_device_malloc(SIZE);
    claimed(here, 16, cpu, TP_OK, "");
    claimed(here, 16, zero, TP_ERR_INVALID, "is memory of the host");
    claimed(there, SIZE, zero, TP_OK, "");
    claimed(there, SIZE, cpu, TP_ERR_INVALID, "not CPU memory");
    claimed(there, SIZE, one, TP_ERR_INVALID, tpx_device_number(1) == 1
            ? "on CUDA device 0, not on 1" : "no CUDA device 1");
    claimed(there, SIZE, many, TP_ERR_INVALID, "no CUDA device 5");
    claimed(there + 1, SIZE, zero, TP_ERR_INVALID, "past the end");
    stop();
}
END_TEST

/* A program's driver is noticed when it is in use, and not initialised for it:
 * what it forks could not use CUDA. */
START_TEST(noticed)
{
    tp_device cpu = { TP_DEVICE_CPU, 0 };
    struct tpb_error error = { "" };
    char here[16], *there;

    ck_assert(tpx_device_is_double() || getenv("TP_CUDA_LIBRARY") != NULL);
    ck_assert_int_eq(tpb_settings_load(&settings, &error), TP_OK);
    gpu = tpg_open(&settings);
    ck_assert_ptr_nonnull(gpu);
    claimed(here, 16, cpu, TP_OK, "");
    ck_assert(tpg_absent(gpu));
    ck_assert_ptr_null(tpg_cuda_loaded());
    tpx_device_use(0);
    there = tpx_device_malloc(SIZE);
    claimed(there, SIZE, cpu, TP_ERR_INVALID, "not CPU memory");
    ck_assert(!tpg_absent(gpu));
    stop();
}
END_TEST

static void *load(void *arg)
{
    (void)arg;
    return (void *)(intptr_t)tpg_cuda_load(&settings, &cuda, NULL);
}

/* In the child of a process whose other thread initialises the driver. */
static int load_in_child(void)
{
    struct tpf_buffer buffer = { .data = &buffer, .length = 1,
                                 .device = { TP_DEVICE_CPU, 0 } };
    struct tpb_error error = { "" };

    alarm(60);
    return tpg_cuda_load(&settings, &cuda, &error) != TP_ERR_NOT_SUPPORTED
           || strstr(error.text, "before the fork()") == NULL
           || tpg_claim(gpu, &buffer, &error) != TP_OK;
}

START_TEST(forked_meanwhile)
{
    struct tpb_error error = { "" };
    char number[16], byte;
    pthread_t thread;
    void *loaded;
    int gate[2], status;
    pid_t pid;

    if (!tpx_device_is_double())
        return;                        /* it cannot be told to take long */
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, gate), 0);
    snprintf(number, sizeof(number), "%d", gate[1]);
    setenv("CUDADOUBLE_INIT", number, 1);
    ck_assert_int_eq(tpb_settings_load(&settings, &error), TP_OK);
    gpu = tpg_open(&settings);
    ck_assert_ptr_nonnull(gpu);
    ck_assert_int_eq(pthread_create(&thread, NULL, load, NULL), 0);
    ck_assert_int_eq(read(gate[0], &byte, 1), 1);
    pid = fork();
    if (pid == 0)
        _exit(load_in_child());
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(write(gate[0], &byte, 1), 1);
    ck_assert_int_eq(pthread_join(thread, &loaded), 0);
    ck_assert_int_eq((intptr_t)loaded, TP_OK);
    ck_assert_ptr_nonnull(tpg_cuda_loaded());
    stop();
}
END_TEST

/* ---- which are visible --------------------------------------------------- */

/* What is said of CUDA_VISIBLE_DEVICES, and the first and the number of those
 * that are there then. */
static const struct {
    const char *list, *first;
    int count;
} visible[] = {
    { "1", "0000:20:00.0", 1 },
    { "1,0", "0000:20:00.0", 2 },
    { "0,7,1", "0000:10:00.0", 1 },
    { "1,none,0", "0000:20:00.0", 1 },
    { "GPU-63756461-646f-7562-6c65-000000000002,0", "0000:20:00.0", 2 },
    { "01,0x1", "0000:20:00.0", 1 },
};

START_TEST(some_visible)
{
    char here[16];
    struct tpf_buffer buffer = { .data = here, .length = 1,
                                 .device = { TP_DEVICE_CUDA, 0 } };
    struct tpb_error error = { "" };
    char wanted[64];

    if (!tpx_device_is_double())
        return;                        /* it is not known what is there */
    setenv("CUDA_VISIBLE_DEVICES", visible[_i].list, 1);
    start();
    ck_assert_int_eq(cuda->devices, visible[_i].count);
    ck_assert_int_eq(cuda->cuDeviceGetPCIBusId(here, sizeof(here), 0), CU_OK);
    ck_assert_str_eq(here, visible[_i].first);
    buffer.device.index = visible[_i].count;
    snprintf(wanted, sizeof(wanted), "no CUDA device %d here (%d visible)",
             visible[_i].count, visible[_i].count);
    ck_assert_int_eq(tpg_claim(gpu, &buffer, &error), TP_ERR_INVALID);
    ck_assert_msg(strstr(error.text, wanted) != NULL, "%s", error.text);
    stop();
}
END_TEST

/* ---- no GPU -------------------------------------------------------------- */

static const struct {
    const char *variable, *value, *words;
} nothing[] = {
    { "TP_CUDA_LIBRARY", "none", "forbids the use of GPUs" },
    { "TP_CUDA_LIBRARY", "libnosuch.so.9", "no NVIDIA driver here" },
    { "TP_CUDA_LIBRARY", "libm.so.6", "too old, it lacks cuInit" },
    { "CUDADOUBLE_DEVICES", "0", "no CUDA device is visible" },
    { "CUDA_VISIBLE_DEVICES", "", "no CUDA device is visible" },
    { "CUDA_VISIBLE_DEVICES", "-1", "no CUDA device is visible" },
    { "CUDA_VISIBLE_DEVICES", "2,0", "no CUDA device is visible" },
    { "CUDA_VISIBLE_DEVICES", "GPU-none", "no CUDA device is visible" },
    { "CUDA_VISIBLE_DEVICES", "0,0", "no CUDA device is visible" },
    { "CUDADOUBLE_VERSION", "11020", "for CUDA 11.2, 11.4 is needed" },
    { "CUDADOUBLE_FAIL", "cuInit:1:34", "the toolkit's stub" },
    { "CUDADOUBLE_FAIL", "cuInit:1:803", "of different versions" },
    { "CUDADOUBLE_FAIL", "cuInit:1:999", "error 999" },
};

START_TEST(no_gpu)
{
    struct tpb_error error = { "" };
    tp_device device = { TP_DEVICE_CUDA, 0 };
    struct tpf_memory block;

    if (strncmp(nothing[_i].variable, "CUDA", 4) == 0
        && !tpx_device_is_double())
        return;                        /* cannot be had of a driver */
    setenv(nothing[_i].variable, nothing[_i].value, 1);
    tpx_device_choose();
    ck_assert_int_eq(tpb_settings_load(&settings, &error), TP_OK);
    gpu = tpg_open(&settings);
    ck_assert_int_eq(tpg_alloc(gpu, 1, device, &block, &error),
                     TP_ERR_NOT_SUPPORTED);
    ck_assert_msg(strstr(error.text, nothing[_i].words) != NULL, "%s",
                  error.text);
    ck_assert_ptr_null(tpg_cuda_loaded());
    stop();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("memory");
    TCase *tests = tcase_create("memory");

    tcase_add_test(tests, every_kind);
    tcase_add_test(tests, alloc_without_vmm);
    tcase_add_test(tests, free_without_vmm);
    tcase_add_test(tests, alloc_refused);
    tcase_add_test(tests, wrong_claims);
    tcase_add_test(tests, noticed);
    tcase_add_test(tests, forked_meanwhile);
    tcase_add_loop_test(tests, some_visible, 0, (int)TPB_COUNT(visible));
    tcase_add_loop_test(tests, no_gpu, 0, (int)TPB_COUNT(nothing));
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
