/* SPDX-License-Identifier: BSD-3-Clause */
/* Fork and exec of one rank. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/guard.h"
#include "launcher/signals.h"
#include "launcher/spawn.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

/* 0 if the file can be run, else an errno; EISDIR for a directory. */
static int spawn_check(const char *path)
{
    struct stat file;

    if (stat(path, &file) < 0)
        return errno;
    if (S_ISDIR(file.st_mode))
        return EISDIR;
    if (!S_ISREG(file.st_mode))
        return EACCES;
    /* By effective ids, as exec does. */
    return faccessat(AT_FDCWD, path, X_OK, AT_EACCESS) < 0 ? errno : 0;
}

enum { SPAWN_LINE = 256 };

/* What a script's first line names; NULL: it is none. */
static char *spawn_interpreter(const char *path, char line[SPAWN_LINE])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *name = line + 2;

    memset(line, 0, SPAWN_LINE);
    if (fd < 0 || read(fd, line, SPAWN_LINE - 1) < 2
        || memcmp(line, "#!", 2) != 0)
        name = NULL;
    tpb_close(&fd);
    if (name == NULL)
        return NULL;
    name += strspn(name, " \t");
    name[strcspn(name, " \t\n")] = '\0';
    return name;
}

/* Editors of other systems end that line with a carriage return, which is then
 * a part of the name. */
static void spawn_explain_script(const char *path, struct tpb_error *error)
{
    char line[SPAWN_LINE], *name = spawn_interpreter(path, line);
    const char *remedy = "";
    bool there = false;

    if (name != NULL) {
        if (strchr(name, '\r') != NULL)
            remedy = ", as its first line ends with a carriage return; "
                     "dos2unix removes them";
        there = access(name, F_OK) == 0;
        name[strcspn(name, "\r")] = '\0';
    }
    if (there)
        tpb_fail(error, TP_ERR_NOT_FOUND, "%s: its interpreter %s needs one, "
                 "or a loader, that does not exist", path, name);
    else
        tpb_fail(error, TP_ERR_NOT_FOUND, "%s: the interpreter or loader that "
                 "it asks for does not exist%s%s%s", path, name != NULL ? ": "
                 : "", name != NULL ? name : "", remedy);
}

/* The file itself, a folder above it, or what is to run it? */
static void spawn_explain_denied(const char *path, struct tpb_error *error)
{
    char line[SPAWN_LINE], *name;
    struct stat file;

    if (stat(path, &file) < 0 && errno == EACCES) {
        tpb_fail(error, TP_ERR_DENIED, "%s: no permission to enter the folder "
                 "that it is in, or one above", path);
        return;
    }
    if (spawn_check(path) != 0) {
        tpb_fail(error, TP_ERR_DENIED, "%s: no permission to run it; "
                 "chmod +x may help, or its file system is mounted noexec",
                 path);
        return;
    }
    name = spawn_interpreter(path, line);
    if (name != NULL && spawn_check(name) != 0)
        tpb_fail(error, TP_ERR_DENIED, "%s: no permission to run its "
                 "interpreter, %s", path, name);
    else
        tpb_fail(error, TP_ERR_DENIED, "%s: no permission to run it, though "
                 "its mode allows that; its loader may lack execute permission,"
                 " or a security module (SELinux, AppArmor) forbids it", path);
}

int tpl_spawn_explain(const char *path, int code, struct tpb_error *error)
{
    switch (code) {
    case ENOENT:
        if (access(path, F_OK) == 0)
            spawn_explain_script(path, error);
        else
            tpb_fail(error, TP_ERR_NOT_FOUND, "%s: no such program%s", path,
                     strchr(path, '/') == NULL ? " in PATH" : "");
        return TPL_EXIT_NOT_FOUND;
    case ENOTDIR:
        tpb_fail(error, TP_ERR_NOT_FOUND, "%s: no such program", path);
        return TPL_EXIT_NOT_FOUND;
    case EISDIR:
        tpb_fail(error, TP_ERR_INVALID, "%s is a directory, not a program",
                 path);
        break;
    case EACCES:
        spawn_explain_denied(path, error);
        break;
    case ENOEXEC:
        tpb_fail(error, TP_ERR_INVALID, "%s: not a program for this machine; "
                 "a script needs a first line such as #!/bin/sh", path);
        break;
    default:
        tpb_fail_errno(error, code, "%s: cannot run it", path);
    }
    return TPL_EXIT_NOT_RUN;
}

/* Looks through `place`, or PATH if NULL.  If nothing is found, EACCES if there
 * is a file that may not be run, whose path is written then; else ENOENT. */
static int spawn_search(const char *name, const char *place,
                        char path[PATH_MAX])
{
    char part[PATH_MAX];
    struct stat file;
    int result = ENOENT;

    if (place == NULL)
        place = getenv("PATH");
    if (place == NULL)
        place = "/usr/local/bin:/usr/bin:/bin";
    for (;;) {
        size_t length = strcspn(place, ":");
        int code;

        if (snprintf(part, PATH_MAX, "%.*s%s%s", (int)length, place,
                     length > 0 ? "/" : "./", name) < PATH_MAX) {
            code = spawn_check(part);
            /* Not executable here; perhaps it is further on.  In a folder that
             * may not be entered, as after su(1), there is rather nothing. */
            if (code == 0
                || (code == EACCES && result == ENOENT
                    && stat(part, &file) == 0)) {
                strcpy(path, part);
                result = code;
            }
            if (code == 0)
                return 0;
        }
        place += length;
        if (*place++ == '\0')
            break;
    }
    return result;
}

