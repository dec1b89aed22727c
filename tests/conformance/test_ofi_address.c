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

/* Only the addresses of that family are left on the card. */
static size_t address_only(struct tpx_side *side, uint8_t family,
                           uint8_t bytes[TPT_ADDRESS])
{
    struct tpb_error error = { "" };
    struct ofi_card card;
    int kept = 0;

    ck_assert_int_eq(ofi_card_decode(&card, side->address,
                                     side->address_length, &error), TP_OK);
    for (int i = 0; i < card.count; i++)
        if (card.wheres[i].family == family)
            card.wheres[kept++] = card.wheres[i];
    card.count = (uint8_t)kept;
    return ofi_card_encode(&card, bytes, TPT_ADDRESS);
}

static void address_family(uint8_t family)
{
    uint8_t bytes[TPT_ADDRESS];
    struct tpx_side *a, *b;
    struct tpx_link *link;
    size_t length;

    setenv("TP_IFACE", "lo", 1);
    if (!address_possible("lo", family))
        return;
    a = tpx_side_open(address_backend);
    b = tpx_side_open(address_backend);
    length = address_only(b, family, bytes);
    link = tpx_connect(a, bytes, length);
    TPX_UNTIL((tpx_side_step(a), tpx_side_step(b)),
              link->failed || (link->connected && b->incoming == 1));
    ck_assert_msg(!link->failed, "%s", link->text);
    tpx_stream_set(link, tpx_incoming(b, 0), 1, tpx_size_random, 0);
    TPX_UNTIL((tpx_side_step(a), tpx_side_step(b)), tpx_send(link));
    TPX_UNTIL((tpx_side_step(a), tpx_side_step(b)),
              tpx_incoming(b, 0)->in.next == 1);
    tpx_side_close(a);
    tpx_side_close(b);
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
    struct tpb_error error = { "" };
    uint8_t bytes[TPT_ADDRESS];
    struct tpx_side *a, *b, *other;
    struct ofi_card card, wrong;
    struct tpx_link *link;
    size_t length;

    setenv("TP_IFACE", "lo", 1);
    if (!address_possible("lo", 4))
        return;
    a = tpx_side_open(address_backend);
    b = tpx_side_open(address_backend);
    other = tpx_side_open(address_backend);
    ck_assert_int_eq(ofi_card_decode(&card, b->address, b->address_length,
                                     &error), TP_OK);
    ck_assert_int_eq(ofi_card_decode(&wrong, other->address,
                                     other->address_length, &error), TP_OK);
    card.wheres[2] = card.wheres[0];
    card.wheres[0] = wrong.wheres[0];       /* somebody else lives there */
    card.wheres[1] = card.wheres[2];
    card.wheres[1].port = htole16(1);       /* nobody lives there */
    card.count = 3;
    length = ofi_card_encode(&card, bytes, sizeof(bytes));
    link = tpx_connect(a, bytes, length);
    TPX_UNTIL((tpx_side_step(a), tpx_side_step(b), tpx_side_step(other)),
              link->failed || (link->connected && b->incoming == 1));
    ck_assert_msg(!link->failed, "%s", link->text);
    ck_assert_uint_eq(other->incoming, 0);
    tpx_side_close(a);
    tpx_side_close(b);
    tpx_side_close(other);
}
END_TEST

/* Of more than it has room for, a host sends one away who has not shown the key
 * for a while, as its process got no cpu: it calls again. */
