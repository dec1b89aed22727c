/* SPDX-License-Identifier: BSD-3-Clause */
/* The statuses in words, and the version. */
#include "config.h"

#include "runtime/base/base.h"

static const char *const status_words[] = {
    [TP_OK] = "success",
    [TP_ERR_INVALID] = "invalid argument",
    [TP_ERR_NO_MEMORY] = "out of memory",
    [TP_ERR_SYSTEM] = "operating system error",
    [TP_ERR_NOT_FOUND] = "no such rank, address or setting",
    [TP_ERR_UNREACHABLE] = "no backend reaches the peer",
    [TP_ERR_CLOSED] = "closed by this side",
    [TP_ERR_PEER_CLOSED] = "closed by the peer",
    [TP_ERR_PEER_FAILED] = "the peer died or is cut off",
    [TP_ERR_TIMEOUT] = "timed out",
    [TP_ERR_TRUNCATED] = "the buffer is smaller than the message",
    [TP_ERR_PROTOCOL] = "the peer broke the protocol",
    [TP_ERR_DENIED] = "the peer is not allowed in",
    [TP_ERR_BACKEND] = "a backend reported an error",
    [TP_ERR_NOT_SUPPORTED] = "not supported",
};

const char *tp_strerror(tp_status status)
{
    if ((unsigned)status >= TPB_COUNT(status_words))
        return "unknown status";
    return status_words[status];
}

const char *tp_version(void)
{
    return PACKAGE_VERSION;
}
