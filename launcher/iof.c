/* SPDX-License-Identifier: BSD-3-Clause */
/* What ranks print, line by line: the whole of it. */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/iof_private.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

tp_status tpl_iof_new(struct tpl_loop *loop, int ranks,
                      const struct tpl_iof_how *how, struct tpb_error *error,
                      struct tpl_iof **result)
{
    struct tpl_iof *iof = tpb_zalloc(sizeof(*iof));
    struct stat out, err;

    if (iof != NULL)
        iof->streams = tpb_array((size_t)ranks * 2, sizeof(iof->streams[0]));
    if (iof == NULL || iof->streams == NULL) {
        tpb_free(iof);
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    }
    iof->loop = loop;
    iof->how = *how;
    iof->count = (size_t)ranks * 2;
    if (fstat(STDOUT_FILENO, &out) < 0)
        memset(&out, 0, sizeof(out));
    if (fstat(STDERR_FILENO, &err) < 0)
        memset(&err, 0, sizeof(err));
    tpl_output_init(&iof->outputs[0], iof, STDOUT_FILENO, &out);
    tpl_output_init(&iof->outputs[1], iof, STDERR_FILENO, &err);
    iof->error = &iof->outputs[out.st_dev != err.st_dev
                               || out.st_ino != err.st_ino];
    for (size_t i = 0; i < iof->count; i++)
        tpl_stream_init(&iof->streams[i], iof,
                        i % 2 == 0 ? &iof->outputs[0] : iof->error,
                        (int)(i / 2));
    tpl_stream_init(&iof->own, iof, iof->error, -1);
    *result = iof;
    return TP_OK;
}

void tpl_iof_free(struct tpl_iof *iof)
{
    if (iof == NULL)
        return;
    for (size_t i = 0; i < iof->count; i++) {
        tpl_watch_close(iof->loop, &iof->streams[i].watch);
        tpb_free(iof->streams[i].buffer);
    }
    for (size_t i = 0; i < TPB_COUNT(iof->outputs); i++)
        tpl_output_fini(&iof->outputs[i]);
    tpb_free(iof->own.buffer);
    tpb_free(iof->streams);
    tpb_free(iof);
}

size_t tpl_iof_word(char *line, size_t size, const char *format, va_list args)
{
    int begun = snprintf(line, size - 1, "tprun: ");
    size_t length;

    vsnprintf(line + begun, size - 1 - (size_t)begun, format, args);
    length = strlen(line);
    /* Programs have given some of the words. */
    tpb_one_line(line, length);
    while (line[length - 1] == ' ')
        length--;
    line[length++] = '\n';
    return length;
}

void tpl_iof_say(struct tpl_iof *iof, const char *format, ...)
{
    char line[1024];
    size_t length;
    va_list args;

    va_start(args, format);
    length = tpl_iof_word(line, sizeof(line), format, args);
    va_end(args);
    /* Too much that nobody reads: the newest goes.  Without memory there is no
     * turn to wait for. */
    if (tpl_stream_add(&iof->own, line, length))
        tpl_output_pump(iof->own.output);
    else if (iof->own.buffer == NULL)
        tpb_write_all(STDERR_FILENO, line, length);
}

void tpl_iof_pass(struct tpl_iof *iof, const char *text, size_t length)
{
    if (tpl_stream_add(&iof->own, text, length))
        tpl_output_pump(iof->own.output);
}

void tpl_iof_feed(struct tpl_iof *iof, void (*room)(void *arg), void *arg)
{
    iof->room = room;
    iof->arg = arg;
    for (size_t i = 0; i < iof->count; i++) {
        iof->streams[i].fed = true;
        iof->streams[i].ended = false;
    }
}

bool tpl_iof_put(struct tpl_iof *iof, int rank, bool error, const char *data,
                 size_t length)
{
    struct tpl_stream *stream = &iof->streams[2 * rank + error];

    tpl_stream_put(stream, data, length);
    tpl_output_pump(stream->output);
    return !stream->ended;
}

bool tpl_iof_crowded(const struct tpl_iof *iof)
{
    return iof->crowded;
}

void tpl_iof_relieved(struct tpl_iof *iof)
{
    for (size_t i = 0; i < iof->count; i++)
        if (tpl_stream_crowded(&iof->streams[i]))
            return;
    iof->crowded = false;
    iof->room(iof->arg);
}

void tpl_iof_end(struct tpl_iof *iof, int rank)
{
    for (int i = 0; i < 2; i++) {
        tpl_stream_end(&iof->streams[2 * rank + i]);
        tpl_output_pump(iof->streams[2 * rank + i].output);
    }
}

bool tpl_iof_ended(const struct tpl_iof *iof)
{
    for (size_t i = 0; i < iof->count; i++)
        if (!iof->streams[i].ended)
            return false;
    return tpl_output_empty(iof->error);
}

bool tpl_iof_done(const struct tpl_iof *iof)
{
    return tpl_iof_ended(iof) && tpl_output_empty(&iof->outputs[0]);
}

uint64_t tpl_iof_written(const struct tpl_iof *iof)
{
    return iof->written;
}

bool tpl_iof_behind(const struct tpl_iof *iof)
{
    for (size_t i = 0; i < iof->count; i++) {
        struct pollfd stream = { iof->streams[i].watch.fd, POLLIN, 0 };

        if (stream.fd >= 0 && poll(&stream, 1, 0) > 0
            && (stream.revents & POLLIN) != 0)
            return true;
    }
    return false;
}

void tpl_iof_hang_up(struct tpl_iof *iof)
{
    for (size_t i = 0; i < iof->count; i++)
        if (!iof->streams[i].ended)
            tpl_stream_end(&iof->streams[i]);
    for (size_t i = 0; i < TPB_COUNT(iof->outputs); i++)
        tpl_output_pump(&iof->outputs[i]);
}

int tpl_iof_lost(const struct tpl_iof *iof)
{
    return iof->lost;
}

bool tpl_iof_unread(const struct tpl_iof *iof)
{
    return iof->outputs[0].failed == EPIPE || iof->outputs[1].failed == EPIPE;
}
