/* SPDX-License-Identifier: BSD-3-Clause */
/* What lies between two devices, which NIC a GPU gets, and which way its bytes
 * go: on recorded machines, and for any cards. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/pair.h"
#include "topology/devices.h"
#include "topology/gpus.h"

static struct tpt_device_plan devices, reverse;

static void gpus(const char *name_a, const char *name_b)
{
    if (name_b == NULL)
        pair(name_a, 0, 1);
    else
        hosts(name_a, name_b);
    tpx_card_gpus(&a);
    tpx_card_gpus(&b);
}

/* "cuda_ipc cuda_staged|cuda_gdr" */
static const char *ways(const struct tpt_device_plan *of)
{
    static char text[2][TPT_WAYS * TPT_NAME];
    static unsigned next;
    char *line = text[next++ % 2];
    bool possible = true;

    line[0] = '\0';
    for (uint32_t i = 0; i < of->count; i++) {
        const struct tpt_way *way = &of->ways[i];

        ck_assert(possible || !way->possible);
        strcat(line, possible && !way->possible ? "|" : i > 0 ? " " : "");
        possible = way->possible;
        strcat(line, way->name);
    }
    return line;
}

/* ---- paths --------------------------------------------------------------- */

static struct tpt_pci_place place(uint32_t pci, int numa, unsigned depth,
                                  const uint32_t *path)
{
    struct tpt_pci_place of = { .pci = pci, .numa = numa,
                                .depth = depth };

    for (unsigned i = 0; i < depth; i++)
        of.path[i] = path[i];
    return of;
}
#define PLACE(pci, numa, ...) \
    place(pci, numa, sizeof((uint32_t[]){ __VA_ARGS__ }) / 4, \
          (uint32_t[]){ __VA_ARGS__ })

START_TEST(test_paths)
{
    /* Host bridge, root port, a switch's upstream and downstream port. */
    struct tpt_pci_place gpu = PLACE(1, 0, 10, 11, 20, 21);
    const struct {
        struct tpt_pci_place other;
        enum tpt_path path;
    } cases[] = {
        { PLACE(1, 0, 10, 11, 20, 21), TPT_PATH_SAME },
        { PLACE(2, 0, 10, 11, 20, 22), TPT_PATH_PIX },
        { PLACE(2, 0, 10, 11, 20, 21), TPT_PATH_PIX },
        { PLACE(2, 0, 10, 11, 20, 22, 30, 31), TPT_PATH_PXB },
        { PLACE(2, 0, 10, 11, 25, 26), TPT_PATH_PXB },
        { PLACE(2, 0, 10, 12), TPT_PATH_PHB },
        { PLACE(2, 0, 40, 41), TPT_PATH_NODE },
        { PLACE(2, 1, 40, 41), TPT_PATH_SYS },
        { PLACE(2, -1, 40, 41), TPT_PATH_UNKNOWN },
        { place(2, 0, 0, NULL), TPT_PATH_NODE },
        { place(2, 3, 0, NULL), TPT_PATH_SYS },
    };

    for (size_t i = 0; i < TPB_COUNT(cases); i++) {
        ck_assert_str_eq(tpt_path_name(tpt_path_pci(&gpu, &cases[i].other)),
                         tpt_path_name(cases[i].path));
        ck_assert_int_eq(tpt_path_pci(&cases[i].other, &gpu), cases[i].path);
    }
}
END_TEST

