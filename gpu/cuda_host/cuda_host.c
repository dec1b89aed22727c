/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The cuda_host channel: devices' memory through pinned memory of the host that
 * both processes have mapped, so that no CPU copies a byte.
 *
 * Per pair and direction there is a stage, of the sender's: some slots and two
 * counters.  The receiver calls the sender when it has memory for a buffer; the
 * sender copies the buffer into the slots, piece by piece, as they become free;
 * the receiver copies them out.  A piece tells by its number whose it is: calls
 * of several pipes overtake each other, and some nobody waits for any more.
 *
 * For GPUs that may not access each other, and for short buffers where two
 * processes have one GPU: these copies take its copy engines, which many
 * processes use at once, and cuda_ipc's the one that they take turns at.
 */
#include "config.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "gpu/cuda.h"
#include "gpu/cuda_late.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"

TPB_LOG_COMPONENT("cuda_host");

enum {
    HOST_SLOT = 512 * 1024, HOST_SLOTS = 8,
    HOST_PIECE_LEAST = 64 * 1024,  /* a buffer is cut into some pieces: one is
                                      copied in while another is copied out */
    HOST_PIECES = 4,
    HOST_HEAD = 4096
};

#define HOST_FAILED UINT32_MAX     /* a piece's length: the device failed */

/* ---- shared -------------------------------------------------------------- */

struct host_piece {
    uint64_t number, offset;       /* of the call; in its buffer */
    uint32_t length, zero;
};

struct host_stage {
    _Alignas(TPB_CACHE_LINE) _Atomic uint64_t filled;      /* the sender's */
    _Alignas(TPB_CACHE_LINE) _Atomic uint64_t emptied;     /* the receiver's */
    _Alignas(TPB_CACHE_LINE) struct host_piece pieces[HOST_SLOTS];
};
_Static_assert(sizeof(struct host_stage) <= HOST_HEAD, "HOST_HEAD");

#define HOST_BYTES (HOST_HEAD + (size_t)HOST_SLOTS * HOST_SLOT)

struct host_note {                 /* with the stage's descriptor */
    uint8_t channel, zero[7];
    uint64_t length;
};
_Static_assert(sizeof(struct host_note) == 16, "wire layout");

/* ---- objects ------------------------------------------------------------- */

/* Sender: help, the buffer as it is described.  Receiver: pull. */
struct host_pull {
    struct tpf_pull base;
    uint64_t number;
    size_t begun;                  /* bytes whose copy is enqueued */
    bool counted;                  /* in env->on_devices */
};
_Static_assert(sizeof(struct host_pull) <= TPF_PULL, "TPF_PULL is too small");

struct host_slot {
    struct host_pull *pull;        /* NULL: nobody wants it any more */
    cu_event copied;               /* NULL: it is, or there was none */
    int device;                    /* of the event */
    uint32_t length;
};

/* One direction. */
struct host_side {
    struct host_stage *stage;      /* NULL: not yet */
    bool registered;
    struct tpb_list pulls;         /* host_pull: not all of it begun */
    struct host_slot slots[HOST_SLOTS];
    uint64_t begun, ended;         /* pieces: copies enqueued, and over */
};

struct host_link {
    struct tpf_link base;
    struct tpb_list node;          /* the channel's */
    struct host_side out, in;
    uint64_t calls;                /* of this receiver's */
};

struct host_channel {
    struct tpf_channel base;
    struct tpb_list links;
};

static unsigned char *host_place(struct host_stage *stage, uint64_t turn)
{
    return (unsigned char *)stage + HOST_HEAD
           + (size_t)(turn % HOST_SLOTS) * HOST_SLOT;
}

static struct host_pull *host_of(struct tpb_list *node)
{
    return TPB_CONTAINER(node, struct host_pull, base.node);
}

static struct tpf_env *host_env(const struct host_link *link)
{
    return link->base.channel->env;
}

/* The one that copies of that direction are enqueued in. */
static cu_stream host_stream(const struct host_link *link,
                             const struct host_side *side, int device)
{
    const struct tpg_device *of = &host_env(link)->gpu->devices[device];

    return side == &link->out ? of->out : of->in;
}

