/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * "Call me, I cannot reach you", from rank to rank by way of a PMIx server: a
 * value is published under a key that only the rank meant looks up.  Costs
 * nothing before tpr_asks_listen(), and then one message to the server.  Open
 * MPI's mpirun carries it; Slurm's PMIx does not, and says so.
 */
#ifndef TPR_BOOTSTRAP_ASKS_H
#define TPR_BOOTSTRAP_ASKS_H

#include <stdbool.h>

#include "runtime/tp.h"

struct tpr_asks;

/* For this rank's context `number` of the job `space`.  NULL: out of memory,
 * which the others take. */
struct tpr_asks *tpr_asks_open(tp_context *context, const char *space,
                               int rank, unsigned number);
/* From now on tpr_peer_asks() hears who asks.  Once it has been called it is to
 * be called here again, from any thread but libpmix's. */
void tpr_asks_listen(struct tpr_asks *asks);
/* The server has said that it carries no such words, and told who listens. */
bool tpr_asks_mute(struct tpr_asks *asks);
/* Asks a rank, which need not hear it. */
void tpr_asks_say(struct tpr_asks *asks, int rank, bool gave_up);
/* Nothing calls tpr_peer_asks() any more. */
void tpr_asks_close(struct tpr_asks *asks);

#endif
