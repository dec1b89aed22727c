/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two ranks throw a message to and fro, all of it in callbacks: none of the
 * calls blocks but tp_wait().  Rank 0 says how long half a round trip takes.
 *
 *     tprun -n 2 ./pingpong [BYTES [THROWS]]
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tp.h>

/* All that the callbacks need; one thread touches it, the one in tp_wait(). */
struct game {
    tp_pipe *pipe;
    tp_message message;        /* what this rank throws ... */
    tp_payload payload;        /* ... one payload ... */
    char *ball;                /* ... of this memory, received into as well */
    size_t bytes;
    int throws, catches;       /* still to be done by this rank */
    bool writing;
    tp_status status;          /* what ended the game, if not TP_OK */
};

static void next_move(struct game *game);

static void fail(struct game *game, tp_status status)
{
    game->status = status;
    fprintf(stderr, "pingpong: %s: %s: %s\n", tp_pipe_peer(game->pipe),
            tp_strerror(status), tp_pipe_error(game->pipe));
}

/* The ball has left: its memory is ours again. */
static void thrown(tp_pipe *pipe, tp_status status, tp_message *message,
                   void *arg)
{
    struct game *game = arg;

    (void)pipe;
    (void)message;
    game->writing = false;
    if (status != TP_OK)
        fail(game, status);
    else
        next_move(game);
}

/* The ball is here, whole. */
static void caught(tp_pipe *pipe, tp_status status, tp_message *message,
                   void *arg)
{
    struct game *game = arg;

    (void)pipe;
    (void)message;
    if (status != TP_OK) {
        fail(game, status);
        return;
    }
    game->catches--;
    next_move(game);
}

/* The ball is coming: this is its skeleton.  Say where it shall go. */
static void coming(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                   void *arg)
{
    struct game *game = arg;

    if (status == TP_OK && (skeleton->payload_count != 1
                            || skeleton->payloads[0].length != game->bytes))
        status = TP_ERR_PROTOCOL;
    if (status == TP_OK) {
        skeleton->payloads[0].data = game->ball;
        status = tp_pipe_read(pipe, skeleton, caught, game);
    }
    if (status != TP_OK)
        fail(game, status);
}

/* Catches are awaited as long as there are some; whoever has caught as often
 * as the other has thrown is the one to throw. */
static void next_move(struct game *game)
{
    tp_status status = TP_OK;

    if (game->writing || game->status != TP_OK)
        return;
    if (game->throws > game->catches
        || (game->throws == game->catches && game->throws > 0
            && tp_pipe_rank(game->pipe) == 1)) {
        game->throws--;
        game->writing = true;
        status = tp_pipe_write(game->pipe, &game->message, thrown, game);
    } else if (game->catches > 0) {
        status = tp_pipe_read_descriptor(game->pipe, coming, game);
    }
    if (status != TP_OK)
        fail(game, status);
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Plays until both have thrown `throws` times. */
static tp_status play(tp_context *context, struct game *game)
{
    next_move(game);
    while (game->status == TP_OK
           && (game->throws > 0 || game->catches > 0 || game->writing)) {
        tp_status status = tp_wait(context, 60000, NULL);

        if (status != TP_OK)
            return status;
    }
    return game->status;
}

static int run(tp_context *context, size_t bytes, int throws)
{
    struct game game = { .bytes = bytes, .throws = throws, .catches = throws };
    double begun;
    tp_status status;

    if (tp_rank(context) > 1)
        return 0;
    if (tp_pipe_to_rank(context, 1 - tp_rank(context), &game.pipe) != TP_OK)
        return 1;
    game.ball = calloc(1, bytes + 1);
    if (game.ball == NULL)
        return 1;
    game.payload = (tp_payload){ game.ball, bytes, NULL, 0 };
    game.message.payloads = &game.payload;
    game.message.payload_count = 1;
    begun = seconds();
    status = play(context, &game);
    if (status == TP_OK && tp_rank(context) == 0)
        printf("%zu bytes, %d round trips: half of one takes %.2f us\n",
               bytes, throws, (seconds() - begun) / throws / 2 * 1e6);
    /* After an error the pipe may still own the ball: let finalize end it. */
    if (status == TP_OK)
        free(game.ball);
    return status == TP_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    tp_options options = TP_OPTIONS_INIT;
    size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 0) : 8;
    int throws = argc > 2 ? atoi(argv[2]) : 10000;
    tp_context *context;
    tp_status status;
    int result;

    options.progress = TP_PROGRESS_MANUAL;
    status = tp_init(&options, &context);
    if (status != TP_OK) {
        fprintf(stderr, "pingpong: tp_init: %s\n", tp_strerror(status));
        return 1;
    }
    if (tp_size(context) < 2 || throws < 1) {
        fprintf(stderr, "usage: tprun -n 2 pingpong [BYTES [THROWS]]\n");
        tp_finalize(context);
        return 2;
    }
    result = run(context, bytes, throws);
    return tp_finalize(context) == TP_OK ? result : 1;
}
