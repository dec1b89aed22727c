/* SPDX-License-Identifier: BSD-3-Clause */
/* Signals to tprun, standard input, and what a rank starts with. */
#include "config.h"

#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/io.h"
#include "tests/launcher/run.h"

START_TEST(test_passed_on)
{
    static const struct { int signal; const char *name; } passed[] = {
        { SIGUSR1, "USR1\n" }, { SIGUSR2, "USR2\n" }, { SIGALRM, "ALRM\n" },
        { SIGCONT, "CONT\n" },
    };
    struct tpx_launch launch = { 0 };

    tpx_launch(&launch, -1, (const char *const[]){ "-n", "3", "-v", "RANK",
               "signals", NULL });
    tpx_await_output(&launch, "ready\n", 3);
    for (size_t i = 0; i < TPB_COUNT(passed); i++) {
        kill(launch.pid, passed[i].signal);
        tpx_await_output(&launch, passed[i].name, 3);
    }
    kill(launch.pid, SIGTERM);
    tpx_finish(&launch, 90);
    /* All left in good order, but those that did not get so far in the two
     * seconds before SIGKILL; and yet the job was interrupted. */
    ck_assert_int_eq(launch.status, 143);
    ck_assert_int_ge(tpx_count(launch.out, "TERM\n"), 1);
    ck_assert_msg(tpx_count(launch.out, "TERM\n")
                  + tpx_count(launch.err, "killed by signal 9") >= 3
                  && tpx_count(launch.err, "exited with status 0")
                  + tpx_count(launch.err, "killed by signal 9") == 3, "%s%s",
                  launch.out, launch.err);
    ck_assert_ptr_nonnull(strstr(launch.err, "tprun: signal 15 (SIGTERM) ended "
                                 "the job\n"));
    tpx_release(&launch);
}
END_TEST

