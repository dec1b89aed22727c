/* SPDX-License-Identifier: BSD-3-Clause */
/* tp_progress() and tp_wait(), and what each thread knows of callbacks. */
#include "config.h"

#include <limits.h>
#include <pthread.h>
#include <sys/timerfd.h>

#include "runtime/base/alloc.h"
#include "runtime/core.h"
#include "runtime/drive.h"
#include "runtime/stream.h"

enum { WAIT_ROUNDS = 4 };          /* of one call in an event loop */

_Thread_local char tpr_me;

/*
 * Up to which callback this thread knows of a context's: those that ran between
 * its last tp_wait() or tp_progress() and the next one must end that next one,
 * whoever ran them, or its caller would sleep over what he waits for.
 */
struct wait_known {
    uint64_t serial;               /* the context's; 0: unused */
    uint64_t delivered;
};
enum { WAIT_KNOWN = 4 };           /* those of more contexts are allocated */
static _Thread_local TPR_TLS struct wait_known wait_known[WAIT_KNOWN];
static _Thread_local TPR_TLS struct wait_more {
    struct wait_known known;
    struct wait_more *next;
} *wait_more;

/* The contexts there are: what a thread knows of others it need not keep. */
static pthread_mutex_t wait_lock = PTHREAD_MUTEX_INITIALIZER;
static struct tpb_list wait_contexts = { &wait_contexts, &wait_contexts };

/* Frees what a thread has allocated when it ends. */
static pthread_key_t wait_key;
static bool wait_has_key;
static pthread_once_t wait_ready = PTHREAD_ONCE_INIT;

static void wait_thread_ends(void *arg)
{
    struct wait_more *more = arg, *next;

    wait_more = NULL;
    for (; more != NULL; more = next) {
        next = more->next;
        tpb_free(more);
    }
}

static void wait_forks(void)
{
    pthread_mutex_lock(&wait_lock);
}

static void wait_forked(void)
{
    pthread_mutex_unlock(&wait_lock);
}

/* A child that is forked may call tp_init(), whatever other threads do. */
static void wait_get_ready(void)
{
    wait_has_key = pthread_key_create(&wait_key, wait_thread_ends) == 0;
    (void)pthread_atfork(wait_forks, wait_forked, wait_forked);
}

void tpr_wait_init(tp_context *context)
{
    pthread_once(&wait_ready, wait_get_ready);
    pthread_mutex_lock(&wait_lock);
    tpb_list_append(&wait_contexts, &context->wait_link);
    pthread_mutex_unlock(&wait_lock);
}

void tpr_wait_fini(tp_context *context)
{
    pthread_mutex_lock(&wait_lock);
    tpb_list_unlink(&context->wait_link);
    pthread_mutex_unlock(&wait_lock);
}

/* This thread's entry, or NULL. */
static inline struct wait_known *wait_find(const tp_context *context)
{
    struct wait_known *known = &wait_known[0];

    if (TPB_LIKELY(known->serial == context->serial))
        return known;
    for (unsigned i = 1; i < WAIT_KNOWN; i++)
        if (wait_known[i].serial == context->serial)
            return &wait_known[i];
    for (struct wait_more *more = wait_more; more != NULL; more = more->next)
        if (more->known.serial == context->serial)
            return &more->known;
    return NULL;
}

/* Under wait_lock. */
static bool wait_is_spare(const struct wait_known *known)
{
    TPB_LIST_EACH(node, &wait_contexts)
        if (TPB_CONTAINER(node, tp_context, wait_link)->serial
            == known->serial)
            return false;
    return true;
}

/* One of a context that is gone, or of none; or NULL. */
static struct wait_known *wait_spare(void)
{
    struct wait_known *spare = NULL;

    pthread_mutex_lock(&wait_lock);
    for (unsigned i = 0; i < WAIT_KNOWN && spare == NULL; i++)
        if (wait_is_spare(&wait_known[i]))
            spare = &wait_known[i];
    for (struct wait_more *more = wait_more; more != NULL && spare == NULL;
         more = more->next)
        if (wait_is_spare(&more->known))
            spare = &more->known;
    pthread_mutex_unlock(&wait_lock);
    return spare;
}

