/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * libfabric, loaded when it is first needed.
 *
 * Debian's libfabric drags in six other libraries, and sets up a dozen
 * providers; linked, every process of a job would pay for that before main().
 * So it is loaded with dlopen(3), on a thread, once two processes really want
 * to meet, and without what takes long for nothing (quick.h).
 */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "fabric/ofi/ofi.h"
#include "fabric/ofi/quick.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/library.h"
#include "runtime/base/thread.h"

#define LIBRARY_NAME "libfabric.so.1"

enum {
    LIBRARY_WAITERS = 64,
    LIBRARY_WAIT_MS = 10000,       /* for who blocks until it is there */
    LIBRARY_PIECE = 1 << 20        /* bytes of one remote read */
};

TPB_LOG_COMPONENT("ofi");

enum library_state {
    LIBRARY_ABSENT, LIBRARY_LOADING, LIBRARY_READY, LIBRARY_FAILED
};

/* All under the lock, but functions and words, which do not change once the
 * state is READY or FAILED. */
static struct {
    pthread_mutex_t lock;
    enum library_state state;
    pthread_t thread;
    pid_t owner;                   /* whose thread that is */
    bool joinable;
    int waiters[LIBRARY_WAITERS];  /* eventfds */
    int count;
    struct ofi_library functions;
    struct tpb_error words;
    char **environment;            /* the last that was made here; it stays */
} library = { .lock = PTHREAD_MUTEX_INITIALIZER };

const struct ofi_library *ofi_lib;

/* A child that was forked has what its parent had loaded, but not the thread.
 * What that was at work on is in no state to be gone on with. */
static void library_inherit(void)
{
    if (library.state == LIBRARY_ABSENT || library.owner == getpid())
        return;
    library.owner = getpid();
    library.joinable = false;
    library.count = 0;
    if (library.state != LIBRARY_LOADING)
        return;
    library.state = LIBRARY_FAILED;
    tpb_fail(&library.words, TP_ERR_BACKEND, LIBRARY_NAME " was being loaded "
             "when this process was forked, so it cannot be used here");
}

static void library_forks(void)
{
    pthread_mutex_lock(&library.lock);
}

static void library_forked(void)
{
    pthread_mutex_unlock(&library.lock);
}

/* A child does not get the lock as the parent's thread had it just then. */
static void library_watch_forks(void)
{
    (void)pthread_atfork(library_forks, library_forked, library_forked);
}

static void library_locked(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, library_watch_forks);
    pthread_mutex_lock(&library.lock);
    library_inherit();
}

/* ---- looking ----------------------------------------------------------- */

static bool library_in(const char *folder)
{
    char path[1024];

    snprintf(path, sizeof(path), "%s/%s", folder, LIBRARY_NAME);
    return access(path, R_OK) == 0;
}

/* Is it in the dynamic linker's cache? */
static bool library_cached(void)
{
    size_t length = 0;
    char *cache = tpb_read_file("/etc/ld.so.cache", &length);
    bool found = cache != NULL
                 && memmem(cache, length, "/" LIBRARY_NAME,
                           sizeof("/" LIBRARY_NAME)) != NULL;

    tpb_free(cache);
    return found;
}

/* Where the dynamic linker looks: this program's folders, the system's among
 * them, and its cache, which is many pages to read; and where it was once. */
static bool library_look(void)
{
    bool found = false;
    void *self = dlopen(NULL, RTLD_LAZY);
    Dl_serinfo size, *folders;

    if (self == NULL)
        return library_cached();
    if (dlinfo(self, RTLD_DI_SERINFOSIZE, &size) == 0
        && (folders = tpb_zalloc(size.dls_size)) != NULL) {
        folders->dls_size = size.dls_size;
        folders->dls_cnt = size.dls_cnt;
        if (dlinfo(self, RTLD_DI_SERINFO, folders) == 0)
            for (unsigned i = 0; i < folders->dls_cnt && !found; i++)
                found = library_in(folders->dls_serpath[i].dls_name);
        tpb_free(folders);
    }
    dlclose(self);
    return found || library_cached()
           || access(LIBFABRIC_LIBRARY_PLACE, R_OK) == 0;
}

/* Every backend asks; one look per process does.  0: not yet, 1: no, 2: yes.
 * Relaxed: who looks at the same time finds the same. */
