/* SPDX-License-Identifier: BSD-3-Clause */
/* A plan after it was made: the best that is left, and trials that failed. */
#include "config.h"

#include <stdio.h>

#include "topology/private.h"

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
    [TPT_REASON_NEEDS_TRANSPORT] = "needs_transport",
    [TPT_REASON_NO_PEER_ACCESS] = "no_peer_access",
};

_Static_assert(TPB_COUNT(plan_reasons) == TPT_REASON_COUNT, "a name each");
/* Size classes: 4 KiB (TPT_CHANNEL_LEAST) to 1 TiB. */
enum { PLAN_LEAST_SHIFT = 12, PLAN_MOST_SHIFT = 40 };

_Static_assert(TPT_CHANNEL_LEAST == 1 << PLAN_LEAST_SHIFT, "the same");
_Static_assert(TPT_BACKENDS <= 32, "a bit of `tried` each");

const char *tpt_reason_name(enum tpt_reason reason)
{
    return plan_reasons[reason];
}

const char *tpt_reach_name(enum tpt_reach reach)
{
    static const char *const names[] = { "process", "host", "network" };

    return names[reach];
}

const char *tpt_role_name(enum tpt_role role)
{
    static const char *const names[] = { "transport", "channel" };

    return names[role];
}

int tpt_plan_best(const struct tpt_plan *plan)
{
    for (uint32_t i = 0; i < plan->count; i++)
        if (plan->candidates[i].possible
            && plan->candidates[i].role == TPT_ROLE_TRANSPORT)
            return (int)i;
    return -1;
}

int tpt_plan_channel(const struct tpt_plan *plan, uint64_t bytes,
                     uint32_t tried)
{
    uint64_t least = UINT64_MAX;
    bool insist = false;
    int best = -1;

    for (uint32_t i = 0; i < plan->count; i++) {
        const struct tpt_candidate *channel = &plan->candidates[i];
        uint64_t time;

        if (channel->role != TPT_ROLE_CHANNEL || !channel->possible
            || channel->devices || bytes < channel->from_bytes)
            continue;
        insist |= channel->insisted;
        time = tpt_time(channel->latency_ns, channel->megabytes, bytes);
        if ((tried >> i & 1) == 0 && (best < 0 || time < least)) {
            best = (int)i;
            least = time;
        }
    }
    return best >= 0 ? best : insist ? TPT_PLAN_REFUSED : TPT_PLAN_TRANSPORT;
}

/* Who carries a buffer of that size? */
static int plan_route(const struct tpt_plan *plan, uint64_t bytes)
{
    int channel = tpt_plan_channel(plan, bytes, 0);

    return channel == TPT_PLAN_TRANSPORT ? tpt_plan_best(plan) : channel;
}

size_t tpt_plan_routes(const struct tpt_plan *plan,
                       struct tpt_route routes[TPT_ROUTES])
{
    size_t count = 1;

    if (tpt_plan_best(plan) < 0)
        return 0;
    routes[0] = (struct tpt_route) { 0, tpt_plan_best(plan) };
    for (unsigned shift = PLAN_LEAST_SHIFT;
         shift <= PLAN_MOST_SHIFT && count < TPT_ROUTES; shift++) {
        uint64_t bytes = UINT64_C(1) << shift;
        int route = plan_route(plan, bytes);

        if (route == routes[count - 1].candidate)
            continue;
        /* It may have begun within the class before. */
        if (route >= 0 && plan->candidates[route].from_bytes > bytes / 2
            && plan->candidates[route].from_bytes < bytes
            && plan_route(plan, plan->candidates[route].from_bytes) == route)
            bytes = plan->candidates[route].from_bytes;
        routes[count++] = (struct tpt_route) { bytes, route };
    }
    return count;
}

/* Puts one candidate behind all others of its role. */
static void plan_move_back(struct tpt_plan *plan, uint32_t at)
{
    struct tpt_candidate moved = plan->candidates[at];
    uint32_t last = at;

    while (last + 1 < plan->count
           && plan->candidates[last + 1].role == moved.role)
        last++;
    memmove(&plan->candidates[at], &plan->candidates[at + 1],
            (last - at) * sizeof(moved));
    plan->candidates[last] = moved;
}

static uint32_t plan_find(const struct tpt_plan *plan, const char *name)
{
    uint32_t at = 0;

    while (at < plan->count && strcmp(plan->candidates[at].name, name) != 0)
        at++;
    return at;
}

/* What there is to be done about trials that failed.  To do without one is no
 * help where it was the last way. */
static void plan_trial_remedies(struct tpt_plan *plan)
{
    bool left = tpt_plan_best(plan) >= 0;

    for (uint32_t i = 0; i < plan->count; i++) {
        struct tpt_candidate *failed = &plan->candidates[i];

        if (failed->reason != TPT_REASON_TRIAL_FAILED)
            continue;
        snprintf(failed->remedy, sizeof(failed->remedy), "`tpinfo --backends` "
                 "on both hosts shows what they can%s%s%s",
                 left ? "; TP_BACKENDS=^" : "", left ? failed->name : "",
                 left ? " avoids the trial" : "");
    }
}

