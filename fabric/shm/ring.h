/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A single-producer, single-consumer ring of records in shared memory, made so
 * that a small record crosses from one core to the other in one cache line.
 *
 * A record starts on half a cache line with a header word; its frame follows.
 * The header word is the only signal: zero means "not yet".  Before it sets one
 * the producer clears the header word after that record, so the consumer, which
 * looks only at the word after the last record, never sees old bytes as a
 * header.  Two of the shortest messages share a line: where many are sent, the
 * lines that travel are what they cost.
 *
 * The producer's next lines are in the consumer's cache, from the last time
 * round.  It asks for them ahead, to write, and they come while it does
 * something else: a store to them would do as well, but hold up every fence and
 * locked operation until they are there.
 *
 * Where the two take turns, the producer has nothing to do until the answer
 * comes.  Then it gives up the lines of the record (tpb_demote()), which the
 * consumer finds in the cache that both share instead of waiting for this core,
 * and asks for all lines of another record of that length; where asking does
 * not help (tpb_prefetch_owns()) it stores to them: a zero, into room that is
 * its own.  After an answer of several records it does so for up to SHM_CLAIMED
 * bytes more.  The consumer, too, asks for all lines of an answer as soon as
 * its header is there, and for the second one together with the first if the
 * last record had two.  In a stream all that would cost more than it brings: a
 * line that is given up is fetched again for the record in its second half, and
 * the producer has other records to write.  And where ranks share cpus the line
 * may be where it is needed.
 *
 * The ring's memory is mapped twice in a row, so a record is always
 * contiguous.  Positions count bytes and never wrap in practice (64 bits);
 * memory is at position modulo SHM_RING.
 *
 * The producer may use the first part of it only (`extent`): behind the record
 * that reaches the end of that it says so (SHM_TURN), and the next one is where
 * the memory begins again.  A small part costs less memory, and no time for
 * pages that are touched for the first time, which is most of what the first
 * messages between two ranks cost.  But what a consumer has just read is still
 * in the second-level cache of its core, from which a line is taken three times
 * slower than from the cache that all cores share: there it is when it has been
 * driven out by as much as such a cache holds.  So what is busy goes through
 * all of the ring (extent.c).
 *
 * The consumer says how far it is (struct shm_side.head) with the first record
 * after the memory has begun again, then every few KiB where a small ring ends,
 * and behind that only every SHM_PUBLISH bytes; and if there is no record yet
 * where the memory begins again.  That cannot starve a producer: once the
 * consumer has looked behind the last record, the ring has room for the longest
 * one, since the smallest extent has.
 *
 * A consumer that has not looked for a while may still have records of the last
 * time round to read: the producer can go no further than where they begin.
 * But behind where they end there is memory, and it goes on there (SHM_JUMP): a
 * small ring holds a burst like any other.
 *
 * Neither side trusts what the other writes: sizes are checked against the
 * ring, and the header carries a check of its own position.
 */
#ifndef TPF_SHM_RING_H
#define TPF_SHM_RING_H

#include <stdatomic.h>

#include "runtime/base/base.h"

enum {
    SHM_RING = 2048 * 1024,
    SHM_SMALL = 20 * 1024,             /* the first extent, and the smallest */
    SHM_NARROW = 256 * 1024,           /* of one that is not busy, at most */
    SHM_HEADER = 8,
    SHM_ALIGN = 32,
    SHM_LONG = 1536,
    SHM_FRAME = 16 * 1024 + 120,   /* 16 KiB and what is said of them */
    SHM_BEHIND = SHM_FRAME + 2 * TPB_CACHE_LINE, /* what the last record may
                                          touch behind an extent */
    SHM_SPAN = SHM_SMALL + SHM_BEHIND, /* what the smallest one touches */
    SHM_PUBLISH = 32 * 1024,
    SHM_PUBLISH_SMALL = 4 * 1024,
    SHM_AHEAD = 16 * TPB_CACHE_LINE,    /* lines asked for */
    SHM_DEMOTED = 8 * 1024 + 256,       /* the longest record given up */
    SHM_FETCHED = 8 * 1024 + 256,       /* the most of one asked for */
    SHM_CLAIMED = 8 * 1024              /* ... by its producer, of the first
                                           ones of several */
};

/* Instead of a frame's size: the record is where the memory begins again; or
 * further on, so many times SHM_ALIGN from there. */
#define SHM_TURN UINT32_C(0x80000000)
#define SHM_JUMP UINT32_C(0x40000000)

