/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Parts of cuda_gdr without a NIC: which one it takes; the ways to register,
 * one after the other, and their trial; registrations that are kept.  The NIC
 * is made up here (all of fabric/remote.h) and reads and writes the double's
 * memory.
 */
#include "config.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fabric/channel.h"
#include "fabric/memory.h"
#include "gpu/cuda_gdr/gdr.h"
#include "runtime/base/alloc.h"
#include "tests/gpu/device.h"
#include "tests/gpu/rdma/rdma.h"
#include "tests/lib/tpx.h"

enum { SIZE = 256 * 1024 };

/* ---- a NIC that is not there --------------------------------------------- */

struct tpf_remote {
    enum tpf_remote_how how;
};

struct tpf_registration {
    uint64_t key;
};

struct tpf_line {
    enum tpf_remote_how how;
    struct tpf_fetch *fetch;
    struct tpb_error words;
};

static struct {
    int nics;
    bool no_open[TPF_REMOTE_WAYS], no_register[TPF_REMOTE_WAYS];
    bool lies[TPF_REMOTE_WAYS], breaks[TPF_REMOTE_WAYS];
    char from[TPT_NAME];               /* the last one that was opened */
    int opened, registered, registrations;
    uint64_t keys;
    struct tpf_remote_memory last;
    struct tpf_line *line;             /* the one there is */
} nic;

static rdma_way_in *nic_way_in(void)
{
    void *library = dlopen(getenv("TP_CUDA_LIBRARY"), RTLD_NOW);
    rdma_way_in *way_in;

    *(void **)&way_in = dlsym(library, "cudadouble_way_in");
    ck_assert_msg(way_in != NULL, "not the double");
    return way_in;
}

int tpf_remote_list(const struct tpf_env *env, struct tpf_remote_nic *nics)
{
    (void)env;
    for (int i = 0; i < nic.nics; i++)
        snprintf(nics[i].device, sizeof(nics[i].device), "none%d", i);
    return nic.nics;
}

tp_status tpf_remote_open(struct tpf_env *env,
                          const struct tpf_remote_nic *from,
                          enum tpf_remote_how how,
                          struct tpf_remote **remote, struct tpb_error *error)
{
    (void)env;
    snprintf(nic.from, sizeof(nic.from), "%s", from->device);
    if (nic.no_open[how])
        return tpb_fail(error, TP_ERR_NOT_SUPPORTED, "not open");
    *remote = tpb_zalloc(sizeof(**remote));
    (*remote)->how = how;
    nic.opened++;
    return TP_OK;
}

void tpf_remote_close(struct tpf_remote *remote)
{
    nic.opened -= remote != NULL;
    tpb_free(remote);
}

void tpf_remote_place(const struct tpf_remote *remote,
                      struct tpf_remote_place *place)
{
    (void)remote;
    memset(place, 1, sizeof(*place));
}

tp_status tpf_remote_register(struct tpf_remote *remote,
                              const struct tpf_remote_memory *memory,
                              struct tpf_registration **registration,
                              struct tpb_error *error)
{
    ck_assert_int_eq(memory->how, remote->how);
    if (nic.no_register[memory->how])
        return tpb_fail(error, TP_ERR_BACKEND, "not registered");
    if (memory->how == TPF_REMOTE_DMABUF && memory->device >= 0)
        ck_assert_int_ge(memory->fd, 0);
    nic.last = *memory;
    *registration = tpb_zalloc(sizeof(**registration));
    (*registration)->key = ++nic.keys;
    nic.registered++;
    nic.registrations++;
    return TP_OK;
}

void tpf_remote_deregister(struct tpf_registration *registration)
{
    nic.registered -= registration != NULL;
    tpb_free(registration);
}

uint64_t tpf_registration_key(const struct tpf_registration *registration)
{
    return registration->key;
}

tp_status tpf_line_open(struct tpf_remote *remote,
                        const struct tpf_remote_place *place,
                        struct tpf_line **line, struct tpb_error *error)
{
    (void)place;
    (void)error;
    *line = nic.line = tpb_zalloc(sizeof(**line));
    nic.line->how = remote->how;
    if (nic.breaks[remote->how])
        tpb_fail(&nic.line->words, TP_ERR_BACKEND, "broken");
    return TP_OK;
}

