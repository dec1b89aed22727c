/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The candidates of a pair, their cost and their order.  Pure: nothing but the
 * arguments counts.  Whole numbers, so that two machines that compute this
 * from the same cards get the same order to the last bit.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "topology/devices.h"
#include "topology/private.h"

enum {
    SCORE_ROWS = 2 * TPT_BACKENDS, /* both cards' backends, all different */
    SCORE_NETWORK_NS = 1000,       /* a switch and some cable, each way */
    SCORE_FAR_NIC_PERCENT = 90,    /* of its speed; and for the way there: */
    SCORE_FAR_NIC_NS = 150         /* as to memory of another NUMA node */
};

/* All that is known about the pair while it is scored. */
struct score_pair {
    const struct tpt_card *mine, *yours;
    const struct tpt_policy *policy;
    enum tpt_locality locality;
    size_t count;
    struct tpt_known known[SCORE_ROWS];
};

/* What either card says of a backend (one of them may be NULL). */
struct score_sides {
    const struct tpt_backend_card *mine, *yours;
};

/* One candidate, with that. */
struct score_row {
    const struct tpt_backend_card *mine, *yours;
    struct tpt_candidate candidate;
};

/* The NICs of one side that a backend goes over at once, the fastest first. */
struct score_nics {
    uint32_t count;
    uint64_t speed;                /* MB/s of all of them */
    uint32_t megabits;             /* likewise, as the links tell it */
    const struct tpt_nic *nic[TPT_NICS];
    uint64_t speeds[TPT_NICS];
};

struct score_terms {
    uint64_t latency_ns, megabytes;
    struct score_nics limit;       /* what limits the bandwidth; 0: nothing */
};

/* ---- the model --------------------------------------------------------- */

static uint64_t score_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t score_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* At another NUMA node than the rank? */
static bool score_nic_far(const struct tpt_card *card,
                          const struct tpt_nic *nic)
{
    return nic->numa >= 0 && card->place.numa >= 0
           && nic->numa != card->place.numa;
}

/* What the NIC gives this rank, in MB/s; 0 if it is not known. */
static uint64_t score_nic_speed(const struct tpt_card *card,
                                const struct tpt_nic *nic)
{
    unsigned percent = score_nic_far(card, nic) ? SCORE_FAR_NIC_PERCENT : 100;

    return (uint64_t)nic->megabits * percent / (8 * 100);
}

static bool score_nic_is(const struct tpt_nic *nic, uint8_t kind)
{
    return kind == TPT_NIC_ANY || nic->kind == TPT_NIC_ANY
           || nic->kind == kind;
}

/* The NIC of that kind that serves the rank best: that of its GPU, which no
 * other rank's GPU was given; NULL if no speed is known.  Equal ones: the first
 * by name, so that the order on the card is no matter. */
static const struct tpt_nic *score_nic(const struct tpt_card *card,
                                       uint8_t kind)
{
    const struct tpt_nic *best = NULL;
    uint64_t best_speed = 0;
    int own = kind == TPT_NIC_RDMA ? tpt_card_nic(card) : -1;

    if (own >= 0 && score_nic_is(&card->nics[own], kind)
        && score_nic_speed(card, &card->nics[own]) > 0)
        return &card->nics[own];
    for (uint32_t i = 0; i < card->nic_count; i++) {
        const struct tpt_nic *nic = &card->nics[i];
        uint64_t speed = score_nic_speed(card, nic);

        if (speed == 0 || !score_nic_is(nic, kind))
            continue;
        if (speed > best_speed
            || (speed == best_speed && strcmp(nic->name, best->name) < 0)) {
            best = nic;
            best_speed = speed;
        }
    }
    return best;
}

/* Puts one where it belongs; equal ones by name. */
static void score_nics_add(const struct tpt_card *card,
                           const struct tpt_nic *nic,
                           struct score_nics *nics)
{
    uint64_t speed = score_nic_speed(card, nic);
    uint32_t at = nics->count;

    while (at > 0 && (nics->speeds[at - 1] < speed
                      || (nics->speeds[at - 1] == speed
                          && strcmp(nic->name, nics->nic[at - 1]->name) < 0)))
        at--;
    for (uint32_t i = nics->count++; i > at; i--) {
        nics->nic[i] = nics->nic[i - 1];
        nics->speeds[i] = nics->speeds[i - 1];
    }
    nics->nic[at] = nic;
    nics->speeds[at] = speed;
    nics->speed += speed;
    nics->megabits += nic->megabits;
}

