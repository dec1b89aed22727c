/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A long way between two networks, for kernels without netem: joins two
 * bridges, and each Ethernet frame takes that long from one to the other.
 *
 *   delay MS BRIDGE BRIDGE
 *
 * Says "ready" and goes on until it is killed.  The two devices that it makes
 * (TAP) end with it.  What comes faster than a queue holds is dropped, as a
 * router does.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <linux/if_tun.h>
#include <linux/sockios.h>

enum { DELAY_FRAMES = 8192, DELAY_BYTES = 1600 };

struct delay_frame {
    uint64_t when;
    uint32_t length;
    char bytes[DELAY_BYTES];
};

/* From one TAP to the other. */
struct delay_queue {
    int from, to;
    unsigned first, next;
    struct delay_frame frames[DELAY_FRAMES];
};

static struct delay_queue delay_queues[2];
static uint64_t delay_ns;

static uint64_t delay_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void delay_check(int result, const char *what)
{
    if (result >= 0)
        return;
    fprintf(stderr, "delay: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* A TAP of that bridge. */
static int delay_tap(const char *bridge)
{
    int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq device = { .ifr_flags = IFF_TAP | IFF_NO_PI };
    struct ifreq master = { .ifr_flags = 0 };

    delay_check(tap, "/dev/net/tun");
    delay_check(any, "a socket");
    delay_check(ioctl(tap, TUNSETIFF, &device), "a TAP device");
    snprintf(master.ifr_name, sizeof(master.ifr_name), "%s", bridge);
    master.ifr_ifindex = (int)if_nametoindex(device.ifr_name);
    delay_check(ioctl(any, SIOCBRADDIF, &master), bridge);
    device.ifr_flags = IFF_UP;
    delay_check(ioctl(any, SIOCSIFFLAGS, &device), "to set it up");
    close(any);
    return tap;
}

static void delay_take(struct delay_queue *queue)
{
    static char nowhere[DELAY_BYTES];
    ssize_t got;

    for (;;) {
        struct delay_frame *frame
            = &queue->frames[queue->next % DELAY_FRAMES];
        bool full = queue->next - queue->first == DELAY_FRAMES;

        got = read(queue->from, full ? nowhere : frame->bytes, DELAY_BYTES);
        if (got < 0)
            return;
        if (full)
            continue;
        frame->when = delay_now() + delay_ns;
        frame->length = (uint32_t)got;
        queue->next++;
    }
}

/* Passes on what has been long enough on its way; in how many ns there is more
 * to do, or UINT64_MAX. */
static uint64_t delay_give(struct delay_queue *queue)
{
    while (queue->first != queue->next) {
        struct delay_frame *frame
            = &queue->frames[queue->first % DELAY_FRAMES];
        uint64_t now = delay_now();

        if (frame->when > now)
            return frame->when - now;
        if (write(queue->to, frame->bytes, frame->length) < 0
            && errno == EAGAIN)
            return 1000000;
        queue->first++;
    }
    return UINT64_MAX;
}

int main(int argc, char **argv)
{
    struct pollfd polls[2];

    if (argc != 4 || atoi(argv[1]) <= 0) {
        fprintf(stderr, "usage: delay MS BRIDGE BRIDGE\n");
        return 2;
    }
    delay_ns = (uint64_t)atoi(argv[1]) * 1000000u;
    for (int i = 0; i < 2; i++) {
        delay_queues[i].from = delay_tap(argv[2 + i]);
        delay_queues[1 - i].to = delay_queues[i].from;
        polls[i] = (struct pollfd){ .fd = delay_queues[i].from,
                                    .events = POLLIN };
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        uint64_t next = UINT64_MAX;
        struct timespec wait;

        for (int i = 0; i < 2; i++) {
            uint64_t ns;

            delay_take(&delay_queues[i]);
            ns = delay_give(&delay_queues[i]);
            next = ns < next ? ns : next;
        }
        wait.tv_sec = 0;
        wait.tv_nsec = next < 1000000000u ? (long)next : 999999999;
        ppoll(polls, 2, &wait, NULL);
    }
}
