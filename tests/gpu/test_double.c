/* SPDX-License-Identifier: BSD-3-Clause */
/* The test double of libcuda: does it catch what it is there to catch? */
#include "config.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/device.h"
#include "tests/lib/tpx.h"

enum { SIZE = 256 * 1024 };

static const struct tpg_cuda *cuda;

static void start(const char *mode, const char *reuse)
{
    unsetenv("TP_CUDA_LIBRARY");       /* the double, always */
    setenv("CUDADOUBLE_MODE", mode, 1);
    setenv("CUDADOUBLE_REUSE", reuse, 1);
    cuda = tpx_device_driver();
    tpx_device_use(0);
}

static unsigned char *host(unsigned char byte)
{
    unsigned char *memory = malloc(SIZE);

    ck_assert_ptr_nonnull(memory);
    memset(memory, byte, SIZE);
    return memory;
}

START_TEST(copies_go_there_and_back)
{
    static const char *const modes[] = { "eager", "lazy", "delay" };
    unsigned char *from, *to;
    cu_stream stream;
    void *there;

    start(modes[_i], "0");
    from = host('a');
    to = host('b');
    stream = tpx_device_stream();
    there = tpx_device_malloc(SIZE);
    tpx_device_copy(there, from, SIZE, stream);
    tpx_device_copy(to, there, SIZE, stream);
    tpx_device_sync(stream);
    ck_assert_mem_eq(from, to, SIZE);
    free(from);
    free(to);
}
END_TEST

/* The planted fault: no wait between two streams.  Lazy mode shows it. */
START_TEST(lazy_shows_a_missing_wait)
{
    unsigned char *to;
    cu_stream one, two;
    cu_event event;
    void *there;

    start("lazy", "0");
    to = host('b');
    one = tpx_device_stream();
    two = tpx_device_stream();
    there = tpx_device_malloc(SIZE);
    TPX_CU(cuda->cuMemsetD8Async((cu_pointer)(uintptr_t)there, 'x', SIZE,
                                 one));
    if (_i == 1) {
        TPX_CU(cuda->cuEventCreate(&event, CU_EVENT_NO_TIMING));
        TPX_CU(cuda->cuEventRecord(event, one));
        TPX_CU(cuda->cuStreamWaitEvent(two, event, 0));
        TPX_CU(cuda->cuEventDestroy_v2(event));
    }
    tpx_device_copy(to, there, SIZE, two);
    tpx_device_sync(two);
    ck_assert_int_eq(to[SIZE / 8] == 'x', _i == 1);
    free(to);
}
END_TEST

START_TEST(a_stream_waits_for_a_value)
{
    static uint32_t value;
    cu_stream stream;

    start("eager", "0");
    stream = tpx_device_stream();
    TPX_CU(cuda->cuMemHostRegister_v2(&value, sizeof(value), 0));
    TPX_CU(cuda->cuStreamWaitValue32_v2(stream,
                                        (cu_pointer)(uintptr_t)&value, 7, 1));
    ck_assert_int_eq(cuda->cuStreamQuery(stream), CU_NOT_READY);
    value = 7;
    ck_assert_int_eq(cuda->cuStreamQuery(stream), CU_OK);
}
END_TEST

START_TEST(a_stream_writes_a_flag)
{
    static uint32_t value, other;
    cu_pointer there;
    cu_stream stream;

    setenv("CUDADOUBLE_FLAGS", _i == 0 ? "1" : "0", 1);
    start("lazy", "0");
    stream = tpx_device_stream();
    ck_assert_int_eq(cuda->cuMemHostGetDevicePointer_v2(&there, &value, 0),
                     CU_INVALID_VALUE);
    TPX_CU(cuda->cuMemHostRegister_v2(&value, sizeof(value),
                                      CU_HOST_DEVICE_MAP));
    TPX_CU(cuda->cuMemHostGetDevicePointer_v2(&there, &value, 0));
    if (_i == 1) {
        ck_assert_int_eq(cuda->cuStreamWriteValue32_v2(stream, there, 5, 0),
                         CU_NOT_SUPPORTED);
        return;
    }
    ck_assert_int_eq(cuda->cuStreamWriteValue32_v2(stream,
                         (cu_pointer)(uintptr_t)&other, 5, 0),
                     CU_INVALID_VALUE);
    TPX_CU(cuda->cuStreamWriteValue32_v2(stream, there, 5, 0));
    ck_assert_uint_eq(value, 0);       /* nothing runs by itself */
    ck_assert_int_eq(cuda->cuStreamQuery(stream), CU_OK);
    ck_assert_uint_eq(value, 5);
}
END_TEST

