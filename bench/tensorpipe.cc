/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The same work by TensorPipe, the way it is fastest: its callbacks do all of
 * it, and the main thread sleeps.  --over names the transport, and after a plus
 * sign a channel that carries the message as a tensor, instead of as a payload:
 * shm, shm+cma, shm+basic, uv, uv+cma, uv+basic are possible.
 */
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <semaphore.h>
#include <tensorpipe/tensorpipe.h>

extern "C" {
#include "bench/clock.h"
#include "bench/peer.h"
}

namespace {

struct Rank {
    std::shared_ptr<tensorpipe::Context> context;
    std::shared_ptr<tensorpipe::Listener> listener;
    std::vector<std::shared_ptr<tensorpipe::Pipe>> pipes;  // by rank
    bool tensors = false;
    std::string transport;
    // What callbacks tell the main thread.
    std::atomic<bool> failed{false};
    sem_t wake;
};

Rank *rank_of(struct peer *peer)
{
    return static_cast<Rank *>(peer->library);
}

bool said(Rank *rank, const tensorpipe::Error &error, const char *what)
{
    if (!error)
        return false;
    if (!rank->failed.exchange(true))
        bench_say("%s: %s", what, error.what().c_str());
    sem_post(&rank->wake);
    return true;
}

bool await(Rank *rank)
{
    while (sem_wait(&rank->wake) != 0)
        continue;
    return !rank->failed;
}

/* ---- messages ----------------------------------------------------------- */

tensorpipe::Message message(const Rank *rank, const void *data, size_t length)
{
    tensorpipe::Message message;

    if (rank->tensors) {
        tensorpipe::Message::Tensor tensor;

        tensor.buffer = tensorpipe::CpuBuffer{const_cast<void *>(data)};
        tensor.length = length;
        tensor.targetDevice
            = tensorpipe::Device(tensorpipe::kCpuDeviceType, 0);
        message.tensors.push_back(tensor);
    } else {
        tensorpipe::Message::Payload payload;

        payload.data = const_cast<void *>(data);
        payload.length = length;
        message.payloads.push_back(payload);
    }
    return message;
}

tensorpipe::Allocation allocation(const Rank *rank, void *data)
{
    tensorpipe::Allocation allocation;

    if (rank->tensors) {
        allocation.tensors.resize(1);
        allocation.tensors[0].buffer = tensorpipe::CpuBuffer{data};
    } else {
        allocation.payloads.resize(1);
        allocation.payloads[0].data = data;
    }
    return allocation;
}

bool length_is(const tensorpipe::Descriptor &descriptor, size_t length)
{
    if (descriptor.tensors.size() == 1)
        return descriptor.tensors[0].length == length;
    return descriptor.payloads.size() == 1
           && descriptor.payloads[0].length == length;
}

/* then(): in a callback, when the message is there. */
template <typename Then>
void receive(Rank *rank, tensorpipe::Pipe &pipe, void *data, size_t length,
             Then then)
{
    pipe.readDescriptor([=, &pipe](const tensorpipe::Error &error,
                                   tensorpipe::Descriptor descriptor) {
        if (said(rank, error, "readDescriptor"))
            return;
        if (!length_is(descriptor, length)) {
            bench_say("a message has another length");
            rank->failed = true;
            sem_post(&rank->wake);
            return;
        }
        pipe.read(allocation(rank, data),
                  [=](const tensorpipe::Error &error) {
                      if (!said(rank, error, "read"))
                          then();
                  });
    });
}

template <typename Then>
void send(Rank *rank, tensorpipe::Pipe &pipe, const void *data, size_t length,
          Then then)
{
    pipe.write(message(rank, data, length),
               [=](const tensorpipe::Error &error) {
                   if (!said(rank, error, "write"))
                       then();
               });
}

/* For peer.c: what the plan tells the ranks. */
bool tensorpipe_send(struct peer *peer, int to, const void *data,
                     size_t length, struct peer_request *request)
{
    Rank *rank = rank_of(peer);

    send(rank, *rank->pipes[to], data, length,
         [=] { sem_post(&rank->wake); });
    request->over = await(rank);
    return request->over;
}

bool tensorpipe_receive(struct peer *peer, int from, void *data, size_t length,
                        struct peer_request *request)
{
    Rank *rank = rank_of(peer);

