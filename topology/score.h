/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which backend for which pair, and why.  Pure functions: no clock, no
 * environment, no memory of earlier calls; the same two cards and policies
 * give both sides the same order without a round trip.
 */
#ifndef TPT_SCORE_H
#define TPT_SCORE_H

#include "topology/card.h"

/* What two ranks share, from nearest to farthest. */
enum tpt_locality {
    TPT_SAME_PROCESS, TPT_SAME_CORE, TPT_SAME_L2, TPT_SAME_L3, TPT_SAME_NUMA,
    TPT_SAME_PACKAGE, TPT_SAME_HOST, TPT_OTHER_HOST
};

/* Why a candidate stands where it does.  Numbers are in the JSON; names are
 * fixed. */
enum tpt_reason {
    TPT_REASON_CHOSEN,             /* the best of those that can */
    TPT_REASON_SLOWER,             /* can, but another is better */
    TPT_REASON_NOT_SAME_PROCESS,
    TPT_REASON_NOT_SAME_HOST,
    TPT_REASON_MINE_UNUSABLE,      /* the probe here said no */
    TPT_REASON_YOURS_UNUSABLE,     /* the probe there said no */
    TPT_REASON_MINE_LACKS,         /* not in this build */
    TPT_REASON_YOURS_LACKS,        /* not in the peer's build */
    TPT_REASON_FORBIDDEN,          /* by TP_BACKENDS, here or there */
    TPT_REASON_CONTRACT,           /* by TP_REQUIRE */
    TPT_REASON_TRIAL_FAILED,       /* tried, and refused */
    TPT_REASON_NOT_OTHER_PROCESS,  /* does not connect a process to itself */
    TPT_REASON_COUNT
};

/* What the user allows on this side. */
struct tpt_policy {
    const char *backends;          /* as TP_BACKENDS; NULL or "": all */
    const char *require;           /* as TP_REQUIRE; NULL or "": no contract */
};

/* A trial may have had many addresses, and tells what each answered. */
enum { TPT_EVIDENCE = 1536 };

struct tpt_candidate {
    char name[TPT_NAME];
    bool possible;
    enum tpt_reason reason;
    uint8_t reach;
    double latency_us;             /* terms of the score */
    double megabytes;              /* MB/s */
    double cost_us;                /* model: one 64 KiB message one way */
    char evidence[TPT_EVIDENCE];   /* what the verdict rests on */
    char remedy[TPT_WORDS * 2];    /* what to do about it; "" if nothing */
};

struct tpt_plan {
    enum tpt_locality locality;
    uint32_t count;                /* best first, impossible ones last */
    uint32_t omitted;              /* impossible ones for which was no room */
    struct tpt_candidate candidates[TPT_BACKENDS];
};

enum tpt_locality tpt_locality(const struct tpt_card *a,
                               const struct tpt_card *b);
const char *tpt_locality_name(enum tpt_locality locality);   /* "same L3" */
const char *tpt_locality_class(enum tpt_locality locality);  /* "node" */
const char *tpt_reason_name(enum tpt_reason reason);         /* "slower" */
const char *tpt_reach_name(enum tpt_reach reach);            /* "host" */

/*
 * Orders the candidates for a pair.  Symmetric: tpt_score(a, b) and
 * tpt_score(b, a) give the same names in the same order (ties by name), with
 * reasons told from the first card's side.  `policy` is the first card's, and
 * may be NULL; what a side forbids shows in its card as not usable (better:
 * as `forbidden` too), or the two sides would not agree.
 *
 * The model, in whole nanoseconds so that every machine computes the same:
 *   latency = the slower side's latency + what the locality adds
 *             + 1000 for a network in between
 *   MB/s    = the slower side's MB/s, times the locality's percentage,
 *             at most the speed of the best NIC of the backend's kind on
 *             either side; a NIC at another NUMA node counts 90 % of its
 *             speed.  Inside a host, IP touches no NIC, and RDMA gets half
 *   cost    = latency + 64 KiB / (MB/s)
 * The locality's numbers are in locality.c with their source.
 *
 * Writes *plan whole.  INVALID if the contract cannot be understood or names a
 * backend that neither side knows.
 */
tp_status tpt_score(const struct tpt_card *mine, const struct tpt_card *yours,
                    const struct tpt_policy *policy, struct tpt_plan *plan,
                    struct tpb_error *error);

/* Takes the best possible candidate that is not demoted yet; -1 if none. */
int tpt_plan_best(const struct tpt_plan *plan);

/* A trial failed: `name` gets TRIAL_FAILED with the evidence, goes to the end,
 * and the next best becomes CHOSEN. */
void tpt_plan_demote(struct tpt_plan *plan, const char *name,
                     const char *evidence);

/* It failed when we tried, but the other side's own trial did not: it is
 * possible again, behind all that are. */
void tpt_plan_restore(struct tpt_plan *plan, const char *name);

/*
 * Does the contract allow this backend for this locality?  A contract is
 * CLASS:BACKEND,... with the classes self (same process), node (same host),
 * net (other host) and any (all three).  All items that concern a class are
 * alternatives; a class that no item concerns is free.  An item allows
 * backends as tpb_list_allows() does ("net:ofi" allows "ofi:tcp").  NULL and
 * "" allow all.  INVALID, with words, for what is not a contract.
 */
tp_status tpt_require_allows(const char *require, enum tpt_locality locality,
                             const char *backend, bool *allowed,
                             struct tpb_error *error);

/* Is this a contract, all of whose backends are among the `count` names?
 * INVALID, with words that tell what is known; for checking it early. */
tp_status tpt_require_check(const char *require, const char *const *names,
                            size_t count, struct tpb_error *error);

/* The plan as JSON (an object as tp_explain(7) describes it, to be freed with
 * free()) and as a table for people.  `mine` and `yours` are the cards that
 * were scored.  NULL if memory lacks. */
char *tpt_plan_json(const struct tpt_plan *plan, const struct tpt_card *mine,
                    const struct tpt_card *yours);
void tpt_plan_text(const struct tpt_plan *plan, const struct tpt_card *mine,
                   const struct tpt_card *yours, struct tpb_text *text);

#endif
