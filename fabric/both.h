/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What channels have in common whose buffers both ends can copy at once: who
 * pulls calls the sender, and from then on both claim pieces, see share.h.  How
 * a piece is copied is the channel's.
 */
#ifndef TPF_BOTH_H
#define TPF_BOTH_H

#include "fabric/channel.h"
#include "fabric/share.h"

/* One side's part in such a buffer; stands behind its struct tpf_pull.  Zeroed:
 * nobody else copies. */
struct tpf_both {
    struct tpf_share *share;       /* NULL: nobody else copies */
    size_t length;                 /* of a piece but the last ... */
    uint32_t pieces;               /* ... so many */
    uint32_t end;                  /* receiver: of those that are his to copy */
    uint32_t pushed;               /* sender: pieces copied */
    uint32_t number;
    bool all_claimed;
    bool waited;                   /* receiver: for the sender's last piece */
    bool helped;                   /* ... who had claimed some, as it ended */
};

/* How the channel copies; one constant per channel. */
struct tpf_both_ways {
    struct tpf_both *(*of)(struct tpf_pull *pull);
    /* Receiver: copies at most `length` bytes from `at` on.  Returns how many;
     * 0: refused, with words. */
    size_t (*take)(struct tpf_pull *pull, size_t at, size_t length,
                   struct tpb_error *error);
    /* Sender: copies all of them to the receiver.  False: it may not. */
    bool (*give)(struct tpf_pull *help, size_t at, size_t length);
    /* Can the peer still touch memory of this process? */
    bool (*lives)(const struct tpf_link *link);
};

enum { TPF_BOTH_PIECE = 2 * TPF_STRIDE };   /* no piece is longer */

/* What a call says of the pieces; first in the channel's words. */
struct tpf_both_call {
    uint64_t length;
    uint32_t piece, pieces;
    uint32_t number, zero;
};
_Static_assert(sizeof(struct tpf_both_call) == 24, "wire layout");

/*
 * Receiver: begins a buffer in so many pieces of `piece` bytes, of which the
 * last is what is left (0: as many as that makes), and fills the call.
 * False: it is the receiver's alone, since one piece is all of it, another
 * buffer of the pair is not over, or there is no cpu for the sender.
 */
bool tpf_both_begin(struct tpf_pull *pull, const struct tpf_both_ways *ways,
                    size_t piece, uint32_t pieces, struct tpf_both_call *call);
/* For the kind's tpf_move_fn, called or not: a stride, or about as much in
 * pieces. */
enum tpf_progress tpf_both_move(struct tpf_pull *pull,
                                const struct tpf_both_ways *ways,
                                struct tpb_error *error);
/* Receiver, whatever becomes of the pull: returns when the sender does not
 * touch its memory any more. */
void tpf_both_quit(struct tpf_pull *pull, const struct tpf_both_ways *ways);

/* Sender: may it help, with pieces of at least `least` bytes? */
bool tpf_both_valid(const struct tpf_pull *help,
                    const struct tpf_both_call *call, size_t least);
/* ... and does: joins `helps`, and copies the first piece if its message came
 * alone; else he may have better things to do.  For a valid call. */
void tpf_both_help(struct tpb_list *helps, struct tpf_pull *help,
                   const struct tpf_both_ways *ways,
                   const struct tpf_both_call *call);
/* Some pieces of one of `helps`, which take turns.  Returns whether there was
 * one.  For the kind's progress(). */
bool tpf_both_progress(struct tpb_list *helps,
                       const struct tpf_both_ways *ways);
/* For the kind's leave(). */
void tpf_both_leave(struct tpf_pull *help);

#endif
