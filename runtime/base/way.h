/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which way bytes go into memory that another core reads and that was read by
 * it before: through the caches or past them; and which way they come out of
 * memory that another core has just written: by one memcpy() or by a loop.
 *
 * A store through the caches waits until the other core has given up its line,
 * and stores are done one after the other.  Where the two share a cache that is
 * soon, and the reader then finds the line near; where they do not, it takes
 * 30 ns for each line, five times as long as past the caches.
 *
 * From some KiB on glibc's memcpy() is `rep movsb` where the processor calls
 * that fast.  Where the two do not share a cache it moves more than a loop;
 * where they do, half as much.
 *
 * Which it is here nobody tells reliably: not the topology in a virtual
 * machine, and threads are moved.  So it is measured: now and then some copies
 * go one way and some the other, and what moved more bytes in a time, all that
 * happened between them included, is the way for those that follow.
 *
 * One for each ring and its producer; two for its consumer, by length.
 */
#ifndef TPB_WAY_H
#define TPB_WAY_H

#include "runtime/base/base.h"

enum { TPB_WAY_LEAST = 512 };      /* shorter ones always go through them */

enum tpb_way_kind {                /* which is the other way than memcpy() */
    TPB_WAY_PAST,                  /* past the caches: tpb_copy_past() */
    TPB_WAY_PIECES                 /* by a loop: tpb_copy_pieces() */
};

struct tpb_way {
    enum tpb_way_kind kind;
    bool other;                    /* that is the way, and not memcpy() */
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
    uint64_t burst;                /* bytes since a pause, or what may be one */
    uint32_t pauses;               /* between them */
    uint32_t copies[2];            /* of those that count; the other way: [1] */
    uint64_t took[2], bytes[2];
};

/* TPB_WAY_PAST, which begins with memcpy(). */
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

/* What a consumer has: TPB_WAY_PIECES, which begin with that, for copies below
 * TPB_COPY_WHOLE and for longer ones.  The first few of the latter after what
 * was written go by memcpy(), untried: in answers, for which somebody waits,
 * that takes 0.9 of the time. */
struct tpb_fetch {
    struct tpb_way ways[2];
    uint32_t since;                /* long copies since something was written:
                                      who writes it sets 0 */
    uint32_t tries;                /* copies of all trials so far */
};

void tpb_fetch_init(struct tpb_fetch *fetch);
/* Of more than TPB_COPY_PIECE bytes. */
void tpb_fetch_long(struct tpb_fetch *fetch, void *to, const void *from,
                    size_t length);
/* How often has either way become another? */
static inline uint32_t tpb_fetch_changes(const struct tpb_fetch *fetch)
{
    return fetch->ways[0].changes + fetch->ways[1].changes;
}
/* As memcpy(); NULL: out of memory like any other. */
static inline void tpb_fetch_copy(struct tpb_fetch *fetch, void *to,
                                  const void *from, size_t length)
{
    if (length <= TPB_COPY_PIECE || fetch == NULL)
        tpb_copy(to, from, length);
    else
        tpb_fetch_long(fetch, to, from, length);
}

#endif
