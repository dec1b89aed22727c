/* SPDX-License-Identifier: BSD-3-Clause */
/* Places and limits that are not as they should be. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pwd.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "tests/launcher/run.h"

/* A job that talks works, whatever TMPDIR and HOME are. */
static void check_job(void)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "3", tpx_program("tests/launcher/talk"),
                  "once");
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    ck_assert_str_eq(launch.err, "");
    tpx_release(&launch);
}

START_TEST(test_tmpdir)
{
    static char lengthy[5000];

    memset(lengthy, 'x', sizeof(lengthy) - 1);
    lengthy[0] = '/';
    setenv("TMPDIR", _i == 0 ? "/nonexistent/place" : _i == 1 ? lengthy
           : _i == 2 ? "/proc" : "", 1);
    if (_i == 3)
        unsetenv("HOME");
    check_job();
}
END_TEST

/* A user by number only, as in a container, and without HOME: libpmix crashes
 * where it looks for that.  tprun spares it the look, a rank has to refuse. */
START_TEST(test_homeless)
{
    struct tpx_launch launch = { 0 };

    if (geteuid() != 0 || getpwuid(54324) != NULL
        || system("command -v setpriv >/dev/null") != 0) {
        tpx_skip("root", "nobody to be who has no name");
        return;
    }
    setenv("TP_BOOTSTRAP", _i == 0 ? "auto" : "pmix", 1);
    tpx_run_tprun(&launch, "-n", "1", "setpriv", "--reuid=54324",
                  "--regid=54324", "--clear-groups", "env", "-u", "HOME",
                  tpx_program("launcher/tprun"), "-n", "2",
                  tpx_program("tests/launcher/talk"), "once");
    /* Where that user may not even look at the build tree. */
    if (strstr(launch.err, "Permission denied") != NULL)
        tpx_skip("root", "the build tree is closed to others");
    else if (_i == 0)
        ck_assert_msg(launch.status == 0 && *launch.err == '\0', "%s",
                      launch.err);
    else
        ck_assert_msg(launch.status == 96
                      && strstr(launch.err, " user 54324, who is not in the"
                                " list of users (passwd); set HOME") != NULL,
                      "status %d: %s", launch.status, launch.err);
    tpx_release(&launch);
}
END_TEST

/* Not a byte is left in /tmp nor in /dev/shm. */
START_TEST(test_full)
{
    const char *build = getenv("TP_TEST_BUILD");
    static const char zeroes[65536];
    int fd;

    if ((build != NULL && strncmp(build, "/tmp/", 5) == 0)
        || unshare(CLONE_NEWNS) < 0
        || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0
        || mount("tmpfs", "/tmp", "tmpfs", 0, "size=64k") < 0
        || mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64k") < 0) {
        tpx_skip("root", "no /tmp of our own");
        return;
    }
    fd = open("/tmp/fill", O_WRONLY | O_CREAT, 0600);
    while (write(fd, zeroes, sizeof(zeroes)) > 0)
        ;
    close(fd);
    fd = open("/dev/shm/fill", O_WRONLY | O_CREAT, 0600);
    while (write(fd, zeroes, sizeof(zeroes)) > 0)
        ;
    close(fd);
    check_job();
}
END_TEST

/* libfabric's shm needs more of it than that; it does not say so itself. */
START_TEST(test_short_shm)
{
    struct tpx_launch launch = { 0 };
    bool said = false;

    if (unshare(CLONE_NEWNS) < 0
        || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0
        || mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64k") < 0) {
        tpx_skip("root", "no /dev/shm of our own");
        return;
    }
    setenv("TP_BACKENDS", "loop,ofi:shm", 1);
    /* A rank that has found out by itself may leave before the other asks it,
     * who knows no more than that then. */
    for (int i = 0; !said && i < 20; i++) {
        tpx_release(&launch);
        launch = (struct tpx_launch){ 0 };
        tpx_run_tprun(&launch, "-n", "2",
                      tpx_program("tests/launcher/explainer"), "0", "1");
        said = strstr(launch.out, "libfabric's provider shm (it wants room in"
                      " /dev/shm for each CPU, and 64 KiB are free)") != NULL;
    }
    ck_assert_msg(said, "%.2000s%.500s", launch.out, launch.err);
    tpx_release(&launch);
}
END_TEST

