/* SPDX-License-Identifier: BSD-3-Clause */
/* What each way between two devices costs, and which is taken. */
#include "config.h"

#include <stdio.h>

#include "topology/devices.h"
#include "topology/private.h"

enum {
    DEVICES_PCI = 24000,           /* MB/s of a PCI link that is not known:
                                      generation 4, 16 lanes */
    DEVICES_COPY_PERCENT = 85,     /* of it that copies to the host reach */
    DEVICES_STAGED_PERCENT = 50,   /* of the transport: either side copies into
                                      or out of pinned memory, too */
    DEVICES_MEMORY = 1000000,      /* a copy inside one device, MB/s */
    DEVICES_LINK = 25000,          /* one NVLink of the third generation on */
    DEVICES_LINKS = 6,             /* of which so many, if that is unknown */
    DEVICES_TURN = 135000          /* until a device works for the next process:
                                      measured on an H200 */
};

/*
 * By enum tpt_path: what the way adds to a copy between two devices, the share
 * of the PCI link that is left, and the share of its speed that a NIC at that
 * distance gets.  Orders of magnitude for server machines, assumed and not
 * measured; but which comes before which is what everybody measures.  A NIC
 * beyond the host bridge loses so much that NCCL does not use it directly.
 */
static const struct {
    uint16_t latency, percent, nic_percent;
} devices_paths[] = {
    [TPT_PATH_SAME] = { 0, 100, 100 },
    [TPT_PATH_NVL] = { 0, 100, 100 },
    [TPT_PATH_PIX] = { 300, 100, 100 },
    [TPT_PATH_PXB] = { 500, 95, 95 },
    [TPT_PATH_PHB] = { 800, 80, 50 },
    [TPT_PATH_NODE] = { 1000, 65, 40 },
    [TPT_PATH_SYS] = { 1500, 45, 30 },
    [TPT_PATH_NET] = { 0, 100, 100 },
    [TPT_PATH_UNKNOWN] = { 800, 80, 100 },
};

struct devices_pair {
    const struct tpt_card *mine, *yours;
    uint32_t index_mine, index_yours;
    enum tpt_path path;
};

struct devices_terms {
    uint64_t latency_ns, megabytes, model_latency_ns, model_megabytes;
    bool measured;
    bool strict;                   /* it has to be as fast as cuda_staged */
    const struct tpt_nic *nic;     /* what limits it, or NULL */
};

static const struct tpt_card_gpu *devices_gpu(const struct tpt_card *card,
                                              uint32_t index)
{
    return index < card->gpu_count ? &card->gpus[index] : NULL;
}

static uint64_t devices_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Of the slower of both PCI links. */
static uint64_t devices_pci(const struct devices_pair *pair)
{
    const struct tpt_card_gpu *a = devices_gpu(pair->mine, pair->index_mine);
    const struct tpt_card_gpu *b = devices_gpu(pair->yours, pair->index_yours);
    uint64_t x = a != NULL && a->megabytes > 0 ? a->megabytes : DEVICES_PCI;
    uint64_t y = b != NULL && b->megabytes > 0 ? b->megabytes : DEVICES_PCI;

    return devices_min(x, y);
}

static unsigned devices_link_count(const struct tpt_card_gpu *from,
                                   const struct tpt_card_gpu *to)
{
    for (unsigned i = 0; i < from->link_count; i++)
        if (from->links[i].pci == to->place.pci)
            return from->links[i].count;
    return from->switched < to->switched ? from->switched : to->switched;
}

static unsigned devices_links(const struct devices_pair *pair)
{
    const struct tpt_card_gpu *a = devices_gpu(pair->mine, pair->index_mine);
    const struct tpt_card_gpu *b = devices_gpu(pair->yours, pair->index_yours);
    unsigned x, y;

    if (a == NULL || b == NULL)
        return 0;
    x = devices_link_count(a, b);
    y = devices_link_count(b, a);
    return x > y ? x : y;
}

