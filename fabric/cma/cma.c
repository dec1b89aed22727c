/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The cma channel: the receiver copies a big buffer straight out of the
 * sender's memory with process_vm_readv(2), one copy and no frames.  Where both
 * have a cpu of their own he calls the sender, who copies from the other end
 * with process_vm_writev(2) unless he has better things to do: see both.h.
 *
 * Whether a process may do that to another is decided by ptrace's rules (user,
 * capabilities, user namespace, dumpable), by Yama and by seccomp, and may
 * change at any moment; only an attempt on that very process tells.  So the
 * trial reads a random number whose place the peer published, which also
 * proves that the PID means the right process.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fabric/both.h"
#include "fabric/cma/bounce.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "topology/card.h"

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#endif

enum {
    /* A short buffer has two pieces: more cost more than they gain.  Of a long
     * one a piece is as much as one may wait for in the end. */
    CMA_PIECE_MOST = 256 * 1024,
    CMA_PAGE = 4096,
    CMA_HALVES_LEAST = 20 * 1024,  /* shorter ones are the receiver's alone */
    CMA_HALVES_MOST = TPF_BOTH_PIECE,
    CMA_SIZES = 7,                 /* powers of two from the one to the other */
    CMA_LATE = 6,                  /* so often in turn somebody is the later */
    /* The same in a stream, whose sender has other things to do, and does not
     * hear of them meanwhile. */
    CMA_SHARED_LEAST = 32 * 1024, CMA_SHARED_MOST = 64 * 1024,
    CMA_SHARED_LONG = 256 * 1024,
    /* He may not have found out yet whether it pays, but it is worth it. */
    CMA_CALL_ALWAYS = 4 * 1024 * 1024,
    /* Nanoseconds after it spoke in which a process does not become another:
     * its threads have to be ended before its memory is replaced. */
    CMA_RECENT = 5 * 1000,
    CMA_BRIEF = 64 * 1024,         /* what may be read within these */
    CMA_GROWTH = 64                /* how soon slower reads are believed */
};

/* What is published: where the token is and what it is, and by whose clock its
 * sources and calls are dated (its time namespace; 0: nothing tells). */
struct cma_address {
    uint64_t place;
    uint64_t clock;
    uint8_t token[16];
};
_Static_assert(sizeof(struct cma_address) == 32, "wire layout");

struct cma_source {
    uint64_t place;
    uint64_t when;
};
_Static_assert(sizeof(struct cma_source) == 16, "wire layout");

/* The receiver's call: where the buffer is to be, and when it was made. */
struct cma_call {
    struct tpf_both_call pieces;
    uint64_t place;
    uint64_t when;
};
_Static_assert(sizeof(struct cma_call) == 40, "wire layout");
_Static_assert(sizeof(struct cma_call) <= TPF_CALL, "TPF_CALL is too small");

struct cma_channel {
    struct tpf_channel base;
    struct cma_address address;
    uint8_t token[16];             /* read by peers, by its address */
    struct tpb_list pulls;         /* cma_pull */
    struct tpb_list helps;         /* cma_pull, at the sender */
    struct cma_bounce bounce;
};

struct cma_link {
    struct tpf_link base;
    pid_t pid;
    struct cma_address theirs;
    /* Receiver: so many pages more than half of a buffer are his piece, by its
     * size, so that both end at the same time: it depends on whose caches have
     * what.  And how often in turn the sender was late; negative: he was. */
    struct {
        int8_t ahead, late;
    } balance[CMA_SIZES];
    uint32_t page_ns;              /* that a page of the peer's takes to read,
                                      the quickest lately */
};

struct cma_pull {
    struct tpf_pull base;
    struct tpf_both both;
    uint64_t place;
    uint64_t when;                 /* the peer spoke of it, by his clock */
    bool missing;                  /* receiver: there is no memory at one of
                                      the two ends */
};
_Static_assert(sizeof(struct cma_pull) <= TPF_PULL, "TPF_PULL is too small");

/* ---- the channel -------------------------------------------------------- */

/* Yama's scope; 0 where there is none. */
static int cma_yama_scope(void)
{
    char *text = tpb_read_file("/proc/sys/kernel/yama/ptrace_scope", NULL);
    int scope = text != NULL ? atoi(text) : 0;

    tpb_free(text);
    return scope;
}

