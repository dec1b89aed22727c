/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A block of tp_alloc() that is freed is told to every endpoint, whatever
 * channels there are: only one of the channels told the backend that keeps
 * registrations of such blocks, and without it each stayed pinned.
 */
#include "config.h"

#include <stdlib.h>

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

int main(void)
{
    Suite *suite = suite_create("memory");
    TCase *tests = tcase_create("freed");

    tcase_add_test(tests, endpoints_are_told);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
