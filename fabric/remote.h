/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * RDMA devices for channels whose memory the CPU cannot touch (fabric/ofi/
 * remote.c and line.c make it of libfabric's verbs).
 *
 * A remote is one local RDMA address, opened: memory is registered with it,
 * and peers read what was registered over lines.  A line is a connection of
 * its own beside the pair's transport, so that a read that fails breaks the
 * line and not the pair.  Who reads opens it; the side that is read takes part
 * by its kernel and NIC, and lets in who shows the remote's ticket.
 *
 * Nothing here is ever sent by value: reads only, so that no provider copies
 * memory into a work request ("inline") that its CPU cannot read.
 *
 * Threads: as in backend.h.
 */
#ifndef TPF_REMOTE_H
#define TPF_REMOTE_H

#include "fabric/backend.h"

struct tpf_remote;
struct tpf_line;
struct tpf_registration;

enum {
    TPF_REMOTE_NICS = 16,
    TPF_REMOTE_WHERE = 20,         /* bytes of an address */
    TPF_REMOTE_TICKET = 16
};

/* One that a peer might read over; local only. */
struct tpf_remote_nic {
    char device[TPT_NAME];         /* "mlx5_0", as in /sys/class/infiniband */
    uint8_t where[TPF_REMOTE_WHERE];
};

/* What a reader has to know; sent. */
struct tpf_remote_place {
    uint8_t where[TPF_REMOTE_WHERE];
    uint8_t ticket[TPF_REMOTE_TICKET];
};
_Static_assert(sizeof(struct tpf_remote_place) == 36, "wire layout");

/* How memory of a device is made known to the NIC. */
enum tpf_remote_how {
    TPF_REMOTE_DMABUF,             /* by a descriptor; libfabric >= 1.20 */
    TPF_REMOTE_HMEM,               /* libfabric asks CUDA itself */
    TPF_REMOTE_PLAIN,              /* as host memory: a kernel module helps */
    TPF_REMOTE_WAYS
};

struct tpf_remote_memory {
    enum tpf_remote_how how;
    void *address;
    size_t length;
    int fd;                        /* DMABUF; stays the caller's */
    int device;                    /* HMEM: the CUDA ordinal */
};

/*
 * The local RDMA addresses that TP_IFACE allows, the one that serves this rank
 * best first, at most TPF_REMOTE_NICS.  Returns their number; 0 also while
 * libfabric is not loaded.  Takes milliseconds.
 */
int tpf_remote_list(const struct tpf_env *env, struct tpf_remote_nic *nics);

/* Opens one, for memory that is registered in that way.  NOT_SUPPORTED if
 * libfabric is too old for it or the provider does not offer it.  Takes
 * milliseconds. */
tp_status tpf_remote_open(struct tpf_env *env,
                          const struct tpf_remote_nic *nic,
                          enum tpf_remote_how how,
                          struct tpf_remote **remote, struct tpb_error *error);
/* Its lines and registrations are gone.  NULL is allowed. */
void tpf_remote_close(struct tpf_remote *remote);
void tpf_remote_place(const struct tpf_remote *remote,
                      struct tpf_remote_place *place);

/* Memory for peers to read and for reads to write into. */
tp_status tpf_remote_register(struct tpf_remote *remote,
                              const struct tpf_remote_memory *memory,
                              struct tpf_registration **registration,
                              struct tpb_error *error);
void tpf_remote_deregister(struct tpf_registration *registration);
uint64_t tpf_registration_key(const struct tpf_registration *registration);

/* ---- reading ------------------------------------------------------------- */

/* Begins to connect; fetches may be given to it at once.  `place` comes from
 * the peer and is not trusted. */
tp_status tpf_line_open(struct tpf_remote *remote,
                        const struct tpf_remote_place *place,
                        struct tpf_line **line, struct tpb_error *error);
/* What is under way is stopped, without a word.  NULL is allowed. */
void tpf_line_close(struct tpf_line *line);
/* Why it broke; NULL if it did not. */
const char *tpf_line_broken(const struct tpf_line *line);

/* One buffer's way in.  The caller's memory, all of it filled in by him but
 * what stands below. */
struct tpf_fetch {
    void *to;
    const struct tpf_registration *registration;   /* of `to` */
    uint64_t address, key;         /* over there */
    size_t length;
    void (*ended)(struct tpf_fetch *fetch);    /* from tpf_remote_progress() */

    size_t done;                   /* bytes at the front that are there; all
                                      of them, or the line broke */
    size_t posted, under_way;
    struct tpf_line *line;
    struct tpb_list node;
};

/* ended() comes, exactly once, unless the line is closed or it is stopped. */
void tpf_line_fetch(struct tpf_line *line, struct tpf_fetch *fetch);
/* True: it is stopped, nothing is written any more, and ended() does not come.
 * False: it soon will. */
bool tpf_line_stop(struct tpf_fetch *fetch);

/* Moves its lines on and calls ended(); returns whether anything moved. */
bool tpf_remote_progress(struct tpf_remote *remote);

/* The same without a call of anybody's ended(), for who waits for one fetch of
 * his own, in the middle of something else. */
void tpf_line_await(struct tpf_line *line);

#endif
