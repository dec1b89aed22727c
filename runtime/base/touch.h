/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A program's memory, before it is named to somebody who would only say EFAULT:
 * the kernel does so for a page that nobody may touch, or that is beyond the
 * end of its file, in the middle of a copy.  Here the page is touched as a copy
 * of ours would.  So it is the program that faults, where the mistake is, and
 * one that handles the fault, as those do that watch which pages change, goes
 * on.
 */
#ifndef TPB_TOUCH_H
#define TPB_TOUCH_H

#include <stddef.h>

enum { TPB_TOUCH_PAGE = 4096 };    /* none is smaller */

/* Each page can be read. */
static inline void tpb_touch(const void *data, size_t length)
{
    const volatile unsigned char *bytes = data;

    for (size_t at = 0; at < length; at += TPB_TOUCH_PAGE)
        (void)bytes[at];
    if (length > 0)
        (void)bytes[length - 1];
}

/* Each page can be written.  Nobody else may write there meanwhile. */
static inline void tpb_touch_to_write(void *data, size_t length)
{
    volatile unsigned char *bytes = data;

    for (size_t at = 0; at < length; at += TPB_TOUCH_PAGE)
        bytes[at] = bytes[at];
    if (length > 0)
        bytes[length - 1] = bytes[length - 1];
}

#endif
