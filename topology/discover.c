/* SPDX-License-Identifier: BSD-3-Clause */
/* Loads the topology, and tells where in it a process may run. */
#include "config.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"
#include "topology/private.h"

TPB_LOG_COMPONENT("topology");

/* Components of hwloc that would start a GPU's driver or ask a display. */
static const char *const discover_unwanted[] = {
    "opencl", "gl", "cuda", "nvml", "rsmi", "levelzero"
};

/*
 * The component that asks the processors themselves moves the thread from one
 * cpu to the next, and waits for each that is busy: 15 ms on two cpus with much
 * else to do, and in a virtual machine every question goes to the host.  Where
 * the kernel has said the same, hwloc only notes what nobody here reads.
 */
static bool discover_kernel_knows(void)
{
    return getenv("HWLOC_COMPONENTS") == NULL
           && access("/sys/devices/system/cpu/cpu0/topology/core_id",
                     R_OK) == 0
           && access("/sys/devices/system/cpu/cpu0/cache/index0/"
                     "shared_cpu_map", R_OK) == 0;
}

/*
 * An hwloc topology that is configured but not loaded; NULL without memory.
 * I/O devices are kept of a recorded machine only: on a live one nics.c finds
 * them, since hwloc's way took 13 of 15 ms on a virtual machine with six PCI
 * devices.
 */
static hwloc_topology_t discover_new(bool recorded)
{
    hwloc_topology_t hwloc;

    if (hwloc_topology_init(&hwloc) != 0)
        return NULL;
    hwloc_topology_set_io_types_filter(hwloc, recorded
                                       ? HWLOC_TYPE_FILTER_KEEP_IMPORTANT
                                       : HWLOC_TYPE_FILTER_KEEP_NONE);
    /* Refused for a component that this hwloc does not have: as well. */
    for (size_t i = 0; i < TPB_COUNT(discover_unwanted); i++)
        hwloc_topology_set_components(
            hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
            discover_unwanted[i]);
    if (!recorded && discover_kernel_knows())
        hwloc_topology_set_components(
            hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
    return hwloc;
}

/* hwloc asks again and again, for more and more cpus, whatever the answer was;
 * where a sandbox forbids the question that is for ever. */
static tp_status discover_may_ask(struct tpb_error *error)
{
    cpu_set_t cpus;

    /* EINVAL: there are more. */
    if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0 || errno == EINVAL)
        return TP_OK;
    return tpb_fail_errno(error, errno, "hwloc cannot read this machine's "
                          "topology, as the kernel does not say which cpus "
                          "there are (does a seccomp profile forbid "
                          "sched_getaffinity?); TP_TOPOLOGY=FILE.xml can "
                          "replace it");
}

tp_status tpt_discover_machine(hwloc_topology_t *hwloc,
                               struct tpb_error *error)
{
    tp_status status = discover_may_ask(error);
    hwloc_topology_t fresh;

    if (status != TP_OK)
        return status;
    fresh = discover_new(false);
    if (fresh == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    if (hwloc_topology_load(fresh) != 0) {
        int code = errno;

        hwloc_topology_destroy(fresh);
        return tpb_fail_errno(error, code, "hwloc %s cannot read this "
                              "machine's topology; TP_TOPOLOGY=FILE.xml can "
                              "replace it", HWLOC_VERSION);
    }
    *hwloc = fresh;
    return TP_OK;
}

/* A device such as /dev/zero has no end, and a machine less memory. */
static tp_status discover_readable(const char *path, struct tpb_error *error)
{
    struct stat found;

    if (stat(path, &found) == 0
        && (S_ISCHR(found.st_mode) || S_ISBLK(found.st_mode)
            || (S_ISREG(found.st_mode) && found.st_size >= INT32_MAX)))
        return tpb_fail(error, TP_ERR_INVALID, "%s is not a topology file but "
                        "a device, or far too big; `lstopo FILE.xml` writes "
                        "one", path);
    return TP_OK;
}

/* What is wrong with what hwloc did not read, and what helps. */
static void discover_refuse(const char *path, const char *xml,
                            struct tpb_error *error)
{
    static const char mark[] = "<topology version=\"";
    const char *found = strstr(xml, mark);

    if (found != NULL
        && strtol(found + strlen(mark), NULL, 10) > HWLOC_API_VERSION >> 16)
        tpb_fail(error, TP_ERR_INVALID, "%s is in a format newer than that of "
                 "hwloc %s; write it with the lstopo of that version", path,
                 HWLOC_VERSION);
    else
        tpb_fail(error, TP_ERR_INVALID, "%s is not a topology that hwloc %s "
                 "can read; write it with `lstopo FILE.xml` on the machine "
                 "meant", path, HWLOC_VERSION);
}

/* Without cpus, as some tools leave it, there is no place for a rank. */
static tp_status discover_cpus(const char *path, hwloc_topology_t hwloc,
                               struct tpb_error *error)
{
    if (hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_PU) > 0)
        return TP_OK;
    return tpb_fail(error, TP_ERR_INVALID, "the topology file %s has no cpus; "
                    "write it with `lstopo FILE.xml` on the machine meant",
                    path);
}

/* The file is read here and not by hwloc, for which "-" is standard input and
 * a directory the same as garbage. */
static tp_status discover_file(const char *path, hwloc_topology_t *hwloc,
                               struct tpb_error *error)
{
    hwloc_topology_t fresh;
    tp_status status = discover_readable(path, error);
    size_t length = 0;
    char *xml;

