/* SPDX-License-Identifier: BSD-3-Clause */
/* tprun's options in the words of srun, prterun and mpirun. */
#include "config.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher/environment.h"
#include "launcher/translate.h"
#include "runtime/base/alloc.h"

enum {
    TRANSLATE_CONNECT = 10,        /* seconds for ssh to reach a host */
    TRANSLATE_PROBES = 5,          /* of a host that has gone silent */
    TRANSLATE_IDLE = 32767         /* seconds, the most that TCP takes */
};

const char *tpl_engine_name(enum tpl_engine engine)
{
    static const char *const names[TPL_ENGINES] = {
        [TPL_ENGINE_AUTO] = "auto", [TPL_ENGINE_LOCAL] = "local",
        [TPL_ENGINE_SLURM] = "slurm", [TPL_ENGINE_PRRTE] = "prrte",
        [TPL_ENGINE_OPENMPI] = "openmpi",
    };

    return names[engine];
}

void tpl_arguments_add(struct tpl_arguments *arguments, const char *format,
                       ...)
{
    char **list = tpb_resize(arguments->list,
                             (arguments->count + 2) * sizeof(*list));
    struct tpb_text text = { 0 };
    char *copy = NULL;
    va_list args;
    int length;

    if (list != NULL)
        arguments->list = list;
    va_start(args, format);
    length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (list != NULL && length >= 0)
        copy = tpb_zalloc((size_t)length + 1);
    if (copy == NULL) {
        arguments->failed = true;
        return;
    }
    va_start(args, format);
    vsnprintf(copy, (size_t)length + 1, format, args);
    va_end(args);
    tpb_text_fini(&text);
    arguments->list[arguments->count++] = copy;
    arguments->list[arguments->count] = NULL;
}

void tpl_arguments_fini(struct tpl_arguments *arguments)
{
    for (size_t i = 0; i < arguments->count; i++)
        tpb_free(arguments->list[i]);
    tpb_free(arguments->list);
    memset(arguments, 0, sizeof(*arguments));
}

void tpl_arguments_show(const struct tpl_arguments *arguments,
                        struct tpb_text *text)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
        "-_./:,=+@%^";

    for (size_t i = 0; i < arguments->count; i++) {
        const char *word = arguments->list[i];

        tpb_text_add(text, "%s", i > 0 ? " " : "");
        if (*word != '\0' && word[strspn(word, plain)] == '\0') {
            tpb_text_add(text, "%s", word);
            continue;
        }
        tpb_text_add(text, "'");
        for (; *word != '\0'; word++)
            if (*word == '\'')
                tpb_text_add(text, "'\\''");
            else
                tpb_text_add(text, "%c", *word);
        tpb_text_add(text, "'");
    }
}

bool tpl_translate_stays(const char *entry)
{
    static const char *const names[] = {
        "HOME", "USER", "LOGNAME", "MAIL", "SHELL", "SHLVL", "PWD", "OLDPWD",
        "_", "HOST", "HOSTNAME", "DISPLAY", "XAUTHORITY", "TERM_PROGRAM",
        "TP_CPUS",
    };
    static const char *const families[] = {
        "OMPI_", "PMIX_", "PMI_", "PRTE_", "ORTE_", "SLURM_", "SSH_", "XDG_",
        "DBUS_", "HYDRA_", "HYDI_", "MPIEXEC_",
    };
    size_t length = strcspn(entry, "=");

    if (tpl_environment_told(entry))
        return true;
    for (size_t i = 0; i < TPB_COUNT(names); i++)
        if (strlen(names[i]) == length
            && strncmp(entry, names[i], length) == 0)
            return true;
    for (size_t i = 0; i < TPB_COUNT(families); i++)
        if (strncmp(entry, families[i], strlen(families[i])) == 0)
            return true;
    return false;
}

bool tpl_translate_framed(enum tpl_engine engine, int major)
{
    return engine == TPL_ENGINE_OPENMPI && major == 4;
}

static tp_status translate_refuse(const struct tpl_order *order,
                                  enum tpl_option id, const char *why,
                                  struct tpb_error *error)
{
    return tpb_fail(error, TP_ERR_INVALID, "%s: not with --engine %s%s%s",
                    tpl_option_name(id), tpl_engine_name(order->engine),
                    *why != '\0' ? ": " : "", why);
}

/* A --wrap of all ranks is the beginning of the program. */
static bool translate_wraps_some(const struct tpl_options *options)
{
    for (int i = 0; i < options->app_count; i++)
        for (size_t j = 0; j < options->apps[i].wrap_count; j++)
            if (options->apps[i].wraps[j].ranks != NULL)
                return true;
    return false;
}

