/* SPDX-License-Identifier: BSD-3-Clause */
/* The backend's table: one endpoint of another backend per interface. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "fabric/rails/rails.h"
#include "runtime/base/interfaces.h"
#include "runtime/base/io.h"

TPB_LOG_COMPONENT("rails");

enum { ENDPOINT_TICK_MS = 100, ENDPOINT_SLOWLY_MS = 500, ENDPOINT_SEEN = 64 };

struct endpoint_nic {
    char name[RAILS_NAME];
    uint32_t megabits;
};

extern const struct tpf_backend tpf_rails;

/* ---- interfaces -------------------------------------------------------- */

static uint32_t endpoint_megabits(const struct tpt_card *card,
                                  const char *name)
{
    for (uint32_t i = 0; i < card->nic_count; i++)
        if (strcmp(card->nics[i].name, name) == 0)
            return card->nics[i].megabits;
    return 0;
}

/* Keeps the fastest first, in the system's order among equals. */
static int endpoint_insert(struct endpoint_nic *list, int count,
                           const struct endpoint_nic *nic)
{
    int at = count;

    for (int i = 0; i < count; i++)
        if (strcmp(list[i].name, nic->name) == 0)
            return count;
    if (count == ENDPOINT_SEEN)
        return count;
    while (at > 0 && list[at - 1].megabits < nic->megabits) {
        list[at] = list[at - 1];
        at--;
    }
    list[at] = *nic;
    return count + 1;
}

/* The interfaces that TP_IFACE allows; loopback if there is nothing else. */
static int endpoint_nics(const struct tpf_env *env,
                         struct endpoint_nic list[ENDPOINT_SEEN])
{
    const char *allowed = env->settings->text[TPB_SET_IFACE];
    const struct tpb_interfaces *all = tpb_interfaces_hold();
    int count = 0;

    for (int local = 0; local <= 1 && count == 0; local++)
        for (size_t i = 0; all != NULL && i < all->count; i++) {
            const struct tpb_interface *one = &all->list[i];
            struct endpoint_nic nic;

            if (one->local != (local != 0)
                || !tpb_interface_usable(one, allowed))
                continue;
            snprintf(nic.name, sizeof(nic.name), "%s", one->name);
            nic.megabits = endpoint_megabits(env->card, nic.name);
            count = endpoint_insert(list, count, &nic);
        }
    tpb_interfaces_drop(all);
    return count;
}

/* ---- the endpoints below ----------------------------------------------- */

static void endpoint_sub_init(struct rails_endpoint *endpoint,
                              const struct tpf_env *env,
                              const struct endpoint_nic *nic,
                              struct rails_sub *sub)
{
    memset(sub, 0, sizeof(*sub));
    sub->endpoint = endpoint;
    memcpy(sub->nic, nic->name, sizeof(sub->nic));
    sub->megabits = nic->megabits;
    sub->settings = *env->settings;
    sub->settings.text[TPB_SET_IFACE] = sub->nic;
    sub->env = *env;
    sub->env.upcalls = &rails_upcalls;
    sub->env.core = sub;
    sub->env.lands = false;
    sub->env.settings = &sub->settings;
    sub->env.calls = sub->env.bursts = false;
    tpb_list_init(&sub->env.ready);
    tpb_list_init(&sub->env.gathered);
}

/* The first backend of TP_RAILS_OVER that can serve this interface. */
static const struct tpf_backend *endpoint_backend(const struct rails_sub *sub,
                                                  struct tpb_error *error)
{
    const char *list = sub->settings.text[TPB_SET_RAILS_OVER];

    tpb_fail(error, TP_ERR_NOT_FOUND, "TP_RAILS_OVER=%s names no backend",
             list);
    while (*list != '\0') {
        size_t length = strcspn(list, ",");
        const struct tpf_backend *backend;
        char name[TPT_NAME];

        snprintf(name, sizeof(name), "%.*s", (int)length, list);
        list += length + (list[length] == ',');
        if (length == 0)
            continue;
        backend = tpf_backend_find(name);
        if (backend == NULL || backend == &tpf_rails
            || backend->reach != TPT_REACH_NETWORK
            || backend->flags & (TPF_SELF | TPF_POLLED))
            tpb_fail(error, TP_ERR_NOT_FOUND,
                     "TP_RAILS_OVER: %s is not a network backend of this "
                     "build", name);
        else if (backend->probe(&sub->env, error) == TP_OK)
            return backend;
    }
    return NULL;
}

static tp_status endpoint_sub_open(struct rails_sub *sub,
                                   const struct tpf_backend *backend,
                                   struct tpb_error *error)
{
    struct tpf_endpoint *below = tpb_zalloc(backend->endpoint_size);
    tp_status status;

