/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which way bytes go into memory that another core reads and that was read by
 * it before: through the caches or past them.
 *
 * A store through the caches waits until the other core has given up its line,
 * and stores are done one after the other.  Where the two share a cache that is
 * soon, and the reader then finds the line near; where they do not, it takes
 * 30 ns for each line, five times as long as past the caches.  Which it is here
 * nobody tells reliably: not the topology in a virtual machine, and threads are
 * moved.  So it is measured: now and then some copies go one way and some the
 * other, and what moved more bytes in a time, all that happened between them
 * included, is the way for those that follow.
 *
 * One for each ring.  Only by its producer.
 */
#ifndef TPB_WAY_H
#define TPB_WAY_H

#include "runtime/base/base.h"

enum { TPB_WAY_LEAST = 512 };      /* shorter ones always go through them */

struct tpb_way {
    bool past;
    uint32_t changes;              /* how often that has been another */
    bool doubted;                  /* one trial has said that the other is
                                      better; a second one decides */
    uint32_t trials;               /* that are over */
    uint64_t left;                 /* bytes until the next trial */
    uint32_t tried;                /* copies of the trial, so far */
    uint32_t first;                /* ... that went this way, before the others;
                                      0: these still do */
    uint64_t moved;                /* bytes of those, or of the others */
    uint64_t last;                 /* when one of them ended */
    uint32_t pauses;               /* between them */
    uint32_t copies[2];            /* of those that count; past: [1] */
    uint64_t took[2], bytes[2];
};

void tpb_way_init(struct tpb_way *way);
/* As memcpy(). */
void tpb_way_copy(struct tpb_way *way, void *to, const void *from,
                  size_t length);
/* A trial is over. */
void tpb_way_decide(struct tpb_way *way);
/* It is known which is better; until then copies may become faster soon. */
static inline bool tpb_way_is_settled(const struct tpb_way *way)
{
    return way->trials > 0 && !way->doubted;
}

#endif
