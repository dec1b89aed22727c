#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# faults.c: a fault in a callback finds the program's handler.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

ends_well "a fault in a callback:" timeout 60 "$build/tests/regress/faults"
finish
