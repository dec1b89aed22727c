/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Streams and events of the test double.  Nothing runs by itself: an operation
 * runs when somebody asks for it (a query, a synchronise), or, in the mode
 * "eager", when it is enqueued and nothing holds it up.  "lazy" is the worst
 * order that is legal; in "delay" a query drives one step at a time, and may
 * drive none.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/gpu/double/double.h"

enum stream_what {
    STREAM_COPY, STREAM_FILL, STREAM_RECORD, STREAM_WAIT, STREAM_GATE,
    STREAM_STORE
};

struct stream_op {
    struct stream_op *next;
    enum stream_what what;
    cu_pointer to, from;
    size_t size;
    unsigned char byte;
    struct cu_event_s *event;
    uint64_t turn;                     /* of the event's record */
    uint32_t value;
};

struct cu_stream_s {
    struct cu_stream_s *next;
    struct cu_context_s *context;
    struct stream_op *first, **end;
    bool destroyed, running;
};

struct cu_event_s {
    struct cu_context_s *context;
    struct cu_stream_s *stream;        /* of the last record */
    uint64_t recorded, done;           /* turns */
    struct cu_stream_s *captured;      /* the last record is in its graph */
    int uses;                          /* operations that name it */
    bool destroyed;
};

static struct cu_stream_s *stream_all;

struct cu_stream_s *double_stream_new_locked(struct cu_context_s *context)
{
    struct cu_stream_s *stream = calloc(1, sizeof(*stream));

    if (stream == NULL)
        double_report("out of memory");
    stream->context = context;
    stream->end = &stream->first;
    stream->next = stream_all;
    stream_all = stream;
    return stream;
}

/* This thread's own of that context. */
static struct cu_stream_s *stream_own(struct cu_context_s *context)
{
    static _Thread_local struct cu_stream_s *own[DOUBLE_DEVICES];

    if (own[context->device] == NULL)
        own[context->device] = double_stream_new_locked(context);
    return own[context->device];
}

/* NULL is the current context's stream 0. */
struct cu_stream_s *double_stream_locked(cu_stream stream)
{
    struct cu_context_s *context = double_context_locked();

    if (context == NULL)
        return NULL;
    if (stream == NULL || stream == CU_LEGACY_STREAM)
        return context->legacy;
    if (stream == CU_THREAD_STREAM)
        return stream_own(context);
    for (struct cu_stream_s *each = stream_all; each != NULL;
         each = each->next)
        if (each == stream) {
            if (each->destroyed)
                double_report("a destroyed stream is used");
            return stream;
        }
    double_report("a stream that never was is used");
}

static void stream_event_drop(struct cu_event_s *event)
{
    if (--event->uses == 0 && event->destroyed)
        free(event);
}

/* ---- running ------------------------------------------------------------- */

static void stream_copy(struct stream_op *op)
{
    size_t done = 0;

    while (done < op->size) {
        size_t part = op->size - done, other = part;
        unsigned char *to = double_bytes_locked(op->to + done, &part,
                                                "a copy to");
        unsigned char *from = double_bytes_locked(op->from + done, &other,
                                                  "a copy from");

        if (other < part)
            part = other;
        memmove(to, from, part);
        done += part;
    }
}

static void stream_fill(struct stream_op *op)
{
    size_t done = 0;

    while (done < op->size) {
        size_t part = op->size - done;
        unsigned char *to = double_bytes_locked(op->to + done, &part,
                                                "a memset of");

        memset(to, op->byte, part);
        done += part;
    }
}

static bool stream_run(struct cu_stream_s *stream, unsigned most);

static void stream_store(struct stream_op *op)
{
    size_t four = 4;
    unsigned char *to = double_bytes_locked(op->to, &four, "a write to");

    __atomic_store_n((uint32_t *)(void *)to, op->value, __ATOMIC_RELEASE);
}

/* May it go?  Drives what it waits for. */
static bool stream_may(struct stream_op *op)
{
    size_t four = 4;

    switch (op->what) {
    case STREAM_WAIT:
        if (op->event->done < op->turn && op->event->stream != NULL)
            stream_run(op->event->stream, 1000000);
        return op->event->done >= op->turn;
    case STREAM_GATE:
        return __atomic_load_n((uint32_t *)(void *)double_bytes_locked(
                   op->to, &four, "a wait for"), __ATOMIC_ACQUIRE)
               == op->value;
    default:
        return true;
    }
}

