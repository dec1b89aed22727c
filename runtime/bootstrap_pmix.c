/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Cards over PMIx: put once, fetched by direct modex when first needed.  No
 * fence.
 *
 * A process may make several contexts one after the other, or at once; the
 * k-th of one rank meets the k-th of another, so the key carries the number.
 * (libpmix 4.2 returns stale values for a key that is put again.)
 */
#include "config.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/door.h"
#include "runtime/base/library.h"
#include "runtime/base/log.h"
#include "runtime/base/thread.h"
#include "runtime/bootstrap_asks.h"
#include "runtime/bootstrap_libpmix.h"
#include "runtime/broker.h"
#include "runtime/core.h"
#include "runtime/report.h"

TPB_LOG_COMPONENT("pmix");

struct pmix_bootstrap {
    struct tpr_bootstrap base;
    struct tpr_broker *broker;     /* const after opening; or NULL */
    struct tpr_asks *asks;         /* the same */
    struct tpb_list live;          /* in pmix_live */
    pmix_proc_t me;
    uint32_t number, turn;         /* of the context, and of the program */
    char key[32];                  /* of the card */
    char left_key[32];             /* put by tp_finalize */
    /* Fetches under way hold the object; the last one frees it. */
    _Atomic uint32_t holders;
    /* Held while the context hears of a card, so that none comes after
     * `closed`.  What it then does may fetch another, on the same thread: so
     * the lists have a lock of their own. */
    pthread_mutex_t lock;
    bool closed;                   /* under lock */
    struct tpb_list retries;       /* pmix_fetch, to start again */
};

struct pmix_fetch {
    struct tpb_list link;          /* in pmix_asked, or in retries */
    struct pmix_bootstrap *bootstrap;
    int rank;
    bool leaving;                  /* not the card: has it left? */
    pmix_proc_t proc;
    pmix_info_t limit[1];          /* PMIX_TIMEOUT */
};

/* libpmix answers after this, if not sooner, and we ask again: a rank may
 * take minutes to call tp_init.  The contact's own deadline ends it. */
enum { PMIX_SLICE_SECONDS = 2, PMIX_LAST_MS = 2500 };   /* see pmix_poll() */
enum { PMIX_LEFT_MS = 1000 };          /* see pmix_left() */

/* The contexts that want to hear of deaths.  libpmix tells a function, not an
 * object; several contexts of a process share the one registration. */
static pthread_mutex_t pmix_live_lock = PTHREAD_MUTEX_INITIALIZER;
static struct tpb_list pmix_live = { &pmix_live, &pmix_live };

/* Those that have called PMIx_Init, in which process, and whether libpmix knows
 * pmix_died(): all also while PMIx_Init or PMIx_Finalize runs. */
static pthread_mutex_t pmix_users_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned pmix_users;
static pid_t pmix_owner;
static uint32_t pmix_turn;         /* this program's, as tprun-rank says */
static bool pmix_registered;

/* The fetches under way, of all contexts, and its lock, that of retries, too:
 * nobody calls out under it.  Those of a context that has ended are among them
 * until they are answered, or libpmix ends. */
static pthread_mutex_t pmix_lists = PTHREAD_MUTEX_INITIALIZER;
static struct tpb_list pmix_asked = { &pmix_asked, &pmix_asked };

static void pmix_drop(struct pmix_bootstrap *self)
{
    if (atomic_fetch_sub(&self->holders, 1) != 1)
        return;
    pthread_mutex_destroy(&self->lock);
    tpb_free(self);
}

/* A number of this rank's job data, whatever integer type the host used. */
static bool pmix_number(const pmix_proc_t *proc, const char *key,
                        int *number)
{
    pmix_value_t *value = NULL;
    pmix_status_t code;
    long got = 0;

    if (PMIx_Get(proc, key, NULL, 0, &value) != PMIX_SUCCESS)
        return false;
    PMIX_VALUE_GET_NUMBER(code, value, got, long);
    PMIx_Value_destruct(value);
    free(value);
    if (code != PMIX_SUCCESS || got < 0 || got > INT32_MAX)
        return false;
    *number = (int)got;
    return true;
}

/* The n-th program of a rank meets the n-th of another, and libpmix 4.2 keeps
 * what an earlier one put: so theirs have other names. */
