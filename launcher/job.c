/* SPDX-License-Identifier: BSD-3-Clause */
/* The job and the way to its end. */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/door.h"
#include "launcher/dying.h"
#include "launcher/guard.h"
#include "launcher/input.h"
#include "launcher/job.h"
#include "launcher/orphans.h"
#include "launcher/postmortem.h"
#include "launcher/progress.h"
#include "launcher/signals.h"
#include "launcher/verdict.h"
#include "runtime/base/door.h"

static const uint64_t job_second = 1000000000;
enum {
    JOB_GRACE = 2,                 /* seconds from SIGTERM to SIGKILL */
    JOB_STUCK = 10,                /* from SIGKILL to giving up */
    JOB_HANG_UP = 1,               /* for pipes that outlive all processes */
    JOB_EXIT_TIMEOUT = 124         /* as timeout(1) */
};

/* Sends a signal to the process groups of all ranks that run, and to those that
 * have left theirs. */
static void job_signal_ranks(const struct tpl_job *job, int signal)
{
    for (int i = 0; i < job->options->ranks; i++) {
        pid_t pid = job->ranks[i].pid;

        if (pid <= 0 || job->ranks[i].ended)
            continue;
        kill(-pid, signal);
        if (getpgid(pid) != pid)
            kill(pid, signal);
    }
}

static void job_set_grace(struct tpl_job *job, int seconds)
{
    tpl_timer_set(job->loop, &job->grace,
                  seconds > 0 ? tpb_now() + (uint64_t)seconds * job_second
                              : 0);
}

static void job_kill(struct tpl_job *job)
{
    if (job->phase > TPL_KILLING)
        return;
    job->phase = TPL_KILLING;
    job->kill_orphans = true;
    job_signal_ranks(job, SIGKILL);
    job_set_grace(job, JOB_STUCK);
}

static void job_kill_orphans(struct tpl_job *job)
{
    job->kill_orphans = true;
    tpl_orphans_kill(SIGKILL);
    job_set_grace(job, JOB_STUCK);
}

/* Not even SIGKILL ends them: stuck in the kernel.  The guard and
 * PR_SET_PDEATHSIG stay behind for the day they come out. */
static void job_abandon(struct tpl_job *job)
{
    for (int i = 0; i < job->options->ranks; i++)
        if (job->ranks[i].pid > 0 && !job->ranks[i].ended) {
            tpl_iof_say(job->iof, "rank %d (pid %d) survives SIGKILL; %s",
                        i, (int)job->ranks[i].pid,
                        kill(job->ranks[i].pid, 0) < 0 && errno == EPERM
                        ? "it belongs to another user" : "it is stuck in "
                        "the kernel");
            job->ranks[i].ended = true;
        }
    job->running = 0;
}

static void job_set_hurry(struct tpl_job *job)
{
    job->written = tpl_iof_written(job->iof);
    tpl_timer_set(job->loop, &job->hurry, tpb_now() + JOB_GRACE * job_second);
}

static void job_drain_begin(struct tpl_job *job)
{
    job->phase = TPL_DRAINING;
    tpl_input_close();
    job_set_grace(job, JOB_HANG_UP);
    if (job->signal != 0 || job->late)
        job_set_hurry(job);
}

static void job_leave_orphans(struct tpl_job *job)
{
    int left = tpl_orphans_kill(0);

    if (tpl_orphans_hidden())
        tpl_iof_say(job->iof, "processes that ranks left behind may still run: "
                    "without /proc of this PID namespace, which is not mounted "
                    "here, they cannot be found");
    else if (left > 0)
        tpl_iof_say(job->iof, "processes that ranks left behind (%d) survive "
                    "SIGKILL; they belong to another user, or are stuck in "
                    "the kernel", left);
    job_drain_begin(job);
}

