/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite over ofi:tcp by libfabric's provider tcp, where ofi:tcp
 * goes over another one by itself. */
#include "config.h"

#include <stdlib.h>

#include "tests/conformance/ofi.h"

int main(void)
{
    static const struct tpx_target target = {
        .name = "ofi:tcp", .listening = tpx_ofi_listening,
        .lands = true
    };

    setenv("TP_OFI_TCP", "tcp", 1);
    return tpx_conform(&target);
}
