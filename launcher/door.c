/* SPDX-License-Identifier: BSD-3-Clause */
/* tprun's end of the doors: keeps cards, and hands them out. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher/door.h"
#include "runtime/base/alloc.h"
#include "runtime/base/door.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"
#include "topology/card.h"

TPB_LOG_COMPONENT("door");

enum {
    DOOR_TURN = 64,                /* messages read at a time */
    DOOR_SEATS = 64,               /* of a rank: then those that are over go */
    DOOR_LOOKS = 8,                /* ... of the oldest, for each new one */
    DOOR_AGAIN_MS = 20             /* what did not fit into a rank's queue */
};

/* Which of a rank's programs, one after the other, and which of its contexts:
 * those meet whose places are equal. */
struct door_place {
    uint32_t turn, number;
};

/* A context of a rank, or one that others expect there. */
struct door_seat {
    struct tpb_list link;          /* in its rank's seats, the newest first, or
                                      the last that was found in use */
    int rank;
    struct door_place place;
    uint8_t program[8];            /* zeros: it has not spoken */
    void *card;                    /* or NULL: it has not spoken */
    size_t length;
    uint64_t *waiting;             /* by rank: who wants the card; or NULL */
    bool alone;                    /* it does not use PMIx */
    bool left;                     /* by tp_finalize(), ... */
    bool losing;                   /* ... before all that it wrote was taken */
    bool gone;                     /* nobody has its socket any more */
    int deaths_told;
    struct sockaddr_storage from;  /* its socket, once it has spoken */
    socklen_t from_length;
};

struct door_rank {
    struct tpb_list seats;
    int seat_count;
    uint32_t turns;                /* programs that have joined */
    bool left;                     /* PMIx, in its last context with that */
    bool denied;                   /* its present program does not get here, */
    char why[TPB_DOOR_WORDS];      /* ... as it says */
    bool over;                     /* its process has ended, in some way */
    bool dead;                     /* ... in one that all are told of */
};

struct door_death {
    int rank;
    char words[TPB_DOOR_WORDS];
};

static struct door {
    struct tpl_watch watch;
    struct tpb_door door;
    char text[TPB_DOOR_TEXT];      /* TP_DOOR */
    struct door_rank *ranks;
    struct door_death *deaths;     /* in their order */
    int death_count;
    struct tpl_timer again;        /* runs while something is owed */
    bool warned;
    struct tpl_loop *loop;
    tpl_pmix_fn *fn;
} door = { .watch = { .fd = -1 } };

