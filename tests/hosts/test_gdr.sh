#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# cuda_gdr, memory of GPUs read by network cards, without either: in a virtual
# machine with a software RDMA device, with doubles of the rest.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

unset TP_RANK TP_SIZE TP_BACKENDS TP_PROGRESS TP_IFACE TP_REQUIRE

vm() { bash "$source/tests/hosts/rdma-vm.sh" "$@"; }

if [ ! -e "$build/tests/gpu/spmd_device" ]; then
    skip gdr "built without CUDA"
    finish
fi
if ! vm ready >"$work/said" 2>&1; then
    skip gdr "$(tail -n 1 "$work/said")"
    finish
fi
vm run -t 1500 -- sh "$source/tests/hosts/guest_gdr.sh" >"$work/one" 2>&1
sed -n 's/^good: //p' "$work/one" >"$work/good"
while read -r line; do
    echo "    $line"
    pass
done <"$work/good"
grep -q '^bad: ' "$work/one" && fail "in a virtual machine:" &&
    grep -v -E '^(good: |end$)' "$work/one" | sed 's/^/    /'
if ! grep -q '^end$' "$work/one"; then
    fail "it did not come to its end; the last words:"
    tail -n 30 "$work/one" | sed 's/^/    /'
fi
finish
