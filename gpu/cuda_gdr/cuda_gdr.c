/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The cuda_gdr channel: the receiver's NIC reads the sender's buffer and writes
 * into the receiver's, without the CPU and without a copy in host memory, where
 * one of the two or both are on a CUDA device (GPUDirect RDMA).
 *
 * The sender describes a buffer when the work on its stream is done, and the
 * receiver pulls when the work on its own is, and says that it is through when
 * the bytes are in the device's memory and visible there: so nothing is
 * enqueued, and no stream waits.
 *
 * Reads go over lines of their own (remote.h): one that fails leaves the pair
 * connected, and the rest of the buffer comes in frames.
 */
#include "config.h"

#include <endian.h>
#include <stdio.h>
#include <unistd.h>

#include "fabric/channel.h"
#include "fabric/memory.h"
#include "gpu/cuda_gdr/gdr.h"
#include "runtime/base/alloc.h"
#include "runtime/base/log.h"

TPB_LOG_COMPONENT("gdr");

struct gdr_source {
    uint64_t address, key;             /* little-endian */
    struct tpf_remote_place place;
    uint32_t unused;
};
_Static_assert(sizeof(struct gdr_source) == 56, "wire layout");
_Static_assert(sizeof(struct gdr_source) <= TPF_SOURCE, "TPF_SOURCE");

/* A line to that peer. */
struct gdr_way {
    struct tpb_list node;
    struct tpf_remote *remote;
    struct tpf_remote_place place;
    struct tpf_line *line;
};

struct gdr_link {
    struct tpf_link base;
    struct tpb_list ways, pulls;
};

struct gdr_pull {
    struct tpf_pull base;
    struct tpf_fetch fetch;
    struct gdr_region *region;         /* of the destination */
    bool cancelled;
};
_Static_assert(sizeof(struct gdr_pull) <= TPF_PULL, "TPF_PULL is too small");

static struct gdr_channel *gdr_channel_of(const struct tpf_link *link)
{
    return (struct gdr_channel *)link->channel;
}

/* ---- the channel --------------------------------------------------------- */

static tp_status gdr_probe(const struct tpf_env *env, struct tpb_error *error)
{
    const struct tpf_backend *over = tpf_backend_find(TPG_GDR_OVER);
    tp_status status = tpg_probe(env->settings, error);

    if (status != TP_OK)
        return status;
    if (strcmp(env->settings->text[TPB_SET_GDR], "none") == 0)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED, "TP_GDR=none forbids it");
    return over != NULL ? over->probe(env, error)
           : tpb_fail(error, TP_ERR_NOT_SUPPORTED, "there is no " TPG_GDR_OVER);
}

static tp_status gdr_open(struct tpf_channel *channel, struct tpb_error *error)
{
    (void)channel;
    (void)error;
    return TP_OK;
}

static void gdr_freed(struct tpf_channel *base, uint64_t block)
{
    struct gdr_channel *channel = (struct gdr_channel *)base;

    for (int i = 0; i < TPG_DEVICES; i++)
        if (channel->ports[i] != NULL)
            gdr_regions_freed(channel->ports[i], block);
}

static void gdr_close(struct tpf_channel *channel)
{
    gdr_ports_close((struct gdr_channel *)channel);
}

/* The driver is not woken for this: the trial is made when a device's memory
 * is first described or pulled into, see gdr_port_get(). */
static tp_status gdr_link(struct tpf_link *base, const void *address,
                          size_t length, struct tpb_error *error)
{
    struct gdr_link *link = (struct gdr_link *)base;

    (void)address;
    (void)length;
    (void)error;
    tpb_list_init(&link->ways);
    tpb_list_init(&link->pulls);
    return TP_OK;
}

/* A closed line writes nothing any more, and ends no pull. */
static void gdr_stop(struct tpf_link *base)
{
    struct gdr_link *link = (struct gdr_link *)base;
    struct tpb_list *node;

    while ((node = tpb_list_take(&link->ways)) != NULL) {
        struct gdr_way *way = TPB_CONTAINER(node, struct gdr_way, node);

        tpf_line_close(way->line);
        tpb_free(way);
    }
    while ((node = tpb_list_take(&link->pulls)) != NULL)
        gdr_region_drop(TPB_CONTAINER(node, struct gdr_pull,
                                      base.node)->region);
}

