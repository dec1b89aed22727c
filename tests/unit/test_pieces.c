/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What ranks write, through an mpirun that cuts it anywhere, mixes the pieces,
 * and speaks in between: it comes back whole, rank by rank.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/engine_text.h"
#include "launcher/frames.h"
#include "launcher/pieces.h"
#include "runtime/base/alloc.h"
#include "tests/lib/tpx.h"

enum { RANKS = 3, BYTES = 40000, PIECE = 4096, MOST = 8192 };

static unsigned next(void)
{
    static unsigned state = 1;

    state = state * 1103515245u + 12345u;
    return state >> 8;
}

/* Bytes that come and go: what a rank has written, and what has arrived. */
struct bytes {
    size_t length;
    char data[BYTES * 4];
};

static struct bytes sent[RANKS], got[RANKS], rest, coded[RANKS], xml;
static struct tpl_frame_reader readers[RANKS];

static void put(struct bytes *bytes, const char *data, size_t length)
{
    ck_assert_uint_le(bytes->length + length, sizeof(bytes->data));
    memcpy(bytes->data + bytes->length, data, length);
    bytes->length += length;
}

static void put_word(struct bytes *bytes, const char *word)
{
    put(bytes, word, strlen(word));
}

static void on_frame(struct tpl_frame_reader *reader,
                     enum tpl_frame_kind kind, const char *data,
                     size_t length)
{
    struct bytes *bytes = &got[reader - readers];

    put(bytes, (const char[]){ (char)kind }, 1);
    put(bytes, data, length);
}

static void on_text(struct tpl_frame_reader *reader, const char *data,
                    size_t length)
{
    (void)reader;
    put(&rest, data, length);
}

static void on_rank(int rank, const char *data, size_t length, void *arg)
{
    (void)arg;
    ck_assert_int_lt(rank, RANKS);
    tpl_frame_feed(&readers[rank], data, length);
}

static void on_rest(const char *data, size_t length, void *arg)
{
    (void)arg;
    put(&rest, data, length);
}

/* A frame as tprun-rank writes it. */
static void write_frame(int rank, enum tpl_frame_kind kind, size_t length)
{
    char data[TPL_FRAME_MOST], frame[TPL_FRAME_CODED + 16];
    int ends[2];

    for (size_t i = 0; i < length; i++)
        data[i] = (char)next();
    put(&sent[rank], (const char[]){ (char)kind }, 1);
    put(&sent[rank], data, length);
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(tpl_frame_write(ends[1], kind, data, length), 0);
    put(&coded[rank], frame, (size_t)read(ends[0], frame, sizeof(frame)));
    close(ends[0]);
    close(ends[1]);
}

/* What mpirun makes of a piece. */
static void write_piece(int rank, const char *data, size_t length)
{
    size_t before = xml.length;
    char tag[64];

    snprintf(tag, sizeof(tag), "<stderr rank=\"%d\">", rank);
    put_word(&xml, tag);
    for (size_t i = 0; i < length; i++)
        if (data[i] == '<')
            put_word(&xml, "&lt;");
        else if (data[i] == '\n')
            put_word(&xml, "&#010;");
        else
            put(&xml, data + i, 1);
    put_word(&xml, "</stderr>");
    ck_assert_uint_lt(xml.length - before, MOST);
}

/* All that the ranks have written, in any order and any pieces. */
static void write_pieces(void)
{
    size_t done[RANKS] = { 0 };
    int left = RANKS;

    while (left > 0) {
        int rank = (int)(next() % RANKS);
        size_t most = coded[rank].length - done[rank];
        size_t length = next() % PIECE + 1;

        if (most == 0)
            continue;
        if (length > most)
            length = most;
        write_piece(rank, coded[rank].data + done[rank], length);
        done[rank] += length;
        left -= done[rank] == coded[rank].length;
    }
}

static void clear(void)
{
    memset(readers, 0, sizeof(readers));
    rest.length = xml.length = 0;
    for (int i = 0; i < RANKS; i++) {
        sent[i].length = got[i].length = coded[i].length = 0;
        readers[i].frame = on_frame;
        readers[i].text = on_text;
    }
}

static void feed(size_t step)
{
    struct tpl_pieces pieces = { .rank = on_rank, .rest = on_rest };

    tpl_pieces_init(&pieces);
    for (size_t i = 0; i < xml.length; i += step)
        tpl_pieces_feed(&pieces, xml.data + i,
                        xml.length - i < step ? xml.length - i : step);
    tpl_pieces_flush(&pieces);
    for (int i = 0; i < RANKS; i++)
        tpl_frame_flush(&readers[i]);
}

static void rest_is(const char *words)
{
    put(&rest, "", 1);
    ck_assert_str_eq(rest.data, words);
}

static const size_t steps[] = { 1, 7, 4096, sizeof(xml.data) };

START_TEST(test_mixed)
{
    static const char kinds[] = { TPL_FRAME_OUT, TPL_FRAME_ERR,
                                  TPL_FRAME_MARK };

    clear();
    for (int rank = 0; rank < RANKS; rank++)
        while (sent[rank].length < BYTES / 2)
            write_frame(rank, (enum tpl_frame_kind)kinds[next() % 3],
                        next() % 4 == 0 ? next() % 4
                                        : next() % TPL_FRAME_MOST + 1);
    put_word(&xml, "<mpirun>\n");
    write_pieces();
    put_word(&xml, "</mpirun>\n");
    feed(steps[_i]);
    rest_is("");
    for (int rank = 0; rank < RANKS; rank++) {
        ck_assert_uint_eq(got[rank].length, sent[rank].length);
        ck_assert_mem_eq(got[rank].data, sent[rank].data, sent[rank].length);
    }
}
END_TEST

