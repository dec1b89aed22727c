/* SPDX-License-Identifier: BSD-3-Clause */
/* A sample as JSON, one object on one line. */
#include "config.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>

#include "launcher/tptop.h"
#include "topology/json.h"

static json_t *json_pipe(const struct tptop_sample *sample, uint32_t rank,
                         uint32_t slot)
{
    const struct tpb_record_pipe *pipe =
        &sample->now.ranks[rank].pipes[slot];
    const struct tp_stats *stats = &pipe->stats;
    struct tptop_rates rates = tptop_pipe_rates(sample, rank, slot);
    uint64_t since = pipe->blocked_since;
    json_t *object = json_pack(
        "{s:i, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
        "peer", (int)pipe->peer, "number", (json_int_t)pipe->number,
        "backend", stats->transport,
        "messages_sent", (json_int_t)stats->messages_sent,
        "bytes_sent", (json_int_t)stats->bytes_sent,
        "messages_received", (json_int_t)stats->messages_received,
        "bytes_received", (json_int_t)stats->bytes_received,
        "writes_pending", (json_int_t)stats->writes_pending,
        "reads_pending", (json_int_t)stats->reads_pending,
        "bytes_buffered", (json_int_t)stats->bytes_buffered);

    if (object != NULL)
        json_object_update_new(object, json_pack(
            "{s:f, s:f, s:f, s:f, s:f}",
            "messages_sent_per_s", rates.messages_out,
            "bytes_sent_per_s", rates.bytes_out,
            "messages_received_per_s", rates.messages_in,
            "bytes_received_per_s", rates.bytes_in,
            "blocked_s", since != 0 && sample->now.at > since
            ? (double)(sample->now.at - since) * 1e-9 : 0.0));
    return object;
}

/* What it waits for; null if it does not. */
static json_t *json_wait(const struct tptop_sample *sample,
                         const struct tpb_record_rank *record)
{
    static const char *const calls[] = { "", "send", "receive", "read",
                                         "any" };

    if (record->phase != TPB_PHASE_RUNNING || record->wait == TPB_WAIT_NONE)
        return json_null();
    return json_pack("{s:s, s:i, s:f, s:I}", "for", calls[record->wait],
                     "peer", (int)record->wait_peer, "seconds",
                     sample->now.at > record->wait_since
                     ? (double)(sample->now.at - record->wait_since) * 1e-9
                     : 0.0, "threads", (json_int_t)record->waits);
}

static json_t *json_gone(const struct tpb_record_gone *gone)
{
    return json_pack("{s:I, s:I, s:I, s:I}",
                     "messages_sent", (json_int_t)gone->messages_sent,
                     "bytes_sent", (json_int_t)gone->bytes_sent,
                     "messages_received", (json_int_t)gone->messages_received,
                     "bytes_received", (json_int_t)gone->bytes_received);
}

static json_t *json_rank(const struct tptop_sample *sample, uint32_t index)
{
    static const char *const phases[] = { "none", "init", "running",
                                          "finalize", "done", "ended" };
    const struct tptop_rank *rank = &sample->now.ranks[index];
    json_t *pipes = json_array();

    for (uint32_t i = 0; i < rank->record.used; i++)
        if (rank->pipes[i].serial != 0)
            json_array_append_new(pipes, json_pipe(sample, index, i));
    return json_pack("{s:i, s:I, s:s, s:o, s:I, s:o, s:o, s:o}", "rank",
                     (int)index, "pid", (json_int_t)rank->record.pid, "phase",
                     phases[rank->record.phase], "waits",
                     json_wait(sample, &rank->record), "unrecorded_pipes",
                     (json_int_t)rank->record.unrecorded, "imports",
                     tpt_json_imports(&rank->record.imports), "closed_pipes",
                     json_gone(&rank->record.gone), "pipes", pipes);
}

int tptop_json(const struct tptop_sample *sample)
{
    json_t *ranks = json_array(), *object;
    char job[sizeof(sample->file->job) + 1];
    int result;

    for (uint32_t i = 0; i < sample->now.count; i++)
        json_array_append_new(ranks, json_rank(sample, i));
    snprintf(job, sizeof(job), "%.*s", (int)sizeof(sample->file->job),
             sample->file->job);
    object = json_pack("{s:s, s:i, s:f, s:o}", "job", job, "pid",
                       (int)sample->pid, "seconds", sample->seconds, "ranks",
                       ranks);
    if (object == NULL) {
        errno = ENOMEM;
        return -1;
    }
    result = json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(object);
    if (result == 0 && (putchar('\n') == EOF || fflush(stdout) != 0))
        result = -1;
    return result;
}
