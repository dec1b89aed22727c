/* SPDX-License-Identifier: BSD-3-Clause */
/* A plan as JSON, with the fields that tp_explain(7) promises, and as text. */
#include "config.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "tests/lib/tpx.h"
#include "tests/unit/cards.h"
#include "topology/devices.h"
#include "topology/report.h"

static struct tpt_card a, b;
static struct tpt_plan plan;

static void setup(void)
{
    struct tpt_topology *machine = tpx_machine("two-socket");

    tpx_card(&a, machine, 0, 0, 1);
    tpx_card(&b, machine, 6, 1, 1);
    tpt_topology_free(machine);
    b.backends[3].usable = 0;
    snprintf(b.backends[3].why, TPT_WORDS, "no \"RDMA\" device");
    ck_assert_int_eq(tpt_score(&a, &b, NULL, &plan, NULL), TP_OK);
}

static json_t *parse(char *text)
{
    json_error_t error;
    json_t *root;

    ck_assert_ptr_nonnull(text);
    root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(root != NULL, "%s: %s", error.text, text);
    free(text);
    return root;
}

/* "name:s possible:b ...": exactly these members, of these types (string,
 * boolean, integer, real, object, array, null or string). */
static void check_members(json_t *object, const char *members)
{
    static const char types[] = "oasirbbn";    /* in jansson's order */
    char copy[512], *save, *word;
    size_t count = 0;

    ck_assert(json_is_object(object));
    snprintf(copy, sizeof(copy), "%s", members);
    for (word = strtok_r(copy, " ", &save); word != NULL;
         word = strtok_r(NULL, " ", &save)) {
        char *colon = strchr(word, ':');
        json_t *member;
        char type;

        *colon = '\0';
        member = json_object_get(object, word);
        ck_assert_msg(member != NULL, "%s is missing", word);
        type = types[json_typeof(member)];
        ck_assert_msg(strchr(colon + 1, type) != NULL, "%s is %c", word, type);
        count++;
    }
    ck_assert_uint_eq(json_object_size(object), count);
}

static void check_rank(json_t *rank)
{
    check_members(rank, "job:s rank:i host:s pid:i place:o gpus:a");
    if (json_array_size(json_object_get(rank, "gpus")) > 0)
        check_members(json_array_get(json_object_get(rank, "gpus"), 0),
                      "index:i pci:s uuid:sn numa:i megabytes_per_second:i "
                      "nic:sn nic_path:sn nvlink_source:s nvlink_switched:i");
    check_members(json_object_get(rank, "place"),
                  "core:i l2:i l3:i numa:i package:i cpus:i");
}

#define PLAN_MEMBERS "version:i mine:o yours:o locality:s class:s chosen:sn " \
                     "routes:a omitted:i candidates:a devices:a"

/* tp_pipe_explain() tells of the connection, too. */
static void check_plan(json_t *root)
{
    bool pipe = json_object_get(root, "connected") != NULL;
    json_t *candidate, *list = json_object_get(root, "candidates");
    size_t i;

    check_members(root, pipe ? PLAN_MEMBERS " connected:b" : PLAN_MEMBERS);
    check_rank(json_object_get(root, "mine"));
    check_rank(json_object_get(root, "yours"));
    json_array_foreach(list, i, candidate) {
        check_members(candidate, "name:s role:s devices:b possible:b reason:s "
                      "reason_code:i reach:s over:sn latency_us:r "
                      "megabytes_per_second:r cost_us:r from_bytes:in "
                      "source:s model:o nic:sn carrier:sn "
                      "evidence:s remedy:s mine:o yours:o");
        check_members(json_object_get(candidate, "model"),
                      "latency_us:r megabytes_per_second:r");
        check_members(json_object_get(candidate, "mine"),
                      "built:b usable:b forbidden:b why:s trial:no");
        check_members(json_object_get(candidate, "yours"),
                      "built:b usable:b forbidden:b why:s trial:no");
    }
}

static void check_devices(json_t *root)
{
    json_t *device, *way;
    size_t i, j;

    json_array_foreach(json_object_get(root, "devices"), i, device) {
        check_members(device, "mine:i yours:i alike:i path:s evidence:s "
                      "chosen:sn routes:a ways:a");
        json_array_foreach(json_object_get(device, "ways"), j, way)
            check_members(way, "name:s possible:b reason:s reason_code:i "
                          "latency_us:r megabytes_per_second:r cost_us:r "
                          "from_bytes:in source:s model:o evidence:s "
                          "remedy:s");
    }
}

