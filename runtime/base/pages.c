/* SPDX-License-Identifier: BSD-3-Clause */
/* Is it new memory?  Then its pages may be huge ones. */
#include "config.h"

#include <sys/mman.h>

#include "runtime/base/base.h"
#include "runtime/base/pages.h"

enum {
    PAGES_SURE = 8,                /* looks that found them, before ... */
    PAGES_ROUND = 8                /* ... only each of so many is one */
};

/* One page speaks for all: programs write their buffers as a whole. */
static bool pages_there(const unsigned char *data, size_t length)
{
    uintptr_t page = tpb_page();
    uintptr_t middle = ((uintptr_t)data + length / 2) & ~(page - 1);
    unsigned char there = 1;

    return mincore((void *)middle, 1, &there) != 0 || (there & 1) != 0;
}

static bool pages_are_due(uint8_t *known)
{
    if (*known < PAGES_SURE)
        return true;
    if (++*known < PAGES_SURE + PAGES_ROUND)
        return false;
    *known = PAGES_SURE;
    return true;
}

void tpb_pages_huge(void *data, size_t length, uint8_t *known)
{
    uintptr_t mask = ~(uintptr_t)(TPB_PAGES_HUGE - 1);
    uintptr_t first = ((uintptr_t)data + TPB_PAGES_HUGE - 1) & mask;
    uintptr_t last = ((uintptr_t)data + length) & mask;

    if (first >= last || !pages_are_due(known))
        return;
    if (pages_there(data, length)) {
        *known += *known < PAGES_SURE;
        return;
    }
    *known = 0;
    (void)madvise((void *)first, last - first, MADV_HUGEPAGE);
}
