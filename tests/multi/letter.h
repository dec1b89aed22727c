/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Messages made from a number: both ends make the same one, so every byte,
 * length and count can be checked.
 */
#ifndef TPX_LETTER_H
#define TPX_LETTER_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/tp.h"

/* How big they get. */
enum tpx_letter_kind {
    TPX_SMALL,                 /* up to some KiB, few buffers */
    TPX_MIXED,                 /* all sizes, now and then MiB or 1000 buffers */
    TPX_BIG                    /* hundreds of KiB to MiB */
};

struct tpx_letter {
    tp_message message;
    uint64_t seed;
    unsigned char *data;       /* all buffers, one after the other */
    size_t data_length;
    unsigned char *metadata;   /* all metadata likewise */
    size_t metadata_length;
};

/* The whole message, to be written. */
struct tpx_letter *tpx_letter_make(uint64_t seed, enum tpx_letter_kind kind);

/* Checks the skeleton against the letter of that seed, and gives its buffers
 * memory.  tpx_letter_check() looks at the bytes that came. */
struct tpx_letter *tpx_letter_expect(uint64_t seed, enum tpx_letter_kind kind,
                                     tp_message *skeleton);
void tpx_letter_check(const struct tpx_letter *letter);

void tpx_letter_free(struct tpx_letter *letter);

#endif
