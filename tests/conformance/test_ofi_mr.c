/* SPDX-License-Identifier: BSD-3-Clause */
/* ofi's registrations of memory, over a domain that only counts: what is
 * shared, what is kept, what ends when, and what happens without room. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "fabric/memory.h"
#include "fabric/ofi/ofi.h"
#include "fabric/rails/rails.h"
#include "tests/conformance/side.h"
#include "tests/lib/tpx.h"

enum { MR_ROOM = 4, MR_BYTES = 8192 };

/* One of the domain's registrations. */
struct mr_fake {
    struct fid_mr mr;
    const void *start;
    size_t length;
    bool open;
};

static struct {
    struct ofi_rail rail;
    struct ofi_endpoint endpoint;
    struct tpf_env env;
    struct tpf_memories memories;
    struct fid_domain domain;
    struct mr_fake fakes[64];
    int made, open, room;          /* registrations; room for how many */
    int refusal;                   /* what comes if there is none */
    unsigned char memory[4 * MR_BYTES];
} mr;

static int mr_fake_close(struct fid *fid)
{
    struct mr_fake *fake = (struct mr_fake *)TPB_CONTAINER(fid, struct fid_mr,
                                                           fid);

    ck_assert(fake->open);
    fake->open = false;
    mr.open--;
    return 0;
}

static int mr_fake_reg(struct fid *fid, const void *start, size_t length,
                       uint64_t access, uint64_t offset, uint64_t key,
                       uint64_t flags, struct fid_mr **result, void *context)
{
    static struct fi_ops ops = { .size = sizeof(ops),
                                 .close = mr_fake_close };
    struct mr_fake *fake = &mr.fakes[mr.made];

    (void)access, (void)offset, (void)flags, (void)context;
    ck_assert_ptr_eq(fid, &mr.domain.fid);
    if (mr.open == mr.room)
        return -mr.refusal;
    ck_assert_int_lt(mr.made, (int)TPB_COUNT(mr.fakes));
    fake->mr.fid.ops = &ops;
    fake->mr.key = key;
    fake->start = start;
    fake->length = length;
    fake->open = true;
    mr.made++;
    mr.open++;
    *result = &fake->mr;
    return 0;
}

static const char *mr_words(int code)
{
    return strerror(code);
}

static void mr_setup(void)
{
    static struct fi_ops_mr ops = { .size = sizeof(ops), .reg = mr_fake_reg };
    static const struct ofi_library library = { .strerror = mr_words };

    memset(&mr, 0, sizeof(mr));
    ofi_lib = &library;
    mr.room = MR_ROOM;
    mr.refusal = FI_ENOMEM;
    mr.domain.mr = &ops;
    tpf_memories_init(&mr.memories);
    mr.env.memories = &mr.memories;
    mr.endpoint.common.env = &mr.env;
    mr.rail.endpoint = &mr.endpoint;
    mr.rail.domain = &mr.domain;
    tpb_list_init(&mr.rail.mrs);
}

static void mr_teardown(void)
{
    struct tpf_memory block;

    while (tpf_memory_take(&mr.memories, NULL, &block))
        tpf_memory_destroy(&block);
    ofi_mr_close(&mr.rail);
    ck_assert_int_eq(mr.open, 0);
    tpf_memories_fini(&mr.memories);
}

static struct ofi_mr *mr_hold(const void *address, size_t length,
                              uint64_t access)
{
    struct tpb_error error = { "" };
    struct ofi_mr *held = ofi_mr_hold(&mr.rail, address, length, access,
                                      &error);

    ck_assert_msg(held != NULL, "%s", error.text);
    return held;
}

/* As tp_alloc() and tp_free() do. */
static struct tpf_memory mr_alloc(void)
{
    struct tpf_memory block = { .id = 0 }, found;

    ck_assert_int_eq(tpf_memory_make(&block, 2 * MR_BYTES, NULL), TP_OK);
    ck_assert_int_eq(tpf_memory_add(&mr.memories, &block), TP_OK);
    ck_assert(tpf_memory_find(&mr.memories, block.address, 1, &found));
    return found;
}

static void mr_free_block(struct tpf_memory *block)
{
    struct tpf_memory taken;

    ck_assert(tpf_memory_take(&mr.memories, block->address, &taken));
    ofi_mr_freed(&mr.rail, block->id);
    tpf_memory_destroy(&taken);
}

