/* SPDX-License-Identifier: BSD-3-Clause */
/* Placement as a pure function of recorded machines. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "tests/lib/tpx.h"
#include "tests/unit/cards.h"
#include "topology/bind.h"

/* "0 1 2": the cpus of each rank; an unbound one is "*". */
static char *placed(const char *name, const struct tpt_bind_wish *wish)
{
    struct tpt_topology *topology = tpx_machine(name);
    struct tpt_bind_plan plan;
    struct tpb_error error = { "" };
    struct tpb_text text = { 0 };

    ck_assert_msg(tpt_bind_plan(topology, wish, &plan, &error) == TP_OK, "%s",
                  error.text);
    ck_assert_int_eq(plan.count, wish->ranks);
    for (int i = 0; i < plan.count; i++)
        tpb_text_add(&text, "%s%s", i > 0 ? " " : "",
                     plan.places[i].cpus != NULL ? plan.places[i].list : "*");
    tpt_bind_plan_fini(&plan);
    tpt_topology_free(topology);
    return text.text;
}

static const struct {
    const char *machine;
    int ranks;
    enum tpt_bind bind;
    enum tpt_map map;
    const char *wanted;
} rows[] = {
    /* Two packages of six cores with two threads each, cpus numbered in
     * order. */
    { "two-socket", 3, TPT_BIND_DEFAULT, TPT_MAP_DEFAULT, "0-1 2-3 4-5" },
    { "two-socket", 3, TPT_BIND_CORE, TPT_MAP_PACKAGE, "0-1 12-13 2-3" },
    { "two-socket", 4, TPT_BIND_CORE, TPT_MAP_NUMA, "0-1 12-13 2-3 14-15" },
    { "two-socket", 4, TPT_BIND_NONE, TPT_MAP_DEFAULT, "* * * *" },
    { "two-socket", 13, TPT_BIND_DEFAULT, TPT_MAP_DEFAULT,
      "* * * * * * * * * * * * *" },
    /* Blocks: neighbours together, both halves alike. */
    { "two-socket", 4, TPT_BIND_PACKAGE, TPT_MAP_DEFAULT,
      "0-11 0-11 12-23 12-23" },
    { "two-socket", 4, TPT_BIND_PACKAGE, TPT_MAP_PACKAGE,
      "0-11 12-23 0-11 12-23" },
    { "two-socket", 4, TPT_BIND_PACKAGE, TPT_MAP_CORE,
      "0-11 0-11 0-11 0-11" },
    { "two-socket", 1, TPT_BIND_PACKAGE, TPT_MAP_DEFAULT, "0-11" },
    /* Four memories, L3s alike, three cores in each. */
    { "sub-numa", 5, TPT_BIND_NUMA, TPT_MAP_NUMA, "0-2 3-5 6-8 9-11 0-2" },
    { "sub-numa", 5, TPT_BIND_CORE, TPT_MAP_L3, "0 3 6 9 1" },
    { "sub-numa", 8, TPT_BIND_L3, TPT_MAP_DEFAULT,
      "0-2 0-2 3-5 3-5 6-8 6-8 9-11 9-11" },
    /* Sixteen cores behind four L3s; each core gets its next rank only when
     * all have one. */
    { "chiplets", 6, TPT_BIND_CORE, TPT_MAP_L3, "0-1 8-9 16-17 24-25 2-3 10-11"
    },
    { "chiplets", 2, TPT_BIND_L3, TPT_MAP_L3, "0-7 8-15" },
    /* No L3: the next bigger thing. */
    { "no-l3", 3, TPT_BIND_L3, TPT_MAP_DEFAULT, "0-3 0-3 0-3" },
    { "no-l3", 3, TPT_BIND_CORE, TPT_MAP_L3, "0 1 2" },
    { "small-vm", 5, TPT_BIND_CORE, TPT_MAP_DEFAULT, "0 1 0 1 0" },
    /* Packages of four and of two cores, each with two memories.  No core has
     * two ranks while another has none; the second has no L3. */
    { "uneven", 3, TPT_BIND_CORE, TPT_MAP_NUMA, "0 4 1" },
    { "uneven", 7, TPT_BIND_CORE, TPT_MAP_PACKAGE, "0 4 1 5 2 3 4" },
    { "uneven", 2, TPT_BIND_NUMA, TPT_MAP_DEFAULT, "0-3 4-5" },
    { "uneven", 6, TPT_BIND_NUMA, TPT_MAP_DEFAULT,
      "0-3 0-3 0-3 0-3 4-5 4-5" },
    { "uneven", 6, TPT_BIND_PACKAGE, TPT_MAP_PACKAGE,
      "0-3 4-5 0-3 4-5 0-3 0-3" },
    { "uneven", 5, TPT_BIND_CORE, TPT_MAP_L3, "0 1 2 3 4" },
    { "uneven", 5, TPT_BIND_L3, TPT_MAP_DEFAULT, "0-3 0-3 0-3 0-3 4-5" },
    { "small-vm", 2, TPT_BIND_DEFAULT, TPT_MAP_DEFAULT, "0 1" },
};

