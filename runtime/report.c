/* SPDX-License-Identifier: BSD-3-Clause */
/* Words to the process beside a rank: launcher/tprun_rank.c. */
#include "config.h"

#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

#include "runtime/report.h"

enum { REPORT_PATIENCE = 1000 };   /* ms */

static int report_fd = -1;

/* Programs that close what they do not know may have put another file there;
 * a socket that keeps records is hardly anything but ours. */
static bool report_is_ours(int fd)
{
    int type = 0;
    socklen_t size = sizeof(type);

    return fd >= 0
           && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0
           && type == SOCK_SEQPACKET;
}

void tpr_report_joined(const struct tpb_settings *settings)
{
    int fd = (int)settings->number[TPB_SET_REPORT];

    report_fd = report_is_ours(fd) ? fd : -1;
    if (report_fd >= 0)
        send(report_fd, "I", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void tpr_report_left(void)
{
    if (report_fd >= 0)
        send(report_fd, "F", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool tpr_report_abort(int status, const char *reason)
{
    struct pollfd answer = { report_fd, POLLIN, 0 };
    char text[512];
    int length = snprintf(text, sizeof(text), "A %d %s", status, reason);

    if (report_fd < 0 || length < 0)
        return false;
    if ((size_t)length >= sizeof(text))
        length = (int)sizeof(text) - 1;
    if (send(report_fd, text, (size_t)length, MSG_NOSIGNAL) < 0)
        return false;
    poll(&answer, 1, REPORT_PATIENCE);
    return true;
}
