/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A ping-pong of two ranks in lock step, or a stream from one to the other in
 * bursts, for counting instructions.
 *
 * A rank moves only when the other's messages are already there: the turn is
 * passed through a socket outside of tp.  So nobody ever polls in vain, and
 * every run executes the same instructions.  bench/instructions runs it under
 * callgrind, twice, and takes the difference.
 *
 *     steps ROUNDS [BYTES [stream | borrow]]
 */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"
#include "runtime/tp.h"

/* Of a stream so many messages a round, of which so many are under way. */
enum { STEPS_LIMIT_S = 300, STEPS_WARM = 64, STEPS_BURST = 256,
       STEPS_WINDOW = 64,
       STEPS_PULLED = 20 * 1024 }; /* the other may have to pull longer ones */

struct steps {
    tp_context *context;
    tp_pipe *pipe;
    tp_message message;
    tp_payload payload;
    char *memory;                  /* to send, then to receive into */
    size_t bytes;
    int rank, turn;                /* turn: socket */
    int written, caught;
    bool over;                     /* what is still armed ends unread */
    bool stream;
    bool borrow;                   /* memory of tp_alloc(), read in place */
    /* Of a stream, since it began. */
    long issued, wanted;
    tp_message window[STEPS_WINDOW];
};

static void steps_fail(tp_pipe *pipe, const char *what, tp_status status)
{
    bench_say("%s: %s %s", what, tp_strerror(status),
              pipe != NULL ? tp_pipe_error(pipe) : "");
    _exit(1);
}

static void steps_expect(tp_pipe *pipe, const char *what, tp_status status)
{
    if (status != TP_OK)
        steps_fail(pipe, what, status);
}

static void steps_written(tp_pipe *pipe, tp_status status,
                          tp_message *message, void *arg)
{
    struct steps *steps = arg;

    (void)message;
    steps_expect(pipe, "write", status);
    steps->written++;
}

static void steps_caught(tp_pipe *pipe, tp_status status, tp_message *message,
                         void *arg)
{
    struct steps *steps = arg;

    (void)message;
    steps_expect(pipe, "read", status);
    steps->caught++;
}

static void steps_lent(tp_pipe *pipe, tp_status status, tp_message *message,
                       void *arg)
{
    steps_caught(pipe, status, message, arg);
    steps_expect(pipe, "release", tp_pipe_release(pipe, message));
}

static void steps_arrived(tp_pipe *pipe, tp_status status,
                          tp_message *skeleton, void *arg)
{
    struct steps *steps = arg;

    if (steps->over)
        return;
    steps_expect(pipe, "read_descriptor", status);
    if (skeleton->payload_count != 1
        || skeleton->payloads[0].length != steps->bytes)
        steps_fail(pipe, "read_descriptor", TP_ERR_PROTOCOL);
    if (steps->borrow) {
        steps_expect(pipe, "borrow",
                     tp_pipe_borrow(pipe, skeleton, steps_lent, steps));
        return;
    }
    skeleton->payloads[0].data = steps->memory + steps->bytes;
    steps_expect(pipe, "read",
                 tp_pipe_read(pipe, skeleton, steps_caught, steps));
}

/* Arms for the answer and writes one message.  What is lent or pulled is over
 * when the other has had his turn, before the answer. */
static void steps_write(struct steps *steps)
{
    int written = steps->written;

    steps_expect(steps->pipe, "read_descriptor",
                 tp_pipe_read_descriptor(steps->pipe, steps_arrived, steps));
    steps_expect(steps->pipe, "write",
                 tp_pipe_write(steps->pipe, &steps->message, steps_written,
                               steps));
    while (steps->written == written && !steps->borrow
           && steps->bytes < STEPS_PULLED)
        steps_expect(NULL, "tp_wait", tp_wait(steps->context, -1, NULL));
}

static void steps_catch(struct steps *steps)
{
    int caught = steps->caught;

    while (steps->caught == caught)
        steps_expect(NULL, "tp_wait", tp_wait(steps->context, -1, NULL));
}

