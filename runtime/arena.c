/* SPDX-License-Identifier: BSD-3-Clause */
/* Pages of arenas: taken where the first gap is that is long enough. */
#include "config.h"

#include "runtime/arena.h"
#include "runtime/base/alloc.h"

enum {
    ARENA_PAGES = TPR_ARENA / 4096,    /* at most */
    ARENA_WORD = 64
};

struct tpr_arena {
    struct tpb_list link;
    unsigned char *memory;
    unsigned used;                 /* pages */
    unsigned vain;                 /* no gap is so long; 0: not known */
    uint64_t taken[ARENA_PAGES / ARENA_WORD];
    uint16_t length[ARENA_PAGES];  /* pages of the block that begins there */
};

void tpr_arenas_init(struct tpr_arenas *arenas)
{
    pthread_mutex_init(&arenas->lock, NULL);
    tpb_list_init(&arenas->list);
    arenas->empty = 0;
    arenas->page = tpb_page();
    arenas->pages = (unsigned)(TPR_ARENA / arenas->page);
}

void tpr_arenas_fini(struct tpr_arenas *arenas)
{
    pthread_mutex_destroy(&arenas->lock);
}

static bool arena_is_taken(const struct tpr_arena *arena, unsigned page)
{
    return (arena->taken[page / ARENA_WORD] >> page % ARENA_WORD & 1) != 0;
}

static void arena_mark(struct tpr_arena *arena, unsigned from, unsigned pages)
{
    for (unsigned page = from; page < from + pages; page++)
        arena->taken[page / ARENA_WORD] ^= UINT64_C(1) << page % ARENA_WORD;
}

/* The first gap of so many of `all` pages; `all`: there is none. */
static unsigned arena_gap(const struct tpr_arena *arena, unsigned pages,
                          unsigned all)
{
    unsigned free = 0;

    for (unsigned page = 0; page < all; page++) {
        if (page % ARENA_WORD == 0
            && arena->taken[page / ARENA_WORD] == UINT64_MAX) {
            free = 0;
            page += ARENA_WORD - 1;
            continue;
        }
        free = arena_is_taken(arena, page) ? 0 : free + 1;
        if (free == pages)
            return page + 1 - pages;
    }
    return all;
}

static void *arena_take(struct tpr_arenas *arenas, struct tpr_arena *arena,
                        unsigned pages)
{
    unsigned at;

    if (arenas->pages - arena->used < pages
        || (arena->vain > 0 && arena->vain <= pages))
        return NULL;
    at = arena_gap(arena, pages, arenas->pages);
    if (at == arenas->pages) {
        arena->vain = pages;
        return NULL;
    }
    arenas->empty -= arena->used == 0;
    arena->used += pages;
    arena->length[at] = (uint16_t)pages;
    arena_mark(arena, at, pages);
    if (arena->used == arenas->pages)
        tpb_list_unlink(&arena->link);
    return arena->memory + at * arenas->page;
}

static unsigned arena_pages(const struct tpr_arenas *arenas, size_t bytes)
{
    return (unsigned)((bytes + arenas->page - 1) / arenas->page);
}

void *tpr_arena_take(struct tpr_arenas *arenas, size_t bytes)
{
    unsigned pages = arena_pages(arenas, bytes);
    void *memory = NULL;

    pthread_mutex_lock(&arenas->lock);
    TPB_LIST_EACH(node, &arenas->list) {
        memory = arena_take(arenas, TPB_CONTAINER(node, struct tpr_arena, link),
                            pages);
        if (memory != NULL)
            break;
    }
    pthread_mutex_unlock(&arenas->lock);
    return memory;
}

void tpr_arena_new(struct tpf_memory *block)
{
    struct tpr_arena *arena = tpb_zalloc(sizeof(*arena));

    block->arena = arena;
    if (arena == NULL)
        return;
    arena->memory = block->address;
    tpb_list_init(&arena->link);
}

void *tpr_arena_open(struct tpr_arenas *arenas, struct tpf_memory *block,
                     size_t bytes)
{
    void *memory;

    pthread_mutex_lock(&arenas->lock);
    tpb_list_append(arenas->list.next, &block->arena->link);
    arenas->empty++;
    memory = arena_take(arenas, block->arena, arena_pages(arenas, bytes));
    pthread_mutex_unlock(&arenas->lock);
    return memory;
}

/* Not while tpr_arena_give() looks at it. */
void tpr_arena_end(struct tpr_arenas *arenas, struct tpf_memory *block)
{
    pthread_mutex_lock(&arenas->lock);
    tpb_free(block->arena);
    block->arena = NULL;
    pthread_mutex_unlock(&arenas->lock);
}

static bool arena_give(struct tpr_arenas *arenas,
                       const struct tpf_memory *block, const void *address)
{
    struct tpr_arena *arena = block->arena;
    size_t offset = (size_t)((const unsigned char *)address - block->address);
    size_t at = offset / arenas->page;
    unsigned pages = 0;

    if (at < arenas->pages && offset % arenas->page == 0)
        pages = arena->length[at];     /* the block may be longer */
    if (pages == 0)
        return false;
    arena->length[at] = 0;
    arena_mark(arena, (unsigned)at, pages);
    arena->used -= pages;
    arena->vain = 0;
    arenas->empty += arena->used == 0;
    tpb_list_unlink(&arena->link);
    tpb_list_append(arenas->list.next, &arena->link);
    return true;
}

/* The arena of an address where nothing lies any more may be closed meanwhile:
 * so it is looked for with the lock. */
enum tpr_arena_given tpr_arena_give(struct tpr_arenas *arenas,
                                    struct tpf_memories *memories,
                                    const void *address)
{
    enum tpr_arena_given given = TPR_ARENA_NONE;
    struct tpf_memory block;

    pthread_mutex_lock(&arenas->lock);
    if (tpf_memory_find(memories, address, 1, &block) && block.arena != NULL)
        given = arena_give(arenas, &block, address) ? TPR_ARENA_GIVEN
                                                    : TPR_ARENA_WRONG;
    pthread_mutex_unlock(&arenas->lock);
    return given;
}

const void *tpr_arena_close(struct tpr_arenas *arenas, unsigned most)
{
    const void *memory = NULL;

    pthread_mutex_lock(&arenas->lock);
    TPB_LIST_EACH(node, &arenas->list) {
        struct tpr_arena *arena = TPB_CONTAINER(node, struct tpr_arena, link);

        if (arenas->empty <= most || memory != NULL)
            break;
        if (arena->used > 0)
            continue;
        memory = arena->memory;
        arenas->empty--;
        tpb_list_unlink(&arena->link);
    }
    pthread_mutex_unlock(&arenas->lock);
    return memory;
}
