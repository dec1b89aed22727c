/* SPDX-License-Identifier: BSD-3-Clause */
/* Which bootstrap, and the one for a process that nobody launched. */
#include "config.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/door.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"
#include "runtime/core.h"

TPB_LOG_COMPONENT("bootstrap");

/* ---- alone -------------------------------------------------------------- */

static tp_status single_publish(struct tpr_bootstrap *bootstrap,
                                const void *blob, size_t length,
                                struct tpb_error *error)
{
    (void)bootstrap;
    (void)blob;
    (void)length;
    (void)error;
    return TP_OK;
}

static void single_fetch(struct tpr_bootstrap *bootstrap, int rank)
{
    tpr_card_arrived(bootstrap->context, rank, TP_ERR_NOT_FOUND, NULL, 0,
                     "this process was not launched: it is alone");
}

static void single_abort(struct tpr_bootstrap *bootstrap, int code,
                         const char *reason)
{
    fprintf(stderr, "tp: rank %d aborted%s%s\n", bootstrap->rank,
            *reason != '\0' ? ": " : "", reason);
    _exit(code);
}

static void single_close(struct tpr_bootstrap *bootstrap)
{
    tpb_free(bootstrap);
}

static const struct tpr_bootstrap_ops single_ops = {
    .name = "single",
    .publish = single_publish,
    .fetch = single_fetch,
    .abort = single_abort,
    .close = single_close,
};

tp_status tpr_bootstrap_single(struct tpr_bootstrap **result,
                               struct tpb_error *error)
{
    struct tpr_bootstrap *bootstrap = tpb_zalloc(sizeof(*bootstrap));

