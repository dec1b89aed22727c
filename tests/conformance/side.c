/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite's stand-in for the core. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "tests/conformance/side.h"

enum {
    SIDE_PATTERN_SHIFTS = 4096,    /* different contents of one length */
    SIDE_PATTERN = 1025 * 1024 + SIDE_PATTERN_SHIFTS,
    SIDE_POLL_MS = 1,              /* between looks at a TPF_POLLED backend */
    SIDE_CHILD_SECONDS = 160
};

bool tpx_lands;

/* ---- streams ----------------------------------------------------------- */

uint64_t tpx_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

size_t tpx_size_fixed(const struct tpx_stream *stream, size_t max_frame)
{
    return stream->fixed < max_frame ? stream->fixed : max_frame;
}

size_t tpx_size_random(const struct tpx_stream *stream, size_t max_frame)
{
    uint64_t x = tpx_mix(stream->seed ^ tpx_mix(stream->next));
    unsigned shift = (unsigned)(x >> 58) % 18;   /* all magnitudes alike */
    size_t limit = max_frame >> shift;

    return 1 + (size_t)((x & 0xffffffffu) % (limit > 0 ? limit : 1));
}

size_t tpx_size_small(const struct tpx_stream *stream, size_t max_frame)
{
    size_t size = 1 + (size_t)(tpx_mix(stream->seed + stream->next) % 64);

    return size < max_frame ? size : max_frame;
}

size_t tpx_size_every(const struct tpx_stream *stream, size_t max_frame)
{
    /* With few of them, sizes from everywhere. */
    return 1 + (size_t)(stream->next * (tpx_few(110) == 110 ? 1 : 11)
                        % max_frame);
}

size_t tpx_size_top(const struct tpx_stream *stream, size_t max_frame)
{
    return max_frame - (size_t)stream->next % (max_frame / 2);
}

const void *tpx_bytes(const struct tpx_stream *stream, uint64_t k)
{
    static unsigned char *pattern;

    if (pattern == NULL) {
        uint64_t *words = malloc(SIDE_PATTERN);

        ck_assert_ptr_nonnull(words);
        for (size_t i = 0; i < SIDE_PATTERN / sizeof(*words); i++)
            words[i] = tpx_mix(i);
        pattern = (unsigned char *)words;
    }
    return pattern + tpx_mix(stream->seed + 7 * k) % SIDE_PATTERN_SHIFTS;
}

void tpx_stream_set(struct tpx_link *from, struct tpx_link *to, uint64_t seed,
                    size_t (*size)(const struct tpx_stream *, size_t),
                    size_t fixed)
{
    struct tpx_stream stream = { .seed = seed, .size = size, .fixed = fixed };

    from->out = stream;
    to->in = stream;
}

/* Of the stream's next frame, which may land if frames do. */
static size_t link_size(const struct tpx_link *link,
                        const struct tpx_stream *stream)
{
    const struct tpf_conn *conn = link->conn;

    return stream->size(stream, conn->max_lent > 0 ? conn->max_lent
                                                   : conn->max_frame);
}

bool tpx_send(struct tpx_link *link)
{
    size_t max_frame = link->conn->max_frame;
    size_t size = link_size(link, &link->out);
    void *room = link->conn->backend->reserve(link->conn, size);

    ck_assert_msg(size <= max_frame, "a frame of %zu bytes", size);
    if (room == NULL)
        return false;
    ck_assert_msg((uintptr_t)room % 8 == 0, "reserve() is not aligned");
    memcpy(room, tpx_bytes(&link->out, link->out.next), size);
    link->conn->backend->commit(link->conn, size);
    link->out.next++;
    return true;
}

/* ---- upcalls ----------------------------------------------------------- */

static struct tpx_link *link_new(struct tpx_side *side, struct tpf_conn *conn)
{
    struct tpx_link *link = tpb_zalloc(sizeof(*link));

    ck_assert_ptr_nonnull(link);
    link->side = side;
    link->conn = conn;
    conn->peer = link;
    tpb_list_append(&side->links, &link->node);
    return link;
}

/* What must hold at every upcall for a conn that the core has. */
static struct tpx_link *link_of(void *core, struct tpf_conn *conn)
{
    struct tpx_link *link = conn->peer;

