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
#include <sys/select.h>
#include <unistd.h>

#include "launcher/door.h"
#include "launcher/engine.h"
#include "launcher/guard.h"
#include "launcher/input.h"
#include "launcher/iof.h"
#include "launcher/job.h"
#include "launcher/oom.h"
#include "launcher/options.h"
#include "launcher/orphans.h"
#include "launcher/placement.h"
#include "launcher/pmix_server.h"
#include "launcher/progress.h"
#include "launcher/signals.h"
#include "launcher/spawn.h"
#include "launcher/start.h"
#include "launcher/starving.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/leavings.h"
#include "runtime/base/log.h"

enum {
    TPRUN_FDS_PER_RANK = 3,        /* two pipes, one PMIx connection */
    TPRUN_FDS_OWN = 64,
    TPRUN_FDS_PMIX = 16,           /* more than libpmix's server starts with */
    TPRUN_STACK = 1 << 20          /* libpmix takes 200 KiB of it at once */
};

static struct tprun {
    struct tpl_options options;
    bool wrong;                    /* what failed is the command line's fault */
    char host[256];
    char name[64];                 /* of the job: the PMIx namespace */
    struct tpl_limits limits;      /* as tprun got them */
    struct tpb_settings settings;
    int topology_fd, record_fd;
    struct tpb_record record;
    struct tpl_placement placement;
    char **environment;
    struct tpl_loop loop;
    struct tpl_iof *iof;
    struct tpl_watch signals;
    struct tpl_job job;
} tprun = {
    .topology_fd = -1, .record_fd = -1, .loop.epoll = -1, .signals.fd = -1,
};

/* One line on standard error, before ranks exist. */
static int tprun_refuse(int status, const struct tpb_error *error)
{
    dprintf(STDERR_FILENO, "tprun: %s\n", error->text);
    return status;
}

static tp_status tprun_limit_stack(struct tpb_error *error)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_STACK, &tprun.limits.stack) < 0)
        return tpb_fail_errno(error, errno, "RLIMIT_STACK");
    limit = tprun.limits.stack;
    if (limit.rlim_cur >= TPRUN_STACK)
        return TP_OK;
    limit.rlim_cur = TPRUN_STACK;
    if (limit.rlim_max < limit.rlim_cur)
        limit.rlim_max = limit.rlim_cur;       /* root may */
    if (setrlimit(RLIMIT_STACK, &limit) == 0)
        return TP_OK;
    return tpb_fail(error, TP_ERR_SYSTEM, "tprun's stack may have %llu KiB, "
                    "and needs %d; raise the limit (ulimit -Hs), the ranks "
                    "may have a lower one",
                    (unsigned long long)tprun.limits.stack.rlim_max >> 10,
                    TPRUN_STACK >> 10);
}

static tp_status tprun_limit_files(struct tpb_error *error)
{
    struct rlimit limit;
    rlim_t need = (rlim_t)tprun.options.ranks * TPRUN_FDS_PER_RANK
                  + TPRUN_FDS_OWN;

    if (getrlimit(RLIMIT_NOFILE, &tprun.limits.files) < 0)
        return tpb_fail_errno(error, errno, "RLIMIT_NOFILE");
    limit = tprun.limits.files;
    limit.rlim_cur = limit.rlim_max;
    if (limit.rlim_max < need)
        return tpb_fail(error, TP_ERR_SYSTEM,
                        "%d rank%s %llu file descriptors, the hard limit is"
                        " %llu (ulimit -Hn)", tprun.options.ranks,
                        tprun.options.ranks > 1 ? "s need" : " needs",
                        (unsigned long long)need,
                        (unsigned long long)limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
    return TP_OK;
}

/* libpmix waits with select(2), and the C library ends it by abort(3) where a
 * descriptor is too high for that, as after a parent that leaves many open. */
static tp_status tprun_limit_numbers(struct tpb_error *error)
{
    int fds[TPRUN_FDS_PMIX], count = 0, last = -1;

    while (count < TPRUN_FDS_PMIX
           && (fds[count] = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)) >= 0)
        last = fds[count++];
    while (count > 0)
        close(fds[--count]);
    if (last < FD_SETSIZE)
        return TP_OK;
    return tpb_fail(error, TP_ERR_SYSTEM, "tprun was started with about %d "
                    "file descriptors open, and libpmix needs some below %d; "
                    "whatever starts tprun should close them, or set "
                    "close-on-exec", last - TPRUN_FDS_PMIX, FD_SETSIZE);
}

/* What tprun needs itself; ranks get what the user has. */
static tp_status tprun_limits(struct tpb_error *error)
{
    tp_status status = tprun_limit_stack(error);

    if (status == TP_OK)
        status = tprun_limit_files(error);
    return status == TP_OK ? tprun_limit_numbers(error) : status;
}

