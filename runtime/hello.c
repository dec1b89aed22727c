/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Conns: what the backends report, and the greeting that turns a conn into a
 * peer's.  The side that connected says who it is and shows the cookie of the
 * card it read; the other side answers.  When two ranks connect to each other
 * at the same time, the conn of the lower rank stays, if it comes about: until
 * then the other's is kept, since it may be the only one that does.
 */
#include "config.h"

#include <stdio.h>

#include "runtime/base/alloc.h"
#include "runtime/base/log.h"
#include "runtime/channels.h"
#include "runtime/contract.h"
#include "runtime/core.h"
#include "runtime/stream.h"

TPB_LOG_COMPONENT("hello");

enum { HELLO_LIMIT_MS = 10000 };   /* at least */

static const char hello_magic[4] = { 't', 'p', 'i', 'p' };
/* There is room for a frame on a new conn, unless it is lost already: perhaps
 * the peer has just left, which is asked for then. */
static const char hello_lost[] = "the connection was lost before a greeting";

/* ---- conns that are over ------------------------------------------------ */

void tpr_conn_begin(tp_context *context, struct tpf_conn *conn)
{
    context->polled += (conn->backend->flags & TPF_POLLED) != 0;
    conn->endpoint->conns++;
}

/* Not now: we may be inside one of the conn's own functions. */
void tpr_bury(tp_context *context, struct tpf_conn *conn)
{
    if (context->hot == conn)
        context->hot = NULL;
    context->row = 0;
    if (context->giver == conn)
        context->giver = NULL;
    conn->peer = NULL;
    tpb_list_unlink(&conn->ready);
    tpb_list_append(&context->graveyard, &conn->ready);
    tpr_touch(context);
}

void tpr_bury_now(tp_context *context)
{
    struct tpb_list *node;

    while ((node = tpb_list_take(&context->graveyard)) != NULL) {
        struct tpf_conn *conn = TPB_CONTAINER(node, struct tpf_conn, ready);

        context->polled -= (conn->backend->flags & TPF_POLLED) != 0;
        conn->endpoint->conns--;
        conn->backend->disconnect(conn);
        if (conn->landing != NULL)
            tpr_landed(conn);
        tpr_links_free(conn->links);
        tpb_list_unlink(&conn->ready);
        tpf_conn_free(conn);
    }
}

/* ---- sending ------------------------------------------------------------ */

static bool hello_frame_put(struct tpf_conn *conn, enum wire_type type,
                            const void *head, size_t head_length,
                            const void *body, size_t body_length)
{
    size_t length = head_length + body_length;
    struct wire_frame frame = { .type = (uint8_t)type,
                                .length = (uint32_t)length };
    unsigned char *room;

    if (sizeof(frame) + length > conn->max_frame)
        return false;
    room = conn->backend->reserve(conn, sizeof(frame) + length);
    if (room == NULL)
        return false;
    memcpy(room, &frame, sizeof(frame));
    memcpy(room + sizeof(frame), head, head_length);
    if (body_length > 0)
        memcpy(room + sizeof(frame) + head_length, body, body_length);
    conn->backend->commit(conn, sizeof(frame) + length);
    return true;
}

bool tpr_hello_send(struct tpr_peer *peer)
{
    struct wire_hello hello = { .version = WIRE_VERSION };
    uint8_t blob[TPT_CARD_BYTES + WIRE_TRIALS * TPT_WORDS];
    struct tpr_verdicts verdicts;
    size_t length = 0;

    memcpy(hello.magic, hello_magic, 4);
    if (peer->guest != NULL)       /* it has our card already */
        memcpy(hello.cookie, tpr_guest_ticket(peer), sizeof(hello.cookie));
    else if (tpt_card_encode(&peer->context->card, blob, &length) == TP_OK)
        memcpy(hello.cookie, tpt_entry_cookie(peer->entry),
               sizeof(hello.cookie));
    else
        return false;
    tpr_links_open(peer);
    tpr_links_tell(peer, &verdicts);
    memcpy(hello.trials, verdicts.trials, sizeof(hello.trials));
    memcpy(blob + length, verdicts.words, verdicts.length);
    hello.card_length = (uint32_t)length;
    hello.words_length = (uint32_t)verdicts.length;
    return hello_frame_put(peer->conn, WIRE_HELLO, &hello, sizeof(hello),
                           blob, length + verdicts.length);
}

