/* SPDX-License-Identifier: BSD-3-Clause */
/* Options of tprun that change what a job is given, or what is said of it. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "tests/launcher/run.h"

static void check_lines(const struct tpx_launch *launch, int status,
                        const char *const *lines)
{
    ck_assert_msg(launch->status == status, "status %d: %s", launch->status,
                  launch->err);
    for (; *lines != NULL; lines++)
        ck_assert_msg(tpx_count(launch->out, *lines) == 1,
                      "not once: %sin: %s", *lines, launch->out);
}

/* Several programs, each with its own ranks, folder and environment. */
START_TEST(test_programs)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "2", "-x", "TPX_A=one", "sh", "-c",
                  "echo $PMIX_RANK $TPX_A $TPX_B $0", "x y", ":", "--wdir",
                  "/", "-x", "TPX_B=two", "sh", "-c",
                  "echo $PMIX_RANK $TPX_A $TPX_B; pwd", ":", "-n", "2",
                  "--", "printf", "%s%s\\n", "third", ":");
    check_lines(&launch, 0, (const char *const[]){ "0 one x y\n",
                "1 one x y\n", "2 two\n", "\n/\n", NULL });
    ck_assert_int_eq(tpx_count(launch.out, "third:\n"), 2);
    tpx_release(&launch);
}
END_TEST

/* The first program's job, seen by its own ranks: one job of all. */
START_TEST(test_programs_one_job)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "RANK", "modex", ":", "-n", "2", "RANK", "modex",
                  ":", "RANK", "modex");
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    tpx_release(&launch);
}
END_TEST

/* Each program is looked for in its own PATH, if it is given one. */
START_TEST(test_programs_path)
{
    char directory[] = "/tmp/tpx-options-XXXXXX", path[64], option[64];
    struct tpx_launch launch = { 0 };
    int fd;

    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/tpx-one", directory);
    snprintf(option, sizeof(option), "PATH=%s", directory);
    fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0755);
    ck_assert_int_eq(tpb_write_all(fd, "#!/bin/sh\necho one\n", 19), 0);
    close(fd);
    tpx_run_tprun(&launch, "-x", "PATH=/nonexistent", "-x", option,
                  "tpx-one", ":", "echo", "two", ":", "-x", option, "--wrap",
                  "tpx-one", "/bin/echo");
    unlink(path);
    rmdir(directory);
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    ck_assert_int_eq(tpx_count(launch.out, "one\n"), 2);
    ck_assert_int_eq(tpx_count(launch.out, "two\n"), 1);
    tpx_release(&launch);
}
END_TEST

/* From a folder that may be left, but not be read. */
START_TEST(test_wdir_unreadable)
{
    char directory[] = "/tmp/tpx-options-XXXXXX";
    struct tpx_launch launch = { 0 };

    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_assert_int_eq(chdir(directory), 0);
    ck_assert_int_eq(chmod(directory, 0111), 0);
    rmdir(directory);
    if (geteuid() == 0)
        ck_assert_int_eq(setresuid(65534, 65534, 65534), 0);
    if (access(tpx_program("launcher/tprun"), X_OK) < 0) {
        tpx_skip("open", "others than root cannot run the build");
        return;
    }
    tpx_run_tprun(&launch, "--wdir", "/", "pwd");
    check_lines(&launch, 0, (const char *const[]){ "/\n", NULL });
    tpx_release(&launch);
}
END_TEST

START_TEST(test_wrap)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "4", "--wrap", "1,3:env TPX_A='a  b' nice",
                  "--wrap", "2:env TPX_A=c", "sh", "-c",
                  "echo \"$PMIX_RANK<$TPX_A> $0\" $1", "d  e", "f");
    check_lines(&launch, 0, (const char *const[]){ "0<> d  e f\n",
                "1<a  b> d  e f\n", "2<c> d  e f\n", "3<a  b> d  e f\n",
                NULL });
    tpx_release(&launch);
}
END_TEST

