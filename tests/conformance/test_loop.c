/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite over loop. */
#include "config.h"

#include "tests/conformance/suite.h"

int main(void)
{
    static const struct tpx_target target = { .name = "loop" };

    return tpx_conform(&target);
}
