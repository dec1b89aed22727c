/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every kind of memory to every other, memory that comes back at the same
 * address, caches that are too small, peers that cannot open it, and every
 * order of work on both sides' streams.
 */
#include "config.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/gpu/buffer.h"
#include "tests/gpu/suite_device.h"

enum { PATIENCE = 60000, SMALL = 3001, MANY = 4 };

/* Several slots of the staged way; where memory is slow, a channel's least. */
static size_t kinds_big(void)
{
    return tpx_me.sanitized ? 150001 : 700001;
}

/* One message of `count` tensors, whose memory is spoilt afterwards. */
static void kinds_send(tp_pipe *pipe, struct tpx_buffer *buffers, size_t count,
                       uint64_t seed)
{
    tp_tensor tensors[MANY];
    tp_message message = { .tensors = tensors, .tensor_count = count };

    tpx_buffers_send(pipe, &message, buffers, seed, PATIENCE);
}

static void kinds_receive(tp_pipe *pipe, struct tpx_buffer *buffers,
                          size_t count, uint64_t seed)
{
    tp_message *skeleton;

    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
    tpx_equal(skeleton->tensor_count, count);
    for (size_t i = 0; i < count; i++) {
        tpx_buffer_spoil(&buffers[i]);
        tpx_buffer_place(&buffers[i], &skeleton->tensors[i]);
    }
    tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
    for (size_t i = 0; i < count; i++)
        tpx_buffer_fetch(&buffers[i]);
    for (size_t i = 0; i < count; i++)
        tpx_buffer_compare(&buffers[i], seed + i);
}

static void kinds_make(struct tpx_buffer buffers[2], enum tpx_kind kind,
                       int device)
{
    tpx_buffer_make(&buffers[0], kind, device, SMALL);
    tpx_buffer_make(&buffers[1], kind, device, kinds_big());
}

/* ---- every kind to every kind -------------------------------------------- */

/* The reader's choice of device holds, whatever the sender's is. */
static void kinds_pairs(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct tpx_buffer buffers[TPX_KINDS][2];

    for (int kind = 0; kind < TPX_KINDS; kind++)
        kinds_make(buffers[kind], (enum tpx_kind)kind,
                   (kind + tpx_me.rank) % 2);
    for (int from = 0; from < TPX_KINDS; from++)
        for (int to = 0; to < TPX_KINDS; to++) {
            bool sends = tpx_me.rank == (from + to) % 2;
            uint64_t seed = (uint64_t)(from * 100 + to);

            if (sends)
                kinds_send(pipe, buffers[from], 2, seed);
            else
                kinds_receive(pipe, buffers[to], 2, seed);
        }
    tpx_meet(!tpx_me.rank);
    for (int kind = 0; kind < TPX_KINDS; kind++)
        for (int i = 0; i < 2; i++)
            tpx_buffer_drop(&buffers[kind][i]);
}

/* To oneself. */
static void kinds_self(void)
{
    tp_pipe *pipe = tpx_pipe(tpx_me.rank, 0);

    for (int from = TPX_PINNED; from < TPX_KINDS; from++) {
        struct tpx_buffer out, in;
        tp_message *skeleton;
        tp_tensor tensor;
        tp_message message = { .tensors = &tensor, .tensor_count = 1 };
        unsigned done = 0;

        tpx_buffer_make(&out, (enum tpx_kind)from, 0, kinds_big());
        tpx_buffer_make(&in, (enum tpx_kind)(TPX_KINDS - from), from % 2,
                        kinds_big());
        tpx_buffer_fill(&out, (uint64_t)from);
        tensor = tpx_buffer_tensor(&out);
        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &done));
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        tpx_buffer_spoil(&in);
        tpx_buffer_place(&in, &skeleton->tensors[0]);
        tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
        tpx_until(&done, 1);
        tpx_buffer_spoil(&out);
        tpx_buffer_check(&in, (uint64_t)from);
        tpx_buffer_drop(&out);
        tpx_buffer_drop(&in);
    }
}

