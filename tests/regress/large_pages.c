/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * LD_PRELOAD: the kernel has pages of 64 KiB, as many of aarch64 have.  It
 * refuses what such a kernel refuses; mappings begin where they would there.
 *
 * What libc maps for itself passes by, and mprotect(2) is left as it is: parts
 * of programs for smaller pages do not lie in pages of their own.
 */
#include "config.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LARGE_SHOWN __attribute__((__visibility__("default")))

enum { LARGE_BYTES = 64 * 1024 };

/* libc's own, which programs reach by no other name. */
long __sysconf(int name);

static int large_refused(uintptr_t place)
{
    if (place % LARGE_BYTES == 0)
        return 0;
    errno = EINVAL;
    return 1;
}

static size_t large_whole(size_t length)
{
    return (length + LARGE_BYTES - 1) / LARGE_BYTES * LARGE_BYTES;
}

static void *large_map(void *at, size_t length, int access, int flags, int fd,
                       off_t offset)
{
    return (void *)syscall(SYS_mmap, at, length, access, flags, fd, offset);
}

/* Room that begins with a page; nothing is there yet. */
static void *large_room(size_t length)
{
    unsigned char *room = large_map(NULL, length + LARGE_BYTES, PROT_NONE,
                                    MAP_PRIVATE | MAP_ANONYMOUS
                                    | MAP_NORESERVE, -1, 0);
    size_t before = -(uintptr_t)room % LARGE_BYTES;

    if (room == MAP_FAILED)
        return room;
    if (before > 0)
        syscall(SYS_munmap, room, before);
    syscall(SYS_munmap, room + before + length, LARGE_BYTES - before);
    return room + before;
}

LARGE_SHOWN void *mmap(void *at, size_t length, int access, int flags, int fd,
                       off_t offset)
{
    int fixed = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE);
    void *there;

    if (large_refused((uintptr_t)offset)
        || (fixed && large_refused((uintptr_t)at)))
        return MAP_FAILED;
    length = large_whole(length);
    if (fixed || length == 0)
        return large_map(at, length, access, flags, fd, offset);
    if (at != NULL && (uintptr_t)at % LARGE_BYTES == 0) {
        there = large_map(at, length, access, flags | MAP_FIXED_NOREPLACE, fd,
                          offset);
        if (there != MAP_FAILED || errno != EEXIST)
            return there;
    }
    at = large_room(length);
    if (at == MAP_FAILED)
        return at;
    there = large_map(at, length, access, flags | MAP_FIXED, fd, offset);
    if (there == MAP_FAILED) {
        int code = errno;

        syscall(SYS_munmap, at, length);
        errno = code;
    }
    return there;
}

LARGE_SHOWN void *mmap64(void *at, size_t length, int access, int flags,
                         int fd, off_t offset)
{
    return mmap(at, length, access, flags, fd, offset);
}

LARGE_SHOWN int munmap(void *at, size_t length)
{
    return large_refused((uintptr_t)at)
           ? -1 : (int)syscall(SYS_munmap, at, large_whole(length));
}

LARGE_SHOWN int madvise(void *at, size_t length, int advice)
{
    return large_refused((uintptr_t)at)
           ? -1 : (int)syscall(SYS_madvise, at, large_whole(length), advice);
}

LARGE_SHOWN int getpagesize(void)
{
    return LARGE_BYTES;
}

LARGE_SHOWN long sysconf(int name)
{
    return name == _SC_PAGESIZE ? LARGE_BYTES : __sysconf(name);
}