    ck_assert_msg(link != NULL, "an upcall before incoming");
    ck_assert_msg(link->side == core && link->conn == conn,
                  "an upcall for a conn that is gone");
    ck_assert_msg(!link->failed, "an upcall after failed");
    return link;
}

static void side_incoming(void *core, struct tpf_conn *conn)
{
    struct tpx_side *side = core;
    struct tpx_link *link;

    ck_assert_ptr_null(conn->peer);
    ck_assert_uint_ge(conn->max_frame, 256);
    ck_assert_uint_ge(conn->window, conn->max_frame);
    ck_assert(conn->returns > 0 && conn->returns <= conn->window / 4);
    link = link_new(side, conn);
    link->incoming = link->connected = true;
    link->in = link->out = side->expect;
    side->incoming++;
}

static void side_connected(void *core, struct tpf_conn *conn)
{
    struct tpx_link *link = link_of(core, conn);

    ck_assert_msg(!link->connected, "connected twice");
    ck_assert_uint_ge(conn->max_frame, 256);
    ck_assert_uint_ge(conn->window, conn->max_frame);
    ck_assert(conn->returns > 0 && conn->returns <= conn->window / 4);
    link->connected = true;
}

static void side_writable(void *core, struct tpf_conn *conn)
{
    link_of(core, conn)->writable++;
}

static void side_sent(void *core, struct tpf_conn *conn, void *token)
{
    struct tpx_link *link = link_of(core, conn);

    link->sent++;
    link->token = token;
}

static void side_failed(void *core, struct tpf_conn *conn, tp_status status,
                        const char *text)
{
    struct tpx_link *link = link_of(core, conn);

    ck_assert_int_ne(status, TP_OK);
    ck_assert_msg(text != NULL && *text != '\0', "failed without words");
    link->failed = true;
    link->status = status;
    snprintf(link->text, sizeof(link->text), "%s", text);
}

static const struct tpf_upcalls side_upcalls = {
    .incoming = side_incoming,
    .connected = side_connected,
    .writable = side_writable,
    .sent = side_sent,
    .failed = side_failed
};

/* ---- one side ---------------------------------------------------------- */

static void side_card(struct tpt_card *card)
{
    card->size = 2;
    card->pid = (uint32_t)getpid();
    card->uid = (uint32_t)getuid();
    tpb_random(card->instance, sizeof(card->instance));
    tpb_random(card->cookie, sizeof(card->cookie));
    snprintf(card->job, sizeof(card->job), "conformance.%d", getpid());
    snprintf(card->host.name, sizeof(card->host.name), "localhost");
}

struct tpx_side *tpx_side_try(const struct tpf_backend *backend,
                              struct tpb_error *error)
{
    struct tpx_side *side = tpb_zalloc(sizeof(*side));
    tp_status status;

    ck_assert_ptr_nonnull(side);
    side->backend = backend;
    tpb_list_init(&side->links);
    tpb_list_init(&side->env.ready);
    tpb_list_init(&side->env.gathered);
    ck_assert_int_eq(tpb_settings_load(&side->settings, error), TP_OK);
    side_card(&side->card);
    side->expect.size = tpx_size_random;
    side->env.upcalls = &side_upcalls;
    side->env.core = side;
    side->env.settings = &side->settings;
    side->env.card = &side->card;
    side->env.lands = tpx_lands;
    side->env.watches = &side->watches;
    side->env.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (side->env.epoll < 0) {
        tpb_fail_errno(error, errno, "epoll");
        goto error;
    }
    side->endpoint = tpb_zalloc(backend->endpoint_size);
    ck_assert_ptr_nonnull(side->endpoint);
    side->endpoint->backend = backend;
    side->endpoint->env = &side->env;
    status = backend->open(side->endpoint, error);
    if (status != TP_OK)
        goto error;
    side->address_length = backend->address(side->endpoint, side->address,
                                            sizeof(side->address));
    ck_assert_uint_gt(side->address_length, 0);
    ck_assert_uint_le(side->address_length, sizeof(side->address));
    return side;
error:
    tpx_side_close(side);
    return NULL;
}

struct tpx_side *tpx_side_open(const struct tpf_backend *backend)
{
    struct tpb_error error = { "" };
    struct tpx_side *side = tpx_side_try(backend, &error);

