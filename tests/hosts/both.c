/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two ranks that send to each other without an end, until the other one is
 * gone: `both`, with TP_BOOTSTRAP=dir:..., TP_RANK and TP_SIZE=2.  Says
 * "going" when messages flow both ways, and at last how it ended and how long
 * nothing had come before that.  The status is 0 if the peer was found dead,
 * and in time: within twice TP_HEARTBEAT, since emulated machines are slow.
 */
#include "config.h"

#include <stdio.h>

#include "tests/multi/spmd.h"

enum { BOTH_BYTES = 20000, BOTH_GOING = 20, BOTH_LIMIT_S = 120,
       BOTH_FOUND_MS = 20000 };

static struct {
    tp_pipe *pipe;
    unsigned char in[BOTH_BYTES], out[BOTH_BYTES];
    tp_message message;
    tp_payload payload;
    unsigned sent, received, ends;
    uint64_t last;                 /* when the last message came */
    tp_status status;
} both;

static void both_send(void);
static void both_receive(void);

/* Both directions end; the first one's status counts. */
static void both_over(tp_status status)
{
    if (both.ends++ == 0)
        both.status = status;
}

static void both_sent(tp_pipe *pipe, tp_status status, tp_message *message,
                      void *arg)
{
    (void)pipe;
    (void)message;
    (void)arg;
    both.sent++;
    if (status == TP_OK)
        both_send();
    else
        both_over(status);
}

static void both_send(void)
{
    both.payload = (tp_payload){ .data = both.out, .length = BOTH_BYTES };
    both.message = (tp_message){ .payloads = &both.payload,
                                 .payload_count = 1 };
    tpx_ok(tp_pipe_write(both.pipe, &both.message, both_sent, NULL));
}

static void both_received(tp_pipe *pipe, tp_status status,
                          tp_message *skeleton, void *arg)
{
    (void)pipe;
    (void)skeleton;
    (void)arg;
    if (status != TP_OK) {
        both_over(status);
        return;
    }
    both.last = tpx_now();
    if (++both.received == BOTH_GOING) {
        printf("going\n");
        fflush(stdout);
    }
    both_receive();
}

static void both_take(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                      void *arg)
{
    if (status != TP_OK) {
        both_over(status);
        return;
    }
    tpx_equal(skeleton->payload_count, 1);
    tpx_equal(skeleton->payloads[0].length, BOTH_BYTES);
    skeleton->payloads[0].data = both.in;
    tpx_ok(tp_pipe_read(pipe, skeleton, both_received, arg));
}

static void both_receive(void)
{
    tpx_ok(tp_pipe_read_descriptor(both.pipe, both_take, NULL));
}

static void both_run(void)
{
    uint64_t start = tpx_now(), silence;

    both.pipe = tpx_pipe(1 - tpx_me.rank, 0);
    both_send();
    both_receive();
    tpx_until(&both.ends, 2);
    silence = (tpx_now() - (both.last != 0 ? both.last : start)) / 1000000;
    printf("%s after %.1f s of silence: %s\n", tp_strerror(both.status),
           (double)silence * 1e-3, tp_pipe_error(both.pipe));
    tpx_status(both.status, TP_ERR_PEER_FAILED);
    tpx_check(silence < BOTH_FOUND_MS * (tpx_me.sanitized ? 3u : 1u),
              "found late");
}

int main(void)
{
    static const struct tpx_spmd test = {
        "both", both_run, 2, TPX_KILLS | TPX_WARNS, BOTH_LIMIT_S
    };

    tpx_rank_run(&test, NULL);
    return 0;
}
