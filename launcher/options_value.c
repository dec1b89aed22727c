/* SPDX-License-Identifier: BSD-3-Clause */
/* What stands behind an option on the command line. */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <wordexp.h>

#include "launcher/options.h"
#include "runtime/base/alloc.h"
#include "topology/score.h"

const char *tpl_option_name(enum tpl_option option)
{
    static char text[2][32];
    static int turn;
    const struct tpl_option_row *row = &tpl_option_table[option];

    turn = !turn;
    if (row->letter != 0)
        snprintf(text[turn], sizeof(text[turn]), "-%c", row->letter);
    else
        snprintf(text[turn], sizeof(text[turn]), "--%s", row->name);
    return text[turn];
}

/* "core, l3 or none" of "core|l3|none". */
static void value_words(const char *list, char *text, size_t size)
{
    size_t used = 0;

    while (used < size) {
        size_t length = strcspn(list, "|");
        bool last = list[length] == '\0';

        used += (size_t)snprintf(text + used, size - used, "%.*s%s",
                                 (int)length, list, last ? ""
                                 : strchr(list + length + 1, '|') != NULL
                                 ? ", " : " or ");
        if (last)
            return;
        list += length + 1;
    }
}

tp_status tpl_value_word(enum tpl_option option, const char *text, int *index,
                         struct tpb_error *error)
{
    const char *list = tpl_option_table[option].argument;
    char words[128];
    int n = 0;

    for (const char *at = list; *at != '\0'; n++) {
        size_t length = strcspn(at, "|");

        if (strlen(text) == length && strncmp(text, at, length) == 0) {
            *index = n;
            return TP_OK;
        }
        at += length + (at[length] == '|');
    }
    value_words(list, words, sizeof(words));
    return tpb_fail(error, TP_ERR_INVALID, "%s %s: expected %s%s",
                    tpl_option_name(option), text, words,
                    tpl_habits_word(text));
}

tp_status tpl_value_number(enum tpl_option option, const char *text, int least,
                           int most, const char *what, int *number,
                           struct tpb_error *error)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < least
        || value > most)
        return tpb_fail(error, TP_ERR_INVALID,
                        "%s %s: expected a number %s, %d to %d",
                        tpl_option_name(option), text, what, least, most);
    *number = (int)value;
    return TP_OK;
}

tp_status tpl_value_time(enum tpl_option option, const char *text,
                         uint64_t *nanoseconds, struct tpb_error *error)
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
                    "%s %s: expected a time such as 90, 500ms, 2m or 1.5h",
                    tpl_option_name(option), text);
}

tp_status tpl_value_stdin(const char *text, int *rank,
                          struct tpb_error *error)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (strcmp(text, "all") == 0) {
        *rank = TPL_STDIN_ALL;
    } else if (strcmp(text, "none") == 0) {
        *rank = TPL_STDIN_NONE;
    } else {
        if (end == text || *end != '\0' || value < 0
            || value >= TPL_RANKS_MAX)
            return tpb_fail(error, TP_ERR_INVALID,
                            "--stdin %s: expected a rank, all or none", text);
        *rank = (int)value;
    }
    return TP_OK;
}

tp_status tpl_value_require(const char *text, struct tpb_error *error)
{
    static const char theirs[] = "TP_REQUIRE: ";
    struct tpb_error why = { "" };
    const char *words = why.text;

    if (*text == '\0')
        return tpb_fail(error, TP_ERR_INVALID, "--require: expected "
                        "CLASS:BACKEND,... such as node:shm,net:ofi:tcp");
    if (tpt_require_form(text, &why) != TP_OK) {
        if (strncmp(words, theirs, sizeof(theirs) - 1) == 0)
            words += sizeof(theirs) - 1;
        return tpb_fail(error, TP_ERR_INVALID, "--require %s: %s", text,
                        words);
    }
    if (setenv("TP_REQUIRE", text, 1) < 0)
        return tpb_fail_errno(error, errno, "--require %s", text);
    return TP_OK;
}

/* Is it a variable that every rank gets from tprun? */
static bool value_ours(const char *text, size_t length)
{
    static const char *const ours[] = {
        "PMIX_RANK", "PMIX_NAMESPACE", "TP_LAUNCHER", "TP_TOPOLOGY_SHARED",
        "TP_RECORD", "TP_CPUS", "TP_DOOR",
    };

    for (size_t i = 0; i < TPB_COUNT(ours); i++)
        if (strlen(ours[i]) == length && strncmp(text, ours[i], length) == 0)
            return true;
    return false;
}

