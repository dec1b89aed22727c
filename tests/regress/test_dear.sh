#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# dear.c between two ranks of a host, each with a cpu of its own, and with one
# for both.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

# dear WHERE COMMAND...: the ranks are started by that command.
dear()
{
    where=$1
    shift
    "$@" "$build/launcher/tprun" -n 2 --timeout 120 \
        "$build/tests/regress/dear" >"$work/said" 2>&1
    case $? in
    0) pass ;;
    3) skip "cma" "nothing was pulled here, $where" ;;
    *)
        fail "a slow channel is not given up, $where:"
        sed 's/^/    /' "$work/said" ;;
    esac
}

if [ "$(nproc)" -lt 2 ]; then
    skip "cpus" "both ranks share one"
else
    dear "two cpus" env
fi
if command -v taskset >/dev/null; then
    one=$(taskset -cp $$ | sed 's/.*: *//; s/[-,].*//')
    dear "one cpu" taskset -c "$one"
else
    skip "taskset" "not installed (apt-get install util-linux)"
fi
finish
