/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The cma channel: the receiver copies a big buffer straight out of the
 * sender's memory with process_vm_readv(2), one copy and no frames.  Where both
 * have a cpu of their own he calls the sender, who copies from the other end
 * with process_vm_writev(2) unless he has better things to do: see share.h.
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

#include "fabric/channel.h"
#include "fabric/cma/share.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#endif

TPB_LOG_COMPONENT("cma");

enum {
    /* A piece is half of a short buffer: more of them cost more than they gain.
     * Of a long one it is as much as one may wait for in the end. */
    CMA_PIECE_LEAST = 64 * 1024, CMA_PIECE_MOST = 256 * 1024,
    CMA_PAGE = 4096,
    /* Who sends one message after the other has something else to do, but what
     * is longer is worth it all the same. */
    CMA_CALL_ALWAYS = 4 * 1024 * 1024,
    CMA_LOOKS = 4096,              /* between looks whether the peer lives */
};

/* What is published: where the token is and what it is. */
struct cma_address {
    uint64_t place;
    uint8_t token[16];
};
_Static_assert(sizeof(struct cma_address) == 24, "wire layout");

struct cma_source {
    uint64_t place;
};

/* The receiver's call: where the buffer is to be. */
struct cma_call {
    uint64_t place, length;
    uint32_t piece;
    uint32_t number;
};
_Static_assert(sizeof(struct cma_call) == 24, "wire layout");
_Static_assert(sizeof(struct cma_call) <= TPF_CALL, "TPF_CALL is too small");
_Static_assert(sizeof(struct cma_share) <= TPF_SHARED, "does not fit");

struct cma_channel {
    struct tpf_channel base;
    struct cma_address address;
    uint8_t token[16];             /* read by peers, by its address */
    struct tpb_list pulls;         /* cma_pull */
    struct tpb_list helps;         /* cma_pull, of the sender */
};

struct cma_link {
    struct tpf_link base;
    pid_t pid;
    struct cma_address theirs;
    uint16_t number;               /* of the last buffer of which the peer was
                                      called to copy some ... */
    bool called;                   /* ... and it is not over */
};

struct cma_pull {
    struct tpf_pull base;
    uint64_t place;
    struct cma_share *share;       /* NULL: nobody else copies */
    size_t length;                 /* of a piece ... */
    uint32_t pieces;               /* ... so many */
    uint32_t next;                 /* the one that is ours to copy */
    uint32_t pushed;               /* sender: pieces copied */
    uint16_t number;
    bool all_claimed;
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
    memcpy(channel->address.token, channel->token, sizeof(channel->token));
    cma_allow_siblings(base->env);
    return TP_OK;
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
                        "may not read pid %d: Operation not permitted (another"
                        " user or user namespace, Yama or seccomp)", (int)pid);
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
    struct cma_source where = { (uint64_t)(uintptr_t)buffer->data };

    (void)link;
    (void)hold;
    if (buffer->device.type != TP_DEVICE_CPU)
        return 0;
    memcpy(source, &where, sizeof(where));
    return sizeof(where);
}

/* How many bytes of a buffer it read, at `at`; 0: refused. */
static size_t cma_read(const struct cma_pull *pull, size_t at, size_t length,
                       struct tpb_error *error)
{
    struct cma_link *link = (struct cma_link *)pull->base.link;
    struct iovec mine = { (unsigned char *)pull->base.to.data + at, length };
    struct iovec theirs = { (void *)(uintptr_t)(pull->place + at), length };
    ssize_t got = process_vm_readv(link->pid, &mine, 1, &theirs, 1, 0);

    if (got > 0)
        return (size_t)got;
    cma_refused(got < 0 ? errno : EFAULT, link->pid, error);
    return 0;
}

static enum tpf_progress cma_move(struct tpf_pull *base,
                                  struct tpb_error *error)
{
    size_t got = cma_read((struct cma_pull *)base, base->moved,
                          tpf_stride(base), error);

    if (got == 0)
        return TPF_PULL_REFUSED;
    base->moved += got;
    return base->moved == base->to.length ? TPF_PULL_DONE : TPF_PULL_MORE;
}

/* ---- copied by both: the receiver ---------------------------------------- */

/* A piece for each, or one for the receiver and more for both. */
static size_t cma_piece(size_t length)
{
    size_t piece = (length / 2 + CMA_PAGE - 1) & ~(size_t)(CMA_PAGE - 1);

    if (piece < CMA_PIECE_LEAST)
        return CMA_PIECE_LEAST;
    return piece < CMA_PIECE_MOST ? piece : CMA_PIECE_MOST;
}

