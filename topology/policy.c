/* SPDX-License-Identifier: BSD-3-Clause */
/* What the user allows, looked at before any pair is scored. */
#include "config.h"

#include <stdio.h>

#include "runtime/base/log.h"
#include "topology/devices.h"
#include "topology/private.h"

TPB_LOG_COMPONENT("topology");

/* "shm, ofi:tcp": what the card has. */
static void policy_names(const struct tpt_card *card, char *names, size_t size)
{
    size_t used = 0;

    names[0] = '\0';
    for (uint32_t i = 0; i < card->backend_count && used < size; i++)
        used += (size_t)snprintf(names + used, size - used, "%s%s",
                                 i == 0 ? "" : ", ", card->backends[i].name);
}

static void policy_warn(const char *variable, const char *name, size_t length,
                        const struct tpt_card *card)
{
    const char *words[TPT_BACKENDS], *nearest;
    char names[256], wrong[TPB_NEAR];

    for (uint32_t i = 0; i < card->backend_count; i++)
        words[i] = card->backends[i].name;
    snprintf(wrong, sizeof(wrong), "%.*s", (int)length, name);
    nearest = tpb_nearest(wrong, words, card->backend_count);
    policy_names(card, names, sizeof(names));
    tpb_warn("%s: no backend here is called \"%.*s\"%s%s%s%s; there are %s",
             variable, (int)length, name,
             strpbrk(wrong, " ;") != NULL ? " (commas go between names)" : "",
             nearest != NULL ? ": did you mean " : "",
             nearest != NULL ? nearest : "", nearest != NULL ? "?" : "",
             names);
}

void tpt_policy_check_names(const char *variable, const char *list,
                            const struct tpt_card *card)
{
    list += *list == '^';
    while (*list != '\0') {
        size_t length = strcspn(list, ",");
        bool known = length == 0;

        for (uint32_t i = 0; i < card->backend_count; i++)
            known |= tpt_name_within(list, length, card->backends[i].name);
        if (!known && card->rank == 0)
            policy_warn(variable, list, length, card);
        list += length;
        list += *list == ',';
    }
}

bool tpt_policy_lists(const char *list, const char *name)
{
    return tpb_list_allows(list, name) || tpt_policy_spares(list, name);
}

bool tpt_policy_spares(const char *list, const char *name)
{
    return strcmp(name, TPT_STAGED) == 0 && list != NULL && *list != '^'
           && !tpb_list_allows(list, name);
}

/* A build with libfabric shows one of its providers at least on every card. */
bool tpt_policy_names(const char *name, const struct tpt_card *card)
{
    static const char *const built[] = { "ofi:tcp", "ofi:verbs", "ofi:shm" };
    bool has = false;

    if (strncmp(name, TPT_PROVIDER, sizeof(TPT_PROVIDER) - 1) != 0)
        return false;
    for (size_t i = 0; i < TPB_COUNT(built); i++)
        if (strcmp(name, built[i]) == 0)
            return false;
    for (uint32_t i = 0; i < card->backend_count; i++)
        has |= strncmp(card->backends[i].name, TPT_PROVIDER,
                       sizeof(TPT_PROVIDER) - 1) == 0;
    return has;
}

tp_status tpt_policy_check(const struct tpt_policy *policy,
                           const struct tpt_card *card,
                           struct tpb_error *error)
{
    struct tpt_known known[TPT_BACKENDS];

    for (uint32_t i = 0; i < card->backend_count; i++)
        known[i] = (struct tpt_known) {
            card->backends[i].name, (enum tpt_role)card->backends[i].role,
            card->backends[i].devices != 0
        };
    if (policy->backends != NULL)
        tpt_policy_check_names("TP_BACKENDS", policy->backends, card);
    return tpt_require_check(policy->require, known, card->backend_count,
                             error);
}
