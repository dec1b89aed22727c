/* SPDX-License-Identifier: BSD-3-Clause */
/* tpinfo --costs: what was measured here, beside what the model says. */
#include "config.h"

#include <stdio.h>

#include "launcher/tpinfo.h"
#include "runtime/base/alloc.h"
#include "topology/costs.h"
#include "topology/devices.h"

enum { COSTS_MESSAGE = 64 << 10 };

static double costs_time(const struct tpt_cost *cost)
{
    return cost->latency_ns / 1000.0 + COSTS_MESSAGE / (double)cost->megabytes;
}

static void costs_row(const struct tpt_backend_card *backend, int locality,
                      struct tpb_text *text)
{
    const struct tpt_cost *measured = &backend->measured[locality];
    struct tpt_cost model = tpt_model_cost(backend,
                                           (enum tpt_locality)locality);
    double ratio;

    if (measured->megabytes == 0)
        return;
    ratio = costs_time(measured) / costs_time(&model);
    tpb_text_add(text, "  %-16s %-12s %9.2f us %7u  %9.2f us %7u  %6.2f x\n",
                 backend->devices ? tpt_path_name((enum tpt_path)locality)
                 : tpt_locality_name((enum tpt_locality)locality),
                 backend->name,
                 measured->latency_ns / 1000.0, measured->megabytes,
                 model.latency_ns / 1000.0, model.megabytes,
                 ratio > 1 ? ratio : 1 / ratio);
}

static void costs_table(const struct tpt_card *card, struct tpb_text *text)
{
    tpb_text_add(text, "  %-16s %-12s %12s %7s  %12s %7s  %8s\n", "locality",
                 "backend", "measured", "MB/s", "model", "MB/s", "off by");
    for (int locality = 0; locality < TPT_LOCALITIES; locality++)
        for (uint32_t i = 0; i < card->backend_count; i++)
            costs_row(&card->backends[i], locality, text);
}

void tpinfo_costs(const struct tpt_card *card,
                  const struct tpb_settings *settings, struct tpb_text *text)
{
    struct tpt_costs *costs = tpb_zalloc(sizeof(*costs));
    struct tpb_error error = { "" };
    char *path = NULL;

    text->failed |= costs == NULL;
    if (costs == NULL)
        return;
    tpb_text_add(text, "Costs\n");
    if (tpt_costs_path(settings, card->place.topology, &path, &error) != TP_OK)
        tpb_text_add(text, "  the model's: %s\n", error.text);
    else if (tpt_costs_load(settings, card->place.topology, costs, &error)
             != TP_OK)
        tpb_text_add(text, "  the model's: %s\n", error.text);
    else if (costs->count == 0)
        tpb_text_add(text, "  the model's; `tpperf --calibrate` would write "
                     "%s\n", path);
    else
        tpb_text_add(text, "  from %s, of %s\n", path, costs->when);
    if (costs->count > 0)
        costs_table(card, text);
    tpb_free(path);
    tpb_free(costs);
}