/* A folder as the kernel's: three devices, two below one switch. */
static void kernel_device(const char *root, const char *bus, const char *path,
                          const char *numa)
{
    char command[1024];

    snprintf(command, sizeof(command), "d=%s/sys/devices/%s/%s;"
             " mkdir -p $d %s/sys/bus/pci/devices; echo %s >$d/numa_node;"
             " ln -s $d %s/sys/bus/pci/devices/%s", root, path, bus, root,
             numa, root, bus);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(test_here)
{
    static const char switched[] = "pci0000:10/0000:10:01.0/0000:11:00.0/";
    char root[] = "/tmp/tp-devices-XXXXXX", path[128], command[64];
    uint32_t gpu = tpt_pci_parse("0000:13:00.0");

    ck_assert_ptr_nonnull(mkdtemp(root));
    snprintf(path, sizeof(path), "%s0000:12:00.0", switched);
    kernel_device(root, "0000:13:00.0", path, "0");
    snprintf(path, sizeof(path), "%s0000:12:01.0", switched);
    kernel_device(root, "0000:14:00.0", path, "0");
    kernel_device(root, "0000:81:00.0", "pci0000:80/0000:80:01.0", "1");
    kernel_device(root, "0000:91:00.0", "pci0000:90/0000:90:01.0", "-1");
    ck_assert_int_eq(tpt_path_here(root, gpu, tpt_pci_parse("0000:14:00.0")),
                     TPT_PATH_PIX);
    ck_assert_int_eq(tpt_path_here(root, gpu, tpt_pci_parse("0000:81:00.0")),
                     TPT_PATH_SYS);
    /* Not below one bridge, whatever its node is. */
    ck_assert_int_eq(tpt_path_here(root, gpu, tpt_pci_parse("0000:91:00.0")),
                     TPT_PATH_NODE);
    ck_assert_int_eq(tpt_path_here(root, gpu, tpt_pci_parse("0000:99:00.0")),
                     TPT_PATH_UNKNOWN);
    ck_assert_int_eq(tpt_path_here(root, gpu, 0), TPT_PATH_UNKNOWN);
    ck_assert_int_eq(tpt_path_here(root, gpu, gpu), TPT_PATH_SAME);
    snprintf(command, sizeof(command), "rm -r %s", root);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

/* Between the GPUs of two cards: the first of the one, each of the other. */
static const struct {
    const char *machine, *other, *paths;
} machines[] = {
    { "gpu-switches", NULL, "same device PIX NODE NODE SYS SYS SYS SYS" },
    { "gpus-eight", NULL, "same device NODE NODE NODE SYS SYS SYS SYS" },
    { "gpu-hgx", NULL, "same device NVL NVL NVL NVL NVL NVL NVL" },
    { "gpu-nvswitch", NULL, "same device NVL NVL" },
    { "power-nvlink", NULL, "same device NVL SYS SYS" },
    { "workstation", NULL, "same device PXB PHB PHB" },
    { "gpu-vm", NULL, "same device PHB" },
    { "gpu-switches", "workstation", "NET NET NET NET" },
};

START_TEST(test_machines)
{
    char text[256] = "";

    gpus(machines[_i].machine, machines[_i].other);
    for (uint32_t i = 0; i < b.gpu_count; i++) {
        enum tpt_path path = tpt_path_gpus(&a, 0, &b, i);

        ck_assert_int_eq(tpt_path_gpus(&b, i, &a, 0), path);
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s",
                 i > 0 ? " " : "", tpt_path_name(path));
    }
    ck_assert_str_eq(text, machines[_i].paths);
    /* No such GPU. */
    ck_assert_int_eq(tpt_path_gpus(&a, TPT_CARD_GPUS, &b, 0),
                     machines[_i].other != NULL ? TPT_PATH_NET
                     : TPT_PATH_UNKNOWN);
}
END_TEST

/* What CUDA_VISIBLE_DEVICES leaves, in its order; a GPU keeps its NIC. */
START_TEST(test_visible)
{
    static const struct {
        const char *visible, *wanted;
    } cases[] = {
        { NULL, "11 12 31 32 81 82 a1 a2 " }, { "", "" }, { "-1", "" },
        { "3,0", "32 11 " }, { "7", "a2 " }, { "1,9,2", "12 " },
        { "MIG-1", "" }, { "0,,1", "11 " }, { "3, 0 ,", "32 11 " },
    };
    struct tpt_topology *machine = tpx_machine("gpu-switches");

    for (size_t i = 0; i < TPB_COUNT(cases); i++) {
        char text[64] = "";

        tpx_card(&a, machine, 0, 0, 1);
        ck_assert_int_eq(tpt_topology_gpus(machine, "", cases[i].visible, &a),
                         8);
        for (uint32_t j = 0; j < a.gpu_count; j++) {
            const struct tpt_card_gpu *gpu = &a.gpus[j];

            snprintf(text + strlen(text), 8, "%02x ", gpu->place.pci >> 8);
            ck_assert_uint_ge(gpu->nic, 1);
            /* Below the same switch: 0000:11 and 0000:13. */
            ck_assert_uint_eq(gpu->place.pci >> 12,
                              a.nics[gpu->nic - 1].pci >> 12);
        }
        ck_assert_str_eq(text, cases[i].wanted);
    }
    tpt_topology_free(machine);
}
END_TEST

/* ---- NICs ---------------------------------------------------------------- */

static const struct {
    const char *machine, *nics;    /* of each GPU in turn */
} affinities[] = {
    { "gpu-switches", "mlx5_0:PIX mlx5_1:PIX mlx5_2:PIX mlx5_3:PIX mlx5_4:PIX "
      "mlx5_5:PIX mlx5_6:PIX mlx5_7:PIX " },
    { "power-nvlink", "mlx5_0:NODE mlx5_0:NODE mlx5_1:NODE mlx5_1:NODE " },
    { "workstation", "mlx5_0:PXB mlx5_0:PIX mlx5_0:PHB mlx5_0:PHB " },
    { "gpus-eight", "- - - - - - - - " },
    { "gpu-vm", "mlx5_0:PHB mlx5_1:PHB " },
};

START_TEST(test_affinities)
{
    char text[256] = "";

    gpus(affinities[_i].machine, NULL);
    for (uint32_t i = 0; i < a.gpu_count; i++) {
        const struct tpt_card_gpu *gpu = &a.gpus[i];

        if (gpu->nic == 0)
            strcat(text, "- ");
        else
            snprintf(text + strlen(text), 40, "%s:%s ",
                     a.nics[gpu->nic - 1].name,
                     tpt_path_name((enum tpt_path)gpu->nic_path));
    }
    ck_assert_str_eq(text, affinities[_i].nics);
}
END_TEST

enum { SMALL_GPUS = 5, SMALL_NICS = 3 };

static unsigned share(const struct tpt_affinity_nic *nics, uint32_t count,
                      uint32_t nic, uint32_t of)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < count; i++)
        total += nics[i].megabits;
    return (unsigned)((of * (uint64_t)nics[nic].megabits + total - 1) / total);
}

