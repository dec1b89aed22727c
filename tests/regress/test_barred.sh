#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# barred.c in a job that insists on a channel.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

needs_cma
ends_well "somebody from outside who cannot keep the contract:" \
    "$build/launcher/tprun" -n 1 --timeout 60 --require node:cma \
    "$build/tests/regress/barred"
finish
