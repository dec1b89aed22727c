/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How long a job takes to start and end, and what it costs, by its size:
 *
 *   startup [-r REPETITIONS] [-n 1,2,...] TPRUN [OPTION]...
 *
 * Three programs are started: true, a bare PMIx client, and the same with
 * tp_init and tp_finalize.  They take turns, so that what else the machine does
 * hits all alike.  `wall` is the best of all repetitions and `median` theirs;
 * `cpu` is the processor time of the whole tree, by rank, which other work
 * disturbs least.
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

enum { STARTUP_KINDS = 3, STARTUP_ARGS = 32, STARTUP_RUNS = 1000 };

struct startup_cost {
    double wall[STARTUP_RUNS];     /* ms */
    double cpu;                    /* ms, best */
    long memory;                   /* KiB, of the biggest process: tprun */
};

static const char *const startup_names[STARTUP_KINDS] = {
    "true", "bare PMIx", "tp"
};
static char startup_programs[STARTUP_KINDS][PATH_MAX] = { "true" };

static double startup_ms(struct timeval time)
{
    return (double)time.tv_sec * 1e3 + (double)time.tv_usec / 1e3;
}

/* One job; ends this program if it fails. */
static void startup_run(char **options, int ranks, char *program,
                        struct startup_cost *cost, int run)
{
    char number[16];
    char *argv[STARTUP_ARGS + 4];
    struct rusage usage;
    uint64_t begun;
    double cpu;
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
    cpu = startup_ms(usage.ru_utime) + startup_ms(usage.ru_stime);
    if (run == 0 || cpu < cost->cpu)
        cost->cpu = cpu;
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
        printf("%6d  %-10s %9.1f %9.1f %12.2f %10.1f", ranks,
               startup_names[kind], cost->wall[0],
               cost->wall[repetitions / 2], cost->cpu / ranks,
               (double)cost->memory / 1024);
        if (kind == 2)
            printf("   %.2f", cost->wall[0] / base);
        printf("\n");
    }
    fflush(stdout);
}

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
    printf(" ranks  program     wall ms median ms  cpu ms/rank  tprun MiB   "
           "tp/bare\n");
    for (; *list != '\0'; list += strcspn(list, ","), list += *list == ',')
        if (atoi(list) > 0)
            startup_size(argv + optind, atoi(list), repetitions);
    return 0;
}
