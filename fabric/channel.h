/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The contract between the core (runtime/) and the channels (fabric/NAME/,
 * gpu/NAME/).
 *
 * A channel moves one big buffer without cutting it into frames.  The sender
 * describes where the buffer lies; the description (a few bytes, the "source")
 * travels in the message's descriptor over the pair's transport; the receiver,
 * who by then has memory for it, pulls.  When all buffers of a message are
 * pulled the receiver tells the sender, whose memory is then its own again.
 * A channel that turns out closed in mid-buffer loses nothing: the receiver
 * asks for the rest, and it comes in frames.
 *
 * Objects.  A kind is the code (const).  A channel is one kind opened in one
 * context.  A link is a channel's view of one peer, made when the two are
 * connected; making it is the trial.  A pull is one buffer on its way.  All
 * but the kind are allocated by the core, zeroed, at the size the kind names,
 * and begin with the common struct below.
 *
 * Threads.  As in backend.h: one thread at a time, different ones over time.
 *
 * Blocking.  No function blocks; those that copy bytes by themselves do less
 * than two TPF_STRIDEs at a time.
 *
 * Trust.  A source comes from another process: it is checked like any frame.
 */
#ifndef TPF_CHANNEL_H
#define TPF_CHANNEL_H

#include "fabric/backend.h"

enum {
    TPF_CHANNELS = 8,              /* the most kinds; their numbers are below */
    TPF_SOURCE = 128,              /* the most bytes of a source */
    TPF_PULL = 384,                /* the most a kind's pull_size may be */
    TPF_CALL = 64,                 /* the most bytes of a call */
    TPF_STRIDE = 512 * 1024
};

/* On the wire and in cards; never reused.  0 is "in the frames". */
enum tpf_channel_number {
    TPF_CHANNEL_NONE,
    TPF_CHANNEL_MAP,               /* memory of tp_alloc(), mapped */
    TPF_CHANNEL_CMA,               /* process_vm_readv(2) */
    TPF_CHANNEL_RMA,               /* the transport's own remote read */
    TPF_CHANNEL_CUDA_IPC,
    TPF_CHANNEL_CUDA_GDR,
    TPF_CHANNEL_CUDA_STAGED,
    TPF_CHANNEL_CUDA_HOST
};

struct tpf_channel_kind;

struct tpf_channel {
    const struct tpf_channel_kind *kind;
    struct tpf_env *env;
};

struct tpf_link {
    const struct tpf_channel_kind *kind;
    struct tpf_channel *channel;
    struct tpf_conn *conn;         /* the pair's transport; outlives the link */
    const struct tpt_card *card;   /* the peer's; NULL but for link() */
};

/* One side's memory, as the user named it. */
struct tpf_buffer {
    void *data;
    size_t length;
    tp_device device;
    tp_device target;              /* where the sender wants it; ANY: nowhere */
    void *stream;                  /* CUstream; NULL for CPU memory */
};

/* One buffer on its way to the receiver. */
struct tpf_pull {
    struct tpf_link *link;
    struct tpf_buffer to;          /* length: what is to come */
    unsigned char source[TPF_SOURCE];
    uint8_t source_length;
    bool alone;                    /* it is not of a stream: its sender had
                                      little or nothing else under way;
                                      sender: as this one was written */
    bool shared;                   /* its sender has found that it pays if he
                                      copies, too, though he sends others */
    bool later;                    /* it had to wait for its turn: progress()
                                      moves it, nothing does at once */
    size_t moved;                  /* bytes at the front that surely are there;
                                      what is missing is asked for from here */
    struct tpb_list node;          /* the channel's */
};

struct tpf_channel_kind {
    const char *name;              /* "cma" */
    enum tpf_channel_number number;
    enum tpt_reach reach;
    bool devices;                  /* reads from and writes to devices' memory;
                                      else buffers of the CPU only come */
    bool by_device;                /* a device moves its pulls, not the CPU: the
                                      kind counts them in env->on_devices */
    bool within;                   /* also from a process to itself */
    bool exports;                  /* takes of a device's memory only what other
                                      processes can open: the core copies what
                                      they cannot, see tpg_work_outbox() */
    const char *over;              /* transports it needs, as "ofi:verbs"; NULL
                                      for any */
    enum tpt_nic_kind nic_kind;    /* as the backend's */
    uint32_t latency_ns;           /* the built-in model, for the card: what a
                                      buffer costs over a frame's latency */
    uint32_t megabytes;            /* MB/s */
    size_t channel_size, link_size, pull_size;

    /* As the backend's.  `open` after TP_OK from `probe`; `close` always, if
     * there is one. */
    tp_status (*probe)(const struct tpf_env *env, struct tpb_error *error);
    tp_status (*open)(struct tpf_channel *channel, struct tpb_error *error);
    void (*close)(struct tpf_channel *channel);    /* all links are gone */
    /* What a peer needs for its trial; may be NULL. */
    size_t (*address)(struct tpf_channel *channel, void *buffer,
                      size_t capacity);

    /*
     * The trial: may this process pull from that peer?  `address` is what the
     * peer's card says of this channel (its bytes are not trusted).  Takes
     * some ten microseconds.  Refusals say which right is missing and how to
     * give it.  The link is closed by unlink(), if there is one, in any case,
     * exactly once, after its pulls have ended and its descriptions are
     * forgotten.
     */
    tp_status (*link)(struct tpf_link *link, const void *address,
                      size_t length, struct tpb_error *error);
    void (*unlink)(struct tpf_link *link);

