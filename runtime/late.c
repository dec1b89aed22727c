/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * DONEs that come late, on purpose.  A program that streams writes its next
 * message where the one lay that ended last.  If its reader has read that just
 * now, the lines are in his second-level cache, and each must be asked for
 * there before it can be written; some messages later they have left it.  So
 * the reader keeps such DONEs until he has read as much again as it holds.
 *
 * Only of messages that had enough others before them, and no longer than their
 * reader goes on with such ones: a sender that has nothing else under way hears
 * at once.
 */
#include "config.h"

#include "runtime/channels.h"
#include "runtime/core.h"

enum {
    /* A second-level cache and a half, of most processors: half of it gains
     * nothing.  Of longer messages the lines have left it when they end. */
    LATE_BYTES = 3 * 1024 * 1024,
    LATE_MOST = 32,                /* messages */
    /* At least so many messages are under way, and bytes, if the others are as
     * long; more than are kept, for the sender must not run dry. */
    LATE_AHEAD = 5 * 1024 * 1024,
    LATE_COUNT = 3
};

struct tpr_late {
    uint64_t bytes;                /* of them all */
    bool more;                     /* one was kept since a pass looked */
    uint32_t first, count;         /* of the following, a ring */
    struct late_one {
        uint64_t length;
        uint32_t number;
    } ones[LATE_MOST];
};

/* ---- the sender ---------------------------------------------------------- */

bool tpr_late_may(const tp_pipe *pipe, const struct tpf_link *to,
                  uint64_t length)
{
    const struct tpb_list *node = pipe->landing.next;
    const struct tpr_op *first = TPB_CONTAINER(node, struct tpr_op, link);
    uint32_t ahead;

    if (node == &pipe->landing || pipe->context->crowded
        || first->offers == NULL || to == NULL || to->kind->by_device
        || to->kind->reach != TPT_REACH_HOST)
        return false;
    ahead = pipe->offering - first->number;
    return ahead >= LATE_COUNT && ahead < UINT32_MAX / 2
           && length >= LATE_AHEAD / ahead && length <= LATE_BYTES;
}

/* ---- the receiver -------------------------------------------------------- */

static void late_tell_one(tp_pipe *pipe)
{
    struct tpr_late *late = pipe->late;
    struct late_one one = late->ones[late->first];

    late->first = (late->first + 1) % LATE_MOST;
    late->count--;
    late->bytes -= one.length;
    tpr_lent_release(pipe, one.number);
}

void tpr_late_keep(tp_pipe *pipe, uint32_t number, uint64_t length)
{
    struct tpr_late *late = pipe->late;

    if (late == NULL)
        late = pipe->late = tpb_zalloc(sizeof(*late));
    if (late == NULL) {
        tpr_lent_release(pipe, number);
        return;
    }
    late->more = true;
    while (late->count == LATE_MOST
           || (late->count > 0 && late->bytes + length > LATE_BYTES)) {
        late_tell_one(pipe);
        if (pipe->peer->state != TPR_PEER_CONNECTED)
            return;                /* no memory to tell it */
    }
    late->ones[(late->first + late->count++) % LATE_MOST]
        = (struct late_one){ .length = length, .number = number };
    late->bytes += length;
    if (tpb_list_empty(&pipe->late_link))
        tpb_list_append(&pipe->context->late, &pipe->late_link);
}

void tpr_late_tell(tp_pipe *pipe)
{
    if (tpb_list_empty(&pipe->late_link))
        return;
    tpb_list_unlink(&pipe->late_link);
    while (pipe->late->count > 0 && pipe->peer->state == TPR_PEER_CONNECTED)
        late_tell_one(pipe);
    pipe->late->count = 0;
    pipe->late->bytes = 0;
}

/* Is a message on its way into the program's memory, or will be as soon as
 * somebody looks?  What else comes is no reason to wait. */
static bool late_goes_on(const tp_pipe *pipe)
{
    struct tpf_conn *conn = pipe->peer->conn;

    if (pipe->peer->state != TPR_PEER_CONNECTED)
        return false;
    if (pipe->copying > 0 || !tpb_list_empty(&pipe->turns))
        return true;
    return pipe->late->more && !tpb_list_empty(&pipe->armed)
           && conn->backend->glance != NULL
           && conn->backend->glance(conn, 1);
}

void tpr_late_look(tp_context *context, bool pass)
{
    struct tpb_list on, *node;

    tpb_list_init(&on);
    while ((node = tpb_list_take(&context->late)) != NULL) {
        tp_pipe *pipe = TPB_CONTAINER(node, tp_pipe, late_link);

        tpb_list_append(&on, node);
        if (!late_goes_on(pipe))
            tpr_late_tell(pipe);
        else if (pass)
            pipe->late->more = false;
    }
    while ((node = tpb_list_take(&on)) != NULL)
        tpb_list_append(&context->late, node);
}
