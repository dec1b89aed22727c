/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A storm: every rank does random things on random pipes to every other rank
 * and to itself, and holds all that happens against the promises of tp.h.
 *
 *     tprun --keep-going -n 4 storm SEED [key=value ...]
 *
 *     pipes=4      pipes one after the other between two ranks
 *     lanes=1      such rows of pipes beside each other
 *     arms=1       reads that are armed at a time on one of them, at most
 *     messages=40  messages each way on one of them, at most
 *     bytes=300000 the longest buffer
 *     kill=R       rank R kills itself with SIGKILL somewhere on its way
 *     threads=N    threads that write beside the callbacks
 *     waits=N      threads in tp_wait() and tp_progress()
 *     stop=R       rank R is stopped for a moment, now and then
 *
 * What a pipe carries, and who ends it after how much, follows from the seed
 * and is known to both of its ends; when and how things are done (read now or
 * later, lent, in how many pieces) is each rank's own dice.  Exit status 0: all
 * promises were kept.  Else the first that was not is told on standard error.
 */
#include "config.h"

#include <pthread.h>
#include <signal.h>
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

enum { RANKS = 16, LANES = 8, WRITES = 6, PIECES = 4, THREADS = 16 };

static struct {
    uint64_t seed;
    unsigned pipes, lanes, arms, messages;
    size_t bytes;
    int kill, stop, threads, waits;
} plan = { .pipes = 4, .lanes = 1, .arms = 1, .messages = 40,
           .bytes = 300000, .kill = -1, .stop = -1 };

/* One message of ours, from its write to the callback. */
struct outgoing {
    tp_message message;            /* first: the callback gets it back */
    tp_payload payloads[PIECES];
    tp_tensor tensors[PIECES];
    struct stream *stream;
    unsigned sequence;
    int called;
    bool lent;                     /* its memory is of tp_alloc() */
    char metadata[48];
};

/* One skeleton, from its arrival to its end. */
struct incoming {
    struct stream *stream;
    tp_message *skeleton;
    unsigned sequence, turn;
    bool borrowed, done, good;
    struct incoming *next;
};

/* This rank's end of one pipe. */
struct stream {
    tp_pipe *pipe;
    int rank;                      /* at the other end */
    unsigned number, last;         /* of the pipe; of the row's last one */
    unsigned to_write, to_read;    /* by the plan, if nobody ends it before */
    unsigned written, write_ended; /* calls, callbacks */
    unsigned arrived, turns, read_ended;
    unsigned open;                 /* skeletons and armed reads */
    unsigned armed;
    bool quits, closed, over, failed;
    unsigned quit_after;           /* reads after which this end closes it */
};

static struct {
    pthread_mutex_t lock;          /* recursive: over all below */
    tp_context *context;
    uint64_t dice;
    int rank, size;
    unsigned count;                /* of the following */
    struct stream streams[RANKS * LANES]; /* the one in use of each row */
    struct incoming *later;        /* skeletons and loans set aside */
    atomic_uint inside;            /* callbacks running */
    unsigned operations, deadly;   /* this rank dies at that operation */
    unsigned pending;              /* callbacks owed */
    unsigned long long sent, got;
    bool finishing;
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
    fprintf(stderr, "storm %llu: rank %d: %s\n",
            (unsigned long long) plan.seed, my.rank, text);
    fflush(stderr);
    abort();
}

/* ---- what follows from the seed ---------------------------------------- */

static unsigned dice(unsigned sides)
{
    my.dice = mix(my.dice);
    return (unsigned) (my.dice % sides);
}

/* Of the message `sequence` from one rank to another; of the pipe itself with
 * the sequence -1. */
static uint64_t facts(int from, int to, unsigned number, unsigned sequence)
{
    uint64_t at = ((uint64_t) (unsigned) from << 48)
                  ^ ((uint64_t) (unsigned) to << 40)
                  ^ ((uint64_t) number << 32) ^ sequence;

    return mix(plan.seed ^ mix(at));
}

