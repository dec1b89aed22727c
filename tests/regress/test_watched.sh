#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# watched.c: memory whose pages are opened when they are touched can be sent and
# read into, whichever way it goes.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

# over BACKENDS LENGTH...
over()
{
    backends=$1
    shift
    for length in "$@"; do
        ends_well "$length bytes over $backends:" \
            env TP_BACKENDS="$backends" TP_RAILS=2 \
            timeout 100 "$build/launcher/tprun" -n 2 \
            "$build/tests/regress/watched" 64 "$length"
    done
}

over loop,shm 100000 1000000
over loop,shm,cma 100000 1000000
over loop,ofi:tcp 8000 40000 100000 262144 1000000
over loop,rails 40000 262144 1000000
finish
