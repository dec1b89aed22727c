/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An engine at work.  What decides is what tprun-rank tells of the ranks; the
 * engine's own status counts only where nothing was told.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/ask.h"
#include "launcher/engine.h"
#include "launcher/engine_output.h"
#include "launcher/engine_text.h"
#include "launcher/environment.h"
#include "launcher/orphans.h"
#include "launcher/signals.h"
#include "launcher/spawn.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

static const uint64_t run_second = 1000000000;
enum {
    RUN_LAUNCH = 60,               /* seconds for the first rank, over ssh, and
                                    * for each other one after the last */
    RUN_PATIENCE = 10,             /* until we say that we wait */
    RUN_SETTLE = 3,                /* for the engine to end by itself */
    RUN_GRACE = 5,                 /* from SIGTERM to SIGKILL */
    RUN_HURRY = 2,                 /* for a reader who reads nothing */
    RUN_LOOKS = 3,                 /* at one who reads slowly, one a second */
    RUN_BEHIND = 5,                /* at what the engine left to be read: more
                                    * is of somebody that it left */
    RUN_PIECE = 16384,             /* read at a time, and passed on */
    RUN_INSTANT = 300,             /* ms: what ends together */
    RUN_SWEEPS = 100,              /* looks for what it leaves, by SIGTERM */
    RUN_EXIT_TIMEOUT = 124
};

/* How much an end tells of what went wrong, see job.c. */
enum run_weight { RUN_NONE, RUN_UNFINALIZED, RUN_STATUS, RUN_CAUSE };

struct run_rank {
    bool started, over;
    int pid;
    char *host;
};

static struct run {
    const struct tpl_engine_plan *plan;
    const struct tpl_options *options;
    struct tpl_loop loop;
    struct tpl_watch signals, errors;
    struct tpl_timer timeout, launch, grace, heed, hurry;
    size_t heard;                  /* of srun's own words */
    uint64_t written;              /* when `hurry` was set */
    struct tpl_engine_text text;
    struct tpl_engine_output output;    /* if not plan->framed, no more than its
                                    * iof, for what goes to standard error */
    struct run_rank *ranks;
    int started, over;
    int known;                     /* have started, or never will */
    pid_t pid;                     /* of the engine; 0: ended */
    int raw;                       /* its wait status */
    int status;                    /* of the job */
    int kept;                      /* with --keep-going: of the first rank that
                                    * failed; 0: none did */
    int signal;                    /* that ended it; 0: none */
    enum run_weight weight;
    uint64_t failed_at;
    char report[1024];
    char step[64];                 /* of Slurm */
    int looks;                     /* until our reader is through, perhaps */
    int behind;                    /* looks since the engine ended */
    bool ending, adopted, killed, drained, late, lost, hurried;
    bool overdue;                  /* --timeout has ended it */
} run;

static void run_ask_srun(void);

static const char *run_name(void)
{
    const char *slash = strrchr(run.plan->program, '/');

    return slash != NULL ? slash + 1 : run.plan->program;
}

/* Whole lines, in turn with what the ranks print.  Who reads from us may not do
 * so for long, and must not keep us from all else. */
static void run_show(const char *text, size_t length)
{
    if (run.output.iof == NULL) {
        tpb_write_all(STDERR_FILENO, text, length);
    } else if (run.plan->framed) {
        tpl_iof_pass(run.output.iof, text, length);
    } else {
        for (size_t piece; length > 0; text += piece, length -= piece) {
            piece = length < RUN_PIECE ? length : RUN_PIECE;
            tpl_iof_put(run.output.iof, 0, true, text, piece);
        }
    }
}

static void run_say(const char *format, ...) TPB_PRINTF(1, 2);
static void run_say(const char *format, ...)
{
    char line[1200];
    size_t length;
    va_list args;

    va_start(args, format);
    length = tpl_iof_word(line, sizeof(line), format, args);
    va_end(args);
    run_show(line, length);
}

/* ---- the end ------------------------------------------------------------ */

/* What the engine has started is ours when we have ended it; what has left it
 * by then, as an ssh that others use too, is not. */
static void run_adopt(void)
{
    if (!run.adopted)
        tpl_orphans_adopt();
    run.adopted = true;
}

/* Not even SIGTERM ended it.  Its daemons notice that it is gone; Slurm has to
 * be told. */