static void pmix_keys(struct pmix_bootstrap *self, uint32_t turn)
{
    char suffix[16] = "";

    self->turn = turn;
    if (turn > 0)
        snprintf(suffix, sizeof(suffix), ".%u", turn);
    snprintf(self->key, sizeof(self->key), "tp.card.%u%s", self->number,
             suffix);
    snprintf(self->left_key, sizeof(self->left_key), "tp.left.%u%s",
             self->number, suffix);
}

/* It also knows which program this is. */
static tp_status pmix_publish_to_tprun(struct pmix_bootstrap *self,
                                       const void *blob, size_t length,
                                       struct tpb_error *error)
{
    uint32_t turn;
    tp_status status;

    if (self->broker == NULL)
        return TP_OK;
    status = tpr_broker_publish(self->broker, blob, length, error);
    self->base.published = status == TP_OK;
    if (status == TP_OK)
        status = tpr_broker_turn(self->broker, &turn, error);
    if (status == TP_OK)
        pmix_keys(self, turn);
    return status;
}

static tp_status pmix_publish(struct tpr_bootstrap *base, const void *blob,
                              size_t length, struct tpb_error *error)
{
    struct pmix_bootstrap *self = (struct pmix_bootstrap *)base;
    tp_status status = pmix_publish_to_tprun(self, blob, length, error);
    pmix_value_t value = {
        .type = PMIX_BYTE_OBJECT,
        .data.bo = { (char *)(uintptr_t)blob, length }
    };
    pmix_status_t code;

    if (status != TP_OK)
        return status;
    base->published = true;        /* or half so */
    code = PMIx_Put(PMIX_GLOBAL, self->key, &value);
    if (code == PMIX_SUCCESS)
        code = PMIx_Commit();
    if (code != PMIX_SUCCESS)
        return tpb_fail(error, TP_ERR_BACKEND,
                        "PMIx rejects this rank's card: %s",
                        PMIx_Error_string(code));
    return TP_OK;
}

static void pmix_fetch_end(struct pmix_fetch *fetch)
{
    struct pmix_bootstrap *self = fetch->bootstrap;

    tpb_free(fetch);
    pmix_drop(self);
}

/* That it has none is an answer, too. */
static void pmix_fetched_left(const struct pmix_fetch *fetch,
                              pmix_status_t code, const pmix_value_t *value)
{
    enum tpr_left left = code == PMIX_SUCCESS ? TPR_LEFT_WELL : TPR_LEFT_NOT;

    if (left == TPR_LEFT_WELL && value != NULL && value->type == PMIX_BOOL
        && !value->data.flag)
        left = TPR_LEFT_LOSING;
    tpr_rank_left(fetch->bootstrap->base.context, fetch->rank, left);
}

static void pmix_fetch_failed(struct pmix_fetch *fetch, pmix_status_t code)
{
    bool gone = code == PMIX_ERR_LOST_CONNECTION
                || code == PMIX_ERR_UNREACH;
    char text[128];

    snprintf(text, sizeof(text), "rank %d published no card (%s): it ended,"
             " or never called tp_init", fetch->rank,
             PMIx_Error_string(code));
    tpr_card_arrived(fetch->bootstrap->base.context, fetch->rank,
                     gone ? TP_ERR_PEER_FAILED : TP_ERR_BACKEND, NULL, 0,
                     text);
}

/* From one list to another, or to none. */
static void pmix_fetch_move(struct pmix_fetch *fetch, struct tpb_list *to)
{
    pthread_mutex_lock(&pmix_lists);
    tpb_list_unlink(&fetch->link);
    if (to != NULL)
        tpb_list_append(to, &fetch->link);
    pthread_mutex_unlock(&pmix_lists);
}

/* Not there yet: tprun says so after the slice, Open MPI's mpirun at once, also
 * of a rank on another host that is between two programs.  pmix_poll() asks
 * again. */
static bool pmix_not_yet(const struct pmix_bootstrap *self,
                         pmix_status_t code)
{
    return code == PMIX_ERR_TIMEOUT || code == PMIX_ERR_NOT_FOUND
           || (code == PMIX_ERR_PROC_ENTRY_NOT_FOUND && self->turn > 0);
}