static void steps_pass(struct steps *steps)
{
    if (send(steps->turn, "", 1, MSG_NOSIGNAL) != 1)
        _exit(1);
}

static void steps_take(struct steps *steps)
{
    char byte;

    if (recv(steps->turn, &byte, 1, 0) != 1)
        _exit(1);
}

/* The part that is counted: its name stands in callgrind's output. */
static __attribute__((noinline)) void steps_rounds(struct steps *steps,
                                                   long rounds)
{
    for (long i = 0; i < rounds; i++) {
        if (steps->rank == 0) {
            steps_write(steps);
            steps_pass(steps);
        }
        steps_take(steps);
        steps_catch(steps);
        if (steps->rank == 1) {
            steps_write(steps);
            steps_pass(steps);
        }
    }
}

/* ---- a stream ----------------------------------------------------------- */

static void steps_sent(tp_pipe *pipe, tp_status status, tp_message *message,
                       void *arg);

/* As tpperf does: callbacks keep the window full. */
static void steps_fill(struct steps *steps, int most)
{
    for (; steps->issued < steps->wanted && most > 0; most--) {
        tp_message *message = &steps->window[steps->issued % STEPS_WINDOW];

        if (steps->issued - steps->written == STEPS_WINDOW)
            return;
        steps->issued++;
        steps_expect(steps->pipe, "write",
                     tp_pipe_write(steps->pipe, message, steps_sent, steps));
    }
}

static void steps_sent(tp_pipe *pipe, tp_status status, tp_message *message,
                       void *arg)
{
    struct steps *steps = arg;

    steps_written(pipe, status, message, arg);
    steps_fill(steps, STEPS_WINDOW);
}

static void steps_came(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                       void *arg)
{
    struct steps *steps = arg;

    if (steps->over)
        return;
    steps_arrived(pipe, status, skeleton, arg);
    steps_expect(pipe, "read_descriptor",
                 tp_pipe_read_descriptor(pipe, steps_came, steps));
}

/* These two are counted apart, by their names. */
static __attribute__((noinline)) void steps_out(struct steps *steps)
{
    steps->wanted += STEPS_BURST;
    steps_fill(steps, 1);
    while (steps->written < steps->wanted)
        steps_expect(NULL, "tp_wait", tp_wait(steps->context, -1, NULL));
}

static __attribute__((noinline)) void steps_in(struct steps *steps)
{
    steps->wanted += STEPS_BURST;
    while (steps->caught < steps->wanted)
        steps_expect(NULL, "tp_wait", tp_wait(steps->context, -1, NULL));
}

static void steps_stream(struct steps *steps, long rounds)
{
    for (int i = 0; i < STEPS_WINDOW; i++) {
        steps->window[i] = steps->message;
        if (steps->rank == 1)
            steps_expect(steps->pipe, "read_descriptor",
                         tp_pipe_read_descriptor(steps->pipe, steps_came,
                                                 steps));
    }
    steps->written = steps->caught = 0;
    for (long i = 0; i < rounds; i++) {
        if (steps->rank == 0) {
            steps_out(steps);
            steps_pass(steps);
            steps_take(steps);
        } else {
            steps_take(steps);
            steps_in(steps);
            steps_pass(steps);
        }
    }
}

/* ---- both --------------------------------------------------------------- */

/* The first contact needs both at once, so it is not in step. */
static void steps_meet(struct steps *steps)
{
    size_t length;

    for (int i = 0; i < STEPS_WARM; i++) {
        if (steps->rank == 0)
            steps_expect(steps->pipe, "send",
                         tp_pipe_send(steps->pipe, steps->memory,
                                      steps->bytes));
        steps_expect(steps->pipe, "receive",
                     tp_pipe_recv(steps->pipe, steps->memory, steps->bytes,
                                  &length));
        if (steps->rank == 1)
            steps_expect(steps->pipe, "send",
                         tp_pipe_send(steps->pipe, steps->memory,
                                      steps->bytes));
    }
    /* Rank 1 is armed before the first message comes in step. */
    if (steps->rank == 1 && !steps->stream)
        steps_expect(steps->pipe, "read_descriptor",
                     tp_pipe_read_descriptor(steps->pipe, steps_arrived,
                                             steps));
}