/* tprun finds no /dev/null, nor anything else there; only terminals cannot be
 * made so. */
START_TEST(test_bare_dev)
{
    struct tpx_launch launch = { 0 };
    char command[2600];

    if (unshare(CLONE_NEWNS) < 0
        || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
        tpx_skip("root", "no /dev of our own");
        return;
    }
    snprintf(command, sizeof(command), "mount -t tmpfs tmpfs /dev &&"
             " ! '%s' --pty true && exec '%s' -n 3 '%s' once",
             tpx_program("launcher/tprun"), tpx_program("launcher/tprun"),
             tpx_program("tests/launcher/talk"));
    tpx_run_tprun(&launch, "-n", "1", "sh", "-c", command);
    ck_assert_msg(launch.status == 0 && tpx_count(launch.err, "\n") == 1
                  && strstr(launch.err, "is devpts mounted on /dev/pts")
                     != NULL, "%s", launch.err);
    tpx_release(&launch);
}
END_TEST

/* tprun as a user whom that limit holds: ends with 1 and one line, to be freed.
 * NULL: skipped. */
static char *limited(const char *limit, const char *arguments)
{
    char command[2048];
    char path[] = "/tmp/tpx-trouble-XXXXXX", *text;
    int fd, status;

    if (geteuid() != 0 || system("command -v setpriv >/dev/null"
                                 " && command -v prlimit >/dev/null") != 0) {
        tpx_skip("root", "the limit does not hold for this user");
        return NULL;
    }
    fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(chmod(path, 0666), 0);
    snprintf(command, sizeof(command), "setpriv --reuid=54321 --regid=54321 "
             "--clear-groups prlimit %s %s %s 2>%s", limit,
             tpx_program("launcher/tprun"), arguments, path);
    status = system(command);
    text = tpb_read_file(path, NULL);
    unlink(path);
    close(fd);
    ck_assert_ptr_nonnull(text);
    /* Where that user may not even look at the build tree. */
    if (strstr(text, "Permission denied") != NULL) {
        tpx_skip("root", "the build tree is closed to others");
        tpb_free(text);
        return NULL;
    }
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "%s", text);
    ck_assert_msg(tpx_count(text, "\n") == 1, "%s", text);
    return text;
}

/* A rank that closes the library's descriptors, or puts others in their place,
 * is told; the job waited, as others did for it. */
START_TEST(test_closed_descriptors)
{
    static const char *const words[] = { "robbed", "replaced" };
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "2", tpx_program("tests/launcher/talk"),
                  words[_i]);
    ck_assert_msg(launch.status == 134, "%s", launch.err);
    ck_assert_msg(strstr(launch.err, "this program has closed descriptors of"
                         " libtp (epoll_wait: ") != NULL
                  && strstr(launch.err, "tprun: rank 1 ") != NULL, "%s",
                  launch.err);
    tpx_release(&launch);
}
END_TEST

/* A sandbox as containers have it: from here on that call is refused to this
 * process and its children.  False: none can be made here. */
static bool refuse(unsigned call)
{
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
    struct sock_fprog program = { TPB_COUNT(steps), steps };

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0)
        return true;
    tpx_skip("seccomp", "no sandbox can be made");
    return false;
}

/* Who can let nobody in says so, once: its peer just waits. */
START_TEST(test_no_accept)
{
    static const char *const backends[] = { "loop,shm", "loop,ofi:tcp" };
    static const char words[] = " peer: Operation not permitted (a sandbox"
                                " around this process must allow accept4(2))";
    struct tpx_launch launch = { 0 };

    if (!refuse(SYS_accept4))
        return;
    setenv("TP_BACKENDS", backends[_i], 1);
    setenv("TP_CONNECT_TIMEOUT", "1000", 1);
    tpx_run_tprun(&launch, "-n", "2", tpx_program("tests/launcher/talk"),
                  "once");
    ck_assert_msg(tpx_count(launch.err, words) >= 1
                  && tpx_count(launch.err, words) <= 2, "%s", launch.err);
    ck_assert_msg(strstr(launch.err, _i == 0 ? "shm: warn: cannot accept a"
                         " local peer" : "ofi: warn: cannot accept a peer")
                  != NULL, "%s", launch.err);
    tpx_release(&launch);
}
END_TEST

