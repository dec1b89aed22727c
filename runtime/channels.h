/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Buffers that go past the frames: by a channel, lent, or between devices.  One
 * part per source file, as in runtime/core.h, whose types these work on.
 */
#ifndef TPR_CHANNELS_H
#define TPR_CHANNELS_H

#include "runtime/core.h"

/* A buffer that goes by a channel, at its sender or its receiver.  Comes from
 * context->free_offers. */
struct tpr_offer {
    struct tpr_offer *next;        /* of the message, in order of buffers */
    uint32_t buffer;               /* payloads first, then tensors */
    uint8_t channel;               /* enum tpf_channel_number */
    uint8_t source_length;
    bool asked;                    /* it goes in frames after all ... */
    uint64_t at;                   /* ... from here on */
    uint64_t length;
    struct tpr_op *op;
    struct tpb_list link;          /* in pipe->pushes; in links->pulls, or in
                                      pipe->turns before */
    struct tpr_offer *found;       /* the message's first one: which of them was
                                      last; or NULL */

    /* At the sender. */
    struct tpf_link *to;           /* NULL: forgotten */
    void *hold;
    bool helping;                  /* copies, too: `pull` is in use */

    /* At the receiver. */
    bool waiting;                  /* in pipe->turns */
    bool pulling;                  /* the pulled upcall is to come */
    bool borrowed;                 /* `hold` is mapped */

    /* From here on it does not begin as zero. */
    unsigned char source[TPF_SOURCE];
    _Alignas(16) unsigned char pull[TPF_PULL]; /* a struct tpf_pull */
};
enum { TPR_OFFER_ZEROED = offsetof(struct tpr_offer, source) };

/* ---- link.c: the channels of a context and of a pair --------------------- */

void tpr_channels_open(tp_context *context);
void tpr_channels_close(tp_context *context);
/* A tp_alloc() block is gone; token. */
void tpr_channels_freed(tp_context *context, uint64_t id);
/* Pulls that only the CPU moves on.  Returns whether anything moved. */
bool tpr_channels_progress(tp_context *context);
/* The passed upcall. */
void tpr_links_note(struct tpf_conn *conn, const void *note, size_t length,
                    int fd);
/* With a new conn: makes the links, which are the trials of this side.  Lack of
 * memory leaves it without links. */
void tpr_links_open(struct tpr_peer *peer);
/* The same with a conn to oneself, which has no greeting. */
void tpr_links_own(struct tpr_peer *peer);
/* After the conn's disconnect(). */
void tpr_links_free(struct tpr_links *links);
/* What this side's trials said, for the hello; what the peer's said. */
void tpr_links_tell(const struct tpr_peer *peer, struct tpr_verdicts *told);
void tpr_links_hear(struct tpr_peer *peer, const struct tpr_verdicts *heard);
/* The transports that failed here, appended to what is told; and those that
 * failed there, of what was heard. */
void tpr_trials_tell(const struct tpr_peer *peer, struct tpr_verdicts *told);
void tpr_trials_hear(struct tpr_peer *peer, const char *words, size_t length);
/* A peer's words, cut to the room there is and fit to be shown. */
void tpr_links_words(char *to, size_t room, const char *from, size_t length);
/* The peer's pull was refused: that channel carries nothing more. */
void tpr_links_demote(struct tpr_peer *peer, unsigned channel,
                      const char *words);

/* ---- sizes.c: which buffers go by which link ----------------------------- */

/* Which links of a connected peer are offered to, in which order and from
 * which sizes on: with the plan and the verdicts as they are. */
void tpr_links_sizes(struct tpr_peer *peer);
/* Without a contract small buffers to oneself go in frames, so that a rank may
 * send some before it reads. */
void tpr_links_spare_small(struct tpr_links *links);
/* The size from which on such a buffer may go by this link. */
size_t tpr_link_from(const struct tpr_links *links,
                     const struct tpr_link *link,
                     const struct tpf_buffer *buffer);
/* Of several links for memory of devices the one that comes first for that
 * buffer; NULL: there is no choice. */
const struct tpr_link *tpr_links_first(const struct tpr_links *links,
                                       const struct tpf_buffer *buffer);

/* ---- offer.c: buffers that go by channels, at the sender ----------------- */

