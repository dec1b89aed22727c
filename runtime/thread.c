/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The context's own thread.
 *
 * TP_PROGRESS_THREAD: it alone drives.  TP_PROGRESS_AUTO: it drives when no
 * caller does.  Callers come and go within microseconds, so handing over at
 * each return would cost more than the message.  Instead the thread looks now
 * and then (THREAD_TICK) whether callers were active; while they were, it
 * stays away.  Only when a whole tick passed without one does it take over.
 *
 * A look takes a caller's CPU away, for as long as half a message of 1 MiB
 * takes.  So the longer callers have been there, the later the next one.
 *
 * To wake it costs more still, of the caller's time as well, whose CPU it
 * takes.  A program that computes between its messages would pay for that each
 * time: so whoever comes back lets it sleep on, and sets a timer when he leaves
 * again.  And in such a program nobody need wake it for a message that is only
 * to be kept until it is asked for: while no operation is under way it looks by
 * itself for some time (THREAD_NAPS_NS) before it arms the backends and sleeps
 * in epoll until something happens, where it uses no CPU.
 */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>

#include "runtime/base/io.h"
#include "runtime/base/thread.h"
#include "runtime/core.h"
#include "runtime/drive.h"

enum {
    THREAD_TICK_NS = 500000,
    THREAD_TICK_MOST = 4000000,
    THREAD_TICK_SHARE = 16,        /* of the time that callers were there */
    THREAD_TICK_CROWD = 4,
    THREAD_NAP_NS = 1000000,       /* at least */
    THREAD_NAPS_NS = 50000000,     /* all of them */
    THREAD_YIELDS = 64             /* to who has the token */
};

static bool thread_stops(const tp_context *context)
{
    return atomic_load(&context->thread.stop) != 0;
}

static bool thread_is_auto(const tp_context *context)
{
    return context->mode == TP_PROGRESS_AUTO;
}

/* Is nothing under way that goes on only if it looks? */
static bool thread_may_nap(tp_context *context)
{
    return atomic_load(&context->ops) == context->free_op_count
           && !atomic_load(&context->fd_used) && tpr_is_quiet(context);
}

/* ... where nobody holds the token just now, either. */
static bool thread_is_free(tp_context *context)
{
    bool is;

    if (!tpr_enter(context))
        return false;
    is = thread_may_nap(context);
    tpr_leave(context);
    return is;
}

/* Until the next look, ns, after callers were met for `met` ns.  Who is not
 * there at the moment, and has left something to do, may have left for good. */
static uint64_t thread_tick(tp_context *context, uint64_t met)
{
    uint64_t tick = met / THREAD_TICK_SHARE, least = THREAD_TICK_NS;

    if (atomic_load(&context->thread.callers) == 0 && !thread_is_free(context))
        return least;
    if (context->crowded)          /* each look takes a rank's cpu away */
        least *= THREAD_TICK_CROWD;
    if (tick < least)
        return least;
    return tick < THREAD_TICK_MOST ? tick : THREAD_TICK_MOST;
}

/* Sleeps for so many ns (0: no limit), or until it is called. */
static void thread_doze(tp_context *context, uint64_t ns)
{
    struct timespec limit = { .tv_nsec = (long)ns };
    struct pollfd calls[]
        = { { .fd = context->thread.kick, .events = POLLIN },
            { .fd = context->thread.timer, .events = POLLIN } };

    ppoll(calls, TPB_COUNT(calls), ns > 0 ? &limit : NULL, NULL);
}

/* What it has been called by is over.  If the timer ran out it is as if it had
 * looked when a caller set that: *seen is the activity until then. */
static void thread_heard(tp_context *context, uint32_t *seen)
{
    tpb_eventfd_drain(context->thread.kick);
    if (tpb_eventfd_drain(context->thread.timer))
        *seen = atomic_load(&context->thread.left);
}

/* Sleeps for a tick; true.  But until callers have left, if one of them sleeps
 * in epoll; false.  Pairs with tpr_thread_caller_leaves(): it sees us resting,
 * or we see it gone. */
static bool thread_stay_away(tp_context *context, bool quiet, uint64_t tick,
                             uint32_t *seen)
{
    bool rests = quiet && atomic_load(&context->caller_parked) != 0;

    if (rests) {
        atomic_store(&context->thread.resting, 1);
        if (atomic_load(&context->thread.callers) > 0 && !thread_stops(context))
            thread_doze(context, 0);
        atomic_store(&context->thread.resting, 0);
    } else {
        thread_doze(context, tick);
    }
    thread_heard(context, seen);
    return !rests;
}

/* By a caller who drives, or to end. */
static bool thread_is_wanted(const tp_context *context)
{
    return thread_stops(context)
           || (thread_is_auto(context)
               && atomic_load(&context->thread.callers) > 0);
}

/* Polls as long as it pays, or `once`.  True if idle, false if callers want to
 * drive.  *found: there was something to do. */
