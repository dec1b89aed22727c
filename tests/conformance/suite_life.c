/* SPDX-License-Identifier: BSD-3-Clause */
/* Two processes: sleeping and waking, leaving, dying. */
#include "config.h"

#include <stdlib.h>
#include <unistd.h>

#include "tests/conformance/suite.h"

/* ---- helpers ----------------------------------------------------------- */

/* The one stream of these tests. */
typedef size_t life_size(const struct tpx_stream *stream, size_t max_frame);

static struct tpx_stream life_stream(life_size *size)
{
    return (struct tpx_stream){ .seed = 20, .size = size, .fixed = 8 };
}

/* Who is not woken sleeps beyond the deadline. */
enum { LIFE_LONG_MS = TPX_DEADLINE_MS + 1000 };

/* In the child: opens, tells its address, sleeps until its visitor is there. */
static struct tpx_side *life_receive(int control, life_size *size,
                                     struct tpx_link **link)
{
    struct tpx_side *side = tpx_side_open(tpx_backend);

    tpx_tell(control, side->address, side->address_length);
    side->expect = life_stream(size);
    TPX_UNTIL(tpx_side_sleep(side, LIFE_LONG_MS), side->incoming == 1);
    *link = tpx_incoming(side, 0);
    return side;
}

/* In the parent: opens and connects to the child. */
static struct tpx_side *life_visit(struct tpx_child *child, life_size *size,
                                   struct tpx_link **link)
{
    uint8_t address[TPT_ADDRESS];
    size_t length = tpx_hear(child->control, address, sizeof(address));
    struct tpx_side *side = tpx_side_open(tpx_backend);

    *link = tpx_connect(side, address, length);
    (*link)->in = (*link)->out = life_stream(size);
    TPX_UNTIL(tpx_side_sleep(side, 100),
              (*link)->connected || (*link)->failed);
    ck_assert_msg((*link)->connected, "%s", (*link)->text);
    return side;
}

/* Why a write fails whose peer is dead is the death. */
static void life_describes(struct tpx_link *link)
{
    static unsigned char memory[1 << 20];
    struct tpf_buffer buffer = { .data = memory, .length = sizeof(memory) };
    struct tpf_link over = { .kind = tpx_target->channel, .conn = link->conn };
    unsigned char source[TPF_SOURCE];
    void *hold = NULL;

    ck_assert_uint_gt(over.kind->describe(&over, &buffer, source, &hold), 0);
    over.kind->forget(&over, hold);
}

static void life_expect_failure(struct tpx_link *link)
{
    ck_assert_msg(link->status == TP_ERR_PEER_FAILED, "%s: %s",
                  tp_strerror(link->status), link->text);
    if (tpx_target->channel != NULL && link->connected)
        life_describes(link);
}

static void life_kill(struct tpx_child *child, bool between)
{
    pid_t pid = child->pid;

    tpx_child_kill(child, between);
    if (tpx_target->left_behind != NULL)
        ck_assert_int_eq(tpx_target->left_behind(pid), 0);
}

/* ---- sleeping ---------------------------------------------------------- */

/* Where nothing wakes who sleeps each takes a look's time. */
static uint64_t life_turns(void)
{
    return tpx_few(tpx_backend->flags & TPF_POLLED ? 1000 : 10000);
}

static void life_wait_frame(struct tpx_side *side, struct tpx_link *link,
                            uint64_t frame)
{
    TPX_UNTIL(tpx_side_sleep(side, LIFE_LONG_MS),
              link->in.next > frame || link->failed);
    ck_assert_msg(!link->failed, "%s", link->text);
}

static void life_pong(int control, void *arg)
{
    struct tpx_link *link;
    struct tpx_side *side = life_receive(control, tpx_size_fixed, &link);

    (void)arg;
    tpx_tell(control, "s", 1);
    for (uint64_t turn = 0; turn < life_turns(); turn++) {
        life_wait_frame(side, link, turn);
        TPX_UNTIL(tpx_side_sleep(side, 100), tpx_send(link));
    }
    TPX_UNTIL(tpx_side_sleep(side, 100), link->failed);
    life_expect_failure(link);
    tpx_side_close(side);
}

