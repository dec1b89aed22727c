/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What failed once, for want of something, works once that is there: a second
 * tp_init() joins the job as if it were the first, and tp_listen() finds the
 * library it needs.  The rank whose tp_init() had failed at its end counted as
 * one that came and left, and nobody looked for that library again.
 *
 * And contexts one after the other: the second of a rank meets the second of
 * another, in a folder, too, where the card of the first one still is.
 *
 *     tprun -n 2 anew thread|card|listen|turns
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/tp.h"

enum {
    ANEW_CARD = 500,               /* bytes; no other message is so long */
    ANEW_TURNS = 3,
    ANEW_LATE_US = 200000          /* the other's next context looks for ours */
};

static enum { ANEW_NOTHING, ANEW_THREAD, ANEW_SENDMSG, ANEW_DLOPEN } anew_lacks;

/* Fails the next call of `what`; and of dlopen() until one with a folder, which
 * is the second place that is looked at. */
static bool anew_fails(int what)
{
    if ((int)anew_lacks != what)
        return false;
    anew_lacks = ANEW_NOTHING;
    return true;
}

/* In the place of libc's, for all of this program. */
__attribute__((__visibility__("default")))
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                   void *(*run)(void *), void *arg)
{
    static __typeof__(pthread_create) *real;

    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    return anew_fails(ANEW_THREAD) ? EAGAIN
                                   : real(thread, attributes, run, arg);
}

__attribute__((__visibility__("default")))
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    static __typeof__(sendmsg) *real;
    size_t length = 0;

    for (size_t i = 0; i < message->msg_iovlen; i++)
        length += message->msg_iov[i].iov_len;
    *(void **)&real = dlsym(RTLD_NEXT, "sendmsg");
    if (length < ANEW_CARD || !anew_fails(ANEW_SENDMSG))
        return real(fd, message, flags);
    errno = EAGAIN;
    return -1;
}

__attribute__((__visibility__("default")))
void *dlopen(const char *name, int flags)
{
    static __typeof__(dlopen) *real;

    *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
    if (name == NULL || strstr(name, "nettle") == NULL
        || anew_lacks != ANEW_DLOPEN)
        return real(name, flags);
    if (strchr(name, '/') != NULL)
        anew_lacks = ANEW_NOTHING;
    return NULL;
}

static void anew_check(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "anew: %s\n", what);
    exit(1);
}

static void anew_listen(tp_context *context)
{
    tp_listener *listener;

    anew_lacks = ANEW_DLOPEN;
    anew_check(tp_listen(context, "local", &listener) == TP_ERR_NOT_SUPPORTED,
               "listens without the library");
    anew_check(tp_listen(context, "local", &listener) == TP_OK,
               "does not listen with the library");
}

/* A word goes from rank 1 to rank 0. */
static void anew_meet(tp_context *context)
{
    char word[8] = "word";
    tp_pipe *pipe;

    tp_pipe_to_rank(context, 1 - tp_rank(context), &pipe);
    if (tp_rank(context) == 1)
        anew_check(tp_pipe_send(pipe, word, sizeof(word)) == TP_OK,
                   "the word is not sent");
    else if (tp_pipe_recv(pipe, word, sizeof(word), NULL) != TP_OK)
        anew_check(false, tp_pipe_error(pipe));
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    int turns = strcmp(what, "turns") == 0 ? ANEW_TURNS : 1;
    const char *rank = getenv("PMIX_RANK");
    tp_context *context;

    if (rank != NULL && strcmp(rank, "1") == 0 && turns == 1
        && strcmp(what, "listen") != 0) {
        anew_lacks = strcmp(what, "thread") == 0 ? ANEW_THREAD : ANEW_SENDMSG;
        anew_check(tp_init(NULL, &context) == TP_ERR_SYSTEM,
                   "the first tp_init does not fail");
    }
    for (int turn = 0; turn < turns; turn++) {
        int mine;

        anew_check(tp_init(NULL, &context) == TP_OK, "tp_init fails");
        anew_check(tp_size(context) == 2, "there are not two ranks");
        if (strcmp(what, "listen") == 0)
            anew_listen(context);
        anew_meet(context);
        mine = tp_rank(context);
        anew_check(tp_finalize(context) == TP_OK, "tp_finalize fails");
        if (mine == 1 && turn < turns - 1)
            usleep(ANEW_LATE_US);
    }
    return 0;
}
