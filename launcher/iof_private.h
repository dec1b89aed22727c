/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the files behind launcher/iof.h share: a stream from each rank
 * (iof_stream.c) goes to one of two outputs (iof_output.c) by way of the
 * latter's stage.
 */
#ifndef TPL_IOF_PRIVATE_H
#define TPL_IOF_PRIVATE_H

#include <time.h>

#include "launcher/iof.h"

enum {
    TPL_STREAM_MOST = 65536,       /* a stream's buffer at most */
    TPL_STREAM_FED = 1 << 20,      /* of one that is fed */
    TPL_STREAM_MARGIN = 384 * 1024,     /* a fed one with less room is crowded:
                                    * what is at hand then still fits */
    TPL_OUTPUT_STAGE = 65536
};

enum tpl_iof_kind { TPL_IOF_FILE, TPL_IOF_PIPE, TPL_IOF_SOCKET };

struct stat;
struct tpl_output;

/* From one rank, or tprun's own lines (no descriptor). */
struct tpl_stream {
    struct tpl_watch watch;
    struct tpb_list node;          /* in its output's list while it has data */
    struct tpl_iof *iof;
    struct tpl_output *output;
    int rank;
    char *buffer;
    size_t capacity;
    size_t start, ready, end;      /* start..ready whole lines, ..end a part */
    uint64_t last;                 /* when data came last */
    uint64_t since;                /* when the unfinished line began */
    bool ended, fed;
};

/* tprun's standard output or error. */
struct tpl_output {
    struct tpl_watch watch;
    struct tpl_timer timer;
    struct tpl_iof *iof;
    struct tpb_list streams;       /* those with data */
    struct tpl_stream *open;       /* whose line is not finished yet */
    uint64_t waiting;              /* since when others wait for it; 0: no */
    uint64_t ran;                  /* for how.starving */
    enum tpl_iof_kind kind;
    bool terminal;
    int own;                       /* a descriptor for it; -1: none */
    int failed;                    /* errno; everything is dropped */
    size_t start, end;
    char stage[TPL_OUTPUT_STAGE];  /* what is to be written, in order */
};

struct tpl_iof {
    struct tpl_loop *loop;
    struct tpl_iof_how how;
    time_t second;                 /* that `clock` shows */
    char clock[16];
    int lost;
    uint64_t written;              /* bytes, by both outputs */
    struct tpl_output outputs[2];
    struct tpl_output *error;      /* where tprun's own lines go */
    struct tpl_stream own;
    bool crowded;                  /* a fed stream was, and may still be */
    void (*room)(void *arg);
    void *arg;
    size_t count;
    struct tpl_stream *streams;    /* two per rank */
};

/* How long an unfinished line is left alone on a terminal. */
static const uint64_t tpl_iof_terminal_pause = 100000000;

/* A fed stream is not crowded any more: if none is, the feeder goes on. */
void tpl_iof_relieved(struct tpl_iof *iof);

void tpl_stream_init(struct tpl_stream *stream, struct tpl_iof *iof,
                     struct tpl_output *output, int rank);

/* Reads from `fd`, which is the stream's from here.  -1 with errno. */
int tpl_stream_watch(struct tpl_stream *stream, int fd);

/* No more comes; what has come stays. */
void tpl_stream_end(struct tpl_stream *stream);

/* Appends whole lines; false if there is no room for all of it. */
bool tpl_stream_add(struct tpl_stream *stream, const char *text,
                    size_t length);

/* Appends a part of a line, or several, as if it were read. */
void tpl_stream_put(struct tpl_stream *stream, const char *data,
                    size_t length);

/* Has it no room for what its feeder may have at hand? */
bool tpl_stream_crowded(const struct tpl_stream *stream);

/* How many bytes may go out now; 0 if the stream has to wait for the end of
 * its line. */
size_t tpl_stream_movable(struct tpl_stream *stream, uint64_t now);

/* After bytes have gone out: unlinks what is empty, rotates what is not, reads
 * again. */
void tpl_stream_moved(struct tpl_stream *stream);

void tpl_output_init(struct tpl_output *output, struct tpl_iof *iof,
                     int fd, const struct stat *file);
void tpl_output_fini(struct tpl_output *output);

/* Moves data from the streams out, as long as it goes without waiting. */
void tpl_output_pump(struct tpl_output *output);

/* Has everything been written? */
bool tpl_output_empty(const struct tpl_output *output);

#endif
