/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Messages that fit a frame, with metadata or not of one buffer: all that a
 * descriptor says of them in a few bytes, see struct wire_small.
 */
#include "config.h"

#include "runtime/core.h"
#include "runtime/stream.h"

/* What is summed up of a message. */
struct small_sum {
    size_t metadata, data;
};

/* False: that is not so little, or there is none where there should be. */
static inline bool small_add(struct small_sum *sum, const void *data,
                             size_t length, const void *metadata,
                             size_t metadata_length)
{
    if (length > WIRE_SMALL_MOST || (data == NULL && length > 0)
        || metadata_length > WIRE_SMALL_MOST
        || (metadata == NULL && metadata_length > 0))
        return false;
    sum->data += length;
    sum->metadata += metadata_length;
    return true;
}

size_t tpr_small_length(const tp_message *message, size_t *data_length)
{
    size_t payloads = message->payload_count, tensors = message->tensor_count;
    struct small_sum sum = { 0 };
    size_t length;

    if (payloads > WIRE_PIECES || tensors > WIRE_PIECES - payloads
        || (payloads > 0 && message->payloads == NULL)
        || (tensors > 0 && message->tensors == NULL)
        || !small_add(&sum, NULL, 0, message->metadata,
                      message->metadata_length))
        return 0;
    for (size_t i = 0; i < payloads; i++) {
        const tp_payload *payload = &message->payloads[i];

        if (!small_add(&sum, payload->data, payload->length, payload->metadata,
                       payload->metadata_length))
            return 0;
    }
    for (size_t i = 0; i < tensors; i++) {
        const tp_tensor *tensor = &message->tensors[i];

        if (tpr_tensor_place(tensor) == 0
            || !small_add(&sum, tensor->data, tensor->length, tensor->metadata,
                          tensor->metadata_length))
            return 0;
    }
    *data_length = sum.data;
    length = sizeof(struct wire_small)
             + (payloads + tensors) * sizeof(struct wire_piece)
             + sum.metadata + sum.data;
    return length <= WIRE_SMALL_MOST ? length : 0;
}

/* Where it is written to; never past the end, whatever becomes of the message
 * meanwhile. */
struct small_room {
    unsigned char *at, *end;
};

static inline void small_put(struct small_room *room, const void *from,
                             size_t length)
{
    if (length > (size_t)(room->end - room->at))
        length = (size_t)(room->end - room->at);
    tpb_copy(room->at, from, length);
    room->at += length;
}

static inline void small_piece(struct small_room *room, size_t length,
                               size_t metadata_length, unsigned bits)
{
    struct wire_piece piece = {
        (uint16_t)length, (uint16_t)(metadata_length | bits) };

    if (sizeof(piece) > (size_t)(room->end - room->at))
        return;
    memcpy(room->at, &piece, sizeof(piece));
    room->at += sizeof(piece);
}

void tpr_small_encode(const tp_message *message, size_t length,
                      unsigned char *to)
{
    size_t payloads = message->payload_count, tensors = message->tensor_count;
    struct small_room room = { to + sizeof(struct wire_small), to + length };
    struct wire_small head = {
        .payloads = (uint8_t)payloads, .tensors = (uint8_t)tensors,
        .metadata_length = (uint16_t)message->metadata_length };

    memcpy(to, &head, sizeof(head));
    for (size_t i = 0; i < payloads; i++)
        small_piece(&room, message->payloads[i].length,
                    message->payloads[i].metadata_length, 0);
    for (size_t i = 0; i < tensors; i++)
        small_piece(&room, message->tensors[i].length,
                    message->tensors[i].metadata_length,
                    message->tensors[i].target.type == TP_DEVICE_CPU
                    ? WIRE_PIECE_HOST : 0);
    small_put(&room, message->metadata, message->metadata_length);
    for (size_t i = 0; i < payloads; i++)
        small_put(&room, message->payloads[i].metadata,
                  message->payloads[i].metadata_length);
    for (size_t i = 0; i < tensors; i++)
        small_put(&room, message->tensors[i].metadata,
                  message->tensors[i].metadata_length);
    for (size_t i = 0; i < payloads; i++)
        small_put(&room, message->payloads[i].data,
                  message->payloads[i].length);
    for (size_t i = 0; i < tensors; i++)
        small_put(&room, message->tensors[i].data,
                  message->tensors[i].length);
}

