/* SPDX-License-Identifier: BSD-3-Clause */
/* What a rank writes to: pipes, a terminal, or files. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "launcher/iof_private.h"
#include "launcher/terminal.h"
#include "runtime/base/io.h"

static int iof_pipe(struct tpl_stream *stream, int *writer)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    *writer = ends[1];
    return tpl_stream_watch(stream, ends[0]);
}

/* The size of tprun's own terminal, if it has one. */
static bool iof_window(struct winsize *window)
{
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, window) == 0
           || ioctl(STDIN_FILENO, TIOCGWINSZ, window) == 0;
}

static int iof_pty(struct tpl_stream *stream, int *writer)
{
    int master = tpl_terminal_open(writer);
    struct winsize window;

    if (master < 0)
        return -1;
    if (iof_window(&window))
        ioctl(*writer, TIOCSWINSZ, &window);
    return tpl_stream_watch(stream, master);
}

static const char *iof_pty_remedy(int code)
{
    return code == ENOSPC ? " (sysctl kernel.pty.max allows no more)"
           : code == ENOENT || code == ENODEV ? " (is devpts mounted on"
             " /dev/pts, with a /dev/ptmx?)" : "";
}

static int iof_file(const char *directory, int rank, const char *suffix)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof(path), "%s/%d.%s", directory, rank, suffix)
        >= (int)sizeof(path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return tpb_create_file(path);
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
            return tpb_fail_errno(error, code, "--output: cannot create "
                                  "%s/%d.out and .err", iof->how.directory,
                                  rank);
        if (iof->how.pty)
            return tpb_fail(error, TP_ERR_SYSTEM, "cannot make the terminal of"
                            " rank %d: %s%s%s", rank, strerror(code),
                            iof_pty_remedy(code), tpb_errno_remedy(code));
        return tpb_fail_errno(error, code, "cannot make the pipes of rank %d",
                              rank);
    }
    return TP_OK;
}

int tpl_iof_terminal(struct tpl_iof *iof, int rank)
{
    return fcntl(iof->streams[2 * rank].watch.fd, F_DUPFD_CLOEXEC, 3);
}

void tpl_iof_resize(struct tpl_iof *iof)
{
    struct winsize window;

    if (!iof->how.pty || !iof_window(&window))
        return;
    for (size_t i = 0; i < iof->count; i++)
        if (!iof->streams[i].ended)
            ioctl(iof->streams[i].watch.fd, TIOCSWINSZ, &window);
}
