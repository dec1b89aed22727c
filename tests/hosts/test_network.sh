#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Jobs between hosts whose networks are broken in many ways: a pair connects if
# any way leads from one to the other, says what it tried if none does, and
# finds out when the other host is gone.  Every scene has hosts of its own, and
# all play at the same time, since most of it is waiting.
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
    elif ! command -v nft >/dev/null; then
        skip hosts "needs nft (apt-get install nftables)"
        finish
    fi
    hosts run 30 sh "$source/tests/hosts/test_network.sh" inside
    exit
fi

rank=$build/tests/hosts/rank
end=$(($(date +%s) + 85))
unset TP_RANK TP_SIZE TP_BACKENDS TP_PROGRESS TP_IFACE

# ---- what the scenes are made of ---------------------------------------------

# job NAME SCENE HOST...: a rank on each host, in the background, with the
# variables in $env.  What they say goes to $work/NAME.RANK.
job()
{
    name=$1 scene=$2 number=0
    shift 2
    mkdir "$work/$name"
    for host; do
        # shellcheck disable=SC2086 # several variables
        hosts exec "host$host" env TP_BOOTSTRAP="dir:$work/$name" \
            TP_RANK=$number TP_SIZE=$# ${env:-} "$rank" "$scene" \
            >"$work/$name.$number" 2>&1 &
        eval "${name}_$number=$!"
        number=$((number + 1))
    done
}

# says NAME.RANK WORDS: waits for it, unless the rank has ended or the time of
# the whole test is up.
says()
{
    until grep -qe "$2" "$work/$1" 2>/dev/null; do
        child=
        eval "child=\$${1%.*}_${1#*.}"
        if [ "$(date +%s)" -ge $end ] || ! kill -0 "$child" 2>/dev/null; then
            ! grep -qe "$2" "$work/$1" || return 0
            fail "$1 did not say '$2':"
            sed 's/^/    /' "$work/$1"
            return 1
        fi
        sleep 0.1
    done
}

# well NAME RANKS: they end with success, and without a warning.
well()
{
    number=0
    while [ $number -lt "$2" ]; do
        eval "wait \$${1}_$number"
        status=$?
        { [ $status -eq 0 ] || echo "status $status"
          grep -v -e '^rank [0-9] via ofi:tcp$' -e '^done$' \
               "$work/$1.$number"; } | empty "$1, rank $number"
        number=$((number + 1))
    done
}

# over NAME: rank 0 ends with success: it got the error that it expects.
over()
{
    eval "wait \$${1}_0"
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
    words=$1
    shift
    if "$@"; then pass; else fail "not true: $words"; fi
}

# refuses HOST HOW WHAT: calls to it (WHAT narrows it) are dropped or rejected.
refuses()
{
    hosts exec "host$1" nft -f - <<END
table inet tp { chain in { type filter hook input priority 0; }; }
add rule inet tp in $3 tcp flags & (syn | ack) == syn $2
END
}

counts() { hosts exec "host$1" nstat -asz TcpExtTCPKeepAlive |
           awk '/KeepAlive/ { print $2 }'; }

# ---- the networks --------------------------------------------------------------

# 4, 5: bridges with the same networks on both, as docker and libvirt make.
for host in 4 5; do
    hosts bridge "host$host" docker0 172.17.0.1/16 fd17::1/64
    hosts bridge "host$host" virbr0 192.168.122.$host/24
done
# 6, 7: two cards, and of four addresses only the last works.
for host in 6 7; do
    hosts nic "host$host" eth1 second 192.168.7.$host/24 fd07::$host/64
done
refuses 7 drop 'ip daddr 10.77.0.7'
refuses 7 reject 'ip daddr 192.168.7.7'
refuses 7 drop 'ip6 daddr fd77::7'
# 8, 9, 10: a private network behind 8 in which 10 has the address that 9 has
# in its own.  11 is there for 12, the same way.
hosts nic host8 eth1 private8 192.168.8.8/24
hosts nic host9 eth1 private9 192.168.8.9/24
hosts nic host10 eth1 private8 192.168.8.9/24
refuses 9 reject 'ip daddr 10.77.0.9'
hosts exec host10 nft -f - <<'END'
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
hosts exec host30 nft -f - <<'END'
table ip tp { chain pre { type nat hook prerouting priority -100; }; }
add rule ip tp pre tcp dport 1-65535 redirect to :7777
END
refuses 30 reject 'ip6 nexthdr tcp'

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
env='TP_CONNECT_TIMEOUT=8s'
job late barred 29 30
env='TP_HEARTBEAT=5s'
job cable idle 17 18
job crash idle 19 20
job stream stream 21 22
env='TP_HEARTBEAT=5s TP_PROGRESS=manual'
job manual compute 23 24
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
    '10.77.0.30:[0-9]*: i*t* *took the call'; do
    if says late.0 "$words"; then pass; fi
done

# Data flows: no probes.  Nothing flows: probes, and no probes if they are off.
for name in cable crash stream killed thread; do says $name.1 ready; done
for name in cable crash stream killed thread; do says $name.0 ready; done
before=$(counts 17)
sleep 4
true_that 'an idle pipe is probed' test "$(counts 17)" -gt "$before"
true_that 'no probes where data flows' test "$(counts 21) $(counts 22)" = '0 0'
true_that 'TP_HEARTBEAT=0 sends no probes' test "$(counts 25)" = 0

hosts link host18 down
hosts crash host20
hosts link host22 down
hosts link host28 down
# shellcheck disable=SC2016 # for the shell over there
hosts exec host26 sh -c 'kill -9 $(pidof rank)'
for name in cable crash stream thread; do
    over $name
    if says $name.0 'does not answer any more'; then pass; fi
done
over killed
if says killed.0 'closed the connection or is gone'; then pass; fi

# Who computes is not dead.
well manual 2

finish
