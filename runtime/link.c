/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The channels of a context, and the links that a connected pair has over
 * them.  Each side tries what it may pull when the two connect, tells the
 * other in the greeting, and offers only what the other said it may pull.
 */
#include "config.h"

#include <stdio.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"
#include "runtime/channels.h"
#include "runtime/core.h"

TPB_LOG_COMPONENT("link");

_Static_assert((int)WIRE_TRIALS == (int)TPF_CHANNELS, "one trial per channel");

/* ---- of the context ------------------------------------------------------ */

static struct tpt_backend_card *link_card(tp_context *context,
                                          const struct tpf_channel_kind *kind)
{
    struct tpt_backend_card *card
        = &context->card.backends[context->card.backend_count++];

    snprintf(card->name, sizeof(card->name), "%s", kind->name);
    card->role = TPT_ROLE_CHANNEL;
    if (kind->over != NULL)
        snprintf(card->over, sizeof(card->over), "%s", kind->over);
    card->reach = (uint8_t)kind->reach;
    card->nic_kind = (uint8_t)kind->nic_kind;
    card->latency_ns = kind->latency_ns;
    card->megabytes = kind->megabytes;
    card->devices = kind->devices;
    return card;
}

static tp_status link_channel_open(tp_context *context,
                                   const struct tpf_channel_kind *kind,
                                   struct tpt_backend_card *card,
                                   struct tpb_error *error)
{
    tp_status status = kind->probe(&context->env, error);
    struct tpf_channel *channel;

