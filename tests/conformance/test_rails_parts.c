/* SPDX-License-Identifier: BSD-3-Clause */
/* rails: which rail gets a frame, what is published, and rails that are lost
 * in the middle of a transfer. */
#include "config.h"

#include <malloc.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "fabric/ofi/ofi.h"
#include "fabric/rails/rails.h"
#include "tests/conformance/side.h"

enum { PARTS_FRAME = 65536 };

static const struct tpf_backend *parts_backend;

/* ---- pace -------------------------------------------------------------- */

/* Two links of `speeds` bytes per second, and a sender that always has more;
 * the clock is ours.  Returns what the first one carried, in percent. */
static double parts_share(struct rails_pace pace[2], const double speeds[2],
                          uint64_t *now, int frames)
{
    struct rails_pace *const both[2] = { &pace[0], &pace[1] };
    double carried[2] = { 0, 0 };
    uint64_t free_at[2] = { *now, *now }, queue[2][1024];
    unsigned first[2] = { 0, 0 }, last[2] = { 0, 0 };

    while (frames > 0) {
        int next = rails_pace_choose(both, 2, PARTS_FRAME, *now);

        if (next >= 0) {
            uint64_t start = free_at[next] > *now ? free_at[next] : *now;

            free_at[next] = start + (uint64_t)(PARTS_FRAME * 1e9
                                               / speeds[next]);
            ck_assert_uint_lt(last[next] - first[next], 1024);
            queue[next][last[next]++ % 1024] = free_at[next];
            rails_pace_sent(&pace[next], PARTS_FRAME, *now);
            carried[next] += PARTS_FRAME;
            frames--;
            continue;
        }
        next = last[0] == first[0]
               || (last[1] != first[1]
                   && queue[1][first[1] % 1024] < queue[0][first[0] % 1024]);
        *now = queue[next][first[next]++ % 1024];
        rails_pace_acked(&pace[next], PARTS_FRAME, *now);
    }
    for (int i = 0; i < 2; i++)
        while (first[i] != last[i]) {
            *now = queue[i][first[i]++ % 1024] > *now
                       ? queue[i][(first[i] - 1) % 1024] : *now;
            rails_pace_acked(&pace[i], PARTS_FRAME, *now);
        }
    return 100 * carried[0] / (carried[0] + carried[1]);
}

/* Nothing is told of the speeds; they are found out. */
START_TEST(test_learns)
{
    static const double speeds[][2] = {
        { 50e6, 12.5e6 }, { 12.5e6, 50e6 }, { 1e9, 1e9 }, { 1.2e9, 120e6 }
    };

    for (size_t i = 0; i < TPB_COUNT(speeds); i++) {
        double part = 100 * speeds[i][0] / (speeds[i][0] + speeds[i][1]);
        struct rails_pace pace[2];
        uint64_t now = 1;
        double share;

        rails_pace_init(&pace[0], 0);
        rails_pace_init(&pace[1], 0);
        parts_share(pace, speeds[i], &now, 200);
        share = parts_share(pace, speeds[i], &now, 4000);
        ck_assert_msg(share > part - 5 && share < part + 5,
                      "%g of %g and %g: %.1f %%", speeds[i][0], speeds[i][0],
                      speeds[i][1], share);
    }
}
END_TEST

/* Two links whose speeds are known by now. */
static void parts_learned(struct rails_pace pace[2], const double speeds[2],
                          uint64_t *now)
{
    rails_pace_init(&pace[0], 0);
    rails_pace_init(&pace[1], 0);
    parts_share(pace, speeds, now, 1000);
}

/* A link that was fast becomes slow: two messages know it. */
START_TEST(test_learns_to_wait)
{
    static const double before[2] = { 50e6, 50e6 }, after[2] = { 50e6, 1e6 };
    struct rails_pace pace[2];
    uint64_t now = 1;
    double share;

    parts_learned(pace, before, &now);
    for (int i = 0; i < 2; i++)
        parts_share(pace, after, &now, 16);
    share = parts_share(pace, after, &now, 16);
    ck_assert_msg(share > 90, "%.1f %%", share);
}
END_TEST

