/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The public interface of tp, a point-to-point runtime for SPMD programs.
 *
 * A job is a set of ranks numbered 0 .. size-1 that one launch started.  A
 * context is one process's membership of a job.  A pipe is a two-way, ordered
 * stream of messages between this rank and one other.  A message is metadata,
 * payloads in CPU memory and tensors on any device.  A skeleton is an arriving
 * message whose buffers are still NULL: look at it, allocate, then read.
 *
 * The promises that hold for every call:
 *
 *  1. Order.  Messages are read in the order in which they were written.  On
 *     one pipe, writes complete in the order of the writes, and reads in the
 *     order of the reads.
 *  2. Exactly once.  A call with a callback that returned TP_OK gets its
 *     callback exactly once, even after tp_pipe_close(), after the death of the
 *     peer and in tp_finalize().  A call that returned anything else gets none.
 *     TP_ERR_INVALID and TP_ERR_NO_MEMORY come back at once; every other
 *     error arrives in the callback.
 *  3. Ownership.  From the call until its callback, the message and all memory
 *     it names belong to the pipe.  A skeleton belongs to the runtime from
 *     `arrived` until the callback of its read, or until its release.
 *  4. One at a time.  No two callbacks of one context run at once.  Every call
 *     may be made from inside a callback, and from any thread.
 *  5. Nothing blocks except the calls that say so.
 *  6. Backpressure.  If nobody arms a read, the sender's writes stop
 *     completing after a bounded amount; memory held on either side stays
 *     bounded.
 *  7. CUDA.  A tensor's stream orders the access; callbacks may come before
 *     the copy is done on the device.
 *  8. Failure.  When a peer dies, every pending and later operation on its
 *     pipes ends with TP_ERR_PEER_FAILED; other pipes go on.
 *  9. No collective.  tp_init() exchanges nothing with other ranks.
 *
 * Every call is safe from every thread unless it says otherwise.  In a child of
 * fork() none is, except a tp_init() of its own.  Sizes and lengths are in
 * bytes.  Result parameters are written only on TP_OK unless a call says
 * otherwise.
 */
#ifndef TP_H
#define TP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TP_VERSION_MAJOR 0
#define TP_VERSION_MINOR 1
#define TP_VERSION_PATCH 0

/* ---- types ------------------------------------------------------------- */

typedef struct tp_context tp_context;
typedef struct tp_pipe tp_pipe;
typedef struct tp_listener tp_listener;

/* The outcome of a call.  The numbers are fixed and never reused. */
typedef enum tp_status {
    TP_OK = 0,
    TP_ERR_INVALID = 1,       /* an argument is wrong: a bug of the caller */
    TP_ERR_NO_MEMORY = 2,     /* not enough memory */
    TP_ERR_SYSTEM = 3,        /* the operating system refused */
    TP_ERR_NOT_FOUND = 4,     /* no such rank, address or setting */
    TP_ERR_UNREACHABLE = 5,   /* no backend reaches the peer in time, or the
                                 path contract forbids all that do */
    TP_ERR_CLOSED = 6,        /* this side closed the pipe */
    TP_ERR_PEER_CLOSED = 7,   /* the other side closed it: end of stream */
    TP_ERR_PEER_FAILED = 8,   /* the other side died, or is cut off */
    TP_ERR_TIMEOUT = 9,       /* the time limit was reached */
    TP_ERR_TRUNCATED = 10,    /* the caller's buffer is too small */
    TP_ERR_PROTOCOL = 11,     /* the peer sent bytes that are not tp's */
    TP_ERR_DENIED = 12,       /* the peer is not allowed in */
    TP_ERR_BACKEND = 13,      /* libfabric, CUDA or PMIx reported an
                                 error */
    TP_ERR_NOT_SUPPORTED = 14 /* not in this build, or not on this machine */
} tp_status;

typedef enum tp_device_type {
    TP_DEVICE_CPU = 0,
    TP_DEVICE_CUDA = 1,
    TP_DEVICE_ANY = 255
} tp_device_type;

/* Where memory lives.  `index` numbers the devices of one type as this process
 * sees them; it is 0 for the CPU. */
typedef struct tp_device {
    tp_device_type type;
    int index;
} tp_device;

/* One piece of CPU memory.  `data` may be NULL if `length` is 0. */
typedef struct tp_payload {
    void *data;
    size_t length;
    const void *metadata;     /* any bytes, NULL for none */
    size_t metadata_length;
} tp_payload;

