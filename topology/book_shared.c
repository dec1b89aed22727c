/* SPDX-License-Identifier: BSD-3-Clause */
/* Bytes that the entries of a book have in common: each kept once, counted. */
#include "config.h"

#include "runtime/base/alloc.h"
#include "topology/book_private.h"

enum {
    SHARED_BUCKETS = 64,           /* at first */
    SHARED_FACTS = sizeof(struct book_facts)
                   + TPT_NICS * sizeof(struct tpt_nic)
                   + TPT_BACKENDS * sizeof(struct book_fact)
};

_Static_assert(sizeof(struct tpt_nic) % 8 == 0
               && sizeof(struct book_fact) % 8 == 0
               && sizeof(struct book_facts) % 8 == 0,
               "they follow each other, and are hashed eight bytes at a time");

/* ---- the table --------------------------------------------------------- */

/* Both halves of a product carry what was mixed into its factors. */
static inline uint64_t shared_fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t shared_word(const unsigned char *bytes)
{
    uint64_t word;

    memcpy(&word, bytes, sizeof(word));
    return word;
}

/* Folds products of words, as wyhash does (Wang Yi), in two lanes: fast enough
 * for a kilobyte or two per peer.  Equality is what decides. */
static uint64_t shared_hash(const unsigned char *bytes, size_t length)
{
    const uint64_t first = 0xa0761d6478bd642fu, second = 0xe7037ed1a0b428dbu;
    uint64_t hash = length * 0x9e3779b97f4a7c15u, other = second;
    size_t i = 0;

    for (; i + 32 <= length; i += 32) {
        hash = shared_fold(shared_word(bytes + i) ^ first,
                           shared_word(bytes + i + 8) ^ hash);
        other = shared_fold(shared_word(bytes + i + 16) ^ second,
                            shared_word(bytes + i + 24) ^ other);
    }
    hash ^= other;
    for (; i + 8 <= length; i += 8)
        hash = shared_fold(shared_word(bytes + i) ^ first, hash ^ second);
    for (; i < length; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash ^ hash >> 29;
}

/* As many buckets as things: shared ones are few, so this is seldom. */
static bool shared_grow(struct tpt_book *book)
{
    uint32_t count = book->bucket_count > 0 ? book->bucket_count * 2
                     : SHARED_BUCKETS;
    struct book_shared **buckets;

    if (book->size.shared < book->bucket_count)
        return true;
    buckets = tpb_array(count, sizeof(struct book_shared *));
    if (buckets == NULL)
        return book->bucket_count > 0;
    for (uint32_t i = 0; i < book->bucket_count; i++)
        while (book->buckets[i] != NULL) {
            struct book_shared *shared = book->buckets[i];
            struct book_shared **bucket
                = &buckets[shared->hash & (count - 1)];

            book->buckets[i] = shared->next;
            shared->next = *bucket;
            *bucket = shared;
        }
    tpb_free(book->buckets);
    book->size.bytes += (count - book->bucket_count)
                        * sizeof(struct book_shared *);
    book->buckets = buckets;
    book->bucket_count = count;
    return true;
}

struct book_shared *tpt_book_share_recent(struct tpt_book *book,
                                          enum book_recent kind,
                                          const void *bytes, size_t length)
{
    struct book_shared *recent = book->recent[kind];

    if (recent != NULL && recent->length == length
        && memcmp(recent->bytes, bytes, length) == 0) {
        recent->count++;
        return recent;
    }
    return book->recent[kind] = tpt_book_share(book, bytes, length);
}

struct book_shared *tpt_book_share(struct tpt_book *book, const void *bytes,
                                   size_t length)
{
    uint64_t hash = shared_hash(bytes, length);
    struct book_shared *shared;

    if (!shared_grow(book))
        return NULL;
    shared = book->buckets[hash & (book->bucket_count - 1)];
    while (shared != NULL && (shared->hash != hash || shared->length != length
                              || memcmp(shared->bytes, bytes, length) != 0))
        shared = shared->next;
    if (shared == NULL) {
        struct book_shared **bucket
            = &book->buckets[hash & (book->bucket_count - 1)];

        shared = tpb_zalloc(sizeof(*shared) + length);
        if (shared == NULL)
            return NULL;
        shared->hash = hash;
        shared->length = (uint32_t)length;
        memcpy(shared->bytes, bytes, length);
        shared->next = *bucket;
        *bucket = shared;
        book->size.shared++;
        book->size.bytes += sizeof(*shared) + length;
    }
    shared->count++;
    return shared;
}

void tpt_book_unshare(struct tpt_book *book, struct book_shared *shared)
{
    struct book_shared **at;

    if (shared == NULL || --shared->count > 0)
        return;
    for (size_t i = 0; i < BOOK_RECENT; i++)
        if (book->recent[i] == shared)
            book->recent[i] = NULL;
    at = &book->buckets[shared->hash & (book->bucket_count - 1)];
    while (*at != shared)
        at = &(*at)->next;
    *at = shared->next;
    book->size.shared--;
    book->size.bytes -= sizeof(*shared) + shared->length;
    tpb_free(shared);
}

/* ---- cards ------------------------------------------------------------- */

static void shared_pack(const struct tpt_backend_card *backend,
                        struct book_fact *fact)
{
    memcpy(fact->name, backend->name, sizeof(fact->name));
    memcpy(fact->over, backend->over, sizeof(fact->over));
    fact->role = backend->role;
    fact->reach = backend->reach;
    fact->usable = backend->usable;
    fact->forbidden = backend->forbidden;
    fact->nic_kind = backend->nic_kind;
    fact->devices = backend->devices;
    fact->nics = backend->nics;
    fact->latency_ns = backend->latency_ns;
    fact->megabytes = backend->megabytes;
    memcpy(fact->measured, backend->measured, sizeof(fact->measured));
}

struct book_shared *tpt_book_share_facts(struct tpt_book *book,
                                         const struct tpt_card *card)
{
    _Alignas(8) unsigned char bytes[SHARED_FACTS];
    struct book_facts head = { card->nic_count, card->backend_count };
    size_t nics = card->nic_count * sizeof(struct tpt_nic);
    struct book_fact *facts
        = (struct book_fact *)(void *)(bytes + sizeof(head) + nics);

    memcpy(bytes, &head, sizeof(head));
    memcpy(bytes + sizeof(head), card->nics, nics);
    for (uint32_t i = 0; i < card->backend_count; i++)
        shared_pack(&card->backends[i], &facts[i]);
    return tpt_book_share_recent(book, BOOK_FACTS, bytes, sizeof(head) + nics
                                 + card->backend_count * sizeof(*facts));
}

/* A kilobyte that need not be copied together to see that it is the same. */
static bool shared_words_same(const struct book_shared *shared,
                              const struct tpt_card *card)
{
    const struct book_words *words
        = (const struct book_words *)(const void *)shared->bytes;

    if (words->size != card->size
        || words->backend_count != card->backend_count
        || memcmp(words->job, card->job, sizeof(words->job)) != 0)
        return false;
    for (uint32_t i = 0; i < card->backend_count; i++)
        if (memcmp(words->why[i], card->backends[i].why, TPT_WORDS) != 0)
            return false;
    return true;
}

struct book_shared *tpt_book_share_words(struct tpt_book *book,
                                         const struct tpt_card *card)
{
    struct book_shared *recent = book->recent[BOOK_WORDS];
    _Alignas(8) unsigned char bytes[sizeof(struct book_words)
                                    + TPT_BACKENDS * (size_t)TPT_WORDS];
    struct book_words *words = (struct book_words *)(void *)bytes;
    unsigned char *why = bytes + sizeof(*words);

    if (recent != NULL && shared_words_same(recent, card)) {
        recent->count++;
        return recent;
    }
    memcpy(words->job, card->job, sizeof(words->job));
    words->size = card->size;
    words->backend_count = card->backend_count;
    for (uint32_t i = 0; i < card->backend_count; i++, why += TPT_WORDS)
        memcpy(why, card->backends[i].why, TPT_WORDS);
    return book->recent[BOOK_WORDS]
           = tpt_book_share(book, bytes, (size_t)(why - bytes));
}

/* Their number and their bytes, without the zeros at the end: most of the room
 * for links is empty. */
struct book_shared *tpt_book_share_gpus(struct tpt_book *book,
                                        const struct tpt_card *card)
{
    unsigned char bytes[4 + sizeof(card->gpus)];
    size_t length = 4 + card->gpu_count * sizeof(card->gpus[0]);

    memcpy(bytes, &card->gpu_count, 4);
    memcpy(bytes + 4, card->gpus, length - 4);
    while (length > 4 && bytes[length - 1] == 0)
        length--;
    return tpt_book_share_recent(book, BOOK_GPUS, bytes, length);
}

void tpt_book_unpack_gpus(const struct book_shared *gpus,
                          struct tpt_card *card)
{
    memcpy(&card->gpu_count, gpus->bytes, 4);
    memcpy(card->gpus, gpus->bytes + 4, gpus->length - 4);
}

const struct book_fact *tpt_book_facts_of(const struct book_shared *facts,
                                          uint32_t *count)
{
    struct book_facts head;

    memcpy(&head, facts->bytes, sizeof(head));
    *count = head.backend_count;
    return (const struct book_fact *)(const void *)
           (facts->bytes + sizeof(head)
            + head.nic_count * sizeof(struct tpt_nic));
}

int tpt_book_fact_find(const struct book_shared *facts, const char *name)
{
    uint32_t count;
    const struct book_fact *list = tpt_book_facts_of(facts, &count);

    for (uint32_t i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0)
            return (int)i;
    return -1;
}

static void shared_unpack(const struct book_fact *fact,
                          struct tpt_backend_card *backend)
{
    memcpy(backend->name, fact->name, sizeof(backend->name));
    memcpy(backend->over, fact->over, sizeof(backend->over));
    backend->role = fact->role;
    backend->reach = fact->reach;
    backend->usable = fact->usable;
    backend->forbidden = fact->forbidden;
    backend->nic_kind = fact->nic_kind;
    backend->devices = fact->devices;
    backend->nics = fact->nics;
    backend->latency_ns = fact->latency_ns;
    backend->megabytes = fact->megabytes;
    memcpy(backend->measured, fact->measured, sizeof(backend->measured));
}

void tpt_book_unpack(const struct book_shared *facts,
                     const struct book_shared *words, struct tpt_card *card)
{
    const struct book_words *text
        = (const struct book_words *)(const void *)words->bytes;
    const struct book_fact *list;
    struct book_facts head;

    memcpy(&head, facts->bytes, sizeof(head));
    card->nic_count = head.nic_count;
    memcpy(card->nics, facts->bytes + sizeof(head),
           head.nic_count * sizeof(struct tpt_nic));
    list = tpt_book_facts_of(facts, &card->backend_count);
    memcpy(card->job, text->job, sizeof(card->job));
    card->size = text->size;
    for (uint32_t i = 0; i < card->backend_count; i++) {
        shared_unpack(&list[i], &card->backends[i]);
        memcpy(card->backends[i].why, text->why[i], TPT_WORDS);
    }
}
