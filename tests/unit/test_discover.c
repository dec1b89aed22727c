/* SPDX-License-Identifier: BSD-3-Clause */
/* Topologies: recorded ones, this one, broken ones, shared ones. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/interfaces.h"
#include "runtime/base/io.h"
#include "tests/lib/tpx.h"
#include "tests/unit/cards.h"

/* ---- recorded machines ------------------------------------------------- */

static const struct {
    const char *name;
    uint32_t packages, numas, l3s, cores, cpus, nics;
    const char *drawing;           /* what the drawing must hold */
} machines[] = {
    { "one-socket", 1, 1, 1, 4, 8, 0, "L3 cache 0, 16 MiB: 4 cores, 8 cpus" },
    { "two-socket", 2, 2, 2, 12, 24, 0, "package 1, NUMA node 1 1024 MiB" },
    { "sub-numa", 2, 4, 4, 12, 12, 0, "NUMA node 3: 3 cores, 3 cpus (9-11)" },
    { "chiplets", 1, 1, 4, 16, 32, 0, "L3 cache 3, 16 MiB: 4 cores, 8 cpus" },
    { "small-vm", 1, 1, 0, 2, 2, 0, "package 0, NUMA node 0: 2 cores" },
    { "no-l3", 4, 1, 0, 4, 4, 0, "package 3: 1 core, 1 cpu (3)" },
    { "uneven", 2, 4, 1, 6, 6, 2, "package 1, NUMA node 2, NUMA node 3: 2 "
      "cores" },
    { "nics-rdma", 2, 2, 2, 8, 8, 5, "package 0, NUMA node 0 1024 MiB" },
    { "nics-slow", 1, 1, 1, 4, 4, 1, "4 cores" },
    { "nics-two", 2, 2, 2, 6, 6, 2, "6 cores" },
    { "gpu-switches", 2, 2, 2, 16, 32, 16, "package 1, NUMA node 1 1024 MiB" },
    { "power-nvlink", 2, 2, 8, 16, 64, 4, "L3 cache 7, 16 MiB: 2 cores, 8 "
      "cpus (56-63)" },
    { "cloud-vm", 1, 1, 1, 2, 2, 1, "(Intel(R) Xeon(R) Processor)" },
};

START_TEST(test_shapes)
{
    struct tpt_topology *machine = tpx_machine(machines[_i].name);
    struct tpt_nic nics[TPT_NICS];
    struct tpb_text text = { 0 };
    struct tpt_shape shape;

    tpt_topology_shape(machine, &shape);
    ck_assert_uint_eq(shape.packages, machines[_i].packages);
    ck_assert_uint_eq(shape.numas, machines[_i].numas);
    ck_assert_uint_eq(shape.l3s, machines[_i].l3s);
    ck_assert_uint_eq(shape.cores, machines[_i].cores);
    ck_assert_uint_eq(shape.cpus, machines[_i].cpus);
    ck_assert(!shape.this_machine);
    ck_assert_uint_eq(tpt_topology_nics(machine, nics), machines[_i].nics);
    tpt_topology_describe(machine, &text);
    ck_assert_msg(strstr(text.text, machines[_i].drawing) != NULL, "%s",
                  text.text);
    tpb_text_fini(&text);
    tpt_topology_free(machine);
}
END_TEST

static const struct {
    const char *name;
    uint32_t a, b;
    enum tpt_locality locality;
} pairs[] = {
    { "one-socket", 0, 0, TPT_SAME_CORE },
    { "one-socket", 0, 3, TPT_SAME_L3 },
    { "two-socket", 0, 5, TPT_SAME_L3 },
    { "two-socket", 5, 6, TPT_SAME_HOST },
    { "sub-numa", 0, 2, TPT_SAME_L3 },
    { "sub-numa", 2, 3, TPT_SAME_PACKAGE },
    { "sub-numa", 5, 6, TPT_SAME_HOST },
    { "chiplets", 0, 1, TPT_SAME_L2 },
    { "chiplets", 1, 2, TPT_SAME_L3 },
    { "chiplets", 3, 4, TPT_SAME_NUMA },
    { "small-vm", 0, 1, TPT_SAME_NUMA },
    { "no-l3", 0, 1, TPT_SAME_NUMA },
    { "nics-rdma", 3, 4, TPT_SAME_HOST },
    { "gpu-switches", 0, 7, TPT_SAME_L3 },
    { "gpu-switches", 7, 8, TPT_SAME_HOST },
    { "power-nvlink", 0, 1, TPT_SAME_L2 },
    { "power-nvlink", 0, 2, TPT_SAME_NUMA },
    { "power-nvlink", 0, 8, TPT_SAME_HOST },
    { "cloud-vm", 0, 1, TPT_SAME_L3 },
};

