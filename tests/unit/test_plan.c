/* SPDX-License-Identifier: BSD-3-Clause */
/* What holds for every plan, over random cards; channels beside transports. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/pair.h"

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
        ck_assert_str_ne(candidate->evidence, "");
        if (candidate->role == TPT_ROLE_TRANSPORT)
            ck_assert_int_eq(candidate->reason == TPT_REASON_CHOSEN,
                             i == 0 && candidate->possible);
        else
            ck_assert_int_eq(candidate->reason == TPT_REASON_CHOSEN,
                             candidate->from_bytes != UINT64_MAX);
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
            ck_assert_uint_eq(plan.candidates[j].cost_ns,
                              mirror.candidates[j].cost_ns);
    }
}
END_TEST

/* Whatever gets slower on one side never rises. */
START_TEST(test_monotone)
{
    uint64_t seed = 21;

    for (int i = 0; i < 5000; i++) {
        struct tpt_backend_card *changed;
        struct tpt_cost *cost;
        uint32_t before, after;

        tpx_card_random(&a, &seed);
        tpx_card_random(&b, &seed);
        if (a.backend_count == 0)
            continue;
        score(NULL, NULL);
        changed = &a.backends[tpx_random_below(&seed, a.backend_count)];
        cost = &changed->measured[plan.locality];
        before = rank_of(&plan, changed->name);
        if (before == plan.count)
            continue;              /* one of the omitted */
        mirror = plan;
        if (cost->megabytes == 0)
            cost = NULL;
        if (tpx_random_below(&seed, 2) == 0)
            *(cost != NULL ? &cost->latency_ns : &changed->latency_ns)
                *= 1 + tpx_random_below(&seed, 9);
        else
            *(cost != NULL ? &cost->megabytes : &changed->megabytes)
                /= 1 + tpx_random_below(&seed, 9);
        score(NULL, NULL);
        after = rank_of(&plan, changed->name);
        ck_assert_uint_ge(after, before);
        ck_assert_uint_ge(plan.candidates[after].cost_ns,
                          mirror.candidates[before].cost_ns);
    }
}
END_TEST

/* A buffer goes where it is cheapest, by the plan's own terms. */
static void check_channels(uint64_t bytes)
{
    int chosen = tpt_plan_channel(&plan, bytes, 0);
    int transport = tpt_plan_best(&plan);
    uint64_t base, frames, least = UINT64_MAX;

    ck_assert_int_ge(chosen, TPT_PLAN_TRANSPORT);
    if (transport < 0) {
        ck_assert_int_eq(chosen, TPT_PLAN_TRANSPORT);
        return;
    }
    base = plan.candidates[transport].latency_ns;
    for (uint32_t i = 0; i < plan.count; i++) {
        const struct tpt_candidate *channel = &plan.candidates[i];
        uint64_t time;

        if (channel->role != TPT_ROLE_CHANNEL || !channel->possible)
            continue;
        time = base + channel->latency_ns + bytes * 1000 / channel->megabytes;
        if (time < least && bytes >= channel->from_bytes)
            least = time;
        if ((int)i == chosen)
            ck_assert_uint_eq(time, least);
    }
    /* A thousandth: the crossover is a whole number of bytes.  What is as fast
     * as frames, but for its latency, may be a sixteenth slower. */
    frames = base + bytes * 1000 / plan.candidates[transport].megabytes;
    if (chosen >= 0 && bytes > TPT_CHANNEL_LEAST)
        ck_assert_uint_le(least, frames + 10
                          + frames / (plan.candidates[chosen].megabytes
                                      == plan.candidates[transport].megabytes
                                      ? 16 : 1000));
}

/* Whatever is demoted, in whatever order: on both sides the same remains, and
 * it is a plan. */
START_TEST(test_demoted_at_random)
{
    uint64_t seed = 99;

    for (int i = 0; i < 1000; i++) {
        tpx_card_random(&a, &seed);
        tpx_card_random(&b, &seed);
        score(NULL, NULL);
        ck_assert_int_eq(tpt_score(&b, &a, NULL, &mirror, NULL), TP_OK);
        for (uint32_t j = 0; j < plan.count; j++) {
            char name[TPT_NAME];

            memcpy(name, plan.candidates[tpx_random_below(&seed, plan.count)]
                   .name, sizeof(name));
            tpt_plan_demote(&plan, name, "x");
            tpt_plan_demote(&mirror, name, "y");
            check_total();
            ck_assert_int_eq(tpt_plan_best(&plan), tpt_plan_best(&mirror));
            ck_assert_str_eq(order(&plan), order(&mirror));
            for (unsigned shift = 0; shift < 40; shift += 3)
                check_channels(UINT64_C(1) << shift);
        }
    }
}
END_TEST

