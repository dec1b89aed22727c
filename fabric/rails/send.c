/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The window: frames that the peer may not have yet, each with its memory, so
 * that it can go again.  Small ones are copied into a ring; what send_data()
 * lends stays where it is.
 */
#include "config.h"

#include "fabric/rails/rails.h"

enum {
    SEND_IN_PLACE = 4096,          /* from here on worth not being copied */
    SEND_QUIET = 32 * 1024,        /* bytes that nobody need acknowledge */
    SEND_OWED = 16                 /* frames to acknowledge at the latest */
};

static struct rails_frame *send_frame(struct rails_conn *conn, uint64_t number)
{
    return &conn->window[number % RAILS_WINDOW];
}

static void send_head(struct rails_rail *rail, enum rails_kind kind,
                      struct rails_head *head)
{
    struct rails_conn *conn = rail->group;

    memset(head, 0, sizeof(*head));
    head->kind = (uint8_t)kind;
    if (kind == RAILS_JOIN || kind == RAILS_WELCOME)
        head->gone = RAILS_TAKES_GONE;
    head->taken = htole32(rail->taken);
    head->popped = htole64(conn->popped);
}

/* What the head said is with the peer now. */
static void send_told(struct rails_rail *rail)
{
    rail->told = rail->taken;
    rail->group->told_popped = rail->group->popped;
}

bool rails_control(struct rails_rail *rail, enum rails_kind kind,
                   const struct rails_join *join)
{
    struct tpf_conn *conn = rail->conn;
    struct rails_head head;
    size_t extra = join != NULL ? sizeof(*join) : 0;
    char *room = conn->backend->reserve(conn, sizeof(head) + extra);

    if (room == NULL) {
        rail->full = true;
        return false;
    }
    send_head(rail, kind, &head);
    memcpy(room, &head, sizeof(head));
    if (join != NULL)
        memcpy(room + sizeof(head), join, extra);
    conn->backend->commit(conn, sizeof(head) + extra);
    send_told(rail);
    return true;
}

/* ---- out --------------------------------------------------------------- */

static bool send_copy(struct rails_rail *rail, const struct rails_head *head,
                      const struct rails_frame *frame)
{
    size_t size = sizeof(*head) + frame->head_length + frame->length;
    char *room = rail->conn->backend->reserve(rail->conn, size);

    if (room == NULL)
        return false;
    memcpy(room, head, sizeof(*head));
    memcpy(room + sizeof(*head), frame->head, frame->head_length);
    memcpy(room + sizeof(*head) + frame->head_length, frame->data,
           frame->length);
    rail->conn->backend->commit(rail->conn, size);
    return true;
}

static bool send_in_place(struct rails_rail *rail,
                          const struct rails_head *head,
                          struct rails_frame *frame)
{
    char both[sizeof(*head) + RAILS_CORE_HEAD];

    memcpy(both, head, sizeof(*head));
    memcpy(both + sizeof(*head), frame->head, frame->head_length);
    frame->held = true;
    if (rail->conn->backend->send_data(rail->conn, both,
                                       sizeof(*head) + frame->head_length,
                                       frame->data, frame->length, frame))
        return true;
    frame->held = false;
    return false;
}

static bool send_is_up(const struct rails_rail *rail)
{
    return rail != NULL && rail->stage == RAILS_UP && !rail->failed;
}

/* By another thread, while who drives sleeps: what the rail has to do then is
 * in a list that the core does not know. */
static void send_stir(struct rails_rail *rail)
{
    if (TPB_UNLIKELY(rail->endpoint->armed)
        && !tpb_list_empty(&rail->conn->ready))
        tpf_conn_ready(&rail->group->common);
}

/* One frame over one rail.  False: it has no room. */
static bool send_over(struct rails_rail *rail, uint64_t number)
{
    struct rails_conn *conn = rail->group;
    struct rails_frame *frame = send_frame(conn, number);
    size_t size = frame->head_length + frame->length;
    struct rails_head head;
    bool taken;

    send_head(rail, RAILS_DATA, &head);
    head.number = htole64(number);
    head.urgent = frame->lent || size >= RAILS_BIG
                  || rail->pace.inflight > SEND_QUIET
                  || conn->next - conn->first > RAILS_WINDOW / 2
                  || conn->ring_written - conn->ring_read > RAILS_RING / 2;
    if (rail->conn->backend->send_data != NULL
        && frame->length >= SEND_IN_PLACE)
        taken = send_in_place(rail, &head, frame);
    else
        taken = send_copy(rail, &head, frame);
    send_stir(rail);
    if (!taken) {
        rail->full = true;
        return false;
    }
    frame->state = RAILS_SENT;
    frame->rail = (uint8_t)rail->place;
    rail->order[rail->sent++ % RAILS_WINDOW] = number;
    rail->carried += size;
    rails_pace_sent(&rail->pace, size, tpb_now());
    send_told(rail);
    if (size >= RAILS_BIG && conn->up > 1) {
        conn->big_sent = rail->pace.last_sent;
        rails_ticks(rail->endpoint);
    }
    return true;
}

