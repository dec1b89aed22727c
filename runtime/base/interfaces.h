/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The network addresses of this host: asked of the kernel in one place, and
 * while somebody holds the answer not asked again.
 */
#ifndef TPB_INTERFACES_H
#define TPB_INTERFACES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/base.h"

enum { TPB_INTERFACE_NAME = 16 };  /* IFNAMSIZ */

/* One address, and the interface that it hangs on. */
struct tpb_interface {
    char name[TPB_INTERFACE_NAME];
    uint8_t family;                /* 4 or 6 */
    uint8_t address[16];           /* of IPv4 the first four bytes */
    uint8_t mask[16];              /* ones for the bits of its network */
    bool up;                       /* ... and the link is there */
    bool local;                    /* loopback: does not leave the host */
    bool bridge;                   /* such as docker0 and virbr0 */
    uint32_t megabits;             /* as the driver says; 0: unknown */
};

struct tpb_interfaces {
    size_t count;
    struct tpb_interface list[];   /* in the kernel's order */
};

/*
 * The addresses of the caller's network namespace.  All that hold them at the
 * same time see the same ones, as the first found them: tp_init() holds them
 * for as long as it lasts.  NULL with errno.  Any thread.
 */
const struct tpb_interfaces *tpb_interfaces_hold(void);
/* The same, but if nobody holds them yet they are these, unless `list` is
 * NULL. */
const struct tpb_interfaces *
tpb_interfaces_hold_known(const struct tpb_interface *list, size_t count);
void tpb_interfaces_drop(const struct tpb_interfaces *interfaces);

/* Why there is none that is usable, in words; returns `status`. */
tp_status tpb_interfaces_none(const char *allowed, tp_status status,
                              struct tpb_error *error);

/* Can other processes be told of it?  Up, allowed by the list of TP_IFACE
 * (`allowed`), and not link-local: such an address means nothing without the
 * name of an interface of the one who uses it. */
bool tpb_interface_usable(const struct tpb_interface *interface,
                          const char *allowed);

#endif
