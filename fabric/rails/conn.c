/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A group and its rails: joined, lost, looked after.  As long as one rail is
 * left the visitor dials again those that are lost.
 */
#include "config.h"

#include <stdio.h>

#include "fabric/rails/rails.h"

enum {
    CONN_PATIENCE_MS = 500,        /* for the other rails, at the start */
    CONN_RETRIES = 5               /* the time between is doubled so often */
};

TPB_LOG_COMPONENT("rails");

/* Its memory stays until the next progress(): epoll may have returned an event
 * for it together with the one that brought us here. */
static void rail_bury(struct rails_endpoint *endpoint, struct tpf_conn *conn)
{
    conn->backend->disconnect(conn);
    conn->peer = NULL;
    tpb_list_unlink(&conn->gathered);
    tpb_list_unlink(&conn->ready);
    tpb_list_append(&endpoint->dead, &conn->ready);
}

void rails_rail_free(struct rails_rail *rail)
{
    if (rail->group == NULL && rail->link.next != &rail->link)
        rail->endpoint->stranger_count--;
    tpb_list_unlink(&rail->link);
    rail_bury(rail->endpoint, rail->conn);
    tpb_free(rail);
}

/* Its other end may be as good as new there, and wait for an answer. */
static void rail_tell(const struct rails_rail *rail)
{
    struct rails_conn *conn = rail->group;

    if (!conn->tells || rail->gone || rail->stage < RAILS_ASKED)
        return;
    conn->gone[rail->place] = rail->turn;
    for (unsigned i = 0; i < RAILS_MAX; i++)
        if (i != rail->place && conn->rails[i] != NULL
            && conn->rails[i]->stage == RAILS_UP)
            conn->rails[i]->tell |= (uint8_t)(1u << rail->place);
}

void rails_is_gone(struct rails_rail *by, const struct rails_join *join)
{
    struct rails_conn *conn = by->group;
    struct rails_rail *rail;

    if (join->rail >= RAILS_MAX || join->rail == by->place) {
        rails_break(conn, "it gives up a rail that cannot be meant");
        return;
    }
    rail = conn->rails[join->rail];
    if (rail == NULL || rail->stage < RAILS_ASKED
        || rail->turn != le16toh(join->turn))
        return;                    /* it has been lost here, too, by now */
    rail->failed = rail->gone = true;
    rail->status = TP_ERR_PEER_FAILED;
    rails_is_due(conn);
}

