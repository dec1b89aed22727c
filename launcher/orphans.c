/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds our children in /proc. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/guard.h"
#include "launcher/orphans.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

static pid_t *orphans_foreign;
static size_t orphans_foreign_count;

/* Parent and state of a process; false if it is gone. */
static bool orphans_stat(const char *name, pid_t *parent, char *state)
{
    char path[64], text[512];
    const char *after;
    ssize_t got;
    int fd;

    snprintf(path, sizeof(path), "/proc/%.20s/stat", name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    got = read(fd, text, sizeof(text) - 1);
    tpb_close(&fd);
    if (got <= 0)
        return false;
    text[got] = '\0';
    /* "pid (name) S parent": the name may hold anything, also ")". */
    after = strrchr(text, ')');
    return after != NULL && sscanf(after, ") %c %d", state, parent) == 2;
}

static bool orphans_is_foreign(pid_t pid)
{
    for (size_t i = 0; i < orphans_foreign_count; i++)
        if (orphans_foreign[i] == pid)
            return true;
    return tpl_guard_is(pid);
}

/* All of it?  A process whose first thread has ended is a zombie to see, but
 * its other threads run. */
static bool orphans_ended(pid_t pid)
{
    siginfo_t info = { .si_pid = 0 };

    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0
           && info.si_pid == pid;
}

/* Calls back for each child of ours that is alive. */
static int orphans_each(void (*visit)(pid_t pid, int arg), int arg)
{
    DIR *proc = tpl_orphans_hidden() ? NULL : opendir("/proc");
    struct dirent *entry;
    pid_t self = getpid();
    int count = 0;

    if (proc == NULL)
        return 0;
    while ((entry = readdir(proc)) != NULL) {
        pid_t pid, parent;
        char state;

        if (entry->d_name[0] < '1' || entry->d_name[0] > '9'
            || !orphans_stat(entry->d_name, &parent, &state)
            || parent != self || state == 'X')
            continue;
        pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (orphans_is_foreign(pid) || (state == 'Z' && orphans_ended(pid)))
            continue;
        visit(pid, arg);
        count++;
    }
    closedir(proc);
    return count;
}

static void orphans_remember(pid_t pid, int arg)
{
    pid_t *list = tpb_resize(orphans_foreign, (orphans_foreign_count + 1)
                                              * sizeof(list[0]));

    (void)arg;
    if (list == NULL)
        return;
    orphans_foreign = list;
    orphans_foreign[orphans_foreign_count++] = pid;
}

static void orphans_signal(pid_t pid, int signal)
{
    kill(pid, signal);
}

/* Have we a child, alive or unreaped?  1: yes; 0: no; -1: a sandbox keeps
 * waitid() from us, and /proc alone tells. */
static int orphans_exist(void)
{
    siginfo_t info;

    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0)
        return 1;
    return errno == ECHILD ? 0 : -1;
}

void tpl_orphans_adopt(void)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (orphans_exist() != 0)
        orphans_each(orphans_remember, 0);
}

bool tpl_orphans_hidden(void)
{
    char self[16] = "";

    return readlink("/proc/self", self, sizeof(self) - 1) <= 0
           || strtol(self, NULL, 10) != getpid();
}

int tpl_orphans_kill(int signal)
{
    int count;

    if (orphans_exist() == 0)
        return 0;
    count = orphans_each(orphans_signal, signal);
    /* A look at /proc misses who was born behind it by one who then died
     * before it.  Those have their parent's place now. */
    if (count == 0)
        count = orphans_each(orphans_signal, signal);
    /* The kernel knows best, unless it speaks of those from before. */
    if (count == 0 && orphans_foreign_count == 0 && orphans_exist() > 0)
        count = 1;
    return count;
}
