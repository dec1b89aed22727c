/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank's end of the door to tprun, and the bootstrap that lives by it. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"
#include "runtime/broker.h"
#include "runtime/core.h"

TPB_LOG_COMPONENT("broker");

enum { BROKER_PATIENCE_MS = 5000, BROKER_AGAIN_MS = 50 };

struct tpr_broker {
    tp_context *context;
    struct tpf_watch watch;
    struct tpb_door door;
    int rank;
    bool alone;
    bool left;                     /* tprun knows */
    bool *wanted;                  /* by rank: a card is asked for */
    int wanted_count;
    uint64_t again;                /* when to ask again */
    struct sockaddr_storage launcher;
    socklen_t launcher_length;
};

static int broker_send_flag(struct tpr_broker *broker,
                            enum tpb_door_type type, int rank, bool flag,
                            const void *rest, size_t length, int flags)
{
    struct tpb_door_message message = {
        .type = (uint8_t)type, .alone = broker->alone, .flag = flag,
        .sender = broker->rank, .rank = rank };
    struct iovec parts[2] = { { &message, sizeof(message) },
                              { (void *)(uintptr_t)rest, length } };
    struct msghdr header = { .msg_name = &broker->launcher,
                             .msg_namelen = broker->launcher_length,
                             .msg_iov = parts, .msg_iovlen = 2 };

    memcpy(message.magic, tpb_door_magic, sizeof(message.magic));
    memcpy(message.cookie, broker->door.cookie, sizeof(message.cookie));
    return sendmsg(broker->watch.fd, &header, flags | MSG_NOSIGNAL) < 0
           ? errno : 0;
}

static int broker_send(struct tpr_broker *broker, enum tpb_door_type type,
                       int rank, const void *rest, size_t length, int flags)
{
    return broker_send_flag(broker, type, rank, false, rest, length, flags);
}

/* A datagram may find tprun's queue of ten full; it is emptied soon, and then
 * the kernel wakes one who waits for that.  Who came back to look, as hundreds
 * of ranks that start together did, would keep tprun from emptying it. */
static int broker_insist(struct tpr_broker *broker, enum tpb_door_type type,
                         int rank, const void *rest, size_t length)
{
    uint64_t limit = tpb_now() + BROKER_PATIENCE_MS * UINT64_C(1000000);
    int code;

    do
        code = broker_send(broker, type, rank, rest, length, 0);
    while (code == EINTR && tpb_now() < limit);
    return code;
}

/* Sends wait, for some seconds, unless they say otherwise. */
static bool broker_blocks(int fd)
{
    struct timeval patience = { .tv_sec = BROKER_PATIENCE_MS / 1000 };

    return fcntl(fd, F_SETFL, 0) == 0
           && setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience,
                         sizeof(patience)) == 0;
}

static void broker_card(struct tpr_broker *broker, int rank,
                        const void *card, size_t length)
{
    if (!broker->wanted[rank])
        return;
    broker->wanted[rank] = false;
    broker->wanted_count--;
    tpr_card_arrived(broker->context, rank, TP_OK, card, length, "");
}

/* `bytes` is more than a message. */
static void broker_message(struct tpr_broker *broker,
                           const unsigned char *bytes, size_t length)
{
    struct tpb_door_message message;

    memcpy(&message, bytes, sizeof(message));
    if (memcmp(message.magic, tpb_door_magic, sizeof(message.magic)) != 0
        || !tpb_equal_secret(message.cookie, broker->door.cookie,
                             sizeof(message.cookie))
        || message.rank < 0 || message.rank >= broker->door.size)
        return;
    if (message.type == TPB_DOOR_ANSWER)
        broker_card(broker, message.rank, bytes + sizeof(message),
                    length - sizeof(message));
    else if (message.type == TPB_DOOR_LEFT)
        tpr_rank_left(broker->context, message.rank, message.flag != 0);
    else if (message.type == TPB_DOOR_CALL)
        tpr_peer_asks(broker->context, message.sender, message.flag != 0);
}