/* A link that was slow becomes fast. */
START_TEST(test_learns_again)
{
    static const double before[2] = { 50e6, 1e6 }, after[2] = { 50e6, 50e6 };
    struct rails_pace pace[2];
    uint64_t now = 1;
    double share;

    parts_learned(pace, before, &now);
    parts_share(pace, after, &now, 2000);
    share = parts_share(pace, after, &now, 4000);
    ck_assert_msg(share > 40 && share < 60, "%.1f %%", share);
}
END_TEST

START_TEST(test_small_go_where_it_is_empty)
{
    struct rails_pace fast, slow, *both[3] = { &slow, &fast, NULL };

    rails_pace_init(&slow, 100);
    rails_pace_init(&fast, 400);
    ck_assert_int_eq(rails_pace_choose(both, 3, 100, 1), 1);
    rails_pace_sent(&fast, 4000, 1);
    ck_assert_int_eq(rails_pace_choose(both, 3, 100, 1), 0);
    both[0] = NULL;
    ck_assert_int_eq(rails_pace_choose(both, 3, 100, 1), 1);
    both[1] = NULL;
    ck_assert_int_eq(rails_pace_choose(both, 3, 100, 1), -1);
}
END_TEST

/* ---- address ----------------------------------------------------------- */

START_TEST(test_damage)
{
    struct rails_card card = { .count = 2 }, again;
    struct tpb_error error = { "" };
    uint8_t bytes[TPT_ADDRESS];
    size_t length;

    card.places[0] = (struct rails_place){ .backend = "ofi:tcp", .nic = "eth0",
                                           .megabits = 10000, .length = 3,
                                           .address = { 1, 2, 3 } };
    card.places[1] = card.places[0];
    card.places[1].nic[3] = '1';
    card.places[1].length = 0;
    memset(card.key, 7, sizeof(card.key));
    card.places[1].length = 5;
    length = rails_card_encode(&card, bytes, sizeof(bytes));
    ck_assert_uint_gt(length, 0);
    ck_assert_int_eq(rails_card_decode(&again, bytes, length, &error), TP_OK);
    ck_assert_mem_eq(&card, &again, sizeof(card));
    for (size_t i = 0; i < length; i++) {
        bytes[i] ^= 1;
        ck_assert_int_eq(rails_card_decode(&again, bytes, length, &error),
                         TP_ERR_PROTOCOL);
        bytes[i] ^= 1;
        ck_assert_int_eq(rails_card_decode(&again, bytes, i, &error),
                         TP_ERR_PROTOCOL);
    }
    /* What does not fit is left out. */
    ck_assert_uint_lt(rails_card_encode(&card, bytes, length - 1), length);
    ck_assert_uint_eq(rails_card_encode(&card, bytes, 30), 0);
}
END_TEST

/* ---- loss -------------------------------------------------------------- */

static bool parts_possible(void)
{
    struct tpb_settings settings;
    struct tpt_card card = { .rank = 0 };
    struct tpf_env env = { .epoll = -1, .settings = &settings, .card = &card };
    struct tpb_error error = { "" };
    tp_status status;

    ck_assert_int_eq(tpb_settings_load(&settings, &error), TP_OK);
    status = parts_backend->probe(&env, &error);
    tpb_settings_fini(&settings);
    if (status != TP_OK)
        tpx_skip("rails", error.text);
    return status == TP_OK;
}

static struct rails_rail *parts_a_rail(struct tpx_link *link, uint64_t seed)
{
    struct rails_conn *conn = rails_conn_of(link->conn);

    for (uint64_t i = 0; i < RAILS_MAX; i++) {
        struct rails_rail *rail = conn->rails[(seed + i) % RAILS_MAX];

        if (rail != NULL && rail->stage == RAILS_UP)
            return rail;
    }
    return NULL;
}

static void parts_look(struct tpx_pair *pair)
{
    tpx_pair_step(pair);
    ck_assert_msg(!pair->ab->failed, "%s", pair->ab->text);
    ck_assert_msg(!pair->ba->failed, "%s", pair->ba->text);
}

static void parts_step(struct tpx_pair *pair, struct tpx_link *from)
{
    tpx_send(from);
    parts_look(pair);
}

