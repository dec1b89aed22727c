/* SPDX-License-Identifier: BSD-3-Clause */
/* The order of the candidates, the reasons, the contract. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/tpx.h"
#include "tests/unit/cards.h"

/* Too big for every frame of a test. */
static struct tpt_card a, b;
static struct tpt_plan plan, mirror;

/* Two ranks of one recorded machine. */
static void pair(const char *name, uint32_t core_a, uint32_t core_b)
{
    struct tpt_topology *machine = tpx_machine(name);

    tpx_card(&a, machine, core_a, 0, 1);
    tpx_card(&b, machine, core_b, 1, 1);
    tpt_topology_free(machine);
}

/* One rank on each of two. */
static void hosts(const char *name_a, const char *name_b)
{
    struct tpt_topology *machine_a = tpx_machine(name_a);
    struct tpt_topology *machine_b = tpx_machine(name_b);

    tpx_card(&a, machine_a, 0, 0, 1);
    tpx_card(&b, machine_b, 0, 1, 2);
    tpt_topology_free(machine_a);
    tpt_topology_free(machine_b);
}

static void score(const char *backends, const char *require)
{
    struct tpt_policy policy = { backends, require };
    struct tpb_error error = { "" };

    ck_assert_msg(tpt_score(&a, &b, &policy, &plan, &error) == TP_OK, "%s",
                  error.text);
}

/* "shm ofi:tcp|loop": the possible ones in order, then the others. */
static const char *order(const struct tpt_plan *of)
{
    static char text[2][TPT_BACKENDS * TPT_NAME];
    static unsigned next;
    char *line = text[next++ % 2];
    bool possible = true;

    line[0] = '\0';
    for (uint32_t i = 0; i < of->count; i++) {
        const struct tpt_candidate *candidate = &of->candidates[i];

        ck_assert(possible || !candidate->possible);
        if (possible && !candidate->possible)
            strcat(line, "|");
        else if (i > 0)
            strcat(line, " ");
        possible = candidate->possible;
        strcat(line, candidate->name);
    }
    return line;
}

static const struct tpt_candidate *find(const char *name)
{
    for (uint32_t i = 0; i < plan.count; i++)
        if (strcmp(plan.candidates[i].name, name) == 0)
            return &plan.candidates[i];
    ck_abort_msg("no candidate %s in %s", name, order(&plan));
}

/* ---- the order on recorded machines ------------------------------------ */

static const struct {
    const char *name_a, *name_b;   /* the same: one machine, two cores */
    uint32_t core_a, core_b;
    const char *order;
} orders[] = {
    { "one-socket", NULL, 0, 1, "shm ofi:verbs ofi:tcp|loop" },
    { "two-socket", NULL, 0, 6, "shm ofi:verbs ofi:tcp|loop" },
    { "sub-numa", NULL, 0, 3, "shm ofi:verbs ofi:tcp|loop" },
    { "chiplets", NULL, 0, 1, "shm ofi:verbs ofi:tcp|loop" },
    { "chiplets", NULL, 0, 15, "shm ofi:verbs ofi:tcp|loop" },
    { "small-vm", NULL, 0, 1, "shm ofi:verbs ofi:tcp|loop" },
    { "no-l3", NULL, 0, 3, "shm ofi:verbs ofi:tcp|loop" },
    { "nics-rdma", NULL, 0, 4, "shm ofi:verbs ofi:tcp|loop" },
    { "cloud-vm", NULL, 0, 1, "shm ofi:verbs ofi:tcp|loop" },
    { "nics-rdma", "nics-rdma", 0, 0, "ofi:verbs ofi:tcp|loop shm" },
    { "nics-rdma", "nics-slow", 0, 0, "ofi:verbs ofi:tcp|loop shm" },
    { "small-vm", "one-socket", 0, 0, "ofi:verbs ofi:tcp|loop shm" },
};

START_TEST(test_orders)
{
    if (orders[_i].name_b == NULL)
        pair(orders[_i].name_a, orders[_i].core_a, orders[_i].core_b);
    else
        hosts(orders[_i].name_a, orders[_i].name_b);
    score(NULL, NULL);
    ck_assert_msg(strcmp(order(&plan), orders[_i].order) == 0, "%s: %s",
                  tpt_locality_name(plan.locality), order(&plan));
    ck_assert_int_eq(plan.candidates[0].reason, TPT_REASON_CHOSEN);
    ck_assert_int_eq(tpt_plan_best(&plan), 0);
}
END_TEST

