/* SPDX-License-Identifier: BSD-3-Clause */
/* Model and measurement side by side, and how far they are apart. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/calibrate.h"
#include "bench/statistics.h"

enum { REPORT_MESSAGE = 64 << 10 };

double calibrate_cost(double latency_us, double megabytes)
{
    return latency_us + REPORT_MESSAGE / megabytes;
}

double calibrate_off(const struct calibrate_row *row)
{
    double measured = calibrate_cost(row->measured.latency_us,
                                     row->measured.megabytes);
    double model = calibrate_cost(row->latency_us, row->megabytes);

    return measured > model ? measured / model : model / measured;
}

static void report_row(const struct calibrate_row *row)
{
    printf("%-16s %-12s %9.2f us %7.0f  %9.2f us %7.0f  %6.2f x  %4.0f %%\n",
           row->locality, row->backend, row->measured.latency_us,
           row->measured.megabytes, row->latency_us, row->megabytes,
           calibrate_off(row), row->measured.error * 100);
}

/* The best transport of a locality, by measurement or by the model. */
static const struct calibrate_row *
report_best(const struct calibrate_table *table, const char *locality,
            bool model)
{
    const struct calibrate_row *best = NULL;
    double least = 0;

    for (unsigned i = 0; i < table->count; i++) {
        const struct calibrate_row *row = &table->rows[i];
        double cost = model ? calibrate_cost(row->latency_us, row->megabytes)
                      : calibrate_cost(row->measured.latency_us,
                                       row->measured.megabytes);

        if (row->channel || strcmp(row->locality, locality) != 0
            || (best != NULL && cost >= least))
            continue;
        best = row;
        least = cost;
    }
    return best;
}

/* Where the choice would be another one. */
static void report_choices(const struct calibrate_table *table)
{
    for (unsigned i = 0; i < table->count; i++) {
        const char *locality = table->rows[i].locality;
        const struct calibrate_row *measured, *model;

        if (i > 0 && strcmp(table->rows[i - 1].locality, locality) == 0)
            continue;
        measured = report_best(table, locality, false);
        model = report_best(table, locality, true);
        if (measured != NULL && model != NULL)
            printf("%s: %s by measurement, %s by the model\n", locality,
                   measured->backend, measured == model ? "the same"
                   : model->backend);
    }
}

bool calibrate_print(const struct calibrate_table *table)
{
    double off[CALIBRATE_ROWS];
    unsigned count = 0;

    printf("%-16s %-12s %12s %7s  %12s %7s  %8s  %6s\n", "locality", "backend",
           "measured", "MB/s", "model", "MB/s", "off by", "fit");
    for (unsigned i = 0; i < table->count; i++) {
        report_row(&table->rows[i]);
        if (!table->rows[i].devices || !table->is_double)
            off[count++] = calibrate_off(&table->rows[i]);
    }
    if (count > 0) {
        bench_sort(off, count);
        report_choices(table);
        printf("For 64 KiB the model is off by a factor of %.2f (median), %.2f "
               "at worst.\n", bench_quantile(off, count, 0.5),
               off[count - 1]);
    }
    if (table->is_double)
        printf("The figures of cuda_... were measured on a test double, not on "
               "a GPU.\n");
    if (table->stored != NULL)
        printf("Stored in %s, for machines of topology %s.\n", table->stored,
               table->machine);
    return fflush(stdout) == 0 && !ferror(stdout);
}