/* The best there is, by trying all. */
static unsigned least(const struct tpt_pci_place *of, uint32_t gpu_count,
                      const struct tpt_affinity_nic *nics, uint32_t nic_count)
{
    unsigned best = UINT32_MAX, all = 1;

    for (uint32_t i = 0; i < gpu_count; i++)
        all *= nic_count;
    for (unsigned pick = 0; pick < all; pick++) {
        unsigned used[SMALL_NICS] = { 0 }, sum = 0, rest = pick;
        bool good = true;

        for (uint32_t i = 0; i < gpu_count; i++, rest /= nic_count) {
            sum += tpt_path_pci(&of[i], &nics[rest % nic_count].place);
            used[rest % nic_count]++;
        }
        for (uint32_t j = 0; j < nic_count; j++)
            good &= used[j] <= share(nics, nic_count, j, gpu_count);
        if (good && sum < best)
            best = sum;
    }
    return best;
}

/* As good as the best, no NIC overloaded, and the same for any order. */
START_TEST(test_affinity_is_best)
{
    uint64_t seed = 31;

    for (int round = 0; round < 400; round++) {
        uint32_t g = 1 + tpx_random_below(&seed, SMALL_GPUS);
        uint32_t n = 1 + tpx_random_below(&seed, SMALL_NICS);
        struct tpt_pci_place of[SMALL_GPUS], turned[SMALL_GPUS];
        struct tpt_affinity_nic nics[SMALL_NICS], back[SMALL_NICS];
        uint8_t nic_of[SMALL_GPUS], again[SMALL_GPUS];
        unsigned used[SMALL_NICS] = { 0 }, sum = 0;

        for (uint32_t i = 0; i < g + n; i++) {
            struct tpt_pci_place at = PLACE(
                100 + i, (int)tpx_random_below(&seed, 2),
                1 + tpx_random_below(&seed, 2), 10, 20 + i % 2);

            at.path[1] = at.path[0] * 10 + tpx_random_below(&seed, 2);
            if (i < g)
                of[i] = at;
            else
                nics[i - g] = (struct tpt_affinity_nic) {
                    at, 100000u << tpx_random_below(&seed, 2)
                };
        }
        tpt_affinity_solve(of, g, nics, n, nic_of);
        for (uint32_t i = 0; i < g; i++) {
            ck_assert_uint_ge(nic_of[i], 1);
            ck_assert_uint_le(nic_of[i], n);
            sum += tpt_path_pci(&of[i], &nics[nic_of[i] - 1].place);
            ck_assert_uint_le(++used[nic_of[i] - 1],
                              share(nics, n, nic_of[i] - 1u, g));
        }
        ck_assert_uint_eq(sum, least(of, g, nics, n));
        for (uint32_t i = 0; i < g; i++)
            turned[i] = of[g - 1 - i];
        for (uint32_t j = 0; j < n; j++)
            back[j] = nics[n - 1 - j];
        tpt_affinity_solve(turned, g, back, n, again);
        for (uint32_t i = 0; i < g; i++)
            ck_assert_uint_eq(nics[nic_of[i] - 1].place.pci,
                              back[again[g - 1 - i] - 1].place.pci);
    }
}
END_TEST

/* A slow port that is near does not replace a fast one that is far. */
START_TEST(test_affinity_of_slow)
{
    struct tpt_pci_place gpu[2] = { PLACE(1, 0, 10), PLACE(4, 1, 12) };
    struct tpt_affinity_nic nics[2] = { { PLACE(2, 0, 10), 25000 },
                                        { PLACE(3, 1, 11), 200000 } };
    uint8_t nic_of[2];

    tpt_affinity_solve(gpu, 2, nics, 2, nic_of);
    ck_assert_uint_eq(nic_of[0], 2);
    ck_assert_uint_eq(nic_of[1], 2);
    nics[0].megabits = 100000;
    tpt_affinity_solve(gpu, 2, nics, 2, nic_of);
    ck_assert_uint_eq(nic_of[0], 1);
    ck_assert_uint_eq(nic_of[1], 2);
}
END_TEST

