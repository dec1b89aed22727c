/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Peers to which no way leads.  Such a one may have left by tp_finalize(),
 * which its bootstrap knows; or have died; or the network may let only the
 * other side begin, and then it is asked to.  What is left is unreachable.
 */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"
#include "runtime/contract.h"
#include "runtime/core.h"

TPB_LOG_COMPONENT("peer");

enum {
    ABSENT_LOOK_MS = 500,          /* an awaited peer may leave, too */
    ABSENT_AWAIT_MS = 30000,       /* for a peer that we could not ask */
    ABSENT_ASK_MS = 1500,          /* until it is asked to try as well */
    ABSENT_AGAIN_MS = 4000,        /* ... and again, if it may not have heard */
    ABSENT_GUEST_MS = 2000,        /* between two looks at the process of one
                                      that was promised to be let in */
    ABSENT_MOURN_MS = 300          /* without a frame of who has died */
};

/* Has that process ended, or is it about to?  A killed one closes its sockets
 * before its parent can know, and exists until the parent has asked.  The
 * fields are those of proc(5). */
static bool absent_process_ended(uint32_t pid)
{
    enum { EXITING = 4 };          /* PF_EXITING in the kernel's sched.h */
    char path[32], *text, *after, state = '?';
    unsigned flags = 0;
    bool ended;

    snprintf(path, sizeof(path), "/proc/%u/stat", pid);
    text = tpb_read_file(path, NULL);
    after = text != NULL ? strrchr(text, ')') : NULL;
    ended = after != NULL
            && sscanf(after + 1, " %c %*d %*d %*d %*d %*d %u", &state, &flags)
               == 2
            && (state == 'Z' || state == 'X' || (flags & EXITING) != 0);
    tpb_free(text);
    /* Last, since it may have been asked for while we looked. */
    return ended || (kill((pid_t)pid, 0) < 0 && errno == ESRCH);
}

bool tpr_peer_is_dead(const struct tpr_peer *peer)
{
    const struct tpt_host *mine = &peer->context->card.host;
    const struct tpt_host *theirs;

    if (peer->entry == NULL)
        return false;
    theirs = tpt_entry_host(peer->entry);
    return memcmp(theirs->boot_id, mine->boot_id, 16) == 0
           && theirs->pid_namespace == mine->pid_namespace
           && absent_process_ended(tpt_entry_pid(peer->entry));
}

/* Was a way over the network tried, and led nowhere?  Then the other side may
 * still find one: firewalls and address translation look at who begins. */
static bool absent_may_come(const struct tpr_peer *peer)
{
    const struct tpt_plan *plan = tpr_peer_plan(peer);

    for (uint32_t i = 0; i < plan->count; i++)
        if (plan->candidates[i].reason == TPT_REASON_TRIAL_FAILED
            && plan->candidates[i].reach == TPT_REACH_NETWORK)
            return true;
    return false;
}

void tpr_peer_listen(tp_context *context)
{
    struct tpr_bootstrap *bootstrap = context->bootstrap;

    context->listens = true;
    if (bootstrap->ops->listen != NULL)
        bootstrap->ops->listen(bootstrap);
}

/* Who asks wants to hear the answer. */
static bool absent_ask(struct tpr_peer *peer, bool gave_up)
{
    struct tpr_bootstrap *bootstrap = peer->context->bootstrap;

    if (!peer->asked)
        tpr_peer_listen(peer->context);
    peer->asked = true;
    peer->asked_at = tpb_now();
    return bootstrap->ops->ask != NULL
           && bootstrap->ops->ask(bootstrap, peer->rank, gave_up);
}

/* Can it only come by itself? */
static bool absent_is_mute(const struct tpr_peer *peer)
{
    struct tpr_bootstrap *bootstrap = peer->context->bootstrap;

    return bootstrap->ops->mute != NULL && bootstrap->ops->mute(bootstrap);
}