static void job_grace_over(struct tpl_timer *timer)
{
    struct tpl_job *job = TPB_CONTAINER(timer, struct tpl_job, grace);

    switch (job->phase) {
    case TPL_ENDING:
        job_kill(job);
        break;
    case TPL_KILLING:
        job_abandon(job);
        break;
    case TPL_ORPHANS:
        if (job->kill_orphans || tpl_orphans_hidden()) {
            job_leave_orphans(job);
            break;
        }
        job_kill_orphans(job);
        break;
    case TPL_DRAINING:
        if (tpl_iof_behind(job->iof))
            job_set_grace(job, JOB_HANG_UP);
        else
            tpl_iof_hang_up(job->iof);
        break;
    case TPL_RUNNING:
    case TPL_DONE:
        break;
    }
}

static void job_report(struct tpl_job *job)
{
    if (!job->reported && job->report[0] != '\0')
        tpl_iof_say(job->iof, "%s", job->report);
    job->reported = true;
}

/* Without what nobody has read; but standard error may have its reader. */
static void job_leave_output(struct tpl_job *job)
{
    tpl_iof_hang_up(job->iof);
    job_report(job);
    job->phase = TPL_DONE;
}

/* Somebody wants to be gone, or the time is over, and our reader does not read.
 * In the latter case one that is slow may go on. */
static void job_hurry_over(struct tpl_timer *timer)
{
    struct tpl_job *job = TPB_CONTAINER(timer, struct tpl_job, hurry);

    if (job->signal == 0 && tpl_iof_written(job->iof) != job->written)
        job_set_hurry(job);
    else
        job_leave_output(job);
}

static void job_timed_out(struct tpl_timer *timer)
{
    struct tpl_job *job = TPB_CONTAINER(timer, struct tpl_job, timeout);
    int first = 0;
    char more[32] = "";

    /* Who has ended by now was in time. */
    tpl_job_reap(job);
    if (job->running == 0 || job->phase != TPL_RUNNING)
        return;
    while (first < job->options->ranks - 1 && job->ranks[first].ended)
        first++;
    job->late = true;
    tpl_postmortem_all(job);
    if (job->running > 1)
        snprintf(more, sizeof(more), " and %d more", job->running - 1);
    tpl_job_end(job, JOB_EXIT_TIMEOUT, "the job ran longer than --timeout %s; "
                "still running: rank %d (pid %d%s)%s",
                job->options->timeout_text, first,
                (int)job->ranks[first].pid,
                tpl_postmortem_stopped(job->ranks[first].pid) ? ", stopped"
                : "", more);
}

void tpl_job_init(struct tpl_job *job, const struct tpl_options *options,
                  const char *host, const struct tpb_record *record,
                  struct tpl_loop *loop, struct tpl_iof *iof,
                  struct tpl_rank *ranks)
{
    job->options = options;
    job->host = host;
    job->record = record;
    job->loop = loop;
    job->iof = iof;
    job->ranks = ranks;
    job->timeout.fire = job_timed_out;
    job->grace = (struct tpl_timer){ .fire = job_grace_over, .patient = true };
    job->hurry.fire = job_hurry_over;
}

void tpl_job_fini(struct tpl_job *job)
{
    tpl_timer_set(job->loop, &job->timeout, 0);
    tpl_timer_set(job->loop, &job->grace, 0);
    tpl_timer_set(job->loop, &job->hurry, 0);
    tpl_progress_end(job);
}

void tpl_job_started(struct tpl_job *job, int rank, pid_t pid)
{
    job->ranks[rank].pid = pid;
    job->running++;
    tpl_guard_note(rank, pid);
}

void tpl_job_begin(struct tpl_job *job)
{
    if (job->options->timeout > 0 && job->phase == TPL_RUNNING)
        tpl_timer_set(job->loop, &job->timeout,
                      tpb_now() + job->options->timeout);
}

