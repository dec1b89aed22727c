/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Comparators that come without a launcher: this starts their ranks, tells
 * each the others' addresses, and makes the loops of a driver from operations
 * that begin at once and end later.  C++ includes it, too.
 */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include "bench/bench.h"

enum { PEER_ADDRESS = 4096, PEER_RANKS = 64 };

/* One operation under way.  It stays where it is until it is over. */
struct peer_request {
    void *room[8];             /* the library's own: fi_context and the like */
    bool over;
};

struct peer_board;

/* One rank. */
struct peer {
    struct bench_driver driver;
    const struct bench_options *options;
    const struct peer_kind *kind;
    struct peer_board *board;  /* shared */
    bool yields;               /* after each look in vain */
    char mode[64];
    void *library;             /* what `kind` keeps */
};

/* Every function but `close` returns false after it has said what failed. */
struct peer_kind {
    const char *who;           /* "ucx" */
    const char *over;          /* what --over may be, for --help's sake: the
                                  first word is the default; NULL: nothing */
    /* Makes an endpoint that can be reached at the address, of *length bytes,
     * at most PEER_ADDRESS. */
    bool (*open)(struct peer *peer, void *address, size_t *length);
    /* All have opened: connects to every rank. */
    bool (*connect)(struct peer *peer);
    /* Accepts what half-built objects there are; all ranks are done. */
    void (*close)(struct peer *peer);

    /* Begins to send to a rank, or to receive what it sends, in order. */
    bool (*send)(struct peer *peer, int rank, const void *data, size_t length,
                 struct peer_request *request);
    bool (*receive)(struct peer *peer, int rank, void *data, size_t length,
                    struct peer_request *request);
    /* Looks once, and marks what is over.  *some: something happened. */
    bool (*progress)(struct peer *peer, bool *some);

    /* Optional: as in struct bench_driver, where callbacks do the work. */
    bool (*exchange)(struct bench_driver *driver, struct bench_job *job);
    bool (*stream)(struct bench_driver *driver, struct bench_job *job);
    bool (*overlap)(struct bench_driver *driver, struct bench_job *job);
};

static inline struct peer *peer_of(struct bench_driver *driver)
{
    return (struct peer *)driver->state;
}

/* The address that a rank has opened; valid from connect() on. */
const void *peer_address(const struct peer *peer, int rank, size_t *length);

/* What --over says, else the default. */
const char *peer_over(const struct peer *peer);

/* Looks until the request is over. */
bool peer_wait(struct peer *peer, struct peer_request *request);
/* Once, and lets others have the cpu if that is asked for and all is quiet. */
bool peer_look(struct peer *peer);

/* All ranks wait here for each other, looking. */
bool peer_barrier(struct peer *peer);

/* The whole program: returns its exit status. */
int peer_main(int argc, char **argv, const struct peer_kind *kind);

#endif
