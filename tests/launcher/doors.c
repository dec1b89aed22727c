/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A rank of test_doors.sh:
 *
 *   doors ring [N]  the word N to the right, one from the left
 *   doors quit    the same, and then the process ends without tp_finalize
 *   doors alone   joins and leaves
 *   doors deaf    a ring, and then keeps tprun's PMIx server from hearing more
 *   doors again   the same in three contexts, of which two live at once
 *   doors unanswered  asks for a card that does not come, in a context that
 *                 ends before another one of the process
 *   doors half    makes two contexts and ends one of them
 *   doors many    the last rank makes and ends many beside its first one
 *   doors mask    blocks a signal after it has joined, and then waits for it
 *   doors mourn   the last rank kills itself before it joins; all others ask
 *                 for it, some before and some after its end
 *   doors heir    the last rank dies and leaves a child that has its sockets
 *   doors open    rank 0 opens pipes to all others, which die one by one
 *   doors slow    the last rank writes much and dies; rank 0, which looks now
 *                 and then only, reads all of it
 *   doors gone    rank 0 leaves; so seldom looks rank 1, which asks for it
 *   doors full MS  the same while tprun stands still, so long, and has more to
 *                 read
 *
 * DOORS_SHUT=ERRNO in the environment keeps tprun's door from opening; with
 * DOORS_STARVED every other word to tprun finds no memory, with DOORS_BARE
 * there is no libpmix, and with DOORS_CLOCK signals come all the time.
 */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/tp.h"

/* In the place of libc's, for all of this program: the last step to the door,
 * and of nothing else. */
__attribute__((__visibility__("default")))
int setsockopt(int fd, int level, int option, const void *value,
               socklen_t length)
{
    const char *shut = getenv("DOORS_SHUT");

    if (shut != NULL && level == SOL_SOCKET && option == SO_SNDTIMEO) {
        errno = atoi(shut);
        return -1;
    }
    return (int)syscall(SYS_setsockopt, fd, level, option, value, length);
}

/* The real one is asked for something else, so that dlerror() has words. */
__attribute__((__visibility__("default")))
void *dlopen(const char *file, int mode)
{
    void *(*real)(const char *, int);

    *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
    if (file != NULL && strstr(file, "libpmix") != NULL
        && getenv("DOORS_BARE") != NULL)
        file = "libdoors-none.so.1";
    return real(file, mode);
}

/* Words to tprun have two parts, and no descriptors. */
__attribute__((__visibility__("default")))
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    static _Atomic bool fed;

    if (message->msg_iovlen == 2 && message->msg_controllen == 0
        && getenv("DOORS_STARVED") != NULL
        && !atomic_exchange(&fed, true)) {
        errno = ENOBUFS;
        return -1;
    }
    atomic_store(&fed, false);
    return syscall(SYS_sendmsg, fd, message, flags);
}

static void doors_need(tp_status status, const char *what, const tp_pipe *pipe)
{
    if (status == TP_OK)
        return;
    fprintf(stderr, "doors: %s: %s: %s\n", what, tp_strerror(status),
            pipe != NULL ? tp_pipe_error(pipe) : "");
    exit(9);
}

static tp_context *doors_init(void)
{
    tp_context *context = NULL;

    doors_need(tp_init(NULL, &context), "tp_init", NULL);
    return context;
}

static tp_pipe *doors_pipe(tp_context *context, int rank)
{
    tp_pipe *pipe = NULL;

    doors_need(tp_pipe_to_rank(context, rank, &pipe), "tp_pipe_to_rank", NULL);
    return pipe;
}

static void doors_ring(tp_context *context, int word)
{
    int rank = tp_rank(context), size = tp_size(context), got = -1;
    tp_pipe *to = doors_pipe(context, (rank + 1) % size);
    tp_pipe *from = doors_pipe(context, (rank + size - 1) % size);
    size_t length;

    doors_need(tp_pipe_send(to, &word, sizeof(word)), "send", to);
    doors_need(tp_pipe_recv(from, &got, sizeof(got), &length), "recv", from);
    if (got != word) {
        fprintf(stderr, "doors: word %d instead of %d: another context's\n",
                got, word);
        exit(9);
    }
}