/* The name tells whose job it is, and cannot be guessed. */
static void tprun_name_job(void)
{
    uint64_t number;

    tpb_random(&number, sizeof(number));
    snprintf(tprun.name, sizeof(tprun.name), "tprun-%d-%016llx",
             (int)getpid(), (unsigned long long)number);
}

/* What needs the topology: who runs where. */
static tp_status tprun_survey(struct tpb_error *error)
{
    tp_status status = tpl_placement_make(&tprun.options, &tprun.settings,
                                          &tprun.placement, error);

    tprun.wrong = status == TP_ERR_INVALID;
    return status;
}

/* Memory of tprun's that ranks map, as descriptors in words. */
struct tprun_shared {
    char topology[64], record[64];
};

/* Beside libpmix, hence without a change to the environment. */
static void tprun_share(struct tprun_shared *shared)
{
    *shared = (struct tprun_shared){ "", "" };
    /* Without it every rank looks for itself: slower, not wrong. */
    (void)tpt_topology_share(tprun.placement.topology, &tprun.topology_fd,
                             shared->topology, NULL);
    /* As a rank of another job we have that one's, which tptop would find. */
    tpb_record_forget(tprun.settings.text[TPB_SET_RECORD]);
    /* Without it the job runs as well; only tptop and last words miss it. */
    (void)tpb_record_make(tprun.name, (uint32_t)tprun.options.ranks,
                          &tprun.record, &tprun.record_fd, shared->record,
                          NULL);
    tpl_oom_begin();
}

static void tprun_tell(const struct tprun_shared *shared)
{
    char launcher[64], text[16];
    unsigned cpus = tpl_placement_cpus(&tprun.placement);

    if (shared->topology[0] != '\0')
        setenv("TP_TOPOLOGY_SHARED", shared->topology, 1);
    if (shared->record[0] != '\0')
        setenv("TP_RECORD", shared->record, 1);
    /* A rank that is bound cannot see what all of them have. */
    snprintf(text, sizeof(text), "%u", cpus);
    setenv("TP_CPUS", cpus > 0 ? text : "-", 1);
    snprintf(launcher, sizeof(launcher), "%s:%d", PACKAGE_VERSION,
             (int)getpid());
    setenv("TP_LAUNCHER", launcher, 1);
    tpl_door_open(tprun.name, tprun.options.ranks);
}

/* What --display-map and --dry-run print. */
static tp_status tprun_show_map(struct tpb_error *error)
{
    struct tpb_text text = { 0 };
    tp_status status = TP_OK;

    tpl_placement_show(&tprun.placement, &tprun.options, tprun.host, &text);
    if (text.failed)
        status = tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    else if (tpb_write_waiting(STDOUT_FILENO, text.text, text.length) < 0)
        status = tpb_fail_errno(error, errno, "cannot write the map");
    tpb_text_fini(&text);
    return status;
}

static int tprun_dry(void)
{
    struct tpb_error error = { "" };
    tp_status status = tpl_placement_make(&tprun.options, &tprun.settings,
                                          &tprun.placement, &error);

    if (status == TP_OK)
        status = tprun_show_map(&error);
    tpl_placement_fini(&tprun.placement);
    return status == TP_OK ? 0
           : tprun_refuse(status == TP_ERR_INVALID ? TPL_EXIT_USAGE : 1,
                          &error);
}

/* hwloc's plug-ins bring libxml2, OpenCL and X11 with them, 4 ms of loading;
 * none is needed for a machine that is there.  Our own doing must not reach the
 * ranks. */
static bool tprun_without_plugins(void)
{
    if (tprun.settings.set[TPB_SET_TOPOLOGY]
        || getenv("HWLOC_PLUGINS_PATH") != NULL)
        return false;
    return setenv("HWLOC_PLUGINS_PATH", "/nonexistent/tprun", 1) == 0;
}

/* hwloc looks at the machine while libpmix starts its server: each takes a
 * millisecond or two. */
static tp_status tprun_begin(struct tpb_error *error)
{
    bool plain = tprun_without_plugins();
    tp_status status;

    tpl_pmix_prepare();
    tpl_placement_begin(&tprun.settings, &tprun.placement);
    /* For libpmix's threads, which inherit the mask; until there are ranks
     * signals may end this process as any other. */
    tpl_signals_block();
    status = tpl_pmix_start(tprun.name, error);
    tpl_signals_unblock();
    if (status == TP_OK)
        status = tprun_survey(error);
    if (plain)
        unsetenv("HWLOC_PLUGINS_PATH");
    return status;
}

static bool tprun_starving(int rank, uint64_t *ran)
{
    const struct tpl_rank *it = &tprun.job.ranks[rank];

    return it->pid > 0 && !it->ended && tpl_starving(it->pid, ran);
}

