/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * PMIx_Publish, PMIx_Lookup, PMIx_Unpublish: a list of values with their
 * owners, and a list of lookups that wait for some.  Both belong to the main
 * thread; upcalls carry copies there.  All ranks are in one job on one
 * machine, so the ranges of PMIx come to the same.
 */
#include "config.h"

#include <stdlib.h>

#include "launcher/pmix_private.h"
#include "runtime/base/alloc.h"
#include "runtime/base/door.h"

struct published {
    struct tpb_list node;
    pmix_proc_t owner;
    pmix_persistence_t persistence;
    pmix_key_t key;
    pmix_value_t value;
};

/* One upcall on its way to the main thread, and a lookup that waits there. */
struct publish_call {
    struct tpl_pmix_call call;
    struct tpb_list node;
    struct tpl_timer timer;
    pmix_proc_t proc;
    pmix_info_t *info;             /* publish: values and directives */
    size_t info_count;
    pmix_key_t *keys;              /* lookup, unpublish; none: all */
    size_t key_count, wanted;      /* lookup: so many at least */
    bool waits;
    uint32_t timeout;              /* seconds; 0: no limit */
    pmix_op_cbfunc_t op_done;
    pmix_lookup_cbfunc_t lookup_done;
    void *arg;
};

static struct tpb_list publish_values = { &publish_values, &publish_values };
static struct tpb_list publish_waiting = { &publish_waiting,
                                           &publish_waiting };
static struct tpl_loop *publish_loop;

void tpl_pmix_publish_watch(struct tpl_loop *loop)
{
    publish_loop = loop;
}

static void call_free(struct publish_call *call)
{
    if (call->info != NULL)
        PMIX_INFO_FREE(call->info, call->info_count);
    tpb_free(call->keys);
    tpb_free(call);
}

static struct published *publish_find(const char *key)
{
    TPB_LIST_EACH(node, &publish_values) {
        struct published *item = TPB_CONTAINER(node, struct published, node);

        if (strncmp(item->key, key, PMIX_MAX_KEYLEN) == 0)
            return item;
    }
    return NULL;
}

static void published_free(struct published *item)
{
    tpb_list_unlink(&item->node);
    PMIX_VALUE_DESTRUCT(&item->value);
    tpb_free(item);
}

static bool publish_same(const pmix_proc_t *a, const pmix_proc_t *b)
{
    return a->rank == b->rank && PMIX_CHECK_NSPACE(a->nspace, b->nspace);
}

/* Directives have reserved names ("pmix.range"); all else is data. */
static bool publish_directive(const pmix_info_t *info)
{
    return PMIX_CHECK_RESERVED_KEY(info->key);
}

/* How many of the keys are there now. */
static size_t lookup_count(const struct publish_call *call)
{
    size_t found = 0;

    for (size_t i = 0; i < call->key_count; i++)
        found += publish_find(call->keys[i]) != NULL;
    return found;
}

/* Answers with what there is and ends the call. */
static void lookup_answer(struct publish_call *call, pmix_status_t otherwise)
{
    pmix_pdata_t *data = NULL;
    size_t found = lookup_count(call), at = 0;

    if (found == 0) {
        call->lookup_done(otherwise, NULL, 0, call->arg);
        call_free(call);
        return;
    }
    PMIX_PDATA_CREATE(data, found);
    for (size_t i = 0; data != NULL && i < call->key_count; i++) {
        struct published *item = publish_find(call->keys[i]);

        if (item == NULL || at == found)
            continue;
        data[at].proc = item->owner;
        PMIX_LOAD_KEY(data[at].key, item->key);
        PMIx_Value_xfer(&data[at++].value, &item->value);
        if (item->persistence == PMIX_PERSIST_FIRST_READ)
            published_free(item);
    }
    /* Packed before it returns; ours to free. */
    call->lookup_done(data != NULL ? PMIX_SUCCESS : PMIX_ERR_NOMEM, data, at,
                      call->arg);
    if (data != NULL)
        PMIX_PDATA_FREE(data, found);
    call_free(call);
}

