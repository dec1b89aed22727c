/* SPDX-License-Identifier: BSD-3-Clause */
/* tpinfo: what this machine has, what tp can do with it, and why. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher/tpinfo.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"

/* Everything is loaded once, for whatever is shown. */
struct tpinfo {
    struct tpb_settings settings;
    struct tpt_topology *topology;
    struct tpt_card card;
    struct tpb_text text;
};

static tp_status tpinfo_load(struct tpinfo *info, struct tpb_error *error)
{
    tp_status status = tpb_settings_load(&info->settings, error);

    if (status == TP_OK)
        status = tpt_topology_load(&info->settings, &info->topology, error);
    if (status == TP_OK)
        status = tpt_card_identify(&info->card, error);
    if (status != TP_OK)
        return status;
    info->card.size = 1;
    tpt_topology_place(info->topology, &info->card.place);
    info->card.nic_count = tpt_topology_nics(info->topology, info->card.nics);
    tpinfo_gpus(&info->settings, info->topology, &info->card);
    tpinfo_backends(&info->settings, false, &info->card);
    return TP_OK;
}

static void tpinfo_report(struct tpinfo *info)
{
    struct tpinfo_carriers carriers = { .words = { NULL } };
    char *json;

    tpinfo_carriers(&info->settings, &info->card, &carriers);
    json = tpt_report_json(&info->card, carriers.words, info->topology,
                           &info->settings);
    tpinfo_carriers_fini(&carriers);
    info->text.failed |= json == NULL;
    if (json != NULL)
        tpb_text_add(&info->text, "%s\n", json);
    free(json);
}

static tp_status tpinfo_fill(struct tpinfo *info,
                             const struct tpinfo_options *options,
                             struct tpb_error *error)
{
    tp_status status = tpinfo_load(info, error);

    if (status == TP_OK && (options->show & TPINFO_PLAN) != 0)
        status = (options->ranks > 0 ? tpinfo_plan_job : tpinfo_plan)(
            options, &info->card, info->topology, &info->settings,
            &info->text, error);
    else if (status == TP_OK && options->json)
        tpinfo_report(info);
    else if (status == TP_OK)
        tpinfo_show(options->show, &info->card, info->topology,
                    &info->settings, &info->text);
    if (status == TP_OK && info->text.failed)
        status = tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    if (status == TP_OK
        && tpb_write_waiting(STDOUT_FILENO, info->text.text,
                             info->text.length) != 0)
        status = tpb_fail_errno(error, errno, "cannot write standard output");
    return status;
}

int main(int argc, char **argv)
{
    struct tpinfo_options options = { 0 };
    struct tpb_error error = { "" };
    struct tpinfo *info;
    tp_status status;
    int exit_status;

    if (!tpinfo_parse(argc, argv, &options, &exit_status))
        return exit_status;
    tpb_log_name("tpinfo");
    info = tpb_zalloc(sizeof(*info));
    status = info == NULL ? tpb_fail(&error, TP_ERR_NO_MEMORY, "out of memory")
             : tpinfo_fill(info, &options, &error);
    if (status != TP_OK)
        fprintf(stderr, "tpinfo: %s\n", error.text);
    if (info != NULL) {
        tpb_text_fini(&info->text);
        tpt_topology_free(info->topology);
        tpb_settings_fini(&info->settings);
    }
    tpb_free(info);
    return status == TP_OK ? 0 : 1;
}