static uint64_t devices_nvlink(const struct devices_pair *pair)
{
    const struct tpt_card_gpu *a = devices_gpu(pair->mine, pair->index_mine);
    const struct tpt_card_gpu *b = devices_gpu(pair->yours, pair->index_yours);
    uint64_t x = a->link_megabytes, y = b->link_megabytes;
    unsigned links = devices_links(pair);

    if (x == 0 || y == 0)
        x = y = x > y ? x : y;
    if (x == 0)
        x = y = DEVICES_LINK;
    return devices_min(x, y) * (links > 0 ? links : DEVICES_LINKS);
}

/* ---- the model ---------------------------------------------------------- */

/* Copies inside a device are done by what also runs its kernels, for one
 * process at a time.  Who asks for a message is never the one before. */
bool tpt_device_turns(const struct tpt_card *mine,
                      const struct tpt_card *yours, uint32_t index_mine,
                      uint32_t index_yours)
{
    const struct tpt_card_gpu *a = devices_gpu(mine, index_mine);
    const struct tpt_card_gpu *b = devices_gpu(yours, index_yours);
    bool own = mine->rank == yours->rank
               && memcmp(mine->instance, yours->instance,
                         sizeof(mine->instance)) == 0;

    return !own && (a == NULL || b == NULL || !a->mps || !b->mps);
}

static void devices_ipc(const struct devices_pair *pair,
                        struct devices_terms *terms)
{
    terms->latency_ns += devices_paths[pair->path].latency;
    if (pair->path == TPT_PATH_SAME) {
        terms->megabytes = DEVICES_MEMORY;
        if (tpt_device_turns(pair->mine, pair->yours, pair->index_mine,
                             pair->index_yours))
            terms->latency_ns += DEVICES_TURN;
    } else if (pair->path == TPT_PATH_NVL) {
        terms->megabytes = devices_nvlink(pair);
    } else {
        terms->megabytes = devices_pci(pair)
                           * devices_paths[pair->path].percent / 100;
    }
}

/* The NIC of that side's GPU lowers it to what it gives at that distance. */
static void devices_nic(const struct tpt_card *card, uint32_t index,
                        struct devices_terms *terms)
{
    const struct tpt_card_gpu *gpu = devices_gpu(card, index);
    const struct tpt_nic *nic = gpu != NULL && gpu->nic > 0
                                ? &card->nics[gpu->nic - 1] : NULL;
    uint64_t speed;

    if (nic == NULL || nic->megabits == 0)
        return;
    speed = (uint64_t)nic->megabits / 8
            * devices_paths[gpu->nic_path].nic_percent / 100;
    if (speed == 0 || speed >= terms->megabytes)
        return;
    terms->megabytes = speed;
    terms->nic = nic;
}

static void devices_gdr(const struct devices_pair *pair,
                        struct devices_terms *terms)
{
    terms->megabytes = devices_min(terms->megabytes, devices_pci(pair));
    devices_nic(pair->mine, pair->index_mine, terms);
    devices_nic(pair->yours, pair->index_yours, terms);
}

/* Without the transport, which is known only when the plan is settled. */
static void devices_staged(const struct devices_pair *pair,
                           struct devices_terms *terms)
{
    terms->megabytes = devices_min(terms->megabytes, devices_pci(pair)
                                   * DEVICES_COPY_PERCENT / 100);
}

static struct devices_terms devices_model(const struct devices_pair *pair,
                                          const struct tpt_backend_card *a,
                                          const struct tpt_backend_card *b)
{
    struct devices_terms terms = {
        .latency_ns = a->latency_ns > b->latency_ns ? a->latency_ns
                      : b->latency_ns,
        .megabytes = devices_min(a->megabytes, b->megabytes)
    };

    if (strcmp(a->name, TPT_STAGED) == 0 || strcmp(a->name, TPT_PINNED) == 0)
        devices_staged(pair, &terms);
    else if (a->reach == TPT_REACH_NETWORK)
        devices_gdr(pair, &terms);
    else
        devices_ipc(pair, &terms);
    if (terms.megabytes == 0)
        terms.megabytes = 1;
    return terms;
}