static bool hello_answer(struct tpf_conn *conn, enum wire_answer answer)
{
    struct wire_welcome welcome = { .version = WIRE_VERSION,
                                    .answer = answer };

    memcpy(welcome.magic, hello_magic, 4);
    return hello_frame_put(conn, WIRE_WELCOME, &welcome, sizeof(welcome),
                           NULL, 0);
}

static bool hello_accept(struct tpr_peer *peer)
{
    struct wire_welcome welcome = { .version = WIRE_VERSION,
                                    .answer = WIRE_ACCEPTED };
    struct tpr_verdicts verdicts;

    tpr_links_tell(peer, &verdicts);
    memcpy(welcome.magic, hello_magic, 4);
    memcpy(welcome.trials, verdicts.trials, sizeof(welcome.trials));
    welcome.words_length = (uint32_t)verdicts.length;
    return hello_frame_put(peer->conn, WIRE_WELCOME, &welcome,
                           sizeof(welcome), verdicts.words, verdicts.length);
}

void tpr_hello_part(struct tpr_peer *peer, const char *words)
{
    size_t length = strlen(words);
    size_t most = peer->conn->max_frame - sizeof(struct wire_frame);

    (void)hello_frame_put(peer->conn, WIRE_BYE, words,
                          length < most ? length : most, NULL, 0);
}

void tpr_hello_bye(struct tpr_peer *peer, const void *words, size_t length)
{
    struct tpb_text text = { 0 };
    char *copy;

    if (length == 0) {
        peer->bye = true;
        tpr_peer_end(peer, TP_ERR_PEER_CLOSED, "the peer has left the job");
        return;
    }
    copy = tpb_zalloc(length + 1);
    if (copy != NULL) {
        tpr_links_words(copy, length + 1, words, length);
        tpb_text_add(&text, "%s gave this pair up: %s",
                     atomic_load(&peer->name), copy);
    }
    tpr_peer_end(peer, TP_ERR_UNREACHABLE, copy == NULL || text.failed
                 ? "the peer has given us up" : text.text);
    tpb_text_fini(&text);
    tpb_free(copy);
}

/* ---- strangers ---------------------------------------------------------- */

static struct tpr_stranger *hello_stranger(tp_context *context,
                                           struct tpf_conn *conn)
{
    TPB_LIST_EACH(node, &context->strangers) {
        struct tpr_stranger *stranger = TPB_CONTAINER(node,
                                                      struct tpr_stranger,
                                                      link);

        if (stranger->conn == conn)
            return stranger;
    }
    return NULL;
}

static void hello_stranger_free(struct tpr_stranger *stranger)
{
    if (stranger == NULL)
        return;
    tpb_list_unlink(&stranger->link);
    tpb_free(stranger);
}

/* Turns a stranger away; what was answered still goes out. */
static void hello_turn_away(tp_context *context, struct tpf_conn *conn,
                            enum wire_answer answer, const char *why)
{
    tpb_info("a connection is turned away: %s", why);
    hello_answer(conn, answer);
    hello_stranger_free(hello_stranger(context, conn));
    tpr_bury(context, conn);
}

static enum wire_answer hello_refusal(tp_status status)
{
    return status == TP_ERR_NO_MEMORY ? WIRE_NO_MEMORY : WIRE_REFUSED;
}

/* Nobody here has asked for that peer. */
static void hello_unmade(struct tpr_peer *peer)
{
    tpr_bury(peer->context, peer->conn);
    peer->conn = NULL;
    peer->links = NULL;
}

/* The peer's conn is this one from now on. */
static void hello_adopt(struct tpr_peer *peer, struct tpf_conn *conn,
                        const struct tpr_verdicts *verdicts)
{
    tp_context *context = peer->context;

    if (peer->conn != NULL)
        tpr_bury(context, peer->conn);
    peer->links = NULL;
    hello_stranger_free(hello_stranger(context, conn));
    peer->conn = conn;
    peer->bye_sent = false;        /* the other one's was lost with it */
    conn->peer = peer;
    tpr_links_open(peer);
    tpr_links_hear(peer, verdicts);
    if (peer->state == TPR_PEER_ENDED) {
        /* The contract needs what it refuses; others' need not be that. */
        if (peer->guest != NULL)
            hello_answer(conn, WIRE_DENIED);
        return;
    }
    if (hello_accept(peer))
        tpr_peer_connected(peer);
    else if (peer->guest != NULL)  /* it comes by itself, or not at all */
        tpr_peer_end(peer, TP_ERR_PEER_FAILED, hello_lost);
    else if (peer->state == TPR_PEER_NEW)
        hello_unmade(peer);
    else
        tpr_peer_failed(peer, hello_lost);
}

