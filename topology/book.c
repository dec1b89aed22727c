/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The book and its entries.  An entry's addresses are packed, each as the
 * number of its backend, two bytes of length and so many packed bytes; 255 ends
 * them.  A third of an address is zeros (IPv4 in the room of IPv6, short
 * names), so runs are packed: a byte below 128 stands before one more than so
 * many bytes, others for 127 less of zeros.  And most of a second address is
 * like the first one's, the same hosts and networks: if that makes it shorter,
 * which the highest bit of the length tells, it is what differs, by exclusive
 * or.
 */
#include "config.h"

#include <stdio.h>

#include "runtime/base/alloc.h"
#include "topology/book_private.h"

enum {
    BOOK_ADDRESS_HEAD = 3, BOOK_ADDRESS_END = 255,
    BOOK_RUN = 128,                /* at most, of either kind */
    BOOK_ZEROS = 3,                /* fewer are no run of their own */
    BOOK_DIFFERS = 1 << 15,        /* in the length, see above */
    BOOK_PACKED = TPT_ADDRESS + TPT_ADDRESS / BOOK_RUN + 2
};

/* ---- the book ---------------------------------------------------------- */

struct tpt_book *tpt_book_new(const struct tpt_card *mine,
                              const struct tpt_policy *policy)
{
    struct tpt_book *book = tpb_zalloc(sizeof(*book));

    if (book == NULL)
        return NULL;
    book->mine = mine;
    book->policy = *policy;
    book->size.bytes = sizeof(*book);
    return book;
}

void tpt_book_free(struct tpt_book *book)
{
    if (book == NULL)
        return;
    tpb_free(book->buckets);
    tpb_free(book);
}

void tpt_book_measure(const struct tpt_book *book, struct tpt_book_size *size)
{
    *size = book->size;
}

/* ---- addresses --------------------------------------------------------- */

static size_t book_zeros(const uint8_t *bytes, size_t length)
{
    size_t most = length < BOOK_RUN ? length : BOOK_RUN, zeros = 0;
    uint64_t eight = 0;

    /* An address is mostly text that fills a part of its room. */
    for (; zeros + sizeof(eight) <= most; zeros += sizeof(eight)) {
        memcpy(&eight, bytes + zeros, sizeof(eight));
        if (eight != 0)
            break;
    }
    while (zeros < most && bytes[zeros] == 0)
        zeros++;
    return zeros;
}

/* Bytes before the next one that is zero; at most `length`. */
static size_t book_nonzeros(const uint8_t *bytes, size_t length)
{
    const uint64_t ones = 0x0101010101010101u;
    size_t at = 0;
    uint64_t eight, zero;

    /* The lowest bit of `zero` is the first zero byte's (Warren, Hacker's
     * Delight, 6-1). */
    for (; at + sizeof(eight) <= length; at += sizeof(eight)) {
        memcpy(&eight, bytes + at, sizeof(eight));
        zero = (eight - ones) & ~eight & ones << 7;
        if (zero != 0)
            return at + (size_t)__builtin_ctzll(zero) / 8;
    }
    while (at < length && bytes[at] != 0)
        at++;
    return at;
}

/* How many bytes go as they are: up to zeros that are worth it. */
static size_t book_run(const uint8_t *bytes, size_t length)
{
    size_t most = length < BOOK_RUN ? length : BOOK_RUN, run = 0;

    while (run < most) {
        size_t zeros;

        run += book_nonzeros(bytes + run, most - run);
        if (run == most)
            break;
        zeros = book_zeros(bytes + run, length - run);
        if (zeros >= BOOK_ZEROS)
            break;
        run += zeros;
    }
    return run < most ? run : most;
}

/* Returns how many bytes it has become, or `limit` if it is not less. */
static size_t book_pack(const uint8_t *bytes, size_t length, size_t limit,
                        unsigned char packed[BOOK_PACKED])
{
    size_t size = 0, at = 0;

    while (at < length && size < limit) {
        size_t zeros = book_zeros(bytes + at, length - at), run;

        if (zeros >= BOOK_ZEROS) {
            packed[size++] = (unsigned char)(zeros + BOOK_RUN - 1);
            at += zeros;
            continue;
        }
        run = book_run(bytes + at, length - at);
        packed[size++] = (unsigned char)(run - 1);
        memcpy(packed + size, bytes + at, run);
        size += run;
        at += run;
    }
    return size < limit ? size : limit;
}

/* The other way; returns how many bytes they are. */
static size_t book_unpack(const unsigned char *packed, size_t size,
                          uint8_t bytes[TPT_ADDRESS])
{
    size_t length = 0, run;

    for (size_t at = 0; at < size; length += run) {
        unsigned char head = packed[at++];

        if (head >= BOOK_RUN) {
            run = head - BOOK_RUN + 1u;
            memset(bytes + length, 0, run);
        } else {
            run = head + 1u;
            memcpy(bytes + length, packed + at, run);
            at += run;
        }
    }
    return length;
}

