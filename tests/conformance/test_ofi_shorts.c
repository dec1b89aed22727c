/* SPDX-License-Identifier: BSD-3-Clause */
/* Short frames beyond the slots: a sender that sends what it may, and a
 * receiver that reads when it likes, both the same conn. */
#include "config.h"

#include <stdlib.h>

#include "tests/conformance/lone.h"

enum { LIMIT = 8, SLOTS = LIMIT + OFI_CONTROL_SLOTS, POSTS = 4, LONG = 8000,
       MOST = 2 * OFI_SHORT_MOST };

static struct ofi_kind kind = { .backend = "ofi:test", .type = FI_EP_MSG,
                                .max_frame = LONG, .slots = LIMIT,
                                .posts = POSTS, .join = &ofi_join_any };
static struct tpf_env env;
static struct ofi_endpoint endpoint;
static struct ofi_rail rail;
static struct fi_info info;
static struct fi_domain_attr domain_attr;
static struct ofi_conn *conn;
static struct ofi_slot slots[SLOTS], send_slots[OFI_CONTROL_SLOTS + 1];
static struct {
    struct ofi_head head;
    unsigned char frame[LONG];
} buffers[SLOTS];

static void shorts_open(void)
{
    static const struct tpf_backend backend = {
        .name = "ofi:test", .conn_size = sizeof(struct ofi_conn)
    };

    info.domain_attr = &domain_attr;
    rail.info = &info;
    conn = tpx_lone_conn(&endpoint, &backend, &kind, &env);
    conn->rail = &rail;
    conn->shorts = conn->keeps = true;
    for (int i = 0; i < SLOTS; i++)
        tpx_lone_slot(conn, &conn->receive, &slots[i], &buffers[i].head);
}

static void shorts_close(void)
{
    ofi_slots_close(&conn->kept);
    tpf_conn_free(&conn->common);
}

/* Frame `number`, whose bytes follow from that, is there.  Libfabric always has
 * a slot for it. */
static void shorts_come(uint32_t number, size_t size)
{
    struct ofi_slot *slot = ofi_slot_take(&conn->receive);

    ck_assert_ptr_nonnull(slot);
    slot->head->size = htole32((uint32_t)size);
    slot->head->flags = htole32(number << OFI_NUMBER_SHIFT);
    slot->head->got = htole32(conn->peer_got);
    slot->head->popped = htole32(conn->peer_popped);
    memset(slot->head + 1, (int)(number % 251), size);
    conn->posts = 2;               /* one is left: none is posted for it */
    ofi_conn_received(conn, slot, sizeof(*slot->head) + size);
}

static void shorts_read(uint32_t number, size_t size)
{
    size_t there = 0;
    const unsigned char *frame = ofi_conn_peek(&conn->common, &there);

    ck_assert_ptr_nonnull(frame);
    ck_assert_uint_eq((uintptr_t)frame % 8, 0);
    ck_assert_uint_eq(there, size);
    for (size_t i = 0; i < size; i++)
        ck_assert_uint_eq(frame[i], number % 251);
    ofi_conn_pop(&conn->common);
}

/* May one more of that size be sent? */
static bool shorts_may(size_t size)
{
    struct ofi_slot *slot;

    if (conn->send.available == 0)
        for (int i = 0; i < OFI_CONTROL_SLOTS + 1; i++)
            ofi_slot_give(&conn->send, &send_slots[i]);
    slot = ofi_conn_slot(conn, size);
    if (slot != NULL)
        ofi_slot_give(&conn->send, slot);
    return slot != NULL;
}

/* How many of one size are under way when the next one has to wait. */
static uint32_t shorts_most(size_t size)
{
    uint32_t before = conn->frames_sent, most;

    while (shorts_may(size))
        conn->frames_sent++;
    most = conn->frames_sent - conn->peer_popped;
    conn->frames_sent = before;
    return most;
}

