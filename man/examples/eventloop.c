/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tp inside somebody else's event loop.  Rank 0 waits in poll(2) for lines on
 * its standard input and for tp at the same time; it deals the lines out to the
 * other ranks, which send them back in capitals.  Nothing blocks but poll().
 *
 *     tprun -n 3 ./eventloop < text
 */
#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <tp.h>

/* A line on its way: memory that lives until its write is done. */
struct line {
    tp_message message;
    tp_payload payload;
    char text[];
};

struct loop {
    tp_context *context;
    bool reading;              /* standard input has not ended */
    int awaited;               /* answers still to come, or 1 for a worker */
    unsigned dealt;            /* lines, to choose whose turn it is */
    char text[65536];          /* of a line that is not whole yet */
    size_t length;
    bool failed;
};

static void complain(struct loop *loop, tp_pipe *pipe, tp_status status)
{
    fprintf(stderr, "eventloop: %s: %s: %s\n", tp_pipe_peer(pipe),
            tp_strerror(status), tp_pipe_error(pipe));
    loop->failed = true;
}

static struct line *line_new(size_t length)
{
    struct line *line = calloc(1, sizeof(*line) + length + 1);

    if (line == NULL)
        return NULL;
    line->payload = (tp_payload){ line->text, length, NULL, 0 };
    line->message.payloads = &line->payload;
    line->message.payload_count = 1;
    return line;
}

static void line_sent(tp_pipe *pipe, tp_status status, tp_message *message,
                      void *arg)
{
    (void)pipe;
    (void)status;     /* a broken pipe is noticed where its answer is awaited */
    (void)message;
    free(arg);
}

static void line_send(struct loop *loop, tp_pipe *pipe, struct line *line)
{
    tp_status status = tp_pipe_write(pipe, &line->message, line_sent, line);

    if (status == TP_OK)
        return;
    free(line);
    complain(loop, pipe, status);
}

/* ---- a worker: every line goes back in capitals ------------------------ */

static void worker_listen(struct loop *loop, tp_pipe *pipe);

/* What both sides' reads carry: the loop, and the line that is filled. */
struct arrival {
    struct loop *loop;
    struct line *line;
};

static void worker_got(tp_pipe *pipe, tp_status status, tp_message *message,
                       void *arg)
{
    struct arrival *arrival = arg;
    struct line *line = arrival->line;

    (void)message;
    if (status != TP_OK) {
        complain(arrival->loop, pipe, status);
        free(line);
    } else {
        for (size_t i = 0; i < line->payload.length; i++)
            line->text[i] = (char)toupper((unsigned char)line->text[i]);
        line_send(arrival->loop, pipe, line);
        worker_listen(arrival->loop, pipe);
    }
    free(arrival);
}

/* ---- rank 0: answers are printed as they come -------------------------- */

static void master_got(tp_pipe *pipe, tp_status status, tp_message *message,
                       void *arg)
{
    struct arrival *arrival = arg;
    struct line *line = arrival->line;

    (void)message;
    if (status != TP_OK)
        complain(arrival->loop, pipe, status);
    else
        printf("rank %d: %s\n", tp_pipe_rank(pipe), line->text);
    arrival->loop->awaited--;
    free(line);
    free(arrival);
}

/* A skeleton: make room for its one payload and read it. */
static void arrived(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                    void *arg)
{
    struct loop *loop = arg;
    bool master = tp_rank(loop->context) == 0;
    struct arrival *arrival;

    if (status == TP_ERR_PEER_CLOSED && !master) {
        loop->awaited = 0;     /* rank 0 has no more lines */
        return;
    }
    if (status == TP_OK && skeleton->payload_count != 1)
        status = TP_ERR_PROTOCOL;
    if (status != TP_OK) {
        complain(loop, pipe, status);
        return;
    }
    arrival = calloc(1, sizeof(*arrival));
    if (arrival != NULL)
        arrival->line = line_new(skeleton->payloads[0].length);
    if (arrival == NULL || arrival->line == NULL) {
        free(arrival);
        complain(loop, pipe, TP_ERR_NO_MEMORY);
        return;
    }
    arrival->loop = loop;
    skeleton->payloads[0].data = arrival->line->text;
    status = tp_pipe_read(pipe, skeleton, master ? master_got : worker_got,
                          arrival);
    if (status == TP_OK)
        return;
    free(arrival->line);
    free(arrival);
    complain(loop, pipe, status);
}

