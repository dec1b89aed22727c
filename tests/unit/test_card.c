/* SPDX-License-Identifier: BSD-3-Clause */
/* The card's encoding: what goes in comes out, and nothing else gets in. */
#include "config.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/tpx.h"
#include "tests/unit/cards.h"

enum { CHECKSUM = 8 };

/* A decoded card is 10 KiB: not on every frame of a test. */
static struct tpt_card card, decoded;
static uint8_t blob[TPT_CARD_BYTES];
static size_t length;

static void encode(void)
{
    ck_assert_int_eq(tpt_card_encode(&card, blob, &length), TP_OK);
}

/* In memory of exactly that length, so that a sanitizer sees one byte more. */
static tp_status decode(const void *bytes, size_t count, char text[512])
{
    struct tpb_error error = { "" };
    void *exact = malloc(count > 0 ? count : 1);
    tp_status status;

    if (count > 0)
        memcpy(exact, bytes, count);
    status = tpt_card_decode(exact, count, &decoded, &error);
    if (status != TP_OK)
        ck_assert_str_ne(error.text, "");
    if (text != NULL)
        memcpy(text, error.text, sizeof(error.text));
    free(exact);
    return status;
}

/* FNV-1a as the format says, independent of the code under test. */
static void seal(uint8_t *bytes, size_t count)
{
    uint64_t hash = 14695981039346656037u;

    for (size_t i = 0; i < count - CHECKSUM; i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    for (size_t i = 0; i < CHECKSUM; i++)
        bytes[count - CHECKSUM + i] = (uint8_t)(hash >> (8 * i));
}

/* A card as a rank with four backends and four NICs has it. */
static void usual_card(void)
{
    struct tpt_topology *machine = tpx_machine("nics-rdma");

    tpx_card(&card, machine, 1, 3, 7);
    card.size = 16;
    for (uint32_t i = 0; i < card.backend_count; i++) {
        card.backends[i].address_length = 64;
        memset(card.backends[i].address, 0xa5, 64);
    }
    card.backends[3].usable = 0;
    snprintf(card.backends[3].why, sizeof(card.backends[3].why),
             "no RDMA device: /sys/class/infiniband is empty");
    tpt_topology_free(machine);
}

START_TEST(test_round_trip)
{
    usual_card();
    encode();
    ck_assert_int_eq(decode(blob, length, NULL), TP_OK);
    ck_assert_mem_eq(&card, &decoded, sizeof(card));
    ck_assert_uint_lt(length, 1024);
}
END_TEST

START_TEST(test_round_trip_random)
{
    uint64_t seed = 1;

    for (int i = 0; i < 2000; i++) {
        tpx_card_random(&card, &seed);
        encode();
        ck_assert_int_eq(decode(blob, length, NULL), TP_OK);
        ck_assert_mem_eq(&card, &decoded, sizeof(card));
    }
}
END_TEST

START_TEST(test_extremes)
{
    memset(&card, 0, sizeof(card));
    encode();
    ck_assert_int_eq(decode(blob, length, NULL), TP_OK);
    ck_assert_mem_eq(&card, &decoded, sizeof(card));
    memset(card.job, 'j', sizeof(card.job) - 1);
    memset(card.host.name, 'h', sizeof(card.host.name) - 1);
    card.rank = card.place.core = card.place.numa = INT32_MIN;
    card.size = card.place.l2 = INT32_MAX;
    card.pid = card.place.cpus = UINT32_MAX;
    card.host.user_namespace = card.place.topology = UINT64_MAX;
    tpx_card_add(&card, "one", TPT_REACH_NETWORK, UINT32_MAX, UINT32_MAX);
    card.backends[0].address_length = TPT_ADDRESS;
    memset(card.backends[0].address, 0xff, TPT_ADDRESS);
    memset(card.backends[0].why, 'w', TPT_WORDS - 1);
    memset(card.backends[0].name, 'n', TPT_NAME - 1);
    memset(card.backends[0].over, 'o', TPT_NAME - 1);
    card.backends[0].role = TPT_ROLE_CHANNEL;
    memset(card.backends[0].measured, 0xff,
           sizeof(card.backends[0].measured));
    encode();
    ck_assert_int_eq(decode(blob, length, NULL), TP_OK);
    ck_assert_mem_eq(&card, &decoded, sizeof(card));
}
END_TEST

/* Eight GPUs, and what a later version may add. */
START_TEST(test_gpus)
{
    struct tpt_topology *machine = tpx_machine("gpu-switches");
    size_t without, later;

    tpx_card(&card, machine, 1, 3, 7);
    ck_assert_uint_eq(card.gpu_count, 8);
    encode();
    ck_assert_int_eq(decode(blob, length, NULL), TP_OK);
    ck_assert_mem_eq(&card, &decoded, sizeof(card));
    without = length;
    card.gpu_count = 0;
    memset(card.gpus, 0, sizeof(card.gpus));
    encode();
    ck_assert_uint_le(without - length, 8 * 60);
    /* A record of an unknown kind is passed over; what it lacks is not. */
    ck_assert_uint_eq(blob[length - CHECKSUM - 1], 0);
    blob[length - CHECKSUM - 1] = 1;
    later = length + 3 + 5;
    memcpy(blob + length - CHECKSUM, "\xee\x05\x00hello", 8);
    blob[6] = (uint8_t)later;
    blob[7] = (uint8_t)(later >> 8);
    seal(blob, later);
    ck_assert_int_eq(decode(blob, later, NULL), TP_OK);
    ck_assert_mem_eq(&card, &decoded, sizeof(card));
    blob[length - CHECKSUM + 1]++;
    seal(blob, later);
    ck_assert_int_eq(decode(blob, later, NULL), TP_ERR_PROTOCOL);
    tpt_topology_free(machine);
}
END_TEST

START_TEST(test_gpus_refused)
{
    card.gpu_count = TPT_CARD_GPUS + 1;
    ck_assert_int_eq(tpt_card_encode(&card, blob, &length), TP_ERR_INVALID);
    card.gpu_count = 1;
    card.gpus[0].place.depth = TPT_PCI_DEPTH + 1;
    ck_assert_int_eq(tpt_card_encode(&card, blob, &length), TP_ERR_INVALID);
    card.gpus[0].place.depth = 0;
    card.gpus[0].nic = (uint8_t)(card.nic_count + 1);
    ck_assert_int_eq(tpt_card_encode(&card, blob, &length), TP_ERR_INVALID);
    card.gpus[0].nic = 0;
    encode();
}
END_TEST

START_TEST(test_truncated)
{
    usual_card();
    encode();
    for (size_t i = 0; i < length; i++)
        ck_assert_int_eq(decode(blob, i, NULL), TP_ERR_PROTOCOL);
    blob[length] = 0;
    ck_assert_int_eq(decode(blob, length + 1, NULL), TP_ERR_PROTOCOL);
}
END_TEST

START_TEST(test_every_damaged_byte)
{
    usual_card();
    encode();
    for (size_t i = 0; i < length; i++) {
        for (unsigned change = 1; change < 256; change++) {
            blob[i] ^= (uint8_t)change;
            ck_assert_int_eq(tpt_card_decode(blob, length, &decoded, NULL),
                             TP_ERR_PROTOCOL);
            blob[i] ^= (uint8_t)change;
        }
    }
    ck_assert_int_eq(decode(blob, length, NULL), TP_OK);
}
END_TEST

/* A card that was accepted must be good for everything one does with cards. */
static void use_decoded(void)
{
    static struct tpt_card mine;
    static struct tpt_plan plan;
    struct tpb_text text = { 0 };
    char *json;

    mine = card;
    ck_assert_int_eq(tpt_score(&mine, &decoded, NULL, &plan, NULL), TP_OK);
    json = tpt_plan_json(&plan, &mine, &decoded, true, NULL);
    ck_assert_ptr_nonnull(json);
    free(json);
    tpt_plan_text(&plan, &mine, &decoded, &text);
    ck_assert(!text.failed);
    for (size_t i = 0; i < text.length; i++)
        ck_assert(text.text[i] == '\n' || (uint8_t)text.text[i] >= 0x20);
    tpb_text_fini(&text);
}

/* The same with a checksum that fits: refused, or harmless. */
START_TEST(test_damaged_and_sealed)
{
    static const uint8_t changes[] = { 1, 2, 4, 8, 16, 32, 64, 128, 255 };
    static uint8_t copy[TPT_CARD_BYTES];
    unsigned refused = 0;

    usual_card();
    encode();
    for (size_t i = 0; i < length - CHECKSUM; i++) {
        for (size_t j = 0; j < TPB_COUNT(changes); j++) {
            memcpy(copy, blob, length);
            copy[i] ^= changes[j];
            seal(copy, length);
            if (decode(copy, length, NULL) == TP_OK)
                use_decoded();
            else
                refused++;
        }
    }
    ck_assert_uint_gt(refused, 100);
}
END_TEST

START_TEST(test_garbage_behind_a_good_header)
{
    uint64_t seed = 99;

    usual_card();
    encode();
    for (int i = 0; i < 20000; i++) {
        size_t count = 16 + tpx_random_below(&seed, 400);

        for (size_t j = 8; j < count; j++)
            blob[j] = (uint8_t)tpx_random(&seed);
        /* Half of them with strings that are likely to fit. */
        for (size_t j = 8; i % 2 == 0 && j < count; j++)
            blob[j] &= 3;
        blob[6] = (uint8_t)count;
        blob[7] = (uint8_t)(count >> 8);
        seal(blob, count);
        if (decode(blob, count, NULL) == TP_OK)
            use_decoded();
    }
}
END_TEST

/* A backend says over which of the card's NICs it goes. */
START_TEST(test_several_nics)
{
    char text[512];

    usual_card();
    card.backends[2].nics = 5;
    encode();
    ck_assert_int_eq(decode(blob, length, NULL), TP_OK);
    ck_assert_uint_eq(decoded.backends[2].nics, 5);
    ck_assert_uint_eq(decoded.backends[1].nics, 0);
    card.backends[2].nics = (uint16_t)(1u << card.nic_count);
    ck_assert_int_eq(tpt_card_encode(&card, blob, &length), TP_ERR_INVALID);
    /* One that is not there, told by a peer. */
    card.backends[2].nics = 1;
    encode();
    for (size_t i = 0; i + 12 < length; i++)
        if (memcmp(blob + i, "\1\1\0\100\37\0\0", 7) == 0)
            blob[i + 2] = 0x80;    /* kind, NICs, 8000 ns */
    seal(blob, length);
    ck_assert_int_eq(decode(blob, length, text), TP_ERR_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(text, "a NIC that is not there"));
}
END_TEST

START_TEST(test_version)
{
    char text[512];

    usual_card();
    encode();
    blob[4]++;
    seal(blob, length);
    ck_assert_int_eq(decode(blob, length, text), TP_ERR_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(text, "version 3"));
    ck_assert_int_eq(decode("garbage", 7, text), TP_ERR_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(text, "not a tp card"));
}
END_TEST

static void refuses_to_encode(void)
{
    ck_assert_int_eq(tpt_card_encode(&card, blob, &length), TP_ERR_INVALID);
    usual_card();
}

START_TEST(test_limits)
{
    usual_card();
    card.nic_count = TPT_NICS + 1;
    refuses_to_encode();
    card.backend_count = TPT_BACKENDS + 1;
    refuses_to_encode();
    card.backends[1].address_length = TPT_ADDRESS + 1;
    refuses_to_encode();
    memset(card.job, 'x', sizeof(card.job));
    refuses_to_encode();
    memset(card.backends[0].name, 'x', TPT_NAME);
    refuses_to_encode();
    card.backends[0].name[0] = '\0';
    refuses_to_encode();
    snprintf(card.backends[2].name, TPT_NAME, "shm");
    refuses_to_encode();
    card.backends[2].reach = TPT_REACH_NETWORK + 1;
    refuses_to_encode();
    card.nics[0].kind = TPT_NIC_RDMA + 1;
    refuses_to_encode();
    while (card.backend_count < TPT_BACKENDS) {
        char name[TPT_NAME];

        snprintf(name, sizeof(name), "b%u", card.backend_count);
        tpx_card_add(&card, name, TPT_REACH_HOST, 1, 1);
    }
    for (uint32_t i = 0; i < TPT_BACKENDS; i++)
        card.backends[i].address_length = TPT_ADDRESS;
    refuses_to_encode();           /* 8 KiB of addresses alone */
}
END_TEST

START_TEST(test_control_characters)
{
    usual_card();
    snprintf(card.backends[3].why, TPT_WORDS, "red \033[31m\nand \177 more");
    encode();
    ck_assert_int_eq(decode(blob, length, NULL), TP_OK);
    ck_assert_str_eq(decoded.backends[3].why, "red ?[31m?and ? more");
}
END_TEST

START_TEST(test_backend_by_name)
{
    usual_card();
    ck_assert_ptr_eq(tpt_card_backend(&card, "shm"), &card.backends[1]);
    ck_assert_ptr_null(tpt_card_backend(&card, "sh"));
    ck_assert_ptr_null(tpt_card_backend(&card, "shm2"));
}
END_TEST

/* The boot id as the kernel writes it. */
static void read_boot_id(uint8_t id[16])
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    char text[64] = "";
    size_t digits = 0;

    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(text, sizeof(text), file));
    fclose(file);
    for (const char *c = text; *c != '\0' && *c != '\n'; c++) {
        char digit[2] = { *c, '\0' };

        if (*c == '-')
            continue;
        ck_assert_uint_lt(digits, 32);
        id[digits / 2] = (uint8_t)(id[digits / 2] * 16
                                   + strtoul(digit, NULL, 16));
        digits++;
    }
    ck_assert_uint_eq(digits, 32);
}