/* Runs at most that many operations; returns whether any ran. */
static bool stream_run(struct cu_stream_s *stream, unsigned most)
{
    bool any = false;

    if (stream->running)
        return false;                  /* waits for itself */
    stream->running = true;
    while (stream->first != NULL && most-- > 0 && stream_may(stream->first)) {
        struct stream_op *op = stream->first;

        if (op->what == STREAM_COPY)
            stream_copy(op);
        else if (op->what == STREAM_FILL)
            stream_fill(op);
        else if (op->what == STREAM_STORE)
            stream_store(op);
        else if (op->what == STREAM_RECORD && op->event->done < op->turn)
            op->event->done = op->turn;
        if (op->event != NULL)
            stream_event_drop(op->event);
        stream->first = op->next;
        if (stream->first == NULL)
            stream->end = &stream->first;
        free(op);
        any = true;
    }
    stream->running = false;
    return any;
}

void double_settle_locked(void)
{
    bool any = true;

    while (any) {
        any = false;
        for (struct cu_stream_s *stream = stream_all; stream != NULL;
             stream = stream->next)
            any |= stream_run(stream, 1000000);
    }
}

/* Nothing else of the driver goes on meanwhile; memory may change, though. */
void double_idle_locked(int device)
{
    static const struct timespec nap = { 0, 200000 };

    double_settle_locked();
    for (struct cu_stream_s *stream = stream_all; stream != NULL;
         stream = stream->next)
        for (int naps = 0; (device < 0 || stream->context->device == device)
                           && stream->first != NULL; naps++) {
            if (naps > 50000)
                double_report("a call that waits for the device waits behind"
                              " a stream that goes on only after it");
            nanosleep(&nap, NULL);
            double_settle_locked();
        }
}

/* Somebody asks how far it is. */
static void stream_asked(struct cu_stream_s *stream)
{
    if (double_settings.mode != DOUBLE_DELAY)
        stream_run(stream, 1000000);
    else if (rand_r(&double_settings.seed) % 3 == 0)
        stream_run(stream, 1);
}

static void stream_enqueue(struct cu_stream_s *stream, struct stream_op model)
{
    struct stream_op *op = malloc(sizeof(*op));

    if (op == NULL)
        double_report("out of memory");
    if (double_captured_locked(stream)) {
        free(op);                      /* part of a graph that nobody runs */
        return;
    }
    *op = model;
    op->next = NULL;
    if (op->event != NULL)
        op->event->uses++;
    *stream->end = op;
    stream->end = &op->next;
    if (double_settings.mode == DOUBLE_EAGER)
        double_settle_locked();
}

/* ---- streams ------------------------------------------------------------- */

cu_result cuStreamCreateWithPriority(cu_stream *stream, unsigned flags,
                                     int priority)
{
    struct cu_context_s *context;

    (void)flags;
    (void)priority;
    DOUBLE_BEGIN();
    context = double_context_locked();
    if (context == NULL)
        return double_end(CU_INVALID_CONTEXT);
    *stream = double_stream_new_locked(context);
    return double_end(CU_OK);
}

/* Returns at once; what was enqueued still runs. */
cu_result cuStreamDestroy_v2(cu_stream stream)
{
    DOUBLE_BEGIN();
    stream = double_stream_locked(stream);
    if (stream == NULL)
        return double_end(CU_INVALID_CONTEXT);
    stream->destroyed = true;
    return double_end(CU_OK);
}

cu_result cuStreamQuery(cu_stream stream)
{
    cu_result code;

    DOUBLE_BEGIN();
    stream = double_stream_locked(stream);
    if (stream == NULL)
        return double_end(CU_INVALID_CONTEXT);
    if (double_captured_locked(stream))
        return double_end(double_capture_break_locked(
            stream, CU_CAPTURE_UNSUPPORTED));
    stream_asked(stream);
    code = stream->first == NULL ? CU_OK : CU_NOT_READY;
    return double_end(code);
}