/* On libpmix's thread. */
static void pmix_fetched(pmix_status_t code, pmix_value_t *value, void *arg)
{
    struct pmix_fetch *fetch = arg;
    struct pmix_bootstrap *self = fetch->bootstrap;
    bool again = false;

    pmix_fetch_move(fetch, NULL);
    pthread_mutex_lock(&self->lock);
    if (!self->closed) {
        if (fetch->leaving) {
            pmix_fetched_left(fetch, code, value);
        } else if (code == PMIX_SUCCESS && value != NULL
                   && value->type == PMIX_BYTE_OBJECT) {
            tpr_card_arrived(self->base.context, fetch->rank, TP_OK,
                             value->data.bo.bytes, value->data.bo.size, "");
        } else if (pmix_not_yet(self, code)) {
            pmix_fetch_move(fetch, &self->retries);
            again = true;
        } else {
            pmix_fetch_failed(fetch, code);
        }
    }
    pthread_mutex_unlock(&self->lock);
    if (!again)
        pmix_fetch_end(fetch);
}

/* Asks; the answer comes on libpmix's thread, maybe before this returns. */
static void pmix_fetch_ask(struct pmix_fetch *fetch)
{
    struct pmix_bootstrap *self = fetch->bootstrap;
    pmix_status_t code;

    pmix_fetch_move(fetch, &pmix_asked);
    code = PMIx_Get_nb(&fetch->proc,
                       fetch->leaving ? self->left_key : self->key,
                       fetch->limit, 1, pmix_fetched, fetch);
    if (code == PMIX_SUCCESS)
        return;
    pmix_fetch_move(fetch, NULL);
    if (fetch->leaving)
        pmix_fetched_left(fetch, code, NULL);
    else
        pmix_fetch_failed(fetch, code);
    pmix_fetch_end(fetch);
}

/* False: out of memory. */
static bool pmix_fetch_new(struct pmix_bootstrap *self, int rank,
                           bool leaving)
{
    struct pmix_fetch *fetch = tpb_zalloc(sizeof(*fetch));
    int seconds = PMIX_SLICE_SECONDS;

    if (fetch == NULL)
        return false;
    tpb_list_init(&fetch->link);
    fetch->bootstrap = self;
    fetch->rank = rank;
    fetch->leaving = leaving;
    fetch->proc = tpr_pmix_proc(&self->me, (pmix_rank_t)rank);
    PMIX_INFO_LOAD(&fetch->limit[0], PMIX_TIMEOUT, &seconds, PMIX_INT);
    atomic_fetch_add(&self->holders, 1);
    pmix_fetch_ask(fetch);
    return true;
}

static void pmix_fetch_start(struct tpr_bootstrap *base, int rank)
{
    struct pmix_bootstrap *self = (struct pmix_bootstrap *)base;

    if (self->broker != NULL)
        tpr_broker_fetch(self->broker, rank);
    if (!pmix_fetch_new(self, rank, false))
        tpr_card_arrived(base->context, rank, TP_ERR_NO_MEMORY, NULL, 0,
                         "out of memory");
}

/* Asks again for the cards that were not there.  The core calls it now and
 * then while a first contact is under way, and gives up at its deadline. */
static uint64_t pmix_poll(struct tpr_bootstrap *base)
{
    struct pmix_bootstrap *self = (struct pmix_bootstrap *)base;
    struct tpb_list again, *node;

    if (self->broker != NULL)
        tpr_broker_poll(self->broker);
    tpb_list_init(&again);
    pthread_mutex_lock(&pmix_lists);
    while ((node = tpb_list_take(&self->retries)) != NULL)
        tpb_list_append(&again, node);
    pthread_mutex_unlock(&pmix_lists);
    while ((node = tpb_list_take(&again)) != NULL)
        pmix_fetch_ask(TPB_CONTAINER(node, struct pmix_fetch, link));
    return 0;
}

/* ---- leaving ------------------------------------------------------------ */

static void pmix_leave(struct tpr_bootstrap *base, bool losing)
{
    struct pmix_bootstrap *self = (struct pmix_bootstrap *)base;
    bool well = !losing;
    pmix_value_t value;
    pmix_status_t code;

    /* Who asks, asks tprun; a key would cost its server a round. */
    if (self->broker != NULL) {
        tpr_broker_leave(self->broker, losing);
        return;
    }
    PMIX_VALUE_LOAD(&value, &well, PMIX_BOOL);
    code = PMIx_Put(PMIX_GLOBAL, self->left_key, &value);
    if (code == PMIX_SUCCESS)
        code = PMIx_Commit();
    if (code != PMIX_SUCCESS)
        tpb_info("PMIx could not be told that this rank leaves: %s",
                 PMIx_Error_string(code));
}

