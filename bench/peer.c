/* SPDX-License-Identifier: BSD-3-Clause */
/* Starts the ranks of a comparator, and makes loops of its operations. */
#include "config.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/clock.h"
#include "bench/peer.h"
#include "bench/report.h"

/* Shared by all ranks, made before they are. */
struct peer_board {
    _Atomic unsigned arrived;      /* at the barrier; pairs with itself */
    struct {
        size_t length;
        unsigned char bytes[PEER_ADDRESS];
    } addresses[PEER_RANKS];
};

const void *peer_address(const struct peer *peer, int rank, size_t *length)
{
    *length = peer->board->addresses[rank].length;
    return peer->board->addresses[rank].bytes;
}

const char *peer_over(const struct peer *peer)
{
    return peer->options->over != NULL ? peer->options->over
                                       : peer->kind->over;
}

/* ---- waiting ------------------------------------------------------------ */

bool peer_look(struct peer *peer)
{
    bool some = false;

    if (!peer->kind->progress(peer, &some))
        return false;
    if (!some && peer->yields)
        sched_yield();
    return true;
}

bool peer_wait(struct peer *peer, struct peer_request *request)
{
    while (!request->over)
        if (!peer_look(peer))
            return false;
    return true;
}

bool peer_barrier(struct peer *peer)
{
    unsigned size = (unsigned)peer->driver.size;
    unsigned mine = atomic_fetch_add(&peer->board->arrived, 1);
    unsigned all = mine - mine % size + size;

    while ((int)(atomic_load(&peer->board->arrived) - all) < 0) {
        if (!peer_look(peer))
            return false;
        sched_yield();
    }
    return true;
}

/* ---- messages ----------------------------------------------------------- */

static bool peer_send(struct bench_driver *driver, int rank, const void *data,
                      size_t length)
{
    struct peer *peer = peer_of(driver);
    struct peer_request request = { .over = false };

    return peer->kind->send(peer, rank, data, length, &request)
           && peer_wait(peer, &request);
}

static bool peer_receive(struct bench_driver *driver, int rank, void *data,
                         size_t length)
{
    struct peer *peer = peer_of(driver);
    struct peer_request request = { .over = false };

    return peer->kind->receive(peer, rank, data, length, &request)
           && peer_wait(peer, &request);
}

/* One direction of a stream; `requests` is a ring, the oldest first. */
struct peer_way {
    struct peer_request *requests;
    uint64_t total, begun, ended;
    bool out;
};

static bool peer_begin(struct peer *peer, struct bench_job *job,
                       struct peer_way *way)
{
    uint64_t k = way->begun++;
    struct peer_request *request = &way->requests[bench_turn(k, job->window)];
    int rank = 1 - peer->driver.rank;

    request->over = false;
    if (!way->out)
        return peer->kind->receive(peer, rank, bench_in(job, k),
                                   job->bytes, request);
    bench_touch(job, bench_out(job, k), job->sequence + k);
    return peer->kind->send(peer, rank, bench_out(job, k), job->bytes,
                            request);
}

/* Fills the window. */
static bool peer_fill(struct peer *peer, struct bench_job *job,
                      struct peer_way *way)
{
    while (way->begun < way->total && way->begun - way->ended < job->window)
        if (!peer_begin(peer, job, way))
            return false;
    return true;
}

/* Takes what is over, in order. */
static bool peer_end(struct bench_job *job, struct peer_way *way)
{
    while (way->ended < way->begun
           && way->requests[bench_turn(way->ended, job->window)].over) {
        uint64_t k = way->ended++;

        if (!way->out && !bench_right(job, bench_in(job, k),
                                      job->sequence + k))
            return bench_wrong(job, job->sequence + k);
    }
    return true;
}

static bool peer_move(struct peer *peer, struct bench_job *job,
                      struct peer_way *out, struct peer_way *in)
{
    while (out->ended < out->total || in->ended < in->total)
        if (!peer_fill(peer, job, in) || !peer_fill(peer, job, out)
            || !peer_look(peer) || !peer_end(job, in) || !peer_end(job, out))
            return false;
    return true;
}

/* Rank 1 gives the word to go when its receives are posted. */
static bool peer_run(struct peer *peer, struct bench_job *job,
                     struct peer_way *out, struct peer_way *in)
{
    struct bench_driver *driver = &peer->driver;
    int rank = 1 - driver->rank;
    unsigned char byte = 0;
    uint64_t begun;

    if (driver->rank == 1
        && (!peer_fill(peer, job, in) || !peer_send(driver, rank, &byte, 1)))
        return false;
    if (driver->rank == 0 && !peer_receive(driver, rank, &byte, 1))
        return false;
    begun = bench_ticks();
    if (!peer_move(peer, job, out, in))
        return false;
    if (driver->rank == 1)
        return peer_send(driver, rank, &byte, 1);
    if (!peer_receive(driver, rank, &byte, 1))
        return false;
    job->ticks = bench_ticks() - begun;
    return true;
}

static bool peer_stream(struct bench_driver *driver, struct bench_job *job)
{
    bool both = job->test == BENCH_BIDIRECTIONAL, good;
    struct peer_way out = { .out = true }, in = { .out = false };

    out.total = both || driver->rank == 0 ? job->count : 0;
    in.total = both || driver->rank == 1 ? job->count : 0;
    out.requests = calloc(job->window, sizeof(*out.requests));
    in.requests = calloc(job->window, sizeof(*in.requests));
    good = out.requests != NULL && in.requests != NULL;
    if (!good)
        bench_say("out of memory");
    good = good && peer_run(peer_of(driver), job, &out, &in);
    free(out.requests);
    free(in.requests);
    return good;
}

