/* SPDX-License-Identifier: BSD-3-Clause */
/* See thread.h. */
#include "config.h"

#include <signal.h>

#include "runtime/base/base.h"
#include "runtime/base/thread.h"

/* The default is the limit of the stack (ulimit -s), which may be for programs
 * of thousands of threads. */
enum { THREAD_STACK = 256 << 10 };

/* What a fault of the thread itself raises, in a callback of the program's for
 * instance: blocked, it would end the program without its handler. */
static const int thread_faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP,
                                     SIGSYS };

static void thread_widen(pthread_attr_t *attributes)
{
    size_t size = 0;

    if (pthread_attr_getstacksize(attributes, &size) == 0
        && size < THREAD_STACK)
        pthread_attr_setstacksize(attributes, THREAD_STACK);
}

/* For want of address space, or of memory that may be locked, the C library
 * says the same. */
const char *tpb_thread_limit(void)
{
    if (tpb_memory_locked())
        return "the limit of locked memory (ulimit -l; mlockall(2) locks the"
               " stacks of threads, too) or of processes and threads"
               " (ulimit -u, pids cgroup) is reached";
    return tpb_memory_limited()
           ? "the limit of processes and threads (ulimit -u, pids cgroup) or"
             " of memory (ulimit -v, -d) is reached"
           : "the limit of processes and threads (ulimit -u, pids cgroup) is"
             " reached";
}

int tpb_thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    int code = pthread_attr_init(&attributes);

    if (code != 0)
        return code;
    thread_widen(&attributes);
    /* It inherits the mask, and so never runs without. */
    sigfillset(&all);
    for (size_t i = 0; i < TPB_COUNT(thread_faults); i++)
        sigdelset(&all, thread_faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(thread, &attributes, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return code;
}

tp_status tpb_once(struct tpb_once *once,
                   tp_status (*run)(struct tpb_error *error),
                   struct tpb_error *error)
{
    tp_status status = TP_OK;

    /* Pairs with the release below: what run() has written is seen. */
    if (atomic_load_explicit(&once->done, memory_order_acquire))
        return TP_OK;
    pthread_mutex_lock(&once->lock);
    if (!atomic_load_explicit(&once->done, memory_order_relaxed)) {
        status = run(error);
        atomic_store_explicit(&once->done, status == TP_OK,
                              memory_order_release);
    }
    pthread_mutex_unlock(&once->lock);
    return status;
}
