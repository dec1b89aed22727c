/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What ranks print under an engine that cuts it into pieces: put together
 * again, and written line by line as on one machine (launcher/iof.h).
 */
#ifndef TPL_ENGINE_OUTPUT_H
#define TPL_ENGINE_OUTPUT_H

#include "launcher/engine_text.h"
#include "launcher/frames.h"
#include "launcher/iof.h"
#include "launcher/pieces.h"

struct tpl_engine_output {
    struct tpl_loop *loop;
    struct tpl_watch watch;        /* the engine's standard output */
    struct tpl_pieces pieces;
    struct tpl_iof *iof;           /* NULL: not open */
    struct tpl_engine_text *text;
    struct output_reader **readers;     /* of ranks that have written */
    int ranks;
    bool unread;                   /* a rank wrote what nobody reads */
};

/* Marks and the engine's own words go to `text`.  *writer is for the engine's
 * standard output, and the caller's. */
tp_status tpl_engine_output_open(struct tpl_engine_output *output,
                                 struct tpl_loop *loop, int ranks,
                                 const struct tpl_iof_how *how,
                                 struct tpl_engine_text *text, int *writer,
                                 struct tpb_error *error);

/* Nothing more will come: shows what is unfinished. */
void tpl_engine_output_end(struct tpl_engine_output *output);

/* Is the engine kept waiting by who reads from tprun? */
bool tpl_engine_output_waits(const struct tpl_engine_output *output);

void tpl_engine_output_fini(struct tpl_engine_output *output);

#endif
