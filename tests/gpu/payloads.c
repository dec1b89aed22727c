/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Between a suite and libtp: payloads and CPU tensors as tensors on devices.
 *
 * A payload that went to a device stands in the message with length 0 and a
 * mark behind its metadata; its bytes are a tensor in front of the others, so
 * that tp_pipe_recv(), which takes payloads and tensors in their order, gets
 * what it would have got.
 */
#include "config.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/buffer.h"
#include "tests/gpu/payloads.h"

enum {
    PAYLOADS_MOVED = 4,            /* of a message; likewise of its tensors */
    PAYLOADS_MOST = 64 << 20,      /* longer ones stay */
    PAYLOADS_MARK = 8,
    PAYLOADS_AT_ONCE = 100         /* buffers in use */
};

static const unsigned char payloads_mark[PAYLOADS_MARK]
    = { 0xd0, 'd', 'e', 'v', 'i', 'c', 'e', 0xd0 };

unsigned *tpx_payloads_count;
bool tpx_payloads_keep;

/* ---- memory -------------------------------------------------------------- */

/* Of a device, with a shadow on the host; whoever has one has it alone. */
struct payloads_buffer {
    struct payloads_buffer *next;
    struct tpx_buffer buffer;
};
static struct payloads_buffer *payloads_free;
static pthread_mutex_t payloads_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned payloads_taken, payloads_given;

static struct payloads_buffer *payloads_take(size_t length)
{
    static const enum tpx_kind kinds[] = { TPX_MALLOC, TPX_MALLOC, TPX_POOL,
                                           TPX_VMM };
    struct payloads_buffer **at = &payloads_free, *found;
    unsigned turn;

    pthread_mutex_lock(&payloads_lock);
    turn = payloads_taken++;
    while (*at != NULL && (*at)->buffer.length < length)
        at = &(*at)->next;
    found = *at;
    if (found != NULL)
        *at = found->next;
    pthread_mutex_unlock(&payloads_lock);
    if (found == NULL) {
        size_t size = 4096;

        while (size < length)
            size *= 2;
        found = calloc(1, sizeof(*found));
        tpx_check(found != NULL, "no memory for the test itself");
        tpx_buffer_make(&found->buffer, kinds[turn % 4], (int)(turn / 4 % 2),
                        size);
    }
    found->next = NULL;
    if (tpx_payloads_count != NULL)
        __atomic_fetch_add(tpx_payloads_count, 1, __ATOMIC_RELAXED);
    return found;
}

/* Spoiled first: what comes now must not be seen by anybody.  Some go, so that
 * their addresses come back. */
static void payloads_give(struct payloads_buffer *buffer)
{
    bool drop;

    if (buffer == NULL)
        return;
    tpx_buffer_spoil(&buffer->buffer);
    pthread_mutex_lock(&payloads_lock);
    drop = ++payloads_given % 7 == 0 && !tpx_payloads_keep;
    if (!drop) {
        buffer->next = payloads_free;
        payloads_free = buffer;
    }
    pthread_mutex_unlock(&payloads_lock);
    if (drop) {
        tpx_buffer_drop(&buffer->buffer);
        free(buffer);
    }
}

/* Enqueued only. */
static void payloads_load(struct payloads_buffer *self, const void *bytes,
                          size_t length)
{
    struct tpx_buffer *buffer = &self->buffer;

    tpx_device_use(buffer->where.index);
    tpx_device_sync(buffer->stream);       /* the shadow's last use */
    memcpy(buffer->shadow, bytes, length);
    tpx_device_copy(buffer->data, buffer->shadow, length, buffer->stream);
}

static void payloads_unload(struct payloads_buffer *self, void *bytes,
                            size_t length)
{
    struct tpx_buffer *buffer = &self->buffer;

    tpx_device_use(buffer->where.index);
    tpx_device_copy(buffer->shadow, buffer->data, length, buffer->stream);
    tpx_device_sync(buffer->stream);
    memcpy(bytes, buffer->shadow, length);
}

static void *payloads_array(size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size);

    tpx_check(memory != NULL, "no memory for the test itself");
    return memory;
}

/* ---- messages ------------------------------------------------------------ */

