#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# own.c, alone.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

if timeout 60 "$build/tests/regress/own" >"$work/said" 2>&1; then
    pass
else
    fail "callbacks of the context's thread:"
    sed 's/^/    /' "$work/said"
fi
finish