/* ---- buffers ------------------------------------------------------------- */

/* The port for the buffer, if it is one for this channel; NULL with words. */
static struct gdr_port *gdr_port_for(struct gdr_channel *channel,
                                     const struct tpf_buffer *buffer,
                                     const struct tpg_cuda *cuda,
                                     struct tpb_error *error)
{
    if (buffer->device.type == TP_DEVICE_CPU)
        return gdr_port_get(channel, NULL, GDR_HOST, error);
    if (cuda == NULL || buffer->device.index < 0
        || buffer->device.index >= cuda->devices) {
        tpb_fail(error, TP_ERR_NOT_SUPPORTED, "no such device here");
        return NULL;
    }
    return gdr_port_get(channel, cuda, buffer->device.index, error);
}

/* NULL with words. */
static struct gdr_region *gdr_hold(struct gdr_port *port,
                                   const struct tpg_cuda *cuda,
                                   const struct tpf_env *env,
                                   const struct tpf_buffer *buffer,
                                   struct tpb_error *error)
{
    struct gdr_region *region = gdr_region_hold(port, cuda, buffer, error);
    struct tpf_memory block;

    if (region != NULL && region->owned == 0
        && tpf_memory_find(env->memories, buffer->data, buffer->length,
                           &block))
        region->owned = block.id;
    return region;
}

/* ---- the sender ---------------------------------------------------------- */

/* Memory of the host goes this way only to a device: rma is for the rest. */
static size_t gdr_describe(struct tpf_link *link,
                           const struct tpf_buffer *buffer,
                           unsigned char source[TPF_SOURCE], void **hold)
{
    struct gdr_channel *channel = gdr_channel_of(link);
    const struct tpg_cuda *cuda = tpg_cuda_loaded();
    struct tpb_error error = { "" };
    struct gdr_source mine = { .unused = 0 };
    struct gdr_region *region = NULL;
    struct gdr_port *port;

    if (buffer->device.type == TP_DEVICE_CPU
        && buffer->target.type != TP_DEVICE_CUDA)
        return 0;
    port = gdr_port_for(channel, buffer, cuda, &error);
    if (port != NULL)
        region = gdr_hold(port, cuda, channel->base.env, buffer, &error);
    if (region == NULL) {
        tpb_debug("a buffer goes staged: %s", error.text);
        return 0;
    }
    mine.address = htole64((uint64_t)(uintptr_t)buffer->data);
    mine.key = htole64(tpf_registration_key(region->registration));
    tpf_remote_place(port->remote, &mine.place);
    memcpy(source, &mine, sizeof(mine));
    *hold = region;
    return sizeof(mine);
}

static void gdr_forget(struct tpf_link *link, void *hold)
{
    (void)link;
    gdr_region_drop(hold);
}

/* ---- the receiver -------------------------------------------------------- */

/* The line to that place; NULL with words. */
static struct tpf_line *gdr_line(struct gdr_link *link,
                                 struct tpf_remote *remote,
                                 const struct tpf_remote_place *place,
                                 struct tpb_error *error)
{
    struct gdr_way *way;

    TPB_LIST_EACH(node, &link->ways) {
        way = TPB_CONTAINER(node, struct gdr_way, node);
        if (way->remote != remote
            || memcmp(&way->place, place, sizeof(*place)) != 0)
            continue;
        if (tpf_line_broken(way->line) == NULL)
            return way->line;
        tpb_fail(error, TP_ERR_BACKEND, "%s", tpf_line_broken(way->line));
        return NULL;
    }
    way = tpb_zalloc(sizeof(*way));
    if (way == NULL) {
        tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
        return NULL;
    }
    way->remote = remote;
    way->place = *place;
    if (tpf_line_open(remote, place, &way->line, error) != TP_OK) {
        tpb_free(way);
        return NULL;
    }
    tpb_list_append(&link->ways, &way->node);
    return way->line;
}