_Static_assert(SHM_SMALL > SHM_BEHIND, "the longest record fits");

/* How the consumer of a ring learns of a record. */
enum shm_attention {
    SHM_TELL,       /* the producer sets its bit in the consumer's mailbox */
    SHM_WATCHED,    /* the consumer looks at this ring all the time */
    SHM_LAZY        /* so it does, and before it stops it will have the kernel
                       put a barrier into the producer: no fence is needed */
};

/* What the consumer of one ring tells its producer, in lines of their own: the
 * first is written now and then, see shm_ring_publish(), the others rarely. */
struct shm_side {
    _Alignas(TPB_CACHE_LINE) _Atomic uint64_t head;
    _Alignas(TPB_CACHE_LINE) _Atomic uint32_t attention;
    /* Set by the producer when it is going to sleep for lack of room; the
     * consumer then tells it after publishing head.  Pairs with
     * shm_ring_wait_room(). */
    _Alignas(TPB_CACHE_LINE) _Atomic uint32_t starved;
    /* The producer takes such barriers.  If it lies, its own records wait. */
    _Atomic uint32_t registered;
};
_Static_assert(sizeof(struct shm_side) == 3 * TPB_CACHE_LINE, "layout");

struct shm_producer {
    struct shm_side *side;
    unsigned char *memory;     /* SHM_RING bytes, mapped twice */
    uint32_t extent;           /* how much of that is used, SHM_SMALL at
                                  least */
    uint64_t tail;             /* where the next record goes */
    uint64_t head;             /* the consumer's, as last seen */
    uint64_t fence;            /* as long as records end before that, there is
                                  room, and memory to go on */
    uint64_t beyond;           /* where the memory began again before it last
                                  jumped past what is `used` ... */
    uint32_t used;             /* ... by the time round before: so many bytes */
    bool rests;                /* each side has a cpu: lines travel */
    bool demote;               /* the processor has that instruction */
    bool claim;                /* ... and needs stores for lines of its own */
};

struct shm_consumer {
    struct shm_side *side;
    unsigned char *memory;
    uint64_t head;             /* the record to look at */
    uint64_t due;              /* once `head` is there, it is published */
    uint32_t size;             /* of the frame that peek showed; 0: none */
    uint32_t last;             /* the size of the one before */
    uint32_t count;            /* of those before, modulo 2^32 */
    bool broken;               /* the producer wrote what is not a record */
};

static inline _Atomic uint64_t *shm_ring_word(unsigned char *memory,
                                              uint64_t position)
{
    return (_Atomic uint64_t *)(void *)(memory + (position & (SHM_RING - 1)));
}

static inline uint64_t shm_ring_span(size_t frame)
{
    return (frame + SHM_HEADER + SHM_ALIGN - 1) & ~(uint64_t)(SHM_ALIGN - 1);
}

/* The next beginning of a line. */
static inline uint64_t shm_ring_line(uint64_t position)
{
    return (position + TPB_CACHE_LINE - 1) & ~(uint64_t)(TPB_CACHE_LINE - 1);
}

/* Where the record after that one begins: after a long one on a line of its
 * own, so that the consumer, who looks there already, is not in the way; and
 * after one as long as a line, which shall not lie on two. */
static inline uint64_t shm_ring_next(uint64_t position, size_t frame)
{
    uint64_t span = shm_ring_span(frame), next = position + span;

    return span == TPB_CACHE_LINE || frame > SHM_LONG ? shm_ring_line(next)
                                                      : next;
}

/* The next position that is at the beginning of the memory. */
static inline uint64_t shm_ring_lap(uint64_t position)
{
    return (position | (SHM_RING - 1)) + 1;
}

static inline uint64_t shm_ring_seal(uint64_t position, uint32_t size)
{
    return (uint64_t)((uint32_t)(position / SHM_ALIGN) ^ 0x74700001u) << 32
           | size;
}

/* Where the memory began, the last time before that position. */
static inline uint64_t shm_ring_begin(uint64_t position)
{
    return position & ~(uint64_t)(SHM_RING - 1);
}

/* After its tail, its head or its extent has changed. */
static inline void shm_ring_fence(struct shm_producer *p)
{
    uint64_t room = p->head + SHM_RING - SHM_ALIGN;
    uint64_t begin = shm_ring_begin(p->tail), end = begin + p->extent - 1;

    p->fence = room < end && begin != p->beyond ? room : end;
}