struct tpr_offer *tpr_offer_new(tp_context *context);  /* or NULL */
void tpr_offer_free(tp_context *context, struct tpr_offer *offer);
void tpr_offers_fini(tp_context *context);
/* That of a buffer, of a message whose first one is given, or NULL; NULL if it
 * has none.  They are mostly asked for in order, and there may be a million. */
struct tpr_offer *tpr_offer_of(struct tpr_offer *first, uint32_t buffer);
/* The number of the next message with offers, of which there were so many. */
static inline uint32_t tpr_offer_number(uint32_t *offers)
{
    if (TPB_UNLIKELY(*offers == WIRE_ALL))
        *offers = 0;
    return (*offers)++;
}
/* Copies for what the peer could not open, before the write is weighed.  False:
 * not there yet. */
bool tpr_offer_outbox(tp_pipe *pipe, struct tpr_op *op);
/* Of a write whose first frame is due: settles which buffers go how. */
void tpr_offer_weigh(tp_pipe *pipe, struct tpr_op *op);
/* A message that fits a frame and comes alone: shall it go as its reader wishes
 * for, or so that he can measure what it takes? */
bool tpr_offer_tastes(const tp_pipe *pipe, size_t length);
/* The length by which the way of a message that comes alone is chosen: of its
 * longest buffer, for what a channel costs it costs for each. */
uint64_t tpr_offer_longest(const tp_message *message);
/* The pace of messages of that length which can be lent, and is to be sent one
 * of: its way may be the one of a stream that it follows.  NULL: nothing is
 * measured, they are. */
struct tpr_pace *tpr_offer_lends(const struct tpr_peer *peer, uint64_t length);
/* Such a write is the first that comes alone, or follows: is it of a stream?
 * `peer`: who may want to know when it was written, or NULL. */
bool tpr_offer_counts(struct tpr_peer *peer, struct tpr_pace *pace,
                      struct tpr_op *op, bool first);
/* One that was written by that clock has gone at once, for what it says of
 * those that come from there. */
void tpr_offer_copied(struct tpr_peer *peer, const struct tpr_op *op);
/* A write whose pace is measured has ended well. */
void tpr_offer_paced(tp_pipe *pipe, const struct tpr_op *op);
/* The receiver has what it wanted, or will never have it. */
void tpr_offer_forget(struct tpr_op *op);
/* DONE and ASK; false: nonsense. */
bool tpr_offer_done(tp_pipe *pipe, const struct wire_about *about);
bool tpr_offer_asked(tp_pipe *pipe, const struct wire_about *about,
                     const char *words, size_t length);
/* CALL; the same. */
bool tpr_offer_called(tp_pipe *pipe, const struct wire_about *about,
                      const unsigned char *words, size_t length);

/* ---- pull.c: the same at the receiver ------------------------------------ */

/* A message is shown to its reader, and one that came alone is asked for: it
 * counts for how the next ones shall come, if its reader was there already. */
void tpr_pull_offered(tp_pipe *pipe);
/* ... and one of a stream, for how what is sent there shall go. */
void tpr_pull_leads(const tp_pipe *pipe);
static inline void tpr_pull_show(tp_pipe *pipe)
{
    pipe->shown = 0;
    if (TPB_UNLIKELY((pipe->flags & WIRE_ALONE) != 0))
        tpr_pull_offered(pipe);
    else if (pipe->skeleton->data_length >= TPR_LEAD_LEAST)
        tpr_pull_leads(pipe);
}
void tpr_pull_clock(tp_pipe *pipe, struct tpr_op *op);
/* Starts all pulls of a read.  False: the pipe has ended, and the read too. */
bool tpr_pull_begin(tp_pipe *pipe, struct tpr_op *op);
/* All of a read is there, or some of it came: it may be over. */
void tpr_pull_settle(struct tpr_op *op);
/* For short.c: pulls the only buffer of a message that is being offered into
 * `data`.  False: that cannot be, and nothing is told; the read is to begin as
 * any other.  The peer may have ended in either case. */
bool tpr_pull_at_once(tp_pipe *pipe, const struct tpr_skeleton *skeleton,
                      void *data);
/* Its read is over: its sender is told, which lack of memory may end.  Of the
 * operation's rest `number`, `queued` and `position` count. */
void tpr_pull_was_at_once(struct tpr_op *op);
/* The read is to end with that status: tpr_rx_land() ends it as soon as nothing
 * touches its memory any more. */
