/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A callback that faults in the context's own thread: the program's handler is
 * called, as it is for the program's threads.  It once was not, since that
 * thread blocked SIGSEGV, too, and the kernel ended the program.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/tp.h"

static volatile char *faults_page;

static void faults_handled(int signal)
{
    (void)signal;
    _exit(0);
}

static void faults_arrived(tp_pipe *pipe, tp_status status,
                           tp_message *skeleton, void *arg)
{
    (void)pipe;
    (void)status;
    (void)skeleton;
    (void)arg;
    *faults_page = 1;
}

int main(void)
{
    tp_options options = TP_OPTIONS_INIT;
    struct sigaction action = { .sa_handler = faults_handled };
    tp_context *context;
    tp_pipe *pipe;

    faults_page = mmap(NULL, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    options.progress = TP_PROGRESS_THREAD;
    options.bootstrap = "single";
    if (faults_page == MAP_FAILED || sigaction(SIGSEGV, &action, NULL) != 0
        || tp_init(&options, &context) != TP_OK
        || tp_pipe_to_rank(context, 0, &pipe) != TP_OK
        || tp_pipe_read_descriptor(pipe, faults_arrived, NULL) != TP_OK
        || tp_pipe_send(pipe, "x", 1) != TP_OK)
        return 1;
    pause();
    return 2;
}
