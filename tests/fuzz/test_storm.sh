#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Jobs of four ranks that do random things (storm.c), over each way between
# them, in each mode of progress, with threads, faults and deaths.  A seed that
# found something is repeated by the command that is shown; TP_TEST_SEEDS=FROM-TO
# runs others, and TP_TEST_LONG hundreds.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

seeds=${TP_TEST_SEEDS:-1-3}
[ -z "${TP_TEST_LONG:-}" ] || seeds=${TP_TEST_SEEDS:-1-60}

# storm SEED: what else follows from it.
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
    [ -z "$dies" ] || [ $code -ne 137 ] || code=0
    if [ $code -eq 0 ] && ! grep -q '^storm.*rank [0-9]*: ' "$work/said"; then
        pass
        return
    fi
    fail "storm $seed over $TP_BACKENDS, status $code; again by"
    echo "    TP_BACKENDS=$TP_BACKENDS TP_PROGRESS=$mode" \
        "tprun --keep-going -n 4 tests/fuzz/storm $*"
    grep -v ' sent ' "$work/said" | head -n 20 | sed 's/^/    /'
}

TP_RAILS=2
TP_COSTS=none
export TP_RAILS TP_COSTS
"$build/launcher/tpinfo" --backends >"$work/backends"
for ways in shm,loop shm,cma,map,loop ofi:tcp,loop ofi:shm,loop rails,loop; do
    first=${ways%%,*}
    if ! grep -q "^ *$first  .* works" "$work/backends"; then
        skip "$first" "tpinfo --backends tells why it does not work"
        continue
    fi
    TP_BACKENDS=$ways
    export TP_BACKENDS
    for seed in $(seq "${seeds%-*}" "${seeds#*-}"); do
        storm "$seed"
    done
done
finish