    if (below == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "rails: no memory");
    below->backend = backend;
    below->env = &sub->env;
    status = backend->open(below, error);
    if (status == TP_OK) {
        sub->open = below;
        return TP_OK;
    }
    backend->close(below);
    tpb_free(below);
    return status;
}

static tp_status endpoint_subs(struct rails_endpoint *endpoint,
                               struct tpb_error *error)
{
    struct endpoint_nic list[ENDPOINT_SEEN];
    int count = endpoint_nics(endpoint->common.env, list);

    tpb_fail(error, TP_ERR_NOT_FOUND, "rails: no network interface");
    for (int i = 0; i < count && endpoint->sub_count < RAILS_SUBS; i++) {
        struct rails_sub *sub = &endpoint->subs[endpoint->sub_count];
        const struct tpf_backend *backend;
        tp_status status;

        endpoint_sub_init(endpoint, endpoint->common.env, &list[i], sub);
        backend = endpoint_backend(sub, error);
        if (backend == NULL)
            continue;              /* no address, say */
        status = endpoint_sub_open(sub, backend, error);
        if (status == TP_OK)
            endpoint->sub_count++;
        else if (status == TP_ERR_NO_MEMORY)
            return status;
        else
            tpb_debug("%s: %s", sub->nic, error != NULL ? error->text : "");
    }
    return endpoint->sub_count > 0 ? TP_OK : TP_ERR_NOT_FOUND;
}

/* ---- probing ----------------------------------------------------------- */

static bool endpoint_named(const char *list)
{
    for (const char *at = list; (at = strstr(at, "rails")) != NULL; at++)
        if (at == list || strchr(",:", at[-1]) != NULL)
            return *list != '^';
    return false;
}

static bool endpoint_wanted(const struct tpb_settings *settings)
{
    return settings->number[TPB_SET_RAILS] > 0
           || endpoint_named(settings->text[TPB_SET_BACKENDS])
           || endpoint_named(settings->text[TPB_SET_REQUIRE]);
}

/* Does the table of costs say how fast it is to other hosts? */
static bool endpoint_measured(const struct tpt_card *card)
{
    for (uint32_t i = 0; i < card->backend_count; i++)
        if (strcmp(card->backends[i].name, tpf_rails.name) == 0)
            return card->backends[i].measured[TPT_OTHER_HOST].megabytes > 0;
    return false;
}

/* What the rails go over, where that could not be used without them. */
static bool endpoint_alone(const struct rails_endpoint *endpoint)
{
    const char *list
        = endpoint->common.env->settings->text[TPB_SET_BACKENDS];

    for (unsigned i = 0; i < endpoint->sub_count; i++)
        if (!tpb_list_allows(list, endpoint->subs[i].open->backend->name))
            return true;
    return false;
}

static tp_status endpoint_probe(const struct tpf_env *env,
                                struct tpb_error *error)
{
    const char *ifaces = env->settings->text[TPB_SET_IFACE];
    struct endpoint_nic list[ENDPOINT_SEEN];
    int count = endpoint_nics(env, list), usable = 0;

    tpb_interfaces_none(ifaces, TP_ERR_NOT_SUPPORTED, error);
    for (int i = 0; i < count && usable < RAILS_SUBS; i++) {
        struct rails_sub sub;

        endpoint_sub_init(NULL, env, &list[i], &sub);
        usable += endpoint_backend(&sub, error) != NULL;
    }
    if (usable == 0)
        return TP_ERR_NOT_SUPPORTED;
    /* Over one interface it is no faster, unless somebody knows better. */
    if (usable == 1 && !endpoint_wanted(env->settings)
        && !endpoint_measured(env->card))
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                        "one network interface only; TP_RAILS=2 makes two "
                        "streams over it");
    return TP_OK;
}

/* ---- opening and closing ----------------------------------------------- */

static void endpoint_set(struct rails_endpoint *endpoint, long ms)
{
    struct itimerspec when = { .it_value.tv_nsec = ms * 1000000 };

    timerfd_settime(endpoint->timer.fd, 0, &when, NULL);
    endpoint->ticking = true;
    endpoint->slowly = ms == ENDPOINT_SLOWLY_MS;
}

void rails_ticks(struct rails_endpoint *endpoint)
{
    if (!endpoint->ticking || endpoint->slowly)
        endpoint_set(endpoint, ENDPOINT_TICK_MS);
}

