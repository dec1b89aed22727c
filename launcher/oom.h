/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Was a rank killed for want of memory?  The kernel counts what its OOM killer
 * ends per control group (cgroups(7), memory.events; memory.oom_control of
 * version 1).  Ranks are in tprun's group, so if its count has moved since the
 * job began and a rank died by SIGKILL, that is most likely why.
 */
#ifndef TPL_OOM_H
#define TPL_OOM_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A control group that counts; zeroed is none. */
struct tpl_oom {
    char root[64];                 /* where its hierarchy is mounted */
    char group[PATH_MAX];          /* below that: "" or "/a/b" */
    bool first;                    /* of version 1 */
    uint64_t kills;                /* when it was found */
};

/*
 * Finds the group that `cgroups` (the text of /proc/self/cgroup) names, in the
 * file systems below `root` ("/sys/fs/cgroup").  In a container the name may
 * be that of the host, and the group itself is what is mounted.
 */
bool tpl_oom_find(const char *cgroups, const char *root, struct tpl_oom *oom);

/* The count of that group now; false if it cannot be read. */
bool tpl_oom_count(const struct tpl_oom *oom, uint64_t *kills);

/* The least limit of it and of those above it, and whose file says so; false if
 * there is none. */
bool tpl_oom_limit(const struct tpl_oom *oom, uint64_t *limit,
                   char file[PATH_MAX]);

/* What the death of a rank by SIGKILL is to be told with; "" if the count has
 * not moved. */
void tpl_oom_describe(const struct tpl_oom *oom, char *text, size_t size);

/* The same for the group of this process, from the first call on. */
void tpl_oom_begin(void);
void tpl_oom_blame(char *text, size_t size);

#endif