static unsigned plan_count(int from, int to, unsigned number)
{
    return (unsigned) (facts(from, to, number, -1u) % (plan.messages + 1));
}

/* Mostly short, sometimes none, sometimes as long as it gets. */
static size_t piece_length(uint64_t fact, unsigned piece)
{
    uint64_t roll = mix(fact + piece);
    static const size_t odd[] = { 0, 1, 7, 8, 63, 64, 65, 4095, 4096, 16384 };

    switch (roll & 7) {
    case 0: case 1:
        return odd[(roll >> 8) % 10];
    case 2: case 3: case 4:
        return (size_t) ((roll >> 8) % 300);
    case 5: case 6:
        return (size_t) ((roll >> 8) % 9000);
    default:
        return (size_t) ((roll >> 8) % (plan.bytes + 1));
    }
}

static void fill(void *data, size_t length, uint64_t key)
{
    unsigned char *bytes = data;
    uint64_t value = 0;

    for (size_t i = 0; i < length; i++) {
        if (i % 8 == 0)
            value = mix(key ^ i);
        bytes[i] = (unsigned char) (value >> (i % 8 * 8));
    }
}

static bool holds(const void *data, size_t length, uint64_t key)
{
    const unsigned char *bytes = data;
    uint64_t value = 0;

    for (size_t i = 0; i < length; i++) {
        if (i % 8 == 0)
            value = mix(key ^ i);
        if (bytes[i] != (unsigned char) (value >> (i % 8 * 8)))
            return false;
    }
    return true;
}

/* Where it goes wrong and for how long, and what is there instead: zeros were
 * never written, 0xdd was given back too early. */
static void tell_damage(const void *data, size_t length, uint64_t key)
{
    const unsigned char *bytes = data;
    size_t first = length, last = 0, bad = 0;

    for (size_t i = 0; i < length; i++) {
        uint64_t value = mix(key ^ (i - i % 8));

        if (bytes[i] == (unsigned char) (value >> (i % 8 * 8)))
            continue;
        first = first == length ? i : first;
        last = i;
        bad++;
    }
    fprintf(stderr, "storm: rank %d: of %zu bytes at %p %zu are wrong, from "
            "%zu to %zu:", my.rank, length, data, bad, first, last);
    for (size_t i = first; i < length && i < first + 16; i++)
        fprintf(stderr, " %02x", bytes[i]);
    fprintf(stderr, "\n");
}

/* ---- one operation more ------------------------------------------------ */

static void operation(tp_status status, const char *call)
{
    if (status != TP_OK)
        wrong("%s said %s at once", call, tp_strerror(status));
    my.pending++;
    if (++my.operations == my.deadly)
        raise(SIGKILL);
}

/* Where the program calls tp_wait() no lock of ours is held; elsewhere no
 * callback may come on this thread, and it would find this set. */
static _Thread_local bool calling;

/* No two callbacks at once; a recursive one would be two as well. */
static void callback_begins(void)
{
    if (atomic_fetch_add(&my.inside, 1) != 0)
        wrong("a callback while another one runs");
    if (calling)
        wrong("a callback from inside a call that does not wait");
    pthread_mutex_lock(&my.lock);
    if (my.pending-- == 0)
        wrong("a callback that nobody is owed");
}

static void callback_ends(void)
{
    pthread_mutex_unlock(&my.lock);
    atomic_fetch_sub(&my.inside, 1);
}

/* The ends that a stream may come to, besides well. */
static void stream_trouble(struct stream *stream, tp_status status,
                           const char *what)
{
    bool doomed = stream->rank == plan.kill;

    if (status == TP_ERR_CLOSED && (stream->closed || my.finishing))
        return;
    if (status == TP_ERR_PEER_CLOSED && !my.finishing)
        stream->over = true;
    else if (status == TP_ERR_PEER_FAILED && doomed)
        stream->over = stream->failed = true;
    else if (!my.finishing)
        wrong("%s of pipe %u with rank %d: %s (%s)", what, stream->number,
              stream->rank, tp_strerror(status),
              tp_pipe_error(stream->pipe));
}

