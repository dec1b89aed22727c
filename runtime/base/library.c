/* SPDX-License-Identifier: BSD-3-Clause */
/* Libraries that are loaded, and the version of libpmix. */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/library.h"

void *tpb_library_open(const char *name, const char *place, int flags)
{
    void *handle = dlopen(name, flags);

    return handle != NULL ? handle : dlopen(place, flags);
}

bool tpb_pmix_fits(const char *version, const void *function,
                   long built_major, long built_minor,
                   struct tpb_error *error)
{
    const char *number = version + strcspn(version, "0123456789");
    int major = 0, minor = 0;
    Dl_info place = { 0 };

    if (sscanf(number, "%d.%d", &major, &minor) == 2
        && (major > 4 || (major == 4 && minor >= 2)))
        return true;
    dladdr(function, &place);
    tpb_fail(error, TP_ERR_BACKEND, "%s is version %.*s; tp %s was built with"
             " %ld.%ld and needs 4.2 or newer (is LD_LIBRARY_PATH right?)",
             place.dli_fname != NULL ? place.dli_fname : "libpmix",
             (int)strcspn(number, ", "), number, PACKAGE_VERSION, built_major,
             built_minor);
    return false;
}

bool tpb_pmix_homeless(void)
{
    enum { ENTRY = 16384 };
    struct passwd user, *found = NULL;
    char *text;
    int code = ERANGE;

    if (getenv("HOME") != NULL)
        return false;
    text = tpb_zalloc(ENTRY);
    if (text != NULL)
        code = getpwuid_r(geteuid(), &user, text, ENTRY, &found);
    tpb_free(text);
    /* An entry that is longer is one. */
    return found == NULL && code != ERANGE;
}
