/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * libcuda, loaded when a GPU is first used, once per process: a process that
 * never uses one never loads it.  Any thread may call.
 *
 * The driver does not work in the child of a fork() that came after it was
 * initialised; such a child is told so.
 */
#ifndef TPG_CUDA_DRIVER_H
#define TPG_CUDA_DRIVER_H

#include "gpu/driver_abi.h"
#include "gpu/mutants.h"
#include "runtime/base/settings.h"

enum { TPG_DEVICES = 64 };             /* the most that one process sees */

struct tpg_cuda {
#define CUDA_SYMBOL(group, name, parameters) cu_result (*name) parameters;
#include "gpu/driver_symbols.def"
#undef CUDA_SYMBOL
    int version;                       /* 13000 is 13.0 */
    int devices;
    bool ipc, vmm, flag;               /* the groups are whole */
    cu_uuid uuids[TPG_DEVICES];
};

/*
 * Loads and initialises it if that has not been tried yet; the first answer
 * holds for the life of the process.  NOT_SUPPORTED: there is no GPU, or no
 * driver; words say which and what helps.  May take a second the first time.
 */
tp_status tpg_cuda_load(const struct tpb_settings *settings,
                        const struct tpg_cuda **cuda,
                        struct tpb_error *error);

/* The driver if it is loaded already, else NULL. */
const struct tpg_cuda *tpg_cuda_loaded(void);

/* As tpg_cuda_loaded(); but if the program itself has initialised libcuda
 * since, loads it, too: then some of its memory may be a device's. */
const struct tpg_cuda *tpg_cuda_notice(const struct tpb_settings *settings);

/* The device's primary context, kept until the process ends. */
tp_status tpg_cuda_context(const struct tpg_cuda *cuda, int device,
                           cu_context *context, struct tpb_error *error);

/*
 * Makes the device's primary context current; pair with tpg_cuda_leave(),
 * which brings back the caller's.  In between, as between calm and stir, what
 * this thread asks of the driver leaves alone whatever graph the program
 * captures meanwhile: else an innocent cuEventQuery() or cuMemAlloc() from any
 * thread ends it.
 */
tp_status tpg_cuda_enter(const struct tpg_cuda *cuda, int device,
                         struct tpb_error *error);
void tpg_cuda_leave(const struct tpg_cuda *cuda);
/* Waits for a stream of that device that only our own copies are on: it ends
 * soon, and at once after an error that is the device's end. */
void tpg_cuda_settle(const struct tpg_cuda *cuda, int device,
                     cu_stream stream);
/* Does this process use the device already?  Else its context takes hundreds of
 * megabytes there, and as many milliseconds. */
bool tpg_cuda_active(const struct tpg_cuda *cuda, int device);
/* The first that it uses; -1: none. */
int tpg_cuda_any(const struct tpg_cuda *cuda);
/* For calls that need no context; both pairs may be nested. */
void tpg_cuda_calm(const struct tpg_cuda *cuda);
void tpg_cuda_stir(const struct tpg_cuda *cuda);

/* cuEventQuery() and cuEventDestroy() from anywhere; the device is that whose
 * context has the event. */
cu_result tpg_event_query(const struct tpg_cuda *cuda, cu_event event);
void tpg_event_destroy(const struct tpg_cuda *cuda, int device,
                       cu_event event);

/* The device with that UUID, -1 if this process does not see it. */
int tpg_cuda_find(const struct tpg_cuda *cuda, const cu_uuid *uuid);

/* BACKEND with what the driver said; OK for CU_OK. */
tp_status tpg_cuda_fail(const struct tpg_cuda *cuda, cu_result code,
                        const char *what, struct tpb_error *error);

#endif
