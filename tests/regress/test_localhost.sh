#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# localhost is this host also where no file and no server says so, as on a
# machine that has nothing but what was packed for it; and where a file gives it
# an address of IPv6, which is switched off, as in many a container.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

bare='mount --bind /dev/null /etc/hosts &&
      { [ ! -e /etc/resolv.conf ] ||
        mount --bind /dev/null /etc/resolv.conf; }'
if ! unshare -m sh -c "$bare" >"$work/said" 2>&1; then
    skip "localhost" "no mount namespace: $(tail -n 1 "$work/said")"
    finish
fi
# shellcheck disable=SC2016 # for the inner shell
if TP_TEST_BACKENDS=shm TP_TEST_ONLY=listen_by_hand \
    unshare -m sh -c "$bare"' && exec "$1"' sh \
    "$build/tests/multi/test_listen" >"$work/said" 2>&1; then
    pass
else
    fail "localhost is not found:"
    sed 's/^/    /' "$work/said"
fi

printf '127.0.0.1 localhost\n::1 localhost\n' >"$work/hosts"
# shellcheck disable=SC2016 # for the inner shell
old='ip link set lo up && mount --bind "$1/hosts" /etc/hosts &&
     for i in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 >"$i"; done'
if ! unshare -mn sh -c "$old" sh "$work" >"$work/said" 2>&1; then
    skip "localhost" "no namespace without IPv6: $(tail -n 1 "$work/said")"
    finish
fi
# named HOST: what is said of listening there.
named()
{
    # shellcheck disable=SC2016 # for the inner shell
    unshare -mn sh -c "$old"' && exec "$2" "$3:0"' sh "$work" \
        "$build/tests/regress/named" "$1" >"$work/said" 2>&1
}
if named localhost && grep -q 'tcp=127\.0\.0\.1:' "$work/said"; then
    pass
else
    fail "localhost is not this host without IPv6:"
    sed 's/^/    /' "$work/said"
fi
if ! named '[::1]' && grep -q 'listening at \[::1\]' "$work/said"; then
    pass
else
    fail "an address that is asked for alone, and is not there:"
    sed 's/^/    /' "$work/said"
fi
finish
