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
    unsigned ranks;
    bool taken;                    /* by another job */
};

struct bind_state {
    hwloc_topology_t topology;
    const struct tpt_bind_wish *wish;
    struct tpt_bind_plan *plan;
    hwloc_cpuset_t allowed;
    struct bind_core *cores;
    unsigned count, free;          /* cores, and those not taken */
    hwloc_obj_type_t bound_to;
    hwloc_obj_type_t dealt_to;     /* MACHINE: cores in their order */
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
        *core = (struct bind_core){ object, 0,
                                    bind_is_taken(state->wish, object) };
        state->free += !core->taken;
        state->count++;
    }
    return true;
}

/* What stands for "core", "l3", "numa", "package" on this machine; where there
 * is no such thing, the next bigger. */
static hwloc_obj_type_t bind_type(const struct bind_state *state, int level)
{
    static const hwloc_obj_type_t types[] = {
        HWLOC_OBJ_MACHINE, HWLOC_OBJ_CORE, HWLOC_OBJ_L3CACHE,
        HWLOC_OBJ_NUMANODE, HWLOC_OBJ_PACKAGE
    };

    if (level == 0 || level > 4)
        return HWLOC_OBJ_MACHINE;
    if (level == 1)
        return state->cores[0].object->type;
    for (; level <= 4; level++)
        if (hwloc_get_nbobjs_by_type(state->topology, types[level]) > 0)
            return types[level];
    return HWLOC_OBJ_MACHINE;
}

/* The n-th of the objects with any allowed cpu, counted modulo how many there
 * are; `blocks` gives the i-th of ranks its object instead. */
static hwloc_obj_t bind_deal(const struct bind_state *state, int rank)
{
    hwloc_obj_t object = NULL;
    unsigned count = 0, n, seen = 0;
    unsigned ranks = (unsigned)state->plan->count;

    while ((object = hwloc_get_next_obj_by_type(state->topology,
                                                state->dealt_to, object)))
        count += hwloc_bitmap_intersects(object->cpuset, state->allowed);
    if (count == 0)
        return NULL;
    n = state->blocks && ranks >= count
        ? (unsigned)((uint64_t)rank * count / ranks)
        : (unsigned)rank % count;
    while ((object = hwloc_get_next_obj_by_type(state->topology,
                                                state->dealt_to, object)))
        if (hwloc_bitmap_intersects(object->cpuset, state->allowed)
            && seen++ == n)
            break;
    return object;
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

/* Of the cores within `near` (NULL: all) the one that fewest ranks have, the
 * first of those; cores of other jobs only when nothing else is left. */
static struct bind_core *bind_least(const struct bind_state *state,
                                    hwloc_const_cpuset_t near)
{
    struct bind_core *best = NULL;

    for (unsigned i = 0; i < state->count; i++) {
        struct bind_core *core = &state->cores[i];

        if (near != NULL
            && !hwloc_bitmap_intersects(core->object->cpuset, near))
            continue;
        if (best == NULL || (best->taken && !core->taken)
            || (best->taken == core->taken && core->ranks < best->ranks))
            best = core;
    }
    return best;
}

static struct bind_core *bind_choose(struct bind_state *state, int rank)
{
    hwloc_obj_t dealt = NULL;
    struct bind_core *core = NULL;

    if (bind_near_gpus(state, rank))
        core = bind_least(state, state->near);
    else if (state->dealt_to != HWLOC_OBJ_MACHINE)
        dealt = bind_deal(state, rank);
    if (dealt != NULL)
        core = bind_least(state, dealt->cpuset);
    if (core == NULL)
        core = bind_least(state, NULL);
    if (core != NULL)
        core->ranks++;
    return core;
}

/* The object of the type to bind to that the core is part of. */
static hwloc_obj_t bind_around(const struct bind_state *state,
                               hwloc_obj_t core)
{
    hwloc_obj_t object = NULL;

    if (state->bound_to == core->type)
        return core;
    while ((object = hwloc_get_next_obj_by_type(state->topology,
                                                state->bound_to, object)))
        if (hwloc_bitmap_isincluded(core->cpuset, object->cpuset))
            return object;
    return NULL;
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
    struct bind_core *core = bind_choose(state, rank);
    hwloc_obj_t object = NULL;
    char *list = NULL;

    place->core = -1;
    if (core != NULL && bound)
        object = bind_around(state, core->object);
    if (object != NULL)
        hwloc_bitmap_and(state->cpus, state->allowed, object->cpuset);
    else
        hwloc_bitmap_copy(state->cpus, state->allowed);
    if (bound && state->plan->bind == TPT_BIND_CORE && core != NULL)
        place->core = hwloc_bitmap_first(core->object->cpuset);
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
    state->bound_to = bind_type(state, (int)plan->bind);
    state->dealt_to = bind_type(state, state->wish->map == TPT_MAP_CORE ? 0
                                : (int)state->wish->map);
    if (state->wish->map == TPT_MAP_DEFAULT && plan->bind > TPT_BIND_CORE
        && plan->bind < TPT_BIND_NONE) {
        state->dealt_to = state->bound_to;
        state->blocks = true;
    }
}

static bool bind_places(struct bind_state *state)
{
    struct tpt_bind_plan *plan = state->plan;
    int last = hwloc_bitmap_last(state->allowed);

    plan->cpus_size = CPU_ALLOC_SIZE(last < 0 ? 1 : last + 1);
    plan->places = tpb_array((size_t)state->wish->ranks,
                             sizeof(plan->places[0]));
    plan->count = plan->places != NULL ? state->wish->ranks : 0;
    state->near = hwloc_bitmap_alloc();
    state->cpus = hwloc_bitmap_alloc();
    if (plan->places == NULL || state->near == NULL || state->cpus == NULL
        || !bind_find_cores(state, HWLOC_OBJ_CORE) || state->count == 0)
        return false;
    bind_settle(state);
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
