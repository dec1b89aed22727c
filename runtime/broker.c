/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank's end of the door to tprun, and the bootstrap that lives by it. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
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

enum {
    BROKER_PATIENCE_MS = 5000,
    BROKER_AGAIN_MS = 1000,
    BROKER_LATE_NS = 1000000000,   /* as long as BROKER_AGAIN_MS */
    BROKER_STARVED_MS = 1,
    BROKER_LEFT_MS = 10000         /* tprun has stopped, or much to do */
};

struct tpr_broker {
    tp_context *context;
    struct tpf_watch watch;
    struct tpb_door door;
    uint8_t program[8];
    int rank;
    uint32_t number;               /* of the context */
    uint32_t turn;                 /* of the program, once ... */
    bool turn_known;
    bool alone;
    bool left;                     /* tprun knows */
    bool full;                     /* tprun's queue, when last tried */
    struct tpb_list wanted;        /* broker_want */
    uint64_t again;                /* when to ask again */
};

/* A question that is asked until it is answered: for a card (GET), or whether
 * it has left (LEFT). */
struct broker_want {
    struct tpb_list link;
    enum tpb_door_type type;
    int rank;
    bool asked;
};

static int broker_send_flag(struct tpr_broker *broker,
                            enum tpb_door_type type, int rank, bool flag,
                            const void *rest, size_t length, int flags)
{
    struct tpb_door_message message = {
        .type = (uint8_t)type, .alone = broker->alone, .flag = flag,
        .sender = broker->rank, .rank = rank, .number = broker->number };
    struct iovec parts[2] = { { &message, sizeof(message) },
                              { (void *)(uintptr_t)rest, length } };
    struct msghdr header = { .msg_iov = parts, .msg_iovlen = 2 };

    memcpy(message.magic, tpb_door_magic, sizeof(message.magic));
    memcpy(message.cookie, broker->door.cookie, sizeof(message.cookie));
    memcpy(message.program, broker->program, sizeof(message.program));
    return sendmsg(broker->watch.fd, &header, flags | MSG_NOSIGNAL) < 0
           ? errno : 0;
}

static int broker_send(struct tpr_broker *broker, enum tpb_door_type type,
                       int rank, const void *rest, size_t length, int flags)
{
    return broker_send_flag(broker, type, rank, false, rest, length, flags);
}

/* Is the time over?  Who finds that late was stopped, and tprun perhaps, too:
 * once it begins again. */
static bool broker_over(uint64_t *limit, uint64_t late, bool *again)
{
    uint64_t now = tpb_now();

    if (now < *limit)
        return false;
    if (*again || now - *limit < late)
        return true;
    *again = true;
    *limit = now + BROKER_PATIENCE_MS * UINT64_C(1000000);
    return false;
}

/* A datagram may find tprun's queue of ten full; it is emptied soon, and then
 * the kernel wakes one who waits for that.  Who came back to look, as hundreds
 * of ranks that start together did, would keep tprun from emptying it.  Only of
 * memory it does not tell when there is some again.  Who is stopped while he
 * waits so has not waited to the end. */
