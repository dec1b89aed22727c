/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The command line of tprun.  One table (options.def) makes the parser, the
 * help text, what shells complete and what tests compare with the manual page.
 */
#ifndef TPL_OPTIONS_H
#define TPL_OPTIONS_H

#include "runtime/base/base.h"
#include "topology/bind.h"

#define TPL_RANKS_MAX 65536

enum tpl_option {
#define TPL_OPTION(id, name, letter, argument, flags, text) TPL_OPTION_##id,
#include "launcher/options.def"
#undef TPL_OPTION
    TPL_OPTIONS
};

enum tpl_option_flags { TPL_EACH = 1, TPL_ENGINE = 2 };

struct tpl_option_row {
    const char *name;              /* without "--"; NULL: a letter only */
    char letter;                   /* 0: a name only */
    const char *argument;          /* NULL: takes none */
    unsigned flags;                /* enum tpl_option_flags */
    const char *text;
};
extern const struct tpl_option_row tpl_option_table[TPL_OPTIONS];

/* In the order of the words in options.def. */
enum tpl_engine {
    TPL_ENGINE_AUTO, TPL_ENGINE_LOCAL, TPL_ENGINE_SLURM, TPL_ENGINE_PRRTE,
    TPL_ENGINE_OPENMPI
};

enum { TPL_STDIN_ALL = -1, TPL_STDIN_NONE = -2 };

/* One --wrap: of which ranks, and the words before the program's own. */
struct tpl_wrap {
    const char *ranks;             /* "0-3,7:..." up to the colon; NULL: all */
    const char *command;           /* as given, for engines and messages */
    char **words;                  /* NULL-terminated */
    char *path;                    /* of the command, once looked up; owned */
};

/* One program and its ranks, first .. first + ranks - 1. */
struct tpl_app {
    int first, ranks;
    int gpus;                      /* per rank; 0: not asked for */
    const char *wdir;              /* NULL: stay */
    /* Those given with -x: "NAME=VALUE"; or "NAME", which ranks inherit. */
    const char **environment;
    size_t environment_count;
    struct tpl_wrap *wraps;        /* the first that names a rank is it */
    size_t wrap_count;
    char **program;                /* argv of the ranks, NULL-terminated */
    char *path;                    /* of it, once looked up; owned */
};

struct tpl_options {
    int ranks;                     /* of all programs */
    struct tpl_app *apps;          /* at least one */
    int app_count;
    bool tag, timestamp, merge_stderr, pty;
    bool display_map, dry_run, report_bindings;
    bool keep_going, verbose, help, version;
    uint64_t timeout;              /* nanoseconds; 0: no limit */
    const char *timeout_text;      /* as the user wrote it */
    enum tpt_bind bind;
    enum tpt_map map;
    enum tpl_engine engine;
    const char *host, *hostfile;   /* NULL: not given */
    const char *output;            /* NULL: tprun's own */
    const char *completion;        /* the shell; NULL: not asked for */
    int input;                     /* a rank, or TPL_STDIN_* */
    uint64_t given;                /* bit per enum tpl_option: it was there */
};

/*
 * Reads the command line.  Each program ends at an argument ":" of its own,
 * after which options and another program follow; behind a "--" nothing is
 * looked at any more.  --explain, --require, and -x if there is one program,
 * go into this process's environment at once.  Strings point into argv, whose
 * ":" become NULL.  INVALID with words otherwise; also then the caller calls
 * tpl_options_fini().
 */
tp_status tpl_options_parse(int argc, char **argv,
                            struct tpl_options *options,
                            struct tpb_error *error);
void tpl_options_fini(struct tpl_options *options);

/* What can be checked only when the number of ranks is known, which the hosts
 * may tell: do --stdin and --wrap name ranks that there are? */
tp_status tpl_options_settle(const struct tpl_options *options,
                             struct tpb_error *error);

/* Was that option on the command line? */
static inline bool tpl_option_given(const struct tpl_options *options,
                                    enum tpl_option option)
{
    return (options->given >> option & 1) != 0;
}

/* The program of a rank, and what wraps it; NULL: nothing does. */
const struct tpl_app *tpl_options_app(const struct tpl_options *options,
                                      int rank);
const struct tpl_wrap *tpl_options_wrap(const struct tpl_app *app, int rank);

/* What --help prints; the caller calls tpb_text_fini(). */
void tpl_options_help(struct tpb_text *text);

/* What --completion prints. */
void tpl_options_complete(const char *shell, struct tpb_text *text);

/*
 * What other launchers taught people (options_habits.c).
 */

/* Is that word of the command line, with its dashes, an option that only other
 * launchers have?  INVALID with what to write instead; else OK. */
tp_status tpl_habits_check(const char *word, struct tpb_error *error);
/* The option whose long name stands behind one dash, as in "-host"; else -1. */
int tpl_habits_one_dash(const char *word);
/* What to add to the words that an option takes, if this is another launcher's
 * word for one of them; else "". */
const char *tpl_habits_word(const char *word);

/*
 * How arguments are read (options_value.c); all INVALID with words.
 */

/* "-n" or "--np": how to name the option to people. */
const char *tpl_option_name(enum tpl_option option);

/* Which of the option's words it is, from 0. */
tp_status tpl_value_word(enum tpl_option option, const char *text, int *index,
                         struct tpb_error *error);
tp_status tpl_value_number(enum tpl_option option, const char *text, int least,
                           int most, const char *what, int *number,
                           struct tpb_error *error);
/* "90", "500ms", "1.5h" in nanoseconds. */
tp_status tpl_value_time(enum tpl_option option, const char *text,
                         uint64_t *nanoseconds, struct tpb_error *error);
tp_status tpl_value_stdin(const char *text, int *rank,
                          struct tpb_error *error);
/* A contract goes into this process's environment. */
tp_status tpl_value_require(const char *text, struct tpb_error *error);
/* NAME must be in the environment, and not one that tprun sets itself. */
tp_status tpl_value_environment(const char *text, struct tpb_error *error);
/* The caller frees wrap->words with tpl_wrap_fini(). */
tp_status tpl_value_wrap(const char *text, struct tpl_wrap *wrap,
                         struct tpb_error *error);
void tpl_wrap_fini(struct tpl_wrap *wrap);
/* Is `rank` in "0-3,7"?  The list ends at a colon or at its end. */
bool tpl_value_in_ranks(const char *ranks, int rank);

#endif
