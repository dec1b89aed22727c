/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of the book share: things kept once, decisions, entries. */
#ifndef TPT_BOOK_PRIVATE_H
#define TPT_BOOK_PRIVATE_H

#include "topology/book.h"

/* Bytes that many entries have in common. */
struct book_shared {
    struct book_shared *next;      /* in its bucket */
    struct book_choice *choices;   /* of facts: the decisions from them */
    uint64_t hash;
    uint32_t count, length;
    _Alignas(8) unsigned char bytes[];
};

/* Of a card what decides: then its NICs and its backends, without addresses and
 * words. */
struct book_facts {
    uint32_t nic_count, backend_count;
};

struct book_fact {
    char name[TPT_NAME], over[TPT_NAME];
    uint8_t role, reach, usable, forbidden, nic_kind, devices;
    uint16_t nics;
    uint32_t latency_ns, megabytes;
    struct tpt_cost measured[TPT_LOCALITIES];
};

/* ... and what does not: job, size, and the words of each backend. */
struct book_words {
    char job[64];
    int32_t size;
    uint32_t backend_count;
    char why[][TPT_WORDS];
};

/* A decision.  Those that trials led to hang below the one before. */
struct book_choice {
    struct book_choice *next;      /* of the same facts, or of one parent */
    struct book_choice *parent, *children;
    struct book_shared *facts;
    uint32_t count;                /* entries, and choices below */
    int32_t numa;                  /* the key: of the peer, ... */
    uint64_t gpus;                 /* ... of its GPUs what matters, */
    enum tpt_locality locality;
    bool restored;                 /* the key below a parent: ... */
    char name[TPT_NAME];           /* ... this failed, or did not after all */
    uint32_t called;               /* backends whose addresses matter: bits */
    struct tpt_plan plan;
};

struct book_trial {
    struct book_trial *next;
    uint8_t kind;                  /* enum book_trial_kind */
    char name[TPT_NAME];
    char words[];
};

enum book_trial_kind {
    BOOK_DEMOTED, BOOK_RESTORED, BOOK_MINE, BOOK_YOURS
};

/* What a card mostly has in common with the one before: found by a look. */
enum book_recent { BOOK_FACTS, BOOK_HOST, BOOK_GPUS, BOOK_WORDS, BOOK_RECENT };

struct tpt_book {
    const struct tpt_card *mine;
    struct tpt_policy policy;
    struct book_shared **buckets;
    uint32_t bucket_count;         /* a power of two */
    struct book_shared *recent[BOOK_RECENT];   /* or NULL; not counted */
    struct tpt_book_size size;
};

struct tpt_entry {
    struct tpt_book *book;
    struct book_shared *facts, *words, *host, *place, *gpus;
    struct book_choice *choice;
    struct book_trial *trials;     /* in their order */
    unsigned char *addresses;      /* packed, see book.c */
    int32_t rank;
    uint32_t pid, uid;
    uint16_t passed[2];            /* trials, by enum tpt_side: a bit for each
                                      of the facts' backends */
    uint8_t instance[16], cookie[16];
};

/* ---- book_shared.c ----------------------------------------------------- */

/* The thing with these bytes, made if need be; NULL: no memory.  Counted. */
struct book_shared *tpt_book_share(struct tpt_book *book, const void *bytes,
                               size_t length);
/* The same, after a look at what was found last of that kind. */
struct book_shared *tpt_book_share_recent(struct tpt_book *book,
                                          enum book_recent kind,
                                          const void *bytes, size_t length);
void tpt_book_unshare(struct tpt_book *book, struct book_shared *shared);

struct book_shared *tpt_book_share_facts(struct tpt_book *book,
                                         const struct tpt_card *card);
struct book_shared *tpt_book_share_words(struct tpt_book *book,
                                         const struct tpt_card *card);
/* Of ranks that see the same GPUs; no decision of tpt_score() rests on them. */
struct book_shared *tpt_book_share_gpus(struct tpt_book *book,
                                        const struct tpt_card *card);
/* The backends of facts; *count gets their number. */
const struct book_fact *tpt_book_facts_of(const struct book_shared *facts,
                                      uint32_t *count);
/* The place of a backend among them; -1: it is not there. */
int tpt_book_fact_find(const struct book_shared *facts, const char *name);
/* Back onto a card. */
void tpt_book_unpack(const struct book_shared *facts,
                     const struct book_shared *words, struct tpt_card *card);
void tpt_book_unpack_gpus(const struct book_shared *gpus,
                          struct tpt_card *card);

/* ---- book_choice.c ----------------------------------------------------- */

/* The decision for a card with these facts and GPUs, made if need be.
 * Counted. */
tp_status tpt_book_choose(struct tpt_book *book, struct book_shared *facts,
                          const struct book_shared *gpus,
                      const struct tpt_card *card, struct book_choice **choice,
                      struct tpb_error *error);
/* What follows from it if that trial fails, or did not; NULL: no memory. */
struct book_choice *tpt_book_choose_after(struct tpt_book *book,
                                      struct book_choice *before,
                                      const char *name, bool restored);
void tpt_book_choice_drop(struct tpt_book *book, struct book_choice *choice);

#endif
