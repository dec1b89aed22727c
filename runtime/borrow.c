/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Borrowing: instead of reading into his own memory the user gets the buffers
 * in place, where a channel can map the sender's memory, and copies that belong
 * to the message where none can.  The sender's write ends with the release.
 */
#include "config.h"

#include "runtime/base/alloc.h"
#include "runtime/base/log.h"
#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/stream.h"

TPB_LOG_COMPONENT("borrow");

static struct tpr_skeleton *borrow_skeleton(tp_message *message)
{
    return (struct tpr_skeleton *)(void *)message;
}

/* ---- memory for what cannot be lent -------------------------------------- */

static size_t borrow_round(size_t length)
{
    return (length + TPB_CACHE_LINE - 1) / TPB_CACHE_LINE * TPB_CACHE_LINE;
}

/* All of it is written before anybody sees it. */
static unsigned char *borrow_copy(struct tpr_skeleton *skeleton, size_t length)
{
    struct tpr_copy *copy = skeleton->spare;

    skeleton->spare = NULL;
    if (copy == NULL || length > copy->capacity) {
        tpb_free(copy);
        copy = length > SIZE_MAX / 2 ? NULL
               : tpb_zalloc(sizeof(*copy) + length);
        if (copy == NULL)
            return NULL;
        copy->capacity = length;
    }
    copy->next = skeleton->copies;
    skeleton->copies = copy;
    return copy->bytes;
}

unsigned char *tpr_borrow_copy(tp_message *message, size_t length)
{
    return borrow_copy(borrow_skeleton(message), borrow_round(length));
}

/* `device`: NULL is this process's CPU memory. */
static void borrow_place(tp_message *message, size_t index, void *data,
                         const tp_device *device)
{
    tp_tensor *tensor;

    if (index < message->payload_count) {
        message->payloads[index].data = data;
        return;
    }
    tensor = &message->tensors[index - message->payload_count];
    tensor->data = data;
    tensor->device = device != NULL ? *device
                                    : (tp_device){ TP_DEVICE_CPU, 0 };
    tensor->stream = NULL;
}

/* Could a channel lend the next buffer?  `offer` is the first one that is not
 * before it. */
static bool borrow_could(tp_context *context, const struct tpr_offer *offer,
                         size_t index)
{
    const struct tpf_channel *channel;

    if (offer == NULL || offer->buffer != index)
        return false;
    channel = context->channels[offer->channel];
    return channel != NULL && channel->kind->map != NULL;
}

bool tpr_borrow_prepare(tp_context *context, tp_message *message)
{
    struct tpr_skeleton *skeleton = borrow_skeleton(message);
    unsigned char *bytes = NULL;
    size_t total = 0;

    /* First their size, then their places. */
    for (int round = 0; round < 2; round++) {
        const struct tpr_offer *offer = skeleton->offers;
        struct tpf_buffer buffer;

        for (size_t i = 0; tpr_message_buffer(message, i, &buffer); i++) {
            bool lend = borrow_could(context, offer, i);

            if (offer != NULL && offer->buffer == i)
                offer = offer->next;
            if (round == 0)
                total += lend ? 0 : borrow_round(buffer.length);
            else
                borrow_place(message, i,
                             lend || buffer.length == 0 ? NULL : bytes,
                             NULL);
            if (round == 1 && !lend)
                bytes += borrow_round(buffer.length);
        }
        if (round == 0 && total > 0) {
            bytes = borrow_copy(skeleton, total);
            if (bytes == NULL)
                return false;
        }
    }
    return true;
}

/* ---- lending ------------------------------------------------------------- */

bool tpr_borrow_map(struct tpr_op *op, struct tpr_offer *offer,
                    struct tpf_link *link)
{
    struct tpr_skeleton *skeleton = borrow_skeleton(op->message);
    struct tpb_error error = { "" };
    struct tpf_buffer buffer;

    tpr_message_buffer(op->message, offer->buffer, &buffer);
    if (link->kind->map != NULL
        && link->kind->map(link, offer->source, offer->source_length,
                           offer->length, &buffer, &offer->hold, &error)
           == TPF_PULL_DONE) {
        offer->borrowed = true;
        borrow_place(op->message, offer->buffer, buffer.data, &buffer.device);
        return true;
    }
    if (buffer.data == NULL) {
        unsigned char *bytes = borrow_copy(skeleton, offer->length);

        if (bytes == NULL)
            op->status = TP_ERR_NO_MEMORY;
        borrow_place(op->message, offer->buffer, bytes, NULL);
    }
    return false;
}