/* A container's sandbox that is older than the C library refuses every thread,
 * which is no limit of processes. */
START_TEST(test_no_clone3)
{
    struct tpx_launch launch = { 0 };

    if (tpx_sanitized()) {
        tpx_skip("sanitizer", "it needs threads of its own");
        return;
    }
    if (!refuse(SYS_clone3))
        return;
    tpx_run_tprun(&launch, "-n", "1", "true");
    if (launch.status == 0)
        tpx_skip("seccomp", "this C library does not use clone3(2)");
    else
        ck_assert_msg(launch.status == 1
                      && strstr(launch.err, "clone3(2)") != NULL
                      && strstr(launch.err, "limit") == NULL, "%s",
                      launch.err);
    tpx_release(&launch);
}
END_TEST

/* Nobody is left, and who asks for them in vain does not say that some are. */
START_TEST(test_no_waitid)
{
    if (refuse(SYS_waitid))
        check_job();
}
END_TEST

/* tprun as a process to which wait4(2) is refused. */
static pid_t start_blind(int err, const char *mark)
{
    const char *tprun = tpx_program("launcher/tprun");
    pid_t pid = fork();

    if (pid != 0)
        return pid;
    setenv("TP_TEST_MARK", mark, 1);
    dup2(err, STDERR_FILENO);
    if (refuse(SYS_wait4))
        execl(tprun, tprun, "-n", "2", "sh", "-c", "sleep 600 & exit 0",
              (char *)NULL);
    _exit(77);
}

/* Who cannot hear that ranks end says so; what they leave ends, too. */
START_TEST(test_no_wait4)
{
    int err = memfd_create("err", MFD_CLOEXEC), status = 0;
    char mark[48], text[400] = "";
    pid_t pid;

    snprintf(mark, sizeof(mark), "tpx-blind-%d", (int)getpid());
    pid = start_blind(err, mark);
    ck_assert(err >= 0 && pid > 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_ge(pread(err, text, sizeof(text) - 1, 0), 0);
    close(err);
    ck_assert_int_eq(tpx_await_none(mark, 60), 0);
    ck_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        tpx_skip("seccomp", "no sandbox can be made");
        return;
    }
    ck_assert_int_eq(WEXITSTATUS(status), 1);
    ck_assert_str_eq(text, "tprun: cannot wait for the ranks: Operation not "
                     "permitted (a sandbox around this process must allow "
                     "wait4(2))\n");
}
END_TEST

/* The limit of processes: named, and nothing left. */
START_TEST(test_processes)
{
    char *text = limited("--nproc=12:12", "-n 40 sleep 60");

    if (text == NULL)
        return;
    ck_assert_msg(strstr(text, " of 40: ") != NULL
                  && strstr(text, "the limit of processes") != NULL, "%s",
                  text);
    tpb_free(text);
}
END_TEST

/* ... and by a rank that may have no thread beside its first. */
START_TEST(test_threads)
{
    struct tpx_launch launch = { 0 };

    if (tpx_sanitized()) {
        tpx_skip("sanitizer", "it needs threads of its own");
        return;
    }
    if (geteuid() != 0 || system("command -v setpriv >/dev/null"
                                 " && command -v prlimit >/dev/null") != 0) {
        tpx_skip("root", "the limit does not hold for this user");
        return;
    }
    tpx_run_tprun(&launch, "-n", "1", "--wrap", "prlimit --nproc=1 setpriv"
                  " --reuid=54322 --regid=54322 --clear-groups",
                  tpx_program("tests/launcher/talk"), "once");
    /* Where that user may not even look at the build tree. */
    if (strstr(launch.err, "Permission denied") != NULL)
        tpx_skip("root", "the build tree is closed to others");
    else
        ck_assert_msg(launch.status == 96
                      && strstr(launch.err, "cannot start a progress thread:"
                                " the limit of processes and threads") != NULL
                      && strstr(launch.err, "TP_PROGRESS=manual") != NULL,
                      "%s", launch.err);
    tpx_release(&launch);
}
END_TEST

