/* SPDX-License-Identifier: BSD-3-Clause */
/* tpinfo --plan -n N: how the ranks of a whole job would be connected. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "launcher/tpinfo.h"
#include "runtime/base/alloc.h"

enum { JOB_HOSTS = 16, JOB_SHOWN = 6 };

struct job_host {
    struct tpt_card card;          /* but for rank and place */
    struct tpt_topology *topology;
    bool borrowed;                 /* the caller's topology */
};

struct job_rank {
    int host;
    struct tpt_place place;
};

/* Pairs that are connected in the same way, and why they are. */
struct job_kind {
    int host[2];
    int32_t numa[2];               /* decides how far NICs are */
    enum tpt_locality locality;
    size_t capacity;
    int (*pairs)[2];
};

struct job {
    struct tpt_policy policy;
    int count;                     /* ranks */
    int host_count;
    size_t kind_count, kind_capacity;
    struct job_host *hosts;
    struct job_rank *ranks;
    struct job_kind *kinds;
    struct tpt_planned *plans;     /* of each kind */
    struct tpt_card mine, yours;
};

static tp_status job_no_memory(struct tpb_error *error)
{
    return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
}

/* ---- hosts and ranks --------------------------------------------------- */

static tp_status job_add_host(struct job *job, const char *path,
                              const struct tpb_settings *settings,
                              struct tpb_error *error)
{
    struct job_host *host = &job->hosts[job->host_count];
    tp_status status = tpt_topology_load_file(path, &host->topology, error);

    if (status != TP_OK)
        return status;
    job->host_count++;
    tpinfo_recorded(&host->card, path, host->topology,
                    (uint8_t)job->host_count, settings);
    return TP_OK;
}

static tp_status job_load_hosts(struct job *job, const char *topo,
                                const struct tpb_settings *settings,
                                struct tpb_error *error)
{
    char *copy = tpb_copy_string(topo), *save = copy, *word;
    tp_status status = copy != NULL ? TP_OK : job_no_memory(error);

    while (status == TP_OK && (word = strsep(&save, ",")) != NULL) {
        if (*word == '\0' || job->host_count == JOB_HOSTS)
            status = tpb_fail(error, TP_ERR_INVALID, "--topo %s: expected one "
                              "to %d files with commas between", topo,
                              JOB_HOSTS);
        else
            status = job_add_host(job, word, settings, error);
    }
    tpb_free(copy);
    return status;
}

/* What remains of an index that several cores share. */
static void job_meet(int32_t *common, int32_t value)
{
    if (*common != value)
        *common = -1;
}

/* Where a rank is that may run on all cores. */
static void job_place_anywhere(struct tpt_topology *topology,
                               struct tpt_place *place)
{
    struct tpt_place core;

    tpt_topology_place_core(topology, 0, place);
    for (uint32_t i = 1; tpt_topology_place_core(topology, i, &core); i++) {
        job_meet(&place->core, core.core);
        job_meet(&place->l2, core.l2);
        job_meet(&place->l3, core.l3);
        job_meet(&place->numa, core.numa);
        job_meet(&place->package, core.package);
        place->cpus += core.cpus;
    }
}

/* As tprun: core by core if there are enough, else not bound at all.  Where
 * hwloc sees no cores, cpus are them. */
static void job_place_ranks(struct job *job)
{
    for (int i = 0; i < job->count; i++) {
        int host = (int)((int64_t)i * job->host_count / job->count);
        int first = (int)(((int64_t)host * job->count + job->host_count - 1)
                          / job->host_count);
        int end = (int)(((int64_t)(host + 1) * job->count + job->host_count
                         - 1) / job->host_count);
        struct tpt_topology *topology = job->hosts[host].topology;
        struct tpt_shape shape;

        tpt_topology_shape(topology, &shape);
        job->ranks[i].host = host;
        if ((uint32_t)(end - first) > (shape.cores > 0 ? shape.cores
                                       : shape.cpus)
            || !tpt_topology_place_core(topology, (uint32_t)(i - first),
                                        &job->ranks[i].place))
            job_place_anywhere(topology, &job->ranks[i].place);
    }
}

