/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which way is the fastest one for long messages: found out by sending over
 * all of them, since it is another one from machine to machine, and with what
 * the program does to its buffers.  Of a stream its sender finds out; of
 * messages that come alone their receiver, who alone knows when one has
 * arrived, and who tells the sender what he wishes in every frame.
 *
 * In a stream both sides work at the same time, so it is as fast as the one who
 * is busier: frames give the sender a copy of each message to make, a pull
 * leaves all to the receiver.  With TPR_PACE_SHARED the sender does some of it
 * whenever he has nothing else to do.
 */
#ifndef TPR_PACE_H
#define TPR_PACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum tpr_pace_way {
    TPR_PACE_FRAMES,                /* as the model of the plan says */
    TPR_PACE_PULLED,                /* by a channel that it says is slower */
    TPR_PACE_SHARED,                /* the same, and both ends copy (both.h) */
    TPR_PACE_WAYS
};

enum {
    TPR_PACE_LEAST = 24 * 1024,    /* of a stream; shorter ones go in frames */
    TPR_SHARE_LEAST = 64 * 1024,   /* of what both ends may copy, and of one of
                                      several buffers */
    TPR_TASTE_LEAST = 10 * 1024,   /* of what comes alone; asking for a shorter
                                      one takes as long as its two copies */
    TPR_TASTE_WAITED = 20 * 1024,  /* the same, if its writer waits: what fits
                                      a frame is to end without its reader, who
                                      may be waiting for a write, too */
    TPR_LEAD_LEAST = 16 * 1024,    /* of a stream that the peer's follows */
    TPR_PACE_FIRST = 8 * 1024      /* where the first class begins */
};

/* What ended in some time. */
struct tpr_lap {
    uint64_t since;                /* when it began; 0: it has not */
    uint64_t bytes;                /* of messages that ended in it ... */
    uint32_t count;                /* ... and how many */
};

/* Of messages of about one size to one peer.  Zeroed is its beginning. */
struct tpr_pace {
    struct tpr_lap lap;            /* begins with the end of a message */
    struct tpr_lap burst;          /* since one came alone; not begun: it does
                                      not count, as a lap of it did */
    uint32_t begun;                /* messages that were sent in the lap */
    uint64_t last;                 /* when a message of it ended */
    uint32_t late;                 /* messages of this way that do not count:
                                      they were sent while others ended, or
                                      in the lap before, which was not even */
    uint32_t laps;                 /* by this way, one after the other */
    uint32_t run;                  /* messages since one came alone ... */
    uint64_t run_bytes;            /* ... and their bytes, with it */
    bool stream;                   /* so many that they can be measured */
    uint32_t patience;             /* so many until the other is tried again;
                                      0: as many as at first */
    enum tpr_pace_way way;         /* of the lap */
    enum tpr_pace_way probed;      /* what was tried out of patience last */
    enum tpr_pace_way first;       /* what was measured first ... */
    bool doubted;                  /* ... and again, since it was cold then */
    bool uneven;                   /* a lap of the burst was, and left out */
    bool slow;                     /* the last lap was, for the first time */
    bool shares;                   /* TPR_PACE_SHARED is one of the ways */
    bool led;                      /* goes as the peer's do: nothing counts */
    uint64_t cold;                 /* bytes in frames that did not count */
    uint64_t speed[TPR_PACE_WAYS]; /* as last measured; 0: not, or long ago */
};

/* What the last message of a stream that comes from a peer has come by. */
struct tpr_lead {
    uint8_t class;                 /* of a struct tpr_pace ... */
    bool lends;                    /* ... for what might be lent */
    uint8_t way;
    uint8_t left;                  /* so many of ours may follow it */
};

enum { TPR_PACES = 12 };          /* no more than wire_frame.wishes has bits */
/* Which of TPR_PACES paces a message of that size belongs to: twice the size is
 * the next one. */
unsigned tpr_pace_class(uint64_t bytes);
/* One that has not begun yet: begins with TPR_PACE_SHARED, if there is that. */
void tpr_pace_share(struct tpr_pace *pace, bool shares);
/* ... or with this one. */
void tpr_pace_prefer(struct tpr_pace *pace, enum tpr_pace_way way);
/* A message that went that way has ended, while others were waiting. */
void tpr_pace_ended(struct tpr_pace *pace, enum tpr_pace_way way,
                    uint64_t bytes, uint64_t now);
/* Instead of the former, for one that went in frames while it is not known how
 * fast these can be: its lap does not count.  False: this one does, as frames
 * are not the way, or too many did not. */
bool tpr_pace_skip(struct tpr_pace *pace, uint64_t bytes);
/* The messages to come go that way, as those that come from the peer do; or by
 * what is measured here again.  Returns how the next one does. */
enum tpr_pace_way tpr_pace_lead(struct tpr_pace *pace, enum tpr_pace_way way);
static inline enum tpr_pace_way tpr_pace_unled(struct tpr_pace *pace)
{
    pace->led = false;
    return pace->way;
}
/* What was measured of that way counts no more. */
void tpr_pace_forget(struct tpr_pace *pace, enum tpr_pace_way way);
/* Do the following two look at `now`? */
bool tpr_pace_is_timed(const struct tpr_pace *pace, bool first);
/* A message is to go, and no other is under way.  Is it the first of a stream,
 * as it was the last time? */
bool tpr_pace_first(struct tpr_pace *pace, uint64_t bytes, uint64_t now);
/* ... and one that follows.  Is it of a stream?  Of fewer their receiver knows
 * more. */
bool tpr_pace_next(struct tpr_pace *pace, uint64_t bytes, uint64_t now);

/* The receiver's, of messages that come alone.  Zeroed is its beginning. */
struct tpr_taste {
    struct tpr_pace pace;          /* of it way, laps, patience and speed */
    uint64_t best, second;         /* of this lap's messages */
    uint32_t count;                /* ... of which there were so many */
    uint64_t warm;                 /* bytes in frames since that is the way, or
                                      since they were slow */
};

/* Has any been measured? */
static inline bool tpr_taste_is_known(const struct tpr_taste *taste)
{
    return taste->count > 0 || taste->pace.patience > 0;
}
/* Which way to begin with.  False: it has begun. */
bool tpr_taste_prefer(struct tpr_taste *taste, enum tpr_pace_way way);
/* Such a message came that way, and took `ns`.  Returns whether the next ones
 * shall be pulled. */
bool tpr_taste_ended(struct tpr_taste *taste, enum tpr_pace_way way,
                     uint64_t bytes, uint64_t ns);

#endif
