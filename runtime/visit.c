/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Our visits at the desks of others: each way of an address in turn, and all of
 * them again while nobody listens there, until the peer's deadline.  A name is
 * then looked up again, too, for who comes back elsewhere takes it along.
 *
 * A call that gets no answer stays open while the next way is tried, as in
 * fabric/ofi/visit.c: a dead end costs a fraction of a second.  The first that
 * is taken is the one where we talk, and the others are closed; if nothing
 * comes of it, those have their turns.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"
#include "runtime/desk.h"

TPB_LOG_COMPONENT("visit");

enum {
    VISIT_NEXT_MS = 250,           /* until the next way is tried, while one is
                                      silent (RFC 8305, section 5) */
    VISIT_REST_MS = 20,
    VISIT_REST_MOST_MS = 500,
    VISIT_NAME_MS = 5000           /* before a known name is looked up again */
};

enum visit_stage {
    VISIT_NEW, VISIT_RESOLVING, VISIT_RESTING, VISIT_DIALING, VISIT_NOTE,
    VISIT_PROOF, VISIT_CARD, VISIT_OVER
};

/* A socket that is to be connected. */
struct visit_call {
    struct tpf_watch watch;        /* fd -1: none */
    struct tpr_visit *visit;
    uint64_t deadline;
};

struct tpr_visit {
    struct tpr_corpse corpse;      /* link: in desk->visits until then */
    struct tpr_guest *guest;       /* the listener, as our peer */
    struct visit_call calls[TPR_WAYS + 1]; /* by way */
    struct tpr_line line;          /* where we talk; or the name's look-up */
    struct tpr_resolve *resolve;
    struct tpr_address address;
    char secret[TPR_SECRET_TEXT];
    enum visit_stage stage;
    uint64_t deadline;             /* of the stage; 0: none */
    uint64_t next;                 /* when another way may be tried */
    uint64_t asked;                /* when for a name; 0: there is none */
    uint32_t way;                  /* that we talk at; 0: the Unix socket */
    uint32_t done;                 /* bits: ways that answered this round */
    uint32_t ours;                 /* bits: `ways` that would be this host */
    uint32_t rest_ms;
    tp_status verdict;             /* the gravest of this round */
    struct tpb_text history;       /* of this round */
    struct tpb_text before;        /* of the last whole round */
    struct desk_nonces nonces;
    uint8_t mac[TPR_MAC];          /* ours */
};

static void visit_next(struct tpr_visit *visit);
static void visit_dialed(struct tpf_watch *watch, uint32_t events);
static void visit_ready(struct tpf_watch *watch, uint32_t events);

static tp_context *visit_context(const struct tpr_visit *visit)
{
    return visit->guest->peer->context;
}

static void visit_stage(struct tpr_visit *visit, enum visit_stage stage,
                        uint32_t ms)
{
    visit->stage = stage;
    visit->deadline = ms == 0 ? 0 : tpb_now() + ms * UINT64_C(1000000);
}

struct tpr_visit *tpr_visit_new(struct tpr_guest *guest,
                                const struct tpr_address *address)
{
    struct tpr_visit *visit = tpb_zalloc(sizeof(*visit));

    if (visit == NULL)
        return NULL;
    tpb_list_init(&visit->corpse.link);
    visit->guest = guest;
    visit->address = *address;
    visit->line.watch = (struct tpf_watch){ .fd = -1, .ready = visit_ready };
    for (uint32_t way = 0; way <= TPR_WAYS; way++)
        visit->calls[way] = (struct visit_call){
            .watch = { .fd = -1, .ready = visit_dialed }, .visit = visit };
    visit->rest_ms = VISIT_REST_MS;
    return visit;
}

static void visit_drop(struct visit_call *call)
{
    if (call->watch.fd >= 0)
        tpf_watch_remove(&visit_context(call->visit)->env, &call->watch);
    tpb_close(&call->watch.fd);
}

