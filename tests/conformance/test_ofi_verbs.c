/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite over ofi:verbs, where there is an RDMA device. */
#include "config.h"

#include "tests/conformance/ofi.h"

extern const struct tpf_channel_kind tpf_rma;

int main(void)
{
    static const struct tpx_target target = {
        .name = "ofi:verbs", .listening = tpx_ofi_listening,
        .channel = &tpf_rma
    };

    return tpx_conform(&target);
}
