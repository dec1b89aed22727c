/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A group and its rails.  The visitor dials all ways at once; the first one
 * that is there founds the group, the others join it when it has been
 * welcomed.  Later it dials again those that are lost, as long as one is left.
 *
 * The upcalls of the backends below only leave marks: what follows of them is
 * done in rails_service(), where no function of theirs is under way.
 */
#include "config.h"

#include <stdio.h>

#include "fabric/rails/rails.h"

enum {
    CONN_JOIN_MS = 10000,          /* to be welcomed, or to say who one is */
    CONN_PATIENCE_MS = 500,        /* for the other rails, at the start */
    CONN_RETRY_MS = 100,           /* doubled each time */
    CONN_RETRIES = 5,              /* ... at most so often */
    CONN_STALL_MS = 1500,          /* nothing moves while other rails do */
    CONN_STRANGERS = 4096,
    CONN_LEAST_FRAME = 256
};

TPB_LOG_COMPONENT("rails");

static uint64_t conn_after(uint64_t ms)
{
    return tpb_now() + ms * 1000000u;
}

/* ---- upcalls from below ------------------------------------------------ */

static void conn_below_incoming(void *core, struct tpf_conn *below)
{
    struct rails_sub *sub = core;
    struct rails_endpoint *endpoint = sub->endpoint;
    struct rails_rail *rail = NULL;

    if (endpoint->stranger_count < CONN_STRANGERS)
        rail = tpb_zalloc(sizeof(*rail));
    if (rail == NULL) {
        tpb_list_unlink(&below->ready);
        tpb_list_append(&endpoint->graves, &below->ready);
        return;
    }
    tpb_list_init(&rail->link);
    rail->endpoint = endpoint;
    rail->conn = below;
    rail->stage = RAILS_ASKED;
    rail->deadline = conn_after(CONN_JOIN_MS);
    rails_pace_init(&rail->pace, sub->megabits);
    below->peer = rail;
    tpb_list_append(&endpoint->strangers, &rail->link);
    endpoint->stranger_count++;
    rails_ticks(endpoint);
}

static void conn_below_due(struct rails_rail *rail)
{
    if (rail != NULL && rail->group != NULL)
        rails_is_due(rail->group);
}

static void conn_below_connected(void *core, struct tpf_conn *below)
{
    struct rails_rail *rail = below->peer;

    (void)core;
    rail->stage = RAILS_REACHED;
    conn_below_due(rail);
}

static void conn_below_writable(void *core, struct tpf_conn *below)
{
    struct rails_rail *rail = below->peer;

    (void)core;
    if (rail == NULL)
        return;
    rail->full = false;
    conn_below_due(rail);
}

static void conn_below_sent(void *core, struct tpf_conn *below, void *token)
{
    struct rails_frame *frame = token;

    (void)core;
    frame->held = false;
    conn_below_due(below->peer);
}

static void conn_below_failed(void *core, struct tpf_conn *below,
                              tp_status status, const char *text)
{
    struct rails_rail *rail = below->peer;

    (void)core;
    if (rail == NULL)
        return;                    /* on its way to the grave */
    rail->failed = true;
    rail->status = status;
    tpb_debug("a rail failed: %s", text);
    if (rail->group != NULL) {
        char *all = rail->group->text;
        size_t used = strlen(all);

        if (rail->group->ready)
            used = 0;              /* the latest is what matters */
        snprintf(all + used, sizeof(rail->group->text) - used, "%s%s",
                 used > 0 ? "; " : "", text);
    }
    conn_below_due(rail);
}

const struct tpf_upcalls rails_upcalls = {
    .incoming = conn_below_incoming,
    .connected = conn_below_connected,
    .writable = conn_below_writable,
    .sent = conn_below_sent,
    .failed = conn_below_failed
};

/* ---- rails ------------------------------------------------------------- */

void rails_rail_free(struct rails_rail *rail)
{
    if (rail->group == NULL && rail->link.next != &rail->link)
        rail->endpoint->stranger_count--;
    tpb_list_unlink(&rail->link);
    rail->conn->backend->disconnect(rail->conn);
    tpf_conn_free(rail->conn);
    tpb_free(rail);
}

