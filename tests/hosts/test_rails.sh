#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# rails between two hosts with two links of different speed: both carry bytes
# in about the ratio of their speeds; one is cut in the middle of a transfer and
# not a byte is lost; it comes back and is used again.
#
# Runs itself once more in a world of its own, with the hosts there.
world=${TP_TEST_SOURCE:-.}/tests/hosts/nethosts.sh
if [ "${1:-}" = inside ]; then
    TMPDIR=$(bash "$world" directory)
    export TMPDIR
fi
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

hosts() { bash "$source/tests/hosts/nethosts.sh" "$@"; }

if [ "${1:-}" != inside ]; then
    if ! hosts check >"$work/check" 2>&1; then
        skip hosts "$(cat "$work/check")"
        finish
    elif ! command -v tc >/dev/null; then
        skip hosts "needs tc (apt-get install iproute2)"
        finish
    fi
    NH_NICS=2 hosts run 2 sh "$source/tests/hosts/test_rails.sh" inside
    exit
fi

rank=$build/tests/hosts/rank
end=$(($(date +%s) + 70))
unset TP_RANK TP_SIZE TP_PROGRESS TP_IFACE TP_RAILS TP_RAILS_OVER TP_REQUIRE

for host in host1 host2; do
    hosts rate $host 400mbit eth0
    hosts rate $host 100mbit eth1
done

# start NUMBER: a rank on its host.
start()
{
    hosts exec "host$(($1 + 1))" env TP_BOOTSTRAP="dir:$work/job" \
        TP_RANK="$1" TP_SIZE=2 TP_BACKENDS=rails TP_LOG="${TP_LOG:-warn}" \
        RANK_STOP="$work/stop" "$rank" haul >"$work/out.$1" 2>&1 &
}

# The bytes that host1 has sent over a card.
bytes() { hosts exec host1 cat "/sys/class/net/$1/statistics/tx_bytes"; }

# How many messages have come.
got() { sed -n 's/^got \([0-9]*\)\.$/\1/p' "$work/out.1" | tail -n 1; }

# until_true WORDS COMMAND...: as long as the whole test may last.
until_true()
{
    words=$1
    shift
    until "$@"; do
        if [ "$(date +%s)" -ge $end ] || ! kill -0 "$rank0" "$rank1"; then
            fail "not in time: $words"
            sed 's/^/    /' "$work/out.0" "$work/out.1" | tail -n 20
            kill "$rank0" "$rank1" 2>/dev/null
            finish
        fi
        sleep 0.1
    done
    pass
}

# shellcheck disable=SC2317 # called by until_true
has_got() { [ "$(got || true)" -ge "$1" ] 2>/dev/null; }
# shellcheck disable=SC2317 # likewise
has_sent() { [ "$(bytes "$1")" -ge "$2" ]; }

mkdir "$work/job"
start 0
rank0=$!
start 1
rank1=$!

# Both carry, and the fast one about four times as much as the slow one.
until_true 'the transfer begins' has_got 8
fast=$(bytes eth0) slow=$(bytes eth1)
until_true 'the transfer goes on' has_got 40
fast=$(($(bytes eth0) - fast)) slow=$(($(bytes eth1) - slow))
if [ "$fast" -gt $((slow * 2)) ] && [ "$fast" -lt $((slow * 8)) ]; then
    pass
else
    fail "the links of 400 and 100 Mb/s carried $fast and $slow bytes"
fi
echo "the links of 400 and 100 Mb/s carried $fast and $slow bytes"

# One is cut: the rest goes on.
hosts link host2 down eth1
count=$(got)
until_true 'it goes on over the one link' has_got $((count + 24))

# It comes back and carries again.
hosts link host2 up eth1
slow=$(bytes eth1)
until_true 'the link is used again' has_sent eth1 $((slow + 8388608))

# The other one is cut.
hosts link host2 down eth0
count=$(got)
until_true 'it goes on over the other link' has_got $((count + 6))
hosts link host2 up eth0

touch "$work/stop"
for number in 0 1; do
    eval "wait \$rank$number"
    status=$?
    { [ $status -eq 0 ] || echo "status $status"
      grep -v -e '^got [0-9]*\.$' -e '^done$' -e '^rank [01] via rails$' \
          "$work/out.$number"; } | empty "rank $number"
done
finish
