/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tprun-rank: stands beside one rank that an engine (srun, prterun, mpirun)
 * has started for tprun, on the rank's host.  It runs the program, tells tprun
 * how it began and ended (launcher/marks.h), and ends in the same way.  Not
 * for people.
 *
 *   tprun-rank -j COOKIE -V VERSION [-C DIR] [-f] [-k] [-m] [-o DIR]
 *              [-p FIRST,WORDS,DIR]... -- PROGRAM [ARGUMENT]...
 *
 * -C is where ranks run; -f sends all that the rank writes, and the marks, in
 * frames (launcher/frames.h) to standard error; -k lets the engine believe that
 * all is well; -m sends standard error where standard output goes, -o both to
 * files.  Each -p is one program of several: its first rank, how many of the
 * words behind the "--" are its own, and where it runs.  Words of nothing but
 * colons have one more than they should (launcher/translate.h).
 *
 * The engine's signals go to the whole process group, so the rank gets them
 * without its help.  If it is killed, the kernel kills the rank, and guards
 * (launcher/guard.h) what the rank has started; where the engine lets a job go
 * on then, and says nothing, a child tells tprun.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/frames.h"
#include "launcher/guard.h"
#include "launcher/marks.h"
#include "launcher/orphans.h"
#include "launcher/relay.h"
#include "launcher/signals.h"
#include "launcher/spawn.h"
#include "launcher/translate.h"
#include "runtime/base/io.h"
#include "runtime/base/leavings.h"

enum {
    RANK_EXIT_USAGE = TPL_EXIT_USAGE,
    RANK_GRACE = 2000,             /* ms for processes that the rank leaves */
    RANK_STUCK = 1000,             /* ... and after SIGKILL */
    RANK_STOPPED = 500000000,      /* ns late: we were stopped ... */
    RANK_LONGER = 2000000000,      /* ... and they get at most so much more */
    RANK_SWEEPS = 100,             /* at most so many looks for them at last */
    RANK_PASS_MS = 100             /* for an engine to pass a line on */
};

static struct rank {
    const char *cookie, *version, *directory, *wdir, *output;
    bool frames, keep_going, merge;
    char **program;
    char path[PATH_MAX];
    struct tpl_mark mark;          /* rank, pid and host filled in */
    pid_t pid;
    int report;                    /* our end; the rank's is TP_REPORT */
    int turn;                      /* programs that have joined */
    char word[32];                 /* the newest one's */
    char mine[64];                 /* TPRUN_RANK of all that it starts */
    int parent;                    /* a pidfd, or -1 */
    int heir;                      /* to who tells of our death; or -1 */
    int out, err;                  /* of the program */
    struct tpl_relay relay;
    bool initialized, finalized;
} rank;

/* What engines call the number of a rank. */
static int rank_number(void)
{
    static const char *const names[] = { "PMIX_RANK", "SLURM_PROCID",
                                         "OMPI_COMM_WORLD_RANK" };

    for (size_t i = 0; i < TPB_COUNT(names); i++)
        if (getenv(names[i]) != NULL)
            return atoi(getenv(names[i]));
    return -1;
}

/* One -p: moves on to the program of this rank. */
static bool rank_option_program(const char *text, const char **wdir,
                                int *from, int *words, int *next)
{
    int first, count, used = 0;

    if (sscanf(text, "%d,%d,%n", &first, &count, &used) != 2 || used == 0)
        return false;
    if (rank.mark.rank >= first) {
        *from = *next;
        *words = count;
        *wdir = text[used] != '\0' ? text + used : NULL;
    }
    *next += count;
    return true;
}

