/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A gale: what storm.c leaves out.  Threads of one rank talk with those of
 * others by blocking calls, over pipes of ranks and pipes from outside, while
 * the main thread's event loop reads postcards; and what happens is held
 * against the promises of tp.h.
 *
 *     tprun -n 4 gale SEED [key=value ...]
 *
 *     talks=2      threads for each other rank, each with a pipe of its own
 *     turns=60     messages on one of these pipes, at most
 *     bytes=200000 the longest message
 *     guests=4     pipes that each rank makes to a listener, one by one
 *     cards=200    postcards that each rank sends to each
 *     any=1        they are read from anybody, and there is nothing else
 *     loop=fd      the event loop: fd, wait or progress
 *
 * Who sends what on a pipe follows from the seed and is known to both of its
 * ends; by which calls, with what patience, is each thread's own dice.  Exit
 * status 0: all promises were kept.  Else the first that was not is told on
 * standard error.
 */
#include "config.h"

#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/tp.h"
#include "tests/fuzz/fuzz.h"

enum { RANKS = 16, TALKS = 8, GUESTS = 64, CARD = 600, LIMIT_S = 240 };

static struct {
    uint64_t seed;
    unsigned talks, turns, guests, cards;
    size_t bytes;
    bool any;
    char loop;
} plan = { .talks = 2, .turns = 60, .guests = 4, .cards = 200,
           .bytes = 200000, .loop = 'f' };

static struct {
    tp_context *context;
    int rank, size;
    atomic_uint running;           /* threads */
    atomic_uint inside;            /* callbacks running */
    unsigned accepts;              /* token: by callbacks only */
    unsigned cards_got[RANKS];     /* the same */
    atomic_uint served, cards_read;    /* they count, the main thread looks */
    unsigned cards_sent;           /* by the main thread */
    atomic_bool closed;
} my;

static void wrong(const char *format, ...)
    __attribute__((format(printf, 1, 2), noreturn));

static void wrong(const char *format, ...)
{
    char text[400];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fprintf(stderr, "gale %llu: rank %d: %s\n",
            (unsigned long long) plan.seed, my.rank, text);
    fflush(stderr);
    abort();
}

static void fill(unsigned char *bytes, size_t length, uint64_t key)
{
    for (size_t i = 0; i < length; i++)
        bytes[i] = (unsigned char) (mix(key ^ (i / 8)) >> (i % 8 * 8));
}

static void check(const unsigned char *bytes, size_t length, uint64_t key,
                  const char *what)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != (unsigned char) (mix(key ^ (i / 8)) >> (i % 8 * 8)))
            wrong("byte %zu of %zu of %s is not what was sent", i, length,
                  what);
}

static uint64_t milliseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * 1000 + (uint64_t) now.tv_nsec / 1000000;
}

/* ---- one conversation --------------------------------------------------- */

/* One end of a pipe whose turns both sides know. */
struct talk {
    tp_pipe *pipe;
    uint64_t key;                  /* what both know of it */
    uint64_t dice;                 /* what only this side does */
    bool first;                    /* the side that begins with turn 0 */
    const char *what;
    unsigned char *room;
    size_t room_length;
};

static unsigned dice(struct talk *talk, unsigned sides)
{
    talk->dice = mix(talk->dice);
    return (unsigned) (talk->dice % sides);
}

static size_t turn_length(const struct talk *talk, unsigned turn)
{
    uint64_t fact = mix(talk->key + turn);

    switch (fact & 7) {
    case 0: return 0;
    case 1: case 2: case 3: return (size_t) ((fact >> 8) % 200);
    case 4: case 5: return (size_t) ((fact >> 8) % 9000);
    default: return (size_t) ((fact >> 8) % (plan.bytes + 1));
    }
}

/* Whether the first side sends it. */
static bool turn_is_first(const struct talk *talk, unsigned turn)
{
    return (mix(talk->key ^ (turn / 3)) & 1) == 0;
}

/* How many turns; and after that one side closes, which one that is. */
static unsigned talk_turns(const struct talk *talk)
{
    return (unsigned) (mix(talk->key ^ 0x7475726eu) % (plan.turns + 1));
}

/* The patience of one try. */
static int talk_patience(struct talk *talk)
{
    static const int some[] = { -1, 0, 1, 5, 1000 };

    return some[dice(talk, 5)];
}

