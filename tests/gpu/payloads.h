/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The suites of tests/multi with their payloads on devices: put in front of
 * them by the compiler (-include), so that their calls come here (payloads.c).
 * What they write from CPU memory goes out as tensors on devices, and is theirs
 * to see as payloads again at the other end.  The suites do not notice.
 */
#ifndef TPX_PAYLOADS_H
#define TPX_PAYLOADS_H

#include "config.h"

#include <stdbool.h>

#include "runtime/tp.h"

tp_status tpx_payloads_write(tp_pipe *pipe, tp_message *message,
                             tp_message_fn *done, void *arg);
tp_status tpx_payloads_send(tp_pipe *pipe, const void *data, size_t length);
tp_status tpx_payloads_send_message(tp_pipe *pipe, tp_message *message,
                                    int timeout_ms);
tp_status tpx_payloads_descriptor(tp_pipe *pipe, tp_message_fn *arrived,
                                  void *arg);
tp_status tpx_payloads_any(tp_context *context, tp_message_fn *arrived,
                           void *arg);
tp_status tpx_payloads_recv_skeleton(tp_pipe *pipe, tp_message **skeleton,
                                     int timeout_ms);
tp_status tpx_payloads_read(tp_pipe *pipe, tp_message *skeleton,
                            tp_message_fn *done, void *arg);
tp_status tpx_payloads_recv_message(tp_pipe *pipe, tp_message *skeleton,
                                    int timeout_ms);
tp_status tpx_payloads_borrow(tp_pipe *pipe, tp_message *skeleton,
                              tp_message_fn *done, void *arg);
tp_status tpx_payloads_release(tp_pipe *pipe, tp_message *borrowed);

/* How many buffers went to a device, in all ranks; NULL: not counted.  In
 * memory that the ranks share. */
extern unsigned *tpx_payloads_count;

/* No memory of devices is freed: a test ends its writes while a rank of the
 * same process still copies from it.  The driver's free waits for such copies,
 * the double's ends the process. */
extern bool tpx_payloads_keep;

/* For the suites; payloads.c itself needs libtp's.  tp_pipe_recv() stays: it
 * takes all buffers of a message, wherever they come from. */
#ifdef TPX_PAYLOADS
#define tp_pipe_write tpx_payloads_write
#define tp_pipe_send tpx_payloads_send
#define tp_pipe_send_message tpx_payloads_send_message
#define tp_pipe_read_descriptor tpx_payloads_descriptor
#define tp_read_descriptor_any tpx_payloads_any
#define tp_pipe_recv_skeleton tpx_payloads_recv_skeleton
#define tp_pipe_read tpx_payloads_read
#define tp_pipe_recv_message tpx_payloads_recv_message
#define tp_pipe_borrow tpx_payloads_borrow
#define tp_pipe_release tpx_payloads_release
#endif

#endif