START_TEST(test_identify)
{
    struct tpb_error error = { "" };
    uint8_t id[16] = { 0 }, instance[16];
    struct stat status;
    char name[64];

    memset(&card, 0, sizeof(card));
    card.rank = 5;
    ck_assert_int_eq(tpt_card_identify(&card, &error), TP_OK);
    memcpy(instance, card.instance, sizeof(instance));
    if (access("/proc/sys/kernel/random/boot_id", R_OK) == 0) {
        read_boot_id(id);
        ck_assert_mem_eq(card.host.boot_id, id, sizeof(id));
    }
    ck_assert_int_eq(stat("/proc/self/ns/pid", &status), 0);
    ck_assert_uint_eq(card.host.pid_namespace, status.st_ino);
    ck_assert_uint_ne(card.host.net_namespace, 0);
    ck_assert_uint_ne(card.host.user_namespace, 0);
    ck_assert_uint_ne(card.host.mount_namespace, 0);
    ck_assert_int_eq(gethostname(name, sizeof(name)), 0);
    ck_assert_str_eq(card.host.name, name);
    ck_assert_uint_eq(card.pid, (uint32_t)getpid());
    ck_assert_uint_eq(card.uid, geteuid());
    ck_assert_int_eq(card.rank, 5);
    ck_assert_mem_ne(card.instance, card.cookie, 16);
    ck_assert_int_eq(tpt_card_identify(&card, &error), TP_OK);
    ck_assert_mem_ne(card.instance, instance, 16);
}
END_TEST