static void run_kill(void)
{
    run_adopt();
    run.killed = true;
    if (run.step[0] != '\0') {
        char path[PATH_MAX];
        struct tpb_error error;
        struct tpl_ask ask;
        char *argv[] = { path, run.step, NULL };

        if (tpl_spawn_find("scancel", path, &error) == 0) {
            tpl_ask_start(&ask, argv);
            tpl_ask_wait(&ask, 1, RUN_GRACE);
        }
    }
    if (run.pid > 0)
        kill(run.pid, SIGKILL);
}

/* An ssh to a host that crashed would wait for hours. */
static void run_sweep(void)
{
    struct timespec pause = { 0, 10000000 };

    for (int i = 0; run.adopted && i < 2 * RUN_SWEEPS
                    && tpl_orphans_kill(i < RUN_SWEEPS ? SIGTERM : SIGKILL)
                       > 0; i++) {
        nanosleep(&pause, NULL);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
}

/* Has the engine said what we have not read yet?  We may have been stopped, and
 * it is late that we look. */
static bool run_behind(void)
{
    struct pollfd ends[] = { { run.errors.fd, POLLIN, 0 },
                             { run.output.watch.fd, POLLIN, 0 } };

    return poll(ends, TPB_COUNT(ends), 0) > 0
           && ((ends[0].revents | ends[1].revents) & POLLIN) != 0;
}

/* Who writes to our standard output himself has not got rid of it while that
 * takes nothing.  A reader that is slow makes a little room now and then. */
static bool run_writes(void)
{
    struct pollfd out = { STDOUT_FILENO, POLLOUT, 0 };

    if (run.plan->framed || run.pid == 0 || run.over < run.options->ranks)
        return false;
    if (poll(&out, 1, 0) == 0)
        run.looks = RUN_LOOKS;
    else if (run.looks > 0)
        run.looks--;
    return run.looks > 0;
}

static void run_settled(struct tpl_timer *timer)
{
    /* Nobody can hurry who reads from us, but the user. */
    bool waits = tpl_engine_output_waits(&run.output) || run_writes()
                 || (run.pid == 0 && run.behind++ < RUN_BEHIND
                     && run_behind());

    if (waits && run.signal == 0 && !run.overdue) {
        tpl_timer_set(&run.loop, timer, tpb_now() + run_second);
    } else if (run.pid == 0) {
        run.drained = true;
    } else if (run.ending) {
        run_kill();
    } else {
        run.ending = true;
        run_adopt();
        kill(run.pid, SIGTERM);
        tpl_timer_set(&run.loop, timer, tpb_now() + RUN_GRACE * run_second);
    }
}

/* The engine gets some seconds for its own ways, then ours. */
static void run_settle(int seconds)
{
    if (!run.ending && run.grace.at == 0)
        tpl_timer_set(&run.loop, &run.grace,
                      tpb_now() + (uint64_t)seconds * run_second);
}

static void run_end_now(void)
{
    tpl_timer_set(&run.loop, &run.grace, 0);
    run_settled(&run.grace);
}

/* Something is wrong with the job.  Of what happens in one instant, what tells
 * most is the cause. */
static void run_fail(enum run_weight weight, int status, const char *format,
                     ...) TPB_PRINTF(3, 4);
static void run_fail(enum run_weight weight, int status, const char *format,
                     ...)
{
    uint64_t now = tpb_now();
    va_list args;

    if (run.weight != RUN_NONE
        && (weight <= run.weight
            || now > run.failed_at + RUN_INSTANT * UINT64_C(1000000)))
        return;
    if (run.weight == RUN_NONE)
        run.failed_at = now;
    run.weight = weight;
    run.status = status;
    va_start(args, format);
    vsnprintf(run.report, sizeof(run.report), format, args);
    va_end(args);
    tpl_timer_set(&run.loop, &run.timeout, 0);
}

/* ---- the ranks ---------------------------------------------------------- */

static int run_mark_status(const struct tpl_mark *mark)
{
    switch (mark->kind) {
    case TPL_MARK_KILLED:
        return 128 + mark->value;
    case TPL_MARK_UNFINALIZED:
        return 1;
    case TPL_MARK_ABORT:
        return mark->value != 0 && (mark->value & 255) == 0
               ? 1 : mark->value & 255;
    case TPL_MARK_EXITED:
    case TPL_MARK_REFUSED:
        return mark->value;
    case TPL_MARK_STARTED:
        break;
    }
    return 0;
}

static void run_describe(const struct tpl_mark *mark, char *text, size_t size)
{
    int used = snprintf(text, size, "rank %d on %s", mark->rank, mark->host);

    text += used;
    size -= (size_t)used;
    if (mark->kind != TPL_MARK_REFUSED) {
        used = snprintf(text, size, " (pid %d) ", mark->pid);
        text += used;
        size -= (size_t)used;
    }
    switch (mark->kind) {
    case TPL_MARK_KILLED:
        snprintf(text, size, "was killed by signal %s%s%s",
                 tpl_signal_name(mark->value), *mark->words != '\0' ? ", "
                 : "", mark->words);
        break;
    case TPL_MARK_UNFINALIZED:
        snprintf(text, size, "exited with status 0 after tp_init but without "
                 "tp_finalize");
        break;
    case TPL_MARK_ABORT:
        snprintf(text, size, "ended the job with status %d%s%s", mark->value,
                 *mark->words != '\0' ? ": " : "", mark->words);
        break;
    case TPL_MARK_REFUSED:
        snprintf(text, size, ": %s", mark->words);
        break;
    case TPL_MARK_EXITED:
        snprintf(text, size, "exited with status %d%s%s", mark->value,
                 *mark->words != '\0' ? ", " : "", mark->words);
        break;
    case TPL_MARK_STARTED:
        snprintf(text, size, "runs");
        break;
    }
}

static enum run_weight run_weigh(const struct tpl_mark *mark)
{
    switch (mark->kind) {
    case TPL_MARK_KILLED:
        /* That is how engines end the others. */
        return mark->value == SIGTERM ? RUN_UNFINALIZED : RUN_CAUSE;
    case TPL_MARK_ABORT:
    case TPL_MARK_REFUSED:
        return RUN_CAUSE;
    case TPL_MARK_EXITED:
        return mark->value != 0 ? RUN_STATUS : RUN_NONE;
    case TPL_MARK_UNFINALIZED:
        return RUN_UNFINALIZED;
    case TPL_MARK_STARTED:
        break;
    }
    return RUN_NONE;
}

/* One more rank is heard of for the first time. */
static void run_know(const struct tpl_mark *mark)
{
    const struct run_rank *rank = &run.ranks[mark->rank];

    if (rank->started || rank->over)
        return;
    run.known++;
    run.late = false;
    tpl_timer_set(&run.loop, &run.launch,
                  run.known < run.options->ranks && !run.ending
                  ? tpb_now() + RUN_PATIENCE * run_second : 0);
}

static void run_began(const struct tpl_mark *mark)
{
    struct run_rank *rank = &run.ranks[mark->rank];

    if (rank->started)
        return;
    rank->started = true;
    rank->pid = mark->pid;
    rank->host = tpb_copy_string(mark->host);
    run.started++;
    if (run.step[0] == '\0')
        snprintf(run.step, sizeof(run.step), "%.63s", mark->words);
}

/* With --keep-going a rank's failure is told when it happens, and ends nothing:
 * what ends the job later, as --timeout, still counts.  After that, it is why
 * ranks fail. */
static void run_keep(const struct tpl_mark *mark, const char *text)
{
    if (run.weight != RUN_NONE)
        return;
    if (run.kept == 0)
        run.kept = run_mark_status(mark);
    if (!run.options->verbose)
        run_say("%s", text);
}

static void run_marked(const struct tpl_mark *mark, void *arg)
{
    enum run_weight weight = run_weigh(mark);
    char text[900];

    (void)arg;
    if (mark->rank < 0 || mark->rank >= run.options->ranks)
        return;
    tpl_engine_text_release(&run.text);
    run_know(mark);
    if (mark->kind == TPL_MARK_STARTED) {
        run_began(mark);
    } else if (mark->kind != TPL_MARK_ABORT
               && !run.ranks[mark->rank].over) {
        run.ranks[mark->rank].over = true;
        run.over++;
        if (run.plan->framed)
            tpl_iof_end(run.output.iof, mark->rank);
    }
    run_describe(mark, text, sizeof(text));
    if (run.options->verbose)
        run_say("%s", text);
    if (weight != RUN_NONE && run.options->keep_going
        && mark->kind != TPL_MARK_ABORT) {
        run_keep(mark, text);
    } else if (weight != RUN_NONE) {
        run_fail(weight, run_mark_status(mark), "%s", text);
        tpl_engine_text_hush(&run.text);
        /* srun waits for the others; mpirun and prterun are at it. */
        run_settle(run.plan->engine == TPL_ENGINE_SLURM ? 1 : RUN_SETTLE);
    }
    /* Open MPI 4.1 sometimes misses the end of a short program. */
    if (run.over == run.options->ranks) {
        tpl_timer_set(&run.loop, &run.timeout, 0);
        tpl_engine_text_hush(&run.text);
        /* All they wrote is here: tprun-rank may go (rank_rest). */
        if (run.plan->framed && run.pid > 0
            && (run.weight == RUN_NONE || run.options->keep_going))
            kill(run.pid, SIGUSR2);
        run_settle(RUN_SETTLE);
    }
}

/* ---- events ------------------------------------------------------------- */

/* srun goes on when a tprun-rank was killed: then what it says is all there is,
 * if the rank's own word has not come by now. */
static void run_heed(struct tpl_timer *timer)
{
    if (run.weight != RUN_NONE)
        return;
    if (tpl_engine_output_waits(&run.output) || run_behind()) {
        tpl_timer_set(&run.loop, timer, tpb_now() + run_second);
        return;
    }
    run_ask_srun();
    if (run.weight == RUN_NONE)
        return;
    tpl_engine_text_hush(&run.text);
    run_end_now();
}

static void run_read(struct tpl_watch *watch, uint32_t events)
{
    char data[RUN_PIECE];
    ssize_t got = read(watch->fd, data, sizeof(data));

    (void)events;
    if (got > 0)
        tpl_engine_text_feed(&run.text, data, (size_t)got);
    else if (got == 0 || (errno != EINTR && errno != EAGAIN))
        tpl_watch_close(&run.loop, watch);
    if (!run.plan->framed && tpl_engine_output_waits(&run.output))
        tpl_watch_set(&run.loop, watch, 0);
    if (run.plan->engine == TPL_ENGINE_SLURM
        && run.heard != run.text.noise.length) {
        run.heard = run.text.noise.length;
        if (run.heed.at == 0)
            tpl_timer_set(&run.loop, &run.heed,
                          tpb_now() + RUN_SETTLE * run_second);
    }
}

/* Our reader has made room for more. */
static void run_room(void *arg)
{
    (void)arg;
    tpl_watch_set(&run.loop, &run.errors, EPOLLIN);
}

static void run_signal(int signal, bool typed)
{
    if (!tpl_signal_ends(signal)) {
        /* Engines pass on the first two, and stop at the third.  What a
         * terminal says of its size they hear themselves. */
        if (signal != SIGALRM && signal != SIGWINCH && run.pid > 0)
            kill(run.pid, signal);
        if (signal == SIGTSTP && !tpl_signals_stop(typed) && run.pid > 0)
            kill(run.pid, SIGCONT);
        return;
    }
    if (run.signal != 0) {
        run.hurried = true;
        run_kill();
        return;
    }
    run.signal = signal;
    run_fail(RUN_CAUSE, 128 + signal, "signal %s ended the job",
             tpl_signal_name(signal));
    tpl_engine_text_hush(&run.text);
    /* From a terminal the engine has it already, and two would hurry it. */
    if (signal == SIGINT || signal == SIGQUIT)
        run_settle(1);
    else
        run_end_now();
}

static void run_reap(void)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == run.pid) {
            run.pid = 0;
            run.raw = status;
            /* For an end of the stream that somebody else holds open. */
            tpl_timer_set(&run.loop, &run.grace, tpb_now() + run_second);
        }
}

