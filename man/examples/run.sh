#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Runs every example as its first comment says, and looks at what it prints.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

tprun=$build/launcher/tprun
if [ ! -x "$tprun" ]; then
    skip tprun "$tprun is not built"
    finish
fi

# job RANKS PROGRAM ARGUMENT...: as a job, with a deadline; its output goes to
# $work/said, its status to $status.
job()
{
    ranks=$1 program=$2
    shift 2
    timeout --kill-after=5 120 "$tprun" -n "$ranks" \
        "$build/man/examples/$program" "$@" >"$work/said" 2>&1 <"$work/input"
    status=$?
}

# says STATUS PATTERN WORDS: the last job ended and spoke like that.
says()
{
    if [ "$status" -eq "$1" ] && grep -qE "$2" "$work/said"; then
        pass
    else
        fail "$3: expected status $1 and /$2/, got status $status and:"
        sed 's/^/    /' "$work/said"
    fi
}

# count NUMBER PATTERN WORDS: so many lines of the last job are like that.
count()
{
    lines=$(grep -cE "$2" "$work/said")
    if [ "$lines" -eq "$1" ]; then
        pass
    else
        fail "$3: $lines lines instead of $1 with /$2/"
    fi
}

# For what is to come with another release: a failure once it is required.
unless_unsupported()
{
    if [ "$status" -ne 0 ] && grep -q 'not supported' "$work/said"; then
        skip "$1" "$1 is not supported in this build"
    else
        shift
        says "$@"
    fi
}

: >"$work/input"

job 4 hello
says 0 'hello from rank 3 \(rank 3 on .*pid [0-9]+\)' "hello -n 4"
count 3 '^hello from rank' "hello -n 4"

export TP_BACKENDS=^ofi,shm
job 2 hello
unset TP_BACKENDS
says 1 'no backend reaches rank [01] ' "hello without a backend"

for ranks in 1 2 3 4; do
    job $ranks ring 3
    says 0 '^every byte right; sent to .* over [a-z].*: 24 messages' \
        "ring -n $ranks"
done
job 2 ring nonsense
says 2 '^usage: ring' "ring with nonsense"

job 2 pingpong 8 100
says 0 '^8 bytes, 100 round trips: half of one takes' "pingpong"
job 2 pingpong 1000000 5
says 0 '^1000000 bytes, 5 round trips' "pingpong with 1 MB"
job 1 pingpong
says 2 '^usage: ' "pingpong alone"

printf 'one\ntwo\nthree' >"$work/input"
job 3 eventloop
says 0 '^rank 1: THREE$' "eventloop, the line without an end"
says 0 '^rank 2: TWO$' "eventloop"
awk 'BEGIN { for (i = 0; i < 2000; i++) print "line " i }' >"$work/input"
job 3 eventloop
says 0 '^rank 2: LINE 1999$' "eventloop, many lines"
count 2000 '^rank' "eventloop, many lines"
: >"$work/input"

job 4 workers 30000
unless_unsupported any 0 '^3245 primes below 30000$' "workers"

job 3 why
says 0 '^tp [0-9.]+: 3 ranks, 3 of them on this host$' "why"
count 2 '^to rank [12]' "why"

job 2 borrow
says 0 '^the sum is 549755289600$' "borrow"

# Through CPU memory; and over the double of libcuda, where it is built.
export TP_CUDA_LIBRARY=none
job 3 pipeline 6 100000
says 0 '^6 batches of 100000 bytes through 2 stages, 0 of them on GPUs: every' \
    "pipeline without a GPU"
export TP_BACKENDS=loop
job 2 pipeline
says 1 'no backend reaches the peer: no backend reaches rank' \
    "pipeline without a way"
unset TP_BACKENDS
TP_CUDA_LIBRARY=$build/.libs/libcudadouble.so
if [ -e "$TP_CUDA_LIBRARY" ]; then
    for mode in lazy delay; do
        export CUDADOUBLE_MODE=$mode
        job 4 pipeline 6 1000000
        says 0 '^6 batches of 1000000 bytes through 3 stages, 3 of them on GPUs' \
            "pipeline on GPUs, $mode"
    done
    unset CUDADOUBLE_MODE
    # A contract of the GPUs' memory, which rank 0 has not.
    export TP_REQUIRE=cuda:cuda_ipc
    job 3 pipeline 3 100000
    says 1 'no way that is allowed: .* cuda_ipc says: .* uses no GPU' \
        "pipeline to the CPU, against the contract"
    export TP_BACKENDS=loop,shm
    job 3 pipeline 3 100000
    says 1 'no way that is allowed: .*cuda_ipc .*remedy: add cuda_ipc to TP_B' \
        "pipeline without what the contract wants"
    unset TP_REQUIRE TP_BACKENDS
else
    skip double "no double of libcuda here (make check builds it)"
fi
unset TP_CUDA_LIBRARY
job 1 pipeline
says 2 '^usage: pipeline' "pipeline alone"

# Alone, without a launcher: a job of one rank.
timeout 60 "$build/man/examples/ring" 2 >"$work/said" 2>&1
status=$?
says 0 '^a ring of 1 rank, 2 laps' "ring without tprun"

timeout 60 "$build/man/examples/outsider" >"$work/host" 2>&1 &
host=$!
for _ in $(seq 600); do
    [ ! -s "$work/host" ] || break
    sleep 0.1
done

guest()
{
    timeout 60 "$build/man/examples/outsider" "$1" >"$work/said" 2>&1
    status=$?
}
guest "$(sed -n '1s/key=./key=x/p' "$work/host")"
says 1 'invalid|argument' "outsider with half an address"
guest "$(sed -n '1s/key=.*/key=00000000000000000000000000000000/p' \
    "$work/host")"
says 1 'does not let us in' "outsider with a wrong key"
guest "$(head -n 1 "$work/host")"
wait "$host"
status=$?
cat "$work/host" >>"$work/said"
says 0 ': hello from outside$' "outsider"
finish
