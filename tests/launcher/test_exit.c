/* SPDX-License-Identifier: BSD-3-Clause */
/* How a job ends: status, and the one line that says why. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/launcher/run.h"

/* The helper dies so, then, there; what tprun makes of it. */
static const struct {
    const char *how, *phase;
    int rank, status;
    const char *words;
} ends[] = {
    { "exit7", "before", 2, 7, "exited with status 7" },
    { "exit7", "init", 1, 7, "exited with status 7" },
    { "exit7", "commit", 0, 7, "exited with status 7" },
    { "exit7", "finalize", 3, 7, "exited with status 7" },
    { "exit255", "before", 0, 255, "exited with status 255" },
    { "exit0", "init", 1, 1, "without PMIx_Finalize" },
    { "exit0", "commit", 3, 1, "without PMIx_Finalize" },
    { "signal9", "before", 3, 137, "was killed by signal 9 (SIGKILL)" },
    { "signal9", "init", 0, 137, "was killed by signal 9 (SIGKILL)" },
    { "signal9", "commit", 1, 137, "was killed by signal 9 (SIGKILL)" },
    { "signal9", "finalize", 2, 137, "was killed by signal 9 (SIGKILL)" },
    { "signal11", "commit", 2, 139, "was killed by signal 11 (SIGSEGV)" },
    { "signal6", "before", 1, 134, "was killed by signal 6 (SIGABRT)" },
    { "signal15", "init", 2, 143, "was killed by signal 15 (SIGTERM)" },
    { "signal13", "before", 0, 141, "was killed by signal 13 (SIGPIPE)" },
};

START_TEST(test_ends)
{
    struct tpx_launch launch = { 0 };
    char rank[16], line[64];

    snprintf(rank, sizeof(rank), "%d", ends[_i].rank);
    tpx_run_tprun(&launch, "-n", "4", "RANK", "die", ends[_i].how,
                  ends[_i].phase, rank);
    ck_assert_msg(launch.status == ends[_i].status, "status %d, said: %s",
                  launch.status, launch.err);
    snprintf(line, sizeof(line), "tprun: rank %d (pid ", ends[_i].rank);
    ck_assert_msg(strncmp(launch.err, line, strlen(line)) == 0, "%s",
                  launch.err);
    ck_assert_ptr_nonnull(strstr(launch.err, ends[_i].words));
    ck_assert_int_eq(tpx_count(launch.err, "\n"), 1);
    tpx_release(&launch);
}
END_TEST

START_TEST(test_success)
{
    static const char *const words[] = { "init", "modex" };

    for (size_t i = 0; i < TPB_COUNT(words); i++) {
        struct tpx_launch launch = { 0 };

        tpx_run_tprun(&launch, "-n", "8", "RANK", words[i]);
        ck_assert_msg(launch.status == 0, "%s", launch.err);
        ck_assert_str_eq(launch.err, "");
        tpx_release(&launch);
    }
}
END_TEST

START_TEST(test_plain_programs)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "64", "true");
    ck_assert_int_eq(launch.status, 0);
    tpx_release(&launch);
    tpx_run_tprun(&launch, "false");
    ck_assert_int_eq(launch.status, 1);
    ck_assert_ptr_nonnull(strstr(launch.err, "rank 0 (pid "));
    tpx_release(&launch);
}
END_TEST

START_TEST(test_abort)
{
    static const struct { const char *code; int status; } codes[] = {
        { "42", 42 }, { "0", 0 }, { "1", 1 }, { "256", 1 }, { "-1", 255 },
    };
    struct tpx_launch launch = { 0 };
    const char *code = codes[_i].code;

    tpx_run_tprun(&launch, "-n", "4", "RANK", "abort", code,
                  "the disk of node 7 is full");
    ck_assert_int_eq(launch.status, codes[_i].status);
    ck_assert_int_eq(tpx_count(launch.err, "\n"), 1);
    ck_assert_int_eq(tpx_count(launch.err, ": the disk of node 7 is full\n"),
                     1);
    ck_assert_int_eq(tpx_count(launch.err, "tprun: rank 3 (pid "), 1);
    tpx_release(&launch);
}
END_TEST

