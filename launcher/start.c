/* SPDX-License-Identifier: BSD-3-Clause */
/* Starting the ranks of a job. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher/door.h"
#include "launcher/environment.h"
#include "launcher/input.h"
#include "launcher/pmix_server.h"
#include "launcher/spawn.h"
#include "launcher/start.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

enum { START_BATCH = 16 };         /* ranks between two looks at the loop */

/* The PATH that one of several programs is given by -x; NULL: ours. */
static const char *start_place(const struct tpl_app *app)
{
    const char *place = NULL;

    for (size_t i = 0; i < app->environment_count; i++)
        if (strncmp(app->environment[i], "PATH=", 5) == 0)
            place = app->environment[i] + 5;
    return place;
}

/* As tpl_spawn_find_in(), and what is wrong is the option's. */
static char *start_find_wrap(const struct tpl_app *app, size_t index,
                             int *status, struct tpb_error *error)
{
    struct tpb_error why = { "" };
    char *path = tpl_spawn_find_in(app->wdir, start_place(app),
                                   app->wraps[index].words[0], status, &why);

    if (*status != 0)
        tpb_fail(error, TP_ERR_NOT_FOUND, "--wrap: %s", why.text);
    return path;
}

int tpl_start_find(struct tpl_options *options, struct tpb_error *error)
{
    int status = 0;

    for (int i = 0; i < options->app_count && status == 0; i++) {
        struct tpl_app *app = &options->apps[i];

        app->path = tpl_spawn_find_in(app->wdir, start_place(app),
                                      app->program[0], &status, error);
        for (size_t j = 0; j < app->wrap_count && status == 0; j++)
            app->wraps[j].path = start_find_wrap(app, j, &status, error);
    }
    return status;
}

/* The words of the wrap, the path of the program, its arguments.  The caller
 * frees the array; NULL without memory. */
static char **start_wrapped(const struct tpl_wrap *wrap,
                            const struct tpl_app *app)
{
    size_t before = 0, after = 0, n = 0;
    char **argv;

    while (wrap->words[before] != NULL)
        before++;
    while (app->program[after] != NULL)
        after++;
    argv = tpb_array(before + after + 1, sizeof(argv[0]));
    if (argv == NULL)
        return NULL;
    for (size_t i = 0; i < before; i++)
        argv[n++] = wrap->words[i];
    argv[n++] = app->path;
    for (size_t i = 1; i < after; i++)
        argv[n++] = app->program[i];
    return argv;
}

static void start_say(const struct tpl_start *start, int rank, pid_t pid)
{
    const struct tpt_bind_place *place =
        &start->placement->plan.places[rank];
    bool here = start->placement->plan.here;
    struct tpb_text text = { 0 };

    if (start->options->verbose)
        tpl_iof_say(start->iof, "rank %d is pid %d, %s%s%s%s", rank, (int)pid,
                    !here ? "not bound" : place->cpus != NULL
                    ? "bound to cpus " : "free on cpus ",
                    here ? place->list : "",
                    place->gpus != NULL ? ", gpus " : "",
                    place->gpus != NULL ? place->gpus : "");
    if (!start->options->report_bindings)
        return;
    tpl_placement_report(start->placement, rank, pid, &text);
    if (!text.failed)
        tpl_iof_say(start->iof, "%s", text.text);
    tpb_text_fini(&text);
}

/* Standard input, output and error.  False: the job is ending. */
static bool start_streams(const struct tpl_start *start, int rank,
                          struct tpl_spawn *spawn)
{
    struct tpb_error error = { "" };
    int terminal = -1;

    if (tpl_iof_open(start->iof, rank, &spawn->out, &spawn->err,
                     &error) != TP_OK) {
        tpl_job_end(start->job, 1, "%s", error.text);
        return false;
    }
    if (start->options->pty && tpl_input_wants_terminal(rank))
        terminal = tpl_iof_terminal(start->iof, rank);
    spawn->terminal = terminal >= 0;
    if (spawn->terminal) {
        spawn->in = fcntl(spawn->out, F_DUPFD_CLOEXEC, 3);
        tpl_input_terminal(terminal);
    } else {
        spawn->in = tpl_input_for(rank);
    }
    if (spawn->in >= 0)
        return true;
    tpl_job_end(start->job, 1, "cannot make the standard input of rank %d: %s",
                rank, strerror(errno));
    return false;
}

/* A rank that did not start ends the job. */
static void start_failed(const struct tpl_start *start, int rank,
                         const char *path, bool executing, int code)
{
    struct tpb_error error = { "" };
    const char *remedy = "";

    if (executing) {
        int status = tpl_spawn_explain(path, code, &error);

        tpl_job_end(start->job, status, "%s", error.text);
        return;
    }
    if (code == EAGAIN)
        remedy = "; the limit of processes (ulimit -u, pids cgroup) is "
                 "reached";
    else if (code == EMFILE)
        remedy = "; the limit of files (ulimit -n) is reached";
    tpl_job_end(start->job, 1, "cannot start rank %d of %d: %s%s", rank,
                start->options->ranks, strerror(code), remedy);
}

/* Starts one rank; on failure the job is ending afterwards. */
static void start_rank(const struct tpl_start *start, int rank)
{
    const struct tpl_app *app = tpl_options_app(start->options, rank);
    const struct tpl_wrap *wrap = tpl_options_wrap(app, rank);
    const struct tpt_bind_plan *plan = &start->placement->plan;
    struct tpl_spawn spawn = {
        .path = wrap != NULL ? wrap->path : app->path,
        .argv = wrap != NULL ? start_wrapped(wrap, app) : app->program,
        .rank = rank, .wdir = app->wdir, .in = -1, .out = -1, .err = -1,
        .cpus = plan->here ? plan->places[rank].cpus : NULL,
        .cpus_size = plan->cpus_size, .limits = start->limits,
        .doors = { -1, -1 },
    };
    bool executing;
    pid_t pid = -1;
    int code;

    tpl_pmix_set_rank(rank);
    tpl_door_next(spawn.doors);
    spawn.environment = tpl_environment_make(
        start->environment, start->options->app_count > 1 ? app : NULL,
        plan->places[rank].gpus);
    if (spawn.argv == NULL || spawn.environment == NULL) {
        tpl_job_end(start->job, 1, "out of memory");
    } else if (start_streams(start, rank, &spawn)) {
        code = tpl_spawn(&spawn, &pid, &executing);
        if (code == 0) {
            tpl_job_started(start->job, rank, pid);
            start_say(start, rank, pid);
        } else {
            start_failed(start, rank, spawn.path, executing, code);
        }
    }
    tpb_close(&spawn.in);
    tpb_close(&spawn.out);
    tpb_close(&spawn.err);
    tpl_environment_free(spawn.environment, start->environment);
    if (wrap != NULL)
        tpb_free(spawn.argv);
}

tp_status tpl_start_ranks(const struct tpl_start *start,
                          struct tpb_error *error)
{
    tp_status status = tpl_input_open(start->loop, start->iof,
                                      start->options->input,
                                      start->options->ranks, error);
    int unused[2];

    for (int i = 0; status == TP_OK && i < start->options->ranks
         && start->job->phase == TPL_RUNNING; i++) {
        start_rank(start, i);
        /* Those who are there wait at the door, and not for long. */
        tpl_door_dispatch();
        if (i % START_BATCH == START_BATCH - 1)
            status = tpl_loop_look(start->loop, error);
    }
    /* What the last rank has is to be nobody else's: else its peers would call
     * at its door after its end, and we would keep their calls. */
    tpl_door_next(unused);
    tpl_input_resume();
    return status;
}