cu_result cuStreamSynchronize(cu_stream stream)
{
    static const struct timespec nap = { 0, 200000 };

    DOUBLE_BEGIN();
    stream = double_stream_locked(stream);
    if (stream == NULL)
        return double_end(CU_INVALID_CONTEXT);
    if (double_captured_locked(stream))
        return double_end(double_capture_break_locked(
            stream, CU_CAPTURE_UNSUPPORTED));
    for (int naps = 0; stream->first != NULL; naps++) {
        if (stream_run(stream, 1000000))
            continue;
        if (naps > 100000)
            double_report("a stream waits for something that never comes");
        pthread_mutex_unlock(&double_lock);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&double_lock);
    }
    return double_end(CU_OK);
}

cu_result cuStreamWaitEvent(cu_stream stream, cu_event event, unsigned flags)
{
    (void)flags;
    DOUBLE_BEGIN();
    stream = double_stream_locked(stream);
    if (stream == NULL)
        return double_end(CU_INVALID_CONTEXT);
    if (event->destroyed)
        double_report("a destroyed event is waited for");
    if (double_captured_locked(stream) && event->captured != stream)
        return double_end(double_capture_break_locked(stream,
                                                      CU_CAPTURE_ISOLATION));
    stream_enqueue(stream, (struct stream_op){ .what = STREAM_WAIT,
                                               .event = event,
                                               .turn = event->recorded });
    return double_end(CU_OK);
}

cu_result cuStreamWaitValue32_v2(cu_stream stream, cu_pointer address,
                                 uint32_t value, unsigned flags)
{
    DOUBLE_BEGIN();
    stream = double_stream_locked(stream);
    if (stream == NULL)
        return double_end(CU_INVALID_CONTEXT);
    if (flags != 1)                    /* CU_STREAM_WAIT_VALUE_EQ */
        return double_end(CU_NOT_SUPPORTED);
    stream_enqueue(stream, (struct stream_op){ .what = STREAM_GATE,
                                               .to = address,
                                               .value = value });
    return double_end(CU_OK);
}

cu_result cuStreamWriteValue32_v2(cu_stream stream, cu_pointer address,
                                  uint32_t value, unsigned flags)
{
    DOUBLE_BEGIN();
    stream = double_stream_locked(stream);
    if (stream == NULL)
        return double_end(CU_INVALID_CONTEXT);
    if (flags != 0 || !double_settings.flags)
        return double_end(CU_NOT_SUPPORTED);
    if (!double_mapped_locked(address, 4))
        return double_end(CU_INVALID_VALUE);
    stream_enqueue(stream, (struct stream_op){ .what = STREAM_STORE,
                                               .to = address,
                                               .value = value });
    return double_end(CU_OK);
}

/* An import is there for the device in whose context it was opened; opened with
 * that of its memory it is like this process's own.  A mapping is there for
 * those that were let at it. */
static void stream_reaches(int device, cu_pointer pointer)
{
    struct double_range *range
        = double_range_find_locked((void *)(uintptr_t)pointer);

    if (range == NULL || range->freed)
        return;
    if (range->kind == DOUBLE_IMPORT && range->device != device
        && double_place(range->device) != range->store->header->device)
        double_report("a copy on device %d uses an import that was opened on"
                      " device %d, which has not that memory either", device,
                      range->device);
    if (range->kind == DOUBLE_VMM && (range->access & 1u << device) == 0)
        double_report("a copy on device %d uses a mapping that only others"
                      " were let at", device);
}

/* The driver looks at both when it is called.  For which device is each? */
static void stream_copy_across(struct cu_stream_s *stream, cu_pointer to,
                               int to_device, cu_pointer from,
                               int from_device, size_t size)
{
    size_t part = size;

    if (size == 0)
        return;
    double_bytes_locked(to, &part, "a copy to");
    part = size;
    double_bytes_locked(from, &part, "a copy from");
    stream_reaches(to_device, to);
    stream_reaches(from_device, from);
    stream_enqueue(stream, (struct stream_op){ .what = STREAM_COPY, .to = to,
                                               .from = from, .size = size });
}

static void stream_copy_enqueue(struct cu_stream_s *stream, cu_pointer to,
                                cu_pointer from, size_t size)
{
    int device = stream->context->device;

    stream_copy_across(stream, to, device, from, device, size);
}

