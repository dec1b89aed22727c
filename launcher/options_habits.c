/* SPDX-License-Identifier: BSD-3-Clause */
/* What people type who know other launchers: options of theirs, words of
 * theirs, and one dash before a long name. */
#include "config.h"

#include "launcher/options.h"

static const struct habits_row {
    const char *names, *instead;
} habits_table[] = {
#define TPL_HABIT(names, instead) { names, instead },
#include "launcher/habits.def"
#undef TPL_HABIT
};

/* Is the name one of those in the list, with blanks between? */
static bool habits_named(const char *list, const char *name, size_t length)
{
    while (*list != '\0') {
        size_t word = strcspn(list, " ");

        if (word == length && strncmp(list, name, length) == 0)
            return true;
        list += word + (list[word] == ' ');
    }
    return false;
}

tp_status tpl_habits_check(const char *word, struct tpb_error *error)
{
    const char *name = word + strspn(word, "-");
    size_t length = strcspn(name, "="), dashes = (size_t)(name - word);

    if (dashes < 1 || dashes > 2 || (length == 1 && dashes == 2))
        return TP_OK;
    for (size_t i = 0; i < TPB_COUNT(habits_table); i++)
        if (habits_named(habits_table[i].names, name, length))
            return tpb_fail(error, TP_ERR_INVALID, "%.*s is not an option of "
                            "tprun; %s (tp_migrate(7) has more)",
                            (int)(dashes + length), word,
                            habits_table[i].instead);
    return TP_OK;
}

int tpl_habits_one_dash(const char *word)
{
    size_t length;

    if (word[0] != '-' || word[1] == '-' || word[1] == '\0')
        return -1;
    length = strcspn(++word, "=");
    for (int i = 0; i < TPL_OPTIONS && length > 1; i++) {
        const char *name = tpl_option_table[i].name;

        if (name != NULL && strlen(name) == length
            && strncmp(name, word, length) == 0)
            return i;
    }
    return -1;
}

const char *tpl_habits_word(const char *word)
{
    static const struct { const char *theirs, *hint; } words[] = {
        { "socket", "; a socket is a package here" },
        { "sockets", "; a socket is a package here" },
        { "l3cache", "; l3cache is l3 here" },
        { "ldom", "; a locality domain is numa here" },
        { "ldoms", "; a locality domain is numa here" },
        { "hwthread", "; a core with all its threads is the least" },
        { "thread", "; a core with all its threads is the least" },
        { "slot", "; without --map-by neighbours are near to each other" },
        { "node", "; --host a:2,b:2 says how many ranks each host gets" },
    };

    if (strncmp(word, "ppr:", 4) == 0)
        word = "node";
    if (strchr(word, ':') != NULL)
        return "; leave out the : and what follows it, as more ranks than cores"
               " are allowed, and --bind-to gives a rank more than a core";
    for (size_t i = 0; i < TPB_COUNT(words); i++)
        if (strcmp(word, words[i].theirs) == 0)
            return words[i].hint;
    return "";
}
