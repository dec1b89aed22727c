/* SPDX-License-Identifier: BSD-3-Clause */
/* What follows from a seed, for storm.c and gale.c. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stdint.h>

static inline uint64_t mix(uint64_t x)     /* splitmix64, by S. Vigna */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

#endif
