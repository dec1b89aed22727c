/* SPDX-License-Identifier: BSD-3-Clause */
/* Joining and leaving a job. */
#include "config.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/interfaces.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"
#include "runtime/base/quota.h"
#include "runtime/channels.h"
#include "runtime/contract.h"
#include "runtime/core.h"
#include "runtime/desk.h"
#include "runtime/stream.h"
#include "topology/costs.h"
#include "topology/gpus.h"

TPB_LOG_COMPONENT("context");

enum {
    CONTEXT_FLUSH_ROUNDS = 1000,   /* of polling before sleeping ... */
    CONTEXT_FLUSH_MS = 1,          /* ... for so long each time */
    CONTEXT_OPTIONS_MOST = 4096,   /* bytes; more are no tp_options */
    CONTEXT_SPIN_US = 200,         /* before parking ... */
    CONTEXT_SPIN_MOST_US = 2000,   /* ... and where that is often too little */
    CONTEXT_THREAD_SPIN_US = 2,    /* the thread's, without a cpu for it ... */
    CONTEXT_BESIDE_SPIN_US = 30    /* ... if nobody else drives */
};

/* ---- options ------------------------------------------------------------ */

static tp_status context_override(tp_context *context,
                                  enum tpb_setting_id id, const char *text,
                                  struct tpb_error *error)
{
    return text == NULL ? TP_OK
                        : tpb_settings_set(&context->settings, id, text,
                                           error);
}

/* The first member whose value does not exist, or NULL. */
static const char *context_wrong(const tp_options *options, int64_t *value)
{
    const struct { const char *name; int64_t value, least, most; } all[] = {
        { "progress", (int)options->progress, 0, TP_PROGRESS_MANUAL },
        { "spin_us", options->spin_us, -1, INT64_MAX },
        { "connect_timeout_ms", options->connect_timeout_ms, 0, INT64_MAX },
        { "finalize_timeout_ms", options->finalize_timeout_ms, 0, INT64_MAX },
    };

    for (size_t i = 0; i < TPB_COUNT(all); i++) {
        *value = all[i].value;
        if (*value < all[i].least || *value > all[i].most)
            return all[i].name;
    }
    return NULL;
}

/* A program compiled against a newer header may ask for more than is known
 * here.  What is zero asks for nothing. */
static tp_status context_newer(const tp_options *given,
                               struct tpb_error *error)
{
    const unsigned char *bytes = (const unsigned char *)given;

    if (given->size > CONTEXT_OPTIONS_MOST)
        return tpb_fail(error, TP_ERR_INVALID, "tp_options.size cannot be %zu:"
                        " start from TP_OPTIONS_INIT", given->size);
    for (size_t i = sizeof(*given); i < given->size; i++)
        if (bytes[i] != 0)
            return tpb_fail(error, TP_ERR_NOT_SUPPORTED, "the program was"
                            " compiled against a newer tp.h, and sets a"
                            " member of tp_options (at byte %zu) that this"
                            " library, tp " PACKAGE_VERSION ", does not know",
                            i);
    return TP_OK;
}

static tp_status context_options(tp_context *context,
                                 const tp_options *given,
                                 struct tpb_error *error)
{
    tp_options options = TP_OPTIONS_INIT;
    const char *wrong;
    tp_status status;
    int64_t value;