START_TEST(test_ending)
{
    static const int ending[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
    struct tpx_launch launch = { 0 };

    signal(ending[_i], SIG_DFL);       /* nohup(1) may have told otherwise */
    tpx_launch(&launch, -1, (const char *const[]){ "-n", "2", "sh", "-c",
               "echo ready; sleep 600", NULL });
    tpx_await_output(&launch, "ready\n", 2);
    kill(launch.pid, ending[_i]);
    tpx_finish(&launch, 90);
    ck_assert_int_eq(launch.status, 128 + ending[_i]);
    /* A shell's loop only ends on Ctrl-C if its child died of it. */
    ck_assert(!WIFSIGNALED(launch.raw) == (ending[_i] != SIGINT));
    ck_assert_int_eq(tpx_count(launch.err, "\n"), 1);
    tpx_release(&launch);
}
END_TEST

/* Ranks that ignore SIGTERM get SIGKILL, at once with the second signal. */
START_TEST(test_stubborn)
{
    struct tpx_launch launch = { 0 };

    tpx_launch(&launch, -1, (const char *const[]){ "-n", "2", "RANK",
               "stubborn", NULL });
    tpx_await_output(&launch, "ready\n", 2);
    kill(launch.pid, SIGINT);
    if (_i == 1) {
        tpx_doze(0.1);
        kill(launch.pid, SIGINT);
    }
    tpx_finish(&launch, 90);
    ck_assert_int_eq(launch.status, 130);
    tpx_release(&launch);
}
END_TEST

/* SIGTERM has ended the job; how often it had said that. */
static int said_at_last(struct tpx_launch *launch, const char *text)
{
    int count;

    tpx_finish(launch, 90);
    ck_assert_int_eq(launch->status, 143);
    count = tpx_count(launch->out, text);
    tpx_release(launch);
    return count;
}

/* Of two ranks one is stopped, and the job is ended; how many say goodbye. */
static int stopped_rank(void)
{
    struct tpx_launch launch = { 0 };

    tpx_launch(&launch, -1, (const char *const[]){ "-n", "2", "sh", "-c",
               "trap 'echo bye; exit 0' TERM; echo ready $PMIX_RANK $$; "
               "test $PMIX_RANK = 1 && kill -STOP $$; "
               "while :; do sleep 0.05; done", NULL });
    tpx_await_output(&launch, "ready ", 2);
    tpx_await_stopped(tpx_number_behind(&launch, "ready 1 "));
    kill(launch.pid, SIGTERM);
    return said_at_last(&launch, "bye\n");
}

/* A rank that is stopped hears SIGTERM all the same.  On a busy machine it may
 * take more than the two seconds before SIGKILL to say so. */
START_TEST(test_stopped_rank)
{
    int byes = 0;

    for (int turn = 0; turn < 5 && byes < 2; turn++)
        byes = stopped_rank();
    ck_assert_int_eq(byes, 2);
}
END_TEST

/* So does one that has left its process group. */
START_TEST(test_rank_away)
{
    struct tpx_launch launch = { 0 };

    tpx_launch(&launch, -1, (const char *const[]){ "-n", "2", "RANK", "away",
               NULL });
    tpx_await_output(&launch, "ready\n", 2);
    kill(launch.pid, SIGTERM);
    tpx_finish(&launch, 90);
    ck_assert_int_eq(launch.status, 143);
    ck_assert_str_eq(launch.err,
                     "tprun: signal 15 (SIGTERM) ended the job\n");
    tpx_release(&launch);
}
END_TEST

/* All ranks have ended, and nobody reads what they wrote. */
START_TEST(test_unread)
{
    static const int ending[] = { SIGINT, SIGTERM };
    struct tpx_launch launch = { 0 }, said = { 0 };
    int ends[2];

    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    launch.out_fd = ends[1];
    tpx_launch(&launch, -1, (const char *const[]){ "-n", "1", "-v", "seq",
               "20000", NULL });
    close(ends[1]);
    said.pid = launch.pid;
    said.out_fd = launch.err_fd;
    tpx_await_output(&said, "exited with status 0", 1);
    /* All processes that it might have left are looked for. */
    tpx_await_asleep(launch.pid);
    kill(launch.pid, ending[_i]);
    launch.out_fd = memfd_create("none", MFD_CLOEXEC);
    tpx_finish(&launch, 90);
    close(ends[0]);
    ck_assert_msg(launch.status == 128 + ending[_i], "status %d: %s",
                  launch.status, launch.err);
    ck_assert(!WIFSIGNALED(launch.raw) == (ending[_i] != SIGINT));
    ck_assert_int_eq(tpx_count(launch.err, "ended the job; output that nobody "
                               "has read is lost\n"), 1);
    tpx_release(&launch);
}
END_TEST

/* SIGTSTP stops ranks and tprun; SIGCONT lets all go on. */
START_TEST(test_suspend)
{
    char directory[] = "/tmp/tpx-signals-XXXXXX";
    struct tpx_launch launch = { 0 };
    int status;

    ck_assert_ptr_nonnull(mkdtemp(directory));
    tpx_launch(&launch, -1, (const char *const[]){ "-n", "2", "RANK",
               "signals", directory, NULL });
    tpx_await_output(&launch, "ready\n", 2);
    kill(launch.pid, SIGTSTP);
    ck_assert_int_eq(waitpid(launch.pid, &status, WUNTRACED), launch.pid);
    ck_assert(WIFSTOPPED(status));
    /* A SIGCONT takes back a SIGTSTP that has not been seen yet. */
    ck_assert_int_eq(chdir(directory), 0);
    for (int i = 0; i < 6000 && (access("0", F_OK) < 0
                                 || access("1", F_OK) < 0); i++)
        tpx_doze(0.01);
    kill(launch.pid, SIGCONT);
    tpx_await_output(&launch, "TSTP\n", 2);
    tpx_await_output(&launch, "CONT\n", 2);
    kill(launch.pid, SIGTERM);
    tpx_finish(&launch, 90);
    ck_assert_int_eq(unlink("0"), 0);
    ck_assert_int_eq(unlink("1"), 0);
    rmdir(directory);
    tpx_release(&launch);
}
END_TEST

/* A rank that was told to end saves its work, and is stopped together with
 * tprun for longer than it had; how often it has saved. */
static int stopped_in_time(void)
{
    struct tpx_launch launch = { 0 };
    pid_t rank;

    tpx_launch(&launch, -1, (const char *const[]){ "sh", "-c",
               "trap 'echo saving; for i in $(seq 20); do sleep 0.05; done; "
               "echo saved; exit 0' TERM; echo ready $$; "
               "while :; do sleep 0.05; done", NULL });
    tpx_await_output(&launch, "ready ", 1);
    rank = tpx_number_behind(&launch, "ready ");
    kill(launch.pid, SIGTERM);
    if (tpx_output_comes(&launch, "saving\n", 1, 5)) {
        kill(launch.pid, SIGSTOP);
        kill(-rank, SIGSTOP);
        tpx_doze(6);
        kill(launch.pid, SIGCONT);
        kill(-rank, SIGCONT);
    }
    return said_at_last(&launch, "saved\n");
}

/* That is given back.  As above, a busy machine may need more than the time
 * that all have. */
START_TEST(test_stopped_in_time)
{
    int saved = 0;

    for (int turn = 0; turn < 5 && saved == 0; turn++)
        saved = stopped_in_time();
    ck_assert_int_eq(saved, 1);
}
END_TEST

/* nohup: what tprun was started to ignore it ignores, and ranks do too. */
START_TEST(test_ignored_stays_ignored)
{
    struct tpx_launch launch = { 0 };

    signal(SIGHUP, SIG_IGN);
    tpx_launch(&launch, -1, (const char *const[]){ "-n", "2", "sh", "-c",
               "echo ready; kill -HUP $$; kill -HUP $PPID; sleep 0.3; "
               "echo alive", NULL });
    signal(SIGHUP, SIG_DFL);
    tpx_finish(&launch, 90);
    ck_assert_int_eq(launch.status, 0);
    ck_assert_int_eq(tpx_count(launch.out, "alive\n"), 2);
    tpx_release(&launch);
}
END_TEST

/* How often the threads of a process have gone to sleep so far. */
static long signals_sleeps(pid_t pid)
{
    char path[300];
    long total = 0;
    struct dirent *entry;
    DIR *tasks;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    tasks = opendir(path);
    ck_assert_ptr_nonnull(tasks);
    while ((entry = readdir(tasks)) != NULL) {
        char line[128];
        long count;
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%d/task/%.255s/status", (int)pid,
                 entry->d_name);
        file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        while (file != NULL && fgets(line, sizeof(line), file) != NULL)
            if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1)
                total += count;
        if (file != NULL)
            fclose(file);
    }
    closedir(tasks);
    return total;
}