/* ---- writing ----------------------------------------------------------- */

static void *outgoing_memory(struct outgoing *out, size_t length)
{
    void *memory = NULL;

    if (length == 0)
        return NULL;
    if (!out->lent)
        return malloc(length);
    if (tp_alloc(my.context, length, (tp_device) { TP_DEVICE_CPU, 0 },
                 &memory) != TP_OK)
        wrong("tp_alloc of %zu bytes", length);
    return memory;
}

/* What is written over memory that was given back too early shows. */
static void outgoing_drop(struct outgoing *out, void *memory, size_t length)
{
    if (memory == NULL)
        return;
    memset(memory, 0xdd, length);
    if (!out->lent)
        free(memory);
    else if (tp_free(my.context, memory) != TP_OK)
        wrong("tp_free");
}

static void outgoing_free(struct outgoing *out)
{
    for (size_t i = 0; i < out->message.payload_count; i++)
        outgoing_drop(out, out->payloads[i].data, out->payloads[i].length);
    for (size_t i = 0; i < out->message.tensor_count; i++)
        outgoing_drop(out, out->tensors[i].data, out->tensors[i].length);
    free(out);
}

static struct outgoing *outgoing_make(struct stream *stream)
{
    struct outgoing *out = calloc(1, sizeof(*out));
    uint64_t fact = facts(my.rank, stream->rank, stream->number,
                          stream->written);
    tp_message *message;

    if (out == NULL)
        wrong("no memory");
    message = &out->message;
    out->stream = stream;
    out->sequence = stream->written;
    out->lent = dice(3) == 0;
    message->metadata = out->metadata;
    message->metadata_length = (size_t)
        snprintf(out->metadata, sizeof(out->metadata), "%d>%d %u %u", my.rank,
                 stream->rank, stream->number, stream->written);
    message->payload_count = fact % (PIECES + 1);
    message->payloads = message->payload_count > 0 ? out->payloads : NULL;
    message->tensor_count = (fact >> 8) % 4 == 0 ? (fact >> 16) % PIECES : 0;
    message->tensors = message->tensor_count > 0 ? out->tensors : NULL;
    for (unsigned i = 0; i < message->payload_count; i++) {
        out->payloads[i].length = piece_length(fact, i);
        out->payloads[i].data = outgoing_memory(out, out->payloads[i].length);
        fill(out->payloads[i].data, out->payloads[i].length, fact + i);
    }
    for (unsigned i = 0; i < message->tensor_count; i++) {
        out->tensors[i].length = piece_length(fact, 10 + i);
        out->tensors[i].data = outgoing_memory(out, out->tensors[i].length);
        out->tensors[i].target.type = TP_DEVICE_ANY;
        fill(out->tensors[i].data, out->tensors[i].length, fact + 10 + i);
    }
    return out;
}

static void stream_go(struct stream *stream);

static void write_done(tp_pipe *pipe, tp_status status, tp_message *message,
                       void *arg)
{
    struct outgoing *out = arg;
    struct stream *stream = out->stream;

    callback_begins();
    if (pipe != stream->pipe || message != &out->message)
        wrong("a write's callback for another one");
    if (out->called++ != 0)
        wrong("a second callback of one write");
    if (out->sequence != stream->write_ended++)
        wrong("callback of write %u when that of %u is due", out->sequence,
              stream->write_ended - 1);
    if (status != TP_OK)
        stream_trouble(stream, status, "write");
    else
        my.sent++;
    outgoing_free(out);
    stream_go(stream);
    callback_ends();
}

static void stream_write(struct stream *stream)
{
    struct outgoing *out = outgoing_make(stream);

    stream->written++;
    operation(tp_pipe_write(stream->pipe, &out->message, write_done, out),
              "tp_pipe_write");
}

/* ---- reading ----------------------------------------------------------- */

