/* SPDX-License-Identifier: BSD-3-Clause */
/* The guard: kills what is left of the job when tprun is gone. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "launcher/guard.h"
#include "launcher/orphans.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/leavings.h"

enum {
    GUARD_COUNT = 2,               /* one may be killed along with tprun */
    GUARD_SWEEPS = 100,            /* at most so many looks at /proc */
    GUARD_PAUSE = 10000000,        /* nanoseconds between two */
    GUARD_CHUNK = 65536,
    GUARD_PATH = 64,               /* "/proc/4711/task/4712/environ" */
    GUARD_WORDS = 2                /* of a rank: its group; it is gone */
};

struct guard_word {
    int rank;
    pid_t pid;
};

struct guard_process {
    pid_t pid;                     /* 0: none */
    struct tpl_watch writer;       /* fires when the reader is gone */
};

static struct {
    struct guard_process processes[GUARD_COUNT];
    int reader;                    /* while one is being made */
    struct tpl_loop *loop;
    pid_t *groups;                 /* by rank; 0: none */
    int ranks;
    char marker[320];              /* such as "PMIX_NAMESPACE=<job>" */
    size_t marker_length;
} guard = { .reader = -1 };

/*
 * From here to guard_main() the code runs in the guard, which may have been
 * forked off a process with threads: system calls and static memory only.
 */

static void guard_close_all(int keep)
{
    struct rlimit limit;

    dup2(keep, 0);
#ifdef SYS_close_range
    if (syscall(SYS_close_range, 1U, ~0U, 0U) == 0)
        return;
#endif
    getrlimit(RLIMIT_NOFILE, &limit);
    for (int fd = 1; (rlim_t)fd < limit.rlim_cur; fd++)
        close(fd);
}

/* Does the environment of that process or thread carry the job's marker?  Read
 * in chunks that overlap by the marker's length. */
static bool guard_marked(const char *path, bool *empty)
{
    static char chunk[GUARD_CHUNK];
    size_t kept = 0;
    ssize_t got;
    bool found = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    /* Of who has ended some kernels have none to open. */
    *empty = fd >= 0 || errno == ESRCH;
    if (fd < 0)
        return false;
    while (!found && (got = read(fd, chunk + kept, sizeof(chunk) - kept)) > 0) {
        size_t length = kept + (size_t)got;

        *empty = false;
        found = memmem(chunk, length, guard.marker, guard.marker_length)
                != NULL;
        kept = length < guard.marker_length ? length : guard.marker_length;
        memmove(chunk, chunk + length - kept, kept);
    }
    close(fd);
    return found;
}

/* `folder` name `rest`; snprintf may take locks, this does not. */
static bool guard_path(const char *folder, const char *name, const char *rest,
                       char path[GUARD_PATH])
{
    size_t before = strlen(folder), length = strlen(name);

    if (name[0] < '1' || name[0] > '9' || length > 12)
        return false;
    memcpy(path, folder, before);
    memcpy(path + before, name, length);
    memcpy(path + before + length, rest, strlen(rest) + 1);
    return true;
}

/* A process whose first thread has ended has its environment with the others
 * only. */
static bool guard_marked_thread(const char *name)
{
    static char entries[GUARD_CHUNK];
    char folder[GUARD_PATH], path[GUARD_PATH];
    bool found = false, empty;
    long got;
    int task = -1;

    if (guard_path("/proc/", name, "/task/", folder))
        task = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (task >= 0 && !found
           && (got = syscall(SYS_getdents64, task, entries,
                             sizeof(entries))) > 0)
        for (long at = 0; at < got && !found;) {
            struct dirent64 *entry = (void *)(entries + at);

            at += entry->d_reclen;
            found = guard_path(folder, entry->d_name, "/environ", path)
                    && guard_marked(path, &empty);
        }
    if (task >= 0)
        close(task);
    return found;
}