/* A contract takes away, and adds nothing. */
START_TEST(test_contract_at_random)
{
    uint64_t seed = 5;

    for (int i = 0; i < 3000; i++) {
        char require[2 * TPT_NAME + 16];
        struct tpt_policy policy = { NULL, require };

        tpx_card_random(&a, &seed);
        tpx_card_random(&b, &seed);
        if (a.backend_count == 0)
            continue;
        score(NULL, NULL);
        mirror = plan;
        snprintf(require, sizeof(require), "any:%s,net:%s",
                 a.backends[tpx_random_below(&seed, a.backend_count)].name,
                 a.backends[tpx_random_below(&seed, a.backend_count)].name);
        ck_assert_int_eq(tpt_score(&a, &b, &policy, &plan, NULL), TP_OK);
        check_total();
        for (uint32_t j = 0; j < plan.count; j++) {
            const struct tpt_candidate *with = &plan.candidates[j];
            uint32_t k = rank_of(&mirror, with->name);

            /* A channel may get the transport that it needs. */
            if (with->possible && with->over[0] == '\0' && k < mirror.count)
                ck_assert(mirror.candidates[k].possible);
            if (plan.insist[0] != '\0' && with->possible
                && with->role == TPT_ROLE_CHANNEL && !with->devices)
                ck_assert(with->insisted && with->from_bytes != UINT64_MAX);
        }
    }
}
END_TEST

START_TEST(test_farther_is_never_cheaper)
{
    static const uint32_t cores[] = { 0, 1, 2, 4 };
    uint64_t last = 0;

    for (size_t i = 0; i < TPB_COUNT(cores); i++) {
        pair("chiplets", 0, cores[i]);
        score(NULL, NULL);
        ck_assert_uint_ge(find("shm")->cost_ns, last);
        last = find("shm")->cost_ns;
    }
    pair("two-socket", 0, 6);
    score(NULL, NULL);
    ck_assert_uint_gt(find("shm")->cost_ns, last);
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

/* ---- channels ---------------------------------------------------------- */

/* Both sides have cma and map, over anything. */
static void channels(void)
{
    pair("one-socket", 0, 1);
    for (int i = 0; i < 2; i++) {
        struct tpt_card *card = i == 0 ? &a : &b;

        card->backends[1].latency_ns = 200;
        card->backends[1].megabytes = 8000;
        card->backends[3].megabytes = 12000;
        tpx_card_channel(card, "map", "", 6000, 24000);
        tpx_card_channel(card, "cma", "", 1000, 12000);
    }
}

static int place(const char *name)
{
    return (int)(find(name) - plan.candidates);
}

START_TEST(test_channels)
{
    channels();
    score(NULL, NULL);
    ck_assert_str_eq(order(&plan), "shm ofi:verbs ofi:tcp|loop; cma map");
    ck_assert_int_eq(tpt_plan_best(&plan), 0);
    /* 1000 ns * 8 * 12 / (12 - 8) bytes/ns, and 6000 * 8 * 24 / (24 - 8). */
    ck_assert_uint_eq(find("cma")->from_bytes, 24000);
    ck_assert_uint_eq(find("map")->from_bytes, 72000);
    ck_assert_uint_eq(find("shm")->from_bytes, UINT64_MAX);
    ck_assert_int_eq(find("cma")->reason, TPT_REASON_CHOSEN);
    ck_assert_int_eq(find("map")->reason, TPT_REASON_CHOSEN);
    ck_assert_uint_eq(find("cma")->cost_ns, 200 + 1000 + 5461);
    ck_assert_int_eq(tpt_plan_channel(&plan, 23999, 0), TPT_PLAN_TRANSPORT);
    ck_assert_int_eq(tpt_plan_channel(&plan, 24000, 0), place("cma"));
    ck_assert_int_eq(tpt_plan_channel(&plan, 80000, 0), place("cma"));
    ck_assert_int_eq(tpt_plan_channel(&plan, 200000, 0), place("map"));
    ck_assert_int_eq(tpt_plan_channel(&plan, UINT64_MAX, 0), place("cma"));
}
END_TEST

/* "shm 0, cma 24000, ...": the routes. */
static const char *routes(void)
{
    static char text[TPT_ROUTES * (TPT_NAME + 24)];
    struct tpt_route list[TPT_ROUTES];
    size_t count = tpt_plan_routes(&plan, list);
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s %llu",
                                 i > 0 ? ", " : "", list[i].candidate >= 0
                                 ? plan.candidates[list[i].candidate].name
                                 : "-", (unsigned long long)list[i].from_bytes);
    return text;
}

