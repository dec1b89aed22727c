#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Where processes may read each other's memory, that is tried instead of frames
# for whatever may be faster so: for messages of less than a frame that come
# alone or cross, and in streams of more than one.  (The copies are counted by
# crawling.c; without an offset none crawls.)
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

needs_cma

# tries SIZE TEST...: bytes are right, and some were read where they lay.
tries()
{
    size=$1
    shift
    ends_well "$* of $size:" \
        env LD_PRELOAD="$build/.libs/libcrawling.so" \
        TP_BACKENDS=loop,shm,map,cma TP_COSTS=none \
        timeout 300 "$build/launcher/tprun" -n 2 "$build/bench/tpperf" \
        --sizes "$size" --time 300 --repetitions 3 --verify "$@"
    grep -q '^copies: ' "$work/said" || {
        fail "$* of $size: all have gone in frames:"
        sed 's/^/    /' "$work/said"
    }
}

for mode in manual auto thread; do
    tries 12k --progress "$mode" latency
done
tries 12000 --work 0 overlap
tries 24k --progress manual bandwidth
tries 24k --progress manual bidirectional
finish
