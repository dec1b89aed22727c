/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Buffers that go by a channel, at the receiver: pulled when the user has
 * named their place, asked for in frames when that is refused.
 */
#include "config.h"

#include "runtime/base/log.h"
#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/stream.h"

TPB_LOG_COMPONENT("pull");

static struct tpf_pull *pull_of(struct tpr_offer *offer)
{
    return (struct tpf_pull *)(void *)offer->pull;
}

static struct tpr_skeleton *pull_skeleton(const struct tpr_op *op)
{
    return (struct tpr_skeleton *)(void *)op->message;
}

/* Does somebody have to call its progress() all the time? */
static bool pull_is_ours(const struct tpf_channel_kind *kind)
{
    return kind->progress != NULL && !kind->by_device;
}

/* ---- which way is the faster one ----------------------------------------- */

/* Does it come by the channel that its sender takes only if that is wished? */
static bool pull_is_wished(const struct tpr_links *links,
                           const struct tpr_offer *offer)
{
    return links->stream != NULL
           ? offer->channel == links->stream->link->kind->number
           : offer->channel != TPF_CHANNEL_MAP;
}

/* Does something long of ours go to where this one comes from, which is not
 * read yet? */
static bool pull_crosses(const tp_pipe *pipe)
{
    return pipe->sent - pipe->acknowledged >= TPR_TASTE_LEAST
           || !tpb_list_empty(&pipe->landing);
}

/* Messages cross until so many in a row have not: a rank that is late now and
 * then finds ours there before it has written its own. */
enum { PULL_CROSSED = 16 };

void tpr_pull_offered(tp_pipe *pipe)
{
    const struct tpr_skeleton *skeleton = pipe->skeleton;
    const struct tpr_links *links = pipe->peer->links;

    if (skeleton->data_length < TPR_TASTE_LEAST)
        return;
    if (pull_crosses(pipe))
        pipe->peer->crosses = PULL_CROSSED;
    else if (pipe->peer->crosses > 0)
        pipe->peer->crosses--;
    /* Not of what lay here already, which its reader had not waited for. */
    if (skeleton->sent != 0 && pipe->context->open.pipe == pipe
        && links != NULL
        && (skeleton->offers == NULL
            || pull_is_wished(links, skeleton->offers)))
        pipe->shown = tpb_now();
}

/* So many more of ours may follow, for each message of a stream that came. */
enum { PULL_LED = 8, PULL_LED_MOST = UINT8_MAX };

/*
 * Streams that go both ways are to go the same way: of one that is copied into
 * frames and one that is pulled the former leaves no time for the other, and
 * who tries another way changes what the peer measures.  Of two ranks the lower
 * one measures, for both.
 */
void tpr_pull_leads(const tp_pipe *pipe)
{
    const struct tpr_skeleton *skeleton = pipe->skeleton;
    const struct tpr_offer *offer = skeleton->offers;
    uint64_t length = skeleton->data_length;
    const struct tpr_peer *peer = pipe->peer;
    struct tpr_links *links = peer->links;
    unsigned class;

    if (links == NULL || peer->rank < 0 || peer->rank >= peer->context->rank
        || (skeleton->message.tensor_count > 0
            && skeleton->message.tensors[0].device.type != TP_DEVICE_CPU))
        return;
    /* Of frames nothing tells: it is the kind that came before. */
    if (offer != NULL)
        links->lead.lends = offer->channel == TPF_CHANNEL_MAP;
    if (offer != NULL && !links->lead.lends && !pull_is_wished(links, offer))
        return;
    links->lead.way = offer == NULL ? TPR_PACE_FRAMES
                      : (pipe->flags & WIRE_SHARED) != 0 ? TPR_PACE_SHARED
                                                         : TPR_PACE_PULLED;
    class = tpr_pace_class(length);
    if (links->lead.class != class)
        links->lead.left = 0;
    links->lead.class = (uint8_t)class;
    if (links->lead.left <= PULL_LED_MOST - PULL_LED)
        links->lead.left += PULL_LED;
}

/* Is one of a message's buffers so long that its sender would try a channel?
 * As offer_may_stream(). */
static bool pull_counts_for(uint64_t longest, uint64_t data_length)
{
    return longest >= (longest == data_length ? TPR_TASTE_LEAST
                                              : TPR_SHARE_LEAST);
}

