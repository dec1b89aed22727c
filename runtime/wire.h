/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What goes over a conn.  Little-endian, fixed layout, 64-bit sizes.
 *
 * Every frame begins with struct wire_frame.  A pipe's messages are a stream:
 * per message its descriptor, then the bytes of its buffers one after the
 * other, payloads first.  The stream is cut into frames: the first of a
 * message is MESSAGE, the others are DATA.
 *
 * Credit bounds what a pipe has under way: a frame of a stream costs its
 * whole length; the receiver counts what it has consumed and tells the count,
 * modulo 2^32, in every frame of that pipe and, when there is none, in a
 * CREDIT frame.  A sender goes on while sent - consumed stays within the
 * conn's window; one that goes on all the same is cut off.
 *
 * A buffer that goes by a channel (fabric/channel.h) is left out of the
 * stream; its descriptor entry names the channel and the source.  The messages
 * of a pipe that have such buffers are numbered from 0 on both sides.  Their
 * sender's memory is free when DONE has come.
 */
#ifndef TPR_WIRE_H
#define TPR_WIRE_H

#include "runtime/base/base.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire format is little-endian; big-endian hosts need conversions"
#endif

enum { WIRE_VERSION = 8 };

enum wire_type {
    WIRE_HELLO = 1,    /* first on every conn, from the side that connected */
    WIRE_WELCOME,      /* the answer */
    WIRE_MESSAGE,
    WIRE_DATA,
    WIRE_CREDIT,
    WIRE_CLOSE,        /* no more on this pipe, in either direction */
    WIRE_BYE,          /* the rank leaves: no more on this conn; with words
                          behind it: it gives this pair up, and why */
    /* About buffers that go by a channel, see wire_about. */
    WIRE_DONE,         /* the message's buffers are pulled and given back */
    WIRE_ASK,          /* that buffer cannot be pulled: send it in frames */
    WIRE_PUSH,         /* a piece of a buffer that was asked for */
    WIRE_CALL,         /* that buffer is being pulled: the sender may help; the
                          channel's words follow */
    WIRE_RELEASE,      /* as DONE, of one message: struct wire_release */
    WIRE_LAST = WIRE_RELEASE
};

/* Flags of MESSAGE. */
enum {
    WIRE_SHORT = 1,    /* the body is the one payload, whole, no metadata; with
                          OFFERS a struct wire_lent, which tells where it is */
    WIRE_OFFERS = 2,   /* some buffers go by a channel */
    WIRE_ALONE = 4,    /* long, and no other was under way from here, or too
                          few for a stream: what `wishes` are for */
    WIRE_SHARED = 8,   /* of a stream, whose sender copies some of what goes by
                          channels if he is called */
    WIRE_QUEUED = 16,  /* many bytes were under way before it: its DONE may come
                          when more of what follows has been read */
    WIRE_TENSOR = 32,  /* with SHORT: not a payload but a tensor, of the host's
                          memory and for any device ... */
    WIRE_HOST = 64,    /* ... or for the host's memory, too */
    WIRE_SMALL = 128   /* alone: the body is the whole message, as wire_small
                          tells */
};

struct wire_frame {
    uint8_t type;
    uint8_t flags;
    uint16_t wishes;           /* which messages that come alone the sender of
                                  this would rather pull, a bit per length of
                                  their longest buffer as pace.h classes it,
                                  WIRE_BORROWS and WIRE_KEEPS; 0 outside of
                                  pipes */
    uint32_t number;           /* of the pipe; 0 where there is none */
    uint32_t credit;           /* consumed of the other direction's stream */
    uint32_t length;           /* bytes after this header */
};
_Static_assert(sizeof(struct wire_frame) == 16, "wire layout");

/* In `wishes`: the sender of this borrows messages that were copied, though
 * they might have been lent. */
#define WIRE_BORROWS 0x8000u
/* ... and has borrowed where it might have read: what might be lent is not to
 * go in frames, however fast these are. */
#define WIRE_KEEPS 0x4000u

/* May the one who says this pull from the one who hears it?  One per channel
 * number; why not stands in the words that follow, one after the other. */
enum { WIRE_TRIALS = 8 };
struct wire_trial {
    uint8_t tried, may;
    uint8_t words_length;
    uint8_t zero;
};
_Static_assert(sizeof(struct wire_trial) == 4, "wire layout");

struct wire_hello {
    char magic[4];             /* "tpip" */
    uint32_t version;
    uint8_t cookie[16];        /* of the card of the one greeted; or what both
                                  made of their secret, see desk.h */
    uint32_t card_length;      /* the greeter's card follows, then words; 0: it
                                  was shown already */
    uint32_t words_length;
    struct wire_trial trials[WIRE_TRIALS];
};
_Static_assert(sizeof(struct wire_hello) == 64, "wire layout");

