/* SPDX-License-Identifier: BSD-3-Clause */
/* Lists and files of hosts, as people write them, and as they should not. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher/hosts.h"
#include "runtime/base/alloc.h"
#include "tests/lib/tpx.h"

/* "a:4 guest@b:1/8": what was understood, on one line. */
static char *told(const struct tpl_hosts *hosts)
{
    struct tpb_text text = { 0 };

    for (size_t i = 0; i < hosts->count; i++) {
        const struct tpl_host *host = &hosts->list[i];

        tpb_text_add(&text, "%s%s%s%s", i > 0 ? " " : "",
                     host->user != NULL ? host->user : "",
                     host->user != NULL ? "@" : "", host->name);
        if (host->slots > 0)
            tpb_text_add(&text, "=%d", host->slots);
        if (host->most > 0)
            tpb_text_add(&text, "/%d", host->most);
    }
    return text.text;
}

static const struct { const char *list, *hosts; } lists[] = {
    { "a", "a" },
    { "a,b,c", "a b c" },
    { "a:4,b:1", "a=4 b=1" },
    { "a,a,b", "a=2 b" },
    { "a:2,b,a:3", "a=5 b" },
    { "guest@c:2", "guest@c=2" },
    { "node[01-03]", "node01 node02 node03" },
    { "node[8-11,20]", "node8 node9 node10 node11 node20" },
    { "node[09-10]x:2", "node09x=2 node10x=2" },
    { "r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2" },
    { "n[2024001-2024002]", "n2024001 n2024002" },
    { "n[999999998-999999999]", "n999999998 n999999999" },
    { "fd77::1", "fd77::1" },
    { "[fd77::1]:4,10.0.0.1:2", "fd77::1=4 10.0.0.1=2" },
    { "me@[fe80::1%eth0]", "me@fe80::1%eth0" },
    { "a.example.org,b-1_x", "a.example.org b-1_x" },
};

START_TEST(test_lists)
{
    struct tpl_hosts hosts = { 0 };
    struct tpb_error error = { "" };
    char *text;

    ck_assert_msg(tpl_hosts_add_list(&hosts, "--host", lists[_i].list,
                                     &error) == TP_OK, "%s", error.text);
    text = told(&hosts);
    ck_assert_str_eq(text, lists[_i].hosts);
    tpb_free(text);
    tpl_hosts_fini(&hosts);
}
END_TEST

static const struct { const char *text, *hosts; } files[] = {
    { "a\nb\n", "a b" },
    { "# all\n\n  a slots=4 # four\nb slots = 2 max_slots=3\n", "a=4 b=2/3" },
    { "a:4\nb:2 user=guest", "a=4 guest@b=2" },
    { "node[1-2] slots=8\r\n", "node1=8 node2=8" },
    { "\xef\xbb\xbf" "a\nb\n", "a b" },       /* of an editor */
    { "a\na\na\n", "a=3" },
    { "a count=2\nb cpu=3 max-slots=4\n", "a=2 b=3/4" },
    { "fd77::1\n[fd77::2]:3\n", "fd77::1 fd77::2=3" },
    { "root@a username=guest\n", "guest@a" },
};

START_TEST(test_files)
{
    struct tpl_hosts hosts = { 0 };
    struct tpb_error error = { "" };
    char *text;

    ck_assert_msg(tpl_hosts_add_text(&hosts, "f", files[_i].text,
                                     &error) == TP_OK, "%s", error.text);
    text = told(&hosts);
    ck_assert_str_eq(text, files[_i].hosts);
    tpb_free(text);
    tpl_hosts_fini(&hosts);
}
END_TEST

