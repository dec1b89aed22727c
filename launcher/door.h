/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * By doors ranks of ours find each other: tprun keeps their cards, hands them
 * out as soon as they are there, and tells of deaths.  They cost a rank less
 * than PMIx, and lead out of network namespaces; see runtime/base/door.h.
 */
#ifndef TPL_DOOR_H
#define TPL_DOOR_H

#include "launcher/loop.h"
#include "launcher/pmix_server.h"

/* Puts TP_DOOR into the environment.  Without it (no Unix sockets) ranks use
 * PMIx; those in namespaces of their own do without, and say so. */
void tpl_door_open(const char *job, int ranks);
/* As tpl_pmix_watch(). */
int tpl_door_watch(struct tpl_loop *loop, tpl_pmix_fn *fn);
/* A fresh pair for the next rank, close-on-exec, at the descriptors that
 * TP_DOOR names; -1: there are none. */
void tpl_door_next(int doors[2]);
/* A rank has left by way of PMIx: for those who ask here. */
void tpl_door_left(int rank);
/* A rank that has joined by way of PMIx does not get to its door: those who
 * have a door alone hear why they cannot meet it. */
void tpl_door_denied(int rank, const char *words);
/* A rank has ended in a way it should not have: all others hear of it, at once
 * or as soon as they can.  Short words, for people. */
void tpl_door_died(int rank, const char *words);
/* A rank has ended, in whatever way: those who wait for a program of it that
 * has not joined hear that it will not. */
void tpl_door_over(int rank);
/* Of a rank that has ended without one program of tp. */
extern const char tpl_door_never[];
/* Works off what has arrived by now. */
void tpl_door_dispatch(void);
void tpl_door_close(struct tpl_loop *loop);

#endif
