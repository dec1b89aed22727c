/* SPDX-License-Identifier: BSD-3-Clause */
/* What the programs want from the machine: words, a cpu, an end. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"

void bench_say(const char *format, ...)
{
    char text[512];
    va_list list;

    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, text);
}

double bench_memory(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    double total = 0, kib;
    char line[128];

    if (file == NULL)
        return 0;
    while (fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "MemTotal: %lf", &kib) == 1
            || sscanf(line, "SwapTotal: %lf", &kib) == 1)
            total += kib * 1024;
    fclose(file);
    return total;
}

/* Of schedstat's three figures the second one. */
double bench_waited_ns(void)
{
    FILE *file = fopen("/proc/self/schedstat", "re");
    double waited = NAN;

    if (file == NULL)
        return NAN;
    if (fscanf(file, "%*s %lf", &waited) != 1)
        waited = NAN;
    fclose(file);
    return waited;
}

/* A number that the kernel tells of a cpu; `otherwise` if it does not. */
static int machine_cpu_number(int cpu, const char *name, int otherwise)
{
    char path[128];
    FILE *file;
    int number;

    snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/%s",
             cpu, name);
    file = fopen(path, "re");
    if (file == NULL)
        return otherwise;
    if (fscanf(file, "%d", &number) != 1)
        number = otherwise;
    fclose(file);
    return number;
}

struct machine_cpu {
    int cpu, package, core;
    int thread;                    /* the how many-th of its core */
};

/* Each core's first thread before any second one, and package by package, as
 * launchers bind their ranks. */
static int machine_cpu_order(const void *left, const void *right)
{
    const struct machine_cpu *a = left, *b = right;

    if (a->thread != b->thread)
        return a->thread - b->thread;
    return a->package != b->package ? a->package - b->package : a->cpu - b->cpu;
}

/* Of the allowed ones in that order the n-th, from 0 and round. */
static int machine_cpu_at(const cpu_set_t *allowed, int n)
{
    static struct machine_cpu cpus[CPU_SETSIZE];
    int count = 0;

    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        struct machine_cpu *this = &cpus[count];

        if (!CPU_ISSET(cpu, allowed))
            continue;
        *this = (struct machine_cpu){
            .cpu = cpu,
            .package = machine_cpu_number(cpu, "physical_package_id", 0),
            .core = machine_cpu_number(cpu, "thread_siblings_list", cpu)
        };
        for (int i = 0; i < count; i++)
            this->thread += cpus[i].core == this->core;
        count++;
    }
    qsort(cpus, (size_t)count, sizeof(*cpus), machine_cpu_order);
    return cpus[n % count].cpu;
}

bool bench_pin(int n)
{
    cpu_set_t allowed, one;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
        bench_say("cannot see which cpus may be used: %s", strerror(errno));
        return false;
    }
    CPU_ZERO(&one);
    CPU_SET(machine_cpu_at(&allowed, n), &one);
    if (sched_setaffinity(0, sizeof(one), &one) != 0) {
        bench_say("cannot bind to a cpu: %s", strerror(errno));
        return false;
    }
    return true;
}

/* In a signal handler: only write() and _exit() are allowed. */
static void machine_too_late(int signal)
{
    static const char text[] =
        "one measurement took longer than --limit allows: giving up\n";

    (void)signal;
    if (write(STDERR_FILENO, program_invocation_short_name,
              strlen(program_invocation_short_name)) >= 0
        && write(STDERR_FILENO, ": ", 2) >= 0
        && write(STDERR_FILENO, text, sizeof(text) - 1) >= 0)
        _exit(1);
    _exit(1);
}

void bench_limit(unsigned seconds)
{
    struct sigaction action = { .sa_handler = machine_too_late };

    sigaction(SIGALRM, &action, NULL);
    alarm(seconds);
}
