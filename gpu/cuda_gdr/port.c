/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A device's way to the network: its NIC (nic.c), and the best way to make the
 * device's memory known to it.
 *
 * No list of modules or versions tells which way works: a library may take a
 * request for device memory and register host memory at that address, a module
 * may be there for another kernel.  So each way is tried on two buffers of our
 * own, and what arrives is compared.  Without any way the channel takes nothing
 * and the bytes go staged.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "gpu/cuda_gdr/gdr.h"
#include "gpu/cuda_late.h"
#include "gpu/mutants.h"
#include "runtime/base/alloc.h"
#include "runtime/base/log.h"

enum {
    PORT_TRIAL = 65536,                /* bytes that are sent */
    PORT_TRIAL_MS = 3000
};

TPB_LOG_COMPONENT("gdr");

static const char *const port_ways[TPF_REMOTE_WAYS] = {
    [TPF_REMOTE_DMABUF] = "dmabuf",
    [TPF_REMOTE_HMEM] = "hmem",
    [TPF_REMOTE_PLAIN] = "plain"
};

/* ---- the trial ----------------------------------------------------------- */

/* A pattern goes from `from` to `to`, both on the device. */
struct port_trial {
    struct tpf_fetch fetch;
    unsigned char sent[PORT_TRIAL], got[PORT_TRIAL];
};

/* Bytes between host and device, done on return. */
static tp_status port_copy(struct gdr_channel *channel,
                           const struct tpg_cuda *cuda, int device,
                           cu_pointer to, cu_pointer from, size_t length,
                           struct tpb_error *error)
{
    tp_status status = tpg_device_enter(channel->base.env->gpu, cuda, device,
                                        error);
    cu_stream stream;
    cu_result code;

    if (status != TP_OK)
        return status;
    stream = channel->base.env->gpu->devices[device].in;
    code = cuda->cuMemcpyAsync(to, from, length, stream);
    if (code == CU_OK)
        code = cuda->cuStreamSynchronize(stream);
    tpg_cuda_leave(cuda);
    return tpg_cuda_fail(cuda, code, "a copy for the trial", error);
}

static cu_pointer port_host(const void *memory)
{
    return (cu_pointer)(uintptr_t)memory;
}

/* Reads from here to here, through the NIC. */
static tp_status port_trial_send(struct gdr_port *port,
                                 const struct gdr_region *region,
                                 struct port_trial *trial,
                                 struct tpb_error *error)
{
    uint64_t limit = tpb_now() + UINT64_C(1000000) * PORT_TRIAL_MS;
    struct tpf_remote_place place;
    struct tpf_line *line;
    const char *broken;
    tp_status status;

    tpf_remote_place(port->remote, &place);
    status = tpf_line_open(port->remote, &place, &line, error);
    if (status != TP_OK)
        return status;
    trial->fetch.to = (void *)(uintptr_t)(region->base + PORT_TRIAL);
    trial->fetch.registration = region->registration;
    trial->fetch.address = region->base;
    trial->fetch.key = tpf_registration_key(region->registration);
    trial->fetch.length = PORT_TRIAL;
    tpf_line_fetch(line, &trial->fetch);
    /* Others' pulls may be under way on that NIC: this is no time to tell the
     * core of their end. */
    while (trial->fetch.done < PORT_TRIAL && tpf_line_broken(line) == NULL
           && tpb_now() < limit)
        tpf_line_await(line);
    broken = tpf_line_broken(line);
    if (broken != NULL)
        status = tpb_fail(error, TP_ERR_BACKEND, "%s", broken);
    else if (trial->fetch.done < PORT_TRIAL)
        status = tpb_fail(error, TP_ERR_TIMEOUT, "the trial took too long");
    tpf_line_close(line);
    return status;
}

static tp_status port_trial_compare(struct gdr_channel *channel,
                                    struct gdr_port *port,
                                    const struct tpg_cuda *cuda,
                                    const struct gdr_region *region,
                                    struct port_trial *trial,
                                    struct tpb_error *error)
{
    tp_status status = port_copy(channel, cuda, port->device,
                                 port_host(trial->sent), region->base,
                                 PORT_TRIAL, error);

    if (status == TP_OK)
        status = gdr_port_flush(port, cuda, error);
    if (status == TP_OK)
        status = port_copy(channel, cuda, port->device, port_host(trial->got),
                           region->base + PORT_TRIAL, PORT_TRIAL, error);
    if (status != TP_OK || TPG_MUTANT(GDR_NO_TRIAL)
        || memcmp(trial->sent, trial->got, PORT_TRIAL) == 0)
        return status;
    return tpb_fail(error, TP_ERR_BACKEND, "wrong bytes arrived (it was taken"
                    " for memory of the host?)");
}

