/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The inside of a context, for the files of runtime/.
 *
 * One rule carries it: all state here is touched only by the thread that holds
 * the context's token (token.c), but for what is marked otherwise.  A call
 * that finds the token taken leaves a task for its holder instead of waiting.
 * So there are no locks around pipes, and no callback runs with a lock held.
 *
 *   token   everything not marked
 *   table   under context->table_lock (short, never around a callback)
 *   atomic  read and written by anyone
 *   const   written before the object is shared
 */
#ifndef TPR_CORE_H
#define TPR_CORE_H

#include <pthread.h>
#include <stdatomic.h>

#include "fabric/channel.h"
#include "gpu/gpu.h"
#include "runtime/arena.h"
#include "runtime/base/alloc.h"
#include "runtime/base/record.h"
#include "runtime/bootstrap.h"
#include "runtime/crowd.h"
#include "runtime/pace.h"
#include "runtime/patience.h"
#include "runtime/thread.h"
#include "runtime/wire.h"
#include "topology/book.h"
#include "topology/discover.h"

struct epoll_event;
struct tpr_desk;
struct tpr_guest;
struct tpr_op;
struct tpr_peer;
struct tpr_skeleton;
struct tpr_spare;

/* ---- operations --------------------------------------------------------- */

enum tpr_op_kind {
    TPR_OP_WRITE, TPR_OP_DESCRIPTOR, TPR_OP_READ
};

/* Where a message's byte stream stands: which buffer, how far into it. */
struct tpr_cursor {
    size_t buffer;
    size_t offset;
    const struct tpr_offer *skip;  /* the next one that is not in the stream */
};

/* Work left by a thread that did not get the token. */
struct tpr_task {
    struct tpr_task *next;
    void (*run)(tp_context *context, struct tpr_task *task);
};

/* What tp_fd() gives where the context's thread runs callbacks (poller.c). */
struct tpr_poller {
    int fd;                    /* table; -1: not asked for */
    int bell;                  /* eventfd; const once TPR_POLLED is set */
    _Atomic bool rung;         /* atomic: the bell was, or needs not be */
    _Atomic bool mute;         /* atomic; table to change: epoll is left out */
    struct tpr_task begin;
};

/* One accepted call until its callback.  Comes from context->free_ops.  Every
 * call sets the first part itself; the rest begins as zero. */
struct tpr_op {
    struct tpb_list link;
    struct tpr_task task;          /* how it got to the token's holder */
    tp_context *context;
    enum tpr_op_kind kind;
    tp_status status;
    tp_pipe *pipe;                 /* NULL: any, none came yet */
    tp_message *message;
    tp_message_fn *done;           /* NULL: nobody wants to know */
    void *arg;
    struct tpr_sync *sync;         /* a blocking caller, instead of done */
    struct tpg_work *work;         /* its tensors on devices; NULL: none */
    uint64_t data_length;          /* of a write; of a read once it is known */
    uint64_t descriptor_length;    /* of a write */

    /* Of buffers that go by channels; `number` is the message's. */
    struct tpr_offer *offers;      /* of a write; a read's are its skeleton's */
    uint32_t number;
    uint32_t pulls;                /* of a read: buffers still to come */
    bool streamed;                 /* of a read: all of the stream is there */
    bool borrow;                   /* a read that lends what it can */
    bool queued;                   /* of a read: WIRE_QUEUED */
    bool landing;                  /* of a read: one of `pulls` is the body of
                                      a frame, see land.c */

    /* Of a write. */
    bool weighed;                  /* which buffers go by channels is settled */
    bool begun;                    /* a frame of it has been sent */
    bool finished;                 /* all of it has been sent */
    bool pace_asked, paced, alone; /* it counts for its size's pace ... */
    bool lendable;                 /* ... of links->lends, not links->paces */
    uint8_t way;                   /* ... by that enum tpr_pace_way */
    uint32_t lent;                 /* frames that still use its memory */
    uint32_t sent;                 /* as in wire_descriptor */
    uint64_t stream_length;        /* of data_length what goes in frames */
    uint64_t position;             /* in descriptor, then stream; of a read:
                                      when it was shown, 0: not measured */
    struct tpr_cursor cursor;
};
/* Small enough for the compiler to clear it without a call or a loop. */
enum { TPR_OP_REST = offsetof(struct tpr_op, offers) };
_Static_assert(sizeof(struct tpr_op) - TPR_OP_REST <= 96, "op grows");

/* A caller that waits.  On its stack; `over` is set last. */
struct tpr_sync {
    _Atomic uint32_t over;         /* atomic */
    tp_status status;
    tp_message *message;
    /* tp_pipe_recv(): receive straight into this. */
    bool direct;
    void *data;
    size_t capacity, length;
    /* For the record: enum tpb_record_wait, and whom it concerns. */
    uint32_t wait;
    tp_pipe *pipe;
};

/* A caller that sleeps, for the record. */
struct tpr_wait {
    struct tpb_list link;          /* in context->waits */
    const void *thread;
    struct tpr_wait *outer;        /* the thread's own, whose callback this is
                                      in: out of the list meanwhile */
    uint32_t what;                 /* enum tpb_record_wait */
    int32_t peer;                  /* -1: no certain one */
    uint64_t since;
};

