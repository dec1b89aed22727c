/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The desk itself: sockets, the clock, and the visitors of our listeners.
 * Whoever does not prove itself costs a socket and some KiB for some seconds;
 * there are never more than DESK_VISITORS of them.  When more come, one that
 * has had its DESK_GRACE_MS, or DESK_SILENT_MS, is sent away for each: who is
 * honest is done in milliseconds, and a thousand of these that come at once
 * have their turns.
 */
#include "config.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"
#include "runtime/desk.h"
#include "runtime/stream.h"

TPB_LOG_COMPONENT("desk");

const char tpr_desk_magic[4] = { 't', 'p', 'l', 'd' };

/* ---- lines --------------------------------------------------------------- */

bool tpr_line_expect(struct tpr_line *line, size_t need)
{
    unsigned char *bytes = tpb_resize(line->bytes, need);

    if (bytes == NULL)
        return false;
    line->bytes = bytes;
    line->need = need;
    return true;
}

enum tpr_heard tpr_line_hear(struct tpr_line *line)
{
    while (line->got < line->need) {
        ssize_t got = recv(line->watch.fd, line->bytes + line->got,
                           line->need - line->got, 0);

        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK
                        || errno == EINTR))
            return TPR_HEARD_PART;
        if (got <= 0)
            return TPR_HEARD_END;
        line->got += (size_t)got;
    }
    return TPR_HEARD_ALL;
}

/* What is said here fits into any socket's buffer. */
bool tpr_line_say(struct tpr_line *line, const void *data, size_t length)
{
    return send(line->watch.fd, data, length, MSG_NOSIGNAL)
           == (ssize_t)length;
}

void tpr_line_close(tp_context *context, struct tpr_line *line)
{
    if (line->watch.fd >= 0)
        tpf_watch_remove(&context->env, &line->watch);
    tpb_close(&line->watch.fd);
    tpb_free(line->bytes);
    line->bytes = NULL;
    line->got = line->need = 0;
}

/* ---- visitors ------------------------------------------------------------ */

enum visitor_stage { VISITOR_NOTE, VISITOR_PROOF, VISITOR_CARD, VISITOR_GONE };

struct tpr_visitor {
    struct tpr_corpse corpse;      /* link: in desk->visitors until then */
    struct tpr_line line;
    tp_listener *listener;
    enum visitor_stage stage;
    uint64_t since, deadline;
    struct desk_nonces nonces;
};

static void visitor_end(struct tpr_visitor *visitor)
{
    tp_context *context = visitor->listener->context;

    if (visitor->stage == VISITOR_GONE)
        return;
    visitor->stage = VISITOR_GONE;
    context->desk->visitor_count--;
    tpr_line_close(context, &visitor->line);
    tpr_desk_bury(context->desk, &visitor->corpse);
}

/* Says no; how it ends is the same for all. */
static void visitor_refuse(struct tpr_visitor *visitor, tp_status status,
                           const char *why)
{
    struct desk_proof no = { .status = (uint32_t)status };

    tpb_info("a visitor is refused: %s", why);
    memcpy(no.magic, tpr_desk_magic, sizeof(no.magic));
    tpr_line_say(&visitor->line, &no, sizeof(no));
    visitor_end(visitor);
}

static void visitor_note(struct tpr_visitor *visitor)
{
    struct desk_note note, answer = { .version = DESK_VERSION };

    memcpy(&note, visitor->line.bytes, sizeof(note));
    if (memcmp(note.magic, tpr_desk_magic, sizeof(note.magic)) != 0) {
        tpb_info("a visitor that is not tp's was sent away");
        visitor_end(visitor);
        return;
    }
    memcpy(visitor->nonces.visitor, note.nonce, DESK_NONCE);
    tpb_random(visitor->nonces.host, DESK_NONCE);
    memcpy(answer.magic, tpr_desk_magic, sizeof(answer.magic));
    memcpy(answer.nonce, visitor->nonces.host, DESK_NONCE);
    if (note.version != DESK_VERSION)
        answer.status = TP_ERR_PROTOCOL;
    visitor->line.got = 0;
    visitor->stage = VISITOR_PROOF;
    if (!tpr_line_say(&visitor->line, &answer, sizeof(answer))
        || answer.status != TP_OK
        || !tpr_line_expect(&visitor->line, sizeof(struct desk_proof)))
        visitor_end(visitor);
}

