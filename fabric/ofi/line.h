/* SPDX-License-Identifier: BSD-3-Clause */
/* What remote.c and line.c share; the contract is fabric/remote.h. */
#ifndef TPF_OFI_LINE_H
#define TPF_OFI_LINE_H

#include "fabric/ofi/ofi.h"
#include "fabric/remote.h"

enum { LINE_READS = 8 };           /* under way on one line */

/* A peer that reads from here: nothing but its endpoint. */
struct line_guest {
    struct tpb_list link;
    struct fid_ep *ep;
};

struct tpf_remote {
    struct tpf_env *env;
    struct ofi_where where;        /* ours, with the door's port */
    uint8_t ticket[TPF_REMOTE_TICKET];
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_eq *eq, *door_eq;   /* the door's own: see ofi_door_close() */
    struct fid_pep *door;
    struct fid_cq *cq;
    struct tpf_watch eq_watch, door_watch;
    struct tpb_list lines, guests;
    size_t reads;                  /* under way on all of its lines */
    uint64_t mr_key;
};

/* One read; completions know it by its address. */
struct line_read {
    struct fi_context2 context;    /* first: libfabric hands back its address */
    struct tpf_line *line;
    struct tpf_fetch *fetch;       /* NULL: free, or nobody's any more */
    size_t offset, length;
    bool posted;
};

enum line_state { LINE_CONNECTING, LINE_READY, LINE_BROKEN };

struct tpf_line {
    struct tpb_list link;          /* in remote->lines */
    struct tpf_remote *remote;
    struct fid_ep *ep;
    enum line_state state;
    uint64_t deadline;             /* for connecting */
    struct tpb_list fetches, ended;
    struct line_read reads[LINE_READS];
    struct tpb_error words;        /* why it is broken */
};

struct tpf_registration {
    struct fid_mr *mr;
};

/* ---- line.c -------------------------------------------------------------- */

/* Events of connections, and of who comes to the door. */
bool ofi_line_events(struct tpf_remote *remote);
void ofi_line_guests_close(struct tpf_remote *remote);

#endif