    if (status != TP_OK)
        return status;
    xml = tpb_read_file(path, &length);
    if (xml == NULL && errno != ENOMEM) {
        tpb_fail_errno(error, errno, "cannot read the topology file %s", path);
        return TP_ERR_INVALID;
    }
    fresh = xml != NULL ? discover_new(true) : NULL;
    if (fresh == NULL) {
        tpb_free(xml);
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    }
    if (length >= INT32_MAX
        || hwloc_topology_set_xmlbuffer(fresh, xml, (int)length + 1) != 0
        || hwloc_topology_load(fresh) != 0) {
        hwloc_topology_destroy(fresh);
        discover_refuse(path, xml, error);
        tpb_free(xml);
        return TP_ERR_INVALID;
    }
    tpb_free(xml);
    status = discover_cpus(path, fresh, error);
    if (status == TP_OK)
        *hwloc = fresh;
    else
        hwloc_topology_destroy(fresh);
    return status;
}

/* ---- load and free ----------------------------------------------------- */

static struct tpt_topology *discover_object(const char *source)
{
    struct tpt_topology *topology = tpb_zalloc(sizeof(*topology));

    if (topology == NULL)
        return NULL;
    topology->source = tpb_copy_string(source);
    if (topology->source != NULL)
        return topology;
    tpt_topology_free(topology);
    return NULL;
}

/* Takes over `hwloc`, whatever comes of it. */
static tp_status discover_wrap(hwloc_topology_t hwloc, const char *source,
                               struct tpt_topology **result,
                               struct tpb_error *error)
{
    struct tpt_topology *topology = discover_object(source);

    if (topology == NULL) {
        hwloc_topology_destroy(hwloc);
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    }
    topology->hwloc = hwloc;
    topology->table = tpt_table_new(hwloc);
    if (topology->table == NULL) {
        tpt_topology_free(topology);
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    }
    *result = topology;
    return TP_OK;
}

/* Maps what the launcher shared; anything but TP_OK says why not. */
static tp_status discover_shared(const char *shared,
                                 struct tpt_topology **result,
                                 struct tpb_error *error)
{
    struct tpt_topology *topology = discover_object("the launcher, shared");
    tp_status status;

    if (topology != NULL)
        topology->shared = tpb_copy_string(shared);
    if (topology == NULL || topology->shared == NULL)
        status = tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    else
        status = tpt_shared_map(shared, &topology->table, &topology->mapped,
                                error);
    if (status != TP_OK) {
        tpt_topology_free(topology);
        return status;
    }
    tpt_network_find(topology);
    *result = topology;
    return TP_OK;
}

tp_status tpt_topology_load_file(const char *path,
                                 struct tpt_topology **topology,
                                 struct tpb_error *error)
{
    hwloc_topology_t hwloc = NULL;
    tp_status status = discover_file(path, &hwloc, error);

    if (status != TP_OK)
        return status;
    return discover_wrap(hwloc, path, topology, error);
}

tp_status tpt_topology_load(const struct tpb_settings *settings,
                            struct tpt_topology **topology,
                            struct tpb_error *error)
{
    const char *shared = settings->text[TPB_SET_TOPOLOGY_SHARED];
    const char *file = settings->text[TPB_SET_TOPOLOGY];
    struct tpb_error reason = { "" };
    hwloc_topology_t hwloc = NULL;
    tp_status status;

    if (*shared != '\0') {
        if (discover_shared(shared, topology, &reason) == TP_OK)
            return TP_OK;
        tpb_debug("TP_TOPOLOGY_SHARED=%s is not used: %s", shared,
                  reason.text);
    }
    if (*file != '\0') {
        status = tpt_topology_load_file(file, topology, &reason);
        if (status == TP_OK)
            return TP_OK;
        return tpb_fail(error, status, "TP_TOPOLOGY: %.480s", reason.text);
    }
    status = tpt_discover_machine(&hwloc, error);
    if (status != TP_OK)
        return status;
    return discover_wrap(hwloc, hwloc_topology_is_thissystem(hwloc)
                         ? "this machine" : "hwloc's own variables, HWLOC_*",
                         topology, error);
}

void tpt_topology_free(struct tpt_topology *topology)
{
    if (topology == NULL)
        return;
    if (topology->hwloc != NULL)
        hwloc_topology_destroy(topology->hwloc);
    if (topology->mapped > 0)
        munmap(topology->table, topology->mapped);
    else
        tpb_free(topology->table);
    tpb_free(topology->told);
    tpb_free(topology->shared);
    tpb_free(topology->source);
    tpb_free(topology);
}

void *tpt_topology_handle(struct tpt_topology *topology)
{
    struct tpb_error reason = { "" };

    if (topology->hwloc != NULL)
        return topology->hwloc;
    if (tpt_shared_adopt(topology->shared, &topology->hwloc, &reason) == TP_OK)
        return topology->hwloc;
    tpb_debug("TP_TOPOLOGY_SHARED=%s cannot be mapped whole: %s",
              topology->shared, reason.text);
    if (topology->table->this_machine)
        (void)tpt_discover_machine(&topology->hwloc, &reason);
    return topology->hwloc;
}

const char *tpt_topology_source(const struct tpt_topology *topology)
{
    return topology->source;
}

void tpt_topology_shape(struct tpt_topology *topology, struct tpt_shape *shape)
{
    const struct tpt_table *table = topology->table;

    *shape = (struct tpt_shape) {
        .hash = table->hash, .memory = table->memory,
        .packages = table->packages, .numas = table->numas,
        .l3s = table->l3s, .cores = table->cores, .cpus = table->cpus,
        .this_machine = table->this_machine != 0,
    };
}

void tpt_topology_place(struct tpt_topology *topology, struct tpt_place *place)
{
    tpt_table_place(topology->table, place);
}

bool tpt_topology_place_core(struct tpt_topology *topology, uint32_t index,
                             struct tpt_place *place)
{
    return tpt_table_place_core(topology->table, index, place);
}