/* With memory of the device, both halves of `memory`. */
static tp_status port_trial_on(struct gdr_channel *channel,
                               struct gdr_port *port,
                               const struct tpg_cuda *cuda, cu_pointer memory,
                               struct port_trial *trial,
                               struct tpb_error *error)
{
    struct tpf_buffer buffer = {
        .data = (void *)(uintptr_t)memory, .length = 2 * PORT_TRIAL,
        .device = { TP_DEVICE_CUDA, port->device } };
    struct gdr_region region, *held;
    tp_status status;

    tpb_random(trial->sent, PORT_TRIAL);
    for (size_t i = 0; i < PORT_TRIAL; i++)
        trial->got[i] = (unsigned char)~trial->sent[i];
    status = port_copy(channel, cuda, port->device, memory,
                       port_host(trial->sent), PORT_TRIAL, error);
    if (status == TP_OK)
        status = port_copy(channel, cuda, port->device, memory + PORT_TRIAL,
                           port_host(trial->got), PORT_TRIAL, error);
    if (status != TP_OK)
        return status;
    held = gdr_region_hold(port, cuda, &buffer, error);
    if (held == NULL)
        return TP_ERR_NOT_SUPPORTED;
    region = *held;
    region.base = memory;              /* the allocation may begin before it */
    status = port_trial_send(port, &region, trial, error);
    if (status == TP_OK)
        status = port_trial_compare(channel, port, cuda, &region, trial,
                                    error);
    gdr_region_drop(held);
    gdr_regions_close(port);
    return status;
}

static tp_status port_try(struct gdr_channel *channel, struct gdr_port *port,
                          const struct tpg_cuda *cuda, struct tpb_error *error)
{
    struct port_trial *trial = tpb_zalloc(sizeof(*trial));
    cu_pointer memory = 0;
    tp_status status;

    if (trial == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    status = tpg_cuda_enter(cuda, port->device, error);
    if (status == TP_OK) {
        status = tpg_cuda_fail(cuda, cuda->cuMemAlloc_v2(&memory,
                                                         2 * PORT_TRIAL),
                               "memory for the trial", error);
        tpg_cuda_leave(cuda);
    }
    if (status == TP_OK)
        status = port_trial_on(channel, port, cuda, memory, trial, error);
    /* Freed at once it would wait for what the program runs there. */
    if (memory != 0)
        tpg_late(cuda, TPG_LATE_MEMORY, port->device, memory, 2 * PORT_TRIAL);
    tpb_free(trial);
    return status;
}

/* ---- NICs ---------------------------------------------------------------- */

static void port_list(struct gdr_channel *channel)
{
    struct tpf_remote_nic nics[TPF_REMOTE_NICS];

    if (channel->listed)
        return;
    channel->nic_count = tpf_remote_list(channel->base.env, nics);
    for (int i = 0; i < channel->nic_count; i++)
        channel->nics[i].nic = nics[i];
    channel->listed = channel->nic_count > 0;
}

/* Once for each kind of domain, whatever the answer. */
static struct tpf_remote *port_remote(struct gdr_channel *channel,
                                      struct gdr_nic *nic,
                                      enum tpf_remote_how how,
                                      struct tpb_error *error)
{
    if (nic->remotes[how] == NULL && nic->refused[how].text[0] == '\0'
        && tpf_remote_open(channel->base.env, &nic->nic, how,
                           &nic->remotes[how], &nic->refused[how]) != TP_OK)
        nic->remotes[how] = NULL;
    if (nic->remotes[how] == NULL)
        *error = nic->refused[how];
    return nic->remotes[how];
}

/* -1: none. */
static int port_nic(const struct gdr_channel *channel,
                    const struct tpg_cuda *cuda, int device,
                    struct tpb_error *error)
{
    char id[32] = "";

    if (cuda->cuDeviceGetPCIBusId(id, sizeof(id), device) != CU_OK)
        id[0] = '\0';
    return gdr_nic_for(channel, tpt_pci_parse(id), error);
}

/* ---- devices ------------------------------------------------------------- */

static int port_attribute(const struct tpg_cuda *cuda, int device,
                          int attribute)
{
    int value = 0;

    return cuda->cuDeviceGetAttribute(&value, attribute, device) == CU_OK
           ? value : 0;
}

/* Can the device do that at all?  Words if not. */
static bool port_may(const struct gdr_channel *channel,
                     const struct tpg_cuda *cuda, int device,
                     enum tpf_remote_how how, struct tpb_error *error)
{
    const struct tpb_settings *settings = channel->base.env->settings;

    if (!tpb_list_allows(settings->text[TPB_SET_GDR], port_ways[how])) {
        tpb_fail(error, TP_ERR_NOT_SUPPORTED, "not in TP_GDR");
        return false;
    }
    if (how == TPF_REMOTE_DMABUF
        && (cuda->cuMemGetHandleForAddressRange == NULL
            || port_attribute(cuda, device, CU_ATTRIBUTE_DMABUF) == 0)) {
        tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                 "the driver makes no dmabufs (open kernel modules needed)");
        return false;
    }
    if (how != TPF_REMOTE_DMABUF
        && port_attribute(cuda, device, CU_ATTRIBUTE_GDR) == 0) {
        tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                 "the GPU does not support GPUDirect RDMA");
        return false;
    }
    return true;
}

