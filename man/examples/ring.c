/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A message with metadata, a payload and a tensor goes around the ring of all
 * ranks, lap after lap, in growing sizes.  Every rank checks every byte of the
 * first lap.  The timed laps after it are checked where they end: each hop
 * passes on the very bytes it got, so what was damaged once stays damaged.
 * Rank 0 says what was moved, over which backend and how fast.
 *
 *     tprun -n 4 ./ring [LAPS]        (20 timed laps of each size by default)
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tp.h>

enum { LIMIT_MS = 60000 };

static const size_t sizes[] = { 0, 64, 4096, 65536, 1 << 20, 4 << 20 };
enum { STEPS = sizeof(sizes) / sizeof(sizes[0]) };

/* The metadata: which hop this is.  Both ends know what it must be, so a lost,
 * doubled or overtaken message is noticed. */
struct ticket {
    uint32_t step, lap, hop;
};

struct ring {
    tp_context *context;
    int rank, size;
    tp_pipe *left, *right;     /* one and the same if there are two ranks */
    unsigned char *payload, *tensor;               /* the message to send */
    unsigned char *next_payload, *next_tensor;     /* room for the next one */
};

/* Ends the whole job and tells the reason: no other rank is left waiting. */
static void give_up(struct ring *ring, const char *what, tp_status status,
                    const tp_pipe *pipe)
{
    const char *why = pipe != NULL ? tp_pipe_error(pipe) : "";
    char text[512];

    snprintf(text, sizeof(text), "%s: %s%s%s", what, tp_strerror(status),
             *why != '\0' ? ": " : "", why);
    tp_abort(ring->context, 1, text);
}

/* ---- the bytes --------------------------------------------------------- */

static unsigned char payload_byte(size_t i, unsigned step)
{
    return (unsigned char)(i * 31 + (i >> 8) * 7 + step);
}

static unsigned char tensor_byte(size_t i, unsigned step)
{
    return (unsigned char)(i * 17 + (i >> 8) * 5 + step + 101);
}

static void fill(struct ring *ring, unsigned step)
{
    for (size_t i = 0; i < sizes[step]; i++) {
        ring->payload[i] = payload_byte(i, step);
        ring->tensor[i] = tensor_byte(i, step);
    }
}

static void verify(struct ring *ring, unsigned step)
{
    char text[64];

    for (size_t i = 0; i < sizes[step]; i++) {
        if (ring->payload[i] == payload_byte(i, step)
            && ring->tensor[i] == tensor_byte(i, step))
            continue;
        snprintf(text, sizeof(text), "byte %zu of %zu is wrong", i,
                 sizes[step]);
        tp_abort(ring->context, 1, text);
    }
}

/* ---- one hop ----------------------------------------------------------- */

/* Receives the message that is due from the left; it is then the one to send.
 * The skeleton comes first: look at it, say where the bytes shall go, read. */
static void receive(struct ring *ring, const struct ticket *due)
{
    size_t size = sizes[due->step];
    unsigned char *payload = ring->next_payload, *tensor = ring->next_tensor;
    tp_message *message;
    tp_status status;

    status = tp_pipe_recv_skeleton(ring->left, &message, LIMIT_MS);
    if (status != TP_OK)
        give_up(ring, "waiting for a message", status, ring->left);
    if (message->metadata_length != sizeof(*due)
        || memcmp(message->metadata, due, sizeof(*due)) != 0)
        tp_abort(ring->context, 1, "this is not the message that was due");
    if (message->payload_count != 1 || message->payloads[0].length != size
        || message->tensor_count != 1 || message->tensors[0].length != size)
        tp_abort(ring->context, 1, "this is not the shape that was sent");
    message->payloads[0].data = payload;
    message->tensors[0].data = tensor;
    status = tp_pipe_recv_message(ring->left, message, LIMIT_MS);
    if (status != TP_OK)
        give_up(ring, "receiving a message", status, ring->left);
    ring->next_payload = ring->payload;
    ring->next_tensor = ring->tensor;
    ring->payload = payload;
    ring->tensor = tensor;
}

/* The message to send; `payload` and `tensor` are the caller's memory for its
 * arrays of one. */
static tp_message compose(const struct ring *ring, const struct ticket *ticket,
                          tp_payload *payload, tp_tensor *tensor)
{
    size_t size = sizes[ticket->step];
    const tp_device anywhere = { TP_DEVICE_ANY, 0 };

    *payload = (tp_payload){ ring->payload, size, "odd", 3 };
    *tensor = (tp_tensor){ .data = ring->tensor, .length = size,
                           .target = anywhere,
                           .metadata = "even", .metadata_length = 4 };
    return (tp_message){ ticket, sizeof(*ticket), payload, 1, tensor, 1 };
}

/* Every rank but 0: from the left to the right. */
static void pass_on(struct ring *ring, unsigned step, unsigned lap)
{
    struct ticket ticket = { step, lap, (uint32_t)ring->rank - 1 };
    tp_payload payload;
    tp_tensor tensor;
    tp_message message;
    tp_status status;

    receive(ring, &ticket);
    if (lap == 0)
        verify(ring, step);
    ticket.hop++;
    message = compose(ring, &ticket, &payload, &tensor);
    status = tp_pipe_send_message(ring->right, &message, LIMIT_MS);
    if (status != TP_OK)
        give_up(ring, "sending", status, ring->right);
}

