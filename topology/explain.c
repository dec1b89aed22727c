/* SPDX-License-Identifier: BSD-3-Clause */
/* A plan for people and for programs.  tp_explain(7) describes the JSON. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "topology/json.h"
#include "topology/private.h"

/* Six digits are more than the model is good for. */
#define EXPLAIN_FORMAT (JSON_INDENT(2) | JSON_REAL_PRECISION(6))

json_t *tpt_json_text(const char *text)
{
    json_t *string = json_string(text);
    char clean[1024];

    if (string != NULL)
        return string;
    snprintf(clean, sizeof(clean), "%s", text);
    for (size_t i = 0; clean[i] != '\0'; i++)
        if ((clean[i] & 0x80) != 0)
            clean[i] = '?';
    return json_string(clean);
}

char *tpt_json_dump(json_t *root)
{
    char *text = root != NULL ? json_dumps(root, EXPLAIN_FORMAT) : NULL;

    json_decref(root);
    return text;
}

/* One side of the pair. */
static json_t *explain_rank(const struct tpt_card *card)
{
    return json_pack("{s:o, s:i, s:o, s:I, s:{s:i, s:i, s:i, s:i, s:i, s:I},"
                     " s:o}",
                     "job", tpt_json_text(card->job), "rank", (int)card->rank,
                     "host", tpt_json_text(card->host.name),
                     "pid", (json_int_t)card->pid, "place",
                     "core", (int)card->place.core,
                     "l2", (int)card->place.l2,
                     "l3", (int)card->place.l3,
                     "numa", (int)card->place.numa,
                     "package", (int)card->place.package,
                     "cpus", (json_int_t)card->place.cpus,
                     "gpus", tpt_json_gpus(card));
}

static json_t *explain_trial(const struct tpt_trial *trial)
{
    if (trial->result == TPT_UNTRIED)
        return json_null();
    return json_pack("{s:b, s:o}", "passed", trial->result == TPT_PASSED,
                     "words", tpt_json_text(trial->words));
}

/* What one side's card says about a backend, and its own trial. */
static json_t *explain_verdict(const struct tpt_card *card,
                               const struct tpt_candidate *candidate,
                               enum tpt_side side)
{
    const struct tpt_backend_card *backend
        = tpt_card_backend(card, candidate->name);
    json_t *trial = explain_trial(&candidate->trials[side]);

    if (backend == NULL)
        return json_pack("{s:b, s:b, s:b, s:s, s:o}", "built", 0, "usable", 0,
                         "forbidden", 0, "why",
                         tpt_policy_names(candidate->name, card)
                         ? "not named in TP_BACKENDS" : "not in this build",
                         "trial", trial);
    return json_pack("{s:b, s:b, s:b, s:o, s:o}", "built", 1,
                     "usable", (int)backend->usable,
                     "forbidden", (int)backend->forbidden,
                     "why", tpt_json_text(backend->why), "trial", trial);
}

void tpt_plan_carried(struct tpt_plan *plan, const char *name,
                      const char *carrier)
{
    for (uint32_t i = 0; i < plan->count; i++)
        if (strcmp(plan->candidates[i].name, name) == 0)
            plan->candidates[i].carrier = carrier;
}

static json_t *explain_candidate(const struct tpt_candidate *candidate,
                                 const struct tpt_card *mine,
                                 const struct tpt_card *yours)
{
    /* What was refused later still has its terms. */
    unsigned possible = candidate->possible;

    return json_pack(
        "{s:o, s:s, s:b, s:b, s:s, s:i, s:s, s:o, s:f, s:f, s:f, s:o, s:s,"
        " s:{s:f, s:f}, s:o, s:o, s:o, s:o, s:o, s:o}",
        "name", tpt_json_text(candidate->name),
        "role", tpt_role_name((enum tpt_role)candidate->role),
        "devices", (int)candidate->devices,
        "possible", (int)candidate->possible,
        "reason", tpt_reason_name(candidate->reason),
        "reason_code", (int)candidate->reason,
        "reach", tpt_reach_name((enum tpt_reach)candidate->reach),
        "over", candidate->over[0] != '\0' ? tpt_json_text(candidate->over)
                : json_null(),
        "latency_us", (double)(possible * candidate->latency_ns) / 1000,
        "megabytes_per_second", (double)(possible * candidate->megabytes),
        "cost_us", (double)(possible * candidate->cost_ns) / 1000,
        "from_bytes", candidate->from_bytes != UINT64_MAX
                      ? json_integer((json_int_t)candidate->from_bytes)
                      : json_null(),
        "source", candidate->measured ? "measured" : "model",
        "model", "latency_us", (double)candidate->model_latency_ns / 1000,
        "megabytes_per_second", (double)candidate->model_megabytes,
        "nic", candidate->nic[0] != '\0' ? tpt_json_text(candidate->nic)
               : json_null(),
        "carrier", candidate->carrier != NULL
                   ? tpt_json_text(candidate->carrier) : json_null(),
        "evidence", tpt_json_text(candidate->evidence),
        "remedy", tpt_json_text(candidate->remedy),
        "mine", explain_verdict(mine, candidate, TPT_MINE),
        "yours", explain_verdict(yours, candidate, TPT_YOURS));
}