/* Those that the backend goes over; none if no speed is known. */
static struct score_nics score_nics(const struct tpt_card *card,
                                    const struct tpt_backend_card *backend)
{
    const struct tpt_nic *best = score_nic(card, backend->nic_kind);
    struct score_nics nics = { 0 };

    for (uint32_t i = 0; i < card->nic_count; i++)
        if ((backend->nics >> i & 1) != 0
            && score_nic_speed(card, &card->nics[i]) > 0)
            score_nics_add(card, &card->nics[i], &nics);
    if (nics.count == 0 && best != NULL)
        score_nics_add(card, best, &nics);
    return nics;
}

/*
 * What two sides' NICs carry: if they have as many, the first of the one goes
 * with the first of the other and so on; else those of the side that has more
 * share the others.
 */
static uint64_t score_nics_pair(const struct score_nics *a,
                                const struct score_nics *b)
{
    uint64_t speed = 0;

    if (a->count == 0 || b->count == 0)
        return score_max(a->speed, b->speed);
    if (a->count != b->count)
        return score_min(a->speed, b->speed);
    for (uint32_t i = 0; i < a->count; i++)
        speed += score_min(a->speeds[i], b->speeds[i]);
    return speed;
}

/* The way to a NIC at another NUMA node is longer. */
static uint64_t score_nic_latency(const struct tpt_card *card, uint8_t kind)
{
    const struct tpt_nic *nic = score_nic(card, kind);

    return nic != NULL && score_nic_far(card, nic) ? SCORE_FAR_NIC_NS : 0;
}

/* Lowers the bandwidth to what the NICs give. */
static void score_limit(const struct score_pair *pair,
                        const struct tpt_backend_card *a,
                        const struct tpt_backend_card *b,
                        struct score_terms *terms)
{
    struct score_nics mine = score_nics(pair->mine, a);
    struct score_nics yours = score_nics(pair->yours, b);
    uint64_t speed = score_nics_pair(&mine, &yours);

    if (speed == 0 || speed >= terms->megabytes)
        return;
    terms->megabytes = speed;
    terms->limit = yours.count == 0
                   || (mine.count > 0 && mine.speed <= yours.speed) ? mine
                   : yours;
}

/* Inside a host an RDMA device turns the data round: it passes its link twice.
 * IP does not come near a NIC then. */
static bool score_loops(const struct tpt_backend_card *backend)
{
    return backend->reach == TPT_REACH_NETWORK
           && backend->nic_kind == TPT_NIC_RDMA;
}

static struct score_terms score_model(const struct score_pair *pair,
                                      const struct tpt_backend_card *a,
                                      const struct tpt_backend_card *b)
{
    struct score_terms terms = {
        .latency_ns = score_max(a->latency_ns, b->latency_ns)
                      + tpt_locality_latency(pair->locality),
        .megabytes = score_min(a->megabytes, b->megabytes)
                     * tpt_locality_percent(pair->locality) / 100,
    };

    if (pair->locality == TPT_OTHER_HOST)
        terms.latency_ns += SCORE_NETWORK_NS;
    else if (score_loops(a) || score_loops(b))
        terms.megabytes /= 2;
    if (pair->locality == TPT_OTHER_HOST || score_loops(a) || score_loops(b)) {
        terms.latency_ns += score_nic_latency(pair->mine, a->nic_kind)
                            + score_nic_latency(pair->yours, b->nic_kind);
        score_limit(pair, a, b, &terms);
    }
    /* A card that gives no bandwidth is not worth a division by zero. */
    terms.megabytes = score_max(terms.megabytes, 1);
    return terms;
}

/* From what was measured; false if neither side did. */
static bool score_measured(const struct score_pair *pair,
                           const struct tpt_backend_card *a,
                           const struct tpt_backend_card *b,
                           struct score_terms *terms)
{
    const struct tpt_cost *x = &a->measured[pair->locality];
    const struct tpt_cost *y = &b->measured[pair->locality];

