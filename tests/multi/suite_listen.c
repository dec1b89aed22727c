/* SPDX-License-Identifier: BSD-3-Clause */
/* Peers outside the job: listeners, connections to them, who is let in. */
#include "config.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/multi/spmd.h"

enum { LISTEN_BIG = 3 << 20, LISTEN_TEXT = 1024 };

struct listen_guests {
    unsigned count, closed;
    tp_pipe *pipes[64];
};

/* A byte for each of many. */
static char listen_byte = 'x';
static tp_payload listen_payload = { .data = &listen_byte, .length = 1 };
static tp_message listen_letter = { .payloads = &listen_payload,
                                    .payload_count = 1 };

static void listen_accepted(tp_listener *listener, tp_status status,
                            tp_pipe *pipe, void *arg)
{
    struct listen_guests *guests = arg;

    (void)listener;
    if (status != TP_OK) {
        tpx_equal(status, TP_ERR_CLOSED);
        tpx_check(pipe == NULL, "a pipe with a failure");
        __atomic_fetch_add(&guests->closed, 1, __ATOMIC_ACQ_REL);
        return;
    }
    tpx_equal(tp_pipe_rank(pipe), -1);
    tpx_check(strstr(tp_pipe_peer(pipe), "pid ") != NULL, "its name is %s",
              tp_pipe_peer(pipe));
    guests->pipes[guests->count] = pipe;
    __atomic_fetch_add(&guests->count, 1, __ATOMIC_ACQ_REL);
}

/* ---- the address, from one process to the other -------------------------- */

/* Through a file beside the job's cards, for those who are in no job. */
static const char *listen_file(void)
{
    return tpx_file("address");
}

static void listen_tell(const char *path, const char *text)
{
    char other[200];
    FILE *file;

    snprintf(other, sizeof(other), "%s.new", path);
    file = fopen(other, "we");
    tpx_check(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0
              && rename(other, path) == 0, "cannot write %s", path);
}

static void listen_learn(const char *path, char text[LISTEN_TEXT])
{
    FILE *file;

    /* Drives meanwhile; something may complete. */
    while ((file = fopen(path, "re")) == NULL)
        tp_wait(tpx_me.context, 1, NULL);
    tpx_check(fgets(text, LISTEN_TEXT, file) != NULL, "%s is empty", path);
    fclose(file);
}

/* A context of its own, outside any job. */
static void listen_alone(const char *secret, int connect_ms)
{
    tp_options options = TP_OPTIONS_INIT;

    options.bootstrap = "single";
    options.secret = secret;
    options.connect_timeout_ms = connect_ms;
    tpx_ok(tp_init(&options, &tpx_me.context));
}

/* ---- conversations ------------------------------------------------------- */

/* Both sides: messages of all sizes both ways, every byte checked.  The one
 * that `begins` writes first. */
static void listen_talk(tp_pipe *pipe, bool begins)
{
    static const size_t sizes[] = { 1, 0, 100, 5000, 70000, LISTEN_BIG };
    unsigned char *data = malloc(LISTEN_BIG);
    size_t length;

    tpx_check(data != NULL, "no memory for the test itself");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int turn = 0; turn < 2; turn++)
            if ((turn == 0) == begins) {
                tpx_fill(data, sizes[i], i + 1);
                tpx_ok(tp_pipe_send(pipe, data, sizes[i]));
            } else {
                memset(data, 0, sizes[i]);
                tpx_ok(tp_pipe_recv(pipe, data, LISTEN_BIG, &length));
                tpx_equal(length, sizes[i]);
                tpx_equal(tpx_verify(data, length, i + 1), length);
            }
    free(data);
}

static tp_pipe *listen_accept(tp_listener *listener)
{
    struct listen_guests guests = { 0 };

    tpx_ok(tp_accept(listener, listen_accepted, &guests));
    tpx_until(&guests.count, 1);
    return guests.pipes[0];
}

/* Reads the end of the stream. */
static void listen_end(tp_pipe *pipe, tp_status expected)
{
    char byte;

    tpx_status(tp_pipe_recv(pipe, &byte, 1, NULL), expected);
    tpx_check(*tp_pipe_error(pipe) != '\0', "no words");
}

