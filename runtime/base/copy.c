/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Long copies; and those that leave the caches alone: stores that go to memory
 * at once do not fetch the lines that they overwrite.
 */
#include "config.h"

#include "runtime/base/base.h"

void tpb_copy_long(void *to, const void *from, size_t length)
{
    if (TPB_UNLIKELY(tpb_copy_crawls(to, from)))
        tpb_copy_pieces(to, from, length);
    else
        memcpy(to, from, length);
}

#ifdef __SSE2__
#include <emmintrin.h>

void tpb_copy_past(void *to, const void *from, size_t length)
{
    unsigned char *at = to;
    const unsigned char *source = from;
    size_t head = -(uintptr_t)at & (TPB_CACHE_LINE - 1);

    if (head > length)
        head = length;
    memcpy(at, source, head);
    at += head;
    source += head;
    length -= head;
    for (; length >= TPB_CACHE_LINE; length -= TPB_CACHE_LINE) {
        const __m128i *line = (const __m128i *)(const void *)source;
        __m128i a = _mm_loadu_si128(line), b = _mm_loadu_si128(line + 1);
        __m128i c = _mm_loadu_si128(line + 2), d = _mm_loadu_si128(line + 3);

        _mm_stream_si128((__m128i *)(void *)at, a);
        _mm_stream_si128((__m128i *)(void *)at + 1, b);
        _mm_stream_si128((__m128i *)(void *)at + 2, c);
        _mm_stream_si128((__m128i *)(void *)at + 3, d);
        at += TPB_CACHE_LINE;
        source += TPB_CACHE_LINE;
    }
    memcpy(at, source, length);
    _mm_sfence();
}

#else

void tpb_copy_past(void *to, const void *from, size_t length)
{
    memcpy(to, from, length);
}

#endif
