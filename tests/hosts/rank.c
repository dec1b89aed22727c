/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A rank of the tests between hosts: `rank SCENE`, with TP_BOOTSTRAP=dir:...,
 * TP_RANK and TP_SIZE in its environment.  Says on standard output how far it
 * is; the scripts beside wait for these lines.
 */
#include "config.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/multi/spmd.h"

enum {
    RANK_BIG = 4 << 20,
    RANK_UNREAD = 8,               /* ... and so many MiB: four times what a
                                      pipe has under way next door */
    RANK_SHORT = 500,              /* messages: eight times as many as frames
                                      under way next door */
    RANK_NAP_MS = 21000,
    RANK_PAUSE_MS = 1500,
    RANK_LIMIT_S = 310,
    RANK_IDLE_US = 150000          /* for many seconds of waiting */
};

static void rank_say(const char *word)
{
    printf("%s\n", word);
    fflush(stdout);
}

static void rank_say_failure(tp_pipe *pipe, tp_status status)
{
    printf("%s: %s\n", tp_strerror(status), tp_pipe_error(pipe));
    fflush(stdout);
}

static void rank_say_transport(int rank)
{
    tp_stats stats;

    tpx_ok(tp_pipe_stats(tpx_pipe(rank, 0), &stats));
    printf("rank %d via %s\n", rank, stats.transport);
    fflush(stdout);
}

static void rank_exchange(int rank)
{
    unsigned char *out = malloc(RANK_BIG), *in = malloc(RANK_BIG);
    tp_pipe *pipe = tpx_pipe(rank, 0);
    size_t length = 0;

    tpx_check(out != NULL && in != NULL, "no memory");
    tpx_fill(out, RANK_BIG, tpx_me.seed + (uint64_t)tpx_me.rank);
    if (tpx_me.rank < rank)
        tpx_ok(tp_pipe_send(pipe, out, RANK_BIG));
    tpx_ok(tp_pipe_recv(pipe, in, RANK_BIG, &length));
    if (tpx_me.rank > rank)
        tpx_ok(tp_pipe_send(pipe, out, RANK_BIG));
    tpx_equal(length, RANK_BIG);
    tpx_equal(tpx_verify(in, RANK_BIG, tpx_me.seed + (uint64_t)rank),
              RANK_BIG);
    free(out);
    free(in);
}

/* Everybody with everybody. */
static void rank_talk(void)
{
    for (int rank = 0; rank < tpx_me.size; rank++) {
        if (rank == tpx_me.rank)
            continue;
        rank_exchange(rank);
        rank_say_transport(rank);
    }
    tpx_barrier();
    rank_say("done");
}

static void rank_take(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                      void *arg)
{
    static char room[64];

    tpx_ok(status);
    tpx_check(skeleton->payloads[0].length <= sizeof(room), "too long");
    skeleton->payloads[0].data = room;
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, arg));
}

/* Rank 0 wants something of rank 1, which waits for anybody and never asks for
 * a pipe itself. */
static void rank_knock(void)
{
    unsigned taken = 0;

    if (tpx_me.rank == 0) {
        tpx_ok(tp_pipe_send(tpx_pipe(1, 0), "knock", 5));
        rank_say_transport(1);
    } else {
        tpx_ok(tp_read_descriptor_any(tpx_me.context, rank_take, &taken));
        tpx_until(&taken, 1);
    }
    rank_say("done");
}

static _Noreturn void rank_pause(void)
{
    for (;;)
        pause();
}

/* Rank 0 cannot reach rank 1; nor the other way round. */
static void rank_barred(void)
{
    tp_pipe *pipe;
    tp_status status;

    if (tpx_me.rank != 0) {
        rank_say("ready");
        rank_pause();
    }
    pipe = tpx_pipe(1, 0);
    status = tp_pipe_send(pipe, "x", 1);
    rank_say_failure(pipe, status);
    tpx_equal(status, TP_ERR_UNREACHABLE);
}

