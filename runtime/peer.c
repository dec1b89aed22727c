/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Peers: one per rank that this rank has to do with.  A peer's life: its card
 * is fetched, the candidates are scored, one after the other is tried until
 * one connects and greets, then frames flow until it leaves or fails.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/log.h"
#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/stream.h"

TPB_LOG_COMPONENT("peer");

enum {
    PEER_TIMER_MS = 20,            /* while a first contact is under way */
    PEER_TIMER_SHARE = 4,          /* so many times as long as looking at all of
                                      them takes it is left at that, but no
                                      longer than that */
    PEER_STRANGERS_MS = 1000,      /* while only others have yet to greet */
    PEER_AWAY_MS = 1000,           /* between two looks: what is more, or more
                                      than a share of the limit, is nobody's */
    PEER_AWAY_SHARE = 4,
    PEER_GRACE_MS = 5              /* for the peer to begin it */
};

/* ---- the table ---------------------------------------------------------- */

/* Where to look in a table of so many, a power of 2.  The product's upper bits
 * depend on all of the number's: those of many have their lower bits in
 * common. */
static uint32_t peer_hash(uint32_t number, uint32_t size)
{
    return (number * 2654435761u) >> (__builtin_clz(size) + 1);
}

static struct tpr_peer **peer_slot(struct tpr_peer **table, uint32_t size,
                                   int rank)
{
    uint32_t at = peer_hash((uint32_t)rank, size);

    while (table[at] != NULL && table[at]->rank != rank)
        at = (at + 1) & (size - 1);
    return &table[at];
}

/* Keeps a third of the table free. */
static bool peer_table_grow(tp_context *context)
{
    uint32_t size = context->table_size == 0 ? 16 : context->table_size * 2;
    struct tpr_peer **table;

    if (context->table_used * 3 < context->table_size * 2)
        return true;
    table = tpb_array(size, sizeof(struct tpr_peer *));
    if (table == NULL)
        return false;
    for (uint32_t i = 0; i < context->table_size; i++)
        if (context->table[i] != NULL)
            *peer_slot(table, size, context->table[i]->rank)
                = context->table[i];
    tpb_free(context->table);
    context->table = table;
    context->table_size = size;
    return true;
}

struct tpr_peer *tpr_peer_new(tp_context *context, int rank)
{
    struct tpr_peer *peer = tpb_zalloc(sizeof(*peer));

    if (peer == NULL)
        return NULL;
    peer->context = context;
    peer->rank = rank;
    tpb_list_init(&peer->blocked);
    tpb_list_init(&peer->contact_link);
    tpb_list_append(&context->peers, &peer->link);
    snprintf(peer->first_name, sizeof(peer->first_name), "rank %d", rank);
    atomic_init(&peer->name, peer->first_name);
    atomic_init(&peer->transport, "");
    atomic_init(&peer->carrier, NULL);
    return peer;
}

struct tpr_peer *tpr_peer_get(tp_context *context, int rank)
{
    struct tpr_peer *peer = NULL, **slot;

    pthread_mutex_lock(&context->table_lock);
    if (peer_table_grow(context)) {
        slot = peer_slot(context->table, context->table_size, rank);
        if (*slot == NULL && (*slot = tpr_peer_new(context, rank)) != NULL)
            context->table_used++;
        peer = *slot;
    }
    pthread_mutex_unlock(&context->table_lock);
    return peer;
}

struct tpr_peer *tpr_peer_find(tp_context *context, int rank)
{
    struct tpr_peer *peer = NULL;

    pthread_mutex_lock(&context->table_lock);
    if (context->table_size > 0)
        peer = *peer_slot(context->table, context->table_size, rank);
    pthread_mutex_unlock(&context->table_lock);
    return peer;
}

static void peer_mute_pipe(tp_pipe *pipe)
{
    if (pipe->tx_end != TP_OK)
        return;
    tpr_pipe_fail(pipe, "tp_finalize has told the peer that this rank leaves");
    pipe->tx_end = TP_ERR_CLOSED;
}

