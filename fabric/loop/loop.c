/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A rank to itself: one ring of fixed size per conn.  What is committed comes
 * back on the same conn.  No descriptor is needed, because no other process
 * can send: commit() says itself that the conn is ready, and the core wakes a
 * thread that sleeps meanwhile.
 */
#include "config.h"

#include "fabric/backend.h"
#include "runtime/base/alloc.h"

enum {
    LOOP_RING = 256 * 1024,
    LOOP_MAX_FRAME = 64 * 1024,
    LOOP_ALIGN = 16,
    LOOP_SKIP = UINT32_MAX         /* in `size`: go on at the ring's start */
};

/* Stands before each frame in the ring. */
struct loop_head {
    uint32_t size;
    uint32_t unused[3];
};
_Static_assert(sizeof(struct loop_head) == LOOP_ALIGN, "frames are aligned");
_Static_assert(LOOP_RING % LOOP_ALIGN == 0, "a head always fits at the end");

struct loop_endpoint {
    struct tpf_endpoint common;
    uint8_t secret[16];            /* the address: only we know it */
    struct tpb_list conns;
    struct tpb_list *cursor;       /* where progress() is; an upcall may
                                      disconnect the conn it points to */
};

/* Positions count bytes since the start and never wrap; modulo LOOP_RING
 * they are places in the ring. */
struct loop_conn {
    struct tpf_conn common;
    struct tpb_list link;          /* in loop_endpoint.conns */
    char *ring;
    uint64_t written, read;
    uint64_t reserved;             /* where the open reservation's head is */
    bool blocked;                  /* reserve() said NULL */
};

static struct loop_conn *loop_of(struct tpf_conn *conn)
{
    return TPB_CONTAINER(conn, struct loop_conn, common);
}

static struct loop_endpoint *loop_endpoint_of(struct tpf_endpoint *endpoint)
{
    return TPB_CONTAINER(endpoint, struct loop_endpoint, common);
}

static size_t loop_round(size_t size)
{
    return (size + LOOP_ALIGN - 1) & ~(size_t)(LOOP_ALIGN - 1);
}

static struct loop_head *loop_head_at(struct loop_conn *conn, uint64_t at)
{
    return (struct loop_head *)(void *)(conn->ring + at % LOOP_RING);
}

static tp_status loop_probe(const struct tpf_env *env, struct tpb_error *error)
{
    (void)env;
    (void)error;
    return TP_OK;
}

static tp_status loop_open(struct tpf_endpoint *endpoint,
                           struct tpb_error *error)
{
    struct loop_endpoint *loop = loop_endpoint_of(endpoint);

    (void)error;
    tpb_random(loop->secret, sizeof(loop->secret));
    tpb_list_init(&loop->conns);
    return TP_OK;
}

static void loop_close(struct tpf_endpoint *endpoint)
{
    (void)endpoint;
}

static size_t loop_address(struct tpf_endpoint *endpoint, void *buffer,
                           size_t capacity)
{
    struct loop_endpoint *loop = loop_endpoint_of(endpoint);

    if (capacity < sizeof(loop->secret))
        return 0;
    memcpy(buffer, loop->secret, sizeof(loop->secret));
    return sizeof(loop->secret);
}

static tp_status loop_connect(struct tpf_conn *conn, const void *address,
                              size_t length, struct tpb_error *error)
{
    struct loop_conn *self = loop_of(conn);
    struct loop_endpoint *loop = loop_endpoint_of(conn->endpoint);

    tpb_list_init(&self->link);
    if (length != sizeof(loop->secret)
        || !tpb_equal_secret(address, loop->secret, length))
        return tpb_fail(error, TP_ERR_UNREACHABLE,
                        "loop: the address is not this process's own");
    self->ring = tpb_zalloc(LOOP_RING);
    if (self->ring == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY,
                        "loop: no memory for a ring of %d KiB",
                        LOOP_RING / 1024);
    conn->max_frame = LOOP_MAX_FRAME;
    conn->window = LOOP_RING / 2;
    conn->returns = LOOP_RING / 8;
    tpb_list_append(&loop->conns, &self->link);
    conn->endpoint->env->upcalls->connected(conn->endpoint->env->core, conn);
    return TP_OK;
}

static void loop_disconnect(struct tpf_conn *conn)
{
    struct loop_conn *self = loop_of(conn);
    struct loop_endpoint *loop = loop_endpoint_of(conn->endpoint);

    if (loop->cursor == &self->link)
        loop->cursor = self->link.next;
    tpb_list_unlink(&self->link);
    tpb_free(self->ring);
    self->ring = NULL;
}

