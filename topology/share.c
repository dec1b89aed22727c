/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The topology in shared memory: the launcher writes it once, its ranks map
 * it.  First hwloc's own, LENGTH bytes, whose pointers want it to lie at the
 * same address everywhere; behind that the table, which may lie anywhere, and
 * what tprun knows of the network (network.c).
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <hwloc/shmem.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "topology/private.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010     /* Linux 5.1 */
#endif

/*
 * Where the kernel puts nothing by itself: below the range of position-
 * independent programs (0x5555...), above what AddressSanitizer reserves, and
 * inside what ThreadSanitizer leaves to programs.
 */
#define SHARE_ADDRESS UINT64_C(0x550040000000)

/* FUTURE_WRITE and not WRITE, with which kernels before 6.7 refuse even a
 * mapping for reading (memfd_create(2), fcntl(2)). */
#define SHARE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE \
                     | F_SEAL_SEAL)
#define SHARE_NAME "tp-topology"

static void share_print(int fd, uint64_t address, uint64_t length,
                        char text[64])
{
    snprintf(text, 64, "%d:0x%llx:%llu", fd, (unsigned long long)address,
             (unsigned long long)length);
}

/* The table, and behind it the network. */
static int share_write_table(struct tpt_topology *topology, int fd)
{
    static const char padding[8];
    size_t length = topology->table->length;
    int result = tpb_write_all(fd, topology->table, length);

    if (topology->told == NULL)
        tpt_topology_look(topology);
    if (result == 0 && topology->told != NULL)
        result = tpb_write_all(fd, padding, (8 - length % 8) % 8);
    if (result == 0 && topology->told != NULL)
        result = tpb_write_all(fd, topology->told, topology->told_length);
    return result;
}

static tp_status share_write(struct tpt_topology *topology, int fd,
                             size_t length, struct tpb_error *error)
{
    if (hwloc_shmem_topology_write(topology->hwloc, fd, 0,
                                   (void *)(uintptr_t)SHARE_ADDRESS, length,
                                   0) != 0
        || lseek(fd, (off_t)length, SEEK_SET) < 0
        || share_write_table(topology, fd) != 0)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED, "the topology cannot be "
                        "written to shared memory: %s", strerror(errno));
    if (fcntl(fd, F_ADD_SEALS, SHARE_SEALS) != 0
        || fcntl(fd, F_SETFD, 0) != 0)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED, "the shared topology "
                        "cannot be sealed: %s", strerror(errno));
    return TP_OK;
}

/* ---- the rank's side --------------------------------------------------- */

struct share_text {
    uint64_t fd, address, length;
};

/* One number and what must stand behind it. */
static bool share_number(const char **text, char after, uint64_t *number)
{
    char *end;

    if (**text < '0' || **text > '9')
        return false;
    errno = 0;
    *number = strtoull(*text, &end, 0);
    if (errno != 0 || *end != after)
        return false;
    *text = end + (after != '\0');
    return true;
}

static bool share_parse(const char *text, struct share_text *parsed)
{
    return share_number(&text, ':', &parsed->fd)
           && share_number(&text, ':', &parsed->address)
           && share_number(&text, '\0', &parsed->length)
           && parsed->fd <= INT32_MAX;
}

/* Is it the launcher's memory, and not what somebody else opened under the
 * same number?  Says what it is not, or NULL. */
static const char *share_doubt(int fd, const struct share_text *parsed,
                               size_t *size)
{
    char path[64], name[64];
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat status;
    ssize_t got;

    if (fstat(fd, &status) != 0)
        return "the descriptor is not open";
    /* There may be more of them: vm.memfd_noexec adds one. */
    if (!S_ISREG(status.st_mode) || seals < 0
        || (seals & SHARE_SEALS) != SHARE_SEALS)
        return "the descriptor is not sealed memory";
    if (parsed->length >= (uint64_t)status.st_size)
        return "the memory has another length";
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    got = readlink(path, name, sizeof(name) - 1);
    name[got > 0 ? got : 0] = '\0';
    if (strcmp(name, "/memfd:" SHARE_NAME " (deleted)") != 0)
        return "the descriptor is somebody else's";
    *size = (size_t)status.st_size;
    return NULL;
}

