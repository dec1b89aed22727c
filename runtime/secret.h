/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Proofs that both sides know the same secret, by HMAC-SHA-256 (RFC 2104, as
 * libnettle computes it).  The secret itself never leaves the process.
 */
#ifndef TPR_SECRET_H
#define TPR_SECRET_H

#include "runtime/base/base.h"
#include "runtime/base/settings.h"

enum { TPR_MAC = 32, TPR_SECRET_TEXT = 1024 };

/* What a proof covers, one piece after the other, each with its length, so
 * that two lists of pieces are never the same bytes. */
struct tpr_piece {
    const void *data;
    size_t length;
};

/* In a process before its first proof, however often; what failed is tried
 * again.  NOT_SUPPORTED, with words, without libnettle. */
tp_status tpr_secret_open(struct tpb_error *error);

/* `purpose` keeps the proofs of the two sides, and keys, apart. */
void tpr_secret_mac(const char *secret, const char *purpose,
                    const struct tpr_piece *pieces, size_t count,
                    uint8_t mac[TPR_MAC]);

/*
 * The secret of TP_SECRET, read from its file if it says file:PATH, without
 * the newline at its end; "" if there is none.  NOT_FOUND or INVALID, with
 * words, if the file cannot be read, or is empty, too long or open to others.
 */
tp_status tpr_secret_get(const struct tpb_settings *settings,
                         char secret[TPR_SECRET_TEXT],
                         struct tpb_error *error);

#endif