/* The suite's message and libtp's, in either direction. */
struct payloads_message {
    struct payloads_message *next;     /* of those that arrived */
    tp_message *theirs;                /* the suite's */
    tp_message *ours;                  /* libtp's */
    tp_message own;                    /* memory for one of the two */
    size_t moved;                      /* tensors that are payloads */
    /* By the number of our tensor. */
    struct payloads_buffer **buffers;
    struct payloads_way {
        size_t payload, length;        /* payload: of the first `moved` */
    } *ways;
    size_t tensors;
    unsigned char *metadata;
    tp_message_fn *done;
    void *arg;
};
static struct payloads_message *payloads_arrived;

static void payloads_message_free(struct payloads_message *self)
{
    for (size_t i = 0; i < self->tensors; i++)
        payloads_give(self->buffers[i]);
    free(self->own.payloads);
    free(self->own.tensors);
    free(self->buffers);
    free(self->ways);
    free(self->metadata);
    free(self);
}

/* So many are in use that more would be too many files: others stay on the
 * CPU. */
static bool payloads_crowded(void)
{
    bool crowded;

    pthread_mutex_lock(&payloads_lock);
    crowded = payloads_taken - payloads_given > PAYLOADS_AT_ONCE;
    pthread_mutex_unlock(&payloads_lock);
    return crowded;
}

/* Is it something that libtp would take, and anything in it to move? */
static bool payloads_fits(const tp_message *message)
{
    size_t bytes = 0;

    if (message == NULL || payloads_crowded() || message->payload_count > 4096
        || message->tensor_count > 4096
        || (message->payloads == NULL && message->payload_count > 0)
        || (message->tensors == NULL && message->tensor_count > 0))
        return false;
    for (size_t i = 0; i < message->payload_count; i++) {
        const tp_payload *payload = &message->payloads[i];

        if (payload->length > PAYLOADS_MOST
            || (payload->data == NULL && payload->length > 0)
            || (payload->metadata == NULL && payload->metadata_length > 0))
            return false;
        bytes += payload->length;
    }
    for (size_t i = 0; i < message->tensor_count; i++) {
        const tp_tensor *tensor = &message->tensors[i];

        if (tensor->length > PAYLOADS_MOST
            || tensor->device.type != TP_DEVICE_CPU
            || (tensor->data == NULL && tensor->length > 0))
            return false;
        bytes += tensor->length;
    }
    return bytes > 0 && bytes <= PAYLOADS_MOST;
}

/* The last ones go: what stays comes before them, and so do the bytes. */
static bool payloads_moves(const tp_message *message, size_t i)
{
    return i + PAYLOADS_MOVED >= message->payload_count
           && message->payloads[i].length > 0;
}

static void payloads_move(struct payloads_message *self, tp_tensor *tensor,
                          const void *bytes, size_t length)
{
    struct payloads_buffer *buffer = payloads_take(length);

    payloads_load(buffer, bytes, length);
    self->buffers[tensor - self->own.tensors] = buffer;
    tpx_buffer_place(&buffer->buffer, tensor);
    tensor->length = length;
}

static void payloads_out_payloads(struct payloads_message *self)
{
    const tp_message *theirs = self->theirs;
    unsigned char *at = self->metadata;
    size_t next = 0;

    for (size_t i = 0; i < theirs->payload_count; i++) {
        const tp_payload *from = &theirs->payloads[i];
        tp_payload *payload = &self->own.payloads[i];

        *payload = *from;
        if (!payloads_moves(theirs, i))
            continue;
        if (from->metadata_length > 0)
            memcpy(at, from->metadata, from->metadata_length);
        memcpy(at + from->metadata_length, payloads_mark, PAYLOADS_MARK);
        *payload = (tp_payload){ .metadata = at, .metadata_length
                                 = from->metadata_length + PAYLOADS_MARK };
        at += payload->metadata_length;
        self->own.tensors[next].target.type = next % 2 == 0 ? TP_DEVICE_ANY
                                                            : TP_DEVICE_CUDA;
        payloads_move(self, &self->own.tensors[next++], from->data,
                      from->length);
    }
}

/* What goes out for the suite's message; NULL: itself. */
static struct payloads_message *payloads_out(tp_message *theirs)
{
    struct payloads_message *self;
    size_t metadata = 0, tensors;