static int broker_insist(struct tpr_broker *broker, enum tpb_door_type type,
                         int rank, const void *rest, size_t length)
{
    uint64_t limit = tpb_now() + BROKER_PATIENCE_MS * UINT64_C(1000000);
    bool starved, again = false;
    int code;

    do {
        code = broker_send(broker, type, rank, rest, length, 0);
        starved = code == ENOBUFS || code == ENOMEM;
        if (starved)
            poll(NULL, 0, BROKER_STARVED_MS);
    } while ((starved || code == EINTR)
             && !broker_over(&limit, code == EINTR ? 0 : BROKER_LATE_NS,
                             &again));
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

static void broker_want_free(struct broker_want *want)
{
    tpb_list_unlink(&want->link);
    tpb_free(want);
}

static struct broker_want *broker_want_find(struct tpr_broker *broker,
                                            enum tpb_door_type type, int rank)
{
    TPB_LIST_EACH(node, &broker->wanted) {
        struct broker_want *want = TPB_CONTAINER(node, struct broker_want,
                                                 link);

        if (want->rank == rank && want->type == type)
            return want;
    }
    return NULL;
}

/* It is answered; false: by now it need not be. */
static bool broker_answered(struct tpr_broker *broker, enum tpb_door_type type,
                            int rank)
{
    struct broker_want *want = broker_want_find(broker, type, rank);

    if (want != NULL)
        broker_want_free(want);
    return want != NULL;
}

static void broker_card(struct tpr_broker *broker, int rank,
                        const void *card, size_t length)
{
    if (broker_answered(broker, TPB_DOOR_GET, rank))
        tpr_card_arrived(broker->context, rank, TP_OK, card, length, "");
}

static void broker_left(struct tpr_broker *broker, int rank,
                        enum tpr_left left)
{
    if (broker_answered(broker, TPB_DOOR_LEFT, rank))
        tpr_rank_left(broker->context, rank, left);
}

static void broker_died(const struct tpr_broker *broker, int rank,
                        const unsigned char *words, size_t length)
{
    char text[TPB_DOOR_WORDS];

    snprintf(text, sizeof(text), "%.*s", (int)(length < sizeof(text)
                                               ? length : sizeof(text)),
             (const char *)words);
    tpr_rank_died(broker->context, rank, text);
}

/* There is a card, but not for who has no PMIx. */
static void broker_denied(struct tpr_broker *broker, int rank,
                          const unsigned char *words, size_t length)
{
    char text[TPB_DOOR_WORDS + 48];

    if (!broker_answered(broker, TPB_DOOR_GET, rank))
        return;
    snprintf(text, sizeof(text), "it has PMIx only (%.*s); TP_BOOTSTRAP=pmix"
             " for all", (int)(length < TPB_DOOR_WORDS ? length
                                                       : TPB_DOOR_WORDS),
             (const char *)words);
    tpr_card_arrived(broker->context, rank, TP_ERR_UNREACHABLE, NULL, 0, text);
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
        || memcmp(message.program, broker->program,
                  sizeof(message.program)) != 0
        || message.number != broker->number)
        return;
    if (message.type == TPB_DOOR_TURN) {
        broker->turn = (uint32_t)message.rank;
        broker->turn_known = true;
    }
    if (message.rank < 0 || message.rank >= broker->door.size)
        return;
    if (message.type == TPB_DOOR_ANSWER)
        broker_card(broker, message.rank, bytes + sizeof(message),
                    length - sizeof(message));
    else if (message.type == TPB_DOOR_LEFT)
        broker_left(broker, message.rank,
                    message.flag > TPR_LEFT_LOSING ? TPR_LEFT_WELL
                                                   : message.flag);
    else if (message.type == TPB_DOOR_CALL)
        tpr_peer_asks(broker->context, message.sender, message.flag != 0);
    else if (message.type == TPB_DOOR_DENIED)
        broker_denied(broker, message.rank, bytes + sizeof(message),
                      length - sizeof(message));
    else if (message.type == TPB_DOOR_DIED)
        broker_died(broker, message.rank, bytes + sizeof(message),
                    length - sizeof(message));
}

/* As many questions as tprun's queue takes; the kernel tells when there is room
 * again. */
static void broker_ask(struct tpr_broker *broker)
{
    bool full = false;

    TPB_LIST_EACH(node, &broker->wanted) {
        struct broker_want *want = TPB_CONTAINER(node, struct broker_want,
                                                 link);
        int code;

        if (full || want->asked)
            continue;
        code = broker_send(broker, want->type, want->rank, NULL, 0,
                           MSG_DONTWAIT);
        full = code == EAGAIN;
        want->asked = code == 0;
        if (code != 0 && !full)
            tpb_debug("tprun cannot be asked: %s", strerror(code));
    }
    if (full != broker->full)
        tpf_watch_change(&broker->context->env, &broker->watch,
                         full ? EPOLLIN | EPOLLOUT : EPOLLIN);
    broker->full = full;
}

