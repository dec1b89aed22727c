/* SPDX-License-Identifier: BSD-3-Clause */
/* The PMIx server: start, registration, upcalls, events. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher/environment.h"
#include "launcher/pmix_private.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/library.h"
#include "runtime/base/thread.h"

enum { SERVER_PATIENCE = 30 };     /* seconds, for libpmix at start-up */

/* With gds=hash libpmix makes no file; this is where it would make them. */
static const char server_nowhere[] = "/nonexistent/tprun";

/* Where libpmix writes what it has to say. */
#define SERVER_HUSH "PMIX_OUTPUT_STDERR_FD"

static struct {
    pmix_nspace_t job;
    char host[256];
    int nowhere;                   /* /dev/null, for libpmix's words */
    int ranks;
    pmix_data_array_t info;        /* of the job, until it is registered */
    char **environment;
    char **rank_entry;             /* PMIX_RANK in environment */
    char rank_text[32];
    pthread_mutex_t lock;          /* guards calls */
    struct tpb_list calls;
    struct tpl_watch wakeup;       /* an eventfd, rung for each call */
    tpl_pmix_fn *fn;
    void *arg;
} server = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .calls = { &server.calls, &server.calls },
    .wakeup = { .fd = -1 },
    .nowhere = -1,
};

/* What a rank did, on its way to the main thread. */
struct server_event {
    struct tpl_pmix_call call;
    struct tpl_pmix_event event;
    char reason[512];
};

/*
 * What libpmix has been asked and has not answered yet.  Static, because an
 * answer may come after we have given up.
 */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t all;            /* signalled at the last answer */
    unsigned open;
    pmix_status_t status;          /* the first bad answer */
} server_asked = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .status = PMIX_SUCCESS,
};

void tpl_pmix_queue(struct tpl_pmix_call *call)
{
    pthread_mutex_lock(&server.lock);
    tpb_list_append(&server.calls, &call->node);
    pthread_mutex_unlock(&server.lock);
    tpb_eventfd_ring(server.wakeup.fd);
}

static void server_event_run(struct tpl_pmix_call *call)
{
    struct server_event *event = TPB_CONTAINER(call, struct server_event,
                                               call);

    if (server.fn != NULL)
        server.fn(&event->event, server.arg);
    tpb_free(event);
}

bool tpl_pmix_report(const pmix_proc_t *proc, enum tpl_pmix_what what,
                     int status, const char *reason)
{
    struct server_event *event;

    if (!PMIX_CHECK_NSPACE(proc->nspace, server.job)
        || proc->rank >= (pmix_rank_t)server.ranks)
        return false;
    event = tpb_zalloc(sizeof(*event));
    if (event == NULL)
        return false;
    event->call.run = server_event_run;
    snprintf(event->reason, sizeof(event->reason), "%s",
             reason != NULL ? reason : "");
    event->event = (struct tpl_pmix_event){ what, (int)proc->rank, status,
                                            event->reason };
    tpl_pmix_queue(&event->call);
    return true;
}

/* The upcalls; all on libpmix's thread. */

static pmix_status_t server_connected(const pmix_proc_t *proc, void *object,
                                      pmix_info_t info[], size_t count,
                                      pmix_op_cbfunc_t done, void *arg)
{
    (void)object, (void)info, (void)count, (void)done, (void)arg;
    return tpl_pmix_report(proc, TPL_PMIX_CONNECTED, 0, NULL)
           ? PMIX_OPERATION_SUCCEEDED : PMIX_ERR_NOT_FOUND;
}

static pmix_status_t server_finalized(const pmix_proc_t *proc, void *object,
                                      pmix_op_cbfunc_t done, void *arg)
{
    (void)object, (void)done, (void)arg;
    tpl_pmix_report(proc, TPL_PMIX_FINALIZED, 0, NULL);
    return PMIX_OPERATION_SUCCEEDED;
}

/* Not answered when the job ends by it: PMIx_Abort would return and the
 * caller run on into its own, different end.  An abort of some ranks only
 * comes to the same, for a job that lost them is a failed job. */
static pmix_status_t server_abort(const pmix_proc_t *proc, void *object,
                                  int status, const char text[],
                                  pmix_proc_t procs[], size_t count,
                                  pmix_op_cbfunc_t done, void *arg)
{
    (void)object, (void)procs, (void)count, (void)done, (void)arg;
    return tpl_pmix_report(proc, TPL_PMIX_ABORT, status, text)
           ? PMIX_SUCCESS : PMIX_ERR_NOT_FOUND;
}

