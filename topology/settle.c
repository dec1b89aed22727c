/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * From verdicts to choices: which transport, and from what size on which
 * channel beside it.  Pure, and whole numbers only, as score.c.
 */
#include "config.h"

#include <stdio.h>

#include "topology/private.h"

enum {
    SETTLE_NS = 1000,              /* 1 MB/s is a byte in 1000 ns */
    SETTLE_TIE = 16                /* what is as fast as frames but saves their
                                      copies may take that part longer */
};

uint64_t tpt_time(uint64_t latency_ns, uint64_t megabytes, uint64_t bytes)
{
    if (bytes > (UINT64_MAX - latency_ns) / SETTLE_NS)
        return UINT64_MAX;
    return latency_ns + bytes * SETTLE_NS / megabytes;
}

static void settle_evidence(const struct tpt_plan *plan,
                            struct tpt_candidate *candidate)
{
    bool several = strchr(candidate->nic, '+') != NULL;
    char nic[TPT_WORDS + 64] = "", model[64] = "";

    if (candidate->nic[0] != '\0')
        snprintf(nic, sizeof(nic), ", limited by NIC%s %s of %g Gb/s%s",
                 several ? "s" : "", candidate->nic,
                 candidate->nic_megabits / 1000.0,
                 several ? " together" : "");
    if (candidate->measured)
        snprintf(model, sizeof(model), " (model: %.3g us, %.0f MB/s)",
                 (double)candidate->model_latency_ns / 1000,
                 (double)candidate->model_megabytes);
    candidate->remedy[0] = '\0';
    snprintf(candidate->evidence, sizeof(candidate->evidence), "%s for %s%s%s",
             candidate->measured ? "measured" : "model",
             tpt_locality_name(plan->locality), model, nic);
}

static bool settle_before(const struct tpt_candidate *x,
                          const struct tpt_candidate *y)
{
    if (x->role != y->role)
        return x->role < y->role;
    if (!x->possible || !y->possible)
        return x->possible && !y->possible;
    if (x->spare != y->spare)
        return y->spare;
    if (x->cost_ns != y->cost_ns)
        return x->cost_ns < y->cost_ns;
    return strcmp(x->name, y->name) < 0;
}

/* ---- channels ---------------------------------------------------------- */

static bool settle_goes_over(const struct tpt_candidate *channel,
                             const struct tpt_candidate *transport)
{
    return channel->over[0] == '\0'
           || tpt_name_within(channel->over, strlen(channel->over),
                              transport->name);
}

/* Possible, but for the transport perhaps. */
static bool settle_eligible(const struct tpt_candidate *candidate)
{
    return candidate->role == TPT_ROLE_CHANNEL
           && (candidate->possible
               || candidate->reason == TPT_REASON_NEEDS_TRANSPORT);
}

/*
 * Where the lines cross: transport + channel latency + n / channel MB/s is
 * less than transport latency + n / transport MB/s from
 *   n = channel latency * t * c / (c - t)
 * on.  If both are as fast they never do; there the channel is taken, since it
 * leaves out the frames' copies, where its latency is a small part of the time:
 *   channel latency * TIE <= n / c
 * No products that do not fit: terms are sums of 32-bit numbers.
 */
static uint64_t settle_crossover(const struct tpt_candidate *transport,
                                 const struct tpt_candidate *channel)
{
    uint64_t t = transport->megabytes, c = channel->megabytes, bytes;

    if (c < t)
        return UINT64_MAX;
    if (channel->latency_ns > UINT64_MAX / (t > SETTLE_TIE ? t : SETTLE_TIE))
        return UINT64_MAX;
    bytes = c > t ? channel->latency_ns * t / (c - t)
            : channel->latency_ns * SETTLE_TIE;
    bytes = bytes > UINT64_MAX / c ? UINT64_MAX : bytes * c / SETTLE_NS;
    return bytes > TPT_CHANNEL_LEAST ? bytes : TPT_CHANNEL_LEAST;
}

static bool settle_connects(const struct tpt_candidate *candidate)
{
    return candidate->role == TPT_ROLE_TRANSPORT && candidate->possible;
}

/* The best transport that can connect them and would do for the channel; NULL
 * if there is none. */
static const struct tpt_candidate *settle_would(
    const struct tpt_plan *plan, const struct tpt_candidate *channel)
{
    const struct tpt_candidate *best = NULL;

    for (uint32_t i = 0; i < plan->count; i++)
        if (settle_connects(&plan->candidates[i])
            && settle_goes_over(channel, &plan->candidates[i])
            && (best == NULL || settle_before(&plan->candidates[i], best)))
            best = &plan->candidates[i];
    return best;
}

/* All that are better than that one are in the way. */
static void settle_clear_way(const struct tpt_plan *plan,
                             const struct tpt_candidate *would,
                             struct tpt_candidate *channel)
{
    char names[TPT_WORDS] = "";
    size_t used = 0;

    for (uint32_t i = 0; i < plan->count && used < sizeof(names); i++) {
        const struct tpt_candidate *other = &plan->candidates[i];

        if (settle_connects(other) && settle_before(other, would))
            used += (size_t)snprintf(names + used, sizeof(names) - used,
                                     "%s%s", used > 0 ? ", " : "",
                                     other->name);
    }
    snprintf(channel->remedy, sizeof(channel->remedy),
             "forbid %s in TP_BACKENDS, if you want it anyway", names);
}