static inline void shm_ring_extend(struct shm_producer *p, uint32_t extent)
{
    p->extent = extent;
    shm_ring_fence(p);
}

static inline bool shm_ring_wide(const struct shm_producer *p)
{
    return p->extent == SHM_RING;
}

static inline void shm_producer_init(struct shm_producer *p,
                                     struct shm_side *side,
                                     unsigned char *memory, bool rests)
{
    *p = (struct shm_producer){ .side = side, .memory = memory,
                                .beyond = UINT64_MAX, .used = SHM_RING,
                                .rests = rests, .demote = tpb_demotes(),
                                .claim = !tpb_prefetch_owns() };
    shm_ring_extend(p, SHM_SMALL);
}

static inline void shm_consumer_init(struct shm_consumer *c,
                                     struct shm_side *side,
                                     unsigned char *memory)
{
    *c = (struct shm_consumer){ .side = side, .memory = memory };
}

/* Is that behind what the producer uses of the memory? */
static inline bool shm_ring_ends(const struct shm_producer *p,
                                 uint64_t position)
{
    return (position & (SHM_RING - 1)) >= p->extent;
}

/* Room for a frame of `size` bytes and for the header word after it? */
static inline bool shm_ring_fits(const struct shm_producer *p, size_t size)
{
    uint64_t next = shm_ring_next(p->tail, size);

    if (TPB_LIKELY(next <= p->fence))
        return true;
    if (shm_ring_ends(p, next))
        next = shm_ring_lap(next);
    return next + SHM_ALIGN - p->head <= SHM_RING;
}

/* A frame that does not fit before the fence: maybe there is no room, or the
 * memory begins again behind it. */
static inline bool shm_ring_reaches(const struct shm_producer *p, size_t size)
{
    return shm_ring_next(p->tail, size) > p->fence;
}

/* Reads how far the consumer is. */
static inline bool shm_ring_look(struct shm_producer *p)
{
    /* Pairs with the release in shm_ring_publish(): the bytes are free. */
    uint64_t head = atomic_load_explicit(&p->side->head,
                                         memory_order_acquire);

    /* A head that goes backwards or overtakes us is not believed. */
    if (head < p->head || head > p->tail)
        return false;
    p->head = head;
    shm_ring_fence(p);
    return true;
}

/* Of the next record's frame. */
static inline void *shm_ring_room(const struct shm_producer *p)
{
    return p->memory + (p->tail & (SHM_RING - 1)) + SHM_HEADER;
}

static inline void *shm_ring_reserve(struct shm_producer *p, size_t size)
{
    if (TPB_UNLIKELY(!shm_ring_fits(p, size))
        && (!shm_ring_look(p) || !shm_ring_fits(p, size)))
        return NULL;
    return shm_ring_room(p);
}

/*
 * Before sleeping for lack of room: asks to be told.  True if there is room
 * after all.  The fence pairs with the one in shm_ring_publish(): either we see
 * the new head or the consumer sees `starved`.
 */
