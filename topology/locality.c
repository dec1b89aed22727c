/* SPDX-License-Identifier: BSD-3-Clause */
/* What two ranks share, and what it costs. */
#include "config.h"

#include "topology/private.h"

/*
 * The costs are those of moving the two or three cache lines of a small
 * message, beyond what the backend's own figure (two cores on one L3) holds,
 * and the share of the bandwidth that is left.  They are orders of magnitude
 * for server processors, assumed and not measured; they are the same for every
 * backend of a host, so they decide nothing between these.
 */
static const struct {
    const char *name, *class;
    uint16_t latency, percent;
} locality_table[] = {
    [TPT_SAME_PROCESS] = { "same process", "self", 0, 100 },
    [TPT_SAME_CORE] = { "same core", "node", 0, 100 },
    [TPT_SAME_L2] = { "same L2", "node", 0, 100 },
    [TPT_SAME_L3] = { "same L3", "node", 0, 100 },
    [TPT_SAME_NUMA] = { "same NUMA node", "node", 80, 95 },
    [TPT_SAME_PACKAGE] = { "same package", "node", 120, 85 },
    [TPT_SAME_HOST] = { "same host", "node", 300, 60 },
    [TPT_OTHER_HOST] = { "other host", "net", 0, 100 },
};

static bool locality_shared(int32_t a, int32_t b)
{
    return a == b && a >= 0;
}

enum tpt_locality tpt_locality(const struct tpt_card *a,
                               const struct tpt_card *b)
{
    const struct tpt_place *x = &a->place, *y = &b->place;

    if (memcmp(a->host.boot_id, b->host.boot_id, sizeof(a->host.boot_id)) != 0)
        return TPT_OTHER_HOST;
    if (memcmp(a->instance, b->instance, sizeof(a->instance)) == 0)
        return TPT_SAME_PROCESS;
    if (x->topology != y->topology)
        return TPT_SAME_HOST;
    if (locality_shared(x->core, y->core))
        return TPT_SAME_CORE;
    if (locality_shared(x->l2, y->l2))
        return TPT_SAME_L2;
    if (locality_shared(x->l3, y->l3))
        return TPT_SAME_L3;
    if (locality_shared(x->numa, y->numa))
        return TPT_SAME_NUMA;
    if (locality_shared(x->package, y->package))
        return TPT_SAME_PACKAGE;
    return TPT_SAME_HOST;
}

const char *tpt_locality_name(enum tpt_locality locality)
{
    return locality_table[locality].name;
}

const char *tpt_locality_class(enum tpt_locality locality)
{
    return locality_table[locality].class;
}

struct tpt_cost tpt_model_cost(const struct tpt_backend_card *backend,
                               enum tpt_locality locality)
{
    uint64_t megabytes = (uint64_t)backend->megabytes
                         * locality_table[locality].percent / 100;

    return (struct tpt_cost) {
        backend->latency_ns + locality_table[locality].latency,
        megabytes > 0 ? (uint32_t)megabytes : 1
    };
}

uint32_t tpt_locality_latency(enum tpt_locality locality)
{
    return locality_table[locality].latency;
}

uint32_t tpt_locality_percent(enum tpt_locality locality)
{
    return locality_table[locality].percent;
}
