#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# A listener and a guest that run different versions of tp, as their cards say:
# the guest hears so at once.  It went on trying until TP_CONNECT_TIMEOUT where
# the listener did not know the guest's.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"
outsider=$build/man/examples/outsider

# differs HOST'S-CARD GUEST'S-CARD WORDS
differs()
{
    TP_CARD_HOOK=$1 timeout 120 "$outsider" >"$work/host" 2>&1 &
    host=$!
    for _ in $(seq 600); do
        [ ! -s "$work/host" ] || break
        sleep 0.1
    done
    TP_CARD_HOOK=$2 TP_CONNECT_TIMEOUT=100s timeout 60 "$outsider" \
        "$(head -n 1 "$work/host")" >"$work/said" 2>&1
    status=$?
    kill "$host" 2>/dev/null
    wait "$host" 2>/dev/null
    if [ "$status" -eq 1 ] && grep -q "$3" "$work/said"; then
        pass
    else
        fail "a host with card \"$1\", a guest with \"$2\": status $status"
        sed 's/^/    /' "$work/said" "$work/host"
    fi
}

differs "" version 'run the same tp'
differs version "" 'run the same tp'
finish
