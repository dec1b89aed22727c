/* SPDX-License-Identifier: BSD-3-Clause */
/* What the test functions share, and the run of one in the calling rank. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "tests/multi/spmd.h"

struct tpx_rank tpx_me;

const struct tpx_spmd *const tpx_suites[] = {
    tpx_order, tpx_channel, tpx_huge, tpx_arguments, tpx_nested,
    tpx_pressure, tpx_close, tpx_failure, tpx_blocking, tpx_idle, tpx_bad,
    tpx_listen, tpx_any, tpx_streams, tpx_late, tpx_lent, tpx_crowd,
    tpx_alloc, tpx_self,
    NULL
};

static const char *volatile spmd_stage = "start";

void tpx_at(const char *stage)
{
    spmd_stage = stage;
}

void tpx_fail(const char *file, int line, const char *format, ...)
{
    char text[900], whole[1100];
    va_list args;
    int length;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    length = snprintf(whole, sizeof(whole), "rank %d: %s:%d (%s): %s\n",
                      tpx_me.rank, file, line, spmd_stage, text);
    if (write(STDERR_FILENO, whole, (size_t)length) < 0)
        _exit(3);
    _exit(1);
}

/* SIGUSR1: the harness asks, before it kills, where a rank hangs.  The others:
 * it crashed, and dies of the same signal when this returns. */
static void spmd_where(int number)
{
    void *frames[32];
    char text[128];
    int length = snprintf(text, sizeof(text), "rank %d, signal %d, at: %s\n",
                          tpx_me.rank, number, spmd_stage);

    if (write(STDERR_FILENO, text, (size_t)length) < 0)
        _exit(3);
    backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
}

static void spmd_signals(void)
{
    struct sigaction ask = { .sa_handler = spmd_where };
    struct sigaction crash = { .sa_handler = spmd_where,
                               .sa_flags = (int)SA_RESETHAND };
    void *warm[1];

    backtrace(warm, 1);            /* loads what it needs, not in a signal */
    sigaction(SIGUSR1, &ask, NULL);
    if (tpx_me.sanitized)
        return;                    /* sanitizers tell more */
    sigaction(SIGSEGV, &crash, NULL);
    sigaction(SIGBUS, &crash, NULL);
    sigaction(SIGABRT, &crash, NULL);
}

static tp_progress_mode spmd_mode(void)
{
    const char *text = getenv("TP_PROGRESS");

    if (text != NULL && strcmp(text, "thread") == 0)
        return TP_PROGRESS_THREAD;
    if (text != NULL && strcmp(text, "manual") == 0)
        return TP_PROGRESS_MANUAL;
    return TP_PROGRESS_AUTO;
}

static bool spmd_is_set(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && *text != '\0';
}

void tpx_rank_run(const struct tpx_spmd *test, char **arguments)
{
    const char *seed = getenv("TP_TEST_SEED"), *rank = getenv("TP_RANK");

    tpx_me.mode = spmd_mode();
    tpx_me.full = spmd_is_set("TP_TEST_LONG");
    tpx_me.few = spmd_is_set("TP_TEST_FEW");
    tpx_me.sanitized = tpx_me.few || spmd_is_set("TP_TEST_SANITIZER");
    tpx_me.seed = seed != NULL ? strtoull(seed, NULL, 0) : 1;
    tpx_me.arguments = arguments;
    tpx_me.rank = rank != NULL ? atoi(rank) : 0;
    spmd_signals();
    tpx_check((test->flags & TPX_FREES) == 0
              || setenv("TP_ALLOC_KEEP", "0", 1) == 0, "setenv");
    if ((test->flags & TPX_BARE) == 0) {
        tpx_at("tp_init");
        tpx_ok(tp_init(NULL, &tpx_me.context));
        tpx_me.rank = tp_rank(tpx_me.context);
        tpx_me.size = tp_size(tpx_me.context);
    }
    tpx_at(test->name);
    test->run();
    tpx_at("tp_finalize");
    if (tpx_me.context != NULL)
        tpx_ok(tp_finalize(tpx_me.context));
    tpx_me.context = NULL;
}

bool tpx_backend(const char *name)
{
    const char *backends = getenv("TP_BACKENDS");

    return backends != NULL && strstr(backends, name) != NULL;
}

