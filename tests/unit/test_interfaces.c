/* SPDX-License-Identifier: BSD-3-Clause */
/* This host's addresses, as the kernel tells them. */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <string.h>

#include "runtime/base/interfaces.h"
#include "tests/lib/tpx.h"

START_TEST(test_hold)
{
    const struct tpb_interfaces *first = tpb_interfaces_hold();
    const struct tpb_interfaces *second = tpb_interfaces_hold();
    bool loopback = false;

    ck_assert_ptr_nonnull(first);
    ck_assert_ptr_eq(first, second);
    for (size_t i = 0; i < first->count; i++) {
        const struct tpb_interface *one = &first->list[i];

        ck_assert(one->family == 4 || one->family == 6);
        ck_assert_uint_gt(strlen(one->name), 0);
        if (one->family == 4 && one->address[0] == 127) {
            ck_assert(one->local);
            ck_assert_uint_eq(one->mask[0], 0xff);
            ck_assert_uint_eq(one->mask[3], 0);
            loopback = true;
        }
    }
    ck_assert(loopback);
    tpb_interfaces_drop(first);
    /* The second one's is still there. */
    ck_assert_uint_gt(strlen(second->list[0].name), 0);
    tpb_interfaces_drop(second);
    tpb_interfaces_drop(NULL);
}
END_TEST

static struct tpb_interface interfaces_one(const char *name, uint8_t family,
                                           uint8_t first, uint8_t second)
{
    struct tpb_interface one = { .family = family, .up = true,
                                 .address = { first, second, 3, 4 } };

    strcpy(one.name, name);
    return one;
}

START_TEST(test_usable)
{
    struct tpb_interface one = interfaces_one("eth0", 4, 10, 0);

    ck_assert(tpb_interface_usable(&one, ""));
    ck_assert(tpb_interface_usable(&one, "lo,eth0"));
    ck_assert(!tpb_interface_usable(&one, "^eth0"));
    ck_assert(!tpb_interface_usable(&one, "eth1"));
    one.up = false;
    ck_assert(!tpb_interface_usable(&one, ""));
    one = interfaces_one("eth0", 4, 169, 254);
    ck_assert(!tpb_interface_usable(&one, ""));
    one = interfaces_one("eth0", 4, 169, 253);
    ck_assert(tpb_interface_usable(&one, ""));
    one = interfaces_one("eth0", 6, 0xfe, 0xbf);
    ck_assert(!tpb_interface_usable(&one, ""));
    one = interfaces_one("eth0", 6, 0xfe, 0xc0);
    ck_assert(tpb_interface_usable(&one, ""));
    one = interfaces_one("eth0", 6, 0xfd, 0x80);
    ck_assert(tpb_interface_usable(&one, ""));
}
END_TEST

/* In the place of libc's, for all of this program. */
static int interfaces_refused;     /* errno; 0: not */

__attribute__((__visibility__("default")))
int getifaddrs(struct ifaddrs **list)
{
    int (*real)(struct ifaddrs **);

    *(void **)&real = dlsym(RTLD_NEXT, "getifaddrs");
    errno = interfaces_refused;
    return errno != 0 ? -1 : real(list);
}

/* That there is none is not said where the kernel does not tell. */
START_TEST(test_none)
{
    struct tpb_error error = { "" };

    ck_assert_int_eq(tpb_interfaces_none("eth9", TP_ERR_NOT_FOUND, &error),
                     TP_ERR_NOT_FOUND);
    ck_assert_str_eq(error.text, "no network interface that is up and allowed"
                     " by TP_IFACE=eth9");
    interfaces_refused = EAFNOSUPPORT;
    ck_assert_int_eq(tpb_interfaces_none("", TP_ERR_NOT_SUPPORTED, &error),
                     TP_ERR_NOT_SUPPORTED);
    ck_assert_ptr_nonnull(strstr(error.text, "cannot list network"));
    ck_assert_ptr_nonnull(strstr(error.text, "AF_NETLINK"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("interfaces");
    TCase *tests = tcase_create("interfaces");

    tcase_add_test(tests, test_hold);
    tcase_add_test(tests, test_usable);
    tcase_add_test(tests, test_none);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