/* One range of addresses, of two allocations. */
START_TEST(mappings_are_told_apart)
{
    struct cu_memory_properties properties = {
        .type = CU_ALLOCATION_PINNED, .handle_types = CU_HANDLE_POSIX_FD,
        .location = { CU_LOCATION_DEVICE, 0 } };
    struct cu_access access[2] = {
        { { CU_LOCATION_DEVICE, 0 }, CU_ACCESS_READ_WRITE },
        { { CU_LOCATION_DEVICE, 1 }, CU_ACCESS_READ_WRITE } };
    int attributes[] = { CU_POINTER_MAPPING_BASE, CU_POINTER_BLOCK_ID };
    uint64_t base[2] = { 0 }, block[2] = { 0 };
    unsigned char *bytes = host('z');
    cu_memory memory[2];
    cu_pointer at;
    int fd;

    setenv("CUDADOUBLE_P2P", "0", 1);
    start("lazy", "0");
    TPX_CU(cuda->cuMemAddressReserve(&at, 2 * SIZE, 0, 0, 0));
    for (int i = 0; i < 2; i++) {
        void *places[] = { &base[i], &block[i] };

        properties.handle_types = i == 0 ? CU_HANDLE_POSIX_FD : 0;
        TPX_CU(cuda->cuMemCreate(&memory[i], SIZE, &properties, 0));
        TPX_CU(cuda->cuMemMap(at + (size_t)i * SIZE, SIZE, 0, memory[i], 0));
        TPX_CU(cuda->cuPointerGetAttributes(2, attributes, places,
                                            at + (size_t)i * SIZE + 77));
        ck_assert_uint_eq(base[i], at + (size_t)i * SIZE);
    }
    ck_assert_uint_ne(block[0], block[1]);
    ck_assert_int_eq(cuda->cuMemSetAccess(at, 2 * SIZE, access, 2),
                     CU_PEER_ACCESS_UNSUPPORTED);
    TPX_CU(cuda->cuMemSetAccess(at, 2 * SIZE, access, 1));
    tpx_device_copy((void *)(uintptr_t)(at + SIZE / 2), bytes, SIZE, NULL);
    tpx_device_sync(NULL);
    free(bytes);
    TPX_CU(cuda->cuMemExportToShareableHandle(&fd, memory[0],
                                              CU_HANDLE_POSIX_FD, 0));
    close(fd);
    ck_assert_int_eq(cuda->cuMemExportToShareableHandle(&fd, memory[1],
                     CU_HANDLE_POSIX_FD, 0), CU_INVALID_VALUE);
}
END_TEST

/* ---- what ends the process, with words ----------------------------------- */

START_TEST(the_host_touches)
{
    start("lazy", "0");
    signal(SIGABRT, SIG_DFL);
    *(volatile char *)tpx_device_malloc(SIZE) = 1;
}
END_TEST

START_TEST(used_after_free)
{
    void *there;

    start("lazy", "0");
    there = tpx_device_malloc(SIZE);
    TPX_CU(cuda->cuMemFree_v2((cu_pointer)(uintptr_t)there));
    tpx_device_copy(host(0), there, 16, NULL);
}
END_TEST

START_TEST(freed_twice)
{
    void *there;

    start("lazy", "0");
    there = tpx_device_malloc(SIZE);
    TPX_CU(cuda->cuMemFree_v2((cu_pointer)(uintptr_t)there));
    cuda->cuMemFree_v2((cu_pointer)(uintptr_t)there);
}
END_TEST

START_TEST(overrun)
{
    start("lazy", "0");
    tpx_device_copy(host(0), (char *)tpx_device_malloc(SIZE) + 16, SIZE, NULL);
}
END_TEST

/* Mapped, but no device was given access. */
START_TEST(no_access)
{
    struct cu_memory_properties properties = {
        .type = CU_ALLOCATION_PINNED,
        .location = { CU_LOCATION_DEVICE, 0 } };
    cu_memory memory;
    cu_pointer at;

    start("lazy", "0");
    TPX_CU(cuda->cuMemAddressReserve(&at, SIZE, 0, 0, 0));
    TPX_CU(cuda->cuMemCreate(&memory, SIZE, &properties, 0));
    TPX_CU(cuda->cuMemMap(at, SIZE, 0, memory, 0));
    cuda->cuMemsetD8Async(at, 1, SIZE, NULL);
    tpx_device_sync(NULL);
}
END_TEST

