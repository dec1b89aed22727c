/* SPDX-License-Identifier: BSD-3-Clause */
/* Model and measurement as one JSON object, described in tpperf(1). */
#include "config.h"

#include <jansson.h>
#include <stdio.h>

#include "bench/calibrate.h"
#include "topology/json.h"

static json_t *json_terms(double latency_us, double megabytes)
{
    return json_pack("{s:f, s:f, s:f}", "latency_us", latency_us,
                     "megabytes_per_second", megabytes,
                     "cost_us", calibrate_cost(latency_us, megabytes));
}

static json_t *json_row(const struct calibrate_row *row)
{
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:f, s:f}",
                     "locality", row->locality, "backend", row->backend,
                     "role", row->channel ? "channel" : "transport",
                     "measured", json_terms(row->measured.latency_us,
                                            row->measured.megabytes),
                     "model", json_terms(row->latency_us, row->megabytes),
                     "off", calibrate_off(row), "fit", row->measured.error);
}

bool calibrate_json(const struct calibrate_table *table)
{
    json_t *list = json_array();
    json_t *root;
    bool good;

    for (unsigned i = 0; i < table->count; i++)
        json_array_append_new(list, json_row(&table->rows[i]));
    root = json_pack("{s:i, s:s, s:s, s:b, s:o, s:o}", "version", 1,
                     "tp", PACKAGE_VERSION, "machine", table->machine,
                     "cuda_double", (int)table->is_double,
                     "stored", table->stored != NULL
                               ? tpt_json_text(table->stored) : json_null(),
                     "costs", list);
    good = root != NULL
           && json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6))
              == 0
           && putchar('\n') != EOF && fflush(stdout) == 0;
    json_decref(root);
    return good;
}
