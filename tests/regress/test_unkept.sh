#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# unkept.c, over shared memory; each try that fails is logged, too.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

ends_well "promises that are not kept:" env TP_LOG=off TP_BACKENDS=loop,shm \
    timeout 300 "$build/tests/regress/unkept"
finish
