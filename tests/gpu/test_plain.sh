#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# What tests/gpu/run carries to a machine with a GPU does not need a second one,
# nor the double's variables: as there, each program runs over a double that has
# one device and takes no orders.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

CUDADOUBLE_PLAIN=1
export CUDADOUBLE_PLAIN
for name in test_memory test_device test_kinds; do
    if "$build/tests/gpu/$name" >"$work/said" 2>&1; then
        pass
    else
        fail "$name:"
        grep -E ':[FE]:|^tpx: ' "$work/said" | sed 's/^/    /'
    fi
done
finish
