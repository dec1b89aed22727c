/* SPDX-License-Identifier: BSD-3-Clause */
/* Arriving messages: decoded from a descriptor, handed out, taken back. */
#include "config.h"

#include "runtime/base/alloc.h"
#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/stream.h"

enum { SKELETON_STORAGE = 192, SKELETON_KEEP = 64 * 1024,
       SKELETON_SPARE = 16 * 1024 };

struct tpr_skeleton *tpr_skeleton_new(tp_pipe *pipe, size_t storage)
{
    struct tpr_skeleton *skeleton = pipe->free_skeletons;

    if (skeleton != NULL) {
        pipe->free_skeletons = skeleton->next;
    } else {
        skeleton = tpb_zalloc(sizeof(*skeleton));
        if (skeleton == NULL)
            return NULL;
        skeleton->pipe = pipe;
        tpb_list_init(&skeleton->lent_link);
    }
    if (skeleton->capacity < storage) {
        size_t capacity = storage > SKELETON_STORAGE ? storage
                                                     : SKELETON_STORAGE;

        tpb_free(skeleton->storage);
        skeleton->capacity = 0;
        skeleton->storage = tpb_zalloc(capacity);
        if (skeleton->storage == NULL) {
            tpr_skeleton_free(skeleton);
            return NULL;
        }
        skeleton->capacity = capacity;
    }
    memset(&skeleton->message, 0, sizeof(skeleton->message));
    return skeleton;
}

void tpr_skeleton_free(struct tpr_skeleton *skeleton)
{
    tp_pipe *pipe = skeleton->pipe;

    skeleton->release = NULL;
    /* Also of a read that ended while others of its buffers were to come. */
    if (skeleton->offers != NULL)
        tpr_borrow_unmap(skeleton);
    while (skeleton->offers != NULL) {
        struct tpr_offer *offer = skeleton->offers;

        skeleton->offers = offer->next;
        tpr_offer_free(pipe->context, offer);
    }
    while (TPB_UNLIKELY(skeleton->copies != NULL)) {
        struct tpr_copy *copy = skeleton->copies;

        skeleton->copies = copy->next;
        if (skeleton->spare == NULL && copy->capacity <= SKELETON_SPARE)
            skeleton->spare = copy;
        else
            tpb_free(copy);
    }
    if (skeleton->capacity > SKELETON_KEEP) {
        tpb_free(skeleton->storage);
        skeleton->storage = NULL;
        skeleton->capacity = 0;
    }
    tpr_skeleton_put(skeleton);
}

void tpr_skeletons_fini(tp_pipe *pipe)
{
    while (pipe->free_skeletons != NULL) {
        struct tpr_skeleton *skeleton = pipe->free_skeletons;

        pipe->free_skeletons = skeleton->next;
        tpb_free(skeleton->storage);
        tpb_free(skeleton->spare);
        tpb_free(skeleton);
    }
}

/* What a pool's skeleton with storage has room for. */
_Static_assert(SKELETON_STORAGE >= sizeof(tp_payload)
               && SKELETON_STORAGE >= sizeof(tp_tensor), "storage");

struct tpr_skeleton *tpr_skeleton_first(tp_pipe *pipe)
{
    return tpr_skeleton_new(pipe, sizeof(tp_payload));
}

/* ---- decoding ----------------------------------------------------------- */

/* What is left of a descriptor that is being read. */
struct skeleton_reader {
    const unsigned char *at;
    uint64_t left;
    bool no_memory;                /* that is why it does not go on */
};

static bool skeleton_take(struct skeleton_reader *reader, void *to,
                          uint64_t length)
{
    if (reader->left < length)
        return false;
    tpb_copy(to, reader->at, length);
    reader->at += length;
    reader->left -= length;
    return true;
}

/* Metadata stays where it is; *metadata points at it. */
static bool skeleton_point(struct skeleton_reader *reader, uint64_t length,
                           const void **metadata)
{
    *metadata = length > 0 ? reader->at : NULL;
    if (reader->left < length)
        return false;
    reader->at += length;
    reader->left -= length;
    return true;
}

