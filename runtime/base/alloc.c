/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory, and the n-th allocation that fails when a test wants it. */
#include "config.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "runtime/base/alloc.h"

static atomic_long alloc_countdown;

/* True when this allocation is the one that fails. */
static bool alloc_fails(void)
{
    if (TPB_LIKELY(atomic_load_explicit(&alloc_countdown,
                                        memory_order_relaxed) == 0))
        return false;
    return atomic_fetch_sub(&alloc_countdown, 1) == 1;
}

void *tpb_zalloc(size_t size)
{
    return alloc_fails() ? NULL : calloc(1, size > 0 ? size : 1);
}

void *tpb_array(size_t count, size_t size)
{
    return alloc_fails() ? NULL : calloc(count > 0 ? count : 1, size);
}

void *tpb_resize(void *memory, size_t size)
{
    return alloc_fails() ? NULL : realloc(memory, size > 0 ? size : 1);
}

char *tpb_copy_string(const char *text)
{
    char *copy;
    size_t length;

    if (text == NULL)
        return NULL;
    length = strlen(text) + 1;
    copy = tpb_zalloc(length);
    if (copy != NULL)
        memcpy(copy, text, length);
    return copy;
}

void tpb_free(void *memory)
{
    free(memory);
}

void tpb_alloc_fail_at(long n)
{
    atomic_store(&alloc_countdown, n);
}