    if (x->megabytes == 0)
        x = y;
    if (y->megabytes == 0)
        y = x;
    if (x->megabytes == 0)
        return false;
    *terms = (struct score_terms) {
        .latency_ns = score_max(x->latency_ns, y->latency_ns),
        .megabytes = score_min(x->megabytes, y->megabytes)
    };
    /* A latency that was measured has the way to the NICs in it. */
    if (pair->locality == TPT_OTHER_HOST)
        score_limit(pair, a, b, terms);
    return true;
}

/* ---- the verdicts ------------------------------------------------------ */

static void score_refuse(struct score_row *row, enum tpt_reason reason)
{
    row->candidate.possible = false;
    row->candidate.reason = reason;
}

#define SCORE_EVIDENCE(row, ...) \
    snprintf((row)->candidate.evidence, sizeof((row)->candidate.evidence), \
             __VA_ARGS__)
#define SCORE_REMEDY(row, ...) \
    snprintf((row)->candidate.remedy, sizeof((row)->candidate.remedy), \
             __VA_ARGS__)

/* Of a backend that only TP_BACKENDS makes: it does so on one side. */
static bool score_unnamed(const struct score_pair *pair, struct score_row *row)
{
    const char *name = row->candidate.name, *host = pair->yours->host.name;

    if (!tpt_policy_names(name, row->mine == NULL ? pair->mine : pair->yours))
        return false;
    if (row->mine == NULL) {
        SCORE_EVIDENCE(row, "TP_BACKENDS on %s names it, the one here does "
                       "not", host);
        SCORE_REMEDY(row, "name %s in TP_BACKENDS here, too", name);
    } else {
        SCORE_EVIDENCE(row, "TP_BACKENDS here names it, the one on %s does "
                       "not", host);
        SCORE_REMEDY(row, "name %s in TP_BACKENDS on %.63s, too", name, host);
    }
    return true;
}

static bool score_lacks(const struct score_pair *pair, struct score_row *row)
{
    const char *name = row->candidate.name;

    if (row->mine != NULL && row->yours != NULL)
        return false;
    score_refuse(row, row->mine == NULL ? TPT_REASON_MINE_LACKS
                      : TPT_REASON_YOURS_LACKS);
    if (score_unnamed(pair, row))
        return true;
    if (row->mine == NULL) {
        SCORE_EVIDENCE(row, "the tp on %s has it, the one here has not",
                       pair->yours->host.name);
        SCORE_REMEDY(row, "build the tp here with %s too, as on %.63s", name,
                     pair->yours->host.name);
    } else {
        SCORE_EVIDENCE(row, "the tp here has it, the one on %s has not",
                       pair->yours->host.name);
        SCORE_REMEDY(row, "build the tp on %.63s with %s too, as here",
                     pair->yours->host.name, name);
    }
    return true;
}

/* A card of another version of tp, or a made-up one. */
static bool score_differs(const struct score_pair *pair, struct score_row *row)
{
    if (row->mine->role == row->yours->role
        && row->mine->devices == row->yours->devices
        && strcmp(row->mine->over, row->yours->over) == 0)
        return false;
    score_refuse(row, TPT_REASON_YOURS_LACKS);
    SCORE_EVIDENCE(row, "on %s that name means something else",
                   pair->yours->host.name);
    SCORE_REMEDY(row, "run the same tp on both hosts");
    return true;
}

/* Long buffers go other ways than frames also within a process: the host's by a
 * copy, memory of devices as between two. */
static bool score_within(const struct score_row *row)
{
    if (strcmp(row->candidate.name, TPT_MAPPED) == 0)
        return true;
    return row->candidate.devices
           && strcmp(row->candidate.name, TPT_PINNED) != 0
           && (row->candidate.reach == TPT_REACH_HOST
               || strcmp(row->candidate.name, TPT_STAGED) == 0);
}

static bool score_out_of_reach(const struct score_pair *pair,
                               struct score_row *row)
{
    bool self = pair->locality == TPT_SAME_PROCESS;

