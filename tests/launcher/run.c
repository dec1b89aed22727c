/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs tprun and looks at what is left. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "tests/launcher/run.h"

enum { RUN_ARGS = 64 };

void tpx_doze(double seconds)
{
    struct timespec time = { (time_t)seconds,
                             (long)((seconds - (double)(time_t)seconds)
                                    * 1e9) };

    nanosleep(&time, NULL);
}

/* Not by strstr(): sanitizers' looks at all the rest each time. */
int tpx_count(const char *in, const char *text)
{
    size_t length = strlen(text);
    int count = 0;

    while (*in != '\0') {
        bool found = *in == *text && strncmp(in, text, length) == 0;

        in += found ? length : 1;
        count += found;
    }
    return count;
}

const char *tpx_rank_program(void)
{
    return tpx_program("tests/launcher/rank");
}

static void run_child(const struct tpx_launch *launch, int in,
                      const char *const *args, pid_t parent)
{
    const char *argv[RUN_ARGS + 2] = { tpx_program("launcher/tprun") };
    sigset_t none;
    int n = 0;

    for (; args[n] != NULL && n < RUN_ARGS; n++)
        argv[n + 1] = strcmp(args[n], "RANK") == 0 ? tpx_rank_program()
                                                   : args[n];
    argv[n + 1] = NULL;
    /* A test that fails or is ended leaves no job to the tests behind it. */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(255);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    /* Tests that a shell started in the background ignore these. */
    signal(SIGINT, SIG_DFL);
    signal(SIGQUIT, SIG_DFL);
    /* Those of a service that systemd runs ignore this one. */
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0);
    setenv("TP_TEST_MARK", launch->mark, 1);
    dup2(in, 0);
    dup2(launch->out_fd, 1);
    dup2(launch->err_fd, 2);
    for (int fd = 3; fd < 64; fd++)
        close(fd);
    execv(argv[0], (char **)argv);
    dprintf(2, "cannot run %s: %s\n", argv[0], strerror(errno));
    _exit(255);
}

void tpx_launch(struct tpx_launch *launch, int in, const char *const *args)
{
    static unsigned serial;
    pid_t parent = getpid();
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    snprintf(launch->mark, sizeof(launch->mark), "tpx-%d-%u-%lx",
             (int)getpid(), serial++, (unsigned long)tpb_now());
    if (launch->out_fd <= 0)
        launch->out_fd = memfd_create("out", MFD_CLOEXEC);
    if (launch->err_fd <= 0)
        launch->err_fd = memfd_create("err", MFD_CLOEXEC);
    ck_assert(null >= 0 && launch->out_fd >= 0 && launch->err_fd >= 0);
    launch->pid = fork();
    ck_assert_int_ge(launch->pid, 0);
    if (launch->pid == 0)
        run_child(launch, in >= 0 ? in : null, args, parent);
    close(null);
}

/* The whole of a memory file, without moving its offset. */
static char *run_contents(int fd, size_t *length)
{
    off_t size = lseek(fd, 0, SEEK_END);
    char *text = tpb_zalloc((size_t)(size > 0 ? size : 0) + 1);
    ssize_t got = 0;

    ck_assert_ptr_nonnull(text);
    *length = 0;
    while (size > 0 && *length < (size_t)size
           && (got = pread(fd, text + *length, (size_t)size - *length,
                           (off_t)*length)) > 0)
        *length += (size_t)got;
    return text;
}

bool tpx_output_comes(struct tpx_launch *launch, const char *text, int count,
                      double seconds)
{
    for (int i = 0; i < seconds * 100; i++) {
        size_t length;
        char *now = run_contents(launch->out_fd, &length);
        int found = tpx_count(now, text);

        tpb_free(now);
        if (found >= count)
            return true;
        tpx_doze(0.01);
    }
    return false;
}

void tpx_await_output(struct tpx_launch *launch, const char *text, int count)
{
    if (tpx_output_comes(launch, text, count, 120))
        return;
    kill(launch->pid, SIGKILL);
    ck_abort_msg("no \"%s\" came in two minutes", text);
}

pid_t tpx_number_behind(const struct tpx_launch *launch, const char *words)
{
    char text[256] = "";
    const char *at;

    ck_assert_int_gt(pread(launch->out_fd, text, sizeof(text) - 1, 0), 0);
    at = strstr(text, words);
    ck_assert_ptr_nonnull(at);
    return (pid_t)atoi(at + strlen(words));
}

/* `state` as /proc has it. */
static void run_await_state(pid_t pid, char state)
{
    char path[64], words[] = { ')', ' ', state, ' ', '\0' }, *text = NULL;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    for (int i = 0; i < 5000; i++) {
        text = tpb_read_file(path, NULL);
        ck_assert_ptr_nonnull(text);
        if (strstr(text, words) != NULL)
            break;
        tpb_free(text);
        text = NULL;
        tpx_doze(0.02);
    }
    ck_assert_msg(text != NULL, "%d does not come to state %c", (int)pid,
                  state);
    tpb_free(text);
}

void tpx_await_stopped(pid_t pid)
{
    run_await_state(pid, 'T');
}

void tpx_await_ended(pid_t pid)
{
    run_await_state(pid, 'Z');
}

void tpx_await_asleep(pid_t pid)
{
    run_await_state(pid, 'S');
}