static void lookup_forget(struct publish_call *call)
{
    tpb_list_unlink(&call->node);
    tpl_timer_set(publish_loop, &call->timer, 0);
}

static void lookup_expired(struct tpl_timer *timer)
{
    struct publish_call *call = TPB_CONTAINER(timer, struct publish_call,
                                              timer);

    lookup_forget(call);
    lookup_answer(call, PMIX_ERR_TIMEOUT);
}

/* Something was published: who has waited for it? */
static void lookup_again(void)
{
    TPB_LIST_EACH(node, &publish_waiting) {
        struct publish_call *call = TPB_CONTAINER(node, struct publish_call,
                                                  node);

        if (lookup_count(call) < call->wanted)
            continue;
        lookup_forget(call);
        lookup_answer(call, PMIX_ERR_NOT_FOUND);
    }
}

static void lookup_run(struct tpl_pmix_call *base)
{
    struct publish_call *call = TPB_CONTAINER(base, struct publish_call,
                                              call);

    if (!call->waits || lookup_count(call) >= call->wanted) {
        lookup_answer(call, PMIX_ERR_NOT_FOUND);
        return;
    }
    tpb_list_append(&publish_waiting, &call->node);
    call->timer.fire = lookup_expired;
    if (call->timeout > 0)
        tpl_timer_set(publish_loop, &call->timer,
                      tpb_now() + call->timeout * UINT64_C(1000000000));
}

static pmix_status_t publish_one(const struct publish_call *call,
                                 const pmix_info_t *info,
                                 pmix_persistence_t persistence)
{
    struct published *item;

    if (publish_find(info->key) != NULL)
        return PMIX_ERR_DUPLICATE_KEY;
    item = tpb_zalloc(sizeof(*item));
    if (item == NULL)
        return PMIX_ERR_NOMEM;
    item->owner = call->proc;
    item->persistence = persistence;
    PMIX_LOAD_KEY(item->key, info->key);
    PMIx_Value_xfer(&item->value, &info->value);
    tpb_list_append(&publish_values, &item->node);
    return PMIX_SUCCESS;
}

static void publish_run(struct tpl_pmix_call *base)
{
    struct publish_call *call = TPB_CONTAINER(base, struct publish_call,
                                              call);
    pmix_persistence_t persistence = PMIX_PERSIST_SESSION;
    pmix_status_t status = PMIX_SUCCESS;

    for (size_t i = 0; i < call->info_count; i++)
        if (PMIX_CHECK_KEY(&call->info[i], PMIX_PERSISTENCE))
            persistence = call->info[i].value.data.persist;
    for (size_t i = 0; i < call->info_count && status == PMIX_SUCCESS; i++)
        if (!publish_directive(&call->info[i]))
            status = publish_one(call, &call->info[i], persistence);
    call->op_done(status, call->arg);
    call_free(call);
    lookup_again();
}

static bool unpublish_meant(const struct publish_call *call, const char *key)
{
    for (size_t i = 0; i < call->key_count; i++)
        if (strncmp(call->keys[i], key, PMIX_MAX_KEYLEN) == 0)
            return true;
    return call->key_count == 0;
}

static void unpublish_run(struct tpl_pmix_call *base)
{
    struct publish_call *call = TPB_CONTAINER(base, struct publish_call,
                                              call);

    TPB_LIST_EACH(node, &publish_values) {
        struct published *item = TPB_CONTAINER(node, struct published, node);

        if (publish_same(&item->owner, &call->proc)
            && unpublish_meant(call, item->key))
            published_free(item);
    }
    call->op_done(PMIX_SUCCESS, call->arg);
    call_free(call);
}

void tpl_pmix_publish_ended(int rank)
{
    TPB_LIST_EACH(node, &publish_values) {
        struct published *item = TPB_CONTAINER(node, struct published, node);

        if (item->owner.rank == (pmix_rank_t)rank
            && item->persistence == PMIX_PERSIST_PROC)
            published_free(item);
    }
    TPB_LIST_EACH(wait, &publish_waiting) {
        struct publish_call *call = TPB_CONTAINER(wait, struct publish_call,
                                                  node);

        if (call->proc.rank != (pmix_rank_t)rank)
            continue;
        lookup_forget(call);
        /* libpmix still holds memory for it; an answer to the dead frees
         * that. */
        call->lookup_done(PMIX_ERR_NOT_FOUND, NULL, 0, call->arg);
        call_free(call);
    }
}

