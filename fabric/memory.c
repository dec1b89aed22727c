/* SPDX-License-Identifier: BSD-3-Clause */
/* What tp_alloc() made, in order of address. */
#include "config.h"

#include <errno.h>
#include <sys/mman.h>

#include "fabric/memory.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

/* What is kept fits if less than one part in so many of it is left over. */
enum { MEMORY_WASTE = 8 };

void tpf_memories_init(struct tpf_memories *memories)
{
    memset(memories, 0, sizeof(*memories));
    pthread_mutex_init(&memories->lock, NULL);
}

void tpf_memories_limit(struct tpf_memories *memories, int64_t keep)
{
    memories->grows = keep < 0;
    memories->kept_most = keep < 0 ? TPF_KEPT_BYTES : (size_t)keep;
}

void tpf_memories_fini(struct tpf_memories *memories)
{
    tpb_free(memories->blocks);
    pthread_mutex_destroy(&memories->lock);
}

static size_t memory_pages(size_t bytes)
{
    size_t page = tpb_page();

    return (bytes + page - 1) / page * page;
}

tp_status tpf_memory_make(struct tpf_memory *block, size_t bytes,
                          struct tpb_error *error)
{
    void *address = MAP_FAILED;

    memset(block, 0, sizeof(*block));
    block->length = memory_pages(bytes);
    block->fd = tpb_shared_memory("tp-alloc", block->length);
    if (block->fd >= 0)
        address = mmap(NULL, block->length, PROT_READ | PROT_WRITE,
                       MAP_SHARED, block->fd, 0);
    if (address == MAP_FAILED) {
        if (errno != ENOMEM)
            tpb_fail_errno(error, errno, "no shared memory");
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
        if (block->id == 0)
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

/* ---- freed blocks ------------------------------------------------------- */

/* With the lock. */
static void memory_unkeep(struct tpf_memories *memories, size_t at,
                          struct tpf_memory *block)
{
    *block = memories->kept[at];
    memories->kept_count--;
    memories->kept_bytes -= block->length;
    memmove(&memories->kept[at], &memories->kept[at + 1],
            (memories->kept_count - at) * sizeof(*block));
}

bool tpf_memory_keep(struct tpf_memories *memories,
                     const struct tpf_memory *block)
{
    bool kept;

    pthread_mutex_lock(&memories->lock);
    kept = memories->kept_count <= TPF_KEPT
           && block->length <= memories->kept_most;
    if (kept) {
        memories->kept[memories->kept_count++] = *block;
        memories->kept_bytes += block->length;
    } else {
        memories->refused = block->length;
    }
    pthread_mutex_unlock(&memories->lock);
    return kept;
}

static bool memory_fits(size_t length, size_t bytes)
{
    return length >= bytes && length - bytes <= length / MEMORY_WASTE;
}

/* What was given back lately is asked for again: room for two of it. */
static void memory_grow_kept(struct tpf_memories *memories, size_t bytes)
{
    size_t room = 2 * memories->refused;

    if (!memories->grows || memories->refused > TPF_KEPT_MOST
        || !memory_fits(memories->refused, bytes)
        || room <= memories->kept_most)
        return;
    memories->kept_most = room < TPF_KEPT_MOST ? room : TPF_KEPT_MOST;
}

/* The last one that was freed: it is in the caches. */
bool tpf_memory_again(struct tpf_memories *memories, size_t bytes,
                      struct tpf_memory *block)
{
    bool found = false;

    bytes = memory_pages(bytes);
    pthread_mutex_lock(&memories->lock);
    for (size_t i = memories->kept_count; i > 0 && !found; i--) {
        found = memory_fits(memories->kept[i - 1].length, bytes);
        if (found)
            memory_unkeep(memories, i - 1, block);
    }
    if (!found)
        memory_grow_kept(memories, bytes);
    pthread_mutex_unlock(&memories->lock);
    return found;
}

bool tpf_memory_drop(struct tpf_memories *memories, bool all,
                     struct tpf_memory *block)
{
    bool more;

    pthread_mutex_lock(&memories->lock);
    more = memories->kept_count > 0
           && (all || memories->kept_count > TPF_KEPT
               || memories->kept_bytes > memories->kept_most);
    if (more) {
        memory_unkeep(memories, 0, block);
        memories->refused = block->length;
    }
    pthread_mutex_unlock(&memories->lock);
    return more;
}

/* ---- finding ------------------------------------------------------------ */

bool tpf_memory_find(struct tpf_memories *memories, const void *data,
                     size_t length, struct tpf_memory *block)
{
    bool found;
    size_t at;

    if (tpf_memory_is_outside(memories, data))
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
