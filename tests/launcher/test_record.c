/* SPDX-License-Identifier: BSD-3-Clause */
/* What ranks record of themselves: tprun's last words, and tptop. */
#include "config.h"

#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/record.h"
#include "tests/launcher/run.h"

/* Starts N ranks of the talker and waits until all have called tp_init. */
static void talk(struct tpx_launch *launch, const char *ranks,
                 const char *word)
{
    tpx_launch(launch, -1, (const char *const[]){ "-n", ranks,
               tpx_program("tests/launcher/talk"), word, NULL });
    tpx_await_output(launch, "ready ", atoi(ranks));
}

static void end_job(struct tpx_launch *launch)
{
    kill(launch->pid, SIGTERM);
    tpx_finish(launch, 90);
    tpx_release(launch);
}

/* tptop --json --count 1, parsed; NULL if it failed. */
static json_t *top(pid_t pid)
{
    char command[2048];
    FILE *pipe;
    json_t *object;

    snprintf(command, sizeof(command), "%s --json --count 1 --interval 0.05 "
             "%d", tpx_program("launcher/tptop"), (int)pid);
    pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    object = json_loadf(pipe, JSON_DISABLE_EOF_CHECK, NULL);
    if (pclose(pipe) != 0) {
        json_decref(object);
        object = NULL;
    }
    return object;
}

/* Looks until rank `rank` waits for `peer` in that call, in so many threads. */
static void await_threads(pid_t pid, size_t rank, const char *call, int peer,
                          int threads)
{
    for (int i = 0; i < 500; i++) {
        json_t *object = top(pid), *waits;
        bool found;

        ck_assert_ptr_nonnull(object);
        waits = json_object_get(json_array_get(json_object_get(object,
                                "ranks"), rank), "waits");
        found = json_is_object(waits)
                && strcmp(json_string_value(json_object_get(waits, "for")),
                          call) == 0
                && json_integer_value(json_object_get(waits, "peer")) == peer
                && json_integer_value(json_object_get(waits, "threads"))
                   == threads;
        json_decref(object);
        if (found)
            return;
        tpx_doze(0.02);
    }
    ck_abort_msg("rank %zu does not wait for rank %d", rank, peer);
}

static void await_wait(pid_t pid, size_t rank, const char *call, int peer)
{
    await_threads(pid, rank, call, peer, 1);
}

/* SIGQUIT asks who waits for whom: the answer has this line, once. */
static void quit_says(struct tpx_launch *launch, const char *words)
{
    kill(launch->pid, SIGQUIT);
    tpx_finish(launch, 90);
    ck_assert_int_eq(launch->status, 128 + SIGQUIT);
    ck_assert_msg(tpx_count(launch->err, words) == 1, "%s", launch->err);
}

START_TEST(test_circle)
{
    struct tpx_launch launch = { 0 };

    talk(&launch, "3", "ring");
    for (int i = 0; i < 3; i++)
        await_wait(launch.pid, (size_t)i, "receive", (i + 1) % 3);
    quit_says(&launch, "3 ranks wait for each other: 0 -> 1 -> 2 -> 0\n");
    ck_assert_int_eq(tpx_count(launch.err, " for a message from rank "), 3);
    tpx_release(&launch);
}
END_TEST

/* A circle of one has words of its own. */
START_TEST(test_alone)
{
    struct tpx_launch launch = { 0 };

    talk(&launch, "1", "ring");
    await_wait(launch.pid, 0, "receive", 0);
    quit_says(&launch, "tprun: rank 0 waits for itself\n");
    tpx_release(&launch);
}
END_TEST

/* A thread that wakes leaves what another sleeps for. */
START_TEST(test_threads)
{
    struct tpx_launch launch = { 0 };

    talk(&launch, "3", "threads");
    tpx_await_output(&launch, "asked ", 3);
    for (int i = 0; i < 3; i++)
        await_wait(launch.pid, (size_t)i, "receive", (i + 2) % 3);
    quit_says(&launch, "3 ranks wait for each other: 0 -> 2 -> 1 -> 0\n");
    tpx_release(&launch);
}
END_TEST

