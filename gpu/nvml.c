/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the driver's management library knows of GPUs and nobody else tells:
 * NVLinks, and who may access whose memory.  Loaded for as long as it takes,
 * and only on a machine with several GPUs.
 */
#include "config.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gpu/gpu.h"
#include "gpu/nvml_abi.h"
#include "runtime/base/log.h"

TPB_LOG_COMPONENT("gpu");

enum { NVML_DEVICES = 64 };

struct nvml {
    void *library;
#define NVML_SYMBOL(needed, name, parameters) nvml_result (*name) parameters;
#include "gpu/nvml_symbols.def"
#undef NVML_SYMBOL
    unsigned count;
    struct {
        nvml_device device;
        uint32_t pci;
    } list[NVML_DEVICES];
};

static const struct {
    const char *name;
    bool needed;
    size_t place;
} nvml_symbols[] = {
#define NVML_SYMBOL(needed, name, parameters) \
    { #name, needed, offsetof(struct nvml, name) },
#include "gpu/nvml_symbols.def"
#undef NVML_SYMBOL
};

/* ---- the library -------------------------------------------------------- */

static void nvml_close(struct nvml *nvml)
{
    if (nvml->library != NULL)
        dlclose(nvml->library);
    nvml->library = NULL;
}

static bool nvml_open(struct nvml *nvml, const char *path)
{
    nvml->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (nvml->library == NULL) {
        struct tpb_error why;

        tpb_fail_load(&why, TP_OK, "NVLinks are not known");
        tpb_info("%s", why.text);
        return false;
    }
    for (size_t i = 0; i < TPB_COUNT(nvml_symbols); i++) {
        void *symbol = dlsym(nvml->library, nvml_symbols[i].name);

        memcpy((char *)nvml + nvml_symbols[i].place, &symbol, sizeof(symbol));
        if (symbol == NULL && nvml_symbols[i].needed) {
            tpb_info("NVLinks are not known: %s has no %s", path,
                     nvml_symbols[i].name);
            nvml_close(nvml);
            return false;
        }
    }
    return true;
}

static uint32_t nvml_number(const struct nvml_pci *pci)
{
    return pci->domain << 16 | (pci->bus & 0xff) << 8
           | (pci->device & 0x1f) << 3;
}

static void nvml_list(struct nvml *nvml)
{
    unsigned count = 0;

    if (nvml->nvmlDeviceGetCount_v2(&count) != NVML_OK)
        return;
    for (unsigned i = 0; i < count && nvml->count < NVML_DEVICES; i++) {
        struct nvml_pci pci = { 0 };
        nvml_device device;

        /* Others are fallen off the bus, or not this user's. */
        if (nvml->nvmlDeviceGetHandleByIndex_v2(i, &device) != NVML_OK
            || nvml->nvmlDeviceGetPciInfo_v3(device, &pci) != NVML_OK)
            continue;
        nvml->list[nvml->count].device = device;
        nvml->list[nvml->count++].pci = nvml_number(&pci);
    }
}

/* ---- one GPU ------------------------------------------------------------ */

static bool nvml_field(const struct nvml *nvml, nvml_device device,
                       unsigned field, unsigned scope, unsigned *value)
{
    struct nvml_field asked = { .field = field, .scope = scope };

    if (nvml->nvmlDeviceGetFieldValues == NULL
        || nvml->nvmlDeviceGetFieldValues(device, 1, &asked) != NVML_OK
        || asked.result != NVML_OK)
        return false;
    *value = asked.value.number;
    return true;
}

static bool nvml_active(const struct nvml *nvml, nvml_device device,
                        unsigned link)
{
    unsigned active = 0;

    if (nvml->nvmlDeviceGetNvLinkState(device, link, &active) != NVML_OK
        && !nvml_field(nvml, device, NVML_FIELD_LINK_STATE, link, &active))
        return false;
    return active == 1;
}

/* Older drivers do not say what is at the other end: the kernel knows, unless
 * in a virtual machine, which sees GPUs and not the switches. */
static int nvml_class(uint32_t pci)
{
    char bus[TPT_PCI_TEXT], path[96], line[16] = "";
    FILE *file;

    tpt_pci_text(pci, bus);
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/class", bus);
    file = fopen(path, "re");
    if (file == NULL)
        return NVML_REMOTE_SWITCH;
    if (fgets(line, sizeof(line), file) == NULL)
        line[0] = '\0';
    fclose(file);
    return strncmp(line, "0x03", 4) == 0 ? NVML_REMOTE_GPU
           : strncmp(line, "0x0680", 6) == 0 ? NVML_REMOTE_SWITCH
                                             : NVML_REMOTE_PROCESSOR;
}

static void nvml_count_link(struct tpt_card_gpu *gpu, uint32_t pci)
{
    for (unsigned i = 0; i < gpu->link_count; i++)
        if (gpu->links[i].pci == pci) {
            gpu->links[i].count++;
            return;
        }
    if (gpu->link_count < TPT_GPU_LINKS)
        gpu->links[gpu->link_count++] = (struct tpt_gpu_link) { pci, 1 };
}

static void nvml_link(const struct nvml *nvml, nvml_device device,
                      unsigned link, struct tpt_card_gpu *gpu)
{
    int type = NVML_REMOTE_UNKNOWN;
    struct nvml_pci pci = { 0 };
    uint32_t remote = 0;

    if (nvml->nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, &pci)
        == NVML_OK)
        remote = nvml_number(&pci);
    if (nvml->nvmlDeviceGetNvLinkRemoteDeviceType == NULL
        || nvml->nvmlDeviceGetNvLinkRemoteDeviceType(device, link, &type)
           != NVML_OK
        || type == NVML_REMOTE_UNKNOWN)
        type = remote != 0 ? nvml_class(remote) : NVML_REMOTE_SWITCH;
    if (type == NVML_REMOTE_SWITCH)
        gpu->switched++;
    else if (type == NVML_REMOTE_GPU && remote != 0)
        nvml_count_link(gpu, remote);
}

