/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A server that runs for long, and a client that connects to it again and
 * again: two contexts of one thread.  Of each pipe that was closed some 1400
 * bytes stayed on either side until tp_finalize().  The handles of the last
 * thousand are still good, and what was borrowed is until it is released.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/tp.h"

enum {
    GUESTS_KEPT = 1000,            /* the last ones, see tp_pipe_close(3) */
    GUESTS_SETTLED = 1300,         /* from then on nothing grows ... */
    GUESTS_ALL = 3300,             /* ... until here */
    GUESTS_FEW = 1300,             /* all of them, under sanitizers */
    GUESTS_LISTENERS = 6000,
    GUESTS_BYTES = 300,            /* of each visit that may stay */
    GUESTS_LENGTH = 5000
};

/* What both sides know of the visit that is under way. */
struct guests_visit {
    tp_pipe *here, *there;
    tp_message *skeleton;          /* of the host's, not read yet */
    int ended;                     /* sides that have read the end */
    bool got;                      /* the host has the message */
};

static tp_context *guests_host, *guests_visitor;
static tp_listener *guests_listener;
static tp_pipe *guests_last[GUESTS_KEPT - 1][2];
static char guests_out[GUESTS_LENGTH], guests_in[GUESTS_LENGTH];

static void guests_check(tp_status status, const char *what)
{
    if (status == TP_OK)
        return;
    fprintf(stderr, "guests: %s: %s\n", what, tp_strerror(status));
    exit(1);
}

static void guests_accepted(tp_listener *listener, tp_status status,
                            tp_pipe *pipe, void *arg)
{
    struct guests_visit *visit = arg;

    (void)listener;
    if (status != TP_ERR_CLOSED)
        guests_check(status, "accept");
    visit->here = pipe;
}

static void guests_arrived(tp_pipe *pipe, tp_status status,
                           tp_message *skeleton, void *arg)
{
    struct guests_visit *visit = arg;

    (void)pipe;
    guests_check(status, "arrived");
    visit->skeleton = skeleton;
}

static void guests_got(tp_pipe *pipe, tp_status status, tp_message *message,
                       void *arg)
{
    struct guests_visit *visit = arg;

    (void)pipe;
    (void)message;
    guests_check(status, "got");
    visit->got = true;
}

static void guests_ended(tp_pipe *pipe, tp_status status, tp_message *none,
                         void *arg)
{
    struct guests_visit *visit = arg;

    (void)none;
    if (status != TP_ERR_PEER_CLOSED && status != TP_ERR_CLOSED)
        guests_check(status != TP_OK ? status : TP_ERR_PROTOCOL, "the end");
    guests_check(tp_pipe_close(pipe), "close at the end");
    visit->ended++;
}

static void guests_drive(void)
{
    guests_check(tp_progress(guests_host, NULL), "progress");
    guests_check(tp_progress(guests_visitor, NULL), "progress");
}

/* A message from outside; the host has it, or its skeleton only.  Returns what
 * it has borrowed, if it was to. */
static tp_message *guests_talk(struct guests_visit *visit, bool read,
                               bool borrow)
{
    tp_payload payload = { guests_out, sizeof(guests_out), NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };

    guests_check(tp_pipe_write(visit->there, &message, NULL, NULL), "write");
    while (visit->here == NULL)
        guests_drive();
    guests_check(tp_pipe_read_descriptor(visit->here, guests_arrived, visit),
                 "read_descriptor");
    while (visit->skeleton == NULL)
        guests_drive();
    if (!read && !borrow)
        return NULL;
    if (borrow) {
        guests_check(tp_pipe_borrow(visit->here, visit->skeleton, guests_got,
                                    visit), "borrow");
    } else {
        visit->skeleton->payloads[0].data = guests_in;
        guests_check(tp_pipe_read(visit->here, visit->skeleton, guests_got,
                                  visit), "read");
    }
    while (!visit->got)
        guests_drive();
    return borrow ? visit->skeleton : NULL;
}

/* Either side closes first, or both do at the same time. */
static void guests_part(struct guests_visit *visit, int number)
{
    guests_check(tp_pipe_read_descriptor(visit->here, guests_ended, visit),
                 "the host's end");
    guests_check(tp_pipe_read_descriptor(visit->there, guests_ended, visit),
                 "the visitor's end");
    if (number % 3 != 0)
        guests_check(tp_pipe_close(visit->there), "the visitor's close");
    if (number % 3 != 1)
        guests_check(tp_pipe_close(visit->here), "the host's close");
    while (visit->ended < 2)
        guests_drive();
}

/* The handles of both sides are as good as on the first day. */
static void guests_closed(tp_pipe *pipe)
{
    struct tp_stats stats;

    guests_check(tp_pipe_close(pipe), "another close");
    guests_check(tp_pipe_stats(pipe, &stats), "stats");
    if (tp_pipe_rank(pipe) != -1 || *tp_pipe_error(pipe) == '\0'
        || *tp_pipe_peer(pipe) == '\0'
        || tp_pipe_send(pipe, "x", 1) != TP_ERR_CLOSED)
        guests_check(TP_ERR_INVALID, "a handle that was closed");
}

static tp_message *guests_come(const char *address, int number, bool borrow)
{
    struct guests_visit visit = { 0 };
    tp_pipe **last = guests_last[number % (GUESTS_KEPT - 1)];
    tp_message *borrowed;

    guests_check(tp_accept(guests_listener, guests_accepted, &visit),
                 "tp_accept");
    guests_check(tp_connect(guests_visitor, address, &visit.there),
                 "tp_connect");
    /* Who does not read what has come does not hear of the end behind it. */
    borrowed = guests_talk(&visit, number % 3 == 1 || number % 2 == 0, borrow);
    guests_part(&visit, number);
    if (last[0] != NULL) {
        guests_closed(last[0]);
        guests_closed(last[1]);
    }
    last[0] = visit.here;
    last[1] = visit.there;
    return borrowed;
}

