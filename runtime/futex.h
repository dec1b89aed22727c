/* SPDX-License-Identifier: BSD-3-Clause */
/* futex(2) for words inside one process. */
#ifndef TPR_FUTEX_H
#define TPR_FUTEX_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/base.h"

/* Sleeps while *word is `value`, at most `ns` nanoseconds (0: no limit).  May
 * return early. */
static inline void tpr_futex_wait(_Atomic uint32_t *word, uint32_t value,
                                  uint64_t ns)
{
    struct timespec limit = { .tv_sec = (time_t)(ns / 1000000000u),
                              .tv_nsec = (long)(ns % 1000000000u) };

    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value,
            ns > 0 ? &limit : NULL, NULL, 0);
}

static inline void tpr_futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

#endif
