/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Doors: datagram sockets that tprun makes for its ranks.  An abstract Unix
 * name is known in one network namespace, that of the socket's maker.  So
 * ranks in containers with networks of their own still find each other, and
 * tprun, through sockets that were made outside.  Nothing of it has a name in
 * a file system.
 *
 * Each rank inherits two: one for backends inside a host, which receives the
 * ends of connections (shm's own messages), and one to talk to tprun.
 */
#ifndef TPB_DOOR_H
#define TPB_DOOR_H

#include <sys/socket.h>

#include "runtime/base/base.h"

enum { TPB_DOOR_NAME = 48, TPB_DOOR_CARD = 8192 };

/* What TP_DOOR says: HOST:TPRUN:NAMESPACE:SIZE:NAME:COOKIE:BOOT. */
struct tpb_door {
    int host, launcher;            /* descriptors */
    uint64_t net_namespace;        /* tprun's */
    int size;                      /* of the job */
    char name[TPB_DOOR_NAME];      /* of tprun's own socket */
    uint8_t cookie[16];            /* shown in every message */
    uint8_t boot_id[16];           /* of the host, for who cannot read it */
};

bool tpb_door_parse(const char *text, struct tpb_door *door);
/* Is this process in another network namespace than tprun? */
bool tpb_door_apart(const struct tpb_door *door);
/* As tpb_door_parse() reads it; 192 bytes suffice. */
void tpb_door_format(const struct tpb_door *door, char *text, size_t size);

/* A socket with a random name; or -1 with errno. */
int tpb_door_open(char name[TPB_DOOR_NAME]);
/* Is the inherited descriptor one that nobody has taken yet?  Then it is this
 * process's, close-on-exec, and has that name. */
bool tpb_door_take(int fd, char name[TPB_DOOR_NAME]);
socklen_t tpb_door_address(const char *name, struct sockaddr_storage *address);

/* Between ranks and tprun.  A card follows PUT and ANSWER, words ABORT. */
enum tpb_door_type {
    TPB_DOOR_PUT = 1,              /* this rank's card */
    TPB_DOOR_GET,                  /* asks for that rank's */
    TPB_DOOR_ANSWER,
    TPB_DOOR_ABORT,                /* `rank` is the exit status */
    TPB_DOOR_LEAVE,                /* tp_finalize() */
    TPB_DOOR_LEFT,                 /* has `rank` left?  The answer: `flag` */
    TPB_DOOR_CALL                  /* `rank` shall call `sender`, who has given
                                    * up if `flag`; passed on to it */
};

struct tpb_door_message {
    char magic[4];                 /* "tpdo" */
    uint8_t type;
    uint8_t alone;                 /* the sender has no PMIx */
    uint8_t flag, zero;
    int32_t sender, rank;
    uint8_t cookie[16];
};
_Static_assert(sizeof(struct tpb_door_message) == 32, "layout");

extern const char tpb_door_magic[4];

/* The inode of this process's network namespace; 0 if /proc does not show. */
uint64_t tpb_net_namespace(void);

#endif
