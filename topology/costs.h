/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The table of measured costs, as `tpperf --calibrate` writes it: a file per
 * kind of machine.  A rank puts its own table's figures on its card, so that
 * both sides of a pair compute with the same.
 */
#ifndef TPT_COSTS_H
#define TPT_COSTS_H

#include "runtime/base/settings.h"
#include "topology/card.h"

struct tpt_costs_row {
    char backend[TPT_NAME];
    struct tpt_cost cost[TPT_LOCALITIES];   /* by enum tpt_locality, of
                                               "cuda_..." by enum tpt_path; 0,
                                               0: not measured */
};

struct tpt_costs {
    uint32_t count;                /* 0: nothing was measured */
    char when[32];                 /* "2026-11-21T12:00:00Z", or "" */
    struct tpt_costs_row rows[TPT_BACKENDS];
};

/*
 * The file for machines of that topology hash, as TP_COSTS says.  Fails with
 * NOT_FOUND and words if there shall be none ("none") or it cannot be said
 * where (no home).  The caller frees *path with tpb_free().
 */
tp_status tpt_costs_path(const struct tpb_settings *settings, uint64_t hash,
                         char **path, struct tpb_error *error);

/*
 * Reads it.  No file: OK, and a count of 0; but NOT_FOUND, with words, if the
 * user names a folder that does not exist.  Anything that is not such a table
 * of a version we know is INVALID, with words, and *costs has a count of 0: go
 * on with the model.
 */
tp_status tpt_costs_load(const struct tpb_settings *settings, uint64_t hash,
                         struct tpt_costs *costs, struct tpb_error *error);

/*
 * Writes it, making the folder if need be.  Readers see the old file or the
 * new one, whatever happens meanwhile.  `costs->when` is not used: it is now.
 */
tp_status tpt_costs_save(const struct tpb_settings *settings, uint64_t hash,
                         const char *host, const struct tpt_costs *costs,
                         struct tpb_error *error);
/* Could it be written, as far as can be seen before there are any figures?
 * Makes the folder, too. */
tp_status tpt_costs_try(const struct tpb_settings *settings, uint64_t hash,
                        struct tpb_error *error);

/* Puts the figures on the backend if some are about it, or on all of a card. */
void tpt_costs_put(const struct tpt_costs *costs,
                   struct tpt_backend_card *backend);
void tpt_costs_apply(const struct tpt_costs *costs, struct tpt_card *card);

/* The table for the machine of the card's place, with a count of 0 if there is
 * none, to be freed with tpb_free(); NULL without memory.  One that is not used
 * is told as a warning by rank 0, as information by the others. */
struct tpt_costs *tpt_costs_for(const struct tpb_settings *settings,
                                const struct tpt_card *card);

/* The row of a backend, made if there is none; NULL: no room, or no name. */
struct tpt_costs_row *tpt_costs_row(struct tpt_costs *costs,
                                    const char *backend);

#endif
