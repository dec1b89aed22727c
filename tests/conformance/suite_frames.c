/* SPDX-License-Identifier: BSD-3-Clause */
/* Frames: whole, once, in order, and what happens when there is no room. */
#include "config.h"

#include <stdlib.h>

#include "tests/conformance/suite.h"

/* Sends `count` frames of from->out and waits until all have been verified. */
static void frames_move(struct tpx_pair *pair, struct tpx_link *from,
                        struct tpx_link *to, uint64_t count)
{
    uint64_t end = from->out.next + count;

    while (to->in.next < end) {
        uint64_t before = to->in.next;
        bool sent = false;

        while (from->out.next < end && tpx_send(from))
            sent = true;
        TPX_UNTIL(tpx_pair_step(pair),
                  sent || to->in.next > before || from->failed || to->failed
                      || (sent = from->out.next < end && tpx_send(from)));
        ck_assert_msg(!from->failed, "%s", from->text);
        ck_assert_msg(!to->failed, "%s", to->text);
        tpx_pair_step(pair);
    }
}

START_TEST(test_connect)
{
    struct tpx_pair pair;

    tpx_pair_open(&pair, tpx_backend);
    ck_assert(pair.ab->connected && pair.ba->connected);
    ck_assert(tpx_backend->flushed(pair.ab->conn));
    ck_assert_uint_eq(pair.b->incoming, pair.a == pair.b ? 0 : 1);
    tpx_pair_close(&pair);
}
END_TEST

/* Of very long ones the longest. */
START_TEST(test_every_size)
{
    enum { EVERY = 64 * 1024, TOP = 1000 };
    struct tpx_pair pair;
    unsigned most;

    tpx_pair_open(&pair, tpx_backend);
    most = (unsigned)pair.ab->conn->max_frame;
    tpx_stream_set(pair.ab, pair.ba, 1, tpx_size_every, 0);
    frames_move(&pair, pair.ab, pair.ba, tpx_few(most < EVERY ? most : EVERY));
    tpx_stream_set(pair.ab, pair.ba, 1, tpx_size_top, 0);
    frames_move(&pair, pair.ab, pair.ba, tpx_few(TOP));
    tpx_pair_close(&pair);
}
END_TEST

START_TEST(test_both_ways)
{
    unsigned frames = tpx_few(20000);
    struct tpx_pair pair;

    tpx_pair_open(&pair, tpx_backend);
    tpx_stream_set(pair.ab, pair.ba, 2, tpx_size_random, 0);
    if (pair.a != pair.b)
        tpx_stream_set(pair.ba, pair.ab, 3, tpx_size_random, 0);
    for (unsigned i = 0; i < frames; i++) {
        TPX_UNTIL(tpx_pair_step(&pair), tpx_send(pair.ab));
        if (pair.a != pair.b)
            TPX_UNTIL(tpx_pair_step(&pair), tpx_send(pair.ba));
        if (tpx_mix(i) % 3 == 0)
            tpx_pair_step(&pair);
    }
    TPX_UNTIL(tpx_pair_step(&pair),
              pair.ba->in.next == frames
                  && (pair.a == pair.b || pair.ab->in.next == frames));
    tpx_pair_close(&pair);
}
END_TEST

START_TEST(test_many_small)
{
    struct tpx_pair pair;

    tpx_pair_open(&pair, tpx_backend);
    tpx_stream_set(pair.ab, pair.ba, 4, tpx_size_small, 0);
    frames_move(&pair, pair.ab, pair.ba, tpx_few(200000));
    tpx_pair_close(&pair);
}
END_TEST

/* What callbacks send, and what goes once there is room, may wait for the end
 * of that; what is sent after it comes after it. */
