/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The conformance suite: what fabric/backend.h promises, as tests that every
 * transport passes.  A backend joins with a program of ten lines:
 *
 *     int main(void)
 *     {
 *         static const struct tpx_target target = { .name = "loop" };
 *
 *         return tpx_conform(&target);
 *     }
 */
#ifndef TPX_SUITE_H
#define TPX_SUITE_H

#include <sys/socket.h>

#include "fabric/channel.h"
#include "tests/conformance/side.h"

struct tpx_target {
    const char *name;              /* as in tpf_backends */

    /* May be NULL.  The listening sockets that any stranger can reach, found
     * in a published address; returns how many, at most `capacity`. */
    int (*listening)(const void *address, size_t length,
                     struct sockaddr_storage *sockets, int capacity);

    /* May be NULL.  How many things with a name (files, sockets) the process
     * `pid`, which is dead, has left behind. */
    int (*left_behind)(pid_t pid);

    /* Who is killed in a call may leave a lock that its peers wait for. */
    bool locks;

    /* Its long frames land, where the core says where. */
    bool lands;

    /* May be NULL.  A channel that goes over its conns. */
    const struct tpf_channel_kind *channel;

    /* May be NULL.  Adds tests of its own. */
    void (*more)(Suite *suite);
};

/* Runs the suite; what main() returns.  A backend that cannot work on this
 * machine is skipped with the reason that its probe gives. */
int tpx_conform(const struct tpx_target *target);

/* Parts of it, each in a file of its own; suite.c calls them. */
extern const struct tpx_target *tpx_target;
extern const struct tpf_backend *tpx_backend;
void tpx_add_frame_tests(Suite *suite);         /* suite_frames.c */
void tpx_add_life_tests(Suite *suite);          /* suite_life.c */
void tpx_add_stranger_tests(Suite *suite);      /* suite_strangers.c */

/* A new test case with the suite's time limit. */
TCase *tpx_tcase(Suite *suite, const char *name);

#endif
