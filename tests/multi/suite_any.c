/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tp_read_descriptor_any(): many ranks, turns, armed pipes beside, pipes that
 * end, and peers from outside.
 */
#include "config.h"

#include <unistd.h>

#include "tests/multi/letter.h"
#include "tests/multi/spmd.h"

enum { ANY_RANKS = 16, ANY_EACH = 100 };

static struct any_state {
    unsigned count[ANY_RANKS];     /* read of each rank */
    unsigned total, lead;          /* the most that one was ahead */
    unsigned numbers[ANY_RANKS], plain, outside, ended, arrived;
    bool again;                    /* arm again in the callback */
} any_state;

static void any_read(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                     void *arg)
{
    int rank = tp_pipe_rank(pipe);
    unsigned least = ~0u;

    (void)skeleton;
    (void)arg;
    tpx_ok(status);
    tpx_equal(any_state.numbers[rank], any_state.count[rank]);
    any_state.count[rank]++;
    for (int i = 1; i < tpx_me.size; i++)
        if (any_state.count[i] < least)
            least = any_state.count[i];
    if (any_state.count[rank] - least > any_state.lead)
        any_state.lead = any_state.count[rank] - least;
    __atomic_fetch_add(&any_state.total, 1, __ATOMIC_ACQ_REL);
}

static void any_arrived(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                        void *arg)
{
    __atomic_fetch_add(&any_state.arrived, 1, __ATOMIC_ACQ_REL);
    if (status == TP_ERR_CLOSED) {
        tpx_check(pipe == NULL, "a pipe at the end");
        any_state.ended++;
        return;
    }
    tpx_ok(status);
    skeleton->payloads[0].data = &any_state.numbers[tp_pipe_rank(pipe)];
    tpx_ok(tp_pipe_read(pipe, skeleton, any_read, arg));
    if (any_state.again)
        tpx_ok(tp_read_descriptor_any(tpx_me.context, any_arrived, arg));
}

/* Have all messages of that many bytes come in and wait? */
static bool any_all_here(void)
{
    struct tp_stats stats;

    for (int rank = 1; rank < tpx_me.size; rank++) {
        tpx_ok(tp_pipe_stats(tpx_pipe(rank, 0), &stats));
        if (stats.bytes_buffered < ANY_EACH * sizeof(unsigned))
            return false;
    }
    return true;
}

static void any_send(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        tpx_ok(tp_pipe_send(tpx_pipe(0, 0), &i, sizeof(i)));
}

/* All wait to be served: they take turns, whether asked for one at a time from
 * outside or from inside the callback. */
static void any_turns(bool inside)
{
    unsigned all = ANY_EACH * (unsigned)(tpx_me.size - 1);

    if (tpx_me.rank != 0) {
        any_send(ANY_EACH);
        tpx_meet(0);
        return;
    }
    for (int rank = 1; rank < tpx_me.size; rank++)
        tpx_meet(rank);
    while (!any_all_here())
        if (tp_wait(tpx_me.context, 5, NULL) == TP_OK)
            tpx_fail(__FILE__, __LINE__, "something completed");
    any_state.again = inside;
    while (any_state.total < all) {
        unsigned before = __atomic_load_n(&any_state.total, __ATOMIC_ACQUIRE);

        tpx_ok(tp_read_descriptor_any(tpx_me.context, any_arrived, NULL));
        tpx_until(&any_state.total, inside ? all : before + 1);
    }
    tpx_check(any_state.lead <= 2, "one was %u messages ahead of another",
              any_state.lead);
    tpx_ok(tp_finalize(tpx_me.context));
    tpx_me.context = NULL;
    tpx_equal(any_state.ended, inside ? 1 : 0);
}

static void any_turns_outside(void)
{
    any_turns(false);
}

static void any_turns_inside(void)
{
    any_turns(true);
}

/* Many ranks at once, several armed. */
static void any_crowd(void)
{
    unsigned all = ANY_EACH * (unsigned)(tpx_me.size - 1);

    if (tpx_me.rank != 0) {
        any_send(ANY_EACH);
        return;
    }
    any_state.again = true;
    for (int i = 0; i < 4; i++)
        tpx_ok(tp_read_descriptor_any(tpx_me.context, any_arrived, NULL));
    tpx_until(&any_state.total, all);
    tpx_ok(tp_finalize(tpx_me.context));
    tpx_me.context = NULL;
    tpx_equal(any_state.ended, 4);
}