/* With cuda_ipc that is one copy, on the device: a second one fails. */
static void kinds_self_direct(void)
{
    tp_pipe *pipe = tpx_pipe(tpx_me.rank, 0);
    struct tpx_buffer out, in;
    tp_message *skeleton;
    tp_tensor tensor;
    tp_message message = { .tensors = &tensor, .tensor_count = 1 };
    unsigned done = 0;

    if (!tpx_backend("cuda_ipc"))
        return;                    /* kinds_self() does all there is */
    tpx_buffer_make(&out, TPX_MALLOC, 0, kinds_big());
    tpx_buffer_make(&in, TPX_POOL, 1, kinds_big());
    tpx_buffer_fill(&out, 8);
    tpx_buffer_spoil(&in);
    tensor = tpx_buffer_tensor(&out);
    tpx_device_fails("cuMemcpyAsync:2+:700");
    tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &done));
    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
    tpx_buffer_place(&in, &skeleton->tensors[0]);
    tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
    tpx_until(&done, 1);
    tpx_device_fails("");
    tpx_buffer_check(&in, 8);
    tpx_buffer_drop(&out);
    tpx_buffer_drop(&in);
}

/* ---- addresses that come back -------------------------------------------- */

static const enum tpx_kind kinds_device[] = { TPX_MALLOC, TPX_POOL, TPX_VMM,
                                              TPX_PIECES, TPX_ALLOC };
enum { DEVICE_KINDS = sizeof(kinds_device) / sizeof(kinds_device[0]) };

static void kinds_again(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct tpx_buffer mine;

    tpx_buffer_make(&mine, TPX_MALLOC, 0, kinds_big());
    for (unsigned i = 0; i < 25; i++) {
        struct tpx_buffer buffer;

        if (tpx_me.rank == 1) {
            kinds_receive(pipe, &mine, 1, i);
            tpx_meet(0);
            continue;
        }
        tpx_buffer_make(&buffer, kinds_device[i % DEVICE_KINDS], 0,
                        kinds_big());
        kinds_send(pipe, &buffer, 1, i);
        tpx_meet(1);
        tpx_buffer_drop(&buffer);
    }
    tpx_meet(!tpx_me.rank);
    tpx_buffer_drop(&mine);
}

/* ---- caches that are too small ------------------------------------------- */

static void kinds_many(void)
{
    enum { BUFFERS = 7, ROUNDS = 3 };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct tpx_buffer buffers[BUFFERS];

    for (unsigned i = 0; i < BUFFERS; i++)
        tpx_buffer_make(&buffers[i], kinds_device[i % DEVICE_KINDS],
                        (int)(i % 2), kinds_big());
    for (unsigned i = 0; i < BUFFERS * ROUNDS; i++) {
        unsigned which = i * 3 % BUFFERS;

        if (tpx_me.rank == 0)
            kinds_send(pipe, &buffers[which], 1, i);
        else
            kinds_receive(pipe, &buffers[which], 1, i);
    }
    tpx_meet(!tpx_me.rank);
    for (unsigned i = 0; i < BUFFERS; i++)
        tpx_buffer_drop(&buffers[i]);
}

static void kinds_init(void)
{
    tpx_ok(tp_init(NULL, &tpx_me.context));
    tpx_me.size = tp_size(tpx_me.context);
}

static void kinds_few_imports(void)
{
    setenv("TP_CUDA_IMPORTS", "2", 1);
    kinds_init();
    kinds_many();
}

static void kinds_few_bytes(void)
{
    setenv("TP_CUDA_IMPORT_BYTES", "2M", 1);
    setenv("TP_CUDA_OUTBOX", "2M", 1);
    kinds_init();
    kinds_many();
}

static void kinds_no_outbox(void)
{
    setenv("TP_CUDA_OUTBOX", "0", 1);
    kinds_init();
    kinds_many();
}

/* Imports come and go while a stream of the program's own is held up: what the
 * driver lets go of only when all streams are through must not hold up us. */