void tpr_pull_clock(tp_pipe *pipe, struct tpr_op *op)
{
    if (pipe->shown > 0 && op->work == NULL
        && pull_counts_for(tpr_offer_longest(op->message),
                           pipe->skeleton->data_length))
        op->position = pipe->shown;
}

/* Frames are copied another way since the last of these messages: what they
 * took before counts no more. */
static void pull_frames_changed(struct tpr_links *links,
                                const struct tpb_fetch *fetch)
{
    if (tpb_fetch_changes(fetch) == links->fetched)
        return;
    links->fetched = tpb_fetch_changes(fetch);
    for (size_t i = 0; i < TPR_PACES; i++)
        tpr_pace_forget(&links->tastes[i].pace, TPR_PACE_FRAMES);
}

/* Was none of them, since the last of these messages, copied for a trial, one
 * of whose ways may be slow? */
static bool pull_frames_count(struct tpr_links *links,
                              const struct tpb_fetch *fetch)
{
    bool counts = fetch->tries == links->fetch_tries;

    links->fetch_tries = fetch->tries;
    return counts;
}

/* The way that such a message has come; false: that says nothing. */
static bool pull_way(const struct tpr_op *op, struct tpr_links *links,
                     enum tpr_pace_way *way)
{
    const struct tpr_offer *offer = pull_skeleton(op)->offers;
    const struct tpb_fetch *fetch = op->pipe->peer->conn->fetch;
    bool counts = true;

    *way = offer == NULL ? TPR_PACE_FRAMES : TPR_PACE_PULLED;
    if (fetch != NULL) {
        pull_frames_changed(links, fetch);
        counts = pull_frames_count(links, fetch) || offer != NULL;
    }
    for (; offer != NULL; offer = offer->next)
        counts &= pull_is_wished(links, offer);
    return counts;
}

/* What a descriptor takes to get here, at most. */
enum { PULL_LEAD_NS = 1000 };

/*
 * What the sender of frames had copied before we looked at the first took him
 * no longer than it took us, or, where messages cross, than one as long of ours
 * took: all of a message for which there was room, or about half a ring of a
 * longer one.
 */
static uint64_t pull_before_most(const struct tpr_op *op, uint64_t took)
{
    const struct tpr_peer *peer = op->pipe->peer;
    uint64_t length = op->data_length, window = peer->conn->window;

    if (length <= peer->conn->max_frame - sizeof(struct wire_frame))
        return took + PULL_LEAD_NS;
    if (length >= window / 2)
        return took * (window / 4) / length;
    if (peer->crosses == 0 || peer->copied <= took
        || peer->copied_class != tpr_pace_class(length))
        return took;
    return peer->copied < 2 * took ? peer->copied : 2 * took;
}

/*
 * How long it was under way before it was shown, as far as its way is why: not
 * if it had to wait for its reader.  What is pulled is over when its sender has
 * heard of that, which takes as long once more; where cpus are shared he is
 * told when it is his turn anyway.
 */
static uint64_t pull_before(const struct tpr_op *op, enum tpr_pace_way way,
                            uint64_t took)
{
    uint32_t sent = pull_skeleton(op)->sent;
    uint64_t lead = sent != 0 ? (uint32_t)op->position - sent : UINT64_MAX;
    uint64_t most = pull_before_most(op, took);

    if (way == TPR_PACE_PULLED && !op->context->crowded)
        return 2 * (lead < PULL_LEAD_NS ? lead : PULL_LEAD_NS);
    return lead < most ? lead : most;
}

static void pull_measured(const struct tpr_op *op)
{
    struct tpr_peer *peer = op->pipe->peer;
    struct tpr_links *links = peer->links;
    unsigned class = tpr_pace_class(tpr_offer_longest(op->message));
    uint16_t bit = (uint16_t)(1u << class);
    uint64_t took = tpb_now() - op->position;
    enum tpr_pace_way way;

    if (links == NULL || peer->conn == NULL || op->status != TP_OK)
        return;
    if (!pull_way(op, links, &way))
        return;
    if (tpr_taste_ended(&links->tastes[class], way, op->data_length,
                        took + pull_before(op, way, took)))
        peer->wishes |= bit;
    else
        peer->wishes &= (uint16_t)~bit;
}

/* ---- the end of a buffer, and of all of them ----------------------------- */

/* All before it is told, too, unless the stream goes on that it is of.  Lack of
 * memory may end the peer, and all reads. */