void tpf_line_close(struct tpf_line *line)
{
    tpb_free(line);
    nic.line = NULL;
}

const char *tpf_line_broken(const struct tpf_line *line)
{
    return line->words.text[0] != '\0' ? line->words.text : NULL;
}

void tpf_line_fetch(struct tpf_line *line, struct tpf_fetch *fetch)
{
    line->fetch = fetch;
    fetch->done = 0;
}

bool tpf_line_stop(struct tpf_fetch *fetch)
{
    (void)fetch;
    nic.line->fetch = NULL;
    return true;
}

bool tpf_remote_progress(struct tpf_remote *remote)
{
    (void)remote;
    ck_abort_msg("it would call the core");
    return false;
}

void tpf_line_await(struct tpf_line *line)
{
    struct tpf_fetch *fetch = line->fetch;
    int device;
    void *to, *from;

    if (fetch == NULL || tpf_line_broken(line) != NULL)
        return;
    to = nic_way_in()(fetch->to, fetch->length, &device);
    from = nic_way_in()((void *)(uintptr_t)fetch->address, fetch->length,
                        &device);
    ck_assert(to != NULL && from != NULL);
    if (!nic.lies[line->how])
        memcpy(to, from, fetch->length);
    fetch->done = fetch->length;
}

/* ---- a context ----------------------------------------------------------- */

static struct tpb_settings settings;
static struct tpf_env env;
static struct tpt_card card;
static struct gdr_channel channel;
static const struct tpg_cuda *cuda;

static void start(void)
{
    struct tpb_error error = { "" };

    tpx_device_choose();
    setenv("CUDADOUBLE_REUSE", "1", 1);
    ck_assert_int_eq(tpb_settings_load(&settings, &error), TP_OK);
    memset(&card, 0, sizeof(card));
    env = (struct tpf_env){ .settings = &settings, .card = &card,
                            .gpu = tpg_open(&settings) };
    channel = (struct gdr_channel){ .base = { .env = &env } };
    ck_assert_msg(tpg_cuda_load(&settings, &cuda, &error) == TP_OK, "%s",
                  error.text);
    tpx_device_use(0);
    nic.nics = 1;
}

static void stop(void)
{
    gdr_ports_close(&channel);
    ck_assert_int_eq(nic.registered, 0);
    ck_assert_int_eq(nic.opened, 0);
    ck_assert_ptr_null(nic.line);
    tpg_close(env.gpu);
    tpb_settings_fini(&settings);
}

/* ---- the ways ------------------------------------------------------------ */

static const struct {
    const char *allowed;               /* TP_GDR */
    const char *refuse;                /* D, H, P: open; d, h, p: register */
    const char *wrong;                 /* d, h, p: lies; D, H, P: breaks */
    const char *set;                   /* a variable for the double */
    int how;                           /* -1: staged */
    const char *words;
} ways[] = {
    { "", "", "", NULL, TPF_REMOTE_DMABUF, NULL },
    { "", "D", "", NULL, TPF_REMOTE_HMEM, NULL },
    { "", "d", "", NULL, TPF_REMOTE_HMEM, NULL },
    { "", "dH", "", NULL, TPF_REMOTE_PLAIN, NULL },
    { "", "dhp", "", NULL, -1, "dmabuf: not registered; hmem: not reg" },
    { "", "", "d", NULL, TPF_REMOTE_HMEM, NULL },
    { "", "", "dh", NULL, TPF_REMOTE_PLAIN, NULL },
    { "", "", "dhp", NULL, -1, "plain: wrong bytes arrived" },
    { "", "", "DHP", NULL, -1, "dmabuf: broken; hmem: broken; plain: broken" },
    { "plain", "", "", NULL, TPF_REMOTE_PLAIN, NULL },
    { "^dmabuf", "", "", NULL, TPF_REMOTE_HMEM, NULL },
    { "none", "", "", NULL, -1, "dmabuf: not in TP_GDR" },
    { "", "", "", "CUDADOUBLE_DMABUF=0", TPF_REMOTE_HMEM, NULL },
    { "dmabuf", "", "", "CUDADOUBLE_DMABUF=0", -1, "no dmabufs" },
    { "plain", "", "", "CUDADOUBLE_GDR=0", -1, "does not support GPUDirect" },
    { "", "", "", "CUDADOUBLE_GDR=0", TPF_REMOTE_DMABUF, NULL },
    { "", "", "", "CUDADOUBLE_FAIL=cuFlushGPUDirectRDMAWrites:1+:999", -1,
      "cuFlushGPUDirectRDMAWrites: CUDA_ERROR_UNKNOWN" },
    { "", "", "", "CUDADOUBLE_FAIL=cuMemAlloc_v2:1+:2", -1, "for the trial" },
    { "", "", "", "CUDADOUBLE_FAIL=cuPointerSetAttribute:1+:1",
      TPF_REMOTE_DMABUF, NULL },
    { "", "", "", "CUDADOUBLE_FAIL=cuPointerSetAttribute:1+:1,"
      "cuCtxSetFlags:1+:801", -1, "SYNC_MEMOPS" },
    { "", "", "", "CUDADOUBLE_FAIL=cuMemGetHandleForAddressRange:1:801",
      TPF_REMOTE_HMEM, NULL },
    { "", "", "", "CUDADOUBLE_FAIL=cuMemcpyAsync:1+:700", -1, "the trial" },
};