START_TEST(test_gathered)
{
    unsigned frames = tpx_few(40000);
    struct tpx_pair pair;
    struct tpf_env *env;

    tpx_pair_open(&pair, tpx_backend);
    env = &pair.a->env;
    tpx_stream_set(pair.ab, pair.ba, 11, tpx_size_random, 0);
    for (unsigned i = 0; i < frames; i++) {
        uint64_t x = tpx_mix(i);

        if (x % 16 == 0)
            env->calls = !env->calls;
        if (x % 64 == 1)
            env->bursts = !env->bursts;
        if (!env->calls && !env->bursts && x % 3 == 0)
            tpf_gathered(env);
        while (!tpx_send(pair.ab)) {
            tpf_gathered(env);
            TPX_UNTIL(tpx_pair_step(&pair), pair.ba->in.next > i / 2);
            tpx_pair_step(&pair);
        }
        if (x % 512 == 2)
            tpx_backend->flushed(pair.ab->conn);
    }
    env->calls = env->bursts = false;
    tpf_gathered(env);
    TPX_UNTIL(tpx_pair_step(&pair), pair.ba->in.next == frames);
    TPX_UNTIL(tpx_pair_step(&pair), tpx_backend->flushed(pair.ab->conn));
    tpx_pair_close(&pair);
}
END_TEST

/* Nor does a conn that ends look for what was kept back. */
START_TEST(test_gathered_end)
{
    struct tpx_pair pair;

    tpx_pair_open(&pair, tpx_backend);
    pair.a->env.bursts = true;
    tpx_stream_set(pair.ab, pair.ba, 12, tpx_size_small, 0);
    for (int i = 0; i < 10; i++)
        ck_assert(tpx_send(pair.ab));
    ck_assert(tpx_backend->gathered == NULL
              || !tpb_list_empty(&pair.a->env.gathered));
    if (pair.a != pair.b) {
        tpx_disconnect(pair.ab);
        ck_assert(tpb_list_empty(&pair.a->env.gathered));
        pair.a->env.bursts = false;
        tpf_gathered(&pair.a->env);
        TPX_UNTIL(tpx_pair_step(&pair), pair.ba->failed);
    }
    tpx_pair_close(&pair);
}
END_TEST

/* The other side does not read at all: what is taken is bounded, and writable
 * comes when it reads again. */
static void frames_fill(size_t size)
{
    enum {
        TURNS = 5, LIMIT = 128 * 1024 * 1024, FRAMES = 2000000, QUIET = 1000
    };
    struct tpx_pair pair;

    tpx_pair_open(&pair, tpx_backend);
    tpx_stream_set(pair.ab, pair.ba, 5, tpx_size_fixed, size);
    for (int turn = 0; turn < TURNS; turn++) {
        uint64_t start = pair.ab->out.next;
        int quiet = 0;
        unsigned writable;

        pair.ba->hold = true;
        /* Full when nothing moves for a while, on either side; the last to
         * be done is to be refused, and is not followed by a step. */
        while (quiet < QUIET) {
            quiet = tpx_send(pair.ab) ? 0 : quiet + 1;
            if (quiet > 0 && quiet < QUIET)
                tpx_pair_step(&pair);
            ck_assert_msg((pair.ab->out.next - start) * size < LIMIT
                              && pair.ab->out.next - start < FRAMES,
                          "it takes more and more");
        }
        writable = pair.ab->writable;
        pair.ba->hold = false;
        TPX_UNTIL(tpx_pair_step(&pair), pair.ab->writable > writable);
        frames_move(&pair, pair.ab, pair.ba, 10);
    }
    TPX_UNTIL(tpx_pair_step(&pair), pair.ba->in.next == pair.ab->out.next);
    tpx_pair_close(&pair);
}

START_TEST(test_fill_small)
{
    frames_fill(40);
}
END_TEST

START_TEST(test_fill_big)
{
    frames_fill(1024 * 1024);      /* cut to max_frame */
}
END_TEST

/* Whoever has seen NULL gets a writable upcall even if the other side had
 * made room before it was asked again; nobody may count on a later frame. */