/* Again and again a rail is lost, on either side, with frames under way both
 * ways; they come back; not a frame is lost, doubled or out of order. */
START_TEST(test_lost_and_back)
{
    enum { LOSSES = 40, BETWEEN = 60 };
    struct tpx_pair pair;

    if (!parts_possible())
        return;
    tpx_pair_open(&pair, parts_backend);
    tpx_stream_set(pair.ab, pair.ba, 50, tpx_size_random, 0);
    tpx_stream_set(pair.ba, pair.ab, 51, tpx_size_random, 0);
    for (uint64_t i = 0; i < LOSSES; i++) {
        struct tpx_link *side = i % 2 == 0 ? pair.ab : pair.ba;
        uint64_t end = pair.ba->in.next + BETWEEN;

        TPX_UNTIL((parts_step(&pair, pair.ab), parts_step(&pair, pair.ba)),
                  pair.ba->in.next >= end
                      && rails_conn_of(pair.ab->conn)->up >= 2
                      && rails_conn_of(pair.ba->conn)->up
                             == rails_conn_of(pair.ab->conn)->up);
        for (int k = 0; k < 20; k++) {
            tpx_send(pair.ab);
            tpx_send(pair.ba);
        }
        rails_lose(parts_a_rail(side, i), TP_ERR_PEER_FAILED, "by the test");
    }
    TPX_UNTIL(parts_step(&pair, pair.ab),
              rails_conn_of(pair.ab->conn)->up == 3
                  && rails_conn_of(pair.ba->conn)->up == 3);
    TPX_UNTIL(tpx_pair_step(&pair), pair.ba->in.next == pair.ab->out.next
                                        && pair.ab->in.next
                                               == pair.ba->out.next);
    tpx_pair_close(&pair);
}
END_TEST

/* Lent memory comes back although its rail is lost. */
START_TEST(test_lent_and_lost)
{
    static unsigned char memory[PARTS_FRAME];
    struct tpx_pair pair;
    unsigned lent = 0;

    if (!parts_possible())
        return;
    tpx_pair_open(&pair, parts_backend);
    pair.ba->in = (struct tpx_stream){ .seed = 52, .size = tpx_size_fixed,
                                       .fixed = 1000 };
    pair.ab->out = pair.ba->in;
    pair.ba->hold = true;
    /* Every frame the same, so that the stream can be lent too. */
    memcpy(memory, tpx_bytes(&pair.ab->out, 0), 1000);
    ck_assert(tpx_send(pair.ab));
    for (uint64_t k = 1; k <= 3; k++) {
        unsigned char *copy = memory + 8192 * k;

        memcpy(copy, tpx_bytes(&pair.ab->out, k), 1000);
        lent += parts_backend->send_data(pair.ab->conn, copy, 16, copy + 16,
                                         1000 - 16, copy);
    }
    ck_assert_uint_eq(lent, 3);
    for (int i = 0; i < 2; i++)
        rails_lose(parts_a_rail(pair.ab, (uint64_t)i), TP_ERR_PEER_FAILED,
                   "by the test");
    pair.ba->hold = false;
    TPX_UNTIL(tpx_pair_step(&pair),
              pair.ab->sent == lent && pair.ba->in.next == lent + 1);
    ck_assert_ptr_eq(pair.ab->token, memory + 8192 * 3);
    tpx_pair_close(&pair);
}
END_TEST

/* The peer computes, and takes nothing off any rail: none is lost for that. */
static void parts_computes(size_t (*size)(const struct tpx_stream *, size_t))
{
    struct tpx_pair pair;
    uint64_t until;

    if (!parts_possible())
        return;
    tpx_pair_open(&pair, parts_backend);
    TPX_UNTIL(tpx_pair_step(&pair),
              rails_conn_of(pair.ab->conn)->up == 3
                  && rails_conn_of(pair.ba->conn)->up == 3);
    tpx_stream_set(pair.ab, pair.ba, 53, size, 0);
    for (int i = 0; i < 100; i++)
        TPX_UNTIL(tpx_pair_step(&pair), tpx_send(pair.ab));
    while (tpx_send(pair.ab))
        ;
    for (until = tpb_now() + 4000000000; tpb_now() < until;)
        tpx_side_sleep(pair.a, 50);
    ck_assert_uint_eq(rails_conn_of(pair.ab->conn)->up, 3);
    TPX_UNTIL(tpx_pair_step(&pair), pair.ba->in.next == pair.ab->out.next);
    ck_assert_uint_eq(rails_conn_of(pair.ab->conn)->up, 3);
    tpx_pair_close(&pair);
}