/* One that is suspected gets nothing more while there are others: what it has
 * is there sooner or later, or it is dead. */
static struct rails_rail *send_choose(struct rails_conn *conn, size_t size)
{
    struct rails_pace *paces[RAILS_MAX];
    bool sound = false;
    int best;

    for (int i = 0; i < RAILS_MAX; i++)
        sound |= send_is_up(conn->rails[i]) && conn->rails[i]->suspected == 0;
    for (int i = 0; i < RAILS_MAX; i++) {
        struct rails_rail *rail = conn->rails[i];

        paces[i] = send_is_up(rail) && !rail->full
                           && (rail->suspected == 0 || !sound)
                       ? &rail->pace : NULL;
    }
    best = rails_pace_choose(paces, RAILS_MAX, size, tpb_now());
    return best < 0 ? NULL : conn->rails[best];
}

/* False: no rail takes it now. */
static bool send_somewhere(struct rails_conn *conn, uint64_t number)
{
    const struct rails_frame *frame = send_frame(conn, number);
    struct rails_rail *rail;

    while ((rail = send_choose(conn, frame->head_length + frame->length))
           != NULL)
        if (send_over(rail, number))
            return true;
    return false;
}

void rails_push(struct rails_conn *conn)
{
    for (uint64_t number = conn->first;
         conn->waiting > 0 && number < conn->next; number++) {
        if (send_frame(conn, number)->state != RAILS_WAITING)
            continue;
        if (!send_somewhere(conn, number))
            return;
        conn->waiting--;
    }
}

/* The frame is filled in. */
static void send_new(struct rails_conn *conn)
{
    uint64_t number = conn->next++;

    send_frame(conn, number)->state = RAILS_WAITING;
    if (!send_somewhere(conn, number))
        conn->waiting++;
}

static bool send_may(struct rails_conn *conn)
{
    return conn->ready && conn->up > 0 && !conn->over && !conn->broken
           && conn->waiting == 0
           && conn->next - conn->first < RAILS_WINDOW
           && conn->next - conn->peer_popped < RAILS_WINDOW;
}

/* ---- the ring ---------------------------------------------------------- */

static size_t send_round(size_t size)
{
    return (size + 7) & ~(size_t)7;
}

/* Where `size` bytes would go, in one piece; UINT64_MAX if there is no room. */
static uint64_t send_place(const struct rails_conn *conn, size_t size)
{
    size_t to_end = RAILS_RING - (size_t)(conn->ring_written % RAILS_RING);
    uint64_t at = conn->ring_written
                  + (send_round(size) > to_end ? to_end : 0);

    return at + send_round(size) - conn->ring_read > RAILS_RING ? UINT64_MAX
                                                                : at;
}

bool rails_roomy(struct rails_conn *conn)
{
    return send_may(conn)
           && send_place(conn, conn->common.max_frame) != UINT64_MAX
           && send_choose(conn, RAILS_BIG) != NULL;
}

/* ---- the backend's functions ------------------------------------------- */

void *rails_reserve(struct tpf_conn *common, size_t size)
{
    struct rails_conn *conn = rails_conn_of(common);
    uint64_t at = UINT64_MAX;

    if (send_may(conn) && send_choose(conn, size) != NULL)
        at = send_place(conn, size);
    if (at == UINT64_MAX) {
        conn->blocked = true;
        rails_is_due(conn);
        return NULL;
    }
    conn->ring_reserved = at;
    return conn->ring + at % RAILS_RING;
}

void rails_commit(struct tpf_conn *common, size_t size)
{
    struct rails_conn *conn = rails_conn_of(common);
    struct rails_frame *frame = send_frame(conn, conn->next);

    memset(frame, 0, offsetof(struct rails_frame, head));
    frame->data = conn->ring + conn->ring_reserved % RAILS_RING;
    frame->length = (uint32_t)size;
    conn->ring_written = conn->ring_reserved + send_round(size);
    frame->ring_end = conn->ring_written;
    send_new(conn);
}

/* A head that is too long to be kept apart is copied, with the data. */
static bool send_together(struct rails_conn *conn, struct rails_frame *frame,
                          const void *head, size_t head_length,
                          const void *data, size_t length)
{
    uint64_t at = send_place(conn, head_length + length);
    char *room = conn->ring + at % RAILS_RING;

    if (at == UINT64_MAX)
        return false;
    memcpy(room, head, head_length);
    tpb_copy(room + head_length, data, length);
    frame->data = room;
    frame->length = (uint32_t)(head_length + length);
    conn->ring_written = at + send_round(head_length + length);
    return true;
}

