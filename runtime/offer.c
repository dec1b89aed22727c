/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Buffers that go by a channel, at the sender: which ones, who has been told
 * where they lie, and what becomes of those that the receiver could not pull.
 */
#include "config.h"

#include "runtime/base/alloc.h"
#include "runtime/channels.h"
#include "runtime/contract.h"
#include "runtime/core.h"
#include "runtime/stream.h"
#include "topology/devices.h"

/* ---- memory -------------------------------------------------------------- */

struct tpr_offer *tpr_offer_new(tp_context *context)
{
    struct tpr_offer *offer = context->free_offers;

    if (offer == NULL) {
        offer = tpb_zalloc(sizeof(*offer));
        if (offer == NULL)
            return NULL;
    } else {
        context->free_offers = offer->next;
        memset(offer, 0, TPR_OFFER_ZEROED);
    }
    tpb_list_init(&offer->link);
    return offer;
}

void tpr_offer_free(tp_context *context, struct tpr_offer *offer)
{
    tpb_list_unlink(&offer->link);
    offer->next = context->free_offers;
    context->free_offers = offer;
}

void tpr_offers_fini(tp_context *context)
{
    while (context->free_offers != NULL) {
        struct tpr_offer *offer = context->free_offers;

        context->free_offers = offer->next;
        tpb_free(offer);
    }
}

struct tpr_offer *tpr_offer_of(struct tpr_offer *first, uint32_t buffer)
{
    struct tpr_offer *offer = first;

    if (first != NULL && first->found != NULL
        && first->found->buffer <= buffer)
        offer = first->found;
    while (offer != NULL && offer->buffer < buffer)
        offer = offer->next;
    if (offer == NULL || offer->buffer != buffer)
        return NULL;
    return first->found = offer;
}

static struct tpf_pull *offer_help(struct tpr_offer *offer)
{
    return (struct tpf_pull *)(void *)offer->pull;
}

static void offer_let_go(struct tpr_offer *offer)
{
    if (offer->helping)
        offer->to->kind->leave(offer_help(offer));
    offer->helping = false;
    if (offer->to != NULL && offer->to->kind->forget != NULL)
        offer->to->kind->forget(offer->to, offer->hold);
    offer->to = NULL;
}

/* ---- choosing ------------------------------------------------------------ */

static bool offer_by(const struct tpr_link *link, struct tpr_offer *offer,
                     const struct tpf_buffer *buffer)
{
    size_t length = link->link->kind->describe(link->link, buffer,
                                               offer->source, &offer->hold);

    if (length == 0)
        return false;
    offer->channel = (uint8_t)link->link->kind->number;
    offer->source_length = (uint8_t)length;
    offer->to = link->link;
    return true;
}

/* ... if it is big enough for that. */
static bool offer_from(const struct tpr_links *links,
                       const struct tpr_link *link, struct tpr_offer *offer,
                       const struct tpf_buffer *buffer)
{
    return buffer->length >= tpr_link_from(links, link, buffer)
           && offer_by(link, offer, buffer);
}

static size_t offer_taste_least(const struct tpr_op *op)
{
    return op->sync != NULL ? TPR_TASTE_WAITED : TPR_TASTE_LEAST;
}

/* May it be worth to send this buffer another way, too?  Several short ones of
 * a message would have to be asked for one by one. */
static bool offer_may_stream(const struct tpr_links *links,
                             const struct tpr_op *op,
                             const struct tpf_buffer *buffer)
{
    return links->stream != NULL && op->work == NULL
           && buffer->length >= (buffer->length == op->data_length
                                 ? offer_taste_least(op) : TPR_SHARE_LEAST)
           && buffer->device.type == TP_DEVICE_CPU;
}

uint64_t tpr_offer_longest(const tp_message *message)
{
    struct tpf_buffer buffer;
    uint64_t longest = 0;

    for (size_t i = 0; tpr_message_buffer(message, i, &buffer); i++)
        if (buffer.length > longest)
            longest = buffer.length;
    return longest;
}

