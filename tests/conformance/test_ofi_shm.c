/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite over ofi:shm. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/base/io.h"
#include "tests/conformance/suite.h"

enum {
    SHM_CALLERS = 16,
    SHM_MEETINGS = 20,
    SHM_STRANGERS = 64             /* that a host has room for ... */
};

/* libfabric's shm gives its memory names, which have to go in time. */
static int shm_left_behind(pid_t pid)
{
    DIR *dir = opendir("/dev/shm");
    struct dirent *entry;
    char start[32];
    int count = 0;

    ck_assert_ptr_nonnull(dir);
    snprintf(start, sizeof(start), "tp.ofi.%d.", (int)pid);
    while ((entry = readdir(dir)) != NULL)
        count += strncmp(entry->d_name, start, strlen(start)) == 0;
    closedir(dir);
    return count;
}

/* The socket at which the only endpoint of this process listens. */
static int shm_listener(struct sockaddr_un *name, socklen_t *length)
{
    for (int fd = 0; fd < 1024; fd++) {
        socklen_t size = sizeof(int);
        int listens = 0;

        *length = sizeof(*name);
        memset(name, 0, sizeof(*name));
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0
            && listens
            && getsockname(fd, (struct sockaddr *)name, length) == 0
            && name->sun_family == AF_UNIX
            && strncmp(name->sun_path + 1, "tp.ofi.", 7) == 0)
            return fd;
    }
    ck_abort_msg("no socket listens");
}

/* Calls until there is no more room; returns how many wait. */
static int shm_crowd(const struct sockaddr_un *name, socklen_t length,
                     int callers[SHM_CALLERS])
{
    for (int count = 0; count < SHM_CALLERS; count++) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                        0);

        ck_assert_int_ge(fd, 0);
        callers[count] = fd;
        if (connect(fd, (const struct sockaddr *)name, length) < 0) {
            ck_assert_int_eq(errno, EAGAIN);
            tpb_close(&callers[count]);
            return count;
        }
    }
    ck_abort_msg("there is always room");
}

/* The host computes, and more have called than the kernel lets wait: who comes
 * then calls again, and is let in when the host looks. */
START_TEST(test_full_listener)
{
    struct tpx_side *host = tpx_side_open(tpx_backend), *visitor;
    int callers[SHM_CALLERS], listener, count;
    struct tpx_link *link;
    struct sockaddr_un name;
    socklen_t length;

    listener = shm_listener(&name, &length);
    ck_assert_int_eq(listen(listener, 1), 0);
    count = shm_crowd(&name, length, callers);
    visitor = tpx_side_open(tpx_backend);
    link = tpx_connect(visitor, host->address, host->address_length);
    TPX_UNTIL(tpx_side_sleep(visitor, 100),
              link->failed || tpx_trying(link, "tried again"));
    for (int i = 0; i < 50; i++)
        tpx_side_sleep(visitor, 100);
    ck_assert_msg(!link->failed, "%s", link->text);
    TPX_UNTIL((tpx_side_step(host), tpx_side_sleep(visitor, 100)),
              link->failed || (link->connected && host->incoming == 1));
    ck_assert_msg(!link->failed, "%s", link->text);
    for (int i = 0; i < count; i++)
        tpb_close(&callers[i]);
    tpx_side_close(visitor);
    tpx_side_close(host);
}
END_TEST

/* The host has let in more than it has room for, and sends the first one away,
 * who got no cpu to say what it wants: it calls again, with another name. */
START_TEST(test_sent_away)
{
    struct tpx_side *host = tpx_side_open(tpx_backend), *visitor;
    struct tpx_link *first, *link;
    int callers[SHM_STRANGERS];
    struct sockaddr_un name;
    socklen_t length;

    shm_listener(&name, &length);
    visitor = tpx_side_open(tpx_backend);
    /* With libfabric loaded it calls at once. */
    first = tpx_connect(visitor, host->address, host->address_length);
    TPX_UNTIL((tpx_side_step(host), tpx_side_step(visitor)),
              first->failed || (first->connected && host->incoming == 1));
    ck_assert_msg(!first->failed, "%s", first->text);
    link = tpx_connect(visitor, host->address, host->address_length);
    for (int i = 0; i < SHM_STRANGERS; i++) {
        if (i == SHM_STRANGERS - 1)
            usleep(200000);
        for (int k = 0; k < 3; k++)
            tpx_side_step(host);
        callers[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ck_assert_int_eq(connect(callers[i], (struct sockaddr *)&name,
                                 length), 0);
    }
    for (int k = 0; k < 20; k++)
        tpx_side_step(host);
    TPX_UNTIL(tpx_side_step(visitor),
              link->failed || tpx_trying(link, "tried again"));
    ck_assert_msg(!link->failed, "%s", link->text);
    for (int i = 0; i < SHM_STRANGERS; i++)
        tpb_close(&callers[i]);
    TPX_UNTIL((tpx_side_step(host), tpx_side_step(visitor)),
              link->failed || (link->connected && host->incoming == 2));
    ck_assert_msg(!link->failed, "%s", link->text);
    tpx_side_close(visitor);
    tpx_side_close(host);
}
END_TEST

/* Two sides of its own, which meet and part. */
static void *shm_couple(void *arg)
{
    struct tpx_side *host = tpx_side_open(tpx_backend);
    struct tpx_side *visitor = tpx_side_open(tpx_backend);

    for (unsigned i = 0; i < SHM_MEETINGS; i++) {
        struct tpx_link *link = tpx_connect(visitor, host->address,
                                            host->address_length);

        TPX_UNTIL((tpx_side_step(host), tpx_side_step(visitor)),
                  link->failed
                  || (link->connected && host->incoming == i + 1));
        ck_assert_msg(!link->failed, "%s", link->text);
        tpx_disconnect(link);
        tpx_disconnect(tpx_incoming(host, i));
    }
    tpx_side_close(visitor);
    tpx_side_close(host);
    return arg;
}

/* Contexts of one process, each with a thread, know nothing of each other:
 * ThreadSanitizer tells if one touches what is another's. */
START_TEST(test_couples)
{
    pthread_t other;

    ck_assert_int_eq(pthread_create(&other, NULL, shm_couple, NULL), 0);
    shm_couple(NULL);
    pthread_join(other, NULL);
}
END_TEST

static void shm_more(Suite *suite)
{
    TCase *tests = tpx_tcase(suite, "crowd");

    tcase_add_test(tests, test_full_listener);
    tcase_add_test(tests, test_sent_away);
    tcase_add_test(tests, test_couples);
}

int main(void)
{
    static const struct tpx_target target = {
        .name = "ofi:shm", .left_behind = shm_left_behind, .locks = true,
        .more = shm_more
    };

    return tpx_conform(&target);
}
