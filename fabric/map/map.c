/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The map channel: memory of tp_alloc() is a memfd, which the receiver maps
 * once, to copy or to lend what lies in it.  Of a rank's messages to itself any
 * memory is mapped already.
 *
 * The descriptor of a block is passed to a peer when a buffer of it is sent
 * there first, over the transport's own way for descriptors.  The peer keeps
 * its mapping until the block is destroyed or the two part; buffers that are
 * borrowed keep it longer.  The mapping is read-only.
 *
 * Where the receiver's memory is such a block, too, and the sender has nothing
 * else to do or its stream is faster so, both copy (both.h): the sender into a
 * mapping of the receiver's block, which is made when he is called first, and
 * can be written.
 */
#include "config.h"

#include <sys/mman.h>

#include "fabric/both.h"
#include "fabric/memory.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

enum {
    MAP_BLOCKS = 1024,             /* of one peer that we keep mapped, and so
                                      that it is told of */
    MAP_KEY_BITS = 6, MAP_KEYS = 1 << MAP_KEY_BITS,
    /* Shorter ones are over before their sender has heard of the call. */
    MAP_CALL_LEAST = 32 * 1024,
    /* The last piece is waited for, so they are short. */
    MAP_PIECE_LEAST = 16 * 1024, MAP_PIECE_MOST = 64 * 1024,
    MAP_PIECES = 8,                /* of a buffer between the two */
    /* As of cma: he may not have found out yet whether it pays in a stream. */
    MAP_CALL_ALWAYS = 4 * 1024 * 1024
};

/* HERE_IS: to read from; TARGET_IS: to write to. */
enum map_what { MAP_HERE_IS = 1, MAP_FORGET, MAP_TARGET_IS };

/* Passed beside the frames; the first byte names the channel. */
struct map_note {
    uint8_t channel, what;
    uint8_t zero[6];
    uint64_t id, length;
};
_Static_assert(sizeof(struct map_note) == 24, "wire layout");

struct map_source {
    uint64_t id, offset;           /* to oneself: 0, and its address */
};

/* The receiver's call: where the buffer is to be. */
struct map_call {
    struct tpf_both_call pieces;
    struct map_source target;
};
_Static_assert(sizeof(struct map_call) == 40, "wire layout");
_Static_assert(sizeof(struct map_call) <= TPF_CALL, "TPF_CALL is too small");

/* A peer's block in our address space. */
struct map_view {
    struct map_view *next;         /* of the same key */
    uint64_t id;
    bool target;                   /* it can be written */
    unsigned char *address;
    size_t length;
    uint32_t holds;                /* buffers borrowed or being copied */
    bool dropped;                  /* not in the link any more */
};

/* A block that the peer knows. */
struct map_told {
    struct map_told *next;
    uint64_t id;
    bool target;                   /* ... to write to it */
};

struct map_channel {
    struct tpf_channel base;
    struct tpb_list links, pulls;
    struct tpb_list helps;         /* map_pull, at the sender */
};

struct map_link {
    struct tpf_link base;
    struct tpb_list node;          /* in the channel's links */
    bool own;                      /* to this process; it has no views */
    uint32_t count;                /* of views */
    uint32_t known;                /* so many views the peer may have */
    struct map_view *views[MAP_KEYS];
    struct map_told *told[MAP_KEYS];
    /* The block that was described last, which the peer knows, and when: most
     * programs send from one block. */
    struct tpf_memory last;
    uint64_t last_stamp;
};

static size_t map_key(uint64_t id)
{
    return id % MAP_KEYS;
}

/* ---- the channel and the trial ------------------------------------------ */

static tp_status map_probe(const struct tpf_env *env, struct tpb_error *error)
{
    (void)env;
    if (!tpb_shared_memory_works())
        return tpb_fail(error, TP_ERR_SYSTEM,
                        "no shared memory (memfd_create is refused)");
    return TP_OK;
}

static tp_status map_open(struct tpf_channel *base, struct tpb_error *error)
{
    struct map_channel *channel = (struct map_channel *)base;

    (void)error;
    tpb_list_init(&channel->links);
    tpb_list_init(&channel->pulls);
    tpb_list_init(&channel->helps);
    return TP_OK;
}