/* A callback of a thread that waits may wait itself, and sleeps then: that is
 * what counts. */
START_TEST(test_nested)
{
    struct tpx_launch launch = { 0 };

    talk(&launch, "2", "nested");
    for (int i = 0; i < 2; i++)
        await_wait(launch.pid, (size_t)i, "receive", !i);
    quit_says(&launch, "2 ranks wait for each other: 0 -> 1 -> 0\n");
    tpx_release(&launch);
}
END_TEST

/* What the rank waits for is not certain then: no circle. */
START_TEST(test_both)
{
    struct tpx_launch launch = { 0 };

    talk(&launch, "2", "both");
    tpx_await_output(&launch, "asked ", 2);
    await_threads(launch.pid, 1, "receive", 0, 2);
    quit_says(&launch, " for a message from rank 0 (2 threads wait)\n");
    ck_assert_int_eq(tpx_count(launch.err, "wait for each other"), 0);
    tpx_release(&launch);
}
END_TEST

/* Who looks at what hangs is told which rank is stopped. */
START_TEST(test_stopped)
{
    struct tpx_launch launch = { 0 };
    json_t *object;
    pid_t pid;

    talk(&launch, "2", "ring");
    object = top(launch.pid);
    ck_assert_ptr_nonnull(object);
    pid = (pid_t)json_integer_value(json_object_get(json_array_get(
              json_object_get(object, "ranks"), 1), "pid"));
    json_decref(object);
    ck_assert_int_gt(pid, 0);
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    tpx_await_stopped(pid);
    quit_says(&launch, "; stopped (kill -CONT ");
    tpx_release(&launch);
}
END_TEST

/* Were so many talkers there, and did the last words tell of a full pipe? */
static bool full(const struct tpx_launch *launch, int ready)
{
    return tpx_count(launch->out, "ready ") == ready
           && strstr(launch->err, "for rank 1 to take a message; "
                     "writes pending: 1 to rank 1") != NULL;
}

/* Runs that with --timeout.  Its clock starts when ranks are forked, which may
 * be slow to get where they are to be seen: a longer limit is tried then. */
static void run_full(struct tpx_launch *launch, int limit, int ready,
                     const char *const *args)
{
    for (int turn = 0; turn < 3; turn++, limit *= 4) {
        const char *all[12] = { "--timeout" };
        char seconds[16];
        int n = 0;

        snprintf(seconds, sizeof(seconds), "%d", limit);
        all[1] = seconds;
        for (; args[n] != NULL && n < 9; n++)
            all[n + 2] = args[n];
        if (turn > 0)
            tpx_release(launch);
        tpx_launch(launch, -1, all);
        tpx_finish(launch, 90);
        if (full(launch, ready))
            return;
    }
}

START_TEST(test_timeout)
{
    struct tpx_launch launch = { 0 };

    run_full(&launch, 2, 3, (const char *const[]){ "-n", "3",
             tpx_program("tests/launcher/talk"), "full", NULL });
    ck_assert_int_eq(launch.status, 124);
    ck_assert_int_eq(tpx_count(launch.err, "who waits for whom"), 1);
    ck_assert_msg(full(&launch, 3), "%s%s", launch.out, launch.err);
    ck_assert_ptr_nonnull(strstr(launch.err, "outside any call that blocks"));
    tpx_release(&launch);
}
END_TEST

/* A script's next program is told of as the first was, whether that ended as it
 * should or was killed. */
START_TEST(test_next)
{
    static const char *const scripts[] = {
        "\"$0\" once && exec \"$0\" full",
        "\"$0\" loss; exec \"$0\" full",
    };
    struct tpx_launch launch = { 0 };

    for (size_t i = 0; i < TPB_COUNT(scripts); i++) {
        run_full(&launch, 3, 4, (const char *const[]){ "-n", "2", "sh", "-c",
                 scripts[i], tpx_program("tests/launcher/talk"), NULL });
        ck_assert_int_eq(launch.status, 124);
        ck_assert_msg(full(&launch, 4), "%s%s", launch.out, launch.err);
        tpx_release(&launch);
    }
}
END_TEST