static tp_status cma_probe(const struct tpf_env *env, struct tpb_error *error)
{
    char byte = 1, copy = 0;
    struct iovec mine = { &copy, 1 }, theirs = { &byte, 1 };

    (void)env;
    /* Proves only that the system call is there and not filtered. */
    if (process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0) != 1) {
        if (errno == ENOSYS)
            return tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                            "the kernel has no process_vm_readv"
                            " (CONFIG_CROSS_MEMORY_ATTACH)");
        return tpb_fail_errno(error, errno,
                              "process_vm_readv is refused (seccomp?)");
    }
    if (cma_yama_scope() == 3)
        return tpb_fail(error, TP_ERR_SYSTEM,
                        "kernel.yama.ptrace_scope=3 forbids it to all");
    return TP_OK;
}

/* With Yama's scope 1 only a parent may read; but a process may name another,
 * whose descendants may too: the launcher, so that all ranks of a host can. */
static void cma_allow_siblings(const struct tpf_env *env)
{
    const char *launcher = env->settings->text[TPB_SET_LAUNCHER];
    const char *colon = strchr(launcher, ':');
    long pid = colon != NULL ? strtol(colon + 1, NULL, 10) : getppid();

    if (cma_yama_scope() == 1 && pid > 1)
        prctl(PR_SET_PTRACER, (unsigned long)pid, 0, 0, 0);
}

static tp_status cma_open(struct tpf_channel *base, struct tpb_error *error)
{
    struct cma_channel *channel = (struct cma_channel *)base;

    (void)error;
    tpb_list_init(&channel->pulls);
    tpb_list_init(&channel->helps);
    tpb_random(channel->token, sizeof(channel->token));
    channel->address.place = (uint64_t)(uintptr_t)channel->token;
    channel->address.clock = tpt_namespace("time");
    memcpy(channel->address.token, channel->token, sizeof(channel->token));
    cma_allow_siblings(base->env);
    return TP_OK;
}

static void cma_close(struct tpf_channel *base)
{
    cma_bounce_fini(&((struct cma_channel *)base)->bounce);
}

static size_t cma_address(struct tpf_channel *base, void *buffer,
                          size_t capacity)
{
    struct cma_channel *channel = (struct cma_channel *)base;

    if (capacity < sizeof(channel->address))
        return 0;
    memcpy(buffer, &channel->address, sizeof(channel->address));
    return sizeof(channel->address);
}

/* ---- the trial ---------------------------------------------------------- */

/* The peer's PID as seen from here; 0 if nothing tells. */
static pid_t cma_pid(const struct tpf_link *link)
{
    const struct tpt_host *mine = &link->channel->env->card->host;
    const struct tpt_host *theirs = &link->card->host;
    pid_t pid = link->conn->backend->peer_pid != NULL
                ? link->conn->backend->peer_pid(link->conn) : 0;

    if (pid == 0 && mine->pid_namespace != 0
        && mine->pid_namespace == theirs->pid_namespace)
        pid = (pid_t)link->card->pid;
    return pid;
}

static tp_status cma_refused(int code, pid_t pid, struct tpb_error *error)
{
    if (code == EPERM && cma_yama_scope() == 2)
        return tpb_fail(error, TP_ERR_DENIED,
                        "kernel.yama.ptrace_scope=2 lets only"
                        " CAP_SYS_PTRACE read pid %d", (int)pid);
    if (code == EPERM)
        return tpb_fail(error, TP_ERR_DENIED,
                        "may not read pid %d: not permitted (other user or user"
                        " namespace, Yama or seccomp)", (int)pid);
    return tpb_fail(error, TP_ERR_DENIED, "cannot read pid %d: %s", (int)pid,
                    strerror(code));
}

/* Reads what stands where the peer's token is to be.  Returns as
 * process_vm_readv(2) does; *same: it is the peer that was linked. */
static ssize_t cma_read_token(const struct cma_link *link, bool *same)
{
    uint8_t token[sizeof(link->theirs.token)] = { 0 };
    struct iovec mine = { token, sizeof(token) };
    struct iovec place = { (void *)(uintptr_t)link->theirs.place,
                           sizeof(token) };
    ssize_t got = process_vm_readv(link->pid, &mine, 1, &place, 1, 0);

    *same = memcmp(token, link->theirs.token, sizeof(token)) == 0;
    return got;
}

static tp_status cma_link(struct tpf_link *base, const void *address,
                          size_t length, struct tpb_error *error)
{
    struct cma_link *link = (struct cma_link *)base;
    bool same;

    if (length != sizeof(link->theirs))
        return tpb_fail(error, TP_ERR_PROTOCOL, "its cma address is garbage");
    memcpy(&link->theirs, address, sizeof(link->theirs));
    link->pid = cma_pid(base);
    if (link->pid == 0)
        return tpb_fail(error, TP_ERR_DENIED,
                        "its PID cannot be seen from this PID namespace");
    if (cma_read_token(link, &same) != (ssize_t)sizeof(link->theirs.token))
        return cma_refused(errno, link->pid, error);
    if (!same)
        return tpb_fail(error, TP_ERR_DENIED,
                        "pid %d is another process here", (int)link->pid);
    return TP_OK;
}

