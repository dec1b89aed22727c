/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every rank talks with every other, big messages of both kinds of memory both
 * ways, and then tells how what it sends may go there:
 *
 *     0 1 shm map,cma
 *
 * `pairs try`: two ranks only try, tell what was answered, and wait for the end
 * of their input.  `pairs wait` and `pairs abort`: jobs that end otherwise.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/multi/spmd.h"

enum { PAIRS_BYTES = 1 << 20 };

static void pairs_send(tp_pipe *pipe, unsigned char *memory, uint64_t seed)
{
    tpx_fill(memory, PAIRS_BYTES, seed);
    tpx_ok(tp_pipe_send(pipe, memory, PAIRS_BYTES));
}

static void pairs_receive(tp_pipe *pipe, unsigned char *memory, uint64_t seed)
{
    size_t length;

    memset(memory, 0, PAIRS_BYTES);
    tpx_ok(tp_pipe_recv(pipe, memory, PAIRS_BYTES, &length));
    tpx_equal(length, PAIRS_BYTES);
    tpx_equal(tpx_verify(memory, PAIRS_BYTES, seed), PAIRS_BYTES);
}

/* All pairs in one order, so that nobody waits in a circle. */
static void pairs_talk(int peer, unsigned char *memory)
{
    tp_pipe *pipe = tpx_pipe(peer, 0);

    if (tpx_me.rank < peer)
        pairs_send(pipe, memory, (uint64_t)peer);
    pairs_receive(pipe, memory, (uint64_t)tpx_me.rank);
    if (tpx_me.rank > peer)
        pairs_send(pipe, memory, (uint64_t)peer);
}

/* The channels that the explanation says there are, after each other: chosen,
 * or left to be measured as they are slower by the model. */
static void pairs_channels(const char *json, char *text, size_t size)
{
    static const char mark[] = "\"name\": \"";
    const char *at = strstr(json, "\"candidates\"");

    *text = '\0';
    while (at != NULL && (at = strstr(at, mark)) != NULL) {
        const char *name = at + strlen(mark), *next = strstr(name, mark);
        const char *role = strstr(name, "\"role\": \"channel\"");
        const char *chosen = strstr(name, "\"reason\": \"chosen\"");
        const char *slower = strstr(name, "\"reason\": \"slower\"");

        at = name;
        if (slower != NULL && (chosen == NULL || slower < chosen))
            chosen = slower;
        if (role == NULL || chosen == NULL
            || (next != NULL && (role > next || chosen > next)))
            continue;
        snprintf(text + strlen(text), size - strlen(text), "%s%.*s",
                 *text != '\0' ? "," : "", (int)strcspn(name, "\""), name);
    }
}

static void pairs_tell(int peer)
{
    char channels[64], *json = NULL;
    tp_stats stats;

    tpx_ok(tp_pipe_stats(tpx_pipe(peer, 0), &stats));
    tpx_ok(tp_pipe_explain(tpx_pipe(peer, 0), &json));
    pairs_channels(json, channels, sizeof(channels));
    free(json);
    printf("%d %d %s %s\n", tpx_me.rank, peer, stats.transport,
           channels[0] != '\0' ? channels : "-");
}

static void pairs_all(void)
{
    unsigned char *plain = malloc(PAIRS_BYTES);
    void *shared = NULL;

    tpx_check(plain != NULL, "no memory");
    tpx_ok(tp_alloc(tpx_me.context, PAIRS_BYTES,
                    (tp_device){ TP_DEVICE_CPU, 0 }, &shared));
    for (int peer = 0; peer < tpx_me.size; peer++) {
        if (peer == tpx_me.rank)
            continue;
        pairs_talk(peer, plain);
        pairs_talk(peer, shared);
        pairs_tell(peer);
    }
    tpx_barrier();
    free(plain);
}

/* For somebody who does not come: whoever notices says so and goes on. */
static void pairs_wait(void)
{
    char byte;

    tp_pipe_recv(tpx_pipe((tpx_me.rank + 1) % tpx_me.size, 5), &byte, 1, NULL);
}

static void pairs_try(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    tp_status status = tp_pipe_send(pipe, "x", 1);

    if (status == TP_OK)
        status = tp_pipe_recv(pipe, &status, 1, NULL);
    printf("%d: %s: %s\n", tpx_me.rank, tp_strerror(status),
           tp_pipe_error(pipe));
    fflush(stdout);
    while (getchar() != EOF)       /* until the other has spoken */
        ;
}

/* Rank 3 ends the job for all. */
static void pairs_abort(void)
{
    tpx_barrier();
    if (tpx_me.rank == 3)
        tp_abort(tpx_me.context, 9, "enough");
    pairs_wait();
}

int main(int argc, char **argv)
{
    static const struct tpx_spmd all = { "pairs", pairs_all, 0, 0, 0 };
    static const struct tpx_spmd try = { "try", pairs_try, 0, 0, 0 };
    static const struct tpx_spmd abort = { "abort", pairs_abort, 0, 0, 0 };
    static const struct tpx_spmd wait = { "wait", pairs_wait, 0, 0, 0 };
    const char *word = argc > 1 ? argv[1] : "";

    tpx_rank_run(strcmp(word, "try") == 0 ? &try
                 : strcmp(word, "wait") == 0 ? &wait
                 : strcmp(word, "abort") == 0 ? &abort : &all, argv);
    return 0;
}
