/* SPDX-License-Identifier: BSD-3-Clause */
/* Programs that are asked something. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "launcher/ask.h"
#include "launcher/signals.h"
#include "runtime/base/io.h"

void tpl_ask_start(struct tpl_ask *ask, char *const argv[])
{
    int ends[2];

    memset(ask, 0, sizeof(*ask));
    ask->fd = -1;
    ask->status = 127;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return;
    ask->pid = fork();
    if (ask->pid == 0) {
        int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        /* Its own group, so that a ^C is ours to answer, and so that its
         * children go with it. */
        setpgid(0, 0);
        dup2(nothing, 0);
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        tpl_signals_restore();
        execv(argv[0], argv);
        _exit(127);
    }
    close(ends[1]);
    if (ask->pid < 0) {
        ask->pid = 0;
        close(ends[0]);
        return;
    }
    setpgid(ask->pid, ask->pid);
    ask->fd = ends[0];
}

/* Reads what is there; closes at its end. */
static void ask_read(struct tpl_ask *ask)
{
    char rest[512];
    size_t room = sizeof(ask->text) - 1 - ask->length;
    ssize_t got = room > 0 ? read(ask->fd, ask->text + ask->length, room)
                           : read(ask->fd, rest, sizeof(rest));

    if (got > 0 && room > 0)
        ask->length += (size_t)got;
    else if (got == 0 || (got < 0 && errno != EINTR))
        tpb_close(&ask->fd);
    ask->text[ask->length] = '\0';
}

/* One that has closed what it writes to may live on.  False: it does. */
static bool ask_ended(struct tpl_ask *ask, uint64_t until)
{
    struct timespec pause = { 0, 1000000 };
    int status = 0;
    pid_t got;

    while ((got = waitpid(ask->pid, &status, WNOHANG)) == 0
           && tpb_now() < until)
        nanosleep(&pause, NULL);
    if (got == ask->pid)
        ask->status = WIFSIGNALED(status) ? 128 + WTERMSIG(status)
                                          : WEXITSTATUS(status);
    return got != 0;
}

static void ask_end(struct tpl_ask *ask, uint64_t until)
{
    if (ask->pid == 0)
        return;
    if (ask->fd >= 0 || !ask_ended(ask, until)) {
        kill(-ask->pid, SIGKILL);
        tpb_close(&ask->fd);
        waitpid(ask->pid, NULL, 0);
        ask->status = -1;
    }
    ask->pid = 0;
}

/* How long to wait for more, in ms.  Those behind one that was late have
 * answered long ago: what is in their pipes counts. */
static int ask_patience(const struct tpl_ask *ask, uint64_t until)
{
    uint64_t now = tpb_now();

    if (now < until)
        return (int)((until - now) / 1000000) + 1;
    return ask->length < sizeof(ask->text) - 1 ? 0 : -1;
}

void tpl_ask_wait(struct tpl_ask *asks, size_t count, int seconds)
{
    uint64_t until = tpb_now() + (uint64_t)seconds * 1000000000u;

    for (size_t i = 0; i < count; i++) {
        int patience;

        /* One after the other: they fill their pipes meanwhile, and what is
         * asked for here fits into one. */
        while (asks[i].fd >= 0
               && (patience = ask_patience(&asks[i], until)) >= 0) {
            struct pollfd one = { asks[i].fd, POLLIN, 0 };
            int got = poll(&one, 1, patience);

            if (got > 0)
                ask_read(&asks[i]);
            else if (patience == 0 && (got == 0 || errno != EINTR))
                break;
        }
        ask_end(&asks[i], until);
    }
}

const char *tpl_ask_last_line(struct tpl_ask *ask)
{
    char *line;

    while (ask->length > 0
           && strchr("\r\n", ask->text[ask->length - 1]) != NULL)
        ask->text[--ask->length] = '\0';
    line = strrchr(ask->text, '\n');
    line = line != NULL ? line + 1 : ask->text;
    tpb_one_line(line, strlen(line));
    return line;
}