static void visitor_proof(struct tpr_visitor *visitor)
{
    struct desk_proof proof;

    memcpy(&proof, visitor->line.bytes, sizeof(proof));
    visitor->stage = VISITOR_CARD;
    if (memcmp(proof.magic, tpr_desk_magic, sizeof(proof.magic)) != 0
        || proof.card_length == 0 || proof.card_length > TPT_CARD_BYTES)
        visitor_refuse(visitor, TP_ERR_PROTOCOL, "its proof is garbage");
    else if (!tpr_line_expect(&visitor->line,
                              sizeof(proof) + proof.card_length))
        visitor_end(visitor);
}

/* Our proof, card and the ticket of the guest. */
static bool visitor_welcome(struct tpr_visitor *visitor,
                            const uint8_t mac[TPR_MAC],
                            struct tpr_guest *guest)
{
    tp_listener *listener = visitor->listener;
    struct desk_proof proof = { .status = TP_OK };
    unsigned char *answer = tpb_zalloc(sizeof(proof) + TPT_CARD_BYTES);
    uint8_t ticket[TPR_MAC];
    size_t length = 0;
    bool said = false;

    if (answer != NULL
        && tpr_guest_card(listener->context, answer + sizeof(proof), &length)
           == TP_OK) {
        const struct tpr_piece pieces[] = {
            { &visitor->nonces, sizeof(visitor->nonces) }, { mac, TPR_MAC },
            { answer + sizeof(proof), length } };

        memcpy(proof.magic, tpr_desk_magic, sizeof(proof.magic));
        proof.card_length = (uint32_t)length;
        tpr_secret_mac(listener->secret, "host", pieces, 3, proof.mac);
        tpr_secret_mac(listener->secret, "ticket", pieces, 2, ticket);
        memcpy(guest->ticket, ticket, sizeof(guest->ticket));
        memcpy(answer, &proof, sizeof(proof));
        said = tpr_line_say(&visitor->line, answer, sizeof(proof) + length);
    }
    tpb_free(answer);
    return said;
}

/* Visitors may come again. */
static void desk_resume(struct tpr_desk *desk)
{
    desk->full = false;
    pthread_mutex_lock(&desk->context->table_lock);
    TPB_LIST_EACH(node, &desk->listeners)
        tpr_listener_pause(TPB_CONTAINER(node, struct tp_listener, link),
                           false);
    pthread_mutex_unlock(&desk->context->table_lock);
}

/* No backend leads to it, and why. */
static tp_status visitor_unreachable(const struct tpr_peer *peer,
                                     struct tpb_error *error)
{
    struct tpb_text text = { 0 };

    tpr_explain_refusal(peer, &text);
    tpb_fail(error, TP_ERR_UNREACHABLE, "no backend leads to %s%s%s",
             peer->full_name, text.failed ? "" : ": ",
             text.failed ? "" : text.text);
    tpb_text_fini(&text);
    return TP_ERR_UNREACHABLE;
}

/* It has proven itself: it may connect. */
static void visitor_promise(struct tpr_visitor *visitor,
                            const struct desk_proof *proof)
{
    tp_listener *listener = visitor->listener;
    tp_context *context = listener->context;
    struct tpb_error error = { "out of memory" };
    struct tpr_guest *guest = tpr_guest_new(context, "a visitor");
    tp_status status = TP_ERR_NO_MEMORY;

    if (guest != NULL) {
        guest->listener = listener;
        listener->guests++;
        tpb_list_append(&context->desk->promised, &guest->link);
        tpr_guest_pipe(guest)->unseen = true;
        guest->peer->state = TPR_PEER_CROSSED;
        guest->peer->looked_at = tpb_now();
        tpr_peer_timer(guest->peer);
        status = tpr_peer_meet(guest->peer,
                               visitor->line.bytes + sizeof(*proof),
                               proof->card_length, &error);
    }
    if (status == TP_OK && tpt_plan_best(tpr_peer_plan(guest->peer)) < 0)
        status = visitor_unreachable(guest->peer, &error);
    if (status == TP_OK && !visitor_welcome(visitor, proof->mac, guest))
        status = tpb_fail(&error, TP_ERR_PEER_FAILED, "it hung up");
    if (status == TP_OK) {
        visitor_end(visitor);
        return;
    }
    if (guest != NULL)
        tpr_peer_end(guest->peer, status, error.text);
    visitor_refuse(visitor, status, error.text);
}