void tpt_plan_demote(struct tpt_plan *plan, const char *name,
                     const char *evidence)
{
    uint32_t at = plan_find(plan, name);
    struct tpt_candidate *failed;

    if (at == plan->count)
        return;
    failed = &plan->candidates[at];
    failed->possible = false;
    failed->reason = TPT_REASON_TRIAL_FAILED;
    failed->from_bytes = UINT64_MAX;
    snprintf(failed->evidence, sizeof(failed->evidence), "%s", evidence);
    plan_move_back(plan, at);
    tpt_plan_settle(plan);
    plan_trial_remedies(plan);
}

void tpt_plan_restore(struct tpt_plan *plan, const char *name)
{
    uint32_t at = plan_find(plan, name);

    if (at == plan->count
        || plan->candidates[at].role != TPT_ROLE_TRANSPORT
        || plan->candidates[at].reason != TPT_REASON_TRIAL_FAILED)
        return;
    plan->candidates[at].possible = true;
    tpt_plan_settle(plan);
    plan_trial_remedies(plan);
}

/* Of the nature of the backend: nobody can do anything about it. */
static bool plan_never(const struct tpt_candidate *candidate)
{
    return candidate->reason == TPT_REASON_NOT_SAME_PROCESS
           || candidate->reason == TPT_REASON_NOT_OTHER_PROCESS
           || candidate->reason == TPT_REASON_NEEDS_TRANSPORT;
}

/* Worth telling?  A channel is only where the contract wants one. */
static bool plan_tells(const struct tpt_plan *plan,
                       const struct tpt_candidate *candidate)
{
    return !candidate->possible && !plan_never(candidate)
           && !candidate->devices
           && (candidate->role == TPT_ROLE_TRANSPORT
               || plan->insist[0] != '\0');
}

static bool plan_alike(const struct tpt_candidate *x,
                       const struct tpt_candidate *y)
{
    return x->reason == y->reason && strcmp(x->evidence, y->evidence) == 0;
}

/* Is the remedy of `x` the one to tell?  That for what the other side has, too;
 * then the shortest. */
static bool plan_prefers(const struct tpt_candidate *x,
                         const struct tpt_candidate *y)
{
    if (x->barred != y->barred)
        return y->barred;
    return strlen(x->remedy) < strlen(y->remedy);
}

/* "ofi:shm, ofi:tcp (forbidden: evidence; remedy: the best)": that at `at` with
 * all that are like it. */
static void plan_tell(const struct tpt_plan *plan, uint32_t at,
                      struct tpb_text *text)
{
    const struct tpt_candidate *first = &plan->candidates[at];
    const struct tpt_candidate *best = first;

    for (uint32_t i = at; i < plan->count; i++) {
        const struct tpt_candidate *candidate = &plan->candidates[i];

        if (!plan_tells(plan, candidate) || !plan_alike(candidate, first))
            continue;
        tpb_text_add(text, "%s%s", i > at ? ", " : "", candidate->name);
        if (plan_prefers(candidate, best))
            best = candidate;
    }
    tpb_text_add(text, " (%s: %s", tpt_reason_name(first->reason),
                 first->evidence);
    if (best->remedy[0] != '\0')
        tpb_text_add(text, "; remedy: %s", best->remedy);
    tpb_text_add(text, ")");
}

enum { PLAN_WEIGHTS = 3 };

/* The contract first; then somebody's word, or a trial's; then what a machine
 * lacks. */
static uint32_t plan_weight(const struct tpt_candidate *candidate)
{
    if (candidate->reason == TPT_REASON_CONTRACT)
        return 0;
    return candidate->reason == TPT_REASON_FORBIDDEN
           || candidate->reason == TPT_REASON_TRIAL_FAILED ? 1 : 2;
}

void tpt_plan_refusal(const struct tpt_plan *plan, struct tpb_text *text)
{
    size_t start = text->length;

    for (uint32_t i = 0; i < PLAN_WEIGHTS * plan->count; i++) {
        uint32_t at = i % plan->count;
        const struct tpt_candidate *candidate = &plan->candidates[at];
        bool told = !plan_tells(plan, candidate)
                    || plan_weight(candidate) != i / plan->count;

        for (uint32_t j = 0; j < at && !told; j++)
            told = plan_tells(plan, &plan->candidates[j])
                   && plan_alike(candidate, &plan->candidates[j]);
        if (told)
            continue;
        tpb_text_add(text, "%s", text->length > start ? "; " : "");
        plan_tell(plan, at, text);
    }
    if (text->length == start)
        tpb_text_add(text, "this build has no backend that could");
}
