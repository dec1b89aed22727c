#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# elsewhere.c, on a host with addresses of its own.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

addresses='ip link set lo up && ip addr add 10.9.0.1/32 dev lo &&
           ip addr add fd09::1/128 dev lo'
if ! unshare -n sh -c "$addresses" >"$work/said" 2>&1; then
    skip "elsewhere" "no network namespace: $(tail -n 1 "$work/said")"
    finish
fi
for address in 10.9.0.1:0 '[fd09::1]:0'; do
    # shellcheck disable=SC2016 # for the inner shell
    ends_well "$address:" timeout 60 unshare -n sh -c \
        "$addresses"' && exec "$@"' sh "$build/tests/regress/elsewhere" \
        "$address"
done
finish