START_TEST(destroyed_stream)
{
    cu_stream stream;

    start("lazy", "0");
    stream = tpx_device_stream();
    TPX_CU(cuda->cuStreamDestroy_v2(stream));
    cuda->cuStreamQuery(stream);
}
END_TEST

/* ---- answers ------------------------------------------------------------- */

START_TEST(addresses_come_back_under_another_id)
{
    int attribute = CU_POINTER_BUFFER_ID;
    uint64_t first = 0, second = 0;
    void *place = &first, *one, *two;

    start("lazy", "1");
    one = tpx_device_malloc(SIZE);
    TPX_CU(cuda->cuPointerGetAttributes(1, &attribute, &place,
                                        (cu_pointer)(uintptr_t)one));
    TPX_CU(cuda->cuMemFree_v2((cu_pointer)(uintptr_t)one));
    two = tpx_device_malloc(SIZE);
    place = &second;
    TPX_CU(cuda->cuPointerGetAttributes(1, &attribute, &place,
                                        (cu_pointer)(uintptr_t)two));
    ck_assert_ptr_eq(one, two);
    ck_assert_uint_ne(first, second);
}
END_TEST

/* As an allocator's segment that shrinks and grows again. */
START_TEST(mappings_come_back)
{
    struct cu_memory_properties properties = {
        .type = CU_ALLOCATION_PINNED, .handle_types = CU_HANDLE_POSIX_FD,
        .location = { CU_LOCATION_DEVICE, 0 } };
    struct cu_access access = { properties.location, CU_ACCESS_READ_WRITE };
    unsigned char *source = host(5), *copy = host(0);
    cu_pointer at;
    cu_memory memory;

    start("lazy", "0");
    TPX_CU(cuda->cuMemAddressReserve(&at, SIZE, 0, 0, 0));
    TPX_CU(cuda->cuMemCreate(&memory, SIZE, &properties, 0));
    for (int i = 0; i < 2; i++) {
        TPX_CU(cuda->cuMemMap(at, SIZE, 0, memory, 0));
        ck_assert_int_eq(cuda->cuMemMap(at, SIZE, 0, memory, 0),
                         CU_INVALID_VALUE);
        TPX_CU(cuda->cuMemSetAccess(at, SIZE, &access, 1));
        tpx_device_copy((void *)(uintptr_t)at, source, SIZE, NULL);
        tpx_device_copy(copy, (void *)(uintptr_t)at, SIZE, NULL);
        tpx_device_sync(NULL);
        ck_assert_mem_eq(copy, source, SIZE);
        TPX_CU(cuda->cuMemUnmap(at, SIZE));
    }
    TPX_CU(cuda->cuMemRelease(memory));
    free(source);
    free(copy);
}
END_TEST

START_TEST(contexts_count)
{
    cu_context other;
    cu_pointer pointer;
    cu_event event;

    start("lazy", "0");
    TPX_CU(cuda->cuEventCreate(&event, 0));
    TPX_CU(cuda->cuDevicePrimaryCtxRetain(&other, 1));
    TPX_CU(cuda->cuCtxPushCurrent_v2(other));
    ck_assert_int_eq(cuda->cuEventRecord(event, NULL), CU_INVALID_HANDLE);
    TPX_CU(cuda->cuCtxPopCurrent_v2(&other));
    TPX_CU(cuda->cuCtxSetCurrent(NULL));
    ck_assert_int_eq(cuda->cuMemAlloc_v2(&pointer, SIZE), CU_INVALID_CONTEXT);
    tpx_device_use(0);
    TPX_CU(cuda->cuEventDestroy_v2(event));
}
END_TEST

START_TEST(not_after_fork)
{
    int status, count;
    pid_t pid;

    start("lazy", "0");
    pid = fork();
    if (pid == 0)
        _exit(cuda->cuDeviceGetCount(&count));
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(WEXITSTATUS(status), CU_NOT_INITIALIZED);
}
END_TEST

START_TEST(faults_are_planted)
{
    cu_pointer pointer;

    setenv("CUDADOUBLE_FAIL", "cuMemAlloc_v2:2:2,cuMemcpyAsync:1:700", 1);
    start("lazy", "0");
    ck_assert_int_eq(cuda->cuMemAlloc_v2(&pointer, SIZE), CU_OK);
    ck_assert_int_eq(cuda->cuMemAlloc_v2(&pointer, SIZE), CU_OUT_OF_MEMORY);
    ck_assert_int_eq(cuda->cuMemAlloc_v2(&pointer, SIZE), CU_OK);
    ck_assert_int_eq(cuda->cuMemcpyAsync(pointer, pointer, 1, NULL), 700);
}
END_TEST