/* ---- arriving ----------------------------------------------------------- */

/* The next metadata of so many bytes; NULL for none. */
static inline const void *small_take(const unsigned char **at, size_t length)
{
    const unsigned char *here = *at;

    *at += length;
    return length > 0 ? here : NULL;
}

static void small_payload(tp_payload *payload, const struct wire_piece *piece,
                          const unsigned char **at)
{
    *payload = (tp_payload){
        .length = piece->length,
        .metadata = small_take(at, piece->metadata_length),
        .metadata_length = piece->metadata_length };
}

static void small_tensor(tp_tensor *tensor, const struct wire_piece *piece,
                         const unsigned char **at)
{
    size_t metadata = piece->metadata_length & ~WIRE_PIECE_HOST;
    bool host = (piece->metadata_length & WIRE_PIECE_HOST) != 0;

    *tensor = (tp_tensor){
        .length = piece->length, .metadata = small_take(at, metadata),
        .metadata_length = metadata,
        .target.type = host ? TP_DEVICE_CPU : TP_DEVICE_ANY };
}

/* The bytes may be in shared memory: copied first, then looked at. */
tp_status tpr_small_decode(tp_pipe *pipe, const unsigned char *body,
                           uint32_t length, struct tpr_skeleton **result,
                           uint32_t *taken)
{
    struct wire_piece pieces[WIRE_PIECES];
    struct small_sum sum;
    struct wire_small head;
    struct tpr_skeleton *skeleton;
    tp_message *message;
    size_t count, begins, tensors_at, arrays;
    const unsigned char *at;

    if (length < sizeof(head) || length > WIRE_SMALL_MOST)
        return TP_ERR_PROTOCOL;
    memcpy(&head, body, sizeof(head));
    count = (size_t)head.payloads + head.tensors;
    begins = sizeof(head) + count * sizeof(*pieces);
    if (count > WIRE_PIECES || length < begins)
        return TP_ERR_PROTOCOL;
    memcpy(pieces, body + sizeof(head), count * sizeof(*pieces));
    sum = (struct small_sum){ .metadata = head.metadata_length };
    for (size_t i = 0; i < count; i++) {
        sum.data += pieces[i].length;
        sum.metadata += i < head.payloads
                        ? pieces[i].metadata_length
                        : pieces[i].metadata_length & ~WIRE_PIECE_HOST;
    }
    if (length != begins + sum.metadata + sum.data)
        return TP_ERR_PROTOCOL;
    tensors_at = head.payloads * sizeof(tp_payload);
    arrays = tensors_at + head.tensors * sizeof(tp_tensor);
    skeleton = tpr_skeleton_new(pipe, arrays + sum.metadata + 1);
    if (skeleton == NULL)
        return TP_ERR_NO_MEMORY;
    at = skeleton->storage + arrays;
    tpb_copy(skeleton->storage + arrays, body + begins, sum.metadata);
    skeleton->data_length = skeleton->stream_length = sum.data;
    message = &skeleton->message;
    message->metadata = small_take(&at, head.metadata_length);
    message->metadata_length = head.metadata_length;
    message->payload_count = head.payloads;
    message->tensor_count = head.tensors;
    if (head.payloads > 0)
        message->payloads = (tp_payload *)(void *)skeleton->storage;
    if (head.tensors > 0)
        message->tensors
            = (tp_tensor *)(void *)(skeleton->storage + tensors_at);
    for (size_t i = 0; i < head.payloads; i++)
        small_payload(&message->payloads[i], &pieces[i], &at);
    for (size_t i = 0; i < head.tensors; i++)
        small_tensor(&message->tensors[i], &pieces[head.payloads + i], &at);
    *taken = (uint32_t)(begins + sum.metadata);
    *result = skeleton;
    return TP_OK;
}
