/* SPDX-License-Identifier: BSD-3-Clause */
/* Addresses that are none, endpoints that are gone, strangers who call, and
 * a process that has no descriptors left. */
#include "config.h"

#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/base/io.h"
#include "tests/conformance/suite.h"

enum { STRANGERS_PIECES = 32, STRANGERS_PIECE = 1 << 20 };

/* Connects to `address`, gives it a moment, and takes back whatever came of
 * it.  What matters is that the endpoint lives on. */
static void strangers_try(struct tpx_side *side, const void *address,
                          size_t length)
{
    struct tpb_error error = { "" };
    struct tpx_link *link;
    tp_status status;

    link = tpx_connect_try(side, address, length, &status, &error);
    if (status == TP_OK) {
        for (int i = 0; i < 3; i++)
            tpx_side_step(side);
        tpx_disconnect(link);
    }
    tpx_side_step(side);
}

START_TEST(test_garbage_address)
{
    struct tpx_pair pair;
    uint8_t bytes[TPT_ADDRESS];

    tpx_pair_open(&pair, tpx_backend);
    for (size_t length = 0; length <= sizeof(bytes); length++) {
        for (size_t i = 0; i < sizeof(bytes); i++)
            bytes[i] = (uint8_t)tpx_mix(length * sizeof(bytes) + i);
        strangers_try(pair.a, bytes, length);
        memset(bytes, length % 2 == 0 ? 0 : 0xff, sizeof(bytes));
        strangers_try(pair.a, bytes, length);
    }
    /* Shortened, and with every byte changed in turn. */
    for (size_t length = 0; length < pair.b->address_length; length++)
        strangers_try(pair.a, pair.b->address, length);
    for (size_t i = 0; i < pair.b->address_length; i++) {
        memcpy(bytes, pair.b->address, pair.b->address_length);
        bytes[i] ^= (uint8_t)(1u << (i % 8));
        strangers_try(pair.a, bytes, pair.b->address_length);
        bytes[i] = 0xff;
        strangers_try(pair.a, bytes, pair.b->address_length);
    }
    tpx_stream_set(pair.ab, pair.ba, 40, tpx_size_random, 0);
    for (int i = 0; i < 100; i++)
        TPX_UNTIL(tpx_pair_step(&pair), tpx_send(pair.ab));
    TPX_UNTIL(tpx_pair_step(&pair), pair.ba->in.next == 100);
    tpx_pair_close(&pair);
}
END_TEST

START_TEST(test_connect_to_closed)
{
    struct tpx_side *a = tpx_side_open(tpx_backend);
    struct tpx_side *b = tpx_side_open(tpx_backend);
    struct tpb_error error = { "" };
    uint8_t address[TPT_ADDRESS];
    size_t length = b->address_length;
    struct tpx_link *link;
    tp_status status;

    memcpy(address, b->address, length);
    tpx_side_close(b);
    link = tpx_connect_try(a, address, length, &status, &error);
    if (status == TP_OK) {
        TPX_UNTIL(tpx_side_sleep(a, 100), link->failed);
        status = link->status;
        ck_assert(!link->connected);
    }
    ck_assert_msg(status == TP_ERR_UNREACHABLE, "%s: %s%s",
                  tp_strerror(status), error.text, link->text);
    tpx_side_close(a);
}
END_TEST

/* Closed while the connection is being made. */
START_TEST(test_closed_meanwhile)
{
    for (int steps = 0; steps < 30; steps++) {
        struct tpx_side *a = tpx_side_open(tpx_backend);
        struct tpx_side *b = tpx_side_open(tpx_backend);
        struct tpx_link *link = tpx_connect(a, b->address, b->address_length);

        for (int i = 0; i < steps; i++) {
            tpx_side_step(b);
            tpx_side_step(a);
        }
        tpx_side_close(b);
        TPX_UNTIL(tpx_side_sleep(a, 100), link->failed);
        ck_assert(link->status == TP_ERR_PEER_FAILED
                  || link->status == TP_ERR_UNREACHABLE);
        tpx_side_close(a);
    }
}
END_TEST

