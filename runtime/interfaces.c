/* SPDX-License-Identifier: BSD-3-Clause */
/* The network addresses at which a listener can be found. */
#include "config.h"

#include "runtime/base/interfaces.h"
#include "runtime/desk.h"

uint32_t tpr_interfaces(const char *ifaces, bool local,
                        struct tpr_way ways[TPR_WAYS])
{
    const struct tpb_interfaces *all = tpb_interfaces_hold();
    uint32_t count = 0;

    for (int loop = 0; loop <= 1; loop++) {
        if (loop != 0 && count > 0 && !local)
            break;
        for (size_t i = 0; all != NULL && i < all->count && count < TPR_WAYS;
             i++) {
            const struct tpb_interface *one = &all->list[i];

            if (one->local != (loop != 0)
                || !tpb_interface_usable(one, ifaces))
                continue;
            ways[count] = (struct tpr_way){ .family = one->family };
            memcpy(ways[count].address, one->address,
                   sizeof(ways[count].address));
            count++;
        }
    }
    tpb_interfaces_drop(all);
    return count;
}