static bool guard_is_ours(const char *name)
{
    char path[GUARD_PATH];
    bool empty;

    if (!guard_path("/proc/", name, "/environ", path))
        return false;
    return guard_marked(path, &empty) || (empty && guard_marked_thread(name));
}

/* Kills every process that carries the marker; how many there were. */
static int guard_sweep(int proc)
{
    static char entries[GUARD_CHUNK];
    int killed = 0;
    long got;

    lseek(proc, 0, SEEK_SET);
    while ((got = syscall(SYS_getdents64, proc, entries, sizeof(entries))) > 0)
        for (long at = 0; at < got;) {
            struct dirent64 *entry = (void *)(entries + at);

            at += entry->d_reclen;
            if (guard_is_ours(entry->d_name)
                && kill((pid_t)strtol(entry->d_name, NULL, 10), SIGKILL) == 0)
                killed++;
        }
    return killed;
}

static void guard_kill(void)
{
    struct timespec pause = { 0, GUARD_PAUSE };
    int proc;

    for (int i = 0; i < guard.ranks; i++)
        if (guard.groups[i] > 0)
            kill(-guard.groups[i], SIGKILL);
    proc = tpl_orphans_hidden() ? -1
           : open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; proc >= 0 && i < GUARD_SWEEPS; i++) {
        if (guard_sweep(proc) == 0)
            break;
        /* What was just killed still shows for a moment, and may have had
         * time to fork. */
        nanosleep(&pause, NULL);
    }
    tpb_leavings_remove(guard.groups, guard.ranks);
}

/* Our own environment must not carry the marker of a job that this tprun is a
 * rank of: that job's guard would kill us before our work is done. */
static void guard_forget_environment(void)
{
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++)
        memset(*entry, 0, strlen(*entry));
}

/* Until tprun is gone.  What it says of its ranks stays in the pipe so long, if
 * there is room for all of it: to wake up for each start and end would cost a
 * job of 64 ranks 256 switches. */
static void guard_wait(void)
{
    struct pollfd gone = { .fd = 0 };      /* hang-ups only */
    long words = GUARD_WORDS * (long)guard.ranks;

    if (words * (long)sizeof(struct guard_word) > fcntl(0, F_GETPIPE_SZ))
        return;
    while (poll(&gone, 1, -1) < 0 && errno == EINTR)
        ;
}

static void guard_main(void)
{
    struct guard_word word;
    sigset_t all;
    ssize_t got;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    setsid();
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    guard_close_all(guard.reader);
    if (chdir("/") < 0)
        _exit(1);
    guard_forget_environment();
    prctl(PR_SET_NAME, "tprun-guard");     /* who has it is ready */
    guard_wait();
    while ((got = read(0, &word, sizeof(word))) != 0) {
        if (got == (ssize_t)sizeof(word) && word.rank >= 0
            && word.rank < guard.ranks)
            guard.groups[word.rank] = word.pid;
        else if (got < 0 && errno != EINTR)
            break;
    }
    guard_kill();
    _exit(0);
}

/* Here begins what runs in tprun. */

static tp_status guard_fork(struct guard_process *process,
                            struct tpb_error *error)
{
    int ends[2];
    long pid;

    if (pipe2(ends, O_CLOEXEC) < 0)
        return tpb_fail_errno(error, errno, "cannot make a pipe");
    guard.reader = ends[0];
    process->writer.fd = ends[1];
    /* Zero flags, hence no exit signal; the other arguments mean nothing
     * then, in whatever order the architecture has them. */
    pid = syscall(SYS_clone, 0L, 0L, 0L, 0L, 0L);
    if (pid == 0)
        guard_main();
    tpb_close(&guard.reader);
    if (pid < 0) {
        int code = errno;

        tpb_close(&process->writer.fd);
        return tpb_fail_errno(error, code, code == EAGAIN
                              ? "cannot start a process (see ulimit -u, and the"
                              " pids cgroup)" : code == EINVAL
                              ? "cannot start a process without an exit signal"
                              " (as under qemu-user, which cannot run tprun)"
                              : "cannot start a process");
    }
    process->pid = (pid_t)pid;
    fcntl(process->writer.fd, F_SETFL, O_NONBLOCK);
    return TP_OK;
}

