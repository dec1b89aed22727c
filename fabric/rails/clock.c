/* SPDX-License-Identifier: BSD-3-Clause */
/* What takes time: rails that get up, stall or are called again. */
#include "config.h"

#include "fabric/rails/rails.h"

enum {
    CLOCK_STALL_MS = 1500,         /* nothing moves on a rail */
    CLOCK_GRACE_MS = 500,          /* ... nor after an answer on another one */
    CLOCK_QUIET_MS = 500,          /* then short frames should be there */
    CLOCK_BEHIND_MS = 3000,        /* ... those that came behind big ones: for
                                      others nobody is woken */
    CLOCK_SUSPECT_MS = 3000        /* ... and if not, who computes is waited for
                                      with few looks from then on */
};

uint64_t rails_patience(const struct rails_endpoint *endpoint)
{
    int64_t ms = endpoint->common.env->settings
                     ->number[TPB_SET_CONNECT_TIMEOUT];

    if (ms < 0)
        return UINT64_MAX;
    return rails_after(ms > RAILS_JOIN_MS ? (uint64_t)ms : RAILS_JOIN_MS);
}

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

/* Short frames are under way here, and nothing else.  They are acknowledged
 * when it suits, so it has to be asked for whether they are there, and the time
 * in which nothing moves begins when they are found not to be.  *slowly: there
 * is something to find out, but not soon. */
static void clock_short(struct rails_rail *rail, bool *soon, bool *slowly)
{
    uint64_t now = tpb_now();
    bool moved = now < rail->pace.last_moved
                           + CLOCK_QUIET_MS * UINT64_C(1000000);

    if (moved || rail->conn->backend->flushed(rail->conn))
        rail->suspected = 0;
    else if (rail->suspected == 0)
        rail->suspected = now;
    if (rail->suspected != 0
        && now < rail->suspected + CLOCK_SUSPECT_MS * UINT64_C(1000000))
        *soon = true;
    else
        *slowly |= moved || rail->suspected != 0;
}

/* Does nothing move here, while the other side answers elsewhere?  What has
 * arrived and is only not taken does not count. */
static bool clock_stalled(struct rails_conn *conn, struct rails_rail *rail,
                         uint64_t now)
{
    uint64_t since = (rail->suspected != 0 ? rail->suspected
                                           : rail->pace.last_moved)
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

/* Nothing but short frames on this rail, and nobody needs to look at them? */
static bool clock_ignores(const struct rails_conn *conn,
                          const struct rails_rail *rail)
{
    return rail->pace.big == 0 && rail->suspected == 0
           && tpb_now() > conn->big_sent
                              + CLOCK_BEHIND_MS * UINT64_C(1000000);
}

/* True if there is something to wait for; *slowly: if there is nothing else. */
static bool clock_tick(struct rails_conn *conn, uint64_t now, bool *slowly)
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
        } else if (rail != NULL && rail->pace.inflight > 0 && conn->up > 1
                   && !clock_ignores(conn, rail)) {
            bool big = rail->pace.big > 0;

            wait |= big;
            if (big)
                rail->suspected = 0;
            else
                clock_short(rail, &wait, slowly);
            if ((big || rail->suspected != 0)
                && clock_stalled(conn, rail, now))
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
    bool wait = false, slowly = false;

    TPB_LIST_EACH(node, &endpoint->strangers) {
        struct rails_rail *rail = TPB_CONTAINER(node, struct rails_rail, link);

        wait = true;
        if (now > rail->deadline)
            rails_lose(rail, TP_ERR_DENIED, "it says nothing");
    }
    TPB_LIST_EACH(node, &endpoint->conns) {
        struct rails_conn *conn = TPB_CONTAINER(node, struct rails_conn, link);

        if (!conn->over)
            wait |= clock_tick(conn, now, &slowly);
    }
    if (wait)
        rails_ticks(endpoint);
    else if (slowly)
        rails_ticks_slowly(endpoint);
}

bool rails_calm(const struct rails_endpoint *endpoint)
{
    if (!tpb_list_empty(&endpoint->strangers))
        return false;
    TPB_LIST_EACH(node, &endpoint->conns) {
        struct rails_conn *conn = TPB_CONTAINER(node, struct rails_conn, link);

        for (int i = 0; i < RAILS_MAX; i++) {
            const struct rails_rail *rail = conn->rails[i];

            if (rail == NULL ? conn->ways[i].retry != 0
                             : rail->stage != RAILS_UP
                                   || (rail->pace.inflight > 0
                                       && !clock_ignores(conn, rail)))
                return false;
        }
    }
    return true;
}
