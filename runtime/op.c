/* SPDX-License-Identifier: BSD-3-Clause */
/* Operations: their memory, their end, and the running of callbacks. */
#include "config.h"

#include "runtime/base/alloc.h"
#include "runtime/core.h"
#include "runtime/stream.h"

enum { OP_CALLS = 4096 };          /* callbacks in a row: those may ask for what
                                      ends at once, again and again */

struct tpr_op *tpr_op_alloc(tp_context *context)
{
    struct tpr_op *op = tpb_zalloc(sizeof(*op));

    if (op == NULL)
        return NULL;
    tpb_list_init(&op->link);
    op->context = context;
    atomic_fetch_add(&context->ops, 1);
    return op;
}

struct tpr_op *tpr_op_new(tp_context *context)
{
    struct tpr_op *op = tpr_op_bare(context);

    if (op == NULL)
        return NULL;
    tpb_list_init(&op->link);
    tpr_op_clear(op);
    return op;
}

void tpr_ops_fini(tp_context *context)
{
    while (context->free_ops != NULL) {
        struct tpr_op *op = context->free_ops;

        context->free_ops = (struct tpr_op *)(void *)op->link.next;
        tpb_free(op);
    }
}

static void op_count(struct tpr_op *op, tp_status status)
{
    struct tp_stats *stats;

    if (op->pipe == NULL)
        return;
    stats = &op->pipe->record->stats;
    if (op->kind == TPR_OP_WRITE) {
        TPR_COUNT(stats->writes_pending, -1);
        if (status == TP_OK) {
            TPR_COUNT(stats->messages_sent, 1);
            TPR_COUNT(stats->bytes_sent, op->data_length);
        }
    } else {
        TPR_COUNT(stats->reads_pending, -1);
        if (status == TP_OK && op->kind == TPR_OP_READ)
            tpr_count_received(op->pipe, op->data_length);
    }
}

/* A read is over, and with it its skeleton; one that is lent lives on. */
static struct tpr_skeleton *op_skeleton(const struct tpr_op *op)
{
    return op->kind == TPR_OP_READ && op->message != NULL
           && !(op->borrow && op->status == TP_OK)
           ? (struct tpr_skeleton *)(void *)op->message : NULL;
}

static void op_free_skeleton(const struct tpr_op *op)
{
    struct tpr_skeleton *skeleton = op_skeleton(op);

    if (skeleton != NULL)
        tpr_skeleton_free(skeleton);
}

void tpr_op_end(struct tpr_op *op, tp_status status)
{
    tp_context *context = op->context;
    struct tpr_sync *sync = op->sync;

    tpb_list_unlink(&op->link);
    if (TPB_UNLIKELY(op->work != NULL)) {
        tpg_work_end(op->work);
        op->work = NULL;
    }
    op->status = status;
    op_count(op, status);
    if (sync != NULL) {
        op_free_skeleton(op);
        sync->status = status;
        sync->message = op->message;
        op->sync = NULL;
        op->borrow = false;
        tpr_op_free(context, op);
        tpr_sync_end(context, sync);
    } else if (op->done == NULL) {
        op_free_skeleton(op);
        op->borrow = false;
        tpr_op_free(context, op);
    } else {
        tpb_list_append(&context->done, &op->link);
    }
}

/* The operation is free again when its callback runs: most callbacks begin the
 * next one, and find its memory in the cache. */
static inline void op_call(tp_context *context, struct tpr_op *op)
{
    struct tpr_skeleton *skeleton = op_skeleton(op);
    tp_message_fn *done = op->done;
    tp_pipe *pipe = op->pipe;
    tp_message *message = op->message;
    tp_status status = op->status;
    void *arg = op->arg;

    op->borrow = false;
    tpr_op_free(context, op);
    done(pipe, status, message, arg);
    if (TPB_UNLIKELY(skeleton != NULL))
        tpr_skeleton_free(skeleton);
}

int tpr_dispatch(tp_context *context)
{
    bool before = context->env.calls;
    struct tpb_list *node;
    int count = 0;

    context->env.calls = true;
    context->depth++;
    while (count < OP_CALLS && (node = tpb_list_take(&context->done)) != NULL) {
        op_call(context, TPB_CONTAINER(node, struct tpr_op, link));
        tpr_op_told(context);
        count++;
        if (TPB_UNLIKELY(count % TPF_GATHERED_CALLS == 0)) {
            tpf_gathered_late(&context->env);
            if (tpr_takes_long(context))
                break;             /* the callbacks do */
        }
    }
    context->depth--;
    context->env.calls = before;
    if (!before)
        tpf_gathered(&context->env);
    return count;
}
