/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory for frames that are set aside until somebody asks for what is in them.
 */
#include "config.h"

#include "runtime/base/alloc.h"
#include "runtime/core.h"
#include "runtime/stream.h"

enum {
    CHUNK_ROUND = 1024,            /* a long one's room is a multiple of */
    CHUNK_WASTE = 4,               /* times what it holds, or another is made */
    CHUNK_SPARE = 1024 * 1024      /* bytes that are kept, at most */
};

/* Some are kept: for callers of tp_pipe_recv_skeleton(), and for long messages
 * that come while ours are on their way to who sent them, round after round. */
struct tpr_chunk *tpr_chunk_new(tp_context *context, uint32_t length)
{
    uint32_t round = length < CHUNK_ROUND ? 1 : CHUNK_ROUND;
    uint32_t room = (length + round - 1) / round * round;
    struct tpr_chunk *chunk;

    while (!tpb_list_empty(&context->spare_chunks)) {
        chunk = TPB_CONTAINER(context->spare_chunks.next, struct tpr_chunk,
                              link);
        if (chunk->room / CHUNK_WASTE > room)
            break;
        tpb_list_unlink(&chunk->link);
        context->spare_bytes -= chunk->room;
        if (chunk->room >= length)
            return chunk;
        tpb_free(chunk);           /* there may be a longer one behind it */
    }
    chunk = tpb_resize(NULL, sizeof(*chunk) + room);
    if (chunk != NULL) {
        tpb_list_init(&chunk->link);
        chunk->room = room;
    }
    return chunk;
}

void tpr_chunk_free(tp_context *context, struct tpr_chunk *chunk)
{
    if (context->spare_bytes + chunk->room > CHUNK_SPARE) {
        tpb_free(chunk);
        return;
    }
    context->spare_bytes += chunk->room;
    tpb_list_append(context->spare_chunks.next, &chunk->link);
}

void tpr_chunks_fini(tp_context *context)
{
    struct tpb_list *node;

    while ((node = tpb_list_take(&context->spare_chunks)) != NULL)
        tpb_free(TPB_CONTAINER(node, struct tpr_chunk, link));
}