START_TEST(test_routes)
{
    channels();
    score(NULL, NULL);
    /* cma and map meet at 5000 ns * 12 * 24 / (24 - 12) = 120000. */
    ck_assert_str_eq(routes(), "shm 0, cma 24000, map 131072");
    tpt_plan_demote(&plan, "cma", "x");
    ck_assert_str_eq(routes(), "shm 0, map 72000");
    tpt_plan_demote(&plan, "map", "x");
    ck_assert_str_eq(routes(), "shm 0");
    tpt_plan_demote(&plan, "shm", "x");
    tpt_plan_demote(&plan, "ofi:tcp", "x");
    tpt_plan_demote(&plan, "ofi:verbs", "x");
    ck_assert_str_eq(routes(), "");
    a.backends[4].latency_ns = a.backends[5].latency_ns = 0;
    b.backends[4].latency_ns = b.backends[5].latency_ns = 0;
    score(NULL, NULL);
    ck_assert_str_eq(routes(), "shm 0, map 4096");
}
END_TEST

START_TEST(test_channels_walked)
{
    uint32_t tried = 0;

    channels();
    score(NULL, NULL);
    ck_assert_int_eq(tpt_plan_channel(&plan, 1 << 20, tried), place("map"));
    tried |= 1u << place("map");
    ck_assert_int_eq(tpt_plan_channel(&plan, 1 << 20, tried), place("cma"));
    tried |= 1u << place("cma");
    ck_assert_int_eq(tpt_plan_channel(&plan, 1 << 20, tried),
                     TPT_PLAN_TRANSPORT);
    score(NULL, "node:map");
    ck_assert_int_eq(find("cma")->reason, TPT_REASON_CONTRACT);
    ck_assert_int_eq(tpt_plan_channel(&plan, 1 << 20, 0), place("map"));
    ck_assert_int_eq(tpt_plan_channel(&plan, 1 << 20, 1u << place("map")),
                     TPT_PLAN_REFUSED);
    ck_assert_int_eq(tpt_plan_channel(&plan, 4095, 0), TPT_PLAN_TRANSPORT);
}
END_TEST

START_TEST(test_channel_least)
{
    channels();
    a.backends[5].latency_ns = b.backends[5].latency_ns = 0;
    a.backends[4].megabytes = b.backends[4].megabytes = 8000;
    score(NULL, NULL);
    ck_assert_uint_eq(find("cma")->from_bytes, TPT_CHANNEL_LEAST);
    /* As fast, and a copy less: where 6000 ns are a sixteenth of the time. */
    ck_assert_uint_eq(find("map")->from_bytes, 6000 * 16 * 8);
    ck_assert_int_eq(find("map")->reason, TPT_REASON_CHOSEN);
    /* Slower: never, and not by the size of the buffer. */
    a.backends[4].megabytes = 7999;
    score(NULL, NULL);
    ck_assert_uint_eq(find("map")->from_bytes, UINT64_MAX);
    ck_assert_int_eq(find("map")->reason, TPT_REASON_SLOWER);
    ck_assert(find("map")->possible);
    /* But if somebody insists. */
    score(NULL, "any:map");
    ck_assert_uint_eq(find("map")->from_bytes, TPT_CHANNEL_LEAST);
    ck_assert_int_eq(find("map")->reason, TPT_REASON_CHOSEN);
    /* The largest numbers that a card may hold. */
    a.backends[5].latency_ns = a.backends[5].megabytes = UINT32_MAX;
    b.backends[5].latency_ns = b.backends[5].megabytes = UINT32_MAX;
    a.backends[1].megabytes = b.backends[1].megabytes = UINT32_MAX - 1;
    score(NULL, NULL);
    ck_assert_uint_gt(find("cma")->from_bytes, UINT64_C(1) << 60);
}
END_TEST

