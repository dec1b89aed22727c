/* SPDX-License-Identifier: BSD-3-Clause */
/* Bytes in characters that nobody has to escape (RFC 4648, base64). */
#include "config.h"

#include <assert.h>
#include <limits.h>

#include "launcher/frames.h"
#include "runtime/base/io.h"

_Static_assert(TPL_FRAME_CODED + 4 <= PIPE_BUF, "a frame goes whole or not");

static const char frames_alphabet[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int tpl_frame_write(int fd, enum tpl_frame_kind kind, const char *data,
                    size_t length)
{
    char frame[TPL_FRAME_CODED + 4] = { '~', '{', (char)kind };
    const unsigned char *from = (const unsigned char *)data;
    char *to = frame + 3;

    assert(length <= TPL_FRAME_MOST);
    for (; length > 0; from += 3) {
        size_t count = length < 3 ? length : 3;
        unsigned bits = (unsigned)from[0] << 16
                        | (count > 1 ? (unsigned)from[1] << 8 : 0)
                        | (count > 2 ? from[2] : 0);

        for (size_t i = 0; i <= count; i++)
            *to++ = frames_alphabet[bits >> (18 - 6 * i) & 63];
        length -= count;
    }
    *to++ = '}';
    return tpb_write_waiting(fd, frame, (size_t)(to - frame));
}

/* The six bits of a character, -1 if it is none of ours. */
static int frames_bits(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Could a frame begin so? */
static bool frames_promising(const struct tpl_frame_reader *reader)
{
    char last = reader->held[reader->held_length - 1];

    switch (reader->held_length) {
    case 1: return last == '~';
    case 2: return last == '{';
    case 3: return last == TPL_FRAME_OUT || last == TPL_FRAME_ERR
                   || last == TPL_FRAME_MARK;
    default: return frames_bits(last) >= 0;
    }
}

/* In place, since bytes are fewer than characters. */
static void frames_finish(struct tpl_frame_reader *reader)
{
    enum tpl_frame_kind kind = (enum tpl_frame_kind)reader->held[2];
    unsigned bits = 0, have = 0;
    size_t length = 0;

    for (size_t i = 3; i < reader->held_length; i++) {
        bits = (bits << 6 | (unsigned)frames_bits(reader->held[i])) & 0xffff;
        have += 6;
        if (have >= 8) {
            have -= 8;
            reader->held[length++] = (char)(bits >> have);
        }
    }
    reader->held_length = 0;
    reader->frame(reader, kind, reader->held, length);
}

/* What is held is no frame. */
static void frames_text(struct tpl_frame_reader *reader)
{
    size_t length = reader->held_length;

    reader->held_length = 0;
    if (length > 0)
        reader->text(reader, reader->held, length);
}

void tpl_frame_flush(struct tpl_frame_reader *reader)
{
    if (reader->held_length <= 3)
        frames_text(reader);
    else if (reader->held[2] == TPL_FRAME_MARK)
        reader->held_length = 0;       /* half a mark tells nothing */
    else
        frames_finish(reader);
}

void tpl_frame_feed(struct tpl_frame_reader *reader, const char *data,
                    size_t length)
{
    const char *end = data + length;

    while (data < end) {
        if (reader->held_length == 0) {
            const char *start = memchr(data, '~', (size_t)(end - data));
            const char *stop = start != NULL ? start : end;

            if (stop > data)
                reader->text(reader, data, (size_t)(stop - data));
            data = stop;
            if (start != NULL)
                reader->held[reader->held_length++] = *data++;
        } else if (reader->held_length > 2 && *data == '}') {
            data++;
            frames_finish(reader);
        } else if (reader->held_length == sizeof(reader->held)) {
            frames_text(reader);
        } else {
            reader->held[reader->held_length++] = *data++;
            if (!frames_promising(reader)) {
                reader->held_length--;
                data--;
                frames_text(reader);
                /* It may begin the next one. */
                if (*data != '~')
                    reader->text(reader, data++, 1);
            }
        }
    }
}
