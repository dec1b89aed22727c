#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Jobs between hosts whose networks are broken in many ways: a pair connects if
# any way leads from one to the other, says what it tried if none does, and
# finds out when the other host is gone.  Every scene has hosts of its own, and
# all play at the same time, since most of it is waiting.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
# shellcheck source=tests/hosts/hosts.sh
. "${TP_TEST_SOURCE:-.}/tests/hosts/hosts.sh"
world 36 test_network.sh nft nftables

# shellcheck disable=SC2034 # for says
end=$(($(date +%s) + 300))
unset TP_RANK TP_SIZE TP_BACKENDS TP_PROGRESS TP_IFACE

counts() { "$nethosts" exec "host$1" nstat -asz TcpExtTCPKeepAlive |
           awk '/KeepAlive/ { print $2 }'; }

# flows HOST HOST: sooner or later neither probes the other for 4 s.  (A rank
# that does not get the processor for a second lets nothing flow.)
# shellcheck disable=SC2317 # called by true_that
flows()
{
    local before
    while [ "$(date +%s)" -lt "$end" ]; do
        before="$(counts "$1") $(counts "$2")"
        sleep 4
        [ "$(counts "$1") $(counts "$2")" != "$before" ] || return 0
    done
    return 1
}

# ---- the networks --------------------------------------------------------------

# 4, 5: bridges with the same networks on both, as docker and libvirt make.
for host in 4 5; do
    "$nethosts" bridge "host$host" docker0 172.17.0.1/16 fd17::1/64
    "$nethosts" bridge "host$host" virbr0 192.168.122.$host/24
done
# 6, 7: two cards, and of four addresses only the last works.
for host in 6 7; do
    "$nethosts" nic "host$host" eth1 second 192.168.7.$host/24 fd07::$host/64
done
for host in 6 7; do
    refuses $host drop "ip daddr 10.77.0.$host"
    refuses $host reject "ip daddr 192.168.7.$host"
    refuses $host drop "ip6 daddr fd77::$host"
done
# 8, 9, 10: a private network behind 8 in which 10 has the address that 9 has
# in its own.  11 is there for 12, the same way.
"$nethosts" nic host8 eth1 private8 192.168.8.8/24
"$nethosts" nic host9 eth1 private9 192.168.8.9/24
"$nethosts" nic host10 eth1 private8 192.168.8.9/24
refuses 9 reject 'ip daddr 10.77.0.9'
"$nethosts" exec host10 nft -f - <<'END'
table ip tp { chain pre { type nat hook prerouting priority -100; }; }
add rule ip tp pre iifname eth1 tcp dport 1-65535 redirect to :7777
END
# 11, 12 and 13, 14: only the first can be called.
refuses 12 drop ''
refuses 14 reject ''
# 15, 16: neither can.
refuses 15 drop ''
refuses 16 drop 'ip protocol tcp'
refuses 16 reject 'ip6 nexthdr tcp'
# 29, 30: nobody can be called, but at one address of 30 somebody else answers
# the phone, and says nothing.
refuses 29 drop ''
"$nethosts" exec host30 nft -f - <<'END'
table ip tp { chain pre { type nat hook prerouting priority -100; }; }
add rule ip tp pre tcp dport 1-65535 redirect to :7777
END
refuses 30 reject 'ip6 nexthdr tcp'
# 31, 32: addresses that are good for a link only, and so for nobody.
for host in 31 32; do
    "$nethosts" exec host$host ip addr flush dev eth0 scope global
done

# ---- the scenes ------------------------------------------------------------------

env=
job plain talk 1 2 3
job bridges talk 4 5
job onlyway talk 6 7
job decoy decoy 10
says decoy.0 ready
job wrong talk 8 9
job dropped knock 11 12
job rejected knock 13 14
job barred barred 15 16
job silent decoy 30
says silent.0 ready
env='TP_CONNECT_TIMEOUT=20s'
job late barred 29 30
job linklocal barred 31 32
env='TP_HEARTBEAT=5s'
job cable idle 17 18
job crash idle 19 20
job stream stream 21 22
job narrow stream 33 34
env='TP_HEARTBEAT=5s TP_PROGRESS=manual'
job manual compute 23 24
job rest rest 35 36
# Nobody asks here: only the end of the connection itself can tell.
env='TP_HEARTBEAT=0'
job killed idle 25 26
env='TP_HEARTBEAT=5s TP_PROGRESS=thread'
job thread idle 27 28

well plain 3
well bridges 2
well onlyway 2
well dropped 2
well rejected 2

# A wrong host is not the end: the right one is found.
well wrong 2
if says decoy.0 called; then pass; fi

# Every address, and what it answered; told by the one that asked.
over barred
for words in 'no backend reaches' '10.77.0.16:[0-9]*: no answer' \
    '\[fd77::16\]:[0-9]*: Connection refused' 'nor did it find a way to us'; do
    if says barred.0 "$words"; then pass; fi
done

# The time is up, and what is still open is told too.
over late
for words in 'not made in time' '\[fd77::30\]:[0-9]*: Connection refused' \
    '10.77.0.30:[0-9]*: i*t* *accepted the connection'; do
    if says late.0 "$words"; then pass; fi
done

# What has no address is not called, and nobody has set TP_IFACE.
over linklocal
if says linklocal.0 '127.0.0.1:[0-9]*: .*loopback does not leave'; then pass; fi
true_that 'TP_IFACE is not blamed' test \
    "$(grep -c TP_IFACE "$work/linklocal.0")" = 0

# Data flows: no probes.  Nothing flows: probes, and no probes if they are off.
for name in cable crash stream narrow killed thread; do
    says $name.1 ready
    says $name.0 ready
done
before=$(counts 17)
true_that 'no probes where data flows' flows 21 22
true_that 'an idle pipe is probed' test "$(counts 17)" -gt "$before"
true_that 'TP_HEARTBEAT=0 sends no probes' test "$(counts 25)" = 0

"$nethosts" link host18 down
"$nethosts" crash host20
"$nethosts" link host22 down
"$nethosts" link host28 down
# Short packets go through, long ones vanish.
"$nethosts" exec host34 nft -f - <<'END'
table inet tp { chain in { type filter hook input priority 0; }; }
add rule inet tp in meta length > 1000 drop
END
# shellcheck disable=SC2016 # for the shell over there
"$nethosts" exec host26 sh -c 'kill -9 $(pidof rank)'
for name in cable crash stream thread; do
    over $name
    if says $name.0 'does not answer any more'; then pass; fi
done
# The host answers, and yet nothing arrives.
over narrow
if says narrow.0 'answers, but messages do not arrive'; then pass; fi
over killed
if says killed.0 'closed the connection or is gone'; then pass; fi

# A network that is away for some seconds, after a long rest, is no end.
if says rest.1 rested; then pass; fi
"$nethosts" exec host36 nft -f - <<'END'
table inet tp { chain in { type filter hook input priority 0; }; }
add rule inet tp in drop
END
sleep 4
"$nethosts" exec host36 nft delete table inet tp
well rest 2 rested

# Who computes is not dead.
well manual 2

finish
