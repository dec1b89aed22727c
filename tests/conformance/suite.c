/* SPDX-License-Identifier: BSD-3-Clause */
/* Which tests a target gets, and the tests of an endpoint without conns. */
#include "config.h"

#include <stdio.h>
#include <poll.h>

#include "runtime/base/alloc.h"
#include "tests/conformance/suite.h"

enum { SUITE_SECONDS = 180 };

const struct tpx_target *tpx_target;
const struct tpf_backend *tpx_backend;

TCase *tpx_tcase(Suite *suite, const char *name)
{
    TCase *tests = tcase_create(name);

    tcase_set_timeout(tests, SUITE_SECONDS);
    suite_add_tcase(suite, tests);
    return tests;
}

START_TEST(test_description)
{
    ck_assert_ptr_eq(tpf_backend_find(tpx_target->name), tpx_backend);
    ck_assert_uint_lt(strlen(tpx_backend->name), TPT_NAME);
    ck_assert_uint_ge(tpx_backend->endpoint_size,
                      sizeof(struct tpf_endpoint));
    ck_assert_uint_ge(tpx_backend->conn_size, sizeof(struct tpf_conn));
    ck_assert_uint_gt(tpx_backend->latency_ns, 0);
    ck_assert_uint_gt(tpx_backend->megabytes, 0);
}
END_TEST

START_TEST(test_open_close)
{
    int before;

    tpx_side_close(tpx_side_open(tpx_backend));    /* libraries settle */
    before = tpx_fd_count();
    for (int i = 0; i < 20; i++) {
        struct tpx_side *side = tpx_side_open(tpx_backend);
        struct tpx_side *other = tpx_side_open(tpx_backend);

        tpx_side_step(side);
        ck_assert(side->address_length != other->address_length
                  || memcmp(side->address, other->address,
                            side->address_length) != 0);
        tpx_side_close(side);
        tpx_side_step(other);
        tpx_side_close(other);
    }
    ck_assert_int_eq(tpx_fd_count(), before);
}
END_TEST

/* close() must cope with an endpoint whose open() failed for lack of memory,
 * at whichever allocation. */
START_TEST(test_open_without_memory)
{
    struct tpb_error error = { "" };
    int before;

    tpx_side_close(tpx_side_open(tpx_backend));
    before = tpx_fd_count();
    for (long n = 1; n < 1000; n++) {
        struct tpf_env env = { .epoll = -1 };
        struct tpx_side *side = tpx_side_open(tpx_backend);
        struct tpf_endpoint *endpoint = tpb_zalloc(tpx_backend->endpoint_size);
        tp_status status;

        ck_assert_ptr_nonnull(endpoint);
        env = side->env;
        tpb_list_init(&env.ready);
        endpoint->backend = tpx_backend;
        endpoint->env = &env;
        tpb_alloc_fail_at(n);
        status = tpx_backend->open(endpoint, &error);
        tpb_alloc_fail_at(0);
        tpx_backend->close(endpoint);
        tpb_free(endpoint);
        tpx_side_close(side);
        if (status == TP_OK) {
            ck_assert_int_eq(tpx_fd_count(), before);
            return;
        }
        ck_assert_str_ne(error.text, "");
    }
    ck_abort_msg("open() never succeeds");
}
END_TEST

static bool suite_quiet(struct tpx_side *side)
{
    struct pollfd wait = { .fd = side->env.epoll, .events = POLLIN };
    bool quiet = tpx_backend->arm(side->endpoint) && poll(&wait, 1, 5) == 0;

    tpx_backend->disarm(side->endpoint);
    return quiet;
}

/* Nothing to do: sleeps, uses no time, and is not woken.  What belongs to
 * connecting, as further rails or a look at the peer every second until it was
 * silent for one, may take a moment: it is over when there was nothing for
 * longer than any timer takes. */
START_TEST(test_idle)
{
    enum { LOOKS = 150 };          /* each takes two times 5 ms, or more */
    struct tpx_pair pair;
    int quiet = 0;

    tpx_pair_open(&pair, tpx_backend);
    TPX_UNTIL((tpx_pair_step(&pair),
               quiet = suite_quiet(pair.a) && suite_quiet(pair.b)
                       ? quiet + 1 : 0), quiet == LOOKS);
    pair.a->wakeups = 0;
    for (int i = 0; i < 20; i++) {
        ck_assert(tpx_backend->arm(pair.a->endpoint));
        ck_assert_int_eq(poll(&(struct pollfd){ .fd = pair.a->env.epoll,
                                                .events = POLLIN }, 1, 5), 0);
        tpx_backend->disarm(pair.a->endpoint);
        tpx_side_step(pair.a);
    }
    ck_assert_uint_eq(pair.a->wakeups, 0);
    tpx_pair_close(&pair);
}
END_TEST

/* The same for one that polls all the time and never arms. */
START_TEST(test_calm)
{
    struct tpx_pair pair;

    tpx_pair_open(&pair, tpx_backend);
    tpx_stream_set(pair.ab, pair.ba, 70, tpx_size_random, 0);
    if (pair.ab != pair.ba)
        tpx_stream_set(pair.ba, pair.ab, 71, tpx_size_random, 0);
    for (int i = 0; i < 3; i++) {
        TPX_UNTIL(tpx_pair_step(&pair), tpx_send(pair.ab));
        TPX_UNTIL(tpx_pair_step(&pair), tpx_send(pair.ba));
        TPX_UNTIL(tpx_pair_step(&pair),
                  pair.ab->in.next == pair.ab->out.next
                      && pair.ba->in.next == pair.ba->out.next);
        tpx_side_calm(pair.a, pair.b);
        tpx_side_calm(pair.b, pair.a);
    }
    tpx_pair_close(&pair);
}
END_TEST

static bool suite_possible(void)
{
    struct tpf_env env = { .epoll = -1 };
    struct tpb_settings settings;
    struct tpt_card card = { .rank = 0 };
    struct tpb_error error = { "" };
    tp_status status;

    if (tpb_settings_load(&settings, &error) != TP_OK) {
        fprintf(stderr, "%s\n", error.text);
        return false;
    }
    env.settings = &settings;
    env.card = &card;
    status = tpx_backend->probe(&env, &error);
    tpb_settings_fini(&settings);
    if (status != TP_OK)
        tpx_skip(tpx_backend->name, error.text);
    return status == TP_OK;
}

int tpx_conform(const struct tpx_target *target)
{
    Suite *suite = suite_create(target->name);
    TCase *tests;

    tpx_target = target;
    tpx_backend = tpf_backend_find(target->name);
    if (tpx_backend == NULL) {
        fprintf(stderr, "%s: this build has no such backend\n", target->name);
        return 1;
    }
    tpx_load(target->name);
    if (!suite_possible())
        return tpx_run(suite);
    tests = tpx_tcase(suite, "endpoint");
    tcase_add_test(tests, test_description);
    tcase_add_test(tests, test_open_close);
    tcase_add_test(tests, test_open_without_memory);
    tcase_add_test(tests, test_idle);
    tcase_add_test(tests, test_calm);
    tpx_add_frame_tests(suite);
    tpx_add_life_tests(suite);
    tpx_add_stranger_tests(suite);
    if (target->more != NULL)
        target->more(suite);
    return tpx_run(suite);
}
