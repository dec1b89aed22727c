#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# dear.c between two ranks of a host.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

# There one copy is the better way, and measured as such.
if [ "$(nproc)" -lt 2 ]; then
    skip "cpus" "both ranks would share one"
    finish
fi
"$build/launcher/tprun" -n 2 --timeout 120 "$build/tests/regress/dear" \
    >"$work/said" 2>&1
case $? in
0) pass ;;
3) skip "cma" "nothing was pulled here" ;;
*)
    fail "a slow channel is not given up:"
    sed 's/^/    /' "$work/said" ;;
esac
finish