static void buffer_check(const struct incoming *in, const char *what,
                         unsigned index, const void *data, size_t length,
                         uint64_t key)
{
    if (holds(data, length, key))
        return;
    tell_damage(data, length, key);
    wrong("%s %u (%zu bytes) of message %u of pipe %u from rank %d is not what"
          " was sent (%s)", what, index, length, in->sequence,
          in->stream->number, in->stream->rank,
          in->borrowed ? "lent" : "read");
}

static void incoming_check(struct incoming *in)
{
    const tp_message *skeleton = in->skeleton;
    uint64_t fact = facts(in->stream->rank, my.rank, in->stream->number,
                          in->sequence);

    for (unsigned i = 0; i < skeleton->payload_count; i++)
        buffer_check(in, "payload", i, skeleton->payloads[i].data,
                     skeleton->payloads[i].length, fact + i);
    for (unsigned i = 0; i < skeleton->tensor_count; i++)
        buffer_check(in, "tensor", i, skeleton->tensors[i].data,
                     skeleton->tensors[i].length, fact + 10 + i);
}

static void incoming_end(struct incoming *in)
{
    tp_message *skeleton = in->skeleton;
    struct stream *stream = in->stream;

    if (in->borrowed) {
        if (in->good && tp_pipe_release(stream->pipe, skeleton) != TP_OK)
            wrong("tp_pipe_release");
        if (tp_pipe_release(stream->pipe, skeleton) != TP_ERR_INVALID)
            wrong("a second tp_pipe_release was good");
    } else {
        for (size_t i = 0; i < skeleton->payload_count; i++)
            free(skeleton->payloads[i].data);
        for (size_t i = 0; i < skeleton->tensor_count; i++)
            free(skeleton->tensors[i].data);
    }
    stream->open--;
    free(in);
    stream_go(stream);
}

static void incoming_later(struct incoming *in)
{
    in->next = my.later;
    my.later = in;
}

static void read_done(tp_pipe *pipe, tp_status status, tp_message *message,
                      void *arg)
{
    struct incoming *in = arg;
    struct stream *stream = in->stream;

    callback_begins();
    if (pipe != stream->pipe || message != in->skeleton || in->done)
        wrong("a read's callback for another one");
    in->done = true;
    if (in->turn != stream->read_ended++)
        wrong("callback of read %u when that of %u is due", in->turn,
              stream->read_ended - 1);
    in->good = status == TP_OK;
    if (in->good) {
        /* What is lent may change once this side has closed. */
        if (!in->borrowed || !stream->closed)
            incoming_check(in);
        my.got++;
    } else {
        stream_trouble(stream, status, "read");
    }
    if (in->borrowed && status == TP_OK && dice(2) == 0)
        incoming_later(in);
    else
        incoming_end(in);
    callback_ends();
}

/* Asks for what lies behind a skeleton. */
static void incoming_read(struct incoming *in)
{
    tp_message *skeleton = in->skeleton;
    tp_pipe *pipe = in->stream->pipe;

    in->turn = in->stream->turns++;
    in->borrowed = dice(3) == 0;
    if (in->borrowed) {
        operation(tp_pipe_borrow(pipe, skeleton, read_done, in),
                  "tp_pipe_borrow");
        return;
    }
    for (size_t i = 0; i < skeleton->payload_count; i++)
        skeleton->payloads[i].data = malloc(skeleton->payloads[i].length + 1);
    for (size_t i = 0; i < skeleton->tensor_count; i++) {
        skeleton->tensors[i].data = malloc(skeleton->tensors[i].length + 1);
        skeleton->tensors[i].device = (tp_device) { TP_DEVICE_CPU, 0 };
    }
    operation(tp_pipe_read(pipe, skeleton, read_done, in), "tp_pipe_read");
}

