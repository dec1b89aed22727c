#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# barred.c in a job that insists on a channel.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

if ! "$build/launcher/tprun" -n 2 --timeout 60 --require node:cma \
    "$build/man/examples/ring" 1 >"$work/said" 2>&1; then
    skip "cma" "$(tail -n 1 "$work/said")"
    finish
fi
ends_well "somebody from outside who cannot keep the contract:" \
    "$build/launcher/tprun" -n 1 --timeout 60 --require node:cma \
    "$build/tests/regress/barred"
finish
