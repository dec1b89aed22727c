#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# faults.c: a fault in a callback finds the program's handler.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

if timeout 60 "$build/tests/regress/faults" >"$work/said" 2>&1; then
    pass
else
    fail "ended with status $?:"
    sed 's/^/    /' "$work/said"
fi
finish