void rails_lose(struct rails_rail *rail, tp_status status, const char *why)
{
    struct rails_conn *conn = rail->group;
    unsigned place = rail->place;

    if (conn == NULL) {
        tpb_debug("a stranger: %s", why);
        rails_rail_free(rail);
        return;
    }
    if (rail->stage == RAILS_UP) {
        conn->up--;
        rails_again(rail);
        tpb_info("rail %u of %s is lost (%s); %u left, %u frames go again",
                 place, rail->conn->backend->name, why, conn->up,
                 conn->waiting);
    }
    conn->status = status;
    conn->rails[place] = NULL;
    if (conn->head_rail == (int)place)
        conn->head_rail = -1;
    if (conn->visitor && conn->ready && place < conn->way_count) {
        struct rails_way *way = &conn->ways[place];
        uint64_t ms = CONN_RETRY_MS << way->tries;

        if (way->tries < CONN_RETRIES)
            way->tries++;
        way->retry = conn_after(ms);
        rails_ticks(rail->endpoint);
    }
    rails_rail_free(rail);
    rails_is_due(conn);
}

void rails_break(struct rails_conn *conn, const char *why)
{
    if (conn->broken)
        return;
    conn->broken = true;
    snprintf(conn->text, sizeof(conn->text), "rails: %s", why);
    rails_is_due(conn);
}

/* Puts a rail to where it belongs. */
static void conn_attach(struct rails_conn *conn, struct rails_rail *rail,
                        unsigned place)
{
    rail->group = conn;
    rail->place = place;
    conn->rails[place] = rail;
}

static void conn_is_up(struct rails_conn *conn, struct rails_rail *rail)
{
    rail->stage = RAILS_UP;
    rail->endpoint->settled = true;
    conn->up++;
    rails_is_due(conn);
}

/* The first rail says how big a frame may be. */
static void conn_founded(struct rails_conn *conn, struct rails_rail *rail,
                         size_t max_frame)
{
    size_t most = RAILS_WINDOW * max_frame / 2;

    conn->common.max_frame = max_frame;
    conn->common.window = rail->conn->window;
    if (conn->common.window > most)
        conn->common.window = most;
    conn->ready = true;
    conn->text[0] = '\0';
    conn->patience = conn_after(CONN_PATIENCE_MS);
}

static bool conn_init(struct rails_conn *conn)
{
    tpb_list_init(&conn->link);
    tpb_list_init(&conn->due);
    conn->head_rail = -1;
    tpb_list_append(&rails_endpoint_of(conn)->conns, &conn->link);
    conn->ring = tpb_resize(NULL, RAILS_RING);
    return conn->ring != NULL;
}

/* ---- the visitor ------------------------------------------------------- */

/* The sub of ours that fits the place: of the same name, or in turn. */
static int conn_match(const struct rails_endpoint *endpoint,
                      const struct rails_place *place, unsigned turn)
{
    int fitting[RAILS_SUBS], count = 0;

    for (unsigned i = 0; i < endpoint->sub_count; i++) {
        const struct rails_sub *sub = &endpoint->subs[i];

        if (strcmp(sub->open->backend->name, place->backend) != 0)
            continue;
        if (strcmp(sub->nic, place->nic) == 0)
            return (int)i;
        fitting[count++] = (int)i;
    }
    return count > 0 ? fitting[turn % (unsigned)count] : -1;
}

static void conn_ways(struct rails_conn *conn)
{
    struct rails_endpoint *endpoint = rails_endpoint_of(conn);
    int64_t streams = endpoint->common.env->settings->number[TPB_SET_RAILS];

    if (streams <= 0)
        streams = conn->card->count > 1 ? 1 : 2;
    for (int64_t s = 0; s < streams; s++) {
        for (unsigned i = 0; i < conn->card->count; i++) {
            int sub = conn_match(endpoint, &conn->card->places[i], i);

            if (sub < 0 || conn->way_count == RAILS_MAX)
                continue;
            conn->ways[conn->way_count++] = (struct rails_way){
                .sub = (unsigned)sub, .place = i };
        }
    }
}

static uint32_t conn_slower(uint32_t a, uint32_t b)
{
    return a == 0 ? b : b == 0 ? a : a < b ? a : b;
}

static tp_status conn_dial(struct rails_conn *conn, unsigned i,
                           struct tpb_error *error)
{
    struct rails_endpoint *endpoint = rails_endpoint_of(conn);
    const struct rails_way *way = &conn->ways[i];
    const struct rails_place *place = &conn->card->places[way->place];
    struct rails_sub *sub = &endpoint->subs[way->sub];
    struct rails_rail *rail = tpb_zalloc(sizeof(*rail));
    tp_status status;

