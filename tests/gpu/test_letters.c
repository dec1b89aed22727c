/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The suites of several ranks with tensors on devices: what tests/multi does
 * with letters in CPU memory, with letters on every kind of memory.
 */
#include "config.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/buffer.h"
#include "tests/gpu/runs.h"
#include "tests/multi/letter.h"

enum { LETTERS_TESTS = 16 };

static const struct tpx_run runs[] = {
    { "loop,shm", "auto", "lazy", true, true, true, true },
    { "loop,shm,cuda_ipc", "auto", "lazy", true, true, true, false },
    { "loop,shm,cuda_ipc,map,cma", "thread", "delay", true, false, true,
      true },
    { "loop,shm,cuda_ipc", "manual", "lazy", false, true, false, true },
    { "loop,ofi:tcp", "thread", "delay", true, true, true, false },
};

/* ---- memory for tensors -------------------------------------------------- */

/* Those of a rank; the stream of a tensor's buffer finds it again. */
struct letters_buffer {
    struct letters_buffer *next;
    struct tpx_buffer buffer;
};
static struct letters_buffer *letters_used, *letters_free;
static pthread_mutex_t letters_lock = PTHREAD_MUTEX_INITIALIZER;

static struct letters_buffer *letters_take(enum tpx_kind kind, int device,
                                           size_t length)
{
    struct letters_buffer **at = &letters_free, *found;

    while (*at != NULL && ((*at)->buffer.kind != kind
                           || (*at)->buffer.where.index != device
                           || (*at)->buffer.length < length))
        at = &(*at)->next;
    found = *at;
    if (found != NULL) {
        *at = found->next;
    } else {
        size_t size = 4096;

        while (size < length)
            size *= 2;
        found = malloc(sizeof(*found));
        tpx_check(found != NULL, "no memory for the test itself");
        tpx_buffer_make(&found->buffer, kind, device, size);
    }
    found->next = letters_used;
    letters_used = found;
    return found;
}

static struct letters_buffer *letters_find(const tp_tensor *tensor)
{
    struct letters_buffer *found = letters_used;

    while (found != NULL && found->buffer.data != tensor->data)
        found = found->next;
    tpx_check(found != NULL, "a tensor of no buffer");
    return found;
}

static void letters_on_device(tp_tensor *tensor, const void *bytes,
                              uint64_t choice)
{
    static const enum tpx_kind kinds[] = { TPX_MALLOC, TPX_PINNED, TPX_POOL,
                                           TPX_VMM, TPX_MANAGED, TPX_PIECES };
    uint64_t state = choice;
    enum tpx_kind kind = kinds[tpx_below(&state, 6)];
    int device = tpx_kind_on_device(kind) ? (int)tpx_below(&state, 2) : 0;
    struct tpx_buffer *buffer;

    pthread_mutex_lock(&letters_lock);
    buffer = &letters_take(kind, device, tensor->length)->buffer;
    tpx_device_use(device);
    if (bytes != NULL) {
        memcpy(buffer->shadow, bytes, tensor->length);
        if (tpx_kind_on_device(kind))
            tpx_device_copy(buffer->data, buffer->shadow, tensor->length,
                            buffer->stream);
        else
            memcpy(buffer->data, buffer->shadow, tensor->length);
    }
    tpx_buffer_place(buffer, tensor);
    pthread_mutex_unlock(&letters_lock);
}

static void letters_look(const tp_tensor *tensor, void *bytes)
{
    struct tpx_buffer *buffer;

    pthread_mutex_lock(&letters_lock);
    buffer = &letters_find(tensor)->buffer;
    tpx_device_use(buffer->where.index);
    if (tpx_kind_on_device(buffer->kind)) {
        tpx_device_copy(buffer->shadow, buffer->data, tensor->length,
                        buffer->stream);
        tpx_device_sync(buffer->stream);
        memcpy(bytes, buffer->shadow, tensor->length);
    } else {
        memcpy(bytes, buffer->data, tensor->length);
    }
    pthread_mutex_unlock(&letters_lock);
}

/* Some go, so that their addresses come back. */
static void letters_give(tp_tensor *tensor)
{
    static unsigned given;
    struct letters_buffer **at = &letters_used, *found;

    pthread_mutex_lock(&letters_lock);
    found = letters_find(tensor);
    while (*at != found)
        at = &(*at)->next;
    *at = found->next;
    if (++given % 7 == 0) {
        tpx_buffer_drop(&found->buffer);
        free(found);
    } else {
        found->next = letters_free;
        letters_free = found;
    }
    pthread_mutex_unlock(&letters_lock);
}

static const struct tpx_letter_memory letters_memory
    = { letters_on_device, letters_look, letters_give };

/* ---- the suites ---------------------------------------------------------- */

/* Of each suite, what is about messages with tensors. */
static const struct tpx_spmd *letters_choose(void)
{
    static const char *const names[] = {
        "order_pair", "order_self", "order_all", "order_blocking_letters",
        "failure_stopped", "channel_letters"
    };
    static struct tpx_spmd tests[LETTERS_TESTS];
    size_t count = 0;

    for (size_t s = 0; tpx_suites[s] != NULL; s++)
        for (const struct tpx_spmd *test = tpx_suites[s]; test->name != NULL;
             test++)
            for (size_t i = 0; i < TPB_COUNT(names); i++)
                if (strcmp(test->name, names[i]) == 0)
                    tests[count++] = *test;
    if (count != TPB_COUNT(names)) {
        fprintf(stderr, "test_letters: a suite's test has another name now\n");
        exit(1);
    }
    return tests;
}

int main(void)
{
    const struct tpx_spmd *const suites[] = { letters_choose(), NULL };

    tpx_letter_memory = &letters_memory;
    setenv("TP_TEST_FEW", "1", 0);    /* each of them has an allocation */
    return tpx_run(tpx_runs_suite("letters", suites, runs,
                                  (int)TPB_COUNT(runs)));
}
