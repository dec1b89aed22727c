/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What of libcuda's binary interface we use: its types and numbers, which no
 * driver ever changes, under names of our own, so that neither cuda.h nor a
 * toolkit is needed to build.  tests/unit/test_cuda_abi compares every line
 * with cuda.h where there is one.
 *
 * Source: cuda.h of the CUDA Toolkit 13.0.
 */
#ifndef TPG_DRIVER_ABI_H
#define TPG_DRIVER_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;                 /* CUresult */
typedef int cu_device;                 /* CUdevice, an ordinal */
typedef uint64_t cu_pointer;           /* CUdeviceptr */
typedef uint64_t cu_memory;            /* CUmemGenericAllocationHandle */
typedef struct cu_context_s *cu_context;
typedef struct cu_stream_s *cu_stream;
typedef struct cu_event_s *cu_event;

typedef struct { unsigned char bytes[16]; } cu_uuid;
typedef struct { unsigned char bytes[64]; } cu_ipc_memory;

struct cu_location { int type, id; };
struct cu_memory_properties {          /* CUmemAllocationProp */
    int type, handle_types;
    struct cu_location location;
    void *windows;
    struct {
        unsigned char compression, gpudirect_rdma;
        unsigned short usage;
        unsigned char zero[4];
    } flags;
};
struct cu_access {                     /* CUmemAccessDesc */
    struct cu_location location;
    int flags;
};
struct cu_rows_end {                   /* CUDA_MEMCPY2D: either end */
    size_t x, y;
    int type;                          /* CU_MEMORY_... */
    const void *host;
    cu_pointer device;
    void *array;
    size_t pitch;
};
struct cu_rows {                       /* CUDA_MEMCPY2D */
    struct cu_rows_end from, to;
    size_t width, height;              /* bytes of a row, rows */
};
_Static_assert(sizeof(struct cu_rows) == 128, "ABI");
_Static_assert(sizeof(struct cu_memory_properties) == 32, "ABI");
_Static_assert(sizeof(struct cu_access) == 12, "ABI");

enum {                                 /* CUresult */
    CU_OK = 0, CU_INVALID_VALUE = 1, CU_OUT_OF_MEMORY = 2,
    CU_NOT_INITIALIZED = 3, CU_STUB_LIBRARY = 34, CU_NO_DEVICE = 100,
    CU_INVALID_DEVICE = 101, CU_INVALID_CONTEXT = 201,
    CU_ALREADY_MAPPED = 208, CU_PEER_ACCESS_UNSUPPORTED = 217,
    CU_INVALID_HANDLE = 400, CU_NOT_FOUND = 500, CU_NOT_READY = 600,
    CU_ILLEGAL_ADDRESS = 700, CU_NOT_PERMITTED = 800, CU_NOT_SUPPORTED = 801,
    CU_SYSTEM_DRIVER_MISMATCH = 803, CU_COMPAT_NOT_SUPPORTED = 804,
    CU_CAPTURE_UNSUPPORTED = 900, CU_CAPTURE_INVALIDATED = 901,
    CU_CAPTURE_ISOLATION = 905, CU_CAPTURE_IMPLICIT = 906,
    CU_CAPTURE_EVENT = 907
};

enum {                                 /* CUstreamCaptureStatus, ...Mode */
    CU_CAPTURE_NONE = 0, CU_CAPTURE_ACTIVE = 1, CU_CAPTURE_BROKEN = 2,
    CU_CAPTURE_GLOBAL = 0, CU_CAPTURE_THREAD = 1, CU_CAPTURE_RELAXED = 2
};

/* Streams that are not objects: the context's, and each thread's own. */
#define CU_LEGACY_STREAM ((cu_stream)0x1)
#define CU_THREAD_STREAM ((cu_stream)0x2)

enum {                                 /* CUdevice_attribute */
    CU_ATTRIBUTE_COMPUTE_MODE = 20, CU_ATTRIBUTE_UNIFIED = 41,
    CU_ATTRIBUTE_VMM = 102, CU_ATTRIBUTE_POSIX_FD = 103,
    CU_ATTRIBUTE_GDR_VMM = 110, CU_ATTRIBUTE_GDR = 116,
    CU_ATTRIBUTE_GDR_FLUSH = 117, CU_ATTRIBUTE_GDR_ORDER = 118,
    CU_ATTRIBUTE_DMABUF = 124
};

enum {                                 /* GPUDirect RDMA */
    CU_GDR_FLUSH_HOST = 1,             /* a bit of CU_ATTRIBUTE_GDR_FLUSH */
    CU_GDR_ORDER_OWNER = 100,          /* CU_ATTRIBUTE_GDR_ORDER, at least */
    CU_GDR_FLUSH_CURRENT = 0, CU_GDR_FLUSH_TO_OWNER = 100,
    CU_RANGE_DMABUF = 1
};

enum { CU_CONTEXT_SYNC_MEMOPS = 0x80 };    /* CUctx_flags */

enum {                                 /* CUcomputemode */
    CU_COMPUTE_PROHIBITED = 2, CU_COMPUTE_EXCLUSIVE_PROCESS = 3
};

enum {                                 /* CUpointer_attribute */
    CU_POINTER_MEMORY_TYPE = 2, CU_POINTER_SYNC_MEMOPS = 6,
    CU_POINTER_BUFFER_ID = 7,
    CU_POINTER_IS_MANAGED = 8, CU_POINTER_ORDINAL = 9,
    CU_POINTER_LEGACY_IPC = 10, CU_POINTER_ALLOWED_HANDLES = 14,
    CU_POINTER_GDR = 15, CU_POINTER_POOL = 17,
    CU_POINTER_MAPPING_SIZE = 18, CU_POINTER_MAPPING_BASE = 19,
    CU_POINTER_BLOCK_ID = 20
};

enum {                                 /* CUmemorytype */
    CU_MEMORY_HOST = 1, CU_MEMORY_DEVICE = 2, CU_MEMORY_ARRAY = 3,
    CU_MEMORY_UNIFIED = 4
};

enum {                                 /* flags of several calls */
    CU_EVENT_NO_TIMING = 2,            /* CU_EVENT_DISABLE_TIMING */
    CU_STREAM_PLAIN = 1,               /* CU_STREAM_NON_BLOCKING */
    CU_IPC_LAZY_PEER = 1,              /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */
    CU_HOST_PORTABLE = 1,              /* CU_MEMHOSTREGISTER_PORTABLE */
    CU_HOST_DEVICE_MAP = 2,            /* CU_MEMHOSTREGISTER_DEVICEMAP */
    CU_HANDLE_POSIX_FD = 1, CU_ALLOCATION_PINNED = 1, CU_LOCATION_DEVICE = 1,
    CU_ACCESS_READ_WRITE = 3, CU_GRANULARITY_MINIMUM = 0
};

#endif
