/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Cards by way of tprun itself, see runtime/base/door.h: it costs a rank less
 * than PMIx, and reaches into network namespaces.
 */
#ifndef TPR_BROKER_H
#define TPR_BROKER_H

#include "runtime/base/door.h"
#include "runtime/base/settings.h"

struct tpr_broker;

/* `number` is that of the context.  `alone`: it does not use PMIx.  NOT_FOUND:
 * the job is not tprun's; UNREACHABLE: no way leads to it; SYSTEM or NO_MEMORY:
 * for want of descriptors or memory, of which others need some, too. */
tp_status tpr_broker_open(const struct tpb_settings *settings,
                          tp_context *context, int rank, uint32_t number,
                          bool alone, struct tpr_broker **result,
                          struct tpb_error *error);
/* Blocks for as long as tprun is busy, at most some seconds; SYSTEM. */
tp_status tpr_broker_publish(struct tpr_broker *broker, const void *blob,
                             size_t length, struct tpb_error *error);
/* Which of its rank's programs this is, from 0: after publishing.  Blocks as
 * that does; SYSTEM. */
tp_status tpr_broker_turn(struct tpr_broker *broker, uint32_t *turn,
                          struct tpb_error *error);
/* The answer comes through tpr_card_arrived(), once, or never. */
void tpr_broker_fetch(struct tpr_broker *broker, int rank);
/* Asks again for what was not there. */
void tpr_broker_poll(struct tpr_broker *broker);
/* In tp_finalize(); and whether another rank was: the answer comes through
 * tpr_rank_left(), or not in these milliseconds; 0: tprun cannot be asked. */
void tpr_broker_leave(struct tpr_broker *broker, bool losing);
unsigned tpr_broker_left(struct tpr_broker *broker, int rank);
/* A rank shall call this one; its tpr_peer_asks() hears of it.  False: tprun
 * cannot be told. */
bool tpr_broker_call(struct tpr_broker *broker, int rank, bool gave_up);
/* Ends the job, if tprun hears it. */
void tpr_broker_abort(struct tpr_broker *broker, int status,
                      const char *reason);
void tpr_broker_close(struct tpr_broker *broker);  /* NULL is allowed */

#endif
