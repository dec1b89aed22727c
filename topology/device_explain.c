/* SPDX-License-Identifier: BSD-3-Clause */
/* Pairs of devices for people and for programs; tp_explain(7) describes the
 * JSON. */
#include "config.h"

#include <stdio.h>

#include "topology/devices.h"
#include "topology/json.h"
#include "topology/private.h"

/* ---- what the path rests on --------------------------------------------- */

static const struct tpt_card_gpu *explain_gpu(const struct tpt_card *card,
                                              uint32_t index)
{
    return index < card->gpu_count ? &card->gpus[index] : NULL;
}

static unsigned explain_links(const struct tpt_card_gpu *from,
                              const struct tpt_card_gpu *to)
{
    for (unsigned i = 0; i < from->link_count; i++)
        if (from->links[i].pci == to->place.pci)
            return from->links[i].count;
    return 0;
}

static void explain_nvlink(const struct tpt_card_gpu *a,
                           const struct tpt_card_gpu *b, char *text,
                           size_t size)
{
    unsigned x = explain_links(a, b), y = explain_links(b, a);
    unsigned links = x > y ? x : y;
    const char *who = a->asked == TPT_LINKS_NVML || b->asked == TPT_LINKS_NVML
                      ? "NVML" : "the recorded topology";

    if (links == 0)
        snprintf(text, size, "%u and %u NVLinks to switches, says %s",
                 (unsigned)a->switched, (unsigned)b->switched, who);
    else
        snprintf(text, size, "%u NVLink%s between them, says %s", links,
                 links == 1 ? "" : "s", who);
}

/* The lowest bridge that both have above them. */
static void explain_bridge(const struct tpt_card_gpu *a,
                           const struct tpt_card_gpu *b, char *text,
                           size_t size)
{
    char bus[TPT_PCI_TEXT];
    unsigned shared = 0;

    while (shared < a->place.depth && shared < b->place.depth
           && a->place.path[shared] == b->place.path[shared])
        shared++;
    if (shared == 0)
        return;
    tpt_pci_text(a->place.path[shared - 1], bus);
    if (shared == 1)
        snprintf(text, size, "host bridge %.7s above both, and no other", bus);
    else
        snprintf(text, size, "bridge %s above both", bus);
}

static void explain_path(const struct tpt_card_gpu *a,
                         const struct tpt_card_gpu *b, bool turns,
                         struct tpt_device_plan *plan)
{
    char *text = plan->evidence;
    size_t size = sizeof(plan->evidence);

    switch (plan->path) {
    case TPT_PATH_SAME:
        snprintf(text, size, "both are that one%s", turns
                 ? ", and the two processes take turns at it" : "");
        break;
    case TPT_PATH_NVL:
        explain_nvlink(a, b, text, size);
        break;
    case TPT_PATH_PIX: case TPT_PATH_PXB: case TPT_PATH_PHB:
        explain_bridge(a, b, text, size);
        break;
    case TPT_PATH_NODE: case TPT_PATH_SYS:
        snprintf(text, size, "at NUMA nodes %d and %d", (int)a->place.numa,
                 (int)b->place.numa);
        break;
    case TPT_PATH_NET: case TPT_PATH_UNKNOWN:
        snprintf(text, size, "neither their bridges nor their NUMA nodes are "
                 "known");
    }
}

static const char *explain_nic(const struct tpt_card *card, uint32_t index)
{
    const struct tpt_card_gpu *gpu = explain_gpu(card, index);

    return gpu != NULL && gpu->nic > 0 ? card->nics[gpu->nic - 1].name : "";
}

static void explain_network(const struct tpt_card *mine,
                            const struct tpt_card *yours,
                            struct tpt_device_plan *plan)
{
    const char *x = explain_nic(mine, plan->mine);
    const char *y = explain_nic(yours, plan->yours);
    size_t size = sizeof(plan->evidence);