static bool skeleton_add_length(struct tpr_skeleton *skeleton,
                                uint64_t length)
{
    return !__builtin_add_overflow(skeleton->data_length, length,
                                   &skeleton->data_length)
           && skeleton->data_length <= SIZE_MAX / 2;
}

/* Of a buffer that does not come in the stream; `end` is where its list goes
 * on. */
static bool skeleton_offer(struct tpr_skeleton *skeleton,
                           struct skeleton_reader *reader, size_t buffer,
                           uint64_t length, uint8_t channel,
                           uint8_t source_length, struct tpr_offer ***end)
{
    struct tpr_offer *offer;

    if (channel == TPF_CHANNEL_NONE) {
        skeleton->stream_length += length;
        return source_length == 0;
    }
    if (channel >= TPF_CHANNELS || source_length == 0
        || source_length > TPF_SOURCE || length == 0)
        return false;
    offer = tpr_offer_new(skeleton->pipe->context);
    if (offer == NULL) {
        reader->no_memory = true;
        return false;
    }
    offer->buffer = (uint32_t)buffer;
    offer->channel = channel;
    offer->source_length = source_length;
    offer->length = length;
    **end = offer;
    *end = &offer->next;
    return true;
}

static bool skeleton_payload(struct tpr_skeleton *skeleton, size_t i,
                             struct skeleton_reader *reader,
                             struct tpr_offer ***end)
{
    tp_payload *payload = &skeleton->message.payloads[i];
    struct wire_payload wire;

    if (!skeleton_take(reader, &wire, sizeof(wire)))
        return false;
    *payload = (tp_payload){ .length = wire.length,
                             .metadata_length = wire.metadata_length };
    return skeleton_add_length(skeleton, wire.length)
           && skeleton_offer(skeleton, reader, i, wire.length, wire.channel,
                             wire.source_length, end);
}

static bool skeleton_tensor(struct tpr_skeleton *skeleton, size_t i,
                            struct skeleton_reader *reader,
                            struct tpr_offer ***end)
{
    tp_tensor *tensor = &skeleton->message.tensors[i];
    struct wire_tensor wire;

    if (!skeleton_take(reader, &wire, sizeof(wire)))
        return false;
    *tensor = (tp_tensor){
        .length = wire.length, .metadata_length = wire.metadata_length,
        .device = { (tp_device_type)wire.device_type, wire.device_index },
        .target = { (tp_device_type)wire.target_type, wire.target_index } };
    return skeleton_add_length(skeleton, wire.length)
           && skeleton_offer(skeleton, reader,
                             skeleton->message.payload_count + i, wire.length,
                             wire.channel, wire.source_length, end);
}

static bool skeleton_parse(struct tpr_skeleton *skeleton,
                           const struct wire_descriptor *head,
                           struct skeleton_reader *reader)
{
    tp_message *message = &skeleton->message;
    struct tpr_offer **end = &skeleton->offers;
    uint64_t metadata = head->metadata_length;

    for (size_t i = 0; i < head->payloads; i++)
        if (!skeleton_payload(skeleton, i, reader, &end))
            return false;
    for (size_t i = 0; i < head->tensors; i++)
        if (!skeleton_tensor(skeleton, i, reader, &end))
            return false;
    message->metadata_length = metadata;
    if (!skeleton_point(reader, metadata, &message->metadata))
        return false;
    for (size_t i = 0; i < head->payloads; i++)
        if (!skeleton_point(reader, message->payloads[i].metadata_length,
                            &message->payloads[i].metadata))
            return false;
    for (size_t i = 0; i < head->tensors; i++)
        if (!skeleton_point(reader, message->tensors[i].metadata_length,
                            &message->tensors[i].metadata))
            return false;
    for (struct tpr_offer *offer = skeleton->offers; offer != NULL;
         offer = offer->next)
        if (!skeleton_take(reader, offer->source, offer->source_length))
            return false;
    return reader->left == 0;
}

