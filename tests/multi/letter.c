/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages made from a number. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "tests/multi/letter.h"
#include "tests/multi/spmd.h"

const struct tpx_letter_memory *tpx_letter_memory;

/* Around the sizes at which something changes underneath. */
static const size_t letter_sizes[] = {
    0, 1, 7, 8, 9, 40, 63, 64, 65, 200, 1000, 2047, 2048, 4096, 8192, 16375,
    16384, 16400, 16416, 16432, 16440, 16487, 16488, 16489, 32768, 65535,
    65536, 65537, 131072, 262145, 1048576, 3145728
};
enum {
    LETTER_SIZES = sizeof(letter_sizes) / sizeof(letter_sizes[0]),
    LETTER_SMALL = 14, LETTER_MEDIUM = 28, LETTER_BIG_FROM = 29,
    LETTER_MOVED = 6
};

static size_t letter_size(uint64_t *state, enum tpx_letter_kind kind)
{
    switch (kind) {
    case TPX_SMALL:
        return letter_sizes[tpx_below(state, LETTER_SMALL)];
    case TPX_BIG:
        return letter_sizes[LETTER_BIG_FROM
                            + tpx_below(state,
                                        LETTER_SIZES - LETTER_BIG_FROM)];
    case TPX_MIXED:
        break;
    }
    if (tpx_below(state, 60) == 0)
        return letter_sizes[tpx_below(state, LETTER_SIZES)];
    return letter_sizes[tpx_below(state, tpx_below(state, 4) == 0
                                         ? LETTER_MEDIUM : LETTER_SMALL)];
}

static size_t letter_count(uint64_t *state, enum tpx_letter_kind kind)
{
    static const unsigned char few[] = { 0, 0, 1, 1, 1, 1, 2, 3, 5 };

    if (kind == TPX_MIXED && tpx_below(state, 80) == 0)
        return 1 + tpx_below(state, 1000);
    return few[tpx_below(state, sizeof(few))];
}

static size_t letter_metadata(uint64_t *state, enum tpx_letter_kind kind)
{
    static const size_t lengths[] = { 0, 0, 0, 1, 8, 13, 100, 1900, 2100 };

    if (kind == TPX_MIXED && tpx_below(state, 150) == 0)
        return 1 + tpx_below(state, 3 << 20);
    if (kind == TPX_MIXED && tpx_below(state, 40) == 0)
        return 1 + tpx_below(state, 70000);
    return lengths[tpx_below(state, sizeof(lengths) / sizeof(lengths[0]))];
}

static void *letter_array(size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size);

    tpx_check(memory != NULL, "no memory for the test itself");
    return memory;
}

/* Lengths and devices, no bytes. */
static struct tpx_letter *letter_plan(uint64_t seed, enum tpx_letter_kind kind)
{
    struct tpx_letter *letter = letter_array(1, sizeof(*letter));
    tp_message *message = &letter->message;
    uint64_t state = seed;
    bool plain = tpx_below(&state, 3) == 0;    /* as tp_pipe_send() makes */

    letter->seed = seed;
    message->payload_count = plain ? 1 : letter_count(&state, kind);
    message->tensor_count = plain ? 0 : letter_count(&state, kind);
    message->metadata_length = plain ? 0 : letter_metadata(&state, kind);
    message->payloads = letter_array(message->payload_count,
                                     sizeof(tp_payload));
    message->tensors = letter_array(message->tensor_count, sizeof(tp_tensor));
    if (message->payload_count + message->tensor_count > 20)
        kind = TPX_SMALL;
    letter->metadata_length = message->metadata_length;
    for (size_t i = 0; i < message->payload_count; i++) {
        tp_payload *payload = &message->payloads[i];

        payload->length = letter_size(&state, kind);
        payload->metadata_length = plain ? 0 : tpx_below(&state, 3) * 11u;
        letter->data_length += payload->length;
        letter->metadata_length += payload->metadata_length;
    }
    for (size_t i = 0; i < message->tensor_count; i++) {
        tp_tensor *tensor = &message->tensors[i];

        tensor->length = letter_size(&state, kind);
        tensor->metadata_length = tpx_below(&state, 3) * 7u;
        tensor->target.type = tpx_below(&state, 2) == 0 ? TP_DEVICE_ANY
                                                        : TP_DEVICE_CPU;
        letter->data_length += tensor->length;
        letter->metadata_length += tensor->metadata_length;
    }
    return letter;
}

static void letter_place(tp_message *message, unsigned char *data)
{
    for (size_t i = 0; i < message->payload_count; i++) {
        message->payloads[i].data = data;
        data += message->payloads[i].length;
    }
    for (size_t i = 0; i < message->tensor_count; i++) {
        message->tensors[i].data = data;
        data += message->tensors[i].length;
    }
}

/* Is that tensor elsewhere?  The first ones are: each is an allocation. */
static bool letter_moved(const struct tpx_letter *letter, size_t i)
{
    return tpx_letter_memory != NULL && i < LETTER_MOVED
           && letter->message.tensors[i].length > 0;
}

/* Tensors to other memory than the letter's data; `filled`: with what is
 * there. */
static void letter_move(struct tpx_letter *letter, bool filled)
{
    tp_message *message = &letter->message;

    for (size_t i = 0; i < message->tensor_count; i++)
        if (letter_moved(letter, i))
            tpx_letter_memory->take(&message->tensors[i],
                                    filled ? message->tensors[i].data : NULL,
                                    letter->seed + i
                                    + (uint64_t)tpx_me.rank);
}