static void nvml_access(const struct nvml *nvml, nvml_device device,
                        struct tpt_card_gpu *gpu)
{
    for (unsigned i = 0; i < nvml->count; i++) {
        int status = NVML_P2P_UNKNOWN;

        if (nvml->list[i].pci == gpu->place.pci
            || nvml->nvmlDeviceGetP2PStatus(device, nvml->list[i].device,
                                            NVML_P2P_READ, &status) != NVML_OK
            || status == NVML_P2P_OK || status == NVML_P2P_UNKNOWN
            || gpu->denied_count == TPT_GPU_LINKS)
            continue;
        gpu->denied[gpu->denied_count++] = nvml->list[i].pci;
    }
}

static void nvml_gpu(const struct nvml *nvml, struct tpt_card_gpu *gpu)
{
    nvml_device device = NULL;
    unsigned speed;

    for (unsigned i = 0; i < nvml->count; i++)
        if (nvml->list[i].pci == gpu->place.pci)
            device = nvml->list[i].device;
    if (device == NULL)
        return;
    gpu->asked = TPT_LINKS_NVML;
    gpu->link_count = gpu->switched = gpu->denied_count = 0;
    for (unsigned link = 0; link < NVML_LINKS; link++)
        if (nvml_active(nvml, device, link))
            nvml_link(nvml, device, link, gpu);
    if (nvml_field(nvml, device, NVML_FIELD_LINK_SPEED, 0, &speed))
        gpu->link_megabytes = speed;
    nvml_access(nvml, device, gpu);
}

void tpg_nvml_ask(const struct tpb_settings *settings, int there,
                  struct tpt_card *card)
{
    const char *path = settings->text[TPB_SET_NVML_LIBRARY];
    struct nvml nvml = { 0 };
    nvml_result result;

    if (there < 2 || card->gpu_count == 0)
        return;
    if (strcmp(path, "none") == 0) {
        tpb_info("NVLinks are not known: TP_NVML_LIBRARY=none");
        return;
    }
    if (!nvml_open(&nvml, path))
        return;
    result = nvml.nvmlInit_v2();
    if (result == NVML_OK) {
        nvml_list(&nvml);
        for (uint32_t i = 0; i < card->gpu_count; i++)
            nvml_gpu(&nvml, &card->gpus[i]);
        nvml.nvmlShutdown();
    } else {
        tpb_info("NVLinks are not known: NVML does not start (error %d)",
                 result);
    }
    nvml_close(&nvml);
}