/* So many messages in a row go another way than their receiver wishes. */
enum { OFFER_MIRRORED = 64 };

/*
 * Where messages cross, the two that do are to go the same way: of one that is
 * copied into frames and one that is pulled each waits for the other.  Of two
 * ranks the lower one decides for both, by what it has measured; the other one
 * sends as the lower one wishes.  Until so many have gone and none has come.
 */
static bool offer_decides(struct tpr_peer *peer, unsigned class)
{
    if (peer->crosses == 0 || peer->rank <= peer->context->rank
        || !tpr_taste_is_known(&peer->links->tastes[class]))
        return false;
    peer->crosses--;
    return true;
}

/* To or from a guest, which has no rank, does this one go in frames as we wish
 * for those that come from there?  Not for ever: neither may wait for the
 * other's trial. */
static bool offer_mirrors(struct tpr_peer *peer, unsigned class)
{
    if (peer->crosses == 0 || peer->rank >= 0
        || (peer->wishes >> class & 1) != 0
        || !tpr_taste_is_known(&peer->links->tastes[class])
        || peer->mirrored >= OFFER_MIRRORED)
        return false;
    peer->mirrored++;
    return true;
}

/* Who comes to follow has heard so many more than he has sent that the other
 * stream is no trickle. */
enum { OFFER_LED = 64 };

/* The way of a stream: as those go that come from there, or the fastest. */
static enum tpr_pace_way offer_led(struct tpr_links *links,
                                   struct tpr_pace *pace, unsigned class,
                                   bool lends)
{
    struct tpr_lead *lead = &links->lead;

    if (TPB_LIKELY(lead->left == 0) || lead->class != class
        || lead->lends != lends)
        return tpr_pace_unled(pace);
    lead->left--;
    return pace->led || lead->left >= OFFER_LED
           ? tpr_pace_lead(pace, lead->way) : tpr_pace_unled(pace);
}

static enum tpr_pace_way offer_stream(struct tpr_links *links, uint64_t length)
{
    unsigned class = tpr_pace_class(length);

    return length < TPR_PACE_LEAST
           ? TPR_PACE_FRAMES
           : offer_led(links, &links->paces[class], class, false);
}

/* How a message goes that no channel has to take: as its stream does, or, by
 * its `longest` buffer, as its receiver wishes. */
static enum tpr_pace_way offer_way(const tp_pipe *pipe, const struct tpr_op *op,
                                   uint64_t longest)
{
    struct tpr_peer *peer = pipe->peer;
    unsigned class;

    if (!op->alone)
        return offer_stream(peer->links, op->data_length);
    class = tpr_pace_class(longest);
    if (offer_decides(peer, class))
        return (peer->wishes >> class & 1) != 0 ? TPR_PACE_PULLED
                                                : TPR_PACE_FRAMES;
    if ((peer->wished >> class & 1) == 0) {
        peer->mirrored = 0;
        return TPR_PACE_FRAMES;
    }
    return offer_mirrors(peer, class) ? TPR_PACE_FRAMES : TPR_PACE_PULLED;
}

/* May one of that length go another way than in frames?  Where messages cross,
 * also by what this side has measured. */
static bool offer_is_wished(const struct tpr_peer *peer, uint64_t length)
{
    unsigned wishes = peer->wished;

    if (peer->crosses > 0)
        wishes |= peer->wishes;
    return (wishes >> tpr_pace_class(length) & 1) != 0;
}

/* Of those that come alone the first ones since their reader has wished for
 * another way tell him when they were sent, and of the others one of some: a
 * look at the clock is a part of what such a message takes. */
enum { OFFER_STAMPS = 64, OFFER_STAMPED = 5 };

static bool offer_stamps(struct tpr_peer *peer, uint64_t length)
{
    if (length <= peer->conn->max_frame - sizeof(struct wire_frame)
        && !offer_is_wished(peer, length))
        return true;               /* see tpr_offer_tastes() */
    if (peer->stamps < OFFER_STAMPS) {
        peer->stamps++;
        return true;
    }
    if (++peer->stamps == 0)
        peer->stamps = OFFER_STAMPS;
    return peer->stamps % OFFER_STAMPED == 0;
}

