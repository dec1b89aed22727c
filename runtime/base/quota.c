/* SPDX-License-Identifier: BSD-3-Clause */
/* See quota.h. */
#include "config.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/quota.h"

#define QUOTA_ROOM_ANY (UINT64_C(1) << 60)     /* bytes; more is no limit */
#define QUOTA_NS UINT64_C(1000)    /* files tell microseconds ... */
#define QUOTA_MOST_US UINT64_C(1000000000000)   /* ... and no more of them */

/* "50000 100000", or one of both; "max" and "-1" are no numbers.  False: the
 * file is not there. */
static bool quota_read(const char *group, const char *name, char path[PATH_MAX],
                       uint64_t us[2])
{
    char *text, *end;

    us[0] = us[1] = 0;
    if (snprintf(path, PATH_MAX, "%s/%s", group, name) >= PATH_MAX)
        return false;
    text = tpb_read_file(path, NULL);
    if (text == NULL)
        return false;
    if (text[0] >= '0' && text[0] <= '9') {
        us[0] = strtoull(text, &end, 10);
        us[1] = strtoull(end, NULL, 10);
    }
    tpb_free(text);
    return true;
}

/* The limit of one group, if there is one and it is less.  False: there is no
 * such group, or it is the root of all. */
static bool quota_look(const char *group, bool first, void *found)
{
    struct tpb_quota *quota = found;
    char path[PATH_MAX], beside[PATH_MAX];
    uint64_t us[2], period[2];

    if (!quota_read(group, first ? "cpu.cfs_quota_us" : "cpu.max", path, us))
        return false;
    if (first) {
        if (!quota_read(group, "cpu.cfs_period_us", beside, period))
            return false;
        us[1] = period[0];
    }
    if (us[0] > 0 && us[0] <= QUOTA_MOST_US && us[1] > 0
        && us[1] <= QUOTA_MOST_US
        && (quota->cpu_ns == 0
            || (double)us[0] / (double)us[1]
               < (double)quota->cpu_ns / (double)quota->period_ns)) {
        quota->cpu_ns = us[0] * QUOTA_NS;
        quota->period_ns = us[1] * QUOTA_NS;
        strcpy(quota->file, path);
    }
    return true;
}

const char *tpb_quota_group(const char *line, const char *name, bool first)
{
    const char *kinds = strchr(line, ':');
    const char *group = kinds != NULL ? strchr(kinds + 1, ':') : NULL;

    if (group == NULL || group >= line + strcspn(line, "\n"))
        return NULL;
    if (!first)
        return group == kinds + 1 ? group + 1 : NULL;
    for (const char *kind = kinds + 1; kind < group;) {
        size_t length = strcspn(kind, ",:");

        if (length == strlen(name) && memcmp(kind, name, length) == 0)
            return group + 1;
        kind += length + 1;
    }
    return NULL;
}

/* Looks at one group, for `found`.  False: there is no such group, or it
 * is the root of all. */
typedef bool quota_fn(const char *group, bool first, void *found);

/* From the group up to the root of what is mounted. */
static bool quota_climb(const char *root, const char *kind, const char *name,
                        bool first, quota_fn *look, void *found)
{
    char group[PATH_MAX];
    int length = snprintf(group, sizeof(group), "%s%s%s", root,
                          first ? "/" : "", first ? kind : "");
    size_t top, more = strcspn(name, "\n");
    bool any = false;

    if (length < 0 || (size_t)length + more >= sizeof(group))
        return false;
    top = (size_t)length;
    if (more > 1) {                /* not "/" */
        memcpy(group + top, name, more);
        group[top + more] = '\0';
    }
    for (;;) {
        any |= look(group, first, found);
        if (strlen(group) <= top)
            return any;
        *strrchr(group, '/') = '\0';
    }
}

static void quota_all(const char *cgroups, const char *root, const char *kind,
                      quota_fn *look, void *found)
{
    for (int first = 0; first < 2; first++)
        for (const char *line = cgroups; line != NULL && *line != '\0';
             line = strchr(line, '\n'), line += line != NULL) {
            const char *name = tpb_quota_group(line, kind, first);

            if (name != NULL
                && quota_climb(root, kind, name, first, look, found))
                return;
        }
}

bool tpb_quota_find(const char *cgroups, const char *root,
                    struct tpb_quota *quota)
{
    *quota = (struct tpb_quota){ .cpu_ns = 0 };
    quota_all(cgroups, root, "cpu", quota_look, quota);
    return quota->cpu_ns > 0;
}

/* What can be taken away from files, so many bytes. */
static uint64_t quota_files(const char *group, bool first)
{
    static const char *const words[2][3] = {
        { "inactive_file ", "active_file ", "slab_reclaimable " },
        { "total_inactive_file ", "total_active_file ", "slab_reclaimable " }
    };
    char path[PATH_MAX], *text = NULL;
    uint64_t sum = 0, bytes;

    if (snprintf(path, sizeof(path), "%s/memory.stat", group)
        < (int)sizeof(path))
        text = tpb_read_file(path, NULL);
    for (int i = 0; i < 3; i++)
        if (tpb_text_number(text, words[first][i], &bytes))
            sum += bytes;
    tpb_free(text);
    return sum;
}

static bool quota_room(const char *group, bool first, void *found)
{
    uint64_t *room = found, most[2], used[2], here;
    char path[PATH_MAX];

    if (!quota_read(group, first ? "memory.limit_in_bytes" : "memory.max",
                    path, most)
        || !quota_read(group, first ? "memory.usage_in_bytes"
                                    : "memory.current", path, used))
        return false;
    if (most[0] == 0 || most[0] >= QUOTA_ROOM_ANY)
        return true;
    here = most[0] + quota_files(group, first);
    here = here > used[0] ? here - used[0] : 0;
    if (here < *room)
        *room = here;
    return true;
}

uint64_t tpb_quota_memory(const char *cgroups, const char *root)
{
    uint64_t room = QUOTA_ROOM_ANY;

    quota_all(cgroups, root, "memory", quota_room, &room);
    return room;
}

bool tpb_quota_own(struct tpb_quota *quota)
{
    char *cgroups = tpb_read_file("/proc/self/cgroup", NULL);
    bool found = tpb_quota_find(cgroups, "/sys/fs/cgroup", quota);

    tpb_free(cgroups);
    return found;
}

uint64_t tpb_quota_own_memory(void)
{
    char *cgroups = tpb_read_file("/proc/self/cgroup", NULL);
    uint64_t room = tpb_quota_memory(cgroups, "/sys/fs/cgroup");

    tpb_free(cgroups);
    return room;
}

int tpb_quota_statistics(const struct tpb_quota *quota)
{
    char path[PATH_MAX];
    int folder = (int)(strrchr(quota->file, '/') - quota->file);

    if (snprintf(path, sizeof(path), "%.*s/cpu.stat", folder, quota->file)
        >= (int)sizeof(path))
        return -1;
    return open(path, O_RDONLY | O_CLOEXEC);
}