void tpr_pull_cancel(struct tpr_op *op, tp_status status);
/* PUSH; false: nonsense. */
bool tpr_pull_pushed(tp_pipe *pipe, const struct wire_about *about,
                     const unsigned char *bytes, size_t length);
/* A frame's body does not write to the read's memory any more. */
void tpr_pull_landed(struct tpr_op *op);
/* For pulled upcalls, and for pulls whose conn is gone. */
void tpr_pull_over(struct tpr_offer *offer, enum tpf_progress result,
                   const char *text);
/* Does a channel still fetch something for this pipe, or a device read what was
 * given back, or does a frame's body come for one of its reads?  Or the former
 * two alone. */
bool tpr_pull_any(const tp_pipe *pipe);
bool tpr_pull_fetches(const tp_pipe *pipe);
/* The peer's writes need not wait for us any more; later, if some of their
 * memory is lent, unless `now`, or if a channel still fetches from it. */
void tpr_pull_tell_all(tp_pipe *pipe, bool now);

/* To oneself: does the host's memory go in frames, though it might be read
 * where it lies?  As long as it fits into the ring: a rank may write before it
 * reads, and wait for the write to end. */
bool tpr_offer_keeps(const tp_pipe *pipe, uint64_t length);

/* From this size on what can be lent is, to who borrows (WIRE_BORROWS).  Who
 * reads has it sooner in a frame, up to some KiB. */
enum { TPR_BORROWED = 1024, TPR_BORROWED_MOST = 8 * 1024 };

/* ---- tx.c: what is said of such buffers ---------------------------------- */

/* A frame of the pipe that no stream has: `about`, then `more`.  Kept for later
 * if there is no room. */
void tpr_tx_about(tp_pipe *pipe, enum wire_type type,
                  const struct wire_about *about, const void *more,
                  size_t length);
void tpr_tx_notes_drop(tp_pipe *pipe);

/* ---- lent.c: short messages about what lies at their sender -------------- */

/* How long its frame is, for credit. */
#define TPR_LENT_FRAME (sizeof(struct wire_frame) + sizeof(struct wire_lent))
/* The frame of a message of one buffer and nothing else, which has that offer;
 * `flags` say SHORT, and TENSOR if it is one.  False: no room now. */
bool tpr_lent_send(tp_pipe *pipe, const struct tpr_offer *offer,
                   unsigned flags);
/* Sends a message of one buffer and nothing else, whose memory peer->lend
 * takes, in one short frame, as above.  False: not so, nothing is done; sets
 * *foreign if that memory cannot be lent, and leaves it alone if it was not
 * asked for that.  Token. */
bool tpr_lent_write(tp_pipe *pipe, unsigned flags, void *data, size_t length,
                    tp_message *message, tp_message_fn *done, void *arg,
                    bool *foreign);
/* How a write goes that can be lent: op->way. */
void tpr_lent_pace(struct tpr_op *op, struct tpr_pace *pace);
/* The skeleton that such a frame's body makes, not numbered yet. */
tp_status tpr_lent_decode(tp_pipe *pipe, unsigned flags,
                          const unsigned char *body, size_t length,
                          struct tpr_skeleton **skeleton);
/* Tells that the message's buffers are not needed any more. */
void tpr_lent_release(tp_pipe *pipe, uint32_t number);
/* The write that RELEASE is about, if there is nothing to do but to end it;
 * NULL: tpr_offer_done() is to see to it. */
struct tpr_op *tpr_lent_back(tp_pipe *pipe, uint32_t number);

/* ---- late.c: DONEs that come late, on purpose --------------------------- */

/* Sender: is so much under way before a write of `length` bytes, which goes by
 * that link, that nobody has to hear of its end at once? */
bool tpr_late_may(const tp_pipe *pipe, const struct tpf_link *to,
                  uint64_t length);
/* What the frame of a message of that length says of its way, which goes by the
 * link `to`; NULL: by none, or it has no other before it. */
static inline unsigned tpr_late_flags(const tp_pipe *pipe,
                                      const struct tpf_link *to,
                                      uint64_t length, bool alone, bool shared)
{
    return (to != NULL && tpr_late_may(pipe, to, length) ? WIRE_QUEUED : 0u)
           | (alone ? WIRE_ALONE : shared ? WIRE_SHARED : 0u);
}
/* Receiver: keeps the DONE of a message of `length` bytes back for a while. */
void tpr_late_keep(tp_pipe *pipe, uint32_t number, uint64_t length);
/* Tells all that the pipe has kept back. */
void tpr_late_tell(tp_pipe *pipe);
/* ... of each pipe that does not go on reading: when a pass has moved nothing,
 * now and then (`pass`), and before the token is left. */
