/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The two cards that a test scores, and their plan: for the programs that test
 * scoring, each of which has its own.
 */
#ifndef TPX_PAIR_H
#define TPX_PAIR_H

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

/* One rank on each of two, on a core there. */
static void hosts_at(const char *name_a, uint32_t core_a, const char *name_b,
                     uint32_t core_b)
{
    struct tpt_topology *machine_a = tpx_machine(name_a);
    struct tpt_topology *machine_b = tpx_machine(name_b);

    tpx_card(&a, machine_a, core_a, 0, 1);
    tpx_card(&b, machine_b, core_b, 1, 2);
    tpt_topology_free(machine_a);
    tpt_topology_free(machine_b);
}

static void hosts(const char *name_a, const char *name_b)
{
    hosts_at(name_a, 0, name_b, 0);
}

static void score(const char *backends, const char *require)
{
    struct tpt_policy policy = { backends, require };
    struct tpb_error error = { "" };

    ck_assert_msg(tpt_score(&a, &b, &policy, &plan, &error) == TP_OK, "%s",
                  error.text);
}

static const char *order(const struct tpt_plan *of)
{
    return tpx_plan_order(of);
}

static const struct tpt_candidate *find(const char *name)
{
    for (uint32_t i = 0; i < plan.count; i++)
        if (strcmp(plan.candidates[i].name, name) == 0)
            return &plan.candidates[i];
    ck_abort_msg("no candidate %s in %s", name, order(&plan));
}

#endif