START_TEST(test_self)
{
    pair("one-socket", 0, 0);
    b = a;
    score(NULL, NULL);
    ck_assert_int_eq(plan.locality, TPT_SAME_PROCESS);
    ck_assert_str_eq(order(&plan), "loop|ofi:tcp ofi:verbs shm");
    ck_assert_int_eq(find("shm")->reason, TPT_REASON_NOT_OTHER_PROCESS);
}
END_TEST

/* ---- the model --------------------------------------------------------- */

START_TEST(test_terms)
{
    pair("one-socket", 0, 1);
    a.backends[1].latency_ns = 300;
    b.backends[1].megabytes = 8000;
    score(NULL, NULL);
    /* The slower side of each; 65536 / 8000 MB/s = 8.192 us. */
    ck_assert_double_eq_tol(find("shm")->latency_us, 0.300, 1e-9);
    ck_assert_double_eq_tol(find("shm")->megabytes, 8000, 1e-9);
    ck_assert_double_eq_tol(find("shm")->cost_us, 8.492, 1e-9);
}
END_TEST

START_TEST(test_slow_nic_limits)
{
    hosts("nics-rdma", "nics-slow");
    a.backends[3].megabytes = b.backends[3].megabytes = 50000;
    score(NULL, NULL);
    /* 1 Gb/s at the one end: 125 MB/s. */
    ck_assert_double_eq_tol(find("ofi:tcp")->megabytes, 125, 1e-9);
    ck_assert_ptr_nonnull(strstr(find("ofi:tcp")->evidence, "NIC eth0"));
    /* The other end has no RDMA device of a known speed: 200 Gb/s limit. */
    ck_assert_double_eq_tol(find("ofi:verbs")->megabytes, 25000, 1e-9);
    ck_assert_ptr_nonnull(strstr(find("ofi:verbs")->evidence, "NIC mlx5_0"));
    /* Inside a host no NIC matters. */
    pair("nics-slow", 0, 1);
    score(NULL, NULL);
    ck_assert_double_eq_tol(find("ofi:tcp")->megabytes, 3000, 1e-9);
    /* But an RDMA device, whose link the data passes twice. */
    ck_assert_double_eq_tol(find("ofi:verbs")->megabytes, 12000, 1e-9);
}
END_TEST

START_TEST(test_far_nic)
{
    hosts("nics-rdma", "nics-rdma");
    for (uint32_t i = 0; i < a.nic_count; i++)
        if (strcmp(a.nics[i].name, "mlx5_0") == 0)
            a.nics[i].megabits = 0;
    score(NULL, NULL);
    /* Only mlx5_1 is left, at the other node: 90 % of 25000. */
    ck_assert_double_eq_tol(find("ofi:verbs")->megabytes, 22500, 1e-9);
    ck_assert_ptr_nonnull(strstr(find("ofi:verbs")->evidence, "NIC mlx5_1"));
}
END_TEST

START_TEST(test_ties_by_name)
{
    pair("one-socket", 0, 1);
    a.backend_count = b.backend_count = 0;
    for (int i = 0; i < 3; i++) {
        tpx_card_add(&a, (const char *[]){ "c", "a", "b" }[i],
                     TPT_REACH_HOST, 100, 1000);
        tpx_card_add(&b, (const char *[]){ "b", "c", "a" }[i],
                     TPT_REACH_HOST, 100, 1000);
    }
    score(NULL, NULL);
    ck_assert_str_eq(order(&plan), "a b c");
}
END_TEST

START_TEST(test_no_bandwidth_given)
{
    pair("one-socket", 0, 1);
    a.backends[1].megabytes = 0;
    score(NULL, NULL);
    ck_assert_double_eq_tol(find("shm")->megabytes, 1, 1e-9);
    a.backend_count = b.backend_count = 0;
    score(NULL, NULL);
    ck_assert_uint_eq(plan.count, 0);
    ck_assert_int_eq(tpt_plan_best(&plan), -1);
}
END_TEST

/* ---- properties over random cards -------------------------------------- */

static bool same_order(void)
{
    return strcmp(order(&plan), order(&mirror)) == 0;
}

