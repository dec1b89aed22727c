/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * LD_PRELOAD: threads lose their cpus where it hurts.  A context's own thread
 * that has read what woke it, between its last look at the callers and the
 * exchange that takes the token, to which it is led in single steps; and a
 * caller who is about to sleep for long, every other time.
 */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define PREEMPTED_SHOWN __attribute__((__visibility__("default")))
#define PREEMPTED_LOCAL \
    _Thread_local __attribute__((__tls_model__("initial-exec")))

enum {
    PREEMPTED_STEPS = 300,         /* of a thread that takes no token */
    PREEMPTED_THREAD_US = 3000, PREEMPTED_CALLER_US = 5000
};

static void preempted_sleep(long us)
{
    struct timespec nap = { 0, us * 1000 };

    nanosleep(&nap, NULL);
}

static bool preempted_is_thread(void)
{
    char name[16] = "";

    prctl(PR_GET_NAME, name);
    return strcmp(name, "tp-progress") == 0;
}

#ifdef __x86_64__
enum { PREEMPTED_TRAP = 0x100 };   /* the processor's flag for single steps */

static PREEMPTED_LOCAL int preempted_steps;

/* xchg with memory, perhaps of 8 bytes. */
static bool preempted_exchanges(const unsigned char *at)
{
    at += *at >> 4 == 4;
    return *at == 0x87 && at[1] >> 6 != 3;
}

/* The kernel: a thread that ends has signals blocked by then. */
static bool preempted_calls(const unsigned char *at)
{
    return at[0] == 0x0f && at[1] == 0x05;
}

static void preempted_step(int number, siginfo_t *info, void *more)
{
    greg_t *registers = ((ucontext_t *)more)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)registers[REG_RIP];
    int code = errno;

    (void)number;
    (void)info;
    if (preempted_exchanges(at)) {
        preempted_sleep(PREEMPTED_THREAD_US);
        preempted_steps = 0;
    }
    if (--preempted_steps <= 0 || preempted_calls(at))
        registers[REG_EFL] &= ~PREEMPTED_TRAP;
    errno = code;
}

static __attribute__((constructor)) void preempted_begin(void)
{
    struct sigaction action = { .sa_sigaction = preempted_step,
                                .sa_flags = SA_SIGINFO | SA_RESTART };

    sigaction(SIGTRAP, &action, NULL);
}

/* What is below the stack's end may be in use. */
static void preempted_go(void)
{
    preempted_steps = PREEMPTED_STEPS;
    __asm__ volatile("lea -128(%%rsp), %%rsp; pushfq; orq %0, (%%rsp); popfq;"
                     " lea 128(%%rsp), %%rsp"
                     : : "i" (PREEMPTED_TRAP) : "memory", "cc");
}
#else
static void preempted_go(void)
{
}
#endif

PREEMPTED_SHOWN ssize_t read(int fd, void *bytes, size_t length)
{
    ssize_t got = syscall(SYS_read, fd, bytes, length);

    if (length == sizeof(uint64_t) && preempted_is_thread())
        preempted_go();            /* from an eventfd, or a timer */
    return got;
}

PREEMPTED_SHOWN int epoll_wait(int fd, struct epoll_event *events, int most,
                               int limit)
{
    static PREEMPTED_LOCAL unsigned turn;

    if (limit < 0 && !preempted_is_thread() && ++turn % 2 == 0)
        preempted_sleep(PREEMPTED_CALLER_US);
    return epoll_pwait(fd, events, most, limit, NULL);
}
