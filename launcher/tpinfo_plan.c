/* SPDX-License-Identifier: BSD-3-Clause */
/* tpinfo --plan: the candidates of two ranks that do not exist yet. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "launcher/tpinfo.h"
#include "runtime/base/alloc.h"
#include "topology/gpus.h"

enum { PLAN_MOST = TPT_OTHER_HOST + 1 };

/* Two ranks of one job, and the plans made for them. */
struct plan_work {
    struct tpt_policy policy;
    struct tpt_card mine, yours;
    size_t count;
    struct tpt_planned plans[PLAN_MOST];
};

static tp_status plan_add(struct plan_work *work, struct tpb_error *error)
{
    struct tpt_planned *planned = &work->plans[work->count];
    tp_status status = tpt_score(&work->mine, &work->yours, &work->policy,
                                 &planned->plan, error);

    if (status != TP_OK)
        return status;
    planned->mine = work->mine;
    planned->yours = work->yours;
    work->count++;
    return TP_OK;
}

static bool plan_has(const struct plan_work *work, enum tpt_locality locality)
{
    for (size_t i = 0; i < work->count; i++)
        if (work->plans[i].plan.locality == locality)
            return true;
    return false;
}

/* One rank on the first core, the other on each in turn: one plan for each
 * kind of neighbourhood.  A machine of one core has both on that. */
static tp_status plan_one_machine(struct plan_work *work,
                                  struct tpt_topology *topology,
                                  struct tpb_error *error)
{
    tp_status status = TP_OK;
    uint32_t core = 1;

    tpt_topology_place_core(topology, 0, &work->mine.place);
    if (!tpt_topology_place_core(topology, core, &work->yours.place))
        work->yours.place = work->mine.place;
    do {
        if (!plan_has(work, tpt_locality(&work->mine, &work->yours)))
            status = plan_add(work, error);
        core++;
    } while (status == TP_OK
             && tpt_topology_place_core(topology, core, &work->yours.place));
    return status;
}

/* The ranks' numbers; pid 0 says that they do not exist. */
static void plan_ranks(struct plan_work *work)
{
    snprintf(work->mine.job, sizeof(work->mine.job), "plan");
    snprintf(work->yours.job, sizeof(work->yours.job), "plan");
    work->mine.size = work->yours.size = 2;
    work->yours.rank = 1;
    work->mine.pid = work->yours.pid = 0;
    memset(work->mine.instance, 1, sizeof(work->mine.instance));
    memset(work->yours.instance, 2, sizeof(work->yours.instance));
}

/* ---- recorded machines ------------------------------------------------- */

/* "data/node07.xml" is the machine node07. */
static void plan_name_host(struct tpt_host *host, const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dot;

    snprintf(host->name, sizeof(host->name), "%s",
             slash != NULL ? slash + 1 : path);
    dot = strrchr(host->name, '.');
    if (dot != NULL && strcmp(dot, ".xml") == 0)
        *dot = '\0';
}

void tpinfo_recorded(struct tpt_card *card, const char *path,
                     struct tpt_topology *topology, uint8_t boot,
                     const struct tpb_settings *settings)
{
    card->recorded = true;
    plan_name_host(&card->host, path);
    memset(card->host.boot_id, boot, sizeof(card->host.boot_id));
    tpt_topology_place_core(topology, 0, &card->place);
    card->nic_count = tpt_topology_nics(topology, card->nics);
    tpt_topology_gpus(topology, "", NULL, card);
    tpinfo_backends(settings, true, card);
}

/* `other` NULL: both ranks on the one machine. */
static tp_status plan_recorded(struct plan_work *work, const char *path,
                               const char *other,
                               const struct tpb_settings *settings,
                               struct tpb_error *error)
{
    struct tpt_topology *first = NULL, *second = NULL;
    tp_status status = tpt_topology_load_file(path, &first, error);

    if (status != TP_OK)
        return status;
    tpinfo_recorded(&work->mine, path, first, 1, settings);
    if (other == NULL) {
        work->yours = work->mine;
        plan_ranks(work);
        status = plan_one_machine(work, first, error);
    } else {
        status = tpt_topology_load_file(other, &second, error);
        if (status == TP_OK) {
            tpinfo_recorded(&work->yours, other, second, 2, settings);
            plan_ranks(work);
            status = plan_add(work, error);
        }
    }
    tpt_topology_free(first);
    tpt_topology_free(second);
    return status;
}

/* Takes --topo apart. */
static tp_status plan_files(struct plan_work *work, const char *topo,
                            const struct tpb_settings *settings,
                            struct tpb_error *error)
{
    char *first = tpb_copy_string(topo);
    char *second = NULL;
    tp_status status;

    if (first == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    second = strchr(first, ',');
    if (second != NULL)
        *second++ = '\0';
    if (*first == '\0'
        || (second != NULL && (*second == '\0' || strchr(second, ','))))
        status = tpb_fail(error, TP_ERR_INVALID, "--topo %s: expected one "
                          "file, or two with a comma between", topo);
    else
        status = plan_recorded(work, first, second, settings, error);
    tpb_free(first);
    return status;
}

/* ---- output ------------------------------------------------------------ */

static void plan_print(const struct plan_work *work, bool recorded, bool json,
                       struct tpb_text *text)
{
    if (json) {
        char *whole = tpt_plans_json(work->plans, work->count);

        text->failed |= whole == NULL;
        if (whole != NULL)
            tpb_text_add(text, "%s\n", whole);
        free(whole);
        return;
    }
    if (recorded)
        tpb_text_add(text, "Recorded machines cannot be tried: every backend "
                     "of this build is assumed to work there.\n");
    for (size_t i = 0; i < work->count; i++) {
        const struct tpt_planned *planned = &work->plans[i];

        tpt_plan_text(&planned->plan, &planned->mine, &planned->yours, text);
    }
}

tp_status tpinfo_plan(const struct tpinfo_options *options,
                      const struct tpt_card *card,
                      struct tpt_topology *topology,
                      const struct tpb_settings *settings,
                      struct tpb_text *text, struct tpb_error *error)
{
    struct plan_work *work = tpb_zalloc(sizeof(*work));
    tp_status status;

    if (work == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    work->policy.backends = settings->text[TPB_SET_BACKENDS];
    work->policy.require = settings->text[TPB_SET_REQUIRE];
    if (options->topo != NULL) {
        status = plan_files(work, options->topo, settings, error);
    } else {
        work->mine = *card;
        work->yours = *card;
        plan_ranks(work);
        status = plan_one_machine(work, topology, error);
    }
    if (status == TP_OK)
        plan_print(work, options->topo != NULL, options->json, text);
    tpb_free(work);
    return status;
}
