/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Engines: what starts ranks on other machines in tprun's place.  tprun
 * chooses one, translates its options, runs it, and watches over it: exit
 * status, first cause and signals keep tprun's own rules, because tprun-rank
 * beside every rank tells what happened (launcher/marks.h).
 */
#ifndef TPL_ENGINE_H
#define TPL_ENGINE_H

#include <limits.h>

#include "launcher/translate.h"
#include "runtime/base/settings.h"

struct tpl_engine_plan {
    enum tpl_engine engine;
    struct tpl_hosts hosts;
    char program[PATH_MAX];        /* of the engine */
    int major, minor;
    char keeper[PATH_MAX];         /* tprun-rank */
    char directory[PATH_MAX];
    char cookie[36];
    bool framed;                   /* tpl_translate_framed() */
    struct tpl_arguments arguments;
};

/*
 * Which engine, and its command line; options->ranks is set if the user left
 * it to the hosts or to Slurm.  LOCAL needs nothing more.  INVALID or
 * NOT_FOUND with words.  The caller calls tpl_engine_plan_fini().
 */
tp_status tpl_engine_plan(struct tpl_options *options,
                          const struct tpb_settings *settings,
                          struct tpl_engine_plan *plan,
                          struct tpb_error *error);
void tpl_engine_plan_fini(struct tpl_engine_plan *plan);

/* Prints what would be run; the exit status. */
int tpl_engine_show(const struct tpl_engine_plan *plan);

/* Prints which ranks go where, as far as it was tprun that decided so; the
 * exit status. */
int tpl_engine_show_map(const struct tpl_engine_plan *plan);

/* Runs the job to its end; tprun's exit status.  Minus a signal: tprun should
 * die of it. */
int tpl_engine_run(const struct tpl_engine_plan *plan,
                   const struct tpl_options *options);

/* Finds an engine in PATH, and its version; false with words if there is none
 * that fits. */
bool tpl_engine_find(struct tpl_engine_plan *plan, enum tpl_engine engine,
                     struct tpb_error *error);

/* Says on standard error what keeps the hosts from taking part, one line
 * each; false if nothing was found. */
bool tpl_engine_diagnose(const struct tpl_engine_plan *plan);

#endif
