/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * From which size on buffers go by which link, as the plan says.  Of devices'
 * memory each pair of devices has sizes of its own: that of the buffer, and the
 * one it is meant for.
 */
#include "config.h"

#include "runtime/base/alloc.h"
#include "runtime/channels.h"
#include "runtime/core.h"
#include "runtime/stream.h"
#include "topology/devices.h"

/* The pair's link of that name; NULL if there is none. */
static struct tpr_link *sizes_link(struct tpr_links *links, const char *name)
{
    for (size_t i = 0; i < TPF_CHANNELS; i++)
        if (links->of[i].link != NULL
            && strcmp(links->of[i].link->kind->name, name) == 0)
            return &links->of[i];
    return NULL;
}

/* ---- pairs of devices ---------------------------------------------------- */

static struct tpr_sizes *sizes_pair(const struct tpr_links *links,
                                    const struct tpr_link *link,
                                    uint32_t mine, uint32_t theirs)
{
    return &link->pairs[mine * links->their_gpus + theirs];
}

/* With rivals, what it costs between these two. */
static void sizes_cost(const struct tpr_links *links,
                       const struct tpt_card *mine,
                       const struct tpt_card *theirs,
                       const struct tpt_candidate *candidate, uint32_t i,
                       uint32_t j, struct tpr_sizes *sizes)
{
    sizes->latency_ns = 0;
    sizes->megabytes = 1;
    if (links->rivals)
        tpt_device_cost(mine, theirs, candidate, i, j, &sizes->latency_ns,
                        &sizes->megabytes);
}

/* Fills link->pairs if they are not all the same.  Lack of memory leaves the
 * plan's own size, which is that of the first two devices. */
static void sizes_ask(struct tpr_links *links, struct tpr_link *link,
                      const struct tpt_card *mine,
                      const struct tpt_card *theirs,
                      const struct tpt_plan *plan,
                      const struct tpt_candidate *candidate)
{
    size_t count = (size_t)links->my_gpus * links->their_gpus;
    bool same = true;

    link->pairs = tpb_array(count, sizeof(link->pairs[0]));
    if (link->pairs == NULL)
        return;
    for (uint32_t i = 0; i < links->my_gpus; i++)
        for (uint32_t j = 0; j < links->their_gpus; j++) {
            struct tpr_sizes *at = sizes_pair(links, link, i, j);

            at->from = tpt_device_from(mine, theirs, plan, candidate, i, j);
            sizes_cost(links, mine, theirs, candidate, i, j, at);
            same &= at->from == link->sizes.from
                    && at->latency_ns == link->sizes.latency_ns
                    && at->megabytes == link->sizes.megabytes;
        }
    if (same) {
        tpb_free(link->pairs);
        link->pairs = NULL;
    }
}

/* A link for memory of devices that this pair of ranks has. */
static struct tpr_link *sizes_device(struct tpr_links *links,
                                     const struct tpt_candidate *candidate)
{
    return candidate->devices && candidate->possible
           ? sizes_link(links, candidate->name) : NULL;
}

/* The cards are looked at only if there is a choice of devices, or between
 * links. */
static void sizes_pairs(struct tpr_peer *peer, const struct tpt_plan *plan)
{
    const struct tpt_card *mine = &peer->context->card;
    struct tpr_links *links = peer->links;
    struct tpt_card *theirs;

    if (mine->gpu_count == 0 && !links->rivals)
        return;
    theirs = tpb_zalloc(sizeof(*theirs));
    if (theirs == NULL)
        return;
    tpt_entry_card(peer->entry, theirs);
    links->my_gpus = mine->gpu_count;
    links->their_gpus = theirs->gpu_count;
    for (uint32_t i = 0; i < plan->count; i++) {
        struct tpr_link *link = sizes_device(links, &plan->candidates[i]);

        if (link == NULL)
            continue;
        sizes_cost(links, mine, theirs, &plan->candidates[i], 0, 0,
                   &link->sizes);
        if (links->my_gpus * links->their_gpus > 1)
            sizes_ask(links, link, mine, theirs, plan, &plan->candidates[i]);
    }
    tpb_free(theirs);
}

/* What the plan says, which is of the first two devices.  Returns how many
 * links are for memory of devices. */
static uint32_t sizes_begin(struct tpr_links *links,
                            const struct tpt_plan *plan)
{
    uint32_t devices = 0;

    for (uint32_t i = 0; i < plan->count; i++) {
        struct tpr_link *link = sizes_link(links, plan->candidates[i].name);

        if (link == NULL)
            continue;
        tpb_free(link->pairs);
        link->pairs = NULL;
        link->sizes.from = plan->candidates[i].from_bytes;
        link->sizes.latency_ns = 0;
        link->sizes.megabytes = 1;
        devices += sizes_device(links, &plan->candidates[i]) != NULL;
    }
    links->rivals = devices > 1;
    return devices;
}

/* The least of a link; SIZE_MAX: nothing goes by it. */
static size_t sizes_least(const struct tpr_links *links,
                          const struct tpr_link *link)
{
    size_t count = (size_t)links->my_gpus * links->their_gpus;
    size_t least = link->sizes.from;

    for (size_t i = 0; link->pairs != NULL && i < count; i++)
        if (link->pairs[i].from < least)
            least = link->pairs[i].from;
    return least;
}