START_TEST(every_way)
{
    static const char letters[] = "DHP", small[] = "dhp";
    struct tpb_error error = { "" };
    struct gdr_port *port;

    setenv("TP_GDR", ways[_i].allowed, 1);
    if (ways[_i].set != NULL)
        putenv((char *)(uintptr_t)ways[_i].set);
    for (int how = 0; how < TPF_REMOTE_WAYS; how++) {
        nic.no_open[how] = strchr(ways[_i].refuse, letters[how]) != NULL;
        nic.no_register[how] = strchr(ways[_i].refuse, small[how]) != NULL;
        nic.lies[how] = strchr(ways[_i].wrong, small[how]) != NULL;
        nic.breaks[how] = strchr(ways[_i].wrong, letters[how]) != NULL;
    }
    start();
    port = gdr_port_get(&channel, cuda, 1, &error);
    if (ways[_i].how < 0) {
        ck_assert_ptr_null(port);
        ck_assert_msg(strstr(error.text, ways[_i].words) != NULL, "%s",
                      error.text);
    } else {
        ck_assert_msg(port != NULL, "%s", error.text);
        ck_assert_int_eq(port->how, ways[_i].how);
    }
    ck_assert_int_eq(nic.registered, 0);       /* the trial's are gone */
    ck_assert_ptr_eq(gdr_port_get(&channel, cuda, 1, &error), port);
    stop();
}
END_TEST

/* Without a NIC, and one that comes later. */
START_TEST(no_nic)
{
    struct tpb_error error = { "" };

    start();
    nic.nics = 0;
    ck_assert_ptr_null(gdr_port_get(&channel, cuda, 0, &error));
    ck_assert_str_eq(error.text, "no RDMA device");
    nic.nics = 2;
    ck_assert_ptr_nonnull(gdr_port_get(&channel, cuda, 0, &error));
    ck_assert_ptr_nonnull(gdr_port_get(&channel, NULL, GDR_HOST, &error));
    stop();
}
END_TEST

/* What NICs write is flushed if the device does not order it. */
START_TEST(order)
{
    struct tpb_error error = { "" };
    struct gdr_port *port;

    setenv("CUDADOUBLE_GDR_ORDER", _i == 0 ? "0" : "100", 1);
    start();
    port = gdr_port_get(&channel, cuda, 0, &error);
    ck_assert_ptr_nonnull(port);
    ck_assert_int_eq(port->flush, _i == 0);
    stop();
}
END_TEST

/* ---- registrations ------------------------------------------------------- */

static struct gdr_port *port_of(int device)
{
    struct tpb_error error = { "" };
    struct gdr_port *port = gdr_port_get(&channel, cuda, device, &error);

    ck_assert_msg(port != NULL, "%s", error.text);
    nic.registrations = 0;
    return port;
}

