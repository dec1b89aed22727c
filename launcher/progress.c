/* SPDX-License-Identifier: BSD-3-Clause */
/* What is to be said of a job that starts slowly. */
#include "config.h"

#include <stdio.h>
#include <unistd.h>

#include "launcher/progress.h"

static const uint64_t progress_first = 3000000000u;
enum { PROGRESS_NAMED = 8 };       /* ranks */

/* "3, 7 and 12 more": those that run and have not joined. */
static int progress_missing(const struct tpl_job *job, struct tpb_text *text)
{
    int count = 0;

    for (int i = 0; i < job->options->ranks; i++) {
        const struct tpl_rank *rank = &job->ranks[i];

        if (rank->pid > 0 && !rank->ended && !rank->initialized
            && count++ < PROGRESS_NAMED)
            tpb_text_add(text, "%s%d", count > 1 ? ", " : "", i);
    }
    if (count > PROGRESS_NAMED)
        tpb_text_add(text, " and %d more", count - PROGRESS_NAMED);
    return count;
}

static int progress_started(const struct tpl_job *job)
{
    int count = 0;

    for (int i = 0; i < job->options->ranks; i++)
        count += job->ranks[i].pid > 0;
    return count;
}

static void progress_say(struct tpl_timer *timer)
{
    struct tpl_job *job = TPB_CONTAINER(timer, struct tpl_job, slow);
    double seconds = (double)(tpb_now() - job->slow_since) * 1e-9;
    int started = progress_started(job);
    struct tpb_text text = { 0 };
    int missing = progress_missing(job, &text);

    if (job->phase != TPL_RUNNING)
        missing = 0;
    else if (started < job->options->ranks)
        tpl_iof_say(job->iof, "%.0f s: %d of %d ranks have been started",
                    seconds, started, job->options->ranks);
    else if (missing > 0 && job->joined && !text.failed)
        tpl_iof_say(job->iof, "%.0f s: %d of %d ranks have joined the job; "
                    "still to call tp_init (PMIx_Init): rank %s", seconds,
                    job->options->ranks - missing, job->options->ranks,
                    text.text);
    tpb_text_fini(&text);
    /* Less and less often. */
    if (missing > 0 || (job->phase == TPL_RUNNING
                        && started < job->options->ranks))
        tpl_timer_set(job->loop, timer, tpb_now()
                      + (tpb_now() - job->slow_since));
}

void tpl_progress_begin(struct tpl_job *job)
{
    if (!job->options->verbose && !isatty(STDERR_FILENO))
        return;
    job->slow.fire = progress_say;
    job->slow_since = tpb_now();
    tpl_timer_set(job->loop, &job->slow, job->slow_since + progress_first);
}

void tpl_progress_end(struct tpl_job *job)
{
    tpl_timer_set(job->loop, &job->slow, 0);
}