tp_status tpl_guard_start(const char *name, const char *value, int ranks,
                          struct tpb_error *error)
{
    tp_status status = TP_OK;

    for (int i = 0; i < GUARD_COUNT; i++)
        guard.processes[i].writer.fd = -1;
    guard.ranks = ranks;
    guard.groups = tpb_array((size_t)ranks, sizeof(guard.groups[0]));
    if (guard.groups == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    /* With its final NUL, so that no longer name matches. */
    guard.marker_length = (size_t)snprintf(guard.marker, sizeof(guard.marker),
                                           "%s=%s", name, value) + 1;
    for (int i = 0; i < GUARD_COUNT && status == TP_OK; i++)
        status = guard_fork(&guard.processes[i], error);
    if (status != TP_OK) {
        tpl_guard_dismiss(true);
        tpl_guard_stop();
    }
    return status;
}

static void guard_watch(struct guard_process *process);

/* A guard was killed: bury it and start another, which inherits the list of
 * groups as it stands in our memory. */
static void guard_lost(struct tpl_watch *watch, uint32_t events)
{
    struct guard_process *process = TPB_CONTAINER(watch, struct guard_process,
                                                  writer);
    struct tpb_error error;

    (void)events;
    tpl_watch_close(guard.loop, watch);
    waitpid(process->pid, NULL, __WCLONE);
    process->pid = 0;
    /* Without a guard the job is as safe as PR_SET_PDEATHSIG makes it; no
     * reason to end it. */
    if (guard_fork(process, &error) == TP_OK)
        guard_watch(process);
}

static void guard_watch(struct guard_process *process)
{
    int before = guard.loop->refused;

    process->writer.ready = guard_lost;
    /* EPOLLERR comes unasked, but something must be asked for.  Who is not
     * watched is not replaced, which is no reason to end the job, either. */
    if (tpl_watch_set(guard.loop, &process->writer, EPOLLET | EPOLLERR) < 0)
        guard.loop->refused = before;
}

void tpl_guard_watch(struct tpl_loop *loop)
{
    guard.loop = loop;
    for (int i = 0; i < GUARD_COUNT; i++)
        guard_watch(&guard.processes[i]);
}

void tpl_guard_tell(int rank, pid_t pid)
{
    struct guard_word word = { rank, pid };

    /* SIGPIPE may already be deadly in a rank; a guard that is gone is not
     * its business, so the launcher restores signals after this. */
    for (int i = 0; i < GUARD_COUNT; i++)
        if (guard.processes[i].writer.fd >= 0
            && write(guard.processes[i].writer.fd, &word, sizeof(word)) < 0)
            continue;
}

void tpl_guard_note(int rank, pid_t pid)
{
    guard.groups[rank] = pid;
    if (pid == 0)
        tpl_guard_tell(rank, 0);
}

bool tpl_guard_is(pid_t pid)
{
    for (int i = 0; i < GUARD_COUNT; i++)
        if (pid > 0 && guard.processes[i].pid == pid)
            return true;
    return false;
}

void tpl_guard_dismiss(bool over)
{
    for (int i = 0; i < GUARD_COUNT; i++) {
        struct guard_process *process = &guard.processes[i];

        if (over && process->pid > 0)
            kill(process->pid, SIGKILL);
        if (guard.loop != NULL)
            tpl_watch_close(guard.loop, &process->writer);
        tpb_close(&process->writer.fd);
    }
}

void tpl_guard_stop(void)
{
    for (int i = 0; i < GUARD_COUNT; i++)
        if (guard.processes[i].pid > 0) {
            waitpid(guard.processes[i].pid, NULL, __WCLONE);
            guard.processes[i].pid = 0;
        }
    tpb_free(guard.groups);
    guard.groups = NULL;
}
