/* SPDX-License-Identifier: BSD-3-Clause */
/* Letters to and fro over one pipe. */
#include "config.h"

#include <stdlib.h>

#include "tests/multi/flow.h"

/* One letter on its way, written or read. */
struct tpx_flow_letter {
    struct tpx_flow *flow;
    struct tpx_letter *letter;
    tp_message *skeleton;
    unsigned index;
};

/* Callbacks that run now; never more than one. */
static unsigned flow_callbacks;

static void flow_enter(void)
{
    tpx_equal(__atomic_fetch_add(&flow_callbacks, 1, __ATOMIC_ACQ_REL), 0);
}

static void flow_leave(void)
{
    __atomic_fetch_sub(&flow_callbacks, 1, __ATOMIC_ACQ_REL);
}

static uint64_t flow_seed(const struct tpx_flow *flow, int from, int to,
                          unsigned index)
{
    uint64_t state = tpx_me.seed + (uint64_t)from * 1000003
                     + (uint64_t)to * 7919 + (uint64_t)flow->number * 104729
                     + (uint64_t)index * 15485863;

    return tpx_random(&state);
}

static struct tpx_flow_letter *flow_letter(struct tpx_flow *flow,
                                           struct tpx_letter *letter,
                                           unsigned index)
{
    struct tpx_flow_letter *self = malloc(sizeof(*self));

    tpx_check(self != NULL, "no memory for the test itself");
    *self = (struct tpx_flow_letter){ flow, letter, NULL, index };
    return self;
}

static void flow_letter_free(struct tpx_flow_letter *self)
{
    tpx_letter_free(self->letter);
    free(self);
}

/* ---- writing ------------------------------------------------------------ */

static void flow_write(struct tpx_flow *flow);

static void flow_written(tp_pipe *pipe, tp_status status, tp_message *message,
                         void *arg)
{
    struct tpx_flow_letter *self = arg;
    struct tpx_flow *flow = self->flow;

    flow_enter();
    tpx_check(status == TP_OK, "write %u to rank %d: \"%s\": %s", self->index,
              flow->peer, tp_strerror(status), tp_pipe_error(pipe));
    tpx_check(pipe == flow->pipe, "a write's callback names another pipe");
    tpx_check(message == &self->letter->message,
              "a write's callback names another message");
    tpx_equal(self->index, flow->write_done);
    flow_letter_free(self);
    while (flow->write_next < flow->plan.count
           && flow->write_next - flow->write_done <= flow->plan.writes)
        flow_write(flow);
    __atomic_store_n(&flow->write_done, flow->write_done + 1,
                     __ATOMIC_RELEASE);
    flow_leave();
}

static void flow_write(struct tpx_flow *flow)
{
    unsigned index = flow->write_next;
    struct tpx_letter *letter;

    if (index == flow->plan.count)
        return;
    flow->write_next++;
    letter = tpx_letter_make(flow_seed(flow, tpx_me.rank, flow->peer, index),
                             flow->plan.kind);
    tpx_ok(tp_pipe_write(flow->pipe, &letter->message, flow_written,
                         flow_letter(flow, letter, index)));
}

/* ---- reading ------------------------------------------------------------ */

static void flow_read_done(tp_pipe *pipe, tp_status status,
                           tp_message *skeleton, void *arg)
{
    struct tpx_flow_letter *self = arg;
    struct tpx_flow *flow = self->flow;

    flow_enter();
    tpx_check(status == TP_OK, "read %u from rank %d: \"%s\": %s",
              self->index, flow->peer, tp_strerror(status),
              tp_pipe_error(pipe));
    tpx_check(skeleton == self->skeleton,
              "a read's callback names another skeleton");
    tpx_equal(self->index, flow->read_done);
    tpx_letter_check(self->letter);
    flow_letter_free(self);
    __atomic_store_n(&flow->read_done, flow->read_done + 1, __ATOMIC_RELEASE);
    flow_leave();
}

static void flow_arrived(tp_pipe *pipe, tp_status status,
                         tp_message *skeleton, void *arg);