static void life_host(int control, void *arg)
{
    struct tpx_link *link;
    struct tpx_side *side = life_receive(control, tpx_size_fixed, &link);

    (void)arg;
    tpx_tell(control, "s", 1);
    TPX_UNTIL(tpx_side_sleep(side, 100), link->failed);
    life_expect_failure(link);
    tpx_side_close(side);
}

/* Nothing but the visitor wakes who sleeps, not even a look at whether it is
 * still there. */
START_TEST(test_sleeping_host)
{
    struct tpx_child child;
    struct tpx_link *link;
    struct tpx_side *side;
    char word[8];

    setenv("TP_HEARTBEAT", "0", 1);
    tpx_child_start(&child, life_host, NULL);
    side = life_visit(&child, tpx_size_fixed, &link);
    TPX_UNTIL(tpx_side_sleep(side, 100), tpx_told(child.control));
    tpx_hear(child.control, word, sizeof(word));
    tpx_side_close(side);
    tpx_child_end(&child);
}
END_TEST

/* A lost wake-up would cost the deadline. */
START_TEST(test_sleeping_ping_pong)
{
    struct tpx_child child;
    struct tpx_link *link;
    struct tpx_side *side;
    char word[8];

    tpx_child_start(&child, life_pong, NULL);
    side = life_visit(&child, tpx_size_fixed, &link);
    tpx_hear(child.control, word, sizeof(word));
    for (uint64_t turn = 0; turn < life_turns(); turn++) {
        TPX_UNTIL(tpx_side_sleep(side, 100), tpx_send(link));
        life_wait_frame(side, link, turn);
    }
    tpx_side_close(side);
    tpx_child_end(&child);
}
END_TEST

/* Each frame has the deadline: a busy machine may take longer for all of
 * them. */
static void life_reader(int control, void *arg)
{
    struct tpx_link *link;
    struct tpx_side *side = life_receive(control, tpx_size_random, &link);
    uint64_t frames = *(const uint64_t *)arg;

    tpx_tell(control, "s", 1);
    for (uint64_t frame = 0; frame < frames; frame++)
        life_wait_frame(side, link, frame);
    tpx_tell(control, "e", 1);
    TPX_UNTIL(tpx_side_sleep(side, 100), link->failed);
    life_expect_failure(link);
    tpx_side_close(side);
}

/* The sender sleeps whenever it is told to come again. */
START_TEST(test_sleeping_stream)
{
    uint64_t frames = tpx_few(20000);
    struct tpx_child child;
    struct tpx_link *link;
    struct tpx_side *side;
    char word[8];

    tpx_child_start(&child, life_reader, &frames);
    side = life_visit(&child, tpx_size_random, &link);
    tpx_hear(child.control, word, sizeof(word));
    while (link->out.next < frames) {
        unsigned writable = link->writable;

        if (!tpx_send(link))
            TPX_UNTIL(tpx_side_sleep(side, LIFE_LONG_MS),
                      link->writable > writable || link->failed);
        ck_assert_msg(!link->failed, "%s", link->text);
    }
    TPX_UNTIL(tpx_side_sleep(side, 100), tpx_told(child.control));
    tpx_hear(child.control, word, sizeof(word));
    tpx_side_close(side);
    tpx_child_end(&child);
}
END_TEST

/* ---- leaving ----------------------------------------------------------- */