/* A job that waits costs nothing.  Wake-ups do not depend on how fast the
 * machine is: a loop that polls even ten times a second has twenty in two
 * seconds.  Starting and ending have theirs too, so look in between. */
START_TEST(test_idle)
{
    struct tpx_launch idle = { 0 };
    long before, spent;
    double seconds;
    uint64_t begun;

    tpx_launch(&idle, -1, (const char *const[]){ "-n", "4", "sh", "-c",
               "echo ready; exec sleep 600", NULL });
    tpx_await_output(&idle, "ready\n", 4);
    tpx_doze(0.5);
    begun = tpb_now();
    before = signals_sleeps(idle.pid);
    ck_assert_int_gt(before, 0);
    tpx_doze(2);
    spent = signals_sleeps(idle.pid) - before;
    seconds = (double)(tpb_now() - begun) * 1e-9;
    /* ThreadSanitizer has a thread of its own, which looks ten times a
     * second. */
    ck_assert_msg((double)spent < seconds * (tpx_sanitized_thread() ? 17 : 7),
                  "%ld wake-ups while idle for %g s", spent, seconds);
    kill(idle.pid, SIGTERM);
    tpx_finish(&idle, 90);
    ck_assert_int_eq(idle.status, 143);
    tpx_release(&idle);
}
END_TEST

START_TEST(test_input)
{
    struct tpx_launch launch = { 0 };
    int file = memfd_create("input", 0);
    char rest[16] = "";

    ck_assert_int_eq(write(file, "first\nsecond\n", 13), 13);
    lseek(file, 0, SEEK_SET);
    tpx_launch(&launch, file, (const char *const[]){ "-n", "3", "--tag", "sh",
               "-c", "read line; echo \"$line.\"", NULL });
    tpx_finish(&launch, 90);
    ck_assert_int_eq(tpx_count(launch.out, "[0] first.\n"), 1);
    ck_assert_int_eq(tpx_count(launch.out, "[1] .\n"), 1);
    ck_assert_int_eq(tpx_count(launch.out, "[2] .\n"), 1);
    /* Nothing was read beyond what rank 0 took. */
    ck_assert_int_eq(read(file, rest, sizeof(rest)), 7);
    ck_assert_str_eq(rest, "second\n");
    close(file);
    tpx_release(&launch);
}
END_TEST

