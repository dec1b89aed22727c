#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Ranks of tprun find each other by its doors, without libpmix; with it where
# that is asked for; and both find each other, whatever became of the sockets
# that they inherited.  Who waits for a rank that dies hears of it.  Of several
# programs of a rank each meets its like.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

doors=$build/tests/launcher/doors
# For ranks of a job that is stopped and goes on: LeakSanitizer stops a process
# that ends by a signal, and SIGCONT, which tprun passes on, takes that away.  It
# would wait for ever, so it is not to look there.
no_look=ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

# job STATUS OPTIONS... -- COMMAND...: what it says is in $work/said.
job()
{
    expected=$1
    shift
    timeout --kill-after=5 200 "$build/launcher/tprun" "$@" \
        >"$work/said" 2>&1
    status=$?
    if [ $status -eq "$expected" ]; then
        pass
    else
        fail "$*: status $status instead of $expected, and"
        head -n 20 "$work/said" | sed 's/^/    /'
    fi
}

# says PATTERN WHY
says()
{
    if grep -q "$1" "$work/said"; then
        pass
    else
        fail "$2: not /$1/ but"
        head -n 20 "$work/said" | sed 's/^/    /'
    fi
}

# loads NUMBER: so many processes loaded libpmix, says the dynamic linker.
loads()
{
    found=$(grep -l 'calling init: .*/libpmix' "$work"/ld.* 2>/dev/null |
        wc -l)
    rm -f "$work"/ld.*
    if [ "$found" -eq "$1" ]; then
        pass
    else
        fail "$found processes loaded libpmix instead of $1"
    fi
}

# ---- which way ---------------------------------------------------------------

watched="env LD_DEBUG=files LD_DEBUG_OUTPUT=$work/ld"
# shellcheck disable=SC2086 # two words
job 0 -n 4 $watched "$doors" ring
loads 0
# shellcheck disable=SC2086
job 0 -n 4 $watched TP_BOOTSTRAP=pmix "$doors" ring
loads 4

# Every other one by PMIx.
# shellcheck disable=SC2016 # for the inner shell
job 0 -n 6 sh -c 'case $PMIX_RANK in [024]) export TP_BOOTSTRAP=pmix;; esac
    exec "$0" ring' "$doors"

# ---- sockets that did not come -----------------------------------------------

# Some programs close what they do not know before they start another.
# shellcheck disable=SC2016
job 0 -n 4 bash -c 'case $PMIX_RANK in
    [12]) IFS=: read -r a b rest <<X
$TP_DOOR
X
        eval "exec $a>&- $b>&-" ;;
    esac
    exec "$0" ring' "$doors"

# ---- variables that did not come -----------------------------------------------

# What is left of the environment differs: tprun is asked for the rest.
# shellcheck disable=SC2016
job 0 -n 5 sh -c 'case $PMIX_RANK in
    1) unset TP_DOOR ;;
    2) unset TP_DOOR TP_LAUNCHER; export TP_BOOTSTRAP=pmix ;;
    3) exec env -i PMIX_RANK=3 PMIX_NAMESPACE="$PMIX_NAMESPACE" "$0" ring ;;
    esac
    exec "$0" ring' "$doors"
# It takes its time to answer, and the program gets signals meanwhile.
# shellcheck disable=SC2016
job 0 -n 2 -x "$no_look" sh -c 'unset TP_DOOR
    [ "$PMIX_RANK" = 1 ] || exec "$0" ring
    (sleep 0.5; kill -CONT $PPID) &
    kill -STOP $PPID
    export DOORS_CLOCK=1
    exec "$0" ring' "$doors"
# Whether it ends before the other one joins, or after.
for late in 0 0.4; do
    # shellcheck disable=SC2016
    job 1 -n 2 --keep-going env TP_CONNECT_TIMEOUT=300s LATE=$late sh -c '
        [ "$PMIX_RANK" = 1 ] && exec env -i "$0" alone
        sleep $LATE; "$0" ring || exit 1' "$doors"
    says 'tprun (pid .*environment was cleared' 'a rank without an environment'
    says 'rank 1 ended, .*clear its environment' \
        "a rank without an environment, met after $late s"