static tp_status share_open(const char *text, struct share_text *parsed,
                            size_t *size, struct tpb_error *error)
{
    const char *doubt;

    if (!share_parse(text, parsed))
        return tpb_fail(error, TP_ERR_INVALID, "expected FD:ADDRESS:LENGTH");
    doubt = share_doubt((int)parsed->fd, parsed, size);
    if (doubt != NULL)
        return tpb_fail(error, TP_ERR_INVALID, "%s", doubt);
    return TP_OK;
}

tp_status tpt_shared_map(const char *text, struct tpt_table **table,
                         size_t *mapped, struct tpb_error *error)
{
    struct share_text parsed;
    size_t size = 0, bytes;
    tp_status status = share_open(text, &parsed, &size, error);
    void *memory;

    if (status != TP_OK)
        return status;
    bytes = size - (size_t)parsed.length;
    memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, (int)parsed.fd,
                  (off_t)parsed.length);
    if (memory == MAP_FAILED)
        return tpb_fail(error, TP_ERR_INVALID, "it cannot be mapped: %s",
                        strerror(errno));
    if (!tpt_table_valid(memory, bytes) || !tpt_network_whole(memory, bytes)) {
        munmap(memory, bytes);
        return tpb_fail(error, TP_ERR_INVALID, "it holds no topology of this "
                        "version of tp");
    }
    /* Programs that this one starts have no use for it.  Without effect if it
     * fails. */
    (void)fcntl((int)parsed.fd, F_SETFD, FD_CLOEXEC);
    *table = memory;
    *mapped = bytes;
    return TP_OK;
}

tp_status tpt_shared_adopt(const char *text, hwloc_topology_t *hwloc,
                           struct tpb_error *error)
{
    struct share_text parsed;
    size_t size;
    tp_status status = share_open(text, &parsed, &size, error);

    if (status != TP_OK)
        return status;
    if (hwloc_shmem_topology_adopt(hwloc, (int)parsed.fd, 0,
                                   (void *)(uintptr_t)parsed.address,
                                   (size_t)parsed.length, 0) != 0)
        return tpb_fail(error, TP_ERR_INVALID, "hwloc %s cannot map it: %s",
                        HWLOC_VERSION, strerror(errno));
    return TP_OK;
}

/* ---- the launcher's side, whole ---------------------------------------- */

void tpt_topology_look(struct tpt_topology *topology)
{
    tpb_free(topology->told);
    topology->told = tpt_network_new(topology, &topology->told_length);
}

/* What was mapped is passed on, as a launcher inside a job does it.  hwloc
 * would crash on writing a topology that it adopted, which is read-only. */
static tp_status share_again(struct tpt_topology *topology, int *fd,
                             char text[64], struct tpb_error *error)
{
    struct share_text parsed;
    struct tpb_error reason = { "" };
    size_t size;
    int copy = -1;

    if (share_open(topology->shared, &parsed, &size, &reason) == TP_OK)
        copy = fcntl((int)parsed.fd, F_DUPFD, 0);
    if (copy < 0)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED, "the topology cannot be "
                        "passed on: %.400s", reason.text[0] != '\0'
                        ? reason.text : strerror(errno));
    share_print(copy, parsed.address, parsed.length, text);
    *fd = copy;
    return TP_OK;
}

tp_status tpt_topology_share(struct tpt_topology *topology, int *fd,
                             char text[64], struct tpb_error *error)
{
    size_t length = 0;
    tp_status status;
    int memory;

    if (topology->shared != NULL)
        return share_again(topology, fd, text, error);
    if (hwloc_shmem_topology_get_length(topology->hwloc, &length, 0) != 0)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                        "hwloc cannot share its topology: %s",
                        strerror(errno));
    memory = memfd_create(SHARE_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory < 0)
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED, "memfd_create: %s",
                        strerror(errno));
    status = share_write(topology, memory, length, error);
    if (status != TP_OK) {
        tpb_close(&memory);
        return status;
    }
    share_print(memory, SHARE_ADDRESS, length, text);
    *fd = memory;
    return TP_OK;
}
