/* SPDX-License-Identifier: BSD-3-Clause */
/* See thread.h. */
#include "config.h"

#include <signal.h>

#include "runtime/base/thread.h"

int tpb_thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    int code;

    /* It inherits the mask, and so never runs without. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}
