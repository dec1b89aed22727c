/* SPDX-License-Identifier: BSD-3-Clause */
/* What callers get wrong: said at once, and no callback comes of it. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/multi/spmd.h"

static void arguments_never(tp_pipe *pipe, tp_status status,
                            tp_message *message, void *arg)
{
    (void)pipe;
    (void)message;
    (void)arg;
    tpx_check(false, "a callback came after a call that did not return TP_OK"
              " (with \"%s\")", tp_strerror(status));
}

static void arguments_never_accept(tp_listener *listener, tp_status status,
                                   tp_pipe *pipe, void *arg)
{
    (void)listener;
    arguments_never(pipe, status, NULL, arg);
}

/* Time for callbacks that must not come. */
static void arguments_settle(void)
{
    for (int i = 0; i < 3; i++)
        tp_wait(tpx_me.context, 5, NULL);
}

/* What a newer tp.h would have: harmless as long as it asks for nothing. */
static void arguments_newer(void)
{
    struct {
        tp_options known;
        unsigned char more[24];
    } newer = { .known = TP_OPTIONS_INIT };
    tp_context *context = NULL;

    newer.known.size = sizeof(newer);
    tpx_ok(tp_init(&newer.known, &context));
    tpx_ok(tp_finalize(context));
    newer.more[sizeof(newer.more) - 1] = 1;
    tpx_status(tp_init(&newer.known, &context), TP_ERR_NOT_SUPPORTED);
    newer.known.size = sizeof(tp_options);
    tpx_ok(tp_init(&newer.known, &context));
    tpx_ok(tp_finalize(context));
    newer.known.size = SIZE_MAX;   /* not looked at any further */
    tpx_status(tp_init(&newer.known, &context), TP_ERR_INVALID);
}

/* Files of ranks whose names were cut at 511 bytes were one and the same. */
static void arguments_folder(void)
{
    char place[] = "/tmp/tpx-arguments-XXXXXX", name[251], text[8192];
    tp_options options = TP_OPTIONS_INIT;
    tp_context *context;

    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    tpx_check(mkdtemp(place) != NULL, "mkdtemp");
    snprintf(text, sizeof(text), "dir:%s/%s", place, name);
    tpx_check(mkdir(text + 4, 0700) == 0, "mkdir");
    snprintf(text, sizeof(text), "dir:%s/%s/%s", place, name, name);
    tpx_check(mkdir(text + 4, 0700) == 0, "mkdir");
    options.bootstrap = text;
    tpx_ok(tp_init(&options, &context));
    tpx_ok(tp_finalize(context));
    snprintf(text, sizeof(text), "%s/%s/%s/card.0", place, name, name);
    tpx_check(access(text, F_OK) == 0, "no card.0");
    snprintf(text, sizeof(text), "rm -r %s", place);
    tpx_check(system(text) == 0, "rm");
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    memcpy(text, "dir:/", 5);
    tpx_status(tp_init(&options, &context), TP_ERR_INVALID);
}

static void arguments_init(void)
{
    tp_context *untouched = (tp_context *)(uintptr_t)16, *context = untouched;
    tp_options options = TP_OPTIONS_INIT;

    tpx_status(tp_init(NULL, NULL), TP_ERR_INVALID);
    options.size = 3;
    tpx_status(tp_init(&options, &context), TP_ERR_INVALID);
    options = (tp_options)TP_OPTIONS_INIT;
    options.progress = (tp_progress_mode)7;
    tpx_status(tp_init(&options, &context), TP_ERR_INVALID);
    options = (tp_options)TP_OPTIONS_INIT;
    options.connect_timeout_ms = -1;
    tpx_status(tp_init(&options, &context), TP_ERR_INVALID);
    options = (tp_options)TP_OPTIONS_INIT;
    options.finalize_timeout_ms = -1;
    tpx_status(tp_init(&options, &context), TP_ERR_INVALID);
    options = (tp_options)TP_OPTIONS_INIT;
    options.bootstrap = "carrier pigeon";
    tpx_status(tp_init(&options, &context), TP_ERR_INVALID);
    options.bootstrap = "dir:/nonexistent/folder";
    tpx_status(tp_init(&options, &context), TP_ERR_SYSTEM);
    options = (tp_options)TP_OPTIONS_INIT;
    options.backends = "carrier_pigeon";
    tpx_status(tp_init(&options, &context), TP_ERR_UNREACHABLE);
    setenv("TP_PROGRESS", "sometimes", 1);
    tpx_status(tp_init(NULL, &context), TP_ERR_INVALID);
    unsetenv("TP_PROGRESS");
    setenv("TP_RANK", "1", 1);
    tpx_status(tp_init(NULL, &context), TP_ERR_INVALID);
    setenv("TP_RANK", "0", 1);
    tpx_check(context == untouched, "a failed tp_init() wrote its result");
    /* After all that it still works, and with less than all the options. */
    options = (tp_options)TP_OPTIONS_INIT;
    options.size = offsetof(tp_options, backends);
    options.progress = TP_PROGRESS_MANUAL;
    tpx_ok(tp_init(&options, &context));
    tpx_ok(tp_finalize(context));
}