/* One piece of memory on a device. */
typedef struct tp_tensor {
    void *data;
    size_t length;
    tp_device device;         /* where `data` lives; in a skeleton: where it
                                 lives at the sender */
    tp_device target;         /* where the sender wants it to go; TP_DEVICE_ANY
                                 leaves that to the receiver */
    void *stream;             /* the CUstream that orders the access; ignored
                                 on the CPU */
    const void *metadata;
    size_t metadata_length;
} tp_tensor;

/* All of it may be empty.  An array may be NULL if its count is 0. */
typedef struct tp_message {
    const void *metadata;
    size_t metadata_length;
    tp_payload *payloads;
    size_t payload_count;
    tp_tensor *tensors;
    size_t tensor_count;
} tp_message;

/*
 * Tells how an operation ended.  `message` is the one passed to the operation
 * (for tp_pipe_read_descriptor(): the skeleton, NULL unless status is TP_OK).
 * Runs with no lock of the library held, and may make every call except
 * tp_finalize() of its own context.
 */
typedef void tp_message_fn(tp_pipe *pipe, tp_status status,
                           tp_message *message, void *arg);
typedef void tp_accept_fn(tp_listener *listener, tp_status status,
                          tp_pipe *pipe, void *arg);

/* Who drives the context and so runs its callbacks. */
typedef enum tp_progress_mode {
    TP_PROGRESS_AUTO = 0,     /* a waiting caller if there is one, else the
                                 context's own thread */
    TP_PROGRESS_THREAD = 1,   /* always the context's own thread */
    TP_PROGRESS_MANUAL = 2    /* only tp_progress(), tp_wait() and blocking
                                 calls */
} tp_progress_mode;

/*
 * What a program may ask of its context.  Start from TP_OPTIONS_INIT.  Zero
 * means "as the environment says, else its default"; a member set here wins
 * over the environment.  tp_init() copies the strings.  The structure grows at
 * its end only: an older library accepts a newer program's if the members that
 * it does not know are zero.
 */
typedef struct tp_options {
    size_t size;              /* sizeof(tp_options), by TP_OPTIONS_INIT */
    tp_progress_mode progress;/* TP_PROGRESS_AUTO: TP_PROGRESS decides */
    const char *backends;     /* which to allow, as in TP_BACKENDS */
    const char *require;      /* path contract, as in TP_REQUIRE */
    const char *bootstrap;    /* as in TP_BOOTSTRAP */
    int spin_us;              /* microseconds to poll before sleeping; 0: what
                                 suits this machine; -1: never poll */
    int connect_timeout_ms;   /* first contact with a peer; 0: default */
    int finalize_timeout_ms;  /* flushing in tp_finalize(); 0: default */
    const char *secret;       /* for peers outside the job, as in TP_SECRET */
} tp_options;

#define TP_OPTIONS_INIT { sizeof(tp_options), TP_PROGRESS_AUTO, NULL, NULL, \
                          NULL, 0, 0, 0, NULL }

/* What went through one pipe since it was opened. */
typedef struct tp_stats {
    uint64_t messages_sent;       /* writes completed with TP_OK */
    uint64_t messages_received;   /* reads completed with TP_OK */
    uint64_t bytes_sent;          /* payloads and tensors, without metadata */
    uint64_t bytes_received;
    uint64_t writes_pending;      /* accepted and not over yet */
    uint64_t reads_pending;       /* armed descriptors and reads */
    uint64_t bytes_buffered;      /* held here because nobody reads them yet */
    uint64_t blocked;             /* times a write had to wait for room,
                                     or for its reader to make some */
    char transport[24];           /* the backend that carries the pipe, or did
                                     until its end; "" before it connects */
} tp_stats;

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* ---- the job ----------------------------------------------------------- */

/*
 * Joins the job that the launcher started, or makes a job of one rank if there
 * is no launcher.  Exchanges nothing with other ranks and waits for none;
 * blocks only for the launcher.  `options` may be NULL.  On TP_OK *context is
 * the caller's until tp_finalize().
 *
 * Errors: INVALID (an option or a variable of the environment makes no sense),
 * NO_MEMORY, SYSTEM, NOT_FOUND (no launcher, and TP_BOOTSTRAP insists), BACKEND
 * (PMIx refused), UNREACHABLE (TP_BACKENDS allows none that works here),
 * NOT_SUPPORTED (a member of `options` that is set is newer than this library).
 */
tp_status tp_init(const tp_options *options, tp_context **context);