static const struct {
    const char *text;
    bool file;
    const char *words;
} bad[] = {
    { "", false, "--host: \"\": the name of a host is missing" },
    { "a,,b", false, "--host: \"a,,b\": the name of a host is missing" },
    { "a:0", false, "--host: \"0\": expected a number of slots" },
    { "a:x", false, "--host: \"x\": expected a number of slots" },
    { "a:99999999999999999999", false, "expected a number of slots" },
    { "-oProxyCommand=x", false, "is not a valid host name" },
    { "a;reboot", false, "is not a valid host name" },
    { "-l@a", false, "is not a valid user name" },
    { "node[1-", false, "node[1-: a ] is missing" },
    { "node[]", false, "expected numbers such as [01-16]" },
    { "node[,]", false, "expected numbers such as [01-16]" },
    { "node[a-b]", false, "node[...]: expected numbers" },
    { "node[9-1]", false, "node[9-1]: the range runs backwards" },
    { "node[0-999999]", false, "more than 65536 hosts" },
    { "node[0-65535]x[0-1]", false, "more than 65536 hosts" },
    { "[fd77::1]4", false, "[fd77::1]4: expected :SLOTS" },
    { "", true, "f: it names no host" },
    { "# nobody\n", true, "f: it names no host" },
    { "a\nb slots=\n", true, "f:2: \"\": expected a number of slots" },
    { "a\n\nb slot=3\n", true, "f:3: slot=: expected slots=" },
    { "a b\n", true, "f:1: b: expected slots=N, or the next host" },
    { "a ifname=eth1\n", true, "f:1: ifname= is for MPICH only" },
    { "a binding=core\n", true, "use --bind-to" },
    { "^a\n", true, "f:1: ^a: Open MPI's ^ and +" },
    { "rank 0=a slot=1\n", true, "f:1: this is a rankfile" },
    { "rank 1 = +n0 slot=1\n", true, "f:1: this is a rankfile" },
    { "a slots=4 max_slots=2\n", true, "f:1: a: 4 slots, but max_slots is 2" },
};

START_TEST(test_bad)
{
    struct tpl_hosts hosts = { 0 };
    struct tpb_error error = { "" };
    tp_status status = bad[_i].file
        ? tpl_hosts_add_text(&hosts, "f", bad[_i].text, &error)
        : tpl_hosts_add_list(&hosts, "--host", bad[_i].text, &error);

    ck_assert_int_eq(status, TP_ERR_INVALID);
    ck_assert_msg(strstr(error.text, bad[_i].words) != NULL, "%s",
                  error.text);
    tpl_hosts_fini(&hosts);
}
END_TEST

START_TEST(test_long_names)
{
    char name[1024];
    struct tpl_hosts hosts = { 0 };
    struct tpb_error error = { "" };

    memset(name, 'a', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    ck_assert_int_eq(tpl_hosts_add_list(&hosts, "--host", name, &error),
                     TP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "too long"));
    memcpy(name + 200, "[1-2]", 5);
    ck_assert_int_eq(tpl_hosts_add_list(&hosts, "--host", name, &error),
                     TP_ERR_INVALID);
    memset(name, '9', sizeof(name) - 1);
    memcpy(name, "n[", 2);
    name[sizeof(name) - 2] = ']';
    ck_assert_int_eq(tpl_hosts_add_list(&hosts, "--host", name, &error),
                     TP_ERR_INVALID);
    tpl_hosts_fini(&hosts);
}
END_TEST

START_TEST(test_missing_file)
{
    struct tpl_hosts hosts = { 0 };
    struct tpb_error error = { "" };

    ck_assert_int_ne(tpl_hosts_add_file(&hosts, "/nonexistent/f", &error),
                     TP_OK);
    ck_assert_str_eq(error.text,
                     "--hostfile /nonexistent/f: No such file or directory");
    tpl_hosts_fini(&hosts);
}
END_TEST

/* hosts, ranks, "ranks of each" or the words of the refusal */
static const struct { const char *hosts; int ranks; const char *each; }
places[] = {
    { "a,b,c", 6, "2 2 2" },
    { "a,b,c", 7, "3 2 2" },
    { "a,b,c", 2, "1 1 0" },
    { "a:4,b:4", 6, "4 2" },
    { "a:1,b:2", 8, "3 5" },
    { "a:2,b", 3, "2 1" },
};

START_TEST(test_place)
{
    struct tpl_hosts hosts = { 0 };
    struct tpb_text text = { 0 };

    ck_assert_int_eq(tpl_hosts_add_list(&hosts, "--host", places[_i].hosts,
                                        NULL), TP_OK);
    ck_assert_int_eq(tpl_hosts_place(&hosts, places[_i].ranks, NULL), TP_OK);
    for (size_t i = 0; i < hosts.count; i++)
        tpb_text_add(&text, "%s%d", i > 0 ? " " : "", hosts.list[i].ranks);
    ck_assert_str_eq(text.text, places[_i].each);
    tpb_text_fini(&text);
    tpl_hosts_fini(&hosts);
}
END_TEST

