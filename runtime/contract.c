/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A path contract that the launcher insists on (tprun --require) ends the job
 * once it is broken, whatever the program makes of its statuses.
 *
 * The program hears first: its callbacks and blocking calls end with
 * TP_ERR_UNREACHABLE, and CONTRACT_GRACE later, or when the program leaves
 * before, a thread of its own tells the launcher.  A thread, because telling
 * blocks, and because nobody may drive the context any more.
 */
#include "config.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/base/thread.h"
#include "runtime/contract.h"

TPB_LOG_COMPONENT("peer");

enum {
    CONTRACT_GRACE_MS = 100,
    CONTRACT_STATUS = 1            /* of the job */
};

/* Of the first context whose contract was broken; under the lock.  It stays:
 * the process ends by it. */
static struct {
    pthread_mutex_t lock;
    const tp_context *context;     /* NULL: none */
    pid_t pid;                     /* const once atexit() knows us */
    char reason[480];              /* as much as all launchers pass on */
} contract = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Never returns if a contract was broken.  Who comes second waits for the
 * lock, and is killed with the first. */
static void contract_end(const tp_context *context)
{
    struct tpr_bootstrap *bootstrap;

    pthread_mutex_lock(&contract.lock);
    if (contract.context != NULL
        && (context == NULL || contract.context == context)) {
        bootstrap = contract.context->bootstrap;
        bootstrap->ops->abort(bootstrap, CONTRACT_STATUS, contract.reason);
        _exit(CONTRACT_STATUS);
    }
    pthread_mutex_unlock(&contract.lock);
}

static void *contract_wait(void *arg)
{
    struct timespec grace = { 0, CONTRACT_GRACE_MS * 1000000L };

    (void)arg;
    nanosleep(&grace, NULL);
    contract_end(NULL);
    return NULL;
}

/* A program that exits because of what it was told: the launcher is to know
 * the cause, not that status only.  Not in a child that it has forked.  What it
 * has written goes out first, as exit() would see to: if that waits for
 * somebody the other thread ends it. */
static void contract_exits(void)
{
    if (contract.pid != getpid())
        return;
    (void)fflush(NULL);
    contract_end(NULL);
}

static bool contract_start(void)
{
    pthread_t thread;
    int code = tpb_thread_start(&thread, contract_wait, NULL);

    if (code == 0)
        pthread_detach(thread);
    return code == 0;
}

static void contract_note(const char *why)
{
    static const char more[] = " ...";
    int length = snprintf(contract.reason, sizeof(contract.reason), "%s",
                          why);

    if (length >= (int)sizeof(contract.reason))
        memcpy(contract.reason + sizeof(contract.reason) - sizeof(more), more,
               sizeof(more));
}

void tpr_contract_broken(const struct tpr_peer *peer, const char *why)
{
    const tp_context *context = peer->context;
    bool first;

    if (!tpr_contract_ends_job(context)) {
        tpb_error_log("%s", why);
        return;
    }
    pthread_mutex_lock(&contract.lock);
    first = contract.context == NULL;
    if (first) {
        contract.context = context;
        contract_note(why);
        contract.pid = getpid();
        if (atexit(contract_exits) != 0)
            tpb_debug("no room for another atexit()");
    }
    pthread_mutex_unlock(&contract.lock);
    if (!first)
        tpb_error_log("%s", why);
    else if (!contract_start())
        contract_end(NULL);        /* before the callbacks, then */
}

void tpr_contract_leave(const tp_context *context)
{
    contract_end(context);
}