/* More than a datagram holds: tprun never heard of it, and the rank ended ten
 * seconds later, without a word. */
START_TEST(test_abort_in_many_words)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "2", tpx_program("tests/launcher/talk"),
                  "shout");
    ck_assert_int_eq(launch.status, 42);
    ck_assert_ptr_nonnull(strstr(launch.err, "ended the job with status 42: "
                                 "xxxxxxxx"));
    tpx_release(&launch);
}
END_TEST

/* A reason is not always one line, and often ends with a newline. */
START_TEST(test_abort_lines)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "2", "RANK", "abort", "3",
                  "no such model\nnor another\r\n");
    ck_assert_int_eq(launch.status, 3);
    ck_assert_int_eq(tpx_count(launch.err, "\n"), 1);
    ck_assert_msg(tpx_count(launch.err, ": no such model nor another\n") == 1,
                  "%s", launch.err);
    tpx_release(&launch);
}
END_TEST

START_TEST(test_abort_keep_going)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "4", "--keep-going", "RANK", "abort", "3",
                  "enough");
    ck_assert_int_eq(launch.status, 3);
    tpx_release(&launch);
}
END_TEST

/* Others hear of a rank's death, and end the job by tp_abort(), while the
 * kernel still takes its memory back and has not told tprun: they were named,
 * with their status. */
START_TEST(test_abort_of_who_hears_first)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "4", tpx_program("tests/launcher/talk"),
                  "answered");
    ck_assert_msg(launch.status == 137, "status %d: %s", launch.status,
                  launch.err);
    ck_assert_msg(strstr(launch.err, "tprun: rank 3 (pid ") != NULL
                  && strstr(launch.err, "killed by signal 9") != NULL
                  && strstr(launch.err, "ended the job") == NULL, "%s",
                  launch.err);
    tpx_release(&launch);
}
END_TEST

/* The first failure decides, the others are named too.  The second rank that
 * fails waits for a line that it gets only once the first has been named. */
START_TEST(test_keep_going)
{
    struct tpx_launch launch = { 0 };
    int input[2];

    ck_assert_int_eq(pipe2(input, O_CLOEXEC), 0);
    launch.out_fd = memfd_create("both", MFD_CLOEXEC);
    launch.err_fd = dup(launch.out_fd);
    tpx_launch(&launch, input[0], (const char *const[]){ "-n", "3",
               "--keep-going", "--stdin", "2", "sh", "-c",
               "test $PMIX_RANK = 2 && read line; echo done; exit $PMIX_RANK",
               NULL });
    tpx_await_output(&launch, "exited with status 1", 1);
    ck_assert_int_eq(write(input[1], "\n", 1), 1);
    close(input[0]);
    close(input[1]);
    tpx_finish(&launch, 90);
    ck_assert_int_eq(launch.status, 1);
    ck_assert_int_eq(tpx_count(launch.out, "done\n"), 3);
    ck_assert_int_eq(tpx_count(launch.out, "exited with status"), 2);
    tpx_release(&launch);
}
END_TEST

/* Without it the others do not get to the end. */
START_TEST(test_first_failure_ends)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "3", "sh", "-c",
                  "test $PMIX_RANK = 1 && exit 5; sleep 600; echo done");
    ck_assert_int_eq(launch.status, 5);
    ck_assert_str_eq(launch.out, "");
    tpx_release(&launch);
}
END_TEST

/*
 * Among ranks that end in one instant, a signal is the cause.  Rank 1 stops
 * tprun, lets rank 0 die of a signal, exits itself, and leaves a child that
 * lets tprun go on when both are dead.
 */