/* Shows that the plan took the backend of the conn that came in; lack of memory
 * may leave it with another one. */
static void hello_choose(struct tpr_peer *peer, const char *name)
{
    bool done = tpr_peer_restore(peer, name);

    while (done) {
        const struct tpt_plan *plan = tpr_peer_plan(peer);
        int best = tpt_plan_best(plan);

        if (best < 0 || strcmp(plan->candidates[best].name, name) == 0)
            return;
        done = tpr_peer_demote(peer, plan->candidates[best].name,
                               "the peer connected another way");
    }
}

/* ---- the conn that waits for the end of ours ---------------------------- */

static bool hello_is_spare(const struct tpr_peer *peer,
                           const struct tpf_conn *conn)
{
    return peer->spare != NULL && peer->spare->conn == conn;
}

void tpr_hello_drop_spare(struct tpr_peer *peer)
{
    if (peer->spare != NULL)
        tpr_bury(peer->context, peer->spare->conn);
    tpb_free(peer->spare);
    peer->spare = NULL;
}

/* Ours may still come about and be better: the peer's has to wait. */
static void hello_keep_spare(struct tpr_peer *peer, struct tpf_conn *conn,
                             const struct tpr_verdicts *verdicts)
{
    struct tpr_spare *spare = tpb_zalloc(sizeof(*spare));

    if (spare == NULL) {
        hello_turn_away(peer->context, conn, WIRE_CROSSED, "out of memory");
        return;
    }
    tpr_hello_drop_spare(peer);
    hello_stranger_free(hello_stranger(peer->context, conn));
    spare->conn = conn;
    spare->verdicts = *verdicts;
    peer->spare = spare;
    conn->peer = peer;
}

bool tpr_hello_use_spare(struct tpr_peer *peer)
{
    struct tpr_spare *spare = peer->spare;

    if (spare == NULL)
        return false;
    hello_choose(peer, spare->conn->backend->name);
    if (tpt_plan_best(tpr_peer_plan(peer)) < 0) {
        tpr_hello_drop_spare(peer);
        return false;
    }
    peer->spare = NULL;
    hello_adopt(peer, spare->conn, &spare->verdicts);
    tpb_free(spare);
    return true;
}

/* Does ours stay, if it comes about?  One that has not reached the peer yet
 * gives way to one of the same kind that has. */
static bool hello_is_ours(const struct tpr_peer *peer,
                          const struct tpf_conn *conn)
{
    if (peer->conn == NULL || peer->context->rank > peer->rank)
        return false;
    return peer->state == TPR_PEER_GREETED
           || (peer->state == TPR_PEER_CONNECTING
               && peer->conn->backend != conn->backend);
}

static void hello_known(tp_context *context, struct tpf_conn *conn,
                        const struct tpt_card *card, const void *blob,
                        size_t length, const struct tpr_verdicts *verdicts)
{
    struct tpr_peer *peer = tpr_peer_get(context, card->rank);
    struct tpb_error error = { "" };
    tp_status status = TP_OK;

    if (peer == NULL) {
        hello_turn_away(context, conn, WIRE_NO_MEMORY, "out of memory");
        return;
    }
    if (peer->state == TPR_PEER_CONNECTED) {
        hello_turn_away(context, conn, WIRE_CROSSED, "crossed");
        return;
    }
    if (peer->state == TPR_PEER_ENDED) {
        hello_turn_away(context, conn, WIRE_OVER, "the peer had ended");
        return;
    }
    if (peer->entry == NULL)
        status = tpr_peer_meet(peer, blob, length, &error);
    else if (memcmp(tpt_entry_instance(peer->entry), card->instance, 16) != 0)
        status = tpb_fail(&error, TP_ERR_DENIED, "another process");
    if (status != TP_OK) {
        hello_turn_away(context, conn, hello_refusal(status), error.text);
        return;
    }
    if (hello_is_ours(peer, conn)) {
        hello_keep_spare(peer, conn, verdicts);
        return;
    }
    hello_choose(peer, conn->backend->name);
    if (tpt_plan_best(tpr_peer_plan(peer)) < 0) {
        hello_turn_away(context, conn, WIRE_DENIED,
                        "TP_BACKENDS or TP_REQUIRE forbids its backend");
        return;
    }
    hello_adopt(peer, conn, verdicts);
}

