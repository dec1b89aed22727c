/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Results as a picture, drawn by gnuplot: a panel for each test, a curve for
 * each kind of figure in it, over the size or, for message rates, the window.
 */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/report.h"

enum { PLOT_LABEL = 128, PLOT_WIDTH = 800, PLOT_HEIGHT = 500 };

static struct bench_result *plot_results;
static size_t plot_count;

static bool plot_gnuplot(void)
{
    const char *path = getenv("PATH");
    char file[4096];

    while (path != NULL && *path != '\0') {
        size_t length = strcspn(path, ":");

        snprintf(file, sizeof(file), "%.*s/gnuplot", (int)length, path);
        if (access(file, X_OK) == 0)
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

bool bench_plot_possible(const char *file)
{
    const char *rank = getenv("PMIX_RANK");
    FILE *plot;

    /* It is rank 0 that draws. */
    if (rank != NULL && strcmp(rank, "0") != 0)
        return true;
    if (!plot_gnuplot()) {
        bench_say("--plot needs gnuplot (apt-get install gnuplot-nox)");
        return false;
    }
    plot = fopen(file, "ae");
    if (plot == NULL)
        bench_say("--plot: cannot write %s: %s", file, strerror(errno));
    return plot != NULL && fclose(plot) == 0;
}

static bool plot_by_window(const struct bench_result *r)
{
    return strcmp(r->unit, "M/s") == 0;
}

bool bench_plot_add(const struct bench_result *result)
{
    struct bench_result *more;

    /* What has no size is no curve. */
    if (result->bytes == 0)
        return true;
    more = realloc(plot_results, (plot_count + 1) * sizeof(*more));
    if (more == NULL)
        return false;
    plot_results = more;
    plot_results[plot_count++] = *result;
    return true;
}

/* ---- what belongs together ---------------------------------------------- */

static void plot_label(const struct bench_result *r, char label[PLOT_LABEL])
{
    int length = snprintf(label, PLOT_LABEL, "%s, %s buffers", r->mode,
                          r->buffers);

    if (length < 0 || length >= PLOT_LABEL)
        return;
    if (plot_by_window(r))
        snprintf(label + length, PLOT_LABEL - (size_t)length, ", %zu bytes",
                 r->bytes);
    else if (r->window > 0)
        snprintf(label + length, PLOT_LABEL - (size_t)length, ", window %u",
                 r->window);
}

static bool plot_same_panel(const struct bench_result *a,
                            const struct bench_result *b)
{
    return strcmp(a->test, b->test) == 0;
}

static bool plot_same_curve(const struct bench_result *a,
                            const struct bench_result *b)
{
    char left[PLOT_LABEL], right[PLOT_LABEL];

    plot_label(a, left);
    plot_label(b, right);
    return plot_same_panel(a, b) && strcmp(left, right) == 0;
}

/* Is this the first of those that belong together? */
static bool plot_first(size_t i, bool (*same)(const struct bench_result *,
                                              const struct bench_result *))
{
    for (size_t k = 0; k < i; k++)
        if (same(&plot_results[k], &plot_results[i]))
            return false;
    return true;
}

/* ---- what gnuplot reads ------------------------------------------------- */

/* In single quotes, which are doubled inside. */
static void plot_quote(FILE *to, const char *text)
{
    putc('\'', to);
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            putc('\'', to);
        putc(*text, to);
    }
    putc('\'', to);
}

static void plot_data(FILE *to, size_t first)
{
    fprintf(to, "$data%zu << EOD\n", first);
    for (size_t i = first; i < plot_count; i++) {
        const struct bench_result *r = &plot_results[i];

        if (plot_same_curve(&plot_results[first], r))
            fprintf(to, "%zu %g %g %g\n",
                    plot_by_window(r) ? (size_t)r->window : r->bytes, r->value,
                    r->low, r->high);
    }
    fprintf(to, "EOD\n");
}

static void plot_panel(FILE *to, size_t first)
{
    const struct bench_result *panel = &plot_results[first];
    char text[PLOT_LABEL];
    const char *before = "plot ";

    for (size_t i = first; i < plot_count; i++)
        if (plot_same_panel(panel, &plot_results[i])
            && plot_first(i, plot_same_curve))
            plot_data(to, i);
    snprintf(text, sizeof(text), "%s: %s, %d ranks", panel->who, panel->test,
             panel->ranks);
    fprintf(to, "set title ");
    plot_quote(to, text);
    fprintf(to, "\nset xlabel '%s'\nset ylabel '%s'\n",
            plot_by_window(panel) ? "window" : "bytes", panel->unit);
    for (size_t i = first; i < plot_count; i++) {
        if (!plot_same_panel(panel, &plot_results[i])
            || !plot_first(i, plot_same_curve))
            continue;
        plot_label(&plot_results[i], text);
        fprintf(to, "%s$data%zu with yerrorlines title ", before, i);
        plot_quote(to, text);
        before = ", ";
    }
    fprintf(to, "\n");
}

static void plot_script(FILE *to, const char *file)
{
    size_t length = strlen(file);
    bool png = length > 4 && strcmp(file + length - 4, ".png") == 0;
    int panels = 0;

    for (size_t i = 0; i < plot_count; i++)
        panels += plot_first(i, plot_same_panel);
    fprintf(to, "set terminal %s size %d,%d noenhanced\nset output ",
            png ? "pngcairo" : "svg", PLOT_WIDTH, PLOT_HEIGHT * panels);
    plot_quote(to, file);
    fprintf(to, "\nset multiplot layout %d,1\nset logscale x 2\n"
            "set logscale y 10\nset format x '%%.0b%%B'\nset grid\n"
            "set key outside below\n", panels);
    for (size_t i = 0; i < plot_count; i++)
        if (plot_first(i, plot_same_panel))
            plot_panel(to, i);
    fprintf(to, "unset multiplot\nunset output\n");
}

bool bench_plot_draw(const char *file)
{
    FILE *gnuplot;
    bool good;

    if (plot_count == 0) {
        bench_say("none of the results can be drawn in %s", file);
        return false;
    }
    /* If it ends early, writing to it fails, and that is told. */
    signal(SIGPIPE, SIG_IGN);
    /* Its own output is the picture, where it cannot write the file. */
    gnuplot = popen("exec gnuplot >/dev/null", "we");
    if (gnuplot == NULL) {
        bench_say("cannot start gnuplot");
        return false;
    }
    plot_script(gnuplot, file);
    good = !ferror(gnuplot);
    good = pclose(gnuplot) == 0 && good;
    if (!good)
        bench_say("gnuplot could not draw %s", file);
    free(plot_results);
    plot_results = NULL;
    plot_count = 0;
    return good;
}
