/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How long a job takes to start and end, and what it costs, by its size:
 *
 *   startup [-r REPETITIONS] [-n 1,2,...] TPRUN [OPTION]...
 *
 * Three programs are started: true, a bare PMIx client, and the same with
 * tp_init and tp_finalize.  They take turns, so that what else the machine does
 * hits all alike.  `wall` is the best of all repetitions and `median` theirs.
 * By rank, of the whole tree, on average: `user` and `system`, the processor
 * time, which other work disturbs least, `switches` between processes, and page
 * `faults`.
 *
 * Behind the table stand the knees: where a further rank costs more than it did
 * between the two sizes before, and what of it grew.
 */
#include "config.h"

#include <libgen.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/base.h"

enum {
    STARTUP_KINDS = 3, STARTUP_ARGS = 32, STARTUP_RUNS = 1000,
    STARTUP_POINTS = 32
};

struct startup_cost {
    double wall[STARTUP_RUNS];     /* ms */
    double user, system;           /* ms, on average */
    double switches, faults;       /* on average */
    long memory;                   /* KiB, of the biggest process: tprun */
};

/* What the curve is made of. */
static struct startup_point {
    int ranks;
    double wall[STARTUP_KINDS], user[STARTUP_KINDS], system[STARTUP_KINDS];
} startup_points[STARTUP_POINTS];
static int startup_point_count;

static const char *const startup_names[STARTUP_KINDS] = {
    "true", "bare PMIx", "tp"
};
static char startup_programs[STARTUP_KINDS][PATH_MAX] = { "true" };

static double startup_ms(struct timeval time)
{
    return (double)time.tv_sec * 1e3 + (double)time.tv_usec / 1e3;
}

static void startup_mean(double *mean, double value, int before)
{
    *mean += (value - *mean) / (before + 1);
}

/* One job; ends this program if it fails. */
static void startup_run(char **options, int ranks, char *program,
                        struct startup_cost *cost, int run)
{
    char number[16];
    char *argv[STARTUP_ARGS + 4];
    struct rusage usage;
    uint64_t begun;
    int n = 0, status;
    pid_t pid;

    snprintf(number, sizeof(number), "%d", ranks);
    for (; options[n] != NULL && n < STARTUP_ARGS; n++)
        argv[n] = options[n];
    argv[n++] = (char *)"-n";
    argv[n++] = number;
    argv[n++] = program;
    argv[n] = NULL;
    begun = tpb_now();
    if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) != 0
        || wait4(pid, &status, 0, &usage) != pid || status != 0) {
        fprintf(stderr, "startup: %s -n %d %s failed\n", argv[0], ranks,
                program);
        exit(1);
    }
    cost->wall[run] = (double)(tpb_now() - begun) / 1e6;
    startup_mean(&cost->user, startup_ms(usage.ru_utime), run);
    startup_mean(&cost->system, startup_ms(usage.ru_stime), run);
    startup_mean(&cost->switches, (double)(usage.ru_nvcsw + usage.ru_nivcsw),
                 run);
    startup_mean(&cost->faults, (double)(usage.ru_minflt + usage.ru_majflt),
                 run);
    if (usage.ru_maxrss > cost->memory)
        cost->memory = usage.ru_maxrss;
}

static int startup_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void startup_size(char **options, int ranks, int repetitions)
{
    static struct startup_cost costs[STARTUP_KINDS];
    static double base;
    struct startup_point *point = NULL;

    if (startup_point_count < STARTUP_POINTS)
        point = &startup_points[startup_point_count++];
    memset(costs, 0, sizeof(costs));
    for (int run = 0; run < repetitions; run++)
        for (int kind = 0; kind < STARTUP_KINDS; kind++)
            startup_run(options, ranks, startup_programs[kind], &costs[kind],
                        run);
    for (int kind = 0; kind < STARTUP_KINDS; kind++) {
        struct startup_cost *cost = &costs[kind];

        qsort(cost->wall, (size_t)repetitions, sizeof(double),
              startup_compare);
        if (kind == 1)
            base = cost->wall[0];
        printf("%6d  %-10s %9.1f %9.1f %7.2f %7.2f %9.1f %7.0f %10.1f",
               ranks, startup_names[kind], cost->wall[0],
               cost->wall[repetitions / 2], cost->user / ranks,
               cost->system / ranks, cost->switches / ranks,
               cost->faults / ranks, (double)cost->memory / 1024);
        if (point != NULL) {
            point->ranks = ranks;
            point->wall[kind] = cost->wall[0];
            point->user[kind] = cost->user;
            point->system[kind] = cost->system;
        }
        if (kind == 2)
            printf("   %.2f", cost->wall[0] / base);
        printf("\n");
    }
    fflush(stdout);
}

