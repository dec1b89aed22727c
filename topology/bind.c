/* SPDX-License-Identifier: BSD-3-Clause */
/* Which rank on which cpus. */
#include "config.h"

#include <errno.h>
#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <limits.h>
#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "topology/bind.h"

const char *tpt_bind_name(enum tpt_bind bind)
{
    static const char *const names[] = { "default", "core", "l3", "numa",
                                         "package", "none" };

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

/* ---- who gets what ------------------------------------------------------ */

/* One core that may be used, and how often it is already. */
struct bind_core {
    hwloc_obj_t object;
    hwloc_obj_t unit;              /* of those dealt to; NULL: in none */
    unsigned part;                 /* the unit's number; BIND_APART */
    unsigned ranks;
    bool taken;                    /* by another job */
};

#define BIND_APART UINT_MAX

struct bind_state {
    hwloc_topology_t topology;
    const struct tpt_bind_wish *wish;
    struct tpt_bind_plan *plan;
    hwloc_cpuset_t allowed;
    struct bind_core *cores;
    struct bind_core **chosen;     /* by rank */
    unsigned count, free;          /* cores, and those not taken */
    unsigned parts;                /* dealt to; 0: cores in their order */
    unsigned next;                 /* whose turn it is */
    bool blocks;                   /* neighbours together, not apart */
    int owner[TPT_GPUS];           /* of each GPU */
    hwloc_cpuset_t near, cpus;     /* of the rank in hand */
};

static bool bind_is_taken(const struct tpt_bind_wish *wish, hwloc_obj_t core)
{
    int cpu = hwloc_bitmap_first(core->cpuset);

    return wish->taken != NULL && cpu >= 0
           && CPU_ISSET_S(cpu, wish->taken_size, wish->taken);
}

/* Machines exist where hwloc sees cpus but no cores. */
static bool bind_find_cores(struct bind_state *state, hwloc_obj_type_t type)
{
    int all = hwloc_get_nbobjs_by_type(state->topology, type);
    hwloc_obj_t object = NULL;

    if (all <= 0)
        return type == HWLOC_OBJ_CORE
               && bind_find_cores(state, HWLOC_OBJ_PU);
    state->cores = tpb_array((size_t)all, sizeof(state->cores[0]));
    if (state->cores == NULL)
        return false;
    while ((object = hwloc_get_next_obj_by_type(state->topology, type,
                                                object))) {
        struct bind_core *core = &state->cores[state->count];

        if (!hwloc_bitmap_intersects(object->cpuset, state->allowed))
            continue;
        *core = (struct bind_core){
            .object = object, .part = BIND_APART,
            .taken = bind_is_taken(state->wish, object)
        };
        state->free += !core->taken;
        state->count++;
    }
    return true;
}

/* By enum tpt_bind and enum tpt_map. */
static const hwloc_obj_type_t bind_types[] = {
    HWLOC_OBJ_MACHINE, HWLOC_OBJ_CORE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_NUMANODE,
    HWLOC_OBJ_PACKAGE
};

/* What the core is part of; NULL: of nothing of that type.  Of several NUMA
 * nodes the first, as in the table of places: more memory at the same cpus
 * (high bandwidth memory), or for several nodes (CXL), is behind it. */
static hwloc_obj_t bind_above(const struct bind_state *state,
                              hwloc_obj_type_t type, hwloc_obj_t core)
{
    hwloc_obj_t object = NULL;

    if (type != HWLOC_OBJ_NUMANODE)
        return hwloc_get_ancestor_obj_by_type(state->topology, type, core);
    while ((object = hwloc_get_next_obj_by_type(state->topology, type,
                                                object)))
        if (hwloc_bitmap_isincluded(core->cpuset, object->cpuset))
            break;
    return object;
}

/* The same, or the next bigger thing that there is. */
static hwloc_obj_t bind_around(const struct bind_state *state,
                               enum tpt_bind bind, hwloc_obj_t core)
{
    if (bind == TPT_BIND_CORE)
        return core;
    for (int level = (int)bind; level <= TPT_BIND_PACKAGE; level++) {
        hwloc_obj_t object = bind_above(state, bind_types[level], core);

        if (object != NULL)
            return object;
    }
    return hwloc_get_root_obj(state->topology);
}

/* Numbers the parts of the machine that ranks are dealt to: caches, NUMA nodes
 * or packages; where there are none, the next bigger. */
static void bind_number(struct bind_state *state, int level)
{
    while (level <= TPT_BIND_PACKAGE
           && hwloc_get_nbobjs_by_type(state->topology, bind_types[level]) <= 0)
        level++;
    for (unsigned i = 0; level <= TPT_BIND_PACKAGE && i < state->count; i++) {
        struct bind_core *core = &state->cores[i];

        core->unit = bind_above(state, bind_types[level], core->object);
        if (core->unit == NULL)
            continue;
        for (unsigned j = i; j-- > 0 && core->part == BIND_APART;)
            if (state->cores[j].unit == core->unit)
                core->part = state->cores[j].part;
        if (core->part == BIND_APART)
            core->part = state->parts++;
    }
}

/* The cpus near to a rank's GPUs; false if it has none, or nobody knows. */
static bool bind_near_gpus(struct bind_state *state, int rank)
{
    const struct tpt_gpus *there = state->wish->there;
    bool known = false;

    hwloc_bitmap_zero(state->near);
    for (int g = 0; there != NULL && g < there->count; g++)
        if (state->owner[g] == rank && there->list[g].near[0] != '\0'
            && hwloc_bitmap_list_sscanf(state->cpus,
                                        there->list[g].near) == 0) {
            hwloc_bitmap_or(state->near, state->near, state->cpus);
            known = true;
        }
    return known && hwloc_bitmap_intersects(state->near, state->allowed);
}

/* How little a core suits: whether it is far from the GPUs (`near` is not
 * NULL), or how many parts have their turn before its own. */
static unsigned bind_far(const struct bind_state *state,
                         const struct bind_core *core,
                         hwloc_const_cpuset_t near)
{
    if (near != NULL)
        return !hwloc_bitmap_intersects(core->object->cpuset, near);
    return core->part == BIND_APART ? state->parts
           : (core->part + state->parts - state->next) % state->parts;
}

/*
 * Of the cores that fewest ranks have, the first of those that suit best; cores
 * of other jobs only when nothing else is left.  So a part that is full, as
 * where it has fewer cores than others, is passed over.
 */
static struct bind_core *bind_least(struct bind_state *state,
                                    hwloc_const_cpuset_t near)
{
    struct bind_core *best = &state->cores[0];
    unsigned least = bind_far(state, best, near);

    for (unsigned i = 1; i < state->count; i++) {
        struct bind_core *core = &state->cores[i];
        unsigned far;

        if (core->taken > best->taken
            || (core->taken == best->taken && core->ranks > best->ranks))
            continue;
        far = bind_far(state, core, near);
        if (core->taken == best->taken && core->ranks == best->ranks
            && far >= least)
            continue;
        best = core;
        least = far;
    }
    best->ranks++;
    if (near == NULL && best->part != BIND_APART)
        state->next = (best->part + 1) % state->parts;
    return best;
}

static int bind_compare(const void *a, const void *b)
{
    const struct bind_core *x = *(struct bind_core *const *)a;
    const struct bind_core *y = *(struct bind_core *const *)b;

    if (x->part != y->part)
        return x->part < y->part ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Ranks with GPUs choose first: the others can be anywhere.  False if memory
 * lacks. */
static bool bind_choose(struct bind_state *state)
{
    size_t ranks = (size_t)state->plan->count, count = 0, next = 0;
    struct bind_core **dealt = tpb_array(ranks, sizeof(dealt[0]));

    if (dealt == NULL)
        return false;
    for (size_t i = 0; i < ranks; i++)
        if (bind_near_gpus(state, (int)i))
            state->chosen[i] = bind_least(state, state->near);
    for (size_t i = 0; i < ranks; i++)
        if (state->chosen[i] == NULL)
            dealt[count++] = bind_least(state, NULL);
    if (state->blocks)
        qsort(dealt, count, sizeof(dealt[0]), bind_compare);
    for (size_t i = 0; i < ranks; i++)
        if (state->chosen[i] == NULL)
            state->chosen[i] = dealt[next++];
    tpb_free(dealt);
    return true;
}

/* ---- the plan ----------------------------------------------------------- */

/* "package 1, numa 2, core 5" */
static char *bind_where(const struct bind_state *state)
{
    static const struct { hwloc_obj_type_t type; const char *name; }
    levels[] = {
        { HWLOC_OBJ_PACKAGE, "package" }, { HWLOC_OBJ_NUMANODE, "numa" },
        { HWLOC_OBJ_L3CACHE, "l3" }, { HWLOC_OBJ_CORE, "core" },
    };
    struct tpb_text text = { 0 };

    for (size_t i = 0; i < TPB_COUNT(levels); i++) {
        hwloc_obj_t object = NULL;

        while ((object = hwloc_get_next_obj_by_type(state->topology,
                                                    levels[i].type, object)))
            if (hwloc_bitmap_isincluded(state->cpus, object->cpuset))
                tpb_text_add(&text, "%s%s %u", text.length > 0 ? ", " : "",
                             levels[i].name, object->logical_index);
    }
    if (text.length == 0)
        tpb_text_add(&text, "anywhere");
    if (text.failed)
        tpb_text_fini(&text);
    return text.text;
}

/* Its CUDA_VISIBLE_DEVICES; NULL if it has no GPU, or no memory. */
static char *bind_gpus(const struct bind_state *state, int rank)
{
    struct tpb_text text = { 0 };

    for (int g = 0; state->wish->there != NULL
         && g < state->wish->there->count; g++)
        if (state->owner[g] == rank)
            tpb_text_add(&text, "%s%s", text.length > 0 ? "," : "",
                         state->wish->there->list[g].visible);
    if (text.failed)
        tpb_text_fini(&text);
    return text.text;
}

/* False if memory lacks. */
static bool bind_place(struct bind_state *state, int rank)
{
    struct tpt_bind_place *place = &state->plan->places[rank];
    bool bound = state->plan->bind != TPT_BIND_NONE;
    hwloc_obj_t core = state->chosen[rank]->object;
    hwloc_obj_t object = NULL;
    char *list = NULL;

    place->core = -1;
    if (bound)
        object = bind_around(state, state->plan->bind, core);
    if (object != NULL)
        hwloc_bitmap_and(state->cpus, state->allowed, object->cpuset);
    else
        hwloc_bitmap_copy(state->cpus, state->allowed);
    if (state->plan->bind == TPT_BIND_CORE)
        place->core = hwloc_bitmap_first(core->cpuset);
    if (hwloc_bitmap_list_asprintf(&list, state->cpus) >= 0)
        place->list = tpb_copy_string(list);
    free(list);
    place->locality = bind_locality(state->topology, state->cpus);
    place->where = bind_where(state);
    place->gpus = bind_gpus(state, rank);
    if (object != NULL)
        place->cpus = bind_set(state->topology, state->cpus,
                               state->plan->cpus_size);
    return place->list != NULL && place->locality != NULL
           && place->where != NULL && (object == NULL || place->cpus != NULL)
           && (place->gpus != NULL || state->wish->gpus == NULL
               || state->wish->gpus[rank] == 0);
}

/* What was wished, made concrete. */
static void bind_settle(struct bind_state *state)
{
    struct tpt_bind_plan *plan = state->plan;
    unsigned ranks = (unsigned)plan->count;

    plan->allowed_cores = state->count;
    plan->bind = state->wish->bind;
    if (plan->bind == TPT_BIND_DEFAULT) {
        plan->bind = ranks <= state->free ? TPT_BIND_CORE : TPT_BIND_NONE;
        plan->yielded = plan->bind == TPT_BIND_NONE && ranks <= state->count;
    }
    if (state->wish->map > TPT_MAP_CORE)
        bind_number(state, (int)state->wish->map);
    state->blocks = state->wish->map == TPT_MAP_DEFAULT
                    && plan->bind > TPT_BIND_CORE
                    && plan->bind < TPT_BIND_NONE;
    if (state->blocks)
        bind_number(state, (int)plan->bind);
}

static bool bind_places(struct bind_state *state)
{
    struct tpt_bind_plan *plan = state->plan;
    int last = hwloc_bitmap_last(state->allowed);

    plan->cpus_size = CPU_ALLOC_SIZE(last < 0 ? 1 : last + 1);
    plan->places = tpb_array((size_t)state->wish->ranks,
                             sizeof(plan->places[0]));
    plan->count = plan->places != NULL ? state->wish->ranks : 0;
    state->chosen = tpb_array((size_t)state->wish->ranks,
                              sizeof(state->chosen[0]));
    state->near = hwloc_bitmap_alloc();
    state->cpus = hwloc_bitmap_alloc();
    if (plan->places == NULL || state->chosen == NULL || state->near == NULL
        || state->cpus == NULL || !bind_find_cores(state, HWLOC_OBJ_CORE)
        || state->count == 0)
        return false;
    bind_settle(state);
    if (!bind_choose(state))
        return false;
    for (int i = 0; i < plan->count; i++)
        if (!bind_place(state, i))
            return false;
    return true;
}

tp_status tpt_bind_plan(struct tpt_topology *topology,
                        const struct tpt_bind_wish *wish,
                        struct tpt_bind_plan *plan, struct tpb_error *error)
{
    static struct tpt_gpus nothing;    /* large: not one of zeros in the file */
    struct bind_state state = {
        .topology = tpt_topology_handle(topology), .wish = wish, .plan = plan,
    };
    tp_status status = TP_OK;
    bool good = false;

    memset(plan, 0, sizeof(*plan));
    memset(state.owner, -1, sizeof(state.owner));
    if (wish->gpus != NULL)
        status = tpt_gpus_assign(wish->there != NULL ? wish->there : &nothing,
                                 wish->gpus, wish->ranks, state.owner, error);
    if (status != TP_OK)
        return status;
    if (state.topology != NULL)
        state.allowed = bind_allowed(state.topology);
    if (state.allowed != NULL) {
        plan->here = hwloc_topology_is_thissystem(state.topology);
        good = bind_places(&state);
    }
    hwloc_bitmap_free(state.allowed);
    hwloc_bitmap_free(state.near);
    hwloc_bitmap_free(state.cpus);
    tpb_free(state.cores);
    tpb_free(state.chosen);
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
        tpb_free(plan->places[i].where);
        tpb_free(plan->places[i].gpus);
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