static void talk_send(struct talk *talk, unsigned turn)
{
    size_t length = turn_length(talk, turn);
    tp_payload payloads[3];
    tp_tensor tensor = { .target = { TP_DEVICE_ANY, 0 } };
    tp_message message = { .metadata = &turn, .metadata_length = sizeof(turn),
                           .payloads = payloads, .payload_count = 3 };
    unsigned how = dice(talk, 3);
    tp_status status;

    fill(talk->room, length, talk->key ^ turn);
    if (how == 0) {
        status = tp_pipe_send(talk->pipe, talk->room, length);
    } else {
        size_t a = length / 3, b = length / 2;

        payloads[0] = (tp_payload) { talk->room, a, NULL, 0 };
        payloads[1] = (tp_payload) { talk->room + a, b - a, NULL, 0 };
        payloads[2] = (tp_payload) { talk->room + b, length - b, NULL, 0 };
        if (how == 2) {
            tensor.data = talk->room + b;
            tensor.length = length - b;
            message.payload_count = 2;
            message.tensors = &tensor;
            message.tensor_count = 1;
        }
        status = tp_pipe_send_message(talk->pipe, &message, -1);
    }
    if (status != TP_OK)
        wrong("sending turn %u of %s: %s (%s)", turn, talk->what,
              tp_strerror(status), tp_pipe_error(talk->pipe));
    /* Its memory is ours again. */
    memset(talk->room, 0xdd, length);
}

static void talk_recv(struct talk *talk, unsigned turn)
{
    size_t length = turn_length(talk, turn), got = 1;
    tp_status status;

    if (length > 0 && dice(talk, 3) == 0) {
        size_t less = dice(talk, 2) == 0 ? 0 : length - 1;

        status = tp_pipe_recv(talk->pipe, talk->room, less, &got);
        if (status != TP_ERR_TRUNCATED || got != length)
            wrong("turn %u of %s into %zu bytes: %s, %zu of %zu (%s)", turn,
                  talk->what, less, tp_strerror(status), got, length,
                  tp_pipe_error(talk->pipe));
    }
    status = tp_pipe_recv(talk->pipe, talk->room, talk->room_length, &got);
    if (status != TP_OK || got != length)
        wrong("turn %u of %s: %s, %zu of %zu bytes (%s)", turn, talk->what,
              tp_strerror(status), got, length, tp_pipe_error(talk->pipe));
}

static void talk_recv_message(struct talk *talk, unsigned turn)
{
    size_t length = turn_length(talk, turn), at = 0;
    tp_message *skeleton;
    tp_status status;

    do
        status = tp_pipe_recv_skeleton(talk->pipe, &skeleton,
                                       talk_patience(talk));
    while (status == TP_ERR_TIMEOUT);
    if (status != TP_OK)
        wrong("the skeleton of turn %u of %s: %s (%s)", turn, talk->what,
              tp_strerror(status), tp_pipe_error(talk->pipe));
    if (dice(talk, 4) == 0)
        usleep(dice(talk, 3000));
    for (size_t i = 0; i < skeleton->payload_count; i++) {
        skeleton->payloads[i].data = talk->room + at;
        at += skeleton->payloads[i].length;
    }
    for (size_t i = 0; i < skeleton->tensor_count; i++) {
        skeleton->tensors[i].data = talk->room + at;
        skeleton->tensors[i].device = (tp_device) { TP_DEVICE_CPU, 0 };
        at += skeleton->tensors[i].length;
    }
    if (at != length)
        wrong("turn %u of %s has %zu bytes, not %zu", turn, talk->what, at,
              length);
    status = tp_pipe_recv_message(talk->pipe, skeleton, -1);
    if (status != TP_OK)
        wrong("turn %u of %s: %s (%s)", turn, talk->what, tp_strerror(status),
              tp_pipe_error(talk->pipe));
}