/* ---- pipes -------------------------------------------------------------- */

/* A frame that came before its reader. */
struct tpr_chunk {
    struct tpb_list link;
    uint8_t type, flags;
    uint32_t cost;                 /* credit, when it is used up */
    uint32_t length, taken, room;
    bool started;
    unsigned char bytes[];
};

/* Memory that holds what was to be lent. */
struct tpr_copy {
    struct tpr_copy *next;
    size_t capacity;
    _Alignas(16) unsigned char bytes[];
};

/* An arriving message.  `message` is what the user sees. */
struct tpr_skeleton {
    tp_message message;
    tp_pipe *pipe;
    struct tpr_skeleton *next;     /* in pipe->free_skeletons */
    uint64_t data_length;
    uint64_t stream_length;        /* of it what comes in frames */
    struct tpr_offer *offers;
    uint32_t number;               /* if it has offers */
    uint32_t sent;                 /* as in wire_descriptor */
    /* Lent by tp_pipe_borrow(). */
    struct tpb_list lent_link;     /* table: in context->lent, or unlinked: not
                                      lent, or in context->loan */
    struct tpr_copy *copies;       /* memory for what could not be lent ... */
    struct tpr_copy *spare;        /* ... and some for the next message */
    struct tpr_task task;          /* its release */
    struct tpg_work *release;      /* what the release waits for; or NULL */
    unsigned char *storage;        /* arrays and metadata */
    size_t capacity;
};

enum tpr_rx_state {
    TPR_RX_IDLE,                   /* between messages */
    TPR_RX_DESCRIPTOR,             /* collecting a descriptor */
    TPR_RX_HELD,                   /* skeleton is complete, nobody has it */
    TPR_RX_OFFERED,                /* skeleton is with the user, not read yet */
    TPR_RX_DATA,                   /* filling the reader's buffers */
    TPR_RX_ENDED                   /* end_status says why */
};

struct tp_pipe {
    tp_context *context;           /* const */
    struct tpr_peer *peer;         /* const */
    unsigned number;               /* const */
    tp_pipe *next;                 /* table: further pipes of the peer */

    /* Sending. */
    struct tpb_list writes;        /* tpr_op, oldest first */
    struct tpb_list landing;       /* all sent, but memory still lent */
    struct tpb_list pushes;        /* tpr_offer: the peer asked for frames */
    struct tpb_list notes;         /* tpr_note: found no room */
    struct tpb_list blocked_link;  /* in peer->blocked */
    struct tpb_list device_link;   /* in context->device_pipes */
    uint32_t sent, acknowledged;   /* credit, modulo 2^32 */
    uint32_t heard;                /* context->heard when a long one was
                                      written, and one more */
    bool close_due, credit_due;    /* control frames that found no room */
    tp_status tx_end;              /* why nothing can be written any more */

    /* Receiving. */
    enum tpr_rx_state rx_state;
    tp_status rx_end;              /* why, once the backlog is used up */
    struct tpb_list armed;         /* tpr_op */
    struct tpb_list reads;         /* tpr_op, in order; the last may be in
                                      TPR_RX_DATA, others wait for channels */
    uint8_t flags;                 /* WIRE_ALONE ... of what comes in, unread */
    uint8_t resident;              /* how often buffers were: see pages.h */
    uint64_t shown;                /* when its reader was told of it; 0: that
                                      does not count */
    uint32_t copying;              /* of context->copying the pipe's ... */
    struct tpb_list turns;         /* ... and tpr_offer that wait for these */
    uint32_t offering, offered_to_me;  /* messages with offers so far */
    bool offers_seen;              /* ... also such as were not looked into */
    uint32_t lent;                 /* messages that the user has borrowed */
    uint32_t released;             /* of them, whom a device still reads */
    bool tell_due;                 /* the peer waits for them to come back */
    struct tpb_list late_link;     /* in context->late */
    struct tpr_late *late;         /* owned: see late.c; NULL: none so far */
    struct tpb_list backlog;       /* tpr_chunk */
    struct tpb_list unread_link;   /* in context->unread */
    struct tpr_skeleton *skeleton; /* of the message that is coming in */
    _Atomic(tp_message *) offered; /* atomic: with the user, who may read it;
                                      his until the handle ends */
    struct tpr_skeleton *free_skeletons;
    unsigned char *gather;         /* a descriptor that spans frames */
    uint64_t gathered, gather_capacity;
    struct tpr_cursor cursor;
    uint64_t missing;              /* bytes of the message still to come */
    uint32_t consumed, advertised, left_at;    /* that: as a frame was left */
    uint32_t kept;                 /* credit that the backlog takes */
    bool pumping;                  /* tpr_rx_pump() takes a step */
    bool closed;                   /* by this side ... */
    _Atomic bool closing;          /* ... or it will be, by ... */
    struct tpr_task closer;        /* ... this */
    bool unseen;                   /* from outside, not accepted: for no any */
    _Atomic(const char *) error;   /* atomic: "" or why it failed */
    bool error_owned;
    _Atomic(char *) refusal;       /* atomic: NULL or why a call was refused */
    struct tpb_record_pipe *record;    /* token and atomic to change; its
                                          counters relaxed atomic */
    struct tpb_record_pipe unrecorded; /* ... if the job's record has no room,
                                          or not any more */
    bool dropped;                  /* it gave back what it had there */
};