START_TEST(test_affinity_of_nothing)
{
    struct tpt_pci_place gpu = PLACE(1, 0, 10);
    struct tpt_affinity_nic nics[2] = { { PLACE(2, 0, 10), 0 },
                                        { PLACE(3, 1, 11), 100000 } };
    uint8_t nic_of[1] = { 7 };

    tpt_affinity_solve(&gpu, 1, nics, 0, nic_of);
    ck_assert_uint_eq(nic_of[0], 0);
    /* One that is down is not used where another is not. */
    tpt_affinity_solve(&gpu, 1, nics, 2, nic_of);
    ck_assert_uint_eq(nic_of[0], 2);
    tpt_affinity_solve(&gpu, 1, nics, 1, nic_of);
    ck_assert_uint_eq(nic_of[0], 1);
}
END_TEST

/* ---- ways ---------------------------------------------------------------- */

static const struct {
    const char *machine, *other;
    uint32_t mine, yours;
    enum tpt_path path;
    const char *ways;
    uint32_t megabytes;            /* of the first */
    const char *evidence;
} orders[] = {
    { "gpu-switches", NULL, 0, 0, TPT_PATH_SAME,
      "cuda_staged cuda_ipc|cuda_gdr", 6000, "two processes take turns" },
    { "gpu-switches", NULL, 0, 1, TPT_PATH_PIX,
      "cuda_ipc cuda_staged|cuda_gdr", 63015, "bridge 0000:10:00.0" },
    { "gpu-switches", NULL, 0, 7, TPT_PATH_SYS,
      "cuda_ipc cuda_staged|cuda_gdr", 28356, "NUMA nodes 0 and 1" },
    { "gpu-hgx", NULL, 0, 7, TPT_PATH_NVL, "cuda_ipc cuda_staged|cuda_gdr",
      450000, "18 NVLinks between them, says the recorded topology" },
    { "gpu-nvswitch", NULL, 0, 2, TPT_PATH_NVL,
      "cuda_ipc cuda_staged|cuda_gdr", 100000, "4 and 4 NVLinks to switches, "
      "says the recorded topology" },
    { "power-nvlink", NULL, 0, 1, TPT_PATH_NVL,
      "cuda_ipc cuda_staged|cuda_gdr", 75000, "3 NVLinks" },
    { "workstation", NULL, 0, 1, TPT_PATH_PXB,
      "cuda_ipc cuda_staged|cuda_gdr", 29931, "bridge 0000:41:00.0" },
    { "workstation", NULL, 0, 2, TPT_PATH_PHB,
      "cuda_ipc cuda_staged|cuda_gdr", 25205, "host bridge 0000:40" },
    { "gpu-switches", "gpu-switches", 0, 7, TPT_PATH_NET,
      "cuda_gdr cuda_staged|cuda_ipc", 48000, "NIC mlx5_0 here (PIX" },
    { "gpu-switches", "power-nvlink", 1, 2, TPT_PATH_NET,
      "cuda_gdr cuda_staged|cuda_ipc", 5000, "mlx5_1 there (NODE)" },
    { "gpu-switches", "gpus-eight", 1, 2, TPT_PATH_NET,
      "cuda_gdr cuda_staged|cuda_ipc", 15753, "not known on that one" },
};

/* The size alone is what it is with all the words. */
static void same_sizes(uint32_t mine, uint32_t yours)
{
    for (uint32_t i = 0; i < devices.count; i++)
        for (uint32_t j = 0; j < plan.count; j++)
            if (strcmp(plan.candidates[j].name, devices.ways[i].name) == 0)
                ck_assert_uint_eq(tpt_device_from(&a, &b, &plan,
                                                  &plan.candidates[j], mine,
                                                  yours),
                                  devices.ways[i].from_bytes);
}

START_TEST(test_orders)
{
    gpus(orders[_i].machine, orders[_i].other);
    score(NULL, NULL);
    tpt_device_score(&a, &b, &plan, orders[_i].mine, orders[_i].yours,
                     &devices);
    ck_assert_str_eq(tpt_path_name(devices.path),
                     tpt_path_name(orders[_i].path));
    ck_assert_str_eq(ways(&devices), orders[_i].ways);
    ck_assert_uint_eq(devices.ways[0].megabytes, orders[_i].megabytes);
    ck_assert_msg(strstr(devices.evidence, orders[_i].evidence) != NULL, "%s",
                  devices.evidence);
    same_sizes(orders[_i].mine, orders[_i].yours);
    ck_assert_int_eq(tpt_score(&b, &a, NULL, &mirror, NULL), TP_OK);
    tpt_device_score(&b, &a, &mirror, orders[_i].yours, orders[_i].mine,
                     &reverse);
    ck_assert_str_eq(ways(&devices), ways(&reverse));
}
END_TEST

