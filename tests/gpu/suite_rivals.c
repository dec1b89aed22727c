/* SPDX-License-Identifier: BSD-3-Clause */
/* Two direct ways between the same devices: each gets the sizes for which it
 * is the better one, as explain says. */
#include "config.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/buffer.h"
#include "tests/gpu/suite_device.h"

enum { PATIENCE = 60000, STAGED = 0, GDR = 1, IPC = 2 };

static unsigned rivals_flushes(void)
{
    void *library = dlopen(getenv("TP_CUDA_LIBRARY"), RTLD_NOW);
    unsigned (*count)(void) = NULL;

    if (library != NULL)
        *(void **)&count = dlsym(library, "cudadouble_flushes");
    tpx_check(count != NULL, "this is not the double of libcuda");
    return count();
}

static unsigned rivals_opened(tp_pipe *pipe)
{
    unsigned opened = 0;
    char *json, *at;

    tpx_ok(tp_pipe_explain(pipe, &json));
    at = strstr(json, "\"devices\"");
    tpx_check(at != NULL && strstr(at, "\"cuda_staged\"") != NULL, "%s", json);
    at = strstr(json, "\"imports\"");
    tpx_check(at != NULL && sscanf(strstr(at, "\"opened\""),
                                   "\"opened\": %u", &opened) == 1,
              "explain tells of no imports");
    free(json);
    return opened;
}

/* Which way a buffer of that length goes: what a NIC writes is flushed, what is
 * copied from another process is opened. */
static void rivals_move(tp_pipe *pipe, size_t length, int way)
{
    unsigned opened = rivals_opened(pipe), flushes = rivals_flushes();
    struct tpx_buffer buffer;
    tp_tensor tensor;
    tp_message message = { .tensors = &tensor, .tensor_count = 1 };

    tpx_buffer_make(&buffer, TPX_MALLOC, 0, length);
    if (tpx_me.rank == 0) {
        tpx_buffers_send(pipe, &message, &buffer, length, PATIENCE);
    } else {
        tp_message *skeleton;

        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, PATIENCE));
        tpx_buffer_place(&buffer, &skeleton->tensors[0]);
        tpx_ok(tp_pipe_recv_message(pipe, skeleton, PATIENCE));
        tpx_buffer_check(&buffer, length);
        tpx_check((rivals_flushes() > flushes) == (way == GDR),
                  "%zu bytes: %u flushes after %u", length, rivals_flushes(),
                  flushes);
        tpx_check((rivals_opened(pipe) > opened) == (way == IPC),
                  "%zu bytes: %u imports after %u", length,
                  rivals_opened(pipe), opened);
    }
    tpx_meet(!tpx_me.rank);
    tpx_buffer_drop(&buffer);
}

static void rivals(void)
{
    tp_pipe *pipe;

    setenv("TP_CARD_HOOK", "rivals", 1);
    tpx_ok(tp_init(NULL, &tpx_me.context));
    tpx_me.size = tp_size(tpx_me.context);
    pipe = tpx_pipe(!tpx_me.rank, 0);
    tpx_meet(!tpx_me.rank);            /* explain tells of who is connected */
    rivals_move(pipe, 16 << 10, STAGED);
    rivals_move(pipe, 256 << 10, GDR);
    rivals_move(pipe, 4 << 20, IPC);
    rivals_move(pipe, 300 << 10, GDR);
    rivals_move(pipe, 1 << 20, IPC);
}

const struct tpx_spmd tpx_rivals = { "rivals", rivals, 2, TPX_BARE, 30 };