static bool rank_options(int argc, char **argv)
{
    int option, from = 0, words = -1, next = 0;

    while ((option = getopt(argc, argv, "+j:V:C:fkmo:p:")) != -1)
        switch (option) {
        case 'j': rank.cookie = optarg; break;
        case 'V': rank.version = optarg; break;
        case 'C': rank.directory = optarg; break;
        case 'f': rank.frames = true; break;
        case 'k': rank.keep_going = true; break;
        case 'm': rank.merge = true; break;
        case 'o': rank.output = optarg; break;
        case 'p':
            if (!rank_option_program(optarg, &rank.wdir, &from, &words,
                                     &next))
                return false;
            break;
        default: return false;
        }
    if (rank.cookie == NULL || rank.version == NULL || from < 0
        || words > argc - optind - from || optind + from >= argc)
        return false;
    rank.program = argv + optind + from;
    if (words >= 0)
        rank.program[words] = NULL;
    for (char **word = rank.program; *word != NULL; word++)
        if (tpl_is_colons(*word))
            ++*word;
    return true;
}

static void rank_tell(enum tpl_mark_kind kind, int value, const char *words)
{
    char line[TPL_MARK_SIZE];
    size_t length;

    rank.mark.kind = kind;
    rank.mark.value = value;
    snprintf(rank.mark.words, sizeof(rank.mark.words), "%s", words);
    length = tpl_mark_format(line, rank.cookie, &rank.mark);
    /* What it wrote before comes first. */
    tpl_relay_drain(&rank.relay);
    /* Too late for errors, so none are told. */
    if (rank.frames)
        tpl_frame_write(STDERR_FILENO, TPL_FRAME_MARK, line, length);
    else
        tpb_write_waiting(STDERR_FILENO, line, length);
}

/*
 * mpirun with --keep-going says nothing of a tprun-rank that is killed: the
 * others would wait for the end of its rank for ever.  So a child waits for the
 * end of this process, and tells of it if it was not told why.
 */
static void rank_have_heir(void)
{
    int ends[2];
    ssize_t got;
    pid_t pid;
    char told;

    rank.heir = -1;
    if (!rank.frames || !rank.keep_going || pipe2(ends, O_CLOEXEC) < 0)
        return;
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_NAME, "tprun-heir");
        close(ends[1]);
        while ((got = read(ends[0], &told, 1)) < 0 && errno == EINTR)
            ;
        if (got == 0)
            rank_tell(TPL_MARK_KILLED, SIGKILL, "with its tprun-rank");
        _exit(0);
    }
    close(ends[0]);
    if (pid > 0)
        rank.heir = ends[1];
    else
        close(ends[1]);
}

/* They know what is the rank's by its environment, since not every engine gives
 * a rank a process group of its own.  Without them the rank is as good. */
static void rank_have_guards(void)
{
    struct tpb_error error;

    snprintf(rank.mine, sizeof(rank.mine), "%.32s.%d", rank.cookie,
             rank.mark.rank);
    tpl_guard_start("TPRUN_RANK", rank.mine, 1, &error);
}

/* Nothing is left for the guards. */
static void rank_dismiss(void)
{
    tpl_guard_dismiss(true);
    tpl_guard_stop();
}

/* The last that is told: nothing is left for the heir. */
static void rank_tell_end(enum tpl_mark_kind kind, int value,
                          const char *words)
{
    rank_tell(kind, value, words);
    if (rank.heir >= 0)
        tpb_write_all(rank.heir, "", 1);
    tpb_close(&rank.heir);
}

/* What scancel(1) takes to end this step of Slurm. */
static const char *rank_step(void)
{
    static char step[64];
    const char *job = getenv("SLURM_JOB_ID"), *part = getenv("SLURM_STEP_ID");

    if (job != NULL && part != NULL)
        snprintf(step, sizeof(step), "%.30s.%.30s", job, part);
    return step;
}

/* DIR/RANK.out, DIR/RANK.err; -1 with words. */
static int rank_file(const char *suffix, struct tpb_error *error)
{
    char path[PATH_MAX];
    int fd;

    snprintf(path, sizeof(path), "%s/%d.%s", rank.output, rank.mark.rank,
             suffix);
    if (tpb_make_folders(rank.output) < 0) {
        tpb_fail_errno(error, errno, "--output %s: cannot create this folder",
                       rank.output);
        return -1;
    }
    fd = tpb_create_file(path);
    if (fd < 0)
        tpb_fail_errno(error, errno, "--output: cannot create %s", path);
    return fd;
}

