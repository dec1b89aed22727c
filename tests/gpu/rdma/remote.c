/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A double of fabric/remote.h: one RDMA device on a machine that has none.  A
 * read of a peer's memory is one of its process, where the double of libcuda
 * has its own way in to what is a device's; it comes in pieces, later, and only
 * out of what is registered at that time.
 */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fabric/remote.h"
#include "runtime/base/alloc.h"
#include "tests/gpu/rdma/rdma.h"

enum { REMOTE_SLOTS = 1024, REMOTE_PIECE = 128 * 1024 };

/* Memory that peers may read, as they find it here. */
struct remote_slot {
    uint64_t key;                      /* 0: nothing */
    uint64_t address, length;          /* as the program knows it */
    uint64_t bytes;                    /* where it really is */
};
static struct remote_slot remote_slots[REMOTE_SLOTS];
static uint64_t remote_keys;

/* How a peer finds that. */
struct remote_where {
    uint64_t slots;
    int32_t pid;
    uint32_t zero[2];
};
_Static_assert(sizeof(struct remote_where) >= TPF_REMOTE_WHERE, "all of it");

struct tpf_remote {
    struct tpf_env *env;
    struct tpb_list lines;
};

struct tpf_registration {
    struct remote_slot *slot;
};

struct tpf_line {
    struct tpf_remote *remote;
    struct tpb_list node, fetches;
    struct remote_where where;
    struct tpb_error broken;
};

int tpf_remote_list(const struct tpf_env *env, struct tpf_remote_nic *nics)
{
    (void)env;
    snprintf(nics[0].device, sizeof(nics[0].device), "double0");
    return 1;
}

tp_status tpf_remote_open(struct tpf_env *env,
                          const struct tpf_remote_nic *nic,
                          enum tpf_remote_how how,
                          struct tpf_remote **remote, struct tpb_error *error)
{
    (void)nic;
    (void)how;
    *remote = tpb_zalloc(sizeof(**remote));
    if (*remote == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    (*remote)->env = env;
    tpb_list_init(&(*remote)->lines);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);     /* for Yama */
    return TP_OK;
}

void tpf_remote_close(struct tpf_remote *remote)
{
    tpb_free(remote);
}

void tpf_remote_place(const struct tpf_remote *remote,
                      struct tpf_remote_place *place)
{
    struct remote_where where = {
        .slots = (uint64_t)(uintptr_t)remote_slots, .pid = (int32_t)getpid() };

    (void)remote;
    memset(place, 0, sizeof(*place));
    memcpy(place->where, &where, TPF_REMOTE_WHERE);
}

/* ---- memory -------------------------------------------------------------- */

/* NULL: a device's, and not all there. */
static void *remote_bytes(const struct tpf_remote_memory *memory)
{
    const char *path = getenv("TP_CUDA_LIBRARY");
    void *library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    rdma_way_in *way_in = NULL;
    int device = 0;
    void *bytes;

    if (library != NULL)
        *(void **)&way_in = dlsym(library, "cudadouble_way_in");
    if (way_in == NULL)
        return memory->address;
    bytes = way_in(memory->address, memory->length, &device);
    return device != 0 ? bytes : memory->address;
}

tp_status tpf_remote_register(struct tpf_remote *remote,
                              const struct tpf_remote_memory *memory,
                              struct tpf_registration **registration,
                              struct tpb_error *error)
{
    void *bytes = remote_bytes(memory);
    int i = 0;