START_TEST(test_output_files)
{
    char directory[] = "/tmp/tpx-options-XXXXXX", path[64], *text;
    struct tpx_launch launch = { 0 };

    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/new", directory);
    tpx_run_tprun(&launch, "--dry-run", "--output", path, "true");
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    ck_assert_int_lt(access(path, F_OK), 0);
    tpx_release(&launch);
    tpx_run_tprun(&launch, "-n", "3", "--output", path, "sh", "-c",
                  "echo out $PMIX_RANK; echo err $PMIX_RANK >&2");
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    ck_assert_str_eq(launch.out, "");
    ck_assert_str_eq(launch.err, "");
    for (int i = 0; i < 6; i++) {
        char wanted[32];

        snprintf(wanted, sizeof(wanted), "%s %d\n", i % 2 ? "err" : "out",
                 i / 2);
        snprintf(path, sizeof(path), "%s/new/%d.%s", directory, i / 2,
                 i % 2 ? "err" : "out");
        text = tpb_read_file(path, NULL);
        ck_assert_ptr_nonnull(text);
        ck_assert_str_eq(text, wanted);
        tpb_free(text);
        unlink(path);
    }
    tpx_release(&launch);
    snprintf(path, sizeof(path), "%s/new", directory);
    rmdir(path);
    rmdir(directory);
}
END_TEST

/* Folders above the one that is named are made as well. */
START_TEST(test_output_folders)
{
    static const char *const made[] = {
        "/a/b/c/0.out", "/a/b/c/0.err", "/a/b/c", "/a/b", "/a", "",
    };
    char directory[] = "/tmp/tpx-options-XXXXXX", path[64];
    struct tpx_launch launch = { 0 };

    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/a/b//c/", directory);
    for (int i = 0; i < 2; i++) {
        tpx_run_tprun(&launch, "--output", path, "echo", "out");
        ck_assert_msg(launch.status == 0 && launch.err[0] == '\0', "%s",
                      launch.err);
        tpx_release(&launch);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/a/b/c/0.out%s", directory,
                 i == 0 ? "" : "/d");
        tpx_run_tprun(&launch, "--output", path, "true");
        ck_assert_int_eq(launch.status, 2);
        ck_assert_ptr_nonnull(strstr(launch.err, "cannot create this folder: "
                                     "Not a directory"));
        tpx_release(&launch);
    }
    for (size_t i = 0; i < TPB_COUNT(made); i++) {
        snprintf(path, sizeof(path), "%s%s", directory, made[i]);
        ck_assert_msg(remove(path) == 0, "%s: %s", path, strerror(errno));
    }
}
END_TEST

/* A FIFO is written to if somebody reads it, and is not waited for: no signal
 * would end that. */
START_TEST(test_output_fifo)
{
    char directory[] = "/tmp/tpx-options-XXXXXX", path[64], text[8] = "";
    struct tpx_launch launch = { 0 };
    int fd;

    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/0.out", directory);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    tpx_run_tprun(&launch, "--output", directory, "echo", "out");
    ck_assert_int_eq(launch.status, 1);
    ck_assert_ptr_nonnull(strstr(launch.err, "a FIFO that nobody reads"));
    tpx_release(&launch);
    fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    tpx_run_tprun(&launch, "--output", directory, "echo", "out");
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    ck_assert_int_eq(read(fd, text, sizeof(text)), 4);
    ck_assert_mem_eq(text, "out\n", 4);
    close(fd);
    tpx_release(&launch);
    unlink(path);
    snprintf(path, sizeof(path), "%s/0.err", directory);
    unlink(path);
    rmdir(directory);
}
END_TEST

START_TEST(test_merge)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "--merge-stderr", "sh", "-c",
                  "echo 1; echo 2 >&2; echo 3; echo 4 >&2");
    ck_assert_str_eq(launch.out, "1\n2\n3\n4\n");
    ck_assert_str_eq(launch.err, "");
    tpx_release(&launch);
}
END_TEST

