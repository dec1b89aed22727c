/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A plug-in that uses libtp, played by libtp itself, and is unloaded while its
 * context is still there: the context's thread ran in memory that was gone.
 *
 *   unloaded LIBTP
 */
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include "runtime/tp.h"

static tp_context *unloaded_context;

/* ISO C has no cast from an object's pointer to a function's. */
static tp_status unloaded_init(void *symbol)
{
    tp_status (*init)(const tp_options *, tp_context **);

    *(void **)&init = symbol;
    return init(NULL, &unloaded_context);
}

int main(int argc, char **argv)
{
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;

    if (library == NULL) {
        fprintf(stderr, "unloaded: %s\n", argc > 1 ? dlerror() : "LIBTP?");
        return 2;
    }
    if (unloaded_init(dlsym(library, "tp_init")) != TP_OK)
        return 3;
    dlclose(library);
    if (dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) == NULL) {
        fprintf(stderr, "unloaded: libtp is gone, and its thread runs\n");
        return 1;
    }
    usleep(100000);                /* it looks around a few times */
    return 0;
}
