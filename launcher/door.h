/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What helps ranks whose network namespace is not tprun's: sockets that were
 * made in ours, see runtime/base/door.h, and cards for those whom PMIx, which
 * speaks TCP, does not reach.
 */
#ifndef TPL_DOOR_H
#define TPL_DOOR_H

#include "launcher/loop.h"
#include "launcher/pmix_server.h"

/* Puts TP_DOOR into the environment.  Without it (no Unix sockets) ranks in
 * namespaces of their own do without, and say so. */
void tpl_door_open(int ranks);
void tpl_door_watch(struct tpl_loop *loop, tpl_pmix_fn *fn);
/* A fresh pair for the next rank, close-on-exec, at the descriptors that
 * TP_DOOR names; -1: there are none. */
void tpl_door_next(int doors[2]);
/* A rank has left by way of PMIx: for those who ask here. */
void tpl_door_left(int rank);
/* Works off what has arrived by now. */
void tpl_door_dispatch(void);
void tpl_door_close(struct tpl_loop *loop);

#endif
