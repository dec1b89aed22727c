/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of options for people, and for their shells. */
#include "config.h"

#include <ctype.h>
#include <stdio.h>

#include "launcher/options.h"

/* "-n N, -np N, --np N": how one may write it. */
static void help_synopsis(int id, char *buffer, size_t size)
{
    const struct tpl_option_row *row = &tpl_option_table[id];
    const char *space = row->argument != NULL ? " " : "";
    const char *argument = row->argument != NULL ? row->argument : "";
    int used = 0;

    if (row->letter != 0)
        used = snprintf(buffer, size, "-%c%s%s%s", row->letter, space,
                        argument, row->name != NULL ? ", " : "");
    if (id == TPL_OPTION_RANKS)
        used += snprintf(buffer + used, size - (size_t)used, "-np%s%s, ",
                         space, argument);
    if (row->name != NULL)
        snprintf(buffer + used, size - (size_t)used, "--%s%s%s", row->name,
                 space, argument);
}

void tpl_options_help(struct tpb_text *text)
{
    tpb_text_add(text,
        "Usage: tprun [OPTION]... PROGRAM [ARGUMENT]... "
        "[: [OPTION]... PROGRAM ...]\n"
        "Start PROGRAM as the ranks of one job.\n\n");
    for (int i = 0; i < TPL_OPTIONS; i++) {
        char synopsis[96];

        help_synopsis(i, synopsis, sizeof(synopsis));
        tpb_text_add(text, "  %s\n        %s\n", synopsis,
                     tpl_option_table[i].text);
    }
    tpb_text_add(text,
        "\nExample: tprun -n 4 ./ring\n"
        "The exit status is that of the first rank that failed; see "
        "tprun(1).\n");
}

/* What an argument is to a shell. */
enum help_kind { HELP_ANY, HELP_WORDS, HELP_FILE, HELP_DIRECTORY };

static enum help_kind help_kind(const char *argument)
{
    if (strcmp(argument, "FILE") == 0)
        return HELP_FILE;
    if (strcmp(argument, "DIR") == 0)
        return HELP_DIRECTORY;
    return strchr(argument, '|') != NULL ? HELP_WORDS : HELP_ANY;
}

/* "core l3 none" of "core|l3|none"; what is in capitals is no word. */
static void help_words(struct tpb_text *text, const char *argument)
{
    while (*argument != '\0') {
        size_t length = strcspn(argument, "|");

        if (!isupper((unsigned char)*argument))
            tpb_text_add(text, "%.*s ", (int)length, argument);
        argument += length + (argument[length] == '|');
    }
}

/* "-n|-np|--np", a pattern of case, or with blanks a list of words. */
static void help_spellings(struct tpb_text *text, int id, const char *between)
{
    const struct tpl_option_row *row = &tpl_option_table[id];
    const char *gap = "";

    if (row->letter != 0) {
        tpb_text_add(text, "-%c", row->letter);
        gap = between;
    }
    if (id == TPL_OPTION_RANKS)
        tpb_text_add(text, "%s-np", gap);
    if (row->name != NULL)
        tpb_text_add(text, "%s--%s", gap, row->name);
}

/* The arms of bash's case: what may follow an option. */
static void help_bash_arms(struct tpb_text *text)
{
    for (int i = 0; i < TPL_OPTIONS; i++) {
        const char *argument = tpl_option_table[i].argument;

        if (argument == NULL)
            continue;
        tpb_text_add(text, "    ");
        help_spellings(text, i, "|");
        switch (help_kind(argument)) {
        case HELP_WORDS:
            tpb_text_add(text, ") COMPREPLY=($(compgen -W '");
            help_words(text, argument);
            tpb_text_add(text, "' -- \"$word\")); return;;\n");
            break;
        case HELP_FILE:
            tpb_text_add(text, ") COMPREPLY=($(compgen -f -- \"$word\")); "
                         "return;;\n");
            break;
        case HELP_DIRECTORY:
            tpb_text_add(text, ") COMPREPLY=($(compgen -d -- \"$word\")); "
                         "return;;\n");
            break;
        case HELP_ANY:
            tpb_text_add(text, ") COMPREPLY=(); return;;\n");
            break;
        }
    }
}

static void help_bash_list(struct tpb_text *text, bool with_argument)
{
    for (int i = 0; i < TPL_OPTIONS; i++)
        if (!with_argument || tpl_option_table[i].argument != NULL) {
            help_spellings(text, i, " ");
            tpb_text_add(text, " ");
        }
}

/* The word that is typed is an option, an option's argument, the program, or
 * one of its own; the second loop finds out which.  The first one joins what
 * bash has parted at "=" and ":". */