static bool library_installed(void)
{
    static atomic_int known;
    int answer = atomic_load_explicit(&known, memory_order_relaxed);

    if (answer == 0) {
        answer = library_look() ? 2 : 1;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == 2;
}

tp_status ofi_library_probe(struct tpb_error *error)
{
    enum library_state state;

    library_locked();
    state = library.state;
    pthread_mutex_unlock(&library.lock);
    if (state == LIBRARY_READY)
        return TP_OK;
    if (state == LIBRARY_FAILED)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED, "%s",
                        library.words.text);
    if (!library_installed())
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                        "%s is not installed (Debian: apt-get install "
                        "libfabric1)", LIBRARY_NAME);
    return TP_OK;
}

/* ---- loading ----------------------------------------------------------- */

/*
 * As setenv(3), but other threads may be in getenv(3) meanwhile, as a program's
 * may be that calls tp_init() in one of several: setenv() gives back the list
 * that they read.  Here it stays, and they have the old one or the new one.
 */
static void library_set(const char *const *words, size_t count)
{
    size_t old = 0;
    char **list;

    while (environ != NULL && environ[old] != NULL)
        old++;
    list = tpb_array(old + count + 1, sizeof(list[0]));
    if (list == NULL)
        return;
    if (old > 0)
        memcpy(list, environ, old * sizeof(list[0]));
    for (size_t i = 0; i < count; i++) {
        list[old] = tpb_copy_string(words[i]);
        old += list[old] != NULL;
    }
    library.environment = list;
    __atomic_store_n(&environ, list, __ATOMIC_RELEASE);
}

void ofi_library_environment(void)
{
    static const char *const words[] = {
        /* The registration cache notices neither CUDA's nor our unmapping. */
        "FI_MR_CACHE_MAX_COUNT=0",
        /* From 1.19 on tcp zeroes 1024 buffers of that size, 16 MiB; they are
         * for tagged messages, and grow to what else needs them. */
        "FI_TCP_MAX_RX_SIZE=0",
        /* Without these a crash becomes exit status 1 in psm's handlers. */
        "IPATH_NO_BACKTRACE=1",
        "HFI_NO_BACKTRACE=1"
    };
    const char *missing[TPB_COUNT(words)];
    size_t count = 0;

    library_locked();
    for (size_t i = 0; i < TPB_COUNT(words); i++) {
        char name[32];

        snprintf(name, sizeof(name), "%.*s", (int)strcspn(words[i], "="),
                 words[i]);
        if (getenv(name) == NULL)
            missing[count++] = words[i];
    }
    if (count > 0)
        library_set(missing, count);
    pthread_mutex_unlock(&library.lock);
}

static bool library_symbols(void *handle)
{
    struct ofi_library *f = &library.functions;
    const struct {
        const char *name;
        void **pointer;
    } symbols[] = {
        { "fi_getinfo", (void **)&f->getinfo },
        { "fi_freeinfo", (void **)&f->freeinfo },
        { "fi_dupinfo", (void **)&f->dupinfo },
        { "fi_fabric", (void **)&f->fabric },
        { "fi_strerror", (void **)&f->strerror }
    };

    for (size_t i = 0; i < TPB_COUNT(symbols); i++) {
        *symbols[i].pointer = dlsym(handle, symbols[i].name);
        if (*symbols[i].pointer == NULL) {
            snprintf(library.words.text, sizeof(library.words.text),
                     "%s has no %s()", LIBRARY_NAME, symbols[i].name);
            return false;
        }
    }
    return true;
}

/* The providers are set up by the first question, whatever it is. */
static void library_wake(void)
{
    struct fi_info *hints = library.functions.dupinfo(NULL), *info = NULL;

    if (hints == NULL)
        return;
    hints->fabric_attr->prov_name = strdup("tcp");
    if (library.functions.getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints,
                                  &info) == 0)
        library.functions.freeinfo(info);
    library.functions.freeinfo(hints);
}

static void *library_find(void)
{
    return tpb_library_open(LIBRARY_NAME, LIBFABRIC_LIBRARY_PLACE,
                            RTLD_NOW | RTLD_LOCAL);
}

static void *library_open(struct ofi_quick *quick)
{
    void *handle;

    ofi_quick_begin(quick, LIBRARY_NAME);
    handle = library_find();
    if (handle == NULL && ofi_quick_undo(quick))
        handle = library_find();
    return handle;
}

static bool library_load(void)
{
    struct ofi_quick quick;
    void *handle = library_open(&quick);
    uint32_t (*version)(void);

    if (handle == NULL) {
        tpb_fail_load(&library.words, TP_ERR_BACKEND,
                      LIBRARY_NAME " cannot be loaded");
        return false;
    }
    *(void **)&version = dlsym(handle, "fi_version");
    if (version == NULL || FI_VERSION_LT(version(), FI_VERSION(1, 17))) {
        snprintf(library.words.text, sizeof(library.words.text),
                 "%s is older than 1.17", LIBRARY_NAME);
        return false;
    }
    library.functions.version = version();
    if (!library_symbols(handle))
        return false;
    ofi_quick_first(&quick, handle);
    library_wake();
    ofi_quick_end(&quick, handle);
    return true;
}