/* Its descriptor and the clocks are a tenth of what a message takes that fits a
 * frame: so many are measured since their reader has wished for another way, as
 * he goes through the ring before they count, and one of some of the others. */
enum { OFFER_TASTES = 448, OFFER_TASTED = 16 };

bool tpr_offer_tastes(const tp_pipe *pipe, size_t length)
{
    struct tpr_peer *peer = pipe->peer;

    if (length < TPR_TASTE_LEAST || peer->links == NULL
        || peer->links->stream == NULL
        || pipe->context->heard + 1 == pipe->heard)
        return false;
    if (offer_is_wished(peer, length))
        return true;
    if (++peer->tasted == 0)
        peer->tasted = OFFER_TASTES;
    return peer->tasted < OFFER_TASTES || peer->tasted % OFFER_TASTED == 0;
}

bool tpr_offer_counts(struct tpr_peer *peer, struct tpr_pace *pace,
                      struct tpr_op *op, bool first)
{
    bool stamped = peer != NULL && (first || !pace->stream)
                   && offer_stamps(peer, op->data_length);
    bool timed = stamped || tpr_pace_is_timed(pace, first);
    uint64_t now = timed ? tpb_now() : 0;

    op->sent = stamped ? (uint32_t)now : 0;
    return first ? tpr_pace_first(pace, op->data_length, now)
                 : tpr_pace_next(pace, op->data_length, now);
}

/* A write so long that more than one way may be worth it. */
static void offer_pace(tp_pipe *pipe, struct tpr_op *op, uint64_t longest)
{
    struct tpr_links *links = pipe->peer->links;
    struct tpr_pace *pace = &links->paces[tpr_pace_class(op->data_length)];

    op->paced = tpr_offer_counts(pipe->peer, pace, op, op->alone)
                || (!op->alone && op->data_length < TPR_PACE_LEAST);
    op->alone = !op->paced;
    op->way = (uint8_t)offer_way(pipe, op, longest);
    op->pace_asked = true;
}

void tpr_offer_copied(struct tpr_peer *peer, const struct tpr_op *op)
{
    if (op->offers != NULL || op->work != NULL)
        return;
    peer->copied = (uint32_t)tpb_now() - op->sent;
    peer->copied_class = (uint8_t)tpr_pace_class(op->data_length);
}

struct tpr_pace *tpr_offer_lends(const struct tpr_peer *peer, uint64_t length)
{
    unsigned class = tpr_pace_class(length);
    struct tpr_links *links = peer->links;

    if (peer->lend == NULL || links->insisted
        || (peer->wished & WIRE_KEEPS) != 0)
        return NULL;
    (void)offer_led(links, &links->lends[class], class, true);
    return &links->lends[class];
}

/*
 * A link that the model prefers has described it: is it to stay where it is?
 * Not in a stream that is faster in frames, as where memory that another core
 * has written is slow to read.  While it goes in frames its writes end as soon
 * as they are in the ring, so whether one is alone says nothing then: they all
 * count, with whatever is between them, against the frames.
 */
static bool offer_stays(tp_pipe *pipe, struct tpr_op *op,
                        const struct tpf_link *link)
{
    struct tpr_pace *pace = tpr_offer_lends(pipe->peer, op->data_length);

    if (link != pipe->peer->lend || op->work != NULL || pace == NULL
        || (op->pace_asked && !op->lendable))
        return true;
    if (!op->pace_asked)
        tpr_lent_pace(op, pace);
    return op->way != TPR_PACE_FRAMES;
}

/* Is it of a stream that is faster by a channel? */
static bool offer_streams(tp_pipe *pipe, struct tpr_op *op,
                          const struct tpf_buffer *buffer, uint64_t longest)
{
    if (!offer_may_stream(pipe->peer->links, op, buffer))
        return false;
    if (op->lendable)              /* another buffer of it is, and counts */
        return offer_way(pipe, op, longest) != TPR_PACE_FRAMES;
    if (!op->pace_asked)
        offer_pace(pipe, op, longest);
    return op->way != TPR_PACE_FRAMES;
}

