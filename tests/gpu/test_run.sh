#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# What tests/gpu/run packs for a machine with a GPU works, over the double, with
# nothing in the environment: so that it does there the first time.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

if ! "${TP_TEST_SOURCE:-.}/tests/gpu/run" --double \
    --results "$work/recorded" "$build" >"$work/said" 2>"$work/err"; then
    fail "tests/gpu/run --double:"
    sed 's/^/    /' "$work/said" "$work/err"
fi

# has PATTERN: a line of the table is like that.
has()
{
    if grep -qE "$1" "$work/said"; then
        pass
    else
        fail "no line like /$1/ in:"
        sed 's/^/    /' "$work/said"
    fi
}
has '^## 20[0-9-]*: the test double: figures mean nothing'
has '^\| test_memory \| [1-9][0-9]* \| 0 \| [0-9]+ \|'
has '^\| event \| 0 \| [0-9.]+ \| us \|'
has '^\| device-to-device \| 1048576 \| [0-9]+ \| MB/s \|'
for way in cuda_ipc cuda_staged; do
    has "^\\| $way \\| latency \\| 8 \\| [0-9.e+]+ \\| us \\|"
    has "^\\| $way \\| bandwidth \\| 1048576 \\| [0-9.e+]+ \\| MB/s \\|"
    has "^\\| $way, every byte checked \\| bandwidth \\| 1048576 "
done
has '^8 batches of 1000000 bytes through 2 stages, 2 of them on GPUs'
has '^All passed\.'

# The table stands behind what RESULTS.md says, whole, with its date.
cat "${TP_TEST_SOURCE:-.}/tests/gpu/RESULTS.md" >"$work/expected"
{ echo; cat "$work/said"; } >>"$work/expected"
if cmp -s "$work/expected" "$work/recorded"; then
    pass
else
    fail "the results that were written:"
    diff "$work/expected" "$work/recorded" | sed 's/^/    /'
fi
finish