/*
 * Ends every pending read with its callback (TP_ERR_CLOSED) and discards what
 * still arrives, flushes what was written, tells the peers that this rank
 * leaves, and frees the context with its pipes, skeletons and memory.  Blocks,
 * for peers at most for the finalize timeout.  TP_ERR_TIMEOUT means that
 * something written could not be flushed in time; its callback said so too.
 *
 * Not from inside a callback of the context, nor in a child of fork()
 * (TP_ERR_INVALID).  No other thread may use the context meanwhile, and nobody
 * later.  Callbacks run meanwhile: the caller must hold nothing that they wait
 * for.  If it is itself in a callback of another context, they must not wait
 * for that one.
 */
tp_status tp_finalize(tp_context *context);

/* The place of this process in its job; -1 if context is NULL.  "Local" ones
 * count only the ranks on this host. */
int tp_rank(const tp_context *context);
int tp_size(const tp_context *context);
int tp_local_rank(const tp_context *context);
int tp_local_size(const tp_context *context);

/*
 * Ends the whole job: every rank is killed, and the launcher exits with
 * `exit_code` (1..255; anything else is taken as 1).  `reason`, which may be
 * NULL, is shown once, with this rank's name.  Without a launcher, or with a
 * NULL context, only this process ends.  Does not return.
 */
void tp_abort(tp_context *context, int exit_code, const char *reason);

/* ---- pipes by rank ----------------------------------------------------- */

/*
 * The ready-made pipe to `rank`, which may be this rank: the same handle on
 * every call.  Does not block: the connection is made when the pipe is first
 * used, and operations queue until then.  The handle stays valid until
 * tp_finalize(), closed or not.
 *
 * Errors: INVALID (no such rank), NO_MEMORY.
 */
tp_status tp_pipe_to_rank(tp_context *context, int rank, tp_pipe **pipe);

/*
 * A further pipe to that rank, independent of the others; otherwise as
 * tp_pipe_to_rank().  Both sides name the same number.  0 is the ready-made
 * pipe.
 */
tp_status tp_pipe_open(tp_context *context, int rank, unsigned number,
                       tp_pipe **pipe);

/* The rank at the other end; -1 for a peer outside the job or a NULL pipe. */
int tp_pipe_rank(const tp_pipe *pipe);

/* "rank 3 on node07, pid 4711", for people.  Valid as long as the handle. */
const char *tp_pipe_peer(const tp_pipe *pipe);

/*
 * Ends the pipe, without blocking.  What was handed to the transport still
 * arrives.  Pending operations end with TP_ERR_CLOSED through their callbacks.
 * The peer reads what was sent, then TP_ERR_PEER_CLOSED.  Closing twice is
 * TP_OK.
 *
 * The handle stays valid until tp_finalize().  That of a pipe to a peer outside
 * the job does so until this side has closed 1000 more of these, and longer
 * while an operation of it is pending or a message of it is borrowed; with it
 * goes a skeleton that was not read.
 */
tp_status tp_pipe_close(tp_pipe *pipe);

/* The exact cause of the pipe's failure in words.  If it has not failed: why a
 * message was first refused, or "" if none was.  Valid as long as the handle.
 */
const char *tp_pipe_error(const tp_pipe *pipe);

/* ---- asynchronous ------------------------------------------------------ */

/*
 * Sends a message.  `done`, which may be NULL, comes when its memory may be
 * used again, which does not mean that the peer has read it.
 *
 * Errors at once: INVALID (a NULL argument, a length without data, too many
 * pieces, too much metadata, a tensor that is not where its `device` says or
 * whose `target` is none), NO_MEMORY.
 */
tp_status tp_pipe_write(tp_pipe *pipe, tp_message *message,
                        tp_message_fn *done, void *arg);

/*
 * Asks for the next message.  One-shot; several may be armed.  `arrived` gets
 * a skeleton: lengths, metadata and devices are set, `data` is NULL.  The next
 * skeleton comes only after this one was passed to tp_pipe_read() or
 * tp_pipe_borrow().
 */
tp_status tp_pipe_read_descriptor(tp_pipe *pipe, tp_message_fn *arrived,
                                  void *arg);

/*
 * Receives the message whose skeleton arrived.  First the caller sets `data` of
 * every payload and tensor that has a length, to memory of at least `length`
 * bytes; and in every tensor `device`, to where `data` lives, and `stream`.
 * After `done`, which may be NULL, the skeleton is gone.
 *
 * Errors at once: INVALID (not an arrived skeleton of this pipe, data missing,
 * no such `device`, or a tensor that is not where it says), NO_MEMORY.
 */
