/* SPDX-License-Identifier: BSD-3-Clause */
/* See leavings.h. */
#include "config.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/leavings.h"

enum { LEAVINGS_CHUNK = 32768 };

static bool leavings_of(const char *name, const pid_t *pids, int count)
{
    const size_t length = sizeof(TPB_LEAVINGS) - 1;
    char *end;
    long pid;

    if (strncmp(name, TPB_LEAVINGS, length) != 0)
        return false;
    pid = strtol(name + length, &end, 10);
    if (pid <= 0 || *end != '.')
        return false;
    for (int i = 0; i < count; i++)
        if (pids[i] == (pid_t)pid)
            return true;
    return false;
}

/* Root may remove those of others, too. */
static bool leavings_mine(int folder, const char *name)
{
    struct stat about;

    return fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW) == 0
           && about.st_uid == geteuid();
}

void tpb_leavings_remove(const pid_t *pids, int count)
{
    static _Alignas(struct dirent64) char entries[LEAVINGS_CHUNK];
    int folder = open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long got;

    if (folder < 0)
        return;
    while ((got = syscall(SYS_getdents64, folder, entries, sizeof(entries)))
           > 0)
        for (long at = 0; at < got;) {
            const struct dirent64 *entry = (const void *)(entries + at);

            at += entry->d_reclen;
            if (leavings_of(entry->d_name, pids, count)
                && leavings_mine(folder, entry->d_name))
                unlinkat(folder, entry->d_name, 0);
        }
    close(folder);
}
