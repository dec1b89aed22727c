/* SPDX-License-Identifier: BSD-3-Clause */
/* What PMIx tells ranks about their job. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/pmix_private.h"

/* libpmix compresses what stands before the digits of a host's name in 50 bytes
 * on its stack, and writes behind them: such a name has to be shorter. */
enum { JOB_HOST_COMPRESSED = 50 };

/* A list of infos under construction; `status` is the first trouble. */
struct info_list {
    void *list;
    pmix_status_t status;
};

static void info_add(struct info_list *list, const char *key,
                     const void *value, pmix_data_type_t type)
{
    if (list->status == PMIX_SUCCESS)
        list->status = PMIx_Info_list_add(list->list, key, value, type);
}

static void info_text(struct info_list *list, const char *key,
                      const char *text)
{
    info_add(list, key, text, PMIX_STRING);
}

static void info_number(struct info_list *list, const char *key,
                        uint32_t number)
{
    info_add(list, key, &number, PMIX_UINT32);
}

static void info_rank(struct info_list *list, const char *key,
                      pmix_rank_t rank)
{
    info_add(list, key, &rank, PMIX_PROC_RANK);
}

/* Ends a list that becomes one nested value of another. */
static void info_nest(struct info_list *outer, const char *key,
                      struct info_list *inner)
{
    pmix_data_array_t array = { 0 };

    if (inner->status == PMIX_SUCCESS)
        inner->status = PMIx_Info_list_convert(inner->list, &array);
    if (inner->status == PMIX_SUCCESS) {
        info_add(outer, key, &array, PMIX_DATA_ARRAY);
        PMIX_DATA_ARRAY_DESTRUCT(&array);
    } else {
        outer->status = inner->status;
    }
    PMIx_Info_list_release(inner->list);
}

/* "0,1,2,3" */
static void job_peers(struct tpb_text *text, int ranks)
{
    for (int i = 0; i < ranks; i++)
        tpb_text_add(text, "%s%d", i > 0 ? "," : "", i);
}

static void job_rank(struct info_list *job, const char *host, int rank,
                     const struct tpl_options *options,
                     const struct tpt_bind_place *place)
{
    struct info_list list = { PMIx_Info_list_start(), PMIX_SUCCESS };
    const struct tpl_app *app = tpl_options_app(options, rank);
    struct tpb_text cpus = { 0 };
    uint16_t local = (uint16_t)rank;

    /* The rank must come first. */
    info_rank(&list, PMIX_RANK, (pmix_rank_t)rank);
    info_number(&list, PMIX_APPNUM, (uint32_t)(app - options->apps));
    info_rank(&list, PMIX_APP_RANK, (pmix_rank_t)(rank - app->first));
    info_rank(&list, PMIX_GLOBAL_RANK, (pmix_rank_t)rank);
    info_add(&list, PMIX_LOCAL_RANK, &local, PMIX_UINT16);
    info_add(&list, PMIX_NODE_RANK, &local, PMIX_UINT16);
    info_number(&list, PMIX_NODEID, 0);
    info_text(&list, PMIX_HOSTNAME, host);
    tpb_text_add(&cpus, "hwloc:%s", place->list);
    if (!cpus.failed)
        info_text(&list, PMIX_CPUSET, cpus.text);
    tpb_text_fini(&cpus);
    info_text(&list, PMIX_LOCALITY_STRING, place->locality);
    info_nest(job, PMIX_PROC_DATA, &list);
}

static void job_node_map(struct info_list *job, const char *host)
{
    char raw[sizeof("raw:") + 256], *map = NULL;

    if (strlen(host) >= JOB_HOST_COMPRESSED) {
        snprintf(raw, sizeof(raw), "raw:%s", host);
        info_add(job, PMIX_NODE_MAP, raw, PMIX_REGEX);
        return;
    }
    if (PMIx_generate_regex(host, &map) == PMIX_SUCCESS)
        info_add(job, PMIX_NODE_MAP, map, PMIX_REGEX);
    free(map);
}

/* The maps of nodes and ranks, in libpmix's own notation. */
static void job_maps(struct info_list *job, const char *host,
                     const char *peers)
{
    char *map = NULL;

    job_node_map(job, host);
    if (PMIx_generate_ppn(peers, &map) == PMIX_SUCCESS)
        info_add(job, PMIX_PROC_MAP, map, PMIX_REGEX);
    free(map);
}

static void job_node(struct info_list *job, const char *host,
                     const char *peers, uint32_t ranks)
{
    struct info_list node = { PMIx_Info_list_start(), PMIX_SUCCESS };

    info_text(&node, PMIX_HOSTNAME, host);
    info_number(&node, PMIX_NODEID, 0);
    info_number(&node, PMIX_NODE_SIZE, ranks);
    info_number(&node, PMIX_LOCAL_SIZE, ranks);
    info_rank(&node, PMIX_LOCALLDR, 0);
    info_text(&node, PMIX_LOCAL_PEERS, peers);
    info_nest(job, PMIX_NODE_INFO_ARRAY, &node);
}

static void job_app(struct info_list *job, uint32_t number,
                    const struct tpl_app *app)
{
    struct info_list list = { PMIx_Info_list_start(), PMIX_SUCCESS };

    info_number(&list, PMIX_APPNUM, number);
    info_number(&list, PMIX_APP_SIZE, (uint32_t)app->ranks);
    info_rank(&list, PMIX_APPLDR, (pmix_rank_t)app->first);
    info_nest(job, PMIX_APP_INFO_ARRAY, &list);
}

pmix_status_t tpl_pmix_job_info(const char *job, const char *host,
                            const struct tpl_options *options,
                            const struct tpt_bind_plan *plan,
                            pmix_data_array_t *info)
{
    struct info_list list = { PMIx_Info_list_start(), PMIX_SUCCESS };
    struct tpb_text peers = { 0 };
    uint32_t ranks = (uint32_t)plan->count;
    uint32_t apps = (uint32_t)options->app_count;

    job_peers(&peers, plan->count);
    if (peers.failed)
        list.status = PMIX_ERR_NOMEM;
    info_text(&list, PMIX_JOBID, job);
    info_number(&list, PMIX_JOB_SIZE, ranks);
    info_number(&list, PMIX_UNIV_SIZE, ranks);
    info_number(&list, PMIX_MAX_PROCS, ranks);
    info_number(&list, PMIX_JOB_NUM_APPS, apps);
    info_number(&list, PMIX_NUM_NODES, 1);
    info_text(&list, PMIX_NODE_LIST, host);
    info_text(&list, PMIX_ALLOCATED_NODELIST, host);
    info_number(&list, PMIX_NODE_SIZE, ranks);
    info_number(&list, PMIX_LOCAL_SIZE, ranks);
    info_rank(&list, PMIX_LOCALLDR, 0);
    if (list.status == PMIX_SUCCESS) {
        info_text(&list, PMIX_LOCAL_PEERS, peers.text);
        job_maps(&list, host, peers.text);
        job_node(&list, host, peers.text, ranks);
        for (uint32_t i = 0; i < apps; i++)
            job_app(&list, i, &options->apps[i]);
    }
    for (int i = 0; i < plan->count; i++)
        job_rank(&list, host, i, options, &plan->places[i]);
    if (list.status == PMIX_SUCCESS)
        list.status = PMIx_Info_list_convert(list.list, info);
    PMIx_Info_list_release(list.list);
    tpb_text_fini(&peers);
    return list.status;
}
