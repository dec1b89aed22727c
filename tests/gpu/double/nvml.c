/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The test double of NVML: the calls of gpu/nvml_symbols.def.
 *
 *   NVMLDOUBLE_GPUS      how many, 2: at PCI buses 10, 20, ...
 *   NVMLDOUBLE_LINKS     from each to the next one, 0
 *   NVMLDOUBLE_SWITCHED  from each to switches, 0; told as a virtual machine
 *                        does, without a device at the other end
 *   NVMLDOUBLE_DENIED    1: none may access another's memory
 *   NVMLDOUBLE_FAIL      what nvmlInit_v2() answers, 0
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/nvml_abi.h"

enum { DOUBLE_GPUS = 16 };

struct nvml_device_s {
    unsigned index;
};

/* The tree is built with hidden symbols; these are what a program looks for. */
#pragma GCC visibility push(default)
#define NVML_SYMBOL(needed, name, parameters) nvml_result name parameters;
#include "gpu/nvml_symbols.def"
#undef NVML_SYMBOL
#pragma GCC visibility pop

static struct nvml_device_s double_gpus[DOUBLE_GPUS];
static int double_started;

static unsigned double_number(const char *name, unsigned initial)
{
    const char *text = getenv(name);

    return text != NULL && *text != '\0' ? (unsigned)strtoul(text, NULL, 10)
                                         : initial;
}

static unsigned double_count(void)
{
    unsigned count = double_number("NVMLDOUBLE_GPUS", 2);

    return count < DOUBLE_GPUS ? count : DOUBLE_GPUS;
}

/* Which of a GPU's links that is: 0 none, 1 to the next GPU, 2 to a switch. */
static int double_link(unsigned link)
{
    unsigned direct = double_number("NVMLDOUBLE_LINKS", 0);
    unsigned switched = double_number("NVMLDOUBLE_SWITCHED", 0);

    return link < direct ? 1 : link < direct + switched ? 2 : 0;
}

static void double_pci(unsigned index, struct nvml_pci *pci)
{
    memset(pci, 0, sizeof(*pci));
    pci->bus = 0x10 * (index + 1);
    snprintf(pci->bus_id, sizeof(pci->bus_id), "00000000:%02X:00.0", pci->bus);
}

nvml_result nvmlInit_v2(void)
{
    nvml_result result = (nvml_result)double_number("NVMLDOUBLE_FAIL", 0);

    double_started += result == NVML_OK;
    return result;
}

nvml_result nvmlShutdown(void)
{
    if (double_started == 0)
        return NVML_INVALID;
    double_started--;
    return NVML_OK;
}

nvml_result nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = double_count();
    return NVML_OK;
}

nvml_result nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_device *device)
{
    if (double_started == 0 || index >= double_count())
        return NVML_INVALID;
    double_gpus[index].index = index;
    *device = &double_gpus[index];
    return NVML_OK;
}

nvml_result nvmlDeviceGetPciInfo_v3(nvml_device device, struct nvml_pci *pci)
{
    double_pci(device->index, pci);
    return NVML_OK;
}

/* As drivers do from Hopper on: only the field tells. */
nvml_result nvmlDeviceGetNvLinkState(nvml_device device, unsigned link,
                                     unsigned *active)
{
    (void)device;
    if (double_link(link) == 2)
        return NVML_NOT_SUPPORTED;
    *active = double_link(link) != 0;
    return NVML_OK;
}

nvml_result nvmlDeviceGetNvLinkRemotePciInfo_v2(nvml_device device,
                                                unsigned link,
                                                struct nvml_pci *pci)
{
    if (double_link(link) != 1)
        return NVML_NOT_FOUND;
    double_pci((device->index + 1) % double_count(), pci);
    return NVML_OK;
}

nvml_result nvmlDeviceGetNvLinkRemoteDeviceType(nvml_device device,
                                                unsigned link, int *type)
{
    (void)device;
    if (double_link(link) != 1)
        return NVML_NOT_SUPPORTED;
    *type = NVML_REMOTE_GPU;
    return NVML_OK;
}

nvml_result nvmlDeviceGetP2PStatus(nvml_device device, nvml_device other,
                                   int what, int *status)
{
    if (device == other || what != NVML_P2P_READ)
        return NVML_INVALID;
    *status = double_number("NVMLDOUBLE_DENIED", 0) != 0 ? 3 : NVML_P2P_OK;
    return NVML_OK;
}

nvml_result nvmlDeviceGetFieldValues(nvml_device device, int count,
                                     struct nvml_field *values)
{
    (void)device;
    for (int i = 0; i < count; i++) {
        values[i].result = NVML_OK;
        if (values[i].field == NVML_FIELD_LINK_STATE)
            values[i].value.number = double_link(values[i].scope) != 0;
        else if (values[i].field == NVML_FIELD_LINK_SPEED)
            values[i].value.number = 26562;
        else
            values[i].result = NVML_NOT_SUPPORTED;
    }
    return NVML_OK;
}