/* A rank with little memory for its connections is told of the limit: that
 * `tpinfo --backends` shows nothing of it. */
START_TEST(test_memory)
{
    struct tpx_launch launch = { 0 };

    if (tpx_sanitized() || system("command -v prlimit >/dev/null") != 0) {
        tpx_skip("sanitizer", "no rank can have so little memory");
        return;
    }
    setenv("TP_BACKENDS", "loop,ofi:tcp", 1);
    tpx_run_tprun(&launch, "-n", "2", "--wrap", "prlimit --as=67108864",
                  tpx_program("tests/launcher/explainer"), "0", "1");
    ck_assert_msg(strstr(launch.out, "of buffers (see ulimit -v and -d)")
                  != NULL, "%.2000s%.500s", launch.out, launch.err);
    tpx_release(&launch);
}
END_TEST

/* What a tool says where /proc is not mounted, whose first line is in `text`;
 * NULL: it cannot be without, which is told. */
static FILE *without_proc(const char *program, const char *arguments,
                          char text[512])
{
    char command[1024];
    FILE *output;

    if (tpx_sanitized()) {
        tpx_skip("sanitizer", "it reads /proc itself");
        return NULL;
    }
    if (system("unshare -m umount -l /proc 2>/dev/null") != 0) {
        tpx_skip("root", "/proc cannot be unmounted");
        return NULL;
    }
    snprintf(command, sizeof(command), "exec unshare -m sh -c 'umount -l /proc "
             "&& exec %s %s' 2>&1", tpx_program(program), arguments);
    output = popen(command, "r");
    ck_assert_ptr_nonnull(output);
    ck_assert_ptr_nonnull(fgets(text, 512, output));
    return output;
}

/* Nobody finds what a rank leaves there: that is said, and not that it
 * withstands SIGKILL. */
START_TEST(test_no_proc)
{
    char text[512] = "";
    FILE *output = without_proc("launcher/tprun",
                                "sh -c \"sleep 6 & exit 0\"", text);

    if (output == NULL)
        return;
    ck_assert_msg(strstr(text, "without /proc") != NULL, "%s", text);
    ck_assert_int_eq(fgetc(output), EOF);
    ck_assert_int_eq(pclose(output), 0);
}
END_TEST

/* ... nor does tptop find a job, and it says why. */
START_TEST(test_no_proc_to_watch)
{
    char text[512] = "";
    FILE *output = without_proc("launcher/tptop", "--json", text);

    if (output == NULL)
        return;
    ck_assert_msg(strstr(text, "/proc, which is not mounted here") != NULL,
                  "%s", text);
    ck_assert_int_ne(pclose(output), 0);
}
END_TEST

/* In a PID namespace with the /proc of another one numbers are those of other
 * processes there: tprun once ended these, and itself. */
START_TEST(test_other_proc)
{
    char command[1024], text[512] = "";
    FILE *output;

    if (system("unshare -p -f true 2>/dev/null") != 0) {
        tpx_skip("root", "no PID namespace");
        return;
    }
    snprintf(command, sizeof(command), "unshare -p -f sh -c '%s sh -c \"setsid "
             "sleep 600 >/dev/null 2>&1 & exit 0\"; echo status $?' 2>&1",
             tpx_program("launcher/tprun"));
    output = popen(command, "r");
    ck_assert_ptr_nonnull(output);
    ck_assert_ptr_nonnull(fgets(text, sizeof(text), output));
    ck_assert_msg(strstr(text, "cannot be found") != NULL, "%s", text);
    ck_assert_ptr_nonnull(fgets(text, sizeof(text), output));
    ck_assert_str_eq(text, "status 0\n");
    ck_assert_int_eq(fgetc(output), EOF);
    ck_assert_int_eq(pclose(output), 0);
}
END_TEST