    if (bootstrap == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    bootstrap->ops = &single_ops;
    bootstrap->size = bootstrap->local_size = 1;
    snprintf(bootstrap->job, sizeof(bootstrap->job), "single");
    *result = bootstrap;
    return TP_OK;
}

/* ---- which -------------------------------------------------------------- */

/* Hydra and old Slurm speak PMI-1 or 2, not PMIx: every rank would believe
 * that it is alone. */
static void bootstrap_warn_alone(void)
{
    const char *size = getenv("PMI_SIZE");

    if (size != NULL && atoi(size) > 1)
        tpb_warn("launched as one of %s ranks, but not by a PMIx launcher:"
                 " this rank is on its own (use tprun, srun --mpi=pmix,"
                 " prterun or Open MPI's mpirun)", size);
}

/* The program that started `pid`, and that one's name; 0: not to be told. */
static pid_t bootstrap_parent(pid_t pid, char name[16])
{
    char path[32], *text, *open, *close;
    int parent = 0;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    text = tpb_read_file(path, NULL);
    open = text != NULL ? strchr(text, '(') : NULL;
    close = open != NULL ? strrchr(open, ')') : NULL;
    if (close != NULL && sscanf(close + 1, " %*c %d", &parent) == 1) {
        *close = '\0';
        snprintf(name, 16, "%s", open + 1);
    }
    tpb_free(text);
    return (pid_t)parent;
}

/* A rank whose whole environment is gone cannot know which one it is. */
static void bootstrap_warn_cleared(void)
{
    enum { GENERATIONS = 32 };
    char name[16] = "";
    pid_t pid = getpid(), parent;

    if (getenv("PMIX_NAMESPACE") != NULL)
        return;
    for (int i = 0; i < GENERATIONS && pid > 1; i++, pid = parent) {
        parent = bootstrap_parent(pid, name);
        if (strcmp(name, "tprun") != 0 && strcmp(name, "lt-tprun") != 0)
            continue;
        tpb_warn("tprun (pid %d) started this process, but its environment"
                 " was cleared on the way (env -i, sudo?), so it is on its own:"
                 " pass on PMIX_* and TP_* (sudo --preserve-env);"
                 " TP_BOOTSTRAP=single says that this is meant", (int)pid);
        return;
    }
}

/* PMIx speaks TCP with tprun: from another network namespace that cannot be,
 * and libpmix would complain about it. */
static bool bootstrap_is_apart(const struct tpb_settings *settings)
{
    const char *job = getenv("PMIX_NAMESPACE");
    struct tpb_door door;

    return job != NULL
           && tpb_door_of_job(settings->text[TPB_SET_DOOR], job, &door)
           && tpb_door_apart(&door);
}

/* Programs that our ranks start under other launchers inherit the variables,
 * and so would those of another tprun: hence the look at the name. */
static bool bootstrap_is_tprun(const struct tpb_settings *settings)
{
    const char *job = getenv("PMIX_NAMESPACE");
    struct tpb_door door;

    return job != NULL
           && tpb_door_of_job(settings->text[TPB_SET_DOOR], job, &door);
}

/* Open MPI 4 does not know tprun's PMIx server: its MPI_Init() starts one for
 * this process alone, and names that one in the environment. */
static void bootstrap_warn_singleton(const struct tpb_settings *settings)
{
    const char *how = getenv("OMPI_MCA_ess");

    if (how == NULL || strcmp(how, "singleton") != 0
        || settings->text[TPB_SET_DOOR][0] == '\0'
        || bootstrap_is_tprun(settings))
        return;
    tpb_warn("Open MPI's MPI_Init() does not know tprun and has made this rank"
             " a job of its own: start the program with mpirun, or call"
             " tp_init() before MPI_Init()");
}

/* Is this process one of tprun's?  One that lost what tprun told it, by a
 * program in between that handed on less, asks for it: tprun knows its jobs by
 * names that cannot be guessed. */
static bool bootstrap_of_tprun(tp_context *context)
{
    struct tpb_settings *settings = &context->settings;
    const char *job = getenv("PMIX_NAMESPACE");
    char text[TPB_DOOR_TEXT];

    if (bootstrap_is_tprun(settings))
        return true;
    return job != NULL && strncmp(job, "tprun-", 6) == 0
           && tpb_door_ask(job, text, sizeof(text))
           && tpb_settings_set(settings, TPB_SET_DOOR, text, NULL) == TP_OK;
}

/* How many contexts this process has made; a child that was forked is another
 * program, and begins anew. */
static struct {
    pthread_mutex_t lock;
    uint32_t contexts;
    pid_t owner;
} bootstrap_made = { .lock = PTHREAD_MUTEX_INITIALIZER };

static uint32_t bootstrap_number(void)
{
    uint32_t number;

    pthread_mutex_lock(&bootstrap_made.lock);
    if (bootstrap_made.owner != getpid())
        bootstrap_made.contexts = 0;
    bootstrap_made.owner = getpid();
    number = bootstrap_made.contexts++;
    pthread_mutex_unlock(&bootstrap_made.lock);
    return number;
}

/* There was none: tp_init() failed.  Unless another thread has made the next
 * one meanwhile. */
static void bootstrap_give_back(uint32_t number)
{
    pthread_mutex_lock(&bootstrap_made.lock);
    if (bootstrap_made.contexts == number + 1)
        bootstrap_made.contexts = number;
    pthread_mutex_unlock(&bootstrap_made.lock);
}

/* PMIx was the second way, and what kept from the first is half of it. */
static void bootstrap_neither(struct tpb_error *error, const char *denied)
{
    struct tpb_error pmix = *error;

    tpb_fail(error, TP_OK, "%.200s; and without it %.300s", denied, pmix.text);
}

/* Under tprun its door is the shorter way; `door` asks for it. */
static tp_status bootstrap_join(const struct tpb_settings *settings,
                                tp_context *context, bool door,
                                uint32_t number,
                                struct tpr_bootstrap **bootstrap,
                                struct tpb_error *error)
{
    bool ours = bootstrap_of_tprun(context);
    bool apart = bootstrap_is_apart(settings), denied = false;
    struct tpb_error why = { "" };
    tp_status status = TP_ERR_NOT_FOUND;