    if (*x != '\0' && *y != '\0')
        snprintf(plan->evidence, size, "NIC %s here (%s to the GPU), %s there "
                 "(%s)", x,
                 tpt_path_name((enum tpt_path)mine->gpus[plan->mine].nic_path),
                 y, tpt_path_name((enum tpt_path)
                                  yours->gpus[plan->yours].nic_path));
    else
        snprintf(plan->evidence, size, "two hosts, and an RDMA device near "
                 "the GPU is not known on %s", *x == '\0' && *y == '\0'
                 ? "either" : *x == '\0' ? "this one" : "that one");
}

void tpt_device_evidence(const struct tpt_card *mine,
                         const struct tpt_card *yours,
                         struct tpt_device_plan *plan)
{
    const struct tpt_card_gpu *a = explain_gpu(mine, plan->mine);
    const struct tpt_card_gpu *b = explain_gpu(yours, plan->yours);

    if (plan->path == TPT_PATH_NET)
        explain_network(mine, yours, plan);
    else if (a == NULL || b == NULL)
        snprintf(plan->evidence, sizeof(plan->evidence), "the card of %s "
                 "lists no such GPU", a == NULL ? "this rank"
                 : "that rank");
    else
        explain_path(a, b, tpt_device_turns(mine, yours, plan->mine,
                                            plan->yours), plan);
}

/* ---- kinds of pairs ----------------------------------------------------- */

static bool explain_alike(const struct tpt_device_plan *a,
                          const struct tpt_device_plan *b)
{
    if (a->path != b->path || a->count != b->count)
        return false;
    for (uint32_t i = 0; i < a->count; i++)
        if (strcmp(a->ways[i].name, b->ways[i].name) != 0
            || a->ways[i].reason != b->ways[i].reason
            || a->ways[i].from_bytes != b->ways[i].from_bytes
            || a->ways[i].latency_ns != b->ways[i].latency_ns
            || a->ways[i].megabytes != b->ways[i].megabytes)
            return false;
    return true;
}

/* The kind that this pair is of; the count of kinds if it is a new one. */
static size_t explain_kind(const struct tpt_card *mine,
                           const struct tpt_card *yours,
                           const struct tpt_plan *plan,
                           const struct tpt_device_kind *kinds, size_t count,
                           const struct tpt_device_plan *of)
{
    struct tpt_device_plan other;
    size_t i = 0;

    for (; i < count; i++) {
        tpt_device_score(mine, yours, plan, kinds[i].mine, kinds[i].yours,
                         &other);
        if (explain_alike(&other, of))
            break;
    }
    return i;
}

size_t tpt_device_kinds(const struct tpt_card *mine,
                        const struct tpt_card *yours,
                        const struct tpt_plan *plan,
                        struct tpt_device_kind kinds[TPT_DEVICE_KINDS])
{
    struct tpt_device_plan of;
    size_t count = 0;

    for (uint32_t i = 0; i < mine->gpu_count; i++)
        for (uint32_t j = 0; j < yours->gpu_count; j++) {
            size_t kind;

            tpt_device_score(mine, yours, plan, i, j, &of);
            if (of.count == 0)
                return 0;
            kind = explain_kind(mine, yours, plan, kinds, count, &of);
            if (kind < count)
                kinds[kind].count++;
            else if (count < TPT_DEVICE_KINDS)
                kinds[count++] = (struct tpt_device_kind) { i, j, 1 };
        }
    return count;
}

/* ---- for programs ------------------------------------------------------- */

static json_t *explain_json_uuid(const uint8_t uuid[16])
{
    char text[48] = "GPU";
    bool known = false;

    for (unsigned i = 0; i < 16; i++) {
        known |= uuid[i] != 0;
        snprintf(text + strlen(text), 4, "%s%02x",
                 i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                 uuid[i]);
    }
    return known ? json_string(text) : json_null();
}

