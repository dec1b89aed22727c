/* SPDX-License-Identifier: BSD-3-Clause */
/* What a context and its own thread share (thread.c). */
#ifndef TPR_THREAD_H
#define TPR_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/base.h"
#include "runtime/tp.h"

/* Where the thread is.  Who finds it asleep and leaves it something to do wakes
 * it where it is PARKED; else it comes by itself within some milliseconds. */
enum tpr_thread_state {
    TPR_THREAD_UP,
    TPR_THREAD_PARKED,             /* until something happens */
    TPR_THREAD_NAPS,               /* until its time is up */
    TPR_THREAD_PASSED,             /* parked, but a caller has come since, who
                                      calls it when he leaves */
    TPR_THREAD_CALLED              /* parked, but the timer runs */
};

struct tpr_thread {
    pthread_t id;
    bool runs;                     /* const: there is one */
    int epoll;                     /* the context's, and these two: */
    int kick;                      /* eventfd: at once */
    int timer;                     /* timerfd: for who has time to wait */
    _Atomic uint32_t state;        /* atomic: enum tpr_thread_state */
    _Atomic uint32_t resting;      /* atomic: until callers have left */
    _Atomic uint32_t callers;      /* atomic: inside blocking calls */
    _Atomic uint32_t activity;     /* atomic: grows as callers drive */
    _Atomic uint32_t left;         /* atomic: `activity` as the timer was set */
    _Atomic uint32_t stop;         /* atomic */
    void (*last)(tp_context *context);  /* what it does at its end, or NULL;
                                      set before stop */
    bool habit;                    /* callers came again since it parked last */
};

tp_status tpr_thread_start(tp_context *context, struct tpb_error *error);
/* `last`, which may be NULL, is done by the thread if callbacks are always its,
 * else by the caller. */
void tpr_thread_stop(tp_context *context, void (*last)(tp_context *context));
/* A caller begins to drive, is about to sleep in epoll, ends. */
void tpr_thread_caller_enters(tp_context *context);
void tpr_thread_caller_parks(tp_context *context);
void tpr_thread_caller_leaves(tp_context *context);
/* Somebody drives, other than the thread; token. */
void tpr_active(tp_context *context);
/* There may be something to do for it, which `hurries` if it is more than
 * callbacks.  False: it sleeps, and has to be woken; else it looks soon. */
bool tpr_thread_comes(tp_context *context, bool hurries);

#endif