/* The dead rank's own words, read after its death. */
START_TEST(test_death)
{
    struct tpx_launch launch = { 0 };
    const char *at;
    char *text;
    size_t length;
    int pid = 0;

    talk(&launch, "3", "star");
    await_wait(launch.pid, 2, "receive", 0);
    text = tpb_zalloc(4096);
    length = (size_t)pread(launch.out_fd, text, 4095, 0);
    ck_assert_uint_gt(length, 0);
    at = strstr(text, "ready 2 ");
    ck_assert_ptr_nonnull(at);
    ck_assert_int_eq(sscanf(at, "ready 2 %d", &pid), 1);
    tpb_free(text);
    kill(pid, SIGKILL);
    tpx_finish(&launch, 90);
    ck_assert_int_eq(launch.status, 128 + SIGKILL);
    at = strstr(launch.err, "tprun: rank 2 (pid ");
    ck_assert_msg(at != NULL, "%s", launch.err);
    ck_assert_ptr_nonnull(strstr(at, " was killed by signal 9 (SIGKILL); it "
                                 "was waiting "));
    ck_assert_ptr_nonnull(strstr(at, " for a message from rank 0\n"));
    tpx_release(&launch);
}
END_TEST

/* With --keep-going the others live on, and are told. */
START_TEST(test_keep_going)
{
    struct tpx_launch launch = { 0 };
    char words[64];

    tpx_run_tprun(&launch, "-n", "3", "--keep-going",
                  tpx_program("tests/launcher/talk"), "fall");
    ck_assert_int_eq(launch.status, 128 + SIGKILL);
    for (int i = 0; i < 2; i++) {
        snprintf(words, sizeof(words), "rank %d: %s\n", i,
                 tp_strerror(TP_ERR_PEER_FAILED));
        ck_assert_msg(tpx_count(launch.out, words) == 1, "%s%s", launch.out,
                      launch.err);
    }
    tpx_release(&launch);
}
END_TEST

/* Looks until that rank's process has ended, and waits for nobody any more. */
static void await_ended(pid_t pid, size_t rank)
{
    bool ended = false;

    for (int i = 0; i < 500 && !ended; i++) {
        json_t *object = top(pid), *one, *pipe;

        ck_assert_ptr_nonnull(object);
        one = json_array_get(json_object_get(object, "ranks"), rank);
        pipe = json_array_get(json_object_get(one, "pipes"), 0);
        ended = strcmp(json_string_value(json_object_get(one, "phase")),
                       "ended") == 0
                && json_is_null(json_object_get(one, "waits"))
                && json_real_value(json_object_get(pipe, "blocked_s")) == 0;
        json_decref(object);
        if (!ended)
            tpx_doze(0.02);
    }
    ck_assert(ended);
}

START_TEST(test_top_ended)
{
    struct tpx_launch launch = { 0 };

    tpx_launch(&launch, -1, (const char *const[]){ "-n", "2", "--keep-going",
               tpx_program("tests/launcher/talk"), "full", NULL });
    tpx_await_output(&launch, "ready ", 2);
    await_wait(launch.pid, 0, "send", 1);
    kill(tpx_number_behind(&launch, "ready 0 "), SIGKILL);
    await_ended(launch.pid, 0);
    end_job(&launch);
}
END_TEST

