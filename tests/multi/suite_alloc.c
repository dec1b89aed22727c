/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory for each message anew: blocks of tp_alloc() that are kept between, and
 * buffers that the program has just got from the kernel.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "tests/multi/spmd.h"

enum { ALLOC_ROUNDS = 200, ALLOC_BLOCKS = 40, ALLOC_KEPT = 16 };

static unsigned char *alloc_block(size_t length, uint64_t seed)
{
    static const tp_device cpu = { TP_DEVICE_CPU, 0 };
    void *memory;

    tpx_ok(tp_alloc(tpx_me.context, length, cpu, &memory));
    tpx_fill(memory, length, seed);
    return memory;
}

/* ---- blocks ------------------------------------------------------------- */

struct alloc_loan {
    size_t length;
    uint64_t seed;
    unsigned over;
};

static void alloc_lent(tp_pipe *pipe, tp_status status, tp_message *message,
                       void *arg)
{
    struct alloc_loan *loan = arg;

    tpx_ok(status);
    tpx_equal(tpx_verify(message->payloads[0].data, loan->length, loan->seed),
              loan->length);
    tpx_ok(tp_pipe_release(pipe, message));
    __atomic_fetch_add(&loan->over, 1, __ATOMIC_RELEASE);
}

static void alloc_arrived(tp_pipe *pipe, tp_status status, tp_message *message,
                          void *arg)
{
    struct alloc_loan *loan = arg;

    tpx_ok(status);
    tpx_equal(message->payloads[0].length, loan->length);
    tpx_ok(tp_pipe_borrow(pipe, message, alloc_lent, arg));
}

static void alloc_borrow(tp_pipe *pipe, size_t length, uint64_t seed)
{
    struct alloc_loan loan = { length, seed, 0 };

    tpx_ok(tp_pipe_read_descriptor(pipe, alloc_arrived, &loan));
    tpx_until(&loan.over, 1);
}

/* Each message has its own block on both sides, which is one of a few; some are
 * borrowed, and the other way is as good. */
static void alloc_again(void)
{
    static const size_t lengths[] = { 9000, 65536, 300001, 1 << 20 };
    enum { LENGTHS = sizeof(lengths) / sizeof(lengths[0]) };
    uint64_t state = tpx_me.seed;

    tpx_barrier();
    for (unsigned i = 0; i < ALLOC_ROUNDS; i++) {
        tp_pipe *pipe = tpx_pipe(!tpx_me.rank, i % 2);
        size_t length = lengths[tpx_below(&state, LENGTHS)], got;
        bool borrows = tpx_below(&state, 3) == 0;
        bool sends = tpx_below(&state, 2) == (unsigned)tpx_me.rank;
        unsigned char *memory = alloc_block(length, sends ? i : i + 1);

        if (sends) {
            tpx_ok(tp_pipe_send(pipe, memory, length));
        } else if (borrows) {
            alloc_borrow(pipe, length, i);
        } else {
            tpx_ok(tp_pipe_recv(pipe, memory, length, &got));
            tpx_equal(got, length);
            tpx_equal(tpx_verify(memory, length, i), length);
        }
        tpx_ok(tp_free(tpx_me.context, memory));
        /* Its own, and the peer's, to read from and to write to. */
        tpx_check(tpx_mappings("") <= 3 * (int)LENGTHS, "%d mappings",
                  tpx_mappings(""));
    }
    tpx_barrier();
}