    if (rail == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "no memory for a rail");
    rail->conn = tpf_conn_new(sub->open);
    if (rail->conn == NULL) {
        tpb_free(rail);
        return tpb_fail(error, TP_ERR_NO_MEMORY, "no memory for a rail");
    }
    tpb_list_init(&rail->link);
    rail->endpoint = endpoint;
    rail->conn->peer = rail;
    rails_pace_init(&rail->pace, conn_slower(sub->megabits, place->megabits));
    conn_attach(conn, rail, i);
    status = rail->conn->backend->connect(rail->conn, place->address,
                                          place->length, error);
    if (status == TP_OK)
        return TP_OK;
    conn->rails[i] = NULL;
    rails_rail_free(rail);
    return status;
}

tp_status rails_connect(struct tpf_conn *common, const void *address,
                        size_t length, struct tpb_error *error)
{
    struct rails_conn *conn = rails_conn_of(common);
    tp_status status, answer = TP_ERR_UNREACHABLE;
    unsigned dialled = 0;

    conn->visitor = true;
    conn->card = tpb_zalloc(sizeof(*conn->card));
    if (!conn_init(conn) || conn->card == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "rails: no memory");
    status = rails_card_decode(conn->card, address, length, error);
    if (status != TP_OK)
        return status;
    tpb_random(conn->group, sizeof(conn->group));
    conn_ways(conn);
    if (conn->way_count == 0)
        tpb_fail(error, TP_ERR_UNREACHABLE,
                 "rails: the peer offers nothing that is open here");
    for (unsigned i = 0; i < conn->way_count; i++) {
        status = conn_dial(conn, i, error);
        if (status == TP_OK)
            dialled++;
        else
            answer = status;
    }
    return dialled > 0 ? TP_OK : answer;
}

/* JOIN goes out on the first rail that is there, on the others once that one
 * has been welcomed. */
static void conn_join(struct rails_conn *conn, struct rails_rail *rail)
{
    size_t room = rail->conn->max_frame - sizeof(struct rails_head);
    struct rails_join join = { .rail = (uint8_t)rail->place,
                               .fresh = !conn->ready };

    for (int i = 0; i < RAILS_MAX && !conn->ready; i++)
        if (conn->rails[i] != NULL && conn->rails[i]->stage == RAILS_ASKED)
            return;
    if (conn->ready && room < conn->common.max_frame) {
        rails_lose(rail, TP_ERR_BACKEND, "its frames are too small");
        return;
    }
    memcpy(join.key, conn->card->key, sizeof(join.key));
    memcpy(join.group, conn->group, sizeof(join.group));
    join.max_frame = htole32((uint32_t)(conn->ready ? conn->common.max_frame
                                                    : room));
    if (!rails_control(rail, RAILS_JOIN, &join))
        return;
    rail->stage = RAILS_ASKED;
    rail->deadline = conn_after(CONN_JOIN_MS);
    rails_ticks(rail->endpoint);
}

void rails_welcomed(struct rails_rail *rail, const struct rails_join *join)
{
    struct rails_conn *conn = rail->group;
    size_t max_frame = le32toh(join->max_frame);
    size_t room = rail->conn->max_frame - sizeof(struct rails_head);

    if (!conn->visitor || rail->stage != RAILS_ASKED
        || memcmp(join->group, conn->group, sizeof(join->group)) != 0
        || max_frame < CONN_LEAST_FRAME || max_frame > room
        || (conn->ready && max_frame != conn->common.max_frame)) {
        rails_break(conn, "a welcome that does not fit");
        return;
    }
    if (!conn->ready)
        conn_founded(conn, rail, max_frame);
    conn->ways[rail->place].tries = 0;
    conn_is_up(conn, rail);
}

/* ---- the host ---------------------------------------------------------- */

static struct rails_conn *conn_find(struct rails_endpoint *endpoint,
                                    const uint8_t group[RAILS_KEY])
{
    TPB_LIST_EACH(node, &endpoint->conns) {
        struct rails_conn *conn = TPB_CONTAINER(node, struct rails_conn, link);

        if (!conn->visitor && tpb_equal_secret(conn->group, group, RAILS_KEY))
            return conn;
    }
    return NULL;
}

static struct rails_conn *conn_found(struct rails_rail *rail,
                                     const struct rails_join *join)
{
    size_t max_frame = le32toh(join->max_frame);
    size_t room = rail->conn->max_frame - sizeof(struct rails_head);
    struct tpf_conn *common;
    struct rails_conn *conn;

    if (max_frame < CONN_LEAST_FRAME)
        return NULL;
    common = tpf_conn_new(&rail->endpoint->common);
    if (common == NULL)
        return NULL;
    conn = rails_conn_of(common);
    if (!conn_init(conn)) {
        tpb_list_unlink(&conn->link);
        tpf_conn_free(common);
        return NULL;
    }
    memcpy(conn->group, join->group, sizeof(conn->group));
    conn_founded(conn, rail, max_frame < room ? max_frame : room);
    return conn;
}