/* Where the rank writes to: rank.out and rank.err. */
static bool rank_redirect(struct tpb_error *error)
{
    rank.out = STDOUT_FILENO;
    rank.err = STDERR_FILENO;
    if (rank.output != NULL) {
        rank.out = rank_file("out", error);
        rank.err = rank.merge || rank.out < 0 ? rank.out
                                              : rank_file("err", error);
    } else if (rank.frames) {
        if (tpl_relay_open(&rank.relay, STDERR_FILENO, rank.merge) < 0)
            tpb_fail_errno(error, errno, "cannot make what the rank writes "
                           "to");
        rank.out = rank.relay.writers[0];
        rank.err = rank.relay.writers[1];
    } else if (rank.merge) {
        rank.err = rank.out;
    }
    return rank.out >= 0 && rank.err >= 0;
}

/* What would make the program's start fail, in words. */
static int rank_prepare(struct tpb_error *error)
{
    if (strcmp(rank.version, PACKAGE_VERSION) != 0) {
        tpb_fail(error, TP_ERR_NOT_SUPPORTED, "this host has tp %s, tprun is "
                 "%s; install the same version on all hosts",
                 PACKAGE_VERSION, rank.version);
        return RANK_EXIT_USAGE;
    }
    if (rank.directory != NULL && chdir(rank.directory) < 0) {
        tpb_fail_errno(error, errno, "the working directory %s",
                       rank.directory);
        return RANK_EXIT_USAGE;
    }
    if (!rank_redirect(error))
        return RANK_EXIT_USAGE;
    if (rank.wdir != NULL && chdir(rank.wdir) < 0) {
        tpb_fail_errno(error, errno, "--wdir %s", rank.wdir);
        return RANK_EXIT_USAGE;
    }
    return tpl_spawn_find(rank.program[0], rank.path, error);
}

static void rank_child(pid_t parent, int report, int answer)
{
    char number[16];
    int code;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(128 + SIGKILL);
    snprintf(number, sizeof(number), "%d", report);
    setenv("TP_REPORT", number, 1);
    setenv("TPRUN_RANK", rank.mine, 1);
    fcntl(report, F_SETFD, 0);
    if (rank.err != STDERR_FILENO)
        dup2(rank.err, STDERR_FILENO);
    if (rank.out != STDOUT_FILENO)
        dup2(rank.out, STDOUT_FILENO);
    tpl_guard_tell(0, getpid());
    tpl_signals_unblock();
    tpl_signals_restore();
    execv(rank.path, rank.program);
    code = errno;
    tpb_write_all(answer, &code, sizeof(code));
    _exit(TPL_EXIT_NOT_RUN);
}

/* Starts the program; an errno if it could not be. */
static int rank_start(void)
{
    int sockets[2], answer[2], code = 0;
    pid_t self = getpid();

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0
        || pipe2(answer, O_CLOEXEC) < 0)
        return errno;
    rank.pid = fork();
    if (rank.pid < 0)
        return errno;
    if (rank.pid == 0)
        rank_child(self, sockets[1], answer[1]);
    close(sockets[1]);
    close(answer[1]);
    tpl_relay_started(&rank.relay);
    rank.report = sockets[0];
    if (read(answer[0], &code, sizeof(code)) == (ssize_t)sizeof(code))
        waitpid(rank.pid, NULL, 0);
    close(answer[0]);
    return code;
}

/* A program of the rank has joined; it may have others after it, and the n-th
 * meets the n-th of other ranks.  Waits for our answer. */
