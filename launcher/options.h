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

enum tpl_option_id {
#define TPL_OPTION(id, name, letter, argument, text) TPL_OPT_##id,
#include "launcher/options.def"
#undef TPL_OPTION
    TPL_OPT_COUNT
};

struct tpl_options {
    int ranks;
    bool tag, keep_going, verbose, help, version;
    uint64_t timeout;              /* nanoseconds; 0: no limit */
    const char *timeout_text;      /* as the user wrote it */
    enum tpt_bind bind;
    const char *wdir;              /* NULL: stay */
    const char *engine, *host, *hostfile;      /* NULL: not said */
    bool dry_run;
    bool given[TPL_OPT_COUNT];     /* what was on the command line */
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

/* "--bind-to": how messages call an option. */
const char *tpl_option_name(enum tpl_option_id id);

/* What --help prints; the caller calls tpb_text_fini(). */
void tpl_options_help(struct tpb_text *text);

#endif