static unsigned pmix_left(struct tpr_bootstrap *base, int rank)
{
    struct pmix_bootstrap *self = (struct pmix_bootstrap *)base;

    unsigned limit = 0;

    /* PMIx waits a while for what was never put; tprun answers at once. */
    if (self->broker != NULL)
        limit = tpr_broker_left(self->broker, rank);
    if (limit == 0 && pmix_fetch_new(self, rank, true))
        limit = PMIX_LEFT_MS;
    return limit;
}

/* ---- asking ------------------------------------------------------------- */

/* On one host all ranks find each other without being asked. */
static void pmix_listen(struct tpr_bootstrap *base)
{
    struct pmix_bootstrap *self = (struct pmix_bootstrap *)base;

    if (self->asks != NULL && base->size > base->local_size)
        tpr_asks_listen(self->asks);
}

static bool pmix_ask(struct tpr_bootstrap *base, int rank, bool gave_up)
{
    struct pmix_bootstrap *self = (struct pmix_bootstrap *)base;

    if (self->broker != NULL)
        return tpr_broker_call(self->broker, rank, gave_up);
    if (self->asks != NULL)
        tpr_asks_say(self->asks, rank, gave_up);
    return false;                  /* nobody knows whether it listens */
}

/* Slurm's PMIx carries no words between ranks. */
static bool pmix_mute(struct tpr_bootstrap *base)
{
    struct pmix_bootstrap *self = (struct pmix_bootstrap *)base;

    return self->broker == NULL
           && (self->asks == NULL || tpr_asks_mute(self->asks));
}

/* ---- deaths ------------------------------------------------------------- */

/* On libpmix's thread: a rank ended in a way it should not have.  Peers that
 * are connected to it know by their connection; this is for those who still
 * wait for its card. */
static void pmix_died(size_t id, pmix_status_t code,
                      const pmix_proc_t *source, pmix_info_t info[],
                      size_t count, pmix_info_t *results, size_t result_count,
                      pmix_event_notification_cbfunc_fn_t done, void *arg)
{
    const pmix_proc_t *dead = source;

    (void)id, (void)results, (void)result_count;
    for (size_t i = 0; i < count; i++)
        if (strcmp(info[i].key, PMIX_EVENT_AFFECTED_PROC) == 0
            && info[i].value.type == PMIX_PROC)
            dead = info[i].value.data.proc;
    pthread_mutex_lock(&pmix_live_lock);
    TPB_LIST_EACH(node, &pmix_live) {
        struct pmix_bootstrap *self = TPB_CONTAINER(node,
                                                    struct pmix_bootstrap,
                                                    live);

        if (dead != NULL && tpr_pmix_same_job(dead, &self->me))
            tpr_rank_died(self->base.context, (int)dead->rank,
                          PMIx_Error_string(code));
    }
    pthread_mutex_unlock(&pmix_live_lock);
    if (done != NULL)
        done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, arg);
}

static void pmix_heard(pmix_status_t code, size_t id, void *arg)
{
    (void)code, (void)id, (void)arg;
}

/* Codes by name: libpmix 4.2 never calls a handler for all codes.  It forgets
 * them when it ends. */
static void pmix_hear_of_deaths(struct pmix_bootstrap *self)
{
    static pmix_status_t codes[] = { PMIX_ERR_PROC_ABORTED_BY_SIG,
                                     PMIX_ERR_PROC_TERM_WO_SYNC,
                                     PMIX_ERR_EXIT_NONZERO_TERM };
    bool registered;

    pthread_mutex_lock(&pmix_live_lock);
    tpb_list_append(&pmix_live, &self->live);
    pthread_mutex_unlock(&pmix_live_lock);
    pthread_mutex_lock(&pmix_users_lock);
    registered = pmix_registered;
    pmix_registered = true;
    if (!registered)
        PMIx_Register_event_handler(codes, TPB_COUNT(codes), NULL, 0,
                                    pmix_died, pmix_heard, NULL);
    pthread_mutex_unlock(&pmix_users_lock);
}