static inline bool shm_ring_wait_room(struct shm_producer *p, size_t size)
{
    atomic_store_explicit(&p->side->starved, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    return shm_ring_reserve(p, size) != NULL;
}

/* Where the record after one that ends at `next` begins: there, or where the
 * memory does; but not so if the room was reserved with another extent, and
 * there is none. */
static inline uint64_t shm_ring_turn(struct shm_producer *p, uint64_t next)
{
    uint64_t lap = shm_ring_lap(next);

    if (!shm_ring_ends(p, next) || lap + SHM_ALIGN - p->head > SHM_RING)
        return next;
    atomic_store_explicit(shm_ring_word(p->memory, next),
                          shm_ring_seal(next, SHM_TURN),
                          memory_order_relaxed);
    p->used = (uint32_t)shm_ring_line((next & (SHM_RING - 1)) + SHM_HEADER);
    return lap;
}

/* May it go on behind what was used the last time round, in that extent?  The
 * consumer is still there, or that is not known. */
static inline bool shm_ring_may_jump(const struct shm_producer *p,
                                     uint32_t extent)
{
    return (p->tail & (SHM_RING - 1)) < p->used
           && p->head < shm_ring_begin(p->tail)
           && p->used + SHM_BEHIND < extent;
}

static inline void shm_ring_jump(struct shm_producer *p)
{
    uint64_t from = p->tail, begin = shm_ring_begin(from);

    p->tail = begin + p->used;
    p->beyond = begin;
    atomic_store_explicit(shm_ring_word(p->memory, p->tail), 0,
                          memory_order_relaxed);
    /* Pairs with the acquire in shm_ring_peek(). */
    atomic_store_explicit(shm_ring_word(p->memory, from),
                          shm_ring_seal(from, SHM_JUMP
                                              | p->used / SHM_ALIGN),
                          memory_order_release);
    shm_ring_fence(p);
}

/* Publishes the reserved record with its first `size` bytes as the frame.
 * True if the next one is in the memory's beginning again. */
static inline bool shm_ring_commit(struct shm_producer *p, size_t size)
{
    uint64_t from = p->tail, end = shm_ring_next(from, size), next = end;
    bool behind = next > p->fence;

    if (TPB_UNLIKELY(behind))
        next = shm_ring_turn(p, end);
    /* Only the next header's word matters; what the record covers is not
     * looked at as a header. */
    atomic_store_explicit(shm_ring_word(p->memory, next), 0,
                          memory_order_relaxed);
    /* Pairs with the acquire in shm_ring_peek(). */
    atomic_store_explicit(shm_ring_word(p->memory, from),
                          shm_ring_seal(from, (uint32_t)size),
                          memory_order_release);
    p->tail = next;
    if (TPB_LIKELY(!behind))
        return false;
    shm_ring_fence(p);
    if (shm_ring_lap(from) > next)
        return false;
    if (next == end)
        p->used = SHM_RING;        /* it went on to the end */
    return true;
}

/* After a record of a stream: asks for a line. */
static inline void shm_ring_ahead(const struct shm_producer *p, size_t size)
{
    /* Not what the consumer may still be reading; and the lines of what is
     * long come fast enough by themselves. */
    if (size <= SHM_FRAME / 2 && p->tail + SHM_AHEAD < p->head + SHM_RING)
        tpb_prefetch_write(shm_ring_word(p->memory, p->tail + SHM_AHEAD));
}

/* A line that is free and will be written. */
static inline void shm_ring_claim(const struct shm_producer *p, void *line)
{
    if (p->claim)
        *(volatile unsigned char *)line = 0;
    else
        tpb_prefetch_write(line);
}

/* After the record at `from`, which will be answered before there is another:
 * gives up its lines, and asks for as many, and for some more if there are
 * records before it that belong to it, of so many bytes.  What lies between it
 * and the tail is more where the memory began again. */
static inline void shm_ring_rest(struct shm_producer *p, uint64_t from,
                                 size_t frame, uint64_t before)
{
    uint64_t tail = p->tail, span = shm_ring_next(from, frame) - from;
    uint64_t most = before < SHM_CLAIMED ? before : SHM_CLAIMED;
    uint64_t end = tail + span + most + TPB_CACHE_LINE;

    if (p->demote && span <= SHM_DEMOTED)
        for (uint64_t at = from; at < from + span; at += TPB_CACHE_LINE)
            tpb_demote(shm_ring_word(p->memory, at));
    /* Not what the consumer may still be reading, nor behind the extent. */
    if (TPB_UNLIKELY(end > p->fence)) {
        (void)shm_ring_look(p);
        if (end > p->fence)
            end = p->fence;
    }
    /* Not the line in which the consumer looks for the next header; the one
     * after that it may ask for, too, and get it empty once. */
    for (uint64_t at = shm_ring_line(tail + 1); at < end; at += TPB_CACHE_LINE)
        shm_ring_claim(p, shm_ring_word(p->memory, at));
}

/* Is there a record?  Cheap enough to ask all the time. */
static inline bool shm_ring_ready(const struct shm_consumer *c)
{
    return atomic_load_explicit(shm_ring_word(c->memory, c->head),
                                memory_order_relaxed) != 0;
}

/*
 * Of an answer to ours.  All of its lines are in the producer's cache, and each
 * takes as long as the first unless they are asked for together, before anybody
 * looks at the frame: those of a record that is there; and while there is none,
 * the second one if the last record had two, so that it comes with the first.
 * (In a stream the lines come while the record before is read, and to ask for
 * so many at once only holds up both sides.)
 */
static inline void shm_ring_fetch(const struct shm_consumer *c)
{
    const unsigned char *line =
        c->memory + (c->head & (SHM_RING - TPB_CACHE_LINE));
    uint32_t end = (uint32_t)atomic_load_explicit(
        shm_ring_word(c->memory, c->head), memory_order_relaxed);

    if (TPB_UNLIKELY(end > SHM_FRAME))
        return;                /* SHM_TURN */
    end += SHM_HEADER + (uint32_t)c->head % TPB_CACHE_LINE;
    if (end > SHM_FETCHED)
        end = SHM_FETCHED;
    for (uint32_t at = TPB_CACHE_LINE; at < end; at += TPB_CACHE_LINE)
        __builtin_prefetch(line + at);
}

/* Has a record of that frame two lines? */
static inline bool shm_ring_two(uint32_t frame)
{
    return frame > TPB_CACHE_LINE - SHM_HEADER
           && frame <= 2 * TPB_CACHE_LINE - SHM_HEADER;
}

/* Had the last one? */
static inline bool shm_ring_pair(const struct shm_consumer *c)
{
    return shm_ring_two(c->last);
}

static inline void shm_ring_fetch_second(const struct shm_consumer *c)
{
    if (TPB_UNLIKELY(shm_ring_pair(c)))
        __builtin_prefetch(shm_ring_word(c->memory,
                                         c->head + TPB_CACHE_LINE));
}

/* An answer to that is to come: the line in which it begins, see early.c, and
 * the second one, if its reader asks for that as well.  A store, where asking
 * does not bring a line as this core's own, holds up all others until it is
 * there; that is worse. */
static inline void shm_ring_early(const struct shm_producer *p, bool pair)
{
    tpb_prefetch_write(shm_ring_word(p->memory, p->tail));
    if (pair)
        tpb_prefetch_write(shm_ring_word(p->memory,
                                         p->tail + TPB_CACHE_LINE));
}

/* Where the record is that a header word at `position` leads to; there, if it
 * leads nowhere. */
static inline uint64_t shm_ring_led(uint64_t position, uint64_t word)
{
    uint64_t begin = shm_ring_begin(position);
    uint64_t to = begin + ((uint32_t)word & (SHM_JUMP - 1))
                          * (uint64_t)SHM_ALIGN;

    if (word == shm_ring_seal(position, SHM_TURN))
        return begin + SHM_RING;
    return word == shm_ring_seal(position, (uint32_t)word)
           && ((uint32_t)word & ~(SHM_JUMP - 1)) == SHM_JUMP
           && to > position && to < begin + SHM_RING ? to : position;
}

/* The frame of the oldest record, or NULL. */
static inline const void *shm_ring_peek(struct shm_consumer *c)
{
    uint64_t next;

    for (;;) {
        uint64_t word = atomic_load_explicit(shm_ring_word(c->memory, c->head),
                                             memory_order_acquire);
        uint32_t size = (uint32_t)word;

        if (word == 0)
            return NULL;
        if (TPB_LIKELY(size != 0 && size <= SHM_FRAME
                       && word == shm_ring_seal(c->head, size))) {
            c->size = size;
            return c->memory + (c->head & (SHM_RING - 1)) + SHM_HEADER;
        }
        next = shm_ring_led(c->head, word);
        if (next == c->head) {
            c->broken = true;
            return NULL;
        }
        c->due = c->head = next;
    }
}

/* The rest of shm_ring_publish(). */
static __attribute__((noinline, unused)) bool
shm_ring_say(struct shm_consumer *c)
{
    uint64_t end = shm_ring_lap(c->head - 1);

    c->due = c->head + ((c->head & (SHM_RING - 1)) < SHM_SMALL
                        ? SHM_PUBLISH_SMALL : SHM_PUBLISH);
    if (c->due > end)
        c->due = end + SHM_ALIGN;
    atomic_store_explicit(&c->side->head, c->head, memory_order_release);
    /* Pairs with shm_ring_wait_room(). */
    atomic_thread_fence(memory_order_seq_cst);
    if (TPB_LIKELY(atomic_load_explicit(&c->side->starved,
                                        memory_order_relaxed) == 0))
        return false;
    atomic_store_explicit(&c->side->starved, 0, memory_order_relaxed);
    return true;
}

/* Says how far it is, if that is due.  True if the producer waits for room and
 * must be told.  To be called also when peek has shown nothing. */
static inline bool shm_ring_publish(struct shm_consumer *c)
{
    return TPB_UNLIKELY(c->head >= c->due) && shm_ring_say(c);
}

/* Gives the record's memory back.  True if the producer waits for room and
 * must be told. */
static inline bool shm_ring_pop(struct shm_consumer *c)
{
    c->last = c->size;
    c->count++;
    c->head = shm_ring_next(c->head, c->size);
    c->size = 0;
    return shm_ring_publish(c);
}

#endif
