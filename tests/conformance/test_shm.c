/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite over shm. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "fabric/shm/shm.h"
#include "runtime/base/io.h"
#include "tests/conformance/suite.h"

/* A stranger, who says nothing yet. */
static int shm_caller(const struct tpx_side *side)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    struct shm_address address;

    ck_assert_uint_eq(side->address_length, sizeof(address));
    memcpy(&address, side->address, sizeof(address));
    memcpy(name.sun_path + 1, address.name, address.name_length);
    ck_assert_int_eq(connect(fd, (const struct sockaddr *)&name,
                             (socklen_t)(offsetof(struct sockaddr_un, sun_path)
                                         + 1 + address.name_length)), 0);
    return fd;
}

/* The oldest of too many speaks in the moment in which it has to make room: the
 * caller's event comes first, and is followed by its own.  Memory that was
 * freed is filled, so that this is not by luck. */
START_TEST(test_crowd_of_strangers)
{
    struct tpx_side *side = tpx_side_open(tpx_backend);
    int held[2 * SHM_PENDING];
    ssize_t got;
    char byte;

    mallopt(M_PERTURB, 0xa5);
    for (int i = 0; i < 2 * SHM_PENDING; i++) {
        held[i] = shm_caller(side);
        if (i >= SHM_PENDING) {
            ck_assert_int_eq(send(held[i - SHM_PENDING], "x", 1, 0), 1);
            tpx_side_step(side);
            got = recv(held[i - SHM_PENDING], &byte, 1, MSG_DONTWAIT);
            ck_assert(got == 0 || (got < 0 && errno == ECONNRESET));
        }
        while (tpx_side_step(side))
            ;
        if (i >= SHM_PENDING)
            tpb_close(&held[i - SHM_PENDING]);
    }
    for (int i = SHM_PENDING; i < 2 * SHM_PENDING; i++)
        tpb_close(&held[i]);
    tpx_side_close(side);
}
END_TEST

/* Who cannot be let in for want of descriptors wakes nobody all the time, and
 * is let in when there are some. */
START_TEST(test_callers_wait)
{
    struct tpx_side *a = tpx_side_open(tpx_backend);
    struct tpx_side *b = tpx_side_open(tpx_backend);
    struct tpx_link *link = tpx_connect(a, b->address, b->address_length);
    struct rlimit limit, none;
    uint64_t until;

    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = 0;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    b->wakeups = 0;
    for (until = tpb_now() + 300000000; tpb_now() < until;)
        tpx_side_sleep(b, 20);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_uint_lt(b->wakeups, 20);
    TPX_UNTIL((tpx_side_step(a), tpx_side_sleep(b, 1000)), link->connected);
    tpx_side_close(a);
    tpx_side_close(b);
}
END_TEST

/* Who shows what is a doorbell, or not, in its hello; the answer's status. */
static uint32_t shm_greet(struct tpx_side *side, int doorbell)
{
    struct shm_hello hello = { .magic = { 't', 'p', 's', 'h' },
                               .version = SHM_VERSION, .ring = SHM_RING };
    int fds[3] = { shm_segment_make(),
                   tpb_shared_memory("mailbox", sizeof(struct shm_mailbox)),
                   doorbell };
    struct shm_mailbox *mailbox = shm_mailbox_map(fds[1]);
    struct shm_address address;
    struct shm_welcome welcome;
    int fd = shm_caller(side);

    memcpy(&address, side->address, sizeof(address));
    memcpy(hello.cookie, address.cookie, sizeof(hello.cookie));
    ck_assert_ptr_nonnull(mailbox);
    atomic_store(&mailbox->asleep, 1);
    ck_assert_int_eq(tpb_send_fds(fd, &hello, sizeof(hello), fds, 3),
                     sizeof(hello));
    TPX_UNTIL(tpx_side_step(side), recv(fd, &welcome, sizeof(welcome),
                                        MSG_DONTWAIT) == sizeof(welcome));
    if (welcome.status == 0) {     /* it is asleep: it is rung for */
        struct tpx_link *link = tpx_incoming(side, side->incoming - 1);

        tpx_stream_set(link, link, 1, tpx_size_fixed, 16);
        ck_assert(tpx_send(link));
        ck_assert_uint_eq(atomic_load(&mailbox->asleep), 0);
    }
    shm_mailbox_unmap(mailbox);
    tpb_close(&fds[0]);
    tpb_close(&fds[1]);
    tpb_close(&fd);
    return welcome.status;
}

/* What is no doorbell is not rung: it might block who rings, or kill him. */
START_TEST(test_doorbells)
{
    struct tpx_side *side = tpx_side_open(tpx_backend);
    int bell = tpb_eventfd(), waits = eventfd(0, EFD_CLOEXEC), ends[2];

    ck_assert_int_eq(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    tpb_close(&ends[0]);           /* who writes to it gets SIGPIPE */
    ck_assert_uint_eq(shm_greet(side, bell), TP_OK);
    ck_assert(tpb_eventfd_drain(bell));
    ck_assert_uint_eq(shm_greet(side, ends[1]), TP_ERR_PROTOCOL);
    ck_assert_uint_eq(shm_greet(side, waits), TP_ERR_PROTOCOL);
    ck_assert_uint_eq(side->incoming, 1);
    tpb_close(&ends[1]);
    tpb_close(&bell);
    tpb_close(&waits);
    tpx_side_close(side);
}
END_TEST

static int shm_unanswered;         /* errno of what passes two descriptors */

/* In the place of libc's, for all of this program. */
__attribute__((__visibility__("default")))
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    if (shm_unanswered != 0 && message->msg_controllen > 0
        && CMSG_FIRSTHDR(message)->cmsg_len == CMSG_LEN(2 * sizeof(int))) {
        errno = shm_unanswered;
        return -1;
    }
    return syscall(SYS_sendmsg, fd, message, flags);
}