static struct devices_terms devices_terms(const struct devices_pair *pair,
                                          const struct tpt_backend_card *a,
                                          const struct tpt_backend_card *b)
{
    struct devices_terms terms = devices_model(pair, a, b);
    unsigned path = pair->path < TPT_PATHS ? pair->path : TPT_PATH_SYS;
    const struct tpt_cost *x = &a->measured[path], *y = &b->measured[path];

    terms.model_latency_ns = terms.latency_ns;
    terms.model_megabytes = terms.megabytes;
    if (x->megabytes == 0)
        x = y;
    if (y->megabytes == 0)
        y = x;
    if (x->megabytes == 0 || pair->path == TPT_PATH_UNKNOWN)
        return terms;
    terms.measured = true;
    terms.latency_ns = x->latency_ns > y->latency_ns ? x->latency_ns
                       : y->latency_ns;
    terms.megabytes = devices_min(x->megabytes, y->megabytes);
    return terms;
}

/* ---- the plan of the pair of ranks -------------------------------------- */

static bool devices_weighs(const struct tpt_candidate *candidate)
{
    return candidate->devices && candidate->possible;
}

void tpt_device_weigh(const struct tpt_card *mine,
                      const struct tpt_card *yours, struct tpt_plan *plan)
{
    struct devices_pair pair = { mine, yours, 0, 0,
                                 tpt_path_gpus(mine, 0, yours, 0) };

    for (uint32_t i = 0; i < plan->count; i++) {
        struct tpt_candidate *candidate = &plan->candidates[i];
        struct devices_terms terms;

        if (!devices_weighs(candidate))
            continue;
        terms = devices_terms(&pair, tpt_card_backend(mine, candidate->name),
                              tpt_card_backend(yours, candidate->name));
        candidate->latency_ns = terms.latency_ns;
        candidate->megabytes = candidate->own_megabytes = terms.megabytes;
        candidate->model_latency_ns = terms.model_latency_ns;
        candidate->model_megabytes = terms.model_megabytes;
        candidate->measured = terms.measured;
        candidate->path = (uint8_t)pair.path;
        candidate->nic[0] = '\0';
        if (terms.nic != NULL) {
            memcpy(candidate->nic, terms.nic->name, sizeof(candidate->nic));
            candidate->nic_megabits = terms.nic->megabits;
        }
    }
}

static const struct tpt_candidate *devices_find(const struct tpt_plan *plan,
                                                const char *name)
{
    for (uint32_t i = 0; i < plan->count; i++)
        if (strcmp(plan->candidates[i].name, name) == 0)
            return &plan->candidates[i];
    return NULL;
}

/*
 * Where the line of a direct way goes below that of cuda_staged, which may be
 * below it for small buffers only if its latency is lower.
 */
static uint64_t devices_crossing(uint64_t staged_latency, uint64_t staged,
                                 const struct devices_terms *way)
{
    uint64_t latency = way->latency_ns, direct = way->megabytes, bytes;

    /* A copy between GPUs leaves the cpus alone: where only a model says that
     * it is slower, it has to be by much. */
    if (latency <= staged_latency)
        return direct * (way->strict ? 1 : 2) >= staged ? TPT_DEVICE_LEAST
               : UINT64_MAX;
    if (direct <= staged)
        return UINT64_MAX;
    latency -= staged_latency;
    bytes = latency * staged / (direct - staged);
    bytes = bytes > UINT64_MAX / direct ? UINT64_MAX : bytes * direct / 1000;
    return bytes > TPT_DEVICE_LEAST ? bytes : TPT_DEVICE_LEAST;
}

/* Refused for good, and not for want of a transport. */
static bool devices_refused(const struct tpt_candidate *candidate)
{
    return !candidate->possible
           && candidate->reason != TPT_REASON_NEEDS_TRANSPORT;
}

/* How fast cuda_staged is over that transport. */
static uint64_t devices_through(const struct devices_terms *staged,
                                const struct tpt_candidate *transport)
{
    uint64_t most = transport->megabytes * DEVICES_STAGED_PERCENT / 100;

    if (most == 0)
        most = 1;
    return staged->measured ? staged->megabytes
           : devices_min(staged->megabytes, most);
}

