/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises 1, 2 and 4: order, exactly once, one callback at a time; and every
 * byte as it was written. */
#include "config.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/multi/flow.h"

enum { ORDER_FLOWS = 64 };

static struct tpx_flow order_flows[ORDER_FLOWS];

/* More in the long run, less where memory is slow. */
static unsigned order_scaled(unsigned count)
{
    if (tpx_me.full)
        count *= 10;
    return tpx_me.few ? count / 12 + 1
           : tpx_me.sanitized ? count / 4 + 1 : count;
}

static void order_pair(void)
{
    static const struct tpx_flow_plan plans[] = {
        { TPX_MIXED, 400, 8, 3 }, { TPX_SMALL, 1500, 32, 8 },
        { TPX_MIXED, 150, 1, 1 }, { TPX_BIG, 6, 2, 2 }
    };
    unsigned count = sizeof(plans) / sizeof(plans[0]);

    for (unsigned i = 0; i < count; i++) {
        struct tpx_flow_plan plan = plans[i];

        plan.count = order_scaled(plan.count);
        tpx_flow_start(&order_flows[i], !tpx_me.rank, i * 3, &plan);
    }
    tpx_flow_finish(order_flows, count);
}

/* Many pipes between two, by numbers of all kinds, found in a table that grows
 * while messages come; for half of them before they are opened at rank 1. */
static void order_numbers(void)
{
    enum { PIPES = 300 };
    const struct tpx_flow_plan plan = { TPX_SMALL, order_scaled(12), 3, 2 };
    const unsigned part = tpx_me.rank == 0 ? PIPES : PIPES / 2;
    struct tpx_flow *flows = calloc(PIPES, sizeof(*flows));

    tpx_check(flows != NULL, "no memory for the test itself");
    for (unsigned from = 0; from < PIPES; from += part) {
        for (unsigned i = from; i < from + part; i++)
            tpx_flow_start(&flows[i], !tpx_me.rank,
                           i % 3 == 0 ? i + 1 : i % 3 == 1 ? i << 16
                           : i * UINT32_C(2654435761), &plan);
        tpx_flow_finish(flows + from, part);
    }
    free(flows);
}

static void order_self(void)
{
    static const struct tpx_flow_plan plans[] = {
        { TPX_MIXED, 300, 8, 3 }, { TPX_SMALL, 1500, 32, 8 },
        { TPX_BIG, 6, 2, 2 }
    };

    for (unsigned i = 0; i < 3; i++) {
        struct tpx_flow_plan plan = plans[i];

        plan.count = order_scaled(plan.count);
        tpx_flow_start(&order_flows[i], tpx_me.rank, i, &plan);
    }
    tpx_flow_finish(order_flows, 3);
}

/* Everybody with everybody, himself included, at once from the start: so all
 * connections cross. */
static void order_all(void)
{
    struct tpx_flow_plan plan = { TPX_MIXED, order_scaled(60), 4, 2 };

    for (int rank = 0; rank < tpx_me.size; rank++)
        tpx_flow_start(&order_flows[rank], rank, 0, &plan);
    tpx_flow_finish(order_flows, (unsigned)tpx_me.size);
}

static void order_neighbours(void)
{
    struct tpx_flow_plan plan = { TPX_SMALL, order_scaled(100), 4, 2 };
    int size = tpx_me.size, rank = tpx_me.rank;

    tpx_flow_start(&order_flows[0], (rank + 1) % size, 0, &plan);
    tpx_flow_start(&order_flows[1], (rank + size - 1) % size, 0, &plan);
    tpx_flow_start(&order_flows[2], (rank + size / 2) % size, 5, &plan);
    tpx_flow_finish(order_flows, 3);
}

