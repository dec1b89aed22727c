/* SPDX-License-Identifier: BSD-3-Clause */
/* Looks at the records, and what changed between two looks. */
#include "config.h"

#include <stdio.h>

#include "launcher/tptop.h"
#include "runtime/base/alloc.h"

/* How often a rank is looked at whose pipes go meanwhile. */
enum { LOOK_TRIES = 8 };

static void look_fini(struct tptop_look *look)
{
    for (uint32_t i = 0; i < look->count; i++)
        tpb_free(look->ranks[i].pipes);
    tpb_free(look->ranks);
    *look = (struct tptop_look){ 0 };
}

/* A buffer that the receiver is to fetch itself blocks no frame; but if the
 * rank sleeps for it, it is known since when. */
static void look_blocked(const struct tpb_record_rank *rank,
                         struct tpb_record_pipe *pipe)
{
    if (pipe->blocked_since == 0 && pipe->stats.writes_pending > 0
        && rank->phase == TPB_PHASE_RUNNING && rank->wait == TPB_WAIT_SEND
        && rank->wait_peer == pipe->peer)
        pipe->blocked_since = rank->wait_since;
}

/* What the rank was at when its process ended does not go on. */
static void look_ended(struct tptop_rank *rank)
{
    if (rank->record.ended == 0 || rank->record.phase == TPB_PHASE_DONE)
        return;
    rank->record.phase = TPTOP_ENDED;
    rank->record.wait = TPB_WAIT_NONE;
    for (uint32_t i = 0; i < rank->record.used; i++)
        rank->pipes[i].blocked_since = 0;
}

static bool look_once(const struct tpb_record *record, uint32_t rank,
                      struct tptop_rank *to)
{
    uint32_t got = 0;

    tpb_free(to->pipes);
    to->pipes = NULL;
    if (!tpb_record_rank(record, rank, &to->record) || to->record.used == 0)
        return true;
    to->pipes = tpb_array(to->record.used, sizeof(to->pipes[0]));
    if (to->pipes == NULL)
        return false;
    while (got < to->record.used
           && tpb_record_pipe(record, rank, got, &to->pipes[got]))
        look_blocked(&to->record, &to->pipes[got++]);
    to->record.used = got;
    return true;
}

/* A pipe that goes meanwhile would be counted twice, or not at all. */
static bool look_rank(const struct tpb_record *record, uint32_t rank,
                      struct tptop_rank *to)
{
    struct tpb_record_rank after = { .pid = 0 };
    uint64_t changes;

    for (int i = 0; i < LOOK_TRIES; i++) {
        if (!look_once(record, rank, to))
            return false;
        changes = to->record.gone.changes;
        if (!tpb_record_rank(record, rank, &after)
            || (after.gone.changes == changes && changes % 2 == 0))
            break;
    }
    look_ended(to);
    return true;
}

tp_status tptop_look(struct tptop_sample *sample,
                     const struct tpb_record *record)
{
    struct tptop_look look = { .at = tpb_now() };

    sample->file = record->file;
    look.ranks = tpb_array(record->ranks, sizeof(look.ranks[0]));
    if (look.ranks == NULL)
        return TP_ERR_NO_MEMORY;
    look.count = record->ranks;
    for (uint32_t i = 0; i < look.count; i++)
        if (!look_rank(record, i, &look.ranks[i])) {
            look_fini(&look);
            return TP_ERR_NO_MEMORY;
        }
    look_fini(&sample->before);
    sample->before = sample->now;
    sample->now = look;
    sample->seconds = sample->before.count > 0
        ? (double)(look.at - sample->before.at) * 1e-9 : 0;
    return TP_OK;
}

void tptop_sample_fini(struct tptop_sample *sample)
{
    look_fini(&sample->before);
    look_fini(&sample->now);
}

static double sample_rate(const struct tptop_sample *sample, uint64_t before,
                          uint64_t now)
{
    return sample->seconds > 0 && now > before
           ? (double)(now - before) / sample->seconds : 0;
}

static struct tptop_rates sample_rates(const struct tptop_sample *sample,
                                       const struct tp_stats *before,
                                       const struct tp_stats *now)
{
    return (struct tptop_rates){
        sample_rate(sample, before->messages_sent, now->messages_sent),
        sample_rate(sample, before->bytes_sent, now->bytes_sent),
        sample_rate(sample, before->messages_received,
                    now->messages_received),
        sample_rate(sample, before->bytes_received, now->bytes_received),
        now->writes_pending + now->reads_pending, now->bytes_buffered
    };
}

struct tptop_rates tptop_pipe_rates(const struct tptop_sample *sample,
                                    uint32_t rank, uint32_t slot)
{
    static const struct tp_stats nothing;
    const struct tp_stats *now = &sample->now.ranks[rank].pipes[slot].stats;
    const struct tp_stats *before = &nothing;

    /* A slot may have another pipe than before; one that is new began at
     * nothing. */
    if (rank < sample->before.count
        && slot < sample->before.ranks[rank].record.used
        && sample->before.ranks[rank].pipes[slot].serial
           == sample->now.ranks[rank].pipes[slot].serial)
        before = &sample->before.ranks[rank].pipes[slot].stats;
    return sample_rates(sample, before, now);
}

/* Of all pipes that the rank has had, also in programs before this one. */
static struct tp_stats rank_stats(const struct tptop_rank *rank)
{
    const struct tpb_record_gone *gone = &rank->record.gone;
    struct tp_stats sum = {
        .messages_sent = gone->messages_sent,
        .messages_received = gone->messages_received,
        .bytes_sent = gone->bytes_sent, .bytes_received = gone->bytes_received
    };

    for (uint32_t i = 0; i < rank->record.used; i++) {
        const struct tp_stats *one = &rank->pipes[i].stats;

        sum.messages_sent += one->messages_sent;
        sum.messages_received += one->messages_received;
        sum.bytes_sent += one->bytes_sent;
        sum.bytes_received += one->bytes_received;
        sum.writes_pending += one->writes_pending;
        sum.reads_pending += one->reads_pending;
        sum.bytes_buffered += one->bytes_buffered;
    }
    return sum;
}

struct tptop_rates tptop_rank_rates(const struct tptop_sample *sample,
                                    uint32_t rank)
{
    const struct tptop_rank *now = &sample->now.ranks[rank];
    struct tp_stats sum = rank_stats(now), before = { 0 };

    if (rank < sample->before.count)
        before = rank_stats(&sample->before.ranks[rank]);
    return sample_rates(sample, &before, &sum);
}

void tptop_state(const struct tptop_rank *rank, char *text, size_t size)
{
    static const char *const phases[] = { "not in tp", "tp_init", "running",
                                          "tp_finalize", "finished",
                                          "ended" };
    static const char *const waits[] = { "", "send to", "receive from",
                                         "read from", "" };
    const struct tpb_record_rank *record = &rank->record;

    if (record->phase != TPB_PHASE_RUNNING || record->wait == TPB_WAIT_NONE)
        snprintf(text, size, "%s", phases[record->phase]);
    else if (record->wait == TPB_WAIT_ANY)
        snprintf(text, size, "tp_wait");
    else if (record->wait_peer < 0)
        snprintf(text, size, "%s outside", waits[record->wait]);
    else
        snprintf(text, size, "%s %d", waits[record->wait],
                 record->wait_peer);
}
