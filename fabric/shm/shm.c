/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The shm transport: frames through rings in anonymous shared memory.  This
 * file holds the contract's functions and the question of who looks at which
 * ring when; ring.h moves the bytes, wireup.c makes the acquaintance.
 */
#include "config.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <sys/epoll.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fabric/shm/shm.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

/* ---- slots: which bit of the mailbox is which conn ---------------------- */

tp_status shm_slot_take(struct shm_conn *conn)
{
    struct shm_endpoint *endpoint = shm_endpoint(conn);

    for (uint32_t i = 0; i < SHM_SLOTS; i++) {
        uint32_t slot = (endpoint->next_slot + i) % SHM_SLOTS;

        if (endpoint->slots[slot] != NULL)
            continue;
        /* Low slots first keeps the scan of the bits short. */
        endpoint->slots[slot] = conn;
        endpoint->next_slot = slot + 1;
        conn->slot = slot;
        return TP_OK;
    }
    return TP_ERR_BACKEND;
}

void shm_slot_give(struct shm_conn *conn)
{
    struct shm_endpoint *endpoint = shm_endpoint(conn);

    if (conn->slot >= SHM_SLOTS)
        return;
    endpoint->slots[conn->slot] = NULL;
    if (conn->slot < endpoint->next_slot)
        endpoint->next_slot = conn->slot;
    conn->slot = SHM_SLOTS;
}

/* ---- attention ---------------------------------------------------------- */

/*
 * A producer that writes a record and then looks whether it must tell needs a
 * fence between the two, for every record; a consumer that stops watching needs
 * it once.  membarrier(2) lets the one who does it seldom do it for both.  It
 * interrupts the cpus of all who are registered, 2 us for each side.  So where
 * ranks share cpus and sleep often the producers keep their fences, and so does
 * one of whose records few come from one sleep of its consumer's to the next.
 */
static bool shm_register(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED,
                   0, 0) == 0;
}

static bool shm_barriers(const struct tpf_env *env)
{
    return !env->crowded && shm_register();
}

/* The kernel registers a process of one thread at once; with several it waits
 * for all cpus, which takes 5 to 60 ms.  Later it is as good as done. */
static void shm_prepare(void)
{
    if (__libc_single_threaded)
        (void)shm_register();
}

/* After attention was taken back.  Pairs with shm_notify(): either the producer
 * sees TELL or we see its record.  False: the kernel refuses suddenly; nobody
 * is lazy from now on, but whoever just was needs another look. */
static bool shm_barrier(struct shm_endpoint *endpoint, bool lazy)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (!lazy || syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0,
                         0) == 0)
        return true;
    endpoint->barriers = false;
    return false;
}

static void shm_attention(struct shm_conn *conn, enum shm_attention attention)
{
    atomic_store_explicit(&conn->in.side->attention, attention,
                          memory_order_relaxed);
}

static bool shm_is_lazy(const struct shm_conn *conn)
{
    return atomic_load_explicit(&conn->in.side->attention,
                                memory_order_relaxed) == SHM_LAZY;
}

/* One that was evicted once will be again: it is not worth a barrier. */
static void shm_attend(struct shm_conn *conn)
{
    bool lazy = shm_endpoint(conn)->barriers && !conn->evicted && conn->lively
                && atomic_load_explicit(&conn->in.side->registered,
                                        memory_order_relaxed) != 0;

    shm_attention(conn, lazy ? SHM_LAZY : SHM_WATCHED);
}

static uint32_t shm_read_since_sleep(const struct shm_conn *conn)
{
    return conn->in.count - conn->slept;
}

static void shm_unwatch_ring(struct shm_conn *conn)
{
    struct shm_endpoint *endpoint = shm_endpoint(conn);
    bool lazy = shm_is_lazy(conn);

    tpb_list_unlink(&conn->link);
    conn->watched = false;
    conn->evicted = true;
    endpoint->watched_count--;
    shm_attention(conn, SHM_TELL);
    if (!shm_barrier(endpoint, lazy) || shm_ring_ready(&conn->in))
        tpf_conn_ready(&conn->base);
}

/* Looks at this ring from now on, at the price of the one longest watched. */
void shm_watch_ring(struct shm_conn *conn)
{
    struct shm_endpoint *endpoint = shm_endpoint(conn);

    if (conn->watched || conn->state != SHM_OPEN)
        return;
    if (endpoint->watched_count == SHM_WATCHED_RINGS)
        shm_unwatch_ring(TPB_CONTAINER(endpoint->watched.prev,
                                       struct shm_conn, link));
    tpb_list_append(endpoint->watched.next, &conn->link);
    endpoint->watched_count++;
    conn->watched = true;
    shm_attend(conn);
}