/* The blocking calls, turn by turn. */
static void order_blocking(void)
{
    static const size_t sizes[] = { 0, 1, 7, 8, 40, 4096, 16487, 16488, 16489,
                                    65535, 65536, 65537, 1 << 20, 5 << 20 };
    enum { SIZES = sizeof(sizes) / sizeof(sizes[0]), MOST = 5 << 20 };
    unsigned char *memory = malloc(MOST + 1);
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);

    tpx_check(memory != NULL, "no memory for the test itself");
    for (unsigned turn = 0; turn < order_scaled(100) * SIZES; turn++) {
        size_t size = sizes[turn % SIZES], length = 99;

        if (size > 100000 && turn > 3 * SIZES)
            size = turn;
        if (turn % 2 == (unsigned)tpx_me.rank) {
            tpx_fill(memory, size, turn);
            tpx_ok(tp_pipe_send(pipe, memory, size));
        } else {
            memory[size] = 77;
            tpx_ok(tp_pipe_recv(pipe, memory, MOST, &length));
            tpx_equal(length, size);
            tpx_equal(tpx_verify(memory, size, turn), size);
            tpx_equal(memory[size], 77);
        }
    }
    free(memory);
}

/* Both send first; what is on its way is more than any ring holds, but each
 * side has armed its reads. */
static void order_blocking_letters(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);

    for (unsigned i = 0; i < order_scaled(150); i++) {
        uint64_t seed = tpx_me.seed + i * 2u;
        struct tpx_letter *mine, *theirs;
        tp_message *skeleton;

        mine = tpx_letter_make(seed + (uint64_t)tpx_me.rank, TPX_MIXED);
        if (tpx_me.rank == 0)
            tpx_ok(tp_pipe_send_message(pipe, &mine->message, -1));
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, tpx_limit_ms(20000)));
        theirs = tpx_letter_expect(seed + !tpx_me.rank, TPX_MIXED, skeleton);
        tpx_ok(tp_pipe_recv_message(pipe, skeleton, tpx_limit_ms(20000)));
        tpx_letter_check(theirs);
        if (tpx_me.rank == 1)
            tpx_ok(tp_pipe_send_message(pipe, &mine->message,
                                        tpx_limit_ms(20000)));
        tpx_letter_free(mine);
        tpx_letter_free(theirs);
    }
}

struct order_place {
    unsigned char *data;
    size_t length;                 /* of what is to come */
    unsigned *ended;
};

static void order_place(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                        void *arg)
{
    struct order_place *place = arg;

    tpx_ok(status);
    tpx_equal(skeleton->payloads[0].length, place->length);
    skeleton->payloads[0].data = place->data;
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, place->ended));
}

static long order_faults(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

/* For so long nobody asks for what comes. */
static void order_pass(unsigned ms)
{
    uint64_t until = tpx_now() + ms * UINT64_C(1000000);

    while (tpx_now() < until)
        tp_wait(tpx_me.context, 1, NULL);
}

/* From now on free() gives back to the kernel what is longer than this: else
 * malloc() would keep what we do not, and nobody would see that. */
static void order_hoard_nothing(void)
{
    enum { ORDER_SHORT = 16 * 1024 };

    /* Sanitizers have a malloc() of their own, which takes no orders. */
    tpx_check(tpx_me.sanitized
              || mallopt(M_MMAP_THRESHOLD, ORDER_SHORT) == 1, "mallopt");
}

/* Both write a message before they ask for the other's, which is set aside, as
 * far as it comes by itself.  The memory for that is kept: it is not taken from
 * the kernel page by page in each round. */
static void order_rounds(void)
{
    static const size_t sizes[] = { 390000, 1, 300000, 4000, 100000, 20000 };
    enum { SIZES = sizeof(sizes) / sizeof(sizes[0]), MOST = 390000 };
    unsigned rounds = order_scaled(96), third = rounds / 3, ended = 0;
    tp_payload payload = { .data = malloc(MOST) };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    struct order_place place = { .data = malloc(MOST), .ended = &ended };
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    long faults[3] = { 0 }, least;

    tpx_check(payload.data != NULL && place.data != NULL, "no memory");
    order_hoard_nothing();
    for (unsigned round = 0; round < rounds; round++) {
        payload.length = place.length = sizes[round % SIZES];
        tpx_fill(payload.data, payload.length,
                 2 * round + (unsigned)tpx_me.rank);
        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &ended));
        tpx_meet(!tpx_me.rank);    /* now it has been written there, too */
        order_pass(2);
        tpx_ok(tp_pipe_read_descriptor(pipe, order_place, &place));
        tpx_until(&ended, 2 * round + 2);
        tpx_equal(tpx_verify(place.data, place.length,
                             2 * round + !tpx_me.rank), place.length);
        if ((round + 1) % third == 0 && round / third < 3)
            faults[round / third] = order_faults();
    }
    /* The first of all are new; later there are some 80 in 32 rounds at most,
     * as not the same comes each time.  Page by page it is 400 to 1100.  Rails
     * have new memory for what comes out of order. */
    least = faults[1] - faults[0];
    if (faults[2] - faults[1] < least)
        least = faults[2] - faults[1];
    tpx_check(tpx_me.sanitized || tpx_backend("rails")
              || least < 3 * (long)third + 200,
              "%ld pages were new in %u rounds", least, third);
    free(payload.data);
    free(place.data);
}

