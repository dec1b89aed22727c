#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# lingers.c: libpmix answers after tp_finalize(), and nothing is touched that is
# free by then, which AddressSanitizer sees, or which holds garbage.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

if MALLOC_PERTURB_=165 TP_BOOTSTRAP=pmix timeout 100 \
    "$build/launcher/tprun" -n 2 "$build/tests/regress/lingers" \
    >"$work/said" 2>&1 && ! grep -q "was there" "$work/said"; then
    pass
else
    fail "ended with status $?:"
    sed 's/^/    /' "$work/said"
fi
finish
