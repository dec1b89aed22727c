/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What programs with an event loop of their own sleep on: tp_fd().
 *
 * With TP_PROGRESS_MANUAL that is the context's epoll: callbacks run in calls
 * of the program, which looks at what they did before it sleeps.  Where the
 * context's thread runs them, too, the loop would sleep over that.  So there is
 * a bell beside epoll, rung by each callback that runs outside of tp_progress()
 * and heard by the next tp_progress().  With TP_PROGRESS_THREAD it is all that
 * there is to hear; and with TP_PROGRESS_AUTO while the thread is in the middle
 * of a callback, and epoll tells of what only it can see to.
 */
#include "config.h"

#include <errno.h>
#include <sys/epoll.h>

#include "runtime/base/io.h"
#include "runtime/core.h"

/* With the token, so that a callback either comes later, and rings, or has done
 * what the loop finds when it wakes up now. */
static void poller_begin(tp_context *context, struct tpr_task *task)
{
    (void)task;
    atomic_fetch_or(&context->sleepers, TPR_POLLED);
    tpr_poller_ring(context);
}

/* The descriptor, or -1 with errno; under table_lock. */
static int poller_open(tp_context *context)
{
    int bell = tpb_eventfd(), epoll;

    if (bell < 0 || context->mode == TP_PROGRESS_THREAD) {
        context->poller.bell = bell;
        return bell;
    }
    epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0
        || tpb_epoll_set(epoll, EPOLL_CTL_ADD, context->epoll, EPOLLIN) < 0
        || tpb_epoll_set(epoll, EPOLL_CTL_ADD, bell, EPOLLIN) < 0) {
        tpb_close(&epoll);
        tpb_close(&bell);
        return -1;
    }
    context->poller.bell = bell;
    return epoll;
}

int tp_fd(tp_context *context)
{
    struct tpr_poller *poller;
    bool first = false;
    int fd;

    if (context == NULL) {
        errno = EINVAL;
        return -1;
    }
    if (context->mode == TP_PROGRESS_MANUAL) {
        if (!atomic_exchange(&context->fd_used, true))
            tpb_eventfd_ring(context->wake.fd);    /* to call tp_progress() */
        return context->epoll;
    }
    poller = &context->poller;
    pthread_mutex_lock(&context->table_lock);
    if (poller->fd < 0) {
        poller->fd = poller_open(context);
        first = poller->fd >= 0;
    }
    fd = poller->fd;
    pthread_mutex_unlock(&context->table_lock);
    if (first) {
        atomic_store(&context->fd_used, context->mode == TP_PROGRESS_AUTO);
        poller->begin.run = poller_begin;
        tpr_submit(context, &poller->begin);
    }
    return fd;
}

void tpr_poller_ring(tp_context *context)
{
    if (!atomic_exchange(&context->poller.rung, true))
        tpb_eventfd_ring(context->poller.bell);
}

/* The context's epoll counts, or not. */
static void poller_mute(tp_context *context, bool mute)
{
    struct tpr_poller *poller = &context->poller;

    if (atomic_load(&poller->mute) == mute || poller->fd == poller->bell)
        return;
    pthread_mutex_lock(&context->table_lock);
    atomic_store(&poller->mute, mute);
    tpb_epoll_set(poller->fd, EPOLL_CTL_MOD, context->epoll,
                  mute ? 0 : EPOLLIN);
    pthread_mutex_unlock(&context->table_lock);
}

bool tpr_poller_begin(tp_context *context)
{
    poller_mute(context, false);
    return atomic_exchange(&context->poller.rung, true);
}

/* In this order: who finds it rung in between has run his callback before, and
 * the caller sees what that did. */
static void poller_hear(tp_context *context)
{
    if (tpb_eventfd_drain(context->poller.bell))
        atomic_exchange(&context->poller.rung, false);
}

void tpr_poller_end(tp_context *context, bool rung)
{
    if (rung)
        poller_hear(context);
    else
        atomic_exchange(&context->poller.rung, false);
}

/* If it is just being rung, that is one wake-up more: the bell is never left
 * readable with nobody to drain it. */
void tpr_poller_away(tp_context *context)
{
    poller_mute(context, true);
    if (atomic_load(&context->poller.rung))
        poller_hear(context);
}

void tpr_poller_init(tp_context *context)
{
    context->poller.fd = context->poller.bell = -1;
}

void tpr_poller_fini(tp_context *context)
{
    if (context->poller.fd == context->poller.bell)
        context->poller.fd = -1;
    tpb_close(&context->poller.fd);
    tpb_close(&context->poller.bell);
}
