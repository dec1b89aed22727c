/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which backend for which pair, and why.  Pure functions: no clock, no
 * environment, no memory of earlier calls; the same two cards and policies
 * give both sides the same order without a round trip.
 */
#ifndef TPT_SCORE_H
#define TPT_SCORE_H

#include "topology/card.h"

/* Why a candidate stands where it does.  Numbers are in the JSON; names are
 * fixed. */
enum tpt_reason {
    TPT_REASON_CHOSEN,             /* the best of the transports that can; a
                                      channel that pays for some size */
    TPT_REASON_SLOWER,             /* can, but the transport is better; a
                                      transport: but another is */
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
    TPT_REASON_NEEDS_TRANSPORT,    /* a channel over a transport that is not
                                      the chosen one */
    TPT_REASON_NO_PEER_ACCESS,     /* between these two GPUs, says the driver */
    TPT_REASON_COUNT
};

/* What the user allows on this side. */
struct tpt_policy {
    const char *backends;          /* as TP_BACKENDS; NULL or "": all */
    const char *require;           /* as TP_REQUIRE; NULL or "": no contract */
};

/* A trial may have had many addresses, and tells what each answered. */
enum { TPT_EVIDENCE = 1536 };

/* What one side's own trial of a backend said. */
enum tpt_side { TPT_MINE, TPT_YOURS };
struct tpt_trial {
    enum { TPT_UNTRIED, TPT_PASSED, TPT_FAILED } result;
    char words[TPT_WORDS];         /* FAILED: why */
};

struct tpt_candidate {
    char name[TPT_NAME];
    bool possible;
    enum tpt_reason reason;
    uint8_t reach;
    uint8_t role;                  /* enum tpt_role */
    bool insisted;                 /* a channel that the contract names */
    bool devices;                  /* a channel for GPUs' memory only; beside
                                      it cuda_staged, not the transport */
    bool spare;                    /* see tpt_policy_spares(): behind all others
                                      of its role, whatever they cost */
    uint8_t path;                  /* enum tpt_path: what its terms are for */
    char over[TPT_NAME];           /* as on the card */
    char nic[TPT_WORDS];           /* what limits the bandwidth, "eth0" or
                                      "eth0+eth1"; "": nothing */
    uint32_t nic_megabits;         /* of all of them */
    bool measured;                 /* on either side: the terms are from there,
                                      and what the model says is only shown */
    uint64_t latency_ns;           /* terms of the score */
    uint64_t megabytes;            /* MB/s */
    uint64_t model_latency_ns, model_megabytes;
    uint64_t own_megabytes;        /* for devices: without the transport */
    uint64_t cost_ns;              /* one buffer of 64 KiB one way; a channel:
                                      with its transport's latency */
    uint64_t from_bytes;           /* channel: the smallest buffer that is
                                      cheaper through it than through the
                                      transport; UINT64_MAX: none is */
    const char *carrier;           /* what a connected pair goes over, beneath
                                      the backend; NULL: nothing to add */
    char evidence[TPT_EVIDENCE];   /* what the verdict rests on */
    char remedy[TPT_WORDS * 2];    /* what to do about it; "" if nothing */
    bool barred;                   /* forbidden, and on the other side it does
                                      not work either: the remedy is not all */
    struct tpt_trial trials[2];    /* by enum tpt_side; a channel is one way:
                                      what the other side may not pull is not
                                      chosen here, what this side may not, not
                                      there */
};

struct tpt_plan {
    enum tpt_locality locality;
    uint32_t count;                /* transports, then channels; of each the
                                      best first, impossible ones last */
    uint32_t omitted;              /* those for which was no room */
    char insist[TPT_WORDS / 2];    /* the channels that the contract names for
                                      this locality, "cma, map"; "": none */
    char insist_devices[TPT_WORDS / 2];    /* the same for GPUs' memory */
    struct tpt_candidate candidates[TPT_BACKENDS];
};

enum tpt_locality tpt_locality(const struct tpt_card *a,
                               const struct tpt_card *b);
const char *tpt_locality_name(enum tpt_locality locality);   /* "same L3" */
const char *tpt_locality_class(enum tpt_locality locality);  /* "node" */
const char *tpt_reason_name(enum tpt_reason reason);         /* "slower" */
const char *tpt_reach_name(enum tpt_reach reach);            /* "host" */
const char *tpt_role_name(enum tpt_role role);               /* "channel" */

