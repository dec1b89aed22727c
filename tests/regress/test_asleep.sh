#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# asleep.c over each transport between two ranks of a host.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

for way in shm ofi:shm ofi:tcp; do
    if TP_BACKENDS=$way "$build/launcher/tprun" -n 2 --timeout 120 \
        "$build/tests/regress/asleep" >"$work/said" 2>&1; then
        pass
    else
        fail "over $way:"
        sed 's/^/    /' "$work/said"
    fi
done
finish