static bool conn_fits(const struct rails_conn *conn,
                      const struct rails_rail *rail,
                      const struct rails_join *join)
{
    return !conn->over && !conn->broken
           && conn->common.max_frame + sizeof(struct rails_head)
                  <= rail->conn->max_frame
           && (join->fresh || le32toh(join->max_frame)
                                  == conn->common.max_frame);
}

/* A key of this endpoint, a group, a place in it: the stranger is let in. */
static void conn_admit(struct rails_rail *rail, struct rails_join *join)
{
    struct rails_conn *conn = conn_find(rail->endpoint, join->group);

    if (conn == NULL && join->fresh)
        conn = conn_found(rail, join);
    if (conn == NULL || !conn_fits(conn, rail, join)) {
        rails_lose(rail, TP_ERR_DENIED, "no such group");
        return;
    }
    if (conn->rails[join->rail] != NULL)
        rails_lose(conn->rails[join->rail], TP_ERR_PEER_FAILED,
                   "the other side has replaced it");
    tpb_list_unlink(&rail->link);
    rail->endpoint->stranger_count--;
    conn_attach(conn, rail, join->rail);
    join->max_frame = htole32((uint32_t)conn->common.max_frame);
    memset(join->key, 0, sizeof(join->key));
    conn_is_up(conn, rail);
    if (!rails_control(rail, RAILS_WELCOME, join))
        rails_lose(rail, TP_ERR_BACKEND, "no room to welcome it");
}

void rails_hear_stranger(struct rails_rail *rail)
{
    struct rails_head head;
    struct rails_join join;
    const char *frame = NULL;
    bool right;
    size_t size;

    if (!rail->failed)
        frame = rail->conn->backend->peek(rail->conn, &size);
    if (frame == NULL) {
        if (rail->failed)
            rails_lose(rail, rail->status, "gone without a word");
        return;
    }
    right = size == sizeof(head) + sizeof(join);
    if (right) {
        memcpy(&head, frame, sizeof(head));
        memcpy(&join, frame + sizeof(head), sizeof(join));
        right = head.kind == RAILS_JOIN && join.rail < RAILS_MAX
                && tpb_equal_secret(join.key, rail->endpoint->key, RAILS_KEY);
    }
    if (!right) {
        rails_lose(rail, TP_ERR_DENIED, "it does not show the key");
        return;
    }
    rail->conn->backend->pop(rail->conn);
    conn_admit(rail, &join);
}

/* ---- service ----------------------------------------------------------- */

static void conn_rails(struct rails_conn *conn)
{
    for (int i = 0; i < RAILS_MAX; i++) {
        struct rails_rail *rail = conn->rails[i];

        if (rail == NULL)
            continue;
        if (rail->failed)
            rails_lose(rail, rail->status, "closed or unreachable");
        else if (rail->stage == RAILS_REACHED)
            conn_join(conn, rail);
    }
}

/* Rails that may still get up. */
static unsigned conn_coming(const struct rails_conn *conn)
{
    unsigned count = 0;

    for (int i = 0; i < RAILS_MAX; i++)
        count += conn->rails[i] != NULL && conn->rails[i]->stage != RAILS_UP;
    return count;
}

static void conn_tell(struct rails_conn *conn)
{
    struct tpf_env *env = conn->common.endpoint->env;

    if (conn->told || !conn->ready)
        return;
    if (conn->visitor && conn_coming(conn) > 0 && tpb_now() < conn->patience)
        return;
    conn->told = true;
    if (conn->visitor)
        env->upcalls->connected(env->core, &conn->common);
    else
        env->upcalls->incoming(env->core, &conn->common);
}

static void conn_end(struct rails_conn *conn)
{
    struct tpf_env *env = conn->common.endpoint->env;
    tp_status status = conn->ready ? TP_ERR_PEER_FAILED : conn->status;

    if (conn->broken)
        status = TP_ERR_PROTOCOL;
    if (status == TP_OK)
        status = TP_ERR_UNREACHABLE;
    conn->over = true;
    if (conn->text[0] == '\0')
        snprintf(conn->text, sizeof(conn->text), "rails: no rail is left");
    env->upcalls->failed(env->core, &conn->common, status, conn->text);
}

