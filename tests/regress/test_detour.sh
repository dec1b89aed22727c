#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# detour.c, driven by itself and by a thread.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

for mode in manual thread; do
    ends_well "$mode:" env TP_PROGRESS=$mode timeout 90 \
        "$build/tests/regress/detour"
done
finish
