#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# outrun.c: a sender that is late by more buffers than 16 bits can number.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

ends_well "a reader that outran its sender:" \
    timeout 300 "$build/launcher/tprun" -n 2 \
    "$build/tests/regress/outrun" "$work/words"
finish