/* Sets our bit in the peer's mailbox, and rings if it sleeps.  The order bit,
 * `any`, `asleep` pairs with shm_arm(): asleep, then any.  Others set `any`,
 * too: exchanges only, so that whoever clears it sees the bits of all, and not
 * just of the last one (shm_scan_mailbox()). */
void shm_tell(struct shm_conn *conn)
{
    struct shm_mailbox *mailbox = conn->mailbox;
    uint64_t bit = UINT64_C(1) << (conn->peer_slot % 64);

    atomic_fetch_or(&mailbox->told[conn->peer_slot / 64], bit);
    atomic_exchange(&mailbox->any, 1);
    if (atomic_load(&mailbox->asleep) != 0
        && atomic_exchange(&mailbox->asleep, 0) != 0)
        tpb_eventfd_ring(conn->doorbell);
}

/* After a record: makes sure that the peer will look. */
static inline void shm_notify(struct shm_conn *conn)
{
    /* The kernel's barrier orders what the processor does; this one keeps the
     * compiler from looking before the record is there. */
    atomic_signal_fence(memory_order_seq_cst);
    if (TPB_LIKELY(atomic_load_explicit(&conn->out.side->attention,
                                        memory_order_relaxed) == SHM_LAZY))
        return;
    /* Pairs with shm_barrier(). */
    atomic_thread_fence(memory_order_seq_cst);
    if (TPB_UNLIKELY(atomic_load_explicit(&conn->out.side->attention,
                                          memory_order_relaxed)
                     == SHM_TELL))
        shm_tell(conn);
}

static bool shm_scan_mailbox(struct shm_endpoint *endpoint)
{
    struct shm_mailbox *mailbox = endpoint->mailbox;
    bool found = false;

    atomic_exchange(&mailbox->any, 0);
    for (size_t word = 0; word < TPB_COUNT(mailbox->told); word++) {
        uint64_t bits;

        if (atomic_load_explicit(&mailbox->told[word],
                                 memory_order_relaxed) == 0)
            continue;
        bits = atomic_exchange(&mailbox->told[word], 0);
        while (bits != 0) {
            size_t slot = word * 64 + (size_t)__builtin_ctzll(bits);
            struct shm_conn *conn = endpoint->slots[slot];

            bits &= bits - 1;
            if (conn == NULL || conn->state != SHM_OPEN)
                continue;
            shm_watch_ring(conn);
            tpf_conn_ready(&conn->base);
            found = true;
        }
    }
    return found;
}

/* Wakes the conns whose rings have room again. */
static bool shm_offer_room(struct shm_endpoint *endpoint)
{
    struct tpf_env *env = endpoint->base.env;
    bool found = false;

    TPB_LIST_EACH(node, &endpoint->wanting) {
        struct shm_conn *conn = TPB_CONTAINER(node, struct shm_conn,
                                              want_link);

        if (shm_ring_reserve(&conn->out, conn->wanted) == NULL)
            continue;
        tpb_list_unlink(&conn->want_link);
        env->upcalls->writable(env->core, &conn->base);
        found = true;
    }
    return found;
}

/* Is what comes next an answer?  We have read nothing since we wrote
 * (shm_turns()). */
static inline bool shm_awaits(const struct shm_conn *conn)
{
    return conn->in.head == conn->answered;
}

/* Is there a record?  An answer is asked for. */
static inline bool shm_ready(const struct shm_conn *conn)
{
    if (!shm_ring_ready(&conn->in))
        return false;
    if (shm_awaits(conn)) {
        shm_ring_fetch(&conn->in);
        if (conn->early.on)
            shm_ring_early(&conn->out, conn->early.pair);
    }
    return true;
}

