/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The program of tests about what ranks say to each other: it uses libtp, and
 * gets into one situation per word of its command line.
 */
#include "config.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/record.h"
#include "runtime/tp.h"

enum { BIG = 1 << 20, GUESTS = TPB_RECORD_GUESTS + 44 };

static tp_context *context;
static int rank, size;
static char big[BIG];

static tp_pipe *to(int peer)
{
    tp_pipe *pipe;

    if (tp_pipe_to_rank(context, peer, &pipe) != TP_OK)
        exit(97);
    return pipe;
}

static void receive(int peer)
{
    tp_status status = tp_pipe_recv(to(peer), big, sizeof(big), NULL);

    if (status != TP_OK) {
        printf("rank %d: %s\n", rank, tp_strerror(status));
        fflush(stdout);
    }
}

/* Each waits for the next. */
static void do_ring(void)
{
    receive((rank + 1) % size);
}

static void *other_thread(void *arg)
{
    receive(*(int *)arg);
    return NULL;
}

/* Two threads of each: one waits for the rank before, the other a few times for
 * the next, and then until the end if it stays. */
static void two_threads(int stays)
{
    int before = (rank + size - 1) % size;
    tp_message *skeleton;
    pthread_t other;

    if (pthread_create(&other, NULL, other_thread, &before) != 0)
        exit(93);
    for (int i = 0; i < 3; i++)
        if (tp_pipe_recv_skeleton(to((rank + 1) % size), &skeleton, 50)
            != TP_ERR_TIMEOUT)
            exit(92);
    printf("asked \n");
    fflush(stdout);
    if (stays)
        receive((rank + 1) % size);
    pthread_join(other, NULL);
}

static void do_threads(void)
{
    two_threads(0);
}

static void do_both(void)
{
    two_threads(1);
}

/* Does not drive, so that no callback comes from it. */
static void *nested_sender(void *pipe)
{
    static tp_message message;

    usleep(100000);
    tp_pipe_write(pipe, &message, NULL, NULL);
    return NULL;
}

static void nested_arrived(tp_pipe *pipe, tp_status status,
                           tp_message *skeleton, void *arg)
{
    (void)pipe, (void)status, (void)skeleton, (void)arg;
    receive(!rank);
}

/* Both have slept in tp_wait(), and wait for each other in a callback. */
static void do_nested(void)
{
    pthread_t sender;
    tp_pipe *pipe;

    if (tp_pipe_open(context, rank, 1, &pipe) != TP_OK
        || tp_wait(context, 20, NULL) != TP_ERR_TIMEOUT
        || tp_pipe_read_descriptor(pipe, nested_arrived, NULL) != TP_OK
        || pthread_create(&sender, NULL, nested_sender, pipe) != 0)
        exit(91);
    tp_wait(context, -1, NULL);
    pthread_join(sender, NULL);
}

/* Each sends to the next and receives from the one before. */
static void do_once(void)
{
    if (tp_pipe_send(to((rank + 1) % size), big, 1000) != TP_OK)
        exit(94);
    receive((rank + size - 1) % size);
}

/* The last waits for rank 0, and is to be killed then; the others for it. */
static void do_star(void)
{
    receive(rank == size - 1 ? 0 : size - 1);
}

/* The last dies as soon as the others have a connection to it. */
static void do_fall(void)
{
    if (rank < size - 1) {
        tp_pipe_send(to(size - 1), big, 1);
        receive(size - 1);
        return;
    }
    for (int i = 0; i < size - 1; i++)
        receive(i);
    raise(SIGKILL);
}

/* ... and has much memory to give back; they end the job as they hear of it. */
static void do_answered(void)
{
    enum { MUCH = 64 << 20 };

    if (rank == size - 1) {
        char *memory = malloc(MUCH);

        if (memory != NULL)
            memset(memory, 1, MUCH);
        do_fall();
    }
    tp_pipe_send(to(size - 1), big, 1);
    if (tp_pipe_recv(to(size - 1), big, sizeof(big), NULL) != TP_OK)
        tp_abort(context, 3, tp_pipe_error(to(size - 1)));
}

