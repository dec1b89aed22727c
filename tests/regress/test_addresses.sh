#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# A host with more addresses than a listener can have: those of the loopback
# interface are among them if all are meant, and those of one family are not
# crowded out by the other's.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

# shellcheck disable=SC2016 # for the inner shell
many='ip link set lo up && ip link add tpx0 type veth peer name tpx1 &&
      ip link set tpx0 up && ip link set tpx1 up &&
      for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do
          ip addr add "10.9.0.$i/24" dev tpx0 || exit 1
      done'
if ! unshare -n sh -c "$many" >"$work/said" 2>&1; then
    skip "addresses" "no network of our own: $(tail -n 1 "$work/said")"
    finish
fi
# named HOST: what is said of listening there.
named()
{
    # shellcheck disable=SC2016 # for the inner shell
    unshare -n sh -c "$many"' && exec "$1" "$2:0"' sh \
        "$build/tests/regress/named" "$1" >"$work/said" 2>&1
}
if named '*' && grep -q 'tcp=10\.9\.0\.1:' "$work/said" &&
    grep -q 'tcp=127\.0\.0\.1:' "$work/said" &&
    grep -q 'and 12 is the most' "$work/said"; then
    pass
else
    fail "all addresses, without loopback or a word:"
    sed 's/^/    /' "$work/said"
fi
if ! unshare -n sh -c "$many && ip -6 addr show dev lo | grep -q ::1"; then
    skip "addresses" "no IPv6"
elif named '[::]' && grep -q 'tcp=\[::1\]:' "$work/said"; then
    pass
else
    fail "those of IPv6, which are few:"
    sed 's/^/    /' "$work/said"
fi
finish