static bool shm_progress(struct tpf_endpoint *base)
{
    struct shm_endpoint *endpoint = (struct shm_endpoint *)base;
    bool moved = false;

    TPB_LIST_EACH(node, &endpoint->watched) {
        struct shm_conn *conn = TPB_CONTAINER(node, struct shm_conn, link);

        if (shm_ready(conn)) {
            tpf_conn_ready(&conn->base);
            moved = true;
        }
        if (TPB_UNLIKELY(!conn->lively)
            && shm_read_since_sleep(conn) >= SHM_LIVELY) {
            conn->lively = true;
            shm_attend(conn);
        }
    }
    if (TPB_UNLIKELY(atomic_load_explicit(&endpoint->mailbox->any,
                                          memory_order_relaxed) != 0))
        moved |= shm_scan_mailbox(endpoint);
    if (TPB_UNLIKELY(!tpb_list_empty(&endpoint->wanting)))
        moved |= shm_offer_room(endpoint);
    return moved;
}

/* Has anybody else written something? */
static bool shm_others_wait(struct shm_conn *conn)
{
    struct shm_endpoint *endpoint = shm_endpoint(conn);

    TPB_LIST_EACH(node, &endpoint->watched) {
        const struct shm_conn *other = TPB_CONTAINER(node, struct shm_conn,
                                                     link);

        if (other != conn && shm_ring_ready(&other->in))
            return true;
    }
    return atomic_load_explicit(&endpoint->mailbox->any,
                                memory_order_relaxed) != 0;
}

/*
 * Who looks for each record of a stream as it is written takes every line away
 * from its writer, who then waits for it again, and both are as slow as that;
 * where several have been written there are none to be taken away.  So, having
 * read much and written nothing, we look away for a while whenever we have read
 * all.  If that was for a few records it is no stream: somebody passes one on
 * at a time, and it has come later for that; it is tried again seldom.
 */
static __attribute__((noinline)) void shm_look_away(struct shm_conn *conn)
{
    uint32_t count = conn->in.count, read = count - conn->looked;
    uint64_t until;

    if (!conn->out.rests) {
        conn->next_look = count + SHM_APART_MOST;
        return;
    }
    if (read < 2
        || (read < SHM_ROW && read * conn->in.last < SHM_ROW_BYTES)) {
        if (conn->apart < SHM_APART_MOST)
            conn->apart = conn->apart > 0 ? 2 * conn->apart : SHM_APART;
        conn->next_look = count + conn->apart;
        return;
    }
    if (conn->next_look - conn->looked == 1)
        conn->apart = 0;               /* all came since the last time */
    conn->looked = count;
    conn->next_look = count + 1;
    until = tpb_now() + SHM_AWAY_NS;
    do
        tpb_pause();
    while (tpb_now() < until && !shm_others_wait(conn));
}

static bool shm_glance(struct tpf_conn *base, unsigned times)
{
    struct shm_conn *conn = shm_conn(base);
    bool waits = times > 1;

    for (; times > 0; times--)
        if (shm_ready(conn))
            return true;
    if (shm_awaits(conn))
        shm_ring_fetch_second(&conn->in);
    else if (TPB_UNLIKELY((int32_t)(conn->in.count - conn->next_look) >= 0)
             && waits)
        shm_look_away(conn);
    return false;
}

static const struct tpb_presence *shm_presence(struct tpf_conn *base)
{
    const struct shm_mailbox *mailbox = shm_conn(base)->mailbox;

    return mailbox != NULL ? &mailbox->presence : NULL;
}

static bool shm_arm(struct tpf_endpoint *base)
{
    struct shm_endpoint *endpoint = (struct shm_endpoint *)base;
    bool idle, lazy = false;

    TPB_LIST_EACH(node, &endpoint->watched) {
        struct shm_conn *conn = TPB_CONTAINER(node, struct shm_conn, link);

        lazy |= shm_is_lazy(conn);
        shm_attention(conn, SHM_TELL);
        conn->lively = shm_read_since_sleep(conn) >= SHM_LIVELY;
        conn->slept = conn->in.count;
    }
    atomic_store(&endpoint->mailbox->asleep, 1);
    idle = shm_barrier(endpoint, lazy);
    TPB_LIST_EACH(node, &endpoint->watched)
        idle &= !shm_ring_ready(&TPB_CONTAINER(node, struct shm_conn,
                                               link)->in);
    TPB_LIST_EACH(node, &endpoint->wanting) {
        struct shm_conn *conn = TPB_CONTAINER(node, struct shm_conn,
                                              want_link);

        idle &= !shm_ring_wait_room(&conn->out, conn->wanted);
    }
    return idle && atomic_load(&endpoint->mailbox->any) == 0;
}