static void broker_ready(struct tpf_watch *watch, uint32_t events)
{
    struct tpr_broker *broker = TPB_CONTAINER(watch, struct tpr_broker,
                                              watch);
    unsigned char bytes[sizeof(struct tpb_door_message) + TPB_DOOR_CARD];
    ssize_t got;

    (void)events;
    while ((got = recv(watch->fd, bytes, sizeof(bytes),
                       MSG_DONTWAIT)) >= 0)
        if ((size_t)got >= sizeof(struct tpb_door_message))
            broker_message(broker, bytes, (size_t)got);
}

static void broker_free(struct tpr_broker *broker)
{
    tpb_free(broker->wanted);
    tpb_free(broker);
}

struct tpr_broker *tpr_broker_open(const struct tpb_settings *settings,
                                   tp_context *context, int rank, bool alone)
{
    struct tpr_broker *broker;
    struct tpb_door door;
    char name[TPB_DOOR_NAME];

    if (!tpb_door_parse(settings->text[TPB_SET_DOOR], &door)
        || !tpb_door_take(door.launcher, name))
        return NULL;
    broker = tpb_zalloc(sizeof(*broker));
    if (broker == NULL || rank < 0 || rank >= door.size
        || (broker->wanted = tpb_array((size_t)door.size, sizeof(bool)))
           == NULL) {
        if (broker != NULL)
            broker_free(broker);
        tpb_close(&door.launcher);
        return NULL;
    }
    broker->context = context;
    broker->door = door;
    broker->rank = rank;
    broker->alone = alone;
    broker->launcher_length = tpb_door_address(door.name, &broker->launcher);
    broker->watch = (struct tpf_watch){ .fd = door.launcher,
                                        .ready = broker_ready };
    if (broker_blocks(door.launcher)
        && tpf_watch_add(&context->env, &broker->watch, EPOLLIN) == 0)
        return broker;
    tpb_close(&broker->watch.fd);
    broker_free(broker);
    return NULL;
}

tp_status tpr_broker_publish(struct tpr_broker *broker, const void *blob,
                             size_t length, struct tpb_error *error)
{
    int code = broker_insist(broker, TPB_DOOR_PUT, broker->rank, blob,
                             length);

    return code == 0 ? TP_OK : tpb_fail_errno(error, code, "tprun does not"
                                              " take this rank's card");
}

static void broker_ask(struct tpr_broker *broker, int rank)
{
    int code = broker_send(broker, TPB_DOOR_GET, rank, NULL, 0,
                           MSG_DONTWAIT);

    if (code != 0 && code != EAGAIN)
        tpb_debug("tprun cannot be asked for a card: %s", strerror(code));
    broker->again = tpb_now() + BROKER_AGAIN_MS * UINT64_C(1000000);
}

void tpr_broker_fetch(struct tpr_broker *broker, int rank)
{
    if (rank >= broker->door.size || broker->wanted[rank])
        return;
    broker->wanted[rank] = true;
    broker->wanted_count++;
    broker_ask(broker, rank);
}

void tpr_broker_poll(struct tpr_broker *broker)
{
    if (broker->wanted_count == 0 || tpb_now() < broker->again)
        return;
    for (int rank = 0; rank < broker->door.size; rank++)
        if (broker->wanted[rank])
            broker_ask(broker, rank);
}

/* Of who has PMIx tprun hears it from there, too, a little later. */
void tpr_broker_leave(struct tpr_broker *broker)
{
    if (broker->left)
        return;
    if (broker->alone)
        broker_insist(broker, TPB_DOOR_LEAVE, 0, NULL, 0);
    else
        broker_send(broker, TPB_DOOR_LEAVE, 0, NULL, 0, MSG_DONTWAIT);
    broker->left = true;
}

bool tpr_broker_left(struct tpr_broker *broker, int rank)
{
    return broker_send(broker, TPB_DOOR_LEFT, rank, NULL, 0, MSG_DONTWAIT)
           == 0;
}

