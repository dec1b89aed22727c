/* SPDX-License-Identifier: BSD-3-Clause */
/* The network addresses at which a listener can be found. */
#include "config.h"

#include "runtime/base/interfaces.h"
#include "runtime/base/log.h"
#include "runtime/desk.h"

TPB_LOG_COMPONENT("listener");

#define INTERFACES_TOO_MANY "%u addresses could be listened at, and %d is" \
    " the most; TP_IFACE chooses"

/* So many of loopback, as a rule one of either family, have their places where
 * there are too many others. */
enum { INTERFACES_LOCAL = 2 };

/* What is wanted of them; `loop` says whether loopback. */
struct interfaces_wish {
    const char *ifaces;
    uint8_t family;                /* 0: any */
    bool loop;
};

static bool interfaces_fits(const struct interfaces_wish *wish,
                            const struct tpb_interface *one)
{
    return one->local == wish->loop
           && (wish->family == 0 || one->family == wish->family)
           && tpb_interface_usable(one, wish->ifaces);
}

/* How many there are; up to `most` of them are added. */
static uint32_t interfaces_take(const struct tpb_interfaces *all,
                                const struct interfaces_wish *wish,
                                struct tpr_way ways[TPR_WAYS],
                                uint32_t *count, uint32_t most)
{
    uint32_t there = 0;

    for (size_t i = 0; all != NULL && i < all->count; i++) {
        const struct tpb_interface *one = &all->list[i];

        if (!interfaces_fits(wish, one))
            continue;
        there++;
        if (*count == most)
            continue;
        ways[*count] = (struct tpr_way){ .family = one->family };
        memcpy(ways[*count].address, one->address, sizeof(one->address));
        ++*count;
    }
    return there;
}

uint32_t tpr_interfaces(const char *ifaces, uint8_t family, bool local,
                        struct tpr_way ways[TPR_WAYS])
{
    const struct tpb_interfaces *all = tpb_interfaces_hold();
    struct interfaces_wish wish = { ifaces, family, true };
    uint32_t count = 0, loops = 0, others;

    if (local)
        loops = interfaces_take(all, &wish, NULL, &count, 0);
    wish.loop = false;
    others = interfaces_take(all, &wish, ways, &count, TPR_WAYS
                             - (loops < INTERFACES_LOCAL ? loops
                                : INTERFACES_LOCAL));
    wish.loop = true;
    if (local || count == 0)
        loops = interfaces_take(all, &wish, ways, &count, TPR_WAYS);
    tpb_interfaces_drop(all);
    if (others + loops > count && local)
        tpb_warn(INTERFACES_TOO_MANY, others + loops, TPR_WAYS);
    else if (others + loops > count)
        tpb_info(INTERFACES_TOO_MANY, others + loops, TPR_WAYS);
    return count;
}

static bool interfaces_loop(const struct tpr_way *way)
{
    static const uint8_t loopback[16] = { [15] = 1 };

    return way->family == 4 ? way->address[0] == 127
                            : memcmp(way->address, loopback, 16) == 0;
}

uint32_t tpr_interfaces_ours(const struct tpr_way *ways, uint32_t count)
{
    const struct tpb_interfaces *all = tpb_interfaces_hold();
    uint32_t ours = 0;

    for (uint32_t at = 0; at < count; at++) {
        bool one = interfaces_loop(&ways[at]);
        size_t length = ways[at].family == 4 ? 4 : 16;

        for (size_t i = 0; all != NULL && i < all->count && !one; i++)
            one = all->list[i].family == ways[at].family
                  && memcmp(all->list[i].address, ways[at].address, length)
                     == 0;
        ours |= (uint32_t)one << at;
    }
    tpb_interfaces_drop(all);
    return ours;
}