    if (given != NULL && given->size > sizeof(options)) {
        status = context_newer(given, error);
        if (status != TP_OK)
            return status;
    }
    if (given != NULL) {
        /* A caller compiled against an older header has fewer members. */
        size_t size = given->size < sizeof(options) ? given->size
                                                    : sizeof(options);

        if (given->size < sizeof(size_t))
            return tpb_fail(error, TP_ERR_INVALID,
                            "tp_options.size is not set: start from"
                            " TP_OPTIONS_INIT");
        memcpy(&options, given, size);
    }
    wrong = context_wrong(&options, &value);
    if (wrong != NULL)
        return tpb_fail(error, TP_ERR_INVALID, "tp_options.%s cannot be %lld",
                        wrong, (long long)value);
    status = context_override(context, TPB_SET_BACKENDS, options.backends,
                              error);
    if (status == TP_OK)
        status = context_override(context, TPB_SET_REQUIRE, options.require,
                                  error);
    /* The program's own contract: it knows what to do when it is broken. */
    if (options.require != NULL)
        context->settings.number[TPB_SET_REQUIRE_ABORT] = 0;
    if (status == TP_OK)
        status = context_override(context, TPB_SET_BOOTSTRAP,
                                  options.bootstrap, error);
    if (status == TP_OK)
        status = context_override(context, TPB_SET_SECRET, options.secret,
                                  error);
    if (options.spin_us != 0)
        context->settings.number[TPB_SET_SPIN]
            = options.spin_us < 0 ? 0 : options.spin_us;
    if (options.connect_timeout_ms > 0)
        context->settings.number[TPB_SET_CONNECT_TIMEOUT]
            = options.connect_timeout_ms;
    if (options.finalize_timeout_ms > 0)
        context->settings.number[TPB_SET_FINALIZE_TIMEOUT]
            = options.finalize_timeout_ms;
    context->mode = options.progress;
    return status;
}

/* TP_PROGRESS decides where the options leave it open. */
static void context_mode(tp_context *context)
{
    const char *text = context->settings.text[TPB_SET_PROGRESS];

    if (context->mode != TP_PROGRESS_AUTO)
        return;
    if (strcmp(text, "thread") == 0)
        context->mode = TP_PROGRESS_THREAD;
    else if (strcmp(text, "manual") == 0)
        context->mode = TP_PROGRESS_MANUAL;
}

/* A control group may leave less of the cpus than the mask says.  Ranks do not
 * yield for that, see patience.h: with a cpu each, two that answer each other
 * at once lose half of the time at worst, and a yield costs more. */
static void context_quota(tp_context *context, bool chosen, int64_t *cpus)
{
    struct tpb_quota quota;

    if (!tpb_quota_own(&quota))
        return;
    if (quota.cpu_ns / quota.period_ns < (uint64_t)*cpus)
        *cpus = (int64_t)(quota.cpu_ns / quota.period_ns);
    tpb_info("%s leaves %llu us of the cpus in each %llu us to the ranks here",
             quota.file, (unsigned long long)(quota.cpu_ns / 1000),
             (unsigned long long)(quota.period_ns / 1000));
    if (!chosen && !context->crowded)
        tpr_patience_watch(&context->patience, tpb_quota_statistics(&quota),
                           (quota.cpu_ns + quota.period_ns - 1)
                           / quota.period_ns);
}

/*
 * A rank polls while it waits, and with more ranks than cpus yields the cpu
 * between two looks, so that who is waited for gets it.  The context's own
 * thread in AUTO mode polls beside the program's thread: it needs a second one,
 * or it takes the time from the program; and however long callers are to poll,
 * it is not for that.  In THREAD mode it is who waits, and polls for as long as
 * an answer may take that comes at once.
 */
static void context_spin(tp_context *context)
{
    int64_t us = context->settings.number[TPB_SET_SPIN];
    int64_t cpus = context->settings.number[TPB_SET_CPUS], own = 0;
    bool chosen = us >= 0, spare;
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        own = CPU_COUNT(&set);
    /* Without tprun: bound to one cpu usually means that each rank is. */
    if (cpus <= 0)
        cpus = own > 1 ? own : sysconf(_SC_NPROCESSORS_ONLN);
    context->crowded = context->env.crowded = context->local_size > cpus;
    tpr_crowd_init(&context->crowd, context->local_rank, context->local_size,
                   (int)cpus, &set);
    if (!chosen)
        us = CONTEXT_SPIN_US;
    context->spin_ns = (uint64_t)us * 1000;
    tpr_patience_init(&context->patience, context->spin_ns,
                      chosen || context->crowded ? context->spin_ns
                      : CONTEXT_SPIN_MOST_US * 1000);
    context_quota(context, chosen, &cpus);
    spare = own > 1 && cpus >= 2 * context->local_size;
    if (!chosen && context->crowded)
        us = CONTEXT_THREAD_SPIN_US;
    else if (!chosen && !spare && context->mode == TP_PROGRESS_THREAD)
        us = CONTEXT_BESIDE_SPIN_US;
    if (context->mode == TP_PROGRESS_AUTO) {
        int64_t most = spare ? CONTEXT_SPIN_US : CONTEXT_THREAD_SPIN_US;

        us = us < most ? us : most;
    }
    context->thread_spin_ns = (uint64_t)us * 1000;
    context->spare = spare;
}