static void any_plain(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                      void *arg)
{
    static unsigned number;

    tpx_ok(status);
    tpx_equal(tp_pipe_rank(pipe), 1);
    skeleton->payloads[0].data = &number;
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, arg));
}

/* A pipe's own reader comes first, whichever was armed first; what comes
 * without one goes to any. */
static void any_beside(void)
{
    if (tpx_me.rank != 0) {
        unsigned i = 0;

        tpx_meet(0);
        tpx_ok(tp_pipe_send(tpx_pipe(0, 0), &i, sizeof(i)));
        tpx_ok(tp_pipe_send(tpx_pipe(0, 0), &i, sizeof(i)));
        /* Any would take a byte of ours. */
        tpx_ok(tp_pipe_recv(tpx_pipe(0, 1), &i, sizeof(i), NULL));
        return;
    }
    tpx_meet(1);
    tpx_ok(tp_pipe_read_descriptor(tpx_pipe(1, 0), any_plain,
                                   &any_state.plain));
    tpx_ok(tp_read_descriptor_any(tpx_me.context, any_arrived, NULL));
    tpx_until(&any_state.plain, 1);
    tpx_until(&any_state.total, 1);
    tpx_ok(tp_pipe_send(tpx_pipe(1, 1), "", 1));
}

/* Nothing but that many skeletons came, also not in the time that follows.
 * tp_wait() alone does not tell: it ends for a callback that the context's
 * thread ran before, whose work has been counted already. */
static void any_quiet(int ms, unsigned arrived)
{
    uint64_t until = tpx_now() + (uint64_t)ms * 1000000u;

    while (tpx_now() < until) {
        tp_status status = tp_wait(tpx_me.context, ms, NULL);

        tpx_check(status == TP_OK || status == TP_ERR_TIMEOUT, "\"%s\"",
                  tp_strerror(status));
    }
    tpx_equal(__atomic_load_n(&any_state.arrived, __ATOMIC_ACQUIRE), arrived);
}

/* A rank writes and dies or leaves: what it wrote is served; its end is not
 * told here, and the others go on. */
static void any_ends(void)
{
    unsigned i = 0;

    if (tpx_me.rank == 0) {
        for (unsigned k = 1; k < (unsigned)tpx_me.size; k++) {
            tpx_ok(tp_read_descriptor_any(tpx_me.context, any_arrived, NULL));
            tpx_until(&any_state.total, k);
        }
        tpx_ok(tp_read_descriptor_any(tpx_me.context, any_arrived, NULL));
        any_quiet(50, (unsigned)tpx_me.size - 1);
        tpx_ok(tp_finalize(tpx_me.context));
        tpx_me.context = NULL;
        tpx_equal(any_state.ended, 1);
        return;
    }
    tpx_ok(tp_pipe_send(tpx_pipe(0, 0), &i, sizeof(i)));
    if (tpx_me.rank == 1)
        tpx_ok(tp_pipe_close(tpx_pipe(0, 0)));
}

/* ---- short messages of all kinds ----------------------------------------- */

enum { ANY_LETTERS = 60, ANY_ARMED = 2 };

static uint64_t any_seed(int rank, unsigned number)
{
    return (uint64_t)rank * 1000 + number;
}

static void any_letter_read(tp_pipe *pipe, tp_status status,
                            tp_message *skeleton, void *arg)
{
    struct tpx_letter *letter = arg;

    (void)pipe;
    (void)skeleton;
    tpx_ok(status);
    tpx_letter_check(letter);
    tpx_letter_free(letter);
    __atomic_fetch_add(&any_state.total, 1, __ATOMIC_ACQ_REL);
}

static void any_letter_own(tp_pipe *pipe, tp_status status,
                           tp_message *skeleton, void *arg);

/* Each second message of a pipe is asked for by itself, as well: then it is not
 * for who takes any. */
static void any_letter_comes(tp_pipe *pipe, tp_message *skeleton, bool own)
{
    int rank = tp_pipe_rank(pipe);
    unsigned number = any_state.count[rank]++;

    tpx_equal(own, number % 2);
    /* First: the next message may be shown as soon as this one is read. */
    if (number % 2 == 0 && number + 1 < ANY_LETTERS)
        tpx_ok(tp_pipe_read_descriptor(pipe, any_letter_own, NULL));
    tpx_ok(tp_pipe_read(pipe, skeleton, any_letter_read,
                        tpx_letter_expect(any_seed(rank, number), TPX_SMALL,
                                          skeleton)));
}