void tpr_borrow_begin(struct tpr_op *op)
{
    struct tpr_skeleton *skeleton = borrow_skeleton(op->message);
    tp_context *context = op->context;

    op->pipe->lent++;
    /* Pairs with borrow_take().  No exchange: without the token nobody puts
     * one there. */
    if (TPB_LIKELY(atomic_load_explicit(&context->loan, memory_order_relaxed)
                   == NULL)) {
        atomic_store_explicit(&context->loan, skeleton, memory_order_release);
        return;
    }
    pthread_mutex_lock(&context->table_lock);
    tpb_list_append(&context->lent, &skeleton->lent_link);
    pthread_mutex_unlock(&context->table_lock);
}

/* ---- giving back --------------------------------------------------------- */

void tpr_borrow_unmap(struct tpr_skeleton *skeleton)
{
    const tp_context *context = skeleton->pipe->context;

    for (struct tpr_offer *offer = skeleton->offers; offer != NULL;
         offer = offer->next) {
        struct tpf_channel *channel = context->channels[offer->channel];

        if (offer->borrowed && channel != NULL)
            channel->kind->unmap(channel, offer->hold);
        offer->borrowed = false;
    }
}

static bool borrow_maps(const struct tpr_skeleton *skeleton)
{
    for (const struct tpr_offer *offer = skeleton->offers; offer != NULL;
         offer = offer->next)
        if (offer->borrowed)
            return true;
    return false;
}

/* Takes it from the lent ones; NULL if it is none of this pipe's. */
static struct tpr_skeleton *borrow_take(tp_pipe *pipe,
                                        const tp_message *message)
{
    struct tpr_skeleton *found = NULL, *loan;

    /* Pairs with tpr_borrow_begin().  Skeletons stay as long as the pipe. */
    loan = atomic_load_explicit(&pipe->context->loan, memory_order_acquire);
    if (TPB_LIKELY(loan != NULL && &loan->message == message
                   && loan->pipe == pipe)
        && atomic_compare_exchange_strong(&pipe->context->loan, &loan, NULL))
        return borrow_skeleton((tp_message *)(uintptr_t)message);
    pthread_mutex_lock(&pipe->context->table_lock);
    TPB_LIST_EACH(node, &pipe->context->lent) {
        struct tpr_skeleton *skeleton = TPB_CONTAINER(node,
                                                      struct tpr_skeleton,
                                                      lent_link);

        if (&skeleton->message == message && skeleton->pipe == pipe)
            found = skeleton;
    }
    if (found != NULL)
        tpb_list_unlink(&found->lent_link);
    pthread_mutex_unlock(&pipe->context->table_lock);
    return found;
}

/* Takes a loan back of which the user has not heard yet. */
static void borrow_recall(struct tpr_op *op)
{
    struct tpr_skeleton *skeleton = borrow_skeleton(op->message);

    borrow_take(op->pipe, op->message);
    tpr_borrow_unmap(skeleton);
    op->pipe->lent--;
    op->status = op->pipe->rx_end;
}

/* This side has ended the pipe, and the peer does not wait for what it lent:
 * unless it has closed the pipe before, or is gone. */
static bool borrow_may_change(const tp_pipe *pipe)
{
    return pipe->closed || (pipe->rx_end != TP_ERR_PEER_CLOSED
                            && pipe->peer->state == TPR_PEER_CONNECTED);
}

void tpr_borrow_recall_one(struct tpr_op *op)
{
    if (op->kind == TPR_OP_READ && op->borrow && op->status == TP_OK
        && borrow_may_change(op->pipe)
        && borrow_maps(borrow_skeleton(op->message)))
        borrow_recall(op);
}

void tpr_borrow_recall(const tp_pipe *pipe)
{
    TPB_LIST_EACH(node, &pipe->context->done) {
        struct tpr_op *op = TPB_CONTAINER(node, struct tpr_op, link);

        if (op->pipe == pipe)
            tpr_borrow_recall_one(op);
    }
}