static void run_signalled(struct tpl_watch *watch, uint32_t events)
{
    bool typed;
    int signal;

    (void)events;
    while ((signal = tpl_signals_next(watch->fd, &typed)) != 0)
        if (signal == SIGCHLD)
            run_reap();
        else
            run_signal(signal, typed);
}

static void run_timed_out(struct tpl_timer *timer)
{
    char who[400] = "no rank has started";

    (void)timer;
    for (int i = run.options->ranks - 1; i >= 0; i--)
        if (run.ranks[i].started && !run.ranks[i].over)
            snprintf(who, sizeof(who), "still running: rank %d on %s (pid "
                     "%d)%s", i, run.ranks[i].host != NULL
                     ? run.ranks[i].host : "?", run.ranks[i].pid,
                     run.started - run.over > 1 ? " and more" : "");
    run_fail(RUN_CAUSE, RUN_EXIT_TIMEOUT, "the job ran longer than --timeout "
             "%s; %s", run.options->timeout_text, who);
    run.overdue = true;
    tpl_engine_text_hush(&run.text);
    run_end_now();
}

/* "rank 2 and 3 more", of which nothing has been heard. */
static void run_missing(char *text, size_t size)
{
    int rank = 0, more = run.options->ranks - run.known - 1;

    while (run.ranks[rank].started || run.ranks[rank].over)
        rank++;
    snprintf(text, size, more > 0 ? "rank %d and %d more" : "rank %d", rank,
             more);
}

