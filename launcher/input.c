/* SPDX-License-Identifier: BSD-3-Clause */
/* Copies standard input to ranks where it cannot be handed over. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "launcher/input.h"
#include "launcher/options.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

/* How often to look whether tprun is in the foreground, while somebody types
 * and it is not. */
static const uint64_t input_patience = 500000000;

/* A rank that gets a copy. */
struct input_reader {
    struct tpl_watch pipe;         /* -1: none, or it closed its end */
    size_t start;                  /* how much of the buffer it has */
};

static struct {
    struct tpl_loop *loop;
    struct tpl_iof *iof;
    int who;
    bool terminal;                 /* that is what 0 is */
    bool unwatched;                /* 0 is a file, which is always ready */
    bool keys;                     /* the terminal is to have our settings, */
    bool raw;                      /* ... and has them */
    struct termios settings;       /* its own */
    struct tpl_watch source;       /* fd 0, if it is copied */
    struct tpl_timer timer;
    struct input_reader *readers;
    int count, most;               /* readers; so many there will be */
    size_t end;
    char buffer[16384];
} input = { .source = { .fd = -1 } };

/* Reading from there, or a change of its settings, would stop the whole job.  A
 * terminal that is not that of our session knows no background, nor does one
 * that has hung up. */
static bool input_in_background(void)
{
    pid_t front = input.terminal ? tcgetpgrp(STDIN_FILENO) : -1;

    return front >= 0 && front != getpgrp();
}

void tpl_input_pause(void)
{
    /* In the background it has the settings of who is in the foreground. */
    if (input.raw && !input_in_background())
        tcsetattr(STDIN_FILENO, TCSANOW, &input.settings);
    input.raw = false;
}

void tpl_input_close(void)
{
    tpl_input_pause();
    input.keys = false;
    if (input.loop == NULL)
        return;
    tpl_watch_set(input.loop, &input.source, 0);
    input.source.fd = -1;
    for (int i = 0; i < input.count; i++)
        tpl_watch_close(input.loop, &input.readers[i].pipe);
    tpl_timer_set(input.loop, &input.timer, 0);
    input.count = 0;
}

void tpl_input_fini(void)
{
    tpl_input_close();
    tpb_free(input.readers);
    input.readers = NULL;
}

/* Asks for what can happen next: room where there is none, else more to read.
 * The last reader's end is the end. */
static void input_continue(void)
{
    bool behind = false, any = false;

    for (int i = 0; i < input.count; i++) {
        struct input_reader *reader = &input.readers[i];
        bool full = reader->start < input.end;

        if (reader->pipe.fd < 0)
            continue;
        any = true;
        behind |= full;
        /* Nothing but EPOLLERR, which comes unasked: it closed its end. */
        tpl_watch_set(input.loop, &reader->pipe,
                      full ? EPOLLOUT : EPOLLERR | EPOLLET);
    }
    if (!any && input.count > 0) {
        tpl_input_close();
        return;
    }
    if (input.unwatched)
        tpl_timer_set(input.loop, &input.timer, behind ? 0 : tpb_now());
    else if (tpl_watch_set(input.loop, &input.source,
                           behind ? 0 : EPOLLIN) < 0 && errno == EPERM) {
        input.unwatched = true;
        tpl_timer_set(input.loop, &input.timer, tpb_now());
    }
}

static void input_write(struct input_reader *reader)
{
    ssize_t done = write(reader->pipe.fd, input.buffer + reader->start,
                         input.end - reader->start);

    if (done > 0)
        reader->start += (size_t)done;
    else if (done < 0 && errno != EAGAIN && errno != EINTR)
        tpl_watch_close(input.loop, &reader->pipe);
}

