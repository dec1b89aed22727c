/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a rank keeps of the cards that it has read.  A card takes some kilobytes
 * and a plan some more, but in a job of many ranks most of it is the same for
 * thousands: what their backends can, on which host they are, where on it, and
 * so also what was decided.  All that is kept once, and counted; of each peer
 * remain who it is and, until it is connected, where it can be called.
 *
 * A decision is shared by all peers of a class: the same facts on the card, the
 * same locality, the same distance to their NICs.  Peers that a trial failed
 * with share what follows from that, too.  Words are not kept: who wants them
 * gets the pair scored again.
 *
 * No function blocks.  One thread at a time; but what is const may be called
 * beside tpt_book_enter() and functions for other entries.
 */
#ifndef TPT_BOOK_H
#define TPT_BOOK_H

#include "topology/score.h"

struct tpt_book;
struct tpt_entry;

/* `mine` and the policy's texts must stay as they are as long as the book is
 * there.  NULL without memory.  To be freed after all entries were dropped. */
struct tpt_book *tpt_book_new(const struct tpt_card *mine,
                              const struct tpt_policy *policy);
void tpt_book_free(struct tpt_book *book);

/*
 * Enters what a card says, and decides.  The card is the caller's again.  The
 * entry is to be dropped.  Fails as tpt_score(), or with NO_MEMORY.
 */
tp_status tpt_book_enter(struct tpt_book *book, const struct tpt_card *card,
                         struct tpt_entry **entry, struct tpb_error *error);
void tpt_entry_drop(struct tpt_entry *entry);          /* may be NULL */

/*
 * What was decided: names, order, terms and sizes as tpt_score() gives them and
 * trials have changed them.  Its evidence and remedies are those of any peer of
 * the class.  Valid until the next change of the entry.
 */
const struct tpt_plan *tpt_entry_plan(const struct tpt_entry *entry);

/* Who that is. */
const struct tpt_host *tpt_entry_host(const struct tpt_entry *entry);
const uint8_t *tpt_entry_instance(const struct tpt_entry *entry);
const uint8_t *tpt_entry_cookie(const struct tpt_entry *entry);
uint32_t tpt_entry_pid(const struct tpt_entry *entry);

/* Where the peer's backend of that name can be called, and how long that is; 0,
 * and `address` is nothing to be read, if it says nothing of it, or cannot be
 * used, or the addresses were forgotten. */
size_t tpt_entry_address(const struct tpt_entry *entry, const char *name,
                         uint8_t address[TPT_ADDRESS]);
/* The peer is connected: nobody calls it again. */
void tpt_entry_forget_addresses(struct tpt_entry *entry);

/* The card as it was, but for addresses of what cannot be used and those that
 * were forgotten. */
void tpt_entry_card(const struct tpt_entry *entry, struct tpt_card *card);

/*
 * A trial failed, as tpt_plan_demote(); the other side's own trial did not, as
 * tpt_plan_restore().  False: no memory, and nothing has changed.
 */
bool tpt_entry_demote(struct tpt_entry *entry, const char *name,
                      const char *evidence);
bool tpt_entry_restore(struct tpt_entry *entry, const char *name);

/*
 * What one side's trial of a backend said, for explain alone; `words` NULL: it
 * passed.  The last word counts.  Lack of memory loses it.
 */
void tpt_entry_tried(struct tpt_entry *entry, enum tpt_side side,
                     const char *name, const char *words);
/* What this side's trials refused, the n-th of it, and the backend's name;
 * NULL: not so many. */
const char *tpt_entry_refused(const struct tpt_entry *entry, unsigned n,
                              const char **name);

/* The whole plan with all its words: for explain.  False: no memory. */
bool tpt_entry_explain(const struct tpt_entry *entry, struct tpt_plan *plan,
                       struct tpt_card *card);

/* What it holds. */
struct tpt_book_size {
    size_t entries;
    size_t decisions;              /* with those that trials have changed */
    size_t shared;                 /* hosts, places and facts */
    size_t bytes;                  /* of all, without the allocator's own */
};
void tpt_book_measure(const struct tpt_book *book, struct tpt_book_size *size);

#endif
