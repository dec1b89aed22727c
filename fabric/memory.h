/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The blocks that tp_alloc() made in one context: a channel asks here whether a
 * buffer lies in one.  Any thread may call; the lock is short.
 */
#ifndef TPF_MEMORY_H
#define TPF_MEMORY_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/base/base.h"

/* One block, or several short ones.  Lives from tp_alloc() to tp_free(), and
 * longer if it is kept. */
struct tpf_memory {
    uint64_t id;                   /* of this block alone, also after its end */
    unsigned char *address;
    size_t length;
    tp_device device;
    int fd;                        /* CPU: the memfd; else -1 */
    void *owned;                   /* the device allocator's; NULL for CPU */
    struct tpr_arena *arena;       /* several blocks of tp_alloc() lie in it;
                                      NULL: it is one */
};

/* Freed blocks are kept for who asks next, as malloc() does: to make one takes
 * a descriptor, a mapping here and at each peer, and a fault for each page on
 * both sides. */
enum { TPF_KEPT = 16 };
#define TPF_KEPT_BYTES ((size_t)64 * 1024 * 1024)
/* Longer ones that are asked for again and again are kept, up to this. */
#define TPF_KEPT_MOST ((size_t)1024 * 1024 * 1024)

struct tpf_memories {
    pthread_mutex_t lock;
    struct tpf_memory *blocks;     /* by address */
    size_t count, capacity;
    struct tpf_memory kept[TPF_KEPT + 1];  /* the oldest first, which goes when
                                      there is one too many */
    size_t kept_count, kept_bytes;
    size_t kept_most;              /* bytes ... */
    bool grows;                    /* ... or more, as it turns out */
    size_t refused;                /* length of the last one not kept */
    uint64_t next_id;
    _Atomic uint64_t stamp;        /* changes with every block that comes or
                                      goes: what was found before may not be so
                                      any more */
    _Atomic uintptr_t from, to;    /* no block is before or behind these */
};

void tpf_memories_init(struct tpf_memories *memories);
/* How many bytes of freed blocks are kept from now on, none in the beginning;
 * -1: what pays. */
void tpf_memories_limit(struct tpf_memories *memories, int64_t keep);
/* The blocks that are left are the caller's to free: see take. */
void tpf_memories_fini(struct tpf_memories *memories);

/* Makes CPU memory that others can map, page-aligned, zeroed.  NO_MEMORY also
 * if the system lacks descriptors or shared memory; only then *error is set. */
tp_status tpf_memory_make(struct tpf_memory *block, size_t bytes,
                          struct tpb_error *error);
void tpf_memory_destroy(struct tpf_memory *block);

/* Remembers the block, and gives it an id if it is new.  NO_MEMORY leaves it
 * the caller's. */
tp_status tpf_memory_add(struct tpf_memories *memories,
                         const struct tpf_memory *block);

/* The block that begins at `address`, which is forgotten; any block if
 * `address` is NULL.  False if there is none. */
bool tpf_memory_take(struct tpf_memories *memories, const void *address,
                     struct tpf_memory *block);

/* Keeps a block of the host's memory that was taken.  False leaves it the
 * caller's. */
bool tpf_memory_keep(struct tpf_memories *memories,
                     const struct tpf_memory *block);
/* A kept block that is as long, or little longer, and is to be added again. */
bool tpf_memory_again(struct tpf_memories *memories, size_t bytes,
                      struct tpf_memory *block);
/* The oldest kept block as long as there is more than may be kept, or any if
 * `all`; the caller destroys it. */
bool tpf_memory_drop(struct tpf_memories *memories, bool all,
                     struct tpf_memory *block);

/* Is it before or behind all blocks?  Whoever asks for a block knows it, and so
 * the bounds that it has set; they only move away from it, or from what is
 * there no more. */
static inline bool tpf_memory_is_outside(const struct tpf_memories *memories,
                                         const void *data)
{
    uintptr_t at = (uintptr_t)data;

    return at < atomic_load_explicit(&memories->from, memory_order_relaxed)
           || at >= atomic_load_explicit(&memories->to, memory_order_relaxed);
}

/* The block in which all of these bytes lie, copied. */
bool tpf_memory_find(struct tpf_memories *memories, const void *data,
                     size_t length, struct tpf_memory *block);

/* While it is the same, what tpf_memory_find() found since is still so. */
static inline uint64_t tpf_memory_stamp(const struct tpf_memories *memories)
{
    return atomic_load_explicit(&memories->stamp, memory_order_acquire);
}

#endif
