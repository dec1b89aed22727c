/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A block of tp_alloc() that is freed is told to every endpoint, whatever
 * channels there are: only one of the channels told the backend that keeps
 * registrations of such blocks, and without it each stayed pinned.
 *
 * What is no block is refused also while others end beside it: the piece in
 * which the address lay was looked at after another thread had freed it.
 *
 * What else than memory is lacking is told: that was "out of memory" as well.
 */
#include "config.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/core.h"
#include "tests/lib/tpx.h"

enum { MEMORY_BYTES = 4 << 20 };

static uint64_t memory_told;       /* the last block's number */
static unsigned memory_times;

static void memory_freed(struct tpf_endpoint *endpoint, uint64_t block)
{
    (void)endpoint;
    memory_told = block;
    memory_times++;
}

START_TEST(endpoints_are_told)
{
    tp_options options = TP_OPTIONS_INIT;
    const struct tpf_backend *backend;
    tp_context *context = NULL;
    struct tpf_backend listens;
    const tp_device cpu = { TP_DEVICE_CPU, 0 };
    struct tpf_memory block;
    void *memory;

    setenv("TP_ALLOC_KEEP", "0", 1);
    options.bootstrap = "single";
    options.backends = "shm,loop";
    options.progress = TP_PROGRESS_MANUAL;
    ck_assert_int_eq(tp_init(&options, &context), TP_OK);
    backend = context->endpoints[0]->backend;
    listens = *backend;
    listens.freed = memory_freed;
    context->endpoints[0]->backend = &listens;
    ck_assert_int_eq(tp_alloc(context, MEMORY_BYTES, cpu, &memory), TP_OK);
    ck_assert(tpf_memory_find(&context->memories, memory, 1, &block));
    ck_assert_uint_eq(memory_times, 0);
    ck_assert_int_eq(tp_free(context, memory), TP_OK);
    ck_assert_uint_eq(memory_times, 1);
    ck_assert_uint_eq(memory_told, block.id);
    context->endpoints[0]->backend = backend;
    ck_assert_int_eq(tp_finalize(context), TP_OK);
}
END_TEST

/* A limit that the piece of a short block is beyond: it goes with its last
 * block, and leaves its descriptor to the next one. */
START_TEST(no_more_is_kept)
{
    tp_options options = TP_OPTIONS_INIT;
    const tp_device cpu = { TP_DEVICE_CPU, 0 };
    struct rlimit limit, none;
    struct tpf_memory block;
    tp_context *context;
    void *memory;
    int next;

    setenv("TP_ALLOC_KEEP", "1M", 1);
    options.bootstrap = "single";
    options.backends = "loop";
    options.progress = TP_PROGRESS_MANUAL;
    ck_assert_int_eq(tp_init(&options, &context), TP_OK);
    ck_assert_int_eq(tp_alloc(context, 1, cpu, &memory), TP_OK);
    ck_assert(tpf_memory_find(&context->memories, memory, 1, &block));
    ck_assert_int_eq(tp_free(context, memory), TP_OK);
    ck_assert(!tpf_memory_find(&context->memories, memory, 1, &block));
    ck_assert_int_eq(tp_alloc(context, 1, cpu, &memory), TP_OK);
    next = dup(STDERR_FILENO);
    ck_assert_int_ge(next, 0);
    close(next);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = (rlim_t)next;
    ck_assert_int_eq(tp_free(context, memory), TP_OK);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    ck_assert_int_eq(tp_alloc(context, MEMORY_BYTES, cpu, &memory), TP_OK);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_int_eq(tp_finalize(context), TP_OK);
}
END_TEST

/* Of a program that goes on asking, the first time. */
START_TEST(the_cause_is_told)
{
    tp_options options = TP_OPTIONS_INIT;
    const tp_device cpu = { TP_DEVICE_CPU, 0 };
    struct rlimit limit = { 65536, 65536 };
    int fd = memfd_create("log", MFD_CLOEXEC), saved = dup(STDERR_FILENO);
    char text[1000];
    tp_context *context;
    void *memory;
    ssize_t got;

    options.bootstrap = "single";
    options.backends = "loop";
    options.progress = TP_PROGRESS_MANUAL;
    ck_assert_int_eq(tp_init(&options, &context), TP_OK);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_ge(dup2(fd, STDERR_FILENO), 0);
    for (unsigned i = 0; i < 2; i++)
        ck_assert_int_eq(tp_alloc(context, MEMORY_BYTES, cpu, &memory),
                         TP_ERR_NO_MEMORY);
    ck_assert_int_ge(dup2(saved, STDERR_FILENO), 0);
    got = pread(fd, text, sizeof(text) - 1, 0);
    ck_assert_int_ge(got, 0);
    text[got] = '\0';
    ck_assert_ptr_nonnull(strstr(text, ": memory: warn: tp_alloc: no shared "
                                 "memory: File too large (see ulimit -f)\n"));
    ck_assert_ptr_eq(strchr(text, '\n') + 1, text + got);      /* one line */
    ck_assert_int_eq(tp_finalize(context), TP_OK);
    close(saved);
    close(fd);
}
END_TEST

enum {
    MEMORY_PIECE = 128 * 1024,     /* the longest that lie together ... */
    MEMORY_PIECES = 64,            /* ... in four such pieces */
    MEMORY_ROUNDS = 300
};

static tp_context *memory_context;
static _Atomic(unsigned char *) memory_last;
static _Atomic bool memory_over;
static _Atomic unsigned memory_refused;

/* No block begins behind the first page of one. */
static void *memory_wrong(void *arg)
{
    (void)arg;
    while (!atomic_load(&memory_over)) {
        unsigned char *block = atomic_load(&memory_last);

        ck_assert_int_eq(tp_free(memory_context, block + 4096),
                         TP_ERR_INVALID);
        atomic_fetch_add(&memory_refused, 1);
    }
    return NULL;
}

START_TEST(what_is_no_block_is_refused)
{
    tp_options options = TP_OPTIONS_INIT;
    const tp_device cpu = { TP_DEVICE_CPU, 0 };
    void *blocks[MEMORY_PIECES];
    pthread_t thread;

    mallopt(M_PERTURB, 0x5a);      /* what is freed is of no use */
    options.bootstrap = "single";
    options.backends = "loop";
    options.progress = TP_PROGRESS_MANUAL;
    ck_assert_int_eq(tp_init(&options, &memory_context), TP_OK);
    for (int round = 0; round < MEMORY_ROUNDS
                        || atomic_load(&memory_refused) == 0; round++) {
        for (int i = 0; i < MEMORY_PIECES; i++) {
            ck_assert_int_eq(tp_alloc(memory_context, MEMORY_PIECE, cpu,
                                      &blocks[i]), TP_OK);
            atomic_store(&memory_last, blocks[i]);
        }
        if (round == 0)
            ck_assert_int_eq(pthread_create(&thread, NULL, memory_wrong,
                                            NULL), 0);
        for (int i = 0; i < MEMORY_PIECES; i++) {
            atomic_store(&memory_last, blocks[i]);
            ck_assert_int_eq(tp_free(memory_context, blocks[i]), TP_OK);
        }
    }
    atomic_store(&memory_over, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(tp_finalize(memory_context), TP_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("memory");
    TCase *tests = tcase_create("freed");

    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, endpoints_are_told);
    tcase_add_test(tests, no_more_is_kept);
    tcase_add_test(tests, what_is_no_block_is_refused);
    tcase_add_test(tests, the_cause_is_told);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
