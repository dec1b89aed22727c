/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs the floors, each in two processes on two cpus. */
#include "config.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/clock.h"
#include "bench/floors.h"
#include "bench/report.h"
#include "runtime/base/base.h"

static const struct floor_kind *const floors_kinds[] = {
    &floor_line, &floor_ring, &floor_mapped, &floor_cma, &floor_socket,
    &floor_eventfd
};
enum { FLOORS_KINDS = sizeof(floors_kinds) / sizeof(floors_kinds[0]) };

/* Room for the messages under way at the largest sizes.  Nothing of it is
 * there before it is written. */
static const size_t floors_arena = (size_t)1 << 30;

/* What both processes share, made before the fork. */
struct floors_common {
    struct floor_way *ways;        /* two */
    unsigned char *arenas;         /* two */
    int sockets[2], wakes[2];
};

static bool floors_failed(const char *what)
{
    bench_say("%s: %s", what, strerror(errno));
    return false;
}

static void *floors_map(size_t length)
{
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

static bool floors_open(struct floors_common *common)
{
    common->ways = floors_map(2 * sizeof(*common->ways));
    common->arenas = floors_map(2 * floors_arena);
    if (common->ways == NULL || common->arenas == NULL)
        return floors_failed("no shared memory");
    common->wakes[0] = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    common->wakes[1] = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    if (common->wakes[0] < 0 || common->wakes[1] < 0)
        return floors_failed("eventfd");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, common->sockets)
        != 0)
        return floors_failed("socketpair");
    return true;
}

static void floors_close(struct floors_common *common)
{
    for (int i = 0; i < 2; i++) {
        close(common->sockets[i]);
        close(common->wakes[i]);
    }
    munmap(common->ways, 2 * sizeof(*common->ways));
    munmap(common->arenas, 2 * floors_arena);
}

/* ---- one process -------------------------------------------------------- */

/* Memory is handed out upwards, and all of it is free again when the last
 * piece was given back. */
static void *floors_allocate(struct bench_driver *driver, size_t length)
{
    struct floors *floors = floors_of(driver);
    size_t whole = (length + 4095) / 4096 * 4096;
    unsigned char *memory = floors->arena + floors->arena_used;

    if (floors->arena_used + whole > floors_arena)
        return NULL;
    floors->arena_used += whole;
    return memory;
}

static void floors_release(struct bench_driver *driver, void *memory)
{
    struct floors *floors = floors_of(driver);

    /* The first piece goes when the measurement is over, with all others. */
    if (memory == floors->arena) {
        madvise(floors->arena, floors->arena_used, MADV_REMOVE);
        floors->arena_used = 0;
    }
}

static bool floors_side(const struct floor_kind *kind, int rank, pid_t peer,
                        struct floors_common *common,
                        const struct bench_options *options)
{
    struct floors floors = {
        .kind = kind, .peer = peer, .demotes = tpb_demotes(),
        .owns = tpb_prefetch_owns(),
        .out = &common->ways[rank], .in = &common->ways[!rank],
        .arena = common->arenas + (size_t)rank * floors_arena,
        .socket = common->sockets[rank],
        .wake_out = common->wakes[rank], .wake_in = common->wakes[!rank],
        .driver = { .who = kind->name, .mode = kind->mode, .rank = rank,
                    .size = 2, .state = &floors, .most = kind->most,
                    .lazy = kind->stream != NULL,
                    .send = kind->send, .receive = kind->receive,
                    .stream = kind->stream }
    };
    struct bench_options mine = *options;

    mine.tests &= kind->tests;
    if (kind->arena) {
        floors.driver.allocate = floors_allocate;
        floors.driver.release = floors_release;
    }
    if (options->who != NULL)
        floors.driver.who = options->who;
    return bench_pin(rank) && bench_run(&floors.driver, &mine);
}

/* ---- both --------------------------------------------------------------- */

static volatile sig_atomic_t floors_child, floors_child_over;

/* The parent may be spinning on a word that the child will never write. */
static void floors_bereaved(int signal)
{
    static const char text[] = "floors: the second process failed\n";
    int status;

    (void)signal;
    if (waitpid(floors_child, &status, WNOHANG) != floors_child)
        return;
    floors_child_over = 1;
    if (status != 0 && write(STDERR_FILENO, text, sizeof(text) - 1) > 0)
        _exit(1);
    if (status != 0)
        _exit(1);
}