    (void)remote;
    while (i < REMOTE_SLOTS && remote_slots[i].key != 0)
        i++;
    if (bytes == NULL || i == REMOTE_SLOTS)
        return tpb_fail(error, TP_ERR_BACKEND, "the double registers no such"
                        " memory");
    *registration = tpb_zalloc(sizeof(**registration));
    if (*registration == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    (*registration)->slot = &remote_slots[i];
    remote_slots[i] = (struct remote_slot){
        .key = ++remote_keys << 16 | (uint64_t)i,
        .address = (uint64_t)(uintptr_t)memory->address,
        .length = memory->length, .bytes = (uint64_t)(uintptr_t)bytes };
    return TP_OK;
}

void tpf_remote_deregister(struct tpf_registration *registration)
{
    if (registration != NULL)
        memset(registration->slot, 0, sizeof(*registration->slot));
    tpb_free(registration);
}

uint64_t tpf_registration_key(const struct tpf_registration *registration)
{
    return registration->slot->key;
}

/* ---- lines --------------------------------------------------------------- */

tp_status tpf_line_open(struct tpf_remote *remote,
                        const struct tpf_remote_place *place,
                        struct tpf_line **line, struct tpb_error *error)
{
    *line = tpb_zalloc(sizeof(**line));
    if (*line == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    (*line)->remote = remote;
    memcpy(&(*line)->where, place->where, TPF_REMOTE_WHERE);
    tpb_list_init(&(*line)->fetches);
    tpb_list_append(&remote->lines, &(*line)->node);
    return TP_OK;
}

/* The process must not sleep over what is under way. */
static void line_over(struct tpf_fetch *fetch)
{
    tpb_list_unlink(&fetch->node);
    fetch->line->remote->env->on_devices--;
}

void tpf_line_close(struct tpf_line *line)
{
    if (line == NULL)
        return;
    while (!tpb_list_empty(&line->fetches))
        line_over(TPB_CONTAINER(line->fetches.next, struct tpf_fetch, node));
    tpb_list_unlink(&line->node);
    tpb_free(line);
}

const char *tpf_line_broken(const struct tpf_line *line)
{
    return line->broken.text[0] != '\0' ? line->broken.text : NULL;
}

void tpf_line_fetch(struct tpf_line *line, struct tpf_fetch *fetch)
{
    fetch->done = 0;
    fetch->line = line;
    tpb_list_append(&line->fetches, &fetch->node);
    line->remote->env->on_devices++;
}

bool tpf_line_stop(struct tpf_fetch *fetch)
{
    line_over(fetch);
    return true;
}

static bool line_read(const struct tpf_line *line, void *to, uint64_t from,
                      size_t length)
{
    struct iovec here = { to, length };
    struct iovec there = { (void *)(uintptr_t)from, length };

    return process_vm_readv(line->where.pid, &here, 1, &there, 1, 0)
           == (ssize_t)length;
}

static void line_break(struct tpf_line *line, const char *words)
{
    tpb_fail(&line->broken, TP_ERR_BACKEND, "reading remotely: %s", words);
}

/* The next piece. */
static void line_step(struct tpf_line *line, struct tpf_fetch *fetch)
{
    const struct remote_slot *mine = fetch->registration->slot;
    uint64_t at = fetch->address + fetch->done;
    uint64_t to = (uint64_t)(uintptr_t)fetch->to + fetch->done;
    size_t part = fetch->length - fetch->done;
    struct remote_slot slot;

    if (part > REMOTE_PIECE)
        part = REMOTE_PIECE;
    if (!line_read(line, &slot, line->where.slots + (fetch->key & 0xffff)
                                * sizeof(slot), sizeof(slot)))
        line_break(line, strerror(errno));
    else if (slot.key != fetch->key || at < slot.address
             || at + part > slot.address + slot.length)
        line_break(line, "the peer has not registered that");
    else if (mine->key == 0 || to < mine->address
             || to + part > mine->address + mine->length)
        line_break(line, "we have not registered that");
    else if (!line_read(line, (void *)(uintptr_t)(mine->bytes + to
                                                  - mine->address),
                        slot.bytes + at - slot.address, part))
        line_break(line, strerror(errno));
    else
        fetch->done += part;
}

bool tpf_remote_progress(struct tpf_remote *remote)
{
    bool moved = false;

    TPB_LIST_EACH(at, &remote->lines) {
        struct tpf_line *line = TPB_CONTAINER(at, struct tpf_line, node);
        struct tpf_fetch *fetch;

        if (tpb_list_empty(&line->fetches))
            continue;
        moved = true;
        fetch = TPB_CONTAINER(line->fetches.next, struct tpf_fetch, node);
        if (tpf_line_broken(line) == NULL)
            line_step(line, fetch);
        if (tpf_line_broken(line) == NULL && fetch->done < fetch->length)
            continue;
        line_over(fetch);
        fetch->ended(fetch);
        break;                         /* the list may be another one now */
    }
    return moved;
}

void tpf_line_await(struct tpf_line *line)
{
    if (!tpb_list_empty(&line->fetches) && tpf_line_broken(line) == NULL)
        line_step(line, TPB_CONTAINER(line->fetches.next, struct tpf_fetch,
                                      node));
}