static struct gdr_region *hold(struct gdr_port *port, void *data,
                               size_t length)
{
    struct tpf_buffer buffer = { .data = data, .length = length,
                                 .device = { TP_DEVICE_CUDA, 0 } };

    return gdr_region_hold(port, cuda, &buffer, NULL);
}

static void cuda_free(void *data)
{
    TPX_CU(cuda->cuMemFree_v2((cu_pointer)(uintptr_t)data));
}

START_TEST(kept)
{
    struct gdr_region *first, *second;
    struct gdr_port *port;
    unsigned char *data;

    start();
    port = port_of(0);
    data = tpx_device_malloc(SIZE);
    first = hold(port, data + 1000, 100);
    ck_assert_ptr_nonnull(first);
    ck_assert_uint_eq(first->base, (uintptr_t)data);   /* all of it */
    ck_assert_uint_eq(nic.last.length, SIZE);
    second = hold(port, data, SIZE);
    ck_assert_ptr_eq(first, second);
    gdr_region_drop(first);
    gdr_region_drop(second);
    ck_assert_ptr_eq(hold(port, data + 5, 5), first);
    gdr_region_drop(first);
    ck_assert_int_eq(nic.registrations, 1);
    ck_assert_int_eq(nic.registered, 1);
    cuda_free(data);
    stop();
}
END_TEST

/* Memory of cuMemMap() takes no attribute: its context gets a flag, if the
 * driver has that. */
START_TEST(mapped)
{
    bool flagged = _i == 0;
    struct tpf_memory block;
    struct gdr_region *region;
    struct gdr_port *port;
    struct tpb_error error = { "" };

    start();
    port = port_of(0);
    if (!flagged)
        tpx_device_fails("cuCtxSetFlags:1+:801");
    ck_assert_int_eq(tpg_alloc(env.gpu, SIZE,
                               (tp_device){ TP_DEVICE_CUDA, 0 }, &block,
                               &error), TP_OK);
    region = hold(port, block.address, SIZE);
    ck_assert_int_eq(region != NULL, flagged);
    if (region != NULL)
        gdr_region_drop(region);
    ck_assert_int_eq(nic.registrations, flagged);
    tpg_free(env.gpu, &block);
    stop();
}
END_TEST

extern const struct tpf_channel_kind tpg_cuda_gdr;

/* tp_free() lets go of what the channel keeps of its memory; what was made in
 * another way stays. */
START_TEST(freed)
{
    const struct tpf_channel_kind *kind = &tpg_cuda_gdr;
    tp_device device = { TP_DEVICE_CUDA, 0 };
    struct tpf_link *link = tpb_zalloc(kind->link_size);
    struct tpf_memories memories;
    struct tpf_memory block;
    unsigned char source[TPF_SOURCE];
    struct tpf_buffer buffer = { .length = 100, .device = device };
    struct gdr_port *port;
    void *hold[2], *other;

    start();
    tpf_memories_init(&memories);
    env.memories = &memories;
    link->channel = &channel.base;
    ck_assert_int_eq(kind->link(link, NULL, 0, NULL), TP_OK);
    port = port_of(0);
    other = tpx_device_malloc(SIZE);
    ck_assert_int_eq(tpg_alloc(env.gpu, SIZE, device, &block, NULL), TP_OK);
    ck_assert_int_eq(tpf_memory_add(&memories, &block), TP_OK);
    for (int i = 0; i < 2; i++) {
        buffer.data = i == 0 ? other : block.address + 1000;
        ck_assert_uint_gt(kind->describe(link, &buffer, source, &hold[i]), 0);
    }
    kind->forget(link, hold[0]);
    if (_i == 0)
        kind->forget(link, hold[1]);
    ck_assert_int_eq(nic.registered, 2);
    ck_assert(tpf_memory_take(&memories, block.address, &block));
    ck_assert_uint_ne(block.id, 0);
    kind->freed(&channel.base, block.id);
    if (_i == 1) {                     /* in use: with its end */
        ck_assert_int_eq(nic.registered, 2);
        kind->forget(link, hold[1]);
    }
    ck_assert_int_eq(nic.registered, 1);
    ck_assert_uint_eq(port->count, 1);
    tpg_free(env.gpu, &block);
    cuda_free(other);
    kind->unlink(link);
    tpb_free(link);
    tpf_memories_fini(&memories);
    stop();
}
END_TEST

