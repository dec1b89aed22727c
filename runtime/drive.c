/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Who moves things on when.
 *
 * Callers that must wait drive: they poll for a while and then sleep in epoll,
 * one of them at a time (context->driving); the others sleep on
 * context->turn.
 */
#include "config.h"

#include <sched.h>
#include <sys/epoll.h>

#include "runtime/core.h"
#include "runtime/drive.h"
#include "runtime/futex.h"
#include "runtime/stream.h"

enum {
    DRIVE_YIELD_NS = 10000,        /* of each yield, that count as idle */
    DRIVE_CLOCK_PASSES = 16,       /* look at the clock */
    DRIVE_GLANCES = 16,            /* at the conn that was last, before each */
    DRIVE_TAKEN_NS = 100000,       /* a yield that others take long with */
    DRIVE_ALONE = 1024,            /* turns without one after that, at first */
    DRIVE_ALONE_MOST = 64 * DRIVE_ALONE,
    DRIVE_GLANCED = 8,             /* that found something, without a pass */
    DRIVE_ROW = 16,                /* of them, and passes that found nothing: a
                                      pass is not for each wait then */
    DRIVE_EAGER_PASSES = 64,       /* without a pause in between, which is
                                      longer than a pass */
    DRIVE_NESTED_MS = 1,           /* sleep of a callback that waits */
    DRIVE_SEEN_NS = 1000000,       /* by then every cpu sees what was stored */
    DRIVE_STOPPED_NS = 5000000,    /* late by that: it was stopped ... */
    DRIVE_LONGER_NS = 1000000000,  /* ... and goes on, at most so long */
    DRIVE_DEVICE_NS = 1000000      /* spin for a device: most copies take less,
                                      and no descriptor tells of their end */
};

/* ---- before others are looked at ----------------------------------------- */

/*
 * The next frame is mostly one of the conn that brought the last: it is looked
 * at before all others are, in a tenth of the time of a pass, or `brief`, with
 * one look.  True if it had something, and was served; that not for ever, since
 * others wait too.
 */
static bool drive_glance(tp_context *context, bool brief)
{
    struct tpf_conn *conn = context->hot;

    if (conn == NULL || context->glances >= DRIVE_GLANCED
        || !conn->backend->glance(conn, brief ? 1 : DRIVE_GLANCES)
        || context->armed || !tpb_list_empty(&context->env.ready)
        || !tpb_list_empty(&context->graveyard))
        return false;
    context->glances++;
    context->served = false;
    context->delivered_before = context->delivered;
    tpr_rx_conn(context, conn);
    return true;
}

/*
 * Is this cpu to be given away before all others have been looked at?  Where
 * answers need it, and all came by the conn that brought the last, lately: what
 * they wait for is a switch and this, several times in a round.  A wait that
 * does so yields, and then makes a pass: it neither ends nor sleeps before.
 */
static bool drive_hurries(const tp_context *context)
{
    return context->row >= DRIVE_ROW
           && context->glances < DRIVE_GLANCED && context->vain == 0
           && tpr_crowd_apart(&context->crowd) && !context->armed
           && tpb_list_empty(&context->env.ready)
           && atomic_load_explicit(&context->tasks,
                                   memory_order_relaxed) == NULL;
}

/* The cpu goes to whoever waits for it. */
static void drive_gives(tp_context *context)
{
    context->env.beside = false;
}

/* After tpr_crowd_leave(), without the token. */
static bool drive_return(tp_context *context)
{
    if (!tpr_enter(context))
        return false;
    if (context->crowded)
        tpr_crowd_return(&context->crowd);
    return true;
}

/* Gives the token up, sleeps, takes it back; false if another has it now.
 * Inside a callback the token stays ours and the sleep is short. */
