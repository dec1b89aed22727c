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

/* Memory for tensors, if not the CPU's: for programs that run the suites with
 * devices. */
struct tpx_letter_memory {
    /* Sets data, device and stream of the tensor, whose length is set and not
     * 0; `bytes` is what shall be in it, NULL: nothing yet. */
    void (*take)(tp_tensor *tensor, const void *bytes, uint64_t choice);
    /* Where its bytes are to be seen, once its stream is through. */
    void (*look)(const tp_tensor *tensor, void *bytes);
    void (*give)(tp_tensor *tensor);
};
/* NULL: the CPU's. */
extern const struct tpx_letter_memory *tpx_letter_memory;

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