/* ---- peers -------------------------------------------------------------- */

/* What one side's trials said, with the words of the refusals one after the
 * other. */
struct tpr_verdicts {
    struct wire_trial trials[WIRE_TRIALS];
    size_t length;
    char words[WIRE_TRIALS * TPT_WORDS];
};

/* What channels there are between this rank and a connected peer.  Belongs to
 * the conn (conn->links) and ends with it. */
struct tpr_links {
    struct tpr_peer *peer;         /* NULL: it has ended */
    size_t least;                  /* no smaller buffer goes by a channel */
    size_t device_least;           /* nor one of a device's memory */
    uint32_t my_gpus, their_gpus;  /* of `pairs` */
    struct tpr_link {
        struct tpf_link *link;     /* NULL: none */
        bool mine;                 /* may this rank pull? */
        bool theirs;               /* may the peer? */
        struct tpr_sizes {
            size_t from;           /* buffers of this size and more */
            uint64_t latency_ns, megabytes;    /* for devices, with rivals */
        } sizes;
        struct tpr_sizes *pairs;   /* the same by my device and theirs, where
                                      it is not the same for all; or NULL */
        char words[TPT_WORDS];     /* why this rank may not */
    } of[TPF_CHANNELS];            /* by number */
    struct tpr_link *order[TPF_CHANNELS];  /* what to offer by, best first */
    uint32_t ordered;
    struct tpr_link *stream;       /* what is not in `order`, but may be faster
                                      where message follows message; or NULL */
    struct tpr_pace paces[TPR_PACES];  /* whether it is, by size */
    struct tpr_pace lends[TPR_PACES];  /* whether frames are, of what might be
                                          lent */
    struct tpr_lead lead;          /* of a peer whose streams ours follow */
    uint32_t changes;              /* of conn->way, that they know of */
    uint32_t fetched, fetch_tries; /* of conn->fetch, that tastes know of */
    struct tpr_taste tastes[TPR_PACES];    /* of what comes alone from there */
    bool rivals, insisted;         /* for devices' memory; by the contract */
    bool device_insisted;          /* a device's memory may not go staged */
    struct tpb_list pulls;         /* tpr_offer with `pulling` */
};

enum tpr_peer_state {
    TPR_PEER_NEW,                  /* nobody asked yet */
    TPR_PEER_CARD,                 /* its card is being fetched */
    TPR_PEER_CONNECTING,           /* a backend is at it */
    TPR_PEER_GREETED,              /* hello sent */
    TPR_PEER_CROSSED,              /* the peer's own conn is to come */
    TPR_PEER_DOUBTED,              /* nothing leads to it: has it left? */
    TPR_PEER_AWAITED,              /* ... it has not, and is asked to try */
    TPR_PEER_CONNECTED,
    TPR_PEER_ENDED                 /* left, failed or unreachable: `end` */
};

struct tpr_peer {
    tp_context *context;           /* const */
    int rank;                      /* const; -1: outside the job */
    struct tpr_guest *guest;       /* const; NULL: a rank of the job */
    enum tpr_peer_state state;
    struct tpf_conn *conn;
    struct tpr_links *links;       /* conn's, or NULL */
    uint16_t wishes, wished;       /* this side's, the peer's: wire_frame */
    uint16_t tasted;               /* of a frame that went alone: offer.c */
    uint8_t crosses;               /* > 0: of its last long ones one was sent
                                      before it had read ours, see pull.c */
    uint8_t mirrored, stamps;      /* went in frames for that; longer ones */
    uint8_t copied_class;          /* of the last of ours that could go into
                                      frames at once: by its length, pace.h */
    uint32_t copied;               /* ... and ns that it took */
    size_t brief;                  /* shorter messages may go by post() at once;
                                      0 unless CONNECTED, see tpr_tx_brief() */
    size_t whole;                  /* ... and shorter than this, if their memory
                                      cannot be lent */
    size_t lend_least;             /* those from here on may be lent at once,
                                      see lent.c: by this one; or NULL */
    struct tpf_link *lend;
    struct tpr_spare *spare;       /* it greeted while ours was under way */
    bool gave_up, asked;           /* it has no way to us; was asked to try */
    uint64_t trial_since;          /* when the latest connect() was */
    uint64_t asked_at;             /* ... and when it was last asked */
    uint64_t looked_at;            /* when it was asked whether it has left;
                                      CONNECTED: its last sign of life */
    uint64_t await;                /* DOUBTED, AWAITED: until when; 0:
                                      `deadline` */
    char *death;                   /* owned: what the launcher says; or NULL */
    bool bye, bye_sent;            /* it said that it leaves, so did we, ... */
    bool all_got;                  /* ... after it had got all before that */
    tp_status end;
    const char *end_text;          /* owned; table to replace */
    uint64_t deadline;             /* of the first contact */
    uint64_t contact_at;           /* CARD: when its card will be asked for; 0:
                                      it has been */
    struct tpb_list contact_link;  /* in context->contacts while it runs */
    struct tpt_entry *entry;       /* table to change: its card and plan */
    struct tpb_list blocked;       /* pipes that wait for room */
    unsigned refused;              /* how often one was refused it */
    struct tpb_list link;          /* in context->peers */
    _Atomic(tp_pipe *) ready_made; /* atomic; table to set */
    tp_pipe *pipes, **numbered;    /* table: number > 0, as list; by number */
    uint32_t numbered_size, numbered_used;     /* table */
    tp_pipe *recent[8];            /* of these, those of the last frames */
    _Atomic(const char *) name;    /* atomic: one of the two below */
    char first_name[16], full_name[128];
    _Atomic(const char *) transport;   /* atomic: a constant; "" before */
    _Atomic(const char *) carrier; /* atomic: what that goes over, for explain;
                                      its endpoint's, or NULL */
};