static void arguments_context(void)
{
    void *memory = NULL;
    tp_device cpu = { TP_DEVICE_CPU, 0 }, odd = { TP_DEVICE_CPU, 1 };
    tp_context *context = tpx_me.context;

    tpx_equal(tp_rank(NULL), -1);
    tpx_equal(tp_size(NULL), -1);
    tpx_equal(tp_local_rank(NULL), -1);
    tpx_equal(tp_local_size(NULL), -1);
    tpx_equal(tp_fd(NULL), -1);
    tpx_status(tp_finalize(NULL), TP_ERR_INVALID);
    tpx_status(tp_progress(NULL, NULL), TP_ERR_INVALID);
    tpx_status(tp_wait(NULL, 0, NULL), TP_ERR_INVALID);
    tpx_status(tp_wait(context, -2, NULL), TP_ERR_INVALID);
    tpx_status(tp_read_descriptor_any(NULL, arguments_never, NULL),
               TP_ERR_INVALID);
    tpx_status(tp_read_descriptor_any(context, NULL, NULL), TP_ERR_INVALID);
    tpx_status(tp_alloc(NULL, 1, cpu, &memory), TP_ERR_INVALID);
    tpx_status(tp_alloc(context, 1, cpu, NULL), TP_ERR_INVALID);
    tpx_status(tp_alloc(context, 0, cpu, &memory), TP_ERR_INVALID);
    tpx_status(tp_alloc(context, 1, odd, &memory), TP_ERR_INVALID);
    tpx_status(tp_alloc(context, SIZE_MAX, cpu, &memory), TP_ERR_NO_MEMORY);
    tpx_check(memory == NULL, "a failed tp_alloc() wrote its result");
    tpx_status(tp_free(NULL, &memory), TP_ERR_INVALID);
    tpx_status(tp_free(context, &memory), TP_ERR_INVALID);
    tpx_ok(tp_free(context, NULL));
    tpx_ok(tp_alloc(context, 5000, cpu, &memory));
    memset(memory, 1, 5000);
    tpx_equal((uintptr_t)memory % 4096, 0);
    tpx_status(tp_free(context, (char *)memory + 1), TP_ERR_INVALID);
    tpx_ok(tp_free(context, memory));
    tpx_status(tp_free(context, memory), TP_ERR_INVALID);
    tpx_ok(tp_alloc(context, 1, cpu, &memory));    /* left to tp_finalize() */
    tpx_status(tp_listen(NULL, NULL, NULL), TP_ERR_INVALID);
    tpx_status(tp_listen(context, NULL, NULL), TP_ERR_INVALID);
    tpx_status(tp_listener_address(NULL, NULL, 0), TP_ERR_INVALID);
    tpx_status(tp_accept(NULL, arguments_never_accept, NULL), TP_ERR_INVALID);
    tpx_status(tp_connect(context, NULL, NULL), TP_ERR_INVALID);
    tpx_status(tp_listener_close(NULL), TP_ERR_INVALID);
    tpx_check(strcmp(tp_strerror((tp_status)999), "") != 0
              && strcmp(tp_version(), "") != 0, "no words");
}