    ck_assert_msg(side != NULL, "%s: open: %s", backend->name, error.text);
    return side;
}

void tpx_disconnect(struct tpx_link *link)
{
    if (link->conn == NULL)
        return;
    link->conn->backend->disconnect(link->conn);
    tpf_conn_free(link->conn);
    link->conn = NULL;
}

void tpx_side_close(struct tpx_side *side)
{
    struct tpb_list *node;

    if (side == NULL)
        return;
    while ((node = tpb_list_take(&side->links)) != NULL) {
        struct tpx_link *link = TPB_CONTAINER(node, struct tpx_link, node);

        tpx_disconnect(link);
        tpb_free(link);
    }
    if (side->endpoint != NULL) {
        side->backend->close(side->endpoint);
        ck_assert(tpb_list_empty(&side->env.ready));
        tpb_free(side->endpoint);
    }
    tpb_close(&side->env.epoll);
    tpb_settings_fini(&side->settings);
    tpb_free(side);
}

struct tpx_link *tpx_incoming(struct tpx_side *side, unsigned n)
{
    TPB_LIST_EACH(node, &side->links) {
        struct tpx_link *link = TPB_CONTAINER(node, struct tpx_link, node);

        if (link->incoming && n-- == 0)
            return link;
    }
    return NULL;
}

static bool link_same(const struct tpx_link *link, const void *bytes,
                      size_t from, size_t size)
{
    const unsigned char *all = tpx_bytes(&link->in, link->in.next);

    return memcmp(bytes, all + from, size) == 0;
}

/* Says where the body of a frame goes whose head is here: every other one
 * behind that, and half of them only after some more looks. */
static void link_land(struct tpx_link *link)
{
    const struct tpf_backend *backend = link->conn->backend;
    uint64_t way = tpx_mix(link->in.next);
    size_t size;
    const void *bytes = backend->coming(link->conn, &link->head, &size);

    if (bytes == NULL)
        return;
    link->held = ++link->waits < way / 4 % 16 && way % 2 == 0;
    if (link->held) {
        link->head = 0;
        return;
    }
    link->waits = 0;
    ck_assert_uint_eq(size, link_size(link, &link->in));
    ck_assert(link->head > 0 && link_same(link, bytes, 0, link->head));
    if (link->place == NULL || way / 2 % 2 == 0) {
        link->head = 0;
        link->went.behind++;
        backend->land(link->conn, NULL);
    } else {
        memset(link->place, 0, size - link->head);
        link->went.placed++;
        backend->land(link->conn, link->place);
    }
}

/* All frames of one link, each checked against its stream. */
static void link_frames(struct tpx_link *link)
{
    const struct tpf_backend *backend = link->conn->backend;

    link->held = link->hold;
    while (!link->hold) {
        size_t got, size;
        const void *bytes = backend->peek(link->conn, &got);

        if (bytes == NULL) {
            if (link->side->env.lands && backend->coming != NULL)
                link_land(link);
            break;
        }
        ck_assert_msg((uintptr_t)bytes % 8 == 0, "peek() is not aligned");
        ck_assert_msg(link->in.size != NULL, "a frame that nobody sent");
        size = link_size(link, &link->in);
        ck_assert_msg(got == size, "frame %llu has %zu bytes, not %zu",
                      (unsigned long long)link->in.next, got, size);
        ck_assert_msg(link->head == 0
                      ? link_same(link, bytes, 0, size)
                      : link_same(link, bytes, 0, link->head)
                        && link_same(link, link->place, link->head,
                                     size - link->head),
                      "frame %llu of %zu bytes is damaged",
                      (unsigned long long)link->in.next, size);
        link->head = 0;
        backend->pop(link->conn);
        link->in.next++;
    }
}

static bool side_frames(struct tpx_side *side)
{
    struct tpb_list *taken;
    bool any = false;

    TPB_LIST_EACH(node, &side->links) {
        struct tpx_link *link = TPB_CONTAINER(node, struct tpx_link, node);

        if (link->held && !link->hold && link->conn != NULL)
            link_frames(link);
    }
    while ((taken = tpb_list_take(&side->env.ready)) != NULL) {
        struct tpf_conn *conn = TPB_CONTAINER(taken, struct tpf_conn, ready);

        ck_assert_msg(conn->peer != NULL, "ready before incoming");
        link_frames(conn->peer);
        any = true;
    }
    return any;
}

