#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# fallback.c, with each way in which ranks of tprun learn of each other.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

# What libpmix forgets is known by its callers: all of them have to be found.
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}fast_unwind_on_malloc=0
export ASAN_OPTIONS

for how in auto pmix; do
    ends_well "a second tp_init() of one rank, TP_BOOTSTRAP=$how:" \
        env TP_BOOTSTRAP=$how TP_CONNECT_TIMEOUT=20s "$build/launcher/tprun" \
        -n 2 --timeout 60 "$build/tests/regress/fallback"
done
finish
