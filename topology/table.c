/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The part of a topology that every rank needs, as a flat table: which core,
 * caches, NUMA node and package each cpu belongs to.  A rank that maps the
 * launcher's table does without hwloc, whose initialisation alone loads
 * plugins for a millisecond or two.
 */
#include "config.h"

#include <sched.h>

#include "runtime/base/alloc.h"
#include "topology/private.h"

#define TABLE_MAGIC 0x0144504f54705401u    /* changes with the layout */

enum { TABLE_CPUS_MAX = 1 << 16, TABLE_AFFINITY_CPUS = 8192 };

_Static_assert(sizeof(struct tpt_table) == 64, "shared between processes");
_Static_assert(sizeof(struct tpt_table_cpu) == 24, "shared between processes");

/* ---- making ------------------------------------------------------------ */

static uint64_t table_hash_object(uint64_t hash, hwloc_obj_t object)
{
    uint32_t facts[3] = { (uint32_t)object->type, object->os_index, 0 };
    const char *model = hwloc_obj_get_info_by_name(object, "CPUModel");

    if (hwloc_obj_type_is_cache(object->type))
        facts[2] = (uint32_t)(object->attr->cache.size >> 10);
    hash = tpb_hash(hash, facts, sizeof(facts));
    if (model != NULL)
        hash = tpb_hash(hash, model, strlen(model));
    for (hwloc_obj_t child = object->memory_first_child; child != NULL;
         child = child->next_sibling)
        hash = table_hash_object(hash, child);
    for (hwloc_obj_t child = object->first_child; child != NULL;
         child = child->next_sibling)
        hash = table_hash_object(hash, child);
    /* An end, so that the shape of the tree counts. */
    return tpb_hash(hash, "", 1);
}

static uint32_t table_count(hwloc_topology_t hwloc, hwloc_obj_type_t type)
{
    int count = hwloc_get_nbobjs_by_type(hwloc, type);

    return count > 0 ? (uint32_t)count : 0;
}

/* The logical index of the object of that type that holds the cpu. */
static int32_t table_above(hwloc_topology_t hwloc, hwloc_obj_type_t type,
                           hwloc_obj_t cpu)
{
    hwloc_obj_t object = hwloc_get_ancestor_obj_by_type(hwloc, type, cpu);

    return object != NULL ? (int32_t)object->logical_index : -1;
}

/* NUMA nodes are beside the tree.  Of several, as with high bandwidth memory,
 * the first one stands for all. */
static int32_t table_numa_above(hwloc_topology_t hwloc, hwloc_obj_t cpu)
{
    hwloc_obj_t node = NULL;

    while ((node = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_NUMANODE, node))
           != NULL)
        if (hwloc_bitmap_isset(node->cpuset, cpu->os_index))
            return (int32_t)node->logical_index;
    return -1;
}

static size_t table_size(uint32_t cpus, uint32_t numas)
{
    return sizeof(struct tpt_table) + cpus * sizeof(struct tpt_table_cpu)
           + numas * sizeof(int32_t);
}

static const int32_t *table_nodes(const struct tpt_table *table)
{
    return (const int32_t *)(const void *)&table->cpu[table->cpus];
}

static void table_fill(hwloc_topology_t hwloc, struct tpt_table *table)
{
    int32_t *nodes = (int32_t *)(void *)&table->cpu[table->cpus];

    for (uint32_t i = 0; i < table->cpus; i++) {
        hwloc_obj_t cpu = hwloc_get_obj_by_type(hwloc, HWLOC_OBJ_PU, i);

        table->cpu[i] = (struct tpt_table_cpu) {
            .cpu = (int32_t)cpu->os_index,
            .core = table_above(hwloc, HWLOC_OBJ_CORE, cpu),
            .l2 = table_above(hwloc, HWLOC_OBJ_L2CACHE, cpu),
            .l3 = table_above(hwloc, HWLOC_OBJ_L3CACHE, cpu),
            .numa = table_numa_above(hwloc, cpu),
            .package = table_above(hwloc, HWLOC_OBJ_PACKAGE, cpu),
        };
    }
    for (uint32_t i = 0; i < table->numas; i++)
        nodes[i] = (int32_t)hwloc_get_obj_by_type(hwloc, HWLOC_OBJ_NUMANODE,
                                                  i)->os_index;
}

static uint64_t table_checksum(const struct tpt_table *table)
{
    size_t start = offsetof(struct tpt_table, hash);

    return tpb_hash(TPB_HASH_INIT, (const char *)table + start,
                    table->length - start);
}

