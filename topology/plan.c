/* SPDX-License-Identifier: BSD-3-Clause */
/* A plan after it was made: the best that is left, and trials that failed. */
#include "config.h"

#include <stdio.h>

#include "topology/score.h"

static const char *const plan_reasons[] = {
    [TPT_REASON_CHOSEN] = "chosen",
    [TPT_REASON_SLOWER] = "slower",
    [TPT_REASON_NOT_SAME_PROCESS] = "not_same_process",
    [TPT_REASON_NOT_SAME_HOST] = "not_same_host",
    [TPT_REASON_MINE_UNUSABLE] = "mine_unusable",
    [TPT_REASON_YOURS_UNUSABLE] = "yours_unusable",
    [TPT_REASON_MINE_LACKS] = "mine_lacks",
    [TPT_REASON_YOURS_LACKS] = "yours_lacks",
    [TPT_REASON_FORBIDDEN] = "forbidden",
    [TPT_REASON_CONTRACT] = "contract",
    [TPT_REASON_TRIAL_FAILED] = "trial_failed",
    [TPT_REASON_NOT_OTHER_PROCESS] = "not_other_process",
};

_Static_assert(TPB_COUNT(plan_reasons) == TPT_REASON_COUNT, "a name each");

const char *tpt_reason_name(enum tpt_reason reason)
{
    return plan_reasons[reason];
}

const char *tpt_reach_name(enum tpt_reach reach)
{
    static const char *const names[] = { "process", "host", "network" };

    return names[reach];
}

int tpt_plan_best(const struct tpt_plan *plan)
{
    for (uint32_t i = 0; i < plan->count; i++)
        if (plan->candidates[i].possible)
            return (int)i;
    return -1;
}

static uint32_t plan_find(const struct tpt_plan *plan, const char *name)
{
    uint32_t at = 0;

    while (at < plan->count && strcmp(plan->candidates[at].name, name) != 0)
        at++;
    return at;
}

void tpt_plan_restore(struct tpt_plan *plan, const char *name)
{
    uint32_t at = plan_find(plan, name), to = 0;
    struct tpt_candidate back;
    int best;

    if (at == plan->count
        || plan->candidates[at].reason != TPT_REASON_TRIAL_FAILED)
        return;
    back = plan->candidates[at];
    back.possible = true;
    back.reason = TPT_REASON_SLOWER;
    back.remedy[0] = '\0';
    while (plan->candidates[to].possible)
        to++;
    memmove(&plan->candidates[to + 1], &plan->candidates[to],
            (at - to) * sizeof(back));
    plan->candidates[to] = back;
    best = tpt_plan_best(plan);
    plan->candidates[best].reason = TPT_REASON_CHOSEN;
}

void tpt_plan_demote(struct tpt_plan *plan, const char *name,
                     const char *evidence)
{
    uint32_t at = plan_find(plan, name);
    struct tpt_candidate failed;
    int best;

    if (at == plan->count)
        return;
    failed = plan->candidates[at];
    failed.possible = false;
    failed.reason = TPT_REASON_TRIAL_FAILED;
    snprintf(failed.evidence, sizeof(failed.evidence), "%s", evidence);
    snprintf(failed.remedy, sizeof(failed.remedy), "`tpinfo --backends` on "
             "both hosts shows what they can; TP_BACKENDS=^%s spares the "
             "trial", name);
    memmove(&plan->candidates[at], &plan->candidates[at + 1],
            (plan->count - at - 1) * sizeof(failed));
    plan->candidates[plan->count - 1] = failed;
    best = tpt_plan_best(plan);
    if (best >= 0)
        plan->candidates[best].reason = TPT_REASON_CHOSEN;
}