static void shm_disarm(struct tpf_endpoint *base)
{
    struct shm_endpoint *endpoint = (struct shm_endpoint *)base;

    atomic_store_explicit(&endpoint->mailbox->asleep, 0,
                          memory_order_relaxed);
    TPB_LIST_EACH(node, &endpoint->watched)
        shm_attend(TPB_CONTAINER(node, struct shm_conn, link));
}

static void shm_doorbell(struct tpf_watch *watch, uint32_t events)
{
    (void)events;
    tpb_eventfd_drain(watch->fd);
}

/* ---- frames ------------------------------------------------------------- */

static __attribute__((noinline)) void *shm_reserve_end(struct shm_conn *conn,
                                                       size_t size)
{
    void *room;

    shm_extent_end(conn, size);
    room = shm_ring_reserve(&conn->out, size);
    if (TPB_LIKELY(room != NULL))
        return room;
    conn->wanted = size;
    if (tpb_list_empty(&conn->want_link))
        tpb_list_append(&shm_endpoint(conn)->wanting, &conn->want_link);
    return NULL;
}

static void *shm_reserve(struct tpf_conn *base, size_t size)
{
    struct shm_conn *conn = shm_conn(base);

    return TPB_LIKELY(!shm_ring_reaches(&conn->out, size))
           ? shm_ring_room(&conn->out) : shm_reserve_end(conn, size);
}

/*
 * Do the two take turns, and has an answer been written with this frame?  Then
 * the first frame of what we write follows something that we have read, every
 * other time at least; a frame that is being looked at counts as read.  And
 * there is no more to read now: who has written more is not waiting.  One
 * record of a stream that follows a credit is not meant, nor frames of one
 * message between which credit comes.  An answer may be two messages, as a
 * header and its body: nobody knows which is the last, so it has been written
 * with either; after the body the lines are asked for that the next one needs.
 */
static inline bool shm_turns(struct shm_conn *conn)
{
    uint64_t read = conn->in.size == 0 ? conn->in.head
                    : shm_ring_next(conn->in.head, conn->in.size);
    uint64_t word = atomic_load_explicit(shm_ring_word(conn->in.memory, read),
                                         memory_order_relaxed);
    bool follows;

    if (TPB_UNLIKELY((uint32_t)word >= SHM_JUMP)) {
        read = shm_ring_led(read, word);
        word = atomic_load_explicit(shm_ring_word(conn->in.memory, read),
                                    memory_order_relaxed);
    }
    follows = read != conn->answered;
    conn->answered = read;
    if (TPB_LIKELY(conn->before == 0)) {
        conn->second = !follows && conn->follows && conn->whole;
        conn->follows = follows;
        if (!follows)
            conn->turns -= conn->turns > 0;
        else if (conn->turns < SHM_TURNS_MOST)
            conn->turns += 2;
    }
    return (conn->follows || conn->second) && shm_in_turns(conn) && word == 0;
}

static void shm_commit(struct tpf_conn *base, size_t size)
{
    struct shm_conn *conn = shm_conn(base);
    uint64_t from = conn->out.tail, before = conn->before;
    bool lap = shm_ring_commit(&conn->out, size), answer, beside = false;

    shm_notify(conn);
    if (TPB_UNLIKELY(lap))
        shm_extent_lap(conn, tpb_now());
    if (TPB_UNLIKELY(!conn->out.rests) && !base->endpoint->env->aside) {
        beside = tpb_presence_tell(&conn->mailbox->presence);
        base->endpoint->env->beside |= beside;
    }
    /* A mere head is credit, which the reader of a stream sends too. */
    if (size > sizeof(struct tpf_head)) {
        conn->fetch.since = 0;
        conn->next_look = conn->in.count + SHM_STREAM;
    }
    answer = shm_turns(conn);
    conn->whole = before == 0 && !base->more;
    /* One that is not the answer yet, or not all of it: its lines are needed
     * here again, and stores to others would be in the way of the next. */
    if (TPB_UNLIKELY(base->more)) {
        base->more = false;
        conn->several = true;
        conn->before += size;
        return;
    }
    conn->before = 0;
    if (beside)
        return;                /* its lines are where they are needed */
    if (answer && (conn->follows || (conn->whole && size >= SHM_BODY)))
        shm_ring_rest(&conn->out, from, size, before);
    else
        shm_ring_ahead(&conn->out, size);
}

/*
 * What is in the record's first cache line is written last: the consumer may be
 * looking there for the announcement, and would take the line away before that
 * is written.
 */
