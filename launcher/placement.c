/* SPDX-License-Identifier: BSD-3-Clause */
/* Which rank runs where on this machine. */
#include "config.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "launcher/placement.h"
#include "runtime/base/alloc.h"
#include "runtime/base/thread.h"

enum {
    PLACEMENT_TRIES = 8,           /* to find cores that nobody claims */
    PLACEMENT_CPUS = CPU_SETSIZE * 8
};

/* How many GPUs each rank wants, the caller's to free; NULL if none does, or
 * without memory. */
static int *placement_gpus(const struct tpl_options *options)
{
    int *want = NULL;

    for (int i = 0; i < options->app_count; i++) {
        const struct tpl_app *app = &options->apps[i];

        if (app->gpus > 0 && want == NULL)
            want = tpb_array((size_t)options->ranks, sizeof(want[0]));
        for (int j = 0; want != NULL && j < app->ranks; j++)
            want[app->first + j] = app->gpus;
    }
    return want;
}

/* Plans again as long as others turn out to have some of the cores. */
static tp_status placement_plan(struct tpl_placement *placement,
                                struct tpt_bind_wish *wish, bool claim,
                                struct tpb_error *error)
{
    for (int i = 0;; i++) {
        tp_status status;

        wish->taken = placement->claims.taken;
        wish->taken_size = placement->claims.taken_size;
        status = tpt_bind_plan(placement->topology, wish, &placement->plan,
                               error);
        if (status != TP_OK || !claim || !placement->plan.here
            || placement->plan.bind != TPT_BIND_CORE
            || tpl_claims_take(&placement->claims, &placement->plan)
            || i == PLACEMENT_TRIES)
            return status;
        tpt_bind_plan_fini(&placement->plan);
    }
}

/*
 * Its descriptors are its own, for the main thread turns standard error away
 * from libpmix meanwhile, and what hwloc says of a broken machine is to be
 * seen.  Without effect where that is forbidden.
 */
static void *placement_load(void *arg)
{
    struct tpl_placement *placement = arg;

    (void)unshare(CLONE_FILES);
    placement->loaded = tpt_topology_load(placement->settings,
                                          &placement->topology,
                                          &placement->why);
    if (placement->loaded == TP_OK)
        tpt_topology_look(placement->topology);
    return NULL;
}

void tpl_placement_begin(const struct tpb_settings *settings,
                         struct tpl_placement *placement)
{
    if (settings->set[TPB_SET_TOPOLOGY]
        || settings->set[TPB_SET_TOPOLOGY_SHARED])
        return;
    placement->settings = settings;
    placement->loading = tpb_thread_start(&placement->loader, placement_load,
                                          placement) == 0;
}

/* The loader's result, or what is loaded now. */
static tp_status placement_topology(const struct tpb_settings *settings,
                                    struct tpl_placement *placement,
                                    struct tpb_error *error)
{
    if (!placement->loading)
        return tpt_topology_load(settings, &placement->topology, error);
    pthread_join(placement->loader, NULL);
    placement->loading = false;
    if (placement->loaded != TP_OK)
        *error = placement->why;
    return placement->loaded;
}

/* Ranks that are to have threads want more than a core each, unless the user
 * has said where they run. */
static enum tpt_bind placement_bind(const struct tpl_options *options)
{
    const char *threads = getenv("OMP_NUM_THREADS");

    if (threads == NULL || atoi(threads) < 2
        || options->bind != TPT_BIND_DEFAULT
        || options->map != TPT_MAP_DEFAULT
        || tpl_option_given(options, TPL_OPTION_GPUS_PER_RANK))
        return options->bind;
    return TPT_BIND_NONE;
}

tp_status tpl_placement_make(const struct tpl_options *options,
                             const struct tpb_settings *settings,
                             struct tpl_placement *placement,
                             struct tpb_error *error)
{
    struct tpt_bind_wish wish = {
        .bind = placement_bind(options), .map = options->map,
        .ranks = options->ranks,
    };
    struct tpt_gpus *there = NULL;
    int *want = placement_gpus(options);
    tp_status status = placement_topology(settings, placement, error);