/* With a rank on mpirun's own host and others elsewhere Open MPI 4.1 leaves one
 * of them waiting for the end of an input that all read. */
static bool translate_input_hangs(const struct tpl_order *order)
{
    const struct tpl_hosts *hosts = order->hosts;

    if (order->options->input != TPL_STDIN_ALL || hosts->count < 2
        || !tpl_translate_framed(order->engine, order->major))
        return false;
    for (size_t i = 0; i < hosts->count; i++)
        if (hosts->list[i].here && hosts->list[i].ranks > 0)
            return true;
    return false;
}

/* Every option stands here, so that a new one is not forgotten: how it reaches
 * the ranks, or why it cannot. */
static tp_status translate_check_one(const struct tpl_order *order,
                                     enum tpl_option id,
                                     struct tpb_error *error)
{
    const struct tpl_options *options = order->options;
    bool slurm = order->engine == TPL_ENGINE_SLURM;

    switch (id) {
    case TPL_OPTION_RANKS:
    case TPL_OPTION_HOST:
    case TPL_OPTION_HOSTFILE:
    case TPL_OPTION_TAG:
    case TPL_OPTION_REPORT_BINDINGS:
        break;                     /* in the engine's words, below */
    case TPL_OPTION_STDIN:
        if (translate_input_hangs(order))
            return translate_refuse(order, id, "with all, mpirun 4 never ends"
                                    " the input of a rank where another is on"
                                    " this host; leave this one out", error);
        break;
    case TPL_OPTION_BIND_TO:
        if (slurm && options->bind == TPT_BIND_L3)
            return translate_refuse(order, id, "Slurm knows no caches",
                                    error);
        break;
    case TPL_OPTION_MAP_BY:
    case TPL_OPTION_TIMESTAMP:
        if (slurm)
            return translate_refuse(order, id, "srun has nothing like it",
                                    error);
        break;
    case TPL_OPTION_GPUS_PER_RANK:
        if (!slurm || options->app_count > 1)
            return translate_refuse(order, id, "", error);
        break;
    case TPL_OPTION_EXPLAIN:
    case TPL_OPTION_REQUIRE:
        break;                     /* environment, forwarded */
    case TPL_OPTION_ENVIRONMENT:
        if (options->app_count > 1)
            return translate_refuse(order, id, "and several programs", error);
        break;
    case TPL_OPTION_WRAP:
        if (translate_wraps_some(options))
            return translate_refuse(order, id, "for some ranks only", error);
        break;
    case TPL_OPTION_WDIR:
    case TPL_OPTION_OUTPUT:
    case TPL_OPTION_MERGE_STDERR:
        break;                     /* tprun-rank's */
    case TPL_OPTION_KEEP_GOING:
        if (slurm)
            return translate_refuse(order, id, "Slurm's PMIx plug-in ends "
                                    "the step when a rank vanishes", error);
        break;
    case TPL_OPTION_PTY:
        return translate_refuse(order, id, "", error);
    case TPL_OPTION_TIMEOUT:
    case TPL_OPTION_VERBOSE:
    case TPL_OPTION_ENGINE:
    case TPL_OPTION_DISPLAY_MAP:
    case TPL_OPTION_DRY_RUN:
    case TPL_OPTION_COMPLETION:
    case TPL_OPTION_HELP:
    case TPL_OPTION_VERSION:
        break;                     /* tprun's own */
    case TPL_OPTIONS:
        break;
    }
    return TP_OK;
}

static tp_status translate_check(const struct tpl_order *order,
                                 struct tpb_error *error)
{
    for (int id = 0; id < TPL_OPTIONS; id++) {
        tp_status status = TP_OK;

        if (tpl_option_given(order->options, (enum tpl_option)id))
            status = translate_check_one(order, (enum tpl_option)id, error);
        if (status != TP_OK)
            return status;
    }
    return TP_OK;
}

/* A word of the program. */
static void translate_word(const char *word, struct tpl_arguments *arguments)
{
    tpl_arguments_add(arguments, "%s%s", word, tpl_is_colons(word) ? ":" : "");
}

/* A program with what wraps it; the number of words. */
static int translate_program(const struct tpl_app *app,
                             struct tpl_arguments *arguments)
{
    int words = 0;

    if (app->wrap_count > 0)
        for (char **word = app->wraps[0].words; *word != NULL; word++) {
            if (arguments != NULL)
                translate_word(*word, arguments);
            words++;
        }
    for (char **word = app->program; *word != NULL; word++) {
        if (arguments != NULL)
            translate_word(*word, arguments);
        words++;
    }
    return words;
}

