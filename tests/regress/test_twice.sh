#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# twice.c over each transport between two contexts of a process.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

each_way "shm ofi:shm ofi:tcp rails" timeout 120 "$build/tests/regress/twice"
finish