/* What was mapped before is gone: nothing else comes to lie in its place that
 * would hide a look at it. */
static void strangers_fill(void *pieces[STRANGERS_PIECES], bool fill)
{
    for (int i = 0; i < STRANGERS_PIECES; i++)
        if (fill)
            pieces[i] = mmap(NULL, STRANGERS_PIECE, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        else
            munmap(pieces[i], STRANGERS_PIECE);
}

/* The caller leaves while it waits for its answer; whoever is called looks
 * only then, and lives on. */
START_TEST(test_left_meanwhile)
{
    struct tpx_pair pair;
    void *pieces[STRANGERS_PIECES];

    tpx_pair_open(&pair, tpx_backend);
    for (int steps = 0; steps < 30; steps++) {
        struct tpx_link *link = tpx_connect(pair.a, pair.b->address,
                                            pair.b->address_length);

        for (int i = 0; i < steps; i++)
            tpx_side_step(pair.a);
        tpx_disconnect(link);
        strangers_fill(pieces, true);
        for (int i = 0; i < 5; i++) {
            tpx_side_step(pair.b);
            tpx_side_step(pair.a);
        }
        strangers_fill(pieces, false);
    }
    tpx_stream_set(pair.ab, pair.ba, 45, tpx_size_random, 0);
    for (int i = 0; i < 100; i++)
        TPX_UNTIL(tpx_pair_step(&pair), tpx_send(pair.ab));
    TPX_UNTIL(tpx_pair_step(&pair), pair.ba->in.next == 100);
    tpx_pair_close(&pair);
}
END_TEST

enum { STRANGERS_SOCKETS = 16 };

/* One stranger: connects, writes `length` bytes, and maybe lingers. */
static int stranger_call(const struct sockaddr_storage *socket_address,
                         const void *bytes, size_t length)
{
    int fd = socket(socket_address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    if (connect(fd, (const struct sockaddr *)socket_address,
                socket_address->ss_family == AF_INET6
                    ? sizeof(struct sockaddr_in6)
                    : sizeof(struct sockaddr_in)) < 0)
        tpb_close(&fd);
    else if (length > 0 && send(fd, bytes, length, MSG_NOSIGNAL) < 0)
        tpb_close(&fd);
    return fd;
}

/* Strangers at the door, silent or babbling, and one connection that was
 * there before; afterwards honest ones get in. */
START_TEST(test_strangers_at_the_door)
{
    struct sockaddr_storage sockets[STRANGERS_SOCKETS];
    struct tpx_pair pair;
    struct tpx_link *again;
    uint8_t bytes[4096];
    int held[64], count, before;

    tpx_pair_open(&pair, tpx_backend);
    before = tpx_fd_count();
    count = tpx_target->listening(pair.b->address, pair.b->address_length,
                                  sockets, STRANGERS_SOCKETS);
    ck_assert_int_gt(count, 0);
    for (int i = 0; i < 64; i++) {
        size_t length = (size_t)(tpx_mix((uint64_t)i) % sizeof(bytes));

        for (size_t k = 0; k < sizeof(bytes); k++)
            bytes[k] = i % 3 == 0 ? 0 : (uint8_t)tpx_mix(k + (size_t)i);
        held[i] = stranger_call(&sockets[i % count], bytes,
                                i % 4 == 0 ? 0 : length);
        tpx_side_step(pair.b);
        if (i % 2 == 0)
            tpb_close(&held[i]);
    }
    for (int i = 0; i < 200; i++)
        tpx_side_step(pair.b);
    again = tpx_connect(pair.a, pair.b->address, pair.b->address_length);
    TPX_UNTIL(tpx_pair_step(&pair), again->connected || again->failed);
    ck_assert_msg(again->connected, "%s", again->text);
    TPX_UNTIL(tpx_pair_step(&pair), pair.b->incoming == 2);
    tpx_stream_set(pair.ab, pair.ba, 41, tpx_size_random, 0);
    for (int i = 0; i < 100; i++)
        TPX_UNTIL(tpx_pair_step(&pair), tpx_send(pair.ab));
    TPX_UNTIL(tpx_pair_step(&pair), pair.ba->in.next == 100);
    ck_assert_uint_eq(pair.b->incoming, 2);
    tpx_disconnect(again);
    for (int i = 0; i < 64; i++)
        tpb_close(&held[i]);
    TPX_UNTIL(tpx_pair_step(&pair), tpx_incoming(pair.b, 1)->failed);
    tpx_disconnect(tpx_incoming(pair.b, 1));
    TPX_FDS_BACK(tpx_pair_step(&pair), before);
    tpx_pair_close(&pair);
}
END_TEST

struct strangers {
    int held[STRANGERS_SOCKETS];
    struct sockaddr_storage called[STRANGERS_SOCKETS];
    int count;
};

static bool strangers_called(const struct strangers *strangers,
                             const struct sockaddr_storage *address)
{
    for (int i = 0; i < strangers->count; i++)
        if (memcmp(&strangers->called[i], address, sizeof(*address)) == 0)
            return true;
    return false;
}

/* One at every port of this process, who says nothing. */
static void strangers_everywhere(struct strangers *strangers)
{
    for (int fd = 0; fd < 1024 && strangers->count < STRANGERS_SOCKETS; fd++) {
        struct sockaddr_storage address;
        socklen_t length = sizeof(int);
        int listens = 0;

        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) < 0
            || !listens)
            continue;
        memset(&address, 0, sizeof(address));
        length = sizeof(address);
        if (getsockname(fd, (struct sockaddr *)&address, &length) < 0
            || (address.ss_family != AF_INET && address.ss_family != AF_INET6)
            || strangers_called(strangers, &address))
            continue;
        strangers->called[strangers->count] = address;
        strangers->held[strangers->count++] = stranger_call(&address, NULL, 0);
    }
}