static void settle_misses(const struct tpt_plan *plan,
                          const struct tpt_candidate *transport,
                          struct tpt_candidate *channel)
{
    const struct tpt_candidate *would = settle_would(plan, channel);
    char over[TPT_NAME];

    memcpy(over, channel->over, sizeof(over));
    channel->possible = false;
    channel->reason = TPT_REASON_NEEDS_TRANSPORT;
    channel->from_bytes = UINT64_MAX;
    channel->remedy[0] = '\0';
    if (transport == NULL) {
        snprintf(channel->evidence, sizeof(channel->evidence),
                 "no transport connects them");
        return;
    }
    snprintf(channel->evidence, sizeof(channel->evidence),
             "goes over %.23s only, and the transport is %.23s", over,
             transport->name);
    if (would != NULL)
        settle_clear_way(plan, would, channel);
}

/* `transport` NULL: there is none. */
static void settle_channel(const struct tpt_plan *plan,
                           const struct tpt_candidate *transport,
                           struct tpt_candidate *channel)
{
    if (transport == NULL || !settle_goes_over(channel, transport)) {
        settle_misses(plan, transport, channel);
        return;
    }
    channel->possible = true;
    if (channel->devices) {
        tpt_device_settle(plan, transport, channel);
        return;
    }
    channel->from_bytes = settle_crossover(transport, channel);
    if (channel->insisted && channel->from_bytes == UINT64_MAX)
        channel->from_bytes = TPT_CHANNEL_LEAST;
    channel->cost_ns = transport->latency_ns
                       + tpt_time(channel->latency_ns, channel->megabytes,
                                  TPT_MESSAGE);
    channel->reason = channel->from_bytes != UINT64_MAX ? TPT_REASON_CHOSEN
                      : TPT_REASON_SLOWER;
    settle_evidence(plan, channel);
}

/* ---- the order --------------------------------------------------------- */

/* Insertion keeps the order of what is equal: of those that are refused. */
static void settle_sort(struct tpt_plan *plan)
{
    for (uint32_t i = 1; i < plan->count; i++) {
        struct tpt_candidate moved = plan->candidates[i];
        uint32_t j = i;

        for (; j > 0 && settle_before(&moved, &plan->candidates[j - 1]); j--)
            plan->candidates[j] = plan->candidates[j - 1];
        plan->candidates[j] = moved;
    }
}

/* ---- transports -------------------------------------------------------- */

/* Does any channel that the contract names go over this transport? */
static bool settle_keeps_contract(const struct tpt_plan *plan,
                                  const struct tpt_candidate *transport)
{
    if (plan->insist[0] == '\0')
        return true;
    for (uint32_t i = 0; i < plan->count; i++)
        if (plan->candidates[i].insisted && !plan->candidates[i].devices
            && settle_eligible(&plan->candidates[i])
            && settle_goes_over(&plan->candidates[i], transport))
            return true;
    return false;
}

/* The item may have been written as any:, so the remedies name no class that
 * it had. */
static void settle_break_contract(const struct tpt_plan *plan,
                                  struct tpt_candidate *transport)
{
    bool self = plan->locality == TPT_SAME_PROCESS;

    transport->possible = false;
    transport->reason = TPT_REASON_CONTRACT;
    snprintf(transport->evidence, sizeof(transport->evidence),
             "TP_REQUIRE wants %.40s for class %s, %s", plan->insist,
             tpt_locality_class(plan->locality),
             self ? "and a rank has no such channel to itself"
             : "which cannot be had");
    if (self)
        snprintf(transport->remedy, sizeof(transport->remedy), "write node: "
                 "or net: before %.40s in TP_REQUIRE", plan->insist);
    else
        snprintf(transport->remedy, sizeof(transport->remedy), "fix what its "
                 "own line names, or take %.40s out of TP_REQUIRE",
                 plan->insist);
}

/* The best transport that keeps the contract; NULL if none does. */
static const struct tpt_candidate *settle_transports(struct tpt_plan *plan)
{
    struct tpt_candidate *best = NULL;

    for (uint32_t i = 0; i < plan->count; i++) {
        struct tpt_candidate *transport = &plan->candidates[i];

        if (transport->role != TPT_ROLE_TRANSPORT || !transport->possible)
            continue;
        if (!settle_keeps_contract(plan, transport)) {
            settle_break_contract(plan, transport);
            continue;
        }
        transport->reason = TPT_REASON_SLOWER;
        settle_evidence(plan, transport);
        if (best == NULL || settle_before(transport, best))
            best = transport;
    }
    if (best != NULL)
        best->reason = TPT_REASON_CHOSEN;
    return best;
}

/* ---- both --------------------------------------------------------------- */

void tpt_plan_settle(struct tpt_plan *plan)
{
    const struct tpt_candidate *best = settle_transports(plan);
    struct tpt_candidate transport = { 0 };

    if (best != NULL)
        transport = *best;
    for (uint32_t i = 0; i < plan->count; i++)
        if (settle_eligible(&plan->candidates[i]))
            settle_channel(plan, best != NULL ? &transport : NULL,
                           &plan->candidates[i]);
    settle_sort(plan);
}