/* `make check` sets it to nothing where there is none. */
static bool guests_sanitized(void)
{
    const char *sanitizer = getenv("TP_TEST_SANITIZER");

    return sanitizer != NULL && sanitizer[0] != '\0';
}

static long guests_resident(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    long total, resident = 0;

    if (file == NULL || fscanf(file, "%ld %ld", &total, &resident) != 2)
        guests_check(TP_ERR_SYSTEM, "/proc/self/statm");
    fclose(file);
    return resident * sysconf(_SC_PAGESIZE);
}

static void guests_serve(void)
{
    bool sanitized = guests_sanitized();
    int all = sanitized ? GUESTS_FEW : GUESTS_ALL;
    tp_message *borrowed = NULL;
    tp_pipe *lender = NULL;
    char address[1024];
    long before = 0, grown;

    guests_check(tp_listen(guests_host, NULL, &guests_listener), "listen");
    guests_check(tp_listener_address(guests_listener, address,
                                     sizeof(address)), "address");
    for (int i = 0; i < all; i++) {
        tp_message *lent = guests_come(address, i, i == 0);

        if (i == 0) {
            borrowed = lent;
            lender = guests_last[0][0];
        }
        if (i == GUESTS_SETTLED)
            before = guests_resident();
    }
    grown = guests_resident() - before;
    if (!sanitized && grown > GUESTS_BYTES * (GUESTS_ALL - GUESTS_SETTLED)) {
        fprintf(stderr, "guests: %ld bytes more after %d visits\n", grown,
                GUESTS_ALL - GUESTS_SETTLED);
        exit(1);
    }
    if (memcmp(borrowed->payloads[0].data, guests_out, GUESTS_LENGTH) != 0)
        guests_check(TP_ERR_PROTOCOL, "what was borrowed");
    guests_check(tp_pipe_release(lender, borrowed), "release");
}

static void guests_refused(tp_listener *listener, tp_status status,
                           tp_pipe *pipe, void *arg)
{
    (void)listener;
    if (status != TP_ERR_CLOSED || pipe != NULL)
        guests_check(TP_ERR_INVALID, "accept at the end");
    *(bool *)arg = true;
}

/* The handle of one that was closed is still good, and refuses. */
static void guests_ask(tp_listener *listener)
{
    char address[1024];
    bool refused = false;

    guests_check(tp_listener_address(listener, address, sizeof(address)),
                 "the address of one that was closed");
    guests_check(tp_listener_close(listener), "another listener_close");
    guests_check(tp_accept(listener, guests_refused, &refused), "accept");
    while (!refused)
        guests_drive();
}

/* Who listens anew for each guest keeps no more than the last thousand.  At
 * some of them somebody waits, or knocks, when they are closed. */
static void guests_listen(void)
{
    static tp_listener *last[GUESTS_KEPT - 1];
    bool sanitized = guests_sanitized(), refused = false;
    long before = 0, grown;

    for (int i = 0; i < GUESTS_LISTENERS; i++) {
        tp_listener **listener = &last[i % (GUESTS_KEPT - 1)];
        tp_pipe *pipe = NULL;
        char address[1024];

        if (i == GUESTS_LISTENERS / 2)
            before = guests_resident();
        if (*listener != NULL && i % 10 == 0)
            guests_ask(*listener);
        guests_check(tp_listen(guests_host, "local", listener), "listen");
        if (i % 10 == 1) {
            refused = false;
            guests_check(tp_accept(*listener, guests_refused, &refused),
                         "accept");
        }
        if (i % 10 == 2) {
            guests_check(tp_listener_address(*listener, address,
                                             sizeof(address)), "address");
            guests_check(tp_connect(guests_visitor, address, &pipe),
                         "tp_connect");
            for (int j = 0; j < i / 10 % 8; j++)
                guests_drive();
        }
        guests_check(tp_listener_close(*listener), "listener_close");
        guests_drive();
        if (i % 10 == 1 && !refused)
            guests_check(TP_ERR_INVALID, "the accept that was pending");
        if (pipe != NULL)
            guests_check(tp_pipe_close(pipe), "close of who knocked");
        /* They are freed by a clock. */
        for (int j = 0; i % 500 == 0 && j < 4; j++) {
            usleep(30000);
            guests_drive();
        }
    }
    grown = guests_resident() - before;
    if (!sanitized && grown > GUESTS_BYTES * GUESTS_LISTENERS / 2) {
        fprintf(stderr, "guests: %ld bytes more after %d listeners\n", grown,
                GUESTS_LISTENERS / 2);
        exit(1);
    }
}

int main(void)
{
    tp_options options = TP_OPTIONS_INIT;

    options.progress = TP_PROGRESS_MANUAL;
    options.bootstrap = "single";
    options.finalize_timeout_ms = 1000;
    for (int i = 0; i < GUESTS_LENGTH; i++)
        guests_out[i] = (char)(i * 7);
    guests_check(tp_init(&options, &guests_host), "init");
    guests_check(tp_init(&options, &guests_visitor), "init again");
    guests_serve();
    guests_listen();
    guests_check(tp_finalize(guests_visitor), "the visitor's end");
    guests_check(tp_finalize(guests_host), "the host's end");
    return 0;
}