/* No rank yet, or not all, and no other since.  Slurm may well have other
 * things to do first; ssh not.  With --keep-going the others may do without.
 * While nobody reads from us, the word of a start may be behind the output of
 * those that have; so it may after we were stopped. */
static void run_waits(struct tpl_timer *timer)
{
    char missing[64] = "the ranks";

    if (tpl_engine_output_waits(&run.output)) {
        tpl_timer_set(&run.loop, timer, tpb_now() + RUN_PATIENCE * run_second);
        return;
    }
    if (run_behind()) {
        tpl_timer_set(&run.loop, timer, tpb_now() + run_second);
        return;
    }
    if (run.known > 0)
        run_missing(missing, sizeof(missing));
    if (!run.late) {
        run.late = true;
        run_say("waiting for %s to start %s", run_name(), missing);
        if (run.plan->engine != TPL_ENGINE_SLURM
            && (run.known == 0 || !run.options->keep_going))
            tpl_timer_set(&run.loop, timer, tpb_now()
                          + (RUN_LAUNCH - RUN_PATIENCE) * run_second);
        return;
    }
    if (run.known > 0) {
        run_fail(RUN_CAUSE, 1, "%s has not started %s, %d s after the others: "
                 "is the host up, and the network?", run_name(), missing,
                 RUN_LAUNCH);
        tpl_engine_text_hush(&run.text);
    } else {
        run.lost = true;
    }
    run_end_now();
}