/* A slower transport makes channels pay earlier. */
START_TEST(test_channels_demoted)
{
    channels();
    score(NULL, NULL);
    tpt_plan_demote(&plan, "shm", "no memory");
    tpt_plan_demote(&plan, "ofi:verbs", "no memory");
    ck_assert_str_eq(order(&plan), "ofi:tcp|loop shm ofi:verbs; cma map");
    ck_assert_uint_eq(find("cma")->from_bytes, 4096);
    ck_assert_uint_eq(find("map")->from_bytes, 20568);
    tpt_plan_demote(&plan, "cma", "Operation not permitted");
    ck_assert_str_eq(order(&plan), "ofi:tcp|loop shm ofi:verbs; map|cma");
    ck_assert_int_eq(find("cma")->reason, TPT_REASON_TRIAL_FAILED);
    ck_assert_uint_eq(find("cma")->from_bytes, UINT64_MAX);
    ck_assert_int_eq(tpt_plan_channel(&plan, 30000, 0), place("map"));
    ck_assert_int_eq(tpt_plan_best(&plan), 0);
    tpt_plan_demote(&plan, "map", "x");
    ck_assert_int_eq(tpt_plan_channel(&plan, 1 << 30, 0), TPT_PLAN_TRANSPORT);
    tpt_plan_demote(&plan, "ofi:tcp", "x");
    ck_assert_int_eq(tpt_plan_best(&plan), -1);
}
END_TEST

START_TEST(test_channel_over)
{
    channels();
    tpx_card_channel(&a, "rma", "ofi:verbs", 1000, 50000);
    tpx_card_channel(&b, "rma", "ofi:verbs", 1000, 50000);
    score(NULL, NULL);
    ck_assert_str_eq(order(&plan), "shm ofi:verbs ofi:tcp|loop; cma map|rma");
    tpt_plan_demote(&plan, "shm", "no memory");
    ck_assert_str_eq(order(&plan), "ofi:verbs ofi:tcp|loop shm; rma cma map");
    ck_assert_int_eq(find("rma")->reason, TPT_REASON_CHOSEN);
    ck_assert_str_eq(find("rma")->remedy, "");
    ck_assert_str_eq(find("rma")->evidence, "model for same L3");
    tpt_plan_demote(&plan, "ofi:verbs", "no memory");
    ck_assert_str_eq(order(&plan), "ofi:tcp|loop shm ofi:verbs; cma map|rma");
    /* A contract takes the transport that its channel goes over. */
    score(NULL, "node:rma");
    ck_assert_str_eq(order(&plan), "ofi:verbs|shm ofi:tcp loop; rma|cma map");
    ck_assert_int_eq(find("shm")->reason, TPT_REASON_CONTRACT);
    ck_assert_ptr_nonnull(strstr(find("shm")->evidence, "wants rma"));
}
END_TEST

/* To do without the transport is told only where that gives the channel one. */
START_TEST(test_channel_nothing_under)
{
    pair("one-socket", 0, 1);
    tpx_card_channel(&a, "rma", "ofi:verbs", 1000, 50000);
    tpx_card_channel(&b, "rma", "ofi:verbs", 1000, 50000);
    score(NULL, NULL);
    ck_assert_str_eq(find("rma")->remedy, "forbid shm in TP_BACKENDS, if you "
                     "want it anyway");
    tpt_plan_demote(&plan, "ofi:verbs", "no memory");
    ck_assert_int_eq(find("rma")->reason, TPT_REASON_NEEDS_TRANSPORT);
    ck_assert_str_eq(find("rma")->remedy, "");
}
END_TEST

/* Nor is it told of one transport only, if the next is not the channel's
 * either: who does as told has the channel. */
START_TEST(test_channel_deep_under)
{
    pair("one-socket", 0, 1);
    tpx_card_channel(&a, "rma", "ofi:tcp", 1000, 50000);
    tpx_card_channel(&b, "rma", "ofi:tcp", 1000, 50000);
    score(NULL, NULL);
    ck_assert_str_eq(find("rma")->remedy, "forbid shm, ofi:verbs in "
                     "TP_BACKENDS, if you want it anyway");
    score("^shm", NULL);
    ck_assert_str_eq(find("rma")->remedy, "forbid ofi:verbs in TP_BACKENDS, "
                     "if you want it anyway");
    score("^shm,ofi:verbs", NULL);
    ck_assert_int_eq(find("rma")->reason, TPT_REASON_CHOSEN);
}
END_TEST