static void talk_through(struct talk *talk, bool closes)
{
    unsigned turns = talk_turns(talk);
    tp_status status;
    char byte;

    talk->room_length = plan.bytes + 1;
    talk->room = malloc(talk->room_length);
    if (talk->room == NULL)
        wrong("no memory");
    for (unsigned turn = 0; turn < turns; turn++) {
        if (turn_is_first(talk, turn) == talk->first) {
            talk_send(talk, turn);
            continue;
        }
        if (dice(talk, 2) == 0)
            talk_recv(talk, turn);
        else
            talk_recv_message(talk, turn);
        check(talk->room, turn_length(talk, turn), talk->key ^ turn,
              talk->what);
    }
    if (closes && (mix(talk->key) & 1) == talk->first) {
        if (tp_pipe_close(talk->pipe) != TP_OK)
            wrong("tp_pipe_close");
        status = tp_pipe_recv(talk->pipe, &byte, 1, NULL);
        if (status != TP_ERR_CLOSED)
            wrong("after the close of %s: %s", talk->what,
                  tp_strerror(status));
    } else if (closes) {
        status = tp_pipe_recv(talk->pipe, &byte, 1, NULL);
        if (status != TP_ERR_PEER_CLOSED)
            wrong("at the end of %s: %s (%s)", talk->what,
                  tp_strerror(status), tp_pipe_error(talk->pipe));
        tp_pipe_close(talk->pipe);
    }
    free(talk->room);
}

/* ---- threads ------------------------------------------------------------ */

static void thread_start(void *(*body)(void *), void *arg)
{
    pthread_t thread;

    atomic_fetch_add(&my.running, 1);
    if (pthread_create(&thread, NULL, body, arg) != 0)
        wrong("pthread_create");
    pthread_detach(thread);
}

/* With one other rank; `arg` says which, and which pipe. */
static void *rank_thread(void *arg)
{
    unsigned which = (unsigned) (uintptr_t) arg;
    int rank = (int) (which / TALKS);
    unsigned number = 1 + which % TALKS;
    int low = rank < my.rank ? rank : my.rank, high = rank + my.rank - low;
    struct talk talk = { .first = my.rank < rank, .what = "a rank's pipe" };

    talk.key = mix(plan.seed ^ (uint64_t) (low * 1000 + high) << 20 ^ number);
    talk.dice = mix(talk.key + (unsigned) my.rank);
    if (tp_pipe_open(my.context, rank, number, &talk.pipe) != TP_OK)
        wrong("tp_pipe_open");
    talk_through(&talk, true);
    atomic_fetch_sub(&my.running, 1);
    return NULL;
}

/* Of a guest: its first message is what both sides know from then on. */
static void *host_thread(void *arg)
{
    struct talk talk = { .pipe = arg, .what = "a guest's pipe" };
    size_t length;
    tp_status status = tp_pipe_recv(talk.pipe, &talk.key, sizeof(talk.key),
                                    &length);

    if (status != TP_OK || length != sizeof(talk.key))
        wrong("a guest's first word: %s (%s)", tp_strerror(status),
              tp_pipe_error(talk.pipe));
    if (tp_pipe_rank(talk.pipe) != -1)
        wrong("a guest is rank %d", tp_pipe_rank(talk.pipe));
    talk.dice = mix(talk.key ^ 0x686f7374u);
    talk_through(&talk, true);
    atomic_fetch_sub(&my.running, 1);
    return NULL;
}

static char *address_of_next;      /* the listener's of the next rank */

static void *guest_thread(void *arg)
{
    uint64_t dice_of_all = mix(plan.seed * 77 + (unsigned) my.rank);

    (void) arg;
    for (unsigned i = 0; i < plan.guests; i++) {
        struct talk talk = { .first = true, .what = "a pipe to a listener" };
        tp_status status;

        dice_of_all = mix(dice_of_all);
        talk.key = dice_of_all;
        talk.dice = mix(talk.key ^ 0x6775u);
        if (tp_connect(my.context, address_of_next, &talk.pipe) != TP_OK)
            wrong("tp_connect to %s", address_of_next);
        status = tp_pipe_send(talk.pipe, &talk.key, sizeof(talk.key));
        if (status != TP_OK)
            wrong("the first word to a listener: %s (%s)",
                  tp_strerror(status), tp_pipe_error(talk.pipe));
        talk_through(&talk, true);
    }
    atomic_fetch_sub(&my.running, 1);
    return NULL;
}

/* ---- callbacks ---------------------------------------------------------- */

static void callback_begins(void)
{
    if (atomic_fetch_add(&my.inside, 1) != 0)
        wrong("a callback while another one runs");
}