/* "12:46:30.123 [0] line" */
START_TEST(test_timestamp)
{
    struct tpx_launch launch = { 0 };
    int hour, minute, second, thousandth, used = 0;

    tpx_run_tprun(&launch, "--timestamp", "--tag", "printf", "one\\ntwo");
    ck_assert_int_eq(sscanf(launch.out, "%2d:%2d:%2d.%3d [0] one\n%n", &hour,
                            &minute, &second, &thousandth, &used), 4);
    ck_assert_int_gt(used, 0);
    ck_assert_msg(hour < 24 && minute < 60 && second < 61, "%s", launch.out);
    ck_assert_str_eq(launch.out + used + 13, "[0] two");
    tpx_release(&launch);
}
END_TEST

/* A file of 200000 bytes, to be read from its beginning. */
static int options_much(void)
{
    char path[] = "/tmp/tpx-stdin-XXXXXX";
    int fd = mkstemp(path);
    static char much[200000];

    ck_assert_int_ge(fd, 0);
    unlink(path);
    memset(much, 'x', sizeof(much));
    ck_assert_int_eq(tpb_write_all(fd, much, sizeof(much)), 0);
    lseek(fd, 0, SEEK_SET);
    return fd;
}

/* A pipe, and a file, which cannot be waited for. */
START_TEST(test_stdin_all)
{
    struct tpx_launch launch = { 0 };
    int fd = options_much(), ends[2], rest;

    tpx_launch(&launch, fd, (const char *const[]){ "-n", "5", "--stdin",
               "all", "sh", "-c", "test $PMIX_RANK = 3 || wc -c", NULL });
    tpx_finish(&launch, 90);
    ck_assert_int_eq(tpx_count(launch.out, "200000\n"), 4);
    tpx_release(&launch);
    close(fd);
    ck_assert_int_eq(pipe(ends), 0);
    rest = (int)write(ends[1], "a\nb\n", 4);
    ck_assert_int_eq(rest, 4);
    tpx_launch(&launch, ends[0], (const char *const[]){ "-n", "3", "--stdin",
               "all", "cat", NULL });
    close(ends[1]);
    tpx_finish(&launch, 90);
    close(ends[0]);
    ck_assert_int_eq(tpx_count(launch.out, "a\n"), 3);
    ck_assert_int_eq(tpx_count(launch.out, "b\n"), 3);
    tpx_release(&launch);
}
END_TEST

/* A SIGCONT is no reason to begin before all ranks are there. */
START_TEST(test_stdin_all_continued)
{
    struct tpx_launch launch = { 0 };
    int fd = options_much();

    tpx_launch(&launch, fd, (const char *const[]){ "-n", "96", "--stdin",
               "all", "sh", "-c", "[ $PMIX_RANK != 0 ] || kill -CONT $PPID; "
               "exec wc -c", NULL });
    tpx_finish(&launch, 90);
    close(fd);
    ck_assert_int_eq(tpx_count(launch.out, "200000\n"), 96);
    tpx_release(&launch);
}
END_TEST

/* What cannot be read is said to end there. */
START_TEST(test_stdin_unreadable)
{
    struct tpx_launch launch = { 0 };
    int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    tpx_launch(&launch, fd, (const char *const[]){ "-n", "2", "--stdin",
               "all", "cat", NULL });
    tpx_finish(&launch, 90);
    close(fd);
    ck_assert_int_eq(launch.status, 0);
    ck_assert_str_eq(launch.err, "tprun: cannot read standard input: Is a "
                     "directory; it ends here for the ranks\n");
    tpx_release(&launch);
}
END_TEST