static void worker_listen(struct loop *loop, tp_pipe *pipe)
{
    tp_status status = tp_pipe_read_descriptor(pipe, arrived, loop);

    if (status != TP_OK)
        complain(loop, pipe, status);
}

static void deal(struct loop *loop, const char *text, size_t length)
{
    unsigned workers = (unsigned)tp_size(loop->context) - 1;
    int rank = 1 + (int)(loop->dealt++ % workers);
    struct line *line = line_new(length);
    tp_pipe *pipe;

    if (line == NULL || tp_pipe_to_rank(loop->context, rank, &pipe) != TP_OK) {
        free(line);
        loop->failed = true;
        return;
    }
    memcpy(line->text, text, length);
    line_send(loop, pipe, line);
    loop->awaited++;
    worker_listen(loop, pipe);     /* for the answer */
}

/* Standard input has something: deals out the lines that are whole. */
static void read_lines(struct loop *loop)
{
    ssize_t got = read(STDIN_FILENO, loop->text + loop->length,
                       sizeof(loop->text) - loop->length);
    char *end;

    if (got < 0 && errno == EINTR)
        return;
    loop->reading = got > 0;
    loop->length += got > 0 ? (size_t)got : 0;
    while ((end = memchr(loop->text, '\n', loop->length)) != NULL) {
        size_t length = (size_t)(end - loop->text);

        deal(loop, loop->text, length);
        loop->length -= length + 1;
        memmove(loop->text, end + 1, loop->length);
    }
    /* The last line without its newline, or one too long for us. */
    if (loop->length == sizeof(loop->text)
        || (!loop->reading && loop->length > 0)) {
        deal(loop, loop->text, loop->length);
        loop->length = 0;
    }
}

/* ---- the loop ---------------------------------------------------------- */

/* Lets tp do all there is to do; only then may we wait for its descriptor. */
static void drain(struct loop *loop)
{
    int completed;

    do {
        if (tp_progress(loop->context, &completed) != TP_OK) {
            loop->failed = true;
            return;
        }
    } while (completed > 0);
}

static void run(struct loop *loop)
{
    while ((loop->reading || loop->awaited > 0) && !loop->failed) {
        struct pollfd fds[2] = {
            { .fd = tp_fd(loop->context), .events = POLLIN },
            { .fd = loop->reading ? STDIN_FILENO : -1, .events = POLLIN },
        };

        drain(loop);
        if (!loop->reading && loop->awaited == 0)
            break;
        if (poll(fds, 2, -1) < 0 && errno != EINTR) {
            perror("eventloop: poll");
            loop->failed = true;
        }
        if (fds[1].revents != 0)
            read_lines(loop);
    }
}

int main(void)
{
    static struct loop loop;
    tp_options options = TP_OPTIONS_INIT;
    tp_pipe *pipe;
    tp_status status;

    options.progress = TP_PROGRESS_MANUAL;
    status = tp_init(&options, &loop.context);
    if (status != TP_OK) {
        fprintf(stderr, "eventloop: tp_init: %s\n", tp_strerror(status));
        return 1;
    }
    if (tp_size(loop.context) < 2) {
        fprintf(stderr, "usage: tprun -n 3 eventloop < text\n");
        tp_finalize(loop.context);
        return 2;
    }
    if (tp_rank(loop.context) == 0) {
        loop.reading = true;
    } else if (tp_pipe_to_rank(loop.context, 0, &pipe) == TP_OK) {
        loop.awaited = 1;
        worker_listen(&loop, pipe);
    }
    run(&loop);
    for (int i = 1; tp_rank(loop.context) == 0 && i < tp_size(loop.context);
         i++)
        if (tp_pipe_to_rank(loop.context, i, &pipe) == TP_OK)
            tp_pipe_close(pipe);     /* tells that rank to end */
    status = tp_finalize(loop.context);
    return status == TP_OK && !loop.failed ? 0 : 1;
}