/* What frames add to a message's bytes, unless it has much to describe. */
enum { OFFER_FRAMING = 4096 };

bool tpr_offer_keeps(const tp_pipe *pipe, uint64_t length)
{
    const struct tpr_peer *peer = pipe->peer;
    uint32_t under_way = pipe->sent - pipe->acknowledged;

    return (peer->conn->backend->flags & TPF_SELF) != 0
           && !peer->links->insisted && length < peer->conn->window
           && under_way + length + OFFER_FRAMING <= peer->conn->window;
}

/* The best link that takes this buffer describes it. */
static bool offer_describe(tp_pipe *pipe, struct tpr_op *op,
                           struct tpr_offer *offer,
                           const struct tpf_buffer *buffer, uint64_t longest)
{
    const struct tpr_links *links = pipe->peer->links;
    const struct tpr_link *first = tpr_links_first(links, buffer);

    if (first != NULL && offer_from(links, first, offer, buffer))
        return true;
    for (uint32_t i = 0; i < links->ordered; i++)
        if (links->order[i] != first
            && (links->order[i]->link->kind->devices
                || !tpr_offer_keeps(pipe, op->data_length))
            && offer_from(links, links->order[i], offer, buffer)) {
            if (offer_stays(pipe, op, offer->to))
                return true;
            offer_let_go(offer);
            return false;
        }
    return offer_streams(pipe, op, buffer, longest)
           && offer_by(links->stream, offer, buffer);
}

/* Room for one more source? */
static bool offer_fits(const struct tpr_op *op)
{
    return op->descriptor_length + TPF_SOURCE <= WIRE_DESCRIPTOR;
}

static void offer_undo(struct tpr_op *op)
{
    for (struct tpr_offer *offer = op->offers; offer != NULL;
         offer = offer->next) {
        op->descriptor_length -= offer->source_length;
        op->stream_length += offer->length;
    }
    tpr_offer_forget(op);
}

/* No smaller buffer of any kind goes by a channel. */
static size_t offer_least_of_all(const struct tpr_links *links)
{
    return links->least < links->device_least ? links->least
                                              : links->device_least;
}

/* No smaller buffer goes by a channel, or would have to.  Of the host's memory
 * that is meant for a device, channels of either kind may take. */
static size_t offer_least(const struct tpr_links *links,
                          const struct tpf_buffer *buffer)
{
    if (buffer->device.type == TP_DEVICE_CUDA)
        return links->device_least;
    return buffer->target.type == TP_DEVICE_CUDA ? offer_least_of_all(links)
                                                 : links->least;
}

static bool offer_insisted(const struct tpr_links *links,
                           const struct tpf_buffer *buffer)
{
    return buffer->device.type == TP_DEVICE_CUDA ? links->device_insisted
           : links->insisted && buffer->length >= links->least;
}

/* With the words of every verdict, which the book does not keep. */
static void offer_reasons(const tp_pipe *pipe, struct tpb_text *text)
{
    struct tpt_plan *plan = tpb_zalloc(sizeof(*plan));
    struct tpt_card *card = tpb_zalloc(sizeof(*card));

    pthread_mutex_lock(&pipe->context->table_lock);
    if (plan != NULL && card != NULL
        && tpt_entry_explain(pipe->peer->entry, plan, card))
        tpt_device_refusal(plan, text);
    pthread_mutex_unlock(&pipe->context->table_lock);
    tpb_free(card);
    tpb_free(plan);
}

/* Why one of the message's buffers goes no way that is allowed. */
static void offer_refused(const tp_pipe *pipe, const struct tpf_buffer *buffer,
                          struct tpb_text *text)
{
    if (buffer->device.type != TP_DEVICE_CUDA) {
        tpb_text_add(text, "no channel that TP_REQUIRE names takes one of the"
                     " message's buffers");
        return;
    }
    tpb_text_add(text, "a tensor on CUDA device %d goes no way that is"
                 " allowed: ", buffer->device.index);
    offer_reasons(pipe, text);
}

