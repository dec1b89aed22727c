/* SPDX-License-Identifier: BSD-3-Clause */
/* What tp_alloc() made, in order of address. */
#include "config.h"

#include <sys/mman.h>
#include <unistd.h>

#include "fabric/memory.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

void tpf_memories_init(struct tpf_memories *memories)
{
    memset(memories, 0, sizeof(*memories));
    pthread_mutex_init(&memories->lock, NULL);
}

void tpf_memories_fini(struct tpf_memories *memories)
{
    tpb_free(memories->blocks);
    pthread_mutex_destroy(&memories->lock);
}

tp_status tpf_memory_make(struct tpf_memory *block, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *address = MAP_FAILED;

    memset(block, 0, sizeof(*block));
    block->length = (bytes + page - 1) / page * page;
    block->fd = tpb_shared_memory("tp-alloc", block->length);
    if (block->fd >= 0)
        address = mmap(NULL, block->length, PROT_READ | PROT_WRITE,
                       MAP_SHARED, block->fd, 0);
    if (address == MAP_FAILED) {
        tpb_close(&block->fd);
        return TP_ERR_NO_MEMORY;
    }
    block->address = address;
    return TP_OK;
}

void tpf_memory_destroy(struct tpf_memory *block)
{
    munmap(block->address, block->length);
    tpb_close(&block->fd);
}

/* How many blocks begin at or before that address; with the lock. */
static size_t memory_rank(const struct tpf_memories *memories,
                          const unsigned char *address)
{
    size_t low = 0, high = memories->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (memories->blocks[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool memory_grow(struct tpf_memories *memories)
{
    size_t capacity = memories->capacity == 0 ? 16 : memories->capacity * 2;
    struct tpf_memory *blocks;

    if (memories->count < memories->capacity)
        return true;
    blocks = tpb_resize(memories->blocks, capacity * sizeof(*blocks));
    if (blocks == NULL)
        return false;
    memories->blocks = blocks;
    memories->capacity = capacity;
    return true;
}

/* With the lock.  Pairs with tpf_memory_stamp(). */
static void memory_changed(struct tpf_memories *memories)
{
    uintptr_t from = 0, to = 0;

    if (memories->count > 0) {
        const struct tpf_memory *last
            = &memories->blocks[memories->count - 1];

        from = (uintptr_t)memories->blocks[0].address;
        to = (uintptr_t)last->address + last->length;
    }
    atomic_store_explicit(&memories->from, from, memory_order_relaxed);
    atomic_store_explicit(&memories->to, to, memory_order_relaxed);
    atomic_fetch_add_explicit(&memories->stamp, 1, memory_order_release);
}

tp_status tpf_memory_add(struct tpf_memories *memories,
                         const struct tpf_memory *block)
{
    tp_status status = TP_ERR_NO_MEMORY;

    pthread_mutex_lock(&memories->lock);
    if (memory_grow(memories)) {
        size_t at = memory_rank(memories, block->address);

        memmove(&memories->blocks[at + 1], &memories->blocks[at],
                (memories->count - at) * sizeof(*block));
        memories->blocks[at] = *block;
        memories->blocks[at].id = ++memories->next_id;
        memories->count++;
        memory_changed(memories);
        status = TP_OK;
    }
    pthread_mutex_unlock(&memories->lock);
    return status;
}

bool tpf_memory_take(struct tpf_memories *memories, const void *address,
                     struct tpf_memory *block)
{
    bool found;
    size_t at;

    pthread_mutex_lock(&memories->lock);
    at = address == NULL ? memories->count : memory_rank(memories, address);
    found = at > 0 && (address == NULL
                       || memories->blocks[at - 1].address == address);
    if (found) {
        *block = memories->blocks[at - 1];
        memmove(&memories->blocks[at - 1], &memories->blocks[at],
                (memories->count - at) * sizeof(*block));
        memories->count--;
        memory_changed(memories);
    }
    pthread_mutex_unlock(&memories->lock);
    return found;
}

/* Whoever asks for a block knows it, and so the bounds that it has set; they
 * only move away from it, or from what is there no more. */
static bool memory_is_outside(const struct tpf_memories *memories,
                              const void *data)
{
    uintptr_t at = (uintptr_t)data;

    return at < atomic_load_explicit(&memories->from, memory_order_relaxed)
           || at >= atomic_load_explicit(&memories->to, memory_order_relaxed);
}

bool tpf_memory_find(struct tpf_memories *memories, const void *data,
                     size_t length, struct tpf_memory *block)
{
    bool found;
    size_t at;

    if (memory_is_outside(memories, data))
        return false;
    pthread_mutex_lock(&memories->lock);
    at = memory_rank(memories, data);
    found = at > 0;
    if (found) {
        const struct tpf_memory *candidate = &memories->blocks[at - 1];
        size_t offset = (size_t)((const unsigned char *)data
                                 - candidate->address);

        found = offset < candidate->length
                && length <= candidate->length - offset;
        if (found)
            *block = *candidate;
    }
    pthread_mutex_unlock(&memories->lock);
    return found;
}