void rails_ticks_slowly(struct rails_endpoint *endpoint)
{
    if (!endpoint->ticking)
        endpoint_set(endpoint, ENDPOINT_SLOWLY_MS);
}

/* Nobody is to be woken for nothing. */
static void endpoint_calm(struct rails_endpoint *endpoint)
{
    struct itimerspec never = { .it_value.tv_nsec = 0 };

    endpoint->settled = false;
    if (!endpoint->ticking || !rails_calm(endpoint))
        return;
    timerfd_settime(endpoint->timer.fd, 0, &never, NULL);
    endpoint->ticking = false;
}

static void endpoint_timer(struct tpf_watch *watch, uint32_t events)
{
    struct rails_endpoint *endpoint = TPB_CONTAINER(watch,
                                                    struct rails_endpoint,
                                                    timer);
    uint64_t count;

    (void)events;
    if (read(watch->fd, &count, sizeof(count)) != sizeof(count))
        return;
    endpoint->ticking = false;
    rails_tick(endpoint);
}

static tp_status endpoint_open(struct tpf_endpoint *common,
                               struct tpb_error *error)
{
    struct rails_endpoint *endpoint = rails_of(common);
    tp_status status;
    int code;

    tpb_list_init(&endpoint->conns);
    tpb_list_init(&endpoint->due);
    tpb_list_init(&endpoint->strangers);
    tpb_list_init(&endpoint->graves);
    tpb_list_init(&endpoint->dead);
    tpb_random(endpoint->key, sizeof(endpoint->key));
    endpoint->timer.ready = endpoint_timer;
    endpoint->timer.fd = timerfd_create(CLOCK_MONOTONIC,
                                        TFD_CLOEXEC | TFD_NONBLOCK);
    code = endpoint->timer.fd < 0 ? errno
           : tpf_watch_add(common->env, &endpoint->timer, EPOLLIN);
    if (code != 0)
        return tpb_fail_errno(error, code, "rails: a timer");
    status = endpoint_subs(endpoint, error);
    endpoint->wanted = endpoint_wanted(common->env->settings)
                       || endpoint_alone(endpoint)
                       || endpoint->sub_count == 1;
    return status;
}

static void endpoint_bury(struct rails_endpoint *endpoint)
{
    struct tpb_list *node;

    while ((node = tpb_list_take(&endpoint->graves)) != NULL) {
        struct tpf_conn *conn = TPB_CONTAINER(node, struct tpf_conn, ready);

        conn->backend->disconnect(conn);
        tpf_conn_free(conn);
    }
    while ((node = tpb_list_take(&endpoint->dead)) != NULL)
        tpf_conn_free(TPB_CONTAINER(node, struct tpf_conn, ready));
}

static void endpoint_close(struct tpf_endpoint *common)
{
    struct rails_endpoint *endpoint = rails_of(common);

    TPB_LIST_EACH(node, &endpoint->strangers)
        rails_rail_free(TPB_CONTAINER(node, struct rails_rail, link));
    endpoint_bury(endpoint);
    for (unsigned i = 0; i < endpoint->sub_count; i++) {
        endpoint->subs[i].open->backend->close(endpoint->subs[i].open);
        tpb_free(endpoint->subs[i].open);
    }
    endpoint->sub_count = 0;
    if (endpoint->timer.fd >= 0)
        tpf_watch_remove(common->env, &endpoint->timer);
    tpb_close(&endpoint->timer.fd);
}

static size_t endpoint_address(struct tpf_endpoint *common, void *buffer,
                               size_t capacity)
{
    struct rails_endpoint *endpoint = rails_of(common);
    struct rails_card card = { .count = 0 };

    memcpy(card.key, endpoint->key, sizeof(card.key));
    for (unsigned i = 0; i < endpoint->sub_count; i++) {
        struct rails_sub *sub = &endpoint->subs[i];
        struct rails_place *place = &card.places[card.count];

        snprintf(place->backend, sizeof(place->backend), "%s",
                 sub->open->backend->name);
        memcpy(place->nic, sub->nic, sizeof(place->nic));
        place->megabits = sub->megabits;
        place->length = (uint16_t)sub->open->backend->address(
            sub->open, place->address, sizeof(place->address));
        card.count += place->length > 0;
    }
    return rails_card_encode(&card, buffer, capacity);
}

/* Bridges and the like are not on the card: nobody knows how far they lead. */
static uint16_t endpoint_nics_of_card(struct tpf_endpoint *common)
{
    const struct rails_endpoint *endpoint = rails_of(common);
    const struct tpt_card *card = common->env->card;
    uint16_t bits = 0;

    for (uint32_t i = 0; i < card->nic_count; i++)
        for (unsigned j = 0; j < endpoint->sub_count; j++)
            if (card->nics[i].kind == TPT_NIC_IP
                && strcmp(card->nics[i].name, endpoint->subs[j].nic) == 0)
                bits |= (uint16_t)(1u << i);
    return bits;
}