/* A conn of the peer's that greeted while ours was under way, and what it said
 * in its greeting. */
struct tpr_spare {
    struct tpf_conn *conn;
    struct tpr_verdicts verdicts;
};

/* A conn that has not said who it is. */
struct tpr_stranger {
    struct tpb_list link;
    struct tpf_conn *conn;
    uint64_t deadline;
};

/* ---- the context -------------------------------------------------------- */

enum { TPR_ENDPOINTS = TPT_BACKENDS };

/* A frame that is being consumed in place, see rx.c. */
struct tpr_open_frame {
    tp_pipe *pipe;                 /* NULL: none is open */
    struct tpf_conn *conn;
    uint8_t type, flags;
    bool started;
    const unsigned char *bytes;
    uint32_t length, taken;
    struct tpr_op *spare;          /* while its reader is being told: his
                                      operation, for his read; or NULL */
    struct tpr_op *read;           /* over, its callback is due; or NULL */
    tp_message *offered;           /* while its reader is being told: what
                                      tp_pipe_read() takes from here; or NULL */
    tp_message *lent;              /* the same, if it lies at its sender, for
                                      tp_pipe_borrow(), too */
    tp_message *small;             /* the same, of a WIRE_SMALL */
};

struct tp_context {
    struct tpb_settings settings;  /* const */
    enum tp_progress_mode mode;    /* const */
    uint64_t serial;               /* const: no two contexts have the same */
    int rank, size, local_rank, local_size;    /* const */
    uint64_t spin_ns, thread_spin_ns;  /* const: polling before parking */
    bool crowded;                  /* const: more ranks than cpus */
    bool spare;                    /* const: two cpus and more per rank */
    struct tpt_topology *topology; /* const */
    struct tpt_card card;          /* const */
    struct tpt_book *book;         /* const; table to change: peers' cards */
    struct tpr_bootstrap *bootstrap;   /* const */
    struct tpb_record_section record;  /* const; its members relaxed atomic */
    pthread_mutex_t waits_lock;
    struct tpb_list waits;         /* waits_lock: tpr_wait */
    struct tpf_endpoint *endpoints[TPR_ENDPOINTS];
    uint32_t endpoint_count;       /* const */
    struct tpf_env env;
    struct tpb_record_imports imports; /* unless the record has them */
    struct tpf_channel *channels[TPF_CHANNELS];    /* const; by number */
    struct tpf_memories memories;  /* its own lock */
    struct tpr_arenas arenas;      /* likewise */
    struct tpg_gpu *gpu;           /* const */
    /* What waits for a device, which is asked now and then. */
    struct tpb_list device_pipes;  /* pipes whose next write does */
    struct tpb_list device_reads;  /* tpr_op */
    struct tpb_list device_releases;   /* skeletons that are given back */
    uint32_t copying;              /* pulls that only progress() moves */
    struct tpr_offer *free_offers; /* via next */
    /* atomic: the skeleton that is borrowed, as most programs have one at a
     * time.  Set with the token, cleared by whoever gives it back. */
    _Atomic(struct tpr_skeleton *) loan;
    struct tpb_list lent;          /* table: others that are borrowed */

    /* The token. */
    _Atomic uint32_t token;        /* atomic: 1 while held */
    _Atomic(const void *) holder;  /* atomic: whose; only equality counts */
    uint32_t depth;
    _Atomic(struct tpr_task *) tasks;  /* atomic: newest first */

    /* Sleeping. */
    int epoll;                     /* const */
    _Atomic uint32_t watches;      /* how often what that watches changed */
    struct tpf_watch wake;         /* eventfd */
    struct tpf_watch timer;        /* for those who poll(2) tp_fd() */
    bool armed;                    /* backends will wake whoever sleeps */
    bool rung;                     /* wake was rung since */
    bool dirty;                    /* something a sleeper must act on */
    uint32_t vain;                 /* sleeps in a row that ended by their time
                                      limit: one look, then sleep longer */
    _Atomic bool fd_used;          /* atomic: tp_fd() was called */
    struct tpr_poller poller;
    _Atomic uint32_t driving;      /* atomic: a caller claims the driving */
    _Atomic uint32_t turn;         /* futex: bumped for sleeping callers */
    _Atomic uint32_t watchers;     /* atomic: threads that look on */
    _Atomic uint32_t sleepers;     /* atomic: callers, and TPR_POLLED */
    uint32_t passes, heard;        /* so far; messages that were read */
    uint64_t tick;                 /* tpb_tick() when epoll was asked last */
    uint64_t looked, timers_due;   /* when epoll was asked last; peers' next */
    struct tpr_crowd crowd;
    struct tpr_patience patience;
    bool ask_all;                  /* a descriptor told something: the next
                                      pass asks endpoints without conns, too */