static void visit_hang_up(struct tpr_visit *visit)
{
    tp_context *context = visit_context(visit);

    for (uint32_t way = 0; way <= TPR_WAYS; way++)
        visit_drop(&visit->calls[way]);
    if (visit->resolve != NULL) {
        tpf_watch_remove(&context->env, &visit->line.watch);
        visit->line.watch.fd = -1; /* it is the look-up's */
        tpr_resolve_drop(visit->resolve);
        visit->resolve = NULL;
    }
    tpr_line_close(context, &visit->line);
}

void tpr_visit_end(struct tpr_visit *visit)
{
    struct tpr_desk *desk = visit_context(visit)->desk;

    if (visit->stage == VISIT_OVER)
        return;
    visit_hang_up(visit);
    visit->stage = VISIT_OVER;
    tpb_text_fini(&visit->history);
    tpb_text_fini(&visit->before);
    tpr_desk_bury(desk, &visit->corpse);
}

/* The peer's end is that of the visit. */
static void visit_fail(struct tpr_visit *visit, tp_status status,
                       const char *text)
{
    tpr_peer_end(visit->guest->peer, status, text);
}

/* ---- one way after the other --------------------------------------------- */

/* Way 0 is the Unix socket, if it is one of this host. */
static socklen_t visit_socket(const struct tpr_visit *visit, uint32_t at,
                              struct sockaddr_storage *address,
                              char words[TPR_WAY_TEXT])
{
    const struct tpr_way *way;

    if (at == 0) {
        snprintf(words, TPR_WAY_TEXT, "its socket on this host");
        return tpr_name_socket(visit->address.name, address);
    }
    way = &visit->address.ways[at - 1];
    tpr_way_text(way, words);
    return tpr_way_socket(way, address);
}

static bool visit_same_host(const struct tpr_visit *visit)
{
    return visit->address.has_host
           && memcmp(visit->address.boot_id,
                     visit_context(visit)->card.host.boot_id, 16) == 0;
}

/* Of a listener on another host no way leads to this one: loopback means
 * something on its own host only, and a bridge of containers has the same
 * address on many.  Who listens at ours would be somebody else. */
static bool visit_way_leads(const struct tpr_visit *visit, uint32_t at)
{
    if (at == 0)
        return visit->address.name[0] != '\0' && visit_same_host(visit);
    return (visit->ours & (1u << (at - 1))) == 0;
}

static void visit_say(const struct tpr_visit *visit, struct tpb_text *text,
                      uint32_t at, const char *what)
{
    struct sockaddr_storage address;
    char words[TPR_WAY_TEXT];

    visit_socket(visit, at, &address, words);
    tpb_text_add(text, "%s%s: %s", text->length > 0 ? "; " : "", words, what);
}

/* This way does not do in this round. */
static void visit_note(struct tpr_visit *visit, uint32_t at, tp_status status,
                       const char *text)
{
    visit_say(visit, &visit->history, at, text);
    if (status != TP_ERR_UNREACHABLE)
        visit->verdict = status;
    visit->done |= 1u << at;
}

/* The one that we talked at: `text` is what it answered. */
static void visit_answered(struct tpr_visit *visit, tp_status status,
                           const char *text)
{
    visit_note(visit, visit->way, status, text);
    visit_hang_up(visit);
    visit_next(visit);
}

void tpr_visit_words(const struct tpr_visit *visit, struct tpb_text *text)
{
    struct tpb_text now = { 0 };

    if (visit->before.text == NULL) {
        if (visit->history.text != NULL)
            tpb_text_add(&now, "%s", visit->history.text);
        for (uint32_t at = 0; at <= visit->address.count; at++)
            if (visit->calls[at].watch.fd >= 0)
                visit_say(visit, &now, at, "no answer");
    }
    tpb_text_add(text, "%s was not reached in time: %s", visit->guest->name,
                 visit->before.text != NULL ? visit->before.text
                 : now.text != NULL ? now.text : "no answer");
    tpb_text_fini(&now);
}