/* One guard may start and the second not: the first is not left to init, which
 * in a container may wait for nobody. */
START_TEST(test_one_guard)
{
    char *text;

    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    text = limited("--nproc=2:2", "true");
    if (text == NULL)
        return;
    ck_assert_msg(strstr(text, "cannot start a process") != NULL, "%s", text);
    tpb_free(text);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    ck_assert_int_eq(errno, ECHILD);
}
END_TEST

/* A small stack does for ranks; tprun, which needs more for libpmix, takes it,
 * or says so. */
START_TEST(test_stack)
{
    struct rlimit limit;
    struct tpx_launch launch = { 0 };
    char *text;

    if (tpx_sanitized()) {
        tpx_skip("sanitizer", "its stacks are bigger");
        return;
    }
    ck_assert_int_eq(getrlimit(RLIMIT_STACK, &limit), 0);
    limit.rlim_cur = 64 << 10;
    ck_assert_int_eq(setrlimit(RLIMIT_STACK, &limit), 0);
    check_job();
    tpx_run_tprun(&launch, "-n", "2", "sh", "-c", "ulimit -s");
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    ck_assert_str_eq(launch.out, "64\n64\n");
    tpx_release(&launch);
    text = limited("--stack=65536:65536", "-n 2 true");
    if (text == NULL)
        return;
    ck_assert_msg(strstr(text, "stack may have 64 KiB, and needs ") != NULL
                  && strstr(text, "ulimit -Hs") != NULL, "%s", text);
    tpb_free(text);
}
END_TEST

/* A low soft limit of files is raised for tprun, and left to the ranks; a low
 * hard one is named. */
START_TEST(test_files)
{
    struct rlimit limit = { 64, 4096 };
    struct tpx_launch launch = { 0 };

    if (setrlimit(RLIMIT_NOFILE, &limit) < 0) {
        tpx_skip("limits", "the hard limit of files is below 4096");
        return;
    }
    tpx_run_tprun(&launch, "-n", "50", "sh", "-c", "ulimit -n");
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    ck_assert_int_eq(tpx_count(launch.out, "64\n"), 50);
    tpx_release(&launch);
    limit.rlim_max = 64;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    tpx_run_tprun(&launch, "-n", "50", "true");
    ck_assert_int_eq(launch.status, 1);
    ck_assert_ptr_nonnull(strstr(launch.err, "ulimit -Hn"));
    ck_assert_int_eq(tpx_count(launch.err, "\n"), 1);
    tpx_release(&launch);
}
END_TEST

/* Where no file may be longer than 64 KiB, which holds for memory as well, a
 * job does without sharing it. */
START_TEST(test_long_files)
{
    struct rlimit limit = { 65536, 65536 };

    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    check_job();
}
END_TEST