void tpl_job_end(struct tpl_job *job, int status, const char *format, ...)
{
    va_list args;

    if (job->phase != TPL_RUNNING)
        return;
    job->phase = TPL_ENDING;
    job->status = status;
    tpl_progress_end(job);
    va_start(args, format);
    vsnprintf(job->report, sizeof(job->report), format, args);
    va_end(args);
    tpl_timer_set(job->loop, &job->timeout, 0);
    job_signal_ranks(job, SIGTERM);
    /* One that is stopped could not hear it. */
    job_signal_ranks(job, SIGCONT);
    job_set_grace(job, JOB_GRACE);
}

/*
 * A peer's end may be heard of, and answered by tp_abort(), sooner than by us:
 * the kernel closes what a process had open, and tells its parent last.  So who
 * is dying as the job's end begins may be the cause of that; but the reason
 * that tp_abort() gives tells more than a status.
 */
static void job_look_for_dying(struct tpl_job *job, enum tpl_verdict blamed)
{
    if (job->phase != TPL_RUNNING)
        return;
    job->blamed = (int)blamed;
    for (int i = 0; i < job->options->ranks; i++)
        if (job->ranks[i].pid > 0 && !job->ranks[i].ended)
            job->ranks[i].dying |= tpl_dying(job->ranks[i].pid);
}

/* Such a one has ended: how it did may tell more than what is reported. */
static void job_blame(struct tpl_job *job, int rank)
{
    enum tpl_verdict verdict = tpl_verdict(&job->ranks[rank]);
    char text[768], waiting[256];

    if (job->phase == TPL_RUNNING || (int)verdict <= job->blamed)
        return;
    job->blamed = (int)verdict;
    job->status = tpl_verdict_status(&job->ranks[rank]);
    tpl_verdict_describe(job, rank, text, sizeof(text));
    tpl_postmortem_rank(job, rank, waiting, sizeof(waiting));
    snprintf(job->report, sizeof(job->report), "%s%s", text, waiting);
}

/* A signal to end what is ending already: no more patience. */
static void job_hasten(struct tpl_job *job, int signal)
{
    switch (job->phase) {
    case TPL_RUNNING:
    case TPL_ENDING:
    case TPL_KILLING:
        job_kill(job);
        break;
    case TPL_ORPHANS:
        if (job->kill_orphans)
            break;
        job_kill_orphans(job);
        break;
    case TPL_DRAINING:
        /* All ranks did well, but not all that they wrote is out. */
        if (job->status == 0) {
            job->signal = signal;
            job->status = 128 + signal;
            tpl_iof_say(job->iof, "signal %s ended the job; output that nobody "
                        "has read is lost",
                        tpl_signal_name(signal));
        }
        job_leave_output(job);
        break;
    case TPL_DONE:
        break;
    }
}

static void job_stop(const struct tpl_job *job, bool typed)
{
    tpl_input_pause();
    if (tpl_signals_stop(typed))
        return;
    job_signal_ranks(job, SIGCONT);
    tpl_input_resume();
}

void tpl_job_signal(struct tpl_job *job, int signal, bool typed)
{
    if (!tpl_signal_ends(signal)) {
        if (signal == SIGWINCH)
            tpl_iof_resize(job->iof);
        job_signal_ranks(job, signal);
        if (signal == SIGTSTP)
            job_stop(job, typed);
        else if (signal == SIGCONT)
            tpl_input_resume();
    } else if (job->phase != TPL_RUNNING) {
        job_hasten(job, signal);
    } else {
        job->signal = signal;
        if (signal == SIGQUIT)
            tpl_postmortem_all(job);
        tpl_job_end(job, 128 + signal, "signal %s ended the job",
                    tpl_signal_name(signal));
    }
}

/* A rank may have joined by libtp's door, by PMIx, or by both. */
static void job_membership(struct tpl_rank *rank, bool by_door, bool in)
{
    *(by_door ? &rank->in_doors : &rank->in_pmix) = in;
    rank->finalized = !rank->in_doors && !rank->in_pmix;
}