/* All ways were tried.  Where nobody listens somebody may soon. */
static void visit_rest(struct tpr_visit *visit)
{
    if (visit->history.length == 0)
        tpb_text_add(&visit->history, "none of the ways in its address leads "
                     "there from this host");
    tpb_debug("%s: %s", visit->guest->name,
              visit->history.failed ? "?" : visit->history.text);
    if (visit->verdict != TP_OK) {
        visit_fail(visit, visit->verdict, visit->history.failed
                   ? "refused" : visit->history.text);
        return;
    }
    tpb_text_fini(&visit->before);
    visit->before = visit->history;
    memset(&visit->history, 0, sizeof(visit->history));
    visit_stage(visit, VISIT_RESTING, visit->rest_ms);
    visit->rest_ms = visit->rest_ms * 2 > VISIT_REST_MOST_MS
                     ? VISIT_REST_MOST_MS : visit->rest_ms * 2;
}

static int visit_dial(struct tpr_visit *visit, uint32_t at)
{
    struct visit_call *call = &visit->calls[at];
    struct sockaddr_storage address;
    char words[TPR_WAY_TEXT];
    socklen_t length = visit_socket(visit, at, &address, words);
    int code = 0;

    call->deadline = tpb_now() + DESK_PATIENCE_MS * UINT64_C(1000000);
    call->watch.fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC
                            | SOCK_NONBLOCK, 0);
    if (call->watch.fd < 0)
        return errno;
    if (connect(call->watch.fd, (struct sockaddr *)&address, length) < 0
        && errno != EINPROGRESS)
        code = errno;
    if (code == 0)
        code = tpf_watch_add(&visit_context(visit)->env, &call->watch,
                             EPOLLOUT);
    if (code != 0)
        tpb_close(&call->watch.fd);
    return code;
}

/* Tries the next way that is left; the round is over if none is, and none is
 * under way. */
static void visit_next(struct tpr_visit *visit)
{
    bool open = false;

    visit_stage(visit, VISIT_DIALING, 0);
    for (uint32_t at = 0; at <= visit->address.count; at++) {
        char text[96];
        int code;

        open |= visit->calls[at].watch.fd >= 0;
        if (visit->calls[at].watch.fd >= 0 || (visit->done & (1u << at)) != 0
            || !visit_way_leads(visit, at))
            continue;
        code = visit_dial(visit, at);
        if (code == 0) {
            visit->next = tpb_now() + VISIT_NEXT_MS * UINT64_C(1000000);
            return;
        }
        snprintf(text, sizeof(text), "%s%s", strerror(code),
                 tpb_errno_remedy(code));
        visit_note(visit, at, TP_ERR_UNREACHABLE, text);
    }
    visit->next = UINT64_MAX;      /* all were tried */
    if (!open)
        visit_rest(visit);
}

static void visit_round(struct tpr_visit *visit)
{
    visit->done = 0;
    visit->verdict = TP_OK;
    visit_next(visit);
}

/* Time goes by without an answer. */
static void visit_wait(struct tpr_visit *visit, uint64_t now)
{
    bool late = false;

    for (uint32_t at = 0; at <= visit->address.count; at++) {
        struct visit_call *call = &visit->calls[at];

        if (call->watch.fd < 0 || now < call->deadline)
            continue;
        visit_note(visit, at, TP_ERR_UNREACHABLE, "no answer");
        visit_drop(call);
        late = true;
    }
    if (late || now >= visit->next)
        visit_next(visit);
}

/* ---- the conversation ---------------------------------------------------- */

