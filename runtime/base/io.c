/* SPDX-License-Identifier: BSD-3-Clause */
/* Descriptors: whole writes, eventfds, sealed shared memory, passing. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/quota.h"

enum {
    IO_FDS_MAX = 16,
    IO_PIECE = 1 << 20,             /* reserved at a time */
    IO_ROOM_ASKED = 16 << 20        /* from here on, is there so much? */
};

/* What poll(2) finds wrong the next write tells. */
static bool io_wait_for_room(int fd)
{
    struct pollfd room = { .fd = fd, .events = POLLOUT };

    return poll(&room, 1, -1) >= 0 || errno == EINTR;
}

static int io_write(int fd, const void *data, size_t length, bool waits)
{
    const char *bytes = data;

    while (length > 0) {
        ssize_t done = write(fd, bytes, length);

        if (done >= 0) {
            bytes += done;
            length -= (size_t)done;
        } else if (errno != EINTR
                   && !(waits && errno == EAGAIN && io_wait_for_room(fd))) {
            return -1;
        }
    }
    return 0;
}

int tpb_write_all(int fd, const void *data, size_t length)
{
    return io_write(fd, data, length, false);
}

int tpb_write_waiting(int fd, const void *data, size_t length)
{
    return io_write(fd, data, length, true);
}

char *tpb_read_file(const char *path, size_t *length)
{
    struct tpb_text text = { 0 };
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int code = 0;

    if (fd < 0)
        return NULL;
    for (;;) {
        ssize_t got;

        /* Most are short files of /proc and /sys: the heap need not grow and
         * shrink for them. */
        if (text.capacity - text.length < 2048) {
            size_t more = text.capacity > 4096 ? text.capacity : 4096;
            char *grown = tpb_resize(text.text, text.capacity + more);

            if (grown == NULL) {
                code = ENOMEM;
                break;
            }
            text.text = grown;
            text.capacity += more;
        }
        got = read(fd, text.text + text.length,
                   text.capacity - text.length - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            code = errno;
        if (got <= 0)
            break;
        text.length += (size_t)got;
    }
    tpb_close(&fd);
    if (code != 0) {
        tpb_text_fini(&text);
        errno = code;
        return NULL;
    }
    text.text[text.length] = '\0';
    if (length != NULL)
        *length = text.length;
    return text.text;
}

bool tpb_text_number(const char *text, const char *word, uint64_t *number)
{
    size_t length = strlen(word);

    while (text != NULL && strncmp(text, word, length) != 0) {
        text = strchr(text, '\n');
        text += text != NULL;
    }
    if (text != NULL)
        *number = strtoull(text + length, NULL, 10);
    return text != NULL;
}

int tpb_create_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK,
                  0666);

    if (fd >= 0 && fcntl(fd, F_SETFL, 0) < 0)
        tpb_close(&fd);
    return fd;
}

