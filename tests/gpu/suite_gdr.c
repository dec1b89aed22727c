/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cuda_gdr between two ranks.  What goes that way is copied by neither rank's
 * device, so while "direct" messages flow, every copy by the driver fails.
 *
 * The first argument says what is expected of the way .
 */
#include "config.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/device.h"
#include "tests/gpu/suite_gdr.h"

enum { PATIENCE = 120000 };

static const tp_device gdr_cpu = { TP_DEVICE_CPU, 0 };
static const tp_device gdr_zero = { TP_DEVICE_CUDA, 0 };
static const tp_device gdr_one = { TP_DEVICE_CUDA, 1 };

/* A tensor, and host memory to compare with. */
struct gdr_buffer {
    tp_device where;
    size_t length;
    unsigned char *data, *shadow;
    cu_stream stream;
};

/* What the argument says: "direct", "staged", or "falls", when it begins
 * direct and ends staged. */
static bool gdr_expect(const char *what)
{
    return tpx_me.arguments[0] != NULL
           && strcmp(tpx_me.arguments[0], what) == 0;
}

static void gdr_make(struct gdr_buffer *buffer, tp_device where, size_t length)
{
    buffer->where = where;
    buffer->length = length;
    tpx_device_use(where.type == TP_DEVICE_CUDA ? where.index : 0);
    buffer->shadow = malloc(length);
    tpx_check(buffer->shadow != NULL, "out of memory");
    buffer->stream = tpx_device_stream();
    buffer->data = where.type == TP_DEVICE_CUDA ? tpx_device_malloc(length)
                                                : buffer->shadow;
}

static void gdr_drop(struct gdr_buffer *buffer)
{
    const struct tpg_cuda *cuda = tpx_device_driver();

    tpx_device_use(buffer->where.type == TP_DEVICE_CUDA ? buffer->where.index
                                                        : 0);
    if (buffer->data != buffer->shadow)
        TPX_CU(cuda->cuMemFree_v2((cu_pointer)(uintptr_t)buffer->data));
    TPX_CU(cuda->cuStreamDestroy_v2(buffer->stream));
    free(buffer->shadow);
}

/* Enqueued only: whoever reads the tensor has to wait. */
static void gdr_fill(struct gdr_buffer *buffer, uint64_t seed)
{
    tpx_fill(buffer->shadow, buffer->length, seed);
    if (buffer->data != buffer->shadow)
        tpx_device_copy(buffer->data, buffer->shadow, buffer->length,
                        buffer->stream);
}

static void gdr_check(struct gdr_buffer *buffer, uint64_t seed)
{
    if (buffer->data != buffer->shadow) {
        memset(buffer->shadow, 0, buffer->length);
        tpx_device_copy(buffer->shadow, buffer->data, buffer->length,
                        buffer->stream);
        tpx_device_sync(buffer->stream);
    }
    tpx_equal(tpx_verify(buffer->shadow, buffer->length, seed),
              buffer->length);
}

static void gdr_spoil(struct gdr_buffer *buffer)
{
    if (buffer->data != buffer->shadow)
        TPX_CU(tpx_device_driver()->cuMemsetD8Async(
            (cu_pointer)(uintptr_t)buffer->data, 0xee, buffer->length,
            buffer->stream));
    else
        memset(buffer->data, 0xee, buffer->length);
}

/* From here on the driver copies nothing; or again. */
static void gdr_no_copies(bool none)
{
    if (none)
        tpx_device_fails("cuMemcpyAsync:1+:700");
    else
        tpx_device_fails("");
}

static void gdr_send(tp_pipe *pipe, struct gdr_buffer *buffer,
                     tp_device target, uint64_t seed, bool direct)
{
    tp_tensor tensor = { .data = buffer->data, .length = buffer->length,
                         .device = buffer->where, .target = target,
                         .stream = buffer->where.type == TP_DEVICE_CUDA
                                   ? buffer->stream : NULL };
    tp_message message = { .tensors = &tensor, .tensor_count = 1 };

    gdr_fill(buffer, seed);
    gdr_no_copies(direct);
    tpx_ok(tp_pipe_send_message(pipe, &message, PATIENCE));
    gdr_no_copies(false);
    gdr_spoil(buffer);
}

static void gdr_receive(tp_pipe *pipe, struct gdr_buffer *buffer,
                        uint64_t seed, bool direct)
{
    tp_message *skeleton;

    gdr_spoil(buffer);
    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
    tpx_equal(skeleton->tensors[0].length, buffer->length);
    skeleton->tensors[0].data = buffer->data;
    skeleton->tensors[0].device = buffer->where;
    skeleton->tensors[0].stream = buffer->stream;
    gdr_no_copies(direct);
    tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
    gdr_no_copies(false);
    gdr_check(buffer, seed);
}

/* One message from rank 0 to rank 1. */
static void gdr_move(tp_pipe *pipe, struct gdr_buffer *buffer,
                     tp_device target, uint64_t seed, bool direct)
{
    if (tpx_me.rank == 0)
        gdr_send(pipe, buffer, target, seed, direct);
    else
        gdr_receive(pipe, buffer, seed, direct);
}

