/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Runs the real tprun for a test: captured output, a deadline, and a look
 * afterwards at what is left of it.
 */
#ifndef TPX_RUN_H
#define TPX_RUN_H

#include <sys/resource.h>
#include <sys/types.h>

#include "tests/lib/tpx.h"

/* One run.  Zeroed is empty. */
struct tpx_launch {
    pid_t pid;
    int status;                    /* as a shell shows it: 128+n for signals */
    int raw;                       /* from wait4 */
    int out_fd, err_fd;            /* memory files */
    char *out, *err;               /* filled by tpx_finish(), terminated */
    size_t out_length, err_length;
    struct rusage usage;
    char mark[48];                 /* in the environment of all its processes */
};

/* Where the helper program is: the argument after tprun's own options. */
const char *tpx_rank_program(void);

/*
 * Starts tprun with these arguments (NULL-terminated; "RANK" stands for the
 * helper program).  Standard input is `in` (-1: /dev/null); standard output
 * and error go to memory unless out_fd or err_fd is set (> 0) before.
 */
void tpx_launch(struct tpx_launch *launch, int in, const char *const *args);

/* Waits at most `seconds`, then kills it and fails the test; fails also if a
 * process of it is left. */
void tpx_finish(struct tpx_launch *launch, double seconds);

/* Both, within 90 s; tpx_run_tprun(&launch, "-n", "2", "true"). */
#define tpx_run_tprun(launch, ...) \
    do { \
        tpx_launch((launch), -1, (const char *const[]){ __VA_ARGS__, NULL }); \
        tpx_finish((launch), 90); \
    } while (0)

/* Waits until the output so far holds `text` `count` times, at most so long; or
 * for two minutes, and fails. */
bool tpx_output_comes(struct tpx_launch *launch, const char *text, int count,
                      double seconds);
void tpx_await_output(struct tpx_launch *launch, const char *text, int count);

/* The number behind these words in the output so far. */
pid_t tpx_number_behind(const struct tpx_launch *launch, const char *words);

/* Waits until a signal has stopped the process, or fails. */
void tpx_await_stopped(pid_t pid);

/* The same until it has ended; nobody is to reap it meanwhile. */
void tpx_await_ended(pid_t pid);

/* The same until its first thread sleeps: it has done what there was to do. */
void tpx_await_asleep(pid_t pid);

/* Processes (zombies do not count) whose environment holds the mark. */
int tpx_count_marked(const char *mark);

/* The same, waiting up to `seconds` for there to be none. */
int tpx_await_none(const char *mark, double seconds);

/* Sends a signal to the n-th process with the mark; false if there are not so
 * many.  The order is that of /proc. */
bool tpx_kill_marked(const char *mark, unsigned n, int signal);

/* A network of its own for this test, with a loopback interface: no other job
 * on the machine is seen from there, nor claims a core.  False, and skipped,
 * without the right to it. */
bool tpx_own_network(void);

/* The n-th guard of that tprun; 0 if it is not found. */
pid_t tpx_find_guard(pid_t launcher, unsigned n);

void tpx_release(struct tpx_launch *launch);
void tpx_doze(double seconds);

/* How often `text` is in `in`. */
int tpx_count(const char *in, const char *text);

#endif
