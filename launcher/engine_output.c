/* SPDX-License-Identifier: BSD-3-Clause */
/* From an engine's pieces to lines. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "launcher/engine_output.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

struct output_reader {
    struct tpl_frame_reader frames;
    struct tpl_engine_output *output;
    int rank;
};

static void output_frame(struct tpl_frame_reader *frames,
                         enum tpl_frame_kind kind, const char *data,
                         size_t length)
{
    struct output_reader *reader = TPB_CONTAINER(frames, struct output_reader,
                                                 frames);
    struct tpl_engine_output *output = reader->output;

    if (kind == TPL_FRAME_MARK)
        tpl_engine_text_feed(output->text, data, length);
    else if (!tpl_iof_put(output->iof, reader->rank, kind == TPL_FRAME_ERR,
                          data, length))
        output->unread |= tpl_iof_unread(output->iof);
}

/* From tprun-rank, but none of its words: the linker's, say. */
static void output_text(struct tpl_frame_reader *frames, const char *data,
                        size_t length)
{
    struct output_reader *reader = TPB_CONTAINER(frames, struct output_reader,
                                                 frames);

    tpl_engine_text_feed(reader->output->text, data, length);
}

static struct output_reader *output_reader(struct tpl_engine_output *output,
                                           int rank)
{
    struct output_reader *reader;

    if (rank >= output->ranks)
        return NULL;
    reader = output->readers[rank];
    if (reader == NULL)
        reader = output->readers[rank] = tpb_zalloc(sizeof(*reader));
    if (reader != NULL) {
        reader->frames.frame = output_frame;
        reader->frames.text = output_text;
        reader->output = output;
        reader->rank = rank;
    }
    return reader;
}

static void output_rest(const char *data, size_t length, void *arg)
{
    struct tpl_engine_output *output = arg;

    tpl_engine_text_feed(output->text, data, length);
}

static void output_rank(int rank, const char *data, size_t length, void *arg)
{
    struct output_reader *reader = output_reader(arg, rank);

    if (reader == NULL)
        output_rest(data, length, arg);
    else
        tpl_frame_feed(&reader->frames, data, length);
}

static void output_read(struct tpl_watch *watch, uint32_t events)
{
    struct tpl_engine_output *output = TPB_CONTAINER(
        watch, struct tpl_engine_output, watch);
    char data[16384];
    ssize_t got = read(watch->fd, data, sizeof(data));

    (void)events;
    if (got > 0) {
        tpl_pieces_feed(&output->pieces, data, (size_t)got);
        if (tpl_iof_crowded(output->iof))
            tpl_watch_set(output->loop, watch, 0);
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
        tpl_watch_close(output->loop, watch);
    }
}

static void output_room(void *arg)
{
    struct tpl_engine_output *output = arg;

    tpl_watch_set(output->loop, &output->watch, EPOLLIN);
}

tp_status tpl_engine_output_open(struct tpl_engine_output *output,
                                 struct tpl_loop *loop, int ranks,
                                 const struct tpl_iof_how *how,
                                 struct tpl_engine_text *text, int *writer,
                                 struct tpb_error *error)
{
    int ends[2];
    tp_status status = tpl_iof_new(loop, ranks, how, error, &output->iof);

    if (status != TP_OK)
        return status;
    output->loop = loop;
    output->text = text;
    output->ranks = ranks;
    output->pieces = (struct tpl_pieces){ .rank = output_rank,
                                          .rest = output_rest,
                                          .arg = output };
    tpl_pieces_init(&output->pieces);
    tpl_iof_feed(output->iof, output_room, output);
    output->readers = tpb_array((size_t)ranks, sizeof(*output->readers));
    if (output->readers == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    if (pipe2(ends, O_CLOEXEC) < 0)
        return tpb_fail_errno(error, errno, "cannot make a pipe");
    *writer = ends[1];
    output->watch = (struct tpl_watch){ ends[0], 0, output_read };
    tpl_watch_set(loop, &output->watch, EPOLLIN);
    return TP_OK;
}

void tpl_engine_output_end(struct tpl_engine_output *output)
{
    tpl_watch_close(output->loop, &output->watch);
    if (output->readers != NULL)
        tpl_pieces_flush(&output->pieces);
    for (int i = 0; output->readers != NULL && i < output->ranks; i++)
        if (output->readers[i] != NULL)
            tpl_frame_flush(&output->readers[i]->frames);
    tpl_iof_hang_up(output->iof);
}

bool tpl_engine_output_waits(const struct tpl_engine_output *output)
{
    return output->iof != NULL && tpl_iof_crowded(output->iof);
}

void tpl_engine_output_fini(struct tpl_engine_output *output)
{
    if (output->iof == NULL)
        return;
    tpl_watch_close(output->loop, &output->watch);
    for (int i = 0; output->readers != NULL && i < output->ranks; i++)
        tpb_free(output->readers[i]);
    tpb_free(output->readers);
    tpl_iof_free(output->iof);
}