static void kinds_held(void)
{
    enum { BUFFERS = 7 };
    struct tpx_buffer buffers[BUFFERS], mine, busy;
    struct tpx_gate gate;
    tp_pipe *pipe;

    setenv("TP_CUDA_IMPORTS", "2", 1);
    kinds_init();
    pipe = tpx_pipe(!tpx_me.rank, 0);
    for (unsigned i = 0; i < BUFFERS; i++)
        tpx_buffer_make(&buffers[i], TPX_MALLOC, 0, kinds_big());
    tpx_buffer_make(&mine, TPX_MALLOC, 0, kinds_big());
    tpx_buffer_make(&busy, TPX_MALLOC, 0, SMALL);
    if (tpx_me.rank == 1)
        tpx_gate_close(&gate, busy.stream);
    for (unsigned i = 0; i < 2 * BUFFERS; i++)
        if (tpx_me.rank == 0)
            kinds_send(pipe, &buffers[i % BUFFERS], 1, i);
        else
            kinds_receive(pipe, &mine, 1, i);
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 1) {
        tpx_gate_open(&gate);
        tpx_device_sync(busy.stream);
    }
    for (unsigned i = 0; i < BUFFERS; i++)
        tpx_buffer_drop(&buffers[i]);
    tpx_buffer_drop(&mine);
    tpx_buffer_drop(&busy);
}

/* How many imports explain says have been opened here, how many of them still
 * are, and whether it finds anything that is not so. */
static uint64_t kinds_opened(tp_pipe *pipe, uint64_t *are)
{
    unsigned long long opened = 0, found = 0, closed = 0, open = 0;
    const char *at;
    char *json;

    tpx_ok(tp_pipe_explain(pipe, &json));
    at = strstr(json, "\"imports\"");
    tpx_check(at != NULL, "explain tells of no imports");
    sscanf(strstr(at, "\"opened\""), "\"opened\": %llu", &opened);
    sscanf(strstr(at, "\"found\""), "\"found\": %llu", &found);
    sscanf(strstr(at, "\"closed\""), "\"closed\": %llu", &closed);
    sscanf(strstr(at, "\"open\""), "\"open\": %llu", &open);
    free(json);
    tpx_check(opened >= open && closed <= opened + found,
              "%llu opened, %llu found, %llu closed, %llu open", opened, found,
              closed, open);
    if (are != NULL)
        *are = open;
    return opened;
}

/* What its owner frees, by whatever call, its peer lets go of when it hears of
 * the next: else it would keep the memory, and the device be full. */
static void kinds_freed(void)
{
    enum { ROUNDS = 6 };
    static const enum tpx_kind kinds[] = { TPX_MALLOC, TPX_VMM, TPX_PIECES };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct tpx_buffer mine;
    bool told = strstr(getenv("TP_BACKENDS"), "shm") != NULL
                && tpx_backend("cuda_ipc");
    uint64_t open = 2;

    tpx_buffer_make(&mine, TPX_MALLOC, 0, kinds_big() + (ROUNDS << 16));
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct tpx_buffer buffer;
        size_t length = kinds_big() + (i << 16);   /* of no earlier place */

        mine.length = length;
        if (tpx_me.rank == 0) {
            tpx_buffer_make(&buffer, kinds[i % TPB_COUNT(kinds)], 0, length);
            kinds_send(pipe, &buffer, 1, i);
        } else {
            kinds_receive(pipe, &mine, 1, i);
        }
        tpx_meet(!tpx_me.rank);
        if (tpx_me.rank == 0)
            tpx_buffer_drop(&buffer);
    }
    while (tpx_me.rank == 1 && told && open > 1) {
        kinds_opened(pipe, &open);
        tp_wait(tpx_me.context, 1, NULL);
    }
    tpx_meet(!tpx_me.rank);
    tpx_buffer_drop(&mine);
}

/* No two regions may be open together. */
static void kinds_one_region(void)
{
    struct tpx_buffer buffers[3];
    bool direct = strstr(getenv("TP_BACKENDS"), "shm") != NULL
                  && tpx_backend("cuda_ipc");
    char bytes[24];
    tp_pipe *pipe;

    snprintf(bytes, sizeof(bytes), "%zu", kinds_big() * 3 / 2);
    setenv("TP_CUDA_IMPORT_BYTES", bytes, 1);
    kinds_init();
    pipe = tpx_pipe(!tpx_me.rank, 0);
    for (unsigned i = 0; i < TPB_COUNT(buffers); i++) {
        uint64_t are;

        tpx_buffer_make(&buffers[i], TPX_VMM, 0, kinds_big());
        if (tpx_me.rank == 0) {
            kinds_send(pipe, &buffers[i], 1, i);
        } else {
            uint64_t opened;

            kinds_receive(pipe, &buffers[i], 1, i);
            opened = kinds_opened(pipe, &are);
            /* Another driver may not let such memory be opened at all. */
            if (direct && (opened != 0 || tpx_device_is_double())) {
                tpx_equal(opened, i + 1);
                tpx_equal(are, 1);
            }
        }
        tpx_meet(!tpx_me.rank);    /* the next one has it closed */
    }
    for (unsigned i = 0; i < TPB_COUNT(buffers); i++)
        tpx_buffer_drop(&buffers[i]);
}

