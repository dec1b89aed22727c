/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Short blocks of tp_alloc(): many of them lie in one piece of shared memory,
 * as each such piece takes a descriptor, and a mapping at each peer.  Any
 * thread may call.
 */
#ifndef TPR_ARENA_H
#define TPR_ARENA_H

#include <pthread.h>

#include "fabric/memory.h"
#include "runtime/base/list.h"

#define TPR_ARENA ((size_t)2 * 1024 * 1024)
/* Longer blocks are pieces of their own. */
#define TPR_ARENA_MOST ((size_t)128 * 1024)

struct tpr_arenas {
    pthread_mutex_t lock;
    struct tpb_list list;          /* tpr_arena with room, last used first */
    unsigned empty;                /* of them */
    size_t page;                   /* const: bytes ... */
    unsigned pages;                /* const: ... and how many are in one */
};

void tpr_arenas_init(struct tpr_arenas *arenas);
/* Those that are left are the caller's to end, as their memory is. */
void tpr_arenas_fini(struct tpr_arenas *arenas);

/* `bytes`, at most TPR_ARENA_MOST, of an arena there is; NULL if none has
 * room. */
void *tpr_arena_take(struct tpr_arenas *arenas, size_t bytes);

/* A new one: a block of TPR_ARENA bytes becomes one by tpr_arena_new(), which
 * sets its `arena` (NULL: no memory), is added to the context's, and then
 * opened, for `bytes` that the opener gets; or ended. */
void tpr_arena_new(struct tpf_memory *block);
void *tpr_arena_open(struct tpr_arenas *arenas, struct tpf_memory *block,
                     size_t bytes);
void tpr_arena_end(struct tpr_arenas *arenas, struct tpf_memory *block);

/* Gives back what tpr_arena_take() gave.  NONE: the address is in no arena;
 * WRONG: nothing begins there. */
enum tpr_arena_given { TPR_ARENA_NONE, TPR_ARENA_WRONG, TPR_ARENA_GIVEN };
enum tpr_arena_given tpr_arena_give(struct tpr_arenas *arenas,
                                    struct tpf_memories *memories,
                                    const void *address);
/* Closes an arena in which nothing lies, if there are more than `most` such;
 * its first byte, for tpf_memory_take(), or NULL. */
const void *tpr_arena_close(struct tpr_arenas *arenas, unsigned most);

#endif