/*
 * Orders the candidates for a pair.  Symmetric: tpt_score(a, b) and
 * tpt_score(b, a) give the same names in the same order (ties by name), with
 * reasons told from the first card's side.  `policy` is the first card's, and
 * may be NULL; what a side forbids shows in its card as not usable (better:
 * as `forbidden` too), or the two sides would not agree.
 *
 * The model, in whole nanoseconds so that every machine computes the same:
 *   latency = the slower side's latency + what the locality adds
 *             + 1000 for a network in between, + 150 for each side whose best
 *             NIC is at another NUMA node
 *   MB/s    = the slower side's MB/s, times the locality's percentage,
 *             at most the speed of the best NIC of the backend's kind on
 *             either side, or of all together that it goes over at once (as
 *             many on both sides: the fastest with the fastest, and so on); a
 *             NIC at another NUMA node counts 90 % of its speed.  Inside a
 *             host, IP touches no NIC, and RDMA gets half
 *   cost    = latency + 64 KiB / (MB/s)
 * The locality's numbers are in locality.c with their source.  What a card has
 * measured for this locality replaces latency and MB/s (of two that measured,
 * the slower's; NICs still limit between hosts).  A channel is
 * judged beside the best transport: it is CHOSEN if it pays from some size on
 * (from_bytes, at least TPT_CHANNEL_LEAST; all that the contract names do), and
 * several may be.
 *
 * Writes *plan whole.  INVALID if the contract cannot be understood or names a
 * backend that neither side knows.
 */
tp_status tpt_score(const struct tpt_card *mine, const struct tpt_card *yours,
                    const struct tpt_policy *policy, struct tpt_plan *plan,
                    struct tpb_error *error);

/* What the model says of a backend between two ranks of one host. */
struct tpt_cost tpt_model_cost(const struct tpt_backend_card *backend,
                               enum tpt_locality locality);

/* The best possible transport that is not demoted yet; -1 if none, also if the
 * contract names channels and none of these is possible any more. */
int tpt_plan_best(const struct tpt_plan *plan);

/* No buffer under this is worth a channel's own trouble. */
#define TPT_CHANNEL_LEAST 4096
/* But one of a device is always copied by somebody. */
#define TPT_DEVICE_LEAST 1

enum { TPT_PLAN_TRANSPORT = -1, TPT_PLAN_REFUSED = -2 };

/*
 * The channel for one buffer of so many bytes: the index of the cheapest of
 * the possible ones that pay at this size and whose bit (1 << index) is not in
 * `tried`, for a channel may not take every buffer.  To walk them, add each
 * answer's bit and ask again; a demotion changes the indexes, so begin anew
 * after one.  TPT_PLAN_TRANSPORT: the transport carries it.  TPT_PLAN_REFUSED:
 * none is left, and the contract forbids the transport to.
 */
int tpt_plan_channel(const struct tpt_plan *plan, uint64_t bytes,
                     uint32_t tried);

/* Does the contract, or TP_BACKENDS, keep GPUs' memory from going staged?  Then
 * it goes by a channel for devices or not at all. */
bool tpt_device_insisted(const struct tpt_plan *plan);

/* What of the second card's GPUs the plan depends on: where it is the same, and
 * all else, so is the plan. */
uint64_t tpt_device_key(const struct tpt_card *mine,
                        const struct tpt_card *yours);

/* Which way buffers go, by size class: from so many bytes on by the candidate
 * at that index, until the next. */
#define TPT_ROUTES 8
struct tpt_route {
    uint64_t from_bytes;
    int candidate;                 /* negative as tpt_plan_channel() says it */
};

/*
 * The routes of a plan, by its first choices: a buffer that a channel does not
 * take goes another way.  Classes are powers of two, but a route begins where
 * its first channel begins to pay.  Returns their number; 0 if nothing connects
 * the pair.
 */
size_t tpt_plan_routes(const struct tpt_plan *plan,
                       struct tpt_route routes[TPT_ROUTES]);

/*
 * A trial failed: `name`, a transport or a channel, gets TRIAL_FAILED with the
 * evidence and goes to the end of its kind; the next best transport becomes
 * CHOSEN, and channels are judged anew beside it.
 */
void tpt_plan_demote(struct tpt_plan *plan, const char *name,
                     const char *evidence);

/* The backends that a contract may name. */
struct tpt_known {
    const char *name;
    enum tpt_role role;
    bool devices;
};
/* It failed when we tried, but the other side's own trial did not: it is
 * possible again, behind all that are. */