static void pmix_abort(struct tpr_bootstrap *base, int code,
                       const char *reason)
{
    /* tprun shows the reason; other launchers do not. */
    if (!tpr_report_abort(code, reason) && getenv("TP_LAUNCHER") == NULL)
        fprintf(stderr, "tp: rank %d ended the job with status %d%s%s\n",
                base->rank, code, *reason != '\0' ? ": " : "", reason);
    PMIx_Abort(code, reason, NULL, 0);
    /* The launcher kills us; should it not, we go by ourselves. */
    sleep(10);
    _exit(code);
}

/* libpmix's thread may have an answer just when the context ends: a card that
 * was asked for, when the peer had come to us by itself meanwhile. */
static void pmix_quiet(struct tpr_bootstrap *base)
{
    struct pmix_bootstrap *self = (struct pmix_bootstrap *)base;

    tpr_asks_close(self->asks);
    self->asks = NULL;
    pthread_mutex_lock(&pmix_live_lock);
    tpb_list_unlink(&self->live);
    pthread_mutex_unlock(&pmix_live_lock);
    pthread_mutex_lock(&self->lock);
    self->closed = true;
    pthread_mutex_unlock(&self->lock);
}

struct pmix_start {
    pmix_proc_t *me;
    pmix_status_t code;
};

static void *pmix_start(void *arg)
{
    struct pmix_start *start = arg;

    start->code = PMIx_Init(start->me, NULL, 0);
    return NULL;
}

/* libpmix's thread inherits the signal mask of the one that starts it.  It must
 * not take a signal that the program blocks later, to wait for it; nor may the
 * caller block any while it waits for the launcher. */
static pmix_status_t pmix_start_apart(pmix_proc_t *me)
{
    struct pmix_start start = { me, PMIX_ERR_OUT_OF_RESOURCE };
    pthread_t thread;

    if (tpb_thread_start(&thread, pmix_start, &start) == 0)
        pthread_join(thread, NULL);
    else
        pmix_start(&start);
    return start.code;
}

/* A child that was forked meanwhile has libpmix as it was, but not its thread:
 * PMIx_Init would only count, and whatever is asked then waits for ever. */
static bool pmix_is_inherited(void)
{
    bool inherited;

    pthread_mutex_lock(&pmix_users_lock);
    inherited = pmix_users > 0 && pmix_owner != getpid();
    pthread_mutex_unlock(&pmix_users_lock);
    return inherited;
}

static pmix_status_t pmix_begin(struct pmix_bootstrap *self,
                                const struct tpb_settings *settings)
{
    pmix_status_t code;

    pthread_mutex_lock(&pmix_users_lock);
    code = pmix_start_apart(&self->me);
    if (code == PMIX_SUCCESS && pmix_users++ == 0) {
        pmix_owner = getpid();
        pmix_turn = tpr_report_joined(settings);
    }
    pmix_keys(self, pmix_turn);
    pthread_mutex_unlock(&pmix_users_lock);
    return code;
}

/*
 * Open MPI's daemon keeps a question for another host after who asked it has
 * left; if the answer comes then, it locks itself up in pmix_pending_resolve(),
 * and its job never ends (libpmix 4.2.2; one in 40 here).  Ranks that are there
 * answer in milliseconds.
 */
static void pmix_await_answers(void)
{
    uint64_t limit = tpb_now() + PMIX_LAST_MS * UINT64_C(1000000);
    bool asked;

    do {
        pthread_mutex_lock(&pmix_lists);
        asked = !tpb_list_empty(&pmix_asked);
        pthread_mutex_unlock(&pmix_lists);
    } while (asked && tpb_now() < limit && usleep(1000) == 0);
}

/* libpmix counts as well, and ends with the last one.  It forgets then what it
 * was asked, and tells nobody; as long as another context uses it, or the
 * program, by MPI or by itself, the answers still come. */
static void pmix_end(bool foreign)
{
    struct tpb_list *node;
    pmix_status_t code;
    bool last;

    pthread_mutex_lock(&pmix_users_lock);
    last = --pmix_users == 0;
    if (last) {
        if (foreign)
            pmix_await_answers();
        tpr_report_left();
        pmix_registered = false;
    }
    code = PMIx_Finalize(NULL, 0);
    last = last && !PMIx_Initialized();
    while (last && (node = tpb_list_take(&pmix_asked)) != NULL)
        pmix_fetch_end(TPB_CONTAINER(node, struct pmix_fetch, link));
    pthread_mutex_unlock(&pmix_users_lock);
    if (code != PMIX_SUCCESS)
        tpb_info("PMIx_Finalize: %s", PMIx_Error_string(code));
}

