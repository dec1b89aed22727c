/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tprun: starts the ranks of a job on this machine, is their PMIx server, and
 * leaves nothing behind.  This file is the order of things.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "launcher/door.h"
#include "launcher/engine.h"
#include "launcher/guard.h"
#include "launcher/input.h"
#include "launcher/iof.h"
#include "launcher/job.h"
#include "launcher/options.h"
#include "launcher/orphans.h"
#include "launcher/pmix_server.h"
#include "launcher/signals.h"
#include "launcher/spawn.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"

enum {
    TPRUN_EXIT_USAGE = 2,
    TPRUN_FDS_PER_RANK = 3,        /* two pipes, one PMIx connection */
    TPRUN_FDS_OWN = 64
};

static struct tprun {
    struct tpl_options options;
    char program[PATH_MAX];
    char name[64];                 /* of the job: the PMIx namespace */
    struct rlimit files;           /* RLIMIT_NOFILE as tprun got it */
    struct tpb_settings settings;
    struct tpt_topology *topology;
    int topology_fd;
    struct tpt_bind_plan plan;
    char **environment;
    struct tpl_loop loop;
    struct tpl_iof *iof;
    struct tpl_watch signals;
    struct tpl_job job;
} tprun = { .topology_fd = -1, .loop.epoll = -1, .signals.fd = -1 };

/* One line on standard error, before ranks exist. */
static int tprun_refuse(int status, const struct tpb_error *error)
{
    dprintf(STDERR_FILENO, "tprun: %s\n", error->text);
    return status;
}