/* ---- the channel and the trial ------------------------------------------- */

static tp_status host_probe(const struct tpf_env *env, struct tpb_error *error)
{
    if (!tpb_shared_memory_works())
        return tpb_fail(error, TP_ERR_SYSTEM,
                        "no shared memory (memfd_create is refused)");
    return tpg_probe(env->settings, error);
}

static tp_status host_open(struct tpf_channel *base, struct tpb_error *error)
{
    (void)error;
    tpb_list_init(&((struct host_channel *)base)->links);
    return TP_OK;
}

static tp_status host_link_try(struct tpf_link *base, const void *address,
                               size_t length, struct tpb_error *error)
{
    struct host_link *link = (struct host_link *)base;

    (void)address;
    (void)length;
    tpb_list_init(&link->out.pulls);
    tpb_list_init(&link->in.pulls);
    tpb_list_append(&((struct host_channel *)base->channel)->links,
                    &link->node);
    return tpf_link_passes(base, error);
}

/* ---- stages -------------------------------------------------------------- */

/* With a context current. */
static bool host_register(const struct tpg_cuda *cuda, struct host_side *side)
{
    if (!side->registered)
        side->registered = cuda->cuMemHostRegister_v2(
            side->stage, HOST_BYTES, CU_HOST_PORTABLE) == CU_OK;
    return side->registered;
}

/* The device may still be at it, and the peer. */
static void host_side_end(struct host_side *side)
{
    const struct tpg_cuda *cuda = tpg_cuda_loaded();

    if (side->stage != NULL && side->registered && cuda != NULL)
        tpg_late(cuda, TPG_LATE_PINNED, tpg_cuda_any(cuda),
                 (cu_pointer)(uintptr_t)side->stage, HOST_BYTES);
    else if (side->stage != NULL)
        munmap(side->stage, HOST_BYTES);
    side->stage = NULL;
    side->registered = false;
}

static struct host_stage *host_map(int fd)
{
    void *memory = mmap(NULL, HOST_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
                        fd, 0);

    return memory != MAP_FAILED ? memory : NULL;
}

/* The sender's, which the peer is told of. */
static bool host_make(struct host_link *link, const struct tpg_cuda *cuda)
{
    struct tpf_conn *conn = link->base.conn;
    struct host_note note = { .channel = TPF_CHANNEL_CUDA_HOST,
                              .length = HOST_BYTES };
    int fd = conn->backend->pass != NULL
             ? tpb_shared_memory("tp-stage", HOST_BYTES) : -1;
    bool good;

    if (fd < 0)
        return false;
    link->out.stage = host_map(fd);
    good = link->out.stage != NULL && host_register(cuda, &link->out)
           && conn->backend->pass(conn, &note, sizeof(note), fd);
    tpb_close(&fd);
    if (!good)
        host_side_end(&link->out);
    return good;
}

static bool host_note_come(struct tpf_link *base, const void *bytes,
                           size_t length, int fd)
{
    struct host_link *link = (struct host_link *)base;
    struct host_note note;
    bool good = length == sizeof(note);

    if (good)
        memcpy(&note, bytes, sizeof(note));
    good = good && note.length == HOST_BYTES && link->in.stage == NULL;
    /* Without it (no descriptors, no memory) buffers go another way. */
    if (good && fd >= 0 && tpb_shared_memory_safe(fd, HOST_BYTES))
        link->in.stage = host_map(fd);
    tpb_close(&fd);
    return good;
}

/* ---- pieces -------------------------------------------------------------- */

static size_t host_piece_length(const struct host_pull *pull)
{
    size_t left = pull->base.to.length - pull->begun;
    size_t piece = pull->base.to.length / HOST_PIECES;

    if (piece < HOST_PIECE_LEAST)
        piece = HOST_PIECE_LEAST;
    if (piece > HOST_SLOT)
        piece = HOST_SLOT;
    return left < piece ? left : piece;
}

static void host_count(struct host_pull *pull, bool counts)
{
    struct tpf_env *env = pull->base.link->channel->env;

    if (pull->counted != counts)
        env->on_devices += counts ? 1 : -1u;
    pull->counted = counts;
}