static tp_status tprun_prepare(struct tpb_error *error)
{
    const struct tpl_iof_how how = {
        .tag = tprun.options.tag, .timestamp = tprun.options.timestamp,
        .merge = tprun.options.merge_stderr, .pty = tprun.options.pty,
        .directory = tprun.options.output, .starving = tprun_starving,
    };
    struct tprun_shared shared;
    tp_status status = tprun_begin(error);

    if (status == TP_OK)
        status = tpl_pmix_register(&tprun.options, &tprun.placement.plan,
                                   error);
    if (status == TP_OK) {
        tprun_share(&shared);
        status = tpl_pmix_registered(error);
    }
    if (status == TP_OK) {
        tprun_tell(&shared);
        status = tpl_pmix_environment(&tprun.environment, error);
    }
    if (status == TP_OK)
        status = tpl_loop_init(&tprun.loop, error);
    if (status == TP_OK)
        status = tpl_iof_new(&tprun.loop, tprun.options.ranks, &how, error,
                             &tprun.iof);
    if (status == TP_OK && tprun.options.display_map)
        status = tprun_show_map(error);
    return status;
}

static void tprun_signalled(struct tpl_watch *watch, uint32_t events)
{
    bool typed;
    int signal;

    (void)events;
    while ((signal = tpl_signals_next(watch->fd, &typed)) != 0)
        if (signal == SIGCHLD)
            tpl_job_reap(&tprun.job);
        else
            tpl_job_signal(&tprun.job, signal, typed);
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
    tpl_job_init(&tprun.job, &tprun.options, tprun.host, &tprun.record,
                 &tprun.loop, tprun.iof, ranks);
    tprun.signals = (struct tpl_watch){ tpl_signals_open(), 0,
                                        tprun_signalled };
    if (tprun.signals.fd < 0
        || tpl_watch_set(&tprun.loop, &tprun.signals, EPOLLIN) < 0)
        return tpb_fail_errno(error, errno, "cannot watch for signals");
    tpl_guard_watch(&tprun.loop);
    if (tpl_pmix_watch(&tprun.loop, tprun_event, NULL) < 0
        || tpl_door_watch(&tprun.loop, tprun_event) < 0)
        return tpb_fail_errno(error, errno, "cannot watch for ranks");
    tpl_progress_begin(&tprun.job);
    return TP_OK;
}

static tp_status tprun_start(struct tpb_error *error)
{
    const struct tpl_start start = {
        .options = &tprun.options, .placement = &tprun.placement,
        .environment = tprun.environment, .limits = &tprun.limits,
        .loop = &tprun.loop, .iof = tprun.iof, .job = &tprun.job,
    };

    return tpl_start_ranks(&start, error);
}

/* It ends with us, by the guards' doing. */
static tp_status tprun_blind(struct tpb_error *error)
{
    int code = tprun.job.blind;

    if (code == 0)
        return TP_OK;
    return tpb_fail(error, TP_ERR_SYSTEM, "cannot wait for the ranks: %s%s",
                    strerror(code), code == EPERM ? " (a sandbox around this"
                    " process must allow wait4(2))" : "");
}

/* From the first rank to the last line of output. */
static int tprun_run(void)
{
    struct tpb_error error = { "" };

    tpl_job_begin(&tprun.job);
    tpl_job_step(&tprun.job);
    while (tprun.job.phase != TPL_DONE) {
        if (tpl_loop_turn(&tprun.loop, &error) != TP_OK
            || tprun_blind(&error) != TP_OK)
            return tprun_refuse(1, &error);
        tpl_job_step(&tprun.job);
    }
    if (tprun.job.status == 0 && tpl_iof_lost(tprun.iof) != 0)
        return 1;
    return tprun.job.status;
}

/* What ranks that were killed as they met had no time to remove. */
static void tprun_sweep(void)
{
    int ranks = tprun.options.ranks;
    pid_t *pids = tprun.job.status == 0 || tprun.job.ranks == NULL ? NULL
                  : tpb_array((size_t)ranks, sizeof(*pids));

    if (pids == NULL)
        return;
    for (int i = 0; i < ranks; i++)    /* unless somebody else has it by now */
        if (kill(tprun.job.ranks[i].pid, 0) < 0 && errno == ESRCH)
            pids[i] = tprun.job.ranks[i].pid;
    tpb_leavings_remove(pids, ranks);
    tpb_free(pids);
}

/* Everything but libpmix, whose ways to end itself can hang; it has nothing
 * outside this process. */