    if (row->candidate.reach == TPT_REACH_PROCESS && !self) {
        score_refuse(row, TPT_REASON_NOT_SAME_PROCESS);
        SCORE_EVIDENCE(row, "connects a rank to itself only");
    } else if (row->candidate.reach != TPT_REACH_PROCESS && self
               && !score_within(row)) {
        score_refuse(row, TPT_REASON_NOT_OTHER_PROCESS);
        SCORE_EVIDENCE(row, "connects a rank to others only");
    } else if (row->candidate.reach == TPT_REACH_HOST
               && pair->locality == TPT_OTHER_HOST) {
        score_refuse(row, TPT_REASON_NOT_SAME_HOST);
        if (strcmp(pair->mine->host.name, pair->yours->host.name) == 0)
            SCORE_EVIDENCE(row, "stays on one host; these are two, both called"
                           " %s", pair->mine->host.name);
        else
            SCORE_EVIDENCE(row, "stays on one host; these are %s and %s",
                           pair->mine->host.name, pair->yours->host.name);
    } else {
        return false;
    }
    return true;
}

/* The item of TP_BACKENDS that forbids it: "^ofi" forbids "ofi:tcp". */
static void score_take_out(struct score_row *row, const char *list)
{
    const char *item = list + 1;
    size_t length = strcspn(item, ",");

    while (item[length] != '\0'
           && (length == 0
               || !tpt_name_within(item, length, row->candidate.name))) {
        item += length + 1;
        length = strcspn(item, ",");
    }
    SCORE_REMEDY(row, "take %.*s out of TP_BACKENDS", (int)length, item);
}

static bool score_forbidden(const struct score_pair *pair,
                            struct score_row *row)
{
    const char *list = pair->policy->backends;
    const char *name = row->candidate.name;

    if (!tpt_policy_lists(list, name)) {
        score_refuse(row, TPT_REASON_FORBIDDEN);
        SCORE_EVIDENCE(row, "TP_BACKENDS=%.60s here", list);
        if (*list == '^')
            score_take_out(row, list);
        else
            SCORE_REMEDY(row, "add %s to TP_BACKENDS", name);
    } else if (row->mine->forbidden || row->yours->forbidden) {
        const char *where = row->mine->forbidden ? "here"
                            : pair->yours->host.name;

        score_refuse(row, TPT_REASON_FORBIDDEN);
        SCORE_EVIDENCE(row, "by TP_BACKENDS %s%s",
                       row->mine->forbidden ? "" : "on ", where);
        SCORE_REMEDY(row, "allow %s in TP_BACKENDS %s%s", name,
                     row->mine->forbidden ? "" : "on ", where);
    } else {
        return false;
    }
    return true;
}

static const char *score_why(const struct tpt_backend_card *backend)
{
    return backend->why[0] != '\0' ? backend->why : "gives no reason";
}

/* There is nothing to be mended on a machine that is not here. */
static void score_record_anew(struct score_row *row,
                              const struct tpt_card *card)
{
    SCORE_REMEDY(row, "%.63s is a recorded machine: another one, or a newer "
                 "recording (`lstopo FILE.xml` there), may have it",
                 card->host.name);
}

static bool score_unusable(const struct score_pair *pair,
                           struct score_row *row)
{
    if (!row->mine->usable) {
        score_refuse(row, TPT_REASON_MINE_UNUSABLE);
        SCORE_EVIDENCE(row, "%s", score_why(row->mine));
        if (pair->mine->recorded)
            score_record_anew(row, pair->mine);
        else
            SCORE_REMEDY(row, "fix that on this host; `tpinfo --backends` "
                         "shows whether that helped");
    } else if (!row->yours->usable) {
        score_refuse(row, TPT_REASON_YOURS_UNUSABLE);
        SCORE_EVIDENCE(row, "%s", score_why(row->yours));
        if (pair->yours->recorded)
            score_record_anew(row, pair->yours);
        else
            SCORE_REMEDY(row, "fix that on %.63s; `tpinfo --backends` there "
                         "shows whether that helped", pair->yours->host.name);
    } else {
        return false;
    }
    return true;
}

/* The contract has been checked: it can be understood. */
static enum tpt_allowance score_allowance(const struct score_pair *pair,
                                          const struct score_row *row)
{
    struct tpt_known self = { row->candidate.name,
                              (enum tpt_role)row->candidate.role,
                              row->candidate.devices };
    enum tpt_allowance allowance = TPT_FREE;

    tpt_require_allows(pair->policy->require, pair->locality, pair->known,
                       pair->count, &self, &allowance, NULL);
    return allowance;
}