/* Two ranks of one job, which have pipes by rank beside. */
static void listen_ranks(void)
{
    tp_pipe *direct = tpx_pipe(!tpx_me.rank, 0), *pipe;
    char address[LISTEN_TEXT], little[20], *json = NULL;
    tp_listener *listener;
    struct tp_stats stats;

    if (tpx_me.rank == 0) {
        tpx_ok(tp_listen(tpx_me.context, NULL, &listener));
        tpx_status(tp_listener_address(listener, little, sizeof(little)),
                   TP_ERR_TRUNCATED);
        tpx_ok(tp_listener_address(listener, address, sizeof(address)));
        tpx_ok(tp_pipe_send(direct, address, strlen(address) + 1));
        pipe = listen_accept(listener);
        tpx_check(strstr(tp_pipe_peer(pipe), "rank 1 of job") != NULL,
                  "its name is %s", tp_pipe_peer(pipe));
        listen_talk(pipe, true);
        tpx_ok(tp_listener_close(listener));
        tpx_ok(tp_listener_close(listener));
        listen_talk(pipe, false);      /* it lives on */
        listen_end(pipe, TP_ERR_PEER_CLOSED);
    } else {
        tpx_ok(tp_pipe_recv(direct, address, sizeof(address), NULL));
        tpx_ok(tp_connect(tpx_me.context, address, &pipe));
        tpx_equal(tp_pipe_rank(pipe), -1);
        listen_talk(pipe, false);
        listen_talk(pipe, true);
        tpx_ok(tp_pipe_explain(pipe, &json));
        tpx_check(strstr(json, "chosen") != NULL, "explained by %s", json);
        free(json);
        tpx_ok(tp_pipe_stats(pipe, &stats));
        tpx_check(stats.transport[0] != '\0', "no transport");
        tpx_ok(tp_pipe_close(pipe));
        tpx_ok(tp_pipe_close(pipe));
        tpx_status(tp_pipe_send(pipe, "x", 1), TP_ERR_CLOSED);
    }
    tpx_meet(!tpx_me.rank);
}

/* Jobs of one rank each: rank 0 listens and tells where, in its listener; the
 * others learn it, and get NULL. */
static tp_listener *listen_apart(char address[LISTEN_TEXT])
{
    const char *file = listen_file();
    tp_listener *listener = NULL;

    listen_alone(NULL, 0);
    if (tpx_me.rank != 0) {
        listen_learn(file, address);
        return NULL;
    }
    tpx_ok(tp_listen(tpx_me.context, NULL, &listener));
    tpx_ok(tp_listener_address(listener, address, LISTEN_TEXT));
    tpx_check(strstr(address, ";key=") != NULL, "no key in %s", address);
    listen_tell(file, address);
    return listener;
}

/* Two processes of no job.  What is written before the connection is made
 * waits for it; who leaves has its words heard. */
static void listen_singles(void)
{
    char address[LISTEN_TEXT];
    tp_listener *listener = listen_apart(address);
    tp_pipe *pipe;

    if (listener != NULL) {
        pipe = listen_accept(listener);
        listen_talk(pipe, false);
        tpx_ok(tp_pipe_recv(pipe, address, sizeof(address), NULL));
        listen_end(pipe, TP_ERR_PEER_CLOSED);
        listen_end(pipe, TP_ERR_PEER_CLOSED);
    } else {
        tpx_ok(tp_connect(tpx_me.context, address, &pipe));
        listen_talk(pipe, true);
        tpx_ok(tp_pipe_send(pipe, "bye", 4));
    }
}

/* A port of the host that is free now, and none that the kernel gives to who
 * calls somebody, as rank 1 itself does there. */
static unsigned listen_port(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), tries = 0;
    unsigned port;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    do {
        port = 10000 + ((unsigned)getpid() + 7919u * (unsigned)tries) % 20000;
        address.sin_port = htons((uint16_t)port);
        tpx_check(fd >= 0 && tries++ < 100, "no port: %s", strerror(errno));
    } while (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0);
    close(fd);
    return port;
}

/* By hand, by name, with a secret, and before anybody listens there. */
static void listen_by_hand(void)
{
    const char *file = listen_file();
    char address[LISTEN_TEXT], text[LISTEN_TEXT];
    tp_listener *listener;
    tp_pipe *pipe;

    listen_alone("our secret", 0);
    if (tpx_me.rank == 1) {
        unsigned port = listen_port();

        snprintf(address, sizeof(address), "localhost:%u", port);
        tpx_ok(tp_connect(tpx_me.context, address, &pipe));
        tpx_status(tp_pipe_send_message(pipe, &(tp_message){ 0 }, 100),
                   TP_ERR_TIMEOUT);    /* nobody there: nothing happened */
        snprintf(address, sizeof(address), "tcp://127.0.0.1:%u", port);
        listen_tell(file, address);
        listen_talk(pipe, true);
        tpx_ok(tp_pipe_close(pipe));
    } else {
        listen_learn(file, address);
        tpx_ok(tp_listen(tpx_me.context, address, &listener));
        tpx_ok(tp_listener_address(listener, text, sizeof(text)));
        tpx_check(strstr(text, "tcp=127.0.0.1:") != NULL
                  && strstr(text, "key=") == NULL, "its address is %s", text);
        pipe = listen_accept(listener);
        listen_talk(pipe, false);
        listen_end(pipe, TP_ERR_PEER_CLOSED);
    }
}