/* ---- backends and the card ---------------------------------------------- */

static void context_endpoint_drop(struct tpf_endpoint *endpoint)
{
    endpoint->backend->close(endpoint);
    tpb_free(endpoint);
}

/* Opens one backend; why not goes onto the card. */
static void context_backend(tp_context *context,
                            const struct tpf_backend *backend,
                            const struct tpt_costs *costs)
{
    struct tpt_backend_card *card
        = &context->card.backends[context->card.backend_count++];
    struct tpb_error error = { "" };
    struct tpf_endpoint *endpoint;
    tp_status status;

    snprintf(card->name, sizeof(card->name), "%s", backend->name);
    card->reach = (uint8_t)backend->reach;
    card->nic_kind = (uint8_t)backend->nic_kind;
    card->latency_ns = backend->latency_ns;
    card->megabytes = backend->megabytes;
    tpt_costs_put(costs, card);
    if (!tpb_list_allows(context->settings.text[TPB_SET_BACKENDS],
                         backend->name)) {
        snprintf(card->why, sizeof(card->why), "forbidden by TP_BACKENDS");
        card->forbidden = 1;
        return;
    }
    endpoint = tpb_zalloc(backend->endpoint_size);
    if (endpoint == NULL) {
        snprintf(card->why, sizeof(card->why), "out of memory");
        return;
    }
    endpoint->backend = backend;
    endpoint->env = &context->env;
    status = backend->probe(&context->env, &error);
    if (status == TP_OK) {
        status = backend->open(endpoint, &error);
        if (status == TP_OK) {
            context->endpoints[context->endpoint_count++] = endpoint;
            card->usable = 1;
            if (backend->nics != NULL)
                card->nics = backend->nics(endpoint);
            card->address_length = (uint16_t)backend->address(
                endpoint, card->address, sizeof(card->address));
            return;
        }
        backend->close(endpoint);
    }
    tpb_free(endpoint);
    tpb_info("%s is not usable: %s", backend->name, error.text);
    snprintf(card->why, sizeof(card->why), "%.*s",
             (int)sizeof(card->why) - 1, error.text);
}

/* Before the bootstrap, which may start threads. */
static void context_prepare(const tp_context *context)
{
    const char *allowed = context->settings.text[TPB_SET_BACKENDS];

    for (size_t i = 0; tpf_backends[i] != NULL; i++)
        if (tpf_backends[i]->prepare != NULL
            && tpb_list_allows(allowed, tpf_backends[i]->name))
            tpf_backends[i]->prepare();
}

/* Why each that is allowed does not work. */
static void context_causes(const struct tpt_card *card, char *text,
                           size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < card->backend_count && used < size; i++) {
        const struct tpt_backend_card *backend = &card->backends[i];

        if (!backend->forbidden)
            used += (size_t)snprintf(text + used, size - used, "%s%s (%s)",
                                     used > 0 ? ", " : ": ", backend->name,
                                     backend->why);
    }
}

static tp_status context_backends(tp_context *context,
                                  struct tpb_error *error)
{
    char causes[320];
    const struct tpf_backend *backends[TPT_BACKENDS];
    size_t count = tpf_backends_for(context->settings.text[TPB_SET_BACKENDS],
                                    backends, TPT_BACKENDS);
    struct tpt_costs *costs = tpt_costs_for(&context->settings,
                                            &context->card);

