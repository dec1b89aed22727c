/* SPDX-License-Identifier: BSD-3-Clause */
/* For calls that wait (drive.c). */
#ifndef TPR_DRIVE_H
#define TPR_DRIVE_H

#include "runtime/core.h"

/* Drives, or waits for who drives, until sync->over; deadline in tpb_now()
 * terms, 0 for none.  False: too late. */
bool tpr_drive(tp_context *context, struct tpr_sync *sync, uint64_t deadline);
/* ... or, without a sync, until context->delivered is not that. */
bool tpr_drive_past(tp_context *context, struct tpr_sync *sync,
                    uint64_t deadline, uint64_t delivered);
/* For a call that begins what it waits for: takes the token, and the driving.
 * False: nothing is done.  If true tpr_drive_entered() is to follow, which
 * gives both up: as tpr_drive(). */
bool tpr_drive_enter(tp_context *context);
bool tpr_drive_entered(tp_context *context, struct tpr_sync *sync,
                       uint64_t deadline);
/* How long to poll before parking, if `budget` is what pays without devices. */
uint64_t tpr_spin(const tp_context *context, uint64_t budget);
/* Where there are cpus for all: tpr_beside_sleeps(), for who is waited for.
 * To be asked before it is whether it pays to poll: a yield may take long. */
bool tpr_beside(tp_context *context, uint64_t waited, uint64_t now,
                uint64_t *gave);

#endif
