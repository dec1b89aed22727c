/* SPDX-License-Identifier: BSD-3-Clause */
/* Whatever is killed, nothing is left: no process, no file. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "tests/launcher/run.h"

/* What a rank leaves when it ends is ended with the job. */
START_TEST(test_left_behind)
{
    static const char *const how[] = { "group", "session" };
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "3", "RANK", "leave", how[_i]);
    ck_assert_int_eq(launch.status, 0);
    tpx_release(&launch);
}
END_TEST

/* A process whose first thread has ended looks like a zombie, and lives: it
 * holds the output, and would for ever. */
START_TEST(test_left_thread)
{
    struct tpx_launch launch = { 0 };
    int pid = 0, left = 1;

    tpx_launch(&launch, -1, (const char *const[]){ "-n", "1", "RANK", "leave",
               "thread", _i == 1 ? "stay" : NULL, NULL });
    tpx_await_output(&launch, "left ", 1);
    if (_i == 1)
        kill(launch.pid, SIGKILL);
    tpx_finish(&launch, 30);
    ck_assert_int_eq(launch.status, _i == 1 ? 137 : 0);
    ck_assert_int_eq(sscanf(launch.out, "left %d", &pid), 1);
    /* After SIGKILL it is the guards' work, who take a moment. */
    for (int i = 0; i < 6000 && left; i++) {
        left = kill(pid, 0) == 0;
        tpx_doze(left ? 0.01 : 0);
    }
    if (left)
        kill(pid, SIGKILL);
    ck_assert_int_eq(left, 0);
    tpx_release(&launch);
}
END_TEST

/* A name in /dev/shm of a rank that is killed before it can remove it, or with
 * tprun; not that of another process.  The last rank has become another user
 * (its number stands for what it would have made then). */
START_TEST(test_left_names)
{
    static const char *const how[] = {
        "kill -9 $$", "exit 3", "echo left; sleep 100",
        "chown 65534 /dev/shm/tp.ofi.$$.0ab; kill -9 $$"
    };
    struct tpx_launch launch = { 0 };
    char script[200], other[64];
    int left = 1, kept;

    if (_i == 3 && geteuid() != 0) {
        tpx_skip("root", "nobody can be somebody else");
        return;
    }
    snprintf(other, sizeof(other), "/dev/shm/tp.ofi.%d.0", (int)getpid());
    close(open(other, O_WRONLY | O_CREAT, 0600));
    snprintf(script, sizeof(script), "echo $$; : >/dev/shm/tp.ofi.$$.0ab; %s",
             how[_i]);
    tpx_launch(&launch, -1, (const char *const[]){ "-n", "1", "sh", "-c",
               script, NULL });
    if (_i == 2) {
        tpx_await_output(&launch, "left", 1);
        kill(launch.pid, SIGKILL);
    }
    tpx_finish(&launch, 30);
    snprintf(script, sizeof(script), "/dev/shm/tp.ofi.%d.0ab",
             atoi(launch.out));
    for (int i = 0; i < (_i == 2 ? 6000 : 1) && left; i++) {
        left = access(script, F_OK) == 0;
        tpx_doze(left ? 0.01 : 0);
    }
    unlink(script);
    kept = unlink(other) == 0;
    ck_assert_int_eq(left, 0);
    ck_assert_int_eq(kept, 1);
    ck_assert_int_eq(launch.status, _i == 1 ? 3 : 137);
    tpx_release(&launch);
}
END_TEST

/* What a rank leaves may be somebody whom we cannot end.  Then tprun says so,
 * and ends all the same, though its output is held open. */