static const char *score_class(const struct score_pair *pair,
                               const struct score_row *row)
{
    return row->candidate.devices ? "cuda"
           : tpt_locality_class(pair->locality);
}

static bool score_breaks_contract(const struct score_pair *pair,
                                  struct score_row *row)
{
    enum tpt_allowance allowance = score_allowance(pair, row);
    enum tpt_role role = (enum tpt_role)row->candidate.role;
    const char *class = score_class(pair, row);
    char list[48];

    row->candidate.insisted = allowance == TPT_ALLOWED
                              && role == TPT_ROLE_CHANNEL;
    if (allowance != TPT_DENIED)
        return false;
    score_refuse(row, TPT_REASON_CONTRACT);
    tpt_require_list(pair->policy->require, pair->locality, pair->known,
                     pair->count, role, row->candidate.devices, list,
                     sizeof(list));
    SCORE_EVIDENCE(row, "TP_REQUIRE wants %s for class %s", list, class);
    SCORE_REMEDY(row, "add %s:%s to TP_REQUIRE", class, row->candidate.name);
    return true;
}

/* Of one that is forbidden: to allow it is not enough if the contract does not
 * want it either, or the other side has not got it. */
static void score_twice(const struct score_pair *pair, struct score_row *row)
{
    size_t used = strlen(row->candidate.remedy);
    bool here = !tpt_policy_lists(pair->policy->backends, row->candidate.name)
                || row->mine->forbidden;

    row->candidate.barred = here ? !row->yours->usable : !row->mine->usable;
    if (score_allowance(pair, row) == TPT_DENIED)
        snprintf(row->candidate.remedy + used,
                 sizeof(row->candidate.remedy) - used,
                 ", and add %s:%s to TP_REQUIRE", score_class(pair, row),
                 row->candidate.name);
}

/* "eth0+eth1" */
static void score_name_nics(const struct score_nics *nics,
                            struct tpt_candidate *candidate)
{
    size_t used = 0;

    for (uint32_t i = 0; i < nics->count && used < sizeof(candidate->nic); i++)
        used += (size_t)snprintf(candidate->nic + used,
                                 sizeof(candidate->nic) - used, "%s%s",
                                 i > 0 ? "+" : "", nics->nic[i]->name);
    candidate->nic_megabits = nics->megabits;
}

static void score_can(const struct score_pair *pair, struct score_row *row)
{
    struct score_terms terms = score_model(pair, row->mine, row->yours);
    struct tpt_candidate *candidate = &row->candidate;

    candidate->model_latency_ns = terms.latency_ns;
    candidate->model_megabytes = terms.megabytes;
    candidate->measured = score_measured(pair, row->mine, row->yours, &terms);
    candidate->possible = true;
    candidate->reason = TPT_REASON_SLOWER;
    candidate->latency_ns = terms.latency_ns;
    candidate->megabytes = terms.megabytes;
    candidate->cost_ns = tpt_time(terms.latency_ns, terms.megabytes,
                                  TPT_MESSAGE);
    score_name_nics(&terms.limit, candidate);
}

/* Where the cards tell different things of a backend, what both sides make of
 * it must be the same. */
static void score_agree(struct score_row *row)
{
    struct tpt_candidate *candidate = &row->candidate;

    if (row->yours->reach < candidate->reach)
        candidate->reach = row->yours->reach;
    if (row->yours->role > candidate->role)
        candidate->role = row->yours->role;
    if (strcmp(row->yours->over, candidate->over) > 0)
        memcpy(candidate->over, row->yours->over, sizeof(candidate->over));
}

static void score_judge(const struct score_pair *pair, struct score_row *row)
{
    const struct tpt_backend_card *any = row->mine != NULL ? row->mine
                                         : row->yours;
    struct tpt_candidate *candidate = &row->candidate;

    memcpy(candidate->name, any->name, sizeof(candidate->name));
    memcpy(candidate->over, any->over, sizeof(candidate->over));
    candidate->role = any->role;
    candidate->reach = any->reach;
    candidate->devices = any->devices != 0;
    candidate->spare = tpt_policy_spares(pair->policy->backends,
                                         candidate->name);
    candidate->from_bytes = UINT64_MAX;
    if (row->mine != NULL && row->yours != NULL)
        score_agree(row);
    if (score_lacks(pair, row)
        || score_differs(pair, row)
        || score_out_of_reach(pair, row))
        return;
    if (score_forbidden(pair, row))
        score_twice(pair, row);
    else if (!score_unusable(pair, row) && !score_breaks_contract(pair, row))
        score_can(pair, row);
}