    receive(rank, *rank->pipes[from], data, length,
            [=] { sem_post(&rank->wake); });
    request->over = await(rank);
    return request->over;
}

/* Nothing to do: its threads do it. */
bool tensorpipe_progress(struct peer *, bool *some)
{
    *some = false;
    return true;
}

/* ---- exchange ----------------------------------------------------------- */

struct Exchange {
    Rank *rank;
    struct bench_job *job;
    struct bench_role role;
    tensorpipe::Pipe *out, *in;
    uint64_t round, begun;
    std::atomic<int> open;         // of the round: written, caught
};

void exchange_begin(Exchange *e);

/* A round is over when the message has come and the buffer is free. */
void exchange_end(Exchange *e)
{
    if (--e->open > 0)
        return;
    if (++e->round == e->job->count || e->job->fresh)
        sem_post(&e->rank->wake);
    else
        exchange_begin(e);
}

void exchange_write(Exchange *e)
{
    send(e->rank, *e->out, e->job->send[0], e->job->bytes,
         [=] { exchange_end(e); });
}

void exchange_caught(Exchange *e)
{
    uint64_t number = e->job->sequence + e->round;

    if (e->role.leads)
        e->job->samples[e->round] = bench_ticks() - e->begun;
    if (!bench_right(e->job, e->job->receive[0], number)) {
        bench_say("message %llu of %zu bytes arrived with wrong contents",
                  static_cast<unsigned long long>(number), e->job->bytes);
        e->rank->failed = true;
        sem_post(&e->rank->wake);
        return;
    }
    if (!e->role.leads) {
        if (!e->job->fresh)
            bench_touch(e->job, e->job->send[0], number);
        exchange_write(e);
    }
    exchange_end(e);
}

void exchange_begin(Exchange *e)
{
    e->open = 2;
    receive(e->rank, *e->in, e->job->receive[0], e->job->bytes,
            [=] { exchange_caught(e); });
    if (!e->role.leads)
        return;
    if (!e->job->fresh)
        bench_touch(e->job, e->job->send[0], e->job->sequence + e->round);
    e->begun = bench_ticks();
    exchange_write(e);
}

/* With a rewritten buffer, which is not part of the time. */
bool exchange_fresh(struct bench_driver *driver, Exchange *e)
{
    bench_touch(e->job, e->job->send[0], e->job->sequence + e->round);
    if (!e->role.leads) {
        unsigned char byte = 0;

        exchange_begin(e);
        e->open++;
        send(e->rank, *e->out, &byte, 1, [=] { exchange_end(e); });
        return await(e->rank);
    }
    if (!bench_ready(driver, &e->role))
        return false;
    exchange_begin(e);
    return await(e->rank);
}

bool tensorpipe_exchange(struct bench_driver *driver, struct bench_job *job)
{
    Rank *rank = rank_of(peer_of(driver));
    Exchange e{};
    bool good = true;

    e.rank = rank;
    e.job = job;
    e.role = bench_role(job, driver->rank, driver->size);
    e.out = rank->pipes[e.role.out].get();
    e.in = rank->pipes[e.role.in].get();
    if (!job->fresh) {
        exchange_begin(&e);
        return await(rank);
    }
    while (good && e.round < job->count)
        good = exchange_fresh(driver, &e);
    return good;
}

/* ---- stream ------------------------------------------------------------- */

struct Way {
    Rank *rank;
    struct bench_job *job;
    tensorpipe::Pipe *pipe;
    // What begins first is sent first; its executor may run callbacks within
    // our call.
    std::recursive_mutex order;
    uint64_t begun, total;
    std::atomic<uint64_t> ended;
};

/* The last thing that is done with a way: then it may be gone. */
void way_end(Way *way)
{
    Rank *rank = way->rank;
    uint64_t total = way->total;

    if (++way->ended == total)
        sem_post(&rank->wake);
}

void way_out(Way *way)
{
    std::lock_guard<std::recursive_mutex> lock(way->order);
    uint64_t k = way->begun++;
    struct bench_job *job = way->job;

    if (k >= way->total)
        return;
    bench_touch(job, job->send[k % job->lanes], job->sequence + k);
    send(way->rank, *way->pipe, job->send[k % job->lanes], job->bytes, [=] {
        way_out(way);
        way_end(way);
    });
}

void way_in(Way *way)
{
    std::lock_guard<std::recursive_mutex> lock(way->order);
    uint64_t k = way->begun++;
    struct bench_job *job = way->job;

    if (k >= way->total)
        return;
    receive(way->rank, *way->pipe, job->receive[k % job->lanes], job->bytes,
            [=] {
                if (!bench_right(job, job->receive[k % job->lanes],
                                 job->sequence + k)) {
                    bench_say("a message arrived with wrong contents");
                    way->rank->failed = true;
                    sem_post(&way->rank->wake);
                    return;
                }
                way_in(way);
                way_end(way);
            });
}

void way_init(Way *way, Rank *rank, struct bench_job *job, int peer,
              bool moves)
{
    way->rank = rank;
    way->job = job;
    way->pipe = rank->pipes[peer].get();
    way->begun = way->ended = 0;
    way->total = moves ? job->count : 0;
}

bool tensorpipe_stream(struct bench_driver *driver, struct bench_job *job)
{
    Rank *rank = rank_of(peer_of(driver));
    bool both = job->test == BENCH_BIDIRECTIONAL, good = true;
    int peer = 1 - driver->rank;
    unsigned char byte = 0;
    Way out{}, in{};
    uint64_t begun;

    way_init(&out, rank, job, peer, both || driver->rank == 0);
    way_init(&in, rank, job, peer, both || driver->rank == 1);
    if (driver->rank == 1)
        good = driver->send(driver, peer, &byte, 1);
    else
        good = driver->receive(driver, peer, &byte, 1);
    begun = bench_ticks();
    for (unsigned i = 0; i < job->window && good; i++)
        way_in(&in);
    for (unsigned i = 0; i < job->window && good; i++)
        way_out(&out);
    for (int i = 0; i < 1 + both && good; i++)
        good = await(rank);
    if (good && driver->rank == 1)
        return driver->send(driver, peer, &byte, 1);
    good = good && driver->receive(driver, peer, &byte, 1);
    job->ticks = bench_ticks() - begun;
    return good;
}

/* ---- overlap ------------------------------------------------------------ */

bool overlap_both(struct bench_driver *driver, const struct bench_job *job,
                  int to, const void *out, void *in)
{
    Rank *rank = rank_of(peer_of(driver));
    tensorpipe::Pipe &pipe = *rank->pipes[to];

    receive(rank, pipe, in, job->bytes, [=] { sem_post(&rank->wake); });
    send(rank, pipe, out, job->bytes, [=] { sem_post(&rank->wake); });
    bench_work(job->work);
    return await(rank) && await(rank);
}

bool tensorpipe_overlap(struct bench_driver *driver, struct bench_job *job)
{
    return bench_overlap(driver, job, overlap_both);
}

/* ---- start and end ------------------------------------------------------ */

void tensorpipe_register(Rank *rank, const std::string &channel)
{
    auto &context = *rank->context;

    if (rank->transport == "shm")
        context.registerTransport(10, "shm",
                                  tensorpipe::transport::shm::create());
    else
        context.registerTransport(10, "uv",
                                  tensorpipe::transport::uv::create());
    if (channel == "cma")
        context.registerChannel(10, "cma", tensorpipe::channel::cma::create());
    else
        context.registerChannel(1, "basic",
                                tensorpipe::channel::basic::create());
    rank->tensors = !channel.empty();
}

/* Everybody listens; who has the lower rank connects. */
bool tensorpipe_open(struct peer *peer, void *address, size_t *length)
{
    std::string over = peer_over(peer), channel, url;
    auto plus = over.find('+');
    Rank *rank = new Rank;

    peer->library = rank;
    sem_init(&rank->wake, 0, 0);
    if (plus != std::string::npos)
        channel = over.substr(plus + 1);
    rank->transport = over.substr(0, plus);
    if (rank->transport != "shm" && rank->transport != "uv") {
        bench_say("there is no transport %s: shm, uv", over.c_str());
        return false;
    }
    rank->context = std::make_shared<tensorpipe::Context>();
    tensorpipe_register(rank, channel);
    rank->pipes.resize(peer->driver.size);
    rank->listener = rank->context->listen(
        {rank->transport == "shm" ? "shm://" : "uv://127.0.0.1"});
    url = rank->listener->url(rank->transport);
    if (url.size() + 1 > *length)
        return false;
    *length = url.size() + 1;
    memcpy(address, url.c_str(), *length);
    return true;
}

/* Who connects says its rank first. */
void tensorpipe_accept(Rank *rank, int left)
{
    if (left == 0)
        return;
    rank->listener->accept([=](const tensorpipe::Error &error,
                               std::shared_ptr<tensorpipe::Pipe> pipe) {
        auto number = std::make_shared<int>(-1);
        tensorpipe::Pipe &it = *pipe;

        if (said(rank, error, "accept"))
            return;
        receive(rank, it, number.get(), sizeof(*number), [=] {
            rank->pipes.at(*number) = pipe;
            sem_post(&rank->wake);
        });
        tensorpipe_accept(rank, left - 1);
    });
}

bool tensorpipe_connect(struct peer *peer)
{
    Rank *rank = rank_of(peer);
    int me = peer->driver.rank, size = peer->driver.size;
    bool good = true;

    tensorpipe_accept(rank, me);
    for (int i = 0; i < me && good; i++)
        good = await(rank);
    for (int to = me + 1; to < size && good; to++) {
        size_t length;
        auto url = static_cast<const char *>(peer_address(peer, to, &length));

        rank->pipes[to] = rank->context->connect(url);
        send(rank, *rank->pipes[to], &me, sizeof(me),
             [=] { sem_post(&rank->wake); });
        good = await(rank);
    }
    return good;
}

/* Its threads are ended by the end of the process: joining them may hang when
 * a peer is gone first. */
void tensorpipe_close(struct peer *)
{
}

}  // namespace

int main(int argc, char **argv)
{
    struct peer_kind kind = {};

    kind.who = "tensorpipe";
    kind.over = "shm";
    kind.open = tensorpipe_open;
    kind.connect = tensorpipe_connect;
    kind.close = tensorpipe_close;
    kind.send = tensorpipe_send;
    kind.receive = tensorpipe_receive;
    kind.progress = tensorpipe_progress;
    kind.exchange = tensorpipe_exchange;
    kind.stream = tensorpipe_stream;
    kind.overlap = tensorpipe_overlap;
    return peer_main(argc, argv, &kind);
}