static uint32_t rank_of(const struct tpt_plan *of, const char *name)
{
    uint32_t i = 0;

    while (i < of->count && strcmp(of->candidates[i].name, name) != 0)
        i++;
    return i;
}

/* Every backend of either card is there, once, unless there is no room. */
static void check_total(void)
{
    uint32_t names = a.backend_count;

    for (uint32_t i = 0; i < b.backend_count; i++)
        names += tpt_card_backend(&a, b.backends[i].name) == NULL;
    ck_assert_uint_eq(plan.count + plan.omitted, names);
    for (uint32_t i = 0; i < plan.count; i++) {
        const struct tpt_candidate *candidate = &plan.candidates[i];

        ck_assert(tpt_card_backend(&a, candidate->name) != NULL
                  || tpt_card_backend(&b, candidate->name) != NULL);
        ck_assert_uint_eq(rank_of(&plan, candidate->name), i);
        ck_assert_int_lt(candidate->reason, TPT_REASON_COUNT);
        ck_assert_int_eq(candidate->reason == TPT_REASON_CHOSEN,
                         i == 0 && candidate->possible);
        ck_assert_str_ne(candidate->evidence, "");
    }
}

START_TEST(test_symmetric_and_deterministic)
{
    uint64_t seed = 7;

    for (int i = 0; i < 5000; i++) {
        tpx_card_random(&a, &seed);
        tpx_card_random(&b, &seed);
        ck_assert_int_eq(tpt_locality(&a, &b), tpt_locality(&b, &a));
        score(NULL, NULL);
        check_total();
        memset(&mirror, 0xff, sizeof(mirror));
        ck_assert_int_eq(tpt_score(&a, &b, NULL, &mirror, NULL), TP_OK);
        ck_assert_mem_eq(&plan, &mirror, sizeof(plan));
        ck_assert_int_eq(tpt_score(&b, &a, NULL, &mirror, NULL), TP_OK);
        ck_assert_msg(same_order(), "%s / %s", order(&plan), order(&mirror));
        for (uint32_t j = 0; j < plan.count; j++)
            ck_assert_double_eq(plan.candidates[j].cost_us,
                                mirror.candidates[j].cost_us);
    }
}
END_TEST

/* Whatever gets slower on one side never rises. */
START_TEST(test_monotone)
{
    uint64_t seed = 21;

    for (int i = 0; i < 5000; i++) {
        struct tpt_backend_card *changed;
        uint32_t before, after;

        tpx_card_random(&a, &seed);
        tpx_card_random(&b, &seed);
        if (a.backend_count == 0)
            continue;
        score(NULL, NULL);
        changed = &a.backends[tpx_random_below(&seed, a.backend_count)];
        before = rank_of(&plan, changed->name);
        if (before == plan.count)
            continue;              /* one of the omitted */
        mirror = plan;
        if (tpx_random_below(&seed, 2) == 0)
            changed->latency_ns *= 1 + tpx_random_below(&seed, 9);
        else
            changed->megabytes /= 1 + tpx_random_below(&seed, 9);
        score(NULL, NULL);
        after = rank_of(&plan, changed->name);
        ck_assert_uint_ge(after, before);
        ck_assert_double_ge(plan.candidates[after].cost_us,
                            mirror.candidates[before].cost_us);
    }
}
END_TEST

START_TEST(test_farther_is_never_cheaper)
{
    static const uint32_t cores[] = { 0, 1, 2, 4 };
    double last = 0;

    for (size_t i = 0; i < TPB_COUNT(cores); i++) {
        pair("chiplets", 0, cores[i]);
        score(NULL, NULL);
        ck_assert_double_ge(find("shm")->cost_us, last);
        last = find("shm")->cost_us;
    }
    pair("two-socket", 0, 6);
    score(NULL, NULL);
    ck_assert_double_gt(find("shm")->cost_us, last);
}
END_TEST

START_TEST(test_no_room)
{
    char name[TPT_NAME];

    pair("one-socket", 0, 1);
    a.backend_count = b.backend_count = 0;
    for (uint32_t i = 0; i < TPT_BACKENDS; i++) {
        snprintf(name, sizeof(name), "a%02u", i);
        tpx_card_add(&a, name, TPT_REACH_HOST, 100, 1000);
        snprintf(name, sizeof(name), i == 0 ? "a15" : "b%02u", i);
        tpx_card_add(&b, name, TPT_REACH_HOST, 100, 1000);
    }
    score(NULL, NULL);
    ck_assert_uint_eq(plan.count, TPT_BACKENDS);
    ck_assert_uint_eq(plan.omitted, TPT_BACKENDS - 1);
    ck_assert_str_eq(plan.candidates[0].name, "a15");
    ck_assert(plan.candidates[0].possible);
}
END_TEST

