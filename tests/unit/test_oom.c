/* SPDX-License-Identifier: BSD-3-Clause */
/* What control groups tell of the kernel's OOM killer, on recorded trees. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/oom.h"
#include "tests/lib/tpx.h"
#include "tests/lib/tree.h"

#define EVENTS(kills) \
    "low 0\nhigh 0\nmax 61\noom 2\noom_kill " kills "\noom_group_kill 0\n"
#define CONTROL(kills) "oom_kill_disable 0\nunder_oom 0\noom_kill " kills "\n"
#define NO_LIMIT "9223372036854771712\n"

static void check_words(const struct tpl_oom *oom, const char *first,
                        const char *second)
{
    char text[512];

    tpl_oom_describe(oom, text, sizeof(text));
    ck_assert_msg(strstr(text, first) != NULL, "%s", text);
    ck_assert_msg(strstr(text, second) != NULL, "%s", text);
}

/* The limit may be that of a group above. */
START_TEST(test_second_version)
{
    struct tpl_oom oom;
    char text[512];

    tpx_tree_put("memory.events", EVENTS("9"));
    tpx_tree_put("job/memory.max", "536870912\n");
    tpx_tree_put("job/step/memory.max", "max\n");
    tpx_tree_put("job/step/memory.events", EVENTS("3"));
    ck_assert(tpl_oom_find("0::/job/step\n", tpx_tree, &oom));
    ck_assert(!oom.first);
    ck_assert_uint_eq(oom.kills, 3);
    tpl_oom_describe(&oom, text, sizeof(text));
    ck_assert_str_eq(text, "");
    tpx_tree_put("job/step/memory.events", EVENTS("4"));
    check_words(&oom, "because memory ran out: the limit of this cgroup is "
                "512 MiB",
                "/job/memory.max); raise it, or start fewer ranks");
    tpx_tree_put("job/memory.max", "max\n");
    check_words(&oom, "this machine had none left", "start fewer ranks");
}
END_TEST

/* In a container: the name is that of the host, or of another group. */
START_TEST(test_container)
{
    struct tpl_oom oom;

    tpx_tree_put("memory.events", EVENTS("0"));
    tpx_tree_put("memory.max", "1073741824\n");
    ck_assert(tpl_oom_find("0::/system.slice/docker-12ab.scope\n", tpx_tree,
                           &oom));
    tpx_tree_put("memory.events", EVENTS("1"));
    check_words(&oom, "1024 MiB", "/memory.max");
}
END_TEST

/* Beside an empty hierarchy of version 2, as systemd has it. */
START_TEST(test_first_version)
{
    static const char cgroups[] =
        "9:name=systemd:/\n5:memory_not:/no\n4:memory:/api/9f\n"
        "3:cpuset:/\n0::/\n";
    struct tpl_oom oom;

    tpx_tree_put("memory/memory.limit_in_bytes", NO_LIMIT);
    tpx_tree_put("memory/api/memory.limit_in_bytes", "2147483648\n");
    tpx_tree_put("memory/api/9f/memory.limit_in_bytes", "67108864\n");
    tpx_tree_put("memory/api/9f/memory.oom_control", CONTROL("0"));
    ck_assert(tpl_oom_find(cgroups, tpx_tree, &oom));
    ck_assert(oom.first);
    ck_assert_str_eq(oom.group, "/api/9f");
    tpx_tree_put("memory/api/9f/memory.oom_control", CONTROL("2"));
    check_words(&oom, "64 MiB", "/api/9f/memory.limit_in_bytes");
    tpx_tree_put("memory/api/9f/memory.limit_in_bytes", NO_LIMIT);
    tpx_tree_put("memory/api/memory.limit_in_bytes", NO_LIMIT);
    check_words(&oom, "this machine had none left", "dmesg");
}
END_TEST

/* Nothing that counts, or not any more: nothing is said. */
START_TEST(test_nothing)
{
    static const char *const cgroups[] = {
        "", "\n", "0::/\n", "nonsense\n0:\n", "4:memory:/a\n", "0::/a"
    };
    struct tpl_oom oom;
    char text[512];

    ck_assert(!tpl_oom_find(cgroups[_i], tpx_tree, &oom));
    tpl_oom_describe(&oom, text, sizeof(text));
    ck_assert_str_eq(text, "");
    /* Linux before 4.13. */
    tpx_tree_put("a/memory.events", "low 0\nmax 0\noom 0\n");
    ck_assert(!tpl_oom_find(cgroups[_i], tpx_tree, &oom));
    tpx_tree_put("a/memory.events", EVENTS("7"));
    if (tpl_oom_find(cgroups[_i], tpx_tree, &oom)) {
        ck_assert_int_eq(_i, 5);
        tpx_tree_remove();
        tpl_oom_describe(&oom, text, sizeof(text));
        ck_assert_str_eq(text, "");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("oom");
    TCase *tests = tcase_create("oom");

    tcase_add_checked_fixture(tests, tpx_tree_make, tpx_tree_remove);
    tcase_add_test(tests, test_second_version);
    tcase_add_test(tests, test_container);
    tcase_add_test(tests, test_first_version);
    tcase_add_loop_test(tests, test_nothing, 0, 6);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
