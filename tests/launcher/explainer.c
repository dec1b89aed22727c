/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A rank that tells how it reaches another:
 *
 *     explainer WHO PEER [RANK:VARIABLE=VALUE ...]
 *
 * Two ranks exchange a message, if they can.  Rank WHO then prints the
 * explanation of its pipe to PEER, which may be itself.  Settings are put into
 * the environment of that RANK (* for both) before it joins the job.  With
 * EXPLAINER=hide there no rank may read its memory that has EXPLAINER=weak.
 */
#include <linux/capability.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/tp.h"

enum { EXPLAINER_BYTES = 256 << 10, EXPLAINER_TRIES = 400, EXPLAINER_MS = 50 };

static void explainer_set(const char *rank, char *setting)
{
    char *value = strchr(setting, '=');

    if (value == NULL || setting[1] != ':'
        || (*setting != '*' && *setting != *rank))
        return;
    *value++ = '\0';
    setenv(setting + 2, value, 1);
}

/* Without CAP_SYS_PTRACE, which root has. */
static bool explainer_weaken(void)
{
    struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct data[2];

    if (syscall(SYS_capget, &head, data) != 0)
        return false;
    data[0].effective &= ~(1u << CAP_SYS_PTRACE);
    data[0].permitted &= ~(1u << CAP_SYS_PTRACE);
    return syscall(SYS_capset, &head, data) == 0;
}

static bool explainer_become(const char *what)
{
    if (what != NULL && strcmp(what, "hide") == 0)
        return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0;
    return what == NULL || strcmp(what, "any") == 0 || explainer_weaken();
}

static void explainer_read(tp_pipe *pipe, tp_status status,
                           tp_message *message, void *done)
{
    (void)pipe, (void)message;
    *(int *)done = status == TP_OK ? 1 : -1;
}

struct explainer_take {
    void *memory;
    int done;
};

static void explainer_take(tp_pipe *pipe, tp_status status,
                           tp_message *skeleton, void *arg)
{
    struct explainer_take *take = arg;

    if (status == TP_OK && skeleton->payload_count == 1
        && skeleton->payloads[0].length == EXPLAINER_BYTES) {
        skeleton->payloads[0].data = take->memory;
        status = tp_pipe_read(pipe, skeleton, explainer_read, &take->done);
    }
    if (status != TP_OK)
        take->done = -1;
}

/* From whoever comes, without a step towards him. */
static bool explainer_any(tp_context *context, void *memory)
{
    struct explainer_take take = { memory, 0 };

    if (tp_read_descriptor_any(context, explainer_take, &take) != TP_OK)
        return false;
    while (take.done == 0)
        tp_wait(context, EXPLAINER_MS, NULL);
    return take.done > 0;
}

/* To the other and back; true if that worked. */
static bool explainer_exchange(tp_context *context, void *memory)
{
    tp_pipe *pipe;
    size_t length;
    int rank = tp_rank(context);
    const char *what = getenv("EXPLAINER");

    if (rank == 1 && what != NULL && strcmp(what, "any") == 0
        && !explainer_any(context, memory))
        return false;
    if (tp_pipe_to_rank(context, 1 - rank, &pipe) != TP_OK)
        return false;
    if (rank == 0)
        return tp_pipe_send(pipe, memory, EXPLAINER_BYTES) == TP_OK
               && tp_pipe_recv(pipe, memory, EXPLAINER_BYTES, &length)
                  == TP_OK;
    if (what != NULL && strcmp(what, "any") == 0)
        return tp_pipe_send(pipe, memory, EXPLAINER_BYTES) == TP_OK;
    return tp_pipe_recv(pipe, memory, EXPLAINER_BYTES, &length) == TP_OK
           && tp_pipe_send(pipe, memory, length) == TP_OK;
}

static void explainer_written(tp_pipe *pipe, tp_status status,
                              tp_message *message, void *arg)
{
    (void)pipe, (void)status, (void)message, (void)arg;
}

/* A plan is there as soon as the peer's card is. */
static int explainer_print(tp_context *context, int peer)
{
    static tp_message empty;
    tp_pipe *pipe;
    char *json = NULL;

    if (tp_pipe_to_rank(context, peer, &pipe) != TP_OK)
        return 4;
    /* A pipe to oneself was not used yet.  Nobody will read it. */
    if (peer == tp_rank(context)
        && tp_pipe_write(pipe, &empty, explainer_written, NULL) != TP_OK)
        return 4;
    for (int i = 0; i < EXPLAINER_TRIES; i++) {
        if (tp_pipe_explain(pipe, &json) != TP_OK)
            return 5;
        if (strstr(json, "\"candidates\"") != NULL)
            break;
        free(json);
        json = NULL;
        tp_wait(context, EXPLAINER_MS, NULL);
    }
    if (json == NULL)
        return 6;
    puts(json);
    free(json);
    return 0;
}

int main(int argc, char **argv)
{
    const char *rank = getenv("PMIX_RANK");
    char *memory = calloc(1, EXPLAINER_BYTES);
    tp_context *context;
    int status = 0;
    bool connected;

    if (argc < 3 || rank == NULL || memory == NULL)
        return 2;
    for (int i = 3; i < argc; i++)
        explainer_set(rank, argv[i]);
    if (!explainer_become(getenv("EXPLAINER")))
        return 7;
    if (tp_init(NULL, &context) != TP_OK)
        return 3;
    connected = explainer_exchange(context, memory);
    if (tp_rank(context) == atoi(argv[1]))
        status = explainer_print(context, atoi(argv[2]));
    /* Nobody leaves before that is done. */
    if (connected)
        explainer_exchange(context, memory);
    tp_finalize(context);
    free(memory);
    return status;
}