/* ---- who called first --------------------------------------------------- */

enum { TURNS_PIPE = 40 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool inside, called;       /* the callback runs; the thread has called */
    unsigned first, second;    /* which byte whose skeleton got */
    unsigned over;
    char bytes[3];             /* 0, 1, 2: written in this order */
    tp_payload payloads[3];
    tp_message messages[3];
} turns = { .lock = PTHREAD_MUTEX_INITIALIZER,
            .changed = PTHREAD_COND_INITIALIZER };

static void turns_write(unsigned i)
{
    turns.bytes[i] = (char)i;
    turns.payloads[i] = (tp_payload){ .data = &turns.bytes[i], .length = 1 };
    turns.messages[i] = (tp_message){ .payloads = &turns.payloads[i],
                                      .payload_count = 1 };
    tpx_ok(tp_pipe_write(tpx_pipe(!tpx_me.rank, TURNS_PIPE),
                         &turns.messages[i], tpx_count_ok, &turns.over));
}

/* Puts the first byte of the message into *arg. */
static void turns_arrived(tp_pipe *pipe, tp_status status, tp_message *message,
                          void *arg)
{
    static char bytes[3];
    static unsigned next;

    tpx_ok(status);
    *(unsigned *)arg = next;
    message->payloads[0].data = &bytes[next++];
    tpx_ok(tp_pipe_read(pipe, message, tpx_count_ok, &turns.over));
}

/* Until the other thread has called; then the same calls, behind its. */
static void turns_callback(tp_pipe *pipe, tp_status status,
                           tp_message *message, void *arg)
{
    (void)message;
    (void)arg;
    tpx_ok(status);
    pthread_mutex_lock(&turns.lock);
    turns.inside = true;
    pthread_cond_broadcast(&turns.changed);
    while (!turns.called)
        pthread_cond_wait(&turns.changed, &turns.lock);
    pthread_mutex_unlock(&turns.lock);
    turns_write(2);
    tpx_ok(tp_pipe_read_descriptor(tpx_pipe(!tpx_me.rank, TURNS_PIPE),
                                   turns_arrived, &turns.second));
    __atomic_fetch_add(&turns.over, 1, __ATOMIC_ACQ_REL);
    (void)pipe;
}

static void *turns_thread(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&turns.lock);
    while (!turns.inside)
        pthread_cond_wait(&turns.changed, &turns.lock);
    pthread_mutex_unlock(&turns.lock);
    turns_write(1);
    tpx_ok(tp_pipe_read_descriptor(tpx_pipe(!tpx_me.rank, TURNS_PIPE),
                                   turns_arrived, &turns.first));
    pthread_mutex_lock(&turns.lock);
    turns.called = true;
    pthread_cond_broadcast(&turns.changed);
    pthread_mutex_unlock(&turns.lock);
    return NULL;
}