/* Somebody from outside, who was promised to be let in. */
static void hello_guest(tp_context *context, struct tpf_conn *conn,
                        struct tpr_peer *peer,
                        const struct tpr_verdicts *verdicts)
{
    hello_choose(peer, conn->backend->name);
    if (tpt_plan_best(tpr_peer_plan(peer)) < 0) {
        hello_turn_away(context, conn, WIRE_DENIED,
                        "TP_BACKENDS or TP_REQUIRE forbids its backend");
        tpr_peer_end(peer, TP_ERR_UNREACHABLE, "no backend is left");
        return;
    }
    hello_adopt(peer, conn, verdicts);
}

static void hello_received(tp_context *context, struct tpf_conn *conn,
                           const unsigned char *body, size_t length)
{
    struct wire_hello hello;
    struct tpr_peer *guest;
    struct tpt_card *card;
    struct tpb_error error = { "" };
    struct tpr_verdicts verdicts;
    unsigned char *copy;
    tp_status status;

    if (length < sizeof(hello)) {
        hello_turn_away(context, conn, WIRE_REFUSED, "no hello");
        return;
    }
    memcpy(&hello, body, sizeof(hello));
    if (memcmp(hello.magic, hello_magic, 4) != 0
        || hello.version != WIRE_VERSION
        || (uint64_t)hello.card_length + hello.words_length
           != length - sizeof(hello)
        || hello.words_length > sizeof(verdicts.words)) {
        hello_turn_away(context, conn, WIRE_REFUSED,
                        "its hello is of another version, or not tp's");
        return;
    }
    /* The frame may be in shared memory: copy, then look. */
    memcpy(verdicts.trials, hello.trials, sizeof(verdicts.trials));
    verdicts.length = hello.words_length;
    memcpy(verdicts.words, body + sizeof(hello) + hello.card_length,
           verdicts.length);
    if (hello.card_length == 0) {
        guest = tpr_guest_find(context, hello.cookie);
        if (guest != NULL)
            hello_guest(context, conn, guest, &verdicts);
        else   /* its listener has closed since, or it took too long */
            hello_turn_away(context, conn, WIRE_OVER, "its ticket is void");
        return;
    }
    if (!tpb_equal_secret(hello.cookie, context->card.cookie, 16)) {
        hello_turn_away(context, conn, WIRE_DENIED, "a wrong cookie");
        return;
    }
    copy = tpb_zalloc(hello.card_length);
    card = tpb_zalloc(sizeof(*card));
    if (copy == NULL || card == NULL) {
        hello_turn_away(context, conn, WIRE_NO_MEMORY, "out of memory");
    } else {
        memcpy(copy, body + sizeof(hello), hello.card_length);
        status = tpt_card_decode(copy, hello.card_length, card, &error);
        if (status != TP_OK)
            hello_turn_away(context, conn, hello_refusal(status), error.text);
        else if (card->rank < 0 || card->rank >= context->size
                 || card->rank == context->rank
                 || strcmp(card->job, context->card.job) != 0)
            hello_turn_away(context, conn, WIRE_DENIED, "not of this job");
        else
            hello_known(context, conn, card, copy, hello.card_length,
                        &verdicts);
    }
    tpb_free(copy);
    tpb_free(card);
}

static void hello_welcomed(struct tpr_peer *peer,
                           const struct tpr_verdicts *verdicts)
{
    tpr_links_hear(peer, verdicts);
    if (peer->state != TPR_PEER_ENDED)
        tpr_peer_connected(peer);
}