    if (door && ours) {
        status = tpr_bootstrap_door(settings, context, number, bootstrap,
                                    &why);
        if (status == TP_ERR_UNREACHABLE)
            denied = true;
        else if (status != TP_ERR_NOT_FOUND)
            return tpb_fail(error, status, "%s", why.text);
    }
    if (!apart) {
        status = tpr_bootstrap_pmix(settings, context, number, bootstrap,
                                    error);
        if (status != TP_ERR_NOT_FOUND) {
            if (status != TP_OK && denied)
                bootstrap_neither(error, why.text);
            return status;
        }
    }
    status = tpr_bootstrap_door(settings, context, number, bootstrap, &why);
    if (status == TP_ERR_UNREACHABLE)
        status = TP_ERR_NOT_FOUND;
    /* What libpmix said tells more, if it was asked. */
    if (status != TP_OK && (apart || status != TP_ERR_NOT_FOUND))
        tpb_fail(error, status, "%s", why.text);
    return status;
}

static tp_status bootstrap_launched(const struct tpb_settings *settings,
                                    tp_context *context, bool door,
                                    struct tpr_bootstrap **bootstrap,
                                    struct tpb_error *error)
{
    uint32_t number = bootstrap_number();
    tp_status status = bootstrap_join(settings, context, door, number,
                                      bootstrap, error);

    if (status == TP_OK)
        (*bootstrap)->number = number + 1;
    else
        bootstrap_give_back(number);
    return status;
}

/* tprun, whose PID its jobs' names begin with, and its PMIx server speak with
 * processes of their own user only; its door with all that know TP_DOOR. */
static void bootstrap_warn_unreached(void)
{
    const char *rank = getenv("PMIX_RANK"), *job = getenv("PMIX_NAMESPACE");
    char why[128] = "another network namespace, or is the job over?";
    char path[32];
    struct stat about;
    int pid;

    if (sscanf(job, "tprun-%d-", &pid) == 1) {
        snprintf(path, sizeof(path), "/proc/%d", pid);
        if (stat(path, &about) == 0 && about.st_uid != geteuid())
            snprintf(why, sizeof(why), "tprun is user %d's, this process user"
                     " %d's, and TP_DOOR was not passed on",
                     (int)about.st_uid, (int)geteuid());
    }
    tpb_warn("launched as rank %s of job %s, but its PMIx server cannot be"
             " reached (%s): this process is on its own; TP_BOOTSTRAP=single"
             " says that this is meant", rank != NULL ? rank : "?", job, why);
}

static tp_status bootstrap_auto(const struct tpb_settings *settings,
                                tp_context *context,
                                struct tpr_bootstrap **bootstrap,
                                struct tpb_error *error)
{
    if (getenv("PMIX_NAMESPACE") != NULL) {
        tp_status status;

        bootstrap_warn_singleton(settings);
        status = bootstrap_launched(settings, context, true, bootstrap, error);
        if (status != TP_ERR_NOT_FOUND)
            return status;
        bootstrap_warn_unreached();
    }
    bootstrap_warn_alone();
    bootstrap_warn_cleared();
    return tpr_bootstrap_single(bootstrap, error);
}

tp_status tpr_bootstrap_open(const struct tpb_settings *settings,
                             tp_context *context,
                             struct tpr_bootstrap **bootstrap,
                             struct tpb_error *error)
{
    const char *way = settings->text[TPB_SET_BOOTSTRAP];
    tp_status status;

    if (strcmp(way, "auto") == 0)
        status = bootstrap_auto(settings, context, bootstrap, error);
    else if (strcmp(way, "pmix") == 0)
        status = bootstrap_launched(settings, context, false, bootstrap,
                                    error);
    else if (strcmp(way, "single") == 0)
        status = tpr_bootstrap_single(bootstrap, error);
    else if (strncmp(way, "dir:", 4) == 0 && way[4] != '\0')
        status = tpr_bootstrap_directory(settings, way + 4, bootstrap, error);
    else
        status = tpb_fail(error, TP_ERR_INVALID,
                          "TP_BOOTSTRAP=%s: expected %s", way,
                          tpb_setting_table[TPB_SET_BOOTSTRAP].values);
    if (status == TP_OK && (*bootstrap)->context == NULL)
        (*bootstrap)->context = context;
    return status;
}

tp_status tpr_bootstrap_publish(struct tpr_bootstrap *bootstrap,
                                const void *blob, size_t length,
                                struct tpb_error *error)
{
    tp_status status = bootstrap->ops->publish(bootstrap, blob, length, error);

    if (status == TP_OK)
        bootstrap->published = true;
    return status;
}

void tpr_bootstrap_close(struct tpr_bootstrap *bootstrap)
{
    uint32_t number = bootstrap->published ? 0 : bootstrap->number;

    bootstrap->ops->close(bootstrap);
    if (number > 0)
        bootstrap_give_back(number - 1);
}