static void skeleton_check(const struct incoming *in)
{
    const struct stream *stream = in->stream;
    const tp_message *skeleton = in->skeleton;
    uint64_t fact = facts(stream->rank, my.rank, stream->number, in->sequence);
    char due[48];
    size_t length = (size_t) snprintf(due, sizeof(due), "%d>%d %u %u",
                                      stream->rank, my.rank, stream->number,
                                      in->sequence);

    if (skeleton->metadata_length != length
        || memcmp(skeleton->metadata, due, length) != 0)
        wrong("'%.*s' when '%s' is due", (int) skeleton->metadata_length,
              (const char *) skeleton->metadata, due);
    if (skeleton->payload_count != fact % (PIECES + 1))
        wrong("%zu payloads", skeleton->payload_count);
    for (unsigned i = 0; i < skeleton->payload_count; i++)
        if (skeleton->payloads[i].length != piece_length(fact, i)
            || skeleton->payloads[i].data != NULL)
            wrong("a payload of %zu bytes", skeleton->payloads[i].length);
    for (unsigned i = 0; i < skeleton->tensor_count; i++)
        if (skeleton->tensors[i].length != piece_length(fact, 10 + i))
            wrong("a tensor of %zu bytes", skeleton->tensors[i].length);
}

static void arrived(tp_pipe *pipe, tp_status status, tp_message *message,
                    void *arg)
{
    struct stream *stream = arg;
    struct incoming *in;

    callback_begins();
    if (pipe != stream->pipe)
        wrong("a skeleton on another pipe");
    stream->armed--;
    stream->open--;
    if (status != TP_OK) {
        if (message != NULL)
            wrong("a skeleton with %s", tp_strerror(status));
        stream_trouble(stream, status, "read_descriptor");
        stream_go(stream);
        callback_ends();
        return;
    }
    in = calloc(1, sizeof(*in));
    if (in == NULL)
        wrong("no memory");
    in->stream = stream;
    in->skeleton = message;
    in->sequence = stream->arrived++;
    stream->open++;
    if (stream->arrived > stream->to_read)
        wrong("message %u on a pipe that carries %u", stream->arrived,
              stream->to_read);
    skeleton_check(in);
    if (dice(4) == 0)
        incoming_later(in);
    else
        incoming_read(in);
    stream_go(stream);
    callback_ends();
}

/* ---- the life of a stream ---------------------------------------------- */

static void stream_begin(struct stream *stream, int rank, unsigned number,
                         unsigned last)
{
    uint64_t fact = facts(my.rank, rank, number, -2u);

    memset(stream, 0, sizeof(*stream));
    stream->rank = rank;
    stream->number = number;
    stream->last = last;
    stream->to_write = plan_count(my.rank, rank, number);
    stream->to_read = plan_count(rank, my.rank, number);
    stream->quits = rank != my.rank && number > 0 && fact % 3 == 0;
    stream->quit_after = (unsigned) ((fact >> 8) % (plan.messages + 1));
    if (tp_pipe_open(my.context, rank, number, &stream->pipe) != TP_OK)
        wrong("tp_pipe_open");
}

/* Nothing of it is under way any more. */
static bool stream_idle(const struct stream *stream)
{
    return stream->open == 0 && stream->written == stream->write_ended;
}

static bool stream_full(const struct stream *stream)
{
    return stream->written == stream->to_write
           && stream->arrived == stream->to_read;
}

/* The next pipe with that rank, if this one is through. */
static void stream_next(struct stream *stream)
{
    bool through = stream->over || stream->closed || stream_full(stream);

    if (!through || !stream_idle(stream))
        return;
    if (stream->over && !stream->closed && stream->arrived < stream->to_read
        && dice(2) == 0)
        tp_pipe_close(stream->pipe);
    if (stream->number < stream->last)
        stream_begin(stream, stream->rank, stream->number + 1, stream->last);
}

/* Whether this rank has no more to do with that one. */
static bool stream_finished(const struct stream *stream)
{
    return stream->number == stream->last && stream_idle(stream)
           && (stream->over || stream->closed || stream_full(stream));
}

