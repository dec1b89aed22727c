#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# locked.c: what lacks where a process locks its memory is said as it is.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

TP_PROGRESS=thread timeout 60 "$build/tests/regress/locked" >"$work/said" 2>&1
status=$?
if [ "$status" = 77 ]; then
    skip memlock "memory cannot be locked here"
elif [ "$status" = 0 ] && grep -q "ulimit -l" "$work/said"; then
    pass
else
    fail "ended with status $status:"
    sed 's/^/    /' "$work/said"
fi
finish