static const void *letter_point(unsigned char **at, size_t length)
{
    const void *point = length > 0 ? *at : NULL;

    *at += length;
    return point;
}

struct tpx_letter *tpx_letter_make(uint64_t seed, enum tpx_letter_kind kind)
{
    struct tpx_letter *letter = letter_plan(seed, kind);
    tp_message *message = &letter->message;
    unsigned char *at;

    letter->data = letter_array(letter->data_length, 1);
    letter->metadata = at = letter_array(letter->metadata_length, 1);
    tpx_fill(letter->data, letter->data_length, seed);
    tpx_fill(letter->metadata, letter->metadata_length, ~seed);
    letter_place(message, letter->data);
    letter_move(letter, true);
    message->metadata = letter_point(&at, message->metadata_length);
    for (size_t i = 0; i < message->payload_count; i++)
        message->payloads[i].metadata
            = letter_point(&at, message->payloads[i].metadata_length);
    for (size_t i = 0; i < message->tensor_count; i++)
        message->tensors[i].metadata
            = letter_point(&at, message->tensors[i].metadata_length);
    return letter;
}

/* Copies one piece of metadata to where all of it is compared. */
static void letter_collect(unsigned char **at, const void *metadata,
                           size_t got, size_t expected)
{
    tpx_equal(got, expected);
    tpx_check(got > 0 || metadata == NULL, "empty metadata is not NULL");
    if (got > 0)
        memcpy(*at, metadata, got);
    *at += got;
}

struct tpx_letter *tpx_letter_expect(uint64_t seed, enum tpx_letter_kind kind,
                                     tp_message *skeleton)
{
    struct tpx_letter *letter = letter_plan(seed, kind);
    tp_message *plan = &letter->message;
    unsigned char *at;
    size_t wrong;

    tpx_equal(skeleton->payload_count, plan->payload_count);
    tpx_equal(skeleton->tensor_count, plan->tensor_count);
    letter->data = letter_array(letter->data_length, 1);
    letter->metadata = at = letter_array(letter->metadata_length, 1);
    letter_collect(&at, skeleton->metadata, skeleton->metadata_length,
                   plan->metadata_length);
    for (size_t i = 0; i < plan->payload_count; i++) {
        const tp_payload *payload = &skeleton->payloads[i];

        tpx_check(payload->data == NULL, "data of a skeleton is not NULL");
        tpx_equal(payload->length, plan->payloads[i].length);
        letter_collect(&at, payload->metadata, payload->metadata_length,
                       plan->payloads[i].metadata_length);
    }
    for (size_t i = 0; i < plan->tensor_count; i++) {
        const tp_tensor *tensor = &skeleton->tensors[i];

        tpx_check(tensor->data == NULL, "data of a skeleton is not NULL");
        tpx_equal(tensor->length, plan->tensors[i].length);
        tpx_check(tpx_letter_memory != NULL
                  || tensor->device.type == TP_DEVICE_CPU,
                  "a tensor that was on the CPU is not");
        tpx_equal(tensor->target.type, plan->tensors[i].target.type);
        letter_collect(&at, tensor->metadata, tensor->metadata_length,
                       plan->tensors[i].metadata_length);
    }
    wrong = tpx_verify(letter->metadata, letter->metadata_length, ~seed);
    tpx_check(wrong == letter->metadata_length,
              "byte %zu of %zu of the metadata is wrong", wrong,
              letter->metadata_length);
    letter_place(plan, letter->data);
    letter_move(letter, false);
    for (size_t i = 0; i < plan->payload_count; i++)
        skeleton->payloads[i].data = plan->payloads[i].data;
    for (size_t i = 0; i < plan->tensor_count; i++) {
        skeleton->tensors[i].data = plan->tensors[i].data;
        skeleton->tensors[i].device = plan->tensors[i].device;
        skeleton->tensors[i].stream = plan->tensors[i].stream;
    }
    return letter;
}

/* The bytes of tensors that are elsewhere, to where all of it is compared. */
static void letter_look(const struct tpx_letter *letter)
{
    const tp_message *message = &letter->message;
    unsigned char *at = letter->data;

    if (tpx_letter_memory == NULL)
        return;
    for (size_t i = 0; i < message->payload_count; i++)
        at += message->payloads[i].length;
    for (size_t i = 0; i < message->tensor_count; i++) {
        if (letter_moved(letter, i))
            tpx_letter_memory->look(&message->tensors[i], at);
        at += message->tensors[i].length;
    }
}

void tpx_letter_check(const struct tpx_letter *letter)
{
    size_t wrong;

    letter_look(letter);
    wrong = tpx_verify(letter->data, letter->data_length, letter->seed);

    tpx_check(wrong == letter->data_length, "byte %zu of %zu is wrong", wrong,
              letter->data_length);
}

void tpx_letter_free(struct tpx_letter *letter)
{
    if (letter == NULL)
        return;
    for (size_t i = 0; i < letter->message.tensor_count; i++)
        if (letter_moved(letter, i))
            tpx_letter_memory->give(&letter->message.tensors[i]);
    free(letter->message.payloads);
    free(letter->message.tensors);
    free(letter->data);
    free(letter->metadata);
    free(letter);
}
