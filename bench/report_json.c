/* SPDX-License-Identifier: BSD-3-Clause */
/* Results as one JSON object, printed when all are there. */
#include "config.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "bench/report.h"

static json_t *json_results, *json_plan;

static json_t *json_figure(double value)
{
    return isnan(value) ? json_null() : json_real(value);
}

/* JSON is UTF-8, and a name from the command line need not be: then a question
 * mark takes the place of each byte that is not ASCII. */
static json_t *json_name(const char *name)
{
    json_t *string = json_string(name);
    char clean[256];

    if (string != NULL)
        return string;
    snprintf(clean, sizeof(clean), "%s", name);
    for (size_t i = 0; clean[i] != '\0'; i++)
        if ((clean[i] & 0x80) != 0)
            clean[i] = '?';
    return json_string(clean);
}

bool bench_json_add(const struct bench_result *r)
{
    json_t *object = json_pack(
        "{so ss ss ss si si sI ss so so so so so si so}", "who",
        json_name(r->who), "test", r->test, "mode", r->mode, "buffers",
        r->buffers, "ranks", r->ranks, "window", (int)r->window,
        "bytes", (json_int_t)r->bytes, "unit", r->unit, "value",
        json_figure(r->value), "low", json_figure(r->low),
        "high", json_figure(r->high), "best", json_figure(r->best), "p99",
        json_figure(r->p99), "repetitions", (int)r->repetitions,
        "waited", json_figure(r->waited));

    if (json_results == NULL)
        json_results = json_array();
    return object != NULL && json_array_append_new(json_results, object) == 0;
}

bool bench_json_plan(const char *plan)
{
    json_decref(json_plan);
    json_plan = json_loads(plan, 0, NULL);
    return json_plan != NULL;
}

bool bench_json_print(void)
{
    json_t *all;
    bool good;

    if (json_results == NULL)
        json_results = json_array();
    all = json_pack("{si ss so so}", "version", 1, "tp", PACKAGE_VERSION,
                    "plan", json_plan != NULL ? json_plan : json_null(),
                    "results", json_results);
    json_results = json_plan = NULL;
    good = all != NULL
           && json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6))
              == 0
           && putchar('\n') != EOF;
    json_decref(all);
    return good;
}