START_TEST(test_writable_is_not_lost)
{
    struct tpx_pair pair;

    tpx_pair_open(&pair, tpx_backend);
    tpx_stream_set(pair.ab, pair.ba, 6, tpx_size_fixed, 4096);
    for (unsigned i = tpx_few(2000); i > 0; i--) {
        unsigned writable;

        while (tpx_send(pair.ab))
            ;
        writable = pair.ab->writable;
        TPX_UNTIL(tpx_pair_step(&pair), pair.ab->writable > writable);
    }
    TPX_UNTIL(tpx_pair_step(&pair), pair.ba->in.next == pair.ab->out.next);
    tpx_pair_close(&pair);
}
END_TEST

START_TEST(test_peek_is_stable)
{
    struct tpx_pair pair;
    const unsigned char *first;
    unsigned char copy[300];
    size_t size;

    tpx_pair_open(&pair, tpx_backend);
    pair.ba->hold = true;
    tpx_stream_set(pair.ab, pair.ba, 7, tpx_size_fixed, sizeof(copy));
    ck_assert(tpx_send(pair.ab));
    TPX_UNTIL(tpx_pair_step(&pair),
              (first = tpx_backend->peek(pair.ba->conn, &size)) != NULL);
    ck_assert_uint_eq(size, sizeof(copy));
    memcpy(copy, first, sizeof(copy));
    for (int i = 0; i < 200; i++) {
        size_t again = 0;

        tpx_send(pair.ab);
        tpx_pair_step(&pair);
        ck_assert_ptr_eq(tpx_backend->peek(pair.ba->conn, &again), first);
        ck_assert_uint_eq(again, size);
        ck_assert_mem_eq(first, copy, sizeof(copy));
    }
    pair.ba->hold = false;
    TPX_UNTIL(tpx_pair_step(&pair), pair.ba->in.next == pair.ab->out.next);
    ck_assert_ptr_null(tpx_backend->peek(pair.ba->conn, &size));
    tpx_pair_close(&pair);
}
END_TEST

/* 16 bytes, 17 and so on, up to stream->fixed, again and again. */
static size_t post_size(const struct tpx_stream *stream, size_t max_frame)
{
    size_t size = sizeof(struct tpf_head)
                  + stream->next % (stream->fixed - sizeof(struct tpf_head));

    return size < max_frame ? size : max_frame;
}

/* Room asked for and left, asked for again, and used in part. */
START_TEST(test_commit_less)
{
    struct tpx_pair pair;
    struct tpf_conn *conn;

    tpx_pair_open(&pair, tpx_backend);
    tpx_stream_set(pair.ab, pair.ba, 8, tpx_size_small, 0);
    conn = pair.ab->conn;
    while (pair.ab->out.next < 3000) {
        struct tpx_stream *out = &pair.ab->out;
        size_t size = out->size(out, conn->max_frame);
        size_t asked = size + tpx_mix(out->next)
                                  % (conn->max_frame - size + 1);
        void *room = tpx_backend->reserve(conn, asked);

        if (room != NULL && out->next % 3 == 0)
            room = tpx_backend->reserve(conn, asked / 2 + size);
        if (room != NULL) {
            memcpy(room, tpx_bytes(out, out->next), size);
            tpx_backend->commit(conn, size);
            out->next++;
        } else {
            tpx_pair_step(&pair);
        }
    }
    TPX_UNTIL(tpx_pair_step(&pair), pair.ba->in.next == 3000);
    tpx_pair_close(&pair);
}
END_TEST

/* Frames of every length that reserve() and commit() made in one call, and
 * some others in between. */
