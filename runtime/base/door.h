/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Doors: datagram sockets by which ranks talk to tprun, and find each other.
 * An abstract Unix name is known in one network namespace, that of the socket's
 * maker.  So tprun makes its ranks' doors, and those in containers with
 * networks of their own use them as well.  Nothing of it has a name in a file
 * system.
 *
 * Each rank inherits two: one for backends inside a host, which receives the
 * ends of connections (shm's own messages), and one to talk to tprun.  A rank
 * that lost the latter, or has another context, makes one itself, where it can.
 *
 * A rank may run several programs, one after the other.  tprun tells them apart
 * by a word that each makes up, and counts them: the n-th of one rank meets the
 * n-th of another, whichever of them are there at the same time.
 */
#ifndef TPB_DOOR_H
#define TPB_DOOR_H

#include <sys/socket.h>

#include "runtime/base/base.h"

enum {
    TPB_DOOR_NAME = 48, TPB_DOOR_CARD = 8192,
    TPB_DOOR_TEXT = 192,           /* TP_DOOR */
    TPB_DOOR_WORDS = 80            /* of how a rank ended */
};

/* What TP_DOOR says: HOST:TPRUN:NAMESPACE:SIZE:NAME:COOKIE:BOOT:2.  The last
 * field is the version of the messages: who knows another uses PMIx. */
struct tpb_door {
    int host, launcher;            /* descriptors */
    uint64_t net_namespace;        /* tprun's */
    int size;                      /* of the job */
    char name[TPB_DOOR_NAME];      /* of tprun's own socket */
    uint8_t cookie[16];            /* shown in every message */
    uint8_t boot_id[16];           /* of the host, for who cannot read it */
};

/* By this tprun tells this process from others of its rank.  A child that was
 * forked is another one. */
void tpb_door_program(uint8_t program[8]);

bool tpb_door_parse(const char *text, struct tpb_door *door);
/* The same, of tprun's socket for that job: those of another tprun are none. */
bool tpb_door_of_job(const char *text, const char *job, struct tpb_door *door);
/* Is this process in another network namespace than tprun? */
bool tpb_door_apart(const struct tpb_door *door);
/* As tpb_door_parse() reads it; TPB_DOOR_TEXT bytes suffice. */
void tpb_door_format(const struct tpb_door *door, char *text, size_t size);

/* A socket with a random name; or -1 with errno. */
int tpb_door_open(char name[TPB_DOOR_NAME]);
/* tprun's, named after its job; it hears whose process speaks. */
int tpb_door_open_for(const char *job, char name[TPB_DOOR_NAME]);
/* What TP_DOOR says, for a process of that job that lost it: asks tprun, which
 * tells processes of its own user.  Blocks for as long as tprun is busy, at
 * most some seconds; false: there is none, or it does not tell. */
bool tpb_door_ask(const char *job, char *text, size_t size);
/* As recvfrom(2) without waiting; `trusted`: from a process of our user. */
ssize_t tpb_door_receive(int fd, void *data, size_t length,
                         struct sockaddr_storage *from, socklen_t *from_length,
                         bool *trusted);
/* Is the inherited descriptor one that nobody has taken yet?  Then it is this
 * process's, close-on-exec, and has that name. */
bool tpb_door_take(int fd, char name[TPB_DOOR_NAME]);
/* This process's end of the way to tprun, connected: the inherited one, or if
 * that is taken or lost a new one; -1 with errno. */
int tpb_door_enter(const struct tpb_door *door);
socklen_t tpb_door_address(const char *name, struct sockaddr_storage *address);

/* Between ranks and tprun.  A card follows PUT and ANSWER, words ABORT and
 * DIED.  A card that is not there yet is sent as soon as it is. */
enum tpb_door_type {
    TPB_DOOR_PUT = 1,              /* this rank's card */
    TPB_DOOR_GET,                  /* asks for that rank's */
    TPB_DOOR_ANSWER,
    TPB_DOOR_ABORT,                /* `rank` is the exit status */
    TPB_DOOR_LEAVE,                /* tp_finalize(); `rank` is 1 if not all
                                    * that was written was taken in time */
    TPB_DOOR_LEFT,                 /* has `rank` left?  The answer: `flag`, 2
                                    * if it was so */
    TPB_DOOR_CALL,                 /* `rank` shall call `sender`, who has given
                                    * up if `flag`; passed on to it */
    TPB_DOOR_DIED,                 /* from tprun: how `rank` ended, in words */
    TPB_DOOR_TURN,                 /* which of its rank's programs is the
                                    * sender?  The answer: `rank` */
    TPB_DOOR_WHERE,                /* what does TP_DOOR say?  Without a cookie;
                                    * the text follows the answer */
    TPB_DOOR_DENIED                /* from tprun: `rank` has PMIx only, and its
                                    * card does not come here; why, in words */
};

/* What a rank whose door is denied publishes by PMIx: why, in words. */
#define TPB_DOOR_DENIED_KEY "tp.door.denied"

struct tpb_door_message {
    char magic[4];                 /* "tpdr" */
    uint8_t type;
    uint8_t alone;                 /* the sender does not use PMIx */
    uint8_t flag, zero;
    int32_t sender, rank;
    uint8_t cookie[16];
    uint32_t number;               /* of the context: the k-th of one program
                                    * meets the k-th of another */
    uint8_t program[8];            /* the process's own word, not zeros */
};
_Static_assert(sizeof(struct tpb_door_message) == 44, "layout");

extern const char tpb_door_magic[4];

/* The inode of this process's network namespace; 0 if /proc does not show. */
uint64_t tpb_net_namespace(void);

#endif