static json_t *explain_json_gpu(const struct tpt_card *card, uint32_t index)
{
    static const char *const asked[] = { "nobody", "recorded", "nvml" };
    const struct tpt_card_gpu *gpu = &card->gpus[index];
    char bus[TPT_PCI_TEXT] = "";

    if (gpu->place.pci != 0)
        tpt_pci_text(gpu->place.pci, bus);
    return json_pack(
        "{s:i, s:s, s:o, s:i, s:i, s:o, s:o, s:s, s:i}",
        "index", (int)index, "pci", bus, "uuid", explain_json_uuid(gpu->uuid),
        "numa", (int)gpu->place.numa,
        "megabytes_per_second", (int)gpu->megabytes,
        "nic", gpu->nic > 0 ? tpt_json_text(card->nics[gpu->nic - 1].name)
               : json_null(),
        "nic_path", gpu->nic > 0
                    ? json_string(tpt_path_name((enum tpt_path)gpu->nic_path))
                    : json_null(),
        "nvlink_source", asked[gpu->asked],
        "nvlink_switched", (int)gpu->switched);
}

json_t *tpt_json_gpus(const struct tpt_card *card)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < card->gpu_count; i++)
        json_array_append_new(list, explain_json_gpu(card, i));
    return list;
}

static json_t *explain_json_way(const struct tpt_way *way)
{
    return json_pack(
        "{s:o, s:b, s:s, s:i, s:f, s:f, s:f, s:o, s:s, s:{s:f, s:f}, s:o,"
        " s:o}",
        "name", tpt_json_text(way->name), "possible", (int)way->possible,
        "reason", tpt_reason_name(way->reason),
        "reason_code", (int)way->reason,
        "latency_us", (double)way->latency_ns / 1000,
        "megabytes_per_second", (double)way->megabytes,
        "cost_us", (double)way->cost_ns / 1000,
        "from_bytes", way->from_bytes != UINT64_MAX
                      ? json_integer((json_int_t)way->from_bytes)
                      : json_null(),
        "source", way->measured ? "measured" : "model",
        "model", "latency_us", (double)way->model_latency_ns / 1000,
        "megabytes_per_second", (double)way->model_megabytes,
        "evidence", tpt_json_text(way->evidence),
        "remedy", tpt_json_text(way->remedy));
}

static const char *explain_route_name(const struct tpt_device_plan *plan,
                                      const struct tpt_device_route *route)
{
    return route->way >= 0 ? plan->ways[route->way].name : NULL;
}

static json_t *explain_json_routes(const struct tpt_device_plan *plan)
{
    struct tpt_device_route routes[TPT_DEVICE_ROUTES];
    size_t count = tpt_device_routes(plan, routes);
    json_t *list = json_array();

    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, tpt_json_route(
            routes[i].from_bytes, explain_route_name(plan, &routes[i])));
    return list;
}

json_t *tpt_json_devices(const struct tpt_plan *plan,
                         const struct tpt_card *mine,
                         const struct tpt_card *yours)
{
    struct tpt_device_kind kinds[TPT_DEVICE_KINDS];
    size_t count = tpt_device_kinds(mine, yours, plan, kinds);
    json_t *list = json_array();

    for (size_t i = 0; i < count; i++) {
        struct tpt_device_plan of;
        json_t *ways = json_array();

        tpt_device_score(mine, yours, plan, kinds[i].mine, kinds[i].yours,
                         &of);
        for (uint32_t j = 0; j < of.count; j++)
            json_array_append_new(ways, explain_json_way(&of.ways[j]));
        json_array_append_new(list, json_pack(
            "{s:i, s:i, s:i, s:s, s:o, s:o, s:o, s:o}",
            "mine", (int)of.mine, "yours", (int)of.yours,
            "alike", (int)kinds[i].count, "path", tpt_path_name(of.path),
            "evidence", tpt_json_text(of.evidence),
            "chosen", of.count > 0 && of.ways[0].possible
                      ? tpt_json_text(of.ways[0].name) : json_null(),
            "routes", explain_json_routes(&of), "ways", ways));
    }
    return list;
}