/* The address comes back, the registration does not; whoever holds the old one
 * keeps it. */
START_TEST(address_again)
{
    bool held = _i == 1;
    struct gdr_region *old, *again;
    struct gdr_port *port;
    void *data, *same;

    start();
    port = port_of(0);
    data = tpx_device_malloc(SIZE);
    old = hold(port, data, SIZE);
    if (!held)
        gdr_region_drop(old);
    cuda_free(data);
    same = tpx_device_malloc(SIZE);
    ck_assert_ptr_eq(same, data);
    again = hold(port, same, SIZE);
    ck_assert_ptr_nonnull(again);
    ck_assert_int_eq(nic.registrations, 2);
    ck_assert_int_eq(nic.registered, held ? 2 : 1);
    if (held) {
        ck_assert(old->stale);
        gdr_region_drop(old);
    }
    ck_assert_int_eq(nic.registered, 1);
    gdr_region_drop(again);
    cuda_free(same);
    stop();
}
END_TEST

/* As many as are kept; what is in use stays. */
START_TEST(many)
{
    void *data[GDR_REGIONS + 4];
    struct gdr_region *held;
    struct gdr_port *port;

    start();
    port = port_of(0);
    for (int i = 0; i < GDR_REGIONS + 4; i++)
        data[i] = tpx_device_malloc(65536);
    held = hold(port, data[0], 10);
    for (int i = 1; i < GDR_REGIONS + 4; i++)
        gdr_region_drop(hold(port, data[i], 10));
    ck_assert_int_eq(nic.registered, GDR_REGIONS);
    ck_assert_ptr_eq(hold(port, data[0], 10), held);
    gdr_region_drop(held);
    gdr_region_drop(held);
    /* What is freed is closed when the next one is registered. */
    for (int i = 0; i < GDR_REGIONS + 4; i++)
        cuda_free(data[i]);
    data[0] = tpx_device_malloc(SIZE);
    gdr_region_drop(hold(port, data[0], 10));
    ck_assert_int_eq(nic.registered, 1);
    cuda_free(data[0]);
    stop();
}
END_TEST

/* Memory that has no place on the bus, or is not there. */
START_TEST(other_kinds)
{
    struct gdr_port *port;
    cu_pointer pointer;
    char here[16];

    setenv("TP_GDR", "plain", 1);
    start();
    port = port_of(0);
    ck_assert_ptr_null(hold(port, here, sizeof(here)));
    TPX_CU(cuda->cuMemAllocManaged(&pointer, SIZE, 1));
    ck_assert_ptr_null(hold(port, (void *)(uintptr_t)pointer, SIZE));
    TPX_CU(cuda->cuMemAllocAsync(&pointer, SIZE, NULL));
    ck_assert_ptr_null(hold(port, (void *)(uintptr_t)pointer, SIZE));
    tpx_device_use(1);
    ck_assert_ptr_null(hold(port, tpx_device_malloc(SIZE), SIZE));
    ck_assert_int_eq(nic.registrations, 0);
    nic.no_register[TPF_REMOTE_PLAIN] = true;
    tpx_device_use(0);
    ck_assert_ptr_null(hold(port, tpx_device_malloc(SIZE), SIZE));
    stop();
}
END_TEST

/* ---- which NIC ----------------------------------------------------------- */

/* none0, none1, ... at these places on the card; device 0 of the double is at
 * 0000:10:00.0.  What the kernel does not know has no path. */
