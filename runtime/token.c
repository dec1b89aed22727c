/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The token.
 *
 * Whoever holds it may touch the context.  A call takes it if it is free,
 * works, and gives it back; if it is taken the call leaves a task and goes its
 * way.  The holder runs the tasks before it lets go.
 *
 * While the backends are armed, see progress.c, a call that leaves something to
 * do rings context->wake.
 */
#include "config.h"

#include "runtime/base/io.h"
#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/futex.h"

static inline bool token_take(tp_context *context)
{
    /* Pairs with the exchange in tpr_give_token().  Release, too: whoever finds
     * it taken may have left a task just before, and whoever gives it back next
     * reads what this has written, and so sees the task. */
    if (atomic_exchange_explicit(&context->token, 1, memory_order_acq_rel))
        return false;
    atomic_store_explicit(&context->holder, TPR_ME, memory_order_relaxed);
    context->depth = 1;
    return true;
}

/* Full barrier: a task is either seen after it or its submitter sees the token
 * free. */
void tpr_give_token(tp_context *context)
{
    context->depth = 0;
    atomic_store_explicit(&context->holder, NULL, memory_order_relaxed);
    atomic_exchange(&context->token, 0);
}

void tpr_run_tasks_now(tp_context *context)
{
    struct tpr_task *newest, *oldest = NULL;

    newest = atomic_exchange(&context->tasks, NULL);
    while (newest != NULL) {
        struct tpr_task *next = newest->next;

        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest != NULL) {
        struct tpr_task *task = oldest;

        oldest = task->next;
        task->run(context, task);
    }
}

bool tpr_enter_token(tp_context *context)
{
    if (!token_take(context))
        return false;
    /* What this thread left when the token was taken comes first. */
    tpr_run_tasks(context);
    return true;
}

void tpr_next_turn(tp_context *context)
{
    if ((atomic_load(&context->sleepers) & ~TPR_POLLED) == 0)
        return;
    atomic_fetch_add(&context->turn, 1);
    tpr_futex_wake(&context->turn);
}

/* What ended since the last time has been told by tpr_wake_sleepers(), but
 * without a fence: a caller that was just about to sleep may have missed it,
 * and looks again later (drive_sleep()).  For those who go on holding the
 * token, when they have nothing else to do. */
void tpr_tell_sleepers(tp_context *context)
{
    if (!context->news)
        return;
    context->news = false;
    /* Pairs with drive_sleep(): we see the sleeper, or he sees the news. */
    atomic_thread_fence(memory_order_seq_cst);
    tpr_wake_sleepers(context);
}

void tpr_tell(tp_context *context)
{
    tpr_next_turn(context);
    if ((atomic_load(&context->sleepers) & TPR_POLLED) != 0)
        tpr_poller_ring(context);
}

/* While somebody may sleep in epoll: does what we leave behind concern him?
 * If the backends are not armed any more it does: nobody else wakes him. */
static void token_ring(tp_context *context)
{
    bool hurries = context->armed
                   && (context->dirty || !tpb_list_empty(&context->env.ready)
                       || context->copying > 0 || context->env.helping > 0);
    bool others = atomic_load(&context->caller_parked) != 0
                  || atomic_load(&context->fd_used);

    if (context->rung
        || (context->armed ? !hurries && tpb_list_empty(&context->done)
            : !others && atomic_load(&context->thread.state) == TPR_THREAD_UP)
        || (!others && tpr_thread_comes(context, hurries)))
        return;
    context->rung = true;
    tpb_eventfd_ring(context->wake.fd);
}

void tpr_leave_token(tp_context *context)
{
    do {
        tpr_run_tasks(context);
        if (TPB_UNLIKELY(!tpb_list_empty(&context->late)))
            tpr_late_look(context, false);
        token_ring(context);
        tpr_give_token(context);
        tpr_wake_sleepers(context);
    } while (atomic_load(&context->tasks) != NULL && token_take(context));
}

void tpr_submit(tp_context *context, struct tpr_task *task)
{
    struct tpr_task *head = atomic_load(&context->tasks);

    do
        task->next = head;
    while (!atomic_compare_exchange_weak(&context->tasks, &head, task));
    if (!tpr_holds(context) && token_take(context))
        tpr_leave(context);
}

void tpr_touch(tp_context *context)
{
    context->dirty = true;
}
