/* SPDX-License-Identifier: BSD-3-Clause */
/* What an engine prints. */
#include "config.h"

#include "launcher/engine_text.h"

enum {
    TEXT_LINE_MAX = 65536,
    TEXT_HELD_MAX = 65536,
    TEXT_DASHES = 60,              /* that many begin an engine's banner */
    TEXT_PARTIAL = 100             /* ms that an unfinished line waits */
};

/* What --report-bindings asks for: "MCW rank 0 bound to socket 0[core 0...". */
static bool text_is_binding(const char *words)
{
    return strncmp(words, "MCW rank ", 9) == 0
           || strncmp(words, "Rank ", 5) == 0;
}

/* How engines begin lines about ranks that failed. */
static bool text_is_noise(const char *line)
{
    static const char *const starts[] = {
        "srun: error: ", "srun: Force Terminated", "srun: launch/slurm: ",
        "srun: Job step", "srun: Terminating", "srun: forcing ",
        "srun: interrupt", "srun: sending Ctrl-C", "srun: got SIGCONT",
        "slurmstepd: error: ", "slurmstepd-",
        "mpirun: ", "prterun: ", "Abort is in progress",
    };

    for (size_t i = 0; i < TPB_COUNT(starts); i++)
        if (strncmp(line, starts[i], strlen(starts[i])) == 0)
            return true;
    /* "[host:4711] ": Open MPI itself. */
    if (*line != '[')
        return false;
    line += strcspn(line, ": ]");
    if (*line != ':')
        return false;
    line += 1 + strspn(line + 1, "0123456789");
    return *line == ']' && (line[1] != ' ' || !text_is_binding(line + 2));
}

static bool text_is_banner(const char *block)
{
    static const char *const words[] = {
        "mpirun", "prterun", "ORTE", "PRTE", "Primary job", "PMIx", "orted",
        "prted", "MPI_ABORT", "A process or daemon",
    };

    for (size_t i = 0; i < TPB_COUNT(words); i++)
        if (strstr(block, words[i]) != NULL)
            return true;
    return false;
}

static bool text_is_dashes(const char *line)
{
    size_t length = strspn(line, "-");

    return length >= TEXT_DASHES && strspn(line + length, "\r\n")
                                    == strlen(line + length);
}

/* A block is an engine's only if it says so: ranks draw lines, too. */
static void text_end_block(struct tpl_engine_text *text)
{
    if (text->block.length > 0 && !text_is_banner(text->block.text))
        text->write(text->block.text, text->block.length);
    tpb_text_fini(&text->block);
    memset(&text->block, 0, sizeof(text->block));
    text->in_block = false;
}

/* One line with its newline, or the last one without. */
static void text_line(struct tpl_engine_text *text, const char *line)
{
    if (text_is_noise(line)) {
        if (text->noise.length < TEXT_HELD_MAX)
            tpb_text_add(&text->noise, "%s", line);
        if (text->all)
            text->write(line, strlen(line));
    } else if (text->holds) {
        if (text->held.length < TEXT_HELD_MAX)
            tpb_text_add(&text->held, "%s", line);
    } else if (!text->quiet || text->all) {
        text->write(line, strlen(line));
    } else if (text_is_dashes(line)) {
        tpb_text_add(&text->block, "%s", line);
        if (text->in_block)
            text_end_block(text);
        else
            text->in_block = true;
    } else if (!text->in_block && strcmp(line, "\n") == 0) {
        return;                    /* mpirun's, before its banners */
    } else if (text->in_block) {
        tpb_text_add(&text->block, "%s", line);
        if (text->block.length > TEXT_LINE_MAX || text->block.failed)
            text_end_block(text);
    } else {
        text->write(line, strlen(line));
    }
}

static void text_show_partial(struct tpl_engine_text *text)
{
    if (text->line.length > 0) {
        text_line(text, text->line.text);
        text->line.length = 0;
        text->line.text[0] = '\0';
    }
}

static void text_partial(struct tpl_timer *timer)
{
    text_show_partial(TPB_CONTAINER(timer, struct tpl_engine_text, partial));
}

/* From the filter: text without marks.  A NUL ends a piece: a rank that
 * writes binary data to a terminal's stream gets it through all the same. */
static void text_arrived(const char *data, size_t length, void *arg)
{
    struct tpl_engine_text *text = arg;

    while (length > 0) {
        const char *newline = memchr(data, '\n', length);
        size_t piece = newline != NULL ? (size_t)(newline - data) + 1
                                       : length;

        if (memchr(data, '\0', piece) != NULL) {
            text_show_partial(text);
            text->write(data, piece);
        } else {
            tpb_text_add(&text->line, "%.*s", (int)piece, data);
            if (text->line.failed) {
                /* No memory for more of this line; perhaps for the next. */
                text_show_partial(text);
                text->write(data, piece);
                tpb_text_fini(&text->line);
            } else if (newline != NULL
                       || text->line.length > TEXT_LINE_MAX) {
                text_show_partial(text);
            }
        }
        data += piece;
        length -= piece;
    }
    tpl_timer_set(text->loop, &text->partial, text->line.length > 0
                  ? tpb_now() + TEXT_PARTIAL * UINT64_C(1000000) : 0);
}

/* The label that an engine has put before a mark ("3: ", "[1,3]<stderr>:") is
 * all there is of its line. */
static void text_drop_label(struct tpl_engine_text *text)
{
    const char *line = text->line.text;
    size_t length = text->line.length;

    if (length == 0 || length > 64)
        return;
    while (length > 0 && line[length - 1] == ' ')
        length--;
    if (length > 0 && line[length - 1] == ':'
        && strspn(line, "[]0123456789, <>:.-stderouabcdfgjx/") >= length) {
        text->line.length = 0;
        text->line.text[0] = '\0';
    }
}

static void text_marked(const struct tpl_mark *mark, void *arg)
{
    struct tpl_engine_text *text = arg;

    text_drop_label(text);
    text->mark(mark, text->arg);
}

void tpl_engine_text_init(struct tpl_engine_text *text,
                          struct tpl_loop *loop, const char *cookie, bool all,
                          void (*mark)(const struct tpl_mark *, void *),
                          void (*write)(const char *text, size_t length),
                          void *arg)
{
    memset(text, 0, sizeof(*text));
    text->loop = loop;
    text->all = all;
    text->holds = !all;
    text->partial.fire = text_partial;
    text->filter.cookie = cookie;
    text->filter.text = text_arrived;
    text->filter.mark = text_marked;
    text->filter.arg = text;
    text->mark = mark;
    text->write = write;
    text->arg = arg;
}

void tpl_engine_text_feed(struct tpl_engine_text *text, const char *data,
                          size_t length)
{
    tpl_mark_feed(&text->filter, data, length);
}

void tpl_engine_text_release(struct tpl_engine_text *text)
{
    if (!text->holds)
        return;
    text->holds = false;
    if (text->held.length > 0)
        text->write(text->held.text, text->held.length);
    text->held.length = 0;
}

void tpl_engine_text_hush(struct tpl_engine_text *text)
{
    text->quiet = true;
}

void tpl_engine_text_end(struct tpl_engine_text *text)
{
    tpl_mark_flush(&text->filter);
    text_show_partial(text);
    if (text->in_block)
        text_end_block(text);
}

void tpl_engine_text_fini(struct tpl_engine_text *text)
{
    tpl_timer_set(text->loop, &text->partial, 0);
    tpb_text_fini(&text->line);
    tpb_text_fini(&text->held);
    tpb_text_fini(&text->noise);
    tpb_text_fini(&text->block);
}