/* Much, through a pipe, and a rank that does not want any of it. */
START_TEST(test_much_input)
{
    struct tpx_launch launch = { 0 };
    FILE *source = popen("yes 0123456789abcde | head -c 8000000", "r");

    ck_assert_ptr_nonnull(source);
    tpx_launch(&launch, fileno(source), (const char *const[]){ "-n", "2",
               "wc", "-c", NULL });
    tpx_finish(&launch, 120);
    pclose(source);
    ck_assert_int_eq(tpx_count(launch.out, "8000000\n"), 1);
    ck_assert_int_eq(tpx_count(launch.out, "0\n"), 2);
    tpx_release(&launch);
    source = popen("yes 2>/dev/null", "r");
    tpx_launch(&launch, fileno(source), (const char *const[]){ "-n", "2",
               "true", NULL });
    tpx_finish(&launch, 90);
    ck_assert_int_eq(launch.status, 0);
    pclose(source);
    tpx_release(&launch);
}
END_TEST

/* Runs that program on a terminal of its own; returns the master's
 * descriptor. */
static int any_on_terminal(pid_t *pid, const char *program,
                           const char *const *args)
{
    const char *argv[16] = { program };
    int master;

    for (int i = 0; args[i] != NULL; i++)
        argv[i + 1] = args[i];
    *pid = forkpty(&master, NULL, NULL, NULL);
    ck_assert_int_ge(*pid, 0);
    if (*pid == 0) {
        signal(SIGHUP, SIG_DFL);
        signal(SIGINT, SIG_DFL);
        signal(SIGQUIT, SIG_DFL);
        execv(argv[0], (char **)argv);
        _exit(255);
    }
    return master;
}

static int on_terminal(pid_t *pid, const char *const *args)
{
    return any_on_terminal(pid, tpx_program("launcher/tprun"), args);
}

/* Reads from the terminal until `text` has come.  What comes with it, as it may
 * on a busy machine, is there for the next. */
static void expect(int master, const char *text)
{
    static char seen[8192];
    static size_t length;
    char *at;

    while ((at = strstr(seen, text)) == NULL) {
        ssize_t got = read(master, seen + length, sizeof(seen) - 1 - length);

        ck_assert_msg(got > 0, "wanted \"%s\", got \"%s\"", text, seen);
        length += (size_t)got;
        seen[length] = '\0';
    }
    at += strlen(text);
    length -= (size_t)(at - seen);
    memmove(seen, at, length + 1);
}

static int ended(pid_t pid)
{
    int status;

    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status)
                               : WEXITSTATUS(status);
}

/* A prompt without a newline shows, what is typed arrives, Ctrl-D ends it. */
START_TEST(test_terminal)
{
    pid_t pid;
    int master = on_terminal(&pid, (const char *const[]){ "-n", "2", "sh",
                             "-c", "test $PMIX_RANK = 0 || exit 0; "
                             "printf 'name? '; read name; "
                             "echo \"hello $name\"; cat; echo over", NULL });

    expect(master, "name? ");
    ck_assert_int_eq(write(master, "tp\n", 3), 3);
    expect(master, "hello tp");
    ck_assert_int_eq(write(master, "\004", 1), 1);
    expect(master, "over");
    ck_assert_int_eq(ended(pid), 0);
    close(master);
}
END_TEST

/* Ctrl-C at the terminal reaches tprun alone, and it does the rest. */
START_TEST(test_terminal_interrupt)
{
    pid_t pid;
    int master = on_terminal(&pid, (const char *const[]){ "-n", "2", "sh",
                             "-c", "echo ready; sleep 600", NULL });

    expect(master, "ready\r\nready\r\n");
    ck_assert_int_eq(write(master, "\003", 1), 1);
    expect(master, "signal 2 (SIGINT) ended the job");
    ck_assert_int_eq(ended(pid), 130);
    close(master);
}
END_TEST

/* Where no shell could continue the job, as after `ssh -t`, ^Z stops nothing:
 * once it did, and ^C found a tprun that was stopped. */
