/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which addresses ofi:verbs uses, and in which order, on machines that are
 * made of files: a sysfs of the test's own, cards with NICs near and far.
 */
#include "config.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fabric/ofi/ofi.h"
#include "runtime/base/io.h"
#include "tests/lib/tpx.h"

static char rdma_root[64];

static void rdma_write(const char *path, const char *text)
{
    char whole[256];
    FILE *file;

    snprintf(whole, sizeof(whole), "%s/%s", rdma_root, path);
    for (char *slash = whole + 1; (slash = strchr(slash, '/')) != NULL;
         slash++) {
        *slash = '\0';
        mkdir(whole, 0700);
        *slash = '/';
    }
    file = fopen(whole, "we");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "%s\n", text);
    fclose(file);
}

/* A RoCE device whose second GID is the address. */
static void rdma_roce(const char *device, const char *address,
                      const char *state)
{
    char path[128], text[64];
    uint8_t a[4];

    ck_assert_int_eq(inet_pton(AF_INET, address, a), 1);
    snprintf(path, sizeof(path), "class/infiniband/%s/ports/1/state", device);
    rdma_write(path, state);
    snprintf(path, sizeof(path), "class/infiniband/%s/ports/1/gids/0", device);
    rdma_write(path, "fe80:0000:0000:0000:0200:00ff:fe00:0001");
    snprintf(path, sizeof(path), "class/infiniband/%s/ports/1/gids/1", device);
    snprintf(text, sizeof(text),
             "0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x", a[0], a[1],
             a[2], a[3]);
    rdma_write(path, text);
}

static void rdma_setup(void)
{
    snprintf(rdma_root, sizeof(rdma_root), "/tmp/tpx-rdma-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(rdma_root));
    ofi_rdma_sysfs = rdma_root;
}

static void rdma_teardown(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -r %s", rdma_root);
    ck_assert_int_eq(system(command), 0);
}

static struct ofi_where rdma_where(const char *address)
{
    struct ofi_where where = { .family = strchr(address, ':') ? 6 : 4 };

    ck_assert_int_eq(inet_pton(where.family == 4 ? AF_INET : AF_INET6,
                               address, where.address), 1);
    return where;
}

static void rdma_nic(struct tpt_card *card, const char *name, int numa,
                     uint32_t megabits)
{
    struct tpt_nic *nic = &card->nics[card->nic_count++];

    snprintf(nic->name, sizeof(nic->name), "%s", name);
    nic->kind = TPT_NIC_RDMA;
    nic->numa = numa;
    nic->megabits = megabits;
}

static void rdma_is(const struct ofi_where *where, const char *expected)
{
    char text[64];

    ck_assert_str_eq(ofi_where_text(where, false, text), expected);
}

/* Two equal devices, each attached to one of the rank's two NUMA nodes. */
START_TEST(test_distance)
{
    static struct tpt_card card;
    struct ofi_where list[OFI_WHERES];

    rdma_roce("mlx5_0", "192.0.2.10", "4: ACTIVE");
    rdma_roce("mlx5_1", "192.0.2.11", "4: ACTIVE");
    rdma_nic(&card, "mlx5_0", 0, 200000);
    rdma_nic(&card, "mlx5_1", 1, 200000);
    for (int numa = 0; numa <= 1; numa++)
        for (int first = 0; first <= 1; first++) {
            card.place.numa = numa;
            list[first] = rdma_where("192.0.2.10");
            list[!first] = rdma_where("192.0.2.11");
            ck_assert_int_eq(ofi_rdma_keep(&card, list, 2), 2);
            rdma_is(&list[0], numa == 0 ? "192.0.2.10" : "192.0.2.11");
            rdma_is(&list[1], numa == 0 ? "192.0.2.11" : "192.0.2.10");
        }
    /* A far one that is twice as fast is better than a near one. */
    card.nics[1].megabits = 400000;
    card.place.numa = 0;
    ck_assert_int_eq(ofi_rdma_keep(&card, list, 2), 2);
    rdma_is(&list[0], "192.0.2.11");
}
END_TEST

/* The rank's GPU was given the first: so that is the rank's, though another is
 * nearer and faster; if its GPUs were given different ones, they do not say. */
START_TEST(test_gpu)
{
    static struct tpt_card card;
    struct ofi_where list[OFI_WHERES];

    rdma_roce("mlx5_0", "192.0.2.10", "4: ACTIVE");
    rdma_roce("mlx5_1", "192.0.2.11", "4: ACTIVE");
    rdma_nic(&card, "mlx5_0", 0, 100000);
    rdma_nic(&card, "mlx5_1", 1, 200000);
    card.place.numa = 1;
    card.gpu_count = 2;
    for (unsigned other = 0; other <= 1; other++) {
        card.gpus[0].nic = 1;
        card.gpus[1].nic = (uint8_t)(1 + other);
        list[0] = rdma_where("192.0.2.10");
        list[1] = rdma_where("192.0.2.11");
        ck_assert_int_eq(ofi_rdma_keep(&card, list, 2), 2);
        rdma_is(&list[0], other == 0 ? "192.0.2.10" : "192.0.2.11");
    }
}
END_TEST

/* Ports that are down, addresses that no device has, and IPv6. */
START_TEST(test_carried)
{
    static struct tpt_card card;
    struct ofi_where list[OFI_WHERES] = {
        rdma_where("192.0.2.10"), rdma_where("192.0.2.11"),
        rdma_where("198.51.100.1"), rdma_where("fd00::7")
    };

    rdma_roce("mlx5_0", "192.0.2.10", "1: DOWN");
    rdma_roce("mlx5_1", "192.0.2.11", "4: ACTIVE");
    rdma_write("class/infiniband/mlx5_1/ports/1/gids/2",
               "fd00:0000:0000:0000:0000:0000:0000:0007");
    ck_assert_int_eq(ofi_rdma_keep(&card, list, 4), 2);
    rdma_is(&list[0], "192.0.2.11");
    rdma_is(&list[1], "fd00::7");
}
END_TEST

START_TEST(test_nothing)
{
    static struct tpt_card card;
    struct ofi_where list[OFI_WHERES] = { rdma_where("192.0.2.10") };

    ck_assert_int_eq(ofi_rdma_keep(&card, list, 1), 0);
    rdma_write("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
    list[0] = rdma_where("192.0.2.10");
    ck_assert_int_eq(ofi_rdma_keep(&card, list, 1), 0);
    ck_assert_int_eq(ofi_rdma_keep(&card, list, 0), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ofi rdma");
    TCase *tests = tcase_create("rdma");

    tcase_add_checked_fixture(tests, rdma_setup, rdma_teardown);
    tcase_add_test(tests, test_distance);
    tcase_add_test(tests, test_gpu);
    tcase_add_test(tests, test_carried);
    tcase_add_test(tests, test_nothing);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