bool rails_send_data(struct tpf_conn *common, const void *head,
                     size_t head_length, const void *data, size_t length,
                     void *token)
{
    struct rails_conn *conn = rails_conn_of(common);
    struct rails_frame *frame = send_frame(conn, conn->next);

    if (!send_may(conn) || send_choose(conn, head_length + length) == NULL)
        goto blocked;
    memset(frame, 0, offsetof(struct rails_frame, head));
    if (head_length > RAILS_CORE_HEAD) {
        if (!send_together(conn, frame, head, head_length, data, length))
            goto blocked;
    } else {
        memcpy(frame->head, head, head_length);
        frame->head_length = (uint32_t)head_length;
        frame->data = data;
        frame->length = (uint32_t)length;
    }
    frame->lent = true;
    frame->token = token;
    frame->ring_end = conn->ring_written;
    send_new(conn);
    return true;
blocked:
    conn->blocked = true;
    rails_is_due(conn);
    return false;
}

/* What is in the other process's hands need not have been taken there. */
bool rails_flushed(struct tpf_conn *common)
{
    struct rails_conn *conn = rails_conn_of(common);
    bool all = conn->waiting == 0 && !conn->over && conn->up > 0;

    for (int i = 0; i < RAILS_MAX; i++) {
        struct rails_rail *rail = conn->rails[i];

        if (rail == NULL || rail->acked == rail->sent)
            continue;
        all &= !rail->failed && rail->conn->backend->flushed(rail->conn);
        send_stir(rail);
    }
    return all;
}

/* ---- acknowledged ------------------------------------------------------ */

bool rails_acked(struct rails_rail *rail, const struct rails_head *head)
{
    struct rails_conn *conn = rail->group;
    uint32_t taken = le32toh(head->taken);
    uint64_t popped = le64toh(head->popped), now;

    if (taken - rail->acked > rail->sent - rail->acked || popped > conn->next)
        return false;
    if (popped > conn->peer_popped)
        conn->peer_popped = popped;
    if (taken == rail->acked)
        return true;
    now = tpb_now();
    while (rail->acked != taken) {
        uint64_t number = rail->order[rail->acked++ % RAILS_WINDOW];
        struct rails_frame *frame = send_frame(conn, number);

        rails_pace_acked(&rail->pace, frame->head_length + frame->length, now);
        frame->state = RAILS_ACKED;
    }
    rail->suspected = 0;           /* the clock only asks while some are out */
    rails_is_due(conn);
    return true;
}

static bool send_done(const struct rails_frame *frame)
{
    return frame->state == RAILS_ACKED && !frame->held;
}

/* Lent memory goes back in order, but does not wait for copied frames: nobody
 * is in a hurry to acknowledge those. */
void rails_release(struct rails_conn *conn)
{
    struct tpf_env *env = conn->common.endpoint->env;

    while (conn->given < conn->next) {
        struct rails_frame *frame = send_frame(conn, conn->given);

        if (frame->lent && !send_done(frame))
            break;
        conn->given++;
        if (frame->lent)
            env->upcalls->sent(env->core, &conn->common, frame->token);
    }
    while (conn->first < conn->given
           && send_done(send_frame(conn, conn->first))) {
        conn->ring_read = send_frame(conn, conn->first)->ring_end;
        send_frame(conn, conn->first++)->state = RAILS_FREE;
    }
}

void rails_again(struct rails_rail *rail)
{
    struct rails_conn *conn = rail->group;

    for (uint64_t number = conn->first; number < conn->next; number++) {
        struct rails_frame *frame = send_frame(conn, number);

        if (frame->rail != rail->place)
            continue;
        if (frame->state != RAILS_WAITING)
            frame->held = false;
        if (frame->state == RAILS_SENT) {
            frame->state = RAILS_WAITING;
            conn->waiting++;
        }
    }
}

/* If there is one to send, then one on each rail that has not told all: the
 * sender may wait for the oldest frame, which another rail has carried. */
void rails_acks(struct rails_conn *conn)
{
    bool popped = conn->popped - conn->told_popped >= RAILS_POPS;
    bool wanted = conn->ack_wanted || popped, left = false;

    for (int i = 0; i < RAILS_MAX; i++)
        wanted |= conn->rails[i] != NULL
                  && conn->rails[i]->taken - conn->rails[i]->told >= SEND_OWED;
    for (int i = 0; i < RAILS_MAX && wanted; i++) {
        struct rails_rail *rail = conn->rails[i];

        if (!send_is_up(rail)
            || (rail->taken == rail->told && !popped))
            continue;
        if (rails_control(rail, RAILS_ACK, NULL))
            popped = false;
        else
            left = true;
    }
    conn->ack_wanted = wanted && left;
}