/* A core is named with its place where the kernel writes it to a file. */
START_TEST(test_core)
{
    struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
    char directory[] = "/tmp/tpx-core-XXXXXX", command[64], words[128];
    char *pattern = tpb_read_file("/proc/sys/kernel/core_pattern", NULL);
    struct tpx_launch launch = { 0 };

    ck_assert_ptr_nonnull(pattern);
    if (tpx_sanitized()) {
        tpx_skip("cores", "sanitizers allow tprun and its ranks none");
        tpb_free(pattern);
        return;
    }
    ck_assert_ptr_nonnull(mkdtemp(directory));
    if (setrlimit(RLIMIT_CORE, &limit) < 0) {
        tpx_skip("limits", "cores are not allowed");
        return;
    }
    tpx_run_tprun(&launch, "-n", "2", "--wdir", directory, "sh", "-c",
                  "test $PMIX_RANK = 0 && exec sleep 60; kill -SEGV $$");
    ck_assert_int_eq(launch.status, 139);
    ck_assert_ptr_nonnull(strstr(launch.err,
                                 " was killed by signal 11 (SIGSEGV), core"));
    snprintf(words, sizeof(words), ", core in %s/core", directory);
    if (strcmp(pattern, "core\n") == 0)
        ck_assert_msg(strstr(launch.err, words) != NULL, "%s", launch.err);
    tpb_free(pattern);
    tpx_release(&launch);
    snprintf(command, sizeof(command), "rm -rf '%s'", directory);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

/* Names that mean nothing here: nothing fails, but somebody meant something. */
static const struct {
    const char *variable, *value, *words;
    bool once;                 /* said by tprun, and one rank for all */
} slips[] = {
    { "TP_LOG", "warn,shmm=trace",
      "TP_LOG: no component is called \"shmm\": did you mean shm?", true },
    { "TP_LOG", "carrier_pigeon=trace", "; tp_env(7) lists", true },
    { "TP_LOGG", "warn", "unknown variable TP_LOGG: did you mean TP_LOG?",
      true },
    { "TP_FOO", "1", "unknown variable TP_FOO; `tpinfo --env` lists", true },
    { "TP_BACKENDS", "^shm rails", "TP_BACKENDS: no backend here is called "
      "\"shm rails\" (commas go between names)" },
    { "TP_BACKENDS", "^smh", "TP_BACKENDS: no backend here is called \"smh\": "
      "did you mean shm?; there are loop, shm" },
    { "TP_RAILS_OVER", "ofi:tpc", "TP_RAILS_OVER: no backend here is called "
      "\"ofi:tpc\": did you mean ofi:tcp?" },
    { "TP_IFACE", "nonesuch0", "TP_IFACE=nonesuch0: this host has none of these"
      " network interfaces; it has " },
};

START_TEST(test_slips)
{
    struct tpx_launch launch = { 0 };

    setenv(slips[_i].variable, slips[_i].value, 1);
    tpx_run_tprun(&launch, "-n", "2", tpx_program("tests/launcher/talk"),
                  "once");
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    ck_assert_msg(strstr(launch.err, slips[_i].words) != NULL, "%s",
                  launch.err);
    ck_assert_msg(!slips[_i].once
                  || tpx_count(launch.err, slips[_i].words) == 2, "%s",
                  launch.err);
    tpx_release(&launch);
}
END_TEST

/* Where nothing works that is allowed, the cause is told at once. */
START_TEST(test_no_backend)
{
    struct tpx_launch launch = { 0 };

    setenv("TP_BACKENDS", "ofi:tcp", 1);
    setenv("TP_IFACE", "nonesuch0", 1);
    tpx_run_tprun(&launch, "-n", "1", tpx_program("tests/launcher/talk"),
                  "once");
    ck_assert_int_ne(launch.status, 0);
    ck_assert_msg(strstr(launch.err, "TP_BACKENDS=ofi:tcp leaves no backend "
                         "that works here: ofi:tcp (no network interface that "
                         "is up and allowed by TP_IFACE=nonesuch0); ") != NULL,
                  "%s", launch.err);
    tpx_release(&launch);
    setenv("TP_BACKENDS", "shn", 1);
    tpx_run_tprun(&launch, "-n", "1", tpx_program("tests/launcher/talk"),
                  "once");
    ck_assert_int_ne(launch.status, 0);
    ck_assert_msg(strstr(launch.err, "\"shn\": did you mean shm?") != NULL,
                  "%s", launch.err);
    tpx_release(&launch);
}
END_TEST

/* ---- a control group with little memory -------------------------------- */

static char group[128];            /* ours; "" if it cannot be made */

static bool group_set(const char *name, const char *value)
{
    char path[192];
    int fd;
    bool done;

    snprintf(path, sizeof(path), "%s/%s", group, name);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    done = fd >= 0 && write(fd, value, strlen(value)) > 0;
    tpb_close(&fd);
    return done;
}

/* Of whichever version is there.  In the parent of the tests, so that it goes
 * whatever becomes of these. */
static void group_make(void)
{
    static const struct {
        const char *root, *limit;
    } versions[] = {
        { "/sys/fs/cgroup/memory", "memory.limit_in_bytes" },
        { "/sys/fs/cgroup", "memory.max" },
    };

    for (size_t i = 0; i < TPB_COUNT(versions); i++) {
        snprintf(group, sizeof(group), "%s/tp-test-%d", versions[i].root,
                 (int)getpid());
        if (mkdir(group, 0700) == 0
            && group_set(versions[i].limit, "134217728")) {
            (void)group_set("memory.swap.max", "0");
            (void)group_set("memory.memsw.limit_in_bytes", "134217728");
            return;
        }
        rmdir(group);
    }
    group[0] = '\0';
}

static void group_remove(void)
{
    for (int i = 0; i < 100 && group[0] != '\0' && rmdir(group) < 0
                    && errno == EBUSY; i++)
        tpx_doze(0.1);
}

/* The kernel kills the rank that takes more than there is; tprun says so. */
START_TEST(test_want_of_memory)
{
    struct tpx_launch launch = { 0 };

    if (group[0] == '\0' || !group_set("cgroup.procs", "0")) {
        tpx_skip("cgroup", "no control group of our own with a limit");
        return;
    }
    /* Reads a line without end. */
    tpx_run_tprun(&launch, "-n", "2", "sh", "-c",
                  "test $PMIX_RANK = 0 || exec tail /dev/zero; sleep 300");
    ck_assert_int_eq(launch.status, 137);
    ck_assert_msg(strstr(launch.err, "tprun: rank 1 (pid ") != NULL
                  && strstr(launch.err, "(SIGKILL), most likely by the kernel "
                            "because memory ran out: the limit of this cgroup "
                            "is 128 MiB (/sys/fs/cgroup/") != NULL
                  && strstr(launch.err, "; raise it, or start fewer ranks\n")
                     != NULL, "%s", launch.err);
    tpx_release(&launch);
    /* It has struck, but not in this job. */
    launch = (struct tpx_launch){ 0 };
    tpx_run_tprun(&launch, "-n", "1", "sh", "-c", "kill -9 $$");
    ck_assert_int_eq(launch.status, 137);
    ck_assert_ptr_nonnull(strstr(launch.err, "(SIGKILL)"));
    ck_assert_ptr_null(strstr(launch.err, "memory"));
    tpx_release(&launch);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trouble");
    TCase *tests = tcase_create("trouble"), *memory;

    tcase_set_timeout(tests, 180);
    tcase_add_loop_test(tests, test_tmpdir, 0, 4);
    tcase_add_loop_test(tests, test_homeless, 0, 2);
    tcase_add_loop_test(tests, test_slips, 0, TPB_COUNT(slips));
    tcase_add_test(tests, test_no_backend);
    tcase_add_test(tests, test_full);
    tcase_add_test(tests, test_short_shm);
    tcase_add_loop_test(tests, test_closed_descriptors, 0, 2);
    tcase_add_test(tests, test_bare_dev);
    tcase_add_loop_test(tests, test_no_accept, 0, 2);
    tcase_add_test(tests, test_no_clone3);
    tcase_add_test(tests, test_no_waitid);
    tcase_add_test(tests, test_no_wait4);
    tcase_add_test(tests, test_processes);
    tcase_add_test(tests, test_threads);
    tcase_add_test(tests, test_memory);
    tcase_add_test(tests, test_no_proc);
    tcase_add_test(tests, test_no_proc_to_watch);
    tcase_add_test(tests, test_other_proc);
    tcase_add_test(tests, test_one_guard);
    tcase_add_test(tests, test_stack);
    tcase_add_test(tests, test_files);
    tcase_add_test(tests, test_long_files);
    tcase_add_test(tests, test_core);
    suite_add_tcase(suite, tests);
    memory = tcase_create("memory");
    tcase_set_timeout(memory, 180);
    tcase_add_unchecked_fixture(memory, group_make, group_remove);
    tcase_add_test(memory, test_want_of_memory);
    suite_add_tcase(suite, memory);
    return tpx_run(suite);
}