/* ---- moving ------------------------------------------------------------- */

static size_t cma_describe(struct tpf_link *link,
                           const struct tpf_buffer *buffer,
                           unsigned char source[TPF_SOURCE], void **hold)
{
    struct cma_source where = { .place = (uint64_t)(uintptr_t)buffer->data };

    (void)link;
    (void)hold;
    if (buffer->device.type != TP_DEVICE_CPU)
        return 0;
    where.when = tpb_now();
    memcpy(source, &where, sizeof(where));
    return sizeof(where);
}

/* ---- how both copy ------------------------------------------------------- */

static struct cma_bounce *cma_bounce(const struct tpf_pull *pull)
{
    return &((struct cma_channel *)pull->link->channel)->bounce;
}

static struct tpf_both *cma_both(struct tpf_pull *pull)
{
    return &((struct cma_pull *)pull)->both;
}

/* To read the token takes both processes' locks: of a short piece that is a
 * tenth of the copy, or half where the other one copies just now.  At `now`. */
static bool cma_was_recent(const struct cma_pull *pull, uint64_t now)
{
    const struct cma_channel *mine =
        (const struct cma_channel *)pull->base.link->channel;
    const struct cma_link *link = (const struct cma_link *)pull->base.link;

    return mine->address.clock != 0
           && mine->address.clock == link->theirs.clock
           && now - pull->when < CMA_RECENT;
}

static bool cma_is_recent(const struct cma_pull *pull)
{
    return cma_was_recent(pull, tpb_now());
}

/* At `now` this much is to be read without the token: will it be there while
 * that is recent? */
static bool cma_is_brief(const struct cma_pull *pull, size_t length,
                         uint64_t now)
{
    const struct cma_link *link = (const struct cma_link *)pull->base.link;

    return length <= CMA_BRIEF
           && cma_was_recent(pull, now + length / CMA_PAGE * link->page_ns);
}

/* What was begun then has been read by now. */
static void cma_time(struct cma_link *link, size_t length, uint64_t took)
{
    uint64_t page_ns = took / (length / CMA_PAGE + 1);

    link->page_ns = page_ns > link->page_ns + link->page_ns / CMA_GROWTH
                    ? link->page_ns + link->page_ns / CMA_GROWTH + 1
                    : (uint32_t)page_ns;
}

/* Is the peer's memory still there?  Not once it has ended, or become another
 * program. */
static bool cma_lives(const struct tpf_link *link)
{
    bool same;

    if (cma_read_token((const struct cma_link *)link, &same) < 0)
        return errno != ESRCH && errno != EFAULT;
    return same;
}

/* Would the kernel write there? */
static bool cma_is_ours(const struct cma_channel *channel, void *to)
{
    struct iovec mine = { to, 1 };
    struct iovec token = { (void *)(uintptr_t)channel->token, 1 };

    return process_vm_readv(getpid(), &mine, 1, &token, 1, 0) == 1;
}

/*
 * Nothing was read of what is at `place` with the peer alive: pages that nobody
 * may touch, or beyond the end of their file; or such that only the peer's CPU
 * can, as a device's.  Then frames do, and the other buffers go on this way.
 */
static void cma_no_memory(struct cma_pull *pull, uint64_t place, void *to,
                          struct tpb_error *error)
{
    const struct cma_channel *channel =
        (struct cma_channel *)pull->base.link->channel;

    pull->missing = true;
    if (cma_is_ours(channel, to))
        tpb_fail(error, TP_ERR_SYSTEM, "the sender's memory at %#jx cannot be"
                 " read (unmapped, protected, file cut)",
                 (uintmax_t)place);
    else
        tpb_fail(error, TP_ERR_SYSTEM, "the reader's memory at %#jx cannot be"
                 " written (unmapped, protected, file cut)",
                 (uintmax_t)(uintptr_t)to);
}

/*
 * The token comes with the bytes, out of the same memory: else they may be of
 * whatever program that process has become meanwhile.  A few bytes do without,
 * if that will not have been possible when they are there, and has not: for a
 * cpu may be lost at any time, and the token has to be read then.
 */