int tpb_make_folders(const char *path)
{
    char part[PATH_MAX], *end = part, kept;
    struct stat place;

    if (snprintf(part, sizeof(part), "%s", path) >= (int)sizeof(part)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    do {
        int code = 0;

        end += strspn(end, "/");
        end += strcspn(end, "/");
        kept = *end;
        *end = '\0';
        if (mkdir(part, 0777) < 0)
            code = errno;
        /* Where one is that may not be made, the kernel need not say that it
         * is there. */
        if (code != 0 && code != EEXIST && access(part, F_OK) < 0) {
            errno = code;
            return -1;
        }
        *end = kept;
    } while (kept != '\0');
    if (stat(path, &place) < 0)
        return -1;
    errno = ENOTDIR;
    return S_ISDIR(place.st_mode) ? 0 : -1;
}

void tpb_close(int *fd)
{
    int code = errno;

    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    errno = code;
}

void tpb_fill_standard(int flags)
{
    int fd;

    do
        fd = open("/dev/null", flags);
    while (fd >= 0 && fd <= STDERR_FILENO);
    tpb_close(&fd);
}

bool tpb_await(int fd, int ms)
{
    uint64_t until = tpb_now() + (uint64_t)ms * UINT64_C(1000000), now;
    struct pollfd look = { .fd = fd, .events = POLLIN };
    int found;

    do {
        now = tpb_now();
        found = poll(&look, 1, now < until
                               ? (int)((until - now) / 1000000) + 1 : 0);
    } while (found < 0 && errno == EINTR);
    return found > 0;
}

int tpb_eventfd(void)
{
    return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

void tpb_eventfd_ring(int fd)
{
    uint64_t one = 1;

    /* Full counter (EAGAIN) means that it is readable already. */
    while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

bool tpb_eventfd_drain(int fd)
{
    uint64_t count;
    ssize_t got;

    do
        got = read(fd, &count, sizeof(count));
    while (got < 0 && errno == EINTR);
    return got > 0;
}

/* Kernels give all that have no file one kind of their own, of which pipes,
 * sockets and terminals are not. */
bool tpb_eventfd_like(int fd, int mine)
{
    struct stat its, ours;
    int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && (flags & O_NONBLOCK) != 0 && fstat(fd, &its) == 0
           && fstat(mine, &ours) == 0
           && (its.st_mode & S_IFMT) == (ours.st_mode & S_IFMT);
}

int tpb_epoll_set(int epoll, int operation, int fd, uint32_t events)
{
    struct epoll_event event = { .events = events };

    return epoll_ctl(epoll, operation, fd, &event);
}

/* The kernel does not refuse memory that there is not: it takes what others
 * have, and then ends whom it likes; in a group with a limit often the
 * launcher, for this memory counts to nobody. */
static bool io_room(size_t size)
{
    uint64_t room = 0, swap = 0;
    char *text = NULL;

    if (size > IO_ROOM_ASKED)
        text = tpb_read_file("/proc/meminfo", NULL);
    if (text == NULL)
        return true;
    (void)tpb_text_number(text, "MemAvailable:", &room);
    (void)tpb_text_number(text, "SwapFree:", &swap);
    tpb_free(text);
    return (room == 0 || size / 1024 < room + swap)
           && size / 1024 < tpb_quota_own_memory() / 1024 + swap;
}

/* In pieces, since a signal undoes all that one call has reserved so far. */
static int io_reserve(int fd, size_t at, size_t size)
{
    size_t end = at + size;

    while (at < end) {
        size_t bytes = end - at < IO_PIECE ? end - at : IO_PIECE;
        int code = posix_fallocate(fd, (off_t)at, (off_t)bytes);

        if (code == 0)
            at += bytes;
        else if (code != EINTR)
            return code;
    }
    return 0;
}

void tpb_long_files_hold(sigset_t *before)
{
    sigset_t held;

    sigemptyset(&held);
    sigaddset(&held, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &held, before);
}

void tpb_long_files_let(const sigset_t *before, bool came)
{
    const struct timespec now = { 0, 0 };
    sigset_t held;

    sigemptyset(&held);
    sigaddset(&held, SIGXFSZ);
    /* A program that holds it back itself may have one of its own waiting. */
    if (came && sigismember(before, SIGXFSZ) == 0)
        (void)sigtimedwait(&held, NULL, &now);
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

int tpb_shared_memory(const char *name, size_t size)
{
    return tpb_shared_memory_parts(name, size, 0, size, 1);
}

int tpb_shared_memory_parts(const char *name, size_t size, size_t first,
                            size_t part, size_t parts)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING), code = 0;
    sigset_t before;

    if (fd < 0)
        return -1;
    tpb_long_files_hold(&before);
    if (!io_room(first + parts * part))
        code = ENOMEM;
    else if (ftruncate(fd, (off_t)size) < 0)
        code = errno;
    if (code == 0)
        code = io_reserve(fd, 0, first);
    for (size_t i = 0; i < parts && code == 0; i++)
        code = io_reserve(fd, first + i * ((size - first) / parts), part);
    tpb_long_files_let(&before, code == EFBIG);
    if (code == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW
                                            | F_SEAL_SEAL) < 0)
        code = errno;
    if (code != 0) {
        tpb_close(&fd);
        errno = code;
    }
    return fd;
}

bool tpb_shared_memory_works(void)
{
    static atomic_bool known;
    int fd;

    if (atomic_load_explicit(&known, memory_order_relaxed))
        return true;
    fd = tpb_shared_memory("tp-probe", 1);
    if (fd < 0)
        return false;
    tpb_close(&fd);
    atomic_store_explicit(&known, true, memory_order_relaxed);
    return true;
}

bool tpb_shared_memory_safe(int fd, size_t size)
{
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);

    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0
           && fstat(fd, &status) == 0 && (size_t)status.st_size >= size;
}