/* The input ends, and then a reader, and tprun hears of both at once. */
START_TEST(test_stdin_all_ends)
{
    char directory[] = "/tmp/tpx-options-XXXXXX";
    struct tpx_launch launch = { 0 };
    int ends[2], gone;

    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_assert_int_eq(chdir(directory), 0);
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    tpx_launch(&launch, ends[0], (const char *const[]){ "-n", "2", "--stdin",
               "all", "sh", "-c", "echo ready; cd $0; "
               "until test -e go; do sleep 0.02; done; exec <&-; "
               ": >gone$PMIX_RANK; until test -e end; do sleep 0.02; done",
               directory, NULL });
    tpx_await_output(&launch, "ready\n", 2);
    kill(launch.pid, SIGSTOP);
    tpx_await_stopped(launch.pid);
    close(ends[0]);
    close(ends[1]);
    close(open("go", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    for (int i = 0; i < 6000 && (access("gone0", F_OK) < 0
                                 || access("gone1", F_OK) < 0); i++)
        tpx_doze(0.01);
    gone = access("gone0", F_OK) == 0 && access("gone1", F_OK) == 0;
    kill(launch.pid, SIGCONT);
    tpx_doze(0.1);
    close(open("end", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    tpx_finish(&launch, 90);
    unlink("go");
    unlink("gone0");
    unlink("gone1");
    unlink("end");
    rmdir(directory);
    ck_assert_int_eq(gone, 1);
    ck_assert_msg(launch.status == 0, "status %d: %s", launch.status,
                  launch.err);
    tpx_release(&launch);
}
END_TEST

START_TEST(test_stdin_one)
{
    struct tpx_launch launch = { 0 };
    int ends[2], rest;

    ck_assert_int_eq(pipe(ends), 0);
    rest = (int)write(ends[1], "word\n", 5);
    ck_assert_int_eq(rest, 5);
    close(ends[1]);
    tpx_launch(&launch, ends[0], (const char *const[]){ "-n", "3", "--stdin",
               _i == 0 ? "2" : "none", "--tag", "cat", NULL });
    tpx_finish(&launch, 90);
    close(ends[0]);
    ck_assert_str_eq(launch.out, _i == 0 ? "[2] word\n" : "");
    tpx_release(&launch);
}
END_TEST

/* Ranks see a terminal; what they write comes out as it is, and all of it. */
START_TEST(test_pty)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "3", "--pty", "--tag", "sh", "-c",
                  "test -t 1 && test -t 2 && echo terminal; seq 3000");
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    ck_assert_int_eq(tpx_count(launch.out, "] terminal\n"), 3);
    ck_assert_int_eq(tpx_count(launch.out, "\n"), 9003);
    ck_assert_int_eq(tpx_count(launch.out, "] 3000\n"), 3);
    ck_assert_ptr_null(strchr(launch.out, '\r'));
    tpx_release(&launch);
}
END_TEST

START_TEST(test_map_shown)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "2", "--dry-run", "touch", "/tmp/tpx-never");
    ck_assert_int_eq(launch.status, 0);
    ck_assert_int_ne(access("/tmp/tpx-never", F_OK), 0);
    ck_assert_int_eq(tpx_count(launch.out, "  rank "), 2);
    tpx_release(&launch);
    tpx_run_tprun(&launch, "-n", "2", "--display-map", "echo", "ran");
    ck_assert_int_eq(tpx_count(launch.out, "  rank 1: "), 1);
    ck_assert_int_eq(tpx_count(launch.out, "ran\n"), 2);
    tpx_release(&launch);
}
END_TEST

/* As on another machine, from its record. */
START_TEST(test_map_elsewhere)
{
    struct tpx_launch launch = { 0 };
    char path[1024];

    snprintf(path, sizeof(path), "TP_TOPOLOGY=%s/tests/data/topology/"
             "gpus-eight.xml", getenv("TP_TEST_SOURCE"));
    tpx_run_tprun(&launch, "-x", path, "-n", "4", "--gpus-per-rank", "2",
                  "--dry-run", "true");
    check_lines(&launch, 0, (const char *const[]){
                "  rank 0: package 0, numa 0, l3 0, core 0, cpus 0, gpus 0,1;",
                "  rank 3: package 1, numa 1, l3 1, core 9, cpus 9, gpus 6,7;",
                NULL });
    tpx_release(&launch);
}
END_TEST

