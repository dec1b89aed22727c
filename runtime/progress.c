/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The token, and who moves things on when.
 *
 * Whoever holds the token may touch the context.  A call takes it if it is
 * free, works, and gives it back; if it is taken the call leaves a task and
 * goes its way.  The holder runs the tasks before it lets go.
 *
 * Callers that must wait drive: they poll for a while and then sleep in epoll,
 * one of them at a time (context->driving); the others sleep on
 * context->turn.  Before anyone sleeps in epoll the backends are armed, which
 * makes every peer that sends ring; whoever polls next disarms them.  While
 * armed, a call that leaves something to do rings context->wake.
 */
#include "config.h"

#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "runtime/base/io.h"
#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/futex.h"
#include "runtime/stream.h"

enum {
    PROGRESS_YIELD_NS = 10000,     /* of each yield, that count as idle */
    PROGRESS_WATCH_PASSES = 128,   /* look at epoll every so many passes */
    PROGRESS_CLOCK_PASSES = 16,    /* look at the clock */
    PROGRESS_IDLE_PASSES = 8,      /* ask endpoints without conns */
    PROGRESS_LATE_PASSES = 16,     /* look whether late DONEs are due */
    PROGRESS_GLANCES = 16,         /* at the conn that was last, before each */
    PROGRESS_TAKEN_NS = 100000,    /* a yield that others take long with */
    PROGRESS_ALONE = 1024,         /* turns without one after that, at first */
    PROGRESS_ALONE_MOST = 64 * PROGRESS_ALONE,
    PROGRESS_GLANCED = 8,          /* that found something, without a pass */
    PROGRESS_ROW = 16,             /* of them, and passes that found nothing: a
                                      pass is not for each wait then */
    PROGRESS_EAGER_PASSES = 64,    /* without a pause in between, which is
                                      longer than a pass */
    PROGRESS_READY = 16,           /* conns served per pass */
    PROGRESS_EVENTS = 16,
    PROGRESS_POLL_MS = 1,          /* sleep between polls of TPF_POLLED ... */
    PROGRESS_POLL_MOST_MS = 8,     /* ... growing to this */
    PROGRESS_STOPPED_NS = 5000000, /* late by that: it was stopped ... */
    PROGRESS_LONGER_NS = 1000000000, /* ... and goes on, at most so long */
    PROGRESS_DEVICE_NS = 1000000   /* spin for a device: most copies take less,
                                      and no descriptor tells of their end */
};

/* ---- the token ---------------------------------------------------------- */

static bool token_take(tp_context *context)
{
    /* Pairs with the exchange in tpr_leave(). */
    if (atomic_exchange_explicit(&context->token, 1, memory_order_acquire))
        return false;
    atomic_store_explicit(&context->holder, TPR_ME, memory_order_relaxed);
    context->depth = 1;
    return true;
}

/* Full barrier: a task is either seen after it or its submitter sees the token
 * free. */
static void token_give(tp_context *context)
{
    context->depth = 0;
    atomic_store_explicit(&context->holder, NULL, memory_order_relaxed);
    atomic_exchange(&context->token, 0);
}