/* A piece of it is under way; of the last one it waits only for that. */
static void host_begun(struct host_side *side, struct host_pull *pull,
                       size_t length)
{
    side->slots[side->begun++ % HOST_SLOTS].pull = pull;
    pull->begun += length;
    if (pull->begun == pull->base.to.length)
        tpb_list_unlink(&pull->base.node);
}

/* Enqueues one copy between the slot and the device, and what tells its end. */
static tp_status host_copy(struct host_link *link, const struct tpg_cuda *cuda,
                           struct host_side *side, struct host_slot *slot,
                           const struct tpf_buffer *buffer, size_t offset,
                           struct tpb_error *error)
{
    int device = buffer->device.index;
    unsigned char *here = host_place(side->stage, side->begun);
    cu_pointer there = (cu_pointer)(uintptr_t)buffer->data + offset;
    tp_status status = tpg_device_enter(host_env(link)->gpu, cuda, device,
                                        error);
    cu_stream stream;
    cu_result code;

    if (status != TP_OK)
        return status;
    stream = host_stream(link, side, device);
    slot->device = device;
    code = host_register(cuda, side) ? CU_OK : CU_OUT_OF_MEMORY;
    if (code == CU_OK)
        code = side == &link->out
               ? cuda->cuMemcpyAsync((cu_pointer)(uintptr_t)here, there,
                                     slot->length, stream)
               : tpg_copy_in(cuda, there, here, slot->length, stream);
    if (code == CU_OK)
        code = cuda->cuEventCreate(&slot->copied, CU_EVENT_NO_TIMING);
    if (code == CU_OK)
        code = cuda->cuEventRecord(slot->copied, stream);
    /* What was enqueued is over before anybody else has the memory. */
    if (code != CU_OK)
        cuda->cuStreamSynchronize(stream);
    tpg_cuda_leave(cuda);
    return tpg_cuda_fail(cuda, code, "a copy between host and device", error);
}

static void host_slot_end(const struct tpg_cuda *cuda, struct host_slot *slot)
{
    if (slot->copied != NULL && cuda != NULL)
        tpg_event_destroy(cuda, slot->device, slot->copied);
    slot->copied = NULL;
}

/* Has the oldest copy ended? */
static cu_result host_slot_ask(const struct tpg_cuda *cuda,
                               const struct host_side *side)
{
    const struct host_slot *slot = &side->slots[side->ended % HOST_SLOTS];

    return slot->copied == NULL ? CU_OK : tpg_event_query(cuda, slot->copied);
}

static void host_settle(const struct tpg_cuda *cuda, struct host_link *link,
                        const struct host_side *side,
                        const struct host_slot *slot)
{
    if (slot->copied != NULL && cuda != NULL)
        tpg_cuda_settle(cuda, slot->device,
                        host_stream(link, side, slot->device));
}

/* Nobody's memory is touched for that pull any more. */
static void host_withdraw(struct host_side *side, struct host_pull *pull)
{
    const struct tpg_cuda *cuda = tpg_cuda_loaded();
    struct host_link *link = (struct host_link *)pull->base.link;

    host_count(pull, false);
    tpb_list_unlink(&pull->base.node);
    for (uint64_t i = side->ended; i < side->begun; i++) {
        struct host_slot *slot = &side->slots[i % HOST_SLOTS];

        if (slot->pull != pull)
            continue;
        host_settle(cuda, link, side, slot);
        slot->pull = NULL;
    }
}

/* ---- the sender ---------------------------------------------------------- */

static size_t host_describe(struct tpf_link *base,
                            const struct tpf_buffer *buffer,
                            unsigned char source[TPF_SOURCE], void **hold)
{
    struct host_link *link = (struct host_link *)base;
    const struct tpg_cuda *cuda = tpg_cuda_loaded();

    (void)hold;
    if (buffer->device.type != TP_DEVICE_CUDA || cuda == NULL)
        return 0;
    if (link->out.stage == NULL) {
        bool made;

        if (tpg_cuda_enter(cuda, buffer->device.index, NULL) != TP_OK)
            return 0;
        made = host_make(link, cuda);
        tpg_cuda_leave(cuda);
        if (!made)
            return 0;
    }
    source[0] = 1;                 /* the form */
    return 1;
}

