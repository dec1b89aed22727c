/* SPDX-License-Identifier: BSD-3-Clause */
/* Threads of ours in a program that is not. */
#ifndef TPB_THREAD_H
#define TPB_THREAD_H

#include <pthread.h>

/* As pthread_create(3), on a stack of 256 KiB at least, for a thread that gets
 * no signal but those of its own faults: others are the business of the
 * program's own threads.  0, or an errno. */
int tpb_thread_start(pthread_t *thread, void *(*run)(void *), void *arg);

/* What keeps a thread from starting where that gives EAGAIN: "the limit of ...
 * is reached". */
const char *tpb_thread_limit(void);

#endif