static void translate_keeper(const struct tpl_order *order,
                             struct tpl_arguments *arguments)
{
    const struct tpl_options *options = order->options;

    tpl_arguments_add(arguments, "%s", order->keeper);
    tpl_arguments_add(arguments, "-j");
    tpl_arguments_add(arguments, "%s", order->cookie);
    tpl_arguments_add(arguments, "-V");
    tpl_arguments_add(arguments, "%s", PACKAGE_VERSION);
    tpl_arguments_add(arguments, "-C");
    tpl_arguments_add(arguments, "%s", order->directory);
    if (tpl_translate_framed(order->engine, order->major))
        tpl_arguments_add(arguments, "-f");
    if (options->keep_going)
        tpl_arguments_add(arguments, "-k");
    if (options->merge_stderr)
        tpl_arguments_add(arguments, "-m");
    if (options->output != NULL) {
        tpl_arguments_add(arguments, "-o");
        tpl_arguments_add(arguments, "%s", options->output);
    }
    for (int i = 0; i < options->app_count; i++) {
        const struct tpl_app *app = &options->apps[i];

        if (options->app_count == 1 && app->wdir == NULL)
            break;
        tpl_arguments_add(arguments, "-p");
        tpl_arguments_add(arguments, "%d,%d,%s", app->first,
                          translate_program(app, NULL),
                          app->wdir != NULL ? app->wdir : "");
    }
    tpl_arguments_add(arguments, "--");
    for (int i = 0; i < options->app_count; i++)
        translate_program(&options->apps[i], arguments);
}

/* --stdin's argument, which all engines call the same. */
static void translate_input(int input, const char *option,
                            struct tpl_arguments *arguments)
{
    if (input == TPL_STDIN_ALL)
        tpl_arguments_add(arguments, "%sall", option);
    else if (input == TPL_STDIN_NONE)
        tpl_arguments_add(arguments, "%snone", option);
    else
        tpl_arguments_add(arguments, "%s%d", option, input);
}

/* ---- srun --------------------------------------------------------------- */

/* Every rank's host by name: the one distribution that Slurm does not think
 * about. */
static void translate_slurm_hosts(const struct tpl_order *order,
                                  struct tpl_arguments *arguments)
{
    struct tpb_text text = { 0 };

    for (size_t i = 0; i < order->hosts->count; i++)
        for (int k = 0; k < order->hosts->list[i].ranks; k++)
            tpb_text_add(&text, "%s%s", text.length > 0 ? "," : "",
                         order->hosts->list[i].name);
    arguments->failed |= text.failed;
    tpl_arguments_add(arguments, "--distribution=arbitrary");
    tpl_arguments_add(arguments, "--nodelist=%s",
                      text.text != NULL ? text.text : "");
    tpb_text_fini(&text);
}

static tp_status translate_slurm(const struct tpl_order *order,
                                 struct tpl_arguments *arguments,
                                 struct tpb_error *error)
{
    static const char *const binds[] = {
        [TPT_BIND_CORE] = "cores", [TPT_BIND_NUMA] = "ldoms",
        [TPT_BIND_PACKAGE] = "sockets", [TPT_BIND_NONE] = "none",
    };
    const struct tpl_options *options = order->options;

    for (size_t i = 0; i < order->hosts->count; i++)
        if (order->hosts->list[i].user != NULL)
            return tpb_fail(error, TP_ERR_INVALID, "%s@%s: not with --engine "
                            "slurm, which runs jobs as their owner",
                            order->hosts->list[i].user,
                            order->hosts->list[i].name);
    tpl_arguments_add(arguments, "%s", order->program);
    tpl_arguments_add(arguments, "--mpi=pmix");
    tpl_arguments_add(arguments, "--ntasks=%d", options->ranks);
    if (order->hosts->count > 0)
        translate_slurm_hosts(order, arguments);
    tpl_arguments_add(arguments, "--overcommit");
    tpl_arguments_add(arguments, "--overlap");
    tpl_arguments_add(arguments, "--export=ALL");
    translate_input(options->input, "--input=", arguments);
    /* tprun itself ends the step, once it knows which rank was first. */
    tpl_arguments_add(arguments, "--kill-on-bad-exit=0");
    tpl_arguments_add(arguments, "--quit-on-interrupt");
    if (tpl_option_given(options, TPL_OPTION_BIND_TO))
        tpl_arguments_add(arguments, "--cpu-bind=%s%s",
                          options->report_bindings ? "verbose," : "",
                          binds[options->bind]);
    else if (options->report_bindings)
        tpl_arguments_add(arguments, "--cpu-bind=verbose");
    if (options->apps[0].gpus > 0)
        tpl_arguments_add(arguments, "--gpus-per-task=%d",
                          options->apps[0].gpus);
    if (options->tag)
        tpl_arguments_add(arguments, "--label");
    return TP_OK;
}

