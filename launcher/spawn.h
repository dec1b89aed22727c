/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Starting a rank: finding its program beforehand, and fork and exec with the
 * child's errno carried back.
 */
#ifndef TPL_SPAWN_H
#define TPL_SPAWN_H

#include <limits.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "runtime/base/base.h"

/* What a shell says of a program that is not there, and of one that is but
 * does not run. */
enum {
    TPL_EXIT_USAGE = 2, TPL_EXIT_NOT_RUN = 126, TPL_EXIT_NOT_FOUND = 127
};

/*
 * Finds `name` as execvp(3) would and checks that it can be run, so that a
 * typing error costs one line and no job.  Returns 0 with the path, or the
 * exit status, with words.
 */
int tpl_spawn_find(const char *name, char path[PATH_MAX],
                   struct tpb_error *error);

/* Puts words to the errno of an exec of `path`; returns the exit status. */
int tpl_spawn_explain(const char *path, int code, struct tpb_error *error);

/* What the user allows; tprun raises its own. */
struct tpl_limits {
    struct rlimit files, stack;
};

/* Everything a rank starts with; the descriptors stay the caller's. */
struct tpl_spawn {
    const char *path;
    char **argv, **environment;
    int rank;
    const char *wdir;              /* NULL: stay */
    int in, out, err;              /* become 0, 1, 2 */
    bool terminal;                 /* 0 becomes the controlling terminal */
    int doors[2];                  /* stay open at their numbers; -1: none */
    const cpu_set_t *cpus;         /* NULL: unbound.  Advisory. */
    size_t cpus_size;
    const struct tpl_limits *limits;
};

/*
 * Starts it, in a process group of its own, and tells the guard.  The calling
 * thread is the one whose death kills the rank.  Returns 0 with the pid, or an
 * errno: *executing then says whether exec failed (else it was the start).
 */
int tpl_spawn(const struct tpl_spawn *spawn, pid_t *pid, bool *executing);

/*
 * Looks `name` up as from the folder `wdir` (NULL: this one), in the folders of
 * `place` (NULL: those of PATH), and gives the path, which the caller frees;
 * NULL and the exit status, with words, otherwise.
 */
char *tpl_spawn_find_in(const char *wdir, const char *place, const char *name,
                        int *status, struct tpb_error *error);

#endif