    struct tpr_thread thread;      /* the context's own */
    _Atomic uint32_t caller_parked;    /* atomic */

    /* Callbacks. */
    struct tpb_list done;          /* tpr_op, in the order they ended */
    bool served;                   /* a waiting caller's operation ended, or a
                                      frame was left to the next pass, */
    bool news;                     /* ... or a callback ran, see token.c */
    uint64_t delivered;            /* relaxed atomic: callbacks run so far, */
    uint64_t delivered_before;     /* and before this pass, or glance */
    struct tpb_list spare_chunks;  /* tpr_chunk: for what is set aside next */
    uint32_t spare_bytes;          /* their room */
    struct tpr_op *free_ops;       /* via link.next */
    uint32_t free_op_count;
    _Atomic uint32_t ops;          /* atomic: with those */
    struct tpr_open_frame open;
    struct tpf_conn *serving;      /* whose frames are being looked at */
    struct tpf_conn *hot;          /* whose were last, if it can be glanced at;
                                      or NULL */
    struct tpf_conn *giver;        /* crowded: of the last long message; or
                                      NULL */
    uint32_t glances;              /* that found some since the last pass */
    uint32_t row;                  /* crowded: waits that ended with such, since
                                      a pass that found some */
    struct tpb_list any;           /* tpr_op of tp_read_descriptor_any() */
    bool listens;                  /* ... has been called */
    bool mourns;                   /* the launcher said that a peer died */
    struct tpb_list unread;        /* pipes with a backlog and no reader */
    struct tpb_list late;          /* pipes that keep DONEs back */

    /* Peers. */
    pthread_mutex_t table_lock;
    struct tpr_peer **table;       /* table: open addressing by rank */
    uint32_t table_size, table_used;
    struct tpb_list peers;         /* table: all */
    struct tpb_list strangers;     /* tpr_stranger */
    struct tpb_list graveyard;     /* conns to disconnect after the pass */
    uint32_t polled;               /* conns of TPF_POLLED backends */
    struct tpb_list contacts;      /* peers whose deadline runs */

    _Atomic(struct tpr_desk *) desk;   /* atomic; table to set; NULL: no peer
                                          from outside */

    struct tpb_list wait_link;     /* in a list of wait.c's */

    bool closing;                  /* in tp_finalize() ... */
    bool flushed;                  /* ... which got all of it off */
    bool closed;                   /* ... and nothing new is accepted */
    bool explain;                  /* const */
};

/* ---- token.c ------------------------------------------------------------- */

/* Thread-local state of ours is asked for several times per message: at a fixed
 * place of the thread's block, not through a call of the dynamic linker.  It
 * stays small, for a library that is loaded late finds little room there. */
#define TPR_TLS __attribute__((tls_model("initial-exec")))
/* What tells threads apart: an address of this one's own, which is in a
 * register on these.  (gcc says so of any processor, and then refuses some.) */
#if defined(__has_builtin) && (defined(__x86_64__) || defined(__aarch64__))
#if __has_builtin(__builtin_thread_pointer)
#define TPR_ME __builtin_thread_pointer()
#endif
#endif
extern _Thread_local char tpr_me TPR_TLS;
#ifndef TPR_ME
#define TPR_ME ((void *)&tpr_me)
#endif
static inline bool tpr_holds(tp_context *context)
{
    /* Only this thread stores this thread's address there. */
    return atomic_load_explicit(&context->holder, memory_order_relaxed)
           == TPR_ME;
}
bool tpr_enter_token(tp_context *context);
void tpr_leave_token(tp_context *context);
/* Takes the token if it is free or ours.  Pair with tpr_leave(). */
static inline bool tpr_enter(tp_context *context)
{
    if (!tpr_holds(context))
        return tpr_enter_token(context);
    context->depth++;
    return true;
}
/* The same for calls whose order counts.  False also while another thread's
 * tasks wait for a callback of ours to end: they were called before, so this
 * call has to become a task behind them. */
static inline bool tpr_enter_in_turn(tp_context *context)
{
    if (tpr_holds(context)
        && atomic_load_explicit(&context->tasks, memory_order_relaxed) != NULL)
        return false;
    return tpr_enter(context);
}
static inline void tpr_leave(tp_context *context)
{
    if (context->depth > 1)
        context->depth--;
    else
        tpr_leave_token(context);
}
/* Leaves a task for whoever has, or next takes, the token; any thread. */
void tpr_submit(tp_context *context, struct tpr_task *task);
/* Runs those that were left; token. */
void tpr_run_tasks_now(tp_context *context);
static inline void tpr_run_tasks(tp_context *context)
{
    if (TPB_UNLIKELY(atomic_load_explicit(&context->tasks,
                                          memory_order_relaxed) != NULL))
        tpr_run_tasks_now(context);
}
/* Lets go of the token, and no more: the tasks are to be looked at next. */
void tpr_give_token(tp_context *context);
/* Something changed that a sleeper must hear of; token. */
void tpr_touch(tp_context *context);
/* In `sleepers`: an event loop is to hear of callbacks. */
#define TPR_POLLED UINT32_C(0x80000000)
/* Lets sleeping callers look again; token. */
void tpr_next_turn(tp_context *context);
static inline void tpr_wake_sleepers(tp_context *context)
{
    if (TPB_UNLIKELY(atomic_load(&context->sleepers) != 0))
        tpr_next_turn(context);
}
void tpr_tell_sleepers(tp_context *context);
/* The same after a callback: an event loop hears of it, too. */
void tpr_tell(tp_context *context);

