/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which cpus, which backends, and what becomes of the figures.  For each way
 * in which two cpus of this machine lie to each other one pair is taken; there
 * every transport that works is measured alone, and every channel over the
 * transport that the pair would use.
 */
#include "config.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/calibrate.h"
#include "runtime/base/alloc.h"
#include "topology/costs.h"
#include "topology/devices.h"
#include "topology/score.h"

/* 8 bytes for the latency; the others for the bandwidth. */
#define CALIBRATE_SIZES "8,64k,256k,1M,4M"

enum { CALIBRATE_BIG = 64 << 10, CALIBRATE_CPUS = 4096 };

static bool calibrate_say(const struct tpb_error *error)
{
    bench_say("%s", error->text);
    return false;
}

/* ---- the cpus ---------------------------------------------------------- */

/* Where a rank bound to that cpu would be.  False: it cannot be bound. */
static bool calibrate_place(struct calibrate_work *work, unsigned cpu,
                            struct tpt_card *card)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof(one), &one) < 0)
        return false;
    tpt_topology_place(work->topology, &card->place);
    return true;
}

static void calibrate_find_pairs(struct calibrate_work *work,
                                 const cpu_set_t *allowed)
{
    struct tpt_card *cards = calloc(2, sizeof(*cards));
    bool begun = false;

    if (cards == NULL)
        return;
    cards[1].instance[0] = 1;
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        enum tpt_locality locality;

        if (!CPU_ISSET(cpu, allowed)
            || !calibrate_place(work, cpu, &cards[begun ? 1 : 0]))
            continue;
        if (!begun) {
            work->places.first = cpu;
            begun = true;
            continue;
        }
        locality = tpt_locality(&cards[0], &cards[1]);
        if (work->places.other[locality] < 0)
            work->places.other[locality] = (int)cpu;
    }
    free(cards);
}

static bool calibrate_prepare(struct calibrate_work *work)
{
    struct tpb_error error = { "" };
    struct tpt_shape shape;
    cpu_set_t allowed;

    if (tpb_settings_load(&work->settings, &error) != TP_OK)
        return calibrate_say(&error);
    if (tpt_topology_load(&work->settings, &work->topology, &error) != TP_OK)
        return calibrate_say(&error);
    tpt_topology_shape(work->topology, &shape);
    snprintf(work->table.machine, sizeof(work->table.machine), "%016llx",
             (unsigned long long)shape.hash);
    for (int i = 0; i < TPT_LOCALITIES; i++)
        work->places.other[i] = -1;
    if (!shape.this_machine) {
        bench_say("TP_TOPOLOGY is set: only this machine can be measured");
        return false;
    }
    if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0) {
        bench_say("cannot tell which cpus this process may use");
        return false;
    }
    calibrate_find_pairs(work, &allowed);
    sched_setaffinity(0, sizeof(allowed), &allowed);
    return true;
}

/* ---- the measurements -------------------------------------------------- */

void calibrate_add(struct calibrate_work *work, const char *locality,
                   const struct pair_backend *backend, const struct fit *fit)
{
    struct calibrate_row *row = &work->table.rows[work->table.count];

    if (work->table.count == CALIBRATE_ROWS)
        return;
    work->table.count++;
    snprintf(row->backend, sizeof(row->backend), "%s", backend->name);
    snprintf(row->locality, sizeof(row->locality), "%s", locality);
    row->channel = backend->channel;
    row->devices = backend->devices;
    row->measured = *fit;
    row->latency_us = backend->latency_us;
    row->megabytes = backend->megabytes;
}

bool calibrate_run(struct calibrate_work *work, int locality,
                   struct pair_run *run, struct pair_result *result)
{
    run->cpu[0] = work->places.first;
    run->cpu[1] = (unsigned)work->places.other[locality];
    run->repetitions = work->options->repetitions;
    run->time_ms = work->options->time_ms;
    run->limit_s = work->options->limit_s;
    return pair_measure(run, result);
}

static bool calibrate_pair(struct calibrate_work *work, int locality,
                           const char *backends, const char *require,
                           const char *memory, struct pair_result *result)
{
    struct pair_run run = {
        .backends = backends, .require = require,
        .memory = { memory, memory }, .sizes = CALIBRATE_SIZES
    };

    return calibrate_run(work, locality, &run, result);
}

void calibrate_failed(struct calibrate_work *work, const char *backend,
                      const char *locality)
{
    if (pair_interrupted() != 0)
        return;
    work->failures++;
    bench_say("%s could not be measured for %s", backend, locality);
}

static const char *calibrate_name(int locality)
{
    return tpt_locality_name((enum tpt_locality)locality);
}

static bool calibrate_transport(struct calibrate_work *work, int locality,
                                const struct pair_backend *backend,
                                struct fit *fit)
{
    struct pair_result result;

    if (!calibrate_pair(work, locality, backend->name, "", "malloc", &result)
        || !fit_transport(&result, CALIBRATE_BIG, fit)) {
        calibrate_failed(work, backend->name, calibrate_name(locality));
        return false;
    }
    calibrate_add(work, result.locality, backend, fit);
    return true;
}

/* Where in the pair's own plan its buffers begin to go through the channel. */
static size_t calibrate_from(const struct pair_result *result,
                             const char *channel)
{
    for (unsigned i = 0; i < result->backend_count; i++)
        if (strcmp(result->backends[i].name, channel) == 0)
            return result->backends[i].from_bytes < SIZE_MAX
                   ? (size_t)result->backends[i].from_bytes : SIZE_MAX;
    return SIZE_MAX;
}

