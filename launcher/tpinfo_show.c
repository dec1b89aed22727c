/* SPDX-License-Identifier: BSD-3-Clause */
/* tpinfo's sections: topology, NICs, backends, settings. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "fabric/channel.h"
#include "gpu/gpu.h"
#include "launcher/tpinfo.h"
#include "runtime/base/alloc.h"
#include "topology/costs.h"
#include "topology/devices.h"
#include "topology/gpus.h"

/* ---- backends ---------------------------------------------------------- */

/* What one's probe says. */
static void show_probe(tp_status (*probe)(const struct tpf_env *env,
                                          struct tpb_error *error),
                       const struct tpf_env *env,
                       struct tpt_backend_card *card)
{
    struct tpb_error error = { "" };
    tp_status status = probe(env, &error);

    card->usable = status == TP_OK;
    if (status != TP_OK)
        snprintf(card->why, sizeof(card->why), "%.*s", TPT_WORDS - 1,
                 error.text[0] != '\0' ? error.text : tp_strerror(status));
}

/* An RDMA device, or several of any kind? */
static void show_assume_nics(const struct tpt_card *card,
                             const struct tpf_backend *backend,
                             struct tpt_backend_card *entry)
{
    bool rdma = entry->nic_kind != TPT_NIC_RDMA;

    for (uint32_t i = 0; i < card->nic_count; i++)
        rdma |= card->nics[i].kind == TPT_NIC_RDMA;
    entry->usable = rdma;
    if (!rdma)
        snprintf(entry->why, sizeof(entry->why), "no RDMA device was "
                 "recorded");
    if (backend == NULL || backend->nics_most < 2)
        return;
    entry->nics = tpt_card_nics(card, backend->nic_kind, backend->nics_most);
    entry->usable = entry->nics != 0;
    if (entry->nics == 0)
        snprintf(entry->why, sizeof(entry->why), "no two network devices of a "
                 "known speed were recorded");
}

/* A recorded machine: what it lacks for sure. */
static void show_assume(const struct tpt_card *card,
                        const struct tpf_backend *backend,
                        struct tpt_backend_card *entry)
{
    if (entry->devices && card->gpu_count == 0) {
        entry->usable = 0;
        snprintf(entry->why, sizeof(entry->why), "no NVIDIA GPU was recorded");
        return;
    }
    show_assume_nics(card, backend, entry);
}

static struct tpt_backend_card show_transport(const struct tpf_backend *from)
{
    return (struct tpt_backend_card) {
        .role = TPT_ROLE_TRANSPORT, .reach = (uint8_t)from->reach,
        .nic_kind = (uint8_t)from->nic_kind,
        .latency_ns = from->latency_ns, .megabytes = from->megabytes
    };
}

static struct tpt_backend_card
show_channel(const struct tpf_channel_kind *from)
{
    struct tpt_backend_card entry = {
        .role = TPT_ROLE_CHANNEL, .reach = (uint8_t)from->reach,
        .nic_kind = (uint8_t)from->nic_kind,
        .latency_ns = from->latency_ns, .megabytes = from->megabytes,
        .devices = from->devices
    };

    if (from->over != NULL)
        snprintf(entry.over, sizeof(entry.over), "%s", from->over);
    return entry;
}

void tpinfo_backends(const struct tpb_settings *settings, bool assume,
                     struct tpt_card *card)
{
    const char *list = settings->text[TPB_SET_BACKENDS];
    struct tpf_env env = {
        .epoll = -1, .settings = settings, .card = card
    };
    const struct tpf_backend *backends[TPT_BACKENDS];
    size_t transports = tpf_backends_for(list, backends, TPT_BACKENDS);
    struct tpt_costs *costs = tpt_costs_for(settings, card);

