/* SPDX-License-Identifier: BSD-3-Clause */
/* See leavings.h. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/leavings.h"

enum { LEAVINGS_CHUNK = 8192 };

/* Which go: by the PID that made them, and what the kernel says of them. */
typedef bool leavings_goes_fn(pid_t pid, const struct stat *about,
                              const void *arg);

/* 0: it is no such name. */
static pid_t leavings_pid(const char *name)
{
    const size_t length = sizeof(TPB_LEAVINGS) - 1;
    char *end;
    long pid;

    if (strncmp(name, TPB_LEAVINGS, length) != 0)
        return 0;
    pid = strtol(name + length, &end, 10);
    return pid > 0 && *end == '.' ? (pid_t)pid : 0;
}

/* Of this user; or of `others`, too, where the system lets us. */
static void leavings_each(leavings_goes_fn *goes, const void *arg, bool others)
{
    _Alignas(struct dirent64) char entries[LEAVINGS_CHUNK];
    int folder = open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long got;

    if (folder < 0)
        return;
    while ((got = syscall(SYS_getdents64, folder, entries, sizeof(entries)))
           > 0)
        for (long at = 0; at < got;) {
            const struct dirent64 *entry = (const void *)(entries + at);
            pid_t pid = leavings_pid(entry->d_name);
            struct stat about;

            at += entry->d_reclen;
            if (pid > 0
                && fstatat(folder, entry->d_name, &about, AT_SYMLINK_NOFOLLOW)
                   == 0
                && (others || about.st_uid == geteuid())
                && goes(pid, &about, arg))
                unlinkat(folder, entry->d_name, 0);
        }
    close(folder);
}

struct leavings_list {
    const pid_t *pids;
    int count;
};

static bool leavings_listed(pid_t pid, const struct stat *about,
                            const void *arg)
{
    const struct leavings_list *list = arg;

    (void)about;
    for (int i = 0; i < list->count; i++)
        if (list->pids[i] == pid)
            return true;
    return false;
}

/* They may have become another user's since root started them. */
void tpb_leavings_remove(const pid_t *pids, int count)
{
    leavings_each(leavings_listed, &(struct leavings_list){ pids, count },
                  geteuid() == 0);
}

/* The PID may be alive where we cannot see it, so only old ones. */
static bool leavings_old(pid_t pid, const struct stat *about, const void *arg)
{
    return kill(pid, 0) < 0 && errno == ESRCH
           && about->st_mtime + *(const int *)arg < time(NULL);
}

void tpb_leavings_sweep(int seconds)
{
    leavings_each(leavings_old, &seconds, false);
}
