/* SPDX-License-Identifier: BSD-3-Clause */
/* tptop: the command line, and the loop. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launcher/tptop.h"
#include "runtime/base/io.h"

enum { TPTOP_USAGE = 2 };

/* Seconds between two looks whether the job has ended. */
static const double tptop_glance = 0.5;

static int tptop_refuse(int status, const struct tpb_error *error)
{
    fprintf(stderr, "tptop: %s\n", error->text);
    return status;
}

static tp_status tptop_seconds(const char *text, double *seconds,
                               struct tpb_error *error)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !(value >= 0.01 && value <= 1e6))
        return tpb_fail(error, TP_ERR_INVALID, "--interval %s: expected "
                        "seconds from 0.01 to 1000000", text);
    *seconds = value;
    return TP_OK;
}

/* A process id may have seven digits (kernel.pid_max). */
static tp_status tptop_number(const char *option, const char *text,
                              int *number, struct tpb_error *error)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (*text < '0' || *text > '9' || *end != '\0' || value < 1
        || value > INT_MAX)
        return tpb_fail(error, TP_ERR_INVALID, "%s %s: expected a whole number "
                        "from 1 to %d", option, text, INT_MAX);
    *number = (int)value;
    return TP_OK;
}

/* What getopt_long() did not understand.  In the middle of a cluster the word
 * is still the one before. */
static tp_status tptop_mistake(char **argv, int code, struct tpb_error *error)
{
    char letter[3] = { '-', (char)optopt, '\0' };
    const char *word = argv[optind - 1], *why = "there is no such option";

    if (code == ':')
        why = "an argument is missing";
    else if (optopt != 0 && strchr("jichV", optopt) != NULL)
        why = "it takes no argument";
    else if (optopt != 0)
        word = letter;
    return tpb_fail(error, TP_ERR_INVALID, "%s: %s; `tptop --help` lists the "
                    "options", word, why);
}

static tp_status tptop_parse(int argc, char **argv,
                             struct tptop_options *options,
                             struct tpb_error *error)
{
    static const struct option longs[] = {
        { "json", no_argument, NULL, 'j' },
        { "interval", required_argument, NULL, 'i' },
        { "count", required_argument, NULL, 'c' },
        { "help", no_argument, NULL, 'h' },
        { "version", no_argument, NULL, 'V' },
        { NULL, 0, NULL, 0 },
    };
    tp_status status = TP_OK;
    int code;

    *options = (struct tptop_options){ .interval = 1 };
    opterr = 0;
    while (status == TP_OK
           && (code = getopt_long(argc, argv, ":ji:c:hV", longs, NULL)) != -1)
        switch (code) {
        case 'j':
            options->json = true;
            break;
        case 'i':
            status = tptop_seconds(optarg, &options->interval, error);
            break;
        case 'c':
            status = tptop_number("--count", optarg, &options->count, error);
            break;
        case 'h':
            options->help = true;
            return TP_OK;
        case 'V':
            options->version = true;
            return TP_OK;
        default:
            return tptop_mistake(argv, code, error);
        }
    if (status == TP_OK && optind < argc)
        status = tptop_number("PID", argv[optind++], &options->pid, error);
    if (status == TP_OK && optind < argc)
        return tpb_fail(error, TP_ERR_INVALID, "one PID is enough");
    return status;
}

static int tptop_print(const char *text)
{
    struct tpb_error error = { "" };

    if (fputs(text, stdout) != EOF && fflush(stdout) == 0)
        return 0;
    tpb_fail_errno(&error, errno, "cannot write to standard output");
    return tptop_refuse(1, &error);
}

static int tptop_help(void)
{
    return tptop_print(
        "Usage: tptop [OPTION]... [PID]\n"
        "Show what the ranks of a running job do; PID is that of its tprun.\n\n"
        "  -j, --json\n"
        "        print one JSON object per interval instead of a screen\n"
        "  -i, --interval SECONDS\n"
        "        time between two samples; the default is 1\n"
        "  -c, --count N\n"
        "        stop after N samples instead of when the job ends\n"
        "  -h, --help\n"
        "        print this and exit\n"
        "  -V, --version\n"
        "        print the version and exit\n");
}

/* Does the tprun still run?  Its record would stay as it is, and its number
 * with who does not wait for it. */
static bool tptop_alive(pid_t pid, int process)
{
    struct pollfd end = { process, POLLIN, 0 };

    if (process < 0)               /* before Linux 5.3, or it is gone */
        return kill(pid, 0) == 0 || errno == EPERM;
    return poll(&end, 1, 0) != 1;
}

static bool tptop_sleep(const struct tptop_options *options, double seconds)
{
    struct timespec time = {
        (time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)
    };

    if (!options->json)
        return tptop_screen_wait(seconds);
    nanosleep(&time, NULL);
    return true;
}

/* Until the next sample; false if there is none, be it that the user leaves or
 * that the job ends. */
static bool tptop_wait(const struct tptop_options *options, int process)
{
    uint64_t until = tpb_now() + (uint64_t)(options->interval * 1e9), now;

    while ((now = tpb_now()) < until) {
        double left = (double)(until - now) * 1e-9;

        if (!tptop_sleep(options, left < tptop_glance ? left : tptop_glance)
            || !tptop_alive(options->pid, process))
            return false;
    }
    return true;
}

static int tptop_run(const struct tptop_options *options,
                     const struct tpb_record *record,
                     struct tpb_error *error)
{
    struct tptop_sample sample = { .pid = options->pid,
                                   .interval = options->interval };
    int status = 0, process = (int)syscall(SYS_pidfd_open, options->pid, 0);

    for (long i = 0; options->count == 0 || i <= options->count; i++) {
        if (tptop_look(&sample, record) != TP_OK) {
            tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
            status = 1;
            break;
        }
        /* The first look has no rates yet. */
        if (!options->json) {
            tptop_screen_show(&sample);
        } else if (i > 0 && tptop_json(&sample) != 0) {
            tpb_fail_errno(error, errno, "standard output");
            status = 1;
            break;
        }
        if (i == options->count && options->count > 0)
            break;
        if (!tptop_wait(options, process))
            break;
    }
    tptop_sample_fini(&sample);
    tpb_close(&process);
    return status;
}

int main(int argc, char **argv)
{
    struct tptop_options options;
    struct tpb_error error = { "" };
    struct tpb_record record = { .file = NULL };
    int status;

    /* Who writes to one that only reads hears the same as of none. */
    tpb_fill_standard(O_RDONLY | O_CLOEXEC);
    if (tptop_parse(argc, argv, &options, &error) != TP_OK)
        return tptop_refuse(TPTOP_USAGE, &error);
    if (options.help)
        return tptop_help();
    if (options.version)
        return tptop_print("tptop (tp) " PACKAGE_VERSION "\n");
    if (tptop_find(&options.pid, &record, &error) != TP_OK)
        return tptop_refuse(1, &error);
    if (!options.json && tptop_screen_open(&error) != TP_OK)
        return tptop_refuse(1, &error);
    status = tptop_run(&options, &record, &error);
    tptop_screen_close();
    tpb_record_close(&record);
    return status == 0 ? 0 : tptop_refuse(status, &error);
}
