/* SPDX-License-Identifier: BSD-3-Clause */
/* Descriptors: whole writes, passing, bells, sealed memory. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "tests/lib/tpx.h"

static bool is_close_on_exec(int fd)
{
    return (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0;
}

static bool is_readable(int fd)
{
    struct pollfd pfd = { .fd = fd, .events = POLLIN };

    return poll(&pfd, 1, 0) == 1;
}

/* Also to a pipe that does not wait. */
START_TEST(test_write_all)
{
    enum { MANY = 1 << 20 };
    static char out[MANY], in[MANY];
    size_t got = 0;
    int fds[2], status;
    pid_t pid;

    for (size_t i = 0; i < MANY; i++)
        out[i] = (char)(i * 7);
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0 && _i == 0)
        _exit(tpb_write_all(fds[1], out, MANY) == 0 ? 0 : 1);
    if (pid == 0)
        _exit(fcntl(fds[1], F_SETFL, O_NONBLOCK) == 0
              && tpb_write_waiting(fds[1], out, MANY) == 0 ? 0 : 1);
    close(fds[1]);
    while (got < MANY) {
        ssize_t part = read(fds[0], in + got, MANY - got);

        ck_assert_int_gt(part, 0);
        got += (size_t)part;
    }
    ck_assert_int_eq(memcmp(in, out, MANY), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    close(fds[0]);
    errno = 0;
    ck_assert_int_eq(tpb_write_all(-1, out, 1), -1);
    ck_assert_int_eq(errno, EBADF);
}
END_TEST

START_TEST(test_read_file)
{
    char path[] = "/tmp/tpx-io-XXXXXX";
    int fd = mkstemp(path);
    static char many[200000];
    size_t length = 1;
    char *text;

    text = tpb_read_file(path, &length);
    ck_assert_str_eq(text, "");
    ck_assert_uint_eq(length, 0);
    tpb_free(text);
    memset(many, 'm', sizeof(many));
    ck_assert_int_eq(tpb_write_all(fd, many, sizeof(many)), 0);
    text = tpb_read_file(path, &length);
    ck_assert_uint_eq(length, sizeof(many));
    ck_assert_uint_eq(strlen(text), sizeof(many));
    tpb_free(text);
    text = tpb_read_file(path, NULL);
    ck_assert_ptr_nonnull(text);
    tpb_free(text);
    tpb_alloc_fail_at(2);
    errno = 0;
    ck_assert_ptr_null(tpb_read_file(path, &length));
    ck_assert_int_eq(errno, ENOMEM);
    unlink(path);
    close(fd);
    ck_assert_ptr_null(tpb_read_file(path, &length));
    ck_assert_int_eq(errno, ENOENT);
}
END_TEST

START_TEST(test_bells)
{
    int fd = tpb_eventfd(), copy;

    ck_assert_int_ge(fd, 0);
    ck_assert(is_close_on_exec(fd));
    ck_assert(!is_readable(fd));
    tpb_eventfd_drain(fd);                 /* does not block */
    tpb_eventfd_ring(fd);
    tpb_eventfd_ring(fd);
    ck_assert(is_readable(fd));
    tpb_eventfd_drain(fd);
    ck_assert(!is_readable(fd));
    copy = fd;
    errno = 77;
    tpb_close(&fd);
    ck_assert_int_eq(errno, 77);
    ck_assert_int_eq(fd, -1);
    tpb_close(&fd);
    ck_assert_int_eq(fcntl(copy, F_GETFD), -1);
}
END_TEST

