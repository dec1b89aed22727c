/* SPDX-License-Identifier: BSD-3-Clause */
/* See environment.h. */
#include "config.h"

#include <stdio.h>
#include <unistd.h>

#include "launcher/environment.h"
#include "runtime/base/alloc.h"

/* CUDA would sort by speed otherwise; the numbers follow the bus. */
static const char environment_order[] = "CUDA_DEVICE_ORDER=PCI_BUS_ID";

bool tpl_environment_told(const char *entry)
{
    static const char *const names[] = {
        "TP_LAUNCHER=", "TP_TOPOLOGY_SHARED=", "TP_RECORD=", "TP_DOOR=",
        "TP_REPORT=", "TPRUN_RANK=",
    };

    for (size_t i = 0; i < TPB_COUNT(names); i++)
        if (strncmp(entry, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

void tpl_environment_clear(bool cpus)
{
    char **keep = environ;

    for (char **entry = environ; *entry != NULL; entry++)
        if (strncmp(*entry, "PMIX_", 5) == 0
            ? strncmp(*entry, "PMIX_MCA_", 9) == 0
            : !tpl_environment_told(*entry)
              && !(cpus && strncmp(*entry, "TP_CPUS=", 8) == 0))
            *keep++ = *entry;
    *keep = NULL;
}

/* Replaces the entry of that name, or appends; there is room. */
static void environment_set(char **environment, const char *entry)
{
    size_t length = strcspn(entry, "=") + 1, i = 0;

    while (environment[i] != NULL
           && strncmp(environment[i], entry, length) != 0)
        i++;
    environment[i] = (char *)entry;
}

char **tpl_environment_make(char **base, const struct tpl_app *app,
                            const char *gpus)
{
    size_t count = 0, more = app != NULL ? app->environment_count : 0;
    size_t room = gpus != NULL ? strlen(gpus) + 32 : 0;
    char **result, *visible;

    if (more == 0 && gpus == NULL)
        return base;
    while (base[count] != NULL)
        count++;
    /* One block: the entries, and behind them the text that is made here. */
    result = tpb_zalloc((count + more + 3) * sizeof(result[0]) + room);
    if (result == NULL)
        return NULL;
    memcpy(result, base, count * sizeof(result[0]));
    for (size_t i = 0; i < more; i++)
        if (strchr(app->environment[i], '=') != NULL)
            environment_set(result, app->environment[i]);
    if (gpus != NULL) {
        visible = (char *)(result + count + more + 3);
        snprintf(visible, room, "CUDA_VISIBLE_DEVICES=%s", gpus);
        environment_set(result, visible);
        environment_set(result, environment_order);
    }
    return result;
}

void tpl_environment_free(char **environment, char **base)
{
    if (environment != base)
        tpb_free(environment);
}
