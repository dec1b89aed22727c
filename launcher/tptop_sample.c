/* SPDX-License-Identifier: BSD-3-Clause */
/* Looks at the records, and what changed between two looks. */
#include "config.h"

#include <stdio.h>

#include "launcher/tptop.h"
#include "runtime/base/alloc.h"

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

static bool look_rank(const struct tpb_record *record, uint32_t rank,
                      struct tptop_rank *to)
{
    uint32_t got = 0;

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
    return (struct tptop_rates){
        sample_rate(sample, before->messages_sent, now->messages_sent),
        sample_rate(sample, before->bytes_sent, now->bytes_sent),
        sample_rate(sample, before->messages_received,
                    now->messages_received),
        sample_rate(sample, before->bytes_received, now->bytes_received),
        now->writes_pending + now->reads_pending, now->bytes_buffered
    };
}

struct tptop_rates tptop_rank_rates(const struct tptop_sample *sample,
                                    uint32_t rank)
{
    struct tptop_rates sum = { 0 };

    for (uint32_t i = 0; i < sample->now.ranks[rank].record.used; i++) {
        struct tptop_rates one = tptop_pipe_rates(sample, rank, i);

        sum.messages_out += one.messages_out;
        sum.bytes_out += one.bytes_out;
        sum.messages_in += one.messages_in;
        sum.bytes_in += one.bytes_in;
        sum.queued += one.queued;
        sum.buffered += one.buffered;
    }
    return sum;
}

void tptop_state(const struct tptop_rank *rank, char *text, size_t size)
{
    static const char *const phases[] = { "not in tp", "tp_init", "running",
                                          "tp_finalize", "finished" };
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
