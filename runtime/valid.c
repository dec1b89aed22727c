/* SPDX-License-Identifier: BSD-3-Clause */
/* What a caller says of his message: can it be, and if not, why in words. */
#include "config.h"

#include <stdio.h>

#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/stream.h"

/* Of which piece it is; the message itself if `piece` is NULL. */
struct valid_fault {
    const char *piece, *words;
    size_t index;
    const tp_tensor *misplaced;    /* this one's devices are the fault */
};

static const char *valid_data(const void *data, size_t length)
{
    return data == NULL && length > 0
           ? "data is NULL, but length is not 0" : NULL;
}

/* One by one within the limit of them all, so that their sum is a number. */
static const char *valid_metadata(const void *metadata, size_t length)
{
    if (metadata == NULL && length > 0)
        return "metadata is NULL, but metadata_length is not 0";
    return length > WIRE_DESCRIPTOR
           ? "metadata_length is more than 1 GiB" : NULL;
}

static const char *valid_list(const void *list, size_t count)
{
    if (list == NULL && count > 0)
        return "NULL, but their count is not 0";
    return count > WIRE_BUFFERS ? "more than 1048576" : NULL;
}

/* `total` is of the lengths of the pieces before it, and becomes its own's. */
static const char *valid_piece(const void *data, size_t length,
                               const void *metadata, size_t metadata_length,
                               uint64_t *total)
{
    const char *words = valid_data(data, length);

    if (words == NULL)
        words = valid_metadata(metadata, metadata_length);
    if (words == NULL && __builtin_add_overflow(*total, length, total))
        words = "length is more than there can be";
    return words;
}

/* The words of what is wrong with the lists' pieces; NULL: nothing. */
static const char *valid_pieces(const tp_message *message, uint64_t *total,
                                struct valid_fault *fault)
{
    fault->piece = "payload ";
    for (size_t i = 0; i < message->payload_count; i++) {
        const tp_payload *payload = &message->payloads[i];
        const char *words = valid_piece(payload->data, payload->length,
                                        payload->metadata,
                                        payload->metadata_length, total);

        fault->index = i;
        if (words != NULL)
            return words;
    }
    fault->piece = "tensor ";
    for (size_t i = 0; i < message->tensor_count; i++) {
        const tp_tensor *tensor = &message->tensors[i];
        const char *words = valid_piece(tensor->data, tensor->length,
                                        tensor->metadata,
                                        tensor->metadata_length, total);

        fault->index = i;
        if (words != NULL)
            return words;
        if (!tpr_device_valid(tensor->device)
            || !tpr_target_valid(tensor->target)) {
            fault->misplaced = tensor;
            return "it is on no device that there can be";
        }
    }
    fault->piece = NULL;
    return NULL;
}

static const char *valid_message(const tp_message *message,
                                 struct valid_fault *fault)
{
    uint64_t total = 0;
    const char *words;

    fault->piece = NULL;
    if (message == NULL)
        return "it is NULL";
    words = valid_metadata(message->metadata, message->metadata_length);
    if (words != NULL)
        return words;
    fault->piece = "payloads";
    fault->index = SIZE_MAX;
    words = valid_list(message->payloads, message->payload_count);
    if (words != NULL)
        return words;
    fault->piece = "tensors";
    words = valid_list(message->tensors, message->tensor_count);
    if (words == NULL)
        words = valid_pieces(message, &total, fault);
    if (words != NULL)
        return words;
    if (total > SIZE_MAX / 2)
        return "its lengths are more than there can be";
    return tpr_descriptor_length(message) > WIRE_DESCRIPTOR
           ? "its pieces and their metadata take more than 1 GiB" : NULL;
}

bool tpr_message_valid(const tp_message *message)
{
    struct valid_fault fault;

    /* Of one payload and nothing else, as most messages are. */
    if (message != NULL && TPB_LIKELY(tpr_message_plain(message)))
        return message->payloads[0].length <= SIZE_MAX / 2
               && valid_data(message->payloads[0].data,
                             message->payloads[0].length) == NULL;
    return valid_message(message, &fault) == NULL;
}

static void valid_tell(tp_pipe *pipe, const struct valid_fault *fault)
{
    char text[160], number[24] = "";

    if (fault->piece != NULL && fault->index != SIZE_MAX)
        snprintf(number, sizeof(number), "%zu", fault->index);
    snprintf(text, sizeof(text), "a wrong message: %s%s%s%s",
             fault->piece != NULL ? fault->piece : "", number,
             fault->piece != NULL ? ": " : "", fault->words);
    tpr_pipe_refuse(pipe, text);
}

void tpr_message_tell(tp_pipe *pipe, const tp_message *message)
{
    struct valid_fault fault = { .misplaced = NULL };

    fault.words = valid_message(message, &fault);
    if (fault.misplaced != NULL)
        tpr_device_tell(pipe, fault.misplaced);
    else if (fault.words != NULL)
        valid_tell(pipe, &fault);
}

/* Memory for every buffer, and the lengths untouched? */
static const char *valid_filled(const struct tpr_skeleton *skeleton,
                                struct valid_fault *fault)
{
    const tp_message *message = &skeleton->message;
    struct tpf_buffer buffer;
    uint64_t total = 0;

    for (size_t i = 0; tpr_message_buffer(message, i, &buffer); i++) {
        bool tensor = i >= message->payload_count;

        fault->piece = tensor ? "tensor " : "payload ";
        fault->index = tensor ? i - message->payload_count : i;
        if (valid_data(buffer.data, buffer.length) != NULL)
            return "there is no memory for it: data is NULL";
        total += buffer.length;
    }
    fault->piece = NULL;
    return total == skeleton->data_length ? NULL
           : "a length is not what arrived any more";
}

bool tpr_skeleton_filled(const struct tpr_skeleton *skeleton)
{
    struct valid_fault fault;

    return valid_filled(skeleton, &fault) == NULL;
}

void tpr_skeleton_tell(tp_pipe *pipe, const tp_message *message)
{
    struct valid_fault fault = {
        .words = "it is none that waits to be read on this pipe"
    };

    if (atomic_load(&pipe->offered) == message)
        fault.words = valid_filled((const struct tpr_skeleton *)
                                   (const void *)message, &fault);
    if (fault.words != NULL)
        valid_tell(pipe, &fault);
}