/* Somebody is there. */
static bool visit_greet(struct tpr_visit *visit, int fd)
{
    struct desk_note note = { .version = DESK_VERSION };

    tpb_random(visit->nonces.visitor, DESK_NONCE);
    memcpy(note.magic, tpr_desk_magic, sizeof(note.magic));
    memcpy(note.nonce, visit->nonces.visitor, DESK_NONCE);
    visit_stage(visit, VISIT_NOTE, DESK_PATIENCE_MS);
    visit->line.watch.fd = fd;
    return tpf_watch_add(&visit_context(visit)->env, &visit->line.watch,
                         EPOLLIN) == 0
           && tpr_line_say(&visit->line, &note, sizeof(note))
           && tpr_line_expect(&visit->line, sizeof(note));
}

static void visit_dialed(struct tpf_watch *watch, uint32_t events)
{
    struct visit_call *call = TPB_CONTAINER(watch, struct visit_call, watch);
    struct tpr_visit *visit = call->visit;
    uint32_t at = (uint32_t)(call - visit->calls);
    int code, fd = watch->fd;

    (void)events;
    if (fd < 0)
        return;                    /* closed meanwhile */
    code = tpb_socket_dialed(fd);
    if (code != 0) {
        visit_note(visit, at, TP_ERR_UNREACHABLE, strerror(code));
        visit_drop(call);
        visit_next(visit);
        return;
    }
    tpf_watch_remove(&visit_context(visit)->env, watch);
    watch->fd = -1;
    visit_hang_up(visit);
    visit->way = at;
    if (visit_greet(visit, fd))
        return;
    visit_note(visit, at, TP_ERR_UNREACHABLE, "hung up");
    visit_hang_up(visit);
    /* Events of the others may be under way, so they are not called now. */
    visit_stage(visit, VISIT_DIALING, 0);
    visit->next = 0;
}

/* Shows that we know the secret, and our card. */
static bool visit_prove(struct tpr_visit *visit)
{
    struct desk_proof proof = { .status = TP_OK };
    unsigned char *text = tpb_zalloc(sizeof(proof) + TPT_CARD_BYTES);
    size_t length = 0;
    bool said = false;

    if (text != NULL
        && tpr_guest_card(visit_context(visit), text + sizeof(proof), &length)
           == TP_OK) {
        const struct tpr_piece pieces[] = {
            { &visit->nonces, sizeof(visit->nonces) },
            { text + sizeof(proof), length } };

        memcpy(proof.magic, tpr_desk_magic, sizeof(proof.magic));
        proof.card_length = (uint32_t)length;
        tpr_secret_mac(visit->secret, "guest", pieces, 2, visit->mac);
        memcpy(proof.mac, visit->mac, TPR_MAC);
        memcpy(text, &proof, sizeof(proof));
        said = tpr_line_say(&visit->line, text, sizeof(proof) + length);
    }
    tpb_free(text);
    return said;
}

static void visit_noted(struct tpr_visit *visit)
{
    struct desk_note note;

    memcpy(&note, visit->line.bytes, sizeof(note));
    if (memcmp(note.magic, tpr_desk_magic, sizeof(note.magic)) != 0) {
        visit_answered(visit, TP_ERR_PROTOCOL, "something else lives there");
        return;
    }
    if (note.version != DESK_VERSION || note.status != TP_OK) {
        visit_answered(visit, TP_ERR_PROTOCOL, "a listener of another version"
                       " of tp");
        return;
    }
    memcpy(visit->nonces.host, note.nonce, DESK_NONCE);
    visit->line.got = 0;
    visit_stage(visit, VISIT_PROOF, DESK_PATIENCE_MS);
    if (!visit_prove(visit)
        || !tpr_line_expect(&visit->line, sizeof(struct desk_proof)))
        visit_answered(visit, TP_ERR_UNREACHABLE, "hung up");
}

