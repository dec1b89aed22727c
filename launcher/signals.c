/* SPDX-License-Identifier: BSD-3-Clause */
/* Signals: taken as descriptors, given back to ranks. */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "launcher/signals.h"

static const int signals_ending[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
static const int signals_passed[] = { SIGUSR1, SIGUSR2, SIGALRM, SIGCONT,
                                      SIGTSTP, SIGWINCH };

static sigset_t signals_original, signals_ours;
/* What tprun ignores, since a call that fails tells better: with SIGXFSZ, a
 * file that is too long for ulimit -f, which memory is as well. */
static const int signals_told[] = { SIGPIPE, SIGXFSZ };
static bool signals_told_ignored[TPB_COUNT(signals_told)];

static bool signals_ignored(int signal)
{
    struct sigaction action;

    return sigaction(signal, NULL, &action) == 0
           && action.sa_handler == SIG_IGN;
}

void tpl_signals_init(void)
{
    struct sigaction ignore = { .sa_handler = SIG_IGN };
    struct sigaction normal = { .sa_handler = SIG_DFL };

    sigprocmask(SIG_SETMASK, NULL, &signals_original);
    for (size_t i = 0; i < TPB_COUNT(signals_told); i++) {
        signals_told_ignored[i] = signals_ignored(signals_told[i]);
        sigaction(signals_told[i], &ignore, NULL);
    }
    /* Ignored, it would let the kernel reap ranks behind our back. */
    sigaction(SIGCHLD, &normal, NULL);
    sigemptyset(&signals_ours);
    sigaddset(&signals_ours, SIGCHLD);
    for (size_t i = 0; i < TPB_COUNT(signals_ending); i++)
        if (!signals_ignored(signals_ending[i]))
            sigaddset(&signals_ours, signals_ending[i]);
    for (size_t i = 0; i < TPB_COUNT(signals_passed); i++)
        if (!signals_ignored(signals_passed[i]))
            sigaddset(&signals_ours, signals_passed[i]);
}

void tpl_signals_block(void)
{
    pthread_sigmask(SIG_BLOCK, &signals_ours, NULL);
}

void tpl_signals_unblock(void)
{
    pthread_sigmask(SIG_UNBLOCK, &signals_ours, NULL);
}

int tpl_signals_open(void)
{
    return signalfd(-1, &signals_ours, SFD_CLOEXEC | SFD_NONBLOCK);
}

int tpl_signals_next(int fd, bool *typed)
{
    struct signalfd_siginfo info;
    ssize_t got;

    do
        got = read(fd, &info, sizeof(info));
    while (got < 0 && errno == EINTR);
    if (got == (ssize_t)sizeof(info) && typed != NULL)
        *typed = info.ssi_code == SI_KERNEL;
    return got == (ssize_t)sizeof(info) ? (int)info.ssi_signo : 0;
}

bool tpl_signal_ends(int signal)
{
    for (size_t i = 0; i < TPB_COUNT(signals_ending); i++)
        if (signals_ending[i] == signal)
            return true;
    return false;
}

void tpl_signals_restore(void)
{
    struct sigaction normal = { .sa_handler = SIG_DFL };

    for (size_t i = 0; i < TPB_COUNT(signals_told); i++)
        if (!signals_told_ignored[i])
            sigaction(signals_told[i], &normal, NULL);
    sigprocmask(SIG_SETMASK, &signals_original, NULL);
}

/* Does a SIGCONT wait at the descriptor? */
static bool signals_continued(void)
{
    sigset_t pending;

    return sigpending(&pending) == 0 && sigismember(&pending, SIGCONT) == 1;
}

bool tpl_signals_stop(bool typed)
{
    sigset_t stop;

    /* Sent while we passed the other on: to stop now would discard it. */
    if (signals_continued())
        return true;
    /* Batch systems stop jobs so, and know how to continue them.  SIGSTOP,
     * because our SIGTSTP is blocked; SIGCONT then arrives by the descriptor
     * and is passed on like any other. */
    if (!typed) {
        kill(getpid(), SIGSTOP);
        return true;
    }
    /* Only the kernel knows whether there is such a shell. */
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    raise(SIGTSTP);
    pthread_sigmask(SIG_UNBLOCK, &stop, NULL);
    pthread_sigmask(SIG_BLOCK, &stop, NULL);
    return signals_continued();
}

void tpl_signals_die(int signal)
{
    struct sigaction normal = { .sa_handler = SIG_DFL };

    sigaction(signal, &normal, NULL);
    raise(signal);
    tpl_signals_unblock();
    _exit(128 + signal);
}

const char *tpl_signal_name(int signal)
{
    static __thread char text[48];
    const char *name = sigabbrev_np(signal);

    if (name != NULL)
        snprintf(text, sizeof(text), "%d (SIG%s)", signal, name);
    else if (signal >= SIGRTMIN && signal <= SIGRTMAX)
        snprintf(text, sizeof(text), "%d (SIGRTMIN+%d)", signal,
                 signal - SIGRTMIN);
    else
        snprintf(text, sizeof(text), "%d", signal);
    return text;
}