/* ---- progress.c --------------------------------------------------------- */

/* One round over everything; token.  Returns whether anything moved. */
bool tpr_pass(tp_context *context);
enum { TPR_EVENTS = 16 };          /* that are asked for at a time */
/* Polls what epoll watches; token. */
bool tpr_poll_watches(tp_context *context);
/* The same of what epoll_wait() has said, if it watches what it watched then
 * (context->watches). */
bool tpr_watches_ready(tp_context *context, const struct epoll_event *events,
                       int count);
/* Token.  Whether all backends will wake who sleeps; until that is undone. */
bool tpr_arm(tp_context *context);
void tpr_disarm(tp_context *context);
/* Both with the token, which tpr_park_begin() gives up on true so that the
 * caller can sleep; on false there is something to do. */
bool tpr_park_begin(tp_context *context);
int tpr_park_timeout(tp_context *context, uint64_t deadline);   /* ms or -1 */
tp_status tpr_progress_init(tp_context *context, struct tpb_error *error);
void tpr_progress_fini(tp_context *context);

/* ---- wait.c ------------------------------------------------------------- */

bool tpr_is_quiet(tp_context *context); /* nothing begun needs a pass; token */
/* The context begins, and ends: what threads know of it is of use. */
void tpr_wait_init(tp_context *context);
void tpr_wait_fini(tp_context *context);
/* This thread has made the context: what completes is its own. */
void tpr_progress_mine(const tp_context *context);

/* ---- poller.c ----------------------------------------------------------- */

void tpr_poller_init(tp_context *context);
void tpr_poller_fini(tp_context *context);
/* A callback has run; token. */
void tpr_poller_ring(tp_context *context);
/* tp_progress() begins, and ends with what that returned; token.  Callbacks in
 * between need no bell, and those before it were heard of. */
bool tpr_poller_begin(tp_context *context);
void tpr_poller_end(tp_context *context, bool rung);
/* ... or has no token: the callbacks so far were heard of. */
void tpr_poller_away(tp_context *context);

/* ---- op.c --------------------------------------------------------------- */

struct tpr_op *tpr_op_new(tp_context *context);        /* token; or NULL */
struct tpr_op *tpr_op_alloc(tp_context *context);      /* any thread */
/* As tpr_op_new(), for one that nothing is asked of but its callback, or its
 * caller to be told: what begins as zero is not cleared (tpr_op_clear()).  Of
 * those that are kept the context is set, sync and work are NULL, and nothing
 * is borrowed. */
static inline struct tpr_op *tpr_op_bare(tp_context *context)
{
    struct tpr_op *op = context->free_ops;

    if (TPB_UNLIKELY(op == NULL))
        return tpr_op_alloc(context);
    context->free_ops = (struct tpr_op *)(void *)op->link.next;
    context->free_op_count--;
    return op;
}
void tpr_ops_fini(tp_context *context);
enum { TPR_OPS_KEPT = 1024 };
/* More than these are not kept: calls that find the token taken allocate, and
 * would else feed the pool for ever. */
static inline void tpr_op_free(tp_context *context, struct tpr_op *op)
{
    if (TPB_UNLIKELY(context->free_op_count >= TPR_OPS_KEPT)) {
        atomic_fetch_sub(&context->ops, 1);
        tpb_free(op);
        return;
    }
    op->link.next = (struct tpb_list *)(void *)context->free_ops;
    context->free_ops = op;
    context->free_op_count++;
}
/* The operation has ended: its callback is due, or its waiter is told. */
void tpr_op_end(struct tpr_op *op, tp_status status);
/* What the callback of such an operation needs; it is not in a list yet. */
static inline void tpr_op_bare_set(struct tpr_op *op, enum tpr_op_kind kind,
                                   tp_pipe *pipe, tp_message *message,
                                   tp_message_fn *done, void *arg)
{
    op->kind = kind;
    op->status = TP_OK;
    op->pipe = pipe;
    op->message = message;
    op->done = done;
    op->arg = arg;
}
/* A callback has run: tells whoever waits for one; token.  At once: the next
 * one may take long, or wait for what he does.  Pairs with drive_sleep(). */
static inline void tpr_op_told(tp_context *context)
{
    __atomic_store_n(&context->delivered, context->delivered + 1,
                     __ATOMIC_RELEASE);
    context->news = true;
    if (TPB_UNLIKELY(atomic_load(&context->sleepers) != 0))
        tpr_tell(context);
}
/* Runs the callbacks that are due; token.  Returns how many. */
int tpr_dispatch(tp_context *context);

/* ---- peer.c ------------------------------------------------------------- */