static void doors_again(void)
{
    tp_context *first = doors_init(), *second, *third;

    doors_ring(first, 1);
    second = doors_init();
    doors_ring(second, 2);
    doors_ring(first, 3);
    doors_need(tp_finalize(first), "tp_finalize", NULL);
    third = doors_init();
    doors_ring(third, 4);
    doors_ring(second, 5);
    doors_need(tp_finalize(second), "tp_finalize", NULL);
    doors_need(tp_finalize(third), "tp_finalize", NULL);
}

static void doors_ended(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                        void *arg)
{
    (void)pipe, (void)skeleton, (void)arg;
    if (status == TP_OK)
        exit(9);
}

static void doors_unanswered(void)
{
    tp_context *asks = doors_init(), *other = doors_init();
    tp_pipe *pipe = doors_pipe(asks, tp_size(asks) - 1);

    doors_need(tp_pipe_read_descriptor(pipe, doors_ended, NULL),
               "tp_pipe_read_descriptor", pipe);
    doors_need(tp_finalize(asks), "tp_finalize", NULL);
    doors_need(tp_finalize(other), "tp_finalize", NULL);
}

/* The memory that tprun has asked for, in KiB. */
static long doors_data(void)
{
    char path[64], line[256];
    long kib = 0;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)getppid());
    file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "VmData: %ld", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kib;
}

/* tprun keeps nothing of those that are over, nor of what every other one has
 * asked for, which does not come. */
static void doors_many(void)
{
    enum { SETTLED = 300, ALL = 2300, FEW = 100, BYTES = 300 };
    const char *sanitizer = getenv("TP_TEST_SANITIZER");
    int all = sanitizer != NULL && sanitizer[0] != '\0' ? FEW : ALL;
    tp_context *stays = doors_init();
    long before = 0, grown;

    for (int i = 0; tp_rank(stays) == tp_size(stays) - 1 && i < all; i++) {
        tp_context *context = doors_init();

        if (i % 2 == 1)
            doors_need(tp_pipe_read_descriptor(doors_pipe(context, 0),
                                               doors_ended, NULL),
                       "tp_pipe_read_descriptor", NULL);
        doors_need(tp_finalize(context), "tp_finalize", NULL);
        if (i == SETTLED)
            before = doors_data();
    }
    grown = before > 0 ? doors_data() - before : 0;
    if (grown * 1024 > BYTES * (ALL - SETTLED)) {
        fprintf(stderr, "doors: tprun has %ld KiB more after %d contexts\n",
                grown, ALL - SETTLED);
        exit(9);
    }
    doors_ring(stays, 1);
    doors_need(tp_finalize(stays), "tp_finalize", NULL);
}

/* Reads from the last rank, which is to end in vain. */
static void doors_read_last(tp_context *context)
{
    tp_pipe *pipe = doors_pipe(context, tp_size(context) - 1);
    char word;
    size_t length;
    tp_status status = tp_pipe_recv(pipe, &word, 1, &length);

    printf("rank %d: %s: %s\n", tp_rank(context), tp_strerror(status),
           tp_pipe_error(pipe));
    if (status != TP_ERR_PEER_FAILED)
        exit(9);
}

static void doors_mourn(void)
{
    const char *rank = getenv("PMIX_RANK"), *last = getenv("DOORS_LAST");
    tp_context *context;

    if (rank != NULL && last != NULL && strcmp(rank, last) == 0) {
        usleep(300000);
        raise(SIGKILL);
    }
    context = doors_init();
    usleep((useconds_t)tp_rank(context) * 300000);
    doors_read_last(context);
    doors_need(tp_finalize(context), "tp_finalize", NULL);
}

static void doors_heir(void)
{
    tp_context *context = doors_init();
    int last = tp_size(context) - 1;

    if (tp_rank(context) == last) {
        tp_pipe *pipe = doors_pipe(context, 0);

        doors_need(tp_pipe_send(pipe, "w", 1), "send", pipe);
        if (fork() == 0) {
            sleep(20);
            _exit(0);
        }
        raise(SIGKILL);
    } else if (tp_rank(context) == 0) {
        tp_pipe *pipe = doors_pipe(context, last);
        char word;
        size_t length;

        doors_need(tp_pipe_recv(pipe, &word, 1, &length), "recv", pipe);
        doors_read_last(context);
    }
    doors_need(tp_finalize(context), "tp_finalize", NULL);
}