/* Not more is kept than the limits say, and what is not leaves the peer. */
static void alloc_kept(void)
{
    enum { PIECE = 1 << 20, LONG = 24 << 20, LONGS = 4 };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned char *blocks[ALLOC_BLOCKS];

    tpx_barrier();
    for (unsigned i = 0; i < ALLOC_BLOCKS; i++) {
        blocks[i] = alloc_block(PIECE, i);
        if (tpx_me.rank == 0) {
            tpx_ok(tp_pipe_send(pipe, blocks[i], PIECE));
        } else {
            memset(blocks[i], 0xee, PIECE);
            tpx_ok(tp_pipe_recv(pipe, blocks[i], PIECE, NULL));
            tpx_equal(tpx_verify(blocks[i], PIECE, i), PIECE);
        }
    }
    for (unsigned i = 0; i < ALLOC_BLOCKS; i++)
        tpx_ok(tp_free(tpx_me.context, blocks[i]));
    tpx_meet(!tpx_me.rank);
    tpx_at("mappings of what is not kept");
    while (tpx_mappings("") > 3 * ALLOC_KEPT) {
        tpx_ok(tp_progress(tpx_me.context, NULL));
        tpx_sleep_ms(1);
    }
    tpx_check(tpx_mappings("") >= ALLOC_KEPT / 2, "nothing is kept");
    tpx_meet(!tpx_me.rank);

    /* Two of these are all that fits beside each other. */
    for (unsigned i = 0; i < LONGS; i++)
        blocks[i] = alloc_block(LONG, i);
    for (unsigned i = 0; i < LONGS; i++)
        tpx_ok(tp_free(tpx_me.context, blocks[i]));
    tpx_at("mappings of long blocks");
    while (tpx_mappings("") > 2) {
        tpx_ok(tp_progress(tpx_me.context, NULL));
        tpx_sleep_ms(1);
    }
    tpx_meet(!tpx_me.rank);
}

/* A piece that is longer than those in which short blocks lie may become one of
 * them; what is behind its blocks is none. */
static void alloc_longer(void)
{
    enum { LONGER = (2 << 20) + (128 << 10) };
    unsigned char *memory = alloc_block(LONGER, 1), *first;

    tpx_ok(tp_free(tpx_me.context, memory));
    first = alloc_block(1, 1);
    tpx_check(first == memory, "it is not used again");
    for (size_t at = 1; at < LONGER; at += at % 4096 == 0 ? 1 : 4095)
        tpx_status(tp_free(tpx_me.context, memory + at), TP_ERR_INVALID);
    tpx_ok(tp_free(tpx_me.context, first));
    tpx_status(tp_free(tpx_me.context, first), TP_ERR_INVALID);
}

/* Asked for again and again, longer ones are kept, too: the same memory. */
static void alloc_long(void)
{
    enum { LONG = 80 << 20, TURNS = 4 };
    unsigned char *block = alloc_block(LONG, 0), *last = block;
    unsigned same = 0;

    for (unsigned i = 0; i < TURNS; i++) {
        tpx_ok(tp_free(tpx_me.context, block));
        tpx_equal(tpx_mappings(""), i > 0);
        tpx_ok(tp_alloc(tpx_me.context, LONG,
                        (tp_device){ TP_DEVICE_CPU, 0 }, (void **)&block));
        same += tpx_verify(block, LONG, 0) == LONG;
        tpx_fill(block, LONG, 0);
        last = block;
    }
    tpx_check(same >= TURNS - 1, "%u of %u", same, (unsigned)TURNS);
    tpx_ok(tp_free(tpx_me.context, last));
}

struct alloc_short {
    unsigned char *memory;
    size_t length;
};

static void alloc_short_free(struct alloc_short *block, unsigned i)
{
    if (block->memory == NULL)
        return;
    tpx_equal(tpx_verify(block->memory, block->length, i), block->length);
    tpx_ok(tp_free(tpx_me.context, block->memory));
    block->memory = NULL;
}

/* Many short blocks take few descriptors; none lies in another, whichever are
 * given back, and what is in them is sent as from any. */