/* One more; or NULL. */
static struct wait_known *wait_add(void)
{
    struct wait_more *more = wait_has_key ? tpb_zalloc(sizeof(*more)) : NULL;

    if (more == NULL || pthread_setspecific(wait_key, more) != 0) {
        tpb_free(more);
        return NULL;
    }
    more->next = wait_more;
    wait_more = more;
    return &more->known;
}

/* ... a new one with `delivered`.  Without memory another is forgotten: then a
 * wait returns once without need, and neither it nor progress tells of what
 * others ran. */
static struct wait_known *wait_know(const tp_context *context,
                                    uint64_t delivered)
{
    static _Thread_local TPR_TLS unsigned next;
    struct wait_known *known = wait_find(context);

    if (TPB_LIKELY(known != NULL))
        return known;
    known = wait_spare();
    if (known == NULL)
        known = wait_add();
    if (known == NULL)
        known = &wait_known[next++ % WAIT_KNOWN];
    *known = (struct wait_known){ context->serial, delivered };
    return known;
}

void tpr_progress_mine(const tp_context *context)
{
    (void)wait_know(context, 0);
}

static uint64_t wait_delivered(const tp_context *context)
{
    return __atomic_load_n(&context->delivered, __ATOMIC_ACQUIRE);
}

/* Somebody may poll(2) next: he must be woken, and where nothing but a clock
 * tells that there is something to do, by a clock.  If there is more to do now,
 * whoever leaves the token rings, as nothing is armed.  So too, if there was
 * `news`, for a caller who sleeps in epoll: what was to wake him may have been
 * heard of here. */
static void wait_arm_fd(tp_context *context, bool moved, bool news)
{
    int limit = tpr_park_timeout(context, 0);

    if (moved || !tpb_list_empty(&context->done)
        || !tpb_list_empty(&context->graveyard)
        || (news && atomic_load(&context->caller_parked) != 0))
        return;
    if (!tpr_arm(context))
        tpr_touch(context);
    else if (limit >= 0)
        timerfd_settime(context->timer.fd, 0, &(struct itimerspec){
            .it_value = { limit / 1000, limit % 1000 * 1000000L } }, NULL);
}

static bool wait_is_settled(const tp_context *context)
{
    for (uint32_t i = 0; i < context->endpoint_count; i++) {
        struct tpf_endpoint *endpoint = context->endpoints[i];
        const struct tpf_backend *backend = endpoint->backend;

        if (endpoint->conns > 0 && backend->presence == NULL
            && (backend->settled == NULL || !backend->settled(endpoint)))
            return false;
    }
    return true;
}

bool tpr_is_quiet(tp_context *context)
{
    return context->copying == 0 && context->env.helping == 0
           && tpb_list_empty(&context->done)
           && tpb_list_empty(&context->graveyard)
           && tpr_park_timeout(context, 0) < 0 && wait_is_settled(context);
}

/* Is it as the last call left it, and will whatever comes wake who polls?  What
 * the context's thread has heard of and not looked at is in ask_all. */
static bool wait_is_as_left(tp_context *context)
{
    return context->armed && !context->dirty && !context->ask_all
           && atomic_load(&context->tasks) == NULL
           && tpb_list_empty(&context->late)
           && tpb_list_empty(&context->env.ready) && tpr_is_quiet(context);
}

/* For an event loop, whose program may sleep next: what is found to do is done
 * at once, as it would have to come again for it. */
static void wait_in_loop(tp_context *context)
{
    bool heard = tpr_poll_watches(context), moved = true;
    bool news = heard || context->dirty;

    if (!heard && wait_is_as_left(context))
        return;
    context->ask_all = true;
    for (int round = 0; moved && round < WAIT_ROUNDS; round++) {
        news |= tpr_dispatch(context) > 0;     /* as in drive_spin() */
        moved = tpr_pass(context);
        news |= tpr_dispatch(context) > 0 || moved;
    }
    wait_arm_fd(context, moved, news);
}