/* ---- mpirun and prterun ------------------------------------------------- */

/* The one user of all hosts that name one.  NULL: none does. */
static tp_status translate_user(const struct tpl_order *order,
                                const char **user, struct tpb_error *error)
{
    const struct tpl_hosts *hosts = order->hosts;

    *user = NULL;
    for (size_t i = 0; i < hosts->count; i++)
        if (hosts->list[i].user != NULL)
            *user = hosts->list[i].user;
    for (size_t i = 0; *user != NULL && i < hosts->count; i++) {
        const struct tpl_host *host = &hosts->list[i];

        if (!host->here
            && (host->user == NULL || strcmp(host->user, *user) != 0))
            return tpb_fail(error, TP_ERR_INVALID, "%s@...: --engine %s takes "
                            "one user for all other hosts, and %s has "
                            "another; name users in ~/.ssh/config instead",
                            *user, tpl_engine_name(order->engine),
                            host->name);
    }
    return TP_OK;
}

static tp_status translate_host_list(const struct tpl_order *order,
                                     struct tpl_arguments *arguments,
                                     struct tpb_error *error)
{
    struct tpb_text text = { 0 };

    for (size_t i = 0; i < order->hosts->count; i++) {
        const struct tpl_host *host = &order->hosts->list[i];

        if (strchr(host->name, ':') != NULL) {
            tpb_text_fini(&text);
            return tpb_fail(error, TP_ERR_INVALID, "%s: --engine %s takes no "
                            "IPv6 addresses; give it a name in /etc/hosts",
                            host->name, tpl_engine_name(order->engine));
        }
        if (host->ranks > 0)
            tpb_text_add(&text, "%s%s:%d", text.length > 0 ? "," : "",
                         host->name, host->ranks);
    }
    arguments->failed |= text.failed;
    tpl_arguments_add(arguments, "--host");
    tpl_arguments_add(arguments, "%s", text.text != NULL ? text.text : "");
    tpb_text_fini(&text);
    return TP_OK;
}

/* Was it named by -x?  That counts for more than what is best left here, but a
 * launcher's word to its own ranks is none for others, nor are our cpus. */
static bool translate_named(const struct tpl_app *app, const char *entry)
{
    size_t length = strcspn(entry, "=");

    if (tpl_environment_told(entry) || strncmp(entry, "PMIX_", 5) == 0
        || strncmp(entry, "TP_CPUS=", 8) == 0)
        return false;
    for (size_t i = 0; i < app->environment_count; i++)
        if (strcspn(app->environment[i], "=") == length
            && strncmp(app->environment[i], entry, length) == 0)
            return true;
    return false;
}

/* Neither engine forwards the environment by itself. */
static void translate_environment(const struct tpl_order *order,
                                  struct tpl_arguments *arguments)
{
    for (char **entry = order->environment; *entry != NULL; entry++) {
        if (**entry == '='
            || (tpl_translate_stays(*entry)
                && !translate_named(&order->options->apps[0], *entry)))
            continue;
        tpl_arguments_add(arguments, "-x");
        tpl_arguments_add(arguments, "%.*s", (int)strcspn(*entry, "="),
                          *entry);
    }
}

static void translate_mpirun_output(const struct tpl_options *options,
                                    bool prrte,
                                    struct tpl_arguments *arguments)
{
    if (prrte && (options->tag || options->timestamp)) {
        tpl_arguments_add(arguments, "--output");
        tpl_arguments_add(arguments, "%s%s%s", options->tag ? "tag" : "",
                          options->tag && options->timestamp ? "," : "",
                          options->timestamp ? "timestamp" : "");
    }
    /* Who wrote what, for tprun, which tags lines itself. */
    if (!prrte)
        tpl_arguments_add(arguments, "--xml");
    if (tpl_option_given(options, TPL_OPTION_STDIN)) {
        tpl_arguments_add(arguments, "--stdin");
        translate_input(options->input, "", arguments);
    }
    if (options->report_bindings)
        tpl_arguments_add(arguments, prrte ? "--display"
                                           : "--report-bindings");
    if (options->report_bindings && prrte)
        tpl_arguments_add(arguments, "bindings");
}

