/* SPDX-License-Identifier: BSD-3-Clause */
/* The one array of backends, and the helpers that all of them share. */
#include "config.h"

#include <errno.h>
#include <sys/epoll.h>

#include "fabric/backend.h"
#include "runtime/base/alloc.h"

/* One line per backend; each is defined in fabric/NAME/. */
#define BACKENDS(row) \
    row(tpf_loop) \
    row(tpf_shm) \
    row(tpf_ofi_tcp) \
    row(tpf_ofi_verbs) \
    row(tpf_ofi_shm) \
    row(tpf_rails)

#define BACKEND_DECLARE(object) extern const struct tpf_backend object;
BACKENDS(BACKEND_DECLARE)

#define BACKEND_POINTER(object) &object,
const struct tpf_backend *const tpf_backends[] = {
    BACKENDS(BACKEND_POINTER) NULL
};

/* By name; NULL for a name that is not its own. */
const struct tpf_backend *tpf_ofi_make(const char *name);

static const struct tpf_backend *backend_built(const char *name)
{
    for (size_t i = 0; tpf_backends[i] != NULL; i++)
        if (strcmp(tpf_backends[i]->name, name) == 0)
            return tpf_backends[i];
    return NULL;
}

const struct tpf_backend *tpf_backend_find(const char *name)
{
    const struct tpf_backend *built = backend_built(name);

    return built != NULL ? built : tpf_ofi_make(name);
}

size_t tpf_backends_for(const char *list, const struct tpf_backend **backends,
                        size_t most)
{
    size_t count = 0;

    while (tpf_backends[count] != NULL && count < most) {
        backends[count] = tpf_backends[count];
        count++;
    }
    while (list != NULL && *list != '\0' && *list != '^' && count < most) {
        const struct tpf_backend *made = NULL;
        size_t length = strcspn(list, ",");
        char name[TPT_NAME] = "";

        if (length < sizeof(name))
            memcpy(name, list, length);
        if (backend_built(name) == NULL)
            made = tpf_ofi_make(name);
        for (size_t i = 0; i < count; i++)
            if (backends[i] == made)
                made = NULL;
        if (made != NULL)
            backends[count++] = made;
        list += length;
        list += *list == ',';
    }
    return count;
}

struct tpf_conn *tpf_conn_new(struct tpf_endpoint *endpoint)
{
    struct tpf_conn *conn = tpb_zalloc(endpoint->backend->conn_size);

    if (conn == NULL)
        return NULL;
    conn->backend = endpoint->backend;
    conn->endpoint = endpoint;
    tpb_list_init(&conn->ready);
    tpb_list_init(&conn->gathered);
    return conn;
}

void tpf_conn_free(struct tpf_conn *conn)
{
    if (conn == NULL)
        return;
    tpb_list_unlink(&conn->ready);
    tpb_list_unlink(&conn->gathered);
    tpb_free(conn);
}

void tpf_send_gathered(struct tpf_env *env)
{
    struct tpb_list *node;

    while ((node = tpb_list_take(&env->gathered)) != NULL) {
        struct tpf_conn *conn = TPB_CONTAINER(node, struct tpf_conn, gathered);

        conn->backend->gathered(conn);
    }
}

bool tpf_post_reserved(struct tpf_conn *conn, struct tpf_head head,
                       const void *data, size_t length)
{
    size_t size = sizeof(head) + length;
    unsigned char *room = conn->backend->reserve(conn, size);

    if (room == NULL)
        return false;
    memcpy(room, &head, sizeof(head));
    tpb_copy(room + sizeof(head), data, length);
    conn->backend->commit(conn, size);
    return true;
}

static int watch_control(struct tpf_env *env, int operation,
                         struct tpf_watch *watch, uint32_t events)
{
    struct epoll_event event = { .events = events, .data.ptr = watch };

    if (env->watches != NULL)
        atomic_fetch_add(env->watches, 1);     /* tp_listen() has no token */
    return epoll_ctl(env->epoll, operation, watch->fd, &event) < 0 ? errno : 0;
}

int tpf_watch_add(struct tpf_env *env, struct tpf_watch *watch,
                  uint32_t events)
{
    return watch_control(env, EPOLL_CTL_ADD, watch, events);
}

int tpf_watch_change(struct tpf_env *env, struct tpf_watch *watch,
                     uint32_t events)
{
    return watch_control(env, EPOLL_CTL_MOD, watch, events);
}

void tpf_watch_remove(struct tpf_env *env, struct tpf_watch *watch)
{
    watch_control(env, EPOLL_CTL_DEL, watch, 0);
}