/* Frames that fill whatever can be filled, then disconnect. */
START_TEST(test_disconnect_delivers)
{
    for (int turn = 0; turn < 20; turn++) {
        struct tpx_pair pair;
        uint64_t count;

        tpx_pair_open(&pair, tpx_backend);
        tpx_stream_set(pair.ab, pair.ba, 30 + (uint64_t)turn,
                       tpx_size_random, 0);
        for (int i = 0; i < turn * 10; i++)
            if (!tpx_send(pair.ab))
                tpx_pair_step(&pair);
        count = pair.ab->out.next;
        pair.ba->hold = turn % 2 == 1;
        TPX_UNTIL(tpx_pair_step(&pair),
                  tpx_backend->flushed(pair.ab->conn)
                      || (pair.ba->hold = false));
        tpx_disconnect(pair.ab);
        for (int i = 0; i < 100; i++)
            tpx_pair_step(&pair);
        pair.ba->hold = false;
        TPX_UNTIL(tpx_pair_step(&pair), pair.ba->failed);
        life_expect_failure(pair.ba);
        ck_assert_uint_eq(pair.ba->in.next, count);
        tpx_pair_close(&pair);
    }
}
END_TEST

/* Room that was asked for is given up, frames under way are dropped: the
 * other side sees an unbroken beginning of the stream, then the end. */
START_TEST(test_disconnect_at_once)
{
    for (int turn = 0; turn < 30; turn++) {
        struct tpx_pair pair;

        tpx_pair_open(&pair, tpx_backend);
        tpx_stream_set(pair.ab, pair.ba, 60 + (uint64_t)turn,
                       tpx_size_random, 0);
        tpx_stream_set(pair.ba, pair.ab, 60 + (uint64_t)turn,
                       tpx_size_random, 0);
        for (int i = 0; i < turn * 20; i++) {
            tpx_send(pair.ab);
            tpx_send(pair.ba);
            if (i % 8 == 0)
                tpx_pair_step(&pair);
        }
        tpx_backend->reserve(pair.ab->conn, 100);
        tpx_disconnect(turn % 2 == 0 ? pair.ab : pair.ba);
        if (turn % 2 == 0) {
            TPX_UNTIL(tpx_pair_step(&pair), pair.ba->failed);
            life_expect_failure(pair.ba);
        } else {
            TPX_UNTIL(tpx_pair_step(&pair), pair.ab->failed);
            life_expect_failure(pair.ab);
        }
        tpx_pair_close(&pair);
    }
}
END_TEST

/* Libraries that are loaded at first contact are there after this. */
static void life_warm(void)
{
    struct tpx_pair pair;

    tpx_pair_open(&pair, tpx_backend);
    tpx_pair_close(&pair);
}

/* disconnect() before connected, at every stage of the way. */
START_TEST(test_disconnect_early)
{
    struct tpx_side *target, *side;

    life_warm();
    target = tpx_side_open(tpx_backend);
    side = tpx_side_open(tpx_backend);
    for (int steps = 0; steps < 120; steps++) {
        struct tpx_link *link = tpx_connect(side, target->address,
                                            target->address_length);

        for (int i = 0; i < steps; i++) {
            tpx_side_step(side);
            if (i % 3 != 0)
                tpx_side_step(target);
        }
        tpx_disconnect(link);
        tpx_side_step(target);
    }
    tpx_side_calm(target, side);
    tpx_side_calm(side, target);
    tpx_side_close(side);
    tpx_side_close(target);
}
END_TEST

/* ---- dying ------------------------------------------------------------- */

enum { LIFE_FRAMES = 40 };

/* What has been flushed arrives, although the process ends without a word. */
static void life_write_and_exit(int control, void *arg)
{
    struct tpx_link *link;
    struct tpx_side *side = life_receive(control, tpx_size_random, &link);

    (void)arg;
    while (link->out.next < LIFE_FRAMES)
        if (!tpx_send(link))
            tpx_side_sleep(side, 10);
    TPX_UNTIL(tpx_side_sleep(side, 10), tpx_backend->flushed(link->conn));
    _exit(0);
}

START_TEST(test_exit_delivers)
{
    struct tpx_child child;
    struct tpx_link *link;
    struct tpx_side *side;

    tpx_child_start(&child, life_write_and_exit, NULL);
    side = life_visit(&child, tpx_size_random, &link);
    TPX_UNTIL(tpx_side_sleep(side, 100), link->failed);
    life_expect_failure(link);
    ck_assert_uint_eq(link->in.next, LIFE_FRAMES);
    tpx_side_close(side);
    tpx_child_end(&child);
}
END_TEST

