/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The desk: where processes meet that no launcher knows.
 *
 * A listener has plain sockets: TCP, and a Unix one for its own host.  On such
 * a socket the two prove to each other that they know the same secret, and
 * exchange their cards.  Then the machinery of all pairs takes over: both
 * score the cards, the visitor connects over the best backend, and its hello
 * shows a ticket that both have made of the secret and that nobody ever sent.
 *
 *   visitor  note   nonce
 *   host     note   nonce
 *   visitor  proof  card, MAC(secret, "guest", both nonces, card)
 *   host     proof  card, MAC(secret, "host", nonces, visitor's MAC, card)
 *   ticket = MAC(secret, "ticket", nonces, visitor's MAC), its first half
 *
 * The purposes keep a proof from being sent back to its maker.  The cards that
 * go this way lack the cookie that lets ranks of the job in.
 *
 * All of it under the context's token but for what is marked otherwise.
 */
#ifndef TPR_DESK_H
#define TPR_DESK_H

#include "runtime/address.h"
#include "runtime/core.h"
#include "runtime/resolve.h"
#include "runtime/secret.h"

enum {
    DESK_VERSION = 1,
    DESK_NONCE = 32,
    DESK_VISITORS = 64,            /* that have not proven themselves */
    DESK_GRACE_MS = 200,           /* of each, however many come ... */
    DESK_SILENT_MS = 50,           /* ... unless it has not said a word */
    DESK_GUESTS = 64,              /* proven, of one listener, connected, not
                                      accepted; of those that connect: */
    DESK_PROMISED = 4096,
    DESK_KEPT = 1000,              /* closed pipes whose handles live on; and
                                      closed listeners */
    DESK_FREED = 256,              /* others, looked at in a tick */
    DESK_TICK_MS = 20,
    DESK_PATIENCE_MS = 5000        /* for each step of the other side */
};

/* ---- what goes over the sockets ------------------------------------------ */

/* Little-endian, as wire.h. */
struct desk_note {
    char magic[4];                 /* "tpld" */
    uint32_t version;
    uint32_t status;               /* host's: 0, or a tp_status that refuses */
    uint32_t zero;
    uint8_t nonce[DESK_NONCE];
};
_Static_assert(sizeof(struct desk_note) == 48, "wire layout");

struct desk_proof {
    char magic[4];
    uint32_t status;               /* host's: 0, or a tp_status that refuses */
    uint32_t card_length;          /* the card follows */
    uint32_t zero;
    uint8_t mac[TPR_MAC];
};
_Static_assert(sizeof(struct desk_proof) == 48, "wire layout");

/* Both nonces, the visitor's first. */
struct desk_nonces {
    uint8_t visitor[DESK_NONCE], host[DESK_NONCE];
};

extern const char tpr_desk_magic[4];

/* ---- one socket ---------------------------------------------------------- */

struct tpr_line {
    struct tpf_watch watch;
    unsigned char *bytes;          /* what came */
    size_t got, need;
};

enum tpr_heard { TPR_HEARD_PART, TPR_HEARD_ALL, TPR_HEARD_END };

/* So many bytes are to come in all; more than before keeps those.  False: no
 * memory. */
bool tpr_line_expect(struct tpr_line *line, size_t need);
enum tpr_heard tpr_line_hear(struct tpr_line *line);
bool tpr_line_say(struct tpr_line *line, const void *data, size_t length);
void tpr_line_close(tp_context *context, struct tpr_line *line);

/* ---- listeners ----------------------------------------------------------- */

struct tpr_entrance {
    struct tpf_watch watch;
    tp_listener *listener;
};

struct tp_listener {
    tp_context *context;           /* const */
    struct tpb_list link;          /* table: in desk->listeners or ->shut */
    struct tpr_task task;          /* tp_listener_close() */
    _Atomic bool closing;          /* atomic: the task is under way */
    bool closed;
    uint32_t tick;                 /* desk->ticks when it was */
    bool paused;                   /* no descriptors for visitors, or full */
    bool warned;                   /* ... of the first */
    uint32_t entrance_count;
    struct tpr_entrance entrances[TPR_WAYS + 1];
    struct tpb_list accepts;       /* listener_accept: tp_accept() armed */
    struct tpb_list here;          /* tpr_guest: connected, not accepted */
    uint32_t guests, waiting;      /* promised or here; here */
    char secret[TPR_SECRET_TEXT];  /* const */
    char address[TPR_ADDRESS_TEXT];    /* const */
};

/* A guest of this listener is connected. */
void tpr_listener_arrived(tp_listener *listener, struct tpr_guest *guest);
/* The fds of visitors lack, or there are enough of these: waits a little, then
 * goes on. */
void tpr_listener_pause(tp_listener *listener, bool pause);
void tpr_listener_close(tp_listener *listener, const char *why);

/* ---- guests -------------------------------------------------------------- */

/* A peer outside the job. */
struct tpr_guest {
    struct tpr_peer *peer;         /* const */
    struct tpb_list link;          /* in desk->promised, listener->here,
                                      desk->unborn, ->spent or ->kept */
    tp_listener *listener;         /* that lets it in, until it is accepted */
    struct tpr_visit *visit;       /* of ours, while we are at its desk */
    bool connected;                /* has been */
    uint64_t closed;               /* desk->closed when this side did */
    uint8_t ticket[16];
    char name[96];                 /* before its card is there */
};

/* With its pipe; NULL without memory.  Any thread. */
struct tpr_guest *tpr_guest_new(tp_context *context, const char *name);
/* One that nobody uses: never, or not any more. */
void tpr_guest_discard(struct tpr_guest *guest);
tp_pipe *tpr_guest_pipe(struct tpr_guest *guest);
/* For tests (TP_CARD_HOOK): what a damaged card does to those who read it. */
void tpr_card_damage(const tp_context *context, uint8_t *blob, size_t *length);
/* Our card as those outside get it. */
tp_status tpr_guest_card(tp_context *context, uint8_t blob[TPT_CARD_BYTES],
                         size_t *length);

/* ---- visitors (desk.c) and visits (visit.c) ------------------------------ */

struct tpr_desk {
    tp_context *context;
    struct tpf_watch timer;        /* runs while something is under way */
    bool ticking;
    uint32_t ticks;
    uint64_t looked;               /* the time of the last one */
    struct tpb_list listeners;     /* table */
    struct tpb_list shut;          /* ... that are closed, oldest first */
    uint32_t shut_count;
    struct tpb_list visitors;      /* strangers at our sockets, oldest first */
    uint32_t visitor_count;
    bool full;                     /* some wait until there are fewer */
    struct tpb_list visits;        /* tpr_visit: we, at others' desks */
    struct tpb_list promised;      /* tpr_guest: may connect */
    struct tpb_list unborn;        /* ... ended before anybody saw them */
    struct tpb_list spent;         /* closed and ended: need no card ... */
    struct tpb_list kept;          /* ... and have none */
    uint32_t kept_count;
    uint64_t closed;               /* pipes, by the program */
    struct tpb_list dead;          /* tpr_corpse */
};

/* First in what an event may still be under way for: freed two ticks later. */
struct tpr_corpse {
    struct tpb_list link;
    uint32_t tick;
};

/* Makes the context's desk at the first call; NO_MEMORY, or SYSTEM with words.
 * Any thread. */
tp_status tpr_desk_open(tp_context *context, struct tpb_error *error);
/* Lets the timer run: something is under way. */
void tpr_desk_tick(struct tpr_desk *desk);
void tpr_desk_bury(struct tpr_desk *desk, struct tpr_corpse *corpse);

/* Somebody called; the descriptor is ours now. */
void tpr_visitor_new(tp_listener *listener, int fd);
/* Is there no room for a new one, and nobody to make it?  Then they wait with
 * the kernel. */
bool tpr_visitors_full(struct tpr_desk *desk);
void tpr_visitors_end(struct tpr_desk *desk, const tp_listener *listener);
void tpr_visitors_tick(struct tpr_desk *desk, uint64_t now);

/* Where a peer of ours listens; taken to pieces already.  Any thread. */
struct tpr_visit *tpr_visit_new(struct tpr_guest *guest,
                                const struct tpr_address *address);
void tpr_visit_start(struct tpr_visit *visit);
/* The words for all that was tried; for when the time is over. */
void tpr_visit_words(const struct tpr_visit *visit, struct tpb_text *text);
void tpr_visit_end(struct tpr_visit *visit);
void tpr_visits_tick(struct tpr_desk *desk, uint64_t now);

/* ---- interfaces.c -------------------------------------------------------- */

/* The addresses of this host, of that family (4, 6; 0: both), that TP_IFACE
 * (`ifaces`) allows and that others can use; loopback last, and only if `local`
 * or if there are no others.  Port 0.  Returns their number; says so if there
 * are more. */
uint32_t tpr_interfaces(const char *ifaces, uint8_t family, bool local,
                        struct tpr_way ways[TPR_WAYS]);
/* Bits: which of these lead to this host itself. */
uint32_t tpr_interfaces_ours(const struct tpr_way *ways, uint32_t count);

#endif
