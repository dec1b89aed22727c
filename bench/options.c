/* SPDX-License-Identifier: BSD-3-Clause */
/* The command line, from the table in options.def. */
#include "config.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"

enum option_id {
#define BENCH_OPTION(id, scope, name, letter, argument, text) OPTION_##id,
#include "bench/options.def"
#undef BENCH_OPTION
    OPTION_COUNT
};

static const struct option_row {
    enum bench_scope scope;
    const char *name;
    char letter;
    const char *argument, *text;
} option_table[OPTION_COUNT] = {
#define BENCH_OPTION(id, scope, name, letter, argument, text) \
    [OPTION_##id] = { scope, name, letter, argument, text },
#include "bench/options.def"
#undef BENCH_OPTION
};

static const struct option_test {
    const char *name, *text;
} option_tests[BENCH_TESTS] = {
    [BENCH_INIT] = { "init", "time of tp_init, first contact and finalize" },
    [BENCH_MEMORY] = { "memory", "memory per context and per peer" },
    [BENCH_IDLE] = { "idle", "processor time of ranks that only wait" },
    [BENCH_LATENCY] = { "latency", "half a round trip between ranks 0 and 1" },
    [BENCH_BANDWIDTH] = { "bandwidth", "a stream from rank 0 to rank 1" },
    [BENCH_BIDIRECTIONAL] = { "bidirectional", "a stream each way at once" },
    [BENCH_RATE] = { "rate", "a stream of small messages, in messages per "
                             "second" },
    [BENCH_OVERLAP] = { "overlap", "a message each way while both ranks work" },
    [BENCH_PAIRS] = { "pairs", "latency of pairs 0-1, 2-3, ..., all at once" },
    [BENCH_RING] = { "ring", "one message going round all ranks, per hop" },
    [BENCH_STAR] = { "star", "from all ranks to rank 0 and back, per message" },
    [BENCH_MESH] = { "mesh", "every rank with every other, 50 rounds" },
};

const char *bench_test_name(enum bench_test test)
{
    return option_tests[test].name;
}

bool bench_size(const char *text, size_t *bytes)
{
    static const char units[] = "kKmMgG";
    char *end;
    unsigned long long value;
    const char *unit;
    unsigned shift = 0;

    if (*text < '0' || *text > '9')
        return false;
    value = strtoull(text, &end, 10);
    unit = *end != '\0' ? strchr(units, *end) : NULL;
    if (unit != NULL) {
        shift = 10 * (unsigned)((unit - units) / 2 + 1);
        end++;
    }
    if (*end != '\0' || value > (SIZE_MAX >> 16 >> shift))
        return false;
    *bytes = (size_t)value << shift;
    return true;
}

/* ---- what goes wrong ---------------------------------------------------- */

static bool options_mistake(const struct bench_usage *usage, int *status,
                            const char *what, const char *word)
{
    fprintf(stderr, "%s: %s%s%s; `%s --help` lists the options\n",
            usage->program, what, *word != '\0' ? " " : "", word,
            usage->program);
    *status = 2;
    return false;
}

static void options_help(const struct bench_usage *usage)
{
    printf("usage: %s [options] [test ...]\n%s\n\n"
           "Tests (the default is latency and bandwidth):\n",
           usage->start, usage->purpose);
    for (int i = 0; i < BENCH_TESTS; i++)
        if (usage->tests & BENCH_BIT(i))
            printf("  %-26s %s\n", option_tests[i].name,
                   option_tests[i].text);
    printf("\nOptions:\n");
    for (int i = 0; i < OPTION_COUNT; i++) {
        const struct option_row *row = &option_table[i];
        char left[64], letter[5] = "    ";

        if (!(row->scope & usage->scope))
            continue;
        if (row->letter != 0)
            snprintf(letter, sizeof(letter), "-%c, ", row->letter);
        snprintf(left, sizeof(left), "%s--%s%s%s", letter, row->name,
                 row->argument != NULL ? " " : "",
                 row->argument != NULL ? row->argument : "");
        printf("  %-26s %s%s\n", left,
               strlen(left) > 26 ? "\n                             " : "",
               row->text);
    }
}

/* ---- values ------------------------------------------------------------- */

/* The next of a comma list, in `word`; NULL when there is none.  Too long ones
 * are cut off, and so match nothing. */
static const char *options_next(const char *list, char word[64])
{
    size_t length = strcspn(list, ",");

    if (*list == '\0')
        return NULL;
    snprintf(word, 64, "%.*s", length < 64 ? (int)length : 63, list);
    return list[length] == ',' ? list + length + 1 : list + length;
}

static bool options_number(const char *text, unsigned long most,
                           unsigned long *value)
{
    char *end;

    *value = strtoul(text, &end, 10);
    return *text >= '0' && *text <= '9' && *end == '\0' && *value >= 1
           && *value <= most;
}

static bool options_sizes(const char *list, struct bench_options *options)
{
    char word[64];

    for (options->size_count = 0;
         (list = options_next(list, word)) != NULL; options->size_count++)
        if (options->size_count == BENCH_SIZES
            || !bench_size(word, &options->sizes[options->size_count]))
            return false;
    return options->size_count > 0;
}

static bool options_windows(const char *list, struct bench_options *options)
{
    char word[64];

    for (options->window_count = 0;
         (list = options_next(list, word)) != NULL; options->window_count++) {
        unsigned long value;

        if (options->window_count == BENCH_WINDOWS
            || !options_number(word, 65536, &value))
            return false;
        options->windows[options->window_count] = (unsigned)value;
    }
    return options->window_count > 0;
}

static bool options_unsigned(const char *text, unsigned long most,
                             unsigned *to)
{
    unsigned long value;

    if (!options_number(text, most, &value))
        return false;
    *to = (unsigned)value;
    return true;
}

static bool options_time(const char *text, double least, double most,
                         double *time)
{
    char *end;

    *time = strtod(text, &end);
    return end != text && *end == '\0' && *time >= least && *time <= most;
}

static bool options_memory(const char *text, struct bench_options *options)
{
    unsigned number;

    options->memory = strcmp(text, "tp") == 0;
    options->on_device = strncmp(text, "cuda", 4) == 0;
    options->device = -1;
    if (!options->on_device)
        return options->memory || strcmp(text, "malloc") == 0;
    if (strcmp(text, "cuda:0") == 0)
        options->device = 0;
    else if (text[4] == ':' && options_unsigned(text + 5, 63, &number))
        options->device = (int)number;
    else
        return text[4] == '\0';
    return true;
}

static bool options_progress(const char *text, const char **progress)
{
    *progress = text;
    return strcmp(text, "manual") == 0 || strcmp(text, "auto") == 0
           || strcmp(text, "thread") == 0;
}

static bool options_waiting(const char *text, const char **waiting)
{
    *waiting = text;
    return strcmp(text, "spin") == 0 || strcmp(text, "yield") == 0;
}

static bool options_plot(const char *text, const char **plot)
{
    size_t length = strlen(text);

    *plot = text;
    return length > 4 && strchr(text, '\n') == NULL
           && (strcmp(text + length - 4, ".svg") == 0
               || strcmp(text + length - 4, ".png") == 0);
}

/* A column of the CSV: it must not look like two. */
static bool options_who(const char *text, const char **who)
{
    *who = text;
    return *text != '\0' && strpbrk(text, ",\"\n") == NULL;
}

/* False: the value is not one of this option. */
static bool options_set(enum option_id id, const char *value,
                        struct bench_options *options)
{
    switch (id) {
    case OPTION_SIZES: return options_sizes(value, options);
    case OPTION_WINDOW: return options_windows(value, options);
    case OPTION_REPETITIONS:
        return options_unsigned(value, 10000, &options->repetitions);
    case OPTION_LIMIT: return options_unsigned(value, 86400, &options->limit_s);
    case OPTION_TIME: return options_time(value, 0.01, 3600e3,
                                          &options->time_ms);
    case OPTION_WORK: return options_time(value, 0, 1e6, &options->work_us);
    case OPTION_FRESH: options->fresh = true; break;
    case OPTION_VERIFY: options->verify = true; break;
    case OPTION_OFFSET:
        return bench_size(value, &options->offset)
               && options->offset < BENCH_PAGE;
    case OPTION_BLOCKING: options->blocking = true; break;
    case OPTION_PROGRESS: return options_progress(value, &options->progress);
    case OPTION_POLL: options->poll = true; break;
    case OPTION_MEMORY: return options_memory(value, options);
    case OPTION_TENSORS: options->tensors = true; break;
    case OPTION_METADATA: return bench_size(value, &options->metadata);
    case OPTION_BUFFERS:
        return options_unsigned(value, BENCH_BUFFERS, &options->buffers);
    case OPTION_BORROW: options->borrow = true; break;
    case OPTION_CALIBRATE: options->calibrate = true; break;
    case OPTION_COMPARE: options->compare = true; break;
    case OPTION_FLOOR: options->floors = value; break;
    case OPTION_RANKS:
        return options_unsigned(value, 64, &options->ranks)
               && options->ranks > 1;
    case OPTION_OVER: return options_who(value, &options->over);
    case OPTION_WAITING: return options_waiting(value, &options->waiting);
    case OPTION_PIN: options->pin = true; break;
    case OPTION_CSV: options->format = BENCH_CSV; break;
    case OPTION_JSON: options->format = BENCH_JSON; break;
    case OPTION_PLOT: return options_plot(value, &options->plot);
    case OPTION_WHO: return options_who(value, &options->who);
    case OPTION_HELP: case OPTION_VERSION: case OPTION_COUNT: break;
    }
    return true;
}

/* What its argument has to be, if the argument's name does not tell. */
static const char *options_limits(enum option_id id)
{
    switch (id) {
    case OPTION_WINDOW: return " from 1 to 65536";
    case OPTION_REPETITIONS: return " from 1 to 10000";
    case OPTION_LIMIT: return " from 1 to 86400";
    case OPTION_TIME: return " from 0.01 to 3600000";
    case OPTION_WORK: return " from 0 to 1000000";
    case OPTION_OFFSET: return " below 4096";
    case OPTION_MEMORY: return " with N up to 63";
    case OPTION_BUFFERS: return " from 1 to 1024";
    case OPTION_RANKS: return " from 2 to 64";
    case OPTION_PLOT: return ".svg or .png";
    case OPTION_OVER: case OPTION_WHO: return " without commas and quotes";
    default: return "";
    }
}

/* ---- the line ----------------------------------------------------------- */

enum { OPTION_LONG = 1000 };       /* `val` of row 0: above every letter */

static void options_tables(enum bench_scope scope,
                           char letters[2 * OPTION_COUNT + 2],
                           struct option longs[OPTION_COUNT + 1])
{
    *letters++ = ':';
    for (int i = 0; i < OPTION_COUNT; i++) {
        const struct option_row *row = &option_table[i];

        if (!(row->scope & scope))
            continue;
        if (row->letter != 0)
            *letters++ = row->letter;
        if (row->letter != 0 && row->argument != NULL)
            *letters++ = ':';
        *longs++ = (struct option){ row->name, row->argument != NULL,
                                    NULL, OPTION_LONG + i };
    }
    *letters = '\0';
    *longs = (struct option){ NULL, 0, NULL, 0 };
}

/* The row behind what getopt returned; OPTION_COUNT if there is none. */
static enum option_id options_row(int code)
{
    if (code >= OPTION_LONG)
        return (enum option_id)(code - OPTION_LONG);
    for (int i = 0; i < OPTION_COUNT; i++)
        if (code != 0 && option_table[i].letter == code)
            return (enum option_id)i;
    return OPTION_COUNT;
}

/* Is more asked for than blocking calls can do? */
static bool options_shaped(const struct bench_options *options)
{
    return options->borrow || options->poll || options->tensors
           || options->metadata > 0 || options->buffers > 1;
}

/* Of what stands on the line only repetitions and time concern it. */
static bool options_calibrate(const struct bench_usage *usage,
                              const struct bench_options *options,
                              bool tests, int *status)
{
    if (options->compare && !options->calibrate)
        return options_mistake(usage, status, "--compare needs --calibrate",
                               "");
    if (options->calibrate
        && (tests || options->size_count > 0 || options->window_count > 0
            || options->blocking || options->memory || options->on_device
            || options_shaped(options) || options->verify
            || options->fresh || options->offset > 0
            || options->plot != NULL || options->pin
            || options->progress != NULL || options->who != NULL
            || options->format == BENCH_CSV))
        return options_mistake(usage, status, "--calibrate can be combined "
                               "with --compare, --json, --repetitions, --time "
                               "and --limit only", "");
    if (options->calibrate && getenv("PMIX_RANK") != NULL)
        return options_mistake(usage, status, "--calibrate starts its ranks "
                               "itself: run it without a launcher", "");
    return true;
}

static bool options_tests(int argc, char **argv,
                          const struct bench_usage *usage,
                          struct bench_options *options, int *status)
{
    if (!options_calibrate(usage, options, optind < argc, status))
        return false;
    for (int i = optind; i < argc; i++) {
        int test = 0;

        while (test < BENCH_TESTS
               && (strcmp(argv[i], option_tests[test].name) != 0
                   || !(usage->tests & BENCH_BIT(test))))
            test++;
        if (test == BENCH_TESTS)
            return options_mistake(usage, status, "there is no test", argv[i]);
        options->tests |= BENCH_BIT(test);
    }
    if (options->tests == 0)
        options->tests = BENCH_BIT(BENCH_LATENCY) | BENCH_BIT(BENCH_BANDWIDTH);
    return true;
}

/* What does not go together. */
static bool options_agree(const struct bench_usage *usage,
                          const struct bench_options *options, int *status)
{
    unsigned tests = options->tests;

    if ((tests & BENCH_BIT(BENCH_MEMORY)) && tests != BENCH_BIT(BENCH_MEMORY))
        return options_mistake(usage, status,
                               "the test memory must be run alone", "");
    if ((tests & (BENCH_BIT(BENCH_RING) | BENCH_BIT(BENCH_STAR)))
        && options->fresh)
        return options_mistake(usage, status,
                               "ring and star cannot be combined with --fresh",
                               "");
    if (options->blocking && (tests & (BENCH_BIT(BENCH_BIDIRECTIONAL)
                                       | BENCH_BIT(BENCH_OVERLAP))))
        return options_mistake(usage, status, "bidirectional and overlap "
                               "cannot be combined with --blocking", "");
    if ((options->blocking
         || (tests & (BENCH_BIT(BENCH_STAR) | BENCH_BIT(BENCH_MESH))))
        && (options_shaped(options) || options->on_device))
        return options_mistake(usage, status, "--blocking, star and mesh "
                               "cannot be combined with --borrow, --poll, "
                               "--tensors, "
                               "--metadata, --buffers and --memory cuda", "");
    if (options->borrow && options->buffers > 1)
        return options_mistake(usage, status,
                               "--borrow cannot be combined with --buffers",
                               "");
    if (options->on_device && (options->borrow || options->tensors))
        return options_mistake(usage, status, "--memory cuda cannot be "
                               "combined with --borrow and --tensors", "");
    if (options->offset > 0 && (options->on_device || options->borrow))
        return options_mistake(usage, status, "--offset cannot be combined "
                               "with --memory cuda and --borrow", "");
    if (options->poll && options->progress != NULL
        && strcmp(options->progress, "thread") == 0)
        return options_mistake(usage, status,
                               "--poll cannot be combined with --progress "
                               "thread", "");
    return true;
}

/* All ranks read the same words: one of them answering is enough.  (Of a
 * mistake every rank speaks: the first to end may end the others.) */
static bool options_speak(void)
{
    const char *rank = getenv("PMIX_RANK");

    return rank == NULL || strcmp(rank, "0") == 0;
}

static bool options_print(const struct bench_usage *usage, bool help,
                          int *status)
{
    *status = 0;
    if (!options_speak())
        return false;
    if (help)
        options_help(usage);
    else
        printf("%s (tp) %s\n", usage->program, PACKAGE_VERSION);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "%s: cannot write standard output\n", usage->program);
        *status = 1;
    }
    return false;
}

