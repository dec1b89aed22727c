/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Writes 64 bytes from a device's memory to a device's memory over a line, as
 * small as providers like to copy them into the work request by the CPU
 * ("inline"), which would end this program by the double of libcuda.  Lines ask
 * that nothing be inlined; with FABRICDOUBLE_INLINE=256 it is all the same.
 * Needs an RDMA device: tests/hosts/guest_gdr.sh runs it.
 */
#include "config.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "fabric/ofi/line.h"
#include "runtime/base/io.h"
#include "tests/gpu/device.h"

enum { SIZE = 65536, WRITTEN = 64, PATIENCE_S = 60 };

static void inline_fail(const char *what, const struct tpb_error *error)
{
    fprintf(stderr, "gdr_inline: %s: %s\n", what, error->text);
    exit(1);
}

static void inline_load(void)
{
    struct tpb_error error = { "" };
    struct pollfd loaded = { .fd = tpb_eventfd(), .events = POLLIN };
    tp_status status;

    if (ofi_library_get(loaded.fd, &status, &error) != NULL)
        return;
    if (status != TP_OK || poll(&loaded, 1, PATIENCE_S * 1000) != 1
        || ofi_library_get(loaded.fd, &status, &error) == NULL)
        inline_fail("libfabric", &error);
}

/* Connected to ourselves. */
static struct tpf_line *inline_line(struct tpf_remote *remote)
{
    struct tpb_error error = { "it took too long" };
    uint64_t limit = tpb_now() + UINT64_C(1000000000) * PATIENCE_S;
    struct tpf_remote_place place;
    struct tpf_line *line;

    tpf_remote_place(remote, &place);
    if (tpf_line_open(remote, &place, &line, &error) != TP_OK)
        inline_fail("a line", &error);
    while (line->state == LINE_CONNECTING && tpb_now() < limit)
        tpf_remote_progress(remote);
    if (line->state != LINE_READY)
        inline_fail("a line", line->state == LINE_BROKEN ? &line->words
                                                         : &error);
    return line;
}

static void inline_write(struct tpf_line *line, unsigned char *memory,
                         const struct tpf_registration *registration)
{
    struct tpb_error error = { "it failed" };
    struct fi_context2 context;
    struct fi_cq_entry entry;
    ssize_t code = fi_write(line->ep, memory, WRITTEN,
                            fi_mr_desc(registration->mr), FI_ADDR_UNSPEC,
                            (uintptr_t)memory + SIZE / 2,
                            fi_mr_key(registration->mr), &context);

    while (code == 0 && fi_cq_read(line->remote->cq, &entry, 1) == -FI_EAGAIN)
        continue;
    if (code != 0 || entry.op_context != &context)
        inline_fail("a write", &error);
}

int main(void)
{
    struct tpb_error error = { "" };
    struct tpb_settings settings;
    struct tpt_card card = { .rank = 0 };
    struct tpf_env env = { .settings = &settings, .card = &card,
                           .epoll = epoll_create1(EPOLL_CLOEXEC) };
    struct tpf_remote_nic nics[TPF_REMOTE_NICS];
    struct tpf_registration *registration;
    struct tpf_remote_memory memory = { .how = TPF_REMOTE_PLAIN, .fd = -1,
                                        .length = SIZE };
    unsigned char sent[SIZE], got[SIZE];
    struct tpf_remote *remote;
    cu_stream stream;
    unsigned yes = 1;

    alarm(4 * PATIENCE_S);
    if (tpb_settings_load(&settings, &error) != TP_OK)
        inline_fail("settings", &error);
    inline_load();
    tpx_device_use(0);
    stream = tpx_device_stream();
    memory.address = tpx_device_malloc(SIZE);
    TPX_CU(tpx_device_driver()->cuPointerSetAttribute(
        &yes, CU_POINTER_SYNC_MEMOPS, (cu_pointer)(uintptr_t)memory.address));
    tpb_random(sent, SIZE);
    tpx_device_copy(memory.address, sent, SIZE, stream);
    tpx_device_sync(stream);
    if (tpf_remote_list(&env, nics) == 0)
        inline_fail("RDMA devices", &error);
    if (tpf_remote_open(&env, &nics[0], memory.how, &remote, &error) != TP_OK
        || tpf_remote_register(remote, &memory, &registration, &error)
           != TP_OK)
        inline_fail(nics[0].device, &error);
    inline_write(inline_line(remote), memory.address, registration);
    tpx_device_copy(got, memory.address, SIZE, stream);
    tpx_device_sync(stream);
    memcpy(sent + SIZE / 2, sent, WRITTEN);
    if (memcmp(sent, got, SIZE) != 0)
        inline_fail("the bytes", &(struct tpb_error){ "they are wrong" });
    printf("%d bytes written, none by the CPU\n", WRITTEN);
    return 0;
}
