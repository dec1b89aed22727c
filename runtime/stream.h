/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A pipe's stream: its frames written and taken, its messages and their
 * readers.  One part per source file, as in runtime/core.h, whose types these
 * work on.
 */
#ifndef TPR_STREAM_H
#define TPR_STREAM_H

#include "runtime/core.h"

/* ---- tx.c --------------------------------------------------------------- */

/* May a frame of that length go?  Without anything under way always, so that
 * a window smaller than a frame cannot stop a pipe. */
static inline bool tpr_tx_credit_for(const tp_pipe *pipe, size_t length)
{
    uint32_t under_way = pipe->sent - pipe->acknowledged;

    return under_way == 0
           || under_way + length <= pipe->peer->conn->window;
}
/* The first half of a struct wire_frame. */
static inline uint64_t tpr_frame_word(enum wire_type type, unsigned flags,
                                      uint16_t wishes, uint32_t number)
{
    return type | flags << 8 | (uint64_t)wishes << 16 | (uint64_t)number << 32;
}
/* The pipe of that number that a frame came for; with the token.  NULL: a peer
 * outside the job has but one, or there is no memory. */
static inline tp_pipe *tpr_pipe_of(struct tpr_peer *peer, uint32_t number)
{
    tp_pipe **recent;

    if (TPB_LIKELY(number == 0))
        return atomic_load_explicit(&peer->ready_made, memory_order_acquire);
    /* By the upper 3 bits of a product, which depend on all of the number. */
    recent = &peer->recent[number * 2654435761u >> 29];
    if (*recent != NULL && (*recent)->number == number)
        return *recent;
    if (peer->guest != NULL)
        return NULL;
    return *recent = tpr_pipe_get(peer, number);
}
/* Of a frame for post(), as struct wire_frame. */
static inline struct tpf_head tpr_frame_head(const tp_pipe *pipe,
                                             enum wire_type type,
                                             unsigned flags, size_t length)
{
    return (struct tpf_head){ {
        tpr_frame_word(type, flags, pipe->peer->wishes, pipe->number),
        pipe->consumed | (uint64_t)length << 32 } };
}
void tpr_tx_write(tp_pipe *pipe, struct tpr_op *op);
void tpr_tx_pump(tp_pipe *pipe);
void tpr_tx_unblock(struct tpr_peer *peer);
void tpr_tx_credit(tp_pipe *pipe, uint32_t credit);
void tpr_tx_return_credit(tp_pipe *pipe);
void tpr_tx_end(tp_pipe *pipe, tp_status status);
bool tpr_tx_control(tp_pipe *pipe, enum wire_type type);
/* Tells the peer that this side is over: now, or as soon as nothing here needs
 * the memory that it takes back by that. */
void tpr_tx_close(tp_pipe *pipe);
bool tpr_tx_short(tp_pipe *pipe, const void *data, size_t length);
/* The same of what tpr_small_length() told of; its buffers are the host's. */
bool tpr_tx_small(tp_pipe *pipe, const tp_message *message, size_t length,
                  size_t data_length);
/* Its state, its conn, its links or what it wishes are others now: sets
 * peer->brief and peer->lend. */
void tpr_tx_brief(struct tpr_peer *peer);

/* ---- descriptor.c ------------------------------------------------------- */

/* Encodes `room` bytes of the descriptor, from byte `from` on.  All of it are
 * `length`: without offers tpr_descriptor_length(), and the offers' sources;
 * `sent` as in wire_descriptor. */
uint64_t tpr_descriptor_length(const tp_message *message);
void tpr_descriptor_encode(const tp_message *message,
                           const struct tpr_offer *offers, uint32_t sent,
                           uint64_t length, uint64_t from, unsigned char *to,
                           size_t room);

/* ---- rx.c, readers.c, skeleton.c ---------------------------------------- */

/* Of rx.c, for readers.c: gives the skeleton at the head to who waits for one;
 * a read at the head begins; the pipe has ended, and so do all its readers. */
void tpr_rx_offer(tp_pipe *pipe);
void tpr_rx_begin(tp_pipe *pipe, struct tpr_op *op);
void tpr_rx_finish(tp_pipe *pipe);
/* The pipe has ended otherwise than by the peer's leave, and its last skeleton
 * is with the user, who may never read it.  Who waits for more than what has
 * arrived behind that hears at once. */