static bool side_watches(struct tpx_side *side, int ms)
{
    struct epoll_event events[16];
    int count = epoll_wait(side->env.epoll, events, TPB_COUNT(events), ms);

    for (int i = 0; i < count; i++) {
        struct tpf_watch *watch = events[i].data.ptr;

        side->found.fd = watch->fd;
        watch->ready(watch, events[i].events);
    }
    side->wakeups += count > 0;
    return count > 0;
}

static volatile sig_atomic_t side_dies;

static void side_die(int signal)
{
    (void)signal;
    side_dies = 1;
}

bool tpx_side_step(struct tpx_side *side)
{
    bool watches, progress, frames;

    if (side_dies)
        raise(SIGKILL);
    watches = side_watches(side, 0);
    progress = side->backend->progress(side->endpoint);
    frames = side_frames(side);
    side->found.steps++;
    side->found.watches += watches;
    side->found.progress += progress;
    side->found.frames += frames;
    return watches || progress || frames;
}

/* Fails with what kept it busy. */
static void side_restless(const struct tpx_side *side)
{
    char name[64], file[64] = "";

    snprintf(name, sizeof(name), "/proc/self/fd/%d", side->found.fd);
    if (readlink(name, file, sizeof(file) - 1) < 0)
        file[0] = '\0';
    ck_abort_msg("there is always something to do: of %llu steps %llu found "
                 "a descriptor ready, the last one %d (%s), in %llu "
                 "progress() moved, in %llu frames came",
                 (unsigned long long)side->found.steps,
                 (unsigned long long)side->found.watches, side->found.fd,
                 file, (unsigned long long)side->found.progress,
                 (unsigned long long)side->found.frames);
}

void tpx_side_calm(struct tpx_side *side, struct tpx_side *other)
{
    uint64_t limit = tpb_now() + TPX_DEADLINE_MS * UINT64_C(1000000);

    memset(&side->found, 0, sizeof(side->found));
    while (tpx_side_step(side)) {
        tpx_side_step(other);
        if (tpb_now() > limit)
            side_restless(side);
    }
}

/* Where nothing wakes the core, it looks as long as there is a conn, or one is
 * to come. */
static bool side_polls(const struct tpx_side *side)
{
    bool any = side->env.joining > 0;

    if ((side->backend->flags & TPF_POLLED) == 0)
        return false;
    TPB_LIST_EACH(node, &side->links)
        any |= TPB_CONTAINER(node, struct tpx_link, node)->conn != NULL;
    return any;
}

void tpx_side_sleep(struct tpx_side *side, int ms)
{
    if (side_polls(side) && ms > SIDE_POLL_MS)
        ms = SIDE_POLL_MS;
    if (side->backend->arm(side->endpoint))
        side_watches(side, ms);
    side->backend->disarm(side->endpoint);
    tpx_side_step(side);
}

struct tpx_link *tpx_connect_try(struct tpx_side *side, const void *address,
                                 size_t length, tp_status *status,
                                 struct tpb_error *error)
{
    struct tpf_conn *conn = tpf_conn_new(side->endpoint);
    struct tpx_link *link;

    ck_assert_ptr_nonnull(conn);
    link = link_new(side, conn);
    *status = side->backend->connect(conn, address, length, error);
    if (*status != TP_OK) {
        ck_assert_msg(!link->connected && !link->failed,
                      "refused, and an upcall as well");
        ck_assert_msg(error->text[0] != '\0', "refused without words");
        tpx_disconnect(link);
    }
    return link;
}

struct tpx_link *tpx_connect(struct tpx_side *side, const void *address,
                             size_t length)
{
    struct tpb_error error = { "" };
    tp_status status;
    struct tpx_link *link = tpx_connect_try(side, address, length, &status,
                                            &error);

    ck_assert_msg(status == TP_OK, "%s: connect: %s", side->backend->name,
                  error.text);
    return link;
}