START_TEST(test_shared_memory)
{
    int fd = tpb_shared_memory("test", 10000);
    struct stat status;

    ck_assert_int_ge(fd, 0);
    ck_assert(is_close_on_exec(fd));
    ck_assert_int_eq(fstat(fd, &status), 0);
    ck_assert_int_eq(status.st_size, 10000);
    ck_assert_int_ge(status.st_blocks * 512, 10000);   /* reserved */
    ck_assert_int_eq(ftruncate(fd, 100), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(ftruncate(fd, 100000), -1);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    close(fd);
}
END_TEST

/* More than any machine has, of which nothing may be taken. */
START_TEST(test_shared_memory_too_much)
{
    ck_assert_int_eq(tpb_shared_memory("test", (size_t)1 << 46), -1);
    ck_assert_int_eq(errno, ENOMEM);
}
END_TEST

/* More than a file may have (ulimit -f) is refused; the signal of that limit
 * ends nobody, and the program's own mask is as it was. */
START_TEST(test_shared_memory_too_long)
{
    struct rlimit limit = { 65536, 65536 };
    sigset_t signals;
    int fd;

    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(tpb_shared_memory("test", 10 << 20), -1);
    ck_assert_int_eq(errno, EFBIG);
    ck_assert_int_eq(sigpending(&signals), 0);
    ck_assert_int_eq(sigismember(&signals, SIGXFSZ), 0);
    ck_assert_int_eq(pthread_sigmask(SIG_SETMASK, NULL, &signals), 0);
    ck_assert_int_eq(sigismember(&signals, SIGXFSZ), 0);
    fd = tpb_shared_memory("test", 65536);
    ck_assert_int_ge(fd, 0);
    close(fd);
}
END_TEST

static void test_signal(int number)
{
    (void)number;
}

/* Signals that come faster than memory can be reserved. */
START_TEST(test_shared_memory_signals)
{
    struct sigaction action = { .sa_handler = test_signal };
    const struct itimerval often = { { 0, 2000 }, { 0, 2000 } };
    const struct itimerval never = { { 0, 0 }, { 0, 0 } };
    int fd;

    ck_assert_int_eq(sigaction(SIGALRM, &action, NULL), 0);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &often, NULL), 0);
    fd = tpb_shared_memory("test", 96 << 20);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &never, NULL), 0);
    ck_assert_int_ge(fd, 0);
    close(fd);
}
END_TEST

/* Counts the open descriptors, so that a lost one is noticed. */
static int open_descriptors(void)
{
    int count = 0;

    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

START_TEST(test_passing)
{
    int sockets[2], bells[3], got[3] = { -1, -1, -1 }, count, before;
    char text[8] = "";

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
                                sockets), 0);
    for (int i = 0; i < 3; i++)
        bells[i] = tpb_eventfd();
    before = open_descriptors();
    ck_assert_int_eq(tpb_send_fds(sockets[0], "three", 6, bells, 3), 6);
    count = 3;
    ck_assert_int_eq(tpb_recv_fds(sockets[1], text, sizeof(text), got,
                                  &count), 6);
    ck_assert_str_eq(text, "three");
    ck_assert_int_eq(count, 3);
    for (int i = 0; i < 3; i++) {
        ck_assert(is_close_on_exec(got[i]));
        tpb_eventfd_ring(got[i]);
        ck_assert(is_readable(bells[i]));
        close(got[i]);
    }
    /* More than there is room for: closed, not leaked. */
    ck_assert_int_eq(tpb_send_fds(sockets[0], "x", 1, bells, 3), 1);
    count = 1;
    ck_assert_int_eq(tpb_recv_fds(sockets[1], text, sizeof(text), got,
                                  &count), 1);
    ck_assert_int_eq(count, 1);
    close(got[0]);
    ck_assert_int_eq(open_descriptors(), before);
    /* None at all, too many, nobody there. */
    ck_assert_int_eq(tpb_send_fds(sockets[0], "y", 1, NULL, 0), 1);
    count = 3;
    ck_assert_int_eq(tpb_recv_fds(sockets[1], text, sizeof(text), got,
                                  &count), 1);
    ck_assert_int_eq(count, 0);
    ck_assert_int_eq(tpb_send_fds(sockets[0], "y", 1, bells, 17), -1);
    ck_assert_int_eq(errno, EINVAL);
    close(sockets[1]);
    ck_assert_int_eq(tpb_send_fds(sockets[0], "y", 1, bells, 1), -1);
    ck_assert_int_eq(errno, EPIPE);        /* and no SIGPIPE */
}
END_TEST

