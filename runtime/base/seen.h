/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What another process has written into memory of this one.  valgrind's
 * memcheck, which watches this process only, would go on calling it
 * uninitialised, and complain of the program that looks at it.
 */
#ifndef TPB_SEEN_H
#define TPB_SEEN_H

#include "config.h"

#include <stddef.h>

#ifdef HAVE_VALGRIND_MEMCHECK_H
#include <valgrind/memcheck.h>
#else
#define VALGRIND_MAKE_MEM_DEFINED(address, length) 0
#endif

/* `length` bytes have been written by others.  A few instructions without
 * effect where valgrind is not there. */
static inline void tpb_seen(const void *data, size_t length)
{
    (void)data;
    (void)length;
    (void)VALGRIND_MAKE_MEM_DEFINED(data, length);
}

#endif
