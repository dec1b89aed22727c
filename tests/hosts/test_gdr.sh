#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# cuda_gdr, memory of GPUs read by network cards, without either: in a virtual
# machine with a software RDMA device, with doubles of the rest.
# shellcheck source=tests/hosts/vm.sh
. "${TP_TEST_SOURCE:-.}/tests/hosts/vm.sh"

if [ ! -e "$build/tests/gpu/spmd_device" ]; then
    skip gdr "built without CUDA"
    finish
fi
if ! vm ready >"$work/said" 2>&1; then
    skip gdr "$(tail -n 1 "$work/said")"
    finish
fi
vm_run "$work/one" -t 1500 -- sh "$source/tests/hosts/guest_gdr.sh"
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
