/* SPDX-License-Identifier: BSD-3-Clause */
/* The smallest job: every rank greets rank 0.  tprun -n 4 ./hello */
#include <stdio.h>
#include <string.h>
#include <tp.h>

int main(void)
{
    tp_context *context;
    tp_pipe *pipe = NULL;
    tp_status status = TP_OK;
    char text[64];

    if (tp_init(NULL, &context) != TP_OK)
        return 1;
    if (tp_rank(context) > 0) {
        snprintf(text, sizeof(text), "hello from rank %d", tp_rank(context));
        tp_pipe_to_rank(context, 0, &pipe);
        status = tp_pipe_send(pipe, text, strlen(text) + 1);
    }
    for (int i = 1; tp_rank(context) == 0 && i < tp_size(context); i++) {
        tp_pipe_to_rank(context, i, &pipe);
        status = tp_pipe_recv(pipe, text, sizeof(text), NULL);
        if (status != TP_OK)
            break;
        printf("%s (%s)\n", text, tp_pipe_peer(pipe));
    }
    if (status != TP_OK)
        fprintf(stderr, "%s\n", tp_pipe_error(pipe));
    return tp_finalize(context) == TP_OK && status == TP_OK ? 0 : 1;
}
