/* SPDX-License-Identifier: BSD-3-Clause */
/* What a message's descriptor is on the wire; read again in skeleton.c. */
#include "config.h"

#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/stream.h"

uint64_t tpr_descriptor_length(const tp_message *message)
{
    uint64_t length = sizeof(struct wire_descriptor)
                      + message->payload_count * sizeof(struct wire_payload)
                      + message->tensor_count * sizeof(struct wire_tensor)
                      + message->metadata_length;

    for (size_t i = 0; i < message->payload_count; i++)
        length += message->payloads[i].metadata_length;
    for (size_t i = 0; i < message->tensor_count; i++)
        length += message->tensors[i].metadata_length;
    return length;
}

/* What of the encoded descriptor is wanted: the bytes behind so many. */
struct descriptor_window {
    uint64_t skip;
    unsigned char *to;
    size_t room;
};

static void descriptor_put(struct descriptor_window *window, const void *from,
                           size_t length)
{
    size_t skip = window->skip < length ? (size_t)window->skip : length;

    window->skip -= skip;
    length -= skip;
    if (length > window->room)
        length = window->room;
    if (length > 0)
        tpb_copy(window->to, (const unsigned char *)from + skip, length);
    window->to += length;
    window->room -= length;
}

/* So many of `count` entries of that size lie before it. */
static size_t descriptor_before(struct descriptor_window *window, size_t size,
                                size_t count)
{
    uint64_t before = window->skip / size;

    if (before > count)
        before = count;
    window->skip -= before * size;
    return (size_t)before;
}

/* The next offer, if it is of that buffer; what is before it is skipped. */
static const struct tpr_offer *
descriptor_offer(const struct tpr_offer **offers, size_t buffer)
{
    static const struct tpr_offer none;
    const struct tpr_offer *offer = *offers;

    while (TPB_UNLIKELY(offer != NULL && offer->buffer < buffer))
        offer = *offers = offer->next;
    if (offer == NULL || offer->buffer != buffer)
        return &none;
    *offers = offer->next;
    return offer;
}

void tpr_descriptor_encode(const tp_message *message,
                           const struct tpr_offer *offers, uint32_t sent,
                           uint64_t length, uint64_t from, unsigned char *to,
                           size_t room)
{
    struct descriptor_window window = { from, to, room };
    const struct tpr_offer *first = offers;
    size_t i;
    struct wire_descriptor head = {
        .payloads = (uint32_t)message->payload_count,
        .tensors = (uint32_t)message->tensor_count, .length = length,
        .metadata_length = message->metadata_length, .sent = sent };

    descriptor_put(&window, &head, sizeof(head));
    i = descriptor_before(&window, sizeof(struct wire_payload),
                          message->payload_count);
    for (; i < message->payload_count && window.room > 0; i++) {
        const tp_payload *payload = &message->payloads[i];
        const struct tpr_offer *offer = descriptor_offer(&offers, i);
        struct wire_payload wire = {
            .length = payload->length,
            .metadata_length = payload->metadata_length,
            .channel = offer->channel,
            .source_length = offer->source_length };

        descriptor_put(&window, &wire, sizeof(wire));
    }
    i = descriptor_before(&window, sizeof(struct wire_tensor),
                          message->tensor_count);
    for (; i < message->tensor_count && window.room > 0; i++) {
        const tp_tensor *tensor = &message->tensors[i];
        const struct tpr_offer *offer
            = descriptor_offer(&offers, message->payload_count + i);
        struct wire_tensor wire = {
            .length = tensor->length,
            .metadata_length = tensor->metadata_length,
            .device_type = (uint8_t)tensor->device.type,
            .target_type = (uint8_t)tensor->target.type,
            .channel = offer->channel,
            .source_length = offer->source_length,
            .device_index = tensor->device.index,
            .target_index = tensor->target.index };

        descriptor_put(&window, &wire, sizeof(wire));
    }
    descriptor_put(&window, message->metadata, message->metadata_length);
    for (i = 0; i < message->payload_count && window.room > 0; i++)
        descriptor_put(&window, message->payloads[i].metadata,
                       message->payloads[i].metadata_length);
    for (i = 0; i < message->tensor_count && window.room > 0; i++)
        descriptor_put(&window, message->tensors[i].metadata,
                       message->tensors[i].metadata_length);
    for (; first != NULL && window.room > 0; first = first->next)
        descriptor_put(&window, first->source, first->source_length);
}
