#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Jobs of four ranks that do random things (storm.c), over each way between
# them, in each mode of progress, with threads, faults and deaths.  A seed that
# found something is repeated by the command that is shown; TP_TEST_SEEDS=FROM-TO
# runs others, and TP_TEST_LONG hundreds.
# shellcheck source=tests/fuzz/fuzz.sh
. "${TP_TEST_SOURCE:-.}/tests/fuzz/fuzz.sh"

seeds=${TP_TEST_SEEDS:-1-3}
[ -z "${TP_TEST_LONG:-}" ] || seeds=${TP_TEST_SEEDS:-1-60}

# storm SEED: what else follows from it.
# shellcheck disable=SC2317 # called by each_seed
storm()
{
    seed=$1
    set -- "$seed"
    case $((seed % 3)) in
    0) mode=manual ;;
    1) mode=thread; set -- "$@" "threads=$((seed % 4))" ;;
    2) mode=auto; set -- "$@" "threads=$((seed % 2))" ;;
    esac
    case $((seed / 3 % 3)) in
    0) set -- "$@" bytes=9000 ;;
    1) set -- "$@" bytes=50 ;;
    esac
    case $((seed % 5)) in
    1) set -- "$@" lanes=3 pipes=2 ;;
    2) set -- "$@" arms=4 waits=2 ;;
    3) set -- "$@" lanes=2 pipes=2 arms=2 waits=3 ;;
    esac
    dies=
    [ $((seed % 4)) -ne 2 ] || dies=kill=$((seed / 4 % 4))
    [ -z "$dies" ] || set -- "$@" "$dies"
    TP_PROGRESS=$mode "$build/launcher/tprun" --keep-going --timeout 300 \
        -n 4 "$build/tests/fuzz/storm" "$@" >"$work/said" 2>&1
    code=$?
    [ -z "$dies" ] || [ "$code" -ne 137 ] || code=0
    if [ "$code" -eq 0 ] && ! grep -q '^storm.*rank [0-9]*: ' "$work/said"; then
        pass
    else
        again storm "--keep-going -n 4" "$@"
    fi
}

each_seed storm "$seeds"
finish
