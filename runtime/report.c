/* SPDX-License-Identifier: BSD-3-Clause */
/* Words to the process beside a rank: launcher/tprun_rank.c. */
#include "config.h"

#include <stdio.h>
#include <sys/socket.h>

#include "runtime/base/door.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"
#include "runtime/report.h"

TPB_LOG_COMPONENT("bootstrap");

/* In ms.  The process beside us may be stopped, get no cpu, or wait for who
 * reads what ranks print; if it is dead the socket says so at once. */
enum {
    REPORT_TURN_MS = 60000,
    REPORT_ABORT_MS = 1000         /* nobody needs the answer */
};

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

/* Answers that were late for their questions are none to the next. */
static void report_forget(void)
{
    char text[32];

    while (recv(report_fd, text, sizeof(text), MSG_DONTWAIT) > 0)
        ;
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
    report_forget();
    if (send(report_fd, text, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return 0;
    memset(text, 0, sizeof(text));
    if (!tpb_await(report_fd, REPORT_TURN_MS)
        || recv(report_fd, text, sizeof(text) - 1, MSG_DONTWAIT) <= 0
        || sscanf(text, "T %u", &turn) != 1) {
        turn = 0;
        tpb_warn("tprun-rank does not say which of its rank's programs this"
                 " is: taken for the first, it meets those of other ranks");
    }
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
    report_forget();
    if (send(report_fd, text, (size_t)length, MSG_NOSIGNAL) < 0)
        return false;
    (void)tpb_await(report_fd, REPORT_ABORT_MS);
    return true;
}
