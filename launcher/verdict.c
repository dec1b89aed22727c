/* SPDX-License-Identifier: BSD-3-Clause */
/* How a rank ended. */
#include "config.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/oom.h"
#include "launcher/signals.h"
#include "launcher/verdict.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

enum tpl_verdict tpl_verdict(const struct tpl_rank *rank)
{
    if (WIFSIGNALED(rank->status))
        return TPL_BY_SIGNAL;
    if (WEXITSTATUS(rank->status) != 0)
        return TPL_BY_STATUS;
    return rank->initialized && !rank->finalized ? TPL_UNFINALIZED : TPL_WELL;
}

int tpl_verdict_status(const struct tpl_rank *rank)
{
    switch (tpl_verdict(rank)) {
    case TPL_BY_SIGNAL:
        return 128 + WTERMSIG(rank->status);
    case TPL_BY_STATUS:
        return WEXITSTATUS(rank->status);
    case TPL_UNFINALIZED:
        return 1;
    case TPL_WELL:
        break;
    }
    return 0;
}

/*
 * Where the kernel put the core, as far as core(5) lets one tell: a plain
 * name, with %p or core_uses_pid, in the folder of the rank or elsewhere.
 */
static void verdict_core(const struct tpl_job *job, int rank, char *text,
                         size_t size)
{
    const struct tpl_rank *it = &job->ranks[rank];
    const char *wdir = tpl_options_app(job->options, rank)->wdir;
    char *pattern = tpb_read_file("/proc/sys/kernel/core_pattern", NULL);
    char name[PATH_MAX] = "", path[PATH_MAX + 256];
    size_t used = 0;
    bool numbered = false;

    snprintf(text, size, ", core dumped");
    if (pattern == NULL)
        return;
    pattern[strcspn(pattern, "\n")] = '\0';
    if (pattern[0] == '|') {
        snprintf(text, size, ", core given to %.*s",
                 (int)strcspn(pattern + 1, " "), pattern + 1);
        tpb_free(pattern);
        return;
    }
    for (const char *at = pattern; *at != '\0' && used < sizeof(name) - 16;
         at++) {
        if (*at != '%' || at[1] == '\0') {
            name[used++] = *at;
            continue;
        }
        at++;
        numbered |= *at == 'p';
        if (*at == 'p')
            used += (size_t)snprintf(name + used, 16, "%d", (int)it->pid);
        else if (*at == '%')
            name[used++] = '%';
        else
            used = sizeof(name);   /* what only the kernel knows */
    }
    tpb_free(pattern);
    if (used >= sizeof(name) - 16)
        return;
    name[used] = '\0';
    for (int i = 0; i < 2; i++) {
        const char *folder = name[0] == '/' ? "" : wdir != NULL ? wdir : ".";

        snprintf(path, sizeof(path), "%s%s%s", folder,
                 *folder != '\0' ? "/" : "", name);
        if (access(path, F_OK) == 0) {
            snprintf(text, size, ", core in %.400s", path);
            return;
        }
        if (numbered)
            return;
        snprintf(name + used, 16, ".%d", (int)it->pid);
    }
}

void tpl_verdict_describe(const struct tpl_job *job, int rank, char *text,
                          size_t size)
{
    const struct tpl_rank *it = &job->ranks[rank];
    int used = snprintf(text, size, "rank %d (pid %d on %s) ", rank,
                        (int)it->pid, job->host);
    char core[512] = "", want[512] = "";
    /* A shell ends so after a command that was killed. */
    const char *unread = tpl_verdict_status(it) == 128 + SIGPIPE
                         && tpl_iof_unread(job->iof)
                         ? "; nobody reads the output of tprun any more" : "";

    text += used;
    size -= (size_t)used;
    if (WIFSIGNALED(it->status)) {
        if (WCOREDUMP(it->status))
            verdict_core(job, rank, core, sizeof(core));
        if (WTERMSIG(it->status) == SIGKILL)
            tpl_oom_blame(want, sizeof(want));
        snprintf(text, size, "was killed by signal %s%s%s%s",
                 tpl_signal_name(WTERMSIG(it->status)), core, want, unread);
    } else if (tpl_verdict(it) == TPL_UNFINALIZED) {
        snprintf(text, size, "exited with status 0 after PMIx_Init (tp_init) "
                 "but without PMIx_Finalize (tp_finalize)");
    } else {
        snprintf(text, size, "exited with status %d%s",
                 WEXITSTATUS(it->status), unread);
    }
}