/* The callback of rank 0's write; the context's own thread may run it. */
static void written(tp_pipe *pipe, tp_status status, tp_message *message,
                    void *arg)
{
    int *state = arg;

    (void)message;
    if (status != TP_OK)
        fprintf(stderr, "ring: sending: %s: %s\n", tp_strerror(status),
                tp_pipe_error(pipe));
    __atomic_store_n(state, status == TP_OK ? 1 : -1, __ATOMIC_RELEASE);
}

/* Rank 0: sends the message off and awaits its return.  It writes without
 * blocking, for in a ring of one rank nobody else would read. */
static void send_around(struct ring *ring, unsigned step, unsigned lap)
{
    struct ticket ticket = { step, lap, 0 };
    struct ticket due = { step, lap, (uint32_t)ring->size - 1 };
    tp_payload payload;
    tp_tensor tensor;
    tp_message message = compose(ring, &ticket, &payload, &tensor);
    int state = 0;
    tp_status status;

    status = tp_pipe_write(ring->right, &message, written, &state);
    if (status != TP_OK)
        give_up(ring, "writing", status, ring->right);
    receive(ring, &due);
    while (__atomic_load_n(&state, __ATOMIC_ACQUIRE) == 0)
        tp_wait(ring->context, 1, NULL);
    if (state < 0)
        tp_abort(ring->context, 1, "the message could not be sent");
}

/* ---- laps and steps ---------------------------------------------------- */

static void one_lap(struct ring *ring, unsigned step, unsigned lap)
{
    if (ring->rank == 0)
        send_around(ring, step, lap);
    else
        pass_on(ring, step, lap);
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* All laps of one size. */
static void one_step(struct ring *ring, unsigned step, unsigned laps)
{
    double begun, hop;

    if (ring->rank == 0)
        fill(ring, step);
    one_lap(ring, step, 0);
    begun = seconds();
    for (unsigned lap = 1; lap <= laps; lap++)
        one_lap(ring, step, lap);
    hop = (seconds() - begun) / laps / ring->size;
    verify(ring, step);
    if (ring->rank == 0)
        printf("%10zu %10zu %10.1f %10.1f\n", sizes[step], sizes[step],
               hop * 1e6, 2.0 * (double)sizes[step] / hop * 1e-6);
}

/* ---- the job ----------------------------------------------------------- */

static void open_ring(struct ring *ring)
{
    size_t most = sizes[STEPS - 1];
    tp_status status = tp_init(NULL, &ring->context);

    if (status != TP_OK) {
        fprintf(stderr, "ring: tp_init: %s\n", tp_strerror(status));
        exit(1);
    }
    ring->rank = tp_rank(ring->context);
    ring->size = tp_size(ring->context);
    status = tp_pipe_to_rank(ring->context, (ring->rank + 1) % ring->size,
                             &ring->right);
    if (status == TP_OK)
        status = tp_pipe_to_rank(ring->context, (ring->rank + ring->size - 1)
                                 % ring->size, &ring->left);
    if (status != TP_OK)
        give_up(ring, "asking for a pipe", status, NULL);
    ring->payload = malloc(most);
    ring->tensor = malloc(most);
    ring->next_payload = malloc(most);
    ring->next_tensor = malloc(most);
    if (ring->payload == NULL || ring->tensor == NULL
        || ring->next_payload == NULL || ring->next_tensor == NULL)
        give_up(ring, "buffers", TP_ERR_NO_MEMORY, NULL);
}

static void report(const struct ring *ring)
{
    tp_stats stats;

    if (tp_pipe_stats(ring->right, &stats) != TP_OK)
        return;
    printf("every byte right; sent to %s over %s: %" PRIu64 " messages, "
           "%.1f MB\n", tp_pipe_peer(ring->right), stats.transport,
           stats.messages_sent, (double)stats.bytes_sent * 1e-6);
}

static void close_ring(struct ring *ring)
{
    tp_status status = tp_finalize(ring->context);

    free(ring->payload);
    free(ring->tensor);
    free(ring->next_payload);
    free(ring->next_tensor);
    if (status == TP_OK)
        return;
    fprintf(stderr, "ring: tp_finalize: %s\n", tp_strerror(status));
    exit(1);
}

int main(int argc, char **argv)
{
    struct ring ring = { 0 };
    int laps = argc > 1 ? atoi(argv[1]) : 20;

    if (argc > 2 || laps < 1) {
        fprintf(stderr, "usage: ring [LAPS]\n");
        return 2;
    }
    open_ring(&ring);
    if (ring.rank == 0)
        printf("a ring of %d rank%s, %d lap%s of each size\n"
               "%10s %10s %10s %10s\n", ring.size, ring.size > 1 ? "s" : "",
               laps, laps > 1 ? "s" : "", "payload B", "tensor B", "us/hop",
               "MB/s");
    for (unsigned step = 0; step < STEPS; step++)
        one_step(&ring, step, (unsigned)laps);
    if (ring.rank == 0)
        report(&ring);
    close_ring(&ring);
    return 0;
}