static void input_read(void)
{
    ssize_t got = read(STDIN_FILENO, input.buffer, sizeof(input.buffer));

    if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
        input_continue();
        return;
    }
    if (got <= 0) {
        /* End of file (Ctrl-D), or the terminal is gone. */
        if (got < 0 && !input.terminal)
            tpl_iof_say(input.iof, "cannot read standard input: %s; it ends "
                        "here for the ranks", strerror(errno));
        tpl_input_close();
        return;
    }
    input.end = (size_t)got;
    for (int i = 0; i < input.count; i++) {
        input.readers[i].start = 0;
        if (input.readers[i].pipe.fd >= 0)
            input_write(&input.readers[i]);
    }
    input_continue();
}

/* Keys as they are typed; what is written keeps its line ends. */
static void input_raw(void)
{
    struct termios settings;

    if (input_in_background()
        || (!input.raw && tcgetattr(STDIN_FILENO, &input.settings) < 0))
        return;
    settings = input.settings;
    settings.c_iflag &= ~(tcflag_t)(ICRNL | IXON);
    settings.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG | IEXTEN);
    settings.c_cc[VMIN] = 1;
    settings.c_cc[VTIME] = 0;
    input.raw = tcsetattr(STDIN_FILENO, TCSANOW, &settings) == 0;
}

static void input_came(struct tpl_watch *watch, uint32_t events)
{
    (void)events;
    if (input_in_background()) {
        tpl_watch_set(input.loop, watch, 0);
        tpl_timer_set(input.loop, &input.timer, tpb_now() + input_patience);
        return;
    }
    /* It may have come to the foreground without a SIGCONT. */
    if (input.keys && !input.raw)
        input_raw();
    input_read();
}

static void input_writable(struct tpl_watch *watch, uint32_t events)
{
    struct input_reader *reader = TPB_CONTAINER(watch, struct input_reader,
                                                pipe);

    /* Without anything to write a write would not tell. */
    if ((events & (EPOLLERR | EPOLLHUP)) != 0)
        tpl_watch_close(input.loop, &reader->pipe);
    else
        input_write(reader);
    input_continue();
}

static void input_again(struct tpl_timer *timer)
{
    (void)timer;
    if (input.unwatched)
        input_read();
    else
        tpl_input_resume();
}

void tpl_input_resume(void)
{
    /* A signal may come before all ranks are started, and all of them shall
     * have the beginning. */
    if (input.source.fd < 0 || input.count < input.most)
        return;
    if (input.keys)
        input_raw();
    input_continue();
}

tp_status tpl_input_open(struct tpl_loop *loop, struct tpl_iof *iof, int who,
                         int ranks, struct tpb_error *error)
{
    input.who = who;
    input.iof = iof;
    input.terminal = isatty(STDIN_FILENO);
    input.timer.fire = input_again;
    if (who == TPL_STDIN_NONE || (who >= 0 && !input.terminal))
        return TP_OK;
    input.most = who >= 0 ? 1 : ranks;
    input.readers = tpb_array((size_t)input.most, sizeof(input.readers[0]));
    if (input.readers == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    input.loop = loop;
    input.source = (struct tpl_watch){ STDIN_FILENO, 0, input_came };
    return TP_OK;
}

static void input_add(int fd)
{
    /* It has ended before this rank was started. */
    if (input.source.fd < 0) {
        close(fd);
        return;
    }
    input.readers[input.count++].pipe =
        (struct tpl_watch){ fd, 0, input_writable };
    fcntl(fd, F_SETFL, O_NONBLOCK);
    if (input.who >= 0)
        input_continue();
}

/* At its end from the beginning: where /dev is bare, a pipe that nobody writes
 * to. */
static int input_nothing(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC), ends[2];

    if (fd >= 0 || pipe2(ends, O_CLOEXEC) < 0)
        return fd;
    close(ends[1]);
    return ends[0];
}

int tpl_input_for(int rank)
{
    int ends[2];

    if (input.who != TPL_STDIN_ALL && input.who != rank)
        return input_nothing();
    if (input.readers == NULL)
        return fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    input_add(ends[1]);
    return ends[0];
}

bool tpl_input_wants_terminal(int rank)
{
    return input.terminal && input.who == rank;
}

void tpl_input_terminal(int fd)
{
    input.keys = true;
    input_raw();
    input_add(fd);
}
