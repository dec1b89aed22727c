/* SPDX-License-Identifier: BSD-3-Clause */
/* Which engine, with which hosts, for which command line. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/engine.h"
#include "runtime/base/io.h"

enum { ENGINE_RESOLVE = 5 };       /* seconds to find out who is who */

static tp_status engine_hosts(const struct tpl_options *options,
                              struct tpl_hosts *hosts,
                              struct tpb_error *error)
{
    struct tpl_hosts chosen = { 0 };
    tp_status status = TP_OK;

    if (options->hostfile != NULL)
        status = tpl_hosts_add_file(hosts, options->hostfile, error);
    if (status != TP_OK || options->host == NULL)
        return status;
    if (options->hostfile == NULL)
        return tpl_hosts_add_list(hosts, "--host", options->host, error);
    status = tpl_hosts_add_list(&chosen, "--host", options->host, error);
    if (status == TP_OK)
        status = tpl_hosts_choose(hosts, &chosen, error);
    tpl_hosts_fini(&chosen);
    return status;
}

/* "4,1(x2)" of SLURM_TASKS_PER_NODE, in the order of the nodes. */
static void engine_slurm_slots(struct tpl_hosts *hosts, const char *text)
{
    size_t at = 0;
    int slots, times, used;

    while (at < hosts->count && sscanf(text, "%d%n", &slots, &used) == 1) {
        text += used;
        times = 1;
        used = 0;
        if (sscanf(text, "(x%d)%n", &times, &used) == 1)
            text += used;
        while (times-- > 0 && at < hosts->count)
            hosts->list[at++].slots = slots;
        if (*text++ != ',')
            return;
    }
}

/* Has the user left the number of ranks to the hosts? */
static bool engine_may_choose(const struct tpl_options *options)
{
    return options->app_count == 1
           && !tpl_option_given(options, TPL_OPTION_RANKS);
}

static void engine_set_ranks(struct tpl_options *options, int ranks)
{
    options->ranks = options->apps[0].ranks = ranks;
    options->given |= UINT64_C(1) << TPL_OPTION_RANKS;
}

/* The nodes of the allocation we are in; they serve as --host. */
static tp_status engine_allocation(struct tpl_options *options,
                                   struct tpl_hosts *hosts,
                                   struct tpb_error *error)
{
    const char *nodes = getenv("SLURM_JOB_NODELIST");
    const char *tasks = getenv("SLURM_TASKS_PER_NODE");
    const char *number = getenv("SLURM_NTASKS");
    tp_status status = tpl_hosts_add_list(hosts, "SLURM_JOB_NODELIST", nodes,
                                          error);

    if (status == TP_OK && engine_may_choose(options) && number != NULL
        && tasks != NULL && atoi(number) > 0) {
        engine_slurm_slots(hosts, tasks);
        engine_set_ranks(options, atoi(number));
    }
    return status;
}

static bool engine_all_here(const struct tpl_hosts *hosts)
{
    for (size_t i = 0; i < hosts->count; i++)
        if (!hosts->list[i].here)
            return false;
    return true;
}

static const char *engine_elsewhere(const struct tpl_hosts *hosts)
{
    for (size_t i = 0; i < hosts->count; i++)
        if (!hosts->list[i].here)
            return hosts->list[i].name;
    return "";
}

/* The first that is there, in the order of preference. */
static tp_status engine_auto(struct tpl_engine_plan *plan, bool allocated,
                             struct tpb_error *error)
{
    struct tpb_error slurm = { "" }, prrte = { "" }, openmpi = { "" };
    const char *what;

    if (engine_all_here(&plan->hosts)) {
        plan->engine = TPL_ENGINE_LOCAL;
        return TP_OK;
    }
    if ((allocated && tpl_engine_find(plan, TPL_ENGINE_SLURM, &slurm))
        || tpl_engine_find(plan, TPL_ENGINE_PRRTE, &prrte)
        || tpl_engine_find(plan, TPL_ENGINE_OPENMPI, &openmpi))
        return TP_OK;
    /* What is there and does not fit tells more than what is not there. */
    what = slurm.text;
    if (*what == '\0' && strstr(prrte.text, "not in PATH") == NULL)
        what = prrte.text;
    if (*what == '\0' && strstr(openmpi.text, "not in PATH") == NULL)
        what = openmpi.text;
    if (*what != '\0')
        return tpb_fail(error, TP_ERR_NOT_FOUND, "%s is not this machine, "
                        "and %s", engine_elsewhere(&plan->hosts), what);
    return tpb_fail(error, TP_ERR_NOT_FOUND, "%s is not this machine, and "
                    "nothing that starts ranks elsewhere is in PATH: install "
                    "Open MPI (apt-get install openmpi-bin) or PRRTE here and "
                    "there, or run inside a Slurm allocation",
                    engine_elsewhere(&plan->hosts));
}

