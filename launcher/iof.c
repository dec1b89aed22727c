/* SPDX-License-Identifier: BSD-3-Clause */
/* What ranks print, line by line. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "launcher/iof.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

enum {
    IOF_FIRST = 8192,              /* a stream's buffer at first ... */
    IOF_MOST = 65536,              /* ... and at most */
    IOF_STAGE = 65536,
    IOF_PREFIX = 32                /* "12:46:30.123 [65535] " and more */
};
static const uint64_t iof_pause = 1000000000, iof_terminal_pause = 100000000;

enum iof_kind { IOF_FILE, IOF_PIPE, IOF_SOCKET };

struct iof_output;

/* From one rank, or tprun's own lines (no descriptor). */
struct iof_stream {
    struct tpl_watch watch;
    struct tpb_list node;          /* in its output's list while it has data */
    struct tpl_iof *iof;
    struct iof_output *output;
    int rank;
    char *buffer;
    size_t capacity;
    size_t start, ready, end;      /* start..ready whole lines, ..end a part */
    uint64_t last;                 /* when data came last */
    uint64_t since;                /* when the unfinished line began */
    bool ended;
};

/* tprun's standard output or error. */
struct iof_output {
    struct tpl_watch watch;
    struct tpl_timer timer;
    struct tpl_iof *iof;
    struct tpb_list streams;       /* those with data */
    struct iof_stream *open;       /* whose line is not finished yet */
    uint64_t waiting;              /* since when others wait for it; 0: no */
    enum iof_kind kind;
    bool terminal;
    int failed;                    /* errno; everything is dropped */
    size_t start, end;
    char stage[IOF_STAGE];         /* what is to be written, in order */
};

struct tpl_iof {
    struct tpl_loop *loop;
    struct tpl_iof_how how;
    time_t second;                 /* that `clock` shows */
    char clock[16];
    int lost;
    struct iof_output outputs[2];
    struct iof_output *error;      /* where tprun's own lines go */
    struct iof_stream own;
    size_t count;
    struct iof_stream *streams;    /* two per rank */
};

static void output_pump(struct iof_output *output);

static size_t stream_room(const struct iof_stream *stream)
{
    return IOF_MOST - (stream->end - stream->start);
}

static void stream_compact(struct iof_stream *stream)
{
    memmove(stream->buffer, stream->buffer + stream->start,
            stream->end - stream->start);
    stream->end -= stream->start;
    stream->ready -= stream->start;
    stream->start = 0;
}

/* Makes room for `need` bytes behind `end`: moves the data to the front, or
 * grows.  False if that cannot be. */
static bool stream_prepare(struct iof_stream *stream, size_t need)
{
    while (stream->capacity - stream->end < need) {
        size_t capacity = stream->capacity > 0 ? stream->capacity * 2
                                               : IOF_FIRST;
        char *grown;

        if (stream->start > 0) {
            stream_compact(stream);
            continue;
        }
        if (capacity > IOF_MOST)
            return false;
        grown = tpb_resize(stream->buffer, capacity);
        if (grown == NULL)
            return false;
        stream->buffer = grown;
        stream->capacity = capacity;
    }
    return true;
}

/* Data came behind `from`: finds the end of the last whole line. */
static void stream_scan(struct iof_stream *stream, size_t from)
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
static void stream_queue(struct iof_stream *stream)
{
    if (stream->end > stream->start && tpb_list_empty(&stream->node))
        tpb_list_append(&stream->output->streams, &stream->node);
}

static void stream_end(struct iof_stream *stream)
{
    tpl_watch_close(stream->iof->loop, &stream->watch);
    stream->ended = true;
}

static void stream_readable(struct tpl_watch *watch, uint32_t events)
{
    struct iof_stream *stream = TPB_CONTAINER(watch, struct iof_stream,
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
        stream_end(stream);
    } else {
        stream->end += (size_t)got;
        stream_scan(stream, from);
        stream_queue(stream);
        if (stream_room(stream) == 0)
            tpl_watch_set(stream->iof->loop, watch, 0);
    }
    output_pump(stream->output);
}