struct tpr_peer *tpr_peer_get(tp_context *context, int rank);  /* or NULL */
/* NULL: nobody has asked for it. */
struct tpr_peer *tpr_peer_find(tp_context *context, int rank);
/* What was decided for it; its card is there. */
static inline const struct tpt_plan *tpr_peer_plan(const struct tpr_peer *peer)
{
    return tpt_entry_plan(peer->entry);
}
/* A trial failed, see tpt_plan_demote(); the peer's did not.  Lack of memory
 * ends the peer: false. */
bool tpr_peer_demote(struct tpr_peer *peer, const char *name,
                     const char *evidence);
bool tpr_peer_restore(struct tpr_peer *peer, const char *name);
/* One side's trial of a backend; `words` NULL: it passed. */
void tpr_peer_tried(struct tpr_peer *peer, enum tpt_side side,
                    const char *name, const char *words);
/* A peer that is not in the table of ranks; or NULL.  Under table_lock. */
struct tpr_peer *tpr_peer_new(tp_context *context, int rank);
void tpr_peer_timer(struct tpr_peer *peer);            /* first contact */
/* Before the first deadline that tpr_peer_timers() looks at is set: what was
 * before is not between two looks. */
void tpr_timers_begin(tp_context *context);
tp_pipe *tpr_pipe_get(struct tpr_peer *peer, unsigned number); /* or NULL */
void tpr_peer_contact(struct tpr_peer *peer, bool now);   /* token; or soon */
void tpr_peer_next(struct tpr_peer *peer);             /* try a candidate */
/* Its conn, which was not greeted yet, has failed: the next candidate. */
void tpr_peer_failed(struct tpr_peer *peer, const char *text);
void tpr_peer_connected(struct tpr_peer *peer);
/* Use of a pipe, by the token's holder, to write or to read: starts the
 * contact, or tells the pipe that its peer has ended. */
void tpr_peer_use(tp_pipe *pipe, bool writes);
/* How long a sleep may last before tpr_peer_timers() is due. */
int tpr_peer_timers_ms(const tp_context *context);
void tpr_peer_end(struct tpr_peer *peer, tp_status status, const char *text);
/* In tp_finalize(): nobody reads any more; what comes is thrown away. */
void tpr_peer_stop_reading(struct tpr_peer *peer);
/* ... nobody writes any more, on new pipes neither: the goodbye is said. */
void tpr_peer_stop_writing(struct tpr_peer *peer);
tp_status tpr_peer_meet(struct tpr_peer *peer, const void *blob,
                        size_t length, struct tpb_error *error);
void tpr_peer_timers(tp_context *context, uint64_t now);
void tpr_peer_free(struct tpr_peer *peer);
void tpr_card_arrived(tp_context *context, int rank, tp_status status,
                      const void *blob, size_t length, const char *text);

/* ---- absent.c ----------------------------------------------------------- */

/* No backend of the plan is possible.  Ends the peer, at once or after the
 * bootstrap has told whether it has left, or waits for it to come. */
void tpr_peer_give_up(struct tpr_peer *peer);
/* The same of a peer that is there, and will not have left: ends it. */
void tpr_peer_unreachable(struct tpr_peer *peer);
/* Is its process one of this host, and over? */
bool tpr_peer_is_dead(const struct tpr_peer *peer);
/* Sees to a peer to which no way leads; false if it is none. */
bool tpr_absent_timer(struct tpr_peer *peer, uint64_t now);
/* There is a frame of somebody, and somebody is mourned. */
void tpr_absent_sign(struct tpf_conn *conn);
/* Asks one that is slow to reach to try as well. */
void tpr_peer_hurry(struct tpr_peer *peer, uint64_t now);
/* The launcher says that a rank ended badly; any thread. */
void tpr_rank_died(tp_context *context, int rank, const char *how);
/* The answer to the bootstrap's left(); any thread. */
void tpr_rank_left(tp_context *context, int rank, enum tpr_left left);
/* From now on ranks that this one has not heard of may ask it to connect. */
void tpr_peer_listen(tp_context *context);
/* A peer says, by way of the bootstrap, that it has trouble to reach this rank
 * or has given up, and that this rank shall try; any thread. */
void tpr_peer_asks(tp_context *context, int rank, bool gave_up);

/* ---- hello.c ------------------------------------------------------------ */

/* The peer's spare conn becomes its conn; false if there is none. */
bool tpr_hello_use_spare(struct tpr_peer *peer);
void tpr_hello_drop_spare(struct tpr_peer *peer);
/* A conn begins; every conn that did is buried once. */
void tpr_conn_begin(tp_context *context, struct tpf_conn *conn);
void tpr_bury(tp_context *context, struct tpf_conn *conn);
void tpr_bury_now(tp_context *context);
extern const struct tpf_upcalls tpr_upcalls;
bool tpr_hello_send(struct tpr_peer *peer);
void tpr_hello_frame(tp_context *context, struct tpf_conn *conn,
                     const void *frame, size_t size);

/* ---- guest.c: what the others must know of peers outside the job --------- */

void tpr_guest_contact(struct tpr_peer *peer);         /* token */
void tpr_guest_connected(struct tpr_peer *peer);
void tpr_guest_ended(struct tpr_peer *peer);
void tpr_guest_closed(struct tpr_peer *peer);          /* by this side */
void tpr_guest_late(struct tpr_peer *peer);            /* its deadline */
void tpr_guest_free(struct tpr_guest *guest);
/* Is it one that nobody has accepted?  It is turned away, and that is all. */
bool tpr_guest_comes(const struct tpr_peer *peer);
/* What it is called; its card is there. */
void tpr_guest_name(struct tpr_peer *peer, const struct tpt_card *card,
                    char *name, size_t size);
