/* SPDX-License-Identifier: BSD-3-Clause */
/* The shared-memory ring: alone, step by step; and between two threads. */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fabric/shm/shm.h"
#include "runtime/base/io.h"
#include "tests/lib/tpx.h"

static struct shm_side side;
static struct shm_producer producer;
static struct shm_consumer consumer;
static unsigned char *memory;
static int fd;                     /* of the memory */
static bool turns;                 /* what is put will be answered */
static struct shm_endpoint endpoint;
static struct shm_conn grown;      /* through which what is put makes the ring
                                      grow; no endpoint: it does not */

static void setup(void)
{
    fd = tpb_shared_memory_parts("ring", SHM_RING, 0, SHM_SPAN, 1);

    ck_assert_int_ge(fd, 0);
    memory = mmap(NULL, 2 * SHM_RING, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
                  -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    for (int i = 0; i < 2; i++)
        ck_assert_ptr_ne(mmap(memory + i * SHM_RING, SHM_RING,
                              PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                              fd, 0), MAP_FAILED);
    turns = false;
    memset(&endpoint, 0, sizeof(endpoint));
    memset(&grown, 0, sizeof(grown));
    memset(&side, 0, sizeof(side));
    shm_producer_init(&producer, &side, memory, true);
    shm_consumer_init(&consumer, &side, memory);
}

static void teardown(void)
{
    munmap(memory, 2 * SHM_RING);
    close(fd);
}

/* Bytes of the ring that have become memory. */
static size_t occupied(void)
{
    struct stat status;

    ck_assert_int_eq(fstat(fd, &status), 0);
    return (size_t)status.st_blocks * 512;
}

/* Of which what is occupied consists. */
static size_t page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Room for it, as a conn finds it. */
static void *reserve(size_t size)
{
    if (grown.base.endpoint != NULL && shm_ring_reaches(&producer, size)) {
        grown.out = producer;
        shm_extent_end(&grown, size);
        producer = grown.out;
    }
    return shm_ring_reserve(&producer, size);
}

/* A record of `size` bytes that tells its number; false: no room. */
static bool put(size_t reserved, size_t size, uint64_t number)
{
    unsigned char *room = reserve(reserved);
    uint64_t from;

    if (room == NULL)
        return false;
    ck_assert_uint_eq((uintptr_t)room % 8, 0);
    memset(room, (int)(0x80 | number), reserved);
    from = producer.tail;
    shm_ring_commit(&producer, size);
    if (turns)
        shm_ring_rest(&producer, from, size, number % 4 * 3000);
    else
        shm_ring_ahead(&producer, size);
    return true;
}

static void get(size_t size, uint64_t number)
{
    const unsigned char *frame = shm_ring_peek(&consumer);
    size_t right = 0;

    ck_assert_ptr_nonnull(frame);
    ck_assert_uint_eq(consumer.size, size);
    while (right < size && frame[right] == (unsigned char)(0x80 | number))
        right++;
    ck_assert_uint_eq(right, size);
    shm_ring_pop(&consumer);
}

/* There is no record, and the consumer says so. */
static void idle(void)
{
    ck_assert_ptr_null(shm_ring_peek(&consumer));
    ck_assert(!consumer.broken);
    shm_ring_publish(&consumer);
}

START_TEST(test_empty)
{
    ck_assert_ptr_null(shm_ring_peek(&consumer));
    ck_assert(!shm_ring_ready(&consumer));
    shm_ring_fetch_second(&consumer);
    for (size_t size = 1; size <= 3 * TPB_CACHE_LINE; size++) {
        ck_assert(put(size, size, 1));
        ck_assert(shm_ring_ready(&consumer));
        shm_ring_fetch(&consumer);
        get(size, 1);
        idle();
        ck_assert(!shm_ring_ready(&consumer));
        ck_assert(shm_ring_pair(&consumer) == (size > 56 && size <= 120));
        shm_ring_fetch_second(&consumer);
    }
    ck_assert_ptr_null(shm_ring_peek(&consumer));
    ck_assert(!consumer.broken);
}
END_TEST

/* Every size at every place of the ring, many times around. */
START_TEST(test_sizes)
{
    uint64_t number = 0;

    for (size_t size = 1; size <= SHM_FRAME; size = size * 9 / 8 + 1)
        for (int i = 0; i < 40; i++, number++) {
            ck_assert(put(size, size, number));
            get(size, number);
        }
    for (int i = 0; i < 3 * SHM_RING / SHM_FRAME; i++, number++) {
        ck_assert(put(SHM_FRAME, SHM_FRAME, number));
        get(SHM_FRAME, number);
    }
}
END_TEST

START_TEST(test_full)
{
    uint64_t in = 0, out = 0;

    for (int lap = 0; lap < 20; lap++) {
        bool small = lap < 10;

        if (lap == 10)
            shm_ring_extend(&producer, SHM_NARROW);
        while (put(1000, 1000, in))
            in++;
        ck_assert_uint_ge((in - out) * shm_ring_span(1000),
                          (small ? SHM_SMALL - SHM_PUBLISH_SMALL
                                 : SHM_NARROW - SHM_PUBLISH)
                          - 2 * shm_ring_span(1000));
        ck_assert(!shm_ring_wait_room(&producer, 1000));
        ck_assert_uint_eq(side.starved, 1);
        while (out < in)
            get(1000, out++);
        ck_assert_uint_eq(side.starved, 0);    /* the consumer has told */
        idle();
        /* However large, it fits into an empty ring. */
        ck_assert_ptr_nonnull(shm_ring_reserve(&producer, SHM_FRAME));
    }
}
END_TEST

/* A commit smaller than its reservation, and a reservation that is replaced by
 * another one, leave bytes that must not be taken for records. */
START_TEST(test_leftovers)
{
    for (uint64_t i = 0; i < 500; i++) {
        unsigned char *room = shm_ring_reserve(&producer, SHM_FRAME);

        ck_assert_ptr_nonnull(room);
        memset(room, 0xff, SHM_FRAME);
        ck_assert(put(1 + i * 7 % 3000, 1 + i % 3, i));
        get(1 + i % 3, i);
        ck_assert_ptr_null(shm_ring_peek(&consumer));
        ck_assert(!consumer.broken);
    }
}
END_TEST

/* What the other process may write into the shared memory out of spite. */
START_TEST(test_spite)
{
    static const uint64_t words[] = { 1, UINT64_MAX, SHM_FRAME, 0x100000000,
                                      SHM_TURN, 0x7470000080000000 };

    for (size_t i = 0; i < TPB_COUNT(words); i++) {
        atomic_store(shm_ring_word(memory, 0), words[i]);
        consumer.broken = false;
        ck_assert(shm_ring_ready(&consumer));
        shm_ring_fetch(&consumer);
        ck_assert_ptr_null(shm_ring_peek(&consumer));
        ck_assert(consumer.broken);
    }
    atomic_store(shm_ring_word(memory, 0), 0);
    for (uint64_t i = 0; put(4000, 4000, i); i++)
        ;
    /* A head ahead of us, and one that goes back. */
    atomic_store(&side.head, producer.tail + 64);
    ck_assert_ptr_null(shm_ring_reserve(&producer, 4000));
    atomic_store(&side.head, UINT64_MAX);
    ck_assert_ptr_null(shm_ring_reserve(&producer, 4000));
    atomic_store(&side.head, 8);
    producer.head = 16;
    ck_assert_ptr_null(shm_ring_reserve(&producer, 4000));
}
END_TEST

/* Lines are given up and asked for over all of the ring, by hints or by stores,
 * and at its end and where it is full nothing else changes. */
START_TEST(test_turns)
{
    static const size_t sizes[] = { 1, 24, 25, 56, 64, 1000, SHM_LONG,
                                    SHM_LONG + 1, 4096, SHM_DEMOTED,
                                    SHM_FRAME };
    uint64_t number = 0, full;

    turns = true;
    shm_ring_extend(&producer, SHM_NARROW);
    for (int way = 0; way < 4; way++) {
        producer.claim = way % 2 != 0;
        producer.demote = way / 2 != 0 && tpb_demotes();
        for (size_t i = 0; i < TPB_COUNT(sizes); i++)
            for (uint64_t at = 0; at < 3 * SHM_NARROW; at += sizes[i] + 8) {
                ck_assert(put(sizes[i], sizes[i], ++number % 100));
                get(sizes[i], number % 100);
            }
        ck_assert_uint_le(occupied(), SHM_NARROW + SHM_BEHIND + page());
        /* The head that was seen last is old: it is looked at again. */
        ck_assert_uint_ge(producer.head + SHM_RING,
                          producer.tail + SHM_FRAME);
        for (full = number; put(SHM_FRAME, SHM_FRAME, (full + 1) % 100);)
            full++;
        ck_assert_uint_gt(full, number + 8);
        while (number < full)
            get(SHM_FRAME, ++number % 100);
        ck_assert(!shm_ring_ready(&consumer));
    }
    /* A head that cannot be is not believed, and nothing is asked for. */
    producer.head = producer.tail - SHM_RING + 2048 + 96;
    full = producer.head;
    shm_ring_fence(&producer);
    atomic_store(&side.head, producer.tail + 4096);
    ck_assert(put(2000, 2000, 1));
    ck_assert_uint_eq(producer.head, full);
}
END_TEST

/* After the last of several records that are one answer, more lines are claimed
 * than that one has. */
START_TEST(test_claims_for_several)
{
    enum { SIZE = 3000, FURTHER = 4096 };

    shm_ring_extend(&producer, SHM_NARROW);
    producer.claim = true;
    for (uint64_t before = 0; before <= SHM_CLAIMED; before += SHM_CLAIMED) {
        uint64_t from = producer.tail;
        unsigned char *line = memory + shm_ring_line(
            from + 2 * shm_ring_span(SIZE) + FURTHER);

        ck_assert(put(SIZE, SIZE, 1));
        *line = 0xff;
        shm_ring_rest(&producer, from, SIZE, before);
        ck_assert_uint_eq(*line, before != 0 ? 0 : 0xff);
        get(SIZE, 1);
    }
}
END_TEST

/* The record behind which the memory begins again is as long as others: no
 * more lines are claimed than it has. */
START_TEST(test_claims_are_short)
{
    unsigned char *middle = memory + SHM_NARROW / 2;
    unsigned laps = 0;

    shm_ring_extend(&producer, SHM_NARROW);
    turns = producer.claim = true;
    for (uint64_t number = 0; laps < 3; number++) {
        uint64_t before = producer.tail;

        if ((before & (SHM_RING - 1)) > SHM_NARROW / 2 + 1024)
            *middle = 0xff;
        ck_assert(put(24, 24, number % 100));
        get(24, number % 100);
        if (producer.tail - before > SHM_NARROW) {
            ck_assert_uint_eq(*middle, 0xff);
            laps++;
        }
    }
}
END_TEST

/* ---- how much of it is used ---------------------------------------------- */

static void fill(uint64_t *number, uint64_t bytes, size_t size)
{
    for (uint64_t end = producer.tail + bytes; producer.tail < end;
         ++*number) {
        ck_assert(put(size, size, *number));
        get(size, *number);
    }
}

static bool wide(const struct shm_conn *conn)
{
    return shm_ring_wide(&conn->out);
}

/* So many laps of it, beginning now, as a busy one makes; or one less. */
static void busy(struct shm_conn *conn, uint64_t now, bool enough)
{
    uint64_t laps = (4 * 1024 * 1024 + conn->out.extent - 1)
                    / conn->out.extent;

    shm_extent_lap(conn, now - 20000000);
    shm_extent_lap(conn, now);         /* who knows how long that took */
    for (uint64_t i = 0; i + !enough < laps; i++)
        shm_extent_lap(conn, now + i);
}

/* A wide ring becomes a small one: another, which is busy, takes its place. */
static void narrow(void)
{
    static struct shm_conn others[SHM_WIDE], another;
    static _Alignas(4096) unsigned char elsewhere[SHM_RING];

    memset(others, 0, sizeof(others));
    memset(&another, 0, sizeof(another));
    grown.out = producer;
    for (int k = 0; k < SHM_WIDE; k++) {
        others[k].lapped = UINT64_MAX / 2;
        endpoint.wide[k] = &others[k];
    }
    endpoint.wide[2] = &grown;
    another.base.endpoint = &endpoint.base;
    shm_producer_init(&another.out, &side, elsewhere, true);
    busy(&another, UINT64_MAX / 2, true);
    ck_assert(!wide(&grown) && wide(&another));
    producer = grown.out;
}

/* From one extent to the other at any place, with records under way. */
START_TEST(test_extents)
{
    static const size_t sizes[] = { 8, 1000, 4000, SHM_FRAME };
    uint64_t in = 0, out = 0, state = 3;

    for (size_t i = 0; i < TPB_COUNT(sizes); i++)
        fill(&in, 3 * SHM_RING, sizes[i]);
    ck_assert_uint_le(occupied(), SHM_SPAN + page());
    if (_i > 0)
        grown.base.endpoint = &endpoint.base;
    for (out = in; in < 50000; in++) {
        size_t size;

        state = state * 6364136223846793005u + 1442695040888963407u;
        size = 1 + (state >> 33) % 9000;
        if ((state >> 50) % 64 == 0)
            shm_ring_extend(&producer, producer.extent == SHM_RING ? SHM_SMALL
                                       : producer.extent == SHM_SMALL
                                       ? SHM_NARROW : SHM_RING);
        if (_i > 0 && (state >> 50) % 64 == 1 && producer.extent == SHM_RING)
            narrow();
        while (!put(size, 1 + size / 2, in)) {
            if (shm_ring_peek(&consumer) != NULL) {
                get(consumer.size, out++);
                continue;
            }
            /* However long the next one is, an empty ring takes it. */
            idle();
            ck_assert_uint_eq(out, in);
            ck_assert_ptr_nonnull(reserve(SHM_FRAME));
        }
        if ((state >> 40) % 8 == 0)
            for (; out < in; out++) {
                ck_assert_ptr_nonnull(shm_ring_peek(&consumer));
                get(consumer.size, out);
            }
    }
    ck_assert_uint_gt(occupied(), 2 * SHM_SPAN);
}
END_TEST

/* The room was reserved when all of the ring was used, and is all that is
 * left: where the memory begins there are records still to be read. */
START_TEST(test_extent_between)
{
    uint64_t in = 0, out = 0;
    unsigned char *room;

    shm_ring_extend(&producer, SHM_RING);
    while (put(4000, 4000, in))
        in++;
    for (; out < 20; out++) {
        ck_assert_ptr_nonnull(shm_ring_peek(&consumer));
        get(4000, out);
    }
    room = shm_ring_reserve(&producer, 4000);
    ck_assert_ptr_nonnull(room);
    memset(room, (int)(0x80 | in), 4000);
    shm_ring_extend(&producer, SHM_SMALL);
    shm_ring_commit(&producer, 4000);
    for (in++; out < in; out++) {
        ck_assert_ptr_nonnull(shm_ring_peek(&consumer));
        get(4000, out);
    }
    fill(&in, 3 * SHM_RING, 5000);
    ck_assert(!consumer.broken);
}
END_TEST

/* Of many busy rings some are wide; one that rests gives way to another, and
 * its memory back, but for what is under way. */
START_TEST(test_extent_choice)
{
    enum { MOST = SHM_WIDE, MS = 1000000 };
    static struct shm_conn conns[MOST + 2];
    uint64_t now = tpb_now();

    for (size_t i = 0; i < TPB_COUNT(conns); i++) {
        conns[i].base.endpoint = &endpoint.base;
        shm_producer_init(&conns[i].out, &side, memory, i <= MOST);
        busy(&conns[i], now, false);
        ck_assert(!wide(&conns[i]));
    }
    busy(&conns[MOST + 1], now, true);
    ck_assert(!wide(&conns[MOST + 1]));   /* ranks share cpus */
    for (int lap = 0; lap < 10000; lap++) /* slow, but steady */
        shm_extent_lap(&conns[0], now + 100 * MS + (uint64_t)lap * MS / 10);
    ck_assert(!wide(&conns[0]));
    now += 2000 * (uint64_t)MS;
    for (int i = 0; i <= MOST; i++) {
        busy(&conns[i], now + 3 * MS, true);
        ck_assert_int_eq(wide(&conns[i]), i < MOST);
        ck_assert_uint_eq(conns[i].out.extent,
                          i < MOST ? SHM_RING : SHM_SMALL);
    }
    for (int i = 0; i < MOST; i++)
        if (i != 3)
            shm_extent_lap(&conns[i], now + 80 * MS);
    busy(&conns[MOST], now + 90 * MS, true);
    ck_assert(!wide(&conns[MOST]));       /* none rests for long */
    busy(&conns[MOST], now + 120 * MS, true);
    ck_assert(wide(&conns[MOST]) && !wide(&conns[3]) && wide(&conns[2]));
    ck_assert_uint_eq(conns[3].out.extent, SHM_SMALL);
    shm_extent_forget(&conns[2]);
    busy(&conns[3], now + 121 * MS, true);
    ck_assert(wide(&conns[3]));
}
END_TEST

/* Laps of records that are written in turns, so many MiB, each of which takes
 * `narrow` or, where all of the memory is used, `all` ns. */
static void take_turns(struct shm_conn *conn, uint64_t *now, unsigned mib,
                       uint32_t record, unsigned narrow, unsigned all)
{
    uint64_t bytes = (uint64_t)mib << 20, done = 0;

    conn->turns = SHM_TURNS_MOST;
    conn->record = record;
    while (done < bytes) {
        done += conn->out.extent;
        *now += conn->out.extent * (uint64_t)(wide(conn) ? all : narrow)
                / (1 << 20);
        shm_extent_lap(conn, *now);
    }
}

/* Who takes turns uses as much of a ring as is found to be quicker, for records
 * of that length, and finds out again. */
START_TEST(test_extent_turns)
{
    enum { QUICK = 500000, SLOW = 700000, MANY = 120 };
    static struct shm_conn conn;
    uint64_t now = tpb_now();

    memset(&conn, 0, sizeof(conn));
    memset(&endpoint, 0, sizeof(endpoint));
    conn.base.endpoint = &endpoint.base;
    shm_producer_init(&conn.out, &side, memory, true);
    conn.lapped = now;
    take_turns(&conn, &now, MANY, 4112, QUICK, SLOW);
    ck_assert_uint_eq(conn.out.extent, SHM_SMALL);
    take_turns(&conn, &now, MANY, 4112, SLOW, QUICK);
    ck_assert(wide(&conn));
    take_turns(&conn, &now, MANY, 1040, QUICK, SLOW);   /* of others */
    ck_assert_uint_eq(conn.out.extent, SHM_SMALL);
    take_turns(&conn, &now, MANY, 16400, QUICK, SLOW);
    ck_assert_uint_eq(conn.out.extent, 4 * SHM_SMALL);
    /* A stream has all of it; then it is as it was found before. */
    conn.turns = 0;
    for (int i = 0; i < 100; i++)
        shm_extent_lap(&conn, now += 80000);
    ck_assert(wide(&conn));
    take_turns(&conn, &now, 3, 16400, QUICK, SLOW);
    ck_assert_uint_eq(conn.out.extent, 4 * SHM_SMALL);
    /* Not busy: small, and nothing is tried. */
    shm_extent_forget(&conn);
    shm_producer_init(&conn.out, &side, memory, true);
    memset(&conn.fit, 0, sizeof(conn.fit));
    take_turns(&conn, &now, MANY, 40, 40 * SLOW, QUICK);
    ck_assert_uint_eq(conn.out.extent, SHM_SMALL);
    ck_assert_uint_eq(conn.fit.best[0], 0);
    shm_extent_forget(&conn);
}
END_TEST

/* So many laps of 16 KiB, each of which takes `with` ns where the line of the
 * answer is asked for early, and `without` where it is not. */
static unsigned ask_early(struct shm_conn *conn, unsigned laps,
                          uint32_t record, unsigned with, unsigned without)
{
    unsigned early = 0;

    conn->record = record;
    for (unsigned i = 0; i < laps; i++) {
        early += conn->early.on;
        shm_early_lap(conn, conn->early.on ? with : without);
    }
    return early;
}

/* Who takes turns asks for the line of his answer early where that is quicker,
 * for records of that length; the other side finds that out after him. */
START_TEST(test_early)
{
    enum { QUICK = 200000, SLOW = 250000, MANY = 400, TRIALS = 24 };
    static struct shm_conn conn;

    memset(&conn, 0, sizeof(conn));
    conn.out.extent = 16384;
    ask_early(&conn, 1, 24, QUICK, SLOW);
    ck_assert_uint_eq(ask_early(&conn, TRIALS, 24, QUICK, SLOW), TRIALS / 2);
    ck_assert(conn.early.on);
    ck_assert_uint_eq(ask_early(&conn, 20, 24, QUICK, SLOW), 20);
    /* It was worse than nothing for some laps: no more, until it is tried
     * again. */
    ask_early(&conn, 8, 24, SLOW + 1, QUICK);
    ck_assert(!conn.early.on);
    ck_assert_uint_lt(ask_early(&conn, MANY, 24, SLOW, QUICK), MANY / 8);
    ck_assert(!conn.early.on);
    ask_early(&conn, MANY, 24, QUICK, SLOW);
    ck_assert_uint_gt(ask_early(&conn, MANY, 24, QUICK, SLOW), MANY * 3 / 4);
    ck_assert_uint_lt(ask_early(&conn, 5 * MANY, 24, QUICK, SLOW), 5 * MANY);
    /* Not worth it. */
    ask_early(&conn, MANY, 100, QUICK, QUICK + QUICK / 64);
    ck_assert(!conn.early.on);
    /* The cpus are nearer: that is found out soon. */
    ask_early(&conn, 60, 100, QUICK / 3, QUICK / 2 - 1);
    ck_assert(conn.early.on);
    /* Others are not asked for. */
    ck_assert_uint_le(ask_early(&conn, MANY, 300, QUICK, SLOW), 4);
    ask_early(&conn, 30, 24, QUICK, SLOW);
    ask_early(&conn, 3, 16, QUICK, SLOW);  /* credit */
    ck_assert(conn.early.on);
    shm_early_end(&conn);
    ck_assert(!conn.early.on);
    /* The other side begins when this one has decided. */
    conn.side = 1;
    ck_assert_uint_eq(ask_early(&conn, 1 + TRIALS, 24, QUICK, SLOW), 0);
    ck_assert_uint_eq(ask_early(&conn, TRIALS, 24, QUICK, SLOW), TRIALS / 2);
    ck_assert(conn.early.on);
}
END_TEST

/* A small ring stays so while its consumer keeps up; long records do not begin
 * it again all the time. */
START_TEST(test_extent_grows)
{
    uint64_t in = 0;

    grown.base.endpoint = &endpoint.base;
    fill(&in, 20 * SHM_RING, 1000);
    ck_assert_uint_eq(producer.extent, SHM_SMALL);
    ck_assert_uint_le(occupied(), SHM_SPAN + page());
    fill(&in, 2 * SHM_RING, 4000);
    ck_assert_uint_eq(producer.extent, 4 * SHM_SMALL);
    fill(&in, 2 * SHM_RING, SHM_FRAME);
    ck_assert_uint_eq(producer.extent, SHM_NARROW);
}
END_TEST

/* A small ring holds a burst as a large one does, wherever it is and whether
 * its consumer has looked behind the last record or not. */
START_TEST(test_burst)
{
    static const size_t sizes[] = { 24, 100, 1000, 2000, 4000, 9000,
                                    SHM_FRAME };
    uint64_t in = 0;

    grown.base.endpoint = &endpoint.base;
    for (size_t i = 0; i < TPB_COUNT(sizes); i++)
        for (uint64_t phase = 0; phase < 200; phase++) {
            size_t size = sizes[i];
            uint64_t out, begun;

            shm_ring_extend(&producer, SHM_SMALL);
            fill(&in, SHM_RING, 100);
            for (out = 0; out < phase; out++)
                fill(&in, 1, 100);
            if (phase % 2 != 0)
                idle();
            for (out = begun = in; put(size, size, in); in++)
                ;
            ck_assert_uint_ge((in - begun) * size,
                              (SHM_NARROW - 2 * SHM_SPAN) * 7 / 8);
            while (out < in)
                get(size, out++);
            idle();
            ck_assert_ptr_nonnull(reserve(SHM_FRAME));
        }
}
END_TEST

/* Where nothing behind the first 64 KiB can be had.  Linux before 5.14 cannot
 * be asked: false. */
static bool scarce(void)
{
    void *end = mmap(memory + 64 * 1024, SHM_NARROW, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_FIXED, fd, SHM_RING);

    ck_assert_ptr_ne(end, MAP_FAILED);
    return madvise(end, page(), MADV_POPULATE_WRITE) == 0 || errno != EINVAL;
}

/* There is no memory for more: records go through what there is. */
START_TEST(test_extent_stays)
{
    size_t before = occupied();
    uint64_t in = 0, out = 0;

    if (!scarce())
        return;
    grown.base.endpoint = &endpoint.base;
    for (int lap = 0; lap < 50; lap++) {
        size_t size = lap % 2 == 0 ? 1000 : SHM_FRAME;

        while (put(size, size, in))
            in++;
        ck_assert_uint_gt(in, out);
        while (out < in)
            get(size, out++);
        idle();
        ck_assert_uint_eq(producer.extent, SHM_SMALL);
        ck_assert_uint_gt(endpoint.scarce, 0);
        ck_assert_uint_le(occupied(), before + page());
    }
}
END_TEST

/* No memory for it: the ring stays as it is, and no other asks for a while. */
START_TEST(test_extent_scarce)
{
    enum { MS = 1000000 };
    struct shm_conn conns[2] = { 0 };
    size_t before = occupied();
    uint64_t number = 0;
    void *end;

    for (size_t i = 0; i < TPB_COUNT(conns); i++) {
        conns[i].base.endpoint = &endpoint.base;
        shm_producer_init(&conns[i].out, &side, memory, true);
    }
    /* What lies behind the end of a file cannot be had. */
    end = mmap(memory + SHM_RING / 2, SHM_RING / 2, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_FIXED, fd, SHM_RING);
    ck_assert_ptr_ne(end, MAP_FAILED);
    if (madvise(end, page(), MADV_POPULATE_WRITE) != 0 && errno == EINVAL)
        return;                    /* the kernel cannot be asked */
    shm_ring_extend(&conns[0].out, SHM_NARROW);
    busy(&conns[0], 20 * (uint64_t)MS, true);
    ck_assert(!wide(&conns[0]));
    ck_assert_uint_eq(conns[0].out.extent, SHM_NARROW);
    ck_assert_uint_le(occupied(), before + SHM_NARROW + SHM_BEHIND
                                  + page());
    busy(&conns[1], 21 * (uint64_t)MS, true);
    ck_assert(!wide(&conns[1]));
    ck_assert_ptr_ne(mmap(end, SHM_RING / 2, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_FIXED, fd, SHM_RING / 2),
                     MAP_FAILED);
    busy(&conns[1], 1500 * (uint64_t)MS, true);
    ck_assert(wide(&conns[1]));
    producer = conns[0].out;
    fill(&number, 3 * SHM_NARROW, 1000);
}
END_TEST

/* A ring that is to be narrow again, at any place, with records under way and
 * room reserved. */
START_TEST(test_extent_back)
{
    size_t sizes[] = { 300, 4000, SHM_FRAME };
    uint64_t in = 0;

    for (size_t i = 0; i < 60; i++) {
        size_t size = sizes[i % TPB_COUNT(sizes)], left = i % 40, before;
        uint64_t out;
        unsigned char *room;

        shm_ring_extend(&producer, SHM_RING);
        fill(&in, SHM_RING + i * 39989, size);
        for (out = in; in < out + left; in++)
            ck_assert(put(size, size, in));
        before = occupied();
        ck_assert_uint_ge(before, SHM_RING);
        room = shm_ring_reserve(&producer, SHM_FRAME);
        ck_assert_ptr_nonnull(room);
        memset(room, (int)(0x80 | in), SHM_FRAME);
        narrow();
        ck_assert_uint_eq(producer.extent, SHM_SMALL);
        ck_assert_uint_le(occupied(), SHM_SPAN + left * (size + 64)
                                      + 2 * SHM_FRAME + SHM_PUBLISH
                                      + 2 * page());
        shm_ring_commit(&producer, SHM_FRAME);
        for (; out < in; out++)
            get(size, out);
        get(SHM_FRAME, in++);
    }
    ck_assert(!consumer.broken);
}
END_TEST

/* A ring that is to be narrow while its consumer is where it had begun to be
 * wide, and it has gone on behind that. */
START_TEST(test_extent_back_jumped)
{
    uint64_t in = 0, out, lap;

    grown.base.endpoint = &endpoint.base;
    shm_ring_extend(&producer, SHM_NARROW);
    while ((producer.tail & (SHM_RING - 1)) < 100 * 1024)
        fill(&in, 1, 4000);
    lap = producer.tail / SHM_RING;
    for (out = in; producer.tail / SHM_RING == lap; in++)
        ck_assert(put(4000, 4000, in));
    shm_ring_extend(&producer, SHM_RING);
    for (uint64_t jumped = 0; jumped < 10; in++) {
        ck_assert(put(4000, 4000, in));
        jumped += producer.beyond == producer.tail / SHM_RING * SHM_RING;
    }
    narrow();
    while (out < in)
        get(4000, out++);
    idle();
}
END_TEST

/* ... with records under way, and there is no memory to grow again. */
START_TEST(test_extent_back_scarce)
{
    uint64_t in = 0, out;

    if (!scarce())
        return;
    grown.base.endpoint = &endpoint.base;
    shm_ring_extend(&producer, SHM_RING);
    producer.tail = producer.head = consumer.head = 800 * 1024;
    atomic_store(&side.head, producer.head);
    shm_ring_fence(&producer);
    for (out = in; in < 20; in++)
        ck_assert(put(4000, 4000, in));
    narrow();
    while (put(4000, 4000, in))
        in++;
    ck_assert_uint_eq(producer.extent, SHM_SMALL);
    ck_assert_uint_gt(endpoint.scarce, 0);
    while (out < in)
        get(4000, out++);
    idle();
}
END_TEST

/* ---- two threads -------------------------------------------------------- */

static uint64_t records(void)
{
    return (tpx_sanitized() ? 100000 : 400000)
           * (tpx_is_set("TP_TEST_LONG") ? UINT64_C(10) : 1);
}

static size_t record_size(uint64_t *state, uint64_t number)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return number % 100 == 0 ? 8 + (*state >> 33) % (SHM_FRAME - 7)
                             : 8 + (*state >> 33) % 120;
}