/* From the host to a device, with rows that leave nothing out. */
cu_result cuMemcpy2DAsync_v2(const struct cu_rows *rows, cu_stream stream)
{
    DOUBLE_BEGIN();
    stream = double_stream_locked(stream);
    if (stream == NULL)
        return double_end(CU_INVALID_CONTEXT);
    if (rows->from.type != CU_MEMORY_HOST || rows->to.type != CU_MEMORY_DEVICE
        || rows->from.pitch < rows->width || rows->to.pitch < rows->width)
        return double_end(CU_INVALID_VALUE);
    for (size_t i = 0; i < rows->height; i++)
        stream_copy_enqueue(stream, rows->to.device + i * rows->to.pitch,
                            (cu_pointer)(uintptr_t)rows->from.host
                            + i * rows->from.pitch, rows->width);
    return double_end(CU_OK);
}

cu_result cuMemcpyAsync(cu_pointer to, cu_pointer from, size_t size,
                        cu_stream stream)
{
    DOUBLE_BEGIN();
    stream = double_stream_locked(stream);
    if (stream == NULL)
        return double_end(CU_INVALID_CONTEXT);
    stream_copy_enqueue(stream, to, from, size);
    return double_end(CU_OK);
}

cu_result cuMemcpyPeerAsync(cu_pointer to, cu_context to_context,
                            cu_pointer from, cu_context from_context,
                            size_t size, cu_stream stream)
{
    DOUBLE_BEGIN();
    stream = double_stream_locked(stream);
    if (stream == NULL || to_context == NULL || from_context == NULL)
        return double_end(CU_INVALID_CONTEXT);
    stream_copy_across(stream, to, to_context->device, from,
                       from_context->device, size);
    return double_end(CU_OK);
}

cu_result cuMemsetD8Async(cu_pointer pointer, unsigned char byte, size_t size,
                          cu_stream stream)
{
    DOUBLE_BEGIN();
    stream = double_stream_locked(stream);
    if (stream == NULL)
        return double_end(CU_INVALID_CONTEXT);
    stream_enqueue(stream, (struct stream_op){ .what = STREAM_FILL,
                                               .to = pointer, .byte = byte,
                                               .size = size });
    return double_end(CU_OK);
}

/* ---- events -------------------------------------------------------------- */

cu_result cuEventCreate(cu_event *event, unsigned flags)
{
    struct cu_context_s *context;

    (void)flags;
    DOUBLE_BEGIN();
    context = double_context_locked();
    if (context == NULL)
        return double_end(CU_INVALID_CONTEXT);
    *event = calloc(1, sizeof(**event));
    if (*event == NULL)
        return double_end(CU_OUT_OF_MEMORY);
    (*event)->context = context;
    return double_end(CU_OK);
}

cu_result cuEventDestroy_v2(cu_event event)
{
    DOUBLE_BEGIN();
    if (event == NULL || event->destroyed)
        return double_end(CU_INVALID_HANDLE);
    event->destroyed = true;
    event->uses++;
    stream_event_drop(event);
    return double_end(CU_OK);
}

cu_result cuEventRecord(cu_event event, cu_stream stream)
{
    DOUBLE_BEGIN();
    stream = double_stream_locked(stream);
    if (stream == NULL)
        return double_end(CU_INVALID_CONTEXT);
    if (event == NULL || event->destroyed
        || stream->context != event->context)
        return double_end(CU_INVALID_HANDLE);
    event->stream = stream;
    event->captured = double_captured_locked(stream) ? stream : NULL;
    stream_enqueue(stream, (struct stream_op){ .what = STREAM_RECORD,
                                               .event = event,
                                               .turn = ++event->recorded });
    return double_end(CU_OK);
}

cu_result cuEventQuery(cu_event event)
{
    cu_result code;

    DOUBLE_BEGIN();
    if (event == NULL || event->destroyed)
        return double_end(CU_INVALID_HANDLE);
    if (event->captured != NULL)
        return double_end(double_capture_break_locked(event->captured,
                                                      CU_CAPTURE_EVENT));
    if (event->done < event->recorded && event->stream != NULL)
        stream_asked(event->stream);
    code = event->done >= event->recorded ? CU_OK : CU_NOT_READY;
    return double_end(code);
}