/*
 * Open MPI waits eight minutes for a host that crashed.  The peers of its ranks
 * know after TP_HEARTBEAT; as long again is theirs to say so, and then the
 * engine is to know, too.  What the user has set stays.
 */
static void translate_heartbeat(const struct tpl_order *order,
                                struct tpl_arguments *arguments)
{
    int64_t limit = (order->heartbeat + 999) / 1000;
    int idle = limit < TRANSLATE_PROBES ? TRANSLATE_PROBES
               : limit > TRANSLATE_IDLE ? TRANSLATE_IDLE : (int)limit;
    const struct { const char *name; int value; } all[] = {
        { "time", idle }, { "intvl", idle / TRANSLATE_PROBES },
        { "probes", TRANSLATE_PROBES }
    };

    for (size_t i = 0; order->heartbeat > 0 && i < TPB_COUNT(all); i++) {
        char name[64];

        snprintf(name, sizeof(name), "OMPI_MCA_oob_tcp_keepalive_%s",
                 all[i].name);
        if (getenv(name) != NULL)
            continue;
        tpl_arguments_add(arguments, "--mca");
        tpl_arguments_add(arguments, "%s", name + strlen("OMPI_MCA_"));
        tpl_arguments_add(arguments, "%d", all[i].value);
    }
}

static tp_status translate_mpirun(const struct tpl_order *order,
                                  struct tpl_arguments *arguments,
                                  struct tpb_error *error)
{
    /* Open MPI 5's mpirun is prterun. */
    bool prrte = order->engine == TPL_ENGINE_PRRTE || order->major >= 5;
    const char *package = prrte ? "package" : "socket";
    const char *binds[] = {
        [TPT_BIND_CORE] = "core", [TPT_BIND_L3] = "l3cache",
        [TPT_BIND_NUMA] = "numa", [TPT_BIND_PACKAGE] = package,
        [TPT_BIND_NONE] = "none",
    };
    const char *maps[] = {
        [TPT_MAP_DEFAULT] = "slot", [TPT_MAP_CORE] = "core",
        [TPT_MAP_L3] = "l3cache", [TPT_MAP_NUMA] = "numa",
        [TPT_MAP_PACKAGE] = package,
    };
    const struct tpl_options *options = order->options;
    const char *user;
    tp_status status = translate_user(order, &user, error);

    if (status != TP_OK)
        return status;
    tpl_arguments_add(arguments, "%s", order->program);
    if (order->root)
        tpl_arguments_add(arguments, "--allow-run-as-root");
    tpl_arguments_add(arguments, "-n");
    tpl_arguments_add(arguments, "%d", options->ranks);
    if (order->hosts->count > 0)
        status = translate_host_list(order, arguments, error);
    tpl_arguments_add(arguments, "--map-by");
    tpl_arguments_add(arguments, "%s:OVERSUBSCRIBE", maps[options->map]);
    if (tpl_option_given(options, TPL_OPTION_BIND_TO)) {
        tpl_arguments_add(arguments, "--bind-to");
        tpl_arguments_add(arguments, "%s", binds[options->bind]);
    }
    translate_mpirun_output(options, prrte, arguments);
    if (options->keep_going && !prrte)
        tpl_arguments_add(arguments, "--continuous");
    else if (options->keep_going) {
        tpl_arguments_add(arguments, "--runtime-options");
        tpl_arguments_add(arguments, "continuous");
    }
    tpl_arguments_add(arguments, prrte ? "--prtemca" : "--mca");
    tpl_arguments_add(arguments, prrte ? "plm_ssh_args" : "plm_rsh_args");
    tpl_arguments_add(arguments, "-o BatchMode=yes -o ConnectTimeout=%d%s%s",
                      TRANSLATE_CONNECT, user != NULL ? " -l " : "",
                      user != NULL ? user : "");
    if (!prrte)
        translate_heartbeat(order, arguments);
    translate_environment(order, arguments);
    return status;
}

tp_status tpl_translate(const struct tpl_order *order,
                        struct tpl_arguments *arguments,
                        struct tpb_error *error)
{
    tp_status status = translate_check(order, error);

    if (status == TP_OK)
        status = order->engine == TPL_ENGINE_SLURM
                 ? translate_slurm(order, arguments, error)
                 : translate_mpirun(order, arguments, error);
    if (status != TP_OK)
        return status;
    translate_keeper(order, arguments);
    if (arguments->failed)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    return TP_OK;
}