START_TEST(test_localities)
{
    static struct tpt_card a, b;
    struct tpt_topology *machine = tpx_machine(pairs[_i].name);

    tpx_card(&a, machine, pairs[_i].a, 0, 1);
    tpx_card(&b, machine, pairs[_i].b, 1, 1);
    ck_assert_str_eq(tpt_locality_name(tpt_locality(&a, &b)),
                     tpt_locality_name(pairs[_i].locality));
    ck_assert_int_eq(tpt_locality(&b, &a), pairs[_i].locality);
    memcpy(b.instance, a.instance, sizeof(b.instance));
    ck_assert_int_eq(tpt_locality(&a, &b), TPT_SAME_PROCESS);
    tpx_card(&b, machine, pairs[_i].a, 1, 2);
    ck_assert_int_eq(tpt_locality(&a, &b), TPT_OTHER_HOST);
    tpt_topology_free(machine);
}
END_TEST

START_TEST(test_hashes)
{
    uint64_t hashes[TPB_COUNT(machines)];
    struct tpt_topology *machine;
    struct tpt_shape shape;

    for (size_t i = 0; i < TPB_COUNT(machines); i++) {
        machine = tpx_machine(machines[i].name);
        tpt_topology_shape(machine, &shape);
        tpt_topology_free(machine);
        hashes[i] = shape.hash;
        machine = tpx_machine(machines[i].name);
        tpt_topology_shape(machine, &shape);
        tpt_topology_free(machine);
        ck_assert_uint_eq(shape.hash, hashes[i]);
        for (size_t j = 0; j < i; j++)
            ck_assert_msg(hashes[i] != hashes[j], "%s and %s",
                          machines[i].name, machines[j].name);
    }
}
END_TEST

START_TEST(test_place)
{
    struct tpt_topology *machine = tpx_machine("two-socket");
    struct tpt_place place;

    ck_assert(tpt_topology_place_core(machine, 7, &place));
    ck_assert_int_eq(place.core, 7);
    ck_assert_int_eq(place.l2, 7);
    ck_assert_int_eq(place.l3, 1);
    ck_assert_int_eq(place.numa, 1);
    ck_assert_int_eq(place.package, 1);
    ck_assert_uint_eq(place.cpus, 2);
    ck_assert_uint_eq(place.machine_cpus, 24);
    ck_assert(!tpt_topology_place_core(machine, 12, &place));
    /* Nobody runs on a recorded machine: anywhere. */
    tpt_topology_place(machine, &place);
    ck_assert_int_eq(place.core, -1);
    ck_assert_int_eq(place.package, -1);
    ck_assert_uint_eq(place.cpus, 24);
    tpt_topology_free(machine);
}
END_TEST

/* ---- this machine ------------------------------------------------------ */

static struct tpb_settings settings;

static void set(enum tpb_setting_id id, const char *text)
{
    struct tpb_error error = { "" };

    ck_assert_msg(tpb_settings_set(&settings, id, text, &error) == TP_OK,
                  "%s", error.text);
}

static void setup(void)
{
    struct tpb_error error = { "" };

    unsetenv("TP_TOPOLOGY");
    unsetenv("TP_TOPOLOGY_SHARED");
    ck_assert_msg(tpb_settings_load(&settings, &error) == TP_OK, "%s",
                  error.text);
}

static void teardown(void)
{
    tpb_settings_fini(&settings);
}