START_TEST(test_terminal_alone)
{
    pid_t pid;
    int master = on_terminal(&pid, (const char *const[]){ "-n", "2", "sh",
                             "-c", "echo ready; test $PMIX_RANK = 0 || "
                             "exit 0; while read word; do "
                             "echo \"got $word\"; done", NULL });

    expect(master, "ready\r\nready\r\n");
    ck_assert_int_eq(write(master, "\032", 1), 1);
    expect(master, "^Z");
    ck_assert_int_eq(write(master, "this\n", 5), 5);
    expect(master, "got this");
    ck_assert_int_eq(write(master, "\003", 1), 1);
    expect(master, "signal 2 (SIGINT) ended the job");
    ck_assert_int_eq(ended(pid), 130);
    close(master);
}
END_TEST

/* Where one could, ^Z stops tprun and its ranks until it does. */
START_TEST(test_terminal_shell)
{
    char script[1024];
    pid_t pid;
    int master;

    snprintf(script, sizeof(script), "%s -n 1 sh -c 'trap word=go CONT; "
             "word=run; echo $word$word; while test $word = run; do "
             "sleep 0.1; done; echo $word$word'; echo halted; fg; sleep 600",
             tpx_program("launcher/tprun"));
    master = any_on_terminal(&pid, "/bin/sh",
                             (const char *const[]){ "-mc", script, NULL });
    expect(master, "runrun");
    ck_assert_int_eq(write(master, "\032", 1), 1);
    expect(master, "halted");
    expect(master, "gogo");
    close(master);
    ck_assert_int_eq(ended(pid), 129);
}
END_TEST

/* With --pty a tprun that is stopped leaves the terminal as it was, and one
 * that ends in the background leaves it alone: once that stopped it. */
START_TEST(test_terminal_background)
{
    char script[1024];
    pid_t pid;
    int master;

    snprintf(script, sizeof(script), "%s -n 1 --pty sh -c 'trap word=go CONT; "
             "word=run; kill -TSTP $PPID; while test $word = run; do "
             "sleep 0.1; done; exit 7'; "
             "echo \"now $(stty -a | grep -o -e -*icanon)\"; "
             "bg; wait %%1; echo \"status $?\"",
             tpx_program("launcher/tprun"));
    master = any_on_terminal(&pid, "/bin/sh",
                             (const char *const[]){ "-mc", script, NULL });
    expect(master, "now icanon");
    expect(master, "status 7");
    close(master);
    ended(pid);
}
END_TEST

/* A terminal that shows nothing any more, as after ^S, keeps tprun from
 * nothing. */
START_TEST(test_terminal_stuck)
{
    char one;
    pid_t pid;
    int master = on_terminal(&pid, (const char *const[]){ "yes", NULL });

    ck_assert_int_eq(read(master, &one, 1), 1);
    tpx_doze(1);
    kill(pid, SIGTERM);
    ck_assert_int_eq(ended(pid), 143);
    close(master);
}
END_TEST

/* Its output is a pipe that nobody reads. */
static void launch_unread(struct tpx_launch *launch, int ends[2],
                          const char *const arguments[])
{
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    launch->out_fd = ends[1];
    tpx_launch(launch, -1, arguments);
    launch->out_fd = memfd_create("none", MFD_CLOEXEC);
}

/* Tprun is there, and so is more than its reader can be given. */
static void await_unread(const int ends[2])
{
    struct pollfd room = { .fd = ends[1], .events = POLLOUT };

    for (int i = 0; i < 6000 && poll(&room, 1, 0) > 0; i++)
        tpx_doze(0.01);
    ck_assert_int_eq(poll(&room, 1, 0), 0);
}

static void release_unread(struct tpx_launch *launch, const int ends[2])
{
    close(ends[0]);
    close(ends[1]);
    tpx_release(launch);
}

/* Nor from --timeout, and no more does a pipe that nobody reads. */
START_TEST(test_timeout_unread)
{
    struct tpx_launch launch = { 0 };
    int ends[2];
    pid_t pid;
    int master = on_terminal(&pid, (const char *const[]){ "--timeout", "1",
                             "yes", NULL });

    ck_assert_int_eq(ended(pid), 124);
    close(master);
    launch_unread(&launch, ends, (const char *const[]){ "--timeout", "1",
                  "yes", NULL });
    tpx_finish(&launch, 90);
    ck_assert_int_eq(launch.status, 124);
    ck_assert_int_eq(tpx_count(launch.err, "tprun: the job ran longer than"),
                     1);
    release_unread(&launch, ends);
}
END_TEST