static int steps_side(int rank, int turn, const char *directory, long rounds,
                      size_t bytes, const char *way)
{
    tp_options options = TP_OPTIONS_INIT;
    struct steps steps = { .rank = rank, .turn = turn, .bytes = bytes,
                           .stream = strcmp(way, "stream") == 0,
                           .borrow = strcmp(way, "borrow") == 0 };
    void *memory = NULL;

    setenv("TP_RANK", rank == 0 ? "0" : "1", 1);
    setenv("TP_SIZE", "2", 1);
    options.progress = TP_PROGRESS_MANUAL;
    options.bootstrap = directory;
    options.spin_us = 1000000;
    steps_expect(NULL, "tp_init", tp_init(&options, &steps.context));
    steps_expect(NULL, "tp_pipe_to_rank",
                 tp_pipe_to_rank(steps.context, 1 - rank, &steps.pipe));
    if (steps.borrow)
        steps_expect(NULL, "tp_alloc",
                     tp_alloc(steps.context, 2 * (bytes + 1),
                              (tp_device){ TP_DEVICE_CPU, 0 }, &memory));
    else if (posix_memalign(&memory, 4096, 2 * (bytes + 1)) != 0)
        steps_expect(NULL, "memory", TP_ERR_NO_MEMORY);
    else
        memset(memory, 1, 2 * (bytes + 1));
    steps.memory = memory;
    steps.payload = (tp_payload){ .data = steps.memory, .length = bytes };
    steps.message = (tp_message){ .payloads = &steps.payload,
                                  .payload_count = 1 };
    steps_meet(&steps);
    if (steps.stream)
        steps_stream(&steps, rounds);
    else
        steps_rounds(&steps, rounds);
    steps.over = true;
    steps_expect(NULL, "tp_finalize", tp_finalize(steps.context));
    return 0;
}

/* Both ranks; the parent is rank 0. */
static int steps_run(const char *directory, long rounds, size_t bytes,
                     const char *way)
{
    char bootstrap[64];
    int sockets[2], status = 1, mine;
    pid_t child;

    snprintf(bootstrap, sizeof(bootstrap), "dir:%s", directory);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
        bench_say("socketpair: %s", strerror(errno));
        return 1;
    }
    child = fork();
    if (child < 0) {
        bench_say("fork: %s", strerror(errno));
        return 1;
    }
    close(sockets[child != 0]);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        bench_limit(STEPS_LIMIT_S);
        exit(steps_side(1, sockets[1], bootstrap, rounds, bytes, way));
    }
    mine = steps_side(0, sockets[0], bootstrap, rounds, bytes, way);
    waitpid(child, &status, 0);
    return status == 0 ? mine : 1;
}

int main(int argc, char **argv)
{
    char directory[] = "/tmp/tp-steps-XXXXXX", remove[64];
    long rounds = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
    size_t bytes = 8;
    int status;

    if (rounds < 1 || argc > 4
        || (argc >= 3 && (!bench_size(argv[2], &bytes) || bytes == 0))
        || (argc == 4 && strcmp(argv[3], "stream") != 0
            && strcmp(argv[3], "borrow") != 0)) {
        fprintf(stderr, "usage: steps ROUNDS [BYTES [stream | borrow]]\n");
        return 2;
    }
    if (mkdtemp(directory) == NULL) {
        bench_say("%s: %s", directory, strerror(errno));
        return 1;
    }
    bench_limit(STEPS_LIMIT_S);
    status = steps_run(directory, rounds, bytes, argc == 4 ? argv[3] : "");
    snprintf(remove, sizeof(remove), "rm -rf '%s'", directory);
    return system(remove) == 0 ? status : 1;
}
