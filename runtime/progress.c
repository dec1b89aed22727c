/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One round over everything that may have moved, and what there is to do before
 * somebody sleeps.
 *
 * Before anyone sleeps in epoll the backends are armed, which makes every peer
 * that sends ring; whoever polls next disarms them.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "runtime/base/io.h"
#include "runtime/base/log.h"
#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/stream.h"

TPB_LOG_COMPONENT("context");

enum {
    PROGRESS_WATCH_PASSES = 128,   /* look at epoll every so many passes */
    PROGRESS_IDLE_PASSES = 8,      /* ask endpoints without conns */
    PROGRESS_LATE_PASSES = 16,     /* look whether late DONEs are due */
    PROGRESS_READY = 16,           /* conns served per pass */
    PROGRESS_POLL_MS = 1,          /* sleep between polls of TPF_POLLED ... */
    PROGRESS_POLL_MOST_MS = 8      /* ... growing to this */
};

/* ---- one round ---------------------------------------------------------- */

void tpr_disarm(tp_context *context)
{
    for (uint32_t i = 0; i < context->endpoint_count; i++)
        context->endpoints[i]->backend->disarm(context->endpoints[i]);
    context->armed = false;
}

/* Whether all of them will wake us. */
bool tpr_arm(tp_context *context)
{
    bool idle = true;

    for (uint32_t i = 0; i < context->endpoint_count; i++)
        idle &= context->endpoints[i]->backend->arm(context->endpoints[i]);
    context->armed = true;
    context->rung = context->dirty = false;
    return idle;
}

/*
 * The program has closed what is not its own, as closefrom(3) does.  Nobody
 * could be heard any more, and what is written to doorbells and sockets would
 * go into files that got their numbers.
 */
static void progress_robbed(int code)
{
    tpb_error_log("this program has closed descriptors of libtp (epoll_wait:"
                  " %s); it ends here, before its own files are harmed: from"
                  " tp_init() to tp_finalize() it may close only what it has"
                  " opened", strerror(code));
    abort();
}

bool tpr_poll_watches(tp_context *context)
{
    struct epoll_event events[TPR_EVENTS];
    int count = epoll_wait(context->epoll, events, TPR_EVENTS, 0);

    /* EINVAL: the number is another file's by now. */
    if (count < 0 && (errno == EBADF || errno == EINVAL))
        progress_robbed(errno);
    return tpr_watches_ready(context, events, count);
}

bool tpr_watches_ready(tp_context *context, const struct epoll_event *events,
                       int count)
{
    for (int i = 0; i < count; i++) {
        struct tpf_watch *watch = events[i].data.ptr;

        watch->ready(watch, events[i].events);
    }
    context->tick = tpb_tick();
    context->ask_all |= count > 0;
    if (!tpb_list_empty(&context->contacts)
        || !tpb_list_empty(&context->strangers))
        tpr_peer_timers(context, tpb_look(&context->looked));
    return count > 0;
}

/* What descriptors tell: a peer's death, or a call, or what time it is.  While
 * there is always something to do a sleeper's wake-up may wait as well. */
static bool progress_hear(tp_context *context)
{
    tpr_tell_sleepers(context);
    context->glances = 0;
    return tpr_poll_watches(context);
}

/* Endpoints without a conn have little to do: they are asked seldom, but
 * always before anybody sleeps. */
static bool progress_endpoints(tp_context *context, bool all)
{
    bool moved = false;

    for (uint32_t i = 0; i < context->endpoint_count; i++) {
        struct tpf_endpoint *endpoint = context->endpoints[i];

        if (endpoint->conns > 0 || all)
            moved |= endpoint->backend->progress(endpoint);
    }
    return moved;
}

/* Inside a callback an outer caller may still be at one of them. */
static void progress_bury(tp_context *context)
{
    if (TPB_UNLIKELY(!tpb_list_empty(&context->graveyard))
        && !context->env.calls)
        tpr_bury_now(context);
}

