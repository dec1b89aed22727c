#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# Ranks of one job that run as different users, since root's tprun started them
# by something like setpriv(1).  They meet; where they cannot, as over ofi:shm,
# whose memory has a name and is one user's, they say that it is the user.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"
if [ "$(id -u)" -ne 0 ] || ! command -v setpriv >/dev/null; then
    skip root "ranks cannot run as somebody else"
    finish
fi
nobody="setpriv --reuid 65534 --regid 65534 --clear-groups"
if ! $nobody "$build/man/examples/hello" >"$work/said" 2>&1; then
    skip root "somebody else may not run what is in $build"
    finish
fi

# users WORDS STATUS COMMAND...: rank 1 of two runs it as nobody.
users()
{
    words=$1 wanted=$2
    shift 2
    # shellcheck disable=SC2016 # for the shell of the rank
    timeout 120 "$build/launcher/tprun" -n 2 sh -c '
        if [ "$PMIX_RANK" = 1 ]; then
            exec '"$nobody"' "$@"
        fi
        exec "$@"' rank "$@" >"$work/said" 2>&1
    status=$?
    if [ "$status" -eq "$wanted" ] && grep -q "$words" "$work/said"; then
        pass
    else
        fail "$*: status $status, and not \"$words\":"
        sed 's/^/    /' "$work/said"
    fi
}

ring=$build/man/examples/ring
for way in shm ofi:tcp; do
    users 'every byte right' 0 env TP_BACKENDS=$way "$ring" 2
done
users 'is not for this user (65534)' 1 env TP_BACKENDS=ofi:shm "$ring" 2
users "tprun is user 0's, this process user 65534's" 1 \
    env -u TP_DOOR TP_CONNECT_TIMEOUT=1s "$build/man/examples/hello"
finish