/* Whether what the NIC writes has to be flushed; false if that cannot be. */
static bool port_order(struct gdr_port *port, const struct tpg_cuda *cuda)
{
    port->flush = port_attribute(cuda, port->device, CU_ATTRIBUTE_GDR_ORDER)
                  < CU_GDR_ORDER_OWNER;
    return !port->flush
           || (cuda->cuFlushGPUDirectRDMAWrites != NULL
               && (port_attribute(cuda, port->device, CU_ATTRIBUTE_GDR_FLUSH)
                   & CU_GDR_FLUSH_HOST) != 0);
}

tp_status gdr_port_flush(const struct gdr_port *port,
                         const struct tpg_cuda *cuda, struct tpb_error *error)
{
    tp_status status;

    if (!port->flush || TPG_MUTANT(GDR_NO_FLUSH))
        return TP_OK;
    status = tpg_cuda_enter(cuda, port->device, error);
    if (status != TP_OK)
        return status;
    status = tpg_cuda_fail(cuda, cuda->cuFlushGPUDirectRDMAWrites(
        CU_GDR_FLUSH_CURRENT, CU_GDR_FLUSH_TO_OWNER),
        "cuFlushGPUDirectRDMAWrites", error);
    tpg_cuda_leave(cuda);
    return status;
}

/* One way after the other, until a trial succeeds. */
static void port_climb(struct gdr_channel *channel, struct gdr_port *port,
                       const struct tpg_cuda *cuda, struct gdr_nic *nic)
{
    char words[sizeof(port->words.text)] = "";

    for (int how = 0; how < TPF_REMOTE_WAYS; how++) {
        struct tpb_error error = { "" };
        size_t used = strlen(words);

        port->how = (enum tpf_remote_how)how;
        port->remote = NULL;
        if (port_may(channel, cuda, port->device, port->how, &error))
            port->remote = port_remote(channel, nic, port->how, &error);
        if (port->remote != NULL
            && port_try(channel, port, cuda, &error) == TP_OK) {
            tpb_info("device %d: by %s (%s)%s%s", port->device,
                     nic->nic.device, port_ways[how],
                     used > 0 ? "; not " : "", words);
            return;
        }
        snprintf(words + used, sizeof(words) - used, "%s%s: %s",
                 used > 0 ? "; " : "", port_ways[how], error.text);
    }
    port->remote = NULL;
    memcpy(port->words.text, words, sizeof(words));
}

static void port_make(struct gdr_channel *channel, struct gdr_port *port,
                      const struct tpg_cuda *cuda)
{
    int nic;

    if (port->device < 0) {
        port->how = TPF_REMOTE_PLAIN;
        port->remote = port_remote(channel, &channel->nics[0], port->how,
                                   &port->words);
        return;
    }
    if (!port_order(port, cuda)) {
        tpb_fail(&port->words, TP_ERR_NOT_SUPPORTED,
                 "the GPU neither orders nor flushes what NICs write");
    } else {
        nic = port_nic(channel, cuda, port->device, &port->words);
        if (nic >= 0)
            port_climb(channel, port, cuda, &channel->nics[nic]);
    }
    if (port->remote == NULL)
        tpb_info("device %d goes staged: %s", port->device, port->words.text);
}

struct gdr_port *gdr_port_get(struct gdr_channel *channel,
                              const struct tpg_cuda *cuda, int device,
                              struct tpb_error *error)
{
    struct gdr_port *port = channel->ports[device];

    port_list(channel);
    if (port == NULL && !channel->listed) {
        tpb_fail(error, TP_ERR_NOT_SUPPORTED, "no RDMA device");
        return NULL;
    }
    if (port == NULL) {
        port = tpb_zalloc(sizeof(*port));
        if (port == NULL) {
            tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
            return NULL;
        }
        tpb_list_init(&port->regions);
        port->device = device == GDR_HOST ? -1 : device;
        channel->ports[device] = port;
        port_make(channel, port, cuda);
    }
    if (port->remote != NULL)
        return port;
    *error = port->words;
    return NULL;
}

void gdr_ports_close(struct gdr_channel *channel)
{
    for (int i = 0; i <= TPG_DEVICES; i++) {
        if (channel->ports[i] == NULL)
            continue;
        gdr_regions_close(channel->ports[i]);
        tpb_free(channel->ports[i]);
        channel->ports[i] = NULL;
    }
    for (int i = 0; i < channel->nic_count; i++)
        for (int how = 0; how < TPF_REMOTE_WAYS; how++) {
            tpf_remote_close(channel->nics[i].remotes[how]);
            channel->nics[i].remotes[how] = NULL;
        }
}