/* A message's end only, unless whoever started the job wants more.  To him the
 * pair has to be named, too. */
static void offer_broken(const tp_pipe *pipe, const char *words)
{
    struct tpb_text text = { 0 };

    if (!tpr_contract_ends_job(pipe->context))
        return;
    tpb_text_add(&text, "to %s: %s", pipe->peer->full_name, words);
    tpr_contract_broken(pipe->peer, text.failed ? words : text.text);
    tpb_text_fini(&text);
}

static void offer_refuse(tp_pipe *pipe, const struct tpf_buffer *buffer)
{
    struct tpb_text text = { 0 };
    const char *words;

    offer_refused(pipe, buffer, &text);
    words = text.failed ? "out of memory" : text.text;
    tpr_pipe_refuse(pipe, words);
    offer_broken(pipe, words);
    tpb_text_fini(&text);
}

/* The link whose peer opens exported memory; NULL: none. */
static const struct tpr_link *offer_exports(const struct tpr_peer *peer)
{
    const struct tpr_links *links = peer->links;

    for (uint32_t i = 0; links != NULL && i < links->ordered; i++)
        if ((peer->conn->backend->flags & TPF_SELF) == 0
            && links->order[i]->link->kind->exports)
            return links->order[i];
    return NULL;
}

bool tpr_offer_outbox(tp_pipe *pipe, struct tpr_op *op)
{
    const struct tpr_link *link = offer_exports(pipe->peer);
    const struct tpr_links *links = pipe->peer->links;
    struct tpf_buffer buffer;
    bool ready = true;

    if (link == NULL || op->data_length < links->device_least)
        return true;
    for (size_t i = 0; tpr_message_buffer(op->message, i, &buffer); i++)
        if (buffer.device.type == TP_DEVICE_CUDA
            && buffer.length >= tpr_link_from(links, link, &buffer))
            ready &= tpg_work_outbox(op->work, i, &buffer) != TPG_LATER;
    return ready;
}

/* Copies into frames go another way now: they are as fast as they are now. */
static void offer_frames_changed(struct tpr_links *links, uint32_t changes)
{
    links->changes = changes;
    for (size_t i = 0; i < TPR_PACES; i++) {
        tpr_pace_forget(&links->paces[i], TPR_PACE_FRAMES);
        tpr_pace_forget(&links->lends[i], TPR_PACE_FRAMES);
    }
}

void tpr_offer_paced(tp_pipe *pipe, const struct tpr_op *op)
{
    struct tpr_links *links = pipe->peer->links;
    unsigned class = tpr_pace_class(op->data_length);
    const struct tpb_way *way;
    struct tpr_pace *pace;

    if (links == NULL || pipe->peer->conn == NULL
        || (op->data_length < TPR_PACE_LEAST && !op->lendable))
        return;
    way = pipe->peer->conn->way;
    if (way != NULL && way->changes != links->changes) {
        offer_frames_changed(links, way->changes);
        return;
    }
    pace = op->lendable ? &links->lends[class] : &links->paces[class];
    if (op->way != TPR_PACE_FRAMES || way == NULL || tpb_way_is_settled(way)
        || !tpr_pace_skip(pace, op->data_length))
        tpr_pace_ended(pace, op->way, op->data_length, tpb_now());
}

/* Has any message come since one was written here?  In frames writes end at
 * once: who hears nothing meanwhile writes a stream, though none is under
 * way. */
static bool offer_heard(tp_pipe *pipe)
{
    uint32_t now = pipe->context->heard + 1;
    bool heard = now != pipe->heard;

    pipe->heard = now;
    return heard;
}

/* May only the channel of streams take what is so long and was not made by
 * tp_alloc()? */
static bool offer_only_streams(const struct tpr_links *links, size_t length)
{
    for (uint32_t i = 0; i < links->ordered; i++)
        if (!links->order[i]->link->kind->devices
            && links->order[i]->link->kind->number != TPF_CHANNEL_MAP
            && links->order[i]->sizes.from <= length)
            return false;
    return links->stream != NULL && !links->insisted;
}