bool tpx_trying(const struct tpx_link *link, const char *words)
{
    struct tpb_text text = { 0 };
    bool found;

    if (!link->connected && !link->failed)
        link->conn->backend->trying(link->conn, &text);
    ck_assert(!text.failed);
    found = text.length > 0 && strstr(text.text, words) != NULL;
    tpb_text_fini(&text);
    return found;
}

/* ---- two sides --------------------------------------------------------- */

bool tpx_pair_step(struct tpx_pair *pair)
{
    bool any = tpx_side_step(pair->a);

    if (pair->b != pair->a)
        any |= tpx_side_step(pair->b);
    return any;
}

void tpx_pair_open(struct tpx_pair *pair, const struct tpf_backend *backend)
{
    pair->a = tpx_side_open(backend);
    if (backend->flags & TPF_SELF) {
        pair->b = pair->a;
        pair->ab = pair->ba = tpx_connect(pair->a, pair->a->address,
                                          pair->a->address_length);
        ck_assert(pair->ab->connected);
        return;
    }
    pair->b = tpx_side_open(backend);
    pair->ab = tpx_connect(pair->a, pair->b->address,
                           pair->b->address_length);
    TPX_UNTIL(tpx_pair_step(pair),
              pair->ab->failed
                  || (pair->ab->connected && pair->b->incoming > 0));
    ck_assert_msg(!pair->ab->failed, "connecting failed: %s", pair->ab->text);
    pair->ba = tpx_incoming(pair->b, 0);
    ck_assert_uint_eq(pair->ab->conn->max_frame, pair->ba->conn->max_frame);
}

void tpx_pair_close(struct tpx_pair *pair)
{
    tpx_side_close(pair->a);
    if (pair->b != pair->a)
        tpx_side_close(pair->b);
}

/* ---- two processes ----------------------------------------------------- */

void tpx_child_start(struct tpx_child *child,
                     void (*body)(int control, void *arg), void *arg)
{
    int ends[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
                                ends), 0);
    child->pid = fork();
    ck_assert_int_ge(child->pid, 0);
    if (child->pid == 0) {
        close(ends[0]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(SIDE_CHILD_SECONDS);
        signal(SIGUSR1, side_die);
        body(ends[1], arg);
        _exit(0);
    }
    close(ends[1]);
    child->control = ends[0];
}

void tpx_child_end(struct tpx_child *child)
{
    int status = 0;

    tpb_close(&child->control);
    ck_assert_int_eq(waitpid(child->pid, &status, 0), child->pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0,
                  "the other process ended with status %#x", (unsigned)status);
}

void tpx_child_kill(struct tpx_child *child, bool between)
{
    kill(child->pid, between ? SIGUSR1 : SIGKILL);
    ck_assert_int_eq(waitpid(child->pid, NULL, 0), child->pid);
    tpb_close(&child->control);
}

void tpx_tell(int control, const void *data, size_t length)
{
    ck_assert_int_eq(send(control, data, length, MSG_NOSIGNAL),
                     (ssize_t)length);
}

bool tpx_told(int control)
{
    struct pollfd poller = { .fd = control, .events = POLLIN };

    return poll(&poller, 1, 0) > 0;
}

size_t tpx_hear(int control, void *data, size_t capacity)
{
    struct pollfd poller = { .fd = control, .events = POLLIN };
    ssize_t got;

    ck_assert_msg(poll(&poller, 1, TPX_DEADLINE_MS) == 1,
                  "the other process says nothing");
    got = recv(control, data, capacity, 0);
    ck_assert_msg(got > 0, "the other process is gone");
    return (size_t)got;
}

int tpx_fd_count(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    ck_assert_ptr_nonnull(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count - 3;              /* ".", ".." and the directory itself */
}

const char *tpx_fd_names(void)
{
    static char text[4096];
    DIR *dir = opendir("/proc/self/fd");
    const struct dirent *entry;
    size_t used = 0;

    ck_assert_ptr_nonnull(dir);
    text[0] = '\0';
    while ((entry = readdir(dir)) != NULL && used < sizeof(text) - 80) {
        char name[60];
        ssize_t length = readlinkat(dirfd(dir), entry->d_name, name,
                                    sizeof(name));

        if (length > 0)
            used += (size_t)snprintf(text + used, sizeof(text) - used,
                                     " %s=%.*s", entry->d_name, (int)length,
                                     name);
    }
    closedir(dir);
    return text;
}