done
# A server that hears too late that a rank has ended.
job 0 -n 2 env TP_BOOTSTRAP=pmix "$doors" deaf

# ---- doors that do not open -------------------------------------------------

# PMIx does instead; but it needs descriptors and memory as well (ENOBUFS).
job 0 -n 3 env DOORS_SHUT=13 "$doors" ring
says "tprun's door does not open: Perm.*only ranks with TP_BOOTSTRAP=pmix" \
    'a door that is denied'
# shellcheck disable=SC2016
job 0 -n 3 env TP_BOOTSTRAP=pmix sh -c '
    [ "$PMIX_RANK" = 1 ] && export DOORS_SHUT=13; exec "$0" ring' "$doors"
# Those that have only doors are told of one that has none.
# shellcheck disable=SC2016
job 9 -n 3 env TP_CONNECT_TIMEOUT=300s sh -c '
    [ "$PMIX_RANK" = 1 ] && export DOORS_SHUT=13; exec "$0" ring' "$doors"
says "doors: .*it has PMIx only (tprun's door .*Perm.*BOOTSTRAP=pmix for all" \
    'a door that is denied to one rank'
# shellcheck disable=SC2016
job 9 -n 3 env TP_CONNECT_TIMEOUT=300s sh -c '
    [ "$PMIX_RANK" = 1 ] && export DOORS_SHUT=105; exec "$0" ring' "$doors"
says "tp_init: tprun's door does not open: No buffer" 'a door without memory'
# shellcheck disable=SC2016
job 9 -n 2 env TP_CONNECT_TIMEOUT=300s TP_BOOTSTRAP=pmix sh -c '
    [ "$PMIX_RANK" = 1 ] && export DOORS_SHUT=12; exec "$0" ring' "$doors"
says "tp_init: tprun's door does not open: Cannot alloc" \
    'a door without memory, by PMIx'
job 9 -n 2 env DOORS_SHUT=13 DOORS_BARE=1 "$doors" ring
says "tp_init: tprun's door does not open: Perm.*need libpmix.*cannot be" \
    'a door that is denied, and no libpmix'
# A moment without memory is waited for.
job 0 -n 3 env DOORS_STARVED=1 "$doors" ring
# Ranks of another launcher that one of ours starts are none of ours.
if mpirun --version 2>&1 | grep -q 'Open MPI.* 4\.'; then
    # shellcheck disable=SC2016
    job 0 -n 2 env TP_CONNECT_TIMEOUT=50s sh -c '
        [ "$PMIX_RANK" = 1 ] || mpirun --allow-run-as-root --oversubscribe \
            -n 2 "$0" ring || exit
        exec "$0" ring' "$doors"
else
    skip openmpi "no Open MPI 4 to start by one of our ranks"
fi

# ---- contexts ----------------------------------------------------------------

job 0 -n 3 "$doors" again
job 0 -n 3 env TP_BOOTSTRAP=pmix "$doors" again
# libpmix is asked, and ends before it can answer (ASan: nothing is lost).
# shellcheck disable=SC2016
job 0 -n 2 env TP_BOOTSTRAP=pmix sh -c '
    [ "$PMIX_RANK" = 1 ] && exec sleep 1; exec "$0" unanswered' "$doors"
job 1 -n 1 "$doors" half
says 'rank 0 .*tp_finalize' 'a context that was not ended'
job 0 -n 2 "$doors" many

# ---- signals -----------------------------------------------------------------

job 0 -n 2 "$doors" mask
job 0 -n 2 env TP_BOOTSTRAP=pmix "$doors" mask

# ---- programs ----------------------------------------------------------------

# Rank 2 is late with its first, rank 0 with its second; rank 1 meets them.
# shellcheck disable=SC2016
programs='case $PMIX_RANK in 2) sleep 0.4;; esac
    "$0" ring 11 || exit
    case $PMIX_RANK in 0) sleep 0.4;; esac
    "$0" ring 12 && "$0" again && "$0" ring 14'