static struct tpt_topology *load(void)
{
    struct tpt_topology *topology = NULL;
    struct tpb_error error = { "" };

    ck_assert_msg(tpt_topology_load(&settings, &topology, &error) == TP_OK,
                  "%s", error.text);
    return topology;
}

/* hwloc's own calls end up here, too. */
static int affinity_calls;

__attribute__((__visibility__("default"))) int
sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *cpus)
{
    affinity_calls++;
    return (int)syscall(SYS_sched_setaffinity, pid, size, cpus);
}

static bool affinity_forbidden;

__attribute__((__visibility__("default"))) int
sched_getaffinity(pid_t pid, size_t size, cpu_set_t *cpus)
{
    long got = -1;

    errno = EPERM;
    if (!affinity_forbidden)
        got = syscall(SYS_sched_getaffinity, pid, size, cpus);
    if (got < 0)
        return -1;
    memset((unsigned char *)cpus + got, 0, size - (size_t)got);
    return 0;
}

/* hwloc would ask for ever. */
START_TEST(test_forbidden)
{
    struct tpt_topology *topology = NULL;
    struct tpb_error error = { "" };

    affinity_forbidden = true;
    ck_assert_int_eq(tpt_topology_load(&settings, &topology, &error),
                     TP_ERR_SYSTEM);
    ck_assert_msg(strstr(error.text, "sched_getaffinity") != NULL, "%s",
                  error.text);
    affinity_forbidden = false;
    tpt_topology_free(load());
}
END_TEST

/* Where the kernel says all, nobody moves from cpu to cpu to ask these; and
 * what is found is the same. */
START_TEST(test_stays_where_it_is)
{
    struct tpt_topology *topology;
    struct tpt_shape quiet, asked;
    int calls;

    if (access("/sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_map",
               R_OK) != 0) {
        tpx_skip("caches", "the kernel does not tell of them");
        return;
    }
    ck_assert_int_eq(setenv("HWLOC_COMPONENTS", "linux,x86", 1), 0);
    topology = load();
    tpt_topology_shape(topology, &asked);
    tpt_topology_free(topology);
    calls = affinity_calls;
    ck_assert_int_eq(unsetenv("HWLOC_COMPONENTS"), 0);
    topology = load();
    tpt_topology_shape(topology, &quiet);
    tpt_topology_free(topology);
    ck_assert_int_eq(affinity_calls, calls);
#ifdef __x86_64__
    ck_assert_int_gt(calls, 0);    /* else this test sees nothing */
#endif
    ck_assert_uint_eq(quiet.hash, asked.hash);
}
END_TEST

START_TEST(test_this_machine)
{
    struct tpt_topology *topology = load();
    struct tpt_nic nics[TPT_NICS];
    struct tpt_place place, bound;
    struct tpt_shape shape;
    cpu_set_t cpus;
    int first = 0;

    ck_assert_str_eq(tpt_topology_source(topology), "this machine");
    tpt_topology_shape(topology, &shape);
    ck_assert(shape.this_machine);
    ck_assert_uint_gt(shape.memory, 0);
    ck_assert_int_eq(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
    tpt_topology_place(topology, &place);
    ck_assert_int_eq((int)place.cpus, CPU_COUNT(&cpus));
    ck_assert_uint_ge(place.machine_cpus, place.cpus);
    for (uint32_t i = tpt_topology_nics(topology, nics); i > 0; i--)
        ck_assert_str_ne(nics[i - 1].name, "lo");
    /* Bound to one cpu it is on one core, which place_core() knows too. */
    while (!CPU_ISSET(first, &cpus))
        first++;
    CPU_ZERO(&cpus);
    CPU_SET(first, &cpus);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(cpus), &cpus), 0);
    tpt_topology_place(topology, &place);
    ck_assert_uint_eq(place.cpus, 1);
    if (shape.cores > 0) {
        ck_assert_int_ge(place.core, 0);
        ck_assert(tpt_topology_place_core(topology, (uint32_t)place.core,
                                          &bound));
        ck_assert_int_eq(bound.numa, place.numa);
        ck_assert_int_eq(bound.l3, place.l3);
    }
    tpt_topology_free(topology);
}
END_TEST

