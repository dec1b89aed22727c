#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# unloaded.c, alone.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

ends_well "a plug-in that is unloaded too early:" \
    timeout 60 "$build/tests/regress/unloaded" "$build/.libs/libtp.so"
finish