static void callback_ends(void)
{
    atomic_fetch_sub(&my.inside, 1);
}

static void accepted(tp_listener *listener, tp_status status, tp_pipe *pipe,
                     void *arg)
{
    callback_begins();
    my.accepts--;
    if (status == TP_OK) {
        my.served++;
        thread_start(host_thread, pipe);
        my.accepts++;
        if (tp_accept(listener, accepted, arg) != TP_OK)
            wrong("tp_accept");
    } else if (status != TP_ERR_CLOSED || !my.closed || pipe != NULL) {
        wrong("tp_accept: %s", tp_strerror(status));
    }
    callback_ends();
}

static unsigned char cards[64][CARD];

static void card_read(tp_pipe *pipe, tp_status status, tp_message *message,
                      void *arg)
{
    int from = tp_pipe_rank(pipe);
    unsigned got;

    (void) message;
    callback_begins();
    if (status != TP_OK)
        wrong("a postcard's read: %s", tp_strerror(status));
    memcpy(&got, arg, sizeof(got));
    if (got != my.cards_got[from]++)
        wrong("postcard %u of rank %d when %u is due", got, from,
              my.cards_got[from] - 1);
    my.cards_read++;
    free(arg);
    callback_ends();
}

static void card_arrived(tp_pipe *pipe, tp_status status, tp_message *message,
                         void *arg);

/* Of a rank, or of any. */
static void card_arm(tp_pipe *pipe)
{
    if ((pipe == NULL
         ? tp_read_descriptor_any(my.context, card_arrived, NULL)
         : tp_pipe_read_descriptor(pipe, card_arrived, pipe)) != TP_OK)
        wrong("no postcard can be waited for");
}

static void card_arrived(tp_pipe *pipe, tp_status status, tp_message *message,
                         void *arg)
{
    void *room;

    callback_begins();
    if ((status == TP_ERR_CLOSED && my.closed)
        || (status == TP_ERR_PEER_CLOSED && arg != NULL
            && my.cards_got[tp_pipe_rank(pipe)] == plan.cards)) {
        callback_ends();
        return;
    }
    if (status != TP_OK)
        wrong("waiting for a postcard: %s (%s)", tp_strerror(status),
              pipe != NULL ? tp_pipe_error(pipe) : "");
    if (message->payload_count != 1 || message->payloads[0].length > CARD)
        wrong("that is no postcard");
    room = message->payloads[0].data = malloc(message->payloads[0].length);
    /* First the next, then this one. */
    card_arm(arg);
    if (room == NULL || tp_pipe_read(pipe, message, card_read, room) != TP_OK)
        wrong("a postcard is not read");
    callback_ends();
}

/* ---- the rank ----------------------------------------------------------- */

static tp_pipe *ready_made(int rank)
{
    tp_pipe *pipe;

    if (tp_pipe_to_rank(my.context, rank, &pipe) != TP_OK)
        wrong("tp_pipe_to_rank");
    return pipe;
}

static void cards_send(void)
{
    static tp_payload payloads[64];
    static tp_message messages[64];
    static uint64_t chance = 1;
    unsigned sent = my.cards_sent;
    unsigned place = sent % 64, number = sent / (unsigned) my.size;

    /* Short ones are gone when the call returns, or soon: there is time. */
    chance = mix(chance ^ plan.seed);
    if (sent >= plan.cards * (unsigned) my.size || chance % 3 == 0)
        return;
    memcpy(cards[place], &number, sizeof(number));
    payloads[place] = (tp_payload) { cards[place], 4 + chance % (CARD - 4),
                                     NULL, 0 };
    messages[place] = (tp_message) { .payloads = &payloads[place],
                                     .payload_count = 1 };
    if (tp_pipe_send_message(ready_made((int) sent % my.size),
                             &messages[place], -1) != TP_OK)
        wrong("a postcard to rank %d", (int) sent % my.size);
    my.cards_sent++;
}

static bool done(void)
{
    return atomic_load(&my.running) == 0 && my.served >= plan.guests
           && my.cards_sent == plan.cards * (unsigned) my.size
           && my.cards_read == my.cards_sent;
}