START_TEST(test_rows)
{
    struct tpt_bind_wish wish = {
        .bind = rows[_i].bind, .map = rows[_i].map, .ranks = rows[_i].ranks,
    };
    char *text = placed(rows[_i].machine, &wish);

    ck_assert_str_eq(text, rows[_i].wanted);
    tpb_free(text);
}
END_TEST

/* More ranks than cores: each core gets as many as any other, or one more. */
START_TEST(test_fair)
{
    static const char *const names[] = { "two-socket", "sub-numa", "chiplets",
                                         "no-l3", "one-socket", "uneven" };
    static const enum tpt_map maps[] = { TPT_MAP_DEFAULT, TPT_MAP_CORE,
                                         TPT_MAP_L3, TPT_MAP_NUMA,
                                         TPT_MAP_PACKAGE };

    for (size_t m = 0; m < TPB_COUNT(maps); m++) {
        struct tpt_topology *topology = tpx_machine(names[_i]);
        struct tpt_bind_wish wish = { .bind = TPT_BIND_CORE, .map = maps[m],
                                      .ranks = 100 };
        struct tpt_bind_plan plan;
        int count[1024] = { 0 }, least = 100, most = 0;

        ck_assert_int_eq(tpt_bind_plan(topology, &wish, &plan, NULL), TP_OK);
        for (int i = 0; i < 100; i++)
            count[plan.places[i].core]++;
        for (int i = 0; i < 1024; i++) {
            if (count[i] > 0 && count[i] < least)
                least = count[i];
            if (count[i] > most)
                most = count[i];
        }
        ck_assert_int_le(most - least, 1);
        ck_assert_int_ge(least, 100 / (int)plan.allowed_cores);
        tpt_bind_plan_fini(&plan);
        tpt_topology_free(topology);
    }
}
END_TEST

/* Another job's cores are left to it, by default even if that means none. */
START_TEST(test_taken)
{
    cpu_set_t taken;
    struct tpt_bind_wish wish = { .ranks = 2, .taken = &taken,
                                  .taken_size = sizeof(taken) };
    char *text;

    CPU_ZERO(&taken);
    CPU_SET(0, &taken);
    CPU_SET(4, &taken);
    text = placed("two-socket", &wish);
    ck_assert_str_eq(text, "2-3 6-7");
    tpb_free(text);
    /* Also if a part's turn comes and all of it is taken. */
    for (int i = 0; i < 12; i++)
        CPU_SET(i, &taken);
    wish.map = TPT_MAP_PACKAGE;
    text = placed("two-socket", &wish);
    ck_assert_str_eq(text, "12-13 14-15");
    tpb_free(text);
    wish.map = TPT_MAP_DEFAULT;
    CPU_ZERO(&taken);
    CPU_SET(0, &taken);
    text = placed("small-vm", &wish);
    ck_assert_str_eq(text, "* *");
    tpb_free(text);
    /* Who insists shares, and with itself before with others. */
    wish.bind = TPT_BIND_CORE;
    text = placed("small-vm", &wish);
    ck_assert_str_eq(text, "1 1");
    tpb_free(text);
}
END_TEST

static void find_gpus(struct tpt_topology *topology, const char *visible,
                      struct tpt_gpus *gpus)
{
    struct tpb_error error = { "" };

