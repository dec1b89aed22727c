/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of measured costs: kept, read, refused, and what it changes. */
#include "config.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "tests/lib/tpx.h"
#include "tests/unit/cards.h"
#include "topology/costs.h"

static const uint64_t hash = 0x00c0ffee12345678u;
static char folder[64];
static char path[128];
static struct tpb_settings settings;
static struct tpt_costs costs, loaded;
static struct tpb_error error;

static void set(const char *value)
{
    ck_assert_int_eq(tpb_settings_set(&settings, TPB_SET_COSTS, value, &error),
                     TP_OK);
}

static void setup(void)
{
    snprintf(folder, sizeof(folder), "/tmp/tp-costs-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/costs-00c0ffee12345678.json", folder);
    ck_assert_int_eq(tpb_settings_load(&settings, &error), TP_OK);
    set(folder);
    memset(&costs, 0, sizeof(costs));
    tpt_costs_row(&costs, "shm")->cost[TPT_SAME_L3]
        = (struct tpt_cost) { 180, 9000 };
    tpt_costs_row(&costs, "shm")->cost[TPT_SAME_HOST]
        = (struct tpt_cost) { 400, 7000 };
    tpt_costs_row(&costs, "ofi:tcp")->cost[TPT_SAME_L3]
        = (struct tpt_cost) { UINT32_MAX, 1 };
}

static void teardown(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
    tpb_settings_fini(&settings);
}

static void save(void)
{
    ck_assert_msg(tpt_costs_save(&settings, hash, "node\"07", &costs, &error)
                  == TP_OK, "%s", error.text);
}

/* Nothing but the file itself is left in the folder. */
static void check_alone(void)
{
    DIR *directory = opendir(folder);
    unsigned count = 0;

    ck_assert_ptr_nonnull(directory);
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    ck_assert_uint_eq(count, 3);
}

START_TEST(test_round_trip)
{
    ck_assert_int_eq(tpt_costs_load(&settings, hash, &loaded, &error), TP_OK);
    ck_assert_uint_eq(loaded.count, 0);
    save();
    check_alone();
    ck_assert_msg(tpt_costs_load(&settings, hash, &loaded, &error) == TP_OK,
                  "%s", error.text);
    ck_assert_uint_eq(strlen(loaded.when), strlen("2026-11-21T12:00:00Z"));
    memset(loaded.when, 0, sizeof(loaded.when));
    ck_assert_mem_eq(&loaded, &costs, sizeof(costs));
    /* Another machine has none. */
    ck_assert_int_eq(tpt_costs_load(&settings, hash + 1, &loaded, &error),
                     TP_OK);
    ck_assert_uint_eq(loaded.count, 0);
    /* Over the old one. */
    tpt_costs_row(&costs, "cma")->cost[TPT_SAME_L2]
        = (struct tpt_cost) { 1, UINT32_MAX };
    save();
    check_alone();
    ck_assert_int_eq(tpt_costs_load(&settings, hash, &loaded, &error), TP_OK);
    ck_assert_uint_eq(loaded.count, 3);
}
END_TEST

/* Every file that was cut, and every one with a byte changed, is either
 * refused with words or a table that a card can carry. */
START_TEST(test_damaged)
{
    static struct tpt_card card, decoded;
    static uint8_t blob[TPT_CARD_BYTES];
    struct tpt_topology *machine = tpx_machine("one-socket");
    unsigned refused = 0;
    size_t length, encoded;
    char *text;

    save();
    text = tpb_read_file(path, &length);
    ck_assert_ptr_nonnull(text);
    for (size_t i = 0; i < 2 * length; i++) {
        FILE *file = fopen(path, "w");
        tp_status status;
        char kept = text[i / 2];

        if (i % 2 == 1)
            text[i / 2] ^= (char)(1 << (i / 2) % 7);
        fwrite(text, 1, i % 2 == 1 ? length : i / 2, file);
        fclose(file);
        text[i / 2] = kept;
        error.text[0] = '\0';
        status = tpt_costs_load(&settings, hash, &loaded, &error);
        if (status != TP_OK) {
            refused++;
            ck_assert_int_eq(status, TP_ERR_INVALID);
            ck_assert_uint_eq(loaded.count, 0);
            ck_assert_ptr_nonnull(strstr(error.text, path));
            ck_assert_ptr_nonnull(strstr(error.text, "--calibrate"));
            continue;
        }
        tpx_card(&card, machine, 0, 0, 1);
        tpt_costs_apply(&loaded, &card);
        ck_assert_int_eq(tpt_card_encode(&card, blob, &encoded), TP_OK);
        ck_assert_int_eq(tpt_card_decode(blob, encoded, &decoded, &error),
                         TP_OK);
    }
    ck_assert_uint_gt(refused, length);
    tpb_free(text);
    tpt_topology_free(machine);
}
END_TEST

