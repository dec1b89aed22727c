/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The hosts of a job: --host and --hostfile in the ways in which people write
 * them for Open MPI and MPICH, and which host gets how many ranks.
 *
 *   --host a,b:4,guest@c,node[01-16],[fd77::2]:4,fd77::3
 *
 *   # a hostfile
 *   node01 slots=4 max_slots=8      (Open MPI; also count=, cpu=)
 *   node[02-16]:4 user=guest        (MPICH)
 *   fd77::2
 */
#ifndef TPL_HOSTS_H
#define TPL_HOSTS_H

#include "runtime/base/base.h"

enum { TPL_HOSTS_MAX = 65536 };

struct tpl_host {
    char *name;                    /* or address, without brackets */
    char *user;                    /* NULL: not said */
    int slots;                     /* 0: not said */
    int most;                      /* max_slots; 0: no limit */
    int ranks;                     /* from tpl_hosts_place() */
    bool here;                     /* from tpl_hosts_find_here() */
};

/* Zeroed is empty.  In the order of their first mention, each once. */
struct tpl_hosts {
    struct tpl_host *list;
    size_t count, room;            /* room: 0 or a power of two */
    uint32_t *index;               /* 2 * room, by name: 1 + place in list */
};

/*
 * Adds the hosts of a comma list.  A host that is named again gets one slot
 * more (Open MPI), or those said.  INVALID with words: "WHERE: what", where
 * `where` is "--host" or alike.
 */
tp_status tpl_hosts_add_list(struct tpl_hosts *hosts, const char *where,
                             const char *list, struct tpb_error *error);

/* Adds those of a file's text; words begin with "FILE:LINE: ". */
tp_status tpl_hosts_add_text(struct tpl_hosts *hosts, const char *file,
                             const char *text, struct tpb_error *error);

/* The same from the file itself. */
tp_status tpl_hosts_add_file(struct tpl_hosts *hosts, const char *file,
                             struct tpb_error *error);

/*
 * Leaves those of `hosts` that `chosen` names, in its order (--host given
 * beside --hostfile).  What `chosen` says of slots and users wins.  INVALID if
 * one is not there.
 */
tp_status tpl_hosts_choose(struct tpl_hosts *hosts, struct tpl_hosts *chosen,
                           struct tpb_error *error);

/* What they offer together; a host that says nothing offers one. */
int tpl_hosts_slots(const struct tpl_hosts *hosts);

/*
 * Sets `ranks` of every host.  If none says how many slots it has, in even
 * blocks; else host by host as many as it has slots, and if there are more
 * ranks, round after round.  INVALID if the max_slots do not suffice.
 */
tp_status tpl_hosts_place(struct tpl_hosts *hosts, int ranks,
                          struct tpb_error *error);

/*
 * Finds out which of them are this machine, by its names and addresses.  A
 * name that cannot be resolved within `seconds` in all is taken for another
 * machine's, whose own configuration (~/.ssh/config) may know it.
 */
void tpl_hosts_find_here(struct tpl_hosts *hosts, int seconds);

void tpl_hosts_fini(struct tpl_hosts *hosts);

#endif
