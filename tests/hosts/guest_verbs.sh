#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# What test_verbs.sh runs inside its virtual machines, from the build tree that
# they share with the host: `guest_verbs.sh one`, in a machine of its own, and
# `guest_verbs.sh two SHARE`, in each of two that share a writable directory.
# Says "good: WORDS" or "bad: WORDS" of everything it has tried.
set -u
build=${TP_TEST_BUILD:?}
said=/tmp/said
export TP_TEST_FEW=1


good() { echo "good: $*"; }

bad()
{
    echo "bad: $*"
    tail -n 20 "$said" | cut -c 1-400 | sed 's/^/    /'
}

# try WORDS COMMAND...: must end well, within some minutes.
try()
{
    words=$1 begun=$(date +%s)
    shift
    if timeout 600 "$@" >"$said" 2>&1 </dev/null; then
        good "$words ($(($(date +%s) - begun)) s)"
    else
        bad "$words: status $?, $(($(date +%s) - begun)) s"
    fi
}

# also WORDS PATTERN: what the last one said.
also()
{
    if grep -qE "$2" "$said"; then good "$1"; else bad "$1: no /$2/"; fi
}

# What takes some seconds even here: name and number of ranks.
multi='order_blocking_letters:2 close_leave_early:2 close_flush:2 blocking_any:5'

one()
{
    TP_TEST_REQUIRE=ofi:verbs try "conformance" \
        "$build/tests/conformance/test_ofi_verbs"
    also "conformance ran" '^tpx: [1-9][0-9]* passed, 0 failed, 0 skipped'

    # Chosen by itself, and explained, where shared memory is forbidden.
    TP_BACKENDS='^shm,cma,map,ofi:shm' try "4 ranks, big buffers by rma" \
        "$build/launcher/tprun" -n 4 --explain \
        --require 'node:ofi:verbs,node:rma' "$build/man/examples/ring" 1
    also "over ofi:verbs" '^every byte right; .* over ofi:verbs:'
    also "with rma" '^  rma .* chosen: '
    export TP_BACKENDS=loop,ofi:verbs
    try "4 ranks, big buffers in frames" \
        "$build/launcher/tprun" -n 4 "$build/man/examples/ring" 1
    TP_BACKENDS=$TP_BACKENDS,rma
    for test in $multi; do
        # shellcheck disable=SC2086 # name and number
        set -- ${test%:*} ${test#*:}
        try "multi: $1" "$build/launcher/tprun" -n "$2" \
            "$build/tests/multi/spmd" "$1"
    done
}

# ---- two machines ------------------------------------------------------------

# rank SCENE COMMAND...: this machine's rank of a job of two.
rank()
{
    mkdir -p "$share/$1"
    TP_BOOTSTRAP=dir:$share/$1
    shift
    TP_RANK=$RDMA_VM_NODE TP_SIZE=2
    export TP_BOOTSTRAP TP_RANK TP_SIZE
    "$@"
}

# The link fails while messages flow both ways; both ranks must find out.
cut()
{
    rank cut timeout 130 "$build/tests/hosts/both" >"$said" 2>&1 &
    pid=$!
    limit=600
    until grep -q '^going' "$said" || [ $limit -eq 0 ]; do
        sleep 0.1
        limit=$((limit - 1))
    done
    if [ "$RDMA_VM_NODE" -eq 1 ]; then
        ip link set "$RDMA_VM_NETDEV" down
    fi
    if wait "$pid"; then
        good "$(tail -n 1 "$said")"
    else
        bad "cut link: status $?"
    fi
}

two()
{
    export TP_BACKENDS='^ofi:tcp'
    TP_REQUIRE=net:ofi:verbs rank frames try "between two hosts" \
        "$build/man/examples/ring" 1
    TP_REQUIRE=net:ofi:verbs,net:rma rank rma \
        try "between two hosts, by rma" "$build/man/examples/ring" 1
    cut
}

case $1 in
one) one ;;
two) share=$2 && two ;;
esac
echo "end"