/* ---- between processes --------------------------------------------------- */

struct handed {
    cu_ipc_memory handle;
    bool last;
};

/* The importer, a process that has its own driver. */
static int importer(int from, int to)
{
    struct handed handed;
    char byte = 0;
    int code = CU_OK;

    start("lazy", "0");
    while (code == CU_OK
           && read(from, &handed, sizeof(handed)) == (ssize_t)sizeof(handed)) {
        unsigned char *copy = host(0);
        cu_pointer pointer;

        code = cuda->cuIpcOpenMemHandle_v2(&pointer, handed.handle,
                                           CU_IPC_LAZY_PEER);
        if (code == CU_OK) {
            tpx_device_copy(copy, (void *)(uintptr_t)pointer, SIZE, NULL);
            tpx_device_sync(NULL);
            byte = (char)copy[SIZE / 2];
            TPX_CU(cuda->cuIpcCloseMemHandle(pointer));
        }
        free(copy);
        if (write(to, &byte, 1) != 1)
            return 99;
    }
    return code;
}

START_TEST(handles_cross_processes)
{
    struct handed handed = { .last = false };
    int there[2], back[2], status;
    cu_pointer again;
    char byte;
    void *memory;
    pid_t pid;

    ck_assert_int_eq(pipe(there), 0);
    ck_assert_int_eq(pipe(back), 0);
    pid = fork();
    if (pid == 0) {
        close(there[1]);
        _exit(importer(there[0], back[1]));
    }
    start("lazy", "0");
    memory = tpx_device_malloc(SIZE);
    TPX_CU(cuda->cuMemsetD8Async((cu_pointer)(uintptr_t)memory, 'q', SIZE,
                                 NULL));
    tpx_device_sync(NULL);
    TPX_CU(cuda->cuIpcGetMemHandle(&handed.handle,
                                   (cu_pointer)(uintptr_t)memory));
    ck_assert_int_eq(cuda->cuIpcOpenMemHandle_v2(&again, handed.handle,
                                                 CU_IPC_LAZY_PEER),
                     CU_INVALID_CONTEXT);
    ck_assert_int_eq(write(there[1], &handed, sizeof(handed)),
                     sizeof(handed));
    ck_assert_int_eq(read(back[0], &byte, 1), 1);
    ck_assert_int_eq(byte, 'q');
    /* Stale: the owner has freed it. */
    TPX_CU(cuda->cuMemFree_v2((cu_pointer)(uintptr_t)memory));
    ck_assert_int_eq(write(there[1], &handed, sizeof(handed)),
                     sizeof(handed));
    close(there[1]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(WEXITSTATUS(status), CU_INVALID_VALUE);
}
END_TEST

/* What of the driver's calls breaks the capture of another thread, and how a
 * thread keeps from it. */
static void *ask(void *event)
{
    int mode = CU_CAPTURE_RELAXED;
    intptr_t code;

    TPX_CU(cuda->cuThreadExchangeStreamCaptureMode(&mode));
    ck_assert_int_eq(mode, CU_CAPTURE_GLOBAL);
    code = cuda->cuEventQuery(event);
    TPX_CU(cuda->cuThreadExchangeStreamCaptureMode(&mode));
    ck_assert_int_eq(mode, CU_CAPTURE_RELAXED);
    return (void *)(code != CU_OK ? code : (intptr_t)cuda->cuEventQuery(event));
}

START_TEST(captures_are_broken)
{
    cu_stream stream, captured;
    void *graph = NULL, *code;
    cu_event before, inside;
    pthread_t thread;
    int status;

    start("lazy", "0");
    stream = tpx_device_stream();
    captured = tpx_device_stream();
    TPX_CU(cuda->cuEventCreate(&before, CU_EVENT_NO_TIMING));
    TPX_CU(cuda->cuEventCreate(&inside, CU_EVENT_NO_TIMING));
    TPX_CU(cuda->cuEventRecord(before, stream));
    TPX_CU(cuda->cuStreamBeginCapture_v2(captured, _i));
    TPX_CU(cuda->cuStreamIsCapturing(captured, &status));
    ck_assert_int_eq(status, CU_CAPTURE_ACTIVE);
    ck_assert_int_eq(pthread_create(&thread, NULL, ask, before), 0);
    pthread_join(thread, &code);
    ck_assert_int_eq((intptr_t)code, _i == CU_CAPTURE_GLOBAL
                                     ? CU_CAPTURE_UNSUPPORTED : CU_OK);
    ck_assert_int_eq(cuda->cuStreamEndCapture(captured, &graph),
                     _i == CU_CAPTURE_GLOBAL ? CU_CAPTURE_INVALIDATED : CU_OK);
    ck_assert((graph == NULL) == (_i == CU_CAPTURE_GLOBAL));
    /* What is captured does not run, and cannot wait for what does. */
    TPX_CU(cuda->cuStreamBeginCapture_v2(captured, CU_CAPTURE_RELAXED));
    TPX_CU(cuda->cuEventRecord(inside, captured));
    if (_i == 0)
        ck_assert_int_eq(cuda->cuEventQuery(inside), CU_CAPTURE_EVENT);
    else
        ck_assert_int_eq(cuda->cuStreamWaitEvent(captured, before, 0),
                         CU_CAPTURE_ISOLATION);
    ck_assert_int_eq(cuda->cuStreamEndCapture(captured, &graph),
                     CU_CAPTURE_INVALIDATED);
    TPX_CU(cuda->cuStreamSynchronize(stream));
    TPX_CU(cuda->cuEventDestroy_v2(before));
    TPX_CU(cuda->cuEventDestroy_v2(inside));
}
END_TEST

/* Each thread's own stream is another one. */
static void *fill_own(void *there)
{
    tpx_device_use(0);
    TPX_CU(cuda->cuMemsetD8Async((cu_pointer)(uintptr_t)there, 'x', SIZE,
                                 CU_THREAD_STREAM));
    return NULL;
}

START_TEST(threads_have_streams)
{
    unsigned char *to;
    pthread_t thread;
    void *there;

    start("lazy", "0");
    to = host('b');
    there = tpx_device_malloc(SIZE);
    if (_i == 0) {
        fill_own(there);
    } else {
        ck_assert_int_eq(pthread_create(&thread, NULL, fill_own, there), 0);
        pthread_join(thread, NULL);
    }
    tpx_device_copy(to, there, SIZE, CU_THREAD_STREAM);
    tpx_device_sync(CU_THREAD_STREAM);
    ck_assert_int_eq(to[SIZE / 8] == 'x', _i == 0);
    free(to);
}
END_TEST

/* What the manual wants a context for gets none. */
START_TEST(calls_want_a_context)
{
    cu_pointer base;
    cu_event event;
    void *there;
    size_t size;

    start("lazy", "0");
    there = tpx_device_malloc(SIZE);
    TPX_CU(cuda->cuEventCreate(&event, CU_EVENT_NO_TIMING));
    TPX_CU(cuda->cuCtxSetCurrent(NULL));
    ck_assert_int_eq(cuda->cuMemGetAddressRange_v2(
                         &base, &size, (cu_pointer)(uintptr_t)there),
                     CU_INVALID_CONTEXT);
    ck_assert_int_eq(cuda->cuEventDestroy_v2(event), CU_INVALID_CONTEXT);
    ck_assert_int_eq(cuda->cuEventQuery(event), CU_OK);
    tpx_device_use(0);
    TPX_CU(cuda->cuEventDestroy_v2(event));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("double");
    TCase *good = tcase_create("answers"), *bad = tcase_create("reports");

    tcase_add_loop_test(good, copies_go_there_and_back, 0, 3);
    tcase_add_loop_test(good, lazy_shows_a_missing_wait, 0, 2);
    tcase_add_test(good, a_stream_waits_for_a_value);
    tcase_add_loop_test(good, a_stream_writes_a_flag, 0, 2);
    tcase_add_test(good, mappings_are_told_apart);
    tcase_add_test(good, addresses_come_back_under_another_id);
    tcase_add_test(good, mappings_come_back);
    tcase_add_test(good, contexts_count);
    tcase_add_test(good, not_after_fork);
    tcase_add_test(good, faults_are_planted);
    tcase_add_test(good, handles_cross_processes);
    tcase_add_loop_test(good, captures_are_broken, 0, 3);
    tcase_add_loop_test(good, threads_have_streams, 0, 2);
    tcase_add_test(good, calls_want_a_context);
    tcase_add_test_raise_signal(bad, the_host_touches, SIGABRT);
    tcase_add_test_raise_signal(bad, used_after_free, SIGABRT);
    tcase_add_test_raise_signal(bad, freed_twice, SIGABRT);
    tcase_add_test_raise_signal(bad, overrun, SIGABRT);
    tcase_add_test_raise_signal(bad, no_access, SIGABRT);
    tcase_add_test_raise_signal(bad, destroyed_stream, SIGABRT);
    suite_add_tcase(suite, good);
    suite_add_tcase(suite, bad);
    return tpx_run(suite);
}