static void alloc_many(void)
{
    enum { BLOCKS = 3000, ROUNDS = 9000, MOST = 40000 };
    static struct alloc_short blocks[BLOCKS];
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned rounds = tpx_me.sanitized ? ROUNDS / 3 : ROUNDS;
    uint64_t state = tpx_me.seed;  /* the same in both */
    unsigned char *room = malloc(MOST);

    tpx_barrier();
    for (unsigned round = 0; round < rounds; round++) {
        unsigned i = tpx_below(&state, BLOCKS);
        struct alloc_short *block = &blocks[i];
        size_t got;

        alloc_short_free(block, i);
        block->length = 1 + tpx_below(&state, round % 8 == 0 ? MOST : 5000);
        block->memory = alloc_block(block->length, i);
        tpx_equal((uintptr_t)block->memory % 4096, 0);
        if (round % 16 != 0)
            continue;
        tpx_status(tp_free(tpx_me.context, block->memory + 1),
                   TP_ERR_INVALID);
        if ((unsigned)tpx_me.rank == round / 16 % 2) {
            tpx_ok(tp_pipe_send(pipe, block->memory, block->length));
            continue;
        }
        tpx_ok(tp_pipe_recv(pipe, room, MOST, &got));
        tpx_equal(got, block->length);
        tpx_equal(tpx_verify(room, got, i), got);
    }
    /* Both ranks' arenas, and the peer's as they are mapped. */
    tpx_check(tpx_mappings("") <= 120, "%d mappings", tpx_mappings(""));
    tpx_barrier();
    for (unsigned i = 0; i < BLOCKS; i++)
        alloc_short_free(&blocks[i], i);
    tpx_status(tp_free(tpx_me.context, room), TP_ERR_INVALID);
    free(room);
}

