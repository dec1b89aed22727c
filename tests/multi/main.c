/* SPDX-License-Identifier: BSD-3-Clause */
/* The program of one suite; TPX_SUITE and TPX_SUITE_NAME say which. */
#include "config.h"

#include "tests/multi/harness.h"

int main(void)
{
    return tpx_multi_main(TPX_SUITE_NAME, TPX_SUITE);
}
