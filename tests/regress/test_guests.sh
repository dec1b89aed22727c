#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# guests.c over each transport between two contexts of a process.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

each_way "shm ofi:tcp rails" timeout 300 "$build/tests/regress/guests"
finish