/* Ranks that run all the same are on this machine, and not bound. */
START_TEST(test_run_elsewhere)
{
    struct tpx_launch launch = { 0 };
    char path[1024], cpus[32];
    cpu_set_t own;

    snprintf(path, sizeof(path), "TP_TOPOLOGY=%s/tests/data/topology/"
             "two-socket.xml", getenv("TP_TEST_SOURCE"));
    ck_assert_int_eq(sched_getaffinity(0, sizeof(own), &own), 0);
    snprintf(cpus, sizeof(cpus), "cpus %d\n", CPU_COUNT(&own));
    tpx_run_tprun(&launch, "-x", path, "-n", "2", "-v", "--report-bindings",
                  "sh", "-c", "echo cpus $TP_CPUS");
    ck_assert_int_eq(launch.status, 0);
    ck_assert_msg(tpx_count(launch.out, cpus) == 2, "%s", launch.out);
    ck_assert_int_eq(tpx_count(launch.err, ", not bound\n"), 2);
    ck_assert_int_eq(tpx_count(launch.err, "asked for none, "), 2);
    ck_assert_int_eq(tpx_count(launch.err, "NOT THE SAME"), 0);
    tpx_release(&launch);
}
END_TEST

/* Who starts slowly is named to people who want to know.  The slow rank waits
 * for a line that it gets only once it has been named. */
START_TEST(test_slow_start)
{
    struct tpx_launch launch = { 0 };
    int input[2];

    ck_assert_int_eq(pipe2(input, O_CLOEXEC), 0);
    launch.out_fd = memfd_create("both", MFD_CLOEXEC);
    launch.err_fd = dup(launch.out_fd);
    tpx_launch(&launch, input[0], (const char *const[]){ "-n", "3", "-v",
               "--stdin", "1", "sh", "-c", "test $PMIX_RANK = 1 && read line; "
               "exec $0 modex", "RANK", NULL });
    tpx_await_output(&launch, " s: 2 of 3 ranks have joined the job; still to "
                     "call tp_init (PMIx_Init): rank 1\n", 1);
    ck_assert_int_eq(write(input[1], "\n", 1), 1);
    close(input[0]);
    close(input[1]);
    tpx_finish(&launch, 90);
    ck_assert_msg(launch.status == 0, "%s", launch.out);
    tpx_release(&launch);
}
END_TEST

START_TEST(test_report_bindings)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "3", "--bind-to", "core",
                  "--report-bindings", "sleep", "0.1");
    ck_assert_int_eq(launch.status, 0);
    ck_assert_int_eq(tpx_count(launch.err, "the kernel says the same\n"), 3);
    tpx_release(&launch);
    /* A wrap may bind otherwise; so may anybody. */
    tpx_run_tprun(&launch, "--report-bindings", "--bind-to", "none",
                  "sleep", "0.1");
    ck_assert_int_eq(tpx_count(launch.err, "asked for any of cpus"), 1);
    tpx_release(&launch);
}
END_TEST

/* Of two jobs side by side, the second leaves the first its cores. */
START_TEST(test_two_jobs)
{
    struct tpx_launch first = { 0 }, second = { 0 };
    char ranks[16];

    if (!tpx_own_network())
        return;
    snprintf(ranks, sizeof(ranks), "%ld", sysconf(_SC_NPROCESSORS_ONLN));
    tpx_launch(&first, -1, (const char *const[]){ "-n", ranks, "--bind-to",
               "core", "sh", "-c", "echo ready; sleep 60", NULL });
    tpx_await_output(&first, "ready", (int)sysconf(_SC_NPROCESSORS_ONLN));
    tpx_run_tprun(&second, "-n", "1", "-v", "-x", "OMP_NUM_THREADS=1",
                  "--display-map", "true");
    ck_assert_int_eq(second.status, 0);
    ck_assert_int_eq(tpx_count(second.err, "bound to cpus"), 0);
    ck_assert_int_eq(tpx_count(second.out, "another job has the cores"), 1);
    tpx_release(&second);
    kill(first.pid, SIGTERM);
    tpx_finish(&first, 90);
    tpx_release(&first);
}
END_TEST

