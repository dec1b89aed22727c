/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A rank that insists on a channel listens, and a process from outside comes
 * that cannot use it, which is found out when the two connect.  It is turned
 * away.  The job of the rank was ended by that, and the process told that
 * nobody listened any more.
 */
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/tp.h"

enum { BARRED_MS = 20, BARRED_LATER = 25 };    /* looks after its end */

static void barred_check(int good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "barred: %s\n", what);
    exit(1);
}

static tp_context *barred_init(const char *bootstrap)
{
    tp_options options = TP_OPTIONS_INIT;
    tp_context *context = NULL;

    options.secret = "a secret of both sides";
    options.bootstrap = bootstrap;
    barred_check(tp_init(&options, &context) == TP_OK, "init");
    return context;
}

/* Without CAP_SYS_PTRACE, which root has. */
static void barred_weaken(void)
{
    struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct data[2];

    barred_check(syscall(SYS_capget, &head, data) == 0, "capget");
    data[0].effective &= ~(1u << CAP_SYS_PTRACE);
    data[0].permitted &= ~(1u << CAP_SYS_PTRACE);
    barred_check(syscall(SYS_capset, &head, data) == 0, "capset");
}

static int barred_visit(const char *address)
{
    tp_context *context;
    tp_status status;
    tp_pipe *pipe;

    unsetenv("TP_REQUIRE");
    barred_weaken();
    context = barred_init("single");
    barred_check(tp_connect(context, address, &pipe) == TP_OK, "connect");
    status = tp_pipe_send(pipe, "b", 1);
    barred_check(status == TP_ERR_UNREACHABLE, tp_strerror(status));
    barred_check(strstr(tp_pipe_error(pipe), "its TP_BACKENDS or TP_REQUIRE")
                 != NULL, tp_pipe_error(pipe));
    barred_check(tp_finalize(context) == TP_OK, "finalize");
    return 0;
}

static void barred_accepted(tp_listener *listener, tp_status status,
                            tp_pipe *pipe, void *arg)
{
    (void)listener;
    (void)pipe;
    (void)arg;
    barred_check(status == TP_ERR_CLOSED, "it was let in");
}

int main(int argc, char **argv)
{
    tp_context *context;
    tp_listener *listener;
    char address[1024];
    int ended = 0, status = -1;
    pid_t visitor;

    if (argc > 1)
        return barred_visit(argv[1]);
    context = barred_init(NULL);
    barred_check(tp_listen(context, NULL, &listener) == TP_OK, "listen");
    barred_check(tp_listener_address(listener, address, sizeof(address))
                 == TP_OK, "address");
    barred_check(tp_accept(listener, barred_accepted, NULL) == TP_OK,
                 "accept");
    visitor = fork();
    barred_check(visitor >= 0, "fork");
    if (visitor == 0) {
        execl("/proc/self/exe", argv[0], address, (char *)NULL);
        _exit(127);
    }
    /* From here on nobody may read its memory. */
    barred_check(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0, "prctl");
    for (int later = 0; later < BARRED_LATER; later += ended) {
        tp_wait(context, BARRED_MS, NULL);
        if (!ended)
            ended = waitpid(visitor, &status, WNOHANG) == visitor;
    }
    barred_check(status == 0, "the visitor failed");
    barred_check(tp_finalize(context) == TP_OK, "finalize");
    return 0;
}