/* Does what is to be done next, some of it. */
static void stream_go(struct stream *stream)
{
    if (my.finishing)
        return;
    stream_next(stream);
    if (stream->over || stream->closed)
        return;
    if (stream->quits && stream->arrived >= stream->quit_after
        && stream->written > 0) {
        stream->closed = true;
        if (tp_pipe_close(stream->pipe) != TP_OK)
            wrong("tp_pipe_close");
        return;
    }
    while (stream->armed < plan.arms && !stream->closed
           && stream->arrived + stream->armed < stream->to_read) {
        stream->armed++;
        stream->open++;
        operation(tp_pipe_read_descriptor(stream->pipe, arrived, stream),
                  "tp_pipe_read_descriptor");
    }
    while (stream->written < stream->to_write && !stream->closed
           && stream->written - stream->write_ended < 1 + dice(WRITES))
        stream_write(stream);
}

/* ---- the rank ---------------------------------------------------------- */

/* What was set aside: the oldest last, so that loans end in any order. */
static void later_now(void)
{
    struct incoming *in = my.later;

    if (in == NULL)
        return;
    my.later = in->next;
    if (in->done)
        incoming_end(in);
    else
        incoming_read(in);
}

static bool finished(void)
{
    for (unsigned i = 0; i < my.count; i++)
        if (!stream_finished(&my.streams[i]))
            return false;
    return my.later == NULL;
}

static void look_on(void)
{
    struct stream *stream = &my.streams[dice(my.count)];
    tp_stats stats;
    char *json;

    switch (dice(40)) {
    case 0:
        if (tp_pipe_explain(stream->pipe, &json) != TP_OK || json[0] != '{')
            wrong("tp_pipe_explain");
        free(json);
        break;
    case 1:
        if (tp_pipe_stats(stream->pipe, &stats) != TP_OK
            || stats.writes_pending > stream->written - stream->write_ended)
            wrong("tp_pipe_stats");
        break;
    default:
        break;
    }
}

static void tell_state(void)
{
    for (unsigned i = 0; i < my.count; i++) {
        const struct stream *s = &my.streams[i];

        fprintf(stderr, "storm: rank %d with %d: pipe %u wrote %u/%u (%u "
                "ended) arrived %u/%u turns %u ended %u open %u%s%s%s%s\n",
                my.rank, s->rank, s->number, s->written, s->to_write,
                s->write_ended, s->arrived, s->to_read, s->turns,
                s->read_ended, s->open,
                s->armed ? " armed" : "", s->closed ? " closed" : "",
                s->over ? " over" : "", s->failed ? " failed" : "");
    }
}

static void *writer(void *arg)
{
    bool end = false;

    (void) arg;
    while (!end) {
        pthread_mutex_lock(&my.lock);
        calling = true;
        if (!my.finishing)
            stream_go(&my.streams[dice(my.count)]);
        later_now();
        end = my.finishing || finished();
        calling = false;
        pthread_mutex_unlock(&my.lock);
        usleep(100);
    }
    return NULL;
}

/* Callbacks come in whichever of these threads is at it. */
static void *waiter(void *arg)
{
    bool end = false;

    while (!end) {
        tp_status status = arg != NULL ? tp_wait(my.context, 5, NULL)
                                       : tp_progress(my.context, NULL);

        if (status != TP_OK && status != TP_ERR_TIMEOUT)
            wrong("a thread's tp_wait: %s", tp_strerror(status));
        pthread_mutex_lock(&my.lock);
        end = my.finishing;
        pthread_mutex_unlock(&my.lock);
        if (arg == NULL)
            usleep(300);
    }
    return NULL;
}

static time_t seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* In a little less than test_storm.sh gives all of it. */
static void run(void)
{
    time_t limit = seconds() + 280;
    bool end = false;

    while (!end) {
        tp_status status = tp_wait(my.context, 20, NULL);

        if (status != TP_OK && status != TP_ERR_TIMEOUT)
            wrong("tp_wait: %s", tp_strerror(status));
        pthread_mutex_lock(&my.lock);
        calling = true;
        if (status == TP_ERR_TIMEOUT || dice(3) == 0)
            later_now();
        look_on();
        stream_go(&my.streams[dice(my.count)]);
        if (my.rank == plan.stop && dice(300) == 0)
            usleep(200000);
        end = finished();
        if (seconds() > limit) {
            tell_state();
            wrong("not finished in time");
        }
        calling = false;
        pthread_mutex_unlock(&my.lock);
    }
}

