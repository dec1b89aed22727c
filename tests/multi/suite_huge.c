/* SPDX-License-Identifier: BSD-3-Clause */
/* Sizes over 4 GiB, without that much memory: both ends use one small memfd,
 * mapped over and over.  An emulated machine, or a sanitizer, would take
 * minutes for that many bytes; there it is just more than the small memory. */
#include "config.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/multi/spmd.h"

enum { HUGE_PIECE = 16 << 20 };        /* the memory it really takes */

/* Is there another choice of backends whose bytes go the same way?  Rails are
 * one of ofi:tcp where there is one interface; frames of shm are those of shm
 * alone, and whoever must goes by cma. */
static bool huge_again(void)
{
    return tpx_backend("map") || (tpx_backend("ofi:tcp")
                                  && !tpx_backend("rails"));
}

static size_t huge_length(void)
{
    return tpx_me.sanitized || huge_again() ? ((size_t)32 << 20) + 17
                                            : ((size_t)4 << 30) + 17;
}

/* `length` bytes of address space over HUGE_PIECE bytes of memory. */
static unsigned char *huge_map(size_t length)
{
    int fd = memfd_create("huge", MFD_CLOEXEC);
    unsigned char *map;

    tpx_check(fd >= 0 && ftruncate(fd, HUGE_PIECE) == 0, "memfd_create");
    map = mmap(NULL, length + HUGE_PIECE, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    tpx_check(map != MAP_FAILED, "no address space");
    for (size_t at = 0; at < length; at += HUGE_PIECE)
        tpx_check(mmap(map + at, HUGE_PIECE, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED,
                  "mmap at %zu", at);
    close(fd);
    return map;
}

/* What is left in the small memory is the last round of bytes: it is right if
 * every byte came to its own place modulo HUGE_PIECE, and the counts tell that
 * none was left out. */
static void huge_check(const unsigned char *map, size_t length)
{
    size_t wrong = tpx_verify(map, HUGE_PIECE, 42);

    tpx_check(wrong == HUGE_PIECE, "byte %zu of the last round is wrong",
              wrong);
    tpx_equal(map[length - 1], map[(length - 1) % HUGE_PIECE]);
}

static void huge_payload(void)
{
    const size_t length = huge_length();
    unsigned char *map = huge_map(length);
    tp_pipe *pipe = tpx_pipe(!tpx_me.rank, 0);
    tp_payload payload = { .data = map, .length = length };
    tp_message message = { .payloads = &payload, .payload_count = 1 };
    tp_message *skeleton;
    tp_stats stats;
    unsigned after = 4711;

    if (tpx_me.rank == 0) {
        tpx_fill(map, HUGE_PIECE, 42);
        tpx_ok(tp_pipe_send_message(pipe, &message, -1));
        tpx_ok(tp_pipe_send(pipe, &after, sizeof(after)));
        tpx_ok(tp_pipe_stats(pipe, &stats));
        tpx_equal(stats.bytes_sent, length + sizeof(after));
        return;
    }
    tpx_ok(tp_pipe_recv_skeleton(pipe, &skeleton, -1));
    tpx_equal(skeleton->payload_count, 1);
    tpx_equal(skeleton->payloads[0].length, length);
    skeleton->payloads[0].data = map;
    tpx_ok(tp_pipe_recv_message(pipe, skeleton, -1));
    huge_check(map, length);
    after = 0;
    tpx_ok(tp_pipe_recv(pipe, &after, sizeof(after), NULL));
    tpx_equal(after, 4711);
    tpx_ok(tp_pipe_stats(pipe, &stats));
    tpx_equal(stats.bytes_received, length + sizeof(after));
}

const struct tpx_spmd tpx_huge[] = {
    { "huge_payload", huge_payload, 2, TPX_ONCE, 240 },
    { NULL }
};