static bool peer_both(struct bench_driver *driver, const struct bench_job *job,
                      int rank, const void *send, void *receive)
{
    struct peer_request out = { .over = false }, in = { .over = false };
    struct peer *peer = peer_of(driver);

    if (!peer->kind->receive(peer, rank, receive, job->bytes, &in)
        || !peer->kind->send(peer, rank, send, job->bytes, &out))
        return false;
    bench_work(job->work);
    return peer_wait(peer, &in) && peer_wait(peer, &out);
}

static bool peer_overlap(struct bench_driver *driver, struct bench_job *job)
{
    return bench_overlap(driver, job, peer_both);
}

/* ---- a rank ------------------------------------------------------------- */

static void peer_init(struct peer *peer, const struct bench_options *options,
                      const struct peer_kind *kind, struct peer_board *board)
{
    *peer = (struct peer){ .options = options, .kind = kind, .board = board };
    peer->yields = options->waiting != NULL
                   && strcmp(options->waiting, "yield") == 0;
    snprintf(peer->mode, sizeof(peer->mode), "%s%s%s",
             kind->over != NULL ? peer_over(peer) : "",
             kind->over != NULL ? "/" : "",
             peer->yields ? "yielding" : "spinning");
    peer->driver = (struct bench_driver){
        .who = options->who != NULL ? options->who : kind->who,
        .mode = peer->mode, .size = (int)options->ranks, .state = peer,
        .send = peer_send, .receive = peer_receive,
        .exchange = kind->exchange,
        .stream = kind->stream != NULL ? kind->stream : peer_stream,
        .overlap = kind->overlap != NULL ? kind->overlap : peer_overlap
    };
}

static bool peer_work(struct peer *peer)
{
    int rank = peer->driver.rank;
    size_t length = PEER_ADDRESS;

    bench_limit(peer->options->limit_s);
    if (!peer->kind->open(peer, peer->board->addresses[rank].bytes, &length))
        return false;
    peer->board->addresses[rank].length = length;
    return peer_barrier(peer) && peer->kind->connect(peer)
           && peer_barrier(peer) && bench_run(&peer->driver, peer->options)
           && peer_barrier(peer);
}

/* In the child; dies with us. */
static int peer_rank(struct peer *peer, int rank, pid_t parent)
{
    bool good;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        return 1;
    peer->driver.rank = rank;
    if (peer->options->pin)
        bench_pin(rank);
    bench_report_open(peer->options->format, rank != 0);
    good = peer_work(peer);
    /* Others still work, and this would not end in good order. */
    if (!good)
        return 1;
    peer->kind->close(peer);
    return bench_report_close() ? 0 : 1;
}

/* ---- all ranks ---------------------------------------------------------- */

static void peer_kill(const pid_t *pids, unsigned ranks)
{
    for (unsigned rank = 0; rank < ranks; rank++)
        if (pids[rank] > 0)
            kill(pids[rank], SIGKILL);
}

/* The first that fails takes the others with it. */
static bool peer_reap(pid_t *pids, unsigned ranks)
{
    bool good = true;
    int status;
    pid_t pid;

    while ((pid = wait(&status)) > 0 || errno == EINTR) {
        if (pid < 0)
            continue;
        for (unsigned rank = 0; rank < ranks; rank++)
            if (pids[rank] == pid)
                pids[rank] = 0;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            continue;
        if (good && WIFSIGNALED(status))
            bench_say("a rank was ended by signal %d", WTERMSIG(status));
        peer_kill(pids, ranks);
        good = false;
    }
    return good;
}

static bool peer_start(struct peer *peer)
{
    unsigned ranks = peer->options->ranks;
    pid_t pids[PEER_RANKS], parent = getpid();

    for (unsigned rank = 0; rank < ranks; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0)
            _exit(peer_rank(peer, (int)rank, parent));
        if (pids[rank] < 0) {
            bench_say("cannot start a rank: %s", strerror(errno));
            peer_kill(pids, rank);
            peer_reap(pids, rank);
            return false;
        }
    }
    return peer_reap(pids, ranks);
}

int peer_main(int argc, char **argv, const struct peer_kind *kind)
{
    struct bench_usage usage = {
        .program = kind->who, .start = kind->who,
        .purpose = "Do with another library what tpperf does with tp.",
        .scope = BENCH_FORKED,
        .tests = (BENCH_BIT(BENCH_TESTS) - 1) & ~BENCH_BIT(BENCH_MEMORY)
                 & ~BENCH_BIT(BENCH_INIT) & ~BENCH_BIT(BENCH_IDLE)
    };
    struct bench_options options;
    struct peer_board *board;
    struct peer peer;
    int status;

    if (!bench_parse(argc, argv, &usage, &options, &status))
        return status;
    if (options.ranks == 0)
        options.ranks = 2;
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) {
        bench_say("no shared memory: %s", strerror(errno));
        return 1;
    }
    bench_clock_init();
    peer_init(&peer, &options, kind, board);
    fflush(NULL);
    return peer_start(&peer) ? 0 : 1;
}
