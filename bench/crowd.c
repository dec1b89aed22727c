/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The floors of many ranks on few cpus: a message is a cache line, and what
 * does not fit into it is read from the sender's memory.  No message layer, but
 * the hand-over of a cpu is all there.
 *
 *   --over line --waiting yield    who waits yields after each look in vain
 *   --over futex                   ... sleeps, and is woken by who writes
 *   --pin                          neighbours on cpus of their own
 */
#include "config.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bench/peer.h"

enum { CROWD_INLINE = 32 };

/* From one rank to one other; one message at a time. */
struct crowd_line {
    alignas(64) _Atomic uint64_t number;   /* pairs with itself */
    uint64_t length;
    const void *where;
    unsigned char data[CROWD_INLINE];
    alignas(64) _Atomic uint64_t taken;    /* by the receiver; so does this */
};

struct crowd_rank {
    alignas(64) _Atomic uint32_t asleep;   /* its futex */
    pid_t pid;
    struct crowd_line from[PEER_RANKS];
};

/* What one rank has under way: the loops send and receive one message at a
 * time. */
struct crowd {
    uint64_t sent[PEER_RANKS], received[PEER_RANKS];
    struct peer_request *send, *receive;
    struct crowd_line *out, *in;
    void *data;
    size_t length;
    int to, source;
    bool sleeps;
};

static struct crowd_rank *crowd_ranks;     /* shared by all */

static bool crowd_failed(const char *what)
{
    bench_say("%s: %s", what, strerror(errno));
    return false;
}

static bool crowd_open(struct peer *peer, void *address, size_t *length)
{
    struct crowd *crowd = calloc(1, sizeof(*crowd));

    (void)address;
    *length = 0;
    if (crowd == NULL)
        return crowd_failed("calloc");
    crowd->sleeps = strcmp(peer_over(peer), "futex") == 0;
    peer->library = crowd;
    crowd_ranks[peer->driver.rank].pid = getpid();
    /* Where only a parent may read its children's memory: so may all. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    if (crowd->sleeps || strcmp(peer_over(peer), "line") == 0)
        return true;
    bench_say("--over %s: line or futex are what there is", peer_over(peer));
    return false;
}

static bool crowd_connect(struct peer *peer)
{
    (void)peer;
    return true;
}

static void crowd_close(struct peer *peer)
{
    free(peer->library);
}

/* After a line of that rank was written.  Pairs with crowd_sleep(): it sees
 * what we wrote, or we see it asleep. */
static void crowd_wake(const struct crowd *crowd, int rank)
{
    _Atomic uint32_t *asleep = &crowd_ranks[rank].asleep;

    if (!crowd->sleeps)
        return;
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(asleep, memory_order_relaxed) != 0
        && atomic_exchange(asleep, 0) != 0)
        syscall(SYS_futex, asleep, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* A message can go when the one before has been taken, and its memory is free
 * again when it has been taken itself, but for what went in the line. */
static bool crowd_send(struct peer *peer, int rank, const void *data,
                       size_t length, struct peer_request *request)
{
    struct crowd *crowd = peer->library;
    struct crowd_line *line = &crowd_ranks[rank].from[peer->driver.rank];

    while (atomic_load_explicit(&line->taken, memory_order_acquire)
           != crowd->sent[rank])
        if (!peer_look(peer))
            return false;
    line->length = length;
    line->where = data;
    if (length <= CROWD_INLINE)
        memcpy(line->data, data, length);
    atomic_store_explicit(&line->number, ++crowd->sent[rank],
                          memory_order_release);
    crowd_wake(crowd, rank);
    request->over = length <= CROWD_INLINE;
    crowd->send = request->over ? NULL : request;
    crowd->out = line;
    crowd->to = rank;
    return true;
}

static bool crowd_receive(struct peer *peer, int rank, void *data,
                          size_t length, struct peer_request *request)
{
    struct crowd *crowd = peer->library;

    crowd->receive = request;
    crowd->in = &crowd_ranks[peer->driver.rank].from[rank];
    crowd->source = rank;
    crowd->data = data;
    crowd->length = length;
    return true;
}

static bool crowd_arrived(const struct crowd *crowd)
{
    return crowd->receive != NULL
           && atomic_load_explicit(&crowd->in->number, memory_order_acquire)
              == crowd->received[crowd->source] + 1;
}

static bool crowd_taken(const struct crowd *crowd)
{
    return crowd->send != NULL
           && atomic_load_explicit(&crowd->out->taken, memory_order_acquire)
              == crowd->sent[crowd->to];
}

static bool crowd_take(struct crowd *crowd)
{
    struct crowd_line *line = crowd->in;
    struct iovec mine = { crowd->data, crowd->length };
    struct iovec theirs = { (void *)(uintptr_t)line->where, line->length };

    if (line->length != crowd->length) {
        bench_say("a message of %zu bytes came with %zu", crowd->length,
                  (size_t)line->length);
        return false;
    }
    if (line->length <= CROWD_INLINE)
        memcpy(crowd->data, line->data, line->length);
    else if (process_vm_readv(crowd_ranks[crowd->source].pid, &mine, 1,
                              &theirs, 1, 0) != (ssize_t)line->length)
        return crowd_failed("process_vm_readv");
    atomic_store_explicit(&line->taken, ++crowd->received[crowd->source],
                          memory_order_release);
    crowd_wake(crowd, crowd->source);
    crowd->receive->over = true;
    crowd->receive = NULL;
    return true;
}

/* At the barrier nobody is told of anything: there it does not sleep. */
static void crowd_sleep(const struct crowd *crowd, int rank)
{
    _Atomic uint32_t *asleep = &crowd_ranks[rank].asleep;

    if (!crowd->sleeps || (crowd->send == NULL && crowd->receive == NULL))
        return;
    atomic_store_explicit(asleep, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (!crowd_arrived(crowd) && !crowd_taken(crowd))
        syscall(SYS_futex, asleep, FUTEX_WAIT, 1, NULL, NULL, 0);
    atomic_store(asleep, 0);
}

static bool crowd_progress(struct peer *peer, bool *some)
{
    struct crowd *crowd = peer->library;

    if (crowd_arrived(crowd)) {
        *some = true;
        if (!crowd_take(crowd))
            return false;
    }
    if (crowd_taken(crowd)) {
        *some = true;
        crowd->send->over = true;
        crowd->send = NULL;
    }
    if (!*some)
        crowd_sleep(crowd, peer->driver.rank);
    return true;
}

static bool crowd_stream(struct bench_driver *driver, struct bench_job *job)
{
    (void)driver;
    (void)job;
    bench_say("crowd measures latency, pairs, ring and star; see floors for "
              "others");
    return false;
}

int main(int argc, char **argv)
{
    static const struct peer_kind kind = {
        .who = "floor/crowd", .over = "line", .open = crowd_open,
        .connect = crowd_connect, .close = crowd_close, .send = crowd_send,
        .receive = crowd_receive, .progress = crowd_progress,
        .stream = crowd_stream
    };

    crowd_ranks = mmap(NULL, PEER_RANKS * sizeof(*crowd_ranks),
                       PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                       -1, 0);
    if (crowd_ranks == MAP_FAILED) {
        crowd_failed("no shared memory");
        return 1;
    }
    return peer_main(argc, argv, &kind);
}