    if (status == TP_OK && tpl_option_given(options,
                                            TPL_OPTION_GPUS_PER_RANK)) {
        there = tpb_zalloc(sizeof(*there));
        if (there == NULL || want == NULL)
            status = tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
        else
            status = tpt_gpus_find(placement->topology, "",
                                   getenv("CUDA_VISIBLE_DEVICES"), there,
                                   error);
        wish.gpus = want;
        wish.there = there;
    }
    if (status == TP_OK)
        status = placement_plan(placement, &wish, !options->dry_run, error);
    tpb_free(there);
    tpb_free(want);
    return status;
}

void tpl_placement_fini(struct tpl_placement *placement)
{
    if (placement->loading)
        pthread_join(placement->loader, NULL);
    placement->loading = false;
    tpl_claims_fini(&placement->claims);
    tpt_bind_plan_fini(&placement->plan);
    tpt_topology_free(placement->topology);
    placement->topology = NULL;
}

unsigned tpl_placement_cpus(const struct tpl_placement *placement)
{
    size_t size = CPU_ALLOC_SIZE(PLACEMENT_CPUS);
    struct tpt_place place;
    unsigned cpus = 0;
    cpu_set_t *set;

    if (placement->plan.here) {
        tpt_topology_place(placement->topology, &place);
        return place.cpus;
    }
    set = tpb_zalloc(size);
    if (set != NULL && sched_getaffinity(0, size, set) == 0)
        cpus = (unsigned)CPU_COUNT_S(size, set);
    tpb_free(set);
    return cpus;
}

void tpl_placement_show(const struct tpl_placement *placement,
                        const struct tpl_options *options,
                        const char *host, struct tpb_text *text)
{
    const struct tpt_bind_plan *plan = &placement->plan;

    tpb_text_add(text, "%d rank%s on %s (%s), bound to: %s%s\n", plan->count,
                 plan->count == 1 ? "" : "s", host,
                 tpt_topology_source(placement->topology),
                 tpt_bind_name(plan->bind), plan->yielded
                 ? " (another job has the cores)" : "");
    for (int i = 0; i < plan->count; i++) {
        const struct tpt_bind_place *place = &plan->places[i];

        tpb_text_add(text, "  rank %d: %s, cpus %s%s%s; %s\n", i,
                     place->where, place->list,
                     place->gpus != NULL ? ", gpus " : "",
                     place->gpus != NULL ? place->gpus : "",
                     tpl_options_app(options, i)->program[0]);
    }
}

/* "0-3,8" of a set. */
static void placement_list(const cpu_set_t *set, size_t size,
                           struct tpb_text *text)
{
    int cpus = (int)size * 8;
    const char *gap = "";

    for (int i = 0; i < cpus; i++) {
        int last = i;

        if (!CPU_ISSET_S(i, size, set))
            continue;
        while (last + 1 < cpus && CPU_ISSET_S(last + 1, size, set))
            last++;
        tpb_text_add(text, last > i ? "%s%d-%d" : "%s%d", gap, i, last);
        gap = ",";
        i = last;
    }
}

void tpl_placement_report(const struct tpl_placement *placement, int rank,
                          pid_t pid, struct tpb_text *text)
{
    const struct tpt_bind_place *place = &placement->plan.places[rank];
    size_t size = CPU_ALLOC_SIZE(PLACEMENT_CPUS);
    cpu_set_t *set = tpb_zalloc(size);
    bool here = placement->plan.here;
    struct tpb_text kernel = { 0 };

    if (here)
        tpb_text_add(text, "rank %d (pid %d): asked for %s %s (%s); ", rank,
                     (int)pid, place->cpus != NULL ? "cpus" : "any of cpus",
                     place->list, place->where);
    else
        tpb_text_add(text, "rank %d (pid %d): asked for none, as the "
                     "topology is not this machine's (%s); ", rank, (int)pid,
                     tpt_topology_source(placement->topology));
    if (set == NULL || sched_getaffinity(pid, size, set) < 0) {
        tpb_text_add(text, "the kernel does not say: %s", strerror(errno));
    } else {
        placement_list(set, size, &kernel);
        if (here && kernel.text != NULL
            && strcmp(kernel.text, place->list) == 0)
            tpb_text_add(text, "the kernel says the same");
        else
            tpb_text_add(text, "the kernel says %s%s", kernel.text != NULL
                         ? kernel.text : "nothing",
                         here ? ": NOT THE SAME" : "");
    }
    tpb_text_fini(&kernel);
    tpb_free(set);
}
