/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A program that locks its memory and may lock no more than it has: tp_init()
 * cannot have a thread.  It said that the limit was that of processes.
 */
#include <linux/capability.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/tp.h"

enum { LOCKED_SPARE = 64 * 1024 };

/* Without the right to lock whatever it wants. */
static bool locked_humble(void)
{
    struct __user_cap_header_struct header = {
        .version = _LINUX_CAPABILITY_VERSION_3
    };
    struct __user_cap_data_struct data[2];

    if (syscall(SYS_capget, &header, data) != 0)
        return false;
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    return syscall(SYS_capset, &header, data) == 0;
}

static unsigned long locked_size(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    if (file == NULL || fscanf(file, "%lu", &pages) != 1)
        pages = 0;
    if (file != NULL)
        fclose(file);
    return pages * (unsigned long)sysconf(_SC_PAGESIZE);
}

int main(void)
{
    struct rlimit limit;
    tp_context *context;
    unsigned long size = locked_size() + LOCKED_SPARE;

    if (size == LOCKED_SPARE || getrlimit(RLIMIT_MEMLOCK, &limit) != 0
        || (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < size)
        || !locked_humble())
        return 77;
    limit.rlim_cur = size;
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0
        || mlockall(MCL_CURRENT | MCL_FUTURE) != 0
        /* AddressSanitizer does not lock. */
        || mmap(NULL, 2 * LOCKED_SPARE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS,
                -1, 0) != MAP_FAILED)
        return 77;
    if (tp_init(NULL, &context) == TP_OK)
        return 1;
    return 0;
}
