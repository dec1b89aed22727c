/* SPDX-License-Identifier: BSD-3-Clause */
/* Which engines are installed, and do they fit? */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher/ask.h"
#include "launcher/engine.h"
#include "launcher/spawn.h"

enum { FIND_PATIENCE = 10 };       /* seconds for --version */

/* What an engine says of itself: `names` are programs to look for, `sign` is
 * what its --version holds before the number. */
static const struct find_row {
    const char *names[2], *sign, *title;
    int major, minor;              /* the oldest that will do */
    const char *package;
} find_table[TPL_ENGINES] = {
    [TPL_ENGINE_SLURM] = { { "srun" }, "slurm", "Slurm", 20, 11,
                           "slurm-client" },
    [TPL_ENGINE_PRRTE] = { { "prterun" }, "(PRRTE) ", "PRRTE", 2, 0,
                           "prrte" },
    [TPL_ENGINE_OPENMPI] = { { "mpirun.openmpi", "mpirun" }, "(Open MPI) ",
                             "Open MPI", 4, 0, "openmpi-bin" },
};

/* The number behind the sign: "slurm-wlm 22.05.8", "(Open MPI) 4.1.4". */
static bool find_version(const char *text, const char *sign, int *major,
                         int *minor)
{
    const char *at = strstr(text, sign);

    if (at == NULL)
        return false;
    at += strcspn(at + strlen(sign), "0123456789\n") + strlen(sign);
    return sscanf(at, "%d.%d", major, minor) == 2;
}

/* "4.1", and of Slurm, which counts years and months, "22.05". */
static const char *find_number(int major, int minor)
{
    static char text[2][24];
    static int turn;

    turn = !turn;
    snprintf(text[turn], sizeof(text[turn]), "%d.%0*d", major,
             major >= 10 ? 2 : 1, minor);
    return text[turn];
}

/* A file system or a cluster that is out of reach is not a program that does
 * not fit.  False. */
static bool find_silent(const struct tpl_engine_plan *plan, const char *asked,
                        struct tpb_error *error)
{
    tpb_fail(error, TP_ERR_TIMEOUT, "%s %s has not ended after %d s: is the "
             "file system that it is on out of reach, or the cluster?",
             plan->program, asked, FIND_PATIENCE);
    return false;
}

/* Slurm's PMIx plug-in is a package of its own. */
static bool find_plugin(const struct tpl_engine_plan *plan,
                        struct tpb_error *error)
{
    struct tpl_ask ask;
    char *argv[] = { (char *)plan->program, (char *)"--mpi=list", NULL };

    tpl_ask_start(&ask, argv);
    tpl_ask_wait(&ask, 1, FIND_PATIENCE);
    if (strstr(ask.text, "pmix") != NULL)
        return true;
    if (ask.status == -1)
        return find_silent(plan, argv[1], error);
    tpb_fail(error, TP_ERR_NOT_FOUND, "this Slurm has no PMIx plug-in "
             "(srun --mpi=list): install slurm-wlm-basic-plugins and "
             "libpmix-dev on all nodes, or use --engine openmpi");
    return false;
}

/* Slurm's programs say nothing, not even their version, without a cluster. */
static bool find_no_cluster(const struct tpl_engine_plan *plan, char *text,
                            struct tpb_error *error)
{
    char *last = text;

    for (char *line = strtok(text, "\n"); line != NULL;
         line = strtok(NULL, "\n"))
        last = line;
    tpb_fail(error, TP_ERR_NOT_FOUND, "%s finds no Slurm cluster "
             "(\"%.120s\"): is there an /etc/slurm/slurm.conf, or is "
             "SLURM_CONF set?  Without Slurm use --engine openmpi or prrte",
             plan->program, last);
    return false;
}

static bool find_fits(struct tpl_engine_plan *plan,
                      const struct find_row *row, struct tpb_error *error)
{
    struct tpl_ask ask;
    char *argv[] = { plan->program, (char *)"--version", NULL };

    tpl_ask_start(&ask, argv);
    tpl_ask_wait(&ask, 1, FIND_PATIENCE);
    if (!find_version(ask.text, row->sign, &plan->major, &plan->minor)) {
        if (ask.status == -1)
            return find_silent(plan, argv[1], error);
        if (strncmp(ask.text, "srun: ", 6) == 0)
            return find_no_cluster(plan, ask.text, error);
        ask.text[strcspn(ask.text, "\n")] = '\0';
        tpb_fail(error, TP_ERR_NOT_FOUND, "%s is not %s's: it says \"%.80s\"; "
                 "tp %s needs %s %s or newer (apt-get install %s)",
                 plan->program, row->title, ask.text, PACKAGE_VERSION,
                 row->title, find_number(row->major, row->minor),
                 row->package);
        return false;
    }
    if (plan->major > row->major
        || (plan->major == row->major && plan->minor >= row->minor))
        return true;
    tpb_fail(error, TP_ERR_NOT_SUPPORTED, "%s is %s %s; tp %s needs %s or "
             "newer", plan->program, row->title,
             find_number(plan->major, plan->minor), PACKAGE_VERSION,
             find_number(row->major, row->minor));
    return false;
}

bool tpl_engine_find(struct tpl_engine_plan *plan, enum tpl_engine engine,
                     struct tpb_error *error)
{
    const struct find_row *row = &find_table[engine];
    bool found = false;

    plan->engine = engine;
    for (size_t i = 0; i < TPB_COUNT(row->names); i++) {
        struct tpb_error ignored = { "" };

        if (row->names[i] == NULL
            || tpl_spawn_find(row->names[i], plan->program, &ignored) != 0)
            continue;
        found = true;
        if (find_fits(plan, row, error))
            return engine != TPL_ENGINE_SLURM || find_plugin(plan, error);
    }
    if (!found)
        tpb_fail(error, TP_ERR_NOT_FOUND, "--engine %s: %s is not in PATH "
                 "(apt-get install %s)", tpl_engine_name(engine),
                 row->names[0], row->package);
    return false;
}