/* A NIC behind the host bridge is worth less than the way by the host's
 * memory, for big buffers. */
START_TEST(test_gdr_too_far)
{
    const struct tpt_way *gdr;

    gpus("power-nvlink", "power-nvlink");
    score(NULL, NULL);
    tpt_device_score(&a, &b, &plan, 0, 0, &devices);
    gdr = &devices.ways[strcmp(devices.ways[0].name, "cuda_gdr") != 0];
    ck_assert_str_eq(gdr->name, "cuda_gdr");
    ck_assert_uint_eq(gdr->megabytes, 12500 * 40 / 100);
    ck_assert_uint_eq(gdr->from_bytes, UINT64_MAX);
    ck_assert_int_eq(gdr->reason, TPT_REASON_SLOWER);
}
END_TEST

START_TEST(test_measured)
{
    gpus("gpu-switches", NULL);
    for (uint32_t i = 0; i < a.backend_count; i++)
        if (strcmp(a.backends[i].name, "cuda_ipc") == 0)
            a.backends[i].measured[TPT_PATH_PIX]
                = (struct tpt_cost) { 30000, 55000 };
    score(NULL, NULL);
    tpt_device_score(&a, &b, &plan, 0, 1, &devices);
    ck_assert_str_eq(devices.ways[0].name, "cuda_staged");
    ck_assert_str_eq(devices.ways[1].name, "cuda_ipc");
    ck_assert(devices.ways[1].measured);
    ck_assert_uint_eq(devices.ways[1].megabytes, 55000);
    ck_assert_uint_eq(devices.ways[1].model_megabytes, 63015);
    /* 18 us more, made good by 55000 against half of shm's 12000 MB/s. */
    ck_assert_uint_eq(devices.ways[1].from_bytes, 121220);
    same_sizes(0, 1);
    tpt_device_score(&a, &b, &plan, 0, 4, &devices);
    ck_assert(!devices.ways[0].measured);
}
END_TEST

/* "cuda_staged 121220:cuda_ipc " */
static const char *routed(const struct tpt_device_plan *of)
{
    static char text[512];
    struct tpt_device_route routes[TPT_DEVICE_ROUTES];
    size_t count = tpt_device_routes(of, routes);

    text[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            snprintf(text + strlen(text), 24, "%llu:",
                     (unsigned long long)routes[i].from_bytes);
        snprintf(text + strlen(text), TPT_NAME + 2, "%s ", routes[i].way < 0
                 ? "refused" : of->ways[routes[i].way].name);
    }
    return text;
}

static void same_costs(uint32_t mine, uint32_t yours)
{
    for (uint32_t i = 0; i < devices.count; i++) {
        const struct tpt_way *way = &devices.ways[i];
        uint64_t latency_ns, megabytes;

        if (!way->possible || strcmp(way->name, TPT_STAGED) == 0)
            continue;
        tpt_device_cost(&a, &b, find(way->name), mine, yours, &latency_ns,
                        &megabytes);
        ck_assert_uint_eq(latency_ns, way->latency_ns);
        ck_assert_uint_eq(megabytes, way->megabytes);
    }
}

/* Two direct ways: each has the sizes and the pairs for which it is better. */
START_TEST(test_routes)
{
    static const struct {
        uint32_t yours;
        const char *routes;
    } cases[] = {
        { 0, "cuda_gdr 7008000:cuda_ipc " },   /* one device, in turns */
        { 1, "cuda_gdr 866204:cuda_ipc " },    /* PIX: 63 GB/s for 48 */
        { 2, "cuda_gdr " },                    /* NODE: 41 GB/s */
        { 7, "cuda_gdr " },
    };
    gpus("gpu-switches", NULL);
    score("loop,ofi:verbs,cuda_ipc,cuda_gdr,cuda_staged", NULL);
    for (size_t i = 0; i < TPB_COUNT(cases); i++) {
        tpt_device_score(&a, &b, &plan, 0, cases[i].yours, &devices);
        ck_assert_str_eq(routed(&devices), cases[i].routes);
        same_costs(0, cases[i].yours);
    }
    /* By MPS both work at once: 1 TB/s, and no more latency than others. */
    a.gpus[0].mps = b.gpus[0].mps = 1;
    tpt_device_score(&a, &b, &plan, 0, 0, &devices);
    ck_assert_str_eq(routed(&devices), "cuda_gdr 201000:cuda_ipc ");
    ck_assert_str_eq(devices.evidence, "both are that one");
    /* One direct way, and one that is worth it for big buffers only. */
    score(NULL, NULL);
    tpt_device_score(&a, &b, &plan, 0, 1, &devices);
    ck_assert_str_eq(routed(&devices), "cuda_ipc ");
    for (uint32_t i = 0; i < a.backend_count; i++)
        if (strcmp(a.backends[i].name, "cuda_ipc") == 0)
            a.backends[i].measured[TPT_PATH_PIX]
                = (struct tpt_cost) { 30000, 55000 };
    score(NULL, NULL);
    tpt_device_score(&a, &b, &plan, 0, 1, &devices);
    ck_assert_str_eq(routed(&devices), "cuda_staged 121220:cuda_ipc ");
    score(NULL, "cuda:cuda_gdr");
    tpt_device_score(&a, &b, &plan, 0, 1, &devices);
    ck_assert_str_eq(routed(&devices), "refused ");
}
END_TEST