tp_status tp_pipe_read(tp_pipe *pipe, tp_message *skeleton,
                       tp_message_fn *done, void *arg);

/*
 * Instead of tp_pipe_read(): the runtime fills in `data`.  It points to the
 * sender's own memory where that can be mapped, otherwise to a copy, and is
 * read-only.  It is valid until tp_pipe_release(), which every borrowed message
 * needs, even after the pipe's end.  Only then does the sender's write
 * complete, unless the message was copied whole.
 *
 * Errors at once: INVALID (not an arrived skeleton of this pipe, or no `done`;
 * release: not borrowed from this pipe, or released before), NO_MEMORY.
 */
tp_status tp_pipe_borrow(tp_pipe *pipe, tp_message *skeleton,
                         tp_message_fn *done, void *arg);
tp_status tp_pipe_release(tp_pipe *pipe, tp_message *borrowed);

/* ---- blocking ---------------------------------------------------------- */

/* Sends `length` bytes as a message of one payload; returns when the memory
 * may be used again. */
tp_status tp_pipe_send(tp_pipe *pipe, const void *data, size_t length);

/*
 * Receives the next message into `data`, memory of the host: its payloads, then
 * its tensors, wherever they are at the sender.  *length gets their total
 * length; `length` may be NULL.  A message longer than `capacity` stays in
 * place: TP_ERR_TRUNCATED, and *length tells what it needs.
 */
tp_status tp_pipe_recv(tp_pipe *pipe, void *data, size_t capacity,
                       size_t *length);

/*
 * The blocking forms of write, read_descriptor and read.  timeout_ms: -1 for
 * no limit, 0 to try once, less is TP_ERR_INVALID.
 *
 * On TP_ERR_TIMEOUT nothing happened, with one exception.  A message that has
 * been sent or received in part cannot be taken back, so the pipe is closed to
 * return the caller's memory.  tp_pipe_error() then says so, later calls give
 * TP_ERR_CLOSED, and a skeleton that was being received is gone.
 */
tp_status tp_pipe_send_message(tp_pipe *pipe, tp_message *message,
                               int timeout_ms);
tp_status tp_pipe_recv_skeleton(tp_pipe *pipe, tp_message **skeleton,
                                int timeout_ms);
tp_status tp_pipe_recv_message(tp_pipe *pipe, tp_message *skeleton,
                               int timeout_ms);

/*
 * Asks for the next message from any rank or accepted peer, first come first
 * served, without opening a pipe to each.  One-shot; several may be armed.
 * `arrived` gets the pipe on which the message came; read it there.  A pipe
 * gives its next skeleton only after the previous one was asked to be read.
 * Pipes take turns, so none waits forever.
 *
 * A pipe with an armed tp_pipe_read_descriptor() serves that first.  To keep a
 * pipe for one reader, arm it again before the read: once the read is over and
 * nobody is armed there, its next message is for any reader.  The end of a pipe
 * is not a message and is not reported here.
 */
tp_status tp_read_descriptor_any(tp_context *context, tp_message_fn *arrived,
                                 void *arg);

/* ---- progress ---------------------------------------------------------- */

/*
 * Moves everything on as far as it goes without waiting, and runs callbacks.
 * *completed gets the number of callbacks that were run, here or in another
 * thread, since this thread's last tp_wait() or tp_progress() returned.  A
 * thread's first call counts from tp_init() if the thread called that,
 * otherwise from its own beginning.  Inside a callback, no other is run and the
 * number is 0.  `completed` may be NULL.
 */
tp_status tp_progress(tp_context *context, int *completed);

/*
 * As tp_progress(), but blocks until something has completed, here or in
 * another thread, since this thread's last tp_wait() or tp_progress() returned.
 * So a loop that looks at what callbacks set, then waits, misses nothing.
 * *completed gets the number of callbacks run since then; `completed` may be
 * NULL.  timeout_ms: -1 for no limit, 0 to try once, less is TP_ERR_INVALID.
 * TP_ERR_TIMEOUT if nothing completed.  Inside a callback it blocks until
 * another one is due, and the number is 0.
 */
tp_status tp_wait(tp_context *context, int timeout_ms, int *completed);

/*
 * A descriptor for poll(2) and epoll(7), readable when tp_progress() has
 * something to do.  It belongs to the context.  Before waiting on it, call
 * tp_progress() until it completes nothing.
 *
 * Where the context's thread runs callbacks, the descriptor is also readable
 * after each of them until tp_progress() is called.  That is for one loop, in
 * one thread.  TP_PROGRESS_MANUAL, where callbacks run in the loop's own calls,
 * costs less.  Returns -1, with errno, if context is NULL or there is no
 * descriptor left.
 */