/* The trials, whose bytes the driver copies, are behind us afterwards. */
static void gdr_warm(tp_pipe *pipe)
{
    tp_device places[] = { gdr_zero, gdr_one };

    for (size_t i = 0; i < 2; i++) {
        struct gdr_buffer buffer;

        gdr_make(&buffer, places[i], 300000);
        gdr_move(pipe, &buffer, places[i], i, false);
        gdr_drop(&buffer);
    }
}

/* ---- every mix ----------------------------------------------------------- */

static unsigned gdr_flushes(void)
{
    void *library = dlopen(getenv("TP_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
    unsigned (*count)(void) = NULL;

    if (library != NULL)
        *(void **)&count = dlsym(library, "cudadouble_flushes");
    tpx_check(count != NULL, "this is not the double of libcuda");
    return count();
}

static void gdr_mix(void)
{
    static const size_t sizes[] = { 131072, 1048577, 3 * 1024 * 1024 + 7 };
    enum { SIZES = 3, FROM_ZERO = 4 };
    const tp_device places[] = { gdr_cpu, gdr_zero, gdr_one };
    const char *order = getenv("CUDADOUBLE_GDR_ORDER");
    bool direct = gdr_expect("direct");
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned wanted = 0, before;

    gdr_warm(pipe);
    before = gdr_flushes();
    for (size_t i = 0; i < SIZES; i++)
        for (unsigned mix = 1; mix < 9; mix++) {
            tp_device from = places[mix / 3], to = places[mix % 3];
            struct gdr_buffer buffer;

            if (i == SIZES - 1 && mix != FROM_ZERO)
                continue;          /* big ones once */
            wanted += to.type == TP_DEVICE_CUDA && tpx_me.rank == 1;
            gdr_make(&buffer, tpx_me.rank == 0 ? from : to, sizes[i]);
            gdr_move(pipe, &buffer, to, 100 * i + mix, direct);
            gdr_drop(&buffer);
        }
    /* What a NIC writes is flushed, once a buffer, if the device asks. */
    if (direct)
        tpx_equal(gdr_flushes() - before,
                  order != NULL && atoi(order) >= CU_GDR_ORDER_OWNER ? 0
                                                                     : wanted);
    tpx_meet(!tpx_me.rank);
}

/* ---- addresses that come back -------------------------------------------- */

static void gdr_reuse(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned char *seen = NULL;
    unsigned again = 0;

    gdr_warm(pipe);
    for (unsigned round = 0; round < 6; round++) {
        struct gdr_buffer buffer;

        gdr_make(&buffer, gdr_zero, 1 << 20);
        again += buffer.data == seen;
        seen = buffer.data;
        gdr_move(pipe, &buffer, gdr_zero, 40 + round, true);
        gdr_move(pipe, &buffer, gdr_zero, 50 + round, true);
        gdr_drop(&buffer);
    }
    tpx_check(again > 0, "no address came back: nothing was tested");
    tpx_meet(!tpx_me.rank);
}

/* tp_alloc()'s memory of a device, which is of cuMemMap. */
static void gdr_alloc(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct gdr_buffer buffer;
    unsigned char *own;
    void *memory;

    gdr_warm(pipe);
    gdr_make(&buffer, gdr_one, 400000);
    own = buffer.data;
    tpx_ok(tp_alloc(tpx_me.context, buffer.length, gdr_one, &memory));
    buffer.data = memory;
    gdr_move(pipe, &buffer, gdr_one, 9, true);
    tpx_meet(!tpx_me.rank);
    tpx_device_sync(buffer.stream);
    tpx_ok(tp_free(tpx_me.context, memory));
    buffer.data = own;
    gdr_drop(&buffer);
}

/* ---- the middle of a buffer ---------------------------------------------- */

/* Only a piece of every big buffer is registered (VERBSDOUBLE_SHORT): the rest
 * comes staged, and so does all that follows. */
static void gdr_falls(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct gdr_buffer buffer;
    char *json;

    gdr_warm(pipe);
    gdr_make(&buffer, gdr_zero, 1 << 20);
    gdr_move(pipe, &buffer, gdr_zero, 1, true);
    gdr_drop(&buffer);
    for (unsigned i = 0; i < 2; i++) {
        gdr_make(&buffer, gdr_zero, 5 << 20);
        gdr_move(pipe, &buffer, gdr_zero, 2 + i, false);
        gdr_drop(&buffer);
    }
    tpx_ok(tp_pipe_explain(pipe, &json));
    if (tpx_me.rank == 0)
        tpx_check(strstr(json, "reading remotely") != NULL, "%s", json);
    free(json);
    tpx_meet(!tpx_me.rank);
}

const struct tpx_spmd tpx_gdr_suite[] = {
    { "gdr_mix", gdr_mix, 2, 0, 60 },
    { "gdr_reuse", gdr_reuse, 2, 0, 60 },
    { "gdr_alloc", gdr_alloc, 2, 0, 60 },
    { "gdr_falls", gdr_falls, 2, 0, 60 },
    { NULL }
};
