/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Peers outside the job.  Each has one pipe.  What is big of them goes when the
 * pipe is closed and the peer ended, and the rest after DESK_KEPT others, so
 * that a server can serve any number, one after the other.
 */
#include "config.h"

#include <stdio.h>

#include "runtime/base/alloc.h"
#include "runtime/desk.h"

struct tpr_guest *tpr_guest_new(tp_context *context, const char *name)
{
    struct tpr_guest *guest = tpb_zalloc(sizeof(*guest));
    struct tpr_peer *peer;

    if (guest == NULL)
        return NULL;
    tpb_list_init(&guest->link);
    snprintf(guest->name, sizeof(guest->name), "%s", name);
    pthread_mutex_lock(&context->table_lock);
    peer = tpr_peer_new(context, -1);
    if (peer != NULL) {
        peer->guest = guest;
        guest->peer = peer;
        atomic_store(&peer->name, guest->name);
    }
    pthread_mutex_unlock(&context->table_lock);
    if (peer != NULL && tpr_pipe_get(peer, 0) != NULL)
        return guest;
    if (peer != NULL)
        tpr_guest_discard(guest);
    else
        tpb_free(guest);
    return NULL;
}

void tpr_guest_discard(struct tpr_guest *guest)
{
    struct tpr_peer *peer = guest->peer;
    tp_context *context = peer->context;

    if (tpr_guest_pipe(guest) != NULL)
        tpr_record_drop(tpr_guest_pipe(guest));
    pthread_mutex_lock(&context->table_lock);
    tpb_list_unlink(&peer->link);
    pthread_mutex_unlock(&context->table_lock);
    tpr_peer_free(peer);           /* and the guest with it */
}

void tpr_guest_free(struct tpr_guest *guest)
{
    if (guest == NULL)
        return;
    tpb_list_unlink(&guest->link);
    tpb_free(guest);
}

bool tpr_guest_comes(const struct tpr_peer *peer)
{
    return peer->guest != NULL && peer->guest->listener != NULL;
}

tp_pipe *tpr_guest_pipe(struct tpr_guest *guest)
{
    return atomic_load(&guest->peer->ready_made);
}

tp_status tpr_guest_card(tp_context *context, uint8_t blob[TPT_CARD_BYTES],
                         size_t *length)
{
    struct tpt_card *card = tpb_zalloc(sizeof(*card));
    tp_status status;

    if (card == NULL)
        return TP_ERR_NO_MEMORY;
    *card = context->card;
    /* Who knows the cookie passes for a rank of the job. */
    memset(card->cookie, 0, sizeof(card->cookie));
    status = tpt_card_encode(card, blob, length);
    if (status == TP_OK)
        tpr_card_damage(context, blob, length);
    tpb_free(card);
    return status;
}

void tpr_guest_name(struct tpr_peer *peer, const struct tpt_card *card,
                    char *name, size_t size)
{
    (void)peer;
    if (card->size > 1)
        snprintf(name, size, "rank %d of job %.40s on %.40s, pid %u",
                 card->rank, card->job, card->host.name, card->pid);
    else
        snprintf(name, size, "pid %u on %s", card->pid, card->host.name);
}

struct tpr_peer *tpr_guest_find(tp_context *context, const uint8_t cookie[16])
{
    if (context->desk == NULL)
        return NULL;
    TPB_LIST_EACH(node, &context->desk->promised) {
        struct tpr_guest *guest = TPB_CONTAINER(node, struct tpr_guest, link);

        if (tpb_equal_secret(guest->ticket, cookie, sizeof(guest->ticket)))
            return guest->peer;
    }
    return NULL;
}

const uint8_t *tpr_guest_ticket(const struct tpr_peer *peer)
{
    return peer->guest->ticket;
}

/* ---- its life ------------------------------------------------------------ */

void tpr_guest_contact(struct tpr_peer *peer)
{
    tpr_visit_start(peer->guest->visit);
}

void tpr_guest_connected(struct tpr_peer *peer)
{
    struct tpr_guest *guest = peer->guest;

    guest->connected = true;
    tpb_list_unlink(&guest->link);
    if (guest->listener != NULL)
        tpr_listener_arrived(guest->listener, guest);
}

/* It needs its card and plan no more, nor a place in the record. */
static void guest_spend(struct tpr_guest *guest)
{
    struct tpr_desk *desk = guest->peer->context->desk;

    tpb_list_unlink(&guest->link);
    tpb_list_append(&desk->spent, &guest->link);
    tpr_record_drop(tpr_guest_pipe(guest));
    tpr_desk_tick(desk);
}

void tpr_guest_closed(struct tpr_peer *peer)
{
    struct tpr_guest *guest = peer->guest;
    struct tpr_desk *desk = peer->context->desk;

    if (!tpr_guest_pipe(guest)->unseen)
        desk->closed++;
    guest->closed = desk->closed;
    if (peer->state == TPR_PEER_ENDED)
        guest_spend(guest);
    else if (guest->visit != NULL)
        tpr_peer_end(peer, TP_ERR_CLOSED,
                     "this side closed the pipe before anybody answered");
}

void tpr_guest_ended(struct tpr_peer *peer)
{
    struct tpr_guest *guest = peer->guest;
    struct tpr_desk *desk = peer->context->desk;

    if (guest->visit != NULL)
        tpr_visit_end(guest->visit);
    guest->visit = NULL;
    if (guest->listener == NULL) {
        if (tpr_guest_pipe(guest)->closed)
            guest_spend(guest);
    } else if (!guest->connected) {
        /* It never came: nobody knows of it. */
        guest->listener->guests--;
        guest->listener = NULL;
        tpb_list_unlink(&guest->link);
        tpb_list_append(&desk->unborn, &guest->link);
        tpr_desk_tick(desk);
    }
    /* Else it waits to be accepted: what it sent counts. */
}

void tpr_guest_late(struct tpr_peer *peer)
{
    struct tpr_guest *guest = peer->guest;
    struct tpb_text text = { 0 };

    if (guest->visit != NULL)
        tpr_visit_words(guest->visit, &text);
    else
        tpb_text_add(&text, "the connection was not made in time");
    tpb_text_add(&text, " (TP_CONNECT_TIMEOUT sets the limit)");
    tpr_peer_end(peer, TP_ERR_UNREACHABLE,
                 text.failed ? "not connected in time" : text.text);
    tpb_text_fini(&text);
}
