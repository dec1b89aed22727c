/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a broken path contract does beyond this rank: the peer is told, and the
 * job may end.
 */
#ifndef TPR_CONTRACT_H
#define TPR_CONTRACT_H

#include "runtime/core.h"

/* Does a broken contract end the job (TP_REQUIRE_ABORT), and is told then? */
static inline bool tpr_contract_ends_job(const tp_context *context)
{
    return context->settings.number[TPB_SET_REQUIRE_ABORT] != 0;
}

/*
 * TP_REQUIRE cannot be kept for that peer; `why` names what stands in the way
 * and the remedy.  Token.  Logs it; or, with TP_REQUIRE_ABORT, lets the job
 * end by it, as tp_abort() would, but not at once: the operations' callbacks
 * come first.
 */
void tpr_contract_broken(const struct tpr_peer *peer, const char *why);

/* hello.c: tells a peer that is connected that this rank gives the pair up, and
 * why, if there is room for a frame; the caller ends it. */
void tpr_hello_part(struct tpr_peer *peer, const char *words);
/* What came with a BYE: that, or nothing if the peer leaves. */
void tpr_hello_bye(struct tpr_peer *peer, const void *words, size_t length);

/* Its callbacks have run.  Does not return if its contract was broken and the
 * job is to end by that. */
void tpr_contract_leave(const tp_context *context);

#endif
