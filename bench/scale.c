/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a peer costs a rank of a big job before a byte has moved: the time to
 * decide how to reach it, and the memory that it takes from then on.  Cards are
 * made up, encoded as ranks publish them, and go through the code that a rank
 * uses; nothing is started and nothing connected.
 *
 *     scale [RANKS [RANKS-PER-HOST]]
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/bench.h"
#include "bench/statistics.h"
#include "runtime/base/alloc.h"
#include "topology/book.h"

enum {
    SCALE_RANKS = 100000, SCALE_PER_HOST = 64, SCALE_MOST = 10000000,
    SCALE_NUMAS = 2, SCALE_CLASSES = 64
};

struct scale {
    uint32_t ranks, per_host, first_count;
    struct tpt_card mine, card, read;
    uint8_t blob[TPT_CARD_BYTES];
    struct tpt_book *book;
    struct tpt_entry **entries;
    double *decide, *decode;       /* ns of each */
    double first[SCALE_CLASSES];   /* of the first of each class */
};

/* ---- the cards --------------------------------------------------------- */

static struct tpt_backend_card *scale_backend(struct tpt_card *card,
                                              const char *name,
                                              enum tpt_reach reach,
                                              uint32_t latency_ns,
                                              uint32_t megabytes,
                                              uint16_t address_length)
{
    struct tpt_backend_card *backend = &card->backends[card->backend_count++];

    snprintf(backend->name, sizeof(backend->name), "%s", name);
    backend->reach = (uint8_t)reach;
    backend->usable = 1;
    backend->latency_ns = latency_ns;
    backend->megabytes = megabytes;
    backend->address_length = address_length;
    return backend;
}

/* The usual backends of a build, with addresses as long as theirs are. */
static void scale_machine(const struct scale *scale, struct tpt_card *card)
{
    static const char *const nics[] = { "eth0", "mlx5_0", "ib0" };

    snprintf(card->job, sizeof(card->job), "scale");
    card->size = (int32_t)scale->ranks;
    for (int i = 0; i < 3; i++) {
        struct tpt_nic *nic = &card->nics[card->nic_count++];

        snprintf(nic->name, sizeof(nic->name), "%s", nics[i]);
        nic->kind = i == 1 ? TPT_NIC_RDMA : TPT_NIC_IP;
        nic->megabits = i == 0 ? 10000 : 200000;
        nic->pci = 0x1800 + (uint32_t)i;
    }
    scale_backend(card, "loop", TPT_REACH_PROCESS, 50, 10000, 0);
    scale_backend(card, "shm", TPT_REACH_HOST, 150, 19000, 40);
    scale_backend(card, "ofi:tcp", TPT_REACH_NETWORK, 15000, 3000, 96)
        ->nic_kind = TPT_NIC_IP;
    scale_backend(card, "ofi:verbs", TPT_REACH_NETWORK, 1200, 8000, 96)
        ->nic_kind = TPT_NIC_RDMA;
    scale_backend(card, "ofi:shm", TPT_REACH_HOST, 700, 8000, 60);
    scale_backend(card, "map", TPT_REACH_HOST, 200, 40000, 0)->role
        = TPT_ROLE_CHANNEL;
    scale_backend(card, "cma", TPT_REACH_HOST, 1500, 14000, 24)->role
        = TPT_ROLE_CHANNEL;
    scale_backend(card, "rma", TPT_REACH_NETWORK, 15000, 24000, 0)->role
        = TPT_ROLE_CHANNEL;
    snprintf(card->backends[7].over, TPT_NAME, "ofi:verbs");
}

/* As theirs are: 24 bytes of its own; of the host 8; a name in 16; 8 that are
 * all but empty; then IP addresses in 20 each with a port of its own, every
 * other one IPv4. */
static void scale_address(struct tpt_backend_card *backend, uint32_t own,
                          uint32_t rank)
{
    for (uint16_t i = 0; i < backend->address_length; i++) {
        uint16_t of = i < 56 ? i : (uint16_t)(56 + (i - 56) % 40);
        bool empty = (of >= 37 && of < 48) || (of >= 49 && of < 56)
                     || (of >= 64 && of < 76);
        bool port = of >= 56 && (of % 20 == 18 || of % 20 == 19);
        bool same = (of >= 24 && of < 32) || (of >= 56 && !port);

        backend->address[i] = (uint8_t)(
            empty ? 0 : 1 + (rank * 31 + i + (same ? 0 : own * 7)) % 255);
    }
}

static void scale_rank(const struct scale *scale, uint32_t rank,
                       struct tpt_card *card)
{
    uint32_t host = rank / scale->per_host, core = rank % scale->per_host;
    uint32_t half = (scale->per_host + SCALE_NUMAS - 1) / SCALE_NUMAS;

    card->rank = (int32_t)rank;
    card->pid = 1000 + core;
    memcpy(card->instance, &rank, sizeof(rank));
    memcpy(card->cookie, &rank, sizeof(rank));
    memcpy(card->host.boot_id, &host, sizeof(host));
    card->host.boot_id[15] = 1;
    snprintf(card->host.name, sizeof(card->host.name), "node%05u", host);
    card->place = (struct tpt_place) {
        .topology = 4711, .core = (int32_t)core, .l2 = (int32_t)core,
        .l3 = (int32_t)(core / half), .numa = (int32_t)(core / half),
        .package = (int32_t)(core / half), .cpus = 1,
        .machine_cpus = scale->per_host
    };
    for (uint32_t i = 0; i < card->backend_count; i++)
        scale_address(&card->backends[i], i, rank);
}

