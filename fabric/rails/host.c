/* SPDX-License-Identifier: BSD-3-Clause */
/* The side that is connected to: strangers show a key and join their group. */
#include "config.h"

#include "fabric/rails/rails.h"

static struct rails_conn *host_find(struct rails_endpoint *endpoint,
                                    const uint8_t group[RAILS_KEY])
{
    TPB_LIST_EACH(node, &endpoint->conns) {
        struct rails_conn *conn = TPB_CONTAINER(node, struct rails_conn, link);

        if (!conn->visitor && tpb_equal_secret(conn->group, group, RAILS_KEY))
            return conn;
    }
    return NULL;
}

static struct rails_conn *host_found(struct rails_rail *rail,
                                     const struct rails_join *join)
{
    size_t max_frame = le32toh(join->max_frame);
    size_t room = rails_room(rail);
    struct tpf_conn *common;
    struct rails_conn *conn;

    if (max_frame < RAILS_LEAST_FRAME)
        return NULL;
    common = tpf_conn_new(&rail->endpoint->common);
    if (common == NULL)
        return NULL;
    conn = rails_conn_of(common);
    if (!rails_group_init(conn)) {
        tpb_list_unlink(&conn->link);
        tpf_conn_free(common);
        return NULL;
    }
    memcpy(conn->group, join->group, sizeof(conn->group));
    rails_founded(conn, rail, max_frame < room ? max_frame : room);
    return conn;
}

static bool host_fits(const struct rails_conn *conn,
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
static void host_admit(struct rails_rail *rail, struct rails_join *join,
                       bool tells)
{
    struct rails_conn *conn = host_find(rail->endpoint, join->group);

    if (conn == NULL && join->fresh)
        conn = host_found(rail, join);
    if (conn == NULL || !host_fits(conn, rail, join)) {
        rails_lose(rail, TP_ERR_DENIED, "no such group");
        return;
    }
    if (conn->rails[join->rail] != NULL)
        rails_lose(conn->rails[join->rail], TP_ERR_PEER_FAILED,
                   "the other side has replaced it");
    tpb_list_unlink(&rail->link);
    rail->endpoint->stranger_count--;
    rails_attach(conn, rail, join->rail);
    rail->turn = le16toh(join->turn);
    conn->tells = tells;
    join->max_frame = htole32((uint32_t)conn->common.max_frame);
    memset(join->key, 0, sizeof(join->key));
    rails_is_up(conn, rail);
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
    host_admit(rail, &join, head.gone == RAILS_TAKES_GONE);
}
