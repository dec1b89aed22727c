/* SPDX-License-Identifier: BSD-3-Clause */
/* The shared-memory ring: alone, step by step; and between two threads. */
#include "config.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fabric/shm/ring.h"
#include "runtime/base/io.h"
#include "tests/lib/tpx.h"

static struct shm_side side;
static struct shm_producer producer;
static struct shm_consumer consumer;
static unsigned char *memory;
static bool turns;                 /* what is put will be answered */

static void setup(void)
{
    int fd = tpb_shared_memory("ring", SHM_RING);

    ck_assert_int_ge(fd, 0);
    memory = mmap(NULL, 2 * SHM_RING, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
                  -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    for (int i = 0; i < 2; i++)
        ck_assert_ptr_ne(mmap(memory + i * SHM_RING, SHM_RING,
                              PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                              fd, 0), MAP_FAILED);
    close(fd);
    turns = false;
    memset(&side, 0, sizeof(side));
    shm_producer_init(&producer, &side, memory, true);
    shm_consumer_init(&consumer, &side, memory);
}

static void teardown(void)
{
    munmap(memory, 2 * SHM_RING);
}

/* A record of `size` bytes that tells its number; false: no room. */
static bool put(size_t reserve, size_t size, uint64_t number)
{
    unsigned char *room = shm_ring_reserve(&producer, reserve);
    uint64_t from;

    if (room == NULL)
        return false;
    ck_assert_uint_eq((uintptr_t)room % 8, 0);
    memset(room, (int)(0x80 | number), reserve);
    from = producer.tail;
    shm_ring_commit(&producer, size);
    if (turns)
        shm_ring_rest(&producer, from);
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

START_TEST(test_empty)
{
    ck_assert_ptr_null(shm_ring_peek(&consumer));
    ck_assert(!shm_ring_ready(&consumer));
    ck_assert(put(1, 1, 1));
    ck_assert(shm_ring_ready(&consumer));
    get(1, 1);
    ck_assert(!shm_ring_ready(&consumer));
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

    for (int lap = 0; lap < 10; lap++) {
        while (put(1000, 1000, in))
            in++;
        ck_assert_uint_ge((in - out) * shm_ring_span(1000),
                          SHM_RING * 7 / 8 - 2 * shm_ring_span(1000));
        ck_assert(!shm_ring_wait_room(&producer, 1000));
        ck_assert_uint_eq(side.starved, 1);
        while (out < in)
            get(1000, out++);
        ck_assert_uint_eq(side.starved, 0);    /* the consumer has told */
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
    static const uint64_t words[] = { 1, UINT64_MAX, SHM_FRAME, 0x100000000 };

    for (size_t i = 0; i < TPB_COUNT(words); i++) {
        atomic_store(shm_ring_word(memory, 0), words[i]);
        consumer.broken = false;
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
    atomic_store(&side.head, 64);
    producer.head = 128;
    ck_assert_ptr_null(shm_ring_reserve(&producer, 4000));
}
END_TEST

/* Lines are given up and asked for over all of the ring, and at its end and
 * where it is full nothing else changes. */
START_TEST(test_turns)
{
    static const size_t sizes[] = { 1, 24, 25, 56, 64, 1000, SHM_LONG,
                                    SHM_LONG + 1, 4096, SHM_DEMOTED,
                                    SHM_FRAME };
    uint64_t number = 0, full;

    turns = true;
    for (int demote = 0; demote <= tpb_demotes(); demote++) {
        producer.demote = demote != 0;
        for (size_t i = 0; i < TPB_COUNT(sizes); i++)
            for (uint64_t at = 0; at < 3 * SHM_RING; at += sizes[i] + 8) {
                ck_assert(put(sizes[i], sizes[i], ++number % 100));
                get(sizes[i], number % 100);
            }
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
    atomic_store(&side.head, producer.tail + 4096);
    ck_assert(put(2000, 2000, 1));
    ck_assert_uint_eq(producer.head, full);
}
END_TEST

/* ---- two threads -------------------------------------------------------- */

static uint64_t records(void)
{
    const char *sanitizer = getenv("TP_TEST_SANITIZER");
    const char *full = getenv("TP_TEST_LONG");
    bool slow = sanitizer != NULL && *sanitizer != '\0';

    return (slow ? 100000 : 400000)
           * (full != NULL && *full != '\0' ? UINT64_C(10) : 1);
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

        while ((room = shm_ring_reserve(&producer, size)) == NULL)
            sched_yield();
        memcpy(room, &i, sizeof(i));
        memset(room + 8, (int)i, size - 8);
        from = producer.tail;
        shm_ring_commit(&producer, size);
        if (size % 2 == 0)
            shm_ring_rest(&producer, from);
        else
            shm_ring_ahead(&producer, size);
    }
    return NULL;
}

START_TEST(test_threads)
{
    uint64_t state = 1, count = records();
    pthread_t thread;

    ck_assert_int_eq(pthread_create(&thread, NULL, produce, NULL), 0);
    for (uint64_t i = 0; i < count; i++) {
        size_t size = record_size(&state, i);
        const unsigned char *frame;
        uint64_t number;

        while ((frame = shm_ring_peek(&consumer)) == NULL) {
            ck_assert_msg(!consumer.broken, "broken before record %llu",
                          (unsigned long long)i);
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
    tcase_add_test(tests, test_threads);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