/* ---- the reasons ------------------------------------------------------- */

static unsigned reasons_seen;

/* The candidate has this verdict, and says these words. */
static void expect(const char *name, enum tpt_reason reason,
                   const char *evidence, const char *remedy)
{
    const struct tpt_candidate *candidate = find(name);

    ck_assert_str_eq(tpt_reason_name(candidate->reason),
                     tpt_reason_name(reason));
    ck_assert_msg(strstr(candidate->evidence, evidence) != NULL, "%s",
                  candidate->evidence);
    ck_assert_msg(remedy == NULL ? candidate->remedy[0] == '\0'
                  : strstr(candidate->remedy, remedy) != NULL, "%s",
                  candidate->remedy);
    ck_assert_int_eq(candidate->possible, reason == TPT_REASON_CHOSEN
                     || reason == TPT_REASON_SLOWER);
    reasons_seen |= 1u << reason;
}

static void expect_reach(void)
{
    pair("one-socket", 0, 1);
    score(NULL, NULL);
    expect("shm", TPT_REASON_CHOSEN, "same L3", NULL);
    expect("ofi:tcp", TPT_REASON_SLOWER, "same L3", NULL);
    expect("loop", TPT_REASON_NOT_SAME_PROCESS, "itself", NULL);
    b = a;
    score(NULL, NULL);
    expect("shm", TPT_REASON_NOT_OTHER_PROCESS, "others", NULL);
    hosts("one-socket", "small-vm");
    score(NULL, NULL);
    expect("shm", TPT_REASON_NOT_SAME_HOST, "host1 and host2", NULL);
}

static void expect_probes(void)
{
    hosts("one-socket", "small-vm");
    a.backends[2].usable = 0;
    snprintf(a.backends[2].why, TPT_WORDS, "no address but the loopback's");
    b.backends[3].usable = 0;
    snprintf(b.backends[3].why, TPT_WORDS, "no RDMA device");
    score(NULL, NULL);
    expect("ofi:tcp", TPT_REASON_MINE_UNUSABLE, "no address but",
           "on this host");
    expect("ofi:verbs", TPT_REASON_YOURS_UNUSABLE, "no RDMA device", "host2");
    a.backend_count = 3;
    snprintf(b.backends[2].name, TPT_NAME, "ofi:efa");
    score(NULL, NULL);
    expect("ofi:verbs", TPT_REASON_MINE_LACKS, "the one here has not",
           "ofi:verbs");
    expect("ofi:tcp", TPT_REASON_YOURS_LACKS, "host2", "on host2");
}

static void expect_policy(void)
{
    pair("one-socket", 0, 1);
    score("^shm", NULL);
    expect("shm", TPT_REASON_FORBIDDEN, "TP_BACKENDS=^shm", "take shm out");
    score("shm", NULL);
    expect("ofi:tcp", TPT_REASON_FORBIDDEN, "TP_BACKENDS=shm",
           "add ofi:tcp");
    b.backends[1].forbidden = 1;
    b.backends[1].usable = 0;
    score(NULL, NULL);
    expect("shm", TPT_REASON_FORBIDDEN, "TP_BACKENDS on host1", "host1");
    a.backends[1].forbidden = 1;
    score(NULL, NULL);
    expect("shm", TPT_REASON_FORBIDDEN, "TP_BACKENDS here", "here");
    pair("one-socket", 0, 1);
    score(NULL, "node:ofi:tcp,node:ofi:verbs");
    expect("shm", TPT_REASON_CONTRACT, "wants ofi:tcp, ofi:verbs for class "
           "node", "add node:shm");
    expect("ofi:verbs", TPT_REASON_CHOSEN, "", NULL);
}

static void expect_trial(void)
{
    pair("one-socket", 0, 1);
    score(NULL, NULL);
    tpt_plan_demote(&plan, "shm", "connect: Operation not permitted");
    expect("shm", TPT_REASON_TRIAL_FAILED, "not permitted", "^shm");
    expect("ofi:verbs", TPT_REASON_CHOSEN, "", NULL);
}