/* A process that connects to itself: each side is a pipe of its own. */
static void listen_self(void)
{
    char address[LISTEN_TEXT], room[8];
    tp_listener *listener;
    tp_pipe *here, *there;
    size_t length;

    tpx_ok(tp_listen(tpx_me.context, NULL, &listener));
    tpx_ok(tp_listener_address(listener, address, sizeof(address)));
    for (int i = 0; i < 3; i++) {
        tpx_ok(tp_connect(tpx_me.context, address, &there));
        here = listen_accept(listener);
        tpx_ok(tp_pipe_send(there, "ping", 4));
        tpx_ok(tp_pipe_recv(here, room, sizeof(room), &length));
        tpx_equal(length, 4);
        tpx_ok(tp_pipe_send(here, "pong!", 5));
        tpx_ok(tp_pipe_recv(there, room, sizeof(room), &length));
        tpx_equal(length, 5);
        tpx_equal(memcmp(room, "pong!", 5), 0);
        tpx_ok(tp_pipe_close(here));
        listen_end(there, TP_ERR_PEER_CLOSED);
        tpx_ok(tp_pipe_close(there));
    }
}

/* ---- who is not let in --------------------------------------------------- */

/* The key in it, replaced. */
static void listen_forge(char *address)
{
    char *key = strstr(address, "key=");

    tpx_check(key != NULL, "no key in %s", address);
    key[4] = key[4] == '0' ? '1' : '0';
}

static void listen_refused(const char *address, const char *words)
{
    tp_pipe *pipe;

    tpx_ok(tp_connect(tpx_me.context, address, &pipe));
    listen_end(pipe, TP_ERR_DENIED);
    tpx_status(tp_pipe_send(pipe, "x", 1), TP_ERR_DENIED);
    tpx_check(strstr(tp_pipe_error(pipe), words) != NULL, "its words are %s",
              tp_pipe_error(pipe));
    tpx_ok(tp_pipe_close(pipe));
}

/* A wrong key, or none at all, does not bring anybody in; the right one does
 * afterwards. */
static void listen_denied(void)
{
    tp_pipe *direct = tpx_pipe(!tpx_me.rank, 0), *pipe;
    struct listen_guests guests = { 0 };
    char address[LISTEN_TEXT], wrong[LISTEN_TEXT], *hand;
    tp_listener *listener;

    if (tpx_me.rank == 0) {
        tpx_ok(tp_listen(tpx_me.context, "127.0.0.1:0", &listener));
        tpx_ok(tp_accept(listener, listen_accepted, &guests));
        tpx_ok(tp_listener_address(listener, address, sizeof(address)));
        tpx_ok(tp_pipe_send(direct, address, strlen(address) + 1));
        tpx_meet(1);
        tpx_equal(__atomic_load_n(&guests.count, __ATOMIC_ACQUIRE), 0);
        tpx_meet(1);
        tpx_until(&guests.count, 1);
        listen_talk(guests.pipes[0], true);
        tpx_ok(tp_listener_close(listener));
    } else {
        tpx_ok(tp_pipe_recv(direct, address, sizeof(address), NULL));
        memcpy(wrong, address, sizeof(wrong));
        listen_forge(wrong);
        listen_refused(wrong, "does not let us in");
        hand = strstr(wrong, "tcp=") + 4;
        hand[strcspn(hand, ";")] = '\0';
        listen_refused(hand, "TP_SECRET");
        tpx_meet(0);
        tpx_meet(0);
        tpx_ok(tp_connect(tpx_me.context, address, &pipe));
        listen_talk(pipe, false);
    }
    tpx_meet(!tpx_me.rank);
}

