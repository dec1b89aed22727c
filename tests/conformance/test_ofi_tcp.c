/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite over ofi:tcp. */
#include "config.h"

#include <stdio.h>
#include <unistd.h>

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

/* Is that part of the process's memory to have no huge pages? */
static bool tcp_is_small(const void *at)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long from, to;
    bool here = false, small = false;

    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof(line), maps) != NULL)
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            here = (uintptr_t)at >= from && (uintptr_t)at < to;
        else if (here && strncmp(line, "VmFlags:", 8) == 0)
            small = strstr(line, " nh") != NULL;
    fclose(maps);
    return small;
}

/* A conn takes the memory that it uses, whatever pages the kernel has. */
START_TEST(test_small_pages)
{
    struct tpx_pair pair;

    if (access("/sys/kernel/mm/transparent_hugepage", F_OK) < 0) {
        tpx_skip("huge pages", "this kernel has none");
        return;
    }
    tpx_pair_open(&pair, tpx_backend);
    ck_assert(tcp_is_small(ofi_conn_of(pair.ab->conn)->receive.memory));
    ck_assert(tcp_is_small(ofi_conn_of(pair.ab->conn)->send.memory));
    tpx_pair_close(&pair);
}
END_TEST

static void tcp_more(Suite *suite)
{
    TCase *tests = tpx_tcase(suite, "of its own");

    tcase_add_test(tests, test_far);
    tcase_add_test(tests, test_small_pages);
}

int main(void)
{
    static const struct tpx_target target = {
        .name = "ofi:tcp", .listening = tpx_ofi_listening,
        .lands = true, .more = tcp_more
    };

    return tpx_conform(&target);
}