static void pmix_close(struct tpr_bootstrap *base)
{
    struct pmix_bootstrap *self = (struct pmix_bootstrap *)base;
    bool foreign = self->broker == NULL;
    struct tpb_list *node;

    pmix_quiet(base);
    tpr_broker_close(self->broker);
    self->broker = NULL;
    pmix_end(foreign);
    while ((node = tpb_list_take(&self->retries)) != NULL)
        pmix_fetch_end(TPB_CONTAINER(node, struct pmix_fetch, link));
    pmix_drop(self);
}

static const struct tpr_bootstrap_ops pmix_ops = {
    .name = "pmix",
    .publish = pmix_publish,
    .fetch = pmix_fetch_start,
    .poll = pmix_poll,
    .listen = pmix_listen,
    .ask = pmix_ask,
    .mute = pmix_mute,
    .leave = pmix_leave,
    .left = pmix_left,
    .abort = pmix_abort,
    .quiet = pmix_quiet,
    .close = pmix_close,
};

/* The size of a job that tprun itself runs, all of it on this host; 0: another
 * one's.  A variable costs less than questions, each of which goes to libpmix's
 * thread and back.  Programs that our ranks start under other launchers
 * inherit the variables: hence the look at the name. */
static int pmix_ours(const struct pmix_bootstrap *self,
                     const struct tpb_settings *settings)
{
    struct tpb_door door;

    return tpb_door_of_job(settings->text[TPB_SET_DOOR], self->me.nspace, &door)
           ? door.size : 0;
}

/* Asks PMIx: false if it does not tell the job's size. */
static bool pmix_sizes(struct pmix_bootstrap *self)
{
    struct tpr_bootstrap *base = &self->base;
    pmix_proc_t job = tpr_pmix_proc(&self->me, PMIX_RANK_WILDCARD);

    if (!pmix_number(&job, PMIX_JOB_SIZE, &base->size))
        return false;
    if (!pmix_number(&job, PMIX_LOCAL_SIZE, &base->local_size))
        base->local_size = 1;
    if (!pmix_number(&self->me, PMIX_LOCAL_RANK, &base->local_rank))
        base->local_rank = 0;
    return true;
}

/* Servers such as Open MPI's hand it over in files, in a folder of theirs. */
static bool pmix_is_full(const char *folder)
{
    struct statvfs about;

    return folder != NULL && statvfs(folder, &about) == 0
           && (about.f_bavail == 0
               || (about.f_files > 0 && about.f_favail == 0));
}

static tp_status pmix_sizeless(struct tpb_error *error)
{
    const char *folder = getenv("PMIX_SERVER_TMPDIR");
    bool full = pmix_is_full(folder);

    return tpb_fail(error, TP_ERR_BACKEND,
                    "the PMIx server does not tell the job's size%s%s%s",
                    full ? ": no room is left where its files are (" : "",
                    full ? folder : "", full ? ")" : "");
}

static tp_status pmix_job(struct pmix_bootstrap *self,
                          const struct tpb_settings *settings,
                          struct tpb_error *error)
{
    struct tpr_bootstrap *base = &self->base;
    int ours = pmix_ours(self, settings);
    size_t length, from = 0;

    base->rank = (int)self->me.rank;
    if (ours > 0) {
        base->size = base->local_size = ours;
        base->local_rank = base->rank;
    }
    if ((ours == 0 && !pmix_sizes(self)) || base->rank >= base->size)
        return pmix_sizeless(error);
    /* The end of a long name is what tells jobs apart. */
    length = strlen(self->me.nspace);
    if (length >= sizeof(base->job))
        from = length - sizeof(base->job) + 1;
    memcpy(base->job, self->me.nspace + from, length - from);
    return TP_OK;
}

static void pmix_denied_told(pmix_status_t code, void *arg)
{
    (void)arg;
    if (code != PMIX_SUCCESS && code != PMIX_OPERATION_SUCCEEDED)
        tpb_debug("tprun does not hear that its door is denied: %s",
                  PMIx_Error_string(code));
}

/* tprun has doors, and its messages there are of another version. */
static bool pmix_door_differs(const struct tpb_settings *settings,
                              const char *job)
{
    const char *text = settings->text[TPB_SET_DOOR];
    struct tpb_door door;

    return *text != '\0' && strncmp(job, "tprun-", 6) == 0
           && !tpb_door_parse(text, &door);
}

