/* SPDX-License-Identifier: BSD-3-Clause */
/* Copies a terminal to rank 0. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "launcher/input.h"
#include "runtime/base/io.h"

/* How often to look whether tprun is in the foreground, while somebody types
 * and it is not. */
static const uint64_t input_patience = 500000000;

static struct {
    struct tpl_loop *loop;
    struct tpl_watch terminal;     /* fd 0 */
    struct tpl_watch pipe;         /* to rank 0 */
    struct tpl_timer timer;
    size_t start, end;
    char buffer[4096];
} input = { .terminal = { .fd = -1 }, .pipe = { .fd = -1 } };

void tpl_input_close(void)
{
    if (input.loop == NULL)
        return;
    tpl_watch_set(input.loop, &input.terminal, 0);
    input.terminal.fd = -1;
    tpl_watch_close(input.loop, &input.pipe);
    tpl_timer_set(input.loop, &input.timer, 0);
}

/* Asks for what can happen next: more to read, or room to write. */
static void input_continue(void)
{
    bool full = input.end > input.start;

    tpl_watch_set(input.loop, &input.terminal, full ? 0 : EPOLLIN);
    /* Nothing but EPOLLERR, which comes unasked: rank 0 closed its end. */
    tpl_watch_set(input.loop, &input.pipe,
                  full ? EPOLLOUT : EPOLLERR | EPOLLET);
}

static void input_typed(struct tpl_watch *watch, uint32_t events)
{
    ssize_t got;

    (void)events;
    /* Reading from the background would stop the whole job. */
    if (tcgetpgrp(watch->fd) != getpgrp()) {
        tpl_watch_set(input.loop, watch, 0);
        tpl_timer_set(input.loop, &input.timer, tpb_now() + input_patience);
        return;
    }
    got = read(watch->fd, input.buffer, sizeof(input.buffer));
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (got <= 0) {
        /* End of file (Ctrl-D), or the terminal is gone. */
        tpl_input_close();
        return;
    }
    input.start = 0;
    input.end = (size_t)got;
    input_continue();
}

static void input_writable(struct tpl_watch *watch, uint32_t events)
{
    ssize_t done;

    (void)events;
    done = write(watch->fd, input.buffer + input.start,
                 input.end - input.start);
    if (done < 0 && errno != EAGAIN && errno != EINTR) {
        tpl_input_close();
        return;
    }
    if (done > 0)
        input.start += (size_t)done;
    input_continue();
}

static void input_again(struct tpl_timer *timer)
{
    (void)timer;
    tpl_input_resume();
}

void tpl_input_resume(void)
{
    if (input.terminal.fd >= 0)
        input_continue();
}

tp_status tpl_input_open(struct tpl_loop *loop, int *fd,
                         struct tpb_error *error)
{
    int ends[2];

    *fd = STDIN_FILENO;
    if (!isatty(STDIN_FILENO))
        return TP_OK;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return tpb_fail_errno(error, errno, "cannot make a pipe");
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    input.loop = loop;
    input.terminal = (struct tpl_watch){ STDIN_FILENO, 0, input_typed };
    input.pipe = (struct tpl_watch){ ends[1], 0, input_writable };
    input.timer.fire = input_again;
    *fd = ends[0];
    input_continue();
    return TP_OK;
}
