/* SPDX-License-Identifier: BSD-3-Clause */
/* What it costs to be there: time to start and to meet, memory per peer, and
 * processor time of waiting. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bench/clock.h"
#include "bench/report.h"
#include "bench/statistics.h"
#include "bench/tpperf.h"

/* ---- what the kernel says of this process ------------------------------- */

/* A line such as "Anonymous:  123 kB" of a file of /proc/self; -1 if there is
 * none. */
static long special_kib(const char *path, const char *name)
{
    FILE *file = fopen(path, "re");
    size_t length = strlen(name);
    char line[256];
    long kib = -1;

    if (file == NULL)
        return -1;
    while (fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, name, length) == 0 && line[length] == ':')
            kib = strtol(line + length + 1, NULL, 10);
    fclose(file);
    return kib;
}

/* What the kernel finds in the page tables; where it was built without that,
 * what it counts, which each cpu does by itself: 32 pages a cpu may be missing
 * or too many. */
static long special_pages_kib(const char *found, const char *counted)
{
    long kib = special_kib("/proc/self/smaps_rollup", found);

    if (kib < 0)
        kib = special_kib("/proc/self/status", counted);
    return kib < 0 ? 0 : kib;
}

long perf_rss_kib(void)
{
    return special_pages_kib("Rss", "VmRSS");
}

long perf_private_kib(void)
{
    return special_pages_kib("Anonymous", "RssAnon");
}

/* Of a mapping, the pages that somebody has touched. */
static unsigned long special_pages(unsigned long from, unsigned long to)
{
    unsigned char there[256];
    unsigned long size = (unsigned long)sysconf(_SC_PAGESIZE), pages = 0;

    while (from < to) {
        unsigned long count = (to - from) / size;

        if (count > sizeof(there))
            count = sizeof(there);
        if (mincore((void *)from, count * size, there) != 0)
            break;
        for (unsigned long i = 0; i < count; i++)
            pages += there[i] & 1;
        from += count * size;
    }
    return pages * size;
}

/* What the file of a mapping occupies, reserved or touched; false if this
 * process may not ask (CAP_CHECKPOINT_RESTORE). */
static bool special_blocks(unsigned long from, unsigned long to, double *kib)
{
    static bool said;
    struct stat status;
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/map_files/%lx-%lx", from, to);
    if (stat(path, &status) != 0) {
        if (!said)
            bench_say("%s: %s; memory that is reserved and not used yet is"
                      " not counted", path, strerror(errno));
        said = true;
        return false;
    }
    *kib = (double)status.st_blocks / 2;
    return true;
}

/* A file whose mappings stand side by side; of what is there, KiB. */
struct special_file {
    unsigned long node, end;       /* how far of it has been counted */
    double mapped;
    double there;                  /* of the pages that have been counted */
    double blocks;                 /* of the whole file; -1: unknown */
};

/* Parts of a file may be mapped twice, as rings are; they count once. */
static void special_add(struct special_file *file, unsigned long from,
                        unsigned long to, unsigned long offset)
{
    if (offset + (to - from) <= file->end)
        return;
    if (offset < file->end) {
        from += file->end - offset;
        offset = file->end;
    }
    file->end = offset + (to - from);
    file->mapped += (double)(to - from) / 1024;
    if (file->blocks < 0)
        file->there += (double)special_pages(from, to) / 1024;
}

/* Of a file that is mapped in part, such as a job's record, the rest is others'
 * memory. */
static void special_end(const struct special_file *file, double *mapped,
                        double *there)
{
    *mapped += file->mapped;
    *there += file->blocks < 0 ? file->there : fmin(file->blocks, file->mapped);
}

/* What is shared with peers through memory files, in KiB: what may be used, and
 * what of it occupies memory. */
static void special_shared(double *mapped, double *there)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    struct special_file file = { 0 };
    unsigned long from, to, offset, node;
    char line[512];

    *mapped = *there = 0;
    if (maps == NULL)
        return;
    while (fgets(line, sizeof(line), maps) != NULL) {
        if (strstr(line, "/memfd:") == NULL
            || sscanf(line, "%lx-%lx %*s %lx %*s %lu", &from, &to, &offset,
                      &node) != 4)
            continue;
        if (node != file.node) {
            special_end(&file, mapped, there);
            file = (struct special_file) { .node = node };
            if (!special_blocks(from, to, &file.blocks))
                file.blocks = -1;
        }
        special_add(&file, from, to, offset);
    }
    special_end(&file, mapped, there);
    fclose(maps);
}

/* ---- results ------------------------------------------------------------ */