static void flow_arm(struct tpx_flow *flow)
{
    if (flow->armed == flow->plan.count)
        return;
    flow->armed++;
    tpx_ok(tp_pipe_read_descriptor(flow->pipe, flow_arrived, flow));
}

static void flow_arrived(tp_pipe *pipe, tp_status status,
                         tp_message *skeleton, void *arg)
{
    struct tpx_flow *flow = arg;
    struct tpx_flow_letter *self;
    unsigned index = flow->arrived++;

    flow_enter();
    tpx_check(status == TP_OK, "descriptor %u from rank %d: \"%s\": %s",
              index, flow->peer, tp_strerror(status), tp_pipe_error(pipe));
    tpx_check(pipe == flow->pipe, "a descriptor came on another pipe");
    self = flow_letter(flow, tpx_letter_expect(
        flow_seed(flow, flow->peer, tpx_me.rank, index), flow->plan.kind,
        skeleton), index);
    self->skeleton = skeleton;
    if (tpx_below(&flow->state, 3) == 0)
        flow_arm(flow);
    if (tpx_below(&flow->state, 8) == 0)   /* read later, elsewhere */
        __atomic_store_n(&flow->held, self, __ATOMIC_RELEASE);
    else
        tpx_ok(tp_pipe_read(pipe, skeleton, flow_read_done, self));
    while (flow->armed - flow->arrived < flow->plan.reads
           && flow->armed < flow->plan.count)
        flow_arm(flow);
    flow_leave();
}

/* ---- both --------------------------------------------------------------- */

void tpx_flow_start(struct tpx_flow *flow, int peer, unsigned number,
                    const struct tpx_flow_plan *plan)
{
    *flow = (struct tpx_flow){ .plan = *plan, .peer = peer, .number = number,
                               .pipe = tpx_pipe(peer, number),
                               .state = tpx_me.seed + number };
}

/* One write begins it; its callback starts the others, so that none overtakes
 * another on the way to tp_pipe_write(). */
static void flow_begin(struct tpx_flow *flow)
{
    unsigned reads = flow->plan.reads;

    if (reads > flow->plan.count)
        reads = flow->plan.count;
    flow->armed = reads;       /* beforehand: callbacks may come at once */
    for (unsigned i = 0; i < reads; i++)
        tpx_ok(tp_pipe_read_descriptor(flow->pipe, flow_arrived, flow));
    flow_write(flow);
}

static bool flow_over(struct tpx_flow *flow)
{
    struct tpx_flow_letter *held = __atomic_exchange_n(&flow->held, NULL,
                                                       __ATOMIC_ACQ_REL);

    if (held != NULL)
        tpx_ok(tp_pipe_read(flow->pipe, held->skeleton, flow_read_done,
                            held));
    return __atomic_load_n(&flow->write_done, __ATOMIC_ACQUIRE)
           == flow->plan.count
           && __atomic_load_n(&flow->read_done, __ATOMIC_ACQUIRE)
           == flow->plan.count;
}

void tpx_flow_finish(struct tpx_flow *flows, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        flow_begin(&flows[i]);
    for (;;) {
        bool over = true;
        tp_status status;

        for (unsigned i = 0; i < count; i++)
            over &= flow_over(&flows[i]);
        if (over)
            break;
        status = tp_wait(tpx_me.context, tpx_limit_ms(20000), NULL);
        tpx_check(status == TP_OK, "nothing moved for 20 s: flow 0 has"
                  " written %u, read %u of %u", flows[0].write_done,
                  flows[0].read_done, flows[0].plan.count);
    }
    for (unsigned i = 0; i < count; i++) {
        tp_stats stats;

        tpx_ok(tp_pipe_stats(flows[i].pipe, &stats));
        tpx_equal(stats.messages_sent, flows[i].plan.count);
        tpx_equal(stats.messages_received, flows[i].plan.count);
        tpx_equal(stats.writes_pending, 0);
        tpx_equal(stats.reads_pending, 0);
        tpx_equal(stats.bytes_buffered, 0);
        tpx_equal(flows[i].arrived, flows[i].plan.count);
    }
}