START_TEST(test_peer_computes)
{
    parts_computes(tpx_size_top);
}
END_TEST

START_TEST(test_peer_computes_short)
{
    parts_computes(tpx_size_small);
}
END_TEST

/* Two seconds in which nothing comes through between the two, of which each one
 * had heard last on another rail: both are there when it goes on. */
START_TEST(test_both_cut_off)
{
    struct tpx_pair pair;
    struct tpx_link *links[2];

    if (!parts_possible())
        return;
    setenv("TP_RAILS", "2", 1);
    tpx_pair_open(&pair, parts_backend);
    TPX_UNTIL(tpx_pair_step(&pair),
              rails_conn_of(pair.ab->conn)->up == 2
                  && rails_conn_of(pair.ba->conn)->up == 2);
    tpx_stream_set(pair.ab, pair.ba, 54, tpx_size_top, 0);
    tpx_stream_set(pair.ba, pair.ab, 55, tpx_size_top, 0);
    links[0] = pair.ab;
    links[1] = pair.ba;
    for (int side = 0; side < 2; side++) {
        struct rails_conn *conn = rails_conn_of(links[side]->conn);
        uint64_t now = tpb_now();

        while (tpx_send(links[side]))
            ;
        for (int i = 0; i < 2; i++) {
            ck_assert_uint_gt(conn->rails[i]->pace.big, 0);
            conn->rails[i]->pace.last_moved = now + (i == side);
        }
    }
    for (int tick = 0; tick < 20 && rails_conn_of(pair.ab->conn)->up == 2;
         tick++) {
        usleep(100000);
        rails_tick(rails_of(pair.a->endpoint));
        rails_tick(rails_of(pair.b->endpoint));
    }
    TPX_UNTIL(parts_look(&pair),
              pair.ba->in.next == pair.ab->out.next
                  && pair.ab->in.next == pair.ba->out.next);
    tpx_pair_close(&pair);
}
END_TEST

/* ---- what the other side is told --------------------------------------- */

static void parts_deaf(void *core, struct tpf_conn *below, tp_status status,
                       const char *text)
{
    (void)core;
    (void)below;
    (void)status;
    (void)text;
}

/* Two rails, of whose ends no side hears by their sockets: as when a cable is
 * out. */
static void parts_open_deaf(struct tpx_pair *pair)
{
    static struct tpf_upcalls deaf;

    deaf = rails_upcalls;
    deaf.failed = parts_deaf;
    setenv("TP_RAILS", "2", 1);
    tpx_pair_open(pair, parts_backend);
    TPX_UNTIL(tpx_pair_step(pair), rails_conn_of(pair->ab->conn)->up == 2
                                       && rails_conn_of(pair->ba->conn)->up
                                              == 2);
    rails_of(pair->a->endpoint)->subs[0].env.upcalls = &deaf;
    rails_of(pair->b->endpoint)->subs[0].env.upcalls = &deaf;
}

/* Who gives a rail up says so: what had been sent there by the other side goes
 * again, though nothing stalls there.  The visitor does not call it again. */
static void parts_given_up(struct tpx_pair *pair, struct tpx_link *link,
                           struct tpx_link *other)
{
    struct rails_conn *conn = rails_conn_of(link->conn);
    struct rails_conn *theirs = rails_conn_of(other->conn);
    uint64_t end = link->in.next + 100;

    other->hold = true;
    while (link->in.next < end)
        parts_step(pair, other);
    for (int i = 0; i < 20; i++)
        tpx_send(other);
    rails_lose(conn->rails[1], TP_ERR_PEER_FAILED, "by the test");
    conn->ways[1].retry = 0;
    TPX_UNTIL(parts_look(pair), theirs->rails[1] == NULL);
    theirs->ways[1].retry = 0;
    other->hold = false;
    TPX_UNTIL(parts_look(pair), link->in.next == other->out.next);
}