/* Whatever the terms are, the route of a size is one that costs least. */
static void check_routes(const struct tpt_device_plan *of, uint64_t bytes)
{
    struct tpt_device_route routes[TPT_DEVICE_ROUTES];
    size_t count = tpt_device_routes(of, routes), at = 0;
    const struct tpt_way *taken;

    ck_assert_uint_ge(count, 1);
    ck_assert_uint_eq(routes[0].from_bytes, TPT_DEVICE_LEAST);
    while (at + 1 < count && routes[at + 1].from_bytes <= bytes)
        at++;
    if (routes[at].way < 0)
        return;
    taken = &of->ways[routes[at].way];
    ck_assert(taken->possible);
    ck_assert(strcmp(taken->name, TPT_STAGED) == 0
              || taken->from_bytes <= bytes);
    for (uint32_t i = 0; i < of->count; i++) {
        const struct tpt_way *way = &of->ways[i];
        double time, least;

        if (!way->possible || way->from_bytes > bytes
            || strcmp(way->name, TPT_STAGED) == 0)
            continue;
        ck_assert_str_ne(taken->name, TPT_STAGED);
        time = (double)way->latency_ns
               + (double)bytes * 1000 / (double)way->megabytes;
        least = (double)taken->latency_ns
                + (double)bytes * 1000 / (double)taken->megabytes;
        ck_assert_double_le(least, time * 1.001 + 2);
    }
}

START_TEST(test_routes_random)
{
    uint64_t seed = 91;
    unsigned several = 0;

    for (int round = 0; round < 20000; round++) {
        struct tpt_device_route routes[TPT_DEVICE_ROUTES];

        memset(&devices, 0, sizeof(devices));
        devices.count = 1 + tpx_random_below(&seed, 4);
        for (uint32_t i = 0; i < devices.count; i++) {
            struct tpt_way *way = &devices.ways[i];

            snprintf(way->name, sizeof(way->name), i == 3 ? TPT_STAGED
                     : "way%u", i);
            way->possible = tpx_random_below(&seed, 8) > 0;
            way->latency_ns = 1000 * (1 + tpx_random_below(&seed, 40));
            way->megabytes = 1000 * (1 + tpx_random_below(&seed, 400));
            way->from_bytes = i == 3 ? 0
                              : tpx_random_below(&seed, 4) == 0 ? UINT64_MAX
                              : 1 + tpx_random_below(&seed, 1 << 20);
        }
        several += tpt_device_routes(&devices, routes) > 2;
        for (unsigned bit = 0; bit < 32; bit++)
            check_routes(&devices, (UINT64_C(1) << bit)
                                   + tpx_random_below(&seed, 1000));
    }
    ck_assert_uint_gt(several, 100);
}
END_TEST

START_TEST(test_no_peer_access)
{
    gpus("gpu-switches", NULL);
    a.gpus[0].denied_count = 1;
    a.gpus[0].denied[0] = b.gpus[1].place.pci;
    score(NULL, NULL);
    tpt_device_score(&a, &b, &plan, 0, 1, &devices);
    ck_assert_str_eq(ways(&devices), "cuda_staged|cuda_ipc cuda_gdr");
    ck_assert_int_eq(devices.ways[1].reason, TPT_REASON_NO_PEER_ACCESS);
    ck_assert_ptr_nonnull(strstr(devices.ways[1].remedy, "nvidia-smi"));
    ck_assert(find("cuda_ipc")->possible);
    /* The only GPUs: the pair of ranks need not try. */
    a.gpu_count = b.gpu_count = 1;
    b.gpus[0] = b.gpus[1];
    score(NULL, NULL);
    ck_assert_int_eq(find("cuda_ipc")->reason, TPT_REASON_NO_PEER_ACCESS);
    ck_assert(!tpt_device_insisted(&plan));
}
END_TEST