static bool host_help(struct tpf_pull *base, const unsigned char *words,
                      size_t length)
{
    struct host_pull *help = (struct host_pull *)base;
    struct host_link *link = (struct host_link *)base->link;

    if (length != sizeof(help->number) || link->out.stage == NULL)
        return false;
    memcpy(&help->number, words, sizeof(help->number));
    tpb_list_append(&link->out.pulls, &base->node);
    host_count(help, true);
    return true;
}

static void host_leave(struct tpf_pull *base)
{
    struct host_link *link = (struct host_link *)base->link;

    host_withdraw(&link->out, (struct host_pull *)base);
}

/* The next piece of the oldest buffer. */
static void host_fill(struct host_link *link, const struct tpg_cuda *cuda)
{
    struct host_side *side = &link->out;
    struct host_pull *help = host_of(side->pulls.next);
    struct host_slot *slot = &side->slots[side->begun % HOST_SLOTS];
    struct host_piece *piece = &side->stage->pieces[side->begun % HOST_SLOTS];
    struct tpb_error error = { "" };

    slot->length = (uint32_t)host_piece_length(help);
    piece->number = help->number;
    piece->offset = help->begun;
    piece->length = slot->length;
    if (host_copy(link, cuda, side, slot, &help->base.to, help->begun, &error)
        != TP_OK) {
        tpb_info("%s", error.text);
        host_slot_end(cuda, slot);
        piece->length = HOST_FAILED;
        host_begun(side, help, help->base.to.length - help->begun);
        return;
    }
    host_begun(side, help, slot->length);
}

/* The oldest piece is in its slot: the receiver may see it. */
static void host_filled(struct host_link *link, const struct tpg_cuda *cuda,
                        cu_result code)
{
    struct host_side *side = &link->out;
    struct host_slot *slot = &side->slots[side->ended % HOST_SLOTS];
    struct host_pull *help = slot->pull;

    if (code != CU_OK)
        host_settle(cuda, link, side, slot);
    host_slot_end(cuda, slot);
    if (code != CU_OK)
        side->stage->pieces[side->ended % HOST_SLOTS].length = HOST_FAILED;
    if (help != NULL) {
        help->base.moved += slot->length;
        if (help->base.moved >= help->base.to.length || code != CU_OK)
            host_count(help, false);
    }
    /* Pairs with the acquire in host_receive(). */
    atomic_store_explicit(&side->stage->filled, ++side->ended,
                          memory_order_release);
}

static bool host_send(struct host_link *link, const struct tpg_cuda *cuda)
{
    struct host_side *side = &link->out;
    bool moved = false;
    uint64_t emptied;

    if (side->stage == NULL)
        return false;
    while (side->ended < side->begun) {
        cu_result code = TPG_MUTANT(NO_SLOT_WAIT) ? CU_OK
                         : host_slot_ask(cuda, side);

        if (code == CU_NOT_READY)
            break;
        host_filled(link, cuda, code);
        moved = true;
    }
    /* Acquire: what was copied out of a slot is before what comes into it. */
    emptied = atomic_load_explicit(&side->stage->emptied,
                                   memory_order_acquire);
    while (!tpb_list_empty(&side->pulls)
           && side->begun - emptied < HOST_SLOTS
           && side->begun - side->ended < HOST_SLOTS) {
        host_fill(link, cuda);
        moved = true;
    }
    return moved;
}

/* ---- the receiver -------------------------------------------------------- */

/* Numbers the call; what it says of the stage may still be in the socket. */
static size_t host_call(struct tpf_pull *base, unsigned char words[TPF_CALL])
{
    struct host_pull *pull = (struct host_pull *)base;
    struct host_link *link = (struct host_link *)base->link;

    if (link->in.stage == NULL
        && (!tpf_link_notes(base->link) || link->in.stage == NULL))
        return 0;
    pull->number = ++link->calls;
    memcpy(words, &pull->number, sizeof(pull->number));
    return sizeof(pull->number);
}

