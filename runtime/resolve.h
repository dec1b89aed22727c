/* SPDX-License-Identifier: BSD-3-Clause */
/* Names of hosts to addresses. */
#ifndef TPR_RESOLVE_H
#define TPR_RESOLVE_H

#include "runtime/address.h"

/* The addresses of `host`.  NOT_FOUND, with words.  Blocks if it is a name and
 * `names` is true; else INVALID comes back for a name. */
tp_status tpr_resolve(const char *host, uint16_t port, bool names,
                      struct tpr_way ways[TPR_WAYS], uint32_t *count,
                      struct tpb_error *error);

/* A look-up in a thread of its own, so that nobody waits for a name server. */
struct tpr_resolve;
/* *fd becomes readable when it is done; it belongs to the look-up.  NULL with
 * errno. */
struct tpr_resolve *tpr_resolve_start(const char *host, uint16_t port, int *fd);
tp_status tpr_resolve_result(const struct tpr_resolve *resolve,
                             struct tpr_way ways[TPR_WAYS], uint32_t *count,
                             struct tpb_error *error);
/* Also while it is under way; NULL is allowed. */
void tpr_resolve_drop(struct tpr_resolve *resolve);

#endif