static bool drive_park(tp_context *context, uint64_t deadline)
{
    struct epoll_event events[TPR_EVENTS];
    int timeout = tpr_park_timeout(context, deadline), count;
    uint32_t watches = atomic_load(&context->watches);

    if (context->depth > 1) {
        count = epoll_wait(context->epoll, events, TPR_EVENTS,
                           DRIVE_NESTED_MS);
        tpr_watches_ready(context, events, count);
        return true;
    }
    /* Before the token is given up: who takes it next must know. */
    atomic_store(&context->caller_parked, 1);
    drive_gives(context);
    tpr_thread_caller_parks(context);
    if (context->crowded)
        tpr_crowd_leave(&context->crowd);
    if (!tpr_park_begin(context)) {
        if (context->crowded)
            tpr_crowd_return(&context->crowd);
        atomic_store(&context->caller_parked, 0);
        return true;
    }
    count = epoll_wait(context->epoll, events, TPR_EVENTS, timeout);
    atomic_store(&context->caller_parked, 0);
    if (!drive_return(context))
        return false;
    context->vain = count == 0 ? context->vain + 1 : 0;
    if (context->armed)
        tpr_disarm(context);
    /* Others may have closed what has woken us. */
    if (count > 0 && atomic_load(&context->watches) == watches)
        tpr_watches_ready(context, events, count);
    else
        tpr_poll_watches(context);
    return true;
}

/* ---- waiting ------------------------------------------------------------ */