/* Rank 0 waits for rank 1, which says nothing more. */
static void rank_idle(void)
{
    tp_pipe *pipe = tpx_pipe(1 - tpx_me.rank, 0);
    tp_status status;
    uint64_t cpu;
    char byte;

    tpx_meet(1 - tpx_me.rank);
    rank_say("ready");
    if (tpx_me.rank != 0)
        rank_pause();
    tpx_sleep_ms(50);
    cpu = tpx_cpu_us();
    status = tp_pipe_recv(pipe, &byte, 1, NULL);
    cpu = tpx_cpu_us() - cpu;
    rank_say_failure(pipe, status);
    tpx_check(cpu < RANK_IDLE_US, "%llu us of CPU for waiting",
              (unsigned long long)cpu);
    tpx_equal(status, TP_ERR_PEER_FAILED);
}

/* Rank 0 writes to rank 1 without an end. */
static void rank_stream(void)
{
    unsigned char *memory = malloc(RANK_BIG);
    tp_pipe *pipe = tpx_pipe(1 - tpx_me.rank, 0);
    tp_status status = TP_OK;

    tpx_check(memory != NULL, "no memory");
    tpx_fill(memory, RANK_BIG, 1);
    for (uint64_t i = 0; status == TP_OK; i++) {
        status = tpx_me.rank == 0
                     ? tp_pipe_send(pipe, memory, RANK_BIG)
                     : tp_pipe_recv(pipe, memory, RANK_BIG, NULL);
        if (i == 0)
            rank_say("ready");
    }
    rank_say_failure(pipe, status);
    tpx_equal(status, TP_ERR_PEER_FAILED);
    free(memory);
}

static void rank_written(tp_pipe *pipe, tp_status status, tp_message *message,
                         void *arg)
{
    unsigned *written = arg;

    (void)pipe;
    (void)message;
    tpx_ok(status);
    ++*written;
}

/* Rank 1 does not read before rank 0 has written all. */
static void rank_unread(void)
{
    tp_pipe *pipe = tpx_pipe(1 - tpx_me.rank, 1);
    size_t length = RANK_BIG / 4;
    unsigned char *memory = malloc(length);
    unsigned written = 0;

    tpx_check(memory != NULL, "no memory");
    tpx_fill(memory, length, 1);
    tpx_meet(1 - tpx_me.rank);
    if (tpx_me.rank == 0) {
        tp_payload payload = { .data = memory, .length = length };
        tp_message message = { .payloads = &payload, .payload_count = 1 };

        for (int i = 0; i < RANK_UNREAD; i++)
            tpx_ok(tp_pipe_write(pipe, &message, rank_written, &written));
        tpx_until(&written, RANK_UNREAD);
        rank_say("written");
    }
    tpx_meet(1 - tpx_me.rank);
    for (int i = 0; tpx_me.rank != 0 && i < RANK_UNREAD; i++)
        tpx_ok(tp_pipe_recv(pipe, memory, length, NULL));
    tpx_meet(1 - tpx_me.rank);
    rank_say("done");
    free(memory);
}

/* Rank 1 makes no progress before rank 0 has sent all, which the file
 * $RANK_STOP tells. */
static void rank_short(void)
{
    tp_pipe *pipe = tpx_pipe(1 - tpx_me.rank, 1);
    const char *stop = getenv("RANK_STOP");
    unsigned number;
    FILE *file;

    tpx_check(stop != NULL, "no RANK_STOP");
    tpx_meet(1 - tpx_me.rank);
    if (tpx_me.rank == 0) {
        for (unsigned i = 0; i < RANK_SHORT; i++)
            tpx_ok(tp_pipe_send(pipe, &i, sizeof(i)));
        rank_say("sent");
        file = fopen(stop, "w");
        tpx_check(file != NULL, "no %s", stop);
        fclose(file);
    } else {
        while (access(stop, F_OK) != 0)
            tpx_sleep_ms(10);
        for (unsigned i = 0; i < RANK_SHORT; i++) {
            tpx_ok(tp_pipe_recv(pipe, &number, sizeof(number), NULL));
            tpx_equal(number, i);
        }
    }
    tpx_meet(1 - tpx_me.rank);
    rank_say("done");
}

/* Rank 0 writes to rank 1, which looks at every byte, until the file $RANK_STOP
 * is there; rank 1 counts aloud. */