START_TEST(test_most)
{
    struct tpl_hosts hosts = { 0 };
    struct tpb_error error = { "" };

    ck_assert_int_eq(tpl_hosts_add_text(&hosts, "f", "a slots=2 max_slots=3\n"
                                        "b max_slots=1\n", NULL), TP_OK);
    ck_assert_int_eq(tpl_hosts_place(&hosts, 4, &error), TP_OK);
    ck_assert_int_eq(hosts.list[0].ranks, 3);
    ck_assert_int_eq(tpl_hosts_place(&hosts, 5, &error), TP_ERR_INVALID);
    ck_assert_str_eq(error.text,
                     "5 ranks, but the hosts take 4 (max_slots)");
    ck_assert_int_eq(tpl_hosts_slots(&hosts), 3);
    tpl_hosts_fini(&hosts);
}
END_TEST

/* A host that is named again and again: the sum was more than an int holds. */
START_TEST(test_sum)
{
    struct tpl_hosts hosts = { 0 };
    tp_status status = TP_OK;

    for (int i = 0; i < 2200 && status == TP_OK; i++)
        status = tpl_hosts_add_list(&hosts, "--host", "a:1000000", NULL);
    ck_assert_int_eq(status, TP_OK);
    ck_assert_int_eq(hosts.list[0].slots, 1000000);
    tpl_hosts_fini(&hosts);
}
END_TEST

START_TEST(test_choose)
{
    struct tpl_hosts hosts = { 0 }, chosen = { 0 };
    struct tpb_error error = { "" };
    char *text;

    tpl_hosts_add_text(&hosts, "f", "a slots=2\nb:3 user=me\nc\n", NULL);
    tpl_hosts_add_list(&chosen, "--host", "c,b", NULL);
    ck_assert_int_eq(tpl_hosts_choose(&hosts, &chosen, &error), TP_OK);
    text = told(&hosts);
    ck_assert_str_eq(text, "c me@b=3");
    tpb_free(text);
    tpl_hosts_fini(&chosen);
    tpl_hosts_add_list(&chosen, "--host", "d", NULL);
    ck_assert_int_eq(tpl_hosts_choose(&hosts, &chosen, &error),
                     TP_ERR_INVALID);
    ck_assert_str_eq(error.text, "--host d: it is not in the hostfile");
    tpl_hosts_fini(&chosen);
    tpl_hosts_fini(&hosts);
}
END_TEST

START_TEST(test_here)
{
    char own[256] = "", list[400];
    struct tpl_hosts hosts = { 0 };

    gethostname(own, sizeof(own) - 1);
    snprintf(list, sizeof(list), "localhost,127.0.0.9,::1,%s,192.0.2.1,"
             "tpx-nobody.invalid", own);
    ck_assert_int_eq(tpl_hosts_add_list(&hosts, "--host", list, NULL), TP_OK);
    tpl_hosts_find_here(&hosts, 5);
    for (size_t i = 0; i < hosts.count; i++)
        ck_assert_msg(hosts.list[i].here == (i < 4), "%s",
                      hosts.list[i].name);
    tpl_hosts_fini(&hosts);
}
END_TEST

/* Every allocation fails once: an error each time, and nothing leaks. */
START_TEST(test_no_memory)
{
    tp_status status;
    long n = 0;

    do {
        struct tpl_hosts hosts = { 0 };

        tpb_alloc_fail_at(++n);
        status = tpl_hosts_add_text(&hosts, "f", "u@a slots=2\nb\nc\nd\n",
                                    NULL);
        tpb_alloc_fail_at(0);
        tpl_hosts_fini(&hosts);
        ck_assert(status == TP_OK || status == TP_ERR_NO_MEMORY);
    } while (status != TP_OK && n < 100);
    ck_assert_int_gt(n, 5);
    ck_assert_int_lt(n, 100);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("hosts");
    TCase *tests = tcase_create("hosts");

    tcase_set_timeout(tests, 180);
    tcase_add_loop_test(tests, test_lists, 0, TPB_COUNT(lists));
    tcase_add_loop_test(tests, test_files, 0, TPB_COUNT(files));
    tcase_add_loop_test(tests, test_bad, 0, TPB_COUNT(bad));
    tcase_add_test(tests, test_long_names);
    tcase_add_test(tests, test_missing_file);
    tcase_add_loop_test(tests, test_place, 0, TPB_COUNT(places));
    tcase_add_test(tests, test_most);
    tcase_add_test(tests, test_sum);
    tcase_add_test(tests, test_choose);
    tcase_add_test(tests, test_here);
    tcase_add_test(tests, test_no_memory);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
