#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Jobs of three ranks whose threads talk by blocking calls, and with guests
# (gale.c), over each way between them, in each mode of progress and kind of
# event loop.  TP_TEST_SEEDS=FROM-TO runs other seeds, and TP_TEST_LONG more.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

seeds=${TP_TEST_SEEDS:-1-2}
[ -z "${TP_TEST_LONG:-}" ] || seeds=${TP_TEST_SEEDS:-1-40}

# gale SEED: what else follows from it.
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
    if [ $code -eq 0 ]; then
        pass
        return
    fi
    fail "gale $seed over $TP_BACKENDS, status $code; again by"
    echo "    TP_BACKENDS=$TP_BACKENDS TP_PROGRESS=$mode" \
        "tprun -n 3 tests/fuzz/gale $*"
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
        gale "$seed"
    done
done
finish