/* Of a buffer's piece `index` the length. */
static size_t cma_piece_length(const struct cma_pull *pull, uint32_t index)
{
    size_t left = pull->base.to.length - index * pull->length;

    return left < pull->length ? left : pull->length;
}

static void cma_pieces(struct cma_pull *pull, struct cma_share *share,
                       uint16_t number, size_t piece)
{
    pull->share = share;
    pull->number = number;
    pull->length = piece;
    pull->pieces = (uint32_t)((pull->base.to.length + piece - 1) / piece);
}

static struct cma_share *cma_shared(const struct tpf_link *link, bool mine)
{
    const struct tpf_backend *backend = link->conn->backend;

    return backend->shared != NULL ? backend->shared(link->conn, mine) : NULL;
}

static size_t cma_call(struct tpf_pull *base, unsigned char words[TPF_CALL])
{
    struct cma_pull *pull = (struct cma_pull *)base;
    struct cma_link *link = (struct cma_link *)base->link;
    struct cma_share *share = cma_shared(base->link, true);
    size_t piece = cma_piece(base->to.length);
    struct cma_call call = { .place = (uint64_t)(uintptr_t)base->to.data,
                             .length = base->to.length,
                             .piece = (uint32_t)piece };

    if (share == NULL || link->called || base->link->channel->env->crowded
        || base->to.length <= piece
        || (!base->alone && base->to.length < CMA_CALL_ALWAYS)
        || base->to.length / piece >= CMA_PIECES_MOST)
        return 0;
    if (++link->number == 0)
        link->number = 1;
    link->called = true;
    call.number = link->number;
    cma_pieces(pull, share, link->number, piece);
    cma_share_open(share, link->number);
    memcpy(words, &call, sizeof(call));
    return sizeof(call);
}

/* From here on the receiver is alone. */
static void cma_hang_up(struct cma_pull *pull)
{
    pull->share = NULL;
    ((struct cma_link *)pull->base.link)->called = false;
}

/* Is the peer's memory still there?  Not once it has ended, or become another
 * program. */
static bool cma_lives(const struct cma_link *link)
{
    bool same;

    if (cma_read_token(link, &same) < 0)
        return errno != ESRCH && errno != EFAULT;
    return same;
}

/*
 * Whatever becomes of the pull, the memory is its owner's again only when the
 * sender has copied the piece that he is at: some microseconds, if he has not
 * lost his cpu just there.  If he was stopped just there it is as long as that
 * lasts; then it is said.
 */
static void cma_quit(struct cma_pull *pull)
{
    const struct cma_link *link = (struct cma_link *)pull->base.link;
    uint64_t since = tpb_now();
    bool failed, told = false;

    if (pull->share == NULL)
        return;
    cma_share_close(pull->share, pull->number, pull->pieces);
    for (unsigned look = 1; !cma_share_settled(pull->share, &failed); look++) {
        tpb_pause();
        if (look % CMA_LOOKS != 0)
            continue;
        if (!cma_lives(link))
            break;
        if (!told && tpb_now() - since > UINT64_C(1000000000)) {
            tpb_warn("pid %d has stopped while it copied into this process,"
                     " which waits for it to go on or to end (SIGCONT lets it"
                     " go on)", (int)link->pid);
            told = true;
        }
    }
    cma_hang_up(pull);
}

/* There is nothing left to claim: waits for what the sender has. */
static enum tpf_progress cma_settle(struct cma_pull *pull)
{
    bool failed;

    if (!cma_share_settled(pull->share, &failed))
        return TPF_PULL_MORE;
    cma_hang_up(pull);
    if (failed)
        return TPF_PULL_MORE;      /* alone, from where it stands */
    pull->base.moved = pull->base.to.length;
    return TPF_PULL_DONE;
}

/* The next piece, or what is left of it. */
static enum tpf_progress cma_move_shared(struct tpf_pull *base,
                                         struct tpb_error *error)
{
    struct cma_pull *pull = (struct cma_pull *)base;
    size_t end, got;

    if (pull->share == NULL)
        return cma_move(base, error);
    if (pull->all_claimed)
        return cma_settle(pull);
    end = pull->next * pull->length + cma_piece_length(pull, pull->next);
    got = cma_read(pull, base->moved, end - base->moved, error);
    if (got == 0) {
        cma_quit(pull);
        return TPF_PULL_REFUSED;
    }
    base->moved += got;
    if (base->moved < end
        || cma_share_claim(pull->share, pull->number, pull->pieces, false,
                           &pull->next))
        return TPF_PULL_MORE;
    pull->all_claimed = true;
    return cma_settle(pull);
}