void rails_blame(const struct rails_rail *rail, const char *why)
{
    const struct rails_sub *sub = rail->conn->endpoint->env->core;
    struct rails_loss *loss = &rail->group->losses[rail->place];

    if (rail->stage != RAILS_UP || loss->why[0] != '\0')
        return;
    memcpy(loss->nic, sub->nic, sizeof(loss->nic));
    snprintf(loss->why, sizeof(loss->why), "%s", why);
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
    rails_blame(rail, why);
    if (rail->stage == RAILS_UP) {
        conn->up--;
        rails_again(rail);
        tpb_info("rail %u of %s is lost (%s); %u left, %u frames go again",
                 place, rail->conn->backend->name, why, conn->up,
                 conn->waiting);
    }
    rail_tell(rail);
    conn->status = status;
    conn->rails[place] = NULL;
    if (conn->head_rail == (int)place)
        conn->head_rail = -1;
    if (conn->visitor && conn->ready && place < conn->way_count) {
        struct rails_way *way = &conn->ways[place];
        uint64_t ms = RAILS_RETRY_MS << way->tries;

        if (way->tries < CONN_RETRIES)
            way->tries++;
        way->retry = rails_after(ms);
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
void rails_attach(struct rails_conn *conn, struct rails_rail *rail,
                        unsigned place)
{
    rail->group = conn;
    rail->place = place;
    conn->rails[place] = rail;
}

void rails_is_up(struct rails_conn *conn, struct rails_rail *rail)
{
    rail->stage = RAILS_UP;
    rail->endpoint->settled = true;
    conn->losses[rail->place].why[0] = '\0';
    conn->up++;
    rails_is_due(conn);
}

/* The first rail says how big a frame may be. */
void rails_founded(struct rails_conn *conn, struct rails_rail *rail,
                         size_t max_frame)
{
    size_t most = RAILS_WINDOW * max_frame / 2;

    conn->common.max_frame = max_frame;
    conn->common.window = rail->conn->window;
    if (conn->common.window > most)
        conn->common.window = most;
    /* The other side's first rail may be another one. */
    conn->common.window_spread = rail->conn->window_spread;
    if (conn->common.window_spread > most - conn->common.window)
        conn->common.window_spread = most - conn->common.window;
    conn->common.returns = rail->conn->returns;
    if (conn->common.returns > most / 4)
        conn->common.returns = most / 4;
    conn->ready = true;
    conn->patience = rails_after(CONN_PATIENCE_MS);
}

bool rails_group_init(struct rails_conn *conn)
{
    tpb_list_init(&conn->link);
    tpb_list_init(&conn->due);
    conn->head_rail = -1;
    tpb_list_append(&rails_endpoint_of(conn)->conns, &conn->link);
    conn->ring = tpb_resize(NULL, RAILS_RING);
    return conn->ring != NULL;
}

/* ---- service ----------------------------------------------------------- */

static void conn_rails(struct rails_conn *conn)
{
    for (int i = 0; i < RAILS_MAX; i++) {
        struct rails_rail *rail = conn->rails[i];

        if (rail == NULL)
            continue;
        if (rail->failed)
            rails_lose(rail, rail->status,
                       rail->gone ? "the other side has given it up"
                                  : "closed or unreachable");
        else if (rail->stage == RAILS_REACHED)
            rails_join(conn, rail);
    }
}

/* Says which rails are given up: on each one that is left, since others of
 * them may be as dead, and before what goes again. */
static void conn_gone(struct rails_conn *conn)
{
    for (unsigned i = 0; i < RAILS_MAX; i++) {
        struct rails_rail *rail = conn->rails[i];

        for (uint8_t k = 0; rail != NULL && !rail->failed && k < RAILS_MAX;
             k++) {
            struct rails_join join = { .rail = k,
                                       .turn = htole16(conn->gone[k]) };

            if ((rail->tell >> k & 1) == 0)
                continue;
            if (!rails_control(rail, RAILS_GONE, &join))
                break;             /* writable() comes */
            rail->tell &= (uint8_t)~(1u << k);
        }
    }
}

unsigned rails_coming(const struct rails_conn *conn)
{
    unsigned count = 0;

    for (int i = 0; i < RAILS_MAX; i++)
        count += conn->rails[i] != NULL && conn->rails[i]->stage != RAILS_UP;
    return count;
}

/* One rail alone gains nothing, and delays each message: another backend does
 * better, unless somebody wants this one. */
static bool conn_is_vain(const struct rails_conn *conn)
{
    return conn->visitor && conn->way_count > 1 && conn->up == 1
           && !rails_of(conn->common.endpoint)->wanted;
}

static void conn_vain(struct rails_conn *conn)
{
    struct tpb_text words = { 0 };

    tpb_text_add(&words, "rails: only one of %u ways leads there, which is no"
                 " faster than one connection; the others:%s%s",
                 conn->way_count, conn->text, conn->text[0] != '\0' ? ";" : "");
    rails_trying(&conn->common, &words);
    if (words.length > 0 && words.text[words.length - 1] == ';')
        words.text[words.length - 1] = '\0';
    snprintf(conn->text, sizeof(conn->text), "%s",
             words.failed ? "rails: one way only" : words.text);
    tpb_text_fini(&words);
    conn->vain = true;
}

static void conn_tell(struct rails_conn *conn)
{
    struct tpf_env *env = conn->common.endpoint->env;

    if (conn->told || !conn->ready)
        return;
    if (conn->visitor && rails_coming(conn) > 0 && tpb_now() < conn->patience)
        return;
    if (conn_is_vain(conn)) {
        conn_vain(conn);
        return;
    }
    conn->told = true;
    conn->text[0] = '\0';
    if (conn->visitor)
        env->upcalls->connected(env->core, &conn->common);
    else
        env->upcalls->incoming(env->core, &conn->common);
}

/* What became of each rail; interfaces with the same lot are named together. */
static void conn_losses(struct rails_conn *conn)
{
    size_t used = 0, room = sizeof(conn->text);

    for (int i = 0; i < RAILS_MAX; i++) {
        const struct rails_loss *loss = &conn->losses[i];
        const char *before = used > 0 ? "; " : "rails: ", *last = "";
        bool first = loss->why[0] != '\0';

        for (int j = 0; j < i; j++)
            first &= strcmp(conn->losses[j].why, loss->why) != 0;
        for (int j = i; first && j < RAILS_MAX; j++) {
            const struct rails_loss *same = &conn->losses[j];

            if (strcmp(same->why, loss->why) != 0
                || strcmp(same->nic, last) == 0)
                continue;
            used += (size_t)snprintf(conn->text + used, room - used, "%s%s",
                                     before, same->nic);
            before = ", ";
            last = same->nic;
        }
        if (first)
            used += (size_t)snprintf(conn->text + used, room - used, ": %s",
                                     loss->why);
    }
}

static void conn_end(struct rails_conn *conn)
{
    struct tpf_env *env = conn->common.endpoint->env;
    tp_status status = conn->ready && conn->status != TP_ERR_SYSTEM
                           ? TP_ERR_PEER_FAILED : conn->status;

    if (conn->broken)
        status = TP_ERR_PROTOCOL;
    if (status == TP_OK || conn->vain)
        status = TP_ERR_UNREACHABLE;
    conn->over = true;
    if (conn->text[0] == '\0')
        conn_losses(conn);
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
    conn_gone(conn);
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
    if (conn->broken || conn->vain
        || (conn->up == 0 && !frames
                         && (conn->ready || rails_coming(conn) == 0)))
        conn_end(conn);
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