struct tpt_table *tpt_table_new(hwloc_topology_t hwloc)
{
    uint32_t cpus = table_count(hwloc, HWLOC_OBJ_PU);
    uint32_t numas = table_count(hwloc, HWLOC_OBJ_NUMANODE);
    size_t length = table_size(cpus, numas);
    struct tpt_table *table = tpb_zalloc(length);

    if (table == NULL)
        return NULL;
    table->magic = TABLE_MAGIC;
    table->length = (uint32_t)length;
    table->hash = table_hash_object(TPB_HASH_INIT, hwloc_get_root_obj(hwloc));
    table->memory = hwloc_get_root_obj(hwloc)->total_memory;
    table->packages = table_count(hwloc, HWLOC_OBJ_PACKAGE);
    table->l3s = table_count(hwloc, HWLOC_OBJ_L3CACHE);
    table->cores = table_count(hwloc, HWLOC_OBJ_CORE);
    table->numas = numas;
    table->cpus = cpus;
    table->this_machine = hwloc_topology_is_thissystem(hwloc) != 0;
    table_fill(hwloc, table);
    table->checksum = table_checksum(table);
    return table;
}

bool tpt_table_valid(const struct tpt_table *table, size_t available)
{
    return available >= sizeof(*table) && table->magic == TABLE_MAGIC
           && table->cpus > 0 && table->cpus <= TABLE_CPUS_MAX
           && table->numas <= TABLE_CPUS_MAX
           && table->length == table_size(table->cpus, table->numas)
           && table->length <= available
           && table->checksum == table_checksum(table);
}

/* ---- places ------------------------------------------------------------ */

/* What the cpus have in common: the value, or -1 for several. */
static void table_meet(int32_t *common, int32_t value, bool first)
{
    if (first)
        *common = value;
    else if (*common != value)
        *common = -1;
}

static void table_include(struct tpt_place *place,
                          const struct tpt_table_cpu *cpu)
{
    bool first = place->cpus++ == 0;

    table_meet(&place->core, cpu->core, first);
    table_meet(&place->l2, cpu->l2, first);
    table_meet(&place->l3, cpu->l3, first);
    table_meet(&place->numa, cpu->numa, first);
    table_meet(&place->package, cpu->package, first);
}

static void table_begin(const struct tpt_table *table, struct tpt_place *place)
{
    *place = (struct tpt_place) {
        .topology = table->hash, .machine_cpus = table->cpus
    };
}

/* Adds the cpus that the calling thread may run on. */
static void table_include_mine(const struct tpt_table *table,
                               struct tpt_place *place)
{
    uint64_t set[TABLE_AFFINITY_CPUS / 64] = { 0 };

    if (sched_getaffinity(0, sizeof(set), (cpu_set_t *)(void *)set) < 0)
        return;
    for (uint32_t i = 0; i < table->cpus; i++) {
        uint32_t cpu = (uint32_t)table->cpu[i].cpu;

        if (cpu < TABLE_AFFINITY_CPUS && CPU_ISSET_S(
                cpu, sizeof(set), (cpu_set_t *)(void *)set))
            table_include(place, &table->cpu[i]);
    }
}

void tpt_table_place(const struct tpt_table *table, struct tpt_place *place)
{
    table_begin(table, place);
    if (table->this_machine)
        table_include_mine(table, place);
    if (place->cpus > 0)
        return;
    /* On a recorded machine, or bound to cpus that are not in the table:
     * anywhere. */
    for (uint32_t i = 0; i < table->cpus; i++)
        table_include(place, &table->cpu[i]);
}

bool tpt_table_place_core(const struct tpt_table *table, uint32_t index,
                          struct tpt_place *place)
{
    struct tpt_place found;

    table_begin(table, &found);
    for (uint32_t i = 0; i < table->cpus; i++)
        if (table->cores > 0 ? table->cpu[i].core == (int32_t)index
            : i == index)
            table_include(&found, &table->cpu[i]);
    if (found.cpus == 0)
        return false;
    *place = found;
    return true;
}

int32_t tpt_table_numa(const struct tpt_table *table, unsigned os_index)
{
    for (uint32_t i = 0; i < table->numas; i++)
        if (table_nodes(table)[i] == (int32_t)os_index)
            return (int32_t)i;
    return -1;
}

int32_t tpt_table_numa_around(const struct tpt_table *table,
                              hwloc_const_bitmap_t cpus)
{
    int32_t numa = -1;
    bool first = true;

    for (uint32_t i = 0; i < table->cpus; i++)
        if (hwloc_bitmap_isset(cpus, (unsigned)table->cpu[i].cpu)) {
            table_meet(&numa, table->cpu[i].numa, first);
            first = false;
        }
    return numa;
}