/* ---- knees --------------------------------------------------------------- */

/* What one rank more costs between two sizes. */
struct startup_step {
    double wall, user, system;
};

static struct startup_step startup_step(const struct startup_point *from,
                                        const struct startup_point *to,
                                        int kind)
{
    double more = to->ranks - from->ranks;

    return (struct startup_step){
        .wall = (to->wall[kind] - from->wall[kind]) / more,
        .user = (to->user[kind] - from->user[kind]) / more,
        .system = (to->system[kind] - from->system[kind]) / more,
    };
}

/* The words say what was measured: processor time of which kind, whether the
 * bare client has the same knee, or waiting that no processor time explains. */
static void startup_knee(const struct startup_point *at, int kind)
{
    struct startup_step before = startup_step(at - 1, at, kind);
    struct startup_step after = startup_step(at, at + 1, kind);
    double bare = startup_step(at, at + 1, 1).wall
                  - startup_step(at - 1, at, 1).wall;
    double more = after.wall - before.wall;

    if (more < 0.25 * before.wall || more < 0.1)
        return;
    printf("knee at %d ranks, %s: %.2f ms for a further rank, %.2f before;"
           " user %+.2f, system %+.2f ms", at->ranks, startup_names[kind],
           after.wall, before.wall, after.user - before.user,
           after.system - before.system);
    if (kind == 2 && bare > 0)
        printf("; %.0f %% of it in bare PMIx, too",
               bare < more ? 100 * bare / more : 100);
    if (after.user + after.system < before.user + before.system + more / 4)
        printf("; the rest is waiting");
    printf("\n");
}

static void startup_knees(void)
{
    for (int kind = 0; kind < STARTUP_KINDS; kind++)
        for (int i = 1; i + 1 < startup_point_count; i++)
            if (startup_points[i - 1].ranks < startup_points[i].ranks
                && startup_points[i].ranks < startup_points[i + 1].ranks)
                startup_knee(&startup_points[i], kind);
}

/* ---- the whole ----------------------------------------------------------- */

/* The programs lie beside this one, perhaps behind libtool's wrappers. */
static void startup_find(void)
{
    static const char *const names[STARTUP_KINDS] = {
        NULL, "startup_pmix", "startup_tp"
    };
    char self[PATH_MAX] = "", libraries[PATH_MAX];
    char *folder;

    if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
        return;
    folder = dirname(self);
    if (strcmp(basename(folder), ".libs") == 0)
        folder = dirname(folder);
    for (int kind = 1; kind < STARTUP_KINDS; kind++) {
        snprintf(startup_programs[kind], PATH_MAX, "%.*s/.libs/%s",
                 PATH_MAX - 64, folder, names[kind]);
        if (access(startup_programs[kind], X_OK) < 0)
            snprintf(startup_programs[kind], PATH_MAX, "%.*s/%s",
                     PATH_MAX - 64, folder, names[kind]);
    }
    /* Where the program itself is, without the wrapper that says so. */
    snprintf(libraries, sizeof(libraries), "%.*s/../.libs", PATH_MAX - 64,
             folder);
    if (access(libraries, X_OK) == 0)
        setenv("LD_LIBRARY_PATH", libraries, 1);
}

int main(int argc, char **argv)
{
    const char *list = "1,2,4,8,16,32,64,128,256";
    int repetitions = 9, option;

    while ((option = getopt(argc, argv, "+r:n:")) != -1) {
        if (option == 'r')
            repetitions = atoi(optarg);
        else if (option == 'n')
            list = optarg;
        else
            return 2;
    }
    if (optind >= argc || argc - optind > STARTUP_ARGS || repetitions < 1
        || repetitions > STARTUP_RUNS) {
        fprintf(stderr, "usage: startup [-r REPETITIONS] [-n 1,2,...] TPRUN "
                "[OPTION]...\n");
        return 2;
    }
    startup_find();
    printf("                                          by rank\n"
           " ranks  program     wall ms median ms    user  system  switches "
           " faults  tprun MiB   tp/bare\n");
    for (; *list != '\0'; list += strcspn(list, ","), list += *list == ',')
        if (atoi(list) > 0)
            startup_size(argv + optind, atoi(list), repetitions);
    startup_knees();
    return 0;
}
