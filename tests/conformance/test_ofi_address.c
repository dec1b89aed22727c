/* SPDX-License-Identifier: BSD-3-Clause */
/* ofi:tcp's addresses: what is published, what is tried, and what is said. */
#include "config.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <unistd.h>

#include "fabric/ofi/ofi.h"
#include "tests/conformance/side.h"

static const struct tpf_backend *address_backend;

static struct ofi_where address_where(const char *text, uint16_t port)
{
    struct ofi_where where = { .family = strchr(text, ':') ? 6 : 4 };

    ck_assert_int_eq(inet_pton(where.family == 4 ? AF_INET : AF_INET6, text,
                               where.address), 1);
    where.port = htole16(port);
    return where;
}

START_TEST(test_text)
{
    struct ofi_where v4 = address_where("192.0.2.1", 4711);
    struct ofi_where v6 = address_where("fd00::1", 4711);
    char text[64];

    ck_assert_str_eq(ofi_where_text(&v4, true, text), "192.0.2.1:4711");
    ck_assert_str_eq(ofi_where_text(&v6, true, text), "[fd00::1]:4711");
    ck_assert_str_eq(ofi_where_text(&v6, false, text), "fd00::1");
}
END_TEST

START_TEST(test_interfaces)
{
    struct ofi_where list[OFI_WHERES];
    int count = ofi_where_list("", list);
    bool local = count > 0 && list[0].local;

    /* Loopback is the last resort: alone or not at all. */
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(list[i].local, local);
    count = ofi_where_list("lo", list);
    ck_assert_int_ge(count, 1);
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(list[i].local, 1);
    count = ofi_where_list("^lo", list);
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(list[i].local, 0);
    ck_assert_int_eq(ofi_where_list("none0", list), 0);
}
END_TEST

START_TEST(test_order)
{
    struct ofi_where own[OFI_WHERES];
    struct ofi_card card = { .host = htole64(7), .count = 3 };
    struct tpb_text left_out = { 0 };
    int count = ofi_where_list("^lo", own);

    card.wheres[0] = address_where("127.0.0.1", 1);
    card.wheres[0].local = 1;
    card.wheres[1] = address_where("203.0.113.5", 2);
    card.wheres[2] = address_where("203.0.113.6", 3);
    if (count > 0) {
        card.wheres[2] = own[0];   /* in a network of ours */
        card.wheres[2].port = htole16(3);
    }
    ofi_card_order(&card, 7, &left_out);
    ck_assert_int_eq(card.count, 3);
    ck_assert_uint_eq(left_out.length, 0);
    ck_assert_int_eq(card.wheres[2].local, 1);
    if (count > 0)
        ck_assert_uint_eq(le16toh(card.wheres[0].port), 3);
    /* Another host's loopback would be our own, and so would the address that
     * we have too; both are told. */
    ofi_card_order(&card, 8, &left_out);
    ck_assert_int_eq(card.count, count > 0 ? 1 : 2);
    ck_assert_int_eq(card.wheres[0].local, 0);
    ck_assert_ptr_nonnull(strstr(left_out.text, "127.0.0.1:1: not tried"));
    tpb_text_fini(&left_out);
}
END_TEST

/* From where to call somebody: the first of ours in his network. */
START_TEST(test_beside)
{
    struct ofi_where list[3] = { address_where("203.0.113.5", 1),
                                 address_where("::1", 2),
                                 address_where("127.0.0.1", 3) };
    struct ofi_where to = address_where("127.3.4.5", 9), from;

    ck_assert(ofi_where_beside(list, 3, &to, &from));
    ck_assert(ofi_where_same(&from, &list[2]));
    ck_assert_uint_eq(from.port, 0);
    ck_assert(!ofi_where_beside(list, 2, &to, &from));
    to = address_where("203.0.113.5", 9);      /* no address of this host */
    ck_assert(!ofi_where_beside(list, 3, &to, &from));
}
END_TEST

START_TEST(test_damage)
{
    struct ofi_card card = { .count = 2 }, again;
    struct tpb_error error = { "" };
    uint8_t bytes[TPT_ADDRESS];
    size_t length;

    card.wheres[0] = address_where("192.0.2.1", 1);
    card.wheres[1] = address_where("fd00::1", 2);
    length = ofi_card_encode(&card, bytes, sizeof(bytes));
    ck_assert_uint_eq(length, 56 + 2 * 20);
    ck_assert_uint_eq(ofi_card_encode(&card, bytes, length - 1), 0);
    ck_assert_int_eq(ofi_card_decode(&again, bytes, length, &error), TP_OK);
    ck_assert_mem_eq(&card, &again, sizeof(card));
    for (size_t i = 0; i < length; i++) {
        bytes[i] ^= 1;
        ck_assert_int_eq(ofi_card_decode(&again, bytes, length, &error),
                         TP_ERR_PROTOCOL);
        bytes[i] ^= 1;
        ck_assert_int_eq(ofi_card_decode(&again, bytes, i, &error),
                         TP_ERR_PROTOCOL);
    }
    ck_assert_str_ne(error.text, "");
}
END_TEST