/* The visitor does, then the host. */
START_TEST(test_given_up)
{
    struct tpx_pair pair;

    if (!parts_possible())
        return;
    parts_open_deaf(&pair);
    tpx_stream_set(pair.ab, pair.ba, 57, tpx_size_small, 0);
    tpx_stream_set(pair.ba, pair.ab, 58, tpx_size_small, 0);
    parts_given_up(&pair, _i == 0 ? pair.ab : pair.ba,
                   _i == 0 ? pair.ba : pair.ab);
    tpx_pair_close(&pair);
}
END_TEST

/* So many frames that something has gone over each rail. */
static void parts_much(struct tpx_pair *pair)
{
    uint64_t end = pair->ba->in.next + 200;

    while (pair->ba->in.next < end)
        parts_step(pair, pair->ab);
}

static void (*parts_below)(struct tpf_conn *conn, size_t size);

/* As if libfabric had no room for it. */
static void parts_later_commit(struct tpf_conn *conn, size_t size)
{
    parts_below(conn, size);
    ofi_conn_is_due(ofi_conn_of(conn));
}

/* Who sleeps, and so has looked everywhere, hears that a thread has left
 * something to do on a rail. */
START_TEST(test_sleeper_is_told)
{
    struct tpf_backend later;
    struct rails_conn *conn;
    struct tpx_pair pair;

    if (!parts_possible())
        return;
    tpx_pair_open(&pair, parts_backend);
    conn = rails_conn_of(pair.ab->conn);
    TPX_UNTIL(tpx_pair_step(&pair), conn->up == 3);
    tpx_stream_set(pair.ab, pair.ba, 65, tpx_size_small, 0);
    later = *conn->rails[0]->conn->backend;
    parts_below = later.commit;
    later.commit = parts_later_commit;
    for (int i = 0; i < 3; i++)
        conn->rails[i]->conn->backend = &later;
    TPX_UNTIL((tpx_side_calm(pair.a, pair.b),
               parts_backend->disarm(pair.a->endpoint)),
              parts_backend->arm(pair.a->endpoint));
    ck_assert(tpb_list_empty(&pair.a->env.ready));
    ck_assert(tpx_send(pair.ab));
    ck_assert(!tpb_list_empty(&pair.a->env.ready));
    parts_backend->disarm(pair.a->endpoint);
    TPX_UNTIL(parts_look(&pair), pair.ba->in.next == pair.ab->out.next);
    tpx_pair_close(&pair);
}
END_TEST

static char parts_hole[PARTS_FRAME];

static void *parts_hole_reserve(struct tpf_conn *conn, size_t size)
{
    (void)conn;
    ck_assert_uint_le(size, sizeof(parts_hole));
    return parts_hole;
}

static void parts_hole_commit(struct tpf_conn *conn, size_t size)
{
    (void)conn;
    (void)size;
}

static bool parts_hole_flushed(struct tpf_conn *conn)
{
    (void)conn;
    return false;
}

/* A rail lets nothing through, and behind the last long frame there are only
 * short ones on it, which nobody need acknowledge: they go again over the other
 * one. */
START_TEST(test_short_ones_stall)
{
    struct tpf_backend hole;
    struct rails_rail *dead;
    struct tpx_pair pair;

    if (!parts_possible())
        return;
    parts_open_deaf(&pair);
    tpx_stream_set(pair.ab, pair.ba, 63, tpx_size_small, 0);
    dead = rails_conn_of(pair.ab->conn)->rails[1];
    rails_conn_of(pair.ab->conn)->big_sent = tpb_now();
    rails_ticks(rails_of(pair.a->endpoint));
    hole = *dead->conn->backend;
    hole.reserve = parts_hole_reserve;
    hole.commit = parts_hole_commit;
    hole.flushed = parts_hole_flushed;
    dead->conn->backend = &hole;
    for (int i = 0; i < 100 && dead->pace.inflight == 0; i++)
        ck_assert(tpx_send(pair.ab));
    ck_assert_uint_gt(dead->pace.inflight, 0);
    /* As if a rail had just got up, of this conn or another. */
    rails_of(pair.a->endpoint)->settled = _i == 1;
    TPX_UNTIL(parts_look(&pair), pair.ba->in.next == pair.ab->out.next);
    tpx_pair_close(&pair);
}
END_TEST