/* Different secrets; one that knows it is let in after those that do not. */
static void listen_secrets(void)
{
    static const char *const secrets[] = { "right", "wrong", "right" };
    const char *file = listen_file();
    struct listen_guests guests = { 0 };
    char address[LISTEN_TEXT];
    tp_listener *listener;
    tp_pipe *pipe;

    listen_alone(secrets[tpx_me.rank], 0);
    if (tpx_me.rank == 0) {
        tpx_ok(tp_listen(tpx_me.context, NULL, &listener));
        tpx_ok(tp_listener_address(listener, address, sizeof(address)));
        listen_tell(file, address);
        tpx_ok(tp_accept(listener, listen_accepted, &guests));
        tpx_until(&guests.count, 1);
        listen_talk(guests.pipes[0], true);
        listen_end(guests.pipes[0], TP_ERR_PEER_CLOSED);
        tpx_equal(guests.count, 1);
    } else if (tpx_me.rank == 1) {
        listen_learn(file, address);
        for (int i = 0; i < 5; i++)
            listen_refused(address, "TP_SECRET");
        snprintf(address, sizeof(address), "%s.refused", file);
        listen_tell(address, "yes");
    } else {
        char other[LISTEN_TEXT], text[LISTEN_TEXT];

        snprintf(other, sizeof(other), "%s.refused", file);
        listen_learn(other, text);
        listen_learn(file, address);
        tpx_ok(tp_connect(tpx_me.context, address, &pipe));
        listen_talk(pipe, false);
    }
}

/* ---- strangers ----------------------------------------------------------- */

static unsigned listen_descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    unsigned count = 0;

    tpx_check(directory != NULL, "no /proc");
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

/* One that calls at the TCP address of that text. */
static int listen_call(const char *text)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    const char *at = strstr(text, "tcp=127.0.0.1:");
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    tpx_check(at != NULL && fd >= 0, "no way in %s", text);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((uint16_t)atoi(at + 14));
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Garbage of every kind: silence, noise, a right beginning, a proof that claims
 * a long card, more than anybody asked for. */
static void listen_annoy(int fd, unsigned i, uint64_t *state)
{
    unsigned char noise[4096];
    size_t length = 0;

    tpx_fill(noise, sizeof(noise), tpx_random(state));
    if (i % 5 == 1)
        length = 1 + tpx_below(state, sizeof(noise));
    if (i % 5 >= 2) {
        memcpy(noise, "tpld\1\0\0\0\0\0\0\0\0\0\0\0", 16);
        length = i % 5 == 2 ? 20 : 48;
    }
    if (i % 5 == 4) {
        memcpy(noise + 48, "tpld\0\0\0\0\0\x20\0\0\0\0\0\0", 16);
        length = sizeof(noise);
    }
    if (length > 0 && send(fd, noise, length, MSG_NOSIGNAL) < 0)
        return;                    /* it was sent away: fine */
}

static void listen_flood(void)
{
    enum { CALLS = 500, AT_ONCE = 100 };
    tp_pipe *direct = tpx_pipe(!tpx_me.rank, 0), *pipe;
    char address[LISTEN_TEXT];
    tp_listener *listener;
    uint64_t state = tpx_me.seed;
    int calls[AT_ONCE];

    if (tpx_me.rank == 0) {
        unsigned before, most = 0, now, connection;
        size_t memory;

        /* What drivers open at their first message is not counted. */
        listen_talk(direct, true);
        connection = listen_descriptors();
        /* What the accepted one will take, another such connection shows. */
        tpx_meet(1);
        connection = listen_descriptors() - connection;
        tpx_ok(tp_listen(tpx_me.context, "127.0.0.1:0", &listener));
        tpx_ok(tp_listener_address(listener, address, sizeof(address)));
        before = listen_descriptors();
        memory = tpx_resident();
        tpx_ok(tp_pipe_send(direct, address, strlen(address) + 1));
        pipe = listen_accept(listener);        /* while they come */
        listen_talk(pipe, true);
        for (unsigned i = 0; i < CALLS; i++) {
            char byte;

            now = listen_descriptors();
            most = now > most ? now : most;
            tpx_ok(tp_pipe_recv(pipe, &byte, 1, NULL));
        }
        tpx_check(most < before + 64 + 20 + connection, "%u descriptors, of "
                  "%u before, and %u for a connection", most, before,
                  connection);
        if (!tpx_me.sanitized)
            tpx_check(tpx_resident() < memory + (8 << 20),
                      "%zu bytes, of %zu before", tpx_resident(), memory);
        tpx_ok(tp_listener_close(listener));
    } else {
        listen_talk(direct, false);
        tpx_meet(0);
        tpx_ok(tp_pipe_recv(direct, address, sizeof(address), NULL));
        for (unsigned i = 0; i < AT_ONCE; i++)
            calls[i] = listen_call(address);
        tpx_ok(tp_connect(tpx_me.context, address, &pipe));
        listen_talk(pipe, false);
        for (unsigned i = 0; i < CALLS; i++) {
            int *fd = &calls[i % AT_ONCE];

            if (*fd >= 0)
                close(*fd);
            *fd = listen_call(address);
            if (*fd >= 0)
                listen_annoy(*fd, i, &state);
            tpx_ok(tp_pipe_send(pipe, "x", 1));
        }
        for (unsigned i = 0; i < AT_ONCE; i++)
            if (calls[i] >= 0)
                close(calls[i]);
    }
    tpx_meet(!tpx_me.rank);
}