static size_t cma_take(struct tpf_pull *base, size_t at, size_t length,
                       struct tpb_error *error)
{
    struct cma_link *link = (struct cma_link *)base->link;
    struct cma_pull *pull = (struct cma_pull *)base;
    uint8_t token[sizeof(link->theirs.token)];
    unsigned char *to = (unsigned char *)base->to.data + at;
    void *into = cma_bounce_in(cma_bounce(base), to, pull->place + at,
                               &length);
    uint64_t begun = tpb_now(), ended;
    struct iovec mine[2] = { { token, sizeof(token) }, { into, length } };
    struct iovec theirs[2] = {
        { (void *)(uintptr_t)link->theirs.place, sizeof(token) },
        { (void *)(uintptr_t)(pull->place + at), length }
    };
    bool sure = cma_is_brief(pull, length, begun);
    size_t ahead = sure ? 0 : sizeof(token);
    int code;
    ssize_t got = process_vm_readv(link->pid, mine + sure, 2 - sure,
                                   theirs + sure, 2 - sure, 0);

    ended = tpb_now();
    if (length <= CMA_BRIEF)
        cma_time(link, length, ended - begun);
    if (got > (ssize_t)ahead
        && (sure ? cma_was_recent(pull, ended) || cma_lives(base->link)
                 : memcmp(token, link->theirs.token, sizeof(token)) == 0)) {
        if (into != to)
            tpb_copy(to, into, (size_t)got - ahead);
        return (size_t)got - ahead;
    }
    code = got < 0 ? errno : EFAULT;
    if (code == EFAULT && got <= (ssize_t)ahead && cma_lives(base->link))
        cma_no_memory(pull, pull->place + at, to, error);
    else
        cma_refused(code, link->pid, error);
    return 0;
}

/* A sender that was stopped meanwhile must not write into whatever has the
 * peer's pid by now.  (If he loses his cpu between this and the write, and the
 * peer becomes another program just then, he does: there is no write that looks
 * first.) */
static bool cma_may_give(struct cma_pull *help)
{
    uint64_t now;

    if (cma_is_recent(help))
        return true;
    now = tpb_now();
    if (!cma_lives(help->base.link))
        return false;
    help->when = now;              /* as good as if he had spoken */
    return true;
}

static bool cma_give(struct tpf_pull *help, size_t at, size_t length)
{
    const struct cma_link *link = (struct cma_link *)help->link;
    uint64_t place = ((struct cma_pull *)help)->place;

    while (length > 0) {
        size_t part = length;
        void *from = cma_bounce_out(cma_bounce(help),
                                    (unsigned char *)help->to.data + at,
                                    place + at, &part);
        struct iovec mine = { from, part };
        struct iovec theirs = { (void *)(uintptr_t)(place + at), part };
        ssize_t put = cma_may_give((struct cma_pull *)help)
                      ? process_vm_writev(link->pid, &mine, 1, &theirs, 1, 0)
                      : 0;

        if (put <= 0)
            return false;
        at += (size_t)put;
        length -= (size_t)put;
    }
    return true;
}

static const struct tpf_both_ways cma_ways = {
    .of = cma_both, .take = cma_take, .give = cma_give, .lives = cma_lives
};

/* ---- the receiver -------------------------------------------------------- */

static unsigned cma_size(size_t length)
{
    unsigned size = 0;

    for (length /= 32 * 1024; length > 0 && size < CMA_SIZES - 1;
         length /= 2)
        size++;
    return size;
}

/* One for each of the two? */
static bool cma_halves(const struct tpf_pull *pull)
{
    return !pull->shared && pull->to.length <= CMA_HALVES_MOST;
}

/* Each of the two gets at least a quarter. */
static int cma_ahead(size_t length, int ahead)
{
    int most = (int)(length / CMA_PAGE / 4);

    return ahead > most ? most : ahead < -most ? -most : ahead;
}

/* The receiver's of two pieces. */
static size_t cma_half(const struct tpf_pull *pull)
{
    const struct cma_link *link = (const struct cma_link *)pull->link;
    size_t length = pull->to.length, half = (length / CMA_PAGE + 1) / 2;
    int ahead = link->balance[cma_size(length)].ahead;

    return (half + (size_t)cma_ahead(length, ahead)) * CMA_PAGE;
}

/* Who is late time after time gets a page less of the next ones; not each time,
 * for that page comes from the other's cache then. */