static void *produce(void *arg)
{
    uint64_t state = 1, count = records();

    (void)arg;
    for (uint64_t i = 0; i < count; i++) {
        size_t size = record_size(&state, i);
        unsigned char *room;
        uint64_t from;

        while ((room = reserve(size)) == NULL)
            sched_yield();
        memcpy(room, &i, sizeof(i));
        memset(room + 8, (int)i, size - 8);
        from = producer.tail;
        if (i % 5000 == 0)
            shm_ring_extend(&producer, i % 2000 == 0 ? SHM_NARROW
                                       : i % 3 == 0 ? SHM_SMALL : SHM_RING);
        shm_ring_commit(&producer, size);
        if (size % 2 == 0)
            shm_ring_rest(&producer, from, size, i % 7 * 2000);
        else
            shm_ring_ahead(&producer, size);
    }
    return NULL;
}

START_TEST(test_threads)
{
    uint64_t state = 1, count = records();
    pthread_t thread;

    grown.base.endpoint = &endpoint.base;
    ck_assert_int_eq(pthread_create(&thread, NULL, produce, NULL), 0);
    for (uint64_t i = 0; i < count; i++) {
        size_t size = record_size(&state, i);
        const unsigned char *frame;
        uint64_t number;

        while ((frame = shm_ring_peek(&consumer)) == NULL) {
            ck_assert_msg(!consumer.broken, "broken before record %llu",
                          (unsigned long long)i);
            shm_ring_publish(&consumer);
            sched_yield();
        }
        memcpy(&number, frame, sizeof(number));
        if (consumer.size != size || number != i
            || (size > 8 && (frame[8] != (unsigned char)i
                             || frame[size - 1] != (unsigned char)i)))
            ck_abort_msg("record %llu is not itself: size %u, number %llu",
                         (unsigned long long)i, consumer.size,
                         (unsigned long long)number);
        shm_ring_pop(&consumer);
    }
    ck_assert_ptr_null(shm_ring_peek(&consumer));
    pthread_join(thread, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ring");
    TCase *tests = tcase_create("ring");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 180);
    tcase_add_test(tests, test_empty);
    tcase_add_test(tests, test_sizes);
    tcase_add_test(tests, test_full);
    tcase_add_test(tests, test_leftovers);
    tcase_add_test(tests, test_spite);
    tcase_add_test(tests, test_turns);
    tcase_add_test(tests, test_claims_are_short);
    tcase_add_test(tests, test_claims_for_several);
    tcase_add_loop_test(tests, test_extents, 0, 2);
    tcase_add_test(tests, test_extent_between);
    tcase_add_test(tests, test_extent_choice);
    tcase_add_test(tests, test_extent_turns);
    tcase_add_test(tests, test_early);
    tcase_add_test(tests, test_extent_grows);
    tcase_add_test(tests, test_burst);
    tcase_add_test(tests, test_extent_stays);
    tcase_add_test(tests, test_extent_scarce);
    tcase_add_test(tests, test_extent_back);
    tcase_add_test(tests, test_extent_back_jumped);
    tcase_add_test(tests, test_extent_back_scarce);
    tcase_add_test(tests, test_threads);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
