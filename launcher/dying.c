/* SPDX-License-Identifier: BSD-3-Clause */
/* Looks at the threads of a process in /proc. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "launcher/dying.h"
#include "launcher/orphans.h"
#include "runtime/base/io.h"

/* PF_EXITING, among the flags that proc(5) shows and does not explain. */
enum { DYING_FLAG = 0x4 };

/* One that is gone altogether does not run, either. */
static bool dying_thread(int tasks, const char *name)
{
    char path[32], text[512];
    const char *after;
    unsigned flags;
    ssize_t got;
    int fd, code;

    snprintf(path, sizeof(path), "%.20s/stat", name);
    fd = openat(tasks, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ESRCH;
    got = read(fd, text, sizeof(text) - 1);
    code = errno;
    tpb_close(&fd);
    if (got <= 0)
        return got == 0 || code == ESRCH;
    text[got] = '\0';
    /* "pid (name) state parent group session terminal foreground flags": the
     * name may hold anything, also ")". */
    after = strrchr(text, ')');
    return after != NULL
           && sscanf(after, ") %*c %*d %*d %*d %*d %*d %u", &flags) == 1
           && (flags & DYING_FLAG) != 0;
}

bool tpl_dying(pid_t pid)
{
    char path[32];
    struct dirent *entry;
    bool dying;
    DIR *tasks;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    tasks = tpl_orphans_hidden() ? NULL : opendir(path);
    dying = tasks != NULL;
    while (dying && (entry = readdir(tasks)) != NULL)
        if (entry->d_name[0] != '.')
            dying = dying_thread(dirfd(tasks), entry->d_name);
    if (tasks != NULL)
        closedir(tasks);
    return dying;
}