/* False, with a word, where so many cannot be had. */
static bool alloc_descriptors(unsigned count)
{
    struct rlimit limit;

    tpx_check(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
    limit.rlim_cur = limit.rlim_max;
    tpx_check(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
    if (limit.rlim_max >= count)
        return true;
    fprintf(stderr, "note: too few descriptors for so many blocks\n");
    return false;
}

/* More than a peer keeps mapped: what is in one beyond those comes another way,
 * and nothing changes for the others, also when some are freed. */
static void alloc_beyond(void)
{
    enum { BLOCKS = 1100, FREED = 200, LENGTH = 132 << 10 };
    static unsigned char *blocks[BLOCKS + FREED];
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    bool mapped;

    if (!alloc_descriptors(2 * BLOCKS))
        return;
    tpx_barrier();
    mapped = tpx_is_chosen(pipe, "map");
    for (unsigned i = 0; i < BLOCKS + FREED; i++) {
        if (tpx_me.rank == 1) {
            alloc_borrow(pipe, LENGTH, i);
            continue;
        }
        if (i >= BLOCKS)
            tpx_ok(tp_free(tpx_me.context, blocks[i - BLOCKS]));
        blocks[i] = alloc_block(LENGTH, i);
        tpx_ok(tp_pipe_send(pipe, blocks[i], LENGTH));
    }
    tpx_barrier();
    tpx_equal(tpx_is_chosen(pipe, "map"), mapped);
}

/* Many are freed at once while the peer looks at nothing: it gives up its
 * mappings of them all the same. */
static void alloc_burst(void)
{
    enum { BLOCKS = 600, LENGTH = 132 << 10 };
    static unsigned char *blocks[BLOCKS];
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned char *room;

    if (!alloc_descriptors(2 * BLOCKS))
        return;
    room = malloc(LENGTH);
    tpx_check(room != NULL, "no memory for the test itself");
    tpx_barrier();
    for (unsigned i = 0; i < BLOCKS; i++) {
        if (tpx_me.rank == 1) {
            tpx_ok(tp_pipe_recv(pipe, room, LENGTH, NULL));
            continue;
        }
        blocks[i] = alloc_block(LENGTH, i);
        tpx_ok(tp_pipe_send(pipe, blocks[i], LENGTH));
    }
    tpx_meet(!tpx_me.rank);
    for (unsigned i = 0; tpx_me.rank == 0 && i < BLOCKS; i++)
        tpx_ok(tp_free(tpx_me.context, blocks[i]));
    if (tpx_me.rank == 1)
        tpx_sleep_ms(200);
    tpx_at("mappings of what was freed at once");
    while (tpx_me.rank == 1 && tpx_mappings("") > 3 * ALLOC_KEPT) {
        tpx_ok(tp_progress(tpx_me.context, NULL));
        tpx_sleep_ms(1);
    }
    tpx_meet(!tpx_me.rank);
    free(room);
}

/* ---- memory that is new ------------------------------------------------- */

/* Long enough for huge pages, at any place in them. */
static void alloc_new(void)
{
    static const size_t lengths[] = { 1 << 20, 2 << 20, (2 << 20) + 1,
                                      (4 << 20) - 1, 5 << 20, 9 << 20 };
    enum { LENGTHS = sizeof(lengths) / sizeof(lengths[0]), ROOM = 16 << 20 };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned char *from = malloc(ROOM);
    uint64_t state = tpx_me.seed + (uint64_t)tpx_me.rank;

    tpx_check(from != NULL, "out of memory");
    for (unsigned i = 0; i < 3 * LENGTHS; i++) {
        size_t length = lengths[i % LENGTHS], got;
        size_t at = tpx_below(&state, ROOM - (unsigned)length - 1);
        unsigned char *to;

        if (((unsigned)tpx_me.rank + i) % 2 == 0) {
            tpx_fill(from, length, i);
            tpx_ok(tp_pipe_send(pipe, from, length));
            continue;
        }
        to = mmap(NULL, ROOM, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        tpx_check(to != MAP_FAILED, "mmap");
        tpx_ok(tp_pipe_recv(pipe, to + at, length, &got));
        tpx_equal(got, length);
        tpx_equal(tpx_verify(to + at, length, i), length);
        tpx_check(to[at + length] == 0 && (at == 0 || to[at - 1] == 0),
                  "bytes beside are written");
        munmap(to, ROOM);
    }
    tpx_barrier();
    free(from);
}

/* A contract insists on a channel that takes only tp_alloc() memory: a message
 * of other memory is refused, with words, and the pipe goes on; its end has
 * words of its own. */
static void alloc_words(void)
{
    enum { LENGTH = 1 << 20 };
    bool insists = tpx_backend("map");
    unsigned char *memory = malloc(LENGTH);
    tp_pipe *pipe;
    void *block;

    tpx_check(memory != NULL, "no memory for the test itself");
    tpx_check(!insists || setenv("TP_REQUIRE", "node:map", 1) == 0, "setenv");
    tpx_ok(tp_init(NULL, &tpx_me.context));
    pipe = tpx_pipe(!tpx_me.rank, 0);
    tpx_ok(tp_alloc(tpx_me.context, LENGTH, (tp_device){ TP_DEVICE_CPU, 0 },
                    &block));
    tpx_meet(!tpx_me.rank);
    if (tpx_me.rank == 0) {
        if (insists) {
            tpx_status(tp_pipe_send(pipe, memory, LENGTH), TP_ERR_UNREACHABLE);
            tpx_check(strstr(tp_pipe_error(pipe), "TP_REQUIRE") != NULL,
                      "its words are \"%s\"", tp_pipe_error(pipe));
        }
        tpx_fill(block, LENGTH, 5);
        tpx_ok(tp_pipe_send(pipe, block, LENGTH));
        tpx_status(tp_pipe_recv(pipe, memory, 1, NULL), TP_ERR_PEER_CLOSED);
        tpx_check(strstr(tp_pipe_error(pipe), "closed") != NULL,
                  "its words are \"%s\"", tp_pipe_error(pipe));
    } else {
        tpx_ok(tp_pipe_recv(pipe, block, LENGTH, NULL));
        tpx_equal(tpx_verify(block, LENGTH, 5), LENGTH);
        tpx_ok(tp_pipe_close(pipe));
    }
    free(memory);
}

const struct tpx_spmd tpx_alloc[] = {
    { "alloc_again", alloc_again, 2, TPX_CHANNELS, 60 },
    { "alloc_kept", alloc_kept, 2, TPX_CHANNELS, 60 },
    { "alloc_many", alloc_many, 2, TPX_CHANNELS, 60 },
    { "alloc_beyond", alloc_beyond, 2, TPX_CHANNELS, 60 },
    { "alloc_burst", alloc_burst, 2, TPX_CHANNELS, 60 },
    { "alloc_longer", alloc_longer, 1, TPX_ONCE, 20 },
    { "alloc_long", alloc_long, 1, TPX_ONCE, 60 },
    { "alloc_new", alloc_new, 2, TPX_CHANNELS, 60 },
    { "alloc_words", alloc_words, 2, TPX_CHANNELS | TPX_BARE | TPX_WARNS, 30 },
    { NULL }
};