    if (costs == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < count; i++)
        context_backend(context, backends[i], costs);
    context->crowd.mine = context->env.presence;
    if (context->endpoint_count > 0)
        tpr_channels_open(context);
    tpt_costs_apply(costs, &context->card);
    tpb_free(costs);
    if (context->endpoint_count > 0)
        return TP_OK;
    /* A name that means nothing may be why. */
    tpt_policy_check_names("TP_BACKENDS",
                           context->settings.text[TPB_SET_BACKENDS],
                           &context->card);
    context_causes(&context->card, causes, sizeof(causes));
    return tpb_fail(error, TP_ERR_UNREACHABLE,
                    "TP_BACKENDS=%s leaves no backend that works here%s;"
                    " `tpinfo --backends` lists them",
                    context->settings.text[TPB_SET_BACKENDS], causes);
}

void tpr_card_damage(const tp_context *context, uint8_t *blob,
                     size_t *length)
{
    const char *hook = context->settings.text[TPB_SET_CARD_HOOK];

    if (strcmp(hook, "garbage") == 0)
        tpb_random(blob, *length);
    else if (strcmp(hook, "truncate") == 0)
        *length /= 2;
    else if (strcmp(hook, "version") == 0 && *length > 4)
        blob[4] ^= 0x40;
}