/* So many have not come that were promised to be let in: some cannot, as those
 * behind a firewall, and try again and again.  The first of them waits no more,
 * so that others are not kept out. */
static void listener_unpromise(tp_listener *listener)
{
    TPB_LIST_EACH(node, &listener->context->desk->promised) {
        struct tpr_guest *guest = TPB_CONTAINER(node, struct tpr_guest, link);

        if (guest->listener != listener || guest->peer->conn != NULL)
            continue;
        tpr_peer_end(guest->peer, TP_ERR_UNREACHABLE,
                     "it did not come, and too many others may");
        return;
    }
}

static void visitor_card(struct tpr_visitor *visitor)
{
    tp_listener *listener = visitor->listener;
    struct desk_proof proof;
    struct tpr_piece pieces[2] = { { &visitor->nonces,
                                     sizeof(visitor->nonces) } };
    uint8_t mac[TPR_MAC];

    memcpy(&proof, visitor->line.bytes, sizeof(proof));
    pieces[1] = (struct tpr_piece){ visitor->line.bytes + sizeof(proof),
                                    proof.card_length };
    tpr_secret_mac(listener->secret, "guest", pieces, 2, mac);
    if (!tpb_equal_secret(mac, proof.mac, TPR_MAC))
        visitor_refuse(visitor, TP_ERR_DENIED, "it does not know the secret");
    else if (listener->waiting >= DESK_GUESTS)
        visitor_refuse(visitor, TP_ERR_NO_MEMORY, "too many wait for"
                       " tp_accept()");
    else {
        if (listener->guests >= DESK_PROMISED)
            listener_unpromise(listener);
        visitor_promise(visitor, &proof);
    }
}

static void visitor_ready(struct tpf_watch *watch, uint32_t events)
{
    struct tpr_visitor *visitor = TPB_CONTAINER(watch, struct tpr_visitor,
                                                line.watch);
    struct tpr_desk *desk = visitor->listener->context->desk;

    (void)events;
    while (visitor->stage != VISITOR_GONE) {
        enum tpr_heard heard = tpr_line_hear(&visitor->line);

        if (heard == TPR_HEARD_PART)
            return;
        if (heard == TPR_HEARD_END)
            visitor_end(visitor);
        else if (visitor->stage == VISITOR_NOTE)
            visitor_note(visitor);
        else if (visitor->stage == VISITOR_PROOF)
            visitor_proof(visitor);
        else if (visitor->stage == VISITOR_CARD)
            visitor_card(visitor);
    }
    if (desk->full && desk->visitor_count <= DESK_VISITORS / 2)
        desk_resume(desk);
}

/* Of too many, the first that has had its time; NULL: there are not so many, or
 * none has. */
static struct tpr_visitor *desk_slow(struct tpr_desk *desk)
{
    uint64_t now;

    if (desk->visitor_count < DESK_VISITORS)
        return NULL;
    now = tpb_now();
    TPB_LIST_EACH(node, &desk->visitors) {
        struct tpr_visitor *visitor = TPB_CONTAINER(node, struct tpr_visitor,
                                                    corpse.link);
        uint64_t grace = visitor->stage == VISITOR_NOTE ? DESK_SILENT_MS
                                                        : DESK_GRACE_MS;

        if (now >= visitor->since + grace * UINT64_C(1000000))
            return visitor;
    }
    return NULL;
}

bool tpr_visitors_full(struct tpr_desk *desk)
{
    desk->full = desk->visitor_count >= DESK_VISITORS
                 && desk_slow(desk) == NULL;
    return desk->full;
}

void tpr_visitor_new(tp_listener *listener, int fd)
{
    struct tpr_desk *desk = listener->context->desk;
    struct tpr_visitor *visitor = tpb_zalloc(sizeof(*visitor)), *slow;

    if (visitor == NULL) {
        close(fd);
        return;
    }
    slow = desk_slow(desk);
    if (slow != NULL)
        visitor_end(slow);
    visitor->listener = listener;
    visitor->line.watch = (struct tpf_watch){ .fd = fd,
                                              .ready = visitor_ready };
    visitor->since = tpb_now();
    visitor->deadline = visitor->since
                        + DESK_PATIENCE_MS * UINT64_C(1000000);
    tpb_list_init(&visitor->corpse.link);
    tpb_list_append(&desk->visitors, &visitor->corpse.link);
    desk->visitor_count++;
    tpr_desk_tick(desk);
    if (!tpr_line_expect(&visitor->line, sizeof(struct desk_note))
        || tpf_watch_add(&listener->context->env, &visitor->line.watch,
                         EPOLLIN) != 0)
        visitor_end(visitor);
}