/* Other memory: shared while it is held, and no longer. */
START_TEST(test_plain)
{
    struct ofi_mr *first = mr_hold(mr.memory, MR_BYTES, FI_READ);
    struct ofi_mr *same = mr_hold(mr.memory, MR_BYTES, FI_READ);
    struct ofi_mr *inside = mr_hold(mr.memory + 100, 200, FI_READ);
    struct ofi_mr *over, *other;

    ck_assert_ptr_eq(first, same);
    ck_assert_ptr_eq(first, inside);
    ck_assert_int_eq(mr.made, 1);
    /* What it covers in part, or opens for something else, is not the same. */
    over = mr_hold(mr.memory + 100, MR_BYTES, FI_READ);
    other = mr_hold(mr.memory, MR_BYTES, FI_REMOTE_READ);
    ck_assert_ptr_ne(over, first);
    ck_assert_ptr_ne(other, first);
    ck_assert_int_eq(mr.made, 3);
    ofi_mr_drop(over);
    ofi_mr_drop(other);
    ofi_mr_drop(first);
    ofi_mr_drop(same);
    ck_assert_int_eq(mr.open, 1);
    ofi_mr_drop(inside);
    ck_assert_int_eq(mr.open, 0);
    /* The program may have got other pages since. */
    first = mr_hold(mr.memory, MR_BYTES, FI_READ);
    ck_assert_int_eq(mr.made, 4);
    ofi_mr_drop(first);
    ofi_mr_drop(NULL);
}
END_TEST

/* The very ends of a range. */
START_TEST(test_edges)
{
    struct ofi_mr *middle = mr_hold(mr.memory + MR_BYTES, MR_BYTES, FI_READ);
    struct ofi_mr *last = mr_hold(mr.memory + 2 * MR_BYTES - 1, 1, FI_READ);
    struct ofi_mr *behind = mr_hold(mr.memory + 2 * MR_BYTES, 1, FI_READ);
    struct ofi_mr *before = mr_hold(mr.memory + MR_BYTES - 1, 1, FI_READ);

    ck_assert_ptr_eq(middle, last);
    ck_assert_ptr_ne(middle, behind);
    ck_assert_ptr_ne(middle, before);
    ofi_mr_drop(middle);
    ofi_mr_drop(last);
    ofi_mr_drop(behind);
    ofi_mr_drop(before);
}
END_TEST

/* A block of tp_alloc() is registered once, whole, for everything. */
START_TEST(test_block)
{
    struct tpf_memory block = mr_alloc();
    struct ofi_mr *part = mr_hold(block.address + 10, 10, FI_READ);
    struct ofi_mr *again;

    ck_assert_ptr_eq(mr.fakes[0].start, block.address);
    ck_assert_uint_eq(mr.fakes[0].length, block.length);
    ofi_mr_drop(part);
    ck_assert_int_eq(mr.open, 1);
    again = mr_hold(block.address + MR_BYTES, 10, FI_REMOTE_READ);
    ck_assert_ptr_eq(again, part);
    ck_assert_ptr_eq(ofi_mr_hold_ours(&mr.rail, block.address, 1), part);
    ck_assert_ptr_null(ofi_mr_hold_ours(&mr.rail, mr.memory, 1));
    ck_assert_int_eq(mr.made, 1);
    ofi_mr_drop(again);
    ofi_mr_drop(part);
    ck_assert_int_eq(mr.open, 1);
}
END_TEST

/* tp_free() ends it, at once or with the last who uses it; and what comes to
 * the same address afterwards is another block. */
START_TEST(test_free)
{
    struct tpf_memory block = mr_alloc(), next;
    struct ofi_mr *held = mr_hold(block.address, 1, FI_READ), *fresh;

    mr_free_block(&block);
    ck_assert_int_eq(mr.open, 1);
    next = mr_alloc();             /* the kernel gives that address again */
    fresh = mr_hold(next.address, 1, FI_READ);
    ck_assert_ptr_ne(fresh, held);
    ck_assert_int_eq(mr.open, 2);
    ofi_mr_drop(held);
    ck_assert_int_eq(mr.open, 1);
    ofi_mr_drop(fresh);
    ofi_mr_freed(&mr.rail, block.id);      /* of no one any more */
    ck_assert_int_eq(mr.open, 1);
    mr_free_block(&next);
    ck_assert_int_eq(mr.open, 0);
}
END_TEST