/* Who was promised to be let in with that cookie; or NULL. */
struct tpr_peer *tpr_guest_find(tp_context *context, const uint8_t cookie[16]);
const uint8_t *tpr_guest_ticket(const struct tpr_peer *peer);
/* In tp_finalize(): lets nobody in any more; then frees all of it. */
void tpr_desk_close(tp_context *context);
void tpr_desk_fini(tp_context *context);

/* ---- explain.c ----------------------------------------------------------- */

/* The plan as a table, to standard error. */
void tpr_explain_print(const struct tpr_peer *peer);
/* Why nothing connects the pair; appended. */
void tpr_explain_refusal(const struct tpr_peer *peer, struct tpb_text *text);

/* ---- record.c: what others may know of this rank ------------------------- */

void tpr_record_open(tp_context *context);
void tpr_record_close(tp_context *context);
void tpr_record_phase(tp_context *context, uint32_t phase);
/* Gives a new pipe its counters; under table_lock. */
void tpr_record_pipe(tp_pipe *pipe);
/* Nobody need be told of it any more: others may have its place.  Token, or
 * nobody knows the pipe. */
void tpr_record_drop(tp_pipe *pipe);
void tpr_record_stats(const tp_pipe *pipe, struct tp_stats *stats);
void tpr_record_transport(tp_pipe *pipe);
/* A caller is about to sleep (NULL: in tp_wait()), and does not any more.  The
 * wait is the caller's, in between ours. */
void tpr_record_wait(tp_context *context, struct tpr_wait *wait,
                     const struct tpr_sync *sync);
void tpr_record_awake(tp_context *context, struct tpr_wait *wait);

/* ---- pipe.c, context.c -------------------------------------------------- */

void tpr_memory_fini(tp_context *context);
tp_status tpr_call_write(tp_pipe *pipe, tp_message *message,
                         tp_message_fn *done, void *arg,
                         struct tpr_sync *sync);
tp_status tpr_call_descriptor(tp_context *context, tp_pipe *pipe,
                              tp_message_fn *arrived, void *arg,
                              struct tpr_sync *sync);
tp_status tpr_call_read(tp_pipe *pipe, tp_message *skeleton, bool borrow,
                        tp_message_fn *done, void *arg,
                        struct tpr_sync *sync);
void tpr_pipe_close(tp_pipe *pipe, const char *why);
/* The peer closed what this side has closed already: it pulls no more. */
void tpr_pipe_both_closed(tp_pipe *pipe);
void tpr_pipe_fail(tp_pipe *pipe, const char *text);
/* A call was refused, and the pipe goes on; any thread, the first counts. */
void tpr_pipe_refuse(tp_pipe *pipe, const char *text);
void tpr_pipe_fini(tp_pipe *pipe);
/* Closed, and its peer ended: has it neither an operation left nor a loan? */
bool tpr_pipe_is_over(const tp_pipe *pipe);
/* Of a message to be written; and what tp_pipe_error() says of one that is not;
 * any thread. */
bool tpr_message_valid(const tp_message *message);
void tpr_message_tell(tp_pipe *pipe, const tp_message *message);
/* Of a valid one, or before it is known: is it one payload and nothing else? */
static inline bool tpr_message_plain(const tp_message *message)
{
    return message->payload_count == 1 && message->tensor_count == 0
           && message->metadata_length == 0 && message->payloads != NULL
           && message->payloads[0].metadata_length == 0;
}

/* What says in a word where a tensor of the host's memory is for, which is
 * that or any device; 0 of any other. */
static inline unsigned tpr_tensor_place(const tp_tensor *tensor)
{
    if (tensor->device.type != TP_DEVICE_CPU || tensor->device.index != 0
        || tensor->target.index != 0)
        return 0;
    return tensor->target.type == TP_DEVICE_ANY   ? WIRE_TENSOR
           : tensor->target.type == TP_DEVICE_CPU ? WIRE_TENSOR | WIRE_HOST
                                                  : 0;
}

/* ... all that there is to say of a message of one such tensor; 0 of any other
 * message. */
static inline unsigned tpr_tensor_flags(const tp_message *message)
{
    unsigned place;

    if (message->tensor_count != 1 || message->payload_count != 0
        || message->metadata_length != 0 || message->tensors == NULL
        || message->tensors[0].metadata_length != 0)
        return 0;
    place = tpr_tensor_place(&message->tensors[0]);
    return place == 0 ? 0 : WIRE_SHORT | place;
}

#define TPR_COUNT(field, n) \
    __atomic_store_n(&(field), (field) + (uint64_t)(n), __ATOMIC_RELAXED)

/* A message was read. */
static inline void tpr_count_received(tp_pipe *pipe, uint64_t length)
{
    struct tp_stats *stats = &pipe->record->stats;

    TPR_COUNT(stats->messages_received, 1);
    TPR_COUNT(stats->bytes_received, length);
    pipe->context->heard++;
}

#endif