static int door_socket(void)
{
    return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

void tpl_door_open(const char *job, int ranks)
{
    static struct tpt_card card;

    unsetenv("TP_DOOR");
    door.ranks = tpb_array((size_t)ranks, sizeof(*door.ranks));
    door.deaths = tpb_array((size_t)ranks, sizeof(*door.deaths));
    for (int i = 0; door.ranks != NULL && i < ranks; i++)
        tpb_list_init(&door.ranks[i].seats);
    door.watch.fd = tpb_door_open_for(job, door.door.name);
    door.door.size = ranks;
    door.door.net_namespace = tpb_net_namespace();
    tpb_random(door.door.cookie, sizeof(door.door.cookie));
    if (tpt_card_identify(&card, NULL) == TP_OK)
        memcpy(door.door.boot_id, card.host.boot_id, 16);
    /* These two hold the numbers that each rank's pair takes in its turn. */
    door.door.host = door_socket();
    door.door.launcher = door_socket();
    if (door.ranks == NULL || door.deaths == NULL || door.watch.fd < 0
        || door.door.host < 0 || door.door.launcher < 0) {
        tpb_info("no doors: %s", strerror(errno));
        tpl_door_close(NULL);
        return;
    }
    tpb_door_format(&door.door, door.text, sizeof(door.text));
    setenv("TP_DOOR", door.text, 1);
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

/* ---- seats --------------------------------------------------------------- */

static struct door_seat *door_seat_find(int rank, struct door_place place)
{
    TPB_LIST_EACH(node, &door.ranks[rank].seats) {
        struct door_seat *seat = TPB_CONTAINER(node, struct door_seat, link);

        if (seat->place.turn == place.turn
            && seat->place.number == place.number)
            return seat;
    }
    return NULL;
}

/* Which of its rank's programs is that?  A new one has a turn of its own once
 * it publishes a card; before, it has none. */
static bool door_turn(const struct tpb_door_message *message, uint32_t *turn)
{
    struct door_rank *rank = &door.ranks[message->sender];

    TPB_LIST_EACH(node, &rank->seats) {
        struct door_seat *seat = TPB_CONTAINER(node, struct door_seat, link);

        *turn = seat->place.turn;
        if (memcmp(seat->program, message->program,
                   sizeof(seat->program)) == 0)
            return true;
    }
    *turn = rank->turns;
    if (message->type == TPB_DOOR_PUT)
        rank->turns++;
    return message->type == TPB_DOOR_PUT;
}

static void door_seat_free(struct door_seat *seat)
{
    tpb_list_unlink(&seat->link);
    door.ranks[seat->rank].seat_count--;
    tpb_free(seat->waiting);
    tpb_free(seat->card);
    tpb_free(seat);
}

/* Does one that is not known to be over wait for its card? */
static bool door_is_awaited(const struct door_seat *seat)
{
    for (int i = 0; seat->waiting != NULL && i < door.door.size; i++)
        if ((seat->waiting[i / 64] >> i % 64 & 1) != 0) {
            const struct door_seat *asker = door_seat_find(i, seat->place);

            if (asker != NULL && !asker->left && !asker->gone)
                return true;
        }
    return false;
}

/* Programs also end without a word; their sockets end with them.  One that is
 * in use refuses others than ours, in another way. */
static bool door_is_over(struct door_seat *seat)
{
    int fd;

    if (seat->left || seat->gone)
        return true;
    if (seat->from_length == 0)
        return seat->card == NULL && !door_is_awaited(seat);
    fd = door_socket();
    seat->gone = fd >= 0
                 && connect(fd, (const struct sockaddr *)&seat->from,
                            seat->from_length) < 0 && errno == ECONNREFUSED;
    tpb_close(&fd);
    return seat->gone;
}

/* A program may make contexts for ever, beside some that stay, and a rank may
 * run programs for ever. */
static void door_seat_trim(struct door_rank *rank)
{
    for (int i = 0; rank->seat_count >= DOOR_SEATS && i < DOOR_LOOKS; i++) {
        struct door_seat *oldest = TPB_CONTAINER(rank->seats.prev,
                                                 struct door_seat, link);

        if (door_is_over(oldest)) {
            door_seat_free(oldest);
        } else {
            tpb_list_unlink(&oldest->link);
            tpb_list_append(rank->seats.next, &oldest->link);
        }
    }
}

/* NULL without memory. */
static struct door_seat *door_seat_get(int rank, struct door_place place)
{
    struct door_rank *owner = &door.ranks[rank];
    struct door_seat *seat = door_seat_find(rank, place);

    if (seat != NULL)
        return seat;
    door_seat_trim(owner);
    seat = tpb_zalloc(sizeof(*seat));
    if (seat == NULL)
        return NULL;
    seat->rank = rank;
    seat->place = place;
    tpb_list_append(owner->seats.next, &seat->link);
    owner->seat_count++;
    return seat;
}

/* ---- what ranks are told ------------------------------------------------- */

/* Who asks goes on asking, and may wait without a limit. */
static void door_forbidden(int rank, int code)
{
    if (!door.warned)
        tpb_warn("rank %d cannot be answered: %s (does a sandbox around tprun"
                 " or the rank forbid it?)", rank, strerror(code));
    door.warned = true;
}

/* False: its queue is full for now, or the kernel's memory.  Who is gone needs
 * nothing more. */
static bool door_send(const struct tpb_door_message *message,
                      const void *rest, size_t length, struct door_seat *to)
{
    struct tpb_door_message copy = *message;
    struct iovec parts[2] = { { &copy, sizeof(copy) },
                              { (void *)(uintptr_t)rest, length } };
    struct msghdr header = { .msg_name = &to->from,
                             .msg_namelen = to->from_length,
                             .msg_iov = parts, .msg_iovlen = 2 };
    int code;

    if (to->from_length == 0)
        return true;
    memcpy(copy.magic, tpb_door_magic, sizeof(copy.magic));
    memcpy(copy.cookie, door.door.cookie, sizeof(copy.cookie));
    copy.number = to->place.number;
    memcpy(copy.program, to->program, sizeof(copy.program));
    if (sendmsg(door.watch.fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        return true;
    code = errno;
    if (code == EAGAIN || code == ENOBUFS || code == ENOMEM)
        return false;
    if (code == EPERM || code == EACCES)
        door_forbidden(to->rank, code);
    to->gone = code == ECONNREFUSED;
    to->from_length = 0;
    return true;
}

static void door_owe(void)
{
    if (door.loop != NULL && door.again.at == 0)
        tpl_timer_set(door.loop, &door.again,
                      tpb_now() + DOOR_AGAIN_MS * UINT64_C(1000000));
}

static bool door_tell_death(const struct door_death *death,
                            struct door_seat *to)
{
    struct tpb_door_message message = { .type = TPB_DOOR_DIED, .sender = -1,
                                        .rank = death->rank };

    return door_send(&message, death->words, strlen(death->words), to);
}

/* Those who have PMIx hear of deaths there. */
static bool door_tell_deaths(struct door_seat *to)
{
    while (to->alone && to->deaths_told < door.death_count) {
        if (!door_tell_death(&door.deaths[to->deaths_told], to))
            return false;
        to->deaths_told++;
    }
    return true;
}

const char tpl_door_never[] = "without tp_init; did something clear its"
                              " environment?";

/* A card that will not come: its rank is over without having got so far. */
static bool door_tell_in_vain(const struct door_seat *seat,
                              struct door_seat *to)
{
    uint32_t turns = door.ranks[seat->rank].turns;
    struct door_death death = { .rank = seat->rank };

    /* How it died. */
    for (int i = 0; i < door.death_count; i++)
        if (door.deaths[i].rank == seat->rank)
            return door_tell_death(&door.deaths[i], to);
    if (turns == 0)
        snprintf(death.words, sizeof(death.words), "%s", tpl_door_never);
    else
        snprintf(death.words, sizeof(death.words), "after %u program%s of tp",
                 turns, turns == 1 ? "" : "s");
    return door_tell_death(&death, to);
}

/* A card that goes to PMIx only, where this one does not ask. */
static bool door_tell_denied(const struct door_seat *seat,
                             struct door_seat *to)
{
    struct tpb_door_message message = { .type = TPB_DOOR_DENIED, .sender = -1,
                                        .rank = seat->rank };
    const char *why = door.ranks[seat->rank].why;

    return !to->alone || door_send(&message, why, strlen(why), to);
}

/* One who asked before there was an answer. */
static bool door_answer_one(struct door_seat *seat, int asker)
{
    struct tpb_door_message answer = { .type = TPB_DOOR_ANSWER,
                                       .sender = -1, .rank = seat->rank };
    struct door_seat *to = door_seat_find(asker, seat->place);

    if (to == NULL)
        return true;
    if (seat->card == NULL && door.ranks[seat->rank].over)
        return door_tell_in_vain(seat, to);
    if (seat->card == NULL)
        return door_tell_denied(seat, to);
    if (!seat->alone && !to->alone)
        return true;               /* both have PMIx: it comes from there */
    return door_send(&answer, seat->card, seat->length, to);
}

/* All who wait for it; false if some have no room. */
static bool door_answer(struct door_seat *seat)
{
    size_t words = ((size_t)door.door.size + 63) / 64;
    bool all = true;

    if (seat->waiting == NULL
        || (seat->card == NULL && !door.ranks[seat->rank].over
            && !door.ranks[seat->rank].denied))
        return true;
    for (size_t i = 0; i < words; i++)
        for (uint64_t bits = seat->waiting[i]; bits != 0; bits &= bits - 1) {
            int bit = __builtin_ctzll(bits);

            if (door_answer_one(seat, (int)i * 64 + bit))
                seat->waiting[i] &= ~(UINT64_C(1) << bit);
            else
                all = false;
        }
    if (all) {
        tpb_free(seat->waiting);
        seat->waiting = NULL;
    }
    return all;
}

static void door_tell_all(void)
{
    bool all = true;

    for (int rank = 0; rank < door.door.size; rank++)
        TPB_LIST_EACH(node, &door.ranks[rank].seats) {
            struct door_seat *seat = TPB_CONTAINER(node, struct door_seat,
                                                   link);

            all &= door_answer(seat);
            all &= door_tell_deaths(seat);
        }
    if (!all)
        door_owe();
}

static void door_again(struct tpl_timer *timer)
{
    (void)timer;
    door_tell_all();
}

/* Those who wait for a card that will not come. */
static void door_answer_rank(int rank)
{
    bool all = true;

    TPB_LIST_EACH(node, &door.ranks[rank].seats)
        all &= door_answer(TPB_CONTAINER(node, struct door_seat, link));
    if (!all)
        door_owe();
}

void tpl_door_over(int rank)
{
    if (door.ranks == NULL || door.ranks[rank].over)
        return;
    door.ranks[rank].over = true;
    door_answer_rank(rank);
}

void tpl_door_denied(int rank, const char *words)
{
    if (door.ranks == NULL)
        return;
    door.ranks[rank].denied = true;
    snprintf(door.ranks[rank].why, sizeof(door.ranks[rank].why), "%s", words);
    door_answer_rank(rank);
}

void tpl_door_died(int rank, const char *words)
{
    struct door_death *death;

    if (door.ranks == NULL || door.ranks[rank].dead)
        return;
    door.ranks[rank].dead = door.ranks[rank].over = true;
    death = &door.deaths[door.death_count++];
    death->rank = rank;
    snprintf(death->words, sizeof(death->words), "%s", words);
    TPB_LIST_EACH(node, &door.ranks[rank].seats)
        TPB_CONTAINER(node, struct door_seat, link)->from_length = 0;
    door_tell_all();
}

/* ---- what ranks say ------------------------------------------------------ */

static void door_event(enum tpl_pmix_what what, int rank, int status,
                       const char *reason)
{
    struct tpl_pmix_event event = { what, rank, status, reason, true };

    door.fn(&event, NULL);
}

/* Others would wait for its card, and its end would seem to be another. */
static void door_starved(int rank)
{
    door_event(TPL_PMIX_ABORT, rank, 1, "tprun has no memory for what it says");
}

static void door_put(struct door_seat *seat, bool alone, const void *card,
                     size_t length)
{
    void *copy = tpb_zalloc(length + 1);

    if (copy == NULL) {
        door_starved(seat->rank);
        return;
    }
    memcpy(copy, card, length);
    tpb_free(seat->card);
    seat->card = copy;
    seat->length = length;
    seat->alone = alone;
    seat->left = seat->losing = false;
    door.ranks[seat->rank].denied = false;
    if (alone)
        door_event(TPL_PMIX_CONNECTED, seat->rank, 0, "");
    if (!door_answer(seat) || !door_tell_deaths(seat))
        door_owe();
}

static bool door_wait(struct door_seat *seat, int asker)
{
    size_t words = ((size_t)door.door.size + 63) / 64;

    if (seat->waiting == NULL)
        seat->waiting = tpb_array(words, sizeof(*seat->waiting));
    if (seat->waiting == NULL)
        return false;
    seat->waiting[asker / 64] |= UINT64_C(1) << (asker % 64);
    return true;
}

static void door_get(struct door_seat *asker, int rank)
{
    struct door_seat *seat = door_seat_get(rank, asker->place);

    if (seat == NULL || !door_wait(seat, asker->rank))
        return;                    /* it asks again */
    if (!door_answer(seat))
        door_owe();
}

void tpl_door_left(int rank)
{
    if (door.ranks == NULL)
        return;
    door.ranks[rank].left = true;
    door.ranks[rank].denied = false;
    TPB_LIST_EACH(node, &door.ranks[rank].seats) {
        struct door_seat *seat = TPB_CONTAINER(node, struct door_seat, link);

        seat->left |= !seat->alone;
    }
}

static void door_left(struct door_seat *asker, int rank)
{
    struct tpb_door_message answer = { .type = TPB_DOOR_LEFT, .sender = -1,
                                       .rank = rank };
    const struct door_seat *seat;

    tpl_pmix_dispatch();           /* what is said there was said first */
    seat = door_seat_find(rank, asker->place);
    if (seat != NULL && seat->card != NULL)
        answer.flag = seat->left ? 1 + seat->losing : 0;
    else
        answer.flag = asker->place.turn == 0 && door.ranks[rank].left;
    (void)door_send(&answer, NULL, 0, asker);
}

static void door_call(const struct door_seat *sender,
                      const struct tpb_door_message *message)
{
    struct door_seat *seat = door_seat_find(message->rank, sender->place);

    if (seat != NULL)
        (void)door_send(message, NULL, 0, seat);
}

/* Earlier programs of the rank are over, however that came. */
static void door_leave(struct door_seat *seat, bool losing)
{
    seat->left = true;
    seat->losing = losing;
    seat->from_length = 0;         /* what it inherited may stay open */
    tpl_pmix_dispatch();           /* what is said there was said first */
    TPB_LIST_EACH(node, &door.ranks[seat->rank].seats) {
        struct door_seat *other = TPB_CONTAINER(node, struct door_seat, link);

        if (other->card != NULL && !other->left
            && other->alone == seat->alone
            && other->place.turn == seat->place.turn)
            return;
    }
    door_event(seat->alone ? TPL_PMIX_FINALIZED : TPL_PMIX_LEFT, seat->rank,
               0, "");
}

static void door_tell_turn(struct door_seat *asker)
{
    struct tpb_door_message answer = { .type = TPB_DOOR_TURN, .sender = -1,
                                       .rank = (int32_t)asker->place.turn };

    (void)door_send(&answer, NULL, 0, asker);
}

static void door_message(const struct tpb_door_message *message,
                         const char *rest, size_t length,
                         const struct sockaddr_storage *from,
                         socklen_t from_length)
{
    bool whom = message->rank >= 0 && message->rank < door.door.size;
    struct door_place place = { .number = message->number };
    struct door_seat *sender;

    if (!door_turn(message, &place.turn))
        return;
    sender = door_seat_get(message->sender, place);
    if (sender == NULL) {
        door_starved(message->sender);
        return;
    }
    memcpy(sender->program, message->program, sizeof(sender->program));
    sender->from = *from;
    sender->from_length = from_length;
    sender->gone = false;
    if (message->type == TPB_DOOR_PUT)
        door_put(sender, message->alone != 0, rest, length);
    else if (message->type == TPB_DOOR_GET && whom)
        door_get(sender, message->rank);
    else if (message->type == TPB_DOOR_LEFT && whom)
        door_left(sender, message->rank);
    else if (message->type == TPB_DOOR_CALL && whom)
        door_call(sender, message);
    else if (message->type == TPB_DOOR_ABORT)
        door_event(TPL_PMIX_ABORT, message->sender, message->rank, rest);
    else if (message->type == TPB_DOOR_LEAVE)
        door_leave(sender, message->rank != 0);
    else if (message->type == TPB_DOOR_TURN)
        door_tell_turn(sender);
}

/* Somebody in between has not handed TP_DOOR on.  Whoever asks is answered, so
 * that a stranger need not wait. */
static void door_tell_where(const struct sockaddr_storage *from,
                            socklen_t from_length, bool trusted)
{
    struct tpb_door_message answer = { .type = TPB_DOOR_WHERE, .sender = -1 };
    struct iovec parts[2] = { { &answer, sizeof(answer) },
                              { door.text, trusted ? strlen(door.text) : 0 } };
    struct msghdr header = { .msg_name = (void *)(uintptr_t)from,
                             .msg_namelen = from_length,
                             .msg_iov = parts, .msg_iovlen = 2 };

    memcpy(answer.magic, tpb_door_magic, sizeof(answer.magic));
    (void)sendmsg(door.watch.fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Whether there was a message. */
static bool door_receive(struct tpl_watch *watch)
{
    static char bytes[sizeof(struct tpb_door_message) + TPB_DOOR_CARD + 1];
    struct sockaddr_storage from;
    socklen_t from_length = sizeof(from);
    struct tpb_door_message message;
    bool trusted;
    ssize_t got = tpb_door_receive(watch->fd, bytes, sizeof(bytes) - 1, &from,
                                   &from_length, &trusted);

    if (got < 0)
        return false;
    if ((size_t)got < sizeof(message))
        return true;
    memcpy(&message, bytes, sizeof(message));
    bytes[got] = '\0';
    if (memcmp(message.magic, tpb_door_magic, sizeof(message.magic)) != 0)
        return true;
    if (message.type == TPB_DOOR_WHERE)
        door_tell_where(&from, from_length, trusted);
    else if (tpb_equal_secret(message.cookie, door.door.cookie,
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

int tpl_door_watch(struct tpl_loop *loop, tpl_pmix_fn *fn)
{
    door.fn = fn;
    door.loop = loop;
    door.again.fire = door_again;
    door.watch.ready = door_ready;
    return door.watch.fd < 0 ? 0
           : tpl_watch_set(loop, &door.watch, EPOLLIN);
}

void tpl_door_close(struct tpl_loop *loop)
{
    if (loop != NULL && door.watch.fd >= 0)
        tpl_watch_close(loop, &door.watch);
    if (door.loop != NULL)
        tpl_timer_set(door.loop, &door.again, 0);
    tpb_close(&door.watch.fd);
    tpb_close(&door.door.host);
    tpb_close(&door.door.launcher);
    for (int i = 0; door.ranks != NULL && i < door.door.size; i++)
        while (!tpb_list_empty(&door.ranks[i].seats))
            door_seat_free(TPB_CONTAINER(door.ranks[i].seats.next,
                                         struct door_seat, link));
    tpb_free(door.deaths);
    tpb_free(door.ranks);
    door.deaths = NULL;
    door.ranks = NULL;
}