static void special_spread(struct perf *perf, const char *test,
                           const char *unit, double value, double low,
                           double high)
{
    struct bench_result result = {
        .who = perf->driver.who, .test = test, .mode = perf->mode,
        .buffers = "-", .ranks = perf->driver.size, .unit = unit,
        .value = value, .low = low, .high = high, .best = NAN, .p99 = NAN,
        .repetitions = 1, .waited = NAN
    };

    bench_report(&result);
}

/* Of sorted values. */
static void special_report(struct perf *perf, const char *test,
                           const char *unit, const double *values,
                           unsigned count)
{
    special_spread(perf, test, unit, bench_quantile(values, count, 0.5),
                   values[0], values[count - 1]);
}

/* ---- starting ----------------------------------------------------------- */

/* Every rank sends to its right and hears from its left.  Eight bytes are
 * always taken at once, so that the ring cannot stand still. */
static bool special_meet(struct perf *perf)
{
    struct bench_driver *driver = &perf->driver;
    uint64_t out = (uint64_t)driver->rank, in;
    int right = (driver->rank + 1) % driver->size;
    int left = (driver->rank + driver->size - 1) % driver->size;

    if (!driver->send(driver, right, &out, sizeof(out))
        || !driver->receive(driver, left, &in, sizeof(in)))
        return false;
    if (in == (uint64_t)left)
        return true;
    bench_say("the first message from rank %d was wrong", left);
    return false;
}

/* Column `column` of the ranks' figures: all of them, sorted. */
static bool special_column(struct perf *perf, const double *all,
                           unsigned column, const char *test)
{
    unsigned ranks = (unsigned)perf->driver.size;
    double *values = calloc(ranks, sizeof(*values));

    if (values == NULL) {
        bench_say("out of memory");
        return false;
    }
    for (unsigned rank = 0; rank < ranks; rank++)
        values[rank] = all[2 * rank + column];
    bench_sort(values, ranks);
    special_report(perf, test, "ms", values, ranks);
    free(values);
    return true;
}

static bool special_init(struct perf *perf)
{
    uint64_t begun = bench_ticks();
    double mine[2], *all;
    bool good = true;

    if (!special_meet(perf))
        return false;
    mine[0] = perf->init_ms;
    mine[1] = bench_ns(bench_ticks() - begun) / 1e6;
    if (!bench_gather(&perf->driver, perf->driver.size, mine, 2, &all))
        return false;
    if (all != NULL)
        good = special_column(perf, all, 0, "init")
               && special_column(perf, all, 1, "first-contact");
    free(all);
    return good;
}

/* ---- memory ------------------------------------------------------------- */

/* What the kernel counts, for the difference that the peers make. */
struct special_memory {
    double private, there, mapped;
};

static struct special_memory special_count(void)
{
    struct special_memory memory = {
        .private = (double)perf_private_kib()
    };

    special_shared(&memory.mapped, &memory.there);
    return memory;
}

struct special_first {
    struct perf *perf;
    uint64_t word;
};

static void special_read(tp_pipe *pipe, tp_status status, tp_message *message,
                         void *arg)
{
    struct special_first *first = arg;

    (void)message;
    if (status != TP_OK)
        perf_fail(first->perf, pipe, "read", status);
    else
        perf_done(first->perf);
}

static void special_arrived(tp_pipe *pipe, tp_status status,
                            tp_message *skeleton, void *arg)
{
    struct special_first *first = arg;

    if (status == TP_OK && (skeleton->payload_count != 1
                            || skeleton->payloads[0].length != 8))
        status = TP_ERR_PROTOCOL;
    if (status == TP_OK) {
        skeleton->payloads[0].data = &first->word;
        status = tp_pipe_read(pipe, skeleton, special_read, first);
    }
    if (status != TP_OK)
        perf_fail(first->perf, pipe, "read_descriptor_any", status);
}

/* Hears the first word without a pipe of its own: rank 0 is to make the
 * contact, when it has counted. */
static bool special_hear(struct perf *perf)
{
    struct special_first first = { .perf = perf };
    tp_status status = tp_read_descriptor_any(perf->context, special_arrived,
                                              &first);

    if (status != TP_OK)
        return perf_say(NULL, "tp_read_descriptor_any", status);
    if (perf_await(perf))
        return true;
    perf_stop(perf);
    return false;
}

/* A few messages with each peer, so that what grows has grown. */
static bool special_talk(struct perf *perf, int rank)
{
    struct bench_driver *driver = &perf->driver;
    int peer = driver->rank == 0 ? rank : 0;
    uint64_t word = 1;

    if (driver->rank > 0
        && (!special_hear(perf) || !driver->send(driver, 0, &word, 8)))
        return false;
    if (driver->rank == 0
        && (!driver->send(driver, rank, &word, 8)
            || !driver->receive(driver, rank, &word, 8)))
        return false;
    for (int k = 0; k < 64; k++)
        if (!driver->send(driver, peer, &word, 8)
            || !driver->receive(driver, peer, &word, 8))
            return false;
    return true;
}

