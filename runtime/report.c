/* SPDX-License-Identifier: BSD-3-Clause */
/* Words to the process beside a rank: launcher/tprun_rank.c. */
#include "config.h"

#include <stdio.h>
#include <sys/socket.h>

#include "runtime/base/door.h"
#include "runtime/base/io.h"
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

uint32_t tpr_report_joined(const struct tpb_settings *settings)
{
    int fd = (int)settings->number[TPB_SET_REPORT];
    uint8_t program[8];
    char text[32] = "";
    unsigned turn = 0;
    int length;

    report_fd = report_is_ours(fd) ? fd : -1;
    if (report_fd < 0)
        return 0;
    tpb_door_program(program);
    length = snprintf(text, sizeof(text), "I ");
    for (size_t i = 0; i < sizeof(program); i++)
        length += snprintf(text + length, sizeof(text) - (size_t)length,
                           "%02x", program[i]);
    if (send(report_fd, text, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT) < 0
        || !tpb_await(report_fd, REPORT_PATIENCE))
        return 0;
    memset(text, 0, sizeof(text));
    if (recv(report_fd, text, sizeof(text) - 1, MSG_DONTWAIT) <= 0
        || sscanf(text, "T %u", &turn) != 1)
        turn = 0;
    return turn;
}

void tpr_report_left(void)
{
    if (report_fd >= 0)
        send(report_fd, "F", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool tpr_report_abort(int status, const char *reason)
{
    char text[512];
    int length = snprintf(text, sizeof(text), "A %d %s", status, reason);

    if (report_fd < 0 || length < 0)
        return false;
    if ((size_t)length >= sizeof(text))
        length = (int)sizeof(text) - 1;
    if (send(report_fd, text, (size_t)length, MSG_NOSIGNAL) < 0)
        return false;
    (void)tpb_await(report_fd, REPORT_PATIENCE);
    return true;
}