/* What the shells get knows every option, and is a script. */
START_TEST(test_completion)
{
    struct tpx_launch launch = { 0 };
    char command[1200];

    tpx_run_tprun(&launch, "--completion", _i == 0 ? "bash" : "zsh");
    ck_assert_int_eq(launch.status, 0);
    ck_assert_ptr_nonnull(strstr(launch.out, "--report-bindings"));
    tpx_release(&launch);
    if (_i == 1 || system("command -v bash >/dev/null") != 0)
        return;
    snprintf(command, sizeof(command), "bash -c 'eval \"$(%s --completion "
             "bash)\"; COMP_LINE=\"tprun -n 2 --bind-to p\"; "
             "COMP_WORDS=($COMP_LINE); COMP_CWORD=4; "
             "_tprun; test \"${COMPREPLY[*]}\" = package || exit 1; "
             "COMP_LINE=\"tprun --display\"; "
             "COMP_WORDS=($COMP_LINE); COMP_CWORD=1; "
             "_tprun; test \"${COMPREPLY[*]}\" = --display-map'",
             tpx_program("launcher/tprun"));
    ck_assert_int_eq(system(command), 0);
}
END_TEST

static const char *const habits[][2] = {
#define TPL_HABIT(names, instead) { names, instead },
#include "launcher/habits.def"
#undef TPL_HABIT
};

/* Is that a long name in options.def? */
static bool check_known(const char *name, size_t length)
{
    static const char *const names[] = {
#define TPL_OPTION(id, name, letter, argument, flags, text) name,
#include "launcher/options.def"
#undef TPL_OPTION
    };

    for (size_t i = 0; i < TPB_COUNT(names); i++)
        if (names[i] != NULL && strlen(names[i]) == length
            && strncmp(names[i], name, length) == 0)
            return true;
    return false;
}

/* What is advised exists, and what is advised against does not. */
START_TEST(test_habits_table)
{
    for (size_t i = 0; i < TPB_COUNT(habits); i++) {
        const char *at = habits[i][1];

        while ((at = strstr(at, "--")) != NULL) {
            at += 2;
            ck_assert_msg(check_known(at, strcspn(at, " ,;:=|'")), "%s", at);
        }
        for (at = habits[i][0]; *at != '\0'; at += strspn(at, " ")) {
            ck_assert_msg(!check_known(at, strcspn(at, " ")), "%s", at);
            at += strcspn(at, " ");
        }
    }
}
END_TEST

/* One line that holds the words, and the status of a wrong command line. */
static void check_refused(const char *option, const char *value,
                          const char *words)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, option, value != NULL ? value : "true", "true");
    ck_assert_msg((launch.status == 2 || launch.status == 127)
                  && tpx_count(launch.err, "\n") == 1
                  && strstr(launch.err, words) != NULL, "%s %s: %d: %s",
                  option, value != NULL ? value : "", launch.status,
                  launch.err);
    tpx_release(&launch);
}

/* Options of other launchers: refused, with what to write instead. */
START_TEST(test_habits)
{
    static const char *const typed[][3] = {
        { "--oversubscribe", NULL, "leave it out: more ranks" },
        { "-genv", "A", "write -x NAME=VALUE" },
        { "-ppn=2", NULL, "-ppn is not an option of tprun; write -n N" },
        { "-N", "2", "-N is not an option of tprun; write -n N" },
        { "-vN2", NULL, "-N is not an option of tprun; write -n N" },
        { "--allow-run-as-root", NULL, "root is allowed" },
        { "-hosts", "a,b", "write --host a,b" },
        { "-npernode", "2", "--host a:N,b:N" },
        { "-machinefile", "f", "write --hostfile FILE" },
        { "--mpi=pmix", NULL, "--mpi is not an option of tprun; leave" },
        { "--bind-to", "socket", "a socket is a package here" },
        { "--map-by", "ppr:2:node", "--host a:2,b:2 says" },
        { "--nproc_per_node=2", NULL, "how many on each host, --host a:N,b" },
        { "--rdzv-endpoint", "a:1", "leave it out: one tprun starts" },
        { "--log-dir", "a", "write --output DIR" },
        { "--map-by", ":OVERSUBSCRIBE", "leave out the : and what follows" },
        { "--map-by", "package:PE=2", "leave out the : and what follows" },
        { "--bind-to", "core:overload-allowed", "leave out the : and what" },
        { "--bind-to", "L3cache:x", "; leave out the : and what follows" },
        { "--map-by", "slot", "; without --map-by neighbours are near" },
        { "--ti", "3", "is ambiguous: --timestamp or --timeout" },
        { "-zzz", NULL, "unknown option -zzz;" },
        { "-v=2", NULL, "-v=2: one-letter options take no =" },
        { "-tag=3", NULL, "-tag takes no argument" },
        { "-n", "p2", "-n p2: expected a number" },
    };

    for (size_t i = 0; i < TPB_COUNT(typed); i++)
        check_refused(typed[i][0], typed[i][1], typed[i][2]);
}
END_TEST

