/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Frames: what a rank writes, and the marks about it, on their way through
 * Open MPI's mpirun, which passes on pieces of at most 4096 bytes that end
 * anywhere.
 *
 *   "~{" KIND BASE64 "}"
 *
 * None of these characters is one that mpirun escapes, so a piece stays as
 * long as it is: mpirun cuts off what does not fit its buffer.  A frame is
 * written in one piece of less than PIPE_BUF bytes, whole or not at all.
 */
#ifndef TPL_FRAMES_H
#define TPL_FRAMES_H

#include "runtime/base/base.h"

enum {
    TPL_FRAME_MOST = 3060,         /* bytes in one */
    TPL_FRAME_CODED = TPL_FRAME_MOST / 3 * 4
};

enum tpl_frame_kind {
    TPL_FRAME_OUT = 'o', TPL_FRAME_ERR = 'e', TPL_FRAME_MARK = 'm'
};

/* Writes `length` <= TPL_FRAME_MOST bytes; may block.  0, or -1 with errno. */
int tpl_frame_write(int fd, enum tpl_frame_kind kind, const char *data,
                    size_t length);

/*
 * Reads the frames of one rank out of what arrives in any pieces.  What is in
 * none goes to `text`.
 */
struct tpl_frame_reader {
    void (*frame)(struct tpl_frame_reader *reader, enum tpl_frame_kind kind,
                  const char *data, size_t length);
    void (*text)(struct tpl_frame_reader *reader, const char *data,
                 size_t length);
    size_t held_length;
    char held[TPL_FRAME_CODED + 3];     /* from the '~' on */
};
void tpl_frame_feed(struct tpl_frame_reader *reader, const char *data,
                    size_t length);

/* No more comes: of a frame that is cut off, what has come of it counts. */
void tpl_frame_flush(struct tpl_frame_reader *reader);

#endif