static void broker_receive(struct tpr_broker *broker)
{
    unsigned char bytes[sizeof(struct tpb_door_message) + TPB_DOOR_CARD];
    ssize_t got;

    while ((got = recv(broker->watch.fd, bytes, sizeof(bytes),
                       MSG_DONTWAIT)) >= 0)
        if ((size_t)got >= sizeof(struct tpb_door_message))
            broker_message(broker, bytes, (size_t)got);
}

static void broker_ready(struct tpf_watch *watch, uint32_t events)
{
    struct tpr_broker *broker = TPB_CONTAINER(watch, struct tpr_broker,
                                              watch);

    if ((events & EPOLLOUT) != 0)
        broker_ask(broker);
    broker_receive(broker);
}

static tp_status broker_closed(int code, struct tpb_error *error)
{
    bool want = code == EMFILE || code == ENFILE || code == ENOMEM
                || code == ENOBUFS || code == ENOSPC;

    if (code == ECONNREFUSED)
        return tpb_fail(error, TP_ERR_UNREACHABLE, "tprun's door is closed, or"
                        " does not lead out of here");
    tpb_fail_errno(error, code, "tprun's door does not open");
    return want ? TP_ERR_SYSTEM : TP_ERR_UNREACHABLE;
}

tp_status tpr_broker_open(const struct tpb_settings *settings,
                          tp_context *context, int rank, uint32_t number,
                          bool alone, struct tpr_broker **result,
                          struct tpb_error *error)
{
    const char *job = getenv("PMIX_NAMESPACE");
    struct tpr_broker *broker;
    struct tpb_door door;
    int code;

    if (job == NULL
        || !tpb_door_of_job(settings->text[TPB_SET_DOOR], job, &door)
        || rank < 0 || rank >= door.size)
        return tpb_fail(error, TP_ERR_NOT_FOUND, "tprun gave this process no"
                        " door");
    broker = tpb_zalloc(sizeof(*broker));
    if (broker == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    tpb_list_init(&broker->wanted);
    broker->context = context;
    broker->door = door;
    tpb_door_program(broker->program);
    broker->rank = rank;
    broker->number = number;
    broker->alone = alone;
    broker->watch = (struct tpf_watch){ .fd = tpb_door_enter(&door),
                                        .ready = broker_ready };
    code = broker->watch.fd >= 0 && broker_blocks(broker->watch.fd)
           ? tpf_watch_add(&context->env, &broker->watch, EPOLLIN) : errno;
    if (code == 0) {
        *result = broker;
        return TP_OK;
    }
    tpb_close(&broker->watch.fd);
    tpb_free(broker);
    return broker_closed(code, error);
}

tp_status tpr_broker_publish(struct tpr_broker *broker, const void *blob,
                             size_t length, struct tpb_error *error)
{
    int code = broker_insist(broker, TPB_DOOR_PUT, broker->rank, blob,
                             length);

    return code == 0 ? TP_OK : tpb_fail_errno(error, code, "tprun does not "
                                              "accept this rank's card");
}

tp_status tpr_broker_turn(struct tpr_broker *broker, uint32_t *turn,
                          struct tpb_error *error)
{
    uint64_t limit = tpb_now() + BROKER_PATIENCE_MS * UINT64_C(1000000);
    struct pollfd answer = { broker->watch.fd, POLLIN, 0 };
    int code = broker_insist(broker, TPB_DOOR_TURN, broker->rank, NULL, 0);
    bool again = false;

    while (code == 0 && !broker->turn_known
           && !broker_over(&limit, BROKER_LATE_NS, &again)) {
        poll(&answer, 1, BROKER_AGAIN_MS);
        broker_receive(broker);
    }
    if (!broker->turn_known)
        return tpb_fail_errno(error, code != 0 ? code : ETIMEDOUT, "tprun does"
                              " not say which of its rank's programs this is");
    *turn = broker->turn;
    return TP_OK;
}

/* NULL without memory. */
static struct broker_want *broker_wants(struct tpr_broker *broker,
                                        enum tpb_door_type type, int rank)
{
    struct broker_want *want = tpb_zalloc(sizeof(*want));

