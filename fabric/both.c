/* SPDX-License-Identifier: BSD-3-Clause */
/* Buffers that both ends copy: the receiver's part, and the sender's. */
#include "config.h"

#include "fabric/both.h"
#include "runtime/base/log.h"
#include "runtime/base/seen.h"

TPB_LOG_COMPONENT("both");

enum {
    BOTH_LOOKS = 4096,             /* between looks whether the peer lives */
    /* A turn of the sender's, who has frames to look after. */
    BOTH_TURN = TPF_STRIDE / 4
};

/* Where a buffer's piece `index` begins, or the buffer ends. */
static size_t both_place(const struct tpf_pull *pull,
                         const struct tpf_both *both, uint32_t index)
{
    return index < both->pieces ? index * both->length : pull->to.length;
}

/* So many pieces may be claimed at once: in a stream as many as have so many
 * bytes, so that what a call of the kernel costs is little against the copy. */
static uint32_t both_most(const struct tpf_pull *pull,
                          const struct tpf_both *both, size_t bytes)
{
    return pull->alone || bytes < both->length
           ? 1 : (uint32_t)(bytes / both->length);
}

static void both_pieces(struct tpf_both *both,
                        const struct tpf_both_call *call)
{
    both->number = call->number;
    both->length = call->piece;
    both->pieces = call->pieces;
}

static struct tpf_share *both_shared(const struct tpf_link *link, bool mine)
{
    const struct tpf_backend *backend = link->conn->backend;

    return backend->shared != NULL ? backend->shared(link->conn, mine) : NULL;
}

/* ---- the receiver -------------------------------------------------------- */

bool tpf_both_begin(struct tpf_pull *pull, const struct tpf_both_ways *ways,
                    size_t piece, uint32_t pieces, struct tpf_both_call *call)
{
    struct tpf_both *both = ways->of(pull);
    struct tpf_conn *conn = pull->link->conn;
    struct tpf_share *share = both_shared(pull->link, true);
    size_t count = pieces > 0 ? pieces
                   : (pull->to.length + piece - 1) / piece;

    if (share == NULL || conn->both_called || pull->to.length <= piece
        || pull->link->channel->env->crowded
        || pull->to.length / piece >= TPF_PIECES_MOST)
        return false;
    if (++conn->both_number == 0)
        conn->both_number = 1;
    conn->both_called = true;
    *call = (struct tpf_both_call){ .length = pull->to.length,
                                    .piece = (uint32_t)piece,
                                    .pieces = (uint32_t)count,
                                    .number = conn->both_number };
    both->share = share;
    both_pieces(both, call);
    both->end = tpf_share_run(both->pieces,
                              both_most(pull, both, TPF_STRIDE));
    tpf_share_open(share, both->number, both->end);
    return true;
}

/* From here on the receiver is alone. */
static void both_hang_up(struct tpf_pull *pull, struct tpf_both *both)
{
    both->share = NULL;
    pull->link->conn->both_called = false;
}

/*
 * The memory is its owner's again only when the sender has copied the piece
 * that he is at: some microseconds, if he has not lost his cpu just there.  If
 * he was stopped just there it is as long as that lasts; then it is said.
 */
void tpf_both_quit(struct tpf_pull *pull, const struct tpf_both_ways *ways)
{
    struct tpf_both *both = ways->of(pull);
    uint64_t since = tpb_now();
    bool failed, told = false;

    if (both->share == NULL)
        return;
    tpf_share_close(both->share, both->number, both->pieces);
    for (unsigned look = 1; !tpf_share_settled(both->share, &failed);
         look++) {
        tpb_pause();
        if (look % BOTH_LOOKS != 0)
            continue;
        if (!ways->lives(pull->link))
            break;
        if (!told && tpb_now() - since > UINT64_C(1000000000)) {
            tpb_warn("a peer has stopped while it copied into this process,"
                     " which waits for it to go on or to end (SIGCONT lets it"
                     " go on)");
            told = true;
        }
    }
    both_hang_up(pull, both);
}

/* There is nothing left to claim: waits for what the sender has. */
static enum tpf_progress both_settle(struct tpf_pull *pull,
                                     struct tpf_both *both)
{
    bool failed;

    if (!tpf_share_settled(both->share, &failed)) {
        both->waited = true;
        return TPF_PULL_MORE;
    }
    both->helped = tpf_share_back_count(both->share) > 0 && !failed;
    both_hang_up(pull, both);
    if (failed)
        return TPF_PULL_MORE;      /* alone, from where it stands */
    tpb_seen((unsigned char *)pull->to.data + pull->moved,
             pull->to.length - pull->moved);
    pull->moved = pull->to.length;
    return TPF_PULL_DONE;
}

