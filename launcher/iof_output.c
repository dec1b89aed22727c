/* SPDX-License-Identifier: BSD-3-Clause */
/* tprun's own output: takes lines from the streams in turn, tags them, writes
 * them without waiting. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/iof_private.h"
#include "runtime/base/io.h"

enum { OUTPUT_PREFIX = 32 };       /* "12:46:30.123 [65535] " and more */

/* What a line is given before it is broken for others; a machine that has much
 * else to do may well keep a rank from its cpu for a second or two. */
static const uint64_t output_pause = 5000000000;
static const uint64_t output_again = 200000000;

/* "12:46:30.123 " */
static int output_time(struct tpl_iof *iof, char *to)
{
    struct timespec now;
    struct tm local;

    clock_gettime(CLOCK_REALTIME, &now);
    if (now.tv_sec != iof->second) {
        iof->second = now.tv_sec;
        if (localtime_r(&now.tv_sec, &local) == NULL)
            memset(&local, 0, sizeof(local));
        strftime(iof->clock, sizeof(iof->clock), "%H:%M:%S", &local);
    }
    return snprintf(to, OUTPUT_PREFIX, "%s.%03d ", iof->clock,
                    (int)(now.tv_nsec / 1000000));
}

/* What stands before each line of a rank. */
static void output_prefix(struct tpl_output *output, int rank)
{
    char *to = output->stage + output->end;
    int used = 0;

    if (output->iof->how.timestamp)
        used = output_time(output->iof, to);
    if (output->iof->how.tag)
        used += snprintf(to + used, (size_t)(OUTPUT_PREFIX - used), "[%d] ",
                         rank);
    output->end += (size_t)used;
}

/* Copies `length` bytes of a stream to the stage, as far as they fit, each
 * line behind its tag.  Returns false if the stage is full. */
static bool output_copy(struct tpl_output *output, struct tpl_stream *stream,
                        size_t length)
{
    bool tag = (output->iof->how.tag || output->iof->how.timestamp)
               && stream->rank >= 0;

    while (length > 0) {
        const char *from = stream->buffer + stream->start;
        size_t room = sizeof(output->stage) - output->end;
        size_t count = length;

        if (room <= OUTPUT_PREFIX)
            return false;
        if (tag) {
            const char *newline = memchr(from, '\n', length);

            if (newline != NULL)
                count = (size_t)(newline - from) + 1;
            if (output->open == NULL) {
                output_prefix(output, stream->rank);
                room = sizeof(output->stage) - output->end;
            }
        }
        if (count > room)
            count = room;
        memcpy(output->stage + output->end, from, count);
        output->end += count;
        stream->start += count;
        length -= count;
        /* A return of the carriage ends a line only where it was cut there
         * for being too long. */
        output->open = from[count - 1] == '\n'
                       || (from[count - 1] == '\r' && length == 0
                           && stream->ready < stream->start)
                       ? NULL : stream;
    }
    return true;
}

/* The first stream that may go on now, NULL if there is none. */
static struct tpl_stream *output_choose(struct tpl_output *output,
                                        uint64_t now)
{
    TPB_LIST_EACH(node, &output->streams) {
        struct tpl_stream *stream = TPB_CONTAINER(node, struct tpl_stream,
                                                  node);

        if (tpl_stream_movable(stream, now) > 0)
            return stream;
    }
    return NULL;
}

/* The open line's time is over, but has it paused?  There may be more of it
 * that we were too late to read, or its rank could not write. */
static bool output_held_up(struct tpl_output *output)
{
    const struct tpl_iof *iof = output->iof;
    struct pollfd ask = { .fd = output->open->watch.fd, .events = POLLIN };

    if (poll(&ask, 1, 0) > 0 && (ask.revents & POLLIN) != 0)
        return true;
    return iof->how.starving != NULL && output->open->rank >= 0
           && iof->how.starving(output->open->rank, &output->ran);
}

/*
 * An unfinished line is in the way of the others.  True if it had its time
 * and is ended now; else the timer is set to look again.
 */
static bool output_break(struct tpl_output *output, uint64_t now)
{
    uint64_t until;

    if (output->waiting == 0)
        output->waiting = now;
    until = output->terminal ? output->waiting + tpl_iof_terminal_pause
                             : output->open->last + output_pause;
    if (!output->open->ended && !output->iof->crowded && until <= now
        && !output->terminal && output_held_up(output))
        until = now + output_again;
    if (!output->open->ended && !output->iof->crowded && until > now) {
        tpl_timer_set(output->iof->loop, &output->timer, until);
        return false;
    }
    output->stage[output->end++] = '\n';
    output->open = NULL;
    return true;
}

/* Fills the stage from the streams. */
static void output_fill(struct tpl_output *output)
{
    uint64_t now = tpb_now();

    for (;;) {
        struct tpl_stream *open = output->open, *next = open;
        bool fits;

        if (sizeof(output->stage) - output->end <= OUTPUT_PREFIX)
            return;
        if (open == NULL || open->end == open->start) {
            next = output_choose(output, now);
            if (next == NULL)
                break;
            if (open != NULL && !output_break(output, now))
                return;
        }
        output->waiting = output->ran = 0;
        fits = output_copy(output, next, tpl_stream_movable(next, now));
        tpl_stream_moved(next);
        if (!fits)
            return;
    }
    /* Unfinished lines that a terminal shows in a moment. */
    if (output->terminal && !tpb_list_empty(&output->streams))
        tpl_timer_set(output->iof->loop, &output->timer,
                      now + tpl_iof_terminal_pause);
}

