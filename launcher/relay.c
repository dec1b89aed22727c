/* SPDX-License-Identifier: BSD-3-Clause */
/* From a rank's terminal and pipe into frames. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "launcher/frames.h"
#include "launcher/relay.h"
#include "launcher/terminal.h"
#include "runtime/base/io.h"

/* More frames than a pipe can hold, for the rank that does not stop. */
enum { RELAY_MOST = 1024 };

static int relay_pipe(int *writer)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    *writer = ends[1];
    return ends[0];
}

int tpl_relay_open(struct tpl_relay *relay, int to, bool merge)
{
    *relay = (struct tpl_relay){ { -1, -1 }, { -1, -1 }, to };
    relay->fds[0] = tpl_terminal_open(&relay->writers[0]);
    /* A container may have no terminals to give. */
    if (relay->fds[0] < 0)
        relay->fds[0] = relay_pipe(&relay->writers[0]);
    if (relay->fds[0] < 0)
        return -1;
    if (merge)
        relay->writers[1] = fcntl(relay->writers[0], F_DUPFD_CLOEXEC, 3);
    else
        relay->fds[1] = relay_pipe(&relay->writers[1]);
    for (int i = 0; i < 2; i++)
        if (relay->fds[i] >= 0)
            fcntl(relay->fds[i], F_SETFL, O_NONBLOCK);
    return relay->writers[1] < 0 ? -1 : 0;
}

void tpl_relay_started(struct tpl_relay *relay)
{
    tpb_close(&relay->writers[0]);
    tpb_close(&relay->writers[1]);
}

/* False if there is nothing now. */
static bool relay_some(struct tpl_relay *relay, int which)
{
    char data[TPL_FRAME_MOST];
    ssize_t got = read(relay->fds[which], data, sizeof(data));

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return errno == EINTR;
    if (got <= 0
        || tpl_frame_write(relay->to, which == 0 ? TPL_FRAME_OUT
                           : TPL_FRAME_ERR, data, (size_t)got) < 0)
        tpb_close(&relay->fds[which]);
    return got > 0;
}

void tpl_relay_move(struct tpl_relay *relay, int which)
{
    relay_some(relay, which);
}

void tpl_relay_drain(struct tpl_relay *relay)
{
    for (int i = 0; i < 2; i++)
        for (int n = 0; n < RELAY_MOST && relay->fds[i] >= 0; n++)
            if (!relay_some(relay, i))
                break;
}
