/* SPDX-License-Identifier: BSD-3-Clause */
/* The command line, from the table in options.def. */
#include "config.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "launcher/options.h"
#include "runtime/base/settings.h"

enum option_id {
#define TPL_OPTION(id, name, letter, argument, text) OPTION_##id,
#include "launcher/options.def"
#undef TPL_OPTION
    OPTION_COUNT
};

static const struct option_row {
    const char *name;
    char letter;
    const char *argument, *text;
} option_table[OPTION_COUNT] = {
#define TPL_OPTION(id, name, letter, argument, text) \
    [OPTION_##id] = { name, letter, argument, text },
#include "launcher/options.def"
#undef TPL_OPTION
};

/* Long options carry their row in `val`, above every letter. */
enum { OPTION_LONG = 1000 };

/* Builds what getopt wants.  "+" stops at the program, ":" keeps getopt from
 * printing. */
static void options_tables(char letters[2 * OPTION_COUNT + 3],
                           struct option longs[OPTION_COUNT + 1])
{
    size_t used = 0;

    letters[used++] = '+';
    letters[used++] = ':';
    for (int i = 0; i < OPTION_COUNT; i++) {
        const struct option_row *row = &option_table[i];

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
    if (code >= OPTION_LONG && code < OPTION_LONG + OPTION_COUNT)
        return code - OPTION_LONG;
    for (int i = 0; i < OPTION_COUNT; i++)
        if (option_table[i].letter != 0 && option_table[i].letter == code)
            return i;
    return -1;
}

static tp_status options_ranks(const char *text, int *ranks,
                               struct tpb_error *error)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < 1
        || value > TPL_RANKS_MAX)
        return tpb_fail(error, TP_ERR_INVALID,
                        "-n %s: expected a number of ranks, 1 to %d", text,
                        TPL_RANKS_MAX);
    *ranks = (int)value;
    return TP_OK;
}

/* "90", "500ms", "1.5h" in nanoseconds. */
static tp_status options_time(const char *text, uint64_t *nanoseconds,
                              struct tpb_error *error)
{
    static const struct { const char *unit; double seconds; } units[] = {
        { "", 1 }, { "ms", 1e-3 }, { "s", 1 }, { "m", 60 }, { "h", 3600 },
        { "d", 86400 },
    };
    char *end;
    double value = strtod(text, &end);

    for (size_t i = 0; i < TPB_COUNT(units) && end != text; i++) {
        double seconds = value * units[i].seconds;

        /* The upper limit keeps the sum with a clock within 64 bits. */
        if (strcmp(end, units[i].unit) != 0 || !isfinite(value)
            || seconds < 1e-3 || seconds > 1e9)
            continue;
        *nanoseconds = (uint64_t)(seconds * 1e9);
        return TP_OK;
    }
    return tpb_fail(error, TP_ERR_INVALID,
                    "--timeout %s: expected a time such as 90, 500ms, 2m or "
                    "1.5h", text);
}

static tp_status options_bind(const char *text, enum tpt_bind *bind,
                              struct tpb_error *error)
{
    static const struct { const char *word; enum tpt_bind bind; } words[] = {
        { "core", TPT_BIND_CORE }, { "package", TPT_BIND_PACKAGE },
        { "none", TPT_BIND_NONE },
    };

    for (size_t i = 0; i < TPB_COUNT(words); i++)
        if (strcmp(text, words[i].word) == 0) {
            *bind = words[i].bind;
            return TP_OK;
        }
    return tpb_fail(error, TP_ERR_INVALID,
                    "--bind-to %s: expected core, package or none", text);
}

/* NAME=VALUE sets; NAME alone only asks that it be there, because ranks
 * inherit the whole environment. */
static tp_status options_environment(const char *text,
                                     struct tpb_error *error)
{
    const char *equals = strchr(text, '=');
    char name[256];

    if (equals == text || *text == '\0')
        return tpb_fail(error, TP_ERR_INVALID,
                        "-x %s: expected NAME or NAME=VALUE", text);
    if (equals == NULL) {
        if (getenv(text) == NULL)
            return tpb_fail(error, TP_ERR_INVALID,
                            "-x %s: not in the environment; give a value "
                            "with -x %s=VALUE", text, text);
        return TP_OK;
    }
    if ((size_t)(equals - text) >= sizeof(name))
        return tpb_fail(error, TP_ERR_INVALID,
                        "-x: the name of the variable is over %zu bytes long",
                        sizeof(name) - 1);
    memcpy(name, text, (size_t)(equals - text));
    name[equals - text] = '\0';
    if (setenv(name, equals + 1, 1) < 0)
        return tpb_fail_errno(error, errno, "-x %s", text);
    return TP_OK;
}