static tp_status engine_choose(enum tpl_engine wanted,
                               struct tpl_engine_plan *plan, bool allocated,
                               struct tpb_error *error)
{
    switch (wanted) {
    case TPL_ENGINE_LOCAL:
        plan->engine = TPL_ENGINE_LOCAL;
        if (engine_all_here(&plan->hosts))
            return TP_OK;
        return tpb_fail(error, TP_ERR_INVALID, "--engine local: %s is not "
                        "this machine", engine_elsewhere(&plan->hosts));
    case TPL_ENGINE_SLURM:
    case TPL_ENGINE_PRRTE:
    case TPL_ENGINE_OPENMPI:
        return tpl_engine_find(plan, wanted, error) ? TP_OK
                                                    : TP_ERR_NOT_FOUND;
    case TPL_ENGINE_AUTO:
        break;
    }
    return engine_auto(plan, allocated, error);
}

static const char engine_keeper_name[] = "/tprun-rank";

/* This program's file, without its last `levels` parts and with `rest` instead.
 * False: not to be told, or there is no such program. */
static bool engine_beside(char path[PATH_MAX], int levels, const char *rest)
{
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);

    if (length <= 0)
        return false;
    path[length] = '\0';
    for (; levels > 0; levels--) {
        char *slash = strrchr(path, '/');

        if (slash == NULL)
            return false;
        *slash = '\0';
    }
    length = (ssize_t)strlen(path);
    return snprintf(path + length, (size_t)(PATH_MAX - length), "%s%s", rest,
                    engine_keeper_name) < PATH_MAX - length
           && access(path, X_OK) == 0;
}

/* Where it is in an installation that was moved: as far from tprun as the
 * folders of configure are from each other. */
static bool engine_moved(char path[PATH_MAX])
{
    static const char bin[] = TPL_BIN, libexec[] = TPL_LIBEXEC;
    size_t common = 0;
    int levels = 1;                /* the name of tprun itself */

    for (size_t i = 0; bin[i] != '\0' && bin[i] == libexec[i]; i++)
        if (bin[i] == '/')
            common = i;
    for (const char *part = bin + common; *part != '\0'; part++)
        levels += *part == '/';
    return engine_beside(path, levels, libexec + common);
}

static bool engine_same(const char *path, const char *other)
{
    struct stat one, two;

    return stat(path, &one) == 0 && stat(other, &two) == 0
           && one.st_dev == two.st_dev && one.st_ino == two.st_ino;
}

/* tprun-rank lies beside tprun in the build tree, else in libexec.  If that is
 * what configure was told, it is called so: other hosts may not know what links
 * lead to here. */
static tp_status engine_keeper(struct tpl_engine_plan *plan,
                               struct tpb_error *error)
{
    char told[PATH_MAX];

    if (engine_beside(plan->keeper, 1, ""))
        return TP_OK;
    snprintf(told, sizeof(told), "%s%s", TPL_LIBEXEC, engine_keeper_name);
    if (engine_moved(plan->keeper) && !engine_same(plan->keeper, told))
        return TP_OK;
    strcpy(plan->keeper, told);
    if (access(plan->keeper, X_OK) < 0)
        return tpb_fail(error, TP_ERR_NOT_FOUND, "%s, which every rank on "
                        "another host needs: %s; it is installed with tprun, "
                        "and may be moved with its folders only", plan->keeper,
                        strerror(errno));
    return TP_OK;
}

static tp_status engine_order(const struct tpl_options *options,
                              const struct tpb_settings *settings,
                              struct tpl_engine_plan *plan,
                              struct tpb_error *error)
{
    struct tpl_order order = {
        .engine = plan->engine, .program = plan->program,
        .major = plan->major, .minor = plan->minor, .options = options,
        .hosts = &plan->hosts, .environment = environ,
        .keeper = plan->keeper, .cookie = plan->cookie,
        .directory = plan->directory, .root = geteuid() == 0,
        .heartbeat = settings->number[TPB_SET_HEARTBEAT],
    };
    uint64_t number;
    tp_status status = engine_keeper(plan, error);