START_TEST(test_signal_before_status)
{
    static const char script[] =
        "dead() { until grep -q 'State:.Z' /proc/$1/status; do sleep 0.01; "
        "done; }\n"
        "wait_for() { until test -s $1; do sleep 0.01; done; }\n"
        "if test $PMIX_RANK = 0; then\n"
        "  echo $$ >pid.new; mv pid.new pid; wait_for go; kill -SEGV $$\n"
        "else\n"
        "  wait_for pid; kill -STOP $PPID; echo >go; dead $(cat pid)\n"
        "  (dead $$; kill -CONT $PPID) & exit 3\n"
        "fi\n";
    char directory[] = "/tmp/tpx-exit-XXXXXX";
    struct tpx_launch launch = { 0 };

    ck_assert_ptr_nonnull(mkdtemp(directory));
    tpx_run_tprun(&launch, "-n", "2", "--wdir", directory, "sh", "-c",
                  script);
    ck_assert_int_eq(chdir(directory), 0);
    unlink("pid");
    unlink("go");
    rmdir(directory);
    ck_assert_msg(launch.status == 139, "status %d: %s", launch.status,
                  launch.err);
    tpx_release(&launch);
}
END_TEST

START_TEST(test_stubborn)
{
    struct tpx_launch launch = { 0 };

    /* SIGTERM is ignored; two seconds later SIGKILL is not. */
    tpx_run_tprun(&launch, "-n", "2", "sh", "-c",
                  "trap '' TERM; test $PMIX_RANK = 1 && exit 9; "
                  "while :; do sleep 600; done");
    ck_assert_int_eq(launch.status, 9);
    tpx_release(&launch);
}
END_TEST

START_TEST(test_timeout)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "2", "--timeout", "200ms", "sleep", "600");
    ck_assert_int_eq(launch.status, 124);
    ck_assert_ptr_nonnull(strstr(launch.err, "longer than --timeout 200ms"));
    ck_assert_int_eq(tpx_count(launch.err, "\n"), 1);
    tpx_release(&launch);
    tpx_run_tprun(&launch, "-n", "2", "--timeout", "1h", "true");
    ck_assert_int_eq(launch.status, 0);
    tpx_release(&launch);
}
END_TEST

/* Has tprun ended? */
static bool has_ended(pid_t pid)
{
    siginfo_t info = { .si_pid = 0 };

    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0
           && info.si_pid == pid;
}

/* The rank ends, and then its time is over, while tprun is stopped; false: that
 * came too late. */
static bool stopped_in_time(int seconds)
{
    struct tpx_launch launch = { 0 };
    uint64_t over = tpb_now() + (uint64_t)seconds * 1000000000u;
    char limit[16], words[64] = "";
    siginfo_t info;
    int input[2], rank = 0;
    bool stopped;

    snprintf(limit, sizeof(limit), "%d", seconds);
    ck_assert_int_eq(pipe2(input, O_CLOEXEC), 0);
    tpx_launch(&launch, input[0], (const char *const[]){ "--timeout", limit,
               "sh", "-c", "echo ready $$; read line", NULL });
    while (lseek(launch.out_fd, 0, SEEK_END) == 0 && !has_ended(launch.pid))
        tpx_doze(0.01);
    kill(launch.pid, SIGSTOP);
    ck_assert_int_eq(waitid(P_PID, (id_t)launch.pid, &info,
                            WEXITED | WSTOPPED | WNOWAIT), 0);
    stopped = info.si_code == CLD_STOPPED && tpb_now() < over;
    ck_assert_int_eq(write(input[1], "\n", 1), 1);
    if (stopped) {
        ck_assert_int_gt(pread(launch.out_fd, words, sizeof(words) - 1, 0), 0);
        ck_assert_int_eq(sscanf(words, "ready %d", &rank), 1);
        tpx_await_ended(rank);
        while (tpb_now() < over)
            tpx_doze(1);
        tpx_doze(1);
    }
    kill(launch.pid, SIGCONT);
    close(input[0]);
    close(input[1]);
    tpx_finish(&launch, 90);
    ck_assert_msg(!stopped || launch.status == 0, "status %d: %s",
                  launch.status, launch.err);
    tpx_release(&launch);
    return stopped;
}

