/* SPDX-License-Identifier: BSD-3-Clause */
/* Who waits for whom. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "launcher/postmortem.h"
#include "launcher/verdict.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

enum { POSTMORTEM_RANKS = 64, POSTMORTEM_PEERS = 8, POSTMORTEM_NAME = 48 };

/* "rank 3"; -1: a guest. */
static void postmortem_peer(int32_t peer, char name[POSTMORTEM_NAME])
{
    if (peer < 0)
        snprintf(name, POSTMORTEM_NAME, "a peer outside the job");
    else
        snprintf(name, POSTMORTEM_NAME, "rank %d", peer);
}

/* "waiting 3.2 s for a message from rank 1"; false if it does not wait. */
static bool postmortem_wait(const struct tpb_record_rank *rank,
                            struct tpb_text *text)
{
    static const char *const words[] = {
        [TPB_WAIT_SEND] = "for %s to take a message",
        [TPB_WAIT_RECEIVE] = "for a message from %s",
        [TPB_WAIT_READ] = "for the rest of a message from %s",
        [TPB_WAIT_ANY] = "in tp_wait for anything",
    };
    uint64_t now = tpb_now();
    char name[POSTMORTEM_NAME], what[96];

    if (rank->wait == TPB_WAIT_NONE || rank->wait > TPB_WAIT_ANY)
        return false;
    postmortem_peer(rank->wait_peer, name);
    /* The words are those above. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(what, sizeof(what), words[rank->wait], name);
#pragma GCC diagnostic pop
    tpb_text_add(text, "waiting %.1f s %s", now > rank->wait_since
                 ? (double)(now - rank->wait_since) * 1e-9 : 0.0, what);
    if (rank->waits > 1)
        tpb_text_add(text, " (%u threads wait)", rank->waits);
    return true;
}

void tpl_postmortem_rank(const struct tpl_job *job, int rank, char *text,
                         size_t size)
{
    struct tpb_record_rank record;
    struct tpb_text words = { 0 };

    *text = '\0';
    if (tpb_record_rank(job->record, (uint32_t)rank, &record)
        && postmortem_wait(&record, &words) && !words.failed)
        snprintf(text, size, "; it was %s", words.text);
    tpb_text_fini(&words);
}

/* What is pending in one direction, of one peer or of several. */
struct postmortem_item {
    uint64_t pending, blocked_since;
    char peer[POSTMORTEM_NAME];
};

/* "; writes pending: 3 to rank 1 (no room for 2.0 s)", and ", 1 to rank 2" for
 * what comes behind it. */
static void postmortem_item(const struct postmortem_item *item, bool first,
                            bool writes, struct tpb_text *text)
{
    tpb_text_add(text, "%s%llu %s %s", !first ? ", "
                 : writes ? "; writes pending: " : "; reads pending: ",
                 (unsigned long long)item->pending, writes ? "to" : "from",
                 item->peer);
    if (writes && item->blocked_since != 0)
        tpb_text_add(text, " (no room for %.1f s)",
                     (double)(tpb_now() - item->blocked_since) * 1e-9);
}

static uint64_t postmortem_count(const struct tpb_record_pipe *pipe,
                                 bool writes)
{
    return writes ? pipe->stats.writes_pending : pipe->stats.reads_pending;
}

/* Whom a pipe leads to; all peers outside the job, who may be many, count as
 * one. */
static int32_t postmortem_whom(const struct tpb_record_pipe *pipe)
{
    return pipe->peer < 0 ? -1 : pipe->peer;
}

/* Adds what is pending in the first of so many pipes, and in all others to the
 * same peer, which are done with then. */
static struct postmortem_item postmortem_sum(struct tpb_record_pipe *pipes,
                                             uint32_t count, bool writes)
{
    struct postmortem_item item = { .pending = 0 };
    int32_t peer = postmortem_whom(&pipes[0]);
    int pending = 0;

    for (uint32_t i = 0; i < count; i++) {
        uint64_t since = pipes[i].blocked_since;

        if (postmortem_whom(&pipes[i]) != peer
            || postmortem_count(&pipes[i], writes) == 0)
            continue;
        item.pending += postmortem_count(&pipes[i], writes);
        if (since != 0
            && (item.blocked_since == 0 || since < item.blocked_since))
            item.blocked_since = since;
        memset(&pipes[i].stats, 0, sizeof(pipes[i].stats));
        pending++;
    }
    if (peer < 0 && pending > 1)
        snprintf(item.peer, sizeof(item.peer), "%d peers outside the job",
                 pending);
    else
        postmortem_peer(peer, item.peer);
    return item;
}

static void postmortem_pending(const struct tpl_job *job, uint32_t rank,
                               const struct tpb_record_rank *record,
                               bool writes, struct tpb_text *text)
{
    struct tpb_record_pipe *pipes = tpb_array(record->used, sizeof(pipes[0]));
    uint32_t count = 0;
    int said = 0;

    while (pipes != NULL && count < record->used
           && tpb_record_pipe(job->record, rank, count, &pipes[count]))
        count++;
    /* Ranks, then who is none. */
    for (uint32_t i = 0; i < 2 * count; i++) {
        struct tpb_record_pipe *pipe = &pipes[i % count];
        struct postmortem_item item;

        if (postmortem_count(pipe, writes) == 0
            || (i < count && pipe->peer < 0))
            continue;
        item = postmortem_sum(pipe, count - i % count, writes);
        if (pipe->peer < 0 || said < POSTMORTEM_PEERS)
            postmortem_item(&item, said == 0, writes, text);
        else if (said == POSTMORTEM_PEERS)
            tpb_text_add(text, ", ...");
        said++;
    }
    tpb_free(pipes);
}

static void postmortem_line(const struct tpl_job *job, int rank,
                            const struct tpb_record_rank *record)
{
    static const char *const phases[] = {
        [TPB_PHASE_NONE] = "has not called tp_init",
        [TPB_PHASE_INIT] = "is inside tp_init",
        [TPB_PHASE_RUNNING] = "runs, outside any call that blocks",
        [TPB_PHASE_FINALIZE] = "is inside tp_finalize",
        [TPB_PHASE_DONE] = "has called tp_finalize",
    };
    const struct tpl_rank *it = &job->ranks[rank];
    struct tpb_text text = { 0 }, wait = { 0 };

    if (it->ended) {
        char words[768];

        tpl_verdict_describe(job, rank, words, sizeof(words));
        tpb_text_add(&text, "%s", words);
    } else {
        tpb_text_add(&text, "rank %d (pid %d) ", rank, (int)it->pid);
        if (record->phase == TPB_PHASE_RUNNING
            && postmortem_wait(record, &wait) && !wait.failed)
            tpb_text_add(&text, "is %s", wait.text);
        else
            tpb_text_add(&text, "%s", phases[record->phase]);
        if (tpl_postmortem_stopped(it->pid))
            tpb_text_add(&text, "; stopped (kill -CONT %d lets it go on)",
                         (int)it->pid);
        postmortem_pending(job, (uint32_t)rank, record, true, &text);
        if (record->wait == TPB_WAIT_ANY)
            postmortem_pending(job, (uint32_t)rank, record, false, &text);
    }
    if (!text.failed)
        tpl_iof_say(job->iof, "%s", text.text);
    tpb_text_fini(&text);
    tpb_text_fini(&wait);
}

bool tpl_postmortem_stopped(pid_t pid)
{
    char path[64], *text, *state;
    bool stopped;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    text = tpb_read_file(path, NULL);
    /* "4711 (its name) T ...", and a name may hold anything. */
    state = text != NULL ? strrchr(text, ')') : NULL;
    stopped = state != NULL
              && (strncmp(state, ") T", 3) == 0
                  || strncmp(state, ") t", 3) == 0);
    tpb_free(text);
    return stopped;
}

/* Whom a rank certainly waits for; -1: nobody, or nobody knows, as of a rank
 * with several threads that wait. */
static int postmortem_next(const struct tpl_job *job, int rank)
{
    struct tpb_record_rank record;

    if (job->ranks[rank].ended
        || !tpb_record_rank(job->record, (uint32_t)rank, &record)
        || record.phase != TPB_PHASE_RUNNING || record.wait == TPB_WAIT_NONE
        || record.wait == TPB_WAIT_ANY || record.waits > 1
        || record.wait_peer < 0
        || record.wait_peer >= job->options->ranks)
        return -1;
    return record.wait_peer;
}

/* Says the circle that `first` is part of. */
static void postmortem_circle(const struct tpl_job *job, const int *next,
                              int first)
{
    struct tpb_text text = { 0 };
    int rank = first, count = 0;

    if (next[first] == first) {
        tpl_iof_say(job->iof, "rank %d waits for itself", first);
        return;
    }
    do {
        if (count++ < POSTMORTEM_RANKS)
            tpb_text_add(&text, "%d -> ", rank);
        rank = next[rank];
    } while (rank != first);
    if (!text.failed)
        tpl_iof_say(job->iof, "%d ranks wait for each other: %s%s%d", count,
                    text.text, count > POSTMORTEM_RANKS ? "... -> " : "",
                    first);
    tpb_text_fini(&text);
}

/* Follows each rank to where its waiting ends; who comes back to a rank of the
 * same walk has found a circle. */
static void postmortem_circles(const struct tpl_job *job)
{
    int ranks = job->options->ranks;
    int *next = tpb_array((size_t)ranks, sizeof(next[0]));
    int *walk = tpb_array((size_t)ranks, sizeof(walk[0]));

    for (int i = 0; next != NULL && i < ranks; i++)
        next[i] = postmortem_next(job, i);
    for (int i = 0; next != NULL && walk != NULL && i < ranks; i++) {
        int rank = i;

        while (rank >= 0 && walk[rank] == 0) {
            walk[rank] = i + 1;
            rank = next[rank];
        }
        if (rank >= 0 && walk[rank] == i + 1)
            postmortem_circle(job, next, rank);
    }
    tpb_free(next);
    tpb_free(walk);
}

/* Does any rank use tp? */
static bool postmortem_any(const struct tpl_job *job)
{
    struct tpb_record_rank record;

    for (int i = 0; i < job->options->ranks; i++)
        if (tpb_record_rank(job->record, (uint32_t)i, &record)
            && record.phase != TPB_PHASE_NONE)
            return true;
    return false;
}

void tpl_postmortem_all(const struct tpl_job *job)
{
    struct tpb_record_rank record;
    int ranks = job->options->ranks;

    if (!postmortem_any(job))
        return;
    tpl_iof_say(job->iof, "who waits for whom:");
    for (int i = 0; i < ranks && i < POSTMORTEM_RANKS; i++)
        if (tpb_record_rank(job->record, (uint32_t)i, &record))
            postmortem_line(job, i, &record);
    if (ranks > POSTMORTEM_RANKS)
        tpl_iof_say(job->iof, "and %d ranks more", ranks - POSTMORTEM_RANKS);
    postmortem_circles(job);
}

void tpl_postmortem_waiting_for(const struct tpl_job *job, int rank)
{
    struct tpb_text text = { 0 };
    int count = 0;

    for (int i = 0; i < job->options->ranks; i++)
        if (i != rank && postmortem_next(job, i) == rank
            && count++ < POSTMORTEM_RANKS)
            tpb_text_add(&text, "%s%d", count > 1 ? ", " : "", i);
    if (count > 0 && !text.failed)
        tpl_iof_say(job->iof, "waiting for rank %d: rank%s %s%s", rank,
                    count > 1 ? "s" : "", text.text,
                    count > POSTMORTEM_RANKS ? ", ..." : "");
    tpb_text_fini(&text);
}