/* ---- pairs ------------------------------------------------------------- */

static void job_fill_card(const struct job *job, int rank,
                          struct tpt_card *card)
{
    *card = job->hosts[job->ranks[rank].host].card;
    snprintf(card->job, sizeof(card->job), "plan");
    card->rank = rank;
    card->size = job->count;
    card->pid = 0;
    memset(card->instance, 0, sizeof(card->instance));
    memcpy(card->instance, &rank, sizeof(rank));
    card->place = job->ranks[rank].place;
}

/* The locality alone needs little of a card. */
static enum tpt_locality job_locality(struct job *job, int a, int b)
{
    if (job->ranks[a].host != job->ranks[b].host)
        return TPT_OTHER_HOST;
    job->mine.place = job->ranks[a].place;
    job->yours.place = job->ranks[b].place;
    return tpt_locality(&job->mine, &job->yours);
}

static bool job_is_kind(const struct job *job, const struct job_kind *kind,
                        int a, int b, enum tpt_locality locality)
{
    const struct job_rank *x = &job->ranks[a], *y = &job->ranks[b];

    return kind->locality == locality && kind->host[0] == x->host
           && kind->host[1] == y->host && kind->numa[0] == x->place.numa
           && kind->numa[1] == y->place.numa;
}

/* Room for one more in an array of `size` bytes each. */
static bool job_grow(void **array, size_t count, size_t *capacity, size_t size)
{
    void *grown;

    if (count < *capacity)
        return true;
    grown = tpb_resize(*array, (*capacity * 2 + 8) * size);
    if (grown == NULL)
        return false;
    *array = grown;
    *capacity = *capacity * 2 + 8;
    return true;
}

static tp_status job_new_kind(struct job *job, int a, int b,
                              enum tpt_locality locality,
                              struct tpb_error *error)
{
    size_t capacity = job->kind_capacity;
    struct tpt_planned *planned;

    if (!job_grow((void **)&job->kinds, job->kind_count, &capacity,
                  sizeof(*job->kinds))
        || !job_grow((void **)&job->plans, job->kind_count,
                     &job->kind_capacity, sizeof(*job->plans)))
        return job_no_memory(error);
    job->kinds[job->kind_count] = (struct job_kind) {
        .host = { job->ranks[a].host, job->ranks[b].host },
        .numa = { job->ranks[a].place.numa, job->ranks[b].place.numa },
        .locality = locality
    };
    planned = &job->plans[job->kind_count];
    memset(planned, 0, sizeof(*planned));
    job->kind_count++;
    job_fill_card(job, a, &planned->mine);
    job_fill_card(job, b, &planned->yours);
    return tpt_score(&planned->mine, &planned->yours, &job->policy,
                     &planned->plan, error);
}

static tp_status job_add_pair(struct job *job, int a, int b,
                              struct tpb_error *error)
{
    enum tpt_locality locality = job_locality(job, a, b);
    struct tpt_planned *planned;
    struct job_kind *kind;
    tp_status status = TP_OK;
    size_t i = 0;

    while (i < job->kind_count
           && !job_is_kind(job, &job->kinds[i], a, b, locality))
        i++;
    if (i == job->kind_count)
        status = job_new_kind(job, a, b, locality, error);
    if (status != TP_OK)
        return status;
    kind = &job->kinds[i];
    planned = &job->plans[i];
    if (!job_grow((void **)&kind->pairs, planned->pair_count, &kind->capacity,
                  sizeof(*kind->pairs)))
        return job_no_memory(error);
    kind->pairs[planned->pair_count][0] = a;
    kind->pairs[planned->pair_count++][1] = b;
    planned->pairs = (const int (*)[2])kind->pairs;
    return TP_OK;
}