/* From which size on a way is worth more than cuda_staged, whose own terms are
 * given, and how fast that one is over the transport. */
static uint64_t devices_from(const struct tpt_plan *plan,
                             const struct tpt_candidate *transport,
                             const struct devices_terms *staged,
                             const struct devices_terms *way)
{
    const struct tpt_candidate *other = devices_find(plan, TPT_STAGED);

    if (other == NULL || other->spare || devices_refused(other))
        return TPT_DEVICE_LEAST;
    return devices_crossing(staged->latency_ns,
                            devices_through(staged, transport), way);
}

void tpt_device_settle(const struct tpt_plan *plan,
                       const struct tpt_candidate *transport,
                       struct tpt_candidate *channel)
{
    const struct tpt_candidate *other = devices_find(plan, TPT_STAGED);
    struct devices_terms way = { .latency_ns = channel->latency_ns,
                                 .megabytes = channel->own_megabytes,
                                 .measured = channel->measured,
                                 .strict = channel->measured
                                           || channel->reach
                                              == TPT_REACH_NETWORK };
    const char *source = channel->measured ? "measured" : "model";
    struct devices_terms staged = { 0 };

    if (other == channel) {
        channel->megabytes = devices_through(&way, transport);
        channel->from_bytes = 0;
    } else {
        if (other != NULL) {
            staged.latency_ns = other->latency_ns;
            staged.megabytes = other->own_megabytes;
            staged.measured = other->measured;
        }
        channel->from_bytes = devices_from(plan, transport, &staged, &way);
    }
    channel->reason = channel->from_bytes != UINT64_MAX ? TPT_REASON_CHOSEN
                      : TPT_REASON_SLOWER;
    channel->cost_ns = transport->latency_ns
                       + tpt_time(channel->latency_ns, channel->megabytes,
                                  TPT_MESSAGE);
    if (channel->path == TPT_PATH_SAME)
        snprintf(channel->evidence, sizeof(channel->evidence),
                 "%s for two ranks at one device", source);
    else
        snprintf(channel->evidence, sizeof(channel->evidence),
                 "%s for two devices with %s between them", source,
                 tpt_path_words((enum tpt_path)channel->path));
    channel->remedy[0] = '\0';
}

bool tpt_device_insisted(const struct tpt_plan *plan)
{
    const struct tpt_candidate *staged = devices_find(plan, TPT_STAGED);

    return staged != NULL && !staged->possible
           && (staged->reason == TPT_REASON_CONTRACT
               || staged->reason == TPT_REASON_FORBIDDEN);
}

/* ---- the plan of a pair of devices -------------------------------------- */

static bool devices_denies(const struct tpt_card_gpu *from,
                           const struct tpt_card_gpu *to)
{
    for (unsigned i = 0; i < from->denied_count; i++)
        if (from->denied[i] == to->place.pci)
            return true;
    return false;
}

/* The driver's library says that these two may not access each other. */
static bool devices_no_access(const struct devices_pair *pair)
{
    const struct tpt_card_gpu *a = devices_gpu(pair->mine, pair->index_mine);
    const struct tpt_card_gpu *b = devices_gpu(pair->yours, pair->index_yours);

    return pair->path != TPT_PATH_SAME && pair->path != TPT_PATH_NET
           && a != NULL && b != NULL
           && (devices_denies(a, b) || devices_denies(b, a));
}

static const char devices_no_access_text[] =
    "the driver grants these two GPUs no access to each other's memory";
static const char devices_no_access_remedy[] =
    "`nvidia-smi topo -p2p r` tells why: the chipset, or the IOMMU";

/* Does one GPU read the other's memory there? */
static bool devices_accesses(const struct tpt_candidate *candidate)
{
    return candidate->reach == TPT_REACH_HOST
           && strcmp(candidate->name, TPT_PINNED) != 0;
}

void tpt_device_deny(const struct tpt_card *mine, const struct tpt_card *yours,
                     struct tpt_plan *plan)
{
    struct devices_pair pair = { mine, yours, 0, 0,
                                 tpt_path_gpus(mine, 0, yours, 0) };