/* The last line is said, as who reads standard error may well read: after one
 * signal, and after a second one that does not wait for a reader. */
START_TEST(test_signal_unread)
{
    struct tpx_launch launch = { 0 };
    int ends[2];

    launch_unread(&launch, ends, (const char *const[]){ "-n", "2", "yes",
                  NULL });
    await_unread(ends);
    kill(launch.pid, SIGTERM);
    if (_i == 1) {
        tpx_doze(0.7);
        kill(launch.pid, SIGTERM);
    }
    tpx_finish(&launch, 90);
    ck_assert_int_eq(launch.status, 143);
    ck_assert_str_eq(launch.err, "tprun: signal 15 (SIGTERM) ended the job\n");
    release_unread(&launch, ends);
}
END_TEST

/* How much of a rank's output a slow reader gets of a job with that limit; when
 * the rank has written all it makes the file TPX_FILE. */
static long read_slowly(const char *limit)
{
    struct tpx_launch launch = { 0 };
    char part[4096];
    ssize_t got;
    long all = 0;
    int ends[2];

    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    ck_assert_int_ge(fcntl(ends[0], F_SETPIPE_SZ, sizeof(part)), 0);
    launch.out_fd = ends[1];
    tpx_launch(&launch, -1, (const char *const[]){ "--timeout", limit, "sh",
               "-c", "seq 20000; : >$TPX_FILE; exec sleep 600", NULL });
    tpb_close(&launch.out_fd);
    while ((got = read(ends[0], part, sizeof(part))) > 0) {
        all += got;
        tpx_doze(0.2);
    }
    close(ends[0]);
    tpx_finish(&launch, 90);
    ck_assert_int_eq(launch.status, 124);
    tpx_release(&launch);
    return all;
}

/* Whoever reads on, however slowly, gets all that was written by then.  On a
 * busy machine that may not be all yet: a longer limit is tried then. */
START_TEST(test_timeout_slowly)
{
    static const char *const limits[] = { "3", "12", "48" };
    char path[] = "/tmp/tpx-slowly-XXXXXX";
    bool written = false;
    long all = 0;
    int file = mkstemp(path);

    ck_assert_int_ge(file, 0);
    close(file);
    unlink(path);
    setenv("TPX_FILE", path, 1);
    for (size_t i = 0; i < TPB_COUNT(limits) && !written; i++) {
        all = read_slowly(limits[i]);
        written = unlink(path) == 0;
    }
    ck_assert(written);
    ck_assert_int_eq(all, 108894);
}
END_TEST

/* What is typed for a rank that does not want it is left to the next who
 * reads. */
START_TEST(test_terminal_unwanted)
{
    struct tpx_launch launch = { 0 };
    int master, slave;
    char text[16] = "";

    ck_assert_int_eq(openpty(&master, &slave, NULL, NULL, NULL), 0);
    fcntl(master, F_SETFD, FD_CLOEXEC);
    fcntl(slave, F_SETFD, FD_CLOEXEC);
    setsid();
    tpx_launch(&launch, slave, (const char *const[]){ "-n", "1", "sh", "-c",
               "exec <&-; echo closed; sleep 600", NULL });
    tpx_await_output(&launch, "closed\n", 1);
    ck_assert_int_eq(write(master, "typed\n", 6), 6);
    tpx_doze(0.3);
    kill(launch.pid, SIGTERM);
    tpx_finish(&launch, 90);
    ck_assert_int_eq(launch.status, 143);
    fcntl(slave, F_SETFL, O_NONBLOCK);
    ck_assert_int_eq(read(slave, text, sizeof(text)), 6);
    ck_assert_str_eq(text, "typed\n");
    close(slave);
    close(master);
    tpx_release(&launch);
}
END_TEST

/* A terminal that is not the one of tprun's session: what is typed there comes
 * all the same, and so does its end. */
