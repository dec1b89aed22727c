/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite over ofi:sockets: a provider that tp knows nothing of
 * but its name, which stands for all such. */
#include "config.h"

#include <stdlib.h>

#include "tests/conformance/suite.h"

int main(void)
{
    static const struct tpx_target target = { .name = "ofi:sockets" };

    setenv("TP_TEST_FEW", "1", 0);     /* it is slow, and polled */
    return tpx_conform(&target);
}