    if (mine->gpu_count != 1 || yours->gpu_count != 1
        || !devices_no_access(&pair))
        return;
    for (uint32_t i = 0; i < plan->count; i++) {
        struct tpt_candidate *candidate = &plan->candidates[i];

        if (!devices_weighs(candidate) || !devices_accesses(candidate))
            continue;
        candidate->possible = false;
        candidate->reason = TPT_REASON_NO_PEER_ACCESS;
        snprintf(candidate->evidence, sizeof(candidate->evidence), "%s",
                 devices_no_access_text);
        snprintf(candidate->remedy, sizeof(candidate->remedy), "%s",
                 devices_no_access_remedy);
    }
}

uint64_t tpt_device_key(const struct tpt_card *mine,
                        const struct tpt_card *yours)
{
    struct devices_pair pair = { mine, yours, 0, 0,
                                 tpt_path_gpus(mine, 0, yours, 0) };
    const struct tpt_card_gpu *gpu = devices_gpu(yours, 0);
    uint64_t facts[8] = { pair.path, devices_pci(&pair) };

    if (gpu != NULL) {
        facts[2] = gpu->nic
                   | (uint64_t)(tpt_card_nic(yours) + 1) << 8;
        facts[3] = gpu->nic_path;
        facts[4] = devices_links(&pair);
        facts[5] = gpu->link_megabytes;
        facts[6] = yours->gpu_count == 1;
        facts[7] = devices_no_access(&pair);
    }
    return tpb_hash(TPB_HASH_INIT, facts, sizeof(facts));
}

static void devices_copy_verdict(const struct tpt_candidate *candidate,
                                 struct tpt_way *way)
{
    way->possible = candidate->possible;
    way->reason = candidate->reason;
    way->from_bytes = UINT64_MAX;
    snprintf(way->evidence, sizeof(way->evidence), "%s", candidate->evidence);
    snprintf(way->remedy, sizeof(way->remedy), "%s", candidate->remedy);
}

static void devices_way(const struct devices_pair *pair,
                        const struct tpt_plan *plan,
                        const struct tpt_candidate *candidate,
                        const struct devices_terms *staged,
                        struct tpt_way *way)
{
    int best = tpt_plan_best(plan);
    const struct tpt_candidate *transport = &plan->candidates[best];
    struct devices_terms terms
        = devices_terms(pair, tpt_card_backend(pair->mine, candidate->name),
                        tpt_card_backend(pair->yours, candidate->name));

    if (devices_accesses(candidate) && devices_no_access(pair)) {
        way->possible = false;
        way->reason = TPT_REASON_NO_PEER_ACCESS;
        snprintf(way->evidence, sizeof(way->evidence), "%s",
                 devices_no_access_text);
        snprintf(way->remedy, sizeof(way->remedy), "%s",
                 devices_no_access_remedy);
        return;
    }
    terms.strict = terms.measured || candidate->reach == TPT_REACH_NETWORK;
    way->from_bytes = 0;
    if (strcmp(way->name, TPT_STAGED) == 0)
        terms.megabytes = devices_through(&terms, transport);
    else
        way->from_bytes = devices_from(plan, transport, staged, &terms);
    way->reason = way->from_bytes != UINT64_MAX ? TPT_REASON_CHOSEN
                  : TPT_REASON_SLOWER;
    way->measured = terms.measured;
    way->latency_ns = terms.latency_ns;
    way->megabytes = terms.megabytes;
    way->model_latency_ns = terms.model_latency_ns;
    way->model_megabytes = terms.model_megabytes;
    way->cost_ns = transport->latency_ns
                   + tpt_time(terms.latency_ns, terms.megabytes, TPT_MESSAGE);
    snprintf(way->evidence, sizeof(way->evidence), "%s for %s%s%s",
             terms.measured ? "measured" : "model",
             tpt_path_name(pair->path),
             terms.nic != NULL ? ", limited by NIC " : "",
             terms.nic != NULL ? terms.nic->name : "");
}