/* libpmix gives up after some seconds if our server is too busy to hear that a
 * rank ends; tp_finalize() has told it here before. */
static void job_left(struct tpl_rank *rank)
{
    rank->finalized = !rank->in_doors;
}

void tpl_job_event(struct tpl_job *job, const struct tpl_pmix_event *event)
{
    struct tpl_rank *rank = &job->ranks[event->rank];

    switch (event->what) {
    case TPL_PMIX_CONNECTED:
        rank->initialized = job->joined = true;
        job_membership(rank, event->by_door, true);
        break;
    case TPL_PMIX_FINALIZED:
        job_membership(rank, event->by_door, false);
        if (!event->by_door)
            tpl_door_left(event->rank);
        break;
    case TPL_PMIX_LEFT:
        job_left(rank);
        break;
    case TPL_PMIX_DENIED:
        tpl_door_denied(event->rank, event->reason);
        break;
    case TPL_PMIX_ABORT:
        if (!job->options->keep_going)
            job_look_for_dying(job, TPL_BY_STATUS);
        rank->dying = false;
        /* As exit(3) would: the low eight bits, but a failure stays one. */
        tpl_job_end(job, event->status != 0 && (event->status & 255) == 0
                    ? 1 : event->status & 255,
                    "rank %d (pid %d on %s) ended the job with status "
                    "%d%s%s", event->rank, (int)rank->pid, job->host,
                    event->status,
                    *event->reason != '\0' ? ": " : "", event->reason);
        break;
    }
}

static int job_find(const struct tpl_job *job, pid_t pid)
{
    for (int i = 0; i < job->options->ranks; i++)
        if (job->ranks[i].pid == pid && !job->ranks[i].ended)
            return i;
    return -1;
}

/* A job that is being ended has no use for it. */
static void job_tell_doors(const struct tpl_job *job, int rank,
                           enum tpl_verdict verdict, int status)
{
    char words[TPB_DOOR_WORDS] = "without tp_finalize";

    if (job->phase != TPL_RUNNING)
        return;
    if (verdict == TPL_WELL) {
        tpl_door_over(rank);
        return;
    }
    if (verdict == TPL_UNFINALIZED && !job->ranks[rank].initialized)
        snprintf(words, sizeof(words), "%s", tpl_door_never);
    if (WIFSIGNALED(status))
        snprintf(words, sizeof(words), "by signal %d", WTERMSIG(status));
    else if (verdict == TPL_BY_STATUS)
        snprintf(words, sizeof(words), "with status %d",
                 WEXITSTATUS(status));
    tpl_door_died(rank, words);
}

/* Writes down how a rank ended and lets the others know. */
static void job_note(struct tpl_job *job, int index, int status)
{
    static const enum tpl_pmix_end ends[] = {
        [TPL_WELL] = TPL_PMIX_WELL,
        [TPL_UNFINALIZED] = TPL_PMIX_UNFINALIZED,
        [TPL_BY_STATUS] = TPL_PMIX_BY_STATUS,
        [TPL_BY_SIGNAL] = TPL_PMIX_BY_SIGNAL,
    };
    struct tpl_rank *rank = &job->ranks[index];
    enum tpl_verdict verdict;

    rank->ended = true;
    rank->status = status;
    job->running--;
    tpl_guard_note(index, 0);
    tpb_record_ended(job->record, (uint32_t)index);
    verdict = tpl_verdict(rank);
    if (verdict == TPL_BY_STATUS && !rank->finalized && rank->initialized)
        verdict = TPL_UNFINALIZED;
    /* Others may wait for a rank that did well without ever joining. */
    if (verdict == TPL_WELL && !rank->initialized && job->joined)
        verdict = TPL_UNFINALIZED;
    tpl_pmix_ended(index, ends[verdict], WIFSIGNALED(status)
                   ? WTERMSIG(status) : WEXITSTATUS(status));
    job_tell_doors(job, index, verdict, status);
    if (job->options->verbose) {
        char text[768], waiting[256] = "";

        tpl_verdict_describe(job, index, text, sizeof(text));
        if (tpl_verdict(rank) != TPL_WELL)
            tpl_postmortem_rank(job, index, waiting, sizeof(waiting));
        tpl_iof_say(job->iof, "%s%s", text, waiting);
    }
}

