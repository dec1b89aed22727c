/* SPDX-License-Identifier: BSD-3-Clause */
/* Addresses of listeners, and the proofs of their secret. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/address.h"
#include "runtime/secret.h"
#include "tests/lib/tpx.h"

#define HOST "00112233445566778899aabbccddeeff"
#define KEY "0123456789abcdef0123456789abcdef"

static const char *const address_right[] = {
    "tp:1;tcp=192.0.2.7:4711",
    "tp:1;tcp=[fd00::1]:1;tcp=192.0.2.7:65535",
    "tp:1;host=" HOST ";unix=tp-listener-x",
    "tp:1;host=" HOST ";unix=n;tcp=127.0.0.1:1;tcp=[::1]:2;key=" KEY,
};

START_TEST(test_round_trip)
{
    for (size_t i = 0; i < TPB_COUNT(address_right); i++) {
        struct tpr_address address;
        struct tpb_text text = { 0 };
        struct tpb_error error = { "" };

        ck_assert_msg(tpr_address_parse(address_right[i], &address, &error)
                      == TP_OK, "%s: %s", address_right[i], error.text);
        ck_assert(!address.by_hand);
        ck_assert_int_eq(tpr_address_format(&address, &text), TP_OK);
        ck_assert_str_eq(text.text, address_right[i]);
        tpb_text_fini(&text);
    }
}
END_TEST

/* What a later version adds does not disturb this one. */
START_TEST(test_unknown_parts)
{
    struct tpr_address address;

    ck_assert_int_eq(tpr_address_parse("tp:1;rdma=mlx5_0/7;tcp=192.0.2.7:1;"
                                       "colour=blue", &address, NULL), TP_OK);
    ck_assert_uint_eq(address.count, 1);
    ck_assert_uint_eq(address.ways[0].port, 1);
}
END_TEST

START_TEST(test_by_hand)
{
    static const struct {
        const char *text, *host;
        uint16_t port;
    } rows[] = {
        { "node07:4711", "node07", 4711 },
        { "tcp://node07.example.org:1", "node07.example.org", 1 },
        { "192.0.2.7:65535", "192.0.2.7", 65535 },
        { "[::1]:4711", "::1", 4711 },
        { "tcp://[fe80::1%eth0]:4711", "fe80::1%eth0", 4711 },
        { "*:0", "*", 0 },
        { ":4711", "", 4711 },
    };
    struct tpr_address address;

    for (size_t i = 0; i < TPB_COUNT(rows); i++) {
        ck_assert_int_eq(tpr_address_parse(rows[i].text, &address, NULL),
                         TP_OK);
        ck_assert(address.by_hand && !address.local);
        ck_assert_str_eq(address.host, rows[i].host);
        ck_assert_uint_eq(address.port, rows[i].port);
    }
    ck_assert_int_eq(tpr_address_parse("local", &address, NULL), TP_OK);
    ck_assert(address.by_hand && address.local);
}
END_TEST

START_TEST(test_refused)
{
    static const char *const rows[] = {
        "", "x", "host", "host:", "host:x", "host:-1", "host:65536",
        "host:123456", "host: 1", "ho st:1", "host:1\n", "::1:4711", "[::1:1",
        "[::1]", "[::1]4711", "]:1", "[:1", "a/b:1", "http://host:1",
        "udp://host:1", "tcp://", "h\xc3\xa9:1",
        "tp:", "tp:1", "tp:1;", "tp:2;tcp=192.0.2.7:1", "tp:1;tcp",
        "tp:1;tcp=", "tp:1;tcp=192.0.2.7", "tp:1;tcp=192.0.2.7:0",
        "tp:1;tcp=192.0.2:1", "tp:1;tcp=name:1", "tp:1;tcp=[192.0.2.7]:1",
        "tp:1;tcp=::1:1", "tp:1;tcp=fd00::1", "tp:1;host=" HOST,
        "tp:1;host=zz112233445566778899aabbccddeeff;unix=n",
        "tp:1;host=00;unix=n", "tp:1;host=" HOST ";host=" HOST ";unix=n",
        "tp:1;unix=", "tp:1;unix=a;unix=b",
        "tp:1;unix=0123456789012345678901234567890123456789012345678901234567"
        "890123", "tp:1;tcp=192.0.2.7:1;key=",
        "tp:1;tcp=192.0.2.7:1;key=" KEY ";key=" KEY,
        "tp:1;tcp=192.0.2.7:1;key=" KEY "0",
    };
    struct tpr_address address;

    for (size_t i = 0; i < TPB_COUNT(rows); i++) {
        struct tpb_error error = { "" };

        ck_assert_msg(tpr_address_parse(rows[i], &address, &error)
                      == TP_ERR_INVALID, "\"%s\" was understood", rows[i]);
        ck_assert_msg(error.text[0] != '\0', "\"%s\": no words", rows[i]);
    }
}
END_TEST

START_TEST(test_too_much)
{
    struct tpr_address address;
    char text[3000] = "tp:1";

    for (int i = 0; i < TPR_WAYS; i++)
        strcat(text, ";tcp=192.0.2.7:1");
    ck_assert_int_eq(tpr_address_parse(text, &address, NULL), TP_OK);
    strcat(text, ";tcp=192.0.2.7:1");
    ck_assert_int_eq(tpr_address_parse(text, &address, NULL), TP_ERR_INVALID);
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    ck_assert_int_eq(tpr_address_parse(text, &address, NULL), TP_ERR_INVALID);
    strcpy(text + 300, ":1");
    ck_assert_int_eq(tpr_address_parse(text, &address, NULL), TP_ERR_INVALID);
}
END_TEST

