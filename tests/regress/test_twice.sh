#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# twice.c over each transport between two contexts of a process.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

for way in shm ofi:shm ofi:tcp rails; do
    if TP_BACKENDS=$way timeout 120 "$build/tests/regress/twice" \
        >"$work/said" 2>&1; then
        pass
    else
        fail "over $way:"
        sed 's/^/    /' "$work/said"
    fi
done
finish