static pid_t floors_fork(const struct floor_kind *kind,
                         struct floors_common *common,
                         const struct bench_options *options)
{
    pid_t parent = getpid(), child = fork();

    if (child != 0)
        return child;
    signal(SIGCHLD, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    prctl(PR_SET_PTRACER, parent);
    bench_report_open(options->format, true);
    _exit(floors_side(kind, 1, parent, common, options) ? 0 : 1);
}

static bool floors_run(const struct floor_kind *kind,
                       const struct bench_options *options)
{
    struct floors_common common;
    sigset_t chld, before;
    pid_t child;
    bool good;

    if (!(options->tests & kind->tests))
        return true;
    if (!floors_open(&common))
        return false;
    /* The handler must know whose end it hears of. */
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    sigprocmask(SIG_BLOCK, &chld, &before);
    floors_child_over = 0;
    child = floors_fork(kind, &common, options);
    floors_child = child;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (child < 0)
        return floors_failed("fork");
    prctl(PR_SET_PTRACER, child);
    good = floors_side(kind, 0, child, &common, options);
    if (!good)
        kill(child, SIGKILL);
    while (!floors_child_over)
        usleep(1000);
    floors_close(&common);
    return good;
}

/* Is `name` in the comma list? */
static bool floors_listed(const char *list, const char *name)
{
    size_t length = strlen(name);

    while (list != NULL) {
        if (strncmp(list, name, length) == 0
            && (list[length] == ',' || list[length] == '\0'))
            return true;
        list = strchr(list, ',');
        if (list != NULL)
            list++;
    }
    return false;
}

static const char *floors_name(int kind)
{
    return strchr(floors_kinds[kind]->name, '/') + 1;
}

/* Every word of the list must be a floor. */
static bool floors_known(const char *list)
{
    while (list != NULL) {
        size_t length = strcspn(list, ",");
        int kind = 0;

        while (kind < FLOORS_KINDS
               && (strlen(floors_name(kind)) != length
                   || strncmp(floors_name(kind), list, length) != 0))
            kind++;
        if (kind == FLOORS_KINDS) {
            bench_say("there is no floor %.*s; `floors --help` lists them",
                      (int)length, list);
            return false;
        }
        list = list[length] == ',' ? list + length + 1 : NULL;
    }
    return true;
}

static bool floors_two_cpus(void)
{
    cpu_set_t allowed;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0
        && CPU_COUNT(&allowed) >= 2)
        return true;
    bench_say("two cpus are needed: this process may use one only");
    return false;
}

static bool floors_all(const struct bench_options *options)
{
    cpu_set_t allowed;

    sched_getaffinity(0, sizeof(allowed), &allowed);
    for (int kind = 0; kind < FLOORS_KINDS; kind++) {
        if (options->floors != NULL
            && !floors_listed(options->floors, floors_name(kind)))
            continue;
        /* The last one has bound us to a cpu. */
        sched_setaffinity(0, sizeof(allowed), &allowed);
        if (!floors_run(floors_kinds[kind], options))
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    static const struct bench_usage usage = {
        .program = "floors", .start = "floors",
        .purpose = "Measure what two processes on this machine can do at "
                   "best, without a message layer.",
        .scope = BENCH_FLOORS,
        .tests = BENCH_BIT(BENCH_LATENCY) | BENCH_BIT(BENCH_BANDWIDTH)
                 | BENCH_BIT(BENCH_BIDIRECTIONAL) | BENCH_BIT(BENCH_RATE)
    };
    struct sigaction bereaved = { .sa_handler = floors_bereaved,
                                  .sa_flags = SA_RESTART };
    struct bench_options options;
    int status;
    bool good;

    if (!bench_parse(argc, argv, &usage, &options, &status))
        return status;
    if (!floors_known(options.floors))
        return 2;
    if (!floors_two_cpus())
        return 1;
    sigaction(SIGCHLD, &bereaved, NULL);
    bench_clock_init();
    bench_report_open(options.format, false);
    good = floors_all(&options);
    return bench_report_close() && good ? 0 : 1;
}