static void rank_haul(void)
{
    unsigned char *memory = malloc(RANK_BIG);
    tp_pipe *pipe = tpx_pipe(1 - tpx_me.rank, 0);
    const char *stop = getenv("RANK_STOP");
    size_t length = RANK_BIG;

    tpx_check(memory != NULL && stop != NULL, "no memory, or no RANK_STOP");
    for (uint64_t i = 0; length == RANK_BIG; i++) {
        if (tpx_me.rank == 0) {
            length = access(stop, F_OK) == 0 ? 1 : RANK_BIG;
            tpx_fill(memory, length, i);
            tpx_ok(tp_pipe_send(pipe, memory, length));
        } else {
            tpx_ok(tp_pipe_recv(pipe, memory, RANK_BIG, &length));
            tpx_equal(tpx_verify(memory, length, i), length);
            printf("got %llu.\n", (unsigned long long)i + 1);
            fflush(stdout);
        }
    }
    rank_say_transport(1 - tpx_me.rank);
    tpx_meet(1 - tpx_me.rank);
    rank_say("done");
    free(memory);
}

/* Rank 1 computes for longer than the heartbeat's limit and moves nothing,
 * while rank 0 has more for it than any buffer holds. */
static void rank_compute(void)
{
    unsigned char *memory = malloc(RANK_BIG);
    tp_pipe *pipe = tpx_pipe(1 - tpx_me.rank, 0);

    tpx_check(memory != NULL, "no memory");
    tpx_fill(memory, RANK_BIG, 1);
    tpx_meet(1 - tpx_me.rank);
    if (tpx_me.rank != 0)
        tpx_sleep_ms(RANK_NAP_MS);
    for (int i = 0; i < 8; i++) {
        if (tpx_me.rank == 0)
            tpx_ok(tp_pipe_send(pipe, memory, RANK_BIG));
        else
            tpx_ok(tp_pipe_recv(pipe, memory, RANK_BIG, NULL));
    }
    tpx_meet(1 - tpx_me.rank);
    rank_say("done");
    free(memory);
}

/* They rest for longer than messages may be unconfirmed, and when they go on
 * the network is away for some seconds. */
static void rank_rest(void)
{
    rank_exchange(1 - tpx_me.rank);
    tpx_sleep_ms(RANK_NAP_MS);
    rank_say("rested");
    tpx_sleep_ms(RANK_PAUSE_MS);
    rank_exchange(1 - tpx_me.rank);
    rank_say("done");
}

/* Not a rank: something else that takes calls, at port 7777.  It says nothing,
 * or nonsense in turn. */
static void rank_decoy(void)
{
    struct sockaddr_in where = { .sin_family = AF_INET,
                                 .sin_port = htons(7777) };
    static const char nonsense[1024] = "220 decoy ready";
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    tpx_check(fd >= 0 && bind(fd, (struct sockaddr *)&where, sizeof(where))
                             == 0 && listen(fd, 16) == 0, "cannot listen");
    rank_say("ready");
    for (int count = 0;; count++) {
        int caller = accept(fd, NULL, NULL);

        if (count % 2 == 1)
            tpx_check(send(caller, nonsense, sizeof(nonsense), MSG_NOSIGNAL)
                      != 0, "cannot send");
        rank_say("called");
    }
}

static const struct tpx_spmd rank_scenes[] = {
    { .name = "talk", .run = rank_talk },
    { .name = "knock", .run = rank_knock },
    { .name = "barred", .run = rank_barred },
    { .name = "idle", .run = rank_idle },
    { .name = "stream", .run = rank_stream },
    { .name = "unread", .run = rank_unread },
    { .name = "short", .run = rank_short },
    { .name = "compute", .run = rank_compute },
    { .name = "rest", .run = rank_rest },
    { .name = "haul", .run = rank_haul },
    { .name = "decoy", .run = rank_decoy, .flags = TPX_BARE },
    { .name = NULL }
};

int main(int argc, char **argv)
{
    const struct tpx_spmd *scene = rank_scenes;

    while (argc == 2 && scene->name != NULL
           && strcmp(scene->name, argv[1]) != 0)
        scene++;
    if (argc != 2 || scene->name == NULL) {
        fprintf(stderr, "usage: rank"
                " talk|knock|barred|idle|stream|unread|short|compute|rest|haul"
                "|decoy\n");
        return 2;
    }
    alarm(RANK_LIMIT_S);
    tpx_rank_run(scene, NULL);
    return 0;
}