START_TEST(test_left_untouchable)
{
    char place[] = "/tmp/tpx-orphans-XXXXXX", command[2048], *text;
    const char *tprun = tpx_program("launcher/tprun");
    int status;

    if (geteuid() != 0 || system("command -v setpriv >/dev/null") != 0) {
        tpx_skip("root", "nobody can be somebody else");
        return;
    }
    ck_assert_ptr_nonnull(mkdtemp(place));
    ck_assert_int_eq(chdir(place), 0);
    snprintf(command, sizeof(command), "chmod 755 . && cp $(command -v setpriv)"
             " other && chmod 4755 other && as='setpriv --reuid=54321"
             " --regid=54321 --clear-groups' && $as test -x %s && timeout -s"
             " KILL 150 $as %s -n 1 sh -c './other --reuid=0 sleep 600 &"
             " echo $! >&2; until grep -s -q \"^Name:.sleep$\""
             " /proc/$!/status && grep -q \"^Uid:.0.0.0\" /proc/$!/status;"
             " do sleep 0.01; done' 2>&1 >/dev/null | cat >said; "
             "kill -9 $(head -n 1 said)", tprun, tprun);
    status = system(command);
    text = tpb_read_file("said", NULL);
    unlink("said");
    unlink("other");
    rmdir(place);
    if (text == NULL || *text == '\0') {
        tpx_skip("root", "the build tree is closed to others");
    } else {
        ck_assert_int_eq(status, 0);
        ck_assert_msg(strstr(text, "tprun: processes that ranks left behind "
                             "(1) survive SIGKILL") != NULL, "%s", text);
    }
    tpb_free(text);
}
END_TEST

/* A rank that is killed leaves a child, and so all of its connections open: its
 * peers are told of the death all the same. */
START_TEST(test_heir)
{
    static const char *const over[] = { "shm", "ofi:tcp", "ofi:shm" };
    struct tpx_launch launch = { 0 };

    setenv("TP_BACKENDS", over[_i], 1);
    tpx_run_tprun(&launch, "-n", "2", "--keep-going",
                  tpx_program("tests/launcher/talk"), "heir");
    ck_assert_msg(launch.status == 137, "%d: %s", launch.status, launch.err);
    ck_assert_msg(strstr(launch.out, "rank 0: the peer died") != NULL
                  && strstr(launch.out, "rank 0: the child lives") != NULL,
                  "over %s: %s", over[_i], launch.out);
    tpx_release(&launch);
}
END_TEST

/* Also if it ignores SIGTERM, holds the output open, and the job failed. */
START_TEST(test_stubborn_left_behind)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "2", "sh", "-c",
                  "trap '' TERM; setsid sh -c 'while :; do sleep 60; done' & "
                  "exit 3");
    ck_assert_int_eq(launch.status, 3);
    tpx_release(&launch);
}
END_TEST

/* Children that tprun has from before its exec are somebody else's, however
 * many there are. */
START_TEST(test_foreign)
{
    const char *tprun = tpx_program("launcher/tprun");
    char command[2048];
    int status;

    /* Who was killed may be a zombie of somebody who does not look. */
    snprintf(command, sizeof(command), "pids=$(sh -c 'n=0;"
             " while [ $n -lt 70 ]; do sleep 600 >/dev/null & echo $!;"
             " n=$((n + 1)); done; exec %s -n 1 true'); ended=0;"
             " for pid in $pids; do"
             " grep -s -q '^State:.[^ZX]' /proc/$pid/status"
             " && kill $pid || ended=$((ended + 1)); done; exit $ended",
             tprun);
    status = system(command);
    ck_assert_int_eq(status, 0);
}
END_TEST

/* On a busy machine a guard can be the last to run, and to say its name. */
static void await_guards(pid_t tprun)
{
    for (int i = 0; i < 6000 && tpx_find_guard(tprun, 1) == 0; i++)
        tpx_doze(0.01);
}

static void start_family(struct tpx_launch *launch)
{
    tpx_launch(launch, -1, (const char *const[]){ "-n", "3", "RANK", "family",
               NULL });
    tpx_await_output(launch, "ready\n", 3);
    await_guards(launch->pid);
}

/* kill -9 of tprun: ranks, their children, those in sessions of their own. */
START_TEST(test_kill_tprun)
{
    struct tpx_launch launch = { 0 };

    start_family(&launch);
    kill(launch.pid, SIGKILL);
    tpx_finish(&launch, 90);
    ck_assert_int_eq(launch.status, 137);
    tpx_release(&launch);
}
END_TEST