/* Reached only for ranks of another job: libpmix itself serves our own. */
static pmix_status_t server_modex(const pmix_proc_t *proc,
                                  const pmix_info_t info[], size_t count,
                                  pmix_modex_cbfunc_t done, void *arg)
{
    (void)proc, (void)info, (void)count, (void)done, (void)arg;
    return PMIX_ERR_NOT_FOUND;
}

/* Reached only once a rank has died, since libpmix then counts it as somewhere
 * else.  All who take part live here, so what they gave is all there is. */
static pmix_status_t server_fence(const pmix_proc_t procs[], size_t procs_size,
                                  const pmix_info_t info[], size_t count,
                                  char *data, size_t length,
                                  pmix_modex_cbfunc_t done, void *arg)
{
    pmix_status_t status = PMIX_SUCCESS;

    (void)procs, (void)procs_size;
    for (size_t i = 0; i < count; i++)
        if (PMIX_CHECK_KEY(&info[i], PMIX_LOCAL_COLLECTIVE_STATUS))
            status = info[i].value.data.status;
    done(status, data, length, arg, free, data);
    return PMIX_SUCCESS;
}

/* Events reach the ranks of this machine without our help. */
static pmix_status_t server_events(pmix_status_t *codes, size_t code_count,
                                   const pmix_info_t info[], size_t count,
                                   pmix_op_cbfunc_t done, void *arg)
{
    (void)codes, (void)code_count, (void)info, (void)count, (void)done;
    (void)arg;
    return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t server_no_events(pmix_status_t *codes, size_t code_count,
                                      pmix_op_cbfunc_t done, void *arg)
{
    (void)codes, (void)code_count, (void)done, (void)arg;
    return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t server_notified(pmix_status_t code,
                                     const pmix_proc_t *source,
                                     pmix_data_range_t range,
                                     pmix_info_t info[], size_t count,
                                     pmix_op_cbfunc_t done, void *arg)
{
    (void)code, (void)source, (void)range, (void)info, (void)count;
    (void)done, (void)arg;
    return PMIX_OPERATION_SUCCEEDED;
}

static pmix_server_module_t server_module = {
    .client_connected2 = server_connected,
    .client_finalized = server_finalized,
    .abort = server_abort,
    .fence_nb = server_fence,
    .direct_modex = server_modex,
    .publish = tpl_pmix_publish_up,
    .lookup = tpl_pmix_lookup_up,
    .unpublish = tpl_pmix_unpublish_up,
    .register_events = server_events,
    .deregister_events = server_no_events,
    .notify_event = server_notified,
};

static void server_answered(pmix_status_t status, void *arg)
{
    (void)arg;
    pthread_mutex_lock(&server_asked.lock);
    if (status != PMIX_SUCCESS && server_asked.status == PMIX_SUCCESS)
        server_asked.status = status;
    if (--server_asked.open == 0)
        pthread_cond_signal(&server_asked.all);
    pthread_mutex_unlock(&server_asked.lock);
}

/* Before each call that answers by server_answered(). */
static void server_ask(void)
{
    pthread_mutex_lock(&server_asked.lock);
    server_asked.open++;
    pthread_mutex_unlock(&server_asked.lock);
}

/* After it: what it returned.  False: no use in asking more. */
static bool server_taken(pmix_status_t status)
{
    if (status == PMIX_SUCCESS)
        return true;
    if (status == PMIX_OPERATION_SUCCEEDED)
        status = PMIX_SUCCESS;     /* and there will be no callback */
    server_answered(status, NULL);
    return status == PMIX_SUCCESS;
}

/* The clock of the wait below is one that nobody sets. */
static void server_asked_init(void)
{
    pthread_condattr_t steady;

    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    pthread_cond_init(&server_asked.all, &steady);
    pthread_condattr_destroy(&steady);
}

/* Waits for all answers. */
static pmix_status_t server_wait(void)
{
    struct timespec until;
    pmix_status_t status;
    int code = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += SERVER_PATIENCE;
    pthread_mutex_lock(&server_asked.lock);
    while (server_asked.open > 0 && code != ETIMEDOUT)
        code = pthread_cond_timedwait(&server_asked.all, &server_asked.lock,
                                      &until);
    status = server_asked.open > 0 ? PMIX_ERR_TIMEOUT : server_asked.status;
    pthread_mutex_unlock(&server_asked.lock);
    return status;
}

/*
 * What our libpmix is told and the ranks' are not.  Of its plug-ins those that
 * we have no use for, half a millisecond of loading: our messages stay on this
 * machine, and there is no resource manager above us.  What the user says of
 * them goes first.
 */
static struct server_own {
    const char *name, *value;
    bool set;
} server_own[] = {
    { "PMIX_MCA_pcompress", "^zlib,zlibng", false },
    { "PMIX_MCA_pcompress_base_silence_warning", "1", false },
    { "PMIX_MCA_prm", "^default,slurm", false },
};

static bool server_homeless;

static void server_set_own(void)
{
    server_homeless = tpb_pmix_homeless()
                      && setenv("HOME", server_nowhere, 1) == 0;
    for (size_t i = 0; i < TPB_COUNT(server_own); i++)
        server_own[i].set = getenv(server_own[i].name) == NULL
                            && setenv(server_own[i].name,
                                      server_own[i].value, 1) == 0;
}

static void server_unset_own(void)
{
    for (size_t i = 0; i < TPB_COUNT(server_own); i++)
        if (server_own[i].set)
            unsetenv(server_own[i].name);
    if (server_homeless)
        unsetenv("HOME");
    unsetenv(SERVER_HUSH);
}

/*
 * libpmix writes to standard error about ranks that died in the middle of a
 * message, about strangers on its port, and a page of text when it cannot
 * start.  None of it tells the user what to do, so it is heard only by those
 * who asked for a log.  This is for all that comes later ...
 */
static void server_hush(void)
{
    char text[16];

    if (getenv("TP_LOG") != NULL)
        return;
    server.nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    snprintf(text, sizeof(text), "%d", server.nowhere);
    if (server.nowhere >= 0)
        setenv(SERVER_HUSH, text, 1);
}

/* ... and this for the page; without /dev/null or a descriptor it is heard. */
static pmix_status_t server_init_hushed(pmix_info_t *info, size_t count)
{
    int saved = server.nowhere >= 0
                ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3) : -1;
    pmix_status_t status;

    if (saved >= 0)
        dup2(server.nowhere, STDERR_FILENO);
    status = PMIx_server_init(&server_module, info, count);
    if (saved >= 0)
        dup2(saved, STDERR_FILENO);
    tpb_close(&saved);
    return status;
}

static pmix_status_t server_init(void)
{
    static pmix_topology_t stub = { (char *)"hwloc", NULL };
    pmix_info_t info[7];
    pmix_rank_t rank = 0;
    size_t n = 0;
    pmix_status_t status;

    memset(info, 0, sizeof(info));
    PMIX_INFO_LOAD(&info[n++], PMIX_SERVER_TMPDIR, server_nowhere,
                   PMIX_STRING);
    PMIX_INFO_LOAD(&info[n++], PMIX_SYSTEM_TMPDIR, server_nowhere,
                   PMIX_STRING);
    PMIX_INFO_LOAD(&info[n++], PMIX_SERVER_NSPACE, "tprun-server",
                   PMIX_STRING);
    PMIX_INFO_LOAD(&info[n++], PMIX_SERVER_RANK, &rank, PMIX_PROC_RANK);
    PMIX_INFO_LOAD(&info[n++], PMIX_HOSTNAME, server.host, PMIX_STRING);
    /* Without one libpmix would look at the machine itself, for 20 ms, and
     * leave a file behind.  It keeps the bare pointer. */
    stub.topology = tpt_topology_stub();
    PMIX_LOAD_KEY(info[n].key, PMIX_TOPOLOGY2);
    info[n].value.type = PMIX_TOPO;
    info[n].value.data.topo = &stub;
    n += stub.topology != NULL;
    if (getenv("TP_LOG") != NULL)
        status = PMIx_server_init(&server_module, info, n);
    else
        status = server_init_hushed(info, n);
    while (n-- > 0)
        if (info[n].value.type == PMIX_STRING)
            PMIX_INFO_DESTRUCT(&info[n]);
    return status;
}

/* Stays until all of them are there. */
static void *server_no_work(void *arg)
{
    pthread_mutex_lock(arg);
    pthread_mutex_unlock(arg);
    return arg;
}

/* libpmix does not tell why it fails; threads are what it needs first. */
static int server_try_threads(void)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t threads[4];
    size_t count = 0;
    int code = 0;

    pthread_mutex_lock(&gate);
    while (count < TPB_COUNT(threads)
           && (code = pthread_create(&threads[count], NULL, server_no_work,
                                     &gate)) == 0)
        count++;
    pthread_mutex_unlock(&gate);
    for (size_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    return code;
}

static const char *server_obstacle(void)
{
    switch (server_try_threads()) {
    case 0:
        return "is the loopback interface up (ip link set lo up)?";
    case EPERM:
        return "a sandbox around this process must allow threads, or answer"
               " clone3(2) with ENOSYS, as newer ones of containers do";
    default:
        return tpb_thread_limit();
    }
}

void tpl_pmix_prepare(void)
{
    tpl_environment_clear(false);  /* for our libpmix and our ranks */
    /* The other stores share memory under locks that a killed rank leaves
     * locked, and make files. */
    setenv("PMIX_MCA_gds", "hash", 1);
    server_set_own();
    server_hush();
}

tp_status tpl_pmix_start(const char *job, struct tpb_error *error)
{
    pmix_status_t status;

    if (!tpb_pmix_fits(PMIx_Get_version(),
                       (void *)(uintptr_t)PMIx_Get_version,
                       PMIX_VERSION_MAJOR, PMIX_VERSION_MINOR, error))
        return TP_ERR_NOT_SUPPORTED;

    PMIX_LOAD_NSPACE(server.job, job);
    if (gethostname(server.host, sizeof(server.host) - 1) < 0)
        strcpy(server.host, "localhost");
    server.wakeup.fd = tpb_eventfd();
    if (server.wakeup.fd < 0)
        return tpb_fail_errno(error, errno, "cannot make an eventfd");
    status = server_init();
    if (status != PMIX_SUCCESS)
        return tpb_fail(error, TP_ERR_BACKEND,
                        "libpmix cannot start its server: %s; %s",
                        PMIx_Error_string(status), server_obstacle());
    return TP_OK;
}

/* libpmix does what it is asked in that order; so nobody waits in between. */
static void server_register(int ranks)
{
    pmix_proc_t proc;
    bool on = true;

    for (int i = 0; i < ranks && on; i++) {
        PMIX_LOAD_PROCID(&proc, server.job, (pmix_rank_t)i);
        server_ask();
        on = server_taken(PMIx_server_register_client(
            &proc, geteuid(), getegid(), NULL, server_answered, NULL));
    }
    if (!on)
        return;
    server_ask();
    if (!server_taken(PMIx_server_register_nspace(
            server.job, ranks, server.info.array, server.info.size,
            server_answered, NULL)))
        return;
    server_ask();
    (void)server_taken(PMIx_server_setup_local_support(
        server.job, NULL, 0, server_answered, NULL));
}

static tp_status server_refused(pmix_status_t status, struct tpb_error *error)
{
    if (status == PMIX_SUCCESS)
        return TP_OK;
    return tpb_fail(error, TP_ERR_BACKEND,
                    "libpmix rejects the job: %s",
                    PMIx_Error_string(status));
}

tp_status tpl_pmix_register(const struct tpl_options *options,
                            const struct tpt_bind_plan *plan,
                            struct tpb_error *error)
{
    pmix_status_t status = tpl_pmix_job_info(server.job, server.host, options,
                                             plan, &server.info);

    server_asked_init();
    if (status == PMIX_SUCCESS) {
        server.ranks = plan->count;
        server_register(plan->count);
    }
    return server_refused(status, error);
}

tp_status tpl_pmix_registered(struct tpb_error *error)
{
    pmix_status_t status = server_wait();

    /* After a timeout libpmix may still read it. */
    if (status != PMIX_ERR_TIMEOUT)
        PMIX_DATA_ARRAY_DESTRUCT(&server.info);
    return server_refused(status, error);
}

tp_status tpl_pmix_environment(char ***environment, struct tpb_error *error)
{
    pmix_proc_t proc;
    pmix_status_t status;
    size_t count = 0;

    server_unset_own();
    while (environ[count] != NULL)
        count++;
    /* libpmix frees and grows it as it likes: plain malloc. */
    server.environment = calloc(count + 1, sizeof(char *));
    for (size_t i = 0; server.environment != NULL && i < count; i++) {
        server.environment[i] = strdup(environ[i]);
        if (server.environment[i] == NULL)
            return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    }
    if (server.environment == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    PMIX_LOAD_PROCID(&proc, server.job, 0);
    status = PMIx_server_setup_fork(&proc, &server.environment);
    if (status != PMIX_SUCCESS)
        return tpb_fail(error, TP_ERR_BACKEND,
                        "libpmix gives no environment: %s",
                        PMIx_Error_string(status));
    for (char **entry = server.environment; *entry != NULL; entry++)
        if (strncmp(*entry, "PMIX_RANK=", 10) == 0) {
            free(*entry);
            *entry = server.rank_text;
            server.rank_entry = entry;
        }
    if (server.rank_entry == NULL)
        return tpb_fail(error, TP_ERR_BACKEND,
                        "libpmix's environment lacks PMIX_RANK");
    *environment = server.environment;
    return TP_OK;
}

void tpl_pmix_set_rank(int rank)
{
    snprintf(server.rank_text, sizeof(server.rank_text), "PMIX_RANK=%d",
             rank);
}

const char *tpl_pmix_version(void)
{
    return PMIx_Get_version();
}

static void server_ready(struct tpl_watch *watch, uint32_t events)
{
    (void)watch, (void)events;
    tpl_pmix_dispatch();
}

int tpl_pmix_watch(struct tpl_loop *loop, tpl_pmix_fn *fn, void *arg)
{
    server.fn = fn;
    server.arg = arg;
    server.wakeup.ready = server_ready;
    tpl_pmix_publish_watch(loop);
    return tpl_watch_set(loop, &server.wakeup, EPOLLIN);
}

void tpl_pmix_dispatch(void)
{
    for (;;) {
        struct tpb_list *node;

        tpb_eventfd_drain(server.wakeup.fd);
        pthread_mutex_lock(&server.lock);
        node = tpb_list_take(&server.calls);
        pthread_mutex_unlock(&server.lock);
        if (node == NULL)
            return;
        TPB_CONTAINER(node, struct tpl_pmix_call, node)->run(
            TPB_CONTAINER(node, struct tpl_pmix_call, node));
    }
}

struct server_notice {
    pmix_proc_t source;
    pmix_info_t info[4];
    size_t count;
};

static void server_noticed(pmix_status_t status, void *arg)
{
    struct server_notice *notice = arg;

    (void)status;
    for (size_t i = 0; i < notice->count; i++)
        PMIX_INFO_DESTRUCT(&notice->info[i]);
    free(notice);
}

static void server_notify(int rank, enum tpl_pmix_end end, int code)
{
    static const pmix_status_t codes[] = {
        [TPL_PMIX_BY_SIGNAL] = PMIX_ERR_PROC_ABORTED_BY_SIG,
        [TPL_PMIX_UNFINALIZED] = PMIX_ERR_PROC_TERM_WO_SYNC,
        [TPL_PMIX_BY_STATUS] = PMIX_ERR_EXIT_NONZERO_TERM,
    };
    struct server_notice *notice = calloc(1, sizeof(*notice));
    int status = end == TPL_PMIX_BY_SIGNAL ? 128 + code : code;
    pmix_status_t result;

    if (notice == NULL)
        return;
    PMIX_LOAD_PROCID(&notice->source, server.job, (pmix_rank_t)rank);
    PMIX_INFO_LOAD(&notice->info[notice->count++],
                   PMIX_EVENT_AFFECTED_PROC, &notice->source, PMIX_PROC);
    PMIX_INFO_LOAD(&notice->info[notice->count++], PMIX_EXIT_CODE, &status,
                   PMIX_INT);
    if (end == TPL_PMIX_BY_SIGNAL)
        PMIX_INFO_LOAD(&notice->info[notice->count++], "tp.signal", &code,
                       PMIX_INT);
    result = PMIx_Notify_event(codes[end], &notice->source, PMIX_RANGE_LOCAL,
                               notice->info, notice->count, server_noticed,
                               notice);
    if (result != PMIX_SUCCESS)
        server_noticed(result, notice);
}

void tpl_pmix_ended(int rank, enum tpl_pmix_end end, int code)
{
    tpl_pmix_publish_ended(rank);
    if (end != TPL_PMIX_WELL)
        server_notify(rank, end, code);
}