/* A rail that was suspected, and whose frames were then all acknowledged before
 * anybody looked again, is used like before. */
START_TEST(test_suspected_is_well)
{
    struct rails_rail *rail;
    struct tpx_pair pair;
    uint32_t before;

    if (!parts_possible())
        return;
    parts_open_deaf(&pair);
    tpx_stream_set(pair.ab, pair.ba, 64, tpx_size_small, 0);
    rail = rails_conn_of(pair.ab->conn)->rails[1];
    for (int i = 0; i < 100 && rail->pace.inflight == 0; i++)
        ck_assert(tpx_send(pair.ab));
    ck_assert_uint_gt(rail->pace.inflight, 0);
    rail->suspected = tpb_now();
    TPX_UNTIL(parts_look(&pair), pair.ba->in.next == pair.ab->out.next);
    ck_assert(rails_control(rails_conn_of(pair.ba->conn)->rails[1], RAILS_ACK,
                            NULL));
    TPX_UNTIL(parts_look(&pair), rail->pace.inflight == 0);
    before = rail->sent;
    TPX_UNTIL(parts_step(&pair, pair.ab), rail->sent != before);
    tpx_pair_close(&pair);
}
END_TEST

/* What is said of one that has been replaced does not mean the new one. */
START_TEST(test_given_up_before)
{
    struct rails_join join = { .rail = 1 };
    struct rails_conn *ab, *ba;
    struct tpx_pair pair;
    uint16_t turn;

    if (!parts_possible())
        return;
    parts_open_deaf(&pair);
    ab = rails_conn_of(pair.ab->conn);
    ba = rails_conn_of(pair.ba->conn);
    tpx_stream_set(pair.ab, pair.ba, 61, tpx_size_random, 0);
    turn = ab->rails[1]->turn;
    rails_lose(ab->rails[1], TP_ERR_PEER_FAILED, "by the test");
    TPX_UNTIL(parts_look(&pair), ab->up == 2 && ba->up == 2);
    ck_assert_uint_ne(ab->rails[1]->turn, turn);
    ck_assert_uint_eq(ab->rails[1]->turn, ba->rails[1]->turn);
    join.turn = htole16(turn);
    ck_assert(rails_control(ab->rails[0], RAILS_GONE, &join));
    ck_assert(rails_control(ba->rails[0], RAILS_GONE, &join));
    parts_much(&pair);
    ck_assert_uint_eq(ab->up, 2);
    ck_assert_uint_eq(ba->up, 2);
    tpx_pair_close(&pair);
}
END_TEST

/* A peer of an older version takes such a word for a breach of the rules. */
START_TEST(test_old_peer_is_not_told)
{
    struct rails_conn *ab, *ba;
    struct tpx_pair pair;

    if (!parts_possible())
        return;
    parts_open_deaf(&pair);
    ab = rails_conn_of(pair.ab->conn);
    ba = rails_conn_of(pair.ba->conn);
    tpx_stream_set(pair.ab, pair.ba, 62, tpx_size_random, 0);
    ck_assert(ab->tells && ba->tells);
    ab->tells = false;
    rails_lose(ab->rails[1], TP_ERR_PEER_FAILED, "by the test");
    ab->ways[1].retry = 0;
    parts_much(&pair);
    ck_assert_ptr_nonnull(ba->rails[1]);
    tpx_pair_close(&pair);
}
END_TEST

/* Nobody gives up the rail over which he says so, or one that cannot be. */
START_TEST(test_given_up_wrongly)
{
    for (uint8_t place = 0; place <= RAILS_MAX; place += RAILS_MAX) {
        struct rails_join join = { .rail = place, .turn = htole16(1) };
        struct tpx_pair pair;

        if (!parts_possible())
            return;
        parts_open_deaf(&pair);
        ck_assert(rails_control(rails_conn_of(pair.ab->conn)->rails[0],
                                RAILS_GONE, &join));
        TPX_UNTIL(tpx_pair_step(&pair), pair.ba->failed);
        ck_assert_int_eq(pair.ba->status, TP_ERR_PROTOCOL);
        tpx_pair_close(&pair);
    }
}
END_TEST