job 0 -n 4 sh -c "$programs" "$doors"
job 0 -n 4 env TP_BOOTSTRAP=pmix sh -c "$programs" "$doors"
# shellcheck disable=SC2016
job 0 -n 4 sh -c 'case $PMIX_RANK in [02]) export TP_BOOTSTRAP=pmix;; esac
    '"$programs" "$doors"
# The script decides what the end of a program means.
# shellcheck disable=SC2016
job 0 -n 2 sh -c '"$0" quit; "$0" ring 2' "$doors"
# shellcheck disable=SC2016
job 1 -n 2 sh -c '"$0" ring 1; "$0" quit' "$doors"
says 'tp_finalize' 'the last program of a rank quits'
# shellcheck disable=SC2016
job 9 -n 2 env TP_CONNECT_TIMEOUT=300s \
    sh -c '"$0" ring; [ "$PMIX_RANK" = 1 ] || exec "$0" ring' "$doors"
says 'rank 1 ended, .*(after 1 program of tp)' 'a program that nobody meets'

# Of those that quit one after the other tprun keeps nothing.
# shellcheck disable=SC2016
job 0 -n 1 sh -c 'data() { sed -n "s/^VmData:[^0-9]*\([0-9]*\).*/\1/p" \
        /proc/$PPID/status; }
    all=400
    [ -z "$TP_TEST_SANITIZER" ] || all=40
    for i in $(seq $all); do
        "$0" quit || exit
        [ "$i" != 100 ] || before=$(data)
    done
    after=$(data)
    [ $all -lt 100 ] || [ $((after - before)) -lt 200 ] || exit 9
    exec "$0" alone' "$doors"

# All of a job is stopped, for longer than a rank waits for tprun, while ranks do
# so: that is not tprun's fault, nor theirs.
mkdir "$work/ranks"
# shellcheck disable=SC2016
"$build/launcher/tprun" -n 16 --timeout 100 -x "$no_look" sh -c '
    echo $$ >"$1/$PMIX_RANK"
    until [ -e "$1.go" ]; do sleep 0.05; done; exec "$0" ring' \
    "$doors" "$work/ranks" >"$work/said" 2>&1 </dev/null &
tprun=$!
for _ in $(seq 6000); do
    [ "$(cat "$work"/ranks/* 2>/dev/null | wc -l)" -lt 16 ] || break
    sleep 0.01
done
kill -STOP $tprun
: >"$work/ranks.go"
sleep 2
# shellcheck disable=SC2046 # numbers
kill -STOP $(cat "$work"/ranks/*)
sleep 6
# shellcheck disable=SC2046
kill -CONT $tprun $(cat "$work"/ranks/*)
wait $tprun
status=$?
if [ $status -eq 0 ]; then
    pass
else
    fail "a job that was stopped while its ranks joined: status $status, and"
    head -n 20 "$work/said" | sed 's/^/    /'
fi

# ---- deaths ------------------------------------------------------------------

# The contact's own limit would end it with another status, later than this
# test.
job 137 -n 4 --keep-going env DOORS_LAST=3 TP_CONNECT_TIMEOUT=300s \
    "$doors" mourn
for rank in 0 1 2; do
    says "^rank $rank: .*as the launcher says (by signal 9)" \
        "a rank that died before it joined"
done
job 137 -n 3 --keep-going env TP_BACKENDS=ofi:tcp "$doors" heir
says '^rank 0: ' "a rank that left its sockets to a child"
# While pipes are opened by another thread than the one that hears of it.
job 137 -n 12 --keep-going env TP_PROGRESS=thread "$doors" open
# What has come counts before the clock does, for who looks seldom.
job 137 -n 2 --keep-going "$doors" slow
says '^5000 words' "a rank that died long before it was read"
job 0 -n 2 "$doors" gone
says '^0 words' "a rank that has left, asked for by one who looks seldom"
job 0 -n 14 -x "$no_look" "$doors" full 100
says '^rank 0: .*left the job' "a rank that has left, asked for among many"
job 0 -n 2 -x "$no_look" "$doors" full 2500
says '^rank 0: .*left the job' "a rank that has left, asked for in vain at first"
finish