/* Descriptors 0, 1, 2 must be taken, or pipes would get these numbers. */
static void tprun_fill_standard(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

static tp_status tprun_limits(struct tpb_error *error)
{
    struct rlimit limit;
    rlim_t need = (rlim_t)tprun.options.ranks * TPRUN_FDS_PER_RANK
                  + TPRUN_FDS_OWN;

    if (getrlimit(RLIMIT_NOFILE, &tprun.files) < 0)
        return tpb_fail_errno(error, errno, "RLIMIT_NOFILE");
    limit = tprun.files;
    limit.rlim_cur = limit.rlim_max;
    if (limit.rlim_max < need)
        return tpb_fail(error, TP_ERR_SYSTEM,
                        "%d ranks need %llu file descriptors, the hard limit "
                        "is %llu (ulimit -Hn)", tprun.options.ranks,
                        (unsigned long long)need,
                        (unsigned long long)limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
    return TP_OK;
}

/* The name tells whose job it is, and cannot be guessed. */
static void tprun_name_job(void)
{
    uint64_t number;

    tpb_random(&number, sizeof(number));
    snprintf(tprun.name, sizeof(tprun.name), "tprun-%d-%016llx",
             (int)getpid(), (unsigned long long)number);
}

/* What needs the topology: its copy for the ranks, and who runs where. */
static tp_status tprun_survey(struct tpb_error *error)
{
    char shared[64], cpus[16];
    struct tpt_place place;
    tp_status status = tpt_topology_load(&tprun.settings, &tprun.topology,
                                         error);

    if (status != TP_OK)
        return status;
    /* Without it every rank looks for itself: slower, not wrong. */
    if (tpt_topology_share(tprun.topology, &tprun.topology_fd, shared,
                           NULL) == TP_OK)
        setenv("TP_TOPOLOGY_SHARED", shared, 1);
    /* A rank that is bound cannot see what all of them have. */
    tpt_topology_place(tprun.topology, &place);
    snprintf(cpus, sizeof(cpus), "%u", place.cpus);
    setenv("TP_CPUS", cpus, 1);
    return tpt_bind_plan(tprun.topology, tprun.options.bind,
                         tprun.options.ranks, &tprun.plan, error);
}

static tp_status tprun_prepare(struct tpb_error *error)
{
    tp_status status;
    char launcher[64];

    /* For libpmix's threads, which inherit the mask; until there are ranks
     * signals may end this process as any other. */
    tpl_signals_block();
    status = tpl_pmix_start(tprun.name, error);
    tpl_signals_unblock();
    if (status == TP_OK)
        status = tprun_survey(error);
    if (status == TP_OK)
        status = tpl_pmix_register(&tprun.plan, error);
    snprintf(launcher, sizeof(launcher), "%s:%d", PACKAGE_VERSION,
             (int)getpid());
    setenv("TP_LAUNCHER", launcher, 1);
    tpl_door_open(tprun.options.ranks);
    if (status == TP_OK)
        status = tpl_pmix_environment(&tprun.environment, error);
    if (status == TP_OK)
        status = tpl_loop_init(&tprun.loop, error);
    if (status == TP_OK)
        status = tpl_iof_new(&tprun.loop, tprun.options.ranks,
                             tprun.options.tag, error, &tprun.iof);
    return status;
}

static void tprun_signalled(struct tpl_watch *watch, uint32_t events)
{
    int signal;

    (void)events;
    while ((signal = tpl_signals_next(watch->fd)) != 0)
        if (signal == SIGCHLD)
            tpl_job_reap(&tprun.job);
        else
            tpl_job_signal(&tprun.job, signal);
}

static void tprun_event(const struct tpl_pmix_event *event, void *arg)
{
    (void)arg;
    tpl_job_event(&tprun.job, event);
}

static tp_status tprun_watch(struct tpb_error *error)
{
    struct tpl_rank *ranks = tpb_array((size_t)tprun.options.ranks,
                                       sizeof(*ranks));

    if (ranks == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    tpl_signals_block();
    tpl_job_init(&tprun.job, &tprun.options, &tprun.loop, tprun.iof, ranks);
    tprun.signals = (struct tpl_watch){ tpl_signals_open(), 0,
                                        tprun_signalled };
    if (tprun.signals.fd < 0
        || tpl_watch_set(&tprun.loop, &tprun.signals, EPOLLIN) < 0)
        return tpb_fail_errno(error, errno, "cannot watch for signals");
    tpl_guard_watch(&tprun.loop);
    tpl_pmix_watch(&tprun.loop, tprun_event, NULL);
    tpl_door_watch(&tprun.loop, tprun_event);
    return TP_OK;
}

static void tprun_say_started(int rank, pid_t pid)
{
    const struct tpt_bind_place *place = &tprun.plan.places[rank];

    if (tprun.options.verbose)
        tpl_iof_say(tprun.iof, "rank %d is pid %d, %s cpus %s", rank,
                    (int)pid, place->cpus != NULL ? "bound to" : "free on",
                    place->list);
}

/* Starts one rank; on failure the job is ending afterwards. */
static void tprun_start(int rank, int in)
{
    struct tpb_error error = { "" };
    struct tpl_spawn spawn = {
        .path = tprun.program, .argv = tprun.options.program,
        .environment = tprun.environment, .rank = rank, .in = in,
        .cpus = tprun.plan.places[rank].cpus,
        .cpus_size = tprun.plan.cpus_size, .files = &tprun.files,
    };
    bool executing;
    pid_t pid;
    int code;

    if (tpl_iof_open(tprun.iof, rank, &spawn.out, &spawn.err,
                     &error) != TP_OK) {
        tpl_job_end(&tprun.job, 1, "%s", error.text);
        return;
    }
    tpl_pmix_set_rank(rank);
    tpl_door_next(spawn.doors);
    code = tpl_spawn(&spawn, &pid, &executing);
    tpb_close(&spawn.out);
    tpb_close(&spawn.err);
    if (code == 0) {
        tpl_job_started(&tprun.job, rank, pid);
        tprun_say_started(rank, pid);
    } else if (executing) {
        int status = tpl_spawn_explain(tprun.program, code, &error);

        tpl_job_end(&tprun.job, status, "%s", error.text);
    } else {
        tpl_job_end(&tprun.job, 1, "cannot start rank %d of %d: %s%s", rank,
                    tprun.options.ranks, strerror(code), code == EAGAIN
                    ? "; the limit of processes (ulimit -u, pids cgroup) is "
                    "reached" : "");
    }
}

static tp_status tprun_start_all(struct tpb_error *error)
{
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC), input;
    tp_status status;

    if (nothing < 0)
        return tpb_fail_errno(error, errno, "/dev/null");
    status = tpl_input_open(&tprun.loop, &input, error);
    for (int i = 0; status == TP_OK && i < tprun.options.ranks
         && tprun.job.phase == TPL_RUNNING; i++)
        tprun_start(i, i == 0 ? input : nothing);
    close(nothing);
    if (input != STDIN_FILENO)
        close(input);
    return status;
}

/* From the first rank to the last line of output. */
static int tprun_run(void)
{
    struct tpb_error error = { "" };

    tpl_job_begin(&tprun.job);
    tpl_job_step(&tprun.job);
    while (tprun.job.phase != TPL_DONE) {
        if (tpl_loop_turn(&tprun.loop, &error) != TP_OK)
            return tprun_refuse(1, &error);
        tpl_job_step(&tprun.job);
    }
    if (tprun.job.status == 0 && tpl_iof_lost(tprun.iof) != 0)
        return 1;
    return tprun.job.status;
}

/* Everything but libpmix, whose ways to end itself can hang; it has nothing
 * outside this process. */
static void tprun_clean_up(void)
{
    tpl_job_fini(&tprun.job);
    tpl_input_close();
    tpl_iof_free(tprun.iof);
    tpl_guard_stop();
    tpl_door_close(&tprun.loop);
    tpl_watch_close(&tprun.loop, &tprun.signals);
    tpl_loop_fini(&tprun.loop);
    tpt_bind_plan_fini(&tprun.plan);
    tpb_close(&tprun.topology_fd);
    tpt_topology_free(tprun.topology);
    tpb_settings_fini(&tprun.settings);
    tpb_free(tprun.job.ranks);
}

static int tprun_help(void)
{
    struct tpb_text text = { 0 };
    int status;

    if (tprun.options.version)
        tpb_text_add(&text, "tprun (tp) %s, with %s\n", PACKAGE_VERSION,
                     tpl_pmix_version());
    else
        tpl_options_help(&text);
    status = text.failed || tpb_write_all(STDOUT_FILENO, text.text,
                                          text.length) < 0;
    tpb_text_fini(&text);
    return status;
}

static int tprun_enter(struct tpb_error *error)
{
    if (tprun.options.wdir != NULL && chdir(tprun.options.wdir) < 0) {
        tpb_fail_errno(error, errno, "--wdir %s", tprun.options.wdir);
        return TPRUN_EXIT_USAGE;
    }
    return 0;
}

/* Is the job another engine's, or not to be run at all?  Then it is done
 * here. */
static bool tprun_by_engine(int *status)
{
    struct tpb_error error = { "" };
    struct tpl_engine_plan plan;
    tp_status planned = tpl_engine_plan(&tprun.options, &plan, &error);
    bool done = true;

    if (planned != TP_OK)
        *status = tprun_refuse(TPRUN_EXIT_USAGE, &error);
    else if (tprun.options.dry_run)
        *status = tpl_engine_show(&plan, &tprun.options);
    else if (plan.engine != TPL_ENGINE_LOCAL)
        *status = tpl_engine_run(&plan, &tprun.options);
    else
        done = false;
    tpl_engine_plan_fini(&plan);
    if (!done)
        return false;
    tpb_settings_fini(&tprun.settings);
    if (*status < 0)
        tpl_signals_die(-*status);
    return true;
}

int main(int argc, char **argv)
{
    struct tpb_error error = { "" };
    int status;

    tprun_fill_standard();
    if (tpl_options_parse(argc, argv, &tprun.options, &error) != TP_OK)
        return tprun_refuse(TPRUN_EXIT_USAGE, &error);
    if (tprun.options.help || tprun.options.version)
        return tprun_help();
    tpl_signals_init();
    tpb_log_name("tprun");
    if (tpb_settings_load(&tprun.settings, &error) != TP_OK)
        return tprun_refuse(TPRUN_EXIT_USAGE, &error);
    status = tprun_enter(&error);
    if (status != 0)
        return tprun_refuse(status, &error);
    if (tprun_by_engine(&status))
        return status;
    status = tpl_spawn_find(tprun.options.program[0], tprun.program, &error);
    if (status != 0)
        return tprun_refuse(status, &error);
    tprun_name_job();
    if (tpl_guard_start(tprun.name, tprun.options.ranks, &error) != TP_OK)
        return tprun_refuse(1, &error);
    tpl_orphans_adopt();
    if (tprun_limits(&error) != TP_OK || tprun_prepare(&error) != TP_OK
        || tprun_watch(&error) != TP_OK
        || tprun_start_all(&error) != TP_OK)
        status = tprun_refuse(1, &error);
    else
        status = tprun_run();
    tprun_clean_up();
    if (tprun.job.signal == SIGINT)
        tpl_signals_die(SIGINT);
    /* Not exit(): libpmix's threads still run. */
    _exit(status);
}
