#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# asleep.c over each transport between two ranks of a host.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

each_way "shm ofi:shm ofi:tcp" "$build/launcher/tprun" -n 2 --timeout 120 \
    "$build/tests/regress/asleep"
finish
