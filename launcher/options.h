/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The command line of tprun.  One table (options.def) makes the parser, the
 * help text and what tests compare with the manual page.
 */
#ifndef TPL_OPTIONS_H
#define TPL_OPTIONS_H

#include "runtime/base/base.h"
#include "topology/bind.h"

#define TPL_RANKS_MAX 65536

struct tpl_options {
    int ranks;
    bool tag, keep_going, verbose, help, version;
    uint64_t timeout;              /* nanoseconds; 0: no limit */
    const char *timeout_text;      /* as the user wrote it */
    enum tpt_bind bind;
    const char *wdir;              /* NULL: stay */
    char **program;                /* argv of the ranks, NULL-terminated */
};

/*
 * Reads the command line; stops at the program, whose arguments are never
 * looked at.  -x, --explain and --require go into this process's environment
 * at once.  Strings point into argv.  INVALID with words otherwise.
 */
tp_status tpl_options_parse(int argc, char **argv,
                            struct tpl_options *options,
                            struct tpb_error *error);

/* What --help prints; the caller calls tpb_text_fini(). */
void tpl_options_help(struct tpb_text *text);

#endif
