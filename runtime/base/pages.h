/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory that a program has just got from the kernel and that is about to be
 * written from end to end: a fault for each page of it takes longer than what
 * is copied there.
 */
#ifndef TPB_PAGES_H
#define TPB_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* No shorter one has room for a huge page. */
#define TPB_PAGES_HUGE ((size_t)2 * 1024 * 1024)

/*
 * Asks for huge pages in `data`, `length` bytes of the host's memory, if they
 * are not there yet: for such as lie in it altogether, so that nothing is made
 * that is not written.  Where the kernel gives none to who asks, nothing
 * changes; nor does what is there.  *known, 0 in the beginning, says how often
 * memory was there before: then not each time is looked.  No errors.
 */
void tpb_pages_huge(void *data, size_t length, uint8_t *known);

#endif
