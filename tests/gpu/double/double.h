/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The inside of the test double of libcuda: see README.md for what it does and
 * what it cannot show.  One lock guards everything; a function whose name ends
 * in _locked is called with it.
 */
#ifndef TPX_DOUBLE_H
#define TPX_DOUBLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#include "gpu/driver_abi.h"

/* The tree is built with hidden symbols; these are what a program looks for. */
#pragma GCC visibility push(default)
#define CUDA_SYMBOL(group, name, parameters) cu_result name parameters;
#include "gpu/driver_symbols.def"
#undef CUDA_SYMBOL
/* Beside the driver's: for tests/gpu/rdma, and for tests. */
unsigned cudadouble_flushes(void);
void *cudadouble_way_in(const void *address, size_t length, int *answer);
#pragma GCC visibility pop

enum {
    DOUBLE_DEVICES = 16, DOUBLE_PAGE = 4096, DOUBLE_GRANULE = 64 * 1024,
    DOUBLE_POISON = 0xdb
};

enum double_mode { DOUBLE_EAGER, DOUBLE_LAZY, DOUBLE_DELAY };

/* Filled from the environment by cuInit(). */
extern struct double_settings {
    enum double_mode mode;
    int devices;
    bool peers, vmm, reuse, flags;
    unsigned seed;
} double_settings;

struct cu_context_s {
    int device;
    int retained;
    struct cu_stream_s *legacy;        /* stream 0 */
    unsigned flags;
};

/* ---- visible.c ----------------------------------------------------------- */

/* Of `there` devices, the first of which is the host's `first`, how many this
 * process sees. */
int double_visible(int there, int first);
/* The device as all processes know it, and back; -1: not visible here. */
int double_place(int device);
int double_device(int place);
void double_uuid(int place, cu_uuid *uuid);

/* ---- memory.c ------------------------------------------------------------ */

enum double_kind {
    DOUBLE_MALLOC, DOUBLE_POOL, DOUBLE_VMM, DOUBLE_MANAGED, DOUBLE_HOST,
    DOUBLE_REGISTERED, DOUBLE_IMPORT, DOUBLE_RESERVED
};

/* At the front of every piece of device memory, seen by all who map it. */
struct double_header {
    uint64_t magic;
    uint64_t id;                       /* the exporter's buffer id */
    uint64_t size;
    int32_t device, pid;
    _Atomic int32_t freed;
};

/* Device memory itself: what is shared between processes. */
struct double_store {
    int fd;
    struct double_header *header;
    unsigned char *bytes;              /* our way in: the program has none */
    size_t size;
    int holds;
    bool closed;                       /* VMM: cannot be exported */
};

/* A range of addresses as the program knows it. */
struct double_range {
    struct double_range *next;
    unsigned char *start;
    size_t size;
    enum double_kind kind;
    int device;
    uint64_t id;
    struct double_store *store;        /* NULL for host memory */
    bool freed;                        /* kept to tell of use after free */
    uint32_t access;                   /* VMM: devices that may, a bit each */
    uint64_t block;                    /* VMM: what is mapped */
    bool mapped;                       /* host: a device may use it */
    bool synchronous;                  /* CU_POINTER_SYNC_MEMOPS is set */
    int opens;                         /* IMPORT */
};

struct double_store *double_store_new_locked(size_t size, int device);
struct double_store *double_store_open_locked(int fd);  /* takes the fd */
void double_store_drop_locked(struct double_store *store);
/* The range that covers the address, freed ones last; NULL if none does. */
struct double_range *double_range_find_locked(const void *address);
struct double_range *double_range_add_locked(void *start, size_t size,
                                             enum double_kind kind,
                                             int device,
                                             struct double_store *store);
void double_range_retire_locked(struct double_range *range);
/* Is nothing mapped at these reserved addresses?  What was is forgotten. */
bool double_range_vacant_locked(const unsigned char *start, size_t size);
/* Addresses that the program cannot touch. */
void *double_addresses_locked(size_t size);
/* Where the bytes really are; reports and ends the process on use after free
 * and overrun.  `length` is cut to what lies in one piece. */
unsigned char *double_bytes_locked(cu_pointer pointer, size_t *length,
                                   const char *what);

/* Is all of it host memory that devices may use, or a device's? */
bool double_mapped_locked(cu_pointer pointer, size_t length);

/* ---- stream.c ------------------------------------------------------------ */

/* Runs all that has been enqueued and can run, wherever. */
void double_settle_locked(void);
/* Waits until that device has nothing to do in this process, or all (-1), as
 * some calls of the driver do, behind which all others wait. */
void double_idle_locked(int device);
struct cu_stream_s *double_stream_new_locked(struct cu_context_s *context);
/* The one that the program means; NULL: no context is current. */
struct cu_stream_s *double_stream_locked(cu_stream stream);

/* ---- capture.c ----------------------------------------------------------- */

/* May this thread make that call while others capture?  Else why not, and the
 * captures that it hits are broken. */
cu_result double_capture_allows_locked(const char *name);
bool double_captured_locked(const struct cu_stream_s *stream);
/* Returns the code. */
cu_result double_capture_break_locked(const struct cu_stream_s *stream,
                                      cu_result code);

/* ---- rdma.c -------------------------------------------------------------- */

/* A device's attribute for GPUDirect RDMA; 0 for any other. */
int double_rdma_attribute(int attribute);

/* ---- device.c ------------------------------------------------------------ */

extern pthread_mutex_t double_lock;
/* That variable's value; NULL if it is not set, or CUDADOUBLE_PLAIN is. */
const char *double_variable(const char *name);
struct cu_context_s *double_context_locked(void);      /* current; NULL */
/* Has that device's context CU_CTX_SYNC_MEMOPS? */
bool double_synchronous_locked(int device);
void double_report(const char *format, ...)
    __attribute__((__format__(__printf__, 1, 2), __noreturn__));
/* May the call go on?  CU_OK or why not: not initialised, or a planted fault.
 * Takes the lock in any case. */
cu_result double_begin(const char *name);
cu_result double_end(cu_result code);                  /* gives it back */
#define DOUBLE_BEGIN() \
    do { \
        cu_result begin_ = double_begin(__func__); \
        if (begin_ != CU_OK) \
            return double_end(begin_); \
    } while (0)
bool double_valid_device(int device);

#endif
