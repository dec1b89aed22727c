#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Ranks in time namespaces, as containers may have: how long they wait is told
# by one clock, though theirs is more than a day ahead of tprun's, or tprun's of
# theirs.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

ahead='unshare --time --monotonic 100000 --fork --kill-child'
if ! $ahead true >"$work/said" 2>&1; then
    skip "clocks" "no time namespace: $(tail -n 1 "$work/said")"
    finish
fi

# tells WORDS COMMAND...: tprun, run under that, has rank 0 wait for some seconds.
# It may be slow until that does: it gets longer then.
tells()
{
    words=$1
    shift
    for limit in 2 8 32; do
        # shellcheck disable=SC2086 # a command
        timeout 90 "$@" "$build/launcher/tprun" -n 2 --timeout $limit $ahead \
            "$build/tests/launcher/talk" full >"$work/said" 2>&1
        grep -q "for rank 1 to take a message; writes" "$work/said" && break
    done
    for what in 'rank 0 .* is waiting' 'no room for'; do
        if grep -Eq "$what (0\.[1-9]|[1-9][0-9]?\.[0-9]) s" "$work/said"; then
            pass
        else
            fail "$words, \"$what\":"
            sed 's/^/    /' "$work/said"
        fi
    done
}

# In frames, so that it is room that they wait for.
TP_BACKENDS=^cma
export TP_BACKENDS
tells "ranks ahead of tprun" env
tells "ranks behind tprun" unshare --time --monotonic 200000 --fork --kill-child
finish