START_TEST(test_every_reason)
{
    reasons_seen = 0;
    expect_reach();
    expect_probes();
    expect_policy();
    expect_trial();
    ck_assert_uint_eq(reasons_seen, (1u << TPT_REASON_COUNT) - 1);
}
END_TEST

START_TEST(test_demote)
{
    pair("one-socket", 0, 1);
    score(NULL, NULL);
    ck_assert_str_eq(order(&plan), "shm ofi:verbs ofi:tcp|loop");
    mirror = plan;
    tpt_plan_demote(&plan, "nonesuch", "x");
    ck_assert_mem_eq(&plan, &mirror, sizeof(plan));
    tpt_plan_demote(&plan, "ofi:verbs", "no answer");
    ck_assert_str_eq(order(&plan), "shm ofi:tcp|loop ofi:verbs");
    ck_assert_int_eq(plan.candidates[0].reason, TPT_REASON_CHOSEN);
    tpt_plan_demote(&plan, "shm", "refused");
    ck_assert_str_eq(order(&plan), "ofi:tcp|loop ofi:verbs shm");
    ck_assert_int_eq(plan.candidates[0].reason, TPT_REASON_CHOSEN);
    tpt_plan_demote(&plan, "ofi:tcp", "refused");
    ck_assert_int_eq(tpt_plan_best(&plan), -1);
    ck_assert_uint_eq(plan.count, 4);
    tpt_plan_demote(&plan, "ofi:tcp", "again");
    ck_assert_str_eq(find("ofi:tcp")->evidence, "again");
}
END_TEST

/* ---- TP_BACKENDS and TP_REQUIRE ---------------------------------------- */

START_TEST(test_backends_policy)
{
    pair("one-socket", 0, 1);
    score("", NULL);
    ck_assert_str_eq(order(&plan), "shm ofi:verbs ofi:tcp|loop");
    score("ofi", NULL);
    ck_assert_str_eq(order(&plan), "ofi:verbs ofi:tcp|loop shm");
    score("^ofi:verbs,shm", NULL);
    ck_assert_str_eq(order(&plan), "ofi:tcp|loop ofi:verbs shm");
    score("nonesuch", NULL);
    ck_assert_int_eq(tpt_plan_best(&plan), -1);
}
END_TEST

static const struct {
    const char *require;
    enum tpt_locality locality;
    const char *backend;
    bool allowed;
} contracts[] = {
    { NULL, TPT_SAME_L3, "shm", true },
    { "", TPT_OTHER_HOST, "ofi:tcp", true },
    { "node:shm", TPT_SAME_L3, "shm", true },
    { "node:shm", TPT_SAME_HOST, "ofi:tcp", false },
    { "node:shm", TPT_SAME_PROCESS, "loop", true },
    { "node:shm", TPT_OTHER_HOST, "ofi:tcp", true },
    { "node:shm,net:ofi:tcp", TPT_OTHER_HOST, "ofi:tcp", true },
    { "node:shm,net:ofi:tcp", TPT_OTHER_HOST, "ofi:verbs", false },
    { "node:shm,net:ofi:tcp", TPT_SAME_CORE, "ofi:tcp", false },
    { "net:ofi", TPT_OTHER_HOST, "ofi:tcp", true },
    { "net:of", TPT_OTHER_HOST, "ofi:tcp", false },
    { "node:shm,node:cma", TPT_SAME_L2, "cma", true },
    { "node:shm,node:cma", TPT_SAME_L2, "shm", true },
    { "node:shm,node:cma", TPT_SAME_L2, "shm2", false },
    { "self:loop", TPT_SAME_PROCESS, "loop", true },
    { "self:loop", TPT_SAME_PROCESS, "shm", false },
    { "any:shm", TPT_OTHER_HOST, "ofi:tcp", false },
    { "any:shm,net:ofi:tcp", TPT_OTHER_HOST, "ofi:tcp", true },
    { "any:shm,net:ofi:tcp", TPT_OTHER_HOST, "shm", true },
    { " node:shm , net:ofi:tcp ", TPT_SAME_NUMA, "shm", true },
    { " node:shm , net:ofi:tcp ", TPT_OTHER_HOST, "ofi:tcp", true },
};