static tp_pipe *peer_pipe_new(struct tpr_peer *peer, unsigned number)
{
    tp_pipe *pipe = tpb_zalloc(sizeof(*pipe));

    if (pipe == NULL)
        return NULL;
    pipe->context = peer->context;
    pipe->peer = peer;
    pipe->number = number;
    tpb_list_init(&pipe->writes);
    tpb_list_init(&pipe->landing);
    tpb_list_init(&pipe->pushes);
    tpb_list_init(&pipe->notes);
    tpb_list_init(&pipe->blocked_link);
    tpb_list_init(&pipe->device_link);
    tpb_list_init(&pipe->armed);
    tpb_list_init(&pipe->reads);
    tpb_list_init(&pipe->turns);
    tpb_list_init(&pipe->late_link);
    tpb_list_init(&pipe->backlog);
    tpb_list_init(&pipe->unread_link);
    atomic_init(&pipe->error, "");
    tpr_record_pipe(pipe);
    if (TPB_UNLIKELY(pipe->context->closing) && peer->bye_sent)
        peer_mute_pipe(pipe);
    return pipe;
}

static tp_pipe **peer_numbered_slot(tp_pipe **table, uint32_t size,
                                    unsigned number)
{
    uint32_t at = peer_hash(number, size);

    while (table[at] != NULL && table[at]->number != number)
        at = (at + 1) & (size - 1);
    return &table[at];
}

/* As peer_table_grow(). */
static bool peer_numbered_grow(struct tpr_peer *peer)
{
    uint32_t size = peer->numbered_size == 0 ? 4 : peer->numbered_size * 2;
    tp_pipe **table;

    if (peer->numbered_used * 3 < peer->numbered_size * 2)
        return true;
    table = tpb_array(size, sizeof(tp_pipe *));
    if (table == NULL)
        return false;
    for (tp_pipe *pipe = peer->pipes; pipe != NULL; pipe = pipe->next)
        *peer_numbered_slot(table, size, pipe->number) = pipe;
    tpb_free(peer->numbered);
    peer->numbered = table;
    peer->numbered_size = size;
    return true;
}

/* Under table_lock.  One that is there is found without memory. */
static tp_pipe *peer_numbered(struct tpr_peer *peer, unsigned number)
{
    tp_pipe **slot = NULL, *pipe;

    if (peer->numbered_size > 0)
        slot = peer_numbered_slot(peer->numbered, peer->numbered_size, number);
    if (slot != NULL && *slot != NULL)
        return *slot;
    if (!peer_numbered_grow(peer)
        || (pipe = peer_pipe_new(peer, number)) == NULL)
        return NULL;
    slot = peer_numbered_slot(peer->numbered, peer->numbered_size, number);
    pipe->next = peer->pipes;
    peer->pipes = *slot = pipe;
    peer->numbered_used++;
    return pipe;
}

tp_pipe *tpr_pipe_get(struct tpr_peer *peer, unsigned number)
{
    tp_pipe *pipe;

    pthread_mutex_lock(&peer->context->table_lock);
    if (number == 0) {
        pipe = atomic_load(&peer->ready_made);
        if (pipe == NULL && (pipe = peer_pipe_new(peer, 0)) != NULL)
            atomic_store(&peer->ready_made, pipe);
    } else {
        pipe = peer_numbered(peer, number);
    }
    pthread_mutex_unlock(&peer->context->table_lock);
    return pipe;
}

/* Calls `each` for all pipes of the peer; token.  New ones may join the front
 * of the list meanwhile: they are not missed by whoever ends the peer, since a
 * pipe asks for the peer's end when it is first used.  One that is not here was
 * begun later, under the lock, and has seen what was stored before this. */
static void peer_each_pipe(struct tpr_peer *peer, void (*each)(tp_pipe *))
{
    tp_pipe *ready_made, *pipe;

    pthread_mutex_lock(&peer->context->table_lock);
    ready_made = atomic_load(&peer->ready_made);
    pipe = peer->pipes;
    pthread_mutex_unlock(&peer->context->table_lock);
    if (ready_made != NULL)
        each(ready_made);
    for (; pipe != NULL; pipe = pipe->next)
        each(pipe);
}

