/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Asking other programs: run several at once, keep the beginning of what they
 * print, and never wait longer than said.
 */
#ifndef TPL_ASK_H
#define TPL_ASK_H

#include <sys/types.h>

#include "runtime/base/base.h"

struct tpl_ask {
    pid_t pid;                     /* 0: not running */
    int fd;
    int status;                    /* exit status, 128 + signal; -1: late */
    char text[2048];               /* both outputs, terminated */
    size_t length;
};

/* Starts argv[0], with /dev/null for its input.  Status 127 if it cannot be
 * run. */
void tpl_ask_start(struct tpl_ask *ask, char *const argv[]);

/* Waits until all have ended; after `seconds` those left are killed and get
 * status -1. */
void tpl_ask_wait(struct tpl_ask *asks, size_t count, int seconds);

/* The last line of what it said, with spaces for control characters; "" if
 * nothing. */
const char *tpl_ask_last_line(struct tpl_ask *ask);

#endif
