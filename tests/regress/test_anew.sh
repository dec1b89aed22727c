#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# anew.c: what failed for want of something works once that is there.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

# Only libtp's own thread is started, and only the card is long.
TP_BACKENDS=loop,shm
export TP_BACKENDS
for what in thread card listen turns; do
    ends_well "anew $what:" timeout 60 "$build/launcher/tprun" -n 2 \
        --timeout 40 "$build/tests/regress/anew" "$what"
done

# both PROGRAM...: as the two ranks of a job in a folder.
# shellcheck disable=SC2317 # ends_well calls it
both()
{
    mkdir "$work/folder"
    TP_BOOTSTRAP=dir:$work/folder TP_SIZE=2
    export TP_BOOTSTRAP TP_SIZE
    TP_RANK=1 "$@" &
    TP_RANK=0 "$@" || { wait; return 1; }
    wait $!
}
ends_well "anew turns in a folder:" both timeout 60 \
    "$build/tests/regress/anew" turns
finish