/* How many bytes may go out now; 0 if the stream has to wait for the end of
 * its line. */
static size_t stream_movable(struct iof_stream *stream, uint64_t now)
{
    const struct iof_output *output = stream->output;

    if (stream->ready > stream->start)
        return stream->ready - stream->start;
    if (stream_room(stream) == 0) {
        /* Too long.  A progress bar that never ends its line goes out up to
         * its last return of the carriage, anything else as it comes. */
        const char *end = memrchr(stream->buffer + stream->start, '\r',
                                  IOF_MOST);

        return end != NULL && output->open != stream
               ? (size_t)(end - stream->buffer) + 1 - stream->start : IOF_MOST;
    }
    if (output->open == stream || stream->ended
        || (output->terminal && now - stream->since >= iof_terminal_pause))
        return stream->end - stream->start;
    return 0;
}

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
    return snprintf(to, IOF_PREFIX, "%s.%03d ", iof->clock,
                    (int)(now.tv_nsec / 1000000));
}

/* What stands before each line of a rank. */
static void output_prefix(struct iof_output *output, int rank)
{
    char *to = output->stage + output->end;
    int used = 0;

    if (output->iof->how.timestamp)
        used = output_time(output->iof, to);
    if (output->iof->how.tag)
        used += snprintf(to + used, (size_t)(IOF_PREFIX - used), "[%d] ",
                         rank);
    output->end += (size_t)used;
}

/* Copies `length` bytes of a stream to the stage, as far as they fit, each
 * line behind its tag.  Returns false if the stage is full. */