/* The longest that we write fits into what the page promises. */
START_TEST(test_longest)
{
    struct tpr_address address = { .has_host = true, .key = KEY };
    struct tpb_text text = { 0 };

    memset(address.name, 'n', sizeof(address.name) - 1);
    address.count = TPR_WAYS;
    for (uint32_t i = 0; i < address.count; i++) {
        address.ways[i].family = 6;
        address.ways[i].port = 65535;
        memset(address.ways[i].address, 0xfd, 16);
    }
    ck_assert_int_eq(tpr_address_format(&address, &text), TP_OK);
    ck_assert_uint_lt(text.length, TPR_ADDRESS_TEXT);
    ck_assert_int_eq(tpr_address_parse(text.text, &address, NULL), TP_OK);
    tpb_text_fini(&text);
}
END_TEST

/* Right addresses with bytes changed, cut and doubled: never a crash, and what
 * is understood can be written and understood again. */
START_TEST(test_garbage)
{
    unsigned seed = 7;

    for (int round = 0; round < 200000; round++) {
        const char *from = address_right[(size_t)rand_r(&seed)
                                         % TPB_COUNT(address_right)];
        char text[256];
        struct tpr_address address, again;
        struct tpb_text written = { 0 };
        size_t length = strlen(from);

        strcpy(text, from);
        for (int i = rand_r(&seed) % 4; i >= 0; i--)
            text[(size_t)rand_r(&seed) % length]
                = (char)(rand_r(&seed) % 4 == 0 ? rand_r(&seed)
                         : from[(size_t)rand_r(&seed) % length]);
        if (tpr_address_parse(text, &address, NULL) != TP_OK
            || address.by_hand)
            continue;
        ck_assert_int_eq(tpr_address_format(&address, &written), TP_OK);
        ck_assert_int_eq(tpr_address_parse(written.text, &again, NULL),
                         TP_OK);
        ck_assert_uint_eq(again.count, address.count);
        tpb_text_fini(&written);
    }
}
END_TEST

/* ---- secrets ------------------------------------------------------------- */

/* The same bytes in other pieces, another purpose or another secret give
 * another proof. */
START_TEST(test_proofs)
{
    const struct tpr_piece one[] = { { "ab", 2 }, { "c", 1 } };
    const struct tpr_piece other[] = { { "a", 1 }, { "bc", 2 } };
    uint8_t a[TPR_MAC], b[TPR_MAC];
    struct tpb_error error;

    ck_assert_int_eq(tpr_secret_open(&error), TP_OK);
    tpr_secret_mac("secret", "guest", one, 2, a);
    tpr_secret_mac("secret", "guest", one, 2, b);
    ck_assert_mem_eq(a, b, TPR_MAC);
    tpr_secret_mac("secret", "guest", other, 2, b);
    ck_assert_mem_ne(a, b, TPR_MAC);
    tpr_secret_mac("secret", "host", one, 2, b);
    ck_assert_mem_ne(a, b, TPR_MAC);
    tpr_secret_mac("Secret", "guest", one, 2, b);
    ck_assert_mem_ne(a, b, TPR_MAC);
}
END_TEST

static tp_status secret_of(const char *setting, char secret[TPR_SECRET_TEXT],
                           struct tpb_error *error)
{
    struct tpb_settings settings;
    tp_status status;

    setenv("TP_SECRET", setting, 1);
    ck_assert_int_eq(tpb_settings_load(&settings, NULL), TP_OK);
    status = tpr_secret_get(&settings, secret, error);
    tpb_settings_fini(&settings);
    return status;
}

START_TEST(test_secret_file)
{
    char path[] = "/tmp/tpx-secret-XXXXXX", setting[64];
    char secret[TPR_SECRET_TEXT];
    struct tpb_error error = { "" };
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    snprintf(setting, sizeof(setting), "file:%s", path);
    ck_assert_int_eq(secret_of(setting, secret, &error), TP_ERR_INVALID);
    ck_assert_int_eq(write(fd, "open sesame\n", 12), 12);
    ck_assert_int_eq(secret_of(setting, secret, &error), TP_OK);
    ck_assert_str_eq(secret, "open sesame");
    ck_assert_int_eq(fchmod(fd, 0644), 0);
    ck_assert_int_eq(secret_of(setting, secret, &error), TP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "chmod"));
    unlink(path);
    close(fd);
    ck_assert_int_eq(secret_of(setting, secret, &error), TP_ERR_NOT_FOUND);
    ck_assert_int_eq(secret_of("plain", secret, &error), TP_OK);
    ck_assert_str_eq(secret, "plain");
    ck_assert_int_eq(secret_of("", secret, &error), TP_OK);
    ck_assert_str_eq(secret, "");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("address");
    TCase *tests = tcase_create("address");

    tcase_set_timeout(tests, 180);
    tcase_add_test(tests, test_round_trip);
    tcase_add_test(tests, test_unknown_parts);
    tcase_add_test(tests, test_by_hand);
    tcase_add_test(tests, test_refused);
    tcase_add_test(tests, test_too_much);
    tcase_add_test(tests, test_longest);
    tcase_add_test(tests, test_garbage);
    tcase_add_test(tests, test_proofs);
    tcase_add_test(tests, test_secret_file);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