/* A rank failed and nothing was known to be wrong before. */
static void job_fail(struct tpl_job *job, int rank)
{
    char text[768], waiting[256];

    tpl_verdict_describe(job, rank, text, sizeof(text));
    tpl_postmortem_rank(job, rank, waiting, sizeof(waiting));
    if (!job->options->keep_going) {
        job_look_for_dying(job, tpl_verdict(&job->ranks[rank]));
        tpl_postmortem_waiting_for(job, rank);
        tpl_job_end(job, tpl_verdict_status(&job->ranks[rank]), "%s%s", text,
                    waiting);
        return;
    }
    if (job->status == 0)
        job->status = tpl_verdict_status(&job->ranks[rank]);
    if (!job->options->verbose)
        tpl_iof_say(job->iof, "%s%s", text, waiting);
}

void tpl_job_reap(struct tpl_job *job)
{
    enum tpl_verdict worst = TPL_WELL;
    int failed = -1, status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        int index = job_find(job, pid);
        enum tpl_verdict verdict;

        /* What a rank said before it ended comes first; it may have said it
         * a moment ago, so look after waitpid(), not before.  What another
         * says now may be due to its end. */
        if (index >= 0 && job->phase == TPL_RUNNING)
            job->ranks[index].dying = !job->options->keep_going;
        tpl_pmix_dispatch();
        tpl_door_dispatch();
        if (index < 0)
            continue;               /* an orphan */
        job_note(job, index, status);
        if (job->ranks[index].dying)
            job_blame(job, index);
        verdict = tpl_verdict(&job->ranks[index]);
        if (job->phase != TPL_RUNNING || verdict == TPL_WELL)
            continue;
        if (job->options->keep_going) {
            job_fail(job, index);
        } else if (verdict > worst) {
            worst = verdict;
            failed = index;
        }
    }
    if (pid < 0 && errno != EINTR && job->running > 0)
        job->blind = errno;
    /* The end of another may have let us hear of tp_abort(). */
    if (failed >= 0 && job->phase != TPL_RUNNING && job->ranks[failed].dying)
        job_blame(job, failed);
    else if (failed >= 0)
        job_fail(job, failed);
    /* Who died may have left children of its own. */
    if (job->phase == TPL_ORPHANS)
        tpl_orphans_kill(job->kill_orphans ? SIGKILL : SIGTERM);
}

/* From the last rank's end: are there processes left?  Asks them to end. */
static void job_orphans_begin(struct tpl_job *job)
{
    job->phase = TPL_ORPHANS;
    tpl_progress_end(job);
    tpl_timer_set(job->loop, &job->timeout, 0);
    tpl_orphans_kill(job->kill_orphans ? SIGKILL : SIGTERM);
    job_set_grace(job, job->kill_orphans ? JOB_STUCK : JOB_GRACE);
}

static void job_drain(struct tpl_job *job)
{
    if (tpl_iof_ended(job->iof))
        job_report(job);
    if (job->reported && tpl_iof_done(job->iof))
        job->phase = TPL_DONE;
}

void tpl_job_step(struct tpl_job *job)
{
    if (job->phase < TPL_ORPHANS && job->running == 0)
        job_orphans_begin(job);
    if (job->phase == TPL_ORPHANS && tpl_orphans_kill(0) == 0)
        job_drain_begin(job);
    if (job->phase == TPL_DRAINING)
        job_drain(job);
}
