#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Two hosts with 10 ms between them, each way: what a pipe over TCP may have
# under way grows with that, so four times as much as next door is written
# although nobody reads it yet.  And so many short messages are sent to one who
# does not even make progress.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
# shellcheck source=tests/hosts/hosts.sh
. "${TP_TEST_SOURCE:-.}/tests/hosts/hosts.sh"
if ! { : <>/dev/net/tun; } 2>/dev/null; then
    skip hosts "needs /dev/net/tun (modprobe tun; a container, that device)"
    finish
fi
world 2 test_far.sh ip iproute2

end=$(($(date +%s) + 300))
unset TP_RANK TP_SIZE TP_BACKENDS TP_PROGRESS TP_IFACE

"$nethosts" nic host1 eth7 far1 10.88.0.1/24
"$nethosts" nic host2 eth7 far2 10.88.0.2/24
"$build/tests/hosts/delay" 10 far1 far2 >"$work/delay" 2>&1 &
relay=$!
until grep -q ready "$work/delay"; do
    if ! kill -0 $relay 2>/dev/null; then
        fail "no long way: $(cat "$work/delay")"
        finish
    fi
    sleep 0.05
done

env='TP_IFACE=eth7 TP_BACKENDS=ofi:tcp'
job far unread 1 2
if says far.0 'written'; then
    pass
    well far 2 'written'
fi
env="$env TP_PROGRESS=manual RANK_STOP=$work/stop"
job short short 1 2
if says short.0 'sent'; then
    pass
    well short 2 'sent'
fi
finish
