/* SPDX-License-Identifier: BSD-3-Clause */
/* Which rank on which cpus. */
#include "config.h"

#include <errno.h>
#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "topology/bind.h"

const char *tpt_bind_name(enum tpt_bind bind)
{
    static const char *const names[] = { "default", "none", "core",
                                         "package" };

    return names[bind];
}

/* The cpus that both the machine and our own affinity allow; NULL if memory
 * lacks.  The caller frees it. */
static hwloc_cpuset_t bind_allowed(hwloc_topology_t topology)
{
    hwloc_cpuset_t allowed =
        hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(topology));
    hwloc_cpuset_t own = hwloc_bitmap_alloc();

    if (allowed != NULL && own != NULL
        && hwloc_topology_is_thissystem(topology)
        && hwloc_get_cpubind(topology, own, HWLOC_CPUBIND_THREAD) == 0
        && hwloc_bitmap_intersects(allowed, own))
        hwloc_bitmap_and(allowed, allowed, own);
    hwloc_bitmap_free(own);
    return allowed;
}

/* The n-th object of that type that has any allowed cpu; NULL if there are
 * not so many.  *count gets how many there are, if n is past the end. */
static hwloc_obj_t bind_object(hwloc_topology_t topology,
                               hwloc_const_cpuset_t allowed,
                               hwloc_obj_type_t type, unsigned n,
                               unsigned *count)
{
    hwloc_obj_t object = NULL;
    unsigned seen = 0;

    while ((object = hwloc_get_next_obj_by_type(topology, type, object))) {
        if (!hwloc_bitmap_intersects(object->cpuset, allowed))
            continue;
        if (seen++ == n)
            return object;
    }
    *count = seen;
    return NULL;
}

static unsigned bind_count(hwloc_topology_t topology,
                           hwloc_const_cpuset_t allowed,
                           hwloc_obj_type_t type)
{
    unsigned count = 0;

    bind_object(topology, allowed, type, UINT32_MAX, &count);
    return count;
}

/* Machines exist where hwloc sees cpus but no cores or packages. */
static hwloc_obj_type_t bind_type(hwloc_topology_t topology,
                                  hwloc_const_cpuset_t allowed,
                                  enum tpt_bind bind)
{
    hwloc_obj_type_t type = bind == TPT_BIND_PACKAGE ? HWLOC_OBJ_PACKAGE
                                                     : HWLOC_OBJ_CORE;

    if (bind_count(topology, allowed, type) > 0)
        return type;
    return bind == TPT_BIND_PACKAGE ? HWLOC_OBJ_MACHINE : HWLOC_OBJ_PU;
}

/* Appends "CR3:" for the objects of one type that share cpus with the set. */
static void bind_level(hwloc_topology_t topology, hwloc_const_cpuset_t cpus,
                       hwloc_obj_type_t type, const char *letters,
                       struct tpb_text *text)
{
    hwloc_bitmap_t objects = hwloc_bitmap_alloc();
    hwloc_obj_t object = NULL;
    char *list = NULL;

    if (objects == NULL)
        return;
    while ((object = hwloc_get_next_obj_by_type(topology, type, object)))
        if (hwloc_bitmap_intersects(object->cpuset, cpus))
            hwloc_bitmap_set(objects, object->logical_index);
    if (!hwloc_bitmap_iszero(objects)
        && hwloc_bitmap_list_asprintf(&list, objects) >= 0)
        tpb_text_add(text, "%s%s%s", text->length > 6 ? ":" : "", letters,
                     list);
    free(list);
    hwloc_bitmap_free(objects);
}

/* PMIX_LOCALITY_STRING, in the words of libpmix's own generator (which needs
 * a topology of its own and leaves out the prefix that its reader wants). */
static char *bind_locality(hwloc_topology_t topology,
                           hwloc_const_cpuset_t cpus)
{
    static const struct { hwloc_obj_type_t type; const char *letters; }
    levels[] = {
        { HWLOC_OBJ_NUMANODE, "NM" }, { HWLOC_OBJ_PACKAGE, "SK" },
        { HWLOC_OBJ_L3CACHE, "L3" }, { HWLOC_OBJ_L2CACHE, "L2" },
        { HWLOC_OBJ_L1CACHE, "L1" }, { HWLOC_OBJ_CORE, "CR" },
        { HWLOC_OBJ_PU, "HT" },
    };
    struct tpb_text text = { 0 };

    tpb_text_add(&text, "hwloc:");
    for (size_t i = 0; i < TPB_COUNT(levels); i++)
        bind_level(topology, cpus, levels[i].type, levels[i].letters, &text);
    if (text.failed)
        tpb_text_fini(&text);
    return text.text;
}

