/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Decisions.  A class of peers has one; the trials that failed with some of
 * them lead to others, which hang below it, so that all peers with which the
 * same failed share these as well.
 */
#include "config.h"

#include <stdio.h>

#include "runtime/base/alloc.h"
#include "topology/book_private.h"

static struct book_choice *choice_new(struct tpt_book *book,
                                      struct book_shared *facts)
{
    struct book_choice *choice = tpb_zalloc(sizeof(*choice));

    if (choice == NULL)
        return NULL;
    choice->facts = facts;
    choice->count = 1;
    book->size.decisions++;
    book->size.bytes += sizeof(*choice);
    return choice;
}

static void choice_free(struct tpt_book *book, struct book_choice *choice)
{
    book->size.decisions--;
    book->size.bytes -= sizeof(*choice);
    tpb_free(choice);
}

/* Which backends may be called some time?  What never can stays so. */
static uint32_t choice_called(const struct book_choice *choice)
{
    uint32_t called = 0;

    for (uint32_t i = 0; i < choice->plan.count; i++) {
        const struct tpt_candidate *candidate = &choice->plan.candidates[i];
        int at = tpt_book_fact_find(choice->facts, candidate->name);

        if (at >= 0 && (candidate->possible
                        || candidate->reason == TPT_REASON_NEEDS_TRANSPORT))
            called |= 1u << at;
    }
    return called;
}

/*
 * Of the peer's GPUs what a decision rests on, as a number.  On this host that
 * is which they are and how they are joined.  Over a network only the first
 * one's place counts, so that ranks of other hosts are of one class.
 */
static uint64_t choice_gpus(const struct tpt_book *book,
                            const struct book_shared *gpus,
                            const struct tpt_card *card,
                            enum tpt_locality locality)
{
    if (card->gpu_count == 0)
        return 0;
    return locality != TPT_OTHER_HOST ? (uint64_t)(uintptr_t)gpus
                                      : tpt_device_key(book->mine, card);
}

tp_status tpt_book_choose(struct tpt_book *book, struct book_shared *facts,
                          const struct book_shared *gpus,
                          const struct tpt_card *card,
                          struct book_choice **choice,
                          struct tpb_error *error)
{
    enum tpt_locality locality = tpt_locality(book->mine, card);
    uint64_t about_gpus = choice_gpus(book, gpus, card, locality);
    struct book_choice *found = facts->choices;
    tp_status status;

    while (found != NULL && (found->locality != locality
                             || found->numa != card->place.numa
                             || found->gpus != about_gpus))
        found = found->next;
    if (found != NULL) {
        found->count++;
        *choice = found;
        return TP_OK;
    }
    found = choice_new(book, facts);
    if (found == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    status = tpt_score(book->mine, card, &book->policy, &found->plan, error);
    if (status != TP_OK) {
        choice_free(book, found);
        return status;
    }
    found->locality = locality;
    found->numa = card->place.numa;
    found->gpus = about_gpus;
    found->called = choice_called(found);
    found->next = facts->choices;
    facts->choices = found;
    *choice = found;
    return TP_OK;
}

struct book_choice *tpt_book_choose_after(struct tpt_book *book,
                                          struct book_choice *before,
                                          const char *name, bool restored)
{
    struct book_choice *choice = before->children;

    while (choice != NULL && (choice->restored != restored
                              || strcmp(choice->name, name) != 0))
        choice = choice->next;
    if (choice != NULL) {
        choice->count++;
        return choice;
    }
    choice = choice_new(book, before->facts);
    if (choice == NULL)
        return NULL;
    choice->plan = before->plan;
    choice->called = before->called;
    choice->restored = restored;
    snprintf(choice->name, sizeof(choice->name), "%s", name);
    if (restored)
        tpt_plan_restore(&choice->plan, name);
    else
        tpt_plan_demote(&choice->plan, name, "a trial");
    choice->parent = before;
    before->count++;
    choice->next = before->children;
    before->children = choice;
    return choice;
}

void tpt_book_choice_drop(struct tpt_book *book, struct book_choice *choice)
{
    while (choice != NULL && --choice->count == 0) {
        struct book_choice *parent = choice->parent;
        struct book_choice **at = parent != NULL ? &parent->children
                                  : &choice->facts->choices;

        while (*at != choice)
            at = &(*at)->next;
        *at = choice->next;
        choice_free(book, choice);
        choice = parent;
    }
}