int tp_fd(tp_context *context);

/* ---- memory ------------------------------------------------------------ */

/*
 * Memory that other processes on the host can map, or that NICs already know.
 * Ordinary malloc() or cudaMalloc() memory works everywhere too.  Aligned to a
 * page; its contents are undefined.  Freed by tp_free(), which accepts NULL, or
 * by tp_finalize().  Some of it is kept for the next call: see TP_ALLOC_KEEP in
 * tp_env(7).
 *
 * Errors: INVALID (0 bytes, no such device, not from tp_alloc()), NO_MEMORY,
 * NOT_SUPPORTED (no driver for the device), BACKEND (the driver refused).
 */
tp_status tp_alloc(tp_context *context, size_t bytes, tp_device device,
                   void **memory);
tp_status tp_free(tp_context *context, void *memory);

/* ---- peers outside the job --------------------------------------------- */

/*
 * Lets in processes without a common launcher.  `address` is NULL for every
 * way there is, on any free port; "HOST:PORT" or "tcp://HOST:PORT" for one TCP
 * address (HOST is a name, an IPv4 address, an IPv6 address in brackets, or "*"
 * or nothing for all that TP_IFACE allows; PORT 0 is any free one); "local" for
 * processes on this host only.  A peer must prove that it knows TP_SECRET (or
 * options.secret) or, if there is none, the key in tp_listener_address().
 * Blocks while a name is looked up.  The handle stays valid until
 * tp_finalize(), or until it and 1000 more of these were closed.
 *
 * Errors: INVALID (the address, or the secret's file), NO_MEMORY, NOT_FOUND (no
 * such name, no network interface, or no file of the secret), SYSTEM (the port
 * is taken, the address is not this host's, ...), NOT_SUPPORTED (no libnettle).
 * All but NO_MEMORY are logged with their cause.
 */
tp_status tp_listen(tp_context *context, const char *address,
                    tp_listener **listener);

/* Writes the text that tells all ways to the listener, for tp_connect(): one
 * printable line without blanks.  1024 bytes always suffice; TRUNCATED if
 * `size` does not.  Without a secret the text ends with a "key=" and is then
 * as confidential as a password. */
tp_status tp_listener_address(const tp_listener *listener, char *buffer,
                              size_t size);

/*
 * Asks for the next pipe from outside.  One-shot; several may be armed.
 * `accepted` comes when a peer has proven itself and is connected.  If the
 * listener closes before, its status is CLOSED and its pipe NULL.  The pipe
 * needs tp_pipe_close() also when its peer has gone: until then it is kept.
 */
tp_status tp_accept(tp_listener *listener, tp_accept_fn *accepted, void *arg);

/*
 * A pipe to a listener.  `address` is what its tp_listener_address() wrote, or
 * its TCP address by hand, as in tp_listen().  Does not block: operations queue
 * until the connection is made.  While nobody listens there it is tried again,
 * up to the connect timeout.  For how long the handle stays valid: see
 * tp_pipe_close(); tp_pipe_rank() is -1.
 *
 * Errors at once: INVALID (not an address: logged with its cause), NO_MEMORY.
 * Errors of the pipe's operations: UNREACHABLE (nobody listens, or no backend
 * leads there), PEER_CLOSED (the listener was closed meanwhile), DENIED (one
 * side does not know the other's secret), PROTOCOL (something else lives
 * there).
 */
tp_status tp_connect(tp_context *context, const char *address, tp_pipe **pipe);

/* Stops letting peers in, without blocking.  Armed accepts end with CLOSED;
 * peers that connected but were not accepted read PEER_CLOSED.  Accepted pipes
 * live on.  Closing twice is TP_OK. */
tp_status tp_listener_close(tp_listener *listener);

/* ---- why, and how it goes ---------------------------------------------- */

/*
 * Every candidate for this pipe as JSON: chosen or why not, both sides'
 * verdicts, score terms, reason and remedy; see tp_explain(7).  Before the pipe
 * is connected: what is known so far.  The caller must free() *json.
 */
tp_status tp_pipe_explain(tp_pipe *pipe, char **json);

/* Fills *stats, each number as it is at the moment. */
tp_status tp_pipe_stats(const tp_pipe *pipe, struct tp_stats *stats);

/* Constant strings; never NULL. */
const char *tp_strerror(tp_status status);
const char *tp_version(void);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