/* From memory of tp_alloc(), since some take no other. */
static void calibrate_channel(struct calibrate_work *work, int locality,
                              const struct pair_backend *transport,
                              const struct fit *base,
                              const struct pair_backend *channel)
{
    char backends[2 * PAIR_NAME + 2], require[PAIR_NAME + 8];
    struct pair_result result;
    struct fit fit;

    snprintf(backends, sizeof(backends), "%s,%s", transport->name,
             channel->name);
    snprintf(require, sizeof(require), "node:%s", channel->name);
    if (calibrate_pair(work, locality, backends, require, "tp", &result)
        && fit_channel(&result, calibrate_from(&result, channel->name),
                       base->latency_us, &fit))
        calibrate_add(work, result.locality, channel, &fit);
    else
        calibrate_failed(work, channel->name, calibrate_name(locality));
}

static void calibrate_locality(struct calibrate_work *work, int locality)
{
    const struct pair_backend *chosen = NULL;
    struct pair_result plan;
    struct fit base = { 0 };

    if (!calibrate_pair(work, locality, work->settings.text[TPB_SET_BACKENDS],
                        "", "malloc", &plan)) {
        calibrate_failed(work, "this machine", calibrate_name(locality));
        return;
    }
    for (unsigned i = 0; i < plan.backend_count; i++) {
        const struct pair_backend *backend = &plan.backends[i];
        struct fit fit;

        if (pair_interrupted() != 0 || !backend->possible || backend->self
            || backend->devices)
            continue;
        if (backend->channel && chosen != NULL) {
            calibrate_channel(work, locality, chosen, &base, backend);
        } else if (!backend->channel
                   && calibrate_transport(work, locality, backend, &fit)
                   && chosen == NULL) {
            chosen = backend;
            base = fit;
        }
    }
    if (chosen != NULL)
        calibrate_devices(work, locality, &plan, chosen, &base);
}

/* ---- the figures ------------------------------------------------------- */

static uint32_t calibrate_whole(double value)
{
    return value < 1 ? 1 : value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
}

/* The place of the row's figures in the table of costs; -1: none. */
static int calibrate_at(const struct calibrate_row *row)
{
    for (int i = 0; i < TPT_LOCALITIES; i++)
        if (strcmp(row->locality, !row->devices ? calibrate_name(i)
                   : i < TPT_PATHS ? tpt_path_name((enum tpt_path)i) : "")
            == 0)
            return i;
    return -1;
}

static void calibrate_costs(const struct calibrate_table *table,
                            struct tpt_costs *costs)
{
    for (unsigned i = 0; i < table->count; i++) {
        const struct calibrate_row *row = &table->rows[i];
        struct tpt_costs_row *to = tpt_costs_row(costs, row->backend);

        int at = calibrate_at(row);

        if (to != NULL && at >= 0)
            to->cost[at] = (struct tpt_cost) {
                calibrate_whole(row->measured.latency_us * 1000),
                calibrate_whole(row->measured.megabytes)
            };
    }
}

static bool calibrate_store(struct calibrate_work *work, char **path)
{
    struct tpt_costs *costs = calloc(1, sizeof(*costs));
    struct tpb_error error = { "out of memory" };
    struct tpt_shape shape;
    char host[64] = "";
    tp_status status = TP_ERR_NO_MEMORY;

    tpt_topology_shape(work->topology, &shape);
    gethostname(host, sizeof(host) - 1);
    if (costs != NULL) {
        calibrate_costs(&work->table, costs);
        status = tpt_costs_save(&work->settings, shape.hash, host, costs,
                                &error);
    }
    if (status == TP_OK)
        status = tpt_costs_path(&work->settings, shape.hash, path, &error);
    free(costs);
    return status == TP_OK || calibrate_say(&error);
}

/* Before minutes are spent: can what is measured be kept? */
static bool calibrate_may_store(const struct calibrate_work *work)
{
    struct tpb_error error;
    struct tpt_shape shape;

    tpt_topology_shape(work->topology, &shape);
    return tpt_costs_try(&work->settings, shape.hash, &error) == TP_OK
           || calibrate_say(&error);
}

static bool calibrate_all(struct calibrate_work *work)
{
    char *path = NULL;
    bool good, said;

    if (!work->options->compare && !calibrate_may_store(work))
        return false;
    for (int i = TPT_SAME_CORE; i < TPT_OTHER_HOST; i++)
        if (work->places.other[i] >= 0 && pair_interrupted() == 0)
            calibrate_locality(work, i);
    if (pair_interrupted() != 0)
        return false;
    if (work->table.count == 0) {
        if (work->failures == 0)
            bench_say("there is nothing to measure: no two cpus, or no "
                      "backend");
        return false;
    }
    good = work->options->compare || calibrate_store(work, &path);
    work->table.stored = path;
    said = (work->options->format == BENCH_JSON ? calibrate_json
                                                : calibrate_print)
           (&work->table);
    if (!said)
        bench_say("cannot write standard output");
    tpb_free(path);
    return good && said && work->failures == 0;
}

int calibrate(const struct bench_options *options)
{
    struct calibrate_work *work = calloc(1, sizeof(*work));
    bool good;

    if (work == NULL)
        return 1;
    work->options = options;
    pair_init();
    good = calibrate_prepare(work) && calibrate_all(work);
    tpt_topology_free(work->topology);
    if (work->settings.text[0] != NULL)
        tpb_settings_fini(&work->settings);
    free(work);
    if (pair_interrupted() != 0) {
        signal(pair_interrupted(), SIG_DFL);
        raise(pair_interrupted());
    }
    return good ? 0 : 1;
}
