/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What is published: magic, check, key, count; then for each place the speed,
 * and backend, interface and address, each after its length.
 */
#include "config.h"

#include "fabric/rails/rails.h"

#define ADDRESS_MAGIC 0x31727074u  /* "tpr1" */

enum {
    ADDRESS_CHECKED = 8,           /* the check covers all from here on */
    ADDRESS_HEAD = ADDRESS_CHECKED + RAILS_KEY + 1,
    ADDRESS_PLACE = 4 + 1 + 1 + 2
};

/* Against damage and garbage, not against malice: the key is for that. */
static uint32_t address_check(const uint8_t *bytes, size_t length)
{
    uint32_t hash = 0x811c9dc5u;

    for (size_t i = ADDRESS_CHECKED; i < length; i++)
        hash = (hash ^ bytes[i]) * 0x01000193u;
    return hash;
}

static void address_put(uint8_t *at, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static uint32_t address_get(const uint8_t *at, size_t bytes)
{
    uint32_t value = 0;

    for (size_t i = 0; i < bytes; i++)
        value |= (uint32_t)at[i] << (8 * i);
    return value;
}

size_t rails_card_encode(const struct rails_card *card, void *buffer,
                         size_t capacity)
{
    uint8_t *bytes = buffer;
    size_t at = ADDRESS_HEAD;
    uint8_t count = 0;

    if (capacity < ADDRESS_HEAD)
        return 0;
    for (unsigned i = 0; i < card->count; i++) {
        const struct rails_place *place = &card->places[i];
        size_t backend = strlen(place->backend), nic = strlen(place->nic);

        if (at + ADDRESS_PLACE + backend + nic + place->length > capacity)
            break;
        address_put(bytes + at, place->megabits, 4);
        bytes[at + 4] = (uint8_t)backend;
        bytes[at + 5] = (uint8_t)nic;
        address_put(bytes + at + 6, place->length, 2);
        at += ADDRESS_PLACE;
        memcpy(bytes + at, place->backend, backend);
        memcpy(bytes + at + backend, place->nic, nic);
        memcpy(bytes + at + backend + nic, place->address, place->length);
        at += backend + nic + place->length;
        count++;
    }
    if (count == 0)
        return 0;
    address_put(bytes, ADDRESS_MAGIC, 4);
    memcpy(bytes + ADDRESS_CHECKED, card->key, RAILS_KEY);
    bytes[ADDRESS_HEAD - 1] = count;
    address_put(bytes + 4, address_check(bytes, at), 4);
    return at;
}

static bool address_text(const uint8_t *bytes, size_t length, char *text,
                         size_t capacity)
{
    if (length == 0 || length >= capacity)
        return false;
    for (size_t i = 0; i < length; i++)
        if (bytes[i] <= ' ' || bytes[i] >= 127)
            return false;
    memcpy(text, bytes, length);
    text[length] = '\0';
    return true;
}

/* Reads one place; 0 if it is not one. */
static size_t address_place(const uint8_t *bytes, size_t length,
                            struct rails_place *place)
{
    size_t backend, nic, need;

    if (length < ADDRESS_PLACE)
        return 0;
    backend = bytes[4];
    nic = bytes[5];
    place->megabits = address_get(bytes, 4);
    place->length = (uint16_t)address_get(bytes + 6, 2);
    need = ADDRESS_PLACE + backend + nic + place->length;
    if (need > length || place->length == 0
        || !address_text(bytes + ADDRESS_PLACE, backend, place->backend,
                         sizeof(place->backend))
        || !address_text(bytes + ADDRESS_PLACE + backend, nic, place->nic,
                         sizeof(place->nic)))
        return 0;
    memcpy(place->address, bytes + need - place->length, place->length);
    return need;
}

tp_status rails_card_decode(struct rails_card *card, const void *address,
                            size_t length, struct tpb_error *error)
{
    const uint8_t *bytes = address;
    size_t at = ADDRESS_HEAD, used = 1;

    memset(card, 0, sizeof(*card));
    if (length < ADDRESS_HEAD || length > TPT_ADDRESS
        || address_get(bytes, 4) != ADDRESS_MAGIC
        || address_get(bytes + 4, 4) != address_check(bytes, length))
        goto error;
    memcpy(card->key, bytes + ADDRESS_CHECKED, RAILS_KEY);
    card->count = bytes[ADDRESS_HEAD - 1];
    if (card->count == 0 || card->count > RAILS_SUBS)
        goto error;
    for (unsigned i = 0; i < card->count && used > 0; i++) {
        used = address_place(bytes + at, length - at, &card->places[i]);
        at += used;
    }
    if (used > 0 && at == length)
        return TP_OK;
error:
    return tpb_fail(error, TP_ERR_PROTOCOL,
                    "rails: the peer's address (%zu bytes) is damaged or from "
                    "another version", length);
}