/* As tpl_spawn_find(), in `place` instead of PATH if that is not NULL. */
static int spawn_find(const char *name, const char *place,
                      char path[PATH_MAX], struct tpb_error *error)
{
    int code;

    if (*name == '\0') {
        tpb_fail(error, TP_ERR_NOT_FOUND, "the program's name is empty");
        return TPL_EXIT_NOT_FOUND;
    }
    if (strchr(name, '/') == NULL) {
        code = spawn_search(name, place, path);
        if (code == 0)
            return 0;
        if (code == ENOENT && spawn_check(name) == EISDIR)
            code = EISDIR;
        if (code == ENOENT && access(name, F_OK) == 0) {
            tpb_fail(error, TP_ERR_NOT_FOUND, "%s: no such program in PATH; "
                     "write ./%s for the one here", name, name);
            return TPL_EXIT_NOT_FOUND;
        }
        return tpl_spawn_explain(code == EACCES ? path : name, code, error);
    }
    if (strlen(name) >= PATH_MAX)
        return tpl_spawn_explain("the program", ENAMETOOLONG, error);
    strcpy(path, name);
    code = spawn_check(name);
    return code == 0 ? 0 : tpl_spawn_explain(name, code, error);
}

int tpl_spawn_find(const char *name, char path[PATH_MAX],
                   struct tpb_error *error)
{
    return spawn_find(name, NULL, path, error);
}

char *tpl_spawn_find_in(const char *wdir, const char *place, const char *name,
                        int *status, struct tpb_error *error)
{
    int here = -1;
    char path[PATH_MAX], *copy = NULL;

    if (wdir != NULL) {
        /* It need not be readable. */
        here = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (here < 0) {
            *status = 1;
            tpb_fail_errno(error, errno, "--wdir %s: the current folder",
                           wdir);
            return NULL;
        }
        if (chdir(wdir) < 0) {
            *status = TPL_EXIT_USAGE;
            tpb_fail_errno(error, errno, "--wdir %s: cannot go there", wdir);
            tpb_close(&here);
            return NULL;
        }
    }
    *status = spawn_find(name, place, path, error);
    if (*status == TPL_EXIT_NOT_FOUND && wdir != NULL && name[0] != '/'
        && strchr(name, '/') != NULL)
        tpb_fail(error, TP_ERR_NOT_FOUND, "%s: no such program in --wdir %s, "
                 "where its path begins", name, wdir);
    if (wdir != NULL && fchdir(here) < 0 && *status == 0) {
        *status = 1;
        tpb_fail_errno(error, errno, "cannot go back from --wdir %s", wdir);
    }
    tpb_close(&here);
    if (*status == 0)
        copy = tpb_copy_string(path);
    if (*status == 0 && copy == NULL) {
        *status = 1;
        tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    }
    return copy;
}

/* Moves a descriptor to its place; dup2 onto itself would keep it
 * close-on-exec. */
static int spawn_place(int fd, int place)
{
    if (fd != place)
        return dup2(fd, place);
    return fcntl(fd, F_SETFD, 0);
}

/*
 * The child, up to exec.  It shares the launcher's memory (vfork), so it calls
 * the kernel only and leaves every variable alone.
 */
static void spawn_child(const struct tpl_spawn *spawn, pid_t launcher,
                        int report)
{
    int code;

    if (!spawn->terminal || setsid() < 0)
        setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher)
        _exit(128 + SIGKILL);
    tpl_guard_tell(spawn->rank, getpid());
    if (spawn->cpus != NULL)
        sched_setaffinity(0, spawn->cpus_size, spawn->cpus);
    setrlimit(RLIMIT_NOFILE, &spawn->limits->files);
    setrlimit(RLIMIT_STACK, &spawn->limits->stack);
    for (int i = 0; i < 2; i++)
        if (spawn->doors[i] >= 0)
            fcntl(spawn->doors[i], F_SETFD, 0);
    if (spawn_place(spawn->in, 0) >= 0 && spawn_place(spawn->out, 1) >= 0
        && spawn_place(spawn->err, 2) >= 0
        && (spawn->wdir == NULL || chdir(spawn->wdir) == 0)) {
        if (spawn->terminal)
            ioctl(0, TIOCSCTTY, 0);
        tpl_signals_restore();
        execve(spawn->path, spawn->argv, spawn->environment);
    }
    code = errno;
    tpb_write_all(report, &code, sizeof(code));
    _exit(TPL_EXIT_NOT_RUN);
}

/* Apart, so that nothing that lives across vfork() is in a register that the
 * child could change. */
static __attribute__((__noinline__)) pid_t
spawn_fork(const struct tpl_spawn *spawn, int report)
{
    pid_t launcher = getpid();
    pid_t pid = vfork();

    if (pid == 0)
        spawn_child(spawn, launcher, report);
    return pid;
}

int tpl_spawn(const struct tpl_spawn *spawn, pid_t *pid, bool *executing)
{
    int report[2], code = 0;

    *executing = false;
    if (pipe2(report, O_CLOEXEC) < 0)
        return errno;
    *pid = spawn_fork(spawn, report[1]);
    if (*pid < 0)
        code = errno;
    close(report[1]);
    /* Exec closes the child's end: end of file is success. */
    if (code == 0
        && read(report[0], &code, sizeof(code)) == (ssize_t)sizeof(code)) {
        *executing = true;
        waitpid(*pid, NULL, 0);
        tpl_guard_note(spawn->rank, 0);
    }
    close(report[0]);
    return code;
}