/* --verbose tells no less of a rank that died than without. */
START_TEST(test_verbose)
{
    struct tpx_launch launch = { 0 };

    tpx_launch(&launch, -1, (const char *const[]){ "-n", "2", "--keep-going",
               "-v", tpx_program("tests/launcher/talk"), "full", NULL });
    tpx_await_output(&launch, "ready ", 2);
    await_wait(launch.pid, 0, "send", 1);
    kill(tpx_number_behind(&launch, "ready 0 "), SIGKILL);
    await_ended(launch.pid, 0);
    kill(launch.pid, SIGTERM);
    tpx_finish(&launch, 90);
    ck_assert_msg(tpx_count(launch.err, " was killed by signal 9 (SIGKILL); it "
                            "was waiting ") == 1, "%s", launch.err);
    tpx_release(&launch);
}
END_TEST

static double top_rate(json_t *object, size_t rank, const char *what)
{
    json_t *one = json_array_get(json_object_get(object, "ranks"), rank);

    return json_real_value(json_object_get(
        json_array_get(json_object_get(one, "pipes"), 0), what));
}

/* Looks until ranks 0 and 1 have a pipe in use: in one sample both, for on a
 * busy machine one may have been at it, and the other not. */
static json_t *await_talk(pid_t pid)
{
    for (int i = 0; i < 500; i++) {
        json_t *object = top(pid);

        ck_assert_ptr_nonnull(object);
        if (top_rate(object, 0, "bytes_sent_per_s") > 0
            && top_rate(object, 1, "bytes_received_per_s") > 0)
            return object;
        json_decref(object);
        tpx_doze(0.02);
    }
    ck_abort_msg("the ranks do not talk");
    return NULL;
}

