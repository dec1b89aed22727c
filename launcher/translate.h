/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tprun's options in the words of an engine.  Pure: from options and hosts to
 * an argument list, without a look at the machine.
 */
#ifndef TPL_TRANSLATE_H
#define TPL_TRANSLATE_H

#include <string.h>

#include "launcher/hosts.h"
#include "launcher/options.h"

/* For engines a word ":" ends the program: words of nothing but colons get one
 * more on their way to tprun-rank, which takes it away. */
static inline bool tpl_is_colons(const char *word)
{
    return *word == ':' && word[strspn(word, ":")] == '\0';
}

enum { TPL_ENGINES = TPL_ENGINE_OPENMPI + 1 };

/* "slurm"; what --engine takes. */
const char *tpl_engine_name(enum tpl_engine engine);

/* A growing argument list.  Zeroed is empty; on lack of memory `failed` is
 * set and later additions do nothing. */
struct tpl_arguments {
    char **list;                   /* ends with NULL once something is in */
    size_t count;
    bool failed;
};
void tpl_arguments_add(struct tpl_arguments *arguments, const char *format,
                       ...) TPB_PRINTF(2, 3);
void tpl_arguments_fini(struct tpl_arguments *arguments);

/* Puts it as one would type it into a shell. */
void tpl_arguments_show(const struct tpl_arguments *arguments,
                        struct tpb_text *text);

struct tpl_order {
    enum tpl_engine engine;
    const char *program;           /* of the engine: "/usr/bin/srun" */
    int major, minor;              /* its version */
    const struct tpl_options *options;
    const struct tpl_hosts *hosts; /* placed; empty: the engine's choice */
    char **environment;            /* to forward where that needs words */
    const char *keeper;            /* path of tprun-rank */
    const char *cookie;            /* of the job's marks */
    const char *directory;         /* where ranks run */
    bool root;                     /* run by root */
    int64_t heartbeat;             /* TP_HEARTBEAT in ms; 0: off */
};

/*
 * The engine's whole command line.  INVALID with words that name the option
 * that the engine has nothing for.
 */
tp_status tpl_translate(const struct tpl_order *order,
                        struct tpl_arguments *arguments,
                        struct tpb_error *error);

/* Does the engine say which rank wrote what, so that tprun-rank and tprun can
 * keep lines whole (launcher/pieces.h)? */
bool tpl_translate_framed(enum tpl_engine engine, int major);

/* Is this variable one of this host or of an outer launcher, which a rank on
 * another host is better off without? */
bool tpl_translate_stays(const char *entry);

#endif