/* What getopt_long() did not understand.  In the middle of a cluster the word
 * is still the one before. */
static bool options_unknown(char **argv, const struct bench_usage *usage,
                            int *status)
{
    char letter[3] = { '-', (char)optopt, '\0' };

    if (optopt >= OPTION_LONG)
        return options_mistake(usage, status, "no value is allowed after",
                               argv[optind - 1]);
    return options_mistake(usage, status, "unknown option",
                           optopt != 0 ? letter : argv[optind - 1]);
}

bool bench_parse(int argc, char **argv, const struct bench_usage *usage,
                 struct bench_options *options, int *status)
{
    char letters[2 * OPTION_COUNT + 2];
    struct option longs[OPTION_COUNT + 1];
    int code;

    *options = (struct bench_options){ .repetitions = 7, .time_ms = 30,
                                       .work_us = BENCH_WORK_US,
                                       .limit_s = 120, .buffers = 1 };
    options_tables(usage->scope, letters, longs);
    opterr = 0;
    optind = 1;
    while ((code = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
        enum option_id id = options_row(code);

        if (code == ':')
            return options_mistake(usage, status, "a value is missing after",
                                   argv[optind - 1]);
        if (code == '?' || id == OPTION_COUNT)
            return options_unknown(argv, usage, status);
        if (id == OPTION_HELP || id == OPTION_VERSION)
            return options_print(usage, id == OPTION_HELP, status);
        if (!options_set(id, optarg, options)) {
            char words[96];

            snprintf(words, sizeof(words), "--%s: expected %s%s, not",
                     option_table[id].name, option_table[id].argument,
                     options_limits(id));
            return options_mistake(usage, status, words,
                                   *optarg != '\0' ? optarg : "\"\"");
        }
    }
    return options_tests(argc, argv, usage, options, status)
           && options_agree(usage, options, status);
}