static void book_differ(uint8_t *bytes, size_t length,
                        const uint8_t before[TPT_ADDRESS])
{
    size_t i = 0;

    for (; i + 8 <= length; i += 8) {
        uint64_t eight, other;

        memcpy(&eight, bytes + i, 8);
        memcpy(&other, before + i, 8);
        eight ^= other;
        memcpy(bytes + i, &eight, 8);
    }
    for (; i < length; i++)
        bytes[i] ^= before[i];
}

/* The shorter way, `before` being the address packed before, then zeros, or
 * NULL; returns its length with its bit. */
static size_t book_pack_best(const struct tpt_backend_card *backend,
                             const uint8_t *before,
                             unsigned char packed[BOOK_PACKED])
{
    uint8_t differs[TPT_ADDRESS];
    unsigned char other[BOOK_PACKED];
    size_t length = backend->address_length;
    size_t size = book_pack(backend->address, length, BOOK_PACKED, packed);
    size_t less;

    if (before == NULL)
        return size;
    memcpy(differs, backend->address, length);
    book_differ(differs, length, before);
    less = book_pack(differs, length, size, other);
    if (less >= size)
        return size;
    memcpy(packed, other, less);
    return less | BOOK_DIFFERS;
}

enum { BOOK_ADDRESSES = TPT_BACKENDS * (BOOK_ADDRESS_HEAD + BOOK_PACKED) + 1 };

/* Packs them to `at`; returns how long they have become. */
static size_t book_addresses_put(const struct tpt_card *card, uint32_t called,
                                 unsigned char at[BOOK_ADDRESSES])
{
    uint8_t before[TPT_ADDRESS] = { 0 };
    size_t length = 0;

    for (uint32_t i = 0; i < card->backend_count; i++) {
        const struct tpt_backend_card *backend = &card->backends[i];
        size_t size, bytes;

        if ((called >> i & 1) == 0 || backend->address_length == 0)
            continue;
        size = book_pack_best(backend, length > 0 ? before : NULL,
                              at + length + BOOK_ADDRESS_HEAD);
        bytes = size & ~(size_t)BOOK_DIFFERS;
        memset(before, 0, sizeof(before));
        memcpy(before, backend->address, backend->address_length);
        at[length] = (unsigned char)i;
        at[length + 1] = (unsigned char)size;
        at[length + 2] = (unsigned char)(size >> 8);
        length += BOOK_ADDRESS_HEAD + bytes;
    }
    at[length] = BOOK_ADDRESS_END;
    return length + 1;
}

static bool book_addresses_pack(struct tpt_entry *entry,
                                const struct tpt_card *card)
{
    unsigned char packed[BOOK_ADDRESSES];
    size_t length = book_addresses_put(card, entry->choice->called, packed);

    entry->addresses = tpb_zalloc(length);
    if (entry->addresses == NULL)
        return false;
    entry->book->size.bytes += length;
    memcpy(entry->addresses, packed, length);
    return true;
}

static size_t book_address_length(const unsigned char *at)
{
    return (at[1] | (size_t)at[2] << 8) & ~(size_t)BOOK_DIFFERS;
}

void tpt_entry_forget_addresses(struct tpt_entry *entry)
{
    unsigned char *at = entry->addresses;

    if (at == NULL)
        return;
    while (*at != BOOK_ADDRESS_END)
        at += BOOK_ADDRESS_HEAD + book_address_length(at);
    entry->book->size.bytes -= (size_t)(at - entry->addresses) + 1;
    tpb_free(entry->addresses);
    entry->addresses = NULL;
}

size_t tpt_entry_address(const struct tpt_entry *entry, const char *name,
                         uint8_t address[TPT_ADDRESS])
{
    int wanted = tpt_book_fact_find(entry->facts, name);
    const unsigned char *at = entry->addresses;
    uint8_t before[TPT_ADDRESS] = { 0 };

    if (at == NULL || wanted < 0)
        return 0;
    for (; *at != BOOK_ADDRESS_END;
         at += BOOK_ADDRESS_HEAD + book_address_length(at)) {
        size_t length = book_unpack(at + BOOK_ADDRESS_HEAD,
                                    book_address_length(at), address);

        if ((at[2] & BOOK_DIFFERS >> 8) != 0)
            book_differ(address, length, before);
        if (*at == wanted)
            return length;
        memset(before, 0, sizeof(before));
        memcpy(before, address, length);
    }
    return 0;
}

/* ---- entries ----------------------------------------------------------- */

