#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# A provider that fetches long datagrams by itself: they may be whole after
# shorter ones that were sent later.  (test_ofi_order.c has that without one.)
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

each_way "ofi:tcp;ofi_rxm" "$build/launcher/tprun" -n 2 --timeout 120 \
    "$build/bench/tpperf" --verify --time 1 --repetitions 1 --window 8 \
    --sizes 20,20000,300000 latency bidirectional
finish