/* What rank 0 has found: of itself, and for each of `peers`. */
static void special_tell(struct perf *perf, const struct special_memory *before,
                         const struct special_memory *after, int peers)
{
    double private = (after->private - before->private) / peers;
    double there = (after->there - before->there) / peers;
    double mapped = (after->mapped - before->mapped) / peers;
    double pair = there + 2 * private;

    special_report(perf, "memory-peer-private", "KiB", &private, 1);
    special_report(perf, "memory-peer-shared", "KiB", &there, 1);
    special_report(perf, "memory-peer-mapped", "KiB", &mapped, 1);
    special_report(perf, "memory-pair", "KiB", &pair, 1);
}

static bool special_memory(struct perf *perf)
{
    int peers = perf->driver.size - 1;
    double context = (double)(perf_rss_kib() - perf->rss_before_kib);
    struct special_memory before = special_count(), after;
    double private = before.private + before.there
                     - (double)perf->private_before_kib;
    uint64_t word = 0;

    if (perf->driver.rank > 0)
        return special_talk(perf, perf->driver.rank)
               && perf->driver.receive(&perf->driver, 0, &word, sizeof(word));
    for (int rank = 1; rank <= peers; rank++)
        if (!special_talk(perf, rank))
            return false;
    after = special_count();
    /* Only now may they leave: what they share with us would go with them. */
    for (int rank = 1; rank <= peers; rank++)
        if (!perf->driver.send(&perf->driver, rank, &word, sizeof(word)))
            return false;
    special_report(perf, "memory-context", "KiB", &context, 1);
    special_report(perf, "memory-context-private", "KiB", &private, 1);
    special_tell(perf, &before, &after, peers);
    return true;
}

/* ---- waiting ------------------------------------------------------------ */

static double special_cpu_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/*
 * Everybody has met rank 0 and waits for its word; it waits for that of the
 * last rank, who sleeps outside tp.  *share: of one cpu, in percent.
 */
static bool special_rest(struct perf *perf, double *share)
{
    struct bench_driver *driver = &perf->driver;
    int last = driver->size - 1, rank = driver->rank;
    double ms = perf->options->time_ms * perf->options->repetitions;
    double cpu = special_cpu_ms();
    uint64_t begun = bench_system_ns(), word = 0;

    if (rank == last) {
        usleep((useconds_t)(ms * 1e3));
        *share = 0;
        return driver->send(driver, 0, &word, sizeof(word));
    }
    if (!driver->receive(driver, rank == 0 ? last : 0, &word, sizeof(word)))
        return false;
    *share = 100 * (special_cpu_ms() - cpu)
             / ((double)(bench_system_ns() - begun) / 1e6);
    return true;
}

/* Rank 0 with every other, to and fro. */
static bool special_contact(struct perf *perf)
{
    struct bench_driver *driver = &perf->driver;
    uint64_t word = 0;

    if (driver->rank > 0)
        return driver->receive(driver, 0, &word, sizeof(word))
               && driver->send(driver, 0, &word, sizeof(word));
    for (int rank = 1; rank < driver->size; rank++)
        if (!driver->send(driver, rank, &word, sizeof(word))
            || !driver->receive(driver, rank, &word, sizeof(word)))
            return false;
    return true;
}

static bool special_idle(struct perf *perf)
{
    struct bench_driver *driver = &perf->driver;
    double share, *all;
    uint64_t word = 0;

    if (!special_contact(perf) || !special_rest(perf, &share))
        return false;
    for (int rank = 1; rank < driver->size - 1 && driver->rank == 0; rank++)
        if (!driver->send(driver, rank, &word, sizeof(word)))
            return false;
    if (!bench_gather(driver, driver->size, &share, 1, &all))
        return false;
    if (all != NULL) {
        /* The last rank did not wait, and measured nothing. */
        bench_sort(all, (size_t)driver->size - 1);
        special_spread(perf, "idle", "%", share, all[0],
                       all[driver->size - 2]);
    }
    free(all);
    return true;
}

bool perf_special(struct bench_driver *driver, enum bench_test test)
{
    struct perf *perf = perf_of(driver);

    switch (test) {
    case BENCH_INIT: return special_init(perf);
    case BENCH_IDLE: return special_idle(perf);
    default: return special_memory(perf);
    }
}