/* No channel that was insisted on: no connection. */
START_TEST(test_channel_contract)
{
    channels();
    score(NULL, "node:cma,node:map,node:shm,net:verbs");
    ck_assert_str_eq(order(&plan), "shm|loop ofi:tcp ofi:verbs; cma map");
    ck_assert_str_eq(plan.insist, "cma, map");
    tpt_plan_demote(&plan, "cma", "Operation not permitted");
    ck_assert_int_eq(tpt_plan_best(&plan), 0);
    tpt_plan_demote(&plan, "map", "no memory");
    ck_assert_int_eq(tpt_plan_best(&plan), -1);
    ck_assert_int_eq(find("shm")->reason, TPT_REASON_CONTRACT);
    ck_assert_ptr_nonnull(strstr(find("shm")->evidence, "wants cma, map for "
                                 "class node"));
    ck_assert_ptr_nonnull(strstr(find("shm")->remedy, "out of TP_REQUIRE"));
    /* Of transports alone: channels are free. */
    score(NULL, "node:shm");
    ck_assert_str_eq(order(&plan), "shm|loop ofi:tcp ofi:verbs; cma map");
    /* TP_BACKENDS knows no such kinds. */
    score("shm", NULL);
    ck_assert_str_eq(order(&plan), "shm|loop ofi:tcp ofi:verbs;|cma map");
    ck_assert_int_eq(find("cma")->reason, TPT_REASON_FORBIDDEN);
    score("shm", "node:cma");
    ck_assert_int_eq(tpt_plan_best(&plan), -1);
    /* One whose probe failed there. */
    b.backends[5].usable = 0;
    score(NULL, "node:cma");
    ck_assert_int_eq(tpt_plan_best(&plan), -1);
    hosts("one-socket", "small-vm");
    tpx_card_channel(&a, "cma", "", 1000, 12000);
    score(NULL, "node:cma");
    ck_assert_str_eq(order(&plan), "ofi:verbs ofi:tcp|loop shm;|cma");
}
END_TEST

/* The words fit the contract that was written, and help. */
START_TEST(test_channel_contract_of_any)
{
    channels();
    score(NULL, "any:cma");
    tpt_plan_demote(&plan, "cma", "Operation not permitted");
    ck_assert_str_eq(find("shm")->remedy, "fix what its own line names, or "
                     "take cma out of TP_REQUIRE");
    b = a;
    score(NULL, "any:cma");
    ck_assert_int_eq(tpt_plan_best(&plan), -1);
    ck_assert_int_eq(find("loop")->reason, TPT_REASON_CONTRACT);
    ck_assert_str_eq(find("loop")->evidence, "TP_REQUIRE wants cma for class "
                     "self, and a rank has no such channel to itself");
    ck_assert_str_eq(find("loop")->remedy, "write node: or net: before cma in "
                     "TP_REQUIRE");
}
END_TEST

/* A card that says that shm is a channel, or goes over something else. */
START_TEST(test_channel_disagreed)
{
    channels();
    b.backends[1].role = TPT_ROLE_CHANNEL;
    snprintf(b.backends[4].over, TPT_NAME, "ofi");
    score(NULL, NULL);
    ck_assert_str_eq(order(&plan), "ofi:verbs ofi:tcp|loop; cma|map shm");
    ck_assert_int_eq(find("map")->reason, TPT_REASON_YOURS_LACKS);
    ck_assert_int_eq(tpt_score(&b, &a, NULL, &mirror, NULL), TP_OK);
    ck_assert_str_eq(order(&plan), order(&mirror));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan");
    TCase *tests = tcase_create("plan");

    tcase_set_timeout(tests, 180);
    tcase_add_test(tests, test_symmetric_and_deterministic);
    tcase_add_test(tests, test_monotone);
    tcase_add_test(tests, test_demoted_at_random);
    tcase_add_test(tests, test_contract_at_random);
    tcase_add_test(tests, test_farther_is_never_cheaper);
    tcase_add_test(tests, test_no_room);
    tcase_add_test(tests, test_channels);
    tcase_add_test(tests, test_routes);
    tcase_add_test(tests, test_channels_walked);
    tcase_add_test(tests, test_channel_least);
    tcase_add_test(tests, test_channels_demoted);
    tcase_add_test(tests, test_channel_over);
    tcase_add_test(tests, test_channel_nothing_under);
    tcase_add_test(tests, test_channel_deep_under);
    tcase_add_test(tests, test_channel_contract);
    tcase_add_test(tests, test_channel_contract_of_any);
    tcase_add_test(tests, test_channel_disagreed);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
