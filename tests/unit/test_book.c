/* SPDX-License-Identifier: BSD-3-Clause */
/* The book: what a rank keeps of the others' cards says the same as the cards
 * themselves, in little memory however many there are. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "tests/unit/pair.h"
#include "topology/book.h"

static const struct tpt_policy everything = { NULL, NULL };
static struct tpt_book *book;
static struct tpt_card again;

static struct tpt_book_size book_size(void)
{
    struct tpt_book_size size;

    tpt_book_measure(book, &size);
    return size;
}

/* Nothing is left but the book itself. */
static void book_end(void)
{
    struct tpt_book_size size = book_size();

    ck_assert_uint_eq(size.entries, 0);
    ck_assert_uint_eq(size.decisions, 0);
    ck_assert_uint_eq(size.shared, 0);
    tpt_book_free(book);
}

static struct tpt_entry *book_enter(const struct tpt_card *card)
{
    struct tpb_error error = { "" };
    struct tpt_entry *entry = NULL;

    ck_assert_msg(tpt_book_enter(book, card, &entry, &error) == TP_OK, "%s",
                  error.text);
    return entry;
}

/* The decision is that of the pair scored alone. */
static void check_decision(const struct tpt_entry *entry)
{
    const struct tpt_plan *shared = tpt_entry_plan(entry);

    ck_assert_str_eq(order(shared), order(&plan));
    ck_assert_int_eq(shared->locality, plan.locality);
    ck_assert_str_eq(shared->insist, plan.insist);
    for (uint32_t i = 0; i < plan.count; i++) {
        const struct tpt_candidate *x = &shared->candidates[i];
        const struct tpt_candidate *y = &plan.candidates[i];

        ck_assert_int_eq(x->reason, y->reason);
        ck_assert_uint_eq(x->latency_ns, y->latency_ns);
        ck_assert_uint_eq(x->megabytes, y->megabytes);
        ck_assert_uint_eq(x->from_bytes, y->from_bytes);
        ck_assert_int_eq(x->insisted, y->insisted);
    }
}

/* With all its words it is the same to the last bit. */
static void check_words(const struct tpt_entry *entry)
{
    ck_assert(tpt_entry_explain(entry, &mirror, &again));
    ck_assert_mem_eq(&plan, &mirror, sizeof(plan));
}

/* As bytes, so that padding is the same. */
static void as_read(struct tpt_card *card)
{
    static uint8_t blob[TPT_CARD_BYTES];
    size_t length;

    ck_assert_int_eq(tpt_card_encode(card, blob, &length), TP_OK);
    ck_assert_int_eq(tpt_card_decode(blob, length, card, NULL), TP_OK);
}

static void random_gpus(struct tpt_card *card, uint64_t *seed)
{
    card->gpu_count = tpx_random_below(seed, 4);
    for (uint32_t i = 0; i < card->gpu_count; i++) {
        struct tpt_card_gpu *gpu = &card->gpus[i];

        gpu->place.pci = 0x1800 + i;
        gpu->uuid[3] = (uint8_t)tpx_random_below(seed, 256);
        gpu->megabytes = 1 + tpx_random_below(seed, 3);
        gpu->link_count = (uint8_t)tpx_random_below(seed, 2);
        gpu->links[0].pci = gpu->link_count > 0 ? 0x1900u : 0;
        gpu->links[0].count = gpu->link_count;
        gpu->denied_count = (uint8_t)tpx_random_below(seed, 2);
        gpu->denied[0] = gpu->denied_count > 0 ? 0x1801u : 0;
        gpu->nic = (uint8_t)tpx_random_below(seed, card->nic_count + 1);
    }
    for (uint32_t i = 0; i < card->backend_count; i++)
        card->backends[i].devices = card->backends[i].role
                                    == TPT_ROLE_CHANNEL
                                    && tpx_random_below(seed, 4) == 0;
}

START_TEST(test_as_scored)
{
    uint64_t seed = 31;

    for (int i = 0; i < 500; i++) {
        struct tpt_entry *entry;

        tpx_card_random(&a, &seed);
        random_gpus(&a, &seed);
        as_read(&a);
        book = tpt_book_new(&a, &everything);
        for (int j = 0; j < 4; j++) {
            tpx_card_random(&b, &seed);
            random_gpus(&b, &seed);
            as_read(&b);
            score(NULL, NULL);
            entry = book_enter(&b);
            check_decision(entry);
            check_words(entry);
            for (uint32_t k = 0; k < b.backend_count; k++) {
                const char *name = b.backends[k].name;
                bool good = tpx_random_below(&seed, 3) > 0;

                if (good)
                    tpt_plan_demote(&plan, name, name);
                else
                    tpt_plan_restore(&plan, name);
                ck_assert(good ? tpt_entry_demote(entry, name, name)
                          : tpt_entry_restore(entry, name));
                check_decision(entry);
            }
            check_words(entry);
            tpt_entry_drop(entry);
        }
        book_end();
    }
}
END_TEST