/* It stands in the list that tpr_absent_timer() is called for. */
static void absent_watch(struct tpr_peer *peer)
{
    if (tpb_list_empty(&peer->contact_link)) {
        tpr_timers_begin(peer->context);
        peer->deadline = UINT64_MAX;   /* without a limit, but watched */
        tpb_list_append(&peer->context->contacts, &peer->contact_link);
    }
    tpr_touch(peer->context);
}

/* No way leads to it.  Asks it to come and waits for that; false if that is of
 * no use either. */
static bool absent_await(struct tpr_peer *peer)
{
    bool told;

    if (peer->state == TPR_PEER_AWAITED || peer->conn != NULL
        || peer->guest != NULL || peer->entry == NULL
        || !absent_may_come(peer))
        return false;
    told = absent_ask(peer, true);
    if (peer->gave_up)
        return false;
    tpb_info("%s: no way leads to it; it %s", peer->full_name,
             told ? "is asked to come to us" : "may come to us");
    peer->state = TPR_PEER_AWAITED;
    peer->looked_at = tpb_now();
    absent_watch(peer);
    peer->await = told ? 0 : tpb_now() + ABSENT_AWAIT_MS * UINT64_C(1000000);
    return true;
}

/* ---- has it left? ------------------------------------------------------- */

/* Asks the bootstrap; the answer comes to absent_answered_run(), if it does so
 * in these milliseconds. */
static unsigned absent_look(const struct tpr_peer *peer)
{
    struct tpr_bootstrap *bootstrap = peer->context->bootstrap;

    return peer->guest == NULL && bootstrap->ops->left != NULL
           ? bootstrap->ops->left(bootstrap, peer->rank) : 0;
}

/* Does the contract name a way for such a pair?  It cannot be had, then. */
static bool absent_by_contract(const struct tpr_peer *peer)
{
    const tp_context *context = peer->context;

    return tpt_require_speaks(context->settings.text[TPB_SET_REQUIRE],
                              tpr_peer_plan(peer)->locality);
}

void tpr_peer_unreachable(struct tpr_peer *peer)
{
    struct tpb_text text = { 0 };

    tpb_text_add(&text, "no backend reaches %s: ", peer->full_name);
    tpr_explain_refusal(peer, &text);
    if (peer->state == TPR_PEER_AWAITED && !peer->gave_up
        && absent_is_mute(peer))
        tpb_text_add(&text, "; nor did it connect to us, and this launcher "
                     "cannot ask it to (it would, if it opened a pipe to rank "
                     "%d)", peer->context->rank);
    else if (peer->state == TPR_PEER_AWAITED || peer->gave_up)
        tpb_text_add(&text, "; nor did it find a way to us");
    if (!text.failed && !tpr_guest_comes(peer) && absent_by_contract(peer))
        tpr_contract_broken(peer, text.text);
    /* They have met: the peer would see no more than the conn's end. */
    if (!text.failed && peer->conn != NULL && peer->links != NULL
        && (peer->guest == NULL || peer->state == TPR_PEER_CONNECTED))
        tpr_hello_part(peer, text.text);
    tpr_peer_end(peer, TP_ERR_UNREACHABLE,
                 text.failed ? "no backend reaches it" : text.text);
    tpb_text_fini(&text);
}

/* It has not left, as far as anybody knows. */
static void absent_settle(struct tpr_peer *peer)
{
    char text[sizeof(peer->full_name) + 32];

    if (peer->death != NULL) {
        tpr_peer_end(peer, TP_ERR_PEER_FAILED, peer->death);
    } else if (tpr_peer_is_dead(peer)) {
        snprintf(text, sizeof(text), "%s is gone: its process ended",
                 peer->full_name);
        tpr_peer_end(peer, TP_ERR_PEER_FAILED, text);
    } else if (!absent_await(peer)) {
        tpr_peer_unreachable(peer);
    }
}

/* Nobody met it, so what it may have written and lost was for any of us: then
 * this is not the end of a stream that has all. */
static void absent_left(struct tpr_peer *peer, enum tpr_left left)
{
    char text[sizeof(peer->full_name) + 96];
    bool losing = left == TPR_LEFT_LOSING;

    snprintf(text, sizeof(text), "%s has left the job (tp_finalize)%s",
             atomic_load(&peer->name), losing ? " before all that it wrote was "
             "taken (TP_FINALIZE_TIMEOUT)" : "");
    tpr_peer_end(peer, losing ? TP_ERR_PEER_FAILED : TP_ERR_PEER_CLOSED, text);
}