    ck_assert_msg(tpt_gpus_find(topology, "", visible, gpus, &error) == TP_OK,
                  "%s", error.text);
}

/* "0 (cpus 0) ..." of each rank. */
START_TEST(test_gpus)
{
    static const struct {
        const char *visible;
        int want[4];
        const char *wanted;
    } cases[] = {
        { NULL, { 1, 1, 1, 1 }, "0@0 1@1 2@2 3@3 " },
        { NULL, { 2, 2, 2, 2 }, "0,1@0 2,3@1 4,5@8 6,7@9 " },
        { NULL, { 3, 3, 0, 1 }, "0,1,2@0 4,5,6@8 -@2 3@1 " },
        { NULL, { 3, 3, 2, 0 }, "0,1,2@0 4,5,6@8 3,7@1 -@2 " },
        { "0,4,5", { 2, 1, 0, 0 }, "4,5@8 0@0 -@1 -@2 " },
        { NULL, { 0, 4, 4, 0 }, "-@1 0,1,2,3@0 4,5,6,7@8 -@2 " },
        { "5,1,6", { 1, 1, 1, 0 }, "1@0 5@8 6@9 -@1 " },
    };
    struct tpt_topology *topology = tpx_machine("gpus-eight");
    struct tpt_gpus gpus;
    struct tpt_bind_wish wish = { .ranks = 4, .gpus = cases[_i].want,
                                  .there = &gpus };
    struct tpt_bind_plan plan;
    struct tpb_text text = { 0 };
    struct tpb_error error = { "" };

    find_gpus(topology, cases[_i].visible, &gpus);
    ck_assert_msg(tpt_bind_plan(topology, &wish, &plan, &error) == TP_OK, "%s",
                  error.text);
    for (int i = 0; i < 4; i++)
        tpb_text_add(&text, "%s@%s ", plan.places[i].gpus != NULL
                     ? plan.places[i].gpus : "-", plan.places[i].list);
    ck_assert_str_eq(text.text, cases[_i].wanted);
    tpb_text_fini(&text);
    tpt_bind_plan_fini(&plan);
    tpt_topology_free(topology);
}
END_TEST

/* Ranks that could be anywhere leave the cores near the GPUs to those that have
 * GPUs, whatever their order; and where these are too few, a core of its own is
 * worth more to a rank than one that is near. */
START_TEST(test_gpus_apart)
{
    enum { RANKS = 16 };
    struct tpt_topology *topology = tpx_machine("gpus-eight");
    int want[RANKS] = { 0 };
    bool used[RANKS] = { false };
    struct tpt_gpus gpus;
    struct tpt_bind_wish wish = { .ranks = RANKS, .gpus = want,
                                  .there = &gpus };
    struct tpt_bind_plan plan;
    cpu_set_t taken;

    for (int i = RANKS - 8; i < RANKS; i++)
        want[i] = 1;
    find_gpus(topology, NULL, &gpus);
    ck_assert_int_eq(tpt_bind_plan(topology, &wish, &plan, NULL), TP_OK);
    for (int i = 0; i < RANKS; i++) {
        ck_assert_msg(!used[plan.places[i].core], "two ranks at core %d",
                      plan.places[i].core);
        used[plan.places[i].core] = true;
        if (i >= RANKS - 8)
            ck_assert_int_eq(plan.places[i].core / 8, (i - (RANKS - 8)) / 4);
    }
    tpt_bind_plan_fini(&plan);
    CPU_ZERO(&taken);
    for (int i = 0; i < 6; i++)
        CPU_SET(i, &taken);
    wish = (struct tpt_bind_wish){ .ranks = 4, .gpus = want + RANKS - 8,
                                   .there = &gpus, .taken = &taken,
                                   .taken_size = sizeof(taken) };
    ck_assert_int_eq(tpt_bind_plan(topology, &wish, &plan, NULL), TP_OK);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(plan.places[i].core, 6 + i);
    tpt_bind_plan_fini(&plan);
    tpt_topology_free(topology);
}
END_TEST

