/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A bounce buffer for what the kernel copies between two processes.
 *
 * Its copies are `rep movsb` where the processor calls that fast, and crawl
 * where ours would (tpb_copy_crawls()): a buffer of malloc(), 16 bytes behind
 * the beginning of a page, that is read from one at the beginning of a page
 * takes four times as long on AMD's Zen 3.  There the bytes go through memory
 * that lies in its page a line behind where the other process' does, a part at
 * a time, which stays in a cache; from there on we copy.
 *
 * Which processors and kernels do that nobody tells; so it is measured, when it
 * first matters, on memory of our own.  One for a channel; with the token.
 */
#ifndef CMA_BOUNCE_H
#define CMA_BOUNCE_H

#include <stdint.h>

#include "runtime/base/base.h"

struct cma_bounce {
    unsigned char *memory;         /* NULL: not needed yet */
};

/* Where the kernel shall read *length bytes from `theirs`, an address in the
 * other process, for them to get to `to`: there, or in the buffer, from which
 * tpb_copy() takes them.  *length becomes what has room. */
void *cma_bounce_in(struct cma_bounce *bounce, void *to, uint64_t theirs,
                    size_t *length);

/* From where the kernel shall write to `theirs` what is at `from`: there, or in
 * the buffer, where it has been copied. */
void *cma_bounce_out(struct cma_bounce *bounce, void *from, uint64_t theirs,
                     size_t *length);

void cma_bounce_fini(struct cma_bounce *bounce);

#endif