/* Through the host no access is needed; within one device it spares a turn. */
START_TEST(test_pinned)
{
    gpus("gpu-switches", NULL);
    tpx_card_channel(&a, TPT_PINNED, "", 13000, 30000)->devices = 1;
    tpx_card_channel(&b, TPT_PINNED, "", 13000, 30000)->devices = 1;
    score(NULL, NULL);
    tpt_device_score(&a, &b, &plan, 0, 0, &devices);
    ck_assert_str_eq(routed(&devices),
                     "cuda_staged 7500:cuda_host 4020000:cuda_ipc ");
    same_costs(0, 0);
    tpt_device_score(&a, &b, &plan, 0, 1, &devices);
    ck_assert_str_eq(routed(&devices), "cuda_ipc ");
    a.gpus[0].denied_count = 1;
    a.gpus[0].denied[0] = b.gpus[1].place.pci;
    score(NULL, NULL);
    tpt_device_score(&a, &b, &plan, 0, 1, &devices);
    ck_assert_str_eq(ways(&devices), "cuda_host cuda_staged|cuda_ipc cuda_gdr");
    ck_assert_str_eq(routed(&devices), "cuda_staged 7500:cuda_host ");
    same_costs(0, 1);
    ck_assert_uint_eq(tpt_device_from(&a, &b, &plan, find(TPT_PINNED), 0, 1),
                      devices.ways[0].from_bytes);
    a.gpu_count = b.gpu_count = 1;
    b.gpus[0] = b.gpus[1];
    score(NULL, NULL);
    ck_assert(!find("cuda_ipc")->possible && find(TPT_PINNED)->possible);
}
END_TEST

/* ---- the contract -------------------------------------------------------- */

START_TEST(test_contract)
{
    struct tpb_text text = { 0 };

    gpus("gpu-switches", NULL);
    score(NULL, "cuda:cuda_ipc");
    ck_assert(tpt_device_insisted(&plan));
    ck_assert_str_eq(plan.insist, "");
    ck_assert_str_eq(plan.insist_devices, "cuda_ipc");
    ck_assert_int_eq(tpt_plan_best(&plan), 0);
    tpt_device_score(&a, &b, &plan, 0, 1, &devices);
    ck_assert_str_eq(ways(&devices), "cuda_ipc|cuda_gdr cuda_staged");
    ck_assert_int_eq(devices.ways[2].reason, TPT_REASON_CONTRACT);
    ck_assert_ptr_nonnull(strstr(devices.ways[2].remedy,
                                 "add cuda:cuda_staged to TP_REQUIRE"));
    /* Refused in a trial: words and remedies of all. */
    tpt_plan_demote(&plan, "cuda_ipc", "cuIpcOpenMemHandle: 217");
    tpt_device_refusal(&plan, &text);
    ck_assert_ptr_nonnull(strstr(text.text, "cuda_ipc (trial_failed: "
                                 "cuIpcOpenMemHandle: 217; remedy: "));
    ck_assert_ptr_nonnull(strstr(text.text, "cuda_staged (contract: "
                                 "TP_REQUIRE wants cuda_ipc for class cuda; "
                                 "remedy: "));
    ck_assert_int_eq(tpt_plan_best(&plan), 0);
    tpb_text_fini(&text);
    /* Of two hosts: no way for GPUs, but one for all else. */
    gpus("gpu-switches", "gpu-switches");
    score(NULL, "cuda:cuda_ipc,net:verbs");
    tpt_device_score(&a, &b, &plan, 0, 0, &devices);
    ck_assert_str_eq(ways(&devices), "|cuda_gdr cuda_ipc cuda_staged");
    ck_assert_str_eq(plan.candidates[0].name, "ofi:verbs");
    score(NULL, "cuda:cuda_gdr,cuda:cuda_ipc");
    tpt_device_score(&a, &b, &plan, 0, 0, &devices);
    ck_assert_str_eq(ways(&devices), "cuda_gdr|cuda_ipc cuda_staged");
    /* Contracts of other kinds leave GPUs alone, and the other way round. */
    score(NULL, "net:verbs");
    ck_assert(!tpt_device_insisted(&plan));
    score("^cuda_staged", NULL);
    ck_assert(tpt_device_insisted(&plan));
    /* Who lists transports means no less than these. */
    score("loop,shm", NULL);
    ck_assert(!tpt_device_insisted(&plan));
    ck_assert(find("cuda_staged")->possible || !find("shm")->possible);
}
END_TEST

/* A list that names direct channels wants these, whatever they cost; what they
 * do not take goes staged. */