static void pull_tell(tp_pipe *pipe, const struct tpr_op *op)
{
    bool offers = pull_skeleton(op)->offers != NULL && !op->borrow;
    uint32_t number = op->number;

    if (offers && op->queued) {
        tpr_late_keep(pipe, number, op->data_length);
        return;
    }
    tpr_late_tell(pipe);
    /* What is lent is done when it is released. */
    if (offers && pipe->peer->state == TPR_PEER_CONNECTED)
        tpr_lent_release(pipe, number);
}

/* All of it is there. */
static void pull_all_there(const struct tpr_op *op)
{
    if (TPB_UNLIKELY(op->position > 0))
        pull_measured(op);
    if (op->pipe->peer->state == TPR_PEER_CONNECTED)
        pull_tell(op->pipe, op);
}

void tpr_pull_settle(struct tpr_op *op)
{
    tp_pipe *pipe = op->pipe;      /* op may be freed when that is told */

    if (op->pulls > 0 || !op->streamed)
        return;
    pull_all_there(op);
    tpr_rx_land(pipe);
}

static void pull_buffer_done(struct tpr_op *op)
{
    op->pulls--;
    tpr_pull_settle(op);
}

static void pull_no_more(struct tpr_offer *offer)
{
    bool ours = pull_is_ours(pull_of(offer)->link->kind);

    tpb_list_unlink(&offer->link);
    offer->op->context->copying -= ours;
    offer->op->pipe->copying -= ours;
    offer->pulling = false;
}

/* The rest of the buffer shall come in frames.  `channel` refused it; NONE: it
 * was not asked. */
static void pull_ask(struct tpr_offer *offer, unsigned channel,
                     const char *words)
{
    tp_pipe *pipe = offer->op->pipe;
    struct wire_about about = { .message = offer->op->number,
                                .buffer = offer->buffer,
                                .offset = offer->at,
                                .channel = channel };
    size_t length = strlen(words);

    tpb_info("%s: a buffer comes in frames: %s",
             atomic_load(&pipe->peer->name), words);
    offer->asked = true;
    if (pipe->peer->state != TPR_PEER_CONNECTED)
        return;
    if (channel != TPF_CHANNEL_NONE
        && pipe->context->channels[channel] != NULL)
        tpr_peer_tried(pipe->peer, TPT_MINE,
                       pipe->context->channels[channel]->kind->name, words);
    tpr_tx_about(pipe, WIRE_ASK, &about, words,
                 length < TPT_WORDS ? length : TPT_WORDS);
}

/* It was refused by that channel: the buffer only, unless it must go this way.
 */
static void pull_refused(struct tpr_offer *offer, enum tpf_progress result,
                         const char *words)
{
    const struct tpf_pull *pull = pull_of(offer);
    const struct tpr_links *links = offer->op->pipe->peer->links;
    bool alone = result == TPF_PULL_PASS
                 && (pull->link->kind->devices || links == NULL
                     || !links->insisted);

    offer->at = pull->moved;
    pull_ask(offer, alone ? TPF_CHANNEL_NONE : offer->channel, words);
}

/* A pull that could not be stopped is over: what waited for that can go. */
static void pull_last(tp_pipe *pipe)
{
    if (tpr_pull_any(pipe))
        return;
    if (pipe->tell_due && pipe->lent == 0)
        tpr_pull_tell_all(pipe, true);
    if (pipe->close_due)
        tpr_tx_pump(pipe);
}

void tpr_pull_landed(struct tpr_op *op)
{
    tp_pipe *pipe = op->pipe;

    op->landing = false;
    op->pulls--;
    if (op->status != TP_OK) {     /* see cancel */
        tpr_rx_land(pipe);
        pull_last(pipe);
    }
}

/*
 * May its sender have had the memory back before all of it was read?  He waits
 * for us in tp_finalize(), but not for ever (TP_FINALIZE_TIMEOUT).  Who has
 * looked at what descriptors tell in this tick of the coarse clock, some
 * milliseconds, takes it that he is there.
 */
static bool pull_is_void(const tp_pipe *pipe)
{
    struct tpf_conn *conn = pipe->peer->conn;

    return TPB_UNLIKELY(tpr_takes_long(pipe->context)) && conn != NULL
           && conn->backend->parted != NULL && conn->backend->parted(conn);
}

/* ... then the read ends as its pipe does, when that is heard. */
static void pull_void(struct tpr_offer *offer)
{
    offer->at = 0;
    pull_ask(offer, TPF_CHANNEL_NONE, "its sender has left");
}

