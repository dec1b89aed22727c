# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2034
#
# What the tests of this folder read first: they start themselves again beside
# the make-believe hosts, and look there at what jobs print and how they end.
# (Its variables are for those who read it.)
nethosts=$(cd "${TP_TEST_SOURCE:-.}" && pwd -P)/tests/hosts/nethosts.sh
if [ -n "${HOSTS_WORLD:-}" ]; then
    TMPDIR=$("$nethosts" directory)
    export TMPDIR
fi
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"
source=$(cd "$source" && pwd -P)
tprun=$build/launcher/tprun
mourn=$build/tests/hosts/mourn
ring=$build/man/examples/ring

# The names of processes, for all of a job and nothing else.
processes='tprun|tprun-rank|tprun-heir|tprun-guard|mpirun|orted|ssh|srun'
processes+='|mourn|sleep'

# on HOST SECONDS COMMAND...: runs it there; $status, $out and $err are the
# result.  124 or 137: it took longer, by far: a busy machine has that four times
# over, as nothing here asserts a time.
on()
{
    local host=$1 limit=$(($2 * 4))
    shift 2
    "$nethosts" exec "$host" timeout -k 5 "$limit" "$@" \
        >"$work/out" 2>"$work/err" </dev/null
    status=$?
    was_said
}

# What that has written.  A busy machine takes seconds to start ranks, and tprun
# says so; mpirun complains if its ssh was faster than itself.
was_said()
{
    out=$(cat "$work/out")
    err=$(grep -v -x -E -e 'tprun: waiting for [a-z]* to start (the )?rank.*' \
        -e '.* plm:rsh: Warning: setpgid.* failed in parent.*' "$work/err")
}

# check WORDS CONDITION...: passes if the condition holds.
check()
{
    local words=$1
    shift
    if "$@"; then
        pass
    else
        fail "$words: status ${status:-?}"
        printf '%s\n' "${out:-}" | head -n 20 | sed 's/^/    out: /'
        printf '%s\n' "${err:-}" | head -n 20 | sed 's/^/    err: /'
    fi
}

# holds TEXT PATTERN: an extended regular expression.
holds() { grep -q -E -e "$2" <<<"$1"; }

# ended STATUS OUT ERR: as said, with patterns; "" for nothing at all.
ended()
{
    [ "$status" -eq "$1" ] || return 1
    if [ -n "$2" ]; then holds "$out" "$2"; else [ -z "$out" ]; fi || return 1
    if [ -n "$3" ]; then holds "$err" "$3"; else [ -z "$err" ]; fi
}

# spoken STATUS OUT ERR COMMAND...: as ended(), of on() or the like, with OUT once
# in five times: who is ended along with the job may not come to say its word.
spoken()
{
    local want=$1 words=$2 said=$3
    shift 3
    for _ in 1 2 3 4 5; do
        "$@"
        ended "$want" '^' "$said" || return 1
        ! holds "$out" "$words" || return 0
    done
    return 1
}

# told ERR: the last line of standard error, and the only one of tprun.
told()
{
    [ "$(grep -c '^tprun: ' <<<"$err")" = 1 ] &&
        holds "$(tail -n 1 <<<"$err")" "$1"
}

# nobody HOST...: within a minute no process of a job is left there.
nobody()
{
    local host
    for host in "$@"; do
        for _ in $(seq 601); do
            "$nethosts" exec "$host" ps -eo comm= |
                grep -q -x -E "$processes" || continue 2
            sleep 0.1
        done
        err=$("$nethosts" exec "$host" ps -eo pid,args | tail -n 20)
        return 1
    done
}

# ---- tests that run wholly inside a world of their own -------------------------

# world HOSTS TEST TOOL PACKAGE: ends here what was started by hand or by make,
# and begins that test again beside so many hosts, unless TOOL of the PACKAGE is
# missing.  $work is in that world then, where all hosts see it.
world()
{
    local reason
    [ -z "${HOSTS_WORLD:-}" ] || return 0
    if ! reason=$("$nethosts" check 2>&1); then
        skip hosts "$reason"
    elif ! command -v "$3" >/dev/null; then
        skip hosts "needs $3 (apt-get install $4)"
    else
        HOSTS_WORLD=1 "$nethosts" run "$1" bash "$source/tests/hosts/$2"
        exit
    fi
    finish
}

# job NAME SCENE HOST...: a rank on each host (tests/hosts/rank.c), in the
# background, with the variables in $env.  What they say goes to
# $work/NAME.RANK.
declare -A rank_pid
job()
{
    local name=$1 scene=$2 number=0 host
    shift 2
    mkdir "$work/$name"
    for host; do
        # shellcheck disable=SC2086 # several variables
        "$nethosts" exec "host$host" env TP_BOOTSTRAP="dir:$work/$name" \
            TP_RANK=$number TP_SIZE=$# ${env:-} "$build/tests/hosts/rank" \
            "$scene" >"$work/$name.$number" 2>&1 &
        rank_pid[$name.$number]=$!
        number=$((number + 1))
    done
}

# lives RANK...: all of them, that is.
lives()
{
    local which
    for which; do
        kill -0 "${rank_pid[$which]}" 2>/dev/null || return 1
    done
}

# says NAME.RANK WORDS: waits for it, unless the rank has ended or the time of
# the whole test ($end) is up.
says()
{
    until grep -qe "$2" "$work/$1" 2>/dev/null; do
        if [ "$(date +%s)" -ge "${end:?}" ] || ! lives "$1"; then
            ! grep -qe "$2" "$work/$1" || return 0
            fail "$1 did not say '$2':"
            sed 's/^/    /' "$work/$1"
            return 1
        fi
        sleep 0.1
    done
}

# well NAME RANKS [WORDS...]: they end with success, and have said nothing but
# these words (basic regular expressions for whole lines) and the usual ones.
well()
{
    local name=$1 ranks=$2 number=0 status words=()
    shift 2
    while [ $# -gt 0 ]; do
        words+=(-e "$1")
        shift
    done
    while [ $number -lt "$ranks" ]; do
        wait "${rank_pid[$name.$number]}"
        status=$?
        { [ $status -eq 0 ] || echo "status $status"
          grep -v -x -e 'rank [0-9] via ofi:tcp' -e 'done' "${words[@]}" \
              "$work/$name.$number"; } | empty "$name, rank $number"
        number=$((number + 1))
    done
}

# over NAME: rank 0 ends with success: it got the error that it expects.
over()
{
    local status
    wait "${rank_pid[$1.0]}"
    status=$?
    if [ $status -eq 0 ]; then
        pass
    else
        fail "$1: rank 0 ended with $status:"
        sed 's/^/    /' "$work/$1.0"
    fi
}

# true_that WORDS COMMAND...
true_that()
{
    local claim=$1
    shift
    if "$@"; then pass; else fail "not true: $claim"; fi
}

# refuses HOST HOW WHAT: calls to it (WHAT narrows it) are dropped or rejected.
refuses()
{
    "$nethosts" exec "host$1" nft -f - <<END
table inet tp { chain in { type filter hook input priority 0; }; }
add rule inet tp in $3 tcp flags & (syn | ack) == syn $2
END
}