static bool cma_cancel(struct tpf_pull *pull)
{
    cma_quit((struct cma_pull *)pull);
    return tpf_strides_cancel(pull);
}

/* ---- copied by both: the sender ------------------------------------------ */

static void cma_help_over(struct cma_pull *help)
{
    tpb_list_unlink(&help->base.node);
    help->base.link->channel->env->helping--;
}

/* A sender that was stopped meanwhile must not write into whatever has the
 * peer's pid by now. */
static bool cma_write(const struct cma_pull *help, size_t at, size_t length)
{
    const struct cma_link *link = (struct cma_link *)help->base.link;

    if (!cma_lives(link))
        return false;
    while (length > 0) {
        struct iovec mine = { (unsigned char *)help->base.to.data + at,
                              length };
        struct iovec theirs = { (void *)(uintptr_t)(help->place + at), length };
        ssize_t put = process_vm_writev(link->pid, &mine, 1, &theirs, 1, 0);

        if (put <= 0)
            return false;
        at += (size_t)put;
        length -= (size_t)put;
    }
    return true;
}

/* The next piece from the back, if there is one. */
static void cma_help_move(struct cma_pull *help)
{
    uint32_t index;

    if (!cma_share_claim(help->share, help->number, help->pieces, true,
                         &index)) {
        cma_help_over(help);
    } else if (cma_write(help, index * help->length,
                         cma_piece_length(help, index))) {
        cma_share_push(help->share, help->number, ++help->pushed);
    } else {
        cma_share_push(help->share, help->number, CMA_SHARE_FAILED);
        cma_help_over(help);
    }
}

static bool cma_help(struct tpf_pull *base, const unsigned char *words,
                     size_t length)
{
    struct cma_pull *help = (struct cma_pull *)base;
    struct cma_channel *channel = (struct cma_channel *)base->link->channel;
    struct cma_share *share = cma_shared(base->link, false);
    struct cma_call call;

    if (length != sizeof(call) || share == NULL)
        return false;
    memcpy(&call, words, sizeof(call));
    if (call.length != base->to.length || call.piece < CMA_PAGE
        || call.piece > CMA_PIECE_MOST || call.number > UINT16_MAX
        || call.length / call.piece >= CMA_PIECES_MOST
        || base->to.device.type != TP_DEVICE_CPU)
        return false;
    help->place = call.place;
    cma_pieces(help, share, (uint16_t)call.number, call.piece);
    tpb_list_append(&channel->helps, &base->node);
    base->link->channel->env->helping++;
    cma_help_move(help);
    return true;
}

static void cma_leave(struct tpf_pull *help)
{
    if (!tpb_list_empty(&help->node))
        cma_help_over((struct cma_pull *)help);
}

/* ---- both ---------------------------------------------------------------- */

static enum tpf_progress cma_pull(struct tpf_pull *base,
                                  struct tpb_error *error)
{
    struct cma_pull *pull = (struct cma_pull *)base;
    struct cma_channel *channel = (struct cma_channel *)base->link->channel;
    struct cma_source where;

    if (base->source_length != sizeof(where)
        || base->to.device.type != TP_DEVICE_CPU) {
        tpb_fail(error, TP_ERR_PROTOCOL, "not a buffer for cma");
        return TPF_PULL_REFUSED;
    }
    memcpy(&where, base->source, sizeof(where));
    pull->place = where.place;
    return tpf_strides_start(&channel->pulls, base, cma_move_shared, error);
}

static bool cma_progress(struct tpf_channel *base)
{
    struct cma_channel *channel = (struct cma_channel *)base;
    struct tpb_list *node = channel->helps.next;
    bool moved = tpf_strides_progress(base, &channel->pulls, cma_move_shared);

    if (node == &channel->helps)
        return moved;
    /* They take turns. */
    tpb_list_unlink(node);
    tpb_list_append(&channel->helps, node);
    cma_help_move((struct cma_pull *)TPB_CONTAINER(node, struct tpf_pull,
                                                   node));
    return true;
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
    .address = cma_address,
    .link = cma_link,
    .describe = cma_describe,
    .pull = cma_pull,
    .call = cma_call,
    .help = cma_help,
    .leave = cma_leave,
    .cancel = cma_cancel,
    .progress = cma_progress,
};