json_t *tpt_json_route(uint64_t from_bytes, const char *name)
{
    return json_pack("{s:I, s:o}", "from_bytes", (json_int_t)from_bytes,
                     "name", name != NULL ? tpt_json_text(name) : json_null());
}

static const char *explain_route_name(const struct tpt_plan *plan,
                                      const struct tpt_route *route)
{
    return route->candidate >= 0 ? plan->candidates[route->candidate].name
                                 : NULL;
}

static json_t *explain_routes(const struct tpt_plan *plan)
{
    struct tpt_route routes[TPT_ROUTES];
    size_t count = tpt_plan_routes(plan, routes);
    json_t *list = json_array();

    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, tpt_json_route(
            routes[i].from_bytes, explain_route_name(plan, &routes[i])));
    return list;
}

json_t *tpt_json_plan(const struct tpt_plan *plan, const struct tpt_card *mine,
                      const struct tpt_card *yours)
{
    json_t *candidates = json_array();
    int best = tpt_plan_best(plan);

    for (uint32_t i = 0; i < plan->count; i++)
        if (json_array_append_new(candidates,
                                  explain_candidate(&plan->candidates[i],
                                                    mine, yours)) != 0) {
            json_decref(candidates);
            return NULL;
        }
    return json_pack("{s:i, s:o, s:o, s:s, s:s, s:o, s:o, s:i, s:o,"
                     " s:o}",
                     "version", 1,
                     "mine", explain_rank(mine), "yours", explain_rank(yours),
                     "locality", tpt_locality_name(plan->locality),
                     "class", tpt_locality_class(plan->locality),
                     "chosen", best >= 0
                     ? tpt_json_text(plan->candidates[best].name)
                     : json_null(),
                     "routes", explain_routes(plan),
                     "omitted", (int)plan->omitted,
                     "candidates", candidates,
                     "devices", tpt_json_devices(plan, mine, yours));
}

char *tpt_plan_json(const struct tpt_plan *plan, const struct tpt_card *mine,
                    const struct tpt_card *yours, bool connected,
                    const struct tpb_record_imports *imports)
{
    json_t *object = tpt_json_plan(plan, mine, yours);

    if (object != NULL
        && (json_object_set_new(object, "connected", json_boolean(connected))
            != 0
            || (imports != NULL
                && json_object_set_new(object, "imports",
                                       tpt_json_imports(imports)) != 0))) {
        json_decref(object);
        object = NULL;
    }
    return tpt_json_dump(object);
}

char *tpt_plan_json_unknown(bool connected, const char *reason)
{
    return tpt_json_dump(json_pack("{s:i, s:b, s:o}", "version", 1,
                                   "connected", (int)connected, "reason",
                                   tpt_json_text(reason)));
}

/* ---- for people -------------------------------------------------------- */

/* "from 24 KiB"; of three digits, so no 1000 of anything. */
static void explain_size(uint64_t bytes, struct tpb_text *text)
{
    static const char *const units[] = { "KiB", "MiB", "GiB", "TiB" };
    double size = (double)bytes / 1024;
    size_t unit = 0;

    for (; size >= 999.5 && unit + 1 < TPB_COUNT(units); unit++)
        size /= 1024;
    tpb_text_add(text, "from %.3g %s", size, units[unit]);
}

static void explain_from(const struct tpt_candidate *candidate,
                         struct tpb_text *text)
{
    if (candidate->role != TPT_ROLE_CHANNEL)
        return;
    if (candidate->devices)
        tpb_text_add(text, "GPUs, ");
    if (candidate->from_bytes <= TPT_DEVICE_LEAST)
        tpb_text_add(text, "for all sizes");
    else if (candidate->from_bytes == UINT64_MAX)
        tpb_text_add(text, "for no size");
    else
        explain_size(candidate->from_bytes, text);
    tpb_text_add(text, ", ");
}