void rails_service(struct rails_conn *conn)
{
    struct tpf_env *env = conn->common.endpoint->env;
    bool frames;

    if (conn->over)
        return;
    conn_rails(conn);
    frames = rails_scan(conn);
    rails_push(conn);
    rails_acks(conn);
    conn_tell(conn);
    rails_release(conn);
    if (frames && conn->told)
        tpf_conn_ready(&conn->common);
    if (conn->blocked && conn->told && rails_roomy(conn)) {
        conn->blocked = false;
        env->upcalls->writable(env->core, &conn->common);
    }
    if (conn->broken || (conn->up == 0 && !frames
                         && (conn->ready || conn_coming(conn) == 0)))
        conn_end(conn);
}

/* ---- time -------------------------------------------------------------- */

/* Does nothing move here, while something moved elsewhere later?  What has
 * arrived and is only not taken does not count. */
static bool conn_stalled(struct rails_conn *conn, struct rails_rail *rail,
                         uint64_t now)
{
    if (now - rail->pace.last_moved < CONN_STALL_MS * UINT64_C(1000000)
        || rail->conn->backend->flushed(rail->conn))
        return false;
    for (int i = 0; i < RAILS_MAX; i++) {
        struct rails_rail *other = conn->rails[i];

        if (other != NULL && other != rail && other->stage == RAILS_UP
            && other->pace.last_moved > rail->pace.last_moved)
            return true;
    }
    return false;
}

/* True if there is something to wait for. */
static bool conn_tick(struct rails_conn *conn, uint64_t now)
{
    bool wait = conn->visitor && conn->ready && !conn->told;

    for (unsigned i = 0; i < RAILS_MAX; i++) {
        struct rails_rail *rail = conn->rails[i];
        struct rails_way *way = &conn->ways[i];
        struct tpb_error error;

        if (rail == NULL && way->retry != 0 && conn->up > 0) {
            wait = true;
            if (now < way->retry)
                continue;
            if (conn_dial(conn, i, &error) == TP_OK)
                way->retry = 0;
            else
                way->retry = now + CONN_RETRY_MS * UINT64_C(10000000);
        } else if (rail != NULL && rail->stage == RAILS_ASKED) {
            wait = true;
            if (now > rail->deadline)
                rails_lose(rail, TP_ERR_UNREACHABLE, "no answer");
        } else if (rail != NULL && rail->pace.big > 0 && conn->up > 1) {
            wait = true;
            if (conn_stalled(conn, rail, now))
                rails_lose(rail, TP_ERR_PEER_FAILED, "nothing comes through");
        }
    }
    if (wait)
        rails_is_due(conn);
    return wait;
}

void rails_tick(struct rails_endpoint *endpoint)
{
    uint64_t now = tpb_now();
    bool wait = false;

    TPB_LIST_EACH(node, &endpoint->strangers) {
        struct rails_rail *rail = TPB_CONTAINER(node, struct rails_rail, link);

        wait = true;
        if (now > rail->deadline)
            rails_lose(rail, TP_ERR_DENIED, "it says nothing");
    }
    TPB_LIST_EACH(node, &endpoint->conns) {
        struct rails_conn *conn = TPB_CONTAINER(node, struct rails_conn, link);

        if (!conn->over)
            wait |= conn_tick(conn, now);
    }
    if (wait)
        rails_ticks(endpoint);
}

bool rails_calm(const struct rails_endpoint *endpoint)
{
    if (!tpb_list_empty(&endpoint->strangers))
        return false;
    TPB_LIST_EACH(node, &endpoint->conns) {
        struct rails_conn *conn = TPB_CONTAINER(node, struct rails_conn, link);

        for (int i = 0; i < RAILS_MAX; i++)
            if (conn->rails[i] == NULL ? conn->ways[i].retry != 0
                                       : conn->rails[i]->stage != RAILS_UP
                                             || conn->rails[i]->pace.big > 0)
                return false;
    }
    return true;
}

void rails_disconnect(struct tpf_conn *common)
{
    struct rails_conn *conn = rails_conn_of(common);

    for (int i = 0; i < RAILS_MAX; i++)
        if (conn->rails[i] != NULL)
            rails_rail_free(conn->rails[i]);
    memset(conn->rails, 0, sizeof(conn->rails));
    rails_stash_free(conn);
    tpb_free(conn->ring);
    tpb_free(conn->card);
    conn->ring = NULL;
    conn->card = NULL;
    if (conn->link.next == NULL)
        return;                    /* connect() did not get that far */
    tpb_list_unlink(&conn->link);
    tpb_list_unlink(&conn->due);
}
