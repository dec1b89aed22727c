/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a channel has brought is told to its sender before its read ends.  If
 * that finds neither room nor memory the peer ends in there, and all its reads
 * with it: this one, too, whose operation is nobody's any more if a thread
 * waited for it and enough of them are kept.
 */
#include "config.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/core.h"
#include "tests/lib/tpx.h"

enum {
    TOLD_LONG = 4 << 20,           /* brought in more than one turn */
    TOLD_SHORT = 16000, TOLD_PIPES = 100, TOLD_WRITES = 40,
    TOLD_OPS = 2 * TPR_OPS_KEPT,
    TOLD_TICKS_NS = 50000000
};

/* Two ranks in one process; the second one reads. */
static tp_context *told_context[2];
static tp_pipe *told_pipe[2];
static tp_message *told_skeleton;
static unsigned char *told_room;
static pthread_t told_thread;
static _Atomic bool told_over;
static tp_status told_status;

static void told_open(int rank)
{
    tp_options options = TP_OPTIONS_INIT;
    char text[16];

    options.progress = TP_PROGRESS_MANUAL;
    options.backends = "shm,map,loop";
    options.finalize_timeout_ms = 50;
    snprintf(text, sizeof(text), "%d", rank);
    setenv("TP_RANK", text, 1);
    setenv("TP_SIZE", "2", 1);
    ck_assert_int_eq(tp_init(&options, &told_context[rank]), TP_OK);
}

static void told_turn(void)
{
    for (int rank = 0; rank < 2; rank++)
        ck_assert_int_eq(tp_progress(told_context[rank], NULL), TP_OK);
}

static void told_ended(tp_pipe *pipe, tp_status status, tp_message *message,
                       void *arg)
{
    (void)pipe;
    (void)status;
    (void)message;
    (void)arg;
}

static void told_written(tp_pipe *pipe, tp_status status, tp_message *message,
                         void *arg)
{
    (void)pipe;
    (void)status;
    (void)arg;
    tpb_free(message);
}

static void told_write(tp_pipe *pipe, void *data, size_t length)
{
    tp_message *message = tpb_zalloc(sizeof(*message) + sizeof(tp_payload));

    ck_assert_ptr_nonnull(message);
    message->payloads = (tp_payload *)(void *)(message + 1);
    message->payloads[0] = (tp_payload){ .data = data, .length = length };
    message->payload_count = 1;
    ck_assert_int_eq(tp_pipe_write(pipe, message, told_written, NULL),
                     TP_OK);
}

/* All that are kept: the next one that is made is freed. */
static void told_keep_operations(unsigned number)
{
    tp_pipe *pipe;

    ck_assert_int_eq(tp_pipe_open(told_context[1], 0, number, &pipe), TP_OK);
    for (int i = 0; i < TOLD_OPS; i++)
        ck_assert_int_eq(tp_pipe_read_descriptor(pipe, told_ended, NULL),
                         TP_OK);
    ck_assert_int_eq(tp_pipe_close(pipe), TP_OK);
    /* One call may not run all of their callbacks, if they take long. */
    for (int i = 0; i < TOLD_OPS; i++)
        ck_assert_int_eq(tp_progress(told_context[1], NULL), TP_OK);
    ck_assert_uint_eq(told_context[1]->free_op_count, TPR_OPS_KEPT);
}

/* Nothing more goes to the first rank, which does not look. */
static void told_fill(void)
{
    static unsigned char bytes[TOLD_SHORT];
    const struct tpr_peer *peer = told_pipe[1]->peer;

    for (unsigned n = 1; tpb_list_empty(&peer->blocked); n++) {
        tp_pipe *pipe;

        ck_assert_uint_le(n, TOLD_PIPES);
        ck_assert_int_eq(tp_pipe_open(told_context[1], 0, n, &pipe), TP_OK);
        for (int i = 0; i < TOLD_WRITES; i++)
            told_write(pipe, bytes, sizeof(bytes));
    }
}

static void *told_read(void *arg)
{
    (void)arg;
    told_status = tp_pipe_recv_message(told_pipe[1], told_skeleton, -1);
    atomic_store(&told_over, true);
    return NULL;
}

/* The second rank takes what the first has passed to it, the block to be
 * mapped: within some ticks of a clock its descriptor is asked for. */
static void told_take(void)
{
    uint64_t until = tpb_now() + TOLD_TICKS_NS;

    while (tpb_now() < until)
        ck_assert_int_eq(tp_progress(told_context[1], NULL), TP_OK);
}

/* Another thread finds the token taken, and so makes an operation of its own.
 * Then there is memory for nothing more. */
static void told_arrived(tp_pipe *pipe, tp_status status,
                         tp_message *skeleton, void *arg)
{
    (void)pipe;
    (void)arg;
    ck_assert_int_eq(status, TP_OK);
    told_skeleton = skeleton;
    skeleton->payloads[0].data = told_room;
    ck_assert_int_eq(pthread_create(&told_thread, NULL, told_read, NULL), 0);
    while (atomic_load(&told_context[1]->tasks) == NULL)
        usleep(100);
    tpb_alloc_fail_at(1);
}

START_TEST(no_room_to_tell)
{
    char directory[] = "/tmp/tp-told.XXXXXX", text[64];
    void *block;

    mallopt(M_PERTURB, 0x5a);      /* what is freed is of no use */
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(text, sizeof(text), "dir:%s", directory);
    setenv("TP_BOOTSTRAP", text, 1);
    told_open(0);
    told_open(1);
    for (int rank = 0; rank < 2; rank++)
        ck_assert_int_eq(tp_pipe_to_rank(told_context[rank], !rank,
                                         &told_pipe[rank]), TP_OK);
    told_room = tpb_zalloc(TOLD_LONG);
    ck_assert_ptr_nonnull(told_room);
    ck_assert_int_eq(tp_alloc(told_context[0], TOLD_LONG,
                              (tp_device){ TP_DEVICE_CPU, 0 }, &block),
                     TP_OK);
    told_write(told_pipe[0], block, TOLD_LONG);
    while (told_pipe[0]->peer->state != TPR_PEER_CONNECTED
           || told_pipe[1]->peer->state != TPR_PEER_CONNECTED
           || tpb_list_empty(&told_pipe[0]->landing))
        told_turn();
    told_take();
    told_fill();
    told_keep_operations(TOLD_PIPES + 1);
    ck_assert_int_eq(tp_pipe_read_descriptor(told_pipe[1], told_arrived, NULL),
                     TP_OK);
    while (!atomic_load(&told_over))
        ck_assert_int_eq(tp_progress(told_context[1], NULL), TP_OK);
    pthread_join(told_thread, NULL);
    tpb_alloc_fail_at(0);
    ck_assert_str_eq(tp_pipe_error(told_pipe[1]), "out of memory");
    ck_assert_int_eq(told_status, TP_OK);
    tp_finalize(told_context[1]);
    tp_finalize(told_context[0]);
    tpb_free(told_room);
    snprintf(text, sizeof(text), "rm -r %s", directory);
    ck_assert_int_eq(system(text), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("told");
    TCase *tests = tcase_create("told");

    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, no_room_to_tell);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
