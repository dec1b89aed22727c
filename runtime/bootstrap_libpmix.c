/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds libpmix and what is used of it. */
#include "config.h"

#include <dlfcn.h>

/* The names as strings: before the header makes them members. */
static const char *const libpmix_names[] = {
    "PMIx_Abort", "PMIx_Commit", "PMIx_Error_string", "PMIx_Finalize",
    "PMIx_Get", "PMIx_Get_nb", "PMIx_Get_version", "PMIx_Info_load",
    "PMIx_Init", "PMIx_Initialized", "PMIx_Lookup_nb", "PMIx_Publish_nb",
    "PMIx_Put", "PMIx_Register_event_handler", "PMIx_Value_destruct",
    "PMIx_Value_load",
};

#include "runtime/base/library.h"
#include "runtime/base/thread.h"
#include "runtime/bootstrap_libpmix.h"

struct tpr_pmix_calls tpr_pmix;

_Static_assert(sizeof(tpr_pmix) == sizeof(libpmix_names),
               "a name per function, in their order");

static struct tpb_once libpmix_once = TPB_ONCE_INIT;

/* Global, as if it were linked: its plug-ins rely on that. */
static void *libpmix_open(void)
{
    return tpb_library_open(PMIX_LIBRARY, PMIX_LIBRARY_PLACE,
                            RTLD_LAZY | RTLD_GLOBAL);
}

static tp_status libpmix_load(struct tpb_error *error)
{
    void *handle = libpmix_open();

    if (handle == NULL)
        return tpb_fail_load(error, TP_ERR_BACKEND, "this launcher's ranks"
                             " need " PMIX_LIBRARY ", which cannot be loaded");
    for (size_t i = 0; i < TPB_COUNT(libpmix_names); i++) {
        void *found = dlsym(handle, libpmix_names[i]);

        if (found == NULL)
            return tpb_fail_load(error, TP_ERR_BACKEND, PMIX_LIBRARY " is not"
                                 " what tp was built with, and needs 4.2 or"
                                 " newer");
        memcpy((unsigned char *)&tpr_pmix + i * sizeof(found), &found,
               sizeof(found));
    }
    return TP_OK;
}

tp_status tpr_pmix_load(struct tpb_error *error)
{
    return tpb_once(&libpmix_once, libpmix_load, error);
}
