#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# What test_verbs.sh runs inside its virtual machines, from the build tree that
# they share with the host: `guest_verbs.sh one`, and with TP_TEST_LONG `first`
# and `second` as well, each in a machine of its own; and `guest_verbs.sh two
# SHARE`, in each of two that share a writable directory.
# TP_TEST_LONG makes the limits wider, too: emulated machines are slow, and
# slower beside others' work.
# Says "good: WORDS" or "bad: WORDS" of everything it has tried.
set -u
# shellcheck source=tests/hosts/guest.sh
. "$(dirname "$0")/guest.sh"
patience=900 all=450 each=240     # seconds: of a command, a suite, a test
[ -z "${TP_TEST_LONG:-}" ] || patience=2400 all=2400 each=900
unset TP_TEST_LONG
[ "$1" = two ] || export FI_PROVIDER=verbs

# try WORDS COMMAND...: must end well, in time.
try()
{
    words=$1 begun=$(date +%s)
    shift
    if timeout -k 10 "$patience" "$@" >"$said" 2>&1 </dev/null; then
        good "$words ($(($(date +%s) - begun)) s)"
    else
        bad "$words: status $?, $(($(date +%s) - begun)) s"
    fi
}

# suite NAME: each of its tests is told by its name.
suite()
{
    begun=$(date +%s)
    rm -f /tmp/tap
    CK_TAP_LOG_FILE_NAME=/tmp/tap timeout -k 10 "$all" \
        "$build/tests/multi/test_$1" >"$said" 2>&1 </dev/null
    status=$?
    sed -n 's/^ok [0-9]* - [^:]*:\([a-z_0-9]*\):.*/good: multi: \1/p' /tmp/tap
    grep '^left out: ' "$said"
    if [ $status -eq 0 ] && grep -q '^ok ' /tmp/tap; then
        good "multi: all of $1 ($(($(date +%s) - begun)) s)"
    else
        bad "multi: $1: status $status, $(($(date +%s) - begun)) s"
    fi
}

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
    unset TP_BACKENDS
    # Of each suite what asks most of a transport: all of them take half an
    # hour.
    export TP_TEST_ONLY=order_pair,order_ends,channel_both,channel_borrow
    TP_TEST_ONLY=$TP_TEST_ONLY,channel_killed,close_flush,close_orphan
    TP_TEST_ONLY=$TP_TEST_ONLY,failure_killed,failure_last_words
    TP_TEST_ONLY=$TP_TEST_ONLY,nested_every_call,nested_fd_big,any_crowd
    TP_TEST_ONLY=$TP_TEST_ONLY,pressure_pipes,huge_payload,idle_ways
    TP_TEST_ONLY=$TP_TEST_ONLY,blocking_gathers,listen_ranks
    suites order channel close failure nested any pressure huge idle blocking \
        listen
    unset TP_TEST_ONLY
}

# All suites, whole; in two machines, as one that freezes is tried again.
first() { suites close failure blocking idle pressure nested arguments; }
second() { suites order channel huge bad listen any; }

# Big buffers by rma, and order_pair and order_all in frames as well.  Of
# huge_payload 32 MiB are sent: 4 GiB would take minutes.
suites()
{
    for name; do
        TP_TEST_REQUIRE=ofi:verbs TP_TEST_BACKENDS=ofi:verbs \
            TP_TEST_SECONDS=$each suite "$name"
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
one|first|second) "$1" ;;
two) share=$2 && two ;;
esac
echo "end"
