/* SPDX-License-Identifier: BSD-3-Clause */
/* What the programs want from the machine: words, a cpu, an end. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
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

bool bench_pin(int n)
{
    cpu_set_t allowed, one;
    int count;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
        bench_say("cannot see which cpus may be used: %s", strerror(errno));
        return false;
    }
    count = CPU_COUNT(&allowed);
    n %= count;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && n-- == 0)
            CPU_SET(cpu, &one);
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
