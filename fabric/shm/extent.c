/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How much of its memory a ring uses: little at first, and where few bytes go
 * through it; all of it where it is busy, see ring.h.  As memory is what that
 * costs, only a few rings of an endpoint are wide at a time; one that was not
 * busy lately makes room for another, and gives its memory back.
 */
#include "config.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fabric/shm/shm.h"

enum {
    EXTENT_BUSY_NS = 1000000,      /* a lap of SHM_NARROW in less time ... */
    EXTENT_IDLE_NS = 100000000,    /* ... and no wide one for so long */
    EXTENT_SCARCE_NS = 1000000000  /* until it is tried again */
};

/* The pages between two offsets, if any. */
static void extent_drop(unsigned char *memory, uint64_t from, uint64_t to)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    from = (from + page - 1) / page * page;
    to = to / page * page;
    if (from < to)
        (void)madvise(memory + from, to - from, MADV_REMOVE);
}

/*
 * What lies between the consumer and us stays, and behind that the room of a
 * record, which may be reserved.  If the kernel keeps the rest, nothing else
 * changes.
 */
static void extent_narrow(struct shm_conn *conn)
{
    struct shm_producer *out = &conn->out;
    uint64_t room = SHM_SPAN - SHM_NARROW, head, tail;

    shm_ring_extend(out, SHM_NARROW);
    if (!shm_ring_look(out))
        return;
    head = out->head & (SHM_RING - 1);
    tail = out->tail & (SHM_RING - 1);
    if (head <= tail)
        extent_drop(out->memory, SHM_SPAN, head);
    extent_drop(out->memory, tail + room > SHM_SPAN ? tail + room : SHM_SPAN,
                head <= tail ? SHM_RING : head);
}

/* False: there is no memory for it.  A kernel that cannot be asked, before
 * Linux 5.14, finds it as it is written to. */
static bool extent_widen(struct shm_conn *conn)
{
    if (madvise(conn->out.memory, SHM_RING, MADV_POPULATE_WRITE) != 0
        && errno != EINVAL) {
        extent_narrow(conn);       /* what came before it was refused */
        return false;
    }
    shm_ring_extend(&conn->out, SHM_RING);
    return true;
}

void shm_extent_lap(struct shm_conn *conn, uint64_t now)
{
    struct shm_endpoint *endpoint = shm_endpoint(conn);
    struct shm_conn **place = NULL;
    uint64_t took = now - conn->lapped;

    conn->lapped = now;
    if (shm_ring_wide(&conn->out) || took > EXTENT_BUSY_NS
        || !conn->out.rests || now < endpoint->scarce)
        return;
    for (size_t i = 0; i < SHM_WIDE; i++) {
        struct shm_conn **wide = &endpoint->wide[i];

        if (place == NULL || *wide == NULL
            || (*place != NULL && (*wide)->lapped < (*place)->lapped))
            place = wide;
    }
    if (*place != NULL) {
        if (now - (*place)->lapped < EXTENT_IDLE_NS)
            return;
        extent_narrow(*place);
    }
    *place = extent_widen(conn) ? conn : NULL;
    if (*place == NULL)
        endpoint->scarce = now + EXTENT_SCARCE_NS;
}

void shm_extent_forget(struct shm_conn *conn)
{
    struct shm_endpoint *endpoint = shm_endpoint(conn);

    for (size_t i = 0; i < SHM_WIDE; i++)
        if (endpoint->wide[i] == conn)
            endpoint->wide[i] = NULL;
}