START_TEST(test_contract)
{
    struct tpb_error error = { "" };
    bool allowed = !contracts[_i].allowed;

    ck_assert_msg(tpt_require_allows(contracts[_i].require,
                                     contracts[_i].locality,
                                     contracts[_i].backend, &allowed, &error)
                  == TP_OK, "%s", error.text);
    ck_assert_int_eq(allowed, contracts[_i].allowed);
}
END_TEST

static const struct { const char *require, *words; } mistakes[] = {
    { "shm", "\"shm\" is not CLASS:BACKEND" },
    { "node", "\"node\" is not CLASS:BACKEND" },
    { "node:", "\"node:\" is not CLASS:BACKEND" },
    { ":shm", "\":shm\" is not CLASS:BACKEND" },
    { ":", "\":\" is not CLASS:BACKEND" },
    { ",", "is not CLASS:BACKEND" },
    { " ", "is not CLASS:BACKEND" },
    { "node:shm,", "\"\" is not CLASS:BACKEND" },
    { ",node:shm", "\"\" is not CLASS:BACKEND" },
    { "node:shm,,net:shm", "\"\" is not CLASS:BACKEND" },
    { "host:shm", "unknown class \"host\"; there are self, node, net and any" },
    { "nod:shm", "unknown class \"nod\"" },
    { "nodes:shm", "unknown class \"nodes\"" },
    { "node:shm,NET:ofi:tcp", "unknown class \"NET\"" },
    { "node:shmm", "unknown backend \"shmm\"; known here: loop, shm, ofi:tcp" },
    { "node:sh", "unknown backend \"sh\"" },
    { "net:ofi:tcp2", "unknown backend \"ofi:tcp2\"" },
    { "net:ofi:", "unknown backend \"ofi:\"" },
};

START_TEST(test_contract_mistakes)
{
    struct tpt_policy policy = { NULL, mistakes[_i].require };
    struct tpb_error error = { "" };

    pair("one-socket", 0, 1);
    memset(&plan, 0x5a, sizeof(plan));
    mirror = plan;
    ck_assert_int_eq(tpt_score(&a, &b, &policy, &plan, &error),
                     TP_ERR_INVALID);
    ck_assert_msg(strstr(error.text, mistakes[_i].words) != NULL
                  && strstr(error.text, "TP_REQUIRE") != NULL, "%s",
                  error.text);
    ck_assert_mem_eq(&plan, &mirror, sizeof(plan));
    ck_assert_int_eq(tpt_score(&a, &b, &policy, &plan, NULL), TP_ERR_INVALID);
}
END_TEST

START_TEST(test_check_early)
{
    static const char *const names[] = { "shm", "ofi:tcp" };
    struct tpb_error error = { "" };

    ck_assert_int_eq(tpt_require_check(NULL, names, 2, &error), TP_OK);
    ck_assert_int_eq(tpt_require_check("node:shm,net:ofi", names, 2, &error),
                     TP_OK);
    ck_assert_int_eq(tpt_require_check("node:loop", names, 2, &error),
                     TP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "known here: shm, ofi:tcp"));
    ck_assert_int_eq(tpt_require_check("node:loop", NULL, 0, &error),
                     TP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "known here: none"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("score");
    TCase *tests = tcase_create("score");

    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, test_orders, 0, TPB_COUNT(orders));
    tcase_add_test(tests, test_self);
    tcase_add_test(tests, test_terms);
    tcase_add_test(tests, test_slow_nic_limits);
    tcase_add_test(tests, test_far_nic);
    tcase_add_test(tests, test_ties_by_name);
    tcase_add_test(tests, test_no_bandwidth_given);
    tcase_add_test(tests, test_symmetric_and_deterministic);
    tcase_add_test(tests, test_monotone);
    tcase_add_test(tests, test_farther_is_never_cheaper);
    tcase_add_test(tests, test_no_room);
    tcase_add_test(tests, test_every_reason);
    tcase_add_test(tests, test_demote);
    tcase_add_test(tests, test_backends_policy);
    tcase_add_loop_test(tests, test_contract, 0, TPB_COUNT(contracts));
    tcase_add_loop_test(tests, test_contract_mistakes, 0,
                        TPB_COUNT(mistakes));
    tcase_add_test(tests, test_check_early);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