void tpt_entry_drop(struct tpt_entry *entry)
{
    struct tpt_book *book;
    struct book_trial *trial;

    if (entry == NULL)
        return;
    book = entry->book;
    tpt_entry_forget_addresses(entry);
    while ((trial = entry->trials) != NULL) {
        entry->trials = trial->next;
        book->size.bytes -= sizeof(*trial) + strlen(trial->words) + 1;
        tpb_free(trial);
    }
    tpt_book_choice_drop(book, entry->choice);
    tpt_book_unshare(book, entry->facts);
    tpt_book_unshare(book, entry->words);
    tpt_book_unshare(book, entry->host);
    tpt_book_unshare(book, entry->place);
    tpt_book_unshare(book, entry->gpus);
    book->size.entries--;
    book->size.bytes -= sizeof(*entry);
    tpb_free(entry);
}

static struct tpt_entry *book_entry_new(struct tpt_book *book,
                                        const struct tpt_card *card)
{
    struct tpt_entry *entry = tpb_zalloc(sizeof(*entry));

    if (entry == NULL)
        return NULL;
    entry->book = book;
    entry->rank = card->rank;
    entry->pid = card->pid;
    entry->uid = card->uid;
    memcpy(entry->instance, card->instance, sizeof(entry->instance));
    memcpy(entry->cookie, card->cookie, sizeof(entry->cookie));
    book->size.entries++;
    book->size.bytes += sizeof(*entry);
    return entry;
}

tp_status tpt_book_enter(struct tpt_book *book, const struct tpt_card *card,
                         struct tpt_entry **entry, struct tpb_error *error)
{
    struct tpt_entry *made = book_entry_new(book, card);
    tp_status status = TP_ERR_NO_MEMORY;

    if (made == NULL)
        return tpb_fail(error, status, "out of memory");
    made->facts = tpt_book_share_facts(book, card);
    made->words = tpt_book_share_words(book, card);
    made->host = tpt_book_share_recent(book, BOOK_HOST, &card->host,
                                       sizeof(card->host));
    made->place = tpt_book_share(book, &card->place, sizeof(card->place));
    made->gpus = tpt_book_share_gpus(book, card);
    if (made->facts == NULL || made->words == NULL || made->host == NULL
        || made->place == NULL || made->gpus == NULL)
        tpb_fail(error, status, "out of memory");
    else
        status = tpt_book_choose(book, made->facts, made->gpus, card,
                                 &made->choice, error);
    if (status == TP_OK && !book_addresses_pack(made, card))
        status = tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    if (status == TP_OK)
        *entry = made;
    else
        tpt_entry_drop(made);
    return status;
}

const struct tpt_plan *tpt_entry_plan(const struct tpt_entry *entry)
{
    return &entry->choice->plan;
}

const struct tpt_host *tpt_entry_host(const struct tpt_entry *entry)
{
    return (const struct tpt_host *)(const void *)entry->host->bytes;
}

const uint8_t *tpt_entry_instance(const struct tpt_entry *entry)
{
    return entry->instance;
}

const uint8_t *tpt_entry_cookie(const struct tpt_entry *entry)
{
    return entry->cookie;
}

uint32_t tpt_entry_pid(const struct tpt_entry *entry)
{
    return entry->pid;
}

void tpt_entry_card(const struct tpt_entry *entry, struct tpt_card *card)
{
    memset(card, 0, sizeof(*card));
    tpt_book_unpack(entry->facts, entry->words, card);
    tpt_book_unpack_gpus(entry->gpus, card);
    card->host = *tpt_entry_host(entry);
    memcpy(&card->place, entry->place->bytes, sizeof(card->place));
    card->rank = entry->rank;
    card->pid = entry->pid;
    card->uid = entry->uid;
    memcpy(card->instance, entry->instance, sizeof(card->instance));
    memcpy(card->cookie, entry->cookie, sizeof(card->cookie));
    for (uint32_t i = 0; i < card->backend_count; i++) {
        struct tpt_backend_card *backend = &card->backends[i];
        uint8_t address[TPT_ADDRESS];
        size_t length = tpt_entry_address(entry, backend->name, address);

        memcpy(backend->address, address, length);
        backend->address_length = (uint16_t)length;
    }
}

/* ---- trials ------------------------------------------------------------ */

static struct book_trial *book_trial_new(struct tpt_entry *entry,
                                         enum book_trial_kind kind,
                                         const char *name, const char *words)
{
    size_t length = strlen(words) + 1;
    struct book_trial *trial = tpb_zalloc(sizeof(*trial) + length);

    if (trial == NULL)
        return NULL;
    trial->kind = (uint8_t)kind;
    snprintf(trial->name, sizeof(trial->name), "%s", name);
    memcpy(trial->words, words, length);
    entry->book->size.bytes += sizeof(*trial) + length;
    return trial;
}

