/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Several short frames in one message of libfabric's.
 *
 * Over TCP a message costs a system call at both ends and a packet, some us,
 * whatever its length: a stream of short messages is as slow as that.  What
 * callbacks write has its reader no sooner than they are over, as all of them
 * run in a row; so frames that they commit one behind the other are kept until
 * the core says that they have run, or there is no room for more.
 *
 * One that comes a while after the last of its conn goes at once; of others the
 * core looks now and then whether callbacks take long.
 *
 * A bundle has one number and takes one credit.  Each frame in it stands behind
 * its length, aligned.
 */
#include "config.h"

#include "fabric/ofi/ofi.h"

enum {
    BUNDLE_FRAME = 32 * 1024 + 64, /* longer ones gain little */
    BUNDLE_FULL = 4 * (BUNDLE_FRAME + 8),  /* is sent: the other side may
                                              begin */
    BUNDLE_ALONE_NS = 20000,       /* behind the last one: it goes at once */
    BUNDLE_LONG = 8 * 1024,        /* to copy such a one takes time */
    BUNDLE_SINGLES = 2,            /* in a row: the next ones are lent ... */
    BUNDLE_TRIAL = 10              /* ... until that many */
};

/* Before each frame. */
struct bundle_entry {
    uint32_t size;                 /* of the frame, little-endian; not 0 */
    uint32_t zero;
};
_Static_assert(sizeof(struct bundle_entry) == 8, "frames are aligned");

static size_t bundle_takes(size_t size)
{
    return sizeof(struct bundle_entry) + ((size + 7) & ~(size_t)7);
}

static struct bundle_entry *bundle_at(const struct ofi_slot *slot, size_t at)
{
    return (struct bundle_entry *)(void *)((char *)(slot->head + 1) + at);
}

/* ---- the sender ---------------------------------------------------------- */

static size_t bundle_room(const struct ofi_conn *conn)
{
    return conn->common.max_frame < BUNDLE_FULL ? conn->common.max_frame
                                                : BUNDLE_FULL;
}

/* Did the last one that callbacks sent go just now? */
static bool bundle_is_burst(struct ofi_conn *conn)
{
    uint64_t now = tpb_now(), last = conn->called;
    bool burst = conn->common.endpoint->env->bursts
                 || now - last < BUNDLE_ALONE_NS;

    conn->called = now;
    return burst;
}

void ofi_bundle_lent(struct ofi_conn *conn, size_t size)
{
    const struct tpf_env *env = conn->common.endpoint->env;
    bool burst;

    if (!conn->bundles || size > BUNDLE_FRAME || !tpf_env_gathers(env))
        return;
    burst = bundle_is_burst(conn);
    if (conn->singles < BUNDLE_SINGLES)
        conn->common.gathers = burst ? BUNDLE_FRAME : 0;
    else if (++conn->singles >= BUNDLE_TRIAL)
        conn->singles = BUNDLE_SINGLES - 1;
}

/* Long frames that were copied to go with others, and went alone after all, had
 * better been lent: so are the next few. */
static void bundle_learn(struct ofi_conn *conn, const struct ofi_slot *slot)
{
    size_t first = bundle_takes(le32toh(bundle_at(slot, 0)->size));

    if (conn->bundled > first) {
        conn->common.gathers = BUNDLE_FRAME;
        conn->singles = 0;
    } else if (first > BUNDLE_LONG) {
        if (conn->singles < BUNDLE_SINGLES)
            conn->singles++;
        if (conn->singles >= BUNDLE_SINGLES)
            conn->common.gathers = 0;
    }
}

void *ofi_bundle_reserve(struct ofi_conn *conn, size_t size)
{
    size_t takes = bundle_takes(size);
    const struct tpf_env *env = conn->common.endpoint->env;
    bool fits = tpf_env_gathers(env) && size <= BUNDLE_FRAME
                && takes <= bundle_room(conn);
    bool goes_on = false;          /* the burst of a bundle that was full */

    if (!conn->bundles)
        return NULL;
    if (conn->bundle != NULL
        && (!fits || conn->bundled + takes > bundle_room(conn))) {
        ofi_bundle_send(conn);
        goes_on = true;
    }
    if (!fits)
        return NULL;
    if (conn->bundle == NULL) {
        if (bundle_is_burst(conn) || goes_on)
            conn->bundle = ofi_conn_slot(conn, BUNDLE_FULL);
        else if (size > BUNDLE_LONG)
            conn->common.gathers = 0;      /* it was copied for nothing */
    }
    return conn->bundle != NULL ? bundle_at(conn->bundle, conn->bundled) + 1
                                : NULL;
}

void ofi_bundle_commit(struct ofi_conn *conn, size_t size)
{
    *bundle_at(conn->bundle, conn->bundled) = (struct bundle_entry){
        .size = htole32((uint32_t)size)
    };
    conn->bundled += bundle_takes(size);
    tpf_conn_gathered(&conn->common);
}

void ofi_bundle_send(struct ofi_conn *conn)
{
    struct ofi_slot *slot = conn->bundle;

    tpb_list_unlink(&conn->common.gathered);
    if (slot == NULL)
        return;
    conn->bundle = NULL;
    if (conn->bundled > 0) {
        bundle_learn(conn, slot);
        ofi_conn_send_slot(conn, slot, conn->bundled, OFI_FLAG_BUNDLE);
    } else {
        ofi_slot_give(&conn->send, slot);
    }
    conn->bundled = 0;
}

void ofi_conn_gathered(struct tpf_conn *common)
{
    ofi_bundle_send(ofi_conn_of(common));
}

void ofi_bundle_leave(struct ofi_conn *conn)
{
    tpb_list_unlink(&conn->common.gathered);
    conn->bundle = NULL;
    conn->bundled = 0;
}

/* ---- the receiver -------------------------------------------------------- */

bool ofi_bundle_right(const struct ofi_slot *slot)
{
    size_t at = 0;

    while (at < slot->size) {
        size_t left = slot->size - at, size;

        if (left < sizeof(struct bundle_entry))
            return false;
        size = le32toh(bundle_at(slot, at)->size);
        if (size == 0 || size > left || bundle_takes(size) > left)
            return false;
        at += bundle_takes(size);
    }
    return at > 0;
}

const void *ofi_bundle_peek(const struct ofi_slot *slot, size_t *size)
{
    const struct bundle_entry *entry = bundle_at(slot, slot->at);

    *size = le32toh(entry->size);
    return entry + 1;
}

bool ofi_bundle_pop(struct ofi_slot *slot)
{
    slot->at += bundle_takes(le32toh(bundle_at(slot, slot->at)->size));
    return slot->at < slot->size;
}