/* ---- the beginning ------------------------------------------------------- */

/* From now on something may touch its memory. */
static void pull_under_way(struct tpr_offer *offer, struct tpr_links *links)
{
    bool ours = pull_is_ours(pull_of(offer)->link->kind);

    offer->pulling = true;
    tpb_list_append(&links->pulls, &offer->link);
    offer->op->context->copying += ours;
    offer->op->pipe->copying += ours;
}

/* Tells the sender that he may copy, too.  False: the peer has ended, and with
 * it the read. */
static bool pull_call(struct tpr_op *op, struct tpr_offer *offer)
{
    struct tpf_pull *pull = pull_of(offer);
    tp_pipe *pipe = op->pipe;
    struct wire_about about = { .message = op->number,
                                .buffer = offer->buffer,
                                .channel = offer->channel };
    unsigned char words[TPF_CALL];
    size_t length = pull->link->kind->call(pull, words);

    /* A channel may look at what was passed beside the frames: at garbage. */
    if (pipe->peer->state != TPR_PEER_CONNECTED)
        return false;
    if (length == 0)
        return true;
    pull_under_way(offer, pipe->peer->links);
    tpr_tx_about(pipe, WIRE_CALL, &about, words, length);
    if (pipe->peer->state != TPR_PEER_CONNECTED)
        return false;
    pull_no_more(offer);
    return true;
}

/* What a channel is to know of it, but for the place. */
static void pull_source(const struct tpr_offer *offer, struct tpf_link *link,
                        struct tpf_pull *pull)
{
    pull->link = link;
    memcpy(pull->source, offer->source, offer->source_length);
    pull->source_length = offer->source_length;
    tpb_list_init(&pull->node);
}

/* A buffer is about to be copied by this thread. */
static void pull_counts(tp_pipe *pipe, const struct tpf_channel_kind *kind,
                        uint64_t length)
{
    if (pull_is_ours(kind))
        tpr_rx_copied(pipe, length);
}

/* Has its sender nothing to do but to help?  Where messages cross he pulls
 * ours, and who copies what of the two is all the same, but for the calls.
 * (Those of the longest the channel does not spare.) */
static bool pull_is_alone(const tp_pipe *pipe)
{
    return (pipe->flags & WIRE_ALONE) != 0 && !pull_crosses(pipe);
}

/* Its turn has come.  The peer may have ended by that, and with it the read. */
static void pull_go(struct tpr_op *op, struct tpr_offer *offer)
{
    struct tpr_links *links = op->pipe->peer->links;
    struct tpr_link *slot = &links->of[offer->channel];
    struct tpf_pull *pull = pull_of(offer);
    const struct tpr_peer *peer = op->pipe->peer;
    struct tpb_error error = { "" };
    enum tpf_progress result;

    pull_source(offer, slot->link, pull);
    tpr_message_buffer(op->message, offer->buffer, &pull->to);
    if (pull->to.device.type != TP_DEVICE_CPU
        && !slot->link->kind->devices) {
        pull_ask(offer, TPF_CHANNEL_NONE, "it goes to a device");
        return;
    }
    if (slot->link->kind->call != NULL && !pull_call(op, offer))
        return;
    pull_counts(op->pipe, slot->link->kind, offer->length);
    result = slot->link->kind->pull(pull, &error);
    if (peer->state != TPR_PEER_CONNECTED)
        return;                    /* it has looked at garbage, as call() may */
    if (result == TPF_PULL_MORE) {
        pull_under_way(offer, links);
        tpr_touch(op->context);
    } else if (result == TPF_PULL_DONE && pull_is_void(op->pipe)) {
        pull_void(offer);
    } else if (result == TPF_PULL_DONE) {
        op->pulls--;
    } else {
        pull_refused(offer, result, error.text);
    }
}