/* The token; the skeleton is not in context->lent any more. */
static void borrow_over(struct tpr_skeleton *skeleton)
{
    uint32_t number = skeleton->number;
    tp_pipe *pipe = skeleton->pipe;
    bool offers = skeleton->offers != NULL;

    tpr_skeleton_free(skeleton);
    pipe->lent--;
    if (pipe->tell_due && pipe->lent == 0)
        tpr_pull_tell_all(pipe, true);
    else if (offers && pipe->peer->state == TPR_PEER_CONNECTED)
        tpr_lent_release(pipe, number);
    /* CLOSE, which gives all back, may have waited for this one. */
    if (TPB_UNLIKELY(pipe->close_due))
        tpr_tx_pump(pipe);
}

/* What the user has enqueued on the tensors' streams still reads the memory. */
static void borrow_end(tp_context *context, struct tpr_skeleton *skeleton)
{
    if (skeleton->release != NULL
        && tpg_work_ready(skeleton->release) == TPG_LATER) {
        pthread_mutex_lock(&context->table_lock);
        tpb_list_append(&context->device_releases, &skeleton->lent_link);
        pthread_mutex_unlock(&context->table_lock);
        skeleton->pipe->released++;
        tpr_touch(context);
        return;
    }
    if (TPB_UNLIKELY(skeleton->release != NULL))
        tpg_work_end(skeleton->release);
    skeleton->release = NULL;
    borrow_over(skeleton);
}

bool tpr_borrow_progress(tp_context *context)
{
    struct tpb_list turn, *node;
    bool moved = false;

    tpb_list_init(&turn);
    while ((node = tpb_list_take(&context->device_releases)) != NULL)
        tpb_list_append(&turn, node);
    while ((node = tpb_list_take(&turn)) != NULL) {
        struct tpr_skeleton *skeleton = TPB_CONTAINER(node,
                                                      struct tpr_skeleton,
                                                      lent_link);

        skeleton->pipe->released--;
        borrow_end(context, skeleton);
        moved |= tpb_list_empty(&context->device_releases);
    }
    return moved;
}

/* Notes where the streams stand on which the user read what was lent.  Lack of
 * memory, or a device that fails: then nothing is waited for. */
static void borrow_mark(tp_context *context, struct tpr_skeleton *skeleton)
{
    struct tpb_error error;

    if (TPB_LIKELY(skeleton->offers == NULL
                   || skeleton->message.tensor_count == 0))
        return;
    error.text[0] = '\0';
    if (tpg_work_new(context->gpu, &skeleton->message, &skeleton->release,
                     &error) != TP_OK)
        tpb_warn("what was borrowed from a device is given back without"
                 " waiting for its stream: %s", error.text);
}

static void borrow_end_run(tp_context *context, struct tpr_task *task)
{
    borrow_end(context, TPB_CONTAINER(task, struct tpr_skeleton, task));
}

tp_status tp_pipe_release(tp_pipe *pipe, tp_message *borrowed)
{
    struct tpr_skeleton *skeleton;
    tp_context *context;

    if (pipe == NULL || borrowed == NULL)
        return TP_ERR_INVALID;
    context = pipe->context;
    skeleton = borrow_take(pipe, borrowed);
    if (skeleton == NULL)
        return TP_ERR_INVALID;
    borrow_mark(context, skeleton);
    if (tpr_enter(context)) {
        borrow_end(context, skeleton);
        tpr_leave(context);
    } else {
        skeleton->task.run = borrow_end_run;
        tpr_submit(context, &skeleton->task);
    }
    return TP_OK;
}

void tpr_borrow_fini(tp_context *context)
{
    struct tpr_skeleton *loan = atomic_load(&context->loan);
    struct tpb_list *node;

    if (loan != NULL)
        tpr_skeleton_free(loan);
    while ((node = tpb_list_take(&context->device_releases)) != NULL)
        tpb_list_append(&context->lent, node);
    while ((node = tpb_list_take(&context->lent)) != NULL) {
        struct tpr_skeleton *skeleton = TPB_CONTAINER(node,
                                                      struct tpr_skeleton,
                                                      lent_link);

        tpg_work_end(skeleton->release);
        tpr_skeleton_free(skeleton);
    }
}