/* What names something that there is not says what there is. */
START_TEST(test_named)
{
    static const char *const typed[][3] = {
        { "--wrap", "5:env", "--wrap 5: the ranks of true are 0 to 0" },
        { "--wrap", "3-1:env", "expected ranks such as 2 or 0-3,7" },
        { "--wrap", "tpx-nothere", "--wrap: tpx-nothere: no such program" },
        { "--stdin", "1", "--stdin 1: the last rank is 0" },
        { "--require", "nope", "--require nope: \"nope\" is not CLASS:" },
        { "--require", "", "--require: expected CLASS:BACKEND" },
        { "-x", "PMIX_RANK=3", "tprun itself sets this one" },
        { "-x", "TP_CPUS=3", "tprun itself sets this one" },
        { "--wdir", "/tpx-nothere", "--wdir /tpx-nothere: cannot go there" },
        { "--host", "localhost:2:3", "is not an IPv6 address" },
        { "--host", "[::g]", "is not an IPv6 address" },
    };

    for (size_t i = 0; i < TPB_COUNT(typed); i++)
        check_refused(typed[i][0], typed[i][1], typed[i][2]);
}
END_TEST

/* One dash before a long name, and -np with its number behind it. */
START_TEST(test_one_dash)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-host", "localhost", "-np3", "-tag", "-wdir=/",
                  "-bind-to", "none", "sh", "-c", "pwd");
    check_lines(&launch, 0, (const char *const[]){ "[0] /\n", "[1] /\n",
                "[2] /\n", NULL });
    tpx_release(&launch);
}
END_TEST

/* The hosts tell how many ranks there are: --stdin and --wrap may name any. */
START_TEST(test_ranks_of_hosts)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "--host", "localhost:3", "--stdin", "2", "--wrap",
                  "2:env TPX_A=w", "sh", "-c", "echo $PMIX_RANK$TPX_A");
    check_lines(&launch, 0, (const char *const[]){ "0\n", "1\n", "2w\n",
                NULL });
    tpx_release(&launch);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("options");
    TCase *tests = tcase_create("options");

    tcase_set_timeout(tests, 180);
    tcase_add_test(tests, test_programs);
    tcase_add_test(tests, test_programs_one_job);
    tcase_add_test(tests, test_programs_path);
    tcase_add_test(tests, test_wdir_unreadable);
    tcase_add_test(tests, test_wrap);
    tcase_add_test(tests, test_output_files);
    tcase_add_test(tests, test_output_folders);
    tcase_add_test(tests, test_output_fifo);
    tcase_add_test(tests, test_merge);
    tcase_add_test(tests, test_timestamp);
    tcase_add_test(tests, test_stdin_all);
    tcase_add_test(tests, test_stdin_all_continued);
    tcase_add_test(tests, test_stdin_all_ends);
    tcase_add_test(tests, test_stdin_unreadable);
    tcase_add_loop_test(tests, test_stdin_one, 0, 2);
    tcase_add_test(tests, test_pty);
    tcase_add_test(tests, test_map_shown);
    tcase_add_test(tests, test_map_elsewhere);
    tcase_add_test(tests, test_run_elsewhere);
    tcase_add_test(tests, test_slow_start);
    tcase_add_test(tests, test_report_bindings);
    tcase_add_test(tests, test_two_jobs);
    tcase_add_loop_test(tests, test_completion, 0, 2);
    tcase_add_test(tests, test_habits_table);
    tcase_add_test(tests, test_habits);
    tcase_add_test(tests, test_named);
    tcase_add_test(tests, test_one_dash);
    tcase_add_test(tests, test_ranks_of_hosts);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
