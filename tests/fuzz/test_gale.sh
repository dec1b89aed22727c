#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Jobs of three ranks whose threads talk by blocking calls, and with guests
# (gale.c), over each way between them, in each mode of progress and kind of
# event loop.  TP_TEST_SEEDS=FROM-TO runs other seeds, and TP_TEST_LONG more.
# shellcheck source=tests/fuzz/fuzz.sh
. "${TP_TEST_SOURCE:-.}/tests/fuzz/fuzz.sh"

seeds=${TP_TEST_SEEDS:-1-2}
[ -z "${TP_TEST_LONG:-}" ] || seeds=${TP_TEST_SEEDS:-1-40}

# gale SEED: what else follows from it.
# shellcheck disable=SC2317 # called by each_seed
gale()
{
    seed=$1
    set -- "$seed"
    case $((seed % 3)) in
    0) mode=manual ;;
    1) mode=thread ;;
    2) mode=auto ;;
    esac
    case $((seed / 2 % 3)) in
    0) set -- "$@" loop=fd ;;
    1) set -- "$@" loop=wait ;;
    2) set -- "$@" loop=progress ;;
    esac
    [ $((seed % 4)) -ne 0 ] || set -- "$@" any=1
    TP_PROGRESS=$mode "$build/launcher/tprun" --timeout 300 \
        -n 3 "$build/tests/fuzz/gale" "$@" >"$work/said" 2>&1
    code=$?
    if [ "$code" -eq 0 ]; then
        pass
    else
        again gale "-n 3" "$@"
    fi
}

each_seed gale "$seeds"
finish
