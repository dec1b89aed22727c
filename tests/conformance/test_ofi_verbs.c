/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite over ofi:verbs, where there is an RDMA device. */
#include "config.h"

#include "tests/conformance/ofi.h"

int main(void)
{
    static const struct tpx_target target = {
        .name = "ofi:verbs", .listening = tpx_ofi_listening
    };

    return tpx_conform(&target);
}
