/* SPDX-License-Identifier: BSD-3-Clause */
/* Whether the kernel's copies crawl, and what they go through then. */
#include "config.h"

#include <stdatomic.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fabric/channel.h"
#include "fabric/cma/bounce.h"
#include "runtime/base/alloc.h"

enum {
    BOUNCE_BYTES = TPF_STRIDE,
    BOUNCE_LEAST = 4 * 1024,       /* of less a second copy is not less */
    BOUNCE_TRIED = 64 * 1024,      /* bytes of a trial: the call is not all */
    BOUNCE_TRIES = 5,              /* of which the quickest counts */
    BOUNCE_APART = 16              /* bytes behind, where copies may crawl */
};

/* How long the kernel takes to copy that within this process; UINT64_MAX if it
 * does not. */
static uint64_t bounce_time(void *to, void *from)
{
    struct iovec mine = { to, BOUNCE_TRIED }, theirs = { from, BOUNCE_TRIED };
    uint64_t begun = tpb_now();

    return process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0) == BOUNCE_TRIED
           ? tpb_now() - begun : UINT64_MAX;
}

static void bounce_least(uint64_t *least, uint64_t took)
{
    if (took < *least)
        *least = took;
}

/* Its memory is ours to write. */
static bool bounce_measure(unsigned char *memory)
{
    unsigned char *to = memory + BOUNCE_BYTES / 2;
    uint64_t plain = UINT64_MAX, behind = UINT64_MAX;

    for (int i = 0; i < BOUNCE_TRIES; i++) {
        bounce_least(&plain, bounce_time(to, memory));
        bounce_least(&behind, bounce_time(to + BOUNCE_APART, memory));
    }
    return behind != UINT64_MAX && behind > 2 * plain;
}

/* Do the kernel's copies crawl?  Contexts that ask at the same time find the
 * same. */
static _Atomic int bounce_crawls;
enum { BOUNCE_UNKNOWN, BOUNCE_NO, BOUNCE_YES };

/* False: there is no need, or no memory. */
static bool bounce_has(struct cma_bounce *bounce)
{
    if (bounce_crawls == BOUNCE_NO)
        return false;
    if (bounce->memory == NULL)
        bounce->memory = tpb_zalloc(BOUNCE_BYTES + TPB_COPY_PAGE);
    if (bounce->memory != NULL && bounce_crawls == BOUNCE_UNKNOWN)
        bounce_crawls = bounce_measure(bounce->memory) ? BOUNCE_YES
                                                       : BOUNCE_NO;
    if (bounce_crawls == BOUNCE_NO)
        cma_bounce_fini(bounce);
    return bounce->memory != NULL;
}

/* For a copy that would crawl: the place in the buffer that lies in its page a
 * line behind where `theirs` does, so that neither of the two copies instead of
 * it crawls; or NULL. */
static void *bounce_place(struct cma_bounce *bounce, const void *to,
                          const void *from, uint64_t theirs, size_t *length)
{
    if (TPB_LIKELY(!tpb_copy_crawls(to, from)) || *length < BOUNCE_LEAST
        || !bounce_has(bounce))
        return NULL;
    if (*length > BOUNCE_BYTES)
        *length = BOUNCE_BYTES;
    return bounce->memory
           + (theirs + TPB_CACHE_LINE - (uintptr_t)bounce->memory)
             % TPB_COPY_PAGE;
}

void *cma_bounce_in(struct cma_bounce *bounce, void *to, uint64_t theirs,
                    size_t *length)
{
    void *place = bounce_place(bounce, to, (const void *)(uintptr_t)theirs,
                               theirs, length);

    return place != NULL ? place : to;
}

void *cma_bounce_out(struct cma_bounce *bounce, void *from, uint64_t theirs,
                     size_t *length)
{
    void *place = bounce_place(bounce, (const void *)(uintptr_t)theirs, from,
                               theirs, length);

    if (place == NULL)
        return from;
    tpb_copy(place, from, *length);
    return place;
}

void cma_bounce_fini(struct cma_bounce *bounce)
{
    tpb_free(bounce->memory);
    bounce->memory = NULL;
}