void tpr_visitors_end(struct tpr_desk *desk, const tp_listener *listener)
{
    TPB_LIST_EACH(node, &desk->visitors) {
        struct tpr_visitor *visitor = TPB_CONTAINER(node, struct tpr_visitor,
                                                    corpse.link);

        if (visitor->listener == listener)
            visitor_end(visitor);
    }
}

void tpr_visitors_tick(struct tpr_desk *desk, uint64_t now)
{
    TPB_LIST_EACH(node, &desk->visitors) {
        struct tpr_visitor *visitor = TPB_CONTAINER(node, struct tpr_visitor,
                                                    corpse.link);

        if (now >= visitor->deadline) {
            tpb_info("a visitor that did not prove itself is sent away");
            visitor_end(visitor);
        }
    }
}

/* ---- the desk ------------------------------------------------------------ */

void tpr_desk_bury(struct tpr_desk *desk, struct tpr_corpse *corpse)
{
    tpb_list_unlink(&corpse->link);
    tpb_list_append(&desk->dead, &corpse->link);
    corpse->tick = desk->ticks;
    tpr_desk_tick(desk);
}

static void desk_clock(struct tpr_desk *desk, bool run)
{
    struct itimerspec when = { .it_value = { 0 } };

    if (run)
        when.it_value.tv_nsec = when.it_interval.tv_nsec
            = DESK_TICK_MS * 1000000;
    if (run != desk->ticking)
        timerfd_settime(desk->timer.fd, 0, &when, NULL);
    desk->ticking = run;
}

void tpr_desk_tick(struct tpr_desk *desk)
{
    desk_clock(desk, true);
    tpr_touch(desk->context);
}

/* Peers that nobody knows of, and cards that nobody needs. */
static void desk_sweep(struct tpr_desk *desk)
{
    tp_context *context = desk->context;
    struct tpb_list *node;

    if (!tpb_list_empty(&context->graveyard))
        return;                    /* a conn of theirs may still be there */
    while ((node = tpb_list_take(&desk->unborn)) != NULL) {
        tpr_guest_discard(TPB_CONTAINER(node, struct tpr_guest, link));
    }
    while ((node = tpb_list_take(&desk->spent)) != NULL) {
        struct tpr_peer *peer = TPB_CONTAINER(node, struct tpr_guest,
                                              link)->peer;

        pthread_mutex_lock(&context->table_lock);
        tpt_entry_drop(peer->entry);
        peer->entry = NULL;
        pthread_mutex_unlock(&context->table_lock);
        tpr_pipe_lean(atomic_load(&peer->ready_made));
        tpb_list_append(&desk->kept, &peer->guest->link);
        desk->kept_count++;
    }
}

/* Has the program closed so many others since that it does without the handle,
 * and so does the library? */
static bool desk_may_forget(const struct tpr_desk *desk,
                            struct tpr_guest *guest)
{
    return desk->closed - guest->closed >= DESK_KEPT
           && tpr_pipe_is_over(tpr_guest_pipe(guest));
}

/* The others get their turn again.  Returns whether more may go soon. */
static bool desk_forget(struct tpr_desk *desk)
{
    tp_context *context = desk->context;
    bool any = false;

    /* Inside a callback an outer caller may still be at one of them. */
    if (context->env.calls || !tpb_list_empty(&context->graveyard)
        || atomic_load(&context->tasks) != NULL)
        return desk->kept_count > DESK_KEPT;
    for (int i = 0; i < DESK_FREED && desk->kept_count > DESK_KEPT; i++) {
        struct tpr_guest *guest = TPB_CONTAINER(tpb_list_take(&desk->kept),
                                                struct tpr_guest, link);

        if (desk_may_forget(desk, guest)) {
            tpr_guest_discard(guest);
            desk->kept_count--;
            any = true;
        } else {
            tpb_list_append(&desk->kept, &guest->link);
        }
    }
    return any && desk->kept_count > DESK_KEPT;
}

/* The same of listeners: nothing that is under way for one of them may still be
 * left, neither an event of its sockets nor the end of an accept. */