/* ---- first contact ------------------------------------------------------ */

void tpr_timers_begin(tp_context *context)
{
    if (tpb_list_empty(&context->contacts)
        && tpb_list_empty(&context->strangers))
        context->looked = tpb_now();
}

void tpr_peer_timer(struct tpr_peer *peer)
{
    tp_context *context = peer->context;
    int64_t limit = context->settings.number[TPB_SET_CONNECT_TIMEOUT];

    tpr_timers_begin(context);
    /* Without a limit it is watched, too. */
    peer->deadline = limit < 0 ? UINT64_MAX
                     : tpb_now() + (uint64_t)limit * 1000000u;
    tpb_list_append(&context->contacts, &peer->contact_link);
    tpr_crowd_meet(&context->crowd, true);
    tpr_touch(context);
}

static void peer_timer_stop(struct tpr_peer *peer)
{
    tp_context *context = peer->context;

    if (tpb_list_empty(&peer->contact_link))
        return;                    /* it has not been running */
    tpb_list_unlink(&peer->contact_link);
    tpr_crowd_meet(&context->crowd, !tpb_list_empty(&context->contacts));
}

/* Is it given time to connect by itself? */
static bool peer_has_grace(const struct tpr_peer *peer)
{
    return peer->state == TPR_PEER_CARD && peer->contact_at > 0;
}

static void peer_fetch(struct tpr_peer *peer)
{
    struct tpr_bootstrap *bootstrap = peer->context->bootstrap;

    peer->contact_at = 0;
    bootstrap->ops->fetch(bootstrap, peer->rank);
}

/*
 * Who only waits for a message lets the one who will write it make the
 * connection, for a while: else both do, at the same time, and one is thrown
 * away.  What connects brings its card, too.
 */
void tpr_peer_contact(struct tpr_peer *peer, bool now)
{
    const uint64_t grace = PEER_GRACE_MS * UINT64_C(1000000);
    tp_context *context = peer->context;

    if (now && peer_has_grace(peer))
        peer_fetch(peer);
    if (peer->state != TPR_PEER_NEW)
        return;
    peer->state = TPR_PEER_CARD;
    tpr_peer_timer(peer);
    if (peer->guest != NULL) {
        tpr_guest_contact(peer);
        return;
    }
    if (peer->rank == context->rank) {
        uint8_t blob[TPT_CARD_BYTES];
        struct tpb_error error = { "" };
        size_t length;
        tp_status status = tpt_card_encode(&context->card, blob, &length);

        if (status == TP_OK)
            status = tpr_peer_meet(peer, blob, length, &error);
        if (status != TP_OK)
            tpr_peer_end(peer, status, error.text);
        else
            tpr_peer_next(peer);
        return;
    }
    if (now) {
        peer_fetch(peer);
        return;
    }
    peer->contact_at = tpb_now() + grace;
    if (peer->deadline != UINT64_MAX)
        peer->deadline += grace;
}

