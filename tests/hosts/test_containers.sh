#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Ranks of one job, each in namespaces of its own: every combination of user,
# PID, network and mount namespaces against every other.  Prints who reaches
# whom over what, and compares it with what must be.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

tprun=$build/launcher/tprun
# A name that no other run of this test has: what is left is looked for by it.
pairs=$work/pairs
ln -s "$build/tests/hosts/pairs" "$pairs"
contain=$source/tests/hosts/contain.sh

# ---- which can be made here --------------------------------------------------

all='- p n m pn pm nm pnm u up un um upn upm unm upnm mh nmh pnmh upnmh'
kinds=
for kind in $all; do
    if TPX_KINDS=$kind timeout 20 "$contain" true >"$work/said" 2>&1; then
        kinds="$kinds${kinds:+ }$kind"
    else
        skip "containers" "namespaces $kind: $(tail -n 1 "$work/said")"
    fi
done
ranks=$(echo "$kinds" | wc -w)
if [ "$ranks" -lt 2 ]; then
    finish
fi

# ---- the matrix --------------------------------------------------------------

# way FROM TO: how data may go from a rank of one kind to one of another.  Who
# receives reads the other's memory (cma) if he may: not from a user namespace
# of his own, and not from a PID namespace that does not have the other.
way()
{
    case $2 in
    *[up]*) echo 'shm map' ;;
    *)      echo 'shm map,cma' ;;
    esac
}

TPX_KINDS=$kinds
export TPX_KINDS
TP_CONNECT_TIMEOUT=60s timeout --kill-after=5 200 "$tprun" -n "$ranks" \
    --require node:shm "$contain" "$pairs" >"$work/rows" 2>"$work/said"
status=$?
if [ $status -ne 0 ] || [ -s "$work/said" ]; then
    fail "a job of $ranks ranks in containers: status $status, and"
    head -n 30 "$work/said" | sed 's/^/    /'
fi

# "cell FROM TO": what was found, or "nothing".
cell()
{
    found=$(sed -n "s/^$1 $2 //p" "$work/rows")
    echo "${found:-nothing}"
}

echo "from (row) to (column): transport and channels"
printf '%-6s' ''
for to in $kinds; do printf '%-12s' "$to"; done
echo
from_rank=0
for from in $kinds; do
    printf '%-6s' "$from"
    to_rank=0
    for to in $kinds; do
        if [ $from_rank -eq $to_rank ]; then
            printf '%-12s' .
        else
            found=$(cell $from_rank $to_rank)
            printf '%-12s' "$(echo "$found" | tr ' ' '+')"
            if [ "$found" = "$(way "$from" "$to")" ]; then
                pass
            else
                echo "from $from to $to: $found instead of" \
                    "$(way "$from" "$to")" >>"$work/wrong"
            fi
        fi
        to_rank=$((to_rank + 1))
    done
    echo
    from_rank=$((from_rank + 1))
done
if [ -s "$work/wrong" ]; then
    fail "$(wc -l <"$work/wrong") cells are not as they must be"
    head -n 20 "$work/wrong" | sed 's/^/    /'
fi

# ---- jobs like any others ----------------------------------------------------

# job STATUS RANKS COMMAND...: under tprun, in containers; its words to said.0.
job()
{
    expected=$1 ranks=$2
    shift 2
    timeout --kill-after=5 120 "$tprun" -n "$ranks" "$contain" "$@" \
        >"$work/apart.0" 2>&1
    status=$?
    if [ $status -eq "$expected" ]; then
        pass
    else
        fail "$*: status $status instead of $expected, and"
        head -n 20 "$work/apart.0" | sed 's/^/    /'
    fi
}

# The least that has a network of its own.
net=
for kind in $kinds; do
    case $kind in n | un) net=${net:-$kind} ;; esac
done
if [ -z "$net" ]; then
    skip containers "no network namespaces"
    finish
fi
TPX_KINDS="- $net $net -"
spmd=$build/tests/multi/spmd
job 0 4 "$spmd" order_all
job 0 4 "$spmd" blocking_any_single
# A rank that dies is found by the others, whatever is between; one that ends
# the job ends it; the status is that of the rank.
# shellcheck disable=SC2016 # for the inner shell
job 137 4 sh -c '[ "$PMIX_RANK" = 1 ] && kill -9 $$; exec "$0" wait' "$pairs"
job 9 4 "$pairs" abort
# One leaves before anybody has met it.
job 0 4 "$build/tests/hosts/mourn" never
TPX_KINDS="$net - - -" job 0 4 "$build/tests/hosts/mourn" never
# Nothing is left of any of it: what the kernel has killed goes in a while.
for _ in $(seq 600); do
    pgrep -f -- "$pairs" >/dev/null || break
    sleep 0.1
done
pgrep -af -- "$pairs" | empty "processes are left behind"

# ---- nothing silent ----------------------------------------------------------

# Without a launcher's doors another network namespace cannot be reached over
# shm: both say so, and nobody takes TCP for granted under a contract.
apart()
{
    mkdir "$work/cards"
    mkfifo "$work/hold"            # neither ends before both have spoken
    for rank in 0 1; do
        TPX_KINDS="- $net" TP_RANK=$rank TP_SIZE=2 TP_CONNECT_TIMEOUT=20s \
            TP_BOOTSTRAP=dir:$work/cards TP_REQUIRE=$1 \
            timeout 200 "$contain" "$pairs" try >"$work/apart.$rank" 2>&1 \
            <"$work/hold" &
    done
    exec 9>"$work/hold"
    for _ in $(seq 1500); do
        [ ! -s "$work/apart.0" ] || [ ! -s "$work/apart.1" ] || break
        sleep 0.1
    done
    exec 9>&-
    wait
    rm -rf "$work/cards" "$work/hold"
}

# said RANK PATTERN WORDS
said()
{
    if grep -qE "$2" "$work/apart.$1"; then
        pass
    else
        fail "$3: rank $1 said not /$2/ but:"
        sed 's/^/    /' "$work/apart.$1"
    fi
}

apart ''
said 0 'shm \(?trial_failed.{1,3}it lives in another network namespace' \
    'without a door'
said 1 'shm \(?trial_failed.{1,3}it lives in another network namespace' \
    'without a door'
apart node:shm
said 0 'ofi:shm \(?contract.{1,3}TP_REQUIRE wants shm' 'a contract without a door'
said 0 'no backend reaches' 'a contract without a door'

# Who was launched but can reach neither PMIx nor a door must not take itself
# for a job of its own without a word.
# shellcheck disable=SC2016 # for the inner shell
TPX_KINDS="- $net" timeout 60 "$tprun" -n 2 --keep-going "$contain" \
    sh -c 'unset TP_DOOR; [ "$PMIX_RANK" = 1 ] || exit 0; exec "$0" try' \
    "$pairs" >"$work/apart.0" 2>&1
said 0 'launched as rank 1 of job .* cannot be reached' 'without a word'
finish
