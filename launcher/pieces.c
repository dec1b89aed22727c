/* SPDX-License-Identifier: BSD-3-Clause */
/* Which rank wrote which piece of mpirun's output. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "launcher/pieces.h"

enum { PIECES_REST = -1 };

void tpl_pieces_init(struct tpl_pieces *pieces)
{
    pieces->from = pieces->outer = PIECES_REST;
    pieces->swallow = false;
    pieces->held_length = 0;
}

static void pieces_pass(struct tpl_pieces *pieces, const char *data,
                        size_t length)
{
    if (length == 0)
        return;
    if (pieces->from == PIECES_REST)
        pieces->rest(data, length, pieces->arg);
    else
        pieces->rank(pieces->from, data, length, pieces->arg);
}

void tpl_pieces_flush(struct tpl_pieces *pieces)
{
    size_t length = pieces->held_length;

    pieces->held_length = 0;
    pieces_pass(pieces, pieces->held, length);
}

/* An element begins.  mpirun may put a word of its own into a rank's. */
static void pieces_begin(struct tpl_pieces *pieces, int from)
{
    pieces->outer = pieces->from;
    pieces->from = from;
}

static void pieces_end(struct tpl_pieces *pieces)
{
    pieces->from = pieces->outer;
    pieces->outer = PIECES_REST;
    pieces->swallow = true;
}

/* "<...>" is held, and ends with a NUL. */
static void pieces_tag(struct tpl_pieces *pieces)
{
    int rank, used = 0;

    if (sscanf(pieces->held, "<stderr rank=\"%d\">%n", &rank, &used) == 1
        && used > 0 && rank >= 0) {
        pieces_begin(pieces, rank);
    } else if (strcmp(pieces->held, "<stderr>") == 0
               || strncmp(pieces->held, "<stdout rank=", 13) == 0
               || strncmp(pieces->held, "<stddiag rank=", 14) == 0) {
        pieces_begin(pieces, PIECES_REST);
    } else if (strcmp(pieces->held, "</stderr>") == 0
               || strcmp(pieces->held, "</stdout>") == 0
               || strcmp(pieces->held, "</stddiag>") == 0) {
        pieces_end(pieces);
    } else if (strcmp(pieces->held, "<mpirun>") == 0
               || strcmp(pieces->held, "</mpirun>") == 0) {
        pieces->swallow = true;
    } else {
        tpl_pieces_flush(pieces);
    }
    pieces->held_length = 0;
}

/* "&...;" is held, and ends with a NUL. */
static void pieces_character(struct tpl_pieces *pieces)
{
    char c = '\0';
    int number, used = 0;

    if (strcmp(pieces->held, "&lt;") == 0)
        c = '<';
    else if (strcmp(pieces->held, "&gt;") == 0)
        c = '>';
    else if (strcmp(pieces->held, "&amp;") == 0)
        c = '&';
    else if (sscanf(pieces->held, "&#%d;%n", &number, &used) == 1 && used > 0)
        c = (char)number;
    else
        used = -1;
    if (used < 0) {
        tpl_pieces_flush(pieces);
    } else {
        pieces->held_length = 0;
        pieces_pass(pieces, &c, 1);
    }
}

/* Goes on with what is held; the number of bytes taken. */
static size_t pieces_go_on(struct tpl_pieces *pieces, char c)
{
    bool tag = pieces->held[0] == '<';

    /* Too long for one of them, or another begins: it was none. */
    if (pieces->held_length == sizeof(pieces->held) - 1
        || (c == '<' || c == '&') || (!tag && c == '\n')) {
        tpl_pieces_flush(pieces);
        return 0;
    }
    pieces->held[pieces->held_length++] = c;
    pieces->held[pieces->held_length] = '\0';
    if (tag && c == '>')
        pieces_tag(pieces);
    else if (!tag && c == ';')
        pieces_character(pieces);
    return 1;
}

void tpl_pieces_feed(struct tpl_pieces *pieces, const char *data,
                     size_t length)
{
    const char *end = data + length;

    while (data < end) {
        const char *stop = data;

        if (pieces->swallow) {
            pieces->swallow = false;
            data += *data == '\n';
        } else if (pieces->held_length > 0) {
            data += pieces_go_on(pieces, *data);
        } else {
            while (stop < end && *stop != '<' && *stop != '&')
                stop++;
            pieces_pass(pieces, data, (size_t)(stop - data));
            data = stop;
            if (data < end)
                pieces->held[pieces->held_length++] = *data++;
        }
    }
}
