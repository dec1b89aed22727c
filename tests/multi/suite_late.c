/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Streams that are so far ahead of their reader that he tells later what he has
 * read (runtime/late.c): that he does, and that it is told all the same as soon
 * as he stops, whichever way.  Over backends without channels they are copied,
 * and the rest holds.
 */
#include "config.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tests/multi/flow.h"

/* Each is read in more than one turn. */
enum { LATE_PIECE = 640 << 10, LATE_COUNT = 24, LATE_FIRST = 14 };

/* That one is short: no stream of long ones goes on with it. */
enum { LATE_NONE = LATE_COUNT };
static unsigned late_short = LATE_NONE;
static size_t late_short_length, late_short_metadata;

static size_t late_length(unsigned k)
{
    return k == late_short ? late_short_length : LATE_PIECE;
}

/* What one of the two waits for while it does not call tp: the other, who has
 * seen something. */
static sigset_t late_sign(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    return set;
}

static int late_await(void)
{
    sigset_t set = late_sign();
    siginfo_t info;

    /* The harness may ask where it hangs. */
    while (sigwaitinfo(&set, &info) < 0)
        ;
    return info.si_value.sival_int;
}

/* ... while it does call tp. */
static int late_await_driving(void)
{
    const struct timespec now = { 0 };
    sigset_t set = late_sign();
    siginfo_t info;

    while (sigtimedwait(&set, &info, &now) < 0)
        tpx_ok(tp_progress(tpx_me.context, NULL));
    return info.si_value.sival_int;
}

static void late_tell(int pid, int number)
{
    tpx_check(sigqueue(pid, SIGUSR2, (union sigval){ .sival_int = number })
              == 0, "sigqueue");
}

/* Each knows whom to tell, and is ready to be told. */
static int late_meet(void)
{
    tp_pipe *control = tpx_pipe(!tpx_me.rank, 1);
    sigset_t set = late_sign();
    int mine = getpid(), theirs;

    tpx_check(sigprocmask(SIG_BLOCK, &set, NULL) == 0, "sigprocmask");
    tpx_ok(tp_pipe_send(control, &mine, sizeof(mine)));
    tpx_ok(tp_pipe_recv(control, &theirs, sizeof(theirs), NULL));
    return theirs;
}

/* ---- the sender ---------------------------------------------------------- */

struct late_out {
    unsigned char *memory;
    tp_payload payloads[LATE_COUNT];
    tp_message messages[LATE_COUNT];
    unsigned ended, good;
};

static void late_written(tp_pipe *pipe, tp_status status, tp_message *message,
                         void *arg)
{
    struct late_out *out = arg;

    (void)pipe;
    (void)message;
    tpx_check(status == TP_OK || status == TP_ERR_PEER_CLOSED
              || status == TP_ERR_PEER_FAILED, "%s", tp_strerror(status));
    tpx_check(status != TP_OK || out->good == out->ended,
              "a write that ends well behind one that does not");
    out->good += status == TP_OK;
    __atomic_fetch_add(&out->ended, 1, __ATOMIC_ACQ_REL);
}

static void late_write(tp_pipe *pipe, struct late_out *out)
{
    *out = (struct late_out){ .memory = malloc(LATE_COUNT * LATE_PIECE) };
    tpx_check(out->memory != NULL, "out of memory");
    for (unsigned i = 0; i < LATE_COUNT; i++) {
        unsigned char *piece = out->memory + i * LATE_PIECE;

        tpx_fill(piece, late_length(i), i);
        out->payloads[i] = (tp_payload){ .data = piece,
                                         .length = late_length(i) };
        out->messages[i] = (tp_message){ .payloads = &out->payloads[i],
                                         .payload_count = 1 };
        if (i == late_short && late_short_metadata > 0) {
            out->messages[i].metadata = piece;
            out->messages[i].metadata_length = late_short_metadata;
        }
        tpx_ok(tp_pipe_write(pipe, &out->messages[i], late_written, out));
    }
}

/* ---- the reader ---------------------------------------------------------- */

struct late_in {
    unsigned char *memory;
    unsigned arrived, done;
    unsigned close_at;             /* closes the pipe with that read; 0: not */
};

