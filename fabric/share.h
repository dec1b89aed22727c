/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One buffer that two processes copy at once: its receiver from the front, its
 * sender from the back, in pieces.  Who copies a piece claims it first, in a
 * word that both have mapped.  Nobody waits for a sender that does something
 * else: the receiver then claims all pieces himself.
 *
 * A claim is a promise of the sender's to touch the receiver's memory once
 * more, and `pushed` says that he has kept it.  Until then the memory is not
 * its owner's.  After tpf_share_close() there are no further claims.
 *
 * The receiver begins each buffer with a new number, by which a sender who
 * comes late knows that it is over.  He may be late by a message of a million
 * buffers: `pushed` has all of the number, `claims` only as much as there is
 * room for, which tells of what happens while somebody claims.  Both check what
 * they read: the word can be written by the other process at any time.
 */
#ifndef TPF_SHARE_H
#define TPF_SHARE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/base.h"

struct tpf_share {
    /* The buffer's number modulo 2^16, then pieces claimed from the back and
     * from the front in 24 bits each. */
    _Alignas(TPB_CACHE_LINE) _Atomic uint64_t claims;
    /* The number in the upper half, then pieces that the sender has copied. */
    _Alignas(TPB_CACHE_LINE) _Atomic uint64_t pushed;
};
_Static_assert(sizeof(struct tpf_share) == 2 * TPB_CACHE_LINE, "layout");

enum { TPF_PIECES_MOST = 1 << 23 };
#define TPF_SHARE_FAILED UINT32_MAX     /* `pushed`: the sender may not */

static inline uint64_t tpf_share_word(uint32_t number, uint32_t back,
                                      uint32_t front)
{
    return (uint64_t)number << 48 | (uint64_t)back << 24 | front;
}

/* Sender, who has read `claims` with acquire, which pairs with the release in
 * tpf_share_open(): is it of that very buffer? */
static inline bool tpf_share_is(const struct tpf_share *share, uint32_t number)
{
    return atomic_load_explicit(&share->pushed, memory_order_relaxed) >> 32
           == number;
}

static inline uint32_t tpf_share_front(uint64_t word)
{
    return (uint32_t)word & 0xffffff;
}

static inline uint32_t tpf_share_back(uint64_t word)
{
    return (uint32_t)(word >> 24) & 0xffffff;
}

/* Pieces that the sender has claimed. */
static inline uint32_t tpf_share_back_count(const struct tpf_share *share)
{
    return tpf_share_back(atomic_load_explicit(&share->claims,
                                               memory_order_relaxed));
}

/* Of `left` pieces somebody claims half at once, but no more than `most`: large
 * runs at first, and at the end nobody waits long for the other. */
static inline uint32_t tpf_share_run(uint32_t left, uint32_t most)
{
    if (left < 4 || most < 2)
        return 1;
    return left / 2 < most ? left / 2 : most;
}

/* Receiver: a buffer begins, its first `count` pieces claimed. */
static inline void tpf_share_open(struct tpf_share *share, uint32_t number,
                                  uint32_t count)
{
    atomic_store_explicit(&share->pushed, (uint64_t)number << 32,
                          memory_order_relaxed);
    /* The sender hears of it by a frame; a late one by the number. */
    atomic_store_explicit(&share->claims, tpf_share_word(number, 0, count),
                          memory_order_release);
}

/* The next pieces, from the front or the back, `most` of them: how many, from
 * *piece on.  0: there is none left. */
static inline uint32_t tpf_share_claim(struct tpf_share *share,
                                       uint32_t number, uint32_t pieces,
                                       bool back, uint32_t most,
                                       uint32_t *piece)
{
    uint64_t word = atomic_load_explicit(&share->claims,
                                         memory_order_acquire), next;
    uint32_t count;

    do {
        uint32_t front_count = tpf_share_front(word);
        uint32_t back_count = tpf_share_back(word);

        if (word >> 48 != (uint16_t)number
            || front_count + back_count >= pieces
            || (back && !tpf_share_is(share, number)))
            return 0;
        count = tpf_share_run(pieces - front_count - back_count, most);
        *piece = back ? pieces - back_count - count : front_count;
        next = tpf_share_word(number, back_count + (back ? count : 0),
                              front_count + (back ? 0 : count));
        /* Acquire: pairs with the release in tpf_share_open(). */
    } while (!atomic_compare_exchange_weak_explicit(&share->claims, &word, next,
                                                    memory_order_acquire,
                                                    memory_order_acquire));
    return count;
}

/* Sender: so many of its pieces are copied. */
static inline void tpf_share_push(struct tpf_share *share, uint32_t number,
                                  uint32_t count)
{
    /* Pairs with the acquire in tpf_share_settled(). */
    atomic_store_explicit(&share->pushed, (uint64_t)number << 32 | count,
                          memory_order_release);
}

/* Receiver: takes what is left, so that the sender claims no more. */
static inline void tpf_share_close(struct tpf_share *share, uint32_t number,
                                   uint32_t pieces)
{
    uint32_t piece;

    while (tpf_share_claim(share, number, pieces, false, pieces, &piece) > 0)
        ;
}

/* Receiver, when there is nothing left to claim: has the sender kept all its
 * promises?  *failed: it could not, and makes no more. */
static inline bool tpf_share_settled(struct tpf_share *share, bool *failed)
{
    uint64_t word = atomic_load_explicit(&share->claims,
                                         memory_order_relaxed);
    uint32_t pushed = (uint32_t)atomic_load_explicit(&share->pushed,
                                                     memory_order_acquire);

    *failed = pushed == TPF_SHARE_FAILED;
    return *failed || pushed == tpf_share_back(word);
}

#endif
