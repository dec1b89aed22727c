/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * By way of the kernel.
 *
 *   socket   a Unix socket that both poll: no sleeping
 *   eventfd  the message is in a line, but the receiver sleeps until it is
 *            woken: what a parked rank costs
 */
#include "config.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/floors.h"

static bool system_failed(const char *call)
{
    bench_say("%s: %s", call, strerror(errno));
    return false;
}

static bool socket_send(struct bench_driver *driver, int rank,
                        const void *data, size_t length)
{
    const unsigned char *bytes = data;

    (void)rank;
    while (length > 0) {
        ssize_t sent = send(floors_of(driver)->socket, bytes, length,
                            MSG_DONTWAIT | MSG_NOSIGNAL);

        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return system_failed("send");
        if (sent > 0) {
            bytes += sent;
            length -= (size_t)sent;
        }
    }
    return true;
}

static bool socket_receive(struct bench_driver *driver, int rank, void *data,
                           size_t length)
{
    unsigned char *bytes = data;

    (void)rank;
    while (length > 0) {
        ssize_t got = recv(floors_of(driver)->socket, bytes, length,
                           MSG_DONTWAIT);

        if (got == 0)
            return false;
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            return system_failed("recv");
        if (got > 0) {
            bytes += got;
            length -= (size_t)got;
        }
    }
    return true;
}

const struct floor_kind floor_socket = {
    .name = "floor/socket", .mode = "spinning",
    .tests = BENCH_BIT(BENCH_LATENCY) | BENCH_BIT(BENCH_BANDWIDTH)
             | BENCH_BIT(BENCH_RATE),
    .send = socket_send, .receive = socket_receive
};

static bool eventfd_send(struct bench_driver *driver, int rank,
                         const void *data, size_t length)
{
    uint64_t one = 1;

    (void)rank;
    floor_line_put(floors_of(driver), data, length);
    return write(floors_of(driver)->wake_out, &one, sizeof(one))
           == (ssize_t)sizeof(one)
           || system_failed("eventfd");
}

static bool eventfd_receive(struct bench_driver *driver, int rank, void *data,
                            size_t length)
{
    struct floors *floors = floors_of(driver);
    uint64_t one;

    (void)rank;
    if (read(floors->wake_in, &one, sizeof(one)) != (ssize_t)sizeof(one))
        return system_failed("eventfd");
    memcpy(data, floor_line_next(floors)->data, length);
    floor_line_done(floors);
    return true;
}

const struct floor_kind floor_eventfd = {
    .name = "floor/eventfd", .mode = "sleeping",
    .tests = BENCH_BIT(BENCH_LATENCY), .most = FLOOR_LINE_DATA,
    .send = eventfd_send, .receive = eventfd_receive
};