void tpt_route_text(size_t at, uint64_t from_bytes, const char *name,
                    struct tpb_text *text)
{
    if (at > 0) {
        tpb_text_add(text, ", ");
        explain_size(from_bytes, text);
        tpb_text_add(text, " ");
    }
    tpb_text_add(text, "%s", name != NULL ? name : "refused");
}

/* "buffers: shm, from 9.38 KiB map, from 1 MiB cma", if there is a choice. */
static void explain_line_routes(const struct tpt_plan *plan,
                                struct tpb_text *text)
{
    struct tpt_route routes[TPT_ROUTES];
    size_t count = tpt_plan_routes(plan, routes);

    if (count < 2)
        return;
    tpb_text_add(text, "  buffers: ");
    for (size_t i = 0; i < count; i++)
        tpt_route_text(i, routes[i].from_bytes,
                       explain_route_name(plan, &routes[i]), text);
    tpb_text_add(text, "; what a channel does not take, the next best\n");
}

/* Both sides' trials, where one of them was refused. */
static void explain_line_trials(const struct tpt_candidate *candidate,
                                struct tpb_text *text)
{
    const struct tpt_trial *trials = candidate->trials;

    if (trials[TPT_MINE].result != TPT_FAILED
        && trials[TPT_YOURS].result != TPT_FAILED)
        return;
    for (int side = TPT_MINE; side <= TPT_YOURS; side++)
        if (trials[side].result != TPT_UNTRIED)
            tpb_text_add(text, "  %-12s %34strial %s: %s\n", "", "",
                         side == TPT_MINE ? "here" : "there",
                         trials[side].result == TPT_PASSED ? "passed"
                         : trials[side].words);
}

static void explain_line(const struct tpt_candidate *candidate,
                         struct tpb_text *text)
{
    tpb_text_add(text, "  %-12s", candidate->name);
    if (candidate->possible)
        tpb_text_add(text, " %8.2f us %7.0f %9.2f us",
                     (double)candidate->latency_ns / 1000,
                     (double)candidate->megabytes,
                     (double)candidate->cost_ns / 1000);
    else
        tpb_text_add(text, " %8s    %7s %9s   ", "-", "-", "-");
    tpb_text_add(text, "  %s: ", tpt_reason_name(candidate->reason));
    if (candidate->possible)
        explain_from(candidate, text);
    tpb_text_add(text, "%s", candidate->evidence);
    if (candidate->carrier != NULL)
        tpb_text_add(text, ", over %s", candidate->carrier);
    tpb_text_add(text, "\n");
    explain_line_trials(candidate, text);
    if (candidate->remedy[0] != '\0')
        tpb_text_add(text, "  %-12s %34sremedy: %s\n", "", "",
                     candidate->remedy);
}

/* A pid of 0 says that the rank is only planned. */
static void explain_side(const struct tpt_card *card, struct tpb_text *text)
{
    tpb_text_add(text, "rank %d (%s", (int)card->rank, card->host.name);
    if (card->pid != 0)
        tpb_text_add(text, ", pid %u", card->pid);
    tpb_text_add(text, ")");
}

void tpt_plan_text(const struct tpt_plan *plan, const struct tpt_card *mine,
                   const struct tpt_card *yours, struct tpb_text *text)
{
    explain_side(mine, text);
    tpb_text_add(text, " and ");
    explain_side(yours, text);
    tpb_text_add(text, ": %s\n", tpt_locality_name(plan->locality));
    tpb_text_add(text, "  %-12s %11s %7s %12s  %s\n", "transport", "latency",
                 "MB/s", "64 KiB", "verdict");
    for (uint32_t i = 0; i < plan->count; i++) {
        if (plan->candidates[i].role == TPT_ROLE_CHANNEL
            && (i == 0 || plan->candidates[i - 1].role != TPT_ROLE_CHANNEL))
            tpb_text_add(text, "  channel\n");
        explain_line(&plan->candidates[i], text);
    }
    if (tpt_plan_best(plan) < 0)
        tpb_text_add(text, "  no backend connects them\n");
    explain_line_routes(plan, text);
    tpt_devices_text(plan, mine, yours, text);
}
