#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# ofi:verbs over a software RDMA device in virtual machines: all promises of a
# transport and jobs in one, jobs between two, and what becomes of them when the
# link between is cut; with TP_TEST_LONG every suite of tests/multi, of which
# each check takes a few tests.  On a host with an RDMA device the first part
# runs there as well.
# shellcheck source=tests/hosts/vm.sh
. "${TP_TEST_SOURCE:-.}/tests/hosts/vm.sh"

guest=$source/tests/hosts/guest_verbs.sh

# verdicts NUMBER FILE: counts what guests have said; there must be so many
# that came to their end.
verdicts()
{
    sed -n 's/^\(\[[01]\] \)\{0,1\}good: /\1/p' "$2" >"$work/good"
    while read -r line; do
        echo "    $line"
        pass
    done <"$work/good"
    grep '^left out: ' "$2" | sed 's/^/    /'
    grep -q -E '^(\[[01]\] )?bad: ' "$2" && fail "in a virtual machine:" &&
        grep -v -E '^(\[[01]\] )?(good: |end$)' "$2" | sed 's/^/    /'
    ends=$(grep -c -E '^(\[[01]\] )?end$' "$2")
    if [ "$ends" -ne "$1" ]; then
        fail "$ends of $1 came to the end; the last words:"
        tail -n 12 "$2" | sed 's/^/    /'
    fi
}

if [ -d /sys/class/infiniband ]; then
    if "$build/tests/conformance/test_ofi_verbs" >"$work/here" 2>&1; then
        pass
    else
        fail "conformance on this host:"
        tail -n 40 "$work/here"
    fi
fi

if ! vm ready >"$work/said" 2>&1; then
    skip verbs "$(tail -n 1 "$work/said")"
    finish
fi

limit=1800 parts=one
[ -z "${TP_TEST_LONG:-}" ] || { limit=7200; parts='one first second'; }
for part in $parts; do
    vm_run "$work/$part" -m 3072 -t $limit -- sh "$guest" "$part"
    verdicts 1 "$work/$part"
done
mkdir "$work/share"
vm_run "$work/two" -n 2 -t 600 -w "$work/share" -- \
    sh "$guest" two "$work/share"
verdicts 2 "$work/two"
finish