static void read_plan(int argc, char **argv)
{
    unsigned long long value;

    plan.seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    for (int i = 2; i < argc; i++) {
        char *equals = strchr(argv[i], '=');

        value = equals != NULL ? strtoull(equals + 1, NULL, 10) : 0;
        if (strncmp(argv[i], "pipes=", 6) == 0)
            plan.pipes = (unsigned) value;
        else if (strncmp(argv[i], "lanes=", 6) == 0)
            plan.lanes = value < LANES ? (unsigned) value : LANES;
        else if (strncmp(argv[i], "arms=", 5) == 0)
            plan.arms = (unsigned) value;
        else if (strncmp(argv[i], "waits=", 6) == 0)
            plan.waits = (int) value;
        else if (strncmp(argv[i], "messages=", 9) == 0)
            plan.messages = (unsigned) value;
        else if (strncmp(argv[i], "bytes=", 6) == 0)
            plan.bytes = (size_t) value;
        else if (strncmp(argv[i], "kill=", 5) == 0)
            plan.kill = (int) value;
        else if (strncmp(argv[i], "stop=", 5) == 0)
            plan.stop = (int) value;
        else if (strncmp(argv[i], "threads=", 8) == 0)
            plan.threads = (int) value;
        else
            wrong("what is %s?", argv[i]);
    }
}

static void begin(void)
{
    pthread_mutexattr_t recursive;

    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&my.lock, &recursive);
    if (tp_init(NULL, &my.context) != TP_OK)
        wrong("tp_init");
    my.rank = tp_rank(my.context);
    my.size = tp_size(my.context);
    if (my.size > RANKS)
        wrong("more than %d ranks", RANKS);
    my.dice = mix(plan.seed * 1000 + (unsigned) my.rank);
    if (my.rank == plan.kill)
        my.deadly = 1 + dice(plan.pipes * plan.messages);
    pthread_mutex_lock(&my.lock);
    my.count = (unsigned) my.size * plan.lanes;
    for (unsigned i = 0; i < my.count; i++) {
        unsigned first = i / (unsigned) my.size * plan.pipes;

        stream_begin(&my.streams[i], (int) i % my.size, first,
                     first + plan.pipes - 1);
    }
    for (unsigned i = 0; i < my.count; i++)
        stream_go(&my.streams[i]);
    pthread_mutex_unlock(&my.lock);
}

static pthread_t threads[THREADS];
static int thread_count;

static void start(int count, void *(*body)(void *))
{
    for (int i = 0; i < count && thread_count < THREADS; i++)
        if (pthread_create(&threads[thread_count++], NULL, body,
                           i % 2 == 0 ? &my : NULL) != 0)
            wrong("pthread_create");
}

int main(int argc, char **argv)
{
    tp_status status;

    read_plan(argc, argv);
    begin();
    start(plan.threads, writer);
    start(plan.waits, waiter);
    run();
    pthread_mutex_lock(&my.lock);
    my.finishing = true;
    pthread_mutex_unlock(&my.lock);
    while (thread_count > 0)
        pthread_join(threads[--thread_count], NULL);
    status = tp_finalize(my.context);
    if (status != TP_OK)
        wrong("tp_finalize: %s", tp_strerror(status));
    if (my.pending != 0)
        wrong("%u callbacks never came", my.pending);
    if (my.rank == plan.kill && my.operations >= my.deadly)
        wrong("rank did not die");
    printf("storm %llu: rank %d sent %llu, got %llu\n",
           (unsigned long long) plan.seed, my.rank, my.sent, my.got);
    return 0;
}