static void turn(void)
{
    struct pollfd fd = { .fd = -1, .events = POLLIN };
    int completed = 1;

    switch (plan.loop) {
    case 'f':
        fd.fd = tp_fd(my.context);
        while (completed > 0)
            if (tp_progress(my.context, &completed) != TP_OK)
                wrong("tp_progress");
        poll(&fd, 1, 2);
        break;
    case 'w':
        tp_wait(my.context, 2, NULL);
        break;
    default:
        tp_progress(my.context, NULL);
        usleep(50);
        break;
    }
}

/* The next rank's address comes by a pipe of its own. */
static void addresses(tp_listener **listener)
{
    static char theirs[1024];
    char mine[1024];
    tp_pipe *next, *before;

    if (tp_listen(my.context, NULL, listener) != TP_OK
        || tp_listener_address(*listener, mine, sizeof(mine)) != TP_OK)
        wrong("tp_listen");
    if (tp_pipe_open(my.context, (my.rank + 1) % my.size, 99, &next) != TP_OK
        || tp_pipe_open(my.context, (my.rank + my.size - 1) % my.size, 99,
                        &before) != TP_OK
        || tp_pipe_send(before, mine, strlen(mine) + 1) != TP_OK
        || tp_pipe_recv(next, theirs, sizeof(theirs), NULL) != TP_OK)
        wrong("the addresses of the listeners");
    address_of_next = theirs;
    my.accepts = 2;
    if (tp_accept(*listener, accepted, NULL) != TP_OK
        || tp_accept(*listener, accepted, NULL) != TP_OK)
        wrong("tp_accept");
}

static void read_plan(int argc, char **argv)
{
    plan.seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    for (int i = 2; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        unsigned value = equals == NULL ? 0
                         : (unsigned) strtoul(equals + 1, NULL, 10);

        if (strncmp(argv[i], "talks=", 6) == 0)
            plan.talks = value < TALKS ? value : TALKS - 1;
        else if (strncmp(argv[i], "turns=", 6) == 0)
            plan.turns = value;
        else if (strncmp(argv[i], "bytes=", 6) == 0)
            plan.bytes = value;
        else if (strncmp(argv[i], "guests=", 7) == 0)
            plan.guests = value < GUESTS ? value : GUESTS;
        else if (strncmp(argv[i], "cards=", 6) == 0)
            plan.cards = value;
        else if (strncmp(argv[i], "any=", 4) == 0)
            plan.any = value != 0;
        else if (strncmp(argv[i], "loop=", 5) == 0)
            plan.loop = argv[i][5];
        else
            wrong("what is %s?", argv[i]);
    }
    if (plan.any)
        plan.talks = plan.guests = 0;
}

int main(int argc, char **argv)
{
    tp_listener *listener = NULL;
    uint64_t limit = milliseconds() + LIMIT_S * 1000;
    tp_status status;

    read_plan(argc, argv);
    if (tp_init(NULL, &my.context) != TP_OK)
        wrong("tp_init");
    my.rank = tp_rank(my.context);
    my.size = tp_size(my.context);
    if (my.size > RANKS)
        wrong("more than %d ranks", RANKS);
    if (plan.guests > 0)
        addresses(&listener);
    for (int i = 0; i < 3 * my.size; i++)
        card_arm(plan.any ? NULL : ready_made(i % my.size));
    for (unsigned i = 0; i < plan.talks; i++)
        for (int rank = 0; rank < my.size; rank++)
            if (rank != my.rank)
                thread_start(rank_thread, (void *) (uintptr_t)
                             ((unsigned) rank * TALKS + i));
    if (plan.guests > 0)
        thread_start(guest_thread, NULL);
    while (!done()) {
        cards_send();
        turn();
        if (milliseconds() > limit)
            wrong("not finished in time: %u threads, %u guests, %u cards",
                  atomic_load(&my.running), my.served, my.cards_read);
    }
    my.closed = true;
    if (listener != NULL && tp_listener_close(listener) != TP_OK)
        wrong("tp_listener_close");
    status = tp_finalize(my.context);
    if (status != TP_OK)
        wrong("tp_finalize: %s", tp_strerror(status));
    if (my.accepts != 0)
        wrong("%u accepts never ended", my.accepts);
    printf("gale %llu: rank %d sent its share, got %u cards\n",
           (unsigned long long) plan.seed, my.rank, my.cards_read);
    return 0;
}
