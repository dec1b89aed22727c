/* SPDX-License-Identifier: BSD-3-Clause */
/* The one array of channels, and what several of them share. */
#include "config.h"

#include "fabric/channel.h"

#ifdef TP_CUDA
#define CUDA_KINDS(row) \
    row(tpg_cuda_ipc) row(tpg_cuda_gdr) row(tpg_cuda_host)
#else
#define CUDA_KINDS(row)
#endif

/* One line per kind; each is defined in fabric/NAME/ or gpu/NAME/. */
#define KINDS(row) \
    row(tpf_map) \
    row(tpf_cma) \
    row(tpf_rma) CUDA_KINDS(row)

#define KIND_DECLARE(object) extern const struct tpf_channel_kind object;
KINDS(KIND_DECLARE)

#define KIND_POINTER(object) &object,
const struct tpf_channel_kind *const tpf_channel_kinds[] = {
    KINDS(KIND_POINTER) NULL
};

tp_status tpf_link_passes(const struct tpf_link *link, struct tpb_error *error)
{
    const struct tpf_backend *backend = link->conn->backend;

    return backend->pass != NULL ? TP_OK
           : tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                      "%s passes no descriptors, shm does", backend->name);
}

bool tpf_link_notes(const struct tpf_link *link)
{
    struct tpf_conn *conn = link->conn;

    if (conn->backend->notes != NULL)
        conn->backend->notes(conn);
    return conn->peer != NULL;
}

enum tpf_progress tpf_strides_start(struct tpb_list *pulls,
                                    struct tpf_pull *pull, tpf_move_fn *move,
                                    struct tpb_error *error)
{
    enum tpf_progress result = pull->later ? TPF_PULL_MORE
                                           : move(pull, error);

    if (result == TPF_PULL_MORE)
        tpb_list_append(pulls, &pull->node);
    return result;
}

/* Short ones together, so that they get as much of the time as long ones do:
 * between two calls a ringful may go in frames. */
bool tpf_strides_progress(struct tpf_channel *channel, struct tpb_list *pulls,
                          tpf_move_fn *move)
{
    struct tpf_env *env = channel->env;
    struct tpb_list *node;
    size_t moved = 0;
    bool any = false;

    while (moved < TPF_STRIDE && (node = tpb_list_take(pulls)) != NULL) {
        struct tpf_pull *pull = TPB_CONTAINER(node, struct tpf_pull, node);
        struct tpb_error error = { "" };
        size_t before = pull->moved;
        enum tpf_progress result = move(pull, &error);

        any = true;
        moved += pull->moved - before;
        if (result == TPF_PULL_MORE) {
            tpb_list_append(pulls, &pull->node);
            break;
        }
        env->upcalls->pulled(env->core, pull, result, error.text);
    }
    return any;
}

bool tpf_strides_cancel(struct tpf_pull *pull)
{
    tpb_list_unlink(&pull->node);
    return true;
}