/* A child in the rank's group that has no environment to know it by. */
START_TEST(test_kill_tprun_nameless)
{
    struct tpx_launch launch = { 0 };
    char name[32], check[128];
    int left = 1;

    /* A name that only this process has. */
    snprintf(name, sizeof(name), "tpx%d.5", (int)getpid());
    snprintf(check, sizeof(check), "pgrep -r R,S,D -f '^%s$' >/dev/null",
             name);
    tpx_launch(&launch, -1, (const char *const[]){ "-n", "2", "sh", "-c",
               "env -i sh -c 'exec sleep 600' & echo $! ready; sleep 600",
               NULL });
    tpx_await_output(&launch, " ready\n", 2);
    kill(launch.pid, SIGKILL);
    tpx_finish(&launch, 90);
    for (int i = 0; i < 6000 && left > 0; i++) {
        int a = 0, b = 0;

        ck_assert_int_eq(sscanf(launch.out, "%d ready\n%d", &a, &b), 2);
        snprintf(check, sizeof(check), "cat /proc/%d/cmdline /proc/%d/cmdline "
                 "2>/dev/null | grep -q sleep", a, b);
        left = system(check) == 0;
        tpx_doze(0.01);
    }
    ck_assert_int_eq(left, 0);
    tpx_release(&launch);
}
END_TEST

/* The guards are killed: others take their place and do their work. */
START_TEST(test_kill_guard)
{
    struct tpx_launch launch = { 0 };
    pid_t old[2], fresh = 0;
    unsigned count = 0;

    start_family(&launch);
    for (unsigned n = 0; n < 2; n++) {
        old[n] = tpx_find_guard(launch.pid, n);
        ck_assert_int_gt(old[n], 0);
    }
    kill(old[0], SIGKILL);
    kill(old[1], SIGKILL);
    for (int i = 0; i < 6000 && count < 2; i++) {
        tpx_doze(0.01);
        for (count = 0; count < 3; count++) {
            fresh = tpx_find_guard(launch.pid, count);
            if (fresh == 0 || fresh == old[0] || fresh == old[1])
                break;
        }
    }
    ck_assert_uint_eq(count, 2);
    /* One guard, and tprun, in one instant. */
    kill(tpx_find_guard(launch.pid, (unsigned)_i), SIGKILL);
    kill(launch.pid, SIGKILL);
    tpx_finish(&launch, 90);
    tpx_release(&launch);
}
END_TEST

/* The guard does not keep the user's terminal or pipes open. */
START_TEST(test_guard_holds_nothing)
{
    struct tpx_launch launch = { 0 };
    char path[64];
    struct dirent *entry;
    pid_t guard;
    DIR *fds;
    int count = 0;

    start_family(&launch);
    guard = tpx_find_guard(launch.pid, (unsigned)_i);
    ck_assert_int_gt(guard, 0);
    ck_assert_int_eq(getsid(guard), guard);
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)guard);
    fds = opendir(path);
    ck_assert_ptr_nonnull(fds);
    while ((entry = readdir(fds)) != NULL)
        count += entry->d_name[0] != '.';
    closedir(fds);
    ck_assert_int_eq(count, 1);
    kill(launch.pid, SIGTERM);
    tpx_finish(&launch, 90);
    ck_assert(kill(guard, 0) < 0 && errno == ESRCH);
    tpx_release(&launch);
}
END_TEST

/* Nor does it wake up for every rank: what it is told waits in its pipe. */
START_TEST(test_guard_sleeps)
{
    struct tpx_launch launch = { 0 };
    int fd, unread = 0;
    char path[64];

    start_family(&launch);
    snprintf(path, sizeof(path), "/proc/%d/fd/0",
             (int)tpx_find_guard(launch.pid, (unsigned)_i));
    /* A guard that reads has done so by then. */
    tpx_doze(0.2);
    fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ioctl(fd, FIONREAD, &unread), 0);
    ck_assert_int_gt(unread, 0);
    close(fd);
    kill(launch.pid, SIGTERM);
    tpx_finish(&launch, 90);
    tpx_release(&launch);
}
END_TEST

/* tprun in tprun: the outer is killed, the inner's guard does its part. */
START_TEST(test_kill_nested)
{
    struct tpx_launch launch = { 0 };
    char text[256] = "";
    const char *at;
    int found = 0;

    setenv("TPX_RANK", tpx_rank_program(), 1);
    setenv("TPX_TPRUN", tpx_program("launcher/tprun"), 1);
    tpx_launch(&launch, -1, (const char *const[]){ "-n", "2", "sh", "-c",
               "echo tprun $$; exec \"$TPX_TPRUN\" -n 2 \"$TPX_RANK\" family",
               NULL });
    tpx_await_output(&launch, "ready\n", 4);
    /* The outer guards would kill the inner ones, as long as these still have
     * the environment that they began with. */
    await_guards(launch.pid);
    ck_assert_int_gt(pread(launch.out_fd, text, sizeof(text) - 1, 0), 0);
    for (at = text; (at = strstr(at, "tprun ")) != NULL; at++) {
        await_guards((pid_t)atoi(at + strlen("tprun ")));
        found++;
    }
    ck_assert_int_eq(found, 2);
    kill(launch.pid, SIGKILL);
    tpx_finish(&launch, 90);
    tpx_release(&launch);
}
END_TEST