/* From here: libpmix's thread. */

static struct publish_call *call_new(const pmix_proc_t *proc, char **keys,
                                     void (*run)(struct tpl_pmix_call *call),
                                     void *arg)
{
    struct publish_call *call = tpb_zalloc(sizeof(*call));

    if (call == NULL)
        return NULL;
    call->call.run = run;
    call->proc = *proc;
    call->arg = arg;
    tpb_list_init(&call->node);
    while (keys != NULL && keys[call->key_count] != NULL)
        call->key_count++;
    call->wanted = call->key_count;
    call->keys = tpb_array(call->key_count, sizeof(call->keys[0]));
    if (call->keys == NULL) {
        call_free(call);
        return NULL;
    }
    for (size_t i = 0; i < call->key_count; i++)
        PMIX_LOAD_KEY(call->keys[i], keys[i]);
    return call;
}

/* Not for others to look up: it is meant for tprun. */
static bool publish_is_denied(const pmix_proc_t *proc,
                              const pmix_info_t *info)
{
    return PMIX_CHECK_KEY(info, TPB_DOOR_DENIED_KEY)
           && info->value.type == PMIX_STRING
           && info->value.data.string != NULL
           && tpl_pmix_report(proc, TPL_PMIX_DENIED, 0,
                              info->value.data.string);
}

pmix_status_t tpl_pmix_publish_up(const pmix_proc_t *proc,
                              const pmix_info_t info[], size_t count,
                              pmix_op_cbfunc_t done, void *arg)
{
    struct publish_call *call;

    if (count > 0 && publish_is_denied(proc, &info[0]))
        return PMIX_OPERATION_SUCCEEDED;
    call = call_new(proc, NULL, publish_run, arg);
    if (call == NULL)
        return PMIX_ERR_NOMEM;
    PMIX_INFO_CREATE(call->info, count);
    call->info_count = call->info != NULL ? count : 0;
    for (size_t i = 0; i < call->info_count; i++)
        PMIX_INFO_XFER(&call->info[i], &info[i]);
    call->op_done = done;
    tpl_pmix_queue(&call->call);
    return PMIX_SUCCESS;
}

pmix_status_t tpl_pmix_lookup_up(const pmix_proc_t *proc, char **keys,
                             const pmix_info_t info[], size_t count,
                             pmix_lookup_cbfunc_t done, void *arg)
{
    struct publish_call *call = call_new(proc, keys, lookup_run, arg);

    if (call == NULL)
        return PMIX_ERR_NOMEM;
    call->lookup_done = done;
    for (size_t i = 0; i < count; i++) {
        uint32_t number = 0;
        pmix_status_t status = PMIX_SUCCESS;

        if (PMIX_CHECK_KEY(&info[i], PMIX_WAIT)) {
            call->waits = true;
            PMIX_VALUE_GET_NUMBER(status, &info[i].value, number, uint32_t);
            if (status == PMIX_SUCCESS && number > 0
                && number < call->key_count)
                call->wanted = number;
        } else if (PMIX_CHECK_KEY(&info[i], PMIX_TIMEOUT)) {
            PMIX_VALUE_GET_NUMBER(status, &info[i].value, number, uint32_t);
            if (status == PMIX_SUCCESS)
                call->timeout = number;
        }
    }
    tpl_pmix_queue(&call->call);
    return PMIX_SUCCESS;
}

pmix_status_t tpl_pmix_unpublish_up(const pmix_proc_t *proc, char **keys,
                                const pmix_info_t info[], size_t count,
                                pmix_op_cbfunc_t done, void *arg)
{
    struct publish_call *call = call_new(proc, keys, unpublish_run, arg);

    (void)info;
    (void)count;
    if (call == NULL)
        return PMIX_ERR_NOMEM;
    call->op_done = done;
    tpl_pmix_queue(&call->call);
    return PMIX_SUCCESS;
}
