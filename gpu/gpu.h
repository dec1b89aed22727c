/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the core asks of GPUs.  A build without CUDA, and a machine without a
 * GPU, answer the same questions: with no (none.c).
 *
 * A context has one struct tpg_gpu.  Making it touches no driver: the driver
 * is loaded when a device is first named.
 *
 * Order.  An operation on device memory begins when the work is done that was
 * on the tensors' streams at the time of the call: an event is recorded there,
 * and the host asks for it.  No stream of the user's ever waits for another
 * process, nor for the host; at the end of an operation its streams wait for
 * copies at most that have been enqueued on this device already.  So a dead
 * peer leaves no stream waiting.
 *
 * Threads: tpg_absent(), tpg_claim(), tpg_work_new() and the allocator from any
 * thread, the rest under the context's token.
 */
#ifndef TPG_GPU_H
#define TPG_GPU_H

#include "fabric/channel.h"
#include "fabric/memory.h"

struct tpg_gpu;
struct tpg_work;

/* NULL without memory.  `settings` outlive it. */
struct tpg_gpu *tpg_open(const struct tpb_settings *settings);
/* No work is left.  NULL is allowed. */
void tpg_close(struct tpg_gpu *gpu);

/* Is no driver in use, so that no memory can be a device's?  10 ns. */
bool tpg_absent(const struct tpg_gpu *gpu);

/*
 * Is this what the caller says?  INVALID: memory of the host claimed for a
 * device, of a device for the host, of another device, a length that goes over
 * its end, or no such device; NOT_SUPPORTED: no GPU or driver.  With words.
 */
tp_status tpg_claim(struct tpg_gpu *gpu, const struct tpf_buffer *buffer,
                    struct tpb_error *error);

/* Could there be a GPU?  Asks the settings and the device files, wakes no
 * driver.  NOT_SUPPORTED with words. */
tp_status tpg_probe(const struct tpb_settings *settings,
                    struct tpb_error *error);

/* ---- cards --------------------------------------------------------------- */

/*
 * Adds cuda_staged to the card's backends: memory of devices in the frames of
 * any transport.  It works wherever a GPU might be; TP_BACKENDS forbids it only
 * by name (^cuda_staged), since without it many buffers go no way at all.
 * `assume`: for a recorded machine, which has what GPUs are on the card.
 */
void tpg_staged_card(const struct tpb_settings *settings, bool assume,
                     struct tpt_card *card);

/*
 * Asks the driver's management library (TP_NVML_LIBRARY) for the NVLinks of the
 * card's GPUs, and which may access each other's memory.  `there`: how many
 * GPUs the machine has; with one there is nothing to ask, and nothing is
 * loaded.  CUDA is not touched.  What cannot be told stays unknown; why is
 * logged.
 */
void tpg_nvml_ask(const struct tpb_settings *settings, int there,
                  struct tpt_card *card);

/* ---- one operation's device memory --------------------------------------- */

/*
 * For a message with tensors on devices: records where their streams stand.
 * *work is NULL if none of them is on one.  The message stays the caller's,
 * and as it is until tpg_work_end().
 */
tp_status tpg_work_new(struct tpg_gpu *gpu, const tp_message *message,
                       struct tpg_work **work, struct tpb_error *error);

enum tpg_answer { TPG_NOW, TPG_LATER, TPG_FAILED };

/* May the memory be used?  LATER: ask again.  FAILED: tpg_work_error(). */
enum tpg_answer tpg_work_ready(struct tpg_work *work);
const char *tpg_work_error(const struct tpg_work *work);

/*
 * The sender's way out: bytes of a device buffer, from `offset` on, in host
 * memory that holds until the next call.  NOW: *bytes and *length, at least 1.
 * LATER: the copy is under way.  `index` tells the message's buffers apart.
 */
enum tpg_answer tpg_work_fetch(struct tpg_work *work, size_t index,
                               const struct tpf_buffer *buffer, size_t offset,
                               const unsigned char **bytes, size_t *length);

/* The receiver's way in: bytes that are copied at once and brought to the
 * device by and by; the buffer's last byte starts the last copy.  May wait for
 * earlier copies of our own, never for a stream of the user's.  BACKEND: see
 * tpg_work_error(). */
tp_status tpg_work_store(struct tpg_work *work, size_t index,
                         const struct tpf_buffer *buffer, size_t offset,
                         const void *bytes, size_t length);

/*
 * A device buffer that no other process can open (of a stream-ordered pool,
 * say) is copied to memory on the same device that others can, and that lives
 * as long as the work.  LATER: the copy is under way.  NOW: it is done, or
 * there is none, since none is needed or there is no room.  After
 * tpg_work_ready().
 */
enum tpg_answer tpg_work_outbox(struct tpg_work *work, size_t index,
                                const struct tpf_buffer *buffer);
/* If there is such a copy, the buffer lies there. */
void tpg_work_boxed(const struct tpg_work *work, size_t index,
                    struct tpf_buffer *buffer);

/* The operation is over, however it went: later work on its streams comes
 * after what it enqueued.  NULL is allowed. */
void tpg_work_end(struct tpg_work *work);

/* ---- tp_alloc() ---------------------------------------------------------- */

tp_status tpg_alloc(struct tpg_gpu *gpu, size_t bytes, tp_device device,
                    struct tpf_memory *block, struct tpb_error *error);
/* From any thread.  Waits for copies of our own: a read may be over, for its
 * caller, before they are. */
void tpg_free(struct tpg_gpu *gpu, struct tpf_memory *block);

#endif