/* Two devices that may not access each other's memory: the way depends on both,
 * where it is known for which one a buffer is meant. */
static void kinds_two(void)
{
    tp_pipe *pipe;
    bool direct = tpx_backend("cuda_ipc");

    if (tpx_device_number(1) == 0)
        return;                        /* one device */
    setenv("TP_CARD_HOOK", "two", 1);
    kinds_init();
    pipe = tpx_pipe(!tpx_me.rank, 0);
    for (int i = 0; i < 4; i++) {
        struct tpx_buffer buffer;

        tpx_buffer_make(&buffer, TPX_MALLOC,
                        tpx_me.rank == 0 ? i / 2 : i % 2, kinds_big());
        buffer.target = (tp_device){ TP_DEVICE_CUDA, i % 2 };
        if (tpx_me.rank == 0)
            kinds_send(pipe, &buffer, 1, (uint64_t)i);
        else
            kinds_receive(pipe, &buffer, 1, (uint64_t)i);
        tpx_meet(!tpx_me.rank);
        tpx_buffer_drop(&buffer);
        /* 0 to 0; 0 to 1; 1 to 0; 1 to 1. */
        if (tpx_me.rank == 1)
            tpx_equal(kinds_opened(pipe, NULL),
                      !direct ? 0 : i == 3 ? 2 : 1);
    }
}

/* A rank that uses one device makes no context on another, only because its
 * peer's memory is there: it would cost hundreds of megabytes there. */
static void kinds_no_stray(void)
{
    static const enum tpx_kind kinds[] = { TPX_MALLOC, TPX_VMM, TPX_POOL,
                                           TPX_MALLOC };
    const struct tpg_cuda *cuda = tpx_device_driver();
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned char *memory = malloc(kinds_big());
    int can = 0, active = 1;
    unsigned flags;

    tpx_check(memory != NULL, "no memory for the test itself");
    if (tpx_device_number(1) == 0)
        goto out;                      /* one device */
    TPX_CU(cuda->cuDeviceCanAccessPeer(&can, 1, 0));
    for (unsigned i = 0; i < 2 * TPB_COUNT(kinds); i++) {
        struct tpx_buffer buffer;

        tpx_buffer_make(&buffer, kinds[i / 2], tpx_me.rank, kinds_big());
        if (tpx_me.rank == 0) {
            kinds_send(pipe, &buffer, 1, i);
        } else if (i % 2 == 0) {
            kinds_receive(pipe, &buffer, 1, i);
        } else {
            tp_message *skeleton;

            tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
            skeleton->tensors[0].data = memory;
            skeleton->tensors[0].device = (tp_device){ TP_DEVICE_CPU, 0 };
            tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
            tpx_equal(tpx_verify(memory, kinds_big(), i), kinds_big());
        }
        tpx_meet(!tpx_me.rank);
        tpx_buffer_drop(&buffer);
    }
    TPX_CU(cuda->cuDevicePrimaryCtxGetState(!tpx_me.rank, &flags, &active));
    tpx_check(active == 0 || can == 0, "there is a context on device %d",
              !tpx_me.rank);
out:
    free(memory);
}

/* ---- no room for descriptors --------------------------------------------- */

/* `spare` more than are open now. */
static void kinds_limit(const struct rlimit *limit, unsigned spare)
{
    struct rlimit low = *limit;

    low.rlim_cur = 0;
    for (spare++; spare > 0; low.rlim_cur++)
        spare -= fcntl((int)low.rlim_cur, F_GETFD) < 0;
    low.rlim_cur--;
    tpx_check(setrlimit(RLIMIT_NOFILE, &low) == 0, "setrlimit");
}