/* The card is here: who is it, and how could we reach it? */
tp_status tpr_peer_meet(struct tpr_peer *peer, const void *blob,
                        size_t length, struct tpb_error *error)
{
    tp_context *context = peer->context;
    struct tpt_policy policy = {
        .backends = context->settings.text[TPB_SET_BACKENDS],
        .require = context->settings.text[TPB_SET_REQUIRE] };
    struct tpt_card *card = tpb_zalloc(sizeof(*card));
    struct tpt_entry *entry = NULL;
    tp_status status;

    if (context->book == NULL)
        context->book = tpt_book_new(&context->card, &policy);
    if (card == NULL || context->book == NULL)
        status = tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    else
        status = tpt_card_decode(blob, length, card, error);
    /* A process that connects to itself through a listener. */
    if (status == TP_OK && peer->guest != NULL
        && memcmp(card->instance, context->card.instance, 16) == 0)
        card->instance[0] ^= 0xff;
    if (status == TP_OK && peer->guest == NULL && card->rank != peer->rank)
        status = tpb_fail(error, TP_ERR_PROTOCOL,
                          "its card says that it is rank %d", card->rank);
    if (status == TP_OK)
        status = tpt_book_enter(context->book, card, &entry, error);
    if (status != TP_OK) {
        tpb_free(card);
        return status;
    }
    pthread_mutex_lock(&context->table_lock);
    tpt_entry_drop(peer->entry);   /* of a hello that was turned away */
    peer->entry = entry;
    if (peer->guest != NULL)
        tpr_guest_name(peer, card, peer->full_name, sizeof(peer->full_name));
    else
        snprintf(peer->full_name, sizeof(peer->full_name),
                 "rank %d on %s, pid %u", peer->rank, card->host.name,
                 card->pid);
    pthread_mutex_unlock(&context->table_lock);
    atomic_store(&peer->name, peer->full_name);
    tpb_free(card);
    return TP_OK;
}

static int peer_find_endpoint(tp_context *context, const char *name)
{
    for (uint32_t i = 0; i < context->endpoint_count; i++)
        if (strcmp(context->endpoints[i]->backend->name, name) == 0)
            return (int)i;
    return -1;
}

void tpr_peer_tried(struct tpr_peer *peer, enum tpt_side side,
                    const char *name, const char *words)
{
    pthread_mutex_lock(&peer->context->table_lock);
    tpt_entry_tried(peer->entry, side, name, words);
    pthread_mutex_unlock(&peer->context->table_lock);
}

bool tpr_peer_demote(struct tpr_peer *peer, const char *name,
                     const char *evidence)
{
    bool done;

    pthread_mutex_lock(&peer->context->table_lock);
    done = tpt_entry_demote(peer->entry, name, evidence);
    pthread_mutex_unlock(&peer->context->table_lock);
    return done;
}

bool tpr_peer_restore(struct tpr_peer *peer, const char *name)
{
    bool done;

    pthread_mutex_lock(&peer->context->table_lock);
    done = tpt_entry_restore(peer->entry, name);
    pthread_mutex_unlock(&peer->context->table_lock);
    return done;
}

/* False: the peer has ended. */
static bool peer_demote(struct tpr_peer *peer, const char *name,
                        const char *evidence)
{
    tpb_info("%s: %s does not do: %s", peer->full_name, name, evidence);
    tpr_peer_tried(peer, TPT_MINE, name, evidence);
    if (tpr_peer_demote(peer, name, evidence))
        return true;
    tpr_peer_end(peer, TP_ERR_NO_MEMORY, "out of memory");
    return false;
}

/* The same of a way that was tried.  False also if the peer's process is over,
 * so that no other way leads anywhere, either. */
static bool peer_refused(struct tpr_peer *peer, const char *name,
                         const char *evidence)
{
    if (!peer_demote(peer, name, evidence))
        return false;
    if (!tpr_peer_is_dead(peer))
        return true;
    tpr_peer_give_up(peer);
    return false;
}