static tp_status options_apply(enum option_id id, const char *argument,
                               struct tpl_options *options,
                               struct tpb_error *error)
{
    switch (id) {
    case OPTION_RANKS:
        return options_ranks(argument, &options->ranks, error);
    case OPTION_TIMEOUT:
        options->timeout_text = argument;
        return options_time(argument, &options->timeout, error);
    case OPTION_BIND_TO:
        return options_bind(argument, &options->bind, error);
    case OPTION_ENVIRONMENT:
        return options_environment(argument, error);
    case OPTION_WDIR:
        options->wdir = argument;
        break;
    case OPTION_EXPLAIN:
        setenv("TP_EXPLAIN", "1", 1);
        break;
    case OPTION_REQUIRE:
        setenv("TP_REQUIRE", argument, 1);
        break;
    case OPTION_TAG:
        options->tag = true;
        break;
    case OPTION_KEEP_GOING:
        options->keep_going = true;
        break;
    case OPTION_VERBOSE:
        options->verbose = true;
        break;
    case OPTION_HOST:
        options->host = argument;
        break;
    case OPTION_HOSTFILE:
        options->hostfile = argument;
        break;
    case OPTION_ENGINE:
        options->engine = argument;
        break;
    case OPTION_DRY_RUN:
        options->dry_run = true;
        break;
    case OPTION_HELP:
        options->help = true;
        break;
    case OPTION_VERSION:
        options->version = true;
        break;
    case OPTION_COUNT:
        break;
    }
    return TP_OK;
}

/* Names the option that getopt did not know, and the nearest that exists. */
static tp_status options_unknown(const char *word, struct tpb_error *error)
{
    const char *nearest = NULL;
    char name[64];
    unsigned best = 4;
    size_t length;

    word += strspn(word, "-");
    length = strcspn(word, "=");
    snprintf(name, sizeof(name), "%.*s", (int)length, word);
    for (int i = 0; i < OPTION_COUNT && length < sizeof(name); i++) {
        const char *known = option_table[i].name;
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
                    "unknown option %s%s; `tprun --help` lists those there "
                    "are", length > 1 ? "--" : "-", name);
}

static tp_status options_refuse(int code, char **argv,
                                struct tpb_error *error)
{
    int row = options_row(optopt);
    const char *word = argv[optind - 1];
    char letter[2] = { (char)optopt, '\0' };

    if (code == ':') {
        const char *name = optopt >= OPTION_LONG ? option_table[row].name
                                                 : NULL;

        return tpb_fail(error, TP_ERR_INVALID, "%s%s needs an argument: %s",
                        name != NULL ? "--" : "-",
                        name != NULL ? name : letter,
                        row >= 0 ? option_table[row].argument : "");
    }
    if (row >= 0)
        return tpb_fail(error, TP_ERR_INVALID, "--%s takes no argument",
                        option_table[row].name);
    /* A bad letter, perhaps in a cluster (-vq), has no word of its own. */
    return options_unknown(optopt != 0 && strncmp(word, "--", 2) != 0
                           && strlen(word) == 2 ? letter : word, error);
}

tp_status tpl_options_parse(int argc, char **argv,
                            struct tpl_options *options,
                            struct tpb_error *error)
{
    char letters[2 * OPTION_COUNT + 3];
    struct option longs[OPTION_COUNT + 1];
    int code;

    memset(options, 0, sizeof(*options));
    options->ranks = 1;
    options_tables(letters, longs);
    opterr = 0;
    while ((code = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
        int row = code == '?' || code == ':' ? -1 : options_row(code);
        tp_status status;

        if (row < 0)
            return options_refuse(code, argv, error);
        /* Habit from other launchers: getopt reads -np as -n with "p". */
        if (row == OPTION_RANKS && strcmp(optarg, "p") == 0) {
            if (optind >= argc)
                return tpb_fail(error, TP_ERR_INVALID,
                                "-np needs an argument: N");
            optarg = argv[optind++];
        }
        options->given[row] = true;
        status = options_apply((enum option_id)row, optarg, options, error);
        if (status != TP_OK)
            return status;
    }
    options->program = argv + optind;
    if (optind >= argc && !options->help && !options->version)
        return tpb_fail(error, TP_ERR_INVALID,
                        "which program?  tprun -n 4 ./program; "
                        "`tprun --help` tells more");
    return TP_OK;
}

const char *tpl_option_name(enum tpl_option_id id)
{
    static __thread char text[32];

    if (option_table[id].name != NULL)
        snprintf(text, sizeof(text), "--%s", option_table[id].name);
    else
        snprintf(text, sizeof(text), "-%c", option_table[id].letter);
    return text;
}

/* "-n N, -np N, --np N": how one may write it. */
static void options_synopsis(int id, char *buffer, size_t size)
{
    const struct option_row *row = &option_table[id];
    const char *space = row->argument != NULL ? " " : "";
    const char *argument = row->argument != NULL ? row->argument : "";
    int used = 0;

    if (row->letter != 0)
        used = snprintf(buffer, size, "-%c%s%s%s", row->letter, space,
                        argument, row->name != NULL ? ", " : "");
    if (id == OPTION_RANKS)
        used += snprintf(buffer + used, size - (size_t)used, "-np%s%s, ",
                         space, argument);
    if (row->name != NULL)
        snprintf(buffer + used, size - (size_t)used, "--%s%s%s", row->name,
                 space, argument);
}

void tpl_options_help(struct tpb_text *text)
{
    tpb_text_add(text,
        "Usage: tprun [OPTION]... PROGRAM [ARGUMENT]...\n"
        "Start PROGRAM as the ranks of one job, on this machine or others.\n"
        "\n");
    for (int i = 0; i < OPTION_COUNT; i++) {
        char synopsis[96];

        options_synopsis(i, synopsis, sizeof(synopsis));
        tpb_text_add(text, "  %s\n        %s\n", synopsis,
                     option_table[i].text);
    }
    tpb_text_add(text,
        "\nExample: tprun -n 4 ./ring\n"
        "The exit status is that of the first rank that failed; see "
        "tprun(1).\n");
}