static void pull_start(struct tpr_op *op, struct tpr_offer *offer)
{
    struct tpr_links *links = op->pipe->peer->links;
    struct tpr_link *slot = links != NULL ? &links->of[offer->channel] : NULL;
    struct tpf_pull *pull = pull_of(offer);

    offer->op = op;
    if (slot == NULL || slot->link == NULL) {
        pull_ask(offer, offer->channel, "the channel is closed here");
        return;
    }
    if (op->borrow && tpr_borrow_map(op, offer, slot->link)) {
        op->pulls--;
        return;
    }
    if (op->status != TP_OK)
        return;                    /* no memory for a copy */
    memset(offer->pull, 0, sizeof(offer->pull));
    pull->alone = pull_is_alone(op->pipe);
    pull->shared = (op->pipe->flags & WIRE_SHARED) != 0;
    if (pull_is_ours(slot->link->kind)
        && (op->pipe->copying > 0 || !tpb_list_empty(&op->pipe->turns))) {
        offer->waiting = pull->later = true;
        tpb_list_append(&op->pipe->turns, &offer->link);
        return;
    }
    pull_go(op, offer);
}

/*
 * One buffer of a pipe after the other: a sender who waits for the first one is
 * not helped if half of each is there.  Those of other pipes take turns.
 */
static void pull_turns(tp_pipe *pipe)
{
    const struct tpr_peer *peer = pipe->peer;
    struct tpb_list *node;

    while (peer->state == TPR_PEER_CONNECTED && peer->links != NULL
           && pipe->copying == 0
           && (node = tpb_list_take(&pipe->turns)) != NULL) {
        struct tpr_offer *offer = TPB_CONTAINER(node, struct tpr_offer, link);
        struct tpr_op *op = offer->op;

        offer->waiting = false;
        op->pulls++;               /* it is not over before it has begun */
        pull_go(op, offer);
        if (peer->state != TPR_PEER_CONNECTED)
            return;                /* all reads have ended */
        pull_buffer_done(op);
    }
}

void tpr_pull_over(struct tpr_offer *offer, enum tpf_progress result,
                   const char *text)
{
    struct tpr_op *op = offer->op;
    tp_pipe *pipe = op->pipe;

    if (offer->pulling)
        pull_no_more(offer);
    if (op->status != TP_OK) {     /* see cancel */
        op->pulls--;
        tpr_rx_land(pipe);
        pull_last(pipe);
    } else if (result == TPF_PULL_DONE && pull_is_void(pipe)) {
        pull_void(offer);
    } else if (result == TPF_PULL_DONE) {
        pull_buffer_done(op);
    } else {
        pull_refused(offer, result, text);
    }
    if (pipe->copying == 0)
        pull_turns(pipe);
}

bool tpr_pull_begin(tp_pipe *pipe, struct tpr_op *op)
{
    struct tpr_skeleton *skeleton = pull_skeleton(op);

    op->number = skeleton->number;
    /* One more, so that it is not over before all have begun. */
    op->pulls = 1;
    for (struct tpr_offer *offer = skeleton->offers; offer != NULL;
         offer = offer->next)
        op->pulls++;
    for (struct tpr_offer *offer = skeleton->offers; offer != NULL;
         offer = offer->next) {
        pull_start(op, offer);
        /* To ask for frames may find that the peer is gone: all reads have
         * ended then. */
        if (pipe->skeleton != skeleton)
            return false;
        if (op->status != TP_OK)
            break;
    }
    op->pulls--;
    return true;
}

/* ---- at once ------------------------------------------------------------- */

/* Is nothing in the way of this buffer, and is it over when pull() returns?
 * The sender is not called then. */
static bool pull_is_brief(const tp_pipe *pipe,
                          const struct tpf_channel_kind *kind, uint64_t length)
{
    bool both = (pull_is_alone(pipe) || (pipe->flags & WIRE_SHARED) != 0)
                && kind->call != NULL && !pipe->context->crowded;

    return pull_is_ours(kind) && !kind->devices && !both
           && length <= TPF_STRIDE && pipe->copying == 0
           && tpb_list_empty(&pipe->turns);
}

bool tpr_pull_at_once(tp_pipe *pipe, const struct tpr_skeleton *skeleton,
                      void *data)
{
    struct tpr_offer *offer = skeleton->offers;
    struct tpf_link *link = pipe->peer->links->of[offer->channel].link;
    struct tpf_pull *pull = pull_of(offer);
    struct tpb_error error = { "" };
    enum tpf_progress result;

    if (link == NULL || !pull_is_brief(pipe, link->kind, offer->length))
        return false;
    memset(offer->pull, 0, link->kind->pull_size);
    pull_source(offer, link, pull);
    pull->to = (struct tpf_buffer){ .data = data, .length = offer->length };
    pull_counts(pipe, link->kind, offer->length);
    result = link->kind->pull(pull, &error);
    if (result == TPF_PULL_MORE)
        link->kind->cancel(pull);  /* some of it only */
    return result == TPF_PULL_DONE && !pull_is_void(pipe);
}