START_TEST(test_card_again)
{
    uint64_t seed = 5;

    tpx_card_random(&a, &seed);
    book = tpt_book_new(&a, &everything);
    for (int i = 0; i < 200; i++) {
        struct tpt_entry *entry;

        tpx_card_random(&b, &seed);
        random_gpus(&b, &seed);
        as_read(&b);
        entry = book_enter(&b);
        tpt_entry_card(entry, &again);
        /* But for addresses of what cannot be used. */
        for (uint32_t j = 0; j < b.backend_count; j++) {
            struct tpt_backend_card *backend = &b.backends[j];
            uint8_t address[TPT_ADDRESS];
            size_t length = tpt_entry_address(entry, backend->name, address);

            if (length == 0) {
                memset(backend->address, 0, sizeof(backend->address));
                backend->address_length = 0;
                continue;
            }
            ck_assert_uint_eq(length, backend->address_length);
            ck_assert_mem_eq(address, backend->address, length);
        }
        ck_assert_mem_eq(&b, &again, sizeof(b));
        ck_assert_mem_eq(tpt_entry_cookie(entry), b.cookie, 16);
        ck_assert_mem_eq(tpt_entry_instance(entry), b.instance, 16);
        ck_assert_uint_eq(tpt_entry_pid(entry), b.pid);
        ck_assert_str_eq(tpt_entry_host(entry)->name, b.host.name);
        tpt_entry_drop(entry);
    }
    book_end();
}
END_TEST

/* Of any length, with zeros wherever they fall, and back; the second one much
 * like the first, or not at all. */
START_TEST(test_packing)
{
    uint64_t seed = 77;
    uint8_t address[TPT_ADDRESS];
    struct tpt_entry *entry;

    hosts("one-socket", "one-socket");
    for (size_t length = 1; length <= TPT_ADDRESS; length++) {
        struct tpt_backend_card *first = &b.backends[2];
        struct tpt_backend_card *second = &b.backends[3];

        ck_assert_str_eq(first->name, "ofi:tcp");
        ck_assert_str_eq(second->name, "ofi:verbs");
        first->address_length = (uint16_t)length;
        second->address_length = (uint16_t)(
            1 + tpx_random_below(&seed, TPT_ADDRESS));
        for (size_t i = 0; i < TPT_ADDRESS; i++) {
            first->address[i] = (uint8_t)(
                tpx_random_below(&seed, 1 + length % 7) * 9);
            second->address[i] = (uint8_t)(
                tpx_random_below(&seed, 8) < length % 9 ? first->address[i]
                : tpx_random_below(&seed, 256));
        }
        book = tpt_book_new(&a, &everything);
        entry = book_enter(&b);
        memset(address, 0xaa, sizeof(address));
        ck_assert_uint_eq(tpt_entry_address(entry, first->name, address),
                          length);
        ck_assert_mem_eq(address, first->address, length);
        ck_assert_uint_eq(tpt_entry_address(entry, second->name, address),
                          second->address_length);
        ck_assert_mem_eq(address, second->address, second->address_length);
        tpt_entry_drop(entry);
        book_end();
    }
}
END_TEST

START_TEST(test_addresses)
{
    struct tpt_entry *entry;
    uint8_t address[TPT_ADDRESS];

    hosts("one-socket", "one-socket");
    for (uint32_t i = 0; i < b.backend_count; i++) {
        b.backends[i].address_length = 300;
        memset(b.backends[i].address, (int)i + 1, 300);
    }
    b.backends[2].address_length = TPT_ADDRESS;
    book = tpt_book_new(&a, &everything);
    entry = book_enter(&b);
    /* shm stays on one host: nobody will call it. */
    ck_assert_uint_eq(tpt_entry_address(entry, "shm", address), 0);
    ck_assert_uint_eq(tpt_entry_address(entry, "nonesuch", address), 0);
    ck_assert_uint_eq(tpt_entry_address(entry, "ofi:tcp", address),
                      TPT_ADDRESS);
    ck_assert_uint_eq(*address, 3);
    ck_assert_uint_eq(tpt_entry_address(entry, "ofi:verbs", address), 300);
    ck_assert_uint_eq(*address, 4);
    tpt_entry_forget_addresses(entry);
    ck_assert_uint_eq(tpt_entry_address(entry, "ofi:tcp", address), 0);
    tpt_entry_forget_addresses(entry);
    tpt_entry_drop(entry);
    book_end();
}
END_TEST

