/* SPDX-License-Identifier: BSD-3-Clause */
/* A pseudo-terminal, see pty(7). */
#include "config.h"

#include <fcntl.h>
#include <stdlib.h>
#include <termios.h>

#include "launcher/terminal.h"
#include "runtime/base/io.h"

int tpl_terminal_open(int *writer)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    struct termios settings;
    char name[64];

    if (master < 0)
        return -1;
    if (grantpt(master) < 0 || unlockpt(master) < 0
        || ptsname_r(master, name, sizeof(name)) != 0
        || (*writer = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0) {
        tpb_close(&master);
        return -1;
    }
    if (tcgetattr(*writer, &settings) == 0) {
        settings.c_oflag &= ~(tcflag_t)OPOST;
        tcsetattr(*writer, TCSANOW, &settings);
    }
    return master;
}