/* As many descriptors as a stranger likes, who need not ask us how many. */
START_TEST(test_passed_too_many)
{
    enum { MANY = 253 };           /* the kernel's limit */
    union {
        char space[CMSG_SPACE(sizeof(int) * MANY)];
        struct cmsghdr align;
    } control;
    int sockets[2], many[MANY], got[3], count, before;
    char text[8] = "";

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
                                sockets), 0);
    before = open_descriptors();
    for (int i = 0; i < MANY; i++)
        many[i] = sockets[0];
    for (size_t n = 16; n <= MANY; n = n < 32 ? n + 1 : n + 17) {
        struct iovec iov = { text, 1 };
        struct msghdr message = {
            .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.space,
            .msg_controllen = CMSG_SPACE(sizeof(int) * n) };
        struct cmsghdr *header;

        memset(&control, 0, sizeof(control));
        header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * n);
        memcpy(CMSG_DATA(header), many, sizeof(int) * n);
        ck_assert_int_eq(sendmsg(sockets[0], &message, 0), 1);
        count = 3;
        ck_assert_int_eq(tpb_recv_fds(sockets[1], text, sizeof(text), got,
                                      &count), 1);
        ck_assert_int_eq(count, 3);
        for (int i = 0; i < count; i++)
            close(got[i]);
        ck_assert_int_eq(open_descriptors(), before);
    }
    close(sockets[0]);
    close(sockets[1]);
}
END_TEST

/* A socket of this family, bound to any port of this host, and its name. */
static int own_socket(struct sockaddr_storage *name, socklen_t *length,
                      int family)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memset(name, 0, sizeof(*name));
    name->ss_family = (sa_family_t)family;
    if (family == AF_INET)
        ((struct sockaddr_in *)name)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else
        ((struct sockaddr_in6 *)name)->sin6_addr = in6addr_loopback;
    *length = family == AF_INET ? sizeof(struct sockaddr_in)
                                : sizeof(struct sockaddr_in6);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)name, *length), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)name, length), 0);
    return fd;
}

START_TEST(test_dialed)
{
    struct sockaddr_storage name;
    struct pollfd ended = { .events = POLLOUT };
    int families[] = { AF_INET, AF_INET6 }, fd, other;
    socklen_t length;

    for (int i = 0; i < 2; i++) {
        /* Itself. */
        fd = own_socket(&name, &length, families[i]);
        ck_assert_int_eq(connect(fd, (struct sockaddr *)&name, length), 0);
        ck_assert_int_eq(tpb_socket_dialed(fd), ECONNREFUSED);
        close(fd);
        /* Nobody. */
        other = own_socket(&name, &length, families[i]);
        fd = socket(families[i], SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (connect(fd, (struct sockaddr *)&name, length) < 0
            && errno == EINPROGRESS) {
            ended.fd = fd;
            ck_assert_int_eq(poll(&ended, 1, -1), 1);
            ck_assert_int_eq(tpb_socket_dialed(fd), ECONNREFUSED);
        }
        close(fd);
        /* Who listens. */
        ck_assert_int_eq(listen(other, 1), 0);
        fd = socket(families[i], SOCK_STREAM | SOCK_CLOEXEC, 0);
        ck_assert_int_eq(connect(fd, (struct sockaddr *)&name, length), 0);
        ck_assert_int_eq(tpb_socket_dialed(fd), 0);
        close(fd);
        close(other);
    }
    ck_assert_int_eq(tpb_socket_dialed(-1), EBADF);
}
END_TEST

START_TEST(test_text_number)
{
    static const char text[] = "low 3\noom 2\noom_kill 17\nlast 99";
    uint64_t number = 1;

    ck_assert(tpb_text_number(text, "low ", &number));
    ck_assert_uint_eq(number, 3);
    ck_assert(tpb_text_number(text, "oom_kill ", &number));
    ck_assert_uint_eq(number, 17);
    ck_assert(tpb_text_number(text, "last ", &number));
    ck_assert_uint_eq(number, 99);
    ck_assert(!tpb_text_number(text, "kill ", &number));
    ck_assert(!tpb_text_number("", "low ", &number));
    ck_assert(!tpb_text_number(NULL, "low ", &number));
    ck_assert_uint_eq(number, 99);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("io");
    TCase *tests = tcase_create("io");

    tcase_set_timeout(tests, 180);
    tcase_add_loop_test(tests, test_write_all, 0, 2);
    tcase_add_test(tests, test_read_file);
    tcase_add_test(tests, test_bells);
    tcase_add_test(tests, test_shared_memory);
    tcase_add_test(tests, test_shared_memory_too_much);
    tcase_add_test(tests, test_shared_memory_too_long);
    tcase_add_test(tests, test_shared_memory_signals);
    tcase_add_test(tests, test_dialed);
    tcase_add_test(tests, test_passing);
    tcase_add_test(tests, test_text_number);
    tcase_add_test(tests, test_passed_too_many);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