START_TEST(test_free_nothing)
{
    tpt_topology_free(NULL);
}
END_TEST

/* ---- broken files ------------------------------------------------------ */

static char scratch[64];

static void write_scratch(const char *data, size_t length)
{
    int fd;

    if (scratch[0] == '\0') {
        snprintf(scratch, sizeof(scratch), "/tmp/tp-test-XXXXXX");
        fd = mkstemp(scratch);
    } else {
        fd = open(scratch, O_WRONLY | O_TRUNC | O_CLOEXEC);
    }
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(tpb_write_all(fd, data, length), 0);
    close(fd);
}

static void remove_scratch(void)
{
    if (scratch[0] != '\0')
        unlink(scratch);
    scratch[0] = '\0';
}

/* Refused in words that name the variable, the file and a way out. */
static void refused(const char *path, const char *word)
{
    struct tpt_topology *topology = NULL;
    struct tpb_error error = { "" };

    set(TPB_SET_TOPOLOGY, path);
    ck_assert_int_eq(tpt_topology_load(&settings, &topology, &error),
                     TP_ERR_INVALID);
    ck_assert_ptr_null(topology);
    ck_assert_msg(strstr(error.text, "TP_TOPOLOGY") != NULL
                  && strstr(error.text, path) != NULL
                  && strstr(error.text, word) != NULL
                  && strchr(error.text, '\n') == NULL, "%s", error.text);
}

START_TEST(test_broken_files)
{
    static const char unclosed[] = "<?xml version=\"1.0\"?><topology>";
    static const char other[] = "<?xml version=\"1.0\"?><html></html>";
    static const char newer[] = "<?xml version=\"1.0\"?>\n"
        "<topology version=\"9.0\"></topology>";
#define SETS "os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" " \
             "nodeset=\"0x1\" complete_nodeset=\"0x1\" "
    static const char empty[] = "<?xml version=\"1.0\"?>\n"
        "<topology version=\"2.0\">\n"
        "<object type=\"Machine\" " SETS "allowed_cpuset=\"0x1\" "
        "allowed_nodeset=\"0x1\" gp_index=\"1\">\n"
        "<object type=\"NUMANode\" " SETS "gp_index=\"2\"/>\n"
        "</object>\n</topology>\n";

    refused("/nonexistent/a.xml", "No such file");
    refused("/", "Is a directory");
    refused("-", "No such file");
    write_scratch("", 0);
    refused(scratch, "lstopo");
    write_scratch("garbage\n", 8);
    refused(scratch, "lstopo");
    write_scratch(unclosed, sizeof(unclosed) - 1);
    refused(scratch, "lstopo");
    write_scratch(other, sizeof(other) - 1);
    refused(scratch, "lstopo");
    write_scratch("\0\1\2\3", 4);
    refused(scratch, "lstopo");
    write_scratch(newer, sizeof(newer) - 1);
    refused(scratch, "the lstopo of that version");
    write_scratch(empty, sizeof(empty) - 1);
    refused(scratch, "has no cpus");
}
END_TEST

/* What hwloc's own parser (the one without libxml2) has read of a file that
 * ends early is never freed.  There only with -fsanitize=address. */
void __lsan_disable(void) __attribute__((weak));
void __lsan_enable(void) __attribute__((weak));

START_TEST(test_truncated_files)
{
    const char *source = getenv("TP_TEST_SOURCE");
    char path[1024], *whole;
    size_t length;

    snprintf(path, sizeof(path), "%s/tests/data/topology/nics-rdma.xml",
             source != NULL ? source : ".");
    whole = tpb_read_file(path, &length);
    ck_assert_ptr_nonnull(whole);
    for (size_t i = 0; i < length - 16; i += 61) {
        write_scratch(whole, i);
        if (__lsan_disable != NULL)
            __lsan_disable();
        refused(scratch, "lstopo");
        if (__lsan_enable != NULL)
            __lsan_enable();
    }
    tpb_free(whole);
}
END_TEST

