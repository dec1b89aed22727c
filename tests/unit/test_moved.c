/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A name that tp_connect() is given may mean another address before anybody
 * listens at the first one: a service that was started anew, elsewhere.  It was
 * looked up once, and the old address tried until the time was up.  If it is
 * not found any more, what is known is tried on.
 */
#include "config.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "runtime/core.h"
#include "tests/lib/tpx.h"

/* How often each name was looked up. */
static atomic_int moved_asked, moved_lost;

/* In place of libc's. */
int getaddrinfo(const char *host, const char *service,
                const struct addrinfo *hints, struct addrinfo **list)
{
    int (*real)(const char *, const char *, const struct addrinfo *,
                struct addrinfo **);
    bool names = (hints->ai_flags & AI_NUMERICHOST) == 0;

    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (names && strcmp(host, "moved.test") == 0)
        host = atomic_fetch_add(&moved_asked, 1) == 0 ? "127.0.0.77"
                                                      : "127.0.0.1";
    if (names && strcmp(host, "lost.test") == 0) {
        if (atomic_fetch_add(&moved_lost, 1) > 0)
            return EAI_AGAIN;
        host = "127.0.0.1";
    }
    return real(host, service, hints, list);
}

static tp_context *moved_open(void)
{
    tp_options options = TP_OPTIONS_INIT;
    tp_context *context = NULL;

    options.bootstrap = "single";
    options.backends = "shm";
    options.secret = "a secret of both sides";
    ck_assert_int_eq(tp_init(&options, &context), TP_OK);
    return context;
}

/* Returns the port. */
static unsigned moved_listen(tp_context *context, unsigned port,
                             tp_listener **listener)
{
    char address[1024];
    const char *at;

    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    ck_assert_int_eq(tp_listen(context, address, listener), TP_OK);
    ck_assert_int_eq(tp_listener_address(*listener, address, sizeof(address)),
                     TP_OK);
    at = strstr(address, "tcp=127.0.0.1:");
    ck_assert_ptr_nonnull(at);
    ck_assert_int_eq(sscanf(at, "tcp=127.0.0.1:%u", &port), 1);
    return port;
}

/* A port that nobody listens at, and that nobody else gets. */
static unsigned moved_kept(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    socklen_t length = sizeof(address);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one,
                                sizeof(one)), 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, length), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    return ntohs(address.sin_port);
}

static tp_pipe *moved_connect(tp_context *context, const char *name,
                              unsigned port)
{
    tp_pipe *pipe = NULL;
    char address[64];

    snprintf(address, sizeof(address), "%s:%u", name, port);
    ck_assert_int_eq(tp_connect(context, address, &pipe), TP_OK);
    return pipe;
}

static void moved_accepted(tp_listener *listener, tp_status status,
                           tp_pipe *pipe, void *arg)
{
    (void)listener;
    ck_assert_int_eq(status, TP_OK);
    atomic_store((_Atomic(tp_pipe *) *)arg, pipe);
}

/* The listener and the visitor meet, and a message goes over. */
static void moved_meet(tp_context *host, tp_listener *listener, tp_pipe *pipe)
{
    _Atomic(tp_pipe *) met = NULL;
    char byte = 0;

    ck_assert_int_eq(tp_accept(listener, moved_accepted, &met), TP_OK);
    ck_assert_int_eq(tp_pipe_send(pipe, "m", 1), TP_OK);
    while (atomic_load(&met) == NULL)
        ck_assert_int_eq(tp_wait(host, 10000, NULL), TP_OK);
    ck_assert_int_eq(tp_pipe_recv(atomic_load(&met), &byte, 1, NULL), TP_OK);
    ck_assert_int_eq(byte, 'm');
}

START_TEST(a_name_is_looked_up_again)
{
    tp_context *host = moved_open(), *visitor = moved_open();
    tp_listener *listener, *other;
    tp_pipe *moves, *stays;
    unsigned port, later;

    port = moved_listen(host, 0, &listener);
    later = moved_kept();
    moves = moved_connect(visitor, "moved.test", port);
    stays = moved_connect(visitor, "lost.test", later);
    moved_meet(host, listener, moves);
    ck_assert_int_ge(atomic_load(&moved_asked), 2);
    while (atomic_load(&moved_lost) < 2)
        usleep(1000);
    moved_listen(host, later, &other);
    moved_meet(host, other, stays);
    ck_assert_int_eq(tp_finalize(visitor), TP_OK);
    ck_assert_int_eq(tp_finalize(host), TP_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("moved");
    TCase *tests = tcase_create("names");

    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, a_name_is_looked_up_again);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