/* Rank 0 writes and nobody reads. */
static void do_full(void)
{
    while (rank == 0)
        if (tp_pipe_send(to(1), big, BIG) != TP_OK)
            return;
    if (rank == 1)
        receive(0);
    for (;;)
        pause();
}

/* Ranks 0 and 1 talk until they are killed; the others never join in. */
static void do_talk(void)
{
    char letter[64] = "";

    for (;;) {
        tp_status status = TP_OK;

        if (rank > 1)
            pause();
        if (rank == 0)
            status = tp_pipe_send(to(1), letter, sizeof(letter));
        else if (rank == 1)
            status = tp_pipe_recv(to(0), letter, sizeof(letter), NULL);
        if (status != TP_OK)
            return;
    }
}

/* The last dies and leaves a child that holds all that it had open; the others
 * are to hear of it while that child lives. */
static void do_heir(void)
{
    pid_t child;

    if (rank < size - 1) {
        tp_pipe_recv(to(size - 1), &child, sizeof(child), NULL);
        tp_pipe_send(to(size - 1), big, 1);
        receive(size - 1);
        printf("rank %d: the child %s\n", rank,
               kill(child, 0) == 0 ? "lives" : "is gone");
        fflush(stdout);
        return;
    }
    child = fork();
    while (child == 0)
        pause();
    for (int i = 0; i < size - 1; i++)
        tp_pipe_send(to(i), &child, sizeof(child));
    for (int i = 0; i < size - 1; i++)
        receive(i);
    raise(SIGKILL);
}

static int process_ended(pid_t pid)
{
    char path[32], state = 'Z';
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    file = fopen(path, "r");
    if (file == NULL)
        return 1;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 'Z';
    fclose(file);
    return state == 'Z' || state == 'X';
}

/* Rank 1 has joined, and is dead when rank 0 first asks for it: what does that
 * hear, and how many ways has it tried?  Rank 2 knows both. */
static void do_unmet(void)
{
    pid_t pid = getpid();
    char *json = NULL;
    int tried = 0;

    if (rank == 1) {
        tp_pipe_send(to(2), &pid, sizeof(pid));
        receive(2);
    } else if (rank == 2) {
        if (tp_pipe_recv(to(1), &pid, sizeof(pid), NULL) == TP_OK)
            tp_pipe_send(to(0), &pid, sizeof(pid));
        receive(1);
    } else if (tp_pipe_recv(to(2), &pid, sizeof(pid), NULL) == TP_OK) {
        kill(pid, SIGKILL);
        while (!process_ended(pid))
            usleep(1000);
        receive(1);
        if (tp_pipe_explain(to(1), &json) == TP_OK)
            for (char *at = json; (at = strstr(at, "\"trial_failed\"")) != NULL;
                 at++)
                tried++;
        printf("tried %d: %s\n", tried, tp_pipe_error(to(1)));
        fflush(stdout);
        free(json);
    }
}

/* Asks for a message, and whatever becomes of that, stays. */
static void do_stay(void)
{
    receive((rank + 1) % size);
    for (;;)
        pause();
}

/* ... and goes by a way of its own, with a word that it leaves to exit(). */
static void do_exit(void)
{
    receive((rank + 1) % size);
    printf("goes\n");
    exit(93);
}

/* The last rank closes what is not its own. */
static void do_robbed(void)
{
    if (rank == size - 1)
        for (int fd = 3; fd < 1024; fd++)
            close(fd);
    do_ring();
}

/* ... and its files get the numbers. */
static void do_replaced(void)
{
    if (rank == size - 1)
        for (int fd = 3; fd < 1024; fd++) {
            close(fd);
            dup2(1, fd);
        }
    do_ring();
}

static void guest_accepted(tp_listener *listener, tp_status status,
                           tp_pipe *pipe, void *arg)
{
    _Atomic(tp_pipe *) *here = arg;

    (void)listener;
    if (status == TP_OK)
        atomic_store(here, pipe);
}

