#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# anew.c: what failed for want of something works once that is there.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

# Only libtp's own thread is started, and only the card is long.
TP_BACKENDS=loop,shm
export TP_BACKENDS
for what in thread card listen; do
    ends_well "anew $what:" timeout 60 "$build/launcher/tprun" -n 2 \
        --timeout 40 "$build/tests/regress/anew" "$what"
done
finish