static void shm_copy(struct tpf_conn *base, unsigned char *to,
                     const void *data, size_t length)
{
    bool turns = shm_in_turns(shm_conn(base));
    size_t lead = TPB_CACHE_LINE - (uintptr_t)to % TPB_CACHE_LINE;

    if (length > lead) {
        const unsigned char *rest = (const unsigned char *)data + lead;

        if (turns && length < TPB_COPY_WHOLE)
            tpb_copy_pieces(to + lead, rest, length - lead);
        else if (turns || length < TPB_WAY_LEAST || base->way == NULL)
            tpb_copy(to + lead, rest, length - lead);
        else
            tpb_way_copy(base->way, to + lead, rest, length - lead);
        length = lead;
    }
    tpb_copy(to, data, length);
}

static bool shm_post(struct tpf_conn *base, struct tpf_head head,
                     const void *data, size_t length)
{
    size_t size = sizeof(head) + length;
    unsigned char *room = shm_reserve(base, size);

    if (TPB_UNLIKELY(room == NULL))
        return false;
    if (TPB_LIKELY(length == sizeof(uint64_t)))
        memcpy(room + sizeof(head), data, sizeof(uint64_t));
    else
        shm_copy(base, room + sizeof(head), data, length);
    /* One by one, out of registers: compilers like to put both on the stack and
     * read them in one, for which the processor waits until older stores are
     * done, those to the ring's lines, too. */
    *(volatile uint64_t *)(void *)room = head.words[0];
    *(volatile uint64_t *)(void *)(room + sizeof(head.words[0]))
        = head.words[1];
    shm_commit(base, size);
    return true;
}

static struct shm_segment *shm_segment(const struct shm_conn *conn)
{
    return (struct shm_segment *)(void *)conn->map;
}

static void shm_hung_up(struct shm_conn *conn)
{
    shm_fail(conn, TP_ERR_PEER_FAILED,
             atomic_load(&shm_segment(conn)->closed[!conn->side]) != 0
             ? "it closed the connection" : "its process ended");
}

static const void *shm_peek(struct tpf_conn *base, size_t *size)
{
    struct shm_conn *conn = shm_conn(base);
    const void *frame = shm_ring_peek(&conn->in);

    if (TPB_LIKELY(frame != NULL)) {
        *size = conn->in.size;
        return frame;
    }
    if (TPB_UNLIKELY(shm_ring_publish(&conn->in)))
        shm_tell(conn);
    if (TPB_UNLIKELY(conn->in.broken) && conn->state != SHM_DEAD)
        shm_fail(conn, TP_ERR_PROTOCOL, "its ring holds what is no record");
    else if (TPB_UNLIKELY(conn->state == SHM_HUNG_UP))
        shm_hung_up(conn);
    return NULL;
}

static void shm_pop(struct tpf_conn *base)
{
    struct shm_conn *conn = shm_conn(base);

    if (shm_ring_pop(&conn->in))
        shm_tell(conn);
}

static void *shm_shared(struct tpf_conn *base, bool mine)
{
    struct shm_conn *conn = shm_conn(base);
    struct shm_segment *segment = shm_segment(conn);

    return segment->channels[mine ? conn->side : !conn->side].bytes;
}

static bool shm_flushed(struct tpf_conn *base)
{
    (void)base;
    return true;   /* the ring is the peer's as much as ours */
}

void shm_fail(struct shm_conn *conn, tp_status status, const char *text)
{
    struct tpf_env *env = conn->base.endpoint->env;

    if (conn->watch.fd >= 0)
        tpf_watch_remove(env, &conn->watch);
    shm_death_forget(conn);
    conn->state = SHM_DEAD;
    env->upcalls->failed(env->core, &conn->base, status, text);
}

static void shm_disconnect(struct tpf_conn *base)
{
    struct shm_conn *conn = shm_conn(base);

    if (conn->watched)
        shm_endpoint(conn)->watched_count--;
    conn->watched = false;
    if (conn->link.next != NULL) {
        tpb_list_unlink(&conn->link);
        tpb_list_unlink(&conn->want_link);
        shm_notes_drop(conn);
    }
    if (conn->watch.fd >= 0 && conn->watch.ready != NULL)
        tpf_watch_remove(base->endpoint->env, &conn->watch);
    shm_death_forget(conn);
    if (conn->map != NULL)
        atomic_store(&shm_segment(conn)->closed[conn->side], 1);
    tpb_close(&conn->watch.fd);
    tpb_close(&conn->doorbell);
    shm_extent_forget(conn);
    shm_segment_unmap(conn);
    shm_mailbox_unmap(conn->mailbox);
    conn->mailbox = NULL;
    shm_slot_give(conn);
}