static void any_letter_own(tp_pipe *pipe, tp_status status,
                           tp_message *skeleton, void *arg)
{
    (void)arg;
    tpx_ok(status);
    any_letter_comes(pipe, skeleton, true);
}

static void any_letter(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                       void *arg)
{
    if (status == TP_ERR_CLOSED) {
        any_state.ended++;
        return;
    }
    tpx_ok(status);
    any_letter_comes(pipe, skeleton, false);
    tpx_ok(tp_read_descriptor_any(tpx_me.context, any_letter, arg));
}

static void any_letters(void)
{
    struct tp_stats stats;
    char byte = 'e';

    if (tpx_me.rank != 0) {
        for (unsigned i = 0; i < ANY_LETTERS; i++) {
            struct tpx_letter *letter
                = tpx_letter_make(any_seed(tpx_me.rank, i), TPX_SMALL);

            tpx_ok(tp_pipe_send_message(tpx_pipe(0, 0), &letter->message, -1));
            tpx_letter_free(letter);
        }
        tpx_ok(tp_pipe_recv(tpx_pipe(0, 1), &byte, 1, NULL));
        return;
    }
    for (unsigned i = 0; i < ANY_ARMED; i++)
        tpx_ok(tp_read_descriptor_any(tpx_me.context, any_letter, NULL));
    tpx_until(&any_state.total, ANY_LETTERS * (unsigned)(tpx_me.size - 1));
    for (int rank = 1; rank < tpx_me.size; rank++) {
        tpx_equal(any_state.count[rank], ANY_LETTERS);
        tpx_ok(tp_pipe_stats(tpx_pipe(rank, 0), &stats));
        tpx_equal(stats.reads_pending, 0);
        tpx_equal(stats.messages_received, ANY_LETTERS);
    }
    for (int rank = 1; rank < tpx_me.size; rank++)
        tpx_ok(tp_pipe_send(tpx_pipe(rank, 1), &byte, 1));
    tpx_ok(tp_finalize(tpx_me.context));
    tpx_me.context = NULL;
    tpx_equal(any_state.ended, ANY_ARMED);
}

/* ---- from outside -------------------------------------------------------- */

static void any_accepted(tp_listener *listener, tp_status status,
                         tp_pipe *pipe, void *arg)
{
    (void)listener;
    tpx_ok(status);
    tpx_equal(tp_pipe_rank(pipe), -1);
    __atomic_fetch_add((unsigned *)arg, 1, __ATOMIC_ACQ_REL);
}

static void any_mixed_read(tp_pipe *pipe, tp_status status,
                           tp_message *skeleton, void *arg)
{
    (void)skeleton;
    (void)arg;
    tpx_ok(status);
    __atomic_fetch_add(tp_pipe_rank(pipe) < 0 ? &any_state.outside
                                              : &any_state.total, 1,
                       __ATOMIC_ACQ_REL);
}

static void any_mixed(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                      void *arg)
{
    static unsigned number;

    if (status == TP_ERR_CLOSED)
        return;
    tpx_ok(status);
    skeleton->payloads[0].data = &number;
    tpx_ok(tp_pipe_read(pipe, skeleton, any_mixed_read, arg));
    tpx_ok(tp_read_descriptor_any(tpx_me.context, any_mixed, arg));
}

/* Who was let in is served as ranks are; who was not is not: its message waits
 * for tp_accept(). */
static void any_outside(void)
{
    char address[1024];
    tp_listener *listener;
    unsigned accepted = 0, i = 0;
    tp_pipe *pipe;

    if (tpx_me.rank != 0) {
        tpx_ok(tp_pipe_recv(tpx_pipe(0, 1), address, sizeof(address), NULL));
        tpx_ok(tp_connect(tpx_me.context, address, &pipe));
        for (unsigned k = 0; k < ANY_EACH; k++) {
            tpx_ok(tp_pipe_send(pipe, &i, sizeof(i)));
            tpx_ok(tp_pipe_send(tpx_pipe(0, 0), &i, sizeof(i)));
        }
        tpx_ok(tp_pipe_recv(tpx_pipe(0, 1), address, 1, NULL));
        return;
    }
    tpx_ok(tp_listen(tpx_me.context, NULL, &listener));
    tpx_ok(tp_listener_address(listener, address, sizeof(address)));
    for (int rank = 1; rank < tpx_me.size; rank++)
        tpx_ok(tp_pipe_send(tpx_pipe(rank, 1), address, sizeof(address)));
    tpx_ok(tp_read_descriptor_any(tpx_me.context, any_mixed, NULL));
    tpx_until(&any_state.total, ANY_EACH * (unsigned)(tpx_me.size - 1));
    tpx_equal(any_state.outside, 0);
    for (int rank = 1; rank < tpx_me.size; rank++)
        tpx_ok(tp_accept(listener, any_accepted, &accepted));
    tpx_until(&any_state.outside, ANY_EACH * (unsigned)(tpx_me.size - 1));
    tpx_equal(accepted, tpx_me.size - 1);
    for (int rank = 1; rank < tpx_me.size; rank++)
        tpx_ok(tp_pipe_send(tpx_pipe(rank, 1), "", 1));
}

