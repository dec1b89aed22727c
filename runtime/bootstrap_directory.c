/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Cards as files of a shared directory, for tests without PMIx: rank N writes
 * card.N under another name and renames it; who wants it looks now and then.
 * A rank that leaves makes left.N, and losing.N before if it lost something.
 * Rank M asks rank N to connect to it by a file ask.N.M.0 (or .1: M itself has
 * given up), which inotify tells N of (so not over NFS) and which N removes.
 * The names that a rank's second context makes and looks for end in .1, as it
 * meets the second of others, those of the third in .2, and so on.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/core.h"

/* What stands behind the folder at most: "/ask.1048575.1048575.1.4294967295", a
 * NUL. */
enum { DIRECTORY_FILE = 40, DIRECTORY_SUFFIX = 12 };

struct directory_bootstrap {
    struct tpr_bootstrap base;
    char *path;
    bool *wanted;                  /* per rank; token */
    uint32_t number;               /* of the context, in this folder */
    char suffix[DIRECTORY_SUFFIX]; /* for that */
    struct tpf_watch asks;         /* inotify; fd -1: none */
};

static struct directory_bootstrap *directory(struct tpr_bootstrap *base)
{
    return (struct directory_bootstrap *)base;
}

/* ---- asking ------------------------------------------------------------- */

static bool directory_ask(struct tpr_bootstrap *base, int rank, bool gave_up)
{
    char path[PATH_MAX];
    int fd;

    snprintf(path, sizeof(path), "%s/ask.%d.%d.%d%s", directory(base)->path,
             rank, base->rank, gave_up, directory(base)->suffix);
    unlink(path);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    tpb_close(&fd);
    return true;
}

static void directory_asked(struct directory_bootstrap *self, const char *name)
{
    char path[PATH_MAX];
    int whom, who, gave_up;
    unsigned number = 0;

    if (sscanf(name, "ask.%d.%d.%d.%u", &whom, &who, &gave_up, &number) < 3
        || whom != self->base.rank || number != self->number)
        return;
    snprintf(path, sizeof(path), "%s/%s", self->path, name);
    unlink(path);
    tpr_peer_asks(self->base.context, who, gave_up != 0);
}

static void directory_ready(struct tpf_watch *watch, uint32_t events)
{
    struct directory_bootstrap *self = TPB_CONTAINER(watch,
        struct directory_bootstrap, asks);
    _Alignas(struct inotify_event) char
        room[16 * (sizeof(struct inotify_event) + NAME_MAX + 1)];
    ssize_t got = read(watch->fd, room, sizeof(room));

    (void)events;
    for (ssize_t at = 0; at < got;) {
        const struct inotify_event *event = (void *)(room + at);

        if (event->len > 0)
            directory_asked(self, event->name);
        at += (ssize_t)sizeof(*event) + event->len;
    }
}

/* Without it this rank is not asked, which matters to few. */
static void directory_listen(struct directory_bootstrap *self)
{
    self->asks.ready = directory_ready;
    self->asks.fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (self->asks.fd >= 0
        && (inotify_add_watch(self->asks.fd, self->path, IN_CREATE) < 0
            || tpf_watch_add(&self->base.context->env, &self->asks, EPOLLIN)
                   != 0))
        tpb_close(&self->asks.fd);
}

/* ---- leaving ------------------------------------------------------------ */

static void directory_path(struct tpr_bootstrap *base, const char *what,
                           int rank, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/%s.%d%s", directory(base)->path, what, rank,
             directory(base)->suffix);
}

static void directory_mark(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    tpb_close(&fd);
}

static void directory_leave(struct tpr_bootstrap *base, bool losing)
{
    char path[PATH_MAX];

    if (losing) {                  /* first: who finds the other looks for it */
        directory_path(base, "losing", base->rank, path);
        directory_mark(path);
    }
    directory_path(base, "left", base->rank, path);
    directory_mark(path);
}

static unsigned directory_left(struct tpr_bootstrap *base, int rank)
{
    enum tpr_left left = TPR_LEFT_NOT;
    char path[PATH_MAX];

    directory_path(base, "left", rank, path);
    if (access(path, F_OK) == 0) {
        directory_path(base, "losing", rank, path);
        left = access(path, F_OK) == 0 ? TPR_LEFT_LOSING : TPR_LEFT_WELL;
    }
    tpr_rank_left(base->context, rank, left);
    return 1000;                   /* the context may be late to hear it */
}

/* ---- cards -------------------------------------------------------------- */

/* Which of this rank's contexts is it?  Its programs, one after the other, have
 * left the cards of theirs. */
static void directory_count(struct directory_bootstrap *self,
                            char card[PATH_MAX])
{
    directory_path(&self->base, "card", self->base.rank, card);
    while (access(card, F_OK) == 0) {
        snprintf(self->suffix, sizeof(self->suffix), ".%u",
                 (unsigned)++self->number);
        directory_path(&self->base, "card", self->base.rank, card);
    }
}

