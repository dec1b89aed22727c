/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads what a pair printed. */
#include "config.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "bench/pair.h"

static const char *pair_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text != NULL ? text : "";
}

static void pair_backend(const json_t *object, struct pair_backend *backend)
{
    const json_t *model = json_object_get(object, "model");
    const json_t *from = json_object_get(object, "from_bytes");

    snprintf(backend->name, sizeof(backend->name), "%s",
             pair_text(object, "name"));
    snprintf(backend->over, sizeof(backend->over), "%s",
             pair_text(object, "over"));
    backend->channel = strcmp(pair_text(object, "role"), "channel") == 0;
    backend->devices = json_is_true(json_object_get(object, "devices"));
    backend->self = strcmp(pair_text(object, "reach"), "process") == 0;
    backend->possible = json_is_true(json_object_get(object, "possible"));
    backend->latency_us = json_number_value(json_object_get(model,
                                                            "latency_us"));
    backend->megabytes
        = json_number_value(json_object_get(model, "megabytes_per_second"));
    backend->from_bytes = json_is_integer(from)
                          ? (uint64_t)json_integer_value(from) : UINT64_MAX;
}

static void pair_devices(const json_t *object, struct pair_devices *devices)
{
    const json_t *way;
    size_t i;

    snprintf(devices->path, sizeof(devices->path), "%s",
             pair_text(object, "path"));
    devices->mine = (int)json_integer_value(json_object_get(object, "mine"));
    devices->yours = (int)json_integer_value(json_object_get(object, "yours"));
    json_array_foreach(json_object_get(object, "ways"), i, way)
        if (devices->way_count < PAIR_WAYS)
            pair_backend(way, &devices->ways[devices->way_count++]);
}

static bool pair_read(const json_t *root, struct pair_result *result)
{
    const json_t *plan = json_object_get(root, "plan"), *row;
    size_t i;

    memset(result, 0, sizeof(*result));
    snprintf(result->locality, sizeof(result->locality), "%s",
             pair_text(plan, "locality"));
    json_array_foreach(json_object_get(plan, "candidates"), i, row)
        if (result->backend_count < PAIR_BACKENDS)
            pair_backend(row, &result->backends[result->backend_count++]);
    json_array_foreach(json_object_get(plan, "devices"), i, row)
        if (result->device_count < PAIR_DEVICES)
            pair_devices(row, &result->devices[result->device_count++]);
    json_array_foreach(json_object_get(root, "results"), i, row) {
        if (result->point_count == PAIR_POINTS
            || strcmp(pair_text(row, "test"), "latency") != 0)
            continue;
        result->points[result->point_count].bytes
            = (size_t)json_integer_value(json_object_get(row, "bytes"));
        result->points[result->point_count++].us
            = json_number_value(json_object_get(row, "low"));
    }
    return result->locality[0] != '\0' && result->point_count > 0;
}

bool pair_parse(const char *text, struct pair_result *result)
{
    json_t *root = json_loads(text, 0, NULL);
    bool good = root != NULL && pair_read(root, result);

    json_decref(root);
    return good;
}
