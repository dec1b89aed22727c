/* SPDX-License-Identifier: BSD-3-Clause */
/* The shortest PMIx client: what no rank can be faster than. */
#include <pmix.h>

#include <stdio.h>

int main(void)
{
    pmix_proc_t me;
    pmix_status_t status = PMIx_Init(&me, NULL, 0);

    if (status == PMIX_SUCCESS)
        status = PMIx_Finalize(NULL, 0);
    if (status != PMIX_SUCCESS)
        fprintf(stderr, "startup_pmix: %s\n", PMIx_Error_string(status));
    return status != PMIX_SUCCESS;
}