bool tpx_prefer_cma(void)
{
    const char *backends = getenv("TP_BACKENDS");
    const char *required = getenv("TP_REQUIRE");
    const char *shm = backends == NULL ? NULL : strstr(backends, "shm,");
    char list[256];

    if (!tpx_backend("cma"))
        return false;
    if (required != NULL && strstr(required, "cma") != NULL)
        return true;               /* it is chosen, then */
    if (shm == NULL || (shm > backends && shm[-1] != ',')
        || getenv("TPX_TCP") == NULL)
        return false;
    snprintf(list, sizeof(list), "%.*sofi:tcp%s", (int)(shm - backends),
             backends, shm + strlen("shm"));
    tpx_check(setenv("TP_BACKENDS", list, 1) == 0, "setenv");
    return true;
}

static bool spmd_counted(const unsigned *counter, unsigned count)
{
    return __atomic_load_n(counter, __ATOMIC_ACQUIRE) >= count;
}

void tpx_until(const unsigned *counter, unsigned count)
{
    while (!spmd_counted(counter, count))
        tpx_ok(tp_wait(tpx_me.context, -1, NULL));
}

void tpx_poll(void)
{
    struct pollfd pfd = { .fd = tp_fd(tpx_me.context), .events = POLLIN };
    int limit = tpx_limit_ms(20000);

    tpx_check(poll(&pfd, 1, limit) == 1,
              "poll() saw nothing for %d ms: a wake-up is lost", limit);
}

void tpx_until_polled(const unsigned *counter, unsigned count)
{
    unsigned vain = 0;

    while (!spmd_counted(counter, count)) {
        int completed = 1;

        while (completed > 0 && !spmd_counted(counter, count)) {
            tpx_ok(tp_progress(tpx_me.context, &completed));
            vain = completed > 0 ? 0 : vain + 1;
        }
        /* Bytes that move without an end are worth a look, too; but this is a
         * loop that turns round for ever. */
        tpx_check(vain < 200000, "poll() has told of nothing, time and again");
        if (!spmd_counted(counter, count))
            tpx_poll();
    }
}

void tpx_count_ok(tp_pipe *pipe, tp_status status, tp_message *message,
                  void *arg)
{
    (void)message;
    tpx_check(status == TP_OK, "an operation ended with \"%s\": %s",
              tp_strerror(status), tp_pipe_error(pipe));
    __atomic_fetch_add((unsigned *)arg, 1, __ATOMIC_ACQ_REL);
}

void tpx_ended(tp_pipe *pipe, tp_status status, tp_message *message, void *arg)
{
    struct tpx_end *end = arg;

    (void)pipe;
    (void)message;
    end->status = status;
    __atomic_fetch_add(&end->over, 1, __ATOMIC_ACQ_REL);
}

tp_pipe *tpx_pipe(int rank, unsigned number)
{
    tp_pipe *pipe;

    tpx_ok(tp_pipe_open(tpx_me.context, rank, number, &pipe));
    return pipe;
}

enum { SPMD_MEETING = 7777 };  /* the number of the pipes for meeting */

void tpx_meet(int rank)
{
    tp_pipe *pipe = tpx_pipe(rank, SPMD_MEETING);
    char byte = 'm';

    tpx_ok(tp_pipe_send(pipe, &byte, 1));
    tpx_ok(tp_pipe_recv(pipe, &byte, 1, NULL));
}

void tpx_barrier(void)
{
    char byte = 'b';

    if (tpx_me.rank != 0) {
        tpx_meet(0);
        tpx_ok(tp_pipe_recv(tpx_pipe(0, SPMD_MEETING), &byte, 1, NULL));
        return;
    }
    for (int rank = 1; rank < tpx_me.size; rank++)
        tpx_meet(rank);
    for (int rank = 1; rank < tpx_me.size; rank++)
        tpx_ok(tp_pipe_send(tpx_pipe(rank, SPMD_MEETING), &byte, 1));
}

void tpx_clear(const char *directory)
{
    DIR *open = opendir(directory);
    const struct dirent *entry;

    while (open != NULL && (entry = readdir(open)) != NULL)
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(open), entry->d_name, 0);
    if (open != NULL)
        closedir(open);
}

const char *tpx_file(const char *name)
{
    static char path[160];
    const char *directory = getenv("TP_BOOTSTRAP");

    tpx_check(directory != NULL && strncmp(directory, "dir:", 4) == 0,
              "not started by the harness");
    snprintf(path, sizeof(path), "%.100s/%.50s", directory + 4, name);
    return path;
}

void tpx_file_make(const char *name)
{
    FILE *file = fopen(tpx_file(name), "we");

    tpx_check(file != NULL && fclose(file) == 0, "cannot make %s", name);
}

/* A rank may get its cpu seconds late.  And where another launcher starts the
 * ranks, test_launched has to lose its patience first: it asks each where it
 * is, and knows launchers that left one behind, for which the others wait. */
int tpx_limit_ms(int ms)
{
    return 6 * ms;
}