/* ---- the measurement --------------------------------------------------- */

/* Bytes that this process has in memory, see proc(5). */
static double scale_resident(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long all = 0, resident = 0;

    if (file == NULL)
        return 0;
    if (fscanf(file, "%lu %lu", &all, &resident) != 2)
        resident = 0;
    fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static tp_status scale_meet(struct scale *scale, uint32_t i,
                            struct tpb_error *error)
{
    struct tpt_book_size before, after;
    uint64_t begin, decoded, end;
    size_t length;
    tp_status status;

    scale_rank(scale, i + 1, &scale->card);
    status = tpt_card_encode(&scale->card, scale->blob, &length);
    if (status != TP_OK)
        return tpb_fail(error, status, "a card cannot be encoded");
    tpt_book_measure(scale->book, &before);
    begin = tpb_now();
    status = tpt_card_decode(scale->blob, length, &scale->read, error);
    decoded = tpb_now();
    if (status == TP_OK)
        status = tpt_book_enter(scale->book, &scale->read, &scale->entries[i],
                                error);
    end = tpb_now();
    if (status != TP_OK)
        return status;
    scale->decode[i] = (double)(decoded - begin);
    scale->decide[i] = (double)(end - decoded);
    tpt_book_measure(scale->book, &after);
    if (after.decisions > before.decisions
        && scale->first_count < SCALE_CLASSES)
        scale->first[scale->first_count++] = (double)(end - decoded);
    return TP_OK;
}

static void scale_times(const char *what, double *values, size_t count)
{
    double sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += values[i];
    bench_sort(values, count);
    printf("%-36s %8.0f ns, %.0f in the middle, %.0f for 99 of 100\n", what,
           count > 0 ? sum / (double)count : 0,
           bench_quantile(values, count, 0.5),
           bench_quantile(values, count, 0.99));
}

static void scale_memory(const struct scale *scale, const char *what)
{
    struct tpt_book_size size;

    tpt_book_measure(scale->book, &size);
    printf("%-36s %8.0f bytes\n", what, (double)size.bytes / scale->ranks);
}

static tp_status scale_run(struct scale *scale, struct tpb_error *error)
{
    static const struct tpt_policy everything = { NULL, NULL };
    double resident = scale_resident();
    struct tpt_book_size size;
    tp_status status = TP_OK;

    scale->book = tpt_book_new(&scale->mine, &everything);
    for (uint32_t i = 0; i < scale->ranks && status == TP_OK; i++)
        status = scale_meet(scale, i, error);
    if (status != TP_OK)
        return status;
    tpt_book_measure(scale->book, &size);
    printf("%u ranks, %u per host: %zu decisions\n", scale->ranks,
           scale->per_host, size.decisions);
    resident = scale_resident() - resident;
    scale_times("a decision", scale->decide, scale->ranks);
    scale_times("the first of a class", scale->first, scale->first_count);
    scale_times("reading the card before", scale->decode, scale->ranks);
    scale_memory(scale, "a known peer, not yet connected");
    printf("%-36s %8.0f bytes\n", "... as the process has grown",
           resident / scale->ranks);
    for (uint32_t i = 0; i < scale->ranks; i++)
        tpt_entry_forget_addresses(scale->entries[i]);
    scale_memory(scale, "a known peer, connected");
    return TP_OK;
}

/* A whole number of 1 to the most. */
static bool scale_number(const char *text, uint32_t *number)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);

    *number = (uint32_t)value;
    return end != text && *end == '\0' && *text != '-' && value > 0
           && value <= SCALE_MOST;
}

int main(int argc, char **argv)
{
    struct scale *scale = calloc(1, sizeof(*scale));
    struct tpb_error error = { "out of memory" };
    tp_status status = TP_ERR_NO_MEMORY;

    if (scale == NULL)
        return 1;
    scale->ranks = SCALE_RANKS;
    scale->per_host = SCALE_PER_HOST;
    if (argc > 3 || (argc > 1 && !scale_number(argv[1], &scale->ranks))
        || (argc > 2 && !scale_number(argv[2], &scale->per_host))) {
        bench_say("usage: scale [RANKS [RANKS-PER-HOST]]");
        free(scale);
        return 2;
    }
    scale_machine(scale, &scale->mine);
    scale_rank(scale, 0, &scale->mine);
    scale->card = scale->mine;
    scale->entries = calloc(scale->ranks, sizeof(struct tpt_entry *));
    scale->decide = calloc(scale->ranks, sizeof(double));
    scale->decode = calloc(scale->ranks, sizeof(double));
    if (scale->entries != NULL && scale->decide != NULL
        && scale->decode != NULL) {
        /* So that only what comes later makes the process grow. */
        for (uint32_t i = 0; i < scale->ranks; i++) {
            scale->entries[i] = NULL;
            scale->decide[i] = scale->decode[i] = 1;
        }
        status = scale_run(scale, &error);
    }
    if (status != TP_OK)
        bench_say("%s", error.text);
    for (uint32_t i = 0; scale->entries != NULL && i < scale->ranks; i++)
        tpt_entry_drop(scale->entries[i]);
    tpt_book_free(scale->book);
    free(scale->entries);
    free(scale->decide);
    free(scale->decode);
    free(scale);
    return status == TP_OK ? 0 : 1;
}