/* ---- for people --------------------------------------------------------- */

static void explain_way(const struct tpt_way *way, struct tpb_text *text)
{
    tpb_text_add(text, "    %-12s", way->name);
    if (way->possible)
        tpb_text_add(text, " %6.2f us %7.0f %9.2f us",
                     (double)way->latency_ns / 1000, (double)way->megabytes,
                     (double)way->cost_ns / 1000);
    else
        tpb_text_add(text, " %6s    %7s %9s   ", "-", "-", "-");
    tpb_text_add(text, "  %s: %s\n", tpt_reason_name(way->reason),
                 way->evidence);
    if (way->remedy[0] != '\0')
        tpb_text_add(text, "    %-12s %32sremedy: %s\n", "", "", way->remedy);
}

/* "buffers: cuda_staged, from 24 KiB cuda_ipc" */
static void explain_routes(const struct tpt_device_plan *plan,
                           struct tpb_text *text)
{
    struct tpt_device_route routes[TPT_DEVICE_ROUTES];
    size_t count = tpt_device_routes(plan, routes);

    tpb_text_add(text, "    buffers: ");
    for (size_t i = 0; i < count; i++)
        tpt_route_text(i, routes[i].from_bytes,
                       explain_route_name(plan, &routes[i]), text);
    tpb_text_add(text, "\n");
}

static void explain_device(const struct tpt_card *card, uint32_t index,
                           struct tpb_text *text)
{
    char bus[TPT_PCI_TEXT];

    tpt_pci_text(card->gpus[index].place.pci, bus);
    tpb_text_add(text, "GPU %u (%s)", index, bus);
}

void tpt_devices_text(const struct tpt_plan *plan, const struct tpt_card *mine,
                      const struct tpt_card *yours, struct tpb_text *text)
{
    struct tpt_device_kind kinds[TPT_DEVICE_KINDS];
    size_t count = tpt_device_kinds(mine, yours, plan, kinds);

    for (size_t i = 0; i < count; i++) {
        struct tpt_device_plan of;

        tpt_device_score(mine, yours, plan, kinds[i].mine, kinds[i].yours,
                         &of);
        tpb_text_add(text, "  ");
        explain_device(mine, of.mine, text);
        tpb_text_add(text, " here and ");
        explain_device(yours, of.yours, text);
        tpb_text_add(text, " there: %s, %s", tpt_path_name(of.path),
                     of.evidence);
        if (kinds[i].count > 1)
            tpb_text_add(text, "; %u pairs are so", kinds[i].count);
        tpb_text_add(text, "\n");
        for (uint32_t j = 0; j < of.count; j++)
            explain_way(&of.ways[j], text);
        explain_routes(&of, text);
    }
}

/* What somebody has forbidden, rather than what has failed? */
static bool explain_unwanted(const struct tpt_candidate *candidate)
{
    return candidate->reason == TPT_REASON_FORBIDDEN
           || candidate->reason == TPT_REASON_CONTRACT;
}

/* First what failed: the end of a long line is cut where it is printed. */
void tpt_device_refusal(const struct tpt_plan *plan, struct tpb_text *text)
{
    size_t start = text->length;

    for (uint32_t i = 0; i < 2 * plan->count; i++) {
        const struct tpt_candidate *candidate
            = &plan->candidates[i % plan->count];

        if (!candidate->devices || candidate->possible
            || explain_unwanted(candidate) != (i >= plan->count))
            continue;
        tpb_text_add(text, "%s%s (%s: %s", text->length > start ? "; " : "",
                     candidate->name, tpt_reason_name(candidate->reason),
                     candidate->evidence);
        if (candidate->remedy[0] != '\0')
            tpb_text_add(text, "; remedy: %s", candidate->remedy);
        tpb_text_add(text, ")");
    }
    if (text->length == start)
        tpb_text_add(text, "none of the channels for GPUs takes it");
}