/* Who does not say for which device it is meant gets what the best pair has. */
static struct tpr_sizes sizes_get(const struct tpr_links *links,
                                  const struct tpr_link *link,
                                  const struct tpf_buffer *buffer)
{
    bool mine = buffer->device.type == TP_DEVICE_CUDA;
    bool theirs = buffer->target.type == TP_DEVICE_CUDA;
    uint32_t i = mine ? (uint32_t)buffer->device.index : 0;
    uint32_t j = (uint32_t)buffer->target.index;
    struct tpr_sizes least = { SIZE_MAX, 0, 1 };

    if (TPB_LIKELY(link->pairs == NULL) || i >= links->my_gpus
        || (theirs && j >= links->their_gpus))
        return link->sizes;
    if (theirs)
        return *sizes_pair(links, link, i, j);
    for (j = 0; j < links->their_gpus; j++) {
        const struct tpr_sizes *pair = sizes_pair(links, link, i, j);

        if (pair->from < least.from)
            least = *pair;
    }
    return least;
}

size_t tpr_link_from(const struct tpr_links *links,
                     const struct tpr_link *link,
                     const struct tpf_buffer *buffer)
{
    return sizes_get(links, link, buffer).from;
}

const struct tpr_link *tpr_links_first(const struct tpr_links *links,
                                       const struct tpf_buffer *buffer)
{
    const struct tpr_link *best = NULL;
    struct tpr_sizes least = { 0 };

    for (uint32_t i = 0; links->rivals && i < links->ordered; i++) {
        const struct tpr_link *link = links->order[i];
        struct tpr_sizes sizes;

        if (!link->link->kind->devices)
            continue;
        sizes = sizes_get(links, link, buffer);
        if (sizes.from <= buffer->length
            && (best == NULL
                || tpt_device_sooner(sizes.latency_ns, sizes.megabytes,
                                     least.latency_ns, least.megabytes,
                                     buffer->length))) {
            best = link;
            least = sizes;
        }
    }
    return best;
}

/* ---- of a pair of ranks -------------------------------------------------- */

/* Buffers from some size on may go by this link, if none before it takes
 * them. */
static void sizes_append(struct tpr_links *links, struct tpr_link *link)
{
    size_t *least = link->link->kind->devices ? &links->device_least
                                              : &links->least;
    size_t from = sizes_least(links, link);

    links->order[links->ordered++] = link;
    if (from < *least)
        *least = from;
}

/* The first that the model finds too slow for any buffer of the CPU's. */
static void sizes_stream(struct tpr_peer *peer, struct tpr_link *link)
{
    if (peer->links->stream == NULL && !link->link->kind->devices
        && peer->conn->backend->reach == TPT_REACH_HOST
        && (peer->conn->backend->flags & TPF_SELF) == 0)
        peer->links->stream = link;
}

/* May both ends copy at once by this link, if there is one, with a cpu for
 * each? */
static bool sizes_both(const struct tpr_peer *peer,
                       const struct tpr_link *link)
{
    return link != NULL && link->link != NULL && link->mine
           && link->link->kind->call != NULL
           && peer->conn->backend->shared != NULL
           && !peer->context->env.crowded;
}

/* Where both ends can copy at once a pull is tried first: it is half of the
 * work of frames, and a program may send too few for that to be found out. */
static void sizes_wishes(struct tpr_peer *peer)
{
    struct tpr_links *links = peer->links;

    if (!sizes_both(peer, links->stream))
        return;
    for (unsigned i = tpr_pace_class(TPR_SHARE_LEAST); i < TPR_PACES; i++)
        if (tpr_taste_prefer(&links->tastes[i], TPR_PACE_PULLED))
            peer->wishes |= (uint16_t)(1u << i);
}

/* Can both ends copy the messages of a stream? */
static void sizes_paces(struct tpr_peer *peer)
{
    struct tpr_links *links = peer->links;
    bool shares = sizes_both(peer, links->stream);
    bool lends = sizes_both(peer, &links->of[TPF_CHANNEL_MAP]);

    for (unsigned i = 0; i < TPR_PACES; i++) {
        bool is_long = i >= tpr_pace_class(TPR_SHARE_LEAST);

        tpr_pace_share(&links->paces[i], shares && is_long);
        tpr_pace_share(&links->lends[i], lends && is_long);
        tpr_pace_prefer(&links->lends[i], TPR_PACE_PULLED);
    }
}

void tpr_links_sizes(struct tpr_peer *peer)
{
    const struct tpt_plan *plan = tpr_peer_plan(peer);
    struct tpr_links *links = peer->links;

    links->least = SIZE_MAX;
    links->ordered = 0;
    links->insisted = false;
    links->stream = NULL;
    links->device_insisted = tpt_device_insisted(plan);
    links->device_least = links->device_insisted ? TPT_DEVICE_LEAST
                                                 : SIZE_MAX;
    if (sizes_begin(links, plan) > 0)
        sizes_pairs(peer, plan);
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct tpt_candidate *candidate = &plan->candidates[i];
        struct tpr_link *link = sizes_link(links, candidate->name);

        if (link == NULL || !link->theirs || !candidate->possible)
            continue;
        if (sizes_least(links, link) == SIZE_MAX) {
            sizes_stream(peer, link);
            continue;
        }
        links->insisted |= candidate->insisted && !candidate->devices;
        sizes_append(links, link);
    }
    sizes_wishes(peer);
    sizes_paces(peer);
    tpr_tx_brief(peer);
}

static void sizes_raise(size_t *from)
{
    if (*from < TPT_CHANNEL_LEAST)
        *from = TPT_CHANNEL_LEAST;
}

void tpr_links_spare_small(struct tpr_links *links)
{
    size_t count = (size_t)links->my_gpus * links->their_gpus;

    if (links->device_insisted)
        return;
    for (uint32_t i = 0; i < links->ordered; i++) {
        struct tpr_link *link = links->order[i];

        sizes_raise(&link->sizes.from);
        for (size_t at = 0; link->pairs != NULL && at < count; at++)
            sizes_raise(&link->pairs[at].from);
    }
    sizes_raise(&links->device_least);
}