static cpu_set_t *bind_set(hwloc_topology_t topology,
                           hwloc_const_cpuset_t cpus, size_t size)
{
    cpu_set_t *set = tpb_zalloc(size);

    if (set != NULL)
        hwloc_cpuset_to_glibc_sched_affinity(topology, cpus, set, size);
    return set;
}

/* False if memory lacks. */
static bool bind_place(hwloc_topology_t topology, hwloc_const_cpuset_t cpus,
                       bool bound, size_t size, struct tpt_bind_place *place)
{
    char *list = NULL;

    if (hwloc_bitmap_list_asprintf(&list, cpus) >= 0)
        place->list = tpb_copy_string(list);
    free(list);
    place->locality = bind_locality(topology, cpus);
    if (bound)
        place->cpus = bind_set(topology, cpus, size);
    return place->list != NULL && place->locality != NULL
           && (!bound || place->cpus != NULL);
}

/* Which object rank `i` of `ranks` gets, of `count`. */
static unsigned bind_index(enum tpt_bind bind, int i, int ranks,
                           unsigned count)
{
    if (bind == TPT_BIND_PACKAGE && (unsigned)ranks >= count)
        return (unsigned)((uint64_t)i * count / (uint64_t)ranks);
    return (unsigned)i % count;
}

static bool bind_places(hwloc_topology_t topology, hwloc_cpuset_t allowed,
                        struct tpt_bind_plan *plan)
{
    hwloc_obj_type_t type = bind_type(topology, allowed, plan->bind);
    unsigned count = bind_count(topology, allowed, type), unused;
    hwloc_cpuset_t cpus = hwloc_bitmap_alloc();
    bool bound = plan->bind != TPT_BIND_NONE, good = cpus != NULL;

    for (int i = 0; good && i < plan->count; i++) {
        hwloc_obj_t object = NULL;

        if (bound)
            object = bind_object(topology, allowed, type,
                                 bind_index(plan->bind, i, plan->count,
                                            count), &unused);
        if (object != NULL)
            hwloc_bitmap_and(cpus, allowed, object->cpuset);
        else
            hwloc_bitmap_copy(cpus, allowed);
        good = bind_place(topology, cpus, object != NULL, plan->cpus_size,
                          &plan->places[i]);
    }
    hwloc_bitmap_free(cpus);
    return good;
}

tp_status tpt_bind_plan(struct tpt_topology *topology, enum tpt_bind bind,
                        int ranks, struct tpt_bind_plan *plan,
                        struct tpb_error *error)
{
    hwloc_topology_t machine = tpt_topology_handle(topology);
    hwloc_cpuset_t allowed = bind_allowed(machine);
    int last;
    bool good = false;

    memset(plan, 0, sizeof(*plan));
    if (allowed != NULL) {
        plan->allowed_cores =
            bind_count(machine, allowed,
                       bind_type(machine, allowed, TPT_BIND_CORE));
        if (bind == TPT_BIND_DEFAULT)
            bind = (unsigned)ranks <= plan->allowed_cores ? TPT_BIND_CORE
                                                          : TPT_BIND_NONE;
        if (!hwloc_topology_is_thissystem(machine))
            bind = TPT_BIND_NONE;
        plan->bind = bind;
        last = hwloc_bitmap_last(allowed);
        plan->cpus_size = CPU_ALLOC_SIZE(last < 0 ? 1 : last + 1);
        plan->places = tpb_array((size_t)ranks, sizeof(plan->places[0]));
        plan->count = plan->places != NULL ? ranks : 0;
        good = plan->places != NULL && bind_places(machine, allowed, plan);
        hwloc_bitmap_free(allowed);
    }
    if (good)
        return TP_OK;
    tpt_bind_plan_fini(plan);
    return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
}

void tpt_bind_plan_fini(struct tpt_bind_plan *plan)
{
    for (int i = 0; i < plan->count; i++) {
        tpb_free(plan->places[i].cpus);
        tpb_free(plan->places[i].list);
        tpb_free(plan->places[i].locality);
    }
    tpb_free(plan->places);
    memset(plan, 0, sizeof(*plan));
}

void *tpt_topology_stub(void)
{
    hwloc_topology_t topology;

    if (hwloc_topology_init(&topology) < 0)
        return NULL;
    if (hwloc_topology_set_synthetic(topology, "pu:1") < 0
        || hwloc_topology_load(topology) < 0) {
        hwloc_topology_destroy(topology);
        return NULL;
    }
    return topology;
}