void tpr_rx_end_idle(tp_pipe *pipe);
/* Frees what long descriptors were collected in, between two of them ... */
void tpr_rx_gather_drop(tp_pipe *pipe);
/* ... and all that a pipe needs no more that has ended for good. */
void tpr_pipe_lean(tp_pipe *pipe);
/* Bytes of a message have been copied, or will be now, that the pipe's peer has
 * written, who is on this host. */
static inline void tpr_rx_copied(const tp_pipe *pipe, uint64_t length)
{
    tp_context *context = pipe->context;

    if (TPB_UNLIKELY(context->crowded)
        && tpr_crowd_copied(&context->crowd, length))
        context->giver = pipe->peer->conn;
}
/* ... out of frames, if it is on this host. */
static inline void tpr_rx_framed(const tp_pipe *pipe, uint64_t length)
{
    const struct tpf_conn *conn = pipe->peer->conn;

    if (TPB_UNLIKELY(length >= TPR_CROWD_LONG) && conn != NULL
        && conn->backend->presence != NULL)
        tpr_rx_copied(pipe, length);
}
/* The bytes of a message whose skeleton is, or will be, with the user go to the
 * backlog.  False: there is no memory. */
bool tpr_rx_set_aside(tp_pipe *pipe, unsigned flags, const unsigned char *data,
                      uint32_t length, uint32_t cost);
/* Of the backlog, used up or not wanted any more: its credit goes back. */
void tpr_rx_forget(tp_pipe *pipe, struct tpr_chunk *chunk);
/* For bytes of a frame; NULL: there is no memory.  Freed when they have been
 * used; some are kept. */
struct tpr_chunk *tpr_chunk_new(tp_context *context, uint32_t length);
void tpr_chunk_free(tp_context *context, struct tpr_chunk *chunk);
void tpr_chunks_fini(tp_context *context);

/* The pipe cannot go on, and the peer is told. */
void tpr_rx_break(tp_pipe *pipe, tp_status status, const char *text);
bool tpr_rx_conn(tp_context *context, struct tpf_conn *conn);
void tpr_rx_stash_open(tp_context *context);
/* The open frame: steps, and callbacks in between, so that a reader may ask for
 * the data while it still lies in the backend's memory. */
void tpr_rx_run_open(tp_context *context);
void tpr_rx_arm(tp_pipe *pipe, struct tpr_op *op);
void tpr_rx_arm_any(tp_context *context, struct tpr_op *op);
void tpr_rx_read(tp_pipe *pipe, struct tpr_op *op);
/* Where a long message is to go is memory that the program may just have got:
 * see pages.h. */
void tpr_rx_pages(tp_pipe *pipe, const struct tpr_op *op);
/* Reads at the head that have all of their message end. */
void tpr_rx_land(tp_pipe *pipe);
void tpr_rx_pump(tp_pipe *pipe);
/* Is all of the message whose skeleton is with the user in the backlog? */
bool tpr_rx_has_all(const tp_pipe *pipe);
void tpr_rx_end(tp_pipe *pipe, tp_status status);      /* after the backlog */
void tpr_rx_drop(tp_pipe *pipe, tp_status status);     /* now */