/* ---- ends ---------------------------------------------------------------- */

/* Armed accepts end once; who was connected but not accepted reads the end; a
 * listener that is gone is not reached. */
static void listen_close(void)
{
    const char *file = listen_file();
    struct listen_guests guests = { 0 };
    char address[LISTEN_TEXT], other[LISTEN_TEXT];
    tp_listener *listener;
    tp_pipe *pipe;

    listen_alone(NULL, 0);
    snprintf(other, sizeof(other), "%s.sent", file);
    if (tpx_me.rank == 0) {
        tpx_ok(tp_listen(tpx_me.context, NULL, &listener));
        tpx_ok(tp_listener_address(listener, address, sizeof(address)));
        listen_tell(file, address);
        listen_learn(other, address);
        tpx_ok(tp_listener_close(listener));
        for (unsigned i = 0; i < 3; i++)
            tpx_ok(tp_accept(listener, listen_accepted, &guests));
        tpx_until(&guests.closed, 3);
        tpx_ok(tp_listen(tpx_me.context, "local", &listener));
        for (unsigned i = 0; i < 5; i++)
            tpx_ok(tp_accept(listener, listen_accepted, &guests));
        tpx_ok(tp_listener_close(listener));
        tpx_until(&guests.closed, 8);
        tpx_equal(guests.count, 0);
        tpx_ok(tp_listen(tpx_me.context, NULL, &listener));
        for (unsigned i = 0; i < 5; i++)
            tpx_ok(tp_accept(listener, listen_accepted, &guests));
        snprintf(other, sizeof(other), "%s.done", file);
        listen_learn(other, address);
        tpx_ok(tp_finalize(tpx_me.context));
        tpx_me.context = NULL;
        tpx_equal(guests.closed, 13);
    } else {
        listen_learn(file, address);
        tpx_ok(tp_connect(tpx_me.context, address, &pipe));
        tpx_ok(tp_pipe_send(pipe, "x", 1));    /* the connection is made */
        listen_tell(other, "yes");
        listen_end(pipe, TP_ERR_PEER_CLOSED);
        tpx_ok(tp_finalize(tpx_me.context));
        listen_alone(NULL, 1000);              /* it tries for that long */
        tpx_ok(tp_connect(tpx_me.context, address, &pipe));
        listen_end(pipe, TP_ERR_UNREACHABLE);
        snprintf(other, sizeof(other), "%s.done", file);
        listen_tell(other, "yes");
    }
}

/* A listener may close at each step of a visit: that is not to be denied. */
static void listen_closing(void)
{
    tp_options options = TP_OPTIONS_INIT;
    char address[LISTEN_TEXT], byte;
    tp_listener *listener;
    tp_status status;
    tp_pipe *pipe;

    options.bootstrap = "single";
    options.progress = TP_PROGRESS_MANUAL;
    options.connect_timeout_ms = 100;
    for (unsigned steps = 0; steps < 30; steps++) {
        tpx_ok(tp_init(&options, &tpx_me.context));
        tpx_check(tp_fd(tpx_me.context) >= 0, "each step looks all over");
        tpx_ok(tp_listen(tpx_me.context, "local", &listener));
        tpx_ok(tp_listener_address(listener, address, sizeof(address)));
        tpx_ok(tp_connect(tpx_me.context, address, &pipe));
        for (unsigned i = 0; i < steps; i++)
            tpx_ok(tp_progress(tpx_me.context, NULL));
        tpx_ok(tp_listener_close(listener));
        status = tp_pipe_recv(pipe, &byte, 1, NULL);
        tpx_check(status == TP_ERR_PEER_CLOSED
                  || status == TP_ERR_UNREACHABLE, "after %u steps: %s: %s",
                  steps, tp_strerror(status), tp_pipe_error(pipe));
        tpx_ok(tp_finalize(tpx_me.context));
        tpx_me.context = NULL;
    }
}

static void listen_again(tp_listener *listener, tp_status status,
                         tp_pipe *pipe, void *arg)
{
    unsigned *owed = arg;

    tpx_equal(status, TP_ERR_CLOSED);
    tpx_check(pipe == NULL && *owed > 0, "a callback that nobody is owed");
    --*owed;
    if (tp_accept(listener, listen_again, owed) == TP_OK)
        ++*owed;
    tpx_ok(tp_listen(tpx_me.context, "local", &listener));
    if (tp_accept(listener, listen_again, owed) == TP_OK)
        ++*owed;
}

