/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a program does between two messages: nothing but turns of a loop.  A
 * number of turns, not a time: what keeps the program from its cpu meanwhile
 * shall be seen.
 */
#include <math.h>

#include "bench/bench.h"
#include "bench/clock.h"

enum { WORK_TRIES = 9, WORK_TURNS = 200000 };

/* Each turn needs the one before; nobody reads the result. */
void bench_work(uint64_t turns)
{
    uint64_t x = 1;

    for (uint64_t i = 0; i < turns; i++) {
        x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
        __asm__ volatile("" : "+r"(x));
    }
}

/* The shortest of some tries is the one that nobody disturbed. */
uint64_t bench_work_turns(double us)
{
    double least = INFINITY;

    for (int i = 0; i < WORK_TRIES; i++) {
        uint64_t begun = bench_ticks();

        bench_work(WORK_TURNS);
        least = fmin(least, bench_ns(bench_ticks() - begun));
    }
    return (uint64_t)(us * 1e3 / least * WORK_TURNS);
}