struct drive_wait {
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

static inline bool drive_told(const tp_context *context,
                                 const struct drive_wait *wait)
{
    if (wait->sync != NULL)
        return atomic_load_explicit(&wait->sync->over, memory_order_acquire)
               != 0;
    return __atomic_load_n(&context->delivered, __ATOMIC_ACQUIRE)
           != wait->delivered;
}

/* In a callback that waits, what is due must wait for its end. */
static bool drive_over(tp_context *context, const struct drive_wait *wait)
{
    bool told = drive_told(context, wait);

    if (told || wait->sync != NULL || !tpr_holds(context)
        || tpb_list_empty(&context->done))
        return told;
    tpf_gathered(&context->env);       /* there may be no pass */
    return true;
}

/* Is its time up?  Who finds that long after was stopped, as perhaps were those
 * that he waits for.  What came has not been looked at, and what would have
 * come gets as long again; not in tp_wait(), whose caller can wait again. */
static bool drive_late(struct drive_wait *wait)
{
    uint64_t now, later = wait->deadline;

    if (wait->deadline == 0)
        return false;
    now = tpb_now();
    if (now < wait->deadline)
        return false;
    if (!tpb_excuse(&later, &wait->longer, now, DRIVE_STOPPED_NS,
                    DRIVE_LONGER_NS))
        return true;
    if (wait->sync != NULL)
        wait->deadline = later;
    return false;
}

uint64_t tpr_spin(const tp_context *context, uint64_t budget)
{
    return context->env.on_devices > 0 && budget < DRIVE_DEVICE_NS
           ? DRIVE_DEVICE_NS : budget;
}

/* About to sleep: tells what for, once. */
static void drive_record(tp_context *context, struct drive_wait *wait)
{
    if (wait->recorded)
        return;
    wait->recorded = true;
    tpr_record_wait(context, &wait->record, wait->sync);
}

/* Is there still something to wait for, and somebody who moves it on?  Who
 * claims the driving himself waits for the token only. */
static bool drive_may_sleep(tp_context *context, const struct drive_wait *wait,
                            bool claimed)
{
    return !drive_over(context, wait)
           && (atomic_load(&context->token) != 0
               || (!claimed && atomic_load(&context->driving) != 0)
               || context->mode == TP_PROGRESS_THREAD);
}

/*
 * Waits for another thread to move things on, at most a little.
 *
 * The token, and the driving, are given up with a fence: sleepers is seen then,
 * or what it tells.  But who goes on holding the token tells what has ended
 * without one (tpr_sync_end(), tpr_op_told()), and may run a callback next that
 * takes long: what he stores may be still on its way when this thread looks,
 * and he not see sleepers yet.  A moment later it has come, and from then on he
 * sees this thread: so it looks once more.
 */
static void drive_sleep(tp_context *context, struct drive_wait *wait,
                           bool claimed)
{
    uint64_t limit = 100 * 1000000u, brief = DRIVE_SEEN_NS, now;
    uint32_t turn;

    if (wait->deadline > 0) {
        now = tpb_now();
        if (now >= wait->deadline)
            return;
        if (wait->deadline - now < limit)
            limit = wait->deadline - now;
    }
    if (brief > limit)
        brief = limit;
    drive_record(context, wait);
    atomic_fetch_add(&context->sleepers, 1);
    turn = atomic_load(&context->turn);
    if (drive_may_sleep(context, wait, claimed)) {
        tpr_futex_wait(&context->turn, turn, brief);
        if (limit > brief && atomic_load(&context->turn) == turn
            && drive_may_sleep(context, wait, claimed))
            tpr_futex_wait(&context->turn, turn, limit - brief);
        wait->quiet = atomic_load(&context->turn) == turn;
    }
    atomic_fetch_sub(&context->sleepers, 1);
}

/* Of the process that the next frame is expected from, if that can be seen.
 * With long messages the last frame was mostly of one who has read ours. */
static const struct tpb_presence *drive_awaited(const tp_context *context)
{
    struct tpf_conn *conn = tpr_crowd_longs(&context->crowd)
                            && context->giver != NULL ? context->giver
                                                      : context->hot;

    return conn != NULL && conn->backend->presence != NULL
           ? conn->backend->presence(conn) : NULL;
}

/* Does it pay to poll on, after so many ns? */
static __attribute__((noinline)) bool
drive_pays(tp_context *context, const struct drive_wait *wait,
              uint64_t waited, uint64_t now, uint64_t *gave)
{
    uint64_t least = tpr_crowd_budget(&context->crowd, context->spin_ns);

    /* First: a yield may have taken longer than that. */
    if (tpr_beside(context, waited, now, gave))
        return false;
    if (context->env.on_devices == 0 && context->depth == 1
        && !tpr_patience_affords(&context->patience, waited, now))
        return false;
    return waited < tpr_spin(context, least)
           || (!context->crowded && wait->since == 0
               && tpr_patience_lasts(&context->patience, waited, now));
}

/* Gives the cpu to others without a look at the clock, while the wait does not
 * count as idle yet: most end before.  False: not so, nothing is done. */
static bool drive_yield_untimed(tp_context *context,
                                   const struct drive_wait *wait,
                                   uint64_t idle_since)
{
    if (idle_since > 0 || wait->deadline > 0 || context->vain > 0
        || !tpr_crowd_untimed(&context->crowd))
        return false;
    drive_gives(context);
    return true;
}

/* What others did with the cpu from `before` on is not our idleness: who they
 * kept from it may be the one that we wait for. */
static void drive_gave(uint64_t before, uint64_t now, uint64_t *idle_since)
{
    if (now - before > DRIVE_YIELD_NS)
        *idle_since += now - before - DRIVE_YIELD_NS;
}

bool tpr_beside(tp_context *context, uint64_t waited, uint64_t now,
                uint64_t *gave)
{
    struct tpr_crowd *crowd = &context->crowd;

    if (context->crowded)
        return false;
    /* Not where no descriptor tells of what comes, nor is armed, nor where the
     * program says how long to poll. */
    return tpr_beside_sleeps(&crowd->beside, crowd->mine,
                             drive_awaited(context), waited, now, gave)
           && context->env.on_devices == 0 && context->depth == 1
           && context->patience.most > context->patience.least;
}

/* Gives the cpu to others. */
static uint64_t drive_yield(tp_context *context, uint64_t now,
                               uint64_t *idle_since)
{
    uint64_t after;

    drive_gives(context);
    after = tpr_crowd_yield(&context->crowd, now);
    drive_gave(now, after, idle_since);
    return after;
}

/* Do others of this process look on, and may there be one cpu for all?  With
 * more ranks than cpus each yield is for them, too: their calls would have to
 * wait for our next turn, one message after the other. */
static bool drive_shares(const tp_context *context,
                            struct drive_wait *wait)
{
    if (atomic_load_explicit(&context->watchers, memory_order_relaxed) == 0
        || context->spare)
        return false;
    if (context->crowded)
        return true;
    if (wait->alone == 0)
        return true;
    wait->alone--;
    return false;
}

/*
 * They get the cpu, and the token; for some time not again if the cpu then was
 * for others that take long, unless that is the rule.  False: somebody has the
 * token now, and with it the tasks.  Who sleeps sleeps on: this thread still
 * drives.
 */
static bool drive_share(tp_context *context, struct drive_wait *wait)
{
    uint64_t now;

    tpr_run_tasks(context);
    if (context->crowded)
        tpr_crowd_leave(&context->crowd);
    tpr_give_token(context);
    if (atomic_load(&context->tasks) != NULL)
        return drive_return(context);
    now = tpb_now();
    sched_yield();
    if (tpb_now() - now < DRIVE_TAKEN_NS) {
        wait->longer_alone = DRIVE_ALONE;
    } else {
        wait->alone = wait->longer_alone;
        if (wait->longer_alone < DRIVE_ALONE_MOST)
            wait->longer_alone *= 2;
    }
    return drive_return(context);
}

/* Polls with the token held until the wait is over or nothing has moved for as
 * long as polling pays; then sleeps once.  False: somebody else has the token
 * now. */
static bool drive_spin(tp_context *context, struct drive_wait *wait)
{
    bool nested = context->depth > 1;
    uint64_t idle_since = 0, now = 0, gave = 0;
    bool shared = false;

    if (context->crowded)
        tpr_crowd_begin(&context->crowd);
    if (!nested && !tpb_list_empty(&context->done))
        tpr_dispatch(context);     /* what has come is served faster then */
    for (uint32_t turn = 1;; turn++) {
        bool brief = TPB_UNLIKELY(context->crowded) && turn == 1 && !nested
                     && wait->deadline == 0 && drive_hurries(context);
        bool glanced = !nested && drive_glance(context, brief);
        bool moved = glanced || (!brief && tpr_pass(context)), late = false;
        bool shares;

        if (!nested && !tpb_list_empty(&context->done))
            moved |= tpr_dispatch(context) > 0;
        if (drive_told(context, wait)
            || (nested && drive_over(context, wait))) {
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
            idle_since = now = gave = 0;
            late = wait->deadline > 0 && tpb_tick() >= wait->deadline;
            if (!late && (!wait->deadline || turn % DRIVE_CLOCK_PASSES != 0))
                continue;
        }
        tpr_tell_sleepers(context);
        shares = context->crowded && !nested && drive_shares(context, wait);
        if (context->crowded && !shares && !late
            && tpr_crowd_stays(&context->crowd, turn, context->env.beside,
                               drive_awaited(context)))
            continue;
        if (turn % DRIVE_CLOCK_PASSES == 0 || context->crowded || late
            || context->spin_ns == 0 || TPB_UNLIKELY(shared)) {
            shared = false;
            if (context->crowded && !shares
                && drive_yield_untimed(context, wait, idle_since))
                continue;
            /* A yield has just told it. */
            if (!context->crowded || shares || now == 0)
                now = tpb_now();
            if (wait->deadline > 0 && now >= wait->deadline) {
                tpr_patience_vain(&context->patience, now - idle_since);
                return true;
            }
            if (idle_since == 0)
                idle_since = now;
            if (!brief
                && (context->vain > 0
                    || !drive_pays(context, wait, now - idle_since, now,
                                      &gave))) {
                drive_record(context, wait);
                if (wait->since == 0)
                    wait->since = idle_since;
                return drive_park(context, wait->deadline);
            }
        }
        if (shares) {
            drive_gives(context);
            if (!drive_share(context, wait))
                return false;
            drive_gave(now, tpb_now(), &idle_since);
            now = 0;
        } else if (context->crowded) {
            now = drive_yield(context, now, &idle_since);
        } else if (TPB_UNLIKELY(drive_shares(context, wait)) && !nested) {
            if (!drive_share(context, wait))
                return false;
            shared = true;
        } else if (turn > DRIVE_EAGER_PASSES) {
            tpb_pause();
        }
    }
}

/* Is there something to do for a thread that is not the driver?  The wait is
 * over, or it may drive, or (who has claimed that) the token is free. */
static bool drive_is_up(tp_context *context,
                           const struct drive_wait *wait, bool claimed)
{
    if (drive_over(context, wait))
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
static bool drive_watch(tp_context *context,
                           const struct drive_wait *wait, bool claimed)
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
        up = drive_is_up(context, wait, claimed);
        if (up)
            break;
        before = now;
        if (context->spare)
            tpb_pause();
        else
            sched_yield();
        now = tpb_now();
    } while (now < until && now - before < DRIVE_TAKEN_NS);
    atomic_fetch_sub(&context->watchers, 1);
    return up;
}