/* Those who call while a pair is joining, and say something when that is over:
 * by then libfabric may have freed what would listen.  They talk as its `net`
 * does.  Memory that was freed is filled, so that this is not by luck. */
START_TEST(test_strangers_with_patience)
{
    static const uint8_t request[32] = { 3 /* version */, 0 /* "connect" */ };
    struct strangers strangers = { .count = 0 };
    struct tpx_pair pair;
    struct tpx_link *again;

    mallopt(M_PERTURB, 0xa5);
    tpx_pair_open(&pair, tpx_backend);
    again = tpx_connect(pair.a, pair.b->address, pair.b->address_length);
    TPX_UNTIL((tpx_pair_step(&pair), strangers_everywhere(&strangers)),
              again->connected || again->failed);
    ck_assert_msg(again->connected, "%s", again->text);
    ck_assert_int_gt(strangers.count, 0);
    for (int i = 0; i < 300; i++)
        tpx_pair_step(&pair);
    for (int i = 0; i < strangers.count; i++)
        if (strangers.held[i] >= 0)
            (void)!send(strangers.held[i], request, sizeof(request),
                        MSG_NOSIGNAL);
    tpx_stream_set(pair.ab, pair.ba, 43, tpx_size_random, 0);
    for (int i = 0; i < 100; i++)
        TPX_UNTIL(tpx_pair_step(&pair), tpx_send(pair.ab));
    TPX_UNTIL(tpx_pair_step(&pair), pair.ba->in.next == 100);
    for (int i = 0; i < 300; i++)
        tpx_pair_step(&pair);
    tpx_disconnect(again);
    for (int i = 0; i < strangers.count; i++)
        tpb_close(&strangers.held[i]);
    tpx_pair_close(&pair);
}
END_TEST