static void visit_proven(struct tpr_visit *visit)
{
    struct desk_proof proof;

    memcpy(&proof, visit->line.bytes, sizeof(proof));
    if (memcmp(proof.magic, tpr_desk_magic, sizeof(proof.magic)) != 0)
        visit_answered(visit, TP_ERR_PROTOCOL, "its answer is not tp's");
    else if (proof.status == TP_ERR_DENIED)
        visit_fail(visit, TP_ERR_DENIED, visit->address.key[0] != '\0'
                   ? "the listener does not let us in: the address is not the"
                     " one it has now"
                   : "the listener does not let us in: TP_SECRET must be the"
                     " same on both sides");
    else if (proof.status == TP_ERR_NO_MEMORY)
        visit_answered(visit, TP_ERR_UNREACHABLE, "busy");
    else if (proof.status == TP_ERR_UNREACHABLE)
        visit_fail(visit, TP_ERR_UNREACHABLE, "the listener finds no way to"
                   " us: TP_BACKENDS, here or there, or its TP_REQUIRE leaves"
                   " none; TP_LOG=desk=info there tells why");
    else if (proof.status == TP_ERR_PROTOCOL)
        visit_fail(visit, TP_ERR_PROTOCOL, "the listener does not understand"
                   " our card: run the same tp on both sides;"
                   " TP_LOG=desk=info there tells more");
    else if (proof.status != TP_OK)
        visit_answered(visit, TP_ERR_UNREACHABLE, "the listener refuses: "
                       "TP_LOG=desk=info there tells why");
    else if (proof.card_length == 0 || proof.card_length > TPT_CARD_BYTES)
        visit_answered(visit, TP_ERR_PROTOCOL, "its card is garbage");
    else {
        visit->stage = VISIT_CARD;
        if (!tpr_line_expect(&visit->line,
                             sizeof(proof) + proof.card_length))
            visit_answered(visit, TP_ERR_NO_MEMORY, "out of memory");
    }
}

/* Is it really the listener?  Then connect to it as to any peer. */
static void visit_met(struct tpr_visit *visit)
{
    struct tpr_guest *guest = visit->guest;
    struct tpr_peer *peer = guest->peer;
    struct desk_proof proof;
    struct tpr_piece pieces[3] = {
        { &visit->nonces, sizeof(visit->nonces) }, { visit->mac, TPR_MAC } };
    struct tpb_error error = { "" };
    uint8_t mac[TPR_MAC];
    tp_status status;

    memcpy(&proof, visit->line.bytes, sizeof(proof));
    pieces[2] = (struct tpr_piece){ visit->line.bytes + sizeof(proof),
                                    proof.card_length };
    tpr_secret_mac(visit->secret, "host", pieces, 3, mac);
    if (!tpb_equal_secret(mac, proof.mac, TPR_MAC)) {
        visit_fail(visit, TP_ERR_DENIED, "the listener does not know our"
                   " secret");
        return;
    }
    tpr_secret_mac(visit->secret, "ticket", pieces, 2, mac);
    memcpy(guest->ticket, mac, sizeof(guest->ticket));
    status = tpr_peer_meet(peer, pieces[2].data, pieces[2].length, &error);
    if (status != TP_OK) {
        visit_fail(visit, status, error.text);
        return;
    }
    guest->visit = NULL;
    tpr_visit_end(visit);
    tpr_peer_next(peer);
}

static void visit_resolved(struct tpr_visit *visit)
{
    struct tpb_error error = { "" };

    (void)tpr_resolve_result(visit->resolve, visit->address.ways,
                             &visit->address.count, &error);
    visit_hang_up(visit);
    if (visit->address.count > 0) {    /* from before, perhaps */
        visit_round(visit);
        return;
    }
    /* Names come and go as hosts do. */
    tpb_text_add(&visit->history, "%s", error.text);
    visit_rest(visit);
}

static void visit_heard(struct tpr_visit *visit)
{
    while (visit->stage == VISIT_NOTE || visit->stage == VISIT_PROOF
           || visit->stage == VISIT_CARD) {
        enum tpr_heard heard = tpr_line_hear(&visit->line);

        if (heard == TPR_HEARD_PART)
            return;
        if (heard == TPR_HEARD_END)
            visit_answered(visit, TP_ERR_UNREACHABLE, "hung up: is it a"
                           " listener of tp?");
        else if (visit->stage == VISIT_NOTE)
            visit_noted(visit);
        else if (visit->stage == VISIT_PROOF)
            visit_proven(visit);
        else
            visit_met(visit);
    }
}

