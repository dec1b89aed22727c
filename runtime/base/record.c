/* SPDX-License-Identifier: BSD-3-Clause */
/* The record of a job: made, mapped, checked. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/io.h"
#include "runtime/base/record.h"

/* Without SHRINK a mapping could turn into SIGBUS. */
#define RECORD_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* How often a slot is read that changes its pipe meanwhile. */
enum { RECORD_TRIES = 8 };

/* What is shared is copied and cleared by these, so that no word is torn. */
typedef uint64_t __attribute__((may_alias)) record_word;
enum { RECORD_WORDS = sizeof(struct tpb_record_pipe) / sizeof(record_word) };
_Static_assert(offsetof(struct tpb_record_pipe, serial) == 0
               && sizeof(struct tpb_record_pipe) % sizeof(record_word) == 0
               && offsetof(struct tpb_record_pipe, stats.transport)
                  % sizeof(record_word) == 0, "a slot is made of words");
_Static_assert(sizeof(struct tpb_record_rank) % sizeof(record_word) == 0
               && offsetof(struct tpb_record_rank, gone) % sizeof(record_word)
                  == 0 && offsetof(struct tpb_record_gone, changes) == 0,
               "so is a rank, and `changes` is before what it is about");

static size_t record_stride(uint32_t slots)
{
    size_t bytes = sizeof(struct tpb_record_rank)
                   + slots * sizeof(struct tpb_record_pipe);
    size_t page = tpb_page();

    return (bytes + page - 1) / page * page;
}

static size_t record_size(const struct tpb_record_file *file)
{
    return tpb_page() + (size_t)file->ranks * file->stride;
}

static bool record_valid(const struct tpb_record_file *file, size_t size)
{
    return file->magic == TPB_RECORD_MAGIC
           && file->version == TPB_RECORD_VERSION && file->ranks > 0
           && file->ranks <= TPB_RECORD_RANKS
           && file->slots <= TPB_RECORD_SLOTS
           && file->stride == record_stride(file->slots)
           && size == record_size(file);
}

int64_t tpb_record_ahead(void)
{
    struct stat own, children;
    char text[256];
    const char *line;
    long long seconds = 0, ns = 0;
    ssize_t got = -1;
    int fd = -1;

    /* What is told there is of children, and ours if they share our clock. */
    if (stat("/proc/self/ns/time", &own) == 0
        && stat("/proc/self/ns/time_for_children", &children) == 0
        && own.st_ino == children.st_ino)
        fd = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);
    if (fd >= 0)
        got = read(fd, text, sizeof(text) - 1);
    tpb_close(&fd);
    text[got > 0 ? got : 0] = '\0';
    line = strstr(text, "monotonic");
    if (line == NULL
        || sscanf(line, "monotonic %lld %lld", &seconds, &ns) != 2)
        return 0;
    return (int64_t)(seconds * 1000000000 + ns);
}

/* What the clock of a process ahead by `theirs` has shown, by the reader's:
 * 0 stays 0, and what is not past is now. */
static uint64_t record_time(const struct tpb_record *record, int64_t theirs,
                            uint64_t then)
{
    uint64_t here = then - (uint64_t)theirs + (uint64_t)record->ahead, now;

    if (then == 0)
        return 0;
    now = tpb_now();
    return here < now ? here : now;
}

tp_status tpb_record_make(const char *job, uint32_t ranks,
                          struct tpb_record *record, int *fd, char text[64],
                          struct tpb_error *error)
{
    /* Pages that nobody writes cost nothing. */
    uint32_t wanted = ranks + TPB_RECORD_GUESTS;
    uint32_t slots = wanted < TPB_RECORD_SLOTS ? wanted : TPB_RECORD_SLOTS;
    struct tpb_record_file file = {
        .magic = TPB_RECORD_MAGIC, .version = TPB_RECORD_VERSION,
        .ranks = ranks, .slots = slots,
        .stride = (uint32_t)record_stride(slots),
    };
    size_t size = record_size(&file);
    struct timespec now;
    int made = memfd_create(TPB_RECORD_NAME, MFD_ALLOW_SEALING);
    void *memory = MAP_FAILED;

    clock_gettime(CLOCK_REALTIME, &now);
    file.started = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    snprintf(file.job, sizeof(file.job), "%s", job);
    if (made >= 0 && ftruncate(made, (off_t)size) == 0
        && fcntl(made, F_ADD_SEALS, RECORD_SEALS) == 0)
        memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, made,
                      0);
    if (memory == MAP_FAILED) {
        int code = errno;

        tpb_close(&made);
        return tpb_fail_errno(error, code, "cannot make the record of the "
                              "job");
    }
    *record = (struct tpb_record){ memory, size, file.ranks, file.stride,
                                   tpb_record_ahead() };
    *record->file = file;
    snprintf(text, 64, "%d:%zu", made, size);
    *fd = made;
    return TP_OK;
}

