/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages of datagrams that are whole in another order than they were sent in,
 * handed to a conn as libfabric's completions would: nothing of libfabric's is
 * behind it. */
#include "config.h"

#include "tests/conformance/lone.h"

enum { LIMIT = 8, SLOTS = LIMIT + OFI_CONTROL_SLOTS, FRAME = 64 };

static struct ofi_kind kind;
static struct ofi_endpoint endpoint;
static struct ofi_conn *conn;
static struct ofi_slot slots[SLOTS];
static struct {
    struct ofi_head head;
    unsigned char frame[FRAME];
} buffers[SLOTS];

/* As if so many frames had come and gone both ways. */
static void order_open(enum fi_ep_type type, uint32_t number)
{
    static const struct tpf_backend backend = {
        .name = "ofi:test", .conn_size = sizeof(struct ofi_conn)
    };

    kind = (struct ofi_kind){ .backend = "ofi:test", .type = type,
                              .max_frame = FRAME, .slots = LIMIT,
                              .join = &ofi_join_any };
    conn = tpx_lone_conn(&endpoint, &backend, &kind, NULL);
    conn->got = conn->popped = number;
    conn->frames_sent = conn->peer_got = conn->peer_popped = number;
    for (int i = 0; i < SLOTS; i++)
        tpx_lone_slot(conn, &conn->receive, &slots[i], &buffers[i].head);
}

static void order_close(void)
{
    tpf_conn_free(&conn->common);
}

/* A message is whole: frame `number`, or if that has no bytes only what its
 * sender says of frames of ours. */
static void order_comes(uint32_t number, uint32_t flags, size_t size,
                        uint32_t got, uint32_t popped)
{
    struct ofi_slot *slot = ofi_slot_take(&conn->receive);

    ck_assert_ptr_nonnull(slot);
    slot->head->size = htole32((uint32_t)size);
    slot->head->flags = htole32(number << OFI_NUMBER_SHIFT | flags);
    slot->head->got = htole32(got);
    slot->head->popped = htole32(popped);
    memset(slot->head + 1, (int)(number & 0xff), size);
    conn->posts++;
    ofi_conn_received(conn, slot, sizeof(*slot->head) + size);
}

static void order_frame(uint32_t number)
{
    order_comes(number, 0, FRAME, conn->frames_sent, conn->frames_sent);
}

/* The next one that can be read is frame `number`, and goes. */
static void order_read(uint32_t number)
{
    size_t size = 0;
    const unsigned char *frame = ofi_conn_peek(&conn->common, &size);

    ck_assert_ptr_nonnull(frame);
    ck_assert_uint_eq(size, FRAME);
    ck_assert_uint_eq(frame[0], number & 0xff);
    ck_assert_uint_eq(frame[FRAME - 1], number & 0xff);
    ofi_conn_pop(&conn->common);
}

static void order_read_none(void)
{
    size_t size;

    ck_assert_ptr_null(ofi_conn_peek(&conn->common, &size));
}

/* Where the numbers begin, again at 2^24 on the wire, and again. */
static const uint32_t starts[] = { 0, 1000, (1u << 24) - 3, UINT32_MAX - 2 };

START_TEST(test_in_turn)
{
    static const uint32_t orders[][LIMIT] = {
        { 0, 1, 2, 3, 4, 5, 6, 7 }, { 7, 6, 5, 4, 3, 2, 1, 0 },
        { 1, 0, 3, 2, 5, 4, 7, 6 }, { 3, 7, 1, 0, 2, 6, 5, 4 },
    };
    uint32_t base = starts[_i];

    order_open(FI_EP_RDM, base);
    for (size_t k = 0; k < TPB_COUNT(orders); k++, base += LIMIT) {
        uint32_t read = 0, there = 0;

        for (uint32_t i = 0; i < LIMIT; i++) {
            order_frame(base + orders[k][i]);
            ck_assert_msg(!conn->lost, "%s", conn->text);
            there |= 1u << orders[k][i];
            for (; read < LIMIT && (there & 1u << read) != 0; read++)
                order_read(base + read);
            order_read_none();
        }
        ck_assert_uint_eq(read, LIMIT);
        ck_assert_uint_eq(conn->got, base + LIMIT);
        ck_assert_uint_eq(conn->receive.available, SLOTS);
    }
    order_close();
}
END_TEST

/* What a peer must not do ends the conn, and hands out nothing more. */
START_TEST(test_refused)
{
    static const struct {
        enum fi_ep_type type;
        uint32_t before, number;
        const char *words;
    } cases[] = {
        { FI_EP_RDM, 2, 2, "a frame came twice" },
        { FI_EP_RDM, 1, UINT32_MAX, "it sends more than it may" },
        { FI_EP_RDM, 1, LIMIT, "it sends more than it may" },
        { FI_EP_RDM, 1, 1u << 23, "it sends more than it may" },
        { FI_EP_MSG, 0, 1, "frames came out of order" },
    };
    uint32_t base = starts[_i];

    for (size_t k = 0; k < TPB_COUNT(cases); k++) {
        order_open(cases[k].type, base);
        order_frame(base + cases[k].before);
        if (cases[k].type == FI_EP_MSG)
            order_read(base);
        ck_assert(!conn->lost);
        order_frame(base + cases[k].number + (cases[k].type == FI_EP_MSG));
        ck_assert(conn->lost);
        ck_assert_int_eq(conn->status, TP_ERR_PROTOCOL);
        ck_assert_msg(strstr(conn->text, cases[k].words) != NULL, "%s",
                      conn->text);
        order_read_none();
        order_close();
    }
}
END_TEST

/* What was said before is no news, and no reason to end. */
START_TEST(test_old_news)
{
    uint32_t base = starts[_i];

    order_open(FI_EP_RDM, base);
    conn->frames_sent = base + 6;
    order_comes(base, 0, 0, base + 4, base + 2);
    ck_assert_uint_eq(conn->peer_got, base + 4);
    order_comes(base, 0, 0, base + 3, base + 1);
    ck_assert_msg(!conn->lost, "%s", conn->text);
    ck_assert_uint_eq(conn->peer_got, base + 4);
    ck_assert_uint_eq(conn->peer_popped, base + 2);
    order_comes(base, 0, 0, base + 7, base + 2);
    ck_assert(conn->lost);
    order_close();
}
END_TEST

/* Who asks whether frames have come is told when they have. */
START_TEST(test_early_ping)
{
    uint32_t base = starts[_i];

    order_open(FI_EP_RDM, base);
    order_comes(base, OFI_FLAG_PING, 0, base, base);
    ck_assert(conn->pong_due);
    conn->pong_due = false;
    order_comes(base + 2, OFI_FLAG_PING, 0, base, base);
    ck_assert(!conn->pong_due);
    order_frame(base + 1);
    ck_assert(!conn->pong_due);
    order_frame(base);
    ck_assert(conn->pong_due);
    order_close();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ofi_order");
    TCase *tests = tcase_create("order");

    tcase_add_loop_test(tests, test_in_turn, 0, TPB_COUNT(starts));
    tcase_add_loop_test(tests, test_refused, 0, TPB_COUNT(starts));
    tcase_add_loop_test(tests, test_old_news, 0, TPB_COUNT(starts));
    tcase_add_loop_test(tests, test_early_ping, 0, TPB_COUNT(starts));
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
