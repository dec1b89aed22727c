/* SPDX-License-Identifier: BSD-3-Clause */
/* The drawing of a machine: packages, memory and L3 caches as a tree, with the
 * cores counted below each leaf. */
#include "config.h"

#include <stdio.h>

#include "topology/private.h"

static bool describe_shown(hwloc_obj_t object)
{
    return object->type == HWLOC_OBJ_PACKAGE
           || object->type == HWLOC_OBJ_L3CACHE
           || object->memory_arity > 0;
}

static bool describe_shown_below(hwloc_obj_t object)
{
    for (hwloc_obj_t child = object->first_child; child != NULL;
         child = child->next_sibling)
        if (describe_shown(child) || describe_shown_below(child))
            return true;
    return false;
}

static void describe_size(uint64_t bytes, struct tpb_text *text)
{
    if (bytes >= UINT64_C(10) << 30)
        tpb_text_add(text, "%llu GiB", (unsigned long long)(bytes >> 30));
    else if (bytes >= UINT64_C(1) << 20)
        tpb_text_add(text, "%llu MiB", (unsigned long long)(bytes >> 20));
    else
        tpb_text_add(text, "%llu KiB", (unsigned long long)(bytes >> 10));
}

static void describe_plural(unsigned count, const char *noun,
                            struct tpb_text *text)
{
    tpb_text_add(text, "%u %s%s", count, noun, count == 1 ? "" : "s");
}

/* Without the blanks with which processors fill their name up. */
static int describe_length(const char *model)
{
    size_t length = strlen(model);

    while (length > 0 && model[length - 1] == ' ')
        length--;
    return (int)length;
}

static void describe_name(hwloc_obj_t object, struct tpb_text *text)
{
    const char *model = hwloc_obj_get_info_by_name(object, "CPUModel");

    if (object->type == HWLOC_OBJ_PACKAGE) {
        tpb_text_add(text, "package %u", object->logical_index);
        if (model != NULL)
            tpb_text_add(text, " (%.*s)", describe_length(model), model);
    } else if (object->type == HWLOC_OBJ_L3CACHE) {
        tpb_text_add(text, "L3 cache %u, ", object->logical_index);
        describe_size(object->attr->cache.size, text);
    } else if (object->type == HWLOC_OBJ_MACHINE) {
        tpb_text_add(text, "machine");
    } else {
        tpb_text_add(text, "part %u", object->logical_index);
    }
}

static void describe_memory(hwloc_obj_t object, struct tpb_text *text)
{
    for (hwloc_obj_t child = object->memory_first_child; child != NULL;
         child = child->next_sibling) {
        hwloc_obj_t node = child;

        /* A memory-side cache has the node below it. */
        while (node != NULL && node->type != HWLOC_OBJ_NUMANODE)
            node = node->memory_first_child;
        if (node == NULL)
            continue;
        tpb_text_add(text, ", NUMA node %u", node->logical_index);
        /* Recorded machines may hold none. */
        if (node->attr->numanode.local_memory > 0) {
            tpb_text_add(text, " ");
            describe_size(node->attr->numanode.local_memory, text);
        }
    }
}

static void describe_cpus(hwloc_topology_t hwloc, hwloc_obj_t object,
                          struct tpb_text *text)
{
    int cores = hwloc_get_nbobjs_inside_cpuset_by_type(hwloc, object->cpuset,
                                                       HWLOC_OBJ_CORE);
    char list[4096] = "";

    hwloc_bitmap_list_snprintf(list, sizeof(list), object->cpuset);
    tpb_text_add(text, ": ");
    if (cores > 0) {
        describe_plural((unsigned)cores, "core", text);
        tpb_text_add(text, ", ");
    }
    describe_plural((unsigned)hwloc_bitmap_weight(object->cpuset), "cpu",
                    text);
    tpb_text_add(text, " (%s)", list);
}

static void describe_object(hwloc_topology_t hwloc, hwloc_obj_t object,
                            int indent, struct tpb_text *text)
{
    if (describe_shown(object)) {
        tpb_text_add(text, "%*s", indent, "");
        describe_name(object, text);
        describe_memory(object, text);
        if (!describe_shown_below(object))
            describe_cpus(hwloc, object, text);
        tpb_text_add(text, "\n");
        indent += 2;
    }
    for (hwloc_obj_t child = object->first_child; child != NULL;
         child = child->next_sibling)
        describe_object(hwloc, child, indent, text);
}

void tpt_topology_describe(struct tpt_topology *topology,
                           struct tpb_text *text)
{
    hwloc_topology_t hwloc = tpt_topology_handle(topology);
    struct tpt_shape shape;

    tpt_topology_shape(topology, &shape);
    tpb_text_add(text, "from %s: ", tpt_topology_source(topology));
    describe_plural(shape.packages, "package", text);
    tpb_text_add(text, ", ");
    describe_plural(shape.numas, "NUMA node", text);
    tpb_text_add(text, ", ");
    describe_plural(shape.cores, "core", text);
    tpb_text_add(text, ", ");
    describe_plural(shape.cpus, "cpu", text);
    if (shape.memory > 0) {
        tpb_text_add(text, ", ");
        describe_size(shape.memory, text);
    }
    tpb_text_add(text, "\n");
    if (hwloc != NULL)
        describe_object(hwloc, hwloc_get_root_obj(hwloc), 2, text);
}