    /*
     * Sender.  Writes the buffer's source and returns its length, at most
     * TPF_SOURCE; 0 if this buffer does not go this way (then the next channel
     * is asked, and at last it goes in frames).  *hold, NULL before, is the
     * kind's to use, and is given back with forget() when the receiver has
     * pulled, or never will.  Called on a link whose own trial failed, too, if
     * the peer's succeeded; and on one whose conn has ended, until failed() has
     * told so: then the write is to end for that reason, and for no other.
     */
    size_t (*describe)(struct tpf_link *link, const struct tpf_buffer *buffer,
                       unsigned char source[TPF_SOURCE], void **hold);
    void (*forget)(struct tpf_link *link, void *hold);     /* may be NULL */

    /*
     * Receiver.  Starts to pull.  REFUSED, at once or by the upcall: `moved`
     * is right, and `to` is not touched any more; `error` says why, and the
     * channel carries nothing more for this pair.  PASS: the same for this
     * buffer alone.
     */
    enum tpf_progress (*pull)(struct tpf_pull *pull, struct tpb_error *error);

    /*
     * The sender may copy, too, while the receiver does: all three or none.
     *
     * call(): receiver, before pull().  Writes words for the sender and returns
     * their length; 0: he does it alone.
     *
     * help(): sender.  The words have come.  `help` is of pull_size and zeroed
     * but for its link and for `to`, which is the memory that was described.
     * If there is more to do it is counted in env->helping, and progress() does
     * it, until all is done or leave().  False: nonsense.
     */
    size_t (*call)(struct tpf_pull *pull, unsigned char words[TPF_CALL]);
    bool (*help)(struct tpf_pull *help, const unsigned char *words,
                 size_t length);
    void (*leave)(struct tpf_pull *help);

    /*
     * The receiver wants it no more.  True: it is over, `to` is not touched any
     * more and no upcall comes.  False: it cannot be stopped, and the upcall
     * will come.
     */
    bool (*cancel)(struct tpf_pull *pull);

    /*
     * The two part.  Every pull of the link is over when this returns: `to` is
     * not touched any more, and no upcall comes.  May wait for what a device
     * of ours is at.  NULL: so it is after the conn's disconnect() anyway, or
     * cancel() is always true.
     */
    void (*stop)(struct tpf_link *link);

    /* Moves its pulls on; called as long as there are some, and before the
     * process sleeps.  Returns whether anything moved.  May be NULL if all
     * progress comes from the transport or a watch. */
    bool (*progress)(struct tpf_channel *channel);

    /*
     * Receiver, may be NULL: the buffer in place, for tp_pipe_borrow(), with
     * its device; what is at `data` must not be written.  REFUSED: it has to
     * be pulled.  Never MORE.  unmap() gives it back; the link may be gone by
     * then, and memory of a device is in nobody's use any more.
     */
    enum tpf_progress (*map)(struct tpf_link *link, const void *source,
                             size_t source_length, size_t length,
                             struct tpf_buffer *buffer, void **hold,
                             struct tpb_error *error);
    void (*unmap)(struct tpf_channel *channel, void *hold);

    /* A block of tp_alloc() is freed; may be NULL.  Before its memory is. */
    void (*freed)(struct tpf_channel *channel, uint64_t id);

    /* Something that the peer's side of the link sent with the transport's
     * pass(); may be NULL.  The descriptor is the kind's to close, -1 for
     * none.  False: nonsense, the peer breaks the protocol. */
    bool (*note)(struct tpf_link *link, const void *note, size_t length,
                 int fd);
};

/* Every kind of this build, best first where the model does not tell. */
extern const struct tpf_channel_kind *const tpf_channel_kinds[];

/* ---- for kinds that pass descriptors to the peer ------------------------- */

/* For the trial: can the pair's transport do so?  NOT_SUPPORTED with words. */
tp_status tpf_link_passes(const struct tpf_link *link,
                          struct tpb_error *error);
/* What has been passed comes to note() now, if it has not yet.  False: some of
 * it was nonsense, for which the two have parted: call(), pull(), help() or
 * map() that looks begins nothing then, for what it was called for is over. */
bool tpf_link_notes(const struct tpf_link *link);

/* ---- for kinds whose bytes the CPU moves, a stride at a time ------------- */

/* Moves the next stride of a pull. */
typedef enum tpf_progress tpf_move_fn(struct tpf_pull *pull,
                                      struct tpb_error *error);

/* The first stride, at once unless it is `later`; more of it joins `pulls`. */
enum tpf_progress tpf_strides_start(struct tpb_list *pulls,
                                    struct tpf_pull *pull, tpf_move_fn *move,
                                    struct tpb_error *error);
/* Pulls that end, each with its upcall, until a stride has been moved; or a
 * stride of a long one.  They take turns.  For the kind's progress(). */
bool tpf_strides_progress(struct tpf_channel *channel, struct tpb_list *pulls,
                          tpf_move_fn *move);
/* For the kind's cancel(). */
bool tpf_strides_cancel(struct tpf_pull *pull);

/* The length of a pull's next stride. */
static inline size_t tpf_stride(const struct tpf_pull *pull)
{
    size_t left = pull->to.length - pull->moved;

    return left < TPF_STRIDE ? left : TPF_STRIDE;
}

#endif