START_TEST(test_terminal_elsewhere)
{
    struct tpx_launch launch = { 0 };
    int master, slave;

    ck_assert_int_eq(openpty(&master, &slave, NULL, NULL, NULL), 0);
    fcntl(master, F_SETFD, FD_CLOEXEC);
    setsid();
    tpx_launch(&launch, slave, (const char *const[]){ "-n", "1", "cat",
               NULL });
    close(slave);
    ck_assert_int_eq(write(master, "hello\n", 6), 6);
    tpx_await_output(&launch, "hello\n", 1);
    close(master);
    tpx_finish(&launch, 30);
    ck_assert_int_eq(launch.status, 0);
    tpx_release(&launch);
}
END_TEST

/* With --pty rank 0 has the terminal: keys come as they are typed, ^C is its
 * own, and it hears of another size. */
START_TEST(test_terminal_program)
{
    struct winsize small = { .ws_row = 24, .ws_col = 80 };
    struct winsize large = { .ws_row = 50, .ws_col = 132 };
    char path[] = "/tmp/tpx-terminal-XXXXXX";
    pid_t pid;
    int master, file = mkstemp(path);

    ck_assert_int_ge(file, 0);
    close(file);
    unlink(path);
    setenv("TPX_FILE", path, 1);
    master = on_terminal(&pid, (const char *const[]){ "-n", "2", "--pty",
                         "sh", "-c", "trap 'stty size <&1' WINCH; "
                         "trap 'echo caught' INT; "
                         "test $PMIX_RANK = 0 || exit 0; "
                         "stty -icanon -echo min 1; printf 'key? '; "
                         "key=$(dd bs=1 count=1 2>/dev/null); "
                         "echo \"got $key\"; while test ! -e $TPX_FILE; "
                         "do sleep 0.05; done; exit 7", NULL });
    expect(master, "key? ");
    ck_assert_int_eq(write(master, "k", 1), 1);
    expect(master, "got k");
    ck_assert_int_eq(write(master, "\003", 1), 1);
    expect(master, "caught");
    ck_assert_int_eq(ioctl(master, TIOCSWINSZ, &small), 0);
    expect(master, "24 80");
    ck_assert_int_eq(ioctl(master, TIOCSWINSZ, &large), 0);
    expect(master, "50 132");
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    expect(master, "exited with status 7");
    ck_assert_int_eq(ended(pid), 7);
    close(master);
    unlink(path);
}
END_TEST

/* A rank gets the user's limits, mask, a group of its own and no descriptor
 * of ours. */
START_TEST(test_state)
{
    struct tpx_launch launch = { 0 };
    struct rlimit limit;

    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 777;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int fd = 3; fd < 777; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    tpx_run_tprun(&launch, "-n", "2", "RANK", "state");
    ck_assert_int_eq(launch.status, 0);
    ck_assert_str_eq(launch.out, "limit 777 group 1 input 0 fds\n"
                     "limit 777 group 1 input 0 fds\n");
    tpx_release(&launch);
}
END_TEST

START_TEST(test_options)
{
    struct tpx_launch launch = { 0 };

    setenv("TPX_THERE", "yes", 1);
    tpx_run_tprun(&launch, "-x", "TPX_NEW=a=b c", "-x", "TPX_THERE", "--wdir",
                  "/", "--explain", "--require", "node:shm", "sh", "-c",
                  "echo \"$TPX_NEW|$TPX_THERE|$(pwd)|$TP_EXPLAIN|$TP_REQUIRE|"
                  "$1 $2\"; echo ${TP_LAUNCHER%%:*}; "
                  "test ${TP_LAUNCHER##*:} = $PPID && echo same",
                  "name", "-n", "--tag");
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    ck_assert_str_eq(launch.out, "a=b c|yes|/|1|node:shm|-n --tag\n"
                     PACKAGE_VERSION "\nsame\n");
    tpx_release(&launch);
    /* "--" ends the options; -np is what other launchers say. */
    tpx_run_tprun(&launch, "-np", "2", "--", "echo", "-n", "x");
    ck_assert_str_eq(launch.out, "x\nx");
    tpx_release(&launch);
}
END_TEST