/* The longest name that a host may have, one letter more than a card has room
 * for: it was "localhost" then. */
START_TEST(test_identify_long)
{
    char name[65];

    memset(name, 'h', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    if (unshare(CLONE_NEWUTS) < 0 || sethostname(name, strlen(name)) < 0) {
        tpx_skip("long host name", "no host name can be set here");
        return;
    }
    memset(&card, 0, sizeof(card));
    ck_assert_int_eq(tpt_card_identify(&card, NULL), TP_OK);
    name[sizeof(card.host.name) - 1] = '\0';
    ck_assert_str_eq(card.host.name, name);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("card");
    TCase *tests = tcase_create("card");

    tcase_set_timeout(tests, 180);
    tcase_add_test(tests, test_round_trip);
    tcase_add_test(tests, test_round_trip_random);
    tcase_add_test(tests, test_extremes);
    tcase_add_test(tests, test_gpus);
    tcase_add_test(tests, test_gpus_refused);
    tcase_add_test(tests, test_truncated);
    tcase_add_test(tests, test_every_damaged_byte);
    tcase_add_test(tests, test_damaged_and_sealed);
    tcase_add_test(tests, test_garbage_behind_a_good_header);
    tcase_add_test(tests, test_several_nics);
    tcase_add_test(tests, test_version);
    tcase_add_test(tests, test_limits);
    tcase_add_test(tests, test_control_characters);
    tcase_add_test(tests, test_backend_by_name);
    tcase_add_test(tests, test_identify);
    tcase_add_test(tests, test_identify_long);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
