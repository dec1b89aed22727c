/* SPDX-License-Identifier: BSD-3-Clause */
/* Descriptors and timers over one epoll. */
#include "config.h"

#include <errno.h>
#include <limits.h>
#include <unistd.h>

#include "launcher/loop.h"
#include "runtime/base/io.h"

enum {
    LOOP_BATCH = 64,
    LOOP_STOPPED = 500000000       /* ns late: it was stopped */
};

static const uint64_t loop_longer = UINT64_C(5000000000);

tp_status tpl_loop_init(struct tpl_loop *loop, struct tpb_error *error)
{
    tpb_list_init(&loop->timers);
    loop->refused = 0;
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll < 0)
        return tpb_fail_errno(error, errno, "cannot create an epoll "
                              "descriptor");
    return TP_OK;
}

void tpl_loop_fini(struct tpl_loop *loop)
{
    tpb_close(&loop->epoll);
}

int tpl_watch_set(struct tpl_loop *loop, struct tpl_watch *watch,
                  uint32_t events)
{
    struct epoll_event event = { .events = events, .data.ptr = watch };
    int how = EPOLL_CTL_MOD;

    if (watch->fd < 0 || watch->events == events)
        return 0;
    if (watch->events == 0)
        how = EPOLL_CTL_ADD;
    else if (events == 0)
        how = EPOLL_CTL_DEL;
    if (epoll_ctl(loop->epoll, how, watch->fd, &event) < 0) {
        if (errno == ENOSPC || errno == ENOMEM)
            loop->refused = errno;
        return -1;
    }
    watch->events = events;
    return 0;
}

void tpl_watch_close(struct tpl_loop *loop, struct tpl_watch *watch)
{
    /* Explicit: the description may live on in another process, and epoll
     * watches descriptions. */
    tpl_watch_set(loop, watch, 0);
    tpb_close(&watch->fd);
}

void tpl_timer_set(struct tpl_loop *loop, struct tpl_timer *timer,
                   uint64_t at)
{
    if (timer->at != 0)
        tpb_list_unlink(&timer->node);
    timer->at = at;
    timer->longer = false;
    if (at != 0)
        tpb_list_append(&loop->timers, &timer->node);
}

/* Milliseconds until the next timer, rounded up; -1 without one. */
static int loop_patience(const struct tpl_loop *loop)
{
    uint64_t next = UINT64_MAX, now;

    TPB_LIST_EACH(node, &loop->timers) {
        uint64_t at = TPB_CONTAINER(node, struct tpl_timer, node)->at;

        if (at < next)
            next = at;
    }
    if (next == UINT64_MAX)
        return -1;
    now = tpb_now();
    if (next <= now)
        return 0;
    next = (next - now + 999999) / 1000000;
    return next > INT_MAX ? INT_MAX : (int)next;
}

/* One at a time and from the start again: a timer that fires may set or clear
 * any other. */
static void loop_fire(struct tpl_loop *loop)
{
    uint64_t now = tpb_now();
    struct tpb_list *node = loop->timers.next;

    while (node != &loop->timers) {
        struct tpl_timer *timer = TPB_CONTAINER(node, struct tpl_timer, node);

        node = node->next;
        if (timer->at > now
            || (timer->patient
                && tpb_excuse(&timer->at, &timer->longer, now, LOOP_STOPPED,
                              loop_longer)))
            continue;
        tpl_timer_set(loop, timer, 0);
        timer->fire(timer);
        node = loop->timers.next;
    }
}

/* Who is not heard any more could be waited for without an end. */
static tp_status loop_refused(int code, struct tpb_error *error)
{
    if (code == ENOMEM)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    return tpb_fail_errno(error, code, "cannot watch for events (see"
                          " fs.epoll.max_user_watches)");
}

static tp_status loop_round(struct tpl_loop *loop, int patience,
                            struct tpb_error *error)
{
    struct epoll_event events[LOOP_BATCH];
    int count;

    if (loop->refused != 0)
        return loop_refused(loop->refused, error);
    count = epoll_wait(loop->epoll, events, LOOP_BATCH, patience);
    if (count < 0 && errno != EINTR)
        return tpb_fail_errno(error, errno, "cannot wait for events");
    for (int i = 0; i < count; i++) {
        struct tpl_watch *watch = events[i].data.ptr;

        /* Closed or muted by an earlier callback of this batch? */
        if (watch->fd >= 0 && watch->events != 0)
            watch->ready(watch, events[i].events);
    }
    loop_fire(loop);
    return TP_OK;
}

tp_status tpl_loop_turn(struct tpl_loop *loop, struct tpb_error *error)
{
    return loop_round(loop, loop_patience(loop), error);
}

tp_status tpl_loop_look(struct tpl_loop *loop, struct tpb_error *error)
{
    return loop_round(loop, 0, error);
}
