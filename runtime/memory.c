/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tp_alloc(): memory that local peers can map and devices know, and that is
 * found again when a buffer of it is sent.
 */
#include "config.h"

#include "runtime/arena.h"
#include "runtime/base/alloc.h"
#include "runtime/base/log.h"
#include "runtime/channels.h"
#include "runtime/core.h"

TPB_LOG_COMPONENT("memory");

static tp_status memory_on_device(tp_context *context, size_t bytes,
                                  tp_device device, struct tpf_memory *block)
{
    struct tpb_error error = { "" };
    tp_status status;

    if (device.type != TP_DEVICE_CUDA) {
        tpb_info("tp_alloc: no such kind of device: %d", (int)device.type);
        return TP_ERR_INVALID;
    }
    status = tpg_alloc(context->gpu, bytes, device, block, &error);
    if (status == TP_ERR_INVALID || status == TP_ERR_NOT_SUPPORTED)
        tpb_info("tp_alloc: %s", error.text);
    else if (status != TP_OK)
        tpb_warn("tp_alloc: %s", error.text);
    return status;
}

static void memory_destroy(tp_context *context, struct tpf_memory *block)
{
    if (block->device.type == TP_DEVICE_CPU)
        tpf_memory_destroy(block);
    else
        tpg_free(context->gpu, block);
}

struct memory_task {
    struct tpr_task task;
    uint64_t id;
};

/* Whoever keeps something of the block; token. */
static void memory_freed(tp_context *context, uint64_t id)
{
    for (uint32_t i = 0; i < context->endpoint_count; i++) {
        struct tpf_endpoint *endpoint = context->endpoints[i];

        if (endpoint->backend->freed != NULL)
            endpoint->backend->freed(endpoint, id);
    }
    tpr_channels_freed(context, id);
}

static void memory_freed_run(tp_context *context, struct tpr_task *base)
{
    struct memory_task *task = TPB_CONTAINER(base, struct memory_task, task);

    memory_freed(context, task->id);
    tpb_free(task);
}

/* Without memory for a task the peers keep their mapping until they part. */
static void memory_tell(tp_context *context, uint64_t id)
{
    struct memory_task *task;

    if (tpr_enter(context)) {
        memory_freed(context, id);
        tpr_leave(context);
        return;
    }
    task = tpb_zalloc(sizeof(*task));
    if (task == NULL)
        return;
    task->task.run = memory_freed_run;
    task->id = id;
    tpr_submit(context, &task->task);
}

/* ---- memory of the host ------------------------------------------------- */

/* Peers may know it, if it has been in use. */
static void memory_end(tp_context *context, struct tpf_memory *block)
{
    if (block->id != 0)
        memory_tell(context, block->id);
    memory_destroy(context, block);
}

/* Peers keep their mappings of it, too. */
static bool memory_keep(tp_context *context, const struct tpf_memory *block)
{
    struct tpf_memory old;
    bool kept = block->device.type == TP_DEVICE_CPU
                && tpf_memory_keep(&context->memories, block);

    while (kept && tpf_memory_drop(&context->memories, false, &old))
        memory_end(context, &old);
    return kept;
}

/* Arenas in which nothing lies, all but so many. */
static void memory_close_arenas(tp_context *context, unsigned most)
{
    struct tpf_memory block;
    const void *memory;

    while ((memory = tpr_arena_close(&context->arenas, most)) != NULL
           && tpf_memory_take(&context->memories, memory, &block)) {
        tpr_arena_end(&context->arenas, &block);
        if (!memory_keep(context, &block))
            memory_end(context, &block);
    }
}

/* So many stay open for who asks next, if that is within the limit. */
static unsigned memory_spare(const tp_context *context)
{
    int64_t keep = context->settings.number[TPB_SET_ALLOC_KEEP];

    return keep < 0 || (size_t)keep >= TPR_ARENA;
}

/* One that is kept, or a new one. */
static tp_status memory_get(tp_context *context, size_t bytes,
                            struct tpf_memory *block, struct tpb_error *error)
{
    return tpf_memory_again(&context->memories, bytes, block)
               ? TP_OK : tpf_memory_make(block, bytes, error);
}

