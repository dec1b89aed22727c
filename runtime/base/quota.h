/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How much of the cpus a control group leaves to its processes, as containers
 * and batch systems limit it (Kubernetes' `limits: cpu`, Docker's --cpus).  The
 * affinity mask does not tell: all cpus may be used, but once the group has had
 * so much of them in a period, everything in it stands still until the next.
 * And how much of the memory: who asks for more is not refused, but killed.
 * Kernel: Documentation/scheduler/sched-bwc.rst, admin-guide/cgroup-v2.rst.
 */
#ifndef TPB_QUOTA_H
#define TPB_QUOTA_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

struct tpb_quota {
    uint64_t cpu_ns, period_ns;    /* of all cpus together, in each period */
    char file[PATH_MAX];           /* which says so */
};

/*
 * The least of the limits of the group that `cgroups` (the text of
 * /proc/self/cgroup; NULL: none) names and of those above it, in the file
 * systems below `root` ("/sys/fs/cgroup"), of version 1 or 2.  In a container
 * the name may be that of the host, and the group itself is what is mounted.
 * False: none, or none that can be read.
 */
bool tpb_quota_find(const char *cgroups, const char *root,
                    struct tpb_quota *quota);

/* Of this process. */
bool tpb_quota_own(struct tpb_quota *quota);

/* A line of /proc/self/cgroup: "1:cpu,cpuacct:/group" of version 1, "0::/group"
 * of 2.  Where its group's name begins, up to the line's end; NULL: it is not
 * of that version, or kind ("memory"). */
const char *tpb_quota_group(const char *line, const char *name, bool first);

/* Opens what the kernel counts there, its cpu.stat.  -1: it cannot be read. */
int tpb_quota_statistics(const struct tpb_quota *quota);

/* How many bytes of memory that group and those above it still bear, files that
 * they can do without taken off; at least 2^60 where there is no limit. */
uint64_t tpb_quota_memory(const char *cgroups, const char *root);

/* Of this process. */
uint64_t tpb_quota_own_memory(void);

#endif