/* Only once nothing else helps: asking costs a message to the launcher. */
static void absent_doubt(struct tpr_peer *peer)
{
    unsigned limit = absent_look(peer);

    if (limit == 0) {
        absent_settle(peer);
        return;
    }
    if (peer->conn != NULL)
        tpr_bury(peer->context, peer->conn);
    peer->conn = NULL;
    peer->links = NULL;
    peer->state = TPR_PEER_DOUBTED;
    peer->await = tpb_now() + limit * UINT64_C(1000000);
    absent_watch(peer);
}

void tpr_peer_give_up(struct tpr_peer *peer)
{
    /* While it was awaited, it was looked for often enough. */
    if (peer->state == TPR_PEER_AWAITED)
        absent_settle(peer);
    else if (peer->state != TPR_PEER_DOUBTED)
        absent_doubt(peer);
}

struct absent_task {
    struct tpr_task task;
    int rank;
    int answer;
    char text[128];
};

/* From any thread: `run` will find it with the token held. */
static void absent_submit(tp_context *context, int rank, int answer,
                          const char *text,
                          void (*run)(tp_context *, struct tpr_task *))
{
    struct absent_task *task = tpb_zalloc(sizeof(*task));

    if (task == NULL)
        return;                    /* whoever waits has a deadline */
    task->task.run = run;
    task->rank = rank;
    task->answer = answer;
    snprintf(task->text, sizeof(task->text), "%s", text);
    tpr_submit(context, &task->task);
}

static void absent_answered_run(tp_context *context, struct tpr_task *base)
{
    struct absent_task *task = TPB_CONTAINER(base, struct absent_task, task);
    struct tpr_peer *peer = tpr_peer_get(context, task->rank);

    if (peer == NULL) {
        /* out of memory: its deadline tells */
    } else if (peer->state == TPR_PEER_DOUBTED) {
        if (task->answer != TPR_LEFT_NOT)
            absent_left(peer, task->answer);
        else
            absent_settle(peer);
    } else if (task->answer != TPR_LEFT_NOT
               && (peer->state == TPR_PEER_AWAITED
                   || peer->state == TPR_PEER_CROSSED)) {
        absent_left(peer, task->answer);
    }
    tpb_free(task);
}

void tpr_rank_left(tp_context *context, int rank, enum tpr_left left)
{
    absent_submit(context, rank, left, "", absent_answered_run);
}

/* ---- the launcher tells of a death, on any thread ------------------------ */

/* Its connection is first to deliver what had arrived, and mostly tells of the
 * end itself; unless a child that it forked holds it. */
static void absent_mourn(struct tpr_peer *peer)
{
    peer->context->mourns = true;
    peer->looked_at = tpb_now();
    absent_watch(peer);
}

static void absent_mourned(struct tpr_peer *peer)
{
    if (peer->state == TPR_PEER_CONNECTED)
        tpr_peer_end(peer, TP_ERR_PEER_FAILED, peer->death);
    else
        absent_doubt(peer);        /* it may have left before it ended so */
}

void tpr_absent_sign(struct tpf_conn *conn)
{
    struct tpr_peer *peer = conn->peer;

    if (peer != NULL && peer->death != NULL)
        peer->looked_at = tpb_now();
}

static void absent_died(struct tpr_peer *peer, const char *text)
{
    peer->death = tpb_copy_string(text);
    /* Who was greeted may have answered, and written behind that. */
    if (peer->state == TPR_PEER_CONNECTED || peer->state == TPR_PEER_GREETED)
        absent_mourn(peer);
    else if (peer->state != TPR_PEER_DOUBTED
             && !tpb_list_empty(&peer->contact_link))
        absent_doubt(peer);        /* it may have left before it ended so */
}