static void token_run_tasks(tp_context *context)
{
    struct tpr_task *newest, *oldest = NULL;

    if (TPB_LIKELY(atomic_load_explicit(&context->tasks,
                                        memory_order_relaxed) == NULL))
        return;
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

static inline __attribute__((always_inline)) bool
token_enter(tp_context *context)
{
    if (!token_take(context))
        return false;
    /* What this thread left when the token was taken comes first. */
    token_run_tasks(context);
    return true;
}

bool tpr_enter_token(tp_context *context)
{
    return token_enter(context);
}

void tpr_next_turn(tp_context *context)
{
    if ((atomic_load(&context->sleepers) & ~TPR_POLLED) == 0)
        return;
    atomic_fetch_add(&context->turn, 1);
    tpr_futex_wake(&context->turn);
}

/* What ended since the last time has been told by tpr_wake_sleepers(), but
 * without a fence: a caller that was just about to sleep may have missed it.
 * For those who go on holding the token, when they have nothing else to do. */
void tpr_tell_sleepers(tp_context *context)
{
    if (!context->news)
        return;
    context->news = false;
    /* Pairs with progress_sleep(): we see the sleeper, or he sees the news. */
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
        token_run_tasks(context);
        if (TPB_UNLIKELY(!tpb_list_empty(&context->late)))
            tpr_late_look(context, false);
        token_ring(context);
        token_give(context);
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

/* ---- one round ---------------------------------------------------------- */

static void progress_disarm(tp_context *context)
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

bool tpr_poll_watches(tp_context *context)
{
    struct epoll_event events[PROGRESS_EVENTS];
    int count = epoll_wait(context->epoll, events, PROGRESS_EVENTS, 0);

    for (int i = 0; i < count; i++) {
        struct tpf_watch *watch = events[i].data.ptr;

        watch->ready(watch, events[i].events);
    }
    context->ask_all |= count > 0;
    if (!tpb_list_empty(&context->contacts)
        || !tpb_list_empty(&context->strangers))
        tpr_peer_timers(context, tpb_look(&context->looked));
    return count > 0;
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
    context->glances = 0;
    progress_bury(context);
    if (TPB_UNLIKELY(context->armed))
        progress_disarm(context);
    if (TPB_UNLIKELY(context->open.pipe != NULL))
        tpr_rx_stash_open(context);
    token_run_tasks(context);
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
        if (context->served)
            break;
    }
    if (TPB_UNLIKELY(++context->passes % PROGRESS_WATCH_PASSES == 0))
        moved |= tpr_poll_watches(context);
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

/*
 * The next frame is mostly one of the conn that brought the last: it is looked
 * at before all others are, in a tenth of the time of a pass, or `brief`, with
 * one look.  True if it had something, and was served; that not for ever, since
 * others wait too.
 */
static bool progress_glance(tp_context *context, bool brief)
{
    struct tpf_conn *conn = context->hot;

    if (conn == NULL || context->glances >= PROGRESS_GLANCED
        || !conn->backend->glance(conn, brief ? 1 : PROGRESS_GLANCES)
        || context->armed || !tpb_list_empty(&context->env.ready)
        || !tpb_list_empty(&context->graveyard))
        return false;
    context->glances++;
    context->served = false;
    tpr_rx_conn(context, conn);
    return true;
}

/*
 * Is this cpu to be given away before all others have been looked at?  Where
 * answers need it, and all came by the conn that brought the last, lately: what
 * they wait for is a switch and this, several times in a round.  A wait that
 * does so yields, and then makes a pass: it neither ends nor sleeps before.
 */
static bool progress_hurries(const tp_context *context)
{
    return context->row >= PROGRESS_ROW
           && context->glances < PROGRESS_GLANCED && context->vain == 0
           && tpr_crowd_apart(&context->crowd) && !context->armed
           && tpb_list_empty(&context->env.ready)
           && atomic_load_explicit(&context->tasks,
                                   memory_order_relaxed) == NULL;
}

/* ---- sleeping ----------------------------------------------------------- */

bool tpr_park_begin(tp_context *context)
{
    if (progress_endpoints(context, true) || !tpr_arm(context)
        || !tpb_list_empty(&context->env.ready)
        || !tpb_list_empty(&context->done)
        || !tpb_list_empty(&context->graveyard) || context->copying > 0
        || context->env.helping > 0
        || atomic_load(&context->tasks) != NULL) {
        progress_disarm(context);
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

/* The cpu goes to whoever waits for it. */
static void progress_gives(tp_context *context)
{
    context->env.beside = false;
}

/* Gives the token up, sleeps, takes it back; false if another has it now.
 * Inside a callback the token stays ours and the sleep is short. */
static bool progress_park(tp_context *context, uint64_t deadline)
{
    struct epoll_event event;
    int timeout = tpr_park_timeout(context, deadline), count;

    if (context->depth > 1) {
        epoll_wait(context->epoll, &event, 1, PROGRESS_POLL_MS);
        tpr_poll_watches(context);
        return true;
    }
    /* Before the token is given up: who takes it next must know. */
    atomic_store(&context->caller_parked, 1);
    progress_gives(context);
    tpr_thread_caller_parks(context);
    if (context->crowded)
        tpr_crowd_leave(&context->crowd);
    if (!tpr_park_begin(context)) {
        if (context->crowded)
            tpr_crowd_return(&context->crowd);
        atomic_store(&context->caller_parked, 0);
        return true;
    }
    count = epoll_wait(context->epoll, &event, 1, timeout);
    atomic_store(&context->caller_parked, 0);
    if (!tpr_enter(context))
        return false;
    if (context->crowded)
        tpr_crowd_return(&context->crowd);
    context->vain = count == 0 ? context->vain + 1 : 0;
    if (context->armed)
        progress_disarm(context);
    tpr_poll_watches(context);
    return true;
}

/* ---- waiting ------------------------------------------------------------ */

struct progress_wait {
    struct tpr_sync *sync;
    uint64_t deadline, delivered;
    bool recorded;                 /* that it sleeps, in ... */
    struct tpr_wait record;
    bool longer;                   /* its deadline was put off */
    uint32_t alone;                /* turns until the cpu is given away ... */
    uint32_t longer_alone;         /* ... and the next time */
    bool quiet;                    /* nothing came in its last sleep */
    uint64_t since;                /* it slept, after polling from then on */
};

static inline bool progress_told(const tp_context *context,
                                 const struct progress_wait *wait)
{
    if (wait->sync != NULL)
        return atomic_load_explicit(&wait->sync->over, memory_order_acquire)
               != 0;
    return __atomic_load_n(&context->delivered, __ATOMIC_ACQUIRE)
           != wait->delivered;
}

/* In a callback that waits, what is due must wait for its end. */
static bool progress_over(tp_context *context, const struct progress_wait *wait)
{
    bool told = progress_told(context, wait);

    if (told || wait->sync != NULL || !tpr_holds(context)
        || tpb_list_empty(&context->done))
        return told;
    tpf_gathered(&context->env);       /* there may be no pass */
    return true;
}

/* Is its time up?  Who finds that long after was stopped, as perhaps were those
 * that he waits for.  What came has not been looked at, and what would have
 * come gets as long again; not in tp_wait(), whose caller can wait again. */
static bool progress_late(struct progress_wait *wait)
{
    uint64_t now, late;

    if (wait->deadline == 0)
        return false;
    now = tpb_now();
    if (now < wait->deadline)
        return false;
    late = now - wait->deadline;
    if (wait->longer || late < PROGRESS_STOPPED_NS)
        return true;
    wait->longer = true;
    if (wait->sync != NULL)
        wait->deadline = now + (late < PROGRESS_LONGER_NS ? late
                                : PROGRESS_LONGER_NS);
    return false;
}

uint64_t tpr_spin(const tp_context *context, uint64_t budget)
{
    return context->env.on_devices > 0 && budget < PROGRESS_DEVICE_NS
           ? PROGRESS_DEVICE_NS : budget;
}

/* About to sleep: tells what for, once. */
static void progress_record(tp_context *context, struct progress_wait *wait)
{
    if (wait->recorded)
        return;
    wait->recorded = true;
    tpr_record_wait(context, &wait->record, wait->sync);
}

/* Waits for another thread to move things on, at most a little.  Who claims the
 * driving himself waits for the token only. */
static void progress_sleep(tp_context *context, struct progress_wait *wait,
                           bool claimed)
{
    uint64_t limit = 100 * 1000000u, now;
    uint32_t turn;

    if (wait->deadline > 0) {
        now = tpb_now();
        if (now >= wait->deadline)
            return;
        if (wait->deadline - now < limit)
            limit = wait->deadline - now;
    }
    progress_record(context, wait);
    atomic_fetch_add(&context->sleepers, 1);
    turn = atomic_load(&context->turn);
    /* Pairs with tpr_wake_sleepers(): sleepers is seen, or what it tells. */
    if (!progress_over(context, wait)
        && (atomic_load(&context->token) != 0
            || (!claimed && atomic_load(&context->driving) != 0)
            || context->mode == TP_PROGRESS_THREAD)) {
        tpr_futex_wait(&context->turn, turn, limit);
        wait->quiet = atomic_load(&context->turn) == turn;
    }
    atomic_fetch_sub(&context->sleepers, 1);
}

/* Does it pay to poll on, after so many ns? */
static bool progress_pays(tp_context *context, const struct progress_wait *wait,
                          uint64_t waited, uint64_t now)
{
    uint64_t least = tpr_crowd_budget(&context->crowd, context->spin_ns);

    return waited < tpr_spin(context, least)
           || (!context->crowded && wait->since == 0
               && tpr_patience_lasts(&context->patience, waited, now));
}

/* Of the process that the next frame is expected from, if that can be seen.
 * With long messages the last frame was mostly of one who has read ours. */
static const struct tpb_presence *progress_awaited(const tp_context *context)
{
    struct tpf_conn *conn = tpr_crowd_longs(&context->crowd)
                            && context->giver != NULL ? context->giver
                                                      : context->hot;

    return conn != NULL && conn->backend->presence != NULL
           ? conn->backend->presence(conn) : NULL;
}

/* Gives the cpu to others without a look at the clock, while the wait does not
 * count as idle yet: most end before.  False: not so, nothing is done. */
static bool progress_yield_untimed(tp_context *context,
                                   const struct progress_wait *wait,
                                   uint64_t idle_since)
{
    if (idle_since > 0 || wait->deadline > 0 || context->vain > 0
        || !tpr_crowd_untimed(&context->crowd))
        return false;
    progress_gives(context);
    return true;
}

/* Gives the cpu to others.  What they do with it is not our idleness: who they
 * keep from it may be the one that we wait for. */
static uint64_t progress_yield(tp_context *context, uint64_t now,
                               uint64_t *idle_since)
{
    uint64_t after;

    progress_gives(context);
    after = tpr_crowd_yield(&context->crowd, now);
    if (after - now > PROGRESS_YIELD_NS)
        *idle_since += after - now - PROGRESS_YIELD_NS;
    return after;
}

/* Do others of this process look on, and may there be one cpu for all? */
static bool progress_shares(const tp_context *context,
                            struct progress_wait *wait)
{
    if (atomic_load_explicit(&context->watchers, memory_order_relaxed) == 0
        || context->spare)
        return false;
    if (wait->alone == 0)
        return true;
    wait->alone--;
    return false;
}

/*
 * They get the cpu, and the token; for some time not again if the cpu then was
 * for others that take long.  False: somebody has the token now, and with it
 * the tasks.  Who sleeps sleeps on: this thread still drives.
 */
static bool progress_share(tp_context *context, struct progress_wait *wait)
{
    uint64_t now;

    token_run_tasks(context);
    token_give(context);
    if (atomic_load(&context->tasks) != NULL)
        return tpr_enter(context);
    now = tpb_now();
    sched_yield();
    if (tpb_now() - now < PROGRESS_TAKEN_NS) {
        wait->longer_alone = PROGRESS_ALONE;
    } else {
        wait->alone = wait->longer_alone;
        if (wait->longer_alone < PROGRESS_ALONE_MOST)
            wait->longer_alone *= 2;
    }
    return tpr_enter(context);
}

/* Polls with the token held until the wait is over or nothing has moved for as
 * long as polling pays; then sleeps once.  False: somebody else has the token
 * now. */
static bool progress_spin(tp_context *context, struct progress_wait *wait)
{
    bool nested = context->depth > 1;
    uint64_t idle_since = 0, now = 0;
    bool shared = false;

    if (context->crowded)
        tpr_crowd_begin(&context->crowd);
    if (!nested && !tpb_list_empty(&context->done))
        tpr_dispatch(context);     /* what has come is served faster then */
    for (uint32_t turn = 1;; turn++) {
        bool brief = TPB_UNLIKELY(context->crowded) && turn == 1 && !nested
                     && wait->deadline == 0 && progress_hurries(context);
        bool glanced = !nested && progress_glance(context, brief);
        bool moved = glanced || (!brief && tpr_pass(context));

        if (!nested && !tpb_list_empty(&context->done))
            moved |= tpr_dispatch(context) > 0;
        if (progress_told(context, wait)
            || (nested && progress_over(context, wait))) {
            context->vain = 0;     /* the last sleep was not */
            if (TPB_UNLIKELY(wait->since != 0))
                tpr_patience_slept(&context->patience,
                                   tpb_now() - wait->since);
            if (TPB_UNLIKELY(context->crowded)) {
                tpr_crowd_end(&context->crowd, turn);
                context->row += glanced;
            }
            return true;
        }
        if (moved) {
            context->vain = 0;
            idle_since = now = 0;
            if (!wait->deadline || turn % PROGRESS_CLOCK_PASSES != 0)
                continue;
        }
        tpr_tell_sleepers(context);
        if (context->crowded
            && tpr_crowd_stays(&context->crowd, turn, context->env.beside,
                               progress_awaited(context)))
            continue;
        if (turn % PROGRESS_CLOCK_PASSES == 0 || context->crowded
            || context->spin_ns == 0 || TPB_UNLIKELY(shared)) {
            shared = false;
            if (context->crowded
                && progress_yield_untimed(context, wait, idle_since))
                continue;
            /* A yield has just told it. */
            if (!context->crowded || now == 0)
                now = tpb_now();
            if (wait->deadline > 0 && now >= wait->deadline) {
                tpr_patience_vain(&context->patience, now - idle_since);
                return true;
            }
            if (idle_since == 0)
                idle_since = now;
            if (!brief
                && (context->vain > 0
                    || !progress_pays(context, wait, now - idle_since,
                                      now))) {
                progress_record(context, wait);
                if (wait->since == 0)
                    wait->since = idle_since;
                return progress_park(context, wait->deadline);
            }
        }
        if (context->crowded) {
            now = progress_yield(context, now, &idle_since);
        } else if (TPB_UNLIKELY(progress_shares(context, wait)) && !nested) {
            if (!progress_share(context, wait))
                return false;
            shared = true;
        } else if (turn > PROGRESS_EAGER_PASSES) {
            tpb_pause();
        }
    }
}

/* Is there something to do for a thread that is not the driver?  The wait is
 * over, or it may drive, or (who has claimed that) the token is free. */
static bool progress_is_up(tp_context *context,
                           const struct progress_wait *wait, bool claimed)
{
    if (progress_over(context, wait))
        return true;
    if (claimed)
        return atomic_load_explicit(&context->token,
                                    memory_order_relaxed) == 0;
    return context->mode != TP_PROGRESS_THREAD
           && atomic_load_explicit(&context->driving,
                                   memory_order_relaxed) == 0;
}

/*
 * Another thread has the token: looks on for as long as polling pays, and lets
 * the other have the cpu in between where there may be none for both.  False:
 * nothing is up, or the cpu is wanted by those who take long.
 */
static bool progress_watch(tp_context *context,
                           const struct progress_wait *wait, bool claimed)
{
    uint64_t now = tpb_now(), until = now + context->spin_ns, before;
    bool up;

    /* Who yields waits for his turn then, where a wake-up may need none. */
    if (!context->spare && context->mode == TP_PROGRESS_THREAD)
        return false;
    if (wait->deadline > 0 && wait->deadline < until)
        until = wait->deadline;
    atomic_fetch_add(&context->watchers, 1);
    do {
        up = progress_is_up(context, wait, claimed);
        if (up)
            break;
        before = now;
        if (context->spare)
            tpb_pause();
        else
            sched_yield();
        now = tpb_now();
    } while (now < until && now - before < PROGRESS_TAKEN_NS);
    atomic_fetch_sub(&context->watchers, 1);
    return up;
}

static void progress_claim(tp_context *context, bool *claimed)
{
    uint32_t free = 0;

    if (!*claimed)
        *claimed = atomic_compare_exchange_strong(&context->driving, &free,
                                                  1);
}

/* Once per message: without a call. */
static inline bool progress_enter(tp_context *context, bool nested)
{
    if (!nested)
        return token_enter(context);
    context->depth++;
    return true;
}

/* Whether the wait is over.  `entered`: tpr_drive_enter() has begun it. */
static bool progress_await(tp_context *context, struct progress_wait *wait,
                           bool entered)
{
    bool claimed = entered, nested = !entered && tpr_holds(context), over;

    /* At least once, however little time is given. */
    while (!(over = progress_over(context, wait))) {
        bool mine = nested;

        if (!nested && context->mode != TP_PROGRESS_THREAD) {
            progress_claim(context, &claimed);
            mine = claimed;
        }
        if (mine && (entered || progress_enter(context, nested))) {
            entered = false;
            tpr_active(context);
            wait->quiet = false;
            if (progress_spin(context, wait)) {
                over = progress_told(context, wait);
                /* The barrier in tpr_leave_token() stands between this and the
                 * look for sleepers. */
                if (claimed && over) {
                    claimed = false;
                    atomic_store_explicit(&context->driving, 0,
                                          memory_order_release);
                }
                tpr_leave(context);
                if (over)
                    break;
            }
        } else if (wait->quiet || !progress_watch(context, wait, claimed)) {
            progress_sleep(context, wait, claimed);
        }
        if (progress_late(wait)) {
            over = progress_over(context, wait);
            break;
        }
    }
    if (claimed) {
        atomic_store(&context->driving, 0);
        tpr_wake_sleepers(context);
    }
    if (entered)
        tpr_leave(context);
    return over;
}

static bool progress_drive(tp_context *context, struct tpr_sync *sync,
                           uint64_t deadline, uint64_t delivered, bool entered)
{
    struct progress_wait wait = { .sync = sync, .deadline = deadline,
                                  .longer_alone = PROGRESS_ALONE,
                                  .delivered = delivered };
    bool kicks = context->thread.runs && (entered || !tpr_holds(context)), over;

    if (kicks)
        tpr_thread_caller_enters(context);
    over = progress_await(context, &wait, entered);
    if (TPB_UNLIKELY(wait.recorded))
        tpr_record_awake(context, &wait.record);
    if (kicks)
        tpr_thread_caller_leaves(context);
    return over;
}

bool tpr_drive_past(tp_context *context, struct tpr_sync *sync,
                    uint64_t deadline, uint64_t delivered)
{
    return progress_drive(context, sync, deadline, delivered, false);
}

bool tpr_drive(tp_context *context, struct tpr_sync *sync, uint64_t deadline)
{
    return progress_drive(context, sync, deadline, 0, false);
}

bool tpr_drive_enter(tp_context *context)
{
    bool claimed = false;

    if (context->mode == TP_PROGRESS_THREAD || tpr_holds(context))
        return false;
    progress_claim(context, &claimed);
    if (!claimed)
        return false;
    if (tpr_enter_token(context))
        return true;
    atomic_store(&context->driving, 0);
    tpr_wake_sleepers(context);
    return false;
}

bool tpr_drive_entered(tp_context *context, struct tpr_sync *sync,
                       uint64_t deadline)
{
    return progress_drive(context, sync, deadline, 0, true);
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