/* In every version the magic and its number come first. */
static bool hello_differs(struct tpr_peer *peer, const unsigned char *body,
                          size_t length)
{
    uint32_t version;
    char text[128];

    if (length < sizeof(hello_magic) + sizeof(version)
        || memcmp(body, hello_magic, sizeof(hello_magic)) != 0)
        return false;
    memcpy(&version, body + sizeof(hello_magic), sizeof(version));
    if (version == WIRE_VERSION)
        return false;
    snprintf(text, sizeof(text), "it speaks version %u of tp's messages, this"
             " process version %d: run the same tp on both sides", version,
             WIRE_VERSION);
    tpr_peer_end(peer, TP_ERR_PROTOCOL, text);
    return true;
}

static void hello_answered(struct tpr_peer *peer, const unsigned char *body,
                           size_t length)
{
    struct wire_welcome welcome;
    struct tpr_verdicts verdicts;

    if (hello_differs(peer, body, length))
        return;
    if (length >= sizeof(welcome))
        memcpy(&welcome, body, sizeof(welcome));
    if (length < sizeof(welcome) || memcmp(welcome.magic, hello_magic, 4) != 0
        || welcome.words_length != length - sizeof(welcome)
        || welcome.words_length > sizeof(verdicts.words)) {
        tpr_peer_end(peer, TP_ERR_PROTOCOL, "its welcome is not tp's");
        return;
    }
    memcpy(verdicts.trials, welcome.trials, sizeof(verdicts.trials));
    verdicts.length = welcome.words_length;
    memcpy(verdicts.words, body + sizeof(welcome), verdicts.length);
    if (welcome.answer == WIRE_ACCEPTED)
        hello_welcomed(peer, &verdicts);
    else if (welcome.answer == WIRE_CROSSED && peer->guest == NULL
             && peer->rank < peer->context->rank) {
        tpr_bury(peer->context, peer->conn);
        peer->conn = NULL;
        peer->links = NULL;
        peer->state = TPR_PEER_CROSSED;
    } else if (welcome.answer == WIRE_DENIED && peer->guest != NULL)
        tpr_peer_end(peer, TP_ERR_UNREACHABLE, "the listener finds no way to"
                     " us: its TP_BACKENDS or TP_REQUIRE leaves none;"
                     " TP_LOG=info there tells why");
    else if (welcome.answer == WIRE_DENIED)
        tpr_peer_end(peer, TP_ERR_DENIED, "the peer does not let us in");
    else if (welcome.answer == WIRE_NO_MEMORY)
        tpr_peer_end(peer, TP_ERR_NO_MEMORY, "the peer is out of memory");
    else if (welcome.answer == WIRE_OVER && peer->guest != NULL)
        tpr_peer_end(peer, TP_ERR_PEER_CLOSED,
                     "the listener no longer waits for us");
    else if (welcome.answer == WIRE_OVER)
        tpr_peer_end(peer, TP_ERR_PEER_FAILED, "the peer has given us up");
    else
        tpr_peer_end(peer, TP_ERR_PROTOCOL,
                     "the peer does not understand our hello");
}

/* A frame on a conn that is not connected yet. */
void tpr_hello_frame(tp_context *context, struct tpf_conn *conn,
                     const void *bytes, size_t size)
{
    struct tpr_peer *peer = conn->peer;
    struct wire_frame frame;
    const unsigned char *body = (const unsigned char *)bytes + sizeof(frame);

    if (size < sizeof(frame)) {
        if (peer == NULL)
            hello_turn_away(context, conn, WIRE_REFUSED, "garbage");
        else
            tpr_peer_end(peer, TP_ERR_PROTOCOL, "a frame of garbage");
        return;
    }
    memcpy(&frame, bytes, sizeof(frame));
    if (peer != NULL && hello_is_spare(peer, conn))
        tpr_hello_drop_spare(peer);    /* it has nothing to say yet */
    else if (peer == NULL && frame.type == WIRE_HELLO)
        hello_received(context, conn, body, size - sizeof(frame));
    else if (peer == NULL)
        hello_turn_away(context, conn, WIRE_REFUSED, "no hello");
    else if (frame.type == WIRE_WELCOME && peer->state == TPR_PEER_GREETED)
        hello_answered(peer, body, size - sizeof(frame));
    else if (frame.type == WIRE_BYE && peer->state == TPR_PEER_GREETED)
        tpr_hello_bye(peer, body, size - sizeof(frame));
    else
        tpr_peer_end(peer, TP_ERR_PROTOCOL, "a frame before the welcome");
}

/* ---- upcalls ------------------------------------------------------------ */