/* Is it one payload that goes in frames, as most do?  All that is left to ask
 * is its pace. */
static bool offer_is_plain(tp_pipe *pipe, struct tpr_op *op)
{
    if (!tpr_message_plain(op->message) || op->work != NULL
        || op->data_length < offer_taste_least(op)
        || !tpf_memory_is_outside(pipe->context->env.memories,
                                  op->message->payloads[0].data)
        || !offer_only_streams(pipe->peer->links, op->data_length))
        return false;
    offer_pace(pipe, op, op->data_length);
    return op->way == TPR_PACE_FRAMES;
}

void tpr_offer_weigh(tp_pipe *pipe, struct tpr_op *op)
{
    struct tpr_peer *peer = pipe->peer;
    struct tpr_offer **end = &op->offers;
    struct tpf_buffer buffer;
    uint64_t longest;

    op->weighed = true;
    op->stream_length = op->data_length;
    if (peer->links == NULL
        || (op->data_length < offer_least_of_all(peer->links)
            && (peer->links->stream == NULL
                || op->data_length < offer_taste_least(op))))
        return;
    op->alone = tpb_list_empty(&pipe->landing)
                && op->link.next == &pipe->writes;
    op->alone &= offer_heard(pipe);
    if (TPB_LIKELY(offer_is_plain(pipe, op)))
        return;
    longest = tpr_offer_longest(op->message);
    for (size_t i = 0; tpr_message_buffer(op->message, i, &buffer); i++) {
        struct tpr_offer *offer;

        if ((buffer.length < offer_least(peer->links, &buffer)
             && !offer_may_stream(peer->links, op, &buffer))
            || !offer_fits(op))
            continue;
        offer = tpr_offer_new(pipe->context);
        if (offer == NULL)
            break;
        if (op->work != NULL)
            tpg_work_boxed(op->work, i, &buffer);
        if (!offer_describe(pipe, op, offer, &buffer, longest)) {
            tpr_offer_free(pipe->context, offer);
            if (!offer_insisted(peer->links, &buffer))
                continue;
            op->status = TP_ERR_UNREACHABLE;
            offer_refuse(pipe, &buffer);
            break;
        }
        offer->buffer = (uint32_t)i;
        offer->length = buffer.length;
        offer->op = op;
        *end = offer;
        end = &offer->next;
        op->descriptor_length += offer->source_length;
        op->stream_length -= buffer.length;
    }
    if (op->status != TP_OK) {
        offer_undo(op);
        return;
    }
    op->cursor.skip = op->offers;
}

/* ---- the end of them ----------------------------------------------------- */

void tpr_offer_forget(struct tpr_op *op)
{
    while (op->offers != NULL) {
        struct tpr_offer *offer = op->offers;

        op->offers = offer->next;
        offer_let_go(offer);
        tpr_offer_free(op->context, offer);
    }
    op->cursor.skip = NULL;
}

static struct tpr_op *offer_find_in(struct tpb_list *list, uint32_t number)
{
    TPB_LIST_EACH(node, list) {
        struct tpr_op *op = TPB_CONTAINER(node, struct tpr_op, link);

        if (op->begun && op->offers != NULL && op->number == number)
            return op;
    }
    return NULL;
}

static struct tpr_op *offer_find(tp_pipe *pipe, uint32_t number)
{
    struct tpr_op *op = offer_find_in(&pipe->landing, number);

    return op != NULL ? op : offer_find_in(&pipe->writes, number);
}

static void offer_release_all(struct tpb_list *list)
{
    TPB_LIST_EACH(node, list) {
        struct tpr_op *op = TPB_CONTAINER(node, struct tpr_op, link);

        if (op->offers == NULL)
            continue;
        if (op->status == TP_OK)
            op->status = TP_ERR_PEER_CLOSED;
        tpr_offer_forget(op);
    }
}

