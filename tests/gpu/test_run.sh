#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# What tests/gpu/run packs for a machine with a GPU works, over the double, with
# nothing in the environment: so that it does there the first time.
# shellcheck source=tests/lib/lint.sh
. "${TP_TEST_SOURCE:-.}/tests/lib/lint.sh"

if ! "${TP_TEST_SOURCE:-.}/tests/gpu/run" --double \
    --results "$work/recorded" "$build" >"$work/table" 2>"$work/err"; then
    fail "tests/gpu/run --double:"
    sed 's/^/    /' "$work/table" "$work/err"
fi

# has PATTERN: a line of the table is like that.
has()
{
    if grep -qE "$1" "$work/table"; then
        pass
    else
        fail "no line like /$1/ in:"
        sed 's/^/    /' "$work/table"
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

# Whatever is loaded on the way comes from the folder, or is glibc's: also what
# is loaded late, by a rank that meets others over TCP, or listens.  (glibc itself
# loads libgcc_s for backtraces, and does without.)
"${TP_TEST_SOURCE:-.}/tests/gpu/run" --double --pack "$work/pack" "$build" \
    >"$work/said" 2>&1 || fail "--pack: $(cat "$work/said")"
mkdir "$work/loads"
for name in order_pair listen_self; do
    env -i PATH="$PATH" HOME="$work" TP_TEST_BUILD="$work/pack" \
        TP_CUDA_LIBRARY="$work/pack/libcudadouble.so" TP_COSTS=none \
        HWLOC_PLUGINS_PATH=/nonexistent LD_LIBRARY_PATH="$work/pack/lib" \
        LD_DEBUG=files LD_DEBUG_OUTPUT="$work/loads/of" \
        TP_TEST_WAY=staged TP_TEST_ONLY=$name \
        "$work/pack/bin/test_suites" >"$work/said" 2>&1 ||
        fail "$name in the folder: $(tail -n 5 "$work/said")"
done
for name in libfabric libnettle libhwloc libcudadouble; do
    grep -qh "calling init: $work/pack.*/$name\.so" "$work/loads"/* ||
        fail "$name was not loaded from the folder"
done
cat "$work/loads"/* | sed -n 's/.*calling init: //p' | sort -u |
    grep -v -F "$work/pack/" |
    grep -v -E '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' |
    grep -v -E '/(libresolv|libutil|libanl|libgcc_s)\.so' >"$work/strays"
if [ -s "$work/strays" ]; then
    fail "not packed, but loaded:"
    sed 's/^/    /' "$work/strays"
else
    pass
fi

# The table stands behind what RESULTS.md says, whole, with its date.
cat "${TP_TEST_SOURCE:-.}/tests/gpu/RESULTS.md" >"$work/expected"
{ echo; cat "$work/table"; } >>"$work/expected"
if cmp -s "$work/expected" "$work/recorded"; then
    pass
else
    fail "the results that were written:"
    diff "$work/expected" "$work/recorded" | sed 's/^/    /'
fi
finish