static const char *text_of(json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

START_TEST(test_json)
{
    json_t *root = parse(tpt_plan_json(&plan, &a, &b, true, NULL));
    json_t *list = json_object_get(root, "candidates"), *last;

    check_plan(root);
    ck_assert(json_is_true(json_object_get(root, "connected")));
    ck_assert_str_eq(text_of(root, "chosen"), "shm");
    ck_assert_str_eq(text_of(root, "locality"), "same host");
    ck_assert_str_eq(text_of(root, "class"), "node");
    ck_assert_str_eq(text_of(json_object_get(root, "yours"), "host"), "host1");
    ck_assert_uint_eq(json_array_size(list), 4);
    last = json_array_get(list, 3);
    ck_assert_str_eq(text_of(last, "name"), "ofi:verbs");
    ck_assert_str_eq(text_of(last, "reason"), "yours_unusable");
    ck_assert_int_eq(json_integer_value(json_object_get(last, "reason_code")),
                     TPT_REASON_YOURS_UNUSABLE);
    ck_assert_str_eq(text_of(json_object_get(last, "yours"), "why"),
                     "no \"RDMA\" device");
    ck_assert(json_is_true(json_object_get(json_object_get(last, "mine"),
                                           "usable")));
    json_decref(root);
}
END_TEST

/* What a trial refused costs nothing that could be compared. */
START_TEST(test_json_impossible)
{
    static const char *const terms[] = { "latency_us", "megabytes_per_second",
                                         "cost_us" };
    json_t *root, *list, *entry;
    size_t at, refused = 0;

    tpt_plan_demote(&plan, "shm", "no memory");
    root = parse(tpt_plan_json(&plan, &a, &b, true, NULL));
    list = json_object_get(root, "candidates");
    json_array_foreach(list, at, entry) {
        bool possible = json_is_true(json_object_get(entry, "possible"));

        refused += !possible;
        for (size_t i = 0; i < TPB_COUNT(terms); i++)
            ck_assert_int_eq(json_real_value(json_object_get(entry, terms[i]))
                             > 0, possible);
    }
    ck_assert_uint_ge(refused, 2);
    json_decref(root);
}
END_TEST

/* A provider that TP_BACKENDS names on one side is in the other's build. */
START_TEST(test_json_not_named)
{
    json_t *root, *last;

    snprintf(a.backends[3].name, TPT_NAME, "ofi:sockets");
    ck_assert_int_eq(tpt_score(&a, &b, NULL, &plan, NULL), TP_OK);
    root = parse(tpt_plan_json(&plan, &a, &b, true, NULL));
    check_plan(root);
    for (size_t i = 0; i < plan.count; i++) {
        last = json_array_get(json_object_get(root, "candidates"), i);
        if (strcmp(plan.candidates[i].name, "ofi:sockets") == 0)
            ck_assert_str_eq(text_of(json_object_get(last, "yours"), "why"),
                             "not named in TP_BACKENDS");
        if (strcmp(plan.candidates[i].name, "ofi:verbs") == 0)
            ck_assert_str_eq(text_of(json_object_get(last, "mine"), "why"),
                             "not in this build");
    }
    json_decref(root);
}
END_TEST

START_TEST(test_json_unknown)
{
    json_t *root = parse(tpt_plan_json_unknown(false, "it is \"new\""));

    check_members(root, "version:i connected:b reason:s");
    ck_assert(json_is_false(json_object_get(root, "connected")));
    ck_assert_str_eq(text_of(root, "reason"), "it is \"new\"");
    json_decref(root);
}
END_TEST

START_TEST(test_json_of_nothing)
{
    json_t *root;

    a.backend_count = b.backend_count = 0;
    ck_assert_int_eq(tpt_score(&a, &b, NULL, &plan, NULL), TP_OK);
    root = parse(tpt_plan_json(&plan, &a, &b, false, NULL));
    check_plan(root);
    ck_assert(json_is_false(json_object_get(root, "connected")));
    ck_assert(json_is_null(json_object_get(root, "chosen")));
    json_decref(root);
}
END_TEST

/* Words cut in the middle of a character, as snprintf() does it. */
START_TEST(test_json_not_utf8)
{
    json_t *root;

    snprintf(b.backends[3].why, TPT_WORDS, "ger\xc3\xa4t \xc3");
    ck_assert_int_eq(tpt_score(&a, &b, NULL, &plan, NULL), TP_OK);
    root = parse(tpt_plan_json(&plan, &a, &b, true, NULL));
    check_plan(root);
    ck_assert_str_eq(text_of(json_array_get(json_object_get(root,
                                                            "candidates"), 3),
                             "evidence"), "ger??t ?");
    json_decref(root);
}
END_TEST

START_TEST(test_json_random)
{
    uint64_t seed = 5;

    for (int i = 0; i < 300; i++) {
        json_t *root;

        tpx_card_random(&a, &seed);
        tpx_card_random(&b, &seed);
        ck_assert_int_eq(tpt_score(&a, &b, NULL, &plan, NULL), TP_OK);
        root = parse(tpt_plan_json(&plan, &a, &b, true, NULL));
        check_plan(root);
        check_devices(root);
        json_decref(root);
    }
}
END_TEST

START_TEST(test_json_devices)
{
    struct tpt_topology *machine = tpx_machine("gpu-switches");
    json_t *root, *list, *last;
    struct tpb_text text = { 0 };

    tpx_card(&a, machine, 0, 0, 1);
    tpx_card(&b, machine, 8, 1, 2);
    tpt_topology_free(machine);
    tpx_card_gpus(&a);
    tpx_card_gpus(&b);
    ck_assert_int_eq(tpt_score(&a, &b, NULL, &plan, NULL), TP_OK);
    root = parse(tpt_plan_json(&plan, &a, &b, true, NULL));
    check_plan(root);
    check_devices(root);
    list = json_object_get(root, "devices");
    ck_assert_uint_eq(json_array_size(list), 1);
    last = json_array_get(list, 0);
    ck_assert_str_eq(text_of(last, "path"), "NET");
    ck_assert_str_eq(text_of(last, "chosen"), "cuda_gdr");
    ck_assert_int_eq(json_integer_value(json_object_get(last, "alike")), 64);
    last = json_array_get(json_object_get(json_object_get(root, "mine"),
                                          "gpus"), 3);
    ck_assert_str_eq(text_of(last, "pci"), "0000:32:00.0");
    ck_assert_str_eq(text_of(last, "nic"), "mlx5_3");
    ck_assert_str_eq(text_of(last, "nic_path"), "PIX");
    json_decref(root);
    tpt_plan_text(&plan, &a, &b, &text);
    ck_assert_ptr_nonnull(strstr(text.text, "GPU 0 (0000:11:00.0) here and GPU"
                                 " 0 (0000:11:00.0) there: NET, NIC mlx5_0 "
                                 "here (PIX to the GPU), mlx5_0 there (PIX); "
                                 "64 pairs are so\n"));
    ck_assert_ptr_nonnull(strstr(text.text, "    buffers: cuda_gdr\n"));
    tpb_text_fini(&text);
}
END_TEST

START_TEST(test_text)
{
    struct tpb_text text = { 0 };

    tpt_plan_text(&plan, &a, &b, &text);
    ck_assert_ptr_nonnull(strstr(text.text, "rank 0 (host1, pid 4711) and "
                                 "rank 1 (host1, pid 4712): same host\n"));
    ck_assert_ptr_nonnull(strstr(text.text, "chosen: model for same host\n"));
    ck_assert_ptr_nonnull(strstr(text.text, "yours_unusable: no \"RDMA\" "
                                 "device\n"));
    ck_assert_ptr_nonnull(strstr(text.text, "remedy: fix that on host1"));
    ck_assert_ptr_null(strstr(text.text, "no backend connects them"));
    tpb_text_fini(&text);
    a.backend_count = b.backend_count = 0;
    ck_assert_int_eq(tpt_score(&a, &b, NULL, &plan, NULL), TP_OK);
    tpt_plan_text(&plan, &a, &b, &text);
    ck_assert_ptr_nonnull(strstr(text.text, "no backend connects them\n"));
    tpb_text_fini(&text);
}
END_TEST

/* Of the one that connected the pair, and in both forms. */
START_TEST(test_carrier)
{
    struct tpb_text text = { 0 };
    json_t *root, *candidate;
    size_t i;

    tpt_plan_carried(&plan, "shm", "smoke");
    tpt_plan_text(&plan, &a, &b, &text);
    ck_assert_ptr_nonnull(strstr(text.text, "chosen: model for same host, over "
                                 "smoke\n"));
    tpb_text_fini(&text);
    root = parse(tpt_plan_json(&plan, &a, &b, true, NULL));
    check_plan(root);
    json_array_foreach(json_object_get(root, "candidates"), i, candidate) {
        const char *carrier = text_of(candidate, "carrier");

        if (strcmp(text_of(candidate, "name"), "shm") == 0)
            ck_assert_pstr_eq(carrier, "smoke");
        else
            ck_assert_ptr_null(carrier);
    }
    json_decref(root);
}
END_TEST

START_TEST(test_plans)
{
    static struct tpt_planned planned[2];
    json_t *root, *list;

    for (int i = 0; i < 2; i++) {
        planned[i].plan = plan;
        planned[i].mine = a;
        planned[i].yours = b;
    }
    root = parse(tpt_plans_json(planned, 2));
    check_members(root, "version:i plans:a");
    list = json_object_get(root, "plans");
    ck_assert_uint_eq(json_array_size(list), 2);
    check_plan(json_array_get(list, 1));
    json_decref(root);
}
END_TEST

START_TEST(test_report)
{
    static const char *const carriers[TPT_BACKENDS] = { NULL, "smoke" };
    struct tpt_topology *machine = tpx_machine("nics-rdma");
    struct tpb_settings settings;
    json_t *root, *list;

    setenv("TP_SPIN", "17", 1);
    ck_assert_int_eq(tpb_settings_load(&settings, NULL), TP_OK);
    a.nic_count = tpt_topology_nics(machine, a.nics);
    root = parse(tpt_report_json(&a, carriers, machine, &settings));
    check_members(root, "version:i tp:s machine:o nics:a gpus:a backends:a "
                  "settings:a");
    check_members(json_object_get(root, "machine"), "host:s source:s "
                  "this_machine:b hash:s packages:i numa_nodes:i l3_caches:i "
                  "cores:i cpus:i memory:i");
    list = json_object_get(root, "nics");
    ck_assert_uint_eq(json_array_size(list), 5);
    check_members(json_array_get(list, 0), "name:s kind:s megabits:i numa:i "
                  "pci:s");
    ck_assert_str_eq(text_of(json_array_get(list, 0), "pci"), "0000:18:00.0");
    list = json_object_get(root, "backends");
    ck_assert_uint_eq(json_array_size(list), 4);
    check_members(json_array_get(list, 0), "name:s reach:s usable:b "
                  "forbidden:b why:s latency_us:r megabytes_per_second:i "
                  "role:s measured:a carrier:n");
    check_members(json_array_get(list, 1), "name:s reach:s usable:b "
                  "forbidden:b why:s latency_us:r megabytes_per_second:i "
                  "role:s measured:a carrier:s");
    ck_assert_str_eq(text_of(json_array_get(list, 1), "carrier"), "smoke");
    list = json_object_get(root, "settings");
    ck_assert_uint_eq(json_array_size(list), TPB_SET_COUNT);
    check_members(json_array_get(list, TPB_SET_SPIN), "variable:s value:s "
                  "source:s default:s values:s text:s");
    ck_assert_str_eq(text_of(json_array_get(list, TPB_SET_SPIN), "value"),
                     "17");
    ck_assert_str_eq(text_of(json_array_get(list, TPB_SET_SPIN), "source"),
                     "environment");
    json_decref(root);
    tpb_settings_fini(&settings);
    tpt_topology_free(machine);
}
END_TEST

/* The manual page knows every reason with its number, and every locality. */
START_TEST(test_manual)
{
    const char *source = getenv("TP_TEST_SOURCE");
    char path[1024], line[64], *page;

    snprintf(path, sizeof(path), "%s/man/man7/tp_explain.7",
             source != NULL ? source : ".");
    page = tpb_read_file(path, NULL);
    ck_assert_ptr_nonnull(page);
    for (int i = 0; i < TPT_REASON_COUNT; i++) {
        snprintf(line, sizeof(line), "\n.It %s (%d)\n",
                 tpt_reason_name((enum tpt_reason)i), i);
        ck_assert_msg(strstr(page, line) != NULL, "%s", line);
    }
    for (int i = 0; i <= TPT_OTHER_HOST; i++) {
        snprintf(line, sizeof(line), "\n.Dq %s",
                 tpt_locality_name((enum tpt_locality)i));
        ck_assert_msg(strstr(page, line) != NULL, "%s", line);
    }
    for (int i = 0; i <= TPT_PATH_UNKNOWN; i++) {
        snprintf(line, sizeof(line), "\n.It %s\n",
                 tpt_path_name((enum tpt_path)i));
        ck_assert_msg(strstr(page, line) != NULL, "%s", line);
    }
    tpb_free(page);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("explain");
    TCase *tests = tcase_create("explain");

    tcase_set_timeout(tests, 180);
    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_set_timeout(tests, 180);
    tcase_add_test(tests, test_json);
    tcase_add_test(tests, test_json_impossible);
    tcase_add_test(tests, test_json_not_named);
    tcase_add_test(tests, test_json_unknown);
    tcase_add_test(tests, test_json_of_nothing);
    tcase_add_test(tests, test_json_not_utf8);
    tcase_add_test(tests, test_json_random);
    tcase_add_test(tests, test_json_devices);
    tcase_add_test(tests, test_text);
    tcase_add_test(tests, test_carrier);
    tcase_add_test(tests, test_plans);
    tcase_add_test(tests, test_report);
    tcase_add_test(tests, test_manual);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