static void run_set_hurry(void)
{
    run.written = tpl_iof_written(run.output.iof);
    tpl_timer_set(&run.loop, &run.hurry, tpb_now() + RUN_HURRY * run_second);
}

/* As in job.c: our reader does not read, or is slow and has no more time. */
static void run_hurry_over(struct tpl_timer *timer)
{
    (void)timer;
    if (run.signal == 0 && tpl_iof_written(run.output.iof) != run.written)
        run_set_hurry();
    else
        run.hurried = true;
}

/* ---- the whole ---------------------------------------------------------- */

/* *out: what the engine's standard output is to be; -1: ours. */
static tp_status run_open(int *out, struct tpb_error *error)
{
    const struct tpl_iof_how how = {
        .tag = run.options->tag, .timestamp = run.options->timestamp,
    }, plain = { .tag = false };
    tp_status status;

    if (run.plan->framed)
        return tpl_engine_output_open(&run.output, &run.loop,
                                      run.options->ranks, &how, &run.text, out,
                                      error);
    status = tpl_iof_new(&run.loop, 1, &plain, error, &run.output.iof);
    if (status == TP_OK) {
        run.output.loop = &run.loop;
        run.output.text = &run.text;
        tpl_iof_feed(run.output.iof, run_room, NULL);
    }
    return status;
}

static int run_start(struct tpb_error *error)
{
    pid_t self = getpid();
    int ends[2], out = -1;

    if (run_open(&out, error) != TP_OK)
        return 1;
    if (pipe2(ends, O_CLOEXEC) < 0) {
        tpb_fail_errno(error, errno, "cannot make a pipe");
        tpb_close(&out);
        return 1;
    }
    /* It would believe that it is a rank itself; Slurm's is its ticket. */
    tpl_environment_clear(true);
    run.pid = fork();
    if (run.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != self)
            _exit(128 + SIGTERM);
        dup2(ends[1], STDERR_FILENO);
        if (out >= 0)
            dup2(out, STDOUT_FILENO);
        tpl_signals_restore();
        execv(run.plan->program, run.plan->arguments.list);
        dprintf(STDERR_FILENO, "%s: %s\n", run.plan->program,
                strerror(errno));
        _exit(TPL_EXIT_NOT_RUN);
    }
    close(ends[1]);
    tpb_close(&out);
    if (run.pid < 0) {
        tpb_fail_errno(error, errno, "cannot start %s", run.plan->program);
        run.pid = 0;
        close(ends[0]);
        return 1;
    }
    run.errors = (struct tpl_watch){ ends[0], 0, run_read };
    tpl_watch_set(&run.loop, &run.errors, EPOLLIN);
    return 0;
}