/* `spare` descriptors more than are open now. */
static void strangers_limit(int spare)
{
    struct rlimit limit;

    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (spare < 0) {
        limit.rlim_cur = limit.rlim_max;
    } else {
        int fd = 0;

        for (; spare >= 0; fd++)
            if (fcntl(fd, F_GETFD) < 0)
                spare--;
        limit.rlim_cur = (rlim_t)fd - 1;
    }
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Opens and connects with hardly a descriptor left: an error in words or
 * success, nothing left open, and all is well when there are some again. */
START_TEST(test_no_descriptors)
{
    int before;

    for (int warm = 0; warm < 2; warm++) {
        struct tpx_pair pair;

        tpx_pair_open(&pair, tpx_backend);
        tpx_pair_close(&pair);
    }
    before = tpx_fd_count();
    for (int spare = 0; spare < 40; spare++) {
        struct tpb_error error = { "" };
        struct tpx_side *a, *b = NULL;
        struct tpx_link *link;
        tp_status status = TP_OK;

        strangers_limit(spare);
        a = tpx_side_try(tpx_backend, &error);
        if (a == NULL)
            ck_assert_str_ne(error.text, "");
        else
            b = tpx_side_try(tpx_backend, &error);
        if (b != NULL) {
            struct tpx_side *to = tpx_backend->flags & TPF_SELF ? a : b;

            link = tpx_connect_try(a, to->address, to->address_length,
                                   &status, &error);
            for (int i = 0; i < 300 && status == TP_OK && !link->failed
                            && !link->connected; i++) {
                tpx_side_sleep(a, 1);
                tpx_side_step(b);
            }
        }
        strangers_limit(-1);
        tpx_side_close(a);
        tpx_side_close(b);
        ck_assert_int_le(tpx_fd_count(), before);
    }
    {
        struct tpx_pair pair;

        tpx_pair_open(&pair, tpx_backend);
        tpx_stream_set(pair.ab, pair.ba, 42, tpx_size_random, 0);
        TPX_UNTIL(tpx_pair_step(&pair), tpx_send(pair.ab));
        TPX_UNTIL(tpx_pair_step(&pair), pair.ba->in.next == 1);
        tpx_pair_close(&pair);
    }
}
END_TEST

/* Callers who cannot be let in wake nobody for ever, and what comes meanwhile
 * does. */
START_TEST(test_no_descriptors_for_callers)
{
    struct strangers strangers = { .count = 0 };
    uint64_t until;
    struct tpx_pair pair;
    unsigned wakes = 0;

    tpx_pair_open(&pair, tpx_backend);
    strangers_everywhere(&strangers);
    strangers_limit(0);
    for (until = tpb_now() + 200000000; tpb_now() < until; wakes++)
        tpx_side_sleep(pair.b, 20);
    ck_assert_uint_lt(wakes, 200);
    tpx_stream_set(pair.ab, pair.ba, 44, tpx_size_random, 0);
    for (uint64_t i = 1; i <= 100; i++) {
        TPX_UNTIL(tpx_side_step(pair.a), tpx_send(pair.ab));
        TPX_UNTIL((tpx_side_step(pair.a), tpx_side_sleep(pair.b, 1000)),
                  pair.ba->in.next == i);
    }
    strangers_limit(-1);
    for (int i = 0; i < strangers.count; i++)
        tpb_close(&strangers.held[i]);
    tpx_pair_close(&pair);
}
END_TEST

void tpx_add_stranger_tests(Suite *suite)
{
    TCase *tests = tpx_tcase(suite, "strangers");

    tcase_add_test(tests, test_garbage_address);
    tcase_add_test(tests, test_no_descriptors);
    if (tpx_backend->flags & TPF_SELF)
        return;
    tcase_add_test(tests, test_no_descriptors_for_callers);
    tcase_add_test(tests, test_connect_to_closed);
    tcase_add_test(tests, test_closed_meanwhile);
    tcase_add_test(tests, test_left_meanwhile);
    if (tpx_target->listening != NULL) {
        tcase_add_test(tests, test_strangers_at_the_door);
        tcase_add_test(tests, test_strangers_with_patience);
    }
}