static int run_top(const char *arguments)
{
    char command[2048];
    int status;

    snprintf(command, sizeof(command), "%s %s >/dev/null 2>&1 </dev/null",
             tpx_program("launcher/tptop"), arguments);
    status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* What it says on standard error holds these words. */
static void top_says(const char *arguments, const char *words)
{
    char command[2048];

    snprintf(command, sizeof(command), "%s 2>&1 >/dev/null </dev/null %s |"
             " grep -q -e '%s'", tpx_program("launcher/tptop"), arguments,
             words);
    ck_assert_msg(system(command) == 0, "tptop %s: no \"%s\"", arguments,
                  words);
}

/* Numbers that grow, on both sides of the pair. */
START_TEST(test_top)
{
    struct tpx_launch launch = { 0 };
    json_t *object, *ranks, *pipe;
    json_int_t sent, received;
    char closed[64];

    talk(&launch, "3", "talk");
    object = await_talk(launch.pid);
    ranks = json_object_get(object, "ranks");
    ck_assert_uint_eq(json_array_size(ranks), 3);
    for (size_t i = 0; i < 2; i++) {
        pipe = json_array_get(json_object_get(json_array_get(ranks, i),
                                              "pipes"), 0);
        ck_assert_int_eq(json_integer_value(json_object_get(pipe, "peer")),
                         i == 0 ? 1 : 0);
        ck_assert_str_eq(json_string_value(json_object_get(pipe, "backend")),
                         "shm");
        sent = json_integer_value(json_object_get(pipe, "bytes_sent"));
        received = json_integer_value(json_object_get(pipe,
                                                      "bytes_received"));
        ck_assert_int_gt(i == 0 ? sent : received, 64);
        ck_assert_int_eq((i == 0 ? sent : received) % 64, 0);
        ck_assert(json_real_value(json_object_get(pipe, i == 0
                  ? "bytes_sent_per_s" : "bytes_received_per_s")) > 0);
    }
    json_decref(object);
    /* The record is not to be what it writes to. */
    snprintf(closed, sizeof(closed), "--json --count 1 --interval 0.05 %d >&-",
             (int)launch.pid);
    top_says(closed, "standard output: Bad file");
    kill(launch.pid, SIGTERM);
    tpx_finish(&launch, 90);
    ck_assert_ptr_null(top(launch.pid));
    tpx_release(&launch);
}
END_TEST

/* Pipes of peers from outside that were closed are not shown any more; the
 * places are used again, also those of a job of one rank. */
START_TEST(test_guests)
{
    struct tpx_launch launch = { 0 };
    bool found = false;

    talk(&launch, "1", "guests");
    tpx_await_output(&launch, "asked ", 1);
    for (int i = 0; i < 500 && !found; i++) {
        json_t *object = top(launch.pid), *rank, *pipes, *pipe;

        ck_assert_ptr_nonnull(object);
        rank = json_array_get(json_object_get(object, "ranks"), 0);
        pipes = json_object_get(rank, "pipes");
        pipe = json_array_get(pipes, 0);
        found = json_array_size(pipes) == 1
                && json_integer_value(json_object_get(rank,
                                      "unrecorded_pipes")) == 0
                && json_integer_value(json_object_get(pipe, "peer")) == -1
                && json_integer_value(json_object_get(pipe,
                                      "messages_received")) == 1
                && json_integer_value(json_object_get(pipe, "bytes_received"))
                   == 7
                && json_integer_value(json_object_get(json_object_get(rank,
                                      "closed_pipes"), "bytes_received"))
                   == 1000 * (TPB_RECORD_GUESTS + 44);
        if (i == 499)
            json_dumpf(object, stderr, JSON_INDENT(1));
        json_decref(object);
        if (!found)
            tpx_doze(0.02);
    }
    ck_assert(found);
    end_job(&launch);
}
END_TEST

/* Peers from outside, or pipes to one rank, are many: they do not hide the rank
 * that is waited for as well. */
START_TEST(test_crowd)
{
    struct tpx_launch launch = { 0 };

    talk(&launch, "3", "crowd");
    tpx_await_output(&launch, "asked ", 1);
    await_wait(launch.pid, 0, "any", -1);
    quit_says(&launch, ", 9 from 9 peers outside the job\n");
    ck_assert_int_eq(tpx_count(launch.err, "9 from rank 1, "), 1);
    ck_assert_int_eq(tpx_count(launch.err, "1 from rank 2, "), 1);
    tpx_release(&launch);
}
END_TEST

static char seen[65536];
static size_t seen_length;

/* Reads on until `text` comes; all that was read since await_screen(). */
static const char *await_more(int master, const char *text)
{
    struct pollfd ready = { master, POLLIN, 0 };

    while (seen_length < sizeof(seen) - 1 && poll(&ready, 1, 60000) > 0) {
        ssize_t got = read(master, seen + seen_length,
                           sizeof(seen) - 1 - seen_length);

        if (got <= 0)
            break;
        seen_length += (size_t)got;
        seen[seen_length] = '\0';
        if (strstr(seen, text) != NULL)
            return seen;
    }
    ck_abort_msg("no \"%s\" on the screen: %s", text, seen);
}

/* Reads what the screen shows until `text` comes; all of it. */
static const char *await_screen(int master, const char *text)
{
    seen_length = 0;
    seen[0] = '\0';
    return await_more(master, text);
}

/* tptop on a terminal of its own, whose end it outlives; its process. */
static pid_t screen_of(const char *terminal, pid_t job,
                       const struct winsize *window, int *master)
{
    char pid[16];
    pid_t child;

    snprintf(pid, sizeof(pid), "%d", (int)job);
    child = forkpty(master, NULL, NULL, window);
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        signal(SIGHUP, SIG_IGN);
        setenv("TERM", terminal, 1);
        execl(tpx_program("launcher/tptop"), "tptop", "-i", "0.1", pid, NULL);
        _exit(255);
    }
    return child;
}

static pid_t screen(pid_t job, const struct winsize *window, int *master)
{
    return screen_of("vt100", job, window, master);
}

static void leave_screen(pid_t child, int master, const char *key)
{
    struct termios settings;
    char rest[16];
    int status;

    ck_assert_int_eq(write(master, key, 1), 1);
    while (read(master, rest, sizeof(rest)) > 0)
        ;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(tcgetattr(master, &settings), 0);
    ck_assert_int_ne(settings.c_lflag & ICANON, 0);
    close(master);
}