/* Does the environment of that process hold the mark?  Empty for a zombie. */
static bool run_marked(const char *name, const char *mark)
{
    char path[64], *text;
    size_t length = 0;
    bool found;

    if (name[0] < '1' || name[0] > '9')
        return false;
    snprintf(path, sizeof(path), "/proc/%.20s/environ", name);
    text = tpb_read_file(path, &length);
    found = text != NULL && memmem(text, length, mark, strlen(mark)) != NULL;
    tpb_free(text);
    return found;
}

/* The n-th process with the mark, or 0; *count gets how many were seen. */
static pid_t run_find(const char *mark, unsigned n, unsigned *count)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    pid_t found = 0;

    *count = 0;
    ck_assert_ptr_nonnull(proc);
    while (found == 0 && (entry = readdir(proc)) != NULL)
        if (run_marked(entry->d_name, mark) && (*count)++ == n)
            found = (pid_t)atoi(entry->d_name);
    closedir(proc);
    return found;
}

/* What is left: number, name, state, parent, group and session of each. */
static const char *run_describe(const char *mark)
{
    static char text[2000];
    size_t used = 0;
    unsigned count;
    pid_t pid;

    *text = '\0';
    for (unsigned n = 0; (pid = run_find(mark, n, &count)) > 0; n++) {
        char path[64], *stat;

        snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
        stat = tpb_read_file(path, NULL);
        if (stat != NULL && used < sizeof(text) - 100)
            used += (size_t)snprintf(text + used, sizeof(text) - used,
                                     "%.60s; ", stat);
        tpb_free(stat);
    }
    return text;
}

void tpx_finish(struct tpx_launch *launch, double seconds)
{
    uint64_t until = tpb_now() + (uint64_t)(seconds * 1e9);
    bool killed;
    pid_t got;
    int left;

    while ((got = wait4(launch->pid, &launch->raw, WNOHANG,
                        &launch->usage)) == 0 && tpb_now() < until)
        tpx_doze(0.002);
    if (got == 0) {
        kill(launch->pid, SIGKILL);
        wait4(launch->pid, &launch->raw, 0, &launch->usage);
    }
    launch->out = run_contents(launch->out_fd, &launch->out_length);
    launch->err = run_contents(launch->err_fd, &launch->err_length);
    ck_assert_msg(got == launch->pid, "tprun did not end in %g s; it said: %s",
                  seconds, launch->err);
    launch->status = WIFSIGNALED(launch->raw)
                     ? 128 + WTERMSIG(launch->raw)
                     : WEXITSTATUS(launch->raw);
    /* An ordinary end leaves nothing even for an instant.  SIGINT's is one, but
     * in the first moments, before tprun handles it and says so: its guards
     * need a moment then, as after SIGKILL. */
    killed = WIFSIGNALED(launch->raw)
             && (WTERMSIG(launch->raw) != SIGINT || *launch->err == '\0');
    left = killed ? tpx_await_none(launch->mark, 60)
                  : tpx_count_marked(launch->mark);
    ck_assert_msg(left == 0, "%d processes are left: %s", left,
                  run_describe(launch->mark));
}

void tpx_release(struct tpx_launch *launch)
{
    tpb_free(launch->out);
    tpb_free(launch->err);
    tpb_close(&launch->out_fd);
    tpb_close(&launch->err_fd);
    memset(launch, 0, sizeof(*launch));
}

int tpx_count_marked(const char *mark)
{
    unsigned count;

    run_find(mark, ~0u, &count);
    return (int)count;
}

int tpx_await_none(const char *mark, double seconds)
{
    uint64_t until = tpb_now() + (uint64_t)(seconds * 1e9);
    int left;

    while ((left = tpx_count_marked(mark)) > 0 && tpb_now() < until)
        tpx_doze(0.01);
    return left;
}

bool tpx_kill_marked(const char *mark, unsigned n, int signal)
{
    unsigned count;
    pid_t pid = run_find(mark, n, &count);

    return pid > 0 && kill(pid, signal) == 0;
}

bool tpx_own_network(void)
{
    struct ifreq loopback = { .ifr_name = "lo" };
    int fd = -1;
    bool up;

    if (unshare(CLONE_NEWNET) == 0)
        fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    up = fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &loopback) == 0;
    loopback.ifr_flags |= IFF_UP;
    up = up && ioctl(fd, SIOCSIFFLAGS, &loopback) == 0;
    tpb_close(&fd);
    if (!up)
        tpx_skip("root", "a network namespace is not allowed, and other jobs "
                 "may hold the cores");
    return up;
}

pid_t tpx_find_guard(pid_t launcher, unsigned n)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    pid_t found = 0;

    ck_assert_ptr_nonnull(proc);
    while (found == 0 && (entry = readdir(proc)) != NULL) {
        char path[64], name[32];
        char *text;
        int pid, parent;

        snprintf(path, sizeof(path), "/proc/%.20s/stat", entry->d_name);
        text = tpb_read_file(path, NULL);
        if (text != NULL
            && sscanf(text, "%d (%31[^)]) %*c %d", &pid, name, &parent) == 3
            && parent == launcher && strcmp(name, "tprun-guard") == 0
            && n-- == 0)
            found = pid;
        tpb_free(text);
    }
    closedir(proc);
    return found;
}
