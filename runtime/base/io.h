/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * File descriptors: close-on-exec from birth, whole reads and writes, and
 * descriptors passed over Unix sockets.
 */
#ifndef TPB_IO_H
#define TPB_IO_H

#include <signal.h>
#include <sys/types.h>

#include "runtime/base/base.h"

/* All of it, through EINTR and short writes.  0, or -1 with errno. */
int tpb_write_all(int fd, const void *data, size_t length);

/* The same to what others may have made one that does not wait (O_NONBLOCK is
 * the file's, and not the process's): waits until there is room. */
int tpb_write_waiting(int fd, const void *data, size_t length);

/* A whole file, terminated by a NUL that does not count; NULL with errno.
 * The caller frees it with tpb_free(). */
char *tpb_read_file(const char *path, size_t *length);

/* In such a text (NULL: none), as of the kernel's statistics: the number behind
 * the word with which a line begins.  False: there is no such line. */
bool tpb_text_number(const char *text, const char *word, uint64_t *number);

/* Opens a file to write it anew.  Does not wait where it is a FIFO that nobody
 * reads (ENXIO), but what is written to it then may.  -1 with errno. */
int tpb_create_file(const char *path);

/* Makes a folder, and those above it that are missing; 0 also if all were there
 * before.  -1 with errno: ENOTDIR if it is something else. */
int tpb_make_folders(const char *path);

/* Closes and sets to -1; a negative descriptor is left alone.  Keeps errno. */
void tpb_close(int *fd);

/* Descriptors 0, 1, 2 that are closed become /dev/null's, opened with `flags`:
 * else what is opened next would get these numbers. */
void tpb_fill_standard(int flags);

/* Waits so many ms for something to read, whatever signals come meanwhile.
 * False: nothing came. */
bool tpb_await(int fd, int ms);

int tpb_eventfd(void);                  /* non-blocking; -1 with errno */
void tpb_eventfd_ring(int fd);
bool tpb_eventfd_drain(int fd);         /* was it rung? */
/* Is what another process has passed one, too, as `mine` is?  Of other kinds a
 * ring may block, or end this process. */
bool tpb_eventfd_like(int fd, int mine);
/* epoll_ctl() for an epoll that only wakes up; -1 with errno. */
int tpb_epoll_set(int epoll, int operation, int fd, uint32_t events);

/*
 * Shared memory is a file to the kernel, and one that would be longer than the
 * user may have them (ulimit -f) ends the process by SIGXFSZ.  Between these
 * two it is EFBIG for this thread, which alone gets that signal.  `came`:
 * something failed, so one may have to be taken away.
 */
void tpb_long_files_hold(sigset_t *before);
void tpb_long_files_let(const sigset_t *before, bool came);

/*
 * Anonymous shared memory of `size` bytes, reserved up front, sealed against
 * shrinking.  Returns the descriptor, or -1 with errno (ENOSPC, ENOMEM: there
 * is no room for it; more than the machine has left is refused before it is
 * taken; EFBIG: it is more than a file may have, ulimit -f).  `name` is for
 * /proc only.
 */
int tpb_shared_memory(const char *name, size_t size);

/* The same, but of what follows the `first` bytes, in so many equal parts, only
 * the first `part` bytes of each are reserved. */
int tpb_shared_memory_parts(const char *name, size_t size, size_t first,
                            size_t part, size_t parts);

/* Can there be such memory at all?  False with errno if not.  A process tries
 * until it once went well. */
bool tpb_shared_memory_works(void);

/* A descriptor from outside: is it memory of at least that size which cannot
 * shrink?  Otherwise touching it could end this process with SIGBUS. */
bool tpb_shared_memory_safe(int fd, size_t size);

/* Sends / receives up to `count` descriptors with some bytes.  Both return
 * what sendmsg/recvmsg return.  *count becomes the number received; those
 * are close-on-exec. */
ssize_t tpb_send_fds(int fd, const void *data, size_t length,
                     const int *fds, int count);
/* To an address, on a socket of datagrams. */
struct sockaddr;
ssize_t tpb_send_fds_to(int fd, const struct sockaddr *to, size_t to_length,
                        const void *data, size_t length, const int *fds,
                        int count);
ssize_t tpb_recv_fds(int fd, void *data, size_t length, int *fds, int *count);
/* *pid: the sender's as seen from here, if SO_PASSCRED was set when it sent and
 * this PID namespace has it; else 0. */
ssize_t tpb_recv_fds_from(int fd, void *data, size_t length, int *fds,
                          int *count, pid_t *pid);

/* Who calls at a listening socket: close-on-exec, non-blocking.  -1 with EAGAIN
 * if nobody does, or has given up meanwhile; any other errno says that this
 * process can let nobody in, for now. */
int tpb_accept(int fd);
const char *tpb_accept_remedy(int code);        /* as tpb_errno_remedy() */

/* How a connect() that was under way ended: 0 or the cause.  ECONNREFUSED also
 * where it has met itself: a TCP socket that calls a port of the range that
 * callers get theirs from may be given that very port, if nobody listens. */
int tpb_socket_dialed(int fd);

#endif
