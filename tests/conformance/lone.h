/* SPDX-License-Identifier: BSD-3-Clause */
/* A conn that is joined with nobody: what comes and goes is the test's own, and
 * nothing of libfabric's is behind it. */
#ifndef TPX_CONFORMANCE_LONE_H
#define TPX_CONFORMANCE_LONE_H

#include "fabric/ofi/ofi.h"
#include "tests/lib/tpx.h"

/* In `endpoint`, which is made anew, and so is `env`, unless that is NULL.
 * tpf_conn_free() ends it. */
static inline struct ofi_conn *tpx_lone_conn(struct ofi_endpoint *endpoint,
                                             const struct tpf_backend *backend,
                                             const struct ofi_kind *kind,
                                             struct tpf_env *env)
{
    struct tpf_conn *common;
    struct ofi_conn *conn;

    memset(endpoint, 0, sizeof(*endpoint));
    if (env != NULL) {
        memset(env, 0, sizeof(*env));
        tpb_list_init(&env->gathered);
        tpb_list_init(&env->ready);
    }
    endpoint->kind = kind;
    endpoint->common.env = env;
    endpoint->common.backend = backend;
    tpb_list_init(&endpoint->conns);
    tpb_list_init(&endpoint->due);
    common = tpf_conn_new(&endpoint->common);
    ck_assert_ptr_nonnull(common);
    conn = ofi_conn_of(common);
    ofi_conn_init(conn);
    conn->limit = kind->slots;
    conn->joined = true;
    return conn;
}

/* A slot of one direction of it, with the test's buffer. */
static inline void tpx_lone_slot(struct ofi_conn *conn,
                                 struct ofi_slots *slots,
                                 struct ofi_slot *slot, struct ofi_head *head)
{
    *slot = (struct ofi_slot){ .conn = conn, .head = head };
    ofi_slot_give(slots, slot);
}

#endif
