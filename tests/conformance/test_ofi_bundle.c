/* SPDX-License-Identifier: BSD-3-Clause */
/* Short frames that go together, and come apart again: what a conn hands to an
 * endpoint that only writes it down is handed back to it as received. */
#include "config.h"

#include "tests/conformance/lone.h"

enum { LIMIT = 8, SLOTS = LIMIT + OFI_CONTROL_SLOTS, FRAME = 256,
       LONG = 16 * 1024 };

static struct ofi_kind kind = {
    .backend = "ofi:test", .type = FI_EP_RDM, .max_frame = FRAME,
    .slots = LIMIT, .posts = 1, .join = &ofi_join_any
};
static struct tpf_env env;
static struct ofi_endpoint endpoint;
static struct ofi_rail rail;
static struct ofi_conn *conn;

struct buffer {
    struct ofi_head head;
    unsigned char frame[LONG + FRAME];
};
static struct ofi_slot out[SLOTS], in[SLOTS];
static struct buffer out_buffers[SLOTS], in_buffers[SLOTS];

/* What the endpoint was given. */
static struct {
    struct buffer buffer;
    size_t length;
} sent[64];
static int sent_count;

static ssize_t bundle_take(struct fid_ep *ep, const void *data, size_t length,
                           void *desc, fi_addr_t to, void *context)
{
    struct ofi_slot *slot = context;

    (void)ep;
    (void)desc;
    (void)to;
    ck_assert_int_lt(sent_count, (int)TPB_COUNT(sent));
    ck_assert_uint_le(length, sizeof(sent->buffer));
    memcpy(&sent[sent_count].buffer, data, length);
    sent[sent_count++].length = length;
    ofi_slot_give(&conn->send, slot);
    return 0;
}

static void bundle_open(void)
{
    static const struct tpf_backend backend = {
        .name = "ofi:test", .conn_size = sizeof(struct ofi_conn),
        .gathered = ofi_conn_gathered
    };
    static struct fi_ops_msg operations = { .send = bundle_take };
    static struct fid_ep ep = { .msg = &operations };

    conn = tpx_lone_conn(&endpoint, &backend, &kind, &env);
    conn->ep = &ep;
    conn->rail = &rail;
    conn->posts = SLOTS;           /* so that none is posted */
    conn->bundles = true;
    sent_count = 0;
    for (int i = 0; i < SLOTS; i++) {
        tpx_lone_slot(conn, &conn->send, &out[i], &out_buffers[i].head);
        tpx_lone_slot(conn, &conn->receive, &in[i], &in_buffers[i].head);
    }
}

static void bundle_close(void)
{
    tpf_conn_free(&conn->common);
}

/* A frame of so many bytes, all of which say which one it is. */
static void bundle_write(size_t size, int which)
{
    void *room = ofi_conn_reserve(&conn->common, size);

    ck_assert_ptr_nonnull(room);
    ck_assert_uint_eq((uintptr_t)room % 8, 0);
    memset(room, which, size);
    ofi_conn_commit(&conn->common, size);
}

/* Message `n` comes in. */
static void bundle_comes(int n)
{
    struct ofi_slot *slot = ofi_slot_take(&conn->receive);

    ck_assert_ptr_nonnull(slot);
    memcpy(slot->head, &sent[n].buffer, sent[n].length);
    slot->head->got = htole32(conn->peer_got);
    slot->head->popped = htole32(conn->peer_popped);
    ofi_conn_received(conn, slot, sent[n].length);
}

static void bundle_read(size_t size, int which)
{
    size_t there = 0;
    const unsigned char *frame = ofi_conn_peek(&conn->common, &there);

    ck_assert_ptr_nonnull(frame);
    ck_assert_uint_eq((uintptr_t)frame % 8, 0);
    ck_assert_uint_eq(there, size);
    for (size_t i = 0; i < size; i++)
        ck_assert_int_eq(frame[i], which);
    ofi_conn_pop(&conn->common);
    conn->told_popped = conn->popped;      /* nothing is to be said of it */
}

START_TEST(test_together)
{
    static const size_t sizes[] = { 1, 8, 24, 13, 16 };
    uint32_t available;

    bundle_open();
    available = conn->receive.available;
    env.bursts = true;
    for (int i = 0; i < (int)TPB_COUNT(sizes); i++)
        bundle_write(sizes[i], i + 1);
    ck_assert_int_eq(sent_count, 0);
    env.bursts = false;
    tpf_gathered(&env);
    ck_assert_int_eq(sent_count, 1);
    ck_assert_uint_eq(conn->frames_sent, 1);
    ck_assert_uint_eq(conn->send.available, SLOTS);
    bundle_comes(0);
    ck_assert_msg(!conn->lost, "%s", conn->text);
    for (int i = 0; i < (int)TPB_COUNT(sizes); i++) {
        ck_assert_uint_eq(conn->popped, 0);
        bundle_read(sizes[i], i + 1);
    }
    /* One credit for all of them. */
    ck_assert_uint_eq(conn->popped, 1);
    ck_assert_uint_eq(conn->receive.available, available);
    ck_assert_ptr_null(ofi_conn_peek(&conn->common, &(size_t){ 0 }));
    bundle_close();
}
END_TEST

