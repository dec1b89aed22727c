/* SPDX-License-Identifier: BSD-3-Clause */
/* Threads of ours in a program that is not. */
#ifndef TPB_THREAD_H
#define TPB_THREAD_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/base/base.h"

/* As pthread_create(3), on a stack of 256 KiB at least, for a thread that gets
 * no signal but those of its own faults: others are the business of the
 * program's own threads.  0, or an errno. */
int tpb_thread_start(pthread_t *thread, void *(*run)(void *), void *arg);

/* What keeps a thread from starting where that gives EAGAIN: "the limit of ...
 * is reached". */
const char *tpb_thread_limit(void);

/* What is done once in a process, and tried again if that failed. */
struct tpb_once {
    pthread_mutex_t lock;
    _Atomic bool done;             /* atomic: written with the lock */
};
#define TPB_ONCE_INIT { .lock = PTHREAD_MUTEX_INITIALIZER }
/* What run() returns now, with its words; TP_OK if it did before. */
tp_status tpb_once(struct tpb_once *once,
                   tp_status (*run)(struct tpb_error *error),
                   struct tpb_error *error);

#endif
