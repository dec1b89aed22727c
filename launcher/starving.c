/* SPDX-License-Identifier: BSD-3-Clause */
/* See starving.h. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "launcher/starving.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

enum { STARVING_TURN = 10000000 };     /* nanoseconds that are a turn */

bool tpl_starving_text(const char *stat, const char *schedstat, uint64_t *ran)
{
    /* "pid (name) S ...": the name may hold anything, also ")". */
    const char *after = strrchr(stat, ')');
    unsigned long long now;
    char state;

    if (after == NULL || sscanf(after, ") %c", &state) != 1 || state != 'R'
        || sscanf(schedstat, "%llu", &now) != 1)
        return false;
    if (*ran == 0)
        *ran = now;
    return now - *ran < STARVING_TURN;
}

bool tpl_starving(pid_t pid, uint64_t *ran)
{
    char path[64], *stat, *schedstat;
    bool starving;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    stat = tpb_read_file(path, NULL);
    snprintf(path, sizeof(path), "/proc/%d/schedstat", (int)pid);
    schedstat = tpb_read_file(path, NULL);
    starving = stat != NULL && schedstat != NULL
               && tpl_starving_text(stat, schedstat, ran);
    tpb_free(stat);
    tpb_free(schedstat);
    return starving;
}