    tpb_list_init(&env.ready);
    card->backend_count = 0;
    for (size_t i = 0; card->backend_count < TPT_BACKENDS; i++) {
        const struct tpf_backend *backend = i < transports
                                            ? backends[i] : NULL;
        const struct tpf_channel_kind *channel
            = backend == NULL ? tpf_channel_kinds[i - transports] : NULL;
        struct tpt_backend_card *entry = &card->backends[card->backend_count];
        const char *name;

        if (backend == NULL && channel == NULL)
            break;
        name = backend != NULL ? backend->name : channel->name;
        *entry = backend != NULL ? show_transport(backend)
                 : show_channel(channel);
        snprintf(entry->name, sizeof(entry->name), "%s", name);
        entry->forbidden = !tpb_list_allows(list, name);
        card->backend_count++;
        if (costs != NULL)
            tpt_costs_put(costs, entry);
        if (assume)
            show_assume(card, backend, entry);
        else
            show_probe(backend != NULL ? backend->probe : channel->probe, &env,
                       entry);
    }
    tpg_staged_card(settings, assume, card);
    if (costs != NULL)
        tpt_costs_apply(costs, card);
    tpb_free(costs);
}

void tpinfo_carriers(const struct tpb_settings *settings,
                     const struct tpt_card *card,
                     struct tpinfo_carriers *carriers)
{
    const struct tpf_env env = {
        .epoll = -1, .settings = settings, .card = card
    };

    for (uint32_t i = 0; i < card->backend_count; i++) {
        const struct tpt_backend_card *entry = &card->backends[i];
        const struct tpf_backend *backend = tpf_backend_find(entry->name);
        struct tpb_text *text = &carriers->text[i];

        if (!entry->usable || backend == NULL || backend->carriers == NULL)
            continue;
        backend->carriers(&env, text);
        if (!text->failed && text->length > 0)
            carriers->words[i] = text->text;
    }
}

void tpinfo_carriers_fini(struct tpinfo_carriers *carriers)
{
    for (size_t i = 0; i < TPT_BACKENDS; i++)
        tpb_text_fini(&carriers->text[i]);
}

static void show_backends(const struct tpt_card *card,
                          const struct tpb_settings *settings,
                          struct tpb_text *text)
{
    struct tpinfo_carriers carriers = { .words = { NULL } };

    tpinfo_carriers(settings, card, &carriers);
    tpb_text_add(text, "Backends\n  %-12s %-9s %-8s %11s %7s  %s\n", "name",
                 "role", "reaches", "latency", "MB/s", "state");
    for (uint32_t i = 0; i < card->backend_count; i++) {
        const struct tpt_backend_card *backend = &card->backends[i];

        tpb_text_add(text, "  %-12s %-9s %-8s %8.2f us %7u  %s%s%s%s%s\n",
                     backend->name,
                     tpt_role_name((enum tpt_role)backend->role),
                     tpt_reach_name((enum tpt_reach)backend->reach),
                     backend->latency_ns / 1000.0, backend->megabytes,
                     backend->usable ? "works" : "does not work: ",
                     backend->usable ? "" : backend->why,
                     carriers.words[i] != NULL ? ", over " : "",
                     carriers.words[i] != NULL ? carriers.words[i] : "",
                     backend->forbidden ? ", forbidden by TP_BACKENDS" : "");
    }
    if (card->backend_count == 0)
        tpb_text_add(text, "  none in this build\n");
    tpinfo_carriers_fini(&carriers);
}

void tpinfo_gpus(const struct tpb_settings *settings,
                 struct tpt_topology *topology, struct tpt_card *card)
{
    int there = tpt_topology_gpus(topology, "",
                                  getenv("CUDA_VISIBLE_DEVICES"), card);

    tpg_nvml_ask(settings, there, card);
}

/* ---- the machine ------------------------------------------------------- */

static void show_nic(const struct tpt_nic *nic, struct tpb_text *text)
{
    tpb_text_add(text, "  %-16s %-5s", nic->name,
                 nic->kind == TPT_NIC_RDMA ? "RDMA" : "IP");
    if (nic->megabits > 0)
        tpb_text_add(text, " %6g Gb/s", nic->megabits / 1000.0);
    else
        tpb_text_add(text, " %11s", "speed ?");
    if (nic->numa >= 0)
        tpb_text_add(text, "  NUMA node %d", (int)nic->numa);
    if (nic->pci != 0) {
        char pci[TPT_PCI_TEXT];

        tpt_pci_text(nic->pci, pci);
        tpb_text_add(text, "  PCI %s", pci);
    }
    tpb_text_add(text, "\n");
}