bool tpr_broker_call(struct tpr_broker *broker, int rank, bool gave_up)
{
    return broker_send_flag(broker, TPB_DOOR_CALL, rank, gave_up, NULL, 0,
                            MSG_DONTWAIT) == 0;
}

void tpr_broker_abort(struct tpr_broker *broker, int status,
                      const char *reason)
{
    broker_insist(broker, TPB_DOOR_ABORT, status, reason, strlen(reason));
}

void tpr_broker_close(struct tpr_broker *broker)
{
    if (broker == NULL)
        return;
    tpr_broker_leave(broker);
    tpf_watch_remove(&broker->context->env, &broker->watch);
    tpb_close(&broker->watch.fd);
    broker_free(broker);
}

/* ---- the bootstrap ------------------------------------------------------- */

struct door_bootstrap {
    struct tpr_bootstrap base;
    struct tpr_broker *broker;
};

static struct tpr_broker *door_broker(struct tpr_bootstrap *base)
{
    return ((struct door_bootstrap *)base)->broker;
}

static tp_status door_publish(struct tpr_bootstrap *base, const void *blob,
                              size_t length, struct tpb_error *error)
{
    return tpr_broker_publish(door_broker(base), blob, length, error);
}

static void door_fetch(struct tpr_bootstrap *base, int rank)
{
    tpr_broker_fetch(door_broker(base), rank);
}

static uint64_t door_poll(struct tpr_bootstrap *base)
{
    tpr_broker_poll(door_broker(base));
    return 0;
}

static bool door_ask(struct tpr_bootstrap *base, int rank, bool gave_up)
{
    return tpr_broker_call(door_broker(base), rank, gave_up);
}

static void door_leave(struct tpr_bootstrap *base)
{
    tpr_broker_leave(door_broker(base));
}

static bool door_left(struct tpr_bootstrap *base, int rank)
{
    return tpr_broker_left(door_broker(base), rank);
}

static void door_abort(struct tpr_bootstrap *base, int code,
                       const char *reason)
{
    tpr_broker_abort(door_broker(base), code, reason);
    sleep(10);                     /* tprun kills us */
    _exit(code);
}

static void door_close(struct tpr_bootstrap *base)
{
    tpr_broker_close(door_broker(base));
    tpb_free(base);
}

static const struct tpr_bootstrap_ops door_ops = {
    .name = "door",
    .publish = door_publish,
    .fetch = door_fetch,
    .poll = door_poll,
    .ask = door_ask,
    .leave = door_leave,
    .left = door_left,
    .abort = door_abort,
    .close = door_close,
};

tp_status tpr_bootstrap_door(const struct tpb_settings *settings,
                             tp_context *context,
                             struct tpr_bootstrap **result,
                             struct tpb_error *error)
{
    const char *rank = getenv("PMIX_RANK"), *job = getenv("PMIX_NAMESPACE");
    struct door_bootstrap *self;
    struct tpb_door door;

    if (rank == NULL || job == NULL
        || !tpb_door_parse(settings->text[TPB_SET_DOOR], &door))
        return tpb_fail(error, TP_ERR_NOT_FOUND, "tprun gave this process no"
                        " door");
    self = tpb_zalloc(sizeof(*self));
    if (self == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    self->base.ops = &door_ops;
    self->base.rank = self->base.local_rank = atoi(rank);
    self->base.size = self->base.local_size = door.size;
    snprintf(self->base.job, sizeof(self->base.job), "%s",
             strlen(job) < sizeof(self->base.job)
             ? job : job + strlen(job) - sizeof(self->base.job) + 1);
    self->broker = tpr_broker_open(settings, context, self->base.rank, true);
    if (self->broker == NULL) {
        tpb_free(self);
        return tpb_fail(error, TP_ERR_NOT_FOUND, "tprun's door is closed, or"
                        " taken by another context");
    }
    *result = &self->base;
    return TP_OK;
}
