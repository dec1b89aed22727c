/* SPDX-License-Identifier: BSD-3-Clause */
/* tprun's end of the doors: keeps cards, and hands them out. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher/door.h"
#include "runtime/base/alloc.h"
#include "runtime/base/door.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"
#include "topology/card.h"

TPB_LOG_COMPONENT("door");

enum { DOOR_TURN = 64 };           /* messages read at a time */

/* What is known of a rank. */
struct door_rank {
    void *card;
    size_t length;
    bool alone;                    /* it has no PMIx */
    bool left;                     /* by tp_finalize() */
    struct sockaddr_storage from;  /* its socket, once it has spoken */
    socklen_t from_length;
};

static struct door {
    struct tpl_watch watch;
    struct tpb_door door;
    struct door_rank *ranks;
    tpl_pmix_fn *fn;
} door = { .watch = { .fd = -1 } };

static int door_socket(void)
{
    return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

void tpl_door_open(int ranks)
{
    static struct tpt_card card;
    char text[192];

    unsetenv("TP_DOOR");
    door.ranks = tpb_array((size_t)ranks, sizeof(*door.ranks));
    door.watch.fd = tpb_door_open(door.door.name);
    door.door.size = ranks;
    door.door.net_namespace = tpb_net_namespace();
    tpb_random(door.door.cookie, sizeof(door.door.cookie));
    if (tpt_card_identify(&card, NULL) == TP_OK)
        memcpy(door.door.boot_id, card.host.boot_id, 16);
    /* These two hold the numbers that each rank's pair takes in its turn. */
    door.door.host = door_socket();
    door.door.launcher = door_socket();
    if (door.ranks == NULL || door.watch.fd < 0 || door.door.host < 0
        || door.door.launcher < 0) {
        tpb_info("no doors: %s", strerror(errno));
        tpl_door_close(NULL);
        return;
    }
    tpb_door_format(&door.door, text, sizeof(text));
    setenv("TP_DOOR", text, 1);
}

static bool door_renew(int place)
{
    int fd = door_socket();
    bool done = fd >= 0 && dup3(fd, place, O_CLOEXEC) == place;

    tpb_close(&fd);
    return done;
}

void tpl_door_next(int doors[2])
{
    doors[0] = doors[1] = -1;
    if (door.watch.fd < 0 || !door_renew(door.door.host)
        || !door_renew(door.door.launcher))
        return;
    doors[0] = door.door.host;
    doors[1] = door.door.launcher;
}

/* ---- what ranks say ------------------------------------------------------ */

static void door_event(enum tpl_pmix_what what, int rank, int status,
                       const char *reason)
{
    struct tpl_pmix_event event = { what, rank, status, reason };

    door.fn(&event, NULL);
}

static void door_put(const struct tpb_door_message *message,
                     const void *card, size_t length)
{
    struct door_rank *rank = &door.ranks[message->sender];
    void *copy = tpb_zalloc(length + 1);

    if (copy == NULL)
        return;                    /* it asks again, or the others do */
    memcpy(copy, card, length);
    tpb_free(rank->card);
    rank->card = copy;
    rank->length = length;
    rank->alone = message->alone != 0;
    if (rank->alone)
        door_event(TPL_PMIX_CONNECTED, message->sender, 0, "");
}

/* As far as there is room in the rank's socket. */
static void door_send(const struct tpb_door_message *message,
                      const void *rest, size_t length,
                      const struct sockaddr_storage *to, socklen_t to_length)
{
    struct tpb_door_message copy = *message;
    struct iovec parts[2] = { { &copy, sizeof(copy) },
                              { (void *)(uintptr_t)rest, length } };
    struct msghdr header = { .msg_name = (void *)(uintptr_t)to,
                             .msg_namelen = to_length, .msg_iov = parts,
                             .msg_iovlen = 2 };

    memcpy(copy.magic, tpb_door_magic, sizeof(copy.magic));
    memcpy(copy.cookie, door.door.cookie, sizeof(copy.cookie));
    sendmsg(door.watch.fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Those who have PMIx get what PMIx has from there. */
static void door_get(const struct tpb_door_message *message,
                     const struct sockaddr_storage *from, socklen_t length)
{
    const struct door_rank *rank = &door.ranks[message->rank];
    struct tpb_door_message answer = { .type = TPB_DOOR_ANSWER,
                                       .sender = -1, .rank = message->rank };

    if (rank->card == NULL || (!rank->alone && !message->alone))
        return;                    /* not yet: it asks again */
    door_send(&answer, rank->card, rank->length, from, length);
}

void tpl_door_left(int rank)
{
    if (door.ranks != NULL)
        door.ranks[rank].left = true;
}

static void door_left(const struct tpb_door_message *message,
                      const struct sockaddr_storage *from, socklen_t length)
{
    struct tpb_door_message answer = { .type = TPB_DOOR_LEFT, .sender = -1,
                                       .rank = message->rank };

    tpl_pmix_dispatch();           /* what is said there was said first */
    answer.flag = door.ranks[message->rank].left;
    door_send(&answer, NULL, 0, from, length);
}

static void door_call(const struct tpb_door_message *message)
{
    const struct door_rank *rank = &door.ranks[message->rank];

    if (rank->from_length > 0)
        door_send(message, NULL, 0, &rank->from, rank->from_length);
}

static void door_message(const struct tpb_door_message *message,
                         const char *rest, size_t length,
                         const struct sockaddr_storage *from,
                         socklen_t from_length)
{
    struct door_rank *sender = &door.ranks[message->sender];
    bool whom = message->rank >= 0 && message->rank < door.door.size;

    sender->from = *from;
    sender->from_length = from_length;
    switch (message->type) {
    case TPB_DOOR_PUT:
        door_put(message, rest, length);
        break;
    case TPB_DOOR_GET:
        if (whom)
            door_get(message, from, from_length);
        break;
    case TPB_DOOR_LEFT:
        if (whom)
            door_left(message, from, from_length);
        break;
    case TPB_DOOR_CALL:
        if (whom)
            door_call(message);
        break;
    case TPB_DOOR_ABORT:
        door_event(TPL_PMIX_ABORT, message->sender, message->rank, rest);
        break;
    case TPB_DOOR_LEAVE:
        sender->left = true;
        if (message->alone != 0)
            door_event(TPL_PMIX_FINALIZED, message->sender, 0, "");
        break;
    default:
        break;
    }
}

/* Whether there was a message. */
static bool door_receive(struct tpl_watch *watch)
{
    static char bytes[sizeof(struct tpb_door_message) + TPB_DOOR_CARD + 1];
    struct sockaddr_storage from;
    socklen_t from_length = sizeof(from);
    struct tpb_door_message message;
    ssize_t got = recvfrom(watch->fd, bytes, sizeof(bytes) - 1, MSG_DONTWAIT,
                           (struct sockaddr *)&from, &from_length);

    if (got < 0)
        return false;
    if ((size_t)got < sizeof(message))
        return true;
    memcpy(&message, bytes, sizeof(message));
    bytes[got] = '\0';
    if (memcmp(message.magic, tpb_door_magic, sizeof(message.magic)) == 0
        && tpb_equal_secret(message.cookie, door.door.cookie,
                            sizeof(message.cookie))
        && message.sender >= 0 && message.sender < door.door.size)
        door_message(&message, bytes + sizeof(message),
                     (size_t)got - sizeof(message), &from, from_length);
    return true;
}

static void door_ready(struct tpl_watch *watch, uint32_t events)
{
    (void)events;
    for (int i = 0; i < DOOR_TURN && door_receive(watch); i++)
        ;
}

/* Bounded, should somebody send all the time. */
void tpl_door_dispatch(void)
{
    for (int i = 0; door.watch.fd >= 0 && i < door.door.size + DOOR_TURN
                    && door_receive(&door.watch); i++)
        ;
}

void tpl_door_watch(struct tpl_loop *loop, tpl_pmix_fn *fn)
{
    door.fn = fn;
    door.watch.ready = door_ready;
    if (door.watch.fd >= 0)
        tpl_watch_set(loop, &door.watch, EPOLLIN);
}

void tpl_door_close(struct tpl_loop *loop)
{
    if (loop != NULL && door.watch.fd >= 0)
        tpl_watch_close(loop, &door.watch);
    tpb_close(&door.watch.fd);
    tpb_close(&door.door.host);
    tpb_close(&door.door.launcher);
    for (int i = 0; door.ranks != NULL && i < door.door.size; i++)
        tpb_free(door.ranks[i].card);
    tpb_free(door.ranks);
    door.ranks = NULL;
}
