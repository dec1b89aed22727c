#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# itself.c where callers are given one of two ports, and call one of these: the
# other one is taken by what the program itself listens on.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

ports='echo 45000 45001 >/proc/sys/net/ipv4/ip_local_port_range &&
       ip link set lo up'
if ! unshare -n sh -c "$ports" >"$work/said" 2>&1; then
    skip "itself" "no network namespace: $(tail -n 1 "$work/said")"
    finish
fi
for address in tcp://127.0.0.1:45000 'tcp://[::1]:45000'; do
    # shellcheck disable=SC2016 # for the inner shell
    if timeout 60 unshare -n sh -c "$ports"' && exec "$@"' sh \
        "$build/tests/regress/itself" "$address" >"$work/said" 2>&1; then
        pass
    else
        fail "$address:"
        sed 's/^/    /' "$work/said"
    fi
done
finish