/* Of a region's descriptors none comes, or some: then it goes another way. */
static void kinds_no_descriptors(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct rlimit limit;

    tpx_check(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
    for (unsigned i = 0; i < 6; i++) {
        struct tpx_buffer buffer;

        tpx_buffer_make(&buffer, TPX_PIECES, 0, kinds_big());
        tpx_meet(!tpx_me.rank);
        if (tpx_me.rank == 1 && i % 3 < 2)
            kinds_limit(&limit, i % 3);
        if (tpx_me.rank == 0)
            kinds_send(pipe, &buffer, 1, i);
        else
            kinds_receive(pipe, &buffer, 1, i);
        tpx_check(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
        tpx_meet(!tpx_me.rank);
        tpx_buffer_drop(&buffer);
    }
}

enum { KINDS_MAPPINGS = 400 };

static struct cu_memory_properties kinds_properties(void)
{
    return (struct cu_memory_properties){
        .type = CU_ALLOCATION_PINNED, .handle_types = CU_HANDLE_POSIX_FD,
        .location = { CU_LOCATION_DEVICE, tpx_device_number(0) } };
}

/* Bytes of the smallest mapping. */
static size_t kinds_granule(void)
{
    struct cu_memory_properties properties = kinds_properties();
    size_t part;

    TPX_CU(tpx_device_driver()->cuMemGetAllocationGranularity(
        &part, &properties, CU_GRANULARITY_MINIMUM));
    return part;
}

/* Memory of more mappings than a socket holds descriptors. */
static void kinds_mappings(struct tpx_buffer *buffer, bool map)
{
    const struct tpg_cuda *cuda = tpx_device_driver();
    struct cu_memory_properties properties = kinds_properties();
    struct cu_access access = { properties.location, CU_ACCESS_READ_WRITE };
    size_t part = kinds_granule();
    cu_pointer at = 0;
    cu_memory handle;

    if (!map) {
        tpx_device_sync(buffer->stream);
        at = (cu_pointer)(uintptr_t)buffer->memory;
        TPX_CU(cuda->cuMemUnmap(at, KINDS_MAPPINGS * part));
        TPX_CU(cuda->cuMemAddressFree(at, KINDS_MAPPINGS * part));
        return;
    }
    TPX_CU(cuda->cuMemAddressReserve(&at, KINDS_MAPPINGS * part, 0, 0, 0));
    for (size_t i = 0; i < KINDS_MAPPINGS; i++) {
        TPX_CU(cuda->cuMemCreate(&handle, part, &properties, 0));
        TPX_CU(cuda->cuMemMap(at + i * part, part, 0, handle, 0));
        TPX_CU(cuda->cuMemRelease(handle));
    }
    TPX_CU(cuda->cuMemSetAccess(at, KINDS_MAPPINGS * part, &access, 1));
    buffer->memory = (void *)(uintptr_t)at;
    /* All of its mappings, but not all bytes of them. */
    buffer->data = (unsigned char *)buffer->memory + part - 1;
    buffer->length = (KINDS_MAPPINGS - 2) * part + 2;
}

static unsigned kinds_descriptors(void)
{
    unsigned open = 0;

    for (int fd = 0; fd < 4096; fd++)
        open += fcntl(fd, F_GETFD) >= 0;
    return open;
}

/* They are told by and by, while the bytes go another way; each of them once.
 */
static void kinds_pieces(void)
{
    enum { ROUNDS = 6, NAP_MS = 30 };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    bool direct = strstr(getenv("TP_BACKENDS"), "shm") != NULL
                  && tpx_backend("cuda_ipc");
    struct tpx_buffer buffer, mapped;
    unsigned before;

    tpx_buffer_make(&buffer, TPX_MALLOC, 0, KINDS_MAPPINGS * kinds_granule());
    mapped = buffer;               /* with its shadow */
    kinds_mappings(&mapped, true);
    buffer.length = mapped.length;
    before = kinds_descriptors();
    for (unsigned i = 0; i < ROUNDS; i++) {
        /* With nobody to drive it, what is told stays in the socket. */
        tpx_meet(!tpx_me.rank);
        if (tpx_me.rank == 1)
            tpx_sleep_ms(NAP_MS);
        if (tpx_me.rank == 0)
            kinds_send(pipe, &mapped, 1, i);
        else
            kinds_receive(pipe, &buffer, 1, i);
    }
    if (tpx_me.rank == 1 && tpx_device_is_double())
        tpx_equal(kinds_opened(pipe, NULL), direct ? 1 : 0);
    /* The double keeps one for each that is open. */
    tpx_check(kinds_descriptors() < before + KINDS_MAPPINGS + 32,
              "%u descriptors are open, %u were", kinds_descriptors(), before);
    tpx_meet(!tpx_me.rank);
    kinds_mappings(&mapped, false);
    tpx_buffer_drop(&buffer);
}

/* ---- what cannot be opened ----------------------------------------------- */

/* TP_TEST_FAULT says which call fails, and where: "reader=" or "writer=" and
 * what CUDADOUBLE_FAIL takes.  What is under way and all that follows goes
 * another way, and arrives. */
static void kinds_fault(void)
{
    const char *fault = getenv("TP_TEST_FAULT");
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct tpx_buffer buffers[2];

    for (size_t i = 0; i < 2; i++)
        tpx_buffer_make(&buffers[i], i == 0 ? TPX_MALLOC : TPX_PIECES, 0,
                        kinds_big());
    tpx_check(fault != NULL, "TP_TEST_FAULT is not set");
    if ((strncmp(fault, "writer=", 7) == 0) == (tpx_me.rank == 0))
        tpx_device_fails(fault + 7);
    for (unsigned i = 0; i < 6; i++)
        if (tpx_me.rank == 0)
            kinds_send(pipe, &buffers[i % 2], 1, i);
        else
            kinds_receive(pipe, &buffers[i % 2], 1, i);
    tpx_meet(!tpx_me.rank);
    tpx_device_fails("");
    for (size_t i = 0; i < 2; i++)
        tpx_buffer_drop(&buffers[i]);
}

const struct tpx_spmd tpx_kinds_fault
    = { "kinds_fault", kinds_fault, 2, 0, 30 };

/* The two number their devices differently, and each misses one of the
 * other's. */
static void kinds_views(void)
{
    tp_pipe *pipe;
    struct tpx_buffer buffers[2][2];
    const char *rank = getenv("TP_RANK");

    setenv("CUDADOUBLE_FIRST", rank != NULL ? rank : "0", 1);
    kinds_init();
    pipe = tpx_pipe(!tpx_me.rank, 0);
    for (int device = 0; device < 2; device++)
        for (int i = 0; i < 2; i++)
            tpx_buffer_make(&buffers[device][i], i == 0 ? TPX_MALLOC : TPX_VMM,
                            device, kinds_big());
    for (int from = 0; from < 2; from++)
        for (int to = 0; to < 2; to++)
            for (int way = 0; way < 2; way++)
                if (tpx_me.rank == way)
                    kinds_send(pipe, buffers[from], 2, 9);
                else
                    kinds_receive(pipe, buffers[to], 2, 9);
    tpx_meet(!tpx_me.rank);
    for (int device = 0; device < 2; device++)
        for (int i = 0; i < 2; i++)
            tpx_buffer_drop(&buffers[device][i]);
}

/* ---- every order --------------------------------------------------------- */

static void kinds_drive(unsigned rounds)
{
    for (unsigned i = 0; i < rounds; i++)
        tp_wait(tpx_me.context, 1, NULL);
}

/* The tensor is filled behind what holds up its stream, if that is busy; what
 * comes after the callback is not seen over there. */
static void kinds_order_writer(tp_pipe *pipe, struct tpx_buffer *buffer,
                               bool busy, uint64_t seed)
{
    tp_tensor tensor = tpx_buffer_tensor(buffer);
    tp_message message = { .tensors = &tensor, .tensor_count = 1 };
    struct tpx_gate gate;
    unsigned done = 0;

    tpx_buffer_spoil(buffer);
    if (busy)
        tpx_gate_close(&gate, buffer->stream);
    tpx_buffer_fill(buffer, seed);
    tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &done));
    if (busy) {
        kinds_drive(3);
        tpx_equal(done, 0);
        tpx_gate_open(&gate);
    }
    tpx_until(&done, 1);
    tpx_buffer_spoil(buffer);
}