/* On a busy machine the time may be over before that: then it gets more. */
START_TEST(test_timeout_too_late)
{
    int seconds = 4;

    while (!stopped_in_time(seconds)) {
        seconds *= 3;
        ck_assert_int_lt(seconds, 40);
    }
}
END_TEST

/* Files that cannot be run, in the current directory. */
static void make_file(const char *name, const char *contents, mode_t mode)
{
    int fd = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0644);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, contents, strlen(contents)),
                     (ssize_t)strlen(contents));
    close(fd);
    ck_assert_int_eq(chmod(name, mode), 0);
}

static const struct {
    const char *args[8];
    int status;
    const char *words;
} refusals[] = {
    { { "-n", "0", "true" }, 2, "-n 0: expected a number of ranks" },
    { { "-n", "-3", "true" }, 2, "-n -3: expected" },
    { { "-n", "4x", "true" }, 2, "-n 4x: expected" },
    { { "-n", "99999999999999999999", "true" }, 2, "expected" },
    { { "-n" }, 2, "-n needs an argument: N" },
    { { "--np" }, 2, "--np needs an argument: N" },
    { { "-np" }, 2, "-np needs an argument: N" },
    { { NULL }, 2, "no program;" },
    { { "-n", "2" }, 2, "no program;" },
    { { "--keep-gong", "true" }, 2, "did you mean --keep-going?" },
    { { "--bindto", "core", "true" }, 2, "did you mean --bind-to?" },
    { { "--oversubscribe", "true" }, 2, "leave it out: more ranks" },
    { { "-r", "true" }, 2, "unknown option -r" },
    { { "--tag=2", "true" }, 2, "--tag takes no argument" },
    { { "--timeout", "soon", "true" }, 2, "--timeout soon: expected" },
    { { "--timeout", "0", "true" }, 2, "--timeout 0: expected" },
    { { "--timeout", "nan", "true" }, 2, "expected" },
    { { "--bind-to", "node", "true" }, 2,
      "--bind-to node: expected core, l3, numa, package or none" },
    { { "--map-by", "", "true" }, 2, "expected core, l3, numa or package" },
    { { "--stdin", "some", "true" }, 2, "expected a rank, all or none" },
    { { "--stdin", "2", "-n2", "true" }, 2, "--stdin 2: the last rank is 1" },
    { { "--output", "x", "--tag", "true" }, 2, "do not go together" },
    { { "--pty", "--stdin", "all", "true" }, 2, "do not go together" },
    { { "--wrap", "a;b", "true" }, 2, "it is not run by a shell" },
    { { "--wrap", "a 'b", "true" }, 2, "a quote is not closed" },
    { { "--wrap", "3:", "true" }, 2, "the command is missing" },
    { { "--wrap", "0:tpx-no", "true" }, 127, "tpx-no: no such program" },
    { { "--gpus-per-rank", "0", "true" }, 2, "expected a number of GPUs" },
    { { "--gpus-per-rank", "64", "-n9", "true" }, 2, "--gpus-per-rank: the" },
    { { "--completion", "fish" }, 2, "expected bash or zsh" },
    { { "true", ":" }, 2, "no program after \":\";" },
    { { ":", "true" }, 2, "no program;" },
    { { "true", ":", "-n", "0", "true" }, 2, "-n 0: expected" },
    { { "true", ":", "tpx-no-such-program" }, 127, "no such program" },
    { { "--host", "localhost", "true", ":", "--host", "b", "true" }, 2,
      "--host b: it is for the whole job" },
    { { "--hostfile", "a", "--hostfile", "b", "true" }, 2,
      "--hostfile b: it is for the whole job" },
    { { "-x", "TPX_NOT_SET", "true" }, 2, "not in the environment" },
    { { "-x", "=3", "true" }, 2, "expected NAME or NAME=VALUE" },
    { { "-x", "TP_SPIN=soon", "true" }, 2, "TP_SPIN=soon: expected" },
    { { "--wdir", "/nonexistent", "true" }, 2, "No such" },
    { { "-n", "2", "tpx-no-such-program" }, 127, "no such program" },
    { { "-n", "2", "./nothing" }, 127, "./nothing: no such program" },
    { { "plain" }, 127, "write ./plain" },
    { { "" }, 127, "name is empty" },
    { { "-n", "2", "./plain" }, 126, "./plain: no permission" },
    { { "-n", "2", "." }, 126, ". is a directory" },
    { { "-n", "2", "./text" }, 126, "./text: not a program for this machine" },
    { { "-n", "2", "./lost" }, 127, "./lost: the interpreter or loader that "
      "it asks for does not exist: /nonexistent/shell\n" },
    { { "-n", "2", "./lost2" }, 127, "./lost2: its interpreter ./lost needs "
      "one, or a loader, that does not exist\n" },
    { { "-n", "2", "./dos" }, 127, "not exist: /bin/sh, as its first line ends "
      "with a carriage return" },
    { { "-n", "2", "./closed" }, 126, "./closed: no permission to run its "
      "interpreter, ./plain\n" },
};