static void output_failed(struct tpl_output *output, int code)
{
    struct tpl_iof *iof = output->iof;

    output->failed = code;
    output->start = output->end = 0;
    tpl_watch_set(iof->loop, &output->watch, 0);
    if (code != EPIPE) {
        iof->lost = code;
        if (output != iof->error)
            tpl_iof_say(iof, "cannot write to standard output: %s; what the "
                        "ranks print is lost", strerror(code));
        return;
    }
    /* Nobody reads any more: let the ranks notice as they would without us,
     * by SIGPIPE. */
    for (size_t i = 0; i < iof->count; i++)
        if (iof->streams[i].output == output)
            tpl_stream_end(&iof->streams[i]);
}

/*
 * Writes what it can without waiting.  A pipe that poll() calls writable takes
 * PIPE_BUF bytes at once; its description may be shared with a shell, so it
 * is not made non-blocking.  A terminal promises nothing, but can be opened
 * again (output_reopen).  Returns -1 with EAGAIN when it would wait.
 */
static ssize_t output_some(struct tpl_output *output)
{
    const char *from = output->stage + output->start;
    size_t length = output->end - output->start;
    struct pollfd ready = { output->watch.fd, POLLOUT, 0 };

    if (output->kind == TPL_IOF_SOCKET)
        return send(output->watch.fd, from, length,
                    MSG_DONTWAIT | MSG_NOSIGNAL);
    if (output->kind == TPL_IOF_PIPE) {
        if (poll(&ready, 1, 0) == 0) {
            errno = EAGAIN;
            return -1;
        }
        if (length > PIPE_BUF) {
            /* Whole lines where possible: another job may write to the same
             * pipe, and up to here writes do not mix. */
            const char *end = memrchr(from, '\n', PIPE_BUF);

            length = end != NULL ? (size_t)(end - from) + 1 : PIPE_BUF;
        }
    }
    return write(output->watch.fd, from, length);
}

/* True when the stage is empty. */
static bool output_write(struct tpl_output *output)
{
    while (output->start < output->end) {
        ssize_t done = output_some(output);

        if (done > 0) {
            output->start += (size_t)done;
            output->iof->written += (uint64_t)done;
        } else if (done < 0 && errno == EAGAIN) {
            if (tpl_watch_set(output->iof->loop, &output->watch,
                              EPOLLOUT) < 0)
                output_failed(output, errno);
            return false;
        } else if (done == 0 || errno != EINTR) {
            output_failed(output, done == 0 ? EIO : errno);
            return true;
        }
    }
    output->start = output->end = 0;
    tpl_watch_set(output->iof->loop, &output->watch, 0);
    return true;
}

/* Forgets what streams hold for an output that takes nothing any more. */
static void output_drop(struct tpl_output *output)
{
    TPB_LIST_EACH(node, &output->streams) {
        struct tpl_stream *stream = TPB_CONTAINER(node, struct tpl_stream,
                                                  node);

        stream->start = stream->end;
        tpl_stream_moved(stream);
    }
}

/* Moves data from the streams out, as long as it goes without waiting. */
void tpl_output_pump(struct tpl_output *output)
{
    do {
        if (output->failed != 0) {
            output_drop(output);
            return;
        }
        if (!output_write(output))
            return;
        if (output->failed == 0)
            output_fill(output);
    } while (output->end > output->start || output->failed != 0);
}

static void output_writable(struct tpl_watch *watch, uint32_t events)
{
    (void)events;
    tpl_output_pump(TPB_CONTAINER(watch, struct tpl_output, watch));
}

static void output_rested(struct tpl_timer *timer)
{
    tpl_output_pump(TPB_CONTAINER(timer, struct tpl_output, timer));
}

/* The same terminal by a description of our own, which does not wait; -1 where
 * that may not be, as after su(1).  What makes terminals makes a new one each
 * time that it is opened. */
static int output_reopen(int fd)
{
    char path[64];
    int number;

    if (ioctl(fd, TIOCGPTN, &number) == 0)
        return -1;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
}

void tpl_output_init(struct tpl_output *output, struct tpl_iof *iof,
                     int fd, const struct stat *file)
{
    output->terminal = isatty(fd);
    output->own = output->terminal ? output_reopen(fd) : -1;
    output->watch = (struct tpl_watch){ output->own >= 0 ? output->own : fd,
                                        0, output_writable };
    output->timer.fire = output_rested;
    output->iof = iof;
    tpb_list_init(&output->streams);
    if (S_ISFIFO(file->st_mode) || output->terminal)
        output->kind = TPL_IOF_PIPE;
    else if (S_ISSOCK(file->st_mode))
        output->kind = TPL_IOF_SOCKET;
}

void tpl_output_fini(struct tpl_output *output)
{
    tpl_watch_set(output->iof->loop, &output->watch, 0);
    tpl_timer_set(output->iof->loop, &output->timer, 0);
    tpb_close(&output->own);
}

bool tpl_output_empty(const struct tpl_output *output)
{
    return tpb_list_empty(&output->streams) && output->end == output->start;
}
