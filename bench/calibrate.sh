#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Measures this machine's costs, briefly, and looks at what becomes of them: a
# table for people and for programs, a file, and what a job makes of it, whole
# or damaged.  Whether the figures are good is not asked here.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"
# shellcheck source=bench/judge.sh
. bench/judge.sh

tprun=$build/launcher/tprun
tpinfo=$build/launcher/tpinfo
tpperf=$build/bench/tpperf
deadline=240
brief='--calibrate --time 0.3 --repetitions 2'
# What surely works in the time of a test; ofi:shm polls, and may take minutes
# where others want the cpus.
TP_BACKENDS=loop,shm,ofi:tcp,map,cma
TP_COSTS=$work/costs
export TP_BACKENDS TP_COSTS
costs=$work/costs

# shellcheck disable=SC2086 # $brief has several words
measured()
{
    run "$tpperf" $brief --compare
    [ "$status" -eq 0 ] && [ ! -s "$work/err" ] && [ ! -e "$costs" ] &&
        grep -qE '^same [A-Za-z0-9 ]+ shm .* x ' "$work/out" &&
        grep -qE '^same [A-Za-z0-9 ]+ ofi:tcp .* x ' "$work/out" &&
        grep -qE '^same [A-Za-z0-9 ]+ map .* x ' "$work/out" &&
        grep -q 'the model is off by a factor of ' "$work/out"
    check "expected a comparison, and no file"
    run "$tpperf" $brief --json
    [ "$status" -eq 0 ] && [ ! -s "$work/err" ] &&
        grep -q '"backend": "shm"' "$work/out" &&
        grep -q '"off": [0-9]' "$work/out"
    check "expected JSON"
    stored=$(sed -n 's/^  "stored": "\(.*\)",$/\1/p' "$work/out")
    [ -n "$stored" ] && [ -f "$stored" ] && [ "$(find "$costs" -type f |
        wc -l)" -eq 1 ]
    check "expected that file and no other"
    # A folder's name need not be UTF-8, which JSON is.
    TP_COSTS=$(printf '%s/\377' "$work") TP_BACKENDS=loop,shm \
        run "$tpperf" $brief --json
    [ "$status" -eq 0 ] && [ ! -s "$work/err" ] &&
        grep -q '^  "stored": ".*/?/costs-[0-9a-f]*\.json",$' "$work/out"
    check "expected JSON with that folder"
    find /tmp -maxdepth 1 -name 'tpperf-*' -newer "$work/start" |
        empty "folders left behind"
}

# told WORDS: both sides of a pair tell that of shm.
told()
{
    run "$tprun" -n 2 --explain "$build/man/examples/hello"
    [ "$status" -eq 0 ] &&
        [ "$(grep -c "^  shm .*chosen: $1 for " "$work/err")" -eq 2 ]
    check "expected '$1' in explain, twice"
}

used()
{
    # So that shm stays the best, whatever a busy machine measured.
    sed '/"backend": "shm"/,/}/{s/"latency_ns": .*/"latency_ns": 100,/
        s/"megabytes_per_second": .*/"megabytes_per_second": 50000/}' \
        "$stored" >"$work/table"
    cp "$work/table" "$stored"
    told measured
    run "$tpinfo" --costs
    [ "$status" -eq 0 ] && grep -q "$stored" "$work/out" &&
        grep -qE '^ *same [A-Za-z0-9 ]+ shm +0.10 us +50000 ' "$work/out"
    check "expected the table in tpinfo --costs"
    TP_COSTS=none told model
}

# Said once in a job, and the model serves.
damaged()
{
    head -c 100 "$work/table" >"$stored"
    run "$tprun" -n 3 "$build/man/examples/hello"
    [ "$status" -eq 0 ] &&
        [ "$(grep -c 'the measured costs in .* are not used' "$work/err")" \
            -eq 1 ] && grep -q -- '--calibrate' "$work/err"
    check "expected one warning"
    told model
}

