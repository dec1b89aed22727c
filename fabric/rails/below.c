/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The upcalls of the backends below.  They only leave marks: what follows of
 * them is done in rails_service(), where no function of theirs is under way.
 */
#include "config.h"

#include <stdio.h>

#include "fabric/rails/rails.h"

enum { BELOW_STRANGERS = 4096 };

TPB_LOG_COMPONENT("rails");

static void below_incoming(void *core, struct tpf_conn *below)
{
    struct rails_sub *sub = core;
    struct rails_endpoint *endpoint = sub->endpoint;
    struct rails_rail *rail = NULL;

    if (endpoint->stranger_count < BELOW_STRANGERS)
        rail = tpb_zalloc(sizeof(*rail));
    if (rail == NULL) {
        tpb_list_unlink(&below->ready);
        tpb_list_append(&endpoint->graves, &below->ready);
        return;
    }
    tpb_list_init(&rail->link);
    rail->endpoint = endpoint;
    rail->conn = below;
    rail->stage = RAILS_ASKED;
    rail->deadline = rails_patience(endpoint);
    rails_pace_init(&rail->pace, sub->megabits);
    below->peer = rail;
    tpb_list_append(&endpoint->strangers, &rail->link);
    endpoint->stranger_count++;
    rails_ticks(endpoint);
}

static void below_due(struct rails_rail *rail)
{
    if (rail != NULL && rail->group != NULL)
        rails_is_due(rail->group);
}

static void below_connected(void *core, struct tpf_conn *below)
{
    struct rails_rail *rail = below->peer;

    (void)core;
    rail->stage = RAILS_REACHED;
    below_due(rail);
}

static void below_writable(void *core, struct tpf_conn *below)
{
    struct rails_rail *rail = below->peer;

    (void)core;
    if (rail == NULL)
        return;
    rail->full = false;
    below_due(rail);
}

static void below_sent(void *core, struct tpf_conn *below, void *token)
{
    struct rails_frame *frame = token;

    (void)core;
    frame->held = false;
    below_due(below->peer);
}

static void below_failed(void *core, struct tpf_conn *below,
                              tp_status status, const char *text)
{
    struct rails_rail *rail = below->peer;

    (void)core;
    if (rail == NULL)
        return;                    /* on its way to the grave */
    rail->failed = true;
    rail->status = status;
    tpb_debug("a rail failed: %s", text);
    if (rail->group != NULL && rail->group->told) {
        rails_blame(rail, text);
    } else if (rail->group != NULL) {
        char *all = rail->group->text;
        size_t used = strlen(all);

        snprintf(all + used, sizeof(rail->group->text) - used, "%s%s",
                 used > 0 ? "; " : "", text);
    }
    below_due(rail);
}

const struct tpf_upcalls rails_upcalls = {
    .incoming = below_incoming,
    .connected = below_connected,
    .writable = below_writable,
    .sent = below_sent,
    .failed = below_failed
};
