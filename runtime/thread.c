/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The context's own thread.
 *
 * TP_PROGRESS_THREAD: it alone drives.  TP_PROGRESS_AUTO: it drives when no
 * caller does.  Callers come and go within microseconds, so handing over at
 * each return would cost more than the message.  Instead the thread looks now
 * and then (THREAD_TICK) whether callers were active; while they were, it
 * stays away.  Only when a whole tick passed without one does it take over,
 * arm the backends and sleep in epoll, where it uses no CPU.  A caller that
 * finds it sleeping there kicks it out; a caller that sleeps in epoll itself
 * makes the thread rest until he leaves.
 *
 * A look takes a caller's CPU away, for as long as half a message of 1 MiB
 * takes.  So the longer callers have been there, the later the next one.
 */
#include "config.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/prctl.h>

#include "runtime/base/io.h"
#include "runtime/base/thread.h"
#include "runtime/core.h"
#include "runtime/futex.h"

enum {
    THREAD_TICK_NS = 500000,
    THREAD_TICK_MOST = 4000000,
    THREAD_TICK_SHARE = 16,        /* of the time that callers were there */
    THREAD_TICK_CROWD = 4
};

static bool thread_stops(tp_context *context)
{
    return atomic_load(&context->stop) != 0;
}

static bool thread_is_auto(const tp_context *context)
{
    return context->mode == TP_PROGRESS_AUTO;
}

/* Until the next look, ns, after callers were met for `met` ns.  Who is not
 * there at the moment may have left for good. */
static uint64_t thread_tick(const tp_context *context, uint64_t met)
{
    uint64_t tick = met / THREAD_TICK_SHARE, least = THREAD_TICK_NS;

    if (atomic_load(&context->callers) == 0)
        return least;
    if (context->crowded)          /* each look takes a rank's cpu away */
        least *= THREAD_TICK_CROWD;
    if (tick < least)
        return least;
    return tick < THREAD_TICK_MOST ? tick : THREAD_TICK_MOST;
}

/* Sleeps for a tick; true.  But until callers have left, if one of them sleeps
 * in epoll; false.  Pairs with tpr_thread_caller_leaves(): it sees us resting,
 * or we see it gone. */
static bool thread_stay_away(tp_context *context, bool quiet, uint64_t tick)
{
    if (quiet && atomic_load(&context->caller_parked) != 0) {
        atomic_store(&context->thread_resting, 1);
        if (atomic_load(&context->callers) > 0 && !thread_stops(context))
            tpr_futex_wait(&context->thread_resting, 1, 0);
        atomic_store(&context->thread_resting, 0);
        return false;
    }
    tpr_futex_wait(&context->thread_resting, 0, tick);
    return true;
}

/* Polls as long as it pays.  True if idle, false if callers want to drive. */
static bool thread_spin(tp_context *context)
{
    uint64_t idle_since = tpb_now();

    while (!thread_stops(context)) {
        bool moved = tpr_pass(context);
        uint64_t now;

        moved |= tpr_dispatch(context) > 0;
        if (thread_is_auto(context) && atomic_load(&context->callers) > 0)
            return false;
        if (!moved)
            tpr_tell_sleepers(context);
        now = tpb_now();
        if (moved) {
            context->vain = 0;
            idle_since = now;
        } else if (context->vain > 0
                   || now - idle_since
                      >= tpr_spin(context, context->thread_spin_ns)) {
            return true;
        }
        tpb_pause();
    }
    return false;
}

/* With the token; gives it up. */
static void thread_park(tp_context *context)
{
    struct epoll_event event;
    int timeout = tpr_park_timeout(context, 0), count = 1;

    /* Before the token is given up: who takes it next must know. */
    atomic_store(&context->thread_parked, 1);
    if (!tpr_park_begin(context)) {
        atomic_store(&context->thread_parked, 0);
        tpr_leave(context);
        return;
    }
    /* Pairs with tpr_thread_caller_enters(). */
    if ((!thread_is_auto(context) || atomic_load(&context->callers) == 0)
        && !thread_stops(context))
        count = epoll_wait(context->thread_epoll, &event, 1, timeout);
    atomic_store(&context->thread_parked, 0);
    tpb_eventfd_drain(context->thread_kick);
    if (thread_is_auto(context) && atomic_load(&context->callers) > 0)
        return;
    if (tpr_enter(context)) {
        context->vain = count == 0 ? context->vain + 1 : 0;
        tpr_poll_watches(context);
        tpr_leave(context);
    }
}

static void *thread_main(void *arg)
{
    tp_context *context = arg;
    uint64_t met = 0;              /* callers, at one look after the other */
    uint32_t seen = 0;

    prctl(PR_SET_NAME, "tp-progress");
    while (!thread_stops(context)) {
        uint32_t activity = atomic_load_explicit(&context->activity,
                                                 memory_order_relaxed);

        if (thread_is_auto(context)
            && (activity != seen || atomic_load(&context->callers) > 0)) {
            uint64_t tick = thread_tick(context, met);

            met = thread_stay_away(context, activity == seen, tick)
                  ? met + tick : 0;
            seen = activity;
            continue;
        }
        met = 0;
        if (!tpr_enter(context))
            thread_stay_away(context, false, THREAD_TICK_NS);
        else if (thread_spin(context))
            thread_park(context);
        else
            tpr_leave(context);
    }
    return NULL;
}

void tpr_thread_caller_enters(tp_context *context)
{
    if (!context->has_thread)
        return;
    atomic_fetch_add(&context->callers, 1);
    if (thread_is_auto(context) && atomic_load(&context->thread_parked) != 0)
        tpb_eventfd_ring(context->thread_kick);
}

void tpr_thread_caller_leaves(tp_context *context)
{
    if (!context->has_thread)
        return;
    atomic_fetch_sub(&context->callers, 1);
    if (atomic_load(&context->thread_resting) != 0) {
        atomic_store(&context->thread_resting, 0);
        tpr_futex_wake(&context->thread_resting);
    }
}

static int thread_watch(tp_context *context, int fd)
{
    return tpb_epoll_set(context->thread_epoll, EPOLL_CTL_ADD, fd, EPOLLIN);
}

tp_status tpr_thread_start(tp_context *context, struct tpb_error *error)
{
    int code;

    context->thread_epoll = context->thread_kick = -1;
    if (context->mode == TP_PROGRESS_MANUAL)
        return TP_OK;
    context->thread_epoll = epoll_create1(EPOLL_CLOEXEC);
    context->thread_kick = tpb_eventfd();
    if (context->thread_epoll < 0 || context->thread_kick < 0
        || thread_watch(context, context->epoll) < 0
        || thread_watch(context, context->thread_kick) < 0)
        return tpb_fail_errno(error, errno, "the progress thread's epoll");
    code = tpb_thread_start(&context->thread, thread_main, context);
    if (code != 0)
        return tpb_fail_errno(error, code, "cannot start a progress thread");
    context->has_thread = true;
    return TP_OK;
}

void tpr_thread_stop(tp_context *context)
{
    if (context->has_thread) {
        atomic_store(&context->stop, 1);
        tpb_eventfd_ring(context->thread_kick);
        atomic_store(&context->thread_resting, 0);
        tpr_futex_wake(&context->thread_resting);
        pthread_join(context->thread, NULL);
        context->has_thread = false;
    }
    tpb_close(&context->thread_kick);
    tpb_close(&context->thread_epoll);
}
