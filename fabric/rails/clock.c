/* SPDX-License-Identifier: BSD-3-Clause */
/* What takes time: rails that get up, stall or are called again. */
#include "config.h"

#include "fabric/rails/rails.h"

enum {
    CLOCK_STALL_MS = 1500,         /* nothing moves on a rail */
    CLOCK_GRACE_MS = 500           /* ... nor after an answer on another one */
};

/* Has the other side said anything on this rail since `since`?  It is asked to:
 * that a frame is there, only a process can say that does not compute just now
 * and is not stopped. */
static bool clock_answers(struct rails_rail *rail, uint64_t since)
{
    if (rail->asked < since) {
        if (!rails_control(rail, RAILS_ACK, NULL))
            return false;
        rail->asked = tpb_now();
        rail->heard = rail->taken;
    }
    return rail->taken != rail->heard || rail->pace.last_moved > rail->asked
           || rail->conn->backend->flushed(rail->conn);
}

/* Does nothing move here, while the other side answers elsewhere?  What has
 * arrived and is only not taken does not count. */
static bool clock_stalled(struct rails_conn *conn, struct rails_rail *rail,
                         uint64_t now)
{
    uint64_t since = rail->pace.last_moved
                     + CLOCK_STALL_MS * UINT64_C(1000000);

    if (now < since || rail->conn->backend->flushed(rail->conn))
        return false;
    if (rail->doubted >= since)
        return now > rail->doubted + CLOCK_GRACE_MS * UINT64_C(1000000);
    for (int i = 0; i < RAILS_MAX; i++) {
        struct rails_rail *other = conn->rails[i];

        if (other != NULL && other != rail && other->stage == RAILS_UP
            && !other->failed && clock_answers(other, since))
            rail->doubted = tpb_now();
    }
    return false;
}

/* True if there is something to wait for. */
static bool clock_tick(struct rails_conn *conn, uint64_t now)
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
            if (rails_dial(conn, i, &error) == TP_OK)
                way->retry = 0;
            else
                way->retry = rails_after(10 * RAILS_RETRY_MS);
        } else if (rail != NULL && rail->stage == RAILS_ASKED) {
            wait = true;
            if (now > rail->deadline)
                rails_lose(rail, TP_ERR_UNREACHABLE, "no answer");
        } else if (rail != NULL && rail->pace.big > 0 && conn->up > 1) {
            wait = true;
            if (clock_stalled(conn, rail, now))
                rails_lose(rail, TP_ERR_PEER_FAILED, "nothing comes through");
        }
    }
    if (wait)
        rails_is_due(conn);
    return wait;
}

void rails_tick(struct rails_endpoint *endpoint)
{
    uint64_t now = tpb_look(&endpoint->looked);
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
            wait |= clock_tick(conn, now);
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