tp_status tpb_record_open(int fd, struct tpb_record *record,
                          struct tpb_error *error)
{
    struct tpb_record_file file;
    struct stat status;
    size_t size;
    void *memory;
    int seals = fcntl(fd, F_GET_SEALS);

    if (fstat(fd, &status) < 0)
        return tpb_fail_errno(error, errno, "the record");
    size = (size_t)status.st_size;
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || size < tpb_page())
        return tpb_fail(error, TP_ERR_INVALID, "this is not a record of a job");
    memory = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return tpb_fail_errno(error, errno, "cannot map the record");
    memcpy(&file, memory, sizeof(file));
    *record = (struct tpb_record){ memory, size, file.ranks, file.stride,
                                   tpb_record_ahead() };
    if (record_valid(&file, size))
        return TP_OK;
    if (file.magic == TPB_RECORD_MAGIC)
        tpb_fail(error, TP_ERR_INVALID, "the record is of version %u, this "
                 "program reads version %d: run the tptop that came with that"
                 " tprun", file.version, TPB_RECORD_VERSION);
    else
        tpb_fail(error, TP_ERR_INVALID, "this is not a record of a job");
    tpb_record_close(record);
    return TP_ERR_INVALID;
}

void tpb_record_close(struct tpb_record *record)
{
    if (record->file != NULL)
        munmap(record->file, record->size);
    record->file = NULL;
}

static char *record_section(const struct tpb_record *record, uint32_t rank)
{
    return record->file != NULL && rank < record->ranks
           ? (char *)record->file + tpb_page()
             + (size_t)rank * record->stride : NULL;
}

void tpb_record_ended(const struct tpb_record *record, uint32_t rank)
{
    struct tpb_record_rank *section = (void *)record_section(record, rank);

    if (section != NULL)
        TPB_RECORD_SET(section->ended, 1);
}

/* The first words, one after the other: each load acquires, so what is looked
 * at next is no older.  Pairs with the fences of tpb_record_take() and of
 * tpb_record_give(). */
static void record_words(const void *words, void *copy, size_t count)
{
    const record_word *from = words;
    record_word *to = copy;

    for (size_t i = 0; i < count; i++)
        to[i] = __atomic_load_n(&from[i], __ATOMIC_ACQUIRE);
}

bool tpb_record_rank(const struct tpb_record *record, uint32_t rank,
                     struct tpb_record_rank *copy)
{
    const char *section = record_section(record, rank);

    if (section == NULL)
        return false;
    record_words(section, copy, sizeof(*copy) / sizeof(record_word));
    if (copy->used > TPB_RECORD_SLOTS)
        copy->used = 0;
    if (copy->phase > TPB_PHASE_DONE)
        copy->phase = TPB_PHASE_NONE;
    if (copy->wait > TPB_WAIT_ANY)
        copy->wait = TPB_WAIT_NONE;
    copy->wait_since = record_time(record, copy->ahead, copy->wait_since);
    return true;
}

static bool record_copy(const struct tpb_record_pipe *slot,
                        struct tpb_record_pipe *copy)
{
    record_words(slot, copy, RECORD_WORDS);
    return copy->serial != 0 && TPB_RECORD_GET(slot->serial) == copy->serial;
}

bool tpb_record_pipe(const struct tpb_record *record, uint32_t rank,
                     uint32_t slot, struct tpb_record_pipe *copy)
{
    const char *section = record_section(record, rank);
    size_t at = sizeof(struct tpb_record_rank)
                + (size_t)slot * sizeof(struct tpb_record_pipe);

    if (section == NULL || at + sizeof(*copy) > record->stride)
        return false;
    for (int i = 0; i < RECORD_TRIES; i++) {
        if (record_copy((const void *)(section + at), copy))
            break;
        memset(copy, 0, sizeof(*copy));
    }
    copy->blocked_since = record_time(record, TPB_RECORD_GET(
        ((const struct tpb_record_rank *)(const void *)section)->ahead),
        copy->blocked_since);
    copy->stats.transport[sizeof(copy->stats.transport) - 1] = '\0';
    return true;
}

/* ---- the rank's side ---------------------------------------------------- */

/* Is it the launcher's memory, and not what somebody opened under the same
 * number? */
static bool record_ours(int fd, size_t size)
{
    char path[64], name[64];
    struct stat status;
    ssize_t got;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    got = readlink(path, name, sizeof(name) - 1);
    name[got > 0 ? got : 0] = '\0';
    return strcmp(name, "/memfd:" TPB_RECORD_NAME " (deleted)") == 0
           && fstat(fd, &status) == 0 && (size_t)status.st_size == size
           && (fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) != 0;
}

