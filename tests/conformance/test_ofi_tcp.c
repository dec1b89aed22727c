/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite over ofi:tcp. */
#include "config.h"

#include "tests/conformance/ofi.h"

int main(void)
{
    static const struct tpx_target target = {
        .name = "ofi:tcp", .listening = tpx_ofi_listening,
        .lands = true
    };

    return tpx_conform(&target);
}