static void arguments_pipe(void)
{
    tp_pipe *pipe = NULL, *again = NULL, *other = NULL;
    tp_context *context = tpx_me.context;
    tp_message message = { 0 };
    tp_stats stats;
    char *json, byte;

    tpx_status(tp_pipe_to_rank(NULL, 0, &pipe), TP_ERR_INVALID);
    tpx_status(tp_pipe_to_rank(context, -1, &pipe), TP_ERR_INVALID);
    tpx_status(tp_pipe_to_rank(context, tpx_me.size, &pipe), TP_ERR_INVALID);
    tpx_status(tp_pipe_to_rank(context, 0, NULL), TP_ERR_INVALID);
    tpx_status(tp_pipe_open(context, tpx_me.size, 1, &pipe), TP_ERR_INVALID);
    tpx_check(pipe == NULL, "a failed call wrote its result");
    tpx_ok(tp_pipe_to_rank(context, 0, &pipe));
    tpx_ok(tp_pipe_open(context, 0, 0, &again));
    tpx_check(pipe == again, "0 is not the ready-made pipe");
    tpx_ok(tp_pipe_open(context, 0, UINT32_MAX, &other));
    tpx_check(other != pipe, "two numbers, one pipe");
    tpx_ok(tp_pipe_open(context, 0, UINT32_MAX, &again));
    tpx_check(other == again, "one number, two pipes");
    tpx_equal(tp_pipe_rank(NULL), -1);
    tpx_equal(tp_pipe_rank(pipe), 0);
    tpx_check(strcmp(tp_pipe_peer(NULL), "") == 0
              && strcmp(tp_pipe_error(NULL), "") == 0
              && strcmp(tp_pipe_error(pipe), "") == 0, "not \"\"");
    tpx_status(tp_pipe_close(NULL), TP_ERR_INVALID);
    tpx_status(tp_pipe_stats(NULL, &stats), TP_ERR_INVALID);
    tpx_status(tp_pipe_stats(pipe, NULL), TP_ERR_INVALID);
    tpx_status(tp_pipe_explain(NULL, &json), TP_ERR_INVALID);
    tpx_status(tp_pipe_explain(pipe, NULL), TP_ERR_INVALID);
    tpx_status(tp_pipe_write(NULL, &message, arguments_never, NULL),
               TP_ERR_INVALID);
    tpx_status(tp_pipe_write(pipe, NULL, arguments_never, NULL),
               TP_ERR_INVALID);
    tpx_status(tp_pipe_read_descriptor(NULL, arguments_never, NULL),
               TP_ERR_INVALID);
    tpx_status(tp_pipe_read_descriptor(pipe, NULL, NULL), TP_ERR_INVALID);
    tpx_status(tp_pipe_send(NULL, &byte, 1), TP_ERR_INVALID);
    tpx_status(tp_pipe_send(pipe, NULL, 1), TP_ERR_INVALID);
    tpx_status(tp_pipe_recv(NULL, &byte, 1, NULL), TP_ERR_INVALID);
    tpx_status(tp_pipe_recv(pipe, NULL, 1, NULL), TP_ERR_INVALID);
    tpx_status(tp_pipe_send_message(NULL, &message, 0), TP_ERR_INVALID);
    tpx_status(tp_pipe_send_message(pipe, NULL, 0), TP_ERR_INVALID);
    tpx_status(tp_pipe_recv_skeleton(NULL, NULL, 0), TP_ERR_INVALID);
    tpx_status(tp_pipe_recv_skeleton(pipe, NULL, 0), TP_ERR_INVALID);
    tpx_status(tp_pipe_recv_message(pipe, NULL, 0), TP_ERR_INVALID);
    tpx_status(tp_pipe_recv_message(NULL, &message, 0), TP_ERR_INVALID);
    arguments_settle();
}

static void arguments_refused(tp_pipe *pipe, tp_message message)
{
    tpx_status(tp_pipe_write(pipe, &message, arguments_never, NULL),
               TP_ERR_INVALID);
    tpx_status(tp_pipe_send_message(pipe, &message, -1), TP_ERR_INVALID);
}

/* A pipe of its own: of each the first refusal counts. */
static void arguments_wrong(unsigned number, tp_message message,
                            const char *words)
{
    tp_pipe *pipe = tpx_pipe(0, number);

    arguments_refused(pipe, message);
    tpx_check(strcmp(tp_pipe_error(pipe), words) == 0,
              "its words are \"%s\", expected \"%s\"", tp_pipe_error(pipe),
              words);
}