static void any_long(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                     void *arg)
{
    tpx_ok(status);
    skeleton->payloads[0].data = arg;
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, &any_state.plain));
}

/* A message that was too long for who received it stays, and waits for any:
 * whether its bytes came, or only where they lie. */
static void any_truncated(void)
{
    enum { LONG = 256 * 1024 };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned char byte;
    size_t length;
    void *memory;

    tpx_ok(tp_alloc(tpx_me.context, LONG, (tp_device){ TP_DEVICE_CPU, 0 },
                    &memory));
    tpx_meet(!tpx_me.rank);
    for (unsigned i = 0; i < 4; i++) {
        if (tpx_me.rank != 0) {
            tpx_fill(memory, LONG, i);
            tpx_ok(tp_pipe_send(pipe, memory, LONG));
            continue;
        }
        tpx_status(tp_pipe_recv(pipe, &byte, 1, &length), TP_ERR_TRUNCATED);
        tpx_equal(length, LONG);
        any_state.plain = 0;
        tpx_ok(tp_read_descriptor_any(tpx_me.context, any_long, memory));
        tpx_until(&any_state.plain, 1);
        tpx_equal(tpx_verify(memory, LONG, i), LONG);
    }
}

/* The same, but who waits for any comes in the callback of what ends together
 * with its arrival. */
static void any_written(tp_pipe *pipe, tp_status status, tp_message *message,
                        void *arg)
{
    (void)pipe;
    (void)message;
    tpx_ok(status);
    tpx_ok(tp_read_descriptor_any(tpx_me.context, any_long, arg));
}

static void any_together(void)
{
    enum { LONGEST = 1 << 20, FIRST = 1 << 18, MANY_MS = 50 };
    static const size_t sizes[] = { 8, 1000, 20000, LONGEST };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    tp_payload payload = { .length = FIRST };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    void *memory;
    char byte;

    tpx_ok(tp_alloc(tpx_me.context, LONGEST, (tp_device){ TP_DEVICE_CPU, 0 },
                    &memory));
    tpx_ok(tp_alloc(tpx_me.context, FIRST, (tp_device){ TP_DEVICE_CPU, 0 },
                    &payload.data));
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (tpx_me.rank != 0) {
            tpx_ok(tp_pipe_recv(pipe, payload.data, FIRST, NULL));
            tpx_fill(memory, sizes[i], i);
            tpx_ok(tp_pipe_send(pipe, memory, sizes[i]));
            continue;
        }
        any_state.plain = 0;
        /* Both are there by then, where it is fetched; nothing is taken, or the
         * message would be anybody's. */
        tpx_ok(tp_pipe_write(pipe, &message, any_written, memory));
        usleep(MANY_MS * 1000);
        tpx_status(tp_pipe_recv(pipe, &byte, 1, NULL), TP_ERR_TRUNCATED);
        tpx_until(&any_state.plain, 1);
        tpx_equal(tpx_verify(memory, sizes[i], i), sizes[i]);
    }
}

const struct tpx_spmd tpx_any[] = {
    { "any_turns_outside", any_turns_outside, 4, 0, 30 },
    { "any_turns_inside", any_turns_inside, 4, 0, 30 },
    { "any_crowd", any_crowd, 12, TPX_LAUNCH, 40 },
    { "any_letters", any_letters, 4, 0, 30 },
    { "any_beside", any_beside, 2, 0 },
    { "any_ends", any_ends, 4, 0 },
    { "any_outside", any_outside, 3, 0, 30 },
    { "any_truncated", any_truncated, 2, 0, 30 },
    { "any_together", any_together, 2, TPX_CHANNELS | TPX_MANUAL, 30 },
    { NULL }
};