/* What is on the reader's stream before uses the memory before; the copy that
 * is enqueued right after the callback, or much later, sees the data. */
static void kinds_order_reader(tp_pipe *pipe, struct tpx_buffer *buffer,
                               struct tpx_buffer *before, bool busy, bool late,
                               uint64_t seed)
{
    struct tpx_gate gate;
    tp_message *skeleton;
    unsigned done = 0;

    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
    tpx_buffer_fill(buffer, seed + 1);
    if (busy)
        tpx_gate_close(&gate, buffer->stream);
    tpx_device_copy(before->data, buffer->data, buffer->length,
                    buffer->stream);
    tpx_buffer_place(buffer, &skeleton->tensors[0]);
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, &done));
    if (busy) {
        kinds_drive(3);
        tpx_equal(done, 0);
        tpx_gate_open(&gate);
    }
    tpx_until(&done, 1);
    if (late)
        tpx_device_sync(buffer->stream);
    tpx_buffer_check(buffer, seed);
    tpx_buffer_check(before, seed + 1);
}

static void kinds_orders(void)
{
    static const enum tpx_kind kinds[] = { TPX_MALLOC, TPX_POOL, TPX_MANAGED,
                                           TPX_PIECES };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);

    for (unsigned i = 0; i < 32; i++) {
        enum tpx_kind kind = kinds[i / 8];
        size_t length = i / 8 % 2 == 0 ? kinds_big() : SMALL;
        struct tpx_buffer buffer, before;

        tpx_buffer_make(&buffer, kind, (int)i / 4 % 2, length);
        tpx_buffer_make(&before, TPX_MALLOC, (int)i / 4 % 2, length);
        if (tpx_me.rank == 0)
            kinds_order_writer(pipe, &buffer, (i & 1) != 0, i);
        else
            kinds_order_reader(pipe, &buffer, &before, (i & 2) != 0,
                               (i & 4) != 0, i);
        tpx_meet(!tpx_me.rank);
        tpx_buffer_drop(&buffer);
        tpx_buffer_drop(&before);
    }
}