/* What a rank has read that looks at its descriptor only now and then. */
struct doors_seldom {
    int words;
    tp_status ended;               /* TP_OK: not yet */
};

static void doors_read(tp_pipe *pipe, tp_status status, tp_message *skeleton,
                       void *arg)
{
    static int word;
    struct doors_seldom *seldom = arg;

    seldom->ended = status;
    if (status != TP_OK)
        return;
    seldom->words++;
    skeleton->payloads[0].data = &word;
    doors_need(tp_pipe_read(pipe, skeleton, NULL, NULL), "read", pipe);
    doors_need(tp_pipe_read_descriptor(pipe, doors_read, arg), "arm", pipe);
}

static tp_context *doors_by_hand(void)
{
    tp_options options = TP_OPTIONS_INIT;
    tp_context *context = NULL;

    options.progress = TP_PROGRESS_MANUAL;
    doors_need(tp_init(&options, &context), "tp_init", NULL);
    return context;
}

/* To its end, with so many milliseconds between two looks. */
static void doors_look(tp_pipe *pipe, tp_context *context, unsigned ms,
                       int words, tp_status end)
{
    struct doors_seldom seldom = { .words = 0 };

    if (tp_fd(context) < 0)
        exit(9);
    doors_need(tp_pipe_read_descriptor(pipe, doors_read, &seldom), "arm",
               pipe);
    while (seldom.ended == TP_OK) {
        doors_need(tp_progress(context, NULL), "tp_progress", pipe);
        usleep(seldom.words == 0 && words > 0 ? 1000 : ms * 1000);
    }
    printf("%d words, %s: %s\n", seldom.words, tp_strerror(seldom.ended),
           tp_pipe_error(pipe));
    if (seldom.words != words || seldom.ended != end)
        exit(9);
}

/* The context's own thread hears of the deaths. */
static void doors_open(void)
{
    tp_context *context = doors_init();
    int rank = tp_rank(context);

    usleep((useconds_t)rank * 3000);
    if (rank > 0)
        raise(SIGKILL);
    for (int other = 1; other < tp_size(context); other++) {
        (void)doors_pipe(context, other);
        usleep(3000);
    }
    doors_need(tp_finalize(context), "tp_finalize", NULL);
}

static void doors_slow(void)
{
    enum { WORDS = 5000 };
    tp_context *context = doors_by_hand();
    int last = tp_size(context) - 1;

    if (tp_rank(context) == last) {
        tp_pipe *pipe = doors_pipe(context, 0);

        for (int i = 0; i < WORDS; i++)
            doors_need(tp_pipe_send(pipe, &i, sizeof(i)), "send", pipe);
        raise(SIGKILL);
    } else if (tp_rank(context) == 0) {
        doors_look(doors_pipe(context, last), context, 500, WORDS,
                   TP_ERR_PEER_FAILED);
    }
    doors_need(tp_finalize(context), "tp_finalize", NULL);
}

static void doors_gone(void)
{
    tp_context *context = doors_by_hand();

    if (tp_rank(context) > 0) {
        usleep(500000);
        doors_look(doors_pipe(context, 0), context, 1200, 0,
                   TP_ERR_PEER_CLOSED);
    }
    doors_need(tp_finalize(context), "tp_finalize", NULL);
}

static void doors_arrived(tp_pipe *pipe, tp_status status,
                          tp_message *skeleton, void *arg)
{
    (void)pipe, (void)skeleton;
    *(tp_status *)arg = status;
}

/* Rank 0 is asked for while tprun takes no more questions.  Its card is here,
 * and has not been looked at, when tprun stops. */