static void arguments_messages(void)
{
    char byte = 1;
    tp_payload good = { &byte, 1, &byte, 1 };
    tp_payload no_data[2] = { { &byte, 1, NULL, 0 }, { NULL, 1, NULL, 0 } };
    tp_payload no_metadata = { &byte, 1, NULL, 1 };
    tp_payload endless[2] = { { &byte, SIZE_MAX, NULL, 0 },
                              { &byte, SIZE_MAX, NULL, 0 } };
    tp_payload chatty = { &byte, 1, &byte, (size_t)2 << 30 };
    tp_payload babbling[2] = { { &byte, 1, &byte, (size_t)1 << 29 },
                               { &byte, 1, &byte, (size_t)1 << 29 } };
    tp_tensor tensor = { .data = &byte, .length = 1 }, bad[3];
    tp_message message = { .tensors = bad, .tensor_count = 3 };

    arguments_wrong(1, (tp_message){ .metadata_length = 1 }, "a wrong message: "
                    "metadata is NULL, but metadata_length is not 0");
    arguments_wrong(2, (tp_message){ .payload_count = 1 }, "a wrong message: "
                    "payloads: NULL, but their count is not 0");
    arguments_wrong(3, (tp_message){ .tensor_count = 1 }, "a wrong message: "
                    "tensors: NULL, but their count is not 0");
    arguments_wrong(4, (tp_message){ .payloads = no_data, .payload_count = 2 },
                    "a wrong message: payload 1: data is NULL, but length is "
                    "not 0");
    arguments_wrong(5, (tp_message){ .payloads = no_data + 1,
                                     .payload_count = 1 },
                    "a wrong message: payload 0: data is NULL, but length is "
                    "not 0");
    arguments_wrong(6, (tp_message){ .payloads = &no_metadata,
                                     .payload_count = 1 },
                    "a wrong message: payload 0: metadata is NULL, but "
                    "metadata_length is not 0");
    arguments_wrong(7, (tp_message){ .payloads = endless, .payload_count = 2 },
                    "a wrong message: payload 1: length is more than there can "
                    "be");
    arguments_wrong(8, (tp_message){ .payloads = endless, .payload_count = 1 },
                    "a wrong message: its lengths are more than there can be");
    arguments_wrong(9, (tp_message){ .payloads = &chatty, .payload_count = 1 },
                    "a wrong message: payload 0: metadata_length is more than "
                    "1 GiB");
    arguments_wrong(10, (tp_message){ .metadata = &byte,
                                      .metadata_length = SIZE_MAX },
                    "a wrong message: metadata_length is more than 1 GiB");
    arguments_wrong(11, (tp_message){ .payloads = babbling,
                                      .payload_count = 2 },
                    "a wrong message: its pieces and their metadata take more "
                    "than 1 GiB");
    arguments_wrong(12, (tp_message){ .payloads = &good,
                                      .payload_count = SIZE_MAX },
                    "a wrong message: payloads: more than 1048576");
    arguments_wrong(13, (tp_message){ .tensors = &tensor,
                                      .tensor_count = SIZE_MAX / 2 },
                    "a wrong message: tensors: more than 1048576");
    bad[0] = bad[1] = bad[2] = tensor;
    bad[2].data = NULL;
    arguments_wrong(14, message, "a wrong message: tensor 2: data is NULL, but "
                    "length is not 0");
    bad[0].metadata_length = 2;
    arguments_wrong(15, message, "a wrong message: tensor 0: metadata is NULL, "
                    "but metadata_length is not 0");
    bad[0].metadata = &byte;
    bad[0].metadata_length = SIZE_MAX - 60;
    arguments_wrong(16, message, "a wrong message: tensor 0: metadata_length "
                    "is more than 1 GiB");
    arguments_settle();
}

/* ---- devices ------------------------------------------------------------ */

/* What is logged goes to a file of its own; returns what was to get it. */
static int arguments_listen(int *file)
{
    int before = dup(STDERR_FILENO);

    *file = memfd_create("log", MFD_CLOEXEC);
    tpx_check(before >= 0 && *file >= 0
              && dup2(*file, STDERR_FILENO) == STDERR_FILENO, "dup2");
    return before;
}

static void arguments_heard(int file, int before, const char *words)
{
    char text[1024] = "";

    tpx_check(dup2(before, STDERR_FILENO) == STDERR_FILENO, "dup2");
    close(before);
    tpx_check(pread(file, text, sizeof(text) - 1, 0) >= 0, "pread");
    close(file);
    tpx_check(strstr(text, "warn: ") != NULL && strstr(text, words) != NULL,
              "the log says \"%s\", nothing of \"%s\"", text, words);
}