/* A rail is given up while its socket has just told the same: what epoll has
 * returned together is served in turn, and finds nothing freed.  Who keeps it
 * for later sees by the count that it has changed. */
START_TEST(test_lost_twice)
{
    struct epoll_event events[16];
    struct rails_rail *rail;
    struct tpx_pair pair;
    const struct tpf_watch *life;
    bool told = false;
    uint32_t watches;
    unsigned place;
    int count;

    if (!parts_possible())
        return;
    mallopt(M_PERTURB, 0x5a);      /* what is freed is of no use */
    tpx_pair_open(&pair, parts_backend);
    TPX_UNTIL(tpx_pair_step(&pair),
              rails_conn_of(pair.ab->conn)->up == 3
                  && rails_conn_of(pair.ba->conn)->up == 3);
    tpx_side_calm(pair.a, pair.b);
    rail = parts_a_rail(pair.ba, 0);
    place = rail->place;
    rails_lose(rail, TP_ERR_PEER_FAILED, "by the test");
    life = &ofi_conn_of(rails_conn_of(pair.ab->conn)->rails[place]->conn)->life;
    for (int tries = 0; !told; tries++) {
        ck_assert_int_lt(tries, TPX_DEADLINE_MS);
        count = epoll_wait(pair.a->env.epoll, events, TPB_COUNT(events), 1);
        for (int i = 0; i < count; i++)
            told |= events[i].data.ptr == life;
    }
    watches = pair.a->watches;
    rails_lose(rails_conn_of(pair.ab->conn)->rails[place], TP_ERR_PEER_FAILED,
               "by the test");
    for (int i = 0; i < count; i++) {
        struct tpf_watch *watch = events[i].data.ptr;

        watch->ready(watch, events[i].events);
    }
    tpx_stream_set(pair.ab, pair.ba, 56, tpx_size_random, 0);
    TPX_UNTIL(parts_step(&pair, pair.ab), pair.ba->in.next >= 100);
    ck_assert_uint_ne(pair.a->watches, watches);
    tpx_pair_close(&pair);
}
END_TEST

/* The rails of a conn that is being made, and its peer's strangers, as if they
 * had waited for so long. */
static void parts_wait(struct tpx_pair *pair, uint64_t ns)
{
    struct rails_conn *conn = rails_conn_of(pair->ab->conn);

    for (int i = 0; i < RAILS_MAX; i++)
        if (conn->rails[i] != NULL)
            conn->rails[i]->deadline -= ns;
    TPB_LIST_EACH(node, &rails_of(pair->b->endpoint)->strangers)
        TPB_CONTAINER(node, struct rails_rail, link)->deadline -= ns;
    for (int i = 0; i < 3; i++) {
        rails_tick(rails_of(pair->a->endpoint));
        rails_tick(rails_of(pair->b->endpoint));
    }
}

/* Who is called by rails and does something else is waited for as by any other
 * backend; so is who calls. */
START_TEST(test_busy_while_joining)
{
    struct rails_conn *conn;
    struct tpx_pair pair;
    bool asked = false;

    if (!parts_possible())
        return;
    pair.a = tpx_side_open(parts_backend);
    pair.b = tpx_side_open(parts_backend);
    pair.ab = tpx_connect(pair.a, pair.b->address, pair.b->address_length);
    conn = rails_conn_of(pair.ab->conn);
    while (!asked) {
        tpx_side_step(pair.b);
        tpx_side_step(pair.a);
        for (int i = 0; i < RAILS_MAX; i++)
            asked |= conn->rails[i] != NULL
                     && conn->rails[i]->stage == RAILS_ASKED;
        ck_assert_msg(!pair.ab->failed, "%s", pair.ab->text);
    }
    parts_wait(&pair, 20 * UINT64_C(1000000000));
    TPX_UNTIL(tpx_pair_step(&pair), conn->up == 3 || pair.ab->failed);
    ck_assert_msg(!pair.ab->failed, "%s", pair.ab->text);
    tpx_pair_close(&pair);
}
END_TEST