START_TEST(test_no_memory)
{
    struct tpt_topology *topology = NULL;
    struct tpb_error error = { "" };
    tp_status status = TP_ERR_NO_MEMORY;
    long n;

    for (n = 1; n < 100; n++) {
        tpb_alloc_fail_at(n);
        status = tpt_topology_load(&settings, &topology, &error);
        tpb_alloc_fail_at(0);
        if (status == TP_OK)
            break;
        ck_assert_int_eq(status, TP_ERR_NO_MEMORY);
        ck_assert_ptr_null(topology);
    }
    ck_assert_int_gt(n, 1);
    ck_assert_int_eq(status, TP_OK);
    tpt_topology_free(topology);
}
END_TEST

/* ---- shared ------------------------------------------------------------ */

/* Loads with that TP_TOPOLOGY_SHARED and says where it came from. */
static bool adopts(const char *text)
{
    struct tpt_topology *topology;
    bool shared;

    set(TPB_SET_TOPOLOGY_SHARED, text);
    topology = load();
    shared = strcmp(tpt_topology_source(topology), "this machine") != 0;
    tpt_topology_free(topology);
    return shared;
}

static bool share(struct tpt_topology *topology, int *fd, char text[64])
{
    struct tpb_error error = { "" };
    tp_status status = tpt_topology_share(topology, fd, text, &error);

    if (status == TP_OK)
        return true;
    ck_assert_int_eq(status, TP_ERR_NOT_SUPPORTED);
    tpx_skip("shared-topology", error.text);
    return false;
}

START_TEST(test_share)
{
    struct tpt_topology *topology = load(), *mapped, *again;
    struct tpt_shape shape, other;
    struct tpb_text a = { 0 }, b = { 0 };
    struct tpt_place place;
    char text[64], next[64];
    int fd, second;

    if (!share(topology, &fd, text)) {
        tpt_topology_free(topology);
        return;
    }
    ck_assert_int_eq(fcntl(fd, F_GETFD), 0);
    set(TPB_SET_TOPOLOGY_SHARED, text);
    mapped = load();
    ck_assert_str_eq(tpt_topology_source(mapped), "the launcher, shared");
    ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
    tpt_topology_shape(topology, &shape);
    tpt_topology_shape(mapped, &other);
    ck_assert_uint_eq(shape.hash, other.hash);
    ck_assert(other.this_machine);
    tpt_topology_place(mapped, &place);
    ck_assert_uint_ge(place.cpus, 1);
    tpt_topology_describe(topology, &a);
    tpt_topology_describe(mapped, &b);
    ck_assert_str_eq(strchr(a.text, ':'), strchr(b.text, ':'));
    tpb_text_fini(&a);
    tpb_text_fini(&b);
    /* describe() took the address that hwloc's part wants; a second one in the
     * process gets its handle from the machine. */
    set(TPB_SET_TOPOLOGY_SHARED, text);
    again = load();
    ck_assert_str_eq(tpt_topology_source(again), "the launcher, shared");
    ck_assert_ptr_nonnull(tpt_topology_handle(again));
    ck_assert_ptr_ne(tpt_topology_handle(again), tpt_topology_handle(mapped));
    tpt_topology_free(again);
    /* A launcher inside a job passes on what it mapped. */
    ck_assert(share(mapped, &second, next));
    ck_assert_int_eq(fcntl(second, F_GETFD), 0);
    ck_assert_int_ne(second, fd);
    tpt_topology_free(mapped);
    ck_assert(adopts(next));
    close(second);
    tpt_topology_free(topology);
    ck_assert(adopts(text));
    close(fd);
    ck_assert(!adopts(text));
}
END_TEST

/* What was shared, mapped again; NULL where nothing can be shared. */
static struct tpt_topology *share_and_map(struct tpt_topology *topology)
{
    struct tpt_topology *mapped;
    char text[64];
    int fd;

    if (!share(topology, &fd, text))
        return NULL;
    set(TPB_SET_TOPOLOGY_SHARED, text);
    mapped = load();
    ck_assert_str_eq(tpt_topology_source(mapped), "the launcher, shared");
    close(fd);
    return mapped;
}