/* One core each where they suffice, all of them for each where not. */
START_TEST(test_binding)
{
    struct tpx_launch launch = { 0 };
    char ranks[32];
    const char *script = "grep Cpus_allowed_list /proc/self/status";

    if (!tpx_own_network())
        return;
    tpx_run_tprun(&launch, "-n", "64", "-v", "--bind-to", "none", "sh", "-c",
                  script);
    ck_assert_int_eq(tpx_count(launch.err, "free on cpus"), 64);
    tpx_release(&launch);
    tpx_run_tprun(&launch, "-n", "1", "-v", "-x", "OMP_NUM_THREADS=1", "sh",
                  "-c", script);
    ck_assert_int_eq(tpx_count(launch.err, "bound to cpus"), 1);
    tpx_release(&launch);
    /* Threads want more than a core, unless the user says what they get. */
    tpx_run_tprun(&launch, "-n", "1", "-v", "-x", "OMP_NUM_THREADS=4,2", "sh",
                  "-c", script);
    ck_assert_int_eq(tpx_count(launch.err, "free on cpus"), 1);
    tpx_release(&launch);
    tpx_run_tprun(&launch, "-n", "1", "-v", "-x", "OMP_NUM_THREADS=4",
                  "--map-by", "core", "sh", "-c", script);
    ck_assert_int_eq(tpx_count(launch.err, "bound to cpus"), 1);
    tpx_release(&launch);
    tpx_run_tprun(&launch, "-n", "3", "-v", "--bind-to", "core", "sh", "-c",
                  script);
    ck_assert_int_eq(tpx_count(launch.err, "bound to cpus"), 3);
    tpx_release(&launch);
    tpx_run_tprun(&launch, "-n", "3", "-v", "--bind-to", "package", "sh",
                  "-c", script);
    ck_assert_int_eq(tpx_count(launch.err, "bound to cpus"), 3);
    tpx_release(&launch);
    snprintf(ranks, sizeof(ranks), "%ld", sysconf(_SC_NPROCESSORS_CONF) + 1);
    tpx_run_tprun(&launch, "-n", ranks, "-v", "true");
    ck_assert_int_eq(tpx_count(launch.err, "bound to cpus"), 0);
    tpx_release(&launch);
}
END_TEST

/* The cpus that tprun itself may use are all there are. */
START_TEST(test_binding_inside)
{
    struct tpx_launch launch = { 0 };
    cpu_set_t set;
    char wanted[64];
    int cpu;

    ck_assert_int_eq(sched_getaffinity(0, sizeof(set), &set), 0);
    for (cpu = CPU_SETSIZE - 1; !CPU_ISSET(cpu, &set); cpu--)
        ;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(set), &set), 0);
    tpx_run_tprun(&launch, "-n", "2", "--bind-to", "core", "sh", "-c",
                  "grep Cpus_allowed_list /proc/self/status");
    snprintf(wanted, sizeof(wanted), "Cpus_allowed_list:\t%d\n", cpu);
    ck_assert_int_eq(launch.status, 0);
    ck_assert_int_eq(tpx_count(launch.out, wanted), 2);
    tpx_release(&launch);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("signals");
    TCase *tests = tcase_create("signals");

    tcase_set_timeout(tests, 180);
    tcase_add_test(tests, test_passed_on);
    tcase_add_loop_test(tests, test_ending, 0, 4);
    tcase_add_loop_test(tests, test_stubborn, 0, 2);
    tcase_add_test(tests, test_stopped_rank);
    tcase_add_test(tests, test_rank_away);
    tcase_add_loop_test(tests, test_unread, 0, 2);
    tcase_add_test(tests, test_suspend);
    tcase_add_test(tests, test_stopped_in_time);
    tcase_add_test(tests, test_ignored_stays_ignored);
    tcase_add_test(tests, test_idle);
    tcase_add_test(tests, test_input);
    tcase_add_test(tests, test_much_input);
    tcase_add_test(tests, test_terminal);
    tcase_add_test(tests, test_terminal_interrupt);
    tcase_add_test(tests, test_terminal_alone);
    tcase_add_test(tests, test_terminal_shell);
    tcase_add_test(tests, test_terminal_background);
    tcase_add_test(tests, test_terminal_stuck);
    tcase_add_test(tests, test_timeout_unread);
    tcase_add_loop_test(tests, test_signal_unread, 0, 2);
    tcase_add_test(tests, test_timeout_slowly);
    tcase_add_test(tests, test_terminal_unwanted);
    tcase_add_test(tests, test_terminal_elsewhere);
    tcase_add_test(tests, test_terminal_program);
    tcase_add_test(tests, test_state);
    tcase_add_test(tests, test_options);
    tcase_add_test(tests, test_binding);
    tcase_add_test(tests, test_binding_inside);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
