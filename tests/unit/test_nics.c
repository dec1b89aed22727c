/* SPDX-License-Identifier: BSD-3-Clause */
/* The network devices of recorded machines, and of this one's kernel. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/tpx.h"
#include "tests/unit/cards.h"

static void check_nics(const struct tpt_nic *nics,
                       const struct tpt_nic *expected, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ck_assert_str_eq(nics[i].name, expected[i].name);
        ck_assert_uint_eq(nics[i].megabits, expected[i].megabits);
        ck_assert_int_eq(nics[i].numa, expected[i].numa);
        ck_assert_uint_eq(nics[i].pci, expected[i].pci);
        ck_assert_uint_eq(nics[i].kind, expected[i].kind);
    }
}

START_TEST(test_nics)
{
    static const struct tpt_nic expected[] = {
        { "ib0", 200000, 0, 0x1800, TPT_NIC_IP },
        { "ib1", 200000, 1, 0x9800, TPT_NIC_IP },
        { "mlx5_0", 200000, 0, 0x1800, TPT_NIC_RDMA },
        { "mlx5_1", 200000, 1, 0x9800, TPT_NIC_RDMA },
        { "eth0", 10000, 0, 0x3100, TPT_NIC_IP },
    };
    struct tpt_topology *machine = tpx_machine("nics-rdma");
    struct tpt_nic nics[TPT_NICS];

    ck_assert_uint_eq(tpt_topology_nics(machine, nics), TPB_COUNT(expected));
    check_nics(nics, expected, TPB_COUNT(expected));
    tpt_topology_free(machine);
}
END_TEST

/* Of two memories at the cpus of a device, its node is that of the ranks that
 * run there. */
START_TEST(test_nics_two_memories)
{
    struct tpt_topology *machine = tpx_machine("uneven");
    struct tpt_nic nics[TPT_NICS];
    struct tpt_place place;

    ck_assert_uint_eq(tpt_topology_nics(machine, nics), 2);
    ck_assert(tpt_topology_place_core(machine, 4, &place));
    ck_assert_str_eq(nics[1].name, "mlx5_0");
    ck_assert_int_eq(nics[1].numa, place.numa);
    ck_assert_int_eq(nics[1].numa, 2);
    ck_assert_int_eq(nics[0].numa, 0);
    tpt_topology_free(machine);
}
END_TEST

/* A sysfs made of files: PATH, and what stands in it; "" is a folder, "->TEXT"
 * a link. */
static const char *const sysfs[][2] = {
    { "class", "" }, { "class/net", "" }, { "class/infiniband", "" },
    { "dev", "" }, { "dev/0000:18:00.0", "" }, { "dev/0001:98:1f.7", "" },
    { "dev/0001:98:1f.7/virtio2", "" },
    { "dev/0000:18:00.0/numa_node", "0\n" },
    { "dev/0001:98:1f.7/numa_node", "1\n" },
    { "class/net/lo", "" }, { "class/net/lo/operstate", "up\n" },
    { "class/net/eth0", "" },
    { "class/net/eth0/device", "->../../../dev/0001:98:1f.7/virtio2" },
    { "class/net/eth0/speed", "25000\n" },
    { "class/net/eth1", "" },
    { "class/net/eth1/device", "->../../../dev/0000:18:00.0" },
    { "class/net/eth1/speed", "-1\n" },
    { "class/net/bond0", "" }, { "class/net/bond0/operstate", "up\n" },
    { "class/net/bond0/speed", "50000\n" },
    { "class/net/docker0", "" }, { "class/net/docker0/operstate", "up\n" },
    { "class/net/docker0/bridge", "" },
    { "class/net/veth1", "" }, { "class/net/veth1/operstate", "up\n" },
    { "class/net/veth1/master", "->../docker0" },
    { "class/net/dummy0", "" }, { "class/net/dummy0/operstate", "down\n" },
    { "class/infiniband/mlx5_0", "" },
    { "class/infiniband/mlx5_0/device", "->../../../dev/0000:18:00.0" },
    { "class/infiniband/mlx5_0/ports", "" },
    { "class/infiniband/mlx5_0/ports/1", "" },
    { "class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n" },
    { "class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n" },
    { "class/infiniband/mlx4_0", "" },
    { "class/infiniband/mlx4_0/device", "->../../../dev/0000:18:00.0" },
    { "class/infiniband/mlx4_0/ports", "" },
    { "class/infiniband/mlx4_0/ports/1", "" },
    { "class/infiniband/mlx4_0/ports/1/state", "4: ACTIVE\n" },
    { "class/infiniband/mlx4_0/ports/1/rate", "2.5 Gb/sec (1X SDR)\n" },
    { "class/infiniband/mlx5_1", "" },
    { "class/infiniband/mlx5_1/device", "->../../../dev/0000:18:00.0" },
    { "class/infiniband/mlx5_1/ports", "" },
    { "class/infiniband/mlx5_1/ports/1", "" },
    { "class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n" },
    { "class/infiniband/mlx5_1/ports/1/rate", "10 Gb/sec (4X SDR)\n" },
};

