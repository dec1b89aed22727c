/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Does the libpmix that was found at run time fit?  Distributions keep one
 * soname over several of its versions, so the loader lets any in.
 */
#include "config.h"

#include <stdio.h>

#include "launcher/pmix_private.h"

enum { VERSION_MAJOR = 4, VERSION_MINOR = 2 };     /* the least that does */

const char *tpl_pmix_version(void)
{
    return PMIx_Get_version();
}

tp_status tpl_pmix_check(struct tpb_error *error)
{
    const char *found = PMIx_Get_version();
    const char *digits = found + strcspn(found, "0123456789");
    int major = 0, minor = 0;

    if (sscanf(digits, "%d.%d", &major, &minor) == 2
        && (major > VERSION_MAJOR
            || (major == VERSION_MAJOR && minor >= VERSION_MINOR)))
        return TP_OK;
    return tpb_fail(error, TP_ERR_BACKEND,
                    "the libpmix found here is %.*s, tp was built with "
                    "%ld.%ld.%ld and needs %d.%d or newer: install that, or "
                    "put its folder first in LD_LIBRARY_PATH",
                    (int)strcspn(digits, " ,"), digits, PMIX_VERSION_MAJOR,
                    PMIX_VERSION_MINOR, PMIX_VERSION_RELEASE, VERSION_MAJOR,
                    VERSION_MINOR);
}
