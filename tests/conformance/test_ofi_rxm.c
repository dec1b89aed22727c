/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite over a provider that fetches long datagrams by itself:
 * they may be whole after shorter ones that were sent later. */
#include "config.h"

#include <stdlib.h>

#include "tests/conformance/suite.h"

int main(void)
{
    static const struct tpx_target target = { .name = "ofi:tcp;ofi_rxm" };

    setenv("TP_TEST_FEW", "1", 0);     /* it is slow, and polled */
    return tpx_conform(&target);
}