/* What cuda_staged costs between the two; zeros if it is out of question. */
static struct devices_terms devices_other(const struct devices_pair *pair,
                                          const struct tpt_plan *plan)
{
    const struct tpt_candidate *other = devices_find(plan, TPT_STAGED);

    if (other == NULL || !other->possible)
        return (struct devices_terms) { 0 };
    return devices_terms(pair, tpt_card_backend(pair->mine, TPT_STAGED),
                         tpt_card_backend(pair->yours, TPT_STAGED));
}

uint64_t tpt_device_from(const struct tpt_card *mine,
                         const struct tpt_card *yours,
                         const struct tpt_plan *plan,
                         const struct tpt_candidate *candidate,
                         uint32_t index_mine, uint32_t index_yours)
{
    struct devices_pair pair = {
        mine, yours, index_mine, index_yours,
        tpt_path_gpus(mine, index_mine, yours, index_yours)
    };
    struct devices_terms staged, terms;
    int best = tpt_plan_best(plan);

    if (!candidate->possible || best < 0
        || (devices_accesses(candidate) && devices_no_access(&pair)))
        return UINT64_MAX;
    if (strcmp(candidate->name, TPT_STAGED) == 0)
        return 0;
    staged = devices_other(&pair, plan);
    terms = devices_terms(&pair, tpt_card_backend(mine, candidate->name),
                          tpt_card_backend(yours, candidate->name));
    terms.strict = terms.measured || candidate->reach == TPT_REACH_NETWORK;
    return devices_from(plan, &plan->candidates[best], &staged, &terms);
}

static bool devices_before(const struct tpt_way *x, const struct tpt_way *y)
{
    if (!x->possible || !y->possible)
        return x->possible && !y->possible;
    if (x->spare != y->spare)
        return y->spare;
    if (x->cost_ns != y->cost_ns)
        return x->cost_ns < y->cost_ns;
    return strcmp(x->name, y->name) < 0;
}

static void devices_insert(struct tpt_device_plan *out,
                           const struct tpt_way *way)
{
    uint32_t at = out->count++;

    for (; at > 0 && devices_before(way, &out->ways[at - 1]); at--)
        out->ways[at] = out->ways[at - 1];
    out->ways[at] = *way;
}

void tpt_device_score(const struct tpt_card *mine,
                      const struct tpt_card *yours,
                      const struct tpt_plan *plan, uint32_t index_mine,
                      uint32_t index_yours, struct tpt_device_plan *out)
{
    struct devices_pair pair = {
        mine, yours, index_mine, index_yours,
        tpt_path_gpus(mine, index_mine, yours, index_yours)
    };
    struct devices_terms staged = devices_other(&pair, plan);

    memset(out, 0, sizeof(*out));
    out->mine = index_mine;
    out->yours = index_yours;
    out->path = pair.path;
    tpt_device_evidence(mine, yours, out);
    for (uint32_t i = 0; i < plan->count && out->count < TPT_WAYS; i++) {
        const struct tpt_candidate *candidate = &plan->candidates[i];
        struct tpt_way way = { .possible = true, .from_bytes = UINT64_MAX };

        if (!candidate->devices)
            continue;
        memcpy(way.name, candidate->name, sizeof(way.name));
        way.spare = candidate->spare;
        if (candidate->possible && tpt_plan_best(plan) >= 0)
            devices_way(&pair, plan, candidate, &staged, &way);
        else
            devices_copy_verdict(candidate, &way);
        devices_insert(out, &way);
    }
}

void tpt_device_cost(const struct tpt_card *mine, const struct tpt_card *yours,
                     const struct tpt_candidate *candidate,
                     uint32_t index_mine, uint32_t index_yours,
                     uint64_t *latency_ns, uint64_t *megabytes)
{
    struct devices_pair pair = {
        mine, yours, index_mine, index_yours,
        tpt_path_gpus(mine, index_mine, yours, index_yours)
    };
    struct devices_terms terms
        = devices_terms(&pair, tpt_card_backend(mine, candidate->name),
                        tpt_card_backend(yours, candidate->name));

    *latency_ns = terms.latency_ns;
    *megabytes = terms.megabytes;
}