static bool thread_spin(tp_context *context, bool once, bool *found)
{
    uint64_t idle_since = tpb_now(), gave = 0;

    *found = false;
    while (!thread_stops(context)) {
        /* What is due first, as in drive_spin(). */
        bool moved = tpr_dispatch(context) > 0;
        uint64_t now;

        moved |= tpr_pass(context);
        moved |= tpr_dispatch(context) > 0;
        *found |= moved;
        if (thread_is_wanted(context))
            return false;
        if (!moved)
            tpr_tell_sleepers(context);
        now = tpb_now();
        if (moved) {
            context->vain = 0;
            idle_since = now;
            gave = 0;
        } else if (once || context->vain > 0
                   || tpr_beside(context, now - idle_since, now, &gave)
                   || now - idle_since
                      >= tpr_spin(context, context->thread_spin_ns)) {
            return true;
        }
        tpb_pause();
    }
    return false;
}

/* What is looked at after a sleep, if it is not for a caller to do.  True: the
 * token is ours then. */
static bool thread_wakes(tp_context *context, uint32_t *seen)
{
    atomic_store(&context->thread.state, TPR_THREAD_UP);
    thread_heard(context, seen);
    if (thread_is_wanted(context) || !tpr_enter(context))
        return false;
    /* Who came in between may sleep by now: what is there to wake him is not to
     * be taken from him. */
    if (thread_is_wanted(context)) {
        tpr_leave(context);
        return false;
    }
    tpr_poll_watches(context);
    return true;
}

/* With the token; gives it up, for so many ns. */
static void thread_nap(tp_context *context, uint64_t ns, uint32_t *seen)
{
    atomic_store(&context->thread.state, TPR_THREAD_NAPS);
    tpr_leave(context);
    if (!thread_is_wanted(context))
        thread_doze(context, ns);
    if (thread_wakes(context, seen))
        tpr_leave(context);
}

/* With the token; gives it up, until something happens. */
static void thread_park(tp_context *context, uint32_t *seen)
{
    struct epoll_event event;
    int timeout = tpr_park_timeout(context, 0), count = 1;

    /* Before the token is given up: who takes it next must know. */
    atomic_store(&context->thread.state, TPR_THREAD_PARKED);
    if (!tpr_park_begin(context)) {
        atomic_store(&context->thread.state, TPR_THREAD_UP);
        tpr_leave(context);
        return;
    }
    /* Pairs with tpr_thread_caller_enters(). */
    if (!thread_is_wanted(context))
        count = epoll_wait(context->thread.epoll, &event, 1, timeout);
    if (thread_wakes(context, seen)) {
        context->vain = count == 0 ? context->vain + 1 : 0;
        tpr_leave(context);
    }
}

/* Each longer than the one before, and than looks at callers were; but not
 * after one that `found` something. */
static uint64_t thread_next_nap(uint64_t nap, uint64_t met, bool found)
{
    uint64_t next = nap > 0 ? 2 * nap : met / THREAD_TICK_SHARE;

    if (next < THREAD_NAP_NS || found)
        return THREAD_NAP_NS;
    return next < THREAD_TICK_MOST ? next : THREAD_TICK_MOST;
}

/* Who has the token is a caller.  If he does not drive he is gone in a moment,
 * if we do not keep him from his cpu. */
static void thread_give_way(tp_context *context, uint32_t *seen)
{
    unsigned left = THREAD_YIELDS;

    while (left > 0 && atomic_load(&context->token) != 0
           && !thread_is_wanted(context)) {
        sched_yield();
        left--;
    }
    if (left == 0)
        thread_stay_away(context, false, THREAD_TICK_NS, seen);
}

static void *thread_main(void *arg)
{
    tp_context *context = arg;
    struct tpr_thread *thread = &context->thread;
    uint64_t met = 0;              /* callers, at one look after the other */
    uint64_t nap = 0;              /* the last one, ns, if it was that */
    uint64_t alone = THREAD_NAPS_NS;   /* without callers, since then */
    uint32_t seen = 0;
    bool found;

    prctl(PR_SET_NAME, "tp-progress");
    while (!thread_stops(context)) {
        uint32_t activity = atomic_load_explicit(&thread->activity,
                                                 memory_order_relaxed);

        if (thread_is_auto(context)
            && (activity != seen || atomic_load(&thread->callers) > 0)) {
            uint64_t tick = thread_tick(context, met);
            bool quiet = activity == seen;

            seen = activity;
            met = thread_stay_away(context, quiet, tick, &seen)
                  ? met + tick : 0;
            nap = alone = 0;
        } else if (!tpr_enter(context)) {
            thread_give_way(context, &seen);
        } else if (!thread_spin(context, nap > 0, &found)) {
            tpr_leave(context);
        } else if (alone < THREAD_NAPS_NS && thread_may_nap(context)) {
            nap = thread_next_nap(nap, met, found);
            alone += nap;
            thread_nap(context, nap, &seen);
        } else {
            thread->habit = met > 0;
            met = nap = 0;
            alone = THREAD_NAPS_NS;
            thread_park(context, &seen);
        }
    }
    if (thread->last != NULL)
        thread->last(context);
    return NULL;
}