    if (want == NULL)
        return NULL;
    want->type = type;
    want->rank = rank;
    if (tpb_list_empty(&broker->wanted))
        broker->again = tpb_now() + BROKER_AGAIN_MS * UINT64_C(1000000);
    tpb_list_append(&broker->wanted, &want->link);
    broker_ask(broker);
    return want;
}

void tpr_broker_fetch(struct tpr_broker *broker, int rank)
{
    /* Without memory the contact's deadline will tell. */
    (void)broker_wants(broker, TPB_DOOR_GET, rank);
}

/* tprun answers as soon as there is a card, unless it had no memory. */
void tpr_broker_poll(struct tpr_broker *broker)
{
    uint64_t now = tpb_now();

    if (tpb_list_empty(&broker->wanted) || now < broker->again)
        return;
    broker->again = now + BROKER_AGAIN_MS * UINT64_C(1000000);
    TPB_LIST_EACH(node, &broker->wanted)
        TPB_CONTAINER(node, struct broker_want, link)->asked = false;
    broker_ask(broker);
}

/* Of who has PMIx tprun hears it from there, too, a little later. */
void tpr_broker_leave(struct tpr_broker *broker, bool losing)
{
    int code = 0;

    if (broker->left)
        return;
    if (broker->alone)
        code = broker_insist(broker, TPB_DOOR_LEAVE, losing, NULL, 0);
    else
        broker_send(broker, TPB_DOOR_LEAVE, losing, NULL, 0, MSG_DONTWAIT);
    if (code != 0 && code != ECONNREFUSED && code != ENOTCONN)
        tpb_warn("tprun does not hear that this rank leaves, and will miss"
                 " tp_finalize(): %s", strerror(code));
    broker->left = true;
}

/* Once there is room, and again until it is answered: who has left is not to
 * seem dead because many ask, or because tprun is late. */
unsigned tpr_broker_left(struct tpr_broker *broker, int rank)
{
    struct broker_want *want = broker_want_find(broker, TPB_DOOR_LEFT, rank);

    if (want == NULL)
        want = broker_wants(broker, TPB_DOOR_LEFT, rank);
    if (want == NULL)
        return 0;
    if (want->asked || broker->full)
        return BROKER_LEFT_MS;
    broker_want_free(want);        /* tprun is gone */
    return 0;
}

bool tpr_broker_call(struct tpr_broker *broker, int rank, bool gave_up)
{
    return broker_send_flag(broker, TPB_DOOR_CALL, rank, gave_up, NULL, 0,
                            MSG_DONTWAIT) == 0;
}

void tpr_broker_abort(struct tpr_broker *broker, int status,
                      const char *reason)
{
    /* tprun reads no more than that, and a datagram has a limit, too. */
    broker_insist(broker, TPB_DOOR_ABORT, status, reason,
                  strnlen(reason, TPB_DOOR_CARD));
}

void tpr_broker_close(struct tpr_broker *broker)
{
    if (broker == NULL)
        return;
    tpr_broker_leave(broker, false);
    tpf_watch_remove(&broker->context->env, &broker->watch);
    tpb_close(&broker->watch.fd);
    while (!tpb_list_empty(&broker->wanted))
        broker_want_free(TPB_CONTAINER(broker->wanted.next,
                                       struct broker_want, link));
    tpb_free(broker);
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

static void door_leave(struct tpr_bootstrap *base, bool losing)
{
    tpr_broker_leave(door_broker(base), losing);
}

static unsigned door_left(struct tpr_bootstrap *base, int rank)
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
                             tp_context *context, uint32_t number,
                             struct tpr_bootstrap **result,
                             struct tpb_error *error)
{
    const char *rank = getenv("PMIX_RANK"), *job = getenv("PMIX_NAMESPACE");
    struct door_bootstrap *self;
    struct tpb_door door;
    tp_status status;

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
    status = tpr_broker_open(settings, context, self->base.rank, number, true,
                             &self->broker, error);
    if (status != TP_OK) {
        tpb_free(self);
        return status;
    }
    *result = &self->base;
    return TP_OK;
}