static void *library_thread(void *arg)
{
    uint64_t begin = tpb_now();
    bool loaded = library_load();

    (void)arg;
    tpb_debug("libfabric %s in %.1f ms", loaded ? "loaded" : "failed",
              (double)(tpb_now() - begin) * 1e-6);
    pthread_mutex_lock(&library.lock);
    library.state = loaded ? LIBRARY_READY : LIBRARY_FAILED;
    if (loaded)
        ofi_lib = &library.functions;
    for (int i = 0; i < library.count; i++)
        tpb_eventfd_ring(library.waiters[i]);
    library.count = 0;
    pthread_mutex_unlock(&library.lock);
    return NULL;
}

/* Under the lock. */
static int library_start(void)
{
    int code = tpb_thread_start(&library.thread, library_thread, NULL);

    if (code == 0) {
        library.owner = getpid();
        library.state = LIBRARY_LOADING;
        library.joinable = true;
    }
    return code;
}

static tp_status library_wait(int eventfd, struct tpb_error *error)
{
    for (int i = 0; i < library.count; i++)
        if (library.waiters[i] == eventfd)
            return TP_OK;
    if (library.count == LIBRARY_WAITERS)
        return tpb_fail(error, TP_ERR_NO_MEMORY,
                        "more than %d endpoints wait for libfabric",
                        LIBRARY_WAITERS);
    library.waiters[library.count++] = eventfd;
    return TP_OK;
}

/* Unlocks, and collects the thread if that is due. */
static void library_unlock(bool collect)
{
    bool join = library.joinable && collect;
    pthread_t thread = library.thread;

    if (join)
        library.joinable = false;
    pthread_mutex_unlock(&library.lock);
    if (join)
        pthread_join(thread, NULL);
}

const struct ofi_library *ofi_library_get(int eventfd, tp_status *status,
                                          struct tpb_error *error)
{
    const struct ofi_library *result = NULL;
    int code = 0;

    library_locked();
    if (library.state == LIBRARY_ABSENT)
        code = library_start();
    if (code == EAGAIN)
        *status = tpb_fail(error, TP_ERR_SYSTEM, "no thread to load libfabric:"
                           " %s", tpb_thread_limit());
    else if (code != 0)
        *status = tpb_fail_errno(error, code, "no thread to load libfabric");
    else if (library.state == LIBRARY_FAILED)
        *status = tpb_fail(error, TP_ERR_BACKEND, "%s", library.words.text);
    else if (library.state == LIBRARY_LOADING)
        *status = library_wait(eventfd, error);
    else {
        *status = TP_OK;
        result = &library.functions;
    }
    /* Once it has said that it is done the thread does nothing more. */
    library_unlock(library.state != LIBRARY_LOADING);
    return result;
}

void ofi_library_forget(int eventfd)
{
    library_locked();
    for (int i = 0; i < library.count; i++)
        if (library.waiters[i] == eventfd)
            library.waiters[i--] = library.waiters[--library.count];
    library_unlock(library.count == 0);
}

bool ofi_library_wait(void)
{
    struct pollfd wait = { .fd = tpb_eventfd(), .events = POLLIN };
    struct tpb_error error;
    tp_status status = TP_OK;
    bool there = false;

    ofi_library_environment();
    while (wait.fd >= 0 && status == TP_OK && !there) {
        there = ofi_library_get(wait.fd, &status, &error) != NULL;
        if (!there && status == TP_OK && poll(&wait, 1, LIBRARY_WAIT_MS) <= 0)
            break;
    }
    ofi_library_forget(wait.fd);
    tpb_close(&wait.fd);
    return there;
}

/* ---- asking ------------------------------------------------------------ */

tp_status ofi_fail(struct tpb_error *error, int code, const char *what)
{
    tp_status status = TP_ERR_BACKEND;

    if (code < 0)
        code = -code;
    if (code == FI_ENOMEM)
        status = TP_ERR_NO_MEMORY;
    if (code == FI_EMFILE || code == ENFILE || code == FI_EACCES)
        status = TP_ERR_SYSTEM;
    return tpb_fail(error, status, "%s: %s%s", what, ofi_lib->strerror(code),
                    tpb_errno_remedy(code));
}

