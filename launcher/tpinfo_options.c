/* SPDX-License-Identifier: BSD-3-Clause */
/* tpinfo's command line. */
#include "config.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "launcher/tpinfo.h"

enum {
    OPTIONS_USAGE = 2,             /* exit status of a mistake */
    OPTIONS_RANKS = 1024,
    OPTIONS_LONG = 256             /* those that have no letter */
};

static const char options_help[] =
"usage: tpinfo [options]\n"
"Show what tp finds on this machine; without options, an overview.\n"
"\n"
"  --topology         draw packages, memory, caches and cores\n"
"  --backends         list the backends and whether they work here\n"
"  --costs            compare measured costs with those of the model\n"
"  --env              list all settings with their values and sources\n"
"  --plan             predict the path between two ranks, with reasons\n"
"  -n N               with --plan: for a job of N ranks, bound as by tprun\n"
"  --topo FILE[,FILE] with --plan: for one recorded machine, or between two\n"
"                     (with -n: up to 16)\n"
"  --json             print JSON instead of text\n"
"  -h, --help         print this and exit\n"
"  -V, --version      print the version and exit\n";

static const struct option options_table[] = {
    { "topology", no_argument, NULL, OPTIONS_LONG + 't' },
    { "backends", no_argument, NULL, OPTIONS_LONG + 'b' },
    { "costs", no_argument, NULL, OPTIONS_LONG + 'c' },
    { "env", no_argument, NULL, OPTIONS_LONG + 'e' },
    { "plan", no_argument, NULL, OPTIONS_LONG + 'p' },
    { "topo", required_argument, NULL, OPTIONS_LONG + 'T' },
    { "json", no_argument, NULL, OPTIONS_LONG + 'j' },
    { "help", no_argument, NULL, 'h' },
    { "version", no_argument, NULL, 'V' },
    { NULL, 0, NULL, 0 }
};

/* Says the one line; the caller ends with it. */
static bool options_mistake(int *exit_status, const char *what,
                            const char *word)
{
    fprintf(stderr, "tpinfo: %s%s; `tpinfo --help` lists the options\n", what,
            word);
    *exit_status = OPTIONS_USAGE;
    return false;
}

static bool options_print(int *exit_status, const char *text)
{
    bool good = fputs(text, stdout) >= 0 && fflush(stdout) == 0;

    if (!good)
        fprintf(stderr, "tpinfo: cannot write standard output\n");
    *exit_status = good ? 0 : 1;
    return false;
}

/* Is it the long one of the word before?  In the middle of a cluster that is
 * another word. */
static bool options_is_long(void)
{
    return optopt == 0 || optopt >= OPTIONS_LONG || optopt == 'h'
           || optopt == 'V';
}

/* The option that getopt_long() stumbled over, as it was written. */
static const char *options_culprit(char **argv)
{
    static char letter[3] = "-";

    if (options_is_long())
        return argv[optind - 1];
    letter[1] = (char)optopt;
    return letter;
}

static bool options_check(int argc, char **argv,
                          const struct tpinfo_options *options,
                          int *exit_status)
{
    bool plan = (options->show & TPINFO_PLAN) != 0;

    if (optind < argc)
        return options_mistake(exit_status, "unexpected argument ",
                               argv[optind]);
    if (options->topo != NULL && !plan)
        return options_mistake(exit_status, "--topo needs --plan", "");
    if (options->ranks > 0 && !plan)
        return options_mistake(exit_status, "-n needs --plan", "");
    if (plan && options->show != TPINFO_PLAN)
        return options_mistake(exit_status, "--plan cannot be combined with "
                               "another section", "");
    return true;
}

static bool options_ranks(struct tpinfo_options *options)
{
    char *end;
    long ranks = strtol(optarg, &end, 10);

    if (*optarg < '0' || *optarg > '9' || *end != '\0' || ranks < 2
        || ranks > OPTIONS_RANKS)
        return false;
    options->ranks = (int)ranks;
    return true;
}

bool tpinfo_parse(int argc, char **argv, struct tpinfo_options *options,
                  int *exit_status)
{
    int option;

    opterr = 0;
    while ((option = getopt_long(argc, argv, ":hVn:", options_table, NULL))
           != -1) {
        switch (option) {
        case OPTIONS_LONG + 't': options->show |= TPINFO_TOPOLOGY; break;
        case OPTIONS_LONG + 'b': options->show |= TPINFO_BACKENDS; break;
        case OPTIONS_LONG + 'c': options->show |= TPINFO_COSTS; break;
        case OPTIONS_LONG + 'e': options->show |= TPINFO_ENV; break;
        case OPTIONS_LONG + 'p': options->show |= TPINFO_PLAN; break;
        case OPTIONS_LONG + 'j': options->json = true; break;
        case OPTIONS_LONG + 'T': options->topo = optarg; break;
        case 'n':
            if (!options_ranks(options))
                return options_mistake(exit_status, "-n: expected a number "
                                       "from 2 to 1024, not ", optarg);
            break;
        case 'h': return options_print(exit_status, options_help);
        case 'V':
            return options_print(exit_status,
                                 "tpinfo (tp) " PACKAGE_VERSION "\n");
        case ':':
            return options_mistake(exit_status, "a value is missing after ",
                                   options_culprit(argv));
        default:
            return options_mistake(exit_status, optopt != 0
                                   && options_is_long()
                                   ? "no value is allowed after "
                                   : "unknown option ",
                                   options_culprit(argv));
        }
    }
    return options_check(argc, argv, options, exit_status);
}