static void visit_ready(struct tpf_watch *watch, uint32_t events)
{
    struct tpr_visit *visit = TPB_CONTAINER(watch, struct tpr_visit,
                                            line.watch);

    (void)events;
    if (visit->stage == VISIT_RESOLVING)
        visit_resolved(visit);
    else
        visit_heard(visit);
}

/* ---- begin and clock ----------------------------------------------------- */

/* With what is known of the name: it was not told anew. */
static void visit_go_on(struct tpr_visit *visit)
{
    visit_hang_up(visit);
    visit_round(visit);
}

static void visit_look_up(struct tpr_visit *visit)
{
    struct tpr_address *address = &visit->address;
    struct tpb_error error = { "" };
    bool known = address->count > 0;
    int fd;

    if (visit->asked == 0
        && tpr_resolve(address->host, address->port, false, address->ways,
                       &address->count, &error) == TP_OK) {
        visit_round(visit);
        return;
    }
    visit->asked = tpb_now();
    visit->resolve = tpr_resolve_start(address->host, address->port, &fd);
    if (visit->resolve != NULL) {
        visit->line.watch.fd = fd;
        visit_stage(visit, VISIT_RESOLVING, known ? DESK_PATIENCE_MS : 0);
        if (tpf_watch_add(&visit_context(visit)->env, &visit->line.watch,
                          EPOLLIN) == 0)
            return;
    }
    if (known)
        visit_go_on(visit);
    else
        visit_fail(visit, TP_ERR_SYSTEM, "the name cannot be looked up: no"
                   " thread or descriptor");
}

/* May the name mean something by now, or something else? */
static bool visit_wants_name(const struct tpr_visit *visit, uint64_t now)
{
    return visit->asked > 0
           && (visit->address.count == 0
               || now >= visit->asked + VISIT_NAME_MS * UINT64_C(1000000));
}

void tpr_visit_start(struct tpr_visit *visit)
{
    tp_context *context = visit_context(visit);
    struct tpb_error error = { "" };
    tp_status status;

    tpb_list_append(&context->desk->visits, &visit->corpse.link);
    tpr_desk_tick(context->desk);
    status = tpr_secret_open(&error);
    if (status == TP_OK && visit->address.key[0] != '\0')
        memcpy(visit->secret, visit->address.key, sizeof(visit->address.key));
    else if (status == TP_OK)
        status = tpr_secret_get(&context->settings, visit->secret, &error);
    if (status != TP_OK)
        visit_fail(visit, status, error.text);
    else if (visit->secret[0] == '\0')
        visit_fail(visit, TP_ERR_DENIED, "no secret to show: set TP_SECRET on"
                   " both sides, or use the address that"
                   " tp_listener_address() wrote");
    else if (visit->address.by_hand)
        visit_look_up(visit);
    else {
        if (!visit_same_host(visit))
            visit->ours = tpr_interfaces_ours(visit->address.ways,
                                              visit->address.count);
        visit_round(visit);
    }
}

void tpr_visits_tick(struct tpr_desk *desk, uint64_t now)
{
    TPB_LIST_EACH(node, &desk->visits) {
        struct tpr_visit *visit = TPB_CONTAINER(node, struct tpr_visit,
                                                corpse.link);

        if (visit->stage == VISIT_DIALING)
            visit_wait(visit, now);
        if (visit->deadline == 0 || now < visit->deadline)
            continue;
        if (visit->stage == VISIT_RESOLVING)
            visit_go_on(visit);
        else if (visit->stage != VISIT_RESTING)
            visit_answered(visit, TP_ERR_UNREACHABLE, "no answer");
        else if (visit_wants_name(visit, now))
            visit_look_up(visit);
        else
            visit_round(visit);
    }
}