void tpr_pull_was_at_once(struct tpr_op *op)
{
    struct tpr_skeleton *skeleton = pull_skeleton(op);
    struct tpr_offer *offer = skeleton->offers;

    pull_all_there(op);
    skeleton->offers = NULL;
    tpr_offer_free(op->pipe->context, offer);
}

/* ---- other ends ---------------------------------------------------------- */

void tpr_pull_cancel(struct tpr_op *op, tp_status status)
{
    uint32_t left = op->landing;

    op->status = status;
    if (op->pulls == 0)
        return;
    for (struct tpr_offer *offer = pull_skeleton(op)->offers; offer != NULL;
         offer = offer->next) {
        struct tpf_pull *pull = pull_of(offer);

        if (offer->waiting)
            tpb_list_unlink(&offer->link);
        offer->waiting = false;
        if (!offer->pulling)
            continue;
        if (!pull->link->kind->cancel(pull)) {
            left++;
            continue;
        }
        pull_no_more(offer);
    }
    op->pulls = left;
}

static struct tpr_offer *pull_find(tp_pipe *pipe,
                                   const struct wire_about *about)
{
    TPB_LIST_EACH(node, &pipe->reads) {
        struct tpr_op *op = TPB_CONTAINER(node, struct tpr_op, link);
        struct tpr_offer *offer;

        if (op->pulls == 0 || op->number != about->message
            || op->status != TP_OK)
            continue;
        offer = tpr_offer_of(pull_skeleton(op)->offers, about->buffer);
        if (offer != NULL)
            return offer;
    }
    return NULL;
}

bool tpr_pull_pushed(tp_pipe *pipe, const struct wire_about *about,
                     const unsigned char *bytes, size_t length)
{
    struct tpr_offer *offer = pull_find(pipe, about);
    struct tpf_buffer buffer;

    if (offer == NULL)
        return true;               /* its read has ended meanwhile */
    if (!offer->asked || about->offset != offer->at || length == 0
        || length > offer->length - offer->at)
        return false;
    tpr_message_buffer(offer->op->message, offer->buffer, &buffer);
    if (TPB_UNLIKELY(offer->op->work != NULL)) {
        const char *text;

        if (!tpr_device_store(offer->op, offer->buffer, offer->at, bytes,
                              length, &text)) {
            tpr_rx_break(pipe, TP_ERR_BACKEND, text);
            return true;
        }
    } else {
        tpb_copy((unsigned char *)buffer.data + offer->at, bytes, length);
    }
    offer->at += length;
    if (offer->at == offer->length) {
        offer->asked = false;
        pull_buffer_done(offer->op);
    }
    return true;
}

/* `landing`: also what only lands. */
static bool pull_any(const tp_pipe *pipe, bool landing)
{
    TPB_LIST_EACH(node, &pipe->reads) {
        const struct tpr_op *op = TPB_CONTAINER(node, struct tpr_op, link);

        if (op->pulls > (!landing && op->landing))
            return true;
    }
    return false;
}

bool tpr_pull_any(const tp_pipe *pipe)
{
    return pipe->released > 0 || pull_any(pipe, true);
}

bool tpr_pull_fetches(const tp_pipe *pipe)
{
    return pipe->released > 0 || pull_any(pipe, false);
}

void tpr_pull_tell_all(tp_pipe *pipe, bool now)
{
    struct wire_about about = { .message = WIRE_ALL };
    bool waited = pipe->tell_due;

    if (!pipe->offers_seen || pipe->peer->state != TPR_PEER_CONNECTED)
        return;
    tpr_late_tell(pipe);           /* they were read, and well */
    if (pipe->peer->state != TPR_PEER_CONNECTED)
        return;
    pipe->tell_due = (pipe->lent > 0 && !now) || tpr_pull_any(pipe);
    if (pipe->tell_due)
        return;
    tpr_tx_about(pipe, WIRE_DONE, &about, NULL, 0);
    /* Who closed the only pipe of this conn has waited for that alone. */
    if (waited && pipe->peer->guest != NULL && !pipe->context->closing
        && (pipe->closed || pipe->tx_end == TP_ERR_PEER_CLOSED))
        tpr_peer_end(pipe->peer, TP_ERR_PEER_CLOSED,
                     "the peer closed the pipe");
}