/* Starts the best candidate that is left. */
void tpr_peer_next(struct tpr_peer *peer)
{
    tp_context *context = peer->context;
    struct tpb_error error = { "" };

    peer->state = TPR_PEER_CONNECTING;
    for (;;) {
        const struct tpt_plan *plan = tpr_peer_plan(peer);
        int best = tpt_plan_best(plan), endpoint;
        uint8_t address[TPT_ADDRESS];
        size_t length;
        char name[TPT_NAME];

        /* The peer's conn is as good as one that we would have to make. */
        if (peer->spare != NULL
            && (best < 0 || strcmp(plan->candidates[best].name,
                                   peer->spare->conn->backend->name) == 0)
            && tpr_hello_use_spare(peer))
            return;
        if (best < 0) {
            tpr_peer_give_up(peer);
            return;
        }
        memcpy(name, plan->candidates[best].name, sizeof(name));
        endpoint = peer_find_endpoint(context, name);
        length = tpt_entry_address(peer->entry, name, address);
        if (endpoint < 0) {
            if (peer_demote(peer, name, "not open here"))
                continue;
            return;
        }
        peer->conn = tpf_conn_new(context->endpoints[endpoint]);
        if (peer->conn == NULL) {
            tpr_peer_end(peer, TP_ERR_NO_MEMORY, "out of memory");
            return;
        }
        tpr_conn_begin(context, peer->conn);
        peer->conn->peer = peer;
        peer->bye_sent = false;
        tpb_debug("%s: trying %s", peer->full_name, name);
        peer->trial_since = tpb_now();
        tpr_touch(context);
        if (peer->conn->backend->connect(peer->conn, address, length, &error)
            == TP_OK)
            return;
        tpr_bury(context, peer->conn);
        peer->conn = NULL;
        if (!peer_refused(peer, name, error.text))
            return;
    }
}

void tpr_peer_failed(struct tpr_peer *peer, const char *text)
{
    const char *name = peer->conn->backend->name;

    tpr_bury(peer->context, peer->conn);
    peer->conn = NULL;
    peer->links = NULL;
    if (peer_refused(peer, name, text))
        tpr_peer_next(peer);
}

static void peer_carried(struct tpr_peer *peer)
{
    const struct tpf_backend *backend = peer->conn->backend;

    if (backend->carrier != NULL)
        atomic_store(&peer->carrier, backend->carrier(peer->conn));
    atomic_store(&peer->transport, backend->name);
}

void tpr_peer_connected(struct tpr_peer *peer)
{
    peer->state = TPR_PEER_CONNECTED;
    tpr_tx_brief(peer);
    tpr_hello_drop_spare(peer);
    tpr_peer_tried(peer, TPT_MINE, peer->conn->backend->name, NULL);
    tpr_peer_tried(peer, TPT_YOURS, peer->conn->backend->name, NULL);
    pthread_mutex_lock(&peer->context->table_lock);
    tpt_entry_forget_addresses(peer->entry);
    pthread_mutex_unlock(&peer->context->table_lock);
    peer_carried(peer);
    peer_timer_stop(peer);
    tpb_debug("%s: connected over %s", peer->full_name,
              peer->conn->backend->name);
    if (peer->context->explain)
        tpr_explain_print(peer);
    if (peer->guest != NULL)
        tpr_guest_connected(peer);
    peer_each_pipe(peer, tpr_record_transport);
    peer_each_pipe(peer, tpr_tx_pump);
}

/* ---- the end ------------------------------------------------------------ */

static void peer_end_pipe(tp_pipe *pipe)
{
    struct tpr_peer *peer = pipe->peer;

    if (pipe->closed) {
        tpr_tx_end(pipe, TP_ERR_CLOSED);   /* what the peer still had */
        return;
    }
    tpr_pipe_fail(pipe, peer->end_text);
    tpr_tx_end(pipe, peer->end);
    tpr_rx_end(pipe, peer->end);
}

static void peer_drop_pipe(tp_pipe *pipe)
{
    if (!pipe->closed)
        tpr_rx_drop(pipe, TP_ERR_CLOSED);
    if (pipe->lent > 0)
        tpr_borrow_recall(pipe);
    tpr_pull_tell_all(pipe, true);
}

void tpr_peer_stop_reading(struct tpr_peer *peer)
{
    peer_each_pipe(peer, peer_drop_pipe);
}

void tpr_peer_stop_writing(struct tpr_peer *peer)
{
    peer_each_pipe(peer, peer_mute_pipe);
}

void tpr_peer_use(tp_pipe *pipe, bool writes)
{
    struct tpr_peer *peer = pipe->peer;

    if (TPB_LIKELY(peer->state == TPR_PEER_CONNECTED))
        return;
    if (peer->state == TPR_PEER_NEW || peer->state == TPR_PEER_CARD)
        tpr_peer_contact(peer, writes);
    else if (peer->state == TPR_PEER_ENDED
             && (pipe->tx_end == TP_OK || pipe->rx_end == TP_OK))
        peer_end_pipe(pipe);
}

