/* SPDX-License-Identifier: BSD-3-Clause */
/* Which way buffers go between two devices, by size. */
#include "config.h"

#include "topology/devices.h"
#include "topology/private.h"

static bool routes_direct(const struct tpt_way *way)
{
    return way->possible && way->from_bytes != UINT64_MAX
           && strcmp(way->name, TPT_STAGED) != 0;
}

/* From which size on `wide`, which begins later, takes less time. */
static uint64_t routes_crossing(uint64_t latency_ns, uint64_t megabytes,
                                uint64_t wide_latency_ns,
                                uint64_t wide_megabytes)
{
    uint64_t bytes = (wide_latency_ns - latency_ns) * megabytes
                     / (wide_megabytes - megabytes);

    return bytes > UINT64_MAX / wide_megabytes ? UINT64_MAX
           : bytes * wide_megabytes / 1000;
}

bool tpt_device_sooner(uint64_t latency_ns, uint64_t megabytes,
                       uint64_t than_latency_ns, uint64_t than_megabytes,
                       uint64_t bytes)
{
    if (latency_ns < than_latency_ns && megabytes < than_megabytes)
        return bytes < routes_crossing(latency_ns, megabytes, than_latency_ns,
                                       than_megabytes);
    if (latency_ns > than_latency_ns && megabytes > than_megabytes)
        return bytes >= routes_crossing(than_latency_ns, than_megabytes,
                                        latency_ns, megabytes);
    return latency_ns < than_latency_ns || megabytes > than_megabytes;
}

/* The way of that many bytes; -1: none is allowed. */
static int routes_way(const struct tpt_device_plan *plan, uint64_t bytes)
{
    int best = -1;

    for (uint32_t i = 0; i < plan->count; i++) {
        const struct tpt_way *way = &plan->ways[i];
        const struct tpt_way *than = best < 0 ? NULL : &plan->ways[best];

        if (!routes_direct(way) || way->from_bytes > bytes)
            continue;
        if (than == NULL
            || tpt_device_sooner(way->latency_ns, way->megabytes,
                                 than->latency_ns, than->megabytes, bytes))
            best = (int)i;
    }
    for (uint32_t i = 0; best < 0 && i < plan->count; i++)
        if (plan->ways[i].possible
            && strcmp(plan->ways[i].name, TPT_STAGED) == 0)
            best = (int)i;
    return best;
}

static uint64_t routes_least(uint64_t size, uint64_t after, uint64_t least)
{
    return size > after && size < least ? size : least;
}

/* The next size after `bytes` where another way may begin. */
static uint64_t routes_next(const struct tpt_device_plan *plan, uint64_t bytes)
{
    uint64_t next = UINT64_MAX;

    for (uint32_t i = 0; i < plan->count; i++) {
        const struct tpt_way *x = &plan->ways[i];

        if (!routes_direct(x))
            continue;
        next = routes_least(x->from_bytes, bytes, next);
        for (uint32_t j = 0; j < plan->count; j++) {
            const struct tpt_way *y = &plan->ways[j];

            if (routes_direct(y) && x->latency_ns < y->latency_ns
                && x->megabytes < y->megabytes)
                next = routes_least(routes_crossing(
                    x->latency_ns, x->megabytes, y->latency_ns, y->megabytes),
                    bytes, next);
        }
    }
    return next;
}

size_t tpt_device_routes(const struct tpt_device_plan *plan,
                         struct tpt_device_route routes[TPT_DEVICE_ROUTES])
{
    uint64_t bytes = TPT_DEVICE_LEAST;
    size_t count = 0;

    for (; bytes != UINT64_MAX && count < TPT_DEVICE_ROUTES;
         bytes = routes_next(plan, bytes)) {
        int way = routes_way(plan, bytes);

        if (count == 0 || routes[count - 1].way != way)
            routes[count++] = (struct tpt_device_route) { bytes, way };
    }
    return count;
}