/* From the pipe's pool, its message empty, with `storage` bytes; or NULL. */
struct tpr_skeleton *tpr_skeleton_new(tp_pipe *pipe, size_t storage);
/* Of a message of one payload and nothing else; or NULL. */
struct tpr_skeleton *tpr_skeleton_first(tp_pipe *pipe);  /* none is kept */
static inline struct tpr_skeleton *tpr_skeleton_short(tp_pipe *pipe,
                                                      size_t length)
{
    struct tpr_skeleton *skeleton = pipe->free_skeletons;
    tp_payload *payload;

    if (TPB_LIKELY(skeleton != NULL && skeleton->storage != NULL))
        pipe->free_skeletons = skeleton->next;
    else if ((skeleton = tpr_skeleton_first(pipe)) == NULL)
        return NULL;
    payload = (tp_payload *)(void *)skeleton->storage;
    *payload = (tp_payload){ .length = length };
    skeleton->message = (tp_message){ .payloads = payload,
                                      .payload_count = 1 };
    skeleton->data_length = skeleton->stream_length = length;
    return skeleton;
}
/* The same of one tensor, see tpr_tensor_flags(). */
static inline struct tpr_skeleton *
tpr_skeleton_tensor(tp_pipe *pipe, unsigned flags, size_t length)
{
    struct tpr_skeleton *skeleton = tpr_skeleton_short(pipe, length);
    tp_tensor *tensor;

    if (skeleton == NULL)
        return NULL;
    tensor = (tp_tensor *)(void *)skeleton->storage;
    *tensor = (tp_tensor){ .length = length };
    if ((flags & WIRE_HOST) == 0)
        tensor->target.type = TP_DEVICE_ANY;
    skeleton->message = (tp_message){ .tensors = tensor, .tensor_count = 1 };
    return skeleton;
}
/* Which of the two a frame with WIRE_SHORT says. */
static inline struct tpr_skeleton *
tpr_skeleton_single(tp_pipe *pipe, unsigned flags, size_t length)
{
    return (flags & WIRE_TENSOR) != 0
           ? tpr_skeleton_tensor(pipe, flags, length)
           : tpr_skeleton_short(pipe, length);
}
/* Back to its pipe, if nothing hangs on it: else tpr_skeleton_free(). */
static inline void tpr_skeleton_put(struct tpr_skeleton *skeleton)
{
    skeleton->next = skeleton->pipe->free_skeletons;
    skeleton->pipe->free_skeletons = skeleton;
}
uint64_t tpr_descriptor_check(const struct wire_descriptor *head);
tp_status tpr_skeleton_decode(tp_pipe *pipe, const unsigned char *descriptor,
                              uint64_t length, struct tpr_skeleton **skeleton);
void tpr_skeleton_free(struct tpr_skeleton *skeleton);
void tpr_skeletons_fini(tp_pipe *pipe);
/* Is this a skeleton of the pipe that waits to be read, with memory for all
 * its buffers?  Takes it from the user if so. */
bool tpr_skeleton_claim(tp_pipe *pipe, tp_message *message, bool borrow);
/* What tp_pipe_error() says of one that is not, or has not. */
void tpr_skeleton_tell(tp_pipe *pipe, const tp_message *message);
/* Memory for every buffer, and the lengths untouched? */
bool tpr_skeleton_filled(const struct tpr_skeleton *skeleton);
/* It could not be read after all: the user has it again. */
void tpr_skeleton_unclaim(tp_pipe *pipe, tp_message *message);

/* The buffer at a cursor: its address and what is left of it; skips the empty
 * ones.  False at the end of the message. */
bool tpr_cursor_at(const tp_message *message, struct tpr_cursor *cursor,
                   unsigned char **data, size_t *left);
/* A buffer by its index; false if there is none such. */
bool tpr_message_buffer(const tp_message *message, size_t index,
                        struct tpf_buffer *buffer);

/* ---- small.c ------------------------------------------------------------- */

/* The body of the frame that takes the whole message, in bytes, and how much of
 * it is the buffers'; 0: it does not go that way, or is not valid. */
size_t tpr_small_length(const tp_message *message, size_t *data_length);
void tpr_small_encode(const tp_message *message, size_t length,
                      unsigned char *to);
/* Makes it a skeleton.  Its buffers' bytes begin after `*taken` of the body. */
tp_status tpr_small_decode(tp_pipe *pipe, const unsigned char *body,
                           uint32_t length, struct tpr_skeleton **skeleton,
                           uint32_t *taken);

/* ---- aside.c ------------------------------------------------------------- */

/* What has come whole in that frame is for a caller of tp_pipe_recv_skeleton(),
 * who is not told yet; the frame stays.  `data` is what its skeleton says the
 * buffers are.  False: there is no memory, nothing is done. */
bool tpr_aside_put(tp_pipe *pipe, struct tpr_op *op,
                   struct tpr_skeleton *skeleton,
                   const struct wire_frame *frame, const unsigned char *data);
/* Reads such a message at once.  False: that cannot be, nothing is done.
 * Token. */
bool tpr_aside_take(tp_pipe *pipe, tp_message *message);

