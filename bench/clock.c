/* SPDX-License-Identifier: BSD-3-Clause */
/* How long a tick is. */
#include "bench/clock.h"

enum { CLOCK_WAIT_NS = 5000000 };

static double clock_ns_per_tick;

/* One comparison with the system's clock. */
static double clock_compare(void)
{
    uint64_t ns = bench_system_ns(), ticks = bench_ticks(), now;

    do
        now = bench_system_ns();
    while (now - ns < CLOCK_WAIT_NS);
    return (double)(now - ns) / (double)(bench_ticks() - ticks);
}

/* Being interrupted between the two readings makes a tick look shorter or
 * longer: the middle of three is taken. */
void bench_clock_init(void)
{
    double a = clock_compare(), b = clock_compare(), c = clock_compare();
    double low = a < b ? a : b, high = a < b ? b : a;

    clock_ns_per_tick = c < low ? low : c > high ? high : c;
}

double bench_ns(uint64_t ticks)
{
    return (double)ticks * clock_ns_per_tick;
}