/* That a descriptor can be passed is all that it takes; the transport, which
 * did so when it connected, has shown it. */
static tp_status map_link(struct tpf_link *base, const void *address,
                          size_t length, struct tpb_error *error)
{
    struct map_link *link = (struct map_link *)base;

    (void)address;
    (void)length;
    link->own = (base->conn->backend->flags & TPF_SELF) != 0;
    if (link->own)
        return TP_OK;
    tpb_list_append(&((struct map_channel *)base->channel)->links,
                    &link->node);
    return tpf_link_passes(base, error);
}

static void map_view_free(struct map_view *view)
{
    munmap(view->address, view->length);
    tpb_free(view);
}

static void map_view_drop(struct map_view *view)
{
    view->dropped = true;
    if (view->holds == 0)
        map_view_free(view);
}

static void map_unlink(struct tpf_link *base)
{
    struct map_link *link = (struct map_link *)base;

    if (link->node.next != NULL)
        tpb_list_unlink(&link->node);
    for (size_t key = 0; key < MAP_KEYS; key++) {
        struct map_view *view = link->views[key];
        struct map_told *told = link->told[key];

        while (view != NULL) {
            struct map_view *next = view->next;

            map_view_drop(view);
            view = next;
        }
        while (told != NULL) {
            struct map_told *next = told->next;

            tpb_free(told);
            told = next;
        }
    }
}

/* ---- the sender --------------------------------------------------------- */

static bool map_tell(struct map_link *link, enum map_what what, uint64_t id,
                     uint64_t length, int fd)
{
    struct map_note note = { .channel = TPF_CHANNEL_MAP,
                             .what = (uint8_t)what, .id = id,
                             .length = length };
    struct tpf_conn *conn = link->base.conn;

    return conn->backend->pass != NULL
           && conn->backend->pass(conn, &note, sizeof(note), fd);
}

/* Does the peer know the block, and that it may write to it?  Tells it if not,
 * and it keeps one more. */
static bool map_known(struct map_link *link, const struct tpf_memory *block,
                      bool target)
{
    struct map_told **slot = &link->told[map_key(block->id)], *told;

    for (told = *slot; told != NULL; told = told->next)
        if (told->id == block->id && told->target == target)
            return true;
    if (link->known >= MAP_BLOCKS)
        return false;
    told = tpb_zalloc(sizeof(*told));
    if (told == NULL
        || !map_tell(link, target ? MAP_TARGET_IS : MAP_HERE_IS, block->id,
                     block->length, block->fd)) {
        tpb_free(told);
        return false;
    }
    told->id = block->id;
    told->target = target;
    told->next = *slot;
    *slot = told;
    link->known++;
    return true;
}

/* A block that the peer knows, or is told of now; and where in it. */
static bool map_place(struct tpf_link *base, const struct tpf_buffer *buffer,
                      bool target, struct map_source *where)
{
    struct map_link *link = (struct map_link *)base;
    uint64_t stamp = tpf_memory_stamp(base->channel->env->memories);
    struct tpf_memory block;

    if (buffer->device.type != TP_DEVICE_CPU
        || !tpf_memory_find(base->channel->env->memories, buffer->data,
                            buffer->length, &block)
        || block.fd < 0
        || !map_known(link, &block, target))
        return false;
    if (!target) {
        link->last = block;
        link->last_stamp = stamp;
    }
    where->id = block.id;
    where->offset = (uint64_t)((unsigned char *)buffer->data - block.address);
    return true;
}

/* Is it in the block that was described last?  Who frees a block changes the
 * stamp before the peers forget it. */
static bool map_again(const struct map_link *link,
                      const struct tpf_buffer *buffer, struct map_source *where)
{
    const struct tpf_memory *last = &link->last;
    size_t offset = (size_t)((unsigned char *)buffer->data - last->address);

    if (offset >= last->length || buffer->length > last->length - offset
        || buffer->device.type != TP_DEVICE_CPU
        || tpf_memory_stamp(link->base.channel->env->memories)
           != link->last_stamp)
        return false;
    where->id = last->id;
    where->offset = offset;
    return true;
}

