/* SPDX-License-Identifier: BSD-3-Clause */
/* Marks in a stream of text. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "launcher/marks.h"

size_t tpl_mark_format(char line[TPL_MARK_SIZE], const char *cookie,
                       const struct tpl_mark *mark)
{
    int length = snprintf(line, TPL_MARK_SIZE - 3,
                          "%ctp%s %c %d %d %d %s %s", TPL_MARK_EDGE, cookie,
                          (char)mark->kind, mark->rank, mark->pid,
                          mark->value, mark->host[0] != '\0' ? mark->host
                                                             : "-",
                          mark->words);

    if (length > TPL_MARK_SIZE - 4)
        length = TPL_MARK_SIZE - 4;
    tpb_one_line(line + 1, (size_t)length - 1);
    line[length++] = TPL_MARK_EDGE;
    line[length++] = '\n';
    return (size_t)length;
}

/* The text between the edges; false if it is not one of ours. */
static bool marks_parse(const char *cookie, const char *text,
                        struct tpl_mark *mark)
{
    size_t length = strlen(cookie);
    char kind;
    int words = 0;

    if (strncmp(text, "tp", 2) != 0
        || strncmp(text + 2, cookie, length) != 0)
        return false;
    memset(mark, 0, sizeof(*mark));
    if (sscanf(text + 2 + length, " %c %d %d %d %255s %n", &kind,
               &mark->rank, &mark->pid, &mark->value, mark->host, &words)
        != 5 || strchr("SEKUAX", kind) == NULL)
        return false;
    mark->kind = (enum tpl_mark_kind)kind;
    snprintf(mark->words, sizeof(mark->words), "%s",
             text + 2 + length + words);
    return true;
}

/* Could what is held still become a mark? */
static bool marks_promising(const struct tpl_mark_filter *filter)
{
    char start[80];
    int length = snprintf(start, sizeof(start), "%ctp%s ", TPL_MARK_EDGE,
                          filter->cookie);
    size_t n = filter->held_length;

    if (n > (size_t)length)
        n = (size_t)length;
    return memcmp(filter->held, start, n) == 0
           && filter->held_length < sizeof(filter->held);
}

/* Its end has come. */
static void marks_finish(struct tpl_mark_filter *filter)
{
    struct tpl_mark mark;

    filter->held[filter->held_length - 1] = '\0';
    if (marks_parse(filter->cookie, filter->held + 1, &mark)) {
        filter->held_length = 0;
        filter->swallow = true;
        filter->mark(&mark, filter->arg);
        return;
    }
    filter->held[filter->held_length - 1] = TPL_MARK_EDGE;
    tpl_mark_flush(filter);
}

void tpl_mark_flush(struct tpl_mark_filter *filter)
{
    size_t length = filter->held_length;

    filter->held_length = 0;
    if (length > 0)
        filter->text(filter->held, length, filter->arg);
}

void tpl_mark_feed(struct tpl_mark_filter *filter, const char *data,
                   size_t length)
{
    const char *end = data + length;

    while (data < end) {
        if (filter->swallow) {
            filter->swallow = false;
            data += *data == '\n';
        } else if (filter->held_length == 0) {
            const char *edge = memchr(data, TPL_MARK_EDGE,
                                      (size_t)(end - data));
            const char *stop = edge != NULL ? edge : end;

            if (stop > data)
                filter->text(data, (size_t)(stop - data), filter->arg);
            data = stop;
            if (edge != NULL)
                filter->held[filter->held_length++] = *data++;
        } else if (filter->held[filter->held_length++] = *data++,
                   !marks_promising(filter)) {
            tpl_mark_flush(filter);
        } else if (data[-1] == TPL_MARK_EDGE) {
            marks_finish(filter);
        }
    }
}
