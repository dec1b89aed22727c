/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The shared-memory ring on a processor that keeps no order but what is asked
 * for, as aarch64 and POWER may: the code of ring.h, whose atomic operations
 * are those below.  A load finds any value that nothing orders before a later
 * one, by the rules of C11; and what is read or written without atomics must be
 * ordered after what the other side did to it last.
 *
 * Both sides are played in turn, a record at a time: what would happen between
 * two of a record's stores is what a load sees that finds an old value.
 */
#include "config.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/lib/tpx.h"

static uint64_t weak_load(const volatile void *word, memory_order order);
static void weak_store(volatile void *word, uint64_t value,
                       memory_order order);
static void weak_fence(memory_order order);

#undef atomic_load_explicit
#undef atomic_store_explicit
#undef atomic_thread_fence
#define atomic_load_explicit(word, order) \
    ((__typeof__(*(word) + 0))weak_load(word, order))
#define atomic_store_explicit(word, value, order) \
    weak_store(word, value, order)
#define atomic_thread_fence(order) weak_fence(order)

#include "fabric/shm/ring.h"

enum {
    WEAK_SEEDS = 300, WEAK_RECORDS = 200,
    WEAK_KEPT = 4,                 /* the last stores to a word */
    WEAK_RING = SHM_RING / sizeof(uint64_t),
    WEAK_WORDS = WEAK_RING + sizeof(struct shm_side) / sizeof(uint32_t),
    WEAK_PATIENCE = 10000          /* turns in which nothing has come */
};

enum weak_who { WEAK_PRODUCER, WEAK_CONSUMER, WEAK_BOTH };

/* How far each of the two was: what is known to have happened. */
struct weak_view {
    uint32_t when[WEAK_BOTH];
};

struct weak_word {
    int seed;                      /* what follows is of that one */
    uint32_t stores, seen[WEAK_BOTH];  /* so far; the last one that ... */
    uint32_t read[WEAK_BOTH], written[WEAK_BOTH];  /* without atomics: when */
    struct weak_stored {
        uint64_t value;
        enum weak_who who;
        uint32_t when;
        struct weak_view view;     /* what an acquire takes over */
    } last[WEAK_KEPT];             /* the latest first */
};

static struct weak_word *words;
static struct weak_view views[WEAK_BOTH], fenced[WEAK_BOTH], order_of_fences;
static enum weak_who me;
static int seed;
static unsigned dice;

static struct shm_side side;
static struct shm_producer producer;
static struct shm_consumer consumer;
static unsigned char *memory;      /* addresses, and no more */
static bool asleep;                /* the producer, until it is told */

static unsigned weak_random(unsigned count)
{
    dice = dice * 1664525u + 1013904223u;
    return (dice >> 8) % count;
}

static enum weak_who weak_other(void)
{
    return me == WEAK_PRODUCER ? WEAK_CONSUMER : WEAK_PRODUCER;
}

static struct weak_word *weak_word(const volatile void *at)
{
    uintptr_t place = (uintptr_t)at - (uintptr_t)memory;
    struct weak_word *word = &words[place % SHM_RING / sizeof(uint64_t)];

    if (place >= 2 * SHM_RING)
        word = &words[WEAK_RING + ((uintptr_t)at - (uintptr_t)&side)
                                  / sizeof(uint32_t)];
    if (word->seed != seed)
        *word = (struct weak_word){ .seed = seed };
    return word;
}

static void weak_join(struct weak_view *to, const struct weak_view *from)
{
    for (int i = 0; i < WEAK_BOTH; i++)
        if (from->when[i] > to->when[i])
            to->when[i] = from->when[i];
}

/* Has nothing that the other did there been left without an order? */
static void weak_check(bool ordered, const char *what)
{
    ck_assert_msg(ordered, "seed %d: the %s %s without an order", seed,
                  me == WEAK_PRODUCER ? "producer" : "consumer", what);
}

static void weak_put(struct weak_word *word, uint64_t value, bool release)
{
    enum weak_who other = weak_other();
    uint32_t known = views[me].when[other];

    weak_check(word->read[other] <= known, "overwrites what is being read");
    weak_check(word->written[other] <= known, "overwrites what is new");
    memmove(&word->last[1], &word->last[0],
            (WEAK_KEPT - 1) * sizeof(word->last[0]));
    views[me].when[me]++;
    word->last[0] = (struct weak_stored){
        .value = value, .who = me, .when = views[me].when[me],
        .view = release ? views[me] : fenced[me] };
    word->seen[me] = ++word->stores;
}

static void weak_store(volatile void *at, uint64_t value, memory_order order)
{
    weak_put(weak_word(at), value, order != memory_order_relaxed);
}

/* Of the last stores those that may be found: from the latest one back to the
 * first that is known; in the beginning all is zero. */