bool tpr_pass(tp_context *context)
{
    bool moved;

    context->served = false;
    context->delivered_before = context->delivered;
    context->glances = 0;
    progress_bury(context);
    if (TPB_UNLIKELY(context->armed))
        tpr_disarm(context);
    if (TPB_UNLIKELY(context->open.pipe != NULL))
        tpr_rx_stash_open(context);
    tpr_run_tasks(context);
    /* What this conn has brought must not wait for a callback that waits. */
    if (TPB_UNLIKELY(context->serving != NULL))
        tpf_conn_ready(context->serving);
    moved = progress_endpoints(context, context->ask_all
                               || context->passes % PROGRESS_IDLE_PASSES == 0);
    context->ask_all = false;
    if (TPB_UNLIKELY(context->copying > 0 || context->env.helping > 0
                     || context->env.on_devices > 0))
        moved |= tpr_channels_progress(context);
    if (TPB_UNLIKELY(tpr_device_waits(context)))
        moved |= tpr_device_progress(context);
    for (int i = 0; i < PROGRESS_READY; i++) {
        struct tpb_list *node = tpb_list_take(&context->env.ready);

        if (node == NULL)
            break;
        if (TPB_UNLIKELY(context->mourns))
            tpr_absent_sign(TPB_CONTAINER(node, struct tpf_conn, ready));
        moved |= tpr_rx_conn(context, TPB_CONTAINER(node, struct tpf_conn,
                                                    ready));
        if (context->served || TPB_UNLIKELY(context->glances > 0))
            break;                 /* or that took long */
    }
    if (TPB_UNLIKELY(++context->passes % PROGRESS_WATCH_PASSES == 0)
        || (TPB_UNLIKELY(moved || context->crowded)
            && tpr_takes_long(context)))
        moved |= progress_hear(context);
    /* The callbacks of what ended with a conn come first: the kernel's drivers
     * may take long to let go of a connection that broke. */
    if (tpb_list_empty(&context->done))
        progress_bury(context);
    if (moved)
        context->row = 0;
    if (TPB_UNLIKELY(!tpb_list_empty(&context->late))
        && (!moved || context->passes % PROGRESS_LATE_PASSES == 0))
        tpr_late_look(context, true);
    tpf_gathered(&context->env);   /* a callback that waits sleeps next */
    return moved;
}

/* ---- before somebody sleeps ---------------------------------------------- */

bool tpr_park_begin(tp_context *context)
{
    if (progress_endpoints(context, true) || !tpr_arm(context)
        || !tpb_list_empty(&context->env.ready)
        || !tpb_list_empty(&context->done)
        || !tpb_list_empty(&context->graveyard) || context->copying > 0
        || context->env.helping > 0
        || atomic_load(&context->tasks) != NULL) {
        tpr_disarm(context);
        return false;
    }
    tpr_leave(context);
    return true;
}

/* How long a sleep may last: to the deadline, or to the next timer. */
int tpr_park_timeout(tp_context *context, uint64_t deadline)
{
    int limit = -1;

    if (!tpb_list_empty(&context->contacts)
        || !tpb_list_empty(&context->strangers))
        limit = tpr_peer_timers_ms(context);
    if (tpr_device_waits(context))
        limit = PROGRESS_POLL_MS;  /* no descriptor tells of its progress */
    else if (context->polled > 0 || context->env.joining > 0)
        limit = context->vain < PROGRESS_POLL_MOST_MS
                ? PROGRESS_POLL_MS + (int)context->vain
                : PROGRESS_POLL_MOST_MS;
    if (deadline > 0) {
        uint64_t now = tpb_now();
        uint64_t left = deadline > now ? (deadline - now) / 1000000 + 1 : 0;

        if (limit < 0 || left < (uint64_t)limit)
            limit = left > 1000000 ? 1000000 : (int)left;
    }
    return limit;
}

/* ---- its descriptors ----------------------------------------------------- */

static void progress_woken(struct tpf_watch *watch, uint32_t events)
{
    tp_context *context = TPB_CONTAINER(watch, tp_context, wake);

    (void)events;
    tpb_eventfd_drain(watch->fd);
    /* Whom it was rung for may not have seen it: ring again. */
    context->rung = false;
}

static void progress_timer(struct tpf_watch *watch, uint32_t events)
{
    (void)events;
    tpb_eventfd_drain(watch->fd);
}

tp_status tpr_progress_init(tp_context *context, struct tpb_error *error)
{
    int code;

    context->wake = (struct tpf_watch){ .fd = -1, .ready = progress_woken };
    context->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (context->epoll < 0)
        return tpb_fail_errno(error, errno, "epoll_create1");
    context->env.epoll = context->epoll;
    context->env.watches = &context->watches;
    context->wake.fd = tpb_eventfd();
    if (context->wake.fd < 0)
        return tpb_fail_errno(error, errno, "eventfd");
    context->timer = (struct tpf_watch){
        .fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
        .ready = progress_timer };
    if (context->timer.fd < 0)
        return tpb_fail_errno(error, errno, "timerfd_create");
    code = tpf_watch_add(&context->env, &context->wake, EPOLLIN);
    if (code == 0)
        code = tpf_watch_add(&context->env, &context->timer, EPOLLIN);
    return code == 0 ? TP_OK : tpb_fail_errno(error, code, "epoll_ctl");
}

void tpr_progress_fini(tp_context *context)
{
    tpb_close(&context->timer.fd);
    tpb_close(&context->wake.fd);
    tpb_close(&context->epoll);
}