START_TEST(test_screen)
{
    struct tpx_launch launch = { 0 };
    int master;
    pid_t child;

    talk(&launch, "2", "ring");
    await_wait(launch.pid, 0, "receive", 1);
    child = screen(launch.pid, &(struct winsize){ 24, 100, 0, 0 }, &master);
    await_screen(master, "receive from 1");
    /* As a whole, and so with the first look: it once said 0.0 there. */
    ck_assert_ptr_nonnull(strstr(seen, "every 0.1 s"));
    ck_assert_int_eq(write(master, "p", 1), 1);
    await_screen(master, "BACKEND");
    leave_screen(child, master, "q");
    /* On a narrow one the row of the last rank does not go on below. */
    child = screen(launch.pid, &(struct winsize){ 12, 50, 0, 0 }, &master);
    ck_assert_ptr_null(strstr(await_screen(master, "receive from 0"),
                              "\33[5;9H"));
    ck_assert_ptr_null(strstr(await_screen(master, "\33[3;"), "\33[5;9H"));
    /* ^\, which once left the terminal without an echo */
    leave_screen(child, master, "\034");
    end_job(&launch);
}
END_TEST

/* The lowest line, from 0 on, in which a vt100 shows anything. */
static int lowest_line(const char *at)
{
    int line = 0, lowest = 0, row;
    char end;

    for (; *at != '\0'; at++) {
        line += *at == '\n';
        if (at[0] == '\33' && at[1] == '[') {
            if (sscanf(at, "\33[%d;%*d%c", &row, &end) == 2 && end == 'H')
                line = row - 1;
            else if (at[2] == 'H')
                line = 0;
            at += 2 + strspn(at + 2, "?;0123456789");
        } else if (*at > ' ' && line > lowest) {
            lowest = line;
        }
    }
    return lowest;
}

/* Where a row takes several lines of the terminal, none is left below. */
START_TEST(test_screen_narrow)
{
    struct tpx_launch launch = { 0 };
    int master;
    pid_t child;

    talk(&launch, "2", "ring");
    await_wait(launch.pid, 0, "receive", 1);
    await_wait(launch.pid, 1, "receive", 0);
    child = screen(launch.pid, &(struct winsize){ 12, 22, 0, 0 }, &master);
    /* A key that comes while it draws would end that. */
    await_screen(master, "recei");
    while (tpx_count(seen, "recei") < 2)
        await_more(master, "recei");
    ck_assert_int_eq(write(master, "p", 1), 1);
    /* Title, heading, two ranks; what was left stood three lines below. */
    ck_assert_int_le(lowest_line(await_more(master, "PEER")), 3);
    leave_screen(child, master, "q");
    end_job(&launch);
}
END_TEST

/* Not even the title fits: tptop once crashed. */
START_TEST(test_screen_tiny)
{
    static const struct winsize windows[] = {
        { 1, 1, 0, 0 }, { 1, 30, 0, 0 }, { 3, 20, 0, 0 },
    };
    struct tpx_launch launch = { 0 };

    talk(&launch, "2", "ring");
    for (size_t i = 0; i < TPB_COUNT(windows); i++) {
        int master;
        pid_t child = screen(launch.pid, &windows[i], &master);

        /* That comes, too, where nothing to read fits. */
        await_screen(master, "\33[");
        ck_assert_int_eq(write(master, "p", 1), 1);
        leave_screen(child, master, "q");
    }
    end_job(&launch);
}
END_TEST

/* One that only writes line after line gets no heap of characters. */
START_TEST(test_screen_dumb)
{
    struct tpx_launch launch = { 0 };
    int master, status;
    pid_t child;

    talk(&launch, "2", "ring");
    child = screen_of("dumb", launch.pid, &(struct winsize){ 24, 80, 0, 0 },
                      &master);
    await_screen(master, "TERM=dumb: this terminal cannot show a table");
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(WEXITSTATUS(status), 1);
    close(master);
    end_job(&launch);
}
END_TEST

/* The terminal goes, and no SIGHUP comes or it is ignored: tptop once went on
 * for ever, as busy as can be. */
