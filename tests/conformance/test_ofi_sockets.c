/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite over ofi:sockets: a provider that tp knows nothing of
 * but its name, which stands for all such. */
#include "config.h"

#include <stdlib.h>

#include "tests/conformance/suite.h"

/* The provider loses what it has made when it runs out of descriptors half way.
 * Asked for by LeakSanitizer, if the program is built with it. */
__attribute__((__visibility__("default")))
const char *__lsan_default_suppressions(void);

const char *__lsan_default_suppressions(void)
{
    return "leak:libfabric.so";
}

int main(void)
{
    static const struct tpx_target target = { .name = "ofi:sockets" };

    setenv("TP_TEST_FEW", "1", 0);     /* it is slow, and polled */
    return tpx_conform(&target);
}
