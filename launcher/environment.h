/* SPDX-License-Identifier: BSD-3-Clause */
/* The environment: what of ours is an outer launcher's, and that of one rank,
 * where it differs from that of the others. */
#ifndef TPL_ENVIRONMENT_H
#define TPL_ENVIRONMENT_H

#include "launcher/options.h"

/* Is "NAME=VALUE" what an outer tprun has told its rank, and nobody else? */
bool tpl_environment_told(const char *entry);

/* Takes an outer launcher's words out of ours: those, and PMIx's but for its
 * parameters (PMIX_MCA_*), which the user sets, too; and TP_CPUS if `cpus`. */
void tpl_environment_clear(bool cpus);

/*
 * `base` with what -x sets for this program (NULL: nothing) and with the GPUs
 * to see (NULL: as they are).  The entries stay those of `base`, as long as it
 * is not changed; without a difference the result is `base` itself.  NULL
 * without memory.
 */
char **tpl_environment_make(char **base, const struct tpl_app *app,
                            const char *gpus);

/* `base` itself is left alone. */
void tpl_environment_free(char **environment, char **base);

#endif