bool tpr_offer_done(tp_pipe *pipe, const struct wire_about *about)
{
    if (about->message == WIRE_ALL) {
        /* It reads no more: what it has not pulled it never will. */
        offer_release_all(&pipe->landing);
        offer_release_all(&pipe->writes);
    } else {
        struct tpr_op *op = offer_find(pipe, about->message);

        if (op != NULL && !op->finished)
            return false;          /* the rest of it is still to be sent */
        if (op != NULL)
            tpr_offer_forget(op);
    }
    tpr_tx_pump(pipe);
    return true;
}

static const char *offer_channel_name(const tp_pipe *pipe,
                                      const struct tpr_offer *offer)
{
    const struct tpf_link *link = offer->channel < TPF_CHANNELS
                                  ? pipe->peer->links->of[offer->channel].link
                                  : NULL;

    return link != NULL ? link->kind->name : "the peer";
}

/* The rest of a device's buffer would go staged, and may not. */
static bool offer_breaks_contract(tp_pipe *pipe, const struct tpr_op *op,
                                  const struct tpr_offer *offer,
                                  const char *words)
{
    struct tpb_text text = { 0 };
    struct tpf_buffer buffer;

    if (!pipe->peer->links->device_insisted
        || !tpr_message_buffer(op->message, offer->buffer, &buffer)
        || buffer.device.type != TP_DEVICE_CUDA)
        return false;
    offer_refused(pipe, &buffer, &text);
    tpb_text_add(&text, "; %s says: %s", offer_channel_name(pipe, offer),
                 words);
    tpr_rx_break(pipe, TP_ERR_UNREACHABLE, text.failed ? "" : text.text);
    offer_broken(pipe, text.failed ? "" : text.text);
    tpb_text_fini(&text);
    return true;
}

bool tpr_offer_asked(tp_pipe *pipe, const struct wire_about *about,
                     const char *words, size_t length)
{
    struct tpr_op *op = offer_find(pipe, about->message);
    struct tpr_offer *offer;
    char text[TPT_WORDS];

    if (op == NULL)
        return true;               /* the write has ended meanwhile */
    offer = tpr_offer_of(op->offers, about->buffer);
    if (offer == NULL || offer->asked || about->offset >= offer->length)
        return false;
    tpr_links_words(text, sizeof(text), words, length);
    /* A receiver on a device asks without blaming the channel. */
    if (about->channel != TPF_CHANNEL_NONE)
        tpr_links_demote(pipe->peer, offer->channel, text);
    if (pipe->peer->state != TPR_PEER_CONNECTED)
        return true;               /* the contract insists on the channel */
    offer_let_go(offer);
    if (offer_breaks_contract(pipe, op, offer, text))
        return true;
    offer->asked = true;
    offer->at = about->offset;
    tpb_list_append(&pipe->pushes, &offer->link);
    tpr_tx_pump(pipe);
    return true;
}

bool tpr_offer_called(tp_pipe *pipe, const struct wire_about *about,
                      const unsigned char *words, size_t length)
{
    struct tpr_op *op = offer_find(pipe, about->message);
    struct tpr_offer *offer = op != NULL
                              ? tpr_offer_of(op->offers, about->buffer) : NULL;
    const struct tpr_link *link;
    struct tpf_pull *help;

    if (offer == NULL || offer->asked)
        return true;               /* the write has ended meanwhile */
    if (offer->to == NULL || offer->helping || length > TPF_CALL
        || about->channel != offer->channel || offer->to->kind->help == NULL)
        return false;
    link = &pipe->peer->links->of[offer->channel];
    if (!link->mine)
        return true;               /* it may, we may not */
    help = offer_help(offer);
    memset(offer->pull, 0, sizeof(offer->pull));
    help->link = offer->to;
    help->alone = op->alone;
    tpb_list_init(&help->node);
    if (!tpr_message_buffer(op->message, offer->buffer, &help->to)
        || !offer->to->kind->help(help, words, length))
        return false;
    if (pipe->peer->state != TPR_PEER_CONNECTED)
        return true;               /* it has looked at garbage: all is over */
    offer->helping = true;
    tpr_touch(pipe->context);
    return true;
}
