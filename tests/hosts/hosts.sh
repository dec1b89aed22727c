# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2034
#
# What the tests of this folder read first: they start themselves again beside
# the make-believe hosts, and look there at what jobs print and how they end.
# (Its variables are for those who read it.)
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"
source=$(cd "$source" && pwd -P)
nethosts=$source/tests/hosts/nethosts.sh
tprun=$build/launcher/tprun
mourn=$build/tests/hosts/mourn
ring=$build/man/examples/ring

# The names of processes, for all of a job and nothing else.
processes='tprun|tprun-rank|mpirun|orted|srun|mourn|sleep'

# on HOST SECONDS COMMAND...: runs it there; $status, $out and $err are the
# result.  124 or 137: it took longer.
on()
{
    local host=$1 limit=$2
    shift 2
    "$nethosts" exec "$host" timeout -k 5 "$limit" "$@" \
        >"$work/out" 2>"$work/err" </dev/null
    status=$?
    out=$(cat "$work/out") err=$(cat "$work/err")
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

# told ERR: the last line of standard error, and the only one of tprun.
told()
{
    [ "$(grep -c '^tprun: ' <<<"$err")" = 1 ] &&
        holds "$(tail -n 1 <<<"$err")" "$1"
}

# nobody HOST...: within 15 s no process of a job is left there.
nobody()
{
    local host
    for host in "$@"; do
        for _ in $(seq 151); do
            "$nethosts" exec "$host" ps -eo comm= |
                grep -q -x -E "$processes" || continue 2
            sleep 0.1
        done
        err=$("$nethosts" exec "$host" ps -eo pid,args | tail -n 20)
        return 1
    done
}
