/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A manager and its workers.  Workers ask for a range of numbers, count the
 * primes in it and ask again, sending their count along.  The manager, rank 0,
 * answers in the order in which they ask, whoever asks: it arms
 * tp_read_descriptor_any() and opens no pipe beforehand.
 *
 *     tprun -n 4 ./workers [LIMIT]
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <tp.h>

enum { LIMIT_MS = 60000, PORTION = 5000 };

/* A worker's question: what it found, 0 at first. */
struct question {
    uint64_t found;
};

/* The manager's answer: numbers from .. to-1; none at all is the end. */
struct answer {
    uint64_t from, to;
};

/* ---- the manager ------------------------------------------------------- */

/* Touched by callbacks only, and by main while it is in tp_wait(). */
struct manager {
    tp_context *context;
    uint64_t next, limit, found;
    int working;               /* ranks that have not been sent home */
    struct question question;  /* one is read at a time */
    tp_status status;
};

/* An answer under way: lives until it is written. */
struct reply {
    struct manager *manager;
    struct answer answer;
    tp_payload payload;
    tp_message message;
};

static void manager_listen(struct manager *manager);

static void manager_fail(struct manager *manager, tp_pipe *pipe,
                         tp_status status)
{
    const char *why = pipe != NULL ? tp_pipe_error(pipe) : "";

    fprintf(stderr, "workers: %s: %s%s%s\n",
            pipe != NULL ? tp_pipe_peer(pipe) : "any rank",
            tp_strerror(status), *why != '\0' ? ": " : "", why);
    manager->status = status;
}

static void answered(tp_pipe *pipe, tp_status status, tp_message *message,
                     void *arg)
{
    struct reply *reply = arg;

    (void)message;
    if (status != TP_OK)
        manager_fail(reply->manager, pipe, status);
    else if (reply->answer.from == reply->answer.to)
        reply->manager->working--;
    free(reply);
}

/* The next portion, or an empty one if all are given away. */
static void answer(struct manager *manager, tp_pipe *pipe)
{
    struct reply *reply = calloc(1, sizeof(*reply));
    tp_status status = TP_ERR_NO_MEMORY;

    if (reply != NULL) {
        reply->manager = manager;
        reply->answer.from = manager->next;
        manager->next += PORTION;
        if (manager->next > manager->limit)
            manager->next = manager->limit;
        reply->answer.to = manager->next;
        reply->payload = (tp_payload){ &reply->answer, sizeof(reply->answer),
                                       NULL, 0 };
        reply->message.payloads = &reply->payload;
        reply->message.payload_count = 1;
        status = tp_pipe_write(pipe, &reply->message, answered, reply);
    }
    if (status == TP_OK)
        return;
    free(reply);
    manager_fail(manager, pipe, status);
}

static void asked(tp_pipe *pipe, tp_status status, tp_message *message,
                  void *arg)
{
    struct manager *manager = arg;

    (void)message;
    if (status != TP_OK) {
        manager_fail(manager, pipe, status);
        return;
    }
    manager->found += manager->question.found;
    answer(manager, pipe);
    manager_listen(manager);
}

/* Somebody asks: the pipe tells who. */
static void arrived(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                    void *arg)
{
    struct manager *manager = arg;

    if (status == TP_ERR_CLOSED)
        return;                /* tp_finalize(): nobody is left to ask */
    if (status == TP_OK
        && (skeleton->payload_count != 1
            || skeleton->payloads[0].length != sizeof(manager->question)))
        status = TP_ERR_PROTOCOL;
    if (status == TP_OK) {
        skeleton->payloads[0].data = &manager->question;
        status = tp_pipe_read(pipe, skeleton, asked, manager);
    }
    if (status != TP_OK)
        manager_fail(manager, pipe, status);
}

static void manager_listen(struct manager *manager)
{
    tp_status status = tp_read_descriptor_any(manager->context, arrived,
                                              manager);

    if (status != TP_OK)
        manager_fail(manager, NULL, status);
}

static tp_status manage(tp_context *context, uint64_t limit)
{
    static struct manager manager;

    manager.context = context;
    manager.limit = limit;
    manager.working = tp_size(context) - 1;
    manager_listen(&manager);
    while (manager.working > 0 && manager.status == TP_OK) {
        tp_status status = tp_wait(context, LIMIT_MS, NULL);

        if (status != TP_OK)
            return status;
    }
    if (manager.status == TP_OK)
        printf("%" PRIu64 " primes below %" PRIu64 "\n", manager.found,
               limit);
    return manager.status;
}

/* ---- a worker ---------------------------------------------------------- */

static bool is_prime(uint64_t number)
{
    for (uint64_t i = 2; i * i <= number; i++)
        if (number % i == 0)
            return false;
    return number > 1;
}

static tp_status work(tp_context *context)
{
    struct question question = { 0 };
    struct answer answer;
    tp_pipe *pipe;
    size_t length;
    tp_status status = tp_pipe_to_rank(context, 0, &pipe);

    while (status == TP_OK) {
        status = tp_pipe_send(pipe, &question, sizeof(question));
        if (status == TP_OK)
            status = tp_pipe_recv(pipe, &answer, sizeof(answer), &length);
        if (status == TP_OK && length != sizeof(answer))
            status = TP_ERR_PROTOCOL;
        if (status != TP_OK || answer.from == answer.to)
            return status;
        question.found = 0;
        for (uint64_t i = answer.from; i < answer.to; i++)
            question.found += is_prime(i);
    }
    return status;
}

int main(int argc, char **argv)
{
    uint64_t limit = argc > 1 ? strtoull(argv[1], NULL, 0) : 100000;
    tp_options options = TP_OPTIONS_INIT;
    tp_context *context;
    tp_status status, last;

    options.progress = TP_PROGRESS_MANUAL;
    status = tp_init(&options, &context);
    if (status != TP_OK) {
        fprintf(stderr, "workers: tp_init: %s\n", tp_strerror(status));
        return 1;
    }
    if (tp_size(context) < 2) {
        fprintf(stderr, "usage: tprun -n 4 workers [LIMIT]\n");
        tp_finalize(context);
        return 2;
    }
    if (tp_rank(context) == 0)
        status = manage(context, limit);
    else
        status = work(context);
    if (status != TP_OK)
        fprintf(stderr, "workers: rank %d: %s\n", tp_rank(context),
                tp_strerror(status));
    last = tp_finalize(context);
    return status == TP_OK && last == TP_OK ? 0 : 1;
}