static tp_status run_prepare(struct tpb_error *error)
{
    tp_status status = tpl_loop_init(&run.loop, error);

    if (status != TP_OK)
        return status;
    run.ranks = tpb_array((size_t)run.options->ranks, sizeof(*run.ranks));
    if (run.ranks == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    tpl_signals_block();
    run.signals = (struct tpl_watch){ tpl_signals_open(), 0, run_signalled };
    if (run.signals.fd < 0
        || tpl_watch_set(&run.loop, &run.signals, EPOLLIN) < 0)
        return tpb_fail_errno(error, errno, "cannot watch for signals");
    run.timeout.fire = run_timed_out;
    run.launch = (struct tpl_timer){ .fire = run_waits, .patient = true };
    run.grace = (struct tpl_timer){ .fire = run_settled, .patient = true };
    run.heed.fire = run_heed;
    run.hurry.fire = run_hurry_over;
    tpl_engine_text_init(&run.text, &run.loop, run.plan->cookie,
                         run.options->verbose, run_marked, run_show, NULL);
    if (run.options->timeout > 0)
        tpl_timer_set(&run.loop, &run.timeout,
                      tpb_now() + run.options->timeout);
    tpl_timer_set(&run.loop, &run.launch,
                  tpb_now() + RUN_PATIENCE * run_second);
    return TP_OK;
}

/* What the engine says of failures, where we have nothing better. */
static void run_show_noise(void)
{
    const struct tpb_text *noise = &run.text.noise;

    if (noise->length > 0 && !run.options->verbose)
        run_show(noise->text, noise->length);
}

/* A rank whose tprun-rank was killed, or whose host crashed, tells nothing, and
 * the others only that the engine ended them: then it is the one to look at. */
static const char *run_unheard(void)
{
    static char text[320];
    int count = 0;

    text[0] = '\0';
    for (int i = run.options->ranks - 1; run.over > 0 && i >= 0; i--) {
        const struct run_rank *rank = &run.ranks[i];

        if (!rank->started || rank->over)
            continue;
        snprintf(text, sizeof(text), "; rank %d on %s (pid %d)%s ended without"
                 " a word", i, rank->host != NULL ? rank->host : "?",
                 rank->pid, ++count > 1 ? " and more" : "");
    }
    return text;
}

/* Of which ranks has srun said how they ended, whose own word was lost?  It may
 * say more than that, so all of it is shown. */
static void run_ask_srun(void)
{
    struct tpl_mark mark = { .rank = -1 };
    const char *from = NULL;
    char text[900];

    while (tpl_engine_text_task(&run.text, &from, &mark)) {
        const struct run_rank *rank;

        if (mark.rank < 0 || mark.rank >= run.options->ranks)
            continue;
        rank = &run.ranks[mark.rank];
        if (!rank->started || rank->over)
            continue;
        mark.pid = rank->pid;
        snprintf(mark.host, sizeof(mark.host), "%s",
                 rank->host != NULL ? rank->host : "?");
        run_describe(&mark, text, sizeof(text));
        run_fail(run_weigh(&mark), run_mark_status(&mark), "%s", text);
    }
    if (run.report[0] != '\0')
        run_show_noise();
}

/* The engine is gone and has told nothing that explains it. */
static int run_unexplained(void)
{
    int status = WIFSIGNALED(run.raw) ? 128 + WTERMSIG(run.raw)
                                      : WEXITSTATUS(run.raw);
    const struct tpb_text *held = &run.text.held;

    /* With --keep-going tprun-rank says to the engine that all is well, so what
     * that says tells nothing of ranks whose own word was lost. */
    if (status == 0 && !run.lost
        && (!run.options->keep_going || run.over == run.options->ranks))
        return 0;
    /* It crashed, or we had to end it, after all was well.  Open MPI 4.1 does
     * the one now and then, and needs the other. */
    if (run.over == run.options->ranks
        && (run.ending || WIFSIGNALED(run.raw)))
        return 0;
    if (run.started > 0) {
        run_show_noise();
        run_say("%s ended with status %d before the ranks did%s", run_name(),
                status, run_unheard());
        return status != 0 ? status : 1;
    }
    if (tpl_engine_diagnose(run.plan))
        return 1;
    if (held->length > 0)
        run_show(held->text, held->length);
    run_show_noise();
    run_say("%s did not start a rank (status %d)%s", run_name(), status,
            run.lost && run.plan->engine != TPL_ENGINE_SLURM
            && run.plan->hosts.count > 0
            ? "; the hosts answer to ssh, but its daemons do not call back: "
              "does a firewall let TCP through between all of them?" : "");
    return 1;
}

/* A rank wrote to a reader that has gone away; elsewhere that is SIGPIPE. */
static void run_unread(void)
{
    run_fail(RUN_CAUSE, 128 + SIGPIPE, "nobody reads the output of tprun any "
             "more");
    tpl_engine_text_hush(&run.text);
    run_end_now();
}

static int run_loop(struct tpb_error *error)
{
    while (run.pid > 0
           || ((run.errors.fd >= 0 || run.output.watch.fd >= 0)
               && !run.drained)) {
        if (tpl_loop_turn(&run.loop, error) != TP_OK) {
            run_kill();
            return 1;
        }
        if (run.output.unread && !run.ending)
            run_unread();
    }
    return 0;
}

/* All that is left goes out, as long as that may take, but for who wants to be
 * gone. */
static int run_drain(struct tpb_error *error)
{
    if (run.output.iof == NULL)
        return 0;
    tpl_engine_output_end(&run.output);
    while (!tpl_iof_done(run.output.iof) && !run.hurried) {
        if ((run.signal != 0 || run.overdue) && run.hurry.at == 0)
            run_set_hurry();
        if (tpl_loop_turn(&run.loop, error) != TP_OK)
            return 1;
    }
    return 0;
}

static int run_finish(void)
{
    int status;

    tpl_engine_text_end(&run.text);
    if (run.report[0] == '\0' && run.raw != 0
        && run.plan->engine == TPL_ENGINE_SLURM)
        run_ask_srun();
    status = run.status;
    if (run.report[0] != '\0') {
        run_say("%s%s", run.report, run.weight == RUN_UNFINALIZED
                && run.status == 128 + SIGTERM ? run_unheard() : "");
    } else {
        if (run.kept == 0 || run.over < run.options->ranks)
            status = run_unexplained();
        if (run.kept != 0)
            status = run.kept;
    }
    return run.signal == SIGINT ? -SIGINT : status;
}

static void run_clean_up(void)
{
    tpl_timer_set(&run.loop, &run.timeout, 0);
    tpl_timer_set(&run.loop, &run.launch, 0);
    tpl_timer_set(&run.loop, &run.grace, 0);
    tpl_timer_set(&run.loop, &run.heed, 0);
    tpl_timer_set(&run.loop, &run.hurry, 0);
    tpl_engine_text_fini(&run.text);
    tpl_engine_output_fini(&run.output);
    tpl_watch_close(&run.loop, &run.errors);
    tpl_watch_close(&run.loop, &run.signals);
    tpl_loop_fini(&run.loop);
    for (int i = 0; run.ranks != NULL && i < run.options->ranks; i++)
        tpb_free(run.ranks[i].host);
    tpb_free(run.ranks);
}

int tpl_engine_run(const struct tpl_engine_plan *plan,
                   const struct tpl_options *options)
{
    struct tpb_error error = { "" };
    int status = 1;

    run.plan = plan;
    run.options = options;
    run.errors.fd = run.output.watch.fd = -1;
    if (options->display_map && tpl_engine_show_map(plan) != 0)
        return 1;
    if (options->verbose) {
        struct tpb_text line = { 0 };

        tpl_arguments_show(&plan->arguments, &line);
        dprintf(STDERR_FILENO, "tprun: %s\n",
                line.text != NULL ? line.text : "");
        tpb_text_fini(&line);
    }
    if (run_prepare(&error) != TP_OK || run_start(&error) != 0
        || run_loop(&error) != 0
        || (plan->framed && run_drain(&error) != 0))
        dprintf(STDERR_FILENO, "tprun: %s\n", error.text);
    else
        status = run_finish();
    run_drain(&error);
    if (status == 0 && run.output.iof != NULL
        && tpl_iof_lost(run.output.iof) != 0)
        status = 1;
    if (status == 0 && run.signal != 0)    /* it ended our reader's time */
        status = run.signal == SIGINT ? -SIGINT : 128 + run.signal;
    run_sweep();
    run_clean_up();
    return status;
}