    if (status != TP_OK)
        return status;
    channel = tpb_zalloc(kind->channel_size);
    if (channel == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    channel->kind = kind;
    channel->env = &context->env;
    status = kind->open(channel, error);
    if (status != TP_OK) {
        if (kind->close != NULL)
            kind->close(channel);
        tpb_free(channel);
        return status;
    }
    context->channels[kind->number] = channel;
    card->usable = 1;
    if (kind->address != NULL)
        card->address_length = (uint16_t)kind->address(
            channel, card->address, sizeof(card->address));
    return TP_OK;
}

void tpr_channels_open(tp_context *context)
{
    const char *list = context->settings.text[TPB_SET_BACKENDS];

    for (size_t i = 0; tpf_channel_kinds[i] != NULL
                       && context->card.backend_count < TPT_BACKENDS; i++) {
        const struct tpf_channel_kind *kind = tpf_channel_kinds[i];
        struct tpt_backend_card *card = link_card(context, kind);
        struct tpb_error why = { "" };

        if (!tpb_list_allows(list, kind->name)) {
            snprintf(card->why, sizeof(card->why),
                     "forbidden by TP_BACKENDS");
            card->forbidden = 1;
        } else if (link_channel_open(context, kind, card, &why) != TP_OK) {
            tpb_info("%s is not usable: %s", kind->name, why.text);
            snprintf(card->why, sizeof(card->why), "%.*s",
                     (int)sizeof(card->why) - 1, why.text);
        }
    }
    tpg_staged_card(&context->settings, false, &context->card);
}

void tpr_channels_close(tp_context *context)
{
    for (size_t i = 0; i < TPF_CHANNELS; i++) {
        struct tpf_channel *channel = context->channels[i];

        if (channel == NULL)
            continue;
        if (channel->kind->close != NULL)
            channel->kind->close(channel);
        tpb_free(channel);
        context->channels[i] = NULL;
    }
}

void tpr_channels_freed(tp_context *context, uint64_t id)
{
    for (size_t i = 0; i < TPF_CHANNELS; i++) {
        struct tpf_channel *channel = context->channels[i];

        if (channel != NULL && channel->kind->freed != NULL)
            channel->kind->freed(channel, id);
    }
}

bool tpr_channels_progress(tp_context *context)
{
    bool moved = false;

    for (size_t i = 0; i < TPF_CHANNELS; i++) {
        struct tpf_channel *channel = context->channels[i];

        if (channel != NULL && channel->kind->progress != NULL)
            moved |= channel->kind->progress(channel);
    }
    return moved;
}

/* ---- of a pair ----------------------------------------------------------- */

static bool link_possible(const struct tpr_peer *peer, const char *name)
{
    const struct tpt_plan *plan = tpr_peer_plan(peer);

    for (uint32_t i = 0; i < plan->count; i++)
        if (strcmp(plan->candidates[i].name, name) == 0)
            return plan->candidates[i].possible;
    return false;
}

static void link_make(struct tpr_peer *peer, struct tpf_channel *channel,
                      const struct tpt_card *theirs)
{
    const struct tpf_channel_kind *kind = channel->kind;
    const struct tpt_backend_card *card = tpt_card_backend(theirs, kind->name);
    struct tpr_link *slot = &peer->links->of[kind->number];
    struct tpb_error error = { "" };

    if (card == NULL || !card->usable || !link_possible(peer, kind->name))
        return;
    slot->link = tpb_zalloc(kind->link_size);
    if (slot->link == NULL)
        return;
    slot->link->kind = kind;
    slot->link->channel = channel;
    slot->link->conn = peer->conn;
    slot->link->card = theirs;
    slot->mine = kind->link(slot->link, card->address, card->address_length,
                            &error) == TP_OK;
    slot->link->card = NULL;
    tpr_peer_tried(peer, TPT_MINE, kind->name, slot->mine ? NULL : error.text);
    if (!slot->mine) {
        tpb_info("%s: no %s from there: %s", peer->full_name, kind->name,
                 error.text);
        snprintf(slot->words, sizeof(slot->words), "%.*s",
                 (int)sizeof(slot->words) - 1, error.text);
    }
}

static bool link_is_for(const struct tpf_channel *channel, bool self)
{
    return channel != NULL && (!self || channel->kind->within);
}

void tpr_links_open(struct tpr_peer *peer)
{
    tp_context *context = peer->context;
    bool self = (peer->conn->backend->flags & TPF_SELF) != 0;
    bool any = tpt_device_insisted(tpr_peer_plan(peer));
    struct tpt_card *theirs;

    for (size_t i = 0; i < TPF_CHANNELS; i++)
        any |= link_is_for(context->channels[i], self);
    if (!any)
        return;
    peer->links = tpb_zalloc(sizeof(*peer->links));
    if (peer->links == NULL)
        return;
    peer->links->peer = peer;
    peer->links->least = peer->links->device_least = SIZE_MAX;
    tpb_list_init(&peer->links->pulls);
    peer->conn->links = peer->links;
    theirs = tpb_zalloc(sizeof(*theirs));
    if (theirs == NULL)
        return;
    tpt_entry_card(peer->entry, theirs);
    for (size_t i = 0; i < TPF_CHANNELS; i++)
        if (link_is_for(context->channels[i], self))
            link_make(peer, context->channels[i], theirs);
    tpb_free(theirs);
}

void tpr_links_free(struct tpr_links *links)
{
    struct tpb_list *node;

    if (links == NULL)
        return;
    /* A read that ends gives its memory back, to a waiting thread at once: so
     * first the copies into it. */
    for (size_t i = 0; i < TPF_CHANNELS; i++)
        if (links->of[i].link != NULL
            && links->of[i].link->kind->stop != NULL)
            links->of[i].link->kind->stop(links->of[i].link);
    while ((node = tpb_list_take(&links->pulls)) != NULL)
        tpr_pull_over(TPB_CONTAINER(node, struct tpr_offer, link),
                      TPF_PULL_REFUSED, "the connection is gone");
    for (size_t i = 0; i < TPF_CHANNELS; i++) {
        struct tpf_link *link = links->of[i].link;

        tpb_free(links->of[i].pairs);
        if (link == NULL)
            continue;
        if (link->kind->unlink != NULL)
            link->kind->unlink(link);
        tpb_free(link);
    }
    tpb_free(links);
}

/* ---- verdicts ------------------------------------------------------------ */

void tpr_links_tell(const struct tpr_peer *peer, struct tpr_verdicts *told)
{
    memset(told->trials, 0, sizeof(told->trials));
    told->length = 0;
    for (size_t i = 0; peer->links != NULL && i < TPF_CHANNELS; i++) {
        const struct tpr_link *link = &peer->links->of[i];
        size_t part = strlen(link->words);

        if (link->link == NULL)
            continue;
        told->trials[i].tried = 1;
        told->trials[i].may = link->mine;
        told->trials[i].words_length = (uint8_t)part;
        memcpy(told->words + told->length, link->words, part);
        told->length += part;
    }
    tpr_trials_tell(peer, told);
}

void tpr_links_words(char *to, size_t room, const char *from, size_t length)
{
    if (length >= room)
        length = room - 1;
    for (size_t i = 0; i < length; i++)
        to[i] = from[i] >= ' ' && from[i] < 127 ? from[i] : '?';
    to[length] = '\0';
}

static void link_refused(struct tpr_peer *peer, const char *name,
                         const char *words)
{
    char evidence[TPT_WORDS];

    snprintf(evidence, sizeof(evidence), "it: %.*s",
             (int)sizeof(evidence) - 8, words);
    tpr_peer_tried(peer, TPT_YOURS, name, words);
    tpr_peer_demote(peer, name, evidence);
}

/* A contract that insists on a channel ends the pair without it: at once, for
 * the peer is there. */
static void link_settle(struct tpr_peer *peer)
{
    tpr_links_sizes(peer);
    if (tpt_plan_best(tpr_peer_plan(peer)) < 0)
        tpr_peer_unreachable(peer);
}

void tpr_links_hear(struct tpr_peer *peer, const struct tpr_verdicts *heard)
{
    const char *words = heard->words;
    size_t length = heard->length;

    for (size_t i = 0; i < TPF_CHANNELS; i++) {
        struct tpr_link *link;
        size_t part = heard->trials[i].words_length;
        char text[TPT_WORDS];

        if (part > length)
            part = length;
        tpr_links_words(text, sizeof(text), words, part);
        words += part;
        length -= part;
        if (peer->links == NULL)
            continue;
        link = &peer->links->of[i];
        link->theirs = heard->trials[i].tried != 0
                       && heard->trials[i].may != 0;
        if (link->link != NULL && link->theirs)
            tpr_peer_tried(peer, TPT_YOURS, link->link->kind->name, NULL);
        else if (link->link != NULL)
            link_refused(peer, link->link->kind->name,
                         text[0] != '\0' ? text : "it does not say why");
    }
    tpr_trials_hear(peer, words, length);
    if (peer->links != NULL)
        link_settle(peer);
}

void tpr_links_own(struct tpr_peer *peer)
{
    struct tpr_links *links;

    tpr_links_open(peer);
    links = peer->links;
    if (links == NULL)
        return;
    for (size_t i = 0; i < TPF_CHANNELS; i++)
        links->of[i].theirs = links->of[i].link != NULL && links->of[i].mine;
    tpr_links_sizes(peer);
    tpr_links_spare_small(links);
    /* One copy is half of two, whatever was measured. */
    peer->wishes |= WIRE_KEEPS;
    peer->wished |= WIRE_KEEPS;
}

void tpr_links_demote(struct tpr_peer *peer, unsigned channel,
                      const char *words)
{
    struct tpr_link *link;

    if (peer->links == NULL || channel >= TPF_CHANNELS)
        return;
    link = &peer->links->of[channel];
    if (link->link == NULL || !link->theirs)
        return;
    link->theirs = false;
    tpb_info("%s: %s no more: %s", peer->full_name, link->link->kind->name,
             words);
    link_refused(peer, link->link->kind->name, words);
    link_settle(peer);
}

void tpr_links_note(struct tpf_conn *conn, const void *note, size_t length,
                    int fd)
{
    struct tpr_links *links = conn->links;
    uint8_t channel = length > 0 ? *(const uint8_t *)note : 0;
    struct tpf_link *link = links != NULL && channel < TPF_CHANNELS
                            ? links->of[channel].link : NULL;

    if (link == NULL || link->kind->note == NULL) {
        tpb_close(&fd);            /* a channel that this side does not have */
        return;
    }
    if (!link->kind->note(link, note, length, fd) && conn->peer != NULL)
        tpr_peer_end(conn->peer, TP_ERR_PROTOCOL,
                     "a note of garbage beside the frames");
}
