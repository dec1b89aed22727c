# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=sh
#
# For test_storm.sh and test_gale.sh: a program that is run for each seed over
# each way between ranks.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

# Of the run that is over: its status, and who drove the ranks.
code=0 mode=

# again NAME OPTIONS SEED...: that one has failed.
again()
{
    name=$1 options=$2
    shift 2
    fail "$name $1 over $TP_BACKENDS, status $code; again by"
    echo "    TP_BACKENDS=$TP_BACKENDS TP_PROGRESS=$mode" \
        "tprun $options tests/fuzz/$name $*"
    grep -v ' sent ' "$work/said" | head -n 20 | sed 's/^/    /'
}

# each_seed COMMAND FROM-TO: over each way, called with the seed.
each_seed()
{
    TP_RAILS=2
    TP_COSTS=none
    export TP_RAILS TP_COSTS
    "$build/launcher/tpinfo" --backends >"$work/backends"
    for ways in shm,loop shm,cma,map,loop ofi:tcp,loop ofi:shm,loop rails,loop
    do
        first=${ways%%,*}
        if ! grep -q "^ *$first  .* works" "$work/backends"; then
            skip "$first" "tpinfo --backends tells why it does not work"
            continue
        fi
        TP_BACKENDS=$ways
        export TP_BACKENDS
        for seed in $(seq "${2%-*}" "${2#*-}"); do
            "$1" "$seed"
        done
    done
}