/* Where a tensor cannot be: refused, and both the log and the pipe say why. */
static void arguments_devices(void)
{
    static const tp_device odd[] = { { TP_DEVICE_CPU, 1 },
                                     { TP_DEVICE_CUDA, -1 },
                                     { (tp_device_type)17, 0 },
                                     { TP_DEVICE_ANY, 0 } };
    static const char *const said[] = { "no device cpu:1", "no device cuda:-1",
                                        "no devices of type 17",
                                        "TP_DEVICE_ANY is no place" };
    char byte = 1, words[40];
    tp_tensor tensors[2] = { { .data = &byte, .length = 1 } };
    tp_message message = { .tensors = tensors, .tensor_count = 2 };

    for (unsigned i = 0; i < 7; i++) {     /* any may be a target */
        tp_pipe *pipe = tpx_pipe(0, i);
        tp_device device = odd[i / 2];
        int file, before = arguments_listen(&file);

        tensors[1] = tensors[0];
        *(i % 2 == 0 ? &tensors[1].device : &tensors[1].target) = device;
        arguments_refused(pipe, message);
        snprintf(words, sizeof(words), "%s%s", said[i / 2],
                 i % 2 == 0 ? "" : ", its");
        arguments_heard(file, before, words);
        tpx_check(strstr(tp_pipe_error(pipe), words) != NULL,
                  "its words are \"%s\"", tp_pipe_error(pipe));
    }
    arguments_settle();
}

/* ---- skeletons ---------------------------------------------------------- */

static void arguments_skeletons(void)
{
    tp_pipe *pipe = tpx_pipe(0, 0), *other = tpx_pipe(0, 1);
    char bytes[3] = { 1, 2, 3 }, room[3] = { 0 };
    tp_payload payload = { bytes, 3, NULL, 0 };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    tp_message *skeleton = NULL, *second = NULL, copy;

    /* What is no skeleton at all. */
    tpx_status(tp_pipe_read(pipe, &message, arguments_never, NULL),
               TP_ERR_INVALID);
    tpx_check(strcmp(tp_pipe_error(pipe), "a wrong message: it is none that "
                     "waits to be read on this pipe") == 0,
              "its words are \"%s\"", tp_pipe_error(pipe));
    tpx_status(tp_pipe_borrow(pipe, NULL, arguments_never, NULL),
               TP_ERR_INVALID);
    tpx_status(tp_pipe_release(pipe, NULL), TP_ERR_INVALID);
    tpx_ok(tp_pipe_send(pipe, bytes, 3));
    tpx_ok(tp_pipe_send(pipe, bytes, 3));
    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, -1));
    copy = *skeleton;
    tpx_status(tp_pipe_read(pipe, skeleton, arguments_never, NULL),
               TP_ERR_INVALID);                        /* no data */
    skeleton->payloads[0].data = room;
    tpx_status(tp_pipe_recv_message(pipe, skeleton, -2), TP_ERR_INVALID);
    tpx_status(tp_pipe_recv_skeleton(pipe, &second, -2), TP_ERR_INVALID);
    tpx_status(tp_pipe_send_message(pipe, &message, -2), TP_ERR_INVALID);
    tpx_status(tp_pipe_read(other, skeleton, arguments_never, NULL),
               TP_ERR_INVALID);                        /* not of this pipe */
    tpx_status(tp_pipe_read(pipe, &copy, arguments_never, NULL),
               TP_ERR_INVALID);                        /* a copy is none */
    skeleton->payloads[0].length = 4;
    tpx_status(tp_pipe_read(pipe, skeleton, arguments_never, NULL),
               TP_ERR_INVALID);                        /* tampered with */
    skeleton->payloads[0].length = 3;
    tpx_ok(tp_pipe_recv_message(pipe, skeleton, -1));
    tpx_equal(memcmp(room, bytes, 3), 0);
    tpx_status(tp_pipe_read(pipe, skeleton, arguments_never, NULL),
               TP_ERR_INVALID);                        /* read twice */
    tpx_ok(tp_pipe_recv_skeleton(pipe, &second, -1));
    tpx_status(tp_pipe_recv_skeleton(pipe, &skeleton, 20), TP_ERR_TIMEOUT);
    arguments_settle();
}   /* tp_finalize() has an unread skeleton to free */