void tpr_peer_end(struct tpr_peer *peer, tp_status status, const char *text)
{
    tp_context *context = peer->context;
    char *copy;

    if (peer->state == TPR_PEER_ENDED)
        return;
    tpb_info("%s: %s: %s", atomic_load(&peer->name), tp_strerror(status),
             text);
    copy = tpb_copy_string(text);
    pthread_mutex_lock(&context->table_lock);
    peer->end_text = copy;
    pthread_mutex_unlock(&context->table_lock);
    peer->state = TPR_PEER_ENDED;
    tpr_tx_brief(peer);
    peer->end = status;
    peer_timer_stop(peer);
    if (peer->conn != NULL)
        tpr_bury(context, peer->conn);
    peer->conn = NULL;
    tpr_hello_drop_spare(peer);
    peer_each_pipe(peer, peer_end_pipe);
    peer->links = NULL;
    if (peer->guest != NULL)
        tpr_guest_ended(peer);
    tpr_touch(context);
}

static void peer_too_late(struct tpr_peer *peer)
{
    struct tpb_text text = { 0 };

    if (peer->state == TPR_PEER_CARD) {
        tpr_peer_end(peer, TP_ERR_UNREACHABLE,
                     "its card did not come in time: either it has not"
                     " called tp_init, or it has left, and the launcher keeps"
                     " nothing of ranks that did (TP_CONNECT_TIMEOUT sets the"
                     " limit)");
        return;
    }
    if (peer->conn != NULL && peer->conn->backend->trying != NULL) {
        tpb_text_add(&text, "%s tried:", peer->conn->backend->name);
        peer->conn->backend->trying(peer->conn, &text);
        tpb_text_add(&text, " ");
    }
    tpb_text_add(&text, "the connection was not made in time"
                 " (TP_CONNECT_TIMEOUT sets the limit)");
    tpr_peer_end(peer, TP_ERR_UNREACHABLE,
                 text.failed ? "no connection in time" : text.text);
    tpb_text_fini(&text);
}

/* So much of `away` is not to count: nobody drove, as the program computed, or
 * this process was stopped, and perhaps all of the job.  Nothing could come
 * meanwhile, however early it was sent. */
static uint64_t peer_excess(const tp_context *context, uint64_t away)
{
    int64_t limit = context->settings.number[TPB_SET_CONNECT_TIMEOUT]
                    / PEER_AWAY_SHARE;
    uint64_t counts;

    if (limit < 0 || limit > PEER_AWAY_MS)
        limit = PEER_AWAY_MS;
    if (limit < 2 * PEER_TIMER_MS)     /* who is parked looks so seldom */
        limit = 2 * PEER_TIMER_MS;
    counts = (uint64_t)limit * UINT64_C(1000000);
    return away > counts ? away - counts : 0;
}

static void peer_put_off(uint64_t *deadline, uint64_t excess)
{
    if (*deadline != 0 && *deadline != UINT64_MAX)
        *deadline += excess;
}

static void peer_excuse(tp_context *context, uint64_t excess)
{
    if (excess == 0)
        return;
    TPB_LIST_EACH(node, &context->strangers)
        peer_put_off(&TPB_CONTAINER(node, struct tpr_stranger, link)->deadline,
                     excess);
    TPB_LIST_EACH(node, &context->contacts) {
        struct tpr_peer *peer = TPB_CONTAINER(node, struct tpr_peer,
                                              contact_link);

        peer_put_off(&peer->deadline, excess);
        peer_put_off(&peer->await, excess);
    }
}

