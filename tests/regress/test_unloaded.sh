#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# unloaded.c, alone.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

if timeout 60 "$build/tests/regress/unloaded" "$build/.libs/libtp.so" \
    >"$work/said" 2>&1; then
    pass
else
    fail "a plug-in that is unloaded too early:"
    sed 's/^/    /' "$work/said"
fi
finish