START_TEST(test_screen_gone)
{
    struct tpx_launch launch = { 0 };
    int master, status = -1;
    pid_t child, ended = 0;

    talk(&launch, "2", "ring");
    child = screen(launch.pid, &(struct winsize){ 24, 100, 0, 0 }, &master);
    await_screen(master, "RANK");
    close(master);
    for (int i = 0; i < 3000 && ended == 0; i++) {
        tpx_doze(0.02);
        ended = waitpid(child, &status, WNOHANG);
    }
    if (ended == 0)
        kill(child, SIGKILL);
    ck_assert_int_eq(ended, child);
    ck_assert_int_eq(status, 0);
    end_job(&launch);
}
END_TEST

/* Of many jobs some are named, each with its whole number. */
START_TEST(test_top_many)
{
    enum { JOBS = 60 };
    pid_t jobs[JOBS];
    int record = memfd_create(TPB_RECORD_NAME, MFD_CLOEXEC);

    ck_assert_int_ge(record, 0);
    for (int i = 0; i < JOBS; i++) {
        jobs[i] = fork();
        if (jobs[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            prctl(PR_SET_NAME, "tprun");
            pause();
            _exit(0);
        }
        ck_assert_int_gt(jobs[i], 0);
    }
    top_says("--json",
             "choose one: tptop PID, where PID is one of [0-9, ]*[0-9], ...$");
    for (int i = 0; i < JOBS; i++) {
        kill(jobs[i], SIGKILL);
        waitpid(jobs[i], NULL, 0);
    }
    close(record);
}
END_TEST

START_TEST(test_top_refusals)
{
    char arguments[32];

    ck_assert_int_eq(run_top("--help"), 0);
    ck_assert_int_eq(run_top("--version"), 0);
    ck_assert_int_eq(run_top("--what"), 2);
    ck_assert_int_eq(run_top("--interval 0 1"), 2);
    ck_assert_int_eq(run_top("--json 1 2"), 2);
    top_says("--json -xh", " -x: there is no such option");
    top_says("--count 0", "--count 0: expected a whole number from 1");
    top_says("--count 1.5", "--count 1.5: expected a whole number");
    top_says("--count 99999999999999999999", "expected a whole number");
    top_says("--interval nan", "--interval nan: expected seconds from 0.01");
    top_says("--interval 1e7", "to 1000000");
    top_says("--json 1x", "PID 1x: expected a whole number");
    /* As good a number as another, if a big one. */
    top_says("--json 2000000000",
             "process 2000000000 is not a tprun with a job");
    top_says("--json=yes", " --json=yes: it takes no argument");
    if (access("/dev/full", F_OK) == 0) {
        top_says("--help >/dev/full", "cannot write to standard output: No ");
        top_says("--version >/dev/full", "cannot write to standard output");
    }
    /* A process without a job: this one. */
    snprintf(arguments, sizeof(arguments), "--json %d", (int)getpid());
    ck_assert_int_eq(run_top(arguments), 1);
}
END_TEST

/* A job is over when its tprun has ended, also if nobody has waited for it. */
START_TEST(test_top_unreaped)
{
    struct tpx_launch launch = { 0 };
    char command[2048];
    siginfo_t info;

    tpx_launch(&launch, -1, (const char *const[]){ "-n", "1", "sh", "-c",
               "echo ready; exec sleep 600", NULL });
    tpx_await_output(&launch, "ready\n", 1);
    snprintf(command, sizeof(command), "%s --json --interval 0.05 --count 9999 "
             "%d | head -n 1 | grep -q '\"ranks\"'; "
             "{ timeout 60 %s --json --interval 0.05 %d; echo $?; } | "
             "{ read line && kill %d; tail -n 1 | grep -q '^0$'; }",
             tpx_program("launcher/tptop"), (int)launch.pid,
             tpx_program("launcher/tptop"), (int)launch.pid, (int)launch.pid);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(waitid(P_PID, (id_t)launch.pid, &info,
                            WEXITED | WNOWAIT), 0);
    tpx_finish(&launch, 90);
    ck_assert_int_eq(launch.status, 143);
    tpx_release(&launch);
}
END_TEST

/* As a rank of another job, tprun has that one's record from the start: tptop
 * once showed it in place of the inner job's. */
START_TEST(test_top_nested)
{
    struct tpx_launch launch = { 0 };
    char text[64] = "";
    json_t *object;
    int inner = 0;

    setenv("TPX_TPRUN", tpx_program("launcher/tprun"), 1);
    tpx_launch(&launch, -1, (const char *const[]){ "-n", "1", "sh", "-c",
               "echo inner $$; exec \"$TPX_TPRUN\" -n 3 sh -c "
               "'echo ready; exec sleep 600'", NULL });
    tpx_await_output(&launch, "ready\n", 3);
    ck_assert_int_gt(pread(launch.out_fd, text, sizeof(text) - 1, 0), 0);
    ck_assert_int_eq(sscanf(text, "inner %d", &inner), 1);
    object = top(inner);
    ck_assert_ptr_nonnull(object);
    ck_assert_uint_eq(json_array_size(json_object_get(object, "ranks")), 3);
    json_decref(object);
    object = top(launch.pid);
    ck_assert_ptr_nonnull(object);
    ck_assert_uint_eq(json_array_size(json_object_get(object, "ranks")), 1);
    json_decref(object);
    end_job(&launch);
}
END_TEST

/* The end of a job does not wait for the next sample, which may be far away. */
START_TEST(test_top_long)
{
    struct tpx_launch launch = { 0 };
    int null = open("/dev/null", O_RDWR | O_CLOEXEC), status = -1;
    pid_t child, ended = 0;
    char pid[16];

    tpx_launch(&launch, -1, (const char *const[]){ "-n", "1", "sh", "-c",
               "echo ready; exec sleep 600", NULL });
    tpx_await_output(&launch, "ready\n", 1);
    snprintf(pid, sizeof(pid), "%d", (int)launch.pid);
    child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        dup2(null, STDOUT_FILENO);
        execl(tpx_program("launcher/tptop"), "tptop", "--json", "--interval",
              "1000000", pid, NULL);
        _exit(255);
    }
    tpx_await_asleep(child);
    kill(launch.pid, SIGTERM);
    tpx_finish(&launch, 90);
    for (int i = 0; i < 3000 && ended == 0; i++) {
        tpx_doze(0.02);
        ended = waitpid(child, &status, WNOHANG);
    }
    if (ended == 0)
        kill(child, SIGKILL);
    ck_assert_int_eq(ended, child);
    ck_assert_int_eq(status, 0);
    close(null);
    tpx_release(&launch);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("record");
    TCase *tests = tcase_create("record");

    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, test_circle);
    tcase_add_test(tests, test_alone);
    tcase_add_test(tests, test_threads);
    tcase_add_test(tests, test_both);
    tcase_add_test(tests, test_nested);
    tcase_add_test(tests, test_stopped);
    tcase_add_test(tests, test_timeout);
    tcase_add_test(tests, test_next);
    tcase_add_test(tests, test_death);
    tcase_add_test(tests, test_keep_going);
    tcase_add_test(tests, test_top);
    tcase_add_test(tests, test_top_ended);
    tcase_add_test(tests, test_verbose);
    tcase_add_test(tests, test_guests);
    tcase_add_test(tests, test_crowd);
    tcase_add_test(tests, test_screen);
    tcase_add_test(tests, test_screen_narrow);
    tcase_add_test(tests, test_screen_tiny);
    tcase_add_test(tests, test_screen_dumb);
    tcase_add_test(tests, test_screen_gone);
    tcase_add_test(tests, test_top_many);
    tcase_add_test(tests, test_top_refusals);
    tcase_add_test(tests, test_top_unreaped);
    tcase_add_test(tests, test_top_long);
    tcase_add_test(tests, test_top_nested);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