    if (!payloads_fits(theirs))
        return NULL;
    self = payloads_array(1, sizeof(*self));
    self->theirs = theirs;
    self->ours = &self->own;
    self->own = *theirs;
    for (size_t i = 0; i < theirs->payload_count; i++) {
        self->moved += payloads_moves(theirs, i);
        metadata += theirs->payloads[i].metadata_length + PAYLOADS_MARK;
    }
    tensors = theirs->tensor_count + self->moved;
    self->own.tensor_count = self->tensors = tensors;
    self->own.payloads = payloads_array(theirs->payload_count,
                                        sizeof(tp_payload));
    self->own.tensors = payloads_array(tensors, sizeof(tp_tensor));
    self->buffers = payloads_array(tensors, sizeof(self->buffers[0]));
    self->metadata = payloads_array(metadata, 1);
    payloads_out_payloads(self);
    for (size_t i = 0; i < theirs->tensor_count; i++) {
        tp_tensor *tensor = &self->own.tensors[self->moved + i];

        *tensor = theirs->tensors[i];
        if (i < PAYLOADS_MOVED && tensor->length > 0)
            payloads_move(self, tensor, theirs->tensors[i].data,
                          tensor->length);
    }
    return self;
}

/* ---- writing ------------------------------------------------------------- */

static void payloads_written(tp_pipe *pipe, tp_status status,
                             tp_message *message, void *arg)
{
    struct payloads_message *self = arg;
    tp_message *theirs = self->theirs;
    tp_message_fn *done = self->done;
    void *their_arg = self->arg;

    tpx_check(message == self->ours, "a write's callback names another one");
    payloads_message_free(self);
    if (done != NULL)
        done(pipe, status, theirs, their_arg);
}

tp_status tpx_payloads_write(tp_pipe *pipe, tp_message *message,
                             tp_message_fn *done, void *arg)
{
    struct payloads_message *self = pipe != NULL ? payloads_out(message)
                                                 : NULL;
    tp_status status;

    if (self == NULL)
        return tp_pipe_write(pipe, message, done, arg);
    self->done = done;
    self->arg = arg;
    status = tp_pipe_write(pipe, self->ours, payloads_written, self);
    if (status != TP_OK)
        payloads_message_free(self);
    return status;
}

tp_status tpx_payloads_send_message(tp_pipe *pipe, tp_message *message,
                                    int timeout_ms)
{
    struct payloads_message *self = pipe != NULL ? payloads_out(message)
                                                 : NULL;
    tp_status status;

    if (self == NULL)
        return tp_pipe_send_message(pipe, message, timeout_ms);
    status = tp_pipe_send_message(pipe, self->ours, timeout_ms);
    payloads_message_free(self);
    return status;
}

tp_status tpx_payloads_send(tp_pipe *pipe, const void *data, size_t length)
{
    tp_payload payload = { .data = (void *)(uintptr_t)data,
                           .length = length };
    tp_message message = { .payloads = &payload, .payload_count = 1 };

    if (pipe == NULL || data == NULL || length == 0)
        return tp_pipe_send(pipe, data, length);
    return tpx_payloads_send_message(pipe, &message, -1);
}

/* ---- arriving ------------------------------------------------------------ */

static bool payloads_is_marked(const tp_payload *payload)
{
    return payload->length == 0 && payload->metadata_length >= PAYLOADS_MARK
           && memcmp((const unsigned char *)payload->metadata
                     + payload->metadata_length - PAYLOADS_MARK,
                     payloads_mark, PAYLOADS_MARK) == 0;
}

/* As the suite shall see it. */
static tp_message *payloads_in(tp_message *skeleton)
{
    struct payloads_message *self = payloads_array(1, sizeof(*self));
    size_t next = 0;

    self->ours = skeleton;
    self->theirs = &self->own;
    self->own = *skeleton;
    self->own.payloads = payloads_array(skeleton->payload_count,
                                        sizeof(tp_payload));
    self->own.tensors = payloads_array(skeleton->tensor_count,
                                       sizeof(tp_tensor));
    self->tensors = skeleton->tensor_count;
    self->buffers = payloads_array(self->tensors, sizeof(self->buffers[0]));
    self->ways = payloads_array(self->tensors, sizeof(self->ways[0]));
    for (size_t i = 0; i < self->tensors; i++)
        self->ways[i].length = skeleton->tensors[i].length;
    for (size_t i = 0; i < skeleton->payload_count; i++) {
        tp_payload *payload = &self->own.payloads[i];

        *payload = skeleton->payloads[i];
        if (!payloads_is_marked(payload))
            continue;
        tpx_check(next < skeleton->tensor_count, "a payload is lost");
        self->ways[next].payload = i;
        payload->length = self->ways[next++].length;
        payload->metadata_length -= PAYLOADS_MARK;
        if (payload->metadata_length == 0)
            payload->metadata = NULL;
    }
    self->moved = next;
    self->own.tensor_count -= next;
    for (size_t i = 0; i < self->own.tensor_count; i++) {
        self->own.tensors[i] = skeleton->tensors[next + i];
        self->own.tensors[i].device = (tp_device){ TP_DEVICE_CPU, 0 };
    }
    pthread_mutex_lock(&payloads_lock);
    self->next = payloads_arrived;
    payloads_arrived = self;
    pthread_mutex_unlock(&payloads_lock);
    return self->theirs;
}

