/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How ranks learn of each other: one card published, cards fetched on demand,
 * nothing collective.  Three ways: PMIx (any PMIx host), a directory (tests),
 * alone (not launched).
 */
#ifndef TPR_BOOTSTRAP_H
#define TPR_BOOTSTRAP_H

#include "runtime/base/settings.h"

struct tpr_bootstrap;

/* Has a rank left by tp_finalize()?  Sent as it is. */
enum tpr_left {
    TPR_LEFT_NOT = 0,
    TPR_LEFT_WELL = 1,
    TPR_LEFT_LOSING = 2            /* not all that it wrote was taken in time */
};

struct tpr_bootstrap_ops {
    const char *name;
    /* Publishes this rank's card, once.  Sets `published` itself where it may
     * fail after others have the card. */
    tp_status (*publish)(struct tpr_bootstrap *bootstrap, const void *blob,
                         size_t length, struct tpb_error *error);
    /* Asks for a rank's card; never blocks.  The answer comes, once, through
     * tpr_card_arrived(), from any thread, also from inside this call. */
    void (*fetch)(struct tpr_bootstrap *bootstrap, int rank);
    /* May be NULL.  Called now and then while fetches are outstanding;
     * returns the nanoseconds until it wants to be called again, 0: not. */
    uint64_t (*poll)(struct tpr_bootstrap *bootstrap);
    /* May be NULL: nothing to be done.  This rank may be meant by ranks that
     * it has not heard of, so it wants to be asked; called again after each
     * tpr_peer_asks(). */
    void (*listen)(struct tpr_bootstrap *bootstrap);
    /* May be NULL.  Tells a rank that this one has trouble to reach it, or
     * that it has given up, so that it tries itself; its tpr_peer_asks() hears
     * of it.  False: it may not hear it, or cannot be told. */
    bool (*ask)(struct tpr_bootstrap *bootstrap, int rank, bool gave_up);
    /* May be NULL: no.  Is it known by now that no rank can be asked? */
    bool (*mute)(struct tpr_bootstrap *bootstrap);
    /* May be NULL, both or none.  This rank's context is in tp_finalize(): who
     * did not meet it by now never will.  Tells nobody unless asked.  `losing`:
     * not all that was written was taken in time. */
    void (*leave)(struct tpr_bootstrap *bootstrap, bool losing);
    /* Asks whether a rank did that; never blocks.  The answer comes through
     * tpr_rank_left(), from any thread, also from inside this call, or never:
     * the milliseconds after which that is so.  0: there will be none. */
    unsigned (*left)(struct tpr_bootstrap *bootstrap, int rank);
    /* Ends the job; does not return. */
    void (*abort)(struct tpr_bootstrap *bootstrap, int code,
                  const char *reason);
    /* May be NULL: it has no thread of its own.  From now on the context hears
     * nothing more from other threads, so it may be taken apart; close comes
     * next.  May wait for a call that is under way. */
    void (*quiet)(struct tpr_bootstrap *bootstrap);
    void (*close)(struct tpr_bootstrap *bootstrap);
};

struct tpr_bootstrap {
    const struct tpr_bootstrap_ops *ops;
    tp_context *context;           /* for tpr_card_arrived() and so on */
    int rank, size, local_rank, local_size;
    char job[64];
    uint32_t number;               /* of the context, from 1 on; 0: of none */
    bool published;                /* others may have heard of that */
};

/*
 * Opens what TP_BOOTSTRAP names; "auto" is PMIx if a launcher is there, else
 * alone.  On TP_OK the caller closes *bootstrap with tpr_bootstrap_close().
 */
tp_status tpr_bootstrap_open(const struct tpb_settings *settings,
                             tp_context *context,
                             struct tpr_bootstrap **bootstrap,
                             struct tpb_error *error);

/* As ops->publish. */
tp_status tpr_bootstrap_publish(struct tpr_bootstrap *bootstrap,
                                const void *blob, size_t length,
                                struct tpb_error *error);
/* One that has published nothing does not count: the process's next context
 * has its number. */
void tpr_bootstrap_close(struct tpr_bootstrap *bootstrap);

/* The ways themselves; `number` counts the contexts of this process, since the
 * k-th of one rank meets the k-th of another.  NOT_FOUND from pmix: no
 * launcher. */
tp_status tpr_bootstrap_pmix(const struct tpb_settings *settings,
                             tp_context *context, uint32_t number,
                             struct tpr_bootstrap **bootstrap,
                             struct tpb_error *error);
/* tprun's door; NOT_FOUND: there is none; UNREACHABLE: it does not open. */
tp_status tpr_bootstrap_door(const struct tpb_settings *settings,
                             tp_context *context, uint32_t number,
                             struct tpr_bootstrap **bootstrap,
                             struct tpb_error *error);
tp_status tpr_bootstrap_directory(const struct tpb_settings *settings,
                                  const char *path,
                                  struct tpr_bootstrap **bootstrap,
                                  struct tpb_error *error);
tp_status tpr_bootstrap_single(struct tpr_bootstrap **bootstrap,
                               struct tpb_error *error);

#endif