/* The status does not tell what else than memory is lacking.  Once, as a
 * program may ask again and again, and do without. */
static void memory_tell_why(const struct tpb_error *error)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;

    if (error->text[0] != '\0' && !atomic_flag_test_and_set(&told))
        tpb_warn("tp_alloc: %s", error->text);
}

/* What is kept goes before there is not enough. */
static tp_status memory_on_host(tp_context *context, size_t bytes,
                                struct tpf_memory *block)
{
    struct tpb_error error = { "" };
    tp_status status = memory_get(context, bytes, block, &error);

    if (status != TP_OK)
        memory_close_arenas(context, 0);
    while (status != TP_OK
           && tpf_memory_drop(&context->memories, true, block)) {
        memory_end(context, block);
        error.text[0] = '\0';
        status = tpf_memory_make(block, bytes, &error);
    }
    if (status != TP_OK)
        memory_tell_why(&error);
    return status;
}

/* A short block; NULL if it has to be one of its own, as an arena is not worth
 * giving up what is kept. */
static void *memory_in_arena(tp_context *context, size_t bytes)
{
    void *memory = tpr_arena_take(&context->arenas, bytes);
    struct tpf_memory block;

    if (memory != NULL
        || memory_get(context, TPR_ARENA, &block, NULL) != TP_OK)
        return memory;
    tpr_arena_new(&block);
    if (block.arena != NULL
        && tpf_memory_add(&context->memories, &block) == TP_OK)
        return tpr_arena_open(&context->arenas, &block, bytes);
    tpr_arena_end(&context->arenas, &block);
    memory_end(context, &block);
    return NULL;
}

/* ---- the calls ---------------------------------------------------------- */

tp_status tp_alloc(tp_context *context, size_t bytes, tp_device device,
                   void **result)
{
    struct tpf_memory block;
    void *memory = NULL;
    tp_status status;

    if (context == NULL || result == NULL || bytes == 0
        || (device.type == TP_DEVICE_CPU && device.index != 0))
        return TP_ERR_INVALID;
    if (bytes > SIZE_MAX / 2)
        return TP_ERR_NO_MEMORY;
    if (device.type == TP_DEVICE_CPU && bytes <= TPR_ARENA_MOST
        && context->settings.number[TPB_SET_ALLOC_KEEP] != 0)
        memory = memory_in_arena(context, bytes);
    if (memory != NULL) {
        *result = memory;
        return TP_OK;
    }
    status = device.type == TP_DEVICE_CPU
                 ? memory_on_host(context, bytes, &block)
                 : memory_on_device(context, bytes, device, &block);
    if (status != TP_OK)
        return status;
    status = tpf_memory_add(&context->memories, &block);
    if (status != TP_OK) {
        memory_end(context, &block);
        return status;
    }
    *result = block.address;
    return TP_OK;
}

tp_status tp_free(tp_context *context, void *address)
{
    enum tpr_arena_given given;
    struct tpf_memory block;

    if (context == NULL)
        return TP_ERR_INVALID;
    if (address == NULL)
        return TP_OK;
    given = tpr_arena_give(&context->arenas, &context->memories, address);
    if (given == TPR_ARENA_GIVEN)
        memory_close_arenas(context, memory_spare(context));
    if (given != TPR_ARENA_NONE)
        return given == TPR_ARENA_GIVEN ? TP_OK : TP_ERR_INVALID;
    if (!tpf_memory_take(&context->memories, address, &block))
        return TP_ERR_INVALID;
    if (!memory_keep(context, &block))
        memory_end(context, &block);
    return TP_OK;
}

void tpr_memory_fini(tp_context *context)
{
    struct tpf_memory block;

    while (tpf_memory_take(&context->memories, NULL, &block)
           || tpf_memory_drop(&context->memories, true, &block)) {
        tpr_arena_end(&context->arenas, &block);
        memory_destroy(context, &block);
    }
    tpr_arenas_fini(&context->arenas);
    tpf_memories_fini(&context->memories);
}
