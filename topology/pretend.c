/* SPDX-License-Identifier: BSD-3-Clause */
/* For tests: cards that tell what is not so, as other machines would. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "topology/devices.h"
#include "topology/private.h"

enum { PRETEND_NOISE = 0x5a };

static void pretend_lack(struct tpt_card *card,
                         struct tpt_backend_card *backend)
{
    size_t at = (size_t)(backend - card->backends);

    memmove(backend, backend + 1,
            (card->backend_count - at - 1) * sizeof(*backend));
    card->backend_count--;
    memset(&card->backends[card->backend_count], 0, sizeof(*backend));
}

/* "lacks=shm": the part behind the word; NULL if it is another word. */
static const char *pretend_name(const char *hook, const char *word)
{
    size_t length = strlen(word);

    return strncmp(hook, word, length) == 0 && hook[length] == '='
           ? hook + length + 1 : NULL;
}

static struct tpt_backend_card *pretend_find(struct tpt_card *card,
                                             const char *name)
{
    for (uint32_t i = 0; name != NULL && i < card->backend_count; i++)
        if (strcmp(card->backends[i].name, name) == 0)
            return &card->backends[i];
    return NULL;
}

/* One GPU each, that may not access the other's memory. */
static void pretend_denied(struct tpt_card *card)
{
    struct tpt_card_gpu gpu = { .asked = TPT_LINKS_NVML, .denied_count = 1 };

    gpu.place.pci = 0x1000 + (uint32_t)card->rank % 2;
    gpu.denied[0] = gpu.place.pci ^ 1;
    card->gpu_count = 1;
    card->gpus[0] = gpu;
}

/* The same two GPUs everywhere, that may not access each other's memory. */
static void pretend_two(struct tpt_card *card)
{
    card->gpu_count = 2;
    for (uint32_t i = 0; i < 2; i++) {
        struct tpt_card_gpu *gpu = &card->gpus[i];

        *gpu = (struct tpt_card_gpu) { .asked = TPT_LINKS_NVML,
                                       .denied_count = 1 };
        gpu->place.pci = 0x1000 + i;
        gpu->denied[0] = gpu->place.pci ^ 1;
    }
}

/*
 * One GPU, that of both ranks; cuda_gdr begins sooner, and cuda_ipc is wider.
 * As measured, so that no figure of the model is in it: over shared memory
 * cuda_gdr is worth it from some 100 KiB on, cuda_ipc better from some 540.
 */
static void pretend_rivals(struct tpt_card *card)
{
    card->gpu_count = 1;
    card->gpus[0] = (struct tpt_card_gpu) { .place = { .pci = 0x1000 } };
    for (uint32_t i = 0; i < card->backend_count; i++) {
        struct tpt_backend_card *backend = &card->backends[i];
        struct tpt_cost *cost = &backend->measured[TPT_PATH_SAME];

        if (strcmp(backend->name, TPT_STAGED) == 0)
            *cost = (struct tpt_cost) { 12000, 6000 };
        else if (strcmp(backend->name, "cuda_gdr") == 0)
            *cost = (struct tpt_cost) { 20000, 12000 };
        else if (strcmp(backend->name, "cuda_ipc") == 0)
            *cost = (struct tpt_cost) { 60000, 100000 };
    }
}

void tpt_card_pretend(struct tpt_card *card, const char *hook)
{
    struct tpt_backend_card *backend;

    if (strcmp(hook, "host") == 0) {
        memset(card->host.boot_id, PRETEND_NOISE, sizeof(card->host.boot_id));
        snprintf(card->host.name, sizeof(card->host.name), "elsewhere");
    } else if (strcmp(hook, "denied") == 0) {
        pretend_denied(card);
    } else if (strcmp(hook, "two") == 0) {
        pretend_two(card);
    } else if (strcmp(hook, "rivals") == 0) {
        pretend_rivals(card);
    } else if ((backend = pretend_find(card, pretend_name(hook, "lacks")))
               != NULL) {
        pretend_lack(card, backend);
    } else if ((backend = pretend_find(card, pretend_name(hook, "address")))
               != NULL) {
        for (size_t i = 0; i < backend->address_length; i++)
            backend->address[i] ^= PRETEND_NOISE;
    } else if ((backend = pretend_find(card, pretend_name(hook, "over")))
               != NULL) {
        snprintf(backend->over, sizeof(backend->over), "ofi");
    }
}