/* Takes out what was said before, of the same kind and name. */
static void book_trial_forget(struct tpt_entry *entry,
                              enum book_trial_kind kind, const char *name)
{
    struct book_trial **at = &entry->trials, *trial;

    while ((trial = *at) != NULL) {
        if (trial->kind != kind || strcmp(trial->name, name) != 0) {
            at = &trial->next;
            continue;
        }
        *at = trial->next;
        entry->book->size.bytes -= sizeof(*trial) + strlen(trial->words) + 1;
        tpb_free(trial);
    }
}

static void book_trial_add(struct tpt_entry *entry, struct book_trial *trial)
{
    struct book_trial **at = &entry->trials;

    while (*at != NULL)
        at = &(*at)->next;
    *at = trial;
}

static bool book_decide(struct tpt_entry *entry, const char *name,
                        const char *words, bool restored)
{
    struct book_trial *trial = book_trial_new(
        entry, restored ? BOOK_RESTORED : BOOK_DEMOTED, name, words);
    struct book_choice *after = NULL;

    if (trial != NULL)
        after = tpt_book_choose_after(entry->book, entry->choice, name,
                                      restored);
    if (after == NULL) {
        if (trial != NULL)
            entry->book->size.bytes -= sizeof(*trial) + strlen(words) + 1;
        tpb_free(trial);
        return false;
    }
    tpt_book_choice_drop(entry->book, entry->choice);
    entry->choice = after;
    book_trial_add(entry, trial);
    return true;
}

bool tpt_entry_demote(struct tpt_entry *entry, const char *name,
                      const char *evidence)
{
    return book_decide(entry, name, evidence, false);
}

bool tpt_entry_restore(struct tpt_entry *entry, const char *name)
{
    return book_decide(entry, name, "", true);
}

void tpt_entry_tried(struct tpt_entry *entry, enum tpt_side side,
                     const char *name, const char *words)
{
    enum book_trial_kind kind = side == TPT_MINE ? BOOK_MINE : BOOK_YOURS;
    int at = tpt_book_fact_find(entry->facts, name);
    struct book_trial *trial;

    if (at < 0)
        return;
    book_trial_forget(entry, kind, name);
    entry->passed[side] &= (uint16_t)~(1u << at);
    if (words == NULL)
        entry->passed[side] |= (uint16_t)(1u << at);
    else if ((trial = book_trial_new(entry, kind, name, words)) != NULL)
        book_trial_add(entry, trial);
}

const char *tpt_entry_refused(const struct tpt_entry *entry, unsigned n,
                              const char **name)
{
    for (const struct book_trial *trial = entry->trials; trial != NULL;
         trial = trial->next) {
        if (trial->kind != BOOK_MINE || n-- > 0)
            continue;
        *name = trial->name;
        return trial->words;
    }
    return NULL;
}

static struct tpt_candidate *book_candidate(struct tpt_plan *plan,
                                            const char *name)
{
    for (uint32_t i = 0; i < plan->count; i++)
        if (strcmp(plan->candidates[i].name, name) == 0)
            return &plan->candidates[i];
    return NULL;
}

static void book_replay(const struct book_trial *trial, struct tpt_plan *plan)
{
    struct tpt_candidate *candidate = book_candidate(plan, trial->name);
    struct tpt_trial *said;

    if (trial->kind == BOOK_DEMOTED) {
        tpt_plan_demote(plan, trial->name, trial->words);
    } else if (trial->kind == BOOK_RESTORED) {
        tpt_plan_restore(plan, trial->name);
    } else if (candidate != NULL) {
        said = &candidate->trials[trial->kind == BOOK_MINE ? TPT_MINE
                                  : TPT_YOURS];
        said->result = TPT_FAILED;
        snprintf(said->words, sizeof(said->words), "%.*s",
                 (int)sizeof(said->words) - 1, trial->words);
    }
}

static void book_replay_passed(const struct tpt_entry *entry,
                               struct tpt_plan *plan)
{
    for (uint32_t i = 0; i < plan->count; i++) {
        struct tpt_candidate *candidate = &plan->candidates[i];
        int at = tpt_book_fact_find(entry->facts, candidate->name);

        for (int side = 0; at >= 0 && side < 2; side++)
            if ((entry->passed[side] >> at & 1) != 0)
                candidate->trials[side].result = TPT_PASSED;
    }
}

bool tpt_entry_explain(const struct tpt_entry *entry, struct tpt_plan *plan,
                       struct tpt_card *card)
{
    tpt_entry_card(entry, card);
    if (tpt_score(entry->book->mine, card, &entry->book->policy, plan, NULL)
        != TP_OK)
        return false;
    for (const struct book_trial *trial = entry->trials; trial != NULL;
         trial = trial->next)
        book_replay(trial, plan);
    book_replay_passed(entry, plan);
    return true;
}