START_TEST(test_how_many)
{
    shorts_open();
    ck_assert_uint_eq(shorts_most(1), OFI_SHORT_MOST);
    ck_assert_uint_eq(shorts_most(64), OFI_SHORT_MOST);
    ck_assert_uint_eq(shorts_most(2048), OFI_SHORT_BYTES / 2048);
    ck_assert_uint_eq(shorts_most(OFI_SHORT - 1),
                      OFI_SHORT_BYTES / (OFI_SHORT - 1) + 1);
    ck_assert_uint_eq(shorts_most(OFI_SHORT), LIMIT);
    ck_assert_uint_eq(shorts_most(LONG), LIMIT);
    /* What callbacks write goes with others: it takes no place of its own. */
    env.calls = true;
    ck_assert_uint_eq(shorts_most(1), LIMIT);
    env.calls = false;
    ck_assert_uint_eq(shorts_most(1), OFI_SHORT_MOST);
    /* A peer next door, or one that does not keep them. */
    conn->shorts = false;
    ck_assert_uint_eq(shorts_most(1), LIMIT);
    shorts_close();
}
END_TEST

/* All kinds of orders of short and long ones, and of reading: all that may be
 * sent is taken and read in order, and there is always a slot for more. */
START_TEST(test_any_order)
{
    static const size_t sizes[] = { 8, 100, 1000, OFI_SHORT - 1, OFI_SHORT,
                                    LONG };
    size_t sent_size[MOST];
    unsigned short seed[3] = { 1, 2, (unsigned short)_i };
    uint32_t most = 0;

    shorts_open();
    for (int step = 0; step < 20000; step++) {
        size_t size = sizes[(size_t)nrand48(seed) % (TPB_COUNT(sizes)
                                                     - (_i % 2 ? 0 : 2))];
        long reads = nrand48(seed) % (step % 4000 < 2000 ? 4 : 1);

        if (shorts_may(size)) {
            sent_size[conn->frames_sent % MOST] = size;
            shorts_come(conn->frames_sent, size);
            ck_assert_msg(!conn->lost, "%s", conn->text);
            conn->frames_sent++;
        } else {
            reads = 2;
        }
        if (conn->got - conn->popped > most)
            most = conn->got - conn->popped;
        for (; reads > 0 && conn->got != conn->popped; reads--)
            shorts_read(conn->popped, sent_size[conn->popped % MOST]);
        /* It is told of that later. */
        if (step % 3 == 0)
            conn->peer_got = conn->peer_popped = conn->popped;
        conn->told_popped = conn->popped;
    }
    ck_assert_uint_gt(most, LIMIT + OFI_CONTROL_SLOTS);
    while (conn->got != conn->popped)
        shorts_read(conn->popped, sent_size[conn->popped % MOST]);
    ck_assert_uint_eq(conn->receive.available, SLOTS);
    ck_assert_uint_eq(conn->kept.available, conn->kept.count);
    shorts_close();
}
END_TEST

/* One more than may be ends the conn. */
START_TEST(test_too_many)
{
    static const size_t sizes[] = { 8, 1000, OFI_SHORT - 1, OFI_SHORT };

    for (size_t k = 0; k < TPB_COUNT(sizes); k++) {
        uint32_t most;

        shorts_open();
        most = shorts_most(sizes[k]);
        for (uint32_t i = 0; i < most; i++)
            shorts_come(i, sizes[k]);
        ck_assert_msg(!conn->lost, "%s", conn->text);
        shorts_come(most, sizes[k]);
        ck_assert(conn->lost);
        ck_assert_int_eq(conn->status, TP_ERR_PROTOCOL);
        ck_assert_msg(strstr(conn->text, "sends more than it may") != NULL,
                      "%s", conn->text);
        ck_assert_uint_eq(conn->got, most);
        for (uint32_t i = 0; i < most; i++)
            shorts_read(i, sizes[k]);
        shorts_close();
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ofi_shorts");
    TCase *tests = tcase_create("shorts");

    tcase_add_test(tests, test_how_many);
    tcase_add_loop_test(tests, test_any_order, 0, 8);
    tcase_add_test(tests, test_too_many);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