static void gdr_ended(struct tpf_fetch *fetch)
{
    struct gdr_pull *pull = TPB_CONTAINER(fetch, struct gdr_pull, fetch);
    struct tpf_env *env = pull->base.link->channel->env;
    struct gdr_port *port = pull->region->port;
    struct tpb_error error = { "" };
    bool whole = fetch->done == pull->base.to.length;

    pull->base.moved = fetch->done;
    if (!whole)
        tpb_fail(&error, TP_ERR_BACKEND, "%s",
                 pull->cancelled ? "cancelled"
                                 : tpf_line_broken(fetch->line));
    /* What may not be visible has to come again. */
    if (fetch->done > 0 && port->device >= 0
        && gdr_port_flush(port, tpg_cuda_loaded(), &error) != TP_OK) {
        pull->base.moved = 0;
        whole = false;
    }
    tpb_list_unlink(&pull->base.node);
    gdr_region_drop(pull->region);
    pull->region = NULL;
    env->upcalls->pulled(env->core, &pull->base,
                         whole ? TPF_PULL_DONE : TPF_PULL_REFUSED, error.text);
}

static enum tpf_progress gdr_pull(struct tpf_pull *base,
                                  struct tpb_error *error)
{
    struct gdr_pull *pull = (struct gdr_pull *)base;
    struct gdr_link *link = (struct gdr_link *)base->link;
    struct gdr_channel *channel = gdr_channel_of(base->link);
    const struct tpg_cuda *cuda = NULL;
    struct gdr_source source;
    struct gdr_port *port;
    struct tpf_line *line;

    if (base->source_length != sizeof(source) || base->to.length == 0) {
        tpb_fail(error, TP_ERR_PROTOCOL, "not a buffer for cuda_gdr");
        return TPF_PULL_REFUSED;
    }
    memcpy(&source, base->source, sizeof(source));
    if (base->to.device.type != TP_DEVICE_CPU
        && tpg_cuda_load(channel->base.env->settings, &cuda, error) != TP_OK)
        return TPF_PULL_REFUSED;
    port = gdr_port_for(channel, &base->to, cuda, error);
    if (port == NULL)
        return TPF_PULL_PASS;      /* another device may have a way */
    pull->region = gdr_hold(port, cuda, channel->base.env, &base->to, error);
    if (pull->region == NULL)
        return TPF_PULL_PASS;      /* another buffer may be registered */
    line = gdr_line(link, port->remote, &source.place, error);
    if (line == NULL) {
        gdr_region_drop(pull->region);
        return TPF_PULL_REFUSED;
    }
    pull->cancelled = false;
    pull->fetch = (struct tpf_fetch){
        .to = base->to.data, .registration = pull->region->registration,
        .address = le64toh(source.address), .key = le64toh(source.key),
        .length = base->to.length, .ended = gdr_ended };
    tpb_list_append(&link->pulls, &base->node);
    tpf_line_fetch(line, &pull->fetch);
    return TPF_PULL_MORE;
}

static bool gdr_cancel(struct tpf_pull *base)
{
    struct gdr_pull *pull = (struct gdr_pull *)base;

    if (!tpf_line_stop(&pull->fetch)) {
        pull->cancelled = true;
        return false;
    }
    tpb_list_unlink(&base->node);
    gdr_region_drop(pull->region);
    return true;
}

static bool gdr_progress(struct tpf_channel *base)
{
    struct gdr_channel *channel = (struct gdr_channel *)base;
    bool any = false;

    for (int i = 0; i < channel->nic_count; i++)
        for (int how = 0; how < TPF_REMOTE_WAYS; how++)
            if (channel->nics[i].remotes[how] != NULL)
                any |= tpf_remote_progress(channel->nics[i].remotes[how]);
    return any;
}

const struct tpf_channel_kind tpg_cuda_gdr = {
    .name = "cuda_gdr",
    .number = TPF_CHANNEL_CUDA_GDR,
    .reach = TPT_REACH_NETWORK,
    .devices = true,
    .over = TPG_GDR_OVER,
    .nic_kind = TPT_NIC_RDMA,
    .latency_ns = 20000,               /* two registrations and a round trip */
    .megabytes = 24000,
    .channel_size = sizeof(struct gdr_channel),
    .link_size = sizeof(struct gdr_link),
    .pull_size = sizeof(struct gdr_pull),
    .probe = gdr_probe,
    .open = gdr_open,
    .close = gdr_close,
    .link = gdr_link,
    .stop = gdr_stop,
    .unlink = gdr_stop,
    .describe = gdr_describe,
    .forget = gdr_forget,
    .pull = gdr_pull,
    .cancel = gdr_cancel,
    .progress = gdr_progress,
    .freed = gdr_freed,
};
