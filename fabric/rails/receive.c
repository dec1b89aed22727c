/* SPDX-License-Identifier: BSD-3-Clause */
/* Frames in the order of their numbers, whichever rail they come by. */
#include "config.h"

#include "fabric/rails/rails.h"

void rails_stash_free(struct rails_conn *conn)
{
    for (size_t i = 0; i < RAILS_WINDOW; i++) {
        tpb_free(conn->stash[i].memory);
        conn->stash[i].memory = NULL;
    }
}

static struct rails_early *receive_early(struct rails_conn *conn,
                                         uint64_t number)
{
    return &conn->stash[number % RAILS_WINDOW];
}

/* `urgent`: the other side waits to hear that it is taken. */
static void receive_take(struct rails_rail *rail, bool urgent)
{
    rail->conn->backend->pop(rail->conn);
    rail->taken++;
    rail->group->ack_wanted |= urgent;
}

static void receive_control(struct rails_rail *rail,
                            const struct rails_head *head,
                            const char *frame, size_t size)
{
    struct rails_join join;

    if (head->kind == RAILS_WELCOME
        && size == sizeof(*head) + sizeof(join)) {
        memcpy(&join, frame + sizeof(*head), sizeof(join));
        rail->conn->backend->pop(rail->conn);
        rail->group->tells = head->gone == RAILS_TAKES_GONE;
        rails_welcomed(rail, &join);
    } else if (head->kind == RAILS_GONE
               && size == sizeof(*head) + sizeof(join)) {
        memcpy(&join, frame + sizeof(*head), sizeof(join));
        rail->conn->backend->pop(rail->conn);
        rails_is_gone(rail, &join);
    } else if (head->kind == RAILS_ACK && size == sizeof(*head)) {
        rail->conn->backend->pop(rail->conn);
    } else {
        rails_break(rail->group, "a frame of no known kind");
    }
}

/* A frame that came before its turn.  False: there is no memory for it now,
 * it stays where it is. */
static bool receive_stash(struct rails_rail *rail,
                          const struct rails_head *head, const char *frame,
                          size_t size)
{
    uint64_t number = le64toh(head->number);
    struct rails_early *early = receive_early(rail->group, number);

    if (early->memory == NULL) {
        early->memory = tpb_zalloc(size);
        if (early->memory == NULL)
            return false;
        tpb_copy(early->memory, frame, size);
        early->size = size;
    }
    receive_take(rail, head->urgent != 0);
    return true;
}

/* The oldest frame of one rail.  True if it is out of the way. */
static bool receive_one(struct rails_rail *rail)
{
    struct rails_conn *conn = rail->group;
    struct rails_head head;
    uint64_t number;
    const char *frame;
    size_t size;

    frame = rail->conn->backend->peek(rail->conn, &size);
    if (frame == NULL)
        return false;
    if (size < sizeof(head)) {
        rails_break(conn, "a frame without a head");
        return false;
    }
    memcpy(&head, frame, sizeof(head));
    if (!rails_acked(rail, &head)) {
        rails_break(conn, "it acknowledges what was not sent");
        return false;
    }
    if (head.kind != RAILS_DATA) {
        receive_control(rail, &head, frame, size);
        return !conn->broken;
    }
    number = le64toh(head.number);
    if (size == sizeof(head) || rail->stage != RAILS_UP
        || size - sizeof(head) > conn->common.max_frame
        || number - conn->popped >= RAILS_WINDOW) {
        if (number < conn->popped && rail->stage == RAILS_UP) {
            receive_take(rail, true);  /* it came by a rail that is lost */
            return true;
        }
        rails_break(conn, "it sends more than it may");
        return false;
    }
    if (number == conn->popped && receive_early(conn, number)->memory == NULL) {
        conn->head_rail = (int)rail->place;
        conn->head_urgent = head.urgent != 0;
        return false;
    }
    return receive_stash(rail, &head, frame + sizeof(head),
                         size - sizeof(head));
}

bool rails_scan(struct rails_conn *conn)
{
    if (receive_early(conn, conn->popped)->memory != NULL)
        return true;
    conn->head_rail = -1;
    for (int i = 0; i < RAILS_MAX && !conn->broken; i++) {
        struct rails_rail *rail = conn->rails[i];

        if (rail == NULL || rail->failed || rail->stage < RAILS_ASKED)
            continue;
        while (receive_one(rail))
            ;
        if (conn->head_rail >= 0)
            return true;
    }
    return receive_early(conn, conn->popped)->memory != NULL;
}

const void *rails_peek(struct tpf_conn *common, size_t *size)
{
    struct rails_conn *conn = rails_conn_of(common);
    struct rails_early *early;
    struct rails_rail *rail;
    const char *frame;

    if (!conn->told || !rails_scan(conn)) {
        rails_is_due(conn);        /* acknowledgements, or the end */
        return NULL;
    }
    early = receive_early(conn, conn->popped);
    if (early->memory != NULL) {
        *size = early->size;
        return early->memory;
    }
    rail = conn->rails[conn->head_rail];
    frame = rail->conn->backend->peek(rail->conn, size);
    *size -= sizeof(struct rails_head);
    return frame + sizeof(struct rails_head);
}

void rails_pop(struct tpf_conn *common)
{
    struct rails_conn *conn = rails_conn_of(common);
    struct rails_early *early = receive_early(conn, conn->popped);

    if (early->memory != NULL) {
        tpb_free(early->memory);
        early->memory = NULL;
    } else if (conn->head_rail >= 0
               && conn->rails[conn->head_rail] != NULL) {
        receive_take(conn->rails[conn->head_rail], conn->head_urgent);
    } else {
        return;
    }
    conn->head_rail = -1;
    conn->popped++;
    if (conn->popped - conn->told_popped >= RAILS_POPS)
        rails_is_due(conn);
}