START_TEST(test_gpus_refused)
{
    struct tpt_topology *topology = tpx_machine("gpus-eight");
    int want[3] = { 3, 3, 3 }, owner[TPT_GPUS];
    struct tpt_gpus gpus;
    struct tpb_error error = { "" };

    find_gpus(topology, NULL, &gpus);
    ck_assert_int_eq(gpus.count, 8);
    ck_assert_str_eq(gpus.list[0].bus, "0000:18:00.0");
    ck_assert_str_eq(gpus.list[7].near, "8-15");
    ck_assert_int_eq(tpt_gpus_assign(&gpus, want, 3, owner, &error),
                     TP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "need 9 GPUs, there are 8"));
    ck_assert_int_eq(tpt_gpus_find(topology, "", "8", &gpus, &error),
                     TP_ERR_INVALID);
    ck_assert_int_eq(tpt_gpus_find(topology, "", "MIG-1", &gpus, &error),
                     TP_ERR_INVALID);
    find_gpus(topology, "", &gpus);
    ck_assert_int_eq(gpus.count, 0);
    find_gpus(topology, "2, 5,,6", &gpus);
    ck_assert_int_eq(gpus.count, 2);
    tpt_topology_free(topology);
}
END_TEST

static void put(const char *root, const char *folder, const char *name,
                const char *text)
{
    char path[512];
    FILE *file;

    snprintf(path, sizeof(path), "mkdir -p '%s%s'", root, folder);
    ck_assert_int_eq(system(path), 0);
    snprintf(path, sizeof(path), "%s%s/%s", root, folder, name);
    file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

/* Of two nodes hwloc has dropped the one that this process may not use: what is
 * at that one is not at the other. */
START_TEST(test_node_dropped)
{
    static const struct { const char *word; int numa; } nodes[] = {
        { "0\n", 0 }, { "1\n", -1 }, { "-1\n", 0 }
    };
    char root[] = "/tmp/tpx-gpus-XXXXXX", folder[96];
    struct tpt_topology *topology = tpx_machine("one-socket");
    struct tpt_card *card = calloc(1, sizeof(*card));
    struct tpt_nic nics[TPT_NICS];

    ck_assert_ptr_nonnull(mkdtemp(root));
    for (int i = 0; i < 3; i++) {
        snprintf(folder, sizeof(folder), "/proc/driver/nvidia/gpus/0000:1%d:"
                 "00.0", i);
        put(root, folder, "information", "");
        snprintf(folder, sizeof(folder), "/sys/bus/pci/devices/0000:1%d:00.0",
                 i);
        put(root, folder, "numa_node", nodes[i].word);
        snprintf(folder, sizeof(folder), "/class/net/eth%d/device", i);
        put(root, folder, "numa_node", nodes[i].word);
    }
    ck_assert_int_eq(tpt_topology_gpus(topology, root, NULL, card), 3);
    ck_assert_uint_eq(tpt_topology_nics_at(topology, root, nics), 3);
    snprintf(folder, sizeof(folder), "rm -r %s", root);
    ck_assert_int_eq(system(folder), 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(card->gpus[i].place.numa, nodes[i].numa);
        ck_assert_int_eq(nics[i].numa, nodes[i].numa);
    }
    free(card);
    tpt_topology_free(topology);
}
END_TEST

/* Every other cpu of a big machine: none of them is lost. */
START_TEST(test_gpus_far_cpus)
{
    char root[] = "/tmp/tpx-gpus-XXXXXX", command[64];
    struct tpt_topology *topology = tpx_machine("small-vm");
    struct tpb_text cpus = { 0 };
    struct tpt_gpus gpus;

    ck_assert_ptr_nonnull(mkdtemp(root));
    for (int i = 0; i < 512; i += 2)
        tpb_text_add(&cpus, "%s%d", i > 0 ? "," : "", i);
    put(root, "/proc/driver/nvidia/gpus/0000:b1:00.0", "information", "");
    put(root, "/sys/bus/pci/devices/0000:b1:00.0", "local_cpulist", cpus.text);
    ck_assert_int_eq(tpt_gpus_find(topology, root, NULL, &gpus, NULL), TP_OK);
    snprintf(command, sizeof(command), "rm -r %s", root);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(gpus.count, 1);
    ck_assert_str_eq(gpus.list[0].near, cpus.text);
    tpb_text_fini(&cpus);
    tpt_topology_free(topology);
}
END_TEST

/* The driver's files, made up. */
START_TEST(test_gpus_of_driver)
{
    char root[] = "/tmp/tpx-gpus-XXXXXX", command[64];
    struct tpt_topology *topology = tpx_machine("small-vm");
    struct tpt_card *card = calloc(1, sizeof(*card));
    struct tpt_gpus gpus;

    ck_assert_ptr_nonnull(mkdtemp(root));
    put(root, "/proc/driver/nvidia/gpus/0000:b1:00.0", "information",
        "Model: \t\t NVIDIA H200\nIRQ:   \t\t 12\nGPU UUID: \t GPU-bbbb-1\n");
    put(root, "/proc/driver/nvidia/gpus/0000:17:00.0", "information",
        "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-aaaa-2\n");
    put(root, "/sys/bus/pci/devices/0000:b1:00.0", "local_cpulist", "8-15\n");
    ck_assert_int_eq(tpt_gpus_find(topology, root, NULL, &gpus, NULL), TP_OK);
    ck_assert_int_eq(gpus.count, 2);
    ck_assert_str_eq(gpus.list[0].bus, "0000:17:00.0");
    ck_assert_str_eq(gpus.list[0].near, "");
    ck_assert_str_eq(gpus.list[1].near, "8-15");
    ck_assert_str_eq(gpus.list[1].visible, "1");
    ck_assert_int_eq(tpt_gpus_find(topology, root, "GPU-bb", &gpus, NULL),
                     TP_OK);
    ck_assert_int_eq(gpus.count, 1);
    ck_assert_str_eq(gpus.list[0].visible, "1");
    /* Device files: none yet, so all may come; then one of the two. */
    put(root, "/proc/driver/nvidia/gpus/0000:b1:00.0", "information",
        "GPU UUID: \t GPU-bbbbbbbb-0000-0000-0000-000000000001\n"
        "Device Minor: \t 0\n");
    put(root, "/proc/driver/nvidia/gpus/0000:17:00.0", "information",
        "GPU UUID: \t GPU-aaaaaaaa-0000-0000-0000-000000000002\n"
        "Device Minor: \t 1\n");
    ck_assert_int_eq(tpt_gpus_find(topology, root, NULL, &gpus, NULL), TP_OK);
    ck_assert_int_eq(gpus.count, 2);
    put(root, "/dev", "nvidia0", "");
    ck_assert_int_eq(tpt_gpus_find(topology, root, NULL, &gpus, NULL), TP_OK);
    ck_assert_int_eq(gpus.count, 1);
    ck_assert_str_eq(gpus.list[0].bus, "0000:b1:00.0");
    ck_assert_str_eq(gpus.list[0].visible, "0");
    /* The card of who sees one: that one, whatever comes before it. */
    ck_assert_ptr_nonnull(card);
    ck_assert_int_eq(tpt_topology_gpus(topology, root, NULL, card), 2);
    ck_assert_int_eq(card->gpu_count, 1);
    ck_assert_int_eq(card->gpus[0].uuid[0], 0xbb);
    ck_assert_int_eq(tpt_topology_gpus(topology, root, "0", card), 2);
    ck_assert_int_eq(card->gpu_count, 1);
    ck_assert_int_eq(card->gpus[0].uuid[0], 0xbb);
    put(root, "/dev", "nvidia1", "");
    ck_assert_int_eq(tpt_topology_gpus(topology, root, NULL, card), 2);
    ck_assert_int_eq(card->gpu_count, 2);
    free(card);
    snprintf(command, sizeof(command), "rm -rf '%s'", root);
    ck_assert_int_eq(system(command), 0);
    tpt_topology_free(topology);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bind");
    TCase *tests = tcase_create("bind");

    tcase_add_loop_test(tests, test_rows, 0, (int)TPB_COUNT(rows));
    tcase_add_loop_test(tests, test_fair, 0, 6);
    tcase_add_test(tests, test_taken);
    tcase_add_loop_test(tests, test_gpus, 0, 7);
    tcase_add_test(tests, test_gpus_apart);
    tcase_add_test(tests, test_gpus_refused);
    tcase_add_test(tests, test_node_dropped);
    tcase_add_test(tests, test_gpus_far_cpus);
    tcase_add_test(tests, test_gpus_of_driver);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
