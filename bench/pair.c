/* SPDX-License-Identifier: BSD-3-Clause */
/* Starts two ranks of tpperf, and collects what rank 0 prints. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"
#include "bench/pair.h"

enum { PAIR_OUTPUT = 256 << 10 };

static volatile sig_atomic_t pair_signal;

struct pair {
    const struct pair_run *run;
    char folder[32];               /* where the ranks meet */
    pid_t pids[2];
    char output[PAIR_OUTPUT];
};

static void pair_note(int number)
{
    pair_signal = number;
}

/* Without SA_RESTART: what waits wakes up. */
void pair_init(void)
{
    struct sigaction action = { .sa_handler = pair_note };

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

int pair_interrupted(void)
{
    return pair_signal;
}

/* ---- a rank ------------------------------------------------------------ */

static void pair_environment(const struct pair *pair, int rank)
{
    char folder[64], number[8];

    snprintf(folder, sizeof(folder), "dir:%s", pair->folder);
    snprintf(number, sizeof(number), "%d", rank);
    setenv("TP_BOOTSTRAP", folder, 1);
    setenv("TP_RANK", number, 1);
    setenv("TP_SIZE", "2", 1);
    setenv("TP_BACKENDS", pair->run->backends, 1);
    setenv("TP_REQUIRE", pair->run->require, 1);
    /* What the model says is wanted. */
    setenv("TP_COSTS", "none", 1);
    unsetenv("TP_EXPLAIN");
}

static void pair_exec(const struct pair *pair, int rank)
{
    char repetitions[16], time[32], limit[16];

    snprintf(repetitions, sizeof(repetitions), "%u", pair->run->repetitions);
    snprintf(time, sizeof(time), "%g", pair->run->time_ms);
    snprintf(limit, sizeof(limit), "%u", pair->run->limit_s);
    execl("/proc/self/exe", "tpperf", "--json", "--fresh", "--sizes",
          pair->run->sizes, "--repetitions", repetitions, "--time", time,
          "--limit", limit, "--memory", pair->run->memory[rank], "latency",
          (char *)NULL);
}

/* In the child; dies with us. */
static void pair_rank(const struct pair *pair, int rank, int output,
                      pid_t parent)
{
    cpu_set_t cpus;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    CPU_ZERO(&cpus);
    CPU_SET(pair->run->cpu[rank], &cpus);
    if (sched_setaffinity(0, sizeof(cpus), &cpus) < 0) {
        bench_say("cannot run on cpu %u: %s", pair->run->cpu[rank],
                  strerror(errno));
        _exit(1);
    }
    if (dup2(output, STDOUT_FILENO) < 0)
        _exit(1);
    pair_environment(pair, rank);
    pair_exec(pair, rank);
    bench_say("cannot start itself again: %s", strerror(errno));
    _exit(1);
}

static bool pair_start(struct pair *pair, int output[2])
{
    pid_t parent = getpid();

    if (pipe2(output, O_CLOEXEC) < 0) {
        bench_say("cannot make a pipe: %s", strerror(errno));
        return false;
    }
    for (int rank = 0; rank < 2; rank++) {
        pair->pids[rank] = fork();
        if (pair->pids[rank] == 0)
            pair_rank(pair, rank, output[1], parent);
        if (pair->pids[rank] < 0) {
            bench_say("cannot start a rank: %s", strerror(errno));
            return false;
        }
    }
    return true;
}

/* ---- both -------------------------------------------------------------- */

/* Until the ranks have closed it; they give up by themselves in time. */
static bool pair_collect(struct pair *pair, int fd)
{
    size_t used = 0;
    ssize_t got = 1;

    while (pair_signal == 0 && used + 1 < sizeof(pair->output)) {
        got = read(fd, pair->output + used, sizeof(pair->output) - 1 - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    pair->output[used] = '\0';
    return pair_signal == 0 && got == 0;
}

/* Have both ended well?  If `kill_them`, whoever has not ended is killed. */
static bool pair_reap(struct pair *pair, bool kill_them)
{
    bool good = true;

    for (int rank = 0; rank < 2; rank++) {
        int status = 0;

        if (pair->pids[rank] <= 0)
            continue;
        if (kill_them)
            kill(pair->pids[rank], SIGKILL);
        while (waitpid(pair->pids[rank], &status, 0) < 0 && errno == EINTR)
            if (pair_signal != 0)
                kill(pair->pids[rank], SIGKILL);
        good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    return good;
}

static void pair_clean(const struct pair *pair)
{
    DIR *folder = opendir(pair->folder);
    struct dirent *entry;

    while (folder != NULL && (entry = readdir(folder)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder != NULL)
        closedir(folder);
    rmdir(pair->folder);
}

static bool pair_run(struct pair *pair, struct pair_result *result)
{
    int output[2] = { -1, -1 };
    bool good = pair_start(pair, output);

    if (output[1] >= 0)
        close(output[1]);
    good = good && pair_collect(pair, output[0]);
    if (output[0] >= 0)
        close(output[0]);
    good = pair_reap(pair, !good) && good;
    if (good && !pair_parse(pair->output, result)) {
        bench_say("the results of the ranks cannot be understood");
        good = false;
    }
    return good && pair_signal == 0;
}

bool pair_measure(const struct pair_run *run, struct pair_result *result)
{
    struct pair *pair = calloc(1, sizeof(*pair));
    bool good = false;

    if (pair == NULL) {
        bench_say("out of memory");
        return false;
    }
    pair->run = run;
    snprintf(pair->folder, sizeof(pair->folder), "/tmp/tpperf-XXXXXX");
    if (mkdtemp(pair->folder) == NULL) {
        bench_say("cannot create a folder in /tmp: %s", strerror(errno));
    } else {
        good = pair_run(pair, result);
        pair_clean(pair);
    }
    free(pair);
    return good;
}