static void rank_joined(const char *word)
{
    char text[32];
    int length;

    rank.initialized = true;
    rank.finalized = false;
    if (strncmp(word, rank.word, 31) != 0)
        rank.turn++;
    snprintf(rank.word, sizeof(rank.word), "%.31s", word);
    length = snprintf(text, sizeof(text), "T %d", rank.turn - 1);
    send(rank.report, text, (size_t)length, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* The rank ends the job as soon as we have answered, and what an engine has not
 * passed on when it kills a step is lost: first its line gets its time. */
static void rank_aborts(int status, const char *reason)
{
    struct timespec pause = { 0, RANK_PASS_MS * 1000000L };

    rank_tell(TPL_MARK_ABORT, status, reason);
    nanosleep(&pause, NULL);
    send(rank.report, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* "I PROGRAM", "F", or "A STATUS REASON" from libtp in the rank, which waits
 * for our answer to the first and the last. */
static void rank_listen(void)
{
    char text[600];
    ssize_t got;
    int used = 0, status;

    while ((got = recv(rank.report, text, sizeof(text) - 1, MSG_DONTWAIT))
           > 0) {
        text[got] = '\0';
        if (text[0] == 'I') {
            rank_joined(text + 1);
        } else if (text[0] == 'F') {
            rank.finalized = true;
        } else if (sscanf(text, "A %d %n", &status, &used) == 1) {
            rank_aborts(status, text + used);
        }
    }
    if (got == 0)
        tpb_close(&rank.report);
}

/* The engine's daemon is dead, and nobody else is there to end the rank and
 * what it has started. */
static void rank_vanish(void)
{
    struct timespec pause = { 0, 10000000 };

    for (int i = 0; i < RANK_SWEEPS && tpl_orphans_kill(SIGKILL) > 0; i++) {
        nanosleep(&pause, NULL);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
    _exit(128 + SIGKILL);
}

/* Until something has happened, or `limit` ms; sends on what the rank wrote. */
static void rank_turn(int signals, int limit)
{
    struct pollfd polls[] = { { signals, POLLIN, 0 },
                              { rank.report, POLLIN, 0 },
                              { rank.parent, POLLIN, 0 },
                              { rank.relay.fds[0], POLLIN, 0 },
                              { rank.relay.fds[1], POLLIN, 0 } };

    poll(polls, TPB_COUNT(polls), limit);
    /* Not PR_SET_PDEATHSIG: that is about the thread that started us. */
    if (polls[2].revents != 0)
        rank_vanish();
    while (tpl_signals_next(signals, NULL) != 0)
        ;
    if (rank.report >= 0)
        rank_listen();
    for (int i = 0; i < 2; i++)
        if (polls[3 + i].revents != 0)
            tpl_relay_move(&rank.relay, i);
}

/* Until the program has ended; its wait status. */
static int rank_wait(int signals)
{
    int status;
    pid_t got;

    for (;;) {
        rank_turn(signals, -1);
        while ((got = waitpid(-1, &status, WNOHANG)) > 0)
            if (got == rank.pid) {
                tpl_guard_tell(0, 0);  /* its number is another's, soon */
                return status;
            }
    }
}

/* Signals what the rank has left running until it is gone, or for so many ms;
 * true: it is.  Once at least: nobody may read meanwhile what was written.  It
 * may have been stopped together with us. */
static bool rank_sweep_by(int signals, int signal, int ms)
{
    uint64_t until = tpb_now() + (uint64_t)ms * UINT64_C(1000000), now;
    bool longer = false;

    do {
        if (tpl_orphans_kill(signal) == 0)
            return true;
        rank_turn(signals, 100);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        now = tpb_now();
    } while (now < until
             || tpb_excuse(&until, &longer, now, RANK_STOPPED, RANK_LONGER));
    return false;
}

/* Ends it, as tprun does on one machine. */
static void rank_sweep(int signals)
{
    if (!rank_sweep_by(signals, SIGTERM, RANK_GRACE))
        rank_sweep_by(signals, SIGKILL, RANK_STUCK);
}

/*
 * All is well, and mpirun throws away what it has not written yet when its last
 * process is gone.  So we stay until tprun has it all, and says so by a signal
 * (engine_run.c), or whatever else ends the job; or, where output is not in
 * frames, for a moment, where only our word tells of failures.
 */
static int rank_rest(int signals)
{
    struct timespec pause = { 0, RANK_PASS_MS * 1000000L };
    struct pollfd polls[] = { { signals, POLLIN, 0 },
                              { rank.parent, POLLIN, 0 } };
    int signal = 0;

    while (rank.frames && (signal == 0 || signal == SIGCHLD
                           || signal == SIGCONT || signal == SIGWINCH)) {
        poll(polls, TPB_COUNT(polls), -1);
        if (polls[1].revents != 0)
            _exit(128 + SIGKILL);
        signal = tpl_signals_next(signals, NULL);
    }
    if (!rank.frames && rank.keep_going)
        nanosleep(&pause, NULL);
    return 0;
}

/* The program could not be started.  From before tprun knows that, its signal
 * must not be missed. */
static int rank_refuse(int status, const struct tpb_error *error)
{
    tpl_signals_block();
    rank_tell_end(TPL_MARK_REFUSED, status, error->text);
    return rank.keep_going ? rank_rest(tpl_signals_open()) : status;
}

/* Ends as the rank did, so that the engine knows by its own rules. */
static int rank_end(int status, int signals)
{
    struct rlimit none = { 0, 0 };

    if (WIFSIGNALED(status)) {
        rank_tell_end(TPL_MARK_KILLED, WTERMSIG(status),
                      WCOREDUMP(status) ? "core dumped" : "");
        if (rank.keep_going)
            return rank_rest(signals);
        setrlimit(RLIMIT_CORE, &none);
        tpl_signals_die(WTERMSIG(status));
    }
    if (WEXITSTATUS(status) == 0 && rank.initialized && !rank.finalized) {
        rank_tell_end(TPL_MARK_UNFINALIZED, 0, "");
        return rank.keep_going ? rank_rest(signals) : 1;
    }
    rank_tell_end(TPL_MARK_EXITED, WEXITSTATUS(status), "");
    return rank.keep_going || WEXITSTATUS(status) == 0
           ? rank_rest(signals) : WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    struct tpb_error error = { "" };
    int code, signals, status;

    rank.mark.rank = rank_number();
    rank.relay.fds[0] = rank.relay.fds[1] = -1;
    rank.relay.writers[0] = rank.relay.writers[1] = -1;
    if (!rank_options(argc, argv)) {
        fprintf(stderr, "tprun-rank: run by tprun, not by people\n");
        return RANK_EXIT_USAGE;
    }
    rank.mark.pid = (int)getpid();
    if (gethostname(rank.mark.host, sizeof(rank.mark.host) - 1) < 0)
        strcpy(rank.mark.host, "-");
    rank.parent = (int)syscall(SYS_pidfd_open, getppid(), 0);
    tpl_signals_init();
    rank_have_heir();              /* before them: it would hold their pipes */
    rank_have_guards();            /* they hold nothing of ours */
    tpl_orphans_adopt();           /* the heir is not one */
    code = rank_prepare(&error);
    if (code != 0) {
        rank_dismiss();
        return rank_refuse(code, &error);
    }
    tpl_signals_block();
    signals = tpl_signals_open();
    code = signals < 0 ? errno : rank_start();
    if (code != 0) {
        code = tpl_spawn_explain(rank.path, code, &error);
        rank_dismiss();
        return rank_refuse(code, &error);
    }
    rank.mark.pid = (int)rank.pid;
    rank_tell(TPL_MARK_STARTED, 0, rank_step());
    status = rank_wait(signals);
    if (rank.report >= 0)
        rank_listen();
    rank_sweep(signals);
    rank_dismiss();
    if (status != 0)
        tpb_leavings_remove(&rank.pid, 1);
    return rank_end(status, signals);
}