START_TEST(test_refusals)
{
    char directory[] = "/tmp/tpx-exit-XXXXXX";
    struct tpx_launch launch = { 0 };

    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_assert_int_eq(chdir(directory), 0);
    make_file("plain", "#!/bin/sh\n", 0644);
    make_file("text", "just some words\n", 0755);
    make_file("lost", "#!/nonexistent/shell\n", 0755);
    make_file("lost2", "#!./lost\n", 0755);
    make_file("dos", "#! /bin/sh\r\necho\r\n", 0755);
    make_file("closed", "#!./plain\n", 0755);
    tpx_launch(&launch, -1, refusals[_i].args);
    tpx_finish(&launch, 90);
    unlink("plain");
    unlink("text");
    unlink("lost");
    unlink("lost2");
    unlink("dos");
    unlink("closed");
    rmdir(directory);
    ck_assert_msg(launch.status == refusals[_i].status, "status %d: %s",
                  launch.status, launch.err);
    ck_assert_msg(strstr(launch.err, refusals[_i].words) != NULL, "%s",
                  launch.err);
    ck_assert_int_eq(strncmp(launch.err, "tprun: ", 7), 0);
    ck_assert_int_eq(tpx_count(launch.err, "\n"), 1);
    ck_assert_str_eq(launch.out, "");
    tpx_release(&launch);
}
END_TEST

/* A PATH with a folder of root's, as after su(1): what is not found is not told
 * to lack permissions, and what lacks them is told its folder. */
START_TEST(test_closed_folder)
{
    static const char script[] =
        "mkdir closed open && chmod 700 closed && echo >open/tpx-closed &&"
        " PATH=$PWD/closed:$PWD/open:$PATH &&"
        " for program in tpx-none tpx-closed closed/none; do setpriv"
        " --reuid=54323 --regid=54323 --clear-groups \"$0\" -n 1 $program;"
        " echo \"status $?\" >&2; done";
    char directory[] = "/tmp/tpx-exit-XXXXXX", command[64];
    struct tpx_launch launch = { 0 };

    if (geteuid() != 0 || system("command -v setpriv >/dev/null") != 0) {
        tpx_skip("root", "no other user to be");
        return;
    }
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_assert_int_eq(chmod(directory, 0755), 0);
    tpx_run_tprun(&launch, "-n", "1", "--wdir", directory, "sh", "-c", script,
                  tpx_program("launcher/tprun"));
    snprintf(command, sizeof(command), "rm -r '%s'", directory);
    ck_assert_int_eq(system(command), 0);
    /* Where that user may not even look at the build tree. */
    if (strstr(launch.err, "setpriv: ") != NULL)
        tpx_skip("root", "the build tree is closed to others");
    else
        ck_assert_msg(strstr(launch.err, "tprun: tpx-none: no such program in"
                             " PATH\nstatus 127\n") != NULL
                      && strstr(launch.err, "/open/tpx-closed: no permission to"
                                " run it; chmod") != NULL
                      && strstr(launch.err, "tprun: closed/none: no permission"
                                " to enter the folder that it is in, or one"
                                " above\nstatus 126\n") != NULL, "%s",
                      launch.err);
    tpx_release(&launch);
}
END_TEST

