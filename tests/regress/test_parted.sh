#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# parted.c over the transports that cma goes with.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

needs_cma
# What rank 0 says of it is announced here.
for first in 0 1 later; do
    each_way "shm,cma ofi:tcp,cma" env TP_LOG=off TP_REQUIRE=node:cma \
        "$build/launcher/tprun" -n 2 --timeout 60 \
        "$build/tests/regress/parted" "$first"
done
finish