static void show_gpu(const struct tpt_card *card, uint32_t index,
                     struct tpb_text *text)
{
    const struct tpt_card_gpu *gpu = &card->gpus[index];
    char pci[TPT_PCI_TEXT];

    tpt_pci_text(gpu->place.pci, pci);
    tpb_text_add(text, "  GPU %-12u PCI %s", index, pci);
    if (gpu->place.numa >= 0)
        tpb_text_add(text, "  NUMA node %d", (int)gpu->place.numa);
    if (gpu->nic > 0)
        tpb_text_add(text, "  NIC %s (%s)", card->nics[gpu->nic - 1].name,
                     tpt_path_name((enum tpt_path)gpu->nic_path));
    if (gpu->switched > 0)
        tpb_text_add(text, "  %u NVLinks to switches", gpu->switched);
    if (gpu->link_count > 0)
        tpb_text_add(text, "  NVLinks to %u GPU%s", gpu->link_count,
                     gpu->link_count == 1 ? "" : "s");
    tpb_text_add(text, "\n");
}

static void show_topology(const struct tpt_card *card,
                          struct tpt_topology *topology,
                          struct tpb_text *text)
{
    tpb_text_add(text, "Topology\n  ");
    tpt_topology_describe(topology, text);
    tpb_text_add(text, "Network\n");
    for (uint32_t i = 0; i < card->nic_count; i++)
        show_nic(&card->nics[i], text);
    if (card->nic_count == 0)
        tpb_text_add(text, "  none but the loopback\n");
    if (card->gpu_count > 0)
        tpb_text_add(text, "GPUs\n");
    for (uint32_t i = 0; i < card->gpu_count; i++)
        show_gpu(card, i, text);
}

/* ---- settings ---------------------------------------------------------- */

static const char *show_value(const char *value)
{
    return *value != '\0' ? value : "(empty)";
}

static void show_env(const struct tpb_settings *settings,
                     struct tpb_text *text)
{
    tpb_text_add(text, "Settings\n");
    for (size_t i = 0; i < TPB_SET_COUNT; i++) {
        const struct tpb_setting *row = &tpb_setting_table[i];

        tpb_text_add(text, "  %-20s %-12s %-12s %s (%s)\n", row->variable,
                     show_value(tpb_setting_shown(settings,
                                                  (enum tpb_setting_id)i)),
                     settings->set[i] ? "environment" : "default", row->text,
                     row->values);
    }
}

static void show_env_summary(const struct tpb_settings *settings,
                             struct tpb_text *text)
{
    unsigned count = 0;

    tpb_text_add(text, "Settings\n");
    for (size_t i = 0; i < TPB_SET_COUNT; i++) {
        if (!settings->set[i])
            continue;
        tpb_text_add(text, "  %s=%s (from the environment)\n",
                     tpb_setting_table[i].variable,
                     tpb_setting_shown(settings, (enum tpb_setting_id)i));
        count++;
    }
    tpb_text_add(text, "  %u of %d set by the environment, the rest are "
                 "defaults; `tpinfo --env` lists all\n", count,
                 (int)TPB_SET_COUNT);
}

void tpinfo_show(unsigned show, const struct tpt_card *card,
                 struct tpt_topology *topology,
                 const struct tpb_settings *settings, struct tpb_text *text)
{
    if (show == 0)
        tpb_text_add(text, "tp %s on %s\n", tp_version(), card->host.name);
    if (show == 0 || (show & TPINFO_TOPOLOGY) != 0)
        show_topology(card, topology, text);
    if (show == 0 || (show & TPINFO_BACKENDS) != 0)
        show_backends(card, settings, text);
    if ((show & TPINFO_COSTS) != 0)
        tpinfo_costs(card, settings, text);
    if ((show & TPINFO_ENV) != 0)
        show_env(settings, text);
    if (show == 0)
        show_env_summary(settings, text);
}