/* A call from a callback does not overtake one that another thread made, and
 * came back from, while that callback ran. */
static void order_turns(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, TURNS_PIPE);
    pthread_t thread;
    char byte = 9;

    turns_write(0);
    tpx_until(&turns.over, 1);
    tpx_ok(tp_pipe_recv(pipe, &byte, 1, NULL));
    tpx_equal(byte, 0);
    tpx_equal(pthread_create(&thread, NULL, turns_thread, NULL), 0);
    tpx_ok(tp_pipe_write(tpx_pipe(tpx_me.rank, 0), &turns.messages[0],
                         turns_callback, NULL));
    tpx_ok(tp_pipe_recv(tpx_pipe(tpx_me.rank, 0), &byte, 1, NULL));
    tpx_until(&turns.over, 6);
    tpx_equal(pthread_join(thread, NULL), 0);
    tpx_equal(turns.first, 0);
    tpx_equal(turns.second, 1);
}

/* ---- writes of a pipe that the other side closes ------------------------ */

enum { ENDS_WRITES = 40, ENDS_SIZE = 100000 };

static struct {
    unsigned ended;
    tp_message messages[ENDS_WRITES];
    tp_payload payload;
} ends;

static void ends_written(tp_pipe *pipe, tp_status status, tp_message *message,
                         void *arg)
{
    (void)pipe;
    (void)arg;
    tpx_check(status == TP_OK || status == TP_ERR_PEER_CLOSED, "%s",
              tp_strerror(status));
    tpx_equal(message - ends.messages, ends.ended);
    __atomic_fetch_add(&ends.ended, 1, __ATOMIC_ACQ_REL);
}

static void ends_write(tp_pipe *pipe)
{
    for (unsigned i = 0; i < ENDS_WRITES; i++) {
        ends.messages[i] = (tp_message){ .payloads = &ends.payload,
                                         .payload_count = 1 };
        tpx_ok(tp_pipe_write(pipe, &ends.messages[i], ends_written, NULL));
        if (i >= ENDS_WRITES / 4)
            tpx_ok(tp_progress(tpx_me.context, NULL));
    }
    tpx_until(&ends.ended, ENDS_WRITES);
}

/* Those of which the transport still has something, when the end comes, are
 * told before those that were written after it. */
static void order_ends(void)
{
    static unsigned char memory[ENDS_SIZE];

    ends.payload = (tp_payload){ .data = memory, .length = sizeof(memory) };
    for (unsigned turn = 0; turn < order_scaled(40); turn++) {
        tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 100 + turn);

        if (tpx_me.rank == 0) {
            ends.ended = 0;
            ends_write(pipe);
        } else {
            tpx_ok(tp_pipe_recv(pipe, memory, sizeof(memory), NULL));
            tpx_ok(tp_pipe_close(pipe));
        }
    }
}

/* ---- several threads on one pipe ----------------------------------------- */

enum { ONE_THREADS = 2, ONE_EACH = 120, ONE_LONG = 700000 };

/* First in each message. */
struct one_head {
    uint32_t sender, number;
};

static struct one_pipe {
    unsigned taken;            /* messages that a thread here reads */
    unsigned read[ONE_THREADS][ONE_EACH];      /* how often */
} one_pipe;

static unsigned one_each(void)
{
    return tpx_me.few || tpx_me.sanitized ? ONE_EACH / 6 : ONE_EACH;
}

/* In one frame or several, by a channel, in parts. */
static size_t one_length(unsigned number)
{
    static const size_t lengths[] = { 8, 3000, ONE_LONG, 60000 };

    return lengths[number % 4] + number;
}

static uint64_t one_seed(struct one_head head)
{
    return (uint64_t)head.sender << 32 | head.number;
}