/* A callback's first one does not wait. */
START_TEST(test_alone)
{
    bundle_open();
    env.calls = true;
    bundle_write(8, 1);
    ck_assert_int_eq(sent_count, 1);
    ck_assert_uint_eq(sent[0].buffer.head.size, htole32(8));
    conn->called = 0;
    bundle_write(8, 2);
    ck_assert_int_eq(sent_count, 2);
    env.calls = false;
    ck_assert(tpb_list_empty(&env.gathered));
    for (int i = 0; i < 2; i++) {
        bundle_comes(i);
        bundle_read(8, i + 1);
    }
    bundle_close();
}
END_TEST

/* What is sent behind them comes behind them, whatever it is. */
START_TEST(test_behind)
{
    for (int what = 0; what < 4; what++) {
        size_t behind = what == 1 ? FRAME : 8;

        bundle_open();
        env.bursts = true;
        bundle_write(8, 1);
        bundle_write(8, 2);
        env.bursts = what == 1;    /* one that no bundle takes */
        if (what < 2)
            bundle_write(behind, 3);       /* it goes at once */
        else if (what == 2)
            ofi_conn_flushed(&conn->common);
        else
            ofi_bundle_send(conn);
        ck_assert_int_eq(sent_count, what == 3 ? 1 : 2);
        ck_assert(tpb_list_empty(&env.gathered));
        bundle_comes(0);
        bundle_read(8, 1);
        bundle_read(8, 2);
        if (what < 2) {
            bundle_comes(1);
            bundle_read(behind, 3);
        }
        bundle_close();
    }
}
END_TEST

/* What has no room goes in the next one. */
START_TEST(test_full)
{
    enum { FRAMES = 60 };
    int read = 0;

    bundle_open();
    env.bursts = true;
    for (int i = 0; i < FRAMES; i++) {
        bundle_write(24, i + 1);
        for (; read < sent_count; read++)
            conn->peer_popped = conn->peer_got = conn->frames_sent;
    }
    env.bursts = false;
    tpf_gathered(&env);
    ck_assert_int_eq(sent_count, (FRAMES + 7) / 8);
    for (int i = 0, n = 0; n < sent_count; n++) {
        bundle_comes(n);
        ck_assert_msg(!conn->lost, "%s", conn->text);
        for (; ofi_conn_peek(&conn->common, &(size_t){ 0 }) != NULL; i++)
            bundle_read(24, i + 1);
        ck_assert_int_eq(i, n + 1 < sent_count ? 8 * (n + 1) : FRAMES);
    }
    bundle_close();
}
END_TEST

/* A callback that writes many: its first goes at once, and no other alone. */
START_TEST(test_callback)
{
    enum { FRAMES = 1 + 3 * 8 };

    bundle_open();
    env.calls = true;
    bundle_write(24, 1);
    ck_assert_int_eq(sent_count, 1);
    env.bursts = true;             /* however slow this machine is */
    for (int i = 1; i < FRAMES; i++) {
        bundle_write(24, i + 1);
        conn->peer_popped = conn->peer_got = conn->frames_sent;
    }
    env.calls = env.bursts = false;
    tpf_gathered(&env);
    ck_assert_int_eq(sent_count, 1 + 3);
    for (int i = 0, n = 0; n < sent_count; n++) {
        bundle_comes(n);
        for (int end = 1 + n * 8; i < end; i++)
            bundle_read(24, i + 1);
        ck_assert_ptr_null(ofi_conn_peek(&conn->common, &(size_t){ 0 }));
    }
    bundle_close();
}
END_TEST

/* The core is told to copy long frames while they come one behind the other,
 * and to lend them again where each went alone. */
START_TEST(test_hint)
{
    int lent = 0;

    bundle_open();
    conn->common.max_frame = LONG + FRAME;
    ofi_bundle_lent(conn, LONG);
    ofi_bundle_lent(conn, LONG);
    ck_assert_uint_eq(conn->common.gathers, 0);    /* no callback's */
    env.bursts = true;
    ofi_bundle_lent(conn, LONG);
    ck_assert_uint_gt(conn->common.gathers, LONG);
    /* One alone is the end of a burst. */
    bundle_write(LONG, 1);
    tpf_gathered(&env);
    ck_assert_uint_gt(conn->common.gathers, LONG);
    bundle_write(8, 2);
    bundle_write(8, 3);
    tpf_gathered(&env);
    bundle_write(LONG, 4);
    tpf_gathered(&env);
    ck_assert_uint_gt(conn->common.gathers, LONG);
    bundle_write(LONG, 5);
    tpf_gathered(&env);
    ck_assert_uint_eq(conn->common.gathers, 0);
    /* It is tried again, later. */
    for (; conn->common.gathers == 0 && lent < 100; lent++)
        ofi_bundle_lent(conn, LONG);
    ck_assert_int_gt(lent, 4);
    ck_assert_int_lt(lent, 100);
    bundle_write(LONG, 6);
    tpf_gathered(&env);
    ck_assert_uint_eq(conn->common.gathers, 0);
    /* Short ones say nothing of long ones. */
    for (int i = 0; i < 3; i++) {
        bundle_write(8, 7);
        tpf_gathered(&env);
        conn->peer_popped = conn->peer_got = conn->frames_sent;
    }
    bundle_write(8, 8);
    bundle_write(8, 9);
    tpf_gathered(&env);
    ck_assert_uint_gt(conn->common.gathers, LONG);
    /* ... nor do those that could not be in one. */
    ofi_bundle_lent(conn, 1024 * 1024);
    ck_assert_uint_gt(conn->common.gathers, LONG);
    /* A long one that comes a while after the last. */
    env.bursts = false;
    env.calls = true;
    conn->called = 0;
    bundle_write(LONG, 10);
    ck_assert_uint_eq(conn->common.gathers, 0);
    bundle_close();
}
END_TEST