void tpt_plan_restore(struct tpt_plan *plan, const char *name);

/*
 * Does the contract allow this backend for this locality?  A contract is
 * CLASS:BACKEND,... with the classes self (same process), node (same host),
 * net (other host), any (all three) and cuda (buffers of GPUs, wherever).
 * Items that name transports constrain transports, those that name channels
 * channels, and those that name channels for GPUs these alone; class cuda takes
 * no others.  All items of a kind that concern a class are alternatives; a
 * class that no item concerns is free.  An item allows backends as
 * tpb_list_allows() does ("net:ofi" allows "ofi:tcp");
 * where none of the known ones has its name, it may also leave out "ofi:"
 * ("net:verbs").  NULL and "" allow all.  INVALID, with words, for what is not
 * a contract.
 */
enum tpt_allowance { TPT_FREE, TPT_ALLOWED, TPT_DENIED };
tp_status tpt_require_allows(const char *require, enum tpt_locality locality,
                             const struct tpt_known *known, size_t count,
                             const struct tpt_known *backend,
                             enum tpt_allowance *allowance,
                             struct tpb_error *error);

/* Is this a contract, all of whose backends are among the `count` known ones?
 * INVALID, with words that tell what is known; for checking it early. */
tp_status tpt_require_check(const char *require, const struct tpt_known *known,
                            size_t count, struct tpb_error *error);

/* The same without looking at the backends' names: for who knows none. */
tp_status tpt_require_form(const char *require, struct tpb_error *error);
/* Does it name a transport or channel for pairs like that?  Class cuda names
 * none: it is about some messages only. */
bool tpt_require_speaks(const char *require, enum tpt_locality locality);

/* As tpb_list_allows(), for TP_BACKENDS: of cuda_staged, which goes in the
 * frames of any transport, only a list of what is forbidden speaks. */
bool tpt_policy_lists(const char *list, const char *name);

/* But cuda_staged gets only what the channels do not take that such a list
 * names beside it: who names them wants them. */
bool tpt_policy_spares(const char *list, const char *name);

/*
 * Before any pair is known: INVALID, with words, if `require` is no contract
 * or names a backend that the card has not (usable or not).  A name in
 * `backends` that the card has not is told as a warning, by rank 0.
 */
tp_status tpt_policy_check(const struct tpt_policy *policy,
                           const struct tpt_card *card,
                           struct tpb_error *error);

/* The same warning of another list of backends' names, by rank 0. */
void tpt_policy_check_names(const char *variable, const char *list,
                            const struct tpt_card *card);

/* Why nothing connects a pair, and what to do about it, in one line for
 * people: what was decided first, what a machine lacks then; what never could
 * is left out, what is alike told once.  Appended. */
void tpt_plan_refusal(const struct tpt_plan *plan, struct tpb_text *text);

/*
 * For tests: changes this rank's own card, before it is published, to that of
 * another host ("host"), of a build without a backend ("lacks=NAME"), with an
 * address where nobody is ("address=NAME"), of a channel that needs libfabric
 * ("over=NAME"), with a GPU that no other may access ("denied"), with the same
 * two GPUs as all, that may not access each other ("two"), or with the same one
 * GPU, where two direct ways are measured ("rivals").  Any other word changes
 * nothing.
 */
void tpt_card_pretend(struct tpt_card *card, const char *hook);

/* `name` has connected the pair, over that (may be NULL; it stays the caller's
 * and must outlive the plan). */
void tpt_plan_carried(struct tpt_plan *plan, const char *name,
                      const char *carrier);

/* The plan as JSON (an object as tp_explain(7) describes it, to be freed with
 * free()) and as a table for people.  `mine` and `yours` are the cards that
 * were scored; `connected` tells whether the two have been; `imports`, if it is
 * not NULL, is what this rank has open.  NULL if memory lacks. */
struct tpb_record_imports;
char *tpt_plan_json(const struct tpt_plan *plan, const struct tpt_card *mine,
                    const struct tpt_card *yours, bool connected,
                    const struct tpb_record_imports *imports);
/* The same while nothing is known of the other card, and why. */
char *tpt_plan_json_unknown(bool connected, const char *reason);
void tpt_plan_text(const struct tpt_plan *plan, const struct tpt_card *mine,
                   const struct tpt_card *yours, struct tpb_text *text);

#endif