enum wire_answer {
    WIRE_ACCEPTED,
    WIRE_CROSSED,              /* use the conn that I make to you */
    WIRE_DENIED,
    WIRE_REFUSED,              /* version or card not understood */
    WIRE_NO_MEMORY,
    WIRE_OVER                  /* I was through with you */
};

struct wire_welcome {
    char magic[4];
    uint32_t version;
    uint32_t answer;
    uint32_t words_length;     /* words follow */
    struct wire_trial trials[WIRE_TRIALS];
};
_Static_assert(sizeof(struct wire_welcome) == 48, "wire layout");

/*
 * A descriptor: this head, `payloads` wire_payload, `tensors` wire_tensor,
 * then the metadata of the message, of the payloads, of the tensors, then the
 * sources of the buffers that go by a channel.  Followed by the other buffers'
 * bytes.
 */
struct wire_descriptor {
    uint32_t payloads, tensors;
    uint64_t length;           /* of the descriptor, all included */
    uint64_t metadata_length;  /* of the message */
    uint32_t sent;             /* long ones that came alone: when they were
                                  written, in ns of CLOCK_MONOTONIC; 0: that
                                  does not matter */
    uint32_t zero;
};
_Static_assert(sizeof(struct wire_descriptor) == 32, "wire layout");

/* `channel` is an enum tpf_channel_number, 0 for "in the stream". */
struct wire_payload {
    uint64_t length, metadata_length;
    uint8_t channel, source_length;
    uint16_t zero;
    uint32_t zero2;
};
_Static_assert(sizeof(struct wire_payload) == 24, "wire layout");

struct wire_tensor {
    uint64_t length, metadata_length;
    uint8_t device_type, target_type;
    uint8_t channel, source_length;
    int32_t device_index, target_index;
    uint32_t zero;
};
_Static_assert(sizeof(struct wire_tensor) == 32, "wire layout");

/* The body of a message of one payload or tensor and nothing else, which goes
 * by a channel whose source is that short. */
enum { WIRE_LENT_SOURCE = 16 };
struct wire_lent {
    uint64_t length;           /* of the buffer */
    uint8_t channel, source_length;
    uint16_t zero;
    uint32_t sent;             /* as in wire_descriptor */
    unsigned char source[WIRE_LENT_SOURCE];
};
_Static_assert(sizeof(struct wire_lent) == 32, "wire layout");

/*
 * The body of a message that fits a frame, none of which goes by a channel:
 * this head, a wire_piece for each buffer, payloads first, then the metadata
 * of the message, of the buffers, then the buffers' bytes.  All tensors are of
 * the host's memory.  With one buffer of 8 bytes and as much metadata the whole
 * frame is 40 bytes, less than a cache line.
 */
struct wire_small {
    uint8_t payloads, tensors;
    uint16_t metadata_length;  /* of the message */
};
_Static_assert(sizeof(struct wire_small) == 4, "wire layout");
struct wire_piece {
    uint16_t length, metadata_length;
};
_Static_assert(sizeof(struct wire_piece) == 4, "wire layout");
/* In a tensor's metadata_length: its target is the host's memory, not any. */
#define WIRE_PIECE_HOST 0x8000u
enum { WIRE_SMALL_MOST = 8 * 1024, WIRE_PIECES = 16 };

/* As long as a cache line with all that is around it: so what follows, which is
 * mostly the answer, has a line of its own. */
struct wire_release {
    uint32_t message, zero;
    uint64_t zero2;
};
_Static_assert(sizeof(struct wire_release) == 16, "wire layout");

/* The body of DONE, and the head of those of ASK, PUSH and CALL. */
struct wire_about {
    uint32_t message;          /* its number; WIRE_ALL: every one so far */
    uint32_t buffer;           /* payloads first, then tensors */
    uint64_t offset;           /* ASK: from here on; PUSH: of these bytes */
    uint32_t channel;          /* ASK: which one refused, 0 if none
                                  did; words follow.  CALL: which one */
    uint32_t zero;
};
_Static_assert(sizeof(struct wire_about) == 24, "wire layout");
#define WIRE_ALL UINT32_MAX         /* never the number of one */

/* The most a descriptor may say of itself; more is an error of the sender,
 * and nothing is allocated from a claim alone. */
enum { WIRE_BUFFERS = 1 << 20 };
#define WIRE_DESCRIPTOR (UINT64_C(1) << 30)

#endif