static bool address_possible(const char *ifaces, uint8_t family)
{
    struct ofi_where list[OFI_WHERES];
    int count = ofi_where_list(ifaces, list);
    struct tpb_error error = { "" };

    if (ofi_library_probe(&error) != TP_OK) {
        tpx_skip("ofi:tcp", error.text);
        return false;
    }
    for (int i = 0; i < count; i++)
        if (list[i].family == family)
            return true;
    tpx_skip(family == 4 ? "ipv4" : "ipv6", "loopback has no such address");
    return false;
}

/* Two sides, and the card of the second: the first calls who is on it. */
struct address_pair {
    struct tpx_side *a, *b;
    struct ofi_card card;
    struct tpx_link *link;
};

static struct ofi_card address_card(const struct tpx_side *side)
{
    struct tpb_error error = { "" };
    struct ofi_card card;

    ck_assert_int_eq(ofi_card_decode(&card, side->address,
                                     side->address_length, &error), TP_OK);
    return card;
}

/* With the addresses of that family alone, over loopback.  False: it has none;
 * the test is skipped. */
static bool address_open(struct address_pair *pair, uint8_t family)
{
    int kept = 0;

    setenv("TP_IFACE", "lo", 1);
    if (!address_possible("lo", family))
        return false;
    pair->a = tpx_side_open(address_backend);
    pair->b = tpx_side_open(address_backend);
    pair->card = address_card(pair->b);
    for (int i = 0; i < pair->card.count; i++)
        if (pair->card.wheres[i].family == family)
            pair->card.wheres[kept++] = pair->card.wheres[i];
    pair->card.count = (uint8_t)kept;
    return true;
}

static void address_call(struct address_pair *pair)
{
    uint8_t bytes[TPT_ADDRESS];
    size_t length = ofi_card_encode(&pair->card, bytes, sizeof(bytes));

    pair->link = tpx_connect(pair->a, bytes, length);
}

/* The call leads to the second side, while a third one, if any, goes on. */
static void address_meet(struct address_pair *pair, struct tpx_side *other)
{
    TPX_UNTIL((tpx_side_step(pair->a), tpx_side_step(pair->b),
               other != NULL ? tpx_side_step(other) : (void)0),
              pair->link->failed
                  || (pair->link->connected && pair->b->incoming == 1));
    ck_assert_msg(!pair->link->failed, "%s", pair->link->text);
}

static void address_close(struct address_pair *pair)
{
    tpx_side_close(pair->a);
    tpx_side_close(pair->b);
}

static void address_family(uint8_t family)
{
    struct address_pair pair;
    struct tpx_link *in;

    if (!address_open(&pair, family))
        return;
    address_call(&pair);
    address_meet(&pair, NULL);
    in = tpx_incoming(pair.b, 0);
    tpx_stream_set(pair.link, in, 1, tpx_size_random, 0);
    TPX_UNTIL((tpx_side_step(pair.a), tpx_side_step(pair.b)),
              tpx_send(pair.link));
    TPX_UNTIL((tpx_side_step(pair.a), tpx_side_step(pair.b)),
              in->in.next == 1);
    address_close(&pair);
}

START_TEST(test_ipv4)
{
    address_family(4);
}
END_TEST

START_TEST(test_ipv6)
{
    address_family(6);
}
END_TEST

/* A dead address before the living one, and a stranger's before both. */
START_TEST(test_next_address)
{
    struct address_pair pair;
    struct ofi_where *wheres = pair.card.wheres;
    struct tpx_side *other;

    if (!address_open(&pair, 4))
        return;
    other = tpx_side_open(address_backend);
    wheres[2] = wheres[0];
    wheres[0] = address_card(other).wheres[0];  /* somebody else lives there */
    wheres[1] = wheres[2];
    wheres[1].port = htole16(1);                /* nobody lives there */
    pair.card.count = 3;
    address_call(&pair);
    address_meet(&pair, other);
    ck_assert_uint_eq(other->incoming, 0);
    address_close(&pair);
    tpx_side_close(other);
}
END_TEST

/* Of more than it has room for, a host sends one away who has not shown the key
 * for a while, as its process got no cpu: it calls again. */