/* A server that asks for the next one whatever came of the last, also at a new
 * place, until it is refused. */
static void listen_insistent(void)
{
    tp_listener *listener;
    unsigned owed = 1;

    tpx_ok(tp_listen(tpx_me.context, NULL, &listener));
    tpx_ok(tp_accept(listener, listen_again, &owed));
    tpx_ok(tp_finalize(tpx_me.context));
    tpx_me.context = NULL;
    tpx_equal(owed, 0);
}

/* The other side dies: this pipe ends, the listener goes on. */
static void listen_death(void)
{
    char address[LISTEN_TEXT];
    tp_listener *listener = listen_apart(address);
    tp_pipe *pipe;

    if (listener != NULL) {
        for (int i = 0; i < 2; i++) {
            pipe = listen_accept(listener);
            tpx_ok(tp_pipe_recv(pipe, address, 1, NULL));
            tpx_ok(tp_pipe_send(pipe, "d", 1));
            listen_end(pipe, TP_ERR_PEER_FAILED);
            tpx_status(tp_pipe_send(pipe, "x", 1), TP_ERR_PEER_FAILED);
        }
    } else {
        tpx_ok(tp_connect(tpx_me.context, address, &pipe));
        tpx_ok(tp_pipe_send(pipe, "x", 1));
        tpx_ok(tp_pipe_recv(pipe, address, 1, NULL));
        kill(getpid(), SIGKILL);
    }
}

/* A server that serves many, one after the other, keeps nothing of them. */
static void listen_many(void)
{
    enum { MANY = 60 };
    tp_pipe *direct = tpx_pipe(!tpx_me.rank, 0), *pipe;
    char address[LISTEN_TEXT], byte;
    tp_listener *listener;
    unsigned before = 0;

    if (tpx_me.rank == 0) {
        tpx_ok(tp_listen(tpx_me.context, "local", &listener));
        tpx_ok(tp_listener_address(listener, address, sizeof(address)));
        tpx_check(strstr(address, "tcp=") == NULL, "its address is %s",
                  address);
        tpx_ok(tp_pipe_send(direct, address, strlen(address) + 1));
    } else {
        tpx_ok(tp_pipe_recv(direct, address, sizeof(address), NULL));
    }
    for (unsigned i = 0; i < MANY; i++) {
        if (tpx_me.rank == 0)
            pipe = listen_accept(listener);
        else
            tpx_ok(tp_connect(tpx_me.context, address, &pipe));
        if (tpx_me.rank == 0) {
            tpx_ok(tp_pipe_recv(pipe, &byte, 1, NULL));
            tpx_equal(byte, (char)i);
            tpx_ok(tp_pipe_close(pipe));
        } else {
            byte = (char)i;
            tpx_ok(tp_pipe_send(pipe, &byte, 1));
            listen_end(pipe, TP_ERR_PEER_CLOSED);
            tpx_ok(tp_pipe_close(pipe));
        }
        if (i == 9) {
            tpx_meet(!tpx_me.rank);
            before = listen_descriptors();
        }
    }
    tpx_meet(!tpx_me.rank);
    /* What ended last may still be on its way out. */
    tpx_check(listen_descriptors() <= before + 12, "%u descriptors, of %u"
              " before", listen_descriptors(), before);
}

/* Several clients with several connections each, all at once. */
static void listen_crowd(void)
{
    enum { EACH = 3 };
    struct listen_guests guests = { 0 };
    char address[LISTEN_TEXT], byte;
    unsigned count = (unsigned)(tpx_me.size - 1) * EACH;
    tp_listener *listener;
    tp_pipe *pipes[EACH];

    if (tpx_me.rank == 0) {
        tpx_ok(tp_listen(tpx_me.context, NULL, &listener));
        tpx_ok(tp_listener_address(listener, address, sizeof(address)));
        for (int rank = 1; rank < tpx_me.size; rank++)
            tpx_ok(tp_pipe_send(tpx_pipe(rank, 0), address,
                                strlen(address) + 1));
        for (unsigned i = 0; i < count; i++)
            tpx_ok(tp_accept(listener, listen_accepted, &guests));
        tpx_until(&guests.count, count);
        for (unsigned i = 0; i < count; i++) {
            tpx_ok(tp_pipe_recv(guests.pipes[i], &byte, 1, NULL));
            tpx_ok(tp_pipe_send(guests.pipes[i], &byte, 1));
        }
    } else {
        tpx_ok(tp_pipe_recv(tpx_pipe(0, 0), address, sizeof(address), NULL));
        for (unsigned i = 0; i < EACH; i++)
            tpx_ok(tp_connect(tpx_me.context, address, &pipes[i]));
        for (unsigned i = 0; i < EACH; i++) {
            byte = (char)(tpx_me.rank * EACH + (int)i);
            tpx_ok(tp_pipe_send(pipes[i], &byte, 1));
        }
        for (unsigned i = 0; i < EACH; i++) {
            tpx_ok(tp_pipe_recv(pipes[i], &byte, 1, NULL));
            tpx_equal(byte, (char)(tpx_me.rank * EACH + (int)i));
        }
    }
    tpx_barrier();
}

