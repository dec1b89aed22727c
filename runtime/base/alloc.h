/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * All memory of libtp comes from here, so that a test can let the n-th
 * allocation fail (TP_ALLOC_FAIL).  Any thread.
 */
#ifndef TPB_ALLOC_H
#define TPB_ALLOC_H

#include <stddef.h>

#include "runtime/base/base.h"

/* Zeroed memory, or NULL.  Freed by tpb_free(). */
void *tpb_zalloc(size_t size);
void *tpb_array(size_t count, size_t size);     /* NULL also on overflow */
void *tpb_resize(void *memory, size_t size);    /* as realloc; not zeroed */
char *tpb_copy_string(const char *text);        /* NULL for NULL */
void tpb_free(void *memory);

/* Let the n-th allocation from now on fail; 0: none. */
void tpb_alloc_fail_at(long n);

#endif
