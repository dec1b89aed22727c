/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite over ofi:tcp. */
#include "config.h"

#include "fabric/ofi/ofi.h"
#include "tests/conformance/ofi.h"

/* The window is as long as the way. */
START_TEST(test_far)
{
    size_t last = 0;

    ck_assert_uint_eq(ofi_socket_far(0), 0);
    ck_assert_uint_eq(ofi_socket_far(100), 0);
    for (uint32_t us = 1000; us < 10000; us += 1000) {
        ck_assert_uint_ge(ofi_socket_far(us), last + 1000000);
        last = ofi_socket_far(us);
    }
    /* 50 ms at 1 Gb/s; and what a pipe may keep is bounded. */
    ck_assert_uint_ge(ofi_socket_far(50000), 6250000);
    ck_assert_uint_le(ofi_socket_far(UINT32_MAX), 16 * 1024 * 1024);
}
END_TEST

static void tcp_more(Suite *suite)
{
    TCase *tests = tpx_tcase(suite, "far");

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
