#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Where the kernel's copies crawl (crawling.c), between a buffer at the beginning
# of a page and one 16 bytes behind, as malloc() gives them: none does, and the
# bytes are right, whether the receiver copies or both do.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

needs_cma

# moves OFFSET TEST...: whole, and nothing crawls.
moves()
{
    offset=$1
    shift
    ends_well "$* to a place $offset bytes behind a page:" \
        env LD_PRELOAD="$build/.libs/libcrawling.so" TP_REQUIRE=node:cma \
        timeout 300 "$build/launcher/tprun" -n 2 "$build/bench/tpperf" \
        --offset "$offset" --sizes 40k,100001,1M,5M --time 5 --repetitions 2 \
        --verify "$@"
    if grep -q '^copies: ' "$work/said"; then
        grep '^copies: ' "$work/said" | grep -v 'crawled: 0$' |
            empty "copies crawl, $* at $offset:"
    else
        fail "nothing was copied from process to process:"
        sed 's/^/    /' "$work/said"
    fi
}

for offset in 1 16 31 32; do
    moves "$offset" latency overlap
done
moves 16 bandwidth bidirectional
moves 16 --progress manual latency
finish