static void absent_died_run(tp_context *context, struct tpr_task *base)
{
    struct absent_task *task = TPB_CONTAINER(base, struct absent_task, task);
    /* One that nobody asked for is left alone. */
    struct tpr_peer *peer = tpr_peer_find(context, task->rank);

    if (peer != NULL && peer->death == NULL && peer->state != TPR_PEER_NEW
        && peer->state != TPR_PEER_ENDED)
        absent_died(peer, task->text);
    tpb_free(task);
}

void tpr_rank_died(tp_context *context, int rank, const char *how)
{
    char text[128];

    snprintf(text, sizeof(text),
             "rank %d ended, as the launcher says (%s)", rank, how);
    absent_submit(context, rank, false, text, absent_died_run);
}

/* ---- timers ------------------------------------------------------------- */

static void absent_awaited(struct tpr_peer *peer, uint64_t now)
{
    if (now >= peer->deadline || (peer->await > 0 && now >= peer->await)) {
        tpr_peer_give_up(peer);
        return;
    }
    if (now > peer->looked_at + ABSENT_LOOK_MS * UINT64_C(1000000)) {
        peer->looked_at = now;
        absent_look(peer);
    }
    if (peer->await > 0
        && now > peer->asked_at + ABSENT_AGAIN_MS * UINT64_C(1000000))
        absent_ask(peer, true);
}

/* It is to connect to us, and no conn tells of its end.  Of guests there may be
 * thousands, nobody waits for them, and each look is a file of /proc. */
static bool absent_never_comes(struct tpr_peer *peer, uint64_t now)
{
    if (peer->state != TPR_PEER_CROSSED && peer->state != TPR_PEER_AWAITED)
        return false;
    if (peer->guest != NULL) {
        if (now < peer->looked_at + ABSENT_GUEST_MS * UINT64_C(1000000))
            return false;
        peer->looked_at = now;
    }
    return tpr_peer_is_dead(peer);
}

bool tpr_absent_timer(struct tpr_peer *peer, uint64_t now)
{
    if (absent_never_comes(peer, now)) {
        absent_doubt(peer);
    } else if (peer->state == TPR_PEER_DOUBTED) {
        if (now > peer->await)
            absent_settle(peer);
    } else if (peer->state == TPR_PEER_AWAITED) {
        absent_awaited(peer, now);
    } else if (peer->conn != NULL && peer->death != NULL) {
        if (now > peer->looked_at + ABSENT_MOURN_MS * UINT64_C(1000000))
            absent_mourned(peer);
    } else {
        return false;
    }
    return true;
}

/* It may be that the network lets only the other side begin. */
void tpr_peer_hurry(struct tpr_peer *peer, uint64_t now)
{
    if (peer->state == TPR_PEER_CONNECTING && !peer->asked
        && peer->guest == NULL
        && peer->conn->backend->reach == TPT_REACH_NETWORK
        && now > peer->trial_since + ABSENT_ASK_MS * UINT64_C(1000000))
        absent_ask(peer, false);
}

/* ---- a peer cannot reach us, and says so, on any thread ------------------ */

static void absent_asks_run(tp_context *context, struct tpr_task *base)
{
    struct absent_task *task = TPB_CONTAINER(base, struct absent_task, task);
    struct tpr_peer *peer = tpr_peer_get(context, task->rank);

    if (peer != NULL) {
        bool over = context->closing || peer->state == TPR_PEER_ENDED;

        peer->gave_up |= task->answer != 0;
        if (over && !peer->asked)
            absent_ask(peer, true);  /* it need not wait for us */
        else if (!over && (peer->state == TPR_PEER_NEW
                           || peer->state == TPR_PEER_CARD))
            tpr_peer_contact(peer, true);
        else if (peer->state == TPR_PEER_AWAITED && peer->gave_up)
            tpr_peer_give_up(peer);    /* neither reaches the other */
    }
    if (!context->closing)
        tpr_peer_listen(context);
    tpb_free(task);
}

void tpr_peer_asks(tp_context *context, int rank, bool gave_up)
{
    if (rank < 0 || rank >= context->size || rank == context->rank)
        return;
    absent_submit(context, rank, gave_up, "", absent_asks_run);
}
