/* SPDX-License-Identifier: BSD-3-Clause */
/* The command line, from the table in options.def. */
#include "config.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "launcher/options.h"
#include "runtime/base/alloc.h"
#include "runtime/base/settings.h"

enum { EACH = TPL_EACH, ENGINE = TPL_ENGINE };

const struct tpl_option_row tpl_option_table[TPL_OPTIONS] = {
#define TPL_OPTION(id, name, letter, argument, flags, text) \
    [TPL_OPTION_##id] = { name, letter, argument, flags, text },
#include "launcher/options.def"
#undef TPL_OPTION
};
_Static_assert(TPL_OPTIONS <= 64, "options do not fit into `given`");

/* Long options carry their row in `val`, above every letter. */
enum { OPTION_LONG = 1000 };

/* Builds what getopt wants.  "+" stops at the program, ":" keeps getopt from
 * printing. */
static void options_tables(char letters[2 * TPL_OPTIONS + 3],
                           struct option longs[TPL_OPTIONS + 1])
{
    size_t used = 0;

    letters[used++] = '+';
    letters[used++] = ':';
    for (int i = 0; i < TPL_OPTIONS; i++) {
        const struct tpl_option_row *row = &tpl_option_table[i];

        if (row->letter != 0) {
            letters[used++] = row->letter;
            if (row->argument != NULL)
                letters[used++] = ':';
        }
        if (row->name != NULL)
            *longs++ = (struct option){
                row->name,
                row->argument != NULL ? required_argument : no_argument,
                NULL, OPTION_LONG + i
            };
    }
    letters[used] = '\0';
    *longs = (struct option){ NULL, 0, NULL, 0 };
}

/* The row behind what getopt returned; -1 if there is none. */
static int options_row(int code)
{
    if (code >= OPTION_LONG && code < OPTION_LONG + TPL_OPTIONS)
        return code - OPTION_LONG;
    for (int i = 0; i < TPL_OPTIONS; i++)
        if (tpl_option_table[i].letter != 0
            && tpl_option_table[i].letter == code)
            return i;
    return -1;
}

static tp_status options_add_environment(struct tpl_app *app,
                                         const char *text,
                                         struct tpb_error *error)
{
    const char **list;
    tp_status status = tpl_value_environment(text, error);

    if (status != TP_OK)
        return status;
    list = tpb_resize(app->environment,
                      (app->environment_count + 1) * sizeof(list[0]));
    if (list == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    list[app->environment_count++] = text;
    app->environment = list;
    return TP_OK;
}

static tp_status options_add_wrap(struct tpl_app *app, const char *text,
                                  struct tpb_error *error)
{
    struct tpl_wrap *list =
        tpb_resize(app->wraps, (app->wrap_count + 1) * sizeof(list[0]));
    tp_status status;

    if (list == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    app->wraps = list;
    status = tpl_value_wrap(text, &list[app->wrap_count], error);
    app->wrap_count += status == TP_OK;
    return status;
}

/* Options of one program. */
static tp_status options_apply_each(enum tpl_option id, const char *argument,
                                    struct tpl_app *app,
                                    struct tpb_error *error)
{
    switch (id) {
    case TPL_OPTION_RANKS:
        return tpl_value_number(id, argument, 1, TPL_RANKS_MAX, "of ranks",
                                &app->ranks, error);
    case TPL_OPTION_GPUS_PER_RANK:
        return tpl_value_number(id, argument, 1, 64, "of GPUs", &app->gpus,
                                error);
    case TPL_OPTION_ENVIRONMENT:
        return options_add_environment(app, argument, error);
    case TPL_OPTION_WRAP:
        return options_add_wrap(app, argument, error);
    case TPL_OPTION_WDIR:
        app->wdir = argument;
        break;
    default:
        break;
    }
    return TP_OK;
}

/* Options with one of several words; *index is what is stored. */
static tp_status options_apply_word(enum tpl_option id, const char *argument,
                                    struct tpl_options *options,
                                    struct tpb_error *error)
{
    int index = 0;
    tp_status status = tpl_value_word(id, argument, &index, error);

    if (status != TP_OK)
        return status;
    if (id == TPL_OPTION_BIND_TO)
        options->bind = TPT_BIND_CORE + index;
    else if (id == TPL_OPTION_MAP_BY)
        options->map = TPT_MAP_CORE + index;
    else if (id == TPL_OPTION_ENGINE)
        options->engine = (enum tpl_engine)index;
    else
        options->completion = argument;
    return TP_OK;
}

/* Options of the job that are there or not. */
static bool *options_flag(enum tpl_option id, struct tpl_options *options)
{
    switch (id) {
    case TPL_OPTION_DISPLAY_MAP:
        return &options->display_map;
    case TPL_OPTION_DRY_RUN:
        return &options->dry_run;
    case TPL_OPTION_REPORT_BINDINGS:
        return &options->report_bindings;
    case TPL_OPTION_TAG:
        return &options->tag;
    case TPL_OPTION_TIMESTAMP:
        return &options->timestamp;
    case TPL_OPTION_MERGE_STDERR:
        return &options->merge_stderr;
    case TPL_OPTION_PTY:
        return &options->pty;
    case TPL_OPTION_KEEP_GOING:
        return &options->keep_going;
    case TPL_OPTION_VERBOSE:
        return &options->verbose;
    case TPL_OPTION_HELP:
        return &options->help;
    case TPL_OPTION_VERSION:
        return &options->version;
    default:
        return NULL;
    }
}

/* mpirun and srun take other hosts for each program, or add them up. */
static tp_status options_apply_hosts(enum tpl_option id, const char *argument,
                                     const char **place,
                                     struct tpb_error *error)
{
    if (*place != NULL)
        return tpb_fail(error, TP_ERR_INVALID, "%s %s: it is for the whole "
                        "job; name all hosts once",
                        tpl_option_name(id), argument);
    *place = argument;
    return TP_OK;
}

static tp_status options_apply(enum tpl_option id, const char *argument,
                               struct tpl_options *options,
                               struct tpb_error *error)
{
    bool *flag = options_flag(id, options);

    options->given |= UINT64_C(1) << id;
    if (flag != NULL) {
        *flag = true;
        return TP_OK;
    }
    if ((tpl_option_table[id].flags & TPL_EACH) != 0)
        return options_apply_each(id, argument,
                                  &options->apps[options->app_count - 1],
                                  error);
    switch (id) {
    case TPL_OPTION_TIMEOUT:
        options->timeout_text = argument;
        return tpl_value_time(id, argument, &options->timeout, error);
    case TPL_OPTION_STDIN:
        return tpl_value_stdin(argument, &options->input, error);
    case TPL_OPTION_HOST:
        return options_apply_hosts(id, argument, &options->host, error);
    case TPL_OPTION_HOSTFILE:
        return options_apply_hosts(id, argument, &options->hostfile, error);
    case TPL_OPTION_OUTPUT:
        options->output = argument;
        break;
    case TPL_OPTION_EXPLAIN:
        setenv("TP_EXPLAIN", "1", 1);
        break;
    case TPL_OPTION_REQUIRE:
        return tpl_value_require(argument, error);
    default:
        return options_apply_word(id, argument, options, error);
    }
    return TP_OK;
}

/* Is it the beginning of several?  Says so. */
static bool options_ambiguous(const char *name, size_t length,
                              struct tpb_error *error)
{
    const char *found[2] = { NULL, NULL };

    for (int i = 0; i < TPL_OPTIONS && found[1] == NULL; i++) {
        const char *known = tpl_option_table[i].name;

        if (known != NULL && strncmp(name, known, length) == 0)
            found[found[0] != NULL] = known;
    }
    if (length == 0 || found[1] == NULL)
        return false;
    tpb_fail(error, TP_ERR_INVALID, "--%.*s is ambiguous: --%s or --%s",
             (int)length, name, found[0], found[1]);
    return true;
}

/* Names the option that getopt did not know, and the nearest that exists. */
static tp_status options_unknown(const char *word, struct tpb_error *error)
{
    const char *nearest = NULL, *whole = word;
    char name[64];
    unsigned best = 4;
    size_t length;

    word += strspn(word, "-");
    length = strcspn(word, "=");
    if (word - whole == 2 && options_ambiguous(word, length, error))
        return TP_ERR_INVALID;
    snprintf(name, sizeof(name), "%.*s", (int)length, word);
    for (int i = 0; i < TPL_OPTIONS && length < sizeof(name); i++) {
        const char *known = tpl_option_table[i].name;
        unsigned distance = 99;

        if (known != NULL)
            distance = tpb_edit_distance(name, known);
        /* Half the word wrong is another word. */
        if (distance < best && distance < strlen(name)) {
            best = distance;
            nearest = known;
        }
    }
    if (nearest != NULL)
        return tpb_fail(error, TP_ERR_INVALID,
                        "unknown option --%s: did you mean --%s?", name,
                        nearest);
    return tpb_fail(error, TP_ERR_INVALID,
                    "unknown option %.60s; `tprun --help` lists them "
                    "all", whole);
}

/* What getopt did not understand in `word`. */
static tp_status options_refuse(int code, const char *word,
                                struct tpb_error *error)
{
    int row = options_row(optopt);
    char letter[3] = { '-', (char)optopt, '\0' };

    if (code == ':') {
        const char *name = optopt >= OPTION_LONG ? tpl_option_table[row].name
                                                 : NULL;

        return tpb_fail(error, TP_ERR_INVALID, "%s%s needs an argument: %s",
                        name != NULL ? "--" : "",
                        name != NULL ? name : letter,
                        row >= 0 ? tpl_option_table[row].argument : "");
    }
    if (row >= 0)
        return tpb_fail(error, TP_ERR_INVALID, "--%s takes no argument",
                        tpl_option_table[row].name);
    if (strncmp(word, "--", 2) == 0)
        return options_unknown(word, error);
    if (optopt == '=')
        return tpb_fail(error, TP_ERR_INVALID, "%s: one-letter options take no "
                        "=, and some of them no argument", word);
    /* -N2, or a letter in a cluster such as -vq. */
    if (tpl_habits_check(letter, error) != TP_OK)
        return TP_ERR_INVALID;
    return options_unknown(strlen(word) > 2 && word[1] == optopt ? word
                           : letter, error);
}

/* One dash before a long name, as other launchers have it: the word is no
 * cluster of letters, though getopt would take it for one. */
static tp_status options_one_dash(int argc, char **argv, int id,
                                  struct tpl_options *options,
                                  struct tpb_error *error)
{
    const char *word = argv[optind++], *value = strchr(word, '=');
    const struct tpl_option_row *row = &tpl_option_table[id];

    if (value != NULL)
        value++;
    if (value != NULL && row->argument == NULL)
        return tpb_fail(error, TP_ERR_INVALID, "-%s takes no argument",
                        row->name);
    if (value == NULL && row->argument != NULL) {
        if (optind >= argc)
            return tpb_fail(error, TP_ERR_INVALID,
                            "-%s needs an argument: %s", row->name,
                            row->argument);
        value = argv[optind++];
    }
    return options_apply((enum tpl_option)id, value, options, error);
}

/* -n as getopt read it: of -np and -np4 it took the "p" for the number. */
static tp_status options_ranks(int argc, char **argv, const char *word,
                               struct tpl_options *options,
                               struct tpb_error *error)
{
    if (optarg == word + 2 && optarg[0] == 'p')
        optarg++;
    else
        return options_apply(TPL_OPTION_RANKS, optarg, options, error);
    if (*optarg == '\0') {
        if (optind >= argc)
            return tpb_fail(error, TP_ERR_INVALID,
                            "-np needs an argument: N");
        optarg = argv[optind++];
    }
    return options_apply(TPL_OPTION_RANKS, optarg, options, error);
}

/* The options before one program. */
static tp_status options_section(int argc, char **argv,
                                 struct tpl_options *options,
                                 struct tpb_error *error)
{
    char letters[2 * TPL_OPTIONS + 3];
    struct option longs[TPL_OPTIONS + 1];
    const char *last = NULL;
    int code;

    options_tables(letters, longs);
    for (;;) {
        const char *word = optind < argc ? argv[optind] : NULL;
        int one_dash = -1, row;
        tp_status status = TP_OK;

        /* In the middle of a cluster getopt is at the same word again. */
        if (word != NULL && word != last) {
            status = tpl_habits_check(word, error);
            one_dash = tpl_habits_one_dash(word);
        }
        last = word;
        if (status == TP_OK && one_dash >= 0) {
            status = options_one_dash(argc, argv, one_dash, options, error);
        } else if (status == TP_OK) {
            code = getopt_long(argc, argv, letters, longs, NULL);
            if (code == -1)
                break;
            row = code == '?' || code == ':' ? -1 : options_row(code);
            if (row < 0)
                return options_refuse(code, word, error);
            status = row == TPL_OPTION_RANKS
                     ? options_ranks(argc, argv, word, options, error)
                     : options_apply((enum tpl_option)row, optarg, options,
                                     error);
        }
        if (status != TP_OK)
            return status;
    }
    return TP_OK;
}

static tp_status options_new_app(struct tpl_options *options,
                                 struct tpb_error *error)
{
    struct tpl_app *list =
        tpb_resize(options->apps,
                   (size_t)(options->app_count + 1) * sizeof(list[0]));

    if (list == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    list[options->app_count++] = (struct tpl_app){ .ranks = 1 };
    options->apps = list;
    return TP_OK;
}

/* Takes the program at optind; leaves optind at the next section, or at the
 * end. */
static tp_status options_program(int argc, char **argv,
                                 struct tpl_options *options,
                                 struct tpb_error *error)
{
    struct tpl_app *app = &options->apps[options->app_count - 1];
    const char *before = argv[optind - 1];     /* NULL: it was a ":" */
    bool rest = before != NULL && strcmp(before, "--") == 0;

    if (optind >= argc || (!rest && strcmp(argv[optind], ":") == 0))
        return tpb_fail(error, TP_ERR_INVALID,
                        "no program%s; write tprun -n 4 ./program, or see "
                        "`tprun --help`",
                        options->app_count > 1 ? " after \":\"" : "");
    app->program = argv + optind;
    app->first = options->ranks;
    options->ranks += app->ranks;
    if (options->ranks > TPL_RANKS_MAX)
        return tpb_fail(error, TP_ERR_INVALID, "more than %d ranks in all",
                        TPL_RANKS_MAX);
    while (optind < argc && (rest || strcmp(argv[optind], ":") != 0))
        optind++;
    if (optind < argc) {
        argv[optind++] = NULL;
        return options_new_app(options, error);
    }
    optind = argc + 1;
    return TP_OK;
}

/* Options that exclude each other. */
static tp_status options_check(const struct tpl_options *options,
                               struct tpb_error *error)
{
    const char *with = options->tag ? "--tag"
                       : options->timestamp ? "--timestamp"
                       : options->pty ? "--pty" : NULL;

    if (options->output != NULL && with != NULL)
        return tpb_fail(error, TP_ERR_INVALID,
                        "%s and --output do not go together: ranks write to "
                        "the files themselves", with);
    if (options->pty && options->input == TPL_STDIN_ALL)
        return tpb_fail(error, TP_ERR_INVALID,
                        "--pty and --stdin all do not go together: only one "
                        "rank can have the terminal");
    return TP_OK;
}

/* A wrap that wraps nothing is a mistake. */
static tp_status options_check_wraps(const struct tpl_app *app,
                                     struct tpb_error *error)
{
    for (size_t i = 0; i < app->wrap_count; i++) {
        const struct tpl_wrap *wrap = &app->wraps[i];
        bool used = wrap->ranks == NULL;

        for (int rank = app->first; rank < app->first + app->ranks && !used;
             rank++)
            used = tpl_value_in_ranks(wrap->ranks, rank);
        if (!used)
            return tpb_fail(error, TP_ERR_INVALID, "--wrap %.*s: the ranks "
                            "of %s are %d to %d",
                            (int)strcspn(wrap->ranks, ":"), wrap->ranks,
                            app->program[0], app->first,
                            app->first + app->ranks - 1);
    }
    return TP_OK;
}

static tp_status options_export(const struct tpl_app *app,
                                struct tpb_error *error)
{
    for (size_t i = 0; i < app->environment_count; i++) {
        const char *text = app->environment[i], *equals = strchr(text, '=');
        char name[256];

        if (equals == NULL)
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(equals - text), text);
        if (setenv(name, equals + 1, 1) < 0)
            return tpb_fail_errno(error, errno, "-x %s", text);
    }
    return TP_OK;
}

tp_status tpl_options_settle(const struct tpl_options *options,
                             struct tpb_error *error)
{
    tp_status status = TP_OK;

    if (options->input >= options->ranks)
        return tpb_fail(error, TP_ERR_INVALID,
                        "--stdin %d: the last rank is %d", options->input,
                        options->ranks - 1);
    for (int i = 0; i < options->app_count && status == TP_OK; i++)
        status = options_check_wraps(&options->apps[i], error);
    return status;
}

tp_status tpl_options_parse(int argc, char **argv,
                            struct tpl_options *options,
                            struct tpb_error *error)
{
    tp_status status;

    memset(options, 0, sizeof(*options));
    status = options_new_app(options, error);
    opterr = 0;
    optind = 1;
    while (status == TP_OK && optind <= argc) {
        status = options_section(argc, argv, options, error);
        if (options->help || options->version || options->completion != NULL)
            return status;
        if (status == TP_OK)
            status = options_program(argc, argv, options, error);
    }
    if (status == TP_OK)
        status = options_check(options, error);
    if (status == TP_OK && options->app_count == 1)
        status = options_export(&options->apps[0], error);
    /* An option insists more than a variable that stands somewhere.  Who wants
     * it otherwise has set that one, too. */
    if (status == TP_OK && tpl_option_given(options, TPL_OPTION_REQUIRE)
        && !options->keep_going && setenv("TP_REQUIRE_ABORT", "1", 0) < 0)
        status = tpb_fail_errno(error, errno, "--require");
    return status;
}

void tpl_options_fini(struct tpl_options *options)
{
    for (int i = 0; i < options->app_count; i++) {
        struct tpl_app *app = &options->apps[i];

        for (size_t j = 0; j < app->wrap_count; j++)
            tpl_wrap_fini(&app->wraps[j]);
        tpb_free(app->wraps);
        tpb_free(app->environment);
        tpb_free(app->path);
    }
    tpb_free(options->apps);
    options->apps = NULL;
    options->app_count = 0;
}

const struct tpl_app *tpl_options_app(const struct tpl_options *options,
                                      int rank)
{
    const struct tpl_app *app = options->apps;

    while (rank >= app->first + app->ranks)
        app++;
    return app;
}

const struct tpl_wrap *tpl_options_wrap(const struct tpl_app *app, int rank)
{
    for (size_t i = 0; i < app->wrap_count; i++)
        if (app->wraps[i].ranks == NULL
            || tpl_value_in_ranks(app->wraps[i].ranks, rank))
            return &app->wraps[i];
    return NULL;
}
