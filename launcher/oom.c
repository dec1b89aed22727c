/* SPDX-License-Identifier: BSD-3-Clause */
/* See oom.h. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/oom.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/quota.h"

/* What version 1 calls no limit: the largest multiple of a page, and more than
 * any machine has. */
#define OOM_UNLIMITED (UINT64_C(1) << 60)

static struct tpl_oom oom_own;

/* The file of a group, whole; the caller frees it.  NULL: none. */
static char *oom_read(const struct tpl_oom *oom, const char *group,
                      const char *name, char path[PATH_MAX])
{
    if (snprintf(path, PATH_MAX, "%s%s/%s", oom->root, group, name)
        >= PATH_MAX)
        return NULL;
    return tpb_read_file(path, NULL);
}

bool tpl_oom_count(const struct tpl_oom *oom, uint64_t *kills)
{
    char path[PATH_MAX];
    char *text = oom_read(oom, oom->group, oom->first ? "memory.oom_control"
                                                      : "memory.events", path);
    bool found = tpb_text_number(text, "oom_kill ", kills);

    tpb_free(text);
    return found;
}

/* Of that version, where it is mounted: is the group there, or as the root? */
static bool oom_try(const char *cgroups, const char *root, bool first,
                    struct tpl_oom *oom)
{
    for (const char *line = cgroups; line != NULL && *line != '\0';
         line = strchr(line, '\n'), line += line != NULL) {
        const char *group = tpb_quota_group(line, "memory", first);
        size_t length = group != NULL ? strcspn(group, "\n") : 0;

        if (group == NULL || length >= sizeof(oom->group))
            continue;
        *oom = (struct tpl_oom){ .first = first };
        snprintf(oom->root, sizeof(oom->root), "%s%s", root,
                 first ? "/memory" : "");
        if (length > 1)
            memcpy(oom->group, group, length);
        if (tpl_oom_count(oom, &oom->kills))
            return true;
        oom->group[0] = '\0';
        if (tpl_oom_count(oom, &oom->kills))
            return true;
    }
    return false;
}

bool tpl_oom_find(const char *cgroups, const char *root, struct tpl_oom *oom)
{
    if (oom_try(cgroups, root, false, oom) || oom_try(cgroups, root, true, oom))
        return true;
    *oom = (struct tpl_oom){ "" };
    return false;
}

bool tpl_oom_limit(const struct tpl_oom *oom, uint64_t *limit,
                   char file[PATH_MAX])
{
    char group[PATH_MAX], path[PATH_MAX];

    *limit = OOM_UNLIMITED;
    snprintf(group, sizeof(group), "%s", oom->group);
    for (;;) {
        char *up = strrchr(group, '/');
        char *text = oom_read(oom, group, oom->first ? "memory.limit_in_bytes"
                                                     : "memory.max", path);
        /* "max" is no number. */
        uint64_t here = text != NULL && text[0] >= '0' && text[0] <= '9'
                        ? strtoull(text, NULL, 10) : OOM_UNLIMITED;

        tpb_free(text);
        if (here < *limit) {
            *limit = here;
            strcpy(file, path);
        }
        if (up == NULL)
            break;
        *up = '\0';
    }
    return *limit < OOM_UNLIMITED;
}

void tpl_oom_describe(const struct tpl_oom *oom, char *text, size_t size)
{
    uint64_t kills, limit;
    char file[PATH_MAX];

    text[0] = '\0';
    if (oom->root[0] == '\0' || !tpl_oom_count(oom, &kills)
        || kills == oom->kills)
        return;
    if (tpl_oom_limit(oom, &limit, file))
        snprintf(text, size, ", most likely by the kernel because memory "
                 "ran out: the limit of this cgroup is %llu MiB (%.200s); "
                 "raise it, or start fewer ranks",
                 (unsigned long long)(limit >> 20), file);
    else
        snprintf(text, size, ", most likely by the kernel because memory "
                 "ran out: this machine had none left (see dmesg); start "
                 "fewer ranks");
}

void tpl_oom_begin(void)
{
    char *cgroups = tpb_read_file("/proc/self/cgroup", NULL);

    if (cgroups != NULL)
        (void)tpl_oom_find(cgroups, "/sys/fs/cgroup", &oom_own);
    tpb_free(cgroups);
}

void tpl_oom_blame(char *text, size_t size)
{
    tpl_oom_describe(&oom_own, text, size);
}
