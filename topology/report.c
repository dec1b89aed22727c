/* SPDX-License-Identifier: BSD-3-Clause */
/* What tpinfo tells, as JSON. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "topology/devices.h"
#include "topology/json.h"
#include "topology/report.h"

static json_t *report_machine(const struct tpt_card *card,
                              struct tpt_topology *topology)
{
    struct tpt_shape shape;
    char hash[20];

    tpt_topology_shape(topology, &shape);
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)shape.hash);
    return json_pack("{s:o, s:o, s:b, s:s, s:I, s:I, s:I, s:I, s:I, s:I}",
                     "host", tpt_json_text(card->host.name),
                     "source", tpt_json_text(tpt_topology_source(topology)),
                     "this_machine", (int)shape.this_machine, "hash", hash,
                     "packages", (json_int_t)shape.packages,
                     "numa_nodes", (json_int_t)shape.numas,
                     "l3_caches", (json_int_t)shape.l3s,
                     "cores", (json_int_t)shape.cores,
                     "cpus", (json_int_t)shape.cpus,
                     "memory", (json_int_t)shape.memory);
}

static json_t *report_nics(const struct tpt_card *card)
{
    static const char *const kinds[] = { "unknown", "ip", "rdma" };
    json_t *list = json_array();

    for (uint32_t i = 0; i < card->nic_count; i++) {
        const struct tpt_nic *nic = &card->nics[i];
        char pci[TPT_PCI_TEXT] = "";

        if (nic->pci != 0)
            tpt_pci_text(nic->pci, pci);
        json_array_append_new(list, json_pack(
            "{s:o, s:s, s:I, s:i, s:s}", "name", tpt_json_text(nic->name),
            "kind", kinds[nic->kind], "megabits", (json_int_t)nic->megabits,
            "numa", (int)nic->numa, "pci", pci));
    }
    return list;
}

static json_t *report_measured(const struct tpt_backend_card *backend)
{
    json_t *list = json_array();

    for (int i = 0; i < TPT_LOCALITIES; i++) {
        struct tpt_cost model = tpt_model_cost(backend, (enum tpt_locality)i);
        const struct tpt_cost *cost = &backend->measured[i];

        if (cost->megabytes != 0)
            json_array_append_new(list, json_pack(
                "{s:s, s:f, s:I, s:{s:f, s:I}}",
                "locality", backend->devices
                            ? tpt_path_name((enum tpt_path)i)
                            : tpt_locality_name((enum tpt_locality)i),
                "latency_us", cost->latency_ns / 1000.0,
                "megabytes_per_second", (json_int_t)cost->megabytes, "model",
                "latency_us", model.latency_ns / 1000.0,
                "megabytes_per_second", (json_int_t)model.megabytes));
    }
    return list;
}

static json_t *report_backends(const struct tpt_card *card,
                               const char *const *carriers)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < card->backend_count; i++) {
        const struct tpt_backend_card *backend = &card->backends[i];
        const char *carrier = carriers != NULL ? carriers[i] : NULL;

        json_array_append_new(list, json_pack(
            "{s:o, s:s, s:s, s:b, s:b, s:o, s:o, s:f, s:I, s:o}",
            "name", tpt_json_text(backend->name),
            "role", tpt_role_name((enum tpt_role)backend->role),
            "reach", tpt_reach_name((enum tpt_reach)backend->reach),
            "usable", (int)backend->usable,
            "forbidden", (int)backend->forbidden,
            "why", tpt_json_text(backend->why),
            "carrier", carrier != NULL ? tpt_json_text(carrier) : json_null(),
            "latency_us", backend->latency_ns / 1000.0,
            "megabytes_per_second", (json_int_t)backend->megabytes,
            "measured", report_measured(backend)));
    }
    return list;
}

static json_t *report_settings(const struct tpb_settings *settings)
{
    json_t *list = json_array();

    for (size_t i = 0; i < TPB_SET_COUNT; i++)
        json_array_append_new(list, json_pack(
            "{s:s, s:o, s:s, s:s, s:s, s:s}",
            "variable", tpb_setting_table[i].variable,
            "value", tpt_json_text(tpb_setting_shown(
                settings, (enum tpb_setting_id)i)),
            "source", settings->set[i] ? "environment" : "default",
            "default", tpb_setting_table[i].initial,
            "values", tpb_setting_table[i].values,
            "text", tpb_setting_table[i].text));
    return list;
}

char *tpt_report_json(const struct tpt_card *card,
                      const char *const *carriers,
                      struct tpt_topology *topology,
                      const struct tpb_settings *settings)
{
    return tpt_json_dump(json_pack(
        "{s:i, s:s, s:o, s:o, s:o, s:o, s:o}", "version", 1, "tp",
        tp_version(), "machine", report_machine(card, topology),
        "nics", report_nics(card), "gpus", tpt_json_gpus(card),
        "backends", report_backends(card, carriers),
        "settings", report_settings(settings)));
}

static json_t *report_pairs(const struct tpt_planned *planned)
{
    json_t *list = json_array();

    for (size_t i = 0; i < planned->pair_count; i++)
        json_array_append_new(list, json_pack("[i, i]", planned->pairs[i][0],
                                              planned->pairs[i][1]));
    return list;
}

char *tpt_plans_json(const struct tpt_planned *plans, size_t count)
{
    json_t *list = json_array();

    for (size_t i = 0; i < count; i++) {
        json_t *plan = tpt_json_plan(&plans[i].plan, &plans[i].mine,
                                     &plans[i].yours);

        if (plans[i].pairs != NULL)
            json_object_set_new(plan, "pairs", report_pairs(&plans[i]));
        json_array_append_new(list, plan);
    }
    return tpt_json_dump(json_pack("{s:i, s:o}", "version", 1, "plans", list));
}