static void tprun_clean_up(void)
{
    const struct tpl_job *job = &tprun.job;
    bool over = job->phase == TPL_DONE
                || (job->phase == TPL_RUNNING && job->running == 0);

    tprun_sweep();
    tpl_job_fini(&tprun.job);
    tpl_guard_dismiss(over);
    tpl_input_fini();
    tpl_iof_free(tprun.iof);
    tpl_door_close(&tprun.loop);
    tpl_watch_close(&tprun.loop, &tprun.signals);
    tpb_close(&tprun.topology_fd);
    tpb_close(&tprun.record_fd);
    tpb_record_close(&tprun.record);
    tpl_placement_fini(&tprun.placement);
    tpb_settings_fini(&tprun.settings);
    tpb_free(tprun.job.ranks);
    tpl_options_fini(&tprun.options);
    tpl_guard_stop();
    tpl_loop_fini(&tprun.loop);
}

static int tprun_help(void)
{
    struct tpb_text text = { 0 };
    struct tpb_error error = { "" };

    if (tprun.options.version)
        tpb_text_add(&text, "tprun (tp) %s, with %s\n", PACKAGE_VERSION,
                     tpl_pmix_version());
    else if (tprun.options.help)
        tpl_options_help(&text);
    else
        tpl_options_complete(tprun.options.completion, &text);
    if (text.failed)
        tpb_fail(&error, TP_ERR_NO_MEMORY, "out of memory");
    else if (tpb_write_waiting(STDOUT_FILENO, text.text, text.length) < 0)
        tpb_fail_errno(&error, errno, "cannot write to standard output");
    tpb_text_fini(&text);
    return error.text[0] != '\0' ? tprun_refuse(1, &error) : 0;
}

/* All that can be found wrong before anything is started. */
static int tprun_check(struct tpb_error *error)
{
    if (tpb_settings_load(&tprun.settings, error) != TP_OK)
        return TPL_EXIT_USAGE;
    return 0;
}

/* Is the job another engine's?  Then it is done here. */
static bool tprun_by_engine(int *status)
{
    struct tpb_error error = { "" };
    struct tpl_engine_plan plan;
    tp_status planned = tpl_engine_plan(&tprun.options, &tprun.settings, &plan,
                                        &error);
    bool done = true;

    if (planned == TP_OK)
        planned = tpl_options_settle(&tprun.options, &error);
    if (planned != TP_OK)
        *status = tprun_refuse(TPL_EXIT_USAGE, &error);
    else if (plan.engine == TPL_ENGINE_LOCAL)
        done = false;
    else if (tprun.options.dry_run)
        *status = tpl_engine_show(&plan);
    else
        *status = tpl_engine_run(&plan, &tprun.options);
    tpl_engine_plan_fini(&plan);
    if (!done)
        return false;
    tpb_settings_fini(&tprun.settings);
    if (*status < 0)
        tpl_signals_die(-*status);
    return true;
}

/* The same for a job of our own. */
static int tprun_check_local(struct tpb_error *error)
{
    int status = tpl_start_find(&tprun.options, error);

    if (status == 0 && tprun.options.output != NULL && !tprun.options.dry_run
        && tpb_make_folders(tprun.options.output) < 0) {
        tpb_fail_errno(error, errno, "--output %s: cannot create this folder",
                       tprun.options.output);
        status = TPL_EXIT_USAGE;
    }
    return status;
}

int main(int argc, char **argv)
{
    struct tpb_error error = { "" };
    int status;

    tpb_fill_standard(O_RDWR);
    if (tpl_options_parse(argc, argv, &tprun.options, &error) != TP_OK)
        return tprun_refuse(TPL_EXIT_USAGE, &error);
    if (tprun.options.help || tprun.options.version
        || tprun.options.completion != NULL)
        return tprun_help();
    tpl_signals_init();
    tpb_log_name("tprun");
    if (gethostname(tprun.host, sizeof(tprun.host) - 1) < 0)
        strcpy(tprun.host, "this host");
    status = tprun_check(&error);
    if (status != 0)
        return tprun_refuse(status, &error);
    if (tprun_by_engine(&status))
        return status;
    status = tprun_check_local(&error);
    if (status != 0)
        return tprun_refuse(status, &error);
    if (tprun.options.dry_run)
        return tprun_dry();
    tprun_name_job();
    if (tpl_guard_start("PMIX_NAMESPACE", tprun.name, tprun.options.ranks,
                        &error) != TP_OK)
        return tprun_refuse(1, &error);
    tpl_orphans_adopt();
    if (tprun_limits(&error) != TP_OK || tprun_prepare(&error) != TP_OK
        || tprun_watch(&error) != TP_OK
        || tprun_start(&error) != TP_OK)
        status = tprun_refuse(tprun.wrong ? TPL_EXIT_USAGE : 1, &error);
    else
        status = tprun_run();
    tprun_clean_up();
    if (tprun.job.signal == SIGINT)
        tpl_signals_die(SIGINT);
    /* Not exit(): libpmix's threads still run. */
    _exit(status);
}
