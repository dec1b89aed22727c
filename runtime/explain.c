/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Why a peer is reached as it is, in words.  The peer's card and plan are made
 * anew for that: nobody else needs their words.
 */
#include "config.h"

#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/core.h"

struct explain {
    struct tpt_plan plan;
    struct tpt_card card;
};

/* Why there is no card. */
static const char *explain_nothing(const struct tpr_peer *peer)
{
    if (peer->end_text != NULL)
        return peer->end_text;
    return peer->guest != NULL
           ? "the peer's card is not here yet: its listener has not been"
             " reached so far; it is tried until TP_CONNECT_TIMEOUT"
           : "the peer's card is not here yet; it is fetched once the pipe is"
             " first written to or read, and comes when the peer has called"
             " tp_init()";
}

/* Under table_lock, or with the token; NULL: no memory. */
static struct explain *explain_new(const struct tpr_peer *peer)
{
    struct explain *explain = tpb_zalloc(sizeof(*explain));

    if (explain == NULL
        || !tpt_entry_explain(peer->entry, &explain->plan, &explain->card)) {
        tpb_free(explain);
        return NULL;
    }
    tpt_plan_carried(&explain->plan, atomic_load(&peer->transport),
                     atomic_load(&peer->carrier));
    return explain;
}

void tpr_explain_print(const struct tpr_peer *peer)
{
    struct explain *explain = explain_new(peer);
    struct tpb_text text = { 0 };

    if (explain == NULL)
        return;
    tpt_plan_text(&explain->plan, &peer->context->card, &explain->card, &text);
    if (!text.failed && text.length > 0)
        tpb_write_all(STDERR_FILENO, text.text, text.length);
    tpb_text_fini(&text);
    tpb_free(explain);
}

void tpr_explain_refusal(const struct tpr_peer *peer, struct tpb_text *text)
{
    struct explain *explain = explain_new(peer);

    if (explain != NULL)
        tpt_plan_refusal(&explain->plan, text);
    else
        text->failed = true;
    tpb_free(explain);
}

tp_status tp_pipe_explain(tp_pipe *pipe, char **json)
{
    struct explain *explain = NULL;
    const struct tpr_peer *peer;
    tp_context *context;
    char *text = NULL;
    bool connected;

    if (pipe == NULL || json == NULL)
        return TP_ERR_INVALID;
    context = pipe->context;
    peer = pipe->peer;
    pthread_mutex_lock(&context->table_lock);
    connected = *atomic_load(&peer->transport) != '\0'
                && peer->end_text == NULL;
    if (peer->entry != NULL)
        explain = explain_new(peer);
    else
        text = tpt_plan_json_unknown(connected, explain_nothing(peer));
    pthread_mutex_unlock(&context->table_lock);
    if (explain != NULL)
        text = tpt_plan_json(&explain->plan, &context->card, &explain->card,
                             connected, context->env.imports);
    tpb_free(explain);
    if (text == NULL)
        return TP_ERR_NO_MEMORY;
    *json = text;
    return TP_OK;
}