# The ways between CUDA devices, on the double: what it stores says what it is
# about, and that it is of no GPU.
# shellcheck disable=SC2086
devices()
{
    double=$build/.libs/libcudadouble.so
    [ -e "$double" ] || return 0
    pretended="TP_CUDA_LIBRARY=$double TP_CARD_HOOK=two"
    allowed='loop,shm,cuda_ipc,cuda_staged'
    run env $pretended TP_BACKENDS=$allowed TP_COSTS="$work/devices" \
        "$tpperf" $brief
    [ "$status" -eq 0 ] && grep -q 'test double' "$work/err" &&
        grep -qE '^same device +cuda_ipc .* x ' "$work/out" &&
        grep -qE '^same device +cuda_staged .* x ' "$work/out" &&
        grep -qE '^NODE +cuda_staged .* x ' "$work/out" &&
        ! grep -qE '^NODE +cuda_ipc ' "$work/out" &&
        grep -q 'on a test double, not on a GPU' "$work/out"
    check "expected figures of devices, and that they are of a double"
    [ "$(cat "$work/devices/"costs-*.json | tr -d ' \n' | grep -c \
        '"backend":"cuda_ipc","locality":"samedevice","latency_ns":[1-9]')" \
        -eq 1 ]
    check "expected them in the file"
    run env $pretended TP_BACKENDS=$allowed TP_COSTS="$work/devices" \
        "$tprun" -n 2 "$tpperf" --json --sizes 8 --time 0.3 latency
    [ "$status" -eq 0 ] && grep -q '"evidence": "measured for same device' \
        "$work/out"
    check "expected a job to go by them"
    run env $pretended TP_BACKENDS=$allowed "$tpperf" $brief --compare --json
    [ "$status" -eq 0 ] && grep -q '"cuda_double": true' "$work/out" &&
        grep -q '"backend": "cuda_ipc"' "$work/out"
    check "expected JSON that says so, too"
}

# Ended by a signal: by that one, and nothing is left.
interrupted()
{
    command='tpperf --calibrate, interrupted'
    "$tpperf" --calibrate --compare --time 2000 >"$work/out" 2>"$work/err" &
    pid=$!
    tries=0
    while [ "$tries" -lt 300 ] && [ -z "$(find /tmp -maxdepth 1 \
        -name 'tpperf-*' -newer "$work/start")" ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    # The folder comes first, and then the ranks.
    : >"$work/children"
    while [ "$tries" -lt 600 ] && [ ! -s "$work/children" ]; do
        tries=$((tries + 1))
        tr ' ' '\n' <"/proc/$pid/task/$pid/children" >"$work/children"
        sleep 0.1
    done
    kill -TERM "$pid"
    wait "$pid"
    status=$?
    [ "$status" -eq 143 ]
    check "expected to die of SIGTERM"
    [ -s "$work/children" ]
    check "expected ranks"
    while read -r child; do
        [ -d "/proc/${child:-none}" ] && echo "$child"
    done <"$work/children" | empty "ranks left behind"
    find /tmp -maxdepth 1 -name 'tpperf-*' -newer "$work/start" |
        empty "folders left behind"
}

# refused PATTERN OPTION...
refused()
{
    pattern=$1
    shift
    run "$tpperf" "$@"
    [ "$status" -eq 2 ] && [ ! -s "$work/out" ] &&
        grep -q -e "^tpperf: .*$pattern" "$work/err"
    check "expected to be refused with /$pattern/"
}

# shellcheck disable=SC2086
mistakes()
{
    refused 'needs --calibrate' --compare
    refused '--calibrate can be combined with' --calibrate --sizes 8
    refused '--calibrate can be combined with' --calibrate latency
    refused '--calibrate can be combined with' --calibrate --csv
    refused '--calibrate can be combined with' --calibrate --pin
    refused '--calibrate can be combined with' --calibrate --progress manual
    refused '--calibrate can be combined with' --calibrate --who me
    run "$tprun" -n 2 "$tpperf" --calibrate
    [ "$status" -eq 2 ] && grep -q 'without a launcher' "$work/err"
    check "expected to be refused under tprun"
    run env TP_BACKENDS=loop "$tpperf" $brief
    [ "$status" -eq 1 ] &&
        grep -q 'this machine could not be measured' "$work/err" &&
        ! grep -q 'nothing to measure' "$work/err"
    check "no backend is an error"
    [ -e /dev/full ] && {
        run env TP_BACKENDS=shm sh -c "exec $tpperf $brief --compare >/dev/full"
        [ "$status" -eq 1 ] &&
            grep -q '^tpperf: cannot write standard output$' "$work/err"
        check "a full disk is an error"
    }
    : >"$work/file"
    run env TP_COSTS="$work/file/x" TP_BACKENDS=shm "$tpperf" $brief
    [ "$status" -eq 1 ] && grep -q "cannot write $work/file/x/" "$work/err" &&
        [ ! -s "$work/out" ]
    check "a folder that cannot be is an error before anything is measured"
}

if [ "$(nproc)" -lt 2 ]; then
    skip cpus "two cpus are needed, here is one"
    finish
fi
: >"$work/start"
measured
devices
used
damaged
interrupted
mistakes
finish
