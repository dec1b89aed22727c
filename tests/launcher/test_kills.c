/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Kills anything of a job at any time: a rank, a child of a rank, tprun, a
 * guard, two at once, during start, during the end.  Afterwards there is no
 * process, no file and no segment.  Some dozens of times; TP_TEST_KILLS=N sets
 * how often (make check-long: 1000), TP_TEST_SEED=N repeats a run.
 */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "tests/launcher/run.h"

static uint64_t state;

/* xorshift64, Marsaglia 2003. */
static unsigned below(unsigned limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 33) % limit;
}

static long number(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text != NULL && *text != '\0' ? strtol(text, NULL, 10) : otherwise;
}

/* A /tmp, a /dev/shm and System V objects of our own, so that what is in them
 * is ours.  False if we may not have them. */
static bool isolate(void)
{
    const char *build = getenv("TP_TEST_BUILD");

    if (unshare(CLONE_NEWNS | CLONE_NEWIPC) < 0)
        return false;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0
        || mount("tmpfs", "/dev/shm", "tmpfs", 0, NULL) < 0)
        return false;
    /* Unless this is where the programs are. */
    return (build != NULL && strncmp(build, "/tmp/", 5) == 0)
           || mount("tmpfs", "/tmp", "tmpfs", 0, NULL) == 0;
}

/* Is it a program's own?  ThreadSanitizer has a file for a moment as it starts,
 * and may be killed meanwhile. */
static bool is_ours(const char *name)
{
    return strcmp(name, ".") != 0 && strcmp(name, "..") != 0
           && strncmp(name, "tsan.rodata.", strlen("tsan.rodata.")) != 0;
}

/* A name of ours in the folder; "" if there is none. */
static const char *leftover(const char *folder)
{
    static char name[300];
    struct dirent *entry;
    DIR *open = opendir(folder);

    *name = '\0';
    while (open != NULL && (entry = readdir(open)) != NULL)
        if (is_ours(entry->d_name))
            snprintf(name, sizeof(name), "%s/%s", folder, entry->d_name);
    if (open != NULL)
        closedir(open);
    return name;
}

/* What is left there is not ours. */
static void remove_folder(const char *folder)
{
    char name[300];
    struct dirent *entry;
    DIR *open = opendir(folder);

    while (open != NULL && (entry = readdir(open)) != NULL)
        if (entry->d_name[0] != '.' && !is_ours(entry->d_name)) {
            snprintf(name, sizeof(name), "%s/%s", folder, entry->d_name);
            unlink(name);
        }
    if (open != NULL)
        closedir(open);
    ck_assert_int_eq(rmdir(folder), 0);
}

static void check_nothing_left(bool isolated, const char *directory)
{
    char *segments;

    ck_assert_str_eq(leftover(directory), "");
    if (!isolated)
        return;
    ck_assert_str_eq(leftover("/dev/shm"), "");
    segments = tpb_read_file("/proc/sysvipc/shm", NULL);
    ck_assert_ptr_nonnull(segments);
    /* One line: the heading. */
    ck_assert_int_eq(tpx_count(segments, "\n"), 1);
    tpb_free(segments);
}

/* One of several kinds of job; each goes on for ever or ends at once. */
static void start(struct tpx_launch *launch)
{
    const char *talk = tpx_program("tests/launcher/talk");
    char ranks[16];

    snprintf(ranks, sizeof(ranks), "%u", 1 + below(5));
    switch (below(6)) {
    case 0:
        tpx_launch(launch, -1, (const char *const[]){ "-n", ranks, "RANK",
                   "modex", NULL });
        break;
    case 1:
        tpx_launch(launch, -1, (const char *const[]){ "-n", ranks, "true",
                   NULL });
        break;
    case 2:
        tpx_launch(launch, -1, (const char *const[]){ "-n", ranks, "sh", "-c",
                   "sleep 1000 & setsid sleep 1000 & wait", NULL });
        break;
    case 3:
        tpx_launch(launch, -1, (const char *const[]){ "-n", ranks,
                   "--keep-going", "sh", "-c", "sleep 0.05; exit 3", NULL });
        break;
    case 4:
        tpx_launch(launch, -1, (const char *const[]){ "-n", ranks, "--pty",
                   talk, "ring", NULL });
        break;
    default:
        tpx_launch(launch, -1, (const char *const[]){ "-n", "2", talk, "talk",
                   NULL });
    }
}