/* The file becomes the card of the rank's next context, which another process
 * of it may just be giving its own number.  0, or an errno. */
static int directory_place(struct directory_bootstrap *self, const char *path)
{
    char card[PATH_MAX];

    do {
        directory_count(self, card);
        if (link(path, card) == 0)
            return 0;
    } while (errno == EEXIST);
    /* Not every file system has links. */
    return (errno == EPERM || errno == ENOSYS || errno == EOPNOTSUPP)
           && rename(path, card) == 0 ? 0 : errno;
}

/* 0, or an errno. */
static int directory_write(struct directory_bootstrap *self, const void *blob,
                           size_t length)
{
    char path[PATH_MAX];
    int fd, code;

    snprintf(path, sizeof(path), "%s/new.%d.XXXXXX", self->path,
             self->base.rank);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return errno;
    code = tpb_write_all(fd, blob, length) < 0 ? errno
           : directory_place(self, path);
    tpb_close(&fd);
    unlink(path);
    return code;
}

static tp_status directory_publish(struct tpr_bootstrap *base,
                                   const void *blob, size_t length,
                                   struct tpb_error *error)
{
    int code = directory_write(directory(base), blob, length);

    if (code != 0)
        return tpb_fail_errno(error, code, "cannot write a card to %s",
                              directory(base)->path);
    directory_listen(directory(base));
    return TP_OK;
}

static bool directory_try(struct directory_bootstrap *self, int rank)
{
    char path[PATH_MAX], *blob;
    size_t length;

    directory_path(&self->base, "card", rank, path);
    blob = tpb_read_file(path, &length);
    if (blob == NULL)
        return false;
    tpr_card_arrived(self->base.context, rank, TP_OK, blob, length, "");
    tpb_free(blob);
    return true;
}

static void directory_fetch(struct tpr_bootstrap *base, int rank)
{
    directory(base)->wanted[rank] = !directory_try(directory(base), rank);
}

static uint64_t directory_poll(struct tpr_bootstrap *base)
{
    struct directory_bootstrap *self = directory(base);

    for (int rank = 0; rank < base->size; rank++)
        if (self->wanted[rank])
            self->wanted[rank] = !directory_try(self, rank);
    return 0;
}

static void directory_abort(struct tpr_bootstrap *base, int code,
                            const char *reason)
{
    fprintf(stderr, "tp: rank %d aborted%s%s\n", base->rank,
            *reason != '\0' ? ": " : "", reason);
    _exit(code);
}

static void directory_close(struct tpr_bootstrap *base)
{
    struct directory_bootstrap *self = directory(base);

    if (self->asks.fd >= 0)
        tpf_watch_remove(&base->context->env, &self->asks);
    tpb_close(&self->asks.fd);
    tpb_free(self->path);
    tpb_free(self->wanted);
    tpb_free(base);
}

static const struct tpr_bootstrap_ops directory_ops = {
    .name = "dir",
    .publish = directory_publish,
    .fetch = directory_fetch,
    .poll = directory_poll,
    .ask = directory_ask,
    .leave = directory_leave,
    .left = directory_left,
    .abort = directory_abort,
    .close = directory_close,
};

tp_status tpr_bootstrap_directory(const struct tpb_settings *settings,
                                  const char *path,
                                  struct tpr_bootstrap **result,
                                  struct tpb_error *error)
{
    int64_t rank = settings->number[TPB_SET_RANK];
    int64_t size = settings->number[TPB_SET_SIZE];
    struct directory_bootstrap *self;

    if (rank < 0 || size < 1 || size > 1 << 20 || rank >= size)
        return tpb_fail(error, TP_ERR_INVALID,
                        "TP_RANK=%lld TP_SIZE=%lld: expected 0 <= rank < size",
                        (long long)rank, (long long)size);
    if (strlen(path) > PATH_MAX - DIRECTORY_FILE)
        return tpb_fail(error, TP_ERR_INVALID, "TP_BOOTSTRAP=dir:%.32s...: "
                        "the path has %zu bytes, and %d is the most", path,
                        strlen(path), PATH_MAX - DIRECTORY_FILE);
    self = tpb_zalloc(sizeof(*self));
    if (self == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    self->asks.fd = -1;
    self->path = tpb_copy_string(path);
    self->wanted = tpb_array((size_t)size, sizeof(bool));
    if (self->path == NULL || self->wanted == NULL) {
        directory_close(&self->base);
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    }
    self->base.ops = &directory_ops;
    self->base.rank = self->base.local_rank = (int)rank;
    self->base.size = self->base.local_size = (int)size;
    snprintf(self->base.job, sizeof(self->base.job), "dir:%.59s", path);
    *result = &self->base;
    return TP_OK;
}