/* Tells when LIFE_FRAMES are flushed, then goes on until killed. */
static void life_write_until_killed(int control, void *arg)
{
    struct tpx_link *link;
    struct tpx_side *side = life_receive(control, tpx_size_random, &link);
    bool told = false;

    (void)arg;
    while (link->out.next < LIFE_FRAMES)
        if (!tpx_send(link))
            tpx_side_sleep(side, 10);
    for (;;) {
        if (!told && tpx_backend->flushed(link->conn)) {
            tpx_tell(control, "f", 1);
            told = true;
        }
        if (!told || !tpx_send(link))
            tpx_side_step(side);
    }
}

START_TEST(test_killed_writer)
{
    struct tpx_child child;
    struct tpx_link *link;
    struct tpx_side *side;
    char word[8];

    tpx_child_start(&child, life_write_until_killed, NULL);
    side = life_visit(&child, tpx_size_random, &link);
    TPX_UNTIL(tpx_side_sleep(side, 10), tpx_told(child.control));
    tpx_hear(child.control, word, sizeof(word));
    for (int i = 0; i < 20; i++)
        tpx_side_step(side);
    life_kill(&child, tpx_target->locks);
    TPX_UNTIL(tpx_side_sleep(side, 100), link->failed);
    life_expect_failure(link);
    ck_assert_uint_ge(link->in.next, LIFE_FRAMES);
    tpx_side_close(side);
}
END_TEST

static void life_read_until_killed(int control, void *arg)
{
    struct tpx_link *link;
    struct tpx_side *side = life_receive(control, tpx_size_random, &link);

    link->hold = *(const bool *)arg;
    tpx_tell(control, "s", 1);
    for (;;)
        tpx_side_sleep(side, 100);
}

/* The reader dies while the writer has filled everything up and waits, or
 * is in the middle of writing. */
static void life_killed_reader(bool hold)
{
    struct tpx_child child;
    struct tpx_link *link;
    struct tpx_side *side;
    char word[8];
    int quiet = 0;

    tpx_child_start(&child, life_read_until_killed, &hold);
    side = life_visit(&child, tpx_size_random, &link);
    tpx_hear(child.control, word, sizeof(word));
    while (quiet < 200 && link->out.next < 5000) {
        quiet = tpx_send(link) ? 0 : quiet + 1;
        if (quiet > 0)
            tpx_side_step(side);
    }
    life_kill(&child, tpx_target->locks);
    TPX_UNTIL(tpx_side_sleep(side, 100), link->failed);
    life_expect_failure(link);
    ck_assert(!tpx_send(link));
    tpx_side_close(side);
}

START_TEST(test_killed_reader)
{
    life_killed_reader(false);
}
END_TEST

START_TEST(test_killed_while_full)
{
    life_killed_reader(true);
}
END_TEST

/* One death leaves the other conns of the endpoint alone. */
START_TEST(test_others_live_on)
{
    struct tpx_side *other = NULL;
    struct tpx_child child;
    struct tpx_link *link, *live;
    struct tpx_side *side;
    bool hold = false;
    char word[8];

    tpx_child_start(&child, life_read_until_killed, &hold);
    side = life_visit(&child, tpx_size_random, &link);
    other = tpx_side_open(tpx_backend);
    other->expect.seed = 20;
    live = tpx_connect(side, other->address, other->address_length);
    live->in = live->out = life_stream(tpx_size_random);
    tpx_hear(child.control, word, sizeof(word));
    life_kill(&child, tpx_target->locks);
    while (live->out.next < 3000 || !link->failed
           || tpx_incoming(other, 0) == NULL
           || tpx_incoming(other, 0)->in.next < 3000) {
        ck_assert_msg(!live->failed, "%s", live->text);
        if (live->connected && live->out.next < 3000)
            tpx_send(live);
        tpx_side_step(side);
        tpx_side_step(other);
    }
    life_expect_failure(link);
    tpx_side_close(other);
    tpx_side_close(side);
}
END_TEST