static const struct { const char *text, *words; } wrongs[] = {
    { "", "not used" },
    { "[]", "not a table of costs" },
    { "{\"format\": \"tp-costs\", \"version\": 2}", "of another version" },
    { "{\"format\": \"tp-costs\", \"version\": 1, \"machine\": \"0\"}",
      "about another machine" },
    { "{\"format\": \"tp-costs\", \"version\": 1, \"machine\": "
      "\"00c0ffee12345678\"}", "a member is missing" },
    { "{\"format\": \"tp-costs\", \"version\": 1, \"machine\": "
      "\"00c0ffee12345678\", \"when\": \"now\", \"costs\": [{}]}",
      "a row is malformed" },
    { "{\"format\": \"tp-costs\", \"version\": 1, \"machine\": "
      "\"00c0ffee12345678\", \"when\": \"now\", \"costs\": [{\"backend\": "
      "\"shm\", \"locality\": \"same L3\", \"latency_ns\": 4294967296, "
      "\"megabytes_per_second\": 1}]}", "a row is malformed" },
    { "{\"format\": \"tp-costs\", \"version\": 1, \"machine\": "
      "\"00c0ffee12345678\", \"when\": \"now\", \"costs\": [{\"backend\": "
      "\"shm\", \"locality\": \"same L4\", \"latency_ns\": 1, "
      "\"megabytes_per_second\": 1}]}", "a row is malformed" },
    { "{\"format\": \"tp-costs\", \"version\": 1, \"machine\": "
      "\"00c0ffee12345678\", \"when\": \"now\", \"costs\": [{\"backend\": "
      "\"shm\", \"locality\": \"same L3\", \"latency_ns\": 1, "
      "\"megabytes_per_second\": 0}]}", "a row is malformed" },
};

START_TEST(test_wrong)
{
    FILE *file = fopen(path, "w");

    fputs(wrongs[_i].text, file);
    fclose(file);
    ck_assert_int_eq(tpt_costs_load(&settings, hash, &loaded, &error),
                     TP_ERR_INVALID);
    ck_assert_msg(strstr(error.text, wrongs[_i].words) != NULL, "%s",
                  error.text);
    ck_assert_int_eq(tpt_costs_load(&settings, hash, &loaded, NULL),
                     TP_ERR_INVALID);
}
END_TEST

/* What would hold up or eat up a job that reads it. */
START_TEST(test_no_file)
{
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(tpt_costs_load(&settings, hash, &loaded, &error),
                     TP_ERR_INVALID);
    unlink(path);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(tpt_costs_load(&settings, hash, &loaded, &error),
                     TP_ERR_INVALID);
    ck_assert_int_eq(tpt_costs_save(&settings, hash, "h", &costs, &error),
                     TP_ERR_SYSTEM);
    ck_assert_ptr_nonnull(strstr(error.text, path));
    error.text[0] = '\0';
    ck_assert_int_eq(tpt_costs_try(&settings, hash, &error), TP_ERR_SYSTEM);
    ck_assert_ptr_nonnull(strstr(error.text, path));
    check_alone();
    rmdir(path);
    ck_assert_int_eq(tpt_costs_try(&settings, hash, &error), TP_OK);
    ck_assert_int_ne(access(path, F_OK), 0);
    save();
    ck_assert_int_eq(truncate(path, 1 << 30), 0);
    ck_assert_int_eq(tpt_costs_load(&settings, hash, &loaded, &error),
                     TP_ERR_INVALID);
}
END_TEST

