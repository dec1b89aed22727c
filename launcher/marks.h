/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Marks: what tprun-rank, beside every rank that an engine has started, tells
 * tprun of it.  They travel in the rank's standard error, because this is the
 * one way that every engine has, and tprun takes them out again.
 *
 *   RS "tp" COOKIE ' ' KIND ' ' RANK ' ' PID ' ' VALUE ' ' HOST ' ' WORDS RS NL
 *
 * RS is ASCII's record separator.  The cookie is the job's, so that no text of
 * a rank is taken for one by chance.  A mark is written in one piece of less
 * than PIPE_BUF bytes.
 */
#ifndef TPL_MARKS_H
#define TPL_MARKS_H

#include "runtime/base/base.h"

#define TPL_MARK_EDGE '\036'
enum { TPL_MARK_SIZE = 1024 };

enum tpl_mark_kind {
    TPL_MARK_STARTED = 'S',
    TPL_MARK_EXITED = 'E',         /* value: status */
    TPL_MARK_KILLED = 'K',         /* value: signal */
    TPL_MARK_UNFINALIZED = 'U',    /* status 0 between tp_init and finalize */
    TPL_MARK_ABORT = 'A',          /* value: status; words: the reason */
    TPL_MARK_REFUSED = 'X'         /* not started; value: status; words: why */
};

struct tpl_mark {
    enum tpl_mark_kind kind;
    int rank, pid, value;
    char host[256], words[512];
};

/* Puts one together, with its newline; returns its length. */
size_t tpl_mark_format(char line[TPL_MARK_SIZE], const char *cookie,
                       const struct tpl_mark *mark);

/*
 * Looks for marks with that cookie in a stream.  Feed what was read; what is
 * text goes to `text`, marks to `mark`, in their order.  At most
 * TPL_MARK_SIZE bytes are kept back while a mark is incomplete; `flush` gives
 * up waiting for its end.
 */
struct tpl_mark_filter {
    const char *cookie;
    void (*text)(const char *data, size_t length, void *arg);
    void (*mark)(const struct tpl_mark *mark, void *arg);
    void *arg;
    char held[TPL_MARK_SIZE];
    size_t held_length;
    bool swallow;                  /* the newline behind a mark */
};
void tpl_mark_feed(struct tpl_mark_filter *filter, const char *data,
                   size_t length);
void tpl_mark_flush(struct tpl_mark_filter *filter);

#endif
