/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Rank 0's contract wants a channel by which rank 1 may not pull: from the
 * start, or after a message that it could pull.  Both ranks hear of it, and
 * why.  Rank 1 was told that rank 0's process had ended, while that lived on.
 *
 * usage: parted FIRST       which of the two sends first
 *        parted later       rank 0 does, twice
 */
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/tp.h"

enum { PARTED_BYTES = 1 << 20 };

static void parted_check(int good, const char *what, tp_pipe *pipe)
{
    if (good)
        return;
    fprintf(stderr, "parted: %s: %s\n", what,
            pipe != NULL ? tp_pipe_error(pipe) : "");
    exit(1);
}

/* Without CAP_SYS_PTRACE, which root has. */
static void parted_weaken(void)
{
    struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct data[2];

    parted_check(syscall(SYS_capget, &head, data) == 0, "capget", NULL);
    data[0].effective &= ~(1u << CAP_SYS_PTRACE);
    data[0].permitted &= ~(1u << CAP_SYS_PTRACE);
    parted_check(syscall(SYS_capset, &head, data) == 0, "capset", NULL);
}

/* From here on nobody may read rank 0's memory, or again who may.  `rank`: this
 * one, or 0 for any. */
static void parted_hide(int rank, int hides)
{
    if (rank == 0)
        parted_check(prctl(PR_SET_DUMPABLE, !hides, 0, 0, 0) == 0, "prctl",
                     NULL);
}

static tp_status parted_move(tp_pipe *pipe, int sends)
{
    char *bytes = calloc(1, PARTED_BYTES);
    tp_status status = TP_ERR_NO_MEMORY;

    if (bytes != NULL)
        status = sends ? tp_pipe_send(pipe, bytes, PARTED_BYTES)
                       : tp_pipe_recv(pipe, bytes, PARTED_BYTES, NULL);
    free(bytes);
    return status;
}

int main(int argc, char **argv)
{
    int later = argc > 1 && strcmp(argv[1], "later") == 0;
    int first = argc > 1 ? atoi(argv[1]) : 0, rank;
    tp_context *context;
    tp_status status;
    tp_pipe *pipe;

    parted_check(tp_init(NULL, &context) == TP_OK, "init", NULL);
    rank = tp_rank(context);
    parted_weaken();
    if (!later)
        parted_hide(rank, 1);
    parted_check(tp_pipe_to_rank(context, !rank, &pipe) == TP_OK, "to_rank",
                 NULL);
    if (later) {
        status = parted_move(pipe, rank == 0);
        parted_check(status == TP_OK, tp_strerror(status), pipe);
        /* Nor rank 1's: else rank 0, if it is quick, writes all of it there. */
        parted_hide(0, 1);
    }
    status = parted_move(pipe, rank == first);
    parted_check(status == TP_ERR_UNREACHABLE, tp_strerror(status), pipe);
    parted_check(strstr(tp_pipe_error(pipe), rank == 0 ? "no backend reaches "
                        : " gave this pair up: no backend reaches ") != NULL
                 && strstr(tp_pipe_error(pipe), " user namespace, Yama or "
                           "seccomp); remedy: ") != NULL, "other words", pipe);
    parted_hide(0, 0);             /* LeakSanitizer may, too */
    parted_check(tp_finalize(context) == TP_OK, "finalize", NULL);
    return 0;
}