static uint64_t weak_load(const volatile void *at, memory_order order)
{
    struct weak_word *word = weak_word(at);
    uint32_t back = 0, found;

    while (back < word->stores && back < WEAK_KEPT - 1
           && word->stores - back > word->seen[me]
           && word->last[back].when > views[me].when[word->last[back].who])
        back++;
    found = weak_random(back + 1);
    if (found == word->stores)
        return 0;
    if (word->stores - found > word->seen[me])
        word->seen[me] = word->stores - found;
    if (order != memory_order_relaxed)
        weak_join(&views[me], &word->last[found].view);
    return word->last[found].value;
}

/* No other order is known here. */
static void weak_fence(memory_order order)
{
    ck_assert_int_eq(order, memory_order_seq_cst);
    weak_join(&views[me], &order_of_fences);
    fenced[me] = order_of_fences = views[me];
}

static void weak_write(unsigned char *at, uint64_t value)
{
    struct weak_word *word = weak_word(at);

    weak_put(word, value, false);
    word->written[me] = views[me].when[me];
}

static uint64_t weak_read(const unsigned char *at)
{
    struct weak_word *word = weak_word(at);
    const struct weak_stored *last = &word->last[0];

    weak_check(word->stores > 0 && last->when <= views[me].when[last->who],
               "reads what is new");
    word->read[me] = ++views[me].when[me];
    return last->value;
}

/* ---- the two sides ------------------------------------------------------- */

static uint64_t weak_content(uint32_t record, size_t at)
{
    return (uint64_t)record << 32 | at;
}

static size_t weak_size(uint32_t record)
{
    uint32_t hash = ((uint32_t)seed * 7919 + record) * 2654435761u;

    return hash % 8 == 0 ? 16 + (hash >> 8) % (SHM_FRAME - 16)
                         : 16 + (hash >> 8) % (hash % 8 == 1 ? 4000 : 200);
}

/* As shm_reserve() does it, with an extent that changes at will. */
static unsigned char *weak_room(size_t size)
{
    static const uint32_t extents[] = { SHM_SMALL, 4 * SHM_SMALL, SHM_NARROW };
    unsigned extent = weak_random(64);

    if (extent < TPB_COUNT(extents))
        shm_ring_extend(&producer, extents[extent]);
    if (shm_ring_reaches(&producer, size) && shm_ring_look(&producer)
        && !shm_ring_fits(&producer, size)
        && shm_ring_may_jump(&producer, producer.extent))
        shm_ring_jump(&producer);
    return shm_ring_reserve(&producer, size);
}

static bool weak_produce(uint32_t record)
{
    size_t size = weak_size(record);
    unsigned char *room = weak_room(size);

    if (room == NULL && shm_ring_wait_room(&producer, size))
        room = shm_ring_room(&producer);
    asleep = room == NULL;
    if (asleep)
        return false;
    for (size_t at = 0; at < size; at += sizeof(uint64_t))
        weak_write(room + at, weak_content(record, at));
    shm_ring_commit(&producer, size);
    return true;
}

static bool weak_consume(uint32_t record)
{
    const unsigned char *frame = shm_ring_peek(&consumer);

    ck_assert_msg(!consumer.broken, "seed %d: record %u is none", seed,
                  record);
    if (frame == NULL) {
        if (shm_ring_publish(&consumer))
            asleep = false;
        return false;
    }
    ck_assert_uint_eq(consumer.size, weak_size(record));
    for (size_t at = 0; at < consumer.size; at += sizeof(uint64_t))
        ck_assert_uint_eq(weak_read(frame + at), weak_content(record, at));
    if (shm_ring_pop(&consumer))
        asleep = false;
    return true;
}

static void weak_play(void)
{
    uint32_t sent = 0, got = 0, vain = 0;

    memset(views, 0, sizeof(views));
    memset(fenced, 0, sizeof(fenced));
    memset(&order_of_fences, 0, sizeof(order_of_fences));
    dice = (unsigned)seed;
    asleep = false;
    shm_producer_init(&producer, &side, memory, true);
    shm_consumer_init(&consumer, &side, memory);
    while (got < WEAK_RECORDS) {
        bool moved;

        me = weak_random(2) == 0 ? WEAK_PRODUCER : WEAK_CONSUMER;
        if (me == WEAK_CONSUMER)
            got += moved = weak_consume(got);
        else
            sent += moved = sent < WEAK_RECORDS && !asleep
                            && weak_produce(sent);
        vain = moved ? 0 : vain + 1;
        ck_assert_msg(vain < WEAK_PATIENCE, "seed %d: nobody tells that %s",
                      seed, asleep ? "there is room" : "a record is there");
    }
}

START_TEST(ring_asks_for_all_the_order_that_it_needs)
{
    words = calloc(WEAK_WORDS, sizeof(*words));
    memory = mmap(NULL, 2 * SHM_RING, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_nonnull(words);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    for (seed = 1; seed <= WEAK_SEEDS; seed++)
        weak_play();
    munmap(memory, 2 * SHM_RING);
    free(words);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("weak");
    TCase *tests = tcase_create("weak");

    tcase_set_timeout(tests, 180);
    tcase_add_test(tests, ring_asks_for_all_the_order_that_it_needs);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
