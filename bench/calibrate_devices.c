/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The ways between two CUDA devices.  The ranks' plan says which kinds of pairs
 * there are; of each kind one pair is measured, over every way that is possible
 * there.
 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "bench/calibrate.h"
#include "bench/tpperf.h"

/* 8 bytes for the latency; a device is at half of its speed at some MiB. */
#define DEVICES_SIZES "8,64k,1M,4M,16M"

static void devices_way(struct calibrate_work *work, int locality,
                        const struct pair_backend *transport,
                        const struct fit *base,
                        const struct pair_devices *pair,
                        const struct pair_backend *way)
{
    char backends[2 * PAIR_NAME + 2], require[PAIR_NAME + 8], memory[2][16];
    struct pair_run run = { .backends = backends, .require = require,
                            .memory = { memory[0], memory[1] },
                            .sizes = DEVICES_SIZES };
    struct pair_backend row = *way;
    struct pair_result result;
    struct fit fit;

    snprintf(backends, sizeof(backends), "%s,%s", transport->name, way->name);
    snprintf(require, sizeof(require), "cuda:%s", way->name);
    snprintf(memory[0], sizeof(memory[0]), "cuda:%d", pair->mine);
    snprintf(memory[1], sizeof(memory[1]), "cuda:%d", pair->yours);
    row.channel = row.devices = true;
    if (calibrate_run(work, locality, &run, &result)
        && fit_channel(&result, 0, base->latency_us, &fit))
        calibrate_add(work, pair->path, &row, &fit);
    else
        calibrate_failed(work, way->name, pair->path);
}

/* Was a pair with that path before it? */
static bool devices_again(const struct pair_result *plan, unsigned i)
{
    for (unsigned j = 0; j < i; j++)
        if (strcmp(plan->devices[j].path, plan->devices[i].path) == 0)
            return true;
    return false;
}

void calibrate_devices(struct calibrate_work *work, int locality,
                       const struct pair_result *plan,
                       const struct pair_backend *transport,
                       const struct fit *base)
{
    if (work->devices || plan->device_count == 0)
        return;
    work->devices = true;
    work->table.is_double = perf_device_is_double();
    if (work->table.is_double)
        bench_say("the CUDA driver is a test double: the figures for devices "
                  "describe no GPU");
    for (unsigned i = 0; i < plan->device_count; i++) {
        const struct pair_devices *pair = &plan->devices[i];

        for (unsigned j = 0; j < pair->way_count; j++)
            if (pair->ways[j].possible && !devices_again(plan, i)
                && pair_interrupted() == 0)
                devices_way(work, locality, transport, base, pair,
                            &pair->ways[j]);
    }
}