/* Ranks that use tprun's doors alone shall not wait for this one's card. */
static void pmix_denied(const char *why)
{
    pmix_info_t info[1];

    PMIX_INFO_LOAD(&info[0], TPB_DOOR_DENIED_KEY, why, PMIX_STRING);
    pmix_denied_told(PMIx_Publish_nb(info, 1, pmix_denied_told, NULL), NULL);
    PMIx_Value_destruct(&info[0].value);
}

tp_status tpr_bootstrap_pmix(const struct tpb_settings *settings,
                             tp_context *context, uint32_t number,
                             struct tpr_bootstrap **result,
                             struct tpb_error *error)
{
    struct pmix_bootstrap *self = tpb_zalloc(sizeof(*self));
    struct tpb_error why = { "" };
    pmix_status_t code;
    tp_status status;

    if (self == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    self->base.ops = &pmix_ops;
    self->base.context = context;  /* before libpmix's thread tells of deaths */
    tpb_list_init(&self->live);
    tpb_list_init(&self->retries);
    self->number = number;
    atomic_init(&self->holders, 1);
    pthread_mutex_init(&self->lock, NULL);
    if (pmix_is_inherited()) {
        pmix_drop(self);
        return tpb_fail(error, TP_ERR_BACKEND,
                        "this process was forked from one that uses libpmix, "
                        "which works here only after execve(); or fork before "
                        "tp_init(), or after tp_finalize()");
    }
    /* The launcher may have another one. */
    status = tpr_pmix_load(error);
    if (status != TP_OK) {
        pmix_drop(self);
        return status;
    }
    if (!tpb_pmix_fits(PMIx_Get_version(),
                       (void *)(uintptr_t)PMIx_Get_version,
                       PMIX_VERSION_MAJOR, PMIX_VERSION_MINOR, error)) {
        pmix_drop(self);
        return TP_ERR_BACKEND;
    }
    if (!PMIx_Initialized() && tpb_pmix_homeless()) {
        pmix_drop(self);
        return tpb_fail(error, TP_ERR_BACKEND, "libpmix needs to know the home"
                        " of user %d, who is not in the list of users (passwd);"
                        " set HOME, to any folder", (int)geteuid());
    }
    code = pmix_begin(self, settings);
    if (code != PMIX_SUCCESS) {
        const char *server = getenv("PMIX_VERSION");

        pmix_drop(self);
        if (code == PMIX_ERR_UNREACH && server == NULL)
            return tpb_fail(error, TP_ERR_NOT_FOUND,
                            "PMIx_Init: no launcher has told this process of "
                            "a PMIx server; start it with tprun, or set "
                            "TP_BOOTSTRAP=auto, which works without one");
        return tpb_fail(error, code == PMIX_ERR_UNREACH ? TP_ERR_NOT_FOUND
                                                        : TP_ERR_BACKEND,
                        "PMIx_Init: %s (the launcher's libpmix is %s, this "
                        "rank's %s; install the same one on all hosts)",
                        PMIx_Error_string(code),
                        server != NULL ? server : "of unknown version",
                        PMIx_Get_version());
    }
    status = pmix_job(self, settings, error);
    if (status != TP_OK) {
        pmix_close(&self->base);
        return status;
    }
    self->asks = tpr_asks_open(context, self->me.nspace, self->base.rank,
                               number);
    pmix_hear_of_deaths(self);
    /* For peers that PMIx does not reach. */
    status = tpr_broker_open(settings, context, self->base.rank, number, false,
                             &self->broker, &why);
    if (status == TP_ERR_UNREACHABLE) {
        tpb_warn("%s: only ranks with TP_BOOTSTRAP=pmix can meet this one",
                 why.text);
        pmix_denied(why.text);
    } else if (status == TP_ERR_NOT_FOUND
               && pmix_door_differs(settings, self->me.nspace)) {
        pmix_denied("its tp is of another version than tprun's");
    }
    if (status != TP_OK && status != TP_ERR_NOT_FOUND
        && status != TP_ERR_UNREACHABLE) {
        pmix_close(&self->base);
        return tpb_fail(error, status, "%s", why.text);
    }
    *result = &self->base;
    return TP_OK;
}
