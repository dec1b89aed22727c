/* SPDX-License-Identifier: BSD-3-Clause */
/* What control groups leave of cpus and memory, on recorded trees and, where
 * one may be made, in a real one. */
#include "config.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/io.h"
#include "runtime/base/quota.h"
#include "tests/lib/tpx.h"
#include "tests/lib/tree.h"

static void check(const char *cgroups, uint64_t cpu_us, uint64_t period_us,
                  const char *file)
{
    struct tpb_quota quota;
    bool found = tpb_quota_find(cgroups, tpx_tree, &quota);

    ck_assert_int_eq(found, cpu_us > 0);
    if (!found)
        return;
    ck_assert_uint_eq(quota.cpu_ns, cpu_us * 1000);
    ck_assert_uint_eq(quota.period_ns, period_us * 1000);
    ck_assert_str_eq(quota.file + strlen(tpx_tree), file);
}

/* The least counts, be it of a group above: by what it is of its period. */
START_TEST(second_version)
{
    tpx_tree_put("cgroup.procs", "");
    tpx_tree_put("pod/cpu.max", "100000 100000\n");
    tpx_tree_put("pod/box/cpu.max", "max 100000\n");
    check("0::/pod/box\n", 100000, 100000, "/pod/cpu.max");
    tpx_tree_put("pod/box/cpu.max", "20000 50000\n");
    check("0::/pod/box\n", 20000, 50000, "/pod/box/cpu.max");
    tpx_tree_put("pod/box/cpu.max", "75000 50000\n");
    check("0::/pod/box\n", 100000, 100000, "/pod/cpu.max");
    tpx_tree_put("pod/cpu.max", "max 100000\n");
    tpx_tree_put("pod/box/cpu.max", "max 100000\n");
    check("0::/pod/box\n", 0, 0, "");
}
END_TEST

START_TEST(first_version)
{
    tpx_tree_put("cpu/pod/cpu.cfs_quota_us", "150000\n");
    tpx_tree_put("cpu/pod/cpu.cfs_period_us", "100000\n");
    tpx_tree_put("cpu/pod/box/cpu.cfs_quota_us", "-1\n");
    tpx_tree_put("cpu/pod/box/cpu.cfs_period_us", "100000\n");
    check("5:cpuacct,cpu:/pod/box\n4:memory:/\n0::/\n", 150000, 100000,
          "/cpu/pod/cpu.cfs_quota_us");
    check("5:cpuset:/pod/box\n", 0, 0, "");
    tpx_tree_put("cpu/pod/box/cpu.cfs_quota_us", "50000\n");
    check("5:cpu:/pod/box\n", 50000, 100000, "/cpu/pod/box/cpu.cfs_quota_us");
}
END_TEST

/* Its name is the host's, and it is mounted as the root. */
START_TEST(container)
{
    tpx_tree_put("cpu.max", "50000 100000\n");
    check("0::/kubepods/pod1/box\n", 50000, 100000, "/cpu.max");
    check("0::/../box\n", 50000, 100000, "/cpu.max");
}
END_TEST

START_TEST(nothing_to_read)
{
    check("", 0, 0, "");
    check("0::/\n", 0, 0, "");
    check("garbage\n::\n0:", 0, 0, "");
    tpx_tree_put("cpu.max", "");
    check("0::/\n", 0, 0, "");
    tpx_tree_put("cpu.max", "5 0\n");
    check("0::/\n", 0, 0, "");
    tpx_tree_put("cpu.max", "99999999999999999999 100000\n");
    check("0::/\n", 0, 0, "");
}
END_TEST

/* Memory of files is given back; limits above count. */
START_TEST(memory)
{
    tpx_tree_put("pod/memory.max", "1000000\n");
    tpx_tree_put("pod/memory.current", "700000\n");
    tpx_tree_put("pod/memory.stat",
                 "anon 1\ninactive_file 50000\nactive_file 100000\n");
    tpx_tree_put("pod/box/memory.max", "max\n");
    tpx_tree_put("pod/box/memory.current", "500000\n");
    ck_assert_uint_eq(tpb_quota_memory("0::/pod/box\n", tpx_tree), 450000);
    tpx_tree_put("pod/box/memory.max", "500000\n");
    ck_assert_uint_eq(tpb_quota_memory("0::/pod/box\n", tpx_tree), 0);
    ck_assert_uint_ge(tpb_quota_memory("0::/\n", tpx_tree), UINT64_C(1) << 60);
    tpx_tree_put("memory/a/memory.limit_in_bytes", "64000\n");
    tpx_tree_put("memory/a/memory.usage_in_bytes", "60000\n");
    tpx_tree_put("memory/a/memory.stat",
                 "inactive_file 9\ntotal_inactive_file 6000\n");
    tpx_tree_put("memory/memory.limit_in_bytes", "9223372036854771712\n");
    tpx_tree_put("memory/memory.usage_in_bytes", "9000000\n");
    ck_assert_uint_eq(tpb_quota_memory("4:memory:/a\n", tpx_tree), 10000);
}
END_TEST

/* The kernel's own files, where such groups may be made. */
START_TEST(real_group)
{
    char group[128], name[192], text[32];
    struct tpb_quota quota;
    int fd, statistics;
    bool made, first = access("/sys/fs/cgroup/cpu", F_OK) == 0, found = false;

    snprintf(group, sizeof(group), "/sys/fs/cgroup%s/tp-test-quota-%d",
             first ? "/cpu" : "", (int)getpid());
    if (mkdir(group, 0755) != 0) {
        tpx_skip("cgroup", "no control group can be made here");
        return;
    }
    snprintf(name, sizeof(name), "%s/%s", group, first ? "cpu.cfs_quota_us"
                                                       : "cpu.max");
    fd = open(name, O_WRONLY | O_CLOEXEC);     /* may be no such group */
    made = fd >= 0 && write(fd, "30000", 5) == 5;
    tpb_close(&fd);
    snprintf(text, sizeof(text), "1:cpu:%s\n", strrchr(group, '/'));
    if (!first)
        snprintf(text, sizeof(text), "0::%s\n", strrchr(group, '/'));
    if (made)
        found = tpb_quota_find(text, "/sys/fs/cgroup", &quota);
    statistics = found ? tpb_quota_statistics(&quota) : -1;
    ck_assert_int_eq(rmdir(group), 0);
    if (!made) {
        tpx_skip("cgroup", "a group may not limit the cpus here");
        return;
    }
    ck_assert(found);
    ck_assert_uint_le(quota.cpu_ns * 100, quota.period_ns * 30);
    ck_assert_int_ge(statistics, 0);
    tpb_close(&statistics);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("quota");
    TCase *tests = tcase_create("quota");

    tcase_add_checked_fixture(tests, tpx_tree_make, tpx_tree_remove);
    tcase_add_test(tests, second_version);
    tcase_add_test(tests, first_version);
    tcase_add_test(tests, container);
    tcase_add_test(tests, nothing_to_read);
    tcase_add_test(tests, memory);
    tcase_add_test(tests, real_group);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