static enum tpf_progress host_pull(struct tpf_pull *base,
                                   struct tpb_error *error)
{
    struct host_pull *pull = (struct host_pull *)base;
    struct host_link *link = (struct host_link *)base->link;
    const struct tpg_cuda *cuda;

    if (link->in.stage == NULL) {
        tpb_fail(error, TP_ERR_NO_MEMORY, "the peer's pinned memory was not"
                 " passed (out of descriptors or memory?)");
        return TPF_PULL_REFUSED;
    }
    if (base->to.device.type == TP_DEVICE_CUDA
        && tpg_cuda_load(base->link->channel->env->settings, &cuda, error)
           != TP_OK)
        return TPF_PULL_REFUSED;
    tpb_list_append(&link->in.pulls, &base->node);
    host_count(pull, true);
    return TPF_PULL_MORE;
}

static bool host_cancel(struct tpf_pull *base)
{
    struct host_link *link = (struct host_link *)base->link;

    host_withdraw(&link->in, (struct host_pull *)base);
    return true;
}

/* All of the link's. */
static void host_stop(struct tpf_link *base)
{
    struct host_side *side = &((struct host_link *)base)->in;

    while (!tpb_list_empty(&side->pulls))
        host_withdraw(side, host_of(side->pulls.next));
    for (uint64_t i = side->ended; i < side->begun; i++)
        if (side->slots[i % HOST_SLOTS].pull != NULL)
            host_withdraw(side, side->slots[i % HOST_SLOTS].pull);
}

static void host_refuse(struct host_link *link, struct host_pull *pull,
                        const char *words)
{
    struct tpf_env *env = host_env(link);

    host_withdraw(&link->in, pull);
    env->upcalls->pulled(env->core, &pull->base, TPF_PULL_REFUSED, words);
}

/* The oldest piece is where it belongs: its slot is the sender's again.  True:
 * somebody was told, and anything may be different. */
static bool host_emptied(struct host_link *link, const struct tpg_cuda *cuda,
                         cu_result code)
{
    struct host_side *side = &link->in;
    struct host_slot *slot = &side->slots[side->ended % HOST_SLOTS];
    struct host_pull *pull = slot->pull;
    struct tpf_env *env = host_env(link);

    if (code != CU_OK)
        host_settle(cuda, link, side, slot);
    host_slot_end(cuda, slot);
    slot->pull = NULL;
    /* Pairs with the acquire in host_send(). */
    atomic_store_explicit(&side->stage->emptied, ++side->ended,
                          memory_order_release);
    if (pull == NULL)
        return false;
    if (code != CU_OK) {
        host_refuse(link, pull, "a copy to the device failed");
        return true;
    }
    pull->base.moved += slot->length;
    if (pull->base.moved < pull->base.to.length)
        return false;
    host_count(pull, false);
    env->upcalls->pulled(env->core, &pull->base, TPF_PULL_DONE, "");
    return true;
}

/* To the device by a copy of its own; to the host at once. */
static const char *host_land(struct host_link *link,
                             const struct tpg_cuda *cuda,
                             struct host_pull *pull, struct host_slot *slot)
{
    const struct tpf_buffer *to = &pull->base.to;
    struct host_side *side = &link->in;
    struct tpb_error error = { "" };

    if (to->device.type != TP_DEVICE_CUDA) {
        tpb_copy((unsigned char *)to->data + pull->begun,
                 host_place(side->stage, side->begun), slot->length);
        return NULL;
    }
    if (host_copy(link, cuda, side, slot, to, pull->begun, &error) == TP_OK)
        return NULL;
    tpb_info("%s", error.text);
    host_slot_end(cuda, slot);
    return "a copy to the device failed";
}

/* Whose is that piece?  NULL: nobody's any more. */
static struct host_pull *host_whose(struct host_side *side,
                                    const struct host_piece *piece)
{
    TPB_LIST_EACH(node, &side->pulls)
        if (host_of(node)->number == piece->number)
            return host_of(node);
    return NULL;
}