/* To oneself: where it lies is all that there is to say. */
static bool map_here(const struct map_link *link,
                     const struct tpf_buffer *buffer, struct map_source *where)
{
    where->id = 0;
    where->offset = (uintptr_t)buffer->data;
    return link->own && buffer->device.type == TP_DEVICE_CPU;
}

static size_t map_describe(struct tpf_link *base,
                           const struct tpf_buffer *buffer,
                           unsigned char source[TPF_SOURCE], void **hold)
{
    struct map_link *link = (struct map_link *)base;
    struct map_source where;

    (void)hold;
    if (!map_again(link, buffer, &where) && !map_here(link, buffer, &where)
        && !map_place(base, buffer, false, &where))
        return 0;
    memcpy(source, &where, sizeof(where));
    return sizeof(where);
}

/* The block is being freed: the peers need its mappings no more.  One that
 * cannot be told, for lack of memory, keeps them until the two part. */
static void map_freed(struct tpf_channel *base, uint64_t id)
{
    TPB_LIST_EACH(node, &((struct map_channel *)base)->links) {
        struct map_link *link = TPB_CONTAINER(node, struct map_link, node);
        struct map_told **slot = &link->told[map_key(id)];
        uint32_t known = 0;

        while (*slot != NULL) {
            struct map_told *told = *slot;

            if (told->id != id) {
                slot = &told->next;
                continue;
            }
            *slot = told->next;
            tpb_free(told);
            known++;
        }
        if (known > 0 && map_tell(link, MAP_FORGET, id, 0, -1))
            link->known -= known;
    }
}

/* ---- views -------------------------------------------------------------- */

static struct map_view **map_slot(struct map_link *link, uint64_t id,
                                  bool target)
{
    struct map_view **slot = &link->views[map_key(id)];

    while (*slot != NULL && ((*slot)->id != id || (*slot)->target != target))
        slot = &(*slot)->next;
    return slot;
}

/* Without a view its buffers are refused, and come in frames: so lack of
 * memory here is no error, nor of descriptors, for which the kernel drops what
 * is passed. */
