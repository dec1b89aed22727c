#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# silent.c, over shared memory.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

mkdir "$work/cards"
if TP_BACKENDS=shm timeout 90 "$build/tests/regress/silent" \
    "dir:$work/cards" >"$work/said" 2>&1; then
    pass
else
    fail "a caller who does not greet:"
    sed 's/^/    /' "$work/said"
fi
finish