START_TEST(test_listed)
{
    gpus("gpu-switches", NULL);
    for (uint32_t i = 0; i < a.backend_count; i++)
        if (strcmp(a.backends[i].name, "cuda_ipc") == 0)
            a.backends[i].latency_ns = 100000;
    score(NULL, NULL);
    ck_assert(find("cuda_ipc") > find("cuda_staged"));
    ck_assert_uint_gt(find("cuda_ipc")->from_bytes, TPT_DEVICE_LEAST);
    score("loop,shm,cuda_ipc,cuda_staged", NULL);
    ck_assert(find("cuda_ipc") > find("cuda_staged"));
    ck_assert_uint_gt(find("cuda_ipc")->from_bytes, TPT_DEVICE_LEAST);
    score("loop,shm,cuda_ipc", NULL);
    ck_assert(find("cuda_ipc") < find("cuda_staged"));
    ck_assert_uint_eq(find("cuda_ipc")->from_bytes, TPT_DEVICE_LEAST);
    ck_assert(find("cuda_staged")->possible);
    tpt_device_score(&a, &b, &plan, 0, 1, &devices);
    ck_assert_uint_eq(devices.ways[0].from_bytes, TPT_DEVICE_LEAST);
    ck_assert_str_eq(ways(&devices), "cuda_ipc cuda_staged|cuda_gdr");
}
END_TEST

START_TEST(test_contract_refused)
{
    struct tpt_policy policy = { NULL, "cuda:shm" };
    struct tpb_error error = { "" };

    gpus("gpu-switches", NULL);
    ck_assert_int_eq(tpt_score(&a, &b, &policy, &plan, &error),
                     TP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "class cuda is of GPUs' memory"));
    policy.require = "cuda:cuda_ipx";
    ck_assert_int_eq(tpt_score(&a, &b, &policy, &plan, &error),
                     TP_ERR_INVALID);
}
END_TEST

/* ---- for any cards ------------------------------------------------------- */

static void check_way(const struct tpt_way *way)
{
    const struct tpt_candidate *candidate = find(way->name);

    ck_assert(candidate->devices);
    ck_assert_str_ne(way->evidence, "");
    if (!way->possible)
        return;
    ck_assert(candidate->possible);
    ck_assert_uint_ge(way->megabytes, 1);
    ck_assert_int_eq(way->reason == TPT_REASON_CHOSEN,
                     way->from_bytes != UINT64_MAX);
}

START_TEST(test_random)
{
    struct tpt_device_kind kinds[TPT_DEVICE_KINDS];
    uint64_t seed = 17;
    unsigned seen[TPT_PATH_UNKNOWN + 1] = { 0 };

    for (int round = 0; round < 3000; round++) {
        uint32_t i = tpx_random_below(&seed, 4);
        uint32_t j = tpx_random_below(&seed, 4);

        tpx_card_random(&a, &seed);
        tpx_card_random(&b, &seed);
        score(NULL, NULL);
        tpt_device_score(&a, &b, &plan, i, j, &devices);
        seen[devices.path]++;
        ck_assert_str_ne(devices.evidence, "");
        for (uint32_t k = 0; k < devices.count; k++)
            check_way(&devices.ways[k]);
        ck_assert_int_eq(tpt_score(&b, &a, NULL, &mirror, NULL), TP_OK);
        tpt_device_score(&b, &a, &mirror, j, i, &reverse);
        ck_assert_int_eq(devices.path, reverse.path);
        ck_assert_uint_eq(devices.count, reverse.count);
        for (uint32_t k = 0; k < devices.count; k++) {
            if (!devices.ways[k].possible)
                break;
            ck_assert_str_eq(devices.ways[k].name, reverse.ways[k].name);
            ck_assert_uint_eq(devices.ways[k].cost_ns,
                              reverse.ways[k].cost_ns);
            ck_assert_uint_eq(devices.ways[k].from_bytes,
                              reverse.ways[k].from_bytes);
        }
        ck_assert_uint_le(tpt_device_kinds(&a, &b, &plan, kinds),
                          TPT_DEVICE_KINDS);
    }
    for (unsigned k = 0; k < TPB_COUNT(seen); k++)
        ck_assert_msg(seen[k] > 0, "no pair is %s",
                      tpt_path_name((enum tpt_path)k));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("devices");
    TCase *tests = tcase_create("devices");

    tcase_set_timeout(tests, 180);
    tcase_add_test(tests, test_paths);
    tcase_add_test(tests, test_here);
    tcase_add_loop_test(tests, test_machines, 0, TPB_COUNT(machines));
    tcase_add_test(tests, test_visible);
    tcase_add_loop_test(tests, test_affinities, 0, TPB_COUNT(affinities));
    tcase_add_test(tests, test_affinity_is_best);
    tcase_add_test(tests, test_affinity_of_slow);
    tcase_add_test(tests, test_affinity_of_nothing);
    tcase_add_loop_test(tests, test_orders, 0, TPB_COUNT(orders));
    tcase_add_test(tests, test_gdr_too_far);
    tcase_add_test(tests, test_measured);
    tcase_add_test(tests, test_routes);
    tcase_add_test(tests, test_routes_random);
    tcase_add_test(tests, test_no_peer_access);
    tcase_add_test(tests, test_pinned);
    tcase_add_test(tests, test_contract);
    tcase_add_test(tests, test_listed);
    tcase_add_test(tests, test_contract_refused);
    tcase_add_test(tests, test_random);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