static tp_status job_pairs(struct job *job, struct tpb_error *error)
{
    tp_status status = TP_OK;

    /* One host, two processes: what job_locality() changes is the place. */
    job_fill_card(job, 0, &job->mine);
    job_fill_card(job, 1, &job->yours);
    memcpy(job->yours.host.boot_id, job->mine.host.boot_id,
           sizeof(job->yours.host.boot_id));
    for (int a = 0; a < job->count; a++)
        for (int b = a + 1; b < job->count && status == TP_OK; b++)
            status = job_add_pair(job, a, b, error);
    return status;
}

/* ---- output ------------------------------------------------------------ */

/* "3 pairs: 0-1 0-2 1-2" */
static void job_print_pairs(const struct tpt_planned *planned,
                            struct tpb_text *text)
{
    tpb_text_add(text, "%zu pair%s:", planned->pair_count,
                 planned->pair_count == 1 ? "" : "s");
    for (size_t i = 0; i < planned->pair_count && i < JOB_SHOWN; i++)
        tpb_text_add(text, " %d-%d", planned->pairs[i][0],
                     planned->pairs[i][1]);
    tpb_text_add(text, "%s\n", planned->pair_count > JOB_SHOWN ? " ..." : "");
}

static void job_print(const struct job *job,
                      const struct tpinfo_options *options,
                      struct tpb_text *text)
{
    char *json;

    if (options->json) {
        json = tpt_plans_json(job->plans, job->kind_count);
        text->failed |= json == NULL;
        if (json != NULL)
            tpb_text_add(text, "%s\n", json);
        free(json);
        return;
    }
    tpb_text_add(text, "%d ranks on %d host%s, connected in %zu way%s.%s\n",
                 job->count, job->host_count, job->host_count == 1 ? "" : "s",
                 job->kind_count, job->kind_count == 1 ? "" : "s",
                 options->topo == NULL ? "" : "  Recorded machines cannot be "
                 "tried: every backend of this build is assumed to work "
                 "there.");
    for (size_t i = 0; i < job->kind_count; i++) {
        const struct tpt_planned *planned = &job->plans[i];

        job_print_pairs(planned, text);
        tpt_plan_text(&planned->plan, &planned->mine, &planned->yours, text);
    }
}

static void job_free(struct job *job)
{
    for (int i = 0; i < job->host_count; i++)
        if (!job->hosts[i].borrowed)
            tpt_topology_free(job->hosts[i].topology);
    for (size_t i = 0; i < job->kind_count; i++)
        tpb_free(job->kinds[i].pairs);
    tpb_free(job->hosts);
    tpb_free(job->ranks);
    tpb_free(job->kinds);
    tpb_free(job->plans);
    tpb_free(job);
}

tp_status tpinfo_plan_job(const struct tpinfo_options *options,
                          const struct tpt_card *card,
                          struct tpt_topology *topology,
                          const struct tpb_settings *settings,
                          struct tpb_text *text, struct tpb_error *error)
{
    struct job *job = tpb_zalloc(sizeof(*job));
    tp_status status = TP_OK;

    if (job == NULL)
        return job_no_memory(error);
    job->policy.backends = settings->text[TPB_SET_BACKENDS];
    job->policy.require = settings->text[TPB_SET_REQUIRE];
    job->count = options->ranks;
    job->hosts = tpb_array(JOB_HOSTS, sizeof(*job->hosts));
    job->ranks = tpb_array((size_t)job->count, sizeof(*job->ranks));
    if (job->hosts == NULL || job->ranks == NULL) {
        status = job_no_memory(error);
    } else if (options->topo != NULL) {
        status = job_load_hosts(job, options->topo, settings, error);
    } else {
        job->hosts[0].card = *card;
        job->hosts[0].topology = topology;
        job->hosts[0].borrowed = true;
        job->host_count = 1;
    }
    if (status == TP_OK && job->count < job->host_count)
        status = tpb_fail(error, TP_ERR_INVALID, "-n %d: fewer ranks than "
                          "machines (%d)", job->count, job->host_count);
    if (status == TP_OK) {
        job_place_ranks(job);
        status = job_pairs(job, error);
    }
    if (status == TP_OK)
        job_print(job, options, text);
    job_free(job);
    return status;
}