static enum tpf_progress both_alone(struct tpf_pull *pull,
                                    const struct tpf_both_ways *ways,
                                    struct tpb_error *error)
{
    size_t got = ways->take(pull, pull->moved, tpf_stride(pull), error);

    if (got == 0)
        return TPF_PULL_REFUSED;
    pull->moved += got;
    return pull->moved == pull->to.length ? TPF_PULL_DONE : TPF_PULL_MORE;
}

/* His next pieces are those behind the last. */
static void both_claim(const struct tpf_pull *pull, struct tpf_both *both)
{
    uint32_t first, count = tpf_share_claim(both->share, both->number,
                                            both->pieces, false,
                                            both_most(pull, both, TPF_STRIDE),
                                            &first);

    both->all_claimed = count == 0;
    both->end += count;
}

enum tpf_progress tpf_both_move(struct tpf_pull *pull,
                                const struct tpf_both_ways *ways,
                                struct tpb_error *error)
{
    struct tpf_both *both = ways->of(pull);
    size_t stride = pull->moved + TPF_STRIDE;

    if (both->share == NULL)
        return both_alone(pull, ways, error);
    while (!both->all_claimed) {
        size_t end = both_place(pull, both, both->end);
        size_t got = ways->take(pull, pull->moved, end - pull->moved, error);

        if (got == 0) {
            tpf_both_quit(pull, ways);
            return TPF_PULL_REFUSED;
        }
        pull->moved += got;
        if (pull->moved == end)
            both_claim(pull, both);
        if (pull->moved + both->length > stride && !both->all_claimed)
            return TPF_PULL_MORE;
    }
    return both_settle(pull, both);
}

/* ---- the sender ---------------------------------------------------------- */

bool tpf_both_valid(const struct tpf_pull *help,
                    const struct tpf_both_call *call, size_t least)
{
    return both_shared(help->link, false) != NULL
           && call->length == help->to.length && call->piece >= least
           && call->piece <= TPF_BOTH_PIECE && call->pieces > 0
           && call->pieces < TPF_PIECES_MOST
           && (uint64_t)(call->pieces - 1) * call->piece < call->length
           && help->to.device.type == TP_DEVICE_CPU;
}

void tpf_both_leave(struct tpf_pull *help)
{
    if (tpb_list_empty(&help->node))
        return;
    tpb_list_unlink(&help->node);
    help->link->channel->env->helping--;
}

/* The next pieces from the back, if there are some. */
static void both_help_move(struct tpf_pull *help,
                           const struct tpf_both_ways *ways)
{
    struct tpf_both *both = ways->of(help);
    size_t moved = 0;
    uint32_t index = 0;

    do {
        uint32_t count = tpf_share_claim(both->share, both->number,
                                         both->pieces, true,
                                         both_most(help, both, BOTH_TURN),
                                         &index);
        size_t at = both_place(help, both, index);

        if (count == 0) {
            tpf_both_leave(help);
            return;
        }
        if (!ways->give(help, at,
                        both_place(help, both, index + count) - at)) {
            tpf_share_push(both->share, both->number, TPF_SHARE_FAILED);
            tpf_both_leave(help);
            return;
        }
        both->pushed += count;
        tpf_share_push(both->share, both->number, both->pushed);
        moved += count * both->length;
    } while (moved + both->length <= BOTH_TURN);
}

void tpf_both_help(struct tpb_list *helps, struct tpf_pull *help,
                   const struct tpf_both_ways *ways,
                   const struct tpf_both_call *call)
{
    struct tpf_both *both = ways->of(help);

    both->share = both_shared(help->link, false);
    both_pieces(both, call);
    tpb_list_append(helps, &help->node);
    help->link->channel->env->helping++;
    if (help->alone)
        both_help_move(help, ways);
}

bool tpf_both_progress(struct tpb_list *helps,
                       const struct tpf_both_ways *ways)
{
    struct tpb_list *node = helps->next;
    struct tpf_pull *help;

    if (node == helps)
        return false;
    help = TPB_CONTAINER(node, struct tpf_pull, node);
    /* What the peer says comes first: it may be that a buffer is the program's
     * again, and nobody else can write the next message. */
    if (!help->alone && !tpb_list_empty(&help->link->channel->env->ready))
        return false;
    /* They take turns. */
    tpb_list_unlink(node);
    tpb_list_append(helps, node);
    both_help_move(help, ways);
    return true;
}