static void late_read(tp_pipe *pipe, tp_status status, tp_message *message,
                      void *arg)
{
    struct late_in *in = arg;
    unsigned k = in->done;

    (void)message;
    if (in->close_at > 0 && k >= in->close_at) {
        tpx_check(status == TP_OK || status == TP_ERR_CLOSED, "%s",
                  tp_strerror(status));
        return;
    }
    tpx_ok(status);
    tpx_equal(tpx_verify(in->memory + k * LATE_PIECE, late_length(k), k),
              late_length(k));
    if (k + 1 == in->close_at)
        tpx_ok(tp_pipe_close(pipe));
    __atomic_fetch_add(&in->done, 1, __ATOMIC_ACQ_REL);
}

static void late_arrived(tp_pipe *pipe, tp_status status,
                         tp_message *skeleton, void *arg)
{
    struct late_in *in = arg;

    if (status == TP_ERR_CLOSED && in->close_at > 0)
        return;
    tpx_ok(status);
    skeleton->payloads[0].data = in->memory + in->arrived++ * LATE_PIECE;
    tpx_ok(tp_pipe_read(pipe, skeleton, late_read, in));
}

static void late_arm(tp_pipe *pipe, struct late_in *in, unsigned count)
{
    if (in->memory == NULL)
        in->memory = malloc(LATE_COUNT * LATE_PIECE);
    tpx_check(in->memory != NULL, "out of memory");
    for (unsigned i = 0; i < count; i++)
        tpx_ok(tp_pipe_read_descriptor(pipe, late_arrived, in));
}

/* All of them end well, once the reader has been told to go on. */
static void late_out_rest(struct late_out *out, int peer)
{
    late_tell(peer, 0);
    tpx_until(&out->ended, LATE_COUNT);
    tpx_equal(out->good, LATE_COUNT);
    free(out->memory);
}

static void late_in_rest(struct late_in *in, bool driving)
{
    if (driving)
        late_await_driving();
    else
        late_await();
    tpx_until(&in->done, LATE_COUNT);
    free(in->memory);
}

/* ---- what is told when --------------------------------------------------- */

/* A reader who wants no more for now has told all that he has read. */
static void late_stops(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    int peer = late_meet();

    if (tpx_me.rank == 0) {
        struct late_out out;

        late_write(pipe, &out);
        late_tell(peer, 0);
        tpx_at("the reader has read some");
        tpx_until(&out.ended, LATE_FIRST);
        tpx_at("the reader reads the rest");
        late_out_rest(&out, peer);
    } else {
        struct late_in in = { .memory = NULL };

        late_await();
        late_arm(pipe, &in, LATE_FIRST);
        tpx_until(&in.done, LATE_FIRST);
        /* Over others a sender hears of what came by acknowledgements. */
        if (tpx_backend("shm"))
            late_await();
        else
            late_await_driving();
        late_arm(pipe, &in, LATE_COUNT - LATE_FIRST);
        tpx_until(&in.done, LATE_COUNT);
        free(in.memory);
    }
    tpx_meet(!tpx_me.rank);
}

/* Some of them, though the reader would take all. */
static void late_in_some(tp_pipe *pipe, struct late_in *in)
{
    late_await();
    late_arm(pipe, in, LATE_COUNT);
    tpx_until(&in->done, LATE_FIRST);
}

/* Whoever can pulls all of them. */
static bool late_pulls(void)
{
    bool pulls = tpx_backend("cma") && sysconf(_SC_NPROCESSORS_ONLN) >= 2;

    tpx_check(unsetenv("TP_CPUS") == 0, "unsetenv");
    if (pulls)
        tpx_check(setenv("TP_REQUIRE", "node:cma", 1) == 0, "setenv");
    tpx_ok(tp_init(NULL, &tpx_me.context));
    return pulls;
}

