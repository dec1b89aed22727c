/* SPDX-License-Identifier: BSD-3-Clause */
/* Cards and recorded machines for the tests of topology/. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/tpx.h"
#include "tests/unit/cards.h"
#include "topology/gpus.h"

struct tpt_topology *tpx_machine(const char *name)
{
    const char *source = getenv("TP_TEST_SOURCE");
    struct tpt_topology *topology = NULL;
    struct tpb_error error = { "" };
    char path[1024];

    snprintf(path, sizeof(path), "%s/tests/data/topology/%s.xml",
             source != NULL ? source : ".", name);
    ck_assert_msg(tpt_topology_load_file(path, &topology, &error) == TP_OK,
                  "%s", error.text);
    return topology;
}

struct tpt_backend_card *tpx_card_add(struct tpt_card *card, const char *name,
                                      enum tpt_reach reach,
                                      uint32_t latency_ns, uint32_t megabytes)
{
    struct tpt_backend_card *backend = &card->backends[card->backend_count++];

    ck_assert_uint_le(card->backend_count, TPT_BACKENDS);
    *backend = (struct tpt_backend_card) {
        .reach = (uint8_t)reach, .usable = 1, .latency_ns = latency_ns,
        .megabytes = megabytes
    };
    snprintf(backend->name, sizeof(backend->name), "%s", name);
    return backend;
}

void tpx_card(struct tpt_card *card, struct tpt_topology *machine,
              uint32_t core, int rank, uint8_t boot)
{
    memset(card, 0, sizeof(*card));
    snprintf(card->job, sizeof(card->job), "job-1");
    card->rank = rank;
    card->size = 2;
    card->pid = 4711 + (uint32_t)rank;
    card->instance[0] = (uint8_t)(rank + 1);
    memset(card->host.boot_id, boot, sizeof(card->host.boot_id));
    snprintf(card->host.name, sizeof(card->host.name), "host%d", boot);
    ck_assert(tpt_topology_place_core(machine, core, &card->place));
    card->nic_count = tpt_topology_nics(machine, card->nics);
    tpt_topology_gpus(machine, "", NULL, card);
    tpx_card_add(card, "loop", TPT_REACH_PROCESS, 50, 20000);
    tpx_card_add(card, "shm", TPT_REACH_HOST, 250, 12000);
    tpx_card_add(card, "ofi:tcp", TPT_REACH_NETWORK, 8000, 3000)->nic_kind
        = TPT_NIC_IP;
    tpx_card_add(card, "ofi:verbs", TPT_REACH_NETWORK, 900, 24000)->nic_kind
        = TPT_NIC_RDMA;
}

struct tpt_backend_card *tpx_card_rails(struct tpt_card *card)
{
    struct tpt_backend_card *rails
        = tpx_card_add(card, "rails", TPT_REACH_NETWORK, 11000, 3000);

    rails->nic_kind = TPT_NIC_IP;
    rails->nics = tpt_card_nics(card, TPT_NIC_IP, 4);
    return rails;
}

struct tpt_backend_card *tpx_card_channel(struct tpt_card *card,
                                          const char *name, const char *over,
                                          uint32_t latency_ns,
                                          uint32_t megabytes)
{
    struct tpt_backend_card *channel
        = tpx_card_add(card, name, TPT_REACH_HOST, latency_ns, megabytes);

    channel->role = TPT_ROLE_CHANNEL;
    snprintf(channel->over, sizeof(channel->over), "%s", over);
    return channel;
}

void tpx_card_gpus(struct tpt_card *card)
{
    tpx_card_channel(card, "cuda_ipc", "", 8000, 100000)->devices = 1;
    tpx_card_channel(card, "cuda_gdr", "ofi:verbs", 4000, 48000)->devices = 1;
    tpx_card_channel(card, "cuda_staged", "", 12000, 24000)->devices = 1;
    for (uint32_t i = 1; i <= 2; i++)
        card->backends[card->backend_count - i].reach = TPT_REACH_NETWORK;
}

/* splitmix64, public domain, by Sebastiano Vigna. */
uint64_t tpx_random(uint64_t *seed)
{
    uint64_t z = (*seed += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t tpx_random_below(uint64_t *seed, uint32_t limit)
{
    return (uint32_t)(tpx_random(seed) >> 32) % limit;
}

static void cards_bytes(void *data, size_t length, uint64_t *seed)
{
    uint8_t *bytes = data;

    for (size_t i = 0; i < length; i++)
        bytes[i] = (uint8_t)tpx_random(seed);
}

static void cards_text(char *text, size_t capacity, uint64_t *seed)
{
    size_t length = tpx_random_below(seed, (uint32_t)capacity);

    for (size_t i = 0; i < length; i++)
        text[i] = (char)(0x20 + tpx_random_below(seed, 0x5f));
}

static int32_t cards_index(uint64_t *seed)
{
    return (int32_t)tpx_random_below(seed, 4) - 1;
}

static void cards_random_backend(struct tpt_backend_card *backend, uint32_t i,
                                 uint64_t *seed)
{
    snprintf(backend->name, sizeof(backend->name), "%c%u",
             "abcde"[tpx_random_below(seed, 5)], i);
    backend->reach = (uint8_t)((backend->name[0] - 'a') % 3);
    if (backend->name[0] >= 'd') {
        backend->role = TPT_ROLE_CHANNEL;
        backend->reach++;
        snprintf(backend->over, sizeof(backend->over), "%s",
                 (const char *[]){ "", "", "b1", "c2" }[i % 4]);
    }
    backend->usable = tpx_random_below(seed, 8) != 0;
    backend->forbidden = tpx_random_below(seed, 16) == 0;
    backend->nic_kind = (uint8_t)tpx_random_below(seed, 3);
    /* Few values, so that there are ties. */
    backend->latency_ns = 100u << tpx_random_below(seed, 8);
    backend->megabytes = 200u << tpx_random_below(seed, 8);
    for (int j = 0; j < 4; j++) {
        struct tpt_cost *cost
            = &backend->measured[tpx_random_below(seed, TPT_LOCALITIES)];

        cost->latency_ns = 100u << tpx_random_below(seed, 8);
        cost->megabytes = 200u << tpx_random_below(seed, 8);
    }
    cards_text(backend->why, sizeof(backend->why), seed);
    backend->address_length = (uint16_t)tpx_random_below(seed, 100);
    cards_bytes(backend->address, backend->address_length, seed);
}

static void cards_random_gpu(struct tpt_card_gpu *gpu, uint32_t nics,
                             uint64_t *seed)
{
    gpu->place.pci = 0x1000 + tpx_random_below(seed, 6) * 0x100;
    gpu->place.numa = cards_index(seed);
    gpu->place.depth = tpx_random_below(seed, TPT_PCI_DEPTH + 1);
    for (unsigned i = 0; i < gpu->place.depth; i++)
        gpu->place.path[i] = 0x100 + tpx_random_below(seed, 2);
    if (tpx_random_below(seed, 2) == 0)
        gpu->uuid[15] = (uint8_t)(1 + (gpu->place.pci >> 8));
    gpu->megabytes = tpx_random_below(seed, 3) * 12000;
    gpu->nic = (uint8_t)tpx_random_below(seed, nics + 1);
    gpu->nic_path = (uint8_t)tpx_random_below(seed, 9);
    gpu->asked = (uint8_t)tpx_random_below(seed, 3);
    gpu->switched = (uint8_t)(tpx_random_below(seed, 4) == 0 ? 12 : 0);
    gpu->link_megabytes = tpx_random_below(seed, 2) * 20000;
    gpu->link_count = (uint16_t)tpx_random_below(seed, TPT_GPU_LINKS + 1);
    for (unsigned i = 0; i < gpu->link_count; i++)
        gpu->links[i] = (struct tpt_gpu_link) {
            0x1000 + tpx_random_below(seed, 20) * 0x100,
            tpx_random_below(seed, 5)
        };
    gpu->denied_count = (uint16_t)tpx_random_below(seed, 3);
    for (unsigned i = 0; i < gpu->denied_count; i++)
        gpu->denied[i] = 0x1000 + tpx_random_below(seed, 20) * 0x100;
}

/* Half of the cards have the channels for GPUs. */
static void cards_random_devices(struct tpt_card *card, uint64_t *seed)
{
    static const char *const names[] = { "cuda_gdr", "cuda_ipc",
                                         "cuda_staged" };

    card->gpu_count = tpx_random_below(seed, 4);
    for (uint32_t i = 0; i < card->gpu_count; i++)
        cards_random_gpu(&card->gpus[i], card->nic_count, seed);
    for (unsigned i = 0; i < 3 && card->backend_count < TPT_BACKENDS; i++) {
        struct tpt_backend_card *backend;

        if (tpx_random_below(seed, 2) == 0)
            continue;
        backend = &card->backends[card->backend_count];
        cards_random_backend(backend, card->backend_count++, seed);
        snprintf(backend->name, sizeof(backend->name), "%s", names[i]);
        backend->role = TPT_ROLE_CHANNEL;
        backend->devices = 1;
        backend->nics = 0;
        backend->reach = i == 1 ? TPT_REACH_HOST : TPT_REACH_NETWORK;
        memset(backend->over, 0, sizeof(backend->over));
    }
}

void tpx_card_random(struct tpt_card *card, uint64_t *seed)
{
    memset(card, 0, sizeof(*card));
    cards_text(card->job, sizeof(card->job), seed);
    card->rank = (int32_t)tpx_random_below(seed, 64);
    card->size = 64;
    card->pid = (uint32_t)tpx_random(seed);
    card->uid = (uint32_t)tpx_random(seed);
    card->instance[0] = (uint8_t)tpx_random_below(seed, 4);
    cards_bytes(card->cookie, sizeof(card->cookie), seed);
    card->host.boot_id[3] = (uint8_t)tpx_random_below(seed, 2);
    card->host.net_namespace = tpx_random(seed);
    cards_text(card->host.name, sizeof(card->host.name), seed);
    card->place = (struct tpt_place) {
        .topology = tpx_random_below(seed, 8) == 0, .core = cards_index(seed),
        .l2 = cards_index(seed), .l3 = cards_index(seed),
        .numa = cards_index(seed), .package = cards_index(seed),
        .cpus = 1, .machine_cpus = 4
    };
    card->nic_count = tpx_random_below(seed, 4);
    for (uint32_t i = 0; i < card->nic_count; i++) {
        struct tpt_nic *nic = &card->nics[i];

        snprintf(nic->name, sizeof(nic->name), "nic%u", i);
        nic->megabits = tpx_random_below(seed, 4) * 1000;
        nic->numa = cards_index(seed);
        nic->pci = (uint32_t)tpx_random(seed);
        nic->kind = (uint8_t)tpx_random_below(seed, 3);
    }
    card->backend_count = tpx_random_below(seed, TPT_BACKENDS + 1);
    for (uint32_t i = 0; i < card->backend_count; i++) {
        cards_random_backend(&card->backends[i], i, seed);
        if (tpx_random_below(seed, 2) == 0)
            card->backends[i].nics = (uint16_t)tpx_random_below(
                seed, 1u << card->nic_count);
    }
    cards_random_devices(card, seed);
}

const char *tpx_plan_order(const struct tpt_plan *of)
{
    static char text[2][TPT_BACKENDS * TPT_NAME];
    static unsigned next;
    char *line = text[next++ % 2];
    uint8_t role = TPT_ROLE_TRANSPORT;
    bool possible = true;

    line[0] = '\0';
    for (uint32_t i = 0; i < of->count; i++) {
        const struct tpt_candidate *candidate = &of->candidates[i];

        ck_assert_uint_ge(candidate->role, role);
        if (candidate->role != role) {
            strcat(line, ";");
            possible = true;
        }
        ck_assert(possible || !candidate->possible);
        if (possible && !candidate->possible)
            strcat(line, "|");
        else if (i > 0)
            strcat(line, " ");
        role = candidate->role;
        possible = candidate->possible;
        strcat(line, candidate->name);
    }
    return line;
}