/* One at each pipe that comes, which it then serves. */
static void listen_serve(tp_listener *listener, tp_status status,
                         tp_pipe *pipe, void *arg)
{
    unsigned *count = arg;

    if (status != TP_OK)
        return;
    tpx_ok(tp_pipe_write(pipe, &listen_letter, NULL, NULL));
    tpx_ok(tp_accept(listener, listen_serve, arg));
    __atomic_fetch_add(count, 1, __ATOMIC_ACQ_REL);
}

/* More at once than may be at the desk: all of them come in. */
static void listen_throng(void)
{
    enum { THRONG = 100 };
    tp_pipe *direct = tpx_pipe(!tpx_me.rank, 0), *pipes[THRONG];
    char address[LISTEN_TEXT], byte;
    tp_listener *listener;
    unsigned count = 0;

    if (tpx_me.rank == 0) {
        tpx_ok(tp_listen(tpx_me.context, NULL, &listener));
        tpx_ok(tp_listener_address(listener, address, sizeof(address)));
        tpx_ok(tp_accept(listener, listen_serve, &count));
        tpx_ok(tp_pipe_send(direct, address, strlen(address) + 1));
        tpx_until(&count, THRONG);
    } else {
        tpx_ok(tp_pipe_recv(direct, address, sizeof(address), NULL));
        for (unsigned i = 0; i < THRONG; i++)
            tpx_ok(tp_connect(tpx_me.context, address, &pipes[i]));
        for (unsigned i = 0; i < THRONG; i++)
            tpx_check(tp_pipe_recv(pipes[i], &byte, 1, NULL) == TP_OK,
                      "pipe %u: %s", i, tp_pipe_error(pipes[i]));
    }
    tpx_barrier();
}

/* ---- arguments ----------------------------------------------------------- */

/* Of an address that leads nowhere there is no pipe that could tell why. */
static void listen_told(const char *address, const char *words)
{
    char text[1024] = "";
    int ends[2], kept = dup(STDERR_FILENO);
    tp_pipe *pipe;
    tp_status status;

    tpx_check(kept >= 0 && pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0
              && dup2(ends[1], STDERR_FILENO) >= 0, "no pipe for the log");
    status = tp_connect(tpx_me.context, address, &pipe);
    tpx_check(dup2(kept, STDERR_FILENO) >= 0
              && read(ends[0], text, sizeof(text) - 1) >= 0,
              "connecting to %s: nothing was logged", address);
    tpx_status(status, TP_ERR_INVALID);
    tpx_check(strstr(text, words) != NULL, "connecting to %s: %s", address,
              text);
    close(kept);
    close(ends[0]);
    close(ends[1]);
}

static void listen_arguments(void)
{
    static const char *const bad[] = {
        "", "tp:1;", "tp:1;tcp=nonsense", "tp:2;tcp=127.0.0.1:1", "host",
        "host:", "host:99999", ":0", "*:4711", "0.0.0.0:4711", "[::]:4711",
        "[::1:5", "tcp://", "local", "a b:1" };
    tp_listener *listener;
    tp_pipe *pipe;
    char address[LISTEN_TEXT];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        tpx_status(tp_connect(tpx_me.context, bad[i], &pipe), TP_ERR_INVALID);
    listen_told("host", "tp_connect: \"host\" is not an address: expected ");
    listen_told("tcp://", "\"tcp://\" is not an address: expected ");
    listen_told("local", "tp_connect: \"local\" is an address to listen at");
    listen_told("*:4711", "tp_listener_address() writes the one to connect");
    tpx_status(tp_listen(tpx_me.context, "nonsense", &listener),
               TP_ERR_INVALID);
    tpx_status(tp_listen(tpx_me.context, "tp:1;tcp=127.0.0.1:1", &listener),
               TP_ERR_INVALID);
    tpx_status(tp_listen(tpx_me.context, "192.0.2.77:0", &listener),
               TP_ERR_SYSTEM);
    tpx_ok(tp_listen(tpx_me.context, "[::1]:0", &listener));
    tpx_ok(tp_listener_address(listener, address, sizeof(address)));
    tpx_check(strstr(address, "tcp=[::1]:") != NULL, "its address is %s",
              address);
    tpx_ok(tp_listen(tpx_me.context, "*:0", &listener));
    tpx_ok(tp_listener_address(listener, address, sizeof(address)));
    tpx_check(strstr(address, "tcp=127.0.0.1:") != NULL
              && strpbrk(address, " \n\t") == NULL, "its address is %s",
              address);
    tpx_status(tp_accept(listener, NULL, NULL), TP_ERR_INVALID);
    tpx_status(tp_accept(NULL, listen_accepted, NULL), TP_ERR_INVALID);
}