/* What both sides' trials said, in the plan and its JSON. */
START_TEST(test_trials)
{
    struct tpt_entry *entry;
    struct tpb_text text = { 0 };

    pair("one-socket", 0, 1);
    tpx_card_channel(&a, "cma", "", 1000, 14000);
    tpx_card_channel(&b, "cma", "", 1000, 14000);
    book = tpt_book_new(&a, &everything);
    entry = book_enter(&b);
    tpt_entry_tried(entry, TPT_MINE, "nonesuch", "x");
    tpt_entry_tried(entry, TPT_YOURS, "cma", "at first");
    tpt_entry_tried(entry, TPT_YOURS, "cma", NULL);
    tpt_entry_tried(entry, TPT_MINE, "cma", NULL);
    tpt_entry_tried(entry, TPT_MINE, "cma", "no right");
    ck_assert(tpt_entry_explain(entry, &plan, &again));
    ck_assert_int_eq(find("cma")->trials[TPT_MINE].result, TPT_FAILED);
    ck_assert_str_eq(find("cma")->trials[TPT_MINE].words, "no right");
    ck_assert_int_eq(find("cma")->trials[TPT_YOURS].result, TPT_PASSED);
    ck_assert_int_eq(find("shm")->trials[TPT_YOURS].result, TPT_UNTRIED);
    /* This side may not pull; the other may: it is the way there. */
    ck_assert_int_eq(find("cma")->reason, TPT_REASON_CHOSEN);
    tpt_plan_text(&plan, &a, &again, &text);
    ck_assert_ptr_nonnull(strstr(text.text, " trial here: no right\n"));
    ck_assert_ptr_nonnull(strstr(text.text, " trial there: passed\n"));
    tpb_text_fini(&text);
    tpt_entry_drop(entry);
    book_end();
}
END_TEST

/* Peers of one class have one decision, also after the same trial failed with
 * them, and their own words. */
START_TEST(test_shared)
{
    struct tpt_entry *entries[3];
    struct tpt_book_size size;

    hosts("nics-two", "nics-two");
    book = tpt_book_new(&a, &everything);
    for (int i = 0; i < 3; i++) {
        b.rank = 10 + i;
        b.instance[0] = (uint8_t)(10 + i);
        b.host.boot_id[5] = (uint8_t)(20 + i);
        snprintf(b.host.name, sizeof(b.host.name), "node%d", i);
        entries[i] = book_enter(&b);
        ck_assert_ptr_eq(tpt_entry_plan(entries[i]),
                         tpt_entry_plan(entries[0]));
    }
    ck_assert_uint_eq(book_size().decisions, 1);
    ck_assert(tpt_entry_demote(entries[0], "ofi:tcp", "no answer of node0"));
    ck_assert_ptr_ne(tpt_entry_plan(entries[0]), tpt_entry_plan(entries[1]));
    ck_assert(tpt_entry_demote(entries[2], "ofi:tcp", "no answer of node2"));
    ck_assert_ptr_eq(tpt_entry_plan(entries[0]), tpt_entry_plan(entries[2]));
    ck_assert_uint_eq(book_size().decisions, 2);
    ck_assert(tpt_entry_explain(entries[2], &plan, &again));
    ck_assert_str_eq(find("ofi:tcp")->evidence, "no answer of node2");
    ck_assert_ptr_nonnull(strstr(find("shm")->evidence, "host1 and node2"));
    ck_assert(tpt_entry_explain(entries[1], &plan, &again));
    ck_assert_int_eq(find("ofi:tcp")->reason, TPT_REASON_SLOWER);
    /* At another NUMA node, beside other NICs: another class. */
    b.place.numa = 1 - b.place.numa;
    tpt_entry_drop(entries[1]);
    entries[1] = book_enter(&b);
    ck_assert_uint_eq(book_size().decisions, 3);
    /* Dropped in any order. */
    tpt_entry_drop(entries[2]);
    tpt_entry_drop(entries[0]);
    size = book_size();
    ck_assert_uint_eq(size.entries, 1);
    ck_assert_uint_eq(size.decisions, 1);
    tpt_entry_drop(entries[1]);
    tpt_entry_drop(NULL);
    book_end();
}
END_TEST