/* Words of mpirun, of a linker, and what only looks like ours. */
static const struct { const char *stream, *rest; } others[] = {
    { "<mpirun>\n<stderr>no &lt;host&gt; &amp; such&#010;</stderr>\n",
      "no <host> & such\n" },
    { "plain, 1 < 2 && <b>\n", "plain, 1 < 2 && <b>\n" },
    { "<stdout rank=\"1\">from a linker&#010;</stdout>\n", "from a linker\n" },
    { "<stderr rank=\"1\">lib: ~ ~{ ~{x ~{o! ~~{m</stderr>",
      "lib: ~ ~{ ~{x ~{o! ~~{m" },
    { "<stderr rank=\"1\">~{o</stderr><stderr>mpirun</stderr>\n"
      "<stderr rank=\"1\">YWJj}</stderr>", "mpirun" },
    { "<stderr rank=\"1\">~{oYW<stderr>inside&#010;</stderr>\nJj}</stderr>x",
      "inside\nx" },
    { "<stderr rank=\"-1\">x", "<stderr rank=\"-1\">x" },
    { "&; &#; &nothing; &amp", "&; &#; &nothing; &amp" },
};

START_TEST(test_others)
{
    for (size_t i = 0; i < TPB_COUNT(steps); i++) {
        clear();
        put_word(&xml, others[_i].stream);
        feed(steps[i]);
        rest_is(others[_i].rest);
        if (got[1].length > 0)
            ck_assert_mem_eq(got[1].data, "oabc", 4);
    }
}
END_TEST

/* A frame that never ends is text, and so is all of it. */
START_TEST(test_endless)
{
    clear();
    put_word(&xml, "<stderr rank=\"2\">~{o");
    for (int i = 0; i < 3 * TPL_FRAME_CODED; i++)
        put(&xml, "A", 1);
    feed(1000);
    ck_assert_uint_eq(got[2].length, 0);
    ck_assert_uint_eq(rest.length, 3 + 3 * TPL_FRAME_CODED);
}
END_TEST

/* mpirun was ended in the middle of one: what has come of it is the rank's, and
 * nobody sees how it was coded. */
static const struct { const char *stream, *got; } cut[] = {
    { "<stderr rank=\"1\">~{oYWJj</stderr>", "oabc" },
    { "<stderr rank=\"1\">~{eYWJjZ", "eabc" },
    { "<stderr rank=\"1\">~{oYWJjZG", "oabcd" },
    { "<stderr rank=\"1\">~{mYWJjZG", "" },
};

START_TEST(test_cut)
{
    clear();
    put_word(&xml, cut[_i].stream);
    feed(1000);
    rest_is("");
    put(&got[1], "", 1);
    ck_assert_str_eq(got[1].data, cut[_i].got);
}
END_TEST

static void shown(const char *data, size_t length)
{
    put(&rest, data, length);
}

/* No memory for one line: it comes through, in its place, and those behind it
 * are looked at as before. */
START_TEST(test_text_no_memory)
{
    static char longer[300] = "";
    struct tpl_engine_text text;
    struct tpl_loop loop;

    clear();
    memset(longer, 'b', sizeof(longer) - 2);
    longer[sizeof(longer) - 2] = '\n';
    ck_assert_int_eq(tpl_loop_init(&loop, NULL), TP_OK);
    tpl_engine_text_init(&text, &loop, "cookie", false, NULL, shown, NULL);
    tpl_engine_text_release(&text);
    tpl_engine_text_feed(&text, "a", 1);
    tpb_alloc_fail_at(1);
    tpl_engine_text_feed(&text, longer, strlen(longer));
    tpb_alloc_fail_at(0);
    tpl_engine_text_feed(&text, "c\nsrun: error: d\n", 17);
    tpl_engine_text_end(&text);
    put(&rest, "", 1);
    ck_assert_uint_eq(rest.length, strlen(longer) + 4);
    ck_assert_int_eq(rest.data[0], 'a');
    ck_assert_str_eq(rest.data + 1 + strlen(longer), "c\n");
    tpl_engine_text_fini(&text);
    tpl_loop_fini(&loop);
}
END_TEST

/* What Open MPI says of a failure stays back; where it has bound ranks, which
 * it was asked for, is shown. */
START_TEST(test_text_binding)
{
    static const char said[] =
        "[host1:93] MCW rank 0 bound to socket 0[core 0[hwt 0]]: [B/.]\n"
        "[host1:93] MCW rank 1 is not bound\n";
    struct tpl_engine_text text;
    struct tpl_loop loop;

    clear();
    ck_assert_int_eq(tpl_loop_init(&loop, NULL), TP_OK);
    tpl_engine_text_init(&text, &loop, "cookie", false, NULL, shown, NULL);
    tpl_engine_text_feed(&text, said, strlen(said));
    tpl_engine_text_release(&text);
    tpl_engine_text_feed(&text, "[host1:93] Signal: Aborted (6)\n", 31);
    tpl_engine_text_end(&text);
    put(&rest, "", 1);
    ck_assert_str_eq(rest.data, said);
    tpl_engine_text_fini(&text);
    tpl_loop_fini(&loop);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pieces");
    TCase *tests = tcase_create("pieces");

    tcase_set_timeout(tests, 180);
    tcase_add_loop_test(tests, test_mixed, 0, TPB_COUNT(steps));
    tcase_add_loop_test(tests, test_others, 0, TPB_COUNT(others));
    tcase_add_test(tests, test_endless);
    tcase_add_loop_test(tests, test_cut, 0, TPB_COUNT(cut));
    tcase_add_test(tests, test_text_no_memory);
    tcase_add_test(tests, test_text_binding);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
