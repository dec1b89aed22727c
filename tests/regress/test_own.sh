#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# own.c, alone.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

ends_well "callbacks of the context's thread:" \
    timeout 60 "$build/tests/regress/own"
finish