/* Of a skeleton that is one the words say what is wrong with it. */
static void arguments_unfilled(void)
{
    tp_pipe *pipes[2] = { tpx_pipe(0, 0), tpx_pipe(0, 1) };
    tp_payload payloads[2] = { { (void *)(uintptr_t)"abc", 3, NULL, 0 },
                               { (void *)(uintptr_t)"de", 2, NULL, 0 } };
    tp_message message = { .payloads = payloads, .payload_count = 2 };
    static const char *const words[2] = {
        "a wrong message: payload 1: there is no memory for it: data is NULL",
        "a wrong message: a length is not what arrived any more"
    };
    char room[5] = "";

    for (int i = 0; i < 2; i++) {
        tp_message *skeleton;
        unsigned written = 0;

        tpx_ok(tp_pipe_write(pipes[i], &message, tpx_count_ok, &written));
        tpx_ok(tp_pipe_recv_skeleton(pipes[i], &skeleton, -1));
        skeleton->payloads[0].data = room;
        if (i == 1) {
            skeleton->payloads[1].data = room + 3;
            skeleton->payloads[1].length = 1;
        }
        tpx_status(tp_pipe_read(pipes[i], skeleton, arguments_never, NULL),
                   TP_ERR_INVALID);
        tpx_check(strcmp(tp_pipe_error(pipes[i]), words[i]) == 0,
                  "its words are \"%s\"", tp_pipe_error(pipes[i]));
        skeleton->payloads[1].data = room + 3;
        skeleton->payloads[1].length = 2;
        tpx_ok(tp_pipe_recv_message(pipes[i], skeleton, -1));
        tpx_equal(memcmp(room, "abcde", 5), 0);
        tpx_until(&written, 1);
    }
    arguments_settle();
}

/* What a write refuses as a place a read does, too, and then takes another. */
static void arguments_places(void)
{
    static const tp_device odd[] = { { TP_DEVICE_CPU, 3 }, { TP_DEVICE_ANY, 0 },
                                     { TP_DEVICE_CUDA, -1 } };
    tp_pipe *pipe = tpx_pipe(0, 0);
    tp_tensor tensor = { .data = (void *)(uintptr_t)"abc", .length = 3 };
    tp_message message = { .tensors = &tensor, .tensor_count = 1 }, *skeleton;
    unsigned written = 0;
    char room[3] = "";

    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        tpx_ok(tp_pipe_write(pipe, &message, tpx_count_ok, &written));
        tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, -1));
        skeleton->tensors[0].data = room;
        skeleton->tensors[0].device = odd[i];
        tpx_status(tp_pipe_read(pipe, skeleton, arguments_never, NULL),
                   TP_ERR_INVALID);
        tpx_status(tp_pipe_recv_message(pipe, skeleton, -1), TP_ERR_INVALID);
        skeleton->tensors[0].device = (tp_device){ TP_DEVICE_CPU, 0 };
        tpx_ok(tp_pipe_recv_message(pipe, skeleton, -1));
        tpx_equal(memcmp(room, "abc", 3), 0);
        tpx_until(&written, (unsigned)i + 1);
    }
    arguments_settle();
}

static void arguments_read_in_vain(tp_pipe *pipe, tp_status status,
                                   tp_message *skeleton, void *arg)
{
    static char room[3];

    tpx_ok(status);
    skeleton->payloads[0].data = room;
    tpx_ok(tp_pipe_read(pipe, skeleton, tpx_count_ok, arg));
    tpx_status(tp_pipe_read(pipe, skeleton, arguments_never, arg),
               TP_ERR_INVALID);
}

static void arguments_read_twice(void)
{
    tp_pipe *pipe = tpx_pipe(0, 0);
    unsigned done = 0;

    tpx_ok(tp_pipe_read_descriptor(pipe, arguments_read_in_vain, &done));
    tpx_ok(tp_pipe_send(pipe, "abc", 3));
    tpx_until(&done, 1);
    arguments_settle();
    tpx_equal(done, 1);
}