START_TEST(test_crowd)
{
    int callers[OFI_STRANGERS], count = 0;
    struct sockaddr_storage address;
    struct tpb_error error = { "" };
    uint8_t bytes[TPT_ADDRESS];
    struct tpx_side *a, *b;
    struct tpx_link *link;
    struct ofi_card card;
    socklen_t size;
    size_t length;

    setenv("TP_IFACE", "lo", 1);
    if (!address_possible("lo", 4))
        return;
    a = tpx_side_open(address_backend);
    b = tpx_side_open(address_backend);
    length = address_only(b, 4, bytes);
    ck_assert_int_eq(ofi_card_decode(&card, bytes, length, &error), TP_OK);
    size = ofi_where_to_socket(&card.wheres[0], &address);
    link = tpx_connect(a, bytes, length);
    for (; count < OFI_STRANGERS; count++) {
        /* The last one finds it full, and late. */
        TPX_UNTIL(tpx_side_step(b), ofi_endpoint_of(b->endpoint)->strangers
                                        == (unsigned)count + 1);
        if (count == OFI_STRANGERS - 1)
            usleep(2000 * OFI_STRANGER_MS);
        callers[count] = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC,
                                0);
        ck_assert_int_eq(connect(callers[count],
                                 (const struct sockaddr *)&address, size), 0);
    }
    for (int i = 0; i < 20; i++)
        tpx_side_step(b);
    TPX_UNTIL(tpx_side_step(a),
              link->failed || tpx_trying(link, "called again"));
    ck_assert_msg(!link->failed, "%s", link->text);
    for (int i = 0; i < count; i++)
        close(callers[i]);
    TPX_UNTIL((tpx_side_step(a), tpx_side_step(b)),
              link->failed || (link->connected && b->incoming == 1));
    ck_assert_msg(!link->failed, "%s", link->text);
    tpx_side_close(a);
    tpx_side_close(b);
}
END_TEST

/* Where something else hangs up each time, that is the end. */
START_TEST(test_hangs_up)
{
    struct tpb_error error = { "" };
    uint8_t bytes[TPT_ADDRESS];
    struct tpx_side *a, *b;
    struct tpx_link *link;
    struct ofi_card card;
    size_t length;

    setenv("TP_IFACE", "lo", 1);
    if (!address_possible("lo", 4))
        return;
    a = tpx_side_open(address_backend);
    b = tpx_side_open(address_backend);
    length = address_only(b, 4, bytes);
    ck_assert_int_eq(ofi_card_decode(&card, bytes, length, &error), TP_OK);
    card.key[0] ^= 1;
    length = ofi_card_encode(&card, bytes, sizeof(bytes));
    link = tpx_connect(a, bytes, length);
    TPX_UNTIL((tpx_side_sleep(a, 10), tpx_side_step(b)), link->failed);
    ck_assert_int_eq(link->status, TP_ERR_UNREACHABLE);
    ck_assert_msg(strstr(link->text, "hung up without an answer") != NULL,
                  "%s", link->text);
    ck_assert_uint_eq(b->incoming, 0);
    tpx_side_close(a);
    tpx_side_close(b);
}
END_TEST

/* Every address tried is named, with what it answered. */
START_TEST(test_words)
{
    struct tpb_error error = { "" };
    uint8_t bytes[TPT_ADDRESS];
    struct tpx_side *a, *b;
    struct ofi_card card;
    struct tpx_link *link;
    char text[64];
    size_t length;

    setenv("TP_IFACE", "lo", 1);
    if (!address_possible("lo", 4))
        return;
    a = tpx_side_open(address_backend);
    b = tpx_side_open(address_backend);
    length = b->address_length;
    memcpy(bytes, b->address, length);
    tpx_side_close(b);
    ck_assert_int_eq(ofi_card_decode(&card, bytes, length, &error), TP_OK);
    link = tpx_connect(a, bytes, length);
    TPX_UNTIL(tpx_side_sleep(a, 100), link->failed);
    ck_assert_int_eq(link->status, TP_ERR_UNREACHABLE);
    for (int i = 0; i < card.count; i++)
        ck_assert_msg(strstr(link->text,
                             ofi_where_text(&card.wheres[i], true, text))
                          != NULL,
                      "%s is not in: %s", text, link->text);
    ck_assert_msg(strstr(link->text, "refused") != NULL, "%s", link->text);
    tpx_side_close(a);
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
