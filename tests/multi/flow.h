/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A flow: both ends of a pipe write letters to each other and read them, all
 * by callbacks, several at once, and check order, number and every byte.
 */
#ifndef TPX_FLOW_H
#define TPX_FLOW_H

#include "tests/multi/letter.h"
#include "tests/multi/spmd.h"

/* What a flow shall be; the same at both ends. */
struct tpx_flow_plan {
    enum tpx_letter_kind kind;
    unsigned count;            /* letters each way */
    unsigned writes;           /* under way at once */
    unsigned reads;            /* descriptors armed at once */
};

struct tpx_flow {
    struct tpx_flow_plan plan;
    tp_pipe *pipe;
    int peer;
    unsigned number;
    unsigned write_next, write_done;   /* indices of letters */
    unsigned armed, arrived, read_done;
    struct tpx_flow_letter *held;      /* atomic: arrived, not yet read */
    uint64_t state;            /* of the choices made on the way */
};

/* The pipe of that number to that rank. */
void tpx_flow_start(struct tpx_flow *flow, int peer, unsigned number,
                    const struct tpx_flow_plan *plan);

/* Drives until all are over; checks that the counts agree. */
void tpx_flow_finish(struct tpx_flow *flows, unsigned count);

#endif