/* A tensor on a device, and no driver: told in words, and the pipe goes on. */
static void arguments_no_driver(void)
{
    tp_options options = TP_OPTIONS_INIT;
    struct tpx_end end = { 0, TP_OK };
    char byte = 'd', room;
    tp_tensor tensor = { .data = &byte, .length = 1,
                         .device = { TP_DEVICE_CUDA, 0 },
                         .target = { TP_DEVICE_ANY, 0 } };
    tp_message message = { .tensors = &tensor, .tensor_count = 1 }, *skeleton;
    int file, before;
    tp_pipe *pipe;

    setenv("TP_CUDA_LIBRARY", "/nonexistent/libcuda.so", 1);
    options.progress = tpx_me.mode;
    tpx_ok(tp_init(&options, &tpx_me.context));
    tpx_ok(tp_pipe_to_rank(tpx_me.context, 0, &pipe));
    tpx_check(*tp_pipe_error(pipe) == '\0', "words before any call");
    tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
    tpx_until(&end.over, 1);
    tpx_status(end.status, TP_ERR_NOT_SUPPORTED);
    tpx_check(strstr(tp_pipe_error(pipe), "/nonexistent/libcuda.so") != NULL,
              "its words are \"%s\"", tp_pipe_error(pipe));
    tensor.device.type = TP_DEVICE_CPU;
    tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
    tpx_ok(tp_pipe_recv(pipe, &room, 1, NULL));
    tpx_until(&end.over, 2);
    tpx_ok(end.status);
    tpx_ok(tp_pipe_write(pipe, &message, tpx_ended, &end));
    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, -1));
    skeleton->tensors[0].data = &room;
    skeleton->tensors[0].device.type = TP_DEVICE_CUDA;
    before = arguments_listen(&file);
    tpx_status(tp_pipe_read(pipe, skeleton, arguments_never, NULL),
               TP_ERR_INVALID);
    arguments_heard(file, before, "/nonexistent/libcuda.so");
    skeleton->tensors[0].device.type = TP_DEVICE_CPU;
    tpx_ok(tp_pipe_recv_message(pipe, skeleton, -1));
}

/* A listener that is not there is what keeps its visitor's card away. */
static void arguments_not_reached(void)
{
    tp_pipe *pipe;
    char *json;

    tpx_ok(tp_connect(tpx_me.context, "tp:1;tcp=127.0.0.1:1;"
                      "key=00112233445566778899aabbccddeeff", &pipe));
    tpx_ok(tp_pipe_explain(pipe, &json));
    tpx_check(strstr(json, "listener has not been reached") != NULL,
              "explained as %s", json);
    free(json);
    tpx_ok(tp_pipe_close(pipe));
}

/* A contract that leaves a listener no way to who calls it: told at once, and
 * not when the patience of two minutes is over. */
static void arguments_no_way(void)
{
    tp_options options = TP_OPTIONS_INIT;
    tp_context *host = NULL;
    char address[1024], byte = 'n';
    tp_listener *listener;
    tp_pipe *pipe;

    options.bootstrap = "single";
    tpx_ok(tp_init(&options, &tpx_me.context));
    options.require = "node:loop";
    tpx_ok(tp_init(&options, &host));
    tpx_ok(tp_listen(host, NULL, &listener));
    tpx_ok(tp_listener_address(listener, address, sizeof(address)));
    tpx_ok(tp_connect(tpx_me.context, address, &pipe));
    tpx_status(tp_pipe_send(pipe, &byte, 1), TP_ERR_UNREACHABLE);
    tpx_check(strstr(tp_pipe_error(pipe), "TP_REQUIRE") != NULL
                  && strstr(tp_pipe_error(pipe), "in time") == NULL,
              "its words are \"%s\"", tp_pipe_error(pipe));
    tpx_ok(tp_finalize(host));
}

const struct tpx_spmd tpx_arguments[] = {
    { "arguments_init", arguments_init, 1, TPX_BARE | TPX_WARNS | TPX_ONCE },
    { "arguments_folder", arguments_folder, 1,
      TPX_BARE | TPX_WARNS | TPX_ONCE },
    { "arguments_newer", arguments_newer, 1, TPX_BARE | TPX_WARNS | TPX_ONCE },
    { "arguments_context", arguments_context, 1, TPX_ONCE },
    { "arguments_pipe", arguments_pipe, 1, 0 },
    { "arguments_messages", arguments_messages, 1, 0 },
    { "arguments_devices", arguments_devices, 1, 0 },
    { "arguments_skeletons", arguments_skeletons, 1, 0 },
    { "arguments_unfilled", arguments_unfilled, 1, 0 },
    { "arguments_places", arguments_places, 1, TPX_WARNS },
    { "arguments_read_twice", arguments_read_twice, 1, 0 },
    { "arguments_no_driver", arguments_no_driver, 1, TPX_BARE | TPX_ONCE },
    { "arguments_not_reached", arguments_not_reached, 1, 0 },
    { "arguments_no_way", arguments_no_way, 1, TPX_BARE | TPX_ONCE, 20 },
    { NULL }
};
