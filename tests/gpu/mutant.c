/* SPDX-License-Identifier: BSD-3-Clause */
/* Which planted fault this run has: see gpu/mutants.h. */
#include "config.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/mutants.h"

int tpg_mutant;

static const struct {
    const char *name;
    enum tpg_mutant mutant;
} mutant_names[] = {
    { "gdr_address", TPG_MUTANT_GDR_ADDRESS },
    { "gdr_no_flush", TPG_MUTANT_GDR_NO_FLUSH },
    { "gdr_no_trial", TPG_MUTANT_GDR_NO_TRIAL },
    { "gdr_no_sync", TPG_MUTANT_GDR_NO_SYNC }
};

static void __attribute__((constructor)) mutant_choose(void)
{
    const char *name = getenv("TPX_MUTANT");

    if (name == NULL)
        return;
    for (size_t i = 0; i < sizeof(mutant_names) / sizeof(mutant_names[0]); i++)
        if (strcmp(name, mutant_names[i].name) == 0)
            tpg_mutant = (int)mutant_names[i].mutant;
    if (tpg_mutant == TPG_MUTANT_NONE) {
        fprintf(stderr, "no mutant is called %s\n", name);
        abort();
    }
}
