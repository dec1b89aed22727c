/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * LD_PRELOAD: a kernel whose copies between processes crawl where the bytes go
 * to a place in their page that is 1 to 31 bytes behind the one that they come
 * from, as on AMD's Zen 3.  At the end it is said how many long ones there have
 * been, to and from other processes, and how many of them crawled.
 */
#include "config.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define CRAWLING_SHOWN __attribute__((__visibility__("default")))

enum { CRAWLING_LONG = 4096, CRAWLING_PAGE = 4096, CRAWLING_BEHIND = 31 };

static _Atomic unsigned long crawling_long, crawling_slow;

static bool crawling_is_slow(const struct iovec *to, const struct iovec *from)
{
    return ((uintptr_t)to->iov_base - (uintptr_t)from->iov_base - 1)
           % CRAWLING_PAGE < CRAWLING_BEHIND;
}

/* What libtp copies at once lies in as many parts on both sides. */
static void crawling_look(pid_t pid, const struct iovec *to,
                          const struct iovec *from, unsigned long parts)
{
    for (unsigned long i = 0; i < parts; i++) {
        struct timespec nap = { 0, 1000000 };

        if (to[i].iov_len < CRAWLING_LONG)
            continue;
        if (pid != getpid())
            atomic_fetch_add(&crawling_long, 1);
        if (!crawling_is_slow(&to[i], &from[i]))
            continue;
        if (pid != getpid())
            atomic_fetch_add(&crawling_slow, 1);
        nanosleep(&nap, NULL);
    }
}

CRAWLING_SHOWN ssize_t process_vm_readv(pid_t pid, const struct iovec *mine,
                                        unsigned long mine_count,
                                        const struct iovec *theirs,
                                        unsigned long count,
                                        unsigned long flags)
{
    crawling_look(pid, mine, theirs, count);
    return syscall(SYS_process_vm_readv, pid, mine, mine_count, theirs, count,
                   flags);
}

CRAWLING_SHOWN ssize_t process_vm_writev(pid_t pid, const struct iovec *mine,
                                         unsigned long mine_count,
                                         const struct iovec *theirs,
                                         unsigned long count,
                                         unsigned long flags)
{
    crawling_look(pid, theirs, mine, count);
    return syscall(SYS_process_vm_writev, pid, mine, mine_count, theirs,
                   count, flags);
}

__attribute__((__destructor__)) static void crawling_say(void)
{
    if (crawling_long > 0)
        fprintf(stderr, "copies: %lu, crawled: %lu\n", crawling_long,
                crawling_slow);
}