START_TEST(test_post)
{
    enum { POSTS = 6000, LONGEST = 1500 };
    struct tpx_pair pair;
    struct tpf_conn *conn;

    tpx_pair_open(&pair, tpx_backend);
    tpx_stream_set(pair.ab, pair.ba, 9, post_size, LONGEST);
    conn = pair.ab->conn;
    while (pair.ab->out.next < POSTS) {
        struct tpx_stream *out = &pair.ab->out;
        size_t size = out->size(out, conn->max_frame);
        const unsigned char *bytes = tpx_bytes(out, out->next);
        struct tpf_head head;
        bool sent;

        memcpy(&head, bytes, sizeof(head));
        if (out->next % 7 == 0) {
            sent = tpx_send(pair.ab);
        } else {
            sent = tpf_post(conn, head, bytes + sizeof(head),
                            size - sizeof(head));
            out->next += sent;
        }
        if (!sent)
            tpx_pair_step(&pair);
    }
    TPX_UNTIL(tpx_pair_step(&pair), pair.ba->in.next == POSTS);
    tpx_pair_close(&pair);
}
END_TEST

START_TEST(test_many_conns)
{
    enum { SIDES = 4, EACH = 8, CONNS = SIDES * EACH, FRAMES = 300 };
    struct tpx_side *target = tpx_side_open(tpx_backend);
    struct tpx_side *sides[SIDES];
    struct tpx_link *links[CONNS];
    uint64_t limit = tpb_now() + TPX_DEADLINE_MS * 1000000ull;
    bool done = false;

    target->expect.seed = 9;
    for (int i = 0; i < CONNS; i++) {
        if (i < SIDES)
            sides[i] = tpx_backend->flags & TPF_SELF
                           ? target : tpx_side_open(tpx_backend);
        links[i] = tpx_connect(sides[i % SIDES], target->address,
                               target->address_length);
        links[i]->out = links[i]->in = target->expect;
    }
    while (!done) {
        done = true;
        for (int i = 0; i < CONNS; i++) {
            ck_assert_msg(!links[i]->failed, "%s", links[i]->text);
            if (links[i]->connected && links[i]->out.next < FRAMES)
                tpx_send(links[i]);
        }
        for (int i = 0; i < SIDES; i++)
            tpx_side_step(sides[i]);
        tpx_side_step(target);
        for (int i = 0; i < CONNS; i++) {
            struct tpx_link *to = tpx_backend->flags & TPF_SELF
                                      ? links[i]
                                      : tpx_incoming(target, (unsigned)i);

            done &= to != NULL && to->in.next == FRAMES;
        }
        ck_assert_msg(tpb_now() < limit, "not in time: %d conns", CONNS);
    }
    for (int i = 0; i < SIDES; i++)
        if (sides[i] != target)
            tpx_side_close(sides[i]);
    tpx_side_close(target);
}
END_TEST

/* The memory given away comes back exactly once, and not before its bytes
 * need it no more. */
START_TEST(test_send_data)
{
    enum { FRAMES = 3000 };
    struct tpx_pair pair;
    struct tpx_link *from;
    unsigned char *memory[8];
    uint64_t sent = 0;

    tpx_pair_open(&pair, tpx_backend);
    from = pair.ab;
    tpx_stream_set(from, pair.ba, 10, tpx_size_random, 0);
    for (int i = 0; i < 8; i++)
        ck_assert_ptr_nonnull(memory[i] = malloc(from->conn->max_frame));
    while (from->sent < FRAMES) {
        struct tpx_stream *out = &from->out;
        size_t size = out->size(out, from->conn->max_frame);
        const unsigned char *bytes = tpx_bytes(out, out->next);
        size_t head = tpx_mix(out->next) % 3 == 0 ? 0 : size / 7;

        if (sent < FRAMES && sent - from->sent < 8) {
            memcpy(memory[sent % 8], bytes + head, size - head);
            if (tpx_backend->send_data(from->conn, bytes, head,
                                       memory[sent % 8], size - head,
                                       memory[sent % 8])) {
                sent++;
                out->next++;
                if (sent % 5 == 0 && tpx_send(from))
                    ck_assert_uint_ge(sent, from->sent);
            }
        }
        tpx_pair_step(&pair);
        ck_assert_uint_le(from->sent, sent);
        ck_assert(from->sent == 0
                  || from->token == memory[(from->sent - 1) % 8]);
    }
    TPX_UNTIL(tpx_pair_step(&pair), pair.ba->in.next == from->out.next);
    ck_assert_uint_eq(from->sent, FRAMES);
    tpx_pair_close(&pair);
    for (int i = 0; i < 8; i++)
        free(memory[i]);
}
END_TEST

