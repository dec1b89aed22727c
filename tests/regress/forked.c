/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Children that join the job: forked STATUS.  One that is forked while its
 * parent is a member gets STATUS from tp_init(); with libpmix, whose thread a
 * child lacks, it waited for ever.  One that is forked later gets TP_OK.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/tp.h"

static bool child_gets(tp_status expected)
{
    tp_context *context;
    tp_status status;
    int raw;
    pid_t child = fork();

    if (child == 0) {
        status = tp_init(NULL, &context);
        if (status == TP_OK && tp_finalize(context) != TP_OK)
            fprintf(stderr, "forked: the child cannot leave\n");
        _exit(status);
    }
    if (child < 0 || waitpid(child, &raw, 0) != child)
        return false;
    if (WIFEXITED(raw) && WEXITSTATUS(raw) == (int)expected)
        return true;
    fprintf(stderr, "forked: the child ended as 0x%x instead of %d\n",
            (unsigned)raw, expected);
    return false;
}

int main(int argc, char **argv)
{
    tp_context *context;
    bool well;

    if (argc != 2 || tp_init(NULL, &context) != TP_OK)
        return 1;
    well = child_gets((tp_status)atoi(argv[1]));
    if (tp_finalize(context) != TP_OK || !child_gets(TP_OK))
        return 1;
    return well ? 0 : 1;
}
