/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What ranks print, line by line.
 *
 * Each rank has a pipe for its standard output and one for its standard
 * error; whole lines go to tprun's own, those of one stream in order, never
 * one inside another.  Memory is bounded: a stream that cannot be passed on is
 * not read, and its rank waits in write(2).  A line longer than the buffer
 * begins to flow before its end has come and the others wait for it; should
 * it pause for five seconds, it is ended with a newline so that it cannot
 * hold them up for ever; that its rank gets no cpu is no pause.  On a
 * terminal, unfinished lines (a prompt, a progress bar) are shown after a
 * tenth of a second.  What a rank leaves unfinished at its end is kept as it
 * is, followed by a newline only if something else follows.
 */
#ifndef TPL_IOF_H
#define TPL_IOF_H

#include <stdarg.h>

#include "launcher/loop.h"

struct tpl_iof;

/* What is done with it. */
struct tpl_iof_how {
    bool tag;                      /* "[rank] " before every line */
    bool timestamp;                /* "12:46:30.123 " before that */
    bool merge;                    /* standard error goes where output goes */
    bool pty;                      /* ranks write to terminals */
    const char *directory;         /* ranks write to files there; or NULL */
    /* Is that rank held up by others on this machine?  See tpl_starving();
     * or NULL. */
    bool (*starving)(int rank, uint64_t *ran);
};

/*
 * Prepares for `ranks` ranks; `how` is copied.
 * Standard output and error that are one and the same file are written
 * through one queue.  The caller calls tpl_iof_free().
 */
tp_status tpl_iof_new(struct tpl_loop *loop, int ranks,
                      const struct tpl_iof_how *how, struct tpb_error *error,
                      struct tpl_iof **iof);
void tpl_iof_free(struct tpl_iof *iof);        /* NULL is allowed */

/*
 * Makes what a rank writes to, and watches the other ends.  *out and *err may
 * be the same; the caller closes them when the rank runs.
 */
tp_status tpl_iof_open(struct tpl_iof *iof, int rank, int *out, int *err,
                       struct tpb_error *error);

/* With how.pty: another descriptor of the side that tprun has of the terminal
 * of a rank that was opened, for its input; the caller's.  -1 with errno. */
int tpl_iof_terminal(struct tpl_iof *iof, int rank);

/*
 * All streams are fed from here on, instead of opened: what the ranks write
 * comes to tprun by other ways.  A stream holds a megabyte then, for those that
 * one feeds wait for the slowest; a longer line is broken if others wait.
 */
void tpl_iof_feed(struct tpl_iof *iof, void (*room)(void *arg), void *arg);

/* Something from a rank, 16 KiB at most.  False, and dropped, if the stream has
 * ended, be it for want of a reader. */
bool tpl_iof_put(struct tpl_iof *iof, int rank, bool error, const char *data,
                 size_t length);

/* Is a stream nearly full?  The feeder waits then until `room` is called.  What
 * it has at hand, 384 KiB at most, still has its place. */
bool tpl_iof_crowded(const struct tpl_iof *iof);

/* No more comes from this rank. */
void tpl_iof_end(struct tpl_iof *iof, int rank);

/* Words of others, whole lines as a rule, in turn with tprun's own. */
void tpl_iof_pass(struct tpl_iof *iof, const char *text, size_t length);

/* The terminal that tprun is on has another size: so get those of the ranks. */
void tpl_iof_resize(struct tpl_iof *iof);

/* A line of tprun itself, "tprun: ", the words, and a newline: cut to fit, one
 * line whatever is in the words, and not ended with a NUL.  Returns its
 * length. */
size_t tpl_iof_word(char *line, size_t size, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

/* Such a line, in turn with the others. */
void tpl_iof_say(struct tpl_iof *iof, const char *format, ...)
    TPB_PRINTF(2, 3);

/* Has every stream ended, and all that goes to standard error been written?
 * Then is the time for tprun's last line. */
bool tpl_iof_ended(const struct tpl_iof *iof);

/* Has everything been written? */
bool tpl_iof_done(const struct tpl_iof *iof);

/* How many bytes tprun has written so far. */
uint64_t tpl_iof_written(const struct tpl_iof *iof);

/* Has a rank written what has not been read yet?  Then it is our reader that is
 * slow, and no end of a stream that is missing. */
bool tpl_iof_behind(const struct tpl_iof *iof);

/* Gives up waiting for ends of streams: what has come so far is all. */
void tpl_iof_hang_up(struct tpl_iof *iof);

/* The errno at which output was lost, 0 if none was.  A reader that went away
 * (EPIPE) is not a loss. */
int tpl_iof_lost(const struct tpl_iof *iof);

/* Has a reader of tprun's output gone away?  Then ranks get SIGPIPE. */
bool tpl_iof_unread(const struct tpl_iof *iof);

#endif