/* A peer from outside sends `length` bytes and is let in; its pipe. */
static tp_pipe *guest(tp_context *outside, tp_listener *listener,
                      const char *address, size_t length, tp_pipe **there)
{
    _Atomic(tp_pipe *) here = NULL;

    if (tp_accept(listener, guest_accepted, &here) != TP_OK
        || tp_connect(outside, address, there) != TP_OK
        || tp_pipe_send(*there, big, length) != TP_OK)
        exit(90);
    while (atomic_load(&here) == NULL)
        tp_wait(context, 10, NULL);
    if (tp_pipe_recv(here, big, sizeof(big), NULL) != TP_OK)
        exit(89);
    return here;
}

/* Its address; the other context is to be a peer from outside. */
static void guests_open(tp_context **outside, tp_listener **listener,
                        char address[1024])
{
    tp_options options = TP_OPTIONS_INIT;

    options.bootstrap = "single";
    if (tp_init(&options, outside) != TP_OK
        || tp_listen(context, NULL, listener) != TP_OK
        || tp_listener_address(*listener, address, 1024) != TP_OK)
        exit(88);
}

/* Serves more guests than a job of few ranks has places in its record for at a
 * time, one after the other, and then one that stays. */
static void do_guests(void)
{
    tp_context *outside;
    tp_listener *listener;
    tp_pipe *here, *there;
    char address[1024];

    guests_open(&outside, &listener, address);
    for (int i = 0; i < GUESTS; i++) {
        here = guest(outside, listener, address, 1000, &there);
        if (tp_pipe_close(here) != TP_OK || tp_pipe_close(there) != TP_OK)
            exit(87);
    }
    here = guest(outside, listener, address, 7, &there);
    printf("asked \n");
    fflush(stdout);
    tp_pipe_recv(here, big, sizeof(big), NULL);
}

static void never(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                  void *arg)
{
    (void)pipe;
    (void)status;
    (void)skeleton;
    (void)arg;
}

/* Rank 0 waits for anything, of nine guests, of the last rank, and of the one
 * before that on nine pipes. */
static void do_crowd(void)
{
    tp_context *outside;
    tp_listener *listener;
    tp_pipe *there, *here;
    char address[1024];

    if (rank != 0)
        receive(0);
    guests_open(&outside, &listener, address);
    for (int i = 0; i < 9; i++)
        if (tp_pipe_read_descriptor(guest(outside, listener, address, 7,
                                          &there), never, NULL) != TP_OK)
            exit(86);
    for (unsigned i = 1; i < 10; i++)
        if (tp_pipe_open(context, size - 2, i, &here) != TP_OK
            || tp_pipe_read_descriptor(here, never, NULL) != TP_OK)
            exit(84);
    if (tp_pipe_read_descriptor(to(size - 1), never, NULL) != TP_OK)
        exit(85);
    printf("asked \n");
    fflush(stdout);
    for (;;)
        tp_wait(context, -1, NULL);
}

/* Gone without a word. */
static void do_loss(void)
{
    raise(SIGKILL);
}

/* Ends the job in many words. */
static void do_shout(void)
{
    memset(big, 'x', sizeof(big) - 1);
    if (rank == 0)
        tp_abort(context, 42, big);
    receive(0);
}

int main(int argc, char **argv)
{
    static const struct { const char *word; void (*run)(void); } words[] = {
        { "once", do_once }, { "ring", do_ring }, { "star", do_star },
        { "full", do_full },
        { "talk", do_talk }, { "fall", do_fall }, { "answered", do_answered },
        { "stay", do_stay }, { "exit", do_exit },
        { "heir", do_heir }, { "threads", do_threads }, { "both", do_both },
        { "nested", do_nested },
        { "guests", do_guests }, { "crowd", do_crowd }, { "unmet", do_unmet },
        { "loss", do_loss }, { "shout", do_shout },
        { "robbed", do_robbed }, { "replaced", do_replaced },
    };
    const char *word = argc > 1 ? argv[1] : "";

    if (tp_init(NULL, &context) != TP_OK)
        return 96;
    rank = tp_rank(context);
    size = tp_size(context);
    printf("ready %d %d\n", rank, (int)getpid());
    fflush(stdout);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(words[i].word, word) == 0)
            words[i].run();
    return tp_finalize(context) == TP_OK ? 0 : 95;
}