static void help_bash(struct tpb_text *text)
{
    tpb_text_add(text,
        "_tprun()\n"
        "{\n"
        "    local word=${COMP_WORDS[COMP_CWORD]} line=$COMP_LINE i inside=\n"
        "    local words=() last n=0 takes=' ");
    help_bash_list(text, true);
    tpb_text_add(text,
        "'\n"
        "    for ((i = 0; i <= COMP_CWORD; i++)); do\n"
        "        [[ $line != [[:space:]]* ]] || ((++n))\n"
        "        line=${line#\"${line%%%%[![:space:]]*}\"}\n"
        "        words[n]+=${COMP_WORDS[i]}\n"
        "        line=${line#\"${COMP_WORDS[i]}\"}\n"
        "    done\n"
        "    for ((i = 1; i < n; i++)); do\n"
        "        case ${words[i]} in\n"
        "        :) inside=;;\n"
        "        -*) [[ $inside ]] ||\n"
        "            [[ $takes != *\" ${words[i]} \"* ]] || ((i++));;\n"
        "        *) inside=1;;\n"
        "        esac\n"
        "    done\n"
        "    if [[ $inside ]]; then\n"
        "        COMPREPLY=($(compgen -f -- \"$word\"))\n"
        "        return\n"
        "    fi\n"
        "    last=${words[n - 1]}\n"
        "    if [[ ${words[n]} == --*=* ]]; then\n"
        "        last=${words[n]%%%%=*}\n"
        "        [[ $word != = ]] || word=\n"
        "    fi\n"
        "    case $last in\n");
    help_bash_arms(text);
    tpb_text_add(text,
        "    esac\n"
        "    if [[ $word == -* ]]; then\n"
        "        COMPREPLY=($(compgen -W '");
    help_bash_list(text, false);
    tpb_text_add(text,
        "' -- \"$word\"))\n"
        "    else\n"
        "        COMPREPLY=($(compgen -c -f -- \"$word\"))\n"
        "    fi\n"
        "}\n"
        "complete -o filenames -F _tprun tprun\n");
}

/* One line of zsh's _arguments: '(-n --np)'{-n,--np}'[words]:N:(a b)'.  In
 * brackets a colon and a bracket need a backslash, a quote may not stand. */
static void help_zsh_row(struct tpb_text *text, int id, const char *spelling)
{
    const struct tpl_option_row *row = &tpl_option_table[id];

    tpb_text_add(text, "        '*%s%s[", spelling,
                 row->argument != NULL && spelling[1] == '-' ? "=" : "");
    for (const char *at = row->text; *at != '\0'; at++)
        if (*at != '\'')
            tpb_text_add(text, "%s%c",
                         strchr("[]:", *at) != NULL ? "\\" : "", *at);
    tpb_text_add(text, "]");
    if (row->argument != NULL)
        switch (help_kind(row->argument)) {
        case HELP_WORDS:
            tpb_text_add(text, ":word:(");
            help_words(text, row->argument);
            tpb_text_add(text, ")");
            break;
        case HELP_FILE:
            tpb_text_add(text, ":file:_files");
            break;
        case HELP_DIRECTORY:
            tpb_text_add(text, ":directory:_files -/");
            break;
        case HELP_ANY:
            tpb_text_add(text, ":value: ");
            break;
        }
    tpb_text_add(text, "' \\\n");
}

static void help_zsh(struct tpb_text *text)
{
    /* Behind a ":" it begins anew. */
    tpb_text_add(text,
        "_tprun()\n"
        "{\n"
        "    local at=${words[(b:CURRENT-1:I):]}\n"
        "    if ((at > 1)); then\n"
        "        words=(tprun \"${(@)words[at+1,-1]}\")\n"
        "        ((CURRENT -= at - 1))\n"
        "    fi\n"
        "    _arguments -S -A '-*' \\\n");
    for (int i = 0; i < TPL_OPTIONS; i++) {
        char spelling[64];

        snprintf(spelling, sizeof(spelling), "-%c",
                 tpl_option_table[i].letter);
        if (tpl_option_table[i].letter != 0)
            help_zsh_row(text, i, spelling);
        if (i == TPL_OPTION_RANKS)
            help_zsh_row(text, i, "-np");
        snprintf(spelling, sizeof(spelling), "--%s", tpl_option_table[i].name
                 != NULL ? tpl_option_table[i].name : "");
        if (tpl_option_table[i].name != NULL)
            help_zsh_row(text, i, spelling);
    }
    tpb_text_add(text,
        "        '1:program:_command_names -e' \\\n"
        "        '*::argument:_normal'\n"
        "}\n");
}

void tpl_options_complete(const char *shell, struct tpb_text *text)
{
    if (strcmp(shell, "bash") == 0)
        help_bash(text);
    else
        help_zsh(text);
}
