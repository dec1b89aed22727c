/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The GPUs of a card as bytes: u8 count, and each as u8 length and
 *
 *   pci, numa, uuid, MB/s, NIC, path to it, who told, NVLinks to switches,
 *   MB/s of one; u8 count, path; u8 count, links; u8 count, denied; MPS
 *
 * What a later version adds at the end of one is passed over.
 */
#include "config.h"

#include "topology/devices.h"
#include "topology/private.h"

enum { GPUS_FIXED = 4 + 4 + 16 + 4 + 1 + 1 + 1 + 1 + 4 + 1 };

/* Every GPU at its most. */
_Static_assert(1 + TPT_CARD_GPUS * (1 + GPUS_FIXED + 3 + 4 * TPT_PCI_DEPTH
                                    + 9 * TPT_GPU_LINKS)
               <= TPT_CARD_GPUS_BYTES, "room for all");
_Static_assert(GPUS_FIXED + 3 + 4 * TPT_PCI_DEPTH + 9 * TPT_GPU_LINKS
               <= UINT8_MAX, "a GPU's length is 8 bits");

static uint8_t *gpus_put(uint8_t *to, uint32_t number, size_t width)
{
    for (size_t i = 0; i < width; i++)
        *to++ = (uint8_t)(number >> (8 * i));
    return to;
}

static uint8_t *gpus_put_one(uint8_t *to, const struct tpt_card_gpu *gpu)
{
    to = gpus_put(to, gpu->place.pci, 4);
    to = gpus_put(to, (uint32_t)gpu->place.numa, 4);
    memcpy(to, gpu->uuid, sizeof(gpu->uuid));
    to = gpus_put(to + sizeof(gpu->uuid), gpu->megabytes, 4);
    to = gpus_put(to, gpu->nic, 1);
    to = gpus_put(to, gpu->nic_path, 1);
    to = gpus_put(to, gpu->asked, 1);
    to = gpus_put(to, gpu->switched, 1);
    to = gpus_put(to, gpu->link_megabytes, 4);
    to = gpus_put(to, gpu->place.depth, 1);
    for (unsigned i = 0; i < gpu->place.depth; i++)
        to = gpus_put(to, gpu->place.path[i], 4);
    to = gpus_put(to, gpu->link_count, 1);
    for (unsigned i = 0; i < gpu->link_count; i++) {
        to = gpus_put(to, gpu->links[i].pci, 4);
        to = gpus_put(to, gpu->links[i].count, 1);
    }
    to = gpus_put(to, gpu->denied_count, 1);
    for (unsigned i = 0; i < gpu->denied_count; i++)
        to = gpus_put(to, gpu->denied[i], 4);
    return gpus_put(to, gpu->mps, 1);
}

static bool gpus_good(const struct tpt_card *card,
                      const struct tpt_card_gpu *gpu)
{
    for (unsigned i = 0; i < gpu->link_count && i < TPT_GPU_LINKS; i++)
        if (gpu->links[i].count > UINT8_MAX)
            return false;
    return gpu->place.depth <= TPT_PCI_DEPTH && gpu->nic <= card->nic_count
           && gpu->nic_path <= TPT_PATH_UNKNOWN
           && gpu->asked <= TPT_LINKS_NVML && gpu->mps <= 1
           && gpu->link_count <= TPT_GPU_LINKS
           && gpu->denied_count <= TPT_GPU_LINKS;
}

size_t tpt_card_gpus_encode(const struct tpt_card *card,
                            uint8_t bytes[TPT_CARD_GPUS_BYTES])
{
    uint8_t *to = gpus_put(bytes, card->gpu_count, 1);

    for (uint32_t i = 0; i < card->gpu_count; i++) {
        uint8_t *end;

        if (!gpus_good(card, &card->gpus[i]))
            return 0;
        end = gpus_put_one(to + 1, &card->gpus[i]);
        *to = (uint8_t)(end - to - 1);
        to = end;
    }
    return (size_t)(to - bytes);
}

/* ---- reading ------------------------------------------------------------ */

struct gpus_reader {
    const uint8_t *at, *end;
    bool cut;
};

static uint32_t gpus_get(struct gpus_reader *reader, size_t width)
{
    uint32_t number = 0;

    if (reader->cut || width > (size_t)(reader->end - reader->at)) {
        reader->cut = true;
        return 0;
    }
    for (size_t i = 0; i < width; i++)
        number |= (uint32_t)*reader->at++ << (8 * i);
    return number;
}

static uint8_t gpus_get_count(struct gpus_reader *reader, unsigned most)
{
    uint32_t count = gpus_get(reader, 1);

    reader->cut |= count > most;
    return reader->cut ? 0 : (uint8_t)count;
}

static void gpus_get_one(struct gpus_reader *reader, struct tpt_card_gpu *gpu)
{
    gpu->place.pci = gpus_get(reader, 4);
    gpu->place.numa = (int32_t)gpus_get(reader, 4);
    for (size_t i = 0; i < sizeof(gpu->uuid); i++)
        gpu->uuid[i] = (uint8_t)gpus_get(reader, 1);
    gpu->megabytes = gpus_get(reader, 4);
    gpu->nic = (uint8_t)gpus_get(reader, 1);
    gpu->nic_path = (uint8_t)gpus_get(reader, 1);
    gpu->asked = (uint8_t)gpus_get(reader, 1);
    gpu->switched = (uint8_t)gpus_get(reader, 1);
    gpu->link_megabytes = gpus_get(reader, 4);
    gpu->place.depth = gpus_get_count(reader, TPT_PCI_DEPTH);
    for (unsigned i = 0; i < gpu->place.depth; i++)
        gpu->place.path[i] = gpus_get(reader, 4);
    gpu->link_count = gpus_get_count(reader, TPT_GPU_LINKS);
    for (unsigned i = 0; i < gpu->link_count; i++) {
        gpu->links[i].pci = gpus_get(reader, 4);
        gpu->links[i].count = gpus_get(reader, 1);
    }
    gpu->denied_count = gpus_get_count(reader, TPT_GPU_LINKS);
    for (unsigned i = 0; i < gpu->denied_count; i++)
        gpu->denied[i] = gpus_get(reader, 4);
    /* New at the end, so an older version has not written it. */
    gpu->mps = reader->at < reader->end ? (uint8_t)gpus_get(reader, 1) : 0;
}

const char *tpt_card_gpus_decode(const uint8_t *bytes, size_t length,
                                 struct tpt_card *card)
{
    struct gpus_reader all = { bytes, bytes + length, false };

    /* A card with two such records: the last one holds. */
    memset(card->gpus, 0, sizeof(card->gpus));
    card->gpu_count = gpus_get_count(&all, TPT_CARD_GPUS);
    for (uint32_t i = 0; i < card->gpu_count && !all.cut; i++) {
        size_t part = gpus_get(&all, 1);
        struct gpus_reader one = { all.at, all.at, false };

        if (all.cut || part > (size_t)(all.end - all.at))
            return "a GPU is cut";
        one.end += part;
        gpus_get_one(&one, &card->gpus[i]);
        if (one.cut || !gpus_good(card, &card->gpus[i]))
            return "a GPU is malformed";
        all.at += part;
    }
    return all.cut || all.at != all.end ? "the GPUs are cut" : NULL;
}
