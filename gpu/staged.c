/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cuda_staged on the card: the way by pinned memory of the host and the frames
 * of the pair's transport.  The code of it is cuda.c; no channel stands behind
 * the entry, which is there to be weighed, measured, required and forbidden.
 */
#include "config.h"

#include <stdio.h>
#include <unistd.h>

#include "gpu/gpu.h"
#include "topology/score.h"

enum {
    STAGED_LATENCY_NS = 12000,     /* a copy to the host and one from it, each
                                      with its event */
    STAGED_MEGABYTES = 24000
};

/* Without waking the driver: is there anything that could be a GPU? */
tp_status tpg_probe(const struct tpb_settings *settings,
                    struct tpb_error *error)
{
    if (strcmp(settings->text[TPB_SET_CUDA_LIBRARY], "none") == 0)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                        "TP_CUDA_LIBRARY=none forbids the use of GPUs");
    if (!settings->set[TPB_SET_CUDA_LIBRARY]
        && access("/dev/nvidiactl", F_OK) != 0
        && access("/dev/dxg", F_OK) != 0)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                        "no NVIDIA GPU here (no /dev/nvidiactl)");
    return TP_OK;
}

void tpg_staged_card(const struct tpb_settings *settings, bool assume,
                     struct tpt_card *card)
{
    struct tpt_backend_card *entry;
    struct tpb_error error = { "" };

    if (card->backend_count == TPT_BACKENDS)
        return;
    entry = &card->backends[card->backend_count++];
    *entry = (struct tpt_backend_card) {
        .name = "cuda_staged", .role = TPT_ROLE_CHANNEL,
        .reach = TPT_REACH_NETWORK, .devices = 1,
        .latency_ns = STAGED_LATENCY_NS, .megabytes = STAGED_MEGABYTES
    };
    if (!tpt_policy_lists(settings->text[TPB_SET_BACKENDS], entry->name)) {
        entry->forbidden = 1;
        snprintf(entry->why, sizeof(entry->why), "forbidden by TP_BACKENDS");
    } else if (assume) {
        entry->usable = card->gpu_count > 0;
        if (!entry->usable)
            snprintf(entry->why, sizeof(entry->why),
                     "no NVIDIA GPU was recorded");
    } else {
        entry->usable = tpg_probe(settings, &error) == TP_OK;
        snprintf(entry->why, sizeof(entry->why), "%.*s", TPT_WORDS - 1,
                 error.text);
    }
}