static tp_status context_publish(tp_context *context, struct tpb_error *error)
{
    uint8_t *blob = tpb_zalloc(TPT_CARD_BYTES);
    size_t length;
    tp_status status;

    if (blob == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    tpt_card_pretend(&context->card,
                     context->settings.text[TPB_SET_CARD_HOOK]);
    status = tpt_card_encode(&context->card, blob, &length);
    if (status == TP_OK) {
        tpr_card_damage(context, blob, &length);
        status = tpr_bootstrap_publish(context->bootstrap, blob, length,
                                       error);
    } else {
        tpb_fail(error, status, "the card cannot be encoded");
    }
    tpb_free(blob);
    return status;
}

/* What may fail comes before the card: whose card is out was here, and would be
 * one that left.  With the token, so that the thread moves nothing before; it
 * may doze meanwhile. */
static tp_status context_join(tp_context *context, struct tpb_error *error)
{
    tp_status status;

    (void)tpr_enter(context);
    status = tpr_thread_start(context, error);
    if (status == TP_OK)
        status = context_publish(context, error);
    tpr_leave(context);
    if (context->thread.runs)
        tpb_eventfd_ring(context->thread.kick);
    return status;
}

static tp_status context_card(tp_context *context, struct tpb_error *error)
{
    struct tpt_card *card = &context->card;
    tp_status status = tpt_card_identify(card, error);

    if (status != TP_OK)
        return status;
    card->rank = context->rank;
    card->size = context->size;
    snprintf(card->job, sizeof(card->job), "%s", context->bootstrap->job);
    status = tpt_topology_load(&context->settings, &context->topology, error);
    if (status != TP_OK)
        return status;
    tpt_topology_place(context->topology, &card->place);
    card->nic_count = tpt_topology_nics(context->topology, card->nics);
    tpg_nvml_ask(&context->settings,
                 tpt_topology_gpus(context->topology, "",
                                   getenv("CUDA_VISIBLE_DEVICES"), card),
                 card);
    return TP_OK;
}

/* ---- init --------------------------------------------------------------- */

/* Two versions in one job usually work, and explain it when they do not. */
static void context_compare_versions(const tp_context *context)
{
    const char *launcher = context->settings.text[TPB_SET_LAUNCHER];
    size_t length = strcspn(launcher, ":");

    if (length > 0 && (length != strlen(PACKAGE_VERSION)
                       || strncmp(launcher, PACKAGE_VERSION, length) != 0))
        tpb_warn("tprun is of version %.*s, this rank's libtp of %s",
                 (int)length, launcher, PACKAGE_VERSION);
}

/* A list of interfaces may be for hosts that differ; but one of which this
 * host has none lets it reach nobody. */
static void context_check_ifaces(const tp_context *context,
                                 const struct tpb_interfaces *here)
{
    const char *list = context->settings.text[TPB_SET_IFACE];
    struct tpb_text names = { 0 };
    bool found = *list == '\0' || *list == '^';

    for (size_t i = 0; here != NULL && i < here->count && !found; i++) {
        const char *name = here->list[i].name;

        found = tpb_list_allows(list, name);
        if (names.text == NULL || strstr(names.text, name) == NULL)
            tpb_text_add(&names, "%s%s", names.length > 0 ? ", " : "", name);
    }
    /* Of none at all the backends tell why. */
    if (here != NULL && !found && context->local_rank == 0)
        tpb_warn("TP_IFACE=%s: this host has none of these network "
                 "interfaces; it has %s", list,
                 names.text != NULL ? names.text : "none");
    tpb_text_fini(&names);
}

/* Everything that wants to know this host's addresses finds them held. */
static tp_status context_fabric(tp_context *context, struct tpb_error *error)
{
    size_t count;
    const struct tpb_interface *known
        = tpt_topology_interfaces(context->topology, &count);
    const struct tpb_interfaces *interfaces
        = tpb_interfaces_hold_known(known, count);
    tp_status status = context_backends(context, error);

    context_check_ifaces(context, interfaces);
    tpb_interfaces_drop(interfaces);
    return status;
}

static tp_status context_open(tp_context *context, const tp_options *options,
                              struct tpb_error *error)
{
    char name[32];
    tp_status status;

    status = context_options(context, options, error);
    context_mode(context);
    if (status == TP_OK)
        status = tpr_progress_init(context, error);
    if (status != TP_OK)
        return status;
    context_prepare(context);
    status = tpr_bootstrap_open(&context->settings, context,
                                &context->bootstrap, error);
    if (status != TP_OK)
        return status;
    context->rank = context->bootstrap->rank;
    context->size = context->bootstrap->size;
    context->local_rank = context->bootstrap->local_rank;
    context->local_size = context->bootstrap->local_size;
    snprintf(name, sizeof(name), "tp[%d]", context->rank);
    tpb_log_name(name);
    context_compare_versions(context);
    context_spin(context);
    tpr_record_open(context);
    context->explain = context->settings.number[TPB_SET_EXPLAIN] != 0;
    tpf_memories_limit(&context->memories,
                       context->settings.number[TPB_SET_ALLOC_KEEP]);
    status = context_card(context, error);
    if (status == TP_OK)
        status = context_fabric(context, error);
    if (status == TP_OK)
        status = tpt_policy_check(&(struct tpt_policy) {
            .backends = context->settings.text[TPB_SET_BACKENDS],
            .require = context->settings.text[TPB_SET_REQUIRE] },
            &context->card, error);
    if (status == TP_OK)
        tpt_policy_check_names("TP_RAILS_OVER",
                               context->settings.text[TPB_SET_RAILS_OVER],
                               &context->card);
    if (status == TP_OK)
        status = context_join(context, error);
    return status;
}

static tp_context *context_new(void)
{
    static _Atomic uint64_t serial;
    tp_context *context = tpb_zalloc(sizeof(*context));

    if (context == NULL)
        return NULL;
    context->gpu = tpg_open(&context->settings);
    if (context->gpu == NULL) {
        tpb_free(context);
        return NULL;
    }
    context->serial = atomic_fetch_add(&serial, 1) + 1;
    tpr_patience_init(&context->patience, 0, 0);
    tpr_wait_init(context);
    pthread_mutex_init(&context->table_lock, NULL);
    pthread_mutex_init(&context->waits_lock, NULL);
    tpb_list_init(&context->waits);
    tpb_list_init(&context->env.ready);
    tpb_list_init(&context->env.gathered);
    context->env.upcalls = &tpr_upcalls;
    context->env.core = context;
    context->env.lands = true;
    context->env.settings = &context->settings;
    context->env.card = &context->card;
    context->env.memories = &context->memories;
    context->env.gpu = context->gpu;
    context->env.imports = &context->imports;
    tpf_memories_init(&context->memories);
    tpr_arenas_init(&context->arenas);
    tpb_list_init(&context->lent);
    tpb_list_init(&context->done);
    tpb_list_init(&context->spare_chunks);
    tpb_list_init(&context->any);
    tpb_list_init(&context->device_pipes);
    tpb_list_init(&context->device_reads);
    tpb_list_init(&context->device_releases);
    tpb_list_init(&context->unread);
    tpb_list_init(&context->late);
    tpb_list_init(&context->peers);
    tpb_list_init(&context->strangers);
    tpb_list_init(&context->contacts);
    tpb_list_init(&context->graveyard);
    context->epoll = context->wake.fd = context->timer.fd = -1;
    context->thread.epoll = context->thread.kick = context->thread.timer = -1;
    tpr_poller_init(context);
    return context;
}

/* Also of a half-made one; its callbacks have all run. */
static void context_free(tp_context *context)
{
    struct tpb_list *node;

    tpr_thread_stop(context, NULL);
    if (context->bootstrap != NULL && context->bootstrap->ops->quiet != NULL)
        context->bootstrap->ops->quiet(context->bootstrap);
    tpr_bury_now(context);
    tpr_desk_fini(context);
    tpr_borrow_fini(context);
    tpr_channels_close(context);
    for (uint32_t i = 0; i < context->endpoint_count; i++)
        context_endpoint_drop(context->endpoints[i]);
    while ((node = tpb_list_take(&context->peers)) != NULL)
        tpr_peer_free(TPB_CONTAINER(node, struct tpr_peer, link));
    tpt_book_free(context->book);
    tpb_free(context->table);
    tpr_ops_fini(context);
    tpr_offers_fini(context);
    tpr_chunks_fini(context);
    tpr_patience_fini(&context->patience);
    tpr_memory_fini(context);
    tpg_close(context->gpu);
    if (context->bootstrap != NULL)
        tpr_bootstrap_close(context->bootstrap);
    tpt_topology_free(context->topology);
    tpr_record_close(context);
    tpr_poller_fini(context);
    tpr_progress_fini(context);
    tpb_settings_fini(&context->settings);
    pthread_mutex_destroy(&context->table_lock);
    pthread_mutex_destroy(&context->waits_lock);
    tpr_wait_fini(context);
    tpb_free(context);
}

tp_status tp_init(const tp_options *options, tp_context **result)
{
    struct tpb_error error = { "" };
    tp_context *context;
    tp_status status;

    if (result == NULL)
        return TP_ERR_INVALID;
    context = context_new();
    if (context == NULL)
        return TP_ERR_NO_MEMORY;
    status = tpb_settings_load(&context->settings, &error);
    if (status == TP_OK) {
        tpb_alloc_fail_at((long)context->settings.number[TPB_SET_ALLOC_FAIL]);
        status = context_open(context, options, &error);
    }
    if (status != TP_OK) {
        tpb_error_log("tp_init: %s", error.text[0] != '\0'
                                     ? error.text : tp_strerror(status));
        context_free(context);
        return status;
    }
    tpr_record_phase(context, TPB_PHASE_RUNNING);
    tpr_progress_mine(context);
    *result = context;
    return TP_OK;
}

/* ---- finalize ----------------------------------------------------------- */

/* A goodbye gives the peer its memory back, as CLOSE does. */
static bool context_pipe_busy(const tp_pipe *pipe)
{
    return pipe != NULL
           && (!tpb_list_empty(&pipe->writes)
               || !tpb_list_empty(&pipe->landing)
               || (pipe->peer->state == TPR_PEER_CONNECTED
                   && (!tpb_list_empty(&pipe->notes) || pipe->close_due
                       || tpr_pull_fetches(pipe))));
}

/* Nothing goes to a peer behind the goodbye: what callbacks write to it from
 * then on ends at once, and is not lost unheard. */
static void context_peer_told(struct tpr_peer *peer)
{
    peer->bye_sent = true;
    tpr_peer_stop_writing(peer);
}

/* Has everything that was written to this peer left this process?  Says
 * goodbye once it has. */
static bool context_peer_flushed(struct tpr_peer *peer)
{
    if (peer->state == TPR_PEER_NEW || peer->state == TPR_PEER_ENDED)
        return true;
    if (context_pipe_busy(atomic_load(&peer->ready_made)))
        return false;
    for (tp_pipe *pipe = peer->pipes; pipe != NULL; pipe = pipe->next)
        if (context_pipe_busy(pipe))
            return false;
    /* Asked for, but nothing written: not worth waiting for. */
    if (peer->state != TPR_PEER_CONNECTED && peer->state != TPR_PEER_GREETED)
        return true;
    if (!peer->bye_sent) {
        struct wire_frame bye = { .type = WIRE_BYE };
        struct tpf_conn *conn = peer->conn;
        bool got = conn->backend->flushed(conn);
        void *room = conn->backend->reserve(conn, sizeof(bye));

        if (room == NULL)
            return false;
        peer->all_got = got;
        memcpy(room, &bye, sizeof(bye));
        conn->backend->commit(conn, sizeof(bye));
        context_peer_told(peer);
    }
    return peer->conn == NULL || peer->conn->backend->flushed(peer->conn);
}

/* Has the peer's core taken every frame of a message?  What is its own to
 * know, as credit and that a read is over, does not count. */
static bool context_all_taken(struct tpr_peer *peer)
{
    const tp_pipe *ready_made = atomic_load(&peer->ready_made);

    if (ready_made != NULL && ready_made->sent != ready_made->acknowledged)
        return false;
    for (const tp_pipe *pipe = peer->pipes; pipe != NULL; pipe = pipe->next)
        if (pipe->sent != pipe->acknowledged)
            return false;
    return true;
}

/* Or only the goodbye, and what no program has written, is still under way:
 * over a network a peer that drives itself, and is busy elsewhere, takes
 * nothing, and nobody needs it to. */
static bool context_peer_safe(struct tpr_peer *peer)
{
    return context_peer_flushed(peer)
           || (peer->bye_sent && (peer->all_got || context_all_taken(peer)));
}

static bool context_safe(tp_context *context)
{
    bool safe = true;

    TPB_LIST_EACH(node, &context->peers)
        safe &= context_peer_safe(TPB_CONTAINER(node, struct tpr_peer, link));
    return safe;
}

/* Is the callback of a write due?  It may write more, and many do. */
static bool context_goes_on(const tp_context *context)
{
    TPB_LIST_EACH(node, &context->done) {
        const struct tpr_op *op = TPB_CONTAINER(node, struct tpr_op, link);

        if (op->kind == TPR_OP_WRITE && op->status == TP_OK)
            return true;
    }
    return false;
}

static bool context_flushed(tp_context *context)
{
    /* What devices still read stays mapped. */
    bool flushed = tpb_list_empty(&context->device_releases);

    if (context_goes_on(context))
        return false;
    TPB_LIST_EACH(node, &context->peers)
        flushed &= context_peer_flushed(TPB_CONTAINER(node, struct tpr_peer,
                                                      link));
    return flushed;
}

/* Sleeps a little, or until a descriptor is ready; token, kept. */
static void context_nap(tp_context *context)
{
    struct epoll_event event;

    epoll_wait(context->epoll, &event, 1, CONTEXT_FLUSH_MS);
}

/* Drives until all is flushed; false if the time was not enough. */
static bool context_flush(tp_context *context)
{
    int64_t limit = context->settings.number[TPB_SET_FINALIZE_TIMEOUT];
    uint64_t deadline = tpb_now() + (uint64_t)limit * 1000000u;

    tpr_dispatch(context);         /* the ends of reads, too, may be answered */
    for (uint32_t round = 0;; round++) {
        uint64_t now = tpb_now();
        bool flushed = context_flushed(context);

        tpr_pass(context);
        tpr_poll_watches(context);
        tpr_dispatch(context);
        /* Again, for who has come meanwhile is to hear a goodbye, too. */
        if (flushed && context_flushed(context))
            return true;
        if (limit >= 0 && now >= deadline)
            return context_safe(context);
        if (round > CONTEXT_FLUSH_ROUNDS)
            context_nap(context);
    }
}

static void context_end_operations(tp_context *context)
{
    struct tpb_list *node;

    context->closed = true;
    TPB_LIST_EACH(peer_node, &context->peers) {
        struct tpr_peer *peer = TPB_CONTAINER(peer_node, struct tpr_peer,
                                              link);

        if (!context->flushed && peer->state != TPR_PEER_ENDED
            && !context_peer_safe(peer))
            tpr_peer_end(peer, TP_ERR_TIMEOUT,
                         "it did not read what was written in time "
                         "(TP_FINALIZE_TIMEOUT)");
        tpr_peer_end(peer, TP_ERR_CLOSED, "tp_finalize");
    }
    while ((node = tpb_list_take(&context->any)) != NULL)
        tpr_op_end(TPB_CONTAINER(node, struct tpr_op, link), TP_ERR_CLOSED);
    tpr_device_progress(context);  /* the reads that it held end, too */
    tpr_bury_now(context);         /* with it the last pulls end */
    tpr_dispatch(context);
    while ((node = tpb_list_take(&context->strangers)) != NULL) {
        struct tpr_stranger *stranger = TPB_CONTAINER(node,
                                                      struct tpr_stranger,
                                                      link);

        tpr_bury(context, stranger->conn);
        tpb_free(stranger);
    }
}

static void context_enter(tp_context *context)
{
    while (!tpr_enter(context))
        sched_yield();             /* a call of another thread just ends */
}

/* What the last callbacks asked for may have become a task, which has its end
 * when the token is left, and then a callback. */
static void context_end_calls(tp_context *context)
{
    do {
        tpr_desk_close(context);
        tpr_leave(context);
        context_enter(context);
    } while (tpr_dispatch(context) > 0);
}

/* All of tp_finalize() that runs callbacks. */
static void context_finish(tp_context *context)
{
    context_enter(context);
    tpr_record_phase(context, TPB_PHASE_FINALIZE);
    context->closing = true;
    tpr_desk_close(context);
    /* Whoever writes to us has nobody to wait for: else two ranks that leave
     * at once would wait for each other. */
    TPB_LIST_EACH(node, &context->peers)
        tpr_peer_stop_reading(TPB_CONTAINER(node, struct tpr_peer, link));
    context->flushed = context_flush(context);
    if (context->bootstrap->ops->leave != NULL)
        context->bootstrap->ops->leave(context->bootstrap,
                                       !context->flushed);
    context_end_operations(context);
    context_end_calls(context);
    tpr_leave(context);
}

tp_status tp_finalize(tp_context *context)
{
    bool flushed;

    if (context == NULL || tpr_holds(context)
        || context->card.pid != (uint32_t)getpid())    /* the parent's */
        return TP_ERR_INVALID;
    tpr_thread_stop(context, context_finish);
    flushed = context->flushed;
    tpr_contract_leave(context);
    context_free(context);
    return flushed ? TP_OK : TP_ERR_TIMEOUT;
}

/* ---- small questions ---------------------------------------------------- */

int tp_rank(const tp_context *context)
{
    return context == NULL ? -1 : context->rank;
}

int tp_size(const tp_context *context)
{
    return context == NULL ? -1 : context->size;
}

int tp_local_rank(const tp_context *context)
{
    return context == NULL ? -1 : context->local_rank;
}

int tp_local_size(const tp_context *context)
{
    return context == NULL ? -1 : context->local_size;
}

void tp_abort(tp_context *context, int exit_code, const char *reason)
{
    if (exit_code <= 0 || exit_code > 255)
        exit_code = 1;
    if (context != NULL)
        context->bootstrap->ops->abort(context->bootstrap, exit_code,
                                       reason != NULL ? reason : "");
    if (reason != NULL)
        fprintf(stderr, "tp: aborted: %s\n", reason);
    _exit(exit_code);
}