/* ---- the endpoint ------------------------------------------------------- */

static tp_status shm_probe(const struct tpf_env *env, struct tpb_error *error)
{
    (void)env;
    if (!tpb_shared_memory_works())
        return tpb_fail_errno(error, errno,
                              "no sealed anonymous memory (memfd_create)");
    return TP_OK;
}

static tp_status shm_open(struct tpf_endpoint *base, struct tpb_error *error)
{
    struct shm_endpoint *endpoint = (struct shm_endpoint *)base;
    int code;

    endpoint->barriers = shm_barriers(base->env);
    endpoint->listener.fd = endpoint->timer.fd = endpoint->doorbell.fd = -1;
    endpoint->door.fd = -1;
    endpoint->mailbox_fd = -1;
    tpb_list_init(&endpoint->retries);
    tpb_list_init(&endpoint->strangers);
    tpb_list_init(&endpoint->heard);
    tpb_list_init(&endpoint->watched);
    tpb_list_init(&endpoint->wanting);
    endpoint->slots = tpb_array(SHM_SLOTS, sizeof(*endpoint->slots));
    if (endpoint->slots == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    endpoint->mailbox_fd = tpb_shared_memory("tp-shm-mailbox",
                                             sizeof(struct shm_mailbox));
    if (endpoint->mailbox_fd < 0)
        return tpb_fail_errno(error, errno, "no shared memory");
    endpoint->mailbox = shm_mailbox_map(endpoint->mailbox_fd);
    endpoint->doorbell = (struct tpf_watch){ .fd = tpb_eventfd(),
                                             .ready = shm_doorbell };
    if (endpoint->mailbox == NULL || endpoint->doorbell.fd < 0)
        return tpb_fail_errno(error, errno, "no mailbox or doorbell");
    code = tpf_watch_add(base->env, &endpoint->doorbell, EPOLLIN);
    if (code != 0)
        return tpb_fail_errno(error, code, "epoll");
    base->env->presence = &endpoint->mailbox->presence;
    return shm_listen(endpoint, error);
}

static void shm_close(struct tpf_endpoint *base)
{
    struct shm_endpoint *endpoint = (struct shm_endpoint *)base;

    if (endpoint->strangers.next != NULL)
        shm_unlisten(endpoint);
    if (endpoint->doorbell.fd >= 0)
        tpf_watch_remove(base->env, &endpoint->doorbell);
    tpb_close(&endpoint->doorbell.fd);
    if (endpoint->mailbox != NULL
        && base->env->presence == &endpoint->mailbox->presence)
        base->env->presence = NULL;
    shm_mailbox_unmap(endpoint->mailbox);
    tpb_close(&endpoint->mailbox_fd);
    tpb_free(endpoint->slots);
}

static size_t shm_address(struct tpf_endpoint *base, void *buffer,
                          size_t capacity)
{
    struct shm_endpoint *endpoint = (struct shm_endpoint *)base;

    if (capacity < sizeof(endpoint->address))
        return 0;
    memcpy(buffer, &endpoint->address, sizeof(endpoint->address));
    return sizeof(endpoint->address);
}

const struct tpf_backend tpf_shm = {
    .name = "shm",
    .reach = TPT_REACH_HOST,
    .latency_ns = 150,
    .megabytes = 19000,
    .endpoint_size = sizeof(struct shm_endpoint),
    .conn_size = sizeof(struct shm_conn),
    .prepare = shm_prepare,
    .probe = shm_probe,
    .open = shm_open,
    .close = shm_close,
    .address = shm_address,
    .connect = shm_connect,
    .disconnect = shm_disconnect,
    .reserve = shm_reserve,
    .commit = shm_commit,
    .post = shm_post,
    .peek = shm_peek,
    .pop = shm_pop,
    .flushed = shm_flushed,
    .progress = shm_progress,
    .glance = shm_glance,
    .presence = shm_presence,
    .arm = shm_arm,
    .disarm = shm_disarm,
    .pass = shm_pass,
    .notes = shm_notes,
    .shared = shm_shared,
    .peer_pid = shm_peer_pid,
    .parted = shm_parted,
};