static unsigned noise;

static unsigned random_below(unsigned limit)
{
    noise = noise * 1103515245u + 12345u;
    return (noise >> 16) % limit;
}

/* /tmp and /dev/shm of our own, so that files of others are no question. */
static bool private_places(void)
{
    ck_assert_int_eq(chdir(tpx_program("")), 0);
    setenv("TP_TEST_BUILD", ".", 1);
    return unshare(CLONE_NEWNS) == 0
           && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0
           && mount("tmpfs", "/tmp", "tmpfs", 0, NULL) == 0
           && mount("tmpfs", "/dev/shm", "tmpfs", 0, NULL) == 0;
}

static int count_entries(const char *place)
{
    DIR *directory = opendir(place);
    struct dirent *entry;
    int count = 0;

    ck_assert_ptr_nonnull(directory);
    while ((entry = readdir(directory)) != NULL)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

/*
 * Random victims at random moments, start-up included: tprun, a process of
 * the job, the guard, tprun and the guard at once.
 */
START_TEST(test_random_kills)
{
    bool files = private_places();

    if (!files)
        tpx_skip("namespaces", "files in /tmp and /dev/shm are not looked at");
    noise = (unsigned)_i * 7919u + 1;
    for (int i = 0; i < 10; i++) {
        struct tpx_launch launch = { 0 };
        unsigned victim = random_below(4);
        pid_t guard;

        tpx_launch(&launch, -1, random_below(2) == 0
                   ? (const char *const[]){ "-n", "3", "RANK", "late", "0.1",
                                            NULL }
                   : (const char *const[]){ "-n", "3", "--timeout", "0.3",
                                            "RANK", "signals", NULL });
        tpx_doze(random_below(1000) * 1e-4);
        guard = tpx_find_guard(launch.pid, random_below(2));
        if (victim == 1)
            tpx_kill_marked(launch.mark, random_below(5), SIGKILL);
        if ((victim == 2 || victim == 3) && guard > 0)
            kill(guard, SIGKILL);
        if (victim == 0 || victim == 3)
            kill(launch.pid, SIGKILL);
        tpx_finish(&launch, 90);
        if (files) {
            ck_assert_int_eq(count_entries("/tmp"), 0);
            ck_assert_int_eq(count_entries("/dev/shm"), 0);
        }
        tpx_release(&launch);
    }
}
END_TEST

/* The group of tprun is killed at once, as a batch system does. */
START_TEST(test_kill_everything)
{
    struct tpx_launch launch = { 0 };

    start_family(&launch);
    kill(-launch.pid, SIGKILL);
    tpx_finish(&launch, 90);
    ck_assert_int_eq(launch.status, 137);
    tpx_release(&launch);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("orphans");
    TCase *tests = tcase_create("orphans");

    tcase_set_timeout(tests, 180);
    tcase_add_loop_test(tests, test_left_behind, 0, 2);
    tcase_add_loop_test(tests, test_left_thread, 0, 2);
    tcase_add_loop_test(tests, test_left_names, 0, 4);
    tcase_add_test(tests, test_left_untouchable);
    tcase_add_loop_test(tests, test_heir, 0, 3);
    tcase_add_test(tests, test_stubborn_left_behind);
    tcase_add_test(tests, test_foreign);
    tcase_add_test(tests, test_kill_tprun);
    tcase_add_test(tests, test_kill_tprun_nameless);
    tcase_add_loop_test(tests, test_kill_guard, 0, 2);
    tcase_add_loop_test(tests, test_guard_holds_nothing, 0, 2);
    tcase_add_loop_test(tests, test_guard_sleeps, 0, 2);
    tcase_add_test(tests, test_kill_nested);
    tcase_add_loop_test(tests, test_random_kills, 0, 4);
    tcase_add_test(tests, test_kill_everything);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
