/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * This rank's part of the job's record (runtime/base/record.h).  The counters
 * of a pipe are kept there and nowhere else, so that keeping them costs nothing
 * more; what a rank waits for is written when a thread of it is about to sleep.
 */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/core.h"

TPB_LOG_COMPONENT("record");

/* The first context of the rank has the section; others go unrecorded, but one
 * that comes after it has ended: scripts run several programs in turn. */
static bool record_claim(struct tpb_record_section *record)
{
    struct tpb_record_rank *rank = record->rank;
    uint32_t phase = __atomic_load_n(&rank->phase, __ATOMIC_ACQUIRE);
    uint32_t pid = TPB_RECORD_GET(rank->pid);

    if (phase != TPB_PHASE_NONE && phase != TPB_PHASE_DONE
        && (pid == 0 || kill((pid_t)pid, 0) == 0 || errno != ESRCH))
        return false;
    if (!__atomic_compare_exchange_n(&rank->phase, &phase, TPB_PHASE_INIT,
                                     false, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED))
        return false;
    if (phase != TPB_PHASE_NONE) {
        for (uint32_t i = 0; i < record->slots && i < rank->used; i++)
            if (record->pipes[i].serial != 0)
                tpb_record_give(record, &record->pipes[i]);
        TPB_RECORD_SET(rank->used, 0);
        TPB_RECORD_SET(rank->unrecorded, 0);
        TPB_RECORD_SET(rank->wait, (uint32_t)TPB_WAIT_NONE);
        TPB_RECORD_SET(rank->waits, 0);
        rank->imports = (struct tpb_record_imports){ 0 };
    }
    TPB_RECORD_SET(rank->pid, (uint32_t)getpid());
    TPB_RECORD_SET(rank->wait_peer, -1);
    TPB_RECORD_SET(rank->ahead, tpb_record_ahead());
    return true;
}

void tpr_record_open(tp_context *context)
{
    const char *text = context->settings.text[TPB_SET_RECORD];
    struct tpb_record_section *record = &context->record;
    struct tpb_error error = { "" };

    if (*text == '\0')
        return;
    if (tpb_record_attach(text, (uint32_t)context->rank, record,
                          &error) != TP_OK) {
        tpb_debug("%s", error.text);
        return;
    }
    if (!record_claim(record)) {
        tpb_record_detach(record);
        return;
    }
    context->env.imports = &record->rank->imports;
}

void tpr_record_close(tp_context *context)
{
    context->env.imports = &context->imports;
    tpr_record_phase(context, TPB_PHASE_DONE);
    tpb_record_detach(&context->record);
}

void tpr_record_phase(tp_context *context, uint32_t phase)
{
    if (context->record.rank != NULL)
        __atomic_store_n(&context->record.rank->phase, phase,
                         __ATOMIC_RELEASE);
}

void tpr_record_pipe(tp_pipe *pipe)
{
    struct tpb_record_section *record = &pipe->context->record;
    struct tpb_record_pipe *slot;

    pipe->record = &pipe->unrecorded;
    if (record->rank == NULL)
        return;
    slot = tpb_record_take(record, pipe->peer->rank, pipe->number);
    if (slot == NULL) {
        TPB_RECORD_ADD(record->rank->unrecorded, 1);
        return;
    }
    pipe->record = slot;
    tpr_record_transport(pipe);
}

void tpr_record_drop(tp_pipe *pipe)
{
    struct tpb_record_section *record = &pipe->context->record;
    struct tpb_record_pipe *slot = pipe->record;

    if (record->rank == NULL || pipe->dropped)
        return;
    pipe->dropped = true;
    pthread_mutex_lock(&pipe->context->table_lock);
    if (slot != &pipe->unrecorded) {
        pipe->unrecorded = *slot;
        __atomic_store_n(&pipe->record, &pipe->unrecorded, __ATOMIC_RELEASE);
        tpb_record_give(record, slot);
    } else {
        TPB_RECORD_ADD(record->rank->unrecorded, -1);
    }
    pthread_mutex_unlock(&pipe->context->table_lock);
}