/* Who comes in and drives himself may compute before he greets: as long as he
 * waits for us we wait for him. */
static uint64_t hello_deadline(const tp_context *context)
{
    int64_t limit = context->settings.number[TPB_SET_CONNECT_TIMEOUT];

    if (limit < 0)
        return UINT64_MAX;
    if (limit < HELLO_LIMIT_MS)
        limit = HELLO_LIMIT_MS;
    return tpb_now() + (uint64_t)limit * UINT64_C(1000000);
}

static void upcall_incoming(void *core, struct tpf_conn *conn)
{
    tp_context *context = core;
    struct tpr_stranger *stranger = tpb_zalloc(sizeof(*stranger));

    tpr_conn_begin(context, conn);
    if (stranger == NULL || context->closed) {
        tpb_free(stranger);
        tpr_bury(context, conn);
        return;
    }
    tpr_timers_begin(context);
    stranger->conn = conn;
    stranger->deadline = hello_deadline(context);
    tpb_list_append(&context->strangers, &stranger->link);
}

static void upcall_connected(void *core, struct tpf_conn *conn)
{
    struct tpr_peer *peer = conn->peer;

    (void)core;
    if (peer == NULL)
        return;                    /* buried meanwhile */
    if ((conn->backend->flags & TPF_SELF) != 0) {
        tpr_links_own(peer);
        tpr_peer_connected(peer);
        return;
    }
    peer->state = TPR_PEER_GREETED;
    if (!tpr_hello_send(peer) && peer->state == TPR_PEER_GREETED)
        tpr_peer_failed(peer, hello_lost);
}

static void upcall_writable(void *core, struct tpf_conn *conn)
{
    struct tpr_peer *peer = conn->peer;

    (void)core;
    if (peer != NULL && peer->state == TPR_PEER_CONNECTED)
        tpr_tx_unblock(peer);
}

static void upcall_sent(void *core, struct tpf_conn *conn, void *token)
{
    struct tpr_op *op = token;

    (void)core;
    if (conn->peer == NULL)
        return;                    /* buried: the write has ended already */
    if (--op->lent == 0 && op->finished)
        tpr_tx_pump(op->pipe);
}

static void upcall_failed(void *core, struct tpf_conn *conn, tp_status status,
                          const char *text)
{
    tp_context *context = core;
    struct tpr_peer *peer = conn->peer;
    struct tpb_text words = { 0 };

    if (peer == NULL) {
        hello_stranger_free(hello_stranger(context, conn));
        tpr_bury(context, conn);
        return;
    }
    if (hello_is_spare(peer, conn)) {
        tpr_hello_drop_spare(peer);
        return;
    }
    if (peer->state == TPR_PEER_CONNECTING
        || peer->state == TPR_PEER_GREETED) {
        tpr_peer_failed(peer, text);
        return;
    }
    if (peer->bye) {
        tpr_peer_end(peer, TP_ERR_PEER_CLOSED, "the peer has left the job");
        return;
    }
    if (peer->bye_sent) {              /* it hangs up because we leave */
        tpr_peer_end(peer, TP_ERR_CLOSED, "tp_finalize");
        return;
    }
    /* What this side's system refuses is no fault of the peer's. */
    tpb_text_add(&words, status == TP_ERR_SYSTEM ? "cut off from %s: %s"
                                                 : "%s failed: %s",
                 atomic_load(&peer->name), text);
    if (status == TP_ERR_UNREACHABLE)
        status = TP_ERR_PEER_FAILED;
    tpr_peer_end(peer, status, words.failed ? text : words.text);
    tpb_text_fini(&words);
}

static void upcall_passed(void *core, struct tpf_conn *conn, const void *note,
                          size_t length, int fd)
{
    (void)core;
    tpr_links_note(conn, note, length, fd);
}

static void upcall_pulled(void *core, struct tpf_pull *pull,
                          enum tpf_progress result, const char *text)
{
    (void)core;
    tpr_pull_over(TPB_CONTAINER(pull, struct tpr_offer, pull), result, text);
}

const struct tpf_upcalls tpr_upcalls = {
    .incoming = upcall_incoming,
    .connected = upcall_connected,
    .writable = upcall_writable,
    .sent = upcall_sent,
    .failed = upcall_failed,
    .passed = upcall_passed,
    .pulled = upcall_pulled,
};