/* Addresses and NICs come with it, as the kernel tells them. */
START_TEST(test_share_network)
{
    struct tpt_topology *topology = load(), *mapped = NULL;
    const struct tpb_interfaces *all = tpb_interfaces_hold(), *known;
    const struct tpb_interface *list = NULL;
    struct tpt_nic before[TPT_NICS] = { 0 }, after[TPT_NICS] = { 0 },
                   shared[TPT_NICS] = { 0 };
    uint32_t nics = tpt_topology_nics(topology, before);
    size_t count = 99;

    ck_assert_ptr_nonnull(all);
    ck_assert_ptr_null(tpt_topology_interfaces(topology, &count));
    ck_assert_uint_eq(count, 0);
    /* It counts for seconds, which a busy machine may take. */
    for (int i = 0; i < 100 && list == NULL; i++) {
        tpt_topology_free(mapped);
        mapped = share_and_map(topology);
        if (mapped == NULL)
            break;
        list = tpt_topology_interfaces(mapped, &count);
    }
    if (mapped != NULL) {
        ck_assert_ptr_nonnull(list);
        ck_assert_uint_eq(count, all->count);
        ck_assert_mem_eq(list, all->list, count * sizeof(list[0]));
        tpt_topology_nics(topology, after);
        /* Others may make and remove devices meanwhile. */
        if (memcmp(before, after, sizeof(after)) == 0) {
            ck_assert_uint_eq(tpt_topology_nics(mapped, shared), nics);
            ck_assert_mem_eq(shared, before, sizeof(before));
        }
        tpb_interfaces_drop(all);
        known = tpb_interfaces_hold_known(list, count);
        ck_assert_ptr_nonnull(known);
        ck_assert_uint_eq(known->count, count);
        ck_assert_mem_eq(known->list, list, count * sizeof(list[0]));
        all = known;
    }
    tpb_interfaces_drop(all);
    tpt_topology_free(mapped);
    tpt_topology_free(topology);
}
END_TEST

/* A recorded machine stays one when it is shared. */
START_TEST(test_share_recorded)
{
    struct tpt_topology *machine = tpx_machine("nics-rdma"), *mapped;
    struct tpt_nic nics[TPT_NICS];
    struct tpt_shape shape;
    struct tpt_place place;
    char text[64];
    int fd;

    if (share(machine, &fd, text)) {
        set(TPB_SET_TOPOLOGY_SHARED, text);
        mapped = load();
        tpt_topology_shape(mapped, &shape);
        ck_assert(!shape.this_machine);
        ck_assert_uint_eq(shape.cores, 8);
        ck_assert(tpt_topology_place_core(mapped, 6, &place));
        ck_assert_int_eq(place.numa, 1);
        ck_assert_uint_eq(tpt_topology_nics(mapped, nics), 5);
        tpt_topology_free(mapped);
        close(fd);
    }
    tpt_topology_free(machine);
}
END_TEST

/* Nobody can change what others have mapped. */
START_TEST(test_share_is_sealed)
{
    struct tpt_topology *topology = load();
    char text[64];
    int fd;

    if (share(topology, &fd, text)) {
        ck_assert_int_lt(write(fd, "x", 1), 0);
        ck_assert_int_lt(ftruncate(fd, 0), 0);
        ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED,
                              fd, 0), MAP_FAILED);
        close(fd);
    }
    tpt_topology_free(topology);
}
END_TEST

/* A descriptor that is not the launcher's is neither used nor touched. */
static void rejects(int fd, const char *rest, const char *what)
{
    char text[128];

    ck_assert_int_ge(fd, 0);
    fcntl(fd, F_SETFD, 0);
    snprintf(text, sizeof(text), "%d%s", fd, rest);
    ck_assert_msg(!adopts(text), "%s", what);
    ck_assert_int_eq(fcntl(fd, F_GETFD), 0);
    close(fd);
}