/* One who is in the middle of it keeps some for later. */
static void late_keeps(void)
{
    bool keeps = late_pulls();
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    int peer = late_meet();

    if (tpx_me.rank == 0) {
        struct late_out out;
        int read;

        late_write(pipe, &out);
        late_tell(peer, 0);
        read = late_await_driving();
        for (unsigned i = 0; i < 1000; i++)
            tpx_ok(tp_progress(tpx_me.context, NULL));
        tpx_check(!keeps || (out.ended > 0 && out.ended < (unsigned)read),
                  "%u writes have ended of %d that were read", out.ended,
                  read);
        late_out_rest(&out, peer);
    } else {
        struct late_in in = { .memory = NULL };

        late_in_some(pipe, &in);
        late_tell(peer, (int)in.done);
        late_in_rest(&in, !keeps);
    }
    tpx_meet(!tpx_me.rank);
}

/* ... but not behind another message than of that stream. */
static void late_mix(size_t length, size_t metadata)
{
    bool pulls = late_pulls();
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    int peer = late_meet();

    late_short = LATE_FIRST - 1;
    late_short_length = length;
    late_short_metadata = metadata;
    if (tpx_me.rank == 0) {
        struct late_out out;

        late_write(pipe, &out);
        late_tell(peer, 0);
        tpx_until(&out.ended, LATE_FIRST);
        late_out_rest(&out, peer);
    } else {
        struct late_in in = { .memory = NULL };

        late_in_some(pipe, &in);
        late_in_rest(&in, !pulls);
    }
    tpx_meet(!tpx_me.rank);
}

static void late_mixed(void)
{
    late_mix(20000, 0);
}

static void late_mixed_short(void)
{
    late_mix(8, 0);
}

static void late_mixed_small(void)
{
    late_mix(8, 8);
}

/* All of them; returns how many ended well. */
static unsigned late_out_all(tp_pipe *pipe, int peer)
{
    struct late_out out;

    late_write(pipe, &out);
    late_tell(peer, 0);
    tpx_until(&out.ended, LATE_COUNT);
    free(out.memory);
    return out.good;
}

/* What was read when the pipe is closed was written well. */
static void late_closes(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct late_in in = { .close_at = LATE_FIRST };
    int peer = late_meet();

    if (tpx_me.rank == 0) {
        unsigned good = late_out_all(pipe, peer);

        tpx_check(good >= LATE_FIRST, "%u ended well of %d that were read",
                  good, LATE_FIRST);
    } else {
        late_in_some(pipe, &in);
    }
    tpx_meet(!tpx_me.rank);
    free(in.memory);
}

/* The reader is killed while it keeps some: every write ends. */
static void late_dies(void)
{
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    struct late_in in = { .memory = NULL };
    int peer = late_meet();

    if (tpx_me.rank == 1) {
        late_in_some(pipe, &in);
        raise(SIGKILL);
    }
    late_out_all(pipe, peer);
}

/* Long letters both ways, many under way. */
static void late_letters(void)
{
    struct tpx_flow flow;
    struct tpx_flow_plan plan = { .kind = TPX_BIG, .count = 48, .writes = 16,
                                  .reads = 12 };

    if (tpx_me.sanitized || tpx_me.few)
        plan.count = 20;
    tpx_flow_start(&flow, !tpx_me.rank, 0, &plan);
    tpx_flow_finish(&flow, 1);
    tpx_meet(!tpx_me.rank);
}

const struct tpx_spmd tpx_late[] = {
    { "late_stops", late_stops, 2, TPX_CHANNELS, 30 },
    { "late_keeps", late_keeps, 2, TPX_CHANNELS | TPX_BARE | TPX_MANUAL, 30 },
    { "late_mixed", late_mixed, 2, TPX_CHANNELS | TPX_BARE | TPX_MANUAL, 30 },
    { "late_mixed_short", late_mixed_short, 2,
      TPX_CHANNELS | TPX_BARE | TPX_MANUAL, 30 },
    { "late_mixed_small", late_mixed_small, 2,
      TPX_CHANNELS | TPX_BARE | TPX_MANUAL, 30 },
    { "late_closes", late_closes, 2, TPX_CHANNELS, 30 },
    { "late_dies", late_dies, 2, TPX_CHANNELS | TPX_KILLS, 30 },
    { "late_letters", late_letters, 2, TPX_CHANNELS, 60 },
    { NULL }
};
