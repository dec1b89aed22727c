/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The job: its ranks, how each ended, which failed first, and the way to the
 * end.  Main thread only.
 *
 *   RUNNING -> ENDING (SIGTERM) -> KILLING (SIGKILL) -> ORPHANS -> DRAINING
 *           -> DONE
 *
 * RUNNING goes straight to ORPHANS when all ranks have ended by themselves.
 * ORPHANS ends what ranks left behind; DRAINING writes what they printed.
 */
#ifndef TPL_JOB_H
#define TPL_JOB_H

#include <sys/types.h>

#include "launcher/iof.h"
#include "launcher/options.h"
#include "launcher/pmix_server.h"
#include "runtime/base/record.h"

enum tpl_phase {
    TPL_RUNNING, TPL_ENDING, TPL_KILLING, TPL_ORPHANS, TPL_DRAINING, TPL_DONE
};

struct tpl_rank {
    pid_t pid;                     /* 0: not started */
    int status;                    /* from waitpid, once ended */
    bool ended;
    bool dying;                    /* before another began the job's end */
    bool initialized, finalized;   /* by every way that it joined */
    bool in_pmix, in_doors;        /* joined, and has not left */
};

struct tpl_job {
    const struct tpl_options *options;
    const char *host;              /* its name */
    const struct tpb_record *record;   /* what ranks say of themselves */
    struct tpl_loop *loop;
    struct tpl_iof *iof;
    struct tpl_rank *ranks;
    int running;                   /* started and not ended */
    enum tpl_phase phase;
    int status;                    /* of tprun */
    int blamed;                    /* enum tpl_verdict: what `report` tells */
    int signal;                    /* that ended the job; 0: none */
    int blind;                     /* errno: ranks cannot be waited for */
    char report[1024];             /* the line said last; "" if none */
    bool reported;
    bool joined;                   /* a rank has initialized */
    bool kill_orphans;             /* they had their time */
    bool late;                     /* --timeout has ended it */
    struct tpl_timer timeout, grace, hurry, slow;
    uint64_t slow_since;
    uint64_t written;              /* when `hurry` was set */
};

/* *job and *ranks are the caller's, zeroed. */
void tpl_job_init(struct tpl_job *job, const struct tpl_options *options,
                  const char *host, const struct tpb_record *record,
                  struct tpl_loop *loop, struct tpl_iof *iof,
                  struct tpl_rank *ranks);

/* All timers off, for the end. */
void tpl_job_fini(struct tpl_job *job);

/* This rank runs as `pid`. */
void tpl_job_started(struct tpl_job *job, int rank, pid_t pid);

/* The clock of --timeout runs from here. */
void tpl_job_begin(struct tpl_job *job);

/* Ends the job with that status and report; no effect if it is ending. */
void tpl_job_end(struct tpl_job *job, int status, const char *format, ...)
    TPB_PRINTF(3, 4);

/* A signal came to tprun; by a key? */
void tpl_job_signal(struct tpl_job *job, int signal, bool typed);

/* What a rank did, from the PMIx server. */
void tpl_job_event(struct tpl_job *job, const struct tpl_pmix_event *event);

/* Takes note of all processes that have ended; or sets `blind`, and then nobody
 * hears of the job's end. */
void tpl_job_reap(struct tpl_job *job);

/* Goes on to the next phase if it is time; called after every turn. */
void tpl_job_step(struct tpl_job *job);

#endif
