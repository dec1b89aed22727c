/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Time in ticks.  Where there is a steady cycle counter it is read directly:
 * that takes half as long as asking the system, and is a visible part of the
 * shortest round trips.
 */
#ifndef BENCH_CLOCK_H
#define BENCH_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t bench_system_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#if defined(__x86_64__)
static inline uint64_t bench_ticks(void)
{
    return __builtin_ia32_rdtsc();
}

static inline void bench_pause(void)
{
    __builtin_ia32_pause();
}
#else
static inline uint64_t bench_ticks(void)
{
    return bench_system_ns();
}

static inline void bench_pause(void)
{
}
#endif

/* Finds out how long a tick is; takes a few milliseconds, once per process. */
void bench_clock_init(void);

/* Nanoseconds of a difference of ticks. */
double bench_ns(uint64_t ticks);

#endif
