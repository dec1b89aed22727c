/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Any other provider of libfabric, by its name: TP_BACKENDS=ofi:sockets makes a
 * backend "ofi:sockets".  All that is asked of it is what every provider for
 * programs like this has, itself or by a layer over it: reliable datagrams
 * (FI_EP_RDM) that are matched in order.  Each conn has an endpoint of its own,
 * whose name travels in the notes when the two meet; the socket where they met
 * stays to see the other's end, of which datagrams tell nothing.
 *
 * Which providers there are only libfabric knows, and to load it takes longer
 * than all else that a rank does to start: so they are not looked for.
 */
#include "config.h"

#include <pthread.h>
#include <stdio.h>

#include "fabric/ofi/ofi.h"

enum { ANY_MOST = 8 };             /* of one process */

struct any {
    struct tpf_backend backend;
    struct ofi_kind kind;
    char name[TPT_NAME];
};

/* Made once, and there for good. */
static struct any any_made[ANY_MOST];
static size_t any_count;
static pthread_mutex_t any_lock = PTHREAD_MUTEX_INITIALIZER;

static const struct tpf_backend *any_find(const char *name)
{
    for (size_t i = 0; i < any_count; i++)
        if (strcmp(any_made[i].name, name) == 0)
            return &any_made[i].backend;
    return NULL;
}

/* For backend.c, which declares it too. */
const struct tpf_backend *tpf_ofi_make(const char *name);

const struct tpf_backend *tpf_ofi_make(const char *name)
{
    const struct tpf_backend *found;

    if (strncmp(name, "ofi:", 4) != 0 || name[4] == '\0'
        || strlen(name) >= TPT_NAME
        || strlen(name + 4) >= sizeof(((struct ofi_card *)0)->provider))
        return NULL;
    pthread_mutex_lock(&any_lock);
    found = any_find(name);
    if (found == NULL && any_count < ANY_MOST) {
        struct any *any = &any_made[any_count++];

        strcpy(any->name, name);
        any->backend = ofi_any_template;
        any->backend.name = any->name;
        any->kind = (struct ofi_kind){
            .backend = any->name, .provider = any->name + 4,
            .type = FI_EP_RDM, .max_frame = 32768, .slots = 32,
            .join = &ofi_join_any
        };
        found = &any->backend;
    }
    pthread_mutex_unlock(&any_lock);
    return found;
}

const struct ofi_kind *ofi_any_kind(const struct tpf_backend *backend)
{
    return &TPB_CONTAINER((struct tpf_backend *)(uintptr_t)backend, struct any,
                          backend)->kind;
}

/* ---- endpoints --------------------------------------------------------- */

static tp_status any_prepare(struct ofi_conn *conn, struct tpb_error *error)
{
    struct ofi_note *note = &conn->meet->ours;
    size_t length = sizeof(note->name);
    tp_status status;
    int code;

    conn->rail = ofi_rail_get(ofi_endpoint_of(conn->common.endpoint),
                              &conn->meet->where, error);
    if (conn->rail == NULL)
        return TP_ERR_BACKEND;
    status = ofi_conn_buffers(conn, error);
    if (status != TP_OK)
        return status;
    status = ofi_rdm_open(conn, error);
    if (status != TP_OK)
        return status;
    code = fi_getname(&conn->ep->fid, note->name, &length);
    if (code != 0)
        return ofi_fail(error, code, "the name of an endpoint");
    note->name_length = (uint8_t)length;
    return ofi_conn_post(conn, error);
}

/* The name goes to the provider as it is; it shows no more trust than that
 * provider puts into what comes over its network. */
static tp_status any_insert(struct ofi_conn *conn, struct tpb_error *error)
{
    if (conn->meet->theirs.name_length != conn->meet->ours.name_length)
        return tpb_fail(error, TP_ERR_PROTOCOL,
                        "the other side's endpoint has a name of another kind");
    return ofi_rdm_insert(conn, "the other side's address", error);
}

/* ---- joining ----------------------------------------------------------- */

/* The host answers the visitor's ping: then both know. */
static tp_status any_visit(struct ofi_conn *conn, struct tpb_error *error)
{
    tp_status status = any_insert(conn, error);

    return status == TP_OK ? ofi_rdm_visited(conn, error) : status;
}

static void any_leave(struct ofi_conn *conn)
{
    ofi_rdm_await(conn, false);
    ofi_rdm_close(conn->ep, conn->av, conn->cq);
    conn->ep = NULL;
    conn->av = NULL;
    conn->cq = NULL;
}

const struct ofi_join ofi_join_any = {
    .name_first = true,
    .prepare = any_prepare,
    .host = any_insert,
    .answered = ofi_rdm_answered,
    .visit = any_visit,
    .first = ofi_rdm_first,
    .leave = any_leave
};