START_TEST(test_too_few_descriptors)
{
    struct tpx_launch launch = { 0 };
    struct rlimit limit = { 100, 100 };

    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    tpx_run_tprun(&launch, "-n", "100", "true");
    ck_assert_int_eq(launch.status, 1);
    ck_assert_ptr_nonnull(strstr(launch.err, "100 ranks need 364 file "
                                 "descriptors, the hard limit is 100"));
    tpx_release(&launch);
}
END_TEST

/* A parent that leaves more descriptors open than libpmix can do with: one
 * line, not abort(). */
START_TEST(test_many_descriptors)
{
    char command[1024], text[512] = "";
    struct rlimit limit;
    FILE *output;
    int status;

    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur < FD_SETSIZE + 100) {
        tpx_skip("files", "no process may have so many here");
        return;
    }
    while (dup(STDERR_FILENO) < FD_SETSIZE)
        ;
    snprintf(command, sizeof(command), "exec %s -n 2 true 2>&1",
             tpx_program("launcher/tprun"));
    output = popen(command, "r");
    ck_assert_ptr_nonnull(output);
    ck_assert_ptr_nonnull(fgets(text, sizeof(text), output));
    ck_assert_ptr_nonnull(strstr(text, "libpmix needs some below"));
    ck_assert_int_eq(fgetc(output), EOF);
    status = pclose(output);
    ck_assert_int_eq(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 1);
}
END_TEST

/* SIGCHLD ignored by the parent, and children from before the exec. */
START_TEST(test_strange_parent)
{
    struct tpx_launch launch = { 0 };
    pid_t bystander;

    signal(SIGCHLD, SIG_IGN);
    tpx_launch(&launch, -1, (const char *const[]){ "-n", "2", "sh", "-c",
               "exit 4", NULL });
    signal(SIGCHLD, SIG_DFL);
    tpx_finish(&launch, 90);
    ck_assert_int_eq(launch.status, 4);
    tpx_release(&launch);
    /* A shell that execs tprun leaves it its background jobs. */
    bystander = fork();
    if (bystander == 0) {
        execl("/bin/sh", "sh", "-c",
              "sleep 3 & exec \"$0\" -n 2 sh -c 'exit 6'",
              tpx_program("launcher/tprun"), (char *)NULL);
        _exit(255);
    }
    ck_assert_int_eq(waitpid(bystander, &launch.raw, 0), bystander);
    ck_assert_int_eq(WEXITSTATUS(launch.raw), 6);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exit");
    TCase *tests = tcase_create("exit");

    tcase_set_timeout(tests, 180);
    tcase_add_loop_test(tests, test_ends, 0, TPB_COUNT(ends));
    tcase_add_test(tests, test_success);
    tcase_add_test(tests, test_plain_programs);
    tcase_add_loop_test(tests, test_abort, 0, 5);
    tcase_add_test(tests, test_abort_in_many_words);
    tcase_add_test(tests, test_abort_lines);
    tcase_add_test(tests, test_abort_keep_going);
    tcase_add_loop_test(tests, test_abort_of_who_hears_first, 0, 5);
    tcase_add_test(tests, test_keep_going);
    tcase_add_test(tests, test_first_failure_ends);
    tcase_add_test(tests, test_signal_before_status);
    tcase_add_test(tests, test_stubborn);
    tcase_add_test(tests, test_timeout);
    tcase_add_test(tests, test_timeout_too_late);
    tcase_add_loop_test(tests, test_refusals, 0, TPB_COUNT(refusals));
    tcase_add_test(tests, test_closed_folder);
    tcase_add_test(tests, test_too_few_descriptors);
    tcase_add_test(tests, test_many_descriptors);
    tcase_add_test(tests, test_strange_parent);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