/* No room: blocks that nobody uses give way, the longest unused first. */
START_TEST(test_eviction)
{
    struct tpf_memory blocks[MR_ROOM];
    struct ofi_mr *used, *plain;

    for (int i = 0; i < MR_ROOM; i++) {
        blocks[i] = mr_alloc();
        ofi_mr_drop(mr_hold(blocks[i].address, 1, FI_READ));
    }
    ofi_mr_drop(mr_hold(blocks[0].address, 1, FI_READ));
    used = mr_hold(blocks[1].address, 1, FI_READ);
    ck_assert_int_eq(mr.made, MR_ROOM);
    mr.refusal = _i == 0 ? FI_ENOMEM : FI_ENOSPC;
    plain = mr_hold(mr.memory, 1, FI_READ);
    ck_assert(!mr.fakes[2].open);
    ck_assert(mr.fakes[0].open && mr.fakes[1].open && mr.fakes[3].open);
    ofi_mr_drop(plain);
    ck_assert_int_eq(mr.open, MR_ROOM - 1);
    /* The one that went is made again when it is wanted. */
    ofi_mr_drop(mr_hold(blocks[2].address, 1, FI_READ));
    ck_assert_int_eq(mr.made, MR_ROOM + 2);
    ck_assert(mr.fakes[0].open && mr.fakes[1].open && mr.fakes[3].open);
    ofi_mr_drop(used);
}
END_TEST

/* Everything is in use: an error with words, and nothing is lost. */
START_TEST(test_full)
{
    struct ofi_mr *held[MR_ROOM];
    struct tpb_error error = { "" };

    for (int i = 0; i < MR_ROOM; i++)
        held[i] = mr_hold(mr.memory + i * MR_BYTES, MR_BYTES, FI_READ);
    ck_assert_ptr_null(ofi_mr_hold(&mr.rail, mr.memory + 1, MR_BYTES, FI_READ,
                                   &error));
    ck_assert_ptr_nonnull(strstr(error.text, "ulimit -l"));
    ck_assert_int_eq(mr.open, MR_ROOM);
    ofi_mr_drop(held[2]);
    held[2] = mr_hold(mr.memory + 1, MR_BYTES, FI_READ);
    for (int i = 0; i < MR_ROOM; i++)
        ofi_mr_drop(held[i]);
    ck_assert_int_eq(mr.open, 0);
}
END_TEST

/* Another refusal, such as for memory that is not there, evicts nothing. */
START_TEST(test_refused)
{
    struct tpf_memory block = mr_alloc();
    struct tpb_error error = { "" };

    ofi_mr_drop(mr_hold(block.address, 1, FI_READ));
    mr.room = 1;
    mr.refusal = FI_EINVAL;
    ck_assert_ptr_null(ofi_mr_hold(&mr.rail, mr.memory, 1, FI_READ, &error));
    ck_assert_str_ne(error.text, "");
    ck_assert_int_eq(mr.open, 1);
}
END_TEST

/* The endpoint tells all of its rails; also where it is below the rails of the
 * backend of that name. */
START_TEST(test_free_by_backend)
{
    static const char *const names[] = { "ofi:tcp", "rails" };
    struct tpb_error error = { "" };
    struct tpf_memory block, taken;
    struct ofi_endpoint *endpoint;
    struct tpx_side *side;

    setenv("TP_RAILS", "2", 1);
    setenv("TP_IFACE", "lo", 1);
    side = tpx_side_try(tpf_backend_find(names[_i]), &error);
    if (side == NULL) {
        tpx_skip("ofi mr", error.text);
        return;
    }
    endpoint = ofi_endpoint_of(_i == 0 ? side->endpoint
                               : rails_of(side->endpoint)->subs[0].open);
    endpoint->common.env->memories = &mr.memories;
    mr.rail.endpoint = endpoint;
    tpb_list_append(&endpoint->rails, &mr.rail.link);
    block = mr_alloc();
    ofi_mr_drop(mr_hold(block.address, 1, FI_READ));
    ck_assert_int_eq(mr.open, 1);
    ck_assert(tpf_memory_take(&mr.memories, block.address, &taken));
    side->backend->freed(side->endpoint, block.id);
    tpf_memory_destroy(&taken);
    ck_assert_int_eq(mr.open, 0);
    tpb_list_unlink(&mr.rail.link);
    tpx_side_close(side);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ofi mr");
    TCase *tests = tcase_create("mr");

    tcase_add_checked_fixture(tests, mr_setup, mr_teardown);
    tcase_add_test(tests, test_plain);
    tcase_add_test(tests, test_edges);
    tcase_add_test(tests, test_block);
    tcase_add_test(tests, test_free);
    tcase_add_loop_test(tests, test_free_by_backend, 0, 2);
    tcase_add_loop_test(tests, test_eviction, 0, 2);
    tcase_add_test(tests, test_full);
    tcase_add_test(tests, test_refused);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