/* With the token. */
static void wait_once(tp_context *context, bool nested)
{
    bool polls = atomic_load_explicit(&context->fd_used, memory_order_relaxed);

    tpr_active(context);
    if (polls && !nested) {
        wait_in_loop(context);
        return;
    }
    /* It may not be called often. */
    if (polls || !tpb_list_empty(&context->contacts)
        || tpr_takes_long(context))
        tpr_poll_watches(context);
    context->ask_all |= polls;
    if (!nested)
        tpr_dispatch(context);
    tpr_pass(context);
    if (!nested)
        tpr_dispatch(context);
}

static int wait_told(uint64_t count)
{
    return count < INT_MAX ? (int)count : INT_MAX;
}

/* A loop that adds up how many completed must come to their number, whoever ran
 * them; what ran before the thread knew of the context is not its own. */
static int wait_count(const tp_context *context, uint64_t before, bool nested)
{
    struct wait_known *known;
    uint64_t now, count;

    if (nested)
        return 0;                      /* of its callback's own caller */
    now = wait_delivered(context);
    known = wait_know(context, before);
    count = now - known->delivered;
    known->delivered = now;
    return wait_told(count);
}

tp_status tp_progress(tp_context *context, int *completed)
{
    bool nested, polled, rung;
    uint64_t before;
    int count;

    if (context == NULL)
        return TP_ERR_INVALID;
    nested = tpr_holds(context);
    before = wait_delivered(context);
    /* Pairs with poller_begin(). */
    polled = (atomic_load_explicit(&context->sleepers, memory_order_acquire)
              & TPR_POLLED) != 0 && !nested;
    if (context->mode != TP_PROGRESS_THREAD && tpr_enter(context)) {
        rung = polled && tpr_poller_begin(context);
        wait_once(context, nested);
        if (polled)
            tpr_poller_end(context, rung);
        tpr_leave(context);
    } else if (polled) {
        tpr_poller_away(context);
    }
    count = wait_count(context, before, nested);
    if (completed != NULL)
        *completed = count;
    return TP_OK;
}

/* Inside a callback, whose caller counts it and those before: what is due next
 * is waited for, and told to that caller when it has run. */
static tp_status wait_nested(tp_context *context, uint64_t deadline,
                             int *completed)
{
    bool over = tpr_drive_past(context, NULL, deadline,
                               wait_delivered(context));

    if (completed != NULL)
        *completed = 0;
    return over ? TP_OK : TP_ERR_TIMEOUT;
}

tp_status tp_wait(tp_context *context, int timeout_ms, int *completed)
{
    struct wait_known *known;
    uint64_t before, from, deadline = 0;
    bool over;

    if (context == NULL || timeout_ms < -1)
        return TP_ERR_INVALID;
    if (timeout_ms >= 0)
        deadline = tpb_now() + (uint64_t)timeout_ms * 1000000u + 1;
    if (TPB_UNLIKELY(tpr_holds(context)))
        return wait_nested(context, deadline, completed);
    /* Of a thread that is new here the wait does not last, as what it looked at
     * may have changed since; but what ran before is not its own. */
    known = wait_find(context);
    from = known != NULL ? known->delivered : wait_delivered(context);
    before = known != NULL ? from : 0;
    if (TPB_UNLIKELY(known == NULL))
        known = wait_know(context, 0);
    over = tpr_drive_past(context, NULL, deadline, before);
    if (TPB_UNLIKELY(known->serial != context->serial))
        known = wait_know(context, 0); /* callbacks have used others */
    known->delivered = wait_delivered(context);
    if (completed != NULL)
        *completed = wait_told(known->delivered - from);
    /* Or another thread ran one since: what is counted is told. */
    return over || known->delivered != before ? TP_OK : TP_ERR_TIMEOUT;
}
