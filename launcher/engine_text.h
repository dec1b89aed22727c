/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The standard error of an engine and of its ranks, on its way to ours: in
 * whole lines, without the marks, and without what the engine has to say when
 * tprun itself tells why a job failed.
 */
#ifndef TPL_ENGINE_TEXT_H
#define TPL_ENGINE_TEXT_H

#include "launcher/loop.h"
#include "launcher/marks.h"

struct tpl_engine_text {
    struct tpl_loop *loop;
    struct tpl_mark_filter filter;
    struct tpl_timer partial;      /* shows an unfinished line */
    struct tpb_text line;          /* unfinished */
    struct tpb_text block;         /* between two lines of dashes */
    struct tpb_text held;          /* before the first rank */
    struct tpb_text noise;         /* what the engine says of failures */
    bool holds, quiet, in_block, all;
    void (*mark)(const struct tpl_mark *mark, void *arg);
    void (*write)(const char *text, size_t length);
    void *arg;
};

/* `all` leaves out nothing (--verbose).  Marks go to `mark`, what is to be
 * shown to `write`. */
void tpl_engine_text_init(struct tpl_engine_text *text,
                          struct tpl_loop *loop, const char *cookie, bool all,
                          void (*mark)(const struct tpl_mark *, void *),
                          void (*write)(const char *text, size_t length),
                          void *arg);
void tpl_engine_text_feed(struct tpl_engine_text *text, const char *data,
                          size_t length);

/* The first rank runs: what was held back is shown, the rest flows.  What the
 * engine itself says of failures stays back. */
void tpl_engine_text_release(struct tpl_engine_text *text);

/* tprun knows why the job fails: the engine need not explain it any more. */
void tpl_engine_text_hush(struct tpl_engine_text *text);

/* The next thing that srun itself has said of the end of a task, from *from on,
 * which begins as NULL: kind, rank, value and words of `mark`; its host and pid
 * are as they were.  False: nothing more. */
bool tpl_engine_text_task(const struct tpl_engine_text *text,
                          const char **from, struct tpl_mark *mark);

/* Nothing more will come: shows what is unfinished. */
void tpl_engine_text_end(struct tpl_engine_text *text);
void tpl_engine_text_fini(struct tpl_engine_text *text);

#endif