static bool desk_forget_listeners(struct tpr_desk *desk)
{
    tp_context *context = desk->context;

    if (context->env.calls || atomic_load(&context->tasks) != NULL
        || !tpb_list_empty(&context->done))
        return desk->shut_count > DESK_KEPT;
    while (desk->shut_count > DESK_KEPT) {
        tp_listener *listener = TPB_CONTAINER(desk->shut.next,
                                              struct tp_listener, link);

        if (desk->ticks - listener->tick < 2)
            return true;
        pthread_mutex_lock(&context->table_lock);
        tpb_list_unlink(&listener->link);
        pthread_mutex_unlock(&context->table_lock);
        tpb_free(listener);
        desk->shut_count--;
    }
    return false;
}

static void desk_free_dead(struct tpr_desk *desk, bool all)
{
    TPB_LIST_EACH(node, &desk->dead) {
        struct tpr_corpse *corpse = TPB_CONTAINER(node, struct tpr_corpse,
                                                  link);

        if (!all && desk->ticks - corpse->tick < 2)
            continue;
        tpb_list_unlink(node);
        tpb_free(corpse);
    }
}

static void desk_ready(struct tpf_watch *watch, uint32_t events)
{
    struct tpr_desk *desk = TPB_CONTAINER(watch, struct tpr_desk, timer);
    uint64_t now = tpb_look(&desk->looked);
    bool more;

    (void)events;
    tpb_eventfd_drain(watch->fd);
    desk->ticks++;
    desk_free_dead(desk, false);
    desk_sweep(desk);
    more = desk_forget(desk);
    more |= desk_forget_listeners(desk);
    desk_resume(desk);
    tpr_visitors_tick(desk, now);
    tpr_visits_tick(desk, now);
    desk_clock(desk, more || !tpb_list_empty(&desk->visitors)
                     || !tpb_list_empty(&desk->visits)
                     || !tpb_list_empty(&desk->dead)
                     || !tpb_list_empty(&desk->unborn)
                     || !tpb_list_empty(&desk->spent));
}

static tp_status desk_new(tp_context *context, struct tpb_error *error)
{
    struct tpr_desk *desk = tpb_zalloc(sizeof(*desk));
    int code;

    if (desk == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    desk->context = context;
    tpb_list_init(&desk->listeners);
    tpb_list_init(&desk->shut);
    tpb_list_init(&desk->visitors);
    tpb_list_init(&desk->visits);
    tpb_list_init(&desk->promised);
    tpb_list_init(&desk->unborn);
    tpb_list_init(&desk->spent);
    tpb_list_init(&desk->kept);
    tpb_list_init(&desk->dead);
    desk->timer = (struct tpf_watch){
        .fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
        .ready = desk_ready };
    code = desk->timer.fd < 0 ? errno
           : tpf_watch_add(&context->env, &desk->timer, EPOLLIN);
    if (code == 0) {
        context->desk = desk;
        return TP_OK;
    }
    tpb_close(&desk->timer.fd);
    tpb_free(desk);
    return tpb_fail_errno(error, code, "a timer");
}

tp_status tpr_desk_open(tp_context *context, struct tpb_error *error)
{
    tp_status status = TP_OK;

    pthread_mutex_lock(&context->table_lock);
    if (context->desk == NULL)
        status = desk_new(context, error);
    pthread_mutex_unlock(&context->table_lock);
    return status;
}

void tpr_desk_close(tp_context *context)
{
    if (context->desk == NULL)
        return;
    TPB_LIST_EACH(node, &context->desk->listeners)
        tpr_listener_close(TPB_CONTAINER(node, struct tp_listener, link),
                           "tp_finalize");
}

/* Its peers have all ended. */
void tpr_desk_fini(tp_context *context)
{
    struct tpr_desk *desk = context->desk;
    struct tpb_list *node;

    if (desk == NULL)
        return;
    desk_sweep(desk);
    desk_free_dead(desk, true);
    while (tpb_list_take(&desk->kept) != NULL)
        continue;                  /* they are the context's, too */
    while ((node = tpb_list_take(&desk->listeners)) != NULL
           || (node = tpb_list_take(&desk->shut)) != NULL)
        tpb_free(TPB_CONTAINER(node, struct tp_listener, link));
    tpf_watch_remove(&context->env, &desk->timer);
    tpb_close(&desk->timer.fd);
    tpb_free(desk);
    context->desk = NULL;
}