START_TEST(test_refused)
{
    struct tpt_policy policy = { NULL, "node:nonesuch" };
    struct tpt_entry *entry = NULL;
    struct tpb_error error = { "" };

    pair("one-socket", 0, 1);
    book = tpt_book_new(&a, &policy);
    ck_assert_int_eq(tpt_book_enter(book, &b, &entry, &error),
                     TP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "nonesuch"));
    ck_assert_ptr_null(entry);
    book_end();
}
END_TEST

/* Any allocation may fail, and nothing is lost. */
START_TEST(test_no_memory)
{
    bool done = false;

    pair("one-socket", 0, 1);
    b.backends[1].address_length = 8;
    for (long n = 1; !done; n++) {
        struct tpt_entry *entry = NULL;

        ck_assert_int_lt(n, 30);
        book = tpt_book_new(&a, &everything);
        tpb_alloc_fail_at(n);
        if (tpt_book_enter(book, &b, &entry, NULL) == TP_OK) {
            const char *before = order(tpt_entry_plan(entry));

            done = tpt_entry_demote(entry, "shm", "refused");
            if (!done)
                ck_assert_str_eq(order(tpt_entry_plan(entry)), before);
            tpt_entry_tried(entry, TPT_MINE, "shm", "refused");
        }
        tpb_alloc_fail_at(0);
        tpt_entry_drop(entry);
        book_end();
    }
}
END_TEST

/* Many ranks: what each costs does not depend on how many there are. */
START_TEST(test_many)
{
    enum { HOSTS = 200, PER_HOST = 50, RANKS = HOSTS * PER_HOST, MOST = 256 };
    static struct tpt_entry *entries[RANKS];
    struct tpt_topology *machine = tpx_machine("gpu-switches");
    struct tpt_book_size size;

    tpx_card(&a, machine, 0, 0, 1);
    tpx_card(&b, machine, 0, 0, 1);
    book = tpt_book_new(&a, &everything);
    for (int i = 0; i < RANKS; i++) {
        int host = i / PER_HOST;

        ck_assert(tpt_topology_place_core(machine, (uint32_t)(i % 16),
                                          &b.place));
        b.rank = i + 1;
        b.pid = (uint32_t)i;
        memcpy(b.instance, &b.rank, sizeof(b.rank));
        b.instance[15] = 1;
        memset(b.host.boot_id, 1, sizeof(b.host.boot_id));
        memcpy(b.host.boot_id, &host, sizeof(host));
        if (host == 7)
            memset(b.host.boot_id, 1, sizeof(b.host.boot_id));
        snprintf(b.host.name, sizeof(b.host.name), "node%04d", host);
        for (uint32_t j = 0; j < b.backend_count; j++) {
            b.backends[j].address_length = 60;
            memcpy(b.backends[j].address, &i, sizeof(i));
        }
        entries[i] = book_enter(&b);
    }
    tpt_topology_free(machine);
    /* Other hosts, their ranks at either of two NUMA nodes; one host with us,
     * where ranks are near and far. */
    size = book_size();
    ck_assert_uint_eq(size.entries, RANKS);
    ck_assert_uint_le(size.decisions, 6);
    for (int i = 0; i < RANKS; i++)
        tpt_entry_forget_addresses(entries[i]);
    size = book_size();
    ck_assert_uint_le(size.bytes / RANKS, MOST);
    for (int i = 0; i < RANKS; i += 997) {
        tpt_entry_card(entries[i], &b);
        score(NULL, NULL);
        check_decision(entries[i]);
    }
    for (int i = 0; i < RANKS; i++)
        tpt_entry_drop(entries[i]);
    book_end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("book");
    TCase *tests = tcase_create("book");

    tcase_set_timeout(tests, 180);
    tcase_add_test(tests, test_as_scored);
    tcase_add_test(tests, test_card_again);
    tcase_add_test(tests, test_addresses);
    tcase_add_test(tests, test_packing);
    tcase_add_test(tests, test_trials);
    tcase_add_test(tests, test_shared);
    tcase_add_test(tests, test_refused);
    tcase_add_test(tests, test_no_memory);
    tcase_add_test(tests, test_many);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