static int memory(const char *name, const void *data, size_t length,
                  bool sealed)
{
    int fd = memfd_create(name, MFD_ALLOW_SEALING);

    ck_assert_int_eq(tpb_write_all(fd, data, length), 0);
    if (sealed)
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW
                               | 0x10 | F_SEAL_SEAL), 0);
    return fd;
}

START_TEST(test_share_impostors)
{
    static char garbage[8192];
    struct tpt_topology *topology = load(), *moved;
    const char *rest;
    char text[64], good[64];
    size_t length;
    struct stat status;
    char *image, *changed;
    int fd;

    if (!share(topology, &fd, good)) {
        tpt_topology_free(topology);
        return;
    }
    rest = strchr(good, ':');
    ck_assert_int_eq(fstat(fd, &status), 0);
    length = (size_t)status.st_size;
    image = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(image, MAP_FAILED);
    memset(garbage, 'g', sizeof(garbage));
    write_scratch(image, length);
    rejects(open("/dev/null", O_RDONLY), rest, "/dev/null");
    rejects(open(scratch, O_RDONLY), rest, "a file with the same bytes");
    rejects(memory("tp-topology", image, length, false), rest, "not sealed");
    rejects(memory("other", image, length, true), rest, "another name");
    rejects(memory("tp-topology", image, length - 1, true), rest, "cut");
    rejects(memory("tp-topology", garbage, 8192, true),
            ":0x550040000000:4096", "garbage");
    rejects(dup(fd), ":0x550040000001:4096", "the table is not there");
    rejects(dup(fd), ":0x550040000001:4097", "not on a page");
    rejects(dup(fd), ":0x550040000000:999999999", "behind the end");
    changed = malloc(length);
    memcpy(changed, image, length);
    changed[length - 1] ^= 1;
    rejects(memory("tp-topology", changed, length, true), rest, "changed");
    free(changed);
    munmap(image, length);
    /* The right one at an address that it was not made for: the table serves,
     * and hwloc's part comes from the machine. */
    snprintf(text, sizeof(text), "%d:0x550080000000:%s", fd,
             strrchr(good, ':') + 1);
    set(TPB_SET_TOPOLOGY_SHARED, text);
    moved = load();
    ck_assert_str_eq(tpt_topology_source(moved), "the launcher, shared");
    ck_assert_ptr_nonnull(tpt_topology_handle(moved));
    tpt_topology_free(moved);
    ck_assert(adopts(good));
    close(fd);
    tpt_topology_free(topology);
}
END_TEST

START_TEST(test_share_nonsense)
{
    static const char *const texts[] = {
        "x", "3", "3:", "3:4", "3:4:", ":4:5", "-1:0x1000:4096",
        "99999999999999999999:0x1000:4096", "4294967299:0x1000:4096",
        "999:0x550040000000:4096", "3:0x550040000000:4096x", "3: 1: 2",
    };

    for (size_t i = 0; i < TPB_COUNT(texts); i++)
        ck_assert_msg(!adopts(texts[i]), "%s", texts[i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("discover");
    TCase *tests = tcase_create("discover");

    tcase_set_timeout(tests, 180);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_checked_fixture(tests, NULL, remove_scratch);
    tcase_add_loop_test(tests, test_shapes, 0, TPB_COUNT(machines));
    tcase_add_loop_test(tests, test_localities, 0, TPB_COUNT(pairs));
    tcase_add_test(tests, test_hashes);
    tcase_add_test(tests, test_place);
    tcase_add_test(tests, test_forbidden);
    tcase_add_test(tests, test_stays_where_it_is);
    tcase_add_test(tests, test_this_machine);
    tcase_add_test(tests, test_free_nothing);
    tcase_add_test(tests, test_broken_files);
    tcase_add_test(tests, test_truncated_files);
    tcase_add_test(tests, test_no_memory);
    tcase_add_test(tests, test_share);
    tcase_add_test(tests, test_share_network);
    tcase_add_test(tests, test_share_recorded);
    tcase_add_test(tests, test_share_is_sealed);
    tcase_add_test(tests, test_share_impostors);
    tcase_add_test(tests, test_share_nonsense);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
