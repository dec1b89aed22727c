#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# localhost is this host also where no file and no server says so, as on a
# machine that has nothing but what was packed for it.
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
finish