void tpr_late_look(tp_context *context, bool pass);

/* ---- land.c -------------------------------------------------------------- */

/* Says where the body of a frame that has begun to come is to be received. */
void tpr_land(struct tpf_conn *conn);
/* It is there, or it never will be: where.  The read may end by that. */
void *tpr_landed(struct tpf_conn *conn);

/* ---- borrow.c ------------------------------------------------------------ */

/* Memory for the buffers that cannot be lent; before the read is handed over.
 * False: none. */
bool tpr_borrow_prepare(tp_context *context, tp_message *message);
/* Lends the buffer to the user if that can be; else there is memory for it
 * when this returns, or op->status says that there is none. */
bool tpr_borrow_map(struct tpr_op *op, struct tpr_offer *offer,
                    struct tpf_link *link);
/* Memory for a message that comes in one frame; NULL: none. */
unsigned char *tpr_borrow_copy(tp_message *message, size_t length);
/* The read that borrows has ended well: its message is lent from now on. */
void tpr_borrow_begin(struct tpr_op *op);
/* What of a message is lent where it lies is so no more. */
void tpr_borrow_unmap(struct tpr_skeleton *skeleton);
/* The pipe has ended.  If the peer may soon change what it has lent, since it
 * was this side that ended it, a loan whose callback is still to come is none:
 * its read ends as the pipe did. */
void tpr_borrow_recall(const tp_pipe *pipe);
void tpr_borrow_recall_one(struct tpr_op *op);     /* the same for one loan */
/* Releases whose devices are through with the memory.  Returns whether any
 * ended. */
bool tpr_borrow_progress(tp_context *context);
void tpr_borrow_fini(tp_context *context);

/* ---- device.c: what waits for devices ------------------------------------ */

/* The pipe's writes go on when a device is further. */
void tpr_device_wait(tp_pipe *pipe);
/* The read may begin: its streams are through with its memory.  False: not
 * yet, it is kept until then; or never, for which the pipe is broken. */
bool tpr_device_may_read(tp_pipe *pipe, struct tpr_op *op);
/* Asks for all that waits.  Returns whether anything moved. */
bool tpr_device_progress(tp_context *context);
static inline bool tpr_device_waits(const tp_context *context)
{
    return !tpb_list_empty(&context->device_pipes)
           || !tpb_list_empty(&context->device_reads)
           || !tpb_list_empty(&context->device_releases)
           || context->env.on_devices > 0;
}
/* There is one CPU; how many other devices only their driver knows. */
bool tpr_device_valid(tp_device device);
bool tpr_target_valid(tp_device target);
/* Warns of a tensor on a device, or for one, that there cannot be. */
void tpr_device_tell(tp_pipe *pipe, const tp_tensor *tensor);
/* Checks what the caller says of his buffers, and notes where their streams
 * stand.  INVALID with a warning; others are for the operation's end, and not
 * for one that `reads`: which devices it is to use is its caller's choice. */
tp_status tpr_device_claim_tensors(tp_pipe *pipe, const tp_message *message,
                                   bool reads, struct tpg_work **work);
static inline tp_status tpr_device_claim(tp_pipe *pipe,
                                         const tp_message *message, bool reads,
                                         struct tpg_work **work)
{
    *work = NULL;
    return TPB_LIKELY(message->tensor_count == 0)
           ? TP_OK : tpr_device_claim_tensors(pipe, message, reads, work);
}
/* How much of the next `length` bytes of the write's stream is at hand in host
 * memory; 0: none yet.  A failure is in op->status. */
size_t tpr_device_ahead(struct tpr_op *op, size_t length);
/* As tpr_cursor_at(), but for device memory where its bytes are at hand. */
bool tpr_device_cursor_at(struct tpr_op *op, struct tpr_cursor *cursor,
                          unsigned char **data, size_t *left);
/* Bytes of a read for its buffer at the cursor; false: *text says why. */
bool tpr_device_store(struct tpr_op *op, size_t index, size_t offset,
                      const void *bytes, size_t length, const char **text);

#endif