static void drive_claim(tp_context *context, bool *claimed)
{
    uint32_t free = 0;

    if (!*claimed)
        *claimed = atomic_compare_exchange_strong(&context->driving, &free,
                                                  1);
}

/* Once per message: without a call. */
static inline bool drive_enter(tp_context *context, bool nested)
{
    if (!nested)
        return tpr_enter_token(context);
    context->depth++;
    return true;
}

/* Whether the wait is over.  `entered`: tpr_drive_enter() has begun it. */
static bool drive_await(tp_context *context, struct drive_wait *wait,
                           bool entered)
{
    bool claimed = entered, nested = !entered && tpr_holds(context), over;

    /* At least once, however little time is given. */
    while (!(over = drive_over(context, wait))) {
        bool mine = nested;

        if (!nested && context->mode != TP_PROGRESS_THREAD) {
            drive_claim(context, &claimed);
            mine = claimed;
        }
        if (mine && (entered || drive_enter(context, nested))) {
            entered = false;
            tpr_active(context);
            wait->quiet = false;
            if (drive_spin(context, wait)) {
                over = drive_told(context, wait);
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
        } else if (wait->quiet || !drive_watch(context, wait, claimed)) {
            drive_sleep(context, wait, claimed);
        }
        if (drive_late(wait)) {
            over = drive_over(context, wait);
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

static bool drive_until(tp_context *context, struct tpr_sync *sync,
                           uint64_t deadline, uint64_t delivered, bool entered)
{
    struct drive_wait wait = { .sync = sync, .deadline = deadline,
                                  .longer_alone = DRIVE_ALONE,
                                  .delivered = delivered };
    bool kicks = context->thread.runs && (entered || !tpr_holds(context)), over;

    if (kicks)
        tpr_thread_caller_enters(context);
    over = drive_await(context, &wait, entered);
    if (TPB_UNLIKELY(wait.recorded))
        tpr_record_awake(context, &wait.record);
    if (kicks)
        tpr_thread_caller_leaves(context);
    return over;
}

bool tpr_drive_past(tp_context *context, struct tpr_sync *sync,
                    uint64_t deadline, uint64_t delivered)
{
    return drive_until(context, sync, deadline, delivered, false);
}

bool tpr_drive(tp_context *context, struct tpr_sync *sync, uint64_t deadline)
{
    return drive_until(context, sync, deadline, 0, false);
}

bool tpr_drive_enter(tp_context *context)
{
    bool claimed = false;

    if (context->mode == TP_PROGRESS_THREAD || tpr_holds(context))
        return false;
    drive_claim(context, &claimed);
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
    return drive_until(context, sync, deadline, 0, true);
}
