/* SPDX-License-Identifier: BSD-3-Clause */
/* Results, as a table or as CSV. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/report.h"

static struct {
    enum bench_format format;
    bool quiet, failed;
    const char *plot;          /* a file's name, or NULL */
    char heading[160];         /* of the table that is being printed */
} report;

void bench_report_open(enum bench_format format, bool quiet)
{
    report.format = format;
    report.quiet = quiet;
    report.failed = false;
    report.heading[0] = '\0';
    if (!quiet && format == BENCH_CSV) {
        puts(BENCH_CSV_HEADER);
        /* A process that forks must not have it twice. */
        fflush(stdout);
    }
}

static void report_csv_number(double value)
{
    if (isnan(value))
        putchar(',');
    else
        printf(",%.6g", value);
}

static void report_csv(const struct bench_result *r)
{
    printf("%s,%s,%s,%s,%d,%u,%zu,%s", r->who, r->test, r->mode, r->buffers,
           r->ranks, r->window, r->bytes, r->unit);
    report_csv_number(r->value);
    report_csv_number(r->low);
    report_csv_number(r->high);
    report_csv_number(r->best);
    report_csv_number(r->p99);
    printf(",%u", r->repetitions);
    report_csv_number(r->waited);
    putchar('\n');
}

/* Whole from 100 on, else three digits: what can be read at a glance. */
static void report_number(double value)
{
    int digits = 0;

    if (isnan(value)) {
        printf(" %10s", "-");
        return;
    }
    if (fabs(value) < 99.95)
        digits = fabs(value) < 9.995 ? 3 : 2;
    printf(" %10.*f", digits, value);
}

/* A line above the figures whenever they are of another kind. */
static void report_heading(const struct bench_result *r)
{
    char heading[sizeof(report.heading)];

    snprintf(heading, sizeof(heading), "%s, %s, %s, %s%s%d ranks, %s", r->who,
             r->test, r->mode, strcmp(r->buffers, "-") == 0 ? "" : r->buffers,
             strcmp(r->buffers, "-") == 0 ? "" : " buffers, ", r->ranks,
             r->unit);
    if (strcmp(heading, report.heading) == 0)
        return;
    printf("%s# %s\n", report.heading[0] == '\0' ? "" : "\n", heading);
    printf("%10s %6s %10s %10s %10s %10s %10s\n", "bytes", "window", "median",
           "lowest", "highest", "best", "p99");
    strcpy(report.heading, heading);
}

static void report_text(const struct bench_result *r)
{
    char window[16] = "-";

    report_heading(r);
    if (r->window > 0)
        snprintf(window, sizeof(window), "%u", r->window);
    printf("%10zu %6s", r->bytes, window);
    report_number(r->value);
    report_number(r->low);
    report_number(r->high);
    report_number(r->best);
    report_number(r->p99);
    putchar('\n');
}

void bench_report(const struct bench_result *result)
{
    if (report.quiet)
        return;
    if (report.plot != NULL)
        report.failed |= !bench_plot_add(result);
    if (report.format == BENCH_JSON)
        report.failed |= !bench_json_add(result);
    else if (report.format == BENCH_CSV)
        report_csv(result);
    else
        report_text(result);
    fflush(stdout);
}

void bench_report_plot(const char *file)
{
    report.plot = report.quiet ? NULL : file;
}

void bench_report_plan(const char *plan)
{
    if (!report.quiet && report.format == BENCH_JSON && plan != NULL)
        report.failed |= !bench_json_plan(plan);
}

bool bench_report_close(void)
{
    if (report.quiet)
        return true;
    if (report.format == BENCH_JSON)
        report.failed |= !bench_json_print();
    if (fflush(stdout) != 0 || ferror(stdout) || report.failed) {
        bench_say("cannot write standard output");
        return false;
    }
    return report.plot == NULL || bench_plot_draw(report.plot);
}
