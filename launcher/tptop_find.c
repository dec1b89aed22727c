/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds the record of a job among the descriptors of its tprun. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/tptop.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

/* Opens the record that the process has; -1 with errno, ENOENT if it has
 * none. */
static int find_record(pid_t pid)
{
    char folder[64], path[320], name[64];
    struct dirent *entry;
    int fd = -1, code = ENOENT;
    DIR *fds;

    snprintf(folder, sizeof(folder), "/proc/%d/fd", (int)pid);
    fds = opendir(folder);
    if (fds == NULL)
        return -1;
    while (fd < 0 && (entry = readdir(fds)) != NULL) {
        ssize_t got;

        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        got = readlink(path, name, sizeof(name) - 1);
        name[got > 0 ? got : 0] = '\0';
        if (strcmp(name, "/memfd:" TPB_RECORD_NAME " (deleted)") != 0)
            continue;
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            code = errno;
    }
    closedir(fds);
    errno = code;
    return fd;
}

/* Is that process a tprun?  By its name, which its guard does not have. */
static bool find_is_tprun(const char *pid)
{
    char path[64], *text;
    bool is;

    snprintf(path, sizeof(path), "/proc/%.20s/comm", pid);
    text = tpb_read_file(path, NULL);
    is = text != NULL && (strcmp(text, "tprun\n") == 0
                          || strcmp(text, "lt-tprun\n") == 0);
    tpb_free(text);
    return is;
}

/* How many jobs are listed to choose from: what a text of an error holds. */
enum { FIND_LISTED = 32 };

/* The only tprun with a record that we may read. */
static tp_status find_only(pid_t *pid, struct tpb_error *error)
{
    DIR *proc = opendir("/proc");
    struct tpb_text list = { 0 };
    struct dirent *entry;
    int count = 0;

    if (proc == NULL)
        return tpb_fail_errno(error, errno, "/proc");
    while ((entry = readdir(proc)) != NULL) {
        pid_t candidate = (pid_t)strtol(entry->d_name, NULL, 10);
        int fd;

        if (candidate <= 0 || !find_is_tprun(entry->d_name))
            continue;
        fd = find_record(candidate);
        if (fd < 0)
            continue;
        tpb_close(&fd);
        *pid = candidate;
        if (count < FIND_LISTED)
            tpb_text_add(&list, "%s%d", count > 0 ? ", " : "", (int)candidate);
        count++;
    }
    closedir(proc);
    if (count == 0)
        tpb_fail(error, TP_ERR_NOT_FOUND, "no job that you started with tprun "
                 "runs here");
    else if (count > 1)
        tpb_fail(error, TP_ERR_NOT_FOUND, "there are %d jobs; choose one: "
                 "tptop PID, where PID is one of %.300s%s", count,
                 list.text != NULL ? list.text : "",
                 count > FIND_LISTED ? ", ..." : "");
    tpb_text_fini(&list);
    return count == 1 ? TP_OK : TP_ERR_NOT_FOUND;
}

tp_status tptop_find(pid_t *pid, struct tpb_record *record,
                     struct tpb_error *error)
{
    tp_status status;
    struct stat self;
    int fd;

    if (lstat("/proc/self", &self) < 0)
        return tpb_fail(error, TP_ERR_NOT_FOUND, "jobs are found in /proc,"
                        " which is not mounted here");
    status = *pid == 0 ? find_only(pid, error) : TP_OK;
    if (status != TP_OK)
        return status;
    fd = find_record(*pid);
    if (fd < 0 && errno == EACCES)
        return tpb_fail(error, TP_ERR_DENIED, "process %d belongs to another "
                        "user: run tptop as that user, or as root",
                        (int)*pid);
    if (fd < 0)
        return tpb_fail(error, TP_ERR_NOT_FOUND, "process %d is not a tprun "
                        "with a job on this machine", (int)*pid);
    status = tpb_record_open(fd, record, error);
    tpb_close(&fd);
    return status;
}
