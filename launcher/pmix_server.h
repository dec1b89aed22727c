/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tprun as the PMIx server of its ranks.  No PMIx type leaves the launcher's
 * pmix files.
 *
 * libpmix calls up on its own thread; those calls are answered at once or put
 * in a queue for the main thread, which works it off in
 * tpl_pmix_dispatch().  Nothing here decides when a rank or the job has
 * ended: that is waitpid's word alone.
 *
 * What libpmix 4.2 does by itself, without asking us: fences and direct modex
 * among ranks of one machine.  A PMIx_Get of what another rank has not
 * committed yet waits for it, for PMIX_TIMEOUT seconds or by libpmix's own
 * default 2, and then fails with PMIX_ERR_TIMEOUT; also if that rank is gone,
 * which a server has no means to answer earlier.  So clients ask again after a
 * timeout, and learn of a death from the event (tpl_pmix_ended), which comes
 * at once to handlers registered for its code.
 */
#ifndef TPL_PMIX_SERVER_H
#define TPL_PMIX_SERVER_H

#include "launcher/loop.h"
#include "launcher/options.h"
#include "topology/bind.h"

enum tpl_pmix_what {
    TPL_PMIX_CONNECTED,
    TPL_PMIX_FINALIZED,
    TPL_PMIX_LEFT,                 /* tp_finalize(), before FINALIZED */
    TPL_PMIX_DENIED,               /* it does not get to its door */
    TPL_PMIX_ABORT
};

/* What a rank did. */
struct tpl_pmix_event {
    enum tpl_pmix_what what;
    int rank;
    int status;                    /* ABORT */
    const char *reason;            /* ABORT, DENIED; valid during the call;
                                      maybe "" */
    bool by_door;                  /* not by PMIx; see launcher/door.h */
};
typedef void tpl_pmix_fn(const struct tpl_pmix_event *event, void *arg);

/* How a rank ended, in the words that the others get as an event. */
enum tpl_pmix_end {
    TPL_PMIX_WELL,                 /* no event */
    TPL_PMIX_BY_SIGNAL,            /* PMIX_ERR_PROC_ABORTED_BY_SIG */
    TPL_PMIX_UNFINALIZED,          /* PMIX_ERR_PROC_TERM_WO_SYNC */
    TPL_PMIX_BY_STATUS             /* PMIX_ERR_EXIT_NONZERO_TERM */
};

/*
 * Changes the environment as our libpmix needs it, until
 * tpl_pmix_environment(); nothing else here changes it, so other threads may
 * read it meanwhile.
 */
void tpl_pmix_prepare(void);

/*
 * Starts libpmix's server; makes two threads, so the signals that only the
 * main thread shall get are blocked before.  Once per process, never undone:
 * with nothing on disk and one job per process, exit is the clean-up.
 * BACKEND with words if libpmix cannot.
 */
tp_status tpl_pmix_start(const char *job, struct tpb_error *error);

/*
 * Makes the job known, so that ranks can connect.  The first one asks libpmix,
 * which does it on its own thread; the second one waits for that, at most 30
 * s, and there must be no rank before.
 */
tp_status tpl_pmix_register(const struct tpl_options *options,
                            const struct tpt_bind_plan *plan,
                            struct tpb_error *error);
tp_status tpl_pmix_registered(struct tpb_error *error);

/*
 * The environment for a rank: this process's own, cleared of what an outer
 * launcher put there, and all that PMIx wants.  Static; tpl_pmix_set_rank()
 * changes it for the next rank.  BACKEND or NO_MEMORY.
 */
tp_status tpl_pmix_environment(char ***environment, struct tpb_error *error);
void tpl_pmix_set_rank(int rank);

/* What libpmix says of itself. */
const char *tpl_pmix_version(void);

/* Calls `fn` from the loop for each event.  0, or -1 with errno: not a word
 * of a rank's would be heard. */
int tpl_pmix_watch(struct tpl_loop *loop, tpl_pmix_fn *fn, void *arg);

/* Works off what has arrived by now. */
void tpl_pmix_dispatch(void);

/* This rank has ended; `code` is its signal or status.  Tells the others if it
 * was abnormal.  Does not wait. */
void tpl_pmix_ended(int rank, enum tpl_pmix_end end, int code);

#endif
