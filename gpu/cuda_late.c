/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the driver lets go of only when the device is idle.
 *
 * cuIpcCloseMemHandle, cuMemFree and cuMemHostUnregister wait for all that is
 * enqueued in the context, on the program's own streams too, and every other
 * call of the driver waits behind them.  A kernel there may itself wait for a
 * message of ours, or for a rank that died, and the driver does not tell
 * whether a context is idle.  So nothing of this is done where messages are
 * moved.  Imports and memory of ours are kept, for the program's end, as long
 * as they are few; of more, a thread lets go, which may wait as it must.
 * Pinned memory is kept for the next who needs some.
 */
#include "config.h"

#include <pthread.h>
#include <sys/mman.h>

#include "gpu/cuda_late.h"
#include "runtime/base/alloc.h"
#include "runtime/base/log.h"
#include "runtime/base/thread.h"

TPB_LOG_COMPONENT("cuda");

enum {
    LATE_KEPT = 64 * 1024 * 1024,  /* bytes, most of them of devices */
    LATE_GRANULE = 2 * 1024 * 1024 /* that the least one takes */
};

struct late_item {
    struct late_item *next;
    const struct tpg_cuda *cuda;
    enum tpg_late what;
    int device;
    cu_pointer pointer;
    size_t size, takes;
};

struct late_pinned {
    struct late_pinned *next;
    void *memory;
    size_t size;
};

static struct {
    pthread_mutex_t lock;
    struct late_item *first, **end;    /* the oldest first */
    size_t kept;
    bool running;                      /* the thread */
    unsigned ending;                   /* taken off, and not let go of yet */
    pthread_cond_t ended;              /* none of them is left */
    struct late_pinned *pinned;        /* that nobody uses */
} late = { .lock = PTHREAD_MUTEX_INITIALIZER,
           .ended = PTHREAD_COND_INITIALIZER, .end = &late.first };

/* ---- letting go ---------------------------------------------------------- */

static void late_end(const struct late_item *item)
{
    const struct tpg_cuda *cuda = item->cuda;

    if (tpg_cuda_enter(cuda, item->device, NULL) != TP_OK)
        return;
    if (item->what == TPG_LATE_IMPORT) {
        cuda->cuIpcCloseMemHandle(item->pointer);
    } else if (item->what == TPG_LATE_MEMORY) {
        cuda->cuMemFree_v2(item->pointer);
    } else {
        void *memory = (void *)(uintptr_t)item->pointer;

        if (cuda->cuMemHostUnregister(memory) == CU_OK)
            munmap(memory, item->size);
    }
    tpg_cuda_leave(cuda);
}

/* The oldest one if there are too many; NULL: none. */
static struct late_item *late_take_locked(size_t most)
{
    struct late_item *item = late.kept > most ? late.first : NULL;

    if (item == NULL)
        return NULL;
    late.first = item->next;
    if (late.first == NULL)
        late.end = &late.first;
    late.kept -= item->takes;
    return item;
}

/* Lets go of one.  `thread`: for the thread, which is over if there is none. */
static bool late_one(size_t most, bool thread)
{
    struct late_item *item;

    pthread_mutex_lock(&late.lock);
    item = late_take_locked(most);
    if (thread)
        late.running = item != NULL;
    late.ending += item != NULL;
    pthread_mutex_unlock(&late.lock);
    if (item == NULL)
        return false;
    late_end(item);
    tpb_free(item);
    pthread_mutex_lock(&late.lock);
    if (--late.ending == 0)
        pthread_cond_broadcast(&late.ended);
    pthread_mutex_unlock(&late.lock);
    return true;
}

static void *late_main(void *arg)
{
    (void)arg;
    while (late_one(LATE_KEPT, true))
        ;
    return NULL;
}

void tpg_late_now(void)
{
    while (late_one(0, false))
        ;
    /* What the thread, or another caller, is at. */
    pthread_mutex_lock(&late.lock);
    while (late.ending > 0)
        pthread_cond_wait(&late.ended, &late.lock);
    pthread_mutex_unlock(&late.lock);
}

/* Without a thread they stay until there is one. */
static void late_start_locked(void)
{
    pthread_t thread;

    if (late.running || late.kept <= LATE_KEPT)
        return;
    late.running = tpb_thread_start(&thread, late_main, NULL) == 0;
    if (late.running)
        pthread_detach(thread);
}

void tpg_late(const struct tpg_cuda *cuda, enum tpg_late what, int device,
              cu_pointer pointer, size_t size)
{
    struct late_item *item = tpb_zalloc(sizeof(*item));

    if (item == NULL) {
        tpb_warn("out of memory: %zu bytes of device %d stay in use", size,
                 device);
        return;
    }
    item->cuda = cuda;
    item->what = what;
    item->device = device;
    item->pointer = pointer;
    item->size = size;
    item->takes = size > LATE_GRANULE ? size : LATE_GRANULE;
    pthread_mutex_lock(&late.lock);
    *late.end = item;
    late.end = &item->next;
    late.kept += item->takes;
    late_start_locked();
    pthread_mutex_unlock(&late.lock);
}

/* ---- pinned memory ------------------------------------------------------- */

static struct late_pinned *pinned_find(size_t size)
{
    struct late_pinned **at = &late.pinned, *found;

    pthread_mutex_lock(&late.lock);
    while (*at != NULL && (*at)->size != size)
        at = &(*at)->next;
    found = *at;
    if (found != NULL)
        *at = found->next;
    pthread_mutex_unlock(&late.lock);
    return found;
}

static tp_status pinned_new(const struct tpg_cuda *cuda, size_t size,
                            void **memory, struct tpb_error *error)
{
    tp_status status;

    *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (*memory == MAP_FAILED)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    status = tpg_cuda_fail(cuda, cuda->cuMemHostRegister_v2(
        *memory, size, CU_HOST_PORTABLE | CU_HOST_DEVICE_MAP),
        "pinned memory (RLIMIT_MEMLOCK?)", error);
    if (status != TP_OK)
        munmap(*memory, size);
    return status;
}

tp_status tpg_pinned_take(const struct tpg_cuda *cuda, size_t size,
                          void **memory, struct tpb_error *error)
{
    struct late_pinned *found = pinned_find(size);

    if (found == NULL)
        return pinned_new(cuda, size, memory, error);
    *memory = found->memory;
    tpb_free(found);
    return TP_OK;
}

void tpg_pinned_give(void *memory, size_t size)
{
    struct late_pinned *pinned = tpb_zalloc(sizeof(*pinned));

    if (pinned == NULL) {
        tpb_warn("out of memory: %zu bytes stay pinned", size);
        return;
    }
    pinned->memory = memory;
    pinned->size = size;
    pthread_mutex_lock(&late.lock);
    pinned->next = late.pinned;
    late.pinned = pinned;
    pthread_mutex_unlock(&late.lock);
}