/* The descriptor's own length; 0 if its head cannot be. */
uint64_t tpr_descriptor_check(const struct wire_descriptor *head)
{
    uint64_t least = sizeof(*head)
                     + (uint64_t)head->payloads * sizeof(struct wire_payload)
                     + (uint64_t)head->tensors * sizeof(struct wire_tensor);

    if (head->payloads > WIRE_BUFFERS || head->tensors > WIRE_BUFFERS
        || head->length < least || head->length > WIRE_DESCRIPTOR
        || head->metadata_length > head->length - least)
        return 0;
    return head->length;
}

/* The bytes may be in shared memory: copied first, then looked at. */
tp_status tpr_skeleton_decode(tp_pipe *pipe, const unsigned char *descriptor,
                              uint64_t length, struct tpr_skeleton **result)
{
    struct wire_descriptor head;
    struct skeleton_reader reader;
    struct tpr_skeleton *skeleton;
    size_t arrays, tensors_at;

    memcpy(&head, descriptor, sizeof(head));
    if (tpr_descriptor_check(&head) != length)
        return TP_ERR_PROTOCOL;
    tensors_at = head.payloads * sizeof(tp_payload);
    arrays = tensors_at + head.tensors * sizeof(tp_tensor);
    skeleton = tpr_skeleton_new(pipe, arrays + length);
    if (skeleton == NULL)
        return TP_ERR_NO_MEMORY;
    tpb_copy(skeleton->storage + arrays, descriptor, length);
    skeleton->data_length = skeleton->stream_length = 0;
    skeleton->sent = head.sent;
    skeleton->message.payload_count = head.payloads;
    skeleton->message.tensor_count = head.tensors;
    if (head.payloads > 0)
        skeleton->message.payloads = (tp_payload *)(void *)skeleton->storage;
    if (head.tensors > 0)
        skeleton->message.tensors
            = (tp_tensor *)(void *)(skeleton->storage + tensors_at);
    reader = (struct skeleton_reader){
        .at = skeleton->storage + arrays + sizeof(head),
        .left = length - sizeof(head) };
    if (!skeleton_parse(skeleton, &head, &reader)) {
        tpr_skeleton_free(skeleton);
        return reader.no_memory ? TP_ERR_NO_MEMORY : TP_ERR_PROTOCOL;
    }
    *result = skeleton;
    return TP_OK;
}

/* ---- what the user gives back ------------------------------------------- */

/* What is not ours is told by its address alone: not looked into. */
bool tpr_skeleton_claim(tp_pipe *pipe, tp_message *message, bool borrow)
{
    struct tpr_skeleton *skeleton = (struct tpr_skeleton *)(void *)message;
    tp_message *expected = message;

    return atomic_load(&pipe->offered) == message
           && (borrow || tpr_skeleton_filled(skeleton))
           && atomic_compare_exchange_strong(&pipe->offered, &expected, NULL);
}

void tpr_skeleton_unclaim(tp_pipe *pipe, tp_message *message)
{
    atomic_store(&pipe->offered, message);
}

/* ---- buffers ------------------------------------------------------------ */

bool tpr_message_buffer(const tp_message *message, size_t index,
                        struct tpf_buffer *buffer)
{
    const tp_tensor *tensor;

    memset(buffer, 0, sizeof(*buffer));
    if (index < message->payload_count) {
        buffer->data = message->payloads[index].data;
        buffer->length = message->payloads[index].length;
        return true;
    }
    index -= message->payload_count;
    if (index >= message->tensor_count)
        return false;
    tensor = &message->tensors[index];
    buffer->data = tensor->data;
    buffer->length = tensor->length;
    buffer->device = tensor->device;
    buffer->target = tensor->target;
    buffer->stream = tensor->stream;
    return true;
}

bool tpr_cursor_at(const tp_message *message, struct tpr_cursor *cursor,
                   unsigned char **data, size_t *left)
{
    struct tpf_buffer buffer;

    for (; tpr_message_buffer(message, cursor->buffer, &buffer);
         cursor->buffer++, cursor->offset = 0) {
        if (cursor->skip != NULL && cursor->skip->buffer == cursor->buffer) {
            cursor->skip = cursor->skip->next;
            continue;
        }
        if (cursor->offset < buffer.length) {
            *data = (unsigned char *)buffer.data + cursor->offset;
            *left = buffer.length - cursor->offset;
            return true;
        }
    }
    return false;
}
