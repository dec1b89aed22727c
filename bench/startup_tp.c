/* SPDX-License-Identifier: BSD-3-Clause */
/* The shortest rank: joins and leaves.  For bench/startup. */
#include <stdio.h>

#include "runtime/tp.h"

int main(void)
{
    tp_context *context;
    tp_status status = tp_init(NULL, &context);

    if (status == TP_OK)
        status = tp_finalize(context);
    if (status != TP_OK)
        fprintf(stderr, "startup_tp: %s\n", tp_strerror(status));
    return status != TP_OK;
}
