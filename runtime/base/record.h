/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a rank does, for others to read: counters per pipe, and what it waits
 * for, in memory that tprun makes (a memfd without a name), its ranks write,
 * and tprun and tptop read, also after the rank has died.
 *
 * A file of one header, a page, and, for each rank, a section of whole pages: a
 * tpb_record_rank and behind it `slots` tpb_record_pipe.  A rank maps its own
 * section only.  All members are written by their rank with relaxed stores and
 * may be read at any time; one word is never torn, several need not fit
 * together.  But all of a tpb_record_pipe's are of one pipe: a slot that is
 * given back is used again, and its serial tells.  Readers trust nothing: what
 * they copy they check.
 */
#ifndef TPB_RECORD_H
#define TPB_RECORD_H

#include "runtime/base/base.h"

#define TPB_RECORD_MAGIC UINT64_C(0x64726f6365727074)  /* "tprecord" */
#define TPB_RECORD_NAME "tp-record"

enum {
    TPB_RECORD_VERSION = 3,
    TPB_RECORD_SLOTS = 1024,       /* of one rank, at most; if that is more: */
    TPB_RECORD_GUESTS = 256,       /* so many and one for each rank */
    TPB_RECORD_RANKS = 65536
};

struct tpb_record_file {
    uint64_t magic;
    uint32_t version, ranks;
    uint32_t slots;                /* of each rank */
    uint32_t stride;               /* bytes of one section */
    uint64_t started;              /* nanoseconds since 1970 */
    char job[64];
};

enum tpb_record_phase {
    TPB_PHASE_NONE,                /* has not called tp_init */
    TPB_PHASE_INIT, TPB_PHASE_RUNNING, TPB_PHASE_FINALIZE,
    TPB_PHASE_DONE                 /* tp_finalize is over */
};

enum tpb_record_wait {
    TPB_WAIT_NONE,
    TPB_WAIT_SEND,                 /* for the peer to take a message */
    TPB_WAIT_RECEIVE,              /* for a message to come */
    TPB_WAIT_READ,                 /* for the rest of one that has come */
    TPB_WAIT_ANY                   /* tp_wait: for anything */
};

/* What a rank has open of other processes' device memory, over all pairs. */
struct tpb_record_imports {
    uint64_t opened, found, closed;    /* so far; found: open already */
    uint64_t open, open_bytes;         /* now */
    uint64_t pulled, pulled_bytes;     /* buffers copied out of them */
    uint64_t lent;                     /* and used in place */
};

/* What went over pipes whose slots were given back, over all programs. */
struct tpb_record_gone {
    uint64_t changes;              /* odd while it changes */
    uint64_t messages_sent, messages_received;
    uint64_t bytes_sent, bytes_received;
};

struct tpb_record_rank {
    uint32_t phase;                /* enum tpb_record_phase */
    uint32_t pid;
    uint32_t used;                 /* slots that are taken, or were */
    uint32_t unrecorded;           /* pipes that found no slot */
    uint32_t wait;                 /* enum tpb_record_wait; once it sleeps */
    int32_t wait_peer;             /* -1: no certain one */
    uint64_t wait_since;           /* tpb_now() */
    struct tpb_record_imports imports;
    uint32_t waits;                /* threads that do; `wait` is that of one */
    uint32_t ended;                /* by who started it: its process is over,
                                      and nothing here changes any more */
    uint64_t serial;               /* of the last pipe, over all programs */
    struct tpb_record_gone gone;
    int64_t ahead;                 /* ns that its tpb_now() is ahead of the
                                      host's: in a time namespace */
    uint64_t unused[4];
};
_Static_assert(sizeof(struct tpb_record_rank) == 192, "record of a rank");

struct tpb_record_pipe {
    uint64_t serial;               /* no two pipes of a rank have the same; 0:
                                      the slot is nobody's */
    int32_t peer;                  /* -1: outside the job */
    uint32_t number;
    uint64_t blocked_since;        /* no room or credit for a write; 0: fine */
    struct tp_stats stats;         /* `transport` too, once connected */
};
_Static_assert(sizeof(struct tpb_record_pipe) == 112, "record of a pipe");

/* A mapped record.  The last two are what the file said when it was checked:
 * whoever has it mapped as well may say something else later. */
struct tpb_record {
    struct tpb_record_file *file;  /* NULL: none */
    size_t size;                   /* bytes */
    uint32_t ranks, stride;
    int64_t ahead;                 /* of whoever reads */
};

/*
 * Makes the record of a job and maps it.  *fd is the caller's, and not
 * close-on-exec, for ranks inherit it; `text` becomes the value of TP_RECORD.
 */
tp_status tpb_record_make(const char *job, uint32_t ranks,
                          struct tpb_record *record, int *fd, char text[64],
                          struct tpb_error *error);

/* Whoever made it: this rank's process has ended. */
void tpb_record_ended(const struct tpb_record *record, uint32_t rank);

/* Maps a record to read, INVALID with words if it is none.  The descriptor
 * stays the caller's. */
tp_status tpb_record_open(int fd, struct tpb_record *record,
                          struct tpb_error *error);
void tpb_record_close(struct tpb_record *record);

/* Copies of what a rank says, its counts within bounds and its times those of
 * the reader's clock, and past; false if there is no such rank or slot.  The
 * copy of a slot is of one pipe, or all zero.  Of gone.changes and what is
 * copied after it, also of slots: if a later copy has the same, and even, no
 * slot was given back meanwhile. */
bool tpb_record_rank(const struct tpb_record *record, uint32_t rank,
                     struct tpb_record_rank *copy);
bool tpb_record_pipe(const struct tpb_record *record, uint32_t rank,
                     uint32_t slot, struct tpb_record_pipe *copy);

/* ---- the rank's side ---------------------------------------------------- */

struct tpb_record_section {
    struct tpb_record_rank *rank;  /* NULL: none */
    struct tpb_record_pipe *pipes;
    uint32_t slots;
    size_t size;
    uint64_t taken[TPB_RECORD_SLOTS / 64];     /* a bit for each */
};

/*
 * Maps the section of `rank`, `text` being the value of TP_RECORD.  Any failure
 * is INVALID with words, and harmless.
 */
tp_status tpb_record_attach(const char *text, uint32_t rank,
                            struct tpb_record_section *section,
                            struct tpb_error *error);
void tpb_record_detach(struct tpb_record_section *section);
/* By how many ns tpb_now() is ahead of the host's here; 0 too where /proc does
 * not tell. */
int64_t tpb_record_ahead(void);

/* Closes what a launcher above has given this process, a launcher itself;
 * `text` is as above. */
void tpb_record_forget(const char *text);

/*
 * The lowest slot that is free, for a pipe that has counted nothing; NULL if
 * all are taken.  tpb_record_give() gives it back, and what it counted is added
 * to what is gone; whoever had it has ceased to write to it.  The caller's lock
 * keeps these calls apart.
 */
struct tpb_record_pipe *tpb_record_take(struct tpb_record_section *section,
                                        int32_t peer, uint32_t number);
void tpb_record_give(struct tpb_record_section *section,
                     struct tpb_record_pipe *pipe);
/* The name of its transport; by whoever writes to it. */
void tpb_record_transport(struct tpb_record_pipe *pipe, const char *name);

#define TPB_RECORD_SET(member, value) \
    __atomic_store_n(&(member), (value), __ATOMIC_RELAXED)
#define TPB_RECORD_ADD(member, value) \
    TPB_RECORD_SET(member, (member) + (value))
#define TPB_RECORD_GET(member) __atomic_load_n(&(member), __ATOMIC_RELAXED)

#endif