/* ---- short.c, short_write.c ---------------------------------------------- */

/* Of an operation that has become another one: what begins as zero. */
static inline void tpr_op_clear(struct tpr_op *op)
{
    memset((char *)op + TPR_OP_REST, 0, sizeof(*op) - TPR_OP_REST);
}

/* Tells a waiter, of whom all else is set: his stack may be gone right after.
 * Token. */
static inline void tpr_sync_end(tp_context *context, struct tpr_sync *sync)
{
    context->served = context->news = true;
    /* Pairs with the acquire in drive_told(). */
    atomic_store_explicit(&sync->over, 1, memory_order_release);
    tpr_wake_sleepers(context);
    if (TPB_UNLIKELY(context->armed))
        tpr_touch(context);
}

/* The operation that the pool gives next, which stays there; or NULL. */
static inline struct tpr_op *tpr_short_op(tp_context *context)
{
    return context->free_ops;
}

static inline void tpr_short_op_take(tp_context *context)
{
    struct tpr_op *op = context->free_ops;

    context->free_ops = (struct tpr_op *)(void *)op->link.next;
    context->free_op_count--;
}

/* Who is inside a callback has the token, and nothing to give back.  But his
 * call may have to become a task, see tpr_enter_in_turn(). */
static inline bool tpr_short_in_turn(tp_context *context)
{
    return atomic_load_explicit(&context->tasks, memory_order_relaxed) == NULL;
}

enum {
    TPR_TURN_LOOKS = 16,           /* frames between two looks */
    TPR_NO_GLANCES = 1000          /* before the next pass */
};

/* Is it some milliseconds since epoll was asked?  The callbacks of a program
 * may take that long, or its own work between two calls: a pass comes next,
 * which asks, and others have their turn. */
static inline bool tpr_takes_long(tp_context *context)
{
    if (TPB_LIKELY(tpb_tick() == context->tick))
        return false;
    context->glances = TPR_NO_GLANCES;
    return true;
}
/* The same in a turn of which so many frames are left. */
static inline bool tpr_turn_takes_long(tp_context *context, int left)
{
    return TPB_UNLIKELY(left % TPR_TURN_LOOKS == 1) && tpr_takes_long(context);
}

enum tpr_short {
    TPR_SHORT_NONE,                /* there is no frame */
    TPR_SHORT_OTHER,               /* `frame` is to be looked at by others */
    TPR_SHORT_PAUSE                /* others come first, or that is enough */
};
/* The operation's message, whole in what has come, is with the user now. */
static inline __attribute__((always_inline)) void
tpr_short_offer(tp_pipe *pipe, struct tpr_op *op,
                struct tpr_skeleton *skeleton)
{
    pipe->skeleton = skeleton;
    pipe->missing = skeleton->data_length;
    pipe->rx_state = TPR_RX_OFFERED;
    atomic_store_explicit(&pipe->offered, &skeleton->message,
                          memory_order_release);
    TPR_COUNT(pipe->record->stats.reads_pending, -1);
    tpb_list_unlink(&op->link);
}
/* Copies to all buffers of the message what lies there one after the other;
 * `fetch` as in tpb_fetch_copy(). */
void tpr_short_spread(const tp_message *message, struct tpb_fetch *fetch,
                      const unsigned char *from);
/* Is there memory of the host for all buffers of the pipe's skeleton, and are
 * they as long as what came? */
bool tpr_short_is_filled(const tp_pipe *pipe, const tp_message *message);
/* Writes a message for a caller who waits, if it is short and nothing is before
 * it; any thread.  False: not so, nothing is done. */
bool tpr_short_at_once(tp_pipe *pipe, const tp_message *message);
/* Arms a caller who waits for the pipe's next message.  False: not so, as there
 * may be one already.  Token. */
bool tpr_short_arm(tp_pipe *pipe, struct tpr_sync *sync);
/* Of the frames that have arrived, at most `left`, the short messages that a
 * callback waits for: calls that, and the one of its read, and pops them; or
 * those that a caller waits for, who is told. */
enum tpr_short tpr_short_serve(tp_context *context, struct tpf_conn *conn,
                               int *left, const unsigned char **frame,
                               size_t *size);

#endif