/* That of the suite's message; NULL: it is no such one. */
static struct payloads_message *payloads_find(const tp_message *theirs)
{
    struct payloads_message *found;

    pthread_mutex_lock(&payloads_lock);
    found = payloads_arrived;
    while (found != NULL && found->theirs != theirs)
        found = found->next;
    pthread_mutex_unlock(&payloads_lock);
    return found;
}

static void payloads_forget(struct payloads_message *self)
{
    struct payloads_message **at = &payloads_arrived;

    pthread_mutex_lock(&payloads_lock);
    while (*at != self)
        at = &(*at)->next;
    *at = self->next;
    pthread_mutex_unlock(&payloads_lock);
    payloads_message_free(self);
}

struct payloads_call {
    tp_message_fn *arrived;
    void *arg;
};

static void payloads_come(tp_pipe *pipe, tp_status status,
                          tp_message *skeleton, void *arg)
{
    struct payloads_call call = *(struct payloads_call *)arg;

    free(arg);
    call.arrived(pipe, status, status == TP_OK ? payloads_in(skeleton) : NULL,
                 call.arg);
}

/* NULL for no callback, which libtp is to refuse. */
static struct payloads_call *payloads_call(tp_message_fn *arrived, void *arg)
{
    struct payloads_call *call;

    if (arrived == NULL)
        return NULL;
    call = payloads_array(1, sizeof(*call));
    *call = (struct payloads_call){ arrived, arg };
    return call;
}

static tp_status payloads_called(struct payloads_call *call, tp_status status)
{
    if (status != TP_OK)
        free(call);
    return status;
}

tp_status tpx_payloads_descriptor(tp_pipe *pipe, tp_message_fn *arrived,
                                  void *arg)
{
    struct payloads_call *call = payloads_call(arrived, arg);
    tp_message_fn *come = call != NULL ? payloads_come : NULL;

    return payloads_called(call, tp_pipe_read_descriptor(pipe, come, call));
}

tp_status tpx_payloads_any(tp_context *context, tp_message_fn *arrived,
                           void *arg)
{
    struct payloads_call *call = payloads_call(arrived, arg);
    tp_message_fn *come = call != NULL ? payloads_come : NULL;

    return payloads_called(call, tp_read_descriptor_any(context, come, call));
}

tp_status tpx_payloads_recv_skeleton(tp_pipe *pipe, tp_message **skeleton,
                                     int timeout_ms)
{
    tp_message *ours;
    tp_status status;

    if (skeleton == NULL)
        return tp_pipe_recv_skeleton(pipe, skeleton, timeout_ms);
    status = tp_pipe_recv_skeleton(pipe, &ours, timeout_ms);
    if (status == TP_OK)
        *skeleton = payloads_in(ours);
    return status;
}

/* ---- reading ------------------------------------------------------------- */

/* Where the suite wants the bytes of our i-th tensor. */
static void *payloads_wanted(const struct payloads_message *self, size_t i)
{
    return i < self->moved ? self->own.payloads[self->ways[i].payload].data
                           : self->own.tensors[i - self->moved].data;
}

/* Where libtp shall put them: on a device, every fourth in place. */
static void payloads_aim(struct payloads_message *self)
{
    static unsigned turn;

    for (size_t p = 0; p < self->own.payload_count; p++)
        if (!payloads_is_marked(&self->ours->payloads[p]))
            self->ours->payloads[p].data = self->own.payloads[p].data;
    for (size_t i = 0; i < self->ours->tensor_count; i++) {
        tp_tensor *tensor = &self->ours->tensors[i];
        void *wanted = payloads_wanted(self, i);

        tensor->device = (tp_device){ TP_DEVICE_CPU, 0 };
        tensor->data = wanted;
        if (wanted == NULL || tensor->length == 0 || payloads_crowded()
            || i >= 2 * PAYLOADS_MOVED
            || __atomic_fetch_add(&turn, 1, __ATOMIC_RELAXED) % 4 == 3)
            continue;
        self->buffers[i] = payloads_take(tensor->length);
        tpx_buffer_place(&self->buffers[i]->buffer, tensor);
    }
}