static const struct {
    const char *limit;                 /* TP_GDR_PATH */
    int nics;                          /* that this rank may use: the first */
    uint8_t solved;                    /* 1 + its number on the card */
    enum tpt_path path;                /* to that one */
    int chosen;
} choices[] = {
    { "PXB", 3, 1, TPT_PATH_PIX, 0 },
    { "PXB", 3, 3, TPT_PATH_PIX, 2 },
    { "PXB", 3, 2, TPT_PATH_PXB, 1 },
    { "PIX", 3, 2, TPT_PATH_PXB, 0 },
    { "phb", 3, 2, TPT_PATH_PHB, 1 },
    { "PHB", 3, 2, TPT_PATH_NODE, 0 },
    { "NODE", 3, 2, TPT_PATH_NODE, 1 },
    { "SYS", 3, 2, TPT_PATH_SYS, 1 },
    { "PXB", 3, 3, TPT_PATH_PXB, 2 },
    { "PIX", 3, 2, TPT_PATH_UNKNOWN, 1 },
    { "PXB", 2, 3, TPT_PATH_PIX, 0 },    /* TP_IFACE forbids that one */
    { "PXB", 3, 0, TPT_PATH_SAME, 0 },   /* topology knows none */
};

/* What topology chose is opened, by its name. */
START_TEST(choice)
{
    struct tpb_error error = { "" };
    char name[TPT_NAME];

    setenv("TP_GDR_PATH", choices[_i].limit, 1);
    start();
    nic.nics = choices[_i].nics;
    card.gpu_count = 2;
    card.gpus[0] = (struct tpt_card_gpu){ .place.pci
                                          = tpt_pci_parse("0000:20:00.0"),
                                          .nic = 2 };
    card.gpus[1] = (struct tpt_card_gpu){
        .place.pci = tpt_pci_parse("0000:10:00.0"), .nic = choices[_i].solved,
        .nic_path = (uint8_t)choices[_i].path };
    card.nic_count = 3;
    for (uint32_t i = 0; i < 3; i++) {
        card.nics[i] = (struct tpt_nic){ .kind = TPT_NIC_RDMA };
        snprintf(card.nics[i].name, sizeof(card.nics[i].name), "none%u", i);
    }
    ck_assert_msg(gdr_port_get(&channel, cuda, 0, &error) != NULL, "%s",
                  error.text);
    snprintf(name, sizeof(name), "none%d", choices[_i].chosen);
    ck_assert_str_eq(nic.from, name);
    stop();
}
END_TEST

/* All of them are too far away: this machine's own kernel tells where they
 * are, so that two of its devices have to do. */
START_TEST(too_far)
{
    struct tpb_error error = { "" };
    DIR *devices = opendir("/sys/bus/pci/devices");
    struct dirent *entry;
    uint32_t pci[2] = { 0 };
    int found = 0;

    while (devices != NULL && found < 2 && (entry = readdir(devices)) != NULL)
        if (tpt_pci_parse(entry->d_name) != 0)
            pci[found++] = tpt_pci_parse(entry->d_name);
    if (devices != NULL)
        closedir(devices);
    if (found < 2 || tpt_path_here("", pci[0], pci[1]) <= TPT_PATH_PIX) {
        tpx_skip("pci", "no two PCI devices without a switch above both");
        return;
    }
    setenv("TP_GDR_PATH", "PIX", 1);
    start();
    port_of(1);                        /* the NIC is listed */
    card.nic_count = 1;
    card.nics[0] = (struct tpt_nic){ .kind = TPT_NIC_RDMA, .name = "none0",
                                     .pci = pci[1] };
    ck_assert_int_eq(gdr_nic_for(&channel, pci[0], &error), -1);
    ck_assert_msg(strstr(error.text, "none0 is too far away: ") != NULL
                  && strstr(error.text, "TP_GDR_PATH=PIX") != NULL, "%s",
                  error.text);
    stop();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gdr");
    TCase *tests = tcase_create("gdr");

    tcase_set_timeout(tests, 180);
    tcase_add_loop_test(tests, every_way, 0, (int)TPB_COUNT(ways));
    tcase_add_test(tests, no_nic);
    tcase_add_loop_test(tests, order, 0, 2);
    tcase_add_test(tests, kept);
    tcase_add_loop_test(tests, mapped, 0, 2);
    tcase_add_loop_test(tests, freed, 0, 2);
    tcase_add_loop_test(tests, address_again, 0, 2);
    tcase_add_test(tests, many);
    tcase_add_test(tests, other_kinds);
    tcase_add_loop_test(tests, choice, 0, (int)TPB_COUNT(choices));
    tcase_add_test(tests, too_far);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}