void tpr_peer_timers(tp_context *context, uint64_t now)
{
    uint64_t begin = context->looked, after, pause;

    peer_excuse(context, peer_excess(context, begin - now));
    if (begin < context->timers_due)
        return;
    if (context->bootstrap->ops->poll != NULL)
        context->bootstrap->ops->poll(context->bootstrap);
    TPB_LIST_EACH(node, &context->strangers) {
        struct tpr_stranger *stranger = TPB_CONTAINER(node,
                                                      struct tpr_stranger,
                                                      link);

        if (now < stranger->deadline)
            continue;
        tpb_info("a connection that did not greet is closed");
        tpr_bury(context, stranger->conn);
        tpb_list_unlink(node);
        tpb_free(stranger);
    }
    TPB_LIST_EACH(node, &context->contacts) {
        struct tpr_peer *peer = TPB_CONTAINER(node, struct tpr_peer,
                                              contact_link);

        if (tpr_absent_timer(peer, now))
            continue;
        if (peer_has_grace(peer)
            && tpb_now() >= peer->contact_at)  /* `now` may be long ago */
            peer_fetch(peer);
        if (now < peer->deadline)
            tpr_peer_hurry(peer, now);
        else if (peer->guest != NULL)
            tpr_guest_late(peer);
        else
            peer_too_late(peer);
    }
    /* A thousand that connect at a time have a thousand events. */
    after = tpb_now();
    pause = PEER_TIMER_SHARE * (after - begin);
    if (pause > PEER_TIMER_MS * UINT64_C(1000000))
        pause = PEER_TIMER_MS * UINT64_C(1000000);
    context->timers_due = after + pause;
}

int tpr_peer_timers_ms(const tp_context *context)
{
    if (tpb_list_empty(&context->contacts))
        return PEER_STRANGERS_MS;
    TPB_LIST_EACH(node, &context->contacts)
        if (peer_has_grace(TPB_CONTAINER(node, struct tpr_peer,
                                         contact_link)))
            return PEER_GRACE_MS;
    return PEER_TIMER_MS;
}

void tpr_peer_free(struct tpr_peer *peer)
{
    tp_pipe *pipe, *next;

    pipe = atomic_load(&peer->ready_made);
    if (pipe != NULL)
        tpr_pipe_fini(pipe);
    for (pipe = peer->pipes; pipe != NULL; pipe = next) {
        next = pipe->next;
        tpr_pipe_fini(pipe);
    }
    tpb_free(peer->numbered);
    tpr_guest_free(peer->guest);
    tpb_free((char *)(uintptr_t)peer->end_text);
    tpb_free(peer->death);
    tpt_entry_drop(peer->entry);
    tpb_free(peer);
}

/* ---- the card comes from the bootstrap, on any thread -------------------- */

struct peer_card_task {
    struct tpr_task task;
    int rank;
    tp_status status;
    size_t length;
    char text[128];
    unsigned char blob[];
};

static void peer_card_run(tp_context *context, struct tpr_task *base)
{
    struct peer_card_task *task = TPB_CONTAINER(base, struct peer_card_task,
                                                task);
    struct tpr_peer *peer = tpr_peer_get(context, task->rank);
    struct tpb_error error = { "" };
    tp_status status = task->status;

    if (peer == NULL || peer->state != TPR_PEER_CARD)
        goto out;                  /* it came to us meanwhile */
    if (status == TP_OK) {
        status = tpr_peer_meet(peer, task->blob, task->length, &error);
        if (status != TP_OK)
            memcpy(task->text, error.text, sizeof(task->text) - 1);
    }
    if (status != TP_OK)
        tpr_peer_end(peer, status, task->text);
    else
        tpr_peer_next(peer);
out:
    tpb_free(task);
}

void tpr_card_arrived(tp_context *context, int rank, tp_status status,
                      const void *blob, size_t length, const char *text)
{
    struct peer_card_task *task = tpb_zalloc(sizeof(*task) + length);

    if (task == NULL)
        return;                    /* the deadline will tell */
    task->task.run = peer_card_run;
    task->rank = rank;
    task->status = status;
    task->length = length;
    snprintf(task->text, sizeof(task->text), "%s", text);
    if (length > 0)
        memcpy(task->blob, blob, length);
    tpr_submit(context, &task->task);
}
