/* SPDX-License-Identifier: BSD-3-Clause */
/* The answers of a build without CUDA. */
#include "config.h"

#include "gpu/gpu.h"
#include "runtime/base/alloc.h"

struct tpg_gpu {
    int none;
};

struct tpg_gpu *tpg_open(const struct tpb_settings *settings)
{
    (void)settings;
    return tpb_zalloc(sizeof(struct tpg_gpu));
}

void tpg_close(struct tpg_gpu *gpu)
{
    tpb_free(gpu);
}

static tp_status none_refuse(struct tpb_error *error)
{
    return tpb_fail(error, TP_ERR_NOT_SUPPORTED,
                    "this libtp was built without CUDA (--without-cuda)");
}

bool tpg_absent(const struct tpg_gpu *gpu)
{
    (void)gpu;
    return true;
}

tp_status tpg_claim(struct tpg_gpu *gpu, const struct tpf_buffer *buffer,
                    struct tpb_error *error)
{
    (void)gpu;
    return buffer->device.type == TP_DEVICE_CPU ? TP_OK : none_refuse(error);
}

tp_status tpg_work_new(struct tpg_gpu *gpu, const tp_message *message,
                       struct tpg_work **work, struct tpb_error *error)
{
    (void)gpu;
    for (size_t i = 0; i < message->tensor_count; i++)
        if (message->tensors[i].device.type == TP_DEVICE_CUDA
            && message->tensors[i].length > 0)
            return none_refuse(error);
    *work = NULL;
    return TP_OK;
}

enum tpg_answer tpg_work_ready(struct tpg_work *work)
{
    (void)work;
    return TPG_FAILED;
}

const char *tpg_work_error(const struct tpg_work *work)
{
    (void)work;
    return "no CUDA";
}

enum tpg_answer tpg_work_fetch(struct tpg_work *work, size_t index,
                               const struct tpf_buffer *buffer, size_t offset,
                               const unsigned char **bytes, size_t *length)
{
    (void)work;
    (void)index;
    (void)buffer;
    (void)offset;
    (void)bytes;
    (void)length;
    return TPG_FAILED;
}

enum tpg_answer tpg_work_outbox(struct tpg_work *work, size_t index,
                                const struct tpf_buffer *buffer)
{
    (void)work;
    (void)index;
    (void)buffer;
    return TPG_NOW;
}

void tpg_work_boxed(const struct tpg_work *work, size_t index,
                    struct tpf_buffer *buffer)
{
    (void)work;
    (void)index;
    (void)buffer;
}

tp_status tpg_work_store(struct tpg_work *work, size_t index,
                         const struct tpf_buffer *buffer, size_t offset,
                         const void *bytes, size_t length)
{
    (void)work;
    (void)index;
    (void)buffer;
    (void)offset;
    (void)bytes;
    (void)length;
    return TP_ERR_NOT_SUPPORTED;
}

void tpg_work_end(struct tpg_work *work)
{
    (void)work;
}

tp_status tpg_alloc(struct tpg_gpu *gpu, size_t bytes, tp_device device,
                    struct tpf_memory *block, struct tpb_error *error)
{
    (void)gpu;
    (void)bytes;
    (void)device;
    (void)block;
    return none_refuse(error);
}

void tpg_free(struct tpg_gpu *gpu, struct tpf_memory *block)
{
    (void)gpu;
    (void)block;
}

tp_status tpg_probe(const struct tpb_settings *settings,
                    struct tpb_error *error)
{
    (void)settings;
    return none_refuse(error);
}

void tpg_staged_card(const struct tpb_settings *settings, bool assume,
                     struct tpt_card *card)
{
    (void)settings;
    (void)assume;
    (void)card;
}

void tpg_nvml_ask(const struct tpb_settings *settings, int there,
                  struct tpt_card *card)
{
    (void)settings;
    (void)there;
    (void)card;
}