START_TEST(test_crowd)
{
    int callers[OFI_STRANGERS], count = 0;
    struct sockaddr_storage address;
    struct address_pair pair;
    socklen_t size;

    if (!address_open(&pair, 4))
        return;
    size = ofi_where_to_socket(&pair.card.wheres[0], &address);
    address_call(&pair);
    for (; count < OFI_STRANGERS; count++) {
        /* The last one finds it full, and late. */
        TPX_UNTIL(tpx_side_step(pair.b),
                  ofi_endpoint_of(pair.b->endpoint)->strangers
                      == (unsigned)count + 1);
        if (count == OFI_STRANGERS - 1)
            usleep(2000 * OFI_STRANGER_MS);
        callers[count] = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC,
                                0);
        ck_assert_int_eq(connect(callers[count],
                                 (const struct sockaddr *)&address, size), 0);
    }
    for (int i = 0; i < 20; i++)
        tpx_side_step(pair.b);
    TPX_UNTIL(tpx_side_step(pair.a),
              pair.link->failed || tpx_trying(pair.link, "tried again"));
    ck_assert_msg(!pair.link->failed, "%s", pair.link->text);
    for (int i = 0; i < count; i++)
        close(callers[i]);
    address_meet(&pair, NULL);
    address_close(&pair);
}
END_TEST

/* Where something else hangs up each time, that is the end. */
START_TEST(test_hangs_up)
{
    struct address_pair pair;

    if (!address_open(&pair, 4))
        return;
    pair.card.key[0] ^= 1;
    address_call(&pair);
    TPX_UNTIL((tpx_side_sleep(pair.a, 10), tpx_side_step(pair.b)),
              pair.link->failed);
    ck_assert_int_eq(pair.link->status, TP_ERR_UNREACHABLE);
    ck_assert_msg(strstr(pair.link->text, "hung up without an answer")
                      != NULL, "%s", pair.link->text);
    ck_assert_uint_eq(pair.b->incoming, 0);
    address_close(&pair);
}
END_TEST

/* Every address tried is named, with what it answered. */
START_TEST(test_words)
{
    struct address_pair pair;
    const char *said;
    char text[64];

    if (!address_open(&pair, 4))
        return;
    pair.card = address_card(pair.b);
    tpx_side_close(pair.b);
    address_call(&pair);
    TPX_UNTIL(tpx_side_sleep(pair.a, 100), pair.link->failed);
    ck_assert_int_eq(pair.link->status, TP_ERR_UNREACHABLE);
    said = pair.link->text;
    for (int i = 0; i < pair.card.count; i++)
        ck_assert_msg(strstr(said, ofi_where_text(&pair.card.wheres[i], true,
                                                  text)) != NULL,
                      "%s is not in: %s", text, said);
    ck_assert_msg(strstr(said, "refused") != NULL, "%s", said);
    tpx_side_close(pair.a);
}
END_TEST

/* Nothing is left of sockets that cannot be watched. */
START_TEST(test_unwatched)
{
    static const struct ofi_kind kinds[] = {
        { .backend = "ofi:tcp" },
        { .backend = "ofi:shm", .within_host = true }
    };
    struct tpb_error error = { "" };
    struct tpb_settings settings;
    struct tpf_env env = { .epoll = -1, .settings = &settings };
    struct ofi_endpoint endpoint = { .common.env = &env };
    int before;

    setenv("TP_IFACE", "lo", 1);
    ck_assert_int_eq(tpb_settings_load(&settings, &error), TP_OK);
    before = tpx_fd_count();
    for (size_t i = 0; i < TPB_COUNT(kinds); i++) {
        endpoint.kind = &kinds[i];
        ck_assert_int_ne(ofi_listen_open(&endpoint, &error), TP_OK);
        ck_assert_msg(strstr(error.text, "listening at") != NULL, "%s",
                      error.text);
        ofi_listen_close(&endpoint);
        ck_assert_int_eq(tpx_fd_count(), before);
    }
    tpb_settings_fini(&settings);
}
END_TEST

START_TEST(test_no_interface)
{
    struct tpb_error error = { "" };

    setenv("TP_IFACE", "none0", 1);
    ck_assert_ptr_null(tpx_side_try(address_backend, &error));
    ck_assert_msg(strstr(error.text, "TP_IFACE=none0") != NULL, "%s",
                  error.text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ofi address");
    TCase *tests = tcase_create("address");

    address_backend = tpf_backend_find("ofi:tcp");
    tcase_set_timeout(tests, 180);
    tcase_add_test(tests, test_text);
    tcase_add_test(tests, test_interfaces);
    tcase_add_test(tests, test_order);
    tcase_add_test(tests, test_beside);
    tcase_add_test(tests, test_damage);
    tcase_add_test(tests, test_ipv4);
    tcase_add_test(tests, test_ipv6);
    tcase_add_test(tests, test_next_address);
    tcase_add_test(tests, test_crowd);
    tcase_add_test(tests, test_hangs_up);
    tcase_add_test(tests, test_words);
    tcase_add_test(tests, test_unwatched);
    tcase_add_test(tests, test_no_interface);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