/* ---- moving on --------------------------------------------------------- */

void rails_is_due(struct rails_conn *conn)
{
    if (tpb_list_empty(&conn->due) && !conn->over)
        tpb_list_append(&rails_endpoint_of(conn)->due, &conn->due);
}

static void endpoint_hear(struct rails_sub *sub)
{
    struct tpb_list *node;

    while ((node = tpb_list_take(&sub->env.ready)) != NULL) {
        struct tpf_conn *below = TPB_CONTAINER(node, struct tpf_conn, ready);
        struct rails_rail *rail = below->peer;

        if (rail->group != NULL)
            rails_is_due(rail->group);
        else
            rails_hear_stranger(rail);
    }
}

static void endpoint_strangers(struct rails_endpoint *endpoint)
{
    TPB_LIST_EACH(node, &endpoint->strangers) {
        struct rails_rail *rail = TPB_CONTAINER(node, struct rails_rail, link);

        if (rail->failed)
            rails_hear_stranger(rail);
    }
}

static bool endpoint_progress(struct tpf_endpoint *common)
{
    struct rails_endpoint *endpoint = rails_of(common);
    struct tpb_list now, *node;
    bool any = false;

    for (unsigned i = 0; i < endpoint->sub_count; i++) {
        struct tpf_endpoint *below = endpoint->subs[i].open;

        any |= below->backend->progress(below);
        endpoint_hear(&endpoint->subs[i]);
    }
    endpoint_strangers(endpoint);
    endpoint_bury(endpoint);
    /* What becomes due by the upcalls waits for the next time. */
    tpb_list_init(&now);
    while ((node = tpb_list_take(&endpoint->due)) != NULL)
        tpb_list_append(&now, node);
    while ((node = tpb_list_take(&now)) != NULL) {
        rails_service(TPB_CONTAINER(node, struct rails_conn, due));
        any = true;
    }
    if (endpoint->settled)
        endpoint_calm(endpoint);
    return any;
}

static bool endpoint_arm(struct tpf_endpoint *common)
{
    struct rails_endpoint *endpoint = rails_of(common);
    bool sleepy = tpb_list_empty(&endpoint->due)
                  && tpb_list_empty(&endpoint->graves);

    endpoint->armed = true;
    for (unsigned i = 0; i < endpoint->sub_count; i++) {
        struct rails_sub *sub = &endpoint->subs[i];

        sleepy &= sub->open->backend->arm(sub->open);
        sleepy &= tpb_list_empty(&sub->env.ready);
    }
    return sleepy;
}

static void endpoint_disarm(struct tpf_endpoint *common)
{
    struct rails_endpoint *endpoint = rails_of(common);

    endpoint->armed = false;
    for (unsigned i = 0; i < endpoint->sub_count; i++) {
        struct tpf_endpoint *below = endpoint->subs[i].open;

        below->backend->disarm(below);
    }
}

static void endpoint_freed(struct tpf_endpoint *common, uint64_t block)
{
    struct rails_endpoint *endpoint = rails_of(common);

    for (unsigned i = 0; i < endpoint->sub_count; i++) {
        struct tpf_endpoint *below = endpoint->subs[i].open;

        if (below->backend->freed != NULL)
            below->backend->freed(below, block);
    }
}

const struct tpf_backend tpf_rails = {
    .name = "rails",
    .reach = TPT_REACH_NETWORK,
    .latency_ns = 17500,           /* a sixth more than one of its rails */
    .megabytes = 3000,
    .nic_kind = TPT_NIC_IP,
    .nics_most = RAILS_SUBS,
    .endpoint_size = sizeof(struct rails_endpoint),
    .conn_size = sizeof(struct rails_conn),
    .probe = endpoint_probe,
    .open = endpoint_open,
    .close = endpoint_close,
    .address = endpoint_address,
    .nics = endpoint_nics_of_card,
    .connect = rails_connect,
    .disconnect = rails_disconnect,
    .trying = rails_trying,
    .carrier = rails_carrier,
    .reserve = rails_reserve,
    .commit = rails_commit,
    .send_data = rails_send_data,
    .peek = rails_peek,
    .pop = rails_pop,
    .flushed = rails_flushed,
    .progress = endpoint_progress,
    .freed = endpoint_freed,
    .arm = endpoint_arm,
    .disarm = endpoint_disarm
};