/* What a conn goes over is told by a rail that is up, not by the first one, as
 * long as that is dialled. */
START_TEST(test_carrier)
{
    struct tpb_error error = { "" };
    struct rails_conn *conn;
    struct tpx_pair pair;
    const char *carrier;

    if (!parts_possible())
        return;
    tpx_pair_open(&pair, parts_backend);
    conn = rails_conn_of(pair.ab->conn);
    TPX_UNTIL(tpx_pair_step(&pair), conn->up == 3);
    carrier = parts_backend->carrier(&conn->common);
    ck_assert_ptr_nonnull(carrier);
    rails_lose(conn->rails[0], TP_ERR_PEER_FAILED, "by the test");
    conn->ways[0].retry = 0;
    ck_assert_msg(rails_dial(conn, 0, &error) == TP_OK, "%s", error.text);
    ck_assert_ptr_nonnull(parts_backend->carrier(&conn->common));
    ck_assert_str_eq(parts_backend->carrier(&conn->common), carrier);
    tpx_pair_close(&pair);
}
END_TEST

/* The last one: the connection ends, on both sides, and says of each how. */
START_TEST(test_all_lost)
{
    static const char *const whys[] = { "by the test", "for fun", "for fun" };
    struct rails_rail **rails;
    struct tpx_pair pair;

    if (!parts_possible())
        return;
    tpx_pair_open(&pair, parts_backend);
    rails = rails_conn_of(pair.ab->conn)->rails;
    TPX_UNTIL(tpx_pair_step(&pair),
              rails_conn_of(pair.ab->conn)->up == 3
                  && rails_conn_of(pair.ba->conn)->up == 3);
    /* What became of one before it came back is of no interest. */
    rails_lose(rails[0], TP_ERR_PEER_FAILED, "before");
    TPX_UNTIL(tpx_pair_step(&pair), rails_conn_of(pair.ab->conn)->up == 3);
    for (int i = 0; i < 3; i++)
        rails_lose(rails[i], TP_ERR_PEER_FAILED, whys[i]);
    TPX_UNTIL(tpx_pair_step(&pair), pair.ab->failed && pair.ba->failed);
    ck_assert_int_eq(pair.ab->status, TP_ERR_PEER_FAILED);
    ck_assert_int_eq(pair.ba->status, TP_ERR_PEER_FAILED);
    ck_assert_str_eq(pair.ab->text, "rails: lo: by the test; lo: for fun");
    ck_assert_msg(strncmp(pair.ba->text, "rails: lo: ", 11) == 0, "%s",
                  pair.ba->text);
    tpx_pair_close(&pair);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parts of rails");
    TCase *tests = tcase_create("parts");

    setenv("TP_RAILS", "3", 1);
    setenv("TP_IFACE", "lo", 1);
    parts_backend = tpf_backend_find("rails");
    tcase_set_timeout(tests, 180);
    tcase_add_test(tests, test_learns);
    tcase_add_test(tests, test_learns_to_wait);
    tcase_add_test(tests, test_learns_again);
    tcase_add_test(tests, test_small_go_where_it_is_empty);
    tcase_add_test(tests, test_damage);
    tcase_add_test(tests, test_lost_and_back);
    tcase_add_test(tests, test_lent_and_lost);
    tcase_add_test(tests, test_peer_computes);
    tcase_add_test(tests, test_peer_computes_short);
    tcase_add_loop_test(tests, test_short_ones_stall, 0, 2);
    tcase_add_test(tests, test_suspected_is_well);
    tcase_add_test(tests, test_both_cut_off);
    tcase_add_loop_test(tests, test_given_up, 0, 2);
    tcase_add_test(tests, test_given_up_before);
    tcase_add_test(tests, test_old_peer_is_not_told);
    tcase_add_test(tests, test_given_up_wrongly);
    tcase_add_test(tests, test_lost_twice);
    tcase_add_test(tests, test_busy_while_joining);
    tcase_add_test(tests, test_carrier);
    tcase_add_test(tests, test_sleeper_is_told);
    tcase_add_test(tests, test_all_lost);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
