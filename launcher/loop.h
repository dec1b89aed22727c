/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The launcher's one loop: descriptors to watch and moments to wait for.
 * Everything that tprun does after start-up happens in a callback from here,
 * on the main thread.  With no timer set the loop sleeps without a limit, so
 * an idle job costs nothing.
 */
#ifndef TPL_LOOP_H
#define TPL_LOOP_H

#include <sys/epoll.h>

#include "runtime/base/base.h"
#include "runtime/base/list.h"

/*
 * One descriptor.  The memory is its owner's and stays valid for as long as
 * the loop turns: an event that was already fetched may still name it.
 */
struct tpl_watch {
    int fd;                        /* -1: never watched */
    uint32_t events;               /* EPOLL*; 0: not watched now */
    void (*ready)(struct tpl_watch *watch, uint32_t events);
};

/* A moment (tpb_now()); fires once. */
struct tpl_timer {
    struct tpb_list node;
    uint64_t at;                   /* 0: not set */
    bool patient;                  /* found long after it was due, this process
                                      was stopped, as perhaps were the ranks:
                                      they get as long again, up to seconds */
    bool longer;                   /* they have got that */
    void (*fire)(struct tpl_timer *timer);
};

struct tpl_loop {
    int epoll;
    int refused;                   /* errno: what comes cannot be watched, or
                                    * not be kept; the next turn fails */
    struct tpb_list timers;
};

tp_status tpl_loop_init(struct tpl_loop *loop, struct tpb_error *error);
void tpl_loop_fini(struct tpl_loop *loop);

/* Watches for `events`, or for nothing if 0; cheap if nothing changed.
 * Returns -1 with errno, EPERM for a file that cannot be watched.  If the
 * kernel has no room (ENOSPC, ENOMEM), that is `refused`. */
int tpl_watch_set(struct tpl_loop *loop, struct tpl_watch *watch,
                  uint32_t events);

/* Stops watching and closes the descriptor. */
void tpl_watch_close(struct tpl_loop *loop, struct tpl_watch *watch);

/* Sets, moves (`at` > 0) or clears (`at` == 0) a timer; zeroed is clear. */
void tpl_timer_set(struct tpl_loop *loop, struct tpl_timer *timer,
                   uint64_t at);

/* Sleeps until something happens and calls back.  SYSTEM if epoll fails;
 * SYSTEM or NO_MEMORY if something is `refused`. */
tp_status tpl_loop_turn(struct tpl_loop *loop, struct tpb_error *error);

/* The same without sleeping, for long work on the main thread. */
tp_status tpl_loop_look(struct tpl_loop *loop, struct tpb_error *error);

#endif