tp_status tpl_value_environment(const char *text, struct tpb_error *error)
{
    const char *equals = strchr(text, '=');

    if (equals == text || *text == '\0')
        return tpb_fail(error, TP_ERR_INVALID,
                        "-x %s: expected NAME or NAME=VALUE", text);
    if (equals != NULL && equals - text > 255)
        return tpb_fail(error, TP_ERR_INVALID,
                        "-x: the name of the variable is over 255 bytes long");
    if (equals != NULL && value_ours(text, (size_t)(equals - text)))
        return tpb_fail(error, TP_ERR_INVALID, "-x %s: tprun itself sets this "
                        "one for its ranks; leave it out", text);
    if (equals == NULL && getenv(text) == NULL)
        return tpb_fail(error, TP_ERR_INVALID,
                        "-x %s: not in the environment; give a value "
                        "with -x %s=VALUE", text, text);
    return TP_OK;
}

/* Reads "7" or "4-6" at *at; false if it is neither. */
static bool value_range(const char **at, long *from, long *to)
{
    char *end;

    if (!isdigit((unsigned char)**at))
        return false;
    *from = *to = strtol(*at, &end, 10);
    if (*end == '-') {
        *at = end + 1;
        if (!isdigit((unsigned char)**at))
            return false;
        *to = strtol(*at, &end, 10);
    }
    *at = end;
    return *to >= *from;
}

bool tpl_value_in_ranks(const char *ranks, int rank)
{
    long from, to;

    while (value_range(&ranks, &from, &to)) {
        if (rank >= from && rank <= to)
            return true;
        if (*ranks++ != ',')
            break;
    }
    return false;
}

/* The command behind "0-3,7:"; the text itself if it does not begin so. */
static const char *value_command(const char *text)
{
    const char *at = text;
    long from, to;

    while (value_range(&at, &from, &to)) {
        if (*at == ':')
            return at + 1;
        if (*at++ != ',')
            break;
    }
    return text;
}

/* "3-1:env" and "0,:env" begin as ranks do, and are none. */
static bool value_no_ranks(const char *text)
{
    return isdigit((unsigned char)*text)
           && text[strspn(text, "0123456789,-")] == ':';
}

static tp_status value_unquotable(const char *text, int code,
                                  struct tpb_error *error)
{
    const char *why = code == WRDE_SYNTAX ? "a quote is not closed"
                      : code == WRDE_NOSPACE ? "out of memory"
                      : "it is not run by a shell, so ; & | < > ( ) { } and "
                        "$(...) must be quoted; for a shell write sh -c "
                        "'...'";

    return tpb_fail(error, TP_ERR_INVALID, "--wrap %s: %s", text, why);
}

tp_status tpl_value_wrap(const char *text, struct tpl_wrap *wrap,
                         struct tpb_error *error)
{
    const char *command = value_command(text);
    wordexp_t words;
    int code = wordexp(command, &words, WRDE_NOCMD);
    tp_status status = TP_OK;

    if (code != 0)
        return value_unquotable(text, code, error);
    if (command == text && value_no_ranks(text)) {
        wordfree(&words);
        return tpb_fail(error, TP_ERR_INVALID, "--wrap %s: expected ranks "
                        "such as 2 or 0-3,7 before the colon", text);
    }
    *wrap = (struct tpl_wrap){
        .ranks = command != text ? text : NULL, .command = command,
    };
    if (words.we_wordc > 0)
        wrap->words = tpb_array(words.we_wordc + 1, sizeof(char *));
    else
        status = tpb_fail(error, TP_ERR_INVALID,
                          "--wrap %s: the command is missing", text);
    if (status == TP_OK && wrap->words == NULL)
        status = tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    for (size_t i = 0; status == TP_OK && i < words.we_wordc; i++) {
        wrap->words[i] = tpb_copy_string(words.we_wordv[i]);
        if (wrap->words[i] == NULL)
            status = tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    }
    wordfree(&words);
    if (status != TP_OK)
        tpl_wrap_fini(wrap);
    return status;
}

void tpl_wrap_fini(struct tpl_wrap *wrap)
{
    for (size_t i = 0; wrap->words != NULL && wrap->words[i] != NULL; i++)
        tpb_free(wrap->words[i]);
    tpb_free(wrap->words);
    tpb_free(wrap->path);
    wrap->words = NULL;
    wrap->path = NULL;
}
