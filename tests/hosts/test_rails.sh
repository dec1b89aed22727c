#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# rails between hosts with two links each, chosen by the model alone: both links
# carry bytes in about the ratio of their speeds; one is cut in the middle of a
# transfer and not a byte is lost; it comes back and is used again.  Where only
# one link leads to the other host, another backend is used instead; where none
# does, it says what it tried.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
# shellcheck source=tests/hosts/hosts.sh
. "${TP_TEST_SOURCE:-.}/tests/hosts/hosts.sh"
if ! command -v tc >/dev/null; then
    skip hosts "needs tc (apt-get install iproute2)"
    finish
fi
export NH_NICS=2
world 6 test_rails.sh nft nftables

end=$(($(date +%s) + 300))
unset TP_RANK TP_SIZE TP_PROGRESS TP_IFACE TP_RAILS TP_RAILS_OVER TP_REQUIRE \
    TP_BACKENDS

for host in host1 host2; do
    "$nethosts" rate $host 400mbit eth0
    "$nethosts" rate $host 100mbit eth1
done
# 3, 4: one of the two links leads nowhere.  5, 6: neither does.
refuses 3 drop 'iifname eth1'
refuses 4 drop 'iifname eth1'
refuses 5 drop ''
refuses 6 reject ''

env="TP_EXPLAIN=1 TP_LOG=warn,rails=info RANK_STOP=$work/stop"
job haul haul 1 2
env='TP_EXPLAIN=1'
job oneway talk 3 4
env='TP_BACKENDS=rails TP_CONNECT_TIMEOUT=20s'
job barred barred 5 6

# ---- two links ------------------------------------------------------------------

# The bytes that host1 has sent over a card.
bytes() { "$nethosts" exec host1 cat "/sys/class/net/$1/statistics/tx_bytes"; }

# How many messages have come.
got() { sed -n 's/^got \([0-9]*\)\.$/\1/p' "$work/haul.1" | tail -n 1; }

# until_true WORDS COMMAND...: as long as the whole test may last.
until_true()
{
    local claim=$1
    shift
    until "$@"; do
        if [ "$(date +%s)" -ge $end ] || ! lives haul.0 haul.1; then
            fail "not in time: $claim"
            grep -hv '^got ' "$work/haul.0" "$work/haul.1" | tail -n 40 |
                sed 's/^/    /'
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

# shellcheck disable=SC2317 # likewise
shares()    # of the next 32 messages; a machine without processor has no links
{
    local count fast slow
    count=$(got) fast=$(bytes eth0) slow=$(bytes eth1)
    until has_got $((count + 32)); do
        [ "$(date +%s)" -lt "$end" ] && lives haul.0 haul.1 || return
        sleep 0.1
    done
    fast=$(($(bytes eth0) - fast)) slow=$(($(bytes eth1) - slow))
    echo "the links of 400 and 100 Mb/s carried $fast and $slow bytes"
    [ "$fast" -gt $((slow * 2)) ] && [ "$fast" -lt $((slow * 8)) ]
}

# Both carry, and the fast one about four times as much as the slow one.
until_true 'the transfer begins' has_got 8
until_true 'the fast link carries four times as much' shares

# Nobody asked for rails: the plan says why it is.
for words in '  rails .* chosen: model .*NICs eth0+eth1 of 20 Gb/s together' \
    '  ofi:tcp .* slower: model .*NIC eth0 of 10 Gb/s'; do
    if says haul.0 "$words"; then pass; fi
done
sed -n 's/^  \(rails\|ofi:tcp\) /\1 /p' "$work/haul.0"

# One is cut: who finds that out tells the other, and the rest goes on.  It comes
# back and carries again.  Both may find it out in the same moment; not each time.
# shellcheck disable=SC2317 # for until_true
both_lost()
{
    [ "$(grep -c 'is lost' "$work/haul.0")" -gt "$lost0" ] &&
        [ "$(grep -c 'is lost' "$work/haul.1")" -gt "$lost1" ]
}
heard()
{
    grep -q 'is lost (the other side has given it up)' "$work/haul.0" \
        "$work/haul.1"
}
for _ in 1 2 3 4 5; do
    lost0=$(grep -c 'is lost' "$work/haul.0")
    lost1=$(grep -c 'is lost' "$work/haul.1")
    "$nethosts" link host2 down eth1
    count=$(got)
    until_true 'both sides give it up' both_lost
    until_true 'it goes on over the one link' has_got $((count + 24))
    "$nethosts" link host2 up eth1
    slow=$(bytes eth1)
    until_true 'the link is used again' has_sent eth1 $((slow + 8388608))
    ! heard || break
done
true_that 'who gives up a link tells the other side' heard

# The other one is cut.
"$nethosts" link host2 down eth0
count=$(got)
until_true 'it goes on over the other link' has_got $((count + 6))
"$nethosts" link host2 up eth0

touch "$work/stop"
plan=('rank [01] (host.*: other host' '  .*' 'rank [01] via rails')
well haul 2 'got [0-9]*\.' 'tp\[[01]\]: rails: info: rail .* is lost .*' \
    "${plan[@]}"

# ---- one link, and none ------------------------------------------------------------

well oneway 2 "${plan[@]}"
grep -h -e ' trial_failed: ' "$work/oneway.0" "$work/oneway.1" \
    >"$work/one"
sed 's/^ *//' "$work/one"
true_that 'one of the two was tried, and is not enough' \
    grep -q '  rails .* trial_failed: rails: only one of 2 ways' "$work/one"
true_that 'not over rails' [ "$(cat "$work"/oneway.[01] |
    grep -c -x 'rank [01] via ofi:tcp')" = 2 ]

over barred
for words in 'rails' '10.77.[01].6:[0-9]*: Connection refused'; do
    if says barred.0 "$words"; then pass; fi
done
finish
