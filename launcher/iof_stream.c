/* SPDX-License-Identifier: BSD-3-Clause */
/* What has come from a rank and has not gone out yet: bounded, by lines. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "launcher/iof_private.h"
#include "runtime/base/alloc.h"

enum { STREAM_FIRST = 8192 };      /* a buffer's size at first */

static size_t stream_most(const struct tpl_stream *stream)
{
    return stream->fed ? TPL_STREAM_FED : TPL_STREAM_MOST;
}

static size_t stream_room(const struct tpl_stream *stream)
{
    return stream_most(stream) - (stream->end - stream->start);
}

bool tpl_stream_crowded(const struct tpl_stream *stream)
{
    return stream->fed && stream_room(stream) < TPL_STREAM_MARGIN;
}

/* It takes no more until something has gone out. */
static bool stream_full(const struct tpl_stream *stream)
{
    return stream_room(stream) == 0 || tpl_stream_crowded(stream);
}

static void stream_compact(struct tpl_stream *stream)
{
    memmove(stream->buffer, stream->buffer + stream->start,
            stream->end - stream->start);
    stream->end -= stream->start;
    stream->ready -= stream->start;
    stream->start = 0;
}

/* Makes room for `need` bytes behind `end`: moves the data to the front, or
 * grows.  False if that cannot be; for want of memory, the job ends. */
static bool stream_prepare(struct tpl_stream *stream, size_t need)
{
    while (stream->capacity - stream->end < need) {
        size_t capacity = stream->capacity > 0 ? stream->capacity * 2
                                               : STREAM_FIRST;
        char *grown;

        if (stream->start > 0) {
            stream_compact(stream);
            continue;
        }
        if (capacity > stream_most(stream))
            return false;
        grown = tpb_resize(stream->buffer, capacity);
        if (grown == NULL) {
            stream->iof->loop->refused = ENOMEM;
            return false;
        }
        stream->buffer = grown;
        stream->capacity = capacity;
    }
    return true;
}

/* Data came behind `from`: finds the end of the last whole line. */
static void stream_scan(struct tpl_stream *stream, size_t from)
{
    const char *end = memrchr(stream->buffer + from, '\n',
                              stream->end - from);

    stream->last = tpb_now();
    if (end != NULL)
        stream->ready = (size_t)(end - stream->buffer) + 1;
    if (end != NULL || from == stream->start)
        stream->since = stream->last;
}

/* Queues the stream at its output if it has data and is not there yet. */
static void stream_queue(struct tpl_stream *stream)
{
    if (stream->end > stream->start && tpb_list_empty(&stream->node))
        tpb_list_append(&stream->output->streams, &stream->node);
}

void tpl_stream_end(struct tpl_stream *stream)
{
    tpl_watch_close(stream->iof->loop, &stream->watch);
    stream->ended = true;
}

static void stream_readable(struct tpl_watch *watch, uint32_t events)
{
    struct tpl_stream *stream = TPB_CONTAINER(watch, struct tpl_stream,
                                              watch);
    size_t from;
    ssize_t got;

    (void)events;
    if (!stream_prepare(stream, 1)) {
        tpl_watch_set(stream->iof->loop, watch, 0);
        return;
    }
    from = stream->end;
    got = read(watch->fd, stream->buffer + from, stream->capacity - from);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        tpl_stream_end(stream);
    } else {
        stream->end += (size_t)got;
        stream_scan(stream, from);
        stream_queue(stream);
        if (stream_room(stream) == 0)
            tpl_watch_set(stream->iof->loop, watch, 0);
    }
    tpl_output_pump(stream->output);
}

void tpl_stream_put(struct tpl_stream *stream, const char *data,
                    size_t length)
{
    size_t from;

    if (stream->ended || !stream_prepare(stream, length))
        return;
    from = stream->end;
    memcpy(stream->buffer + from, data, length);
    stream->end += length;
    stream_scan(stream, from);
    stream_queue(stream);
    if (tpl_stream_crowded(stream))
        stream->iof->crowded = true;
}

bool tpl_stream_add(struct tpl_stream *stream, const char *text,
                    size_t length)
{
    if (!stream_prepare(stream, length))
        return false;
    memcpy(stream->buffer + stream->end, text, length);
    stream->end += length;
    stream->ready = stream->end;
    stream_queue(stream);
    return true;
}

size_t tpl_stream_movable(struct tpl_stream *stream, uint64_t now)
{
    const struct tpl_output *output = stream->output;

    if (stream->ready > stream->start)
        return stream->ready - stream->start;
    if (stream_full(stream)) {
        /* Too long.  A progress bar that never ends its line goes out up to
         * its last return of the carriage, anything else as it comes. */
        size_t held = stream->end - stream->start;
        const char *end = memrchr(stream->buffer + stream->start, '\r', held);

        return end != NULL && output->open != stream
               ? (size_t)(end - stream->buffer) + 1 - stream->start : held;
    }
    if (output->open == stream || stream->ended
        || (output->terminal && now - stream->since >= tpl_iof_terminal_pause))
        return stream->end - stream->start;
    return 0;
}

void tpl_stream_moved(struct tpl_stream *stream)
{
    tpb_list_unlink(&stream->node);
    if (stream->ready < stream->start)
        stream->ready = stream->start;
    if (stream->start == stream->end)
        stream->start = stream->ready = stream->end = 0;
    else
        tpb_list_append(&stream->output->streams, &stream->node);
    if (stream->fed && stream->iof->crowded && !tpl_stream_crowded(stream))
        tpl_iof_relieved(stream->iof);
    else if (!stream->ended)
        tpl_watch_set(stream->iof->loop, &stream->watch, EPOLLIN);
}

void tpl_stream_init(struct tpl_stream *stream, struct tpl_iof *iof,
                     struct tpl_output *output, int rank)
{
    stream->watch = (struct tpl_watch){ -1, 0, stream_readable };
    stream->iof = iof;
    stream->output = output;
    stream->rank = rank;
    stream->ended = true;
    tpb_list_init(&stream->node);
}

int tpl_stream_watch(struct tpl_stream *stream, int fd)
{
    fcntl(fd, F_SETFL, O_NONBLOCK);
    stream->watch.fd = fd;
    stream->ended = false;
    return tpl_watch_set(stream->iof->loop, &stream->watch, EPOLLIN);
}