static void map_add(struct map_link *link, const struct map_note *note,
                    int fd)
{
    bool target = note->what == MAP_TARGET_IS;
    struct map_view **slot = map_slot(link, note->id, target), *view;
    void *address;

    if (*slot != NULL || link->count >= MAP_BLOCKS)
        return;
    view = tpb_zalloc(sizeof(*view));
    if (view == NULL)
        return;
    address = mmap(NULL, note->length,
                   PROT_READ | (target ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) {
        tpb_free(view);
        return;
    }
    view->id = note->id;
    view->target = target;
    view->address = address;
    view->length = note->length;
    *slot = view;
    link->count++;
}

static void map_forget(struct map_link *link, uint64_t id, bool target)
{
    struct map_view **slot = map_slot(link, id, target), *view = *slot;

    if (view == NULL)
        return;
    *slot = view->next;
    link->count--;
    map_view_drop(view);
}

static bool map_note(struct tpf_link *base, const void *bytes, size_t length,
                     int fd)
{
    struct map_link *link = (struct map_link *)base;
    struct map_note note;
    bool good = length == sizeof(note);

    if (good)
        memcpy(&note, bytes, sizeof(note));
    if (good
        && (note.what == MAP_HERE_IS || note.what == MAP_TARGET_IS)) {
        good = note.length > 0 && note.length <= SIZE_MAX / 2
               && (fd < 0 || tpb_shared_memory_safe(fd, note.length));
        if (good && fd >= 0)
            map_add(link, &note, fd);
    } else if (good && note.what == MAP_FORGET) {
        map_forget(link, note.id, false);
        map_forget(link, note.id, true);
    } else {
        good = false;
    }
    tpb_close(&fd);
    return good;
}

/* Where that lies in our address space; NULL if it does not. */
static unsigned char *map_at(struct tpf_link *base,
                             const struct map_source *where, size_t length,
                             bool target, struct map_view **found)
{
    struct map_link *link = (struct map_link *)base;
    struct map_view *view = *map_slot(link, where->id, target);

    if (link->own) {
        *found = NULL;
        return (unsigned char *)(uintptr_t)where->offset;
    }
    if (view == NULL) {
        if (!tpf_link_notes(base))
            return NULL;
        view = *map_slot(link, where->id, target);
    }
    if (view == NULL || where->offset > view->length
        || length > view->length - where->offset)
        return NULL;
    *found = view;
    return view->address + where->offset;
}

/* ... a source; NULL with words. */
static unsigned char *map_find(struct tpf_link *base, const void *source,
                               size_t source_length, size_t length,
                               struct map_view **found,
                               struct tpb_error *error)
{
    struct map_source where;
    unsigned char *at;

    if (source_length != sizeof(where)) {
        tpb_fail(error, TP_ERR_PROTOCOL, "not a buffer for map");
        return NULL;
    }
    memcpy(&where, source, sizeof(where));
    at = map_at(base, &where, length, false, found);
    if (at == NULL)
        tpb_fail(error, TP_ERR_BACKEND, "the block could not be mapped"
                 " (limits on descriptors, mappings, address space or locked"
                 " memory)");
    return at;
}

/* NULL: there is none, or it is our own memory. */
static void map_hold(struct map_view *view)
{
    if (view != NULL)
        view->holds++;
}

static void map_let_go(struct map_view *view)
{
    if (view != NULL && --view->holds == 0 && view->dropped)
        map_view_free(view);
}

/* ---- how both copy ------------------------------------------------------- */

struct map_pull {
    struct tpf_pull base;
    struct tpf_both both;
    struct map_view *view;         /* held until the pull ends, or the help */
    unsigned char *at;             /* receiver: what he reads; sender: where he
                                      writes */
};
_Static_assert(sizeof(struct map_pull) <= TPF_PULL, "TPF_PULL is too small");

static struct tpf_both *map_both(struct tpf_pull *pull)
{
    return &((struct map_pull *)pull)->both;
}

static void map_copy(const struct tpf_pull *pull, void *to, const void *from,
                     size_t length)
{
    if (pull->to.length >= TPB_COPY_PAST)
        tpb_copy_past(to, from, length);
    else
        tpb_copy(to, from, length);
}

static size_t map_take(struct tpf_pull *pull, size_t at, size_t length,
                       struct tpb_error *error)
{
    (void)error;
    map_copy(pull, (unsigned char *)pull->to.data + at,
             ((struct map_pull *)pull)->at + at, length);
    return length;
}

static bool map_give(struct tpf_pull *help, size_t at, size_t length)
{
    map_copy(help, ((struct map_pull *)help)->at + at,
             (unsigned char *)help->to.data + at, length);
    return true;
}

static bool map_lives(const struct tpf_link *link)
{
    return !link->conn->backend->parted(link->conn);
}

static const struct tpf_both_ways map_ways = {
    .of = map_both, .take = map_take, .give = map_give, .lives = map_lives
};

/* ---- the receiver ------------------------------------------------------- */

static size_t map_piece(size_t length)
{
    size_t piece = length / MAP_PIECES & ~(size_t)(MAP_PIECE_LEAST - 1);

    if (piece < MAP_PIECE_LEAST)
        return MAP_PIECE_LEAST;
    return piece < MAP_PIECE_MOST ? piece : MAP_PIECE_MOST;
}

static size_t map_call(struct tpf_pull *pull, unsigned char words[TPF_CALL])
{
    struct map_call call;

    if ((!pull->alone && !pull->shared && pull->to.length < MAP_CALL_ALWAYS)
        || pull->to.length < MAP_CALL_LEAST
        || pull->link->conn->backend->parted == NULL
        || !map_place(pull->link, &pull->to, true, &call.target)
        || !tpf_both_begin(pull, &map_ways, map_piece(pull->to.length), 0,
                           &call.pieces))
        return 0;
    memcpy(words, &call, sizeof(call));
    return sizeof(call);
}

static enum tpf_progress map_move(struct tpf_pull *base,
                                  struct tpb_error *error)
{
    enum tpf_progress result = tpf_both_move(base, &map_ways, error);

    if (result != TPF_PULL_MORE)
        map_let_go(((struct map_pull *)base)->view);
    return result;
}

static enum tpf_progress map_pull(struct tpf_pull *base,
                                  struct tpb_error *error)
{
    struct map_pull *pull = (struct map_pull *)base;
    struct map_channel *channel = (struct map_channel *)base->link->channel;

    if (base->to.device.type != TP_DEVICE_CPU)
        tpb_fail(error, TP_ERR_NOT_SUPPORTED, "not to a device");
    else
        pull->at = map_find(base->link, base->source, base->source_length,
                            base->to.length, &pull->view, error);
    if (pull->at == NULL) {
        tpf_both_quit(base, &map_ways);
        return TPF_PULL_REFUSED;
    }
    map_hold(pull->view);
    return tpf_strides_start(&channel->pulls, base, map_move, error);
}

static bool map_cancel(struct tpf_pull *base)
{
    struct map_view *view = ((struct map_pull *)base)->view;

    tpf_both_quit(base, &map_ways);
    map_let_go(view);              /* called, not yet begun: NULL */
    return tpf_strides_cancel(base);
}

/* ---- the sender who is called -------------------------------------------- */

static bool map_help(struct tpf_pull *base, const unsigned char *words,
                     size_t length)
{
    struct map_channel *channel = (struct map_channel *)base->link->channel;
    struct map_pull *help = (struct map_pull *)base;
    struct map_call call;

    if (length != sizeof(call))
        return false;
    memcpy(&call, words, sizeof(call));
    if (!tpf_both_valid(base, &call.pieces, MAP_PIECE_LEAST))
        return false;
    help->at = map_at(base->link, &call.target, base->to.length, true,
                      &help->view);
    if (help->at == NULL)
        return true;               /* no memory to map it: he copies alone */
    map_hold(help->view);
    tpf_both_help(&channel->helps, base, &map_ways, &call.pieces);
    return true;
}

static void map_leave(struct tpf_pull *base)
{
    struct map_view *view = ((struct map_pull *)base)->view;

    tpf_both_leave(base);
    map_let_go(view);
}

static bool map_progress(struct tpf_channel *base)
{
    struct map_channel *channel = (struct map_channel *)base;
    bool moved = tpf_strides_progress(base, &channel->pulls, map_move);

    return tpf_both_progress(&channel->helps, &map_ways) || moved;
}

/* ---- lending ------------------------------------------------------------- */

static enum tpf_progress map_map(struct tpf_link *link, const void *source,
                                 size_t source_length, size_t length,
                                 struct tpf_buffer *buffer, void **hold,
                                 struct tpb_error *error)
{
    struct map_view *view;
    unsigned char *at = map_find(link, source, source_length, length, &view,
                                 error);

    /* A loan outlives its pipe, and what was written there does not: there is
     * no mapping of our own that keeps it. */
    if (at == NULL || ((struct map_link *)link)->own)
        return TPF_PULL_REFUSED;
    view->holds++;
    buffer->data = at;
    *hold = view;
    return TPF_PULL_DONE;
}

static void map_unmap(struct tpf_channel *channel, void *hold)
{
    (void)channel;
    map_let_go(hold);
}

const struct tpf_channel_kind tpf_map = {
    .name = "map",
    .number = TPF_CHANNEL_MAP,
    .reach = TPT_REACH_HOST,
    .within = true,
    .latency_ns = 200,
    .megabytes = 40000,
    .channel_size = sizeof(struct map_channel),
    .link_size = sizeof(struct map_link),
    .pull_size = sizeof(struct map_pull),
    .probe = map_probe,
    .open = map_open,
    .link = map_link,
    .unlink = map_unlink,
    .describe = map_describe,
    .freed = map_freed,
    .pull = map_pull,
    .call = map_call,
    .help = map_help,
    .leave = map_leave,
    .cancel = map_cancel,
    .progress = map_progress,
    .map = map_map,
    .unmap = map_unmap,
    .note = map_note,
};
