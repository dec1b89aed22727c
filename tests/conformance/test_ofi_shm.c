/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite over ofi:shm. */
#include "config.h"

#include <dirent.h>
#include <stdio.h>

#include "tests/conformance/suite.h"

/* libfabric's shm gives its memory names, which have to go in time. */
static int shm_left_behind(pid_t pid)
{
    DIR *dir = opendir("/dev/shm");
    struct dirent *entry;
    char start[32];
    int count = 0;

    ck_assert_ptr_nonnull(dir);
    snprintf(start, sizeof(start), "tp.ofi.%d.", (int)pid);
    while ((entry = readdir(dir)) != NULL)
        count += strncmp(entry->d_name, start, strlen(start)) == 0;
    closedir(dir);
    return count;
}

int main(void)
{
    static const struct tpx_target target = {
        .name = "ofi:shm", .left_behind = shm_left_behind
    };

    return tpx_conform(&target);
}