static void one_send(unsigned sender, unsigned char *bytes)
{
    struct one_head head = { .sender = sender };

    for (; head.number < one_each(); head.number++) {
        size_t length = one_length(head.number);

        memcpy(bytes, &head, sizeof(head));
        tpx_fill(bytes + sizeof(head), length - sizeof(head), one_seed(head));
        tpx_ok(tp_pipe_send(tpx_pipe(!tpx_me.rank, 0), bytes, length));
    }
}

/* Gets some of the messages; another thread may still be at the one before. */
static void one_receive(unsigned char *bytes)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    unsigned next[ONE_THREADS] = { 0 };

    while (__atomic_fetch_add(&one_pipe.taken, 1, __ATOMIC_RELAXED)
           < ONE_THREADS * one_each()) {
        tp_message *skeleton;
        struct one_head head;
        size_t length;

        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, -1));
        tpx_equal(skeleton->payload_count, 1);
        length = skeleton->payloads[0].length;
        tpx_check(length < ONE_LONG + ONE_EACH, "%zu bytes", length);
        skeleton->payloads[0].data = bytes;
        tpx_ok(tp_pipe_recv_message(pipe, skeleton, -1));
        memcpy(&head, bytes, sizeof(head));
        tpx_check(head.sender < ONE_THREADS && head.number < one_each()
                      && length == one_length(head.number), "garbage");
        tpx_check(head.number >= next[head.sender], "%u again", head.number);
        next[head.sender] = head.number + 1;
        __atomic_fetch_add(&one_pipe.read[head.sender][head.number], 1,
                           __ATOMIC_RELAXED);
        length -= sizeof(head);
        tpx_equal(tpx_verify(bytes + sizeof(head), length, one_seed(head)),
                  length);
    }
}

static void *one_run(void *arg)
{
    unsigned number = *(const unsigned *)arg;
    unsigned char *bytes = malloc(ONE_LONG + ONE_EACH);

    tpx_check(bytes != NULL, "no memory");
    if (number < ONE_THREADS)
        one_send(number, bytes);
    else
        one_receive(bytes);
    free(bytes);
    return NULL;
}

/* Two write to it, and two read from it, at once: each message is one
 * thread's. */
static void order_one_pipe(void)
{
    pthread_t threads[2 * ONE_THREADS];
    unsigned numbers[2 * ONE_THREADS];

    for (unsigned i = 0; i < 2 * ONE_THREADS; i++) {
        numbers[i] = i;
        tpx_equal(pthread_create(&threads[i], NULL, one_run, &numbers[i]), 0);
    }
    for (unsigned i = 0; i < 2 * ONE_THREADS; i++)
        tpx_equal(pthread_join(threads[i], NULL), 0);
    for (unsigned i = 0; i < ONE_THREADS * one_each(); i++)
        tpx_equal(one_pipe.read[i % ONE_THREADS][i / ONE_THREADS], 1);
    tpx_meet(!tpx_me.rank);
}

const struct tpx_spmd tpx_order[] = {
    { "order_pair", order_pair, 2, TPX_LAUNCH, 60 },
    { "order_numbers", order_numbers, 2, TPX_LAUNCH, 60 },
    { "order_self", order_self, 1, TPX_LAUNCH, 60 },
    { "order_all", order_all, 4, TPX_LAUNCH, 60 },
    { "order_neighbours", order_neighbours, 16, TPX_LAUNCH, 60 },
    { "order_turns", order_turns, 2, TPX_LAUNCH, 60 },
    { "order_rounds", order_rounds, 2, TPX_LAUNCH, 60 },
    { "order_ends", order_ends, 2, TPX_LAUNCH, 60 },
    { "order_one_pipe", order_one_pipe, 2, TPX_LAUNCH, 60 },
    { "order_blocking", order_blocking, 2, TPX_LAUNCH, 60 },
    { "order_blocking_letters", order_blocking_letters, 2, TPX_LAUNCH, 60 },
    { NULL }
};