/* Who is refused hears why. */
START_TEST(test_refused)
{
    struct tpx_side *a = tpx_side_open(tpx_backend);
    struct tpx_side *b = tpx_side_open(tpx_backend);
    struct tpx_link *link = tpx_connect(a, b->address, b->address_length);
    struct rlimit limit, none;
    int next = 0;

    /* One descriptor more, the socket, and none of those that come by it. */
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    while (fcntl(next, F_GETFD) >= 0)
        next++;
    none.rlim_cur = (rlim_t)next + 1;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    TPX_UNTIL((tpx_side_step(a), tpx_side_step(b)), link->failed);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_msg(strstr(link->text, "ulimit -n") != NULL, "%s", link->text);
    tpx_side_close(a);
    tpx_side_close(b);
}
END_TEST

/* Who cannot be answered hears that, and goes another way. */
START_TEST(test_no_answer)
{
    struct tpx_side *a = tpx_side_open(tpx_backend);
    struct tpx_side *b = tpx_side_open(tpx_backend);
    struct tpx_link *link = tpx_connect(a, b->address, b->address_length);

    shm_unanswered = EPERM;
    TPX_UNTIL((tpx_side_step(a), tpx_side_step(b)), link->failed);
    ck_assert(!link->connected);
    ck_assert_uint_eq(b->incoming, 0);
    shm_unanswered = 0;
    tpx_disconnect(link);
    link = tpx_connect(a, b->address, b->address_length);
    TPX_UNTIL((tpx_side_step(a), tpx_side_step(b)), link->connected);
    tpx_side_close(a);
    tpx_side_close(b);
}
END_TEST

/* A message of several frames, read at once. */
static void shm_message(struct tpx_pair *pair, struct tpx_link *from,
                        struct tpx_link *to, unsigned frames)
{
    for (unsigned i = 0; i < frames; i++) {
        from->conn->more = i < frames - 1;
        TPX_UNTIL(tpx_pair_step(pair), tpx_send(from));
    }
    TPX_UNTIL(tpx_pair_step(pair), to->in.next == from->out.next);
}

/* Who takes turns, each with one frame or several, is told from one who writes
 * a stream and now and then reads what credit he gets for it, inside of a
 * message. */
START_TEST(test_turns)
{
    static const unsigned counts[] = { 1, 2, 4, 64 };
    struct tpx_pair pair;

    tpx_pair_open(&pair, tpx_backend);
    tpx_stream_set(pair.ab, pair.ba, 1, tpx_size_fixed, 500);
    tpx_stream_set(pair.ba, pair.ab, 2, tpx_size_fixed, 16);
    for (size_t i = 0; i < TPB_COUNT(counts); i++) {
        unsigned frames = 0;

        for (int k = 0; k < 20; k++) {
            shm_message(&pair, pair.ab, pair.ba, counts[i]);
            shm_message(&pair, pair.ba, pair.ab, 1);
        }
        ck_assert_msg(shm_in_turns(shm_conn(pair.ab->conn)),
                      "no turns of %u frames", counts[i]);
        while (frames < 4096)
            for (unsigned k = 0; k < counts[i]; k++) {
                pair.ab->conn->more = k < counts[i] - 1;
                TPX_UNTIL(tpx_pair_step(&pair), tpx_send(pair.ab));
                if (++frames % 8 == 5)
                    shm_message(&pair, pair.ba, pair.ab, 1);
            }
        ck_assert_msg(!shm_in_turns(shm_conn(pair.ab->conn)),
                      "a stream of %u frames is turns", counts[i]);
    }
    tpx_pair_close(&pair);
}
END_TEST

/* Rings that cannot be mapped leave nothing behind that might be written to
 * when their conn goes: it was reserved, and not to be touched. */
START_TEST(test_no_rings)
{
    struct shm_conn conn = { .base.backend = tpx_backend };
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    struct tpb_error error = { "" };

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(shm_segment_map(&conn, fd, 0, &error), TP_ERR_SYSTEM);
    ck_assert_msg(strstr(error.text, "cannot map a ring: ") != NULL, "%s",
                  error.text);
    ck_assert_ptr_null(conn.map);
    close(fd);
}
END_TEST

static void shm_more(Suite *suite)
{
    TCase *tests = tpx_tcase(suite, "crowd");

    tcase_add_test(tests, test_crowd_of_strangers);
    tcase_add_test(tests, test_callers_wait);
    tcase_add_test(tests, test_refused);
    tcase_add_test(tests, test_no_answer);
    tcase_add_test(tests, test_no_rings);
    tcase_add_test(tests, test_doorbells);
    tests = tpx_tcase(suite, "turns");
    tcase_add_test(tests, test_turns);
}

int main(void)
{
    static const struct tpx_target target = { .name = "shm",
                                              .more = shm_more };

    return tpx_conform(&target);
}