static void make_sysfs(const char *root)
{
    char path[256];
    FILE *file;

    for (size_t i = 0; i < TPB_COUNT(sysfs); i++) {
        const char *content = sysfs[i][1];

        snprintf(path, sizeof(path), "%s/%s", root, sysfs[i][0]);
        if (*content == '\0') {
            ck_assert_int_eq(mkdir(path, 0700), 0);
        } else if (content[0] == '-' && content[1] == '>') {
            ck_assert_int_eq(symlink(content + 2, path), 0);
        } else {
            file = fopen(path, "w");
            ck_assert_ptr_nonnull(file);
            fputs(content, file);
            fclose(file);
        }
    }
}

static void remove_sysfs(const char *root)
{
    char path[256];

    for (size_t i = TPB_COUNT(sysfs); i > 0; i--) {
        snprintf(path, sizeof(path), "%s/%s", root, sysfs[i - 1][0]);
        remove(path);
    }
    rmdir(root);
}

START_TEST(test_nics_of_sysfs)
{
    static const struct tpt_nic expected[] = {
        { "mlx5_0", 400000, 0, 0x1800, TPT_NIC_RDMA },
        { "bond0", 50000, -1, 0, TPT_NIC_IP },
        { "eth0", 25000, 1, 0x198ff, TPT_NIC_IP },
        { "mlx4_0", 2500, 0, 0x1800, TPT_NIC_RDMA },
        { "eth1", 0, 0, 0x1800, TPT_NIC_IP },
        { "mlx5_1", 0, 0, 0x1800, TPT_NIC_RDMA },
    };
    struct tpt_topology *machine = tpx_machine("two-socket");
    char root[] = "/tmp/tp-test-XXXXXX";
    struct tpt_nic nics[TPT_NICS];
    uint32_t count;

    ck_assert_ptr_nonnull(mkdtemp(root));
    make_sysfs(root);
    count = tpt_topology_nics_at(machine, root, nics);
    remove_sysfs(root);
    ck_assert_uint_eq(count, TPB_COUNT(expected));
    check_nics(nics, expected, TPB_COUNT(expected));
    ck_assert_uint_eq(tpt_topology_nics_at(machine, "/nonexistent", nics), 0);
    tpt_topology_free(machine);
}
END_TEST

/* Ports that are a device and an interface each, all as fast: the card keeps
 * the devices, which GPUs are assigned to, and some of the interfaces. */
START_TEST(test_nics_many)
{
    static const struct {
        int devices, interfaces, kept, kept_interfaces;
    } cases[] = { { 12, 12, 12, 4 }, { 16, 16, 12, 4 }, { 10, 3, 10, 3 },
                  { 2, 20, 2, 14 }, { 20, 0, 16, 0 }, { 0, 20, 0, 16 } };
    struct tpt_topology *machine = tpx_machine("two-socket");
    char root[] = "/tmp/tp-test-XXXXXX", command[512];
    struct tpt_nic nics[TPT_NICS];
    int kept[2] = { 0 };

    ck_assert_ptr_nonnull(mkdtemp(root));
    snprintf(command, sizeof(command), "cd %s && mkdir -p class/infiniband"
             " class/net && for i in $(seq %d); do d=class/infiniband/mlx5_$i;"
             " mkdir -p $d/ports/1 $d/device; echo ACTIVE > $d/ports/1/state;"
             " echo '400 Gb/sec (4X NDR)' > $d/ports/1/rate; done;"
             " for i in $(seq %d); do d=class/net/ib$i; mkdir $d;"
             " echo up > $d/operstate; echo 400000 > $d/speed; done",
             root, cases[_i].devices, cases[_i].interfaces);
    ck_assert_int_eq(system(command), 0);
    for (uint32_t i = tpt_topology_nics_at(machine, root, nics); i-- > 0;)
        kept[nics[i].kind == TPT_NIC_IP]++;
    snprintf(command, sizeof(command), "rm -rf %s", root);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(kept[0], cases[_i].kept);
    ck_assert_int_eq(kept[1], cases[_i].kept_interfaces);
    tpt_topology_free(machine);
}
END_TEST

