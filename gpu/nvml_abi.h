/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What of NVML's binary interface we use, under names of our own: nvml.h is
 * not needed to build, and no toolkit of CUDA has it everywhere.
 *
 * Source: NVML API Reference Manual, R580; nvml.h of the same.
 */
#ifndef TPG_NVML_ABI_H
#define TPG_NVML_ABI_H

#include <stddef.h>

typedef int nvml_result;               /* nvmlReturn_t */
typedef struct nvml_device_s *nvml_device;

struct nvml_pci {                      /* nvmlPciInfo_t */
    char legacy[16];
    unsigned domain, bus, device, pci_device, pci_subsystem;
    char bus_id[32];
};
_Static_assert(sizeof(struct nvml_pci) == 68, "ABI");

struct nvml_field {                    /* nvmlFieldValue_t */
    unsigned field, scope;
    long long when, latency;
    unsigned type;
    nvml_result result;
    union {
        double real;
        unsigned int number;
        unsigned long long big;
    } value;
};
_Static_assert(sizeof(struct nvml_field) == 40, "ABI");

enum { NVML_OK = 0, NVML_INVALID = 2, NVML_NOT_SUPPORTED = 3,
       NVML_NOT_FOUND = 6, NVML_DRIVER_NOT_LOADED = 9 };
enum { NVML_FIELD_LINK_SPEED = 90,     /* MB/s of each NVLink, one way */
       NVML_FIELD_LINK_STATE = 165 };  /* scope: the link; from sm90 on */
enum { NVML_P2P_READ = 0 };            /* nvmlGpuP2PCapsIndex_t */
enum { NVML_P2P_OK = 0, NVML_P2P_UNKNOWN = 6 };
enum { NVML_REMOTE_GPU = 0, NVML_REMOTE_PROCESSOR = 1,
       NVML_REMOTE_SWITCH = 2, NVML_REMOTE_UNKNOWN = 255 };
enum { NVML_LINKS = 18 };              /* the most of one GPU */

#endif