/* A home that is another user's has no table; a folder that was named should
 * be open. */
START_TEST(test_closed)
{
    uid_t user = geteuid();

    ck_assert_int_eq(chmod(folder, 0), 0);
    setenv("XDG_CACHE_HOME", folder, 1);
    if (user == 0)
        ck_assert_int_eq(seteuid(54321), 0);
    ck_assert_int_eq(tpt_costs_load(&settings, hash, &loaded, &error),
                     TP_ERR_SYSTEM);
    set("");
    ck_assert_msg(tpt_costs_load(&settings, hash, &loaded, &error) == TP_OK,
                  "%s", error.text);
    ck_assert_int_eq(seteuid(user), 0);
    ck_assert_int_eq(chmod(folder, 0700), 0);
}
END_TEST

/* The path is what it should be, or there is none. */
static void expect_path(const char *wanted)
{
    char *got = NULL;
    tp_status status = tpt_costs_path(&settings, 0xab, &got, &error);

    if (wanted == NULL) {
        ck_assert_int_eq(status, TP_ERR_NOT_FOUND);
        ck_assert_ptr_nonnull(strstr(error.text, "TP_COSTS"));
        return;
    }
    ck_assert_int_eq(status, TP_OK);
    ck_assert_str_eq(got, wanted);
    tpb_free(got);
}

START_TEST(test_where)
{
    char nested[128];

    expect_path(strcat(strcpy(nested, folder),
                       "/costs-00000000000000ab.json"));
    set("none");
    expect_path(NULL);
    ck_assert_int_eq(tpt_costs_load(&settings, hash, &loaded, &error), TP_OK);
    ck_assert_int_eq(tpt_costs_save(&settings, hash, "h", &costs, &error),
                     TP_ERR_NOT_FOUND);
    set("");
    setenv("HOME", "/nonexistent/a", 1);
    setenv("XDG_CACHE_HOME", "/var/b", 1);
    expect_path("/var/b/tp/costs-00000000000000ab.json");
    setenv("XDG_CACHE_HOME", "not/absolute", 1);
    expect_path("/nonexistent/a/.cache/tp/costs-00000000000000ab.json");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "not/absolute", 1);
    expect_path(NULL);
    ck_assert_int_eq(tpt_costs_save(&settings, hash, "h", &costs, &error),
                     TP_ERR_NOT_FOUND);
    ck_assert_msg(strstr(error.text, "HOME is no absolute path") != NULL,
                  "%s", error.text);
    unsetenv("HOME");
    expect_path(NULL);
    ck_assert_int_eq(tpt_costs_load(&settings, hash, &loaded, &error), TP_OK);
    /* Folders are made. */
    snprintf(nested, sizeof(nested), "%s/x/y/z", folder);
    set(nested);
    ck_assert_int_eq(tpt_costs_load(&settings, hash, &loaded, &error),
                     TP_ERR_NOT_FOUND);
    ck_assert_msg(strstr(error.text, nested) != NULL
                  && strstr(error.text, "tpperf --calibrate") != NULL, "%s",
                  error.text);
    save();
    ck_assert_int_eq(tpt_costs_load(&settings, hash, &loaded, &error), TP_OK);
    ck_assert_uint_eq(loaded.count, 2);
    set("/dev/null");
    ck_assert_int_eq(tpt_costs_load(&settings, hash, &loaded, &error),
                     TP_ERR_NOT_FOUND);
}
END_TEST

START_TEST(test_rows)
{
    char name[TPT_NAME + 1];

    ck_assert_ptr_null(tpt_costs_row(&costs, ""));
    memset(name, 'n', TPT_NAME);
    name[TPT_NAME] = '\0';
    ck_assert_ptr_null(tpt_costs_row(&costs, name));
    for (int i = 2; i < TPT_BACKENDS; i++) {
        snprintf(name, sizeof(name), "b%d", i);
        ck_assert_ptr_nonnull(tpt_costs_row(&costs, name));
    }
    ck_assert_ptr_null(tpt_costs_row(&costs, "more"));
    ck_assert_ptr_nonnull(tpt_costs_row(&costs, "shm"));
}
END_TEST