/* Eight cards with two ports each, all of one speed: where not all devices are
 * kept, one of each card is. */
START_TEST(test_nics_ports)
{
    struct tpt_topology *machine = tpx_machine("two-socket");
    char root[] = "/tmp/tp-test-XXXXXX", command[640];
    struct tpt_nic nics[TPT_NICS];
    uint32_t count;
    bool cards[8] = { false };

    ck_assert_ptr_nonnull(mkdtemp(root));
    snprintf(command, sizeof(command), "cd %s && mkdir -p class/infiniband"
             " class/net && for i in $(seq 0 15); do"
             " d=class/infiniband/mlx5_$i;"
             " p=devices/0000:$((i / 2 + 1))0:00.$((i %% 2));"
             " mkdir -p $d/ports/1 $p; ln -s ../../../$p $d/device;"
             " echo ACTIVE >$d/ports/1/state;"
             " echo '400 Gb/sec (4X NDR)' >$d/ports/1/rate; done;"
             " for i in $(seq 4); do d=class/net/ib$i; mkdir $d;"
             " echo up >$d/operstate; echo 400000 >$d/speed; done", root);
    ck_assert_int_eq(system(command), 0);
    count = tpt_topology_nics_at(machine, root, nics);
    snprintf(command, sizeof(command), "rm -rf %s", root);
    ck_assert_int_eq(system(command), 0);
    ck_assert_uint_eq(count, TPT_NICS);
    for (uint32_t i = 0; i < count; i++)
        if (nics[i].kind == TPT_NIC_RDMA)
            cards[(nics[i].pci >> 12) - 1] = true;
    for (int i = 0; i < 8; i++)
        ck_assert_msg(cards[i], "card %d", i);
    tpt_topology_free(machine);
}
END_TEST

/* The fastest are kept, however many there are, and wherever they stand. */
START_TEST(test_nics_hundreds)
{
    struct tpt_topology *machine = tpx_machine("two-socket");
    char root[] = "/tmp/tp-test-XXXXXX", command[512], name[16];
    struct tpt_nic nics[TPT_NICS];
    uint32_t count;

    ck_assert_ptr_nonnull(mkdtemp(root));
    snprintf(command, sizeof(command), "cd %s && mkdir -p class/net &&"
             " for i in $(seq 400); do d=class/net/veth$i; mkdir $d;"
             " echo up >$d/operstate; echo $((i * 1000)) >$d/speed; done",
             root);
    ck_assert_int_eq(system(command), 0);
    count = tpt_topology_nics_at(machine, root, nics);
    snprintf(command, sizeof(command), "rm -rf %s", root);
    ck_assert_int_eq(system(command), 0);
    ck_assert_uint_eq(count, TPT_NICS);
    for (uint32_t i = 0; i < count; i++) {
        snprintf(name, sizeof(name), "veth%u", 400 - i);
        ck_assert_str_eq(nics[i].name, name);
    }
    tpt_topology_free(machine);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nics");
    TCase *tests = tcase_create("nics");

    tcase_set_timeout(tests, 180);
    tcase_add_test(tests, test_nics);
    tcase_add_test(tests, test_nics_two_memories);
    tcase_add_test(tests, test_nics_of_sysfs);
    tcase_add_loop_test(tests, test_nics_many, 0, 6);
    tcase_add_test(tests, test_nics_ports);
    tcase_add_test(tests, test_nics_hundreds);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
