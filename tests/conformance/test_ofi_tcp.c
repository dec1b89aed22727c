/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite over ofi:tcp. */
#include "config.h"

#include "fabric/ofi/ofi.h"
#include "tests/conformance/ofi.h"

/* Where the answer takes long to come, a sender would do nothing else than
 * wait for it; so many short frames go before the other side looks. */
START_TEST(test_ahead)
{
    enum { FRAMES = 1000 };
    struct tpx_pair pair;

    tpx_pair_open(&pair, tpx_backend);
    tpx_stream_set(pair.ab, pair.ba, 5, tpx_size_fixed, 100);
    TPX_UNTIL(if (!tpx_send(pair.ab)) tpx_side_step(pair.a),
              pair.ab->out.next == FRAMES);
    ck_assert_uint_eq(pair.ba->in.next, 0);
    TPX_UNTIL(tpx_pair_step(&pair), pair.ba->in.next == FRAMES);
    tpx_pair_close(&pair);
}
END_TEST

/* The window is as long as the way. */
START_TEST(test_far)
{
    size_t last = 0;

    ck_assert_uint_eq(ofi_conn_far(0), 0);
    ck_assert_uint_eq(ofi_conn_far(100), 0);
    for (uint32_t us = 1000; us < 10000; us += 1000) {
        ck_assert_uint_ge(ofi_conn_far(us), last + 1000000);
        last = ofi_conn_far(us);
    }
    /* 50 ms at 1 Gb/s; and what a pipe may keep is bounded. */
    ck_assert_uint_ge(ofi_conn_far(50000), 6250000);
    ck_assert_uint_le(ofi_conn_far(UINT32_MAX), 16 * 1024 * 1024);
}
END_TEST

static void tcp_more(Suite *suite)
{
    TCase *tests = tpx_tcase(suite, "far");

    tcase_add_test(tests, test_ahead);
    tcase_add_test(tests, test_far);
}

int main(void)
{
    static const struct tpx_target target = {
        .name = "ofi:tcp", .listening = tpx_ofi_listening,
        .lands = true, .more = tcp_more
    };

    return tpx_conform(&target);
}