/* One kill, or two at once; at last tprun is killed, so that all ends. */
static void storm(struct tpx_launch *launch)
{
    static const int signals[] = { SIGKILL, SIGKILL, SIGTERM, SIGINT,
                                   SIGHUP, SIGSEGV, SIGABRT, SIGUSR1 };
    unsigned kills = 1 + below(3);
    bool guarded = true;           /* by two; one may go along with tprun */
    pid_t guard;

    for (unsigned i = 0; i < kills; i++) {
        /* Most of what can go wrong is in the first and last moments. */
        tpx_doze(below(2) == 0 ? 0.00002 * below(1000)
                               : 0.0002 * below(1000));
        if (below(8) == 0 && guarded) {
            guard = tpx_find_guard(launch->pid, below(2));
            guarded = guard <= 0 || kill(guard, SIGKILL) < 0;
        } else {
            tpx_kill_marked(launch->mark, below(8),
                            signals[below(TPB_COUNT(signals))]);
        }
    }
    tpx_doze(0.0001 * below(300));
    guard = below(4) == 0 && guarded ? tpx_find_guard(launch->pid, below(2))
                                     : 0;
    if (guard > 0)
        kill(guard, SIGKILL);
    kill(launch->pid, below(2) == 0 ? SIGKILL : SIGTERM);
}

static pid_t owner;

/* A signal that goes astray, from tprun or from elsewhere: who sent it? */
static void astray(int number, siginfo_t *info, void *context)
{
    char path[64], text[256];
    ssize_t got = 0;
    int fd;

    (void)context;
    if (getpid() != owner) {
        /* tprun before its exec, which was meant. */
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)info->si_pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0)
        got = read(fd, text, sizeof(text) - 1);
    for (ssize_t i = 0; i < got; i++)
        if (text[i] == '\0')
            text[i] = ' ';
    text[got > 0 ? got : 0] = '\0';
    dprintf(STDERR_FILENO, "test_kills: signal %d came from pid %d, uid %d: "
            "%s\n", number, (int)info->si_pid, (int)info->si_uid, text);
    _exit(1);
}

static void watch_for_strays(void)
{
    static const int signals[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGABRT };
    struct sigaction tell = { .sa_sigaction = astray,
                              .sa_flags = SA_SIGINFO };

    owner = getpid();
    for (size_t i = 0; i < TPB_COUNT(signals); i++)
        sigaction(signals[i], &tell, NULL);
}

/* Who is sent SIGSEGV is to die of it, as without sanitizers: theirs would end
 * tprun with a status, as if all had been over. */
static void leave_signals(const char *variable)
{
    const char *options = getenv(variable);
    char text[1024];

    snprintf(text, sizeof(text), "%s:handle_segv=0",
             options != NULL ? options : "");
    setenv(variable, text, 1);
}

START_TEST(test_storm)
{
    long count = number("TP_TEST_KILLS", 40);
    uint64_t seed = (uint64_t)number("TP_TEST_SEED", (long)(tpb_now() >> 4));
    char directory[] = "/tmp/tpx-kills-XXXXXX";
    bool isolated = isolate();

    leave_signals("ASAN_OPTIONS");
    leave_signals("TSAN_OPTIONS");
    watch_for_strays();
    ck_assert_ptr_nonnull(mkdtemp(directory));
    setenv("TMPDIR", directory, 1);
    for (long i = 0; i < count; i++) {
        struct tpx_launch launch = { 0 };

        state = (seed + (uint64_t)i) * UINT64_C(0x9e3779b97f4a7c15) | 1;
        printf("TP_TEST_SEED=%llu\n", (unsigned long long)seed + i);
        fflush(stdout);
        start(&launch);
        storm(&launch);
        tpx_finish(&launch, 90);
        check_nothing_left(isolated, directory);
        tpx_release(&launch);
    }
    remove_folder(directory);
    if (!isolated)
        tpx_skip("root", "/dev/shm is everybody's, so it was not looked at");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kills");
    TCase *tests = tcase_create("kills");

    tcase_set_timeout(tests, 180 + 10 * number("TP_TEST_KILLS", 40));
    tcase_add_test(tests, test_storm);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