/* ---- for planted faults -------------------------------------------------- */

/* Messages between devices, one after the other, in memory that comes back. */
static void kinds_short(void)
{
    static const enum tpx_kind kinds[] = { TPX_MALLOC, TPX_MALLOC, TPX_POOL,
                                           TPX_POOL, TPX_PIECES };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);

    for (unsigned i = 0; i < 5; i++) {
        struct tpx_buffer buffer;

        tpx_buffer_make(&buffer, kinds[i], 0, kinds_big());
        if (tpx_me.rank == 0)
            kinds_send(pipe, &buffer, 1, i);
        else
            kinds_receive(pipe, &buffer, 1, i);
        tpx_meet(!tpx_me.rank);
        tpx_buffer_drop(&buffer);
    }
}

const struct tpx_spmd tpx_kinds_short
    = { "kinds_short", kinds_short, 2, 0, 60 };

const struct tpx_spmd tpx_kinds_suite[] = {
    { "kinds_pairs", kinds_pairs, 2, 0, 60 },
    { "kinds_self", kinds_self, 1, 0, 30 },
    { "kinds_self_direct", kinds_self_direct, 1, 0, 30 },
    { "kinds_again", kinds_again, 2, 0, 30 },
    { "kinds_few_imports", kinds_few_imports, 2, TPX_BARE, 30 },
    { "kinds_few_bytes", kinds_few_bytes, 2, TPX_BARE, 30 },
    { "kinds_freed", kinds_freed, 2, 0, 30 },
    { "kinds_one_region", kinds_one_region, 2, TPX_BARE, 30 },
    { "kinds_held", kinds_held, 2, TPX_BARE, 30 },
    { "kinds_no_outbox", kinds_no_outbox, 2, TPX_BARE, 30 },
    { "kinds_views", kinds_views, 2, TPX_BARE, 30 },
    { "kinds_two", kinds_two, 2, TPX_BARE, 30 },
    { "kinds_no_stray", kinds_no_stray, 2, 0, 30 },
    { "kinds_no_descriptors", kinds_no_descriptors, 2, 0, 30 },
    { "kinds_pieces", kinds_pieces, 2, 0, 60 },
    { "kinds_orders", kinds_orders, 2, 0, 60 },
    { NULL }
};