/* ---- the order --------------------------------------------------------- */

static size_t score_collect(const struct score_pair *pair,
                            struct score_sides rows[SCORE_ROWS])
{
    size_t count = 0;

    for (uint32_t i = 0; i < pair->mine->backend_count; i++) {
        const struct tpt_backend_card *mine = &pair->mine->backends[i];

        rows[count++] = (struct score_sides) {
            mine, tpt_card_backend(pair->yours, mine->name)
        };
    }
    for (uint32_t i = 0; i < pair->yours->backend_count; i++) {
        const struct tpt_backend_card *yours = &pair->yours->backends[i];

        if (tpt_card_backend(pair->mine, yours->name) == NULL)
            rows[count++] = (struct score_sides) { NULL, yours };
    }
    return count;
}

static tp_status score_check_contract(struct score_pair *pair,
                                      const struct score_sides *rows,
                                      struct tpb_error *error)
{
    for (size_t i = 0; i < pair->count; i++) {
        const struct tpt_backend_card *any = rows[i].mine != NULL
                                             ? rows[i].mine : rows[i].yours;

        pair->known[i] = (struct tpt_known) { any->name,
                                              (enum tpt_role)any->role,
                                              any->devices != 0 };
    }
    return tpt_require_check(pair->policy->require, pair->known, pair->count,
                             error);
}

static bool score_before(const struct tpt_candidate *x,
                         const struct tpt_candidate *y)
{
    if (x->possible != y->possible)
        return x->possible;
    if (x->cost_ns != y->cost_ns)
        return x->cost_ns < y->cost_ns;
    return strcmp(x->name, y->name) < 0;
}

/* Puts it where it belongs; of more than there is room for the last goes. */
static void score_insert(const struct tpt_candidate *candidate,
                         struct tpt_plan *plan)
{
    uint32_t at = plan->count;

    while (at > 0 && score_before(candidate, &plan->candidates[at - 1]))
        at--;
    if (plan->count == TPT_BACKENDS)
        plan->omitted++;
    else
        plan->count++;
    if (at == TPT_BACKENDS)
        return;
    memmove(&plan->candidates[at + 1], &plan->candidates[at],
            (plan->count - at - 1) * sizeof(*candidate));
    plan->candidates[at] = *candidate;
}

tp_status tpt_score(const struct tpt_card *mine, const struct tpt_card *yours,
                    const struct tpt_policy *policy, struct tpt_plan *plan,
                    struct tpb_error *error)
{
    static const struct tpt_policy everything = { NULL, NULL };
    struct score_pair pair = { mine, yours,
                               policy != NULL ? policy : &everything,
                               tpt_locality(mine, yours), 0, { { 0 } } };
    struct score_sides rows[SCORE_ROWS];
    tp_status status;

    pair.count = score_collect(&pair, rows);
    status = score_check_contract(&pair, rows, error);
    if (status != TP_OK)
        return status;
    memset(plan, 0, sizeof(*plan));
    plan->locality = pair.locality;
    /* One at a time: all of them would not fit a small stack. */
    for (size_t i = 0; i < pair.count; i++) {
        struct score_row row = { .mine = rows[i].mine,
                                 .yours = rows[i].yours };

        score_judge(&pair, &row);
        score_insert(&row.candidate, plan);
    }
    tpt_require_list(pair.policy->require, pair.locality, pair.known,
                     pair.count, TPT_ROLE_CHANNEL, false, plan->insist,
                     sizeof(plan->insist));
    tpt_require_list(pair.policy->require, pair.locality, pair.known,
                     pair.count, TPT_ROLE_CHANNEL, true,
                     plan->insist_devices, sizeof(plan->insist_devices));
    tpt_device_weigh(mine, yours, plan);
    tpt_device_deny(mine, yours, plan);
    tpt_plan_settle(plan);
    return TP_OK;
}
