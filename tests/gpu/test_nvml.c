/* SPDX-License-Identifier: BSD-3-Clause */
/* What the management library knows, on the card and in what comes of it. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "gpu/gpu.h"
#include "tests/lib/tpx.h"
#include "tests/unit/cards.h"
#include "topology/devices.h"

static struct tpt_card a, b;
static struct tpt_plan plan;
static struct tpt_device_plan devices;

static const char *nvml_double(void)
{
    static char path[1024];
    const char *build = getenv("TP_TEST_BUILD");

    snprintf(path, sizeof(path), "%s/.libs/libnvmldouble.so",
             build != NULL ? build : ".");
    return path;
}

/* Two ranks on the machine where the double's GPUs are. */
static void nvml_ask(const char *library, int there)
{
    struct tpt_topology *machine = tpx_machine("gpu-vm");
    struct tpb_settings settings;

    setenv("TP_NVML_LIBRARY", library, 1);
    ck_assert_int_eq(tpb_settings_load(&settings, NULL), TP_OK);
    tpx_card(&a, machine, 0, 0, 1);
    tpx_card(&b, machine, 1, 1, 1);
    tpg_nvml_ask(&settings, there, &a);
    tpg_nvml_ask(&settings, there, &b);
    tpb_settings_fini(&settings);
    tpt_topology_free(machine);
    tpx_card_gpus(&a);
    tpx_card_gpus(&b);
    ck_assert_int_eq(tpt_score(&a, &b, NULL, &plan, NULL), TP_OK);
    tpt_device_score(&a, &b, &plan, 0, 1, &devices);
}

START_TEST(test_links)
{
    setenv("NVMLDOUBLE_LINKS", "4", 1);
    nvml_ask(nvml_double(), 2);
    ck_assert_int_eq(a.gpus[0].asked, TPT_LINKS_NVML);
    ck_assert_uint_eq(a.gpus[0].link_count, 1);
    ck_assert_uint_eq(a.gpus[0].links[0].pci, b.gpus[1].place.pci);
    ck_assert_uint_eq(a.gpus[0].links[0].count, 4);
    ck_assert_int_eq(devices.path, TPT_PATH_NVL);
    ck_assert_str_eq(devices.evidence, "4 NVLinks between them, says NVML");
    ck_assert_str_eq(devices.ways[0].name, "cuda_ipc");
    ck_assert_uint_eq(devices.ways[0].megabytes, 4 * 26562);
}
END_TEST

START_TEST(test_switches)
{
    setenv("NVMLDOUBLE_SWITCHED", "18", 1);
    nvml_ask(nvml_double(), 2);
    ck_assert_uint_eq(a.gpus[1].switched, 18);
    ck_assert_uint_eq(a.gpus[1].link_count, 0);
    ck_assert_int_eq(devices.path, TPT_PATH_NVL);
    ck_assert_uint_eq(devices.ways[0].megabytes, 18 * 26562);
}
END_TEST

START_TEST(test_none_and_denied)
{
    setenv("NVMLDOUBLE_DENIED", "1", 1);
    nvml_ask(nvml_double(), 2);
    ck_assert_int_eq(devices.path, TPT_PATH_PHB);
    ck_assert_uint_eq(a.gpus[0].denied_count, 1);
    ck_assert_str_eq(devices.ways[0].name, "cuda_staged");
    for (uint32_t i = 0; i < devices.count; i++)
        if (strcmp(devices.ways[i].name, "cuda_ipc") == 0)
            ck_assert_int_eq(devices.ways[i].reason,
                             TPT_REASON_NO_PEER_ACCESS);
}
END_TEST

/* Whatever is missing: nothing is known, and nothing fails. */
START_TEST(test_unknown)
{
    nvml_ask("/nonexistent/libnvidia-ml.so.1", 2);
    ck_assert_int_eq(a.gpus[0].asked, TPT_LINKS_UNKNOWN);
    nvml_ask("libc.so.6", 2);
    ck_assert_int_eq(a.gpus[0].asked, TPT_LINKS_UNKNOWN);
    setenv("NVMLDOUBLE_LINKS", "4", 1);
    nvml_ask("none", 2);
    ck_assert_int_eq(a.gpus[0].asked, TPT_LINKS_UNKNOWN);
    /* The machine has one GPU: it is not even loaded. */
    nvml_ask(nvml_double(), 1);
    ck_assert_int_eq(a.gpus[0].asked, TPT_LINKS_UNKNOWN);
    setenv("NVMLDOUBLE_FAIL", "9", 1);
    nvml_ask(nvml_double(), 2);
    ck_assert_int_eq(a.gpus[0].asked, TPT_LINKS_UNKNOWN);
    ck_assert_int_eq(devices.path, TPT_PATH_PHB);
    unsetenv("NVMLDOUBLE_FAIL");
    /* It knows one GPU of the two. */
    setenv("NVMLDOUBLE_GPUS", "1", 1);
    nvml_ask(nvml_double(), 2);
    ck_assert_int_eq(a.gpus[1].asked, TPT_LINKS_UNKNOWN);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nvml");
    TCase *tests = tcase_create("nvml");

    tcase_set_timeout(tests, 180);
    tcase_add_test(tests, test_links);
    tcase_add_test(tests, test_switches);
    tcase_add_test(tests, test_none_and_denied);
    tcase_add_test(tests, test_unknown);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