static void doors_full(unsigned ms)
{
    tp_context *context = doors_by_hand();
    tp_status ended = TP_OK, others = TP_OK;
    pid_t tprun = getppid(), child;

    if (tp_rank(context) == 1) {
        tp_pipe *pipe = doors_pipe(context, 0);

        usleep(500000);
        doors_need(tp_pipe_read_descriptor(pipe, doors_arrived, &ended),
                   "arm", pipe);
        usleep(300000);
        kill(tprun, SIGSTOP);
        child = fork();
        if (child == 0) {
            usleep(ms * 1000);
            kill(tprun, SIGCONT);
            _exit(0);
        }
        for (int rank = 2; rank < tp_size(context); rank++)
            doors_need(tp_pipe_read_descriptor(doors_pipe(context, rank),
                                               doors_arrived, &others),
                       "arm", NULL);
        while (ended == TP_OK)
            doors_need(tp_wait(context, -1, NULL), "tp_wait", pipe);
        printf("rank 0: %s: %s\n", tp_strerror(ended), tp_pipe_error(pipe));
        fflush(stdout);
        /* Its end must not fall into LeakSanitizer's look at us. */
        if (ended != TP_ERR_PEER_CLOSED || waitpid(child, NULL, 0) != child)
            exit(9);
    } else if (tp_rank(context) > 1) {
        sleep(2);
    }
    doors_need(tp_finalize(context), "tp_finalize", NULL);
}

/* libpmix's server waits two seconds for the first words of a connection, and
 * does nothing else meanwhile; a client gives up after some seconds. */
static void doors_deafen(void)
{
    enum { SILENT = 5 };
    const char *uri = getenv("PMIX_SERVER_URI4"), *port;
    struct sockaddr_in address = { .sin_family = AF_INET };

    port = uri != NULL ? strrchr(uri, ':') : NULL;
    if (port == NULL)
        exit(9);
    address.sin_port = htons((uint16_t)atoi(port + 1));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < SILENT; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        if (fd < 0 || connect(fd, (struct sockaddr *)&address,
                              sizeof(address)) < 0)
            exit(9);
    }
    usleep(200000);
}

static void doors_ticked(int number)
{
    (void)number;
}

/* Calls that wait are interrupted by these. */
static void doors_clock(void)
{
    struct sigaction action = { .sa_handler = doors_ticked };
    struct itimerval often = { { 0, 10000 }, { 0, 10000 } };

    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
}

/* No thread of the library or of libpmix may take it instead. */
static void doors_mask(void)
{
    tp_context *context = doors_init();
    sigset_t ended;
    int signal = 0;

    sigemptyset(&ended);
    sigaddset(&ended, SIGTERM);
    sigprocmask(SIG_BLOCK, &ended, NULL);
    kill(getpid(), SIGTERM);
    sigwait(&ended, &signal);
    doors_need(tp_finalize(context), "tp_finalize", NULL);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";

    if (getenv("DOORS_CLOCK") != NULL)
        doors_clock();
    if (strcmp(mode, "ring") == 0) {
        tp_context *context = doors_init();

        doors_ring(context, argc > 2 ? atoi(argv[2]) : 1);
        doors_need(tp_finalize(context), "tp_finalize", NULL);
    } else if (strcmp(mode, "alone") == 0) {
        doors_need(tp_finalize(doors_init()), "tp_finalize", NULL);
    } else if (strcmp(mode, "deaf") == 0) {
        tp_context *context = doors_init();

        doors_ring(context, 1);
        if (tp_rank(context) == 0)
            doors_deafen();
        doors_need(tp_finalize(context), "tp_finalize", NULL);
    } else if (strcmp(mode, "quit") == 0) {
        doors_ring(doors_init(), 1);
        _exit(0);
    } else if (strcmp(mode, "again") == 0) {
        doors_again();
    } else if (strcmp(mode, "unanswered") == 0) {
        doors_unanswered();
    } else if (strcmp(mode, "half") == 0) {
        tp_context *kept = doors_init();

        doors_need(tp_finalize(doors_init()), "tp_finalize", NULL);
        return kept == NULL;
    } else if (strcmp(mode, "many") == 0) {
        doors_many();
    } else if (strcmp(mode, "mask") == 0) {
        doors_mask();
    } else if (strcmp(mode, "mourn") == 0) {
        doors_mourn();
    } else if (strcmp(mode, "heir") == 0) {
        doors_heir();
    } else if (strcmp(mode, "open") == 0) {
        doors_open();
    } else if (strcmp(mode, "slow") == 0) {
        doors_slow();
    } else if (strcmp(mode, "gone") == 0) {
        doors_gone();
    } else if (strcmp(mode, "full") == 0 && argc == 3) {
        doors_full((unsigned)atoi(argv[2]));
    } else {
        return 97;
    }
    return 0;
}