ssize_t tpb_send_fds(int fd, const void *data, size_t length,
                     const int *fds, int count)
{
    return tpb_send_fds_to(fd, NULL, 0, data, length, fds, count);
}

ssize_t tpb_send_fds_to(int fd, const struct sockaddr *to, size_t to_length,
                        const void *data, size_t length, const int *fds,
                        int count)
{
    union {
        char space[CMSG_SPACE(sizeof(int) * IO_FDS_MAX)];
        struct cmsghdr align;
    } control;
    struct iovec iov = { .iov_base = (void *)(uintptr_t)data,
                         .iov_len = length };
    struct msghdr message = { .msg_name = (void *)(uintptr_t)to,
                              .msg_namelen = (socklen_t)to_length,
                              .msg_iov = &iov, .msg_iovlen = 1 };
    ssize_t sent;

    if (count < 0 || count > IO_FDS_MAX) {
        errno = EINVAL;
        return -1;
    }
    if (count > 0) {
        struct cmsghdr *header;

        memset(&control, 0, sizeof(control));
        message.msg_control = control.space;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count);
        header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
        memcpy(CMSG_DATA(header), fds, sizeof(int) * (size_t)count);
    }
    do
        sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent;
}

ssize_t tpb_recv_fds(int fd, void *data, size_t length, int *fds, int *count)
{
    pid_t pid;

    return tpb_recv_fds_from(fd, data, length, fds, count, &pid);
}

ssize_t tpb_recv_fds_from(int fd, void *data, size_t length, int *fds,
                          int *count, pid_t *pid)
{
    union {
        char space[CMSG_SPACE(sizeof(int) * IO_FDS_MAX)
                   + CMSG_SPACE(sizeof(struct ucred))];
        struct cmsghdr align;
    } control;
    struct iovec iov = { .iov_base = data, .iov_len = length };
    struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1,
                              .msg_control = control.space,
                              .msg_controllen = sizeof(control.space) };
    int room = *count;
    ssize_t got;

    *count = 0;
    *pid = 0;
    do
        got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return got;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header != NULL;
         header = CMSG_NXTHDR(&message, header)) {
        size_t n;

        if (header->cmsg_level == SOL_SOCKET
            && header->cmsg_type == SCM_CREDENTIALS)
            memcpy(pid, CMSG_DATA(header) + offsetof(struct ucred, pid),
                   sizeof(*pid));
        if (header->cmsg_level != SOL_SOCKET
            || header->cmsg_type != SCM_RIGHTS)
            continue;
        n = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int received;

            memcpy(&received, CMSG_DATA(header) + i * sizeof(int),
                   sizeof(int));
            if (*count < room)
                fds[(*count)++] = received;
            else
                close(received);
        }
    }
    return got;
}

int tpb_accept(int fd)
{
    int caller = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    /* The last ones are what Linux has heard from the caller's network. */
    if (caller < 0
        && (errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED
            || errno == EPROTO || errno == ENETDOWN || errno == ENETUNREACH
            || errno == EHOSTDOWN || errno == EHOSTUNREACH || errno == ENONET
            || errno == ENOPROTOOPT || errno == EOPNOTSUPP))
        errno = EAGAIN;
    return caller;
}

const char *tpb_accept_remedy(int code)
{
    return code == EPERM || code == EACCES || code == ENOSYS
           ? " (a sandbox around this process must allow accept4(2))"
           : tpb_errno_remedy(code);
}

static bool io_meets_itself(int fd)
{
    struct sockaddr_storage own, other;
    socklen_t length = sizeof(own), size = sizeof(other);

    memset(&own, 0, sizeof(own));
    memset(&other, 0, sizeof(other));
    return getsockname(fd, (struct sockaddr *)&own, &length) == 0
           && getpeername(fd, (struct sockaddr *)&other, &size) == 0
           && (own.ss_family == AF_INET || own.ss_family == AF_INET6)
           && length == size && memcmp(&own, &other, length) == 0;
}

int tpb_socket_dialed(int fd)
{
    struct linger none = { .l_onoff = 1 };
    socklen_t length = sizeof(int);
    int code = 0;

    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &length) < 0)
        return errno;
    if (code != 0 || !io_meets_itself(fd))
        return code;
    /* Who is to listen there shall find the port free, not in TIME_WAIT. */
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
    return ECONNREFUSED;
}