/* Short ones, and long ones whose bodies land. */
static size_t size_landing(const struct tpx_stream *stream, size_t most)
{
    uint64_t x = tpx_mix(stream->seed ^ tpx_mix(stream->next));

    if (stream->next == 0)
        return most;
    return 1 + (size_t)(x >> 8) % (x % 3 == 0 ? most : 4000);
}

/* Long ones with heads of their own. */
static void landing_send(struct tpx_link *link, unsigned *lent)
{
    const struct tpf_backend *backend = link->conn->backend;
    struct tpx_stream *out = &link->out;
    size_t size = out->size(out, link->conn->max_lent);
    const unsigned char *bytes = tpx_bytes(out, out->next);
    size_t head = 1 + (size_t)tpx_mix(out->next) % 64;

    if (size <= 4000) {
        tpx_send(link);
    } else if (backend->send_data(link->conn, bytes, head, bytes + head,
                                  size - head, NULL)) {
        ++*lent;
        out->next++;
    }
}

/* Bodies go where their reader says, at once or later, or not at all. */
START_TEST(test_landing)
{
    uint64_t frames = tpx_few(600);
    struct tpx_pair pair;
    struct tpx_link *from, *to;
    unsigned char *place;
    unsigned lent = 0;
    size_t got;

    tpx_lands = true;
    tpx_pair_open(&pair, tpx_backend);
    tpx_lands = false;
    from = pair.ab;
    to = pair.ba;
    ck_assert_uint_gt(from->conn->lands, 4000);
    ck_assert_uint_gt(from->conn->max_lent, from->conn->lands);
    ck_assert_ptr_nonnull(place = malloc(to->conn->max_lent));
    to->place = place;
    tpx_stream_set(from, to, 12, size_landing, 0);
    /* There is room for the first one before anybody has said where.  That it
     * was sent does not tell that all of it has come. */
    to->hold = true;
    landing_send(from, &lent);
    TPX_UNTIL(tpx_pair_step(&pair),
              from->sent == 1 && to->conn != NULL
              && tpx_backend->peek(to->conn, &got) != NULL);
    to->hold = false;
    TPX_UNTIL(tpx_pair_step(&pair), to->in.next == 1);
    ck_assert_uint_eq(to->went.behind + to->went.placed, 0);
    while (from->out.next < frames) {
        landing_send(from, &lent);
        tpx_pair_step(&pair);
    }
    TPX_UNTIL(tpx_pair_step(&pair),
              to->in.next == frames && from->sent == lent);
    ck_assert_uint_gt(to->went.behind, 0);
    ck_assert_uint_gt(to->went.placed, 0);
    tpx_pair_close(&pair);
    free(place);
}
END_TEST

void tpx_add_frame_tests(Suite *suite)
{
    TCase *tests = tpx_tcase(suite, "frames");

    tcase_add_test(tests, test_connect);
    tcase_add_test(tests, test_every_size);
    tcase_add_test(tests, test_both_ways);
    tcase_add_test(tests, test_many_small);
    tcase_add_test(tests, test_gathered);
    tcase_add_test(tests, test_gathered_end);
    tcase_add_test(tests, test_fill_small);
    tcase_add_test(tests, test_fill_big);
    tcase_add_test(tests, test_writable_is_not_lost);
    tcase_add_test(tests, test_peek_is_stable);
    tcase_add_test(tests, test_commit_less);
    tcase_add_test(tests, test_post);
    tcase_add_test(tests, test_many_conns);
    if (tpx_backend->send_data != NULL)
        tcase_add_test(tests, test_send_data);
    if (tpx_target->lands)
        tcase_add_test(tests, test_landing);
}