/* Where a frame of `size` bytes would go, or UINT64_MAX if there is no room.
 * A frame is never split over the ring's end. */
static uint64_t loop_place(const struct loop_conn *self, size_t size)
{
    size_t need = LOOP_ALIGN + loop_round(size);
    size_t to_end = LOOP_RING - (size_t)(self->written % LOOP_RING);
    uint64_t at = self->written + (need > to_end ? to_end : 0);

    return at + need - self->read > LOOP_RING ? UINT64_MAX : at;
}

static void *loop_reserve(struct tpf_conn *conn, size_t size)
{
    struct loop_conn *self = loop_of(conn);
    uint64_t at = loop_place(self, size);

    if (at == UINT64_MAX) {
        self->blocked = true;
        return NULL;
    }
    self->reserved = at;
    return loop_head_at(self, at) + 1;
}

static void loop_commit(struct tpf_conn *conn, size_t size)
{
    struct loop_conn *self = loop_of(conn);

    if (self->reserved != self->written)
        loop_head_at(self, self->written)->size = LOOP_SKIP;
    loop_head_at(self, self->reserved)->size = (uint32_t)size;
    self->written = self->reserved + LOOP_ALIGN + loop_round(size);
    tpf_conn_ready(conn);          /* there is no other side to tell us */
}

static const void *loop_peek(struct tpf_conn *conn, size_t *size)
{
    struct loop_conn *self = loop_of(conn);
    struct loop_head *head;

    if (self->read == self->written)
        return NULL;
    head = loop_head_at(self, self->read);
    if (head->size == LOOP_SKIP) {
        self->read += LOOP_RING - self->read % LOOP_RING;
        head = loop_head_at(self, self->read);
    }
    *size = head->size;
    return head + 1;
}

static void loop_pop(struct tpf_conn *conn)
{
    struct loop_conn *self = loop_of(conn);
    size_t size;

    if (loop_peek(conn, &size) != NULL)
        self->read += LOOP_ALIGN + loop_round(size);
}

static bool loop_flushed(struct tpf_conn *conn)
{
    (void)conn;
    return true;
}

/* Half the ring, so that the sender gets more than one frame's turn, and
 * enough for any frame wherever the ring's end lies. */
static bool loop_roomy(const struct loop_conn *self)
{
    return self->written - self->read <= LOOP_RING / 2;
}

static bool loop_progress(struct tpf_endpoint *endpoint)
{
    struct loop_endpoint *loop = loop_endpoint_of(endpoint);
    bool moved = false;

    loop->cursor = loop->conns.next;
    while (loop->cursor != &loop->conns) {
        struct loop_conn *self = TPB_CONTAINER(loop->cursor, struct loop_conn,
                                               link);

        loop->cursor = loop->cursor->next;
        if (self->read != self->written) {
            tpf_conn_ready(&self->common);
            moved = true;
        }
        if (self->blocked && loop_roomy(self)) {
            self->blocked = false;
            endpoint->env->upcalls->writable(endpoint->env->core,
                                             &self->common);
            moved = true;
        }
    }
    loop->cursor = NULL;
    return moved;
}

static bool loop_arm(struct tpf_endpoint *endpoint)
{
    struct loop_endpoint *loop = loop_endpoint_of(endpoint);

    TPB_LIST_EACH(node, &loop->conns) {
        struct loop_conn *self = TPB_CONTAINER(node, struct loop_conn, link);

        if (self->read != self->written
            || (self->blocked && loop_roomy(self)))
            return false;
    }
    return true;
}

static void loop_disarm(struct tpf_endpoint *endpoint)
{
    (void)endpoint;
}

extern const struct tpf_backend tpf_loop;
const struct tpf_backend tpf_loop = {
    .name = "loop",
    .reach = TPT_REACH_PROCESS,
    .flags = TPF_SELF,
    .latency_ns = 50,
    .megabytes = 20000,
    .endpoint_size = sizeof(struct loop_endpoint),
    .conn_size = sizeof(struct loop_conn),
    .probe = loop_probe,
    .open = loop_open,
    .close = loop_close,
    .address = loop_address,
    .connect = loop_connect,
    .disconnect = loop_disconnect,
    .reserve = loop_reserve,
    .commit = loop_commit,
    .peek = loop_peek,
    .pop = loop_pop,
    .flushed = loop_flushed,
    .progress = loop_progress,
    .arm = loop_arm,
    .disarm = loop_disarm
};