/* Messages of libfabric's that overtake each other. */
START_TEST(test_turned)
{
    static const int orders[][3] = { { 2, 1, 0 }, { 1, 2, 0 }, { 2, 0, 1 },
                                     { 0, 2, 1 } };

    for (size_t k = 0; k < TPB_COUNT(orders); k++) {
        bool readable = false;

        bundle_open();
        env.bursts = true;
        bundle_write(8, 1);
        bundle_write(24, 2);
        tpf_gathered(&env);
        bundle_write(FRAME, 3);
        bundle_write(1, 4);
        bundle_write(16, 5);
        bundle_write(8, 6);
        env.bursts = false;
        tpf_gathered(&env);
        ck_assert_int_eq(sent_count, 3);
        for (int i = 0; i < 3; i++) {
            bundle_comes(orders[k][i]);
            ck_assert_msg(!conn->lost, "%s", conn->text);
            readable |= orders[k][i] == 0;
            ck_assert((ofi_conn_peek(&conn->common, &(size_t){ 0 }) != NULL)
                      == readable);
        }
        bundle_read(8, 1);
        bundle_read(24, 2);
        bundle_read(FRAME, 3);
        bundle_read(1, 4);
        bundle_read(16, 5);
        bundle_read(8, 6);
        ck_assert_ptr_null(ofi_conn_peek(&conn->common, &(size_t){ 0 }));
        bundle_close();
    }
}
END_TEST

/* Room that was asked for and not used, and a conn that ends meanwhile. */
START_TEST(test_left)
{
    bundle_open();
    env.bursts = true;
    ck_assert_ptr_nonnull(ofi_conn_reserve(&conn->common, 8));
    env.bursts = false;
    bundle_write(8, 1);
    ck_assert_int_eq(sent_count, 1);
    ck_assert_uint_eq(conn->send.available, SLOTS);
    env.bursts = true;
    bundle_write(8, 2);
    ofi_bundle_leave(conn);
    ck_assert(tpb_list_empty(&env.gathered));
    bundle_close();
}
END_TEST

/* What no peer of ours sends ends the conn, and hands out nothing. */
START_TEST(test_refused)
{
    static const struct {
        uint32_t bytes, words[8];
        bool bundles;
    } cases[] = {
        { 4, { 0 }, true },                    /* no room for a length */
        { 8, { 0 }, true },                    /* an empty frame */
        { 16, { 9 }, true },                   /* longer than it all */
        { 16, { 0xfffffff9 }, true },          /* which is so long, rounded */
        { 24, { 8, 0, 0, 0, 1 }, true },       /* the second one is cut off */
        { 12, { 4 }, true },                   /* not padded */
        { 16, { 8 }, false },                  /* the peer was not told */
    };

    for (size_t i = 0; i < TPB_COUNT(cases); i++) {
        bundle_open();
        conn->bundles = cases[i].bundles;
        sent[0].buffer.head = (struct ofi_head){
            .size = htole32(cases[i].bytes), .flags = htole32(OFI_FLAG_BUNDLE)
        };
        for (size_t k = 0; k < TPB_COUNT(cases[i].words); k++)
            ((uint32_t *)(void *)sent[0].buffer.frame)[k]
                = htole32(cases[i].words[k]);
        sent[0].length = sizeof(struct ofi_head) + cases[i].bytes;
        bundle_comes(0);
        ck_assert_msg(conn->lost, "case %zu", i);
        ck_assert_int_eq(conn->status, TP_ERR_PROTOCOL);
        ck_assert_msg(strstr(conn->text, "came together") != NULL, "%s",
                      conn->text);
        ck_assert_ptr_null(ofi_conn_peek(&conn->common, &(size_t){ 0 }));
        bundle_close();
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ofi_bundle");
    TCase *tests = tcase_create("bundle");

    tcase_add_test(tests, test_together);
    tcase_add_test(tests, test_alone);
    tcase_add_test(tests, test_behind);
    tcase_add_test(tests, test_full);
    tcase_add_test(tests, test_callback);
    tcase_add_test(tests, test_hint);
    tcase_add_test(tests, test_turned);
    tcase_add_test(tests, test_left);
    tcase_add_test(tests, test_refused);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