static void life_die_early(int control, void *arg)
{
    struct tpx_side *side = tpx_side_open(tpx_backend);

    (void)arg;
    tpx_tell(control, side->address, side->address_length);
    for (;;)
        pause();                   /* never drives its endpoint */
}

/* Killed before it ever answered. */
START_TEST(test_killed_before_connected)
{
    struct tpx_child child;
    struct tpx_side *side = tpx_side_open(tpx_backend);
    uint8_t address[TPT_ADDRESS];
    struct tpx_link *link;
    size_t length;

    tpx_child_start(&child, life_die_early, NULL);
    length = tpx_hear(child.control, address, sizeof(address));
    link = tpx_connect(side, address, length);
    for (int i = 0; i < 200; i++)
        tpx_side_sleep(side, 1);
    ck_assert(!link->connected);
    life_kill(&child, false);
    TPX_UNTIL(tpx_side_sleep(side, 100), link->failed);
    ck_assert(link->status == TP_ERR_PEER_FAILED
              || link->status == TP_ERR_UNREACHABLE);
    tpx_side_close(side);
}
END_TEST

/* Descriptors do not grow, however often one comes and goes. */
START_TEST(test_cycles)
{
    struct tpx_side *a = tpx_side_open(tpx_backend);
    struct tpx_side *b = tpx_backend->flags & TPF_SELF
                             ? a : tpx_side_open(tpx_backend);
    int before = 0, cycles = (int)tpx_few(210) + 10;

    for (int i = 0; i < cycles; i++) {
        struct tpx_link *link = tpx_connect(a, b->address, b->address_length);
        struct tpx_link *back;

        TPX_UNTIL((tpx_side_step(a), tpx_side_step(b)),
                  link->connected && (a == b || tpx_incoming(b, (unsigned)i)));
        ck_assert_msg(!link->failed, "%s", link->text);
        back = a == b ? link : tpx_incoming(b, (unsigned)i);
        tpx_stream_set(link, back, (uint64_t)i, tpx_size_random, 0);
        TPX_UNTIL((tpx_side_step(a), tpx_side_step(b)), tpx_send(link));
        TPX_UNTIL((tpx_side_step(a), tpx_side_step(b)), back->in.next == 1);
        tpx_disconnect(link);
        if (a != b) {
            TPX_UNTIL((tpx_side_step(a), tpx_side_step(b)), back->failed);
            life_expect_failure(back);
            tpx_disconnect(back);
        }
        for (int k = 0; k < 5; k++) {
            tpx_side_step(a);
            tpx_side_step(b);
        }
        if (i == 9)
            before = tpx_fd_count();
        if (i >= 9)
            TPX_FDS_BACK((tpx_side_step(a), tpx_side_step(b)), before);
    }
    if (a != b)
        tpx_side_close(b);
    tpx_side_close(a);
}
END_TEST

void tpx_add_life_tests(Suite *suite)
{
    TCase *tests = tpx_tcase(suite, "life");

    tcase_add_test(tests, test_cycles);
    if (tpx_backend->flags & TPF_SELF)
        return;                    /* there is no other process */
    tcase_add_test(tests, test_sleeping_host);
    tcase_add_test(tests, test_sleeping_ping_pong);
    tcase_add_test(tests, test_sleeping_stream);
    tcase_add_test(tests, test_disconnect_delivers);
    tcase_add_test(tests, test_disconnect_at_once);
    tcase_add_test(tests, test_disconnect_early);
    tcase_add_test(tests, test_exit_delivers);
    tcase_add_test(tests, test_killed_writer);
    tcase_add_test(tests, test_killed_reader);
    tcase_add_test(tests, test_killed_while_full);
    tcase_add_test(tests, test_others_live_on);
    tcase_add_test(tests, test_killed_before_connected);
}
