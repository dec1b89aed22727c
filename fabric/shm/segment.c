/* SPDX-License-Identifier: BSD-3-Clause */
/* The shared memory of shm: made, checked, mapped. */
#include "config.h"

#include <errno.h>
#include <sys/mman.h>

#include "fabric/shm/shm.h"
#include "runtime/base/io.h"

/* Whole pages in front of the rings, which are mapped by themselves.  Some
 * machines have pages of 16 or 64 KiB; all processes of one have the same. */
static size_t segment_control(void)
{
    size_t page = tpb_page();

    return page > SHM_CONTROL ? page : SHM_CONTROL;
}

static size_t segment_size(void)
{
    return segment_control() + 2 * (size_t)SHM_RING;
}

/* Each ring twice. */
static size_t segment_mapped(void)
{
    return segment_control() + 4 * (size_t)SHM_RING;
}

int shm_segment_make(void)
{
    return tpb_shared_memory_parts("tp-shm-segment", segment_size(),
                                   segment_control(), SHM_SPAN, 2);
}

static bool segment_place(unsigned char *at, int fd, size_t offset,
                          size_t length)
{
    return mmap(at, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                fd, (off_t)offset) != MAP_FAILED;
}

/* What controls them, ring 0 twice, ring 1 twice.  As the first two stand side
 * by side in the file, too, they are one mapping. */
static bool segment_lay(unsigned char *map, int fd)
{
    size_t control = segment_control(), at = control + SHM_RING;
    unsigned char *one = map + control + 2 * (size_t)SHM_RING;

    if (!segment_place(map, fd, 0, at)
        || !segment_place(map + at, fd, control, SHM_RING)
        || !segment_place(one, fd, at, SHM_RING)
        || !segment_place(one + SHM_RING, fd, at, SHM_RING))
        return false;
    /* They are there already; one call for all of them costs a third of a
     * fault for each in a virtual machine.  Older kernels refuse. */
    (void)madvise(map, control + SHM_SMALL, MADV_POPULATE_WRITE);
    (void)madvise(one, SHM_SMALL, MADV_POPULATE_WRITE);
    return true;
}

tp_status shm_segment_map(struct shm_conn *conn, int fd, int side,
                          struct tpb_error *error)
{
    struct shm_segment *segment;
    unsigned char *map, *rings;

    if (side != 0 && !tpb_shared_memory_safe(fd, segment_size()))
        return tpb_fail(error, TP_ERR_PROTOCOL,
                        "the peer's segment is not sealed shared memory");
    map = mmap(NULL, segment_mapped(), PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return tpb_fail_errno(error, errno, "no address space for a ring");
    if (!segment_lay(map, fd)) {
        int code = errno;

        munmap(map, segment_mapped());
        return tpb_fail_errno(error, code, "cannot map a ring");
    }
    conn->map = map;
    conn->side = side;
    segment = (struct shm_segment *)(void *)map;
    rings = map + segment_control();
    shm_consumer_init(&conn->in, &segment->sides[side],
                      rings + 2 * (size_t)side * SHM_RING);
    atomic_store_explicit(&segment->sides[!side].registered,
                          shm_endpoint(conn)->barriers,
                          memory_order_relaxed);
    shm_producer_init(&conn->out, &segment->sides[!side],
                      rings + 2 * (size_t)!side * SHM_RING,
                      !conn->base.endpoint->env->crowded);
    tpb_fetch_init(&conn->fetch);
    conn->base.fetch = conn->out.rests ? &conn->fetch : NULL;
    tpb_way_init(&conn->way);
    conn->base.way = conn->out.rests ? &conn->way : NULL;
    conn->next_look = SHM_STREAM;
    return TP_OK;
}

void shm_segment_unmap(struct shm_conn *conn)
{
    if (conn->map != NULL)
        munmap(conn->map, segment_mapped());
    conn->map = NULL;
}

struct shm_mailbox *shm_mailbox_map(int fd)
{
    void *map;

    if (!tpb_shared_memory_safe(fd, sizeof(struct shm_mailbox))) {
        errno = EPROTO;
        return NULL;
    }
    map = mmap(NULL, sizeof(struct shm_mailbox), PROT_READ | PROT_WRITE,
               MAP_SHARED, fd, 0);
    return map == MAP_FAILED ? NULL : map;
}

void shm_mailbox_unmap(struct shm_mailbox *mailbox)
{
    if (mailbox != NULL)
        munmap(mailbox, sizeof(*mailbox));
}
