/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Peers outside the job.  Not in this release: every call says so, after it
 * has checked its arguments as it will later.
 */
#include "config.h"

#include "runtime/core.h"

tp_status tp_listen(tp_context *context, const char *address,
                    tp_listener **listener)
{
    (void)address;
    if (context == NULL || listener == NULL)
        return TP_ERR_INVALID;
    return TP_ERR_NOT_SUPPORTED;
}

tp_status tp_listener_address(const tp_listener *listener, char *buffer,
                              size_t size)
{
    if (listener == NULL || buffer == NULL || size == 0)
        return TP_ERR_INVALID;
    return TP_ERR_NOT_SUPPORTED;
}

tp_status tp_accept(tp_listener *listener, tp_accept_fn *accepted, void *arg)
{
    (void)arg;
    if (listener == NULL || accepted == NULL)
        return TP_ERR_INVALID;
    return TP_ERR_NOT_SUPPORTED;
}

tp_status tp_connect(tp_context *context, const char *address, tp_pipe **pipe)
{
    if (context == NULL || address == NULL || pipe == NULL)
        return TP_ERR_INVALID;
    return TP_ERR_NOT_SUPPORTED;
}

tp_status tp_listener_close(tp_listener *listener)
{
    if (listener == NULL)
        return TP_ERR_INVALID;
    return TP_ERR_NOT_SUPPORTED;
}
