/* SPDX-License-Identifier: BSD-3-Clause */
/* The environment of one rank, where it differs from that of the others. */
#ifndef TPL_ENVIRONMENT_H
#define TPL_ENVIRONMENT_H

#include "launcher/options.h"

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