static bool output_copy(struct iof_output *output, struct iof_stream *stream,
                        size_t length)
{
    bool tag = (output->iof->how.tag || output->iof->how.timestamp)
               && stream->rank >= 0;

    while (length > 0) {
        const char *from = stream->buffer + stream->start;
        size_t room = sizeof(output->stage) - output->end;
        size_t count = length;

        if (room <= IOF_PREFIX)
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

/* Afterwards: unlinks what is empty, rotates what is not, reads again. */
static void output_moved(struct iof_output *output, struct iof_stream *stream)
{
    tpb_list_unlink(&stream->node);
    if (stream->ready < stream->start)
        stream->ready = stream->start;
    if (stream->start == stream->end)
        stream->start = stream->ready = stream->end = 0;
    else
        tpb_list_append(&output->streams, &stream->node);
    if (!stream->ended)
        tpl_watch_set(output->iof->loop, &stream->watch, EPOLLIN);
}

/* The first stream that may go on now, NULL if there is none. */
static struct iof_stream *output_choose(struct iof_output *output,
                                        uint64_t now)
{
    TPB_LIST_EACH(node, &output->streams) {
        struct iof_stream *stream = TPB_CONTAINER(node, struct iof_stream,
                                                  node);

        if (stream_movable(stream, now) > 0)
            return stream;
    }
    return NULL;
}

/*
 * An unfinished line is in the way of the others.  True if it had its time
 * and is ended now; else the timer is set to look again.
 */
static bool output_break(struct iof_output *output, uint64_t now)
{
    uint64_t until;

    if (output->waiting == 0)
        output->waiting = now;
    until = output->terminal ? output->waiting + iof_terminal_pause
                             : output->open->last + iof_pause;
    if (!output->open->ended && until > now) {
        tpl_timer_set(output->iof->loop, &output->timer, until);
        return false;
    }
    output->stage[output->end++] = '\n';
    output->open = NULL;
    return true;
}

/* Fills the stage from the streams. */
static void output_fill(struct iof_output *output)
{
    uint64_t now = tpb_now();

    for (;;) {
        struct iof_stream *open = output->open, *next = open;
        bool fits;

        if (sizeof(output->stage) - output->end <= IOF_PREFIX)
            return;
        if (open == NULL || open->end == open->start) {
            next = output_choose(output, now);
            if (next == NULL)
                break;
            if (open != NULL && !output_break(output, now))
                return;
        }
        output->waiting = 0;
        fits = output_copy(output, next, stream_movable(next, now));
        output_moved(output, next);
        if (!fits)
            return;
    }
    /* Unfinished lines that a terminal shows in a moment. */
    if (output->terminal && !tpb_list_empty(&output->streams))
        tpl_timer_set(output->iof->loop, &output->timer,
                      now + iof_terminal_pause);
}

static void output_failed(struct iof_output *output, int code)
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
            stream_end(&iof->streams[i]);
}

/*
 * Writes what it can without waiting.  A pipe that poll() calls writable takes
 * PIPE_BUF bytes at once; its description may be shared with a shell, so it
 * is not made non-blocking.  Returns -1 with EAGAIN when it would wait.
 */
static ssize_t output_some(struct iof_output *output)
{
    const char *from = output->stage + output->start;
    size_t length = output->end - output->start;
    struct pollfd ready = { output->watch.fd, POLLOUT, 0 };

    if (output->kind == IOF_SOCKET)
        return send(output->watch.fd, from, length,
                    MSG_DONTWAIT | MSG_NOSIGNAL);
    if (output->kind == IOF_PIPE) {
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
static bool output_write(struct iof_output *output)
{
    while (output->start < output->end) {
        ssize_t done = output_some(output);

        if (done > 0) {
            output->start += (size_t)done;
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
static void output_drop(struct iof_output *output)
{
    TPB_LIST_EACH(node, &output->streams) {
        struct iof_stream *stream = TPB_CONTAINER(node, struct iof_stream,
                                                  node);

        stream->start = stream->end;
        output_moved(output, stream);
    }
}

/* Moves data from the streams out, as long as it goes without waiting. */
static void output_pump(struct iof_output *output)
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
    output_pump(TPB_CONTAINER(watch, struct iof_output, watch));
}

static void output_rested(struct tpl_timer *timer)
{
    output_pump(TPB_CONTAINER(timer, struct iof_output, timer));
}

static void output_init(struct iof_output *output, struct tpl_iof *iof,
                        int fd, const struct stat *file)
{
    output->watch = (struct tpl_watch){ fd, 0, output_writable };
    output->timer.fire = output_rested;
    output->iof = iof;
    output->terminal = isatty(fd);
    tpb_list_init(&output->streams);
    if (S_ISFIFO(file->st_mode) || output->terminal)
        output->kind = IOF_PIPE;
    else if (S_ISSOCK(file->st_mode))
        output->kind = IOF_SOCKET;
}

static void stream_init(struct iof_stream *stream, struct tpl_iof *iof,
                        struct iof_output *output, int rank)
{
    stream->watch = (struct tpl_watch){ -1, 0, stream_readable };
    stream->iof = iof;
    stream->output = output;
    stream->rank = rank;
    stream->ended = true;
    tpb_list_init(&stream->node);
}

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
    output_init(&iof->outputs[0], iof, STDOUT_FILENO, &out);
    output_init(&iof->outputs[1], iof, STDERR_FILENO, &err);
    iof->error = &iof->outputs[out.st_dev != err.st_dev
                               || out.st_ino != err.st_ino];
    for (size_t i = 0; i < iof->count; i++)
        stream_init(&iof->streams[i], iof,
                    i % 2 == 0 ? &iof->outputs[0] : iof->error, (int)(i / 2));
    stream_init(&iof->own, iof, iof->error, -1);
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
    for (size_t i = 0; i < TPB_COUNT(iof->outputs); i++) {
        tpl_watch_set(iof->loop, &iof->outputs[i].watch, 0);
        tpl_timer_set(iof->loop, &iof->outputs[i].timer, 0);
    }
    tpb_free(iof->own.buffer);
    tpb_free(iof->streams);
    tpb_free(iof);
}

static int iof_watch(struct iof_stream *stream, int fd)
{
    fcntl(fd, F_SETFL, O_NONBLOCK);
    stream->watch.fd = fd;
    stream->ended = false;
    return tpl_watch_set(stream->iof->loop, &stream->watch, EPOLLIN);
}

static int iof_pipe(struct iof_stream *stream, int *writer)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    *writer = ends[1];
    return iof_watch(stream, ends[0]);
}

/* A terminal that passes on what the rank writes as it is. */
static int iof_pty(struct iof_stream *stream, int *writer)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    struct termios settings;
    struct winsize window;
    char name[64];

    if (master < 0)
        return -1;
    if (grantpt(master) < 0 || unlockpt(master) < 0
        || ptsname_r(master, name, sizeof(name)) != 0
        || (*writer = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0) {
        tpb_close(&master);
        return -1;
    }
    if (tcgetattr(*writer, &settings) == 0) {
        settings.c_oflag &= ~(tcflag_t)OPOST;
        tcsetattr(*writer, TCSANOW, &settings);
    }
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0
        || ioctl(STDIN_FILENO, TIOCGWINSZ, &window) == 0)
        ioctl(*writer, TIOCSWINSZ, &window);
    return iof_watch(stream, master);
}

static int iof_file(const char *directory, int rank, const char *suffix)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof(path), "%s/%d.%s", directory, rank, suffix)
        >= (int)sizeof(path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

/* One of the two streams of a rank. */
static int iof_open_one(struct tpl_iof *iof, int rank, int which, int *writer)
{
    static const char *const suffixes[] = { "out", "err" };

    if (iof->how.directory != NULL)
        return *writer = iof_file(iof->how.directory, rank, suffixes[which]);
    if (iof->how.pty)
        return iof_pty(&iof->streams[2 * rank + which], writer);
    return iof_pipe(&iof->streams[2 * rank + which], writer);
}

tp_status tpl_iof_open(struct tpl_iof *iof, int rank, int *out, int *err,
                       struct tpb_error *error)
{
    int result;

    *out = *err = -1;
    result = iof_open_one(iof, rank, 0, out);
    if (result >= 0 && (iof->how.merge || iof->how.pty))
        *err = result = fcntl(*out, F_DUPFD_CLOEXEC, 3);
    else if (result >= 0)
        result = iof_open_one(iof, rank, 1, err);
    if (result < 0) {
        int code = errno;

        tpb_close(out);
        tpb_close(err);
        if (iof->how.directory != NULL)
            return tpb_fail_errno(error, code, "--output %s: cannot make the "
                                  "files of rank %d", iof->how.directory,
                                  rank);
        return tpb_fail_errno(error, code, "cannot make the %s of rank %d",
                              iof->how.pty ? "terminal" : "pipes", rank);
    }
    return TP_OK;
}

int tpl_iof_terminal(struct tpl_iof *iof, int rank)
{
    return fcntl(iof->streams[2 * rank].watch.fd, F_DUPFD_CLOEXEC, 3);
}

void tpl_iof_say(struct tpl_iof *iof, const char *format, ...)
{
    struct iof_stream *own = &iof->own;
    char line[1024];
    va_list args;
    size_t length;

    va_start(args, format);
    vsnprintf(line, sizeof(line) - 1, format, args);
    va_end(args);
    length = strlen(line);
    line[length++] = '\n';
    /* Too much that nobody reads: the newest goes. */
    if (!stream_prepare(own, length + 7))
        return;
    memcpy(own->buffer + own->end, "tprun: ", 7);
    memcpy(own->buffer + own->end + 7, line, length);
    own->end += length + 7;
    own->ready = own->end;
    stream_queue(own);
    output_pump(own->output);
}

static bool output_empty(const struct iof_output *output)
{
    return tpb_list_empty(&output->streams) && output->end == output->start;
}

bool tpl_iof_ended(const struct tpl_iof *iof)
{
    for (size_t i = 0; i < iof->count; i++)
        if (!iof->streams[i].ended)
            return false;
    return output_empty(iof->error);
}

bool tpl_iof_done(const struct tpl_iof *iof)
{
    return tpl_iof_ended(iof) && output_empty(&iof->outputs[0]);
}

void tpl_iof_hang_up(struct tpl_iof *iof)
{
    for (size_t i = 0; i < iof->count; i++)
        if (!iof->streams[i].ended)
            stream_end(&iof->streams[i]);
    for (size_t i = 0; i < TPB_COUNT(iof->outputs); i++)
        output_pump(&iof->outputs[i]);
}

int tpl_iof_lost(const struct tpl_iof *iof)
{
    return iof->lost;
}