/* Why it is not what comes next for that buffer; NULL: it is. */
static const char *host_misfit(const struct host_pull *pull,
                               const struct host_piece *piece)
{
    if (piece->length == HOST_FAILED)
        return "the device of the sender failed";
    return piece->offset == pull->begun && piece->length > 0
           && piece->length <= HOST_SLOT
           && piece->length <= pull->base.to.length - pull->begun
           ? NULL : "a piece that does not fit";
}

/* The next piece that the sender has filled.  True: somebody was told. */
static bool host_take(struct host_link *link, const struct tpg_cuda *cuda)
{
    struct host_side *side = &link->in;
    struct host_slot *slot = &side->slots[side->begun % HOST_SLOTS];
    struct host_piece piece = side->stage->pieces[side->begun % HOST_SLOTS];
    struct host_pull *pull = host_whose(side, &piece);
    const char *words;

    *slot = (struct host_slot){ .length = piece.length };
    if (pull == NULL) {
        side->begun++;                 /* passed over */
        return false;
    }
    words = host_misfit(pull, &piece);
    if (words == NULL)
        words = host_land(link, cuda, pull, slot);
    if (words == NULL) {
        host_begun(side, pull, slot->length);
        return false;
    }
    side->begun++;
    host_refuse(link, pull, words);
    return true;
}

static bool host_receive(struct host_link *link, const struct tpg_cuda *cuda)
{
    struct host_side *side = &link->in;
    bool moved = false;
    uint64_t filled;

    if (side->stage == NULL)
        return false;
    while (side->ended < side->begun) {
        cu_result code = TPG_MUTANT(SLOT_TWICE) ? CU_OK
                         : host_slot_ask(cuda, side);

        if (code == CU_NOT_READY)
            break;
        moved = true;
        if (host_emptied(link, cuda, code))
            return true;
    }
    /* Pairs with the release in host_filled(). */
    filled = atomic_load_explicit(&side->stage->filled, memory_order_acquire);
    /* More than there are slots is nonsense, of which these are read.  What
     * this cpu copies itself goes piece by piece. */
    while (side->begun != filled && side->begun - side->ended < HOST_SLOTS) {
        const struct host_slot *slot = &side->slots[side->begun % HOST_SLOTS];

        moved = true;
        if (host_take(link, cuda) || slot->copied == NULL)
            return true;
    }
    return moved;
}

static bool host_step(struct tpb_list *node)
{
    struct host_link *link = TPB_CONTAINER(node, struct host_link, node);
    const struct tpg_cuda *cuda = tpg_cuda_loaded();
    bool moved = host_send(link, cuda);

    return host_receive(link, cuda) || moved;
}

static bool host_progress(struct tpf_channel *base)
{
    return tpb_list_turn(&((struct host_channel *)base)->links, host_step);
}

static void host_unlink(struct tpf_link *base)
{
    struct host_link *link = (struct host_link *)base;
    const struct tpg_cuda *cuda = tpg_cuda_loaded();

    if (link->node.next == NULL)
        return;                        /* it never was linked */
    tpb_list_unlink(&link->node);
    for (size_t i = 0; i < HOST_SLOTS; i++) {
        host_slot_end(cuda, &link->out.slots[i]);
        host_slot_end(cuda, &link->in.slots[i]);
    }
    host_side_end(&link->out);
    host_side_end(&link->in);
}

const struct tpf_channel_kind tpg_cuda_host = {
    .name = "cuda_host",
    .number = TPF_CHANNEL_CUDA_HOST,
    .reach = TPT_REACH_HOST,
    .devices = true,
    .by_device = true,
    .latency_ns = 13000,
    .megabytes = 30000,
    .channel_size = sizeof(struct host_channel),
    .link_size = sizeof(struct host_link),
    .pull_size = sizeof(struct host_pull),
    .probe = host_probe,
    .open = host_open,
    .link = host_link_try,
    .unlink = host_unlink,
    .describe = host_describe,
    .note = host_note_come,
    .call = host_call,
    .help = host_help,
    .leave = host_leave,
    .pull = host_pull,
    .cancel = host_cancel,
    .stop = host_stop,
    .progress = host_progress,
};