static void library_hints(const struct ofi_kind *kind, struct fi_info *hints)
{
    hints->caps = FI_MSG | FI_SEND | FI_RECV;
    if (kind->rma)
        hints->caps |= FI_RMA | FI_READ | FI_REMOTE_READ;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = kind->type;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED
                                  | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
    hints->tx_attr->size = 2 * kind->slots;
    hints->rx_attr->size = 2 * kind->slots;
    hints->tx_attr->msg_order = FI_ORDER_SAS;
    hints->rx_attr->msg_order = FI_ORDER_SAS;
}

/* Its shm wants room for as many ranks as there are CPUs, whoever will come.
 * Where that is not it counts as not there, and only libfabric's own log
 * (FI_LOG_LEVEL) knows why. */
static void library_room(const struct ofi_kind *kind, int code, char *room,
                         size_t size)
{
    struct statvfs shm;

    room[0] = '\0';
    if (kind->within_host && code == -FI_ENODATA
        && statvfs("/dev/shm", &shm) == 0)
        snprintf(room, size, " (it wants room in /dev/shm for each CPU, and %"
                 PRIu64 " KiB are free)",
                 (uint64_t)shm.f_bavail * shm.f_frsize / 1024);
}

static tp_status library_info(const struct ofi_kind *kind,
                              const char *provider, const char *node,
                              struct fi_info **info, struct tpb_error *error)
{
    struct fi_info *hints = ofi_lib->dupinfo(NULL);
    char room[96], what[192];
    int code;

    /* Without a name any provider would do. */
    if (hints == NULL
        || (hints->fabric_attr->prov_name = strdup(provider)) == NULL) {
        if (hints != NULL)
            ofi_lib->freeinfo(hints);
        return tpb_fail(error, TP_ERR_NO_MEMORY, "no memory for fi_info");
    }
    library_hints(kind, hints);
    code = ofi_lib->getinfo(FI_VERSION(1, 17), node, NULL,
                            node != NULL ? FI_SOURCE | FI_NUMERICHOST : 0,
                            hints, info);
    ofi_lib->freeinfo(hints);
    if (code == 0)
        return TP_OK;
    library_room(kind, code, room, sizeof(room));
    snprintf(what, sizeof(what), "libfabric's provider %s%s%s%s",
             provider, node != NULL ? " at " : "",
             node != NULL ? node : "", room);
    return ofi_fail(error, code, what);
}

/* libfabric 1.17 has the new code of TCP beside the old one, under the name
 * "net"; on the wire they are the same. */
tp_status ofi_info(const struct ofi_kind *kind, const char *wish,
                   const char *node, struct fi_info **info,
                   struct tpb_error *error)
{
    bool better = kind->heir != NULL
                  && FI_VERSION_LT(ofi_lib->version, FI_VERSION(1, 18));

    if (kind->heir == NULL || strcmp(wish, "-") == 0)
        wish = better ? kind->heir : kind->provider;
    else
        better = false;
    if (library_info(kind, wish, node, info, better ? NULL : error) == TP_OK)
        return TP_OK;
    return better ? library_info(kind, kind->provider, node, info, error)
                  : TP_ERR_BACKEND;
}

void ofi_info_words(const struct fi_info *info, char *words, size_t size)
{
    snprintf(words, size, "libfabric %u.%u's provider %s",
             FI_MAJOR(ofi_lib->version), FI_MINOR(ofi_lib->version),
             info->fabric_attr->prov_name);
}

bool ofi_info_silent(const struct fi_info *info)
{
    const char *name = info->fabric_attr->prov_name;

    return strcmp(name, "net") == 0
           || (strcmp(name, "tcp") == 0
               && FI_VERSION_GE(ofi_lib->version, FI_VERSION(1, 18)));
}

struct fi_info *ofi_info_towards(const struct fi_info *info,
                                 const struct ofi_where *where)
{
    struct fi_info *towards = ofi_lib->dupinfo(info);
    struct sockaddr_storage address;
    size_t length = ofi_where_to_socket(where, &address);

    if (towards == NULL)
        return NULL;
    free(towards->dest_addr);
    towards->dest_addr = malloc(length);
    towards->dest_addrlen = length;
    if (towards->dest_addr != NULL) {
        memcpy(towards->dest_addr, &address, length);
        return towards;
    }
    ofi_lib->freeinfo(towards);
    return NULL;
}

size_t ofi_piece(const struct fi_info *info, size_t left)
{
    size_t most = info->ep_attr->max_msg_size;

    if (most > LIBRARY_PIECE)
        most = LIBRARY_PIECE;
    return left < most ? left : most;
}
