/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The side that connects.  It dials all ways at once; the first one that is
 * there founds the group, the others join it when it has been welcomed.
 */
#include "config.h"

#include "fabric/rails/rails.h"

static bool visit_fits(const struct rails_sub *sub,
                       const struct rails_place *place)
{
    return strcmp(sub->open->backend->name, place->backend) == 0;
}

static bool visit_same_name(const struct rails_sub *sub,
                            const struct rails_place *place)
{
    return visit_fits(sub, place) && strcmp(sub->nic, place->nic) == 0;
}

/* The sub of ours for the place: of the same name, or in turn; -1: none. */
static int visit_sub(const struct rails_conn *conn, unsigned turn)
{
    const struct rails_endpoint *endpoint = rails_of(conn->common.endpoint);
    const struct rails_place *place = &conn->card->places[turn];
    int fitting[RAILS_SUBS], count = 0;

    for (unsigned i = 0; i < endpoint->sub_count; i++) {
        if (visit_same_name(&endpoint->subs[i], place))
            return (int)i;
        if (visit_fits(&endpoint->subs[i], place))
            fitting[count++] = (int)i;
    }
    return count > 0 ? fitting[turn % (unsigned)count] : -1;
}

/* The place for the sub of ours, likewise. */
static int visit_place(const struct rails_conn *conn, unsigned turn)
{
    const struct rails_sub *sub
        = &rails_of(conn->common.endpoint)->subs[turn];
    int fitting[RAILS_SUBS], count = 0;

    for (unsigned i = 0; i < conn->card->count; i++) {
        if (visit_same_name(sub, &conn->card->places[i]))
            return (int)i;
        if (visit_fits(sub, &conn->card->places[i]))
            fitting[count++] = (int)i;
    }
    return count > 0 ? fitting[turn % (unsigned)count] : -1;
}

/* Every interface of the side that has more, so that none is idle. */
static void visit_ways(struct rails_conn *conn)
{
    const struct rails_endpoint *endpoint = rails_of(conn->common.endpoint);
    int64_t streams = endpoint->common.env->settings->number[TPB_SET_RAILS];
    bool ours = endpoint->sub_count > conn->card->count;
    unsigned most = ours ? endpoint->sub_count : conn->card->count;

    if (streams <= 0)
        streams = most > 1 ? 1 : 2;
    for (int64_t s = 0; s < streams; s++) {
        for (unsigned i = 0; i < most; i++) {
            int sub = ours ? (int)i : visit_sub(conn, i);
            int place = ours ? visit_place(conn, i) : (int)i;

            if (sub < 0 || place < 0 || conn->way_count == RAILS_MAX)
                continue;
            conn->ways[conn->way_count++] = (struct rails_way){
                .sub = (unsigned)sub, .place = (unsigned)place };
        }
    }
}

static uint32_t visit_slower(uint32_t a, uint32_t b)
{
    return a == 0 ? b : b == 0 ? a : a < b ? a : b;
}

tp_status rails_dial(struct rails_conn *conn, unsigned i,
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
    rails_pace_init(&rail->pace, visit_slower(sub->megabits, place->megabits));
    rails_attach(conn, rail, i);
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
    if (!rails_group_init(conn) || conn->card == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "rails: no memory");
    status = rails_card_decode(conn->card, address, length, error);
    if (status != TP_OK)
        return status;
    tpb_random(conn->group, sizeof(conn->group));
    visit_ways(conn);
    if (conn->way_count == 0)
        tpb_fail(error, TP_ERR_UNREACHABLE,
                 "rails: the peer offers nothing that is open here");
    for (unsigned i = 0; i < conn->way_count; i++) {
        status = rails_dial(conn, i, error);
        if (status == TP_OK)
            dialled++;
        else
            answer = status;
    }
    return dialled > 0 ? TP_OK : answer;
}

/* JOIN goes out on the first rail that is there, on the others once that one
 * has been welcomed. */
void rails_join(struct rails_conn *conn, struct rails_rail *rail)
{
    size_t room = rails_room(rail);
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
    rail->turn = ++conn->ways[rail->place].turns;
    join.turn = htole16(rail->turn);
    join.max_frame = htole32((uint32_t)(conn->ready ? conn->common.max_frame
                                                    : room));
    if (!rails_control(rail, RAILS_JOIN, &join))
        return;
    rail->stage = RAILS_ASKED;
    rail->deadline = conn->ready ? rails_after(RAILS_JOIN_MS)
                                 : rails_patience(rail->endpoint);
    rails_ticks(rail->endpoint);
}

/* Of the rails that are up: all go over the same. */
const char *rails_carrier(struct tpf_conn *common)
{
    const struct rails_conn *conn = rails_conn_of(common);

    for (unsigned i = 0; i < RAILS_MAX; i++) {
        const struct rails_rail *rail = conn->rails[i];

        if (rail != NULL && rail->stage == RAILS_UP
            && rail->conn->backend->carrier != NULL)
            return rail->conn->backend->carrier(rail->conn);
    }
    return NULL;
}

void rails_trying(struct tpf_conn *common, struct tpb_text *text)
{
    struct rails_conn *conn = rails_conn_of(common);

    for (unsigned i = 0; i < RAILS_MAX; i++) {
        struct rails_rail *rail = conn->rails[i];

        if (rail == NULL || rail->stage == RAILS_UP)
            continue;
        if (rail->stage != RAILS_DIALING)
            tpb_text_add(text, " %s: it accepted the connection, but does not "
                         "welcome the rail;", conn->card != NULL
                         ? conn->card->places[conn->ways[i].place].nic : "?");
        else if (rail->conn->backend->trying != NULL)
            rail->conn->backend->trying(rail->conn, text);
    }
}

void rails_welcomed(struct rails_rail *rail, const struct rails_join *join)
{
    struct rails_conn *conn = rail->group;
    size_t max_frame = le32toh(join->max_frame);
    size_t room = rails_room(rail);

    if (!conn->visitor || rail->stage != RAILS_ASKED
        || memcmp(join->group, conn->group, sizeof(join->group)) != 0
        || max_frame < RAILS_LEAST_FRAME || max_frame > room
        || (conn->ready && max_frame != conn->common.max_frame)) {
        rails_break(conn, "a welcome that does not fit");
        return;
    }
    if (!conn->ready)
        rails_founded(conn, rail, max_frame);
    conn->ways[rail->place].tries = 0;
    rails_is_up(conn, rail);
}