    if (status != TP_OK)
        return status;
    if (getcwd(plan->directory, sizeof(plan->directory)) == NULL)
        return tpb_fail_errno(error, errno, "the working directory");
    tpb_random(&number, sizeof(number));
    snprintf(plan->cookie, sizeof(plan->cookie), "%016llx",
             (unsigned long long)number);
    plan->framed = tpl_translate_framed(plan->engine, plan->major);
    return tpl_translate(&order, &plan->arguments, error);
}

tp_status tpl_engine_plan(struct tpl_options *options,
                          const struct tpb_settings *settings,
                          struct tpl_engine_plan *plan,
                          struct tpb_error *error)
{
    bool allocated = getenv("SLURM_JOB_ID") != NULL
                     && getenv("SLURM_JOB_NODELIST") != NULL;
    enum tpl_engine wanted = options->engine;
    tp_status status;

    memset(plan, 0, sizeof(*plan));
    plan->engine = TPL_ENGINE_LOCAL;
    status = engine_hosts(options, &plan->hosts, error);
    if (status == TP_OK && plan->hosts.count == 0 && allocated
        && wanted != TPL_ENGINE_LOCAL)
        status = engine_allocation(options, &plan->hosts, error);
    if (status != TP_OK)
        return status;
    tpl_hosts_find_here(&plan->hosts, ENGINE_RESOLVE);
    if (plan->hosts.count > 0 && engine_may_choose(options))
        engine_set_ranks(options, tpl_hosts_slots(&plan->hosts));
    if (options->ranks > TPL_RANKS_MAX)
        return tpb_fail(error, TP_ERR_INVALID, "the hosts have %d slots, but a "
                        "job can have %d ranks at most; say how many with -n",
                        options->ranks, TPL_RANKS_MAX);
    if (plan->hosts.count > 0)
        status = tpl_hosts_place(&plan->hosts, options->ranks, error);
    if (status == TP_OK)
        status = engine_choose(wanted, plan, allocated, error);
    if (status == TP_OK && plan->engine != TPL_ENGINE_LOCAL)
        status = engine_order(options, settings, plan, error);
    return status;
}

void tpl_engine_plan_fini(struct tpl_engine_plan *plan)
{
    tpl_hosts_fini(&plan->hosts);
    tpl_arguments_fini(&plan->arguments);
}

/* To standard output; 1 with words if that fails. */
static int engine_write(const struct tpb_text *text, bool failed)
{
    if (!failed && !text->failed
        && tpb_write_waiting(STDOUT_FILENO, text->text, text->length) == 0)
        return 0;
    dprintf(STDERR_FILENO, "tprun: cannot write to standard output: %s\n",
            failed || text->failed ? "out of memory" : strerror(errno));
    return 1;
}

int tpl_engine_show_map(const struct tpl_engine_plan *plan)
{
    struct tpb_text text = { 0 };
    int first = 0, status;

    for (size_t i = 0; i < plan->hosts.count; i++) {
        const struct tpl_host *host = &plan->hosts.list[i];

        if (host->ranks == 1)
            tpb_text_add(&text, "rank %d on %s\n", first, host->name);
        else if (host->ranks > 1)
            tpb_text_add(&text, "ranks %d to %d on %s\n", first,
                         first + host->ranks - 1, host->name);
        first += host->ranks;
    }
    status = engine_write(&text, false);
    tpb_text_fini(&text);
    return status;
}

int tpl_engine_show(const struct tpl_engine_plan *plan)
{
    static const char *const set[] = { "TP_EXPLAIN", "TP_REQUIRE",
                                       "TP_REQUIRE_ABORT" };
    struct tpl_arguments before = { 0 };
    struct tpb_text text = { 0 };
    int status;

    /* What options have put into the environment belongs to the line. */
    for (size_t i = 0; i < TPB_COUNT(set); i++)
        if (getenv(set[i]) != NULL)
            tpl_arguments_add(&before, "%s=%s", set[i], getenv(set[i]));
    tpl_arguments_show(&before, &text);
    if (before.count > 0)
        tpb_text_add(&text, " ");
    tpl_arguments_show(&plan->arguments, &text);
    tpb_text_add(&text, "\n");
    status = engine_write(&text, before.failed || plan->arguments.failed);
    tpl_arguments_fini(&before);
    tpb_text_fini(&text);
    return status;
}