void tpr_record_stats(const tp_pipe *pipe, struct tp_stats *stats)
{
    const struct tpb_record_pipe *record, *then;

    /* Meanwhile the slot may be given back, and another pipe's. */
    record = __atomic_load_n(&pipe->record, __ATOMIC_ACQUIRE);
    do {
        const struct tp_stats *from = &record->stats;

        then = record;
#define RECORD_STAT(member) \
    stats->member = __atomic_load_n(&from->member, __ATOMIC_ACQUIRE)
        RECORD_STAT(messages_sent);
        RECORD_STAT(messages_received);
        RECORD_STAT(bytes_sent);
        RECORD_STAT(bytes_received);
        RECORD_STAT(writes_pending);
        RECORD_STAT(reads_pending);
        RECORD_STAT(bytes_buffered);
        RECORD_STAT(blocked);
#undef RECORD_STAT
        record = __atomic_load_n(&pipe->record, __ATOMIC_ACQUIRE);
    } while (record != then);
}

void tpr_record_transport(tp_pipe *pipe)
{
    tpb_record_transport(pipe->record, atomic_load(&pipe->peer->transport));
}

/* Of several threads the one counts that waits longest for somebody in
 * particular: others often do nothing but drive. */
static bool record_before(const struct tpr_wait *a, const struct tpr_wait *b)
{
    if ((a->what == TPB_WAIT_ANY) != (b->what == TPB_WAIT_ANY))
        return b->what == TPB_WAIT_ANY;
    return a->since < b->since;
}

/* With waits_lock. */
static void record_waits(tp_context *context)
{
    struct tpb_record_rank *rank = context->record.rank;
    const struct tpr_wait *shown = NULL;
    uint32_t count = 0;

    TPB_LIST_EACH(node, &context->waits) {
        const struct tpr_wait *wait = TPB_CONTAINER(node, struct tpr_wait,
                                                    link);

        if (shown == NULL || record_before(wait, shown))
            shown = wait;
        count++;
    }
    TPB_RECORD_SET(rank->waits, count);
    TPB_RECORD_SET(rank->wait_peer, shown != NULL ? shown->peer : -1);
    if (shown != NULL)
        TPB_RECORD_SET(rank->wait_since, shown->since);
    TPB_RECORD_SET(rank->wait, shown != NULL ? shown->what
                                             : (uint32_t)TPB_WAIT_NONE);
}

void tpr_record_wait(tp_context *context, struct tpr_wait *wait,
                     const struct tpr_sync *sync)
{
    if (context->record.rank == NULL)
        return;
    wait->what = sync != NULL ? sync->wait : (uint32_t)TPB_WAIT_ANY;
    wait->peer = sync != NULL && sync->pipe != NULL ? sync->pipe->peer->rank
                                                    : -1;
    wait->since = tpb_now();
    wait->thread = TPR_ME;
    wait->outer = NULL;
    pthread_mutex_lock(&context->waits_lock);
    TPB_LIST_EACH(node, &context->waits) {
        struct tpr_wait *other = TPB_CONTAINER(node, struct tpr_wait, link);

        if (other->thread == wait->thread) {
            tpb_list_unlink(node);
            wait->outer = other;
        }
    }
    tpb_list_append(&context->waits, &wait->link);
    record_waits(context);
    pthread_mutex_unlock(&context->waits_lock);
}

void tpr_record_awake(tp_context *context, struct tpr_wait *wait)
{
    if (context->record.rank == NULL)
        return;
    pthread_mutex_lock(&context->waits_lock);
    tpb_list_unlink(&wait->link);
    if (wait->outer != NULL)
        tpb_list_append(&context->waits, &wait->outer->link);
    record_waits(context);
    pthread_mutex_unlock(&context->waits_lock);
}