/* A table on either side changes the choice for both. */
START_TEST(test_choice)
{
    static struct tpt_card a, b;
    static struct tpt_plan plan, mirror;
    struct tpt_topology *machine = tpx_machine("one-socket");

    tpx_card(&a, machine, 0, 0, 1);
    tpx_card(&b, machine, 1, 1, 1);
    tpt_topology_free(machine);
    tpt_costs_row(&costs, "shm")->cost[TPT_SAME_L3]
        = (struct tpt_cost) { 9000, 500 };
    tpt_costs_apply(&costs, &a);
    for (int side = 0; side < 2; side++) {
        const struct tpt_candidate *best = plan.candidates;

        ck_assert_int_eq(tpt_score(&a, &b, NULL, &plan, NULL), TP_OK);
        ck_assert_int_eq(tpt_score(&b, &a, NULL, &mirror, NULL), TP_OK);
        ck_assert_str_eq(best->name, "ofi:verbs");
        ck_assert(!best->measured);
        ck_assert_uint_eq(best->model_latency_ns, best->latency_ns);
        ck_assert_str_eq(best[1].name, "shm");
        ck_assert_str_eq(mirror.candidates[1].name, "shm");
        ck_assert(best[1].measured);
        ck_assert_uint_eq(best[1].latency_ns, 9000);
        ck_assert_uint_eq(best[1].megabytes, 500);
        ck_assert_uint_eq(best[1].model_latency_ns, 250);
        ck_assert_uint_eq(best[1].model_megabytes, 12000);
        ck_assert_str_eq(best[1].evidence, "measured for same L3 (model: "
                         "0.25 us, 12000 MB/s)");
        /* Two tables: the slower figure of each. */
        tpt_costs_row(&costs, "shm")->cost[TPT_SAME_L3]
            = (struct tpt_cost) { 100, 8000 };
        tpt_costs_apply(&costs, &b);
    }
}
END_TEST

/* Also for channels, whose crossover moves. */
START_TEST(test_crossover)
{
    static struct tpt_card a, b;
    static struct tpt_plan plan;
    struct tpt_topology *machine = tpx_machine("one-socket");

    tpx_card(&a, machine, 0, 0, 1);
    tpx_card(&b, machine, 1, 1, 1);
    tpt_topology_free(machine);
    a.backends[3].usable = 0;
    tpx_card_channel(&a, "cma", "", 1000, 6000);
    tpx_card_channel(&b, "cma", "", 1000, 6000);
    ck_assert_int_eq(tpt_score(&a, &b, NULL, &plan, NULL), TP_OK);
    ck_assert_int_eq(tpt_plan_channel(&plan, UINT64_C(1) << 40, 0),
                     TPT_PLAN_TRANSPORT);
    tpt_costs_row(&costs, "cma")->cost[TPT_SAME_L3]
        = (struct tpt_cost) { 1000, 18000 };
    tpt_costs_apply(&costs, &b);
    ck_assert_int_eq(tpt_score(&a, &b, NULL, &plan, NULL), TP_OK);
    /* 1000 ns * 9 * 18 / (18 - 9) */
    ck_assert_int_eq(tpt_plan_channel(&plan, 17999, 0), TPT_PLAN_TRANSPORT);
    ck_assert_str_eq(plan.candidates[tpt_plan_channel(&plan, 18000, 0)].name,
                     "cma");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("costs");
    TCase *tests = tcase_create("costs");

    tcase_set_timeout(tests, 180);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_round_trip);
    tcase_add_test(tests, test_damaged);
    tcase_add_loop_test(tests, test_wrong, 0, TPB_COUNT(wrongs));
    tcase_add_test(tests, test_no_file);
    tcase_add_test(tests, test_closed);
    tcase_add_test(tests, test_where);
    tcase_add_test(tests, test_rows);
    tcase_add_test(tests, test_choice);
    tcase_add_test(tests, test_crossover);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