/* What a visitor has lent and closes its pipe over is its own again when it is
 * given back. */
static void listen_borrowed(tp_pipe *pipe, tp_status status,
                            tp_message *message, void *arg)
{
    tp_message **lent = arg;

    (void)pipe;
    tpx_ok(status);
    __atomic_store_n(lent, message, __ATOMIC_RELEASE);
}

static void listen_lender(tp_pipe *direct, unsigned char *memory)
{
    tp_payload payload = { .data = memory, .length = LISTEN_BIG };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    char address[LISTEN_TEXT];
    struct tpx_end end = { 0 };
    tp_pipe *pipe;

    tpx_ok(tp_pipe_recv(direct, address, sizeof(address), NULL));
    tpx_ok(tp_connect(tpx_me.context, address, &pipe));
    tpx_fill(memory, LISTEN_BIG, 1);
    tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
    tpx_ok(tp_pipe_recv(direct, address, 1, NULL));
    tpx_ok(tp_pipe_close(pipe));
    tpx_until(&end.over, 1);
    memset(memory, 0xee, LISTEN_BIG);
}

static void listen_lent(void)
{
    tp_pipe *direct = tpx_pipe(!tpx_me.rank, 0), *pipe;
    tp_message *skeleton, *lent = NULL;
    char address[LISTEN_TEXT];
    tp_listener *listener;
    void *memory;

    tpx_ok(tp_alloc(tpx_me.context, LISTEN_BIG,
                    (tp_device){ TP_DEVICE_CPU, 0 }, &memory));
    if (tpx_me.rank == 0) {
        listen_lender(direct, memory);
    } else {
        tpx_ok(tp_listen(tpx_me.context, NULL, &listener));
        tpx_ok(tp_listener_address(listener, address, sizeof(address)));
        tpx_ok(tp_pipe_send(direct, address, sizeof(address)));
        pipe = listen_accept(listener);
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, -1));
        tpx_ok(tp_pipe_borrow(pipe, skeleton, listen_borrowed, &lent));
        while (__atomic_load_n(&lent, __ATOMIC_ACQUIRE) == NULL)
            tp_wait(tpx_me.context, 100, NULL);
        tpx_ok(tp_pipe_send(direct, "", 1));
        listen_end(pipe, TP_ERR_PEER_CLOSED);
        tpx_sleep_ms(50);
        tpx_equal(tpx_verify(lent->payloads[0].data, LISTEN_BIG, 1),
                  LISTEN_BIG);
        tpx_ok(tp_pipe_release(pipe, lent));
        tpx_ok(tp_pipe_close(pipe));
    }
    tpx_meet(!tpx_me.rank);
}

const struct tpx_spmd tpx_listen[] = {
    { "listen_arguments", listen_arguments, 1, TPX_WARNS | TPX_ONCE },
    { "listen_ranks", listen_ranks, 2, TPX_LAUNCH },
    { "listen_lent", listen_lent, 2, TPX_CHANNELS, 30 },
    { "listen_singles", listen_singles, 2, TPX_BARE },
    { "listen_by_hand", listen_by_hand, 2, TPX_BARE },
    { "listen_self", listen_self, 1, 0 },
    { "listen_denied", listen_denied, 2, 0 },
    { "listen_secrets", listen_secrets, 3, TPX_BARE },
    { "listen_flood", listen_flood, 2, 0 },
    { "listen_close", listen_close, 2, TPX_BARE },
    { "listen_closing", listen_closing, 1, TPX_BARE | TPX_MANUAL, 60 },
    { "listen_insistent", listen_insistent, 1, 0 },
    { "listen_death", listen_death, 3, TPX_BARE | TPX_KILLS },
    { "listen_many", listen_many, 2, 0 },
    { "listen_crowd", listen_crowd, 5, 0 },
    { "listen_throng", listen_throng, 2, 0, 60 },
    { NULL }
};