/* The read is over, and libtp's skeleton may be gone: what came is the suite's,
 * and so is its memory. */
static void payloads_land(struct payloads_message *self, tp_status status)
{
    for (size_t i = 0; i < self->tensors; i++) {
        if (self->buffers[i] == NULL)
            continue;
        if (status == TP_OK)
            payloads_unload(self->buffers[i], payloads_wanted(self, i),
                            self->ways[i].length);
        payloads_give(self->buffers[i]);
        self->buffers[i] = NULL;
    }
}

static void payloads_read(tp_pipe *pipe, tp_status status,
                          tp_message *skeleton, void *arg)
{
    struct payloads_message *self = arg;

    tpx_check(skeleton == self->ours, "a read's callback names another one");
    payloads_land(self, status);
    if (self->done != NULL)
        self->done(pipe, status, self->theirs, self->arg);
    payloads_forget(self);
}

tp_status tpx_payloads_read(tp_pipe *pipe, tp_message *skeleton,
                            tp_message_fn *done, void *arg)
{
    struct payloads_message *self = payloads_find(skeleton);
    tp_status status;

    if (self == NULL)
        return tp_pipe_read(pipe, skeleton, done, arg);
    self->done = done;
    self->arg = arg;
    payloads_aim(self);
    status = tp_pipe_read(pipe, self->ours, payloads_read, self);
    if (status != TP_OK)
        payloads_land(self, status);
    return status;
}

tp_status tpx_payloads_recv_message(tp_pipe *pipe, tp_message *skeleton,
                                    int timeout_ms)
{
    struct payloads_message *self = payloads_find(skeleton);
    tp_status status;

    if (self == NULL)
        return tp_pipe_recv_message(pipe, skeleton, timeout_ms);
    payloads_aim(self);
    status = tp_pipe_recv_message(pipe, self->ours, timeout_ms);
    payloads_land(self, status);
    if (status == TP_OK)
        payloads_forget(self);
    return status;
}

/* ---- borrowing ----------------------------------------------------------- */

/* What is lent on a device, the suite gets a copy of. */
static void *payloads_copy(struct payloads_message *self, size_t i,
                           const tp_tensor *tensor)
{
    struct tpx_buffer *buffer;

    if (tensor->device.type != TP_DEVICE_CUDA || tensor->length == 0)
        return tensor->data;
    self->buffers[i] = payloads_take(tensor->length);
    buffer = &self->buffers[i]->buffer;
    tpx_device_use(tensor->device.index);   /* who may be let at it alone */
    tpx_device_copy(buffer->shadow, tensor->data, tensor->length, NULL);
    tpx_device_sync(NULL);
    return buffer->shadow;
}

static void payloads_lent(tp_pipe *pipe, tp_status status, tp_message *message,
                          void *arg)
{
    struct payloads_message *self = arg;

    for (size_t p = 0; status == TP_OK && p < message->payload_count; p++)
        self->own.payloads[p].data = message->payloads[p].data;
    for (size_t i = 0; status == TP_OK && i < self->tensors; i++) {
        void *data = payloads_copy(self, i, &message->tensors[i]);

        if (i < self->moved)
            self->own.payloads[self->ways[i].payload].data = data;
        else
            self->own.tensors[i - self->moved].data = data;
    }
    self->done(pipe, status, self->theirs, self->arg);
}

tp_status tpx_payloads_borrow(tp_pipe *pipe, tp_message *skeleton,
                              tp_message_fn *done, void *arg)
{
    struct payloads_message *self = payloads_find(skeleton);

    if (self == NULL || done == NULL)
        return tp_pipe_borrow(pipe, self != NULL ? self->ours : skeleton,
                              done, arg);
    self->done = done;
    self->arg = arg;
    return tp_pipe_borrow(pipe, self->ours, payloads_lent, self);
}

tp_status tpx_payloads_release(tp_pipe *pipe, tp_message *borrowed)
{
    struct payloads_message *self = payloads_find(borrowed);
    tp_status status;

    if (self == NULL)
        return tp_pipe_release(pipe, borrowed);
    status = tp_pipe_release(pipe, self->ours);
    if (status == TP_OK)
        payloads_forget(self);
    return status;
}