uint64_t tpx_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void tpx_sleep_ms(unsigned ms)
{
    struct timespec t = { .tv_sec = ms / 1000,
                          .tv_nsec = (long)(ms % 1000) * 1000000 };

    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
}

static uint64_t spmd_us(struct timeval t)
{
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_usec;
}

uint64_t tpx_cpu_us(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return spmd_us(usage.ru_utime) + spmd_us(usage.ru_stime);
}

static int spmd_compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

void tpx_sort(uint64_t *values, size_t count)
{
    qsort(values, count, sizeof(values[0]), spmd_compare);
}

size_t tpx_resident(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long total = 0, resident = 0;

    if (file == NULL || fscanf(file, "%lu %lu", &total, &resident) != 2)
        tpx_fail(__FILE__, __LINE__, "cannot read /proc/self/statm");
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

bool tpx_is_chosen(tp_pipe *pipe, const char *name)
{
    char *json, *at, pattern[64];
    bool chosen;

    tpx_ok(tp_pipe_explain(pipe, &json));
    snprintf(pattern, sizeof(pattern), "\"name\": \"%s\"", name);
    at = strstr(json, pattern);
    at = at != NULL ? strstr(at, "\"reason\"") : NULL;
    chosen = at != NULL && strncmp(at, "\"reason\": \"chosen\"", 18) == 0;
    free(json);
    return chosen;
}

int tpx_mappings(const char *kind)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;

    tpx_check(maps != NULL, "no /proc/self/maps");
    while (fgets(line, sizeof(line), maps) != NULL)
        count += strstr(line, "tp-alloc") != NULL
                 && strstr(line, kind) != NULL;
    fclose(maps);
    return count;
}

void tpx_mappings_end(void)
{
    tpx_meet(!tpx_me.rank);
    tpx_at("mappings that do not go");
    while (tpx_mappings("") > 0) {
        tpx_ok(tp_progress(tpx_me.context, NULL));
        tpx_sleep_ms(1);
    }
}

/* splitmix64, by Sebastiano Vigna, in the public domain. */
uint64_t tpx_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

unsigned tpx_below(uint64_t *state, unsigned limit)
{
    return (unsigned)(tpx_random(state) % limit);
}

static uint64_t spmd_word(uint64_t seed, size_t at)
{
    return (seed + at) * UINT64_C(0x9e3779b97f4a7c15);
}

void tpx_fill(void *memory, size_t length, uint64_t seed)
{
    unsigned char *to = memory;
    uint64_t word;
    size_t at = 0;

    for (; length - at >= 8; at += 8) {
        word = spmd_word(seed, at);
        memcpy(to + at, &word, 8);
    }
    word = spmd_word(seed, at);
    memcpy(to + at, &word, length - at);
}

size_t tpx_verify(const void *memory, size_t length, uint64_t seed)
{
    const unsigned char *from = memory, *bytes;
    uint64_t word = 0, got = 0;
    size_t at = 0;

    /* Whole words, for speed: much of a test's time goes by here. */
    for (; length - at >= 8; at += 8) {
        word = spmd_word(seed, at);
        memcpy(&got, from + at, 8);
        if (got != word)
            break;
    }
    word = spmd_word(seed, at);
    bytes = (const unsigned char *)&word;
    for (size_t i = 0; i < 8 && at + i < length; i++)
        if (from[at + i] != bytes[i])
            return at + i;
    return length;
}

struct spmd_loan {
    size_t length;
    uint64_t seed;
    unsigned ended;
};

static void spmd_closed_lent(tp_pipe *pipe, tp_status status,
                             tp_message *message, void *arg)
{
    struct spmd_loan *loan = arg;

    (void)pipe;
    tpx_sleep_ms(300);             /* the peer's write ends meanwhile */
    if (status == TP_OK)
        tpx_equal(tpx_verify(message->payloads[0].data, loan->length,
                             loan->seed), loan->length);
    else
        tpx_status(status, TP_ERR_CLOSED);
    __atomic_fetch_add(&loan->ended, 1, __ATOMIC_RELEASE);
}

static void spmd_closed_arrived(tp_pipe *pipe, tp_status status,
                                tp_message *message, void *arg)
{
    tpx_ok(status);
    tpx_ok(tp_pipe_borrow(pipe, message, spmd_closed_lent, arg));
    tpx_ok(tp_pipe_close(pipe));
}

void tpx_borrow_closed(tp_pipe *pipe, size_t length, uint64_t seed)
{
    struct spmd_loan loan = { .length = length, .seed = seed };

    tpx_ok(tp_pipe_read_descriptor(pipe, spmd_closed_arrived, &loan));
    tpx_until(&loan.ended, 1);
}
