/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tptop: what the ranks of a running job do, from their records.  Two looks at
 * the records make a sample with rates; a sample is shown on the screen or
 * printed as JSON.
 */
#ifndef TPL_TPTOP_H
#define TPL_TPTOP_H

#include <sys/types.h>

#include "runtime/base/record.h"

struct tptop_options {
    pid_t pid;                     /* of tprun; 0: the only one there is */
    bool json, help, version;
    double interval;               /* seconds */
    int count;                     /* samples; 0: until the job ends */
};

/* A further phase: the process ended without tp_finalize. */
enum { TPTOP_ENDED = TPB_PHASE_DONE + 1 };

/* Everything that is known of one rank at one moment. */
struct tptop_rank {
    struct tpb_record_rank record;
    struct tpb_record_pipe *pipes; /* record.used; serial 0: none */
};

struct tptop_look {
    uint64_t at;                   /* tpb_now() */
    uint32_t count;
    struct tptop_rank *ranks;
};

struct tptop_sample {
    pid_t pid;
    const struct tpb_record_file *file;
    struct tptop_look before, now;
    double seconds;                /* between the two; 0 at first */
    double interval;               /* that was asked for */
};

/* Per second and of one pipe, or summed up. */
struct tptop_rates {
    double messages_out, bytes_out, messages_in, bytes_in;
    uint64_t queued;               /* writes and reads pending */
    uint64_t buffered;             /* bytes */
};

/*
 * tptop_find.c: the record of the job of `pid`, or if that is 0 of the only
 * tprun whose record may be read; *pid gets it.  NOT_FOUND or DENIED with
 * words, which list the jobs if there are several.
 */
tp_status tptop_find(pid_t *pid, struct tpb_record *record,
                     struct tpb_error *error);

/* tptop_sample.c: looks again; NO_MEMORY.  The caller ends with
 * tptop_sample_fini(); zeroed is empty. */
tp_status tptop_look(struct tptop_sample *sample,
                     const struct tpb_record *record);
void tptop_sample_fini(struct tptop_sample *sample);
struct tptop_rates tptop_pipe_rates(const struct tptop_sample *sample,
                                    uint32_t rank, uint32_t slot);
struct tptop_rates tptop_rank_rates(const struct tptop_sample *sample,
                                    uint32_t rank);
/* "receive from 3", "running", "tp_finalize": so long at most. */
enum { TPTOP_STATE = sizeof("receive from outside") - 1 };
void tptop_state(const struct tptop_rank *rank, char *text, size_t size);

/* tptop_json.c: one object on one line of standard output; -1 with errno. */
int tptop_json(const struct tptop_sample *sample);

/* tptop_screen.c */
tp_status tptop_screen_open(struct tpb_error *error);
void tptop_screen_show(const struct tptop_sample *sample);
/* Waits for a key, at most `seconds`.  False: the user wants to leave. */
bool tptop_screen_wait(double seconds);
void tptop_screen_close(void);

#endif
