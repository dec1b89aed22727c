/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The output of Open MPI 4's `mpirun --xml`, which says of each piece which
 * rank wrote it, and escapes what is in it:
 *
 *   <mpirun>
 *   <stderr rank="3">...</stderr><stdout rank="0">two &lt;&#010;</stdout>
 *   <stderr>what mpirun itself has to say&#010;</stderr>
 *   </mpirun>
 *
 * It was read in v4.1.4's orte/mca/iof/base/iof_base_output.c and
 * orte/util/show_help.c; 4.0 to 4.1.6 have the same.
 */
#ifndef TPL_PIECES_H
#define TPL_PIECES_H

#include "runtime/base/base.h"

enum { TPL_PIECES_TAG = 48 };

/*
 * Feed what was read.  What a rank wrote to its standard error goes to `rank`;
 * all the rest to `rest`: what mpirun says, and what is none of its XML.
 * Pieces of one rank come in their order.
 */
struct tpl_pieces {
    void (*rank)(int rank, const char *data, size_t length, void *arg);
    void (*rest)(const char *data, size_t length, void *arg);
    void *arg;
    int from, outer;               /* of the open element and the one around
                                    * it: a rank, or PIECES_REST */
    bool swallow;                  /* the newline behind an element */
    size_t held_length;
    char held[TPL_PIECES_TAG];     /* an unfinished <tag> or &character; */
};
void tpl_pieces_init(struct tpl_pieces *pieces);
void tpl_pieces_feed(struct tpl_pieces *pieces, const char *data,
                     size_t length);

/* No more comes. */
void tpl_pieces_flush(struct tpl_pieces *pieces);

#endif