static void cma_balance(const struct tpf_pull *pull,
                        const struct tpf_both *both)
{
    struct cma_link *link = (struct cma_link *)pull->link;
    unsigned size = cma_size(pull->to.length);
    int late = link->balance[size].late, ahead = link->balance[size].ahead;

    if (!both->helped || !cma_halves(pull))
        return;
    late = both->waited ? (late > 0 ? late + 1 : 1) : late < 0 ? late - 1 : -1;
    if (late >= CMA_LATE || late <= -CMA_LATE) {
        ahead = cma_ahead(pull->to.length, late > 0 ? ahead + 1 : ahead - 1);
        link->balance[size].ahead = (int8_t)ahead;
        late = 0;
    }
    link->balance[size].late = (int8_t)late;
}

/* Of more pieces than two. */
static size_t cma_piece(const struct tpf_pull *pull)
{
    if (!pull->shared)
        return CMA_PIECE_MOST;
    return pull->to.length < CMA_SHARED_LONG ? CMA_SHARED_LEAST
                                             : CMA_SHARED_MOST;
}

static bool cma_begin(struct tpf_pull *pull, struct tpf_both_call *call)
{
    if (!cma_halves(pull))
        return tpf_both_begin(pull, &cma_ways, cma_piece(pull), 0, call);
    return pull->to.length >= CMA_HALVES_LEAST
           && tpf_both_begin(pull, &cma_ways, cma_half(pull), 2, call);
}

static size_t cma_call(struct tpf_pull *pull, unsigned char words[TPF_CALL])
{
    struct cma_call call = { .place = (uint64_t)(uintptr_t)pull->to.data };

    if ((!pull->alone && !pull->shared && pull->to.length < CMA_CALL_ALWAYS)
        || !cma_begin(pull, &call.pieces))
        return 0;
    call.when = tpb_now();
    memcpy(words, &call, sizeof(call));
    return sizeof(call);
}

static enum tpf_progress cma_move(struct tpf_pull *pull,
                                  struct tpb_error *error)
{
    enum tpf_progress result = tpf_both_move(pull, &cma_ways, error);

    if (result == TPF_PULL_DONE)
        cma_balance(pull, cma_both(pull));
    return result == TPF_PULL_REFUSED && ((struct cma_pull *)pull)->missing
               ? TPF_PULL_PASS : result;
}

static enum tpf_progress cma_pull(struct tpf_pull *base,
                                  struct tpb_error *error)
{
    struct cma_pull *pull = (struct cma_pull *)base;
    struct cma_channel *channel = (struct cma_channel *)base->link->channel;
    struct cma_source where;

    if (base->source_length != sizeof(where)
        || base->to.device.type != TP_DEVICE_CPU) {
        tpb_fail(error, TP_ERR_PROTOCOL, "not a buffer for cma");
        tpf_both_quit(base, &cma_ways);
        return TPF_PULL_REFUSED;
    }
    memcpy(&where, base->source, sizeof(where));
    pull->place = where.place;
    pull->when = where.when;
    return tpf_strides_start(&channel->pulls, base, cma_move, error);
}

static bool cma_cancel(struct tpf_pull *pull)
{
    tpf_both_quit(pull, &cma_ways);
    return tpf_strides_cancel(pull);
}

/* ---- the sender ---------------------------------------------------------- */

static bool cma_help(struct tpf_pull *help, const unsigned char *words,
                     size_t length)
{
    struct cma_channel *channel = (struct cma_channel *)help->link->channel;
    struct cma_call call;

    if (length != sizeof(call))
        return false;
    memcpy(&call, words, sizeof(call));
    if (!tpf_both_valid(help, &call.pieces, CMA_PAGE))
        return false;
    ((struct cma_pull *)help)->place = call.place;
    ((struct cma_pull *)help)->when = call.when;
    tpf_both_help(&channel->helps, help, &cma_ways, &call.pieces);
    return true;
}

static bool cma_progress(struct tpf_channel *base)
{
    struct cma_channel *channel = (struct cma_channel *)base;
    bool moved = tpf_strides_progress(base, &channel->pulls, cma_move);

    return tpf_both_progress(&channel->helps, &cma_ways) || moved;
}

const struct tpf_channel_kind tpf_cma = {
    .name = "cma",
    .number = TPF_CHANNEL_CMA,
    .reach = TPT_REACH_HOST,
    .latency_ns = 1500,
    .megabytes = 14000,
    .channel_size = sizeof(struct cma_channel),
    .link_size = sizeof(struct cma_link),
    .pull_size = sizeof(struct cma_pull),
    .probe = cma_probe,
    .open = cma_open,
    .close = cma_close,
    .address = cma_address,
    .link = cma_link,
    .describe = cma_describe,
    .pull = cma_pull,
    .call = cma_call,
    .help = cma_help,
    .leave = tpf_both_leave,
    .cancel = cma_cancel,
    .progress = cma_progress,
};