/* The value of TP_RECORD; false if that is no record of this process's. */
static bool record_parse(const char *text, int *fd, unsigned long *size)
{
    int used = 0;

    return sscanf(text, "%d:%lu%n", fd, size, &used) == 2
           && text[used] == '\0' && record_ours(*fd, *size);
}

void tpb_record_forget(const char *text)
{
    unsigned long size;
    int fd;

    if (record_parse(text, &fd, &size))
        tpb_close(&fd);
}

tp_status tpb_record_attach(const char *text, uint32_t rank,
                            struct tpb_record_section *section,
                            struct tpb_error *error)
{
    struct tpb_record_file file;
    unsigned long size;
    void *memory;
    int fd;

    if (!record_parse(text, &fd, &size))
        return tpb_fail(error, TP_ERR_INVALID, "TP_RECORD=%s is no record",
                        text);
    if (pread(fd, &file, sizeof(file), 0) != (ssize_t)sizeof(file)
        || !record_valid(&file, size) || rank >= file.ranks)
        return tpb_fail(error, TP_ERR_INVALID, "the record is of another "
                        "version of tp");
    memory = mmap(NULL, file.stride, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                  (off_t)(tpb_page() + (size_t)rank * file.stride));
    if (memory == MAP_FAILED)
        return tpb_fail_errno(error, errno, "cannot map the record");
    *section = (struct tpb_record_section){
        .rank = memory,
        .pipes = (void *)((char *)memory + sizeof(struct tpb_record_rank)),
        .slots = file.slots, .size = file.stride
    };
    return TP_OK;
}

void tpb_record_detach(struct tpb_record_section *section)
{
    if (section->rank != NULL)
        munmap(section->rank, section->size);
    section->rank = NULL;
}

/* The first that is free; `slots` if none is. */
static uint32_t record_free(const struct tpb_record_section *section)
{
    uint32_t slot = 0;

    while (slot < section->slots && section->taken[slot / 64] == UINT64_MAX)
        slot += 64;
    if (slot < section->slots)
        slot += (uint32_t)__builtin_ctzll(~section->taken[slot / 64]);
    return slot < section->slots ? slot : section->slots;
}

struct tpb_record_pipe *tpb_record_take(struct tpb_record_section *section,
                                        int32_t peer, uint32_t number)
{
    struct tpb_record_rank *rank = section->rank;
    uint32_t at = record_free(section);
    struct tpb_record_pipe *pipe = &section->pipes[at];
    record_word *words = (record_word *)pipe;
    uint64_t serial = TPB_RECORD_GET(rank->serial) + 1;

    if (at == section->slots)
        return NULL;
    section->taken[at / 64] |= UINT64_C(1) << at % 64;
    /* Of a rank that was killed it may have one still.  Whoever reads a word
     * that is written from here on finds another serial than the last. */
    TPB_RECORD_SET(pipe->serial, 0);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    for (size_t i = 1; i < RECORD_WORDS; i++)
        TPB_RECORD_SET(words[i], 0);
    TPB_RECORD_SET(pipe->peer, peer);
    TPB_RECORD_SET(pipe->number, number);
    TPB_RECORD_SET(rank->serial, serial);
    __atomic_store_n(&pipe->serial, serial, __ATOMIC_RELEASE);
    if (at >= TPB_RECORD_GET(rank->used))
        TPB_RECORD_SET(rank->used, at + 1);
    return pipe;
}

void tpb_record_give(struct tpb_record_section *section,
                     struct tpb_record_pipe *pipe)
{
    struct tpb_record_gone *gone = &section->rank->gone;
    uint32_t at = (uint32_t)(pipe - section->pipes);
    uint64_t changes = TPB_RECORD_GET(gone->changes) | 1;

    TPB_RECORD_SET(gone->changes, changes);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    TPB_RECORD_SET(pipe->serial, 0);
    TPB_RECORD_ADD(gone->messages_sent, pipe->stats.messages_sent);
    TPB_RECORD_ADD(gone->messages_received, pipe->stats.messages_received);
    TPB_RECORD_ADD(gone->bytes_sent, pipe->stats.bytes_sent);
    TPB_RECORD_ADD(gone->bytes_received, pipe->stats.bytes_received);
    __atomic_store_n(&gone->changes, changes + 1, __ATOMIC_RELEASE);
    section->taken[at / 64] &= ~(UINT64_C(1) << at % 64);
}

void tpb_record_transport(struct tpb_record_pipe *pipe, const char *name)
{
    record_word words[sizeof(pipe->stats.transport) / sizeof(record_word)]
        = { 0 };
    record_word *to = (record_word *)(void *)pipe->stats.transport;

    snprintf((char *)words, sizeof(words), "%s", name);
    for (size_t i = 0; i < TPB_COUNT(words); i++)
        TPB_RECORD_SET(to[i], words[i]);
}