/* ---- callers ------------------------------------------------------------- */

/* It looks in a moment, if nobody has come by then. */
static void thread_call(tp_context *context)
{
    atomic_store(&context->thread.left, atomic_load(&context->thread.activity));
    timerfd_settime(context->thread.timer, 0, &(struct itimerspec){
        .it_value.tv_nsec = THREAD_TICK_NS }, NULL);
}

/* From one state to another, by one of those who want that. */
static bool thread_step(struct tpr_thread *thread, uint32_t from, uint32_t to)
{
    return atomic_load(&thread->state) == from
           && atomic_compare_exchange_strong(&thread->state, &from, to);
}

void tpr_active(tp_context *context)
{
    _Atomic uint32_t *activity = &context->thread.activity;

    atomic_store_explicit(activity,
                          atomic_load_explicit(activity, memory_order_relaxed)
                          + 1, memory_order_relaxed);
}

void tpr_thread_caller_enters(tp_context *context)
{
    struct tpr_thread *thread = &context->thread;

    if (!thread->runs)
        return;
    atomic_fetch_add(&thread->callers, 1);
    if (thread_is_auto(context))
        thread_step(thread, TPR_THREAD_PARKED, TPR_THREAD_PASSED);
}

/* Else both would wake for what comes. */
void tpr_thread_caller_parks(tp_context *context)
{
    if (atomic_load(&context->thread.state) != TPR_THREAD_UP)
        tpb_eventfd_ring(context->thread.kick);
}

void tpr_thread_caller_leaves(tp_context *context)
{
    struct tpr_thread *thread = &context->thread;

    if (!thread->runs)
        return;
    atomic_fetch_sub(&thread->callers, 1);
    if ((atomic_load(&thread->resting) != 0
         && atomic_exchange(&thread->resting, 0) != 0)
        || thread_step(thread, TPR_THREAD_PASSED, TPR_THREAD_CALLED))
        thread_call(context);
}

bool tpr_thread_comes(tp_context *context, bool hurries)
{
    struct tpr_thread *thread = &context->thread;
    uint32_t state = atomic_load(&thread->state);

    /* Nobody is inside who comes back to it. */
    if (state == TPR_THREAD_CALLED && hurries
        && atomic_load(&thread->callers) == 0)
        return false;
    /* It naps as there was nothing under way. */
    if (state == TPR_THREAD_NAPS && atomic_load(&thread->callers) == 0
        && atomic_load(&context->ops) != context->free_op_count
        && thread_step(thread, TPR_THREAD_NAPS, TPR_THREAD_CALLED))
        thread_call(context);
    if (state != TPR_THREAD_PARKED)
        return state != TPR_THREAD_UP;
    if (hurries || !thread->habit)
        return false;
    if (thread_step(thread, TPR_THREAD_PARKED, TPR_THREAD_CALLED))
        thread_call(context);
    return true;
}

/* ---- begin and end ------------------------------------------------------- */

static int thread_watch(tp_context *context, int fd)
{
    return tpb_epoll_set(context->thread.epoll, EPOLL_CTL_ADD, fd, EPOLLIN);
}

tp_status tpr_thread_start(tp_context *context, struct tpb_error *error)
{
    int code;

    if (context->mode == TP_PROGRESS_MANUAL)
        return TP_OK;
    context->thread.epoll = epoll_create1(EPOLL_CLOEXEC);
    context->thread.kick = tpb_eventfd();
    context->thread.timer = timerfd_create(CLOCK_MONOTONIC,
                                           TFD_CLOEXEC | TFD_NONBLOCK);
    if (context->thread.epoll < 0 || context->thread.kick < 0
        || context->thread.timer < 0
        || thread_watch(context, context->epoll) < 0
        || thread_watch(context, context->thread.kick) < 0
        || thread_watch(context, context->thread.timer) < 0)
        return tpb_fail_errno(error, errno, "the progress thread's epoll");
    code = tpb_thread_start(&context->thread.id, thread_main, context);
    if (code == EAGAIN)
        return tpb_fail(error, TP_ERR_SYSTEM, "cannot start a progress thread:"
                        " %s; TP_PROGRESS=manual needs none",
                        tpb_thread_limit());
    if (code != 0)
        return tpb_fail_errno(error, code, "cannot start a progress thread");
    context->thread.runs = true;
    return TP_OK;
}

void tpr_thread_stop(tp_context *context, void (*last)(tp_context *context))
{
    bool own = context->thread.runs && context->mode == TP_PROGRESS_THREAD;

    if (context->thread.runs) {
        context->thread.last = own ? last : NULL;
        atomic_store(&context->thread.stop, 1);
        tpb_eventfd_ring(context->thread.kick);
        pthread_join(context->thread.id, NULL);
        context->thread.runs = false;
    }
    tpb_close(&context->thread.timer);
    tpb_close(&context->thread.kick);
    tpb_close(&context->thread.epoll);
    if (!own && last != NULL)
        last(context);
}
